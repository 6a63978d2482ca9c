/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One thread, one epoll. Timers, signals and children are descriptors like any other. Watchers live
 * inside their owner and are zero-initialised; stop is immediate and legal in any callback, also
 * for a watcher whose event was already harvested: that event is dropped. A callback never blocks.
 */

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/list.h"

struct clock;
struct err;
struct hist;
struct loop;
struct loop_io;
struct loop_timer;
struct loop_signal;
struct loop_child;
struct loop_defer;

typedef void loop_io_fn(struct loop_io *io, uint32_t events); /* EPOLL* bits */
typedef void loop_timer_fn(struct loop_timer *t);
typedef void loop_signal_fn(struct loop_signal *s, int signo);
/* As from waitpid(2); -1, which is neither an exit nor a signal, when it was not ours to reap. */
typedef void loop_child_fn(struct loop_child *c, int wait_status);
typedef void loop_defer_fn(struct loop_defer *d);

struct loop_io {
    struct loop *loop; /* NULL when stopped */
    int fd;            /* borrowed */
    uint32_t events;
    loop_io_fn *fn;
    uint32_t slot; /* private to loop.c */
};

struct loop_timer {
    struct loop *loop; /* NULL when stopped */
    uint64_t due_ns;   /* CLOCK_MONOTONIC of the loop's clock */
    loop_timer_fn *fn;
    size_t heap_index; /* private to loop.c */
    uint64_t serial;   /* private to loop.c: timers due at the same time run in the order armed */
};

struct loop_signal {
    struct loop *loop;
    loop_signal_fn *fn;
    int fd; /* owned signalfd */
    struct loop_io io;
};

/* A child process of ours, by pidfd (owned by the watcher's owner). Reaps it, then calls fn once
 * and stops. */
struct loop_child {
    struct loop *loop;
    loop_child_fn *fn;
    int pidfd; /* borrowed */
    struct loop_io io;
};

/* Runs once, from the loop, after the current callbacks: how a completion avoids calling back into
 * its caller. */
struct loop_defer {
    struct loop *loop; /* NULL when not queued */
    loop_defer_fn *fn;
    TAILQ_ENTRY(loop_defer) link; /* private to loop.c, like what follows */
    uint64_t serial;              /* what is queued while others run waits for the next turn */
};

int loop_new(const struct clock *clock, struct loop **ret, struct err *err); /* clock borrowed */
void loop_free(struct loop *loop);
DEFINE_CLEANUP(loop)
const struct clock *loop_clock(const struct loop *loop);
uint64_t loop_now(const struct loop *loop); /* monotonic ns, read afresh */

/* How long each turn kept all other events waiting. */
const struct hist *loop_turns(const struct loop *loop);

/* Until then the loop does not sleep but asks what there is, again and again, and lets others have
 * the processor in between: where what is waited for comes sooner than one can be woken. 0: no
 * more. */
void loop_stay_awake(struct loop *loop, uint64_t until_ns);

int loop_run(struct loop *loop, struct err *err); /* until loop_quit() */
void loop_quit(struct loop *loop);
/* One turn: waits at most timeout_ms (-1: for ever), runs what is due. For tests. Returns how many
 * callbacks ran, or a negative errno. */
int loop_turn(struct loop *loop, int timeout_ms);

int loop_io_start(struct loop *loop, struct loop_io *io, int fd, uint32_t events, loop_io_fn *fn);
int loop_io_events(struct loop_io *io, uint32_t events); /* change interest; cheap when equal */
/* Stop before closing the descriptor: a duplicate elsewhere (a child's) would keep it in the epoll
 * set for good. Fine on NULL and on a stopped one, like every stop here. */
void loop_io_stop(struct loop_io *io);

void loop_timer_start(struct loop *loop, struct loop_timer *t, uint64_t delay_ns,
                      loop_timer_fn *fn); /* re-arms */
void loop_timer_stop(struct loop_timer *t);

/* Blocks the signals for the process, for good, and delivers them here. */
int loop_signal_start(struct loop *loop, struct loop_signal *s, const sigset_t *set,
                      loop_signal_fn *fn);
void loop_signal_stop(struct loop_signal *s);

int loop_child_start(struct loop *loop, struct loop_child *c, int pidfd, loop_child_fn *fn);
void loop_child_stop(struct loop_child *c);

void loop_defer_start(struct loop *loop, struct loop_defer *d, loop_defer_fn *fn);
void loop_defer_stop(struct loop_defer *d);

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
