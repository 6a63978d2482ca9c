/* SPDX-License-Identifier: Apache-2.0 */

/* The event loop: epoll, timers, signals, children. */

#include "loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hist.h"

#define EVENTS_PER_TURN 64
#define NO_SLOT UINT32_MAX

/* The kernel is told a slot and its generation, never a pointer. Stopping a watcher ends the
 * generation, so an event that was harvested for it matches nothing, even when the descriptor, the
 * memory or the slot is in use again within the same turn. */
struct slot {
    struct loop_io *io; /* borrowed; NULL while the slot is free */
    uint32_t generation;
    uint32_t next_free;
};

struct loop {
    const struct clock *clock; /* borrowed */
    int epoll;                 /* owned */
    bool quit;
    bool in_turn;
    bool coarse; /* the kernel has no epoll_pwait2() */
    struct hist turns;
    uint64_t awake_until;

    struct slot *slots; /* owned */
    uint32_t n_slots;
    uint32_t free_slot; /* head of the free list, or NO_SLOT */

    struct loop_timer **heap; /* owned; a binary heap by (due_ns, serial) */
    size_t n_timers;
    size_t heap_cap;
    uint64_t serial; /* of the timer or deferred call that is armed next */

    TAILQ_HEAD(, loop_defer) deferred; /* what runs at the end of this turn */
};

int loop_new(const struct clock *clock, struct loop **ret, struct err *err)
{
    AUTO(loop) struct loop *loop = xnew(struct loop);

    loop->clock = clock;
    loop->free_slot = NO_SLOT;
    TAILQ_INIT(&loop->deferred);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0)
        return err_sys(err, errno, "create epoll");
    *ret = TAKE_PTR(loop);
    return 0;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    assert(!loop->in_turn);
    /* An owner that outlives us may still stop its watchers: they must not point here. */
    for (uint32_t i = 0; i < loop->n_slots; i++)
        if (loop->slots[i].io)
            loop->slots[i].io->loop = NULL;
    for (size_t i = 0; i < loop->n_timers; i++)
        loop->heap[i]->loop = NULL;
    while (!TAILQ_EMPTY(&loop->deferred))
        loop_defer_stop(TAILQ_FIRST(&loop->deferred));
    if (loop->epoll >= 0)
        (void)close(loop->epoll);
    free(loop->slots);
    free(loop->heap);
    free(loop);
}

const struct clock *loop_clock(const struct loop *loop)
{
    return loop->clock;
}

uint64_t loop_now(const struct loop *loop)
{
    return clock_mono(loop->clock);
}

const struct hist *loop_turns(const struct loop *loop)
{
    return &loop->turns;
}

/* Descriptors. */

static uint32_t slot_take(struct loop *loop, struct loop_io *io)
{
    if (loop->free_slot == NO_SLOT) {
        uint32_t n = loop->n_slots ? loop->n_slots * 2 : 16;
        assert(n > loop->n_slots);
        loop->slots = xreallocarray(loop->slots, n, sizeof(struct slot));
        for (uint32_t i = n; i-- > loop->n_slots;) {
            loop->slots[i] = (struct slot){.next_free = loop->free_slot};
            loop->free_slot = i;
        }
        loop->n_slots = n;
    }
    uint32_t i = loop->free_slot;
    loop->free_slot = loop->slots[i].next_free;
    loop->slots[i].io = io;
    return i;
}

static void slot_release(struct loop *loop, uint32_t i)
{
    loop->slots[i].io = NULL;
    loop->slots[i].generation++;
    loop->slots[i].next_free = loop->free_slot;
    loop->free_slot = i;
}

static int control(struct loop *loop, int op, int fd, uint32_t events, uint32_t slot)
{
    struct epoll_event event = {
        .events = events,
        .data.u64 = (uint64_t)loop->slots[slot].generation << 32 | slot,
    };

    return epoll_ctl(loop->epoll, op, fd, &event) < 0 ? -errno : 0;
}

int loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t events, loop_io_fn *fn)
{
    assert(!io->loop && fn);
    uint32_t slot = slot_take(loop, io);
    int r = control(loop, EPOLL_CTL_ADD, fd, events, slot);
    if (r < 0) {
        slot_release(loop, slot);
        return r;
    }
    *io = (struct loop_io){.loop = loop, .fd = fd, .events = events, .fn = fn, .slot = slot};
    return 0;
}

int loop_io_events(struct loop_io *io, uint32_t events)
{
    assert(io->loop);
    if (events == io->events)
        return 0;
    int r = control(io->loop, EPOLL_CTL_MOD, io->fd, events, io->slot);
    if (r == 0)
        io->events = events;
    return r;
}

void loop_io_stop(struct loop_io *io)
{
    if (!io || !io->loop)
        return;
    /* Fails only when the owner closed the descriptor first, which removed it as well. */
    (void)control(io->loop, EPOLL_CTL_DEL, io->fd, 0, io->slot);
    slot_release(io->loop, io->slot);
    io->loop = NULL;
}

