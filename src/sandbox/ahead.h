/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every session of a rootful install needs and what takes the kernel its time, made while
 * nobody waits for it: a network namespace with its loopback up, and the id map of the next range.
 * One of each; a session that finds none makes its own.
 *
 * A helper process makes them, on another processor where there is one, so that whoever comes
 * meanwhile does not wait for us. It shares our memory and our descriptors: while it runs, the
 * fields below `pidfd` are its own. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sandbox/userns.h"

#define AHEAD_STACK 65536

struct ahead {
    bool on;
    int home_fd;  /* our own network namespace, owned */
    int pidfd;    /* of the helper, owned; -1: none is at work */
    pid_t parent; /* of the helper: ourselves */
    int netns_fd; /* prepared, owned; -1: none */
    struct idmaps maps;
    struct idmap_key key; /* whose range they are for */
    _Alignas(16) char stack[AHEAD_STACK];
};

/* Without it nothing is prepared; `on` false leaves it at that. */
void ahead_init(struct ahead *a, bool on);
void ahead_done(struct ahead *a);

/* Has what is missing made, for a session that will have this range. */
void ahead_refill(struct ahead *a, uint32_t next_index, uid_t daemon_uid, gid_t daemon_gid);

/* Waits for the helper, so that no process of it and no descriptor is there that comes and goes. */
void ahead_settle(struct ahead *a);

/* Hands over the maps for this range, if they are the prepared ones. */
void ahead_take_maps(struct ahead *a, uint32_t index, struct idmaps *ret);

/* Moves this process into the prepared namespace, so that a child is born there; true when it did.
 * ahead_leave_netns() brings us back, or ends us: going on in a session's network is the one thing
 * worse. */
bool ahead_enter_netns(struct ahead *a);
void ahead_leave_netns(const struct ahead *a);
