/* SPDX-License-Identifier: Apache-2.0 */

/* One command over one WebSocket: the protocol of `box run` and `box exec`. The first message is
 * the request, as text; a client that comes back to a running command sends none. After that binary
 * messages carry bytes (first byte: 0 stdin, 1 stdout, 2 stderr) and text messages carry events. */

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "command/execs.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "session/run.h"
#include "spec/spec.h"

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
    struct ws_conn *ws;              /* NULL once closed */
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned; for records */
    struct session *session;         /* held */
    struct named_exec_reader reader;
    struct v1_exec exec;
    char *ephemeral; /* id of a session that goes with us */
    bool stdin_acks;
    uint64_t from;  /* where output begins */
    bool started;   /* and said so */
    bool said;      /* how it ended */
    bool ended;     /* the farewell is under way and frees us */
    size_t unacked; /* bytes of stdin that were taken from the client but not acknowledged */
    bool asked;     /* for a session; nothing is read from the client meanwhile */
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
    named_exec_detach(&st->reader);
    if (st->session != NULL)
        session_release(st->session);
    v1_exec_done(&st->exec);
    free(st->ephemeral);
    free(st->who);
    authz_release(st->scope);
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
    jw_kstr(&w, "remediation", front_remedy(err));
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
    jw_ku64(&w, "seq", result->produced[0] + result->produced[1]);
    v1_write_outcome(&w, result);
    jw_object_end(&w);
    send_text(st, &out);
    if (st->ws != NULL)
        ws_close(st->ws, 1000, NULL);
}

static void say_dropped(struct stream *st, uint64_t bytes)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "dropped");
    jw_ku64(&w, "bytes", bytes);
    jw_ku64(&w, "seq", st->reader.at);
    jw_object_end(&w);
    send_text(st, &out);
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
    if (st->stdin_acks)
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
    f->st->ended = false;
    say_exit(f->st, &f->result);
    if (f->st->ws == NULL)
        stream_free(f->st);
    free(f);
}

static void finish(struct stream *st)
{
    struct err err = {0};
    const struct run_result *result = named_exec_result(st->reader.kept);
    if (named_exec_error(st->reader.kept) != NULL) {
        say_error(st, named_exec_error(st->reader.kept));
        return; /* what is left of a throw-away session goes when the connection does */
    }
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
    st->ended = true; /* on_closed() leaves the freeing to the farewell */
}

static void say_started(struct stream *st)
{
    const struct named_exec *k = st->reader.kept;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "started");
    jw_kstr(&w, "session_id", named_exec_session_id(k));
    jw_kstr(&w, "exec_id", named_exec_id(k));
    jw_ku64(&w, "seq", st->from);
    jw_ku64(&w, "stdin_bytes", named_exec_stdin_bytes(k));
    if (st->session != NULL)
        jw_kint(&w, "memory_mb", session_spec(st->session)->memory_mb);
    if (st->stdin_acks)
        jw_kint(&w, "stdin_window", STDIN_WINDOW);
    jw_object_end(&w);
    send_text(st, &out);
    st->started = true;
    ws_pause(st->ws, false);
}

/* A slow reader holds the program back; nothing of what he has not read is dropped. */
static void pump(void *arg)
{
    static char frame[1 + 65536];
    struct stream *st = arg;
    enum exec_stream stream;
    if (st->ws == NULL || st->said || named_exec_state(st->reader.kept) == NAMED_EXEC_ASKING)
        return;
    if (!st->started && named_exec_ran(st->reader.kept))
        say_started(st);
    uint64_t dropped = named_exec_take_dropped(&st->reader);
    if (dropped > 0)
        say_dropped(st, dropped);
    for (size_t n; !ws_full(st->ws) &&
                   (n = named_exec_read(&st->reader, &stream, frame + 1, sizeof(frame) - 1)) > 0;) {
        frame[0] = stream == EXEC_STDERR ? 2 : 1;
        if (ws_send(st->ws, WS_BINARY, frame, n + 1) < 0)
            return;
        named_exec_advance(&st->reader, n);
    }
    if (!named_exec_at_end(&st->reader))
        return;
    st->said = true;
    finish(st);
}

static const struct named_exec_events reader_events = {.ready = pump,
                                                       .stdin_drained = on_stdin_drained};

static void attach(struct stream *st, struct named_exec *k)
{
    named_exec_attach(k, &st->reader, st->from, &reader_events, st);
    if (named_exec_state(k) == NAMED_EXEC_ASKING)
        ws_pause(st->ws, true); /* stdin that comes early waits for the command */
    pump(st);
}

/* The session of a throw-away run goes with it: there is nothing to come back to. */
static int check_life(const struct v1_exec *e, bool ephemeral, struct err *err)
{
    if (ephemeral && e->on_disconnect != V1_DISCONNECT_KILL)
        return err_set(err, ERR_INVALID, "an ephemeral session cannot outlive its connection");
    if (e->detach)
        return err_set(err, ERR_INVALID,
                       "detach is for POST /v1/sessions/{id}/exec; here it is on_disconnect: keep");
    return 0;
}

