/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "core/manager.h"
#include "core/run.h"
#include "http/server.h"
#include "rpc/v1_internal.h"
#include "spec/spec.h"
#include "util/alloc.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/json.h"
#include "util/log.h"
#include "util/str.h"

/* One command over one WebSocket: what `box run` and `box exec` speak. The first message is the
 * request, as text. After that binary messages carry bytes (first byte: 0 stdin, 1 stdout, 2
 * stderr) and text messages say things. */

#define MESSAGE_MAX (12U << 20)
#define TEXT_MAX (64U * 1024U)
#define TERMINAL_MAX 4096         /* rows, columns */
#define STDIN_WINDOW (256 * 1024) /* bytes a client with acknowledgements sends ahead */
/* A reader that pauses (a pager at the other end) neither takes bytes nor answers pings, for as
 * long as a person likes. That a peer is gone is told by the socket. */
#define STALL_NS (365ULL * 24 * 3600 * 1000000000ULL)

struct stream {
    const struct v1 *v1;
    struct manager *manager;
    struct ws_conn *ws; /* NULL once closed */
    struct session *session;
    struct run *run;
    struct v1_exec exec;
    char *ephemeral; /* id of a session that goes with us */
    size_t unacked;  /* bytes of stdin that were taken from the client but not acknowledged */
    bool asked;      /* for a session; nothing is read from the client meanwhile */
};

static void end_ephemeral_done(void *arg, const struct err *err)
{
    char *id = arg;
    if (err != NULL)
        log_warn(id, "remove throw-away session: %s; ignoring", err->msg);
    free(id);
}

static void stream_free(struct stream *st)
{
    if (st->run != NULL)
        run_kill(st->run); /* nobody listens any more; a finished one is not affected */
    run_free(st->run);
    if (st->session != NULL)
        session_release(st->session);
    v1_exec_done(&st->exec);
    free(st->ephemeral);
    free(st);
}

static void send_text(struct stream *st, struct buf *out)
{
    if (st->ws != NULL)
        (void)ws_send(st->ws, WS_TEXT, out->data, out->len);
}

static void say_error(struct stream *st, const struct err *err)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "error");
    jw_kstr(&w, "code", err_code_name(err->code));
    jw_kstr(&w, "detail", err->msg);
    jw_kstr(&w, "remediation", v1_remedy(err));
    jw_object_end(&w);
    send_text(st, &out);
    if (st->ws != NULL)
        ws_close(st->ws, 1000, NULL);
}

static void say_exit(struct stream *st, const struct run_result *result)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "exit");
    v1_write_outcome(&w, result);
    jw_object_end(&w);
    send_text(st, &out);
    if (st->ws != NULL)
        ws_close(st->ws, 1000, NULL);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    static char frame[1 + 65536];
    struct stream *st = arg;
    if (st->ws == NULL)
        return;
    frame[0] = stream == EXEC_STDERR ? 2 : 1;
    while (len > 0) {
        size_t n = len < sizeof(frame) - 1 ? len : sizeof(frame) - 1;
        memcpy(frame + 1, data, n);
        if (ws_send(st->ws, WS_BINARY, frame, n + 1) < 0)
            return;
        data += n;
        len -= n;
    }
    /* A slow reader holds the program back; nothing is dropped. */
    if (ws_full(st->ws))
        run_pause(st->run, true);
}

static void say_stdin_ack(struct stream *st)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "stdin_ack");
    jw_ku64(&w, "bytes", st->unacked);
    jw_object_end(&w);
    send_text(st, &out);
    st->unacked = 0;
}

static void on_stdin_drained(void *arg)
{
    struct stream *st = arg;
    if (st->exec.stdin_acks)
        say_stdin_ack(st);
    else if (st->ws != NULL)
        ws_pause(st->ws, false);
}

/* The answer to a throw-away run comes when nothing of it is left. */
struct farewell {
    struct stream *st;
    struct run_result result;
};

static void on_ephemeral_gone(void *arg, const struct err *err)
{
    struct farewell *f = arg;
    (void)err;
    say_exit(f->st, &f->result);
    if (f->st->ws == NULL)
        stream_free(f->st);
    free(f);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct stream *st = arg;
    struct err err = {0};
    if (st->ephemeral == NULL) {
        say_exit(st, result);
        return;
    }
    struct farewell *f = xnew(struct farewell);
    f->st = st;
    f->result = *result;
    if (manager_delete(st->manager, st->ephemeral, on_ephemeral_gone, f, &err) < 0) {
        say_exit(st, result); /* gone by itself */
        free(f);
        return;
    }
    free(st->ephemeral);
    st->ephemeral = NULL;
    st->session = NULL; /* marks the farewell: on_closed() leaves the freeing to it */
}

static const struct run_events run_events = {
    .output = on_output, .stdin_drained = on_stdin_drained, .finished = on_finished};

static void start_run(struct stream *st)
{
    struct run_options options;
    struct err err = {0};
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    v1_exec_request(&st->exec, &options);
    if (run_start(st->session, &options, &run_events, st, &st->run, &err) < 0) {
        say_error(st, &err);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "started");
    jw_kstr(&w, "session_id", session_id(st->session));
    jw_kint(&w, "memory_mb", session_spec(st->session)->memory_mb);
    if (st->exec.stdin_acks)
        jw_kint(&w, "stdin_window", STDIN_WINDOW);
    jw_object_end(&w);
    send_text(st, &out);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct stream *st = arg;
    if (st->ws == NULL) { /* the client left while we were at work */
        struct err ignored = {0};
        if (s != NULL)
            session_release(s);
        if (st->ephemeral != NULL && s != NULL &&
            manager_delete(st->manager, st->ephemeral, end_ephemeral_done, st->ephemeral,
                           &ignored) == 0)
            st->ephemeral = NULL;
        stream_free(st);
        return;
    }
    st->asked = false;
    ws_pause(st->ws, false);
    if (s == NULL) {
        free(st->ephemeral);
        st->ephemeral = NULL;
        say_error(st, err);
        return;
    }
    st->session = s;
    start_run(st);
}

