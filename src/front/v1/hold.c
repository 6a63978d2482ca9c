/* SPDX-License-Identifier: Apache-2.0 */

/* A session that belongs to a connection: it ends when the connection has been lost for as long as
 * its lease says. The client can attach to processes in it over the same connection; they are not
 * part of it: a process outlives a connection, and boxd itself. docs/reference/mcp.md has the
 * messages.
 *
 * An attachment goes by byte offsets, for a peer that may outlive boxd. The peer names the offsets
 * where it goes on and says how far it has got; only then is output released. Input is acknowledged
 * once it is in the program's pipe, so that the peer sends again what boxd takes with it when it
 * dies.
 */

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "loop/loop.h"
#include "policy/authz.h"
#include "session/process_reader.h"

#define MESSAGE_MAX (17U << 20) /* the longest line of stdin, and its head */
#define TEXT_MAX (64U << 10)
#define INFO_MAX (64U << 10)
#define LIST_MAX (32U << 20)
#define GRACE_DEFAULT 5
#define PING_NS (30 * NSEC_PER_SEC)
#define PONG_NS (15 * NSEC_PER_SEC)
/* A reader may be busy for as long as it likes: it sees no more than the ring holds. */
#define STALL_NS (24ULL * 3600 * NSEC_PER_SEC)

#define STDERR_SIZE (16U << 10)
/* No event reports stderr or room in a pipe that was full, so we look: soon at first, then less
 * often. A flood of stderr costs no more than one look each time. */
#define LOOK_FIRST_NS (16 * NSEC_PER_MSEC)
#define LOOK_LAST_NS (512 * NSEC_PER_MSEC)
/* An acknowledgement wakes the peer, which is about to wait for the answer. So it is sent together
 * with the answer, unless that takes longer than this. */
#define ACK_FIRST_NS (1 * NSEC_PER_MSEC)
#define ACK_BYTES (256U << 10)
#define ACK_SIZE 8U /* of the number in front of output */
#define ACK_LAST_NS (64 * NSEC_PER_MSEC)
#define REST_NS (500 * NSEC_PER_MSEC) /* for output that is on its way when a process has ended */

/* One managed process on the connection ------------------------------------------------------- */

enum { CHANNEL_STDOUT = 1, CHANNEL_STDERR = 2, CHANNEL_STDOUT_ACK = 3 };

struct attachment {
    struct ws_conn *ws; /* borrowed */
    char *process_id;   /* owned */
    struct loop *loop;
    struct process_reader reader;
    uint64_t err_at;       /* next byte of stderr that the peer wants */
    uint64_t given, acked; /* bytes of stdin */
    struct loop_timer ack, rest;
    uint64_t look_ns, ack_ns;
    bool joined_acks; /* the peer takes an acknowledgement in front of output */
    bool rested;      /* no more output is waited for */
    bool ended;       /* everything has been said */
};

static struct attachment *attachment_of(const struct process_reader *r)
{
    return container_of(r, struct attachment, reader);
}

static void say_number(struct attachment *a, const char *type, const char *key, uint64_t n)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", type);
    jw_ku64(w, key, n);
    front_send(&out, a->ws);
}

static void attachment_end(struct attachment *a)
{
    a->ended = true;
    loop_timer_stop(&a->ack);
    loop_timer_stop(&a->rest);
}

/* p NULL: the process was stopped or replaced, and is forgotten. */
static void say_exit(struct attachment *a, struct process *p)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "exit");
    jw_kstr(w, "process_id", a->process_id);
    jw_kbool(w, "known", p != NULL);
    if (p != NULL) {
        jw_kint(w, "exit_code", process_exit_code(p));
        front_write_stderr(w, p);
    }
    front_send(&out, a->ws);
    attachment_end(a);
}

/* stderr. */

/* Whether there was any. */
static bool pump_err(struct attachment *a, struct process *p)
{
    static char frame[1 + STDERR_SIZE];
    uint64_t before = a->err_at;
    if (ws_full(a->ws))
        return false;
    size_t n = process_stderr_from(p, &a->err_at, frame + 1, STDERR_SIZE);
    if (n == 0)
        return false;
    uint64_t lost = a->err_at - before - n;
    if (lost > 0)
        say_number(a, "stderr_lost", "bytes", lost);
    frame[0] = CHANNEL_STDERR;
    (void)ws_send(a->ws, WS_BINARY, frame, n + 1);
    return true;
}

static void on_look(struct process_reader *r)
{
    struct attachment *a = attachment_of(r);
    if (a->ended)
        return;
    a->look_ns = pump_err(a, r->process) ? LOOK_FIRST_NS : a->look_ns * 2;
    if (a->look_ns > LOOK_LAST_NS)
        a->look_ns = LOOK_LAST_NS;
    process_reader_wait(r, a->look_ns);
}

/* stdout. */

