/* SPDX-License-Identifier: Apache-2.0 */

/* Writes events, keep-alive comments and the `revoked` event to an HTTP answer. */

#include "front/common/sse.h"

#include <string.h>

#include "base/clock.h"
#include "front/common/front.h"
#include "http/server/server.h"

#define PING_NS (15ULL * NSEC_PER_SEC)
#define REASON_MAX (1U << 20)
#define FRAME_MAX 512U /* what stands around the data of an event */

bool sse_wanted(const struct http_request *req)
{
    const char *accept = http_request_header(req, "Accept");
    return accept != NULL && strstr(accept, "text/event-stream") != NULL;
}

static void on_ping(struct loop_timer *t)
{
    struct sse *s = container_of(t, struct sse, ping);
    /* A reader that takes nothing has its own deadline. */
    if (!http_reply_full(s->req))
        (void)http_reply_chunk(s->req, ":\n\n", 3);
    loop_timer_start(s->loop, t, PING_NS, on_ping);
}

void sse_send(struct sse *s, const char *event, const char *id, const struct buf *json)
{
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, json->len + FRAME_MAX);

    if (s->req == NULL)
        return;
    (void)buf_printf(&out, "event: %s\n", event);
    if (id != NULL)
        (void)buf_printf(&out, "id: %s\n", id);
    (void)buf_puts(&out, "data: ");
    if (buf_append(&out, json->data, json->len) == 0 && buf_puts(&out, "\n\n") == 0)
        (void)http_reply_chunk(s->req, out.data, out.len);
}

/* Not one of the stream's own events: it has no id, so a reader that comes back goes on where it
 * was. */
static void on_revoked(struct http_request *req, const char *reason, void *arg)
{
    AUTO_DONE(front_answer) struct front_answer out;

    jw_kstr(front_begin(&out, REASON_MAX), "reason", reason);
    if (front_end(&out) == 0)
        sse_send(arg, "revoked", NULL, &out.out);
}

void sse_start(struct sse *s, struct http_request *req, struct loop *loop)
{
    s->req = req;
    s->loop = loop;
    (void)http_reply_header(req, "Cache-Control", "no-store");
    (void)http_reply_header(req, "X-Accel-Buffering", "no");
    http_on_revoked(req, on_revoked, s);
    http_reply_start(req, 200, "text/event-stream");
    loop_timer_start(loop, &s->ping, PING_NS, on_ping);
}

bool sse_full(const struct sse *s)
{
    return s->req != NULL && http_reply_full(s->req);
}

void sse_end(struct sse *s)
{
    loop_timer_stop(&s->ping);
    if (s->req == NULL)
        return;
    if (http_request_cancelled(s->req))
        http_abort(s->req);
    else
        http_reply_end(s->req);
    s->req = NULL;
}
