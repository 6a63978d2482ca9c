/* SPDX-License-Identifier: Apache-2.0 */

/* The states, pings, deadlines and queues of an open WebSocket. */

#include "http/server/ws_conn.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/state.h"
#include "http/codec/crypto.h"
#include "http/server/ws_conn_internal.h"
#include "http/stream/stream_internal.h"

#define QUEUE_MAX (32u * 1024 * 1024)
#define LOW_WATER (64u * 1024)
#define PONG_NS (15 * NSEC_PER_SEC)
#define STALL_NS (30 * NSEC_PER_SEC)
#define CLOSE_NS (5 * NSEC_PER_SEC)
#define LINGER_NS (2 * NSEC_PER_SEC)

/* A message that was begun must come at this pace at least, or its sender only wants to hold
 * memory. */
#define PACE_NS (30 * NSEC_PER_SEC)
#define PACE_BYTES 1024

/*   OPEN ──(we close)──> CLOSING ──┐
 *     │                     │      │  their close frame, a protocol error, a lost peer
 *     └─────────────────────┴──> ENDING ──(sent, shut down, drained)──> DEAD
 *
 * closed() is due as soon as ENDING or DEAD is reached; the owner is not kept waiting while the
 * last bytes leave. */
enum ws_state { WS_STATE_OPEN, WS_STATE_CLOSING, WS_STATE_ENDING, WS_STATE_DEAD, WS_STATE_MAX };

#define TO(s) (1u << WS_STATE_##s)
static const unsigned next_states[WS_STATE_MAX] = {
    [WS_STATE_OPEN] = TO(CLOSING) | TO(ENDING) | TO(DEAD),
    [WS_STATE_CLOSING] = TO(ENDING) | TO(DEAD),
    [WS_STATE_ENDING] = TO(DEAD),
    [WS_STATE_DEAD] = 0,
};

struct pong {
    size_t len;
    char data[WS_CONTROL_MAX];
};

struct ws_conn {
    struct stream stream;
    struct ws_decoder decoder;
    struct ws_opts opts;
    const struct ws_handlers *handlers; /* borrowed; NULL once closed() ran */
    void *arg;
    struct ws_owner *owner;   /* borrowed; NULL: none */
    LIST_ENTRY(ws_conn) link; /* where there is an owner */
    struct buf in;            /* input that came while paused */
    struct pong *pong;  /* owned; the newest unanswered ping, while an older answer is queued */
    uint64_t pong_mark; /* stream position up to which our last pong reaches */
    uint64_t last_in;
    uint64_t since;      /* when the state began, or our ping left */
    uint64_t pace_start; /* of the current window */
    size_t pace_bytes;
    enum ws_state state;
    unsigned code; /* for closed() */
    char *reason;  /* owned; for closed() */
    bool paused;
    bool above;     /* the queue went above low_water; writable() is owed */
    bool ping_sent; /* and nothing came since */
    bool shut;      /* our side of the connection is shut down */
    struct ws_user user;
};

static void ws_move(struct ws_conn *c, enum ws_state state)
{
    STATE_MOVE(c->state, next_states, state);
    c->since = loop_now(c->stream.loop);
}

static struct ws_conn *from_stream(struct stream *s)
{
    return container_of(s, struct ws_conn, stream);
}

/* The time of the next thing to check; UINT64_MAX when there is none. */
static uint64_t deadline(const struct ws_conn *c)
{
    uint64_t due = UINT64_MAX;
    uint64_t t;

    if (c->state == WS_STATE_ENDING)
        return c->since + LINGER_NS;
    if (c->state == WS_STATE_CLOSING) {
        t = c->stream.last_out > c->since ? c->stream.last_out : c->since;
        return t + c->opts.close_ns;
    }
    if (stream_queued(&c->stream) > 0)
        due = c->stream.last_out + c->opts.stall_ns;
    if (c->paused)
        return due;
    if (ws_decoder_partial(&c->decoder)) {
        t = c->pace_start + PACE_NS;
        due = t < due ? t : due;
    }
    if (c->ping_sent)
        t = c->since + c->opts.pong_ns;
    else
        t = c->opts.ping_ns > 0 ? c->last_in + c->opts.ping_ns : UINT64_MAX;
    return t < due ? t : due;
}

