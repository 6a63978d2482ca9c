/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The directory that holds what a session keeps on disk: the daemon's own, closed to everybody
 * else.
 *
 * Directories of ended sessions that hold nothing any more are used again: a file system may take
 * its time over making and deleting inodes (ext4 searches for one that was not deleted lately), a
 * rename it does at once. */

#include "sandbox/launch.h"

int storage_make(struct launch_host *h, const char *name, struct err *err); /* a descriptor */
void storage_remove(struct launch_host *h, const char *name, bool quota);
