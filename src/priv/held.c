/* SPDX-License-Identifier: Apache-2.0 */

/* What a sandbox keeps on disks: in its storage, and without a name: files that were unlinked, or
 * never had one, and that its processes hold open or mapped. No walk over directories finds those.
 * A child of ours looks, so that nobody waits however much there is to see. */

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/usage.h"
#include "inside/clone.h"
#include "priv/server_internal.h"

#define SEEN_MAX 65536U /* a power of two; three quarters of it are used */
#define CPU_SECONDS 4
#define WALL_SECONDS 60U
#define RESULT_FD 3

struct walk {
    struct priv_held held;
    int proc_fd, storage_fd; /* of the sandbox; storage -1: it has an image, which has a limit */
    dev_t own;               /* the image of the session: the kernel limits it */
    bool has_own;
    uint32_t n_seen, looks;
};

static struct {
    dev_t dev;
    ino_t ino;
} seen[SEEN_MAX]; /* only the child writes to it */

/* False: it is there already, or there is no room. */
static bool see(struct walk *w, const struct stat *st)
{
    size_t at = (st->st_ino * 2654435761U) % SEEN_MAX;
    for (; seen[at].ino != 0; at = (at + 1) % SEEN_MAX)
        if (seen[at].ino == st->st_ino && seen[at].dev == st->st_dev)
            return false;
    if (w->n_seen >= SEEN_MAX / 4 * 3) {
        w->held.incomplete = 1;
        return false;
    }
    seen[at].ino = st->st_ino;
    seen[at].dev = st->st_dev;
    w->n_seen++;
    return true;
}

/* By processor time: a busy machine is no reason to give up. */
static bool enough(struct walk *w)
{
    struct timespec used = {0};
    if (++w->looks % 1024 == 0 && clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0 &&
        used.tv_sec >= CPU_SECONDS)
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
        fs.f_type == HUGETLBFS_MAGIC || !see(w, &st))
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
    for (const struct dirent *e; !enough(w) && (e = readdir(dir)) != NULL;)
        if (isalnum((unsigned char)e->d_name[0]))
            fn(w, dirfd(dir), e->d_name);
    (void)closedir(dir);
}

/* Threads may have tables of descriptors of their own. */
static void look_at_task(struct walk *w, int dir_fd, const char *name)
{
    char path[64];
    if (snprintf(path, sizeof(path), "%s/fd", name) < (int)sizeof(path))
        each(w, dir_fd, path, look_at);
}

static void look_at_process(struct walk *w, int dir_fd, const char *name)
{
    char path[64];
    if (!isdigit((unsigned char)name[0]))
        return;
    if (snprintf(path, sizeof(path), "%s/task", name) < (int)sizeof(path))
        each(w, dir_fd, path, look_at_task);
    if (snprintf(path, sizeof(path), "%s/map_files", name) < (int)sizeof(path))
        each(w, dir_fd, path, look_at);
}

static void look_at_storage(struct walk *w)
{
    AUTO(usage_walk) struct usage_walk *u = usage_walk_new(w->storage_fd, UINT32_MAX);
    while (usage_walk_step(u, 1024) > 0) {
        w->looks |= 1023; /* the time is looked at now */
        if (enough(w))
            break;
    }
    const struct usage *found = usage_walk_result(u);
    w->held.stored_bytes = found->bytes;
    w->held.stored_files = found->entries;
    w->held.incomplete |= found->too_many;
}

/* Whoever waits for us to close a descriptor of ours would wait for us: only these stay open. */
static int keep_fds_child(struct walk *w, int result_fd)
{
    const int kept[] = {result_fd, w->proc_fd, w->storage_fd >= 0 ? w->storage_fd : w->proc_fd};
    int high[ARRAY_SIZE(kept)];
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        high[i] = fcntl(kept[i], F_DUPFD_CLOEXEC, RESULT_FD + 3);
        if (high[i] < 0)
            return -errno;
    }
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (dup3(high[i], RESULT_FD + (int)i, O_CLOEXEC) < 0)
            return -errno;
    w->proc_fd = RESULT_FD + 1;
    w->storage_fd = w->storage_fd >= 0 ? RESULT_FD + 2 : -1;
    return syscall(SYS_close_range, RESULT_FD + 3, ~0U, 0) < 0 ? -errno : 0;
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
    child_exit(write(RESULT_FD, &w->held, sizeof(w->held)) != sizeof(w->held));
}

/* Whatever was found, who asks is told of the kernel's limit: without it the session would be
 * judged by what is counted. */
static void tell(const struct priv_session *s, uint32_t id, const struct priv_held *held)
{
    struct priv_reply reply = {.head = {PRIV_HELD, id}};
    struct fsquota_use use = {0};
    struct err ignored = {0};
    if (held != NULL)
        reply.held = *held;
    else
        reply.result = err_set(&reply.err, ERR_STATE, "it was not looked at to the end");
    reply.held.kernel_bytes = priv_quota_holds(s, &use, &ignored) ? use.max_bytes : 0;
    priv_answer(s->priv, &reply, NULL, 0);
}

static void tell_waiting(struct priv_session *s, const struct priv_held *held)
{
    uint32_t id = s->held_id;
    s->held_id = 0;
    if (id != 0)
        tell(s, id, held);
}

void priv_held_stop(struct priv_session *s)
{
    loop_io_stop(&s->held_io);
    fd_close_many(&s->held_fd, s->held_fd > 0);
    tell_waiting(s, NULL);
}

static void on_held(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, held_io);
    struct priv_held held = {0};
    if (read(s->held_fd, &held, sizeof(held)) == sizeof(held))
        tell_waiting(s, &held);
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

static int start_child(struct priv_session *s, struct walk *w, struct err *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, errno, "pipe");
    pid_t pid = clone_process(CLONE_CLEAR_SIGHAND, -1, NULL);
    if (pid == 0)
        held_child(w, fds[1]);
    (void)close(fds[1]);
    s->held_fd = fds[0];
    if (pid > 0 && loop_io_start(s->priv->loop, &s->held_io, s->held_fd, EPOLLIN, on_held) == 0)
        return 0;
    priv_held_stop(s);
    return err_set(err, ERR_LIMIT, "no process left to look");
}

static int look(struct priv_session *s, struct err *err)
{
    const struct priv *p = s->priv;
    struct stat own;
    struct walk w = {.has_own = s->launch.disk_fd >= 0 && fstat(s->launch.disk_fd, &own) == 0};
    w.own = w.has_own ? own.st_dev : 0;
    AUTO_CLOSE int proc_fd = open_proc(s, err);
    if (proc_fd < 0)
        return proc_fd;
    AUTO_CLOSE int storage_fd = w.has_own ? -1
                                          : openat(p->host->sessions_fd, s->launch.name,
                                                   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    w.proc_fd = proc_fd;
    w.storage_fd = storage_fd;
    return start_child(s, &w, err);
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
        tell(s, id, &(struct priv_held){.idle = 1});
    else if (can && look(s, &ignored) == 0)
        s->held_id = id;
    else
        tell(s, id, NULL);
    return 0;
}
