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
 * All orphans are box-guest's. Which program an orphan belongs to follows from its *brand*, a
 * number that every process of a program's tree has and cannot get rid of. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "inside/guest_wire.h"
#include "inside/supervisor.h"

struct sock_filter;

/*   FREE ──start──► RUNNING ──main ended──► LINGER ──tree gone, streams closed──► FREE
 *
 * A managed process stays in LINGER until boxd forgets it. */
enum cell_state { CELL_FREE, CELL_RUNNING, CELL_LINGER, CELL_STATE_MAX };

/* What a managed process wrote to a stream, by byte offset. Of stdout nothing leaves before boxd
 * released it; of stderr, and of a log, the last bytes are enough. */
struct guest_kept {
    char *data; /* mapped, `size` bytes; NULL: none */
    size_t size;
    uint64_t begin, end;
    uint64_t sent; /* on this connection */
};

struct guest_cell {
    enum cell_state state;
    uint32_t id;
    char label[INSIDE_LABEL_SIZE];
    bool silent;    /* of an earlier boxd: the present one does not know it */
    bool attached;  /* a managed process whose output is wanted on this connection */
    bool told;      /* EXITED is in the queue of this connection */
    bool gone;      /* nothing of its tree is left */
    bool forget;    /* boxd waits for GONE */
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
    bool log;  /* a managed process: kept[0] has records of both streams, kept[1] nothing */
    bool part; /* the last input was not the end of a call */
    bool ended_told[2];
    uint64_t credit[2];
    uint64_t owed[2]; /* of an exec that has ended: bytes it wrote that come before the news */
    struct buf input;
    struct guest_kept kept[2];
    struct inside_exited result;
};

/* One end of a connection of boxd to a server inside. */
struct guest_side {
    int fd;     /* owned; -1: none */
    bool eof;   /* it sends no more */
    bool shut;  /* nothing more is sent to it */
    char *rest; /* owned; bytes for it that it has not taken yet; NULL: none */
    size_t rest_pos, rest_len;
};

/*   FREE ──► CONNECTING ──► OPEN ──► FREE   */
enum guest_conn_state { GUEST_CONN_FREE, GUEST_CONN_CONNECTING, GUEST_CONN_OPEN };

struct guest_conn {
    enum guest_conn_state state;
    uint32_t id;
    bool ipv6; /* the address that is tried */
    struct guest_connect order;
    struct guest_side sides[2]; /* the server, or the client of a listener; boxd */
    bool to_host;               /* of a listener */
};

struct guest_listener {
    uint16_t port;
    int fds[2]; /* owned; 127.0.0.1 and ::1; -1: none */
};

/* Entries of `env` that are for programs on a terminal alone: the first ones. */
#define GUEST_ENV_TTY 1U
#define GUEST_OOM_SCORE 500U /* oom_score_adj of programs */

struct guest {
    int sock;      /* -1: not connected */
    int signal_fd; /* SIGCHLD */
    bool hello;
    bool gvisor;
    int within[CHILD_NS_MAX]; /* of programs; a negative errno: why there is none */
    bool recount; /* a process has ended: find its program, and count what is left of it */
    struct child_report *reports; /* one per cell, shared with children */
    char **env;                   /* owned: below that of a request */
    size_t n_env;
    int oom_fd;       /* our oom_score_adj, -1: it cannot be written to */
    char oom_own[16]; /* what it says of us */
    uint64_t retry_at, retry_ns;
    uint64_t deadline, alone_since; /* 0: none */
    uint64_t ooms, ooms_at;         /* kills for memory so far; when to count them next */
    struct guest_hello config;
    struct sock_filter *filter; /* owned */
    struct buf in, out;
    size_t out_pos;
    struct guest_cell cells[GUEST_CELLS_MAX];
    struct guest_conn conns[GUEST_CONNS_MAX];
    struct guest_listener listeners[GUEST_LISTENS_MAX]; /* those of other boxds stay */
    size_t n_listeners;
};

static inline bool guest_is_proc(const struct guest_cell *c)
{
    return (c->id & GUEST_PROC_BIT) != 0;
}

/* A request as received: the numbers checked, the strings not yet. */
struct guest_request {
    struct guest_start head;
    uint32_t flags;
    const char *strings;
    size_t strings_len;
};

/* main.c */
void serve_drop(struct guest *g);           /* the connection is over */
bool serve_can_send(const struct guest *g); /* there is room for output */
void serve_send(struct guest *g, const struct guest_head *head, const void *a, size_t a_len,
                const void *b, size_t b_len);
uint64_t guest_number(const struct guest_head *head, const char *body); /* 0: it is none */

/* cell.c */
void cell_order(struct guest *g, const struct guest_head *h, const char *body); /* of boxd */
void cell_on_result(struct guest *g, struct guest_cell *c); /* its main process has ended */
void cell_new_connection(struct guest *g);                  /* a boxd has introduced itself */
/* In the main loop: what to poll, what came of it, and what can be sent or freed then. */
#define GUEST_POLLS 3U /* of each cell */
struct pollfd;
void cells_watch(const struct guest *g, struct pollfd *polls);
void cells_serve(struct guest *g, const struct pollfd *polls);
void cells_settle(struct guest *g);

/* conn.c */
void conn_order(struct guest *g, const struct guest_head *h, const char *body); /* of boxd */
/* As those of cells. How many there are to poll: two for each connection up to the last. */
size_t conns_watch(const struct guest *g, struct pollfd *polls);
void conns_serve(struct guest *g, const struct pollfd *polls, size_t n);
/* The same of listeners: two for each. */
void listener_order(struct guest *g, const struct guest_head *h, const char *body);
size_t listeners_watch(const struct guest *g, struct pollfd *polls);
void listeners_serve(struct guest *g, const struct pollfd *polls, size_t n);

/* tend.c */
void tend_start(struct guest *g, struct guest_cell *c, const struct guest_start *head);
void tend_reap(struct guest *g);                         /* some process has ended */
void tend_signal(const struct guest_cell *c, int signo); /* to the main process */
void tend_end(struct guest_cell *c, uint32_t flag);      /* all of it; goes on until it is gone */
void tend_end_left(struct guest *g, const char *label);  /* what ended commands have left */
/* The first `max` processes behind that number: how many, or a negative errno. */
int tend_list(const struct guest *g, uint32_t after, struct inside_process *ret, size_t max);
void tend_cells(struct guest *g);         /* once per turn */
uint64_t tend_due(const struct guest *g); /* when to look next; UINT64_MAX: never */

/* brand.c: which program's tree a process is of. Its parents do not tell: they may be gone. */
bool guest_is_gvisor(void);
uint64_t brand_new(void);     /* unused so far in this container */
uint64_t brand_of(pid_t pid); /* 0: it has none, or is gone */
/* Gives the brand to a process and all that it starts, and the filter that keeps it. */
struct inside_rlimit brand_mark(uint64_t brand);
extern const struct child_filter brand_filter;

/* within.c: namespaces that box-guest makes for programs. */
void within_make(struct guest *g); /* before the first program */
