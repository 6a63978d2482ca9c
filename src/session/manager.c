/* SPDX-License-Identifier: Apache-2.0 */

/* Finds or makes a session for a caller, deletes sessions, and makes the manager itself. */

#include "session/manager.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "policy/share.h"
#include "session/session_internal.h"
#include "spec/spec.h"

#define WAITERS_MAX 4096U

static int check_image(const struct manager *m, const struct spec *spec, struct err *err)
{
    if (!m->options.strict_images || m->backend->ops->own_images || str_eq(spec->image, "host"))
        return 0;
    return err_missing(
        err, ERR_THING_IMAGE,
        "image '%.100s' is not available: there is no image store; use image 'host', or "
        "set image_policy: "
        "fallback",
        spec->image);
}

/* What a session cannot be made with, whatever the backend. */
static int check_makeable(const struct manager *m, const struct spec *spec, struct err *err)
{
    int r = hostpath_check(spec, err);
    return r < 0 ? r : check_image(m, spec, err);
}

static int create(struct manager *m, struct waiter *w, struct err *err)
{
    if (m->n_sessions >= m->options.max_sessions)
        return err_set(err, ERR_LIMIT, "Box session capacity reached (%zu)",
                       m->options.max_sessions);
    int r = shares_check(m->options.shares, w->spec->own.owner, SHARE_SESSIONS, err);
    if (r == 0)
        r = check_makeable(m, w->spec, err);
    if (r < 0)
        return r;
    struct session *s = session_new(m, w->spec);
    r = session_create(s, err);
    if (r < 0) {
        m->metrics.sessions_failed++;
        s->spec = xnew(struct spec); /* the other stays the waiter's */
        s->spec->session_id = xstrdup(w->spec->session_id);
        session_unlist(s);
        session_release(s);
        return r;
    }
    w->spec = NULL;
    waiter_add(s, w);
    return 0;
}

/* It is to be made anew with other mounts, in its turn: those who came before get it first, and
 * what they run ends first. */
static void remount(struct session *s, struct waiter *w, bool queued)
{
    if (!s->retiring)
        log_info(session_id(s), "extra_mounts changed, recreating");
    s->retiring = true;
    waiter_add(s, w);
    if (s->state != SESSION_READY)
        return; /* woken when it is made */
    if (!queued)
        waiters_wake(s, NULL, NULL); /* behind those whose answers are on their way */
    else if (s->execs == 0)
        session_stop(s);
}

/* What becomes of a session when others than its extra mounts are asked for. */
enum mount_change {
    MOUNTS_FIT, /* or nobody minds */
    MOUNTS_RECREATE,
    MOUNTS_CONFLICT,
};

static enum mount_change mount_change(const struct session *s, const struct waiter *w)
{
    if (!(w->flags & (ACQUIRE_REMOUNT | ACQUIRE_KEEP_MOUNTS)) ||
        session_same_mounts(s->spec, w->spec))
        return MOUNTS_FIT;
    if (!(w->flags & ACQUIRE_KEEP_MOUNTS))
        return MOUNTS_RECREATE;
    /* One that is about to go is no reason to refuse what comes after it. */
    return s->retiring ? MOUNTS_FIT : MOUNTS_CONFLICT;
}

static int refuse_mounts(const struct session *s, struct err *err)
{
    if (s->spec->own.expires_ns > 0)
        return err_set(err, ERR_CONFLICT, "session '%.100s' is a chat's: its mounts stay",
                       session_id(s));
    return err_set(err, ERR_CONFLICT,
                   "Box mounts differ from this session's immutable mount set; acquire a Box with "
                   "a distinct reuse key for different host mounts. The existing session was "
                   "preserved.");
}

int manager_acquire_for(struct manager *m, struct waiter *w, bool queued, struct err *err)
{
    struct session *s = session_lookup(m, w->spec->session_id);
    if (m->closing)
        return err_set(err, ERR_STATE, "boxd is shutting down");
    if (s == NULL)
        return create(m, w, err);
    if (s->state == SESSION_STOPPING || s->delete_asked) {
        waiter_add(s, w); /* keeps its spec: the name is taken again when it is free */
        return 0;
    }
    /* What it differs from may be about to go. */
    int r = s->retiring ? 0 : session_check_same(s, w->spec, w->given, err);
    if (r < 0)
        return r;
    enum mount_change change = mount_change(s, w);
    if (change == MOUNTS_CONFLICT ||
        (change == MOUNTS_RECREATE && s->spec->own.expires_ns > 0)) /* a chat's */
        return refuse_mounts(s, err);
    if (change == MOUNTS_RECREATE) {
        r = check_makeable(m, w->spec, err); /* before the old one is ended for it */
        if (r == 0)
            remount(s, w, queued);
        return r;
    }
    waiter_add(s, w);
    if (s->retiring)
        return 0; /* behind the one who waits to make it anew */
    spec_free(w->spec);
    w->spec = NULL;
    session_touch(s);
    if (s->state == SESSION_READY)
        waiters_wake(s, NULL, NULL);
    return 0;
}

