/* SPDX-License-Identifier: Apache-2.0 */

/* Lists the MCP tools with their schemas and calls them: those of the agent and those of this
 * front. While a call runs, its client hears of progress. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/tools.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/mcp/mcp_internal.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "spec/model.h"

#define SCHEMA_MAX (256U << 10)
#define TEXT_MAX 4096U /* bytes of output that one notification shows: the last ones */
#define PAUSE_NS (500ULL * NSEC_PER_MSEC)
#define SILENCE_NS (10ULL * NSEC_PER_SEC) /* of a command; the client still hears of it */

/* Output schemas ------------------------------------------------------------------------------ *
 *
 * Results of the agent's tools, for programs (docs/reference/tools.md has them for people). A tool
 * that refuses answers `ok` and `error` alone. */

/* clang-format off */
#define OK {"ok", "boolean", "Whether it worked.", false}
#define CUT \
    {"truncated", "boolean", "Not all is shown.", true}, \
    {"truncated_by", "string?", "Which limit cut it.", true}
#define ERROR {"error", "string", "Why not.", true}

static const struct mcp_output exec_output[] = {
    OK, ERROR, CUT,
    {"session_id", "string", "Where it ran.", true},
    {"backend", "string", "What isolates the session.", true},
    {"status", "string", "completed or timed_out.", true},
    {"exit_code", "integer?", "Of the command; null when it ran out of time.", true},
    {"stdout", "string", "Standard output, shortened in the middle where it is long.", true},
    {"stderr", "string", "Standard error, likewise.", true},
    {"stdout_truncated", "boolean", "More was written than is shown.", true},
    {"stderr_truncated", "boolean", "More was written than is shown.", true},
    {"stdout_id", "string", "Name of the whole output, where it was kept, for read_output.", true},
    {"stderr_id", "string", "Name of the whole output, where it was kept, for read_output.", true},
    {"duration_ms", "number", "How long it ran.", true},
    {"outcome", "string", "How it ended: exited, signaled, timed_out, …", true},
    {"preview", "string", "Both streams as one text.", true},
    {"remaining", "integer", "Processes that it left running in the background, where there are any.", true},
    {"exec_id", "string", "What they are known by, for stop_background.", true},
    {0},
};

static const struct mcp_output read_output[] = {
    OK, ERROR, CUT,
    {"content", "string", "Lines of the file, names in the directory, or base64.", true},
    {"start_line", "integer", "First line shown.", true},
    {"end_line", "integer", "Last line shown.", true},
    {"next_offset", "integer?", "Go on with this offset; null at the end.", true},
    {"max_lines", "integer", "Lines that were asked for.", true},
    {"max_bytes", "integer", "Bytes that were asked for.", true},
    {"is_directory", "boolean", "It is a directory.", true},
    {"total", "integer", "Entries of the directory.", true},
    {"encoding", "string", "base64.", true},
    {"byte_offset", "integer", "base64: first byte shown.", true},
    {"length", "integer", "base64: bytes shown.", true},
    {"size_bytes", "integer", "base64: of the file.", true},
    {"has_more", "boolean", "base64: there is more.", true},
    {"next_byte_offset", "integer?", "base64: go on with this byte_offset; null at the end.", true},
    {0},
};

static const struct mcp_output write_output[] = {
    OK, ERROR,
    {"path", "string", "The file.", true},
    {"size_bytes", "integer", "Its size now.", true},
    {"created", "boolean", "It was not there before.", true},
    {0},
};

static const struct mcp_output edit_output[] = {
    OK, ERROR,
    {"path", "string", "The file.", true},
    {"size_bytes", "integer", "Its size now.", true},
    {"replacements", "integer", "Places that were changed.", true},
    {0},
};

static const struct mcp_output glob_output[] = {
    OK, ERROR, CUT,
    {"matches", "array", "Paths, newest first.", true},
    {"preview", "string", "The same, one a line.", true},
    {"total", "integer", "Of all that match.", true},
    {0},
};

