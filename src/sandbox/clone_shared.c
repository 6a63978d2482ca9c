/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <signal.h>

#include "sandbox/clone.h"

/* Apart from clone.c, which box-init has too: this one needs the C library's clone(). */
pid_t clone_shared(uint64_t flags, int (*fn)(void *arg), void *arg,
                   char stack[static CLONE_SHARED_STACK])
{
    int pid =
        clone(fn, stack + CLONE_SHARED_STACK, (int)flags | CLONE_VM | CLONE_FILES | SIGCHLD, arg);
    return pid < 0 ? -errno : pid;
}
