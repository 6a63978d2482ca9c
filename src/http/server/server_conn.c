/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one connection of the HTTP server, from its first head to its end. */

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "http/server/server_internal.h"

#define HEAD_READ 16384  /* bytes per read while a head is awaited */
#define CHUNK_READ 65536 /* and of a chunked body */
#define LINGER_NS (2 * NSEC_PER_SEC)

/* A body must come at this pace at least. */
#define PACE_NS (30 * NSEC_PER_SEC)
#define PACE_BYTES 1024

#define TO(s) (1u << CONN_##s)
static const unsigned next_states[CONN_STATE_MAX] = {
    [CONN_HEAD] = TO(BODY) | TO(HANDLER) | TO(SENDING) | TO(LINGER) | TO(DEAD),
    [CONN_BODY] = TO(HANDLER) | TO(SENDING) | TO(LINGER) | TO(DEAD),
    [CONN_HANDLER] = TO(HEAD) | TO(SENDING) | TO(LINGER) | TO(DEAD),
    [CONN_SENDING] = TO(HEAD) | TO(LINGER) | TO(DEAD),
    [CONN_LINGER] = TO(DEAD),
    [CONN_DEAD] = 0,
};

static void move(struct http_conn *c, enum conn_state state)
{
    assert((next_states[c->state] & (1u << state)) != 0);
    c->state = (uint8_t)state;
    c->since = loop_now(c->stream.loop);
}

static struct http_conn *from_stream(struct stream *s)
{
    return container_of(s, struct http_conn, stream);
}

/* Never past the end of a body whose length is known. */
static size_t body_read_size(const struct http1_body *b)
{
    if (b->kind != HTTP1_BODY_LENGTH)
        return CHUNK_READ;
    return b->left < STREAM_SCRATCH ? (size_t)b->left : STREAM_SCRATCH;
}

/* The body goes to the handler as it comes, and the handler wants it now. */
static bool streaming(const struct http_conn *c)
{
    return c->state == CONN_HANDLER && c->req != NULL && c->req->body_fn != NULL &&
           !c->req->body_ended;
}

/* How much to read in the present state. */
static void set_reading(struct http_conn *c)
{
    switch ((enum conn_state)c->state) {
    case CONN_HEAD:
        stream_read(&c->stream, HEAD_READ);
        break;
    case CONN_BODY:
        stream_read(&c->stream, body_read_size(&c->body));
        break;
    case CONN_HANDLER:
        if (streaming(c) && !c->body.done) {
            /* What is held is there still, also when the peer will send no more. */
            if (c->req->body_held || c->in.len > 0)
                stream_pause(&c->stream, STREAM_HANGUP_FAIL);
            else
                stream_read(&c->stream, body_read_size(&c->body));
            break;
        }
        stream_pause(&c->stream, STREAM_HANGUP_EOF);
        break;
    case CONN_SENDING:
        stream_pause(&c->stream, STREAM_HANGUP_EOF);
        break;
    case CONN_LINGER:
        stream_read(&c->stream, STREAM_SCRATCH);
        break;
    case CONN_DEAD:
    case CONN_STATE_MAX:
        break;
    }
}

static uint64_t deadline(const struct http_conn *c)
{
    const struct http_server_opts *o = &c->server->opts;

    switch ((enum conn_state)c->state) {
    case CONN_HEAD:
        return c->since + (c->fresh || c->in.len > 0 ? o->head_ns : o->idle_ns);
    case CONN_BODY:
        return c->since + PACE_NS;
    case CONN_HANDLER: /* takes the time it takes, but not the peer's time to read, or to send */
        if (streaming(c) && !c->body.done && !c->req->body_held)
            return c->since + PACE_NS;
        return stream_queued(&c->stream) > 0 ? c->stream.last_out + o->stall_ns : UINT64_MAX;
    case CONN_SENDING:
        return stream_queued(&c->stream) > 0 ? c->stream.last_out + o->stall_ns : UINT64_MAX;
    case CONN_LINGER:
        return c->since + LINGER_NS;
    case CONN_DEAD:
    case CONN_STATE_MAX:
        break;
    }
    return UINT64_MAX;
}

