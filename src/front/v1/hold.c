/* SPDX-License-Identifier: Apache-2.0 */

/* A session that belongs to a connection: it ends when the connection has been lost for as long as
 * its lease says. The processes in it can be attached to over the same connection, but are not part
 * of it: a process outlives a connection, and boxd itself. docs/reference/mcp.md has the messages.
 */

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "spec/spec.h"

#define MESSAGE_MAX (17U << 20) /* the longest line of stdin, and its head */
#define TEXT_MAX (64U << 10)
#define INFO_MAX (64U << 10)
#define LIST_MAX (32U << 20)
#define GRACE_DEFAULT 5
#define PING_NS (30 * NSEC_PER_SEC)
#define PONG_NS (15 * NSEC_PER_SEC)
/* A reader may be busy for as long as it likes: it sees no more than the ring holds. */
#define STALL_NS (24ULL * 3600 * NSEC_PER_SEC)

struct hold {
    struct lease_holder entry; /* entry.session is held and leased */
    const struct v1 *v1;
    struct manager *manager;
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned */
    struct ws_conn *ws;              /* NULL once closed */
    struct v1_attach *attach;
    struct buf info;
    uint32_t grace;
    unsigned pending; /* answers that are still to come and need us */
    bool asked;       /* for a session */
};

static void hold_free(struct hold *h)
{
    if (h->ws != NULL || h->pending > 0)
        return;
    buf_done(&h->info);
    authz_release(h->scope);
    free(h->who);
    free(h);
}

static void send_text(struct hold *h, struct buf *out, struct jw *w)
{
    jw_object_end(w);
    if (jw_end(w) >= 0 && h->ws != NULL)
        (void)ws_send(h->ws, WS_TEXT, out->data, out->len);
}

/* The connection stays: whoever asked may ask again. */
static void say_error(struct hold *h, const char *about, const struct err *err)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "error");
    jw_kstr(&w, "about", about);
    jw_kstr(&w, "code", err_code_name(err->code));
    jw_kstr(&w, "detail", err->msg);
    jw_kstr(&w, "remediation", front_remedy(err));
    send_text(h, &out, &w);
}

static void say(struct hold *h, const char *type, const char *session)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", type);
    if (session != NULL)
        jw_kstr(&w, "session_id", session);
    send_text(h, &out, &w);
}

/* hold. */

static void let_go(struct hold *h)
{
    v1_attach_free(TAKE_PTR(h->attach));
    if (h->entry.session == NULL)
        return;
    session_lease_drop(h->entry.session);
    session_release(TAKE_PTR(h->entry.session));
}

/* The same holder, on a connection that it has lost sooner than we have. */
static void end_others(struct hold *h)
{
    for (struct lease_holder *e = manager_holder_next(h->manager, NULL), *next; e != NULL;
         e = next) {
        next = manager_holder_next(h->manager, e);
        struct hold *other = container_of(e, struct hold, entry);
        if (other == h || e->session != h->entry.session)
            continue;
        let_go(other);
        if (other->ws != NULL)
            ws_close(other->ws, WS_CODE_POLICY, "somebody else holds the session now");
    }
}

/* Takes what the caller holds of s. */
static void got_session(struct hold *h, struct session *s)
{
    struct err err = {0};
    if (session_lease_take(s, h->grace, &err) < 0) {
        session_release(s);
        say_error(h, "hold", &err);
        return;
    }
    h->entry.session = s;
    end_others(h);
    say(h, "held", session_id(s));
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct hold *h = arg;
    h->pending--;
    h->asked = false;
    if (s == NULL)
        say_error(h, "hold", err);
    else
        got_session(h, s);
    if (h->ws == NULL)
        let_go(h); /* it left while we were at work: the lease begins to run out */
    hold_free(h);
}

