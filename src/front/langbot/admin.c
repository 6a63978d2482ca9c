/* SPDX-License-Identifier: Apache-2.0 */

/* Actions about the runtime itself: ping, health, backend, status, shutdown, workspace check, and
 * the admission grants that a host installs and revokes; the removal of grants that expired. */

#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "session/manager.h"
#include "spec/admission.h"
#include "spec/model.h"

static void ping(struct langbot_call *c)
{
    langbot_ok(c);
}

/* boxd sends every answer in one piece, so no stream waits for an acknowledgement. */
static void stream_ack(struct langbot_call *c)
{
    const struct json *seq = json_get(c->msg.data, "seq_id"),
                      *index = json_get(c->msg.data, "index");
    if (json_type(seq) != JSON_INT || json_type(index) != JSON_INT) {
        langbot_fail(c, LANGBOT_VALUE_ERROR,
                     "Stream acknowledgement requires integer sequence and index");
        return;
    }
    jw_kbool(langbot_reply_open(c), "accepted", false);
    langbot_reply_close(c);
}

/* Actions that tell of the backend: action->answer writes. Where admission is enforced it gets a
 * report, else NULL. */

static void on_report(void *arg, const struct readiness_report *report)
{
    struct langbot_call *c = arg;
    c->action->answer(c, report);
}

static void on_probed(void *arg, const struct err *err)
{
    (void)err; /* the answer says whether the backend is available */
    on_report(arg, NULL);
}

/* The backend is asked now: what the last call found out may have changed. */
static void ask_backend(struct langbot_call *c)
{
    struct backend *backend = manager_backend(c->rpc->o.manager);
    if (admission_enforced(c->rpc->admission))
        readiness_get(c->rpc->readiness, on_report, c);
    else if (c->rpc->selected && backend->ops->probe != NULL)
        backend->ops->probe(backend, on_probed, c);
    else
        on_report(c, NULL);
}

/* Where admission is enforced, a backend that isolates too little counts as not available. */
static void write_backend(const struct langbot *r, const struct readiness_report *report,
                          struct jw *w)
{
    struct err why = {0};
    bool available =
        report != NULL ? report->ready
                       : r->selected && backend_available(manager_backend(r->o.manager), &why) == 0;
    const char *name = report != NULL ? report->backend
                       : available    ? readiness_backend(r->readiness)
                                      : NULL;
    jw_kstr(w, "name", name);
    jw_kbool(w, "available", available);
    if (report == NULL)
        return;
    jw_kobject(w, "readiness");
    readiness_write(report, w);
    jw_object_end(w);
}

static void answer_info(struct langbot_call *c, const struct readiness_report *report)
{
    write_backend(c->rpc, report, langbot_reply_open(c));
    langbot_reply_close(c);
}

static void answer_health(struct langbot_call *c, const struct readiness_report *report)
{
    if (report == NULL) {
        answer_info(c, NULL);
    } else if (!report->ready) {
        langbot_fail(c, LANGBOT_READINESS, "managed sandbox isolation is not ready");
    } else {
        readiness_write(report, langbot_reply_open(c));
        langbot_reply_close(c);
    }
}

static size_t count_sessions(const struct langbot_call *c)
{
    struct manager *m = c->rpc->o.manager;
    size_t n = 0;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        n += session_sandbox(s) != NULL && str_starts(session_id(s), c->prefix);
    return n;
}

/* How many sessions the workspace may still have. Making one decides again. Without a grant, where
 * one is needed, that is none. */
static void write_capacity(const struct langbot_call *c, size_t used, struct jw *w)
{
    struct manager *m = c->rpc->o.manager;
    struct admission_limits grant = {0};
    struct err err = {0};
    size_t max = manager_get_options(m)->max_sessions, all = manager_count(m), limit = max;
    if (admission_enforced(c->rpc->admission)) {
        if (admission_check(c->rpc->admission, c->ns, c->msg.ctx.placement_generation,
                            langbot_now_us(c->rpc), &grant, &err) < 0)
            grant = (struct admission_limits){0};
        limit = (size_t)grant.max_sessions < max ? (size_t)grant.max_sessions : max;
    }
    size_t own = limit > used ? limit - used : 0, free_for_all = max > all ? max - all : 0;
    jw_kobject(w, "capacity");
    jw_ku64(w, "limit", limit);
    jw_ku64(w, "used", used);
    jw_ku64(w, "remaining", own < free_for_all ? own : free_for_all);
    jw_object_end(w);
}

