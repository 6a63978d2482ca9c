/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one connection of the HTTP server, from its first head to its end. */

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/state.h"
#include "base/str.h"
#include "http/server/server_internal.h"

/* Which clients may ask: the Host and Origin headers. */

struct host {
    struct http1_str name; /* without brackets */
    struct http1_str port; /* p NULL: none */
    bool literal6;
};

static bool split_host(struct http1_str s, struct host *ret)
{
    const char *end = s.p + s.len;
    const char *p = s.p;

    *ret = (struct host){0};
    if (s.len == 0)
        return false;
    if (*p == '[') {
        const char *close = memchr(p, ']', s.len);
        if (close == NULL)
            return false;
        ret->literal6 = true;
        ret->name = (struct http1_str){p + 1, (size_t)(close - p - 1)};
        p = close + 1;
    } else {
        while (p < end && *p != ':')
            p++;
        ret->name = (struct http1_str){s.p, (size_t)(p - s.p)};
    }
    if (p == end)
        return ret->name.len > 0;
    if (*p != ':')
        return false;
    ret->port = (struct http1_str){p + 1, (size_t)(end - p - 1)};
    for (size_t i = 0; i < ret->port.len; i++)
        if (ret->port.p[i] < '0' || ret->port.p[i] > '9')
            return false;
    return ret->name.len > 0 && ret->port.len > 0 && ret->port.len <= 5;
}

/* A name that is a numeric address: browsers cannot be led there by a name server. */
static bool numeric(const struct host *h, struct in6_addr *ret6, struct in_addr *ret4)
{
    char text[INET6_ADDRSTRLEN];

    if (h->name.len >= sizeof(text))
        return false;
    memcpy(text, h->name.p, h->name.len);
    text[h->name.len] = '\0';
    return inet_pton(h->literal6 ? AF_INET6 : AF_INET, text,
                     h->literal6 ? (void *)ret6 : (void *)ret4) == 1;
}

static bool is_own_address(int fd, const struct host *h)
{
    union address own = {0};
    socklen_t len = sizeof(own);
    struct in6_addr a6;
    struct in_addr a4;

    if (!numeric(h, &a6, &a4))
        return false;
    if (h->literal6 ? IN6_IS_ADDR_LOOPBACK(&a6) : ntohl(a4.s_addr) >> 24 == 127)
        return true;
    if (getsockname(fd, &own.any, &len) < 0)
        return false;
    if (h->literal6)
        return own.any.sa_family == AF_INET6 && memcmp(&own.v6.sin6_addr, &a6, sizeof(a6)) == 0;
    if (own.any.sa_family == AF_INET6) /* a listener on :: sees IPv4 as mapped addresses */
        return IN6_IS_ADDR_V4MAPPED(&own.v6.sin6_addr) &&
               memcmp(own.v6.sin6_addr.s6_addr + 12, &a4, sizeof(a4)) == 0;
    return own.v4.sin_addr.s_addr == a4.s_addr;
}

static bool host_allowed(const struct http_conn *c, struct http1_str value)
{
    struct host h;

    if (!split_host(value, &h))
        return false;
    if (http1_str_case_eq(h.name, "localhost") || is_own_address(c->stream.fd, &h))
        return true;
    struct http1_str bare = h.literal6 ? (struct http1_str){h.name.p - 1, h.name.len + 2} : h.name;
    for (const char *const *p = c->server->opts.hosts; p != NULL && *p != NULL; p++)
        if (str_eq(*p, "*") || http1_str_case_eq(bare, *p) || http1_str_case_eq(value, *p))
            return true;
    return false;
}

/* A page of our own: what it was fetched from is our address, by number or as "localhost", and not
 * a foreign name that was made to lead here. */
static bool is_same_origin(const struct http_conn *c, struct http1_str host, struct http1_str value)
{
    static const char scheme[] = "http://";
    size_t n = sizeof(scheme) - 1;
    struct host h;

    if (c->is_unix || host.p == NULL || value.len != n + host.len ||
        memcmp(value.p, scheme, n) != 0 || memcmp(value.p + n, host.p, host.len) != 0)
        return false;
    return split_host(host, &h) &&
           (http1_str_case_eq(h.name, "localhost") || is_own_address(c->stream.fd, &h));
}

static bool origin_allowed(const struct http_conn *c, struct http1_str value)
{
    for (const char *const *p = c->server->opts.origins; p != NULL && *p != NULL; p++)
        if (http1_str_eq(value, *p))
            return true;
    return false;
}

/* 0, or the status to refuse with, before anything of the request is believed. */
static unsigned policy_check(const struct http_conn *c, const struct http1_head *head)
{
    const struct http1_header *origin = http1_find(head, "Origin");

    if (origin != NULL &&
        (http1_count(head, "Origin") > 1 ||
         (!origin_allowed(c, origin->value) && !is_same_origin(c, head->host, origin->value))))
        return 403;
    /* Any page can make a browser connect to loopback under a name of its own; only the Host header
     * gives that away. Browsers do not speak to unix sockets. */
    if (!c->is_unix && (head->host.p == NULL || !host_allowed(c, head->host)))
        return 403;
    return 0;
}

/* The states of a connection. */

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

static void conn_move(struct http_conn *c, enum conn_state state)
{
    STATE_MOVE(c->state, next_states, state);
    c->since = loop_now(c->stream.loop);
}

static void list_leave(struct http_conn *c)
{
    assert(c->list->count > 0);
    TAILQ_REMOVE(&c->list->conns, c, link);
    c->list->count--;
}

