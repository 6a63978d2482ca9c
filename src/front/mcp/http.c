/* SPDX-License-Identifier: Apache-2.0 */

/* The MCP transport "streamable HTTP": POST, GET and DELETE on /mcp. One message a POST; the answer
 * is JSON, or a stream of events where a notification precedes it or where it takes its time. */

#include "front/mcp/http.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/common/sse.h"
#include "http/server/server.h"

#define SESSION_HEADER "Mcp-Session-Id"
#define PATIENCE_NS                                                                                \
    (5ULL * NSEC_PER_SEC) /* then a stream is begun, so that the line is not silent */
#define EVENT_MAX (MCP_ANSWER_MAX + 64)

struct post {
    struct mcp *mcp;
    struct http_request *req;
    struct mcp_call *call; /* under way, or NULL */
    struct mcp_link *link; /* that `initialize` has made, or NULL */
    struct sse sse;
    struct loop_timer timer;
    bool modern;
    bool streams;     /* the client takes events */
    bool only_events; /* and nothing else */
};

static void post_free(struct post *p)
{
    loop_timer_stop(&p->timer);
    free(p);
}

static void begin_events(struct post *p)
{
    loop_timer_stop(&p->timer);
    if (p->sse.req == NULL)
        sse_start(&p->sse, p->req, p->mcp->loop);
}

static int send_event(struct post *p, const struct buf *message)
{
    AUTO_DONE(buf) struct buf out = {0};

    buf_init(&out, EVENT_MAX);
    (void)buf_puts(&out, "event: message\ndata: ");
    if (buf_append(&out, message->data, message->len) < 0 || buf_puts(&out, "\n\n") < 0)
        return -1;
    return http_reply_chunk(p->req, out.data, out.len);
}

static void on_patience(struct loop_timer *t)
{
    begin_events(container_of(t, struct post, timer));
}

static void notify(void *arg, const struct buf *message)
{
    struct post *p = arg;

    if (!p->streams)
        return;
    begin_events(p);
    if (!sse_full(&p->sse))
        (void)send_event(p, message); /* there will be another */
}

static unsigned status_of(const struct post *p, enum mcp_code code)
{
    switch (code) {
    case MCP_PARSE_ERROR:
    case MCP_INVALID_REQUEST:
    case MCP_HEADER_MISMATCH:
    case MCP_UNSUPPORTED_VERSION:
        return 400;
    case MCP_NO_METHOD:
        return p->modern ? 404 : 200;
    case MCP_OK:
    case MCP_INVALID_PARAMS:
    case MCP_INTERNAL:
    case MCP_NO_RESOURCE_LEGACY:
        break;
    }
    return 200;
}

static void answer(void *arg, const struct buf *message, enum mcp_code code)
{
    struct post *p = arg;

    if (p->link != NULL && code == MCP_OK)
        (void)http_reply_header(p->req, SESSION_HEADER, p->link->id);
    if (p->only_events && message != NULL && code == MCP_OK)
        begin_events(p);
    if (p->sse.req != NULL) {
        if (message != NULL)
            (void)send_event(p, message); /* a peer that has gone is told elsewhere */
        sse_end(&p->sse);
    } else if (message == NULL) {
        http_reply(p->req, 202, NULL, NULL, 0);
    } else {
        http_reply(p->req, status_of(p, code), "application/json", message->data, message->len);
    }
    post_free(p);
}

static const struct mcp_sink sink = {notify, answer};

/* With an own status. */
static void refuse(struct post *p, unsigned status, const struct json *id,
                   const struct mcp_error *why)
{
    AUTO_DONE(buf) struct buf out = {0};
    AUTO_DONE(buf) struct buf text = {0};

    buf_init(&out, MCP_ANSWER_MAX);
    buf_init(&text, MCP_ID_MAX * 8);
    if (id != NULL)
        mcp_id_text(id, &text);
    mcp_write_error(&out, id != NULL ? buf_str(&text) : NULL, why);
    http_reply(p->req, status, "application/json", out.data, out.len);
    post_free(p);
}

/* From 2026-07-28 on whoever hangs up takes the request back. Before, that is said in words, and
 * the connection may be lost by chance. Whoever is still there has lost its token, and can take
 * nothing back. */
