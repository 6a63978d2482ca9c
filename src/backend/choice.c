/* SPDX-License-Identifier: Apache-2.0 */

/* Tries the candidates in rounds, lets the first that works serve, and routes calls to it. What
 * earlier daemons left is listed and swept on all of them. */

#include "backend/choice.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/choice_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "loop/loop.h"

#define CALM_NS (1ULL * NSEC_PER_SEC) /* between two rounds that calls have begun */
#define PAUSE_MIN_NS (2ULL * NSEC_PER_SEC)
#define PAUSE_MAX_NS (60ULL * NSEC_PER_SEC)
#define FRESH_NS (3ULL * NSEC_PER_SEC) /* how long what was seen counts without another look */
#define NOTHING "auto"
#define SWEEP_PATIENCE_NS (3ULL * NSEC_PER_SEC) /* that a start has with leftovers */

/* A caller that waits for the end of a round: for a sandbox, or only for the result. */
struct waiting {
    TAILQ_ENTRY(waiting) entry;
    const struct spec *spec; /* borrowed; NULL: only the result */
    backend_created_fn *created;
    backend_lost_fn *lost;
    backend_done_fn *done;
    void *arg;
    bool abandoned; /* the sandbox is not wanted any more */
};

/* A list or a sweep that several candidates work on. */
struct errand {
    LIST_ENTRY(errand) entry;
    struct choice *choice;  /* borrowed */
    backend_found_fn *each; /* of a list */
    backend_done_fn *done;  /* NULL: told already */
    void *arg;
    struct errand_part {
        struct errand *errand;
        struct choice_member *candidate;
        bool must; /* its error is the errand's */
    } parts[CHOICE_MAX];
    size_t pending; /* answers that are to come, and ours while they are asked for */
    struct err err; /* the first that counts */
    struct loop_timer timer;
    struct loop_defer defer;
};

#define TO(s) (1U << CANDIDATE_##s)
static const unsigned moves[CANDIDATE_STATE_MAX] = {
    [CANDIDATE_UNTRIED] = TO(PROBING) | TO(UP) | TO(DOWN),
    [CANDIDATE_PROBING] = TO(UP) | TO(DOWN),
    [CANDIDATE_UP] = TO(UP) | TO(UNTRIED) | TO(DOWN),
    [CANDIDATE_DOWN] = TO(PROBING) | TO(UP) | TO(DOWN),
};

static struct choice *choice_of(const struct backend *b)
{
    return container_of((struct backend *)(uintptr_t)b, struct choice, base);
}

static void candidate_move(struct choice_member *k, enum candidate_state to)
{
    STATE_MOVE(k->state, moves, to);
    if (to == CANDIDATE_UP)
        k->proven = loop_now(k->choice->loop);
}

static void candidate_down(struct choice_member *k, const struct err *why)
{
    k->why = *why;
    k->fell = loop_now(k->choice->loop);
    candidate_move(k, CANDIDATE_DOWN);
}

static struct choice_member *candidate_find(struct choice *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (str_eq(c->list[i].def->name, name))
            return &c->list[i];
    return NULL;
}

bool choice_eligible(const struct choice *c, const struct choice_member *k)
{
    return c->only[0] == '\0' || str_eq(c->only, k->def->name);
}

static struct choice_member *find_sole(struct choice *c)
{
    struct choice_member *sole = NULL;
    for (size_t i = 0; i < c->n; i++) {
        if (!choice_eligible(c, &c->list[i]))
            continue;
        if (sole != NULL)
            return NULL;
        sole = &c->list[i];
    }
    return sole;
}

static int candidate_make(struct choice_member *k, struct err *err)
{
    const struct choice *c = k->choice;
    if (k->backend != NULL)
        return 0;
    return k->def->make(c->options.arg, c->loop, k->def->name, &k->backend, err);
}

/* Removes what is left on a backend that begins to serve; no caller waits for that. */
static void on_swept_late(void *arg, const struct err *err)
{
    struct choice_member *k = arg;
    k->swept = err == NULL; /* else again when it serves */
    if (err != NULL)
        log_debug(NULL, "what is left on %s: %s; ignoring", k->def->name, err->msg);
}

static void sweep_late(struct choice_member *k)
{
    struct err err = {0};
    if (!k->choice->sweeping || k->swept || k->backend->ops->sweep == NULL)
        return;
    k->swept = true;
    if (k->backend->ops->sweep(k->backend, on_swept_late, k, &err) < 0)
        on_swept_late(k, &err);
}

