/* SPDX-License-Identifier: Apache-2.0 */

/* Resolves paths beneath a descriptor, and removes trees. */

#include "base/path.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/str.h"

/* A rename anywhere on the host may make the kernel give up on proving that we stayed beneath. */
#define OPEN_TRIES 128

#define BLOCK_SLACK 8192U /* the last block, and one of the file system's own */
/* That <linux/magic.h> does not have. */
#define ZFS_SUPER_MAGIC 0x2fc12fc1U
#define GFS2_SUPER_MAGIC 0x01161970U

static int open_how(int dirfd, const char *path, const struct open_how *how)
{
    for (int tries = 0;;) {
        long fd = syscall(SYS_openat2, dirfd, path, how, sizeof(*how));
        if (fd >= 0)
            return (int)fd;
        if (errno != EINTR && (errno != EAGAIN || ++tries >= OPEN_TRIES))
            return -errno;
    }
}

int path_open_beneath(int dirfd, const char *path, int flags, mode_t mode)
{
    bool creates = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
    struct open_how how = {
        .flags = (unsigned)(flags | O_CLOEXEC),
        .mode = creates ? mode : 0,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    };

    return open_how(dirfd, *path != '\0' ? path : ".", &how);
}

int path_open_unlinked(const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};

    return open_how(AT_FDCWD, path, &how);
}

/* File systems that hold files for their own sake. Not those of the kernel's own objects, those
 * that mount something when they are entered, and those that an ordinary user can mount (FUSE). */
static bool is_storage(int fd)
{
    static const uint32_t known[] = {
        TMPFS_MAGIC,      EXT4_SUPER_MAGIC,      XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
        F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, NFS_SUPER_MAGIC, CIFS_SUPER_MAGIC,
        SMB2_SUPER_MAGIC, CEPH_SUPER_MAGIC,      V9FS_MAGIC,      OCFS2_SUPER_MAGIC,
        ZFS_SUPER_MAGIC,  GFS2_SUPER_MAGIC,
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if ((uint32_t)fs.f_type == known[i])
            return true;
    return false;
}

/* A mount of a file system that is in use where hosts keep what no session may have, or of the one
 * that it is mounted on, is another name for a directory that lies elsewhere. */
static bool is_another_name(int holder, const struct stat *st)
{
    static const char *const places[] = {"/",     "/etc",  "/proc", "/sys",    "/dev",
                                         "/root", "/boot", "/run",  "/var/run"};
    struct stat other;
    if (fstat(holder, &other) < 0 || other.st_dev == st->st_dev)
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(places); i++)
        if (stat(places[i], &other) == 0 && other.st_dev == st->st_dev)
            return true;
    return false;
}

/* What is judged is what was opened: a mount that comes or goes meanwhile changes nothing. Opening
 * by O_PATH wakes up no file system. */
