/* SPDX-License-Identifier: Apache-2.0 */

/* The table of steps of a new sandbox's child, from its ids to execve. */

#include "sandbox/setup/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/caps.h"
#include "inside/clone.h"
#include "inside/init_wire.h"
#include "inside/landlock.h"
#include "sandbox/net/net.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"

#define HOSTNAME "box"
#define OOM_SCORE "500"

/* What steps hand to each other. The child is single-threaded and ends in execve. */
static struct {
    int root_fd;
    int landlock_fd;
    int landlock_abi;
    int memcg_fd;
} built = {.root_fd = -1, .landlock_fd = -1, .memcg_fd = -1};

static int step_ids(const struct setup *s, struct err *err)
{
    if (!s->switch_ids)
        return 0;
    /* An ordinary user's child begins as the payload. Where that is uid 0, leaving it would take
     * the capabilities. */
    if (geteuid() == 0 && s->plan->init_uid != 0 &&
        prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
        return err_sys(err, errno, "keep capabilities");
    if (setresgid(s->plan->init_gid, s->plan->init_gid, s->plan->init_gid) < 0 ||
        setresuid(s->plan->init_uid, s->plan->init_uid, s->plan->init_uid) < 0)
        return err_sys(err, errno, "switch to the session's own ids");
    /* Changing ids took our own /proc/self away; later steps write there. This id is ours alone. */
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 ? err_sys(err, errno, "own /proc/self") : 0;
}

/* The parent makes the groups while we build the tree. */
static int step_groups(const struct setup *s, struct err *err)
{
    struct setup_groups groups = {0};
    int fds[SETUP_GROUPS_MAX];
    size_t n = SETUP_GROUPS_MAX;
    if (fd_recv_msg(s->go_fd, &groups, sizeof(groups), fds, &n, 0) != (ssize_t)sizeof(groups) ||
        n != (size_t)groups.v1 + groups.leaf + groups.memcg)
        return err_set(err, ERR_BACKEND, "the launcher went away");
    /* "0" is the writing thread itself, which spares the kernel a system-wide lock. The descriptors
     * were opened by the parent, and the kernel checks the opener's rights. */
    for (int i = 0; i < groups.v1; i++)
        if (fd_write_all(fds[i], "0", 1) < 0)
            return err_sys(err, EIO, "enter the cgroup");
    if (unshare(CLONE_NEWCGROUP) < 0)
        return err_sys(err, errno, "cgroup namespace");
    /* Only now: the namespace is rooted at the session's group, so that PID 1 may use the groups
     * beside its own. */
    if (groups.leaf && fd_write_all(fds[groups.v1], "0", 1) < 0)
        return err_sys(err, EIO, "enter the leaf cgroup");
    if (groups.memcg)
        built.memcg_fd = fds[n - 1];
    return 0;
}

/* The time since boot starts at zero: how long the host is up is none of the sandbox's business. In
 * force from execve on. */
static int step_clock(const struct setup *s, struct err *err)
{
    char text[128];
    struct timespec mono, boot;
    if (unshare(CLONE_NEWTIME) < 0)
        return err_sys(err, errno, "time namespace");
    (void)clock_gettime(CLOCK_MONOTONIC, &mono);
    (void)clock_gettime(CLOCK_BOOTTIME, &boot);
    (void)snprintf(text, sizeof(text), "monotonic -%lld 0\nboottime -%lld 0\n",
                   (long long)mono.tv_sec, (long long)boot.tv_sec);
    int r = fd_write_file_at(s->proc_fd, "self/timens_offsets", text);
    return r < 0 ? err_sys(err, -r, "time namespace offsets") : 0;
}

static int step_names(const struct setup *s, struct err *err)
{
    if (sethostname(HOSTNAME, strlen(HOSTNAME)) < 0 || setdomainname("", 0) < 0)
        return err_sys(err, errno, "hostname");
    /* Before /proc becomes read-only. */
    (void)fd_write_file_at(s->proc_fd, "self/oom_score_adj", OOM_SCORE);
    int r = s->lo_up ? 0 : net_lo_up();
    return r < 0 ? err_sys(err, -r, "loopback interface") : 0;
}

static int step_root(const struct setup *s, struct err *err)
{
    char size[32], inodes[16];
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(err, errno, "private mounts");
    (void)snprintf(size, sizeof(size), "%llu", (unsigned long long)s->plan->root_bytes);
    (void)snprintf(inodes, sizeof(inodes), "%u", s->plan->root_inodes);
    const struct mount_option options[] = {
        {"size", size},
        {"nr_inodes", inodes},
        {"mode", "0755"},
        {0},
    };
    built.root_fd = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (built.root_fd < 0)
        return err_sys(err, -built.root_fd, "tmpfs for the root");
    /* On the bare root itself: names still mean what is below it until step_pivot(). */
    const char *on = s->bare ? "/" : SETUP_ROOT_PLACE;
    AUTO_CLOSE int place = open(on, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (place < 0)
        return err_sys(err, errno, "open '%s'", on);
    int r = mount_attach(built.root_fd, place);
    return r < 0 ? err_sys(err, -r, "attach the root") : 0;
}

static int step_tree(const struct setup *s, struct err *err)
{
    return s->plan->flags & PLAN_GVISOR ? gvisor_tree_child(s, built.root_fd, err)
                                        : setup_tree_child(s, built.root_fd, err);
}

static int step_pivot(const struct setup *s, struct err *err)
{
    bool gvisor = (s->plan->flags & PLAN_GVISOR) != 0; /* whose root is not the program's */
    if ((s->plan->flags & PLAN_ROOT_WRITABLE) && !gvisor && s->switch_ids &&
        fchownat(built.root_fd, "", s->plan->payload_uid, s->plan->payload_gid, AT_EMPTY_PATH) < 0)
        return err_sys(err, errno, "chown the root");
    if (fchdir(built.root_fd) < 0)
        return err_sys(err, errno, "enter the root");
    /* Below the new root lies the bare one, empty but for devices that the sandbox has as well. */
    if (s->bare ? chroot(".") < 0 : syscall(SYS_pivot_root, ".", ".") < 0)
        return err_sys(err, errno, "change the root");
    /* Else the old root is now stacked on the new one; from here on nothing of the host is
     * reachable by a path. */
    if ((!s->bare && umount2(".", MNT_DETACH) < 0) || chdir("/") < 0)
        return err_sys(err, errno, "leave the host's root");
    if (!(s->plan->flags & PLAN_ROOT_WRITABLE) || gvisor) {
        int r = mount_set(built.root_fd, MOUNT_ATTR_RDONLY, -1, 0);
        if (r < 0)
            return err_sys(err, -r, "read-only root");
    }
    return 0;
}

static int step_landlock(const struct setup *s, struct err *err)
{
    struct landlock_path rules[PLAN_OPS_MAX + 4];
    size_t n = 0;
    const struct plan *p = s->plan;

    built.landlock_abi = p->flags & PLAN_GVISOR ? 0 : landlock_abi();
    if (built.landlock_abi <= 0)
        return 0;
    bool root_writable = (p->flags & PLAN_ROOT_WRITABLE) != 0;
    rules[n++] = (struct landlock_path){.path = "/",
                                        .access = root_writable ? LANDLOCK_RW : LANDLOCK_RO_EXEC};
    rules[n++] = (struct landlock_path){.path = "/dev", .access = LANDLOCK_DEV};
    rules[n++] = (struct landlock_path){.path = "/dev/shm", .access = LANDLOCK_RW_NOEXEC};
    rules[n++] = (struct landlock_path){.path = "/dev/pts", .access = LANDLOCK_DEV};
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].flags & PLAN_OP_LANDLOCK_RW)
            rules[n++] = (struct landlock_path){.path = plan_str(p, p->ops[i].target),
                                                .access = LANDLOCK_RW};
    /* TCP stays open: with the network off the namespace holds nothing but its own loopback, which
     * people use. */
    built.landlock_fd = landlock_build(rules, n, 0);
    return built.landlock_fd < 0 ? err_sys(err, -built.landlock_fd, "Landlock rules") : 0;
}

