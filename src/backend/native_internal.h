/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "backend/backend.h"
#include "backend/native.h"
#include "backend/native_plan.h"
#include "io/loop.h"
#include "priv/client.h"
#include "util/buf.h"

struct dns;
struct dns_listener;
struct native_exec;

struct native {
    struct backend base;
    struct loop *loop;
    struct native_options options;
    struct native_facts facts;
    struct priv_client *priv; /* owned */
    uint32_t next_index;
    uint8_t *index_used; /* owned, a bit per id range */
    char **roots;        /* owned; the allow-list by box-priv's numbers */
    struct dns *dns;     /* owned, NULL until a session has a network */
};

/*   CREATING ──► READY ──► DESTROYING
 *       └──────────────────────┘          */
enum native_state { NATIVE_CREATING, NATIVE_READY, NATIVE_DESTROYING, NATIVE_STATE_MAX };

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
    int conn;  /* to box-init, owned */
    int pidfd; /* of PID 1, owned */
    struct loop_io conn_io, pid_io;
    bool hello, lost;
    struct native_exec *execs; /* list, owned until freed by their users */
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
    unsigned busy; /* callbacks under way: not to be freed underneath them */
    struct native_output out[2];
    int in_fd; /* owned; with a terminal a duplicate of it */
    struct loop_io in_io;
    struct buf in_queue;
    size_t in_pos;  /* of it is written */
    bool held_back; /* the writer waits for stdin_drained() */
    struct loop_timer drain;
    struct loop_defer defer;
    struct outcome outcome;
};

/* native_exec.c */
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

/* native_receipt.c */
int native_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);

/* native_doctor.c */
int native_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