static void start_run(struct stream *st)
{
    struct err err = {0};
    struct named_exec *k = NULL;
    st->stdin_acks = st->exec.stdin_acks;
    if (st->ephemeral != NULL)
        st->exec.capture_bytes = 0;
    const struct front_asker asker = {.scope = st->scope, .who = st->who};
    if (v1_exec_begin(st->v1, st->session, &asker, &st->exec, &k, &err) < 0)
        say_error(st, &err);
    else
        attach(st, k);
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

/* The session that the request names, as it is. */
static int use_session(struct stream *st, const struct json *m, struct err *err)
{
    const char *id = json_str(json_get(json_get(m, "session"), "session_id"));
    bool ours = id != NULL && authz_check_session(st->scope, id, err) == 0;
    struct session *s = ours ? manager_find(st->manager, id) : NULL;
    struct audit_record record = {
        .event = AUDIT_DENIED, .who = st->who, .via = "http", .session = id};
    if (id != NULL && !ours)
        policy_service_failed(st->v1->front.service, err, NULL, &record);
    if (s == NULL || session_sandbox(s) == NULL)
        return err_missing(err, ERR_THING_SESSION, "session %.80s not found",
                           id != NULL ? id : "(none given)");
    session_hold(s);
    st->session = s;
    start_run(st);
    return 0;
}

/* The same, made if need be. */
static int make_session(struct stream *st, const struct json *want, bool ephemeral, struct err *err)
{
    const struct front_asker asker = {.scope = st->scope, .who = st->who};
    const struct front_want session = {.object = want, .ret_id = ephemeral ? &st->ephemeral : NULL};
    int r = front_session_get(&st->v1->front, &asker, &session, on_ready, st, err);
    if (r < 0)
        return r;
    st->asked = true;
    ws_pause(st->ws, true); /* stdin that comes early waits for the command */
    return 0;
}

static int begin(struct stream *st, const struct json *m, struct err *err)
{
    static const char *const ours[] = {"session", "create", "ephemeral", NULL};
    static const char empty[] = "{}";
    AUTO(json) struct json *none = NULL;
    bool ephemeral = json_bool(json_get(m, "ephemeral"));
    int r = v1_exec_parse(m, ours, &st->exec, err);
    if (r == 0)
        r = check_life(&st->exec, ephemeral, err);
    if (r < 0)
        return r;
    const struct json *create = json_get(m, "create"), *want = json_get(m, "session");
    if (create != NULL && !json_bool(create))
        return use_session(st, m, err);
    if (want == NULL) {
        r = json_parse(empty, strlen(empty), &none, err);
        want = none;
    }
    return r < 0 ? r : make_session(st, want, ephemeral, err);
}

static void on_control(struct stream *st, const struct json *m)
{
    const char *type = json_str(json_get(m, "type"));
    struct named_exec *k = st->reader.kept;
    if (type == NULL)
        return;
    if (str_eq(type, "stdin_eof")) {
        named_exec_close_stdin(k);
    } else if (str_eq(type, "resize")) {
        int64_t rows = json_int(json_get(m, "rows")), cols = json_int(json_get(m, "cols"));
        if (rows > 0 && rows <= TERMINAL_MAX && cols > 0 && cols <= TERMINAL_MAX)
            named_exec_resize(k, (uint16_t)rows, (uint16_t)cols);
    } else if (str_eq(type, "signal")) {
        v1_kept_signal(k, v1_signal_number(json_str(json_get(m, "signal"))));
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
    if (st->reader.kept == NULL || len < 1 || data[0] != 0)
        return;
    int r = named_exec_write(st->reader.kept, data + 1, len - 1);
    if (st->ws == NULL)
        return;
    /* The queue takes any one message on top of what does not hold the client back. */
    if (r == -ENOBUFS)
        ws_close(st->ws, 1009, "stdin arrives faster than the program reads");
    else if (st->stdin_acks && r >= 0)
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
    if (opcode == WS_BINARY) {
        on_stdin(st, data, len);
        return;
    }
    int r = json_parse(data, len, &m, &err);
    if (r == 0 && json_type(m) != JSON_OBJECT)
        r = err_set(&err, ERR_INVALID, "a message must be a JSON object");
    if (r == 0 && st->reader.kept != NULL)
        on_control(st, m);
    else if (r == 0)
        r = begin(st, m, &err);
    if (r < 0)
        say_error(st, &err);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    struct stream *st = arg;
    if (st->reader.kept != NULL)
        pump(st);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct stream *st = arg;
    struct err ignored = {0};
    st->ws = NULL;
    if (st->asked || st->ended)
        return; /* on_ready() or the farewell is still to come and frees us */
    if (st->ephemeral != NULL && st->session != NULL &&
        manager_delete(st->manager, st->ephemeral, end_ephemeral_done, st->ephemeral, &ignored) ==
            0)
        st->ephemeral = NULL;
    stream_free(st);
}

static const struct ws_handlers handlers = {
    .message = on_message, .writable = on_writable, .closed = on_closed};

static struct stream *stream_new(const struct http_request *req, const struct v1 *v)
{
    struct stream *st = xnew(struct stream);
    st->v1 = v;
    st->manager = v->front.manager;
    st->scope = authz_hold(front_caller(req));
    st->who = xstrdup(front_who(req));
    return st;
}

void v1_stream(struct http_request *req, void *arg)
{
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .stall_ns = STALL_NS, .hangup_ends = true};
    struct err err = {0};
    struct stream *st = stream_new(req, arg);
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0)
        stream_free(st);
}

/* One of several who watch: that he is slow holds the others back only for so long. */
void v1_stream_attach(struct http_request *req, const struct v1 *v, struct named_exec *k,
                      uint64_t from)
{
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .hangup_ends = true};
    struct err err = {0};
    uint64_t acks = 0;
    if (!v1_query_number(req, "stdin_acks", 1, 0, &acks))
        return;
    struct stream *st = stream_new(req, v);
    st->from = from;
    st->stdin_acks = acks != 0;
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0)
        stream_free(st);
    else
        attach(st, k);
}