static void settle(struct http_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    set_reading(c);
    stream_arm(&c->stream, deadline(c));
}

void conn_kill(struct http_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    move(c, CONN_DEAD);
    stream_pause(&c->stream, STREAM_HANGUP_FAIL);
    stream_kick(&c->stream);
}

bool conn_will_close(const struct http_conn *c)
{
    return c->close || c->server->draining;
}

/* All of the answer is with the kernel: on to the next request, or to the end. */
static void answer_sent(struct http_conn *c)
{
    if (conn_will_close(c)) {
        move(c, CONN_LINGER);
        stream_shutdown(&c->stream);
        buf_done(&c->in);
        return;
    }
    move(c, CONN_HEAD);
    c->fresh = false;
    c->scan = (struct http1_scan){0};
    if (c->in.len > 0)
        stream_kick(&c->stream); /* the next request is here already */
}

void conn_begin_answer(struct http_conn *c)
{
    move(c, CONN_HANDLER);
}

void conn_answered(struct http_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    if (!c->body.done)
        c->close = true; /* the rest of the request would be taken for the next one */
    if (stream_queued(&c->stream) > 0)
        move(c, CONN_SENDING);
    else
        answer_sent(c);
    if (!c->in_input)
        settle(c);
}

void conn_wrote(struct http_conn *c)
{
    if (stream_queued(&c->stream) > c->server->opts.low_water)
        c->above = true;
    if (stream_queued(&c->stream) > 0)
        stream_arm(&c->stream, deadline(c));
}

int conn_detach(struct http_conn *c)
{
    int fd = stream_take_fd(&c->stream);

    move(c, CONN_DEAD);
    stream_kick(&c->stream);
    return fd;
}

void conn_body_wanted(struct http_conn *c)
{
    const struct http_request *req = c->req;

    if (!streaming(c))
        return;
    /* What waits is given from the loop; so is the end. */
    if (!req->body_held) {
        c->since = loop_now(c->stream.loop);
        c->pace_bytes = 0;
        if (req->head.expect == HTTP1_EXPECT_CONTINUE && !c->body.done && !c->continued)
            reply_continue(c);
        c->continued = true;
        stream_kick(&c->stream);
    }
    if (!c->in_input)
        settle(c);
}

/* Requests. */

static void refuse(struct http_conn *c, unsigned status)
{
    const struct http_server_opts *o = &c->server->opts;

    c->close = true;
    if (c->req != NULL) {
        c->req->status = status % 1000;
        request_free(c->req);
    } else if (o->answered != NULL) {
        o->answered(o->arg, &(struct http_answer){.status = status});
    }
    reply_refusal(c, status);
    conn_answered(c);
}

static void dispatch(struct http_conn *c, const char *rest, size_t rest_len)
{
    struct http_request *req = c->req;

    LOG_REQUEST(req->id);
    move(c, CONN_HANDLER);
    req->dispatched = true;
    c->rest = rest;
    c->rest_len = rest_len;
    req->route->handler(req, req->arg);
    c->rest = NULL;
    c->rest_len = 0;
}

static void answer_no_route(struct http_conn *c, const struct buf *allow)
{
    struct http_request *req = c->req;

    if (allow->len == 0) {
        http_reply_error(req, 404, "not_found", "there is nothing at this path", NULL);
        return;
    }
    (void)http_reply_header(req, "Allow", buf_str(allow));
    http_reply_error(req, 405, "method_not_allowed", "this path does not have that method", NULL);
}

/* Whether the request may come in. False when it has been refused. */
static bool admit(struct http_conn *c)
{
    const struct http_server_opts *o = &c->server->opts;
    int status = o->authorize != NULL ? o->authorize(o->arg, c->req) : 0;

    if (status != 0) {
        refuse(c, (unsigned)status);
        return false;
    }
    if (c->list == &c->server->waiting)
        server_add(c->server, c, &c->server->known);
    return true;
}

