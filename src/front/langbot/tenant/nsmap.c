/* SPDX-License-Identifier: Apache-2.0 */

/* A chained hash table that doubles its buckets as it fills. */

#include "front/langbot/tenant/nsmap.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/str.h"

#define BUCKETS_FIRST 64U

static size_t place(const struct nsmap *m, const char *ns)
{
    return str_hash(ns) % m->n_buckets;
}

struct nsmap_entry *nsmap_find(const struct nsmap *m, const char *ns)
{
    struct nsmap_entry *e = m->n_buckets > 0 ? m->buckets[place(m, ns)] : NULL;
    while (e != NULL && !str_eq(e->ns, ns))
        e = e->next;
    return e;
}

static void grow(struct nsmap *m)
{
    struct nsmap old = *m;
    m->n_buckets = old.n_buckets > 0 ? old.n_buckets * 2 : BUCKETS_FIRST;
    m->buckets = xnew_n(struct nsmap_entry *, m->n_buckets);
    for (size_t i = 0; i < old.n_buckets; i++) {
        for (struct nsmap_entry *e = old.buckets[i], *next; e != NULL; e = next) {
            struct nsmap_entry **at = &m->buckets[place(m, e->ns)];
            next = e->next;
            e->next = *at;
            *at = e;
        }
    }
    free(old.buckets);
}

void nsmap_add(struct nsmap *m, struct nsmap_entry *e, const char *ns)
{
    assert(nsmap_find(m, ns) == NULL);
    if (m->n >= m->n_buckets)
        grow(m);
    int r = str_copy(e->ns, sizeof(e->ns), ns);
    assert(r == 0);
    struct nsmap_entry **at = &m->buckets[place(m, ns)];
    e->next = *at;
    *at = e;
    m->n++;
}

struct nsmap_entry *nsmap_take(struct nsmap *m)
{
    struct nsmap_entry *e = nsmap_next(m, NULL);
    if (e == NULL)
        return NULL;
    m->buckets[place(m, e->ns)] = e->next; /* the first that a walk meets is the first of its row */
    m->n--;
    return e;
}

struct nsmap_entry *nsmap_next(const struct nsmap *m, const struct nsmap_entry *after)
{
    if (after != NULL && after->next != NULL)
        return after->next;
    for (size_t i = after != NULL ? place(m, after->ns) + 1 : 0; i < m->n_buckets; i++)
        if (m->buckets[i] != NULL)
            return m->buckets[i];
    return NULL;
}

void nsmap_done(struct nsmap *m)
{
    assert(m->n == 0);
    free(m->buckets);
    *m = (struct nsmap){0};
}
