/* SPDX-License-Identifier: Apache-2.0 */

/* The host's part of the network: packet rules, the networks that the host stands in, forwarding,
 * the mark of the pool; and the probe. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/ipnet.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/netlink.h"

/* Packet filter rules by nft(8). The library behind it has a licence that we cannot link. */

/* Its first run on a host loads two dozen kernel modules, one after the other. */
#define NFT_TIMEOUT_MS 60000

int nft_load(const struct buf *script, struct err *err)
{
    static const char *const argv[] = {"nft", "-f", "-", NULL};
    AUTO_CLOSE int fd = fd_sealed_memfd("nft", script->data, script->len);
    if (fd < 0)
        return err_sys(err, -fd, "memfd for nft");
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "memfd for nft");
    return hostcmd_wait(argv, fd, NFT_TIMEOUT_MS, err);
}

/* Runs `nft` by these arguments (NULL-terminated, the program itself first) and appends what it
 * prints to *out, up to its maximum. 1 when nft says no (no such table or chain), 0 when it went
 * well. */
static int nft_query(const char *const argv[], struct buf *out, struct err *err)
{
    AUTO_CLOSE int fd = memfd_create("nft", MFD_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "memfd for nft");
    const struct hostcmd_opts opts = {
        .stdin_fd = -1, .stdout_fd = fd, .timeout_ms = NFT_TIMEOUT_MS, .max_status = 1};
    int r = hostcmd_wait_opts(argv, &opts, err);
    if (r != 0)
        return r;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "memfd for nft");
    r = fd_read_to_buf(fd, out);
    return r < 0 && r != -ENOBUFS ? err_sys(err, -r, "read from nft") : 0;
}

#define MAIL_PORTS "{ 25, 465, 587, 2525 }"

/* An answer at once for the program inside, instead of a time-out. The kernel sends no more than
 * about one ICMP error per second to one address, hence the reset for TCP. */
#define REFUSE "goto refuse"
#define REFUSE_CHAIN                                                                               \
    "  chain refuse {\n"                                                                           \
    "    meta l4proto tcp reject with tcp reset\n"                                                 \
    "    reject with icmpx type admin-prohibited\n  }\n"

static void put_addr(struct buf *out, uint32_t addr)
{
    (void)buf_printf(out, "%u.%u.%u.%u", addr >> 24, addr >> 16 & 255, addr >> 8 & 255, addr & 255);
}

static void put_pool(struct buf *out, const struct net_config *c)
{
    put_addr(out, c->pool);
    (void)buf_printf(out, "/%u", c->prefix);
}

static void put_internal(struct buf *out, size_t bytes, const struct net_config *c,
                         const char *more)
{
    const char *separator = "";

    (void)buf_printf(out,
                     "  set internal%s {\n    type %s; flags interval; auto-merge\n"
                     "    elements = { ",
                     bytes == 4 ? "4" : "6", bytes == 4 ? "ipv4_addr" : "ipv6_addr");
    for (size_t i = 0; i < ip_internal_count; i++) {
        if (ip_internal[i].bytes != bytes)
            continue;
        (void)buf_printf(out, "%s%s", separator, ip_internal[i].text);
        separator = ", ";
    }
    if (c != NULL) {
        (void)buf_puts(out, ", ");
        put_pool(out, c);
    }
    if (more[0] != '\0')
        (void)buf_printf(out, ", %s", more);
    (void)buf_puts(out, " }\n  }\n");
}

/* Of what is new only; counted per session, by its address. A pace need not be remembered longer
 * than its burst takes to fill up again, which is two seconds. */
static void put_limits(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(
        out,
        "    update @rates { ip saddr limit rate over %u/second burst %u packets } " REFUSE
        "\n    add @conns { ip saddr ct count over %u } " REFUSE "\n    accept\n",
        c->conn_rate, c->conn_rate * 2, c->conn_max);
}

/* Spoofed and IPv6 packets are dropped before connection tracking spends memory on them. The
 * reverse route of an interface leads to one address: its session's. */
