/* SPDX-License-Identifier: Apache-2.0 */

/* Creates the HTTP API, and its routes for health, doctor, status, errors and sessions. */

#include "front/v1/v1.h"

#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "command/execs.h"
#include "command/policy_service.h"
#include "front/v1/files.h"
#include "front/v1/idem.h"
#include "front/v1/metrics.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "http/server/server.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy/outputs.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define LIST_MAX (32U << 20)
#define BODY_MAX (12U << 20)
#define JSON_TYPE "application/json"

/* One request under way. */
struct call {
    struct http_request *req;
    struct session *session; /* held */
};

static void call_free(struct call *c)
{
    session_release(c->session);
    free(c);
}

static void get_health(struct http_request *req, void *arg)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, 1024);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "status", "ok");
    /* Anybody may knock on a TCP port, and learns that somebody is there. */
    if (http_request_is_unix(req))
        jw_kstr(&w, "version", BOX_VERSION);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static void on_doctor(void *arg, const char *json, size_t len, const struct err *err)
{
    struct http_request *req = arg;
    if (err != NULL)
        front_fail(req, err);
    else
        http_reply(req, 200, JSON_TYPE, json, len);
}

static void get_doctor(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct backend *b = manager_backend(v->front.manager);
    struct err err = {0};
    if (!front_may(req, &v->front, "doctor"))
        return;
    if (b->ops->doctor(b, on_doctor, req, &err) < 0)
        front_fail(req, &err);
}

static void get_status(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (!front_may(req, &v->front, "status"))
        return;
    jw_init(&w, &out);
    policy_service_write_status(v->front.service, front_caller(req), &w);
    front_reply_json(req, 200, &out, &w);
}

static void get_errors(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (!front_may(req, &v->front, "errors"))
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "errors");
    error_ring_write_json(v->front.service->errors, authz_errors(front_caller(req)), &w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static void list_sessions(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->front.manager;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "sessions");
    jw_array(&w);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!authz_sees(front_caller(req), NULL, session_id(s)))
            continue;
        jw_object(&w);
        v1_write_session(&w, s);
        jw_object_end(&w);
    }
    jw_array_end(&w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static void on_session_ready(void *arg, struct session *s, const struct err *err)
{
    struct http_request *req = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (s == NULL) {
        front_fail(req, err);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, s);
    jw_object_end(&w);
    front_reply_json(req, 201, &out, &w);
    session_release(s);
}

static void create_session(struct http_request *req, void *arg)
{
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    const struct v1 *v = arg;
    if (idem_begin(v->idem, req, asker.who) && front_read_body(req, &body) &&
        front_session_get(&v->front, &asker,
                          &(struct front_want){.object = body, .id_required = true},
                          on_session_ready, req, &err) < 0)
        front_fail(req, &err);
}

static void on_receipt(void *arg, const char *json, size_t len, const struct err *err)
{
    struct call *c = arg;
    AUTO_DONE(buf) struct buf out;
    AUTO(json) struct json *receipt = NULL;
    struct err parse_err = {0};
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (err == NULL && json_parse(json, len, &receipt, &parse_err) < 0)
        err = &parse_err;
    if (err != NULL) {
        front_fail(c->req, err);
        call_free(c);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, c->session);
    jw_key(&w, "receipt");
    jw_value(&w, receipt);
    jw_object_end(&w);
    front_reply_json(c->req, 200, &out, &w);
    call_free(c);
}

static void get_session(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = front_find_session(req, &((const struct v1 *)arg)->front);
    if (s == NULL)
        return;
    struct sandbox *sb = session_sandbox(s);
    if (sb == NULL) {
        (void)err_set(&err, ERR_STATE, "session %s is still being made", session_id(s));
        front_fail(req, &err);
        return;
    }
    struct call *c = xnew(struct call);
    c->req = req;
    c->session = s;
    session_hold(s);
    if (sb->backend->ops->receipt(sb, on_receipt, c, &err) < 0) {
        front_fail(req, &err);
        call_free(c);
    }
}

static void on_deleted(void *arg, const struct err *err)
{
    struct http_request *req = arg;
    if (err != NULL)
        front_fail(req, err);
    else
        http_reply(req, 204, NULL, NULL, 0);
}

static void delete_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *id = http_request_param(req, "id");
    struct audit_record record = {.event = AUDIT_SESSION_DELETE, .session = id};
    struct err err = {0};
    if (!front_may(req, &v->front, "session"))
        return;
    int r = front_owns(req, &v->front, id)
                ? manager_delete(v->front.manager, id, on_deleted, req, &err)
                : authz_check_session(front_caller(req), id, &err);
    if (r < 0) {
        front_fail(req, &err);
        return;
    }
    (void)front_audit(&v->front, req, &record, NULL); /* it goes; losses are counted */
    if (v->front.service->outputs != NULL)
        outputs_forget(v->front.service->outputs, id);
}

static const struct http_route routes[] = {
    {"GET", "/v1/health", get_health, HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/doctor", get_doctor, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/status", get_status, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/errors", get_errors, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions", list_sessions, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions", create_session, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}", get_session, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}", delete_session, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/exec", v1_exec, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/exec", v1_stream, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    int r = http_server_add_routes(server, routes, v, err);
    if (r == 0)
        r = v1_process_routes(server, v, err);
    if (r == 0)
        r = metrics_routes(server, v, err);
    if (r == 0)
        r = v1_execs_routes(server, v, err);
    if (r == 0)
        r = v1_files_routes(server, v, err);
    if (r == 0)
        r = v1_tools_routes(server, v, err);
    if (r == 0)
        r = v1_events_routes(server, v, err);
    if (r == 0)
        r = v1_admin_routes(server, v, err);
    if (r == 0)
        r = v1_tool_routes(server, v, err);
    if (r == 0)
        r = v1_openapi_routes(server, v, err);
    return r < 0 ? r : v1_output_routes(server, v, err);
}

struct v1 *v1_new(const struct v1_options *options)
{
    struct v1 *v = xnew(struct v1);
    v->front.manager = options->manager;
    v->front.service = options->service;
    v->events = options->events;
    struct execs_options execs = execs_defaults;
    execs.service = v->front.service;
    v->execs = execs_new(manager_loop(v->front.manager), &execs);
    http_random(v->cursor_key, sizeof(v->cursor_key));
    v->idem =
        idem_new(manager_loop(v->front.manager), manager_get_options(v->front.manager)->store);
    return v;
}

struct front *v1_front(struct v1 *v)
{
    return &v->front;
}

void v1_free(struct v1 *v)
{
    if (v == NULL)
        return;
    execs_free(v->execs);
    idem_free(v->idem);
    free(v);
}
