/* SPDX-License-Identifier: Apache-2.0 */

/* Table B: the kernel's surface. Arguments are such that even a call that gets through does
 * nothing: bad pointers, bad magic numbers, names that do not exist. */

#include "base/compat.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

struct uring {
    int fd;
    struct io_uring_params params;
    unsigned char *sq, *cq;
    struct io_uring_sqe *sqes;
};

static long ring_init(struct uring *ring)
{
    struct io_uring_params *p = &ring->params;
    size_t sq_size, cq_size;
    ring->fd = (int)syscall(SYS_io_uring_setup, 1, p);
    if (ring->fd < 0)
        return -errno;
    sq_size = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    cq_size = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->sq =
        mmap(NULL, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->cq =
        mmap(NULL, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_CQ_RING);
    ring->sqes = mmap(NULL, p->sq_entries * sizeof(*ring->sqes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      ring->fd, IORING_OFF_SQES);
    if (ring->sq == MAP_FAILED || ring->cq == MAP_FAILED || ring->sqes == MAP_FAILED)
        return -errno;
    return 0;
}

/* What the ring answers: a descriptor or a negative errno. */
static long ring_socket(const void *family)
{
    struct uring ring = {0};
    long r = ring_init(&ring);
    unsigned *tail, *array;
    if (r < 0)
        return r;
    ring.sqes[0].opcode = IORING_OP_SOCKET;
    ring.sqes[0].fd = *(const int *)family;
    ring.sqes[0].off = SOCK_STREAM;
    tail = (unsigned *)(ring.sq + ring.params.sq_off.tail);
    array = (unsigned *)(ring.sq + ring.params.sq_off.array);
    array[0] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -errno;
    return ((const struct io_uring_cqe *)(ring.cq + ring.params.cq_off.cqes))->res;
}

static void probe_uring(const struct probe_options *opt)
{
    static const int inet = AF_INET, vsock = AF_VSOCK;
    EXPECT("B04b.inet", probe_forked(ring_socket, &inet), ENOSYS, EPERM);
    EXPECT("B04b.vsock", probe_forked(ring_socket, &vsock), ENOSYS, EPERM);
}

#define LAST 600
#define POISON 0x4141414141414141UL /* no pointer, no descriptor, no pid, no signal, no length */

static const char *const names[LAST + 1] = {
#include "inside/attack/syscall_names.h"
};

struct sweep_attempt {
    long nr;
    unsigned long arg;
};

/* Calls that would end or double the child before it can report. */
static long do_attempt(const void *arg)
{
    const struct sweep_attempt *a = arg;
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

static void probe_sweep(const struct probe_options *opt)
{
    char mode[16], zero[32];

    /* Without a filter this would be a way to find out what hurts. */
    probe_status("/proc/self/status", "Seccomp", mode, sizeof(mode));
    if (strcmp(mode, "2") != 0) {
        probe_report("B20", PROBE_FAIL, "no filter: not swept");
        return;
    }
    for (long nr = 0; nr <= LAST; nr++) {
        struct sweep_attempt a = {nr, 0};
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

#define BAD ((uintptr_t)0x10) /* the first page is never mapped */
struct call {
    const char *id;
    long nr;
    uintptr_t args[6];
    int want[4]; /* positive errnos that count as ok */
};

static long do_call(const void *arg)
{
    const struct call *c = arg;
    long r = syscall(c->nr, c->args[0], c->args[1], c->args[2], c->args[3], c->args[4], c->args[5]);
    return r < 0 ? -errno : r;
}

#define STR(s) ((uintptr_t)(s))
#define GONE                                                                                       \
    {                                                                                              \
        EPERM, ENOSYS                                                                              \
    }

static const struct sched_param first_priority = {.sched_priority = 1};

/* clang-format off */
static const struct call calls[] = {
    {"B01.unshare-user", SYS_unshare, {CLONE_NEWUSER}, {EPERM}},
    {"B01.unshare-mnt", SYS_unshare, {CLONE_NEWNS}, {EPERM}},
    {"B01.unshare-pid", SYS_unshare, {CLONE_NEWPID}, {EPERM}},
    {"B01.unshare-net", SYS_unshare, {CLONE_NEWNET}, {EPERM}},
    {"B01.unshare-ipc", SYS_unshare, {CLONE_NEWIPC}, {EPERM}},
    {"B01.unshare-uts", SYS_unshare, {CLONE_NEWUTS}, {EPERM}},
    {"B01.unshare-cgroup", SYS_unshare, {CLONE_NEWCGROUP}, {EPERM}},
    {"B01.unshare-time", SYS_unshare, {CLONE_NEWTIME}, {EPERM}},
    {"B01.clone3", SYS_clone3, {BAD, 64}, {ENOSYS}},

    {"B02.mount", SYS_mount, {STR("none"), STR("/proc"), STR("tmpfs")}, {EPERM}},
    {"B02.umount2", SYS_umount2, {STR("/nonexistent")}, {EPERM}},
    {"B02.pivot_root", SYS_pivot_root, {STR("/nonexistent"), STR("/nonexistent")}, {EPERM}},
    {"B02.fsopen", SYS_fsopen, {STR("tmpfs")}, GONE},
    {"B02.fsconfig", SYS_fsconfig, {(uintptr_t)-1}, GONE},
    {"B02.fsmount", SYS_fsmount, {(uintptr_t)-1}, GONE},
    {"B02.fspick", SYS_fspick, {(uintptr_t)-1, STR("/")}, GONE},
    {"B02.open_tree", SYS_open_tree, {(uintptr_t)AT_FDCWD, STR("/"), 1}, GONE},
    {"B02.move_mount", SYS_move_mount, {(uintptr_t)-1, STR(""), (uintptr_t)-1, STR("")}, GONE},
    {"B02.mount_setattr", SYS_mount_setattr, {(uintptr_t)-1, STR("/")}, GONE},

    {"B03.chroot", SYS_chroot, {STR("/")}, {EPERM}},
    {"B03.mknod", SYS_mknodat, {(uintptr_t)AT_FDCWD, STR("/tmp/probe-node"), S_IFCHR | 0600, 0x103}, {EPERM}},
    {"B03.mknod-block", SYS_mknodat, {(uintptr_t)AT_FDCWD, STR("/tmp/probe-node"), S_IFBLK | 0600, 0x700}, {EPERM}},
    {"B03.setns", SYS_setns, {(uintptr_t)-1}, {EPERM}},

    {"B04.io_uring_setup", SYS_io_uring_setup, {1, BAD}, {ENOSYS}},
    {"B04.io_uring_enter", SYS_io_uring_enter, {(uintptr_t)-1}, {ENOSYS}},
    {"B04.io_uring_register", SYS_io_uring_register, {(uintptr_t)-1}, {ENOSYS}},

    {"B05.vsock", SYS_socket, {AF_VSOCK, SOCK_STREAM}, {EAFNOSUPPORT, EPERM}},
    {"B05.vsock-high", SYS_socket, {AF_VSOCK | 1UL << 32, SOCK_STREAM}, {EAFNOSUPPORT, EPERM}},
    {"B05.alg", SYS_socket, {AF_ALG, SOCK_SEQPACKET}, {EAFNOSUPPORT, EPERM}},
    {"B05.packet", SYS_socket, {AF_PACKET, SOCK_RAW, 0x300}, {EAFNOSUPPORT, EPERM}},
    {"B05.packet-old", SYS_socket, {AF_INET, 10, 0x300}, {EAFNOSUPPORT, EPERM}},
    {"B05.xdp", SYS_socket, {AF_XDP, SOCK_RAW}, {EAFNOSUPPORT, EPERM}},
    {"B05.key", SYS_socket, {AF_KEY, SOCK_RAW, 2}, {EAFNOSUPPORT, EPERM}},
    {"B05.tipc", SYS_socket, {AF_TIPC, SOCK_STREAM}, {EAFNOSUPPORT, EPERM}},
    {"B05.bluetooth", SYS_socket, {AF_BLUETOOTH, SOCK_RAW, 1}, {EAFNOSUPPORT, EPERM}},
    {"B05.can", SYS_socket, {AF_CAN, SOCK_RAW, 1}, {EAFNOSUPPORT, EPERM}},
    {"B05.sock-diag", SYS_socket, {AF_NETLINK, SOCK_RAW, 4}, {EAFNOSUPPORT, EPERM}},
    {"B05.xfrm", SYS_socket, {AF_NETLINK, SOCK_RAW, 6}, {EAFNOSUPPORT, EPERM}},
    {"B05.netfilter", SYS_socket, {AF_NETLINK, SOCK_RAW, 12}, {EAFNOSUPPORT, EPERM}},
    {"B05.uevent", SYS_socket, {AF_NETLINK, SOCK_RAW, 15}, {EAFNOSUPPORT, EPERM}},
    {"B05.generic", SYS_socket, {AF_NETLINK, SOCK_RAW, 16}, {EAFNOSUPPORT, EPERM}},
    {"B05.pair-tipc", SYS_socketpair, {AF_TIPC, SOCK_STREAM, 0, BAD}, {EAFNOSUPPORT, EPERM}},

    {"B06.bpf", SYS_bpf, {0, BAD, 64}, GONE},
    {"B06.perf_event_open", SYS_perf_event_open, {BAD, 0, (uintptr_t)-1, (uintptr_t)-1}, GONE},
    {"B06.userfaultfd", SYS_userfaultfd, {1}, GONE},

    {"B07.add_key", SYS_add_key, {STR("user"), STR("probe"), STR("x"), 1, (uintptr_t)-3}, GONE},
    {"B07.request_key", SYS_request_key, {STR("user"), STR("probe"), 0, (uintptr_t)-3}, GONE},
    {"B07.keyctl", SYS_keyctl, {0, (uintptr_t)-3}, GONE},

    {"B10.open_by_handle_at", SYS_open_by_handle_at, {(uintptr_t)AT_FDCWD, BAD}, GONE},
    {"B10.name_to_handle_at", SYS_name_to_handle_at, {(uintptr_t)AT_FDCWD, STR("/"), BAD, BAD}, GONE},

    {"B11.no-randomize", SYS_personality, {0x0040000}, GONE},
    {"B11.read-implies-exec", SYS_personality, {0x0400000}, GONE},
    {"B11.memfd_secret", SYS_memfd_secret, {0}, GONE},
#ifdef SYS_modify_ldt
    {"B11.modify_ldt", SYS_modify_ldt, {0, BAD, 0}, GONE},
#endif

    {"B12.raw-icmp", SYS_socket, {AF_INET, SOCK_RAW, IPPROTO_ICMP}, {EPERM}},
    {"B12.raw-icmp6", SYS_socket, {AF_INET6, SOCK_RAW, IPPROTO_ICMPV6}, {EPERM}},
    {"B12.raw-raw", SYS_socket, {AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW}, {EPERM}},

    {"B13.mbind", SYS_mbind, {0}, GONE},
    {"B13.set_mempolicy", SYS_set_mempolicy, {0}, GONE},
    {"B13.move_pages", SYS_move_pages, {0}, GONE},
    {"B13.migrate_pages", SYS_migrate_pages, {0}, GONE},
    {"B13.kcmp", SYS_kcmp, {1, 1, 0, 0, 0}, GONE},

    {"B14.init_module", SYS_init_module, {BAD, 0, BAD}, {EPERM}},
    {"B14.finit_module", SYS_finit_module, {(uintptr_t)-1, BAD}, {EPERM}},
    {"B14.delete_module", SYS_delete_module, {BAD, 0}, {EPERM}},
    {"B14.kexec_load", SYS_kexec_load, {0, (uintptr_t)-1, BAD, (uintptr_t)-1}, {EPERM}},
#ifdef SYS_kexec_file_load
    {"B14.kexec_file_load", SYS_kexec_file_load, {(uintptr_t)-1, (uintptr_t)-1, 0, 0, (uintptr_t)-1}, {EPERM}},
#endif
#ifdef SYS_iopl
    {"B14.iopl", SYS_iopl, {4}, {EPERM}},
    {"B14.ioperm", SYS_ioperm, {(uintptr_t)-1, 1, 1}, {EPERM}},
#endif
    {"B14.swapon", SYS_swapon, {BAD, (uintptr_t)-1}, {EPERM}},
    {"B14.swapoff", SYS_swapoff, {BAD}, {EPERM}},
    {"B14.reboot", SYS_reboot, {1, 2, 3}, {EPERM}},
    {"B14.acct", SYS_acct, {BAD}, {EPERM}},
    {"B14.quotactl", SYS_quotactl, {0, BAD}, {EPERM}},
    {"B14.syslog", SYS_syslog, {3, BAD, 0}, {EPERM}},
    {"B14.clock_settime", SYS_clock_settime, {0, BAD}, {EPERM}},
    {"B14.settimeofday", SYS_settimeofday, {BAD, 0}, {EPERM}},
    {"B14.adjtimex", SYS_adjtimex, {BAD}, {EPERM}},
    {"B14.clock_adjtime", SYS_clock_adjtime, {0, BAD}, {EPERM}},
    {"B14.sethostname", SYS_sethostname, {BAD, (uintptr_t)-1}, {EPERM}},
    {"B14.setdomainname", SYS_setdomainname, {BAD, (uintptr_t)-1}, {EPERM}},

    {"B15.file_setattr", SYS_file_setattr, {(uintptr_t)AT_FDCWD, STR("."), BAD, 24}, GONE},
    {"B15.open_tree_attr", SYS_open_tree_attr, {(uintptr_t)-1, STR("")}, GONE},

    {"B17.set-mm", SYS_prctl, {PR_SET_MM, 1, BAD}, {EPERM}},
    {"B17.clear-nnp", SYS_prctl, {PR_SET_NO_NEW_PRIVS, 0}, {EINVAL}},
    {"B17.strict", SYS_prctl, {PR_SET_SECCOMP, 1}, {EINVAL}}, /* a filter cannot be left for it */
    {"B17.securebits", SYS_prctl, {PR_SET_SECUREBITS, 0}, {EPERM}},

    {"B18.fifo", SYS_sched_setscheduler, {0, SCHED_FIFO, STR(&first_priority)}, {EPERM}},
    {"B18.nice", SYS_setpriority, {PRIO_PROCESS, 0, (uintptr_t)-20}, {EPERM, EACCES}},
    {"B18.ioprio", SYS_ioprio_set, {1, 0, 1 << 13}, {EPERM}},
};
/* clang-format on */

/* clone(2) needs a child of its own: when it works, it returns twice. */
static long clone_with(const void *flags)
{
    pid_t self = getpid();
    long r = syscall(SYS_clone, *(const unsigned long *)flags | SIGCHLD, 0, 0, 0, 0);
    if (r < 0)
        return -errno;
    if (r == 0 && syscall(SYS_getpid) != self)
        _exit(0);
    return waitpid((pid_t)r, NULL, 0) < 0 ? -errno : 0;
}

static void clones(void)
{
    static const struct {
        const char *id;
        unsigned long flag;
    } flags[] = {
        {"B01.clone-user", CLONE_NEWUSER},     {"B01.clone-mnt", CLONE_NEWNS},
        {"B01.clone-pid", CLONE_NEWPID},       {"B01.clone-net", CLONE_NEWNET},
        {"B01.clone-ipc", CLONE_NEWIPC},       {"B01.clone-uts", CLONE_NEWUTS},
        {"B01.clone-cgroup", CLONE_NEWCGROUP},
    };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        EXPECT(flags[i].id, probe_forked(clone_with, &flags[i].flag), EPERM);
}

#ifdef __x86_64__
static long call_32_bit(const void *arg)
{
    long r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20L) : "memory");
    return r;
}

static long call_x32(const void *arg)
{
    return syscall(0x40000000L | SYS_getpid) < 0 ? -errno : 0;
}

/* A whole 32-bit program, by hand so that no 32-bit compiler is needed: exit(0). */
static long exec_32_bit(const void *arg)
{
    static const unsigned char elf[] = {
        0x7f, 'E',  'L', 'F', 1,  1,    1,    0,    0,    0,    0, 0, 0,
        0,    0,    0,                                                /* 32 bits, little endian */
        2,    0,    3,   0,   1,  0,    0,    0,                      /* executable, i386 */
        0x54, 0x80, 4,   8,   52, 0,    0,    0,    0,    0,    0, 0, /* entry 0x8048054, phdr at 52
                                                                       */
        0,    0,    0,   0,   52, 0,    32,   0,    1,    0,    0, 0, 0,
        0,    0,    0, /* one program header */
        1,    0,    0,   0,   0,  0,    0,    0,    0,    0x80, 4, 8, 0,
        0x80, 4,    8, /* load the file at 0x8048000 */
        93,   0,    0,   0,   93, 0,    0,    0,    5,    0,    0, 0, 0,
        0x10, 0,    0,                                    /* read, execute */
        0xb8, 1,    0,   0,   0,  0x31, 0xdb, 0xcd, 0x80, /* exit(0) */
    };
    static char *const argv[] = {(char *)"probe-32", NULL};
    int fd = memfd_create("probe-32", MFD_CLOEXEC);
    if (fd < 0 || write(fd, elf, sizeof(elf)) != (ssize_t)sizeof(elf))
        return -errno;
    (void)syscall(SYS_execveat, fd, "", argv, argv + 1, AT_EMPTY_PATH);
    return -errno;
}
#endif

static void foreign_calls(void)
{
#ifdef __x86_64__
    EXPECT("B09.int80", probe_forked(call_32_bit, NULL), -PROBE_SIGNAL(SIGSYS));
    EXPECT("B09.x32", probe_forked(call_x32, NULL), -PROBE_SIGNAL(SIGSYS), ENOSYS);
    EXPECT("B09.elf32", probe_forked(exec_32_bit, NULL), -PROBE_SIGNAL(SIGSYS), ENOEXEC);
#else
    probe_report("B09", PROBE_NA, "x86 only");
#endif
}

/* Attributes of a file of our own, in the first place where we may make one. */
static void attributes(void)
{
    struct {
        uint32_t xflags, extsize, nextents, projid, cowextsize;
        unsigned char pad[8];
    } fsx = {.projid = 4242};
    long immutable = 0x10;
    int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        probe_report("B15.fssetxattr", PROBE_NA, "no writable directory");
        return;
    }
    EXPECT("B15.fssetxattr", ioctl(fd, 0x401c5820, &fsx) < 0 ? -errno : 0, EPERM);
    EXPECT("B15.setflags", ioctl(fd, 0x40086602, &immutable) < 0 ? -errno : 0, EPERM);
    EXPECT("B15.suid", fchmod(fd, 04755) < 0 ? -errno : 0, EPERM);
    EXPECT("B15.sgid", fchmod(fd, 02755) < 0 ? -errno : 0, EPERM);
    (void)close(fd);
}

static long nest_seccomp(const void *arg)
{
    struct sock_filter insn = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {1, &insn};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog, 0, 0) < 0 ? -errno : 0;
}

static long nest_landlock(const void *arg)
{
    uint64_t handled = LANDLOCK_ACCESS_FS_MAKE_SYM;
    long fd = syscall(SYS_landlock_create_ruleset, &handled, sizeof(handled), 0);
    if (fd < 0)
        return -errno;
    return syscall(SYS_landlock_restrict_self, fd, 0) < 0 ? -errno : 0;
}

static void nesting(void)
{
    long r = probe_forked(nest_seccomp, NULL);
    bool absent;
    CHECK("B16.seccomp", r == 0, "%s", probe_result_name(r));
    r = probe_forked(nest_landlock, NULL);
    absent = r == -EOPNOTSUPP || r == -ENOSYS;
    probe_report("B16.landlock",
                 r == 0   ? PROBE_OK
                 : absent ? PROBE_NA
                          : PROBE_FAIL,
                 "%s", probe_result_name(r));
}

/* Raising the limit must fail or not matter. */
static void no_core(void)
{
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    int status = 0;
    pid_t pid;
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        (void)setrlimit(RLIMIT_CORE, &all);
        (void)!chdir("/tmp");
        abort();
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        probe_report("B17.core", PROBE_FAIL, "no child");
    else
        probe_report("B17.core", WCOREDUMP(status) ? PROBE_FAIL : PROBE_OK, "status %#x",
                     (unsigned)status);
}

static long lower_oom_score(const void *arg)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    return fd < 0 || write(fd, "-1000", 5) < 0 ? -errno : 0;
}

