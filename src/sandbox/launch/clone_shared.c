/* SPDX-License-Identifier: Apache-2.0 */

/* Clones a process that shares memory with its parent and has a stack of its own. */

#include <errno.h>
#include <sched.h>
#include <signal.h>

#include "inside/clone.h"

/* Apart from clone.c, which box-init has too: this one needs the C library's clone(). */
pid_t clone_shared(uint64_t flags, int (*fn)(void *arg), void *arg, char *stack_end, int *ret_pidfd)
{
    int pidfd = -1;
    if (ret_pidfd != NULL)
        flags |= CLONE_PIDFD;
    int pid = clone(fn, stack_end, (int)flags | CLONE_VM | CLONE_FILES | SIGCHLD, arg, &pidfd);
    if (pid < 0)
        return -errno;
    if (ret_pidfd != NULL)
        *ret_pidfd = pidfd;
    return pid;
}
