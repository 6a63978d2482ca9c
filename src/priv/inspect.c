/* SPDX-License-Identifier: Apache-2.0 */

/* What box-priv can tell about one sandbox, about this host, and about what processes hold; and the
 * change of a sandbox's limits. */

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/usage.h"
#include "inside/clone.h"
#include "priv/server.h"
#include "sandbox/host/children.h"
#include "sandbox/quota/loopimg.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

static void read_namespaces(pid_t pid, uint64_t *ret)
{
    /* Of time what the children are in: before Linux 6.2 the process that makes one is not itself
     * in it. */
    static const char *const names[PRIV_NS_MAX] = {"user", "mnt", "pid",    "net",
                                                   "ipc",  "uts", "cgroup", "time_for_children"};
    for (int i = 0; i < PRIV_NS_MAX; i++) {
        char path[64];
        struct stat st;
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, names[i]);
        ret[i] = stat(path, &st) == 0 ? st.st_ino : 0;
    }
}

static void read_disk(const struct launch *l, struct priv_inspect *out)
{
    struct loopimg_usage usage = {0};
    struct err ignored = {0};
    if (l->disk_fd < 0 || loopimg_usage(l->disk_fd, &usage, &ignored) < 0)
        return;
    out->disk_total = usage.bytes_total;
    out->disk_used = usage.bytes_used;
    out->inodes_total = usage.inodes_total;
    out->inodes_used = usage.inodes_used;
}

/* Read back like everything else: what stands at /usr in there. */
static bool has_own_view(pid_t pid, bool gvisor)
{
    char path[64];
    struct statfs fs;
    (void)snprintf(path, sizeof(path), "/proc/%d/root%s/usr", pid, gvisor ? GVISOR_ROOTFS : "");
    AUTO_CLOSE int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_type == OVERLAYFS_SUPER_MAGIC;
}

int priv_on_inspect(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = priv_by_request(p, data, len, err);
    char path[64];
    if (s == NULL)
        return -ENOENT;
    struct priv_reply reply = {.head = {PRIV_INSPECT, ((const struct priv_name *)data)->head.id}};
    struct priv_inspect *out = &reply.inspect;
    cgroup_read(&p->host->cgroups, s->launch.name, &out->cgroup);
    read_disk(&s->launch, out);
    out->pid = (uint32_t)s->launch.pid;
    out->own_view = has_own_view(s->launch.pid, (s->launch.flags & PLAN_GVISOR) != 0);
    out->payload_uid =
        p->host->rootful ? userns_payload_id(s->launch.uid_index) : p->host->host_uid;
    read_namespaces(s->launch.pid, out->ns);
    read_namespaces(getpid(), out->host_ns);
    out->host_uid = UINT32_MAX;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->status, sizeof(out->status));
    const char *uid = strstr(out->status, "\nUid:\t");
    if (!p->host->rootful) {
        /* The kernel tells us numbers of our own namespace. */
        out->host_uid = s->launch.flags & PLAN_GVISOR ? p->host->host_uid : p->host->init_uid;
    } else if (uid != NULL) {
        char digits[16] = "";
        size_t n = strspn(uid + 6, "0123456789");
        uint64_t value = 0;
        if (n < sizeof(digits)) {
            memcpy(digits, uid + 6, n);
            if (str_to_u64(digits, &value) == 0)
                out->host_uid = (uint32_t)value;
        }
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/uid_map", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->uid_map, sizeof(out->uid_map));
    priv_answer(p, &reply, NULL, 0);
    return 0;
}

/* A handful of small files of the kernel's: tells nothing that the session's own receipt does not.
 * Of the processes PID 1 is ours. */
