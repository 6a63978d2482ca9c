/* SPDX-License-Identifier: Apache-2.0 */

/* Tells which process and user is at the other end of a connection. */

#include "loop/peer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

#define ANSWERS_MAX 8 /* of earlier requests that were not read: there should be none */

int peer_socket(void)
{
    int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    return fd < 0 ? -errno : fd;
}

/* One end of a TCP connection; v4-mapped addresses become plain ones. */
struct end {
    sa_family_t family;
    in_port_t port; /* network order, as is the address */
    uint32_t address[4];
};

static bool read_end(const struct sockaddr_storage *from, struct end *ret)
{
    const struct sockaddr_in *v4 = (const void *)from;
    const struct sockaddr_in6 *v6 = (const void *)from;
    *ret = (struct end){.family = from->ss_family};
    if (from->ss_family == AF_INET) {
        ret->port = v4->sin_port;
        ret->address[0] = v4->sin_addr.s_addr;
    } else if (from->ss_family == AF_INET6) {
        bool mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
        ret->port = v6->sin6_port;
        ret->family = mapped ? AF_INET : AF_INET6;
        memcpy(ret->address, &v6->sin6_addr.s6_addr[mapped ? 12 : 0], mapped ? 4 : 16);
    } else {
        return false;
    }
    return true;
}

static bool is_loopback(const struct end *e)
{
    static const struct in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
    if (e->family == AF_INET)
        return (ntohl(e->address[0]) >> 24) == IN_LOOPBACKNET;
    return memcmp(e->address, &loopback, sizeof(loopback)) == 0;
}

/* A socket with an owner that is, or was, connected; not one that listens or only tries to. */
static bool is_connected(const struct inet_diag_msg *m)
{
    const unsigned states = 1U << TCP_ESTABLISHED | 1U << TCP_FIN_WAIT1 | 1U << TCP_FIN_WAIT2 |
                            1U << TCP_CLOSE_WAIT | 1U << TCP_LAST_ACK | 1U << TCP_CLOSING;
    return m->idiag_state < 32 && (states & (1U << m->idiag_state)) && m->idiag_inode != 0;
}

static bool ask(int diag, const struct end *theirs, const struct end *ours, uint32_t seq)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 req;
    } m = {.head = {.nlmsg_len = sizeof(m),
                    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                    .nlmsg_flags = NLM_F_REQUEST,
                    .nlmsg_seq = seq},
           .req = {.sdiag_family = (uint8_t)theirs->family,
                   .sdiag_protocol = IPPROTO_TCP,
                   .idiag_states = ~0U}};
    m.req.id.idiag_sport = theirs->port;
    m.req.id.idiag_dport = ours->port;
    memcpy(m.req.id.idiag_src, theirs->address, sizeof(theirs->address));
    memcpy(m.req.id.idiag_dst, ours->address, sizeof(ours->address));
    m.req.id.idiag_cookie[0] = m.req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    return sendto(diag, &m, sizeof(m), MSG_DONTWAIT, (const struct sockaddr *)&kernel,
                  sizeof(kernel)) == (ssize_t)sizeof(m);
}

/* The kernel has answered by the time sendto() returns. */
static bool read_answer(int diag, const struct end *theirs, const struct end *ours, uint32_t seq,
                        struct peer *ret)
{
    for (int i = 0; i < ANSWERS_MAX; i++) {
        union {
            struct nlmsghdr head;
            char bytes[4096];
        } m;
        struct sockaddr_nl from = {0};
        socklen_t len = sizeof(from);
        ssize_t n = recvfrom(diag, &m, sizeof(m), MSG_DONTWAIT, (struct sockaddr *)&from, &len);
        if (n < (ssize_t)NLMSG_LENGTH(0))
            return false;
        if (from.nl_pid != 0 || m.head.nlmsg_seq != seq)
            continue;
        const struct inet_diag_msg *d = NLMSG_DATA(&m.head);
        if (m.head.nlmsg_type != SOCK_DIAG_BY_FAMILY || m.head.nlmsg_len > (size_t)n ||
            m.head.nlmsg_len < NLMSG_LENGTH(sizeof(*d)) || !is_connected(d) ||
            d->id.idiag_sport != theirs->port || d->id.idiag_dport != ours->port)
            return false;
        ret->uid = d->idiag_uid;
        ret->inode = d->idiag_inode;
        return true;
    }
    return false;
}

/* Our own end is looked at last: while it is not closed, the addresses are those of this connection
 * and of no later one. */
static bool is_open(int sock)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    return getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           (info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_CLOSE_WAIT);
}

static void identify_tcp(int diag, int sock, struct peer *ret)
{
    static uint32_t seq;
    struct sockaddr_storage local = {0}, remote = {0};
    socklen_t local_len = sizeof(local), remote_len = sizeof(remote);
    struct end ours, theirs;
    if (diag < 0 || getsockname(sock, (struct sockaddr *)&local, &local_len) < 0 ||
        getpeername(sock, (struct sockaddr *)&remote, &remote_len) < 0 ||
        !read_end(&local, &ours) || !read_end(&remote, &theirs) || ours.family != theirs.family ||
        !is_loopback(&ours) || !is_loopback(&theirs))
        return;
    seq++;
    ret->known = ask(diag, &theirs, &ours, seq) && read_answer(diag, &theirs, &ours, seq, ret) &&
                 is_open(sock);
}

void peer_identify(int diag, int sock, struct peer *ret)
{
    struct ucred cred;
    socklen_t len = sizeof(cred), domain_len = sizeof(int);
    int domain = 0;
    *ret = (struct peer){0};
    if (getsockopt(sock, SOL_SOCKET, SO_DOMAIN, &domain, &domain_len) < 0)
        return;
    if (domain != AF_UNIX) {
        identify_tcp(diag, sock, ret);
    } else if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0) {
        ret->known = true;
        ret->uid = cred.uid;
        ret->pid = cred.pid;
    }
}

/* From a connection to the process at its other end, and where that works. Nothing is looked up
 * twice by a number that could be another process's by then: /proc/PID is opened once. */

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

/* The process that connected to a unix socket may have ended, and another may have its number: a
 * pidfd tells. */
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
        return err_set(err, ERR_DENIED,
                       "the kernel does not show the user of the process at the other end");
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
                       "the other end is not a process of this machine, connected by loopback or "
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