static void ws_arm(struct ws_conn *c)
{
    stream_arm(&c->stream, deadline(c));
}

/* The conversation is over: remembers how, and leaves the rest to the next kick. */
static void ws_end(struct ws_conn *c, enum ws_state state, unsigned code, const char *reason,
                   size_t len)
{
    if (c->state >= WS_STATE_ENDING) {
        if (state > c->state)
            ws_move(c, state);
        stream_kick(&c->stream);
        return;
    }
    c->code = code;
    c->reason = len > 0 ? xstrndup(reason, len) : NULL;
    ws_move(c, state);
    buf_done(&c->in);
    if (state == WS_STATE_ENDING)
        stream_read(&c->stream, STREAM_SCRATCH);
    stream_kick(&c->stream);
}

static void ws_lost(struct ws_conn *c)
{
    ws_end(c, WS_STATE_DEAD, WS_CODE_ABNORMAL, "", 0);
}

/* Frames. */

static int send_frame(struct ws_conn *c, enum ws_opcode opcode, const void *data, size_t len)
{
    uint8_t head[WS_FRAME_HEAD_MAX];
    uint8_t key[4];
    int r;

    if (c->decoder.role == WS_SERVER) {
        size_t n = ws_frame_head(head, opcode, true, len, NULL);
        struct iovec iov[] = {{head, n}, {(void *)data, len}};
        r = stream_writev(&c->stream, iov, len > 0 ? 2 : 1);
    } else {
        /* Masked in the queue: the caller's bytes are not ours to change. */
        http_random(key, sizeof(key));
        size_t n = ws_frame_head(head, opcode, true, len, key);
        char *to = stream_reserve(&c->stream, n + len);
        if (to == NULL)
            return n + len > c->opts.max_queue - stream_queued(&c->stream) ? -ENOBUFS : -EPIPE;
        memcpy(to, head, n);
        if (len > 0)
            memcpy(to + n, data, len);
        ws_mask(to + n, len, key, 0);
        r = stream_flush(&c->stream);
    }
    if (r == 0 && stream_queued(&c->stream) > 0) {
        if (stream_queued(&c->stream) > c->opts.low_water)
            c->above = true;
        ws_arm(c);
    }
    return r;
}

static void send_pong(struct ws_conn *c, const char *data, size_t len)
{
    if (send_frame(c, WS_PONG, data, len) == 0)
        c->pong_mark = c->stream.sent + stream_queued(&c->stream);
}

/* One pong at most waits in the queue and the newest ping beside it (the RFC asks for no more): a
 * flood of pings costs a constant. */
static void on_ping(struct ws_conn *c, const char *data, size_t len)
{
    if (c->state != WS_STATE_OPEN)
        return;
    if (c->stream.sent >= c->pong_mark) {
        send_pong(c, data, len);
        return;
    }
    if (c->pong == NULL)
        c->pong = xnew(struct pong);
    c->pong->len = len;
    if (len > 0)
        memcpy(c->pong->data, data, len);
}

static void send_close(struct ws_conn *c, unsigned code, const char *reason)
{
    char payload[WS_CONTROL_MAX];
    size_t len = ws_close_payload(payload, code, reason);
    (void)send_frame(c, WS_CLOSE, payload, len);
}

static void on_close_frame(struct ws_conn *c, const struct ws_event *e)
{
    if (c->state == WS_STATE_OPEN)
        send_close(c, e->code, NULL);
    ws_end(c, WS_STATE_ENDING, e->code, e->data, e->len);
}

