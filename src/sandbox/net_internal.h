/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct net_config;

/* Runs in another network namespace between enter and leave. There is no way on if the way back is
 * barred: leave aborts then. */
struct net_visit {
    int home; /* owned; -1: not away */
};
int net_visit_enter(struct net_visit *v, int netns_fd, struct err *err);
void net_visit_leave(struct net_visit *v);

/* Whether an interface of the host that is not ours has an address in the pool or a network that
 * overlaps it. 1: yes, and its name; 0: no. */
int net_pool_taken(const struct net_config *config, char *ret_ifname, size_t size, struct err *err);

/* The whole table of an instance, as one nft transaction that replaces an earlier one. */
int net_rules_host(const struct net_config *config, struct buf *out);

/* Rules for the inside of a namespace whose packets leave through a user-mode helper. */
int net_rules_guest(struct buf *out);

/* Accept rules in other people's forward chain, where that drops by default. */
int net_foreign_add(const struct net_config *config, struct err *err); /* 1: added */
int net_foreign_remove(const struct net_config *config, struct err *err);
