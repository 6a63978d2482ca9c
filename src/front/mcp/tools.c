/* SPDX-License-Identifier: Apache-2.0 */

/* Lists the MCP tools with their schemas and calls them: those of the agent and those of this
 * front. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/tools.h"
#include "base/alloc.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "spec/model.h"

#define LIST_TTL_MS 3600000 /* they change with the program */
#define SCHEMA_MAX (256U << 10)

/* The table of the agent's tools, and ours. */

static void start_agent(struct mcp_call *c, const struct json *arguments);

static struct mcp_tool from_agent(const struct tool *t)
{
    return (struct mcp_tool){.name = t->name,
                             .title = t->title,
                             .description = t->description,
                             .params = t->params,
                             .output = mcp_agent_output(t->name),
                             .scope = t->name,
                             .in_session = true,
                             .read_only = t->kind == TOOL_READS,
                             .destructive = t->kind != TOOL_READS,
                             .idempotent = t->idempotent,
                             .open_world = t->kind == TOOL_RUNS,
                             .agent = t,
                             .start = start_agent};
}

/* The i-th; false at the end. */
static bool tool_at(size_t i, struct mcp_tool *ret)
{
    static const struct mcp_tool *const tables[] = {mcp_session_tools, mcp_process_tools};

    if (i < tools_count()) {
        *ret = from_agent(tools_at(i));
        return true;
    }
    i -= tools_count();
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++)
        for (const struct mcp_tool *row = tables[t]; row->name != NULL; row++, i--)
            if (i == 0) {
                *ret = *row;
                return true;
            }
    return false;
}

static bool find_tool(const char *name, struct mcp_tool *ret)
{
    for (size_t i = 0; tool_at(i, ret); i++)
        if (str_eq(ret->name, name))
            return true;
    return false;
}

/* Listing. */

static void write_session_id(struct jw *w)
{
    jw_key(w, "session_id");
    jw_object(w);
    jw_kstr(w, "type", "string");
    jw_kstr(w, "description",
            "Handle of a session, as create_session and list_sessions give it. Without it the "
            "call is for this client's own session, which is made when it is first needed.");
    jw_object_end(w);
}

/* The schema of the model, with the handle that every tool of a session takes beside. */
static void write_input(const struct mcp_tool *t, struct jw *w)
{
    AUTO_DONE(buf) struct buf text = {0};
    AUTO(json) struct json *schema = NULL;
    struct jw model;

    buf_init(&text, SCHEMA_MAX);
    jw_init(&model, &text);
    model_write_schema(t->params, &model);
    if (jw_end(&model) < 0 || json_parse(buf_str(&text), text.len, &schema, NULL) < 0)
        return; /* our own table; a test looks at every one */
    jw_object(w);
    for (void *it = json_iter(schema); it != NULL; it = json_iter_next(schema, it)) {
        const struct json *v = json_iter_value(it);
        if (json_type(v) == JSON_ARRAY && json_len(v) == 0)
            continue;
        jw_key(w, json_iter_key(it));
        if (!str_eq(json_iter_key(it), "properties")) {
            jw_value(w, v);
            continue;
        }
        jw_object(w);
        for (void *p = json_iter(v); p != NULL; p = json_iter_next(v, p)) {
            jw_key(w, json_iter_key(p));
            jw_value(w, json_iter_value(p));
        }
        if (t->in_session)
            write_session_id(w);
        jw_object_end(w);
    }
    jw_object_end(w);
}

static void write_tool(const struct mcp_tool *t, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "name", t->name);
    jw_kstr(w, "title", t->title);
    jw_kstr(w, "description", t->description);
    jw_key(w, "inputSchema");
    write_input(t, w);
    jw_key(w, "outputSchema");
    mcp_output_write(t->output, w);
    jw_key(w, "annotations");
    jw_object(w);
    jw_kstr(w, "title", t->title);
    jw_kbool(w, "readOnlyHint", t->read_only);
    jw_kbool(w, "destructiveHint", t->destructive);
    jw_kbool(w, "idempotentHint", t->idempotent);
    jw_kbool(w, "openWorldHint", t->open_world);
    jw_object_end(w);
    jw_object_end(w);
}

void mcp_tools_write(struct buf *out)
{
    struct mcp_tool t;
    struct jw w;

    jw_init(&w, out);
    jw_array(&w);
    for (size_t i = 0; tool_at(i, &t); i++)
        write_tool(&t, &w);
    jw_array_end(&w);
    (void)jw_end(&w);
}

