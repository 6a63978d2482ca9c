/* SPDX-License-Identifier: Apache-2.0 */

/* Managed processes: how they are started, replaced, stopped and found, and what happens to one
 * until it is forgotten. */

#include "session/process.h"

#include <assert.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/share.h"
#include "session/record.h"
#include "session/session_internal.h"
#include "spec/process.h"
#include "spec/spec.h"

/* Notices -------------------------------------------------------------------------------------- */

static struct notice *notice_new(struct process *p, void *arg)
{
    struct manager *m = p->session->m;
    struct notice *n = xnew(struct notice);
    n->m = m;
    n->process = p;
    n->arg = arg;
    n->request = log_scope_now();
    LIST_INSERT_HEAD(&p->notices, n, link);
    LIST_INSERT_HEAD(&m->notices, n, all_link);
    return n;
}

static void notice_leave(struct notice *n)
{
    if (n->process == NULL)
        return;
    LIST_REMOVE(n, link);
    n->process = NULL;
}

void notice_free(struct notice *n)
{
    notice_leave(n);
    LIST_REMOVE(n, all_link);
    loop_defer_stop(&n->defer);
    free(n);
}

static void on_notice(struct loop_defer *d)
{
    struct notice *n = container_of(d, struct notice, defer);
    const struct err *err = n->err.code != ERR_NONE ? &n->err : NULL;
    LOG_REQUEST(n->request.id);
    if (n->started != NULL)
        n->started(n->arg, err == NULL ? n->process : NULL, err);
    else if (n->stopped != NULL)
        n->stopped(n->arg, err);
    notice_free(n);
}

static void notice_tell(struct notice *n)
{
    loop_defer_start(n->m->loop, &n->defer, on_notice);
}

static void notices_fail_all(struct process *p, const struct err *err)
{
    for (struct notice *n; (n = LIST_FIRST(&p->notices)) != NULL;) {
        notice_leave(n);
        n->err = *err;
        notice_tell(n);
    }
}

static void notices_tell_all(struct process *p, const struct err *start_err)
{
    for (struct notice *n; (n = LIST_FIRST(&p->notices)) != NULL;) {
        notice_leave(n);
        if (n->started != NULL)
            n->err = *start_err;
        notice_tell(n);
    }
}

/* The life of one ------------------------------------------------------------------------------ */

#define MIB (1024ULL * 1024ULL)
#define GRACE_NS (5ULL * NSEC_PER_SEC)
#define LINGER_NS NSEC_PER_SEC /* for output that is still on its way when a process has ended */

static const unsigned moves[PROCESS_STATE_MAX] = {
    [PROCESS_STARTING] = 1U << PROCESS_RUNNING | 1U << PROCESS_EXITED,
    [PROCESS_RUNNING] = 1U << PROCESS_STOPPING | 1U << PROCESS_EXITED,
    [PROCESS_STOPPING] = 1U << PROCESS_EXITED, /* of the start command of a session that stops */
};

static void process_move(struct process *p, enum process_state to)
{
    STATE_MOVE(p->state, moves, to);
}

static const struct backend_ops *ops(const struct process *p)
{
    return p->proc->backend->ops;
}

static struct process *process_new(struct session *s, struct process_spec *spec)
{
    struct process *p = xnew(struct process);
    p->session = s;
    p->spec = spec;
    buf_init(&p->preview, PREVIEW_BYTES);
    buf_init(&p->saved, PROCESS_SAVED_MAX);
    return p;
}

static void count_running(struct process *p, bool on)
{
    struct session *s = p->session;
    s->n_running += on ? 1 : (size_t)-1;
    s->m->n_running += on ? 1 : (size_t)-1;
    if (on)
        p->share = shares_take(s->m->options.shares, p->spec->owner, SHARE_PROCESSES);
    else
        share_give(TAKE_PTR(p->share), SHARE_PROCESSES);
    if (on)
        session_busy(s);
}

/* By the time of exit; nearly always the last. */
static void list_exited(struct process *p)
{
    struct manager *m = p->session->m;
    struct process *before;
    TAILQ_FOREACH_REVERSE(before, &m->exited, exited_list, exited_link)
    if (before->exited_real <= p->exited_real)
        break;
    if (before != NULL)
        TAILQ_INSERT_AFTER(&m->exited, before, p, exited_link);
    else
        TAILQ_INSERT_HEAD(&m->exited, p, exited_link);
    m->n_exited++;
}

