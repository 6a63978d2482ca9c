/* SPDX-License-Identifier: Apache-2.0 */

/* What the host's connection tracking remembers of sessions. A connection that ended without a word
 * (its owner was killed, its interface cut) stays there for days. That many sessions could fill the
 * table for everybody on the host, and the next owner of an address would inherit the count of its
 * connections. */

#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "sandbox/net/net.h"
#include "sandbox/net/netlink.h"

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

static int forget(int sock, struct span tuple, struct span zone)
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

struct visit {
    const struct net_config *config;
    net_ended_fn *ended;
    void *arg;
    int sock; /* for deletions, beside the one that is being read */
};

static int on_entry(void *arg, const void *data, size_t len)
{
    const struct visit *v = arg;

    if (len < NLMSG_ALIGN(sizeof(ipv4)))
        return -EBADMSG;
    struct span all = {(const uint8_t *)data + NLMSG_ALIGN(sizeof(ipv4)),
                       len - NLMSG_ALIGN(sizeof(ipv4))};
    struct span tuple = find_attr(all, CTA_TUPLE_ORIG);
    uint32_t index = lease_of(v->config, tuple);
    if (index == 0 || (v->ended != NULL && !v->ended(v->arg, index)))
        return 0;
    return forget(v->sock, tuple, find_attr(all, CTA_ZONE));
}

int net_flows_drop(const struct net_config *config, net_ended_fn *ended, void *arg, struct err *err)
{
    struct nl nl;

    AUTO_CLOSE int list = nl_socket(NETLINK_NETFILTER);
    AUTO_CLOSE int sock = nl_socket(NETLINK_NETFILTER);
    if (list < 0 || sock < 0)
        return err_sys(err, list < 0 ? -list : -sock, "netlink socket");
    struct visit v = {.config = config, .ended = ended, .arg = arg, .sock = sock};
    nl_init(&nl);
    nl_begin(&nl, CT_TYPE(IPCTNL_MSG_CT_GET), NLM_F_DUMP, &ipv4, sizeof(ipv4));
    nl_end(&nl);
    int r = nl_dump(&nl, list, on_entry, &v);
    return r < 0 ? err_sys(err, -r, "forget connections of sessions") : 0;
}
