/* SPDX-License-Identifier: Apache-2.0 */

/* The states of the gate around a command: asking, open, ending, dropping the session. */

#include "command/policy_gate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "command/policy_count.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

/*   ASKING ──► OPEN ──► ENDING ──► DROPPING ──► DONE
 *      │         │         └────────────────────┤
 *      └─────────┴──────────────────────────────┘     */
enum state { ASKING, OPEN, ENDING, DROPPING, DONE, STATE_MAX };

#define TO(s) (1U << (s))
static const unsigned moves[STATE_MAX] = {
    [ASKING] = TO(OPEN) | TO(DONE),
    [OPEN] = TO(ENDING) | TO(DONE),
    [ENDING] = TO(DROPPING) | TO(DONE),
    [DROPPING] = TO(DONE),
};

struct policy_gate {
    const struct policy_service *service; /* borrowed */
    enum state state;
    bool freed; /* while the manager still owes us an answer */
    policy_gate_fn *fn;
    void *arg;
    void (*over)(void *arg);
    const char *via;                     /* static */
    char *who, *query_id, *command, *id; /* owned */
    struct policy_decision decision;
    struct share *share;       /* held; that it is one command of; NULL: nobody's */
    struct session *session;   /* held; NULL once it is to go */
    struct quota_count *count; /* owned; the one under way */
    struct quota_check quota;
    struct quota_watch watch;
    struct loop_defer defer;
    struct log_scope request; /* who asked, for the log */
    struct outcome outcome;
    uint64_t produced[2];
    struct err err;
};

static void move(struct policy_gate *g, enum state to)
{
    assert((moves[g->state] & TO(to)) != 0);
    g->state = to;
}

static struct loop *loop_of(const struct policy_gate *g)
{
    return manager_loop(g->service->manager);
}

static bool counts(const struct policy_gate *g)
{
    const struct spec *spec = session_spec(g->session);

    return quota_applies(spec) && spec->host_path_mode != MOUNT_NONE;
}

static struct audit_record record_of(const struct policy_gate *g, enum audit_event event)
{
    return (struct audit_record){.event = event,
                                 .who = g->who,
                                 .via = g->via,
                                 .session = g->id,
                                 .query = g->query_id,
                                 .decision = &g->decision};
}

static void stop_all(struct policy_gate *g)
{
    quota_count_free(TAKE_PTR(g->count));
    quota_watch_stop(&g->watch);
    loop_defer_stop(&g->defer);
}

static void destroy(struct policy_gate *g)
{
    stop_all(g);
    if (g->session != NULL)
        session_release(g->session);
    share_give(g->share, SHARE_EXECS);
    free(g->who);
    free(g->query_id);
    free(g->command);
    free(g->id);
    free(g);
}

const char *policy_gate_payer(const struct policy_gate *g)
{
    return share_name(g->share);
}

void policy_gate_free(struct policy_gate *g)
{
    if (g == NULL)
        return;
    if (g->state == OPEN || g->state == ENDING) {
        struct audit_record r = record_of(g, AUDIT_EXEC_END);
        r.outcome = "given_up";
        if (g->service->audit != NULL)
            (void)audit_write(g->service->audit, &r, NULL);
    }
    if (g->state == DROPPING)
        g->freed = true; /* the manager's answer frees us */
    else
        destroy(g);
}

/* Tells; the caller may free us in it. */
static void refuse(struct policy_gate *g)
{
    struct audit_record r = record_of(g, AUDIT_DENIED);

    policy_service_failed(g->service, &g->err, g->query_id, &r);
    move(g, DONE);
    g->fn(g->arg, &g->err);
}

void policy_gate_failed(struct policy_gate *g, const struct err *err)
{
    struct audit_record r = record_of(g, AUDIT_EXEC_END);

    stop_all(g);
    policy_service_failed(g->service, err, g->query_id, &r);
    move(g, DONE);
}

/* Before. */

static int record_start(struct policy_gate *g, struct err *err)
{
    struct audit_record r = record_of(g, AUDIT_EXEC_START);

    if (g->service->audit == NULL)
        return 0;
    r.command = g->command;
    r.command_len = strlen(g->command);
    int e = audit_ready(g->service->audit, err);
    return e < 0 ? e : audit_write(g->service->audit, &r, err);
}

static int open_gate(struct policy_gate *g, struct err *err)
{
    int r = record_start(g, err);

    if (r < 0)
        return r;
    move(g, OPEN);
    g->quota.phase = QUOTA_AFTER;
    g->watch = (struct quota_watch){.service = g->service,
                                    .check = &g->quota,
                                    .session = g->session,
                                    .over = g->over,
                                    .arg = g->arg};
    if (counts(g) && g->over != NULL)
        quota_watch_start(&g->watch);
    return 0;
}

static void on_counted_before(void *arg, const struct usage *usage, const struct err *err)
{
    struct policy_gate *g = arg;
    int r = err != NULL ? -1 : quota_judge(&g->quota, usage, &g->err);

    if (err != NULL)
        g->err = *err;
    else
        g->quota.before = *usage;
    quota_count_free(TAKE_PTR(g->count));
    if (r == 0)
        r = open_gate(g, &g->err);
    if (r == 0)
        g->fn(g->arg, NULL);
    else
        refuse(g);
}

