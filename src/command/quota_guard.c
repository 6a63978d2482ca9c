/* SPDX-License-Identifier: Apache-2.0 */

/* Counts workspaces by a timer, and kills or removes sessions that are over their quota. */

#include "command/quota_guard.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "command/policy_service.h"
#include "command/quota.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "session/process.h"
#include "session/run.h"
#include "spec/spec.h"

#define SOON_NS NSEC_PER_SEC           /* between two looks at what grows */
#define BUSY_NS (2ULL * NSEC_PER_SEC)  /* at most, while a managed process runs */
#define IDLE_NS (8ULL * NSEC_PER_SEC)  /* at most: what runs in the background is not known */
#define MOST_NS (60ULL * NSEC_PER_SEC) /* at most, however long counting takes */
#define COST 20                        /* counting takes at most one part in so many of the time */
#define STRIKES 4                      /* that it may grow again after all was killed */
#define KILL_NS (10ULL * NSEC_PER_SEC)

/*   WAITING ──► COUNTING ──► KILLING ──┐
 *      ^           │                   │
 *      └───────────┴───────────────────┘     and from everywhere: gone, with its session */
struct guard {
    struct quota_guards *all; /* borrowed */
    LIST_ENTRY(guard) link;
    const struct policy_service *service; /* borrowed */
    struct session *session;              /* held */
    struct loop_timer timer;              /* WAITING */
    struct quota_count *count;            /* owned; COUNTING */
    struct run *run;                      /* owned; KILLING */
    uint64_t begun;                       /* to count */
    uint64_t interval;
    struct usage last;   /* as counted last */
    struct usage killed; /* as counted when all was killed last */
    unsigned strikes;    /* 0: it is within its quota */
    struct err why;      /* KILLING: over which one it is */
};

struct quota_guards {
    LIST_HEAD(, guard) guards;
};

struct quota_guards *quota_guards_new(void)
{
    return xnew(struct quota_guards);
}

static void guard_free(struct guard *g)
{
    LIST_REMOVE(g, link);
    loop_timer_stop(&g->timer);
    quota_count_free(g->count);
    run_free(g->run);
    session_release(g->session);
    free(g);
}

void quota_guards_free(struct quota_guards *all)
{
    if (all == NULL)
        return;
    while (!LIST_EMPTY(&all->guards))
        guard_free(LIST_FIRST(&all->guards));
    free(all);
}

static struct loop *loop_of(const struct guard *g)
{
    return manager_loop(g->service->manager);
}

static void look(struct loop_timer *t);

static void wait_for(struct guard *g, uint64_t ns)
{
    g->interval = ns;
    loop_timer_start(loop_of(g), &g->timer, ns, look);
}

static bool has_processes(const struct guard *g)
{
    struct process *p = process_next(g->session, NULL);

    while (p != NULL && !process_running(p))
        p = process_next(g->session, p);
    return p != NULL;
}

static bool grew(const struct usage *now, const struct usage *before)
{
    return now->bytes > before->bytes || now->entries > before->entries;
}

/* A workspace that does not change, or that takes long to count, is counted less and less often. */
static uint64_t next_interval(const struct guard *g, bool changed)
{
    uint64_t most = has_processes(g) ? BUSY_NS : IDLE_NS;
    uint64_t least = (loop_now(loop_of(g)) - g->begun) * COST;
    uint64_t ns = changed ? SOON_NS : g->interval * 2;

    ns = ns < most ? ns : most;
    ns = ns > least ? ns : least;
    return ns < MOST_NS ? ns : MOST_NS;
}

/* Over the quota. */

static void record(const struct policy_service *service, const struct session *s,
                   enum audit_event event, const struct err *err)
{
    struct audit_record r = {.event = event, .who = "boxd", .session = session_id(s)};

    policy_service_failed(service, err, NULL, &r);
}

bool quota_killed(const struct run_result *result)
{
    const struct outcome *o = &result->outcome;

    /* 1: no process was there. A killer that never ran, was stopped or killed has killed none. */
    return o->kind == OUTCOME_EXITED && o->error[0] == '\0' && o->exit_code <= 1;
}

/* boxd has no list of what commands left behind, but a process inside reaches it all. `kill -9 -1`
 * does not reach itself, nor PID 1, which is Box's own. */
