/* SPDX-License-Identifier: Apache-2.0 */

/* Starts, kills and cleans up sandboxes: prepares, clones, maps ids, sets limits. */

#include "sandbox/launch/launch.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/launch/launch_net.h"
#include "sandbox/launch/storage.h"
#include "sandbox/launch/subids.h"
#include "sandbox/quota/loopimg.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/setup.h"
#include "sandbox/setup/userns.h"

#define NAMESPACES                                                                                 \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
#define DISK_IMAGE "disk.img"
#define DISK_PLACE "disk"
/* What lives as long as its sandbox has a number from here on. The children of later launches copy
 * descriptors up to the highest they use, and PID 1 keeps a table of that size. */
#define LASTING_FDS 512
#define PIDS_MAX 4194304U /* the kernel's PID_MAX_LIMIT; it takes no limit above */

static const struct {
    const char *name;
    unsigned next;
} states[LAUNCH_STATE_MAX] = {
    [LAUNCH_STARTING] = {"starting", 1U << LAUNCH_LIVE | 1U << LAUNCH_DYING},
    [LAUNCH_LIVE] = {"live", 1U << LAUNCH_DYING},
    [LAUNCH_DYING] = {"dying", 0},
};

static void launch_move(struct launch *l, enum launch_state to)
{
    assert(states[l->state].next & (1U << to));
    l->state = to;
}

/* With a quota everything the session writes to disk is inside an image of exactly that size. The
 * mount is attached in our own namespace only as long as it takes to clone its directories. */
static int make_disk(struct launch_host *h, const struct plan *p, int storage_fd, int *ret_fd,
                     struct err *err)
{
    struct loopimg_spec spec = {.bytes = p->quota_bytes,
                                .inodes = p->quota_inodes,
                                .uid = h->daemon_uid,
                                .gid = h->daemon_gid};
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED,
                       "a disk quota needs boxd to be started by root: an ordinary user cannot "
                       "mount an image");
    AUTO_CLOSE int templates = loopimg_templates(h->state_fd, err);
    if (templates < 0)
        return templates;
    AUTO_CLOSE int mnt = -1;
    int r = loopimg_create_mounted(storage_fd, templates, DISK_IMAGE, &spec, &mnt, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int place = path_make_dir_at(storage_fd, DISK_PLACE, 0700);
    if (place < 0)
        return err_sys(err, -place, "place for the disk");
    r = mount_attach(mnt, place);
    if (r < 0)
        return err_sys(err, -r, "attach the disk");
    *ret_fd = TAKE_FD(mnt);
    return 0;
}

static void detach_disk(const char *name, const struct launch_host *h)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/%s/" DISK_PLACE, h->sessions_fd, name);
    (void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
}

/* Everything made for one start; what has not been handed over is closed or removed. */
struct attempt {
    struct setup setup;
    int storage_fd, disk_fd, workspace_fd, go_write_fd, status_read_fd;
    bool disk_attached;
};

static void attempt_done(struct launch_host *h, struct attempt *a, const char *name)
{
    fd_close_many(a->setup.source_fds, PLAN_OPS_MAX);
    fd_close_many(&a->setup.runsc_fd, 1);
    if (a->disk_attached)
        detach_disk(name, h);
    fd_close_many(&a->disk_fd, 1);
    fd_close_many(&a->workspace_fd, 1);
    fd_close_many(&a->storage_fd, 1);
    fd_close_many(a->setup.control_fds, 2);
    fd_close_many(&a->setup.go_fd, 1);
    fd_close_many(&a->setup.status_fd, 1);
    fd_close_many(&a->go_write_fd, 1);
    fd_close_many(&a->status_read_fd, 1);
}

