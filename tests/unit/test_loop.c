/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "lib/fake_clock.h"
#include "lib/fault.h"
#include "loop/loop.h"

static struct fake_clock fake;

/* What ran, one letter per callback. */
static char trace[4096];

static void mark(char c)
{
    size_t n = strlen(trace);

    assert_true(n + 1 < sizeof(trace));
    trace[n] = c;
    trace[n + 1] = '\0';
}

static int reset(void **state)
{
    memset(trace, 0, sizeof(trace));
    fault_reset();
    fake_clock_init(&fake);
    return 0;
}

static struct loop *new_loop(const struct clock *clock)
{
    struct loop *loop = NULL;

    assert_int_equal(loop_new(clock, &loop, NULL), 0);
    return loop;
}

/* A watched pipe, and another one its callback does something to. */
struct pipe_watch {
    struct loop_io io;
    int fds[2];
    char name;
    struct pipe_watch *other;
};

static void pipe_open(struct pipe_watch *p, char name)
{
    *p = (struct pipe_watch){.name = name};
    assert_int_equal(pipe2(p->fds, O_CLOEXEC | O_NONBLOCK), 0);
}

static void pipe_fill(struct pipe_watch *p)
{
    assert_int_equal(write(p->fds[1], "x", 1), 1);
}

static void pipe_close(struct pipe_watch *p)
{
    loop_io_stop(&p->io);
    fd_close_many(p->fds, 2);
}

static void on_pipe(struct loop_io *io, uint32_t events)
{
    struct pipe_watch *p = container_of(io, struct pipe_watch, io);

    mark(events & EPOLLIN ? p->name : '?');
}

static void descriptors_wake_their_watchers(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct pipe_watch p;

    pipe_open(&p, 'a');
    assert_int_equal(loop_io_start(loop, &p.io, p.fds[0], EPOLLIN, on_pipe), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    pipe_fill(&p);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_int_equal(loop_turn(loop, -1), 1); /* level, not edge */
    assert_int_equal(loop_io_events(&p.io, 0), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(loop_io_events(&p.io, EPOLLIN), 0);
    assert_int_equal(loop_io_events(&p.io, EPOLLIN), 0);
    assert_int_equal(loop_turn(loop, 0), 1);
    loop_io_stop(&p.io);
    loop_io_stop(&p.io);
    loop_io_stop(NULL);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "aaa");
    pipe_close(&p);
}

static void a_start_that_fails_leaves_nothing(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    AUTO_CLOSE int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct pipe_watch p, q = {.name = 'q'};

    pipe_open(&p, 'p');
    pipe_fill(&p);
    assert_int_equal(loop_io_start(loop, &q.io, file, EPOLLIN, on_pipe), -EPERM);
    assert_null(q.io.loop);
    assert_int_equal(loop_io_start(loop, &p.io, p.fds[0], EPOLLIN, on_pipe), 0);
    assert_int_equal(loop_io_start(loop, &q.io, p.fds[0], EPOLLIN, on_pipe), -EEXIST);
    assert_int_equal(loop_io_start(loop, &q.io, -1, EPOLLIN, on_pipe), -EBADF);
    assert_int_equal(loop_turn(loop, 0), 1);
    assert_string_equal(trace, "p");
    pipe_close(&p);
}

static void on_pipe_stop_other(struct loop_io *io, uint32_t events)
{
    struct pipe_watch *p = container_of(io, struct pipe_watch, io);

    mark(p->name);
    loop_io_stop(&p->other->io);
}

static void a_harvested_event_is_dropped_by_stop(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct pipe_watch a, b;

    pipe_open(&a, 'x');
    pipe_open(&b, 'x');
    a.other = &b;
    b.other = &a;
    pipe_fill(&a);
    pipe_fill(&b);
    assert_int_equal(loop_io_start(loop, &a.io, a.fds[0], EPOLLIN, on_pipe_stop_other), 0);
    assert_int_equal(loop_io_start(loop, &b.io, b.fds[0], EPOLLIN, on_pipe_stop_other), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "x");
    pipe_close(&a);
    pipe_close(&b);
}

/* Stops the other watcher, puts a new, empty pipe under its descriptor number, and starts it again
 * in the same memory (and, as it was freed last, the same slot). */
static void on_pipe_replace_other(struct loop_io *io, uint32_t events)
{
    struct pipe_watch *p = container_of(io, struct pipe_watch, io), *other = p->other;
    struct loop *loop = io->loop;
    int number = other->fds[0];

    mark(p->name);
    pipe_close(other);
    pipe_open(other, 'n');
    if (other->fds[0] != number) {
        assert_int_equal(dup3(other->fds[0], number, O_CLOEXEC), number);
        (void)close(other->fds[0]);
        other->fds[0] = number;
    }
    assert_int_equal(loop_io_start(loop, &other->io, number, EPOLLIN, on_pipe), 0);
    loop_io_stop(&p->io);
}

static void a_harvested_event_is_not_given_to_a_successor(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct pipe_watch a, b;

    pipe_open(&a, 'x');
    pipe_open(&b, 'x');
    a.other = &b;
    b.other = &a;
    pipe_fill(&a);
    pipe_fill(&b);
    assert_int_equal(loop_io_start(loop, &a.io, a.fds[0], EPOLLIN, on_pipe_replace_other), 0);
    assert_int_equal(loop_io_start(loop, &b.io, b.fds[0], EPOLLIN, on_pipe_replace_other), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "x");

    struct pipe_watch *successor = a.name == 'n' ? &a : &b;
    pipe_fill(successor);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "xn");
    pipe_close(&a);
    pipe_close(&b);
}

