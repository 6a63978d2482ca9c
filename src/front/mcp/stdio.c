/* SPDX-License-Identifier: Apache-2.0 */

/* The other end of `box mcp serve`: one WebSocket for one client on stdio, a message for each line.
 * The first message is not the client's: it says what the session is to be like,
 * {"session": {…}, "client": "…"}, the session as POST /v1/sessions takes it. With a name the
 * session stays; without, it ends with the connection, however that ends. "client" is 16
 * hexadecimal digits of its own choice: with the same ones it finds its sessions again when boxd
 * was restarted. That gives it nothing that it could not have by a name. An empty message says that
 * the client has ended: what is under way gets a moment. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "policy/authz.h"
#include "spec/spec.h"

#define HELLO_MAX (64U << 10)
#define GRACE_NS (5ULL * NSEC_PER_SEC)
/* A client that does not read for a while is still connected: the socket shows when it is gone. */
#define STALL_NS (365ULL * 24 * 3600 * NSEC_PER_SEC)

struct mcp_stdio {
    struct mcp *mcp;
    LIST_ENTRY(mcp_stdio) next;      /* of mcp->lines */
    struct ws_conn *ws;              /* NULL once closed */
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned */
    struct mcp_place *place;         /* NULL until the first message */
    bool ending;                     /* the client has */
    struct loop_timer grace;
};

static void line_free(struct mcp_stdio *l)
{
    authz_release(l->scope);
    free(l->who);
    free(l);
}

static void line_send(struct mcp_stdio *l, const struct buf *message)
{
    /* Without an answer the client would wait for ever: better it sees that boxd is gone. */
    if (l->ws != NULL && ws_send(l->ws, WS_TEXT, message->data, message->len) < 0)
        ws_close(l->ws, WS_CODE_INTERNAL, "the client does not read");
    else if (l->ws != NULL && ws_full(l->ws))
        ws_pause(l->ws, true);
}

static void line_notify(void *arg, const struct buf *message)
{
    struct mcp_stdio *l = arg;

    if (l->ws != NULL && !ws_full(l->ws))
        line_send(l, message);
}

static void line_answer(void *arg, const struct buf *message, enum mcp_code code)
{
    struct mcp_stdio *l = arg;

    if (message != NULL)
        line_send(l, message);
    if (l->ending && l->ws != NULL && l->place->n_calls == 0)
        ws_close(l->ws, WS_CODE_NORMAL, NULL);
}

static const struct mcp_sink sink = {line_notify, line_answer};

/* Root may reach a session that a user has made, but must not end it because it has its name. */
static bool is_ours(const struct mcp_stdio *l, const struct session *s)
{
    const struct spec *spec = session_spec(s);
    uid_t uid;

    return authz_is_user(l->scope, &uid) ? spec->own.bound && spec->own.uid == uid
                                         : !spec->own.bound;
}

/* A client that comes again goes on where it was: its earlier connection, which may be lost without
 * boxd knowing yet, does not end the session any more. */
static void line_take_over(struct mcp_stdio *l)
{
    struct mcp_place *p = l->place;
    struct mcp_stdio *other;
    struct session *s = NULL;

    LIST_FOREACH (other, &l->mcp->lines, next)
        if (other != l && other->place != NULL && str_eq(other->place->base, p->base) &&
            str_eq(other->who, l->who))
            other->place->ephemeral = false;
    if (p->session_id != NULL && mcp_place_find(p, p->session_id, &s, NULL) == 0 && is_ours(l, s))
        mcp_place_got(p, s);
}

static int line_place(struct mcp_stdio *l, const char *client, const char *session_id,
                      struct err *err)
{
    char random[17];