static void on_event(struct ws_conn *c, const struct ws_event *e)
{
    switch (e->type) {
    case WS_EVENT_MESSAGE:
        if (c->state == WS_STATE_OPEN)
            c->handlers->message(c, e->opcode, e->data, e->len, c->arg);
        break;
    case WS_EVENT_PING:
        on_ping(c, e->data, e->len);
        break;
    case WS_EVENT_CLOSE:
        on_close_frame(c, e);
        break;
    case WS_EVENT_PONG:
    case WS_EVENT_NONE:
        break;
    }
}

/* Decodes until the input ends or no more of it is wanted. Returns how much was taken. */
static size_t ws_take(struct ws_conn *c, char *data, size_t len)
{
    size_t pos = 0;

    while (c->state < WS_STATE_ENDING && !c->paused) {
        struct ws_event e;
        ssize_t n = ws_decode(&c->decoder, data + pos, len - pos, &e);
        if (n < 0) {
            unsigned code = ws_error_code((int)n);
            if (c->state == WS_STATE_OPEN)
                send_close(c, code, NULL);
            ws_end(c, WS_STATE_ENDING, code, "", 0);
            return len;
        }
        pos += (size_t)n;
        if (e.type == WS_EVENT_NONE)
            break;
        on_event(c, &e);
    }
    return c->state < WS_STATE_ENDING ? pos : len;
}

static void note_pace(struct ws_conn *c, size_t len, bool was_partial)
{
    if (!ws_decoder_partial(&c->decoder))
        return;
    c->pace_bytes += len;
    if (!was_partial || c->pace_bytes >= PACE_BYTES) {
        c->pace_start = c->last_in;
        c->pace_bytes = 0;
    }
    ws_arm(c);
}

static void on_data(struct stream *s, char *data, size_t len)
{
    struct ws_conn *c = from_stream(s);

    if (c->state >= WS_STATE_ENDING)
        return; /* drained, so that our last bytes are not reset away */
    bool was_partial = ws_decoder_partial(&c->decoder);
    c->last_in = loop_now(s->loop);
    c->ping_sent = false;
    size_t used = ws_take(c, data, len);
    if (used < len && buf_append(&c->in, data + used, len - used) < 0)
        ws_lost(c);
    if (c->state < WS_STATE_ENDING)
        note_pace(c, len, was_partial);
}

static void on_eof(struct stream *s)
{
    struct ws_conn *c = from_stream(s);

    if (c->state == WS_STATE_ENDING && stream_queued(s) > 0)
        return; /* the peer only shut down its half; it may still read */
    ws_lost(c);
}

static void on_sent(struct stream *s)
{
    struct ws_conn *c = from_stream(s);

    if (c->pong != NULL && s->sent >= c->pong_mark) {
        struct pong *pong = TAKE_PTR(c->pong);
        if (c->state == WS_STATE_OPEN)
            send_pong(c, pong->data, pong->len);
        free(pong);
    }
    if (c->state == WS_STATE_ENDING)
        stream_kick(s);
    if (c->state == WS_STATE_OPEN && c->above && stream_queued(s) <= c->opts.low_water) {
        c->above = false;
        if (c->handlers->writable != NULL)
            c->handlers->writable(c, c->arg);
    }
}

static void ws_conn_free(struct ws_conn *c);
static int ws_ping(struct ws_conn *c);

static void on_open_timer(struct ws_conn *c, uint64_t now)
{
    if (stream_queued(&c->stream) > 0 && now >= c->stream.last_out + c->opts.stall_ns) {
        ws_lost(c);
        return;
    }
    if (c->paused)
        return;
    if (ws_decoder_partial(&c->decoder) && now >= c->pace_start + PACE_NS) {
        static const char reason[] = "message came too slowly";
        send_close(c, WS_CODE_POLICY, reason);
        ws_end(c, WS_STATE_ENDING, WS_CODE_POLICY, reason, sizeof(reason) - 1);
        return;
    }
    if (c->ping_sent && now >= c->since + c->opts.pong_ns) {
        ws_lost(c);
        return;
    }
    if (!c->ping_sent && c->opts.ping_ns > 0 && now >= c->last_in + c->opts.ping_ns)
        (void)ws_ping(c);
}

