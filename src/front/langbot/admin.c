/* SPDX-License-Identifier: Apache-2.0 */

/* Actions about the runtime itself: ping, health, backend, status, shutdown, workspace check. */

#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "jobs/hostdir.h"
#include "session/manager.h"
#include "session/process.h"

void langbot_ping(struct langbot_call *c)
{
    langbot_ok(c);
}

/* Nothing of ours comes in pieces, so there is nothing to go on with. */
void langbot_stream_ack(struct langbot_call *c)
{
    const struct json *seq = json_get(c->msg.data, "seq_id"),
                      *index = json_get(c->msg.data, "index");
    struct langbot_reply reply;
    if (json_type(seq) != JSON_INT || json_type(index) != JSON_INT) {
        langbot_fail(c, LANGBOT_VALUE_ERROR,
                     "Stream acknowledgement requires integer sequence and index");
        return;
    }
    langbot_reply_open(c, &reply);
    jw_kbool(&reply.w, "accepted", false);
    langbot_reply_close(c, &reply);
}

static void write_backend(const struct langbot *r, struct jw *w)
{
    struct err why = {0};
    bool available = r->selected && backend_available(manager_backend(r->o.manager), &why) == 0;
    jw_kstr(w, "name", available ? langbot_backend_name(r) : NULL);
    jw_kbool(w, "available", available);
}

static void on_probed(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    (void)err; /* it will be asked again what is available */
    c->then(c);
}

/* Whoever asks which backend there is gets the truth of now, not of the last call. */
static void when_known(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    struct backend *b = manager_backend(c->rpc->o.manager);
    c->then = then;
    if (c->rpc->selected && b->ops->probe != NULL)
        b->ops->probe(b, on_probed, c);
    else
        then(c);
}

static void on_health(void *arg, const struct readiness_report *report)
{
    struct langbot_call *c = arg;
    struct langbot_reply reply;
    if (!report->ready) {
        langbot_fail(c, LANGBOT_READINESS, "managed sandbox isolation is not ready");
        return;
    }
    langbot_reply_open(c, &reply);
    readiness_write(report, &reply.w);
    langbot_reply_close(c, &reply);
}

static void reply_backend(struct langbot_call *c)
{
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    write_backend(c->rpc, &reply.w);
    langbot_reply_close(c, &reply);
}

void langbot_health(struct langbot_call *c)
{
    if (admission_enforced(c->rpc->admission))
        readiness_get(c->rpc->readiness, on_health, c);
    else
        when_known(c, reply_backend);
}

/* Where admission is enforced: one that isolates less than it must is of no use. */
static void write_ready_backend(const struct readiness_report *report, struct jw *w)
{
    jw_kstr(w, "name", report->backend);
    jw_kbool(w, "available", report->ready);
    jw_key(w, "readiness");
    jw_object(w);
    readiness_write(report, w);
    jw_object_end(w);
}

static void on_info(void *arg, const struct readiness_report *report)
{
    struct langbot_call *c = arg;
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    write_ready_backend(report, &reply.w);
    langbot_reply_close(c, &reply);
}

void langbot_backend_info(struct langbot_call *c)
{
    if (admission_enforced(c->rpc->admission))
        readiness_get(c->rpc->readiness, on_info, c);
    else
        when_known(c, reply_backend);
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
    jw_key(w, "capacity");
    jw_object(w);
    jw_ku64(w, "limit", limit);
    jw_ku64(w, "used", used);
    jw_ku64(w, "remaining", own < free_for_all ? own : free_for_all);
    jw_object_end(w);
}