int priv_on_usage(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_session *s = priv_by_request(p, data, len, err);
    char path[64];
    if (s == NULL)
        return -ENOENT;
    struct priv_reply reply = {.head = {PRIV_USAGE, ((const struct priv_name *)data)->head.id}};
    struct inside_usage *out = &reply.usage;
    struct loopimg_usage disk = {0};
    struct err ignored = {0};
    usage_unknown(out);
    cgroup_usage(&p->host->cgroups, s->launch.name, out);
    if (out->pids != INSIDE_UNKNOWN && out->pids > 0)
        out->pids--;
    if (out->pids_max != INSIDE_UNKNOWN && out->pids_max > 0)
        out->pids_max--;
    if (s->launch.disk_fd >= 0 && loopimg_usage(s->launch.disk_fd, &disk, &ignored) == 0) {
        out->disk_bytes = disk.bytes_used;
        out->disk_max = disk.bytes_total;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/net/dev", s->launch.pid);
    usage_network(AT_FDCWD, path, out);
    priv_answer(p, &reply, NULL, 0);
    return 0;
}

static int probe_quota(const struct launch_host *h, struct err *err)
{
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "an ordinary user cannot mount an image");
    AUTO_CLOSE int templates = loopimg_templates(h->state_fd, err);
    return templates < 0 ? templates : loopimg_probe(h->trash_fd, templates, err);
}

/* Whether the file system that holds our state can show its files under other ids. */
static int probe_idmap(const struct launch_host *h, struct err *err)
{
    struct idmap_key key = {.index = 0, .uid = h->daemon_uid, .gid = h->daemon_gid};
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    int map = idmaps_get(&maps, &key, err);
    AUTO_CLOSE int copy = map < 0 ? -1 : mount_clone(h->sessions_fd, 0);
    if (copy < 0)
        return map < 0 ? map : err_sys(err, -copy, "copy a mount");
    int r = mount_set(copy, 0, map, 0);
    return r < 0 ? err_sys(err, -r, "map the ids of a mount") : 0;
}

/* Costs a requester nothing but our time: everything it makes is ours and gone when it returns. */
int priv_on_probe(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    struct {
        int (*run)(const struct launch_host *h, struct err *err);
        uint32_t *ok;
        char *why;
    } probes[] = {{probe_quota, &reply.probe.quota.ok, reply.probe.quota.why},
                  {launch_net_probe, &reply.probe.network.ok, reply.probe.network.why},
                  {probe_idmap, &reply.probe.idmap.ok, reply.probe.idmap.why}};
    if (len != sizeof(struct priv_head))
        return err_set(err, ERR_INVALID, "malformed request");
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        struct err why = {0};
        *probes[i].ok = probes[i].run(p->host, &why) >= 0;
        (void)snprintf(probes[i].why, sizeof(reply.probe.quota.why), "%.199s", why.msg);
    }
    priv_answer(p, &reply, NULL, 0);
    return 0;
}

/* Counts what the processes of a sandbox hold: space on disks, and kernel memory that no cgroup
 * counts. Disks: its storage, and files without a name, that were unlinked or never had one, and
 * that its processes hold open or mapped; no walk over directories finds those. Kernel memory:
 * record locks and answers in netlink sockets. A child of box-priv looks, so that no request waits
 * however much there is to see. */

#define SEEN_MAX 65536U /* a power of two; three quarters of it are used */
#define CPU_SECONDS 4
#define WALL_SECONDS 60U
#define KEPT_MAX 8
#define LOCK_BYTES 192U /* struct file_lock */

struct walk {
    struct priv_held held;
    struct priv_greedy greedy;
    time_t until;            /* processor time of the child, in seconds, at which it gives up */
    int proc_fd, storage_fd; /* of the sandbox; storage -1: it has an image, which has a limit */
    dev_t own;               /* the image of the session: the kernel limits it */
    bool has_own;
    bool locks; /* record locks are counted, else files without a name */
    uint32_t n_seen, looks;
};

static struct {
    dev_t dev;
    ino_t ino;
} seen[SEEN_MAX]; /* only the child writes to it */

/* False: it is there already, or there is no room. */
static bool walk_see(struct walk *w, dev_t dev, ino_t ino)
{
    size_t at = (ino * 2654435761U) % SEEN_MAX;
    for (; seen[at].ino != 0; at = (at + 1) % SEEN_MAX)
        if (seen[at].ino == ino && seen[at].dev == dev)
            return false;
    if (w->n_seen >= SEEN_MAX / 4 * 3) {
        w->held.incomplete = 1;
        return false;
    }
    seen[at].ino = ino;
    seen[at].dev = dev;
    w->n_seen++;
    return true;
}

