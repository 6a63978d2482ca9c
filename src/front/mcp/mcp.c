/* SPDX-License-Identifier: Apache-2.0 */

/* The MCP front: its methods, and the life of one call from its message to the answer. */

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"

#define META_SERVER "io.modelcontextprotocol/serverInfo"
#define TOOLS_MAX (1U << 20)

#define INSTRUCTIONS                                                                               \
    "A computer for the agent: an isolated Linux sandbox, reached by tools. Files under "          \
    "/workspace stay for later calls. Calls without session_id share one sandbox, made when it "   \
    "is first used; create_session gives a handle to another one. For servers and other programs " \
    "that go on running use start_process."

/* Writing ------------------------------------------------------------------------------------- */

/* `id` NULL: that of no request. */
static void write_envelope(struct jw *w, struct buf *out, const struct json *id)
{
    jw_init(w, out);
    jw_object(w);
    jw_kstr(w, "jsonrpc", "2.0");
    jw_kvalue(w, "id", id);
}

static void write_versions(struct jw *w, const char *key)
{
    jw_karray(w, key);
    jw_str(w, MCP_MODERN);
    for (const char *const *v = mcp_legacy_versions; *v != NULL; v++)
        jw_str(w, *v);
    jw_array_end(w);
}

static void write_error(struct buf *out, const struct json *id, const struct mcp_error *error)
{
    struct jw w;

    write_envelope(&w, out, id);
    jw_kobject(&w, "error");
    jw_kint(&w, "code", error->code);
    jw_kstr(&w, "message", error->text);
    if (error->code == MCP_UNSUPPORTED_VERSION) {
        jw_kobject(&w, "data");
        write_versions(&w, "supported");
        jw_kstr(&w, "requested", error->requested);
        jw_object_end(&w);
    }
    jw_object_end(&w);
    jw_object_end(&w);
    (void)jw_end(&w); /* of bounded size */
}

static void write_server_info(struct jw *w, const char *key)
{
    jw_kobject(w, key);
    jw_kstr(w, "name", "box");
    jw_kstr(w, "title", "Box");
    jw_kstr(w, "version", BOX_VERSION);
    jw_object_end(w);
}

/* Methods ------------------------------------------------------------------------------------- */

static void write_capabilities(struct jw *w)
{
    jw_kobject(w, "capabilities");
    jw_kobject(w, "tools");
    jw_object_end(w);
    jw_kobject(w, "resources");
    jw_object_end(w);
    jw_object_end(w);
}

static void initialize(struct mcp_call *c)
{
    const char *asked = json_str(json_get(c->message.params, "protocolVersion"));
    AUTO_DONE(front_answer) struct front_answer out = {0};

    if (asked == NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "protocolVersion is missing");
        return;
    }
    if (c->place->version != NULL) {
        mcp_call_failf(c, MCP_INVALID_REQUEST, "initialize comes once");
        return;
    }
    c->place->version = mcp_negotiate(asked);
    struct jw *w = mcp_call_begin(c, &out);
    jw_kstr(w, "protocolVersion", c->place->version);
    write_capabilities(w);
    write_server_info(w, "serverInfo");
    jw_kstr(w, "instructions", INSTRUCTIONS);
    mcp_call_end(c, &out);
}

static void discover(struct mcp_call *c)
{
    AUTO_DONE(front_answer) struct front_answer out = {0};

    struct jw *w = mcp_call_begin(c, &out);
    write_versions(w, "supportedVersions");
    write_capabilities(w);
    jw_kstr(w, "instructions", INSTRUCTIONS);
    jw_kint(w, "ttlMs", MCP_LIST_TTL_MS);
    jw_kstr(w, "cacheScope", "public");
    mcp_call_end(c, &out);
}

static void ping(struct mcp_call *c)
{
    AUTO_DONE(front_answer) struct front_answer out = {0};

    (void)mcp_call_begin(c, &out);
    mcp_call_end(c, &out);
}

static const struct mcp_method own_methods[] = {
    {"initialize", MCP_ERA_LEGACY | MCP_BEFORE_INITIALIZE, initialize},
    {"ping", MCP_ERA_LEGACY | MCP_BEFORE_INITIALIZE, ping},
    {"server/discover", MCP_ERA_MODERN, discover},
    {0},
};

static const struct mcp_method *find_method(const char *name)
{
    static const struct mcp_method *const tables[] = {own_methods, mcp_tool_methods,
                                                      mcp_resource_methods};

    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct mcp_method *m = tables[i]; m->name != NULL; m++)
            if (str_eq(m->name, name))
                return m;
    return NULL;
}

