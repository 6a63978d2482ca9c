/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd tells of a command or of a process that is followed: the text messages of /v1/exec. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/port.h"

struct buf;

#define UNENFORCED_MAX 8

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

enum job_event_type {
    JOB_EVENT_OTHER, /* of a newer boxd; to be ignored */
    JOB_EVENT_STARTED,
    JOB_EVENT_EXIT,
    JOB_EVENT_ERROR,
    JOB_EVENT_STDIN_ACK,
    JOB_EVENT_END, /* a log was shown up to its end */
};

struct job_event {
    enum job_event_type type;
    int64_t memory_mb;    /* STARTED: the limit, 0 when boxd does not tell */
    int64_t stdin_window; /* STARTED: see below, 0: no acknowledgements will come */
    bool temporary;       /* STARTED: boxd says that the session is not kept */
    bool tty, with_stdin; /* STARTED, of a process: it has a terminal; we are its stdin */
    struct {
        char field[32], why[160];
    } unenforced[UNENFORCED_MAX]; /* STARTED: limits of the session that are not */
    size_t n_unenforced;
    int64_t stdin_acked; /* STDIN_ACK: bytes the command has taken since the last one */
    uint16_t host_ports[PORT_NUMBERS_MAX]; /* STARTED: of the ports that were asked for */
    struct outcome_report outcome;         /* EXIT */
    struct err err;                        /* ERROR: in the words of boxd, with the remedy */
};

/* A text message of boxd. ERR_BACKEND for one that makes no sense. */
int job_parse_event(const char *text, size_t len, struct job_event *ret, struct err *err);
/* The exit status of box, and what it says beside it. */
int outcome_status(const struct outcome_report *r, const struct outcome_context *context,
                   struct buf *say);
