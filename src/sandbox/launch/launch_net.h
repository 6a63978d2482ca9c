/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Networks of sessions, as box-priv gives and takes them. With root: a lease of an address pool and
 * a pair of interfaces (net.h). Without: a helper program (slirp.h). Either way the resolver's
 * sockets are made inside the session's namespace, for boxd to serve. */

#include <stdbool.h>
#include <stdint.h>

#include "sandbox/net/net.h"

struct err;
struct launch;
struct launch_host;

#define LAUNCH_LEASES_MAX 8192U

/*   FREE ──► USED ──► CUT ◄──► CLEANING ──► FREE
 *
 * A lease is free again when its interface is gone and the host has forgotten its connections. */
enum lease_state {
    LEASE_FREE,
    LEASE_USED,
    LEASE_CUT,      /* given back */
    LEASE_CLEANING, /* a child looks after what is left of it */
};

/* What came with the first session that wanted a network, and which leases are out. */
struct launch_net {
    struct net_config config;
    const char *pool;                  /* borrowed; NULL: the first that is free */
    bool ready;                        /* the host's side stands */
    struct net_host_info info;         /* what we changed on the host; cleared when boxd was told */
    uint32_t next;                     /* leases go round */
    uint32_t n_going;                  /* given back, not free yet */
    int cleaner_fd;                    /* pidfd of the child that cleans; -1: none */
    int watch_fd;                      /* owned; net_onlink_watch(), set by the server; -1: none */
    bool stale;                        /* rules lack a network that the host stands in */
    uint8_t leases[LAUNCH_LEASES_MAX]; /* enum lease_state */
};

/* Zeroes it and picks the names; `pool` as in net_config_init(). */
int launch_net_init(struct launch_net *net, const char *tag, const char *pool, struct err *err);

/* Gives the child its network, before it goes on: interface, way out, resolver. What has been made
 * on failure is in *l, for launch_net_leave(). */
int launch_net_join(struct launch_host *h, struct launch *l, struct err *err);

/* The resolver's sockets of a session that has a network: UDP, TCP. There is one pair at a time. */
int launch_net_resolver(const struct launch *l, int ret_fds[2], struct err *err);

/* Listeners on that port of the session's loopback addresses: 127.0.0.1 and, where the session has
 * it and the port is free there, ::1 (else -1). */
int launch_net_listen(const struct launch *l, uint16_t port, int ret_fds[2], struct err *err);

/* Cuts the session off at once. The interface goes with the namespace, a little later. */
void launch_net_leave(struct launch_host *h, struct launch *l);

/* Looks after leases that were given back: to be called every now and then while n_going > 0. A
 * namespace that lives longer than it should (by a socket that still waits for its peer) loses its
 * interface. */
void launch_net_sweep(struct launch_host *h);

/* Brings the rules up to date when watch_fd is readable. While that fails no session gets a
 * network.
 */
void launch_net_follow(struct launch_host *h);

/* Whether sessions can have a network here, found out by doing. */
int launch_net_probe(const struct launch_host *h, struct err *err);

/* Removes what sessions with a network needed on the host, also when an earlier run made it. */
int launch_net_end(struct launch_host *h, struct err *err);