static long raise_limit(const void *resource)
{
    int which = *(const int *)resource;
    struct rlimit limit;
    if (getrlimit(which, &limit) < 0)
        return -errno;
    if (limit.rlim_max == RLIM_INFINITY)
        return 0;
    limit.rlim_max++;
    return setrlimit(which, &limit) < 0 ? -errno : 0;
}

static void priorities(void)
{
    static const int nofile = RLIMIT_NOFILE, nproc = RLIMIT_NPROC, memlock = RLIMIT_MEMLOCK;
    EXPECT("B18.oom_score_adj", probe_forked(lower_oom_score, NULL), EACCES, EPERM, EROFS);
    EXPECT("B18.nofile", probe_forked(raise_limit, &nofile), EPERM);
    EXPECT("B18.nproc", probe_forked(raise_limit, &nproc), EPERM);
    EXPECT("B18.memlock", probe_forked(raise_limit, &memlock), EPERM);
}

struct request {
    int fd;
    bool own; /* a pty of our own, not the terminal we were started on */
    unsigned long cmd;
};

static long do_ioctl(const void *arg)
{
    const struct request *r = arg;
    char byte = '\n';

    /* The pty must be the controlling terminal, or TIOCSTI is refused for that reason alone. */
    if (r->own) {
        (void)setsid();
        (void)ioctl(r->fd, TIOCSCTTY, 0);
    }
    return syscall(SYS_ioctl, r->fd, r->cmd, &byte) < 0 ? -errno : 0;
}

