/* SPDX-License-Identifier: Apache-2.0 */

/* Starts, kills and cleans up sandboxes: prepares storage, clones, maps ids, sets limits. */

#include "sandbox/launch/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
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
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/state.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/host/children.h"
#include "sandbox/launch/launch_net.h"
#include "sandbox/quota/loopimg.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/setup.h"
#include "sandbox/setup/userns.h"

/* The directory that holds what a session keeps on disk: the daemon's own, closed to other
 * users.
 *
 * A fixed number of empty ones is kept ready, and those of ended sessions that hold nothing any
 * more go back to them: a file system may take its time over making and deleting inodes (ext4
 * searches for one that was not deleted lately), a rename it does at once. */

/* What a plain session has on disk; anything else in its storage keeps it from being used again. */
static const char *const usual[] = {"workspace", "home"};

/* Of an empty directory, on the file systems there are. */
#define PRISTINE_SIZE 4096
#define REMOVER_FD 3

static void spare_name(unsigned n, char *ret, size_t size)
{
    (void)snprintf(ret, size, "spare-%u", n);
}

static bool take_spare(struct launch_host *h, int dir_fd, const char *name)
{
    char spare[32];
    if (h->n_spares == 0)
        return false;
    spare_name(--h->n_spares, spare, sizeof(spare));
    return renameat(h->trash_fd, spare, dir_fd, name) == 0;
}

/* The directory that the storage of a sandbox is in. What is there to stay has one of its own,
 * which no sweep empties. */
static int storage_parent(const struct launch_host *h, bool durable)
{
    return durable ? h->kept_fd : h->sessions_fd;
}

