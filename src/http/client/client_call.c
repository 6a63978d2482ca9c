/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one call of the HTTP client, from connecting to the end of the answer. */

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/state.h"
#include "http/client/client_internal.h"

#define QUEUE_MAX (32u * 1024 * 1024)
#define LOW_WATER (64u * 1024)
#define ANSWER_HEAD_MAX 65536 /* engines are trusted more than strangers, not without end */
#define INTERIMS_MAX 8
#define RETRY_NS (10 * NSEC_PER_MSEC)

#define TO(s) (1u << CALL_##s)
static const unsigned next_states[CALL_STATE_MAX] = {
    [CALL_CONNECTING] = TO(WAITING) | TO(DONE),
    [CALL_WAITING] = TO(BODY) | TO(RAW) | TO(DONE),
    [CALL_BODY] = TO(DONE),
    [CALL_RAW] = TO(DONE),
    [CALL_DONE] = 0,
};

void call_free(struct http_call *call)
{
    if (call == NULL)
        return;
    LIST_REMOVE(call, link);
    loop_io_stop(&call->connecting);
    loop_timer_stop(&call->timer);
    loop_defer_stop(&call->defer);
    stream_done(&call->stream);
    if (call->fd >= 0)
        (void)close(call->fd);
    buf_done(&call->request);
    buf_done(&call->in);
    free(call->ws.protocol);
    free(call);
}

/* The end; handlers hear of it from the loop. */

static void on_done(struct loop_defer *d)
{
    struct http_call *call = container_of(d, struct http_call, defer);
    const struct err *told = call->failed ? &call->err : NULL;

    if (call->ws.opened != NULL) {
        if (call->failed)
            call->ws.opened(NULL, told, call->arg);
    } else if (!call->cancelled) {
        if (!call->failed && call->reusable)
            client_keep(call->client, stream_take_fd(&call->stream));
        call->handlers->done(call, told, call->arg);
    }
    call_free(call);
}

static void call_finish(struct http_call *call)
{
    if (call->state == CALL_DONE)
        return;
    STATE_MOVE(call->state, next_states, CALL_DONE);
    if (call->stream.ops != NULL)
        stream_pause(&call->stream, STREAM_HANGUP_FAIL);
    loop_io_stop(&call->connecting);
    loop_timer_stop(&call->timer);
    loop_defer_start(call->client->loop, &call->defer, on_done);
}

/* A connection of the dialer ends without a word; the dialer knows why. */
static bool dialer_failed(struct http_call *call)
{
    const struct http_client *c = call->client;
    return c->dialer != NULL && c->dialer->failure(c->tls, &call->err);
}

/* call->err is filled. */
static void call_fail(struct http_call *call)
{
    if (call->state == CALL_DONE)
        return;
    call->failed = true;
    call_finish(call);
}

static void call_fail_with(struct http_call *call, const char *what)
{
    (void)err_set(&call->err, ERR_BACKEND, "%s", what);
    call_fail(call);
}

static void arm_idle(struct http_call *call)
{
    if (call->idle_ns > 0)
        stream_arm(&call->stream, call->last_in + call->idle_ns);
}

/* Answers. */

static void open_ws(struct http_call *call, const struct http1_head *head, const char *rest,
                    size_t rest_len)
{
    struct ws_conn *conn = NULL;

    if (ws_check_response(head, call->ws.key, call->ws.protocol, &call->err) < 0) {
        call_fail(call);
        return;
    }
    struct ws_start start = {
        .loop = call->client->loop,
        .role = WS_CLIENT,
        .fd = stream_take_fd(&call->stream),
        .opts = &call->ws.opts,
        .handlers = call->ws.handlers,
        .arg = call->arg,
        .early = rest,
        .early_len = rest_len,
    };
    int r = ws_conn_new(&start, &conn);
    if (r < 0) {
        (void)err_sys(&call->err, -r, "start the WebSocket");
        call_fail(call);
        return;
    }
    call_finish(call);
    call->ws.opened(conn, NULL, call->arg);
}

