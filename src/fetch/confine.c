/* SPDX-License-Identifier: Apache-2.0 */

/* What a job may still do once it meets its input: read and write below one directory, use a
 * bounded amount of memory and time, and end. */

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "fetch/job.h"
#include "inside/caps.h"
#include "inside/landlock.h"
#include "inside/seccomp_install.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "the list of system calls was not looked at for this architecture"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

#define MEMORY_MAX (512UL << 20)
#define FILE_MAX (32UL << 20)
#define COPY_MAX                                                                                   \
    ((rlim_t)FETCH_ARTIFACTS_MAX) /* of one file of an artifact, which may be all of it */

static const struct {
    int resource;
    rlim_t value;
} limits[] = {
    {RLIMIT_CORE, 0},         {RLIMIT_CPU, FETCH_SECONDS_MAX},
    {RLIMIT_FSIZE, FILE_MAX}, {RLIMIT_NOFILE, 64},
    {RLIMIT_NPROC, 0},        {RLIMIT_MEMLOCK, 0},
    {RLIMIT_MSGQUEUE, 0},
#ifndef SANITIZED /* whose shadow alone is terabytes of address space */
    {RLIMIT_AS, MEMORY_MAX},
#endif
};

/* Files, memory, time and the end. What is not here answers ENOSYS, so that the C library goes
 * another way. Not here on purpose: everything that takes a path and is not stopped by Landlock
 * (chmod, chown, utime, xattrs, links), what could undo the alarm or block its signal, processes,
 * sockets, descriptors of others. */
static const int allowed[] = {
    SYS_read,        SYS_write,        SYS_readv,      SYS_writev,        SYS_pread64,
    SYS_close,       SYS_fstat,        SYS_lseek,      SYS_fcntl,         SYS_flock,
    SYS_openat,      SYS_openat2,      SYS_getdents64, SYS_mkdirat,       SYS_unlinkat,
    SYS_renameat,    SYS_renameat2,    SYS_fchmod,     SYS_faccessat,     SYS_statx,
    SYS_munmap,      SYS_mremap,       SYS_madvise,    SYS_brk,           SYS_futex,
    SYS_exit,        SYS_exit_group,   SYS_getrandom,  SYS_getpid,        SYS_gettid,
    SYS_tgkill,      SYS_rt_sigreturn, SYS_sysinfo,    SYS_clock_gettime, SYS_newfstatat,
#ifdef SANITIZED /* asks before the process ends */
    SYS_sigaltstack,
#endif
};

#define LOAD(field)                                                                                \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define JUMP(op, k, yes, no) BPF_JUMP(BPF_JMP | (op) | BPF_K, (uint32_t)(k), (yes), (no))

/* Memory yes, programs in it no. The low half of the third argument is what the kernel looks at. */
#define NO_EXEC(nr)                                                                                \
    JUMP(BPF_JEQ, nr, 0, 4), LOAD(args[2]), JUMP(BPF_JSET, PROT_EXEC, 0, 1),                       \
        RETURN(SECCOMP_RET_ERRNO | EACCES), RETURN(SECCOMP_RET_ALLOW)

static int install_filter(void)
{
    static const struct sock_filter head[] = {
        LOAD(arch), JUMP(BPF_JEQ, ARCH, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),   NO_EXEC(SYS_mmap),         NO_EXEC(SYS_mprotect),
    };
    struct sock_filter prog[ARRAY_SIZE(head) + 2 * ARRAY_SIZE(allowed) + 1];
    unsigned short n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(head); i++)
        prog[n++] = head[i];
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        prog[n++] = (struct sock_filter)JUMP(BPF_JEQ, allowed[i], 0, 1);
        prog[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    }
    prog[n++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | ENOSYS);
    return seccomp_install(prog, n);
}

/* An ordinary user has no capability and may not shrink the bounding set, which no_new_privs makes
 * meaningless. A process that has any must drop all. */
static int drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    int r = caps_drop_all();
    if (r != -EPERM)
        return r;
    if (syscall(SYS_capget, &header, data) < 0)
        return -errno;
    for (size_t i = 0; i < ARRAY_SIZE(data); i++)
        if (data[i].permitted != 0 || data[i].effective != 0 || data[i].inheritable != 0)
            return -EPERM;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

static int limit_resources(bool copies)
{
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        struct rlimit now, limit = {limits[i].value, limits[i].value};
        if (copies && limits[i].resource == RLIMIT_FSIZE)
            limit.rlim_cur = limit.rlim_max = COPY_MAX;
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &now) < 0)
            return -errno;
        if (limit.rlim_max > now.rlim_max)
            limit.rlim_cur = limit.rlim_max = now.rlim_max;
        if (setrlimit((__rlimit_resource_t)limits[i].resource, &limit) < 0)
            return -errno;
    }
    return 0;
}

static int enter_landlock(int dir_fd, const struct fetch_source *source)
{
    const struct landlock_path rules[] = {
        {.fd = dir_fd, .access = LANDLOCK_RW_NOEXEC},
        {.fd = source != NULL ? source->dir_fd : -1, .access = LANDLOCK_RO},
    };
    AUTO_CLOSE int ruleset =
        landlock_build(rules, source != NULL ? 2 : 1, LANDLOCK_NO_TCP | LANDLOCK_SCOPED);
    if (ruleset == -EOPNOTSUPP)
        return 0;
    return ruleset < 0 ? ruleset : landlock_restrict(ruleset);
}

int fetch_confine(int dir_fd, const struct fetch_source *source, struct err *err)
{
    (void)umask(022);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    int r = limit_resources(source != NULL);
    if (r < 0)
        return err_sys(err, -r, "limit the job");
    r = drop_capabilities();
    if (r < 0)
        return err_sys(err, -r, "give up capabilities");
    r = enter_landlock(dir_fd, source);
    if (r < 0)
        return err_sys(err, -r, "Landlock");
    r = install_filter();
    return r < 0 ? err_sys(err, -r, "system call filter") : 0;
}
