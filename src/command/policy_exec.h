/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One command for a caller, from what was asked to what is answered: policy, quota, session, run,
 * quota, truncation, records. Every front does it this way. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/buf.h"
#include "policy/outputs.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/spec.h"

struct err;
struct json;
struct jw;
struct policy_exec;
struct policy_service;

/* Fields that make a session what it is: a command never runs in one that was made otherwise. */
#define POLICY_SESSION_FIELDS                                                                      \
    (FIELD_BIT(SPEC_NETWORK) | FIELD_BIT(SPEC_IMAGE) | FIELD_BIT(SPEC_HOST_PATH) |                 \
     FIELD_BIT(SPEC_HOST_PATH_MODE) | FIELD_BIT(SPEC_MOUNT_PATH) | FIELD_BIT(SPEC_CPUS) |          \
     FIELD_BIT(SPEC_MEMORY_MB) | FIELD_BIT(SPEC_PIDS_LIMIT) | FIELD_BIT(SPEC_READ_ONLY_ROOTFS) |   \
     FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB))

struct policy_exec_options {
    struct policy_request request; /* with a query it is a tool call */
    const struct json *arguments;  /* of the tool, or a whole spec; not needed after the call */
    const char *via;               /* the front, for the records; static */
    const char *who;               /* for the records; NULL: the name of the scope */
    /* The command only makes room: see policy_quota.h. */
    bool cleanup;
};

struct policy_result {
    const char *session_id, *backend;
    struct outcome outcome;
    struct buf text[2];         /* stdout and stderr as they are shown */
    bool cut[2];                /* not all of it */
    uint64_t produced[2];       /* bytes */
    char id[2][OUTPUT_ID_SIZE]; /* of the full output; "" when all is shown or nothing is kept */
};

/* Exactly one is NULL. From the loop, once; policy_exec_free() is still owed. */
typedef void policy_exec_fn(void *arg, const struct policy_result *result, const struct err *err);

/* What is refused at once is told at once, and is in the records already. */
int policy_exec_start(const struct policy_service *service,
                      const struct policy_exec_options *options, policy_exec_fn *done, void *arg,
                      struct policy_exec **ret, struct err *err); /* service borrowed */
/* Before the end it takes back what was asked: a running command is killed, nobody is told. */
void policy_exec_free(struct policy_exec *e);
DEFINE_CLEANUP(policy_exec)

/* session_id, backend, status, ok, exit_code, stdout, stderr, stdout_truncated, stderr_truncated,
 * duration_ms, outcome; stdout_id and stderr_id where there is more to read. */
void policy_result_write(const struct policy_result *r, struct jw *w);