static int hold(struct hold *h, const struct json *m, struct err *err)
{
    const struct json *want = json_get(m, "session"), *grace = json_get(m, "grace_sec");
    const struct json *create = json_get(m, "create");
    if (h->entry.session != NULL || h->asked)
        return err_set(err, ERR_STATE, "this connection holds a session already");
    if (json_type(want) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "session must be an object");
    if (grace != NULL &&
        (json_type(grace) != JSON_INT || json_int(grace) < 1 || json_int(grace) > LEASE_SEC_MAX))
        return err_set(err, ERR_INVALID, "grace_sec must be a whole number from 1 to %d",
                       LEASE_SEC_MAX);
    h->grace = grace != NULL ? (uint32_t)json_int(grace) : GRACE_DEFAULT;
    if (create != NULL && !json_bool(create)) {
        const char *id = json_str(json_get(want, "session_id"));
        bool ours = id != NULL && authz_check_session(h->scope, id, NULL) == 0;
        struct session *s = ours ? manager_find(h->manager, id) : NULL;
        if (s == NULL || session_sandbox(s) == NULL)
            return err_missing(err, ERR_THING_SESSION, "session %.80s not found",
                               id != NULL ? id : "(none given)");
        session_hold(s);
        got_session(h, s);
        return 0;
    }
    const struct front_asker asker = {.scope = h->scope, .who = h->who};
    int r = front_session_get(&h->v1->front, &asker,
                              &(struct front_want){.object = want, .id_required = true}, on_ready,
                              h, err);
    if (r < 0)
        return r;
    h->asked = true;
    h->pending++;
    return 0;
}

/* release. */

static void on_gone(void *arg, const struct err *err)
{
    struct hold *h = arg;
    h->pending--;
    if (err != NULL)
        say_error(h, "release", err);
    else
        say(h, "released", NULL);
    hold_free(h);
}

static int release(struct hold *h, const struct json *m, struct err *err)
{
    if (h->entry.session == NULL)
        return err_set(err, ERR_STATE, "this connection holds no session");
    AUTO_FREE char *id = xstrdup(session_id(h->entry.session));
    let_go(h);
    h->pending++;
    int r = manager_delete(h->manager, id, on_gone, h, err);
    if (r == 0)
        return 0;
    h->pending--;
    if (err->code != ERR_NOT_FOUND)
        return r;
    say(h, "released", NULL); /* it has gone by itself, which is as well */
    return 0;
}

/* attach, and what follows. */

static int64_t offset_of(const struct json *m, const char *key)
{
    const struct json *v = json_get(m, key);
    return v == NULL ? 0 : json_type(v) == JSON_INT ? json_int(v) : -1;
}

static int attach(struct hold *h, const struct json *m, struct err *err)
{
    const struct v1_attach_terms terms = {.process_id = json_str(json_get(m, "process_id")),
                                          .from = (uint64_t)offset_of(m, "from"),
                                          .stderr_from = (uint64_t)offset_of(m, "stderr_from"),
                                          .joined_acks = json_bool(json_get(m, "joined_acks"))};
    if (h->entry.session == NULL || session_sandbox(h->entry.session) == NULL)
        return err_set(err, ERR_STATE, "this connection holds no session");
    if (terms.process_id == NULL || offset_of(m, "from") < 0 || offset_of(m, "stderr_from") < 0)
        return err_set(err, ERR_INVALID, "attach wants a process_id, and offsets that are numbers");
    v1_attach_free(TAKE_PTR(h->attach));
    return v1_attach_new(h->entry.session, &terms, h->ws, &h->attach, err);
}

static int detach(struct hold *h, const struct json *m, struct err *err)
{
    v1_attach_free(TAKE_PTR(h->attach));
    return 0;
}

static int received(struct hold *h, const struct json *m, struct err *err)
{
    int64_t upto = offset_of(m, "upto");
    if (h->attach != NULL && upto > 0)
        v1_attach_received(h->attach, (uint64_t)upto);
    return 0;
}

static int stdin_eof(struct hold *h, const struct json *m, struct err *err)
{
    if (h->attach != NULL)
        v1_attach_stdin_eof(h->attach);
    return 0;
}

static int info(struct hold *h, const struct json *m, struct err *err)
{
    const struct json *v = json_get(m, "info");
    struct jw w;
    if (json_type(v) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "info must be an object");
    buf_reset(&h->info);
    h->entry.info = NULL;
    jw_init(&w, &h->info);
    jw_value(&w, v);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "info is larger than %u bytes", INFO_MAX);
    h->entry.info = buf_str(&h->info);
    h->entry.info_len = h->info.len;
    return 0;
}

