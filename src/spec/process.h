/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a caller wants of a managed process ("BoxManagedProcessSpec" on the LangBot wire). */

#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct json;
struct model;
struct report;

#define PROCESS_DEFAULT_ID "default"

struct process_spec {
    char *process_id;    /* owned; any text, even empty */
    char *command;       /* owned */
    char **args;         /* owned; without the command */
    char **env;          /* owned; "NAME=value", names differ */
    char *cwd;           /* owned; absolute */
    int64_t memory_mb;   /* 0 or less: that of the session */
    int64_t timeout_sec; /* 0: it may run for ever */
    /* What the daemon itself says of it. No caller can: it is no field of the table. */
    char *owner; /* owned; the token that is charged for it; NULL: none is */
};

extern const struct model process_spec_model;

void process_spec_free(struct process_spec *p);
DEFINE_CLEANUP(process_spec)

/* As their counterparts in spec.h. */
int process_spec_parse(const struct json *object, struct process_spec **ret, struct err *err);
int process_spec_parse_report(const struct json *object, struct process_spec **ret,
                              struct report *report, struct err *err);
