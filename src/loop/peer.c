/* SPDX-License-Identifier: Apache-2.0 */

/* Asks the kernel for the user of a socket's other end, for TCP by sock_diag. */

#include "loop/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

#define ANSWERS_MAX                                                                                \
    8 /* of earlier requests that nobody has read; there are none but by mistake                   \
       */

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
