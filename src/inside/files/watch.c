/* SPDX-License-Identifier: Apache-2.0 */

/* Watches a file or a tree by inotify for box-files and sends its changes. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

#define WATCHED                                                                                    \
    (IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM |              \
     IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF)

/* One watched directory, or the one file. */
struct watched {
    int wd;
    char *path; /* owned; from what is watched, "" for that itself */
};

struct watch {
    struct files_job *job;
    int fd;              /* owned; inotify */
    char root[PATH_MAX]; /* of what is watched, absolute */
    bool recursive, partial;
    bool told_partial;
    bool gone;
    struct watched dirs[FILES_WATCH_DIRS_MAX];
    size_t n;
};

static const struct {
    uint32_t mask;
    enum files_change change;
} changes[] = {
    {IN_CREATE, FILES_CREATED},    {IN_MODIFY, FILES_MODIFIED}, {IN_CLOSE_WRITE, FILES_CLOSED},
    {IN_ATTRIB, FILES_ATTRIBUTES}, {IN_DELETE, FILES_DELETED},  {IN_MOVED_FROM, FILES_MOVED_FROM},
    {IN_MOVED_TO, FILES_MOVED_TO},
};

static int send_event(struct watch *w, enum files_change change, const struct inotify_event *e,
                      const char *path)
{
    struct files_event f = {.change = change,
                            .cookie = e != NULL ? e->cookie : 0,
                            .is_dir = e != NULL && (e->mask & IN_ISDIR) != 0,
                            .path_len = (uint32_t)strlen(path)};
    return JOB_SEND(w->job, FILES_FRAME_EVENT, {&f, sizeof(f)}, {path, f.path_len});
}

static struct watched *watched_find(struct watch *w, int wd)
{
    for (size_t i = 0; i < w->n; i++)
        if (w->dirs[i].wd == wd)
            return &w->dirs[i];
    return NULL;
}

/* A directory below. By path, since there is no other way; never through a link at its end. What
 * lies above may be swapped meanwhile: then something else of this session is watched. */
static void watch_dir(struct watch *w, const char *path)
{
    char whole[PATH_MAX + 1];
    if (w->n == FILES_WATCH_DIRS_MAX ||
        str_fmt(whole, sizeof(whole), "%s%s%s", w->root, *path != '\0' ? "/" : "", path) < 0) {
        w->partial = true;
        return;
    }
    int wd = inotify_add_watch(w->fd, whole, WATCHED | IN_DONT_FOLLOW);
    if (wd < 0) {
        w->partial = w->partial || errno == ENOSPC || errno == ENOMEM;
        return;
    }
    struct watched *known = watched_find(w, wd);
    if (known == NULL)
        known = &w->dirs[w->n++];
    free(known->path);
    *known = (struct watched){.wd = wd, .path = xstrdup(path)};
}

struct below {
    struct watch *watch;
    const char *prefix;
};

static int add_entry(void *arg, const struct tree_entry *e)
{
    struct below *b = arg;
    char path[FILES_PATH_MAX];
    if (S_ISDIR(e->st.st_mode) && str_fmt(path, sizeof(path), "%s%s%s", b->prefix,
                                          b->prefix[0] != '\0' ? "/" : "", e->path) >= 0)
        watch_dir(b->watch, path);
    return 0;
}

/* A directory that came into being, and what is in it already. */
static void add_tree(struct watch *w, const char *path)
{
    char whole[PATH_MAX + 1];
    struct below b = {.watch = w, .prefix = path};
    watch_dir(w, path);
    if (str_fmt(whole, sizeof(whole), "%s/%s", w->root, path) < 0)
        return;
    AUTO_CLOSE int fd = open(whole, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && tree_walk(fd, false, add_entry, &b) > 0)
        w->partial = true;
}

