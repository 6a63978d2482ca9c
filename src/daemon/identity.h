/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which user a boxd that root has started becomes. */

#include <sys/types.h>

struct config;

#define IDENTITY_USER "box" /* and the group whose members are served */

/* The user `box`; without one, an id that no user has. What the state directory has been is kept.
 */
void identity_find(const struct config *c, uid_t *ret_uid, gid_t *ret_gid);
