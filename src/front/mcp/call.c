/* SPDX-License-Identifier: Apache-2.0 */

/* The table of MCP methods, and the life of one call from its message to the answer. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "session/manager.h"

#define LIST_TTL_MS 3600000 /* the tools change with the program */

#define INSTRUCTIONS                                                                               \
    "A computer for the agent: an isolated Linux sandbox, reached by tools. Files under "          \
    "/workspace stay for later calls. Calls without session_id share one sandbox, made when it "   \
    "is first used; create_session gives a handle to another one. For servers and other programs " \
    "that go on running use start_process."

/* Methods. */

enum { LEGACY = 1, MODERN = 2, BOTH = LEGACY | MODERN, ALWAYS = 4 /* also before initialize */ };

static void write_capabilities(struct jw *w)
{
    static const char *const names[] = {"tools", "resources"};

    jw_key(w, "capabilities");
    jw_object(w);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        jw_key(w, names[i]);
        jw_object(w);
        jw_object_end(w);
    }
    jw_object_end(w);
}

static void initialize(struct mcp_call *c)
{
    const char *asked = json_str(json_get(c->message.params, "protocolVersion"));
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    if (asked == NULL) {
        mcp_call_failf(c, MCP_INVALID_PARAMS, "protocolVersion is missing");
        return;
    }
    if (c->place->version != NULL) {
        mcp_call_failf(c, MCP_INVALID_REQUEST, "initialize comes once");
        return;
    }
    c->place->version = mcp_negotiate(asked);
    mcp_call_begin(c, &w, &out);
    jw_kstr(&w, "protocolVersion", c->place->version);
    write_capabilities(&w);
    mcp_write_server_info(&w, "serverInfo");
    jw_kstr(&w, "instructions", INSTRUCTIONS);
    mcp_call_end(c, &w);
}

static void discover(struct mcp_call *c)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    mcp_call_begin(c, &w, &out);
    mcp_write_versions(&w, "supportedVersions");
    write_capabilities(&w);
    jw_kstr(&w, "instructions", INSTRUCTIONS);
    jw_kint(&w, "ttlMs", LIST_TTL_MS);
    jw_kstr(&w, "cacheScope", "public");
    mcp_call_end(c, &w);
}

static void ping(struct mcp_call *c)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    mcp_call_begin(c, &w, &out);
    mcp_call_end(c, &w);
}

static const struct method {
    const char *name;
    unsigned eras;
    void (*run)(struct mcp_call *c);
} methods[] = {
    {"initialize", LEGACY | ALWAYS, initialize},
    {"ping", LEGACY | ALWAYS, ping},
    {"server/discover", MODERN, discover},
    {"tools/list", BOTH, mcp_tools_list},
    {"tools/call", BOTH, mcp_tools_call},
    {"resources/list", BOTH, mcp_resources_list},
    {"resources/templates/list", BOTH, mcp_resources_templates},
    {"resources/read", BOTH, mcp_resources_read},
};

static const struct method *find_method(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
        if (str_eq(methods[i].name, name))
            return &methods[i];
    return NULL;
}

static void dispatch(struct mcp_call *c)
{
    const struct method *m = find_method(c->message.method);

    if (m == NULL || (c->modern && !(m->eras & MODERN)))
        mcp_call_failf(c, MCP_NO_METHOD, "Method not found: %.100s", c->message.method);
    else if (!c->modern && !(m->eras & LEGACY))
        mcp_call_failf(c, MCP_INVALID_PARAMS,
                       "%s needs io.modelcontextprotocol/protocolVersion in params._meta", m->name);
    else if (!c->modern && !(m->eras & ALWAYS) && c->place->version == NULL)
        mcp_call_failf(c, MCP_INVALID_REQUEST,
                       "initialize first, or name the revision in params._meta");
    else
        m->run(c);
}

/* The life of a call. */

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
    for (struct mcp_call *c = p->calls; c != NULL; c = c->next)
        if (same_id(c->message.id, id))
            return c;
    return NULL;
}

static void drop_work(struct mcp_call *c)
{
    if (c->wait != NULL)
        c->wait->call = NULL;
    c->wait = NULL;
    if (c->work_free != NULL)
        c->work_free(c->work);
    c->work = NULL;
    c->work_free = NULL;
    mcp_progress_free(TAKE_PTR(c->progress));
}

void mcp_call_free(struct mcp_call *c)
{
    if (c == NULL)
        return;
    drop_work(c);
    if (c->slot != NULL)
        *c->slot = NULL;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->place->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->place->n_calls--;
    mcp_place_release(c->place);
    mcp_message_done(&c->message);
    json_free(c->arguments);
    buf_done(&c->id);
    free(c);
}

static struct mcp_call *call_new(struct mcp_place *p, struct mcp_message *message,
                                 const struct mcp_sink *sink, void *arg)
{
    struct mcp_call *c = xnew(struct mcp_call);

    c->mcp = p->mcp;
    c->place = p;
    mcp_place_hold(p);
    c->message = *message;
    *message = (struct mcp_message){0};
    buf_init(&c->id, MCP_ID_MAX * 8);
    mcp_id_text(c->message.id, &c->id);
    c->modern = c->message.version != NULL;
    c->sink = sink;
    c->sink_arg = arg;
    c->next = p->calls;
    if (c->next != NULL)
        c->next->prev = c;
    p->calls = c;
    p->n_calls++;
    return c;
}

