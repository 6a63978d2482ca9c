/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/chat_http.h"

#include <stddef.h>

#include "core/chat.h"
#include "http/server.h"
#include "rpc/v1_internal.h"
#include "spec/model.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/json.h"
#include "util/str.h"

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

static const struct model create_model = {
    .name = "CreateSandbox",
    .doc = "The sandbox of a chat.",
    .fields = create_fields,
    .n_fields = ARRAY_SIZE(create_fields),
    .size = sizeof(struct create_request),
};

static void get_health(struct http_request *req, void *arg)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    (void)arg;
    http_reply(req, 200, "application/json", ok, sizeof(ok) - 1);
}

/* The request was right: what is wrong is on our side, unless it is a question of time or names. */
static const struct {
    unsigned status; /* 0: as the last */
    const char *remedy;
} answers[ERR_CODE_MAX + 1] = {
    [ERR_LIMIT] = {429, "try again later, or raise max_sessions in boxd's configuration"},
    [ERR_CONFLICT] = {409, "end the session of that name first (`box rm`)"},
    [ERR_STATE] = {503, "try again"},
    [ERR_BACKEND] = {502, "see boxd's log; `box doctor` checks the host"},
    [ERR_CODE_MAX] = {500, "correct the section sandbox of boxd's configuration, or what it names"},
};

static void reply_failure(struct http_request *req, const struct chat_failure *f)
{
    const char *const more[] = {"chat_id", f->chat_id, NULL};
    size_t i = answers[f->err.code].status != 0 ? f->err.code : ERR_CODE_MAX;
    http_reply_problem(req, answers[i].status, f->code, f->err.msg, answers[i].remedy, more);
}

static void on_created(void *arg, const struct chat_session *s, enum chat_result result,
                       const struct chat_failure *failure)
{
    struct http_request *req = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    char when[CHAT_TIME_SIZE];
    if (s == NULL) {
        reply_failure(req, failure);
        return;
    }
    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "session_id", s->session_id);
    jw_kstr(&w, "chat_id", s->chat_id);
    jw_kstr(&w, "container_id", s->container_id);
    jw_kstr(&w, "status", "running");
    chat_time_format(s->created_ns, when);
    jw_kstr(&w, "created_at", when);
    chat_time_format(s->expires_ns, when);
    jw_kstr(&w, "expires_at", when);
    jw_object_end(&w);
    v1_reply_json(req, result == CHAT_CREATED ? 201 : 200, &out, &w);
}

static void create_sandbox(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct create_request want = {0};
    struct report report;
    struct err err = {0};
    if (!v1_read_body(req, &body))
        return;
    int r = v1_strict(&create_model, body, NULL, &err);
    if (r == 0) {
        model_init(&create_model, &want);
        r = model_parse(&create_model, body, 0, &want, &report);
        if (r < 0)
            r = report_fail_plain(&report, &err);
    }
    if (r == 0)
        r = chat_create(arg, want.chat_id, on_created, req, &err);
    model_done(&create_model, &want);
    if (r < 0)
        v1_fail(req, &err);
}

static void on_deleted(void *arg, enum chat_result result, const struct chat_failure *failure)
{
    struct http_request *req = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    char chat_id[CHAT_UUID_SIZE];
    if (failure != NULL) {
        reply_failure(req, failure);
        return;
    }
    (void)chat_uuid_parse(http_request_param(req, "chat_id"), chat_id);
    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "chat_id", chat_id);
    jw_kstr(&w, "result", chat_result_name(result));
    jw_object_end(&w);
    v1_reply_json(req, 200, &out, &w);
}

static void delete_sandbox(struct http_request *req, void *arg)
{
    struct err err = {0};
    if (chat_delete(arg, http_request_param(req, "chat_id"), on_deleted, req, &err) < 0)
        v1_fail(req, &err);
}

static const struct http_route routes[] = {
    {"GET", "/api/v1/health", get_health, HTTP_ROUTE_OPEN, 0},
    {"POST", "/api/v1/create", create_sandbox, 0, BODY_MAX},
    {"DELETE", "/api/v1/sandboxes/{chat_id}", delete_sandbox, 0, 0},
    {0},
};

int chat_routes(struct http_server *server, struct chat *chat, struct err *err)
{
    return http_server_add_routes(server, routes, chat, err);
}
