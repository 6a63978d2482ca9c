/* SPDX-License-Identifier: Apache-2.0 */

/* The command that a session is for: when it runs again, and when the session goes with it. Whether
 * it is wanted is part of the session's record, so that a daemon that is killed, or a host that
 * goes down, changes nothing about it. */

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_internal.h"
#include "spec/process.h"
#include "spec/spec.h"

#define DELAY_FIRST_NS (100 * NSEC_PER_MSEC) /* doubled each time */
#define DELAY_LAST_NS (60 * NSEC_PER_SEC)
#define LASTED_NS (10 * NSEC_PER_SEC) /* one that ran so long begins with the first delay again */
#define RERUNS_MAX 20                 /* to count; the delay is the last one long before */
#define REMOVE_NS (1 * NSEC_PER_SEC)  /* for clients that read the last output */

const char *const start_policy_names[] = {"no", "on-failure", "always", NULL};

const struct session_start *session_get_start(const struct session *s)
{
    return &s->start;
}

bool start_is(const struct process *p)
{
    return p->session->start.spec != NULL && str_eq(p->spec->process_id, PROCESS_START_ID);
}

static bool start_runs(struct session *s)
{
    const struct process *p = process_find(s, PROCESS_START_ID);
    return p != NULL && process_running(p);
}

static void start_write(struct session *s)
{
    struct err err = {0};
    if (s->stored && durable_put_session(s, &err) < 0)
        log_warn(session_id(s), "%s; ignoring", err.msg);
}

static void set_wanted(struct session *s, bool wanted)
{
    if (s->start.wanted == wanted)
        return;
    s->start.wanted = wanted;
    start_write(s);
}

int session_set_start(struct session *s, struct session_start *start, struct err *err)
{
    struct session_start before = s->start;
    s->start = *start;
    s->start.wanted = true;
    int r = s->stored ? durable_put_session(s, err) : 0;
    if (r < 0) {
        s->start = before;
        return r;
    }
    start->spec = NULL;
    process_spec_free(before.spec);
    s->reruns = 0;
    struct process *p = process_find(s, PROCESS_START_ID);
    if (p != NULL && !process_running(p)) /* it has ended meanwhile */
        start_process_ended(p);
    return 0;
}

void manager_on_rerun(struct manager *m, void (*fn)(void *arg, struct session *s), void *arg)
{
    m->rerun = fn;
    m->rerun_arg = arg;
}

static void start_later(struct session *s);

static void on_rerun(void *arg, struct process *p, const struct err *err)
{
    struct session *s = arg;
    if (p == NULL)
        log_warn(session_id(s), "start command: %s", err->msg);
    else if (s->m->rerun != NULL)
        s->m->rerun(s->m->rerun_arg, s);
    session_release(s);
}

static void start_run(struct session *s)
{
    struct process_spec *spec = process_spec_copy(s->start.spec);
    struct err err = {0};
    session_hold(s); /* until on_rerun() */
    if (process_start(s, &spec, on_rerun, s, &err) == 0)
        return;
    session_release(s);
    process_spec_free(spec);
    log_warn(session_id(s), "start command: %s", err.msg);
    start_later(s);
}

/* Its session is there, or is made run first, which comes back to start_session_ready(). */
static void on_start_due(struct loop_timer *t)
{
    struct session *s = container_of(t, struct session, start_timer);
    struct err err = {0};
    if (s->m->closing || start_runs(s))
        return;
    if (!s->start.wanted) {
        if (s->start.removes)
            session_stop(s);
    } else if (s->state == SESSION_READY) {
        start_run(s);
    } else if (s->state == SESSION_PAUSED) {
        start_later(s);
    } else if (s->state == SESSION_STOPPED && session_start(s, &err) < 0) {
        log_warn(session_id(s), "start: %s", err.msg);
        start_later(s);
    }
}

static void start_later(struct session *s)
{
    uint64_t delay = DELAY_FIRST_NS << (s->reruns < RERUNS_MAX ? s->reruns : RERUNS_MAX);
    s->reruns += s->reruns < RERUNS_MAX;
    if (!s->m->closing)
        loop_timer_start(s->m->loop, &s->start_timer, delay < DELAY_LAST_NS ? delay : DELAY_LAST_NS,
                         on_start_due);
}

void start_process_ended(struct process *p)
{
    struct session *s = p->session;
    if (!start_is(p) || !s->start.wanted)
        return;
    if (p->exited_real - p->started_real >= LASTED_NS)
        s->reruns = 0;
    bool again = s->start.policy == START_ALWAYS ||
                 (s->start.policy == START_ON_FAILURE && p->exit_code != 0);
    if (again) {
        start_later(s);
        return;
    }
    set_wanted(s, false);
    if (s->start.removes)
        loop_timer_start(s->m->loop, &s->start_timer, REMOVE_NS, on_start_due);
}

/* Of one that was adopted the command may have ended while no daemon was there. */
void start_session_ready(struct session *s)
{
    if (s->start.spec == NULL || start_runs(s))
        return;
    if (!s->start.wanted) {
        if (s->start.removes) /* the last daemon did not come to that */
            loop_timer_start(s->m->loop, &s->start_timer, 0, on_start_due);
        return;
    }
    struct process *p = process_find(s, PROCESS_START_ID);
    if (s->adopting && p != NULL)
        start_process_ended(p);
    else
        start_run(s);
}

void start_session_stopped(struct session *s)
{
    if (s->start.spec == NULL || !s->start.wanted)
        return;
    if (s->start.policy == START_NO)
        set_wanted(s, false);
    else
        start_later(s);
}

void start_unwanted(struct session *s)
{
    loop_timer_stop(&s->start_timer);
    if (s->start.spec != NULL)
        set_wanted(s, false);
}

void start_done(struct session *s)
{
    loop_timer_stop(&s->start_timer);
    process_spec_free(s->start.spec);
}

int manager_run_start(struct manager *m, const char *id, session_ready_fn *ready, void *arg,
                      struct err *err)
{
    struct session *s = manager_find(m, id);
    if (s != NULL && s->start.spec != NULL) {
        set_wanted(s, true);
        s->reruns = 0;
    }
    int r = manager_start(m, id, ready, arg, err);
    if (r == 0 && s != NULL && s->state == SESSION_READY)
        start_session_ready(s);
    return r;
}