static int make_pipes(struct attempt *a, struct err *err)
{
    int go[2], status[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, go) < 0)
        return err_sys(err, errno, "socketpair");
    a->setup.go_fd = go[0];
    a->go_write_fd = go[1];
    if (pipe2(status, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    a->status_read_fd = status[0];
    a->setup.status_fd = status[1];
    return 0;
}

/* The program was chosen before the first request. */
static int mount_runsc(const struct launch_host *h, const struct plan *p, struct attempt *a,
                       struct err *err)
{
    if (!(p->flags & PLAN_GVISOR))
        return 0;
    if (h->runsc_fd < 0 || h->guest_fd < 0)
        return err_set(err, ERR_UNSUPPORTED, "this box-priv was started without gVisor");
    a->setup.runsc_fd = mount_clone(h->runsc_fd, !h->rootful);
    int r = a->setup.runsc_fd < 0
                ? a->setup.runsc_fd
                : mount_set(a->setup.runsc_fd,
                            MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, -1, 0);
    return r < 0 ? err_sys(err, -r, "mount runsc") : 0;
}

static int prepare(struct launch_host *h, const struct plan *p, struct attempt *a, struct err *err)
{
    a->storage_fd = storage_make(h, p->name, p->quota_bytes > 0, err);
    if (a->storage_fd < 0)
        return a->storage_fd;
    int r = 0;
    if (p->quota_bytes > 0) {
        r = make_disk(h, p, a->storage_fd, &a->disk_fd, err);
        if (r < 0)
            return r;
        a->disk_attached = true;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, a->setup.control_fds) < 0)
        return err_sys(err, errno, "control socket");
    r = launch_sources(h, p, a->disk_attached ? a->disk_fd : a->storage_fd, a->setup.source_fds,
                       &a->workspace_fd, err);
    if (r == 0)
        r = mount_runsc(h, p, a, err);
    return r < 0 ? r : make_pipes(a, err);
}

/* Whether PID 1 has an id of its own. gVisor's has not: it would have to own what the program is
 * to own. */
static bool has_second_id(const struct launch_host *h, const struct plan *p)
{
    return !h->rootful && h->init_uid != h->host_uid && !(p->flags & PLAN_GVISOR);
}

static struct cgroup_owner owner_of_groups(const struct launch_host *h, const struct plan *p)
{
    uint32_t own = has_second_id(h, p) ? SUBIDS_SECOND : SUBIDS_OWN;
    if (h->rootful)
        own = userns_init_id(p->uid_index);
    return (struct cgroup_owner){.uid = own, .gid = own};
}

static int make_group(struct launch_host *h, const struct plan *p, struct launch *l,
                      struct err *err)
{
    struct cgroup_owner owner = owner_of_groups(h, p);
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        if ((p->flags & PLAN_REQUIRE_LIMITS) && !h->cgroups.enforced[i])
            return err_set(err, ERR_UNSUPPORTED,
                           "limits are required but cannot be enforced here: %s",
                           h->cgroups.why[i]);
    return cgroup_create(&h->cgroups, p->name, &owner, &l->cgroup, err);
}

static int set_limits(struct launch_host *h, const struct plan *p, struct launch *l,
                      struct err *err)
{
    struct cgroup_owner owner = owner_of_groups(h, p);
    struct cgroup_limits limits = {
        .memory_bytes = p->memory_bytes,
        .pids = p->pids < PIDS_MAX ? p->pids + 1 : PIDS_MAX, /* PID 1 is ours */
        .cpu_quota_us = p->cpu_quota_us,
    };
    if (p->flags & PLAN_GVISOR) {
        limits.memory_bytes += GVISOR_MEMORY_RESERVE;
        limits.pids = gvisor_host_tasks(p->pids);
    }
    return cgroup_limit(&h->cgroups, p->name, &limits, &owner, &l->cgroup, err);
}

/* The child goes on, and gets what it needs to enter its groups. When it is gone already it has
 * said why, which is worth more than anything that we could say. */
