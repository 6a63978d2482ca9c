/* SPDX-License-Identifier: Apache-2.0 */

/* Checks Host and Origin of a request, and finds its route. */

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "http/server/server_internal.h"

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
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } own = {0};
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
 * a name that somebody else has made lead here. */
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

unsigned policy_check(const struct http_conn *c, const struct http1_head *head)
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

/* Routes. */

/* Cuts the next segment off a path or pattern that begins with '/'. */
static bool next_segment(struct http1_str *rest, struct http1_str *ret)
{
    if (rest->len == 0 || rest->p[0] != '/')
        return false;
    const char *begin = rest->p + 1;
    const char *end = memchr(begin, '/', rest->len - 1);
    if (end == NULL)
        end = rest->p + rest->len;
    *ret = (struct http1_str){begin, (size_t)(end - begin)};
    rest->len -= (size_t)(end - rest->p);
    rest->p = end;
    return true;
}

static bool is_param(struct http1_str s)
{
    return s.len > 2 && s.p[0] == '{' && s.p[s.len - 1] == '}';
}

/* Matches segment by segment; parameters are left as they were sent. */
static bool match(const char *pattern, struct http1_str path, struct http1_str *names,
                  struct http1_str *values, size_t *ret_n)
{
    struct http1_str rest = {pattern, strlen(pattern)};
    struct http1_str want;
    struct http1_str got;

    *ret_n = 0;
    while (next_segment(&rest, &want)) {
        if (!next_segment(&path, &got))
            return false;
        if (is_param(want)) {
            if (got.len == 0 || *ret_n == REQUEST_PARAMS_MAX)
                return false;
            names[*ret_n] = (struct http1_str){want.p + 1, want.len - 2};
            values[(*ret_n)++] = got;
        } else if (want.len != got.len || memcmp(want.p, got.p, want.len) != 0) {
            return false;
        }
    }
    return path.len == 0;
}

static bool method_fits(const struct http_route *route, struct http1_str method)
{
    if (http1_str_eq(method, route->method))
        return true;
    return str_eq(route->method, "GET") && http1_str_eq(method, "HEAD");
}

static void note_allowed(struct buf *allow, const struct http_route *route)
{
    const char *method = str_eq(route->method, "GET") ? "GET,HEAD" : route->method;

    if (strstr(buf_str(allow), method) == NULL)
        (void)buf_printf(allow, "%s%s", allow->len > 0 ? "," : "", method);
}

/* There is room behind the head for every segment decoded, see request_new(). */
static bool keep_params(struct http_request *req, const struct http1_str *names,
                        const struct http1_str *values, size_t n)
{
    char *to = req->params_text;
    size_t size = req->params_size;

    for (size_t i = 0; i < n; i++) {
        ssize_t len = http1_percent_decode(values[i], false, to, size);
        if (len < 0)
            return false;
        req->params[i] = (struct http_param){names[i], to};
        to += len + 1;
        size -= (size_t)len + 1;
    }
    req->n_params = n;
    return true;
}

const struct http_route *http_server_route_at(const struct http_server *s, size_t i, void **ret_arg)
{
    for (size_t t = 0; t < s->n_tables; t++)
        for (const struct http_route *r = s->tables[t].routes; r->method != NULL; r++)
            if (i-- == 0) {
                *ret_arg = s->tables[t].arg;
                return r;
            }
    return NULL;
}

bool route_find(struct http_server *s, struct http_request *req, struct buf *allow)
{
    static const struct http1_str root = {"/", 1};
    struct http1_str path = req->head.path.len > 0 ? req->head.path : root;
    struct http1_str names[REQUEST_PARAMS_MAX];
    struct http1_str values[REQUEST_PARAMS_MAX];
    size_t n;

    for (size_t t = 0; t < s->n_tables; t++) {
        for (const struct http_route *r = s->tables[t].routes; r->method != NULL; r++) {
            if (!match(r->pattern, path, names, values, &n))
                continue;
            if (!method_fits(r, req->head.method)) {
                note_allowed(allow, r);
                continue;
            }
            if (!keep_params(req, names, values, n))
                return false;
            req->route = r;
            req->arg = s->tables[t].arg;
            return true;
        }
    }
    return false;
}
