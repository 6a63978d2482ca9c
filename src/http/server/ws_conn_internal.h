/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Starts and ends a WebSocket for its owner, a server or a client. */

#include "base/list.h"
#include "http/server/ws_conn.h"

/* A server keeps a list of its connections. */
struct ws_owner {
    LIST_HEAD(, ws_conn) conns;
    size_t count;
};

/* Whose it is, as the server said of the request that it was. */
struct ws_user {
    const void *user;
    void (*done)(const void *user); /* or NULL */
    uint64_t pass;
};

struct ws_start {
    struct loop *loop;
    enum ws_role role;
    int fd;                             /* taken, also on failure */
    const struct ws_opts *opts;         /* NULL: defaults */
    const struct ws_handlers *handlers; /* borrowed */
    void *arg;
    struct ws_owner *owner; /* borrowed; NULL: none */
    const void *early;      /* bytes that came with the handshake, to be read first */
    size_t early_len;
    const void *answer; /* bytes to send before anything else */
    size_t answer_len;
    struct ws_user user; /* taken, also on failure */
};

int ws_conn_new(const struct ws_start *start, struct ws_conn **ret);
/* At once, with closed() from here: for an owner that goes away. */
void ws_conn_abort(struct ws_conn *c, unsigned code);
const struct ws_user *ws_conn_user(const struct ws_conn *c);
/* Ends it: the close frame leaves, nothing more is taken in, and closed() comes from the loop,
 * without waiting for the peer. False: it was ending already. */
bool ws_conn_end(struct ws_conn *c, unsigned code, const char *reason);
struct ws_conn *ws_conn_next(const struct ws_conn *c); /* in the owner's list */
