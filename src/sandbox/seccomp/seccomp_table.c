/* SPDX-License-Identifier: Apache-2.0 */

/* The table of system calls and what each may do. The policy. A call that stands nowhere below
 * answers ENOSYS: that is the right answer for what is newer than this list, and for what we keep
 * closed although programs probe for it and have a fallback (io_uring_*, keyctl and its kin,
 * userfaultfd, clone3, openat2, the new mount calls, mbind and its kin, memfd_secret, modify_ldt,
 * the old aio calls, file_setattr, open_tree_attr). clone3 and openat2 hide their flags behind a
 * pointer, where a filter cannot look. */

#include "sandbox/seccomp/seccomp_internal.h"

#include "sandbox/seccomp/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define ALLOW SECCOMP_RET_ALLOW
#define ERRNO(e) (SECCOMP_RET_ERRNO | (e))
#define DENY ERRNO(EPERM)

#define EQ(n, value)                                                                               \
    {                                                                                              \
        COND_EQ, (n), (uint32_t)(value), 0                                                         \
    }
#define MASKED(n, mask, value)                                                                     \
    {                                                                                              \
        COND_MASKED, (n), (mask), (value)                                                          \
    }
#define ANY(n, mask)                                                                               \
    {                                                                                              \
        COND_ANY, (n), (mask), 0                                                                   \
    }
#define RANGE(n, from, to)                                                                         \
    {                                                                                              \
        COND_RANGE, (n), (from), (to)                                                              \
    }

/* Numbers of the kernel interface that older headers lack or that only headers we cannot mix with
 * those of the C library have. */
#define NS_FLAGS 0x7e020000u /* every CLONE_NEW* that clone(2) knows; NEWTIME is not among them */
#define O_MAKES_FILE (00000100u | 020000000u) /* O_CREAT, __O_TMPFILE */
#define SET_ID_BITS (S_ISUID | S_ISGID)
#define SOCK_TYPE_BITS 0xfu
#define SOCK_PACKET_TYPE 10
#define NETLINK_ROUTE_PROTO 0
#define TCP_ULP_OPT 31
#define IOC_TYPE_BITS 0xff00u
#define IOPRIO_PROCESS 1
#define IOPRIO_PGRP 2

const uint32_t seccomp_ret_default = ERRNO(ENOSYS);

/* int 0x80 reaches another table of calls with other numbers. No program does that by accident. */
const uint32_t seccomp_ret_foreign = SECCOMP_RET_KILL_PROCESS;

/* clang-format off */

/* No new namespaces: a user namespace would hand out every capability again. */
static const struct seccomp_arg_rule clone_args[] = {
    {{ANY(0, NS_FLAGS)}, DENY},
    {{{0}}, ALLOW},
};

/* AF_VSOCK reaches the hypervisor from any network namespace, AF_ALG and friends are where kernel
 * bugs live, and a mere socket() of an unusual family or protocol makes the kernel load modules.
 * AF_INET with type SOCK_PACKET is AF_PACKET by an old name. Routing netlink is needed by
 * getifaddrs() and getaddrinfo(). */
static const struct seccomp_arg_rule socket_args[] = {
    {{EQ(0, AF_UNIX)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_STREAM), EQ(2, 0)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_STREAM), EQ(2, IPPROTO_TCP)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, 0)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, IPPROTO_UDP)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, IPPROTO_ICMP)}, ALLOW},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_STREAM), EQ(2, 0)}, ALLOW},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_STREAM), EQ(2, IPPROTO_TCP)}, ALLOW},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, 0)}, ALLOW},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, IPPROTO_UDP)}, ALLOW},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_DGRAM), EQ(2, IPPROTO_ICMPV6)}, ALLOW},
    {{EQ(0, AF_NETLINK), EQ(2, NETLINK_ROUTE_PROTO)}, ALLOW},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_RAW)}, DENY},
    {{EQ(0, AF_INET), MASKED(1, SOCK_TYPE_BITS, SOCK_PACKET_TYPE)}, DENY},
    {{EQ(0, AF_INET)}, ERRNO(EPROTONOSUPPORT)},
    {{EQ(0, AF_INET6), MASKED(1, SOCK_TYPE_BITS, SOCK_RAW)}, DENY},
    {{EQ(0, AF_INET6)}, ERRNO(EPROTONOSUPPORT)},
    {{{0}}, ERRNO(EAFNOSUPPORT)},
};