void mcp_tools_list(struct mcp_call *c)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    if (json_get(c->message.params, "cursor") != NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "no such cursor: the list has one page");
        return;
    }
    mcp_call_begin(c, &w, &out);
    mcp_raw(&w, "tools", buf_str(&c->mcp->tools), c->mcp->tools.len);
    if (c->modern) {
        jw_kint(&w, "ttlMs", LIST_TTL_MS);
        jw_kstr(&w, "cacheScope", "public");
    }
    mcp_call_end(c, &w);
}

/* Calling. */

static void on_output(void *arg, const char *data, size_t len)
{
    struct mcp_call *c = arg;

    if (c->progress != NULL)
        mcp_progress_output(c->progress, data, len);
}

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct mcp_call *c = arg;

    if (err != NULL)
        mcp_call_tool_err(c, err);
    else
        mcp_call_tool(c, result->is_error, &result->text, &result->json);
}

static void free_agent(void *work)
{
    tool_call_free(work);
}

const struct json *mcp_call_arguments(const struct mcp_call *c)
{
    return c->arguments != NULL ? c->arguments : json_get(c->message.params, "arguments");
}

static void on_session(struct mcp_call *c, struct session *s)
{
    const struct tool_where where = {.service = c->mcp->front->service,
                                     .arguments = mcp_call_arguments(c),
                                     .request = {.scope = c->place->scope},
                                     .session_id = session_id(s),
                                     .via = "mcp",
                                     .who = c->place->who,
                                     .output = on_output};
    struct tool_call *call = NULL;
    struct err err = {0};

    if (tool_call_start(c->tool.agent, &where, on_done, c, &call, &err) < 0) {
        mcp_call_tool_err(c, &err);
        return;
    }
    c->work = call;
    c->work_free = free_agent;
    if (c->message.token != NULL && c->tool.agent->kind == TOOL_RUNS)
        c->progress = mcp_progress_new(c);
}

static void start_agent(struct mcp_call *c, const struct json *arguments)
{
    mcp_call_session(c, c->session_id, on_session);
}

/* The arguments without the handle, which is not the tool's. */
static int take_handle(struct mcp_call *c, const struct json *arguments, struct err *err)
{
    const struct json *handle = c->tool.in_session ? json_get(arguments, "session_id") : NULL;
    AUTO_DONE(buf) struct buf text = {0};
    struct jw w;

    if (handle != NULL && json_type(handle) != JSON_STRING)
        return err_set(err, ERR_INVALID, "session_id must be a string");
    c->session_id = json_str(handle);
    if (arguments != NULL && handle == NULL)
        return 0;
    buf_init(&text, MCP_MESSAGE_MAX * 2);
    jw_init(&w, &text);
    jw_object(&w);
    for (void *it = json_iter(arguments); it != NULL; it = json_iter_next(arguments, it)) {
        if (str_eq(json_iter_key(it), "session_id"))
            continue;
        jw_key(&w, json_iter_key(it));
        jw_value(&w, json_iter_value(it));
    }
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the arguments are too large");
    return json_parse(buf_str(&text), text.len, &c->arguments, err);
}

/* What the scope of the token does not name is not begun, and is in the records. */
static int check_scope(const struct mcp_call *c, struct err *err)
{
    assert(c->tool.name != NULL);
    int r = c->tool.scope != NULL ? authz_check_tool(c->place->scope, c->tool.scope, err) : 0;
    struct audit_record denied = {.event = AUDIT_DENIED,
                                  .who = c->place->who,
                                  .via = "mcp",
                                  .session = c->session_id,
                                  .command = c->tool.name,
                                  .command_len = strlen(c->tool.name)};

    if (r < 0)
        policy_service_failed(c->mcp->front->service, err, NULL, &denied);
    return r;
}

void mcp_tools_call(struct mcp_call *c)
{
    const char *name = json_str(json_get(c->message.params, "name"));
    const struct json *arguments = json_get(c->message.params, "arguments");
    struct err err = {0};

    if (name == NULL)
        mcp_call_failf(c, MCP_INVALID_PARAMS, "name must be that of a tool");
    else if (!find_tool(name, &c->tool))
        mcp_call_failf(c, MCP_INVALID_PARAMS, "Unknown tool: %.100s", name);
    else if (arguments != NULL && json_type(arguments) != JSON_OBJECT)
        mcp_call_failf(c, MCP_INVALID_PARAMS, "arguments must be an object");
    else if (take_handle(c, arguments, &err) < 0 || check_scope(c, &err) < 0)
        mcp_call_tool_err(c, &err);
    else
        c->tool.start(c, mcp_call_arguments(c));
}
