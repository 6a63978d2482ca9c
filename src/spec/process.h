/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a caller wants of a managed process ("BoxManagedProcessSpec" on the LangBot wire). */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct json;
struct model;
struct report;

#define PROCESS_DEFAULT_ID "default"
#define PROCESS_START_ID "main" /* the command that a session is for */

struct process_spec {
    char *process_id;    /* owned; any text, even empty */
    char *command;       /* owned */
    char **args;         /* owned; without the command */
    char **env;          /* owned; "NAME=value", names differ */
    char *cwd;           /* owned; absolute */
    int64_t memory_mb;   /* 0 or less: that of the session */
    int64_t timeout_sec; /* 0: it may run for ever */
    /* Of a detached command; no fields of the LangBot wire. */
    bool log;             /* its output is kept as a log, and never holds it back */
    bool with_stdin, tty; /* of such a one only; without either it reads /dev/null */
    int64_t rows, cols;   /* of the terminal */
    /* What the daemon itself says of it. No caller can: it is no field of the table. */
    char *owner; /* owned; the token that is charged for it; NULL: none is */
};

extern const struct model process_spec_model;    /* of the LangBot wire */
extern const struct model process_request_model; /* of others: all fields */

void process_spec_free(struct process_spec *p);
DEFINE_CLEANUP(process_spec)
struct process_spec *process_spec_copy(const struct process_spec *p);

/* As their counterparts in spec.h; the first one reads all fields, the second one those of the
 * LangBot wire. */
int process_spec_parse(const struct json *object, struct process_spec **ret, struct err *err);
int process_spec_parse_report(const struct json *object, struct process_spec **ret,
                              struct report *report, struct err *err);
