/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the route of a request by its path and method. */

#include <string.h>

#include "base/str.h"
#include "http/server/server_internal.h"

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
static bool match(const struct http_route *route, struct http1_str path, struct http1_str *names,
                  struct http1_str *values, size_t *ret_n)
{
    struct http1_str rest = {route->pattern, strlen(route->pattern)};
    struct http1_str want;
    struct http1_str got;

    *ret_n = 0;
    while (next_segment(&rest, &want)) {
        if (!next_segment(&path, &got))
            return false;
        if (rest.len == 0 && (route->flags & HTTP_ROUTE_BELOW) != 0)
            return true;
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

bool route_find(struct http_server *s, struct http_request *req, struct buf *allow)
{
    static const struct http1_str root = {"/", 1};
    struct http1_str path = req->head.path.len > 0 ? req->head.path : root;
    struct http1_str names[REQUEST_PARAMS_MAX];
    struct http1_str values[REQUEST_PARAMS_MAX];
    size_t n;

    for (size_t t = 0; t < s->n_tables; t++) {
        for (const struct http_route *r = s->tables[t].routes; r->method != NULL; r++) {
            if (!match(r, path, names, values, &n))
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
