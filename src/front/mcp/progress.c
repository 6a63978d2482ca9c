/* SPDX-License-Identifier: Apache-2.0 */

/* Progress notifications of a running tool call: the last output, or a sign of life. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"

#define TEXT_MAX 4096U /* bytes of output that one notification shows: the last ones */
#define PAUSE_NS (500ULL * NSEC_PER_MSEC)
#define SILENCE_NS (10ULL * NSEC_PER_SEC) /* of a command; the client still hears of it */

struct mcp_progress {
    struct mcp_call *call; /* that owns us */
    struct buf token;      /* as JSON */
    struct buf text;       /* what is new */
    struct loop_timer timer;
    uint64_t started_ns;
    double last; /* what was told; the next one must be more */
    bool fresh;  /* the timer runs for output */
};

static void on_timer(struct loop_timer *t);

static void arm(struct mcp_progress *p, uint64_t ns)
{
    loop_timer_stop(&p->timer);
    loop_timer_start(p->call->mcp->loop, &p->timer, ns, on_timer);
}

static void tell(struct mcp_progress *p)
{
    double elapsed = (double)(loop_now(p->call->mcp->loop) - p->started_ns) / (double)NSEC_PER_SEC;
    size_t whole = utf8_boundary(buf_str(&p->text), p->text.len);
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    p->last = elapsed > p->last ? elapsed : p->last + 0.001;
    buf_init(&out, TEXT_MAX * 8);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "jsonrpc", "2.0");
    jw_kstr(&w, "method", "notifications/progress");
    jw_key(&w, "params");
    jw_object(&w);
    mcp_raw(&w, "progressToken", buf_str(&p->token), p->token.len);
    jw_kreal(&w, "progress", p->last);
    jw_key(&w, "message");
    jw_strn(&w, buf_str(&p->text), whole);
    jw_object_end(&w);
    jw_object_end(&w);
    buf_consume(&p->text, whole);
    if (jw_end(&w) == 0)
        p->call->sink->notify(p->call->sink_arg, &out);
}

static void on_timer(struct loop_timer *t)
{
    struct mcp_progress *p = container_of(t, struct mcp_progress, timer);

    p->fresh = false;
    tell(p);
    arm(p, SILENCE_NS);
}

struct mcp_progress *mcp_progress_new(struct mcp_call *c)
{
    struct mcp_progress *p = xnew(struct mcp_progress);

    p->call = c;
    buf_init(&p->token, MCP_ID_MAX * 8);
    mcp_id_text(c->message.token, &p->token);
    buf_init(&p->text, TEXT_MAX * 2);
    p->started_ns = loop_now(c->mcp->loop);
    arm(p, SILENCE_NS);
    return p;
}

void mcp_progress_free(struct mcp_progress *p)
{
    if (p == NULL)
        return;
    loop_timer_stop(&p->timer);
    buf_done(&p->token);
    buf_done(&p->text);
    free(p);
}

void mcp_progress_output(struct mcp_progress *p, const char *data, size_t len)
{
    if (len > TEXT_MAX) {
        data += len - TEXT_MAX;
        len = TEXT_MAX;
    }
    if (p->text.len + len > TEXT_MAX)
        buf_consume(&p->text, p->text.len + len - TEXT_MAX);
    (void)buf_append(&p->text, data, len);
    if (!p->fresh)
        arm(p, PAUSE_NS);
    p->fresh = true;
}
