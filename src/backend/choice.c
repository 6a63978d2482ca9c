/* SPDX-License-Identifier: Apache-2.0 */

/* Tries the candidates in rounds, lets the first that works serve, and routes calls to it. */

#include "backend/choice.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/choice_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define CALM_NS (1ULL * NSEC_PER_SEC) /* between two rounds that calls have begun */
#define PAUSE_MIN_NS (2ULL * NSEC_PER_SEC)
#define PAUSE_MAX_NS (60ULL * NSEC_PER_SEC)
#define FRESH_NS (3ULL * NSEC_PER_SEC) /* how long what was seen counts without another look */
#define NOTHING "auto"

/* Somebody who waits for the end of a round: for a sandbox, or only for the result. */
struct waiting {
    struct waiting *next;
    const struct spec *spec; /* borrowed; NULL: only the result */
    backend_created_fn *created;
    backend_lost_fn *lost;
    backend_done_fn *done;
    void *arg;
    bool abandoned; /* the sandbox is not wanted any more */
};

#define TO(s) (1U << CANDIDATE_##s)
static const unsigned next_states[CANDIDATE_STATE_MAX] = {
    [CANDIDATE_UNTRIED] = TO(PROBING) | TO(UP) | TO(DOWN),
    [CANDIDATE_PROBING] = TO(UP) | TO(DOWN),
    [CANDIDATE_UP] = TO(UP) | TO(UNTRIED) | TO(DOWN),
    [CANDIDATE_DOWN] = TO(PROBING) | TO(UP) | TO(DOWN),
};

static struct choice *from(const struct backend *b)
{
    return container_of((struct backend *)(uintptr_t)b, struct choice, base);
}

static void move(struct candidate *k, enum candidate_state to)
{
    assert(next_states[k->state] & (1U << to));
    k->state = to;
    if (to == CANDIDATE_UP)
        k->proven = loop_now(k->choice->loop);
}

static void move_down(struct candidate *k, const struct err *why)
{
    k->why = *why;
    k->fell = loop_now(k->choice->loop);
    move(k, CANDIDATE_DOWN);
}

static struct candidate *find_candidate(struct choice *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (str_eq(c->list[i].def->name, name))
            return &c->list[i];
    return NULL;
}

bool choice_eligible(const struct choice *c, const struct candidate *k)
{
    return c->only[0] == '\0' || str_eq(c->only, k->def->name);
}

struct candidate *choice_sole(struct choice *c)
{
    struct candidate *sole = NULL;
    for (size_t i = 0; i < c->n; i++) {
        if (!choice_eligible(c, &c->list[i]))
            continue;
        if (sole != NULL)
            return NULL;
        sole = &c->list[i];
    }
    return sole;
}

static int make(struct candidate *k, struct err *err)
{
    const struct choice *c = k->choice;
    if (k->backend != NULL)
        return 0;
    return k->def->make(c->options.arg, k->def->name, &k->backend, err);
}

/* Who serves. */

static void serve(struct choice *c, struct candidate *k)
{
    const struct candidate *sole = choice_sole(c);
    bool same = c->serving == k;
    c->serving = k;
    if (k != NULL) {
        c->ops.name = k->def->name;
        c->ops.own_images = k->backend->ops->own_images;
        c->pause_ns = PAUSE_MIN_NS;
        loop_timer_stop(&c->retry);
        choice_sweep_late(k);
    } else {
        c->ops.name = sole != NULL ? sole->def->name : NOTHING;
        c->ops.own_images = true; /* nobody knows yet */
    }
    if (!same && c->options.changed != NULL)
        c->options.changed(c->options.arg, k != NULL ? k->def->name : NULL,
                           k != NULL ? NULL : &c->why);
}

/* "native: …; docker: …": each cause has its share of the room. */
static void explain(struct choice *c)
{
    char text[sizeof(c->why.msg)] = "";
    size_t n = 0, used = 0;
    for (size_t i = 0; i < c->n; i++)
        n += choice_eligible(c, &c->list[i]);
    int share = n > 0 ? (int)((sizeof(text) - 60) / n) : 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct candidate *k = &c->list[i];
        if (!choice_eligible(c, k))
            continue;
        const char *why = k->state == CANDIDATE_DOWN ? k->why.msg : "not tried yet";
        char one[sizeof(text)];
        size_t name = strlen(k->def->name); /* some begin with it by themselves */
        if (str_starts(why, k->def->name) && why[name] == ' ')
            (void)snprintf(one, sizeof(one), "%s", why);
        else
            (void)snprintf(one, sizeof(one), "%s: %s", k->def->name, why);
        size_t len = strlen(one);
        if (len > (size_t)share)
            len = utf8_boundary(one, (size_t)share);
        one[len] = '\0';
        if (str_fmt(text + used, sizeof(text) - used, "%s%s", used > 0 ? "; " : "", one) >= 0)
            used = strlen(text);
    }
    (void)err_set(&c->why, ERR_UNAVAILABLE, "no backend can make a sandbox (%s)",
                  used > 0 ? text : "there is none of that name");
}

