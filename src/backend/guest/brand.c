/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/guest/guest.h"
#include "sandbox/clone.h"
#include "sandbox/seccomp_install.h"
#include "util/str.h"

/* The hard limit of a resource that no kernel enforces, neither Linux (since 2.4.30) nor gVisor.
 * Every process has that of its parent. Nobody may raise it, and nobody below us may lower it, for
 * our filter. So large that whoever reads it takes it for none. */
#define BRAND_RESOURCE RLIMIT_RSS
#define BRAND_BASE (1ULL << 62)

/* The same for a decade, from the first release of gVisor on: its uname(2) is a constant. */
#define GVISOR_RELEASE "4.4.0"
#define GVISOR_VERSION "#1 SMP Sun Jan 10 15:06:54 PST 2016"

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_ARG(n, half)                                                                          \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) +                       \
                                           (n) * sizeof(uint64_t) + (half) * sizeof(uint32_t))
#define IF_EQ(value, then, otherwise)                                                              \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (then), (otherwise))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, (value))

bool guest_is_gvisor(void)
{
    struct utsname name;
    return uname(&name) == 0 && str_eq(name.release, GVISOR_RELEASE) &&
           str_eq(name.version, GVISOR_VERSION);
}

/* A child is asked: the first process of a container gets its orphans in any case, and is told that
 * it may. */
bool brand_needed(void)
{
    int status;
    pid_t pid = guest_clone();
    if (pid == 0)
        child_exit(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 ? 0 : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 1;
}

uint64_t brand_new(void)
{
    static uint64_t serial;
    return BRAND_BASE + ++serial;
}

uint64_t brand_of(pid_t pid)
{
    struct rlimit limit;
    if (prlimit(pid, BRAND_RESOURCE, NULL, &limit) < 0 || limit.rlim_max <= BRAND_BASE ||
        limit.rlim_max == RLIM_INFINITY)
        return 0;
    return limit.rlim_max;
}

/* Calls of another architecture are none of its business: the filter that comes after it ends
 * those. */
static const struct sock_filter brand_filter[] = {
    LOAD(nr),
    IF_EQ(SYS_setrlimit, 1, 0),
    IF_EQ(SYS_prlimit64, 2, 8),
    LOAD_ARG(0, 0),
    IF_EQ(BRAND_RESOURCE, 7, 6),
    LOAD_ARG(1, 0),
    IF_EQ(BRAND_RESOURCE, 0, 4),
    LOAD_ARG(2, 0), /* without new limits it only asks */
    IF_EQ(0, 0, 3),
    LOAD_ARG(2, 1),
    IF_EQ(0, 0, 1),
    ANSWER(SECCOMP_RET_ALLOW),
    ANSWER(SECCOMP_RET_ERRNO | EPERM),
};

/* gVisor lets the first process of a container be killed by the others, where Linux does not. What
 * comes here by accident or habit is refused as Linux would ignore it; who insists ends its own
 * session. */
static const struct sock_filter guard_filter[] = {
    LOAD(nr),
    IF_EQ(SYS_kill, 4, 0),
    IF_EQ(SYS_tkill, 3, 0),
    IF_EQ(SYS_tgkill, 2, 0),
    IF_EQ(SYS_rt_sigqueueinfo, 1, 0),
    IF_EQ(SYS_rt_tgsigqueueinfo, 0, 2),
    LOAD_ARG(0, 0),
    IF_EQ(1, 1, 0),
    ANSWER(SECCOMP_RET_ALLOW),
    ANSWER(SECCOMP_RET_ERRNO | EPERM),
};

int brand_guard(void)
{
    return seccomp_install(guard_filter, (unsigned short)ARRAY_SIZE(guard_filter));
}

int brand_take(uint64_t brand)
{
    const struct rlimit limit = {.rlim_cur = brand, .rlim_max = brand};
    if (setrlimit(BRAND_RESOURCE, &limit) < 0)
        return -errno;
    return seccomp_install(brand_filter, (unsigned short)ARRAY_SIZE(brand_filter));
}
