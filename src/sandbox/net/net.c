/* SPDX-License-Identifier: Apache-2.0 */

/* Leases, and the interfaces and connections of one session. The host's part is in net_host.c. */

#include "sandbox/net/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/ipnet.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/netlink.h"

/* Work inside another network namespace. Root goes there and back. Without root there is no way
 * back to the host's namespace, so a child goes, and what it made comes back by descriptor. */

struct within_report {
    int result;
    struct err err;
};

/* Runs in another network namespace until net_leave() gets what this returns. Fails when the way
 * back is barred, as it is without root. */
static int net_enter(int netns_fd, struct err *err)
{
    AUTO_CLOSE int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home < 0)
        return err_sys(err, errno, "open our network namespace");
    /* From where we are to where we are: allowed to a process that may come back. */
    if (setns(home, CLONE_NEWNET) < 0 || setns(netns_fd, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter the network namespace");
    return TAKE_FD(home);
}

void net_leave(int home)
{
    if (setns(home, CLONE_NEWNET) < 0)
        abort();
    (void)close(home);
}

static int send_report(int sock, int result, const struct err *err, const int *fds, size_t n_fds)
{
    struct within_report report = {.result = result, .err = *err};
    ssize_t n = fd_send_msg(sock, &report, sizeof(report), fds, n_fds, MSG_NOSIGNAL);
    return n < 0 ? (int)n : 0;
}

_Noreturn static void within_child(int sock, int netns_fd, net_within_fn *fn, void *arg,
                                   size_t n_fds)
{
    int fds[NET_WITHIN_FDS_MAX] = {-1, -1};
    struct err err = {0};
    int r = setns(netns_fd, CLONE_NEWNET) < 0 ? err_sys(&err, errno, "enter the network namespace")
                                              : fn(arg, fds, &err);

    r = send_report(sock, r, &err, fds, r < 0 ? 0 : n_fds);
    child_exit(r < 0);
}

static int receive_report(int sock, int *ret_fds, size_t n_fds, struct err *err)
{
    struct within_report report = {0};
    int fds[NET_WITHIN_FDS_MAX];
    size_t n = NET_WITHIN_FDS_MAX;
    ssize_t len = fd_recv_msg(sock, &report, sizeof(report), fds, &n, 0);

    if (len < 0)
        return err_sys(err, (int)-len, "wait for the child in the network namespace");
    if (len != (ssize_t)sizeof(report) || (report.result >= 0 && n != n_fds)) {
        if (len > 0)
            fd_close_many(fds, n);
        return err_set(err, ERR_SYSTEM, "the child in the network namespace died");
    }
    if (report.result < 0) {
        if (err != NULL)
            *err = report.err;
        return report.result;
    }
    if (n_fds > 0)
        memcpy(ret_fds, fds, n_fds * sizeof(*fds));
    return 0;
}

int net_within(int netns_fd, net_within_fn *fn, void *arg, int *ret_fds, size_t n_fds,
               struct err *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, errno, "socketpair");
    AUTO_CLOSE int here = pair[0];
    AUTO_CLOSE int there = pair[1];
    pid_t pid = clone_process(0, -1, NULL);
    if (pid == 0)
        within_child(there, netns_fd, fn, arg, n_fds);
    if (pid < 0)
        return err_sys(err, -pid, "clone");
    (void)close(TAKE_FD(there));
    int r = receive_report(here, ret_fds, n_fds, err);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return r;
}

#define POOL_DEFAULT 0xc6120000U /* 198.18.0.0/15 */
#define POOL_SLICES 16
#define POOL_SLICE_PREFIX 19
#define LO_INDEX 1 /* of every network namespace */
#define LO_SEGMENT 16384U
#define LINK_PREFIX 31 /* two ends and nothing else */
#define DNS_PORT 53
#define DNS_BACKLOG 16

static bool tag_valid(const char *tag)
{
    size_t n = strspn(tag, "abcdefghijklmnopqrstuvwxyz0123456789");

    return n > 0 && n <= NET_TAG_MAX && tag[n] == '\0';
}