/* By processor time: a busy machine is no reason to give up. */
static bool walk_enough(struct walk *w)
{
    struct timespec used = {0};
    if (++w->looks % 1024 == 0 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0 &&
        used.tv_sec >= w->until)
        w->held.incomplete = 1;
    return w->held.incomplete != 0;
}

/* `link` leads to what a process holds. Memory has a limit of its own. */
static void look_at(struct walk *w, int dir_fd, const char *link)
{
    struct stat st;
    struct statfs fs;
    if (fstatat(dir_fd, link, &st, 0) < 0 || !S_ISREG(st.st_mode) || st.st_nlink > 0 ||
        (w->has_own && st.st_dev == w->own))
        return;
    AUTO_CLOSE int fd = openat(dir_fd, link, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstatfs(fd, &fs) < 0 || fs.f_type == TMPFS_MAGIC ||
        fs.f_type == HUGETLBFS_MAGIC || !walk_see(w, st.st_dev, st.st_ino))
        return;
    w->held.files++;
    w->held.bytes += path_cost(&st);
}

static void each(struct walk *w, int dir_fd, const char *path,
                 void (*fn)(struct walk *w, int dir_fd, const char *name))
{
    int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        fd_close_many(&fd, fd >= 0);
        return; /* gone meanwhile */
    }
    for (const struct dirent *e; !walk_enough(w) && (e = readdir(dir)) != NULL;)
        if (isalnum((unsigned char)e->d_name[0]))
            fn(w, dirfd(dir), e->d_name);
    (void)closedir(dir);
}

static FILE *open_text(int dir_fd, const char *path)
{
    int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "re");
    if (f == NULL)
        fd_close_many(&fd, fd >= 0);
    return f;
}

/* The kernel lists a lock with the descriptor that it was set by, if the files of the task own it.
 * Copies of a descriptor, and threads, list the same locks again: the text of the first one, with
 * owner, file and range, tells that they were counted. */
