/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the load generator does, one measured operation at a time. It blocks on one descriptor and
 * parses as little as it can, so that what is measured is the other side. */

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;

#define LOAD_EXPECTED "hello\n" /* what every measured command prints */

uint64_t load_now(void); /* CLOCK_MONOTONIC, nanoseconds */

/* What a command works with. */
struct job {
    char *const *words; /* what follows the name of the command */
    struct buf reply;   /* scratch */
    struct buf times;   /* the answer */
};

/* Writes the time since then into the answer. */
void load_note(struct job *j, uint64_t since);
int load_count(const char *word, uint64_t *ret, struct err *err);

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

#define LOAD_WS_MAX (64U * 1024 - 1) /* what a message may have, either way */
#define LOAD_WS_TEXT 1

struct load_frame {
    unsigned opcode;
    const char *data; /* in the buffer */
    size_t len;
    size_t total; /* with its header; to be consumed when it has been looked at */
};

/* A WebSocket at `target`; the caller closes it. `headers`: lines with their line ends. What comes
 * early is in *scratch. */
int load_ws_open(const char *path, const char *target, const char *headers, struct buf *scratch,
                 struct err *err);
int load_ws_send(int fd, const char *text, size_t len, struct err *err);
/* The frame at the start of *b, read until it is whole. A server's frames are not masked. */
int load_ws_receive(int fd, struct buf *b, struct load_frame *ret, struct err *err);

/* One command over a WebSocket of its own: connect, upgrade, `request`, output, exit. */
int load_ws_exec(const char *path, const char *request, struct buf *scratch, struct err *err);

/* Commands of LangBot's protocol and of what it is compared with (rpc.c). */
int load_rpc(struct job *j, struct err *err);
int load_rpc_exec(struct job *j, struct err *err);
int load_relay(struct job *j, struct err *err);
int load_relay_bulk(struct job *j, struct err *err);
int load_socketpair(struct job *j, struct err *err);
int load_cat_bulk(struct job *j, struct err *err);

/* Commands of a container engine's own API, and of a session on it (engine.c). */
int load_engine_exec(struct job *j, struct err *err);
int load_engine_create(struct job *j, struct err *err);
int load_session(struct job *j, struct err *err);