static bool becomes_raw(const struct http_call *call, const struct http1_head *head)
{
    if ((call->flags & HTTP_CALL_HIJACK) == 0)
        return false;
    return head->status == 101 ||
           (head->status == 200 && http1_response_body(head, false) == HTTP1_BODY_UNTIL_CLOSE);
}

static void on_head(struct http_call *call, const struct http1_head *head, const char *rest,
                    size_t rest_len)
{
    if (call->ws.opened != NULL) {
        open_ws(call, head, rest, rest_len);
        return;
    }
    if (becomes_raw(call, head)) {
        STATE_MOVE(call->state, next_states, CALL_RAW);
        http1_body_init(&call->body, HTTP1_BODY_UNTIL_CLOSE, 0);
    } else if (head->status == 101) {
        call_fail_with(call, "the peer switched protocols without being asked");
        return;
    } else {
        STATE_MOVE(call->state, next_states, CALL_BODY);
        http1_body_init(&call->body, http1_response_body(head, call->is_head),
                        head->content_length);
        call->reusable = head->keep_alive && call->body.kind != HTTP1_BODY_UNTIL_CLOSE;
    }
    if (call->handlers->head != NULL)
        call->handlers->head(call, head, call->arg);
}

/* The answer is complete. Bytes behind it, or a request not sent to its end, spoil the connection
 * for further use. */
static void call_complete(struct http_call *call, size_t behind)
{
    bool sent = (call->flags & HTTP_CALL_STREAM) == 0 || call->send_ended;

    if (behind > 0 || !sent || stream_queued(&call->stream) > 0)
        call->reusable = false;
    call_finish(call);
}

/* Each takes bytes off the front and returns how many; 0 asks for more. */

static size_t take_head(struct http_call *call, const char *data, size_t len)
{
    struct http1_head head;
    ssize_t n = http1_scan(&call->scan, data, len, ANSWER_HEAD_MAX);

    if (n == 0)
        return 0;
    int r = n < 0 ? (int)n : http1_parse(HTTP1_RESPONSE, data, (size_t)n, &head);
    if (r < 0) {
        call_fail_with(call, "the peer sent a malformed answer");
        return len;
    }
    if (head.status < 200 && head.status != 101) {
        call->scan = (struct http1_scan){0};
        if (++call->interims > INTERIMS_MAX)
            call_fail_with(call, "the peer sent too many interim answers");
        return (size_t)n;
    }
    on_head(call, &head, data + n, len - (size_t)n);
    if (call->state == CALL_BODY && call->body.done)
        call_complete(call, len - (size_t)n);
    return (size_t)n;
}

static size_t take_body(struct http_call *call, const char *data, size_t len)
{
    struct http1_str part;
    ssize_t n = http1_body_read(&call->body, data, len, &part);

    if (n < 0) {
        call_fail_with(call, "the peer sent a malformed body");
        return len;
    }
    bool done = call->body.done;
    if (done)
        call_complete(call, len - (size_t)n); /* first: body() may cancel the call */
    if (part.len > 0 && call->handlers->body != NULL && !call->cancelled)
        call->handlers->body(call, part.p, part.len, call->arg);
    return (size_t)n;
}

static size_t take_some(struct http_call *call, const char *data, size_t len)
{
    size_t pos = 0;

    while (pos < len) {
        size_t n = len - pos;
        if (call->state == CALL_WAITING)
            n = take_head(call, data + pos, len - pos);
        else if (call->state == CALL_BODY || call->state == CALL_RAW)
            n = take_body(call, data + pos, len - pos);
        if (n == 0)
            break;
        pos += n;
    }
    return pos;
}

static void call_input(struct http_call *call, const char *data, size_t len)
{
    size_t used;

    if (call->in.len > 0) {
        if (len > 0 && buf_append(&call->in, data, len) < 0)
            call_fail_with(call, "the peer sent too much at once");
        used = take_some(call, call->in.data, call->in.len);
        buf_consume(&call->in, used);
        if (call->in.len == 0)
            buf_done(&call->in);
    } else {
        used = take_some(call, data, len);
        if (used < len && buf_append(&call->in, data + used, len - used) < 0)
            call_fail_with(call, "the peer sent too much at once");
    }
    arm_idle(call);
}