static void start_round(struct choice *c);

static void on_retry(struct loop_timer *t)
{
    start_round(container_of(t, struct choice, retry));
}

static void answer(struct choice *c)
{
    struct waiting *w = TAKE_PTR(c->waiting);
    struct backend *b = c->serving != NULL ? c->serving->backend : NULL;
    c->waiting_end = &c->waiting;
    while (w != NULL) {
        struct waiting *next = w->next;
        struct err err = {0};
        if (b == NULL)
            err = c->why;
        if (w->abandoned)
            (void)err_set(&err, ERR_STATE, "the session was given up while it was being made");
        if (w->spec == NULL)
            w->done(w->arg, b != NULL ? NULL : &err);
        else if (b == NULL || w->abandoned ||
                 b->ops->create(b, w->spec, w->created, w->lost, w->arg, &err) < 0)
            w->created(w->arg, NULL, &err);
        free(w);
        w = next;
    }
}

static void end_round(struct choice *c, struct candidate *found)
{
    c->round = false;
    c->quiet_till = loop_now(c->loop) + CALM_NS;
    if (found == NULL) {
        explain(c);
        if (choice_sole(c) == NULL)
            loop_timer_start(c->loop, &c->retry, c->pause_ns, on_retry);
        c->pause_ns = c->pause_ns * 2 < PAUSE_MAX_NS ? c->pause_ns * 2 : PAUSE_MAX_NS;
    }
    serve(c, found);
    answer(c);
}

/* True: its turn is over, in one way or the other. */
static bool try(struct candidate *k)
{
    struct err err = {0};
    if (!choice_eligible(k->choice, k) || k->state == CANDIDATE_UP)
        return true;
    if (k->state == CANDIDATE_PROBING)
        return false;
    if (k->state == CANDIDATE_DOWN && loop_now(k->choice->loop) < k->fell + CALM_NS)
        return true; /* somebody has found out just now */
    if (make(k, &err) < 0) {
        move_down(k, &err);
        return true;
    }
    if (choice_probe_busy(&k->probe))
        return true; /* it has not even removed what it was tried with before */
    move(k, CANDIDATE_PROBING);
    choice_probe_start(&k->probe, k->backend);
    return k->state != CANDIDATE_PROBING;
}

static void on_step(struct loop_defer *d);

static void on_ping(void *arg, const struct err *err)
{
    struct candidate *k = arg;
    k->pinging = false;
    if (k->state == CANDIDATE_UP && err == NULL)
        move(k, CANDIDATE_UP);
    else if (k->state == CANDIDATE_UP)
        move_down(k, err);
    if (k->choice->round)
        loop_defer_start(k->choice->loop, &k->choice->step, on_step);
}

/* Whether the one that serves goes on. False: it is being asked. */
static bool confirm(struct candidate *k)
{
    const struct backend_ops *ops = k->backend->ops;
    if (ops->ping == NULL || loop_now(k->choice->loop) < k->proven + FRESH_NS)
        return true;
    if (!k->pinging) {
        k->pinging = true;
        ops->ping(k->backend, on_ping, k);
    }
    return false;
}

/* The one that serves, as long as it is there; then the first that can. */
static void on_step(struct loop_defer *d)
{
    struct choice *c = container_of(d, struct choice, step);
    if (c->serving != NULL && c->serving->state == CANDIDATE_UP) {
        if (confirm(c->serving))
            end_round(c, c->serving);
        return;
    }
    for (; c->at < c->n; c->at++) {
        struct candidate *k = &c->list[c->at];
        if (!try(k))
            return;
        if (choice_eligible(c, k) && k->state == CANDIDATE_UP) {
            end_round(c, k);
            return;
        }
    }
    end_round(c, NULL);
}