static int step_privilege(const struct setup *s, struct err *err)
{
    /* What PID 1 needs to turn a copy of itself into the payload, and nothing else; only inside its
     * namespace. */
    uint64_t keep = s->plan->flags & PLAN_GVISOR ? GVISOR_CAPS
                    : s->switch_ids
                        ? (1ULL << CAP_SETUID) | (1ULL << CAP_SETGID) | (1ULL << CAP_SETPCAP) |
                              (1ULL << CAP_KILL) /* its children have another uid */
                        : (1ULL << CAP_SETPCAP);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "no_new_privs");
    int r = caps_keep_over_exec(keep);
    if (r < 0)
        return err_sys(err, -r, "capabilities");
    /* A sandbox must not outlive its launcher. Set after the ids: changing them clears it. A parent
     * that died before this moment sends no signal any more. */
    struct pollfd parent = {.fd = s->parent_fd, .events = POLLIN};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&parent, 1, 0) < 0)
        return err_sys(err, errno, "parent death signal");
    return parent.revents != 0 ? err_set(err, ERR_BACKEND, "the launcher went away") : 0;
}

static int make_config(const struct setup *s)
{
    struct init_config config = {
        .version = INIT_CONFIG_VERSION,
        .cgroup_mode = (uint32_t)s->cgroup_mode,
        .payload_uid = s->plan->payload_uid,
        .payload_gid = s->plan->payload_gid,
        .switch_uid = s->switch_ids,
        .n_rlimits = s->plan->n_rlimits,
        .landlock = built.landlock_fd >= 0 ? (uint32_t)built.landlock_abi : 0,
    };
    for (uint32_t i = 0; s->plan->quota_bytes > 0 && i < s->plan->n_ops; i++)
        if (s->plan->ops[i].kind == PLAN_OP_BIND &&
            s->plan->ops[i].source_class == PLAN_SRC_PRIVATE)
            (void)str_copy(config.quota_path, sizeof(config.quota_path),
                           plan_str(s->plan, s->plan->ops[i].target));
    memcpy(config.rlimits, s->plan->rlimits, sizeof(config.rlimits));
    return fd_sealed_memfd("box-init-config", &config, sizeof(config));
}