/* A hundred watchers in a ring; whichever runs first frees all the others. */
static struct pipe_watch *ring[100];

static void on_ring(struct loop_io *io, uint32_t events)
{
    mark('r');
    for (size_t i = 0; i < 100; i++) {
        if (!ring[i] || &ring[i]->io == io)
            continue;
        pipe_close(ring[i]);
        free(ring[i]);
        ring[i] = NULL;
    }
}

static void watchers_may_be_freed_with_their_event_harvested(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);

    for (size_t i = 0; i < 100; i++) {
        ring[i] = malloc(sizeof(*ring[i]));
        assert_non_null(ring[i]);
        pipe_open(ring[i], 'r');
        pipe_fill(ring[i]);
        assert_int_equal(loop_io_start(loop, &ring[i]->io, ring[i]->fds[0], EPOLLIN, on_ring), 0);
    }
    assert_int_equal(loop_turn(loop, -1), 1);
    for (size_t i = 0; i < 100; i++) {
        if (ring[i])
            pipe_close(ring[i]);
        free(ring[i]);
        ring[i] = NULL;
    }
    assert_string_equal(trace, "r");
}

struct named_timer {
    struct loop_timer timer;
    char name;
    struct named_timer *victim;
    struct loop *loop;
};

static void on_timer(struct loop_timer *t)
{
    struct named_timer *n = container_of(t, struct named_timer, timer);

    assert_null(t->loop);
    mark(n->name);
    if (n->victim)
        loop_timer_stop(&n->victim->timer);
}

static void timers_run_when_due_in_order(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_timer a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'}, d = {.name = 'd'};

    loop_timer_start(loop, &c.timer, 30, on_timer);
    loop_timer_start(loop, &a.timer, 10, on_timer);
    loop_timer_start(loop, &b.timer, 20, on_timer);
    loop_timer_start(loop, &d.timer, 20, on_timer); /* as b: the order they were armed in */
    assert_int_equal(loop_turn(loop, 0), 0);
    fake_clock_advance(&fake, 9);
    assert_int_equal(loop_turn(loop, 0), 0);
    fake_clock_advance(&fake, 1);
    assert_int_equal(loop_turn(loop, -1), 1);
    fake_clock_advance(&fake, 100);
    assert_int_equal(loop_turn(loop, -1), 3);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "abdc");
}

static void timers_stop_and_rearm(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_timer a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};

    a.victim = &b;
    loop_timer_start(loop, &a.timer, 10, on_timer);
    loop_timer_start(loop, &b.timer, 10, on_timer);
    loop_timer_start(loop, &c.timer, 10, on_timer);
    loop_timer_start(loop, &c.timer, 50, on_timer);
    fake_clock_advance(&fake, 10);
    assert_int_equal(loop_turn(loop, 0), 1);
    assert_null(b.timer.loop);
    fake_clock_advance(&fake, 39);
    assert_int_equal(loop_turn(loop, 0), 0);
    loop_timer_stop(&c.timer);
    loop_timer_stop(&c.timer);
    loop_timer_stop(NULL);
    fake_clock_advance(&fake, 100);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "a");

    loop_timer_start(loop, &a.timer, UINT64_MAX, on_timer);
    assert_int_equal(a.timer.due_ns, UINT64_MAX);
    assert_int_equal(loop_turn(loop, 0), 0);
    loop_timer_stop(&a.timer);
}

