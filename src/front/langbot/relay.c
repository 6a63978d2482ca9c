/* SPDX-License-Identifier: Apache-2.0 */

/* The relay: stdin and stdout of a managed process over a WebSocket, a message for each line. The
 * process outlives its reader, and boxd's reader may outlive boxd: a line counts as delivered, and
 * is released, when the kernel at the other end has it. The next reader goes on behind it. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/server/server.h"
#include "session/manager.h"
#include "session/process.h"
#include "session/process_reader.h"
#include "spec/process.h"

#define WORKSPACE_MAX 256
#define PENDING_MAX                                                                                \
    (1U << 20)        /* bytes of input that wait before nothing more is read from the peer */
#define MARKS_MAX 256 /* lines on their way that are tracked one by one */
#define LINE_HOLD (128U * 1024) /* bytes of one line that are never released before its end */
#define STUCK_NS (50 * NSEC_PER_MSEC)
#define POLL_FIRST_NS (1 * NSEC_PER_MSEC)
#define POLL_LAST_NS (256 * NSEC_PER_MSEC)
#define PING_NS (30 * NSEC_PER_SEC)
#define PONG_NS (15 * NSEC_PER_SEC)
/* A reader may be busy for as long as it likes; that it is gone is found out by pings. */
#define STALL_NS (24 * 3600 * NSEC_PER_SEC)

/* Lines of the output. */

#define PART_KEPT 16384U /* bytes of memory that a line leaves behind for the next */

/* `line`: the message ends a line (or is the rest before the end). False: no more for now. */
typedef bool line_fn(void *arg, const char *text, size_t len, bool line);

/* One character, or what stands for the bytes that are none. Splits the line when there is no room.
 */
static bool put_char(struct buf *part, const char *text, size_t len, line_fn *emit, void *arg)
{
    bool more = true;
    if (part->len + len > LANGBOT_MESSAGE_MAX) {
        more = emit(arg, part->data, part->len, false);
        buf_reset(part);
    }
    (void)buf_append(part, text, len);
    return more;
}

/* Appends s as valid UTF-8; returns how much of it was used. */
static size_t add_to_line(struct buf *part, const char *s, size_t len, line_fn *emit, void *arg)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t used = 0;
    if (part->len + len <= LANGBOT_MESSAGE_MAX && utf8_valid(s, len)) {
        (void)buf_append(part, s, len);
        return len;
    }
    while (used < len) {
        bool incomplete = false, more;
        int n = utf8_next(s + used, len - used, &incomplete);
        if (n > 0)
            more = put_char(part, s + used, (size_t)n, emit, arg);
        else
            more = put_char(part, replacement, sizeof(replacement) - 1, emit, arg);
        used += (size_t)(n > 0 ? n : -n);
        if (!more)
            break;
    }
    return used;
}

static bool end_line(struct buf *part, line_fn *emit, void *arg)
{
    bool more = emit(arg, buf_str(part), part->len, true);
    if (part->cap > PART_KEPT)
        buf_done(part);
    else
        buf_reset(part);
    return more;
}

/* The output of a process as messages: one for each line, without its end; what is not UTF-8
 * becomes U+FFFD. A line that is too long for a message is split. `part` holds the beginning of a
 * line that came in pieces, as it will be sent; its maximum is LANGBOT_MESSAGE_MAX.
 *
 * Returns how much of the data was used: all but a character that is cut off at its end, and what
 * follows the message at which `emit` wanted no more. `eof`: nothing follows. */
static size_t lines_feed(struct buf *part, const char *data, size_t len, bool eof, line_fn *emit,
                         void *arg)
{
    size_t used = 0;
    while (used < len) {
        const char *end = memchr(data + used, '\n', len - used);
        size_t n = end != NULL ? (size_t)(end - data) - used
                   : eof       ? len - used
                               : utf8_boundary(data + used, len - used);
        bool more;
        if (end != NULL && part->len == 0 && utf8_valid(data + used, n)) {
            more = emit(arg, data + used, n, true);
            used += n + 1;
        } else {
            size_t done = n > 0 ? add_to_line(part, data + used, n, emit, arg) : 0;
            used += done;
            if (done < n || end == NULL)
                break;
            more = end_line(part, emit, arg);
            used++;
        }
        if (!more)
            return used;
    }
    if (eof && used == len && part->len > 0)
        (void)end_line(part, emit, arg);
    return used;
}

