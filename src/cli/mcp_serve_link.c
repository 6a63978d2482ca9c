/* SPDX-License-Identifier: Apache-2.0 */

/* The connection of `box mcp serve` to boxd, and its reconnection after a loss. */

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "cli/job.h"
#include "cli/mcp_serve.h"
#include "http/client/client.h"

#define TARGET "/mcp/stdio"
#define QUEUE_MAX (64u << 20)
#define HELLO_MAX (1u << 20)
#define NEVER_NS (UINT64_C(10) * 365 * 24 * 3600 * NSEC_PER_SEC)

#define FIRST_NS (50 * NSEC_PER_MSEC)
#define LAST_NS (500 * NSEC_PER_MSEC)
#define TRIES_ALONE 20 /* before another boxd is started where none was named */

static const char away[] =
    "box: the connection to boxd was lost before it answered; the request may have been carried "
    "out in part or as a whole";

void serve_link_send(struct serve *s, const struct buf *lines)
{
    const char *at = buf_str(lines);

    for (size_t len; s->ws != NULL && (len = strcspn(at, "\n")) > 0; at += len + 1)
        (void)ws_send(s->ws, WS_TEXT, at, len);
}

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
        source_pause(&s->in, false);
}

/* Again. */

static void try_again(struct serve *s);

static void on_timer(struct loop_timer *t)
{
    struct serve *s = container_of(t, struct serve, timer);
    struct err err;

    /* The boxd that was there is gone for good, it seems; where nobody named one we may. */
    if (s->tries == TRIES_ALONE && app_reconnect(s->app, &err) < 0)
        text_say_err(&err);
    if (serve_link_open(s, &err) < 0)
        try_again(s);
}

static void give_up(struct serve *s)
{
    AUTO_DONE(buf) struct buf answers;
    struct err err;

    buf_init(&answers, 8u << 20);
    mcp_requests_give_up(&s->book, away, &answers);
    serve_answer(s, &answers);
    (void)err_set(&err, ERR_BACKEND,
                  "the connection to boxd was lost, and nobody answers at %s; see why it does not "
                  "run, then start this server again",
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
        loop_timer_start(s->app->loop, &s->timer, delay, on_timer);
}

/* A boxd of our own had no sessions but ours, in a directory that goes with it. */
static bool comes_back(const struct serve *s, unsigned code)
{
    return s->state == SERVE_SERVING && s->app->daemon.pid == 0 && code != WS_CODE_POLICY;
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    AUTO_DONE(buf) struct buf answers;
    struct serve *s = arg;
    struct err err;

    buf_init(&answers, 8u << 20);
    s->ws = NULL;
    if (s->state == SERVE_FINISHING) {
        if (!sink_busy(&s->out))
            serve_end(s);
        return;
    }
    (void)err_set(&err, ERR_BACKEND, "the connection to boxd was lost (%u%s%s)", code,
                  reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
    if (!comes_back(s, code)) {
        serve_fail(s, &err);
        return;
    }
    text_say("%s; connecting again", err.msg);
    source_pause(&s->in, true);
    mcp_requests_server_died(&s->book, away, &answers);
    serve_answer(s, &answers);
    serve_move(s, SERVE_LOST);
    s->tries = 0;
    s->give_up_at = loop_now(s->app->loop) + s->patience_ns;
    try_again(s);
}

/* There. */

/* What the session is to be like, and whose it is. */
static int greet(struct serve *s, struct err *err)
{
    AUTO_DONE(buf) struct buf text = {0};
    AUTO_DONE(buf) struct buf again = {0};
    struct jw w;

    buf_init(&text, HELLO_MAX);
    buf_init(&again, 2 * MCP_LINE_MAX);
    jw_init(&w, &text);
    jw_object(&w);
    jw_kstr(&w, "client", s->client);
    job_put_session(&w, s->args);
    jw_object_end(&w);
    int r = jw_end(&w);
    if (r == 0)
        r = ws_send(s->ws, WS_TEXT, buf_str(&text), text.len);
    if (r == 0) {
        mcp_requests_replay(&s->book, &again);
        serve_link_send(s, &again);
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

int serve_link_open(struct serve *s, struct err *err)
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
    return 0;
}
