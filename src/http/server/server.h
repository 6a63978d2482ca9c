/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An HTTP/1.1 server on the loop. Handlers never block: they answer at once or later. Everything a
 * peer can make us hold has a cap and a deadline, and the order of checks is fixed:
 *
 *   head (8 KiB, 5 s) -> Host, Origin -> authorize -> route -> size of the body -> body -> handler
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "http/server/ws_conn.h"

struct err;
struct http1_head;
struct http_request;
struct http_server;
struct loop;
struct peer;

#define HTTP_BODY_MAX (1024u * 1024) /* of a route that names none */

typedef void http_handler_fn(struct http_request *req, void *arg);

enum http_route_flags {
    HTTP_ROUTE_OPEN = 1,   /* served without asking authorize() */
    HTTP_ROUTE_SCOPED = 2, /* its handler asks who calls: see http_request_set_user() */
    HTTP_ROUTE_STREAM = 4, /* the handler runs before the body: see http_body_start() */
    HTTP_ROUTE_BELOW = 8,  /* the last {name} stands for all that follows, as sent, also nothing */
};

/* Tables end with {0}. */
struct http_route {
    const char *method;  /* GET serves HEAD too */
    const char *pattern; /* "/v1/sessions/{id}/files": a {name} stands for one whole segment */
    http_handler_fn *handler;
    unsigned flags;
    size_t max_body; /* bytes; more is answered 413. 0: HTTP_BODY_MAX */
};

/* How a request ended, for logs and counters. */
struct http_answer {
    const struct http_request *req; /* NULL: what came was no request */
    const struct http_route *route; /* NULL: there is none */
    unsigned status;                /* 0: the peer left before there was one */
    uint64_t bytes;                 /* of the body that we sent */
    uint64_t duration_ns;           /* since its head was complete */
};

#define HTTP_REFUSE_USER 1403U /* 403, because of the user and not of what was sent */

/* Zero means the default. All pointers are borrowed for the life of the server. */
struct http_server_opts {
    size_t max_head;      /* bytes; 8 KiB */
    size_t max_queue;     /* bytes of answers that wait for a slow reader; 32 MiB */
    size_t low_water;     /* see http_on_writable(); 64 KiB */
    unsigned max_conns;   /* 4096; more are closed at once */
    unsigned max_waiting; /* connections that were never authorised; 1024; the oldest gives way */
    uint64_t head_ns;     /* from the first byte of a head (or the connect) to its last; 5 s */
    uint64_t idle_ns;     /* between requests; 60 s */
    uint64_t stall_ns;    /* a peer that takes none of our bytes; 30 s */

    /* Origin headers let through, exactly as sent ("http://localhost:3000"). All others: 403, but
     * that of our own address over TCP ("http://" and the Host header, when that is a loopback name
     * or the address connected to). */
    const char *const *origins; /* NULL-terminated */
    /* Host names let through on TCP beside loopback names and the address connected to; with
     * ":port" only for that port. "*" lets everything through. */
    const char *const *hosts; /* NULL-terminated */

    /* Runs after the head and before the body. 0 lets the request in; any other value is the status
     * to refuse it with (401, HTTP_REFUSE_USER, 429, 503), in an answer of fixed size that closes.
     */
    int (*authorize)(void *arg, struct http_request *req);
    /* Whether that user may connect to a unix socket. Default: our own uid and root. */
    bool (*accept_peer)(void *arg, const struct peer *peer);
    int diag_fd; /* of peer_socket(); 0 or -1: users that connect by TCP stay unknown */
    /* Hears of the end of every request, once; calls nothing of ours but to look at the request. A
     * request that became a WebSocket ends with 101. */
    void (*answered)(void *arg, const struct http_answer *answer);
    void *arg;
};

int http_server_new(struct loop *loop, const struct http_server_opts *opts,
                    struct http_server **ret, struct err *err);
/* Closes everything at once; not from inside a handler. Requests not yet answered lose their peer
 * but live on until they are answered; WebSockets get closed(WS_CODE_GOING_AWAY) from here. */
void http_server_free(struct http_server *s);
DEFINE_CLEANUP(http_server)

/* `routes` is borrowed; `arg` is for its handlers. At most 32 tables, searched in order. */
int http_server_add_routes(struct http_server *s, const struct http_route *routes, void *arg,
                           struct err *err);