/* Waiting callers get their answer first: a stop has succeeded, a start has failed. */
static void tell_gone(struct process *p)
{
    struct err err = {0};
    if (LIST_EMPTY(&p->notices))
        return;
    assert(p->spec != NULL);
    (void)err_set(&err, ERR_STATE, "managed process %.100s was ended before its start was reported",
                  p->spec->process_id);
    notices_tell_all(p, &err);
}

static void process_free(struct process *p)
{
    assert(p->successor == NULL);
    tell_gone(p);
    readers_end(p);
    loop_timer_stop(&p->timer);
    loop_timer_stop(&p->limit);
    if (p->state == PROCESS_EXITED) {
        struct manager *m = p->session->m;
        TAILQ_REMOVE(&m->exited, p, exited_link);
        m->n_exited--;
    } else if (process_running(p)) {
        count_running(p, false);
    }
    if (p->proc != NULL)
        ops(p)->proc_free(p->proc);
    if (p->state != PROCESS_STARTING)
        TAILQ_REMOVE(&p->session->processes, p, link);
    process_spec_free(p->spec);
    free(p->reason);
    buf_done(&p->preview);
    buf_done(&p->saved);
    free(p);
}

static void process_cancel(struct process *p, const struct err *err)
{
    notices_tell_all(p, err);
    process_free(p);
}

void process_forget(struct process *p)
{
    assert(p->state == PROCESS_EXITED);
    durable_drop_process(p);
    process_free(p);
}

static void process_tell(const struct process *p, enum event_kind kind)
{
    events_emit(p->session->m->options.events, &(struct event){.kind = kind,
                                                               .session = session_id(p->session),
                                                               .name = p->spec->process_id,
                                                               .bound = p->session->spec->own.bound,
                                                               .uid = p->session->spec->own.uid,
                                                               .exit_code = p->exit_code});
}

static void on_time_up(struct loop_timer *t)
{
    struct process *p = container_of(t, struct process, limit);
    AUTO_FREE char *why =
        xasprintf("its %lld s are over (timeout_sec)", (long long)p->spec->timeout_sec);
    process_kill(p, why);
}

/* Counted from the start by the wall clock, so that a restart of boxd does not begin it anew. */
static void limit_time(struct process *p)
{
    struct loop *loop = p->session->m->loop;
    uint64_t limit = (uint64_t)p->spec->timeout_sec * NSEC_PER_SEC;
    uint64_t now = clock_real(loop_clock(loop));
    uint64_t age = now > p->started_real ? now - p->started_real : 0;
    if (limit > 0)
        loop_timer_start(loop, &p->limit, age < limit ? limit - age : 0, on_time_up);
}

static void process_list_running(struct process *p)
{
    process_move(p, PROCESS_RUNNING);
    TAILQ_INSERT_TAIL(&p->session->processes, p, link);
    count_running(p, true);
    p->session->m->metrics.processes_started++;
    session_touch(p->session);
    limit_time(p);
    process_tell(p, EVENT_PROCESS_STARTED);
}

void process_settle(struct process *p)
{
    if (p->state != PROCESS_EXITED || p->proc == NULL)
        return;
    struct proc_range range = ops(p)->proc_range(p->proc);
    if (range.eof && range.begin == range.end)
        readers_end_turns(p);
}

/* The time for its last output is over. After a restart only this part of it is left. */
static void on_lingered(struct loop_timer *t)
{
    process_record_exit(container_of(t, struct process, timer));
}

/* As Python's subprocess tells it. */
static int exit_code(const struct outcome *o)
{
    if (o->kind == OUTCOME_EXITED || o->kind == OUTCOME_QUOTA_EXCEEDED)
        return o->exit_code;
    return o->kind == OUTCOME_SIGNALED ? -o->signo : -SIGKILL;
}

static void become_exited(struct process *p)
{
    process_move(p, PROCESS_EXITED);
    list_exited(p);
}

void process_record_exit(struct process *p)
{
    struct err err = {0};
    if (p->state == PROCESS_EXITED && durable_put_process(p, &err) < 0)
        log_warn(session_id(p->session), "%s; ignoring", err.msg);
}

