/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a trusted host says about who may have sandboxes at all: grants, their revocation, and the
 * policy of the instance that bounds every grant. Only the values; deciding is core's. */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct json;
struct model;
struct report;

struct admission_grant {
    char *instance_uuid;  /* owned */
    char *workspace_uuid; /* owned */
    int64_t execution_generation;
    int64_t entitlement_revision;
    int64_t expires_at; /* microseconds since 1970, UTC */
    int64_t max_sessions;
    int64_t max_managed_processes;
};

struct admission_revocation {
    char *instance_uuid;  /* owned */
    char *workspace_uuid; /* owned */
    int64_t entitlement_revision;
};

struct admission_policy {
    bool required;
    int logical_session_id; /* always 0: "global" is the only value there is */
    int required_backend;   /* always 0: "nsjail", the only value there is */
    int64_t max_sessions;
    int64_t max_managed_processes;
    int64_t max_grant_ttl_sec;
    int64_t max_timeout_sec;
    double cpus;
    int64_t memory_mb;
    int64_t pids_limit;
    bool read_only_rootfs;
    int64_t workspace_quota_mb;
    int64_t readiness_cache_sec;
};

extern const struct model admission_grant_model;
extern const struct model admission_revocation_model;
extern const struct model admission_policy_model;

void admission_grant_free(struct admission_grant *g); /* NULL is fine */
DEFINE_CLEANUP(admission_grant)
void admission_revocation_free(struct admission_revocation *r);
DEFINE_CLEANUP(admission_revocation)

/* ERR_INVALID as spec_parse_report(); `report` may be NULL. Unknown members are errors, and numbers
 * must be JSON numbers. */
int admission_grant_parse(const struct json *object, struct admission_grant **ret,
                          struct report *report, struct err *err);
int admission_revocation_parse(const struct json *object, struct admission_revocation **ret,
                               struct report *report, struct err *err);
/* `object` NULL gives the defaults. The policy owns nothing. */
int admission_policy_parse(const struct json *object, struct admission_policy *ret,
                           struct report *report, struct err *err);