/* A socket file with that mode (0600 if 0) from its first moment. What stands at the path is
 * replaced only when it is a socket without a listener; a symlink or any other file is an
 * error. It is removed when the server ends. */
int http_server_listen_unix(struct http_server *s, const char *path, mode_t mode, struct err *err);
/* `address` is numeric. Refuses an address that is not loopback while there is no authorize().
 * Returns the port. */
int http_server_listen_tcp(struct http_server *s, const char *address, uint16_t port,
                           struct err *err);
/* A stream socket that listens already, as a service manager hands it over; takes fd, also on
 * failure. The same rule for addresses holds. Its file, if any, is left to the process that made
 * it. */
int http_server_listen_fd(struct http_server *s, int fd, struct err *err);
/* Whether it listens on that TCP port, of any address. */
bool http_server_listens(const struct http_server *s, uint16_t port);
/* Serves a connected stream socket; takes fd, also on failure. */
int http_server_adopt(struct http_server *s, int fd, struct err *err);

/* While it is on, new connections wait to be accepted. */
void http_server_hold(struct http_server *s, bool on);
/* Stops listening and keeping connections alive, and closes every WebSocket with that code.
 * Requests under way are answered as usual. */
void http_server_drain(struct http_server *s, unsigned code, const char *reason);
/* Ends what is not good any more, by user and pass of the request that was let in: WebSockets, with
 * WS_CODE_POLICY and that reason; answers and bodies in pieces, by http_on_revoked() where it was
 * called, else by dropping the connection. Requests that are all there and whose answer has not
 * begun are answered as usual. Returns how many there were. */
typedef bool http_good_fn(void *arg, const void *user, uint64_t pass);
size_t http_server_revoke(struct http_server *s, http_good_fn *good, void *arg, const char *reason);
size_t http_server_count(const struct http_server *s);    /* open connections of either kind */
size_t http_server_count_ws(const struct http_server *s); /* those that are WebSockets */

/* Requests ----------------------------------------------------------------------------------- */

/* A handler owes exactly one answer: http_reply(), http_reply_error(), http_reply_start() up to
 * http_reply_end(), http_abort() or http_upgrade_ws(). The request lives until then, also when the
 * peer has gone meanwhile (answers then go nowhere), and is gone after. Strings are NUL-terminated
 * and live as long as the request. */
const char *http_request_method(const struct http_request *req);
/* X-Request-Id as sent where that is [A-Za-z0-9._-]{1,64}, else one of our own. The answer carries
 * it, and so does every log record that is written while the handler runs. */
const char *http_request_id(const struct http_request *req);
const char *http_request_path(const struct http_request *req); /* as sent, escapes and all */
/* The decoded segment that matched {name}; it may hold any byte but NUL, even '/'. NULL: none. */
const char *http_request_param(const struct http_request *req, const char *name);
/* Decodes the first `name` of the query into ret. Length, -ENOENT, -EINVAL or -ENOBUFS. */
ssize_t http_request_query_get(const struct http_request *req, const char *name, char *ret,
                               size_t size);
const char *http_request_header(const struct http_request *req, const char *name); /* or NULL */
const struct http1_head *http_request_head(const struct http_request *req);
const char *http_request_body(const struct http_request *req, size_t *ret_len); /* never NULL */
/* The user and process at the other end, as far as they are known; never NULL. */
const struct peer *http_request_peer(const struct http_request *req);
bool http_request_is_unix(const struct http_request *req);   /* else it is TCP */
bool http_request_cancelled(const struct http_request *req); /* the peer has gone */

/* Runs the handler once more, from the loop, for a request that it has not answered: what it needs
 * was not there yet. */
void http_request_again(struct http_request *req);

/* The user with a scope, set by authorize() and read by handlers; NULL: the request has none. A
 * request with a user is answered 403 on a route without HTTP_ROUTE_SCOPED, so that a handler that
 * never asks cannot give more than the scope allows. `done` (or NULL) runs when the request ends,
 * or the WebSocket that it has become. */
void http_request_set_user(struct http_request *req, const void *user,
                           void (*done)(const void *user));
const void *http_request_user(const struct http_request *req);

/* What let it in, beside a user, for authorize() to say; 0 (the default): nothing that can end.
 * Only routes with HTTP_ROUTE_SCOPED are asked for it. */
