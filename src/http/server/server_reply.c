/* SPDX-License-Identifier: Apache-2.0 */

/* Writes answers: whole, in pieces, problems, refusals, and the upgrade to a WebSocket. */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define ANSWER_HEAD_MAX 8192
#define PROBLEM_MAX 16384

static const char problem_type[] = "application/problem+json";

/* Whether there is still somebody to talk to. */
static bool connected(const struct http_request *req)
{
    return req->conn != NULL && req->conn->state == CONN_HANDLER;
}

static int put_common(struct buf *out, struct http_conn *c, unsigned status, const char *type)
{
    int r = http1_put_status(out, status);
    if (r == 0)
        r = http1_put_header(out, "Date", server_date(c->server));
    if (r == 0 && type != NULL)
        r = http1_put_header(out, "Content-Type", type);
    if (r == 0 && conn_will_close(c))
        r = http1_put_header(out, "Connection", "close");
    return r;
}

static int put_request_headers(struct buf *out, const struct http_request *req)
{
    int r = http1_put_header(out, "X-Request-Id", req->id);
    if (r == 0 && req->head.minor == 0 && !conn_will_close(req->conn))
        r = http1_put_header(out, "Connection", "keep-alive");
    if (r == 0 && req->headers.len > 0)
        r = buf_append(out, req->headers.data, req->headers.len);
    return r;
}

static bool status_has_body(unsigned status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* Ends a request whose answer is out (or has nowhere to go). */
static void finish(struct http_request *req)
{
    struct http_conn *c = req->conn;

    request_free(req);
    if (c != NULL)
        conn_answered(c);
}

/* We could not even answer: the queue is full or a header of ours is wrong. */
static void give_up(struct http_request *req)
{
    struct http_conn *c = req->conn;

    request_free(req);
    if (c != NULL)
        conn_kill(c);
}

int http_reply_header(struct http_request *req, const char *name, const char *value)
{
    return http1_put_header(&req->headers, name, value);
}

static int send_whole(struct http_request *req, unsigned status, const char *type, const void *body,
                      size_t len)
{
    AUTO_DONE(buf) struct buf head;
    struct http_conn *c = req->conn;

    buf_init(&head, ANSWER_HEAD_MAX);
    (void)buf_reserve(&head, 512);
    if (!c->body.done)
        c->close = true; /* known here already, and said in the head */
    int r = put_common(&head, c, status, type);
    if (r == 0)
        r = put_request_headers(&head, req);
    if (r == 0 && status_has_body(status))
        r = http1_put_length(&head, len);
    if (r == 0)
        r = http1_put_end(&head);
    if (r < 0)
        return r;
    struct iovec iov[] = {{head.data, head.len}, {(void *)body, len}};
    bool with_body = len > 0 && !req->is_head && status_has_body(status);
    r = stream_writev(&c->stream, iov, with_body ? 2 : 1);
    conn_wrote(c);
    req->status = status;
    req->sent = with_body ? len : 0;
    return r;
}

void http_reply(struct http_request *req, unsigned status, const char *type, const void *body,
                size_t len)
{
    assert(!req->started);
    request_replied(req, status, type, body, len);
    if (req->conn != NULL && req->conn->state < CONN_HANDLER)
        conn_begin_answer(req->conn); /* refused before it got to a handler */
    if (!connected(req)) {
        finish(req);
        return;
    }
    int r = send_whole(req, status, type, body, len);
    if (r == -ENOBUFS && len > 0) {
        req->conn->close = true;
        r = send_whole(req, 500, "text/plain", "answer too large\n", 17);
    }
    if (r == 0)
        finish(req);
    else
        give_up(req);
}

static const char *otherwise(const char *text, const char *other)
{
    return text != NULL ? text : other;
}

static void put_problem(struct buf *out, const struct http_problem *p)
{
    const char *cause = otherwise(p->cause, http_problem_cause(p->code));
    const char *remediation = otherwise(p->remediation, http_problem_remediation(p->code));
    struct jw w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "type", "about:blank");
    jw_kstr(&w, "title", http1_reason(p->status));
    jw_kint(&w, "status", p->status);
    jw_kstr(&w, "detail", otherwise(p->detail, cause));
    jw_kstr(&w, "code", p->code);
    jw_kstr(&w, "cause", otherwise(cause, "an error"));
    jw_kstr(&w, "remediation", otherwise(remediation, "see boxd's log"));
    for (const char *const *more = p->more; more != NULL && more[0] != NULL; more += 2)
        jw_kstr(&w, more[0], more[1]);
    jw_object_end(&w);
    if (jw_end(&w) < 0) {
        /* The texts are too long; the code is what programs go by. */
        buf_reset(out);
        (void)buf_printf(out, "{\"type\":\"about:blank\",\"status\":%u,\"code\":\"error\"}",
                         p->status);
    }
}