/* By the tag, so that an instance finds its own addresses again after a restart. When all are taken
 * the first stays, and net_host_init() says what is in the way. */
static int pick_slice(struct net_config *c, struct err *err)
{
    uint32_t first = (uint32_t)str_hash(c->tag) % POOL_SLICES;
    char ifname[NET_IFNAME_SIZE];

    c->prefix = POOL_SLICE_PREFIX;
    for (uint32_t i = 0; i <= POOL_SLICES; i++) {
        c->pool = POOL_DEFAULT + ((first + i) % POOL_SLICES << (32 - POOL_SLICE_PREFIX));
        int r = net_pool_taken(c, ifname, sizeof(ifname), err);
        if (r <= 0)
            return r;
    }
    return 0;
}

int net_config_init(struct net_config *ret, const char *tag, const char *pool, struct err *err)
{
    struct net_config c = {.conn_max = NET_CONN_MAX, .conn_rate = NET_CONN_RATE};

    if (!tag_valid(tag))
        return err_set(err, ERR_INVALID, "network tag '%s' is not 1 to %d of [a-z0-9]", tag,
                       NET_TAG_MAX);
    (void)str_copy(c.tag, sizeof(c.tag), tag);
    if (pool == NULL) {
        int r = pick_slice(&c, err);
        if (r < 0)
            return r;
    } else if (ip4_net_parse(pool, &c.pool, &c.prefix) < 0 || c.prefix < 8 || c.prefix > 28) {
        return err_set(err, ERR_INVALID, "network pool '%s' is not an IPv4 network of /8 to /28",
                       pool);
    }
    *ret = c;
    return 0;
}

uint32_t net_lease_max(const struct net_config *config)
{
    uint32_t pairs = 1U << (31 - config->prefix);

    /* The first pair marks the pool as taken; five digits are what the interface name has room for.
     */
    return pairs - 1 < 65535 ? pairs - 1 : 65535;
}

int net_lease_init(struct net_lease *ret, const struct net_config *config, uint32_t index,
                   struct err *err)
{
    struct net_lease l = {.host = config->pool + 2 * index, .guest = config->pool + 2 * index + 1};

    if (index == 0 || index > net_lease_max(config))
        return err_set(err, ERR_LIMIT, "network lease %u is not in 1 to %u", index,
                       net_lease_max(config));
    (void)str_fmt(l.ifname, sizeof(l.ifname), "bx%s_%u", config->tag, index);
    *ret = l;
    return 0;
}

/* IPv6 off for interfaces still to come; loopback keeps ::1. Then a netlink socket that stays in
 * the namespace. */
