/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The quota of a host directory that serves as workspace, counted before and after each command.
 * Counting is no wall: the kernel's limit is, if a session has storage of its own or the
 * directory's file system has quotas (priv/quota.c). If the kernel enforces the limit, bytes are
 * not counted against the session: the kernel and boxd count differently (sparse files, shared
 * blocks). Entries are counted: names are not inodes. Counting is done in steps, so that no other
 * request waits for it. */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/usage.h"
#include "loop/loop.h"

struct err;
struct policy_service;
struct quota_count;
struct session;
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
    /* The kernel limits what the session can write: directories that boxd may not count do not
     * matter. */
    bool kernel_limit;
};

/* Whether there is a quota to be checked at all. */
bool quota_applies(const struct spec *spec);
/* ERR_INVALID with the sentence that hosts know. */
int quota_judge(const struct quota_check *check, const struct usage *usage, struct err *err);

/* Counting ------------------------------------------------------------------------------------- */

/* Exactly one is NULL. From the loop, once; quota_count_free() is still owed, and may be called in
 * it. */
typedef void quota_count_fn(void *arg, const struct usage *usage, const struct err *err);

struct quota_place {
    const char
        *path; /* of the host, as policy_check_mount() leaves it; no link in it is followed */
    struct session *session; /* whose processes may hold files without a name; NULL: none */
};

/* ERR_INVALID when there is no such directory. */
int quota_count_start(const struct policy_service *service, const struct quota_place *place,
                      quota_count_fn *done, void *arg, struct quota_count **ret,
                      struct err *err);       /* service borrowed */
void quota_count_free(struct quota_count *c); /* `done` is not called */
DEFINE_CLEANUP(quota_count)

/* Looks at a workspace again and again while a command runs. Zero-initialised, inside its owner. */
struct quota_watch {
    const struct policy_service *service; /* borrowed, like the rest */
    const struct quota_check *check;
    struct session *session;
    void (*over)(void *arg); /* it is over its quota: once, from the loop */
    void *arg;
    struct usage found;        /* when it was over; all 0: it was not */
    struct quota_count *count; /* private, like what follows */
    struct loop_timer timer;
};

void quota_watch_start(struct quota_watch *w);
void quota_watch_stop(struct quota_watch *w); /* does nothing on one that was stopped */
/* The usage to judge a command by at its end: files that it held when it was killed may be gone. */
const struct usage *quota_watch_most(const struct quota_watch *w, const struct usage *now);
