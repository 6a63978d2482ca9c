/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the records of sessions and processes, and takes them over from an earlier daemon. A
 * record is written before boxd acknowledges anything, and dropped after the backend has let go, so
 * that a daemon that is killed at any moment finds at most too much, never too little. */

#include <stdint.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "session/record.h"
#include "session/session_internal.h"
#include "spec/process.h"
#include "spec/spec.h"
#include "store/store.h"

/* Records -------------------------------------------------------------------------------------- */

#define FLUSH_INTERVAL_NS (5ULL * NSEC_PER_SEC)
#define NUMBERS_AT_ONCE                                                                            \
    64U /* so that not every process that starts rewrites its session's record */

static int too_large(const struct session *s, struct err *err)
{
    return err_set(err, ERR_LIMIT,
                   "session '%.100s': environment and mounts are too large to be recorded (%u MiB "
                   "as JSON)",
                   session_id(s), STORE_RECORD_MAX >> 20);
}

static const char *sandbox_name(const struct session *s)
{
    if (s->kept_name != NULL)
        return s->kept_name;
    if (s->sandbox == NULL)
        return NULL;
    const struct backend_ops *ops = s->sandbox->backend->ops;
    return ops->sandbox_name != NULL ? ops->sandbox_name(s->sandbox) : NULL;
}

static int64_t clamp(uint64_t ns)
{
    return ns <= INT64_MAX ? (int64_t)ns : INT64_MAX;
}

static int put_session(struct session *s, uint32_t numbers_end, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(STORE_RECORD_MAX);
    AUTO_STRV char **ports = ports_write(s);
    const char *name = sandbox_name(s);
    if (s->m->options.store == NULL || name == NULL)
        return 0; /* a backend that cannot name it will not find it again either */
    /* Borrowed for the writing: nothing of it is freed here. */
    struct session_record record = {.spec = s->spec,
                                    .backend = (char *)(uintptr_t)session_backend_name(s),
                                    .sandbox = (char *)(uintptr_t)name,
                                    .sandbox_id = s->sandbox_id,
                                    .created_ns = clamp(s->created_real),
                                    .numbers_end = numbers_end,
                                    .lease_sec = s->lease_sec,
                                    .ports = ports,
                                    .start = s->start};
    if (session_record_write(&record, &text) < 0)
        return too_large(s, err);
    /* No boxd finds the files of a durable session without its record, so the first one must be on
     * the disk before the user puts anything there. */
    bool lasting = session_durable(s) && !s->stored;
    int r = (lasting ? store_put_session_lasting : store_put_session)(
        s->m->options.store, session_id(s), text.data, text.len, err);
    s->stored = s->stored || r == 0;
    return r;
}

int durable_put_session(struct session *s, struct err *err)
{
    return put_session(s, s->numbers_end, err);
}

void durable_drop_session(struct session *s)
{
    struct err err = {0};
    if (s->stored && store_drop_session(s->m->options.store, session_id(s), &err) < 0)
        log_warn(session_id(s), "%s; ignoring", err.msg);
    s->stored = false;
}

int durable_put_process(struct process *p, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(STORE_RECORD_MAX);
    AUTO_DONE(buf) struct buf preview = BUF_INIT(PREVIEW_BYTES);
    const struct session *s = p->session;
    if (!s->stored)
        return 0;
    struct process_record record = {.spec = p->spec,
                                    .number = p->number,
                                    .started_ns = clamp(p->started_real),
                                    .exited = p->state == PROCESS_EXITED,
                                    .exited_ns = clamp(p->exited_real),
                                    .exit_code = p->exit_code,
                                    .log = p->saved};
    if (record.exited)
        process_stderr_preview(p, &preview);
    record.stderr_text = (char *)(uintptr_t)buf_str(&preview);
    if (process_record_write(&record, &text) < 0)
        return too_large(s, err);
    return store_put_process(s->m->options.store, session_id(s), process_spec_of(p)->process_id,
                             text.data, text.len, err);
}

void durable_drop_process(struct process *p)
{
    const struct session *s = p->session;
    struct err err = {0};
    if (s->stored && store_drop_process(s->m->options.store, session_id(s),
                                        process_spec_of(p)->process_id, &err) < 0)
        log_warn(session_id(s), "%s; ignoring", err.msg);
}

