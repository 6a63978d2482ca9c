/* SPDX-License-Identifier: Apache-2.0 */

/* Routes, request tables and answers of the chat API. */

#include "front/chat/chat_http.h"

#include <stddef.h>

#include "agent/chat/chat.h"
#include "base/alloc.h"
#include "command/policy_service.h"
#include "front/common/front.h"
#include "http/server/server.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/outputs.h"
#include "spec/model.h"

#define BODY_MAX 4096U
#define ANSWER_MAX 4096U
#define CHAT_ID_MAX 128

struct create_request {
    char *chat_id; /* owned */
};

static const struct field create_fields[] = {
    {"chat_id", FIELD_STR, FIELD_REQUIRED, offsetof(struct create_request, chat_id),
     .max = CHAT_ID_MAX, .doc = "UUID of the chat, in any spelling."},
};

static const struct model create_model = {.name = "CreateSandbox",
                                          .doc = "The sandbox of a chat.",
                                          MODEL_FIELDS(create_fields, struct create_request)};

static void get_health(struct http_request *req, void *arg)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    http_reply(req, 200, "application/json", ok, sizeof(ok) - 1);
}

/* How a failure is answered. The request was correct, so most failures are boxd's or the host's. */
static const struct {
    unsigned status; /* 0: as the last */
    const char *remedy;
} answers[ERR_CODE_MAX + 1] = {
    [ERR_LIMIT] = {429, "try again later, or raise max_sessions in boxd's configuration"},
    [ERR_CONFLICT] = {409, "end the session of that name first (`box rm`)"},
    [ERR_STATE] = {503, "try again"},
    [ERR_UNAVAILABLE] = {503, "`box doctor` tells which backends there are and what each lacks"},
    [ERR_BACKEND] = {502, "see boxd's log; `box doctor` checks the host"},
    [ERR_CODE_MAX] = {500, "correct the section sandbox of boxd's configuration, or what it names"},
};

static void reply_failure(struct http_request *req, const struct chat_failure *f)
{
    const char *const more[] = {"chat_id", f->chat_id, NULL};
    size_t i = answers[f->err.code].status != 0 ? f->err.code : ERR_CODE_MAX;
    http_reply_problem(req, &(struct http_problem){.status = answers[i].status,
                                                   .code = f->code,
                                                   .detail = f->err.msg,
                                                   .remediation = answers[i].remedy,
                                                   .more = more});
}

/* One request under way. */
struct chat_call {
    struct http_request *req;
    const struct front *front; /* borrowed */
    char chat_id[CHAT_UUID_SIZE];
};

/* Whether the caller may have sessions, also of that name, and, to make one, whether chat sandboxes
 * are available now. Refusals are recorded. */
static int check_caller(struct chat_call *c, const char *chat_id, bool make, struct err *err)
{
    const struct policy_service *service = c->front->service;
    uid_t uid = 0;
    int r = chat_uuid_parse(chat_id, c->chat_id);
    if (r < 0)
        return err_set(err, ERR_INVALID, "chat_id must be a UUID");
    r = authz_check_tool(front_caller(c->req), "session", err);
    if (r == 0 && authz_is_user(front_caller(c->req), &uid))
        r = err_set(
            err, ERR_DENIED,
            "chat sandboxes are for root, boxd's own user and clients with a token, not for "
            "uid %u; make a session (POST /v1/sessions), or ask for a token",
            uid);
    if (r == 0)
        r = authz_check_session(front_caller(c->req), c->chat_id, err);
    if (r == 0 && make)
        r = policy_service_guard(service, err);
    if (r == 0 && make && service->audit != NULL)
        r = audit_ready(service->audit, err);
    if (r < 0) {
        struct audit_record record = {.event = AUDIT_DENIED, .session = c->chat_id};
        front_failed(c->front, c->req, err, NULL, &record);
    }
    return r;
}

static void record_result(const struct chat_call *c, enum audit_event event,
                          enum chat_result result, const struct chat_failure *failure)
{
    struct audit_record record = {
        .event = event, .session = c->chat_id, .outcome = result == CHAT_CREATED ? "ready" : NULL};
    if (failure != NULL)
        front_failed(c->front, c->req, &failure->err, NULL, &record);
    else if (result == CHAT_CREATED || result == CHAT_DELETED)
        (void)front_audit(c->front, c->req, &record, NULL); /* it is so; losses are counted */
}

static void write_session(struct jw *w, const struct chat_session *s)
{
    char when[CHAT_TIME_SIZE];
    jw_kstr(w, "session_id", s->session_id);
    jw_kstr(w, "chat_id", s->chat_id);
    jw_kstr(w, "container_id", s->container_id);
    jw_kstr(w, "status", "running");
    chat_time_format(s->created_ns, when);
    jw_kstr(w, "created_at", when);
    chat_time_format(s->expires_ns, when);
    jw_kstr(w, "expires_at", when);
}

static void on_created(void *arg, const struct chat_session *s, enum chat_result result,
                       const struct chat_failure *failure)
{
    AUTO_FREE struct chat_call *c = arg;
    record_result(c, AUDIT_SESSION_CREATE, result, failure);
    if (s == NULL) {
        reply_failure(c->req, failure);
        return;
    }
    AUTO_DONE(front_answer) struct front_answer out;

    write_session(front_begin(&out, ANSWER_MAX), s);
    front_reply(&out, c->req, result == CHAT_CREATED ? 201 : 200);
}

static void create_sandbox(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct create_request want = {0};
    struct err err = {0};
    if (!front_read_body(req, &body))
        return;
    struct chat_call *c = xnew(struct chat_call);
    c->req = req;
    c->front = arg;
    int r = front_read(&create_model, body, NULL, &want, &err);
    if (r == 0) {
        r = check_caller(c, want.chat_id, true, &err);
        if (r == 0)
            r = chat_create(c->front->chat, c->chat_id, on_created, c, &err);
        model_done(&create_model, &want);
    }
    if (r < 0) {
        front_fail(req, &err);
        free(c);
    }
}

static void on_deleted(void *arg, enum chat_result result, const struct chat_failure *failure)
{
    AUTO_FREE struct chat_call *c = arg;
    record_result(c, AUDIT_SESSION_DELETE, result, failure);
    if (failure != NULL) {
        reply_failure(c->req, failure);
        return;
    }
    if (c->front->service->outputs != NULL)
        outputs_forget(c->front->service->outputs, c->chat_id);
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);

    jw_kstr(w, "chat_id", c->chat_id);
    jw_kstr(w, "result", chat_result_name(result));
    front_reply(&out, c->req, 200);
}

static void delete_sandbox(struct http_request *req, void *arg)
{
    struct chat_call *c = xnew(struct chat_call);
    struct err err = {0};
    c->req = req;
    c->front = arg;
    int r = check_caller(c, http_request_param(req, "chat_id"), false, &err);
    if (r == 0)
        r = chat_delete(c->front->chat, c->chat_id, on_deleted, c, &err);
    if (r < 0) {
        front_fail(req, &err);
        free(c);
    }
}

static const struct http_route routes[] = {
    {"GET", "/api/v1/health", get_health, HTTP_ROUTE_OPEN, 0},
    {"POST", "/api/v1/create", create_sandbox, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"DELETE", "/api/v1/sandboxes/{chat_id}", delete_sandbox, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int chat_routes(struct http_server *server, struct front *f, struct chat *chat, struct err *err)
{
    f->chat = chat;
    return http_server_add_routes(server, routes, f, err);
}
