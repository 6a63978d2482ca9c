/* SPDX-License-Identifier: Apache-2.0 */

/* A request and its answer: what the handler reads, and what it writes. */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define REPLY_HEADERS_MAX 4096

static void rebase(struct http1_str *s, const char *from, const char *to)
{
    if (s->p != NULL)
        s->p = to + (s->p - from);
}

/* Ends a string in our copy of the head. The byte after it is a separator we no longer need. */
static void end_string(struct http1_str s)
{
    if (s.p != NULL)
        ((char *)s.p)[s.len] = '\0';
}

/* The head moves from the shared read buffer into memory of the request, and becomes strings. */
static void adopt_head(struct http_request *req, const struct http1_head *head, const char *text)
{
    struct http1_head *h = &req->head;

    memcpy(h, head, offsetof(struct http1_head, headers));
    struct http1_str *const parts[] = {&h->method, &h->target, &h->path, &h->query, &h->host};
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        rebase(parts[i], text, req->text);
    for (size_t i = 0; i < h->n_headers; i++) {
        h->headers[i] = head->headers[i];
        rebase(&h->headers[i].name, text, req->text);
        rebase(&h->headers[i].value, text, req->text);
        end_string(h->headers[i].name);
        end_string(h->headers[i].value);
    }
    end_string(h->method);
    end_string(h->path);
    end_string(h->query);
}

/* What a peer calls it is kept only if it can do no harm in a header or a log. */
static void choose_id(struct http_request *req)
{
    const struct http1_header *h = http1_find(&req->head, "X-Request-Id");

    if (h != NULL && http1_count(&req->head, "X-Request-Id") == 1 && log_request_valid(h->value.p))
        (void)str_copy(req->id, sizeof(req->id), h->value.p);
    else
        log_request_make(req->id);
}

struct http_request *request_new(struct http_conn *c, const struct http1_head *head,
                                 const char *text, size_t len)
{
    /* One block: the struct with the headers in use, the text, and the decoded parameters, which
     * are never longer than the path plus a NUL each. All of it is bounded by max_head. */
    size_t fixed =
        offsetof(struct http_request, head.headers) + head->n_headers * sizeof(struct http1_header);
    size_t params = head->path.len + REQUEST_PARAMS_MAX;
    struct http_request *req = xcalloc(1, fixed + len + 1 + params);

    req->conn = c;
    req->server = c->server;
    req->since = loop_now(c->stream.loop);
    req->text = (char *)req + fixed;
    req->params_text = req->text + len + 1;
    req->params_size = params;
    memcpy(req->text, text, len);
    adopt_head(req, head, text);
    req->is_head = http1_str_eq(req->head.method, "HEAD");
    req->is_unix = c->is_unix;
    req->peer = c->peer;
    choose_id(req);
    buf_init(&req->headers, REPLY_HEADERS_MAX);
    buf_init(&req->body, 0);
    return req;
}

static void request_tell(struct http_request *req)
{
    struct http_server *s = req->server;

    req->server = NULL;
    if (s == NULL || s->opts.answered == NULL)
        return;
    LOG_REQUEST(req->id);
    const struct http_answer answer = {.req = req,
                                       .route = req->route,
                                       .status = req->status,
                                       .bytes = req->sent,
                                       .duration_ns = loop_now(s->loop) - req->since};
    s->opts.answered(s->opts.arg, &answer);
}

/* Tells the observer of the answer, once. */
static void request_replied(struct http_request *req, unsigned status, const char *type,
                            const void *body, size_t len)
{
    http_reply_fn *fn = req->on_reply;

    req->on_reply = NULL;
    if (fn != NULL)
        fn(req->reply_arg, status, type, body, len);
}

void http_on_reply(struct http_request *req, http_reply_fn *fn, void *arg)
{
    req->on_reply = fn;
    req->reply_arg = arg;
}

void request_free(struct http_request *req)
{
    if (req == NULL)
        return;
    request_tell(req);
    request_replied(req, 0, NULL, NULL, 0);
    if (req->conn != NULL)
        req->conn->req = NULL;
    http_request_set_user(req, NULL, NULL);
    buf_done(&req->headers);
    buf_done(&req->body);
    free(req);
}

