/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The privileged helper: serves one boxd at a time, and keeps the sandboxes from one to the next.
 *
 *   NEW ──hello──► SERVING ──connection ends──► WAITING ──connect──► NEW
 *    └───────────────┴─────────────┴──bye, SIGTERM, nothing left──► ENDING       */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "loop/loop.h"
#include "priv/wire.h"
#include "sandbox/launch/launch.h"

struct priv_serve_options {
    int sock; /* connected to the boxd that started us; taken */
    /* How long sandboxes without a deadline of their own are kept for the next boxd; 0: nothing is
     * kept, everything ends with the connection. */
    uint64_t linger_sec;
    const char *const *roots; /* the allow-list as it was given; borrowed */
    size_t n_roots;
    const char *state;  /* path of the state directory; borrowed */
    const char *engine; /* path of an engine's socket; borrowed; NULL: none */
    bool places;        /* directories of callers may join it, see place.c */
};

struct priv;

#define PRIV_BUCKETS 1024U
#define PRIV_JOBS_MAX 8U /* at a time; boxd has one */

struct fsquota {
    enum fsquota_kind kind;
    uint64_t id; /* of the project, or of the subvolume */
};

struct fsquota_use {
    uint64_t max_bytes, max_inodes; /* 0: no limit */
    uint64_t bytes, inodes;
};

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
    size_t at;         /* in `sessions` of that */
    LIST_ENTRY(priv_session) same_name, same_range;
    struct launch launch;
    uint64_t deadline_ns;     /* CLOCK_BOOTTIME, while no boxd is connected; 0: none of its own */
    uint32_t create_id;       /* the request that waits for the start, 0: none (any more) */
    bool started;             /* it has come to run */
    bool paused;              /* its processes are frozen */
    struct priv_head destroy; /* the request that waits for the end, id 0: none */
    struct err why;           /* the child's error, told when it is gone */
    struct loop_io status_io, pid_io;
    int remover_fd; /* child that removes the files, -1: none */
    struct loop_io remover_io;
    struct loop_timer patience;
    int held_fd; /* owned; what a child found, 0: none looks */
    struct loop_io held_io;
    uint32_t held_id; /* the request that waits for it, 0: none */
    struct {
        int fd; /* owned; how a child fares that sets limits, 0: none does */
        struct loop_io io;
        uint32_t id; /* request that waits for it, 0: none */
    } update;
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
    struct loop_io net_io; /* the host's addresses change */
    struct loop_io etc_io; /* the host's /etc changes */
    struct loop_timer etc_timer;
    size_t etc_left_out;     /* as it was told */
    struct loop_timer sweep; /* runs while leases of networks are to be taken back */
    struct priv_session *sessions[PRIV_SESSIONS_MAX]; /* owned, dense */
    size_t n_sessions;
    /* The same by hash of their names and by id range. */
    LIST_HEAD(, priv_session) by_name[PRIV_BUCKETS], by_range[PRIV_BUCKETS];
    int jobs[PRIV_JOBS_MAX]; /* owned; pidfds, -1: none */
    int request_fd; /* owned; what came with the request that is being served, -1: nothing */
    int diag_fd;    /* owned; for peer_identify(), -1: not needed yet */
    struct {
        char path[PRIV_PLACE_PATH_MAX];
    } places[LAUNCH_PLACES_MAX]; /* of the roots behind those of the start */
    struct {
        int ns_fd; /* owned; mount namespace where binds are, -1: there are none */
        struct priv_map {
            uint32_t uid, gid, seen, flags; /* on disk, and to the container */
            int fd;                         /* owned; -1: none */
        } map; /* the last: a container's directories mostly share one */
    } binds;
    struct {
        int fd; /* owned; what a child found, 0: none looks */
        struct loop_io io;
        uint32_t id; /* request that waits for it, 0: none */
    } greedy, kept;
    struct {
        int fd;      /* owned; what a child found, 0: none looks */
        int text_fd; /* owned; where it lists the changes; 0: none looks */
        struct loop_io io;
        uint32_t id; /* request that waits for it, 0: none */
    } diff;
};

/* server.c */

/* Returns when it is over and everything is cleaned up. The host is borrowed. */
int priv_serve(struct loop *loop, struct launch_host *host,
               const struct priv_serve_options *options, struct err *err);

void priv_answer(struct priv *p, struct priv_reply *reply, const int *fds, size_t n_fds);
struct priv_session *priv_by_request(struct priv *p, const void *data, size_t len, struct err *err);
void priv_started(struct priv_session *s); /* nothing is left to wait for: answers the requester */

/* quota.c */
void priv_quota_sweep(const struct launch_host *h); /* limits that an earlier run has left */
void priv_quota_start(struct priv_session *s, const struct plan *plan);
void priv_quota_end(struct priv_session *s);
/* Whether the kernel enforces it now; else `why`. */
bool priv_quota_holds(const struct priv_session *s, struct fsquota_use *ret, struct err *why);
int priv_on_quota(struct priv *p, const void *data, size_t len, struct err *err);

/* job.c */
int priv_on_job(struct priv *p, const void *data, size_t len, struct err *err);
void priv_jobs_done(struct priv *p); /* kills them; children_reap() reaps them */

/* bind.c */
void priv_binds_init(
    struct priv *p); /* removes what an earlier box-priv left, if it can be reached */
void priv_binds_done(struct priv *p); /* removes them all */
int priv_on_bind(struct priv *p, const void *data, size_t len, struct err *err);
int priv_on_unbind(struct priv *p, const void *data, size_t len, struct err *err);

/* etc.c */
void priv_etc_start(struct priv *p); /* follows the host's /etc */
void priv_etc_stop(struct priv *p);
void priv_etc_refresh(struct priv *p); /* now, for a session that is about to be made */

/* place.c */
int priv_on_place(struct priv *p, const void *data, size_t len, struct err *err);

/* diff.c */
int priv_on_diff(struct priv *p, const void *data, size_t len, struct err *err);
void priv_diff_stop(struct priv *p); /* a request that waits is answered with an error */

/* inspect.c */
int priv_on_inspect(struct priv *p, const void *data, size_t len, struct err *err);
int priv_on_usage(struct priv *p, const void *data, size_t len, struct err *err);
int priv_on_probe(struct priv *p, const void *data, size_t len, struct err *err);
int priv_on_held(struct priv *p, const void *data, size_t len, struct err *err);
void priv_held_stop(struct priv_session *s); /* a request that waits is answered with an error */
/* Starts a child that looks around. In it *ret_result is where it writes what it found, and 0 is
 * returned; here *ret_fd is where we read that. */
pid_t priv_looker_start(int *ret_fd, int *ret_result, struct err *err);
/* In such a child. A process that waits for the end of one of box-priv's descriptors would wait for
 * the child: only these stay open. Each gets its new number; the first is PRIV_RESULT_FD. */
int priv_keep_only_child(int *const *fds, int n);
#define PRIV_RESULT_FD 3
int priv_on_update(struct priv *p, const void *data, size_t len, struct err *err);
void priv_update_stop(struct priv_session *s); /* a request that waits is answered with an error */
/* The same of storage that is kept; one at a time. */
int priv_on_kept(struct priv *p, const void *data, size_t len, struct err *err);
void priv_kept_stop(struct priv *p);
int priv_on_greediest(struct priv *p, const void *data, size_t len, struct err *err);
void priv_greediest_stop(struct priv *p); /* the same */