/* The only other family with pairs is TIPC. */
static const struct seccomp_arg_rule socketpair_args[] = {
    {{EQ(0, AF_UNIX)}, ALLOW},
    {{{0}}, ERRNO(EAFNOSUPPORT)},
};

/* An upper layer protocol (kernel TLS) is a module load and a rich source of kernel bugs; the
 * libraries that ask for it go on without. */
static const struct seccomp_arg_rule setsockopt_args[] = {
    {{EQ(1, IPPROTO_TCP), EQ(2, TCP_ULP_OPT)}, ERRNO(ENOPROTOOPT)},
    {{{0}}, ALLOW},
};

/* The kernel charges record locks to no cgroup, so box-priv counts them, by the processes that own
 * them. Locks of an open file description have no process: in a descriptor that is on its way
 * through a unix socket they could not be found. A kernel before 3.15 answers like this. */
static const struct seccomp_arg_rule fcntl_args[] = {
    {{RANGE(1, F_OFD_GETLK, F_OFD_SETLKW)}, ERRNO(EINVAL)},
    {{{0}}, ALLOW},
};

/* By type, since devices are few in a sandbox and every new request of a new filesystem would be
 * open otherwise. TIOCSTI and TIOCLINUX type into the terminal of its reader; TIOCSETD loads
 * line disciplines; TIOCCONS takes the host's console. The flags and the project id of a file are
 * its quota and its deletability. */
static const struct seccomp_arg_rule ioctl_args[] = {
    {{EQ(1, 0x5412)}, DENY},                       /* TIOCSTI */
    {{EQ(1, 0x541c)}, DENY},                       /* TIOCLINUX */
    {{EQ(1, 0x541d)}, DENY},                       /* TIOCCONS */
    {{EQ(1, 0x5423)}, DENY},                       /* TIOCSETD */
    {{EQ(1, 0x401c5820)}, DENY},                   /* FS_IOC_FSSETXATTR */
    {{EQ(1, 0x40086602)}, DENY},                   /* FS_IOC_SETFLAGS */
    {{EQ(1, 0x40046602)}, DENY},                   /* FS_IOC32_SETFLAGS */
    {{EQ(1, 0x801c581f)}, ALLOW},                  /* FS_IOC_FSGETXATTR */
    {{EQ(1, 0x80086601)}, ALLOW},                  /* FS_IOC_GETFLAGS: lsattr, cp */
    {{EQ(1, 0xc020660b)}, ALLOW},                  /* FS_IOC_FIEMAP: holes in cp, tar */
    {{EQ(1, 0x40049409)}, ALLOW},                  /* FICLONE: cp --reflink */
    {{EQ(1, 0x4020940d)}, ALLOW},                  /* FICLONERANGE */
    {{EQ(1, 0x00000002)}, ALLOW},                  /* FIGETBSZ */
    {{MASKED(1, IOC_TYPE_BITS, 0x5400)}, ALLOW},   /* 'T': terminals, FIONREAD, FIONBIO, FIOCLEX */
    {{MASKED(1, IOC_TYPE_BITS, 0x8900)}, ALLOW},   /* sockets, interfaces */
    {{MASKED(1, IOC_TYPE_BITS, 0x5200)}, ALLOW},   /* 'R': entropy count of /dev/random */
    {{MASKED(1, IOC_TYPE_BITS, 0x2100)}, ALLOW},   /* '!': supervisors of nested filters */
    {{{0}}, ERRNO(ENOTTY)},
};

/* Options that change how the process is named, ended, measured or hardened. Raising anything is
 * refused by the kernel for want of capabilities; PR_SET_SECCOMP must stay for nested sandboxes.
 * What is not listed answers like a kernel that does not know it. */