static const struct mcp_output grep_output[] = {
    OK, ERROR, CUT,
    {"matches", "array", "Lines, files, or counts of lines.", true},
    {"total", "integer", "Of those shown.", true},
    {0},
};
/* clang-format on */

static const struct mcp_output *agent_output(const char *name)
{
    static const struct {
        const char *name;
        const struct mcp_output *output;
    } tools[] = {{"exec", exec_output}, {"read", read_output}, {"write", write_output},
                 {"edit", edit_output}, {"glob", glob_output}, {"grep", grep_output}};

    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (str_eq(tools[i].name, name))
            return tools[i].output;
    return NULL;
}

static void write_type(const char *type, struct jw *w)
{
    size_t n = strlen(type);
    bool nullable = type[n - 1] == '?';

    jw_key(w, "type");
    if (nullable)
        jw_array(w);
    jw_strn(w, type, nullable ? n - 1 : n);
    if (nullable) {
        jw_str(w, "null");
        jw_array_end(w);
    }
}

static void write_output_schema(const struct mcp_output *output, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "type", "object");
    jw_kobject(w, "properties");
    for (const struct mcp_output *o = output; o != NULL && o->name != NULL; o++) {
        jw_kobject(w, o->name);
        write_type(o->type, w);
        jw_kstr(w, "description", o->doc);
        jw_object_end(w);
    }
    jw_object_end(w);
    jw_karray(w, "required");
    for (const struct mcp_output *o = output; o != NULL && o->name != NULL; o++)
        if (!o->optional)
            jw_str(w, o->name);
    jw_array_end(w);
    jw_object_end(w);
}

/* The table of the agent's tools, and ours ---------------------------------------------------- */

static mcp_session_fn start_agent;

static struct mcp_tool_row from_agent(const struct tool *t)
{
    return (struct mcp_tool_row){.name = t->name,
                                 .title = t->title,
                                 .description = t->description,
                                 .params = t->params,
                                 .output = agent_output(t->name),
                                 .scope = t->name,
                                 .read_only = t->kind == TOOL_READS,
                                 .destructive = t->kind != TOOL_READS,
                                 .idempotent = t->idempotent,
                                 .open_world = t->kind == TOOL_RUNS,
                                 .agent = t,
                                 .in = start_agent};
}

/* The i-th; false at the end. */
static bool tool_at(size_t i, struct mcp_tool_row *ret)
{
    static const struct mcp_tool_row *const tables[] = {mcp_session_tools, mcp_process_tools,
                                                        mcp_background_tools, mcp_output_tools};

    if (i < tools_count()) {
        *ret = from_agent(tools_at(i));
        return true;
    }
    i -= tools_count();
    for (size_t t = 0; t < ARRAY_SIZE(tables); t++)
        for (const struct mcp_tool_row *row = tables[t]; row->name != NULL; row++, i--)
            if (i == 0) {
                *ret = *row;
                return true;
            }
    return false;
}

static bool find_tool(const char *name, struct mcp_tool_row *ret)
{
    for (size_t i = 0; tool_at(i, ret); i++)
        if (str_eq(ret->name, name))
            return true;
    return false;
}

/* Listing ------------------------------------------------------------------------------------- */

static void write_session_id(struct jw *w)
{
    jw_kobject(w, "session_id");
    jw_kstr(w, "type", "string");
    jw_kstr(w, "description",
            "Handle of a session, as create_session and list_sessions give it. Without it the "
            "call is for this client's own session, which is made when it is first needed.");
    jw_object_end(w);
}

/* The schema of the model, with the handle that every tool of a session takes beside. */
static void write_input(const struct mcp_tool_row *t, struct jw *w)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(SCHEMA_MAX);
    AUTO(json) struct json *schema = NULL;
    struct jw model = JW_INIT(&text);

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
        for (void *p = json_iter(v); p != NULL; p = json_iter_next(v, p))
            jw_kvalue(w, json_iter_key(p), json_iter_value(p));
        if (t->in != NULL)
            write_session_id(w);
        jw_object_end(w);
    }
    jw_object_end(w);
}

