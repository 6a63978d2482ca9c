/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions that are kept: stopped and started again, paused, renamed, given other limits, and what
 * they take of the disk. The record of such a session stays as it is while it is stopped, so that a
 * stop needs no write: neither a full disk nor a killed daemon loses one. */

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_internal.h"
#include "spec/model.h"
#include "spec/spec.h"
#include "store/store.h"

bool session_durable(const struct session *s)
{
    return s->spec->own.durable && s->kept_name != NULL;
}

uint64_t session_disk(const struct session *s, bool *ret_known)
{
    *ret_known = s->disk_known;
    return s->disk_bytes;
}

bool session_dormant(const struct session *s)
{
    return s->state == SESSION_STOPPED || s->state == SESSION_HALTING || s->restarting;
}

const char *session_backend_name(const struct session *s)
{
    if (s->sandbox != NULL)
        return s->sandbox->backend->ops->name;
    return s->kept_backend != NULL ? s->kept_backend : s->m->backend->ops->name;
}

void kept_know(struct session *s)
{
    const struct backend_ops *ops = s->sandbox->backend->ops;
    if (!s->spec->own.durable || s->kept_name != NULL)
        return;
    if (ops->stop == NULL || ops->sandbox_name == NULL || s->m->options.store == NULL) {
        log_info(session_id(s), "the %s backend cannot keep a session; it ends when it is idle",
                 ops->name);
        s->spec->own.durable = false;
        return;
    }
    s->kept_backend = xstrdup(ops->name);
    s->kept_name = xstrdup(ops->sandbox_name(s->sandbox));
}

static int find_backend(const struct session *s, struct backend **ret, struct err *err)
{
    struct backend *b = backend_find(s->m->backend, s->kept_backend);
    if (b == NULL || b->ops->start == NULL)
        return err_set(err, ERR_UNAVAILABLE,
                       "session '%.100s' was made on backend '%s', which this boxd does not have; "
                       "start boxd with --backend %s",
                       session_id(s), s->kept_backend, s->kept_backend);
    *ret = b;
    return 0;
}

/* What is on the disk ---------------------------------------------------------------------------
 */

static void kept_measure(struct manager *m);

static void on_stored(void *arg, const struct backend_held *held)
{
    struct session *s = arg;
    struct manager *m = s->m;
    m->measuring = false;
    s->disk_known = held != NULL;
    s->disk_failed = held == NULL;
    if (held != NULL)
        s->disk_bytes = held->stored_bytes;
    session_release(s);
    kept_measure(m);
}

/* One after the other: nothing changes in a session that is stopped. */
static void kept_measure(struct manager *m)
{
    struct session *s;
    TAILQ_FOREACH (s, &m->sessions, link) {
        struct backend *b = NULL;
        struct err ignored = {0};
        if (m->measuring || m->closing)
            return;
        if (s->state != SESSION_STOPPED || s->disk_known || s->disk_failed)
            continue;
        s->disk_known = true;
        if (find_backend(s, &b, &ignored) < 0 || b->ops->stored == NULL)
            continue;
        s->disk_known = false;
        session_hold(s);
        m->measuring = b->ops->stored(b, s->kept_name, on_stored, s, &ignored) == 0;
        if (!m->measuring) {
            s->disk_failed = true;
            session_release(s);
        }
    }
}

void kept_measure_again(struct manager *m)
{
    struct session *s;
    TAILQ_FOREACH (s, &m->sessions, link)
        s->disk_failed = false;
    kept_measure(m);
}

/* The sessions of one user among all: those that are kept, or those that are not stopped. */
static size_t count_of_user(const struct manager *m, uid_t uid, bool kept)
{
    const struct session *s;
    size_t n = 0;
    TAILQ_FOREACH (s, &m->sessions, link)
        if (s->spec->own.bound && s->spec->own.uid == uid)
            n += kept ? s->spec->own.durable : s->state != SESSION_STOPPED;
    return n;
}

/* One user gets at most half of the capacity. */
int kept_check_user(const struct manager *m, const struct spec *spec, struct err *err)
{
    const struct manager_options *o = &m->options;
    size_t sessions = (o->max_sessions + 1) / 2;
    if (!spec->own.bound)
        return 0;
    if (count_of_user(m, spec->own.uid, false) >= sessions)
        return err_set(err, ERR_LIMIT,
                       "uid %u has %zu sessions, and one user has at most half of max_sessions; "
                       "stop or remove one: 'box ps' lists them",
                       spec->own.uid, sessions);
    return 0;
}

