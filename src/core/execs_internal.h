/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "core/execs.h"

/* Part of the output, of one stream. */
struct log_segment {
    struct log_segment *next;
    uint64_t at; /* position of its first byte */
    uint32_t len, cap;
    enum exec_stream stream;
    char data[];
};

/* Output by position; segments go whole, oldest first. */
struct exec_log {
    struct log_segment *first, *last;
    uint64_t end;
    size_t bytes; /* of memory */
};

void log_append(struct exec_log *log, enum exec_stream stream, const char *data, size_t len);
uint64_t log_begin(const struct exec_log *log); /* position of the first byte that is kept */
/* The segment that holds `at`, or the byte behind the last; NULL: none does. */
struct log_segment *log_find(const struct exec_log *log, uint64_t at);
void log_drop(struct exec_log *log); /* the first segment */
void log_done(struct exec_log *log);