static uint64_t stdin_written(struct attachment *a);

static bool takes_more(const struct process_reader *r)
{
    return !ws_full(attachment_of(r)->ws);
}

/* Output in one message with an acknowledgement that is due: a second one would wake the peer twice
 * for each line. */
static size_t send_out(struct process_reader *r, char *data, size_t len, bool last)
{
    struct attachment *a = attachment_of(r);
    char *head = data - 1;
    static_assert(ACK_SIZE + 1 <= READER_ROOM, "a frame begins with its channel and a number");
    head[0] = CHANNEL_STDOUT;
    if (a->joined_acks && a->given > a->acked && stdin_written(a) > a->acked) {
        head = data - ACK_SIZE - 1;
        head[0] = CHANNEL_STDOUT_ACK;
        a->acked = stdin_written(a);
        for (unsigned i = 0; i < ACK_SIZE; i++)
            head[1 + i] = (char)(a->acked >> (8 * (ACK_SIZE - 1 - i)));
    }
    return ws_send(a->ws, WS_BINARY, head, (size_t)(data - head) + len) < 0 ? 0 : len;
}

static void attachment_pump(struct attachment *a);

static void on_rest(struct loop_timer *t)
{
    struct attachment *a = container_of(t, struct attachment, rest);
    a->rested = true;
    attachment_pump(a);
}

static void attachment_pump(struct attachment *a)
{
    struct process *p = a->reader.process;
    if (a->ended || p == NULL)
        return;
    enum reader_pumped got = process_reader_pump(&a->reader);
    if (got == READER_HELD || process_running(p))
        return;
    if (got != READER_END && !a->rested) {
        /* A child in the background may keep stdout open for ever. */
        if (a->rest.loop == NULL)
            loop_timer_start(a->loop, &a->rest, REST_NS, on_rest);
        return;
    }
    while (pump_err(a, p))
        continue;
    say_exit(a, p);
}

static void on_process_output(struct process_reader *r)
{
    attachment_pump(attachment_of(r));
}

static void on_process_ended(struct process_reader *r)
{
    struct attachment *a = attachment_of(r);
    if (!a->ended)
        say_exit(a, NULL);
}

/* stdin. */

static void on_ack(struct loop_timer *t);

/* Bytes of the peer's input that are in the program's pipe. */
static uint64_t stdin_written(struct attachment *a)
{
    size_t waits = process_reader_unwritten(&a->reader);
    return waits < a->given ? a->given - waits : 0;
}

static void stdin_acknowledge(struct attachment *a)
{
    uint64_t bytes = stdin_written(a);
    if (bytes > a->acked) {
        a->acked = bytes;
        a->ack_ns = ACK_FIRST_NS;
        say_number(a, "stdin_ack", "bytes", bytes);
    }
    if (a->acked == a->given || a->ended)
        return;
    loop_timer_start(a->loop, &a->ack, a->ack_ns, on_ack);
    a->ack_ns = a->ack_ns < ACK_LAST_NS ? a->ack_ns * 2 : ACK_LAST_NS;
}

static void on_ack(struct loop_timer *t)
{
    stdin_acknowledge(container_of(t, struct attachment, ack));
}

static void attachment_stdin(struct attachment *a, const char *data, size_t len)
{
    if (a->ended || a->reader.state != READER_ACTIVE)
        return; /* the peer learns of the end, or knows that no program reads */
    int r = process_reader_write(&a->reader, data, len);
    if (r == -ENOBUFS) {
        ws_close(a->ws, WS_CODE_TOO_BIG, "stdin arrives faster than the program reads");
        return;
    }
    a->given += len;
    if (r < 0)
        a->acked = a->given; /* no program reads it; the peer is about to learn of the end */
    else if (a->given - a->acked > ACK_BYTES)
        stdin_acknowledge(a);
    else if (a->ack.loop == NULL)
        loop_timer_start(a->loop, &a->ack, ACK_FIRST_NS, on_ack);
}

/* Coming and going. */

static void say_attached(struct attachment *a, bool running)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "attached");
    jw_ku64(w, "from", a->reader.at);
    jw_kbool(w, "running", running);
    front_send(&out, a->ws);
}

static void on_active(struct process_reader *r)
{
    struct attachment *a = attachment_of(r);
    if (a->ended)
        return;
    say_attached(a, true);
    a->look_ns = LOOK_FIRST_NS;
    process_reader_wait(r, a->look_ns);
    attachment_pump(a);
}

/* Output ends later than the right to write, so the reader stays when its turn is over. */
static const struct process_reader_events attach_events = {.output = on_process_output,
                                                           .due = on_look,
                                                           .active = on_active,
                                                           .ended = on_process_ended,
                                                           .stays = true,
                                                           .ready = takes_more,
                                                           .take = send_out};