static const struct seccomp_arg_rule prctl_args[] = {
    {{EQ(0, PR_SET_MM)}, DENY},
    {{RANGE(0, PR_SET_PDEATHSIG, PR_SET_DUMPABLE)}, ALLOW},
    {{RANGE(0, PR_GET_KEEPCAPS, PR_SET_KEEPCAPS)}, ALLOW},
    {{RANGE(0, PR_SET_NAME, PR_GET_NAME)}, ALLOW},
    {{RANGE(0, PR_GET_SECCOMP, PR_GET_TIMERSLACK)}, ALLOW},         /* seccomp, bounding set, tsc,
                                                                        securebits, timer slack */
    {{RANGE(0, PR_SET_CHILD_SUBREAPER, PR_GET_THP_DISABLE)}, ALLOW}, /* subreaper, no_new_privs,
                                                                        tid address, huge pages */
    {{EQ(0, PR_CAP_AMBIENT)}, ALLOW},
    {{RANGE(0, 50, 56)}, ALLOW},         /* sve, speculation, pointer keys, tagged addresses */
    {{RANGE(0, 60, 61)}, ALLOW},         /* pointer keys */
    {{RANGE(0, 63, 66)}, ALLOW},         /* sme, memory-deny-write-execute */
    {{EQ(0, 0x53564d41)}, ALLOW},        /* PR_SET_VMA: names of anonymous memory */
    {{EQ(0, PR_SET_PTRACER)}, ALLOW},
    {{{0}}, ERRNO(EINVAL)},
};

/* Neither a switch that turns address randomisation off, nor one that makes memory executable. */
static const struct seccomp_arg_rule personality_args[] = {
    {{EQ(0, 0)}, ALLOW},
    {{EQ(0, 0xffffffff)}, ALLOW}, /* asks for the current one */
    {{{0}}, DENY},
};

/* Merging of equal pages tells one tenant what another one has in memory. */
static const struct seccomp_arg_rule madvise_args[] = {
    {{EQ(2, MADV_MERGEABLE)}, ERRNO(EINVAL)},
    {{{0}}, ALLOW},
};

/* A set-id file left in a workspace is a trap for a user who runs it on the host, where no_new_privs
 * does not hold. The mode counts only when the call may make a file. */
static const struct seccomp_arg_rule mode1_args[] = {
    {{ANY(1, SET_ID_BITS)}, DENY},
    {{{0}}, ALLOW},
};
static const struct seccomp_arg_rule mode2_args[] = {
    {{ANY(2, SET_ID_BITS)}, DENY},
    {{{0}}, ALLOW},
};
static const struct seccomp_arg_rule open_args[] = {
    {{ANY(1, O_MAKES_FILE), ANY(2, SET_ID_BITS)}, DENY},
    {{{0}}, ALLOW},
};
static const struct seccomp_arg_rule openat_args[] = {
    {{ANY(2, O_MAKES_FILE), ANY(3, SET_ID_BITS)}, DENY},
    {{{0}}, ALLOW},
};

/* Pipes, sockets and plain files only; type 0 is a plain file too. */
static const struct seccomp_arg_rule mknod_args[] = {
    {{ANY(1, SET_ID_BITS)}, DENY},
    {{MASKED(1, S_IFMT, 0)}, ALLOW},
    {{MASKED(1, S_IFMT, S_IFREG)}, ALLOW},
    {{MASKED(1, S_IFMT, S_IFIFO)}, ALLOW},
    {{MASKED(1, S_IFMT, S_IFSOCK)}, ALLOW},
    {{{0}}, DENY},
};
static const struct seccomp_arg_rule mknodat_args[] = {
    {{ANY(2, SET_ID_BITS)}, DENY},
    {{MASKED(2, S_IFMT, 0)}, ALLOW},
    {{MASKED(2, S_IFMT, S_IFREG)}, ALLOW},
    {{MASKED(2, S_IFMT, S_IFIFO)}, ALLOW},
    {{MASKED(2, S_IFMT, S_IFSOCK)}, ALLOW},
    {{{0}}, DENY},
};

/* PID 1 is ours, and without a second id it has that of the programs: then a program may take its
 * descriptors by prlimit(2), its turns by sched_setscheduler(2), and, on gVisor, its life by
 * kill(2). A filter can compare a number, and PID 1 has the same in every session; no program inside
 * can make a namespace in which it had another. */
static const struct seccomp_arg_rule pid0_args[] = {
    {{EQ(0, 1)}, DENY},
    {{{0}}, ALLOW},
};
static const struct seccomp_arg_rule pid1_args[] = {
    {{EQ(1, 1)}, DENY},
    {{{0}}, ALLOW},
};