static void tell_exit(struct process *p)
{
    const struct clock *clock = loop_clock(p->session->m->loop);
    p->session->m->metrics.processes_exited++;
    p->exited_real = clock_real(clock);
    p->exited_boot = clock_boot(clock);
    process_tell(p, EVENT_PROCESS_EXITED);
}

static const struct proc_events process_events;

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
        .log = p->spec->log,
        .with_stdin = p->spec->with_stdin,
        .tty = p->spec->tty,
        .rows = (uint16_t)p->spec->rows,
        .cols = (uint16_t)p->spec->cols,
    };
    return sb->backend->ops->proc_start(sb, &request, &process_events, p, &p->proc, err);
}

static int process_launch(struct process *p, struct err *err)
{
    int r = start_proc(p, err);
    if (r < 0)
        return r;
    p->started_real = clock_real(loop_clock(p->session->m->loop));
    r = durable_put_process(p, err);
    if (r < 0) {
        p->proc->backend->ops->proc_free(p->proc); /* no caller was told that it runs */
        p->proc = NULL;
        return r;
    }
    process_list_running(p);
    struct notice *n;
    LIST_FOREACH (n, &p->notices, link)
        notice_tell(n);
    return 0;
}

/* Its session stops, and the sandbox goes: how it ended and the end of its log stay. */
static void process_outlive(struct process *p)
{
    tell_gone(p);
    loop_timer_stop(&p->timer);
    loop_timer_stop(&p->limit);
    if (process_running(p)) {
        count_running(p, false);
        if (p->exited_real == 0) {
            p->exit_code = -SIGKILL;
            tell_exit(p);
        }
        become_exited(p);
    }
    if (p->proc != NULL) {
        process_save_log(p);
        ops(p)->proc_free(p->proc);
        p->proc = NULL;
    }
    process_record_exit(p);
    readers_tell_output(p);
}

/* It was to end, and has (`why` NULL), or its session has to for it. Its successor's turn, or
 * perhaps its session's. */
static void on_stopped(struct process *p, const struct err *why)
{
    struct session *s = p->session;
    struct process *next = TAKE_PTR(p->successor);
    struct err err = {0};
    if (why != NULL) {
        log_error(session_id(s), "managed process %s: %s", p->spec->process_id, why->msg);
        notices_fail_all(p, why);
        if (next != NULL)
            process_cancel(TAKE_PTR(next), why);
    }
    if (start_is(p) && s->state == SESSION_HALTING) {
        process_outlive(p);
    } else {
        if (start_is(p) && s->state == SESSION_READY)
            start_unwanted(s); /* a client has ended it */
        durable_drop_process(p);
        process_free(p);
    }
    session_touch(s);
    if (next != NULL && process_launch(next, &err) < 0)
        process_cancel(next, &err);
    if (s->n_running == 0)
        session_processes_gone(s);
}

static void on_ended(void *arg, const struct err *err)
{
    struct process *p = arg;
    if (p->exited_real == 0) { /* boxd does not wait for the backend to report it */
        p->exit_code = -SIGKILL;
        tell_exit(p);
    }
    on_stopped(p, err);
}

/* The caller hears that it has stopped only when all is gone that it started. */
static void end_tree(struct process *p)
{
    loop_timer_stop(&p->timer);
    ops(p)->proc_end(p->proc, on_ended, p);
}

/* One that never ran, or was killed by the kernel, has said nothing about it itself. People look
 * for the reason where they would look for its own words. */
static void explain(struct process *p, const struct outcome *o)
{
    if (o->error[0] != '\0')
        (void)buf_printf(&p->preview, "%.500s: %s", p->spec->command, o->error);
    else if (o->kind == OUTCOME_OOM_KILLED)
        (void)buf_puts(&p->preview, "Process was killed: the session is out of memory.");
    else if (p->reason != NULL)
        (void)buf_printf(&p->preview, "Process was killed: %s", p->reason);
}

