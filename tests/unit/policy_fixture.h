/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A policy from texts: what stands in the file, and what in the environment. */

#include "lib/unit.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/policy.h"

static inline struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return v;
}

static inline int policy_from(const char *file, const char *const *env, struct policy **ret,
                              struct err *err)
{
    AUTO(json) struct json *root = parse(file);
    const struct policy_options options = {.file = root,
                                           .file_name = "box.yaml",
                                           .env = (char *const *)(uintptr_t)env,
                                           .cwd = "/home/u"};
    *err = (struct err){0};
    return policy_new(&options, ret, err);
}

static inline struct policy *policy_good(const char *file)
{
    struct policy *p = NULL;
    struct err err;
    if (policy_from(file, NULL, &p, &err) < 0)
        fail_msg("%s: %s", file, err.msg);
    return p;
}

/* The configuration of the seeds' make_app (I04). */
#define FLAT(more)                                                                                 \
    "{\"box\": {\"profile\": \"default\", \"shared_host_root\": \"\", "                            \
    "\"allowed_host_mount_roots\": [], \"default_host_workspace\": \"\"" more "}}"

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline const char *source_of(const struct policy *p, const char *key)
{
    struct policy_row row;
    for (size_t i = 0; policy_explain(p, i, &row); i++)
        if (str_eq(row.key, key))
            return row.source;
    fail_msg("no setting %s", key);
    return NULL;
}