static void put_prerouting(struct buf *out, const struct net_config *c)
{
    (void)buf_puts(out, "  chain prerouting {\n"
                        "    type filter hook prerouting priority raw; policy accept;\n");
    (void)buf_printf(out, "    iifname \"bx%s_*\" jump spoofed\n  }\n", c->tag);
    (void)buf_puts(out, "  chain spoofed {\n"
                        "    meta nfproto != ipv4 drop\n"
                        "    ip saddr != ");
    put_pool(out, c);
    (void)buf_puts(out, " drop\n"
                        "    fib saddr . iif oif missing drop\n  }\n");
}

static void put_forward(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(out,
                     "  chain forward {\n"
                     "    type filter hook forward priority filter - 10; policy accept;\n"
                     "    iifname \"bx%s_*\" jump from_box\n"
                     "    oifname \"bx%s_*\" jump to_box\n"
                     "    ip daddr ",
                     c->tag, c->tag);
    /* Late answers to a session that is gone: they must not reach another interface. */
    put_pool(out, c);
    (void)buf_puts(out, " drop\n  }\n");
    (void)buf_printf(out,
                     "  chain from_box {\n"
                     "    oifname \"bx%s_*\" " REFUSE "\n"
                     "    ip daddr @internal4 " REFUSE "\n"
                     "    ip daddr @onlink4 " REFUSE "\n"
                     "    fib daddr type != unicast drop\n"
                     "    tcp flags syn tcp option maxseg size set rt mtu\n"
                     "    ct state established,related accept\n"
                     "    ct state invalid drop\n"
                     "    tcp dport " MAIL_PORTS " " REFUSE "\n",
                     c->tag);
    put_limits(out, c);
    (void)buf_puts(out, "  }\n"
                        "  chain to_box {\n"
                        "    ct state established,related accept\n"
                        "    drop\n  }\n");
}

static void put_input(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(out,
                     "  chain input {\n"
                     "    type filter hook input priority filter - 10; policy accept;\n"
                     "    iifname \"bx%s_*\" jump host_box\n  }\n"
                     "  chain host_box {\n"
                     "    ct state established,related accept\n"
                     "    " REFUSE "\n  }\n",
                     c->tag);
}

static void put_nat(struct buf *out, const struct net_config *c)
{
    (void)buf_puts(out, "  chain postrouting {\n"
                        "    type nat hook postrouting priority srcnat; policy accept;\n"
                        "    ip saddr ");
    put_pool(out, c);
    (void)buf_printf(out, " oifname != \"lo\" oifname != \"bx%s_*\" masquerade\n  }\n", c->tag);
}

static void put_onlink(struct buf *out, const char *onlink)
{
    (void)buf_puts(out, "  set onlink4 {\n    type ipv4_addr; flags interval; auto-merge\n");
    if (onlink[0] != '\0')
        (void)buf_printf(out, "    elements = { %s }\n", onlink);
    (void)buf_puts(out, "  }\n");
}

/* Puts others in their place, in a table that is there. */
static int net_rules_onlink(const struct net_config *c, const char *onlink, struct buf *out)
{
    int r = buf_printf(out, "flush set inet box_%s onlink4\n", c->tag);

    if (r == 0 && onlink[0] != '\0')
        r = buf_printf(out, "add element inet box_%s onlink4 { %s }\n", c->tag, onlink);
    return r;
}

/* The whole table of an instance, as one nft transaction that replaces an earlier one. `onlink` as
 * net_onlink_list() has it. */
static int net_rules_host(const struct net_config *c, const char *onlink, struct buf *out)
{
    /* Naming the table first makes deleting it right whether or not it was there. */
    (void)buf_printf(out,
                     "table inet box_%s\ndelete table inet box_%s\n"
                     "table inet box_%s {\n"
                     "  set rates { type ipv4_addr; size 65535; flags dynamic; timeout 5s; }\n"
                     "  set conns { type ipv4_addr; size 65535; flags dynamic; }\n",
                     c->tag, c->tag, c->tag);
    (void)buf_puts(out, REFUSE_CHAIN);
    put_internal(out, 4, c, "");
    put_onlink(out, onlink);
    put_prerouting(out, c);
    put_forward(out, c);
    put_input(out, c);
    put_nat(out, c);
    return buf_puts(out, "}\n");
}

/* What the helper opens on the host for us is tracked there. The session's own namespace has no
 * connection tracking, so what is new is told by its packet: the first of TCP, and with UDP two
 * ports and an address that are not in a set. An element that does not fit into the set makes its
 * rule not match. slirp.c limits how many are open. */
