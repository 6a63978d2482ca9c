/* SPDX-License-Identifier: Apache-2.0 */

/* The built-in profiles, and the making of a spec from a request and a profile. */

#include "spec/profile.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/model.h"

/* clang-format off */
const struct profile profiles[] = {
    {.name = "default", .image = PROFILE_DEFAULT_IMAGE, .network = NETWORK_OFF, .timeout_sec = 30, .max_timeout_sec = 120,
     .host_path_mode = MOUNT_RW, .cpus = 1.0, .memory_mb = 512, .pids_limit = 128, .read_only_rootfs = true},
    {.name = "network_basic", .image = PROFILE_DEFAULT_IMAGE, .network = NETWORK_ON, .timeout_sec = 30, .max_timeout_sec = 120,
     .host_path_mode = MOUNT_RW, .cpus = 1.0, .memory_mb = 512, .pids_limit = 128, .read_only_rootfs = true},
    {.name = "network_extended", .image = PROFILE_DEFAULT_IMAGE, .network = NETWORK_ON, .timeout_sec = 30, .max_timeout_sec = 300,
     .host_path_mode = MOUNT_RW, .cpus = 2.0, .memory_mb = 1024, .pids_limit = 256, .read_only_rootfs = false},
    {.name = "offline", .image = PROFILE_DEFAULT_IMAGE, .network = NETWORK_OFF, .timeout_sec = 30, .max_timeout_sec = 120,
     .host_path_mode = MOUNT_RW, .cpus = 1.0, .memory_mb = 512, .pids_limit = 128, .read_only_rootfs = true},
    {.name = "offline_readonly", .image = PROFILE_DEFAULT_IMAGE, .network = NETWORK_OFF, .timeout_sec = 30, .max_timeout_sec = 60,
     .host_path_mode = MOUNT_RO, .cpus = 0.5, .memory_mb = 256, .pids_limit = 64, .read_only_rootfs = true,
     .locked = FIELD_BIT(SPEC_NETWORK) | FIELD_BIT(SPEC_HOST_PATH_MODE) | FIELD_BIT(SPEC_READ_ONLY_ROOTFS)},
};
/* clang-format on */

const size_t n_profiles = ARRAY_SIZE(profiles);

bool profile_locks(const struct profile *p, enum spec_field field)
{
    return (p->locked & FIELD_BIT(field)) != 0;
}

static void replace(char **member, const char *text)
{
    free(*member);
    *member = xstrdup(text);
}

/* Everything a profile supplies; what a request may override is overridden by reading it after. */
static void preset_profile(const struct profile *p, struct spec *s)
{
    replace(&s->image, p->image);
    s->network = p->network;
    s->timeout_sec = p->timeout_sec;
    s->host_path_mode = p->host_path_mode;
    s->cpus = p->cpus;
    s->memory_mb = p->memory_mb;
    s->pids_limit = p->pids_limit;
    s->read_only_rootfs = p->read_only_rootfs;
    s->workspace_quota_mb = p->workspace_quota_mb;
}

const struct json *spec_said(const struct json *payload, const struct spec_policy *policy,
                             enum spec_field field)
{
    const uint64_t of_tools = FIELD_BIT(SPEC_CMD) | FIELD_BIT(SPEC_WORKDIR) |
                              FIELD_BIT(SPEC_TIMEOUT_SEC) | FIELD_BIT(SPEC_ENV);
    const char *name = spec_model.fields[field].name;

    if (!policy->tool)
        return json_get(payload, name);
    if (field == SPEC_EXTRA_MOUNTS)
        return policy->tool_mounts;
    if ((of_tools & FIELD_BIT(field)) == 0)
        return NULL;
    const struct json *v = json_get(payload, field == SPEC_CMD ? "command" : name);
    return json_type(v) == JSON_NULL ? NULL : v;
}

/* Absent, null or "". */
static bool is_empty(const struct json *v)
{
    return json_type(v) == JSON_NULL || (json_type(v) == JSON_STRING && json_str_len(v) == 0);
}

/* A workdir follows the mount path of its request, but not one that the profile has locked. */
static const struct json *lookup(const struct json *payload, const struct field *f, const void *arg)
{
    const struct spec_policy *policy = arg;

    if (policy->tool || profile_locks(policy->profile, SPEC_MOUNT_PATH))
        return spec_said(payload, policy, (enum spec_field)(f - spec_model.fields));
    return spec_model.lookup(payload, f, NULL);
}

/* Sets what the request leaves open, and returns the set of fields that it has no say in. */
static uint64_t preset(const struct json *payload, const struct spec_policy *policy, struct spec *s)
{
    const struct profile *p = policy->profile;
    uint64_t fixed = p->locked;
    int64_t timeout;

    preset_profile(p, s);
    if (policy->session_id) {
        s->session_id = xstrdup(policy->session_id);
        fixed |= FIELD_BIT(SPEC_SESSION_ID);
    }
    if (policy->default_workspace && (profile_locks(p, SPEC_HOST_PATH) ||
                                      is_empty(spec_said(payload, policy, SPEC_HOST_PATH)))) {
        replace(&s->host_path, policy->default_workspace);
        fixed |= FIELD_BIT(SPEC_HOST_PATH);
    }
    if (policy->has_quota && !profile_locks(p, SPEC_WORKSPACE_QUOTA_MB) &&
        is_empty(spec_said(payload, policy, SPEC_WORKSPACE_QUOTA_MB))) {
        s->workspace_quota_mb = policy->workspace_quota_mb;
        fixed |= FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB);
    }
    if (policy->image && !profile_locks(p, SPEC_IMAGE) && !spec_said(payload, policy, SPEC_IMAGE))
        replace(&s->image, policy->image);
    /* A timeout that is no number is left for the validation to refuse. */
    if (!profile_locks(p, SPEC_TIMEOUT_SEC) &&
        coerce_int(spec_said(payload, policy, SPEC_TIMEOUT_SEC), &timeout) == ISSUE_NONE &&
        timeout > p->max_timeout_sec) {
        s->timeout_sec = p->max_timeout_sec;
        fixed |= FIELD_BIT(SPEC_TIMEOUT_SEC);
    }
    return fixed;
}

int spec_build(const struct json *payload, const struct spec_policy *policy, struct spec **ret,
               struct report *report, struct err *err)
{
    AUTO(spec) struct spec *s = spec_new();
    struct report local;

    assert(policy->profile);
    assert(policy->profile->timeout_sec <= policy->profile->max_timeout_sec);
    if (!report)
        report = &local;
    uint64_t fixed = preset(payload, policy, s);
    struct model model = spec_model;
    model.lookup = lookup;
    model.arg = policy;
    if (model_parse(&model, payload, fixed, s, report) < 0)
        return report_fail(report, err);
    *ret = TAKE_PTR(s);
    return 0;
}

int quota_parse(const struct json *v, bool *ret_given, int64_t *ret, struct err *err)
{
    int64_t value;

    if (is_empty(v)) {
        *ret_given = false;
        return 0;
    }
    if (coerce_int(v, &value) != ISSUE_NONE)
        return err_set(err, ERR_INVALID,
                       "workspace_quota_mb must be an integer greater than or equal to 0");
    if (value < 0)
        return err_set(err, ERR_INVALID, "workspace_quota_mb must be greater than or equal to 0");
    if (value > SPEC_SIZE_MB_MAX)
        return err_set(err, ERR_INVALID, "workspace_quota_mb must be at most %d", SPEC_SIZE_MB_MAX);
    *ret_given = true;
    *ret = value;
    return 0;
}
