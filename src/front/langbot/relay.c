/* SPDX-License-Identifier: Apache-2.0 */

/* The relay: stdin and stdout of a managed process over a WebSocket, a message for each line. The
 * process outlives its reader, and boxd's reader may outlive boxd: a line counts as delivered, and
 * is released, when the kernel at the other end has it. The next reader goes on behind it. */

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/server/server.h"
#include "session/manager.h"
#include "session/process.h"
#include "spec/process.h"

#define WORKSPACE_MAX 256
#define READ_SIZE 65536U
#define TURN_BYTES (1U << 20) /* of output in one turn of the loop */
#define PENDING_MAX                                                                                \
    (1U << 20)                  /* bytes of input that wait for their turn before the peer has to  \
                                 */
#define MARKS_MAX 256           /* lines on their way that are told apart */
#define LINE_HOLD (128U * 1024) /* bytes of one line that are never released before its end */
#define STUCK_NS (50 * NSEC_PER_MSEC)
#define POLL_FIRST_NS (1 * NSEC_PER_MSEC)
#define POLL_LAST_NS (256 * NSEC_PER_MSEC)
#define PING_NS (30 * NSEC_PER_SEC)
#define PONG_NS (15 * NSEC_PER_SEC)
/* A reader may be busy for as long as it likes; that it is gone is found out by pings. */
#define STALL_NS (24 * 3600 * NSEC_PER_SEC)

struct input {
    struct input *next;
    size_t len;
    char data[]; /* with its newline */
};

/* Everything up to `offset` of the output has been delivered once `position` of the connection has.
 */
struct mark {
    uint64_t position, offset;
};

struct langbot_relay {
    struct langbot *rpc;
    struct langbot_relay *prev, *next;
    struct ws_conn *ws;
    struct attachment *attachment; /* owned */
    struct langbot_lines lines;
    uint64_t at;       /* next byte to read */
    uint64_t released; /* bytes before this are nobody's any more */
    struct mark marks[MARKS_MAX];
    size_t n_marks;
    struct input *input, **input_end; /* owned */
    size_t input_bytes;
    struct loop_timer poll;
    uint64_t poll_ns;
    struct loop_timer stuck;
    struct loop_defer again;
    char ns[NS_SIZE]; /* "" for a client of the first release */
    int64_t generation;
    bool blocked;   /* stdin takes no more for now */
    bool paused;    /* and so does the peer's end of it */
    bool long_line; /* part of the current line has been released */
    bool closing;
    bool by_token;
};

static void link_relay(struct langbot_relay *r)
{
    r->next = r->rpc->relays;
    if (r->next != NULL)
        r->next->prev = r;
    r->rpc->relays = r;
}

static void relay_free(struct langbot_relay *r)
{
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        r->rpc->relays = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    loop_timer_stop(&r->poll);
    loop_timer_stop(&r->stuck);
    loop_defer_stop(&r->again);
    for (struct input *i = r->input, *next; i != NULL; i = next) {
        next = i->next;
        free(i);
    }
    attachment_free(r->attachment);
    langbot_lines_done(&r->lines);
    free(r);
}

static void end_relay(struct langbot_relay *r)
{
    r->closing = true;
    ws_close(r->ws, WS_CODE_NORMAL, NULL);
}

void langbot_relays_close(struct langbot *rpc, const char *ns, int64_t generation)
{
    for (struct langbot_relay *r = rpc->relays; r != NULL; r = r->next)
        if (str_eq(r->ns, ns) && r->generation != generation)
            end_relay(r);
}

void langbot_relays_outdated(struct langbot *rpc)
{
    for (struct langbot_relay *r = rpc->relays; r != NULL; r = r->next) {
        if (!r->by_token || r->closing)
            continue;
        r->closing = true;
        ws_close(r->ws, WS_CODE_POLICY, "the token has changed");
    }
}

/* What the peer has. */

static void release(struct langbot_relay *r, uint64_t upto)
{
    if (upto <= r->released || !attachment_is_active(r->attachment))
        return;
    attachment_release(r->attachment, upto);
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
    release(r, r->marks[n - 1].offset);
    r->n_marks -= n;
    memmove(r->marks, r->marks + n, r->n_marks * sizeof(r->marks[0]));
    return true;
}

