/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one session, from creation or adoption to its end. */

#include <assert.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "policy/share.h"
#include "session/session_internal.h"
#include "spec/spec.h"

static const struct {
    const char *name;
    unsigned next; /* set of states this one may move to */
} states[SESSION_STATE_MAX] = {
    [SESSION_CREATING] = {"creating", 1U << SESSION_READY | 1U << SESSION_STOPPING},
    [SESSION_READY] = {"ready", 1U << SESSION_STOPPING},
    [SESSION_STOPPING] = {"stopping", 0},
};

static void session_move(struct session *s, enum session_state to)
{
    assert(states[s->state].next & (1U << to));
    s->state = to;
}

const char *session_state_name(enum session_state state)
{
    return states[state].name;
}

struct session *session_lookup(struct manager *m, const char *id)
{
    struct session *s = m->buckets[str_hash(id) % SESSION_BUCKETS];
    while (s != NULL && !str_eq(s->spec->session_id, id))
        s = s->bucket_next;
    return s;
}

struct session *session_new(struct manager *m, struct spec *spec)
{
    struct session *s = xnew(struct session);
    size_t b = str_hash(spec->session_id) % SESSION_BUCKETS;
    s->m = m;
    s->refs = 1;
    s->spec = spec;
    s->request = log_scope_now();
    s->created_real =
        spec->own.created_ns > 0 ? spec->own.created_ns : clock_real(loop_clock(m->loop));
    s->begun = loop_now(m->loop);
    s->next_number = s->numbers_end = 1;
    s->bucket_next = m->buckets[b];
    m->buckets[b] = s;
    s->prev = m->last;
    if (m->last != NULL)
        m->last->next = s;
    else
        m->first = s;
    m->last = s;
    m->n_sessions++;
    s->share = shares_take(m->options.shares, spec->own.owner, SHARE_SESSIONS);
    session_touch(s);
    return s;
}

void session_unlist(struct session *s)
{
    struct manager *m = s->m;
    struct session **at = &m->buckets[str_hash(s->spec->session_id) % SESSION_BUCKETS];
    while (*at != s)
        at = &(*at)->bucket_next;
    *at = s->bucket_next;
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        m->first = s->next;
    if (s->next != NULL)
        s->next->prev = s->prev;
    else
        m->last = s->prev;
    m->n_sessions--;
    m->n_left -= s->left;
    share_give(TAKE_PTR(s->share), SHARE_SESSIONS);
}

void session_touch(struct session *s)
{
    const struct clock *clock = loop_clock(s->m->loop);
    s->used_real = clock_real(clock);
    s->used_boot = clock_boot(clock);
    durable_touch(s);
    if (s->state == SESSION_READY)
        session_update_deadline(s);
}

/* Who watches is told. */
static void session_tell(const struct session *s, enum event_kind kind)
{
    events_emit(s->m->options.events, &(struct event){.kind = kind, .session = session_id(s)});
}

static void tell_gone(const struct session *s)
{
    static const enum event_kind kinds[METRICS_END_MAX] = {
        [METRICS_DELETED] = EVENT_SESSION_DELETED,
        [METRICS_EXPIRED] = EVENT_SESSION_EXPIRED,
        [METRICS_LOST] = EVENT_SESSION_LOST,
    };
    if (!s->told)
        return;
    s->m->metrics.sessions_ended[s->end]++;
    session_tell(s, kinds[s->end]);
}

static void on_destroyed(void *arg, const struct err *err)
{
    struct session *s = arg;
    struct manager *m = s->m;
    LOG_REQUEST(s->request.id);
    if (err != NULL)
        log_error(session_id(s), "destroy: %s", err->msg);
    durable_drop_session(s);
    session_unlist(s);
    tell_gone(s);
    waiters_wake(s, NULL, err);
    session_release(s);
    /* Behind those who wait for this one: nothing may run after that call. */
    if (m->n_sessions == m->n_left)
        waiters_wake_all_gone(m);
}

static void destroy(struct session *s)
{
    struct sandbox *sb = s->sandbox;
    processes_drop_all(s, true);
    s->sandbox = NULL;
    sb->backend->ops->destroy(sb, on_destroyed, s);
}

/* The sandbox is gone with everything in it: there is nothing to be gentle with. */
static void on_lost(void *arg)
{
    struct session *s = arg;
    log_warn(session_id(s), "the sandbox died by itself; removing the session");
    if (s->sandbox == NULL)
        return; /* being destroyed already */
    if (s->state != SESSION_STOPPING) {
        session_move(s, SESSION_STOPPING);
        s->end = METRICS_LOST;
    }
    destroy(s);
}

void session_fail(struct session *s, const struct err *err)
{
    if (s->adopting)
        log_warn(session_id(s), "cannot be taken over from the last boxd: %s; forgetting it",
                 err->msg);
    else
        log_debug(session_id(s), "create: %s", err->msg);
    s->m->metrics.sessions_failed++;
    waiters_wake(s, err, NULL);
    session_move(s, SESSION_STOPPING);
    on_destroyed(s, NULL);
}

