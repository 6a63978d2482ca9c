/* SPDX-License-Identifier: Apache-2.0 */

/* Marks the processes of one program by a resource limit that they inherit and cannot change. */

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "base/str.h"
#include "inside/guest/guest.h"

/* The hard limit of a resource that no kernel enforces, neither Linux (since 2.4.30) nor gVisor.
 * Every process inherits it from its parent. No process may raise it, and our filter keeps
 * programs from lowering it. It is so large that programs take it for unlimited, unless the engine
 * has set a limit. */
#define BRAND_RESOURCE RLIMIT_RSS
#define BRAND_TOP (1ULL << 62)

static uint64_t top, serial; /* brands are below `top`, the last one by `serial` */

/* uname(2) of gVisor returns constants. Newer versions return 4.19.0-gvisor with the same date. */
#define GVISOR_RELEASE "4.4.0"
#define GVISOR_RELEASE_PART "gvisor"
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
    return uname(&name) == 0 && str_eq(name.version, GVISOR_VERSION) &&
           (str_eq(name.release, GVISOR_RELEASE) ||
            strstr(name.release, GVISOR_RELEASE_PART) != NULL);
}

uint64_t brand_new(void)
{
    struct rlimit limit;
    if (top == 0)
        top = getrlimit(BRAND_RESOURCE, &limit) == 0 && limit.rlim_max < BRAND_TOP ? limit.rlim_max
                                                                                   : BRAND_TOP;
    return top - ++serial;
}

uint64_t brand_of(pid_t pid)
{
    struct rlimit limit;
    if (prlimit(pid, BRAND_RESOURCE, NULL, &limit) < 0 || limit.rlim_max >= top ||
        limit.rlim_max < top - serial)
        return 0;
    return limit.rlim_max;
}

/* Calls of another architecture are none of its business: the filter that comes after it ends
 * those. */
static const struct sock_filter brand_program[] = {
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

const struct child_filter brand_filter = {brand_program, ARRAY_SIZE(brand_program)};

struct inside_rlimit brand_mark(uint64_t brand)
{
    return (struct inside_rlimit){.resource = BRAND_RESOURCE, .soft = brand, .hard = brand};
}
