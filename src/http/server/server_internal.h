/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP server share: listeners, connections, requests. */

#include "base/log.h"
#include "http/codec/http1.h"
#include "http/server/server.h"
#include "http/server/ws_conn_internal.h"
#include "http/stream/stream_internal.h"
#include "loop/peer.h"

#define SERVER_TABLES_MAX 32
#define SERVER_LISTENERS_MAX 4
#define REQUEST_PARAMS_MAX 8

struct http_conn;

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
    struct http_conn *first, *last;
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
    char date[32];
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
    struct conn_list *list;     /* that it is in; NULL: none */
    struct http_conn *prev, *next;
    struct http_request *req; /* owned until the handler has it; NULL between requests */
    struct http1_scan scan;
    struct http1_body body;
    struct buf in;    /* input that waits: part of a head, or pipelined */
    const char *rest; /* while a handler runs: input after its request */
    size_t rest_len;
    uint64_t since; /* when the state or the current pace window began */
    uint32_t pace_bytes;
    uint8_t state;
    bool is_unix;
    bool fresh;     /* no complete request yet */
    bool close;     /* after this answer */
    bool above;     /* the queue went above low_water */
    bool in_input;  /* input() runs and will settle() at its end */
    bool continued; /* the peer was told to send its streamed body, or needs not be */
    struct peer peer;
};

struct http_param {
    struct http1_str name; /* in the pattern */
    const char *value;     /* in the request's memory */
};

struct http_request {
    struct http_conn *conn;     /* borrowed; NULL when the peer has gone */
    struct http_server *server; /* borrowed; NULL once its end has been told */
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

/* server.c */
void server_add(struct http_server *s, struct http_conn *c, struct conn_list *list);
void server_remove(struct http_conn *c);
const char *server_date(struct http_server *s);

/* listen.c: sockets that listen, not blocking. */
int listen_unix(const char *path, mode_t mode, struct http_listener *l, struct err *err);
void listen_unlink(struct http_listener *l);
int listen_tcp(const char *address, uint16_t port, bool loopback_only, struct http_listener *l,
               struct err *err); /* returns the port */
int listen_fd(int fd, bool loopback_only, struct http_listener *l, struct err *err); /* takes fd */

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

/* server_request.c */
struct http_request *request_new(struct http_conn *c, const struct http1_head *head,
                                 const char *text, size_t len);
void request_free(struct http_request *req);
/* Tells who listens for the answer, once. */
void request_replied(struct http_request *req, unsigned status, const char *type, const void *body,
                     size_t len);
void request_lost(struct http_request *req); /* the peer has gone */
/* Whoever asked is not let in any more: ends the answer that is under way. */
void request_revoke(struct http_request *req, const char *reason);

/* What let it in, where the handler asks for that. */
uint64_t request_pass(const struct http_request *req);

/* server_route.c */
/* 0, or the status to refuse with, before anything of the request is believed. */
unsigned policy_check(const struct http_conn *c, const struct http1_head *head);
/* Finds the route and fills the parameters; false leaves in `allow` what methods the path has. */
bool route_find(struct http_server *s, struct http_request *req, struct buf *allow);

/* server_reply.c */
/* A fixed answer to what never became a request. */
void reply_refusal(struct http_conn *c, unsigned status);
void reply_continue(struct http_conn *c);
