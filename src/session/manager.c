/* SPDX-License-Identifier: Apache-2.0 */

/* The manager: finds or makes a session for a caller, lets callers wait for it, deletes sessions.
 */

#include "session/manager.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/share.h"
#include "session/artifacts.h"
#include "session/session_internal.h"
#include "spec/model.h"
#include "spec/spec.h"

/* What a session may be made of ---------------------------------------------------------------- */

/* No session may mount the directory of verified copies: it could change them, or see another
 * session's. */
static bool is_in_artifacts(const char *path)
{
    static const char holder[] = "/" ARTIFACTS_HOLDER;
    const char *at = strstr(path, holder);
    while (at != NULL && at[strlen(holder)] != '\0' && at[strlen(holder)] != '/')
        at = strstr(at + 1, holder);
    return at != NULL;
}

static bool is_blocked(const char *path, const char *place)
{
    return is_in_artifacts(path) || host_path_blocked(path, place);
}

static int check_host_path(const char *path, const char *place, const char *field, struct err *err)
{
    if (path == NULL || path[0] != '/')
        return 0; /* empty, or a path that no Linux host has */
    AUTO_FREE char *plain = xstrdup(path);
    path_normalise(plain);
    AUTO_FREE char *real = path_real(plain);
    /* The kernel takes ".." after a link for the parent of what the link leads to. */
    AUTO_FREE char *as_kernel = path_real(path);
    if (!is_blocked(plain, place) && !is_blocked(real, place) && !is_blocked(as_kernel, place))
        return 0;
    if (!str_eq(real, path))
        return err_set(err, ERR_DENIED, "%s %.150s is blocked for security (it is %.150s)", field,
                       path, real);
    return err_set(err, ERR_DENIED, "%s %.300s is blocked for security", field, path);
}

int hostpath_check(const struct spec *spec, struct err *err)
{
    int r = check_host_path(spec->host_path, spec->own.place, "host_path", err);
    for (size_t i = 0; r == 0 && i < spec->n_extra_mounts; i++)
        if (spec->extra_mounts[i].mode != MOUNT_NONE)
            r = check_host_path(spec->extra_mounts[i].host_path, spec->own.place,
                                "extra_mounts.host_path", err);
    return r;
}

/* A session that is asked for again ------------------------------------------------------------ */

static bool same_value(const struct spec *a, const struct spec *b, const struct field *f)
{
    const void *x = field_member(f, a), *y = field_member(f, b);
    if (f->kind == FIELD_STR)
        return str_eq(*(char *const *)x, *(char *const *)y);
    if (f->kind == FIELD_INT)
        return *(const int64_t *)x == *(const int64_t *)y;
    if (f->kind == FIELD_REAL)
        return *(const double *)x == *(const double *)y;
    if (f->kind == FIELD_BOOL)
        return *(const bool *)x == *(const bool *)y;
    return *(const int *)x == *(const int *)y;
}

/* As Python writes a float, which is how clients know it. */
static void real_text(double value, char *ret, size_t size)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w = JW_INIT(&text);
    buf_init(&text, size);
    jw_real(&w, value);
    (void)snprintf(ret, size, "%s", buf_str(&text));
}

/* Python's spelling, because clients of the LangBot wire know these sentences. A value that is too
 * long is cut off. */
static void value_text(const struct spec *spec, const struct field *f, char *ret, size_t size)
{
    const void *value = field_member(f, spec);
    if (f->kind == FIELD_STR) {
        const char *text = *(char *const *)value;
        (void)snprintf(ret, size, "%s", text != NULL ? text : "None");
    } else if (f->kind == FIELD_INT) {
        (void)snprintf(ret, size, "%lld", (long long)*(const int64_t *)value);
    } else if (f->kind == FIELD_REAL) {
        real_text(*(const double *)value, ret, size);
    } else if (f->kind == FIELD_BOOL) {
        (void)snprintf(ret, size, "%s", *(const bool *)value ? "True" : "False");
    } else {
        (void)snprintf(ret, size, "%s", f->names[*(const int *)value]);
    }
}

static bool same_list(char *const *a, char *const *b)
{
    size_t n = strv_len(a);
    bool same = n == strv_len(b);
    for (size_t i = 0; same && i < n; i++)
        same = str_eq(a[i], b[i]);
    return same;
}

static int session_check_same(const struct session *s, const struct spec *want, uint64_t given,
                              struct err *err)
{
    /* Of one command, or compared elsewhere. */
    const uint64_t others = FIELD_BIT(SPEC_CMD) | FIELD_BIT(SPEC_WORKDIR) |
                            FIELD_BIT(SPEC_TIMEOUT_SEC) | FIELD_BIT(SPEC_SESSION_ID) |
                            FIELD_BIT(SPEC_ENV) | FIELD_BIT(SPEC_EXTRA_MOUNTS) |
                            FIELD_BIT(SPEC_SKILL_NAME);