static int open_pty(int *master)
{
    int zero = 0;
    *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*master < 0 || ioctl(*master, TIOCSPTLCK, &zero) < 0)
        return -1;
    return ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

static void probe_tty(const struct probe_options *opt)
{
    static const struct {
        const char *id;
        unsigned long cmd;
    } requests[] = {
        {"B08.tiocsti", TIOCSTI},     {"B08.tiocsti-high", TIOCSTI | 1UL << 32},
        {"B08.tioclinux", TIOCLINUX}, {"B08.tioclinux-high", TIOCLINUX | 1UL << 32},
        {"B08.tiocsetd", TIOCSETD},
    };
    int master = -1, fd = isatty(STDIN_FILENO) ? STDIN_FILENO : open_pty(&master);

    /* Without any terminal the filter can still be asked: it does not look at the descriptor. */
    if (fd < 0)
        fd = STDIN_FILENO;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        struct request r = {fd, master >= 0, requests[i].cmd};
        EXPECT(requests[i].id, probe_forked(do_ioctl, &r), EPERM);
    }
    if (master >= 0) {
        (void)close(master);
        (void)close(fd);
    }
}

void probe_kernel(const struct probe_options *opt)
{
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        probe_expect(calls[i].id, probe_forked(do_call, &calls[i]), calls[i].want);
    clones();
    probe_tty(opt);
    foreign_calls();
    attributes();
    nesting();
    no_core();
    priorities();
}

const struct probe_mode probe_kernel_modes[] = {
    {"kernel", probe_kernel, true},
    {"tty", probe_tty, true},
    {"uring", probe_uring, true},
    {"sweep", probe_sweep, false},
    {0},
};
