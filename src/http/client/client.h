/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An HTTP/1.1 client on the loop, for one endpoint: a unix socket or TCP. For our own command line
 * and for container engines, which also hand out the raw connection (hijack). Callbacks run from
 * the loop, never from inside a call of this interface.
 *
 * Connections are kept for the next call. The peer may close such a one at the moment it is taken:
 * that call fails, and whether to repeat it is for the caller to know. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "http/server/ws_conn.h"

struct err;
struct http1_head;
struct http_call;
struct http_client;
struct loop;

/* "unix:///path", "http://host[:port]" or "tcp://host[:port]". Looks a host name up, which may
 * block: make clients at start. Each address of it is tried, the one that answered last time first.
 */
int http_client_new(struct loop *loop, const char *endpoint, struct http_client **ret,
                    struct err *err);
/* "tcp://host[:port]" or "https://host[:port]", under TLS (tls.h); the files are read now. */
struct tls_files;
int http_client_new_tls(struct loop *loop, const char *endpoint, const struct tls_files *files,
                        struct http_client **ret, struct err *err);
/* Calls still under way end without a callback. Not from inside one. */
void http_client_free(struct http_client *c);
DEFINE_CLEANUP(http_client)

struct http_call_handlers {
    /* The head of the answer (not of 1xx, except 101); gone after the return. Optional. */
    void (*head)(struct http_call *call, const struct http1_head *head, void *arg);
    /* Bytes of the body, or of the raw connection. Optional. */
    void (*body)(struct http_call *call, const char *data, size_t len, void *arg);
    /* The queue of http_call_send() fell to 64 KiB after http_call_full(). Optional. */
    void (*writable)(struct http_call *call, void *arg);
    /* Exactly once, and the last call: the answer is complete (err NULL) or failed. The call is
     * gone after the return. */
    void (*done)(struct http_call *call, const struct err *err, void *arg);
};

enum http_call_flags {
    HTTP_CALL_STREAM = 1, /* the body follows by http_call_send(), chunked */
    HTTP_CALL_HIJACK = 2, /* ask for an upgrade; after 101 or 200 the connection is raw both ways */
};

struct http_call_opts {
    const char *method;              /* NULL: GET */
    const char *target;              /* "/v1/..." */
    const char *const (*headers)[2]; /* name and value, ends with {NULL}; or NULL */
    const char *type;                /* Content-Type of the body, or NULL */
    const void *body;                /* copied */
    size_t body_len;
    unsigned flags;
    uint64_t connect_ns; /* 10 s */
    uint64_t idle_ns;    /* longest silence while an answer is awaited; 0: for ever */
};

int http_client_call(struct http_client *c, const struct http_call_opts *opts,
                     const struct http_call_handlers *handlers, void *arg, struct http_call **ret,
                     struct err *err);

/* Bytes of a streamed body or of a raw connection. 0, -ENOBUFS (32 MiB are queued), -EPIPE. */
int http_call_send(struct http_call *call, const void *data, size_t len);
bool http_call_full(const struct http_call *call); /* more than 64 KiB are queued */
/* The end of the streamed body; on a raw connection the other side reads end of file. */
int http_call_send_end(struct http_call *call);
void http_call_cancel(struct http_call *call); /* no more callbacks; do not use it after this */

struct http_ws_call {
    const char *target;
    const char *const (*headers)[2];    /* as in http_call_opts */
    const struct ws_opts *opts;         /* NULL: defaults; opts->protocol is offered */
    const struct ws_handlers *handlers; /* borrowed */
    /* Exactly once, with the connection, or with NULL and the reason. */
    void (*opened)(struct ws_conn *c, const struct err *err, void *arg);
    void *arg; /* for `opened` and for the handlers */
};

/* Opens a WebSocket. */
int http_client_ws(struct http_client *c, const struct http_ws_call *ws, struct err *err);