static int guest_socket(int netns_fd, struct err *err)
{
    int home = net_enter(netns_fd, err);

    if (home < 0)
        return home;
    int off = fd_write_file_at(AT_FDCWD, "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    AUTO_CLOSE int fd = nl_socket(NETLINK_ROUTE);
    net_leave(home);
    /* No such file: the kernel has no IPv6 at all. */
    if (off < 0 && off != -ENOENT)
        return err_sys(err, -off, "disable IPv6 in the session");
    if (fd < 0)
        return err_sys(err, -fd, "netlink socket in the session");
    return TAKE_FD(fd);
}

/* The other end is born in the session's namespace: it never exists on the host, where something
 * could pick it up. One queue each, as the default of one per processor is slow to make. */
static void put_veth(struct nl *nl, const char *ifname, int netns_fd)
{
    const struct ifinfomsg none = {.ifi_family = AF_UNSPEC};

    nl_begin(nl, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &none, sizeof(none));
    nl_attr_str(nl, IFLA_IFNAME, ifname);
    nl_attr_u32(nl, IFLA_NUM_TX_QUEUES, 1);
    nl_attr_u32(nl, IFLA_NUM_RX_QUEUES, 1);
    size_t info = nl_nest(nl, IFLA_LINKINFO, NULL, 0);
    nl_attr_str(nl, IFLA_INFO_KIND, "veth");
    size_t data = nl_nest(nl, IFLA_INFO_DATA, NULL, 0);
    size_t peer = nl_nest(nl, VETH_INFO_PEER, &none, sizeof(none));
    nl_attr_str(nl, IFLA_IFNAME, NET_GUEST_IFNAME);
    nl_attr_u32(nl, IFLA_NUM_TX_QUEUES, 1);
    nl_attr_u32(nl, IFLA_NUM_RX_QUEUES, 1);
    nl_attr_u32(nl, IFLA_NET_NS_FD, (uint32_t)netns_fd);
    nl_nest_end(nl, peer);
    nl_nest_end(nl, data);
    nl_nest_end(nl, info);
    nl_end(nl);
}

static void put_addr(struct nl *nl, uint16_t type, int index, uint32_t addr)
{
    const uint16_t flags = type == RTM_NEWADDR ? NLM_F_CREATE | NLM_F_EXCL : 0;
    const struct ifaddrmsg m = {
        .ifa_family = AF_INET, .ifa_prefixlen = LINK_PREFIX, .ifa_index = (uint32_t)index};
    uint32_t net = htonl(addr);

    nl_begin(nl, type, flags, &m, sizeof(m));
    nl_attr(nl, IFA_LOCAL, &net, sizeof(net));
    nl_attr(nl, IFA_ADDRESS, &net, sizeof(net));
    nl_end(nl);
}

static void put_up(struct nl *nl, int index)
{
    const struct ifinfomsg m = {.ifi_index = index, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};

    nl_begin(nl, RTM_NEWLINK, 0, &m, sizeof(m));
    nl_end(nl);
}

/* The kernel lets every connection hold one segment, whatever the limit of all sockets is. Over lo
 * that would be 64 KiB each. */
static void put_lo(struct nl *nl)
{
    const struct ifinfomsg m = {.ifi_index = LO_INDEX, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};

    nl_begin(nl, RTM_NEWLINK, 0, &m, sizeof(m));
    nl_attr_u32(nl, IFLA_MTU, LO_SEGMENT);
    nl_attr_u32(nl, IFLA_GSO_MAX_SIZE, LO_SEGMENT);
    nl_end(nl);
}

/* The host's defaults for interfaces may be lax; what faces a session is not. */
static void put_strict(struct nl *nl, int index)
{
    static const struct {
        uint16_t id;
        uint32_t value;
    } settings[] = {
        {IPV4_DEVCONF_FORWARDING, 1},     {IPV4_DEVCONF_RP_FILTER, 1},
        {IPV4_DEVCONF_PROXY_ARP, 0},      {IPV4_DEVCONF_ACCEPT_REDIRECTS, 0},
        {IPV4_DEVCONF_SEND_REDIRECTS, 0}, {IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE, 0},
        {IPV4_DEVCONF_ROUTE_LOCALNET, 0}, {IPV4_DEVCONF_ACCEPT_LOCAL, 0},
        {IPV4_DEVCONF_MC_FORWARDING, 0},
    };
    const struct ifinfomsg m = {.ifi_index = index};

    nl_begin(nl, RTM_SETLINK, 0, &m, sizeof(m));
    size_t spec = nl_nest(nl, IFLA_AF_SPEC, NULL, 0);
    size_t inet = nl_nest(nl, AF_INET, NULL, 0);
    size_t conf = nl_nest(nl, IFLA_INET_CONF, NULL, 0);
    for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
        nl_attr_u32(nl, settings[i].id, settings[i].value);
    nl_nest_end(nl, conf);
    nl_nest_end(nl, inet);
    nl_nest_end(nl, spec);
    nl_end(nl);
}

static void put_default_route(struct nl *nl, int index, uint32_t gateway)
{
    const struct rtmsg m = {.rtm_family = AF_INET,
                            .rtm_table = RT_TABLE_MAIN,
                            .rtm_protocol = RTPROT_BOOT,
                            .rtm_scope = RT_SCOPE_UNIVERSE,
                            .rtm_type = RTN_UNICAST};
    uint32_t net = htonl(gateway);

    nl_begin(nl, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &m, sizeof(m));
    nl_attr(nl, RTA_GATEWAY, &net, sizeof(net));
    nl_attr_u32(nl, RTA_OIF, (uint32_t)index);
    nl_end(nl);
}

static int host_end(const struct net_lease *lease, int sock, struct err *err)
{
    static const char *const what[] = {"restrict", "address", "bring up"};
    char path[80];
    unsigned failed = 0;
    struct nl nl;
    int r;

    int index = nl_ifindex(sock, lease->ifname);
    if (index < 0)
        return err_sys(err, -index, "find '%s'", lease->ifname);
    (void)str_fmt(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/disable_ipv6", lease->ifname);
    r = fd_write_file_at(AT_FDCWD, path, "1");
    if (r < 0 && r != -ENOENT)
        return err_sys(err, -r, "disable IPv6 on '%s'", lease->ifname);
    nl_init(&nl);
    put_strict(&nl, index);
    put_addr(&nl, RTM_NEWADDR, index, lease->host);
    put_up(&nl, index);
    r = nl_send(&nl, sock, &failed);
    return r < 0 ? err_sys(err, -r, "%s '%s'", what[failed], lease->ifname) : 0;
}

static int guest_end(const struct net_lease *lease, int sock, struct err *err)
{
    static const char *const what[] = {"bring up lo", "address " NET_GUEST_IFNAME,
                                       "bring up " NET_GUEST_IFNAME, "add the default route"};
    unsigned failed = 0;
    struct nl nl;

    int index = nl_ifindex(sock, NET_GUEST_IFNAME);
    if (index < 0)
        return err_sys(err, -index, "find the session's interface");
    nl_init(&nl);
    put_lo(&nl);
    put_addr(&nl, RTM_NEWADDR, index, lease->guest);
    put_up(&nl, index);
    put_default_route(&nl, index, lease->host);
    int r = nl_send(&nl, sock, &failed);
    return r < 0 ? err_sys(err, -r, "%s in the session", what[failed]) : 0;
}

/* An end that came up before its peer can send nothing until the kernel's link watch has run, a
 * little later; a packet lost in between costs the session a second. Until then, too, programs in
 * the session see an interface that is not running. Kernels since 6.8 let it run when a program
 * asks for the link's state. */
static int settle(const char *ifname, int sock, struct err *err)
{
    const struct ifinfomsg m = {.ifi_family = AF_UNSPEC};
    struct nl nl;

    nl_init(&nl);
    nl_begin(&nl, RTM_GETLINK, 0, &m, sizeof(m));
    nl_attr_str(&nl, IFLA_IFNAME, ifname);
    nl_attr_u32(&nl, IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    nl_end(&nl);
    int r = nl_send(&nl, sock, NULL);
    return r < 0 ? err_sys(err, -r, "state of '%s'", ifname) : 0;
}

/* The requester names a lease and a namespace that box-priv made itself; names and addresses come
 * from net_lease_init(), so nothing outside our prefix and pool can be asked for. */
int net_attach(const struct net_lease *lease, int netns_fd, struct err *err)
{
    struct nl nl;
    int r;

    AUTO_CLOSE int guest = guest_socket(netns_fd, err);
    if (guest < 0)
        return guest;
    AUTO_CLOSE int host = nl_socket(NETLINK_ROUTE);
    if (host < 0)
        return err_sys(err, -host, "netlink socket");
    nl_init(&nl);
    put_veth(&nl, lease->ifname, netns_fd);
    r = nl_send(&nl, host, NULL);
    if (r == -EEXIST)
        return err_set(err, ERR_CONFLICT, "network lease '%s' is in use", lease->ifname);
    if (r < 0)
        return err_sys(err, -r, "make '%s'", lease->ifname);
    /* Rules and reverse path filter must judge the first packet already: the host's end is ready
     * before the session's end comes up. */
    r = host_end(lease, host, err);
    if (r == 0)
        r = guest_end(lease, guest, err);
    if (r == 0)
        r = settle(lease->ifname, host, err);
    if (r == 0)
        r = settle(NET_GUEST_IFNAME, guest, err);
    if (r < 0)
        (void)net_detach(lease, NULL);
    return r;
}

/* Without an address there is no route to the session, and the rules drop what comes from an
 * interface that its source is not reached by. */
void net_cut(const struct net_lease *lease)
{
    struct nl nl;

    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);
    int index = sock < 0 ? sock : nl_ifindex(sock, lease->ifname);
    if (index < 0)
        return;
    nl_init(&nl);
    put_addr(&nl, RTM_DELADDR, index, lease->host);
    (void)nl_send(&nl, sock, NULL); /* the kernel may be removing it just now */
}

int net_detach(const struct net_lease *lease, struct err *err)
{
    const struct ifinfomsg m = {.ifi_family = AF_UNSPEC};
    struct nl nl;

    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);
    if (sock < 0)
        return err_sys(err, -sock, "netlink socket");
    nl_init(&nl);
    nl_begin(&nl, RTM_DELLINK, 0, &m, sizeof(m));
    nl_attr_str(&nl, IFLA_IFNAME, lease->ifname);
    nl_end(&nl);
    int r = nl_send(&nl, sock, NULL);
    return r < 0 && r != -ENODEV ? err_sys(err, -r, "remove '%s'", lease->ifname) : 0;
}

int net_lo_up(void)
{
    struct nl nl;
    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);

    if (sock < 0)
        return sock;
    nl_init(&nl);
    put_lo(&nl);
    return nl_send(&nl, sock, NULL);
}

