/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The disk of the host, and sessions that asked for no quota. The kernel enforces the limit of
 * sessions with a quota; boxd counts the others, which have a limit, too.
 *
 * Once a second it asks the file system how full it is. When something was written since, and every
 * few seconds anyway, it looks at the sessions in which something runs. If a session is over the
 * limit, or grows while the host has less left than its reserve, boxd kills every process of the
 * session, with the reason. The session stays, so that its files can be removed. If it goes on
 * growing, boxd removes it. */

#include "base/cleanup.h"

struct disk_guard;
struct policy_service;

struct disk_guard_options {
    const struct policy_service *service; /* borrowed; its settings are the limits */
    int dir_fd;                           /* borrowed; on the file system of the storage */
};

struct disk_guard *disk_guard_new(const struct disk_guard_options *options);
void disk_guard_free(struct disk_guard *g); /* before the backend goes */
DEFINE_CLEANUP(disk_guard)