/* `report` NULL: admission is not enforced. */
static void write_status(struct langbot_call *c, const struct readiness_report *report)
{
    const struct manager_options *o = manager_get_options(c->rpc->o.manager);
    const struct box_limits *l = &c->rpc->limits;
    size_t used = count_sessions(c);
    struct langbot_reply reply;
    struct jw *w = &reply.w;
    langbot_reply_open(c, &reply);
    jw_key(w, "backend");
    jw_object(w);
    if (report != NULL)
        write_ready_backend(report, w);
    else
        write_backend(c->rpc, w);
    jw_object_end(w);
    jw_ku64(w, "active_sessions", used);
    jw_ku64(w, "managed_processes", langbot_count_processes(c->rpc, c->prefix));
    jw_ku64(w, "session_ttl_sec", o->ttl_ns / NSEC_PER_SEC);
    if (c->rules->tells_of_workspace) {
        jw_key(w, "limits");
        jw_object(w);
        jw_ku64(w, "max_sessions", o->max_sessions);
        jw_ku64(w, "max_managed_processes", o->max_processes);
        jw_ku64(w, "max_completed_processes", o->max_exited);
        jw_kint(w, "max_admission_records", l->max_admission_records);
        jw_kint(w, "max_rpc_file_bytes", l->max_rpc_file_bytes);
        jw_object_end(w);
        write_capacity(c, used, w);
    }
    langbot_reply_close(c, &reply);
}

static void reply_status(struct langbot_call *c)
{
    write_status(c, NULL);
}

static void on_status(void *arg, const struct readiness_report *report)
{
    write_status(arg, report);
}

void langbot_status(struct langbot_call *c)
{
    if (admission_enforced(c->rpc->admission))
        readiness_get(c->rpc->readiness, on_status, c);
    else
        when_known(c, reply_status);
}

static void shut_down(struct langbot_call *c)
{
    c->rpc->draining = false;
    langbot_ok(c);
}

/* Only what was made for LangBot goes: the sessions of other fronts are somebody else's. Clients of
 * the first release name theirs freely, and expect persistent ones to stay. */
void langbot_shutdown(struct langbot_call *c)
{
    const struct sweep_match all = {.physical = true}, first = {.keep_persistent = true};
    if (c->rpc->draining) { /* one is enough, and it will not take long */
        langbot_ok(c);
        return;
    }
    log_info(NULL, "a client asks to end its sessions");
    c->rpc->draining = true;
    langbot_call_sweep(c, c->conn->flags != 0 ? &first : &all, shut_down);
}

static void on_verified(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (json == NULL)
        langbot_fail_named(c, message);
    else
        langbot_reply_json(c, json, len);
}

void langbot_verify_workspace(struct langbot_call *c)
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
             hostdir_verify_marker(langbot_skills(c), root, text, on_verified, c, &err) < 0)
        langbot_fail(c, LANGBOT_READINESS, "%s", err.msg);
}

/* For dashboards. There is no pool of threads here: its numbers are there for those who look for
 * them, and stay zero. */
void langbot_write_resources(struct langbot *r, struct jw *w)
{
    static const char *const lags[] = {"last_lag_ms", "recent_p95_lag_ms", "recent_max_lag_ms",
                                       "max_lag_ms"};
    static const char *const zeros[] = {
        "max_workers",     "max_pending",    "max_inflight_per_scope", "inflight",
        "running",         "pending",        "active_scopes",          "submitted_total",
        "completed_total", "rejected_total", "global_rejected_total",  "scope_rejected_total"};
    struct manager *m = r->o.manager;
    size_t creating = 0, closing = 0, calls = 0;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        creating += session_state(s) == SESSION_CREATING;
        closing += session_state(s) == SESSION_STOPPING;
    }
    for (struct langbot_call *c = r->calls; c != NULL; c = c->next)
        calls++;
    jw_key(w, "resources");
    jw_object(w);
    jw_key(w, "event_loop");
    jw_object(w);
    jw_kbool(w, "running", true);
    jw_kint(w, "samples_total", 0);
    for (size_t i = 0; i < ARRAY_SIZE(lags); i++)
        jw_kreal(w, lags[i], 0.0);
    jw_object_end(w);
    jw_key(w, "blocking_executor");
    jw_object(w);
    for (size_t i = 0; i < ARRAY_SIZE(zeros); i++)
        jw_kint(w, zeros[i], 0);
    jw_object_end(w);
    jw_ku64(w, "sessions", manager_count(m) - creating - closing);
    jw_ku64(w, "managed_processes", manager_processes_running(m));
    jw_ku64(w, "completed_processes", manager_processes_exited(m));
    jw_ku64(w, "creating_session_tasks", creating);
    jw_ku64(w, "closing_session_tasks", closing);
    jw_ku64(w, "background_tasks", calls);
    jw_object_end(w);
}
