/* SPDX-License-Identifier: Apache-2.0 */

/* From a connection to the process at its other end, and where that works. Nothing is looked up
 * twice by a number that could be another process's by then: /proc/PID is opened once. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "loop/peer.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif
#define STATUS_MAX 16384

ino_t peer_mnt_ns(void)
{
    struct stat st;
    return stat("/proc/self/ns/mnt", &st) == 0 ? st.st_ino : 0;
}

void peer_process_done(struct peer_process *p)
{
    fd_close_many(&p->cwd, 1);
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static int open_proc(const char *pid)
{
    char path[64];
    if (str_fmt(path, sizeof(path), "/proc/%s", pid) < 0)
        return -ENOENT;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* 1: the process has the socket open; 0: it has not, or a negative errno. */
static int holds_socket(int proc, uint32_t inode)
{
    char want[32], link[32];
    int found = 0;
    (void)snprintf(want, sizeof(want), "socket:[%u]", inode);
    int fd = openat(proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    for (struct dirent *d = readdir(dir); d != NULL && !found; d = readdir(dir)) {
        ssize_t n = readlinkat(dirfd(dir), d->d_name, link, sizeof(link) - 1);
        if (n > 0) {
            link[n] = '\0';
            found = str_eq(link, want);
        }
    }
    (void)closedir(dir);
    return found;
}

/* The first process with that socket; -ENOTUNIQ when another one with it works elsewhere, -EACCES
 * when there are some that we may not look at and none that we may has it. */
static int find_holder(const struct peer *peer)
{
    AUTO_CLOSE int found = -1;
    struct stat first = {0}, st;
    int denied = 0, r = 0;
    DIR *dir = opendir("/proc");
    if (dir == NULL)
        return -errno;
    for (struct dirent *d = readdir(dir); d != NULL && r == 0; d = readdir(dir)) {
        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;
        AUTO_CLOSE int proc = open_proc(d->d_name);
        /* What is not to be traced belongs to root there. */
        if (proc < 0 || fstat(proc, &st) < 0 || (st.st_uid != peer->uid && st.st_uid != 0))
            continue;
        int holds = holds_socket(proc, peer->inode);
        denied = denied || holds == -EACCES;
        if (holds <= 0 || fstatat(proc, "cwd", &st, 0) < 0)
            continue;
        if (found >= 0 && !is_same(&st, &first))
            r = -ENOTUNIQ;
        if (found < 0) {
            found = TAKE_FD(proc);
            first = st;
        }
    }
    (void)closedir(dir);
    if (r < 0)
        return r;
    return found >= 0 ? TAKE_FD(found) : denied ? -EACCES : -ESRCH;
}

/* Who connected to a unix socket may be gone, and its number another's: a pidfd tells. */
static int open_connector(const struct peer *peer, int sock)
{
    char pid[16];
    int peerfd = -1;
    socklen_t len = sizeof(peerfd);
    AUTO_CLOSE int pidfd = -1;
    if (peer->pid <= 0)
        return -ESRCH; /* in another namespace of processes */
    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &peerfd, &len) < 0)
        peerfd = pidfd_open(peer->pid, 0);
    pidfd = peerfd;
    if (pidfd < 0)
        return -errno;
    (void)snprintf(pid, sizeof(pid), "%d", peer->pid);
    AUTO_CLOSE int proc = open_proc(pid);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (proc < 0)
        return proc;
    return poll(&p, 1, 0) == 0 ? TAKE_FD(proc) : -ESRCH;
}

/* The numbers of a line "Name:\ta\tb..." into ret; how many, or -ENOBUFS, -EINVAL. */
static int read_ids(const char *status, const char *name, uint32_t *ret, size_t max)
{
    char *line = strstr(status, name), *end = NULL;
    size_t n = 0;
    if (line == NULL)
        return -EINVAL;
    for (line += strlen(name);; line = end) {
        line += strspn(line, " \t");
        if (*line == '\n' || *line == '\0')
            return (int)n;
        if (n == max)
            return -ENOBUFS;
        errno = 0;
        unsigned long v = strtoul(line, &end, 10);
        if (end == line || errno != 0 || v > UINT32_MAX)
            return -EINVAL;
        ret[n++] = (uint32_t)v;
    }
}

