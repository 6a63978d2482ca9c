/* SPDX-License-Identifier: Apache-2.0 */

/* The little of a C library that box-init needs, under the names of the library's own headers.
 *
 * A library prepares for every program there is: it asks the processor what it can do (under a
 * hypervisor each question is a trap, and there are hundreds), sets up a heap, locales and threads,
 * and dirties a dozen pages doing so. PID 1 starts with every session and stays as long, so it
 * pays for what it uses only. What is not here does not link: whoever needs more adds it. Nothing
 * here is fast or complete; box-init handles short strings. */

#include <assert.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The names that the library's headers give to parameters are reserved for it, and a system call
 * has as many as it has. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,readability-function-size) */

#define SIGSET_BYTES 8 /* of the kernel's set */
#define LIBRARY_SIGNAL 32
#define ERRNO_MAX 4095UL

/* One thread, so one errno. */
int *__errno_location(void)
{
    static int value;
    return &value;
}

#if defined(__x86_64__)
static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}
#elif defined(__aarch64__)
static long kernel(long nr, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
#error "box-init has no start for this processor: build it with the C library (see meson.build)"
#endif

static long told(long r)
{
    if ((unsigned long)r < -ERRNO_MAX)
        return r;
    errno = (int)-r;
    return -1;
}

#define AS_LONG(x) ((long)(x))
#define CALL1(nr, a) told(kernel((nr), AS_LONG(a), 0, 0, 0, 0, 0))
#define CALL2(nr, a, b) told(kernel((nr), AS_LONG(a), AS_LONG(b), 0, 0, 0, 0))
#define CALL3(nr, a, b, c) told(kernel((nr), AS_LONG(a), AS_LONG(b), AS_LONG(c), 0, 0, 0))
#define CALL4(nr, a, b, c, d)                                                                      \
    told(kernel((nr), AS_LONG(a), AS_LONG(b), AS_LONG(c), AS_LONG(d), 0, 0))
#define CALL6(nr, a, b, c, d, e, f)                                                                \
    told(kernel((nr), AS_LONG(a), AS_LONG(b), AS_LONG(c), AS_LONG(d), AS_LONG(e), AS_LONG(f)))

/* System calls, in the order of the alphabet. Arguments that were not given are read all the same:
 * they are registers, and the kernel does not look at them. */

int chdir(const char *path)
{
    return (int)CALL1(SYS_chdir, path);
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    return (int)CALL2(SYS_clock_gettime, clock, ret);
}

int close(int fd)
{
    return (int)CALL1(SYS_close, fd);
}

int dup3(int from, int to, int flags)
{
    return (int)CALL3(SYS_dup3, from, to, flags);
}

int eventfd(unsigned count, int flags)
{
    return (int)CALL2(SYS_eventfd2, count, flags);
}

int execve(const char *path, char *const argv[], char *const envp[])
{
    return (int)CALL3(SYS_execve, path, argv, envp);
}

void _exit(int status)
{
    for (;;)
        (void)CALL1(SYS_exit_group, status);
}

int fcntl(int fd, int cmd, ...)
{
    va_list ap;
    va_start(ap, cmd);
    long arg = va_arg(ap, long);
    va_end(ap);
    return (int)CALL3(SYS_fcntl, fd, cmd, arg);
}

int fstat(int fd, struct stat *ret)
{
    return (int)CALL2(SYS_fstat, fd, ret);
}

int ftruncate(int fd, off_t len)
{
    return (int)CALL2(SYS_ftruncate, fd, len);
}

gid_t getegid(void)
{
    return (gid_t)kernel(SYS_getegid, 0, 0, 0, 0, 0, 0);
}

uid_t geteuid(void)
{
    return (uid_t)kernel(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

pid_t getpid(void)
{
    return (pid_t)kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

ssize_t getrandom(void *data, size_t len, unsigned flags)
{
    return CALL3(SYS_getrandom, data, len, flags);
}

int getrlimit(__rlimit_resource_t resource, struct rlimit *ret)
{
    return (int)CALL4(SYS_prlimit64, 0, resource, NULL, ret);
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    va_start(ap, request);
    long arg = va_arg(ap, long);
    va_end(ap);
    return (int)CALL3(SYS_ioctl, fd, request, arg);
}

int kill(pid_t pid, int signo)
{
    return (int)CALL2(SYS_kill, pid, signo);
}

off_t lseek(int fd, off_t offset, int whence)
{
    return CALL3(SYS_lseek, fd, offset, whence);
}

int memfd_create(const char *name, unsigned flags)
{
    return (int)CALL2(SYS_memfd_create, name, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return (int)CALL3(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int dirfd, const char *path, mode_t mode)
{
    return (int)CALL3(SYS_mkdirat, dirfd, path, mode);
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    return (void *)CALL6(SYS_mmap, addr, len, prot, flags, fd, offset);
}

int munmap(void *addr, size_t len)
{
    return (int)CALL2(SYS_munmap, addr, len);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    unsigned mode = va_arg(ap, unsigned);
    va_end(ap);
    return (int)CALL4(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    unsigned mode = va_arg(ap, unsigned);
    va_end(ap);
    return (int)CALL4(SYS_openat, dirfd, path, flags, mode);
}

int pipe2(int ends[2], int flags)
{
    return (int)CALL2(SYS_pipe2, ends, flags);
}

/* The kernel writes the time that is left into its argument; callers of ours want it unchanged. */
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
    struct timespec left;
    if (timeout != NULL)
        left = *timeout;
    return (int)CALL6(SYS_ppoll, fds, n, timeout != NULL ? &left : NULL, mask, SIGSET_BYTES, 0);
}

int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct timespec wait = {.tv_sec = timeout_ms / 1000,
                            .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    return ppoll(fds, n, timeout_ms < 0 ? NULL : &wait, NULL);
}

int prctl(int option, ...)
{
    va_list ap;
    long arg[4];
    va_start(ap, option);
    for (int i = 0; i < 4; i++)
        arg[i] = va_arg(ap, long);
    va_end(ap);
    return (int)CALL6(SYS_prctl, option, arg[0], arg[1], arg[2], arg[3], 0);
}

ssize_t pread(int fd, void *data, size_t len, off_t offset)
{
    return CALL4(SYS_pread64, fd, data, len, offset);
}

ssize_t read(int fd, void *data, size_t len)
{
    return CALL3(SYS_read, fd, data, len);
}

ssize_t readlink(const char *path, char *ret, size_t size)
{
    return CALL4(SYS_readlinkat, AT_FDCWD, path, ret, size);
}

ssize_t readv(int fd, const struct iovec *parts, int n)
{
    return CALL3(SYS_readv, fd, parts, n);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    return CALL3(SYS_recvmsg, fd, message, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return CALL3(SYS_sendmsg, fd, message, flags);
}

int setfsgid(gid_t gid)
{
    return (int)CALL1(SYS_setfsgid, gid);
}

int setfsuid(uid_t uid)
{
    return (int)CALL1(SYS_setfsuid, uid);
}

int setresgid(gid_t real, gid_t effective, gid_t saved)
{
    return (int)CALL3(SYS_setresgid, real, effective, saved);
}

int setresuid(uid_t real, uid_t effective, uid_t saved)
{
    return (int)CALL3(SYS_setresuid, real, effective, saved);
}

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
    return (int)CALL4(SYS_prlimit64, 0, resource, limit, NULL);
}

pid_t setsid(void)
{
    return (pid_t)CALL1(SYS_setsid, 0);
}

int signalfd(int fd, const sigset_t *set, int flags)
{
    return (int)CALL4(SYS_signalfd4, fd, set, SIGSET_BYTES, flags);
}

/* Like the library's it leaves out the two signals that libraries keep for themselves. */
int sigprocmask(int how, const sigset_t *set, sigset_t *ret)
{
    uint64_t word = 0;
    if (set != NULL)
        memcpy(&word, set, sizeof(word));
    word &= ~(UINT64_C(3) << (LIBRARY_SIGNAL - 1));
    return (int)CALL4(SYS_rt_sigprocmask, how, set != NULL ? &word : NULL, ret, SIGSET_BYTES);
}

int statfs(const char *path, struct statfs *ret)
{
    return (int)CALL2(SYS_statfs, path, ret);
}

/* Called before there is a secret for the stack protector. */
__attribute__((no_stack_protector)) long syscall(long nr, ...)
{
    va_list ap;
    long arg[6];
    va_start(ap, nr);
    for (int i = 0; i < 6; i++)
        arg[i] = va_arg(ap, long);
    va_end(ap);
    return CALL6(nr, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

mode_t umask(mode_t mask)
{
    return (mode_t)CALL1(SYS_umask, mask);
}

int unlinkat(int dirfd, const char *path, int flags)
{
    return (int)CALL3(SYS_unlinkat, dirfd, path, flags);
}

pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage)
{
    return (pid_t)CALL4(SYS_wait4, pid, status, options, usage);
}

ssize_t write(int fd, const void *data, size_t len)
{
    return CALL3(SYS_write, fd, data, len);
}

/* The end, when something is wrong with ourselves. PID 1 gets no signal that it does not want. */
void abort(void)
{
    _exit(134);
}

void __assert_fail(const char *text, const char *file, unsigned line, const char *function)
{
    abort();
}

_Noreturn void __stack_chk_fail(void);
_Noreturn void __stack_chk_fail(void)
{
    abort();
}

struct cmsghdr *__cmsg_nxthdr(struct msghdr *message, struct cmsghdr *at)
{
    const char *end = (const char *)message->msg_control + message->msg_controllen;
    char *next = (char *)at + CMSG_ALIGN(at->cmsg_len);
    if (at->cmsg_len < sizeof(*at) || end - next < (ptrdiff_t)sizeof(*at) ||
        end - next < (ptrdiff_t)CMSG_ALIGN(((struct cmsghdr *)(void *)next)->cmsg_len))
        return NULL;
    return (struct cmsghdr *)(void *)next;
}

/* Sets of signals: the kernel's are the first word of the library's. */

int sigemptyset(sigset_t *set)
{
    memset(set, 0, sizeof(*set));
    return 0;
}

int sigfillset(sigset_t *set)
{
    memset(set, 0xff, sizeof(*set));
    return 0;
}

int sigaddset(sigset_t *set, int signo)
{
    uint64_t word;
    memcpy(&word, set, sizeof(word));
    word |= UINT64_C(1) << (signo - 1);
    memcpy(set, &word, sizeof(word));
    return 0;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name,readability-function-size) */
