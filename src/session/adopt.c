/* SPDX-License-Identifier: Apache-2.0 */

/* A new daemon takes over what the last one left: what the store names is looked for, and what it
 * does not name is ended. */

#include <errno.h>

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

struct found {
    struct manager *m;
    char **useless; /* owned; ids of records that say nothing we can use */
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
    else if (backend_find(m->backend, ret->backend) == NULL)
        r = err_set(err, ERR_NOT_FOUND, "it was on backend '%s', this is '%s'", ret->backend,
                    m->backend->ops->name);
    if (r < 0)
        session_record_done(ret);
    return r;
}

/* Sessions age by a clock that nobody sets; the record has the other. */
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
    struct found *f = arg;
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
    restore_times(s, &record, used);
    f->list = xreallocarray(f->list, f->n + 1, sizeof(*f->list));
    f->list[f->n].session = s;
    f->list[f->n].backend = backend_find(f->m->backend, record.backend);
    f->list[f->n++].sandbox = TAKE_PTR(record.sandbox);
    return 0;
}

static int on_process(void *arg, const char *process_id, const char *json, size_t len)
{
    struct found_process *f = arg;
    struct err err = {0};
    AUTO_DONE(process_record) struct process_record record = {0};
    int r = process_record_read(json, len, &record, &err);
    if (r == 0 && !str_eq(record.spec->process_id, process_id))
        r = err_set(&err, ERR_INVALID, "the record is of another process");
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
    for (struct process *p = s->processes; p != NULL; p = p->next)
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
    struct found f = {.m = m};
    int r = m->options.store != NULL ? store_each_session(m->options.store, on_record, &f, err) : 0;
    if (r == 0) {
        m->adopt.done = done;
        m->adopt.arg = arg;
        m->adopt.pending = f.n + 1; /* ours, so that nothing is swept before all were asked for */
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