static int check(const struct policy_service *service, const struct policy_gate_options *o,
                 struct err *err)
{
    int r = policy_service_guard(service, err);

    if (r == 0)
        r = authz_check_tool(o->scope, "exec", err);
    if (r == 0)
        r = policy_check_use(service->policy, o->scope, session_spec(o->session), err);
    return r < 0 ? r : shares_check(service->shares, authz_share(o->scope), SHARE_EXECS, err);
}

static struct policy_gate *gate_new(const struct policy_service *service,
                                    const struct policy_gate_options *o)
{
    struct policy_gate *g = xnew(struct policy_gate);

    g->service = service;
    g->request = log_scope_now();
    g->over = o->over;
    g->via = o->via;
    g->who = xstrdup(o->who != NULL ? o->who : authz_name(o->scope));
    g->query_id = o->query_id != NULL ? xstrdup(o->query_id) : NULL;
    g->command = xstrdup(o->command);
    g->id = xstrdup(session_id(o->session));
    g->session = o->session;
    session_hold(g->session);
    g->share = shares_take(service->shares, authz_share(o->scope), SHARE_EXECS);
    g->decision.clamped = o->clamped;
    if (o->has_env && session_spec(o->session)->own.env_locked)
        g->decision.overridden = FIELD_BIT(SPEC_ENV);
    (void)policy_profile(service->policy, NULL, &g->decision.profile, NULL);
    g->quota = (struct quota_check){
        .spec = session_spec(g->session),
        .max_entries = (uint64_t)policy_settings(service->policy)->max_workspace_entries,
        .cleanup = o->cleanup};
    return g;
}

int policy_gate_begin(const struct policy_service *service,
                      const struct policy_gate_options *options, policy_gate_fn *ready, void *arg,
                      struct policy_gate **ret, struct err *err)
{
    struct err why = {0};
    int r = check(service, options, &why);
    struct policy_gate *g = gate_new(service, options);

    g->fn = ready;
    g->arg = arg;
    if (r == 0 && counts(g)) {
        const struct quota_place place = {session_spec(g->session)->host_path, g->session};
        r = quota_count_start(service, &place, on_counted_before, g, &g->count, &why);
        r = r < 0 ? r : 1;
    } else if (r == 0) {
        r = open_gate(g, &why);
    }
    if (r >= 0) {
        *ret = g;
        return r;
    }
    struct audit_record denied = record_of(g, AUDIT_DENIED);
    policy_service_failed(service, &why, g->query_id, &denied);
    destroy(g);
    if (err != NULL)
        *err = why;
    return r;
}

/* After. */

static void on_dropped(void *arg, const struct err *err)
{
    struct policy_gate *g = arg;

    (void)err; /* the manager has logged it */
    if (g->freed) {
        destroy(g);
        return;
    }
    move(g, DONE);
    g->fn(g->arg, &g->err);
}

/* Over the quota: the session goes, whatever the command said. */
static void drop(struct policy_gate *g)
{
    struct audit_record r = record_of(g, AUDIT_EXEC_END);
    struct audit_record gone = record_of(g, AUDIT_SESSION_DELETE);
    struct err ignored;

    policy_service_failed(g->service, &g->err, g->query_id, &r);
    gone.reason = "over its quota";
    if (g->service->audit != NULL)
        (void)audit_write(g->service->audit, &gone, NULL);
    move(g, DROPPING);
    session_release(TAKE_PTR(g->session));
    if (manager_delete(g->service->manager, g->id, on_dropped, g, &ignored) < 0)
        on_dropped(g, &ignored);
}

static void finish(struct policy_gate *g)
{
    struct audit_record r = record_of(g, AUDIT_EXEC_END);

    policy_record_outcome(g->service, &r, &g->outcome, g->produced);
    quota_guard(g->service, g->session); /* what it left running may go on writing */
    move(g, DONE);
}

static void on_counted_after(void *arg, const struct usage *usage, const struct err *err)
{
    struct policy_gate *g = arg;
    int r = err != NULL ? -1 : quota_judge(&g->quota, quota_watch_most(&g->watch, usage), &g->err);

    if (err != NULL)
        g->err = *err;
    quota_count_free(TAKE_PTR(g->count));
    if (r < 0) {
        drop(g);
        return;
    }
    finish(g);
    g->fn(g->arg, NULL);
}

/* Nobody hears of an end from inside the call. */
static void on_drop(struct loop_defer *d)
{
    struct policy_gate *g = container_of(d, struct policy_gate, defer);
    LOG_REQUEST(g->request.id);
    drop(g);
}

int policy_gate_end(struct policy_gate *g, const struct outcome *outcome,
                    const uint64_t produced[2], policy_gate_fn *done)
{
    move(g, ENDING);
    stop_all(g);
    g->fn = done;
    g->outcome = *outcome;
    memcpy(g->produced, produced, sizeof(g->produced));
    g->err = (struct err){0};
    if (g->outcome.kind == OUTCOME_SESSION_LOST || !counts(g)) {
        finish(g);
        return 0;
    }
    const struct quota_place place = {session_spec(g->session)->host_path, g->session};
    if (quota_count_start(g->service, &place, on_counted_after, g, &g->count, &g->err) < 0)
        loop_defer_start(loop_of(g), &g->defer, on_drop);
    return 1;
}
