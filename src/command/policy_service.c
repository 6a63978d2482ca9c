/* SPDX-License-Identifier: Apache-2.0 */

/* Writes boxd's status and records outcomes and failures for all fronts. */

#include "command/policy_service.h"

#include "backend/backend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "session/process.h"
#include "spec/profile.h"

int policy_service_guard(const struct policy_service *s, struct err *err)
{
    if (!policy_settings(s->policy)->enabled)
        return err_set(err, ERR_STATE, "Box runtime is disabled in config (box.enabled = false)");
    if (s->manager == NULL)
        return err_set(err, ERR_STATE, "Box runtime is not available. %s",
                       s->unavailable != NULL ? s->unavailable : "It did not start.");
    if (s->unavailable != NULL)
        return err_set(err, ERR_BACKEND, "Configured sandbox backend \"%s\" is unavailable: %s",
                       manager_backend(s->manager)->ops->name, s->unavailable);
    return 0;
}

void policy_count_seen(struct manager *m, const struct authz_scope *scope,
                       struct policy_counts *ret)
{
    *ret = (struct policy_counts){0};
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!authz_sees(scope, NULL, session_id(s)))
            continue;
        ret->sessions++;
        ret->by_state[session_state(s)]++;
        for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
            *(process_running(p) ? &ret->running : &ret->exited) += 1;
    }
}

static void write_counts(const struct policy_service *s, const struct authz_scope *scope,
                         struct jw *w)
{
    struct policy_counts n;

    policy_count_seen(s->manager, scope, &n);
    jw_ku64(w, "active_sessions", n.sessions);
    jw_ku64(w, "managed_processes", n.running);
}

void policy_service_write_status(const struct policy_service *s, const struct authz_scope *scope,
                                 struct jw *w)
{
    const struct profile *profile = NULL;
    struct err why = {0}, ignored;
    bool available = policy_service_guard(s, &why) == 0;
    bool usable = s->manager != NULL && s->unavailable == NULL;

    /* Nothing is refused for this: who asks for a sandbox has the backends tried again. */
    if (usable)
        usable = backend_available(manager_backend(s->manager), available ? &why : &ignored) == 0;
    available = available && usable;

    (void)policy_profile(s->policy, NULL, &profile, NULL);
    jw_object(w);
    jw_kbool(w, "enabled", policy_settings(s->policy)->enabled);
    jw_kbool(w, "available", available);
    jw_kstr(w, "profile", profile != NULL ? profile->name : NULL);
    jw_ku64(w, "recent_error_count", error_ring_count(s->errors, authz_errors(scope)));
    if (!available)
        jw_kstr(w, "connector_error", why.msg);
    if (s->degraded != NULL)
        jw_kstr(w, "degraded", s->degraded);
    if (s->manager != NULL) {
        jw_key(w, "backend");
        jw_object(w);
        jw_kstr(w, "name", manager_backend(s->manager)->ops->name);
        jw_kbool(w, "available", usable);
        jw_object_end(w);
        write_counts(s, scope, w);
        jw_ku64(w, "session_ttl_sec", s->session_ttl_sec);
    }
    if (s->audit != NULL) {
        jw_key(w, "audit");
        audit_write_status(s->audit, authz_sees(scope, NULL, NULL), w);
    }
    jw_object_end(w);
}

void policy_record_outcome(const struct policy_service *s, const struct audit_record *begun,
                           const struct outcome *outcome, const uint64_t produced[2])
{
    struct audit_record record = *begun;
    const int64_t code = outcome->kind == OUTCOME_SIGNALED ? -outcome->signo : outcome->exit_code;
    const uint64_t ms = outcome->duration_ns / NSEC_PER_MSEC;
    const bool has_code =
        outcome->kind != OUTCOME_TIMED_OUT && outcome->kind != OUTCOME_SESSION_LOST;

    if (s->audit == NULL)
        return;
    record.outcome = outcome_name(outcome->kind);
    record.exit_code = has_code ? &code : NULL;
    record.duration_ms = &ms;
    record.bytes = produced;
    (void)audit_write(s->audit, &record, NULL);
}

void policy_service_failed(const struct policy_service *s, const struct err *err,
                           const char *query_id, struct audit_record *record)
{
    const struct clock *clock =
        s->manager != NULL ? loop_clock(manager_loop(s->manager)) : &clock_system;

    if (s->manager != NULL && record != NULL && record->event == AUDIT_DENIED)
        manager_metrics(s->manager)->refused[err->code]++;
    error_ring_add(s->errors, clock_real(clock), err, query_id,
                   record != NULL ? record->who : NULL);
    if (s->audit == NULL || record == NULL)
        return;
    record->outcome = error_class_name(err->code);
    record->reason = err->msg;
    (void)audit_write(s->audit, record, NULL); /* it counts what it loses */
}