static void answer_status(struct langbot_call *c, const struct readiness_report *report)
{
    const struct manager_options *o = manager_get_options(c->rpc->o.manager);
    const struct box_limits *l = &c->rpc->limits;
    size_t used = count_sessions(c);
    struct jw *w = langbot_reply_open(c);
    jw_kobject(w, "backend");
    write_backend(c->rpc, report, w);
    jw_object_end(w);
    jw_ku64(w, "active_sessions", used);
    jw_ku64(w, "managed_processes", langbot_count_processes(c->rpc, c->prefix));
    jw_ku64(w, "session_ttl_sec", o->ttl_ns / NSEC_PER_SEC);
    if (c->rules->tells_of_workspace) {
        jw_kobject(w, "limits");
        jw_ku64(w, "max_sessions", o->max_sessions);
        jw_ku64(w, "max_managed_processes", o->max_processes);
        jw_ku64(w, "max_completed_processes", o->max_exited);
        jw_kint(w, "max_admission_records", l->max_admission_records);
        jw_kint(w, "max_rpc_file_bytes", l->max_rpc_file_bytes);
        jw_object_end(w);
        write_capacity(c, used, w);
    }
    langbot_reply_close(c);
}

static void shut_down(struct langbot_call *c)
{
    c->rpc->draining = false;
    langbot_ok(c);
}

/* Ends only sessions that were made for LangBot, not those of other fronts. Clients of the first
 * release name their sessions freely, and expect persistent ones to stay. */
static void end_sessions(struct langbot_call *c)
{
    const struct langbot_sweep_match all = {.physical = true}, first = {.keep_persistent = true};
    if (c->rpc->draining) { /* another call is ending the sessions already */
        langbot_ok(c);
        return;
    }
    log_info(NULL, "a client asks to end its sessions");
    c->rpc->draining = true;
    langbot_call_sweep(c, c->conn->flags != 0 ? &first : &all);
}

static void verify_workspace(struct langbot_call *c)
{
    const struct json *name = json_get(c->msg.data, "marker_name");
    const char *text = json_str(name), *root = NULL;
    struct err err = {0};
    int r = box_paths_managed_place(&c->rpc->paths, &root, &err);
    if (text == NULL || strlen(text) != json_str_len(name))
        text = ""; /* which is no name of a probe */
    if (name == NULL)
        langbot_fail(c, LANGBOT_READINESS, "'marker_name'");
    else if (c->rpc->o.skills == NULL)
        langbot_fail(c, LANGBOT_READINESS,
                     "Box Runtime cannot read the Core shared Workspace probe");
    else if (r < 0 ||
             hostdir_verify_marker(langbot_skills(c), root, text, langbot_on_job, c, &err) < 0)
        langbot_fail(c, LANGBOT_READINESS, "%s", err.msg);
}

/* Admission grants. */

int64_t langbot_now_us(const struct langbot *r)
{
    return (int64_t)(clock_real(loop_clock(r->loop)) / 1000);
}

/* A grant that is installed, or a revocation: the other one is NULL. */
struct grant_call {
    struct langbot_call call;
    struct admission_grant *grant;           /* owned */
    struct admission_revocation *revocation; /* owned */
};

static struct grant_call *grant_of(struct langbot_call *c)
{
    return container_of(c, struct grant_call, call);
}

static void fail_admission(struct langbot_call *c, const struct err *err)
{
    langbot_fail(c, err->code == ERR_STATE ? LANGBOT_READINESS : LANGBOT_ADMISSION, "%s", err->msg);
}

/* Ends all sessions of the workspace, then answers. */
static void drop_workspace(struct langbot_call *c, const char *ns)
{
    char own[NS_SIZE + 1];
    const struct langbot_sweep_match match = {.prefix = own};
    (void)str_fmt(own, sizeof(own), "%s-", ns);
    langbot_call_sweep(c, &match);
}

static void write_grant(struct jw *w, const struct admission_grant *g)
{
    jw_kbool(w, "installed", true);
    jw_kstr(w, "workspace_uuid", g->workspace_uuid);
    jw_kint(w, "execution_generation", g->execution_generation);
    jw_kint(w, "entitlement_revision", g->entitlement_revision);
    jw_kint(w, "max_sessions", g->max_sessions);
    jw_kint(w, "max_managed_processes", g->max_managed_processes);
    langbot_write_time(w, "expires_at", (uint64_t)g->expires_at * 1000, "+00:00");
}

static void write_revocation(struct jw *w, const struct admission_revocation *v)
{
    jw_kbool(w, "revoked", true);
    jw_kstr(w, "workspace_uuid", v->workspace_uuid);
    jw_kint(w, "entitlement_revision", v->entitlement_revision);
}