static void hand_over_groups(int go_fd, const struct cgroup *g)
{
    struct setup_groups groups = {.leaf = g->leaf_fd >= 0, .memcg = g->v1_fd[CGROUP_MEMORY] >= 0};
    int fds[SETUP_GROUPS_MAX];
    size_t n = 0;
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        if (g->tasks_fd[i] >= 0)
            fds[n++] = g->tasks_fd[i];
    groups.v1 = (uint8_t)n;
    if (groups.leaf)
        fds[n++] = g->leaf_fd;
    if (groups.memcg)
        fds[n++] = g->v1_fd[CGROUP_MEMORY];
    (void)fd_send_msg(go_fd, &groups, sizeof(groups), fds, n, MSG_NOSIGNAL);
}

static int map_ids(const struct launch_host *h, const struct plan *p, pid_t pid, struct err *err)
{
    if (!h->rootful) {
        /* The payload is the user's own id under another number: what it writes to directories of
         * the user's is the user's. */
        struct id_pair uids[] = {{p->payload_uid, SUBIDS_OWN}, {p->init_uid, SUBIDS_SECOND}};
        struct id_pair gids[] = {{p->payload_gid, SUBIDS_OWN}, {p->init_gid, SUBIDS_SECOND}};
        return userns_map(pid, uids, gids, has_second_id(h, p) ? 2 : 1, err);
    }
    struct id_pair uids[] = {{p->payload_uid, userns_payload_id(p->uid_index)},
                             {p->init_uid, userns_init_id(p->uid_index)}};
    struct id_pair gids[] = {{p->payload_gid, userns_payload_id(p->uid_index)},
                             {p->init_gid, userns_init_id(p->uid_index)}};
    bool shared = p->payload_uid == p->init_uid; /* only gVisor's may be */
    return userns_map(pid, uids, gids, shared ? 1 : 2, err);
}

static unsigned fds_end(const struct setup *s)
{
    const int used[] = {s->go_fd,          s->status_fd,      s->parent_fds[0], s->parent_fds[1],
                        s->control_fds[0], s->control_fds[1], s->seccomp_fd,    s->cgroup_fd,
                        s->init_exe_fd,    s->parent_fd,      s->runsc_fd};
    int end = INIT_FD_MAX;
    for (size_t i = 0; i < ARRAY_SIZE(used); i++)
        end = used[i] >= end ? used[i] + 1 : end;
    for (size_t i = 0; i < PLAN_OPS_MAX; i++)
        end = s->source_fds[i] >= end ? s->source_fds[i] + 1 : end;
    return (unsigned)end;
}

static int clone_child(struct launch_host *h, struct attempt *a, struct launch *l, struct err *err)
{
    struct setup *s = &a->setup;
    s->cgroup_fd = l->cgroup.v2_fd;
    s->seccomp_fd = h->seccomp_fd;
    s->init_exe_fd = h->init_exe_fd;
    s->switch_ids = h->rootful || has_second_id(h, s->plan);
    s->own_view = h->own_view;
    s->cgroup_mode = h->cgroups.mode;
    s->parent_fd = h->self_fd;
    s->lo_up = prewarm_enter_netns(&h->ahead);
    s->parent_fds[0] = a->go_write_fd;
    s->parent_fds[1] = a->status_read_fd;
    s->fds_end = fds_end(s);
    uint64_t flags = CLONE_FILES | (s->lo_up ? NAMESPACES & ~(uint64_t)CLONE_NEWNET : NAMESPACES);
    l->pid = h->rootful ? userns_clone_owned(flags, userns_init_id(l->uid_index), l->cgroup.v2_fd,
                                             &l->pidfd)
                        : clone_process(flags, l->cgroup.v2_fd, &l->pidfd);
    if (l->pid == 0)
        setup_child(s);
    if (s->lo_up)
        prewarm_leave_netns(&h->ahead);
    return l->pid < 0 ? err_sys(err, -l->pid, "clone the sandbox's first process") : 0;
}

/* Descriptors that the child uses stay as they are until it has copied them. It does so before all
 * else, so we hardly ever wait. */
