/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Network "on" for a session of a rootful install: a veth pair between the host and the session's
 * own network namespace, routed and masqueraded, behind packet rules of ours that let the session
 * reach the public internet and nothing else. Called by box-priv: root, single-threaded (these
 * functions move the calling thread between network namespaces and always back).
 *
 * What a session can reach: public IPv4 addresses, but no mail ports; with caps on new connections
 * per second and on connections at a time. Not: the host (any address of it), other sessions,
 * networks that the host stands in, private ranges, metadata services (base/ipnet.h). IPv6: there
 * is none; the interface has no address, the namespace no route, and the host drops what comes
 * anyway. `::1` inside works.
 *
 * All sessions of one instance share one table of rules, which matches the interface names by
 * prefix: attaching a session never runs nft. Instances are told apart by their tag; one never
 * touches what belongs to another. Our rules judge packets of our interfaces only. */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;

#define NET_TAG_MAX 5
#define NET_IFNAME_SIZE 16
#define NET_GUEST_IFNAME "eth0"
#define NET_GUEST_RESOLVER 0x7f000035U /* 127.0.0.53, on the session's own loopback */
#define NET_GUEST_RESOLVER_TEXT "127.0.0.53"

/* Of one session behind our packet rules, by default. */
#define NET_CONN_MAX 1024U
#define NET_CONN_RATE 200U

/* How a session is connected, for receipts and the doctor. */
enum net_kind { NET_NONE, NET_NAT, NET_SLIRP4NETNS, NET_PASTA, NET_KIND_MAX };

struct net_config {
    char tag[NET_TAG_MAX + 1]; /* [a-z0-9]+, one per instance on a host */
    uint32_t pool;             /* host order, as all addresses here */
    unsigned prefix;           /* of the pool: each session takes two addresses */
    unsigned conn_max;         /* connections at a time, per session */
    unsigned conn_rate;        /* new connections per second, per session; twice that in a burst */
};

/* Fills in the defaults. `pool` is "a.b.c.d/n" (8 <= n <= 28), or NULL for a sixteenth of
 * 198.18.0.0/15, a range for benchmarks that is hardly ever in use: the one that the tag picks, or
 * the next that no interface of the host has an address in. */
int net_config_init(struct net_config *ret, const char *tag, const char *pool, struct err *err);

/* Indices of leases are 1 to this. */
uint32_t net_lease_max(const struct net_config *config);

struct net_lease {
    char ifname[NET_IFNAME_SIZE]; /* of the host's end: bx<tag>_<index> */
    uint32_t host;                /* address of the host's end: the session's gateway */
    uint32_t guest;               /* address of the session */
};
int net_lease_init(struct net_lease *ret, const struct net_config *config, uint32_t index,
                   struct err *err);

struct net_host_info {
    bool forwarding_enabled;  /* we turned the host's net.ipv4.ip_forward on: say so */
    bool foreign_rules_added; /* another firewall drops forwarded packets by default: we added two
                                 accept rules for our interfaces to it, marked "box_<tag>" */
};

/* Once per start: rules, forwarding, and an address of the pool on lo, by which other instances see
 * that it is taken; nothing listens there, no session can reach it. Idempotent: replaces what an
 * earlier run of this tag left. ERR_CONFLICT when the pool overlaps an address of the host. */
int net_host_init(const struct net_config *config, struct net_host_info *ret, struct err *err);

/* Networks that the host stands in are out of reach of sessions, and the host's addresses change.
 * net_onlink_watch() opens a socket that becomes readable when they do (or -errno);
 * net_onlink_changed() reads it, and says whether an address of the host itself changed; then
 * net_host_update() loads the present ones into rules that net_host_init() has made. */
int net_onlink_watch(void);
bool net_onlink_changed(int fd);
int net_host_update(const struct net_config *config, struct err *err);

/* Removes interfaces, connections, addresses and rules of this tag. net.ipv4.ip_forward stays as it
 * is: others may rely on it by now. */
int net_host_done(const struct net_config *config, struct err *err);

/* Gives the namespace (no eth0 yet) its interface, address and default route. Leaves nothing on
 * failure. */
int net_attach(const struct net_lease *lease, int netns_fd, struct err *err);

/* From here on no packet of the session passes the host, in either direction. For a session that
 * has ended: what its sockets had not sent yet, the kernel would go on to send. Cheap; fine when
 * the interface is gone already. */
void net_cut(const struct net_lease *lease);

/* Deleting the namespace does the same, in the background; this waits for the kernel, which takes
 * some 30 ms. Fine when it is gone already. */
int net_detach(const struct net_lease *lease, struct err *err);

/* Makes the host forget the connections of leases that have ended, by the word of the callback;
 * NULL: all of them. Reads the whole table of the host, hence not where a client waits. */
typedef bool net_ended_fn(void *arg, uint32_t index);
int net_flows_drop(const struct net_config *config, net_ended_fn *ended, void *arg,
                   struct err *err);

/* For the network-off case, in a child after clone: loopback up in the current namespace. No
 * allocation. 0 or a negative errno. */
int net_lo_up(void);

/* UDP socket and TCP listener (both non-blocking) on NET_GUEST_RESOLVER:53 in that namespace, whose
 * loopback is up, for sandbox/dns/dns.h. Nothing has to pass a firewall of the host. They keep the
 * namespace alive until they are closed. */
int net_dns_open(int netns_fd, int *ret_udp, int *ret_tcp, struct err *err);

/* A TCP listener (non-blocking) on that port of 127.0.0.1, or of ::1, in that namespace; any port
 * from 1 on. It keeps the namespace alive, too. ERR_CONFLICT: a program there listens. */
int net_listen_open(int netns_fd, uint16_t port, bool ipv6, struct err *err);

/* Whether this host can do all this, found out by doing it in scratch namespaces. ERR_UNSUPPORTED
 * with the reason when not. */
int net_probe(struct err *err);
