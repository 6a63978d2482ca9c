/* SPDX-License-Identifier: Apache-2.0 */

/* Actions that install and revoke admission grants, and the removal of those that expired. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/crypto.h"
#include "session/manager.h"
#include "spec/admission.h"
#include "spec/model.h"

#define USEC_PER_SEC 1000000

int64_t langbot_now_us(const struct langbot *r)
{
    return (int64_t)(clock_real(loop_clock(r->loop)) / 1000);
}

static bool is_trusted(const struct langbot *r, const char *instance)
{
    return r->instance != NULL &&
           http_secret_eq(instance, strlen(instance), r->instance, strlen(r->instance));
}

static void fail_admission(struct langbot_call *c, const struct err *err)
{
    langbot_fail(c, err->code == ERR_STATE ? LANGBOT_READINESS : LANGBOT_ADMISSION, "%s", err->msg);
}

/* All sessions of the workspace that the call is about, then `then`. */
static void drop_workspace(struct langbot_call *c, const char *ns,
                           void (*then)(struct langbot_call *c))
{
    char own[NS_SIZE + 1];
    const struct sweep_match match = {.prefix = own};
    (void)str_fmt(own, sizeof(own), "%s-", ns);
    langbot_call_sweep(c, &match, then);
}

/* As datetime.isoformat() of Python. */
static void write_expiry(struct jw *w, int64_t us)
{
    char text[64];
    struct tm tm;
    time_t sec = (time_t)(us / USEC_PER_SEC);
    int64_t fraction = us % USEC_PER_SEC;
    (void)gmtime_r(&sec, &tm);
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    if (fraction > 0)
        n += (size_t)snprintf(text + n, sizeof(text) - n, ".%06" PRId64, fraction);
    (void)str_copy(text + n, sizeof(text) - n, "+00:00");
    jw_kstr(w, "expires_at", text);
}

/* The request is read again rather than kept: it is small and has been found good. */
static void installed(struct langbot_call *c)
{
    AUTO(admission_grant) struct admission_grant *g = NULL;
    struct langbot_reply reply;
    struct err err = {0};
    if (admission_grant_parse(c->msg.data, &g, NULL, &err) < 0) {
        langbot_fail_err(c, &err);
        return;
    }
    langbot_reply_open(c, &reply);
    jw_kbool(&reply.w, "installed", true);
    jw_kstr(&reply.w, "workspace_uuid", g->workspace_uuid);
    jw_kint(&reply.w, "execution_generation", g->execution_generation);
    jw_kint(&reply.w, "entitlement_revision", g->entitlement_revision);
    jw_kint(&reply.w, "max_sessions", g->max_sessions);
    jw_kint(&reply.w, "max_managed_processes", g->max_managed_processes);
    write_expiry(&reply.w, g->expires_at);
    langbot_reply_close(c, &reply);
}

void langbot_upsert_grant(struct langbot_call *c)
{
    AUTO(admission_grant) struct admission_grant *g = NULL;
    struct report report = {0};
    struct err err = {0};
    char ns[NS_SIZE];
    bool drop = false;
    if (admission_grant_parse(c->msg.data, &g, &report, &err) < 0) {
        langbot_fail_report(c, &report, admission_grant_model.name);
        return;
    }
    if (!is_trusted(c->rpc, g->instance_uuid)) {
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
        drop_workspace(c, ns, installed);
    else
        installed(c);
}

static void revoked(struct langbot_call *c)
{
    AUTO(admission_revocation) struct admission_revocation *revocation = NULL;
    struct langbot_reply reply;
    struct err err = {0};
    if (admission_revocation_parse(c->msg.data, &revocation, NULL, &err) < 0) {
        langbot_fail_err(c, &err);
        return;
    }
    langbot_reply_open(c, &reply);
    jw_kbool(&reply.w, "revoked", true);
    jw_kstr(&reply.w, "workspace_uuid", revocation->workspace_uuid);
    jw_kint(&reply.w, "entitlement_revision", revocation->entitlement_revision);
    langbot_reply_close(c, &reply);
}

void langbot_revoke_grant(struct langbot_call *c)
{
    AUTO(admission_revocation) struct admission_revocation *revocation = NULL;
    struct report report = {0};
    struct err err = {0};
    char ns[NS_SIZE];
    if (admission_revocation_parse(c->msg.data, &revocation, &report, &err) < 0) {
        langbot_fail_report(c, &report, admission_revocation_model.name);
        return;
    }
    if (!is_trusted(c->rpc, revocation->instance_uuid)) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR,
                     "Sandbox admission revocation does not match the trusted instance");
        return;
    }
    tenant_ns(revocation->instance_uuid, revocation->workspace_uuid, ns);
    if (admission_revoke(c->rpc->admission, ns, revocation, &err) < 0)
        fail_admission(c, &err);
    else
        drop_workspace(c, ns, revoked);
}

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