static void list_join(struct http_conn *c, struct conn_list *list)
{
    c->list = list;
    TAILQ_INSERT_TAIL(&list->conns, c, link);
    list->count++;
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
    switch (c->state) {
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
        if (c->req != NULL && c->req->raw) { /* a peer that sends no more may still read */
            stream_pause(&c->stream, STREAM_HANGUP_FAIL);
            break;
        }
        __attribute__((fallthrough));
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

    switch (c->state) {
    case CONN_HEAD:
        return c->since + (c->fresh || c->in.len > 0 ? o->head_ns : o->idle_ns);
    case CONN_BODY:
        return c->since + PACE_NS;
    case CONN_HANDLER: /* takes the time it takes, but not the peer's time to read, or to send */
        if (streaming(c) && !c->body.done && !c->req->body_held && !c->req->raw)
            return c->since + PACE_NS;
        __attribute__((fallthrough));
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

static void conn_settle(struct http_conn *c)
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
    conn_move(c, CONN_DEAD);
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
        conn_move(c, CONN_LINGER);
        stream_shutdown(&c->stream);
        buf_done(&c->in);
        return;
    }
    conn_move(c, CONN_HEAD);
    c->fresh = false;
    c->scan = (struct http1_scan){0};
    if (c->in.len > 0)
        stream_kick(&c->stream); /* the next request is here already */
}

void conn_begin_answer(struct http_conn *c)
{
    conn_move(c, CONN_HANDLER);
}

void conn_answered(struct http_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    if (!c->body.done)
        c->close = true; /* the rest of the request would be taken for the next one */
    if (stream_queued(&c->stream) > 0)
        conn_move(c, CONN_SENDING);
    else
        answer_sent(c);
    if (!c->in_input)
        conn_settle(c);
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

    conn_move(c, CONN_DEAD);
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
        conn_settle(c);
}

/* Requests. */

static void conn_refuse(struct http_conn *c, unsigned status)
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
    conn_move(c, CONN_HANDLER);
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
        conn_refuse(c, (unsigned)status);
        return false;
    }
    if (c->list == &c->server->waiting) {
        list_leave(c);
        list_join(c, &c->server->known);
    }
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
    conn_move(c, CONN_BODY);
}

static void on_head(struct http_conn *c, const struct http1_head *head, const char *data,
                    size_t head_len, size_t len)
{
    AUTO_DONE(buf) struct buf allow = BUF_INIT(256);

    unsigned status = policy_check(c, head);
    if (status != 0) {
        conn_refuse(c, status);
        return;
    }
    c->close = !head->keep_alive;
    c->continued = false;
    http1_body_init(&c->body, http1_request_body(head), head->content_length);
    c->req = request_new(c, head, data, head_len);
    bool found = route_find(c->server, c->req, &allow);
    /* A client that is refused does not learn which paths there are. */
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
        conn_refuse(c, http1_error_status(r));
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
        conn_refuse(c, 400);
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
static size_t take_stream(struct http_conn *c, char *data, size_t len)
{
    struct http_request *req = c->req;
    size_t size;
    ssize_t n = http1_body_gather(&c->body, data, len, &size);

    if (n < 0) {
        conn_kill(c);
        return len;
    }
    if (size > 0)
        req->body_fn(req, data, size, false, req->body_arg);
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

static size_t take_some(struct http_conn *c, char *data, size_t len)
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
static int take_all(struct http_conn *c, char *data, size_t len)
{
    if (c->in.len == 0) {
        size_t used = take_some(c, data, len);
        return used < len ? buf_append(&c->in, data + used, len - used) : 0;
    }
    if (len > 0 && buf_append(&c->in, data, len) < 0)
        return -ENOBUFS;
    size_t used = take_some(c, c->in.data, c->in.len);
    if (c->in.len > 0)
        buf_consume(&c->in, used);
    if (c->in.len == 0)
        buf_done(&c->in);
    return 0;
}

static void conn_input(struct http_conn *c, char *data, size_t len)
{
    bool waited = c->in.len > 0;

    c->in_input = true;
    if (take_all(c, data, len) < 0)
        conn_kill(c);
    end_stream(c);
    c->in_input = false;
    if (c->state == CONN_HEAD && c->in.len > 0 && !waited && !c->fresh)
        c->since = loop_now(c->stream.loop); /* the clock of a head starts with its first byte */
    conn_settle(c);
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
        conn_input(c, data, len);
}

static void on_eof(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    /* A complete answer is still delivered to a peer that only stopped sending. One that left while
     * we are at work has gone: that is how a client gives up. */
    if (c->state == CONN_SENDING) {
        c->close = true;
    } else if (streaming(c) && c->req->raw && !c->body.done) {
        c->body.done = true;
        conn_input(c, NULL, 0);
    } else {
        conn_kill(c);
    }
}

static void on_sent(struct stream *s)
{
    struct http_conn *c = from_stream(s);

    if (c->state == CONN_SENDING && stream_queued(s) == 0) {
        c->above = false;
        answer_sent(c);
        conn_settle(c);
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
    if (c->state == CONN_BODY || (c->state == CONN_HEAD && c->in.len > 0))
        conn_refuse(c, 408);
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
        conn_input(c, NULL, 0);
}

static const struct stream_ops ops = {on_data, on_eof, on_sent, on_timer, on_kick};

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
    list_join(c, &s->waiting);
    conn_settle(c);
    return 0;
}

void conn_free(struct http_conn *c)
{
    assert(c->req == NULL);
    list_leave(c);
    stream_done(&c->stream);
    buf_done(&c->in);
    free(c);
}
