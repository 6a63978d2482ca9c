/* SPDX-License-Identifier: Apache-2.0 */

/* A record is written before anything is acknowledged and dropped after the backend has let go, so
 * that a daemon that is killed at any moment finds at most too much, never too little. */

#include <errno.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/log.h"
#include "session/record.h"
#include "session/session_internal.h"
#include "spec/process.h"
#include "store/store.h"

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
    const struct backend_ops *ops = s->sandbox->backend->ops;
    return ops->sandbox_name != NULL ? ops->sandbox_name(s->sandbox) : NULL;
}

static int64_t clamp(uint64_t ns)
{
    return ns <= INT64_MAX ? (int64_t)ns : INT64_MAX;
}

static int put_session(struct session *s, uint32_t numbers_end, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    const char *name = sandbox_name(s);
    buf_init(&text, STORE_RECORD_MAX);
    if (s->m->options.store == NULL || name == NULL)
        return 0; /* a backend that cannot name it will not find it again either */
    /* Borrowed for the writing: nothing of it is freed here. */
    struct session_record record = {.spec = s->spec,
                                    .backend = (char *)(uintptr_t)s->sandbox->backend->ops->name,
                                    .sandbox = (char *)(uintptr_t)name,
                                    .sandbox_id = s->sandbox_id,
                                    .created_ns = clamp(s->created_real),
                                    .numbers_end = numbers_end,
                                    .lease_sec = s->lease_sec};
    if (session_record_write(&record, &text) < 0)
        return too_large(s, err);
    int r = store_put_session(s->m->options.store, session_id(s), text.data, text.len, err);
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
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(buf) struct buf preview;
    const struct session *s = p->session;
    buf_init(&text, STORE_RECORD_MAX);
    buf_init(&preview, PREVIEW_BYTES);
    if (!s->stored)
        return 0;
    struct process_record record = {.spec = p->spec,
                                    .number = p->number,
                                    .started_ns = clamp(p->started_real),
                                    .exited = p->state == PROCESS_EXITED,
                                    .exited_ns = clamp(p->exited_real),
                                    .exit_code = p->exit_code};
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
    for (struct session *s = m->first; s != NULL && r == 0; s = s->next)
        if (s->used_dirty && s->stored)
            r = store_set_used(store, session_id(s), s->used_real, err);
    /* Half of it is better than nothing: each time stands for itself. */
    int c = store_commit(store, r < 0 ? NULL : err);
    return r < 0 ? r : c;
}

void durable_flush(struct manager *m)
{
    struct err err = {0};
    bool any = false;
    for (struct session *s = m->first; s != NULL && !any; s = s->next)
        any = s->used_dirty && s->stored;
    if (any && write_used(m, &err) < 0)
        log_warn(NULL, "%s; ignoring", err.msg);
    for (struct session *s = m->first; s != NULL; s = s->next)
        s->used_dirty = false;
}