static void put_guest_limits(struct buf *out)
{
    (void)buf_printf(
        out,
        "    meta l4proto udp update @flows { ip daddr . udp sport . udp dport } accept\n"
        "    meta l4proto udp " REFUSE "\n"
        "    tcp flags & (fin | syn | rst | ack) != syn accept\n"
        "    limit rate over %u/second burst %u packets " REFUSE "\n",
        NET_CONN_RATE, NET_CONN_RATE * 2);
}

/* `addrs` is a list of addresses and networks to refuse as well, "a, b, c/d", or "". */
static int net_rules_guest(const char *addrs4, const char *addrs6, struct buf *out)
{
    (void)buf_puts(out, "table inet box\ndelete table inet box\ntable inet box {\n" REFUSE_CHAIN);
    put_internal(out, 4, NULL, addrs4);
    put_internal(out, 16, NULL, addrs6);
    (void)buf_printf(out,
                     "  set flows { type ipv4_addr . inet_service . inet_service; size %u; "
                     "flags dynamic,timeout; timeout 1m; }\n",
                     NET_CONN_MAX);
    (void)buf_puts(out, "  chain output {\n"
                        "    type filter hook output priority filter; policy accept;\n"
                        "    oifname \"lo\" accept\n"
                        "    ip daddr @internal4 " REFUSE "\n"
                        "    ip6 daddr @internal6 " REFUSE "\n"
                        "    tcp dport " MAIL_PORTS " " REFUSE "\n");
    put_guest_limits(out);
    return buf_puts(out, "  }\n}\n");
}

/* The networks that the host itself stands in, by the addresses of its interfaces. The machines
 * there trust their neighbours, public address or not: no session gets to them. */

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

