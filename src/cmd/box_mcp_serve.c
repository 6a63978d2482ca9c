/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cmd/box_app.h"
#include "cmd/box_args.h"
#include "cmd/box_job.h"
#include "cmd/box_pipe.h"
#include "http/client.h"
#include "spec/model.h"
#include "spec/spec.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/json.h"
#include "util/str.h"

/* `box mcp serve`: lines of the client become messages to boxd, which speaks the protocol, and back
 * (rpc/mcp_ws.c). Nothing is understood here, so nothing can be misunderstood. When this process
 * ends, however it ends, boxd takes back what is under way and ends a session without a name. */

#define TARGET "/mcp/stdio"
#define LINE_MAX_BYTES (12u << 20) /* of a message, as boxd takes them */
#define QUEUE_MAX (64u << 20)
#define HELLO_MAX (1u << 20)
#define CLOSE_NS (10 * NSEC_PER_SEC) /* for boxd to say its last words */
#define NEVER_NS (UINT64_C(10) * 365 * 24 * 3600 * NSEC_PER_SEC)

/*   OPENING ──► SERVING ──► FINISHING ──► ENDED
 *      └───────────┴──────────────────────► ^      */
enum serve_state { SERVE_OPENING, SERVE_SERVING, SERVE_FINISHING, SERVE_ENDED };

struct serve {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    enum serve_state state;
    struct ws_conn *ws; /* NULL before it is open and after it is closed */
    struct source in;
    struct sink out;
    struct buf line; /* of the client, not whole yet */
    bool too_long;   /* the rest of that line is dropped */
    struct loop_timer timer;
    bool failed; /* `err` says why */
    struct err err;
};

static void on_timer(struct loop_timer *t)
{
    loop_quit(container_of(t, struct serve, timer)->app->loop);
}

static void end(struct serve *s)
{
    s->state = SERVE_ENDED;
    source_stop(&s->in);
    loop_quit(s->app->loop);
}

static void fail(struct serve *s, const struct err *err)
{
    if (s->state == SERVE_ENDED)
        return;
    s->failed = true;
    s->err = *err;
    end(s);
}

/* To the client. */

static void put_line(struct serve *s, const char *data, size_t len)
{
    (void)sink_write(&s->out, data, len);
    (void)sink_write(&s->out, "\n", 1);
    if (s->ws != NULL)
        ws_pause(s->ws, sink_busy(&s->out));
}

static void on_out(struct sink *out)
{
    struct serve *s = container_of(out, struct serve, out);
    struct err err;

    if (out->error != 0) {
        (void)err_sys(&err, out->error, "write to standard output");
        fail(s, &err);
    } else if (s->ws != NULL) {
        ws_pause(s->ws, sink_busy(out));
    } else if (s->state == SERVE_FINISHING && !sink_busy(out)) {
        end(s);
    }
}

/* What boxd would have said, had the line reached it. */
static void refuse(struct serve *s, int code, const char *why)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "jsonrpc", "2.0");
    jw_knull(&w, "id");
    jw_key(&w, "error");
    jw_object(&w);
    jw_kint(&w, "code", code);
    jw_kstr(&w, "message", why);
    jw_object_end(&w);
    jw_object_end(&w);
    if (jw_end(&w) == 0)
        put_line(s, buf_str(&out), out.len);
}

/* From the client. */

static void got_line(struct serve *s)
{
    const char *text = buf_str(&s->line);
    size_t len = s->line.len;

    while (len > 0 && strchr(" \t\r", text[len - 1]) != NULL)
        len--;
    if (s->too_long)
        refuse(s, -32600, "a message has at most 12 MiB");
    else if (!utf8_valid(text, len))
        refuse(s, -32700, "a message is UTF-8");
    else if (len > 0 && s->ws != NULL && ws_send(s->ws, WS_TEXT, text, len) < 0)
        refuse(s, -32603, "boxd does not keep up");
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

static void on_input(struct source *in, const char *data, size_t len)
{
    struct serve *s = container_of(in, struct serve, in);

    if (len > 0) {
        got_bytes(s, data, len);
        source_pause(&s->in, s->ws == NULL || ws_full(s->ws));
        return;
    }
    if (s->line.len > 0 || s->too_long)
        got_line(s);
    /* An empty message is the end: boxd answers what it can at once, and hangs up. */
    s->state = SERVE_FINISHING;
    if (s->ws == NULL || ws_send(s->ws, WS_TEXT, "", 0) < 0)
        end(s);
    else
        loop_timer_start(s->app->loop, &s->timer, CLOSE_NS, on_timer);
}

/* boxd. */

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    (void)c;
    if (opcode == WS_TEXT)
        put_line(arg, data, len);
}

static void on_writable(struct ws_conn *c, void *arg)
{
    struct serve *s = arg;

    (void)c;
    if (s->state == SERVE_SERVING)
        source_pause(&s->in, false);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    struct serve *s = arg;
    struct err err;

    (void)c;
    s->ws = NULL;
    if (s->state == SERVE_FINISHING) {
        if (!sink_busy(&s->out))
            end(s);
        return;
    }
    (void)err_set(&err, ERR_BACKEND, "the connection to boxd was lost (%u%s%s)", code,
                  reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
    fail(s, &err);
}

static int greet(struct serve *s, struct err *err)
{
    AUTO_DONE(buf) struct buf text = {0};
    struct jw w;

    buf_init(&text, HELLO_MAX);
    jw_init(&w, &text);
    jw_object(&w);
    job_put_session(&w, s->args);
    jw_object_end(&w);
    int r = jw_end(&w);
    if (r == 0)
        r = ws_send(s->ws, WS_TEXT, buf_str(&text), text.len);
    if (r == 0)
        r = source_start(&s->in, s->app->loop, STDIN_FILENO, on_input);
    return r < 0 ? err_sys(err, -r, "begin to serve") : 0;
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct serve *s = arg;
    struct err err;

    s->ws = c;
    s->state = SERVE_SERVING;
    int r = c == NULL ? app_unreachable(s->app, cause, &err) : greet(s, &err);
    if (r < 0)
        fail(s, &err);
}

static int run(struct serve *s, struct err *err)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    const struct ws_opts opts = {.stall_ns = NEVER_NS, .max_message = QUEUE_MAX};
    struct app_headers headers = app_headers(s->app);
    const struct http_ws_call call = {.target = TARGET,
                                      .headers = headers.list,
                                      .opts = &opts,
                                      .handlers = &handlers,
                                      .opened = on_opened,
                                      .arg = s};
    struct err cause;

    if (http_client_ws(s->app->client, &call, &cause) < 0)
        return app_unreachable(s->app, &cause, err);
    return app_wait(s->app, err);
}

static void serve_done(struct serve *s)
{
    source_stop(&s->in);
    sink_done(&s->out);
    loop_timer_stop(&s->timer);
    buf_done(&s->line);
}
DEFINE_CLEANUP_DONE(serve)

int verb_mcp_serve(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(serve) struct serve s = {.app = app, .args = args};
    bool named = (args->given & FIELD_BIT(SPEC_SESSION_ID)) != 0;

    buf_init(&s.line, LINE_MAX_BYTES);
    sink_init(&s.out, app->loop, STDOUT_FILENO, QUEUE_MAX, on_out);
    int r = app_connect(app, named ? APP_KEPT : APP_ANY, err);
    if (r >= 0)
        r = run(&s, err);
    if (r >= 0 && s.failed) {
        *err = s.err;
        r = err_code_errno(s.err.code);
    }
    return r < 0 ? r : 0;
}