static int run_events(struct loop *loop, const struct epoll_event *events, int n)
{
    int ran = 0;

    for (int i = 0; i < n; i++) {
        uint32_t slot = (uint32_t)events[i].data.u64;
        uint32_t generation = (uint32_t)(events[i].data.u64 >> 32);
        struct loop_io *io = loop->slots[slot].io;
        if (!io || loop->slots[slot].generation != generation)
            continue; /* stopped by a callback before */
        io->fn(io, events[i].events);
        ran++;
    }
    return ran;
}

/* Timers. */

static bool timer_before(const struct loop_timer *a, const struct loop_timer *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->serial < b->serial;
}

static void heap_put(struct loop *loop, size_t i, struct loop_timer *t)
{
    loop->heap[i] = t;
    t->heap_index = i;
}

/* Finds the place for t, beginning at the hole i. */
static void heap_sift(struct loop *loop, size_t i, struct loop_timer *t)
{
    for (; i > 0 && timer_before(t, loop->heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap_put(loop, i, loop->heap[(i - 1) / 2]);
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < loop->n_timers && timer_before(loop->heap[child + 1], loop->heap[child]))
            child++;
        if (child >= loop->n_timers || !timer_before(loop->heap[child], t))
            break;
        heap_put(loop, i, loop->heap[child]);
        i = child;
    }
    heap_put(loop, i, t);
}

void loop_timer_start(struct loop *loop, struct loop_timer *t, uint64_t delay_ns, loop_timer_fn *fn)
{
    assert(fn);
    loop_timer_stop(t);
    if (loop->n_timers == loop->heap_cap) {
        loop->heap_cap = loop->heap_cap ? loop->heap_cap * 2 : 16;
        loop->heap = xreallocarray(loop->heap, loop->heap_cap, sizeof(struct loop_timer *));
    }
    *t = (struct loop_timer){.loop = loop, .fn = fn, .serial = loop->serial++};
    if (__builtin_add_overflow(loop_now(loop), delay_ns, &t->due_ns))
        t->due_ns = UINT64_MAX;
    heap_sift(loop, loop->n_timers++, t);
}

void loop_timer_stop(struct loop_timer *t)
{
    if (!t || !t->loop)
        return;
    struct loop *loop = t->loop;
    struct loop_timer *last = loop->heap[--loop->n_timers];
    if (last != t)
        heap_sift(loop, t->heap_index, last);
    t->loop = NULL;
}

/* Runs what was due when the phase began. A timer that is armed meanwhile has a later serial and is
 * not due before now, so it sorts behind all of these: it waits for the next turn, and arming with
 * no delay cannot starve the descriptors. */
static int run_timers(struct loop *loop)
{
    uint64_t now = loop_now(loop), serial = loop->serial;
    int ran = 0;

    while (loop->n_timers > 0) {
        struct loop_timer *t = loop->heap[0];
        if (t->due_ns > now || t->serial >= serial)
            break;
        loop_timer_stop(t);
        t->fn(t);
        ran++;
    }
    return ran;
}

/* Deferred calls. */

void loop_defer_start(struct loop *loop, struct loop_defer *d, loop_defer_fn *fn)
{
    assert(fn);
    loop_defer_stop(d);
    *d = (struct loop_defer){.loop = loop, .fn = fn, .serial = loop->serial++};
    TAILQ_INSERT_TAIL(&loop->deferred, d, link);
}

void loop_defer_stop(struct loop_defer *d)
{
    if (!d || !d->loop)
        return;
    TAILQ_REMOVE(&d->loop->deferred, d, link);
    d->loop = NULL;
}

/* Runs what is queued now; what these queue waits for the next turn, which will not sleep. */
static int run_deferred(struct loop *loop)
{
    uint64_t serial = loop->serial;
    int ran = 0;

    for (struct loop_defer *d; (d = TAILQ_FIRST(&loop->deferred)) != NULL && d->serial < serial;
         ran++) {
        loop_defer_stop(d);
        d->fn(d);
    }
    return ran;
}

/* The turn. */

/* How long to sleep, in nanoseconds; UINT64_MAX is for ever. */
static uint64_t sleep_ns(const struct loop *loop, int timeout_ms)
{
    uint64_t limit = timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * NSEC_PER_MSEC;

    if (limit == 0 || !TAILQ_EMPTY(&loop->deferred))
        return 0;
    if (loop->n_timers == 0 || loop->heap[0]->due_ns == UINT64_MAX)
        return limit;
    uint64_t now = loop_now(loop), due = loop->heap[0]->due_ns;
    uint64_t left = due > now ? due - now : 0;
    return left < limit ? left : limit;
}

