/* SPDX-License-Identifier: Apache-2.0 */
#include "core/manager.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "io/loop.h"
#include "spec/model.h"
#include "spec/spec.h"
#include "util/alloc.h"
#include "util/buf.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/json.h"
#include "util/log.h"
#include "util/str.h"

#define BUCKETS 4096U
#define REAP_INTERVAL_NS (5ULL * NSEC_PER_SEC)
#define WAITERS_MAX 4096U

/* Somebody who waits for a session to be ready (spec set while it has to be made first), or to be
 * gone. */
struct waiter {
    struct waiter *next;                /* of the session, in order of arrival */
    struct waiter *all_prev, *all_next; /* of the manager */
    struct manager *m;
    struct session *session; /* held */
    struct spec *spec;       /* owned; set while the name is still being freed by its predecessor */
    uint64_t given;
    unsigned flags; /* enum acquire_flags */
    session_ready_fn *ready;
    session_gone_fn *gone;
    void *arg;
    struct err err;
    struct loop_defer defer;
};

struct session {
    struct manager *m;
    struct session *bucket_next, *prev, *next;
    enum session_state state;
    unsigned refs; /* the manager's own is one while it is listed */
    unsigned execs;
    struct spec *spec;       /* owned */
    struct sandbox *sandbox; /* owned by the backend, NULL unless READY */
    uint64_t created_real, used_real, used_boot;
    struct waiter *waiters, **waiters_end; /* told when READY, or gone; first come, first served */
    bool delete_asked;                     /* while it was still being created */
};

struct manager {
    struct loop *loop;
    struct backend *backend;
    struct manager_options options;
    struct session *buckets[BUCKETS];
    struct session *first, *last;
    struct waiter *waiters; /* owned; all of them, also those whose answer is queued */
    size_t n_sessions, n_waiters;
    struct loop_timer reaper;
    session_gone_fn *all_gone;
    void *all_gone_arg;
    struct loop_defer all_gone_defer;
    bool closing;
};

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

static struct session *lookup(struct manager *m, const char *id)
{
    struct session *s = m->buckets[str_hash(id) % BUCKETS];
    while (s != NULL && !str_eq(s->spec->session_id, id))
        s = s->bucket_next;
    return s;
}

static void list(struct manager *m, struct session *s)
{
    size_t b = str_hash(s->spec->session_id) % BUCKETS;
    s->bucket_next = m->buckets[b];
    m->buckets[b] = s;
    s->prev = m->last;
    if (m->last != NULL)
        m->last->next = s;
    else
        m->first = s;
    m->last = s;
    m->n_sessions++;
}

static void unlist(struct session *s)
{
    struct manager *m = s->m;
    struct session **at = &m->buckets[str_hash(s->spec->session_id) % BUCKETS];
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
}

static void touch(struct session *s)
{
    const struct clock *clock = loop_clock(s->m->loop);
    s->used_real = clock_real(clock);
    s->used_boot = clock_boot(clock);
}

static void stop(struct session *s);
static int acquire(struct manager *m, struct waiter *w, struct err *err);

static struct waiter *waiter_new(struct manager *m, void *arg)
{
    struct waiter *w = xnew(struct waiter);
    w->m = m;
    w->arg = arg;
    w->all_next = m->waiters;
    if (w->all_next != NULL)
        w->all_next->all_prev = w;
    m->waiters = w;
    m->n_waiters++;
    return w;
}

static void waiter_free(struct waiter *w)
{
    struct manager *m = w->m;
    if (w->all_prev != NULL)
        w->all_prev->all_next = w->all_next;
    else
        m->waiters = w->all_next;
    if (w->all_next != NULL)
        w->all_next->all_prev = w->all_prev;
    m->n_waiters--;
    loop_defer_stop(&w->defer);
    if (w->session != NULL)
        session_release(w->session);
    spec_free(w->spec);
    free(w);
}

/* Waiters are answered from the loop, never from inside a call of ours or of the backend. */
static void answer_waiter(struct loop_defer *d)
{
    struct waiter *w = container_of(d, struct waiter, defer);
    if (w->spec != NULL && w->err.code == ERR_NONE) {
        /* The name has become free: begin anew. */
        struct err err = {0};
        if (acquire(w->m, w, &err) == 0)
            return;
        w->err = err;
    }
    if (w->ready != NULL && w->err.code == ERR_NONE && w->session->state != SESSION_READY)
        (void)err_set(&w->err, ERR_STATE, "session '%s' was ended meanwhile",
                      w->session->spec->session_id);
    const struct err *err = w->err.code != ERR_NONE ? &w->err : NULL;
    if (w->ready != NULL) /* who gets the session also gets our hold on it */
        w->ready(w->arg, err == NULL ? TAKE_PTR(w->session) : NULL, err);
    else if (w->gone != NULL)
        w->gone(w->arg, err);
    waiter_free(w);
}

