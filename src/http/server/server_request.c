/* SPDX-License-Identifier: Apache-2.0 */

/* One request: its copy of the head, its accessors, and its callbacks. */

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define REPLY_HEADERS_MAX 4096

static void rebase(struct http1_str *s, const char *from, const char *to)
{
    if (s->p != NULL)
        s->p = to + (s->p - from);
}

/* Ends a string in our copy of the head. The byte after it is a separator we no longer need. */
static void cut(struct http1_str s)
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
        cut(h->headers[i].name);
        cut(h->headers[i].value);
    }
    cut(h->method);
    cut(h->path);
    cut(h->query);
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

void request_replied(struct http_request *req, unsigned status, const char *type, const void *body,
                     size_t len)
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

const char *http_request_query(const struct http_request *req)
{
    return req->head.query.p;
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

bool http_request_cancelled(const struct http_request *req)
{
    return req->conn == NULL || req->conn->state == CONN_DEAD;
}

const char *http_request_bearer(const struct http_request *req)
{
    static const char scheme[] = "Bearer ";

    /* Two of them would leave it open who is asking. */
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
