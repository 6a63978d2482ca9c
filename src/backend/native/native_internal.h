/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the native backend share: its sandboxes, commands and managed
 * processes. */

#include "backend/backend.h"
#include "backend/native/native.h"
#include "backend/native/plan.h"
#include "base/buf.h"
#include "inside/init_wire.h"
#include "inside/ring.h"
#include "loop/loop.h"
#include "priv/client.h"

struct dns;
struct dns_listener;
struct native_exec;
struct native_proc;

/* A sandbox that was there when we came. */
struct native_found {
    char name[17];
    uint32_t uid_index;
    bool taken; /* by adopt() or sweep(), or it has gone */
};

/* Starts an exec in the sandbox that `arg` was given for to native_create_named(). */
typedef int native_posture_fn(void *arg, const struct exec_request *req,
                              const struct exec_events *events, void *exec_arg, struct exec **ret,
                              struct err *err);

struct native {
    struct backend base;
    struct loop *loop;
    struct native_options options;
    struct native_facts facts;
    struct priv_client *priv; /* owned */
    uint32_t next_index;
    uint8_t *index_used;        /* owned, a bit per id range */
    char **roots;               /* owned; the allow-list by box-priv's numbers */
    char **aliases;             /* owned; with paths */
    struct dns *dns;            /* owned, NULL until a session has a network */
    struct native_found *found; /* owned */
    size_t n_found;
    native_posture_fn *posture; /* gVisor: whoever can start an exec */
    int files_fd;               /* owned; box-files, sealed; -1 until it is needed */
};

/*   CREATING ──► READY ──► DESTROYING
 *       └──────────────────────┘          */
enum native_state { NATIVE_CREATING, NATIVE_READY, NATIVE_DESTROYING, NATIVE_STATE_MAX };

#define NATIVE_WORDS_MAX 320

struct native_sandbox {
    struct sandbox base;
    struct native *native; /* borrowed */
    enum native_state state;
    char name[17];
    uint32_t uid_index;
    char **env;    /* owned; of the spec */
    char *workdir; /* owned */
    char *image;   /* owned; as asked for */
    enum net_kind network;
    struct dns_listener
        *dns; /* owned; its sockets are in the sandbox, and keep its network alive */
    bool root_writable;
    uint64_t quota_bytes;
    uint64_t counted_bytes; /* of a host directory; 0: it has none, or no quota */
    uint32_t pids;          /* as asked for */
    int conn;               /* to box-init, owned */
    int pidfd;              /* of PID 1, owned */
    struct loop_io conn_io, pid_io;
    uint64_t epoch; /* what PID 1 says before was meant for an earlier daemon */
    bool greeted, lost;
    char *words;   /* owned; gVisor: what runsc has to complain about, as one line, or NULL */
    bool adopting; /* CREATING: PID 1 is to tell what there is */
    struct loop_timer patience; /* with a PID 1 that does not */
    uint64_t deadline_ns;       /* as box-priv knows it */
    bool deadline_known;
    struct native_exec *execs; /* list, owned until freed by their users */
    struct native_proc *procs; /* the same; and those that wait for proc_adopt() */
    uint32_t next_exec;
    unsigned running; /* of them, not counting those whose main process is gone */
    backend_created_fn *created;
    backend_lost_fn *on_lost;
    void *arg;
    backend_done_fn *destroyed;
    void *destroyed_arg;
};

/* One readable descriptor of an exec: a pipe, or its terminal. */
struct native_output {
    struct native_exec *exec; /* the one it is part of */
    enum exec_stream stream;
    int fd; /* owned, -1 when closed */
    struct loop_io io;
};

struct native_exec {
    struct exec base;
    struct native *native;     /* borrowed */
    struct native_sandbox *sb; /* NULL once the sandbox is gone */
    struct native_exec *prev, *next;
    uint32_t id;
    struct exec_events events;
    void *arg;
    bool exited;   /* the main process is gone, or never was */
    bool told;     /* its user has heard the outcome */
    bool detached; /* its user is gone: what it still writes is drained and dropped */
    bool paused, tty, close_in;
    bool crowded;  /* it was ended: boxd could not take its descriptors */
    bool killed;   /* PID 1 was asked to end it */
    unsigned busy; /* callbacks under way: not to be freed underneath them */
    struct native_output out[2];
    int in_fd; /* owned; with a terminal a duplicate of it */
    struct loop_io in_io;
    struct buf in_queue;
    size_t in_pos;  /* of it is written */
    bool held_back; /* the writer waits for stdin_drained() */
    struct loop_timer drain, overdue;
    struct loop_defer defer;
    struct outcome outcome;
};

/* A managed process. Its output lies in memory that PID 1 writes. */
struct native_proc {
    struct proc base;
    struct native *native;     /* borrowed */
    struct native_sandbox *sb; /* NULL once the sandbox is gone */
    struct native_proc *prev, *next;
    uint32_t number;
    struct proc_events events;
    void *arg;
    bool taken;       /* somebody has it */
    bool freed;       /* nobody has it any more, but PID 1 has not been told yet */
    bool started;     /* the ring is there */
    bool exited;      /* the outcome is there */
    bool told;        /* and its user has heard of it */
    bool told_eof;    /* its user has heard that nothing follows */
    bool memory_open; /* its memory limit could not be set */
    unsigned busy;    /* callbacks under way: not to be freed underneath them */
    struct ring_reader ring;
    int in_fd; /* owned */
    struct loop_io in_io;
    struct buf in_queue;
    size_t in_pos;  /* of it is written */
    bool held_back; /* the writer waits for stdin_drained() */
    bool close_in;  /* stdin is to be closed when everything is written */
    bool midline;   /* PID 1 knows that a write has begun */
    /* What PID 1 is to be told as soon as it reads. */
    bool send_room, send_close, send_kill;
    int send_signo;
    bool crowded;          /* it was ended: boxd could not take its descriptors */
    bool ending;           /* PID 1 is to end it, and nothing else is wanted of it */
    bool forgotten;        /* PID 1 was told so */
    backend_done_fn *gone; /* NULL: nobody waits for that */
    void *gone_arg;
    struct loop_timer overdue;
    struct loop_defer news, again, room;
    struct outcome outcome;
};

