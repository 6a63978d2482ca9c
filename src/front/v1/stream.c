/* SPDX-License-Identifier: Apache-2.0 */

/* One command over a WebSocket: the protocol of `box run` and `box exec`. The first message is the
 * request, as text; a client that comes back to a running command sends none. After that binary
 * messages carry bytes (first byte: 0 stdin, 1 stdout, 2 stderr) and text messages carry events. */

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/state.h"
#include "base/str.h"
#include "command/execs.h"
#include "front/v1/v1_internal.h"
#include "policy/authz.h"
#include "session/ports.h"
#include "spec/spec.h"

#define MESSAGE_MAX (12U << 20)
#define TEXT_MAX (64U * 1024U)
#define TERMINAL_MAX 4096         /* rows, columns */
#define STDIN_WINDOW (256 * 1024) /* bytes a client with acknowledgements sends ahead */
/* A reader that pauses (a pager at the other end) neither takes bytes nor answers pings, for as
 * long as a person likes. The socket shows when a peer is gone. */
#define STALL_NS (365ULL * 24 * 3600 * 1000000000ULL)

/*   REQUEST ──► SESSION ──► COMMAND ──► STARTED ──► FAREWELL ──► ENDED
 *      └───────────────────────┘           └───────────────────────┘
 * Every state but FAREWELL may move to ENDED at once, with an error. */
enum ws_exec_state {
    WS_EXEC_REQUEST,  /* the first message is awaited */
    WS_EXEC_SESSION,  /* its session is being made; on_ready() frees us if the client leaves */
    WS_EXEC_COMMAND,  /* the command was asked for */
    WS_EXEC_STARTED,  /* the client knows that the command runs */
    WS_EXEC_FAREWELL, /* the command has ended; its throw-away session is being removed */
    WS_EXEC_ENDED,    /* the client knows how it ended */
    WS_EXEC_STATE_MAX,
};

#define TO(state) (1U << WS_EXEC_##state)
static const unsigned ws_exec_moves[WS_EXEC_STATE_MAX] = {
    [WS_EXEC_REQUEST] = TO(SESSION) | TO(COMMAND) | TO(ENDED),
    [WS_EXEC_SESSION] = TO(COMMAND) | TO(ENDED),
    [WS_EXEC_COMMAND] = TO(STARTED) | TO(FAREWELL) | TO(ENDED),
    [WS_EXEC_STARTED] = TO(FAREWELL) | TO(ENDED),
    [WS_EXEC_FAREWELL] = TO(ENDED),
};

struct ws_exec {
    enum ws_exec_state state;
    const struct v1 *v1;
    struct ws_conn *ws;              /* NULL once closed */
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned; for records */
    struct session *session;         /* held */
    struct named_exec_reader reader;
    struct v1_exec exec;
    struct v1_ports *ports; /* owned; to publish; NULL: none */
    bool ephemeral;         /* the session goes with us */
    bool stdin_acks;
    struct run_result result; /* of WS_EXEC_FAREWELL */
    uint64_t from;            /* where output begins */
    size_t unacked; /* bytes of stdin that were taken from the client but not acknowledged */
};

static void ws_exec_move(struct ws_exec *st, enum ws_exec_state to)
{
    STATE_MOVE(st->state, ws_exec_moves, to);
}

static bool ws_exec_follows(const struct ws_exec *st)
{
    return st->state == WS_EXEC_COMMAND || st->state == WS_EXEC_STARTED;
}

static void stream_free(struct ws_exec *st)
{
    assert(st->ws == NULL); /* or it would call back */
    named_exec_detach(&st->reader);
    if (st->session != NULL)
        session_release(st->session);
    v1_exec_done(&st->exec);
    v1_ports_free(st->ports);
    free(st->who);
    authz_release(st->scope);
    free(st);
}

