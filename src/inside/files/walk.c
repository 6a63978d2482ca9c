/* SPDX-License-Identifier: Apache-2.0 */

/* Resolves a path beneath the root one component at a time, safe against files that are swapped,
 * and visits what lies below a directory. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

/* A program may swap names while we walk: how often a walk is tried before it fails. */
#define SWAPS_MAX 64

struct path_walk {
    struct files_job *job;
    unsigned flags;
    unsigned links;
    struct files_place at;          /* at.dir is where we are */
    char ahead[2 * FILES_PATH_MAX]; /* what is left of the way */
};

void files_place_done(struct files_place *p)
{
    fd_close_many(&p->dir, 1);
}

static int open_dir_at(int dir, const char *name)
{
    int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static void stand_at(struct path_walk *w, int fd)
{
    files_place_done(&w->at);
    w->at.dir = fd;
}

static int to_root(struct path_walk *w)
{
    int fd = fcntl(w->job->root_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return -errno;
    stand_at(w, fd);
    w->at.real[0] = '\0';
    return 0;
}

/* One up. Not by "..", which leads wherever the directory has been moved meanwhile: again from the
 * root, along directories that we have been in. */
static int up(struct path_walk *w)
{
    char real[FILES_PATH_MAX], way[FILES_PATH_MAX];
    char *last = strrchr(w->at.real, '/');
    if (w->at.real[0] == '\0') /* above the root of everything there is nothing else */
        return str_eq(w->job->root, "/") ? 0 : job_fail(w->job, FILES_WHY_ESCAPE, EXDEV);
    if (last != NULL)
        *last = '\0';
    (void)str_copy(real, sizeof(real), last != NULL ? w->at.real : "");
    memcpy(way, real, sizeof(way));
    int r = to_root(w);
    for (char *name = way; r == 0 && *name != '\0';) {
        size_t len = strcspn(name, "/");
        bool more = name[len] == '/';
        name[len] = '\0';
        int fd = open_dir_at(w->at.dir, name);
        if (fd < 0)
            return fd;
        stand_at(w, fd);
        name += len + more;
    }
    memcpy(w->at.real, real, sizeof(real));
    return r;
}

static int down(struct path_walk *w, const char *name)
{
    int fd = open_dir_at(w->at.dir, name);
    if (fd == -ENOENT && (w->flags & FILES_PARENTS)) {
        if (mkdirat(w->at.dir, name, 0777) < 0 && errno != EEXIST)
            return -errno;
        fd = open_dir_at(w->at.dir, name);
    }
    if (fd < 0)
        return fd;
    size_t len = strlen(w->at.real);
    if (str_fmt(w->at.real + len, sizeof(w->at.real) - len, "%s%s", len > 0 ? "/" : "", name) < 0) {
        (void)close(fd);
        return -ENAMETOOLONG;
    }
    stand_at(w, fd);
    return 0;
}

/* The text of a link takes the place of its name. */
static int follow(struct path_walk *w, const char *name, const char *rest)
{
    char target[FILES_PATH_MAX], ahead[sizeof(w->ahead)];
    const char *root = w->job->root, *to = target;
    ssize_t n = readlinkat(w->at.dir, name, target, sizeof(target));
    if (n < 0)
        return -errno;
    if (n == 0 || (size_t)n >= sizeof(target))
        return -ENAMETOOLONG;
    target[n] = '\0';
    if (++w->links > FILES_LINKS_MAX)
        return -ELOOP;
    if (target[0] == '/') {
        size_t len = str_eq(root, "/") ? 0 : strlen(root);
        if (strncmp(target, root, len) != 0 || (target[len] != '/' && target[len] != '\0'))
            return job_fail(w->job, FILES_WHY_ESCAPE, EXDEV);
        to = target + len;
        int r = to_root(w);
        if (r < 0)
            return r;
    }
    if (str_fmt(ahead, sizeof(ahead), "%s%s", to, rest) < 0)
        return -ENAMETOOLONG;
    return str_copy(w->ahead, sizeof(w->ahead), ahead);
}

/* 1: w->at is the place; 0: go on. */
static int step(struct path_walk *w)
{
    char name[NAME_MAX + 1];
    char *begin = w->ahead + strspn(w->ahead, "/");
    size_t len = strcspn(begin, "/");
    const char *rest = begin + len;
    struct stat st;
    w->at.name[0] = '\0';
    if (len == 0)
        return 1;
    if (len > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, begin, len);
    name[len] = '\0';
    bool last = rest[strspn(rest, "/")] == '\0', slash = *rest == '/';
    int r = 0;
    if (str_eq(name, ".."))
        r = up(w);
    else if (!str_eq(name, ".")) {
        if (fstatat(w->at.dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            st.st_mode = 0; /* it may be made */
        if (S_ISLNK(st.st_mode) && (!last || slash || !(w->flags & FILES_NOFOLLOW)))
            return follow(w, name, rest);
        if (last && !(slash && st.st_mode != 0 && !S_ISDIR(st.st_mode))) {
            (void)str_copy(w->at.name, sizeof(w->at.name), name);
            return 1;
        }
        r = down(w, name);
    }
    memmove(w->ahead, rest, strlen(rest) + 1);
    return r;
}

static int walk_once(struct path_walk *w, const char *path)
{
    w->links = 0;
    int r = str_copy(w->ahead, sizeof(w->ahead), path);
    if (r == 0)
        r = to_root(w);
    while (r == 0)
        r = step(w);
    return r < 0 ? r : 0;
}

int walk_to(struct files_job *j, const char *path, unsigned flags, struct files_place *ret)
{
    struct path_walk w = {.job = j, .flags = flags, .at = {.dir = -1}};
    int r = -ELOOP;

    /* A directory that became a link between looking and opening is ELOOP or ENOTDIR; so is one
     * that always was, which the next look tells. */
    for (int i = 0; i < SWAPS_MAX && (r == -ELOOP || r == -ENOTDIR); i++) {
        r = walk_once(&w, path);
        if (w.links > FILES_LINKS_MAX)
            break;
        if (r == -ENOTDIR && i > 0)
            break;
    }
    if (r < 0) {
        files_place_done(&w.at);
        return r;
    }
    *ret = w.at;
    return 0;
}

int place_stat(const struct files_place *p, struct stat *ret)
{
    int r = p->name[0] == '\0' ? fstat(p->dir, ret)
                               : fstatat(p->dir, p->name, ret, AT_SYMLINK_NOFOLLOW);
    return r < 0 ? -errno : 0;
}

static bool ordinary(const struct stat *st)
{
    return S_ISREG(st->st_mode) || S_ISDIR(st->st_mode);
}

int place_open(struct files_job *j, const struct files_place *p, int flags, struct stat *ret)
{
    struct stat before;
    int r = place_stat(p, &before);
    if (r < 0)
        return r;
    if (!ordinary(&before))
        return job_fail(j, FILES_WHY_SPECIAL, EINVAL);
    AUTO_CLOSE int fd = openat(p->dir, p->name[0] != '\0' ? p->name : ".",
                               flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP ? job_fail(j, FILES_WHY_SPECIAL, ELOOP) : -errno;
    if (fstat(fd, ret) < 0)
        return -errno;
    if (!ordinary(ret)) /* it was swapped in between; nothing was read */
        return job_fail(j, FILES_WHY_SPECIAL, EINVAL);
    return TAKE_FD(fd);
}

int job_open(struct files_job *j, struct stat *ret)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    int r = walk_to(j, j->path, 0, &p);
    return r < 0 ? r : place_open(j, &p, O_RDONLY, ret);
}

int job_open_dir(struct files_job *j)
{
    struct stat st = {0};
    AUTO_CLOSE int fd = job_open(j, &st);
    if (fd < 0)
        return fd;
    return S_ISDIR(st.st_mode) ? TAKE_FD(fd) : -ENOTDIR;
}

/* Everything below a directory, sorted by name, within fixed limits. */

/* Noise in every project, and large. */
static const char *const skipped[] = {".git", "node_modules", "__pycache__", ".venv",
                                      "venv", ".tox",         "dist",        "build"};

struct tree_level {
    int fd;       /* owned */
    char **names; /* owned, sorted */
    size_t n, next;
    size_t path_len; /* of the directory */
};

struct tree {
    struct tree_level levels[FILES_DEPTH_MAX];
    size_t depth;
    char path[FILES_PATH_MAX];
    uint64_t seen;
    bool cut, skip;
    tree_fn *fn;
    void *arg;
};

int tree_by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_skipped(const struct tree *t, const char *name)
{
    for (size_t i = 0; t->skip && i < ARRAY_SIZE(skipped); i++)
        if (str_eq(name, skipped[i]))
            return true;
    return str_eq(name, ".") || str_eq(name, "..");
}

static void tree_pop(struct tree *t)
{
    struct tree_level *l = &t->levels[--t->depth];
    (void)close(l->fd);
    for (size_t i = 0; i < l->n; i++)
        free(l->names[i]);
    free(l->names);
}

/* Every name counts, also one that is skipped: looking at it is what costs. */
static void read_names(struct tree *t, struct tree_level *l)
{
    size_t room = 0;
    int own = fcntl(l->fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = own >= 0 ? fdopendir(own) : NULL;
    const struct dirent *e;
    if (dir == NULL && own >= 0)
        (void)close(own);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        if (++t->seen > FILES_WALK_MAX) {
            t->cut = true;
            break;
        }
        if (is_skipped(t, e->d_name))
            continue;
        if (l->n == room) {
            room = room > 0 ? room * 2 : 32;
            l->names = xreallocarray(l->names, room, sizeof(l->names[0]));
        }
        l->names[l->n++] = xstrdup(e->d_name);
    }
    if (dir != NULL)
        (void)closedir(dir);
    if (l->n > 0)
        qsort(l->names, l->n, sizeof(l->names[0]), tree_by_name);
}

static void tree_push(struct tree *t, int fd)
{
    if (t->depth == FILES_DEPTH_MAX) {
        t->cut = true;
        (void)close(fd);
        return;
    }
    struct tree_level *l = &t->levels[t->depth++];
    *l = (struct tree_level){.fd = fd, .path_len = strlen(t->path)};
    read_names(t, l);
}

static int tree_visit(struct tree *t, struct tree_level *l, const char *name)
{
    struct tree_entry e = {.dir = l->fd, .name = name, .path = t->path};
    char *end = t->path + l->path_len;
    if (str_fmt(end, sizeof(t->path) - l->path_len, "%s%s", l->path_len > 0 ? "/" : "", name) < 0) {
        t->cut = true;
        return 0;
    }
    if (fstatat(l->fd, name, &e.st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* it has gone meanwhile */
    int r = t->fn(t->arg, &e);
    if (r != 0 || !S_ISDIR(e.st.st_mode))
        return r;
    int fd = openat(l->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        tree_push(t, fd);
    return 0;
}

int tree_walk(int fd, bool skip, tree_fn *fn, void *arg)
{
    struct tree *t = xnew(struct tree);
    int r = 0, own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    t->skip = skip;
    t->fn = fn;
    t->arg = arg;
    if (own < 0)
        r = -errno;
    else
        tree_push(t, own);
    while (r == 0 && t->depth > 0) {
        struct tree_level *l = &t->levels[t->depth - 1];
        t->path[l->path_len] = '\0';
        if (l->next == l->n)
            tree_pop(t);
        else
            r = tree_visit(t, l, l->names[l->next++]);
    }
    while (t->depth > 0)
        tree_pop(t);
    bool cut = t->cut;
    free(t);
    return r < 0 ? r : cut;
}