static void count_locks(struct walk *w, int dir_fd, const char *name)
{
    FILE *f = open_text(dir_fd, name);
    AUTO_FREE char *line = NULL;
    size_t size = 0;
    uint64_t n = 0, hash = 14695981039346656037ULL; /* FNV-1a */
    if (f == NULL)
        return; /* closed meanwhile */
    while (getline(&line, &size, f) > 0) {
        if (!str_starts(line, "lock:"))
            continue;
        for (const char *c = line; n == 0 && *c != '\0'; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
        n++;
    }
    (void)fclose(f);
    if (n > 0 && walk_see(w, 0, hash | 1))
        w->greedy.lock_bytes += n * LOCK_BYTES;
}

/* Threads may have tables of descriptors of their own. */
static void look_at_task(struct walk *w, int dir_fd, const char *name)
{
    char path[64];
    if (snprintf(path, sizeof(path), "%s/%s", name, w->locks ? "fdinfo" : "fd") < (int)sizeof(path))
        each(w, dir_fd, path, w->locks ? count_locks : look_at);
}

static void look_at_process(struct walk *w, int dir_fd, const char *name)
{
    char path[64];
    if (!isdigit((unsigned char)name[0]))
        return;
    if (snprintf(path, sizeof(path), "%s/task", name) < (int)sizeof(path))
        each(w, dir_fd, path, look_at_task);
    if (!w->locks && snprintf(path, sizeof(path), "%s/map_files", name) < (int)sizeof(path))
        each(w, dir_fd, path, look_at);
}

static void look_at_storage(struct walk *w)
{
    AUTO(usage_walk) struct usage_walk *u = usage_walk_new(w->storage_fd, UINT32_MAX);
    while (usage_walk_step(u, 1024) > 0) {
        w->looks |= 1023; /* the time is looked at now */
        if (walk_enough(w))
            break;
    }
    const struct usage *found = usage_walk_result(u);
    w->held.stored_bytes = found->disk_bytes; /* the host's disk is what it is about */
    w->held.stored_files = found->entries;
    w->held.incomplete |= found->too_many;
}

int priv_keep_only_child(int *const *fds, int n)
{
    int high[KEPT_MAX] = {0};
    assert(n <= KEPT_MAX);
    for (int i = 0; i < n; i++) {
        high[i] = *fds[i] < 0 ? -1 : fcntl(*fds[i], F_DUPFD_CLOEXEC, PRIV_RESULT_FD + n);
        if (*fds[i] >= 0 && high[i] < 0)
            return -errno;
    }
    for (int i = 0; i < n; i++) {
        if (high[i] < 0)
            (void)close(PRIV_RESULT_FD + i);
        else if ((*fds[i] = dup3(high[i], PRIV_RESULT_FD + i, O_CLOEXEC)) < 0)
            return -errno;
    }
    return syscall(SYS_close_range, PRIV_RESULT_FD + n, ~0U, 0) < 0 ? -errno : 0;
}

static int keep_fds_child(struct walk *w, int result_fd)
{
    int *const kept[] = {&result_fd, &w->proc_fd, &w->storage_fd};
    return priv_keep_only_child(kept, ARRAY_SIZE(kept));
}

static _Noreturn void held_child(struct walk *w, int result_fd)
{
    if (keep_fds_child(w, result_fd) < 0)
        child_exit(126);
    (void)alarm(WALL_SECONDS);
    (void)setpriority(PRIO_PROCESS, 0, 10);
    each(w, w->proc_fd, ".", look_at_process);
    if (w->storage_fd >= 0)
        look_at_storage(w);
    child_exit(write(PRIV_RESULT_FD, &w->held, sizeof(w->held)) != sizeof(w->held));
}

/* Whatever was found, boxd is told of the kernel's limit: without it the session would be judged by
 * what is counted. */
static void held_answer(const struct priv_session *s, uint32_t id, const struct priv_held *held)
{
    struct priv_reply reply = {.head = {PRIV_HELD, id}};
    struct fsquota_use use = {0};
    struct err ignored = {0};
    if (held != NULL)
        reply.held = *held;
    else
        reply.result =
            err_set(&reply.err, ERR_STATE,
                    "box-priv could not measure what the sandbox keeps on disk; try again");
    reply.held.kernel_bytes = priv_quota_holds(s, &use, &ignored) ? use.max_bytes : 0;
    priv_answer(s->priv, &reply, NULL, 0);
}

static void held_answer_waiting(struct priv_session *s, const struct priv_held *held)
{
    uint32_t id = s->held_id;
    s->held_id = 0;
    if (id != 0)
        held_answer(s, id, held);
}

void priv_held_stop(struct priv_session *s)
{
    loop_io_stop(&s->held_io);
    fd_close_many(&s->held_fd, s->held_fd > 0);
    held_answer_waiting(s, NULL);
}

static void on_held(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, held_io);
    struct priv_held held = {0};
    if (read(s->held_fd, &held, sizeof(held)) == sizeof(held))
        held_answer_waiting(s, &held);
    priv_held_stop(s);
}

/* The processes of the sandbox and no others, as its own /proc shows them. Neither PID 1 nor that
 * mount is a payload's to change. */
static int open_proc(const struct priv_session *s, struct err *err)
{
    char path[64];
    struct statfs fs;
    (void)snprintf(path, sizeof(path), "/proc/%d/root/proc", s->launch.pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "open /proc of the sandbox");
    if (fstatfs(fd, &fs) < 0 || fs.f_type != PROC_SUPER_MAGIC) {
        (void)close(fd);
        return err_set(err, ERR_STATE, "the sandbox shows no processes");
    }
    return fd;
}

/* Nothing runs in there but PID 1: what there is on disk is what was there. */
static bool is_idle(const struct priv_session *s)
{
    char path[64], text[16];
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", s->launch.pid, s->launch.pid);
    return fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) == 0;
}

