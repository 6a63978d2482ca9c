/* SPDX-License-Identifier: Apache-2.0 */

/* B20: every number, once with zeros and once with arguments that are good for nothing. A line is
 * "nr name zero poison", each an errno, "success", "blocks", "exits" or a signal. Only numbers that
 * the filter denies are the same on every kernel. */

#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAST 600
#define POISON 0x4141414141414141UL /* no pointer, no descriptor, no pid, no signal, no length */

static const char *const names[LAST + 1] = {
#include "inside/attack/syscall_names.h"
};

struct attempt {
    long nr;
    unsigned long arg;
};

/* Calls that would end or double the child before it can report. */
static long do_attempt(const void *arg)
{
    const struct attempt *a = arg;
    pid_t self = getpid();
    int fds[2];
    long r;

    /* The low descriptors are named by zeros; give them nothing that could be hurt. */
    if (pipe2(fds, O_NONBLOCK) < 0)
        return -errno;
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(fds[0], fd);
    r = syscall(a->nr, a->arg, a->arg, a->arg, a->arg, a->arg, a->arg);
    if (r < 0)
        return -errno;
    if (syscall(SYS_getpid) != self)
        _exit(0); /* the copy that a fork made */
    (void)waitpid(-1, NULL, WNOHANG);
    return r;
}

/* vfork() in a function that returns would wreck the stack of its parent. */
static bool is_vfork(long nr)
{
#ifdef SYS_vfork
    return nr == SYS_vfork;
#else
    return false;
#endif
}

void probe_sweep(const struct probe_options *opt)
{
    char mode[16], zero[32];

    /* Without a filter this would be a way to find out what hurts. */
    probe_status("/proc/self/status", "Seccomp", mode, sizeof(mode));
    if (strcmp(mode, "2") != 0) {
        probe_report("B20", PROBE_FAIL, "no filter: not swept");
        return;
    }
    for (long nr = 0; nr <= LAST; nr++) {
        struct attempt a = {nr, 0};
        const char *name = names[nr] ? names[nr] : "-";
        if (is_vfork(nr)) {
            printf("%ld %s success success\n", nr, name);
            continue;
        }
        (void)snprintf(zero, sizeof(zero), "%s", probe_result_name(probe_forked(do_attempt, &a)));
        a.arg = POISON;
        printf("%ld %s %s %s\n", nr, name, zero, probe_result_name(probe_forked(do_attempt, &a)));
    }
}