static void on_timer_again(struct loop_timer *t)
{
    struct named_timer *n = container_of(t, struct named_timer, timer);

    mark(n->name);
    loop_timer_start(n->loop, t, 0, on_timer_again);
}

static void a_timer_that_rearms_at_once_lets_others_run(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_timer a = {.name = 'a', .loop = loop};
    struct named_timer b = {.name = 'b'};
    struct pipe_watch p;

    pipe_open(&p, 'p');
    pipe_fill(&p);
    assert_int_equal(loop_io_start(loop, &p.io, p.fds[0], EPOLLIN, on_pipe), 0);
    loop_timer_start(loop, &a.timer, 0, on_timer_again);
    loop_timer_start(loop, &b.timer, 0, on_timer);
    assert_int_equal(loop_turn(loop, -1), 3);
    assert_int_equal(loop_turn(loop, -1), 2);
    assert_string_equal(trace, "pabpa");
    loop_timer_stop(&a.timer);
    pipe_close(&p);
}

static uint64_t last_due;
static size_t n_fired;

static void on_ordered(struct loop_timer *t)
{
    assert_true(t->due_ns >= last_due);
    assert_true(t->due_ns <= fake.mono_ns);
    last_due = t->due_ns;
    n_fired++;
}

static void a_thousand_timers_keep_their_order(void **state)
{
    static struct loop_timer timers[1000];
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    uint32_t x = 2463534242;
    size_t stopped = 0;

    last_due = n_fired = 0;
    memset(timers, 0, sizeof(timers));
    for (size_t i = 0; i < 3000; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        loop_timer_start(loop, &timers[x % 1000], x >> 20, on_ordered);
        if (i % 3 == 0)
            loop_timer_stop(&timers[(x >> 8) % 1000]);
    }
    for (size_t i = 0; i < 1000; i++)
        stopped += timers[i].loop == NULL;
    for (int i = 0; i < 5000; i++) {
        fake_clock_advance(&fake, 1);
        assert_true(loop_turn(loop, 0) >= 0);
    }
    assert_int_equal(n_fired + stopped, 1000);
    assert_true(n_fired > 500);
}

static void a_timer_wakes_a_sleeping_loop(void **state)
{
    for (int coarse = 0; coarse < 2; coarse++) {
        AUTO(loop) struct loop *loop = new_loop(&clock_system);
        struct named_timer a = {.name = 'a'};
        if (coarse)
            fault_set(FAULT_EPOLL_WAIT, 1, ENOSYS); /* a kernel before 5.11, or a filter */
        loop_timer_start(loop, &a.timer, 2 * NSEC_PER_MSEC, on_timer);
        uint64_t due = a.timer.due_ns;
        while (a.timer.loop)
            assert_true(loop_turn(loop, -1) >= 0);
        assert_true(loop_now(loop) >= due);
        assert_false(fault_missed());
    }
    assert_string_equal(trace, "aa");
}

static void a_loop_that_stays_awake_misses_nothing(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&clock_system);
    struct named_timer a = {.name = 'a'};
    struct pipe_watch p;
    uint64_t for_ever = loop_now(loop) + 3600 * NSEC_PER_SEC;

    pipe_open(&p, 'p');
    assert_int_equal(loop_io_start(loop, &p.io, p.fds[0], EPOLLIN, on_pipe), 0);
    loop_stay_awake(loop, for_ever);
    assert_int_equal(loop_turn(loop, 1), 0); /* it ends when its sleep would have */
    loop_timer_start(loop, &a.timer, NSEC_PER_MSEC, on_timer);
    assert_true(loop_turn(loop, -1) >= 0);
    while (a.timer.loop)
        assert_true(loop_turn(loop, -1) >= 0);
    pipe_fill(&p);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "ap");
    pipe_close(&p);
    /* And then it sleeps again. */
    loop_stay_awake(loop, 0);
    assert_int_equal(loop_turn(loop, 1), 0);
    loop_stay_awake(loop, loop_now(loop) + NSEC_PER_MSEC);
    loop_timer_start(loop, &a.timer, 5 * NSEC_PER_MSEC, on_timer);
    while (a.timer.loop)
        assert_true(loop_turn(loop, -1) >= 0);
    assert_string_equal(trace, "apa");
}

static void the_wait_may_be_interrupted_or_fail(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_timer a = {.name = 'a'};
    struct err err;

    loop_timer_start(loop, &a.timer, 0, on_timer);
    fault_set(FAULT_EPOLL_WAIT, 1, EINTR);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "a");
    fault_set(FAULT_EPOLL_WAIT, 1, EBADF);
    assert_int_equal(loop_run(loop, &err), -EBADF);
    assert_int_equal(err.code, ERR_SYSTEM);
}

