/* SPDX-License-Identifier: Apache-2.0 */

/* The reverse proxy: the head of the request and of the answer are written anew from what the codec
 * has understood, so that nothing ambiguous is passed on. */

#include "http/proxy/proxy.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define HEAD_MAX 65536           /* of the server's answer, and of our request */
#define QUEUE_MAX (1024U * 1024) /* towards the server; LOW_WATER and one read are what is used */
#define LOW_WATER 65536
#define INTERIMS_MAX 8
#define STALL_NS (60 * NSEC_PER_SEC) /* a server that takes none of the request */

/* Pages of the server are no pages of ours. */
#define PAGE_POLICY "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"

/*   HEAD ──> BODY ──> OVER
 *     └────> RAW ──────^      (every state can fail into OVER)   */
enum proxy_state { PROXY_HEAD, PROXY_BODY, PROXY_RAW, PROXY_OVER };

struct http_proxy {
    enum proxy_state state;
    struct http_request *req; /* owed an answer; NULL once it has one */
    struct stream up;         /* the server */
    struct loop_defer defer;
    struct http1_scan scan;
    struct http1_body body;
    struct buf in; /* part of a head */
    char *prefix;  /* owned */
    unsigned interims;
    bool upgrade;        /* the client asks for a WebSocket */
    bool chunked;        /* the body of the request is passed on so */
    bool shut_when_sent; /* the client sends no more: nor do we */
    void (*ended)(void *arg);
    void *arg;
};

static struct http_proxy *from_stream(struct stream *s)
{
    return container_of(s, struct http_proxy, up);
}

static void on_over(struct loop_defer *d)
{
    struct http_proxy *p = container_of(d, struct http_proxy, defer);
    p->ended(p->arg);
}

/* The request was answered. */
static void proxy_over(struct http_proxy *p)
{
    assert(p->req == NULL);
    p->state = PROXY_OVER;
    stream_pause(&p->up, STREAM_HANGUP_KEEP);
    loop_defer_start(p->up.loop, &p->defer, on_over);
}

static void proxy_answer_lost(struct http_proxy *p, const char *why)
{
    struct http_request *req = TAKE_PTR(p->req);
    if (req->started || http_request_cancelled(req))
        http_abort(req);
    else
        http_reply_error(req, 502, "bad_gateway", why,
                         "look at the server's own output inside the session");
}

static void proxy_fail(struct http_proxy *p, const char *why)
{
    if (p->state == PROXY_OVER)
        return;
    proxy_answer_lost(p, why);
    proxy_over(p);
}

/* The request ------------------------------------------------------------------------------------
 */

static bool named(const char *const *list, struct http1_str name)
{
    for (; *list != NULL; list++)
        if (http1_str_case_eq(name, *list))
            return true;
    return false;
}

/* Between two hops only, or written by us. */
static const char *const request_own[] = {
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "Proxy-Authorization",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Content-Length",
    "Expect",
    "Host",
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Prefix",
    "X-Request-Id",
    NULL,
};

/* A bearer token is what clients of ours are known by. */
static bool is_token(const struct http1_header *h)
{
    static const char scheme[] = "Bearer";
    return http1_str_case_eq(h->name, "Authorization") &&
           strncasecmp(h->value.p, scheme, sizeof(scheme) - 1) == 0;
}

static void put_forwarded(struct buf *out, const struct http_request *req, const char *prefix)
{
    char text[INET6_ADDRSTRLEN] = "";
    union address peer = {0};
    socklen_t len = sizeof(peer);
    int fd = req->conn != NULL ? req->conn->stream.fd : -1;
    if (!req->is_unix && getpeername(fd, &peer.any, &len) == 0)
        (void)inet_ntop(peer.any.sa_family,
                        peer.any.sa_family == AF_INET ? (const void *)&peer.v4.sin_addr
                                                      : (const void *)&peer.v6.sin6_addr,
                        text, sizeof(text));
    if (text[0] != '\0')
        (void)http1_put_header(out, "X-Forwarded-For", text);
    if (req->head.host.p != NULL) {
        AUTO_FREE char *host = xstrndup(req->head.host.p, req->head.host.len);
        (void)http1_put_header(out, "X-Forwarded-Host", host);
    }
    (void)http1_put_header(out, "X-Forwarded-Proto", "http");
    (void)http1_put_header(out, "X-Forwarded-Prefix", prefix);
    (void)http1_put_header(out, "X-Request-Id", req->id);
}

