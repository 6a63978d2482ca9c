/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every session of a rootful install needs and what takes the kernel its time, made while
 * no request waits for it: a network namespace with its loopback up, the id map of the next range,
 * and control groups. One of each; a session that finds none makes its own.
 *
 * A child of ours, the maker, does it, so that a request that comes meanwhile does not wait. It
 * knows nothing but the number of the range and the CPU limit that it is asked for, and answers
 * with two descriptors. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sandbox/setup/userns.h"

struct cgroup_host;

struct prewarm {
    bool on;
    int home_fd;           /* our own network namespace, owned */
    int sock;              /* to the maker, owned */
    bool asked;            /* for descriptors that have not come yet */
    bool asked_groups;     /* the same for groups */
    int netns_fd;          /* prepared, owned; -1: none */
    int map_fd;            /* prepared, owned; -1: none */
    struct idmap_key key;  /* whose range it is for */
    bool groups;           /* prepared, see cgroup_spare_make() */
    uint32_t quota_us;     /* their CPU limit */
    struct idmap_key next; /* what the next session most likely needs */
    uint32_t next_quota_us;
    bool again; /* an order was under way when something was missing */
};

/* Starts the maker. Without one nothing is prepared; `on` false leaves it at that. */
void prewarm_init(struct prewarm *a, bool on, const struct cgroup_host *cgroups);
void prewarm_done(struct prewarm *a); /* the maker ends by itself */

/* Has what is missing made, for a session that will have this range, and most likely this CPU
 * limit. */
void prewarm_refill(struct prewarm *a, uint32_t next_index, uint32_t quota_us, uid_t daemon_uid,
                    gid_t daemon_gid);

/* Waits for what was asked for, so that no descriptor arrives after a client has counted them. */
void prewarm_settle(struct prewarm *a);

/* Hands over the map for this range, if it is the prepared one. */
void prewarm_take_maps(struct prewarm *a, uint32_t index, struct idmaps *ret);

/* True when groups with this CPU limit are there; they are the caller's now. */
bool prewarm_take_groups(struct prewarm *a, uint32_t quota_us);

/* Moves this process into the prepared namespace, so that a child is born there; true when it did.
 * prewarm_leave_netns() brings us back, or ends us: going on in a session's network is the one
 * thing worse. */
bool prewarm_enter_netns(struct prewarm *a);
void prewarm_leave_netns(const struct prewarm *a);
