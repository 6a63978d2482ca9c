/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the native backend share: its sandboxes, commands and managed
 * processes. */

#include "backend/backend.h"
#include "backend/native/native.h"
#include "backend/native/plan.h"
#include "backend/task.h"
#include "inside/init_wire.h"
#include "loop/loop.h"
#include "priv/client.h"

struct dns;
struct dns_listener;
struct jw;

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
    struct backend_ops ops;
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
    native_posture_fn *posture; /* gVisor: starts an exec inside; NULL: PID 1 does */
    int files_fd;               /* owned; box-files, sealed; -1 until it is needed */
};

/*   CREATING ──► READY ──► DESTROYING
 *       └──────────────────────┘          */
enum native_state { NATIVE_CREATING, NATIVE_READY, NATIVE_DESTROYING, NATIVE_STATE_MAX };

struct native_sandbox {
    struct tasks tasks;    /* with processes that wait for proc_adopt() */
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
    uint32_t pids;          /* as asked for last: what a command may have, by RLIMIT_NPROC */
    int conn;               /* to box-init, owned */
    int pidfd;              /* of PID 1, owned */
    struct loop_io conn_io, pid_io;
    uint64_t epoch; /* what PID 1 says before was meant for an earlier daemon */
    bool greeted, lost;
    char *words;   /* owned; gVisor: what runsc has to complain about, as one line, or NULL */
    bool adopting; /* CREATING: PID 1 is to tell what there is */
    bool stored;   /* what it has on disk was there before it */
    struct loop_timer patience; /* with a PID 1 that does not */
    uint64_t deadline_ns;       /* as box-priv knows it */
    bool deadline_known;
    uint32_t next_exec;
    uint32_t next_dial;
    unsigned n_dials;
    LIST_HEAD(, native_dial) dials; /* connections that PID 1 or we still make */
    backend_created_fn *created;
    backend_lost_fn *on_lost;
    void *arg;
    backend_done_fn *destroyed;
    void *destroyed_arg;
};

/* native.c */
void native_lose(struct native_sandbox *sb);
/* One message to PID 1. -EAGAIN: not now; native_flush() runs when there is room again. */
int native_send(struct native_sandbox *sb, const void *data, size_t len);
/* PID 1 has told of every process it has. */
void native_on_listed(struct native_sandbox *sb);

/* Ends it by PRIV_DESTROY or PRIV_STOP. */
void native_end(struct native_sandbox *sb, enum priv_type how, backend_done_fn *done, void *arg);

/* For runsc.c and durable.c: create() under a name that is known before. `stored`: with what is
 * kept on disk under it. */
struct native_name {
    const char *text;
    bool stored;
};
int native_create_named(struct backend *b, struct native_name name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err);
const char *native_last_words(struct sandbox *base); /* "": it said nothing */

/* durable.c */
void native_stop(struct sandbox *base, backend_done_fn *done, void *arg);
int native_start(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);
int native_discard(struct backend *b, const char *name, backend_done_fn *done, void *arg,
                   struct err *err);
int native_stored(struct backend *b, const char *name, backend_held_fn *done, void *arg,
                  struct err *err);
int native_pause(struct sandbox *base, bool paused, backend_done_fn *done, void *arg,
                 struct err *err);
int native_update(struct sandbox *base, const struct spec *spec, backend_done_fn *done, void *arg,
                  struct err *err);

/* tasks.c */
extern const struct tasks_ops native_tasks_ops;
union native_message {
    uint32_t type;
    struct init_hello hello;
    struct init_started started;
    struct init_exited exited;
    struct init_number number;
    struct init_state state;
    struct init_connected connected;
    struct init_listed listed;
};
/* False when it makes no sense. `room` is false when all of the message is there, but we had no
 * room for the descriptors that came along. */
bool native_on_message(struct native_sandbox *sb, const union native_message *m, size_t len,
                       bool room, int *fds, size_t n_fds);
void native_flush(struct native_sandbox *sb); /* PID 1 reads messages again */
void native_proc_end_untaken(struct native_sandbox *sb);
void native_proc_write_unenforced(struct jw *w, const struct native_sandbox *sb);

/* connect.c */
int native_connect(struct sandbox *base, uint16_t port, backend_connected_fn *done, void *arg,
                   struct err *err);
int native_listen(struct sandbox *base, uint16_t port, backend_listening_fn *done, void *arg,
                  struct err *err);
bool native_on_connected(struct native_sandbox *sb, const struct init_connected *m, int *fds,
                         size_t n_fds);
void native_dials_lose(struct native_sandbox *sb); /* they fail, from the loop */

/* report.c */
int native_held(struct sandbox *base, backend_held_fn *done, void *arg, struct err *err);
int native_usage(struct sandbox *base, backend_usage_fn *done, void *arg, struct err *err);
int native_greediest(struct backend *b, backend_greedy_fn *done, void *arg, struct err *err);
int native_diff(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);
int native_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);
int native_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
