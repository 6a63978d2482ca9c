/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which users of this machine are served without a token: root, boxd's own, and those whom the
 * configuration names. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;
struct peer;
struct users;

/* Comma-separated names and numbers; NULL: none. `own` is who boxd will be. ERR_INVALID names what
 * is not there. */
int users_new(uid_t own, const char *names, const char *groups, struct users **ret,
              struct err *err);
void users_free(struct users *u);
DEFINE_CLEANUP(users)

bool users_any(const struct users *u); /* the configuration names somebody */

enum users_rank {
    USERS_REFUSED, /* not served, or nobody knows who it is */
    USERS_BOUND,   /* served; may mount only what it could itself open */
    USERS_FULL,    /* root, and who we are ourselves */
};
/* Asks the host's list of groups where the configuration names any. `u` NULL: everybody is served.
 */
enum users_rank users_rank(const struct users *u, const struct peer *peer);

/* For the operator, now and then. */
void users_log_refusal(const struct peer *peer);

/* What a caller is told who is refused, and what to do. */
#define USERS_REFUSAL                                                                              \
    "boxd serves this user only with a token: add the user to allowed_users or one of its groups " \
    "to allowed_groups in boxd's configuration, or set token_file there and send the token"
