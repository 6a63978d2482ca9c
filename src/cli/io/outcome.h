/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How a command ended, as boxd tells it, and what that makes of us. */

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;
struct json;

#define STATUS_TIMED_OUT 124
#define STATUS_FAILED 125 /* box itself failed, not the command */
#define STATUS_SIGNAL 128 /* plus the number of the signal */

enum outcome {
    OUTCOME_IS_EXITED,
    OUTCOME_IS_SIGNALED,
    OUTCOME_IS_TIMED_OUT,
    OUTCOME_IS_OOM_KILLED,
    OUTCOME_IS_QUOTA_EXCEEDED,
    OUTCOME_IS_SESSION_LOST,
    OUTCOME_IS_MAX,
};

struct outcome_report {
    enum outcome outcome;
    int64_t exit_code;   /* -1: none */
    int64_t signal;      /* 0: none */
    int64_t duration_ms; /* of the command */
    char error[256];     /* why the command never ran; "" when it did */
};

/* What this side knows of the command; 0 stands for unknown. */
struct outcome_context {
    const char *program; /* borrowed; its first argument */
    int64_t timeout_sec;
    int64_t memory_mb;
};

/* The message {"type":"exit",...}. ERR_BACKEND for one that makes no sense. */
int outcome_parse(const struct json *message, struct outcome_report *ret, struct err *err);

/* The exit status of box. Appends to `say` the line for standard error, without "box: " and without
 * newline; nothing where the status says it all. */
int outcome_status(const struct outcome_report *report, const struct outcome_context *context,
                   struct buf *say);