static void attachment_free(struct attachment *a)
{
    if (a == NULL)
        return;
    attachment_end(a);
    process_reader_stop(&a->reader);
    free(a->process_id);
    free(a);
}

/* The connection ----------------------------------------------------------------------------- */

struct hold {
    struct lease_holder entry; /* entry.session is held and leased */
    const struct v1 *v1;
    struct manager *manager;
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned */
    struct ws_conn *ws;              /* NULL once closed */
    struct attachment *attach;
    struct buf info;
    uint32_t grace;
    unsigned pending; /* answers that are still to come and need us */
    bool asked;       /* for a session */
};

static void hold_free(struct hold *h)
{
    if (h->ws != NULL || h->pending > 0)
        return;
    assert(h->entry.session == NULL && h->attach == NULL); /* hold_let_go() was called */
    buf_done(&h->info);
    authz_release(h->scope);
    free(h->who);
    free(h);
}

/* The connection stays: the client may ask again. */
static void say_error(struct hold *h, const char *about, const struct err *err)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "error");
    jw_kstr(w, "about", about);
    front_write_problem(w, err);
    front_send(&out, h->ws);
}

static void say_state(struct hold *h, const char *type, const char *session)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", type);
    if (session != NULL)
        jw_kstr(w, "session_id", session);
    front_send(&out, h->ws);
}

static void say_held(struct hold *h, struct session *s)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "held");
    jw_kstr(w, "session_id", session_id(s));
    front_write_unenforced(w, s);
    front_send(&out, h->ws);
}

/* hold. */

static void hold_let_go(struct hold *h)
{
    attachment_free(TAKE_PTR(h->attach));
    if (h->entry.session == NULL)
        return;
    session_lease_drop(h->entry.session);
    session_release(TAKE_PTR(h->entry.session));
}

/* The same client on an earlier connection, which is lost without boxd knowing yet. */
static void end_others(struct hold *h)
{
    for (struct lease_holder *e = manager_holder_next(h->manager, NULL), *next; e != NULL;
         e = next) {
        next = manager_holder_next(h->manager, e);
        struct hold *other = container_of(e, struct hold, entry);
        if (other == h || e->session != h->entry.session)
            continue;
        hold_let_go(other);
        if (other->ws != NULL)
            ws_close(other->ws, WS_CODE_POLICY, "another connection holds the session now");
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
    say_held(h, s);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct hold *h = arg;
    assert(h->asked && h->pending > 0);
    h->pending--;
    h->asked = false;
    if (s == NULL)
        say_error(h, "hold", err);
    else
        got_session(h, s);
    if (h->ws == NULL)
        hold_let_go(h); /* the client left meanwhile: the lease begins to run out */
    hold_free(h);
}

static int on_hold(struct hold *h, const struct json *m, struct err *err)
{
    const struct json *want = json_get(m, "session"), *grace = json_get(m, "grace_sec");
    const struct json *create = json_get(m, "create");
    const struct front_asker asker = {.scope = h->scope, .who = h->who};
    int r;

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
        struct session *s = NULL;
        r = front_session_find(&h->v1->front, &asker, json_str(json_get(want, "session_id")), &s,
                               err);
        if (r == 0 && session_dormant(s))
            r = err_set(err, ERR_STATE, "session %.80s is stopped; start it first", session_id(s));
        if (r < 0)
            return r;
        session_hold(s);
        got_session(h, s);
        return 0;
    }
    r = front_session_get(&h->v1->front, &asker,
                          &(struct front_want){.object = want, .id_required = true, .exact = true},
                          on_ready, h, err);
    if (r < 0)
        return r;
    h->asked = true;
    h->pending++;
    return 0;
}

/* release. */

static void on_released(void *arg, const struct err *err)
{
    struct hold *h = arg;
    h->pending--;
    if (err != NULL)
        say_error(h, "release", err);
    else
        say_state(h, "released", NULL);
    hold_free(h);
}

static int on_release(struct hold *h, const struct json *m, struct err *err)
{
    if (h->entry.session == NULL)
        return err_set(err, ERR_STATE, "this connection holds no session");
    int r = authz_check_tool(h->scope, "session", err); /* to hold it took less */
    if (r < 0)
        return r;
    struct session *s = h->entry.session;
    session_hold(s);
    hold_let_go(h);
    h->pending++;
    r = manager_expel(h->manager, s, on_released, h, err); /* one that is kept is stopped */
    session_release(s);
    if (r == 0)
        return 0;
    h->pending--;
    if (err->code != ERR_NOT_FOUND)
        return r;
    say_state(h, "released", NULL); /* it has ended by itself, which is fine */
    return 0;
}

/* attach, and what follows. */

static int64_t offset_of(const struct json *m, const char *key)
{
    const struct json *v = json_get(m, key);
    return v == NULL ? 0 : json_type(v) == JSON_INT ? json_int(v) : -1;
}