static struct http_call *from_stream(struct stream *s)
{
    return container_of(s, struct http_call, stream);
}

static void on_data(struct stream *s, char *data, size_t len)
{
    struct http_call *call = from_stream(s);

    call->last_in = loop_now(s->loop);
    if (call->state != CALL_DONE)
        call_input(call, data, len);
}

static void on_eof(struct stream *s)
{
    struct http_call *call = from_stream(s);

    call->reusable = false;
    if (call->state == CALL_WAITING && dialer_failed(call))
        call_fail(call);
    else if (call->state == CALL_WAITING)
        call_fail_with(call, "the peer closed the connection without an answer");
    else if (call->state != CALL_DONE && http1_body_eof(&call->body) < 0)
        call_fail_with(call, "the peer closed the connection in the middle of an answer");
    else
        call_finish(call);
}

static void tell_writable(struct http_call *call)
{
    if (!call->above || http_call_full(call) || call->state == CALL_DONE)
        return;
    call->above = false;
    if (call->handlers != NULL && call->handlers->writable != NULL)
        call->handlers->writable(call, call->arg);
}

static void on_sent(struct stream *s)
{
    struct http_call *call = from_stream(s);

    if (call->shut_when_sent && stream_queued(s) == 0) {
        call->shut_when_sent = false;
        stream_shutdown(s);
    }
    tell_writable(call);
}

static void on_timer(struct stream *s)
{
    struct http_call *call = from_stream(s);

    if (call->state == CALL_DONE)
        return;
    if (loop_now(s->loop) < call->last_in + call->idle_ns)
        arm_idle(call);
    else
        call_fail_with(call, "the peer was silent for too long");
}

static void on_kick(struct stream *s)
{
    struct http_call *call = from_stream(s);

    /* A peer that answers and closes before it read all of our request is heard out. */
    if (s->error != 0 && call->state != CALL_DONE && !stream_read_rest(s)) {
        if (!dialer_failed(call))
            (void)err_sys(&call->err, s->error, "talk to %s", call->client->name);
        call_fail(call);
        return;
    }
    if (call->state == CALL_DONE)
        return;
    stream_read(s, STREAM_SCRATCH);
    tell_writable(call);
}

static const struct stream_ops ops = {on_data, on_eof, on_sent, on_timer, on_kick};

/* Connecting. */