static int wait_for_copy(const struct attempt *a, const struct launch *l, struct err *err)
{
    struct pollfd fds[] = {{.fd = a->status_read_fd, .events = POLLIN},
                           {.fd = l->pidfd, .events = POLLIN}};
    char byte;
    while (poll(fds, ARRAY_SIZE(fds), -1) < 0)
        if (errno != EINTR)
            return err_sys(err, errno, "wait for the sandbox's first process");
    if (!(fds[0].revents & POLLIN) || read(a->status_read_fd, &byte, 1) != 1)
        return err_set(err, ERR_BACKEND, "the sandbox's first process died");
    return 0;
}

static void put_up(int *fd)
{
    int high = *fd < 0 ? -1 : fcntl(*fd, F_DUPFD_CLOEXEC, LASTING_FDS);
    if (high < 0)
        return; /* it will do where it is */
    (void)close(*fd);
    *fd = high;
}

/* What the child needs from us, in the order in which it comes to need it. */
static int serve_child(struct launch_host *h, const struct plan *plan, const struct attempt *a,
                       struct launch *l, struct err *err)
{
    int r = map_ids(h, plan, l->pid, err);
    if (r == 0 && fd_send_msg(a->go_write_fd, "g", 1, NULL, 0, MSG_NOSIGNAL) < 0)
        r = err_set(err, ERR_BACKEND, "the sandbox's first process died");
    if (r == 0)
        r = set_limits(h, plan, l, err);
    if (r == 0 && (plan->flags & PLAN_NET_ON))
        r = launch_net_join(h, l, err);
    if (r == 0)
        hand_over_groups(a->go_write_fd, &l->cgroup);
    return r;
}

static int start_child(struct launch_host *h, const struct plan *plan, const struct attempt *a,
                       struct launch *l, struct err *err)
{
    struct err why = {0};
    int r = serve_child(h, plan, a, l, err);
    int w = wait_for_copy(a, l, r < 0 ? &why : err);
    return r < 0 ? r : w;
}

int launch_start(struct launch_host *h, const struct plan *plan, struct launch *ret,
                 struct err *err)
{
    struct attempt a = {.setup = {.plan = plan,
                                  .go_fd = -1,
                                  .status_fd = -1,
                                  .control_fds = {-1, -1},
                                  .runsc_fd = -1},
                        .storage_fd = -1,
                        .disk_fd = -1,
                        .workspace_fd = -1,
                        .go_write_fd = -1,
                        .status_read_fd = -1};
    struct launch l = {.state = LAUNCH_STARTING,
                       .pidfd = -1,
                       .status_fd = -1,
                       .control_fd = -1,
                       .disk_fd = -1,
                       .workspace_fd = -1,
                       .slirp = SLIRP_NONE,
                       .dns_fds = {-1, -1},
                       .uid_index = plan->uid_index,
                       .quota = plan->quota_bytes > 0,
                       .flags = plan->flags,
                       .cgroup = {-1, -1, {-1, -1, -1}, {-1, -1, -1}}};
    memcpy(l.name, plan->name, sizeof(l.name));
    for (size_t i = 0; i < PLAN_OPS_MAX; i++)
        a.setup.source_fds[i] = -1;

    int r = prepare(h, plan, &a, err);
    if (r == 0)
        r = make_group(h, plan, &l, err);
    if (r == 0)
        r = clone_child(h, &a, &l, err);
    if (r == 0)
        r = start_child(h, plan, &a, &l, err);
    if (r == 0) {
        l.status_fd = TAKE_FD(a.status_read_fd);
        l.disk_fd = TAKE_FD(a.disk_fd);
        l.workspace_fd = TAKE_FD(a.workspace_fd);
        cgroup_close(&l.cgroup); /* it can be killed by its name */
        l.control_fd = TAKE_FD(a.setup.control_fds[1]);
        int *lasting[] = {&l.pidfd,      &l.cgroup.v2_fd, &l.disk_fd,   &l.status_fd,
                          &l.control_fd, &l.dns_fds[0],   &l.dns_fds[1]};
        for (size_t i = 0; i < ARRAY_SIZE(lasting); i++)
            put_up(lasting[i]);
    }
    attempt_done(h, &a, plan->name);
    if (r < 0) {
        if (l.pid > 0)
            launch_kill(h, &l);
        int remover = launch_cleanup(h, &l);
        fd_close_many(&remover, 1);
        return r;
    }
    *ret = l;
    return 0;
}

