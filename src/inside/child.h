/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A command's own process between clone and execve. It is the same code in box-init and in
 * box-guest: what differs between the two, and from kernel to kernel, is data in struct child. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inside/wire.h"

struct sock_filter;

/* How far a child came before execve: it writes, its supervisor reads after it has ended. Shared
 * memory that the program never sees, because execve drops the mapping. */
struct child_report {
    uint32_t stage; /* enum inside_stage */
    int32_t error;
};

struct child_stdio {
    int in, out, err; /* -1: /dev/null */
    int tty;          /* slave, -1: none */
};

/* Installed beside those that the supervisor has already; n 0: none. */
struct child_filter {
    const struct sock_filter *prog; /* borrowed */
    unsigned short n;
};
#define CHILD_FILTERS_MAX 2U

/* Namespaces that a child may have to enter, in this order: the user namespace gives the right to
 * enter the others. */
enum child_ns { CHILD_NS_USER, CHILD_NS_TIME, CHILD_NS_CGROUP, CHILD_NS_MAX };
extern const struct child_ns_kind {
    int flag;               /* CLONE_NEW* */
    const char *name, *own; /* "user"; its file in /proc/PID/ns */
} child_ns_kinds[CHILD_NS_MAX];

struct child {
    struct child_report *report; /* borrowed */

    /* What runs. Each descriptor is borrowed, and -1 where there is none. */
    uint32_t argc, envc;
    const char *strings; /* argc + envc + 1 of them: argv, environment, cwd */
    size_t strings_len;
    int strings_fd;   /* file that has the strings instead */
    int program;      /* file that is executed instead of argv[0] */
    bool script;      /* argv is one shell command string of any size */
    bool bash;        /* with script: for bash, or for sh where there is none */
    bool posture;     /* no program: the confined process prints what the kernel says of it */
    char *const *env; /* entries that those of the request replace by name; NULL: the request's
                       * environment is complete, and has each name once */
    size_t n_env;
    struct child_stdio io;

    /* Limits. */
    struct inside_rlimit mark; /* set first, so that the supervisor can find the process by it from
                                * then on; hard 0: none */
    int memory_group;          /* directory of a v1 memory group to enter */
    const struct inside_rlimit *rlimits;
    uint32_t n_rlimits;
    uint32_t absent; /* bits of resources that this kernel does not have, and refuses to set */

    /* Walls. */
    const int *namespaces; /* to enter: CHILD_NS_MAX descriptors, or a negative errno that says why
                            * there is none; NULL: the supervisor is in all of them already */
    bool switch_ids;       /* to these; needs capabilities */
    uid_t uid;
    gid_t gid;
    bool drop_caps; /* false: the supervisor has none, which is checked */
    int landlock;   /* ruleset, -1: none, or in force already */
    struct child_filter filters[CHILD_FILTERS_MAX];
};

/* Puts up the walls and executes the program. Ends the process when a single step fails, with the
 * step in the report. */
_Noreturn void child_run(const struct child *c);

/* Enters those that are there, and then has no capability in them. 0 or a negative errno. */
int child_enter(const int namespaces[CHILD_NS_MAX]);
