/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Who ran what, and how it ended: an append-only log of JSON lines. Each record carries its number
 * and the SHA-256 of the line before, so that a person who changes, removes or reorders lines
 * has to rewrite everything after them. See docs/reference/audit.md for what is promised when.
 *
 *   DIR/audit.log                the current file
 *   DIR/audit-<number>.log       full ones, by the number of their first record, 20 digits
 *
 * Not for two processes at a time: the directory is locked. Calls block for one write(2), and for
 * one fdatasync(2) where that is asked for. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct audit;
struct clock;
struct err;
struct jw;
struct policy_decision;

#define AUDIT_LINE_MAX (32U << 10) /* bytes of a record */
#define AUDIT_COMMAND_MAX 1024U    /* bytes of a command that are kept; the digest covers all */
#define AUDIT_RESERVE (64U << 10)  /* disk space that is ours before it is needed */
#define AUDIT_CURRENT "audit.log"
#define AUDIT_HASH_LEN 64U

enum audit_event {
    AUDIT_LOG_BEGIN, /* the first record of a chain */
    AUDIT_LOG_RECOVERED,
    AUDIT_EXEC_START,
    AUDIT_EXEC_END,
    AUDIT_DENIED, /* policy or scope said no */
    AUDIT_SESSION_CREATE,
    AUDIT_SESSION_DELETE, /* a caller or a quota ends it */
    AUDIT_SESSION_STATE,  /* it is stopped, started, paused, unpaused, renamed or updated */
    AUDIT_SESSION_END,    /* it is gone */
    AUDIT_PROCESS_START,
    AUDIT_PROCESS_END,
    AUDIT_FILE_WRITE,
    AUDIT_EVENT_MAX,
};

struct audit_options {
    int dir_fd; /* borrowed for the call */
    const struct clock *clock;
    uint64_t max_bytes; /* of a file; 0: one file for ever */
    size_t keep_files;  /* full ones; 0: all */
    bool sync;          /* each record is on disk when audit_write() returns */
    bool refuse;        /* what cannot be recorded must not happen */
};

/* Goes on where an earlier process stopped. A last line that was not written to its end is dropped
 * and recorded; a log whose last record cannot be read is set aside (audit-bad-*.log) and a new
 * chain begun. ERR_STATE: another process has it. */
int audit_open(const struct audit_options *options, struct audit **ret, struct err *err);
void audit_free(struct audit *a);
DEFINE_CLEANUP(audit)

/* Text that is NULL is left out, and so are numbers that are not there. All borrowed. */
struct audit_record {
    enum audit_event event;
    const char *who;     /* authz_name() or better */
    const char *via;     /* "http", "rpc", "mcp", "stdio" */
    const char *session; /* as the caller names it */
    const char *query;
    const char *process; /* of process_start and process_end */
    const char *path;    /* of file_write */
    const char *command;
    size_t command_len;
    const char *outcome; /* "exited", "timed_out", …, or a class of errors */
    const char *reason;
    const int64_t *exit_code;
    const uint64_t *duration_ms;
    const uint64_t *bytes; /* two: stdout and stderr as produced */
    const struct policy_decision *decision;
};

/* 0, also when the record is lost and no request has to be refused for it; ERR_LIMIT otherwise. */
int audit_write(struct audit *a, const struct audit_record *record, struct err *err);

/* Before a command starts: ERR_LIMIT when its end might not fit the disk and `refuse` was asked
 * for. Space that came back is noticed. */
int audit_ready(struct audit *a, struct err *err);

/* Reading back: the records behind number `after`, oldest first, as their lines without the
 * newline. At most `limit`, and around a megabyte: a caller that wants more asks again. Records of
 * files that were removed are left out. ERR_STATE: a line is no valid record. */
typedef void audit_line_fn(void *arg, uint64_t number, const char *line, size_t len);
int audit_read(const struct audit *a, uint64_t after, size_t limit, audit_line_fn *fn, void *arg,
               struct err *err);

/* An object: full, on_full, error; with `counts` also records, head and lost, which tell how much
 * all callers do. */
void audit_write_status(const struct audit *a, bool counts, struct jw *w);
uint64_t audit_count(const struct audit *a); /* the number of the last record */
uint64_t audit_lost(const struct audit *a);  /* by this process */

/* Verification ----------------------------------------------------------------------------------
 */

/* State over one file after the other, oldest first; zero it to begin. */
struct audit_chain {
    uint64_t first, last; /* numbers of records; 0: none yet */
    uint64_t lost;        /* as the records themselves tell */
    char head[AUDIT_HASH_LEN + 1];
    const char *wanted; /* borrowed; a head noted earlier that must be found, NULL: none */
    bool found;
    const char *bad_file;   /* borrowed; NULL: all is well */
    uint64_t bad_line;      /* the line looked at last, from 1 */
    const char *bad_reason; /* static */
};

/* 0: every line is right; 1: the first bad one is named in *chain; or a negative errno. */
int audit_verify(struct audit_chain *chain, int fd, const char *name, struct err *err);