/* Nothing tells when bytes are acknowledged, so we look: soon at first, then less often. */
static void on_poll(struct loop_timer *t)
{
    struct langbot_relay *r = container_of(t, struct langbot_relay, poll);
    bool some = release_acked(r);
    r->poll_ns = some ? POLL_FIRST_NS : r->poll_ns * 2;
    if (r->poll_ns > POLL_LAST_NS)
        r->poll_ns = POLL_LAST_NS;
    if (r->n_marks > 0 && !r->closing)
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

static bool emit(void *arg, const char *text, size_t len, bool line)
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
    r->long_line = true;
    if (r->n_marks == 0)
        release(r, r->at);
}

static void on_again(struct loop_defer *d);

/* Hands on what came between two offsets, and notes where the last whole line of it ends. */
static size_t hand_on(struct langbot_relay *r, const char *data, size_t len, bool eof)
{
    size_t used = langbot_lines_feed(&r->lines, data, len, eof, emit, r);
    if (r->closing)
        return used; /* the peer left in the middle: whoever comes next gets all of this again */
    const char *end = used > 0 ? memrchr(data, '\n', used) : NULL;
    if (end != NULL) {
        r->long_line = false;
        add_mark(r, r->at + (uint64_t)(end - data) + 1);
    }
    r->at += used;
    return used;
}

static void watch_for_stuck(struct langbot_relay *r)
{
    if (r->n_marks > 0 || r->at - r->released < LINE_HOLD)
        return;
    if (r->long_line)
        release(r, r->at);
    else
        loop_timer_start(r->rpc->loop, &r->stuck, STUCK_NS, on_stuck);
}

static void finish_output(struct langbot_relay *r)
{
    (void)langbot_lines_feed(&r->lines, "", 0, true, emit, r);
    if (!r->closing)
        add_mark(r, r->at);
    end_relay(r);
}

static void pump_out(struct langbot_relay *r)
{
    static char data[READ_SIZE];
    size_t budget = TURN_BYTES;
    loop_timer_stop(&r->stuck);
    (void)release_acked(r);
    while (!r->closing && attachment_is_active(r->attachment) && !ws_full(r->ws)) {
        ssize_t n = attachment_read(r->attachment, r->at, data, sizeof(data));
        if (n < 0) { /* not ours any more */
            end_relay(r);
            return;
        }
        bool eof = attachment_eof(r->attachment, r->at + (uint64_t)n);
        if (n == 0) {
            if (eof)
                finish_output(r);
            break;
        }
        size_t used = hand_on(r, data, (size_t)n, eof);
        if (used == 0)
            break; /* part of a character; the rest is still to come */
        if (budget < used) {
            loop_defer_start(r->rpc->loop, &r->again, on_again);
            break;
        }
        budget -= used;
    }
    if (!r->closing)
        watch_for_stuck(r);
}

static void on_again(struct loop_defer *d)
{
    pump_out(container_of(d, struct langbot_relay, again));
}

/* From the peer to the process. */

static void pump_in(struct langbot_relay *r)
{
    while (r->input != NULL && !r->blocked && attachment_is_active(r->attachment)) {
        struct input *i = r->input;
        int e = attachment_write(r->attachment, i->data, i->len);
        r->blocked = e == 1 || e == -ENOBUFS;
        if (e == -ENOBUFS)
            break; /* not taken; its turn comes again */
        r->input = i->next;
        if (r->input == NULL)
            r->input_end = &r->input;
        r->input_bytes -= i->len;
        free(i);
    }
    /* Pings are answered while input waits here; only a peer that sends far ahead is held back. */
    bool pause = r->input_bytes > PENDING_MAX;
    if (pause != r->paused)
        ws_pause(r->ws, pause);
    r->paused = pause;
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct langbot_relay *r = arg;
    if (opcode != WS_TEXT || r->closing)
        return;
    struct input *i = calloc(1, sizeof(*i) + len + 1); /* the peer sizes it */
    if (i == NULL) {
        r->closing = true;
        ws_close(ws, WS_CODE_TOO_BIG, "out of memory for this message");
        return;
    }
    i->len = len + 1;
    if (len > 0)
        memcpy(i->data, data, len);
    i->data[len] = '\n';
    *r->input_end = i;
    r->input_end = &i->next;
    r->input_bytes += i->len;
    pump_in(r);
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    pump_out(arg);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct langbot_relay *r = arg;
    (void)release_acked(r);
    relay_free(r);
}