/* The body is announced: is it welcome? */
static void begin_body(struct http_conn *c, const char *rest, size_t rest_len)
{
    const struct http1_head *h = &c->req->head;
    const struct http_route *route = c->req->route;
    size_t max = route->max_body > 0 ? route->max_body : HTTP_BODY_MAX;

    if (h->expect == HTTP1_EXPECT_OTHER) {
        http_reply_error(c->req, 417, "expectation_failed", "only 100-continue is known", NULL);
        return;
    }
    if (h->content_length > max) {
        http_reply_error(c->req, 413, "too_large", "the body is larger than this path takes", NULL);
        return;
    }
    buf_init(&c->req->body, max);
    if (c->body.done || (route->flags & HTTP_ROUTE_STREAM) != 0) {
        dispatch(c, rest, rest_len);
        return;
    }
    if (h->expect == HTTP1_EXPECT_CONTINUE && rest_len == 0)
        reply_continue(c);
    c->pace_bytes = 0;
    move(c, CONN_BODY);
}

static void on_head(struct http_conn *c, const struct http1_head *head, const char *data,
                    size_t head_len, size_t len)
{
    AUTO_DONE(buf) struct buf allow;

    buf_init(&allow, 256);
    unsigned status = policy_check(c, head);
    if (status != 0) {
        refuse(c, status);
        return;
    }
    c->close = !head->keep_alive;
    c->continued = false;
    http1_body_init(&c->body, http1_request_body(head), head->content_length);
    c->req = request_new(c, head, data, head_len);
    bool found = route_find(c->server, c->req, &allow);
    /* Who may not come in does not learn what there is. */
    if (!(found && (c->req->route->flags & HTTP_ROUTE_OPEN) != 0) && !admit(c))
        return;
    if (found && c->req->user != NULL && (c->req->route->flags & HTTP_ROUTE_SCOPED) == 0)
        http_reply_error(c->req, 403, "denied", "a token with a scope may not use this path",
                         "use a token without a scope, or the unix socket");
    else if (found)
        begin_body(c, data + head_len, len - head_len);
    else
        answer_no_route(c, &allow);
}

/* Input. Each returns how many bytes it took; 0 asks for more. */

static size_t take_head(struct http_conn *c, const char *data, size_t len)
{
    struct http1_head head;
    ssize_t n = http1_scan(&c->scan, data, len, c->server->opts.max_head);

    if (n == 0)
        return 0;
    int r = n < 0 ? (int)n : http1_parse(HTTP1_REQUEST, data, (size_t)n, &head);
    if (r < 0) {
        refuse(c, http1_error_status(r));
        return len;
    }
    on_head(c, &head, data, (size_t)n, len);
    return (size_t)n;
}

static size_t take_body(struct http_conn *c, const char *data, size_t len)
{
    struct http1_str part;
    ssize_t n = http1_body_read(&c->body, data, len, &part);

    if (n < 0) {
        refuse(c, 400);
        return len;
    }
    if (part.len > 0 && buf_append(&c->req->body, part.p, part.len) < 0) {
        http_reply_error(c->req, 413, "too_large", "the body is larger than this path takes", NULL);
        return len;
    }
    if (c->body.done)
        dispatch(c, data + n, len - (size_t)n);
    return (size_t)n;
}

/* A piece of the body for a handler that takes it as it comes, and may answer meanwhile. */
static size_t take_stream(struct http_conn *c, const char *data, size_t len)
{
    struct http_request *req = c->req;
    struct http1_str part;
    ssize_t n = http1_body_read(&c->body, data, len, &part);

    if (n < 0) {
        conn_kill(c);
        return len;
    }
    if (part.len > 0)
        req->body_fn(req, part.p, part.len, false, req->body_arg);
    return (size_t)n;
}

/* That was all, once the last piece is taken. */
static void end_stream(struct http_conn *c)
{
    struct http_request *req = c->req;

    if (!streaming(c) || !c->body.done || req->body_held)
        return;
    req->body_ended = true;
    req->body_fn(req, NULL, 0, true, req->body_arg);
}

static size_t take(struct http_conn *c, const char *data, size_t len)
{
    size_t pos = 0;

    while (pos < len) {
        size_t n = 0;
        if (c->state == CONN_HEAD)
            n = take_head(c, data + pos, len - pos);
        else if (c->state == CONN_BODY)
            n = take_body(c, data + pos, len - pos);
        else if (streaming(c) && !c->body.done && !c->req->body_held)
            n = take_stream(c, data + pos, len - pos);
        else if (c->state >= CONN_LINGER)
            n = len - pos;
        if (n == 0)
            break;
        pos += n;
    }
    return pos;
}

