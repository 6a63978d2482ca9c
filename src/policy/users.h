/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which users of this machine are served without a token: root, boxd's own, and those whom the
 * configuration names. */

#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;
struct peer;
struct users;

/* Comma-separated names and numbers; NULL: none. `own` is the user that boxd will be. ERR_INVALID
 * names what is not there. */
int users_new(uid_t own, const char *names, const char *groups, struct users **ret,
              struct err *err);
void users_free(struct users *u);
DEFINE_CLEANUP(users)

bool users_any(const struct users *u); /* the configuration names a user or a group */
/* The group that has the socket, and whose members are served as well: `name`, which must be there;
 * NULL: `otherwise`, if it is there; "none": no group, and *ret is 0. */
int users_set_group(struct users *u, const char *name, const char *otherwise, gid_t *ret,
                    struct err *err);

enum users_rank {
    USERS_REFUSED, /* not served, or its user is not known */
    USERS_BOUND,   /* served; may mount only what it could itself open */
    USERS_FULL,    /* root, and boxd's own user */
};
/* Asks the host's list of groups where the configuration names any. `u` NULL: all are served. */
enum users_rank users_rank(const struct users *u, const struct peer *peer);

/* For the operator, now and then. */
void users_log_refusal(const struct peer *peer);

/* What a refused caller is told, and what to do. */
#define USERS_REFUSAL                                                                              \
    "boxd serves this user only with a token: make the user a member of the group box (usermod "   \
    "-aG box USER), add it to allowed_users or one of its groups to allowed_groups in boxd's "     \
    "configuration, or set token_file there and send the token"
