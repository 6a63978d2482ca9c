/* SPDX-License-Identifier: Apache-2.0 */

/* Writes id maps, clones into user namespaces of another owner, and caches id-map namespaces. */

#include "sandbox/setup/userns.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "inside/clone.h"

#define TAKE_BACK_TRIES 1000
#define PAIRS_MAX 8
#define HOLDER_STACK 8192

static int write_map(pid_t pid, const char *file, const struct id_pair *pairs, size_t n)
{
    char path[64], text[PAIRS_MAX * 32];
    size_t len = 0;
    assert(n <= PAIRS_MAX);
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%u %u 1\n", pairs[i].inside,
                                pairs[i].outside);
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
    return fd_write_file_at(AT_FDCWD, path, text);
}

int userns_map(pid_t pid, const struct id_pair *uids, const struct id_pair *gids, size_t n,
               struct err *err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/setgroups", pid);
    int r = fd_write_file_at(AT_FDCWD, path, "deny");
    if (r >= 0)
        r = write_map(pid, "uid_map", uids, n);
    if (r >= 0)
        r = write_map(pid, "gid_map", gids, n);
    return r < 0 ? err_sys(err, -r, "map the session's ids") : 0;
}

/* Waits to be killed, and does not outlive a parent that died before it could. */
static int hold_namespace_child(void *parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && getppid() == *(const pid_t *)parent)
        (void)pause();
    child_exit(0);
}

/* The kernel may be out of memory for a moment. Going on with another's ids is the one thing worse
 * than not going on. */
static void take_back_ids(void)
{
    const uid_t keep = (uid_t)-1;
    for (int i = 0; i < TAKE_BACK_TRIES; i++)
        if (setresuid(keep, 0, keep) == 0 && setresgid(keep, 0, keep) == 0)
            return;
    abort();
}

/* Only our effective ids change, and only between two system calls: nothing is resolved, opened or
 * signalled meanwhile. The capabilities stay, for the cgroup and for hosts that let only privileged
 * processes make user namespaces. */
pid_t userns_clone_owned(uint64_t flags, uid_t owner, int cgroup_fd, int *ret_pidfd)
{
    const uid_t keep = (uid_t)-1;
    const int bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    if (bits < 0 || prctl(PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
        return -errno;
    pid_t pid = 0;
    if (setresgid(keep, owner, keep) < 0 || setresuid(keep, owner, keep) < 0)
        pid = -errno;
    if (pid == 0)
        pid = clone_process(flags | CLONE_NEWUSER, cgroup_fd, ret_pidfd);
    if (pid == 0)
        return 0;
    take_back_ids();
    /* Without effect on us while we are root; what it changes, every set-up child changes too. */
    (void)prctl(PR_SET_SECUREBITS, bits, 0, 0, 0);
    return pid;
}

/* A namespace lives as long as a process or a descriptor holds it: a child makes it, we open it,
 * the child ends. The child runs on a stack of its own in our memory, with our descriptors, and
 * costs little to make and to end. It shares our errno and our heap as well, so it allocates
 * nothing and does nothing that is expected to fail. */
int userns_idmap(const struct id_pair *uids, const struct id_pair *gids, size_t n, struct err *err)
{
    _Alignas(16) char stack[HOLDER_STACK];
    char path[64];
    pid_t self = getpid();
    int pid = clone(hold_namespace_child, stack + sizeof(stack),
                    CLONE_NEWUSER | CLONE_VM | CLONE_FILES | SIGCHLD, &self);
    if (pid < 0)
        return err_sys(err, errno, "user namespace for an id map");
    int r = userns_map(pid, uids, gids, n, err);
    int fd = -1;
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            r = err_sys(err, errno, "open the id map's namespace");
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return r < 0 ? r : fd;
}

static int make_idmap(const struct idmap_key *key, struct err *err)
{
    uid_t init = userns_init_id(key->index);
    struct id_pair uids[2] = {{key->uid, userns_payload_id(key->index)},
                              {key->init_too ? init : 0, init}};
    struct id_pair gids[2] = {{key->gid, userns_payload_id(key->index)},
                              {key->init_too ? init : 0, init}};
    /* Root has to be left out of either list when the owner is root itself. */
    bool root_too = key->root_too && key->uid != 0 && key->gid != 0;
    return userns_idmap(uids, gids, root_too || key->init_too ? 2 : 1, err);
}

static bool same_key(const struct idmap_key *a, const struct idmap_key *b)
{
    return a->index == b->index && a->uid == b->uid && a->gid == b->gid &&
           a->root_too == b->root_too && a->init_too == b->init_too;
}

int idmaps_get(struct idmaps *maps, const struct idmap_key *key, struct err *err)
{
    for (size_t i = 0; i < maps->n; i++)
        if (same_key(&maps->maps[i].key, key))
            return maps->maps[i].fd;
    if (maps->n == IDMAPS_MAX)
        return err_set(err, ERR_LIMIT, "mount sources of more than %d owners", IDMAPS_MAX);
    int fd = make_idmap(key, err);
    if (fd < 0)
        return fd;
    maps->maps[maps->n].key = *key;
    maps->maps[maps->n++].fd = fd;
    return fd;
}

void idmaps_done(struct idmaps *maps)
{
    while (maps->n > 0)
        (void)close(maps->maps[--maps->n].fd);
}
