/* SPDX-License-Identifier: Apache-2.0 */

/* Opens, creates and checks paths beneath a descriptor, by openat2(2). */

#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
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

/* A mount of a file system that is in use where hosts keep what is nobody's to have, or of the one
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

int path_open_storage(int dirfd, const char *path, int flags)
{
    int fd = path_open_beneath(dirfd, path, O_PATH | flags, 0);
    if (fd != -EXDEV)
        return fd;
    AUTO_CLOSE int at = path_open_beneath(dirfd, ".", O_PATH | O_DIRECTORY, 0);
    while (at >= 0 && *path != '\0') {
        char name[NAME_MAX + 1];
        const char *rest = first_name(path, name);
        if (rest == NULL)
            return -ENAMETOOLONG;
        path = rest;
        int how = *path != '\0' ? O_DIRECTORY : flags;
        int next = path_open_beneath(at, name, O_PATH | how, 0);
        if (next == -EXDEV)
            next = enter_mount(at, name, how);
        (void)close(at);
        at = next;
    }
    return TAKE_FD(at);
}

int path_open_deepest(int dirfd, const char *path, const char **ret_missing)
{
    AUTO_CLOSE int at = path_open_beneath(dirfd, ".", O_PATH | O_DIRECTORY, 0);

    while (at >= 0 && *path != '\0') {
        char name[NAME_MAX + 1];
        const char *rest = first_name(path, name);
        if (rest == NULL)
            return -ENAMETOOLONG;
        int next = path_open_storage(at, name, O_DIRECTORY);
        if (next == -ENOENT)
            break;
        (void)close(at);
        at = next;
        path = rest;
    }
    *ret_missing = path;
    return TAKE_FD(at);
}

int path_make_beneath(int dirfd, const char *path)
{
    AUTO_CLOSE int at = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
    char name[NAME_MAX + 1];
    if (at < 0)
        return -errno;
    while (*path != '\0') {
        size_t len = strcspn(path, "/");
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, path, len);
        name[len] = '\0';
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
        path += len + (path[len] == '/');
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