/* The one that serves. */

static void serve(struct choice *c, struct choice_member *k)
{
    const struct choice_member *sole = find_sole(c);
    bool same = c->serving == k;
    c->serving = k;
    if (k != NULL) {
        c->ops.name = k->def->name;
        c->ops.own_images = k->backend->ops->own_images;
        c->pause_ns = PAUSE_MIN_NS;
        loop_timer_stop(&c->retry);
        sweep_late(k);
    } else {
        c->ops.name = sole != NULL ? sole->def->name : NOTHING;
        c->ops.own_images = true; /* unknown until one serves */
    }
    if (!same && c->options.changed != NULL)
        c->options.changed(c->options.arg, k != NULL ? k->def->name : NULL,
                           k != NULL ? NULL : &c->why);
}

/* Ends the text after a clause where one ends in its second half, else after a word: half a
 * sentence would leave out what it is about. */
static void shorten(char *text, size_t max)
{
    static const char more[] = " …";

    if (strlen(text) <= max)
        return;
    const size_t most = utf8_boundary(text, max - sizeof(more) + 1);
    size_t end = most;
    while (end > most / 2 && strchr(";:,.(", text[end]) == NULL)
        end--;
    if (end <= most / 2)
        for (end = most; end > most / 2 && text[end] != ' ';)
            end--;
    memcpy(text + end, more, sizeof(more));
}

/* "native: …; docker: …": each cause has its share of the room. */
static void explain(struct choice *c)
{
    char text[sizeof(c->why.msg)] = "";
    size_t n = 0, used = 0;
    for (size_t i = 0; i < c->n; i++)
        n += choice_eligible(c, &c->list[i]);
    size_t share = n > 0 ? (sizeof(text) - 70) / n : 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct choice_member *k = &c->list[i];
        if (!choice_eligible(c, k))
            continue;
        const char *why = k->state == CANDIDATE_DOWN ? k->why.msg : "not tried yet";
        char one[sizeof(text)];
        size_t name = strlen(k->def->name); /* some begin with it by themselves */
        if (str_starts(why, k->def->name) && why[name] == ' ')
            (void)snprintf(one, sizeof(one), "%s", why);
        else
            (void)snprintf(one, sizeof(one), "%s: %s", k->def->name, why);
        shorten(one, share);
        if (str_fmt(text + used, sizeof(text) - used, "%s%s", used > 0 ? "; " : "", one) >= 0)
            used = strlen(text);
    }
    (void)err_set(&c->why, ERR_UNAVAILABLE,
                  "no backend can make a sandbox (%s); `box doctor` shows all reasons",
                  used > 0 ? text : "there is none of that name");
}

static void round_start(struct choice *c);

static void on_retry(struct loop_timer *t)
{
    round_start(container_of(t, struct choice, retry));
}

/* Callers that come while these are answered wait for the next round. */
static void answer_waiting(struct choice *c)
{
    struct backend *b = c->serving != NULL ? c->serving->backend : NULL;
    TAILQ_HEAD(, waiting) all = TAILQ_HEAD_INITIALIZER(all);
    struct waiting *w;
    TAILQ_CONCAT(&all, &c->waiting, entry);
    while ((w = TAILQ_FIRST(&all)) != NULL) {
        struct err err = {0};
        TAILQ_REMOVE(&all, w, entry);
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
    }
}

static void round_end(struct choice *c, struct choice_member *found)
{
    c->round = false;
    c->quiet_till = loop_now(c->loop) + CALM_NS;
    if (found == NULL) {
        explain(c);
        if (find_sole(c) == NULL)
            loop_timer_start(c->loop, &c->retry, c->pause_ns, on_retry);
        c->pause_ns = c->pause_ns * 2 < PAUSE_MAX_NS ? c->pause_ns * 2 : PAUSE_MAX_NS;
    }
    serve(c, found);
    answer_waiting(c);
}

/* True: its turn is over, in one way or the other. */
static bool candidate_try(struct choice_member *k)
{
    struct err err = {0};
    if (!choice_eligible(k->choice, k) || k->state == CANDIDATE_UP)
        return true;
    if (k->state == CANDIDATE_PROBING)
        return false;
    if (k->state == CANDIDATE_DOWN && loop_now(k->choice->loop) < k->fell + CALM_NS)
        return true; /* found out just now */
    if (candidate_make(k, &err) < 0) {
        candidate_down(k, &err);
        return true;
    }
    if (probe_busy(&k->probe))
        return true; /* it has not even removed what it was tried with before */
    candidate_move(k, CANDIDATE_PROBING);
    probe_start(&k->probe, k->backend);
    return k->state != CANDIDATE_PROBING;
}