/* native.c */
void native_index(struct native *n, uint32_t i, bool used);
struct native_sandbox *native_sandbox_new(struct native *n, const struct spec *spec,
                                          backend_created_fn *created, backend_lost_fn *lost,
                                          void *arg);
void native_sandbox_free(struct native_sandbox *sb);
void native_move(struct native_sandbox *sb, enum native_state to);
void native_take_fds(struct native_sandbox *sb, const struct priv_reply *reply, int *fds,
                     size_t n_fds);
/* Gives up what could not be created or adopted, and says why. */
void native_abandon(struct native_sandbox *sb, const struct err *err);
void native_lose(struct native_sandbox *sb);

/* For runsc.c: create() under a name that is known before. */
int native_create_named(struct backend *b, const char *name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err);
const char *native_last_words(struct sandbox *base); /* "": it said nothing */

/* conn.c: the connection to PID 1. */
int native_greet(struct native_sandbox *sb, struct err *err);
/* One message. -EAGAIN: not now; native_proc_flush() runs when there is room again. */
int native_tell(struct native_sandbox *sb, const void *data, size_t len);

/* adopt.c */
int native_adopt(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);
int native_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err);
void native_set_deadline(struct sandbox *base, uint64_t boot_ns);
void native_find(struct native *n); /* what is there already */
void native_on_listed(struct native_sandbox *sb);

/* proc.c */
int native_proc_start(struct sandbox *base, const struct proc_request *req,
                      const struct proc_events *events, void *arg, struct proc **ret,
                      struct err *err);
int native_proc_adopt(struct sandbox *base, uint32_t number, const struct proc_events *events,
                      void *arg, struct proc **ret, struct err *err);
struct proc_range native_proc_range(const struct proc *base);
ssize_t native_proc_read(struct proc *base, uint64_t from, char *buf, size_t size);
void native_proc_release(struct proc *base, uint64_t until);
size_t native_proc_stderr(struct proc *base, char *buf, size_t size);
size_t native_proc_stderr_from(struct proc *base, uint64_t *at, char *buf, size_t size);
size_t native_proc_unwritten(const struct proc *base);
void native_proc_signal(struct proc *base, int signo);
void native_proc_kill(struct proc *base);
void native_proc_end(struct proc *base, backend_done_fn *done, void *arg);
void native_proc_free(struct proc *base);
bool native_proc_on_gone(struct native_sandbox *sb, uint32_t number);
void native_proc_settle(struct native_proc *p); /* after a callback: it may have been freed */
/* From the connection to box-init; false when it makes no sense. */
bool native_proc_on_state(struct native_sandbox *sb, const struct init_state *m, int *fds,
                          size_t n_fds);
bool native_proc_on_output(struct native_sandbox *sb, uint32_t number);
bool native_proc_on_exited(struct native_sandbox *sb, const struct init_exited *m);
void native_proc_flush(struct native_sandbox *sb); /* there is room for messages again */
void native_proc_end_untaken(struct native_sandbox *sb);
/* The sandbox is gone: every process has ended as SESSION_LOST, which is told from the loop. */
void native_proc_lose_all(struct native_sandbox *sb);

/* stdin.c: the stdin of a managed process. */
int native_proc_write(struct proc *base, const char *data, size_t len);
void native_proc_close_stdin(struct proc *base);
void native_stdin_init(struct native_proc *p);
void native_stdin_open(struct native_proc *p, int fd, bool midline); /* takes it */
void native_stdin_flush(struct native_proc *p);                      /* tells its user nothing */
void native_stdin_drained(struct native_proc *p);                    /* this does, when it is due */
void native_stdin_done(struct native_proc *p);

/* exec.c */
int native_send_request(struct native_sandbox *sb, struct init_exec *head,
                        const struct exec_request *req, struct err *err);
void native_outcome(struct outcome *o, const struct init_exited *m);
int native_exec_start(struct sandbox *base, const struct exec_request *req,
                      const struct exec_events *events, void *arg, struct exec **ret,
                      struct err *err);
int native_exec_write(struct exec *base, const char *data, size_t len);
void native_exec_close_stdin(struct exec *base);
void native_exec_signal(struct exec *base, int signo);
void native_exec_kill(struct exec *base);
void native_exec_resize(struct exec *base, uint16_t rows, uint16_t cols);
void native_exec_pause(struct exec *base, bool paused);
void native_exec_free(struct exec *base);
/* From the connection to box-init. */
void native_exec_on_started(struct native_sandbox *sb, const struct init_started *m, int *fds,
                            size_t n_fds);
void native_exec_on_exited(struct native_sandbox *sb, const struct init_exited *m);
/* The sandbox is gone: every exec ends as SESSION_LOST, from the loop. */
void native_exec_lose_all(struct native_sandbox *sb);

/* receipt.c */
int native_held(struct sandbox *base, backend_held_fn *done, void *arg, struct err *err);
int native_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);

/* place.c */
#define NATIVE_NO_ROOT "-" /* no path of a mount begins like this */
int native_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                 void *arg, struct err *err);

/* doctor.c */
int native_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