void request_lost(struct http_request *req)
{
    void (*fn)(struct http_request *, void *) = req->on_cancel;

    req->conn->req = NULL;
    req->conn = NULL;
    request_tell(req); /* the server may be gone when its handler is through */
    if (!req->dispatched) {
        request_free(req);
        return;
    }
    req->on_cancel = NULL;
    LOG_REQUEST(req->id);
    if (fn != NULL)
        fn(req, req->cancel_arg);
}

void http_request_set_user(struct http_request *req, const void *user,
                           void (*done)(const void *user))
{
    if (req->user_done != NULL)
        req->user_done(req->user);
    req->user = user;
    req->user_done = done;
}

void http_request_set_pass(struct http_request *req, uint64_t pass)
{
    req->pass = pass;
}

uint64_t request_pass(const struct http_request *req)
{
    return (req->route->flags & HTTP_ROUTE_SCOPED) != 0 ? req->pass : 0;
}

void http_on_revoked(struct http_request *req,
                     void (*fn)(struct http_request *req, const char *reason, void *arg), void *arg)
{
    req->on_revoked = fn;
    req->revoked_arg = arg;
}

void request_revoke(struct http_request *req, const char *reason)
{
    void (*fn)(struct http_request *, void *) = req->on_cancel;

    if (req->on_revoked == NULL || fn == NULL) {
        conn_kill(req->conn);
        return;
    }
    LOG_REQUEST(req->id);
    req->on_cancel = NULL;
    req->on_revoked(req, reason, req->revoked_arg);
    fn(req, req->cancel_arg);
}

const void *http_request_user(const struct http_request *req)
{
    return req->user;
}

const char *http_request_method(const struct http_request *req)
{
    return req->head.method.p;
}

const char *http_request_id(const struct http_request *req)
{
    return req->id;
}

const char *http_request_path(const struct http_request *req)
{
    return req->head.path.len > 0 ? req->head.path.p : "/";
}

const char *http_request_param(const struct http_request *req, const char *name)
{
    for (size_t i = 0; i < req->n_params; i++)
        if (http1_str_eq(req->params[i].name, name))
            return req->params[i].value;
    return NULL;
}

ssize_t http_request_query_get(const struct http_request *req, const char *name, char *ret,
                               size_t size)
{
    size_t name_len = strlen(name);
    const char *p = req->head.query.p;

    while (p != NULL) {
        size_t len = strcspn(p, "&");
        if (len >= name_len && memcmp(p, name, name_len) == 0) {
            if (len == name_len)
                return http1_percent_decode((struct http1_str){p, 0}, true, ret, size);
            if (p[name_len] == '=') {
                struct http1_str value = {p + name_len + 1, len - name_len - 1};
                return http1_percent_decode(value, true, ret, size);
            }
        }
        p = p[len] == '&' ? p + len + 1 : NULL;
    }
    return -ENOENT;
}

const char *http_request_header(const struct http_request *req, const char *name)
{
    const struct http1_header *h = http1_find(&req->head, name);
    return h != NULL ? h->value.p : NULL;
}

const struct http1_head *http_request_head(const struct http_request *req)
{
    return &req->head;
}

const char *http_request_body(const struct http_request *req, size_t *ret_len)
{
    if (ret_len != NULL)
        *ret_len = req->body.len;
    return buf_str(&req->body);
}

const struct peer *http_request_peer(const struct http_request *req)
{
    return &req->peer;
}

bool http_request_is_unix(const struct http_request *req)
{
    return req->is_unix;
}

void http_request_again(struct http_request *req)
{
    LOG_REQUEST(req->id);
    req->route->handler(req, req->arg);
}

bool http_request_cancelled(const struct http_request *req)
{
    return req->conn == NULL || req->conn->state == CONN_DEAD;
}

const char *http_request_bearer(const struct http_request *req)
{
    static const char scheme[] = "Bearer ";

    /* With two of them it is not clear which user asks. */
    const char *value = http_request_header(req, "Authorization");
    if (value == NULL || http1_count(&req->head, "Authorization") != 1)
        return NULL;
    if (strncasecmp(value, scheme, sizeof(scheme) - 1) != 0)
        return NULL;
    value += sizeof(scheme) - 1;
    return value + strspn(value, " ");
}