pid_t priv_looker_start(int *ret_fd, int *ret_result, struct err *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, errno, "pipe");
    pid_t pid = clone_process(CLONE_CLEAR_SIGHAND, -1, NULL);
    *ret_result = fds[1];
    if (pid == 0)
        return 0;
    children_add(pid);
    (void)close(fds[1]);
    *ret_fd = fds[0];
    return pid;
}

static int held_start(struct priv_session *s, struct err *err)
{
    const struct priv *p = s->priv;
    struct stat own;
    struct walk w = {.has_own = s->launch.disk_fd >= 0 && fstat(s->launch.disk_fd, &own) == 0,
                     .until = CPU_SECONDS};
    w.own = w.has_own ? own.st_dev : 0;
    AUTO_CLOSE int proc_fd = open_proc(s, err);
    if (proc_fd < 0)
        return proc_fd;
    AUTO_CLOSE int storage_fd =
        w.has_own ? -1
                  : launch_open_storage(p->host, s->launch.name, s->launch.flags & PLAN_DURABLE);
    w.proc_fd = proc_fd;
    w.storage_fd = storage_fd;
    int result = -1;
    pid_t pid = priv_looker_start(&s->held_fd, &result, err);
    if (pid == 0)
        held_child(&w, result);
    if (pid > 0 && loop_io_start(p->loop, &s->held_io, s->held_fd, EPOLLIN, on_held) == 0)
        return 0;
    priv_held_stop(s);
    return -EAGAIN;
}

int priv_on_held(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = priv_by_request(p, data, len, err);
    struct err ignored = {0};
    if (s == NULL)
        return -ENOENT;
    uint32_t id = ((const struct priv_name *)data)->head.id;
    bool can = s->started && s->launch.state != LAUNCH_DYING && s->held_id == 0;
    if (can && is_idle(s))
        held_answer(s, id, &(struct priv_held){.idle = 1});
    else if (can && held_start(s, &ignored) == 0)
        s->held_id = id;
    else
        held_answer(s, id, NULL);
    return 0;
}

/* Other limits for a sandbox that runs. The kernel may take long to take memory back, so a child
 * asks it. */

struct update_result {
    int32_t result;
    struct err err;
};

static _Noreturn void update_child(const struct priv_session *s, const struct cgroup_limits *limits,
                                   int result_fd)
{
    struct cgroup_host h = s->priv->host->cgroups;
    int *const kept[] = {&result_fd, &h.v2_fd, &h.v1_fd[0], &h.v1_fd[1], &h.v1_fd[2]};
    struct update_result done = {0};
    if (priv_keep_only_child(kept, ARRAY_SIZE(kept)) < 0)
        child_exit(126);
    (void)alarm(WALL_SECONDS);
    done.result = cgroup_change(&h, s->launch.name, limits, &done.err);
    child_exit(write(PRIV_RESULT_FD, &done, sizeof(done)) != sizeof(done));
}

static void update_answer(struct priv_session *s, const struct update_result *done)
{
    struct priv_reply reply = {.head = {PRIV_UPDATE, s->update.id}};
    s->update.id = 0;
    if (reply.head.id == 0)
        return;
    if (done != NULL) {
        reply.result = done->result;
        reply.err = done->err;
    } else {
        reply.result = err_set(&reply.err, ERR_STATE,
                               "the kernel could not bring the session below the new limits within "
                               "%u s",
                               WALL_SECONDS);
    }
    priv_answer(s->priv, &reply, NULL, 0);
}

void priv_update_stop(struct priv_session *s)
{
    loop_io_stop(&s->update.io);
    fd_close_many(&s->update.fd, s->update.fd > 0);
    s->update.fd = 0;
    update_answer(s, NULL);
}

static void on_updated(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, update.io);
    struct update_result done = {0};
    if (read(s->update.fd, &done, sizeof(done)) == sizeof(done))
        update_answer(s, &done);
    priv_update_stop(s);
}

/* A requester can ask for any limit here, as it can when the sandbox is made: limits are boxd's to
 * choose, and only groups of ours have such a name. */
