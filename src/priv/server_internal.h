/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of box-priv's server share: its state, sandboxes and handlers. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "loop/loop.h"
#include "priv/bind.h"
#include "priv/job.h"
#include "priv/server.h"
#include "priv/wire.h"
#include "sandbox/launch/launch.h"
#include "sandbox/quota/fsquota.h"

struct priv;

struct priv_quota {
    struct fsquota of; /* FSQUOTA_NONE: the kernel limits nothing */
    int fd;            /* owned; the host directory, in a mount of our own; -1: see `of` */
    int above_fd;      /* owned; of a subvolume: the directory that holds it; else -1 */
    dev_t dev;
    ino_t ino;
    uid_t uid;
    uint64_t bytes, inodes; /* what the session asked for; 0: no limit */
    int pidfd, result_fd;   /* owned; of the child that looks at its files, -1: none does */
    struct loop_io io;
    char why[200]; /* of FSQUOTA_NONE; "": there is nothing to limit */
};

struct priv_session {
    struct priv *priv; /* borrowed */
    struct launch launch;
    uint64_t deadline_ns; /* CLOCK_BOOTTIME, while nobody is connected; 0: none of its own */
    uint32_t create_id;   /* who waits for the start, 0: nobody (any more) */
    bool started;         /* it has come to run */
    uint32_t destroy_id;  /* who waits for the end, 0: nobody */
    struct err why;       /* the child's error, told when it is gone */
    struct loop_io status_io, pid_io;
    int remover_fd; /* child that removes the files, -1: none */
    struct loop_io remover_io;
    struct loop_timer patience;
    int held_fd; /* owned; what a child found, 0: none looks */
    struct loop_io held_io;
    uint32_t held_id; /* who waits for it, 0: nobody */
    struct priv_quota quota;
};

enum priv_state { PRIV_NEW, PRIV_SERVING, PRIV_WAITING, PRIV_ENDING, PRIV_STATE_MAX };

struct priv {
    struct loop *loop;
    struct launch_host *host;
    struct priv_serve_options options;
    int sock; /* owned; -1: no boxd is connected */
    enum priv_state state;
    struct loop_io io;
    int listen_fd; /* owned; for the next boxd, -1: there will be none */
    struct loop_io listen_io;
    uint64_t waiting_ns;    /* WAITING: since when, CLOCK_BOOTTIME */
    struct loop_timer wait; /* WAITING: the next look at the deadlines */
    struct loop_signal signals;
    struct loop_io net_io;   /* the host's addresses change */
    struct loop_timer sweep; /* runs while leases of networks are to be taken back */
    struct priv_session *sessions[PRIV_SESSIONS_MAX]; /* owned, dense */
    size_t n_sessions;
    struct priv_jobs jobs;
    int request_fd; /* owned; what came with the request that is being served, -1: nothing */
    int diag_fd;    /* owned; for peer_identify(), -1: not needed yet */
    struct {
        char path[PRIV_PLACE_PATH_MAX];
    } places[LAUNCH_PLACES_MAX]; /* of the roots behind those of the start */
    struct priv_binds binds;
};

/* server.c */
void priv_move(struct priv *p, enum priv_state to);
void priv_answer(struct priv *p, struct priv_reply *reply, const int *fds, size_t n_fds);
struct priv_session *priv_by_request(struct priv *p, const void *data, size_t len, struct err *err);
void priv_end_all(struct priv *p);
void priv_started(struct priv_session *s); /* nothing is left to wait for: tells who asked */
/* Reads one request; false when there is none just now, or nobody is connected any more. */
bool priv_read_request(struct priv *p);
void priv_on_readable(struct loop_io *io, uint32_t events);

/* peer.c: boxds come and go. */
int priv_listen(struct priv *p, struct err *err);
void priv_unlisten(struct priv *p);
void priv_peer_gone(struct priv *p); /* no BYE came before */

/* held.c */
int priv_on_held(struct priv *p, const void *data, size_t len, struct err *err);
void priv_held_stop(struct priv_session *s); /* whoever waits is told that nothing is known */

/* quota.c */
void priv_quota_sweep(const struct launch_host *h); /* limits that an earlier run has left */
void priv_quota_start(struct priv_session *s, const struct plan *plan);
bool priv_quota_busy(const struct priv_session *s); /* ends with priv_started() */
void priv_quota_end(struct priv_session *s);
/* Whether the kernel enforces it now; else `why`. */
bool priv_quota_holds(const struct priv_session *s, struct fsquota_use *ret, struct err *why);
int priv_on_quota(struct priv *p, const void *data, size_t len, struct err *err);

/* place.c */
int priv_on_place(struct priv *p, const void *data, size_t len, struct err *err);

/* inspect.c */
int priv_on_inspect(struct priv *p, const void *data, size_t len, struct err *err);
int priv_on_probe(struct priv *p, const void *data, size_t len, struct err *err);
