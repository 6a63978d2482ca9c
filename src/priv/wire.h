/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd may ask of box-priv, over one SOCK_SEQPACKET socket: fixed structures, a table of
 * requests, each allowed only in the states the table names. box-priv treats boxd as untrusted: a
 * request can fail, it cannot widen the bounds that were fixed on the command line before the first
 * byte was read.
 *
 * box-priv outlives boxd: when the connection ends without a BYE it keeps the sandboxes and waits
 * for the next boxd at PRIV_SOCKET in the state directory. The two may then be of different
 * versions: the type of BYE, the beginning of HELLO and that of its answer never change. */

#include <stdint.h>

#include "base/err.h"
#include "inside/usage.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/net/net.h"
#include "sandbox/plan/plan.h"

#define PRIV_WIRE_VERSION 5U
#define PRIV_SOCKET "priv.sock"
#define PRIV_SESSIONS_MAX 8192U
#define PRIV_FDS_MAX 4U

enum priv_type {
    PRIV_HELLO = 1,
    PRIV_CREATE,   /* a plan; answered when PID 1 runs, with its pidfd and its control socket; and
                      with a network, the resolver's sockets inside: UDP, TCP */
    PRIV_DESTROY,  /* answered when nothing is left; also of storage that was kept, and nothing else
                    */
    PRIV_INSPECT,  /* what the kernel says about a sandbox */
    PRIV_PROBE,    /* what this host can do, found out by doing */
    PRIV_BYE,      /* not answered: every sandbox ends, and box-priv too */
    PRIV_LIST,     /* answered with a sealed memfd: struct priv_item of every sandbox */
    PRIV_ADOPT,    /* answered like PRIV_CREATE, for a sandbox that is there */
    PRIV_DEADLINE, /* not answered */
    PRIV_SWEEP,    /* removes what lies about and belongs to no sandbox */
    PRIV_JOB,      /* a job of box-fetch; answered when it runs, with its pidfd, its standard input
                      and its standard output */
    PRIV_HELD,     /* what a sandbox keeps on disks */
    PRIV_PLACE,    /* a directory where a client of boxd works; see struct priv_place */
    PRIV_BIND,     /* a host directory for a container; answered with what it became (O_PATH) */
    PRIV_UNBIND,   /* those of one container; not answered */
    PRIV_JOB_AS,   /* a job that may run as one user only */
    PRIV_COPY,     /* the same for a job that copies from another directory */
    PRIV_QUOTA,    /* the limit that the kernel enforces on a sandbox's host directory */
    PRIV_STOP,     /* as PRIV_DESTROY, but storage that is to be kept (PLAN_DURABLE) stays */
    PRIV_KEPT,     /* what storage that is kept takes of the disk; answered as PRIV_HELD */
    PRIV_PAUSE,    /* freezes every process of a sandbox */
    PRIV_UNPAUSE,  /* lets them go on */
    PRIV_GREEDY,   /* which sandbox makes the kernel hold most outside of all memory limits */
    PRIV_UPDATE,   /* other limits for a sandbox that runs; answered when they are in force */
    PRIV_DIFF,   /* what a sandbox has changed of its image; answered with a descriptor: records of
                    'A', 'C' or 'D' (added, changed, deleted), a path and NUL */
    PRIV_LISTEN, /* answered with listening sockets of the sandbox's loopback: IPv4, IPv6 if any */
    PRIV_USAGE,  /* what a sandbox uses: processor time, memory, processes, disk, network */
    PRIV_TYPE_MAX,
};

struct priv_head {
    uint32_t type;
    uint32_t id; /* chosen by boxd, echoed */
};

/* Answered with a sealed memfd: the allow-list in its order, as NUL-terminated strings. */
struct priv_hello {
    struct priv_head head;
    uint32_t version;
    uint32_t uid, gid; /* that boxd will have; refused unless box-priv was started for them */
};

struct priv_create {
    struct priv_head head;
    struct plan plan; /* only plan_wire_size() bytes of it travel */
};

struct priv_name {
    struct priv_head head;
    char name[PLAN_NAME_LEN + 1];
};

struct priv_update {
    struct priv_name of;
    struct cgroup_limits limits; /* as plans have them: PID 1 is not counted */
};

struct priv_listen {
    struct priv_name of;
    uint32_t port; /* 1 to 65535 */
};

#define PRIV_JOB_SECONDS_MAX 120U

struct priv_job {
    struct priv_head head;
    uint32_t root;   /* place in the allow-list */
    uint32_t create; /* make what is missing of the path */
    uint32_t seconds;
    char path[4096]; /* below the root; clean, no slash in front */
};

struct priv_job_as {
    struct priv_job job;
    uint32_t bound; /* it runs as `uid` or not at all */
    uint32_t uid;
};

#define PRIV_PLACE_PATH_MAX 2048U
#define PRIV_NO_ROOT UINT32_MAX

/* Carries a descriptor: boxd's connection to the client that works there. Without privilege there
 * is none, and the path is absolute. */
struct priv_place {
    struct priv_head head;
    char path[PRIV_PLACE_PATH_MAX]; /* clean, below the client's working directory; "": only
                                       that directory is to be told */
};

#define PRIV_BINDS "binds"
/* A directory in the tmpfs, and a file below it: an engine that does not see the tmpfs cannot make
 * what is missing there, as Podman would. */
#define PRIV_BINDS_INSIDE PRIV_BINDS "/in"
#define PRIV_BINDS_MAX 512U /* of one container */