/* The relay. */

struct relay_input {
    STAILQ_ENTRY(relay_input) entry;
    size_t len;
    char data[]; /* with its newline */
};

/* Everything up to `offset` of the output has been delivered once `position` of the connection has.
 */
struct mark {
    uint64_t position, offset;
};

/*   LINES ◄──► LONG_LINE
 *     └─────────┴──► CLOSING ──► (freed) */
enum relay_state {
    RELAY_LINES,     /* whole lines are released */
    RELAY_LONG_LINE, /* part of the current line has been released */
    RELAY_CLOSING,   /* nothing is handed on any more */
    RELAY_STATE_MAX,
};

#define TO(state) (1U << RELAY_##state)
static const unsigned relay_moves[RELAY_STATE_MAX] = {
    [RELAY_LINES] = TO(LINES) | TO(LONG_LINE) | TO(CLOSING),
    [RELAY_LONG_LINE] = TO(LINES) | TO(LONG_LINE) | TO(CLOSING),
    [RELAY_CLOSING] = TO(CLOSING),
};

struct langbot_relay {
    struct langbot *rpc;
    LIST_ENTRY(langbot_relay) entry;
    enum relay_state state;
    struct ws_conn *ws;
    struct process_reader reader;
    struct buf part;   /* of a line, for lines_feed() */
    uint64_t released; /* bytes before this are not kept any more */
    struct mark marks[MARKS_MAX];
    size_t n_marks;
    STAILQ_HEAD(, relay_input) input; /* owned */
    size_t input_bytes;
    struct loop_timer poll;
    uint64_t poll_ns;
    struct loop_timer stuck;
    char ns[NS_SIZE]; /* "" for a client of the first release */
    int64_t generation;
    bool blocked;  /* stdin takes no more for now */
    bool paused;   /* nothing more is read from the peer for now */
    bool by_token; /* a token let it in, which may change */
};

static struct relay_input *take_input(struct langbot_relay *r)
{
    struct relay_input *i = STAILQ_FIRST(&r->input);
    assert(r->input_bytes >= i->len);
    STAILQ_REMOVE_HEAD(&r->input, entry);
    r->input_bytes -= i->len;
    return i;
}

static struct langbot_relay *relay_of(const struct process_reader *reader)
{
    return container_of(reader, struct langbot_relay, reader);
}

static void relay_free(struct langbot_relay *r)
{
    LIST_REMOVE(r, entry);
    loop_timer_stop(&r->poll);
    loop_timer_stop(&r->stuck);
    while (!STAILQ_EMPTY(&r->input))
        free(take_input(r));
    process_reader_stop(&r->reader);
    buf_done(&r->part);
    free(r);
}

static void close_relay(struct langbot_relay *r, unsigned code, const char *reason)
{
    STATE_MOVE(r->state, relay_moves, RELAY_CLOSING);
    ws_close(r->ws, code, reason);
}

static void end_relay(struct langbot_relay *r)
{
    close_relay(r, WS_CODE_NORMAL, NULL);
}

void langbot_relays_close(struct langbot *rpc, const char *ns, int64_t generation)
{
    struct langbot_relay *r;
    LIST_FOREACH (r, &rpc->relays, entry)
        if (str_eq(r->ns, ns) && r->generation != generation)
            end_relay(r);
}

void langbot_relays_outdated(struct langbot *rpc)
{
    struct langbot_relay *r;
    LIST_FOREACH (r, &rpc->relays, entry)
        if (r->by_token && r->state != RELAY_CLOSING)
            close_relay(r, WS_CODE_POLICY, "the token has changed");
}

/* What the peer has. */

static void release_output(struct langbot_relay *r, uint64_t upto)
{
    if (upto <= r->released || r->reader.state != READER_ACTIVE)
        return;
    process_reader_release(&r->reader, upto);
    r->released = upto;
}

/* Whether anything was. */
static bool release_acked(struct langbot_relay *r)
{
    uint64_t acked = r->n_marks > 0 ? ws_acked(r->ws) : 0;
    size_t n = 0;
    while (n < r->n_marks && r->marks[n].position <= acked)
        n++;
    if (n == 0)
        return false;
    release_output(r, r->marks[n - 1].offset);
    r->n_marks -= n;
    memmove(r->marks, r->marks + n, r->n_marks * sizeof(r->marks[0]));
    return true;
}

