/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What box-init and box-guest do alike for the programs that they start: signals, time, waiting,
 * streams, and the account of how a program ended. No allocation. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inside/child.h"

struct inside_process;
struct pollfd;
struct rusage;
struct timespec;

uint64_t supervisor_now(void); /* CLOCK_MONOTONIC, in nanoseconds */

/* Blocks all signals for the supervisor, and ignores none: what our own starter ignores, programs
 * would ignore too, and `yes | head` must end by SIGPIPE. Returns a descriptor that tells of
 * SIGCHLD, or a negative errno. */
int supervisor_take_signals(void);

/* ppoll(2) that also works when it cannot look at so many descriptors. Those < 0 are left out.
 * `wait` NULL: for ever. False: none is ready. */
bool supervisor_poll(struct pollfd *fds, size_t n, const struct timespec *wait);

/* What connects a program to its supervisor: a terminal, or pipes. */
struct streams {
    struct child_stdio child;
    int ours[3]; /* stdout, stderr, stdin; or the terminal's master. -1: not there */
    size_t n_ours;
};

struct streams_request {
    bool tty, with_stdin;
    bool nonblock; /* our ends */
    bool by_name;  /* a terminal's slave may be opened by its name: gVisor has no other way */
    uint16_t rows, cols;
};

int streams_open(const struct streams_request *req, struct streams *ret); /* 0 or negative errno */
void streams_close_child(struct streams *s);
void streams_close(struct streams *s); /* both sides */

/* Signals the process that leads its own group, and everything that its terminal would reach. */
void supervisor_signal(pid_t leader, int signo);

/* Fills in how a process ended that was started at `started_ns`, except for what only its
 * supervisor knows. */
void supervisor_judge(const struct child_report *report, uint64_t started_ns, int status,
                      const struct rusage *use, struct inside_exited *ret);

/* How often the kernel has killed for memory in a group, by a file of its directory, for 0; -ENOENT
 * where the file does not tell. */
int supervisor_oom_kills(int group, const char *file, uint64_t *ret);

/* Whether a program that failed has met the limit of the disk that `path` lies on; "": there is
 * none. */
bool supervisor_hit_quota(const char *path, int status);

/* A non-blocking TCP socket that connects to that port of the loopback address; it may still be
 * connecting. A negative errno: there is none. */
int supervisor_connect(uint16_t port, bool ipv6);

/* The processes of /proc but PID 1, by their numbers. */
struct supervisor_walk {
    int fd; /* of /proc */
    long len, at;
    _Alignas(8) char entries[2048];
};
pid_t supervisor_next_pid(struct supervisor_walk *w); /* 0: these were all */
/* All but its owner and its arguments; false: it is gone. */
bool supervisor_process(pid_t pid, struct inside_process *ret);
/* The first `max` of those behind that number, without their owners: how many, or a negative
 * errno. */
int supervisor_list(uint32_t after, struct inside_process *ret, size_t max);