enum priv_bind_flags {
    PRIV_BIND_RDONLY = 1U << 0,
    PRIV_BIND_DIR = 1U << 1,    /* anything but a directory is an error */
    PRIV_BIND_GVISOR = 1U << 2, /* root makes the files of the container's user */
    PRIV_BIND_LOOK = 1U << 3,   /* only tell whether it is there; nothing is mounted */
    PRIV_BIND_FLAGS = (1U << 4) - 1U,
};

struct priv_bind {
    struct priv_head head;
    char name[PLAN_NAME_LEN + 1]; /* of all binds of one container */
    uint32_t index;
    uint32_t root; /* place in the allow-list */
    uint32_t flags;
    uint32_t uid;    /* who its owner is to the container, user and group: root or a private id */
    char path[4096]; /* below the root; clean, no slash in front */
};

struct priv_copy {
    struct priv_job_as as;
    uint32_t source_root, manifest_root; /* places in the allow-list */
    char source[4096];                   /* a directory; as job.path */
    char manifest[4096];                 /* a file */
};

/* Until when a sandbox may live while no boxd is there. */
struct priv_deadline {
    struct priv_head head;
    char name[PLAN_NAME_LEN + 1];
    uint64_t boot_ns; /* CLOCK_BOOTTIME; 0: as long as any */
};

struct priv_item {
    char name[PLAN_NAME_LEN + 1];
    uint32_t uid_index;
};

struct priv_host {
    uint32_t version;
    uint32_t rootful;
    uint32_t host_uid;    /* not rootful: the id of all sessions, as the host sees it */
    uint32_t init_uid;    /* the same of their PID 1; host_uid where there is no second id */
    uint32_t cgroup_mode; /* enum init_cgroup_mode */
    uint32_t enforced[CGROUP_CONTROLLERS];
    char why[CGROUP_CONTROLLERS][120];
    uint32_t landlock_abi;
    uint32_t gvisor; /* it was given runsc and box-guest */
    uint32_t engine; /* it was given the socket of an engine */
};

/* Namespaces in the order of the array. */
enum priv_ns {
    PRIV_NS_USER,
    PRIV_NS_MNT,
    PRIV_NS_PID,
    PRIV_NS_NET,
    PRIV_NS_IPC,
    PRIV_NS_UTS,
    PRIV_NS_CGROUP,
    PRIV_NS_TIME,
    PRIV_NS_MAX,
};

struct priv_inspect {
    struct cgroup_readback cgroup;
    uint32_t pid; /* of PID 1, on the host */
    uint32_t host_uid, payload_uid;
    uint32_t own_view; /* the image is seen through a file system of the session's own */
    uint64_t ns[PRIV_NS_MAX], host_ns[PRIV_NS_MAX];
    uint64_t disk_total, disk_used, inodes_total, inodes_used; /* 0 without a quota */
    char uid_map[256];
    char status[2048]; /* /proc/PID/status of PID 1 */
};

struct priv_held {
    uint64_t bytes, files; /* without a name; neither in memory nor in an image of its own */
    uint64_t stored_bytes, stored_files; /* blocks in its storage, where that is no image */
    uint32_t idle;                       /* nothing runs: nothing is held, storage not counted */
    uint32_t incomplete;                 /* there was more than we can look at */
    uint64_t kernel_bytes; /* limit that the kernel enforces on its host directory; 0: none */
};

#define PRIV_DIFF_ENTRIES_MAX 10000U
#define PRIV_DIFF_BYTES_MAX (1U << 20)

struct priv_diff {
    uint32_t entries;
    uint32_t truncated; /* there are more */
};

/* Memory that the kernel holds for a sandbox and charges to no cgroup. */
struct priv_greedy {
    char name[PLAN_NAME_LEN + 1]; /* "": nothing runs in any sandbox */
    uint32_t incomplete;          /* its descriptors took too long to count */
    uint64_t netlink_bytes;       /* answers that wait in its netlink sockets */
    uint64_t lock_bytes;          /* record locks of its processes */
};

/* How the kernel limits a directory. */
enum fsquota_kind { FSQUOTA_NONE, FSQUOTA_PROJECT, FSQUOTA_SUBVOLUME, FSQUOTA_KIND_MAX };

struct priv_limit {
    uint32_t kind; /* enum fsquota_kind */
    uint64_t id;
    uint64_t max_bytes, max_inodes; /* 0: no limit */
    uint64_t bytes, inodes;         /* as the kernel counts */
    char why[200];                  /* there is none */
};

struct priv_probe {
    struct {
        uint32_t ok;
        char why[200];
    } quota, network, idmap;
};

struct priv_created {
    uint32_t network;   /* enum net_kind */
    uint32_t uid_index; /* as in the plan */
    /* What this first session with a network made us change on the host. */
    uint32_t forwarding_enabled, foreign_rules_added;
    uint32_t paused; /* ADOPT: it was frozen, and goes on now */
};

struct priv_placed {
    uint32_t uid;                   /* whose it is */
    uint32_t root;                  /* its place in the allow-list, or PRIV_NO_ROOT */
    char path[PRIV_PLACE_PATH_MAX]; /* absolute */
};

struct priv_reply {
    struct priv_head head;
    int32_t result; /* 0 or a negative errno; -EBUSY: another boxd is connected */
    struct err err;
    union {
        uint32_t n_items; /* LIST */
        struct priv_created created;
        struct priv_host host;
        struct priv_inspect inspect;
        struct priv_probe probe;
        struct priv_held held;
        struct priv_greedy greedy;
        struct priv_placed placed;
        struct priv_limit limit;
        struct priv_diff diff;
        struct inside_usage usage;
    };
};
/* The size of an answer is part of what both sides of an upgrade agree on. */
_Static_assert(sizeof(struct priv_placed) <= sizeof(struct priv_inspect), "answers have grown");