static const struct {
    const char *type;
    int (*act)(struct hold *h, const struct json *m, struct err *err);
} messages[] = {
    {"hold", hold},         {"release", release},     {"attach", attach}, {"detach", detach},
    {"received", received}, {"stdin_eof", stdin_eof}, {"info", info},
};

static void on_text(struct hold *h, const char *data, size_t len)
{
    AUTO(json) struct json *m = NULL;
    struct err err = {0};
    int r = json_parse(data, len, &m, &err);
    const char *type = json_str(json_get(m, "type"));
    size_t i = 0;
    while (type != NULL && i < ARRAY_SIZE(messages) && !str_eq(type, messages[i].type))
        i++;
    if (r == 0 && (type == NULL || i == ARRAY_SIZE(messages)))
        r = err_set(&err, ERR_INVALID, "a message must be an object of a type that is known");
    if (r == 0)
        r = messages[i].act(h, m, &err);
    if (r < 0)
        say_error(h, type != NULL ? type : "", &err);
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct hold *h = arg;
    if (opcode == WS_TEXT)
        on_text(h, data, len);
    else if (h->attach != NULL && len > 1 && data[0] == 0)
        v1_attach_stdin(h->attach, data + 1, len - 1);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    struct hold *h = arg;
    if (h->attach != NULL)
        v1_attach_writable(h->attach);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct hold *h = arg;
    h->ws = NULL;
    manager_holder_remove(h->manager, &h->entry);
    let_go(h);
    hold_free(h);
}

static void open_hold(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    struct ws_opts opts = {.max_message = MESSAGE_MAX, .stall_ns = STALL_NS};
    struct err err = {0};
    if (!front_may(req, &((const struct v1 *)arg)->front, "process"))
        return;
    struct hold *h = xnew(struct hold);
    if (!http_request_is_unix(req)) { /* whoever dies on this computer is noticed at once */
        opts.ping_ns = PING_NS;
        opts.pong_ns = PONG_NS;
    }
    h->v1 = arg;
    h->manager = h->v1->front.manager;
    h->scope = authz_hold(front_caller(req));
    h->who = xstrdup(front_who(req));
    buf_init(&h->info, INFO_MAX);
    if (http_upgrade_ws(req, &opts, &handlers, h, &h->ws, &err) < 0) {
        hold_free(h);
        return;
    }
    manager_holder_add(h->manager, &h->entry);
}

/* Who holds what. */

static void write_hold(struct jw *w, const struct session *s, const struct lease_holder *e)
{
    char when[40];
    struct err ignored;
    AUTO(json) struct json *told = NULL;
    jw_object(w);
    jw_kstr(w, "session_id", s != NULL ? session_id(s) : NULL);
    jw_kbool(w, "held", e != NULL);
    clock_format(e != NULL ? e->since : session_created(s), when, sizeof(when));
    jw_kstr(w, "since", when);
    if (e != NULL && e->info != NULL && json_parse(e->info, e->info_len, &told, &ignored) == 0) {
        jw_key(w, "info");
        jw_value(w, told);
    }
    jw_object_end(w);
}

/* One that is still being made has no session, and is its holder's business. */
static bool is_visible(const struct authz_scope *scope, const struct session *s)
{
    return authz_sees(scope, NULL, s != NULL ? session_id(s) : NULL);
}

static void list_holds(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->front.manager;
    const struct authz_scope *scope = front_caller(req);
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, LIST_MAX);
    if (!front_may(req, &((const struct v1 *)arg)->front, "process"))
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "holds");
    jw_array(&w);
    for (struct lease_holder *e = manager_holder_next(m, NULL); e != NULL;
         e = manager_holder_next(m, e))
        if (is_visible(scope, e->session))
            write_hold(&w, e->session, e);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        if (session_lease_sec(s) > 0 && !session_lease_held(s) && is_visible(scope, s))
            write_hold(&w, s, NULL);
    jw_array_end(&w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static const struct http_route routes[] = {
    {"GET", "/v1/hold", open_hold, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/holds", list_holds, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_hold_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
