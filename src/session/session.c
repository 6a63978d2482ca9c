/* SPDX-License-Identifier: Apache-2.0 */

/* The life of one session: its states from creation or adoption to its end, its use, its lease, and
 * when it ends by itself. */

#include <assert.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "policy/share.h"
#include "session/session_internal.h"
#include "spec/spec.h"

static const unsigned moves[SESSION_STATE_MAX] = {
    [SESSION_CREATING] = 1U << SESSION_READY | 1U << SESSION_STOPPING | 1U << SESSION_STOPPED,
    [SESSION_READY] = 1U << SESSION_STOPPING | 1U << SESSION_PAUSED | 1U << SESSION_HALTING,
    [SESSION_PAUSED] = 1U << SESSION_STOPPING | 1U << SESSION_READY | 1U << SESSION_HALTING,
    [SESSION_HALTING] = 1U << SESSION_STOPPED,
    [SESSION_STOPPED] = 1U << SESSION_CREATING | 1U << SESSION_STOPPING,
    [SESSION_STOPPING] = 1U << SESSION_STOPPED,
};

void session_move(struct session *s, enum session_state to)
{
    STATE_MOVE(s->state, moves, to);
}

const char *session_state_name(enum session_state state)
{
    static const char *const names[SESSION_STATE_MAX] = {
        [SESSION_CREATING] = "creating", [SESSION_READY] = "ready",
        [SESSION_STOPPING] = "stopping", [SESSION_PAUSED] = "paused",
        [SESSION_HALTING] = "halting",   [SESSION_STOPPED] = "stopped"};
    return names[state];
}

static void session_update_deadline(struct session *s);
static void lease_adopted(struct session *s);

struct session *session_lookup(struct manager *m, const char *id)
{
    struct session *s;
    LIST_FOREACH (s, TABLE_BUCKET(&m->by_id, str_hash(id)), bucket)
        if (str_eq(s->spec->session_id, id))
            return s;
    return NULL;
}

struct session *session_new(struct manager *m, struct spec *spec)
{
    struct session *s = xnew(struct session);
    s->m = m;
    s->refs = 1;
    s->spec = spec;
    s->request = log_scope_now();
    s->created_real =
        spec->own.created_ns > 0 ? spec->own.created_ns : clock_real(loop_clock(m->loop));
    s->begun = loop_now(m->loop);
    s->next_number = s->numbers_end = 1;
    TAILQ_INIT(&s->processes);
    STAILQ_INIT(&s->waiters);
    TAILQ_INIT(&s->ports);
    LIST_INIT(&s->dials);
    LIST_INIT(&s->hosts);
    TABLE_INSERT(&m->by_id, str_hash(spec->session_id), s, bucket);
    TAILQ_INSERT_TAIL(&m->sessions, s, link);
    m->n_sessions++;
    s->share = shares_take(m->options.shares, spec->own.owner, SHARE_SESSIONS);
    session_touch(s);
    return s;
}