static void call_dispatch(struct mcp_call *c)
{
    const struct mcp_method *m = find_method(c->message.method);

    if (m == NULL || (c->modern && !(m->eras & MCP_ERA_MODERN)))
        mcp_call_failf(c, MCP_NO_METHOD, "Method not found: %.100s", c->message.method);
    else if (!c->modern && !(m->eras & MCP_ERA_LEGACY))
        mcp_call_failf(c, MCP_INVALID_PARAMS,
                       "%s needs io.modelcontextprotocol/protocolVersion in params._meta", m->name);
    else if (!c->modern && !(m->eras & MCP_BEFORE_INITIALIZE) && c->place->version == NULL)
        mcp_call_failf(c, MCP_INVALID_REQUEST,
                       "initialize first, or name the revision in params._meta");
    else
        m->run(c);
}

/* The life of a call -------------------------------------------------------------------------- */

static bool same_id(const struct json *a, const struct json *b)
{
    if (json_type(a) != json_type(b))
        return false;
    return json_type(a) == JSON_INT ? json_int(a) == json_int(b)
                                    : json_str_len(a) == json_str_len(b) &&
                                          memcmp(json_str(a), json_str(b), json_str_len(a)) == 0;
}

static struct mcp_call *find_call(const struct mcp_place *p, const struct json *id)
{
    struct mcp_call *c;

    LIST_FOREACH (c, &p->calls, next)
        if (same_id(c->message.id, id))
            return c;
    return NULL;
}

void mcp_call_set_work(struct mcp_call *c, void *work, void (*work_free)(void *work))
{
    assert(c->work == NULL && work_free != NULL);
    c->work = work;
    c->work_free = work_free;
}

void mcp_call_free(struct mcp_call *c)
{
    if (c == NULL)
        return;
    if (c->wait != NULL)
        c->wait->call = NULL;
    if (c->work_free != NULL)
        c->work_free(c->work);
    if (c->slot != NULL)
        *c->slot = NULL;
    LIST_REMOVE(c, next);
    assert(c->place->n_calls > 0);
    c->place->n_calls--;
    mcp_place_release(c->place);
    mcp_message_done(&c->message);
    json_free(c->arguments);
    free(c);
}

static struct mcp_call *call_new(struct mcp_place *p, struct mcp_message *message,
                                 const struct mcp_sink *sink, void *arg)
{
    struct mcp_call *c = xnew(struct mcp_call);

    c->mcp = p->mcp;
    c->place = p;
    p->refs++;
    c->message = *message;
    *message = (struct mcp_message){0};
    c->modern = c->message.version != NULL;
    c->sink = sink;
    c->sink_arg = arg;
    LIST_INSERT_HEAD(&p->calls, c, next);
    p->n_calls++;
    return c;
}

void mcp_refuse(const struct json *id, const struct mcp_error *why, const struct mcp_sink *sink,
                void *arg)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(MCP_ANSWER_MAX);

    write_error(&out, id, why);
    sink->answer(arg, &out, why->code);
}

static void call_answer(struct mcp_call *c, const struct buf *out, enum mcp_code code)
{
    const struct mcp_sink *sink = c->sink;
    void *arg = c->sink_arg;

    mcp_call_free(c);
    if (sink != NULL)
        sink->answer(arg, out, code);
}

static void on_notification(struct mcp_place *p, const struct mcp_message *m)
{
    const struct json *id = json_get(m->params, "requestId");
    struct mcp_call *c = NULL;

    if (str_eq(m->method, "notifications/cancelled") && id != NULL && !p->shared)
        c = find_call(p, id);
    /* The client gets no further message about it, as the protocol promises. */
    if (c != NULL)
        call_answer(c, NULL, MCP_OK);
}

void mcp_receive(struct mcp_place *p, struct mcp_message *message, const struct mcp_sink *sink,
                 void *arg, struct mcp_call **slot)
{
    unsigned most = p->shared ? MCP_SHARED_CALLS_MAX : MCP_CALLS_MAX;
    struct mcp_error why;

    if (message->kind == MCP_NOTIFICATION)
        on_notification(p, message);
    if (message->kind != MCP_REQUEST) { /* we ask nothing, so an answer is ignored */
        mcp_message_done(message);
        return;
    }
    if (!p->shared && find_call(p, message->id) != NULL) {
        /* Its answer would look like the answer to the first request of that id. */
        (void)mcp_fail(&why, MCP_INVALID_REQUEST, "the id is that of a request under way");
        mcp_refuse(NULL, &why, sink, arg);
        mcp_message_done(message);
    } else if (p->n_calls >= most) {
        (void)mcp_fail(&why, MCP_INTERNAL, "%u requests are under way: wait for one to end", most);
        mcp_refuse(message->id, &why, sink, arg);
        mcp_message_done(message);
    } else {
        struct mcp_call *c = call_new(p, message, sink, arg);
        c->slot = slot;
        if (slot != NULL)
            *slot = c;
        call_dispatch(c);
    }
}