/* No event reports acknowledged bytes, so we look: soon at first, then less often. */
static void on_poll(struct loop_timer *t)
{
    struct langbot_relay *r = container_of(t, struct langbot_relay, poll);
    bool some = release_acked(r);
    r->poll_ns = some ? POLL_FIRST_NS : r->poll_ns * 2;
    if (r->poll_ns > POLL_LAST_NS)
        r->poll_ns = POLL_LAST_NS;
    if (r->n_marks > 0 && r->state != RELAY_CLOSING)
        loop_timer_start(r->rpc->loop, t, r->poll_ns, on_poll);
}

static void add_mark(struct langbot_relay *r, uint64_t offset)
{
    struct mark *m = &r->marks[r->n_marks < MARKS_MAX ? r->n_marks++ : MARKS_MAX - 1];
    *m = (struct mark){ws_written(r->ws), offset};
    if (r->poll.loop == NULL) {
        r->poll_ns = POLL_FIRST_NS;
        loop_timer_start(r->rpc->loop, &r->poll, r->poll_ns, on_poll);
    }
}

/* From the process to the peer. */

static bool send_line(void *arg, const char *text, size_t len, bool line)
{
    struct langbot_relay *r = arg;
    if (ws_send(r->ws, WS_TEXT, text, len) < 0) {
        end_relay(r); /* the queue has room for any one message: the peer is on its way out */
        return false;
    }
    return !ws_full(r->ws);
}

/* A process that writes a longer line than its buffer holds waits for us, and we for its end. Then
 * the part that we have is released early: it is in our memory only, and in no other case. */
static void on_stuck(struct loop_timer *t)
{
    struct langbot_relay *r = container_of(t, struct langbot_relay, stuck);
    if (r->state == RELAY_CLOSING)
        return; /* the next reader gets the line from its beginning */
    STATE_MOVE(r->state, relay_moves, RELAY_LONG_LINE);
    if (r->n_marks == 0)
        release_output(r, r->reader.at);
}

static bool takes_more(const struct process_reader *reader)
{
    const struct langbot_relay *r = relay_of(reader);
    return r->state != RELAY_CLOSING && reader->state == READER_ACTIVE && !ws_full(r->ws);
}

/* Hands on what came between two offsets, and notes where the last whole line of it ends. */
static size_t hand_on(struct process_reader *reader, char *data, size_t len, bool last)
{
    struct langbot_relay *r = relay_of(reader);
    size_t used = lines_feed(&r->part, data, len, last, send_line, r);
    const char *end = used > 0 ? memrchr(data, '\n', used) : NULL;
    /* When the peer has left in the middle, the next reader gets all of this again. */
    if (end != NULL && r->state != RELAY_CLOSING) {
        STATE_MOVE(r->state, relay_moves, RELAY_LINES);
        add_mark(r, reader->at + (uint64_t)(end - data) + 1);
    }
    return used;
}

static void watch_for_stuck(struct langbot_relay *r)
{
    if (r->n_marks > 0 || r->reader.at - r->released < LINE_HOLD)
        return;
    if (r->state == RELAY_LONG_LINE)
        release_output(r, r->reader.at);
    else
        loop_timer_start(r->rpc->loop, &r->stuck, STUCK_NS, on_stuck);
}

static void finish_output(struct langbot_relay *r)
{
    (void)lines_feed(&r->part, "", 0, true, send_line, r);
    if (r->state != RELAY_CLOSING)
        add_mark(r, r->reader.at);
    end_relay(r);
}

static void pump_out(struct langbot_relay *r)
{
    loop_timer_stop(&r->stuck);
    (void)release_acked(r);
    enum reader_pumped got = process_reader_pump(&r->reader);
    if (got == READER_END)
        finish_output(r);
    else if (got == READER_LOST)
        end_relay(r);
    if (r->state != RELAY_CLOSING)
        watch_for_stuck(r);
}

/* From the peer to the process. */