void http_reply_problem(struct http_request *req, const struct http_problem *problem)
{
    AUTO_DONE(buf) struct buf body;

    buf_init(&body, PROBLEM_MAX);
    put_problem(&body, problem);
    http_reply(req, problem->status, problem_type, body.data, body.len);
}

void http_reply_error(struct http_request *req, unsigned status, const char *code,
                      const char *detail, const char *remediation)
{
    http_reply_problem(
        req, &(struct http_problem){
                 .status = status, .code = code, .detail = detail, .remediation = remediation});
}

static int put_start(struct buf *head, struct http_request *req, unsigned status, const char *type)
{
    int r = put_common(head, req->conn, status, type);
    if (r == 0)
        r = put_request_headers(head, req);
    if (r == 0 && req->counted && status_has_body(status))
        r = http1_put_length(head, req->left);
    if (r == 0 && req->chunked)
        r = http1_put_header(head, "Transfer-Encoding", "chunked");
    return r == 0 ? http1_put_end(head) : r;
}

static void start(struct http_request *req, unsigned status, const char *type)
{
    AUTO_DONE(buf) struct buf head;
    struct http_conn *c = req->conn;

    buf_init(&head, ANSWER_HEAD_MAX);
    assert(!req->started);
    req->started = true;
    if (!connected(req))
        return;
    req->status = status;
    req->no_body = req->is_head || !status_has_body(status);
    req->chunked = !req->counted && req->head.minor > 0 && status_has_body(status);
    if ((req->head.minor == 0 && !req->counted) || !c->body.done)
        c->close = true; /* the end of the connection is the end of the answer */
    int r = put_start(&head, req, status, type);
    if (r == 0)
        r = stream_write(&c->stream, head.data, head.len);
    if (r < 0)
        conn_kill(c);
    else
        conn_wrote(c);
}

void http_reply_start(struct http_request *req, unsigned status, const char *type)
{
    start(req, status, type);
}

void http_reply_start_length(struct http_request *req, unsigned status, const char *type,
                             uint64_t length)
{
    req->counted = true;
    req->left = length;
    start(req, status, type);
}

int http_reply_chunk(struct http_request *req, const void *data, size_t len)
{
    char line[HTTP1_CHUNK_HEAD_MAX];

    assert(req->started);
    if (!connected(req))
        return -EPIPE;
    if (len == 0 || req->no_body)
        return 0; /* an empty chunk would be the end */
    if (req->counted && len > req->left)
        return -EMSGSIZE;
    size_t n = req->chunked ? http1_chunk_head(line, len) : 0;
    struct iovec iov[] = {{line, n}, {(void *)data, len}, {(void *)"\r\n", req->chunked ? 2 : 0}};
    int r = stream_writev(&req->conn->stream, iov, ARRAY_SIZE(iov));
    if (r == 0 && req->counted)
        req->left -= len;
    conn_wrote(req->conn);
    req->sent += r == 0 ? len : 0;
    return r;
}

bool http_reply_full(const struct http_request *req)
{
    return connected(req) && stream_queued(&req->conn->stream) > req->conn->server->opts.low_water;
}

void http_reply_end(struct http_request *req)
{
    int r = 0;

    assert(req->started);
    if (connected(req) && req->chunked && !req->no_body) {
        r = stream_write(&req->conn->stream, HTTP1_CHUNK_END, sizeof(HTTP1_CHUNK_END) - 1);
        conn_wrote(req->conn);
    }
    if (r < 0 || (req->counted && req->left > 0 && !req->no_body))
        give_up(req); /* cut short, and the peer can tell */
    else
        finish(req);
}

void http_abort(struct http_request *req)
{
    give_up(req);
}

/* What a peer is told that never got as far as a request: the same bytes for the same status,
 * whatever was sent. */
static const struct {
    unsigned status;
    const char *code;
    const char *header; /* one more header line, or NULL */
} refusals[] = {
    {400, "bad_request", NULL},
    {401, "unauthorized", "WWW-Authenticate: Bearer\r\n"},
    {403, "forbidden", NULL},
    {HTTP_REFUSE_USER, "user_not_served", NULL},
    {408, "timeout", NULL},
    {413, "too_large", NULL},
    {429, "too_many_requests", NULL},
    {431, "head_too_large", NULL},
    {501, "unsupported_transfer_coding", NULL},
    {503, "unavailable", NULL},
    {505, "unsupported_version", NULL},
};

