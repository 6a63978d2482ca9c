/* SPDX-License-Identifier: Apache-2.0 */

/* GET /v1/tools, and POST to call one tool of the agent in a session. */

#include <string.h>

#include "agent/tools.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/authz.h"

#define BODY_MAX (12U << 20)
#define ANSWER_MAX (256U << 10)

/* Those of the table that the caller may use. */
static void list_tools(struct http_request *req, void *arg)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "tools");
    jw_array(&w);
    for (size_t i = 0; i < tools_count(); i++)
        if (authz_check_tool(front_caller(req), tools_at(i)->name, NULL) == 0)
            tool_write(tools_at(i), &w);
    jw_array_end(&w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

struct calling {
    struct http_request *req;
    struct tool_call *call; /* owned */
};

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct calling *c = arg;

    if (err != NULL)
        front_fail(c->req, err);
    else
        http_reply(c->req, 200, "application/json", result->json.data, result->json.len);
    tool_call_free(c->call);
    free(c);
}

static void on_cancel(struct http_request *req, void *arg)
{
    struct calling *c = arg;

    tool_call_free(c->call);
    http_abort(req);
    free(c);
}

/* The arguments are the body; the result is the answer, also when it says no (`ok` is false). */
static void call_tool(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const struct tool *t = tools_find(http_request_param(req, "tool"));
    AUTO(json) struct json *body = NULL;
    struct err err = {0};

    if (t == NULL) {
        (void)err_missing(&err, ERR_THING_TOOL, "there is no tool %.40s; GET /v1/tools lists them",
                          http_request_param(req, "tool"));
        front_fail(req, &err);
        return;
    }
    if (!front_read_body(req, &body))
        return;
    const struct tool_where where = {.service = v->front.service,
                                     .arguments = body,
                                     .request = {.scope = front_caller(req)},
                                     .session_id = http_request_param(req, "id"),
                                     .via = "http",
                                     .who = front_who(req)};
    struct calling *c = xnew(struct calling);
    c->req = req;
    if (tool_call_start(t, &where, on_done, c, &c->call, &err) < 0) {
        front_fail(req, &err);
        free(c);
        return;
    }
    http_on_cancel(req, on_cancel, c);
}

static const struct http_route routes[] = {
    {"GET", "/v1/tools", list_tools, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/tools/{tool}", call_tool, HTTP_ROUTE_SCOPED, BODY_MAX},
    {0},
};

int v1_tools_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
