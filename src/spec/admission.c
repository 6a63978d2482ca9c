/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of fields of grants, revocations and the admission policy, and their parsers. */

#include "spec/admission.h"

#include "base/alloc.h"
#include "base/str.h"
#include "spec/model.h"
#include "spec/spec.h"

#define COUNTER_MAX (INT64_MAX - 1) /* counters that only ever grow */
#define COUNT_MAX 1000000
#define SECONDS_MAX SPEC_TIMEOUT_MAX

static const char *const session_id_names[] = {"global", NULL};
static const char *const backend_names[] = {"nsjail", NULL};

/* clang-format off */
#define ID_FIELD(type, name, what) \
    {#name, FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct type, name), \
     .max = SPEC_ID_MAX, .valid = text_not_empty, .rule = "must not be empty", .doc = (what)}
#define STRICT_INT(type, name, required, strict) \
    #name, FIELD_INT, (required) | FIELD_STRICT, offsetof(struct type, name), .strict_text = (strict)

static const struct field grant_fields[] = {
    ID_FIELD(admission_grant, instance_uuid, "The trusted instance."),
    ID_FIELD(admission_grant, workspace_uuid, "The workspace that may have sandboxes."),
    {STRICT_INT(admission_grant, execution_generation, FIELD_REQUIRED, "must be an integer"),
     .min = 1, .max = COUNTER_MAX, .rule = "must be greater than or equal to 1",
     .doc = "Placement generation the grant is for."},
    {STRICT_INT(admission_grant, entitlement_revision, FIELD_REQUIRED, "must be an integer"),
     .min = 1, .max = COUNTER_MAX, .rule = "must be greater than or equal to 1",
     .doc = "Grows with every change of the limits."},
    {"expires_at", FIELD_TIME, FIELD_REQUIRED, offsetof(struct admission_grant, expires_at),
     .rule = "expires_at must include a timezone",
     .doc = "When the grant ends."},
    {STRICT_INT(admission_grant, max_sessions, FIELD_REQUIRED, "must be an integer"),
     .min = 0, .max = COUNT_MAX, .rule = "must be greater than or equal to 0",
     .doc = "Sessions the workspace may have."},
    {STRICT_INT(admission_grant, max_managed_processes, FIELD_REQUIRED, "must be an integer"),
     .min = 0, .max = COUNT_MAX, .rule = "must be greater than or equal to 0",
     .doc = "Managed processes the workspace may have."},
};

static const struct field revocation_fields[] = {
    ID_FIELD(admission_revocation, instance_uuid, "The trusted instance."),
    ID_FIELD(admission_revocation, workspace_uuid, "The workspace whose grant ends."),
    {STRICT_INT(admission_revocation, entitlement_revision, FIELD_REQUIRED, "entitlement_revision must be an integer"),
     .min = 1, .max = COUNTER_MAX, .rule = "entitlement_revision must be greater than or equal to 1",
     .doc = "This revision and older ones are void."},
};

