/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A second id for the user namespace of an ordinary user: the last of the ranges that /etc/subuid
 * and /etc/subgid give, mapped by newuidmap and newgidmap. They must be run from outside of the
 * namespace, so a child that does so is made before the namespace is. */

#include <stdbool.h>
#include <sys/types.h>

struct subids {
    pid_t pid; /* of the child; <= 0: there is none */
    int go_fd; /* owned */
};

/* The numbers inside of the namespace: of the user's own ids, and of those that were added. */
#define SUBIDS_OWN 0U
#define SUBIDS_SECOND 1U

/* Before the namespace is made. */
void subids_start(struct subids *s);
/* In it, with `made` false where it could not be made; nothing is mapped yet. True: both own and
 * second ids are mapped, and *ret is the second user id as the host sees it. False: the maps are as
 * they were, or have a second user id that must not be used. */
bool subids_finish(struct subids *s, bool made, uid_t *ret);
