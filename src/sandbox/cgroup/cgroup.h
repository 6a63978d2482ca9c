/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Resource limits on both dialects: cgroup v2 where its controllers are, v1 (and the hybrid of
 * both) otherwise. Killing is always done in the v2 tree when there is one, also when all
 * controllers are on v1. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "inside/init_wire.h"

struct err;

enum cgroup_controller { CGROUP_CPU, CGROUP_MEMORY, CGROUP_PIDS, CGROUP_CONTROLLERS };

struct cgroup_host {
    enum init_cgroup_mode mode;
    int v2_fd;                     /* our own parent directory in the v2 tree, -1: none */
    int v1_fd[CGROUP_CONTROLLERS]; /* the same in each v1 hierarchy, -1: none */
    bool enforced[CGROUP_CONTROLLERS];
    char why[CGROUP_CONTROLLERS][120]; /* when not enforced: the reason */
    bool reuse; /* memory groups of v1 whose session has ended are kept for cgroup_spare_make() */
};

/* v1 counts what sockets of IPv4 and IPv6 hold beside all other memory, and limits it only when it
 * is told to: a quarter as much again. v2 counts it with the rest. */
#define CGROUP_SOCKET_BYTES_MIN (4ULL << 20)
static inline uint64_t cgroup_socket_bytes(uint64_t memory_bytes)
{
    uint64_t part = memory_bytes / 4;
    return part > CGROUP_SOCKET_BYTES_MIN ? part : CGROUP_SOCKET_BYTES_MIN;
}

struct cgroup_limits {
    uint64_t memory_bytes;
    uint32_t pids;
    uint32_t cpu_quota_us; /* per 100 ms; 0: none */
    bool spare; /* the groups of cgroup_spare_make() are there, with this CPU limit: use them */
};

/* The ids of PID 1, as the host sees them. */
struct cgroup_owner {
    uid_t uid;
    gid_t gid;
};

/* One session's groups. */
struct cgroup {
    int v2_fd;   /* session directory, PID 1 is born into it; -1: none */
    int leaf_fd; /* "cgroup.procs" of the leaf PID 1 then moves to (v2 controllers want leaves); -1:
                    none */
    int v1_fd[CGROUP_CONTROLLERS];    /* -1: none */
    int tasks_fd[CGROUP_CONTROLLERS]; /* opened for the child to enter */
};

/* Finds the hierarchies and makes `tag` in each. With nothing usable the mode is NONE and `why`
 * says so; that is not an error. */
int cgroup_host_init(struct cgroup_host *h, const char *tag, struct err *err);
void cgroup_host_done(struct cgroup_host *h);

/* Ends and removes every session group that an earlier run under the same tag left. */
int cgroup_host_purge(struct cgroup_host *h);
/* The tag's own directories, when empty. */
void cgroup_host_remove(struct cgroup_host *h, const char *tag);

/* Makes the group that PID 1 is born into, without limits. On failure nothing is left. */
int cgroup_create(const struct cgroup_host *h, const char *name, const struct cgroup_owner *owner,
                  struct cgroup *ret, struct err *err);
/* Makes the groups of v1, which PID 1 enters by itself, and sets the limits, each read back.
 * Delegates what PID 1 needs to the owner. On failure the caller closes and removes the group. */
int cgroup_limit(const struct cgroup_host *h, const char *name, const struct cgroup_limits *limits,
                 const struct cgroup_owner *owner, struct cgroup *g, struct err *err);

/* Changes the limits of a session that runs: all of them, or none. Memory is never set below what
 * the session uses and the kernel cannot take back from it: that is ERR_STATE, and says how much
 * there is. Waits while the kernel takes memory back. */
int cgroup_change(const struct cgroup_host *h, const char *name, const struct cgroup_limits *limits,
                  struct err *err);

/* The groups of v1 for one session to come, made ahead: with many sessions the kernel takes long
 * for them, and walks over all groups when a CPU limit is set. v1 can rename groups, v2 cannot. */
int cgroup_spare_make(const struct cgroup_host *h, uint32_t cpu_quota_us);
void cgroup_spare_remove(const struct cgroup_host *h);

void cgroup_close(struct cgroup *g);                            /* descriptors only */
int cgroup_kill(const struct cgroup_host *h, const char *name); /* everything in it, at once */
/* Stops every process in it where it stands, or lets them go on; v2, also beside controllers on v1.
 * -EOPNOTSUPP: there is no v2 tree. Killing works all the same. */
int cgroup_freeze(const struct cgroup_host *h, const char *name, bool frozen);
/* Removes the directories, or keeps one for the next session; every process must be gone. */
int cgroup_remove(const struct cgroup_host *h, const char *name);

/* What the kernel says now; 0 where it does not say. */
struct cgroup_readback {
    uint64_t memory_max, memory_now, memory_peak;
    uint64_t socket_max; /* 0 on v2, where it is part of memory_max */
    uint64_t pids_max, pids_now;
    uint64_t cpu_quota_us, cpu_period_us;
};
void cgroup_read(const struct cgroup_host *h, const char *name, struct cgroup_readback *ret);
/* Processor time, memory and processes, with their limits, as far as the kernel tells. */
struct inside_usage;
void cgroup_usage(const struct cgroup_host *h, const char *name, struct inside_usage *ret);
