/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The directory that holds what a session keeps on disk: the daemon's own, closed to everybody
 * else.
 *
 * A fixed number of empty ones is kept ready, and those of ended sessions that hold nothing any
 * more go back to them: a file system may take its time over making and deleting inodes (ext4
 * searches for one that was not deleted lately), a rename it does at once. */

#include "sandbox/launch/launch.h"

/* Returns a descriptor. With a quota everything is inside an image, and the directory starts empty.
 */
int storage_make(struct launch_host *h, const char *name, bool quota, struct err *err);
/* Returns the pidfd of a child that is removing a tree, or -1 when nothing is left already. */
int storage_remove(struct launch_host *h, const char *name, bool quota);

/* Makes at most `n` of the missing spare directories. Called when nobody waits. */
void storage_refill(struct launch_host *h, unsigned n);