    if (client != NULL &&
        (strlen(client) != 16 || strspn(client, "0123456789abcdef") != strlen(client)))
        return err_set(err, ERR_INVALID, "client must be 16 hexadecimal digits");
    id_random(random);
    AUTO_FREE char *tail = xasprintf("mcp-%s", client != NULL ? client : random);
    l->place = mcp_place_new(l->mcp, l->scope, l->who, tail);
    l->place->ephemeral = session_id == NULL;
    l->place->keeps = true;
    if (session_id != NULL) {
        free(l->place->session_id);
        l->place->session_id = xstrdup(session_id);
    } else if (client != NULL) {
        line_take_over(l);
    }
    return 0;
}

/* What the session is to be like. */
static int line_greet(struct mcp_stdio *l, const char *data, size_t len, struct err *err)
{
    AUTO(json) struct json *hello = NULL;
    int r = len <= HELLO_MAX ? json_parse(data, len, &hello, err)
                             : err_set(err, ERR_LIMIT, "the first message is too large");
    if (r < 0)
        return r;
    const struct json *settings = json_get(hello, "session"), *client = json_get(hello, "client");
    const struct json *id = json_get(settings, "session_id");
    if (json_type(settings) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "the first message must describe the session");
    if (id != NULL && (json_str(id) == NULL || spec_check_id(json_str(id), err) < 0))
        return err_set(err, ERR_INVALID, "session_id is not the name of a session");
    if (client != NULL && json_str(client) == NULL)
        return err_set(err, ERR_INVALID, "client must be 16 hexadecimal digits");
    r = line_place(l, json_str(client), json_str(id), err);
    if (r < 0)
        return r;
    AUTO_DONE(buf) struct buf text = BUF_INIT(HELLO_MAX * 2);
    struct jw w = JW_INIT(&text);
    jw_value(&w, settings);
    return jw_end(&w) < 0 ? err_set(err, ERR_LIMIT, "the settings are too large")
                          : json_parse(buf_str(&text), text.len, &l->place->settings, err);
}

static void on_grace(struct loop_timer *t)
{
    ws_close(container_of(t, struct mcp_stdio, grace)->ws, WS_CODE_NORMAL, NULL);
}

static void line_finish(struct mcp_stdio *l)
{
    if (l->place == NULL || l->place->n_calls == 0) {
        ws_close(l->ws, WS_CODE_NORMAL, NULL);
        return;
    }
    l->ending = true;
    loop_timer_start(l->mcp->loop, &l->grace, GRACE_NS, on_grace);
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct mcp_stdio *l = arg;
    AUTO_DONE(mcp_message) struct mcp_message m = {0};
    struct mcp_error why;
    struct err err = {0};

    if (opcode != WS_TEXT) {
        ws_close(ws, WS_CODE_POLICY, "text only");
    } else if (len == 0) {
        line_finish(l);
    } else if (l->place == NULL) {
        if (line_greet(l, data, len, &err) < 0)
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
    ws_pause(ws, false);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct mcp_stdio *l = arg;

    l->ws = NULL;
    LIST_REMOVE(l, next);
    loop_timer_stop(&l->grace);
    if (l->place != NULL) {
        /* boxd ends, not the client. The next boxd ends the session when it is idle. */
        if (code == WS_CODE_GOING_AWAY)
            l->place->ephemeral = false;
        mcp_place_close(l->place);
    }
    line_free(l);
}

static void open_line(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    const struct ws_opts opts = {.max_message = MCP_MESSAGE_MAX, .stall_ns = STALL_NS};
    struct mcp_stdio *l = xnew(struct mcp_stdio);

    l->mcp = arg;
    l->scope = authz_hold(front_caller(req));
    l->who = xstrdup(front_who(req));
    if (http_upgrade_ws(req, &opts, &handlers, l, &l->ws, NULL) == 0)
        LIST_INSERT_HEAD(&l->mcp->lines, l, next);
    else
        line_free(l);
}

const struct http_route mcp_stdio_routes[] = {
    {"GET", "/mcp/stdio", open_line, HTTP_ROUTE_SCOPED, 0},
    {0},
};