/* Each kind of waiter hears the error that concerns it; NULL: things went well. */
static void wake(struct session *s, const struct err *ready_err, const struct err *gone_err)
{
    struct waiter *w = s->waiters;
    s->waiters = NULL;
    while (w != NULL) {
        struct waiter *next = w->next;
        const struct err *err = w->ready != NULL ? ready_err : gone_err;
        if (err != NULL && w->spec == NULL && w->err.code == ERR_NONE)
            w->err = *err;
        loop_defer_start(s->m->loop, &w->defer, answer_waiter);
        w = next;
    }
}

static void add_waiter(struct session *s, struct waiter *w)
{
    if (w->session != s) {
        if (w->session != NULL)
            session_release(w->session);
        w->session = s;
        session_hold(s);
    }
    w->next = NULL;
    if (s->waiters == NULL)
        s->waiters_end = &s->waiters;
    *s->waiters_end = w;
    s->waiters_end = &w->next;
}

static void on_all_gone(struct loop_defer *d)
{
    struct manager *m = container_of(d, struct manager, all_gone_defer);
    session_gone_fn *fn = m->all_gone;
    m->all_gone = NULL;
    fn(m->all_gone_arg, NULL);
}

static void on_destroyed(void *arg, const struct err *err)
{
    struct session *s = arg;
    struct manager *m = s->m;
    if (err != NULL)
        log_error(s->spec->session_id, "destroy: %s", err->msg);
    unlist(s);
    wake(s, NULL, err);
    session_release(s);
    /* Behind those who wait for this one: nothing may run after that call. */
    if (m->n_sessions == 0 && m->all_gone != NULL)
        loop_defer_start(m->loop, &m->all_gone_defer, on_all_gone);
}

static void on_lost(void *arg)
{
    struct session *s = arg;
    log_warn(s->spec->session_id, "the sandbox died by itself; removing the session");
    stop(s);
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    struct session *s = arg;
    if (sb == NULL) {
        log_debug(s->spec->session_id, "create: %s", err->msg);
        wake(s, err, NULL);
        session_move(s, SESSION_STOPPING);
        on_destroyed(s, NULL);
        return;
    }
    s->sandbox = sb;
    session_move(s, SESSION_READY);
    touch(s);
    if (s->delete_asked)
        stop(s);
    else
        wake(s, NULL, NULL);
}

static void stop(struct session *s)
{
    if (s->state == SESSION_STOPPING)
        return;
    if (s->state == SESSION_CREATING) {
        s->delete_asked = true; /* the backend is at work; what it makes goes at once */
        return;
    }
    struct sandbox *sb = s->sandbox;
    session_move(s, SESSION_STOPPING);
    s->sandbox = NULL;
    sb->backend->ops->destroy(sb, on_destroyed, s);
}

static const void *member(const struct spec *spec, const struct field *f)
{
    return (const char *)spec + f->offset;
}

