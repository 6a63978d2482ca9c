/* SPDX-License-Identifier: Apache-2.0 */

/* The host's part of the network: rules, forwarding, the mark of the pool; and the probe. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/netlink.h"
#include "sandbox/net/nft.h"

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

/* Two programs that hand out the same addresses lose packets in ways nobody can explain. */
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
    AUTO_DONE(buf) struct buf script;
    buf_init(&script, RULES_MAX);

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

/* Appends an address to a list for nft. */
static void put_address(struct buf *list, int family, const void *addr)
{
    char text[INET6_ADDRSTRLEN];

    if (inet_ntop(family, addr, text, sizeof(text)) != NULL)
        (void)buf_printf(list, "%s%s", list->len > 0 ? ", " : "", text);
}

int net_rules_guest_self(struct buf *out, struct err *err)
{
    AUTO_DONE(buf) struct buf v4, v6;
    struct ifaddrs *list = NULL;

    buf_init(&v4, LIST_MAX / 2);
    buf_init(&v6, LIST_MAX / 2);
    int r = net_onlink_list(&v4, &v6, err);
    if (r < 0)
        return r;
    if (getifaddrs(&list) < 0)
        return err_sys(err, errno, "list the host's addresses");
    for (struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        struct sockaddr_in in;
        struct sockaddr_in6 in6;

        if (i->ifa_addr == NULL)
            continue;
        if (i->ifa_addr->sa_family == AF_INET) {
            memcpy(&in, i->ifa_addr, sizeof(in));
            put_address(&v4, AF_INET, &in.sin_addr);
        } else if (i->ifa_addr->sa_family == AF_INET6) {
            memcpy(&in6, i->ifa_addr, sizeof(in6));
            put_address(&v6, AF_INET6, &in6.sin6_addr);
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
    struct net_visit v = {.home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)};

    if (v.home < 0 || unshare(CLONE_NEWNET) < 0) {
        int error = errno;
        if (v.home >= 0)
            (void)close(v.home);
        return err_set(err, ERR_UNSUPPORTED, "network: no scratch namespace: %s",
                       err_errno_text(error));
    }
    int r = probe_here(err);
    net_visit_leave(&v);
    if (r < 0 && err != NULL) {
        err->code = ERR_UNSUPPORTED;
        (void)err_wrap(err, "network");
    }
    return r;
}