void mcp_refuse(const struct json *id, const struct mcp_error *why, const struct mcp_sink *sink,
                void *arg)
{
    AUTO_DONE(buf) struct buf text = {0};
    AUTO_DONE(buf) struct buf out = {0};

    buf_init(&text, MCP_ID_MAX * 8);
    buf_init(&out, MCP_ANSWER_MAX);
    if (id != NULL)
        mcp_id_text(id, &text);
    mcp_write_error(&out, id != NULL ? buf_str(&text) : NULL, why);
    sink->answer(arg, &out, why->code);
}

static void answer(struct mcp_call *c, const struct buf *out, enum mcp_code code)
{
    const struct mcp_sink *sink = c->sink;
    void *arg = c->sink_arg;

    mcp_call_free(c);
    sink->answer(arg, out, code);
}

static void notified(struct mcp_place *p, const struct mcp_message *m)
{
    const struct json *id = json_get(m->params, "requestId");
    struct mcp_call *c = NULL;

    if (str_eq(m->method, "notifications/cancelled") && id != NULL && !p->shared)
        c = find_call(p, id);
    /* Nothing more is said about it, as the client was promised. */
    if (c != NULL)
        answer(c, NULL, MCP_OK);
}

void mcp_receive(struct mcp_place *p, struct mcp_message *message, const struct mcp_sink *sink,
                 void *arg, struct mcp_call **slot)
{
    unsigned most = p->shared ? MCP_SHARED_CALLS_MAX : MCP_CALLS_MAX;
    struct mcp_error why;

    if (message->kind == MCP_NOTIFICATION)
        notified(p, message);
    if (message->kind != MCP_REQUEST) { /* an answer to what we never asked is nothing to us */
        mcp_message_done(message);
        return;
    }
    if (!p->shared && find_call(p, message->id) != NULL) {
        /* With that id it would pass for the answer to the first. */
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
        dispatch(c);
    }
}

static void nobody_notify(void *arg, const struct buf *message)
{
}

static void nobody_answer(void *arg, const struct buf *message, enum mcp_code code)
{
}

void mcp_call_detach(struct mcp_call *c)
{
    static const struct mcp_sink nobody = {nobody_notify, nobody_answer};

    c->sink = &nobody;
    c->slot = NULL;
}

struct mcp_wait *mcp_wait_new(struct mcp_call *c)
{
    struct mcp_wait *w = xnew(struct mcp_wait);

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

/* Answers. */

static void mcp_call_fail(struct mcp_call *c, const struct mcp_error *why)
{
    AUTO_DONE(buf) struct buf out = {0};

    buf_init(&out, MCP_ANSWER_MAX);
    mcp_write_error(&out, buf_str(&c->id), why);
    answer(c, &out, why->code);
}

void mcp_call_failf(struct mcp_call *c, enum mcp_code code, const char *fmt, ...)
{
    struct mcp_error why = {.code = code};
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why.text, sizeof(why.text), fmt, ap);
    va_end(ap);
    mcp_call_fail(c, &why);
}

void mcp_call_begin(struct mcp_call *c, struct jw *w, struct buf *out)
{
    buf_init(out, MCP_ANSWER_MAX);
    mcp_result_begin(w, out, buf_str(&c->id), c->modern);
}

void mcp_call_end(struct mcp_call *c, struct jw *w)
{
    if (mcp_result_end(w) < 0)
        mcp_call_failf(c, MCP_INTERNAL, "the answer is too large");
    else
        answer(c, w->out, MCP_OK);
}

void mcp_call_tool(struct mcp_call *c, bool is_error, const struct buf *text,
                   const struct buf *json)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    mcp_call_begin(c, &w, &out);
    jw_key(&w, "content");
    jw_array(&w);
    jw_object(&w);
    jw_kstr(&w, "type", "text");
    jw_key(&w, "text");
    jw_strn(&w, buf_str(text), text->len);
    jw_object_end(&w);
    jw_array_end(&w);
    if (json != NULL)
        mcp_raw(&w, "structuredContent", buf_str(json), json->len);
    jw_kbool(&w, "isError", is_error);
    mcp_call_end(c, &w);
}

void mcp_call_tool_err(struct mcp_call *c, const struct err *err)
{
    AUTO_DONE(buf) struct buf text = {0};
    const char *remedy = front_remedy(err);

    buf_init(&text, 4096);
    (void)buf_puts(&text, err->msg);
    if (remedy != NULL)
        (void)buf_printf(&text, " (%s)", remedy);
    mcp_call_tool(c, true, &text, NULL);
}

void mcp_call_tool_json(struct mcp_call *c, struct jw *json, const char *text)
{
    AUTO_DONE(buf) struct buf words = {0};

    if (jw_end(json) < 0) {
        mcp_call_failf(c, MCP_INTERNAL, "the answer is too large");
        return;
    }
    buf_init(&words, MCP_ANSWER_MAX);
    (void)buf_puts(&words, text != NULL ? text : buf_str(json->out));
    mcp_call_tool(c, false, &words, json->out);
}
