/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A profile supplies defaults for a spec, a longest timeout, and fields that requests cannot
 * change. All are built in. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spec/spec.h"

struct err;
struct json;
struct report;

#define PROFILE_DEFAULT_IMAGE "python:3.11-slim"

struct profile {
    const char *name;
    const char *image;
    int64_t timeout_sec;
    int64_t max_timeout_sec;
    double cpus;
    int64_t memory_mb;
    int64_t pids_limit;
    int64_t workspace_quota_mb;
    uint64_t locked; /* FIELD_BIT(enum spec_field) set; only fields a profile supplies */
    enum network network;
    enum mount_mode host_path_mode;
    bool read_only_rootfs;
};

extern const struct profile profiles[]; /* sorted by name */
extern const size_t n_profiles;

bool profile_locks(const struct profile *p, enum spec_field field);

/* What the configuration says about specs, and how a request is to be read. All borrowed. */
struct spec_policy {
    const struct profile *profile;
    const char *session_id; /* of the session, whatever the request says; NULL: the request does */
    /* The request is an agent's tool call: of `command`, `workdir`, `timeout_sec` and `env` it says
     * what is not null, and of nothing else anything. */
    bool tool;
    const struct json *tool_mounts; /* extra_mounts of a tool call; NULL: none */
    const char *default_workspace;  /* host_path of requests that name none; NULL: there is none */
    const char *image; /* image of requests that name none; NULL: that of the profile */
    bool has_quota;
    int64_t workspace_quota_mb; /* of requests that name none, when has_quota */
};

/* What a request says about a field; NULL: nothing. */
const struct json *spec_said(const struct json *payload, const struct spec_policy *policy,
                             enum spec_field field);

/* Reads a request under a policy: defaults, locked fields and the timeout clamp are applied, then
 * everything is validated as spec_parse_report() does. Whether the host paths may be mounted is not
 * decided here. `report` may be NULL. */
int spec_build(const struct json *payload, const struct spec_policy *policy, struct spec **ret,
               struct report *report, struct err *err);

/* The configuration key workspace_quota_mb: null and "" are no override (*ret_given false). */
int quota_parse(const struct json *v, bool *ret_given, int64_t *ret, struct err *err);
