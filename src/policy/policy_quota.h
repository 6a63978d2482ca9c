/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The quota of a host directory that serves as workspace, counted before and after each command. It
 * is a promise about what is found, not a wall: the wall is the kernel's limit, where a session has
 * storage of its own or the directory's file system has quotas (sandbox/quota/fsquota.h). Where
 * that wall stands, bytes are not held against the session: what the kernel counts and what we
 * count is not the same (sparse files, shared blocks). Entries are: names are not inodes. Counting
 * is done in steps, so that nobody else waits for it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/usage.h"

struct err;
struct spec;

#define QUOTA_MB (1024 * 1024)

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
