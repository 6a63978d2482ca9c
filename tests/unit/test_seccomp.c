/* SPDX-License-Identifier: Apache-2.0 */
/* For what is private to it. */
#include "sandbox/seccomp/seccomp.c"

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/str.h"
#include "inside/seccomp_install.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/unit.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define ALLOW SECCOMP_RET_ALLOW
#define E(e) (SECCOMP_RET_ERRNO | (e))
#define HIGH (UINT64_C(1) << 32) /* a bit that the kernel cuts off */
#define SWEEP 601                /* as many numbers as the sweep inside a sandbox tries */

/* What a filter needs to be run in user space. */
struct sim {
    struct sock_filter *prog; /* owned */
    size_t n;
    uint32_t arch;
    bool hit[BPF_MAXINSNS];
};

static void sim_done(struct sim *sim)
{
    free(sim->prog);
}
DEFINE_CLEANUP_DONE(sim)

static void sim_init_for(struct sim *sim, uint32_t arch, enum seccomp_profile profile)
{
    struct err err = {0};

    memset(sim, 0, sizeof(*sim));
    sim->arch = arch;
    if (seccomp_compile_for(arch, profile, &sim->prog, &sim->n, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(sim->n > 0 && sim->n <= BPF_MAXINSNS);
}

static void sim_init(struct sim *sim, enum seccomp_profile profile)
{
    struct err err = {0};

    memset(sim, 0, sizeof(*sim));
    sim->arch = ARCH;
    if (seccomp_compile(profile, &sim->prog, &sim->n, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(sim->n > 0 && sim->n <= BPF_MAXINSNS);
}

static uint32_t alu(const struct sock_filter *insn, const struct seccomp_data *data, uint32_t acc)
{
    uint32_t word;

    if (BPF_CLASS(insn->code) == BPF_ALU)
        return acc & insn->k;
    assert_true(insn->k % sizeof(word) == 0 && insn->k <= sizeof(*data) - sizeof(word));
    memcpy(&word, (const char *)data + insn->k, sizeof(word));
    return word;
}

static size_t jump(const struct sock_filter *insn, uint32_t acc)
{
    bool taken = false;

    switch (BPF_OP(insn->code)) {
    case BPF_JA:
        return insn->k;
    case BPF_JEQ:
        taken = acc == insn->k;
        break;
    case BPF_JGE:
        taken = acc >= insn->k;
        break;
    case BPF_JGT:
        taken = acc > insn->k;
        break;
    case BPF_JSET:
        taken = (acc & insn->k) != 0;
        break;
    default:
        fail_msg("unknown jump %#x", insn->code);
    }
    return taken ? insn->jt : insn->jf;
}

/* The part of BPF that the compiler emits, and nothing else. */
static uint32_t sim_run(struct sim *sim, const struct seccomp_data *data)
{
    uint32_t acc = 0;

    for (size_t pc = 0; pc < sim->n; pc++) {
        const struct sock_filter *insn = &sim->prog[pc];
        sim->hit[pc] = true;
        switch (insn->code) {
        case BPF_LD | BPF_W | BPF_ABS:
        case BPF_ALU | BPF_AND | BPF_K:
            acc = alu(insn, data, acc);
            break;
        case BPF_RET | BPF_K:
            return insn->k;
        default:
            assert_int_equal(BPF_CLASS(insn->code), BPF_JMP);
            pc += jump(insn, acc);
        }
    }
    fail_msg("the program runs over its end");
    return 0;
}

static uint32_t verdict(struct sim *sim, uint32_t nr, const uint64_t args[6])
{
    struct seccomp_data data = {.nr = (int)nr, .arch = sim->arch};

    if (args)
        memcpy(data.args, args, sizeof(data.args));
    return sim_run(sim, &data);
}

/* clang-format off */
static const struct {
    long nr;
    uint64_t args[6];
    uint32_t want;
} cases[] = {
    {SYS_clone, {SIGCHLD}, ALLOW},
    {SYS_clone, {0x3d0f00}, ALLOW}, /* pthread_create */
    {SYS_clone, {CLONE_NEWNS}, E(EPERM)},
    {SYS_clone, {CLONE_NEWUSER | SIGCHLD}, E(EPERM)},
    {SYS_clone, {CLONE_NEWPID | HIGH}, E(EPERM)},
    {SYS_clone, {CLONE_NEWNET}, E(EPERM)},
    {SYS_clone, {CLONE_NEWIPC}, E(EPERM)},
    {SYS_clone, {CLONE_NEWUTS}, E(EPERM)},
    {SYS_clone, {CLONE_NEWCGROUP}, E(EPERM)},
    {SYS_clone3, {0}, E(ENOSYS)},
    {SYS_openat2, {0}, E(ENOSYS)},

    {SYS_socket, {AF_UNIX, SOCK_STREAM}, ALLOW},
    {SYS_socket, {AF_UNIX, SOCK_RAW}, ALLOW}, /* the kernel makes it a datagram socket */
    {SYS_socket, {AF_INET, SOCK_STREAM | SOCK_CLOEXEC}, ALLOW},
    {SYS_socket, {AF_INET, SOCK_STREAM, IPPROTO_TCP}, ALLOW},
    {SYS_socket, {AF_INET, SOCK_DGRAM | SOCK_NONBLOCK}, ALLOW},
    {SYS_socket, {AF_INET, SOCK_DGRAM, IPPROTO_UDP}, ALLOW},
    {SYS_socket, {AF_INET, SOCK_DGRAM, IPPROTO_ICMP}, ALLOW},
    {SYS_socket, {AF_INET6, SOCK_STREAM}, ALLOW},
    {SYS_socket, {AF_INET6, SOCK_STREAM, IPPROTO_TCP}, ALLOW},
    {SYS_socket, {AF_INET6, SOCK_DGRAM}, ALLOW},
    {SYS_socket, {AF_INET6, SOCK_DGRAM, IPPROTO_UDP}, ALLOW},
    {SYS_socket, {AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6}, ALLOW},
    {SYS_socket, {AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0}, ALLOW}, /* getaddrinfo */
    {SYS_socket, {AF_NETLINK, SOCK_RAW, 12}, E(EAFNOSUPPORT)},     /* netfilter */
    {SYS_socket, {AF_NETLINK, SOCK_RAW, 16}, E(EAFNOSUPPORT)},     /* generic */
    {SYS_socket, {AF_INET, SOCK_RAW, IPPROTO_ICMP}, E(EPERM)},
    {SYS_socket, {AF_INET, 10 /* SOCK_PACKET */, 0x300}, E(EPERM)},
    {SYS_socket, {AF_INET6, SOCK_RAW | SOCK_CLOEXEC, 255}, E(EPERM)},
    {SYS_socket, {AF_INET, SOCK_STREAM, 132 /* SCTP */}, E(EPROTONOSUPPORT)},
    {SYS_socket, {AF_INET, SOCK_SEQPACKET}, E(EPROTONOSUPPORT)},
    {SYS_socket, {AF_INET6, SOCK_STREAM, 262 /* MPTCP */}, E(EPROTONOSUPPORT)},
    {SYS_socket, {AF_VSOCK, SOCK_STREAM}, E(EAFNOSUPPORT)},
    {SYS_socket, {AF_VSOCK | HIGH, SOCK_STREAM}, E(EAFNOSUPPORT)},
    {SYS_socket, {AF_ALG, SOCK_SEQPACKET}, E(EAFNOSUPPORT)},
    {SYS_socket, {AF_PACKET, SOCK_RAW}, E(EAFNOSUPPORT)},
    {SYS_socket, {(uint32_t)-1, SOCK_RAW}, E(EAFNOSUPPORT)},
    {SYS_socketpair, {AF_UNIX, SOCK_STREAM}, ALLOW},
    {SYS_socketpair, {AF_TIPC, SOCK_STREAM}, E(EAFNOSUPPORT)},
    {SYS_fcntl, {3, F_SETLK}, ALLOW},
    {SYS_fcntl, {3, F_SETLKW}, ALLOW},
    {SYS_fcntl, {3, F_OFD_GETLK}, E(EINVAL)},
    {SYS_fcntl, {3, F_OFD_SETLK}, E(EINVAL)},
    {SYS_fcntl, {3, F_OFD_SETLKW}, E(EINVAL)},
    {SYS_fcntl, {3, F_OFD_SETLKW + 1}, ALLOW},
    {SYS_setsockopt, {3, SOL_SOCKET, SO_REUSEADDR}, ALLOW},
    {SYS_setsockopt, {3, IPPROTO_TCP, 1 /* TCP_NODELAY */}, ALLOW},
    {SYS_setsockopt, {3, IPPROTO_TCP, 31 /* TCP_ULP */}, E(ENOPROTOOPT)},

    {SYS_ioctl, {0, TCGETS}, ALLOW},
    {SYS_ioctl, {0, TIOCGWINSZ}, ALLOW},
    {SYS_ioctl, {0, FIONREAD}, ALLOW},
    {SYS_ioctl, {0, TIOCGPTN}, ALLOW},
    {SYS_ioctl, {0, TIOCSTI}, E(EPERM)},
    {SYS_ioctl, {0, TIOCSTI | HIGH}, E(EPERM)},
    {SYS_ioctl, {0, TIOCLINUX}, E(EPERM)},
    {SYS_ioctl, {0, TIOCLINUX | HIGH}, E(EPERM)},
    {SYS_ioctl, {0, TIOCCONS}, E(EPERM)},
    {SYS_ioctl, {0, TIOCSETD}, E(EPERM)},
    {SYS_ioctl, {0, 0x401c5820}, E(EPERM)},        /* FS_IOC_FSSETXATTR */
    {SYS_ioctl, {0, 0x401c5820 | HIGH}, E(EPERM)},
    {SYS_ioctl, {0, 0x40086602}, E(EPERM)},        /* FS_IOC_SETFLAGS */
    {SYS_ioctl, {0, 0x40046602}, E(EPERM)},
    {SYS_ioctl, {0, 0x801c581f}, ALLOW},           /* FS_IOC_FSGETXATTR */
    {SYS_ioctl, {0, 0x80086601}, ALLOW},           /* FS_IOC_GETFLAGS */
    {SYS_ioctl, {0, 0xc020660b}, ALLOW},           /* FIEMAP */
    {SYS_ioctl, {0, 0x40049409}, ALLOW},           /* FICLONE */
    {SYS_ioctl, {0, 0x4020940d}, ALLOW},           /* FICLONERANGE */
    {SYS_ioctl, {0, 2}, ALLOW},                    /* FIGETBSZ */
    {SYS_ioctl, {0, SIOCGIFCONF}, ALLOW},
    {SYS_ioctl, {0, 0x80045200}, ALLOW},           /* RNDGETENTCNT */
    {SYS_ioctl, {0, 0xc0502100}, ALLOW},           /* SECCOMP_IOCTL_NOTIF_RECV */
    {SYS_ioctl, {0, 0x5000940e}, E(ENOTTY)},       /* BTRFS_IOC_SUBVOL_CREATE */
    {SYS_ioctl, {0, 0xae01}, E(ENOTTY)},           /* KVM_CREATE_VM */

    {SYS_prctl, {PR_SET_MM}, E(EPERM)},
    {SYS_prctl, {PR_SET_MM | HIGH}, E(EPERM)},
    {SYS_prctl, {PR_SET_PDEATHSIG, SIGKILL}, ALLOW},
    {SYS_prctl, {PR_SET_DUMPABLE}, ALLOW},
    {SYS_prctl, {PR_SET_KEEPCAPS}, ALLOW},
    {SYS_prctl, {PR_SET_NAME}, ALLOW},
    {SYS_prctl, {PR_SET_SECCOMP, 2}, ALLOW},
    {SYS_prctl, {PR_CAPBSET_READ}, ALLOW},
    {SYS_prctl, {PR_SET_NO_NEW_PRIVS, 1}, ALLOW},
    {SYS_prctl, {PR_SET_CHILD_SUBREAPER, 1}, ALLOW},
    {SYS_prctl, {PR_CAP_AMBIENT}, ALLOW},
    {SYS_prctl, {PR_SET_SPECULATION_CTRL}, ALLOW},
    {SYS_prctl, {60}, ALLOW}, /* PR_PAC_SET_ENABLED_KEYS */
    {SYS_prctl, {65}, ALLOW}, /* PR_SET_MDWE */
    {SYS_prctl, {0x53564d41}, ALLOW},
    {SYS_prctl, {PR_SET_PTRACER}, ALLOW},
    {SYS_prctl, {PR_MCE_KILL}, E(EINVAL)},
    {SYS_prctl, {59}, E(EINVAL)}, /* PR_SET_SYSCALL_USER_DISPATCH */
    {SYS_prctl, {62}, E(EINVAL)}, /* PR_SCHED_CORE */
    {SYS_prctl, {67}, E(EINVAL)}, /* PR_SET_MEMORY_MERGE */

    /* PID 1 is nobody's to change. */
    {SYS_kill, {1}, E(EPERM)},
    {SYS_kill, {1 | HIGH}, E(EPERM)},
    {SYS_kill, {2}, ALLOW},
    {SYS_kill, {0}, ALLOW},
    {SYS_tkill, {1}, E(EPERM)},
    {SYS_tkill, {1 | HIGH}, E(EPERM)},
    {SYS_tkill, {2}, ALLOW},
    {SYS_tkill, {0}, ALLOW},
    {SYS_tgkill, {1}, E(EPERM)},
    {SYS_tgkill, {1 | HIGH}, E(EPERM)},
    {SYS_tgkill, {2}, ALLOW},
    {SYS_tgkill, {0}, ALLOW},
    {SYS_rt_sigqueueinfo, {1}, E(EPERM)},
    {SYS_rt_sigqueueinfo, {1 | HIGH}, E(EPERM)},
    {SYS_rt_sigqueueinfo, {2}, ALLOW},
    {SYS_rt_sigqueueinfo, {0}, ALLOW},
    {SYS_rt_tgsigqueueinfo, {1}, E(EPERM)},
    {SYS_rt_tgsigqueueinfo, {1 | HIGH}, E(EPERM)},
    {SYS_rt_tgsigqueueinfo, {2}, ALLOW},
    {SYS_rt_tgsigqueueinfo, {0}, ALLOW},
    {SYS_pidfd_open, {1}, E(EPERM)},
    {SYS_pidfd_open, {1 | HIGH}, E(EPERM)},
    {SYS_pidfd_open, {2}, ALLOW},
    {SYS_pidfd_open, {0}, ALLOW},
    {SYS_prlimit64, {1}, E(EPERM)},
    {SYS_prlimit64, {1 | HIGH}, E(EPERM)},
    {SYS_prlimit64, {2}, ALLOW},
    {SYS_prlimit64, {0}, ALLOW},
    {SYS_sched_setaffinity, {1}, E(EPERM)},
    {SYS_sched_setaffinity, {1 | HIGH}, E(EPERM)},
    {SYS_sched_setaffinity, {2}, ALLOW},
    {SYS_sched_setaffinity, {0}, ALLOW},
    {SYS_sched_setparam, {1}, E(EPERM)},
    {SYS_sched_setparam, {1 | HIGH}, E(EPERM)},
    {SYS_sched_setparam, {2}, ALLOW},
    {SYS_sched_setparam, {0}, ALLOW},
    {SYS_sched_setscheduler, {1}, E(EPERM)},
    {SYS_sched_setscheduler, {1 | HIGH}, E(EPERM)},
    {SYS_sched_setscheduler, {2}, ALLOW},
    {SYS_sched_setscheduler, {0}, ALLOW},
    {SYS_sched_setattr, {1}, E(EPERM)},
    {SYS_sched_setattr, {1 | HIGH}, E(EPERM)},
    {SYS_sched_setattr, {2}, ALLOW},
    {SYS_sched_setattr, {0}, ALLOW},
    {SYS_kill, {UINT64_MAX}, ALLOW}, /* everybody but PID 1 and oneself */
    {SYS_setpriority, {PRIO_PROCESS, 0}, ALLOW},
    {SYS_setpriority, {PRIO_PROCESS, 2}, ALLOW},
    {SYS_setpriority, {PRIO_PROCESS, 1}, E(EPERM)},
    {SYS_setpriority, {PRIO_PROCESS, 1 | HIGH}, E(EPERM)},
    {SYS_setpriority, {PRIO_PGRP, 0}, ALLOW},
    {SYS_setpriority, {PRIO_PGRP, 1}, E(EPERM)},
    {SYS_setpriority, {PRIO_USER, 0}, E(EPERM)},
    {SYS_ioprio_set, {1, 0}, ALLOW},
    {SYS_ioprio_set, {1, 1}, E(EPERM)},
    {SYS_ioprio_set, {2, 0}, ALLOW},
    {SYS_ioprio_set, {2, 1}, E(EPERM)},
    {SYS_ioprio_set, {3, 0}, E(EPERM)},
    {SYS_personality, {0}, ALLOW},
    {SYS_personality, {0xffffffff}, ALLOW},
    {SYS_personality, {UINT64_MAX}, ALLOW},
    {SYS_personality, {0x0040000}, E(EPERM)}, /* ADDR_NO_RANDOMIZE */
    {SYS_personality, {0x0400000}, E(EPERM)}, /* READ_IMPLIES_EXEC */
    {SYS_personality, {8}, E(EPERM)},         /* PER_LINUX32 */
    {SYS_madvise, {0, 0, 4}, ALLOW},
    {SYS_madvise, {0, 0, 12 /* MADV_MERGEABLE */}, E(EINVAL)},

    {SYS_openat, {0, 0, O_RDONLY, 04755}, ALLOW}, /* the mode is not looked at */
    {SYS_openat, {0, 0, O_CREAT, 0755}, ALLOW},
    {SYS_openat, {0, 0, O_CREAT, 04755}, E(EPERM)},
    {SYS_openat, {0, 0, O_CREAT | HIGH, 02755 | HIGH}, E(EPERM)},
    {SYS_openat, {0, 0, O_TMPFILE | O_RDWR, 04755}, E(EPERM)},
    {SYS_fchmod, {0, 0777}, ALLOW},
    {SYS_fchmod, {0, 01777}, ALLOW},
    {SYS_fchmod, {0, 04755}, E(EPERM)},
    {SYS_fchmod, {0, 02755}, E(EPERM)},
    {SYS_fchmodat, {0, 0, 0644}, ALLOW},
    {SYS_fchmodat, {0, 0, 04755}, E(EPERM)},
    {SYS_fchmodat2, {0, 0, 0644}, ALLOW},
    {SYS_fchmodat2, {0, 0, 02755}, E(EPERM)},
    {SYS_mkdirat, {0, 0, 02755}, ALLOW},
    {SYS_mknodat, {0, 0, 0644}, ALLOW},
    {SYS_mknodat, {0, 0, S_IFREG | 0644}, ALLOW},
    {SYS_mknodat, {0, 0, S_IFIFO | 0644}, ALLOW},
    {SYS_mknodat, {0, 0, S_IFSOCK | 0644}, ALLOW},
    {SYS_mknodat, {0, 0, S_IFCHR | 0644}, E(EPERM)},
    {SYS_mknodat, {0, 0, S_IFBLK | 0644}, E(EPERM)},
    {SYS_mknodat, {0, 0, S_IFREG | 04755}, E(EPERM)},
#ifdef SYS_open
    {SYS_open, {0, O_RDWR, 04755}, ALLOW},
    {SYS_open, {0, O_CREAT | O_RDWR, 0600}, ALLOW},
    {SYS_open, {0, O_CREAT | O_RDWR, 02755}, E(EPERM)},
    {SYS_open, {0, O_TMPFILE | O_RDWR, 04755}, E(EPERM)},
    {SYS_creat, {0, 0644}, ALLOW},
    {SYS_creat, {0, 04755}, E(EPERM)},
    {SYS_chmod, {0, 0644}, ALLOW},
    {SYS_chmod, {0, 06755}, E(EPERM)},
    {SYS_mknod, {0, 0644}, ALLOW},
    {SYS_mknod, {0, S_IFREG}, ALLOW},
    {SYS_mknod, {0, S_IFIFO}, ALLOW},
    {SYS_mknod, {0, S_IFSOCK}, ALLOW},
    {SYS_mknod, {0, S_IFCHR}, E(EPERM)},
    {SYS_mknod, {0, S_IFIFO | 02000}, E(EPERM)},
#endif
    {SYS_sync, {0}, E(0)}, /* succeeds and does nothing */
};

/* What must never be reachable, whatever the arguments. */
static const struct {
    long nr;
    uint32_t want;
} closed[] = {
    {SYS_mount, E(EPERM)}, {SYS_umount2, E(EPERM)}, {SYS_unshare, E(EPERM)}, {SYS_setns, E(EPERM)},
    {SYS_ptrace, E(EPERM)}, {SYS_chroot, E(EPERM)}, {SYS_pivot_root, E(EPERM)},
    {SYS_reboot, E(EPERM)}, {SYS_bpf, E(EPERM)}, {SYS_perf_event_open, E(EPERM)},
    {SYS_open_by_handle_at, E(EPERM)}, {SYS_name_to_handle_at, E(EPERM)},
    {SYS_process_vm_readv, E(EPERM)}, {SYS_process_vm_writev, E(EPERM)},
    {SYS_pidfd_getfd, E(EPERM)}, {SYS_kcmp, E(EPERM)}, {SYS_init_module, E(EPERM)},
    {SYS_finit_module, E(EPERM)}, {SYS_kexec_load, E(EPERM)}, {SYS_swapon, E(EPERM)},
    {SYS_acct, E(EPERM)}, {SYS_quotactl, E(EPERM)}, {SYS_syslog, E(EPERM)},
    {SYS_clock_settime, E(EPERM)}, {SYS_adjtimex, E(EPERM)}, {SYS_sethostname, E(EPERM)},
    {SYS_io_uring_setup, E(ENOSYS)}, {SYS_io_uring_enter, E(ENOSYS)},
    {SYS_io_uring_register, E(ENOSYS)}, {SYS_userfaultfd, E(ENOSYS)}, {SYS_keyctl, E(ENOSYS)},
    {SYS_add_key, E(ENOSYS)}, {SYS_request_key, E(ENOSYS)}, {SYS_memfd_secret, E(ENOSYS)},
    {SYS_mbind, E(ENOSYS)}, {SYS_set_mempolicy, E(ENOSYS)}, {SYS_move_pages, E(ENOSYS)},
    {SYS_migrate_pages, E(ENOSYS)}, {SYS_open_tree, E(ENOSYS)}, {SYS_move_mount, E(ENOSYS)},
    {SYS_fsopen, E(ENOSYS)}, {SYS_fsconfig, E(ENOSYS)}, {SYS_fsmount, E(ENOSYS)},
    {SYS_fspick, E(ENOSYS)}, {SYS_mount_setattr, E(ENOSYS)}, {SYS_open_tree_attr, E(ENOSYS)},
    {SYS_file_setattr, E(ENOSYS)}, {SYS_vmsplice, E(ENOSYS)}, {SYS_io_submit, E(ENOSYS)},
#ifdef SYS_modify_ldt
    {SYS_modify_ldt, E(ENOSYS)}, {SYS_iopl, E(EPERM)}, {SYS_ioperm, E(EPERM)},
#endif
};
/* clang-format on */

static void run_cases(struct sim *sim)
{
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        uint32_t got = verdict(sim, (uint32_t)cases[i].nr, cases[i].args);
        if (got != cases[i].want)
            fail_msg("case %zu, call %ld: %#x, not %#x", i, cases[i].nr, got, cases[i].want);
    }
}

static void arguments_decide(void **state)
{
    AUTO_DONE(sim) struct sim sim;

    sim_init(&sim, SECCOMP_DEFAULT);
    run_cases(&sim);
}

static void closed_calls_stay_closed(void **state)
{
    static const uint64_t all_ones[6] = {UINT64_MAX, UINT64_MAX, UINT64_MAX,
                                         UINT64_MAX, UINT64_MAX, UINT64_MAX};
    AUTO_DONE(sim) struct sim sim;

    sim_init(&sim, SECCOMP_DEFAULT);
    for (size_t i = 0; i < ARRAY_SIZE(closed); i++) {
        assert_int_equal(verdict(&sim, (uint32_t)closed[i].nr, NULL), closed[i].want);
        assert_int_equal(verdict(&sim, (uint32_t)closed[i].nr, all_ones), closed[i].want);
    }
}

static void foreign_architectures_are_killed(void **state)
{
    static const uint32_t foreign[] = {AUDIT_ARCH_I386, AUDIT_ARCH_ARM, AUDIT_ARCH_S390X, 0};
    AUTO_DONE(sim) struct sim sim;

    sim_init(&sim, SECCOMP_DEFAULT);
    for (size_t i = 0; i < ARRAY_SIZE(foreign); i++) {
        struct seccomp_data data = {.nr = SYS_read, .arch = foreign[i]};
        assert_int_equal(sim_run(&sim, &data), SECCOMP_RET_KILL_PROCESS);
    }
}

static void unknown_numbers_do_not_exist(void **state)
{
    AUTO_DONE(sim) struct sim sim;

    sim_init(&sim, SECCOMP_DEFAULT);
    for (uint32_t nr = SYS_mseal + 1; nr < 100000; nr++)
        assert_int_equal(verdict(&sim, nr, NULL), E(ENOSYS));
    for (uint32_t nr = 0x40000000; nr < 0x40000000 + SWEEP; nr++) /* x32 */
        assert_int_equal(verdict(&sim, nr, NULL), E(ENOSYS));
    assert_int_equal(verdict(&sim, UINT32_MAX, NULL), E(ENOSYS));
}

static void debug_profile_adds_only_debuggers(void **state)
{
    AUTO_DONE(sim) struct sim normal;
    AUTO_DONE(sim) struct sim debug;

    sim_init(&normal, SECCOMP_DEFAULT);
    sim_init(&debug, SECCOMP_DEBUG);
    for (uint32_t nr = 0; nr < SWEEP; nr++) {
        bool added = nr == SYS_ptrace || nr == SYS_process_vm_readv || nr == SYS_process_vm_writev;
        assert_int_equal(verdict(&debug, nr, NULL), added ? ALLOW : verdict(&normal, nr, NULL));
    }
    const uint64_t first[6] = {1}, second[6] = {0, 1};
    assert_int_equal(verdict(&debug, SYS_process_vm_writev, first), E(EPERM));
    assert_int_equal(verdict(&debug, SYS_ptrace, second), E(EPERM));
}

/* What commands inherit is what they had, but for the call that they are then denied. */
static void init_profile_adds_only_clone3(void **state)
{
    AUTO_DONE(sim) struct sim normal;
    AUTO_DONE(sim) struct sim init;

    sim_init(&normal, SECCOMP_DEFAULT);
    sim_init(&init, SECCOMP_INIT);
    for (uint32_t nr = 0; nr < SWEEP; nr++)
        assert_int_equal(verdict(&init, nr, NULL),
                         nr == SYS_clone3 ? ALLOW : verdict(&normal, nr, NULL));
    assert_int_equal(verdict(&normal, SYS_clone3, NULL), E(ENOSYS));
}

static void every_instruction_has_a_test(void **state)
{
    AUTO_DONE(sim) struct sim sim;
    struct seccomp_data foreign = {.arch = AUDIT_ARCH_I386};

    sim_init(&sim, SECCOMP_DEFAULT);
    run_cases(&sim);
    for (uint32_t nr = 0; nr < SWEEP; nr++)
        (void)verdict(&sim, nr, NULL);
    (void)sim_run(&sim, &foreign);
    for (size_t i = 0; i < sim.n; i++) {
        if (!sim.hit[i])
            fail_msg("instruction %zu of %zu never ran (k=%#x)", i, sim.n, sim.prog[i].k);
    }
}

static const char *verdict_name(uint32_t ret)
{
    static const struct {
        uint32_t ret;
        const char *name;
    } names[] = {
        {ALLOW, "allow"},
        {E(0), "success"},
        {E(EPERM), "EPERM"},
        {E(ENOSYS), "ENOSYS"},
        {E(EINVAL), "EINVAL"},
        {E(ENOTTY), "ENOTTY"},
        {E(EAFNOSUPPORT), "EAFNOSUPPORT"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (names[i].ret == ret)
            return names[i].name;
    }
    fail_msg("no name for verdict %#x", ret);
    return NULL;
}

struct names {
    const char *name[SWEEP];
    bool by_args[SWEEP];
};

static void collect_names(uint32_t arch, struct names *ret)
{
    for (const struct seccomp_family *family = seccomp_families; family->names[0]; family++) {
        for (size_t i = 0; i < SECCOMP_FAMILY_MAX && family->names[i]; i++) {
            int nr = seccomp_resolve(arch, family->names[i]);
            assert_true(nr < SWEEP);
            if (nr < 0)
                continue;
            if (family->profiles != 1u << SECCOMP_INIT) /* to everybody else it does not exist */
                ret->name[nr] = family->names[i];
            ret->by_args[nr] = family->args != NULL;
        }
    }
}

/* Golden file: what each number gets with all arguments zero. Names are those of the policy. */
static char *render(uint32_t arch)
{
    struct names names = {0};
    AUTO_DONE(sim) struct sim normal;
    AUTO_DONE(sim) struct sim debug;
    AUTO_DONE(sim) struct sim daemon;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    assert_non_null(f);
    collect_names(arch, &names);
    sim_init_for(&normal, arch, SECCOMP_DEFAULT);
    sim_init_for(&debug, arch, SECCOMP_DEBUG);
    sim_init_for(&daemon, arch, SECCOMP_DAEMON);
    fprintf(f, "# nr name default debug daemon; * looks at arguments, all zero here\n");
    for (uint32_t nr = 0; nr < SWEEP; nr++)
        fprintf(f, "%u %s%s %s %s %s\n", nr, names.name[nr] ? names.name[nr] : "-",
                names.by_args[nr] ? "*" : "", verdict_name(verdict(&normal, nr, NULL)),
                verdict_name(verdict(&debug, nr, NULL)), verdict_name(verdict(&daemon, nr, NULL)));
    assert_int_equal(fclose(f), 0);
    return text;
}

static void compare_with_golden(uint32_t arch, const char *path)
{
    AUTO_FREE char *want = calloc(1, 1 << 16);
    AUTO_FREE char *got = render(arch);
    FILE *f;

    if (getenv("UPDATE_GOLDEN")) {
        f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(got, f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    f = fopen(path, "re");
    assert_non_null(f);
    assert_true(fread(want, 1, (1 << 16) - 1, f) > 0);
    assert_int_equal(fclose(f), 0);
    assert_string_equal(got, want);
}

static void verdicts_match_the_golden_file(void **state)
{
    compare_with_golden(AUDIT_ARCH_X86_64, GOLDEN_DIR "/seccomp.txt");
    compare_with_golden(AUDIT_ARCH_AARCH64, GOLDEN_DIR "/seccomp-aarch64.txt");
}

static void other_architectures_have_no_policy(void **state)
{
    struct sock_filter *prog = NULL;
    struct err err = {0};
    size_t n;

    assert_true(seccomp_compile_for(AUDIT_ARCH_S390X, SECCOMP_DEFAULT, &prog, &n, &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_null(prog);
}

/* The rest runs under the real kernel, in a child that installs the filter. */

static long raw(long nr, long a, long b, long c)
{
    return syscall(nr, a, b, c, 0, 0, 0) < 0 ? -errno : 0;
}

/* One line per promise; the number of the line that is broken is the exit status. */
static int try_calls(void)
{
    int pair[2];

    if (raw(SYS_getpid, 0, 0, 0) != 0)
        return __LINE__;
    if (raw(SYS_clone3, 0, 0, 0) != -ENOSYS || raw(SYS_io_uring_setup, 1, 0, 0) != -ENOSYS)
        return __LINE__;
    if (raw(SYS_unshare, CLONE_NEWUSER, 0, 0) != -EPERM || raw(SYS_mount, 0, 0, 0) != -EPERM)
        return __LINE__;
    if (raw(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0) != -EPERM)
        return __LINE__;
    if (raw(SYS_ioctl, 0, (long)(TIOCSTI | HIGH), 0) != -EPERM)
        return __LINE__;
    if (raw(SYS_socket, AF_VSOCK, SOCK_STREAM, 0) != -EAFNOSUPPORT)
        return __LINE__;
    if (raw(SYS_socket, AF_INET, SOCK_RAW, IPPROTO_ICMP) != -EPERM)
        return __LINE__;
    if (raw(SYS_socket, AF_UNIX, SOCK_STREAM, 0) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return __LINE__;
    if (raw(SYS_fchmod, -1, 04755, 0) != -EPERM || raw(SYS_fchmod, -1, 0755, 0) != -EBADF)
        return __LINE__;
    if (raw(SYS_personality, 0x0040000, 0, 0) != -EPERM || raw(SYS_personality, -1, 0, 0) < 0)
        return __LINE__;
    if (raw(SYS_sync, 0, 0, 0) != 0)
        return __LINE__;
    return 0;
}

/* A sandbox inside the sandbox: the same filter again, and a Landlock ruleset. */
static int try_nesting(const struct sim *sim)
{
    struct compat_landlock_ruleset_attr attr = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SYM};
    long fd = syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);

    if (fd >= 0 ? raw(SYS_landlock_restrict_self, fd, 0, 0) != 0
                : errno != EOPNOTSUPP && errno != ENOSYS)
        return __LINE__;
    return seccomp_install(sim->prog, (unsigned short)sim->n) < 0 ? __LINE__ : 0;
}

#ifdef __x86_64__
static int call_32_bit(void)
{
    long ret;

    __asm__ volatile("int $0x80" : "=a"(ret) : "a"(20L) : "memory");
    return ret > 0 ? __LINE__ : 0;
}
#endif

enum child { CHILD_CALLS, CHILD_NESTING, CHILD_32_BIT };

static int run_child(enum child what)
{
    AUTO_DONE(sim) struct sim sim;
    int status;
    pid_t pid;

    sim_init(&sim, SECCOMP_DEFAULT);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int line = __LINE__;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
            seccomp_install(sim.prog, (unsigned short)sim.n) == 0) {
            if (what == CHILD_CALLS)
                line = try_calls();
            else if (what == CHILD_NESTING)
                line = try_nesting(&sim);
#ifdef __x86_64__
            else
                line = call_32_bit();
#endif
        }
        /* Lines do not fit into a status; what matters is which one, and the text shows it. */
        if (line != 0)
            dprintf(STDERR_FILENO, "line %d failed\n", line);
        _exit(line != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void kernel_agrees_with_the_simulation(void **state)
{
    assert_int_equal(run_child(CHILD_CALLS), 0);
}

static void sandboxes_nest(void **state)
{
    assert_int_equal(run_child(CHILD_NESTING), 0);
}

static void calls_of_32_bit_kill(void **state)
{
#ifdef __x86_64__
    int status = run_child(CHILD_32_BIT);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSYS);
#else
    print_message("skipped: this processor has no 32 bit calls\n"), skip();
#endif
}

static void install_reports_the_error(void **state)
{
    struct sock_filter bad = {.code = 0xffff};

    assert_int_equal(seccomp_install(&bad, 0), -EINVAL);
}

/* Also where a jump has to be made longer after the fact. */
static void programs_that_do_not_fit_are_refused(void **state)
{
    struct seccomp_entry entries[600];
    struct sock_filter *small;
    int n;

    for (uint32_t i = 0; i < ARRAY_SIZE(entries); i++)
        entries[i] = (struct seccomp_entry){2 * i, ALLOW, NULL};
    small = calloc(BPF_MAXINSNS, sizeof(*small));
    n = seccomp_bpf_build(ARCH, entries, ARRAY_SIZE(entries), small, BPF_MAXINSNS);
    free(small);
    assert_true(n > 1200);
    for (int cap = 0; cap < n; cap++) {
        /* Of the very size, so that a sanitizer sees a write behind it. */
        small = calloc((size_t)cap + 1, sizeof(*small));
        assert_int_equal(seccomp_bpf_build(ARCH, entries, ARRAY_SIZE(entries), small, (size_t)cap),
                         -E2BIG);
        assert_int_equal(small[cap].code, 0);
        free(small);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_decide),
        cmocka_unit_test(closed_calls_stay_closed),
        cmocka_unit_test(foreign_architectures_are_killed),
        cmocka_unit_test(unknown_numbers_do_not_exist),
        cmocka_unit_test(debug_profile_adds_only_debuggers),
        cmocka_unit_test(init_profile_adds_only_clone3),
        cmocka_unit_test(every_instruction_has_a_test),
        cmocka_unit_test(verdicts_match_the_golden_file),
        cmocka_unit_test(other_architectures_have_no_policy),
        cmocka_unit_test(kernel_agrees_with_the_simulation),
        cmocka_unit_test(sandboxes_nest),
        cmocka_unit_test(calls_of_32_bit_kill),
        cmocka_unit_test(install_reports_the_error),
        cmocka_unit_test(programs_that_do_not_fit_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
