/* SPDX-License-Identifier: Apache-2.0 */

/* `box mcp serve`: lines of the client become messages to boxd, which speaks the protocol, and back
 * (front/mcp/stdio.c). Bytes are passed on as they are. Each line is scanned for the request that
 * it asks or answers, so that a client gets an answer to what was lost with a boxd that goes away.
 * When this process ends, however it ends, boxd takes back what is under way and ends a session
 * without a name. */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/state.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/pipe.h"
#include "cli/io/text.h"
#include "cli/mcp/requests.h"
#include "http/client/client.h"
#include "spec/spec.h"

#define TARGET "/mcp/stdio"
#define HELLO_MAX (1u << 20)
#define LINE_MAX_BYTES (12u << 20) /* of a message, as boxd takes them */
#define QUEUE_MAX (64u << 20)
#define PATIENCE_SEC 30
#define PATIENCE_SEC_MAX 86400
#define FIRST_NS (50 * NSEC_PER_MSEC)
#define LAST_NS (500 * NSEC_PER_MSEC)
#define TRIES_ALONE 20               /* before another boxd is started where none was named */
#define CLOSE_NS (10 * NSEC_PER_SEC) /* for boxd to say its last words */

/*   OPENING ──► SERVING ──► FINISHING ──► ENDED
 *      │        │  ▲  └─────────────────► ^
 *      │        ▼  │                      │
 *      │        LOST ─────────────────────┤
 *      └──────────────────────────────────┘      */
enum serve_state {
    SERVE_OPENING,
    SERVE_SERVING,
    SERVE_LOST, /* boxd is away; the client's next lines wait in its pipe */
    SERVE_FINISHING,
    SERVE_ENDED,
    SERVE_STATE_MAX,
};

struct serve {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    enum serve_state state;
    struct ws_conn *ws; /* NULL before it is open and after it is closed */
    char client[17];    /* names us to boxd, also to the next one, which finds our session by it */
    uint64_t patience_ns, give_up_at; /* with a boxd that is away; then clients start us again */
    unsigned tries;
    struct mcp_requests book;
    struct intake in;
    struct sink out;
    struct buf line; /* of the client, not whole yet */
    bool too_long;   /* the rest of that line is dropped */
    struct loop_timer timer;
    struct err err; /* why it failed, if it did */
};

#define TO(s) (1u << SERVE_##s)
static const unsigned next_states[SERVE_STATE_MAX] = {
    [SERVE_OPENING] = TO(SERVING) | TO(ENDED),
    [SERVE_SERVING] = TO(LOST) | TO(FINISHING) | TO(ENDED),
    [SERVE_LOST] = TO(SERVING) | TO(ENDED),
    [SERVE_FINISHING] = TO(ENDED),
    [SERVE_ENDED] = TO(ENDED),
};

static void serve_move(struct serve *s, enum serve_state to)
{
    STATE_MOVE(s->state, next_states, to);
}

static void on_close_timer(struct loop_timer *t)
{
    loop_quit(container_of(t, struct serve, timer)->app->loop);
}

static void serve_end(struct serve *s)
{
    serve_move(s, SERVE_ENDED);
    intake_stop(&s->in);
    loop_quit(s->app->loop);
}

static void serve_fail(struct serve *s, const struct err *err)
{
    if (s->state == SERVE_ENDED)
        return;
    s->err = *err;
    serve_end(s);
}

/* To the client. */

static void write_out(struct serve *s, const char *data, size_t len)
{
    (void)sink_write(&s->out, data, len);
    if (s->ws != NULL)
        ws_pause(s->ws, sink_busy(&s->out));
}

static void serve_answer(struct serve *s, const struct buf *lines)
{
    if (lines->len > 0)
        write_out(s, lines->data, lines->len);
}

static void on_out(struct sink *out)
{
    struct serve *s = container_of(out, struct serve, out);
    struct err err;

    if (out->error != 0) {
        (void)err_sys(&err, out->error, "write to standard output");
        serve_fail(s, &err);
    } else if (s->ws != NULL) {
        ws_pause(s->ws, sink_busy(out));
    } else if (s->state == SERVE_FINISHING && !sink_busy(out)) {
        serve_end(s);
    }
}

struct boxd_reading {
    struct mcp_requests *book;
    bool drop;
};

static void on_scanned(void *arg, const struct mcp_msg *msg)
{
    struct boxd_reading *r = arg;

    r->drop = r->drop || mcp_requests_from_server(r->book, msg) == MCP_DROP;
}

static void send_lines(struct serve *s, const struct buf *lines)
{
    const char *at = buf_str(lines);

    for (size_t len; s->ws != NULL && (len = strcspn(at, "\n")) > 0; at += len + 1)
        (void)ws_send(s->ws, WS_TEXT, at, len);
}

static int serve_listen(struct serve *s);