static void on_probed(struct choice_probe *p, const struct err *err)
{
    struct candidate *k = container_of(p, struct candidate, probe);
    k->ran = err == NULL;
    k->refuted = err != NULL && p->made;
    if (err == NULL)
        move(k, CANDIDATE_UP);
    else
        move_down(k, err);
    if (k->choice->round)
        loop_defer_start(k->choice->loop, &k->choice->step, on_step);
}

void choice_prove(struct choice *c)
{
    struct candidate *k = c->serving;
    if (k != NULL && k->state == CANDIDATE_UP && !k->ran && !choice_probe_busy(&k->probe))
        move(k, CANDIDATE_UNTRIED);
}

static void start_round(struct choice *c)
{
    if (c->round)
        return;
    c->round = true;
    c->at = 0;
    loop_timer_stop(&c->retry);
    loop_defer_start(c->loop, &c->step, on_step);
}

static void wait_for(struct choice *c, const struct waiting *who)
{
    struct waiting *w = xnew(struct waiting);
    *w = *who;
    w->next = NULL;
    *c->waiting_end = w;
    c->waiting_end = &w->next;
}

/* Nothing serves, and that was found out just now. */
static bool calm(const struct choice *c)
{
    return c->serving == NULL && !c->round && loop_now(c->loop) < c->quiet_till;
}

/* What the daemon asks. */

static int create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                  backend_lost_fn *lost, void *arg, struct err *err)
{
    struct choice *c = from(b);
    struct candidate *k = choice_sole(c);
    if (k != NULL && k->backend == NULL && make(k, err) < 0) {
        move_down(k, err);
        return err_set(err, ERR_UNAVAILABLE, "%s cannot be used: %s", k->def->name, k->why.msg);
    }
    if (k == NULL)
        k = c->serving;
    if (k != NULL)
        return k->backend->ops->create(k->backend, spec, created, lost, arg, err);
    if (calm(c)) {
        *err = c->why;
        return err_code_errno(err->code);
    }
    wait_for(c, &(struct waiting){.spec = spec, .created = created, .lost = lost, .arg = arg});
    start_round(c);
    return 0;
}

