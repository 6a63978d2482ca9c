/* SPDX-License-Identifier: Apache-2.0 */

/* Counts the use of each token and checks it against the token's caps. */

#include "policy/share.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/list.h"
#include "base/str.h"

struct share {
    struct shares *all;     /* borrowed */
    LIST_ENTRY(share) link; /* few: one per token that uses something */
    size_t refs;
    char *name; /* owned */
    uint64_t used[SHARE_KIND_MAX];
};

struct shares {
    LIST_HEAD(, share) list;
    share_caps_fn *caps; /* NULL: no bounds */
    void *arg;
    uint64_t refused[SHARE_KIND_MAX];
};

const char *const share_cap_names[SHARE_KIND_MAX] = {
    [SHARE_SESSIONS] = "max_sessions",
    [SHARE_EXECS] = "max_execs",
    [SHARE_PROCESSES] = "max_processes",
    [SHARE_OUTPUT] = "max_output_mb",
};

static const struct {
    const char *what, *remedy;
} words[SHARE_KIND_MAX] = {
    [SHARE_SESSIONS] = {"sessions", "delete one"},
    [SHARE_EXECS] = {"commands running", "wait for one to end"},
    [SHARE_PROCESSES] = {"managed processes running", "stop one"},
    [SHARE_OUTPUT] = {"bytes of kept outputs", "delete a session whose outputs are not needed"},
};

struct shares *shares_new(void)
{
    return xnew(struct shares);
}

void shares_free(struct shares *s)
{
    if (s == NULL)
        return;
    struct share *share, *next;
    LIST_FOREACH_SAFE (share, &s->list, link, next) {
        free(share->name);
        free(share);
    }
    free(s);
}

void shares_set_caps(struct shares *s, share_caps_fn *caps, void *arg)
{
    s->caps = caps;
    s->arg = arg;
}

static struct share *share_find(const struct shares *s, const char *name)
{
    struct share *share;

    LIST_FOREACH (share, &s->list, link)
        if (str_eq(share->name, name))
            return share;
    return NULL;
}

static uint64_t max_of(const struct shares *s, const char *name, enum share_kind kind)
{
    uint64_t max[SHARE_KIND_MAX];

    if (s->caps == NULL)
        return UINT64_MAX;
    for (int i = 0; i < SHARE_KIND_MAX; i++)
        max[i] = UINT64_MAX;
    s->caps(s->arg, name, max);
    return max[kind];
}

int shares_check(struct shares *s, const char *name, enum share_kind kind, struct err *err)
{
    if (s == NULL || name == NULL)
        return 0;
    const struct share *share = share_find(s, name);
    uint64_t used = share != NULL ? share->used[kind] : 0, max = max_of(s, name, kind);
    if (used < max)
        return 0;
    s->refused[kind]++;
    return err_set(err, ERR_LIMIT,
                   "token '%.64s' has %llu %s and may have %llu (%s); %s, or have its share raised",
                   name, (unsigned long long)used, words[kind].what, (unsigned long long)max,
                   share_cap_names[kind], words[kind].remedy);
}

uint64_t shares_refused(const struct shares *s, enum share_kind kind)
{
    return s != NULL ? s->refused[kind] : 0;
}

struct share *shares_get(struct shares *s, const char *name)
{
    if (s == NULL || name == NULL)
        return NULL;
    struct share *share = share_find(s, name);
    if (share == NULL) {
        share = xnew(struct share);
        share->all = s;
        share->name = xstrdup(name);
        LIST_INSERT_HEAD(&s->list, share, link);
    }
    share->refs++;
    return share;
}

void share_put(struct share *share)
{
    if (share == NULL || --share->refs > 0)
        return;
    for (int i = 0; i < SHARE_KIND_MAX; i++)
        assert(share->used[i] == 0);
    LIST_REMOVE(share, link);
    free(share->name);
    free(share);
}

void share_add(struct share *share, enum share_kind kind, uint64_t amount)
{
    if (share != NULL)
        share->used[kind] += amount;
}

void share_sub(struct share *share, enum share_kind kind, uint64_t amount)
{
    if (share == NULL)
        return;
    assert(share->used[kind] >= amount);
    share->used[kind] -= amount;
}

struct share *shares_take(struct shares *s, const char *name, enum share_kind kind)
{
    struct share *share = shares_get(s, name);

    share_add(share, kind, 1);
    return share;
}

void share_give(struct share *share, enum share_kind kind)
{
    share_sub(share, kind, 1);
    share_put(share);
}

const char *share_name(const struct share *share)
{
    return share != NULL ? share->name : NULL;
}

uint64_t share_used(const struct share *share, enum share_kind kind)
{
    return share != NULL ? share->used[kind] : 0;
}

uint64_t share_max(const struct share *share, enum share_kind kind)
{
    return share != NULL ? max_of(share->all, share->name, kind) : UINT64_MAX;
}

const struct share *shares_next(const struct shares *s, const struct share *after)
{
    if (s == NULL)
        return NULL;
    return after != NULL ? LIST_NEXT(after, link) : LIST_FIRST(&s->list);
}
