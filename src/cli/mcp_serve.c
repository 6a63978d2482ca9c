/* SPDX-License-Identifier: Apache-2.0 */

/* Passes lines between the client and boxd, and holds the states of `box mcp serve`. */

#include "cli/mcp_serve.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "http/client/client.h"
#include "spec/model.h"
#include "spec/spec.h"

#define LINE_MAX_BYTES (12u << 20) /* of a message, as boxd takes them */
#define QUEUE_MAX (64u << 20)
#define PATIENCE_SEC 30
#define PATIENCE_SEC_MAX 86400
#define CLOSE_NS (10 * NSEC_PER_SEC) /* for boxd to say its last words */

#define TO(s) (1u << SERVE_##s)
static const unsigned next_states[SERVE_STATE_MAX] = {
    [SERVE_OPENING] = TO(SERVING) | TO(ENDED),
    [SERVE_SERVING] = TO(LOST) | TO(FINISHING) | TO(ENDED),
    [SERVE_LOST] = TO(SERVING) | TO(ENDED),
    [SERVE_FINISHING] = TO(ENDED),
    [SERVE_ENDED] = TO(ENDED),
};

void serve_move(struct serve *s, enum serve_state to)
{
    assert((next_states[s->state] & (1u << to)) != 0);
    s->state = to;
}

static void on_timer(struct loop_timer *t)
{
    loop_quit(container_of(t, struct serve, timer)->app->loop);
}

void serve_end(struct serve *s)
{
    serve_move(s, SERVE_ENDED);
    source_stop(&s->in);
    loop_quit(s->app->loop);
}

void serve_fail(struct serve *s, const struct err *err)
{
    if (s->state == SERVE_ENDED)
        return;
    s->failed = true;
    s->err = *err;
    serve_end(s);
}

/* To the client. */

static void put(struct serve *s, const char *data, size_t len)
{
    (void)sink_write(&s->out, data, len);
    if (s->ws != NULL)
        ws_pause(s->ws, sink_busy(&s->out));
}

void serve_answer(struct serve *s, const struct buf *lines)
{
    if (lines->len > 0)
        put(s, lines->data, lines->len);
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

struct reading {
    struct mcp_requests *book;
    bool drop;
};

static void on_message(void *arg, const struct mcp_msg *msg)
{
    struct reading *r = arg;

    r->drop = r->drop || mcp_requests_from_server(r->book, msg) == MCP_DROP;
}

/* The answer to a handshake that the client has had from an earlier boxd is not for it. */
static void replayed(struct serve *s)
{
    AUTO_DONE(buf) struct buf lines = {0};
    struct err err;

    buf_init(&lines, 2 * MCP_LINE_MAX);
    mcp_requests_replayed(&s->book, &lines);
    serve_link_send(s, &lines);
    int r = serve_listen(s);
    if (r < 0) {
        (void)err_sys(&err, -r, "read standard input");
        serve_fail(s, &err);
    }
}

void serve_got_message(struct serve *s, const char *data, size_t len)
{
    struct reading r = {.book = &s->book};
    struct mcp_scan scan;

    mcp_scan_reset(&scan);
    mcp_scan_feed(&scan, data, len, on_message, &r);
    if (r.drop) {
        replayed(s);
        return;
    }
    put(s, data, len);
    put(s, "\n", 1);
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
    if (jw_end(&w) == 0 && buf_putc(&out, '\n') == 0)
        serve_answer(s, &out);
}

/* From the client. */

static void pass_on(struct serve *s, const char *text, size_t len)
{
    AUTO_DONE(buf) struct buf answers = {0};

    if (s->ws != NULL && ws_send(s->ws, WS_TEXT, text, len - 1) == 0) {
        (void)mcp_requests_from_client(&s->book, text, len);
        return;
    }
    buf_init(&answers, 1u << 20);
    mcp_requests_refuse(text, len - 1, "box: boxd does not keep up", &answers);
    serve_answer(s, &answers);
}

static void got_line(struct serve *s)
{
    const char *text = buf_str(&s->line);

    while (s->line.len > 0 && strchr(" \t\r", text[s->line.len - 1]) != NULL)
        s->line.len--;
    if (s->too_long)
        refuse(s, -32600, "a message has at most 12 MiB");
    else if (!utf8_valid(text, s->line.len))
        refuse(s, -32700, "a message is UTF-8");
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
    if (s->state != SERVE_SERVING) { /* nobody is there to be told of the end */
        serve_end(s);
        return;
    }
    /* An empty message is the end: boxd answers what it can at once, and hangs up. */
    serve_move(s, SERVE_FINISHING);
    if (s->ws == NULL || ws_send(s->ws, WS_TEXT, "", 0) < 0)
        serve_end(s);
    else
        loop_timer_start(s->app->loop, &s->timer, CLOSE_NS, on_timer);
}

int serve_listen(struct serve *s)
{
    if (s->in.loop == NULL)
        return source_start(&s->in, s->app->loop, STDIN_FILENO, on_input);
    source_pause(&s->in, false);
    return 0;
}

static void serve_done(struct serve *s)
{
    source_stop(&s->in);
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
    bool named = (args->given & FIELD_BIT(SPEC_SESSION_ID)) != 0;

    id_random(s.client);
    mcp_requests_init(&s.book);
    buf_init(&s.line, LINE_MAX_BYTES + 1);
    sink_init(&s.out, app->loop, STDOUT_FILENO, QUEUE_MAX, on_out);
    int r = set_patience(&s, err);
    if (r >= 0)
        r = app_connect(app, named ? APP_KEPT : APP_ANY, err);
    if (r >= 0)
        r = serve_link_open(&s, err);
    if (r >= 0)
        r = app_wait(app, err);
    if (r >= 0 && s.failed) {
        *err = s.err;
        r = err_code_errno(s.err.code);
    }
    serve_move(&s, SERVE_ENDED);
    http_client_free(TAKE_PTR(app->client)); /* its callbacks are ours */
    return r < 0 ? r : 0;
}
