/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of execs with an id share: the log of output, the execs and their list. */

#include "base/err.h"
#include "base/log.h"
#include "command/execs.h"

struct policy_gate;
struct share;

#define EXECS_BUCKETS 256U

/* Part of the output, of one stream. */
struct log_segment {
    struct log_segment *next;
    uint64_t at;    /* position of its first byte */
    uint64_t taken; /* memory of all segments before it, ever */
    uint32_t len, cap;
    enum exec_stream stream;
    char data[];
};

/* Output by position; segments go whole, oldest first. */
struct exec_log {
    struct log_segment *first, *last;
    uint64_t end;
    uint64_t taken; /* memory of all segments, also of those that went */
    size_t bytes;   /* of memory */
};

void log_append(struct exec_log *log, enum exec_stream stream, const char *data, size_t len);
uint64_t log_begin(const struct exec_log *log); /* position of the first byte that is kept */
/* The segment that holds `at`, or the byte behind the last; NULL: none does. */
struct log_segment *log_find(const struct exec_log *log, uint64_t at);
void log_drop(struct exec_log *log); /* the first segment */
void log_done(struct exec_log *log);

struct named_exec {
    struct execs *x;
    struct named_exec *bucket_next, *prev, *next; /* in order of start */
    struct named_exec *older, *newer;             /* of those that ended, in that order */
    enum named_exec_state state;
    char *id, *session_id;           /* owned */
    struct named_exec_options asked; /* until it runs: run, stdin_text and owned */
    struct session *session;         /* held until it runs */
    struct policy_gate *gate;        /* owned; NULL once it has ended */
    struct share *share;             /* held; whose it is; NULL: nobody's in particular */
    struct run *run;                 /* owned; NULL unless it runs */
    struct run_result result;        /* without text */
    struct loop_defer start;         /* it has been let in */
    struct log_scope request;        /* who asked, for the log */
    struct err err;                  /* why it never ran, or may not have */
    bool keep, paused, ran;
    size_t log_max;
    struct exec_log log;
    uint64_t started_real, ended_now, stdin_bytes;
    struct named_exec_reader *readers;
};

/* execs.c: what all have together; for named_exec_settle(). */
struct execs {
    struct loop *loop; /* borrowed */
    struct execs_options options;
    struct named_exec *buckets[EXECS_BUCKETS];
    struct named_exec *first, *last;
    struct named_exec *ended_first, *ended_last;
    size_t n_running, n_ended, bytes;
    struct loop_timer timer;
    struct loop_defer sweep;
};

/* execs_read.c */
void named_exec_tell_readers(struct named_exec *k);
/* Drops what is too much, and holds the program back or lets it go on. */
void named_exec_settle(struct named_exec *k);
