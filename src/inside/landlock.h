/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Landlock: the second wall behind the mount namespace. Raw system calls, no allocation; usable in
 * a static binary after clone. What the kernel cannot enforce is left out, from ABI 1 on: that is
 * allowed here, and only here, because namespaces and mounts already say the same.
 *
 * Rights add up along a path: what a rule on "/" grants, no rule below can take back. A class
 * without execute means something only where no directory above it is granted execute.
 *
 * Where to restrict: a domain per exec (the child restricts itself) confines box-init least, but
 * then LANDLOCK_SCOPED must not be given: an exec could not signal the background process of an
 * earlier one, nor reach its abstract socket, and users expect both. With a domain per session
 * (box-init restricts itself once, every command inherits) the scopes cost nothing. Either way the
 * pid and network namespaces already end at the session, and the daemon can signal everyone: a
 * scope binds the sender.
 */

#include <stdbool.h>
#include <stddef.h>

enum landlock_access {
    LANDLOCK_RO,        /* read files, list directories */
    LANDLOCK_RO_EXEC,   /* and execute: /usr */
    LANDLOCK_RW,        /* everything but making device nodes: the workspace, /tmp */
    LANDLOCK_RW_NOEXEC, /* the same without execute: /dev/shm */
    LANDLOCK_DEV,       /* read, write, ioctl: /dev */
    LANDLOCK_ACCESS_MAX,
};

struct landlock_path {
    const char *path; /* NULL: use fd */
    int fd;           /* O_PATH is enough; borrowed */
    enum landlock_access access;
    bool optional; /* a path that does not exist is skipped */
};

enum {
    /* No TCP bind or connect at all, loopback included (ABI 4). */
    LANDLOCK_NO_TCP = 1 << 0,
    /* Signals and abstract unix sockets end at the domain (ABI 6). For a domain that all processes
     * of a session share. */
    LANDLOCK_SCOPED = 1 << 1,
};

/* 0 when the kernel has no Landlock or it is switched off. */
int landlock_abi(void);

/* Makes a ruleset that denies everything Landlock knows about but what the rules grant. A file
 * instead of a directory is a valid rule. Returns an O_CLOEXEC descriptor, or a negative errno:
 * -EOPNOTSUPP when landlock_abi() is 0. */
int landlock_build(const struct landlock_path *rules, size_t n, unsigned flags);

/* Restricts the calling thread and what it starts from now on. Needs no_new_privs or CAP_SYS_ADMIN.
 * The ruleset may be used again and closed. */
int landlock_restrict(int ruleset_fd);