static void write_tool(const struct mcp_tool_row *t, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "name", t->name);
    jw_kstr(w, "title", t->title);
    jw_kstr(w, "description", t->description);
    jw_key(w, "inputSchema");
    write_input(t, w);
    jw_key(w, "outputSchema");
    write_output_schema(t->output, w);
    jw_kobject(w, "annotations");
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
    struct mcp_tool_row t;
    struct jw w = JW_INIT(out);

    jw_array(&w);
    for (size_t i = 0; tool_at(i, &t); i++)
        write_tool(&t, &w);
    jw_array_end(&w);
    (void)jw_end(&w);
}

static void list_tools(struct mcp_call *c)
{
    AUTO_DONE(front_answer) struct front_answer out = {0};

    if (json_get(c->message.params, "cursor") != NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "no such cursor: the list has one page");
        return;
    }
    struct jw *w = mcp_call_begin(c, &out);
    jw_kraw(w, "tools", buf_str(&c->mcp->tools), c->mcp->tools.len);
    if (c->modern) {
        jw_kint(w, "ttlMs", MCP_LIST_TTL_MS);
        jw_kstr(w, "cacheScope", "public");
    }
    mcp_call_end(c, &out);
}

/* Progress notifications: the last output of a running tool call, or a sign of life -------------
 */

struct progress {
    struct mcp_call *call; /* borrowed; the call outlives it */
    struct buf text;       /* what is new */
    struct loop_timer timer;
    uint64_t started_ns;
    double last; /* the last value sent; the next must be larger */
    bool fresh;  /* the timer runs for output */
};

static void on_progress_timer(struct loop_timer *t);

static void progress_arm(struct progress *p, uint64_t ns)
{
    loop_timer_stop(&p->timer);
    loop_timer_start(p->call->mcp->loop, &p->timer, ns, on_progress_timer);
}

static void progress_tell(struct progress *p)
{
    double elapsed = (double)(loop_now(p->call->mcp->loop) - p->started_ns) / (double)NSEC_PER_SEC;
    size_t whole = utf8_boundary(buf_str(&p->text), p->text.len);
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX * 8);

    p->last = elapsed > p->last ? elapsed : p->last + 0.001;
    jw_kstr(w, "jsonrpc", "2.0");
    jw_kstr(w, "method", "notifications/progress");
    jw_kobject(w, "params");
    jw_kvalue(w, "progressToken", p->call->message.token);
    jw_kreal(w, "progress", p->last);
    jw_kstrn(w, "message", buf_str(&p->text), whole);
    jw_object_end(w);
    buf_consume(&p->text, whole);
    if (front_end(&out) == 0 && p->call->sink != NULL)
        p->call->sink->notify(p->call->sink_arg, &out.out);
}

static void on_progress_timer(struct loop_timer *t)
{
    struct progress *p = container_of(t, struct progress, timer);

    p->fresh = false;
    progress_tell(p);
    progress_arm(p, SILENCE_NS);
}

static struct progress *progress_new(struct mcp_call *c)
{
    struct progress *p = xnew(struct progress);

    p->call = c;
    buf_init(&p->text, TEXT_MAX * 2);
    p->started_ns = loop_now(c->mcp->loop);
    progress_arm(p, SILENCE_NS);
    return p;
}

static void progress_free(struct progress *p)
{
    if (p == NULL)
        return;
    loop_timer_stop(&p->timer);
    buf_done(&p->text);
    free(p);
}

static void progress_output(struct progress *p, const char *data, size_t len)
{
    if (len > TEXT_MAX) {
        data += len - TEXT_MAX;
        len = TEXT_MAX;
    }
    if (p->text.len + len > TEXT_MAX)
        buf_consume(&p->text, p->text.len + len - TEXT_MAX);
    (void)buf_append(&p->text, data, len);
    if (!p->fresh)
        progress_arm(p, PAUSE_NS);
    p->fresh = true;
}

/* Calling ------------------------------------------------------------------------------------- */

const struct model mcp_no_arguments = {.name = "none", .doc = "Nothing more.", .closed = true};

