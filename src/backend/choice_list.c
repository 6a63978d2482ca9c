/* SPDX-License-Identifier: Apache-2.0 */

/* Lists sandboxes with certain labels on every candidate. A sole candidate must be able to answer,
 * and so must one that has proven itself; others may be absent altogether. */

#include <assert.h>

#include "backend/choice_internal.h"
#include "base/alloc.h"

struct choice_listing {
    struct choice *choice; /* borrowed */
    struct choice_listing *next;
    backend_found_fn *each;
    backend_done_fn *done;
    void *arg;
    struct one {
        struct choice_listing *listing;
        bool must;
    } ones[CHOICE_MAX];
    size_t pending; /* answers that are to come, and ours while they are asked for */
    struct err err; /* the first that was told */
    struct loop_defer defer;
};

static void listing_free(struct choice_listing *l)
{
    struct choice_listing **at = &l->choice->listings;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    loop_defer_stop(&l->defer);
    free(l);
}

void choice_listings_free(struct choice *c)
{
    while (c->listings != NULL)
        listing_free(c->listings);
}

static void on_end(struct loop_defer *d)
{
    struct choice_listing *l = container_of(d, struct choice_listing, defer);
    backend_done_fn *done = l->done;
    void *arg = l->arg;
    struct err err = l->err;
    listing_free(l);
    done(arg, err.code != ERR_NONE ? &err : NULL);
}

static void finish_one(struct choice_listing *l)
{
    assert(l->pending > 0);
    if (--l->pending == 0)
        loop_defer_start(l->choice->loop, &l->defer, on_end);
}

static void on_found(void *arg, const struct backend_found *found)
{
    const struct one *one = arg;
    one->listing->each(one->listing->arg, found);
}

static void on_listed(void *arg, const struct err *err)
{
    struct one *one = arg;
    struct choice_listing *l = one->listing;
    if (err != NULL && one->must && l->err.code == ERR_NONE)
        l->err = *err;
    finish_one(l);
}

static void ask(struct choice_listing *l, const struct candidate *k, const char *const *labels,
                bool must)
{
    struct one *one = &l->ones[k - l->choice->list];
    struct err err = {0};
    if (k->backend == NULL || k->backend->ops->list == NULL)
        return;
    *one = (struct one){.listing = l, .must = must};
    l->pending++;
    if (k->backend->ops->list(k->backend, labels, on_found, on_listed, one, &err) < 0)
        on_listed(one, &err);
}

int choice_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err)
{
    struct choice *c = container_of(b, struct choice, base);
    const struct candidate *sole = choice_sole(c);
    int r = sole != NULL ? choice_make(b, sole->def->name, err) : 0;
    if (r < 0)
        return r;
    struct choice_listing *l = xnew(struct choice_listing);
    *l = (struct choice_listing){
        .choice = c, .next = c->listings, .each = each, .done = done, .arg = arg, .pending = 1};
    c->listings = l;
    for (size_t i = 0; i < c->n; i++)
        ask(l, &c->list[i], labels, &c->list[i] == sole || c->list[i].state == CANDIDATE_UP);
    finish_one(l);
    return 0;
}
