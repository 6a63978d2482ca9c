/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One request passed on to another HTTP/1.1 server over a connection that is there, and the answer
 * passed back: a reverse proxy. Neither side is trusted. Bodies are passed on as they come, in both
 * directions, and a side that does not read holds the other back. A WebSocket becomes raw bytes.
 *
 * The server does not see what is ours: the prefix of the path, headers between two hops, a bearer
 * token. It cannot act for us: cookies are bound to the prefix, headers that change how a browser
 * treats our whole address are left out, and pages get an origin of their own
 * (Content-Security-Policy: sandbox), so that a script of theirs cannot call our API. */

#include <stddef.h>

struct http_proxy;
struct http_request;
struct loop;

struct http_proxy_opts {
    struct loop *loop;
    int fd;             /* connected, non-blocking; taken */
    const char *prefix; /* of the path: what the server is not told; without a slash at its end */
    const char *path;   /* of the request behind the prefix; begins with '/' */
    const char *host;   /* for a client that names none */
    /* Comes once, from the loop: the request was answered, and all is over. http_proxy_free() is
     * still owed. */
    void (*ended)(void *arg);
    void *arg;
};

/* Answers the request, which the route must take as a stream (HTTP_ROUTE_STREAM). */
struct http_proxy *http_proxy_new(struct http_request *req, const struct http_proxy_opts *opts);
/* One that has not ended answers with 502, or drops the connection of a client that has a part. */
void http_proxy_free(struct http_proxy *p);
