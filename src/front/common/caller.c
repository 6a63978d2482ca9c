/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/err.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/peer.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/manager.h"

const struct authz_scope *v1_caller(const struct http_request *req)
{
    return http_request_user(req);
}

const char *v1_who(const struct http_request *req)
{
    const struct authz_scope *scope = v1_caller(req);

    if (scope != NULL || http_request_is_unix(req))
        return authz_name(scope);
    if (http_request_bearer(req) != NULL)
        return "token";
    return http_request_peer(req)->known ? authz_name(NULL) : "anyone";
}

char *v1_owner(const struct authz_scope *scope)
{
    return scope != NULL ? xstrdup(authz_share(scope)) : NULL;
}

static void sign(const struct http_request *req, struct audit_record *record)
{
    record->who = v1_who(req);
    record->via = "http";
}

bool v1_may(struct http_request *req, const struct v1 *v, const char *tool)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = http_request_param(req, "id")};
    struct err err = {0};

    if (authz_check_tool(v1_caller(req), tool, &err) == 0)
        return true;
    v1_failed(v, req, &err, NULL, &record);
    v1_fail(req, &err);
    return false;
}

bool v1_owns(struct http_request *req, const struct v1 *v, const char *session_id)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = session_id};
    struct err err = {0};

    if (authz_check_session(v1_caller(req), session_id, &err) == 0)
        return true;
    v1_failed(v, req, &err, NULL, &record);
    return false;
}

bool v1_may_use(struct http_request *req, const struct v1 *v, const struct session *s)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = session_id(s)};
    struct err err = {0};

    if (policy_check_use(v->service->policy, v1_caller(req), session_spec(s), &err) == 0)
        return true;
    v1_failed(v, req, &err, NULL, &record);
    v1_fail(req, &err);
    return false;
}

struct session *v1_use_session(struct http_request *req, const struct v1 *v, const char *tool)
{
    struct session *s = v1_may(req, v, tool) ? v1_find_session(req, v) : NULL;

    return s == NULL || v1_may_use(req, v, s) ? s : NULL;
}

int v1_audit(const struct v1 *v, const struct http_request *req, struct audit_record *record,
             struct err *err)
{
    sign(req, record);
    return v->service->audit != NULL ? audit_write(v->service->audit, record, err) : 0;
}

void v1_failed(const struct v1 *v, const struct http_request *req, const struct err *err,
               const char *query_id, struct audit_record *record)
{
    if (record != NULL)
        sign(req, record);
    policy_service_failed(v->service, err, query_id, record);
}
