/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP client share: clients, idle connections, calls, dialers. */

#include <sys/socket.h>
#include <sys/un.h>

#include "base/err.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "http/server/ws_conn_internal.h"
#include "http/stream/places.h"
#include "http/stream/stream_internal.h"

#define CLIENT_IDLE_MAX 4

/* A connection kept for the next call. */
struct client_idle {
    struct http_client *client; /* borrowed */
    struct loop_io io;
    struct loop_timer timer;
    int fd; /* owned; -1: free place */
};

/* Somebody else who makes the connections. */
struct client_dialer {
    int (*dial)(void *arg, struct places *places, struct err *err);
    bool (*failure)(void *arg, struct err *ret); /* why the last one broke, once */
    void (*free)(void *arg);
};

struct http_client {
    struct loop *loop; /* borrowed */
    struct places places;
    const struct client_dialer *dialer; /* NULL: connections are plain ones */
    void *dialer_arg;                   /* owned */
    char *host;                         /* owned; for the Host header */
    char *name;                         /* owned; the endpoint, for errors */
    struct http_call *calls;            /* owned until done */
    struct client_idle idle[CLIENT_IDLE_MAX];
};

/*   CONNECTING ──> WAITING ──> BODY ──> DONE
 *                     └──────> RAW ──────^      (every state can fail into DONE)
 */
enum call_state {
    CALL_CONNECTING,
    CALL_WAITING, /* for the head of the answer */
    CALL_BODY,
    CALL_RAW, /* hijacked */
    CALL_DONE,
    CALL_STATE_MAX,
};

struct http_call {
    struct http_client *client; /* borrowed */
    struct http_call *prev, *next;
    const struct http_call_handlers *handlers; /* borrowed */
    void *arg;
    struct stream stream; /* once connected */
    struct loop_io connecting;
    struct loop_timer timer; /* of the connect */
    struct loop_defer defer;
    struct places_walk walk;
    int fd;             /* owned while connecting */
    struct buf request; /* until connected, then empty */
    struct http1_scan scan;
    struct http1_body body;
    struct buf in; /* part of a head, or input while paused */
    struct err err;
    uint64_t connect_due;
    uint64_t last_in;
    uint64_t idle_ns;
    unsigned interims; /* 1xx answers seen */
    enum call_state state;
    unsigned flags;
    bool is_head; /* the method is HEAD */
    bool failed;
    bool reusable;
    bool paused;
    bool above;
    bool send_ended;
    bool shut_when_sent;
    bool cancelled; /* nobody wants to hear more of it */

    struct { /* of http_client_ws() */
        const struct ws_handlers *handlers;
        void (*opened)(struct ws_conn *c, const struct err *err, void *arg);
        struct ws_opts opts;
        char *protocol; /* owned */
        char key[WS_KEY_SIZE];
    } ws;
};

/* client.c */
int client_new(struct loop *loop, const char *endpoint, struct http_client **ret, struct err *err);
/* Without the brackets of an IPv6 address; *ret_rest is what follows. To free. */
char *client_host_of(const char *authority, const char **ret_rest);
int client_take_idle(struct http_client *c);     /* a kept connection, or -1 */
void client_keep(struct http_client *c, int fd); /* takes fd */

/* client_call.c */
void call_free(struct http_call *call);
int call_start(struct http_client *c, struct http_call *call, struct err *err);