int durable_take_number(struct session *s, uint32_t *ret, struct err *err)
{
    if (s->next_number == s->numbers_end) {
        if (s->numbers_end > UINT32_MAX - NUMBERS_AT_ONCE)
            return err_set(err, ERR_LIMIT,
                           "session '%.100s' has started too many processes; make a new one",
                           session_id(s));
        int r = put_session(s, s->numbers_end + NUMBERS_AT_ONCE, err);
        if (r < 0)
            return r;
        s->numbers_end += NUMBERS_AT_ONCE;
    }
    *ret = s->next_number++;
    return 0;
}

static void on_flush(struct loop_timer *t)
{
    durable_flush(container_of(t, struct manager, flusher));
}

void durable_touch(struct session *s)
{
    struct manager *m = s->m;
    if (m->options.store == NULL || s->used_dirty)
        return;
    s->used_dirty = true;
    if (m->flusher.loop == NULL)
        loop_timer_start(m->loop, &m->flusher, FLUSH_INTERVAL_NS, on_flush);
}

static int write_used(struct manager *m, struct err *err)
{
    struct store *store = m->options.store;
    int r = store_begin(store, err);
    if (r < 0)
        return r;
    struct session *s;
    TAILQ_FOREACH (s, &m->sessions, link)
        if (r == 0 && s->used_dirty && s->stored)
            r = store_set_used(store, session_id(s), s->used_real, err);
    /* A part of them is better than none: each time is independent of the others. */
    int c = store_commit(store, r < 0 ? NULL : err);
    return r < 0 ? r : c;
}

void durable_flush(struct manager *m)
{
    struct err err = {0};
    struct session *s;
    bool any = false;
    TAILQ_FOREACH (s, &m->sessions, link)
        any = any || (s->used_dirty && s->stored);
    if (any && write_used(m, &err) < 0)
        log_warn(NULL, "%s; ignoring", err.msg);
    TAILQ_FOREACH (s, &m->sessions, link)
        s->used_dirty = false;
}

/* Adoption ------------------------------------------------------------------------------------- */

struct found_sessions {
    struct manager *m;
    char **useless; /* owned; ids of records that make no sense */
    struct {
        struct session *session; /* listed, so it lives */
        struct backend *backend; /* that made it */
        char *sandbox;           /* owned */
    } * list;                    /* owned */
    size_t n;
};

struct found_process {
    struct session *session;
    char **useless; /* owned */
};

static int read_record(const struct manager *m, const char *id, const char *json, size_t len,
                       struct session_record *ret, struct err *err)
{
    int r = session_record_read(json, len, ret, err);
    if (r < 0)
        return r;
    if (!str_eq(ret->spec->session_id, id))
        r = err_set(err, ERR_INVALID, "the record is of another session");
    else if (!ret->durable && backend_find(m->backend, ret->backend) == NULL)
        r = err_set(err, ERR_NOT_FOUND, "it was on backend '%s', this is '%s'", ret->backend,
                    m->backend->ops->name);
    if (r < 0)
        session_record_done(ret);
    return r;
}

/* Sessions age by the boot clock, which cannot be set; the record has wall clock times. */
static void restore_times(struct session *s, const struct session_record *record, uint64_t used)
{
    const struct clock *clock = loop_clock(s->m->loop);
    uint64_t now = clock_real(clock), boot = clock_boot(clock);
    s->created_real = (uint64_t)record->created_ns;
    s->used_real = used > s->created_real ? used : s->created_real;
    if (s->used_real > now)
        s->used_real = now;
    s->used_boot = boot > now - s->used_real ? boot - (now - s->used_real) : 0;
    s->used_dirty = false;
}