/* The answer to a handshake that the client has had from an earlier boxd is not for it. */
static void handshake_replayed(struct serve *s)
{
    AUTO_DONE(buf) struct buf lines = BUF_INIT(2 * MCP_LINE_MAX);
    struct err err;

    mcp_requests_replayed(&s->book, &lines);
    send_lines(s, &lines);
    int r = serve_listen(s);
    if (r < 0) {
        (void)err_sys(&err, -r, "read standard input");
        serve_fail(s, &err);
    }
}

static void serve_got_message(struct serve *s, const char *data, size_t len)
{
    struct boxd_reading r = {.book = &s->book};
    struct mcp_scan scan = {0};

    mcp_scan_feed(&scan, data, len, on_scanned, &r);
    if (r.drop) {
        handshake_replayed(s);
        return;
    }
    write_out(s, data, len);
    write_out(s, "\n", 1);
}

/* The answer that boxd would have given, had the line reached it. */
static void refuse_line(struct serve *s, int code, const char *why)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(4096);

    mcp_put_error(&out, "null", code, why);
    serve_answer(s, &out);
}

/* From the client. */

static void pass_on(struct serve *s, const char *text, size_t len)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(1u << 20);

    if (s->ws != NULL && ws_send(s->ws, WS_TEXT, text, len - 1) == 0) {
        (void)mcp_requests_from_client(&s->book, text, len);
        return;
    }
    mcp_requests_refuse(text, len - 1, "box: boxd does not keep up", &answers);
    serve_answer(s, &answers);
}

static void got_line(struct serve *s)
{
    const char *text = buf_str(&s->line);

    while (s->line.len > 0 && strchr(" \t\r", text[s->line.len - 1]) != NULL)
        s->line.len--;
    if (s->too_long)
        refuse_line(s, -32600, "a message has at most 12 MiB");
    else if (!utf8_valid(text, s->line.len))
        refuse_line(s, -32700, "a message is UTF-8");
    else if (s->line.len > 0 && buf_putc(&s->line, '\n') == 0)
        pass_on(s, s->line.data, s->line.len);
    s->too_long = false;
    buf_reset(&s->line);
}

static void got_bytes(struct serve *s, const char *data, size_t len)
{
    while (len > 0) {
        const char *newline = memchr(data, '\n', len);
        size_t n = newline != NULL ? (size_t)(newline - data) : len;
        if (s->line.len + n > LINE_MAX_BYTES) {
            s->too_long = true;
            buf_reset(&s->line);
        }
        if (!s->too_long)
            (void)buf_append(&s->line, data, n);
        if (newline != NULL)
            got_line(s);
        data += n + (newline != NULL ? 1 : 0);
        len -= n + (newline != NULL ? 1 : 0);
    }
}

static void on_input(struct intake *in, const char *data, size_t len)
{
    struct serve *s = container_of(in, struct serve, in);

    if (len > 0) {
        got_bytes(s, data, len);
        intake_pause(&s->in, s->ws == NULL || ws_full(s->ws));
        return;
    }
    if (s->line.len > 0 || s->too_long)
        got_line(s);
    if (s->state != SERVE_SERVING) { /* no boxd is there to hear of the end */
        serve_end(s);
        return;
    }
    /* An empty message is the end: boxd answers what it can at once, and hangs up. */
    serve_move(s, SERVE_FINISHING);
    if (s->ws == NULL || ws_send(s->ws, WS_TEXT, "", 0) < 0)
        serve_end(s);
    else
        loop_timer_start(s->app->loop, &s->timer, CLOSE_NS, on_close_timer);
}

static int serve_listen(struct serve *s)
{
    if (s->in.loop == NULL)
        return intake_start(&s->in, s->app->loop, STDIN_FILENO, on_input);
    intake_pause(&s->in, false);
    return 0;
}

/* The connection. */

static const char away[] =
    "box: the connection to boxd was lost before it answered; the request may have been carried "
    "out in part or as a whole";

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    if (opcode == WS_TEXT)
        serve_got_message(arg, data, len);
}

static void on_writable(struct ws_conn *c, void *arg)
{
    struct serve *s = arg;

    if (s->state == SERVE_SERVING && !s->book.replaying)
        intake_pause(&s->in, false);
}

/* Connecting again. */

static int open_link(struct serve *s, struct err *err);
static void try_again(struct serve *s);

static void on_retry_timer(struct loop_timer *t)
{
    struct serve *s = container_of(t, struct serve, timer);
    struct err err;

    /* The boxd that was there seems to be gone for good; where the user named none we start one. */
    if (s->tries == TRIES_ALONE && app_reconnect(s->app, &err) < 0)
        text_say_err(&err);
    if (open_link(s, &err) < 0)
        try_again(s);
}

static void give_up(struct serve *s)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(8u << 20);
    struct err err;

    mcp_requests_give_up(&s->book, away, &answers);
    serve_answer(s, &answers);
    (void)err_set(
        &err, ERR_BACKEND,
        "the connection to boxd was lost, and no boxd answers at %s; find out why it does "
        "not run, then start this server again",
        s->app->endpoint);
    serve_fail(s, &err);
}

