/* SPDX-License-Identifier: Apache-2.0 */

/* What happens to a process between its start and the moment it is forgotten. */

#include <assert.h>
#include <signal.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "policy/share.h"
#include "session/record.h"
#include "session/session_internal.h"
#include "spec/process.h"

#define GRACE_NS (5ULL * NSEC_PER_SEC)
#define LINGER_NS NSEC_PER_SEC /* for output that is still on its way when a process has ended */

static const struct {
    const char *name;
    unsigned next; /* set of states this one may move to */
} states[PROCESS_STATE_MAX] = {
    [PROCESS_STARTING] = {"starting", 1U << PROCESS_RUNNING | 1U << PROCESS_EXITED},
    [PROCESS_RUNNING] = {"running", 1U << PROCESS_STOPPING | 1U << PROCESS_EXITED},
    [PROCESS_STOPPING] = {"stopping", 0},
    [PROCESS_EXITED] = {"exited", 0},
};

static void process_move(struct process *p, enum process_state to)
{
    assert(states[p->state].next & (1U << to));
    p->state = to;
}

static const struct backend_ops *ops(const struct process *p)
{
    return p->proc->backend->ops;
}

struct process *process_new(struct session *s, struct process_spec *spec)
{
    struct process *p = xnew(struct process);
    p->session = s;
    p->spec = spec;
    buf_init(&p->preview, PREVIEW_BYTES);
    return p;
}

static void list(struct process *p)
{
    struct session *s = p->session;
    p->prev = s->last_process;
    if (p->prev != NULL)
        p->prev->next = p;
    else
        s->processes = p;
    s->last_process = p;
}

static void unlist(struct process *p)
{
    struct session *s = p->session;
    if (p->prev == NULL && s->processes != p)
        return; /* it never ran */
    if (p->prev != NULL)
        p->prev->next = p->next;
    else
        s->processes = p->next;
    if (p->next != NULL)
        p->next->prev = p->prev;
    else
        s->last_process = p->prev;
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
}

/* By the time of exit; nearly always the last. */
static void list_exited(struct process *p)
{
    struct manager *m = p->session->m;
    struct process *before = m->exited_last;
    while (before != NULL && before->exited_real > p->exited_real)
        before = before->older;
    p->older = before;
    p->newer = before != NULL ? before->newer : m->exited_first;
    *(before != NULL ? &before->newer : &m->exited_first) = p;
    *(p->newer != NULL ? &p->newer->older : &m->exited_last) = p;
    m->n_exited++;
}

static void unlist_exited(struct process *p)
{
    struct manager *m = p->session->m;
    *(p->older != NULL ? &p->older->newer : &m->exited_first) = p->newer;
    *(p->newer != NULL ? &p->newer->older : &m->exited_last) = p->older;
    m->n_exited--;
}

/* Who still waits hears of it first: a stop has come true, a start has not. */
static void tell_gone(struct process *p)
{
    struct err err = {0};
    if (p->notices == NULL)
        return;
    (void)err_set(&err, ERR_STATE, "managed process %.100s was ended before its start was told",
                  p->spec->process_id);
    notices_tell_all(p, &err);
}

void process_free(struct process *p)
{
    assert(p->successor == NULL);
    tell_gone(p);
    attachments_end(p);
    process_watches_end(p);
    loop_timer_stop(&p->timer);
    if (p->state == PROCESS_EXITED)
        unlist_exited(p);
    else if (process_running(p))
        count_running(p, false);
    if (p->proc != NULL)
        ops(p)->proc_free(p->proc);
    unlist(p);
    process_spec_free(p->spec);
    free(p->reason);
    buf_done(&p->preview);
    free(p);
}

void process_cancel(struct process *p, const struct err *err)
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
                                                               .exit_code = p->exit_code});
}

void process_list_running(struct process *p)
{
    process_move(p, PROCESS_RUNNING);
    list(p);
    count_running(p, true);
    p->session->m->metrics.processes_started++;
    session_touch(p->session);
    process_tell(p, EVENT_PROCESS_STARTED);
}

void process_settle(struct process *p)
{
    if (p->state != PROCESS_EXITED || p->proc == NULL)
        return;
    struct proc_range range = ops(p)->proc_range(p->proc);
    if (range.eof && range.begin == range.end)
        attachments_end(p);
}

