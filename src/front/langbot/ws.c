/* SPDX-License-Identifier: Apache-2.0 */

/* The WebSocket transport of the LangBot front; joins requests that old clients send in pieces. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/server/server.h"

#define QUEUE_MAX (64U << 20)

/* Action RPC over a WebSocket: a message each way is one JSON object, as text. */
struct link {
    struct langbot *rpc;
    struct ws_conn *ws;
    struct langbot_conn *conn;
    struct buf joined; /* what a client of the first release has cut into several messages */
};

static void send_message(void *arg, const char *text, size_t len)
{
    struct link *l = arg;
    if (ws_send(l->ws, WS_TEXT, text, len) == -ENOBUFS)
        ws_close(l->ws, WS_CODE_INTERNAL, "answers are not being read");
    /* Whoever does not read gets no further work done; what is under way goes on. */
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
static void join(struct link *l, const char *data, size_t len)
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
        join(l, data, len);
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
    l->rpc = r;
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
    /* Whoever comes first is the one, for as long as we live. */
    if (r->instance == NULL)
        r->instance = TAKE_PTR(instance);
}