/* New bytes, behind those that waited. */
static int take_all(struct http_conn *c, const char *data, size_t len)
{
    if (c->in.len == 0) {
        size_t used = take(c, data, len);
        return used < len ? buf_append(&c->in, data + used, len - used) : 0;
    }
    if (len > 0 && buf_append(&c->in, data, len) < 0)
        return -ENOBUFS;
    size_t used = take(c, c->in.data, c->in.len);
    if (c->in.len > 0)
        buf_consume(&c->in, used);
    if (c->in.len == 0)
        buf_done(&c->in);
    return 0;
}

static void input(struct http_conn *c, const char *data, size_t len)
{
    bool waited = c->in.len > 0;

    c->in_input = true;
    if (take_all(c, data, len) < 0)
        conn_kill(c);
    end_stream(c);
    c->in_input = false;
    if (c->state == CONN_HEAD && c->in.len > 0 && !waited && !c->fresh)
        c->since = loop_now(c->stream.loop); /* the clock of a head starts with its first byte */
    settle(c);
}

static void on_data(struct stream *s, char *data, size_t len)
{
    struct http_conn *c = from_stream(s);

    if (c->state == CONN_BODY || streaming(c)) {
        c->pace_bytes += (uint32_t)len;
        if (c->pace_bytes >= PACE_BYTES) {
            c->since = loop_now(s->loop);
            c->pace_bytes = 0;
        }
    }
    if (c->state < CONN_LINGER)
        input(c, data, len);
}

static void on_eof(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    /* A complete answer is still delivered to a peer that only stopped sending. One that left while
     * we are at work has gone: that is how a client gives up. */
    if (c->state == CONN_SENDING)
        c->close = true;
    else
        conn_kill(c);
}

static void on_sent(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    if (c->state == CONN_SENDING && stream_queued(s) == 0) {
        c->above = false;
        answer_sent(c);
        settle(c);
        return;
    }
    if (c->state != CONN_HANDLER || !c->above || stream_queued(s) > c->server->opts.low_water)
        return;
    c->above = false;
    LOG_REQUEST(c->req->id);
    if (c->req->on_writable != NULL)
        c->req->on_writable(c->req, c->req->writable_arg);
}

static void on_timer(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    if (c->state == CONN_DEAD)
        return;
    if (loop_now(s->loop) < deadline(c)) {
        stream_arm(s, deadline(c));
        return;
    }
    bool began = c->state == CONN_BODY || (c->state == CONN_HEAD && c->in.len > 0);
    if (began)
        refuse(c, 408);
    else
        conn_kill(c);
}

static void on_kick(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    if (s->error != 0)
        conn_kill(c);
    if (c->state == CONN_DEAD) {
        if (c->req != NULL)
            request_lost(c->req);
        conn_free(c);
        return;
    }
    if ((c->state == CONN_HEAD && c->in.len > 0) || streaming(c))
        input(c, NULL, 0);
}

static const struct stream_ops ops = {
    .data = on_data,
    .eof = on_eof,
    .sent = on_sent,
    .timer = on_timer,
    .kick = on_kick,
};

int conn_new(struct http_server *s, int fd, bool is_unix, const struct peer *peer)
{
    struct http_conn *c = xnew(struct http_conn);

    c->server = s;
    c->fresh = true;
    c->is_unix = is_unix;
    c->peer = *peer;
    c->since = loop_now(s->loop);
    http1_body_init(&c->body, HTTP1_BODY_NONE, 0);
    buf_init(&c->in, s->opts.max_head + CHUNK_READ);
    int r = stream_init(&c->stream, s->loop, fd, &ops, s->opts.max_queue);
    if (r < 0) {
        (void)close(fd);
        free(c);
        return r;
    }
    server_add(s, c, &s->waiting);
    settle(c);
    return 0;
}

void conn_free(struct http_conn *c)
{
    if (c == NULL)
        return;
    assert(c->req == NULL);
    server_remove(c);
    stream_done(&c->stream);
    buf_done(&c->in);
    free(c);
}
