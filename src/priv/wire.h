/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd may ask of box-priv, over one SOCK_SEQPACKET socket: fixed structures, a table of
 * requests, each allowed only in the states the table names. box-priv treats boxd as untrusted: a
 * request can fail, it cannot widen the bounds that were fixed on the command line before the first
 * byte was read. */

#include <stdint.h>

#include "sandbox/cgroup.h"
#include "sandbox/net.h"
#include "sandbox/plan.h"
#include "util/err.h"

#define PRIV_WIRE_VERSION 2U
#define PRIV_SESSIONS_MAX 8192U
#define PRIV_FDS_MAX 4U

enum priv_type {
    PRIV_HELLO = 1,
    PRIV_CREATE,  /* a plan; answered when PID 1 runs, with its pidfd and its control socket; and
                     with a network, the resolver's sockets inside: UDP, TCP */
    PRIV_DESTROY, /* answered when nothing is left */
    PRIV_INSPECT, /* what the kernel says about a sandbox */
    PRIV_PROBE,   /* what this host can do, found out by doing */
    PRIV_JOB,     /* a job of box-fetch; answered when it runs, with its pidfd, its standard input
                     and its standard output */
    PRIV_TYPE_MAX,
};

struct priv_head {
    uint32_t type;
    uint32_t id; /* chosen by boxd, echoed */
};

struct priv_hello {
    struct priv_head head;
    uint32_t version;
};

struct priv_create {
    struct priv_head head;
    struct plan plan; /* only plan_wire_size() bytes of it travel */
};

struct priv_name {
    struct priv_head head;
    char name[PLAN_NAME_LEN + 1];
};

#define PRIV_JOB_SECONDS_MAX 120U

struct priv_job {
    struct priv_head head;
    uint32_t root;   /* place in the allow-list */
    uint32_t create; /* make what is missing of the path */
    uint32_t seconds;
    char path[4096]; /* below the root; clean, no slash in front */
};

struct priv_host {
    uint32_t version;
    uint32_t rootful;
    uint32_t host_uid;    /* not rootful: the id of all sessions, as the host sees it */
    uint32_t cgroup_mode; /* enum init_cgroup_mode */
    uint32_t enforced[CGROUP_CONTROLLERS];
    char why[CGROUP_CONTROLLERS][120];
    uint32_t landlock_abi;
    uint32_t n_roots;
    uint32_t root_index[64]; /* allow-list entries that could be opened, by their place on the
                                command line */
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
    uint64_t ns[PRIV_NS_MAX], host_ns[PRIV_NS_MAX];
    uint64_t disk_total, disk_used, inodes_total, inodes_used; /* 0 without a quota */
    char uid_map[256];
    char status[2048]; /* /proc/PID/status of PID 1 */
};

struct priv_probe {
    struct {
        uint32_t ok;
        char why[200];
    } quota, network, idmap;
};

struct priv_created {
    uint32_t network; /* enum net_kind */
    /* What this first session with a network made us change on the host. */
    uint32_t forwarding_enabled, foreign_rules_added;
};

struct priv_reply {
    struct priv_head head;
    int32_t result; /* 0 or a negative errno */
    struct err err;
    union {
        struct priv_created created;
        struct priv_host host;
        struct priv_inspect inspect;
        struct priv_probe probe;
    };
};