int mcp_args_parse(const struct model *m, const struct json *arguments, void *ret, struct err *err)
{
    struct report report = {0};

    model_init(m, ret);
    return model_parse(m, arguments, 0, ret, &report) < 0 ? report_fail_plain(&report, err) : 0;
}

/* A tool of the agent under way. */
struct agent_work {
    struct tool_call *call;    /* owned */
    struct progress *progress; /* owned; NULL: the client does not want to hear of it */
};

static void agent_work_free(void *arg)
{
    struct agent_work *work = arg;

    tool_call_free(work->call);
    progress_free(work->progress);
    free(work);
}

static void on_output(void *arg, const char *data, size_t len)
{
    const struct agent_work *work = ((struct mcp_call *)arg)->work;

    if (work->progress != NULL)
        progress_output(work->progress, data, len);
}

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct mcp_call *c = arg;

    if (err != NULL)
        mcp_call_tool_err(c, err);
    else
        mcp_call_tool(c, result->is_error, &result->text, &result->json);
}

const struct json *mcp_call_arguments(const struct mcp_call *c)
{
    return c->arguments != NULL ? c->arguments : json_get(c->message.params, "arguments");
}

static void start_agent(struct mcp_call *c, struct session *s)
{
    const struct tool_where where = {.service = c->mcp->front->service,
                                     .arguments = mcp_call_arguments(c),
                                     .request = {.scope = c->place->scope},
                                     .session_id = session_id(s),
                                     .via = "mcp",
                                     .who = c->place->who,
                                     .output = on_output};
    struct agent_work *work = xnew(struct agent_work);
    struct err err = {0};

    mcp_call_set_work(c, work, agent_work_free);
    if (tool_call_start(c->tool.agent, &where, on_done, c, &work->call, &err) < 0)
        mcp_call_tool_err(c, &err);
    else if (c->message.token != NULL && c->tool.agent->kind == TOOL_RUNS)
        work->progress = progress_new(c);
}

/* The arguments without the handle, which is not the tool's. */
static int take_handle(struct mcp_call *c, const struct json *arguments, struct err *err)
{
    const struct json *handle = c->tool.in != NULL ? json_get(arguments, "session_id") : NULL;

    if (handle != NULL && json_type(handle) != JSON_STRING)
        return err_set(err, ERR_INVALID, "session_id must be a string");
    c->session_id = json_str(handle);
    if (arguments != NULL && handle == NULL)
        return 0;
    AUTO_DONE(front_answer) struct front_answer text;
    struct jw *w = front_begin(&text, MCP_MESSAGE_MAX * 2);

    for (void *it = json_iter(arguments); it != NULL; it = json_iter_next(arguments, it))
        if (!str_eq(json_iter_key(it), "session_id"))
            jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    if (front_end(&text) < 0)
        return err_set(err, ERR_LIMIT, "the arguments are too large");
    return json_parse(buf_str(&text.out), text.out.len, &c->arguments, err);
}

/* A tool that the token's scope does not name is not called; the refusal is on record. */
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

static int check_none(const struct mcp_call *c, struct err *err)
{
    if (c->tool.params != &mcp_no_arguments || json_len(mcp_call_arguments(c)) == 0)
        return 0;
    return err_set(err, ERR_INVALID, "%s takes %s", c->tool.name,
                   c->tool.in != NULL ? "session_id and nothing else" : "no arguments");
}

static void call_tool(struct mcp_call *c)
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
    else if (take_handle(c, arguments, &err) < 0 || check_scope(c, &err) < 0 ||
             check_none(c, &err) < 0)
        mcp_call_tool_err(c, &err);
    else if (c->tool.in != NULL)
        mcp_call_session(c, c->tool.in);
    else
        c->tool.start(c, mcp_call_arguments(c));
}

const struct mcp_method mcp_tool_methods[] = {
    {"tools/list", MCP_ERA_BOTH, list_tools},
    {"tools/call", MCP_ERA_BOTH, call_tool},
    {0},
};