static int enter_mount(int at, const char *name, int flags)
{
    struct open_how how = {.flags = (unsigned)(flags | O_PATH | O_NOFOLLOW | O_CLOEXEC),
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    struct stat st;
    AUTO_CLOSE int fd = open_how(at, name, &how);
    if (fd < 0)
        return fd;
    if (!is_storage(fd) || fstat(fd, &st) < 0 || is_another_name(at, &st))
        return -EXDEV;
    return TAKE_FD(fd);
}

/* Copies the first component of a relative path, and returns what follows it. NULL: it is too long.
 */
static const char *first_name(const char *path, char ret[static NAME_MAX + 1])
{
    size_t len = strcspn(path, "/");
    if (len > NAME_MAX)
        return NULL;
    memcpy(ret, path, len);
    ret[len] = '\0';
    return path + len + (path[len] == '/');
}

/* One name at a time, mount points included, up to the first that is missing: *path is what is left
 * then. */
static int walk_storage(int dirfd, const char **path, int flags)
{
    AUTO_CLOSE int at = path_open_beneath(dirfd, ".", O_PATH | O_DIRECTORY, 0);

    while (at >= 0 && **path != '\0') {
        char name[NAME_MAX + 1];
        const char *rest = first_name(*path, name);
        if (rest == NULL)
            return -ENAMETOOLONG;
        int how = *rest != '\0' ? O_DIRECTORY : flags;
        int next = path_open_beneath(at, name, O_PATH | how, 0);
        if (next == -EXDEV)
            next = enter_mount(at, name, how);
        if (next == -ENOENT)
            break;
        (void)close(at);
        at = next;
        *path = rest;
    }
    return TAKE_FD(at);
}

int path_open_storage(int dirfd, const char *path, int flags)
{
    AUTO_CLOSE int fd = path_open_beneath(dirfd, path, O_PATH | flags, 0);

    if (fd != -EXDEV)
        return TAKE_FD(fd);
    fd = walk_storage(dirfd, &path, flags);
    return fd >= 0 && *path != '\0' ? -ENOENT : TAKE_FD(fd);
}

int path_open_deepest(int dirfd, const char *path, const char **ret_missing)
{
    int fd = walk_storage(dirfd, &path, O_DIRECTORY);

    *ret_missing = path;
    return fd;
}

int path_make_beneath(int dirfd, const char *path)
{
    AUTO_CLOSE int at = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
    char name[NAME_MAX + 1];
    if (at < 0)
        return -errno;
    while (*path != '\0') {
        const char *rest = first_name(path, name);
        if (rest == NULL)
            return -ENAMETOOLONG;
        int next = path_open_beneath(at, name, O_PATH | O_DIRECTORY, 0);
        if (next == -ENOENT) {
            if (mkdirat(at, name, 0755) < 0 && errno != EEXIST)
                return -errno;
            next = path_open_beneath(at, name, O_PATH | O_DIRECTORY, 0);
        }
        if (next < 0)
            return next;
        (void)close(at);
        at = next;
        path = rest;
    }
    return TAKE_FD(at);
}

bool path_is_clean_absolute(const char *path)
{
    if (!path || path[0] != '/' || strnlen(path, PATH_MAX) >= PATH_MAX)
        return false;
    if (path[1] == '\0')
        return true;
    while (*path == '/') {
        const char *name = path + 1;
        path = strchrnul(name, '/');
        size_t len = (size_t)(path - name);
        if (len == 0 || (len == 1 && name[0] == '.') || (len == 2 && memcmp(name, "..", 2) == 0))
            return false;
    }
    return true;
}

int path_make_dir_at(int dirfd, const char *name, mode_t mode)
{
    if (mkdirat(dirfd, name, mode) < 0 && errno != EEXIST)
        return -errno;

    int fd;
    do
        fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd >= 0)
        return fd;
    return errno == ELOOP ? -ENOTDIR : -errno;
}

int path_dir_error(int error, const char *path, struct err *err)
{
    if (error == -ELOOP)
        return err_set(err, ERR_DENIED,
                       "'%.200s' has a symbolic link in its path; name the real path", path);
    if (error == -EXDEV)
        return err_set(err, ERR_DENIED,
                       "'%.200s' crosses a mount point that is no file system of its own; add its "
                       "own path to allowed_mount_roots",
                       path);
    if (error == -ENOTDIR)
        return err_set(err, ERR_CONFLICT, "'%.200s' is not a directory", path);
    return err_sys(err, -error, "open directory '%.200s'", path);
}

uint64_t path_cost(const struct stat *st)
{
    uint64_t size = st->st_size > 0 ? (uint64_t)st->st_size : 0;
    uint64_t blocks = (uint64_t)st->st_blocks * 512;
    return blocks > size + BLOCK_SLACK ? blocks : size;
}

/* Removes a directory tree of any depth and size. */

/* A tree that a session built may be deeper than descriptors, stacks and paths are long. We walk it
 * depth first with at most LEVELS open directories; what lies deeper is moved, by rename, to the
 * top directory, where the next pass finds it. Every entry is thus removed or moved a bounded
 * number of times, and no name is ever resolved through more than one component. */
#define LEVELS 32

/* Passes that moved nothing and still left something: a filesystem that skips entries while others
 * vanish needs a few, a program that keeps adding would take them all. */
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
 * belongs to another user. */
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
