/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/authz.h"
#include "http/server.h"
#include "http/ws_conn.h"
#include "rpc/mcp_internal.h"
#include "util/alloc.h"
#include "util/str.h"

/* The other end of `box mcp serve`: one WebSocket for one client on stdio, a message for each line.
 * The first message is not the client's: it says what the session is to be like,
 * {"session_id": "…", "settings": {…}}, both optional. With a name the session stays; without, it
 * ends with the connection, however that ends. */

#define HELLO_MAX (64U << 10)

struct line {
    struct mcp *mcp;
    struct ws_conn *ws;              /* NULL once closed */
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned */
    struct mcp_place *place;         /* NULL until the first message */
};

static void say(struct line *l, const struct buf *message)
{
    /* Without an answer the client would wait for ever: better it sees that we are gone. */
    if (l->ws != NULL && ws_send(l->ws, WS_TEXT, message->data, message->len) < 0)
        ws_close(l->ws, WS_CODE_INTERNAL, "the client does not read");
    else if (l->ws != NULL && ws_full(l->ws))
        ws_pause(l->ws, true);
}

static void notify(void *arg, const struct buf *message)
{
    struct line *l = arg;

    if (l->ws != NULL && !ws_full(l->ws))
        say(l, message);
}

static void answer(void *arg, const struct buf *message, enum mcp_code code)
{
    (void)code;
    if (message != NULL)
        say(arg, message);
}

static const struct mcp_sink sink = {notify, answer};

/* What the session is to be like. */
static int greet(struct line *l, const char *data, size_t len, struct err *err)
{
    AUTO(json) struct json *hello = NULL;
    char random[17];
    int r = len <= HELLO_MAX ? json_parse(data, len, &hello, err)
                             : err_set(err, ERR_LIMIT, "the first message is too large");
    if (r < 0)
        return r;
    const struct json *id = json_get(hello, "session_id");
    if (json_type(hello) != JSON_OBJECT || (id != NULL && !id_valid(json_str(id))))
        return err_set(err, ERR_INVALID, "session_id is not the name of a session");
    id_random(random);
    AUTO_FREE char *tail = xasprintf("mcp-%s", random);
    l->place = mcp_place_new(l->mcp, l->scope, l->who, tail);
    l->place->ephemeral = id == NULL;
    if (id != NULL) {
        free(l->place->session_id);
        l->place->session_id = xstrdup(json_str(id));
    }
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    buf_init(&text, HELLO_MAX * 2);
    jw_init(&w, &text);
    const struct json *settings = json_get(hello, "settings");
    if (json_type(settings) != JSON_OBJECT) {
        jw_object(&w);
        jw_object_end(&w);
    } else {
        jw_value(&w, settings);
    }
    return jw_end(&w) < 0 ? err_set(err, ERR_LIMIT, "the settings are too large")
                          : json_parse(buf_str(&text), text.len, &l->place->settings, err);
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct line *l = arg;
    AUTO_DONE(mcp_message) struct mcp_message m = {0};
    struct mcp_error why;
    struct err err = {0};

    if (opcode != WS_TEXT) {
        ws_close(ws, WS_CODE_POLICY, "text only");
    } else if (l->place == NULL) {
        if (greet(l, data, len, &err) < 0)
            ws_close(ws, WS_CODE_POLICY, err.msg);
    } else if (mcp_message_parse(data, len, &m, &why) < 0) {
        if (m.kind == MCP_REQUEST || m.method == NULL)
            mcp_refuse(m.id, &why, &sink, l);
    } else {
        mcp_receive(l->place, &m, &sink, l, NULL);
    }
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    (void)arg;
    ws_pause(ws, false);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct line *l = arg;

    (void)ws;
    (void)reason;
    l->ws = NULL;
    if (l->place != NULL) {
        /* We go, not the client. The next boxd ends the session when it is idle. */
        if (code == WS_CODE_GOING_AWAY)
            l->place->ephemeral = false;
        mcp_place_close(l->place);
    }
    authz_release(l->scope);
    free(l->who);
    free(l);
}

void mcp_ws(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    const struct ws_opts opts = {.max_message = MCP_MESSAGE_MAX};
    struct line *l = xnew(struct line);

    l->mcp = arg;
    l->scope = authz_hold(v1_caller(req));
    l->who = xstrdup(v1_who(req));
    if (http_upgrade_ws(req, &opts, &handlers, l, &l->ws, NULL) == 0)
        return;
    authz_release(l->scope);
    free(l->who);
    free(l);
}
