/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Whether a disk of limited size is what a program failed for. One rule for box-init and box-guest,
 * neither of which is linked with a library of ours that allocates. */

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#define DISK_NEARLY_FULL (2ULL << 20)

/* So little left that no program can go on: not one inode, or less than what a write in large
 * pieces is refused for (the file system takes or refuses up to 2 MiB at once), which on a small
 * disk is a tenth of it. Some file systems do not count inodes. */
static inline bool disk_is_full(const struct statfs *st)
{
    uint64_t left = (uint64_t)st->f_bavail * (uint64_t)st->f_bsize;
    uint64_t tenth = (uint64_t)st->f_blocks * (uint64_t)st->f_bsize / 10;
    return left < (tenth < DISK_NEARLY_FULL ? tenth : DISK_NEARLY_FULL) ||
           (st->f_files > 0 && st->f_ffree == 0);
}

/* A file may not become larger than the disk: the kernel says that with a signal of its own. */
static inline bool disk_file_too_large(int wait_status)
{
    return WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGXFSZ;
}
