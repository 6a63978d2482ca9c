/* SPDX-License-Identifier: Apache-2.0 */

/* Walks a directory tree step by step and adds up its files and blocks. */

#include "base/usage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/path.h"
#include "base/str.h"

#define PENDING_BYTES_MAX (16U << 20)
#define PATH_LEN_MAX 4095
#define INNER_MAX 512U /* walks inside of walks, each with two descriptors */

struct usage_walk {
    int root; /* borrowed, unless we are inside of another */
    uint64_t max_entries;
    DIR *dir;       /* owned; the directory being read */
    char *dir_path; /* owned; its path below root, "" for root itself */
    char **pending; /* owned; directories still to be read, the next one last */
    size_t n_pending, pending_bytes;
    struct usage usage;
    usage_visit_fn *visit; /* NULL: none */
    void *visit_arg;
    bool started;
    unsigned level;           /* how many are around us */
    struct usage_walk *inner; /* owned; of a directory that is too deep for a path */
};

struct usage_walk *usage_walk_new(int dir_fd, uint64_t max_entries)
{
    struct usage_walk *w = xnew(struct usage_walk);

    w->root = dir_fd;
    w->max_entries = max_entries;
    return w;
}

void usage_walk_visit(struct usage_walk *w, usage_visit_fn *fn, void *arg)
{
    w->visit = fn;
    w->visit_arg = arg;
}

static void leave(struct usage_walk *w)
{
    if (w->dir != NULL)
        (void)closedir(w->dir);
    w->dir = NULL;
    free(w->dir_path);
    w->dir_path = NULL;
}

void usage_walk_free(struct usage_walk *w)
{
    while (w != NULL) {
        struct usage_walk *inner = w->inner;
        leave(w);
        if (w->level > 0)
            (void)close(w->root);
        for (size_t i = 0; i < w->n_pending; i++)
            free(w->pending[i]);
        free(w->pending);
        free(w);
        w = inner;
    }
}

const struct usage *usage_walk_result(const struct usage_walk *w)
{
    return &w->usage;
}

/* The kernel takes no longer paths: from here on they begin anew. */
static void begin_inner(struct usage_walk *w, const char *name)
{
    int fd = path_open_beneath(dirfd(w->dir), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

    if (fd < 0) {
        w->usage.unreadable += fd == -EACCES || fd == -EPERM;
        w->usage.too_many |= fd == -EMFILE || fd == -ENFILE;
        w->usage.gone += fd == -ENOENT;
        return;
    }
    w->inner = usage_walk_new(fd, w->max_entries - w->usage.entries);
    w->inner->level = w->level + 1;
    usage_walk_visit(w->inner, w->visit, w->visit_arg);
}

static void end_inner(struct usage_walk *w)
{
    const struct usage *found = &w->inner->usage;

    w->usage.bytes += found->bytes;
    w->usage.entries += found->entries;
    w->usage.unreadable += found->unreadable;
    w->usage.gone += found->gone;
    w->usage.too_many |= found->too_many;
    usage_walk_free(TAKE_PTR(w->inner));
}

static void push(struct usage_walk *w, const char *name)
{
    char *path = w->dir_path[0] != '\0' ? xasprintf("%s/%s", w->dir_path, name) : xstrdup(name);

    if (strlen(path) > PATH_LEN_MAX && w->level < INNER_MAX) {
        free(path);
        begin_inner(w, name);
        return;
    }
    w->pending_bytes += strlen(path) + 1;
    if (w->pending_bytes > PENDING_BYTES_MAX || strlen(path) > PATH_LEN_MAX) {
        w->usage.too_many = true;
        free(path);
        return;
    }
    if ((w->n_pending & (w->n_pending + 1)) == 0) /* grows by doubling */
        w->pending = xreallocarray(w->pending, 2 * (w->n_pending + 1), sizeof(*w->pending));
    w->pending[w->n_pending++] = path;
}

static char *pop(struct usage_walk *w)
{
    char *path = w->pending[--w->n_pending];

    w->pending_bytes -= strlen(path) + 1;
    return path;
}

/* Opens the next directory. 1: it is open; 0: there is none left. */
static int enter(struct usage_walk *w)
{
    if (!w->started) {
        w->started = true;
        w->dir_path = xstrdup("");
    } else if (w->n_pending > 0) {
        w->dir_path = pop(w);
    } else {
        return 0;
    }
    int fd = path_open_beneath(w->root, w->dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0)
        w->dir = fdopendir(fd);
    int error = fd < 0 ? -fd : errno;
    if (w->dir != NULL) {
        int r = w->visit != NULL ? w->visit(w->visit_arg, fd, NULL, NULL) : 0;
        return r < 0 ? r : 1;
    }
    if (fd >= 0)
        (void)close(fd);
    leave(w);
    w->usage.gone += error == ENOENT;
    if (error == EACCES || error == EPERM)
        w->usage.unreadable++;
    /* Gone, replaced, or a mount: not ours to count. */
    else if (error != ENOENT && error != ENOTDIR && error != ELOOP && error != EXDEV)
        return -error;
    return 1;
}

static int count(struct usage_walk *w, const char *name)
{
    struct stat st;

    if (fstatat(dirfd(w->dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    w->usage.entries++;
    if (S_ISDIR(st.st_mode)) {
        push(w, name);
    } else {
        w->usage.bytes += path_cost(&st);
        w->usage.disk_bytes += (uint64_t)st.st_blocks * 512;
    }
    if (w->usage.entries > w->max_entries)
        w->usage.too_many = true;
    return w->visit != NULL && !S_ISDIR(st.st_mode)
               ? w->visit(w->visit_arg, dirfd(w->dir), name, &st)
               : 0;
}

/* Goes on until it is done (0), has looked at so many, or has met a directory that is too deep. */
static int step(struct usage_walk *w, size_t *entries)
{
    while (*entries > 0 && !w->usage.too_many && w->inner == NULL) {
        if (w->dir == NULL) {
            int r = enter(w);
            if (r <= 0)
                return r;
            --*entries;
            continue;
        }
        errno = 0;
        const struct dirent *e = readdir(w->dir);
        if (e == NULL) {
            if (errno != 0)
                return -errno;
            leave(w);
            continue;
        }
        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        int r = count(w, e->d_name);
        if (r < 0)
            return r;
        --*entries;
    }
    return w->usage.too_many ? 0 : 1;
}

int usage_walk_step(struct usage_walk *w, size_t entries)
{
    while (entries > 0) {
        struct usage_walk *at = w, *outer = NULL;
        for (; at->inner != NULL; at = at->inner)
            outer = at;
        int r = step(at, &entries);
        if (r < 0 || (r == 0 && outer == NULL))
            return r;
        if (r == 0)
            end_inner(outer);
    }
    return 1;
}