struct mcp_wait *mcp_wait_new(struct mcp_call *c)
{
    struct mcp_wait *w = xnew(struct mcp_wait);

    assert(c->wait == NULL); /* one at a time */
    w->call = c;
    c->wait = w;
    return w;
}

struct mcp_call *mcp_wait_end(struct mcp_wait *w)
{
    struct mcp_call *c = w->call;

    if (c != NULL)
        c->wait = NULL;
    free(w);
    return c;
}

void mcp_wait_failed(struct mcp_wait *w, const struct err *err)
{
    struct mcp_call *c = mcp_wait_end(w);

    if (c != NULL)
        mcp_call_tool_err(c, err);
}

/* Answers ------------------------------------------------------------------------------------- */

void mcp_call_failf(struct mcp_call *c, enum mcp_code code, const char *fmt, ...)
{
    struct mcp_error why = {.code = code};
    AUTO_DONE(buf) struct buf out = BUF_INIT(MCP_ANSWER_MAX);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why.text, sizeof(why.text), fmt, ap);
    va_end(ap);
    write_error(&out, c->message.id, &why);
    call_answer(c, &out, code);
}

struct jw *mcp_call_begin(struct mcp_call *c, struct front_answer *out)
{
    struct jw *w = &out->w;

    buf_init(&out->out, MCP_ANSWER_MAX);
    write_envelope(w, &out->out, c->message.id);
    jw_kobject(w, "result");
    if (c->modern) {
        jw_kstr(w, "resultType", "complete");
        jw_kobject(w, "_meta");
        write_server_info(w, META_SERVER);
        jw_object_end(w);
    }
    return w;
}

void mcp_call_end(struct mcp_call *c, struct front_answer *out)
{
    jw_object_end(&out->w); /* the result; front_end() closes the message */
    if (front_end(out) < 0)
        mcp_call_failf(c, MCP_INTERNAL, "the answer is too large");
    else
        call_answer(c, &out->out, MCP_OK);
}

void mcp_call_tool(struct mcp_call *c, bool is_error, const struct buf *text,
                   const struct buf *json)
{
    AUTO_DONE(front_answer) struct front_answer out = {0};

    struct jw *w = mcp_call_begin(c, &out);
    jw_karray(w, "content");
    jw_object(w);
    jw_kstr(w, "type", "text");
    jw_kstrn(w, "text", buf_str(text), text->len);
    jw_object_end(w);
    jw_array_end(w);
    if (json != NULL)
        jw_kraw(w, "structuredContent", buf_str(json), json->len);
    jw_kbool(w, "isError", is_error);
    mcp_call_end(c, &out);
}

void mcp_call_tool_err(struct mcp_call *c, const struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(4096);
    const char *remedy = front_remedy(err);

    (void)buf_puts(&text, err->msg);
    if (remedy != NULL)
        (void)buf_printf(&text, " (%s)", remedy);
    mcp_call_tool(c, true, &text, NULL);
}

void mcp_call_tool_json(struct mcp_call *c, struct front_answer *json, const char *text)
{
    AUTO_DONE(buf) struct buf words = BUF_INIT(MCP_ANSWER_MAX);

    if (front_end(json) < 0) {
        mcp_call_failf(c, MCP_INTERNAL, "the answer is too large");
        return;
    }
    (void)buf_puts(&words, text != NULL ? text : buf_str(&json->out));
    mcp_call_tool(c, false, &words, &json->out);
}

void mcp_wait_done(struct mcp_wait *w, const struct err *err, const char *member, const char *text)
{
    AUTO_DONE(front_answer) struct front_answer out;

    jw_kbool(front_begin(&out, 4096), member, true);
    if (err != NULL) {
        mcp_wait_failed(w, err);
        return;
    }
    struct mcp_call *c = mcp_wait_end(w);
    if (c != NULL)
        mcp_call_tool_json(c, &out, text);
}

/* The front ----------------------------------------------------------------------------------- */

struct mcp *mcp_new(const struct front *f)
{
    struct mcp *m = xnew(struct mcp);

    m->front = f;
    m->loop = manager_loop(f->manager);
    buf_init(&m->tools, TOOLS_MAX);
    mcp_tools_write(&m->tools);
    LIST_INIT(&m->lines);
    return m;
}

void mcp_free(struct mcp *m)
{
    if (m == NULL)
        return;
    mcp_links_free(m);
    while (m->callers != NULL) {
        struct mcp_place *p = m->callers;
        m->callers = p->next;
        mcp_place_close(p);
    }
    buf_done(&m->tools);
    free(m);
}

int mcp_routes(struct http_server *server, struct mcp *m, struct err *err)
{
    int r = http_server_add_routes(server, mcp_http_routes, m, err);

    return r < 0 ? r : http_server_add_routes(server, mcp_stdio_routes, m, err);
}
