/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Server-sent events (WHATWG HTML, 9.2) as an answer in pieces. A comment goes out now and then, so
 * that both ends notice when the other is gone. When the caller's token is no longer valid, the
 * stream gets an event `revoked`; then on_cancel of the request comes, for the owner to call
 * sse_end(). */

#include <stdbool.h>

#include "loop/loop.h"

struct buf;
struct http_request;

/* Zero-initialised, inside its owner. */
struct sse {
    struct http_request *req; /* NULL: ended */
    struct loop *loop;
    struct loop_timer ping;
};

/* Whether the caller asked for events. */
bool sse_wanted(const struct http_request *req);
/* Begins the answer. */
void sse_start(struct sse *s, struct http_request *req, struct loop *loop);
/* One event; `id` may be NULL; `json` is one line. If the queue has no room the event is lost, and
 * the reader with it: look at sse_full() first. */
void sse_send(struct sse *s, const char *event, const char *id, const struct buf *json);
bool sse_full(const struct sse *s);
void sse_end(struct sse *s); /* completes the answer, or drops what is left of one that was lost */