static int put_request(struct http_proxy *p, const struct http_proxy_opts *opts, struct buf *out)
{
    const struct http_request *req = p->req;
    const struct http1_head *h = &req->head;
    AUTO_DONE(buf) struct buf target = BUF_INIT(HEAD_MAX);
    AUTO_FREE char *host =
        h->host.p != NULL ? xstrndup(h->host.p, h->host.len) : xstrdup(opts->host);
    (void)buf_puts(&target, opts->path);
    if (h->query.p != NULL)
        (void)buf_printf(&target, "?%s", h->query.p);
    (void)http1_put_request(out, h->method.p, buf_str(&target));
    (void)http1_put_header(out, "Host", host);
    for (size_t i = 0; i < h->n_headers; i++)
        if (!named(request_own, h->headers[i].name) && !is_token(&h->headers[i]) &&
            !http1_lists(h, "Connection", h->headers[i].name.p))
            (void)http1_put_header(out, h->headers[i].name.p, h->headers[i].value.p);
    put_forwarded(out, req, p->prefix);
    if (p->upgrade)
        (void)http1_put_header(out, "Upgrade", "websocket");
    (void)http1_put_header(out, "Connection", p->upgrade ? "Upgrade" : "close");
    if (p->chunked)
        (void)http1_put_header(out, "Transfer-Encoding", "chunked");
    else if (h->has_length)
        (void)http1_put_length(out, h->content_length);
    return http1_put_end(out);
}

static void hold_client(struct http_proxy *p)
{
    http_body_hold(p->req, stream_queued(&p->up) > LOW_WATER);
    if (stream_queued(&p->up) > 0)
        stream_arm(&p->up, p->up.last_out + STALL_NS);
}

static int send_piece(struct http_proxy *p, const char *data, size_t len, bool end)
{
    char line[HTTP1_CHUNK_HEAD_MAX];
    if (p->chunked && end)
        return stream_write(&p->up, HTTP1_CHUNK_END, sizeof(HTTP1_CHUNK_END) - 1);
    size_t n = p->chunked ? http1_chunk_head(line, len) : 0;
    struct iovec iov[] = {{line, n}, {(void *)data, len}, {(void *)"\r\n", p->chunked ? 2 : 0}};
    return len > 0 ? stream_writev(&p->up, iov, ARRAY_SIZE(iov)) : 0;
}

static void on_body(struct http_request *req, const char *data, size_t len, bool end, void *arg)
{
    struct http_proxy *p = arg;
    int r = send_piece(p, data, len, end);
    if (r == -ENOBUFS) {
        proxy_fail(p, "the server in the session takes too little of the request");
        return;
    }
    /* What it does not want of a request it has answered it need not take; and of one that it has
     * not answered, its last words are still read. */
    if (r < 0)
        return;
    if (end && p->state == PROXY_RAW) {
        p->shut_when_sent = stream_queued(&p->up) > 0;
        if (!p->shut_when_sent)
            stream_shutdown(&p->up);
    }
    hold_client(p);
}

/* The answer -------------------------------------------------------------------------------------
 */

/* Between two hops only, written by us, or about all of our address. */
static const char *const answer_own[] = {
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "Proxy-Authenticate",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
    "Date",
    "Content-Length",
    "X-Request-Id",
    "Alt-Svc",
    "Clear-Site-Data",
    "Strict-Transport-Security",
    "Service-Worker-Allowed",
    NULL,
};