static void on_step(struct loop_defer *d);

static void on_ping(void *arg, const struct err *err)
{
    struct choice_member *k = arg;
    k->pinging = false;
    if (k->state == CANDIDATE_UP && err == NULL)
        candidate_move(k, CANDIDATE_UP);
    else if (k->state == CANDIDATE_UP)
        candidate_down(k, err);
    if (k->choice->round)
        loop_defer_start(k->choice->loop, &k->choice->step, on_step);
}

/* Whether the one that serves goes on. False: it is being asked. */
static bool candidate_confirm(struct choice_member *k)
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
    if (!c->round) {
        answer_waiting(c); /* they only wanted to know, and it was known */
        return;
    }
    if (c->serving != NULL && c->serving->state == CANDIDATE_UP) {
        if (candidate_confirm(c->serving))
            round_end(c, c->serving);
        return;
    }
    for (; c->at < c->n; c->at++) {
        struct choice_member *k = &c->list[c->at];
        if (!candidate_try(k))
            return;
        if (choice_eligible(c, k) && k->state == CANDIDATE_UP) {
            round_end(c, k);
            return;
        }
    }
    round_end(c, NULL);
}

static void on_probed(struct backend_probe *p, const struct err *err)
{
    struct choice_member *k = container_of(p, struct choice_member, probe);
    k->ran = err == NULL;
    k->refuted = err != NULL && p->made;
    if (err == NULL)
        candidate_move(k, CANDIDATE_UP);
    else
        candidate_down(k, err);
    if (k->choice->round)
        loop_defer_start(k->choice->loop, &k->choice->step, on_step);
}

void choice_demand_proof(struct choice *c)
{
    struct choice_member *k = c->serving;
    if (k != NULL && k->state == CANDIDATE_UP && !k->ran && !probe_busy(&k->probe))
        candidate_move(k, CANDIDATE_UNTRIED);
}

static void round_start(struct choice *c)
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
    TAILQ_INSERT_TAIL(&c->waiting, w, entry);
}

/* Nothing serves, and that was found out just now. */
static bool is_calm(const struct choice *c)
{
    return c->serving == NULL && !c->round && loop_now(c->loop) < c->quiet_till;
}

/* What the daemon asks. */

static int choice_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                         backend_lost_fn *lost, void *arg, struct err *err)
{
    struct choice *c = choice_of(b);
    struct choice_member *k = find_sole(c);
    if (k != NULL && k->backend == NULL && candidate_make(k, err) < 0) {
        candidate_down(k, err);
        return err_set(err, ERR_UNAVAILABLE, "%s cannot be used: %s", k->def->name, k->why.msg);
    }
    if (k == NULL)
        k = c->serving;
    if (k != NULL)
        return k->backend->ops->create(k->backend, spec, created, lost, arg, err);
    if (is_calm(c)) {
        *err = c->why;
        return err_code_errno(err->code);
    }
    wait_for(c, &(struct waiting){.spec = spec, .created = created, .lost = lost, .arg = arg});
    round_start(c);
    return 0;
}

