/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the stderr of a managed process by byte offset. Only the last part of it is kept, so a slow
 * reader misses bytes: Box-Next-Offset tells where those it got end. */

#include <stdio.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/process.h"

#define STDERR_MAX (16U << 10)
#define WAIT_MAX_MS 60000U
#define LOOK_NS (100 * NSEC_PER_MSEC)

struct looking {
    struct http_request *req;
    struct loop *loop;
    struct process_watch watch; /* for the end of the process */
    struct loop_timer timer;
    uint64_t from, until;
};

/* False: there is nothing yet, and something may come. */
static bool answer(struct http_request *req, struct process *p, uint64_t from, bool patient)
{
    static char data[STDERR_MAX];
    char text[24];
    size_t n = process_stderr_from(p, &from, data, sizeof(data));
    bool over = !process_running(p);
    if (n == 0 && !over && patient)
        return false;
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)from);
    (void)http_reply_header(req, "Box-Next-Offset", text);
    (void)http_reply_header(req, "Box-End", over && n == 0 ? "true" : "false");
    http_reply(req, 200, "application/octet-stream", data, n);
    return true;
}

static void looking_free(struct looking *l)
{
    process_watch_stop(&l->watch);
    loop_timer_stop(&l->timer);
    free(l);
}

static void on_look(struct loop_timer *t)
{
    struct looking *l = container_of(t, struct looking, timer);
    bool patient = loop_now(l->loop) < l->until && !http_request_cancelled(l->req);
    if (answer(l->req, l->watch.p, l->from, patient))
        looking_free(l);
    else
        loop_timer_start(l->loop, &l->timer, LOOK_NS, on_look);
}

static void on_change(struct process_watch *w, struct process *p)
{
    struct looking *l = container_of(w, struct looking, watch);
    struct err err = {0};
    if (p != NULL)
        return; /* seen at the next look */
    (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
    front_fail(l->req, &err);
    looking_free(l);
}

/* from: where to begin, 0 for all that is kept; wait_ms: how long to wait for the first byte. */
void v1_read_stderr(struct http_request *req, void *arg)
{
    uint64_t from, wait_ms;
    struct process *p = v1_find_process(req, arg);
    if (p == NULL || !v1_query_number(req, "from", UINT64_MAX, 0, &from) ||
        !v1_query_number(req, "wait_ms", WAIT_MAX_MS, 0, &wait_ms))
        return;
    if (answer(req, p, from, wait_ms > 0))
        return;
    struct looking *l = xnew(struct looking);
    l->req = req;
    l->loop = manager_loop(((const struct v1 *)arg)->front.manager);
    l->from = from;
    l->until = loop_now(l->loop) + wait_ms * NSEC_PER_MSEC;
    process_watch_start(p, &l->watch, on_change);
    loop_timer_start(l->loop, &l->timer, LOOK_NS, on_look);
}