static void on_timer_quit(struct loop_timer *t)
{
    mark('q');
    loop_quit(container_of(t, struct named_timer, timer)->loop);
}

static void quit_ends_the_run_after_the_turn(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_timer a = {.loop = loop}, b = {.name = 'b'};

    for (int i = 0; i < 2; i++) {
        loop_timer_start(loop, &a.timer, 0, on_timer_quit);
        loop_timer_start(loop, &b.timer, 0, on_timer);
        assert_int_equal(loop_run(loop, NULL), 0);
    }
    assert_string_equal(trace, "qbqb");
    loop_quit(loop);
    assert_int_equal(loop_run(loop, NULL), 0); /* asked before: does not wait */
}

struct named_defer {
    struct loop_defer defer;
    char name;
    struct loop *loop;
    struct named_defer *start, *stop;
};

static void on_defer(struct loop_defer *d)
{
    struct named_defer *n = container_of(d, struct named_defer, defer);

    assert_null(d->loop);
    mark(n->name);
    if (n->stop)
        loop_defer_stop(&n->stop->defer);
    if (n->start)
        loop_defer_start(n->loop, &n->start->defer, on_defer);
}

static void deferred_calls_run_once_in_order(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_defer a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'};

    loop_defer_start(loop, &b.defer, on_defer);
    loop_defer_start(loop, &a.defer, on_defer);
    loop_defer_start(loop, &c.defer, on_defer);
    loop_defer_start(loop, &b.defer, on_defer); /* to the end */
    assert_int_equal(loop_turn(loop, -1), 3);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "acb");
}

static void deferred_calls_start_and_stop_others(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct named_defer a = {.name = 'a', .loop = loop}, b = {.name = 'b'}, c = {.name = 'c'};

    a.start = &a; /* for ever, but not within one turn */
    a.stop = &b;
    loop_defer_start(loop, &a.defer, on_defer);
    loop_defer_start(loop, &b.defer, on_defer);
    loop_defer_start(loop, &c.defer, on_defer);
    assert_int_equal(loop_turn(loop, -1), 2);
    assert_int_equal(loop_turn(loop, -1), 1);
    loop_defer_stop(&a.defer);
    loop_defer_stop(&a.defer);
    loop_defer_stop(NULL);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "aca");
}

static struct named_defer from_io = {.name = 'd'};

static void on_pipe_defer(struct loop_io *io, uint32_t events)
{
    mark('p');
    loop_defer_start(io->loop, &from_io.defer, on_defer);
}

static void deferred_calls_come_after_the_callbacks_of_the_turn(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct pipe_watch a, b;

    pipe_open(&a, 'a');
    pipe_open(&b, 'b');
    pipe_fill(&a);
    pipe_fill(&b);
    assert_int_equal(loop_io_start(loop, &a.io, a.fds[0], EPOLLIN, on_pipe_defer), 0);
    assert_int_equal(loop_io_start(loop, &b.io, b.fds[0], EPOLLIN, on_pipe_defer), 0);
    assert_int_equal(loop_turn(loop, -1), 3);
    assert_string_equal(trace, "ppd");
    pipe_close(&a);
    pipe_close(&b);
}

static void on_signal(struct loop_signal *s, int signo)
{
    mark(signo == SIGUSR1 ? '1' : signo == SIGUSR2 ? '2' : '?');
}

static void signals_arrive_as_events(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct loop_signal s = {0};
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    (void)sigaddset(&set, SIGUSR2);
    assert_int_equal(loop_signal_start(loop, &s, &set, on_signal), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(kill(getpid(), SIGUSR2), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "12");
    loop_signal_stop(&s);
    loop_signal_stop(&s);
    loop_signal_stop(NULL);
    assert_int_equal(s.fd, -1);

    /* Stopped is not unblocked: this one waits for the next watcher. */
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(loop_signal_start(loop, &s, &set, on_signal), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "121");
    loop_signal_stop(&s);
}

static void on_signal_free(struct loop_signal *s, int signo)
{
    mark('f');
    loop_signal_stop(s);
    free(s);
}

static void a_signal_watcher_may_free_itself(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct loop_signal *s = calloc(1, sizeof(*s));
    sigset_t set;

    assert_non_null(s);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGUSR1);
    assert_int_equal(loop_signal_start(loop, s, &set, on_signal_free), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_string_equal(trace, "f");
}

/* A child that exits with a status, or waits to be killed when it is negative. */
static int spawn(int status, pid_t *ret_pid)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (status < 0)
            for (;;)
                (void)pause();
        _exit(status);
    }
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    assert_true(pidfd >= 0);
    *ret_pid = pid;
    return pidfd;
}

