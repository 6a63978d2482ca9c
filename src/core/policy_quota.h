/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The quota of a host directory that serves as workspace, counted before and after each command. It
 * is a promise about what is found, not a wall: the wall is the kernel's limit, where a session has
 * storage of its own. Counting is done in steps, so that nobody else waits for it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

struct err;
struct spec;
struct usage_walk;

#define QUOTA_MB (1024 * 1024)
#define USAGE_STEP 512 /* entries at a time, a few milliseconds */

struct usage {
    uint64_t bytes;      /* path_cost() of all that is no directory; links count themselves */
    uint64_t entries;    /* all that was seen, directories too */
    uint64_t unreadable; /* directories that we may not look into */
    bool too_many;       /* counting ended at the cap, or lost its way in a tree too deep */
};

/* `dir_fd` is borrowed and must stay open. Links are never followed, mounts never entered. */
struct usage_walk *usage_walk_new(int dir_fd, uint64_t max_entries);
void usage_walk_free(struct usage_walk *w);
DEFINE_CLEANUP(usage_walk)
/* Looks at up to `entries` more. 1: there are more; 0: done; or a negative errno. What vanishes
 * meanwhile is skipped. */
int usage_walk_step(struct usage_walk *w, size_t entries);
const struct usage *usage_walk_result(const struct usage_walk *w);

enum quota_phase { QUOTA_BEFORE, QUOTA_AFTER, QUOTA_BETWEEN };

struct quota_check {
    const struct spec *spec;
    enum quota_phase phase;
    uint64_t max_entries;
    /* The command is there to make room: it may start over the limit, but must not leave more than
     * it found. */
    bool cleanup;
    struct usage before; /* what was found before a cleanup; for QUOTA_AFTER */
    /* The kernel limits what the session can write: what we may not count is not held against it.
     */
    bool kernel_limit;
};

/* Whether there is a quota to be checked at all. */
bool quota_applies(const struct spec *spec);
/* ERR_INVALID with the sentence that hosts know. */
int quota_judge(const struct quota_check *check, const struct usage *usage, struct err *err);
