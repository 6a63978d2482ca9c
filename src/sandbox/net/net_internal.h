/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of session networks share: visits to namespaces, packet rules, host
 * networks. */

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct net_config;

/* Runs in another network namespace between enter and leave. Enter fails when the way back is
 * barred, as it is without root; should it become so meanwhile, leave aborts. */
struct net_visit {
    int home; /* owned; -1: not away */
};
int net_visit_enter(struct net_visit *v, int netns_fd, struct err *err);
void net_visit_leave(struct net_visit *v);

/* Runs fn in a child inside the namespace. What it leaves in ret_fds comes back: exactly n_fds
 * descriptors, when it returns 0. */
#define NET_WITHIN_FDS_MAX 2
typedef int net_within_fn(void *arg, int *ret_fds, struct err *err);
int net_within(int netns_fd, net_within_fn *fn, void *arg, int *ret_fds, size_t n_fds,
               struct err *err);

/* Whether an interface of the host that is not ours has an address in the pool or a network that
 * overlaps it. 1: yes, and its name; 0: no. */
int net_pool_taken(const struct net_config *config, char *ret_ifname, size_t size, struct err *err);

/* The networks that the host stands in, but for those of ip_internal: "a/b, c/d". Either may be
 * NULL. (net_onlink.c) */
int net_onlink_list(struct buf *v4, struct buf *v6, struct err *err);

/* The whole table of an instance, as one nft transaction that replaces an earlier one. `onlink` as
 * net_onlink_list() has it. */
int net_rules_host(const struct net_config *config, const char *onlink, struct buf *out);
/* Puts others in their place, in a table that is there. */
int net_rules_onlink(const struct net_config *config, const char *onlink, struct buf *out);

/* Rules for the inside of a namespace whose packets leave through a user-mode helper. `addrs` is a
 * list of more addresses and networks to refuse, "a, b, c/d", or "". */
int net_rules_guest(const char *addrs4, const char *addrs6, struct buf *out);

/* The same, with the addresses and networks of the host: those of the namespace we are in. */
int net_rules_guest_self(struct buf *out, struct err *err);

/* Accept rules in other people's forward chain, where that drops by default. */
int net_foreign_add(const struct net_config *config, struct err *err); /* 1: added */
int net_foreign_remove(const struct net_config *config, struct err *err);
