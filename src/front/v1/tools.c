/* SPDX-License-Identifier: Apache-2.0 */

/* Tools of the agent: lists them, and calls one in a session, or in the session of a query as
 * LangBot does. */

#include <stdlib.h>

#include "agent/tools.h"
#include "base/alloc.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "policy/authz.h"

#define BODY_MAX (12U << 20)
#define ANSWER_MAX (256U << 10)
#define RESULT_MAX (64U << 20)

/* Those of the table that the caller may use. */
static void list_tools(struct http_request *req, void *arg)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);

    jw_karray(w, "tools");
    for (size_t i = 0; i < tools_count(); i++)
        if (authz_check_tool(front_caller(req), tools_at(i)->name, NULL) == 0)
            tool_write(tools_at(i), w);
    jw_array_end(w);
    front_reply(&out, req, 200);
}

struct tool_request {
    struct http_request *req;
    const struct tool *named; /* the answer names the tool; NULL: the result is the answer */
    struct tool_call *call;   /* owned */
};

static void tool_request_free(struct tool_request *c)
{
    tool_call_free(c->call);
    free(c);
}

static void reply_named(const struct tool_request *c, const struct tool_result *result,
                        const struct json *object)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, RESULT_MAX);

    jw_kstr(w, "tool", c->named->name);
    jw_kbool(w, "is_error", result->is_error);
    jw_kvalue(w, "result", object);
    jw_kstrn(w, "text", buf_str(&result->text), result->text.len);
    front_reply(&out, c->req, 200);
}

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct tool_request *c = arg;
    AUTO(json) struct json *object = NULL;
    struct err why = {0};

    if (err == NULL && c->named != NULL &&
        json_parse(buf_str(&result->json), result->json.len, &object, &why) < 0)
        err = &why;
    if (err != NULL)
        front_fail(c->req, err);
    else if (c->named != NULL)
        reply_named(c, result, object);
    else
        http_reply(c->req, 200, "application/json", result->json.data, result->json.len);
    tool_request_free(c);
}

/* The client has gone and cannot read the result: the call is taken back. */
static void on_cancel(struct http_request *req, void *arg)
{
    tool_request_free(arg);
    http_abort(req);
}

static void start_tool(struct http_request *req, const struct tool *t, bool named,
                       const struct tool_where *where)
{
    struct tool_request *c = xnew(struct tool_request);
    struct err err = {0};

    c->req = req;
    c->named = named ? t : NULL;
    if (tool_call_start(t, where, on_done, c, &c->call, &err) == 0) {
        http_on_cancel(req, on_cancel, c);
        return;
    }
    front_fail(req, &err);
    tool_request_free(c);
}

/* The body is the arguments, the answer is the result, also if the tool refuses (`ok` is false). */
/* A session that is the caller's and stopped is started first. All else about it is for the tool to
 * judge. False: answered, or it will be. */
static bool tool_session_awake(struct http_request *req, const struct v1 *v, const char *id)
{
    bool ours = id != NULL && authz_check_session(front_caller(req), id, NULL) == 0;
    const struct session *s = ours ? manager_find(v->front.manager, id) : NULL;

    return s == NULL || front_awake(req, &v->front, s);
}

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
    if (tool_session_awake(req, v, where.session_id))
        start_tool(req, t, false, &where);
}

/* The session of a query ----------------------------------------------------------------------- */

/* The members of the request and their types. */
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

static int find_tool(const struct json *body, const struct tool **ret, struct err *err)
{
    const char *name = json_str(json_get(body, "tool"));
    int r = check_body(body, err);

    if (r == 0 && name == NULL)
        r = err_set(err, ERR_INVALID, "tool is missing; GET /v1/tools lists them");
    *ret = r == 0 ? tools_find(name) : NULL;
    if (r == 0 && *ret == NULL)
        r = err_missing(err, ERR_THING_TOOL, "there is no tool %.80s; GET /v1/tools lists them",
                        name);
    return r;
}

static void execute_tool(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO(json) struct json *body = NULL, *none = NULL;
    const struct tool *t;
    struct err err = {0};

    if (!front_read_body(req, &body))
        return;
    const struct json *arguments = json_get(body, "arguments");
    int r = find_tool(body, &t, &err);
    if (r == 0 && arguments == NULL)
        r = json_parse("{}", 2, &none, &err);
    if (r < 0) {
        front_fail(req, &err);
        return;
    }
    const struct tool_where where = {.service = v->front.service,
                                     .arguments = arguments != NULL ? arguments : none,
                                     .request = {.profile = json_str(json_get(body, "profile")),
                                                 .query = json_get(body, "query"),
                                                 .scope = front_caller(req)},
                                     .session_id = json_str(json_get(body, "session_id")),
                                     .via = "http",
                                     .who = front_who(req)};
    if (tool_session_awake(req, v, where.session_id))
        start_tool(req, t, true, &where);
}

const struct http_route v1_tools_routes[] = {
    {"GET", "/v1/tools", list_tools, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/tools/{tool}", call_tool, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"POST", "/v1/execute-tool", execute_tool, HTTP_ROUTE_SCOPED, BODY_MAX},
    {0},
};