    for (size_t i = 0; i < SPEC_FIELD_MAX; i++) {
        const struct field *f = &spec_model.fields[i];
        char have[256];
        if ((given & ~others & FIELD_BIT(i)) == 0 || same_value(s->spec, want, f))
            continue;
        value_text(s->spec, f, have, sizeof(have));
        return err_set(err, ERR_CONFLICT, "Box session %s already exists with %s=%s",
                       s->spec->session_id, f->name, have);
    }
    if ((given & FIELD_BIT(SPEC_ALLOW_HOSTS)) != 0 &&
        !same_list(s->spec->own.allow_hosts, want->own.allow_hosts))
        return err_set(err, ERR_CONFLICT,
                       "Box session %s already exists with other " SPEC_ALLOW_HOSTS_NAME,
                       s->spec->session_id);
    if (want->own.env_locked && !s->spec->own.env_locked)
        return err_set(err, ERR_CONFLICT,
                       "Box session %s already exists with an environment that is not locked; "
                       "delete it, or choose another name",
                       s->spec->session_id);
    return 0;
}

/* Mounts are a set: order and repetition do not matter, and one that is switched off is none. Most
 * come in the order they came in before, so each is looked for at its own place first. */
static bool mounts_within(const struct spec *a, const struct spec *b)
{
    for (size_t i = 0; i < a->n_extra_mounts; i++) {
        const struct mount_spec *x = &a->extra_mounts[i];
        bool found = x->mode == MOUNT_NONE;
        for (size_t k = 0; k < b->n_extra_mounts && !found; k++) {
            const struct mount_spec *y = &b->extra_mounts[(i + k) % b->n_extra_mounts];
            found = x->mode == y->mode && str_eq(x->host_path, y->host_path) &&
                    str_eq(x->mount_path, y->mount_path) &&
                    str_eq(x->content_digest, y->content_digest) &&
                    str_eq(x->manifest_path, y->manifest_path);
        }
        if (!found)
            return false;
    }
    return true;
}

static bool session_same_mounts(const struct spec *a, const struct spec *b)
{
    return mounts_within(a, b) && mounts_within(b, a);
}

/* Waiting -------------------------------------------------------------------------------------- */

static struct waiter *waiter_new(struct manager *m, void *arg)
{
    struct waiter *w = xnew(struct waiter);
    w->m = m;
    w->arg = arg;
    w->request = log_scope_now();
    LIST_INSERT_HEAD(&m->waiters, w, all_link);
    m->n_waiters++;
    return w;
}

static void waiter_leave(struct waiter *w)
{
    struct session *s = w->session;
    w->session = NULL;
    if (s == NULL)
        return;
    s->claims -= w->ready != NULL;
    session_release(s);
}

static void waiter_free(struct waiter *w)
{
    struct manager *m = w->m;
    LIST_REMOVE(w, all_link);
    m->n_waiters--;
    loop_defer_stop(&w->defer);
    waiter_leave(w);
    spec_free(w->spec);
    free(w);
}

static int acquire(struct manager *m, struct waiter *w, bool queued, struct err *err);
static void waiter_add(struct session *s, struct waiter *w);

/* Waiters are answered from the loop, never from inside a call of ours or of the backend. */
static void on_answer(struct loop_defer *d)
{
    struct waiter *w = container_of(d, struct waiter, defer);
    LOG_REQUEST(w->request.id);
    if (w->spec != NULL && w->err.code == ERR_NONE) {
        /* Its turn has come: begin anew. */
        struct err err = {0};
        if (acquire(w->m, w, true, &err) == 0)
            return;
        w->err = err;
    }
    /* It was stopped meanwhile: a caller that wants to use it wants it to run. */
    if (w->ready != NULL && w->err.code == ERR_NONE && session_dormant(w->session)) {
        struct session *s = w->session;
        if (s->state != SESSION_STOPPED || session_start(s, &w->err) == 0) {
            waiter_add(s, w);
            return;
        }
    }
    if (w->ready != NULL && w->err.code == ERR_NONE && w->session->state == SESSION_PAUSED)
        (void)session_refuse_paused(w->session, &w->err);
    if (w->ready != NULL && w->err.code == ERR_NONE && w->session->state != SESSION_READY)
        (void)err_set(&w->err, ERR_STATE, "session '%s' was ended meanwhile",
                      w->session->spec->session_id);
    const struct err *err = w->err.code != ERR_NONE ? &w->err : NULL;
    if (w->ready != NULL && err == NULL) {
        struct session *s = w->session;
        session_hold(s); /* theirs now */
        w->ready(w->arg, s, NULL);
    } else if (w->ready != NULL) {
        w->ready(w->arg, NULL, err);
    } else {
        if (w->session == NULL) /* all are gone: others may come again */
            w->m->closing = !STAILQ_EMPTY(&w->m->all_gone);
        if (w->gone != NULL)
            w->gone(w->arg, err);
    }
    waiter_free(w);
}