int kept_admit(const struct manager *m, const struct spec *spec, struct err *err)
{
    const struct manager_options *o = &m->options;
    const struct session *s;
    size_t n = 0;
    uint64_t bytes = 0;
    TAILQ_FOREACH (s, &m->sessions, link) {
        n += s->spec->own.durable;
        bytes += s->spec->own.durable ? s->disk_bytes : 0;
    }
    if (o->max_kept > 0 && n >= o->max_kept)
        return err_set(err, ERR_LIMIT,
                       "%zu sessions are kept already (max_kept_sessions); remove one: 'box ps -a' "
                       "lists them, 'box rm' removes them",
                       n);
    if (o->max_kept > 0 && spec->own.bound &&
        count_of_user(m, spec->own.uid, true) >= (o->max_kept + 1) / 2)
        return err_set(err, ERR_LIMIT,
                       "uid %u keeps half of max_kept_sessions already; remove one: 'box ps -a' "
                       "lists them, 'box rm' removes them",
                       spec->own.uid);
    if (o->kept_bytes > 0 && bytes >= o->kept_bytes)
        return err_set(err, ERR_LIMIT,
                       "sessions that are kept take %llu MiB of the disk (kept_disk_mb is %llu); "
                       "remove one: 'box ps -a' lists them, 'box rm' removes them",
                       (unsigned long long)(bytes >> 20),
                       (unsigned long long)(o->kept_bytes >> 20));
    return 0;
}

/* Stop ------------------------------------------------------------------------------------------
 */

static void become_stopped(struct session *s)
{
    struct manager *m = s->m;
    session_move(s, SESSION_STOPPED);
    m->n_stopped++;
    s->restarting = s->halt_asked = s->adopting = false;
    s->told = true;
    if (m->closing && !s->left) {
        s->left = true;
        m->n_left++;
    }
}

static void settle_stopped(struct session *s)
{
    struct manager *m = s->m;
    if (s->delete_asked) {
        s->delete_asked = false;
        session_stop(s);
        return;
    }
    start_session_stopped(s);
    kept_measure(m);
    if (m->n_sessions == m->n_left)
        waiters_wake_all_gone(m);
}

static void on_halted(void *arg, const struct err *err)
{
    struct session *s = arg;
    LOG_REQUEST(s->request.id);
    if (err != NULL)
        log_error(session_id(s), "stop: %s", err->msg);
    bool goes = s->delete_asked;
    become_stopped(s);
    s->disk_known = false;
    session_tell(s, EVENT_SESSION_STOPPED);
    if (!goes)
        waiters_wake(s, NULL, err);
    settle_stopped(s);
}

void kept_halt_now(struct session *s)
{
    struct sandbox *sb = s->sandbox;
    processes_halted(s);
    ports_cut(s);
    hosts_close(s);
    s->sandbox = NULL;
    s->deadline = 0;
    loop_timer_stop(&s->lease_timer);
    sb->backend->ops->stop(sb, on_halted, s);
}

void session_halt(struct session *s)
{
    assert(session_durable(s));
    s->request = log_scope_now();
    if (s->state == SESSION_CREATING) {
        s->halt_asked = true;
        return;
    }
    if (s->state != SESSION_READY && s->state != SESSION_PAUSED)
        return;
    bool frozen = s->state == SESSION_PAUSED; /* nothing in there can end by itself */
    session_move(s, SESSION_HALTING);
    if (!frozen)
        processes_stop_all(s);
    if (frozen || s->n_running == 0)
        kept_halt_now(s);
}

void kept_back(struct session *s, const struct err *err)
{
    if (s->adopting && err->code == ERR_NOT_FOUND)
        log_info(session_id(s), "nothing of it runs any more; it is stopped");
    else if (s->adopting)
        log_warn(session_id(s), "cannot be taken over from the last boxd: %s; it is stopped",
                 err->msg);
    else
        log_warn(session_id(s), "start: %s", err->msg);
    s->m->metrics.sessions_failed += s->adopting ? 0 : 1;
    if (s->adopting)
        adopt_processes(s);
    bool goes = s->delete_asked;
    become_stopped(s);
    if (!goes)
        waiters_wake(s, err, NULL);
    settle_stopped(s);
}

void kept_discard_failed(struct session *s, const struct err *err)
{
    s->discarding = false;
    become_stopped(s);
    waiters_wake(s, NULL, err);
    settle_stopped(s);
}

/* Start -----------------------------------------------------------------------------------------
 */

#define RETRIES_MAX 20
#define RETRY_INTERVAL_NS (50 * 1000000ULL)

