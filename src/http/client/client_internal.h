/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP client share: clients, idle connections, calls, dialers. */

#include <sys/socket.h>

#include "base/err.h"
#include "base/list.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "http/server/ws_conn_internal.h"
#include "http/stream/places.h"
#include "http/stream/stream_internal.h"

struct tls_client;

#define CLIENT_IDLE_MAX 4

/* A connection kept for the next call. */
struct client_idle {
    struct http_client *client; /* borrowed */
    struct loop_io io;
    struct loop_timer timer;
    int fd; /* owned; -1: free place */
};

/* Makes the connections under TLS. Programs without it do not link http/stream/tls.c. */
struct client_dialer {
    int (*dial)(struct tls_client *tls, struct places *places, struct err *err);
    bool (*failure)(struct tls_client *tls, struct err *ret); /* why the last one broke, once */
    void (*free)(struct tls_client *tls);
};

struct http_client {
    struct loop *loop; /* borrowed */
    struct places places;
    const struct client_dialer *dialer; /* NULL: connections are plain ones */
    struct tls_client *tls;             /* owned, where there is a dialer */
    char *host;                         /* owned; for the Host header */
    char *name;                         /* owned; the endpoint, for errors */
    LIST_HEAD(, http_call) calls;       /* owned until done */
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
    LIST_ENTRY(http_call) link;
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
    struct buf in; /* part of a head */
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
    bool above;
    bool send_ended;
    bool shut_when_sent;
    bool cancelled; /* by its owner: no handler is called any more */

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
