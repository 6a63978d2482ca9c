/* SPDX-License-Identifier: Apache-2.0 */

/* Removes a directory tree of any depth and size. */

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/path.h"
#include "base/str.h"

/* A tree somebody else built may be deeper than descriptors, stacks and paths are long. We walk it
 * depth first with at most LEVELS open directories; what lies deeper is moved, by rename, to the
 * top directory, where the next pass finds it. Every entry is thus removed or moved a bounded
 * number of times, and no name is ever resolved through more than one component. */
#define LEVELS 32

/* Passes that moved nothing and still left something: a filesystem that skips entries while others
 * vanish needs a few, somebody who keeps adding would take them all. */
#define IDLE_PASSES_MAX 64

struct level {
    DIR *dir; /* owned */
    char name[NAME_MAX + 1];
};

struct removal {
    struct level stack[LEVELS];
    size_t depth;
    int error;       /* the first failure of this pass, or 0 */
    uint64_t change; /* what this pass removed or moved */
    uint64_t moved;
    unsigned idle;        /* passes that moved nothing */
    uint64_t serial;      /* for names of moved directories */
    char unguessable[17]; /* so that the tree cannot hold these names already */
};

static void note(struct removal *rm, int error)
{
    if (rm->error == 0 && error != -ENOENT)
        rm->error = error;
}

/* chmod for an O_PATH descriptor, which fchmod() refuses. */
static int chmod_opath(int fd, mode_t mode)
{
    char proc[64];

    if (syscall(SYS_fchmodat2, fd, "", mode, AT_EMPTY_PATH) == 0)
        return 0;
    (void)str_fmt(proc, sizeof(proc), "/proc/self/fd/%d", fd);
    return chmod(proc, mode) < 0 ? -errno : 0;
}

/* A directory of the owner's without its bits for the owner: puts them there, then opens it. */
static int open_locked_dir(int dirfd, const char *name)
{
    AUTO_CLOSE int handle = openat(dirfd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (handle < 0)
        return -errno;
    int r = chmod_opath(handle, S_IRWXU);
    if (r < 0)
        return r;
    int fd = openat(handle, ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Opens a directory for emptying, never through a link, never across a mount: what is mounted there
 * belongs to somebody else. */
static int open_dir(int dirfd, const char *name)
{
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct statx st;

    if (fd < 0 && errno == EACCES)
        fd = open_locked_dir(dirfd, name);
    else if (fd < 0)
        fd = -errno;
    if (fd < 0)
        return fd;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_MODE, &st) < 0)
        return -errno;
    if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return -EBUSY;
    if ((st.stx_mode & S_IRWXU) != S_IRWXU)
        (void)fchmod(fd, S_IRWXU); /* where this fails, the removals tell why */
    return TAKE_FD(fd);
}

static int push_open(struct removal *rm, int dirfd, const char *name)
{
    struct level *level = &rm->stack[rm->depth];

    assert(rm->depth < LEVELS);
    AUTO_CLOSE int fd = open_dir(dirfd, name);
    if (fd < 0)
        return fd;
    level->dir = fdopendir(fd);
    if (!level->dir)
        return -errno;
    (void)TAKE_FD(fd);
    rm->depth++;
    return 0;
}

static int push(struct removal *rm, int dirfd, const char *name)
{
    int r = str_copy(rm->stack[rm->depth].name, sizeof(rm->stack[0].name), name);

    return r < 0 ? r : push_open(rm, dirfd, name);
}

static int top_fd(const struct removal *rm)
{
    return dirfd(rm->stack[rm->depth - 1].dir);
}

/* Out of the deepest level we go to, into the first. */
static int move_up(struct removal *rm, const char *name)
{
    char target[48];
    int from = top_fd(rm), to = dirfd(rm->stack[0].dir);

    (void)str_fmt(target, sizeof(target), "%s.%ju", rm->unguessable, (uintmax_t)rm->serial++);
    int r = renameat(from, name, to, target) < 0 ? -errno : 0;
    if (r == -EACCES) {
        /* ".." changes, so moving a directory needs the right to write into it. */
        AUTO_CLOSE int fd = open_dir(from, name);
        if (fd >= 0)
            r = renameat(from, name, to, target) < 0 ? -errno : 0;
    }
    if (r < 0)
        return r;
    rm->moved++;
    rm->change++;
    return 0;
}

static int remove_entry(struct removal *rm, const struct dirent *entry)
{
    int fd = top_fd(rm);

    if (entry->d_type != DT_DIR) {
        if (unlinkat(fd, entry->d_name, 0) == 0) {
            rm->change++;
            return 0;
        }
        /* The type may be unknown, or wrong by now. */
        if (errno != EISDIR && errno != EPERM)
            return -errno;
    }
    if (unlinkat(fd, entry->d_name, AT_REMOVEDIR) == 0) {
        rm->change++;
        return 0;
    }
    if (errno != ENOTEMPTY && errno != EEXIST && errno != EACCES)
        return -errno;
    return rm->depth < LEVELS ? push(rm, fd, entry->d_name) : move_up(rm, entry->d_name);
}

/* Done with the innermost directory: closes it and removes it from the one above. */
static void pop(struct removal *rm)
{
    struct level *level = &rm->stack[--rm->depth];

    (void)closedir(level->dir);
    if (rm->depth == 0)
        return;
    if (unlinkat(top_fd(rm), level->name, AT_REMOVEDIR) == 0)
        rm->change++;
    else
        note(rm, -errno);
}

/* One walk over everything that is not deeper than LEVELS. */
static void walk(struct removal *rm)
{
    while (rm->depth > 0) {
        errno = 0;
        struct dirent *entry = readdir(rm->stack[rm->depth - 1].dir);
        if (!entry) {
            if (errno != 0)
                note(rm, -errno);
            pop(rm);
            continue;
        }
        if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
            continue;
        int r = remove_entry(rm, entry);
        if (r < 0)
            note(rm, r);
    }
}

/* Opens the top afresh, since moved directories appeared there, and walks. Fails when that leads no
 * further. */
static int pass(struct removal *rm, int dirfd, const char *name)
{
    rm->error = 0;
    rm->change = rm->moved = 0;
    int r = push_open(rm, dirfd, name);
    if (r < 0)
        return r;
    walk(rm);
    if (rm->moved == 0)
        rm->idle++;
    if (rm->change == 0 || rm->idle > IDLE_PASSES_MAX)
        return rm->error < 0 ? rm->error : -ENOTEMPTY;
    return 0;
}

/* -ENOTEMPTY: there is something to walk through, or no right to find out. */
static int remove_empty(int dirfd, const char *name)
{
    if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0)
        return 0;
    return errno == EEXIST || errno == EACCES ? -ENOTEMPTY : -errno;
}

int path_remove_tree_at(int dirfd, const char *name)
{
    struct removal rm = {0};

    if (unlinkat(dirfd, name, 0) == 0)
        return 0;
    int as_file = -errno;
    int r = as_file;
    if (r == -EISDIR || r == -EPERM) {
        id_random(rm.unguessable);
        while ((r = remove_empty(dirfd, name)) == -ENOTEMPTY) {
            r = pass(&rm, dirfd, name);
            if (r < 0)
                break;
        }
    }
    if (r == -ENOENT)
        return 0;
    return r == -ENOTDIR ? as_file : r; /* a file that may not be removed */
}