static void on_retry(struct loop_timer *t)
{
    struct session *s = container_of(t, struct session, retry_timer);
    struct backend *b = NULL;
    struct err err = {0};
    LOG_REQUEST(s->request.id);
    int r = s->delete_asked || s->halt_asked || s->m->closing
                ? err_set(&err, ERR_STATE, "its start was given up")
                : find_backend(s, &b, &err);
    if (r == 0)
        r = session_restart(s, b, &err);
    if (r < 0)
        session_fail(s, &err);
}

/* The kernel takes a moment to unmount the file systems of a sandbox. box-priv, which serves all
 * sessions, does not wait for that. */
bool kept_try_again(struct session *s, const struct err *err)
{
    if (!s->restarting || err->code != ERR_STATE || s->retries >= RETRIES_MAX)
        return false;
    s->retries++;
    loop_timer_start(s->m->loop, &s->retry_timer, RETRY_INTERVAL_NS, on_retry);
    return true;
}

int session_start(struct session *s, struct err *err)
{
    struct manager *m = s->m;
    struct backend *b = NULL;
    assert(s->state == SESSION_STOPPED);
    if (m->closing)
        return err_set(err, ERR_STATE, "boxd is shutting down");
    int r = manager_check_capacity(m, err);
    if (r == 0)
        r = kept_check_user(m, s->spec, err);
    if (r == 0)
        r = hostpath_check(s->spec, err);
    if (r == 0)
        r = find_backend(s, &b, err);
    if (r == 0)
        r = session_restart(s, b, err);
    if (r < 0)
        return r;
    session_move(s, SESSION_CREATING);
    s->restarting = true;
    s->retries = 0;
    s->request = log_scope_now();
    s->begun = loop_now(m->loop);
    m->n_stopped--;
    m->n_left -= s->left;
    s->left = false;
    return 0;
}

/* Pause -----------------------------------------------------------------------------------------
 */

struct pause_call {
    struct session *session; /* held */
    bool paused;             /* what is asked for */
    session_gone_fn *done;   /* NULL: no caller waits */
    void *arg;
};

static void on_pause(void *arg, const struct err *err)
{
    struct pause_call c = *(struct pause_call *)arg;
    struct session *s = c.session;
    free(arg);
    /* It may have been stopped or removed meanwhile. */
    if (s->state == SESSION_PAUSED && c.paused == (err != NULL)) {
        session_move(s, SESSION_READY);
        session_touch(s);
        waiters_wake(s, NULL, NULL);
    }
    if (err == NULL)
        session_tell(s, c.paused ? EVENT_SESSION_PAUSED : EVENT_SESSION_UNPAUSED);
    else
        log_warn(session_id(s), "%s: %s", c.paused ? "pause" : "unpause", err->msg);
    if (c.done != NULL)
        c.done(c.arg, err);
    session_release(s);
}