static void on_exited(void *arg, const struct outcome *outcome)
{
    struct process *p = arg;
    struct manager *m = p->session->m;
    if (p->state == PROCESS_EXITED)
        return; /* an earlier daemon has written down how */
    p->exit_code = exit_code(outcome);
    explain(p, outcome);
    loop_timer_stop(&p->timer);
    loop_timer_stop(&p->limit);
    tell_exit(p);
    if (p->state == PROCESS_STOPPING && outcome->kind == OUTCOME_SESSION_LOST) {
        on_stopped(p, NULL);
        return;
    }
    if (p->state == PROCESS_STOPPING) {
        end_tree(p);
        return;
    }
    count_running(p, false);
    become_exited(p);
    process_record_exit(p);
    session_touch(p->session);
    loop_timer_start(m->loop, &p->timer, LINGER_NS, on_lingered);
    process_settle(p);
    start_process_ended(p);
    readers_tell_output(p);
    reap_exited(m);
}

static void count_output(struct process *p)
{
    uint64_t end = ops(p)->proc_range(p->proc).end;
    if (end > p->counted)
        p->session->m->metrics.process_bytes += end - p->counted;
    p->counted = end;
}

/* A reader may end anything in its callback, so readers come last. */
static void on_output(void *arg)
{
    struct process *p = arg;
    count_output(p);
    process_settle(p);
    readers_tell_output(p);
}

static void on_drained(void *arg)
{
    readers_tell_drained(arg);
}

static const struct proc_events process_events = {
    .output = on_output, .stdin_drained = on_drained, .exited = on_exited};

static void on_grace_over(struct loop_timer *t)
{
    struct process *p = container_of(t, struct process, timer);
    log_info(session_id(p->session), "managed process %s does not end; killing it",
             p->spec->process_id);
    end_tree(p);
}

/* It should be dead by now. A process that cannot be killed alone ends with its session. */
static void on_kill_overdue(struct loop_timer *t)
{
    struct process *p = container_of(t, struct process, timer);
    log_error(session_id(p->session),
              "managed process %s was killed and runs on; removing its session",
              p->spec->process_id);
    session_stop(p->session);
}

void process_kill(struct process *p, const char *why)
{
    if (!process_running(p) || p->proc == NULL)
        return;
    free(p->reason);
    p->reason = why != NULL ? xstrdup(why) : NULL;
    ops(p)->proc_kill(p->proc);
    if (p->state == PROCESS_RUNNING && p->timer.loop == NULL)
        loop_timer_start(p->session->m->loop, &p->timer, BACKEND_OVERDUE_NS, on_kill_overdue);
}

const char *process_reason(const struct process *p)
{
    return p->reason;
}

int process_signal(struct process *p, int signo, struct err *err)
{
    if (!process_running(p) || p->proc == NULL)
        return err_set(err, ERR_STATE, "process %.100s of session '%.100s' does not run",
                       p->spec->process_id, session_id(p->session));
    if (signo == SIGKILL)
        process_kill(p, NULL);
    else
        ops(p)->proc_signal(p->proc, signo);
    return 0;
}

void process_resize(struct process *p, uint16_t rows, uint16_t cols)
{
    if (p->proc != NULL && p->spec->tty)
        ops(p)->proc_resize(p->proc, rows, cols);
}

int process_check_plain(const struct process *p, struct err *err)
{
    if (!p->spec->log)
        return 0;
    return err_set(
        err, ERR_CONFLICT,
        "process %.100s keeps a log; read it with 'box logs', or at …/processes/%.100s/log",
        p->spec->process_id, p->spec->process_id);
}

static void process_terminate(struct process *p)
{
    if (p->state != PROCESS_RUNNING)
        return;
    process_move(p, PROCESS_STOPPING);
    readers_end_turns(p);
    ops(p)->proc_close_stdin(p->proc);
    ops(p)->proc_signal(p->proc, SIGTERM);
    if (p->spec->tty) /* shells ignore TERM there, and obey HUP */
        ops(p)->proc_signal(p->proc, SIGHUP);
    loop_timer_start(p->session->m->loop, &p->timer, GRACE_NS, on_grace_over);
}

void processes_stop_all(struct session *s)
{
    struct err err = {0};
    (void)err_set(&err, ERR_STATE, "session %.200s was ended meanwhile", session_id(s));
    struct process *p;
    TAILQ_FOREACH (p, &s->processes, link) {
        if (p->successor != NULL)
            process_cancel(TAKE_PTR(p->successor), &err);
        process_terminate(p);
    }
}