int launch_finish_start(struct launch *l, struct err *err)
{
    struct err theirs;
    ssize_t n = fd_read_full(l->status_fd, &theirs, sizeof(theirs));
    fd_close_many(&l->status_fd, 1);
    if (n == 0) {
        /* End of file: either execve closed it, or the child died without a word. */
        struct pollfd p = {.fd = l->pidfd, .events = POLLIN};
        if (poll(&p, 1, 0) == 0) {
            launch_move(l, LAUNCH_LIVE);
            return 0;
        }
        return err_set(err, ERR_BACKEND,
                       "the sandbox's first process died while it was being set up");
    }
    if (n != (ssize_t)sizeof(theirs) || theirs.code <= ERR_NONE || theirs.code >= ERR_CODE_MAX)
        return err_set(err, ERR_BACKEND, "the sandbox's first process sent a broken report");
    theirs.msg[sizeof(theirs.msg) - 1] = '\0';
    *err = theirs;
    return theirs.sys > 0 ? -theirs.sys : err_code_errno(theirs.code);
}

void launch_kill(const struct launch_host *h, struct launch *l)
{
    if (l->state == LAUNCH_DYING)
        return;
    launch_move(l, LAUNCH_DYING);
    /* The group first, so that nothing forks meanwhile; PID 1 takes its whole namespace along in
     * any case. */
    (void)cgroup_kill(&h->cgroups, l->name);
    (void)syscall(SYS_pidfd_send_signal, l->pidfd, SIGKILL, NULL, 0);
}

/* What failed for want of memory or descriptors works a little later. More than fit wait for the
 * next start. */
static void retry_groups(struct launch_host *h)
{
    unsigned n = h->n_stale;
    h->n_stale = 0;
    for (unsigned i = 0; i < n; i++)
        if (cgroup_remove(&h->cgroups, h->stale[i]) < 0)
            memmove(h->stale[h->n_stale++], h->stale[i], sizeof(h->stale[0]));
}

static void remove_groups(struct launch_host *h, const char *name)
{
    retry_groups(h);
    if (cgroup_remove(&h->cgroups, name) < 0 && h->n_stale < LAUNCH_STALE_MAX)
        (void)str_copy(h->stale[h->n_stale++], sizeof(h->stale[0]), name);
}

int launch_cleanup(struct launch_host *h, struct launch *l)
{
    if (l->pid > 0)
        (void)waitpid(l->pid, NULL, 0);
    l->pid = 0; /* from here on it may be somebody else's */
    launch_net_leave(h, l);
    cgroup_close(&l->cgroup);
    remove_groups(h, l->name);
    fd_close_many(&l->pidfd, 1);
    fd_close_many(&l->status_fd, 1);
    fd_close_many(&l->control_fd, 1);
    fd_close_many(&l->disk_fd, 1);
    fd_close_many(&l->workspace_fd, 1);
    return storage_remove(h, l->name, l->quota);
}

void launch_sweep(struct launch_host *h, launch_live_fn *live, void *arg)
{
    retry_groups(h);
    int fd = openat(h->sessions_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        fd_close_many(&fd, 1);
        return;
    }
    struct dirent *e;
    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] == '.' || live(arg, e->d_name))
            continue;
        int remover = storage_remove(h, e->d_name, true);
        fd_close_many(&remover, 1);
    }
    (void)closedir(dir);
}
