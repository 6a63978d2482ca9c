/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The system call filter of a payload, and of boxd: an allow-list whose default is ENOSYS, so that
 * a C library falls back to an older call instead of failing, and a group of well-known denials
 * that answer EPERM, so that tools print a sane error. The policy is the table in seccomp_table.c.
 *
 * The filter is compiled once per profile by the daemon; PID 1 only installs the bytes (see
 * seccomp_install.h). The bytes depend on the profile and the architecture and on nothing else.
 */

#include <stddef.h>

struct buf;
struct err;
struct sock_filter;

enum seccomp_profile {
    SECCOMP_DEFAULT,
    SECCOMP_DEBUG,  /* also ptrace and process_vm_*: debuggers inside one session */
    SECCOMP_DAEMON, /* boxd itself: also openat2, by which it resolves paths */
    SECCOMP_INIT,   /* PID 1 of a session: also clone3, by which it starts commands. They inherit
                       it, and get a few instructions of their own that take clone3 away again:
                       the kernel takes as long to compile a filter as that is */
    SECCOMP_PROFILE_MAX,
};

/* *ret is malloc()ed, free it with free(); *n is at most 4096. Fails with ERR_UNSUPPORTED on an
 * architecture that the policy was not written for. */
int seccomp_compile(enum seccomp_profile profile, struct sock_filter **ret, size_t *n,
                    struct err *err);

/* The policy as container engines read it: a seccomp profile in the JSON of Docker, Podman and
 * their runtimes, for the architecture of this machine. Never wider than the table: what its
 * conditions cannot say exactly is cut into parts that they can. Only rows marked `inside` are:
 * "any number but 1" has 32 such parts, too many for a dozen calls, and box-guest puts the table
 * itself in front of every program. A call that is not allowed answers EPERM or ENOSYS, whichever
 * the runtime gives; the exact answers are those of seccomp_compile().
 */
int seccomp_json(enum seccomp_profile profile, struct buf *ret, struct err *err);