static int ask_pause(struct session *s, bool paused, session_gone_fn *done, void *arg,
                     struct err *err)
{
    const struct backend_ops *ops = s->sandbox->backend->ops;
    if (ops->pause == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend cannot pause a session", ops->name);
    struct pause_call *c = xnew(struct pause_call);
    *c = (struct pause_call){.session = s, .paused = paused, .done = done, .arg = arg};
    int r = ops->pause(s->sandbox, paused, on_pause, c, err);
    if (r < 0) {
        free(c);
        return r;
    }
    session_hold(s);
    if (paused) {
        session_move(s, SESSION_PAUSED); /* from here on no command begins */
        session_touch(s);                /* and it is idle */
    }
    return 0;
}

void kept_pause_again(struct session *s)
{
    struct err err = {0};
    if (ask_pause(s, true, NULL, NULL, &err) < 0)
        log_warn(session_id(s), "pause: %s; it goes on", err.msg);
}

int session_refuse_paused(const struct session *s, struct err *err)
{
    return err_set(err, ERR_STATE, "session '%.100s' is paused; run 'box unpause %.100s'",
                   session_id(s), session_id(s));
}

/* Other limits ----------------------------------------------------------------------------------
 */

struct limits {
    double cpus;
    int64_t memory_mb, pids_limit;
    uint64_t required; /* as spec->own has it */
};

struct update_call {
    struct session *session; /* held */
    struct limits want;
    session_gone_fn *done;
    void *arg;
};

static struct limits limits_of(const struct spec *spec)
{
    return (struct limits){spec->cpus, spec->memory_mb, spec->pids_limit, spec->own.required};
}

static void put_limits(struct spec *spec, const struct limits *l)
{
    spec->cpus = l->cpus;
    spec->memory_mb = l->memory_mb;
    spec->pids_limit = l->pids_limit;
    spec->own.required = l->required;
}

/* The session has these from now on, and its record says so; or nothing has changed. */
static int set_limits(struct session *s, const struct limits *want, struct err *err)
{
    const struct limits before = limits_of(s->spec);
    put_limits(s->spec, want);
    int r = durable_put_session(s, err);
    if (r < 0)
        put_limits(s->spec, &before);
    else
        session_tell(s, EVENT_SESSION_UPDATED);
    return r;
}

static void on_taken_back(void *arg, const struct err *err)
{
    struct session *s = arg;
    if (err != NULL)
        log_warn(session_id(s), "set back limits that could not be recorded: %s; ignoring",
                 err->msg);
    s->updating = false;
    session_release(s);
}

static void on_updated(void *arg, const struct err *err)
{
    struct update_call c = *(struct update_call *)arg;
    struct session *s = c.session;
    struct sandbox *sb = s->sandbox;
    struct err why = {0}, ignored = {0};
    free(arg);
    s->updating = false;
    /* One that is being removed has no record any more. */
    if (err == NULL && s->state != SESSION_STOPPING && set_limits(s, &c.want, &why) < 0) {
        err = &why;
        session_hold(s);
        s->updating = true;
        if (sb == NULL || sb->backend->ops->update(sb, s->spec, on_taken_back, s, &ignored) < 0)
            on_taken_back(s, NULL);
    }
    c.done(c.arg, err);
    session_release(s);
}

static int check_update(const struct backend *b, const struct spec *want, struct err *err)
{
    if (b->ops->update == NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "the %s backend fixes the limits of a session when it is made; make another "
                       "session with the limits that it needs",
                       b->ops->name);
    for (size_t i = 0; i < BACKEND_ASKED; i++) {
        const char *why = want->own.required & FIELD_BIT(backend_asked[i])
                              ? backend_unenforced(b, want, backend_asked[i])
                              : NULL;
        if (why != NULL)
            return err_set(
                err, ERR_UNSUPPORTED,
                "%s cannot be enforced here: %.120s; start boxd as root, or as a systemd "
                "user service with Delegate=yes",
                spec_model.fields[backend_asked[i]].name, why);
    }
    return 0;
}

/* What callers ask ------------------------------------------------------------------------------
 */

static int find(struct manager *m, const char *id, struct session **ret, struct err *err)
{
    *ret = manager_find(m, id);
    return *ret != NULL ? 0 : err_missing(err, ERR_THING_SESSION, "session %s not found", id);
}

static int refuse_state(const struct session *s, const char *verb, struct err *err)
{
    return err_set(err, ERR_STATE, "session '%.100s' is %s: it cannot be %s now", session_id(s),
                   session_state_name(s->state), verb);
}

int manager_stop(struct manager *m, const char *id, session_gone_fn *done, void *arg,
                 struct err *err)
{
    struct session *s = NULL;
    int r = find(m, id, &s, err);
    if (r < 0)
        return r;
    if (!session_durable(s))
        return err_set(err, ERR_CONFLICT,
                       "session '%.100s' is temporary: its files would not outlive a stop", id);
    if (s->state == SESSION_CREATING && !s->restarting)
        return refuse_state(s, "stopped", err);
    start_unwanted(s);
    waiter_add_gone(s, done, arg);
    if (s->state == SESSION_STOPPED)
        waiters_wake(s, NULL, NULL); /* it is that already */
    else
        session_halt(s);
    return 0;
}

int manager_expel(struct manager *m, struct session *s, session_gone_fn *gone, void *arg,
                  struct err *err)
{
    return session_durable(s) && manager_find(m, session_id(s)) == s
               ? manager_stop(m, session_id(s), gone, arg, err)
               : manager_delete_this(m, s, gone, arg, err);
}

int manager_start(struct manager *m, const char *id, session_ready_fn *ready, void *arg,
                  struct err *err)
{
    struct session *s = NULL;
    int r = find(m, id, &s, err);
    if (r == 0 && s->state == SESSION_PAUSED)
        r = session_refuse_paused(s, err);
    if (r == 0 && s->state == SESSION_STOPPED)
        r = session_start(s, err);
    if (r < 0)
        return r;
    waiter_add_ready(s, ready, arg);
    if (s->state == SESSION_READY)
        waiters_wake(s, NULL, NULL);
    return 0;
}

int manager_pause(struct manager *m, const char *id, bool paused, session_gone_fn *done, void *arg,
                  struct err *err)
{
    struct session *s = NULL;
    int r = find(m, id, &s, err);
    if (r < 0)
        return r;
    if (s->state != (paused ? SESSION_READY : SESSION_PAUSED))
        return refuse_state(s, paused ? "paused" : "unpaused", err);
    return ask_pause(s, paused, done, arg, err);
}

static int update_live(struct session *s, const struct spec *want, const struct limits *limits,
                       session_gone_fn *done, void *arg, struct err *err)
{
    struct update_call *c = xnew(struct update_call);
    *c = (struct update_call){.session = s, .want = *limits, .done = done, .arg = arg};
    int r = s->sandbox->backend->ops->update(s->sandbox, want, on_updated, c, err);
    if (r < 0) {
        free(c);
        return r;
    }
    session_hold(s);
    s->updating = true;
    return 0;
}

int manager_update(struct manager *m, const char *id, const struct spec *want,
                   session_gone_fn *done, void *arg, struct err *err)
{
    struct session *s = NULL;
    struct backend *b = NULL;
    int r = find(m, id, &s, err);
    if (r < 0)
        return r;
    if (s->updating)
        return err_set(err, ERR_STATE,
                       "the limits of session '%.100s' are being changed by another request", id);
    if (s->state != SESSION_READY && s->state != SESSION_PAUSED && s->state != SESSION_STOPPED)
        return refuse_state(s, "updated", err);
    if (s->sandbox != NULL)
        b = s->sandbox->backend;
    else
        r = find_backend(s, &b, err);
    if (r == 0)
        r = check_update(b, want, err);
    if (r < 0)
        return r;
    struct limits limits = limits_of(want);
    limits.required |= s->spec->own.required;
    if (s->sandbox != NULL)
        return update_live(s, want, &limits, done, arg, err);
    r = set_limits(s, &limits, err);
    if (r < 0)
        return r;
    waiter_add_gone(s, done, arg);
    waiters_wake(s, NULL, NULL);
    return 0;
}

/* What is left of the start command of a stopped session is renamed with it. */
static bool has_processes(const struct session *s)
{
    const struct process *p;
    TAILQ_FOREACH (p, &s->processes, link)
        if (p->proc != NULL || !start_is(p))
            return true;
    return false;
}

static int rename_record(struct session *s, const char *old, struct err *err)
{
    struct store *store = s->m->options.store;
    if (!s->stored)
        return 0;
    int r = store_begin(store, err);
    if (r < 0)
        return r;
    r = durable_put_session(s, err);
    if (r == 0)
        r = store_set_used(store, session_id(s), s->used_real, err);
    struct process *p;
    TAILQ_FOREACH (p, &s->processes, link)
        if (r == 0)
            r = durable_put_process(p, err);
    if (r == 0)
        r = store_drop_session(store, old, err);
    if (r < 0) {
        store_rollback(store);
        return r;
    }
    return store_commit(store, err);
}

static void take_name(struct session *s, char *name)
{
    LIST_REMOVE(s, bucket);
    s->spec->session_id = name;
    TABLE_INSERT(&s->m->by_id, str_hash(name), s, bucket);
}

int manager_rename(struct manager *m, const char *id, const char *name, struct err *err)
{
    struct session *s = NULL;
    int r = find(m, id, &s, err);
    if (r == 0)
        r = spec_check_id(name, err);
    if (r < 0)
        return r;
    if (s->state != SESSION_READY && s->state != SESSION_STOPPED && s->state != SESSION_PAUSED)
        return refuse_state(s, "renamed", err);
    if (str_eq(id, name))
        return 0;
    if (session_lookup(m, name) != NULL)
        return err_set(err, ERR_CONFLICT, "there is a session '%.100s' already", name);
    if (s->spec->own.expires_ns > 0 || s->lease_sec > 0)
        return err_set(err, ERR_STATE,
                       "session '%.100s' belongs to the client that made it, which knows it by "
                       "this name",
                       id);
    if (s->execs + s->claims + s->guests > 0 || has_processes(s))
        return err_set(err, ERR_STATE,
                       "commands or processes of session '%.100s' are known by its name; 'box stop "
                       "%.100s' ends them",
                       id, id);
    AUTO_FREE char *old = s->spec->session_id;
    AUTO_FREE char *copy = xstrdup(name);
    take_name(s, copy);
    r = rename_record(s, old, err);
    if (r < 0) {
        take_name(s, TAKE_PTR(old));
        return r;
    }
    TAKE_PTR(copy);
    session_tell(s, EVENT_SESSION_RENAMED);
    return 0;
}