/* Its last words have had their time to come; they are what is left of it after a restart. */
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
    durable_drop_process(p);
    process_free(p);
    session_touch(s);
    if (next != NULL && process_launch(next, &err) < 0)
        process_cancel(next, &err);
    if (s->n_running == 0)
        session_processes_gone(s);
}

static void on_ended(void *arg, const struct err *err)
{
    struct process *p = arg;
    if (p->exited_real == 0) { /* its own word for it is not waited for */
        p->exit_code = -SIGKILL;
        tell_exit(p);
    }
    on_stopped(p, err);
}

/* Nobody hears that it has stopped before all is gone that it started. */
static void end_tree(struct process *p)
{
    loop_timer_stop(&p->timer);
    if (ops(p)->proc_end != NULL)
        ops(p)->proc_end(p->proc, on_ended, p);
    else if (p->exited_real != 0)
        on_stopped(p, NULL);
    else
        ops(p)->proc_kill(p->proc);
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
    process_watches_tell(p);
    reap_exited(m);
}

static void count_output(struct process *p)
{
    uint64_t end = ops(p)->proc_range(p->proc).end;
    if (end > p->counted)
        p->session->m->metrics.process_bytes += end - p->counted;
    p->counted = end;
}

/* A reader may end anything, so it is told last. */
static void on_output(void *arg)
{
    struct process *p = arg;
    count_output(p);
    process_settle(p);
    process_watches_tell(p);
    attachment_on_output(p);
}

static void on_drained(void *arg)
{
    attachment_on_drained(arg);
}

const struct proc_events process_events = {
    .output = on_output, .stdin_drained = on_drained, .exited = on_exited};

static void on_grace_over(struct loop_timer *t)
{
    struct process *p = container_of(t, struct process, timer);
    log_info(session_id(p->session), "managed process %s does not end; killing it",
             p->spec->process_id);
    end_tree(p);
}

/* It was to be dead long ago. What cannot be killed alone goes with its session. */
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
    p->reason = xstrdup(why);
    ops(p)->proc_kill(p->proc);
    if (p->state == PROCESS_RUNNING && p->timer.loop == NULL)
        loop_timer_start(p->session->m->loop, &p->timer, BACKEND_OVERDUE_NS, on_kill_overdue);
}

const char *process_reason(const struct process *p)
{
    return p->reason;
}

void process_terminate(struct process *p)
{
    if (p->state != PROCESS_RUNNING)
        return;
    process_move(p, PROCESS_STOPPING);
    attachments_end(p);
    ops(p)->proc_close_stdin(p->proc);
    ops(p)->proc_signal(p->proc, SIGTERM);
    loop_timer_start(p->session->m->loop, &p->timer, GRACE_NS, on_grace_over);
}

void processes_stop_all(struct session *s)
{
    struct err err = {0};
    (void)err_set(&err, ERR_STATE, "session %.200s was ended meanwhile", session_id(s));
    for (struct process *p = s->processes; p != NULL; p = p->next) {
        if (p->successor != NULL)
            process_cancel(TAKE_PTR(p->successor), &err);
        process_terminate(p);
    }
}

void processes_drop_all(struct session *s, bool backend_is_there)
{
    struct err err = {0};
    (void)err_set(&err, ERR_STATE, "session %.200s was ended meanwhile", session_id(s));
    for (struct process *p = s->processes, *next; p != NULL; p = next) {
        next = p->next;
        if (p->successor != NULL)
            process_cancel(TAKE_PTR(p->successor), &err);
        if (!backend_is_there)
            p->proc = NULL;
        process_free(p);
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
}

void process_adopt(struct session *s, struct process_record *record)
{
    const struct backend_ops *b = s->sandbox->backend->ops;
    struct err err = {0};
    struct process *p = process_new(s, TAKE_PTR(record->spec));
    p->number = (uint32_t)record->number;
    p->started_real = (uint64_t)record->started_ns;
    list(p);
    /* Of one that has ended there may still be output. */
    bool found = b->proc_adopt != NULL &&
                 b->proc_adopt(s->sandbox, p->number, &process_events, p, &p->proc, &err) == 0;
    if (found) /* what came before is an earlier daemon's to count */
        p->counted = b->proc_range(p->proc).end;
    if (found && !record->exited) {
        process_move(p, PROCESS_RUNNING);
        count_running(p, true);
        return;
    }
    restore_exit(p, record);
    become_exited(p);
}