static int dns_socket(int type, struct err *err)
{
    const struct sockaddr_in sa = {.sin_family = AF_INET,
                                   .sin_port = htons(DNS_PORT),
                                   .sin_addr = {.s_addr = htonl(NET_GUEST_RESOLVER)}};
    const int on = 1;
    AUTO_CLOSE int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_sys(err, errno, "DNS socket");
    if (type == SOCK_STREAM && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
        return err_sys(err, errno, "DNS socket");
    if (bind(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0)
        return err_sys(err, errno, "bind the DNS %s socket", type == SOCK_STREAM ? "TCP" : "UDP");
    if (type == SOCK_STREAM && listen(fd, DNS_BACKLOG) < 0)
        return err_sys(err, errno, "listen on the DNS socket");
    return TAKE_FD(fd);
}

static int dns_pair(void *arg, int *ret_fds, struct err *err)
{
    AUTO_CLOSE int udp = dns_socket(SOCK_DGRAM, err);
    if (udp < 0)
        return udp;
    AUTO_CLOSE int tcp = dns_socket(SOCK_STREAM, err);
    if (tcp < 0)
        return tcp;
    ret_fds[0] = TAKE_FD(udp);
    ret_fds[1] = TAKE_FD(tcp);
    return 0;
}

/* As net_within(), without a child where there is a way back. */
static int open_inside(int netns_fd, net_within_fn *fn, void *arg, int *ret_fds, size_t n_fds,
                       struct err *err)
{
    int home = net_enter(netns_fd, NULL);

    if (home < 0)
        return net_within(netns_fd, fn, arg, ret_fds, n_fds, err);
    int r = fn(arg, ret_fds, err);
    net_leave(home);
    return r;
}

int net_dns_open(int netns_fd, int *ret_udp, int *ret_tcp, struct err *err)
{
    int fds[2] = {-1, -1};
    int r = open_inside(netns_fd, dns_pair, NULL, fds, 2, err);

    if (r < 0)
        return r;
    *ret_udp = fds[0];
    *ret_tcp = fds[1];
    return 0;
}

struct loopback_port {
    uint16_t port;
    bool ipv6;
};

static int loopback_listen(void *arg, int *ret_fds, struct err *err)
{
    const struct loopback_port *at = arg;
    int fd = fd_listen_loopback(at->port, at->ipv6);

    if (fd == -EADDRINUSE)
        return err_set(err, ERR_CONFLICT, "a program in the session listens on port %u already",
                       at->port);
    if (fd < 0)
        return err_sys(err, -fd, "listen on port %u of the session", at->port);
    ret_fds[0] = fd;
    return 0;
}

int net_listen_open(int netns_fd, uint16_t port, bool ipv6, struct err *err)
{
    struct loopback_port at = {port, ipv6};
    int fd = -1;
    int r = open_inside(netns_fd, loopback_listen, &at, &fd, 1, err);

    return r < 0 ? r : fd;
}

/* What the host's connection tracking remembers of sessions. A connection that ended without a word
 * (its owner was killed, its interface cut) stays there for days. That many sessions could fill the
 * host's table, and the next owner of an address would inherit the count of its
 * connections. */

#define CT_TYPE(message) ((uint16_t)(NFNL_SUBSYS_CTNETLINK << 8 | (message)))

static const struct nfgenmsg ipv4 = {.nfgen_family = AF_INET, .version = NFNETLINK_V0};

/* A run of attributes, or what is inside one. */
struct span {
    const uint8_t *data;
    size_t len;
};

static struct span find_attr(struct span in, uint16_t type)
{
    struct nlattr a;

    for (size_t at = 0; at + sizeof(a) <= in.len; at += NLA_ALIGN(a.nla_len)) {
        memcpy(&a, in.data + at, sizeof(a));
        if (a.nla_len < sizeof(a) || a.nla_len > in.len - at)
            break;
        if ((a.nla_type & NLA_TYPE_MASK) == type)
            return (struct span){in.data + at + sizeof(a), a.nla_len - sizeof(a)};
    }
    return (struct span){NULL, 0};
}

/* The lease that the connection was opened from, 0: none of ours. */
static uint32_t lease_of(const struct net_config *c, struct span tuple)
{
    struct span src = find_attr(find_attr(tuple, CTA_TUPLE_IP), CTA_IP_V4_SRC);
    uint32_t net;

    if (src.len != sizeof(net))
        return 0;
    memcpy(&net, src.data, sizeof(net));
    uint32_t at = ntohl(net) - c->pool;
    return at >> (32 - c->prefix) == 0 ? at / 2 : 0;
}

static int flow_forget(int sock, struct span tuple, struct span zone)
{
    struct nl nl;

    nl_init(&nl);
    nl_begin(&nl, CT_TYPE(IPCTNL_MSG_CT_DELETE), 0, &ipv4, sizeof(ipv4));
    nl_attr(&nl, CTA_TUPLE_ORIG | NLA_F_NESTED, tuple.data, tuple.len);
    if (zone.len > 0)
        nl_attr(&nl, CTA_ZONE, zone.data, zone.len);
    nl_end(&nl);
    int r = nl_send(&nl, sock, NULL);
    return r == -ENOENT ? 0 : r; /* it has just ended by itself */
}

struct flow_drop {
    const struct net_config *config;
    net_ended_fn *ended;
    void *arg;
    int sock; /* for deletions, beside the one that is being read */
};

static int on_entry(void *arg, const void *data, size_t len)
{
    const struct flow_drop *v = arg;

    if (len < NLMSG_ALIGN(sizeof(ipv4)))
        return -EBADMSG;
    struct span all = {(const uint8_t *)data + NLMSG_ALIGN(sizeof(ipv4)),
                       len - NLMSG_ALIGN(sizeof(ipv4))};
    struct span tuple = find_attr(all, CTA_TUPLE_ORIG);
    uint32_t index = lease_of(v->config, tuple);
    if (index == 0 || (v->ended != NULL && !v->ended(v->arg, index)))
        return 0;
    return flow_forget(v->sock, tuple, find_attr(all, CTA_ZONE));
}

int net_flows_drop(const struct net_config *config, net_ended_fn *ended, void *arg, struct err *err)
{
    struct nl nl;

    AUTO_CLOSE int list = nl_socket(NETLINK_NETFILTER);
    AUTO_CLOSE int sock = nl_socket(NETLINK_NETFILTER);
    if (list < 0 || sock < 0)
        return err_sys(err, list < 0 ? -list : -sock, "netlink socket");
    struct flow_drop v = {.config = config, .ended = ended, .arg = arg, .sock = sock};
    nl_init(&nl);
    nl_begin(&nl, CT_TYPE(IPCTNL_MSG_CT_GET), NLM_F_DUMP, &ipv4, sizeof(ipv4));
    nl_end(&nl);
    int r = nl_dump(&nl, list, on_entry, &v);
    return r < 0 ? err_sys(err, -r, "forget connections of sessions") : 0;
}
