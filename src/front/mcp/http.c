/* SPDX-License-Identifier: Apache-2.0 */

/* The MCP transport "streamable HTTP": POST, GET and DELETE on /mcp. One message a POST; the answer
 * is JSON, or a stream of events where a notification precedes it or where it takes its time. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/common/sse.h"
#include "front/mcp/mcp_internal.h"
#include "policy/authz.h"

#define SESSION_HEADER "Mcp-Session-Id"
#define PATIENCE_NS                                                                                \
    (5ULL * NSEC_PER_SEC) /* then a stream is begun, so that the line is not silent */

#define LINKS_MAX 1024U
#define LINKS_EACH 64U /* of one caller */

/* Clients with a handshake, most recent use first ---------------------------------------------- */

/* A client of the revisions with a handshake, by its Mcp-Session-Id. */
struct mcp_link {
    struct mcp *mcp;
    LIST_ENTRY(mcp_link) next;
    char id[33]; /* that the client sends back; random */
    struct mcp_place *place;
    /* That the client has opened with GET. The server has nothing to say there; that it is open
     * shows that the client is there. */
    struct sse sse;
};

static void link_listened(struct mcp_link *l)
{
    mcp_place_keep(l->place, false);
    sse_end(&l->sse);
}

static void link_free(struct mcp_link *l)
{
    assert(l->mcp->n_links > 0);
    LIST_REMOVE(l, next);
    l->mcp->n_links--;
    if (l->sse.req != NULL)
        link_listened(l);
    mcp_place_close(l->place);
    free(l);
}

void mcp_links_free(struct mcp *m)
{
    struct mcp_link *l;

    while ((l = LIST_FIRST(&m->links)) != NULL) {
        /* boxd ends, not the client. Its session ends when it is idle for long enough. */
        l->place->ephemeral = false;
        link_free(l);
    }
}

/* A new link of a caller displaces the one of the same caller that was idle for longest. */
static bool links_make_room(struct mcp *m, const char *who)
{
    struct mcp_link *l, *oldest = NULL;
    unsigned n = 0;

    LIST_FOREACH (l, &m->links, next) {
        if (!str_eq(l->place->who, who))
            continue;
        n++;
        if (l->sse.req == NULL && l->place->n_calls == 0)
            oldest = l;
    }
    if (n < LINKS_EACH && m->n_links < LINKS_MAX)
        return true;
    if (oldest == NULL)
        return false;
    link_free(oldest);
    return true;
}

static struct mcp_link *link_new(struct mcp *m, const struct authz_scope *scope, const char *who)
{
    char name[17], first[17], second[17];

    if (!links_make_room(m, who))
        return NULL;
    struct mcp_link *l = xnew(struct mcp_link);
    id_random(name);
    id_random(first);
    id_random(second);
    AUTO_FREE char *tail = xasprintf("mcp-%s", name);
    (void)str_fmt(l->id, sizeof(l->id), "%s%s", first, second);
    l->mcp = m;
    l->place = mcp_place_new(m, scope, who, tail);
    l->place->ephemeral = true;
    LIST_INSERT_HEAD(&m->links, l, next);
    m->n_links++;
    return l;
}

static struct mcp_link *link_find(struct mcp *m, const char *id, const struct authz_scope *scope,
                                  const char *who)
{
    struct mcp_link *l;

    LIST_FOREACH (l, &m->links, next) {
        if (!str_eq(l->id, id) || !str_eq(l->place->who, who))
            continue;
        LIST_REMOVE(l, next);
        LIST_INSERT_HEAD(&m->links, l, next);
        /* The tokens may have been read again meanwhile. */
        if (l->place->scope != scope) {
            authz_release(l->place->scope);
            l->place->scope = authz_hold(scope);
        }
        return l;
    }
    return NULL;
}

/* POST ---------------------------------------------------------------------------------------- */