static int place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                 void *arg, struct err *err)
{
    struct choice *c = from(b);
    struct candidate *k = c->serving;
    for (size_t i = 0; k == NULL && i < c->n; i++)
        if (c->list[i].backend != NULL)
            k = &c->list[i];
    if (k == NULL || k->backend->ops->place == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the backend cannot look at other users' processes");
    return k->backend->ops->place(k->backend, want, fn, arg, err);
}

static void abandon(struct backend *b, void *arg)
{
    struct choice *c = from(b);
    for (struct waiting *w = c->waiting; w != NULL; w = w->next)
        w->abandoned = w->abandoned || (w->spec != NULL && w->arg == arg);
    for (size_t i = 0; i < c->n; i++) { /* whoever has it */
        struct backend *k = c->list[i].backend;
        if (k != NULL && k->ops->abandon != NULL)
            k->ops->abandon(k, arg);
    }
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int adopt(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err)
{
    (void)b, (void)spec, (void)created, (void)lost, (void)arg;
    return err_set(err, ERR_NOT_FOUND, "'%.60s' belongs to no backend of this daemon", name);
}

static struct backend *find(struct backend *b, const char *name)
{
    struct candidate *k = find_candidate(from(b), name);
    struct err err = {0};
    return k != NULL && make(k, &err) == 0 ? k->backend : NULL;
}

static bool limit(struct backend *b, const char *name)
{
    struct choice *c = from(b);
    bool known = name[0] == '\0' || find_candidate(c, name) != NULL;
    if (str_eq(c->only, name))
        return known;
    free(c->only);
    c->only = xstrdup(name);
    c->quiet_till = 0;
    if (c->serving == NULL || !choice_eligible(c, c->serving)) {
        explain(c);
        serve(c, NULL);
    }
    if (c->round)
        c->at = 0; /* from the beginning: others may serve now */
    return known;
}

static int available(const struct backend *b, struct err *err)
{
    struct choice *c = from(b);
    if (c->serving != NULL && c->serving->state == CANDIDATE_UP)
        return 0;
    if (!c->round)
        explain(c);
    if (err != NULL)
        *err = c->why;
    return err_code_errno(c->why.code);
}

/* Those who only want to know, and need not wait for it. */
static void on_tell(struct loop_defer *d)
{
    struct choice *c = container_of(d, struct choice, tell);
    if (!c->round)
        answer(c);
}

static void probe(struct backend *b, backend_done_fn *done, void *arg)
{
    struct choice *c = from(b);
    bool told = calm(c);
    wait_for(c, &(struct waiting){.done = done, .arg = arg});
    if (told)
        loop_defer_start(c->loop, &c->tell, on_tell);
    else
        start_round(c);
}

/* What has worked for somebody is proven. What has failed somebody has to prove itself again, and
 * nobody waits for one that is not there. */
static void note(struct backend *b, const struct err *err)
{
    struct choice *c = from(b);
    struct candidate *sole = choice_sole(c), *k = sole != NULL ? sole : c->serving;
    if (k == NULL || k->backend == NULL || k->state == CANDIDATE_PROBING)
        return;
    if (err == NULL && k->refuted)
        return; /* sandboxes can be made; commands do not run in them */
    if (err == NULL) {
        move(k, CANDIDATE_UP);
        serve(c, k);
        return;
    }
    if (err->code == ERR_UNAVAILABLE) {
        move_down(k, err);
        explain(c);
        serve(c, NULL);
    } else if (err->code == ERR_BACKEND && k->state == CANDIDATE_UP) {
        move(k, CANDIDATE_UNTRIED);
    } else {
        return;
    }
    if (sole == NULL && loop_now(c->loop) >= c->quiet_till)
        start_round(c);
    else if (sole == NULL && c->retry.loop == NULL)
        loop_timer_start(c->loop, &c->retry, CALM_NS, on_retry);
}

static void let_go(struct choice *c, bool detach)
{
    loop_defer_stop(&c->step);
    loop_defer_stop(&c->tell);
    loop_timer_stop(&c->retry);
    for (size_t i = 0; i < c->n; i++) {
        struct backend *b = c->list[i].backend;
        choice_probe_drop(&c->list[i].probe);
        if (b != NULL && detach && b->ops->detach != NULL)
            b->ops->detach(b);
        else if (b != NULL)
            b->ops->free(b);
    }
    for (struct waiting *w = c->waiting, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
    choice_listings_free(c);
    choice_sweeps_free(c);
    free(c->only);
    free(c);
}

static void choice_free(struct backend *b)
{
    let_go(from(b), false);
}

static void choice_detach(struct backend *b)
{
    let_go(from(b), true);
}

/* What a sandbox can do is for its own backend: none of it is here. */
static const struct backend_ops choice_ops = {
    .name = NOTHING,
    .create = create,
    .abandon = abandon,
    .adopt = adopt,
    .sweep = choice_sweep,
    .list = choice_list,
    .place = place,
    .doctor = choice_doctor,
    .free = choice_free,
    .detach = choice_detach,
    .find = find,
    .limit = limit,
    .available = available,
    .probe = probe,
    .note = note,
};

struct backend *choice_new(struct loop *loop, const struct choice_options *options)
{
    struct choice *c = xnew(struct choice);
    assert(options->n > 0 && options->n <= CHOICE_MAX);
    c->base.ops = &c->ops;
    c->ops = choice_ops;
    c->loop = loop;
    c->options = *options;
    c->n = options->n;
    c->only = xstrdup("");
    c->waiting_end = &c->waiting;
    c->pause_ns = PAUSE_MIN_NS;
    for (size_t i = 0; i < c->n; i++) {
        struct candidate *k = &c->list[i];
        k->def = &options->candidates[i];
        k->choice = c;
        k->probe = (struct choice_probe){.loop = loop, .def = k->def, .done = on_probed};
    }
    c->ops.name = c->n == 1 ? c->list[0].def->name : NOTHING;
    c->ops.own_images = true;
    explain(c);
    return &c->base;
}

int choice_make(struct backend *b, const char *name, struct err *err)
{
    struct candidate *k = find_candidate(from(b), name);
    assert(k != NULL);
    int r = make(k, err);
    if (r < 0)
        move_down(k, err);
    return r;
}

int choice_try_now(struct backend *b, const char *name, struct err *err)
{
    struct choice *c = from(b);
    struct candidate *k = find_candidate(c, name);
    int r = 0;
    assert(k != NULL && !c->round);
    while (r >= 0 && !try(k))
        r = loop_turn(c->loop, -1);
    if (r < 0)
        return err_sys(err, -r, "event loop");
    if (k->state == CANDIDATE_UP) {
        serve(c, k);
        return 0;
    }
    start_round(c); /* of the others, once the loop runs */
    *err = k->why;
    return err_code_errno(err->code);
}
