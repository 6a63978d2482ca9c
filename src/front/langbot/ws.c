/* SPDX-License-Identifier: Apache-2.0 */

/* Clients over HTTP: decides whether a connection may use the LangBot front, by token or by the
 * user behind the socket, and carries messages over a WebSocket. Joins requests that old clients
 * send in pieces. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"
#include "http/server/server.h"
#include "loop/peer.h"
#include "policy/users.h"

char *langbot_header(const struct http_request *req, const char *name)
{
    const char *value = http_request_header(req, name);
    /* Two of them would leave it open which one counts. */
    if (value == NULL || http1_count(http_request_head(req), name) != 1)
        return NULL;
    return str_strip(value);
}

static bool token_ok(const struct langbot *r, const struct http_request *req)
{
    AUTO_FREE char *given = langbot_header(req, "X-LangBot-Box-Control-Token");
    return r->o.token != NULL && given != NULL &&
           http_secret_eq(given, strlen(given), r->o.token, strlen(r->o.token));
}

/* A unix socket, and TCP without a token, are admitted by the user at the other end. */
static unsigned admit_peer(const struct langbot *r, const struct http_request *req,
                           struct langbot_guest *ret)
{
    const struct peer *peer = http_request_peer(req);
    if (!http_request_is_unix(req) && (r->o.token != NULL || r->shut))
        return token_ok(r, req) ? 0 : 401;
    enum users_rank rank = users_rank(r->o.users, peer);
    ret->bound = rank == USERS_BOUND;
    ret->uid = peer->uid;
    if (rank == USERS_REFUSED)
        users_log_refusal(peer);
    return rank == USERS_REFUSED ? 403 : 0;
}

/* The first instance of a bound user. It is that user's alone: otherwise any member of the socket's
 * group could shut root's LangBot out. */
struct langbot_trust {
    uid_t uid;
    char *instance; /* owned */
    LIST_ENTRY(langbot_trust) link;
};

const char *langbot_instance(const struct langbot *r, const uid_t *bound_uid)
{
    const struct langbot_trust *t;
    if (bound_uid == NULL || r->configured)
        return r->instance;
    LIST_FOREACH (t, &r->trusts, link)
        if (t->uid == *bound_uid)
            return t->instance;
    return NULL;
}

bool langbot_trusts(const struct langbot *r, const uid_t *bound_uid, const char *instance)
{
    const char *trusted = langbot_instance(r, bound_uid);
    return trusted != NULL && http_secret_eq(instance, strlen(instance), trusted, strlen(trusted));
}

/* Until boxd ends. There are as many as users of this host have come. */
static void trust(struct langbot *r, const uid_t *bound_uid, char *instance)
{
    if (bound_uid == NULL) {
        r->instance = instance;
        return;
    }
    struct langbot_trust *t = xnew(struct langbot_trust);
    t->uid = *bound_uid;
    t->instance = instance;
    LIST_INSERT_HEAD(&r->trusts, t, link);
}

void langbot_trusts_free(struct langbot *r)
{
    while (!LIST_EMPTY(&r->trusts)) {
        struct langbot_trust *t = LIST_FIRST(&r->trusts);
        LIST_REMOVE(t, link);
        free(t->instance);
        free(t);
    }
    free(r->instance);
}

unsigned langbot_auth(const struct langbot *r, const struct http_request *req,
                      struct langbot_guest *ret)
{
    AUTO_FREE char *instance = NULL;
    *ret = (struct langbot_guest){0};
    unsigned status = admit_peer(r, req, ret);
    if (status != 0)
        return status;
    if (r->o.legacy && http_request_header(req, "X-LangBot-Instance-Id") == NULL)
        return 0;
    instance = langbot_header(req, "X-LangBot-Instance-Id");
    if (instance == NULL || !instance_id_valid(instance))
        return 401;
    const uid_t *uid = ret->bound ? &ret->uid : NULL;
    if (langbot_instance(r, uid) != NULL && !langbot_trusts(r, uid, instance))
        return 401;
    ret->instance = TAKE_PTR(instance);
    return 0;
}

void langbot_refuse(struct http_request *req, unsigned status)
{
    const char *body = status == 403 ? USERS_REFUSAL : "Unauthorized";
    http_reply(req, status, "text/plain; charset=utf-8", body, strlen(body));
}

