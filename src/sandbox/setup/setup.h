/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The other side of clone: from a fresh set of namespaces to box-init, by the plan. */

#include <stdbool.h>
#include <stdint.h>

#include "sandbox/plan/plan.h"

struct err;
struct mount_option;

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
    /* One byte arrives when the ids are mapped, with the session's /proc (a detached mount) where
     * the child begins in the bare namespace. */
    int go_fd;
    /* One byte when the child has a table of descriptors of its own (it is cloned with
     * CLONE_FILES); then struct err on failure; closed by execve otherwise. */
    int status_fd;
    int parent_fds[2];  /* the parent's ends of these two, which the child must not hold */
    unsigned fds_end;   /* above every descriptor named here: the child copies no others */
    int control_fds[2]; /* the pair between PID 1 and boxd */
    int seccomp_fd, cgroup_fd, init_exe_fd;
    int runsc_fd;    /* with PLAN_GVISOR: the program, as a detached mount */
    int parent_fd;   /* pidfd of box-priv */
    bool bare;       /* the child begins in the bare namespace, see setup/mount.h */
    int proc_fd;     /* set by the child: the /proc that came, or the host's */
    bool own_view;   /* the image can be seen through an overlay */
    bool lo_up;      /* the network namespace is a prepared one */
    bool switch_ids; /* false: one id for everything (rootless) */
    int cgroup_mode; /* enum init_cgroup_mode */
};

/* Where a new root is attached before it becomes the root: a directory that every host has and that
 * nothing needs any more by then, because the sources are descriptors already. */
#define SETUP_ROOT_PLACE "/usr"

_Noreturn void setup_child(struct setup *s);

/* The file system of a sandbox: builds the tree of a plan below a directory descriptor. Runs in the
 * child. (setup_tree.c) */

/* Executes the operations of the plan, in order, below root_fd (a mounted, empty tmpfs). */
int setup_tree_child(const struct setup *s, int root_fd, struct err *err);

/* A detached, writable /proc of our own, below which `most` user namespaces can be made. */
int setup_tree_proc_child(const struct setup *s, const struct mount_option *options, uint64_t most,
                          struct err *err);

/* The few devices that every sandbox has, copied from those below /dev into a directory. */
int setup_tree_devices(int dev_fd, struct err *err);

/* A directory of the root's own tmpfs as a mount of its own, with attributes of its own. Every
 * instance of a file system costs the kernel memory in every memory cgroup there is, so all places
 * that need memory share the root's. `dir` is a directory below the root. Returns the mount. */
int setup_tree_self_mount(int dir, uint64_t attrs, const char *what, struct err *err);
