/* SPDX-License-Identifier: Apache-2.0 */
#include "front/v1/v1.h"

#include <errno.h>
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

void v1_reply_json(struct http_request *req, unsigned status, struct buf *out, struct jw *w)
{
    if (jw_end(w) < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, status, JSON_TYPE, out->data, out->len);
}

static void get_health(struct http_request *req, void *arg)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    (void)arg;
    buf_init(&out, 1024);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "status", "ok");
    /* Anybody may knock on a TCP port, and learns that somebody is there. */
    if (http_request_is_unix(req))
        jw_kstr(&w, "version", BOX_VERSION);
    jw_object_end(&w);
    v1_reply_json(req, 200, &out, &w);
}

static void on_doctor(void *arg, const char *json, size_t len, const struct err *err)
{
    struct http_request *req = arg;
    if (err != NULL)
        v1_fail(req, err);
    else
        http_reply(req, 200, JSON_TYPE, json, len);
}

static void get_doctor(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct backend *b = manager_backend(v->manager);
    struct err err = {0};
    if (!v1_may(req, v, "doctor"))
        return;
    if (b->ops->doctor(b, on_doctor, req, &err) < 0)
        v1_fail(req, &err);
}

static void get_status(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (!v1_may(req, v, "status"))
        return;
    jw_init(&w, &out);
    policy_service_write_status(v->service, v1_caller(req), &w);
    v1_reply_json(req, 200, &out, &w);
}

static void get_errors(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (!v1_may(req, v, "errors"))
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "errors");
    error_ring_write_json(v->service->errors, authz_errors(v1_caller(req)), &w);
    jw_object_end(&w);
    v1_reply_json(req, 200, &out, &w);
}

static void list_sessions(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->manager;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "sessions");
    jw_array(&w);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!authz_sees(v1_caller(req), NULL, session_id(s)))
            continue;
        jw_object(&w);
        v1_write_session(&w, s);
        jw_object_end(&w);
    }
    jw_array_end(&w);
    jw_object_end(&w);
    v1_reply_json(req, 200, &out, &w);
}

bool v1_read_body(struct http_request *req, struct json **ret)
{
    struct err err = {0};
    size_t len;
    const char *body = http_request_body(req, &len);
    int r = json_parse(body, len, ret, &err);
    if (r == 0 && json_type(*ret) != JSON_OBJECT)
        r = err_set(&err, ERR_INVALID, "the body must be a JSON object");
    if (r == 0)
        return true;
    if (err.sys == ENOMEM)
        http_reply_error(req, 503, err_code_name(err.code), err.msg, "try again later");
    else
        http_reply_error(req, 400, err_code_name(err.code), err.msg, "send one JSON object");
    json_free(*ret);
    *ret = NULL;
    return false;
}

static void on_session_ready(void *arg, struct session *s, const struct err *err)
{
    struct http_request *req = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (s == NULL) {
        v1_fail(req, err);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, s);
    jw_object_end(&w);
    v1_reply_json(req, 201, &out, &w);
    session_release(s);
}

static void create_session(struct http_request *req, void *arg)
{
    const struct v1_asker asker = {.scope = v1_caller(req), .who = v1_who(req)};
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    const struct v1 *v = arg;
    if (idem_begin(v->idem, req, asker.who) && v1_read_body(req, &body) &&
        v1_session_get(v, &asker, &(struct v1_want){.object = body, .id_required = true},
                       on_session_ready, req, &err) < 0)
        v1_fail(req, &err);
}

struct session *v1_find_session(struct http_request *req, const struct v1 *v)
{
    const char *id = http_request_param(req, "id");
    struct session *s = v1_owns(req, v, id) ? manager_find(v->manager, id) : NULL;
    if (s == NULL) {
        struct err err = {0};
        (void)err_set(&err, ERR_NOT_FOUND, "session %.80s not found", id);
        v1_fail(req, &err);
    }
    return s;
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
        v1_fail(c->req, err);
        call_free(c);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, c->session);
    jw_key(&w, "receipt");
    jw_value(&w, receipt);
    jw_object_end(&w);
    v1_reply_json(c->req, 200, &out, &w);
    call_free(c);
}

static void get_session(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = v1_find_session(req, arg);
    if (s == NULL)
        return;
    struct sandbox *sb = session_sandbox(s);
    if (sb == NULL) {
        (void)err_set(&err, ERR_STATE, "session %s is still being made", session_id(s));
        v1_fail(req, &err);
        return;
    }
    struct call *c = xnew(struct call);
    c->req = req;
    c->session = s;
    session_hold(s);
    if (sb->backend->ops->receipt(sb, on_receipt, c, &err) < 0) {
        v1_fail(req, &err);
        call_free(c);
    }
}

static void on_deleted(void *arg, const struct err *err)
{
    struct http_request *req = arg;
    if (err != NULL)
        v1_fail(req, err);
    else
        http_reply(req, 204, NULL, NULL, 0);
}

static void delete_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *id = http_request_param(req, "id");
    struct audit_record record = {.event = AUDIT_SESSION_DELETE, .session = id};
    struct err err = {0};
    if (!v1_may(req, v, "session"))
        return;
    int r = v1_owns(req, v, id) ? manager_delete(v->manager, id, on_deleted, req, &err)
                                : authz_check_session(v1_caller(req), id, &err);
    if (r < 0) {
        v1_fail(req, &err);
        return;
    }
    (void)v1_audit(v, req, &record, NULL); /* it goes; losses are counted */
    if (v->service->outputs != NULL)
        outputs_forget(v->service->outputs, id);
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
    v->manager = options->manager;
    v->service = options->service;
    v->events = options->events;
    struct execs_options execs = execs_defaults;
    execs.service = v->service;
    v->execs = execs_new(manager_loop(v->manager), &execs);
    http_random(v->cursor_key, sizeof(v->cursor_key));
    v->idem = idem_new(manager_loop(v->manager), manager_get_options(v->manager)->store);
    return v;
}

void v1_free(struct v1 *v)
{
    if (v == NULL)
        return;
    execs_free(v->execs);
    idem_free(v->idem);
    free(v);
}