/* "." or "..", also where the dots are encoded. */
static bool is_dots(const char *segment, size_t len)
{
    unsigned n = 0;
    for (size_t i = 0; i < len; n++) {
        if (segment[i] == '.')
            i++;
        else if (len - i >= 3 && strncasecmp(segment + i, "%2e", 3) == 0)
            i += 3;
        else
            return false;
    }
    return n == 1 || n == 2;
}

/* Whether a reference without an authority leads to a path below the prefix, however a client
 * resolves it. */
static bool stays_below(const char *value)
{
    if (value[0] == '/' && value[1] == '/')
        return false;
    if (value[strcspn(value, ":/?#")] == ':' || strpbrk(value, "\\\t") != NULL)
        return false;
    for (const char *at = value;; at++) {
        size_t len = strcspn(at, "/?#");
        if (is_dots(at, len))
            return false;
        at += len;
        if (*at != '/')
            return true;
    }
}

/* Behind "http://", "https://" or "//"; NULL: there is no authority. */
static const char *find_authority(const char *value)
{
    if (strncasecmp(value, "http:", 5) == 0)
        value += 5;
    else if (strncasecmp(value, "https:", 6) == 0)
        value += 6;
    return value[0] == '/' && value[1] == '/' ? value + 2 : NULL;
}

/* A client follows a redirect with its method and its token, so one of the server's may not lead to
 * the rest of our API. A path is one of the server's, and lies below the prefix; another address is
 * for those who only read. False: it is left out. */
static bool put_location(struct http_proxy *p, const char *value, struct buf *out)
{
    const struct http1_head *h = &p->req->head;
    const char *authority = find_authority(value), *path = value;
    size_t len = authority != NULL ? strcspn(authority, "/?#") : 0;
    if (len > 0 && len == h->host.len && strncasecmp(authority, h->host.p, len) == 0) {
        path = authority + len;
    } else if (authority != NULL) {
        bool reads = p->req->is_head || http1_str_eq(h->method, "GET");
        bool plain = len > 0 && memchr(authority, '@', len) == NULL;
        (void)buf_puts(out, value);
        return reads && plain && strpbrk(value, "\\\t") == NULL;
    }
    bool whole = path != value || path[0] == '/';
    (void)buf_printf(out, "%s%s%s", whole ? p->prefix : "", whole && path[0] != '/' ? "/" : "",
                     path);
    return stays_below(path);
}

/* It is sent back to this server only: our address has others. */
static void put_cookie(struct http_proxy *p, const char *value, struct buf *out)
{
    bool first = true;
    for (const char *at = value;; first = false) {
        size_t len = strcspn(at, ";");
        const char *name = at + strspn(at, " \t");
        bool ours =
            !first && (strncasecmp(name, "path", 4) == 0 || strncasecmp(name, "domain", 6) == 0);
        if (!ours)
            (void)buf_printf(out, "%s%.*s", first ? "" : ";", (int)len, at);
        if (at[len] == '\0')
            break;
        at += len + 1;
    }
    (void)buf_printf(out, "; Path=%s/", p->prefix);
}

static int pass_header(struct http_proxy *p, const struct http1_head *head,
                       const struct http1_header *h)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(2 * HEAD_MAX);
    AUTO_FREE char *name = xstrndup(h->name.p, h->name.len);
    AUTO_FREE char *value = xstrndup(h->value.p, h->value.len);
    if (named(answer_own, h->name) || http1_lists(head, "Connection", name))
        return 0;
    if (http1_str_case_eq(h->name, "Location")) {
        if (!put_location(p, value, &text))
            return 0;
    } else if (http1_str_case_eq(h->name, "Set-Cookie")) {
        put_cookie(p, value, &text);
    } else {
        (void)buf_puts(&text, value);
    }
    return http_reply_header(p->req, name, buf_str(&text));
}