/* Made, and the record is written: from here on it is found again after a crash. */
static void ready(struct session *s)
{
    struct metrics *metrics = &s->m->metrics;
    session_move(s, SESSION_READY);
    s->told = true;
    if (s->adopting) {
        metrics->sessions_adopted++;
    } else {
        metrics->sessions_created++;
        hist_add(&metrics->session_create, loop_now(s->m->loop) - s->begun);
        session_touch(s);
        session_tell(s, EVENT_SESSION_CREATED);
    }
    session_update_deadline(s);
    if (s->adopting)
        lease_adopted(s);
    if (s->delete_asked)
        session_stop(s);
    else
        waiters_wake(s, NULL, NULL);
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    struct session *s = arg;
    struct err store_err = {0};
    LOG_REQUEST(s->request.id);
    backend_note(s->m->backend, err);
    if (sb == NULL) {
        session_fail(s, err);
        return;
    }
    s->sandbox = sb;
    if (sb->backend->ops->sandbox_id != NULL)
        s->sandbox_id = xstrdup(sb->backend->ops->sandbox_id(sb));
    if (!s->delete_asked && durable_put_session(s, &store_err) < 0) {
        s->m->metrics.sessions_failed++;
        waiters_wake(s, &store_err, NULL);
        session_move(s, SESSION_STOPPING);
        destroy(s);
        return;
    }
    ready(s);
}

static void on_adopted(void *arg, struct sandbox *sb, const struct err *err)
{
    struct session *s = arg;
    struct manager *m = s->m;
    if (sb == NULL) {
        session_fail(s, err);
    } else {
        s->sandbox = sb;
        adopt_processes(s);
        ready(s);
        s->adopting = false;
    }
    adopt_finished_one(m);
}

int session_create(struct session *s, struct err *err)
{
    struct backend *b = s->m->backend;
    struct err why = {0};
    int r = b->ops->create(b, s->spec, on_created, on_lost, s, &why);
    if (r < 0)
        backend_note(b, &why);
    if (r < 0 && err != NULL)
        *err = why;
    return r;
}

int session_adopt(struct session *s, struct backend *b, const char *sandbox, struct err *err)
{
    s->adopting = true;
    if (b->ops->adopt == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend keeps nothing", b->ops->name);
    return b->ops->adopt(b, sandbox, s->spec, on_adopted, on_lost, s, err);
}

void session_stop(struct session *s)
{
    if (s->state == SESSION_STOPPING)
        return;
    s->request = log_scope_now();
    if (s->state == SESSION_CREATING) {
        struct backend *b = s->m->backend;
        if (!s->delete_asked && !s->adopting && b->ops->abandon != NULL)
            b->ops->abandon(b, s);
        s->delete_asked = true; /* the backend is at work; what it makes goes at once */
        return;
    }
    session_move(s, SESSION_STOPPING);
    processes_stop_all(s);
    if (s->n_running == 0)
        destroy(s);
}

void session_processes_gone(struct session *s)
{
    if (s->state == SESSION_STOPPING && s->sandbox != NULL)
        destroy(s);
}

void session_hold(struct session *s)
{
    s->refs++;
}

void session_release(struct session *s)
{
    assert(s->refs > 0);
    if (--s->refs > 0)
        return;
    loop_timer_stop(&s->lease_timer);
    spec_free(s->spec);
    free(s->sandbox_id);
    free(s->sentence);
    free(s);
}

const char *session_id(const struct session *s)
{
    return s->spec->session_id;
}

const struct spec *session_spec(const struct session *s)
{
    return s->spec;
}

enum session_state session_state(const struct session *s)
{
    return s->state;
}

struct sandbox *session_sandbox(const struct session *s)
{
    return s->state == SESSION_READY ? s->sandbox : NULL;
}

void session_set_quiet(struct session *s)
{
    s->quiet_boot = clock_boot(loop_clock(s->m->loop));
}

bool session_quiet(const struct session *s)
{
    return s->execs == 0 && s->n_running == 0 && s->quiet_boot > s->used_boot;
}

void session_condemn(struct session *s, const struct err *why)
{
    free(s->sentence);
    s->sentence = xstrdup(why->msg);
    s->condemned++;
}

unsigned session_condemned(const struct session *s, const char **ret_why)
{
    *ret_why = s->sentence;
    return s->condemned;
}

const char *session_sandbox_id(const struct session *s)
{
    if (s->sandbox_id != NULL)
        return s->sandbox_id;
    if (s->sandbox == NULL || s->sandbox->backend->ops->sandbox_name == NULL)
        return "";
    return s->sandbox->backend->ops->sandbox_name(s->sandbox);
}

struct manager *session_manager(const struct session *s)
{
    return s->m;
}

uint64_t session_created(const struct session *s)
{
    return s->created_real;
}

uint64_t session_last_used(const struct session *s)
{
    return s->used_real;
}

unsigned session_execs(const struct session *s)
{
    return s->execs;
}

void session_exec_begins(struct session *s)
{
    s->execs++;
    session_touch(s);
}

void session_guest_comes(struct session *s)
{
    s->guests++;
    session_touch(s);
}

void session_guest_leaves(struct session *s)
{
    assert(s->guests > 0);
    s->guests--;
    session_touch(s);
}

void session_exec_ends(struct session *s)
{
    assert(s->execs > 0);
    s->execs--;
    session_touch(s);
    if (s->execs == 0 && s->retiring && s->state == SESSION_READY)
        waiters_wake(s, NULL, NULL); /* whoever wants it made anew */
}
