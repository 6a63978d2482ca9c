/* SPDX-License-Identifier: Apache-2.0 */

/* Calls seccomp(2) without touching anything else of the process. */

#include "inside/seccomp_install.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

int seccomp_install(const struct sock_filter *prog, unsigned short n)
{
    /* The kernel copies the program and does not write to it; its struct just lacks the const. */
    struct sock_fprog fprog = {.len = n, .filter = (struct sock_filter *)prog};

    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &fprog) < 0)
        return -errno;
    return 0;
}