int priv_on_update(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_update *m = data;
    struct priv_session *s = priv_by_request(p, data, len == sizeof(*m) ? sizeof(m->of) : 0, err);
    int result = -1;
    if (s == NULL)
        return -ENOENT;
    if (s->launch.state != LAUNCH_LIVE || (s->launch.flags & PLAN_GVISOR) || s->update.fd > 0)
        return err_set(err, ERR_STATE, "the limits of this sandbox cannot be changed now");
    if (m->limits.memory_bytes == 0 || m->limits.pids == 0 || m->limits.pids == UINT32_MAX)
        return err_set(err, ERR_INVALID, "missing limits");
    const struct cgroup_limits limits = {.memory_bytes = m->limits.memory_bytes,
                                         .pids = m->limits.pids + 1, /* PID 1 is ours */
                                         .cpu_quota_us = m->limits.cpu_quota_us};
    pid_t pid = priv_looker_start(&s->update.fd, &result, err);
    if (pid == 0)
        update_child(s, &limits, result);
    if (pid < 0)
        return err->code == ERR_NONE ? err_sys(err, (int)-pid, "start a process") : pid;
    s->update.id = m->of.head.id;
    if (loop_io_start(p->loop, &s->update.io, s->update.fd, EPOLLIN, on_updated) < 0)
        priv_update_stop(s);
    return 0;
}

/* What is kept on disk of a sandbox that is not there. */

static _Noreturn void kept_child(struct walk *w, int result_fd)
{
    if (keep_fds_child(w, result_fd) < 0)
        child_exit(126);
    (void)alarm(WALL_SECONDS);
    (void)setpriority(PRIO_PROCESS, 0, 10);
    look_at_storage(w);
    child_exit(write(PRIV_RESULT_FD, &w->held, sizeof(w->held)) != sizeof(w->held));
}

static void kept_answer(struct priv *p, const struct priv_held *held)
{
    struct priv_reply reply = {.head = {PRIV_KEPT, p->kept.id}};
    p->kept.id = 0;
    if (held != NULL)
        reply.held = *held;
    else
        reply.result = err_set(&reply.err, ERR_STATE,
                               "box-priv could not measure what is kept on disk; try again");
    if (reply.head.id != 0)
        priv_answer(p, &reply, NULL, 0);
}

void priv_kept_stop(struct priv *p)
{
    loop_io_stop(&p->kept.io);
    fd_close_many(&p->kept.fd, p->kept.fd > 0);
    p->kept.fd = 0;
    kept_answer(p, NULL);
}

static void on_kept(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, kept.io);
    struct priv_held held = {0};
    if (read(p->kept.fd, &held, sizeof(held)) == sizeof(held))
        kept_answer(p, &held);
    priv_kept_stop(p);
}

/* By a child, as for one that is alive: a tree can be large. */
int priv_on_kept(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_name *m = data;
    if (len != sizeof(*m) || m->name[PLAN_NAME_LEN] != '\0' || !id_valid(m->name))
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    if (p->kept.id != 0)
        return err_set(err, ERR_STATE, "box-priv measures another session already");
    AUTO_CLOSE int storage_fd = launch_open_storage(p->host, m->name, true);
    if (storage_fd < 0)
        return err_set(err, ERR_NOT_FOUND, "nothing is kept of that sandbox");
    struct walk w = {.until = CPU_SECONDS, .proc_fd = storage_fd, .storage_fd = storage_fd};
    int result = -1;
    pid_t pid = priv_looker_start(&p->kept.fd, &result, err);
    if (pid == 0)
        kept_child(&w, result);
    if (pid < 0)
        return pid;
    p->kept.id = m->head.id;
    if (loop_io_start(p->loop, &p->kept.io, p->kept.fd, EPOLLIN, on_kept) < 0)
        priv_kept_stop(p);
    return 0;
}

/* Kernel memory that no cgroup counts. */

/* The fifth column: bytes that wait to be read. All sockets of the namespace are listed, those on
 * their way through a unix socket, too. */