static void on_cancel(struct http_request *req, void *arg)
{
    struct post *p = arg;

    if (p->modern || !http_request_cancelled(req))
        mcp_call_free(p->call);
    else if (p->call != NULL)
        mcp_call_detach(p->call);
    if (p->sse.req != NULL)
        sse_end(&p->sse);
    else
        http_abort(req);
    post_free(p);
}

/* Headers. */

static bool accepts(const struct http_request *req, const char *type)
{
    const char *accept = http_request_header(req, "Accept");

    return accept == NULL || strstr(accept, type) != NULL || strstr(accept, "*/*") != NULL;
}

/* Every header that says what the body says must say the same. */
static int check_headers(const struct http_request *req, const struct mcp_message *m,
                         struct mcp_error *why)
{
    static const struct {
        const char *method, *member;
    } named[] = {{"tools/call", "name"}, {"resources/read", "uri"}, {"prompts/get", "name"}};
    const char *version = http_request_header(req, "MCP-Protocol-Version");
    const char *name = http_request_header(req, "Mcp-Name");

    if (version == NULL || (m->version != NULL && !str_eq(version, m->version)))
        return mcp_fail(why, MCP_HEADER_MISMATCH,
                        "Header mismatch: MCP-Protocol-Version must be what _meta says");
    if (!str_eq(http_request_header(req, "Mcp-Method"), m->method))
        return mcp_fail(why, MCP_HEADER_MISMATCH,
                        "Header mismatch: Mcp-Method must be the method, '%.100s'", m->method);
    for (size_t i = 0; i < ARRAY_SIZE(named); i++) {
        const char *body = json_str(json_get(m->params, named[i].member));
        if (str_eq(m->method, named[i].method) && body != NULL && !mcp_header_matches(name, body))
            return mcp_fail(why, MCP_HEADER_MISMATCH, "Header mismatch: Mcp-Name must be params.%s",
                            named[i].member);
    }
    return 0;
}

static void receive(struct post *p, struct mcp_place *place, struct mcp_message *m)
{
    if (m->kind != MCP_REQUEST) {
        mcp_receive(place, m, &sink, p, NULL);
        http_reply(p->req, 202, NULL, NULL, 0);
        post_free(p);
        return;
    }
    http_on_cancel(p->req, on_cancel, p);
    if (p->streams)
        loop_timer_start(p->mcp->loop, &p->timer, PATIENCE_NS, on_patience);
    mcp_receive(place, m, &sink, p, &p->call);
}

/* One that stands alone. */
static void receive_modern(struct post *p, struct mcp_message *m)
{
    const struct authz_scope *scope = front_caller(p->req);
    struct mcp_error why;
    int r = m->kind == MCP_RESPONSE
                ? mcp_fail(&why, MCP_INVALID_REQUEST, "requests and notifications are taken here")
                : check_headers(p->req, m, &why);

    if (r == 0 && m->kind == MCP_REQUEST && m->version == NULL)
        r = mcp_fail(&why, MCP_INVALID_PARAMS,
                     "_meta lacks io.modelcontextprotocol/protocolVersion");
    if (r < 0)
        refuse(p, 400, m->id, &why);
    else
        receive(p, mcp_place_of_caller(p->mcp, scope, front_who(p->req)), m);
}

/* One that `initialize` came before, or is. */
static void receive_legacy(struct post *p, struct mcp_message *m)
{
    const char *id = http_request_header(p->req, SESSION_HEADER);
    const struct authz_scope *scope = front_caller(p->req);
    const char *who = front_who(p->req);
    struct mcp_error why;

    if (m->kind == MCP_REQUEST && str_eq(m->method, "initialize")) {
        struct mcp_link *l = mcp_link_new(p->mcp, scope, who);
        if (l == NULL) {
            (void)mcp_fail(&why, MCP_INTERNAL, "too many clients of this caller are connected");
            refuse(p, 503, m->id, &why);
            return;
        }
        p->link = l;
        receive(p, l->place, m); /* answers at once */
        if (l->place->version == NULL)
            mcp_link_free(l);
        return;
    }
    struct mcp_link *l = id != NULL ? mcp_link_find(p->mcp, id, scope, who) : NULL;
    if (l != NULL) {
        receive(p, l->place, m);
        return;
    }
    (void)mcp_fail(&why, MCP_INVALID_REQUEST,
                   id != NULL ? "that " SESSION_HEADER " is not known: initialize again"
                              : SESSION_HEADER " is missing: initialize first, or name the "
                                               "revision in params._meta");
    refuse(p, id != NULL ? 404 : 400, m->id, &why);
}

