/* SPDX-License-Identifier: Apache-2.0 */

/* Visits every file below a directory, sorted by name, within fixed limits. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/files/files_internal.h"

/* Noise in every project, and large. */
static const char *const skipped[] = {".git", "node_modules", "__pycache__", ".venv",
                                      "venv", ".tox",         "dist",        "build"};

struct level {
    int fd;       /* owned */
    char **names; /* owned, sorted */
    size_t n, next;
    size_t path_len; /* of the directory */
};

struct tree {
    struct level levels[FILES_DEPTH_MAX];
    size_t depth;
    char path[FILES_PATH_MAX];
    uint64_t seen;
    bool cut, skip;
    tree_fn *fn;
    void *arg;
};

static int by_name(const void *a, const void *b)
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

static void pop(struct tree *t)
{
    struct level *l = &t->levels[--t->depth];

    (void)close(l->fd);
    for (size_t i = 0; i < l->n; i++)
        free(l->names[i]);
    free(l->names);
}

/* Every name counts, also one that is skipped: looking at it is what costs. */
static void read_names(struct tree *t, struct level *l)
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
        qsort(l->names, l->n, sizeof(l->names[0]), by_name);
}

static void push(struct tree *t, int fd)
{
    if (t->depth == FILES_DEPTH_MAX) {
        t->cut = true;
        (void)close(fd);
        return;
    }
    struct level *l = &t->levels[t->depth++];
    *l = (struct level){.fd = fd, .path_len = strlen(t->path)};
    read_names(t, l);
}

static int visit(struct tree *t, struct level *l, const char *name)
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
        push(t, fd);
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
        push(t, own);
    while (r == 0 && t->depth > 0) {
        struct level *l = &t->levels[t->depth - 1];
        t->path[l->path_len] = '\0';
        if (l->next == l->n)
            pop(t);
        else
            r = visit(t, l, l->names[l->next++]);
    }
    while (t->depth > 0)
        pop(t);
    bool cut = t->cut;
    free(t);
    return r < 0 ? r : cut;
}