void reply_refusal(struct http_conn *c, unsigned status)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_DONE(buf) struct buf body;
    size_t i = 0;

    buf_init(&out, ANSWER_HEAD_MAX);
    buf_init(&body, PROBLEM_MAX);
    while (i + 1 < ARRAY_SIZE(refusals) && refusals[i].status != status)
        i++;
    put_problem(&body, &(struct http_problem){
                           .status = status % 1000,
                           .code = refusals[i].status == status ? refusals[i].code : "refused"});
    (void)put_common(&out, c, status % 1000, problem_type);
    if (refusals[i].status == status && refusals[i].header != NULL)
        (void)buf_puts(&out, refusals[i].header);
    (void)http1_put_length(&out, body.len);
    (void)http1_put_end(&out);
    (void)buf_append(&out, body.data, body.len);
    (void)stream_write(&c->stream, out.data, out.len);
    conn_wrote(c);
}

void reply_continue(struct http_conn *c)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    (void)stream_write(&c->stream, text, sizeof(text) - 1);
}

static void refuse_upgrade(struct http_request *req, unsigned status, const char *why)
{
    if (status == 426)
        (void)http_reply_header(req, "Sec-WebSocket-Version", "13");
    if (status == 426)
        (void)http_reply_header(req, "Upgrade", "websocket");
    if (status == 405)
        (void)http_reply_header(req, "Allow", "GET");
    http_reply_error(req, status, "bad_upgrade", why, NULL);
}

static int put_switch(struct buf *out, const struct http_request *req, const char *accept,
                      const char *protocol)
{
    int r = http1_put_status(out, 101);
    if (r == 0)
        r = http1_put_header(out, "Upgrade", "websocket");
    if (r == 0)
        r = http1_put_header(out, "Connection", "Upgrade");
    if (r == 0)
        r = http1_put_header(out, "Sec-WebSocket-Accept", accept);
    if (r == 0 && protocol != NULL && ws_offers_protocol(&req->head, protocol))
        r = http1_put_header(out, "Sec-WebSocket-Protocol", protocol);
    if (r == 0)
        r = http1_put_header(out, "X-Request-Id", req->id);
    if (r == 0 && req->headers.len > 0)
        r = buf_append(out, req->headers.data, req->headers.len);
    return r == 0 ? http1_put_end(out) : r;
}

int http_upgrade_ws(struct http_request *req, const struct ws_opts *opts,
                    const struct ws_handlers *handlers, void *arg, struct ws_conn **ret,
                    struct err *err)
{
    AUTO_DONE(buf) struct buf answer;
    char accept[WS_ACCEPT_SIZE];
    const char *why = NULL;
    struct http_conn *c = req->conn;

    buf_init(&answer, ANSWER_HEAD_MAX);
    if (!connected(req)) {
        finish(req);
        return err_set(err, ERR_STATE, "the peer has gone");
    }
    unsigned status = ws_check_request(&req->head, accept, &why);
    if (status != 101) {
        refuse_upgrade(req, status, why);
        return err_set(err, ERR_INVALID, "no WebSocket upgrade: %s", why);
    }
    int r = put_switch(&answer, req, accept, opts != NULL ? opts->protocol : NULL);
    if (r < 0) {
        give_up(req);
        return err_sys(err, -r, "write the WebSocket answer");
    }
    /* No earlier answer is queued: a request is only read once the last one is out. */
    assert(stream_queued(&c->stream) == 0);
    struct ws_start start = {
        .loop = c->stream.loop,
        .role = WS_SERVER,
        .fd = conn_detach(c),
        .opts = opts,
        .handlers = handlers,
        .arg = arg,
        .owner = &c->server->sockets,
        .early = c->rest != NULL ? c->rest : c->in.data,
        .early_len = c->rest != NULL ? c->rest_len : c->in.len,
        .answer = answer.data,
        .answer_len = answer.len,
        .user = {req->user, req->user_done, request_pass(req)},
    };
    req->user_done = NULL; /* the WebSocket's from now on */
    req->status = 101;
    request_free(req);
    r = ws_conn_new(&start, ret);
    return r < 0 ? err_sys(err, -r, "start the WebSocket") : 0;
}