int quota_kill(const struct policy_service *service, struct session *s, const struct err *why,
               const struct run_events *events, void *arg, struct run **ret)
{
    static const struct run_options options = {
        .exec = {.cmd = "kill -9 -1", .cwd = "/", .timeout_ns = KILL_NS}, .quiet = true};
    struct err err = {0};

    record(service, s, AUDIT_PROCESS_END, why);
    log_warn(session_id(s), "%s; killing what runs in it", why->msg);
    session_condemn(s, why);
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        process_kill(p, why->msg);
    int r = run_start(s, &options, events, arg, ret, &err);
    if (r < 0)
        log_warn(session_id(s), "kill what runs in it: %s; trying again", err.msg);
    return r;
}

static void on_gone(void *arg, const struct err *err)
{
    (void)err; /* the manager has logged it */
}

static void remove_session(struct guard *g, const struct err *why)
{
    struct err ignored;

    record(g->service, g->session, AUDIT_SESSION_DELETE, why);
    log_warn(session_id(g->session), "%s; it does not stop, removing it", why->msg);
    (void)manager_expel(g->service->manager, g->session, on_gone, NULL, &ignored);
    guard_free(g);
}

static void on_killed(void *arg, const struct run_result *result)
{
    struct guard *g = arg;
    bool done = quota_killed(result);

    run_free(TAKE_PTR(g->run));
    if (done)
        wait_for(g, SOON_NS);
    else
        remove_session(g, &g->why);
}

static void kill_all(struct guard *g, const struct err *why)
{
    static const struct run_events events = {.finished = on_killed};

    g->why = *why;
    if (quota_kill(g->service, g->session, why, &events, g, &g->run) < 0)
        wait_for(g, SOON_NS);
}

static void judge(struct guard *g, const struct usage *usage)
{
    const struct quota_check check = {
        .spec = session_spec(g->session),
        .phase = QUOTA_BETWEEN,
        .max_entries = (uint64_t)policy_settings(g->service->policy)->max_workspace_entries,
        .kernel_limit = true}; /* the next command reports directories that cannot be counted */
    bool changed = usage->bytes != g->last.bytes || usage->entries != g->last.entries;
    struct err why = {0};

    g->last = *usage;
    if (quota_judge(&check, usage, &why) == 0) {
        g->strikes = 0;
        wait_for(g, next_interval(g, changed));
    } else if (g->strikes > 0 && !grew(usage, &g->killed)) {
        wait_for(g, next_interval(g, changed)); /* too much, but it does not grow */
    } else if (g->strikes >= STRIKES) {
        remove_session(g, &why);
    } else {
        g->strikes++;
        g->killed = *usage;
        kill_all(g, &why);
    }
}

static void on_counted(void *arg, const struct usage *usage, const struct err *err)
{
    struct guard *g = arg;
    struct usage found = err == NULL ? *usage : (struct usage){0};

    quota_count_free(TAKE_PTR(g->count));
    if (session_state(g->session) != SESSION_READY)
        guard_free(g);
    else if (err != NULL || session_execs(g->session) > 0)
        wait_for(g, SOON_NS);
    else
        judge(g, &found);
}

/* While a command runs its own watch does all of this, and knows whether it is there to clean up.
 */
static void look(struct loop_timer *t)
{
    struct guard *g = container_of(t, struct guard, timer);
    struct err ignored;

    if (session_state(g->session) != SESSION_READY) {
        guard_free(g);
        return;
    }
    const struct quota_place place = {session_spec(g->session)->host_path, g->session};
    g->begun = loop_now(loop_of(g));
    if (session_execs(g->session) > 0 ||
        quota_count_start(g->service, &place, on_counted, g, &g->count, &ignored) < 0)
        wait_for(g, SOON_NS);
}

void quota_guard(const struct policy_service *service, struct session *s)
{
    struct quota_guards *all = service->guards;
    const struct spec *spec = session_spec(s);
    struct guard *g;

    if (all == NULL || !quota_applies(spec) || spec->host_path_mode != MOUNT_RW ||
        session_state(s) != SESSION_READY)
        return;
    LIST_FOREACH (g, &all->guards, link) {
        if (g->session != s)
            continue;
        if (g->timer.loop != NULL)
            wait_for(g, SOON_NS); /* something may have changed */
        return;
    }
    g = xnew(struct guard);
    g->all = all;
    g->service = service;
    g->session = s;
    session_hold(s);
    LIST_INSERT_HEAD(&all->guards, g, link);
    wait_for(g, SOON_NS);
}
