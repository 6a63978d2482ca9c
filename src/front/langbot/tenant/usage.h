/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What sessions keep in their own storage: workspace, caches, temporary files. Only they can see
 * it, so a command looks from inside, confined and limited like every other; a session stays idle
 * for all that. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct manager;
struct usage;

enum usage_place {
    USAGE_WORKSPACE, /* not of sessions whose workspace is a directory of the host */
    USAGE_CACHE,     /* ~/.cache */
    USAGE_TEMP,      /* /tmp */
    USAGE_PLACE_MAX,
};

struct usage_amount {
    bool exists; /* anywhere */
    uint64_t bytes, files;
};

struct usage_report {
    size_t sessions, measured; /* those there are, and those that answered in time */
    size_t managed;            /* measured ones with processes and a workspace of their own */
    size_t processes;          /* managed ones, running or not */
    struct usage_amount at[USAGE_PLACE_MAX];
    struct usage_amount managed_workspaces; /* of those with processes, out of USAGE_WORKSPACE */
};

/* Once, from the loop; the report is borrowed for the call. */
typedef void usage_fn(void *arg, const struct usage_report *report);

struct usage_options {
    struct manager *manager;
    const char *prefix;  /* of the names of sessions that are looked at */
    const char *command; /* for tests: another one that says the same; NULL: ours. A literal. */
};

/* Looks at every one of them, a few at a time, for a bounded time. */
struct usage *usage_new(const struct usage_options *options, usage_fn *done, void *arg);
void usage_free(struct usage *u); /* ends what is under way; then nobody is told */
DEFINE_CLEANUP(usage)
