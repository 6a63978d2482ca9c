/* SPDX-License-Identifier: Apache-2.0 */

/* Parses endpoints, keeps idle connections, and writes requests for calls and WebSockets. */

#include "http/client/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "http/client/client_internal.h"
#include "http/codec/crypto.h"

#define IDLE_NS (20 * NSEC_PER_SEC) /* less than a server keeps one, so it seldom closes first */
#define DEFAULT_PORT "80"
#define REQUEST_HEAD_MAX 65536

/* Endpoints. */

static int set_unix(struct http_client *c, const char *path, struct err *err)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};

    if (path[0] != '/' || str_copy(sun.sun_path, sizeof(sun.sun_path), path) < 0)
        return err_set(err, ERR_INVALID, "'%s' is not an absolute path of at most %zu bytes", path,
                       sizeof(sun.sun_path) - 1);
    (void)places_add(&c->places, (const struct sockaddr *)&sun, sizeof(sun));
    c->host = xstrdup("localhost");
    return 0;
}

char *client_host_of(const char *authority, const char **ret_rest)
{
    size_t len = strcspn(authority, authority[0] == '[' ? "]" : ":/");
    if (authority[0] == '[') {
        *ret_rest = authority + len + (authority[len] == ']');
        return xstrndup(authority + 1, len - 1);
    }
    *ret_rest = authority + len;
    return xstrndup(authority, len);
}

static int set_tcp(struct http_client *c, const char *authority, struct err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const char *rest;
    AUTO_FREE char *host = client_host_of(authority, &rest);
    AUTO_FREE char *port = NULL;
    if (rest[0] == ':')
        port = xstrndup(rest + 1, strcspn(rest + 1, "/"));
    rest += port != NULL ? 1 + strlen(port) : 0;
    if (host[0] == '\0' || (rest[0] != '\0' && !str_eq(rest, "/")))
        return err_set(err, ERR_INVALID, "'%s' is not host[:port]", authority);

    int r = getaddrinfo(host, port != NULL ? port : DEFAULT_PORT, &hints, &found);
    if (r != 0)
        return err_set(err, ERR_NOT_FOUND, "look up '%s': %s", authority, gai_strerror(r));
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next)
        if (!places_add(&c->places, a->ai_addr, a->ai_addrlen))
            break;
    freeaddrinfo(found);
    c->host = xstrndup(authority, strcspn(authority, "/"));
    return 0;
}

static const struct {
    const char *prefix;
    int (*set)(struct http_client *c, const char *rest, struct err *err);
} schemes[] = {
    {"unix://", set_unix},
    {"http://", set_tcp},
    {"tcp://", set_tcp},
    {"https://", set_tcp}, /* of http_client_new_tls() only */
};

int client_new(struct loop *loop, const char *endpoint, struct http_client **ret, struct err *err)
{
    AUTO(http_client) struct http_client *c = xnew(struct http_client);

    c->loop = loop;
    c->name = xstrdup(endpoint);
    for (size_t i = 0; i < CLIENT_IDLE_MAX; i++) {
        c->idle[i].client = c;
        c->idle[i].fd = -1;
    }
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
        if (!str_starts(endpoint, schemes[i].prefix))
            continue;
        int r = schemes[i].set(c, endpoint + strlen(schemes[i].prefix), err);
        if (r < 0)
            return r;
        *ret = TAKE_PTR(c);
        return 0;
    }
    return err_set(err, ERR_INVALID, "'%s' is neither unix://path nor http://host:port", endpoint);
}

int http_client_new(struct loop *loop, const char *endpoint, struct http_client **ret,
                    struct err *err)
{
    if (str_starts(endpoint, "https://"))
        return err_set(err, ERR_INVALID, "'%s' needs TLS", endpoint);
    return client_new(loop, endpoint, ret, err);
}

/* Connections between calls. */

static void drop_idle(struct client_idle *idle)
{
    loop_io_stop(&idle->io);
    loop_timer_stop(&idle->timer);
    if (idle->fd >= 0)
        (void)close(TAKE_FD(idle->fd));
}

/* Any event on an idle connection ends it. */
static void on_idle_event(struct loop_io *io, uint32_t events)
{
    drop_idle(container_of(io, struct client_idle, io));
}

static void on_idle_timer(struct loop_timer *t)
{
    drop_idle(container_of(t, struct client_idle, timer));
}

void client_keep(struct http_client *c, int fd)
{
    AUTO_CLOSE int owned = fd;

    for (size_t i = 0; i < CLIENT_IDLE_MAX; i++) {
        struct client_idle *idle = &c->idle[i];
        if (idle->fd >= 0)
            continue;
        if (loop_io_start(c->loop, &idle->io, fd, EPOLLIN | EPOLLRDHUP, on_idle_event) < 0)
            return;
        loop_timer_start(c->loop, &idle->timer, IDLE_NS, on_idle_timer);
        idle->fd = TAKE_FD(owned);
        return;
    }
}