int launch_open_storage(const struct launch_host *h, const char *name, bool durable)
{
    int fd =
        openat(storage_parent(h, durable), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* Returns a descriptor. With a quota everything is inside an image, and the directory starts empty.
 * An image that is kept is mounted again, so boxd must not be able to put another in its place: its
 * directory stays root's. */
static int storage_make(struct launch_host *h, const struct plan *p, struct err *err)
{
    bool durable = (p->flags & PLAN_DURABLE) != 0, quota = p->quota_bytes > 0;
    int parent = storage_parent(h, durable);
    bool fresh = quota || !take_spare(h, parent, p->name);
    if (fresh && mkdirat(parent, p->name, 0700) < 0)
        return err_sys(err, errno, "make storage for '%s'", p->name);
    AUTO_CLOSE int fd = launch_open_storage(h, p->name, durable);
    if (fd < 0)
        return err_sys(err, -fd, "open storage of '%s'", p->name);
    if (fresh && h->rootful && !(durable && quota) && fchown(fd, h->daemon_uid, h->daemon_gid) < 0)
        return err_sys(err, errno, "own storage of '%s'", p->name);
    return TAKE_FD(fd);
}

/* The same where an earlier sandbox of that name has left its storage: *ret_kept is set. */
static int storage_get(struct launch_host *h, const struct plan *p, bool *ret_kept, struct err *err)
{
    if (p->flags & PLAN_DURABLE) {
        int fd = launch_open_storage(h, p->name, true);
        if (fd != -ENOENT) {
            *ret_kept = fd >= 0;
            return fd < 0 ? err_sys(err, -fd, "open storage of '%s'", p->name) : fd;
        }
    }
    return storage_make(h, p, err);
}

/* Names in a directory beside "." and ".."; stops counting when there are more than `max`. */
static unsigned count_names(int fd, unsigned max)
{
    _Alignas(struct dirent64) char entries[1024];
    unsigned count = 0;
    long n = 1;
    while (count <= max && (n = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            count += !str_eq(e->d_name, ".") && !str_eq(e->d_name, "..");
            at += e->d_reclen;
        }
    }
    return n < 0 ? UINT_MAX : count;
}

/* The last owner may have left more than files: modes, attributes, access lists. */
static bool make_pristine(const struct launch_host *h, int storage_fd, const char *name)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(storage_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT;
    /* A directory that once held many names stays large; its times can be set to say anything. */
    return fstat(fd, &st) == 0 && st.st_uid == h->daemon_uid && st.st_size <= PRISTINE_SIZE &&
           count_names(fd, 0) == 0 && flistxattr(fd, NULL, 0) == 0 && fchmod(fd, 0700) == 0 &&
           futimens(fd, NULL) == 0;
}

/* Whether that is all there is in a storage directory: no layers of a writable root, for one. */
static bool has_only_usual(int fd)
{
    unsigned found = 0;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
        found += faccessat(fd, usual[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    return count_names(fd, found) == found;
}

/* Looks only: the storage may be a session's that was stopped. */
static bool storage_is_empty(int fd)
{
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++) {
        AUTO_CLOSE int sub = openat(fd, usual[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (sub >= 0 ? count_names(sub, 0) != 0 : errno != ENOENT)
            return false;
    }
    return has_only_usual(fd);
}

static bool keep_spare(struct launch_host *h, int dir_fd, const char *name)
{
    char spare[32];
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || h->n_spares == LAUNCH_SPARES_MAX || !has_only_usual(fd))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
        if (!make_pristine(h, fd, usual[i]))
            return false;
    spare_name(h->n_spares, spare, sizeof(spare));
    if (renameat(dir_fd, name, h->trash_fd, spare) < 0)
        return false;
    h->n_spares++;
    return true;
}

/* The table of descriptors is the parent's own at first: a copy of all of it would grow with the
 * sessions that there are. */
static _Noreturn void remove_child(int trash_fd, const char *name)
{
    if (syscall(SYS_close_range, LAUNCH_LASTING_FDS, ~0U, CLOSE_RANGE_UNSHARE) < 0 ||
        (trash_fd != REMOVER_FD && dup3(trash_fd, REMOVER_FD, O_CLOEXEC) < 0) ||
        syscall(SYS_close_range, REMOVER_FD + 1, ~0U, 0) < 0)
        child_exit(1);
    (void)path_remove_tree_at(REMOVER_FD, name);
    child_exit(0);
}

/* By a child: a tree can be large, and others wait for us. Returns its pidfd, or -1 when nothing is
 * left already. */
static int storage_remove(struct launch_host *h, int dir_fd, const char *name, bool quota)
{
    int pidfd = -1;
    if (!quota && keep_spare(h, dir_fd, name))
        return -1;
    if (renameat(dir_fd, name, h->trash_fd, name) < 0)
        return -1; /* never made; or the next start removes it */
    pid_t pid = clone_process(CLONE_FILES, -1, &pidfd);
    if (pid == 0)
        remove_child(h->trash_fd, name);
    if (pid < 0)
        (void)path_remove_tree_at(h->trash_fd, name);
    children_add(pid);
    return pidfd;
}

static int make_spare(struct launch_host *h)
{
    char spare[32];
    spare_name(h->n_spares, spare, sizeof(spare));
    AUTO_CLOSE int fd = path_make_dir_at(h->trash_fd, spare, 0700);
    if (fd < 0)
        return fd;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++) {
        AUTO_CLOSE int sub = path_make_dir_at(fd, usual[i], 0700);
        if (sub < 0)
            return sub;
        if (h->rootful && fchown(sub, h->daemon_uid, h->daemon_gid) < 0)
            return -errno;
    }
    if (h->rootful && fchown(fd, h->daemon_uid, h->daemon_gid) < 0)
        return -errno;
    h->n_spares++;
    return 0;
}

void launch_refill_storage(struct launch_host *h, unsigned n)
{
    while (n-- > 0 && h->n_spares < LAUNCH_SPARES_MAX)
        if (make_spare(h) < 0)
            return; /* sessions make their own, or say why not */
}

#define NAMESPACES                                                                                 \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
#define DISK_IMAGE "disk.img"
#define DISK_PLACE "disk"
#define PIDS_MAX 4194304U /* the kernel's PID_MAX_LIMIT; it takes no limit above */

static const unsigned launch_moves[LAUNCH_STATE_MAX] = {
    [LAUNCH_STARTING] = 1U << LAUNCH_LIVE | 1U << LAUNCH_DYING,
    [LAUNCH_LIVE] = 1U << LAUNCH_DYING,
};

/* Everything made for one start; what has not been handed over is closed or removed. */
struct attempt {
    struct setup setup;
    int storage_fd, disk_fd, workspace_fd, go_write_fd, status_read_fd;
    bool disk_attached;
    bool kept; /* the storage was there before */
};

/* With a quota everything the session writes to disk is inside an image of exactly that size. The
 * mount is attached in our own namespace only as long as it takes to clone its directories. */
static int make_disk(struct launch_host *h, const struct plan *p, const struct attempt *a,
                     int *ret_fd, struct err *err)
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
    bool same_boot = false;
    if ((p->flags & PLAN_DURABLE) && !a->kept && loopimg_note_boot(a->storage_fd, &same_boot) < 0)
        return err_sys(err, EIO, "note the mount of the disk");
    int r = a->kept
                ? loopimg_mount_kept(a->storage_fd, DISK_IMAGE, &spec, &mnt, err)
                : loopimg_create_mounted(a->storage_fd, templates, DISK_IMAGE, &spec, &mnt, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int place = path_make_dir_at(a->storage_fd, DISK_PLACE, 0700);
    if (place < 0)
        return err_sys(err, -place, "place for the disk");
    r = mount_attach(mnt, place);
    if (r < 0)
        return err_sys(err, -r, "attach the disk");
    *ret_fd = TAKE_FD(mnt);
    return 0;
}

static void detach_disk(int storage_fd)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d/" DISK_PLACE, storage_fd);
    (void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
}

static void attempt_done(struct attempt *a)
{
    fd_close_many(a->setup.source_fds, PLAN_OPS_MAX);
    fd_close_many(&a->setup.runsc_fd, 1);
    if (a->disk_attached)
        detach_disk(a->storage_fd);
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
    a->storage_fd = storage_get(h, p, &a->kept, err);
    if (a->storage_fd < 0)
        return a->storage_fd;
    int r = 0;
    if (p->quota_bytes > 0) {
        r = make_disk(h, p, a, &a->disk_fd, err);
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
    limits.spare = prewarm_take_groups(&h->ahead, limits.cpu_quota_us);
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
    int home = h->bare_fd >= 0 ? mount_ns_enter(h->bare_fd) : -1;
    s->bare = home >= 0;
    s->parent_fds[0] = a->go_write_fd;
    s->parent_fds[1] = a->status_read_fd;
    s->fds_end = fds_end(s);
    uint64_t flags = CLONE_FILES | (s->lo_up ? NAMESPACES & ~(uint64_t)CLONE_NEWNET : NAMESPACES);
    l->pid = h->rootful ? userns_clone_owned(flags, userns_init_id(l->uid_index), l->cgroup.v2_fd,
                                             &l->pidfd)
                        : clone_process(flags, l->cgroup.v2_fd, &l->pidfd);
    if (l->pid == 0)
        setup_child(s);
    if (s->bare)
        mount_ns_return(home);
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
    int high = *fd < 0 ? -1 : fcntl(*fd, F_DUPFD_CLOEXEC, LAUNCH_LASTING_FDS);
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
    AUTO_CLOSE int proc = r == 0 && a->setup.bare ? bare_proc(l->pid, !(plan->flags & PLAN_GVISOR),
                                                              userns_init_id(plan->uid_index), err)
                                                  : -1;
    if (r == 0 && a->setup.bare && proc < 0)
        r = proc;
    if (r == 0 && fd_send_msg(a->go_write_fd, "g", 1, &proc, proc >= 0, MSG_NOSIGNAL) < 0)
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
                       .cpu_quota_us = plan->cpu_quota_us,
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
    l.keep = a.kept;
    attempt_done(&a);
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
    if (n != 0) {
        if (n != (ssize_t)sizeof(theirs) || theirs.code <= ERR_NONE || theirs.code >= ERR_CODE_MAX)
            return err_set(err, ERR_BACKEND, "the sandbox's first process sent a broken report");
        theirs.msg[sizeof(theirs.msg) - 1] = '\0';
        *err = theirs;
        return theirs.sys > 0 ? -theirs.sys : err_code_errno(theirs.code);
    }
    /* End of file: either execve closed it, or the child died without a word. */
    struct pollfd p = {.fd = l->pidfd, .events = POLLIN};
    if (poll(&p, 1, 0) != 0)
        return err_set(err, ERR_BACKEND,
                       "the sandbox's first process died while it was being set up");
    STATE_MOVE(l->state, launch_moves, LAUNCH_LIVE);
    l->keep = (l->flags & PLAN_DURABLE) != 0;
    return 0;
}

void launch_kill(const struct launch_host *h, struct launch *l)
{
    if (l->state == LAUNCH_DYING)
        return;
    STATE_MOVE(l->state, launch_moves, LAUNCH_DYING);
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
    l->pid = 0; /* from here on the kernel may reuse it */
    launch_net_leave(h, l);
    cgroup_close(&l->cgroup);
    remove_groups(h, l->name);
    fd_close_many(&l->pidfd, 1);
    fd_close_many(&l->status_fd, 1);
    fd_close_many(&l->control_fd, 1);
    fd_close_many(&l->disk_fd, 1);
    fd_close_many(&l->workspace_fd, 1);
    return l->keep ? -1
                   : storage_remove(h, storage_parent(h, (l->flags & PLAN_DURABLE) != 0), l->name,
                                    l->quota);
}

int launch_forget(struct launch_host *h, const char *name)
{
    AUTO_CLOSE int fd = launch_open_storage(h, name, true);
    if (fd < 0)
        return fd;
    int remover = storage_remove(h, h->kept_fd, name, true);
    fd_close_many(&remover, 1);
    return faccessat(h->kept_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ? -EIO : 0;
}

/* Of what is kept only what is empty goes: storage that was made for a session that never came to
 * be. Its daemon was killed before it wrote the record, so no command has run in it. */
static void sweep_storage(struct launch_host *h, bool durable, launch_live_fn *live, void *arg)
{
    int parent = storage_parent(h, durable);
    DIR *dir = fd_opendir(parent);
    if (dir == NULL)
        return;
    struct dirent *e;
    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] == '.' || live(arg, e->d_name))
            continue;
        AUTO_CLOSE int fd = durable ? launch_open_storage(h, e->d_name, true) : -1;
        if (durable && (fd < 0 || !storage_is_empty(fd)))
            continue;
        int remover = storage_remove(h, parent, e->d_name, true);
        fd_close_many(&remover, 1);
    }
    (void)closedir(dir);
}

void launch_sweep(struct launch_host *h, launch_live_fn *live, void *arg)
{
    retry_groups(h);
    sweep_storage(h, false, live, arg);
    sweep_storage(h, true, live, arg);
}