static void try_again(struct serve *s)
{
    uint64_t delay = s->tries < 4 ? FIRST_NS << s->tries : LAST_NS;

    s->tries++;
    if (loop_now(s->app->loop) >= s->give_up_at)
        give_up(s);
    else
        loop_timer_start(s->app->loop, &s->timer, delay, on_retry_timer);
}

/* A boxd of our own had no sessions but ours, in a directory that goes with it. */
static bool comes_back(const struct serve *s, unsigned code)
{
    return s->state == SERVE_SERVING && s->app->daemon.pid == 0 && code != WS_CODE_POLICY;
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(8u << 20);
    struct serve *s = arg;
    struct err err;

    s->ws = NULL;
    if (s->state == SERVE_FINISHING) {
        if (!sink_busy(&s->out))
            serve_end(s);
        return;
    }
    (void)app_lost(code, reason, &err);
    if (!comes_back(s, code)) {
        serve_fail(s, &err);
        return;
    }
    text_say("%s; connecting again", err.msg);
    intake_pause(&s->in, true);
    mcp_requests_server_died(&s->book, away, &answers);
    serve_answer(s, &answers);
    serve_move(s, SERVE_LOST);
    s->tries = 0;
    s->give_up_at = loop_now(s->app->loop) + s->patience_ns;
    try_again(s);
}

/* Connected. */

/* The first message: the session that is wanted, and by which client. */
static int greet(struct serve *s, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(HELLO_MAX);
    AUTO_DONE(buf) struct buf again = BUF_INIT(2 * MCP_LINE_MAX);
    struct jw w = JW_INIT(&text);

    jw_object(&w);
    jw_kstr(&w, "client", s->client);
    args_put_session(s->args, &w);
    jw_object_end(&w);
    int r = jw_end(&w);
    if (r == 0)
        r = ws_send(s->ws, WS_TEXT, buf_str(&text), text.len);
    if (r == 0) {
        mcp_requests_replay(&s->book, &again);
        send_lines(s, &again);
        r = s->book.replaying ? 0 : serve_listen(s);
    }
    return r < 0 ? err_sys(err, -r, "begin to serve") : 0;
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct serve *s = arg;
    bool again = s->state == SERVE_LOST;
    struct err err;

    s->ws = c;
    if (c == NULL && again) {
        try_again(s);
        return;
    }
    if (c != NULL)
        serve_move(s, SERVE_SERVING);
    if (again)
        text_say("connected to boxd again");
    int r = c == NULL ? app_unreachable(s->app, cause, &err) : greet(s, &err);
    if (r < 0)
        serve_fail(s, &err);
}

static int open_link(struct serve *s, struct err *err)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    static const struct app_ws ws = {
        .target = TARGET, .handlers = &handlers, .opened = on_opened, .max_message = QUEUE_MAX};

    return app_open_ws(s->app, &ws, s, err);
}

static void serve_done(struct serve *s)
{
    intake_stop(&s->in);
    sink_done(&s->out);
    loop_timer_stop(&s->timer);
    mcp_requests_done(&s->book);
    buf_done(&s->line);
}
DEFINE_CLEANUP_DONE(serve)

static int set_patience(struct serve *s, struct err *err)
{
    const char *text = getenv("BOX_MCP_RECONNECT_SEC");
    double seconds = PATIENCE_SEC;

    if (text != NULL && text[0] != '\0' &&
        (str_to_double(text, &seconds) < 0 || !(seconds >= 0 && seconds <= PATIENCE_SEC_MAX)))
        return err_set(err, ERR_INVALID,
                       "BOX_MCP_RECONNECT_SEC is '%s', it must be seconds from 0 to %d", text,
                       PATIENCE_SEC_MAX);
    s->patience_ns = (uint64_t)(seconds * (double)NSEC_PER_SEC);
    return 0;
}

int verb_mcp_serve(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(serve) struct serve s = {.app = app, .args = args};

    id_random(s.client);
    mcp_requests_init(&s.book);
    buf_init(&s.line, LINE_MAX_BYTES + 1);
    sink_init(&s.out, app->loop, STDOUT_FILENO, QUEUE_MAX, on_out);
    int r = set_patience(&s, err);
    if (r >= 0)
        r = app_connect(app, args_given(args, SPEC_SESSION_ID) ? DAEMON_KEPT : DAEMON_ANY, err);
    if (r >= 0)
        r = open_link(&s, err);
    if (r >= 0)
        r = app_wait(app, err);
    if (r >= 0 && s.err.code != ERR_NONE) {
        *err = s.err;
        r = err_code_errno(s.err.code);
    }
    serve_move(&s, SERVE_ENDED);
    http_client_free(TAKE_PTR(app->client)); /* its callbacks are ours */
    return r < 0 ? r : 0;
}