/* NOLINTNEXTLINE(readability-function-size): a caller says what, how, and who hears of it. */
int manager_acquire(struct manager *m, struct spec **spec, uint64_t given, unsigned flags,
                    session_ready_fn *ready, void *arg, struct err *err)
{
    if (m->n_waiters >= WAITERS_MAX)
        return err_set(err, ERR_LIMIT, "too many requests are waiting for sessions; try again");
    struct waiter *w = waiter_new(m, arg);
    w->spec = *spec;
    w->given = given;
    w->flags = flags;
    w->ready = ready;
    int r = manager_acquire_for(m, w, false, err);
    if (r < 0) {
        w->spec = NULL; /* stays the caller's */
        waiter_free(w);
        return r;
    }
    *spec = NULL;
    return 0;
}

int manager_delete(struct manager *m, const char *id, session_gone_fn *gone, void *arg,
                   struct err *err)
{
    struct session *s = session_lookup(m, id);
    if (s == NULL)
        return err_missing(err, ERR_THING_SESSION, "session %s not found", id);
    for (struct waiter *o = s->waiters.first; o != NULL && s->state == SESSION_CREATING;
         o = o->next)
        if (o->ready != NULL && o->spec == NULL)
            (void)err_set(&o->err, ERR_STATE, "session '%s' was deleted while it was being created",
                          id);
    struct waiter *w = waiter_new(m, arg);
    w->gone = gone;
    waiter_add(s, w);
    session_stop(s);
    return 0;
}

int manager_new(struct loop *loop, struct backend *backend, const struct manager_options *options,
                struct manager **ret, struct err *err)
{
    struct manager *m = xnew(struct manager);
    m->loop = loop;
    m->backend = backend;
    m->options = *options;
    m->metrics.started_real = clock_real(loop_clock(loop));
    reap_start(m);
    *ret = m;
    return 0;
}

void manager_free(struct manager *m)
{
    if (m == NULL)
        return;
    durable_flush(m);
    loop_timer_stop(&m->reaper);
    loop_timer_stop(&m->flusher);
    loop_defer_stop(&m->adopt.defer);
    for (struct waiter *w = m->waiters, *next; w != NULL; w = next) {
        next = w->all_next;
        waiter_free(w);
    }
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        processes_drop_all(s, false);
        session_unlist(s);
        session_release(s);
    }
    for (struct notice *n = m->notices, *next; n != NULL; n = next) {
        next = n->all_next;
        notice_free(n);
    }
    free(m);
}

void manager_set_caps(struct manager *m, size_t max_sessions, size_t max_processes,
                      size_t max_exited, uint64_t exited_ns)
{
    m->options.max_sessions = max_sessions;
    m->options.max_processes = max_processes;
    m->options.max_exited = max_exited;
    m->options.exited_ns = exited_ns;
    reap_exited(m);
    reap_start(m);
}

const struct manager_options *manager_get_options(const struct manager *m)
{
    return &m->options;
}

struct session *manager_find(struct manager *m, const char *id)
{
    struct session *s = session_lookup(m, id);
    return s == NULL || s->state == SESSION_STOPPING || s->delete_asked ? NULL : s;
}

bool manager_has(struct manager *m, const struct spec *spec)
{
    const struct session *s = manager_find(m, spec->session_id);
    return s != NULL && s->state == SESSION_READY && !s->retiring &&
           session_same_mounts(s->spec, spec);
}

size_t manager_count(const struct manager *m)
{
    return m->n_sessions;
}

struct session *manager_next(struct manager *m, struct session *after)
{
    return after == NULL ? m->first : after->next;
}

struct backend *manager_backend(const struct manager *m)
{
    return m->backend;
}

struct loop *manager_loop(const struct manager *m)
{
    return m->loop;
}

struct metrics *manager_metrics(struct manager *m)
{
    return &m->metrics;
}
