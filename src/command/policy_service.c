/* SPDX-License-Identifier: Apache-2.0 */

/* Answers what all fronts ask: whether a caller may use a session, boxd's status, and the records
 * of outcomes and failures. */

#include "command/policy_service.h"

#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "session/process.h"
#include "spec/profile.h"

/* Every byte of the arguments as a quote that is quoted, and what goes around each. */
#define TEXT_MAX (4U * SPEC_ARGS_BYTES_MAX + 4U * SPEC_ARGS_ENTRIES_MAX)

int64_t policy_longest_sec(const struct policy *p, const struct authz_scope *scope)
{
    const struct profile *profile = NULL;
    int64_t longest = 0;

    if (scope == NULL && policy_profile_chosen(p) && policy_profile(p, NULL, &profile, NULL) == 0)
        return profile->max_timeout_sec;
    for (size_t i = 0; scope != NULL && (profile = policy_profile_at(p, i)) != NULL; i++)
        if (profile->max_timeout_sec > longest &&
            authz_check_profile(scope, profile->name, NULL) == 0)
            longest = profile->max_timeout_sec;
    return scope != NULL && longest == 0 ? 1 : longest;
}

int policy_check_user(const struct spec *spec, uid_t uid, struct err *err)
{
    if (spec->own.bound && spec->own.uid == uid)
        return 0;
    return err_set(err, ERR_DENIED,
                   "session %.100s belongs to another user; uid %u can use its own sessions",
                   spec->session_id, uid);
}

int policy_check_use(const struct policy *p, const struct authz_scope *scope,
                     const struct spec *spec, struct err *err)
{
    const char *own = policy_settings(p)->default_workspace;
    uid_t uid = 0;
    int r = authz_check_session(scope, spec->session_id, err);

    if (r == 0)
        r = authz_check_network(scope, spec->network, err);
    if (r == 0 && spec->host_path != NULL && !str_eq(spec->host_path, own))
        r = authz_check_mount(scope, spec->host_path, spec->host_path_mode, err);
    for (size_t i = 0; r == 0 && i < spec->n_extra_mounts; i++)
        r = authz_check_mount(scope, spec->extra_mounts[i].host_path, spec->extra_mounts[i].mode,
                              err);
    for (char *const *h = spec->own.allow_hosts; r == 0 && h != NULL && *h != NULL; h++) {
        char text[SPEC_HOST_TEXT_MAX];
        struct host_service at;
        if (!host_service_parse(*h, &at))
            continue; /* of a record that was edited: nothing is reached by it */
        host_service_write(&at, false, text);
        r = authz_check_host(scope, text, err);
    }
    return r == 0 && authz_is_user(scope, &uid) ? policy_check_user(spec, uid, err) : r;
}

static bool is_plain(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "@%+=:,./-_";
    return word[0] != '\0' && strspn(word, plain) == strlen(word);
}

/* Quoted as for a shell. */
static void put_word(struct buf *out, const char *word)
{
    if (is_plain(word)) {
        (void)buf_puts(out, word);
        return;
    }
    (void)buf_putc(out, '\'');
    for (; *word != '\0'; word++)
        if (*word == '\'')
            (void)buf_puts(out, "'\\''");
        else
            (void)buf_putc(out, *word);
    (void)buf_putc(out, '\'');
}

char *policy_command_text(char *const *argv, const char *cmd)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(TEXT_MAX);

    if (cmd != NULL)
        return xstrdup(cmd);
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++) {
        if (i > 0)
            (void)buf_putc(&text, ' ');
        put_word(&text, argv[i]);
    }
    return xstrdup(buf_str(&text));
}

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

    /* No request is refused for this: a request for a sandbox tries the backends again. */
    if (usable)
        usable = backend_available(manager_backend(s->manager), available ? &why : &ignored) == 0;
    available = available && usable;

    (void)policy_profile(s->policy, NULL, &profile, NULL);
    jw_kbool(w, "enabled", policy_settings(s->policy)->enabled);
    jw_kbool(w, "available", available);
    jw_kstr(w, "profile", profile != NULL ? profile->name : NULL);
    jw_ku64(w, "recent_error_count", error_ring_count(s->errors, authz_errors(scope)));
    if (!available)
        jw_kstr(w, "connector_error", why.msg);
    if (s->degraded != NULL)
        jw_kstr(w, "degraded", s->degraded);
    if (s->manager != NULL) {
        jw_kobject(w, "backend");
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
