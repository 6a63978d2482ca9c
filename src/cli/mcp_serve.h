/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* `box mcp serve`: lines of the client become messages to boxd, which speaks the protocol, and back
 * (front/mcp/ws.c). Bytes are passed on as they are; what is looked at is which request a line asks
 * or answers, so that a client hears of what was lost with a boxd that goes away underneath it.
 * When this process ends, however it ends, boxd takes back what is under way and ends a session
 * without a name. */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "cli/io/pipe.h"
#include "cli/mcp/requests.h"
#include "loop/loop.h"

struct app;
struct args;
struct ws_conn;

/*   OPENING ──► SERVING ──► FINISHING ──► ENDED
 *      │        │  ▲  └─────────────────► ^
 *      │        ▼  │                      │
 *      │        LOST ─────────────────────┤
 *      └──────────────────────────────────┘      */
enum serve_state {
    SERVE_OPENING,
    SERVE_SERVING,
    SERVE_LOST, /* boxd is away; the client's next lines wait in its pipe */
    SERVE_FINISHING,
    SERVE_ENDED,
    SERVE_STATE_MAX,
};

struct serve {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    enum serve_state state;
    struct ws_conn *ws; /* NULL before it is open and after it is closed */
    char client[17];    /* who we are to boxd, also to the next one: it finds our session by it */
    uint64_t patience_ns, give_up_at; /* with a boxd that is away; then clients start us again */
    unsigned tries;
    struct mcp_requests book;
    struct source in;
    struct sink out;
    struct buf line; /* of the client, not whole yet */
    bool too_long;   /* the rest of that line is dropped */
    struct loop_timer timer;
    bool failed; /* `err` says why */
    struct err err;
};

/* mcp_serve.c */
void serve_move(struct serve *s, enum serve_state to);
void serve_fail(struct serve *s, const struct err *err);
void serve_end(struct serve *s);
void serve_got_message(struct serve *s, const char *data, size_t len); /* of boxd */
void serve_answer(struct serve *s, const struct buf *lines);           /* in its place */
int serve_listen(struct serve *s); /* to the client, from now on or again */

/* mcp_serve_link.c: the connection. */
int serve_link_open(struct serve *s, struct err *err);
/* Lines, each as a message. */
void serve_link_send(struct serve *s, const struct buf *lines);
