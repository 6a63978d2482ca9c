/* SPDX-License-Identifier: Apache-2.0 */

/* Removes what earlier daemons left behind, on every candidate. A candidate that works must manage
 * it, and so must a sole one. The others are asked too, and again when they serve. */

#include <assert.h>

#include "backend/choice_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define PATIENCE_NS (3ULL * NSEC_PER_SEC)

struct choice_sweep {
    struct choice *choice; /* borrowed */
    struct choice_sweep *next;
    backend_done_fn *done; /* NULL: told already */
    void *arg;
    struct part {
        struct choice_sweep *sweep;
        struct candidate *candidate;
    } parts[CHOICE_MAX];
    size_t pending; /* answers that are to come, and ours while they are asked for */
    struct err err; /* the first that was told */
    struct loop_timer timer;
    struct loop_defer defer;
};

static void sweep_free(struct choice_sweep *s)
{
    struct choice_sweep **at = &s->choice->sweeps;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    loop_timer_stop(&s->timer);
    loop_defer_stop(&s->defer);
    free(s);
}

void choice_sweeps_free(struct choice *c)
{
    while (c->sweeps != NULL)
        sweep_free(c->sweeps);
}

static void on_end(struct loop_defer *d)
{
    struct choice_sweep *s = container_of(d, struct choice_sweep, defer);
    backend_done_fn *done = s->done;
    void *arg = s->arg;
    struct err err = s->err;
    sweep_free(s);
    if (done != NULL)
        done(arg, err.code != ERR_NONE ? &err : NULL);
}

static void finish_one(struct choice_sweep *s)
{
    assert(s->pending > 0);
    if (--s->pending == 0)
        loop_defer_start(s->choice->loop, &s->defer, on_end);
}

/* Before anybody is served nobody waits for long: the rest goes on by itself. */
static void on_late(struct loop_timer *timer)
{
    struct choice_sweep *s = container_of(timer, struct choice_sweep, timer);
    backend_done_fn *done = TAKE_PTR(s->done);
    struct err err = s->err;
    if (done != NULL)
        done(s->arg, err.code != ERR_NONE ? &err : NULL);
}

static void on_swept(void *arg, const struct err *err)
{
    struct part *part = arg;
    struct choice_sweep *s = part->sweep;
    part->candidate->swept = err == NULL;
    if (err != NULL && s->err.code == ERR_NONE)
        s->err = *err;
    finish_one(s);
}

static void on_swept_late(void *arg, const struct err *err)
{
    struct candidate *k = arg;
    k->swept = err == NULL; /* else again when it serves */
    if (err != NULL)
        log_debug(NULL, "what is left on %s: %s; ignoring", k->def->name, err->msg);
}

void choice_sweep_late(struct candidate *k)
{
    struct err err = {0};
    if (!k->choice->sweeping || k->swept || k->backend->ops->sweep == NULL)
        return;
    k->swept = true;
    if (k->backend->ops->sweep(k->backend, on_swept_late, k, &err) < 0)
        on_swept_late(k, &err);
}

static void ask(struct choice_sweep *s, struct candidate *k, bool must)
{
    struct part *part = &s->parts[k - s->choice->list];
    struct err why = {0};
    if (k->backend == NULL || k->backend->ops->sweep == NULL)
        return;
    if (!must) {
        k->swept = false;
        choice_sweep_late(k);
        return;
    }
    k->swept = true;
    *part = (struct part){.sweep = s, .candidate = k};
    s->pending++;
    if (k->backend->ops->sweep(k->backend, on_swept, part, &why) < 0)
        on_swept(part, &why);
}

int choice_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct choice *c = container_of(b, struct choice, base);
    const struct candidate *sole = choice_sole(c);
    struct choice_sweep *s = xnew(struct choice_sweep);
    bool first = !c->sweeping;
    *s = (struct choice_sweep){
        .choice = c, .next = c->sweeps, .done = done, .arg = arg, .pending = 1};
    c->sweeps = s;
    c->sweeping = true;
    if (first)
        loop_timer_start(c->loop, &s->timer, PATIENCE_NS, on_late);
    for (size_t i = 0; i < c->n; i++)
        ask(s, &c->list[i], &c->list[i] == sole || c->list[i].state == CANDIDATE_UP);
    finish_one(s);
    return 0;
}
