/* SPDX-License-Identifier: Apache-2.0 */

/* The networks that the host itself stands in, by the addresses of its interfaces. Who lives there
 * trusts its neighbours, public address or not: no session gets to them. */

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/ipnet.h"
#include "base/str.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/netlink.h"

#define EVENT_MAX 8192

struct network {
    size_t bytes;
    unsigned prefix;
    uint8_t addr[16]; /* without host bits */
};

/* Of any instance: what they carry lies in pools, and sessions do not reach those either. */
static bool is_session_link(const char *name)
{
    return str_starts(name, "bx") && strchr(name, '_') != NULL;
}

static const uint8_t *address_bytes(const struct sockaddr *a, size_t *ret)
{
    *ret = a->sa_family == AF_INET ? 4 : 16;
    return a->sa_family == AF_INET ? (const uint8_t *)a + offsetof(struct sockaddr_in, sin_addr)
                                   : (const uint8_t *)a + offsetof(struct sockaddr_in6, sin6_addr);
}

static bool read_network(const struct ifaddrs *i, struct network *ret)
{
    const struct sockaddr *a = i->ifa_addr;

    if (a == NULL || i->ifa_netmask == NULL ||
        (a->sa_family != AF_INET && a->sa_family != AF_INET6) || is_session_link(i->ifa_name))
        return false;
    if ((i->ifa_flags & IFF_POINTOPOINT) != 0 && i->ifa_dstaddr != NULL &&
        i->ifa_dstaddr->sa_family == a->sa_family)
        a = i->ifa_dstaddr;
    *ret = (struct network){0};
    const uint8_t *addr = address_bytes(a, &ret->bytes);
    /* getifaddrs() leaves the family of a mask out now and then. */
    const uint8_t *mask = (const uint8_t *)i->ifa_netmask + (addr - (const uint8_t *)a);
    for (size_t k = 0; k < ret->bytes; k++) {
        ret->addr[k] = addr[k] & mask[k];
        ret->prefix += (unsigned)__builtin_popcount(mask[k]);
    }
    return ret->prefix > 0;
}

/* What the table refuses anyway need not be listed again. */
static bool is_known(const struct network *n)
{
    for (size_t i = 0; i < ip_internal_count; i++)
        if (ip_internal[i].prefix <= n->prefix && ip_net_has(&ip_internal[i], n->addr, n->bytes))
            return true;
    return false;
}

int net_onlink_list(struct buf *v4, struct buf *v6, struct err *err)
{
    struct ifaddrs *list = NULL;
    char text[INET6_ADDRSTRLEN];
    struct network n;
    int r = 0;

    if (getifaddrs(&list) < 0)
        return err_sys(err, errno, "list the host's addresses");
    for (const struct ifaddrs *i = list; i != NULL && r == 0; i = i->ifa_next) {
        if (!read_network(i, &n) || is_known(&n) ||
            inet_ntop(n.bytes == 4 ? AF_INET : AF_INET6, n.addr, text, sizeof(text)) == NULL)
            continue;
        struct buf *out = n.bytes == 4 ? v4 : v6;
        if (out != NULL)
            r = buf_printf(out, "%s%s/%u", out->len > 0 ? ", " : "", text, n.prefix);
    }
    freeifaddrs(list);
    return r < 0 ? err_sys(err, -r, "list the networks of the host") : 0;
}

int net_onlink_watch(void)
{
    const struct sockaddr_nl here = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR};
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&here, sizeof(here)) < 0)
        return -errno;
    return TAKE_FD(fd);
}

/* Whether one message is about an address of a session: thousands of those come and go. */
static bool is_of_session(const struct nlmsghdr *h)
{
    const struct ifaddrmsg *m = NLMSG_DATA(h);
    int left = (int)IFA_PAYLOAD(h);

    for (const struct rtattr *a = IFA_RTA(m); RTA_OK(a, left); a = RTA_NEXT(a, left))
        if (a->rta_type == IFA_LABEL)
            return is_session_link(RTA_DATA(a));
    return false;
}

bool net_onlink_changed(int fd)
{
    _Alignas(NLMSG_ALIGNTO) char data[EVENT_MAX];
    bool changed = false;
    ssize_t n;

    while ((n = recv(fd, data, sizeof(data), 0)) > 0) {
        size_t left = (size_t)n;
        for (const struct nlmsghdr *h = (const void *)data; NLMSG_OK(h, left);
             h = NLMSG_NEXT(h, left))
            if (h->nlmsg_type == RTM_NEWADDR || h->nlmsg_type == RTM_DELADDR)
                changed = changed || !is_of_session(h);
    }
    return changed || (n < 0 && errno == ENOBUFS); /* some of them are lost */
}
