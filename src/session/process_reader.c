/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of a managed process: its output by byte offset, and whose turn it is to write. */

#include "session/process_reader.h"

#include <assert.h>
#include <errno.h>

#include "base/state.h"
#include "session/session_internal.h"
#include "spec/process.h"

#define READ_SIZE 65536U
#define TURN_BYTES (512U << 10) /* of output to one reader in one turn of the loop */

static const unsigned moves[READER_MAX] = {
    [READER_STOPPED] = 1U << READER_BESIDE,
    [READER_BESIDE] = 1U << READER_WAITING | 1U << READER_STOPPED,
    [READER_WAITING] = 1U << READER_ACTIVE | 1U << READER_BESIDE | 1U << READER_STOPPED,
    [READER_ACTIVE] = 1U << READER_BESIDE | 1U << READER_STOPPED,
};

static void reader_move(struct process_reader *r, enum reader_state to)
{
    STATE_MOVE(r->state, moves, to);
}

static const struct backend_ops *ops(const struct process *p)
{
    return p->proc->backend->ops;
}

/* Of the process, beside any reader. */

struct proc_range process_range(const struct process *p)
{
    if (p->proc == NULL)
        return (struct proc_range){.eof = true};
    return ops(p)->proc_range(p->proc);
}

ssize_t process_read(struct process *p, uint64_t from, char *buf, size_t size)
{
    if (p->proc == NULL)
        return from == 0 ? 0 : -ERANGE;
    session_touch(p->session);
    return ops(p)->proc_read(p->proc, from, buf, size);
}

int process_release(struct process *p, uint64_t upto, struct err *err)
{
    if (process_attached(p))
        return err_set(err, ERR_CONFLICT,
                       "a client is attached to process %.100s; only it can release output",
                       p->spec->process_id);
    if (p->proc != NULL)
        ops(p)->proc_release(p->proc, upto);
    return 0;
}

/* Coming and going. */

static bool claims(const struct process_reader *r)
{
    return r->state == READER_WAITING || r->state == READER_ACTIVE;
}

/* The one whose turn it is: of those that claim the process, the first that came. */
static struct process_reader *first_in_line(const struct process *p)
{
    struct process_reader *r, *first = NULL;
    LIST_FOREACH (r, &p->readers, link)
        if (claims(r))
            first = r;
    return first;
}

bool process_attached(const struct process *p)
{
    return first_in_line(p) != NULL;
}

static void on_active(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, news);
    reader_move(r, READER_ACTIVE);
    process_settle(r->process);
    if (r->state == READER_ACTIVE && r->events->active != NULL)
        r->events->active(r); /* otherwise no output was left for it */
}

static void on_ended(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, news);
    r->events->ended(r);
}

static void promote(const struct process *p)
{
    struct process_reader *r = first_in_line(p);
    if (r != NULL && r->state == READER_WAITING)
        loop_defer_start(r->loop, &r->news, on_active);
}

void process_reader_start(struct process_reader *r, struct process *p,
                          const struct process_reader_events *events)
{
    assert(r->state == READER_STOPPED && events->ended != NULL);
    *r = (struct process_reader){
        .process = p, .at = r->at, .events = events, .loop = p->session->m->loop};
    reader_move(r, READER_BESIDE);
    LIST_INSERT_HEAD(&p->readers, r, link);
}

int process_reader_claim(struct process_reader *r, struct err *err)
{
    struct process *p = r->process;
    if (p->state != PROCESS_RUNNING)
        return err_set(err, ERR_STATE, "managed process %.100s in session %.100s is not running",
                       p->spec->process_id, session_id(p->session));
    reader_move(r, READER_WAITING);
    session_touch(p->session);
    promote(p);
    return 0;
}

/* A round of readers_tell_output(), on its stack. A reader that leaves moves on every round that
 * would have come to it next. So a round never holds one that is gone, and it is over when the
 * process itself goes, which all of its readers leave before. */
struct reader_round {
    struct reader_round *outer;
    struct process_reader *next;
};

static void reader_leave(struct process_reader *r)
{
    struct process *p = r->process;
    for (struct reader_round *round = p->session->m->round; round != NULL; round = round->outer)
        if (round->next == r)
            round->next = LIST_NEXT(r, link);
    LIST_REMOVE(r, link);
    r->process = NULL;
    reader_move(r, READER_STOPPED);
    loop_defer_stop(&r->news);
    loop_defer_stop(&r->again);
    loop_timer_stop(&r->timer);
}