/* The last message of a connection. */
static void farewell_send(struct ws_exec *st, struct front_answer *out)
{
    ws_exec_move(st, WS_EXEC_ENDED);
    front_send(out, st->ws);
    if (st->ws != NULL)
        ws_close(st->ws, WS_CODE_NORMAL, NULL);
}

static void say_error(struct ws_exec *st, const struct err *err)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "error");
    front_write_problem(w, err);
    farewell_send(st, &out);
}

static void say_exit(struct ws_exec *st, const struct run_result *result)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "exit");
    jw_ku64(w, "seq", result->produced[0] + result->produced[1]);
    v1_write_outcome(w, result);
    farewell_send(st, &out);
}

static void say_dropped(struct ws_exec *st, uint64_t bytes)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "dropped");
    jw_ku64(w, "bytes", bytes);
    jw_ku64(w, "seq", st->reader.at);
    front_send(&out, st->ws);
}

void v1_say_stdin_ack(struct ws_conn *ws, size_t *unacked)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "stdin_ack");
    jw_ku64(w, "bytes", *unacked);
    front_send(&out, ws);
    *unacked = 0;
}

static void on_stdin_drained(void *arg)
{
    struct ws_exec *st = arg;
    if (st->stdin_acks)
        v1_say_stdin_ack(st->ws, &st->unacked);
    else if (st->ws != NULL)
        ws_pause(st->ws, false);
}

/* The answer to a throw-away run comes when nothing of it is left. */
static void on_ephemeral_gone(void *arg, const struct err *err)
{
    struct ws_exec *st = arg;
    say_exit(st, &st->result);
    if (st->ws == NULL)
        stream_free(st);
}

static void stream_finish(struct ws_exec *st)
{
    struct err err = {0};
    if (named_exec_error(st->reader.kept) != NULL) {
        say_error(st, named_exec_error(st->reader.kept));
        return; /* the rest of a throw-away session is removed when the connection ends */
    }
    st->result = *named_exec_result(st->reader.kept);
    if (!st->ephemeral ||
        manager_delete_this(st->v1->front.manager, st->session, on_ephemeral_gone, st, &err) < 0) {
        say_exit(st, &st->result); /* there is no session to remove, or it is gone by itself */
        return;
    }
    st->ephemeral = false;
    ws_exec_move(st, WS_EXEC_FAREWELL); /* on_ephemeral_gone() frees us if the client leaves */
}

static void say_started(struct ws_exec *st)
{
    const struct named_exec *k = st->reader.kept;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "started");
    jw_kstr(w, "session_id", named_exec_session_id(k));
    jw_kstr(w, "exec_id", named_exec_id(k));
    jw_ku64(w, "seq", st->from);
    jw_ku64(w, "stdin_bytes", named_exec_stdin_bytes(k));
    if (st->session != NULL)
        jw_kint(w, "memory_mb", session_spec(st->session)->memory_mb);
    if (st->session != NULL) {
        jw_kbool(w, "durable", session_durable(st->session));
        front_write_unenforced(w, st->session);
    }
    if (st->stdin_acks)
        jw_kint(w, "stdin_window", STDIN_WINDOW);
    v1_ports_write(st->ports, w);
    front_send(&out, st->ws);
    ws_exec_move(st, WS_EXEC_STARTED);
    ws_pause(st->ws, false);
}

/* A slow reader holds the program back; no byte that it has not read is dropped. */
static void stream_pump(void *arg)
{
    static char frame[1 + 65536];
    struct ws_exec *st = arg;
    enum exec_stream stream;
    if (st->ws == NULL || !ws_exec_follows(st) ||
        named_exec_state(st->reader.kept) == COMMAND_ASKING)
        return;
    if (st->state == WS_EXEC_COMMAND && named_exec_ran(st->reader.kept))
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
    if (named_exec_at_end(&st->reader))
        stream_finish(st);
}

static const struct named_exec_events reader_events = {.ready = stream_pump,
                                                       .stdin_drained = on_stdin_drained};