static int choice_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                        void *arg, struct err *err)
{
    struct choice *c = choice_of(b);
    struct choice_member *k = c->serving;
    for (size_t i = 0; k == NULL && i < c->n; i++)
        if (c->list[i].backend != NULL)
            k = &c->list[i];
    if (k == NULL || k->backend->ops->place == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the backend cannot look at other users' processes");
    return k->backend->ops->place(k->backend, want, fn, arg, err);
}

static void choice_abandon(struct backend *b, void *arg)
{
    struct choice *c = choice_of(b);
    struct waiting *w;
    TAILQ_FOREACH (w, &c->waiting, entry)
        w->abandoned = w->abandoned || (w->spec != NULL && w->arg == arg);
    for (size_t i = 0; i < c->n; i++) { /* the one that makes it is not recorded */
        struct backend *k = c->list[i].backend;
        if (k != NULL && k->ops->abandon != NULL)
            k->ops->abandon(k, arg);
    }
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int choice_adopt(struct backend *b, const char *name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err)
{
    (void)b, (void)spec, (void)created, (void)lost, (void)arg;
    return err_set(err, ERR_NOT_FOUND, "'%.60s' belongs to no backend of this daemon", name);
}

static struct backend *choice_find(struct backend *b, const char *name)
{
    struct choice_member *k = candidate_find(choice_of(b), name);
    struct err err = {0};
    return k != NULL && candidate_make(k, &err) == 0 ? k->backend : NULL;
}

static bool choice_limit(struct backend *b, const char *name)
{
    struct choice *c = choice_of(b);
    bool known = name[0] == '\0' || candidate_find(c, name) != NULL;
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

static int choice_available(const struct backend *b, struct err *err)
{
    struct choice *c = choice_of(b);
    if (c->serving != NULL && c->serving->state == CANDIDATE_UP)
        return 0;
    if (!c->round)
        explain(c);
    if (err != NULL)
        *err = c->why;
    return err_code_errno(c->why.code);
}

static void choice_probe(struct backend *b, backend_done_fn *done, void *arg)
{
    struct choice *c = choice_of(b);
    bool told = is_calm(c);
    wait_for(c, &(struct waiting){.done = done, .arg = arg});
    if (told)
        loop_defer_start(c->loop, &c->step, on_step);
    else
        round_start(c);
}

/* A creation that worked proves the backend. One that failed obliges the backend to prove itself
 * again; a backend that is not there stops serving at once. */
static void choice_note(struct backend *b, const struct err *err)
{
    struct choice *c = choice_of(b);
    struct choice_member *sole = find_sole(c), *k = sole != NULL ? sole : c->serving;
    if (k == NULL || k->backend == NULL || k->state == CANDIDATE_PROBING)
        return;
    if (err == NULL && k->refuted)
        return; /* sandboxes can be made; commands do not run in them */
    if (err == NULL) {
        candidate_move(k, CANDIDATE_UP);
        serve(c, k);
        return;
    }
    if (err->code == ERR_UNAVAILABLE) {
        candidate_down(k, err);
        explain(c);
        serve(c, NULL);
    } else if (err->code == ERR_BACKEND && k->state == CANDIDATE_UP) {
        candidate_move(k, CANDIDATE_UNTRIED);
    } else {
        return;
    }
    if (sole == NULL && loop_now(c->loop) >= c->quiet_till)
        round_start(c);
    else if (sole == NULL && c->retry.loop == NULL)
        loop_timer_start(c->loop, &c->retry, CALM_NS, on_retry);
}

/* What earlier daemons left, on all candidates. A sole candidate must answer, and so must one that
 * works; others may be absent altogether. */

static void errand_free(struct errand *e)
{
    LIST_REMOVE(e, entry);
    loop_timer_stop(&e->timer);
    loop_defer_stop(&e->defer);
    free(e);
}

static void errand_tell(struct errand *e)
{
    backend_done_fn *done = TAKE_PTR(e->done);
    struct err err = e->err;
    if (done != NULL)
        done(e->arg, err.code != ERR_NONE ? &err : NULL);
}

static void on_errand_end(struct loop_defer *d)
{
    struct errand copy = *container_of(d, struct errand, defer);
    errand_free(container_of(d, struct errand, defer));
    errand_tell(&copy);
}

/* boxd does not serve before this answer, so it does not wait long: the rest goes on by itself. */
static void on_errand_late(struct loop_timer *timer)
{
    errand_tell(container_of(timer, struct errand, timer));
}

static void errand_answered(struct errand *e)
{
    assert(e->pending > 0);
    if (--e->pending == 0)
        loop_defer_start(e->choice->loop, &e->defer, on_errand_end);
}

static void on_part_done(void *arg, const struct err *err)
{
    const struct errand_part *part = arg;
    struct errand *e = part->errand;
    if (e->each == NULL)
        part->candidate->swept = err == NULL;
    if (err != NULL && part->must && e->err.code == ERR_NONE)
        e->err = *err;
    errand_answered(e);
}

static void on_part_found(void *arg, const struct backend_found *found)
{
    const struct errand_part *part = arg;
    part->errand->each(part->errand->arg, found);
}

static struct errand *errand_new(struct choice *c, backend_found_fn *each, backend_done_fn *done,
                                 void *arg)
{
    struct errand *e = xnew(struct errand);
    *e = (struct errand){.choice = c, .each = each, .done = done, .arg = arg, .pending = 1};
    for (size_t i = 0; i < c->n; i++)
        e->parts[i] = (struct errand_part){
            e, &c->list[i], &c->list[i] == find_sole(c) || c->list[i].state == CANDIDATE_UP};
    LIST_INSERT_HEAD(&c->errands, e, entry);
    return e;
}

static int choice_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                       backend_done_fn *done, void *arg, struct err *err)
{
    struct choice *c = choice_of(b);
    const struct choice_member *sole = find_sole(c);
    int r = sole != NULL ? choice_make(b, sole->def->name, err) : 0;
    if (r < 0)
        return r;
    struct errand *e = errand_new(c, each, done, arg);
    for (size_t i = 0; i < c->n; i++) {
        struct backend *k = c->list[i].backend;
        struct err why = {0};
        if (k == NULL || k->ops->list == NULL)
            continue;
        e->pending++;
        if (k->ops->list(k, labels, on_part_found, on_part_done, &e->parts[i], &why) < 0)
            on_part_done(&e->parts[i], &why);
    }
    errand_answered(e);
    return 0;
}

static int choice_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct choice *c = choice_of(b);
    struct errand *e = errand_new(c, NULL, done, arg);
    if (!c->sweeping)
        loop_timer_start(c->loop, &e->timer, SWEEP_PATIENCE_NS, on_errand_late);
    c->sweeping = true;
    for (size_t i = 0; i < c->n; i++) {
        struct choice_member *k = &c->list[i];
        struct err why = {0};
        if (k->backend == NULL || k->backend->ops->sweep == NULL)
            continue;
        k->swept = e->parts[i].must;
        if (!e->parts[i].must) {
            sweep_late(k);
            continue;
        }
        e->pending++;
        if (k->backend->ops->sweep(k->backend, on_part_done, &e->parts[i], &why) < 0)
            on_part_done(&e->parts[i], &why);
    }
    errand_answered(e);
    return 0;
}

/* The backend. */

static void let_go(struct choice *c, bool detach)
{
    loop_defer_stop(&c->step);
    loop_timer_stop(&c->retry);
    for (size_t i = 0; i < c->n; i++) {
        struct backend *b = c->list[i].backend;
        probe_drop(&c->list[i].probe);
        if (b != NULL && detach && b->ops->detach != NULL)
            b->ops->detach(b);
        else if (b != NULL)
            b->ops->free(b);
    }
    struct waiting *w, *next;
    TAILQ_FOREACH_SAFE (w, &c->waiting, entry, next)
        free(w);
    struct errand *e, *next_errand;
    LIST_FOREACH_SAFE (e, &c->errands, entry, next_errand)
        errand_free(e);
    free(c->only);
    free(c);
}

static void choice_free(struct backend *b)
{
    let_go(choice_of(b), false);
}

static void choice_detach(struct backend *b)
{
    let_go(choice_of(b), true);
}

/* What a sandbox can do is for its own backend: none of it is here. */
static const struct backend_ops choice_ops = {
    .name = NOTHING,
    .create = choice_create,
    .abandon = choice_abandon,
    .adopt = choice_adopt,
    .sweep = choice_sweep,
    .list = choice_list,
    .place = choice_place,
    .doctor = choice_doctor,
    .free = choice_free,
    .detach = choice_detach,
    .find = choice_find,
    .limit = choice_limit,
    .available = choice_available,
    .probe = choice_probe,
    .note = choice_note,
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
    TAILQ_INIT(&c->waiting);
    c->pause_ns = PAUSE_MIN_NS;
    for (size_t i = 0; i < c->n; i++) {
        struct choice_member *k = &c->list[i];
        k->def = &options->candidates[i];
        k->choice = c;
        k->probe = (struct backend_probe){
            .loop = loop, .image = k->def->image, .program = k->def->program, .done = on_probed};
    }
    c->ops.name = c->n == 1 ? c->list[0].def->name : NOTHING;
    c->ops.own_images = true;
    explain(c);
    return &c->base;
}

int choice_make(struct backend *b, const char *name, struct err *err)
{
    struct choice_member *k = candidate_find(choice_of(b), name);
    assert(k != NULL);
    int r = candidate_make(k, err);
    if (r < 0)
        candidate_down(k, err);
    return r;
}

int choice_try_now(struct backend *b, const char *name, struct err *err)
{
    struct choice *c = choice_of(b);
    struct choice_member *k = candidate_find(c, name);
    int r = 0;
    assert(k != NULL && !c->round);
    while (r >= 0 && !candidate_try(k))
        r = loop_turn(c->loop, -1);
    if (r < 0)
        return err_sys(err, -r, "event loop");
    if (k->state == CANDIDATE_UP) {
        serve(c, k);
        return 0;
    }
    round_start(c); /* of the others, once the loop runs */
    *err = k->why;
    return err_code_errno(err->code);
}