/* Above the numbers that step_descriptors() fills, and no higher than it takes: the table never
 * becomes smaller again. */
static int out_of_the_way(int fd)
{
    return fd >= INIT_FD_MAX ? fd : fcntl(fd, F_DUPFD_CLOEXEC, INIT_FD_MAX);
}

/* Puts the descriptors of enum init_fd in place; everything else closes at execve. */
static int step_descriptors(const struct setup *s, struct err *err)
{
    int from[INIT_FD_MAX];
    int config = make_config(s);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (config < 0 || null_fd < 0)
        return err_sys(err, errno, "prepare descriptors");
    for (int fd = 0; fd < INIT_FD_MAX; fd++)
        from[fd] = null_fd;
    /* runsc has nothing but somewhere to complain; and what it says ends with it. */
    if (s->plan->flags & PLAN_GVISOR)
        from[STDERR_FILENO] = s->control_fds[0];
    from[INIT_FD_CONTROL] = s->control_fds[0];
    from[INIT_FD_PARENT] = s->parent_fd;
    from[INIT_FD_CONFIG] = config;
    from[INIT_FD_SECCOMP] = s->seccomp_fd;
    if (built.landlock_fd >= 0)
        from[INIT_FD_LANDLOCK] = built.landlock_fd;
    if (s->cgroup_fd >= 0)
        from[INIT_FD_CGROUP] = s->cgroup_fd;
    if (built.memcg_fd >= 0)
        from[INIT_FD_MEMCG1] = built.memcg_fd;
    /* A source may sit on the number of another's target. */
    for (int fd = 0; fd < INIT_FD_MAX; fd++) {
        from[fd] = out_of_the_way(from[fd]);
        if (from[fd] < 0)
            return err_sys(err, errno, "move descriptors");
    }
    for (int fd = 0; fd < INIT_FD_MAX; fd++)
        if (dup3(from[fd], fd, 0) < 0)
            return err_sys(err, errno, "place descriptors");
    return 0;
}

