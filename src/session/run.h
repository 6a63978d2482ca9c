/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One exec in a session, with its output either kept (bounded, the rest counted) or handed on as it
 * comes. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/buf.h"

struct err;
struct run;
struct session;

#define RUN_CAPTURE_DEFAULT (1U << 20) /* bytes kept of each stream */
#define RUN_CAPTURE_MAX (8U << 20)

struct run_result {
    struct outcome outcome;
    struct buf kept[2];   /* stdout, stderr; borrowed from the run */
    uint64_t produced[2]; /* bytes, kept or not */
};

struct run_events {
    /* Optional. Without it output is kept in the result. */
    void (*output)(void *arg, enum exec_stream stream, const char *data, size_t len);
    void (*stdin_drained)(void *arg); /* optional */
    void (*finished)(void *arg, const struct run_result *result);
};

struct run_options {
    struct exec_request exec; /* borrowed for the call */
    size_t capture;           /* bytes kept of each stream, RUN_CAPTURE_MAX at most */
    bool quiet;               /* it only looks at the session, which stays idle */
    const char *id;           /* borrowed for the call; the exec's id; NULL: it has none */
};

/* Holds the session until it is freed. */
int run_start(struct session *s, const struct run_options *options, const struct run_events *events,
              void *arg, struct run **ret, struct err *err);
void run_free(
    struct run *r); /* a running exec goes on unobserved; call run_kill() first if it must not */
/* As exec_write() of the backend: 1 asks to wait for stdin_drained(). */
int run_write(struct run *r, const char *data, size_t len);
void run_close_stdin(struct run *r);
void run_signal(struct run *r, int signo);
void run_kill(struct run *r);
void run_resize(struct run *r, uint16_t rows, uint16_t cols);
void run_pause(struct run *r, bool paused);