void http_body_start(struct http_request *req, http_body_fn *fn, void *arg)
{
    req->body_fn = fn;
    req->body_arg = arg;
    if (req->conn != NULL)
        conn_body_wanted(req->conn);
}

void http_body_hold(struct http_request *req, bool held)
{
    req->body_held = held;
    if (req->conn != NULL)
        conn_body_wanted(req->conn);
}

void http_on_cancel(struct http_request *req, void (*fn)(struct http_request *req, void *arg),
                    void *arg)
{
    req->on_cancel = fn;
    req->cancel_arg = arg;
}

void http_on_writable(struct http_request *req, void (*fn)(struct http_request *req, void *arg),
                      void *arg)
{
    req->on_writable = fn;
    req->writable_arg = arg;
}

/* Answers: whole, in pieces, problems, refusals, and the upgrade to a WebSocket. */

#define ANSWER_HEAD_MAX 8192
#define PROBLEM_MAX 16384

static const char problem_type[] = "application/problem+json";

/* The client still waits for the answer. */
static bool connected(const struct http_request *req)
{
    return req->conn != NULL && req->conn->state == CONN_HANDLER;
}

/* Once a second at most; every answer carries it. */
static const char *server_date(struct http_server *s)
{
    uint64_t sec = clock_real(loop_clock(s->loop)) / NSEC_PER_SEC;

    if (sec == s->date_sec && s->date[0] != '\0')
        return s->date;
    s->date_sec = sec;
    return clock_format_http((time_t)sec, s->date) ? s->date : "Thu, 01 Jan 1970 00:00:00 GMT";
}

/* What fails stays in the buffer; http1_put_end() tells. */
static void put_common(struct buf *out, struct http_conn *c, unsigned status, const char *type)
{
    (void)http1_put_status(out, status);
    (void)http1_put_header(out, "Date", server_date(c->server));
    if (type != NULL)
        (void)http1_put_header(out, "Content-Type", type);
    if (conn_will_close(c))
        (void)http1_put_header(out, "Connection", "close");
}

static void put_request_headers(struct buf *out, const struct http_request *req)
{
    (void)http1_put_header(out, "X-Request-Id", req->id);
    if (req->head.minor == 0 && !conn_will_close(req->conn))
        (void)http1_put_header(out, "Connection", "keep-alive");
    if (req->headers.len > 0)
        (void)buf_append(out, req->headers.data, req->headers.len);
}

static bool status_has_body(unsigned status)
{
    return status >= 200 && status != 204 && status != 304;
}

/* Ends a request whose answer is out, or whose client has gone. */
static void answer_end(struct http_request *req)
{
    struct http_conn *c = req->conn;

    request_free(req);
    if (c != NULL)
        conn_answered(c);
}

/* Also where the answer cannot be written: the queue is full, or a header of ours is wrong. */
void http_abort(struct http_request *req)
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
    AUTO_DONE(buf) struct buf head = BUF_INIT(ANSWER_HEAD_MAX);
    struct http_conn *c = req->conn;

    (void)buf_reserve(&head, 512);
    if (!c->body.done)
        c->close = true; /* known here already, and said in the head */
    put_common(&head, c, status, type);
    put_request_headers(&head, req);
    if (status_has_body(status))
        (void)http1_put_length(&head, len);
    int r = http1_put_end(&head);
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
        answer_end(req);
        return;
    }
    int r = send_whole(req, status, type, body, len);
    if (r == -ENOBUFS && len > 0) {
        req->conn->close = true;
        r = send_whole(req, 500, "text/plain", "answer too large\n", 17);
    }
    if (r == 0)
        answer_end(req);
    else
        http_abort(req);
}

static const char *otherwise(const char *text, const char *other)
{
    return text != NULL ? text : other;
}

static void put_problem(struct buf *out, const struct http_problem *p)
{
    const struct http_problem_text *known = http_problem_text(p->code);
    const char *cause = otherwise(p->cause, known->cause);
    const char *remediation = otherwise(p->remediation, known->remediation);
    struct jw w = JW_INIT(out);

    jw_object(&w);
    jw_kstr(&w, "type", "about:blank");
    jw_kstr(&w, "title", http1_reason(p->status));
    jw_kint(&w, "status", p->status);
    jw_kstr(&w, "detail", otherwise(p->detail, cause));
    jw_kstr(&w, "code", p->code);
    jw_kstr(&w, "cause", cause);
    jw_kstr(&w, "remediation", remediation);
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
    AUTO_DONE(buf) struct buf body = BUF_INIT(PROBLEM_MAX);

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
    put_common(head, req->conn, status, type);
    put_request_headers(head, req);
    if (req->counted && status_has_body(status))
        (void)http1_put_length(head, req->left);
    if (req->chunked)
        (void)http1_put_header(head, "Transfer-Encoding", "chunked");
    return http1_put_end(head);
}