static bool is_ip(const struct sockaddr *a)
{
    return a != NULL && (a->sa_family == AF_INET || a->sa_family == AF_INET6);
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

    if (!is_ip(a) || i->ifa_netmask == NULL || is_session_link(i->ifa_name))
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

/* Those networks, except those of ip_internal: "a/b, c/d". v6 may be NULL. */
static int net_onlink_list(struct buf *v4, struct buf *v6, struct err *err)
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

/* Getting along with other firewalls. A packet must be accepted by every forward chain on the host;
 * Docker makes iptables' one drop by default. There we add two rules of our own, for our interfaces
 * only, and take them away again by their mark. Our own table has judged these packets before, so
 * nothing becomes reachable by this that is not so on a host without Docker. Chains of
 * iptables-legacy are invisible to nft and stay as they are. */

#define LISTING_MAX (256 * 1024)
#define SCRIPT_MAX (64 * 1024)

/* In order of preference: the chain that Docker sets aside for others, else the base chain. */
static const char *const chains[] = {"DOCKER-USER", "FORWARD"};

static int list_chain(const char *chain, struct buf *out, struct err *err)
{
    const char *const argv[] = {"nft", "-a", "list", "chain", "ip", "filter", chain, NULL};

    return nft_query(argv, out, err);
}

/* Lines look like: iifname "bxa_*" accept comment "box_a" # handle 12 */
static void put_deletes(const struct buf *listing, const char *chain, const char *mark,
                        struct buf *script)
{
    static const char handle[] = "# handle ";

    for (const char *line = buf_str(listing); *line != '\0';) {
        const char *end = strchrnul(line, '\n');
        const char *m = memmem(line, (size_t)(end - line), mark, strlen(mark));
        const char *h = memmem(line, (size_t)(end - line), handle, strlen(handle));

        if (m != NULL && h != NULL) {
            h += strlen(handle);
            (void)buf_printf(script, "delete rule ip filter %s handle %.*s\n", chain,
                             (int)strspn(h, "0123456789"), h);
        }
        line = *end == '\n' ? end + 1 : end;
    }
}

/* Removes our rules of before; *ret_chain is the chain to add to, NULL when there is none. */
static int put_stale(const struct net_config *c, struct buf *script, const char **ret_chain,
                     struct err *err)
{
    char mark[32];

    (void)str_fmt(mark, sizeof(mark), "comment \"box_%s\"", c->tag);
    for (size_t i = 0; i < ARRAY_SIZE(chains); i++) {
        AUTO_DONE(buf) struct buf listing = BUF_INIT(LISTING_MAX);

        int r = list_chain(chains[i], &listing, err);
        if (r < 0)
            return r;
        if (r != 0)
            continue;
        put_deletes(&listing, chains[i], mark, script);
        if (*ret_chain == NULL)
            *ret_chain = chains[i];
    }
    return 0;
}

/* 1 when packets that no rule accepts are dropped in iptables' forward chain. */
static int drops_by_default(struct err *err)
{
    AUTO_DONE(buf) struct buf listing = BUF_INIT(LISTING_MAX);

    int r = list_chain("FORWARD", &listing, err);
    if (r != 0)
        return r < 0 ? r : 0;
    return strstr(buf_str(&listing), "policy drop;") != NULL ? 1 : 0;
}

/* 1: added */
static int net_foreign_add(const struct net_config *c, struct err *err)
{
    const char *chain = NULL;
    AUTO_DONE(buf) struct buf script = BUF_INIT(SCRIPT_MAX);

    int r = put_stale(c, &script, &chain, err);
    if (r < 0)
        return r;
    int wanted = drops_by_default(err);
    if (wanted < 0)
        return wanted;
    if (wanted > 0 && chain == NULL)
        return err_set(err, ERR_NOT_FOUND, "no forward chain");
    if (wanted > 0) {
        (void)buf_printf(&script,
                         "insert rule ip filter %s iifname \"bx%s_*\" accept comment \"box_%s\"\n"
                         "insert rule ip filter %s oifname \"bx%s_*\" ct state established,related "
                         "accept comment \"box_%s\"\n",
                         chain, c->tag, c->tag, chain, c->tag, c->tag);
    }
    if (script.len > 0) {
        r = nft_load(&script, err);
        if (r < 0)
            return err_wrap(err, "accept rules in iptables' forward chain");
    }
    return wanted;
}

static int net_foreign_remove(const struct net_config *c, struct err *err)
{
    const char *chain = NULL;
    AUTO_DONE(buf) struct buf script = BUF_INIT(SCRIPT_MAX);

    int r = put_stale(c, &script, &chain, err);
    if (r == 0 && script.len > 0)
        r = nft_load(&script, err);
    return r;
}

#define RULES_MAX (64U << 10)
#define LIST_MAX (48U << 10) /* of addresses or networks */
#define FORWARD_SYSCTL "/proc/sys/net/ipv4/ip_forward"

static void ifname_prefix(const struct net_config *c, char *ret, size_t size)
{
    (void)str_fmt(ret, size, "bx%s_", c->tag);
}

/* The label of the address that marks our pool as taken: how we know it again. */
static void mark_label(const struct net_config *c, char *ret, size_t size)
{
    (void)str_fmt(ret, size, "lo:bx%s", c->tag);
}

static bool overlaps(const struct net_config *c, const struct ifaddrs *i)
{
    struct sockaddr_in a, m;

    if (i->ifa_addr == NULL || i->ifa_netmask == NULL || i->ifa_addr->sa_family != AF_INET)
        return false;
    memcpy(&a, i->ifa_addr, sizeof(a));
    memcpy(&m, i->ifa_netmask, sizeof(m));
    uint32_t both = ntohl(m.sin_addr.s_addr) & ~0U << (32 - c->prefix);
    return (ntohl(a.sin_addr.s_addr) & both) == (c->pool & both);
}

int net_pool_taken(const struct net_config *c, char *ret_ifname, size_t size, struct err *err)
{
    char prefix[NET_IFNAME_SIZE], label[NET_IFNAME_SIZE];
    struct ifaddrs *list = NULL;
    int r = 0;

    ifname_prefix(c, prefix, sizeof(prefix));
    mark_label(c, label, sizeof(label));
    if (getifaddrs(&list) < 0)
        return err_sys(err, errno, "list the host's addresses");
    for (struct ifaddrs *i = list; i != NULL && r == 0; i = i->ifa_next) {
        if (str_starts(i->ifa_name, prefix) || str_eq(i->ifa_name, label) || !overlaps(c, i))
            continue;
        (void)str_copy(ret_ifname, size, i->ifa_name);
        r = 1;
    }
    freeifaddrs(list);
    return r;
}

/* Two programs that hand out the same addresses lose packets in ways that are hard to explain. */
static int check_pool(const struct net_config *c, struct err *err)
{
    char ifname[NET_IFNAME_SIZE] = "";
    int r = net_pool_taken(c, ifname, sizeof(ifname), err);

    if (r <= 0)
        return r;
    return err_set(err, ERR_CONFLICT,
                   "the network pool overlaps the addresses of interface '%s'; "
                   "configure another pool",
                   ifname);
}

static int mark_addr(const struct net_config *c, uint16_t type, uint32_t addr, struct err *err)
{
    const uint16_t flags = type == RTM_NEWADDR ? NLM_F_CREATE | NLM_F_REPLACE : 0;
    struct ifaddrmsg m = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_scope = RT_SCOPE_HOST};
    uint32_t net = htonl(addr);
    char label[NET_IFNAME_SIZE];
    struct nl nl;

    mark_label(c, label, sizeof(label));
    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);
    if (sock < 0)
        return err_sys(err, -sock, "netlink socket");
    int index = nl_ifindex(sock, "lo");
    if (index < 0)
        return err_sys(err, -index, "find lo");
    m.ifa_index = (uint32_t)index;
    nl_init(&nl);
    nl_begin(&nl, type, flags, &m, sizeof(m));
    nl_attr(&nl, IFA_LOCAL, &net, sizeof(net));
    nl_attr(&nl, IFA_ADDRESS, &net, sizeof(net));
    nl_attr_str(&nl, IFA_LABEL, label);
    nl_end(&nl);
    int r = nl_send(&nl, sock, NULL);
    if (r == -EADDRNOTAVAIL && type == RTM_DELADDR)
        r = 0;
    return r < 0 ? err_sys(err, -r, "mark the network pool as taken") : 0;
}

