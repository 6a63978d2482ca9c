/* SPDX-License-Identifier: Apache-2.0 */

/* Lists which files of its image a sandbox with a writable root has changed: a child of box-priv
 * compares the layers of the sandbox with the directories below them. Programs of the sandbox have
 * made every name that it meets: it follows no link, and stops at a depth, a number and a size. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "priv/server.h"
#include "sandbox/setup/hostetc.h"

#define WALL_SECONDS 30U
#define DEPTH_MAX 64U
#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct diff_walk {
    struct buf out; /* of records: 'A', 'C' or 'D', the path and NUL */
    struct priv_diff found;
    char path[4096];
    size_t len; /* of the path */
    unsigned depth;
};

static void diff_put(struct diff_walk *w, char kind)
{
    if (w->found.entries >= PRIV_DIFF_ENTRIES_MAX ||
        w->out.len + w->len + 2 > PRIV_DIFF_BYTES_MAX) {
        w->found.truncated = 1;
        return;
    }
    w->path[w->len] = '\0';
    (void)buf_putc(&w->out, kind);
    (void)buf_append(&w->out, w->path, w->len + 1);
    w->found.entries++;
}

/* A directory that hides what the image has in its place. */
static bool is_opaque(int fd)
{
    char mark = '\0';
    return fgetxattr(fd, "user.overlay.opaque", &mark, 1) == 1 && mark == 'y';
}

static void diff_dir(struct diff_walk *w, int upper, int lower);

/* `lower` -1: the image has no such directory. */
static void diff_entry(struct diff_walk *w, int upper, int lower, const char *name)
{
    struct stat st, old;
    if (fstatat(upper, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return; /* gone meanwhile */
    bool in_image = lower >= 0 && fstatat(lower, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(0, 0)) {
        if (in_image)
            diff_put(w, 'D');
        return;
    }
    diff_put(w, in_image ? 'C' : 'A');
    if (!S_ISDIR(st.st_mode))
        return;
    AUTO_CLOSE int dir = openat(upper, name, DIR_FLAGS);
    AUTO_CLOSE int below =
        dir >= 0 && in_image && !is_opaque(dir) ? openat(lower, name, DIR_FLAGS) : -1;
    if (dir >= 0)
        diff_dir(w, dir, below);
}

static void diff_dir(struct diff_walk *w, int upper, int lower)
{
    DIR *dir = w->depth < DEPTH_MAX ? fd_opendir(upper) : NULL;
    size_t len = w->len;
    if (dir == NULL) {
        w->found.truncated = 1;
        return;
    }
    w->depth++;
    for (const struct dirent *e; !w->found.truncated && (e = readdir(dir)) != NULL;) {
        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        if (str_fmt(w->path + len, sizeof(w->path) - len, "/%s", e->d_name) < 0) {
            w->found.truncated = 1;
            break;
        }
        w->len = len + 1 + strlen(e->d_name);
        diff_entry(w, upper, lower, e->d_name);
    }
    w->len = len;
    w->depth--;
    (void)closedir(dir);
}

/* The directories of the image that a plan puts layers over (backend/native/plan.c). */
struct diff_fds {
    int result, text, storage, usr, etc;
};

static _Noreturn void diff_child(struct diff_fds fds)
{
    int *const kept[] = {&fds.result, &fds.text, &fds.storage, &fds.usr, &fds.etc};
    static struct diff_walk w;
    if (priv_keep_only_child(kept, ARRAY_SIZE(kept)) < 0)
        child_exit(126);
    const struct {
        const char *path, *layer;
        int lower;
    } trees[] = {{"/etc", "layer-etc/upper", fds.etc}, {"/usr", "layer-usr/upper", fds.usr}};
    (void)alarm(WALL_SECONDS);
    (void)setpriority(PRIO_PROCESS, 0, 10);
    buf_init(&w.out, PRIV_DIFF_BYTES_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(trees); i++) {
        AUTO_CLOSE int upper = openat(fds.storage, trees[i].layer, DIR_FLAGS);
        w.len = strlen(trees[i].path);
        (void)str_copy(w.path, sizeof(w.path), trees[i].path);
        uint32_t before = w.found.entries;
        if (upper >= 0)
            diff_dir(&w, upper, trees[i].lower);
        if (w.found.entries > before)
            diff_put(&w, 'C');
    }
    if (w.out.len > 0 && fd_write_all(fds.text, w.out.data, w.out.len) < 0)
        child_exit(1);
    child_exit(write(fds.result, &w.found, sizeof(w.found)) != sizeof(w.found));
}

static void diff_answer(struct priv *p, const struct priv_diff *found)
{
    struct priv_reply reply = {.head = {PRIV_DIFF, p->diff.id}};
    p->diff.id = 0;
    if (reply.head.id == 0)
        return;
    if (found != NULL)
        reply.diff = *found;
    else
        reply.result = err_set(&reply.err, ERR_STATE,
                               "box-priv could not list the changes within %u s", WALL_SECONDS);
    priv_answer(p, &reply, &p->diff.text_fd, found != NULL);
}

void priv_diff_stop(struct priv *p)
{
    loop_io_stop(&p->diff.io);
    diff_answer(p, NULL);
    fd_close_many(&p->diff.fd, p->diff.fd > 0);
    fd_close_many(&p->diff.text_fd, p->diff.text_fd > 0);
    p->diff.fd = p->diff.text_fd = 0;
}

static void on_diff(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, diff.io);
    struct priv_diff found = {0};
    if (read(p->diff.fd, &found, sizeof(found)) == sizeof(found))
        diff_answer(p, &found);
    priv_diff_stop(p);
}

/* What a requester learns are names of files in a sandbox that is its own. One at a time. */
int priv_on_diff(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_session *s = priv_by_request(p, data, len, err);
    struct diff_fds fds = {.result = -1};
    if (s == NULL)
        return -ENOENT;
    if (s->launch.state != LAUNCH_LIVE || !(s->launch.flags & PLAN_ROOT_WRITABLE) ||
        (s->launch.flags & PLAN_GVISOR))
        return err_set(err, ERR_STATE, "the sandbox has no layers over its image");
    if (p->diff.id != 0)
        return err_set(err, ERR_STATE, "the changes of another session are being listed");
    AUTO_CLOSE int storage =
        s->launch.disk_fd >= 0
            ? fcntl(s->launch.disk_fd, F_DUPFD_CLOEXEC, 3)
            : launch_open_storage(p->host, s->launch.name, s->launch.flags & PLAN_DURABLE);
    AUTO_CLOSE int usr = open("/usr", DIR_FLAGS);
    AUTO_CLOSE int text = memfd_create("box-diff", MFD_CLOEXEC);
    if (storage < 0 || usr < 0 || text < 0)
        return err_sys(err, storage < 0 ? -storage : errno, "open the layers of the sandbox");
    fds.storage = storage;
    fds.usr = usr;
    fds.text = text;
    fds.etc = hostetc_dir(p->host->etc, s->launch.flags & PLAN_NET_ON);
    pid_t pid = priv_looker_start(&p->diff.fd, &fds.result, err);
    if (pid == 0)
        diff_child(fds);
    if (pid < 0)
        return err->code == ERR_NONE ? err_sys(err, (int)-pid, "start a process") : pid;
    p->diff.text_fd = TAKE_FD(text);
    p->diff.id = ((const struct priv_head *)data)->id;
    if (loop_io_start(p->loop, &p->diff.io, p->diff.fd, EPOLLIN, on_diff) < 0)
        priv_diff_stop(p);
    return 0;
}
