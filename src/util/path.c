/* SPDX-License-Identifier: Apache-2.0 */
#include "util/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/cleanup.h"
#include "util/compat.h"
#include "util/err.h"

/* A rename anywhere on the host may make the kernel give up on proving that we stayed beneath. */
#define OPEN_TRIES 128

#define BLOCK_SLACK 8192U /* the last block, and one of the file system's own */

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

int path_open_deepest(int dirfd, const char *path, const char **ret_missing)
{
    AUTO_CLOSE int at = path_open_beneath(dirfd, ".", O_PATH | O_DIRECTORY, 0);

    while (at >= 0 && *path != '\0') {
        char name[NAME_MAX + 1];
        size_t len = strcspn(path, "/");
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, path, len);
        name[len] = '\0';
        int next = path_open_beneath(at, name, O_PATH | O_DIRECTORY, 0);
        if (next == -ENOENT)
            break;
        (void)close(at);
        at = next;
        path += len + (path[len] == '/');
    }
    *ret_missing = path;
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
                       "'%.200s' crosses a mount point; add its own path to allowed_mount_roots",
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
