/* SPDX-License-Identifier: Apache-2.0 */

/* The states of a session as routes: stop, start, pause, unpause, rename and update. */

#include "base/alloc.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ANSWER_MAX (1U << 20)

/* The name of a session that the caller may end; what it asks for goes on record. NULL: answered.
 */
static const char *state_session(struct http_request *req, const struct v1 *v)
{
    const char *id = http_request_param(req, "id");
    struct err err = {0};

    if (!front_may(req, &v->front, "session"))
        return NULL;
    if (front_owns(req, &v->front, id))
        return id;
    (void)authz_check_session(front_caller(req), id, &err);
    front_fail(req, &err);
    return NULL;
}

static void state_record(struct http_request *req, const struct v1 *v, const char *id,
                         const char *outcome)
{
    struct audit_record record = {.event = AUDIT_SESSION_STATE, .session = id, .outcome = outcome};
    (void)front_audit(&v->front, req, &record, NULL); /* it has begun; losses are counted */
}

static void stop_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *id = state_session(req, v);
    struct err err = {0};

    if (id == NULL)
        return;
    if (manager_stop(v->front.manager, id, front_done, req, &err) < 0)
        front_fail(req, &err);
    else
        state_record(req, v, id, "stopped");
}

static void on_started(void *arg, struct session *s, const struct err *err)
{
    struct http_request *req = arg;
    if (s == NULL) {
        front_fail(req, err);
        return;
    }
    AUTO_DONE(front_answer) struct front_answer out;

    v1_write_session(front_begin(&out, ANSWER_MAX), s);
    front_reply(&out, req, 200);
    session_release(s);
}

static void start_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *id = state_session(req, v);
    struct err err = {0};

    if (id == NULL)
        return;
    if (manager_run_start(v->front.manager, id, on_started, req, &err) < 0)
        front_fail(req, &err);
    else
        state_record(req, v, id, "started");
}

static void set_paused(struct http_request *req, const struct v1 *v, bool paused)
{
    const char *id = state_session(req, v);
    struct err err = {0};

    if (id == NULL)
        return;
    if (manager_pause(v->front.manager, id, paused, front_done, req, &err) < 0)
        front_fail(req, &err);
    else
        state_record(req, v, id, paused ? "paused" : "unpaused");
}

static void pause_session(struct http_request *req, void *arg)
{
    set_paused(req, arg, true);
}

static void unpause_session(struct http_request *req, void *arg)
{
    set_paused(req, arg, false);
}

/* clang-format off */
static const struct field rename_fields[] = {
    {"name", FIELD_STR, FIELD_REQUIRED, offsetof(struct v1_rename, name), .max = SPEC_ID_MAX},
};
/* clang-format on */

const struct model v1_rename_model = {
    .name = "RenameRequest",
    .fields = rename_fields,
    .n_fields = ARRAY_SIZE(rename_fields),
    .size = sizeof(struct v1_rename),
    .closed = true,
};

/* The new name must be the caller's to use, too. */
static int do_rename(struct http_request *req, const struct v1 *v, const char *id,
                     const struct json *body, struct err *err)
{
    struct v1_rename want = {0};
    int r = front_read(&v1_rename_model, body, NULL, &want, err);

    if (r < 0)
        return r;
    r = authz_check_session(front_caller(req), want.name, err);
    if (r == 0)
        r = manager_rename(v->front.manager, id, want.name, err);
    if (r == 0)
        state_record(req, v, id, "renamed");
    model_done(&v1_rename_model, &want);
    return r;
}

static void rename_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    const char *id = state_session(req, v);

    if (id == NULL || !front_read_body(req, &body))
        return;
    if (do_rename(req, v, id, body, &err) < 0)
        front_fail(req, &err);
    else
        http_reply(req, 204, NULL, NULL, 0);
}

/* What the request leaves out stays as it is. */
static int do_update(struct http_request *req, const struct v1 *v, const struct session *s,
                     const struct json *body, struct err *err)
{
    struct spec want = *session_spec(s); /* only numbers of it change: what it owns stays theirs */
    struct report report = {0};
    uint64_t given = 0;

    if (json_get(body, "workspace_quota_mb") != NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "workspace_quota_mb is the size of a disk that is made with the session; "
                       "make another session, and copy the files there");
    int r = front_strict(&spec_limits_model, body, NULL, err);
    for (size_t i = 0; i < spec_limits_model.n_fields; i++)
        if (json_get(body, spec_limits_model.fields[i].name) != NULL)
            given |= FIELD_BIT(SPEC_CPUS + i);
    if (r == 0 && given == 0)
        r = err_set(err, ERR_INVALID,
                    "nothing to change: give at least one of cpus, memory_mb and pids_limit");
    if (r == 0 && model_parse(&spec_limits_model, body, 0, &want, &report) < 0)
        r = report_fail_plain(&report, err);
    if (r == 0)
        r = policy_check_change(v->front.service->policy, front_caller(req), &want, given, err);
    want.own.required = given;
    if (r == 0)
        r = manager_update(v->front.manager, session_id(s), &want, front_done, req, err);
    if (r == 0)
        state_record(req, v, session_id(s), "updated");
    return r;
}

static void update_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    const struct session *s = front_look_session(req, &v->front, "session");

    if (s != NULL && front_read_body(req, &body) && do_update(req, v, s, body, &err) < 0)
        front_fail(req, &err);
}

const struct http_route v1_state_routes[] = {
    {"PATCH", "/v1/sessions/{id}", update_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/stop", stop_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/start", start_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/pause", pause_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/unpause", unpause_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/rename", rename_session, HTTP_ROUTE_SCOPED, 0},
    {0},
};