/* By kind and number: a process but PID 1, or one's own group. "All of a user" has PID 1 in it. */
static const struct seccomp_arg_rule setpriority_args[] = {
    {{EQ(0, PRIO_PROCESS), EQ(1, 1)}, DENY},
    {{EQ(0, PRIO_PROCESS)}, ALLOW},
    {{EQ(0, PRIO_PGRP), EQ(1, 0)}, ALLOW},
    {{{0}}, DENY},
};
static const struct seccomp_arg_rule ioprio_args[] = {
    {{EQ(0, IOPRIO_PROCESS), EQ(1, 1)}, DENY},
    {{EQ(0, IOPRIO_PROCESS)}, ALLOW},
    {{EQ(0, IOPRIO_PGRP), EQ(1, 0)}, ALLOW},
    {{{0}}, DENY},
};

const struct seccomp_family seccomp_families[] = {
    /* Bytes in and out of descriptors that the process holds. vmsplice stays out: few use it, and
     * it has pinned pages into more than one kernel exploit. */
    {.ret = ALLOW, .names = {
        "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2",
        "pwritev2", "lseek", "close", "close_range", "dup", "dup2", "dup3", "flock",
        "fsync", "fdatasync", "syncfs", "sync_file_range", "fallocate", "ftruncate", "truncate",
        "fadvise64", "readahead", "sendfile", "splice", "tee", "copy_file_range", "pipe", "pipe2"}},
    {.args = ioctl_args, .names = {"ioctl"}},
    {.args = fcntl_args, .inside = true, .names = {"fcntl"}},

    /* sync(2) would flush the filesystems of every tenant and of the host. It may return before
     * anything is written, says POSIX, so it does; fsync and syncfs keep their word. */
    {.ret = ERRNO(0), .names = {"sync"}},

    /* Waiting. */
    {.ret = ALLOW, .names = {
        "poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl",
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2", "signalfd",
        "signalfd4", "inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
        "timerfd_create", "timerfd_settime", "timerfd_gettime"}},

    /* Names and what they say. Permissions, mounts and Landlock decide the rest. */
    {.ret = ALLOW, .names = {
        "stat", "fstat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
        "statfs", "fstatfs", "getcwd", "chdir", "fchdir", "getdents", "getdents64", "readlink",
        "readlinkat", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat",
        "symlink", "symlinkat", "mkdir", "mkdirat", "rmdir", "umask", "chown", "fchown", "lchown",
        "fchownat", "utime", "utimes", "futimesat", "utimensat"}},
    {.ret = ALLOW, .names = {
        "setxattr", "lsetxattr", "fsetxattr", "getxattr", "lgetxattr", "fgetxattr", "listxattr",
        "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr"}},
    {.ret = ALLOW, .profiles = 1u << SECCOMP_DAEMON, .names = {"openat2"}},
    {.args = open_args, .names = {"open"}},
    {.args = openat_args, .names = {"openat"}},
    {.args = mode1_args, .names = {"creat", "chmod", "fchmod"}},
    {.args = mode2_args, .names = {"fchmodat", "fchmodat2"}},
    {.args = mknod_args, .names = {"mknod"}},
    {.args = mknodat_args, .names = {"mknodat"}},

    /* Memory of the process itself. */
    {.ret = ALLOW, .names = {
        "mmap", "munmap", "mprotect", "mremap", "msync", "mincore", "brk", "mlock", "mlock2",
        "munlock", "mlockall", "munlockall", "mseal", "map_shadow_stack", "pkey_alloc", "pkey_free",
        "pkey_mprotect", "memfd_create", "membarrier"}},
    {.args = madvise_args, .names = {"madvise"}},

    /* Processes and threads. */
    {.ret = ALLOW, .names = {
        "fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid", "getpid",
        "getppid", "gettid", "getpgid", "getpgrp", "getsid", "setpgid", "setsid",
        "set_tid_address", "set_robust_list", "get_robust_list", "futex", "futex_waitv", "rseq",
        "arch_prctl", "getcpu", "uname", "sysinfo", "getrandom", "times", "getrusage"}},
    {.args = clone_args, .names = {"clone"}},
    {.ret = ALLOW, .profiles = 1u << SECCOMP_INIT, .names = {"clone3"}},
    {.args = prctl_args, .names = {"prctl"}},
    {.args = personality_args, .names = {"personality"}},

    /* The trampolines of the host's own uprobes: a tracer of the operator must not crash what it
     * traces. Any other program that calls them is killed. */
    {.ret = ALLOW, .names = {"uretprobe", "uprobe"}},

    /* Scheduling and limits: downwards only, the kernel sees to that. */
    {.ret = ALLOW, .names = {
        "sched_yield", "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_getattr",
        "sched_get_priority_max", "sched_get_priority_min", "sched_rr_get_interval", "getpriority",
        "ioprio_get", "getrlimit", "setrlimit"}},
    {.args = pid0_args, .inside = true, .names = {
        "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr", "prlimit64"}},
    {.args = setpriority_args, .inside = true, .names = {"setpriority"}},
    {.args = ioprio_args, .inside = true, .names = {"ioprio_set"}},

    /* Signals. */
    {.ret = ALLOW, .names = {
        "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait",
        "rt_sigsuspend", "sigaltstack", "pause", "restart_syscall", "pidfd_send_signal"}},
    {.args = pid0_args, .inside = true, .names = {
        "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open"}},

    /* Time, as a reader. */
    {.ret = ALLOW, .names = {
        "time", "gettimeofday", "clock_gettime", "clock_getres", "nanosleep", "clock_nanosleep",
        "alarm", "getitimer", "setitimer", "timer_create", "timer_settime", "timer_gettime",
        "timer_getoverrun", "timer_delete"}},

    /* Ids and capabilities: two ids are mapped at most and no capability is left to give away. */
    {.ret = ALLOW, .names = {
        "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "setuid",
        "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid",
        "setgroups", "capget", "capset"}},

    /* Programs that sandbox themselves must be able to. */
    {.ret = ALLOW, .names = {
        "seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}},

    /* Sockets, once made. */
    {.ret = ALLOW, .names = {
        "bind", "connect", "listen", "accept", "accept4", "shutdown", "getsockname", "getpeername",
        "getsockopt", "sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg"}},
    {.args = socket_args, .names = {"socket"}},
    {.args = socketpair_args, .names = {"socketpair"}},
    {.args = setsockopt_args, .names = {"setsockopt"}},

    /* System V and POSIX IPC: a session has its own namespace for it. */
    {.ret = ALLOW, .names = {
        "shmget", "shmat", "shmdt", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget",
        "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive",
        "mq_notify", "mq_getsetattr"}},

    /* Looking into other processes: for debuggers that were asked for. */
    {.ret = DENY, .profiles = ~(1u << SECCOMP_DEBUG),
     .names = {"ptrace", "process_vm_readv", "process_vm_writev"}},
    {.args = pid1_args, .inside = true, .profiles = 1u << SECCOMP_DEBUG, .names = {"ptrace"}},
    {.args = pid0_args, .inside = true, .profiles = 1u << SECCOMP_DEBUG,
     .names = {"process_vm_readv", "process_vm_writev"}},
    {.ret = DENY, .names = {"pidfd_getfd", "kcmp"}},

    /* Well-known denials, so that tools say "Operation not permitted". First the shape of the
     * world: mounts, roots, namespaces, files by handle. */
    {.ret = DENY, .names = {
        "mount", "umount2", "pivot_root", "chroot", "open_by_handle_at", "name_to_handle_at",
        "fanotify_init", "quotactl", "acct", "swapon", "swapoff"}},
    /* box-guest makes namespaces for programs, and each of its children enters them before it has
     * this filter. */
    {.ret = DENY, .inside = true, .names = {"unshare", "setns"}},

    /* The machine: modules, kernels, ports, clocks, names, logs. */
    {.ret = DENY, .names = {
        "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
        "iopl", "ioperm", "syslog", "vhangup", "settimeofday", "clock_settime", "adjtimex",
        "clock_adjtime", "sethostname", "setdomainname"}},

    /* Programs for the kernel. */
    {.ret = DENY, .names = {"bpf", "perf_event_open"}},
    {0},
};
/* clang-format on */
