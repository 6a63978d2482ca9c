/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* box-guest, the supervisor inside a container of an engine. It starts processes on request, keeps
 * what managed processes write until boxd has it, kills whole trees on time-out, and says how each
 * one ended. It has no capability and the same user id as what it starts, and no process but
 * itself, the first one of the container: no signal from inside reaches that, and the filter of
 * programs lets them do nothing to the number 1 (sandbox/seccomp/seccomp_table.c).
 *
 *     boxd ◄── socket in a bind-mounted directory ──► box-guest
 *                                                       ├─ program ── …
 *                                                       └─ program ── …
 *
 * All orphans are box-guest's. Whose they are is told by their *brand*, a number that every process
 * of a program's tree has and cannot get rid of. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "inside/guest_wire.h"

struct child_report;
struct rusage;
struct sock_filter;

/*   FREE ──start──► RUNNING ──main ended──► LINGER ──tree gone, streams closed──► FREE
 *
 * A managed process stays in LINGER until boxd forgets it. */
enum cell_state { CELL_FREE, CELL_RUNNING, CELL_LINGER, CELL_STATE_MAX };

/* stdout of a managed process, by byte offset; nothing leaves before boxd released it. */
struct ring {
    char *data; /* mapped, GUEST_RING bytes */
    uint64_t begin, end;
    uint64_t sent; /* on this connection */
};

/* Of its stderr the last bytes are enough. */
struct tail {
    char *data; /* mapped, GUEST_STDERR_KEPT bytes */
    uint64_t end, sent;
};

struct cell {
    enum cell_state state;
    uint32_t id;
    bool silent;    /* of an earlier boxd: nobody wants to hear of it */
    bool attached;  /* a managed process whose output is wanted on this connection */
    bool told;      /* EXITED is in the queue of this connection */
    bool gone;      /* nothing of its tree is left */
    bool forget;    /* boxd is to be told when it is */
    bool exited;    /* result is valid */
    bool alone;     /* nothing else ran beside it so far */
    pid_t main;     /* -1: ended */
    uint64_t brand; /* of all its processes */
    unsigned left;  /* of them, as counted last */
    uint64_t started, deadline, ooms;
    uint64_t memory_max, look_at; /* 0: no limit of its own */
    bool ending;                  /* all of it is being killed */
    uint64_t round_at, round_ns, end_by;
    bool failed, oom_seen; /* the main process; the kernel killed for memory while it ran */
    int out[2];            /* -1: closed, or never there */
    int in;                /* -1: closed */
    bool tty, close_in;
    bool part; /* the last input was not the end of a call */
    bool ended_told[2];
    uint64_t credit[2];
    uint64_t owed[2]; /* of an exec that has ended: bytes it wrote that come before the news */
    struct buf input;
    struct ring ring;
    struct tail tail;
    struct guest_exited result;
};

/* Namespaces that box-guest makes for programs (within.c). */
enum within { WITHIN_USER, WITHIN_TIME, WITHIN_CGROUP, WITHIN_MAX };

struct guest {
    int sock;      /* -1: not connected */
    int signal_fd; /* SIGCHLD */
    bool hello;
    bool gvisor;
    int within[WITHIN_MAX];       /* of programs; a negative errno: why there is none */
    bool recount;                 /* some process has ended: whose, and what is left? */
    struct child_report *reports; /* one per cell, shared with children */
    uint64_t retry_at, retry_ns;
    uint64_t deadline, alone_since; /* 0: none */
    uint64_t ooms;                  /* kills for memory so far */
    struct guest_hello config;
    struct sock_filter *filter; /* owned */
    struct buf in, out;
    size_t out_pos;
    struct cell cells[GUEST_CELLS_MAX];
};

/* A request as received: the numbers checked, the strings not yet. */
struct start_request {
    struct guest_start head;
    uint32_t flags;
    const char *strings;
    size_t strings_len;
};

struct child_stdio {
    int in, out, err; /* -1: /dev/null */
    int tty;          /* slave, -1: none */
};

