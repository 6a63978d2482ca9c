/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sandbox/clone.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/path.h"
#include "util/str.h"

/* What a plain session has on disk; anything else in its storage keeps it from being used again. */
static const char *const usual[] = {"workspace", "home"};

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

int storage_make(struct launch_host *h, const char *name, struct err *err)
{
    bool fresh = !take_spare(h, name);
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

static bool is_empty(int fd)
{
    char entries[1024];
    long n = syscall(SYS_getdents64, fd, entries, sizeof(entries));
    /* "." and ".." are 24 bytes each; whatever is longer holds a third name. */
    return n == 48 && syscall(SYS_getdents64, fd, entries, sizeof(entries)) == 0;
}

/* The last owner may have left more than files: modes, attributes, access lists. */
static bool make_pristine(const struct launch_host *h, int storage_fd, const char *name)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(storage_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT;
    return fstat(fd, &st) == 0 && st.st_uid == h->daemon_uid && is_empty(fd) &&
           flistxattr(fd, NULL, 0) == 0 && fchmod(fd, 0700) == 0;
}

static bool keep_spare(struct launch_host *h, const char *name)
{
    char spare[32];
    AUTO_CLOSE int fd =
        openat(h->sessions_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || h->n_spares == LAUNCH_SPARES_MAX)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
        if (!make_pristine(h, fd, usual[i]))
            return false;
    spare_name(h->n_spares, spare, sizeof(spare));
    if (renameat(h->sessions_fd, name, h->trash_fd, spare) < 0)
        return false;
    h->n_spares++;
    return true;
}

/* A large tree is moved aside and removed by a child, so that nobody waits for it. */
void storage_remove(struct launch_host *h, const char *name, bool quota)
{
    if (!quota && keep_spare(h, name))
        return;
    if (renameat(h->sessions_fd, name, h->trash_fd, name) < 0)
        return; /* never made; or the next start removes it */
    pid_t pid = clone_process(0, -1, NULL);
    if (pid == 0) {
        (void)path_remove_tree_at(h->trash_fd, name);
        child_exit(0);
    }
    if (pid < 0)
        (void)path_remove_tree_at(h->trash_fd, name);
}