static void connected(struct http_call *call)
{
    int fd = TAKE_FD(call->fd);
    const int on = 1;

    loop_io_stop(&call->connecting);
    loop_timer_stop(&call->timer);
    if (call->client->places.list[0].address.ss_family != AF_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    int r = stream_init(&call->stream, call->client->loop, fd, &ops, QUEUE_MAX + call->request.max);
    if (r < 0) {
        (void)close(fd);
        (void)err_sys(&call->err, -r, "watch the connection");
        call_fail(call);
        return;
    }
    STATE_MOVE(call->state, next_states, CALL_WAITING);
    call->last_in = loop_now(call->client->loop);
    (void)stream_write(&call->stream, call->request.data, call->request.len);
    buf_done(&call->request);
    stream_read(&call->stream, STREAM_SCRATCH);
    if (call->above)
        stream_kick(&call->stream); /* the queue may be short enough now */
    arm_idle(call);
}

static void try_connect(struct http_call *call);

/* The peer may listen at another address of its host. */
static void try_next(struct http_call *call, int error)
{
    loop_io_stop(&call->connecting);
    loop_timer_stop(&call->timer);
    if (call->fd >= 0)
        (void)close(call->fd);
    call->fd = -1;
    if (places_next(&call->walk)) {
        try_connect(call);
        return;
    }
    (void)err_sys(&call->err, error, "connect to %s", call->client->name);
    call_fail(call);
}

static void arrived(struct http_call *call)
{
    places_arrived(&call->walk);
    connected(call);
}

static void on_connect_event(struct loop_io *io, uint32_t events)
{
    struct http_call *call = container_of(io, struct http_call, connecting);
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(call->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error != 0)
        try_next(call, error);
    else
        arrived(call);
}

static void on_connect_timer(struct loop_timer *t)
{
    struct http_call *call = container_of(t, struct http_call, timer);

    if (call->connecting.loop == NULL && loop_now(call->client->loop) < call->connect_due)
        try_connect(call); /* a unix socket whose backlog was full */
    else
        try_next(call, ETIMEDOUT);
}

static void try_connect(struct http_call *call)
{
    struct http_client *c = call->client;
    uint64_t now = loop_now(c->loop);
    uint64_t left = call->connect_due > now ? call->connect_due - now : 0;

    if (call->fd < 0)
        call->fd = places_socket(&call->walk);
    int r = call->fd < 0 ? call->fd : places_connect(&call->walk, call->fd);
    if (r == 0) {
        arrived(call);
        return;
    }
    if (r == -EAGAIN) {
        loop_timer_start(c->loop, &call->timer, left < RETRY_NS ? left : RETRY_NS,
                         on_connect_timer);
        return;
    }
    if (r == -EINPROGRESS)
        r = loop_io_start(c->loop, &call->connecting, call->fd, EPOLLOUT, on_connect_event);
    if (r < 0)
        try_next(call, -r);
    else
        loop_timer_start(c->loop, &call->timer, places_share(&call->walk, left), on_connect_timer);
}

int call_start(struct http_client *c, struct http_call *call, struct err *err)
{
    call->fd = client_take_idle(c);
    if (call->fd >= 0) {
        connected(call);
        return 0;
    }
    if (c->dialer != NULL) {
        int r = call->fd = c->dialer->dial(c->tls, &c->places, err);
        if (r >= 0)
            connected(call);
        return r < 0 ? r : 0;
    }
    call->walk = places_begin(&c->places);
    try_connect(call);
    return 0;
}

/* What the owner calls. */

/* Bytes that follow the request, which itself may still wait for the connection. */
static int call_write(struct http_call *call, const struct iovec *iov, size_t n)
{
    int r = 0;

    if (call->state != CALL_CONNECTING) {
        r = stream_writev(&call->stream, iov, n);
    } else {
        size_t before = call->request.len;
        for (size_t i = 0; r == 0 && i < n; i++)
            r = buf_append(&call->request, iov[i].iov_base, iov[i].iov_len);
        if (r < 0)
            call->request.len = before;
    }
    if (http_call_full(call))
        call->above = true;
    return r;
}

int http_call_send(struct http_call *call, const void *data, size_t len)
{
    char line[HTTP1_CHUNK_HEAD_MAX];
    bool raw = call->state == CALL_RAW;

    if (call->send_ended || call->state == CALL_DONE)
        return -EPIPE;
    if (!raw && (call->flags & HTTP_CALL_STREAM) == 0)
        return -EPIPE;
    if (len == 0)
        return 0;
    struct iovec iov[] = {{line, raw ? 0 : http1_chunk_head(line, len)},
                          {(void *)data, len},
                          {(void *)"\r\n", raw ? 0 : 2}};
    return call_write(call, iov, 3);
}

bool http_call_full(const struct http_call *call)
{
    if (call->state == CALL_CONNECTING)
        return call->request.len > LOW_WATER;
    return stream_queued(&call->stream) > LOW_WATER;
}

int http_call_send_end(struct http_call *call)
{
    if (call->send_ended || call->state == CALL_DONE)
        return -EPIPE;
    call->send_ended = true;
    if (call->state != CALL_RAW) {
        struct iovec iov = {(void *)HTTP1_CHUNK_END, sizeof(HTTP1_CHUNK_END) - 1};
        return call_write(call, &iov, 1);
    }
    if (stream_queued(&call->stream) > 0)
        call->shut_when_sent = true;
    else
        stream_shutdown(&call->stream);
    return 0;
}

void http_call_cancel(struct http_call *call)
{
    call->cancelled = true;
    call_finish(call);
}
