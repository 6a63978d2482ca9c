/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Records of sessions and processes as text. The reader does not trust the text, which may have
 * been edited: every size has a cap, every value a range. No I/O. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "session/manager.h"

struct err;
struct process_spec;
struct spec;

#define RECORD_NAME_MAX 128 /* of a sandbox, in its backend */

struct session_record {
    struct spec *spec; /* owned; without the command of the first caller */
    char *backend;     /* owned */
    char *sandbox;     /* owned; its name in that backend */
    char *sandbox_id;  /* owned; its name for people there, NULL: the same */
    int64_t created_ns;
    int64_t lease_sec;   /* 0: it has no lease */
    int64_t numbers_end; /* process numbers from here on were never used in this sandbox */
    /* Copies of members of spec->own. Written from there, and restored there after reading;
     * otherwise empty. */
    char **labels;     /* owned */
    char *owner;       /* owned */
    int64_t bound_uid; /* -1: none */
    int64_t expires_ns;
    bool env_locked;
    bool durable;
    bool image_named;
    bool best_effort;
    int64_t required;
    char *profile;              /* owned */
    char *artifacts;            /* owned */
    char **artifact_digests;    /* owned */
    char **allow_hosts;         /* owned */
    char **ports;               /* owned; published: "ADDRESS HOST_PORT PORT" */
    struct session_start start; /* owned; with its environment: it is started again by us */
};

/* Only the names of the environment are kept: boxd never starts a recorded process again, and
 * values are secrets. */
struct process_record {
    struct process_spec *spec; /* owned */
    int64_t number;
    int64_t started_ns;
    bool exited; /* what follows is known */
    int64_t exited_ns;
    int64_t exit_code;
    char *stderr_text; /* owned; the preview */
    char *owner;       /* owned; of spec->owner, as above */
    struct buf log;    /* of a log: its last records */
    char *log_hex;     /* owned; the same for the text; written from there; empty otherwise */
};

/* -ENOBUFS when it does not fit into the buffer's maximum. */
int session_record_write(const struct session_record *record, struct buf *out);
int process_record_write(const struct process_record *record, struct buf *out);

/* ERR_INVALID or ERR_LIMIT; nothing is owed then. */
int session_record_read(const char *text, size_t len, struct session_record *ret, struct err *err);
int process_record_read(const char *text, size_t len, struct process_record *ret, struct err *err);

void session_record_done(struct session_record *record);
void process_record_done(struct process_record *record);
DEFINE_CLEANUP_DONE(session_record)
DEFINE_CLEANUP_DONE(process_record)