static int on_record(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    struct found_sessions *f = arg;
    struct err err = {0};
    AUTO_DONE(session_record) struct session_record record = {0};
    if (read_record(f->m, id, json, len, &record, &err) < 0) {
        log_warn(id, "cannot be taken over from the last boxd: %s; forgetting it", err.msg);
        strv_add(&f->useless, id);
        return 0;
    }
    struct session *s = session_new(f->m, TAKE_PTR(record.spec));
    s->stored = true;
    s->sandbox_id = TAKE_PTR(record.sandbox_id);
    s->next_number = s->numbers_end = (uint32_t)record.numbers_end;
    s->lease_sec = (uint32_t)record.lease_sec;
    s->start = record.start;
    record.start.spec = NULL;
    if (record.durable) {
        s->kept_backend = xstrdup(record.backend);
        s->kept_name = xstrdup(record.sandbox);
    }
    ports_restore(s, record.ports);
    restore_times(s, &record, used);
    f->list = xreallocarray(f->list, f->n + 1, sizeof(*f->list));
    f->list[f->n].session = s;
    f->list[f->n].backend = backend_find(f->m->backend, record.backend);
    f->list[f->n++].sandbox = TAKE_PTR(record.sandbox);
    return 0;
}

static int on_process(void *arg, const char *process_id, uint64_t when, const char *json,
                      size_t len)
{
    struct found_process *f = arg;
    struct err err = {0};
    AUTO_DONE(process_record) struct process_record record = {0};
    int r = process_record_read(json, len, &record, &err);
    if (r == 0 && !str_eq(record.spec->process_id, process_id))
        r = err_set(&err, ERR_INVALID, "the record is of another process");
    if (r == 0 && f->session->sandbox == NULL && !str_eq(process_id, PROCESS_START_ID))
        r = err_set(&err, ERR_STATE, "its session is stopped");
    if (r < 0) {
        log_warn(session_id(f->session), "managed process %s: %s; forgetting it", process_id,
                 err.msg);
        strv_add(&f->useless, process_id);
        return 0;
    }
    process_adopt(f->session, &record);
    return 0;
}

void adopt_processes(struct session *s)
{
    struct found_process f = {.session = s};
    struct store *store = s->m->options.store;
    struct err err = {0};
    if (store_each_process(store, session_id(s), on_process, &f, &err) < 0)
        log_warn(session_id(s), "%s; ignoring", err.msg);
    struct process *p;
    TAILQ_FOREACH (p, &s->processes, link)
        process_record_exit(p); /* not while we read */
    for (size_t i = 0; f.useless != NULL && f.useless[i] != NULL; i++)
        (void)store_drop_process(store, session_id(s), f.useless[i], NULL);
    strv_free(f.useless);
}

static void on_told(struct loop_defer *d)
{
    struct manager *m = container_of(d, struct manager, adopt.defer);
    session_gone_fn *done = TAKE_PTR(m->adopt.done);
    reap_exited(m);
    done(m->adopt.arg, m->adopt.err.code != ERR_NONE ? &m->adopt.err : NULL);
}

static void on_swept(void *arg, const struct err *err)
{
    struct manager *m = arg;
    if (err != NULL)
        m->adopt.err = *err;
    loop_defer_start(m->loop, &m->adopt.defer, on_told);
}

void adopt_finished_one(struct manager *m)
{
    const struct backend_ops *ops = m->backend->ops;
    if (--m->adopt.pending > 0)
        return;
    if (ops->sweep == NULL)
        on_swept(m, NULL);
    else if (ops->sweep(m->backend, on_swept, m, &m->adopt.err) < 0)
        on_swept(m, NULL); /* the error is there */
}

int manager_adopt(struct manager *m, session_gone_fn *done, void *arg, struct err *err)
{
    struct found_sessions f = {.m = m};
    int r = m->options.store != NULL ? store_each_session(m->options.store, on_record, &f, err) : 0;
    if (r == 0) {
        m->adopt.done = done;
        m->adopt.arg = arg;
        m->adopt.pending = f.n + 1; /* one for us: the sweep waits until all were asked for */
    }
    for (size_t i = 0; f.useless != NULL && f.useless[i] != NULL && r == 0; i++)
        (void)store_drop_session(m->options.store, f.useless[i], NULL);
    for (size_t i = 0; i < f.n; i++) {
        struct err why = {0};
        if (r < 0) {
            session_unlist(f.list[i].session);
            session_release(f.list[i].session);
        } else if (session_adopt(f.list[i].session, f.list[i].backend, f.list[i].sandbox, &why) <
                   0) {
            session_fail(f.list[i].session, &why);
            adopt_finished_one(m);
        }
        free(f.list[i].sandbox);
    }
    strv_free(f.useless);
    free(f.list);
    if (r == 0)
        adopt_finished_one(m);
    return r;
}