static int wait_events(struct loop *loop, struct epoll_event *events, uint64_t ns)
{
    if (!loop->coarse) {
        struct timespec ts = {.tv_sec = (time_t)(ns / NSEC_PER_SEC),
                              .tv_nsec = (long)(ns % NSEC_PER_SEC)};
        int n =
            epoll_pwait2(loop->epoll, events, EVENTS_PER_TURN, ns == UINT64_MAX ? NULL : &ts, NULL);
        if (n >= 0 || errno != ENOSYS)
            return n < 0 ? -errno : n;
        loop->coarse = true;
    }
    /* Rounded up: a timer must not be found not yet due, turn after turn. */
    uint64_t ms = ns / NSEC_PER_MSEC + (ns % NSEC_PER_MSEC != 0);
    int timeout = ns == UINT64_MAX ? -1 : ms > INT_MAX ? INT_MAX : (int)ms;
    int n = epoll_wait(loop->epoll, events, EVENTS_PER_TURN, timeout);
    return n < 0 ? -errno : n;
}

void loop_stay_awake(struct loop *loop, uint64_t until_ns)
{
    loop->awake_until = until_ns;
}

/* Not beyond the moment when the loop would have been woken. */
static int wait_awake(struct loop *loop, struct epoll_event *events, uint64_t ns)
{
    uint64_t now = loop_now(loop);
    uint64_t until = ns < loop->awake_until - now ? now + ns : loop->awake_until;
    int n = 0;

    while (n == 0 && loop_now(loop) < until) {
        n = wait_events(loop, events, 0);
        if (n == 0)
            (void)sched_yield();
    }
    return n;
}

static int wait_or_sleep(struct loop *loop, struct epoll_event *events, int timeout_ms)
{
    uint64_t ns = sleep_ns(loop, timeout_ms);

    if (ns > 0 && loop->awake_until > loop_now(loop)) {
        int n = wait_awake(loop, events, ns);
        if (n != 0)
            return n;
        ns = sleep_ns(loop, timeout_ms);
    }
    return wait_events(loop, events, ns);
}

int loop_turn(struct loop *loop, int timeout_ms)
{
    struct epoll_event events[EVENTS_PER_TURN];

    assert(!loop->in_turn);
    int n = wait_or_sleep(loop, events, timeout_ms);
    if (n < 0 && n != -EINTR)
        return n;
    loop->in_turn = true;
    uint64_t begun = loop_now(loop);
    int ran = n > 0 ? run_events(loop, events, n) : 0;
    ran += run_timers(loop);
    ran += run_deferred(loop);
    loop->in_turn = false;
    hist_add(&loop->turns, loop_now(loop) - begun);
    return ran;
}

int loop_run(struct loop *loop, struct err *err)
{
    while (!loop->quit) {
        int r = loop_turn(loop, -1);
        if (r < 0)
            return err_sys(err, -r, "wait for events");
    }
    loop->quit = false;
    return 0;
}

void loop_quit(struct loop *loop)
{
    loop->quit = true;
}

/* Signals and children: descriptors with a meaning. Each callback is the last thing done, because
 * it may free its watcher. */

/* One signal per event: the descriptor stays readable while there are more. */
static void on_signalfd(struct loop_io *io, uint32_t events)
{
    struct loop_signal *s = container_of(io, struct loop_signal, io);
    struct signalfd_siginfo info;

    if (read(s->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        s->fn(s, (int)info.ssi_signo);
}

int loop_signal_start(struct loop *loop, struct loop_signal *s, const sigset_t *set,
                      loop_signal_fn *fn)
{
    assert(!s->loop && fn);
    if (sigprocmask(SIG_BLOCK, set, NULL) < 0)
        return -errno;
    AUTO_CLOSE int fd = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    *s = (struct loop_signal){.fn = fn, .fd = -1};
    int r = loop_io_start(loop, &s->io, fd, EPOLLIN, on_signalfd);
    if (r < 0)
        return r;
    s->loop = loop;
    s->fd = TAKE_FD(fd);
    return 0;
}

/* The signals stay blocked: one that is pending would otherwise strike now. */
void loop_signal_stop(struct loop_signal *s)
{
    if (!s || !s->loop)
        return;
    loop_io_stop(&s->io);
    (void)close(s->fd);
    s->fd = -1;
    s->loop = NULL;
}

static int wait_status(const siginfo_t *info)
{
    if (info->si_code == CLD_EXITED)
        return (info->si_status & 0xff) << 8;
    return (info->si_status & 0x7f) | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

static void on_pidfd(struct loop_io *io, uint32_t events)
{
    struct loop_child *c = container_of(io, struct loop_child, io);
    siginfo_t info = {0};
    int status = -1;

    if (waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED | WNOHANG) == 0) {
        if (info.si_pid == 0)
            return; /* not dead yet */
        status = wait_status(&info);
    } else if (errno == EINTR) {
        return;
    }
    loop_child_stop(c);
    c->fn(c, status);
}

int loop_child_start(struct loop *loop, struct loop_child *c, int pidfd, loop_child_fn *fn)
{
    assert(!c->loop && fn);
    *c = (struct loop_child){.fn = fn, .pidfd = pidfd};
    int r = loop_io_start(loop, &c->io, pidfd, EPOLLIN, on_pidfd);
    if (r < 0)
        return r;
    c->loop = loop;
    return 0;
}

void loop_child_stop(struct loop_child *c)
{
    if (!c || !c->loop)
        return;
    loop_io_stop(&c->io);
    c->loop = NULL;
}