/* main.c */
uint64_t guest_now(void);
/* Like fork(2). Not by clone3(), whose flags a filter cannot read: the profile of the container
 * answers that there is no such call. 0 in the child, a pid, or a negative errno. */
pid_t guest_clone(void);
/* Closes `first` and all above. No descriptor is larger than INT_MAX, and gVisor (0.0~20221219)
 * calls a range that ends beyond it invalid. 0 or a negative errno. */
int guest_close_from(unsigned first);

/* serve.c */
void serve_input(struct guest *g);          /* something to read on the socket */
void serve_flush(struct guest *g);          /* writes what it takes */
void serve_drop(struct guest *g);           /* the connection is over */
bool serve_can_send(const struct guest *g); /* there is room for output */
void serve_send(struct guest *g, const struct guest_head *head, const void *a, size_t a_len,
                const void *b, size_t b_len);

/* cell.c */
void cell_start(struct guest *g, uint32_t id, const struct start_request *req);
struct cell *cell_find(struct guest *g, uint32_t id);
void cell_input(struct guest *g, struct cell *c, const char *data, size_t len, uint32_t flags);
void cell_resize(struct cell *c, uint32_t rows, uint32_t cols);
void cell_release(struct cell *c, uint64_t upto);
void cell_forget(struct cell *c); /* ends it; boxd is told when nothing of it is left */
void cell_attach(struct cell *c);
/* What poll said about its descriptors. */
void cell_on_output(struct guest *g, struct cell *c, int stream);
void cell_on_writable(struct guest *g, struct cell *c);
bool cell_wants_output(const struct cell *c, int stream);
void cell_on_result(struct guest *g, struct cell *c); /* its main process has ended */
void cell_settle(struct guest *g, struct cell *c); /* sends what can be sent, frees what is over */
bool cell_any_exec(const struct guest *g);         /* a command runs */
void cell_on_oom(struct guest *g);                 /* the kernel has killed for memory */
void cell_new_connection(struct guest *g);         /* a boxd has introduced itself */

/* tend.c */
uint64_t tend_count_ooms(void); /* how often the kernel has killed for memory in this container */
void tend_start(struct cell *c, const struct guest_start *head);
void tend_reaped(struct guest *g, pid_t pid, int status, const struct rusage *use);
void tend_signal(const struct cell *c, int signo); /* to the main process */
void tend_end(struct cell *c, uint32_t flag);      /* all of it; goes on until it is gone */
void tend_cells(struct guest *g);                  /* once per turn */
uint64_t tend_due(const struct guest *g);          /* when to look next; UINT64_MAX: never */

/* brand.c: which program's tree a process is of. Its parents do not tell: they may be gone. */
bool guest_is_gvisor(void);
uint64_t brand_new(void);     /* that nobody has had in this container */
uint64_t brand_of(pid_t pid); /* 0: it has none, or is gone */
/* For the caller and all that it starts; then, for good. 0 or a negative errno. */
int brand_take(uint64_t brand);
int brand_keep(void);

/* tree.c: the processes of one brand. */
/* All of them get the signal. How many there were, with those that have ended and were not reaped;
 * UINT_MAX: nobody knows. */
unsigned tree_signal(uint64_t brand, int signo);
bool tree_count(struct guest *g); /* sets `left` of all cells; false: nobody knows */
/* How many bytes are left until all of them together have that many; 0: they have more. Pages that
 * several of them have count once, when it comes to that. */
uint64_t tree_memory_left(uint64_t brand, uint64_t bytes);

/* within.c */
void within_make(struct guest *g); /* before the first program */
/* In the child. Leaves no capability. 0 or a negative errno. */
int within_enter(const struct guest *g);

/* child.c: everything between clone and execve. */
struct child_report {
    uint32_t stage;
    int32_t error;
};
_Noreturn void child_run(const struct guest *g, uint64_t brand, const struct start_request *req,
                         const struct child_stdio *io, struct child_report *shared);