static void process_drop(struct process *p, bool backend_is_there)
{
    struct err err = {0};
    (void)err_set(&err, ERR_STATE, "session %.200s was ended meanwhile", session_id(p->session));
    if (p->successor != NULL)
        process_cancel(TAKE_PTR(p->successor), &err);
    if (!backend_is_there)
        p->proc = NULL;
    process_free(p);
}

void processes_drop_all(struct session *s, bool backend_is_there)
{
    struct process *p, *next;
    TAILQ_FOREACH_SAFE (p, &s->processes, link, next)
        process_drop(p, backend_is_there);
}

void processes_halted(struct session *s)
{
    struct process *p, *next;
    TAILQ_FOREACH_SAFE (p, &s->processes, link, next) {
        if (start_is(p)) {
            process_outlive(p);
            continue;
        }
        durable_drop_process(p);
        process_drop(p, true);
    }
}

/* How it ended: as the record has it, or unseen. */
static void restore_exit(struct process *p, const struct process_record *record)
{
    const struct clock *clock = loop_clock(p->session->m->loop);
    uint64_t now = clock_real(clock), boot = clock_boot(clock);
    uint64_t gone = (uint64_t)record->exited_ns;
    if (!record->exited)
        log_warn(session_id(p->session), "managed process %s has ended while no boxd was there",
                 p->spec->process_id);
    p->exit_code = record->exited ? (int)record->exit_code : -SIGKILL;
    p->exited_real = record->exited && gone < now ? gone : now;
    uint64_t age = now - p->exited_real;
    p->exited_boot = boot > age ? boot - age : 0;
    (void)buf_puts(&p->preview, record->stderr_text);
    (void)buf_append(&p->saved, buf_str(&record->log), record->log.len);
}

void process_adopt(struct session *s, struct process_record *record)
{
    const struct backend_ops *b = s->sandbox != NULL ? s->sandbox->backend->ops : NULL;
    struct err err = {0};
    struct process *p = process_new(s, TAKE_PTR(record->spec));
    p->number = (uint32_t)record->number;
    p->started_real = (uint64_t)record->started_ns;
    TAILQ_INSERT_TAIL(&p->session->processes, p, link);
    /* Of one that has ended there may still be output. */
    bool found = b != NULL && b->proc_adopt != NULL &&
                 b->proc_adopt(s->sandbox, p->number, &process_events, p, &p->proc, &err) == 0;
    if (found) /* an earlier daemon has counted the output before */
        p->counted = b->proc_range(p->proc).end;
    if (found && !record->exited) {
        process_move(p, PROCESS_RUNNING);
        count_running(p, true);
        limit_time(p);
        return;
    }
    restore_exit(p, record);
    become_exited(p);
}

/* Starting and stopping ------------------------------------------------------------------------ */

/* The one of that name, whatever its state. A successor is found through it. */
struct process *process_find(struct session *s, const char *process_id)
{
    struct process *p;
    TAILQ_FOREACH (p, &s->processes, link)
        if (str_eq(p->spec->process_id, process_id))
            return p;
    return NULL;
}

/* A process that replaces another of the same token needs no further share. */
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

/* It waits for its predecessor's end. A successor that waited before it gets an error: it never
 * ran. */
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
    assert(*spec != NULL);
    if (session_sandbox(s) == NULL)
        return err_set(err, ERR_STATE, "session %.200s is being deleted", session_id(s));
    reap_exited(m);
    struct process *old = process_find(s, (*spec)->process_id);
    if (old != NULL && old->spec->log && process_running(old))
        return err_set(
            err, ERR_CONFLICT,
            "process %.100s of session '%.100s' runs already; end it with 'box kill', or "
            "choose another id",
            old->spec->process_id, session_id(s));
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
    struct process *p = process_find(s, process_id);
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

struct process *process_next(struct session *s, struct process *after)
{
    return after == NULL ? TAILQ_FIRST(&s->processes) : TAILQ_NEXT(after, link);
}

const struct process_spec *process_spec_of(const struct process *p)
{
    return p->spec;
}

struct session *process_session(const struct process *p)
{
    return p->session;
}

uint32_t process_number(const struct process *p)
{
    return p->number;
}

bool process_running(const struct process *p)
{
    return p->state == PROCESS_RUNNING || p->state == PROCESS_STOPPING;
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

size_t manager_processes_running(const struct manager *m)
{
    return m->n_running;
}

size_t manager_processes_exited(const struct manager *m)
{
    return m->n_exited;
}
