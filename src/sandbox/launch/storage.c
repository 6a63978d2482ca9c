/* SPDX-License-Identifier: Apache-2.0 */

/* Makes, reuses and removes storage directories. */

#include "sandbox/launch/storage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/clone.h"

/* What a plain session has on disk; anything else in its storage keeps it from being used again. */
static const char *const usual[] = {"workspace", "home"};

/* Of an empty directory, on the file systems there are. */
#define PRISTINE_SIZE 4096

static void spare_name(unsigned n, char *ret, size_t size)
{
    (void)snprintf(ret, size, "spare-%u", n);
}

static bool take_spare(struct launch_host *h, const char *name)
{
    char spare[32];
    if (h->n_spares == 0)
        return false;
    spare_name(--h->n_spares, spare, sizeof(spare));
    return renameat(h->trash_fd, spare, h->sessions_fd, name) == 0;
}

int storage_make(struct launch_host *h, const char *name, bool quota, struct err *err)
{
    bool fresh = quota || !take_spare(h, name);
    if (fresh && mkdirat(h->sessions_fd, name, 0700) < 0)
        return err_sys(err, errno, "make storage for '%s'", name);
    AUTO_CLOSE int fd =
        openat(h->sessions_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, "open storage of '%s'", name);
    if (fresh && h->rootful && fchown(fd, h->daemon_uid, h->daemon_gid) < 0)
        return err_sys(err, errno, "own storage of '%s'", name);
    return TAKE_FD(fd);
}

/* Names in a directory beside "." and ".."; stops counting when there are more than `max`. */
static unsigned count_names(int fd, unsigned max)
{
    _Alignas(struct dirent64) char entries[1024];
    unsigned count = 0;
    long n = 1;
    while (count <= max && (n = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            count += !str_eq(e->d_name, ".") && !str_eq(e->d_name, "..");
            at += e->d_reclen;
        }
    }
    return n < 0 ? UINT_MAX : count;
}

/* The last owner may have left more than files: modes, attributes, access lists. */
static bool make_pristine(const struct launch_host *h, int storage_fd, const char *name)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(storage_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT;
    /* A directory that once held many names stays large; its times can be set to say anything. */
    return fstat(fd, &st) == 0 && st.st_uid == h->daemon_uid && st.st_size <= PRISTINE_SIZE &&
           count_names(fd, 0) == 0 && flistxattr(fd, NULL, 0) == 0 && fchmod(fd, 0700) == 0 &&
           futimens(fd, NULL) == 0;
}

static bool keep_spare(struct launch_host *h, const char *name)
{
    char spare[32];
    AUTO_CLOSE int fd =
        openat(h->sessions_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || h->n_spares == LAUNCH_SPARES_MAX)
        return false;
    unsigned found = 0;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++) {
        if (!make_pristine(h, fd, usual[i]))
            return false;
        found += faccessat(fd, usual[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    }
    if (count_names(fd, found) != found)
        return false; /* layers of a writable root, for one */
    spare_name(h->n_spares, spare, sizeof(spare));
    if (renameat(h->sessions_fd, name, h->trash_fd, spare) < 0)
        return false;
    h->n_spares++;
    return true;
}

/* By a child: a tree can be large, and others wait for us. */
int storage_remove(struct launch_host *h, const char *name, bool quota)
{
    int pidfd = -1;
    if (!quota && keep_spare(h, name))
        return -1;
    if (renameat(h->sessions_fd, name, h->trash_fd, name) < 0)
        return -1; /* never made; or the next start removes it */
    pid_t pid = clone_process(0, -1, &pidfd);
    if (pid == 0) {
        (void)path_remove_tree_at(h->trash_fd, name);
        child_exit(0);
    }
    if (pid < 0)
        (void)path_remove_tree_at(h->trash_fd, name);
    return pidfd;
}

static int make_spare(struct launch_host *h)
{
    char spare[32];
    spare_name(h->n_spares, spare, sizeof(spare));
    AUTO_CLOSE int fd = path_make_dir_at(h->trash_fd, spare, 0700);
    if (fd < 0)
        return fd;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++) {
        AUTO_CLOSE int sub = path_make_dir_at(fd, usual[i], 0700);
        if (sub < 0)
            return sub;
        if (h->rootful && fchown(sub, h->daemon_uid, h->daemon_gid) < 0)
            return -errno;
    }
    if (h->rootful && fchown(fd, h->daemon_uid, h->daemon_gid) < 0)
        return -errno;
    h->n_spares++;
    return 0;
}

void storage_refill(struct launch_host *h, unsigned n)
{
    while (n-- > 0 && h->n_spares < LAUNCH_SPARES_MAX)
        if (make_spare(h) < 0)
            return; /* sessions make their own, or say why not */
}