static int begin(struct stream *st, const struct json *m, struct err *err)
{
    AUTO(spec) struct spec *spec = NULL;
    static const char *const ours[] = {"session", "create", "ephemeral", NULL};
    uint64_t given = 0;
    int r = v1_exec_parse(m, ours, &st->exec, err);
    if (r < 0)
        return r;
    const struct json *create = json_get(m, "create");
    if (create != NULL && !json_bool(create)) {
        const char *id = json_str(json_get(json_get(m, "session"), "session_id"));
        struct session *s = id != NULL ? manager_find(st->manager, id) : NULL;
        if (s == NULL || session_sandbox(s) == NULL)
            return err_set(err, ERR_NOT_FOUND, "session %.80s not found",
                           id != NULL ? id : "(none given)");
        session_hold(s);
        st->session = s;
        start_run(st);
        return 0;
    }
    static const char empty[] = "{}";
    AUTO(json) struct json *none = NULL;
    const struct json *want = json_get(m, "session");
    if (want == NULL) {
        r = json_parse(empty, strlen(empty), &none, err);
        want = none;
    }
    if (r >= 0)
        r = v1_spec_parse(want, false, &spec, &given, err);
    if (r < 0)
        return r;
    if (json_bool(json_get(m, "ephemeral")))
        st->ephemeral = xstrdup(spec->session_id);
    st->asked = true;
    r = manager_acquire(st->manager, &spec, given, 0, on_ready, st, err);
    if (r < 0) {
        st->asked = false;
        free(st->ephemeral);
        st->ephemeral = NULL;
        return r;
    }
    ws_pause(st->ws, true); /* stdin that comes early waits for the command */
    return 0;
}

static int signal_number(const char *name)
{
    static const struct {
        const char *name;
        int signo;
    } signals[] = {{"INT", SIGINT},   {"TERM", SIGTERM}, {"HUP", SIGHUP},   {"QUIT", SIGQUIT},
                   {"KILL", SIGKILL}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TSTP", SIGTSTP},
                   {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"ALRM", SIGALRM}, {"WINCH", SIGWINCH}};
    for (size_t i = 0; name != NULL && i < ARRAY_SIZE(signals); i++)
        if (str_eq(name, signals[i].name))
            return signals[i].signo;
    return 0;
}

static void on_control(struct stream *st, const struct json *m)
{
    const char *type = json_str(json_get(m, "type"));
    if (st->run == NULL || type == NULL)
        return;
    if (str_eq(type, "stdin_eof")) {
        run_close_stdin(st->run);
    } else if (str_eq(type, "resize")) {
        int64_t rows = json_int(json_get(m, "rows")), cols = json_int(json_get(m, "cols"));
        if (rows > 0 && rows <= TERMINAL_MAX && cols > 0 && cols <= TERMINAL_MAX)
            run_resize(st->run, (uint16_t)rows, (uint16_t)cols);
    } else if (str_eq(type, "signal")) {
        int signo = signal_number(json_str(json_get(m, "signal")));
        if (signo == SIGKILL)
            run_kill(st->run);
        else if (signo > 0)
            run_signal(st->run, signo);
    }
}

/* A client that counts is never paused: what it says next may be a signal, or good-bye. */
static void got_counted(struct stream *st, size_t len, bool held_back)
{
    st->unacked += len;
    if (!held_back)
        say_stdin_ack(st);
}

static void on_stdin(struct stream *st, const char *data, size_t len)
{
    if (st->run == NULL || len < 1 || data[0] != 0)
        return;
    int r = run_write(st->run, data + 1, len - 1);
    if (st->ws == NULL)
        return;
    /* The queue takes any one message on top of what does not hold the client back. */
    if (r == -ENOBUFS)
        ws_close(st->ws, 1009, "stdin arrives faster than the program reads");
    else if (st->exec.stdin_acks && r >= 0)
        got_counted(st, len - 1, r > 0);
    else if (r > 0)
        ws_pause(st->ws, true);
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct stream *st = arg;
    AUTO(json) struct json *m = NULL;
    struct err err = {0};
    (void)ws;
    if (opcode == WS_BINARY) {
        on_stdin(st, data, len);
        return;
    }
    int r = json_parse(data, len, &m, &err);
    if (r == 0 && json_type(m) != JSON_OBJECT)
        r = err_set(&err, ERR_INVALID, "a message must be a JSON object");
    if (r == 0 && st->run != NULL)
        on_control(st, m);
    else if (r == 0)
        r = begin(st, m, &err);
    if (r < 0)
        say_error(st, &err);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    struct stream *st = arg;
    (void)ws;
    if (st->run != NULL)
        run_pause(st->run, false);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct stream *st = arg;
    struct err ignored = {0};
    (void)ws;
    (void)code;
    (void)reason;
    st->ws = NULL;
    if (st->asked || (st->run != NULL && st->session == NULL))
        return; /* on_ready() or the farewell is still to come and frees us */
    if (st->ephemeral != NULL && st->session != NULL &&
        manager_delete(st->manager, st->ephemeral, end_ephemeral_done, st->ephemeral, &ignored) ==
            0)
        st->ephemeral = NULL;
    stream_free(st);
}

void v1_stream(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .stall_ns = STALL_NS, .hangup_ends = true};
    struct err err = {0};
    struct stream *st = xnew(struct stream);
    st->v1 = arg;
    st->manager = st->v1->manager;
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0)
        free(st);
}
