/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* box-guest, the supervisor inside a container of an engine. It starts processes on request, keeps
 * what managed processes write until boxd has it, kills whole trees on time-out, and says how each
 * one ended. It has no capability and the same user id as what it starts: a session can harm its
 * own supervisor, and with it nothing but itself.
 *
 *     boxd ◄── socket in a bind-mounted directory ──► box-guest
 *                                                       ├─ keeper ── program ── …
 *                                                       └─ keeper ── program ── …
 *
 * A *keeper* is a copy of box-guest, one per program, to which the kernel gives every orphan of
 * that program's tree: whatever a process does, it stays below its keeper. A kernel that cannot do
 * that (gVisor's, at least until 2022) gives all orphans to box-guest: there every process has its
 * program's *brand*, which it cannot get rid of. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/guest_wire.h"
#include "util/buf.h"

struct sock_filter;

/*   FREE ──start──► RUNNING ──main ended──► LINGER ──keeper ended, streams closed──► FREE
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
    bool silent;   /* of an earlier boxd: nobody wants to hear of it */
    bool attached; /* a managed process whose output is wanted on this connection */
    bool told;     /* EXITED is in the queue of this connection */
    bool gone;     /* the keeper has ended */
    bool exited;   /* result is valid */
    bool alone;    /* nothing else ran beside it so far */
    pid_t keeper;
    uint64_t brand; /* of all its processes; 0: they stay below the keeper */
    int ctl;        /* to the keeper, -1: gone */
    int out[2];     /* -1: closed, or never there */
    int in;         /* -1: closed */
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

struct guest {
    int sock;      /* -1: not connected */
    int signal_fd; /* SIGCHLD */
    bool hello;
    bool branded; /* orphans do not stay below their keepers */
    bool gvisor;
    bool stray; /* a keeper was killed: what it kept is ours to end */
    uint64_t retry_at, retry_ns;
    uint64_t deadline, alone_since; /* 0: none */
    uint64_t ooms;                  /* kills for memory so far */
    struct guest_hello config;
    struct sock_filter *filter; /* owned */
    struct buf in, out;
    size_t out_pos;
    struct cell cells[GUEST_CELLS_MAX];
};

/* keeper.c: how often the kernel has killed for memory in this container. */
uint64_t keeper_count_ooms(void);

/* What a keeper says, once, on its control socket. */
struct keeper_report {
    struct guest_exited result;
    uint32_t oom_seen; /* the kernel killed for memory in this container while it ran */
    uint32_t failed;
};

enum keeper_op { KEEPER_SIGNAL = 1, KEEPER_KILL, KEEPER_OOM };
struct keeper_order {
    uint32_t op;
    int32_t signo;
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
void cell_kill(struct cell *c);
void cell_order(struct cell *c, enum keeper_op op, int signo);
void cell_input(struct guest *g, struct cell *c, const char *data, size_t len, uint32_t flags);
void cell_resize(struct cell *c, uint32_t rows, uint32_t cols);
void cell_release(struct cell *c, uint64_t upto);
void cell_forget(struct cell *c);
void cell_attach(struct cell *c);
/* What poll said about its descriptors. */
void cell_on_output(struct guest *g, struct cell *c, int stream);
void cell_on_writable(struct guest *g, struct cell *c);
void cell_on_control(struct guest *g, struct cell *c);
bool cell_wants_output(const struct cell *c, int stream);
void cell_on_keeper_gone(struct guest *g, pid_t pid);
void cell_settle(struct guest *g, struct cell *c); /* sends what can be sent, frees what is over */
bool cell_any_exec(const struct guest *g);         /* a command runs */
void cell_on_oom(struct guest *g);                 /* the kernel has killed for memory */
void cell_new_connection(struct guest *g);         /* a boxd has introduced itself */

void cell_nudge_keepers(const struct guest *g); /* an orphan has ended: it may have been theirs */

/* keeper.c */
_Noreturn void keeper_run(struct guest *g, int ctl, uint64_t brand, const struct start_request *req,
                          const struct child_stdio *io);

/* brand.c: which program's tree a process is of, where its parents do not tell. */
bool guest_is_gvisor(void);
bool brand_needed(void);      /* the kernel has no subreapers; before anything was started */
uint64_t brand_new(void);     /* that nobody has had in this container */
uint64_t brand_of(pid_t pid); /* 0: it has none, or is gone */
/* For good, for the caller and all that it starts. 0 or a negative errno. */
int brand_take(uint64_t brand);
int brand_guard(void); /* box-guest is not killed by the caller; for a kernel that would let it */

/* tree.c: the processes below `root`, and those with its brand; `root` is not one of them. Nothing
 * below a process that `spare` names is one, nor that process. */
typedef bool tree_spare_fn(const struct guest *g, pid_t pid);
struct tree {
    pid_t root;
    uint64_t brand;       /* 0: none */
    tree_spare_fn *spare; /* may be NULL */
    const struct guest *g;
};
/* All of them get the signal (0: none). How many there were. */
unsigned tree_signal(const struct tree *tree, int signo);
/* Whether all of them together have more than that many bytes. Pages that several of them have
 * count once. */
bool tree_above(const struct tree *tree, uint64_t bytes);

/* child.c: everything between clone and execve. */
struct child_report {
    uint32_t stage;
    int32_t error;
};
_Noreturn void child_run(const struct guest *g, uint64_t brand, const struct start_request *req,
                         const struct child_stdio *io, struct child_report *shared);
