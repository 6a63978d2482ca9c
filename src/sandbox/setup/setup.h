/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The other side of clone: from a fresh set of namespaces to box-init, by the plan. */

#include <stdbool.h>
#include <stdint.h>

#include "sandbox/plan/plan.h"

/* How many descriptors of which kind come with the second message, in this order: "tasks" files of
 * v1 groups to enter, "cgroup.procs" of the v2 leaf for PID 1, directory of the v1 memory group. */
#define SETUP_GROUPS_MAX 5
struct setup_groups {
    uint8_t v1, leaf, memcg;
};

/* Everything the child needs, prepared by the parent. Descriptors are borrowed; -1 means none. */
struct setup {
    const struct plan *plan;      /* checked */
    int source_fds[PLAN_OPS_MAX]; /* detached mounts, one per BIND; for OVERLAY the private layer */
    int go_fd; /* one byte arrives when the ids are mapped and the network is there */
    /* One byte when the child has a table of descriptors of its own (it is cloned with
     * CLONE_FILES); then struct err on failure; closed by execve otherwise. */
    int status_fd;
    int parent_fds[2];  /* the parent's ends of these two, which the child must not hold */
    unsigned fds_end;   /* above every descriptor named here: the child copies no others */
    int control_fds[2]; /* the pair between PID 1 and boxd */
    int seccomp_fd, cgroup_fd, init_exe_fd;
    int runsc_fd;    /* with PLAN_GVISOR: the program, as a detached mount */
    int parent_fd;   /* pidfd of box-priv */
    bool own_view;   /* the image can be seen through an overlay */
    bool lo_up;      /* the network namespace is a prepared one */
    bool switch_ids; /* false: one id for everything (rootless) */
    int cgroup_mode; /* enum init_cgroup_mode */
};

_Noreturn void setup_child(const struct setup *s);