static void pump_in(struct langbot_relay *r)
{
    while (!STAILQ_EMPTY(&r->input) && !r->blocked && r->reader.state == READER_ACTIVE) {
        const struct relay_input *i = STAILQ_FIRST(&r->input);
        int e = process_reader_write(&r->reader, i->data, i->len);
        r->blocked = e == 1 || e == -ENOBUFS;
        if (e == -ENOBUFS)
            break; /* not taken; its turn comes again */
        free(take_input(r));
    }
    /* Pings are answered while input waits here; only a peer that sends far ahead is held back. */
    bool pause = r->input_bytes > PENDING_MAX;
    if (pause != r->paused)
        ws_pause(r->ws, pause);
    r->paused = pause;
}

static void on_input(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                     void *arg)
{
    struct langbot_relay *r = arg;
    if (opcode != WS_TEXT || r->state == RELAY_CLOSING)
        return;
    struct relay_input *i = calloc(1, sizeof(*i) + len + 1); /* the peer sizes it */
    if (i == NULL) {
        close_relay(r, WS_CODE_TOO_BIG, "out of memory for this message");
        return;
    }
    i->len = len + 1;
    if (len > 0)
        memcpy(i->data, data, len);
    i->data[len] = '\n';
    STAILQ_INSERT_TAIL(&r->input, i, entry);
    r->input_bytes += i->len;
    pump_in(r);
}

static void on_peer_ready(struct ws_conn *ws, void *arg)
{
    pump_out(arg);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct langbot_relay *r = arg;
    (void)release_acked(r);
    relay_free(r);
}

static void on_active(struct process_reader *reader)
{
    struct langbot_relay *r = relay_of(reader);
    reader->at = r->released = process_range(reader->process).begin;
    pump_out(r);
    if (r->state != RELAY_CLOSING)
        pump_in(r);
}

static void on_output(struct process_reader *reader)
{
    pump_out(relay_of(reader));
}

static void on_drained(struct process_reader *reader)
{
    struct langbot_relay *r = relay_of(reader);
    r->blocked = false;
    if (r->state != RELAY_CLOSING)
        pump_in(r);
}

static void on_ended(struct process_reader *reader)
{
    end_relay(relay_of(reader));
}

/* Coming in. */

/* A request that waits for its answer. */
struct knock {
    struct langbot *rpc;
    struct http_request *req;
    char ns[NS_SIZE], prefix[TENANT_PREFIX_SIZE];
    int64_t generation;
    struct langbot_guest guest; /* without its instance */
};

