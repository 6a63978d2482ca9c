/* SPDX-License-Identifier: Apache-2.0 */

/* Calls clone3(2), with a pidfd and a cgroup where asked for, or clone(2). */

#include "inside/clone.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

pid_t clone_process(uint64_t flags, int cgroup_fd, int *ret_pidfd)
{
    int pidfd = -1;
    struct clone_args args;
    memset(&args, 0, sizeof(args));
    args.flags = flags;
    args.exit_signal = SIGCHLD;
    if (ret_pidfd != NULL) {
        args.flags |= CLONE_PIDFD;
        args.pidfd = (uint64_t)(uintptr_t)&pidfd;
    }
    if (cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup_fd;
    }
    long pid = syscall(SYS_clone3, &args, sizeof(args));
    if (pid < 0)
        return -errno;
    if (pid > 0 && ret_pidfd != NULL)
        *ret_pidfd = pidfd;
    return (pid_t)pid;
}

pid_t clone_plain(void)
{
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return pid < 0 ? -errno : (pid_t)pid;
}

void child_exit(int status)
{
    _exit(status);
}
