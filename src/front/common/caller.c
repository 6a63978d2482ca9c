/* SPDX-License-Identifier: Apache-2.0 */

/* The caller of a front: its name and scope, what it may do, and what is recorded of it. */

#include "command/policy_service.h"
#include "front/common/front.h"
#include "http/server/server.h"
#include "loop/peer.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"

const struct authz_scope *front_caller(const struct http_request *req)
{
    return http_request_user(req);
}

const char *front_who(const struct http_request *req)
{
    const struct authz_scope *scope = front_caller(req);

    if (scope != NULL || http_request_is_unix(req))
        return authz_name(scope);
    if (http_request_bearer(req) != NULL)
        return "token";
    return http_request_peer(req)->known ? authz_name(NULL) : "anyone";
}

static void record_sign(const struct http_request *req, struct audit_record *record)
{
    record->who = front_who(req);
    record->via = "http";
}

bool front_may(struct http_request *req, const struct front *f, const char *tool)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = http_request_param(req, "id")};
    struct err err = {0};

    if (authz_check_tool(front_caller(req), tool, &err) == 0)
        return true;
    front_failed(f, req, &err, NULL, &record);
    front_fail(req, &err);
    return false;
}

bool front_owns(struct http_request *req, const struct front *f, const char *session_id)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = session_id};
    struct err err = {0};

    if (authz_check_session(front_caller(req), session_id, &err) == 0)
        return true;
    front_failed(f, req, &err, NULL, &record);
    return false;
}

bool front_may_use(struct http_request *req, const struct front *f, const struct session *s)
{
    struct audit_record record = {.event = AUDIT_DENIED, .session = session_id(s)};
    struct err err = {0};

    if (policy_check_use(f->service->policy, front_caller(req), session_spec(s), &err) == 0)
        return true;
    front_failed(f, req, &err, NULL, &record);
    front_fail(req, &err);
    return false;
}

struct session *front_find_session(struct http_request *req, const struct front *f)
{
    const char *id = http_request_param(req, "id");
    struct session *s = front_owns(req, f, id) ? manager_find(f->manager, id) : NULL;
    if (s == NULL) {
        struct err err = {0};
        (void)err_missing(&err, ERR_THING_SESSION, "session %.80s not found", id);
        front_fail(req, &err);
    }
    return s;
}

/* The session runs again: the handler begins anew, and finds it. */
static void on_session_started(void *arg, struct session *s, const struct err *err)
{
    struct http_request *req = arg;

    if (s == NULL)
        front_fail(req, err);
    else if (http_request_cancelled(req))
        http_abort(req);
    else
        http_request_again(req);
    if (s != NULL)
        session_release(s);
}

bool front_awake(struct http_request *req, const struct front *f, const struct session *s)
{
    struct err err = {0};

    if (session_state(s) == SESSION_PAUSED)
        (void)session_refuse_paused(s, &err);
    else if (!session_dormant(s))
        return true;
    else if (manager_start(f->manager, session_id(s), on_session_started, req, &err) == 0)
        return false;
    front_fail(req, &err);
    return false;
}

struct session *front_look_session(struct http_request *req, const struct front *f,
                                   const char *tool)
{
    struct session *s = front_may(req, f, tool) ? front_find_session(req, f) : NULL;

    return s != NULL && front_may_use(req, f, s) ? s : NULL;
}

struct session *front_use_session(struct http_request *req, const struct front *f, const char *tool)
{
    struct session *s = front_look_session(req, f, tool);

    return s != NULL && front_awake(req, f, s) ? s : NULL;
}

int front_audit(const struct front *f, const struct http_request *req, struct audit_record *record,
                struct err *err)
{
    record_sign(req, record);
    return f->service->audit != NULL ? audit_write(f->service->audit, record, err) : 0;
}

void front_failed(const struct front *f, const struct http_request *req, const struct err *err,
                  const char *query_id, struct audit_record *record)
{
    if (record != NULL)
        record_sign(req, record);
    policy_service_failed(f->service, err, query_id, record);
}