static void stream_follow(struct ws_exec *st, struct named_exec *k)
{
    ws_exec_move(st, WS_EXEC_COMMAND);
    named_exec_attach(k, &st->reader, st->from, &reader_events, st);
    if (named_exec_state(k) == COMMAND_ASKING)
        ws_pause(st->ws, true); /* stdin that comes early waits for the command */
    stream_pump(st);
}

/* Ports that were published for a command which may not run, or not with all of them. */
static void unpublish_from(struct session *s, unsigned at)
{
    struct port_map_info info;
    while (session_port_at(s, at, &info))
        (void)session_unpublish(s, info.port, info.host_port, NULL);
}

static void start_run(struct ws_exec *st)
{
    struct port_map_info info;
    unsigned n_ports = 0;
    struct err err = {0};
    struct named_exec *k = NULL;
    st->stdin_acks = st->exec.stdin_acks;
    if (st->ephemeral)
        st->exec.capture_bytes = 0;
    const struct front_asker asker = {.scope = st->scope, .who = st->who};
    while (session_port_at(st->session, n_ports, &info))
        n_ports++;
    if (v1_ports_publish(st->ports, st->session, &err) < 0 ||
        v1_exec_begin(st->v1, st->session, &asker, &st->exec, &k, &err) < 0) {
        unpublish_from(st->session, n_ports);
        say_error(st, &err);
    } else {
        stream_follow(st, k);
    }
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct ws_exec *st = arg;
    if (st->ws == NULL) { /* the client left while the session was being made */
        if (st->ephemeral && s != NULL)
            front_session_discard(&st->v1->front, s);
        if (s != NULL)
            session_release(s);
        stream_free(st);
        return;
    }
    ws_pause(st->ws, false);
    if (s == NULL) {
        say_error(st, err);
        return;
    }
    st->session = s;
    start_run(st);
}

/* The session that the request names: as it is, or made if need be. */
static int get_session(struct ws_exec *st, const struct json *want, bool make, bool ephemeral,
                       struct err *err)
{
    const struct front_asker asker = {.scope = st->scope, .who = st->who};
    const struct front_want session = {.object = want, .exact = true};
    struct session *found = NULL;
    int r = make ? front_session_get(&st->v1->front, &asker, &session, on_ready, st, err)
                 : front_session_find(&st->v1->front, &asker,
                                      json_str(json_get(want, "session_id")), &found, err);
    bool asleep = found != NULL && session_dormant(found);
    if (r == 0 && asleep)
        r = manager_start(st->v1->front.manager, session_id(found), on_ready, st, err);
    if (r < 0)
        return r;
    st->ephemeral = make && ephemeral;
    if (make || asleep) {
        ws_exec_move(st, WS_EXEC_SESSION);
        ws_pause(st->ws, true); /* stdin that comes early waits for the command */
    } else {
        session_hold(found);
        st->session = found;
        start_run(st);
    }
    return 0;
}

static int stream_begin(struct ws_exec *st, const struct json *m, struct err *err)
{
    static const char *const ours[] = {"session", "create", "ephemeral", "ports", NULL};
    static const char empty[] = "{}";
    AUTO(json) struct json *none = NULL;
    bool ephemeral = json_bool(json_get(m, "ephemeral"));
    int r = v1_exec_parse(m, ours, &st->exec, err);
    if (r == 0)
        r = v1_ports_parse(st->v1, st->scope, json_get(m, "ports"), &st->ports, err);
    if (r < 0)
        return r;
    /* The session of a throw-away run ends with it: no client can come back to it. */
    if (ephemeral && st->exec.on_disconnect != V1_DISCONNECT_KILL)
        return err_set(err, ERR_INVALID, "an ephemeral session cannot outlive its connection");
    if (st->exec.detach)
        return err_set(err, ERR_INVALID,
                       "detach is for POST /v1/sessions/{id}/exec; here it is on_disconnect: keep");
    const struct json *create = json_get(m, "create"), *want = json_get(m, "session");
    const bool make = create == NULL || json_bool(create);
    if (make && want == NULL) {
        r = json_parse(empty, strlen(empty), &none, err);
        want = none;
    }
    return r < 0 ? r : get_session(st, want, make, ephemeral, err);
}

