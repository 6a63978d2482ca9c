/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* box-init, PID 1 of one sandbox. It starts processes on request, reaps everything, kills trees on
 * time-out, and says how each one ended. Static, no allocation: all of its state is one struct of
 * fixed size. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sandbox/init_wire.h"

/* One running (or lately ended) exec and the kill group it runs in.
 *
 *   FREE ──exec──► RUNNING ──main exits──► DONE ──told──► LINGER ──group empty──► FREE
 */
enum cell_state {
    CELL_FREE,
    CELL_RUNNING,
    CELL_DONE,   /* main process gone, boxd not told yet */
    CELL_LINGER, /* told; processes it left behind may still hold the group */
    CELL_STATE_MAX,
};

struct cell {
    enum cell_state state;
    uint32_t id;
    pid_t pid; /* in our own pid namespace, we are its parent: it cannot be reused before we reap it
                */
    uint64_t started_ns;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none */
    uint64_t
        settle_ns; /* DONE: until then the rest of a killed tree is waited for; 0: it is gone */
    struct init_exited result;
    int cgroup_fd; /* kill group, -1 while not made */
    bool killed;   /* the group was, and must not be used again */
    int memcg_fd;  /* own v1 memory group, -1: shares the session's */
    int oom_fd;    /* eventfd of the v1 memory group, -1 without one */
    uint64_t oom_seen;
    unsigned oom_checks; /* looks left after an event: the kernel signals before it kills */
};

/* How far a child came before execve; it writes, we read after it has ended. Shared memory that the
 * payload never sees: execve drops the mapping. */
struct child_report {
    uint32_t stage;
    int32_t error;
};

struct init {
    struct init_config config;
    const void *filter; /* struct sock_filter[], mapped */
    unsigned short filter_len;
    int conn_fd, signal_fd, cgroup_fd, memcg_fd, landlock_fd;
    bool hello; /* the peer has introduced itself */
    struct cell cells[INIT_EXECS_MAX];
    struct child_report *reports; /* one per cell, MAP_SHARED */
};

/* A request as received: header checked, strings not yet. */
struct exec_request {
    struct init_exec head;
    const char *strings; /* head.strings_len bytes, unless they are in memfd */
    int memfd;           /* owned by the caller, -1 when inline */
};

/* cells.c: kill groups and memory groups. */
int cell_acquire(struct init *in,
                 struct cell **ret); /* 0 or -EAGAIN, or why a group could not be made */
void cell_prepare(struct init *in);  /* makes the first cell's groups ahead of the first exec */
int cell_kill_tree(struct init *in, struct cell *c);
uint32_t cell_remaining(struct init *in, const struct cell *c);
bool cell_settled(struct init *in,
                  struct cell *c); /* DONE, and the tree is gone if it was killed */
bool cell_oom_check(struct init *in,
                    struct cell *c); /* true once a process of it was killed for memory */
unsigned cell_index(const struct init *in, const struct cell *c);
void cell_move(struct cell *c, enum cell_state to);

/* child.c: everything between clone and execve. */
struct child_stdio {
    int in, out, err; /* -1: /dev/null */
    int tty;          /* slave, -1: none */
};
_Noreturn void exec_child(struct init *in, struct cell *c, const struct exec_request *req,
                          const struct child_stdio *io);

/* serve.c */
void serve_message(struct init *in);
void serve_tell(struct init *in,
                struct cell *c); /* sends EXITED, or keeps it for the next connection */

/* main.c */
uint64_t init_now(void);