/* Wherever it is: an earlier run may have had another pool. */
static int unmark_pool(const struct net_config *c, struct err *err)
{
    char label[NET_IFNAME_SIZE];
    struct ifaddrs *list = NULL;
    int r = 0;

    mark_label(c, label, sizeof(label));
    if (getifaddrs(&list) < 0)
        return err_sys(err, errno, "list the host's addresses");
    for (struct ifaddrs *i = list; i != NULL && r == 0; i = i->ifa_next) {
        struct sockaddr_in a;

        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || !str_eq(i->ifa_name, label))
            continue;
        memcpy(&a, i->ifa_addr, sizeof(a));
        r = mark_addr(c, RTM_DELADDR, ntohl(a.sin_addr.s_addr), err);
    }
    freeifaddrs(list);
    return r;
}

/* 1: it was off. */
static int enable_forwarding(struct err *err)
{
    char text[8];
    ssize_t n = fd_read_file_at(AT_FDCWD, FORWARD_SYSCTL, text, sizeof(text));

    if (n < 0)
        return err_sys(err, (int)-n, "read " FORWARD_SYSCTL);
    if (text[0] != '0')
        return 0;
    int r = fd_write_file_at(AT_FDCWD, FORWARD_SYSCTL, "1");
    return r < 0 ? err_sys(err, -r, "write " FORWARD_SYSCTL) : 1;
}

typedef int rules_fn(const struct net_config *c, const char *onlink, struct buf *out);

static int load_rules(const struct net_config *c, rules_fn *write, struct err *err)
{
    AUTO_DONE(buf) struct buf rules, onlink;

    buf_init(&rules, RULES_MAX);
    buf_init(&onlink, LIST_MAX);
    int r = net_onlink_list(&onlink, NULL, err);
    if (r < 0)
        return r;
    r = write(c, buf_str(&onlink), &rules);
    if (r < 0)
        return err_sys(err, -r, "network rules");
    r = nft_load(&rules, err);
    return r < 0 ? err_wrap(err, "load the network rules") : 0;
}

int net_host_update(const struct net_config *config, struct err *err)
{
    return load_rules(config, net_rules_onlink, err);
}