/* The whole confinement, in order. Order is security-relevant: mounts need capabilities, which
 * later steps give up for good. */
static const struct {
    const char *name;
    int (*run)(const struct setup *s, struct err *err);
} steps[] = {
    {"ids", step_ids},
    {"clock", step_clock},
    {"names", step_names},
    {"root", step_root},
    {"tree", step_tree},
    {"cgroups", step_groups},
    {"pivot", step_pivot},
    {"landlock", step_landlock},
    {"privilege", step_privilege},
    {"descriptors", step_descriptors},
};

/* Until here the table is the parent's own, who waits for our word before it changes what we use.
 */
static int own_descriptors(const struct setup *s)
{
    if (syscall(SYS_close_range, s->fds_end, ~0U, CLOSE_RANGE_UNSHARE) < 0)
        return -errno;
    /* With the parent's ends we would wait for ourselves once it is gone. */
    (void)close(s->parent_fds[0]);
    (void)close(s->parent_fds[1]);
    return fd_write_all(s->status_fd, "", 1);
}

/* Waits until the parent has mapped our ids. The working directory becomes a /proc in which we are
 * "self": that of the session, or the host's. */
static int wait_to_go(struct setup *s, struct err *err)
{
    char byte;
    size_t n = 1;
    s->proc_fd = -1;
    if (fd_recv_msg(s->go_fd, &byte, 1, &s->proc_fd, &n, 0) != 1 || n != (s->bare ? 1U : 0U))
        return err_set(err, ERR_BACKEND, "the launcher went away");
    if (!s->bare)
        s->proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return s->proc_fd < 0 || fchdir(s->proc_fd) < 0 ? err_sys(err, errno, "enter /proc") : 0;
}

void setup_child(struct setup *s)
{
    struct err err = {0};
    if (own_descriptors(s) < 0)
        child_exit(1);
    (void)umask(022); /* what is made from here on is what the payload sees */
    /* Before anything else can fail. */
    int status = out_of_the_way(s->status_fd);
    int exe = out_of_the_way(s->init_exe_fd);
    if (status < 0 || exe < 0) {
        (void)err_sys(&err, errno, "move descriptors");
        status = status < 0 ? s->status_fd : status;
        goto fail;
    }

    if (wait_to_go(s, &err) < 0)
        goto fail;
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        if (steps[i].run(s, &err) < 0) {
            /* What the caller did wrong is said in the caller's words. */
            if (err.code == ERR_SYSTEM || err.code == ERR_BACKEND)
                (void)err_wrap(&err, "sandbox step '%s'", steps[i].name);
            goto fail;
        }
    }
    /* Descriptors that lack close-on-exec are closed here, whichever code opened them. runsc does
     * not get those that are meant for box-init. */
    unsigned kept = s->plan->flags & PLAN_GVISOR ? STDERR_FILENO + 1 : INIT_FD_MAX;
    (void)syscall(SYS_close_range, kept, ~0U, CLOSE_RANGE_CLOEXEC);
    char *argv[] = {(char *)(uintptr_t) "box-init", NULL};
    char *envp[] = {NULL};
    if (s->plan->flags & PLAN_GVISOR)
        (void)gvisor_exec_child(s->plan, &err);
    else
        (void)syscall(SYS_execveat, exe, "", argv, envp, AT_EMPTY_PATH);
    if (err.code == ERR_NONE)
        (void)err_sys(&err, errno, "start box-init");
fail:
    (void)!write(status, &err, sizeof(err));
    child_exit(1);
}