static void on_control(struct ws_exec *st, const struct json *m)
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
        int signo = v1_signal_number(json_str(json_get(m, "signal")));
        if (signo == SIGKILL)
            named_exec_kill(k); /* and all it started */
        else if (signo > 0)
            named_exec_signal(k, signo);
    }
}

static void on_stdin(struct ws_exec *st, const char *data, size_t len)
{
    if (st->reader.kept == NULL || len < 1 || data[0] != 0)
        return;
    int r = named_exec_write(st->reader.kept, data + 1, len - 1);
    if (st->ws == NULL)
        return;
    /* The queue has room for one more message beyond the limit at which the client is held back. */
    if (r == -ENOBUFS) {
        ws_close(st->ws, 1009, "stdin arrives faster than the program reads");
    } else if (st->stdin_acks && r >= 0) {
        /* A client that counts acknowledgements is never paused: its next message may be a signal,
         * or its end. */
        st->unacked += len - 1;
        if (r == 0)
            v1_say_stdin_ack(st->ws, &st->unacked);
    } else if (r > 0) {
        ws_pause(st->ws, true);
    }
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct ws_exec *st = arg;
    AUTO(json) struct json *m = NULL;
    struct err err = {0};
    if (opcode == WS_BINARY) {
        on_stdin(st, data, len);
        return;
    }
    if (st->state != WS_EXEC_REQUEST && !ws_exec_follows(st))
        return; /* it comes too late */
    int r = json_parse(data, len, &m, &err);
    if (r == 0 && json_type(m) != JSON_OBJECT)
        r = err_set(&err, ERR_INVALID, "a message must be a JSON object");
    if (r == 0 && st->state != WS_EXEC_REQUEST)
        on_control(st, m);
    else if (r == 0)
        r = stream_begin(st, m, &err);
    if (r < 0)
        say_error(st, &err);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    stream_pump(arg);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct ws_exec *st = arg;
    st->ws = NULL;
    if (st->state == WS_EXEC_SESSION || st->state == WS_EXEC_FAREWELL)
        return; /* on_ready() or on_ephemeral_gone() is still to come and frees us */
    if (st->ephemeral && st->session != NULL)
        front_session_discard(&st->v1->front, st->session);
    stream_free(st);
}

static const struct ws_handlers handlers = {
    .message = on_message, .writable = on_writable, .closed = on_closed};

static struct ws_exec *stream_new(const struct http_request *req, const struct v1 *v)
{
    struct ws_exec *st = xnew(struct ws_exec);
    st->v1 = v;
    st->scope = authz_hold(front_caller(req));
    st->who = xstrdup(front_who(req));
    return st;
}

static void open_stream(struct http_request *req, void *arg)
{
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .stall_ns = STALL_NS, .hangup_ends = true};
    struct err err = {0};
    struct ws_exec *st = stream_new(req, arg);
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0)
        stream_free(st);
}

/* One of several readers of an exec: a slow one holds the others back only for a bounded time. */
void v1_stream_attach(struct http_request *req, const struct v1 *v, struct named_exec *k,
                      uint64_t from)
{
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .hangup_ends = true};
    struct err err = {0};
    uint64_t acks = 0;
    if (!v1_query_number(req, "stdin_acks", 1, 0, &acks))
        return;
    struct ws_exec *st = stream_new(req, v);
    st->from = from;
    st->stdin_acks = acks != 0;
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0)
        stream_free(st);
    else
        stream_follow(st, k);
}

const struct http_route v1_stream_routes[] = {
    {"GET", "/v1/exec", open_stream, HTTP_ROUTE_SCOPED, 0},
    {0},
};
