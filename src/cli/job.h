/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One command over the WebSocket /v1/exec: what is said to boxd and what it says. No I/O. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/io/outcome.h"

struct args;
struct buf;
struct jw;

/* First byte of a binary message. */
enum job_channel { JOB_STDIN, JOB_STDOUT, JOB_STDERR };

struct job_terms {
    bool with_stdin;
    uint16_t rows, cols; /* of the terminal, when there is one */
};

/* The first message: what to run and where.
 *
 * With standard input it asks for acknowledgements. A boxd that grants them names a window: as many
 * bytes may be on their way unacknowledged. It never stops reading then, so that signals and the
 * end of the connection reach it even while the command does not read. */
int job_write_request(struct buf *out, const struct args *args, const struct job_terms *terms);
/* session, ephemeral, create: the part about the session, as members. */
void job_put_session(struct jw *w, const struct args *args);
int job_write_signal(struct buf *out, int signo);
int job_write_resize(struct buf *out, uint16_t rows, uint16_t cols);
int job_write_stdin_eof(struct buf *out);

enum job_event_type {
    JOB_EVENT_OTHER, /* of a newer boxd; to be ignored */
    JOB_EVENT_STARTED,
    JOB_EVENT_EXIT,
    JOB_EVENT_ERROR,
    JOB_EVENT_STDIN_ACK,
};

struct job_event {
    enum job_event_type type;
    int64_t memory_mb;             /* STARTED: the limit, 0 when boxd does not tell */
    int64_t stdin_window;          /* STARTED: see below, 0: no acknowledgements will come */
    int64_t stdin_acked;           /* STDIN_ACK: bytes the command has taken since the last one */
    struct outcome_report outcome; /* EXIT */
    struct err err;                /* ERROR: in the words of boxd, with the remedy */
};

/* A text message of boxd. ERR_BACKEND for one that makes no sense. */
int job_parse_event(const char *text, size_t len, struct job_event *ret, struct err *err);

/* The name of a signal that can be sent ("INT"), NULL for any other. */
const char *job_signal_name(int signo);