static void on_timer(struct stream *s)
{
    struct ws_conn *c = from_stream(s);
    uint64_t now = loop_now(s->loop);

    if (c->state == WS_STATE_OPEN)
        on_open_timer(c, now);
    else if (now >= deadline(c))
        ws_lost(c);
    if (c->state != WS_STATE_DEAD)
        ws_arm(c);
}

/* Life. */

static void ws_report(struct ws_conn *c)
{
    const struct ws_handlers *handlers = TAKE_PTR(c->handlers);

    if (handlers != NULL)
        handlers->closed(c, c->code, c->reason != NULL ? c->reason : "", c->arg);
}

/* Input that was put aside while paused comes before anything new. */
static void ws_resume(struct ws_conn *c)
{
    if (c->in.len > 0 && !c->paused) {
        bool was_partial = ws_decoder_partial(&c->decoder);
        size_t used = ws_take(c, c->in.data, c->in.len);
        if (c->state >= WS_STATE_ENDING)
            return;
        buf_consume(&c->in, used);
        if (c->in.len == 0)
            buf_done(&c->in);
        c->last_in = loop_now(c->stream.loop);
        note_pace(c, used, was_partial);
    }
    if (!c->paused && c->in.len == 0)
        stream_read(&c->stream, STREAM_SCRATCH);
    ws_arm(c);
}

static void on_kick(struct stream *s)
{
    struct ws_conn *c = from_stream(s);

    if (s->error != 0 && c->state != WS_STATE_DEAD)
        ws_lost(c);
    if (c->state < WS_STATE_ENDING) {
        ws_resume(c);
        return;
    }
    ws_report(c);
    if (c->state == WS_STATE_DEAD) {
        ws_conn_free(c);
        return;
    }
    if (stream_queued(s) == 0 && !c->shut) {
        c->shut = true;
        stream_shutdown(s);
    }
    ws_arm(c);
}

static const struct stream_ops ops = {on_data, on_eof, on_sent, on_timer, on_kick};

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value > 0 ? value : fallback;
}

static void set_opts(struct ws_conn *c, const struct ws_opts *opts)
{
    if (opts != NULL)
        c->opts = *opts;
    c->opts.max_queue = or_default(c->opts.max_queue, QUEUE_MAX);
    c->opts.low_water = or_default(c->opts.low_water, LOW_WATER);
    c->opts.pong_ns = or_default(c->opts.pong_ns, PONG_NS);
    c->opts.stall_ns = or_default(c->opts.stall_ns, STALL_NS);
    c->opts.close_ns = or_default(c->opts.close_ns, CLOSE_NS);
    c->opts.protocol = NULL; /* its memory is the caller's */
}

int ws_conn_new(const struct ws_start *start, struct ws_conn **ret)
{
    struct ws_conn *c = xnew(struct ws_conn);

    set_opts(c, start->opts);
    c->handlers = start->handlers;
    c->arg = start->arg;
    c->user = start->user;
    c->since = c->last_in = loop_now(start->loop);
    ws_decoder_init(&c->decoder, start->role, c->opts.max_message, c->opts.max_fragments);
    buf_init(&c->in, 2 * STREAM_SCRATCH);
    int r = stream_init(&c->stream, start->loop, start->fd, &ops, c->opts.max_queue);
    if (r < 0) {
        (void)close(start->fd);
        ws_conn_free(c);
        return r;
    }
    c->owner = start->owner;
    if (c->owner != NULL) {
        LIST_INSERT_HEAD(&c->owner->conns, c, link);
        c->owner->count++;
    }
    if (start->answer_len > 0)
        (void)stream_write(&c->stream, start->answer, start->answer_len);
    if (start->early_len > 0 && buf_append(&c->in, start->early, start->early_len) < 0) {
        ws_conn_free(c);
        return -ENOBUFS;
    }
    stream_kick(&c->stream); /* reading starts there */
    *ret = c;
    return 0;
}