static void count_netlink(struct walk *w)
{
    FILE *f = open_text(w->proc_fd, "1/net/netlink");
    AUTO_FREE char *line = NULL;
    size_t size = 0;
    if (f == NULL)
        return;
    while (getline(&line, &size, f) > 0) {
        char *rest = NULL;
        const char *field = strtok_r(line, " ", &rest);
        uint64_t bytes = 0;
        for (unsigned i = 1; i < 5 && field != NULL; i++)
            field = strtok_r(NULL, " ", &rest);
        if (field != NULL && str_to_u64(field, &bytes) == 0)
            w->greedy.netlink_bytes += bytes;
    }
    (void)fclose(f);
}

static uint64_t greed(const struct priv_greedy *g)
{
    return g->incomplete != 0 ? UINT64_MAX : g->netlink_bytes + g->lock_bytes;
}

static void count_kernel(const struct priv_session *s, struct priv_greedy *most)
{
    struct timespec used = {0};
    struct err ignored = {0};
    struct walk w = {.locks = true};
    AUTO_CLOSE int proc_fd = open_proc(s, &ignored);
    if (proc_fd < 0 || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) < 0)
        return; /* it has ended meanwhile */
    (void)str_copy(w.greedy.name, sizeof(w.greedy.name), s->launch.name);
    w.proc_fd = proc_fd;
    w.until = used.tv_sec + CPU_SECONDS;
    count_netlink(&w);
    each(&w, proc_fd, ".", look_at_process);
    w.greedy.incomplete = w.held.incomplete;
    if (w.n_seen > 0)
        memset(seen, 0, sizeof(seen));
    if (most->name[0] == '\0' || greed(&w.greedy) > greed(most))
        *most = w.greedy;
}

static _Noreturn void greediest_child(const struct priv *p, int result_fd)
{
    struct walk w = {.proc_fd = result_fd, .storage_fd = -1};
    struct priv_greedy most = {.name = ""};
    if (keep_fds_child(&w, result_fd) < 0)
        child_exit(126);
    (void)alarm(WALL_SECONDS);
    for (size_t i = 0; i < p->n_sessions && most.incomplete == 0; i++) {
        const struct priv_session *s = p->sessions[i];
        if (s->started && s->launch.state != LAUNCH_DYING && !is_idle(s))
            count_kernel(s, &most);
    }
    child_exit(write(PRIV_RESULT_FD, &most, sizeof(most)) != sizeof(most));
}

static void greediest_answer(struct priv *p, const struct priv_greedy *found)
{
    struct priv_reply reply = {.head = {PRIV_GREEDY, p->greedy.id}};
    if (found != NULL)
        reply.greedy = *found;
    else
        reply.result = err_set(&reply.err, ERR_STATE, "kernel memory was not counted to the end");
    if (p->greedy.id != 0)
        priv_answer(p, &reply, NULL, 0);
    p->greedy.id = 0;
}

void priv_greediest_stop(struct priv *p)
{
    loop_io_stop(&p->greedy.io);
    fd_close_many(&p->greedy.fd, p->greedy.fd > 0);
    greediest_answer(p, NULL);
}

static void on_greediest(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, greedy.io);
    struct priv_greedy found = {.name = ""};
    if (read(p->greedy.fd, &found, sizeof(found)) == sizeof(found))
        greediest_answer(p, &found);
    priv_greediest_stop(p);
}

int priv_on_greediest(struct priv *p, const void *data, size_t len, struct err *err)
{
    int result = -1;
    if (len != sizeof(struct priv_head) || p->greedy.fd > 0)
        return err_set(err, ERR_STATE, "kernel memory is being counted");
    pid_t pid = priv_looker_start(&p->greedy.fd, &result, err);
    if (pid == 0)
        greediest_child(p, result);
    if (pid < 0 && p->greedy.fd <= 0)
        return pid;
    if (pid > 0 &&
        loop_io_start(p->loop, &p->greedy.io, p->greedy.fd, EPOLLIN, on_greediest) == 0) {
        p->greedy.id = ((const struct priv_head *)data)->id;
        return 0;
    }
    priv_greediest_stop(p);
    return err_set(err, ERR_LIMIT, "box-priv cannot start a process that counts kernel memory");
}
