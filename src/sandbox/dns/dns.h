/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The resolver that sessions see: takes their questions on sockets that box-priv bound, asks the
 * host's own resolvers, and passes on what is fit to pass. Runs in boxd, unprivileged, on the loop.
 *
 * What a session cannot do through it: reach names that mean something only inside (single labels,
 * .local, .internal, reverse lookups of private addresses), learn or use a name that leads to an
 * address which is not the public internet's (NXDOMAIN), see search domains, talk to a server with
 * options of its own, ask without limit. Every question goes out in a message written anew, with a
 * random id, from a fresh port. There is no cache. */

#include <stdint.h>

#include "base/cleanup.h"

struct dns;
struct dns_listener;
struct err;
struct loop;

/* 0 takes the default. */
struct dns_options {
    const char *resolv_conf;   /* borrowed; "/etc/resolv.conf". Read again when it changes */
    unsigned rate;             /* questions per second and listener: 50 */
    unsigned burst;            /* of them at once: 200 */
    unsigned flights;          /* questions under way: 256 */
    unsigned listener_flights; /* the same, of one listener: 32 */
    unsigned conns;            /* TCP connections: 64 */
    unsigned listener_conns;   /* the same, of one listener: 8 */
    unsigned attempt_ms;       /* patience with one server: 1500 */
    unsigned idle_ms;          /* with a silent TCP client: 5000 */
    uint16_t upstream_port;    /* 53 */
};

struct dns *dns_new(struct loop *loop, const struct dns_options *options);
void dns_free(struct dns *dns); /* closes listeners and connections */
DEFINE_CLEANUP(dns)

/* Serves these sockets (non-blocking; udp bound, tcp listening or -1), which it owns from here on,
 * also on failure. A pair for each session, in its own namespace: there it can ask from any address
 * it likes, so limits are per listener. */
int dns_listen(struct dns *dns, int udp_fd, int tcp_fd, struct dns_listener **ret, struct err *err);
void dns_unlisten(struct dns_listener *listener); /* NULL is fine; drops what is under way for it */