static int on_attach(struct hold *h, const struct json *m, struct err *err)
{
    const char *id = json_str(json_get(m, "process_id"));
    int64_t from = offset_of(m, "from"), err_from = offset_of(m, "stderr_from");
    struct session *s = h->entry.session;
    if (s == NULL || session_sandbox(s) == NULL)
        return err_set(err, ERR_STATE, "this connection holds no session");
    if (id == NULL || from < 0 || err_from < 0)
        return err_set(err, ERR_INVALID, "attach wants a process_id, and offsets that are numbers");
    attachment_free(TAKE_PTR(h->attach));
    struct process *p = process_find(s, id);
    if (p == NULL)
        return err_missing(err, ERR_THING_PROCESS, "session %.80s has no process %.80s",
                           session_id(s), id);
    int r = process_check_plain(p, err);
    if (r < 0)
        return r;
    struct proc_range range = process_range(p);
    if ((uint64_t)from < range.begin || (uint64_t)from > range.end)
        return err_set(err, ERR_INVALID, "offset %llu is outside of what is kept, %llu to %llu",
                       (unsigned long long)from, (unsigned long long)range.begin,
                       (unsigned long long)range.end);
    struct attachment *a = xnew(struct attachment);
    a->ws = h->ws;
    a->process_id = xstrdup(id);
    a->loop = manager_loop(h->manager);
    a->reader.at = (uint64_t)from;
    a->err_at = (uint64_t)err_from;
    a->joined_acks = json_bool(json_get(m, "joined_acks"));
    a->ack_ns = ACK_FIRST_NS;
    h->attach = a;
    process_reader_start(&a->reader, p, &attach_events);
    if (process_reader_claim(&a->reader, err) < 0) {
        say_attached(a, false);
        attachment_pump(a);
    }
    return 0;
}

static int on_detach(struct hold *h, const struct json *m, struct err *err)
{
    attachment_free(TAKE_PTR(h->attach));
    return 0;
}

static int on_received(struct hold *h, const struct json *m, struct err *err)
{
    int64_t upto = offset_of(m, "upto");
    struct attachment *a = h->attach;
    if (a != NULL && !a->ended && upto > 0 && (uint64_t)upto <= a->reader.at)
        process_reader_release(&a->reader, (uint64_t)upto);
    return 0;
}

static int on_stdin_eof(struct hold *h, const struct json *m, struct err *err)
{
    struct attachment *a = h->attach;
    if (a != NULL && !a->ended && a->reader.state == READER_ACTIVE)
        process_reader_close_stdin(&a->reader);
    return 0;
}

static int on_info(struct hold *h, const struct json *m, struct err *err)
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
    {"hold", on_hold},     {"release", on_release},   {"attach", on_attach},
    {"detach", on_detach}, {"received", on_received}, {"stdin_eof", on_stdin_eof},
    {"info", on_info},
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
        attachment_stdin(h->attach, data + 1, len - 1);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    struct hold *h = arg;
    if (h->attach != NULL)
        attachment_pump(h->attach);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct hold *h = arg;
    h->ws = NULL;
    manager_holder_remove(h->manager, &h->entry);
    hold_let_go(h);
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
    if (!http_request_is_unix(req)) { /* the end of a local client is noticed at once */
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

/* The list of holds --------------------------------------------------------------------------- */

static void write_hold(struct jw *w, const struct session *s, const struct lease_holder *e)
{
    jw_object(w);
    jw_kstr(w, "session_id", s != NULL ? session_id(s) : NULL);
    jw_kbool(w, "held", e != NULL);
    front_write_time(w, "since", e != NULL ? e->since : session_created(s));
    if (e != NULL && e->info != NULL)
        jw_kraw(w, "info", e->info, e->info_len); /* as on_info() wrote it */
    jw_object_end(w);
}

/* A hold whose session is still being made is not listed. */
static bool is_visible(const struct authz_scope *scope, const struct session *s)
{
    return authz_sees(scope, NULL, s != NULL ? session_id(s) : NULL);
}

static void list_holds(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->front.manager;
    const struct authz_scope *scope = front_caller(req);
    if (!front_may(req, &((const struct v1 *)arg)->front, "process"))
        return;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    jw_karray(w, "holds");
    for (struct lease_holder *e = manager_holder_next(m, NULL); e != NULL;
         e = manager_holder_next(m, e))
        if (is_visible(scope, e->session))
            write_hold(w, e->session, e);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        if (session_lease_sec(s) > 0 && !session_lease_held(s) && is_visible(scope, s))
            write_hold(w, s, NULL);
    jw_array_end(w);
    front_reply(&out, req, 200);
}

const struct http_route v1_hold_routes[] = {
    {"GET", "/v1/hold", open_hold, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/holds", list_holds, HTTP_ROUTE_SCOPED, 0},
    {0},
};
