/* SPDX-License-Identifier: Apache-2.0 */

/* Makes a spec of a request: profile, locked fields, limits and mounts applied. */

#include "policy/policy.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/authz.h"
#include "policy/policy_internal.h"
#include "spec/coerce.h"
#include "spec/model.h"

/* A command and an environment, each character written as six. */
#define PAYLOAD_MAX (6U * (SPEC_CMD_MAX + SPEC_ENV_BYTES_MAX) + (1U << 20))

static void explain_profile(const struct policy *p, struct policy_row *ret)
{
    for (size_t i = 0; policy_explain(p, i, ret); i++)
        if (str_eq(ret->key, "box.local.profile"))
            return;
}

bool policy_profile_chosen(const struct policy *p)
{
    struct policy_row row = {0};

    explain_profile(p, &row);
    return !str_eq(row.source, "default");
}

/* A profile that does not exist must not wait for the first request to be found out. */
static int check_configured(const struct policy *p, struct err *err)
{
    const struct profile *ignored;
    struct policy_row row;
    struct err cause;

    if (policy_profile(p, NULL, &ignored, &cause) == 0)
        return 0;
    explain_profile(p, &row);
    return err_set(err, cause.code, "%s (%s from %s)", cause.msg, row.key, row.source);
}

int policy_new(const struct policy_options *options, struct policy **ret, struct err *err)
{
    AUTO(policy) struct policy *p = xnew(struct policy);
    int r = policy_read_settings(p, options, err);

    if (r == 0) {
        r = policy_read_profiles(p, json_get(options->file, "profiles"), err);
        if (r < 0)
            return err_wrap(err, "%s", options->file_name);
    }
    if (r == 0)
        r = check_configured(p, err);
    if (r == 0)
        *ret = TAKE_PTR(p);
    return r;
}

void policy_free(struct policy *p)
{
    if (p == NULL)
        return;
    policy_settings_done(p);
    policy_profiles_done(p);
    free(p);
}

const struct policy_settings *policy_settings(const struct policy *p)
{
    return &p->settings;
}

/* What the request asked for and will not get. */
static void note(const struct json *payload, struct policy_decision *d)
{
    int64_t timeout;

    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if (profile_locks(d->profile, (enum spec_field)i) &&
            json_get(payload, spec_model.fields[i].name) != NULL)
            d->overridden |= FIELD_BIT(i);
    d->clamped = !profile_locks(d->profile, SPEC_TIMEOUT_SEC) &&
                 coerce_int(json_get(payload, "timeout_sec"), &timeout) == ISSUE_NONE &&
                 timeout > d->profile->max_timeout_sec;
}

static bool names_host_path(const struct json *payload)
{
    const struct json *v = json_get(payload, "host_path");

    return json_type(v) != JSON_NULL && !(json_type(v) == JSON_STRING && json_str_len(v) == 0);
}

/* Fields that shape what others become: where they are locked, nothing of the request may be seen.
 */
#define SHAPING (FIELD_BIT(SPEC_HOST_PATH) | FIELD_BIT(SPEC_MOUNT_PATH))

static int without_locked(const struct json *payload, const struct policy_decision *d,
                          struct json **ret, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    buf_init(&text, PAYLOAD_MAX);
    jw_init(&w, &text);
    jw_object(&w);
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++) {
        const struct json *v = json_get(payload, spec_model.fields[i].name);
        if (v == NULL || (d->overridden & FIELD_BIT(i)) != 0)
            continue;
        jw_key(&w, spec_model.fields[i].name);
        jw_value(&w, v);
    }
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the request is too large");
    return json_parse(text.data, text.len, ret, err);
}

static int place(const struct policy *p, const struct policy_request *request, char **path,
                 struct err *err)
{
    char *checked = NULL;

    /* Plain in any case: the scope is asked about the path next. */
    if (request->skip_mount_check && (*path)[0] == '/')
        checked = policy_plain_path(NULL, *path);
    if (request->skip_mount_check && checked == NULL)
        return 0;
    int r = checked == NULL ? policy_check_mount(p, *path, &checked, err) : 0;
    if (r < 0)
        return r;
    free(*path);
    *path = checked;
    return 0;
}

/* Every host path; those of a tool call's further mounts are the daemon's own. */
static int check_mounts(const struct policy *p, const struct policy_request *request,
                        struct spec *s, const struct policy_decision *d, struct err *err)
{
    int r = 0;