static void waiter_add(struct session *s, struct waiter *w)
{
    if (w->session != s) {
        waiter_leave(w);
        w->session = s;
        s->claims += w->ready != NULL;
        session_hold(s);
    }
    STAILQ_INSERT_TAIL(&s->waiters, w, link);
}

void waiter_add_gone(struct session *s, session_gone_fn *gone, void *arg)
{
    struct waiter *w = waiter_new(s->m, arg);
    w->gone = gone;
    waiter_add(s, w);
}

void waiter_add_ready(struct session *s, session_ready_fn *ready, void *arg)
{
    struct waiter *w = waiter_new(s->m, arg);
    w->ready = ready;
    waiter_add(s, w);
}

void waiters_wake(struct session *s, const struct err *ready_err, const struct err *gone_err)
{
    for (struct waiter *w; (w = STAILQ_FIRST(&s->waiters)) != NULL;) {
        STAILQ_REMOVE_HEAD(&s->waiters, link);
        const struct err *err = w->ready != NULL ? ready_err : gone_err;
        if (err != NULL && w->spec == NULL && w->err.code == ERR_NONE)
            w->err = *err;
        loop_defer_start(s->m->loop, &w->defer, on_answer);
    }
}

void waiters_wake_all_gone(struct manager *m)
{
    for (struct waiter *w; (w = STAILQ_FIRST(&m->all_gone)) != NULL;) {
        STAILQ_REMOVE_HEAD(&m->all_gone, link);
        loop_defer_start(m->loop, &w->defer, on_answer);
    }
}

/* The manager ---------------------------------------------------------------------------------- */

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

int manager_check_capacity(const struct manager *m, struct err *err)
{
    if (manager_count(m) < m->options.max_sessions)
        return 0;
    return err_set(err, ERR_LIMIT, "Box session capacity reached (%zu)", m->options.max_sessions);
}

static int create_for(struct manager *m, struct waiter *w, struct err *err)
{
    int r = manager_check_capacity(m, err);
    if (r == 0)
        r = shares_check(m->options.shares, w->spec->own.owner, SHARE_SESSIONS, err);
    if (r == 0)
        r = kept_check_user(m, w->spec, err);
    if (r == 0 && w->spec->own.durable)
        r = kept_admit(m, w->spec, err);
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

/* The session has to be made anew with other mounts. Earlier waiters get the old one first, and
 * their commands end first. */
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

/* What happens to a session when a caller asks for other extra mounts than it has. */
enum mount_change {
    MOUNTS_FIT, /* or they need not */
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
    /* A session that is about to end is no reason to refuse its successor. */
    return s->retiring ? MOUNTS_FIT : MOUNTS_CONFLICT;
}

static int refuse_mounts(const struct session *s, struct err *err)
{
    if (s->spec->own.expires_ns > 0)
        return err_set(err, ERR_CONFLICT, "session '%.100s' is a chat's: its mounts stay",
                       session_id(s));
    if (s->spec->own.durable)
        return err_set(err, ERR_CONFLICT,
                       "session '%.100s' is kept with the mounts that it was made with; remove it, "
                       "or choose another name",
                       session_id(s));
    return err_set(err, ERR_CONFLICT,
                   "Box mounts differ from this session's immutable mount set; acquire a Box with "
                   "a distinct reuse key for different host mounts. The existing session was "
                   "preserved.");
}

static bool is_of(const struct session *s, uid_t uid)
{
    return s->spec->own.bound && s->spec->own.uid == uid;
}

/* Checked here again: since the front checked, another user may have taken the name. Root and
 * tokens are refused, too: a user who guesses a name must not get their work and secrets. */
static int check_owner(const struct session *s, const struct spec *want, struct err *err)
{
    if (want->own.bound ? is_of(s, want->own.uid) : !s->spec->own.bound)
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "the session name '%.100s' is taken by another user; choose another name",
                   session_id(s));
}

/* The second half of manager_acquire(), also for a waiter whose turn has come (`queued`). Takes
 * w->spec in every case of success. */
