/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What each token uses of what all have together: sessions, commands, managed processes, kept
 * outputs. A caller without a token of its own (name NULL) has no share and is bound by the caps of
 * boxd alone; so is every caller if there are no shares (NULL). Every call takes NULL for that. */

#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct share;
struct shares;

enum share_kind {
    SHARE_SESSIONS,
    SHARE_EXECS,     /* commands at once */
    SHARE_PROCESSES, /* managed ones that run */
    SHARE_OUTPUT,    /* bytes of kept outputs */
    SHARE_KIND_MAX,
};

/* As tokens name their caps: "max_sessions", …, "max_output_mb". */
extern const char *const share_cap_names[SHARE_KIND_MAX];

/* How much a token of that name may have of each, in the units above. Asked whenever it matters, so
 * that a cap that has changed holds at once. */
typedef void share_caps_fn(void *arg, const char *name, uint64_t ret[SHARE_KIND_MAX]);

struct shares *shares_new(void); /* without caps: everything is counted, nothing refused */
/* At the end of the daemon: requests that are still under way then hold theirs, and never let go.
 */
void shares_free(struct shares *s);
DEFINE_CLEANUP(shares)
void shares_set_caps(struct shares *s, share_caps_fn *caps, void *arg);

/* Whether one more may be had. ERR_LIMIT says of whom, which cap, and what to do. */
int shares_check(struct shares *s, const char *name, enum share_kind kind, struct err *err);
uint64_t shares_refused(const struct shares *s, enum share_kind kind); /* since the start */

/* The share of that name, to be let go by share_put(). */
struct share *shares_get(struct shares *s, const char *name);
void share_put(struct share *share);
void share_add(struct share *share, enum share_kind kind, uint64_t amount);
void share_sub(struct share *share, enum share_kind kind, uint64_t amount);
/* One of that kind, held; and given back. */
struct share *shares_take(struct shares *s, const char *name, enum share_kind kind);
void share_give(struct share *share, enum share_kind kind);

const char *share_name(const struct share *share); /* NULL for NULL */
uint64_t share_used(const struct share *share, enum share_kind kind);
uint64_t share_max(const struct share *share, enum share_kind kind); /* UINT64_MAX: no bound */
/* The shares that use something now; NULL starts, and ends. */
const struct share *shares_next(const struct shares *s, const struct share *after);