    if (s->host_path != NULL && s->host_path_mode != MOUNT_NONE)
        r = place(p, request, &s->host_path, err);
    if (r == 0 && s->host_path != NULL && !d->own_workspace)
        r = authz_check_mount(request->scope, s->host_path, s->host_path_mode, err);
    for (size_t i = 0; r == 0 && request->query == NULL && i < s->n_extra_mounts; i++) {
        struct mount_spec *m = &s->extra_mounts[i];
        if (m->mode == MOUNT_NONE)
            continue;
        r = place(p, request, &m->host_path, err);
        if (r == 0)
            r = authz_check_mount(request->scope, m->host_path, m->mode, err);
        if (r < 0)
            return err_wrap(err, "extra_mounts.%zu", i);
    }
    return r;
}

static int build(const struct policy *p, const struct policy_request *request,
                 const struct json *payload, struct spec **ret,
                 struct policy_decision *ret_decision, struct err *err)
{
    const struct policy_settings *set = &p->settings;
    struct policy_decision d = {0};
    AUTO(spec) struct spec *s = NULL;
    AUTO(json) struct json *reduced = NULL;
    int r = policy_profile(p, request->profile, &d.profile, err);

    if (r == 0)
        r = authz_check_profile(request->scope, d.profile->name, err);
    if (r < 0)
        return r;
    note(payload, &d);
    if ((d.overridden & SHAPING) != 0) {
        r = without_locked(payload, &d, &reduced, err);
        if (r < 0)
            return r;
        payload = reduced;
    }
    d.own_workspace = set->default_workspace != NULL && !names_host_path(payload);
    const struct spec_policy rules = {.profile = d.profile,
                                      .default_workspace = set->default_workspace,
                                      .image = set->image,
                                      .has_quota = set->has_quota,
                                      .workspace_quota_mb = set->workspace_quota_mb};
    r = spec_build(payload, &rules, &s, NULL, err);
    if (r == 0)
        r = authz_check_session(request->scope, s->session_id, err);
    if (r == 0)
        r = authz_check_network(request->scope, s->network, err);
    if (r == 0)
        r = check_mounts(p, request, s, &d, err);
    if (r < 0)
        return r;
    if (authz_share(request->scope) != NULL)
        s->own.owner = xstrdup(authz_share(request->scope));
    s->own.env_locked = profile_locks(d.profile, SPEC_ENV);
    s->own.bound = authz_is_user(request->scope, &s->own.uid);
    if (ret_decision != NULL)
        *ret_decision = d;
    *ret = TAKE_PTR(s);
    return 0;
}

int policy_payload_spec(const struct policy *p, const struct policy_request *request,
                        const struct json *payload, struct spec **ret,
                        struct policy_decision *ret_decision, struct err *err)
{
    struct policy_request plain = *request;

    plain.query = NULL;
    return build(p, &plain, payload, ret, ret_decision, err);
}

/* What a model may say about its command. The rest of what it sends is ignored: network, image,
 * paths and the session are not its business. */
static const char *const tool_arguments[] = {"workdir", "timeout_sec", "env"};

static int tool_payload(const struct policy_request *request, const char *session_id,
                        const struct json *arguments, struct json **ret, struct err *err)
{
    const struct json *command = json_get(arguments, "command");
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    buf_init(&text, PAYLOAD_MAX);
    if (json_type(command) != JSON_STRING)
        return err_set(err, ERR_INVALID, "command must be text");
    jw_init(&w, &text);
    jw_object(&w);
    jw_key(&w, "cmd");
    jw_value(&w, command);
    jw_kstr(&w, "session_id", session_id);
    for (size_t i = 0; i < ARRAY_SIZE(tool_arguments); i++) {
        const struct json *v = json_get(arguments, tool_arguments[i]);
        if (json_type(v) == JSON_NULL)
            continue;
        jw_key(&w, tool_arguments[i]);
        jw_value(&w, v);
    }
    if (request->own_mounts != NULL) {
        jw_key(&w, "extra_mounts");
        jw_value(&w, request->own_mounts);
    }
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the arguments are too large");
    return json_parse(text.data, text.len, ret, err);
}

int policy_tool_spec(const struct policy *p, const struct policy_request *request,
                     const struct json *arguments, struct spec **ret,
                     struct policy_decision *ret_decision, struct err *err)
{
    AUTO(json) struct json *payload = NULL;
    AUTO_FREE char *session_id = NULL;
    int r = authz_check_tool(request->scope, request->tool != NULL ? request->tool : "exec", err);

    if (r == 0)
        r = policy_session_id(p, request->query, &session_id, err);
    if (r == 0)
        r = tool_payload(request, session_id, arguments, &payload, err);
    return r < 0 ? r : build(p, request, payload, ret, ret_decision, err);
}