static void refuse_knock(struct knock *k, enum langbot_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse_knock(struct knock *k, enum langbot_class class, const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(32768);
    AUTO_DONE(buf) struct buf text = BUF_INIT(16384);
    struct jw w = JW_INIT(&out);
    va_list ap;
    va_start(ap, fmt);
    (void)buf_vprintf(&text, fmt, ap);
    va_end(ap);
    jw_object(&w);
    jw_kobject(&w, "error");
    jw_kstr(&w, "code", langbot_class_name(class));
    jw_kstr(&w, "message", buf_str(&text));
    jw_object_end(&w);
    jw_object_end(&w);
    http_reply(k->req, 400, "application/json; charset=utf-8", out.data, out.len);
}

static void open_relay(struct knock *k, struct process *p)
{
    static const struct ws_handlers handlers = {
        .message = on_input, .writable = on_peer_ready, .closed = on_closed};
    static const struct process_reader_events events = {.output = on_output,
                                                        .active = on_active,
                                                        .drained = on_drained,
                                                        .ended = on_ended,
                                                        .ready = takes_more,
                                                        .take = hand_on};
    const struct ws_opts opts = {.max_message = LANGBOT_MESSAGE_MAX,
                                 .ping_ns = PING_NS,
                                 .pong_ns = PONG_NS,
                                 .stall_ns = STALL_NS,
                                 .protocol = "mcp"};
    struct err err = {0};
    struct langbot_relay *r = xnew(struct langbot_relay);
    r->by_token = k->rpc->o.token != NULL && !http_request_is_unix(k->req);
    if (http_upgrade_ws(k->req, &opts, &handlers, r, &r->ws, &err) < 0) {
        free(r);
        return;
    }
    r->rpc = k->rpc;
    r->generation = k->generation;
    STAILQ_INIT(&r->input);
    (void)str_copy(r->ns, sizeof(r->ns), k->ns);
    buf_init(&r->part, LANGBOT_MESSAGE_MAX);
    LIST_INSERT_HEAD(&r->rpc->relays, r, entry);
    process_reader_start(&r->reader, p, &events);
    if (process_reader_claim(&r->reader, &err) < 0) {
        log_warn(NULL, "attach: %s", err.msg);
        close_relay(r, WS_CODE_NORMAL, "managed process stdio unavailable");
    }
}

static void enter_relay(struct knock *k)
{
    const char *session = http_request_param(k->req, "session");
    const char *process = http_request_param(k->req, "process");
    struct err err = {0};
    if (process == NULL)
        process = PROCESS_DEFAULT_ID;
    bool own = k->ns[0] != '\0' ? str_starts(session, k->prefix) && !str_eq(session, k->prefix)
                                : !tenant_name_is_physical(session);
    if (!own) {
        log_warn(NULL, "%s has asked for a session of another workspace", k->ns);
        langbot_refuse(k->req, 401);
        return;
    }
    struct session *s = manager_find(k->rpc->o.manager, session);
    struct process *p = s != NULL ? process_find(s, process) : NULL;
    if (p != NULL && process_check_plain(p, NULL) < 0)
        p = NULL; /* a detached command has no bytes for a relay */
    if (s == NULL || session_sandbox(s) == NULL)
        refuse_knock(k, LANGBOT_SESSION_NOT_FOUND, "session %s not found", session);
    else if (k->guest.bound && policy_check_user(session_spec(s), k->guest.uid, &err) < 0)
        refuse_knock(k, LANGBOT_VALIDATION, "%s", err.msg);
    else if (p == NULL)
        refuse_knock(k, LANGBOT_PROCESS_NOT_FOUND,
                     "session %s has no managed process with process_id=%s", session, process);
    else if (!process_running(p))
        refuse_knock(k, LANGBOT_PROCESS_CONFLICT, "managed process %s in session %s is not running",
                     process, session);
    else
        open_relay(k, p);
}

static void on_readiness(void *arg, const struct readiness_report *report)
{
    AUTO_FREE struct knock *k = arg;
    struct admission_limits grant;
    struct err err = {0};
    char failed[320];
    if (!report->ready) {
        readiness_failed(report, false, failed, sizeof(failed));
        refuse_knock(k, LANGBOT_READINESS,
                     "Managed sandbox isolation is not ready (failed checks: %s)", failed);
    } else if (admission_check(k->rpc->admission, k->ns, k->generation, langbot_now_us(k->rpc),
                               &grant, &err) < 0) {
        refuse_knock(k, LANGBOT_ADMISSION, "%s", err.msg);
    } else if (grant.max_managed_processes <= 0) {
        refuse_knock(k, LANGBOT_ADMISSION,
                     "Sandbox admission grant does not permit managed process relay");
    } else {
        enter_relay(k);
    }
}

/* The workspace that the client acts for, and its generation, which must be the current one and is
 * a number in its one spelling. */
static bool read_placement(struct knock *k, const char *instance)
{
    AUTO_FREE char *workspace = langbot_header(k->req, "X-LangBot-Workspace-Id");
    AUTO_FREE char *generation = langbot_header(k->req, "X-LangBot-Placement-Generation");
    if (workspace == NULL || generation == NULL || workspace[0] == '\0' ||
        strlen(workspace) > WORKSPACE_MAX || generation[0] == '0' ||
        str_to_i64(generation, &k->generation) < 0 || k->generation < 1)
        return false;
    tenant_ns(instance, workspace, k->ns);
    tenant_prefix(k->ns, k->generation, k->prefix);
    return fence_current(k->rpc->fence, k->ns) == k->generation;
}

void langbot_relay_open(struct http_request *req, void *arg)
{
    AUTO_FREE struct knock *k = xnew(struct knock);
    struct langbot *r = arg;
    bool enforced = admission_enforced(r->admission);
    k->rpc = r;
    k->req = req;
    unsigned status = langbot_auth(r, req, &k->guest);
    AUTO_FREE char *instance = TAKE_PTR(k->guest.instance);
    if (status != 0)
        langbot_refuse(req, status);
    else if ((instance != NULL &&
              (langbot_instance(r, k->guest.bound ? &k->guest.uid : NULL) == NULL ||
               !read_placement(k, instance))) ||
             (instance == NULL && enforced))
        langbot_refuse(req, 401);
    else if (enforced)
        readiness_get(r->readiness, on_readiness, TAKE_PTR(k));
    else
        enter_relay(k);
}
