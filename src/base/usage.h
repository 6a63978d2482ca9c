/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Counts what lies in a directory, in steps, so that no other client waits for it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct stat;
struct usage_walk;

#define USAGE_STEP 512 /* entries at a time, a few milliseconds */

struct usage {
    uint64_t bytes;        /* path_cost() of all that is no directory; links count themselves */
    uint64_t disk_bytes;   /* blocks of the same, as the file system has them now */
    uint64_t entries;      /* all that was seen, directories too */
    uint64_t unreadable;   /* directories that we may not look into */
    uint64_t gone;         /* directories that were seen and not found where they had been */
    bool too_many;         /* counting ended at the cap */
    uint64_t kernel_bytes; /* set by others: limit that the kernel enforces; 0: none */
};

/* Meets every directory before it is read (`name` NULL: `dir_fd` is it, `st` NULL), and all else
 * that is found in one. A negative errno ends the walk. */
typedef int usage_visit_fn(void *arg, int dir_fd, const char *name, const struct stat *st);

/* `dir_fd` is borrowed and must stay open. Links are never followed, mounts never entered. */
struct usage_walk *usage_walk_new(int dir_fd, uint64_t max_entries);
void usage_walk_visit(struct usage_walk *w, usage_visit_fn *fn, void *arg); /* before a step */
void usage_walk_free(struct usage_walk *w);
DEFINE_CLEANUP(usage_walk)
/* Looks at up to `entries` more. 1: there are more; 0: done; or a negative errno. What vanishes
 * meanwhile is skipped. */
int usage_walk_step(struct usage_walk *w, size_t entries);
const struct usage *usage_walk_result(const struct usage_walk *w);
