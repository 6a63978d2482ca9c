/* SPDX-License-Identifier: Apache-2.0 */

/* Starts, replaces, stops and finds managed processes. */

#include "session/process.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/share.h"
#include "session/session_internal.h"
#include "spec/process.h"
#include "spec/spec.h"

#define MIB (1024ULL * 1024ULL)

static int start_proc(struct process *p, struct err *err)
{
    struct session *s = p->session;
    struct sandbox *sb = session_sandbox(s);
    AUTO_STRV char **argv = NULL;
    if (sb == NULL)
        return err_set(err, ERR_STATE, "session '%s' is not running", session_id(s));
    if (sb->backend->ops->proc_start == NULL)
        return err_set(err, ERR_UNSUPPORTED, "%s backend does not support managed processes",
                       sb->backend->ops->name);
    int r = durable_take_number(s, &p->number, err);
    if (r < 0)
        return r;
    strv_add(&argv, p->spec->command);
    for (size_t i = 0; p->spec->args != NULL && p->spec->args[i] != NULL; i++)
        strv_add(&argv, p->spec->args[i]);
    const struct proc_request request = {
        .number = p->number,
        .argv = argv,
        .env = session_spec(p->session)->own.env_locked ? NULL : p->spec->env,
        .cwd = p->spec->cwd,
        .memory_bytes = p->spec->memory_mb > 0 ? (uint64_t)p->spec->memory_mb * MIB : 0,
    };
    return sb->backend->ops->proc_start(sb, &request, &process_events, p, &p->proc, err);
}

int process_launch(struct process *p, struct err *err)
{
    int r = start_proc(p, err);
    if (r < 0)
        return r;
    p->started_real = clock_real(loop_clock(p->session->m->loop));
    r = durable_put_process(p, err);
    if (r < 0) {
        p->proc->backend->ops->proc_free(p->proc); /* nobody was told that it runs */
        p->proc = NULL;
        return r;
    }
    process_list_running(p);
    for (struct notice *n = p->notices; n != NULL; n = n->next)
        notice_tell(n);
    return 0;
}

/* The one of that name, whatever its state. A successor is found through it. */
static struct process *lookup(struct session *s, const char *process_id)
{
    struct process *p = s->processes;
    while (p != NULL && !str_eq(p->spec->process_id, process_id))
        p = p->next;
    return p;
}

/* One that takes the place of another of the same token needs no more of its share. */
static int check_room(const struct manager *m, const struct process *old,
                      const struct process_spec *spec, struct err *err)
{
    bool replaces = old != NULL && process_running(old);
    size_t others = m->n_running - (replaces ? 1 : 0);
    if (others >= m->options.max_processes)
        return err_set(err, ERR_LIMIT, "Box managed process capacity reached (%zu)",
                       m->options.max_processes);
    if (replaces && spec->owner != NULL && str_eq(old->spec->owner, spec->owner))
        return 0;
    return shares_check(m->options.shares, spec->owner, SHARE_PROCESSES, err);
}

/* It waits for its predecessor's end. One that waited already is told that it never ran. */
static void succeed(struct process *old, struct process *p)
{
    struct err err = {0};
    if (old->successor != NULL) {
        (void)err_set(&err, ERR_STATE, "managed process %.100s was replaced before it started",
                      p->spec->process_id);
        process_cancel(TAKE_PTR(old->successor), &err);
    }
    old->successor = p;
    process_terminate(old);
}

int process_start(struct session *s, struct process_spec **spec, process_started_fn *started,
                  void *arg, struct err *err)
{
    struct manager *m = s->m;
    if (session_sandbox(s) == NULL)
        return err_set(err, ERR_STATE, "session %.200s is being deleted", session_id(s));
    reap_exited(m);
    struct process *old = lookup(s, (*spec)->process_id);
    int r = check_room(m, old, *spec, err);
    if (r < 0)
        return r;
    struct process *p = process_new(s, *spec);
    struct notice *n = notice_new(p, arg);
    n->started = started;
    if (old != NULL && process_running(old)) {
        succeed(old, p);
    } else {
        r = process_launch(p, err);
        if (r < 0) {
            notice_free(n);
            p->spec = NULL; /* stays the caller's */
            process_free(p);
            return r;
        }
        if (old != NULL) /* its record has been overwritten */
            process_free(old);
    }
    *spec = NULL;
    return 0;
}

int process_stop(struct session *s, const char *process_id, process_stopped_fn *stopped, void *arg,
                 struct err *err)
{
    struct process *p = lookup(s, process_id);
    struct err cancelled = {0};
    if (p == NULL)
        return err_missing(err, ERR_THING_PROCESS,
                           "session %.150s has no managed process with process_id=%.100s",
                           session_id(s), process_id);
    notice_new(p, arg)->stopped = stopped;
    if (p->successor != NULL) {
        (void)err_set(&cancelled, ERR_STATE, "managed process %.100s was stopped before it started",
                      process_id);
        process_cancel(TAKE_PTR(p->successor), &cancelled);
    }
    if (p->state == PROCESS_EXITED)
        process_forget(p);
    else
        process_terminate(p);
    return 0;
}

struct process *process_find(struct session *s, const char *process_id)
{
    return lookup(s, process_id);
}

struct process *process_next(struct session *s, struct process *after)
{
    return after == NULL ? s->processes : after->next;
}

const struct process_spec *process_spec_of(const struct process *p)
{
    return p->spec;
}

struct session *process_session(const struct process *p)
{
    return p->session;
}

bool process_running(const struct process *p)
{
    return p->state == PROCESS_RUNNING || p->state == PROCESS_STOPPING;
}

bool process_attached(const struct process *p)
{
    return p->readers != NULL;
}

uint64_t process_started_at(const struct process *p)
{
    return p->started_real;
}

uint64_t process_exited_at(const struct process *p)
{
    return p->exited_real;
}

int process_exit_code(const struct process *p)
{
    return p->exit_code;
}

void process_stderr_preview(struct process *p, struct buf *ret)
{
    char tail[PREVIEW_BYTES];
    size_t n = 0;
    if (p->proc != NULL)
        n = p->proc->backend->ops->proc_stderr(p->proc, tail, sizeof(tail));
    if (n > 0)
        preview_write(tail, n, n == sizeof(tail), ret);
    else
        (void)buf_append(ret, buf_str(&p->preview), p->preview.len);
}

size_t process_stderr_from(struct process *p, uint64_t *at, char *buf, size_t size)
{
    return p->proc == NULL ? 0 : p->proc->backend->ops->proc_stderr_from(p->proc, at, buf, size);
}

size_t manager_processes_running(const struct manager *m)
{
    return m->n_running;
}

size_t manager_processes_exited(const struct manager *m)
{
    return m->n_exited;
}
