/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sessions on the fake backend and on a clock that the test moves: "run until nothing happens"
 * needs no sleeping. */

#include "lib/unit.h"

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/err.h"
#include "fake/fake.h"
#include "lib/fake_clock.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

struct fixture {
    struct fake_clock clock;
    struct loop *loop;
    struct backend *backend;
    struct manager *m;
};

static inline void fixture_start(struct fixture *f, const struct fake_options *fake,
                                 const struct manager_options *options)
{
    static const struct fake_options at_once = {0};
    static const struct manager_options roomy = {.max_sessions = 1000};
    struct err err = {0};
    *f = (struct fixture){0};
    fake_clock_init(&f->clock);
    assert_int_equal(loop_new(&f->clock.clock, &f->loop, &err), 0);
    assert_int_equal(fake_new(f->loop, fake != NULL ? fake : &at_once, &f->backend, &err), 0);
    assert_int_equal(
        manager_new(f->loop, f->backend, options != NULL ? options : &roomy, &f->m, &err), 0);
}

/* In the daemon's order. */
static inline void fixture_stop(struct fixture *f)
{
    f->backend->ops->free(f->backend);
    manager_free(f->m);
    loop_free(f->loop);
}

/* Runs the loop until nothing is left to do at this moment. */
static inline void pump(struct fixture *f)
{
    for (int i = 0; i < 100000; i++)
        if (loop_turn(f->loop, 0) == 0)
            return;
    fail_msg("the loop does not come to rest");
}

static inline void pass(struct fixture *f, uint64_t ns)
{
    pump(f); /* what is under way arms its timers now, not then */
    fake_clock_advance(&f->clock, ns);
    pump(f);
}

static inline struct spec *named_spec(const char *id)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup(id);
    return s;
}

/* What a callback has heard; each is told exactly once. */
struct heard {
    int n;
    struct session *session; /* held */
    struct err err;
};

static inline void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct heard *h = arg;
    h->n++;
    h->session = s;
    h->err = err != NULL ? *err : (struct err){0};
    assert_true((s == NULL) == (err != NULL));
}

static inline void on_gone(void *arg, const struct err *err)
{
    struct heard *h = arg;
    h->n++;
    h->err = err != NULL ? *err : (struct err){0};
}

static inline int acquire_spec(struct fixture *f, struct spec *spec, uint64_t given,
                               struct heard *h, struct err *err)
{
    *h = (struct heard){0};
    int r = manager_acquire(f->m, &spec, given, 0, on_ready, h, err);
    assert_true((r == 0) == (spec == NULL)); /* taken on success only */
    spec_free(spec);
    assert_int_equal(h->n, 0); /* never from inside the call */
    return r;
}

static inline void acquire_id(struct fixture *f, const char *id, struct heard *h)
{
    struct err err = {0};
    assert_int_equal(acquire_spec(f, named_spec(id), 0, h, &err), 0);
}

static inline void delete_id(struct fixture *f, const char *id, struct heard *h)
{
    struct err err = {0};
    *h = (struct heard){0};
    assert_int_equal(manager_delete(f->m, id, on_gone, h, &err), 0);
    assert_int_equal(h->n, 0);
}

static inline void give_back(struct heard *h)
{
    assert_int_equal(h->n, 1);
    assert_non_null(h->session);
    session_release(h->session);
    h->session = NULL;
}

static inline struct session *ready_session(struct fixture *f, const char *id)
{
    struct heard h;
    acquire_id(f, id, &h);
    pump(f);
    assert_int_equal(h.n, 1);
    assert_non_null(h.session);
    return h.session;
}