void process_reader_stop(struct process_reader *r)
{
    struct process *p = r->process;
    loop_defer_stop(&r->news); /* its end need not be told any more */
    if (p == NULL)
        return;
    bool had_claim = claims(r);
    reader_leave(r);
    if (!had_claim)
        return;
    promote(p);
    if (p->state == PROCESS_EXITED)
        reap_exited(p->session->m);
}

/* Never calls back: nothing can happen to a process while it is being forgotten. */
static void end_reader(struct process_reader *r)
{
    reader_leave(r);
    loop_defer_start(r->loop, &r->news, on_ended);
}

void readers_end_turns(struct process *p)
{
    struct process_reader *r, *next;
    LIST_FOREACH_SAFE (r, &p->readers, link, next) {
        if (!claims(r))
            continue;
        loop_defer_stop(&r->news);
        if (r->events->stays)
            reader_move(r, READER_BESIDE);
        else
            end_reader(r);
    }
}

void readers_end(struct process *p)
{
    while (!LIST_EMPTY(&p->readers))
        end_reader(LIST_FIRST(&p->readers));
}

/* Telling. */

void readers_tell_output(struct process *p)
{
    struct manager *m = p->session->m;
    struct reader_round round = {.outer = m->round, .next = LIST_FIRST(&p->readers)};
    m->round = &round;
    while (round.next != NULL) {
        struct process_reader *r = round.next;
        round.next = LIST_NEXT(r, link);
        if (r->events->output != NULL)
            r->events->output(r);
    }
    m->round = round.outer;
}

void readers_tell_drained(struct process *p)
{
    struct process_reader *r = first_in_line(p);
    if (r != NULL && r->state == READER_ACTIVE && r->events->drained != NULL)
        r->events->drained(r);
}

/* What a reader does. */

static void on_again(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, again);
    r->events->output(r);
}

enum reader_pumped process_reader_pump(struct process_reader *r)
{
    static char buffer[READER_ROOM + READ_SIZE];
    char *data = buffer + READER_ROOM;
    size_t budget = TURN_BYTES;
    while (r->process != NULL && r->events->ready(r)) {
        ssize_t n = process_read(r->process, r->at, data, READ_SIZE);
        if (n < 0)
            return READER_LOST;
        struct proc_range range = process_range(r->process);
        bool last = range.eof && r->at + (uint64_t)n >= range.end;
        if (n == 0)
            return last ? READER_END : READER_ALL;
        size_t used = r->events->take(r, data, (size_t)n, last);
        r->at += used;
        if (used == 0)
            break;
        if (used > budget) {
            loop_defer_start(r->loop, &r->again, on_again);
            break;
        }
        budget -= used;
    }
    return READER_HELD;
}

static void on_due(struct loop_timer *t)
{
    struct process_reader *r = container_of(t, struct process_reader, timer);
    r->events->due(r);
}

void process_reader_wait(struct process_reader *r, uint64_t ns)
{
    loop_timer_start(r->loop, &r->timer, ns, on_due);
}

void process_reader_release(struct process_reader *r, uint64_t upto)
{
    struct process *p = r->process;
    if (p == NULL || p->proc == NULL || (r->state != READER_ACTIVE && process_attached(p)))
        return;
    ops(p)->proc_release(p->proc, upto);
    process_settle(p);
}

/* It has the process, and the process its stdin. */
static bool can_write(const struct process_reader *r)
{
    assert(r->state != READER_WAITING);
    return r->state == READER_ACTIVE && r->process->proc != NULL;
}

int process_reader_write(struct process_reader *r, const char *data, size_t len)
{
    if (!can_write(r))
        return -EPIPE;
    int e = ops(r->process)->proc_write(r->process->proc, data, len);
    if (e >= 0)
        session_touch(r->process->session);
    return e;
}

size_t process_reader_unwritten(const struct process_reader *r)
{
    return can_write(r) ? ops(r->process)->proc_unwritten(r->process->proc) : 0;
}

void process_reader_close_stdin(struct process_reader *r)
{
    if (can_write(r))
        ops(r->process)->proc_close_stdin(r->process->proc);
}
