/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the load generator does, one measured operation at a time. It blocks on one descriptor and
 * parses as little as it can, so that what is measured is the other side. */

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

#define LOAD_EXPECTED "hello\n" /* what every measured command prints */

uint64_t load_now(void); /* CLOCK_MONOTONIC, nanoseconds */

/* One process with its output in a pipe, until end of file and exit. Anything but exit status 0
 * and LOAD_EXPECTED is a failure. */
int load_spawn(char *const *argv, struct err *err);

/* A connection to boxd's unix socket; the caller closes it. */
int load_connect(const char *path, struct err *err);

/* Sends one request on a connection that is kept alive. `body` NULL: none. */
int load_http_send(int fd, const char *method, const char *target, const char *body,
                   struct err *err);
/* Reads one answer; any status but `status` is a failure. The body is in *reply until the next
 * call. */
int load_http_receive(int fd, struct buf *reply, unsigned status, struct err *err);

/* One command over a WebSocket of its own: connect, upgrade, `request`, output, exit. */
int load_ws_exec(const char *path, const char *request, struct buf *scratch, struct err *err);