struct post {
    struct mcp *mcp;
    struct http_request *req;
    struct mcp_call *call; /* under way, or NULL */
    struct mcp_link *link; /* that `initialize` has made, or NULL */
    struct sse sse;
    struct loop_timer timer;
    unsigned status; /* of a message that is refused; 0: as its code says */
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

static void on_patience(struct loop_timer *t)
{
    begin_events(container_of(t, struct post, timer));
}

static void post_notify(void *arg, const struct buf *message)
{
    struct post *p = arg;

    if (!p->streams)
        return;
    begin_events(p);
    if (!sse_full(&p->sse))
        sse_send(&p->sse, "message", NULL, message); /* else there will be another */
}

static unsigned status_of(const struct post *p, enum mcp_code code)
{
    if (p->status != 0)
        return p->status;
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

static void post_answer(void *arg, const struct buf *message, enum mcp_code code)
{
    struct post *p = arg;

    if (p->link != NULL && code == MCP_OK)
        (void)http_reply_header(p->req, SESSION_HEADER, p->link->id);
    if (p->only_events && message != NULL && code == MCP_OK)
        begin_events(p);
    if (p->sse.req != NULL) {
        if (message != NULL)
            sse_send(&p->sse, "message", NULL, message);
        sse_end(&p->sse);
    } else if (message == NULL) {
        http_reply(p->req, 202, NULL, NULL, 0);
    } else {
        http_reply(p->req, status_of(p, code), "application/json", message->data, message->len);
    }
    post_free(p);
}

static const struct mcp_sink sink = {post_notify, post_answer};

/* A message that never becomes a call, with a status of its own. */
static void post_refuse(struct post *p, unsigned status, const struct json *id,
                        const struct mcp_error *why)
{
    p->status = status;
    mcp_refuse(id, why, &sink, p);
}

/* From 2026-07-28 on a client that hangs up takes the request back. Before, a client says so in a
 * message, and the connection may be lost by chance. A client that is still connected has lost its
 * token, and cannot send that message. */
static void on_cancel(struct http_request *req, void *arg)
{
    struct post *p = arg;

    if (p->modern || !http_request_cancelled(req)) {
        mcp_call_free(p->call);
    } else if (p->call != NULL) {
        p->call->sink = NULL;
        p->call->slot = NULL;
    }
    if (p->sse.req != NULL)
        sse_end(&p->sse);
    else
        http_abort(req);
    post_free(p);
}

/* Headers. */

static bool accepts_type(const struct http_request *req, const char *type)
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

static void post_receive(struct post *p, struct mcp_place *place, struct mcp_message *m)
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
        post_refuse(p, 400, m->id, &why);
    else
        post_receive(p, mcp_place_of_caller(p->mcp, scope, front_who(p->req)), m);
}

/* One that `initialize` came before, or is. */
static void receive_legacy(struct post *p, struct mcp_message *m)
{
    const char *id = http_request_header(p->req, SESSION_HEADER);
    const struct authz_scope *scope = front_caller(p->req);
    const char *who = front_who(p->req);
    struct mcp_error why;

    if (m->kind == MCP_REQUEST && str_eq(m->method, "initialize")) {
        struct mcp_link *l = link_new(p->mcp, scope, who);
        if (l == NULL) {
            (void)mcp_fail(&why, MCP_INTERNAL, "too many clients of this caller are connected");
            post_refuse(p, 503, m->id, &why);
            return;
        }
        p->link = l;
        post_receive(p, l->place, m); /* answers at once */
        if (l->place->version == NULL)
            link_free(l);
        return;
    }
    struct mcp_link *l = id != NULL ? link_find(p->mcp, id, scope, who) : NULL;
    if (l != NULL) {
        post_receive(p, l->place, m);
        return;
    }
    (void)mcp_fail(&why, MCP_INVALID_REQUEST,
                   id != NULL ? "that " SESSION_HEADER " is not known: initialize again"
                              : SESSION_HEADER " is missing: initialize first, or name the "
                                               "revision in params._meta");
    post_refuse(p, id != NULL ? 404 : 400, m->id, &why);
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
    p->streams = accepts_type(req, "text/event-stream");
    p->only_events = p->streams && !accepts_type(req, "application/json");
    if (!p->streams && !accepts_type(req, "application/json")) {
        (void)mcp_fail(&why, MCP_INVALID_REQUEST,
                       "Accept must name application/json and text/event-stream");
        post_refuse(p, 406, NULL, &why);
        return;
    }
    int r = mcp_message_parse(body, len, &m, &why);
    p->modern = m.version != NULL || str_eq(version, MCP_MODERN);
    if (r < 0 && m.version != NULL && version != NULL && !str_eq(version, m.version))
        (void)check_headers(req, &m, &why); /* header and body contradict each other */
    if (r == 0 && !p->modern && version != NULL && !mcp_version_known(version)) {
        r = mcp_fail(&why, MCP_UNSUPPORTED_VERSION, "Unsupported protocol version");
        (void)str_fmt(why.requested, sizeof(why.requested), "%.60s", version);
    }
    if (r < 0)
        post_refuse(p, 400, m.id, &why);
    else if (p->modern)
        receive_modern(p, &m);
    else
        receive_legacy(p, &m);
}

/* GET and DELETE ------------------------------------------------------------------------------- */

static void on_leave(struct http_request *req, void *arg)
{
    link_listened(arg);
}

/* The one that the request names. NULL: answered. */
static struct mcp_link *named_link(struct http_request *req, struct mcp *m)
{
    const char *id = http_request_header(req, SESSION_HEADER);
    struct mcp_link *l = id != NULL ? link_find(m, id, front_caller(req), front_who(req)) : NULL;

    if (id == NULL)
        http_reply_error(req, 405, "unsupported", "GET and DELETE need the header " SESSION_HEADER,
                         "POST a message");
    else if (l == NULL)
        http_reply_error(req, 404, "not_found", "that " SESSION_HEADER " is not known",
                         "initialize again");
    return l;
}

static void on_get(struct http_request *req, void *arg)
{
    struct mcp_link *l = named_link(req, arg);

    if (l == NULL)
        return;
    if (!sse_wanted(req)) {
        http_reply_error(req, 406, "invalid", "Accept must name text/event-stream", NULL);
        return;
    }
    if (l->sse.req != NULL) {
        http_reply_error(req, 409, "conflict", "this session has a stream already", NULL);
        return;
    }
    mcp_place_keep(l->place, true);
    http_on_cancel(req, on_leave, l);
    sse_start(&l->sse, req, l->mcp->loop);
}

static void on_delete(struct http_request *req, void *arg)
{
    struct mcp_link *l = named_link(req, arg);

    if (l == NULL)
        return;
    link_free(l);
    http_reply(req, 204, NULL, NULL, 0);
}

const struct http_route mcp_http_routes[] = {
    {"POST", "/mcp", on_post, HTTP_ROUTE_SCOPED, MCP_MESSAGE_MAX},
    {"GET", "/mcp", on_get, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/mcp", on_delete, HTTP_ROUTE_SCOPED, 0},
    {0},
};