static void ws_conn_free(struct ws_conn *c)
{
    if (c == NULL)
        return;
    if (c->owner != NULL) {
        LIST_REMOVE(c, link);
        c->owner->count--;
    }
    stream_done(&c->stream);
    ws_decoder_done(&c->decoder);
    buf_done(&c->in);
    free(c->pong);
    free(c->reason);
    if (c->user.done != NULL)
        c->user.done(c->user.user);
    free(c);
}

const struct ws_user *ws_conn_user(const struct ws_conn *c)
{
    return &c->user;
}

bool ws_conn_end(struct ws_conn *c, unsigned code, const char *reason)
{
    if (c->state >= WS_STATE_ENDING)
        return false;
    if (c->state == WS_STATE_OPEN)
        send_close(c, code, reason);
    c->paused = false; /* what still comes is thrown away */
    ws_end(c, WS_STATE_ENDING, code, reason, strlen(reason));
    return true;
}

void ws_conn_abort(struct ws_conn *c, unsigned code)
{
    if (c->state < WS_STATE_ENDING)
        c->code = code;
    ws_report(c);
    ws_conn_free(c);
}

struct ws_conn *ws_conn_next(const struct ws_conn *c)
{
    return LIST_NEXT(c, link);
}

/* What the owner calls. */

int ws_send(struct ws_conn *c, enum ws_opcode opcode, const void *data, size_t len)
{
    assert(opcode == WS_TEXT || opcode == WS_BINARY);
    if (c->state != WS_STATE_OPEN)
        return -EPIPE;
    return send_frame(c, opcode, data, len);
}

static int ws_ping(struct ws_conn *c)
{
    if (c->state != WS_STATE_OPEN)
        return -EPIPE;
    int r = send_frame(c, WS_PING, "", 0);
    if (r == 0) {
        c->ping_sent = true;
        c->since = loop_now(c->stream.loop);
        ws_arm(c);
    }
    return r;
}

void ws_close(struct ws_conn *c, unsigned code, const char *reason)
{
    if (c->state != WS_STATE_OPEN)
        return;
    send_close(c, code, reason);
    ws_move(c, WS_STATE_CLOSING);
    c->paused = false; /* their answer must be read */
    stream_kick(&c->stream);
}

void ws_pause(struct ws_conn *c, bool paused)
{
    if (c->state != WS_STATE_OPEN || c->paused == paused)
        return;
    c->paused = paused;
    if (paused) {
        stream_pause(&c->stream, c->opts.hangup_ends ? STREAM_HANGUP_EOF : STREAM_HANGUP_KEEP);
        return;
    }
    c->last_in = c->pace_start = loop_now(c->stream.loop);
    c->ping_sent = false;
    stream_kick(&c->stream);
}

int ws_socket(const struct ws_conn *c)
{
    return c->stream.fd;
}

uint64_t ws_written(const struct ws_conn *c)
{
    return c->stream.sent + stream_queued(&c->stream);
}

uint64_t ws_acked(const struct ws_conn *c)
{
    int waiting = 0, domain = AF_UNSPEC;
    socklen_t size = sizeof(domain);

    if (c->stream.fd < 0 || c->stream.error != 0 ||
        getsockopt(c->stream.fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0)
        return 0;
    /* On a unix socket there is one kernel, and what it took lies with the reader. */
    if (domain == AF_UNIX)
        return c->stream.sent;
    if (ioctl(c->stream.fd, SIOCOUTQ, &waiting) < 0 || waiting < 0)
        return 0;
    return c->stream.sent > (uint64_t)waiting ? c->stream.sent - (uint64_t)waiting : 0;
}

bool ws_full(const struct ws_conn *c)
{
    return stream_queued(&c->stream) > c->opts.low_water;
}
