/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parent's side of a sandbox: from a checked plan to a running PID 1, and from there to
 * nothing. This is what box-priv does with privilege; nothing here parses anything. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sandbox/cgroup/cgroup.h"
#include "sandbox/launch/launch_net.h"
#include "sandbox/launch/prewarm.h"
#include "sandbox/net/slirp.h"
#include "sandbox/plan/plan.h"

struct err;
struct hostetc;
struct stat;

#define LAUNCH_ROOTS_MAX 64
#define LAUNCH_PLACES_MAX 32
#define LAUNCH_SPARES_MAX 16U
#define LAUNCH_STALE_MAX 64U
/* What lives as long as its sandbox has a number from here on. The children of later launches copy
 * descriptors up to the highest they use, and PID 1 keeps a table of that size. */
#define LAUNCH_LASTING_FDS 512

/* Fixed at start, before any request was read. Descriptors are owned. */
struct launch_host {
    bool rootful;     /* false: one id for everything, whatever the host delegates */
    uid_t host_uid;   /* not rootful: the id of all sessions, as the host sees it */
    uid_t init_uid;   /* the same for PID 1 of all sessions; host_uid where there is no second */
    uid_t daemon_uid; /* owns the state directory */
    gid_t daemon_gid;
    int state_fd, sessions_fd, trash_fd;
    int kept_fd;         /* storage of PLAN_DURABLE, which outlives every process of ours */
    unsigned n_spares;   /* empty storage directories kept in the trash for the next sessions */
    struct hostetc *etc; /* owned; what sessions have as their /etc */
    /* Allow-list: the outer bound of every host mount. What callers have as their own places comes
     * behind what was fixed at start, see priv/place.c. */
    int root_fds[LAUNCH_ROOTS_MAX + LAUNCH_PLACES_MAX];
    const char *const
        *root_paths; /* of those of the start, n_named of them; borrowed; NULL: not known */
    size_t n_named;
    size_t n_roots;
    ino_t mnt_ns; /* of the process that started us; our own is a copy */
    int outer_fd; /* mount namespace that these were opened in; -1: our own */
    int seccomp_fd, init_exe_fd;
    int runsc_fd, guest_fd; /* programs of runsc and box-guest; -1: no sandbox is gVisor's */
    int bare_fd;            /* mount namespace of setup/mount.h; -1: there is none */
    bool own_view;          /* nothing is mounted below the host image's directories */
    int fetch_exe_fd;       /* box-fetch; -1: there is none */
    int self_fd;            /* our own pidfd */
    struct prewarm ahead;
    struct cgroup_host cgroups;
    char stale[LAUNCH_STALE_MAX][PLAN_NAME_LEN + 1]; /* whose groups could not be removed yet */
    unsigned n_stale;
    char tag[16]; /* names our cgroups and network objects */
    struct launch_net net;
};

enum launch_state {
    LAUNCH_STARTING, /* the child is building its sandbox */
    LAUNCH_LIVE,
    LAUNCH_DYING, /* killed, PID 1 not reaped yet */
    LAUNCH_STATE_MAX,
};

struct launch {
    enum launch_state state;
    char name[PLAN_NAME_LEN + 1];
    uint32_t uid_index;
    pid_t pid;
    int pidfd;      /* owned */
    int control_fd; /* owned; boxd's end of the pair to PID 1: it has a duplicate, as will the next
                     */
    int disk_fd;    /* owned; the mounted image of a session with a quota, -1: none */
    int workspace_fd; /* owned (O_PATH); host directory that the quota is for, -1: none */
    int status_fd; /* owned; readable when the child has something to say or has become box-init */
    struct cgroup cgroup; /* its descriptors, until the child has them */
    enum net_kind net;
    uint32_t net_index; /* lease, 0: none */
    struct slirp slirp;
    int dns_fds[2]; /* owned until boxd has them: the resolver's sockets, UDP and TCP */
    bool quota;
    bool keep; /* the storage stays when all else is removed */
    uint32_t flags;
    uint32_t cpu_quota_us;
};

/* Makes storage, groups and process. On success the child works on its own; wait for status_fd. On
 * failure nothing is left behind. */
int launch_start(struct launch_host *h, const struct plan *plan, struct launch *ret,
                 struct err *err);

/* Reads status_fd once it is readable: 0 when PID 1 runs, else the child's own error. */
int launch_finish_start(struct launch *l, struct err *err);

/* Kills every process; the pidfd becomes readable when PID 1 is gone. */
void launch_kill(const struct launch_host *h, struct launch *l);

/* After the pidfd is readable: reaps, removes groups, network and, unless it is to be kept,
 * storage. Returns the pidfd of a child that is still removing files, or -1 when nothing is left.
 */
int launch_cleanup(struct launch_host *h, struct launch *l);

/* 1 when the directory `fd` is the one of `want` or lies somewhere below it, by walking up; 0 when
 * not, or a negative errno. */
int launch_is_at_or_below(int fd, const struct stat *want);

/* Removes the storage that an earlier sandbox of that name has left to be kept. The name is free at
 * once; the files go in the background. -ENOENT: there is none. */
int launch_forget(struct launch_host *h, const char *name);

/* Opens the storage of a sandbox, alive or not; with `durable` that which is kept. */
int launch_open_storage(const struct launch_host *h, const char *name, bool durable);

/* Makes at most `n` of the missing spare storage directories. Called when no request waits. */
void launch_refill_storage(struct launch_host *h, unsigned n);

/* Removes what earlier removals had to leave: groups, and storage of no live session; of what is to
 * be kept only what is empty, since nothing is lost with it. */
typedef bool launch_live_fn(void *arg, const char *name);
void launch_sweep(struct launch_host *h, launch_live_fn *live, void *arg);

/* True when nothing is mounted below a directory of the host image. Looked at once, at the start.
 */
bool launch_image_is_plain(void);

/* A directory (O_PATH) as it is seen where boxd was started: only what belongs to that mount
 * namespace can be mounted by launch_clone_allowed(). */
int launch_open_outer(const struct launch_host *h, const char *path);
/* A descriptor of that root, borrowed, if its name still means what was opened. */
int launch_allowed_root(const struct launch_host *h, uint32_t root, struct err *err);

/* Opens (O_PATH) `source` beneath a root of the allow-list: a regular file or a directory (with
 * `dir_only` only that) that has nothing to do with our state. */
int launch_open_allowed(const struct launch_host *h, uint32_t root, const char *source,
                        bool dir_only, struct err *err);

/* mount_clone() of what that opened. */
int launch_clone_allowed(const struct launch_host *h, int fd, int recursive);

/* Detached mounts for every BIND and OVERLAY of the plan, into fds[PLAN_OPS_MAX]. *ret_workspace is
 * the host directory (O_PATH) that the session's quota is for; -1: there is none. */
int launch_sources(struct launch_host *h, const struct plan *plan, int storage_fd, int *fds,
                   int *ret_workspace, struct err *err);