static int pass_headers(struct http_proxy *p, const struct http1_head *head)
{
    int r = 0;
    p->req->headers.max = HEAD_MAX;
    for (size_t i = 0; r == 0 && i < head->n_headers; i++)
        r = pass_header(p, head, &head->headers[i]);
    return r == 0 ? http_reply_header(p->req, "Content-Security-Policy", PAGE_POLICY) : r;
}

static void take_raw(struct http_proxy *p)
{
    p->state = PROXY_RAW;
    p->chunked = false;
    http1_body_init(&p->body, HTTP1_BODY_UNTIL_CLOSE, 0);
    http_reply_switch(p->req, "websocket");
    http_body_start(p->req, on_body, p);
}

static void on_head(struct http_proxy *p, const struct http1_head *head)
{
    struct http_request *req = p->req;
    if (head->status == 101 && !p->upgrade) {
        proxy_fail(p, "the server in the session switched protocols without being asked");
        return;
    }
    if (pass_headers(p, head) < 0) {
        buf_reset(&req->headers);
        proxy_fail(p, "the server in the session sent headers that cannot be passed on");
        return;
    }
    if (head->status == 101) {
        take_raw(p);
        return;
    }
    p->state = PROXY_BODY;
    http1_body_init(&p->body, http1_response_body(head, req->is_head), head->content_length);
    if (head->has_length && !head->chunked)
        http_reply_start_length(req, head->status, NULL, head->content_length);
    else
        http_reply_start(req, head->status, NULL);
}

/* Each takes bytes off the front and returns how many; 0 asks for more. */

static size_t take_head(struct http_proxy *p, const char *data, size_t len)
{
    struct http1_head head;
    ssize_t n = http1_scan(&p->scan, data, len, HEAD_MAX);
    if (n == 0)
        return 0;
    int r = n < 0 ? (int)n : http1_parse(HTTP1_RESPONSE, data, (size_t)n, &head);
    if (r < 0) {
        proxy_fail(p, "what listens there in the session does not answer as an HTTP server does");
        return len;
    }
    if (head.status >= 200 || head.status == 101) {
        on_head(p, &head);
    } else {
        p->scan = (struct http1_scan){0};
        if (++p->interims > INTERIMS_MAX)
            proxy_fail(p, "the server in the session sent too many interim answers");
    }
    return (size_t)n;
}

static size_t take_body(struct http_proxy *p, char *data, size_t len)
{
    size_t size;
    ssize_t n = http1_body_gather(&p->body, data, len, &size);
    if (n < 0 || http_reply_chunk(p->req, data, size) < 0) {
        proxy_fail(p, "the server in the session sent a malformed body");
        return len;
    }
    return (size_t)n;
}

/* All of the answer is there. */
static void look_for_end(struct http_proxy *p)
{
    if ((p->state != PROXY_BODY && p->state != PROXY_RAW) || !p->body.done)
        return;
    http_reply_end(TAKE_PTR(p->req));
    proxy_over(p);
}

static size_t take_some(struct http_proxy *p, char *data, size_t len)
{
    size_t pos = 0;
    while (pos < len) {
        size_t n = len - pos;
        if (p->state == PROXY_HEAD)
            n = take_head(p, data + pos, len - pos);
        else if (p->state != PROXY_OVER && !p->body.done)
            n = take_body(p, data + pos, len - pos);
        if (n == 0)
            break;
        pos += n;
    }
    return pos;
}

static void on_data(struct stream *s, char *data, size_t len)
{
    struct http_proxy *p = from_stream(s);
    size_t used = 0;
    if (p->in.len == 0)
        used = take_some(p, data, len);
    if (used < len && buf_append(&p->in, data + used, len - used) < 0)
        proxy_fail(p, "the server in the session sent too large a head");
    else if (p->in.len > 0)
        buf_consume(&p->in, take_some(p, p->in.data, p->in.len));
    look_for_end(p);
    if (p->state != PROXY_OVER && http_reply_full(p->req))
        stream_pause(s, STREAM_HANGUP_KEEP);
}