static int acquire(struct manager *m, struct waiter *w, bool queued, struct err *err)
{
    struct session *s = session_lookup(m, w->spec->session_id);
    if (m->closing)
        return err_set(err, ERR_STATE, "boxd is shutting down");
    if (s == NULL)
        return create_for(m, w, err);
    if (s->state == SESSION_STOPPING || s->state == SESSION_HALTING || s->delete_asked) {
        waiter_add(s, w); /* keeps its spec: it makes the session when the name is free */
        return 0;
    }
    int r = check_owner(s, w->spec, err);
    if (r == 0 && !s->retiring) /* the session it differs from may be about to end */
        r = session_check_same(s, w->spec, w->given, err);
    if (r == 0 && s->sandbox != NULL) /* it may have been made without these limits */
        r = backend_require(s->sandbox->backend, w->spec, err);
    if (r < 0)
        return r;
    enum mount_change change = mount_change(s, w);
    if (change == MOUNTS_CONFLICT ||
        (change == MOUNTS_RECREATE &&
         (s->spec->own.expires_ns > 0 || s->spec->own.durable))) /* a chat's, or it is kept */
        return refuse_mounts(s, err);
    if (change == MOUNTS_RECREATE) {
        r = check_makeable(m, w->spec, err); /* before the old one is ended for it */
        if (r == 0)
            remount(s, w, queued);
        return r;
    }
    if (s->state == SESSION_PAUSED)
        return session_refuse_paused(s, err);
    r = s->state == SESSION_STOPPED ? session_start(s, err) : 0;
    if (r < 0)
        return r;
    waiter_add(s, w);
    if (s->retiring)
        return 0; /* behind the waiter that makes it anew */
    spec_free(w->spec);
    w->spec = NULL;
    session_touch(s);
    if (s->state == SESSION_READY && s->hosts_asked == 0)
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
    int r = acquire(m, w, false, err);
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
    struct waiter *o;
    STAILQ_FOREACH(o, &s->waiters, link)
    if (s->state == SESSION_CREATING && o->ready != NULL && o->spec == NULL)
        (void)err_set(&o->err, ERR_STATE, "session '%s' was deleted while it was being created",
                      id);
    waiter_add_gone(s, gone, arg);
    session_stop(s);
    return 0;
}

int manager_delete_this(struct manager *m, struct session *s, session_gone_fn *gone, void *arg,
                        struct err *err)
{
    if (session_lookup(m, session_id(s)) != s)
        return err_missing(err, ERR_THING_SESSION, "session %s not found", session_id(s));
    return manager_delete(m, session_id(s), gone, arg, err);
}

void manager_close(struct manager *m, session_gone_fn *gone, void *arg)
{
    struct waiter *w = waiter_new(m, arg);
    struct session *s, *next;
    w->gone = gone;
    STAILQ_INSERT_TAIL(&m->all_gone, w, link);
    m->closing = true;
    m->n_left = 0;
    TAILQ_FOREACH_SAFE (s, &m->sessions, link, next) {
        s->left = (s->spec->own.expires_ns > 0 && s->state == SESSION_READY) ||
                  s->state == SESSION_STOPPED;
        m->n_left += s->left;
        if (s->left)
            continue;
        if (session_durable(s))
            session_halt(s); /* unless it is being removed already */
        else
            session_stop(s);
    }
    if (m->n_sessions == m->n_left)
        waiters_wake_all_gone(m);
}

int manager_new(struct loop *loop, struct backend *backend, const struct manager_options *options,
                struct manager **ret, struct err *err)
{
    struct manager *m = xnew(struct manager);
    m->loop = loop;
    m->backend = backend;
    m->options = *options;
    TAILQ_INIT(&m->sessions);
    TAILQ_INIT(&m->exited);
    TAILQ_INIT(&m->holders);
    STAILQ_INIT(&m->all_gone);
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
    while (!LIST_EMPTY(&m->waiters))
        waiter_free(LIST_FIRST(&m->waiters));
    for (struct session *s; (s = TAILQ_FIRST(&m->sessions)) != NULL;) {
        processes_drop_all(s, false);
        session_unlist(s);
        session_release(s);
    }
    while (!LIST_EMPTY(&m->notices))
        notice_free(LIST_FIRST(&m->notices));
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

bool manager_owned_by(struct manager *m, const char *id, uid_t uid, bool *ret_any)
{
    const struct session *s = session_lookup(m, id);
    *ret_any = s != NULL;
    return s != NULL && is_of(s, uid);
}

bool manager_is_users(struct manager *m, const char *id)
{
    const struct session *s = session_lookup(m, id);
    return s != NULL && s->spec->own.bound;
}

size_t manager_count(const struct manager *m)
{
    return m->n_sessions - m->n_stopped;
}

struct session *manager_next(struct manager *m, struct session *after)
{
    return after == NULL ? TAILQ_FIRST(&m->sessions) : TAILQ_NEXT(after, link);
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
