/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Counts what lies in a workspace, for quota_judge(), while others have their turn. */

#include "base/cleanup.h"
#include "loop/loop.h"
#include "policy/policy_quota.h"

struct err;
struct policy_service;
struct quota_count;
struct session;

/* Exactly one is NULL. From the loop, once; quota_count_free() is still owed, and may be called in
 * it. */
typedef void quota_count_fn(void *arg, const struct usage *usage, const struct err *err);

struct quota_place {
    const char
        *path; /* of the host, as policy_check_mount() leaves it; no link in it is followed */
    struct session *session; /* whose processes may hold files without a name; NULL: nobody's */
};

/* ERR_INVALID when there is no such directory. */
int quota_count_start(const struct policy_service *service, const struct quota_place *place,
                      quota_count_fn *done, void *arg, struct quota_count **ret,
                      struct err *err);       /* service borrowed */
void quota_count_free(struct quota_count *c); /* nobody is told */
DEFINE_CLEANUP(quota_count)

/* Looks at a workspace again and again while a command runs. Zero-initialised, inside its owner. */
struct quota_watch {
    const struct policy_service *service; /* borrowed, like the rest */
    const struct quota_check *check;
    struct session *session;
    void (*over)(void *arg); /* it is over its quota: told once, from the loop */
    void *arg;
    struct usage found;        /* when it was over; all 0: it was not */
    struct quota_count *count; /* private, like what follows */
    struct loop_timer timer;
};

void quota_watch_start(struct quota_watch *w);
void quota_watch_stop(struct quota_watch *w); /* does nothing on one that was stopped */
/* What a command is judged by at its end: what it held when it was killed for it may be gone. */
const struct usage *quota_watch_most(const struct quota_watch *w, const struct usage *now);
