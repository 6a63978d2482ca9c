/* SPDX-License-Identifier: Apache-2.0 */

/* POST /v1/execute-tool: calls a tool of the agent in the session of a query, as LangBot does. */

#include <stdlib.h>

#include "agent/tools.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"

#define BODY_MAX (12U << 20)
#define ANSWER_MAX (64U << 20)

struct v1_tool_call {
    struct http_request *req;
    const struct tool *tool;
    struct tool_call *call; /* owned */
};

static void call_free(struct v1_tool_call *c)
{
    tool_call_free(c->call);
    free(c);
}

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct v1_tool_call *c = arg;
    AUTO_DONE(buf) struct buf out;
    AUTO(json) struct json *object = NULL;
    struct err why = {0};
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    if (err == NULL && json_parse(buf_str(&result->json), result->json.len, &object, &why) < 0)
        err = &why;
    if (err != NULL) {
        front_fail(c->req, err);
        call_free(c);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "tool", c->tool->name);
    jw_kbool(&w, "is_error", result->is_error);
    jw_key(&w, "result");
    jw_value(&w, object);
    jw_key(&w, "text");
    jw_strn(&w, buf_str(&result->text), result->text.len);
    jw_object_end(&w);
    front_reply_json(c->req, 200, &out, &w);
    call_free(c);
}

/* Nobody will read the result: what was asked for is taken back. */
static void on_cancel(struct http_request *req, void *arg)
{
    call_free(arg);
    http_abort(req);
}

/* What the request may say, and of which type. */
static int check_body(const struct json *body, struct err *err)
{
    static const struct {
        const char *name;
        enum json_type type;
        const char *text;
    } members[] = {
        {"tool", JSON_STRING, "the name of a tool"}, {"arguments", JSON_OBJECT, "an object"},
        {"query", JSON_OBJECT, "an object"},         {"session_id", JSON_STRING, "a string"},
        {"profile", JSON_STRING, "a string"},
    };
    size_t known = 0;

    for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
        const struct json *v = json_get(body, members[i].name);
        if (v != NULL && json_type(v) != members[i].type)
            return err_set(err, ERR_INVALID, "%s must be %s", members[i].name, members[i].text);
        known += v != NULL ? 1 : 0;
    }
    if (known != json_len(body))
        return err_set(err, ERR_INVALID,
                       "only tool, arguments, query, session_id and profile are known");
    if ((json_get(body, "query") != NULL) == (json_get(body, "session_id") != NULL))
        return err_set(err, ERR_INVALID,
                       "give either the query, which names a session, or session_id");
    return 0;
}

static int start(struct v1_tool_call *c, const struct v1 *v, const struct json *body,
                 struct err *err)
{
    static const char empty[] = "{}";
    AUTO(json) struct json *none = NULL;
    const char *name = json_str(json_get(body, "tool"));
    struct tool_where where = {.service = v->front.service,
                               .arguments = json_get(body, "arguments"),
                               .request = {.profile = json_str(json_get(body, "profile")),
                                           .query = json_get(body, "query"),
                                           .scope = front_caller(c->req)},
                               .session_id = json_str(json_get(body, "session_id")),
                               .via = "http",
                               .who = front_who(c->req)};
    int r = check_body(body, err);

    if (r == 0 && name == NULL)
        r = err_set(err, ERR_INVALID, "tool is missing; GET /v1/tools lists them");
    if (r == 0 && where.arguments == NULL) {
        r = json_parse(empty, sizeof(empty) - 1, &none, err);
        where.arguments = none;
    }
    c->tool = r == 0 ? tools_find(name) : NULL;
    if (r == 0 && c->tool == NULL)
        r = err_missing(err, ERR_THING_TOOL, "there is no tool %.80s; GET /v1/tools lists them",
                        name);
    if (r == 0)
        r = tool_call_start(c->tool, &where, on_done, c, &c->call, err);
    return r;
}

static void execute_tool(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct err err = {0};

    if (!front_read_body(req, &body))
        return;
    struct v1_tool_call *c = xnew(struct v1_tool_call);
    c->req = req;
    if (start(c, arg, body, &err) < 0) {
        call_free(c);
        front_fail(req, &err);
        return;
    }
    http_on_cancel(req, on_cancel, c);
}

static const struct http_route routes[] = {
    {"POST", "/v1/execute-tool", execute_tool, HTTP_ROUTE_SCOPED, BODY_MAX},
    {0},
};

int v1_tool_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