static void on_post(struct http_request *req, void *arg)
{
    AUTO_DONE(mcp_message) struct mcp_message m = {0};
    const char *version = http_request_header(req, "MCP-Protocol-Version");
    struct post *p = xnew(struct post);
    struct mcp_error why;
    size_t len;
    const char *body = http_request_body(req, &len);

    p->mcp = arg;
    p->req = req;
    p->streams = accepts(req, "text/event-stream");
    p->only_events = p->streams && !accepts(req, "application/json");
    if (!p->streams && !accepts(req, "application/json")) {
        (void)mcp_fail(&why, MCP_INVALID_REQUEST,
                       "Accept must name application/json and text/event-stream");
        refuse(p, 406, NULL, &why);
        return;
    }
    int r = mcp_message_parse(body, len, &m, &why);
    p->modern = m.version != NULL || str_eq(version, MCP_MODERN);
    if (r < 0 && m.version != NULL && version != NULL && !str_eq(version, m.version))
        (void)check_headers(req, &m, &why); /* which of the two is meant, nobody knows */
    if (r == 0 && !p->modern && version != NULL && !mcp_version_known(version)) {
        r = mcp_fail(&why, MCP_UNSUPPORTED_VERSION, "Unsupported protocol version");
        (void)str_fmt(why.requested, sizeof(why.requested), "%.60s", version);
    }
    if (r < 0)
        refuse(p, 400, m.id, &why);
    else if (p->modern)
        receive_modern(p, &m);
    else
        receive_legacy(p, &m);
}

/* GET: a stream for what we say unasked, which is nothing; it shows that the client is there. */

struct mcp_listener {
    struct sse sse;
    struct mcp_link *link;
};

void mcp_listener_end(struct mcp_listener *listener)
{
    listener->link->listener = NULL;
    mcp_place_keep(listener->link->place, false);
    sse_end(&listener->sse);
    free(listener);
}

static void on_leave(struct http_request *req, void *arg)
{
    mcp_listener_end(arg);
}

/* The one that the request names. NULL: answered. */
static struct mcp_link *find_link(struct http_request *req, struct mcp *m)
{
    const char *id = http_request_header(req, SESSION_HEADER);
    struct mcp_link *l =
        id != NULL ? mcp_link_find(m, id, front_caller(req), front_who(req)) : NULL;

    if (id == NULL)
        http_reply_error(req, 405, "unsupported", "there is nothing here without " SESSION_HEADER,
                         "POST a message");
    else if (l == NULL)
        http_reply_error(req, 404, "not_found", "that " SESSION_HEADER " is not known",
                         "initialize again");
    return l;
}

static void on_get(struct http_request *req, void *arg)
{
    struct mcp_link *l = find_link(req, arg);

    if (l == NULL)
        return;
    if (!sse_wanted(req)) {
        http_reply_error(req, 406, "invalid", "Accept must name text/event-stream", NULL);
        return;
    }
    if (l->listener != NULL) {
        http_reply_error(req, 409, "conflict", "this session has a stream already", NULL);
        return;
    }
    struct mcp_listener *listener = xnew(struct mcp_listener);
    listener->link = l;
    l->listener = listener;
    mcp_place_keep(l->place, true);
    http_on_cancel(req, on_leave, listener);
    sse_start(&listener->sse, req, l->mcp->loop);
}

static void on_delete(struct http_request *req, void *arg)
{
    struct mcp_link *l = find_link(req, arg);

    if (l == NULL)
        return;
    mcp_link_free(l);
    http_reply(req, 204, NULL, NULL, 0);
}

static const struct http_route routes[] = {
    {"POST", "/mcp", on_post, HTTP_ROUTE_SCOPED, MCP_MESSAGE_MAX},
    {"GET", "/mcp", on_get, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/mcp", on_delete, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/mcp/stdio", mcp_ws, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int mcp_http_routes(struct http_server *server, struct mcp *m, struct err *err)
{
    return http_server_add_routes(server, routes, m, err);
}