int client_take_idle(struct http_client *c)
{
    for (size_t i = 0; i < CLIENT_IDLE_MAX; i++) {
        struct client_idle *idle = &c->idle[i];
        char byte;
        if (idle->fd < 0)
            continue;
        /* The peer may have closed it, and the loop not have seen that yet. */
        if (recv(idle->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) {
            drop_idle(idle);
            continue;
        }
        int fd = TAKE_FD(idle->fd);
        loop_timer_stop(&idle->timer);
        loop_io_stop(&idle->io);
        return fd;
    }
    return -1;
}

void http_client_free(struct http_client *c)
{
    if (c == NULL)
        return;
    while (!LIST_EMPTY(&c->calls))
        call_free(LIST_FIRST(&c->calls));
    for (size_t i = 0; i < CLIENT_IDLE_MAX; i++)
        drop_idle(&c->idle[i]);
    if (c->dialer != NULL)
        c->dialer->free(c->tls);
    free(c->host);
    free(c->name);
    free(c);
}

/* Requests. */

/* What fails stays in the buffer; http1_put_end() tells. */
static void put_headers(struct buf *out, const struct http_client *c, const char *const (*extra)[2])
{
    (void)http1_put_header(out, "Host", c->host);
    (void)http1_put_header(out, "User-Agent", "box/" BOX_VERSION);
    for (; extra != NULL && (*extra)[0] != NULL; extra++)
        (void)http1_put_header(out, (*extra)[0], (*extra)[1]);
}

static int put_call(struct buf *out, const struct http_client *c, const struct http_call_opts *o)
{
    const char *method = o->method != NULL ? o->method : "GET";

    (void)http1_put_request(out, method, o->target);
    put_headers(out, c, o->headers);
    if (o->type != NULL)
        (void)http1_put_header(out, "Content-Type", o->type);
    if ((o->flags & HTTP_CALL_STREAM) != 0)
        (void)http1_put_header(out, "Transfer-Encoding", "chunked");
    else if (o->body_len > 0 || !(str_eq(method, "GET") || str_eq(method, "HEAD")))
        (void)http1_put_length(out, o->body_len);
    if ((o->flags & HTTP_CALL_HIJACK) != 0) {
        (void)http1_put_header(out, "Connection", "Upgrade");
        (void)http1_put_header(out, "Upgrade", "tcp");
    }
    int r = http1_put_end(out);
    return r == 0 && o->body_len > 0 ? buf_append(out, o->body, o->body_len) : r;
}

static struct http_call *new_call(struct http_client *c, size_t request_max, void *arg)
{
    struct http_call *call = xnew(struct http_call);

    call->client = c;
    call->arg = arg;
    call->fd = -1;
    LIST_INSERT_HEAD(&c->calls, call, link);
    buf_init(&call->request, request_max);
    buf_init(&call->in, 2 * STREAM_SCRATCH);
    return call;
}

int http_client_call(struct http_client *c, const struct http_call_opts *opts,
                     const struct http_call_handlers *handlers, void *arg, struct http_call **ret,
                     struct err *err)
{
    struct http_call *call = new_call(c, REQUEST_HEAD_MAX + opts->body_len, arg);

    call->handlers = handlers;
    call->flags = opts->flags;
    call->is_head = str_eq(opts->method, "HEAD");
    call->idle_ns = opts->idle_ns;
    call->connect_due =
        loop_now(c->loop) + (opts->connect_ns > 0 ? opts->connect_ns : 10 * NSEC_PER_SEC);
    int r = put_call(&call->request, c, opts);
    if (r < 0) {
        call_free(call);
        return err_sys(err, -r, "write a request for '%s'", opts->target);
    }
    r = call_start(c, call, err);
    if (r < 0) {
        call_free(call);
        return r;
    }
    if (ret != NULL)
        *ret = call;
    return 0;
}

static int put_upgrade(struct buf *out, const struct http_client *c, const struct http_ws_call *ws,
                       const char *key)
{
    (void)http1_put_request(out, "GET", ws->target);
    put_headers(out, c, ws->headers);
    (void)http1_put_header(out, "Connection", "Upgrade");
    (void)http1_put_header(out, "Upgrade", "websocket");
    (void)http1_put_header(out, "Sec-WebSocket-Version", "13");
    (void)http1_put_header(out, "Sec-WebSocket-Key", key);
    if (ws->opts != NULL && ws->opts->protocol != NULL)
        (void)http1_put_header(out, "Sec-WebSocket-Protocol", ws->opts->protocol);
    return http1_put_end(out);
}

int http_client_ws(struct http_client *c, const struct http_ws_call *ws, struct err *err)
{
    struct http_call *call = new_call(c, REQUEST_HEAD_MAX, ws->arg);

    call->ws.handlers = ws->handlers;
    call->ws.opened = ws->opened;
    if (ws->opts != NULL) {
        call->ws.opts = *ws->opts;
        call->ws.opts.protocol = NULL;
        call->ws.protocol = ws->opts->protocol != NULL ? xstrdup(ws->opts->protocol) : NULL;
    }
    call->idle_ns = 10 * NSEC_PER_SEC;
    call->connect_due = loop_now(c->loop) + 10 * NSEC_PER_SEC;
    http_random_base64(call->ws.key);
    int r = put_upgrade(&call->request, c, ws, call->ws.key);
    if (r < 0)
        (void)err_sys(err, -r, "write a request for '%s'", ws->target);
    else
        r = call_start(c, call, err);
    if (r < 0)
        call_free(call);
    return r;
}