static void reply_grant(struct langbot_call *c)
{
    const struct grant_call *g = grant_of(c);
    if (g->grant != NULL)
        write_grant(langbot_reply_open(c), g->grant);
    else
        write_revocation(langbot_reply_open(c), g->revocation);
    langbot_reply_close(c);
}

static void grant_done(struct langbot_call *c)
{
    admission_grant_free(grant_of(c)->grant);
    admission_revocation_free(grant_of(c)->revocation);
}

static void upsert_grant(struct langbot_call *c)
{
    struct report report = {0};
    struct err err = {0};
    char ns[NS_SIZE];
    bool drop = false;
    if (admission_grant_parse(c->msg.data, &grant_of(c)->grant, &report, &err) < 0) {
        langbot_fail_report(c, &report, admission_grant_model.name);
        return;
    }
    const struct admission_grant *g = grant_of(c)->grant;
    if (!langbot_trusts(c->rpc, c->bound ? &c->uid : NULL, g->instance_uuid)) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR,
                     "Sandbox admission grant does not match the trusted instance");
        return;
    }
    tenant_ns(g->instance_uuid, g->workspace_uuid, ns);
    if (admission_install(c->rpc->admission, ns, g, langbot_now_us(c->rpc), &drop, &err) < 0) {
        fail_admission(c, &err);
        return;
    }
    /* A grant for a generation is a sign of it; one for an older generation than we have seen is of
     * no use, and says so when it is used. */
    if (fence_pass(c->rpc->fence, ns, g->execution_generation, &err) > 0)
        langbot_shut_out(c->rpc, ns, g->execution_generation);
    if (drop)
        drop_workspace(c, ns);
    else
        reply_grant(c);
}

static void revoke_grant(struct langbot_call *c)
{
    struct report report = {0};
    struct err err = {0};
    char ns[NS_SIZE];
    if (admission_revocation_parse(c->msg.data, &grant_of(c)->revocation, &report, &err) < 0) {
        langbot_fail_report(c, &report, admission_revocation_model.name);
        return;
    }
    const struct admission_revocation *revocation = grant_of(c)->revocation;
    if (!langbot_trusts(c->rpc, c->bound ? &c->uid : NULL, revocation->instance_uuid)) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR,
                     "Sandbox admission revocation does not match the trusted instance");
        return;
    }
    tenant_ns(revocation->instance_uuid, revocation->workspace_uuid, ns);
    if (admission_revoke(c->rpc->admission, ns, revocation, &err) < 0)
        fail_admission(c, &err);
    else
        drop_workspace(c, ns);
}

static const struct langbot_call_type grant_type = {
    .size = sizeof(struct grant_call), .swept = reply_grant, .done = grant_done};

/* Grants that ran out. */

static void on_gone(void *arg, const struct err *err)
{
    if (err != NULL)
        log_warn(NULL, "end a session whose grant expired: %s; ignoring", err->msg);
}

static void on_expired(void *arg, const char *ns)
{
    struct langbot *r = arg;
    struct manager *m = r->o.manager;
    char own[NS_SIZE + 1];
    (void)str_fmt(own, sizeof(own), "%s-", ns);
    for (struct session *s = manager_next(m, NULL), *next; s != NULL; s = next) {
        struct err err = {0};
        next = manager_next(m, s);
        if (!str_starts(session_id(s), own))
            continue;
        log_info(session_id(s), "its grant has expired; removing the session");
        (void)manager_delete(m, session_id(s), on_gone, NULL, &err);
    }
}

void langbot_reap_grants(struct langbot *r)
{
    admission_reap(r->admission, langbot_now_us(r), on_expired, r);
}

static const struct langbot_call_type shutdown_type = {.size = sizeof(struct langbot_call),
                                                       .swept = shut_down};

const struct langbot_action langbot_runtime_actions[] = {
    {"__ping", 0, 0, ping},
    {LANGBOT_STREAM_ACK, 0, LANGBOT_FLOW, stream_ack},
    {"box_health", 0, 0, ask_backend, .answer = answer_health},
    {"box_get_backend_info", 0, 0, ask_backend, .answer = answer_info},
    {"box_shutdown", 0, 0, end_sessions, &shutdown_type},
    {"box_verify_shared_workspace", 0, LANGBOT_GRANT, verify_workspace},
    {"box_status", LANGBOT_TENANT, 0, ask_backend, .answer = answer_status},
    {"box_upsert_sandbox_admission_grant", 0, LANGBOT_GRANT, upsert_grant, &grant_type},
    {"box_revoke_sandbox_admission_grant", 0, LANGBOT_GRANT, revoke_grant, &grant_type},
    {0},
};