static bool same_value(const struct spec *a, const struct spec *b, const struct field *f)
{
    const void *x = member(a, f), *y = member(b, f);
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

/* Python's spelling, because clients of the LangBot wire know these sentences. What is too long for
 * one is cut off. */
static void value_text(const struct spec *spec, const struct field *f, char *ret, size_t size)
{
    const void *value = member(spec, f);
    if (f->kind == FIELD_STR) {
        const char *text = *(char *const *)value;
        (void)snprintf(ret, size, "%s", text != NULL ? text : "None");
    } else if (f->kind == FIELD_INT) {
        (void)snprintf(ret, size, "%lld", (long long)*(const int64_t *)value);
    } else if (f->kind == FIELD_REAL) {
        AUTO_DONE(buf) struct buf text;
        struct jw w;
        buf_init(&text, size);
        jw_init(&w, &text);
        jw_real(&w, *(const double *)value);
        (void)snprintf(ret, size, "%s", buf_str(&text));
    } else if (f->kind == FIELD_BOOL) {
        (void)snprintf(ret, size, "%s", *(const bool *)value ? "True" : "False");
    } else {
        (void)snprintf(ret, size, "%s", f->names[*(const int *)value]);
    }
}

static int check_same(const struct session *s, const struct spec *want, uint64_t given,
                      struct err *err)
{
    static const enum spec_field compared[] = {
        SPEC_NETWORK,
        SPEC_IMAGE,
        SPEC_HOST_PATH,
        SPEC_HOST_PATH_MODE,
        SPEC_MOUNT_PATH,
        SPEC_PERSISTENT,
        SPEC_CPUS,
        SPEC_MEMORY_MB,
        SPEC_PIDS_LIMIT,
        SPEC_READ_ONLY_ROOTFS,
        SPEC_WORKSPACE_QUOTA_MB,
    };
    for (size_t i = 0; i < ARRAY_SIZE(compared); i++) {
        const struct field *f = &spec_model.fields[compared[i]];
        char have[256];
        if (!(given & FIELD_BIT(compared[i])) || same_value(s->spec, want, f))
            continue;
        value_text(s->spec, f, have, sizeof(have));
        return err_set(err, ERR_CONFLICT, "Box session %s already exists with %s=%s",
                       s->spec->session_id, f->name, have);
    }
    return 0;
}

static int check_image(const struct manager *m, const struct spec *spec, struct err *err)
{
    if (!m->options.strict_images || str_eq(spec->image, "host"))
        return 0;
    return err_set(err, ERR_NOT_FOUND,
                   "image '%.100s' is not available: there is no image store; use image 'host', or "
                   "set image_policy: "
                   "fallback",
                   spec->image);
}

/* Takes w->spec in every case of success. */
static int acquire(struct manager *m, struct waiter *w, struct err *err)
{
    struct session *s = lookup(m, w->spec->session_id);
    int r = m->closing ? err_set(err, ERR_STATE, "boxd is shutting down") : 0;
    if (r < 0)
        return r;
    if (s != NULL && (s->state == SESSION_STOPPING || s->delete_asked)) {
        add_waiter(s, w); /* keeps its spec: the name is taken again when it is free */
        return 0;
    }
    if (s != NULL) {
        r = check_same(s, w->spec, w->given, err);
        if (r < 0)
            return r;
        spec_free(w->spec);
        w->spec = NULL;
        touch(s);
        add_waiter(s, w);
        if (s->state == SESSION_READY)
            wake(s, NULL, NULL);
        return 0;
    }
    if (m->n_sessions >= m->options.max_sessions)
        return err_set(err, ERR_LIMIT, "Box session capacity reached (%zu)",
                       m->options.max_sessions);
    r = check_image(m, w->spec, err);
    if (r < 0)
        return r;
    s = xnew(struct session);
    s->m = m;
    s->refs = 1;
    s->spec = w->spec;
    s->created_real = clock_real(loop_clock(m->loop));
    list(m, s);
    touch(s);
    r = m->backend->ops->create(m->backend, s->spec, on_created, on_lost, s, err);
    if (r < 0) {
        s->spec = xnew(struct spec);
        s->spec->session_id = xstrdup(w->spec->session_id);
        unlist(s);
        session_release(s);
        return r;
    }
    w->spec = NULL;
    add_waiter(s, w);
    return 0;
}

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
    int r = acquire(m, w, err);
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
    struct session *s = lookup(m, id);
    if (s == NULL)
        return err_set(err, ERR_NOT_FOUND, "session %s not found", id);
    for (struct waiter *o = s->waiters; o != NULL && s->state == SESSION_CREATING; o = o->next)
        if (o->ready != NULL && o->spec == NULL)
            (void)err_set(&o->err, ERR_STATE, "session '%s' was deleted while it was being created",
                          id);
    struct waiter *w = waiter_new(m, arg);
    w->gone = gone;
    add_waiter(s, w);
    stop(s);
    return 0;
}

void manager_delete_all(struct manager *m, session_gone_fn *gone, void *arg)
{
    m->closing = true;
    m->all_gone = gone;
    m->all_gone_arg = arg;
    loop_timer_stop(&m->reaper);
    if (m->n_sessions == 0)
        loop_defer_start(m->loop, &m->all_gone_defer, on_all_gone);
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        stop(s);
    }
}

static void on_reap(struct loop_timer *t)
{
    struct manager *m = container_of(t, struct manager, reaper);
    uint64_t now = clock_boot(loop_clock(m->loop));
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        if (s->state == SESSION_READY && !s->spec->persistent && s->execs == 0 &&
            now - s->used_boot >= m->options.ttl_ns) {
            log_info(s->spec->session_id, "idle for %llu s; removing the session",
                     (unsigned long long)((now - s->used_boot) / NSEC_PER_SEC));
            stop(s);
        }
    }
    loop_timer_start(m->loop, t, REAP_INTERVAL_NS, on_reap);
}

int manager_new(struct loop *loop, struct backend *backend, const struct manager_options *options,
                struct manager **ret, struct err *err)
{
    struct manager *m = xnew(struct manager);
    (void)err;
    m->loop = loop;
    m->backend = backend;
    m->options = *options;
    if (options->ttl_ns > 0) {
        uint64_t interval = options->ttl_ns < REAP_INTERVAL_NS ? options->ttl_ns : REAP_INTERVAL_NS;
        loop_timer_start(loop, &m->reaper, interval, on_reap);
    }
    *ret = m;
    return 0;
}

void manager_free(struct manager *m)
{
    if (m == NULL)
        return;
    loop_timer_stop(&m->reaper);
    loop_defer_stop(&m->all_gone_defer);
    for (struct waiter *w = m->waiters, *next; w != NULL; w = next) {
        next = w->all_next;
        waiter_free(w);
    }
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        unlist(s);
        session_release(s);
    }
    free(m);
}

struct session *manager_find(struct manager *m, const char *id)
{
    struct session *s = lookup(m, id);
    return s == NULL || s->state == SESSION_STOPPING || s->delete_asked ? NULL : s;
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

void session_hold(struct session *s)
{
    s->refs++;
}

void session_release(struct session *s)
{
    assert(s->refs > 0);
    if (--s->refs > 0)
        return;
    spec_free(s->spec);
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
    touch(s);
}

void session_exec_ends(struct session *s)
{
    assert(s->execs > 0);
    s->execs--;
    touch(s);
}
