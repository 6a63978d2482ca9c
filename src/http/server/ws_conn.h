/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An open WebSocket on the loop, of a server or a client. Pings are answered here; messages come
 * whole. Handlers run from the loop, never from inside a call of this interface. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/codec/ws.h"

struct ws_conn;

struct ws_handlers {
    /* WS_TEXT (valid UTF-8) or WS_BINARY. `data` is gone after the return; not NUL-terminated. */
    void (*message)(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                    void *arg);
    /* The queue fell to low_water after it had been above. Optional. */
    void (*writable)(struct ws_conn *c, void *arg);
    /* Exactly once, and the last call: c is gone after the return. The code is the peer's, ours
     * when we ended it for a reason of ours, WS_CODE_ABNORMAL when the connection was lost. */
    void (*closed)(struct ws_conn *c, unsigned code, const char *reason, void *arg);
};

/* Zero means the default. Times are in nanoseconds. */
struct ws_opts {
    size_t max_message;     /* of one received message; 16 MiB */
    unsigned max_fragments; /* 4096 */
    size_t max_queue;       /* bytes that wait for a slow reader; 32 MiB */
    size_t low_water;       /* 64 KiB */
    uint64_t ping_ns;       /* ping after that long without input; default: never */
    uint64_t pong_ns;       /* and drop when nothing comes then; 15 s */
    uint64_t stall_ns;      /* drop a peer that takes none of our bytes for that long; 30 s */
    uint64_t close_ns;      /* wait for the answer to our close frame; 5 s */
    const char *protocol;   /* sub-protocol to agree on when offered; NULL: none */
    bool hangup_ends; /* a peer that hangs up while we are paused is lost at once, and what it sent
                         before with it; default: that is read first */
};

/* Queues one message. 0, -ENOBUFS when the queue is full (nothing was queued), -EPIPE when the
 * connection is closing. Text must be valid UTF-8. */
int ws_send(struct ws_conn *c, enum ws_opcode opcode, const void *data, size_t len);

/* Starts the closing handshake after what is queued; `reason` may be NULL. Messages that still
 * arrive are dropped; closed() comes later. Does nothing on a closing connection. */
void ws_close(struct ws_conn *c, unsigned code, const char *reason);

/* Stops and resumes taking input, for back-pressure towards the peer; no message() comes while
 * paused. A peer is not held to answer pings meanwhile. */
void ws_pause(struct ws_conn *c, bool paused);

/* The socket, borrowed, to ask the kernel about it; -1: it is closed. */
int ws_socket(const struct ws_conn *c);
/* Bytes given to this connection so far, and how many of them the kernel at the other end has
 * acknowledged: these reach the peer whatever becomes of us. 0 when that cannot be told (any more).
 */
uint64_t ws_written(const struct ws_conn *c);
uint64_t ws_acked(const struct ws_conn *c);
/* More than low_water is queued: time to stop sending until writable() comes. */
bool ws_full(const struct ws_conn *c);
