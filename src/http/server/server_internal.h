/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP server share: listeners, connections, requests. */

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "http/codec/http1.h"
#include "http/server/server.h"
#include "http/server/ws_conn_internal.h"
#include "http/stream/stream_internal.h"
#include "loop/peer.h"

#define SERVER_TABLES_MAX 32
#define SERVER_LISTENERS_MAX 4
#define REQUEST_PARAMS_MAX 8

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct http_listener {
    struct http_server *server; /* borrowed */
    struct loop_io io;
    struct loop_timer pause; /* runs while accepting is off for want of descriptors */
    int fd;                  /* owned; -1: unused */
    char *path;              /* owned; unix sockets */
    dev_t dev;               /* of the socket file, to remove only our own */
    ino_t ino;
};

/* Connections in the order they came. */
struct conn_list {
    TAILQ_HEAD(, http_conn) conns;
    size_t count;
};

struct http_server {
    struct loop *loop; /* borrowed */
    struct http_server_opts opts;
    struct {
        const struct http_route *routes; /* borrowed */
        void *arg;
    } tables[SERVER_TABLES_MAX];
    size_t n_tables;
    struct http_listener listeners[SERVER_LISTENERS_MAX];
    struct conn_list waiting; /* never had a request authorised */
    struct conn_list known;   /* had */
    struct ws_owner sockets;  /* upgraded */
    bool draining, held;
    uint64_t date_sec; /* of `date` */
    char date[CLOCK_HTTP_SIZE];
};

/*         ┌────────────────────── next request ───────────────────────┐
 *         v                                                           │
 *       HEAD ──> BODY ──> HANDLER ──> SENDING ────────────────────────┤
 *         │        │         │            │                           │
 *         └────────┴─────────┴────────────┴──> LINGER ──> DEAD <──────┘ (from every state)
 */
enum conn_state {
    CONN_HEAD,    /* no request yet, or part of a head */
    CONN_BODY,    /* the head is good, the body is coming */
    CONN_HANDLER, /* the handler owes (the rest of) an answer */
    CONN_SENDING, /* the answer is complete and partly queued */
    CONN_LINGER,  /* ours is shut down; input is thrown away until its end */
    CONN_DEAD,    /* freed by the next kick */
    CONN_STATE_MAX,
};

struct http_conn {
    struct stream stream;
    struct http_server *server; /* borrowed */
    struct conn_list *list;     /* that it is in */
    TAILQ_ENTRY(http_conn) link;
    struct http_request *req; /* owned until the handler has it; NULL between requests */
    struct http1_scan scan;
    struct http1_body body;
    struct buf in;    /* input that waits: part of a head, or pipelined */
    const char *rest; /* while a handler runs: input after its request */
    size_t rest_len;
    uint64_t since; /* when the state or the current pace window began */
    uint32_t pace_bytes;
    enum conn_state state;
    bool is_unix;
    bool fresh;     /* no complete request yet */
    bool close;     /* after this answer */
    bool above;     /* the queue went above low_water */
    bool in_input;  /* input() runs and will settle() at its end */
    bool continued; /* the peer knows that it may send its streamed body */
    struct peer peer;
};

struct http_param {
    struct http1_str name; /* in the pattern */
    const char *value;     /* in the request's memory */
};

struct http_request {
    struct http_conn *conn;     /* borrowed; NULL when the peer has gone */
    struct http_server *server; /* borrowed; NULL once `answered` was called */
    char id[LOG_REQUEST_SIZE];
    unsigned status; /* of the answer; 0: none yet */
    uint64_t sent;   /* bytes of its body */
    uint64_t since;
    const struct http_route *route;
    void *arg;
    void (*on_cancel)(struct http_request *req, void *arg);
    void *cancel_arg;
    void (*on_writable)(struct http_request *req, void *arg);
    void *writable_arg;
    http_reply_fn *on_reply;
    void *reply_arg;
    const void *user;
    void (*user_done)(const void *user);
    uint64_t pass; /* see http_request_set_pass() */
    void (*on_revoked)(struct http_request *req, const char *reason, void *arg);
    void *revoked_arg;
    http_body_fn *body_fn; /* the body is a stream, and wanted */
    void *body_arg;
    bool body_held, body_ended;
    struct buf headers; /* of the answer */
    struct buf body;
    bool is_head;    /* HEAD: the answer has no body */
    bool dispatched; /* the handler has it */
    bool started;    /* http_reply_start() was called */
    bool chunked;    /* the answer is */
    bool no_body;    /* its status allows none */
    bool raw;        /* the connection is the handler's: see http_reply_switch() */
    bool counted;    /* its length is known: */
    uint64_t left;   /* bytes to come */
    struct peer peer;
    bool is_unix;
    size_t n_params;
    struct http_param params[REQUEST_PARAMS_MAX];
    char *text;        /* the head, cut into strings; in this block */
    char *params_text; /* decoded parameters; in this block */
    size_t params_size;
    struct http1_head head; /* last: only the headers in use are allocated */
};

/* server_conn.c */
int conn_new(struct http_server *s, int fd, bool is_unix, const struct peer *peer); /* takes fd */
void conn_free(struct http_conn *c);
void conn_kill(struct http_conn *c);         /* drops it; freed later, from the loop */
void conn_begin_answer(struct http_conn *c); /* to a request that gets no handler */
void conn_answered(struct http_conn *c);     /* the answer to its request is complete */
void conn_wrote(struct http_conn *c);        /* bytes may have been queued */
bool conn_will_close(const struct http_conn *c);
void conn_body_wanted(struct http_conn *c); /* or not, for now; from a handler or later */
/* Takes the descriptor away for another protocol. */
int conn_detach(struct http_conn *c);

/* routes.c */
/* Finds the route and fills the parameters; false leaves in `allow` what methods the path has. */
bool route_find(struct http_server *s, struct http_request *req, struct buf *allow);

/* problem.c */
struct http_problem_text {
    const char *code, *cause, *remediation;
};
/* What can be said about a code wherever it comes from; never NULL. */
const struct http_problem_text *http_problem_text(const char *code);

/* server_request.c */
struct http_request *request_new(struct http_conn *c, const struct http1_head *head,
                                 const char *text, size_t len);
void request_free(struct http_request *req);
void request_lost(struct http_request *req); /* the peer has gone */
/* The client is not authorised any more: ends the answer that is under way. */
void request_revoke(struct http_request *req, const char *reason);

/* What let it in, where the handler asks for that. */
uint64_t request_pass(const struct http_request *req);

/* A fixed answer to what never became a request. */
void reply_refusal(struct http_conn *c, unsigned status);
void reply_continue(struct http_conn *c);