static int on_event(struct watch *w, const struct inotify_event *e)
{
    char path[FILES_PATH_MAX];
    struct watched *d = watched_find(w, e->wd);
    int r = 0;
    if (e->mask & IN_Q_OVERFLOW)
        return send_event(w, FILES_OVERFLOW, e, "");
    if (d == NULL)
        return 0;
    if (e->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT)) {
        /* Of the others the directory above tells. */
        w->gone = w->gone || d->path[0] == '\0';
        return 0;
    }
    if (e->mask & IN_IGNORED) {
        w->gone = w->gone || d->path[0] == '\0';
        free(d->path);
        *d = w->dirs[--w->n];
        return 0;
    }
    bool both = e->len > 0 && d->path[0] != '\0';
    if (str_fmt(path, sizeof(path), "%s%s%s", d->path, both ? "/" : "", e->len > 0 ? e->name : "") <
        0)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(changes) && r == 0; i++)
        if (e->mask & changes[i].mask)
            r = send_event(w, changes[i].change, e, path);
    if (r == 0 && w->recursive && (e->mask & IN_ISDIR) && (e->mask & (IN_CREATE | IN_MOVED_TO)))
        add_tree(w, path);
    return r;
}

static int read_events(struct watch *w)
{
    static union {
        struct inotify_event event;
        char bytes[64U << 10];
    } u;
    ssize_t n = read(w->fd, u.bytes, sizeof(u.bytes));
    int r = 0;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (char *at = u.bytes; r == 0 && at < u.bytes + n;) {
        const struct inotify_event *e = (const void *)at;
        r = on_event(w, e);
        at += sizeof(*e) + e->len;
    }
    return r;
}

/* Until the peer closes our stdin. */
static int watch_loop(struct watch *w)
{
    struct pollfd fds[] = {{.fd = w->fd, .events = POLLIN}, {.fd = w->job->in, .events = POLLIN}};
    int r = 0;
    while (r == 0 && !w->gone) {
        if (w->partial && !w->told_partial)
            r = send_event(w, FILES_PARTIAL, NULL, "");
        w->told_partial = w->partial;
        if (r == 0 && poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR)
            r = -errno;
        if (r == 0 && fds[1].revents != 0)
            return 0;
        if (r == 0 && fds[0].revents != 0)
            r = read_events(w);
    }
    return r == 0 ? send_event(w, FILES_GONE, NULL, "") : r;
}

static int find_root(struct files_job *j, struct watch *w, struct stat *st)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    int r = walk_to(j, j->path, 0, &p);
    if (r == 0)
        r = place_stat(&p, st);
    if (r == 0)
        r = str_fmt(w->root, sizeof(w->root), "%s%s%s%s%s", str_eq(j->root, "/") ? "" : j->root,
                    p.real[0] != '\0' ? "/" : "", p.real, p.name[0] != '\0' ? "/" : "", p.name);
    if (r >= 0 && w->root[0] == '\0')
        (void)str_copy(w->root, sizeof(w->root), "/");
    return r < 0 ? r : 0;
}

static int op_watch(struct files_job *j)
{
    struct watch *w = xnew(struct watch);
    struct stat st = {0};
    w->job = j;
    w->recursive = job_has(j, FILES_RECURSIVE);
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    int r = w->fd < 0 ? -errno : find_root(j, w, &st);
    if (r == 0) {
        watch_dir(w, "");
        if (w->n == 0)
            r = w->partial ? -ENOSPC : -EACCES;
    }
    if (r == 0 && w->recursive && S_ISDIR(st.st_mode))
        add_tree(w, "");
    if (r == 0)
        r = job_send_stat(j, &st); /* from here on nothing is missed */
    if (r == 0)
        r = watch_loop(w);
    for (size_t i = 0; i < w->n; i++)
        free(w->dirs[i].path);
    if (w->fd >= 0)
        (void)close(w->fd);
    free(w);
    return r;
}

const struct job_op job_watch_ops[] = {{FILES_WATCH, op_watch}, {0, NULL}};