static int child_status;

static void on_child(struct loop_child *c, int wait_status)
{
    assert_null(c->loop);
    mark('c');
    child_status = wait_status;
}

static void children_are_reaped(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct loop_child c = {0};
    pid_t pid;

    AUTO_CLOSE int a = spawn(7, &pid);
    assert_int_equal(loop_child_start(loop, &c, a, on_child), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_true(WIFEXITED(child_status));
    assert_int_equal(WEXITSTATUS(child_status), 7);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);

    AUTO_CLOSE int b = spawn(-1, &pid);
    assert_int_equal(loop_child_start(loop, &c, b, on_child), 0);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_true(WIFSIGNALED(child_status));
    assert_int_equal(WTERMSIG(child_status), SIGKILL);
    assert_int_equal(loop_turn(loop, 0), 0);
    assert_string_equal(trace, "cc");
}

static void a_child_may_be_stopped_or_reaped_elsewhere(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);
    struct loop_child c = {0};
    pid_t pid;

    AUTO_CLOSE int a = spawn(0, &pid);
    assert_int_equal(loop_child_start(loop, &c, a, on_child), 0);
    loop_child_stop(&c);
    loop_child_stop(&c);
    loop_child_stop(NULL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(loop_turn(loop, 0), 0);

    /* The pidfd is readable, and there is nothing left to reap. */
    assert_int_equal(loop_child_start(loop, &c, a, on_child), 0);
    assert_int_equal(loop_turn(loop, -1), 1);
    assert_int_equal(child_status, -1);
    assert_false(WIFEXITED(child_status));
    assert_false(WIFSIGNALED(child_status));
    assert_int_equal(loop_child_start(loop, &c, -1, on_child), -EBADF);
    assert_null(c.loop);
}

static void watchers_outlive_their_loop(void **state)
{
    struct loop *loop = new_loop(&fake.clock);
    struct named_timer t = {0};
    struct named_defer d = {0};
    struct pipe_watch p;

    pipe_open(&p, 'p');
    assert_int_equal(loop_io_start(loop, &p.io, p.fds[0], EPOLLIN, on_pipe), 0);
    loop_timer_start(loop, &t.timer, 5, on_timer);
    loop_defer_start(loop, &d.defer, on_defer);
    loop_free(loop);
    loop_free(NULL);
    assert_null(p.io.loop);
    loop_timer_stop(&t.timer);
    loop_defer_stop(&d.defer);
    pipe_close(&p);
}

static void a_loop_knows_its_clock(void **state)
{
    AUTO(loop) struct loop *loop = new_loop(&fake.clock);

    assert_ptr_equal(loop_clock(loop), &fake.clock);
    assert_int_equal(loop_now(loop), fake.mono_ns);
    fake_clock_advance(&fake, 3);
    assert_int_equal(loop_now(loop), fake.mono_ns);
}

#define LOOP_TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOOP_TEST(descriptors_wake_their_watchers),
        LOOP_TEST(a_start_that_fails_leaves_nothing),
        LOOP_TEST(a_harvested_event_is_dropped_by_stop),
        LOOP_TEST(a_harvested_event_is_not_given_to_a_successor),
        LOOP_TEST(watchers_may_be_freed_with_their_event_harvested),
        LOOP_TEST(timers_run_when_due_in_order),
        LOOP_TEST(timers_stop_and_rearm),
        LOOP_TEST(a_timer_that_rearms_at_once_lets_others_run),
        LOOP_TEST(a_thousand_timers_keep_their_order),
        LOOP_TEST(a_timer_wakes_a_sleeping_loop),
        LOOP_TEST(a_loop_that_stays_awake_misses_nothing),
        LOOP_TEST(the_wait_may_be_interrupted_or_fail),
        LOOP_TEST(quit_ends_the_run_after_the_turn),
        LOOP_TEST(deferred_calls_run_once_in_order),
        LOOP_TEST(deferred_calls_start_and_stop_others),
        LOOP_TEST(deferred_calls_come_after_the_callbacks_of_the_turn),
        LOOP_TEST(signals_arrive_as_events),
        LOOP_TEST(a_signal_watcher_may_free_itself),
        LOOP_TEST(children_are_reaped),
        LOOP_TEST(a_child_may_be_stopped_or_reaped_elsewhere),
        LOOP_TEST(watchers_outlive_their_loop),
        LOOP_TEST(a_loop_knows_its_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