static const struct field policy_fields[] = {
    {"required", FIELD_BOOL, 0, offsetof(struct admission_policy, required), .number = false,
     .doc = "Whether sandboxes need a grant."},
    {"logical_session_id", FIELD_ENUM, FIELD_LITERAL, offsetof(struct admission_policy, logical_session_id),
     .names = session_id_names, .doc = "The one session of a workspace."},
    {"required_backend", FIELD_ENUM, FIELD_LITERAL, offsetof(struct admission_policy, required_backend),
     .names = backend_names, .doc = "Name of the backend to report."},
    {STRICT_INT(admission_policy, max_sessions, 0, "must be an integer"),
     .number = 1, .min = 0, .max = 1, .rule = "max_sessions must be between 0 and 1", .max_rule = "max_sessions must be between 0 and 1",
     .doc = "Bound on a grant's sessions."},
    {STRICT_INT(admission_policy, max_managed_processes, 0, "must be an integer"),
     .number = 0, .min = 0, .max = 0, .rule = "max_managed_processes must be 0", .max_rule = "max_managed_processes must be 0",
     .doc = "Bound on a grant's managed processes."},
    {STRICT_INT(admission_policy, max_grant_ttl_sec, 0, "must be an integer"),
     .number = 300, .min = 1, .max = SECONDS_MAX, .rule = "must be greater than 0",
     .doc = "Longest life of a grant."},
    {STRICT_INT(admission_policy, max_timeout_sec, 0, "must be an integer"),
     .number = 120, .min = 1, .max = SECONDS_MAX, .rule = "must be greater than 0",
     .doc = "Longest timeout of a command."},
    {"cpus", FIELD_REAL, FIELD_STRICT, offsetof(struct admission_policy, cpus), .strict_text = "cpus must be a number",
     .real = 1.0, .max = SPEC_CPUS_MAX, .rule = "cpus must be greater than 0",
     .doc = "Forced on every session."},
    {STRICT_INT(admission_policy, memory_mb, 0, "must be an integer"),
     .number = 512, .min = 32, .max = SPEC_SIZE_MB_MAX, .rule = "memory_mb must be at least 32",
     .doc = "Forced on every session."},
    {STRICT_INT(admission_policy, pids_limit, 0, "must be an integer"),
     .number = 128, .min = 1, .max = SPEC_PIDS_MAX, .rule = "must be greater than 0",
     .doc = "Forced on every session."},
    {"read_only_rootfs", FIELD_BOOL, 0, offsetof(struct admission_policy, read_only_rootfs), .number = true,
     .doc = "Forced on every session."},
    {STRICT_INT(admission_policy, workspace_quota_mb, 0, "must be an integer"),
     .number = 0, .min = 0, .max = SPEC_SIZE_MB_MAX, .rule = "must be greater than or equal to 0",
     .doc = "Forced on every session."},
    {STRICT_INT(admission_policy, readiness_cache_sec, 0, "must be an integer"),
     .number = 15, .min = 0, .max = SECONDS_MAX, .rule = "must be greater than or equal to 0",
     .doc = "How long a readiness probe counts."},
};
/* clang-format on */

const struct model admission_grant_model = {
    .name = "SandboxAdmissionGrant",
    .doc = "Leave for one workspace to have sandboxes for a while.",
    .fields = grant_fields,
    .n_fields = ARRAY_SIZE(grant_fields),
    .size = sizeof(struct admission_grant),
    .closed = true,
};

const struct model admission_revocation_model = {
    .name = "SandboxAdmissionRevocation",
    .doc = "The end of a grant, for good.",
    .fields = revocation_fields,
    .n_fields = ARRAY_SIZE(revocation_fields),
    .size = sizeof(struct admission_revocation),
    .closed = true,
};

const struct model admission_policy_model = {
    .name = "SandboxAdmissionPolicy",
    .doc = "The section `admission` of the configuration.",
    .fields = policy_fields,
    .n_fields = ARRAY_SIZE(policy_fields),
    .size = sizeof(struct admission_policy),
    .closed = true,
};

void admission_grant_free(struct admission_grant *g)
{
    if (!g)
        return;
    model_done(&admission_grant_model, g);
    free(g);
}

void admission_revocation_free(struct admission_revocation *r)
{
    if (!r)
        return;
    model_done(&admission_revocation_model, r);
    free(r);
}

static int parse(const struct model *m, const struct json *object, void *ret, struct report *report,
                 struct err *err)
{
    struct report local;

    if (!report)
        report = &local;
    model_init(m, ret);
    return model_parse(m, object, 0, ret, report) < 0 ? report_fail(report, err) : 0;
}

int admission_grant_parse(const struct json *object, struct admission_grant **ret,
                          struct report *report, struct err *err)
{
    AUTO(admission_grant) struct admission_grant *g = xnew(struct admission_grant);
    int r = parse(&admission_grant_model, object, g, report, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(g);
    return 0;
}

int admission_revocation_parse(const struct json *object, struct admission_revocation **ret,
                               struct report *report, struct err *err)
{
    AUTO(admission_revocation)
    struct admission_revocation *revocation = xnew(struct admission_revocation);
    int r = parse(&admission_revocation_model, object, revocation, report, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(revocation);
    return 0;
}

int admission_policy_parse(const struct json *object, struct admission_policy *ret,
                           struct report *report, struct err *err)
{
    struct admission_policy policy = {0};
    int r = 0;

    if (object)
        r = parse(&admission_policy_model, object, &policy, report, err);
    else
        model_init(&admission_policy_model, &policy);
    if (r < 0)
        return r;
    *ret = policy;
    return 0;
}