void http_request_set_pass(struct http_request *req, uint64_t pass);
/* Called by http_server_revoke() while there is an answer in pieces: for last words. What on_cancel
 * asks for comes next, with the peer still there: the answer is to be ended. */
void http_on_revoked(struct http_request *req,
                     void (*fn)(struct http_request *req, const char *reason, void *arg),
                     void *arg);

/* On a route with HTTP_ROUTE_STREAM the body comes in pieces, from the loop, after this call; at
 * last with `end` and no bytes. An answer before that closes the connection. A body without a
 * length may be larger than max_body: the handler counts. */
typedef void http_body_fn(struct http_request *req, const char *data, size_t len, bool end,
                          void *arg);
void http_body_start(struct http_request *req, http_body_fn *fn, void *arg);
/* While it is held nothing is read, and the peer has to wait. */
void http_body_hold(struct http_request *req, bool held);

/* What follows "Authorization: Bearer ", or NULL. Compare with http_secret_eq(). */
const char *http_request_bearer(const struct http_request *req);

/* Called once, from the loop, when the peer goes away before the answer is complete. The answer is
 * still owed. */
void http_on_cancel(struct http_request *req, void (*fn)(struct http_request *req, void *arg),
                    void *arg);
/* Called from the loop when the queue fell to low_water after http_reply_full(). */
void http_on_writable(struct http_request *req, void (*fn)(struct http_request *req, void *arg),
                      void *arg);

/* Called once with the answer, before it is sent (`type` and `body` are borrowed for the call), or
 * with status 0 when there is none that is whole. The request must not be answered in it. */
typedef void http_reply_fn(void *arg, unsigned status, const char *type, const void *body,
                           size_t len);
void http_on_reply(struct http_request *req, http_reply_fn *fn, void *arg);

/* Answers ------------------------------------------------------------------------------------ */

/* A header of the coming answer. -EINVAL for text that would break out, -ENOBUFS above 4 KiB. */
int http_reply_header(struct http_request *req, const char *name, const char *value);

/* The whole answer. The body is copied or sent, never kept. `type` NULL: no Content-Type. */
void http_reply(struct http_request *req, unsigned status, const char *type, const void *body,
                size_t len);

/* RFC 9457: application/problem+json with type, title, status, detail, code, cause and remediation.
 * `code` is stable, for programs; `detail` is for people. `cause` says what kind of failure it is,
 * `remediation` what to do; where they are NULL the table in problem.c knows them by the code. */
struct http_problem {
    unsigned status;
    const char *code, *detail, *cause, *remediation;
    const char *const *more; /* members of its own kind: name, value, name, value, ..., NULL */
};
void http_reply_problem(struct http_request *req, const struct http_problem *problem);
void http_reply_error(struct http_request *req, unsigned status, const char *code,
                      const char *detail, const char *remediation);

/* An answer in pieces. http_reply_chunk() gives 0, -ENOBUFS when the queue is full (nothing was
 * taken) or -EPIPE when the peer has gone; http_reply_end() is owed in any case. */
void http_reply_start(struct http_request *req, unsigned status, const char *type);
/* The same with a length that is known. Fewer bytes than that, and http_reply_end() drops the
 * connection, so that the peer can tell; more are refused with -EMSGSIZE. */
void http_reply_start_length(struct http_request *req, unsigned status, const char *type,
                             uint64_t length);
int http_reply_chunk(struct http_request *req, const void *data, size_t len);
bool http_reply_full(const struct http_request *req); /* more than low_water is queued */
void http_reply_end(struct http_request *req);

/* Answers 101 to a request to switch to that protocol. From then on the connection is the
 * handler's: the body (http_body_start()) is what the peer sends until it sends no more, chunks go
 * out as they are, and http_reply_end() closes. The end of the server drops it. */
void http_reply_switch(struct http_request *req, const char *protocol);

/* Drops the connection without a (further) answer. */
void http_abort(struct http_request *req);

/* Turns the connection into a WebSocket. On failure the request has been answered (400, 405, 426).
 * The request is gone in either case. */
int http_upgrade_ws(struct http_request *req, const struct ws_opts *opts,
                    const struct ws_handlers *handlers, void *arg, struct ws_conn **ret,
                    struct err *err);
