/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* box-init, PID 1 of one sandbox. It starts processes on request, reaps everything, kills trees on
 * time-out, and says how each one ended. Static, no allocation: all of its state is one struct of
 * fixed size. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inside/init_wire.h"
#include "inside/ring.h"
#include "inside/supervisor.h"

/* One cell per exec, then one per managed process. */
#define INIT_CELLS_MAX (INIT_EXECS_MAX + INIT_PROCS_MAX)

/* One running (or lately ended) exec or managed process and the kill group it runs in.
 *
 *   FREE ──exec──► RUNNING ──main exits──► DONE ──told──► LINGER ──group empty──► FREE
 */
enum cell_state {
    CELL_FREE,
    CELL_RUNNING,
    CELL_DONE,   /* main process gone, EXITED not sent yet */
    CELL_LINGER, /* EXITED sent; processes it left behind may still hold the group */
    CELL_STATE_MAX,
};

struct cell {
    enum cell_state state;
    uint32_t id;
    char label[INSIDE_LABEL_SIZE];
    pid_t pid; /* in our own pid namespace, we are its parent: it cannot be reused before we reap it
                */
    uint64_t started_ns;
    uint64_t deadline_ns; /* CLOCK_MONOTONIC, 0: none */
    uint64_t
        settle_ns; /* DONE: until then the rest of a killed tree is waited for; 0: it is gone */
    struct init_exited result;
    bool touched;  /* it was used before; else all of it is zero, and takes no memory */
    int cgroup_fd; /* kill group, -1 while not made */
    bool killed;   /* the group was, and must not be used again */
    uint32_t
        unkilled; /* processes that outlived a kill without a group, for as long as it looked */
    bool orphan;  /* of an earlier boxd: no EXITED is sent for it */
    uint32_t forgotten; /* number of the process that it was; boxd waits for its end. 0: none */
    int memcg_fd;       /* own v1 memory group, -1: shares the session's */
    int oom_fd;         /* eventfd of the v1 memory group, -1 without one */
    uint64_t oom_seen;
    unsigned oom_checks; /* looks left after an event: the kernel signals before it kills */
};

/* A managed process. It has the cell of the same place behind those of the execs, which goes its
 * way also when the process is forgotten while it runs. */
struct init_proc {
    uint32_t number;                    /* 0: free */
    int ring_fd, in_fd, out_fd, err_fd; /* owned; in_fd is kept for the next boxd */
    struct ring_writer ring;
    bool log;            /* the ring is one */
    bool memory_open;    /* its limit could not be set */
    bool midline;        /* boxd is in the middle of a write to its stdin */
    bool exited;         /* result is there */
    bool announced;      /* the present boxd has its STATE */
    bool exit_told;      /* and knows that it has exited */
    uint64_t starved_ns; /* until then no memory is asked for; 0: there was enough */
    struct init_exited result;
};

/* How far the conversation with the present boxd has come. */
enum talk {
    TALK_NONE,   /* it has not introduced itself */
    TALK_ANSWER, /* it has, and is to be answered */
    TALK_LIST,   /* HELLO sent, the list of processes not yet */
    TALK_OPEN,
};

struct init {
    struct init_config config;
    int conn_fd, signal_fd, cgroup_fd, memcg_fd, landlock_fd;
    enum talk talk;
    uint64_t epoch; /* of the last HELLO */
    bool blocked;   /* the peer does not read just now */
    struct cell cells[INIT_CELLS_MAX];
    struct child_report *reports; /* one per cell, MAP_SHARED */
    struct init_proc procs[INIT_PROCS_MAX];
    unsigned procs_top; /* beyond it none was ever used */
};

/* A request as received: header checked, strings not yet. */
struct init_request {
    struct init_exec head;
    const char *strings; /* head.strings_len bytes, unless they are in memfd */
    int memfd;           /* owned by the caller, -1 when inline */
    int program;         /* the same; -1: argv[0] is looked up */
};

/* cells.c: kill groups and memory groups, and the processes in them. */
/* 0 or -EAGAIN, or why a group could not be made: for an exec, or in place of a process. */
int cell_acquire(struct init *in, struct cell **ret);
int cell_acquire_at(struct init *in, unsigned at, struct cell **ret);
int cell_limit_memory(const struct init *in, const struct cell *c, uint64_t bytes); /* 0: none */
void cell_prepare(struct init *in); /* makes the first cell's groups ahead of the first exec */
int cell_kill_tree(struct init *in, struct cell *c);
/* DONE, and the tree is gone if it was killed: then the result says how many processes are left. */
bool cell_settled(struct init *in, struct cell *c);
/* True once a process of it was killed for memory. */
bool cell_oom_check(struct init *in, struct cell *c);
bool cell_empty(const struct cell *c); /* nothing runs in its group */
/* Fills the rows, with the cells that the processes belong to, and n or the error. */
void cells_list(struct init *in, uint32_t after, struct init_listed *ret);
/* Kills what execs of that label have left that do not run any more. */
void cells_end_left(struct init *in, const char *label);
unsigned cell_index(const struct init *in, const struct cell *c);
void cell_move(struct cell *c, enum cell_state to);

/* The inodes belong to the payload, so that it may open /dev/stdout and /dev/tty by name. */
int cell_open_streams(const struct init *in, const struct init_exec *head, struct streams *ret);
/* clone3 into the cell, which runs from here on; the pid, or a negative errno. */
pid_t cell_start(struct init *in, struct cell *c, const struct init_request *req,
                 const struct child_stdio *io);

/* serve.c */
void serve_message(struct init *in);
void serve_tell(struct init *in, struct cell *c); /* DONE and settled: sends EXITED, or keeps it */
void serve_flush(struct init *in);                /* sends what is due, as far as boxd reads */
void procs_exited(struct init *in, struct cell *c); /* a managed process: DONE and settled */
bool procs_gone(struct init *in, struct cell *c);   /* false: GONE has to be sent later */
/* For the main loop: what to poll, which of it is ready, and when to look again. */
#define PROCS_POLL_MAX (2 * INIT_PROCS_MAX)
struct pollfd;
size_t procs_poll(struct init *in, struct pollfd *fds, uint64_t now, uint64_t *next);
void procs_ready(struct init *in, const struct pollfd *fds, size_t n);
