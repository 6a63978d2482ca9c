/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of session networks share: visits to namespaces, packet rules of a
 * namespace. */

#include <stddef.h>

struct buf;
struct err;
struct net_config;

/* Goes back to the network namespace `home`, which it closes. Aborts when the way back is barred:
 * going on in a sandbox's namespace would do to the sandbox what is meant for the host. */
void net_leave(int home);

/* Runs fn in a child inside the namespace. What it leaves in ret_fds comes back: exactly n_fds
 * descriptors, when it returns 0. */
#define NET_WITHIN_FDS_MAX 2
typedef int net_within_fn(void *arg, int *ret_fds, struct err *err);
int net_within(int netns_fd, net_within_fn *fn, void *arg, int *ret_fds, size_t n_fds,
               struct err *err);

/* Whether an interface of the host that is not ours has an address in the pool or a network that
 * overlaps it. 1: yes, and its name; 0: no. */
int net_pool_taken(const struct net_config *config, char *ret_ifname, size_t size, struct err *err);

/* Rules for the inside of a namespace whose packets leave through a user-mode helper. They refuse
 * the addresses and networks of the host: those of the namespace we are in. */
int net_rules_guest_self(struct buf *out, struct err *err);

/* One transaction: all of the script takes effect or nothing does. */
int nft_load(const struct buf *script, struct err *err);
