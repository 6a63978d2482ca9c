/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Ends many sessions at once and tells when the last of them is gone. */

#include <stdbool.h>
#include <stddef.h>

#include "loop/loop.h"

struct manager;

/* Which sessions, by name. Those of chats (spec->own) are never among them. */
struct sweep_match {
    const char *prefix; /* names that begin so; NULL: all */
    const char *except; /* but not those that begin so; NULL: no exception */
    bool physical; /* only names that were made for a workspace (front/langbot/tenant/tenancy.h) */
    bool keep_persistent;
};

typedef void sweep_done_fn(void *arg);

/* Lives inside its owner. Its owner may only go while it is not active, or with the manager. */
struct sweep {
    sweep_done_fn *done; /* NULL: not active */
    void *arg;
    size_t pending;
    struct loop_defer defer;
};

/* Sessions that are on their way in or out count too. `done` comes from the loop, exactly once. */
void sweep_start(struct sweep *s, struct manager *m, const struct sweep_match *match,
                 sweep_done_fn *done, void *arg);
bool sweep_active(const struct sweep *s);
/* Forgets about it, when the manager goes away as well and will tell nobody. */
void sweep_stop(struct sweep *s);
