/* SPDX-License-Identifier: Apache-2.0 */

/* Readers attached to a managed process: one is active, the others wait for their turn. */

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "session/session_internal.h"
#include "spec/process.h"

/*   WAITING ──► ACTIVE ──► ENDED
 *       └────────────────────┘     */
enum attachment_state { ATTACHMENT_WAITING, ATTACHMENT_ACTIVE, ATTACHMENT_ENDED, ATTACHMENT_MAX };

struct attachment {
    struct process *process; /* borrowed; NULL once ENDED */
    struct loop *loop;       /* borrowed */
    struct attachment *prev, *next;
    enum attachment_state state;
    struct attachment_events events;
    void *arg;
    struct loop_defer defer; /* its turn, or its end, is about to be told */
};

static const struct {
    const char *name;
    unsigned next;
} states[ATTACHMENT_MAX] = {
    [ATTACHMENT_WAITING] = {"waiting", 1U << ATTACHMENT_ACTIVE | 1U << ATTACHMENT_ENDED},
    [ATTACHMENT_ACTIVE] = {"active", 1U << ATTACHMENT_ENDED},
    [ATTACHMENT_ENDED] = {"ended", 0},
};

static void move(struct attachment *a, enum attachment_state to)
{
    assert(states[a->state].next & (1U << to));
    a->state = to;
}

static const struct backend_ops *ops(const struct attachment *a)
{
    return a->process->proc->backend->ops;
}

/* It has the process, and the process its output. */
static bool can_use(const struct attachment *a)
{
    assert(a->state != ATTACHMENT_WAITING); /* only the one that has it may call */
    return a->process != NULL && a->process->proc != NULL;
}

static void on_active(struct loop_defer *d)
{
    struct attachment *a = container_of(d, struct attachment, defer);
    move(a, ATTACHMENT_ACTIVE);
    process_settle(a->process);
    if (a->state == ATTACHMENT_ACTIVE) /* else there was nothing left for it */
        a->events.active(a->arg);
}

static void on_ended(struct loop_defer *d)
{
    struct attachment *a = container_of(d, struct attachment, defer);
    a->events.ended(a->arg);
}

/* The first in line has its turn. */
static void promote(struct process *p)
{
    struct attachment *a = p->readers;
    if (a != NULL && a->state == ATTACHMENT_WAITING)
        loop_defer_start(a->loop, &a->defer, on_active);
}

static void unlink_reader(struct attachment *a)
{
    struct process *p = a->process;
    if (a->prev != NULL)
        a->prev->next = a->next;
    else
        p->readers = a->next;
    if (a->next != NULL)
        a->next->prev = a->prev;
    else
        p->last_reader = a->prev;
    a->process = NULL;
}

int process_attach(struct process *p, const struct attachment_events *events, void *arg,
                   struct attachment **ret, struct err *err)
{
    if (p->state != PROCESS_RUNNING)
        return err_set(err, ERR_STATE, "managed process %.100s in session %.100s is not running",
                       p->spec->process_id, session_id(p->session));
    struct attachment *a = xnew(struct attachment);
    a->process = p;
    a->loop = p->session->m->loop;
    a->events = *events;
    a->arg = arg;
    a->prev = p->last_reader;
    if (p->last_reader != NULL)
        p->last_reader->next = a;
    else
        p->readers = a;
    p->last_reader = a;
    session_touch(p->session);
    promote(p);
    *ret = a;
    return 0;
}

void attachment_free(struct attachment *a)
{
    if (a == NULL)
        return;
    struct process *p = a->process;
    loop_defer_stop(&a->defer);
    if (p != NULL)
        unlink_reader(a);
    free(a);
    if (p == NULL)
        return;
    promote(p);
    if (p->readers == NULL && p->state == PROCESS_EXITED) {
        struct manager *m = p->session->m;
        process_settle(p);
        reap_exited(m);
    }
}

void attachments_end(struct process *p)
{
    while (p->readers != NULL) {
        struct attachment *a = p->readers;
        unlink_reader(a);
        loop_defer_stop(&a->defer);
        move(a, ATTACHMENT_ENDED);
        loop_defer_start(a->loop, &a->defer, on_ended);
    }
}

static struct attachment *attachment_active(const struct process *p)
{
    return p->readers != NULL && p->readers->state == ATTACHMENT_ACTIVE ? p->readers : NULL;
}

void attachment_on_output(struct process *p)
{
    const struct attachment *a = attachment_active(p);
    if (a != NULL)
        a->events.output(a->arg);
}

void attachment_on_drained(struct process *p)
{
    const struct attachment *a = attachment_active(p);
    if (a != NULL)
        a->events.drained(a->arg);
}

bool attachment_is_active(const struct attachment *a)
{
    return a->state == ATTACHMENT_ACTIVE;
}

uint64_t attachment_begin(const struct attachment *a)
{
    return can_use(a) ? ops(a)->proc_range(a->process->proc).begin : 0;
}

ssize_t attachment_read(struct attachment *a, uint64_t from, char *buf, size_t size)
{
    if (!can_use(a))
        return 0;
    ssize_t n = ops(a)->proc_read(a->process->proc, from, buf, size);
    if (n > 0)
        session_touch(a->process->session);
    return n;
}

bool attachment_eof(const struct attachment *a, uint64_t at)
{
    if (!can_use(a))
        return true;
    struct proc_range range = ops(a)->proc_range(a->process->proc);
    return range.eof && at >= range.end;
}

void attachment_release(struct attachment *a, uint64_t upto)
{
    if (!can_use(a))
        return;
    ops(a)->proc_release(a->process->proc, upto);
    process_settle(a->process);
}

int attachment_write(struct attachment *a, const char *data, size_t len)
{
    if (!can_use(a))
        return -EPIPE;
    int r = ops(a)->proc_write(a->process->proc, data, len);
    if (r >= 0)
        session_touch(a->process->session);
    return r;
}

size_t attachment_unwritten(const struct attachment *a)
{
    return can_use(a) ? ops(a)->proc_unwritten(a->process->proc) : 0;
}

void attachment_close_stdin(struct attachment *a)
{
    if (can_use(a))
        ops(a)->proc_close_stdin(a->process->proc);
}
