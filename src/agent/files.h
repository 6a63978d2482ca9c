/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Files of a session. What is asked is done inside the sandbox by a process of the session's own
 * identity (inside/files/wire.h), so no path can lead out of it, whatever stands there or is
 * swapped meanwhile. What comes back is checked here: sizes, kinds and order; never more than a
 * frame is held, and a client that does not keep up holds the process back. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "inside/files/wire.h"

struct files_call;
struct session;

#define FILES_TIMEOUT_NS                                                                           \
    (60ULL * 1000000000ULL) /* of what is not a stream, and of a sign of one                       \
                             */

struct files_text {
    const char *p; /* borrowed */
    size_t len;
};

/* All borrowed for the call of files_start(). Lengths of `head` are filled in. */
struct files_ask {
    struct files_request head; /* op, flags, mode, offset, length, max, expect */
    const char *root;          /* "/", or the directory that must not be left; absolute */
    const char *path;
    struct files_text a, b;
    uint64_t timeout_ns; /* 0: none, for streams, which only must not stand still for that long */
    bool quiet;          /* the session stays idle while it runs */
};

/* Why it did not work. */
struct files_failure {
    enum files_why why; /* 0: box-files itself could not be run, or broke off */
    int error;          /* errno, 0: none */
    uint64_t n;
    struct err err; /* for people, and with a code for programs */
};

struct files_events {
    /* Optional. A frame that fits the request: STAT, DATA, ENTRY, MATCH, EVENT. `data` holds the
     * fixed part and what follows; lengths inside are right. */
    void (*frame)(void *arg, enum files_type type, const char *data, size_t len);
    void (*drained)(void *arg); /* optional: after files_write() gave 1 */
    /* Exactly one is NULL. Exactly once, unless freed before. */
    void (*finished)(void *arg, const struct files_done *done, const struct files_failure *failure);
};

/* Holds the session until it is freed. Everything comes from the loop. */
int files_start(struct session *s, const struct files_ask *ask, const struct files_events *events,
                void *arg, struct files_call **ret, struct err *err);
/* Before the end it takes back what was asked: content without its end is not kept. */
void files_call_free(struct files_call *c);
DEFINE_CLEANUP(files_call)

/* WRITE: content. 1: taken, but wait for drained(); -EPIPE: it is not read any more, finished()
 * says why. */
int files_write(struct files_call *c, const char *data, size_t len);
void files_write_end(struct files_call *c); /* that was all; it is put in its place now */
void files_pause(struct files_call *c, bool paused);

/* "\"1a2b-3c-…\"": quotes and all. */
#define FILES_ETAG_SIZE 80
void files_etag(const struct files_tag *tag, char ret[static FILES_ETAG_SIZE]);
/* The same read back; false: no tag of ours, which matches nothing. */
bool files_etag_parse(const char *text, size_t len, struct files_tag *ret);

const char *files_type_name(uint32_t mode); /* "file", "directory", "symlink", "fifo", … */
const char *files_change_name(enum files_change c); /* "created", …; NULL: no such */
const char *files_cut_name(uint32_t cut);           /* "lines", …; NULL: nothing is missing */