int net_host_init(const struct net_config *config, struct net_host_info *ret, struct err *err)
{
    struct net_host_info info = {0};
    int r = check_pool(config, err);

    /* Rules before forwarding: there is no moment in which a session could pass unjudged. */
    if (r == 0)
        r = load_rules(config, net_rules_host, err);
    if (r == 0)
        r = mark_addr(config, RTM_NEWADDR, config->pool + 1, err);
    if (r == 0)
        r = net_foreign_add(config, err);
    if (r < 0)
        return r;
    info.foreign_rules_added = r > 0;
    r = enable_forwarding(err);
    if (r < 0)
        return r;
    info.forwarding_enabled = r > 0;
    *ret = info;
    return 0;
}

static int remove_links(const struct net_config *c, struct err *err)
{
    char prefix[NET_IFNAME_SIZE];
    int r = 0;

    ifname_prefix(c, prefix, sizeof(prefix));
    struct if_nameindex *list = if_nameindex();
    if (list == NULL)
        return err_sys(err, errno, "list interfaces");
    for (struct if_nameindex *i = list; i->if_name != NULL && r == 0; i++) {
        struct net_lease lease = {0};

        if (str_starts(i->if_name, prefix) &&
            str_copy(lease.ifname, sizeof(lease.ifname), i->if_name) == 0)
            r = net_detach(&lease, err);
    }
    if_freenameindex(list);
    return r;
}

int net_host_done(const struct net_config *config, struct err *err)
{
    AUTO_DONE(buf) struct buf script = BUF_INIT(RULES_MAX);

    /* Interfaces go before the rules that hold them. */
    int r = remove_links(config, err);
    if (r == 0)
        (void)net_flows_drop(config, NULL, NULL, NULL); /* they end by themselves, in days */
    if (r == 0)
        r = unmark_pool(config, err);
    if (r == 0)
        r = net_foreign_remove(config, err);
    if (r < 0)
        return r;
    r = buf_printf(&script, "table inet box_%s\ndelete table inet box_%s\n", config->tag,
                   config->tag);
    return r < 0 ? err_sys(err, -r, "network rules") : nft_load(&script, err);
}

int net_rules_guest_self(struct buf *out, struct err *err)
{
    AUTO_DONE(buf) struct buf v4, v6;
    struct ifaddrs *list = NULL;
    char text[INET6_ADDRSTRLEN];
    size_t bytes;

    buf_init(&v4, LIST_MAX / 2);
    buf_init(&v6, LIST_MAX / 2);
    int r = net_onlink_list(&v4, &v6, err);
    if (r < 0)
        return r;
    if (getifaddrs(&list) < 0)
        return err_sys(err, errno, "list the host's addresses");
    for (struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        const struct sockaddr *a = i->ifa_addr;

        if (is_ip(a) && inet_ntop(a->sa_family, address_bytes(a, &bytes), text, sizeof(text))) {
            struct buf *out_list = a->sa_family == AF_INET ? &v4 : &v6;
            (void)buf_printf(out_list, "%s%s", out_list->len > 0 ? ", " : "", text);
        }
    }
    freeifaddrs(list);
    r = net_rules_guest(buf_str(&v4), buf_str(&v6), out);
    return r < 0 ? err_sys(err, -r, "network rules") : 0;
}

/* In the scratch namespace that stands for the host; a second one stands for the session. */
static int probe_here(struct err *err)
{
    struct net_config config;
    struct net_host_info info;
    struct net_lease lease;
    int r = net_lo_up();

    if (r < 0)
        return err_sys(err, -r, "loopback");
    AUTO_CLOSE int host = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (host < 0 || unshare(CLONE_NEWNET) < 0)
        return err_sys(err, errno, "scratch network namespace");
    AUTO_CLOSE int guest = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (guest < 0 || setns(host, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "scratch network namespace");
    r = net_config_init(&config, "probe", NULL, err);
    if (r == 0)
        r = net_host_init(&config, &info, err);
    if (r == 0)
        r = net_lease_init(&lease, &config, 1, err);
    if (r == 0)
        r = net_attach(&lease, guest, err);
    return r;
}

int net_probe(struct err *err)
{
    AUTO_CLOSE int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home < 0 || unshare(CLONE_NEWNET) < 0)
        return err_set(err, ERR_UNSUPPORTED, "network: no scratch namespace: %s",
                       err_errno_text(errno));
    int r = probe_here(err);
    net_leave(TAKE_FD(home));
    if (r < 0 && err != NULL) {
        err->code = ERR_UNSUPPORTED;
        (void)err_wrap(err, "network");
    }
    return r;
}