static void on_eof(struct stream *s)
{
    struct http_proxy *p = from_stream(s);
    if (p->state == PROXY_HEAD)
        proxy_fail(p, "the server in the session closed the connection without an answer");
    else if (p->state != PROXY_OVER && http1_body_eof(&p->body) < 0)
        proxy_fail(p, "the server in the session closed the connection in the middle of an answer");
    else
        look_for_end(p);
}

static void on_sent(struct stream *s)
{
    struct http_proxy *p = from_stream(s);
    if (p->shut_when_sent && stream_queued(s) == 0) {
        p->shut_when_sent = false;
        stream_shutdown(s);
    }
    if (p->state != PROXY_OVER && stream_queued(s) <= LOW_WATER)
        http_body_hold(p->req, false);
}

static void on_timer(struct stream *s)
{
    struct http_proxy *p = from_stream(s);
    if (stream_queued(s) == 0)
        return;
    if (loop_now(s->loop) < s->last_out + STALL_NS)
        stream_arm(s, s->last_out + STALL_NS);
    else
        proxy_fail(p, "the server in the session does not read the request");
}

static void on_kick(struct stream *s)
{
    /* A server that answers before it has read all of the request is heard out. */
    if (s->error != 0 && !stream_read_rest(s))
        proxy_fail(from_stream(s), "the connection to the server in the session was lost");
}

static const struct stream_ops ops = {on_data, on_eof, on_sent, on_timer, on_kick};

/* The client. */

static void on_cancel(struct http_request *req, void *arg)
{
    proxy_fail(arg, "the client has gone");
}

static void on_writable(struct http_request *req, void *arg)
{
    struct http_proxy *p = arg;
    if (p->state != PROXY_OVER)
        stream_read(&p->up, STREAM_SCRATCH);
}

struct http_proxy *http_proxy_new(struct http_request *req, const struct http_proxy_opts *opts)
{
    AUTO_DONE(buf) struct buf head = BUF_INIT(2 * HEAD_MAX);
    struct http_proxy *p = xnew(struct http_proxy);
    const struct http1_head *h = &req->head;
    p->req = req;
    p->prefix = xstrdup(opts->prefix);
    p->ended = opts->ended;
    p->arg = opts->arg;
    p->chunked = h->chunked;
    p->upgrade = h->connection_upgrade && http1_lists(h, "Upgrade", "websocket") &&
                 http1_request_body(h) == HTTP1_BODY_NONE;
    buf_init(&p->in, HEAD_MAX + STREAM_SCRATCH);
    p->up.loop = opts->loop;
    http_on_cancel(req, on_cancel, p);
    http_on_writable(req, on_writable, p);
    int r = stream_init(&p->up, opts->loop, opts->fd, &ops, QUEUE_MAX);
    if (r < 0) {
        (void)close(opts->fd);
        p->up = (struct stream){.loop = opts->loop, .fd = -1};
    }
    if (r == 0)
        r = put_request(p, opts, &head);
    if (r == 0)
        r = stream_write(&p->up, head.data, head.len);
    if (r < 0) {
        proxy_fail(p, "the request cannot be passed on");
        return p;
    }
    stream_read(&p->up, STREAM_SCRATCH);
    if (http1_request_body(h) != HTTP1_BODY_NONE)
        http_body_start(req, on_body, p);
    return p;
}

void http_proxy_free(struct http_proxy *p)
{
    if (p == NULL)
        return;
    if (p->req != NULL)
        proxy_answer_lost(p, "the session has ended");
    loop_defer_stop(&p->defer);
    stream_done(&p->up);
    buf_done(&p->in);
    free(p->prefix);
    free(p);
}