/* The transport. */

#define QUEUE_MAX (64U << 20)

/* Action RPC over a WebSocket: a message each way is one JSON object, as text. */
struct link {
    struct ws_conn *ws;
    struct langbot_conn *conn;
    struct buf joined; /* what a client of the first release has cut into several messages */
};

static void send_message(void *arg, const char *text, size_t len)
{
    struct link *l = arg;
    if (ws_send(l->ws, WS_TEXT, text, len) == -ENOBUFS)
        ws_close(l->ws, WS_CODE_INTERNAL, "answers are not being read");
    /* A client that does not read its answers gets no further work done; what is under way goes on.
     */
    if (ws_full(l->ws))
        ws_pause(l->ws, true);
}

static void close_link(void *arg, unsigned code, const char *reason)
{
    struct link *l = arg;
    ws_close(l->ws, code, reason);
}

static int link_socket(void *arg)
{
    struct link *l = arg;
    return ws_socket(l->ws);
}

static const struct langbot_transport transport = {
    .send = send_message, .close = close_link, .socket = link_socket};

static bool is_json(const char *text, size_t len)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};
    return json_parse(text, len, &v, &err) == 0;
}

/* A request above 64 KiB came as several messages then. They are put together again: what ends
 * with a brace may be the end of it. */
static void join_pieces(struct link *l, const char *data, size_t len)
{
    bool end = len > 0 && data[len - 1] == '}';
    if (l->joined.len == 0 && end && is_json(data, len)) {
        langbot_conn_message(l->conn, data, len);
        return;
    }
    if (buf_append(&l->joined, data, len) < 0) {
        ws_close(l->ws, WS_CODE_TOO_BIG, NULL);
        return;
    }
    if (l->joined.data[0] != '{') { /* never was one */
        buf_done(&l->joined);
    } else if (end && is_json(l->joined.data, l->joined.len)) {
        langbot_conn_message(l->conn, l->joined.data, l->joined.len);
        buf_done(&l->joined);
    }
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct link *l = arg;
    if (opcode == WS_BINARY)
        ws_close(ws, WS_CODE_NORMAL, NULL);
    else if (l->conn->flags & LANGBOT_CONN_BARE)
        join_pieces(l, data, len);
    else
        langbot_conn_message(l->conn, data, len);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    ws_pause(ws, false);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct link *l = arg;
    log_info(NULL, "a LangBot client has left (%u)", code);
    langbot_conn_free(l->conn);
    buf_done(&l->joined);
    free(l);
}

void langbot_ws_open(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    const struct ws_opts opts = {.max_message = LANGBOT_MESSAGE_MAX, .max_queue = QUEUE_MAX};
    struct langbot_guest guest;
    struct langbot *r = arg;
    struct err err = {0};
    unsigned status = langbot_auth(r, req, &guest);
    AUTO_FREE char *instance = guest.instance;
    if (status != 0) {
        langbot_refuse(req, status);
        return;
    }
    bool by_token = r->o.token != NULL && !http_request_is_unix(req);
    struct link *l = xnew(struct link);
    char id[LOG_REQUEST_SIZE];
    (void)str_copy(id, sizeof(id), http_request_id(req));
    buf_init(&l->joined, LANGBOT_MESSAGE_MAX);
    if (http_upgrade_ws(req, &opts, &handlers, l, &l->ws, &err) < 0) {
        free(l);
        return;
    }
    log_info(NULL, "a LangBot client has come%s", instance == NULL ? " (first release)" : "");
    l->conn = langbot_conn_new(r, &transport, l, instance == NULL ? LANGBOT_CONN_BARE : 0);
    l->conn->by_token = by_token;
    l->conn->bound = guest.bound;
    l->conn->uid = guest.uid;
    /* A peer's own name for it may be too long to carry a number: then ours stays. */
    if (strlen(id) < sizeof(l->conn->request))
        (void)str_copy(l->conn->request, sizeof(l->conn->request), id);
    const uid_t *uid = guest.bound ? &guest.uid : NULL;
    if (instance != NULL && langbot_instance(r, uid) == NULL)
        trust(r, uid, TAKE_PTR(instance));
}
