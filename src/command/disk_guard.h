/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The disk of the host, and sessions that asked for no quota. Those with one have a wall of the
 * kernel's around their storage; the others are counted, and have a limit all the same. Once a
 * second the file system is asked how full it is. When something was written since, and every few
 * seconds anyway, sessions are looked at in which something runs.
 *
 * Over the limit, or growing while the host has less left than its reserve: every process of the
 * session is killed, with the reason. The session stays, so that its files can be removed. One
 * that goes on growing all the same is removed. */

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