/* Its rights are to be those of the user who connected. */
static int read_rights(int proc, struct peer_process *ret, struct err *err)
{
    char status[STATUS_MAX];
    uint32_t uids[4] = {0}, gids[4] = {0};
    ssize_t len = fd_read_file_at(proc, "status", status, sizeof(status));
    int n = len < 0 ? (int)len : read_ids(status, "\nGroups:", ret->groups, PEER_GROUPS_MAX);
    if (n < 0 || read_ids(status, "\nUid:", uids, 4) != 4 ||
        read_ids(status, "\nGid:", gids, 4) != 4)
        return err_set(err, ERR_DENIED, "the process at the other end does not tell its user");
    ret->n_groups = (size_t)n;
    ret->gid = gids[1];
    if (uids[0] != ret->peer.uid || uids[1] != ret->peer.uid)
        return err_set(err, ERR_DENIED,
                       "the process at the other end runs as uid %u and not as uid %u, who "
                       "connected",
                       uids[1], ret->peer.uid);
    return 0;
}

/* A path means the same to it and to us only where the files are the same. */
static int check_view(int proc, ino_t mnt_ns, struct err *err)
{
    struct stat ns, theirs, ours;
    if (fstatat(proc, "ns/mnt", &ns, 0) < 0 || fstatat(proc, "root", &theirs, 0) < 0 ||
        stat("/", &ours) < 0)
        return err_set(err, ERR_DENIED, "boxd may not look at the process at the other end (%s)",
                       err_errno_text(errno));
    if (ns.st_ino != mnt_ns || !is_same(&theirs, &ours))
        return err_set(err, ERR_DENIED,
                       "the process at the other end sees other files than boxd does (a container, "
                       "or a service with a root of its own)");
    return 0;
}

static int open_cwd(int proc, struct peer_process *ret, struct err *err)
{
    char link[32];
    struct stat theirs, ours;
    AUTO_CLOSE int fd = openat(proc, "cwd", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_DENIED,
                       "boxd may not read the working directory of the process at the other end "
                       "(%s)",
                       err_errno_text(errno));
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret->path, sizeof(ret->path));
    if (n <= 0 || n == (ssize_t)sizeof(ret->path))
        return err_set(err, ERR_DENIED,
                       "the working directory of the process at the other end has "
                       "no path");
    ret->path[n] = '\0';
    AUTO_CLOSE int again = path_open_unlinked(ret->path, O_PATH | O_DIRECTORY);
    if (again < 0 || fstat(again, &ours) < 0 || fstat(fd, &theirs) < 0 || !is_same(&theirs, &ours))
        return err_set(err, ERR_DENIED,
                       "the working directory of the process at the other end, %.200s, is not what "
                       "boxd finds at that path",
                       ret->path);
    ret->cwd = TAKE_FD(again); /* what is theirs belongs to their mount namespace */
    return 0;
}

static int no_process(int error, const struct peer *peer, struct err *err)
{
    if (error == -ENOTUNIQ)
        return err_set(err, ERR_CONFLICT,
                       "several processes of uid %u hold the connection, in different directories",
                       peer->uid);
    if (error == -EACCES || error == -EPERM)
        return err_set(err, ERR_DENIED, "boxd may not look at the processes of uid %u", peer->uid);
    return err_set(err, ERR_NOT_FOUND, "the process at the other end was not found (%s)",
                   err_errno_text(-error));
}

int peer_find_process(int diag, int sock, ino_t mnt_ns, struct peer_process *ret, struct err *err)
{
    ret->cwd = -1;
    peer_identify(diag, sock, &ret->peer);
    if (!ret->peer.known)
        return err_set(err, ERR_NOT_FOUND,
                       "the other end is no process of this machine that connected by loopback or "
                       "the unix socket");
    AUTO_CLOSE int proc =
        ret->peer.inode != 0 ? find_holder(&ret->peer) : open_connector(&ret->peer, sock);
    if (proc < 0)
        return no_process(proc, &ret->peer, err);
    int r = read_rights(proc, ret, err);
    if (r == 0)
        r = check_view(proc, mnt_ns, err);
    return r < 0 ? r : open_cwd(proc, ret, err);
}
