/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every session of a rootful install needs and what takes the kernel its time, made while
 * nobody waits for it: a network namespace with its loopback up, and the id map of the next range.
 * One of each; a session that finds none makes its own.
 *
 * A child of ours, the maker, does it, so that whoever comes meanwhile does not wait. It knows
 * nothing but the number of the range it is asked for, and answers with two descriptors. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sandbox/setup/userns.h"

struct prewarm {
    bool on;
    int home_fd;          /* our own network namespace, owned */
    int sock;             /* to the maker, owned */
    bool asked;           /* and its answer has not come yet */
    int netns_fd;         /* prepared, owned; -1: none */
    int map_fd;           /* prepared, owned; -1: none */
    struct idmap_key key; /* whose range it is for */
};

/* Starts the maker. Without one nothing is prepared; `on` false leaves it at that. */
void prewarm_init(struct prewarm *a, bool on);
void prewarm_done(struct prewarm *a); /* the maker ends by itself */

/* Has what is missing made, for a session that will have this range. */
void prewarm_refill(struct prewarm *a, uint32_t next_index, uid_t daemon_uid, gid_t daemon_gid);

/* Waits for what was asked for, so that no descriptor comes after somebody has counted them. */
void prewarm_settle(struct prewarm *a);

/* Hands over the map for this range, if it is the prepared one. */
void prewarm_take_maps(struct prewarm *a, uint32_t index, struct idmaps *ret);

/* Moves this process into the prepared namespace, so that a child is born there; true when it did.
 * prewarm_leave_netns() brings us back, or ends us: going on in a session's network is the one
 * thing worse. */
bool prewarm_enter_netns(struct prewarm *a);
void prewarm_leave_netns(const struct prewarm *a);