void session_unlist(struct session *s)
{
    struct manager *m = s->m;
    assert(m->n_sessions > 0);
    LIST_REMOVE(s, bucket);
    TAILQ_REMOVE(&m->sessions, s, link);
    m->n_sessions--;
    m->n_stopped -= s->state == SESSION_STOPPED;
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

void session_tell(const struct session *s, enum event_kind kind)
{
    events_emit(s->m->options.events, &(struct event){.kind = kind,
                                                      .session = session_id(s),
                                                      .bound = s->spec->own.bound,
                                                      .uid = s->spec->own.uid});
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
    if (err != NULL && s->discarding) {
        kept_discard_failed(s, err);
        return;
    }
    ports_drop(s);
    durable_drop_session(s);
    session_unlist(s);
    tell_gone(s);
    waiters_wake(s, NULL, err);
    session_release(s);
    /* After the waiters of this session: nothing may run after that call. */
    if (m->n_sessions == m->n_left)
        waiters_wake_all_gone(m);
}

static void session_destroy(struct session *s)
{
    struct sandbox *sb = s->sandbox;
    processes_drop_all(s, true);
    ports_cut(s);
    hosts_close(s);
    s->sandbox = NULL;
    sb->backend->ops->destroy(sb, on_destroyed, s);
}

/* The sandbox is gone with everything in it, so processes cannot be ended gently. */
static void on_lost(void *arg)
{
    struct session *s = arg;
    bool stays = session_durable(s) && s->state != SESSION_STOPPING;
    log_warn(session_id(s), "the sandbox died by itself; %s the session",
             stays ? "stopping" : "removing");
    if (s->sandbox == NULL)
        return; /* being destroyed already */
    if (stays) {
        if (s->state != SESSION_HALTING)
            session_move(s, SESSION_HALTING);
        kept_halt_now(s);
        return;
    }
    if (s->state != SESSION_STOPPING) {
        session_move(s, SESSION_STOPPING);
        s->end = METRICS_LOST;
    }
    session_destroy(s);
}

void session_fail(struct session *s, const struct err *err)
{
    if (session_durable(s) && s->stored) {
        kept_back(s, err);
        return;
    }
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

/* Made, and the record is written: from here on it is found again after a crash. True: callers are
 * told later (hosts_open()). */
static bool ready(struct session *s)
{
    struct metrics *metrics = &s->m->metrics;
    enum hosts_after after = s->adopting     ? HOSTS_ADOPTED
                             : s->restarting ? HOSTS_STARTED
                                             : HOSTS_CREATED;
    session_move(s, SESSION_READY);
    s->told = true;
    if (s->adopting) {
        metrics->sessions_adopted++;
    } else if (s->restarting) {
        s->restarting = false;
        session_touch(s);
        session_tell(s, EVENT_SESSION_STARTED);
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
    else if (s->halt_asked)
        session_halt(s);
    else if (hosts_open(s, after))
        return true;
    else
        waiters_wake(s, NULL, NULL);
    if (s->state == SESSION_READY)
        start_session_ready(s);
    return false;
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    struct session *s = arg;
    struct err store_err = {0};
    LOG_REQUEST(s->request.id);
    backend_note(s->m->backend, err);
    if (sb == NULL) {
        if (!kept_try_again(s, err))
            session_fail(s, err);
        return;
    }
    s->sandbox = sb;
    if (sb->backend->ops->sandbox_id != NULL)
        s->sandbox_id = xstrdup(sb->backend->ops->sandbox_id(sb));
    kept_know(s);
    /* The record of a session that is started again does not change. */
    if (!s->delete_asked && !s->restarting && durable_put_session(s, &store_err) < 0) {
        s->m->metrics.sessions_failed++;
        waiters_wake(s, &store_err, NULL);
        session_move(s, SESSION_STOPPING);
        session_destroy(s);
        return;
    }
    (void)ready(s);
}

static void on_adopted(void *arg, struct sandbox *sb, const struct err *err)
{
    struct session *s = arg;
    struct manager *m = s->m;
    bool later = false;
    if (sb == NULL) {
        session_fail(s, err);
    } else {
        s->sandbox = sb;
        adopt_processes(s);
        later = ready(s);
        s->adopting = false;
        if (sb->paused && s->state == SESSION_READY)
            kept_pause_again(s);
    }
    if (!later)
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

int session_restart(struct session *s, struct backend *b, struct err *err)
{
    return b->ops->start(b, s->kept_name, s->spec, on_created, on_lost, s, err);
}

int session_adopt(struct session *s, struct backend *b, const char *sandbox, struct err *err)
{
    s->adopting = true;
    if (b == NULL)
        return err_set(err, ERR_UNAVAILABLE, "backend '%s' is not there", s->kept_backend);
    if (b->ops->adopt == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend keeps nothing", b->ops->name);
    return b->ops->adopt(b, sandbox, s->spec, on_adopted, on_lost, s, err);
}

/* It is stopped: its files are removed, then the session. */
static void session_discard(struct session *s)
{
    struct backend *b = backend_find(s->m->backend, s->kept_backend);
    struct err err = {0};
    session_move(s, SESSION_STOPPING);
    processes_drop_all(s, true);
    s->m->n_stopped--;
    s->m->n_left -= s->left;
    s->left = false;
    s->discarding = true;
    if (b == NULL || b->ops->discard == NULL)
        (void)err_set(&err, ERR_UNAVAILABLE, "its backend '%s' is not there", s->kept_backend);
    else if (b->ops->discard(b, s->kept_name, on_destroyed, s, &err) == 0)
        return;
    on_destroyed(s, &err);
}

void session_stop(struct session *s)
{
    if (s->state == SESSION_STOPPING)
        return;
    s->request = log_scope_now();
    if (s->state == SESSION_HALTING) {
        s->delete_asked = true;
        return;
    }
    if (s->state == SESSION_STOPPED) {
        session_discard(s);
        return;
    }
    bool frozen = s->state == SESSION_PAUSED; /* nothing in there can end by itself */
    if (s->state == SESSION_CREATING) {
        struct backend *b = s->m->backend;
        if (!s->delete_asked && !s->adopting && !s->restarting && b->ops->abandon != NULL)
            b->ops->abandon(b, s);
        s->delete_asked = true; /* its sandbox is removed as soon as it is made */
        return;
    }
    session_move(s, SESSION_STOPPING);
    if (!frozen)
        processes_stop_all(s);
    if (frozen || s->n_running == 0)
        session_destroy(s);
}

void session_processes_gone(struct session *s)
{
    if (s->state == SESSION_STOPPING && s->sandbox != NULL)
        session_destroy(s);
    else if (s->state == SESSION_HALTING && s->sandbox != NULL)
        kept_halt_now(s);
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
    loop_timer_stop(&s->retry_timer);
    start_done(s);
    ports_drop(s);
    hosts_close(s);
    spec_free(s->spec);
    free(s->sandbox_id);
    free(s->kept_backend);
    free(s->kept_name);
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

void manager_on_busy(struct manager *m, void (*busy)(void *arg), void *arg)
{
    m->busy = busy;
    m->busy_arg = arg;
}

void session_busy(struct session *s)
{
    if (s->m->busy != NULL)
        s->m->busy(s->m->busy_arg);
}

void session_exec_begins(struct session *s)
{
    s->execs++;
    session_touch(s);
    session_busy(s);
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
        waiters_wake(s, NULL, NULL); /* the one that makes it anew */
}

/* Leases --------------------------------------------------------------------------------------- */

static void on_expired(struct loop_timer *t)
{
    struct session *s = container_of(t, struct session, lease_timer);
    if (s->state == SESSION_STOPPING)
        return;
    bool stays = session_durable(s);
    log_info(session_id(s), "no client has held its lease for %u s; %s the session", s->lease_sec,
             stays ? "stopping" : "removing");
    if (stays)
        session_halt(s);
    else
        session_stop(s);
}

static void wait_for_holder(struct session *s)
{
    loop_timer_start(s->m->loop, &s->lease_timer, s->lease_sec * NSEC_PER_SEC, on_expired);
}

int session_lease_take(struct session *s, uint32_t grace_sec, struct err *err)
{
    uint32_t before = s->lease_sec;
    assert(grace_sec > 0 && grace_sec <= LEASE_SEC_MAX);
    s->lease_sec = grace_sec;
    /* Before a client relies on it: a daemon that is killed now still knows. */
    if (grace_sec != before && s->stored && durable_put_session(s, err) < 0) {
        s->lease_sec = before;
        return err_code_errno(err->code);
    }
    loop_timer_stop(&s->lease_timer);
    s->holders++;
    session_touch(s);
    return 0;
}

void session_lease_drop(struct session *s)
{
    assert(s->holders > 0);
    if (--s->holders > 0 || s->state == SESSION_STOPPING)
        return;
    session_touch(s);
    wait_for_holder(s);
}

/* The holder of an adopted session has so long to come back. */
static void lease_adopted(struct session *s)
{
    if (s->lease_sec > 0 && s->holders == 0)
        wait_for_holder(s);
}

uint32_t session_lease_sec(const struct session *s)
{
    return s->lease_sec;
}

bool session_lease_held(const struct session *s)
{
    return s->holders > 0;
}

void manager_holder_add(struct manager *m, struct lease_holder *h)
{
    h->since = clock_real(loop_clock(m->loop));
    TAILQ_INSERT_TAIL(&m->holders, h, link);
}

void manager_holder_remove(struct manager *m, struct lease_holder *h)
{
    TAILQ_REMOVE(&m->holders, h, link);
}

struct lease_holder *manager_holder_next(struct manager *m, struct lease_holder *after)
{
    return after == NULL ? TAILQ_FIRST(&m->holders) : TAILQ_NEXT(after, link);
}

/* Ends by time --------------------------------------------------------------------------------- */

#define INTERVAL_MAX_NS (5ULL * NSEC_PER_SEC)
#define INTERVAL_MIN_NS (100ULL * NSEC_PER_MSEC)

/* A client uses it, or is about to. A running managed process counts as use, a frozen one does not:
 * otherwise a paused session that its owner forgot would stay for ever. */
static bool is_busy(const struct session *s)
{
    bool runs = s->state != SESSION_PAUSED && (s->execs > 0 || s->n_running > 0);
    return runs || s->claims > 0 || s->guests > 0 || s->holders > 0;
}

static bool ends_by_itself(const struct session *s)
{
    return !s->spec->persistent && s->m->options.ttl_ns > 0 && s->spec->own.expires_ns == 0;
}

static uint64_t age(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

/* A wall clock time on the boot clock, which cannot be set; never 0, which means no time. */
static uint64_t boot_time(const struct clock *clock, uint64_t real_ns)
{
    uint64_t now = clock_real(clock), boot = clock_boot(clock);
    return real_ns > now ? boot + (real_ns - now) : boot;
}

/* The time at which the sandbox ends if no boxd is there. The backend hears of it rarely, so it
 * lies a little behind the time at which boxd would end the session, never before. */
static void session_update_deadline(struct session *s)
{
    uint64_t ttl = s->m->options.ttl_ns, slack = ttl / 10, want = 0;
    if (s->sandbox == NULL || s->sandbox->backend->ops->set_deadline == NULL)
        return;
    if (ends_by_itself(s) && s->n_running == 0)
        want = (s->execs + s->guests > 0 ? clock_boot(loop_clock(s->m->loop)) : s->used_boot) +
               ttl + slack;
    if (s->spec->own.expires_ns > 0) {
        want = boot_time(loop_clock(s->m->loop), s->spec->own.expires_ns);
        slack = NSEC_PER_SEC; /* two clocks are read, one after the other */
    }
    bool same = want == 0 || s->deadline == 0
                    ? want == s->deadline
                    : age(want, s->deadline) <= slack && age(s->deadline, want) <= slack;
    if (same)
        return;
    s->deadline = want;
    s->sandbox->backend->ops->set_deadline(s->sandbox, want);
}

static void reap_session(struct session *s, uint64_t now)
{
    if (s->state != SESSION_READY && s->state != SESSION_PAUSED)
        return;
    if (!ends_by_itself(s) || is_busy(s) || age(now, s->used_boot) < s->m->options.ttl_ns) {
        if (s->state == SESSION_READY)
            session_update_deadline(s);
        return;
    }
    log_info(session_id(s), "idle for %llu s; %s the session",
             (unsigned long long)(age(now, s->used_boot) / NSEC_PER_SEC),
             session_durable(s) ? "stopping" : "removing");
    if (session_durable(s)) {
        session_halt(s);
        return;
    }
    s->end = METRICS_EXPIRED;
    session_stop(s);
}

/* Those whose rest is still being read are left alone, and those that a session is for. */
void reap_exited(struct manager *m)
{
    const struct manager_options *o = &m->options;
    uint64_t now = clock_boot(loop_clock(m->loop));
    struct process *p, *next;
    size_t kept = 0;
    TAILQ_FOREACH (p, &m->exited, exited_link)
        kept += start_is(p);
    TAILQ_FOREACH_SAFE (p, &m->exited, exited_link, next) {
        bool old = age(now, p->exited_boot) >= o->exited_ns;
        if ((old || m->n_exited - kept > o->max_exited) && !start_is(p) && !process_attached(p))
            process_forget(p);
    }
}

void manager_reap(struct manager *m)
{
    uint64_t now = clock_boot(loop_clock(m->loop));
    struct session *s, *next;
    TAILQ_FOREACH_SAFE (s, &m->sessions, link, next)
        reap_session(s, now);
    reap_exited(m);
    kept_measure_again(m);
}

static void on_reap(struct loop_timer *t)
{
    struct manager *m = container_of(t, struct manager, reaper);
    manager_reap(m);
    reap_start(m);
}

static uint64_t shorter(uint64_t interval, uint64_t limit)
{
    return limit > 0 && limit < interval ? limit : interval;
}

void reap_start(struct manager *m)
{
    const struct manager_options *o = &m->options;
    uint64_t interval = shorter(shorter(INTERVAL_MAX_NS, o->ttl_ns), o->exited_ns);
    if (interval < INTERVAL_MIN_NS)
        interval = INTERVAL_MIN_NS;
    if (o->ttl_ns > 0 || o->exited_ns > 0)
        loop_timer_start(m->loop, &m->reaper, interval, on_reap);
    else
        loop_timer_stop(&m->reaper);
}