void http_reply_start(struct http_request *req, unsigned status, const char *type)
{
    AUTO_DONE(buf) struct buf head = BUF_INIT(ANSWER_HEAD_MAX + req->headers.len);
    struct http_conn *c = req->conn;

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

void http_reply_switch(struct http_request *req, const char *protocol)
{
    AUTO_DONE(buf) struct buf head = BUF_INIT(ANSWER_HEAD_MAX + req->headers.len);
    struct http_conn *c = req->conn;

    assert(!req->started);
    req->started = true;
    req->raw = true;
    if (!connected(req))
        return;
    req->status = 101;
    c->close = true;
    c->continued = true; /* what follows is the new protocol's */
    http1_body_init(&c->body, HTTP1_BODY_UNTIL_CLOSE, 0);
    (void)http1_put_status(&head, 101);
    (void)http1_put_header(&head, "Upgrade", protocol);
    (void)http1_put_header(&head, "Connection", "Upgrade");
    (void)http1_put_header(&head, "X-Request-Id", req->id);
    (void)buf_append(&head, req->headers.data, req->headers.len);
    if (http1_put_end(&head) < 0 || stream_write(&c->stream, head.data, head.len) < 0)
        conn_kill(c);
    else
        conn_wrote(c);
}

void http_reply_start_length(struct http_request *req, unsigned status, const char *type,
                             uint64_t length)
{
    req->counted = true;
    req->left = length;
    http_reply_start(req, status, type);
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
        http_abort(req); /* cut short, and the peer can tell */
    else
        answer_end(req);
}

/* The answer to what never became a request: the same bytes for the same status, whatever was
 * sent. */
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
    AUTO_DONE(buf) struct buf out = BUF_INIT(ANSWER_HEAD_MAX);
    AUTO_DONE(buf) struct buf body = BUF_INIT(PROBLEM_MAX);
    size_t i = 0;

    while (i + 1 < ARRAY_SIZE(refusals) && refusals[i].status != status)
        i++;
    put_problem(&body, &(struct http_problem){
                           .status = status % 1000,
                           .code = refusals[i].status == status ? refusals[i].code : "refused"});
    put_common(&out, c, status % 1000, problem_type);
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
    (void)http1_put_status(out, 101);
    (void)http1_put_header(out, "Upgrade", "websocket");
    (void)http1_put_header(out, "Connection", "Upgrade");
    (void)http1_put_header(out, "Sec-WebSocket-Accept", accept);
    if (protocol != NULL && ws_offers_protocol(&req->head, protocol))
        (void)http1_put_header(out, "Sec-WebSocket-Protocol", protocol);
    (void)http1_put_header(out, "X-Request-Id", req->id);
    if (req->headers.len > 0)
        (void)buf_append(out, req->headers.data, req->headers.len);
    return http1_put_end(out);
}

int http_upgrade_ws(struct http_request *req, const struct ws_opts *opts,
                    const struct ws_handlers *handlers, void *arg, struct ws_conn **ret,
                    struct err *err)
{
    AUTO_DONE(buf) struct buf answer = BUF_INIT(ANSWER_HEAD_MAX);
    char accept[WS_ACCEPT_SIZE];
    const char *why = NULL;
    struct http_conn *c = req->conn;

    if (!connected(req)) {
        answer_end(req);
        return err_set(err, ERR_STATE, "the peer has gone");
    }
    unsigned status = ws_check_request(&req->head, accept, &why);
    if (status != 101) {
        refuse_upgrade(req, status, why);
        return err_set(err, ERR_INVALID, "no WebSocket upgrade: %s", why);
    }
    int r = put_switch(&answer, req, accept, opts != NULL ? opts->protocol : NULL);
    if (r < 0) {
        http_abort(req);
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