static void on_active(void *arg)
{
    struct langbot_relay *r = arg;
    r->at = r->released = attachment_begin(r->attachment);
    pump_out(r);
    if (!r->closing)
        pump_in(r);
}

static void on_output(void *arg)
{
    pump_out(arg);
}

static void on_drained(void *arg)
{
    struct langbot_relay *r = arg;
    r->blocked = false;
    if (!r->closing)
        pump_in(r);
}

static void on_ended(void *arg)
{
    end_relay(arg);
}

/* Coming in. */

/* A request that waits for its answer. */
struct knock {
    struct langbot *rpc;
    struct http_request *req;
    char ns[NS_SIZE], prefix[TENANT_PREFIX_SIZE];
    int64_t generation;
    bool bound;
    uid_t uid;
};

static void refuse(struct knock *k, enum langbot_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse(struct knock *k, enum langbot_class class, const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    va_list ap;
    buf_init(&out, 32768);
    buf_init(&text, 16384);
    va_start(ap, fmt);
    (void)buf_vprintf(&text, fmt, ap);
    va_end(ap);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "error");
    jw_object(&w);
    jw_kstr(&w, "code", langbot_class_name(class));
    jw_kstr(&w, "message", buf_str(&text));
    jw_object_end(&w);
    jw_object_end(&w);
    http_reply(k->req, 400, "application/json; charset=utf-8", out.data, out.len);
}

static void open_relay(struct knock *k, struct process *p)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    static const struct attachment_events events = {
        .active = on_active, .output = on_output, .drained = on_drained, .ended = on_ended};
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
    r->input_end = &r->input;
    (void)str_copy(r->ns, sizeof(r->ns), k->ns);
    langbot_lines_init(&r->lines);
    link_relay(r);
    if (process_attach(p, &events, r, &r->attachment, &err) < 0) {
        log_warn(NULL, "attach: %s", err.msg);
        r->closing = true;
        ws_close(r->ws, WS_CODE_NORMAL, "managed process stdio unavailable");
    }
}

static void enter(struct knock *k)
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
    if (s == NULL || session_sandbox(s) == NULL)
        refuse(k, LANGBOT_SESSION_NOT_FOUND, "session %s not found", session);
    else if (k->bound && policy_check_user(session_spec(s), k->uid, &err) < 0)
        refuse(k, LANGBOT_VALIDATION, "%s", err.msg);
    else if (p == NULL)
        refuse(k, LANGBOT_PROCESS_NOT_FOUND, "session %s has no managed process with process_id=%s",
               session, process);
    else if (!process_running(p))
        refuse(k, LANGBOT_PROCESS_CONFLICT, "managed process %s in session %s is not running",
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
        refuse(k, LANGBOT_READINESS, "Managed sandbox isolation is not ready (failed checks: %s)",
               failed);
    } else if (admission_check(k->rpc->admission, k->ns, k->generation, langbot_now_us(k->rpc),
                               &grant, &err) < 0) {
        refuse(k, LANGBOT_ADMISSION, "%s", err.msg);
    } else if (grant.max_managed_processes <= 0) {
        refuse(k, LANGBOT_ADMISSION,
               "Sandbox admission grant does not permit managed process relay");
    } else {
        enter(k);
    }
}

/* Who it says it acts for: a number in its one spelling, of the generation that counts. */
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
    struct langbot_guest guest;
    AUTO_FREE struct knock *k = xnew(struct knock);
    struct langbot *r = arg;
    bool enforced = admission_enforced(r->admission);
    k->rpc = r;
    k->req = req;
    unsigned status = langbot_auth(r, req, &guest);
    AUTO_FREE char *instance = guest.instance;
    k->bound = guest.bound;
    k->uid = guest.uid;
    if (status != 0)
        langbot_refuse(req, status);
    else if ((instance != NULL && (r->instance == NULL || !read_placement(k, instance))) ||
             (instance == NULL && enforced))
        langbot_refuse(req, 401);
    else if (enforced)
        readiness_get(r->readiness, on_readiness, TAKE_PTR(k));
    else
        enter(k);
}
