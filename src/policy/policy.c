/* SPDX-License-Identifier: Apache-2.0 */

/* The policy: its profiles, which host paths may be mounted, and how a request becomes a spec. */

#include "policy/policy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/authz.h"
#include "policy/policy_internal.h"
#include "spec/coerce.h"
#include "spec/model.h"

/* Host paths ----------------------------------------------------------------------------------- */

#define LIST_MAX 65536U

char *policy_plain_path(const char *base, const char *path)
{
    char *whole = xasprintf("%s/%s", path[0] != '/' && base != NULL ? base : "", path);

    path_normalise(whole);
    return whole;
}

static const char *roots_name(const struct policy *p)
{
    return p->flat ? "allowed_host_mount_roots" : "allowed_mount_roots";
}

static int outside(const struct policy *p, const char *what, const char *path, enum err_code code,
                   struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(LIST_MAX);

    for (size_t i = 0; i < p->n_roots; i++)
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", p->roots[i].real);
    return err_set(err, code, "%s is outside %s: %.180s (it is %.120s)", what, roots_name(p),
                   buf_str(&list), path);
}

/* What follows the root, or NULL when the path does not lie there. */
static const char *below(const char *path, const char *root)
{
    size_t n = strlen(root);

    return strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '/') ? path + n : NULL;
}

/* The path with its root as it resolved at start, owned; NULL: it lies below none. */
static char *placed(const struct policy *p, const char *path)
{
    AUTO_FREE char *plain = policy_plain_path(NULL, path);

    for (size_t i = 0; i < p->n_roots; i++) {
        const char *rest = below(plain, p->roots[i].real);
        if (rest == NULL)
            rest = below(plain, p->roots[i].given);
        if (rest != NULL)
            return xasprintf("%s%s", p->roots[i].real, rest);
    }
    return NULL;
}

/* Checks the name only: the backend resolves it beneath a descriptor when it mounts it. *ret is the
 * path to mount, owned: without "." and "..", and with its root as that resolved at start. */
static int policy_check_mount(const struct policy *p, const char *path, char **ret, struct err *err)
{
    if (p->n_roots == 0)
        return err_set(err, ERR_DENIED,
                       "host_path mounting is disabled because no %s are configured",
                       roots_name(p));
    char *found = path[0] == '/' ? placed(p, path) : NULL;
    if (found == NULL)
        return outside(p, "host_path", path, ERR_DENIED, err);
    *ret = found;
    return 0;
}

static int make_all(char *path, struct err *err)
{
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char end = *at;
        *at = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_sys(err, errno, "make default_workspace '%.200s'", path);
        *at = end;
        if (end == '\0')
            return 0;
    }
}

int policy_ensure_workspace(const struct policy *p, struct err *err)
{
    const char *path = p->settings.default_workspace;
    const char *name = p->flat ? "default_host_workspace" : "default_workspace";
    struct stat st;

    if (path == NULL)
        return 0;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%s must point to a directory on the host", name);
    if (p->n_roots == 0 && !there)
        return err_set(err, ERR_INVALID, "%s cannot be created because no %s are configured", name,
                       roots_name(p));
    if (p->n_roots == 0)
        return 0;
    /* Checked also when the directory exists: otherwise each request would be refused, and the
     * operator would not learn of it at the start. */
    AUTO_FREE char *real = placed(p, path);
    if (real == NULL)
        return outside(p, name, path, ERR_INVALID, err);
    return there ? 0 : make_all(real, err);
}

/* Profiles ------------------------------------------------------------------------------------- */

/* A profile of the configuration, while it is read. */
struct profile_draft {
    struct profile made; /* its image is owned */
    char *extends;       /* owned */
    char **locked;       /* owned */
};

/* clang-format off */
static const struct field fields[] = {
    {"extends", FIELD_STR, 0, offsetof(struct profile_draft, extends), .text = "default", .max = 64,
     .doc = "Profile that supplies the fields that are missing here."},
    {"image", FIELD_STR, FIELD_TRIM, offsetof(struct profile_draft, made.image), .text = PROFILE_DEFAULT_IMAGE, .max = SPEC_IMAGE_MAX, .doc = "Image."},
    {"network", FIELD_ENUM, 0, offsetof(struct profile_draft, made.network), .names = network_names, .doc = "Network."},
    {"timeout_sec", FIELD_INT, 0, offsetof(struct profile_draft, made.timeout_sec), .min = 1, .max = SPEC_TIMEOUT_MAX,
     .number = 30, .rule = "timeout_sec must be greater than 0", .doc = "Timeout of requests that name none."},
    {"max_timeout_sec", FIELD_INT, 0, offsetof(struct profile_draft, made.max_timeout_sec), .min = 1, .max = SPEC_TIMEOUT_MAX,
     .number = 30, .rule = "max_timeout_sec must be greater than 0", .doc = "Longer ones are cut to this."},
    {"host_path_mode", FIELD_ENUM, 0, offsetof(struct profile_draft, made.host_path_mode), .names = mount_mode_names, .doc = "Workspace."},
    {"cpus", FIELD_REAL, 0, offsetof(struct profile_draft, made.cpus), .real = 1.0, .max = SPEC_CPUS_MAX,
     .rule = "cpus must be greater than 0", .doc = "Processor share."},
    {"memory_mb", FIELD_INT, 0, offsetof(struct profile_draft, made.memory_mb), .min = 32, .max = SPEC_SIZE_MB_MAX,
     .number = 512, .rule = "memory_mb must be at least 32", .doc = "Memory."},
    {"pids_limit", FIELD_INT, 0, offsetof(struct profile_draft, made.pids_limit), .min = 1, .max = SPEC_PIDS_MAX,
     .number = 128, .rule = "pids_limit must be at least 1", .doc = "Processes."},
    {"read_only_rootfs", FIELD_BOOL, 0, offsetof(struct profile_draft, made.read_only_rootfs), .doc = "Root filesystem."},
    {"workspace_quota_mb", FIELD_INT, 0, offsetof(struct profile_draft, made.workspace_quota_mb), .min = 0, .max = SPEC_SIZE_MB_MAX,
     .rule = "workspace_quota_mb must be greater than or equal to 0", .doc = "Quota; 0: none."},
    {"locked", FIELD_STRV, 0, offsetof(struct profile_draft, locked), .max = SPEC_FIELD_MAX + 1, .max_bytes = 4096,
     .doc = "Fields that requests cannot change."},
};

static const struct model draft_model = {
    .name = "Profile", .fields = fields, .n_fields = ARRAY_SIZE(fields), .size = sizeof(struct profile_draft), .closed = true,
};
/* clang-format on */

/* What can be locked: the command and the session are what a request is about, and a workdir of its
 * own follows from the mount path. */
static const uint64_t lockable =
    (FIELD_BIT(SPEC_FIELD_MAX) - 1) &
    ~(FIELD_BIT(SPEC_CMD) | FIELD_BIT(SPEC_SESSION_ID) | FIELD_BIT(SPEC_WORKDIR));

static const struct profile *profile_by_name(const struct policy *p, const char *name)
{
    for (size_t i = 0; i < p->n_profiles; i++)
        if (str_eq(p->profiles[i].name, name))
            return &p->profiles[i];
    return NULL;
}

static int profile_unknown(const struct policy *p, const char *name, struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(4096);
    size_t len = strlen(name);

    for (size_t i = 0; i < p->n_profiles; i++)
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", p->profiles[i].name);
    return err_set(err, ERR_INVALID, "unknown box profile '%.*s', available profiles: %s",
                   (int)utf8_boundary(name, len < 64 ? len : 64), name, buf_str(&list));
}

int policy_profile(const struct policy *p, const char *name, const struct profile **ret,
                   struct err *err)
{
    AUTO_FREE char *wanted = str_strip(name != NULL ? name : "");
    const char *configured = p->settings.profile != NULL ? p->settings.profile : "default";
    const struct profile *found = profile_by_name(p, wanted[0] != '\0' ? wanted : configured);

    if (found == NULL)
        return profile_unknown(p, wanted[0] != '\0' ? wanted : configured, err);
    *ret = found;
    return 0;
}

const struct profile *policy_profile_at(const struct policy *p, size_t i)
{
    return i < p->n_profiles ? &p->profiles[i] : NULL;
}

static int add_lock(const char *name, uint64_t *set, struct err *err)
{
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if (str_eq(spec_model.fields[i].name, name) && (lockable & FIELD_BIT(i)) != 0) {
            *set |= FIELD_BIT(i);
            return 0;
        }
    if (str_eq(name, SPEC_ALLOW_HOSTS_NAME)) {
        *set |= FIELD_BIT(SPEC_ALLOW_HOSTS);
        return 0;
    }
    return err_set(err, ERR_INVALID, "'%.64s' cannot be locked", name);
}

static void profile_add(struct policy *p, const struct profile *profile)
{
    p->profiles = xreallocarray(p->profiles, p->n_profiles + 1, sizeof(*p->profiles));
    p->profiles[p->n_profiles] = *profile;
    p->profiles[p->n_profiles].name = xstrdup(profile->name);
    p->profiles[p->n_profiles].image = xstrdup(profile->image);
    p->n_profiles++;
}

/* Locks are only ever added: a profile that extends another is at least as tight. */
static int draft_finish(struct policy *p, struct profile_draft *d, struct err *err)
{
    for (char **l = d->locked; l != NULL && *l != NULL; l++) {
        int r = add_lock(*l, &d->made.locked, err);
        if (r < 0)
            return r;
    }
    if (d->made.timeout_sec > d->made.max_timeout_sec)
        return err_set(err, ERR_INVALID, "timeout_sec is above max_timeout_sec");
    profile_add(p, &d->made);
    return 0;
}

static int read_profile(struct policy *p, const char *name, const struct json *v, struct err *err)
{
    struct profile_draft d = {0};
    struct report report;
    const char *extends = json_str(json_get(v, "extends"));

    if (!id_valid(name))
        return err_set(err, ERR_INVALID, "names are letters, digits, '-' and '_'");
    if (profile_by_name(p, name) != NULL)
        return err_set(err, ERR_INVALID, "it is built in");
    if (extends == NULL)
        extends = "default";
    const struct profile *base = profile_by_name(p, extends);
    if (base == NULL)
        return profile_unknown(p, extends, err);
    model_init(&draft_model, &d);
    free((char *)(uintptr_t)d.made.image);
    d.made = *base;
    d.made.name = name;
    d.made.image = xstrdup(base->image);
    int r = model_parse(&draft_model, v, 0, &d, &report);
    r = r < 0 ? report_fail_plain(&report, err) : draft_finish(p, &d, err);
    model_done(&draft_model, &d);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct profile *)a)->name, ((const struct profile *)b)->name);
}

static int policy_read_profiles(struct policy *p, const struct json *section, struct err *err)
{
    for (size_t i = 0; i < n_profiles; i++)
        profile_add(p, &profiles[i]);
    if (json_type(section) != JSON_NULL && json_type(section) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "profiles must be a section");
    if (json_len(section) > POLICY_PROFILES_MAX)
        return err_set(err, ERR_LIMIT, "there may be at most %d profiles", POLICY_PROFILES_MAX);
    for (void *it = json_iter(section); it != NULL; it = json_iter_next(section, it))
        if (read_profile(p, json_iter_key(it), json_iter_value(it), err) < 0)
            return err_wrap(err, "profile '%.64s'", json_iter_key(it));
    qsort(p->profiles, p->n_profiles, sizeof(*p->profiles), by_name);
    return 0;
}

static void policy_profiles_done(struct policy *p)
{
    for (size_t i = 0; i < p->n_profiles; i++) {
        free((char *)(uintptr_t)p->profiles[i].name);
        free((char *)(uintptr_t)p->profiles[i].image);
    }
    free(p->profiles);
}

/* Requests ------------------------------------------------------------------------------------- */

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
static void note(const struct json *payload, const struct spec_policy *rules,
                 struct policy_decision *d)
{
    int64_t timeout;

    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if (profile_locks(d->profile, (enum spec_field)i) &&
            spec_said(payload, rules, (enum spec_field)i) != NULL)
            d->overridden |= FIELD_BIT(i);
    d->clamped = !profile_locks(d->profile, SPEC_TIMEOUT_SEC) &&
                 coerce_int(spec_said(payload, rules, SPEC_TIMEOUT_SEC), &timeout) == ISSUE_NONE &&
                 timeout > d->profile->max_timeout_sec;
}

static bool names_host_path(const struct json *payload, const struct spec_policy *rules)
{
    const struct json *v = spec_said(payload, rules, SPEC_HOST_PATH);

    return !profile_locks(rules->profile, SPEC_HOST_PATH) && json_type(v) != JSON_NULL &&
           !(json_type(v) == JSON_STRING && json_str_len(v) == 0);
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

static const char *default_image(const struct policy *p, const struct policy_request *request)
{
    bool chosen = request->profile != NULL || policy_profile_chosen(p) || p->settings.image != NULL;

    return chosen || request->image == NULL ? p->settings.image : request->image;
}

/* What a client sent: the arguments of a tool call, or a whole spec. */
struct payload {
    const struct json *object;
    bool tool;
};

static int build(const struct policy *p, const struct policy_request *request,
                 struct payload payload, struct spec **ret, struct policy_decision *ret_decision,
                 struct err *err)
{
    const struct policy_settings *set = &p->settings;
    struct policy_decision d = {0};
    AUTO(spec) struct spec *s = NULL;
    int r = policy_profile(p, request->profile, &d.profile, err);

    if (r < 0)
        return r;
    assert(d.profile != NULL);
    r = authz_check_profile(request->scope, d.profile->name, err);
    if (r < 0)
        return r;
    const struct spec_policy rules = {.profile = d.profile,
                                      .session_id = request->session_id,
                                      .tool = payload.tool,
                                      .tool_mounts = request->own_mounts,
                                      .default_workspace = set->default_workspace,
                                      .image = default_image(p, request),
                                      .has_quota = set->has_quota,
                                      .workspace_quota_mb = set->workspace_quota_mb};
    note(payload.object, &rules, &d);
    d.own_workspace = set->default_workspace != NULL && !names_host_path(payload.object, &rules);
    r = spec_build(payload.object, &rules, &s, NULL, err);
    if (r == 0)
        r = authz_check_name(request->scope, s->session_id, err);
    if (r == 0)
        r = authz_check_network(request->scope, s->network, err);
    if (r == 0)
        r = check_mounts(p, request, s, &d, err);
    if (r < 0)
        return r;
    if (authz_share(request->scope) != NULL)
        s->own.owner = xstrdup(authz_share(request->scope));
    s->own.profile = xstrdup(d.profile->name);
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
    return build(p, &plain, (struct payload){payload, false}, ret, ret_decision, err);
}

int policy_tool_spec(const struct policy *p, const struct policy_request *request,
                     const struct json *arguments, struct spec **ret,
                     struct policy_decision *ret_decision, struct err *err)
{
    AUTO_FREE char *session_id = NULL;
    struct policy_request named = *request;
    int r = authz_check_tool(request->scope, request->tool != NULL ? request->tool : "exec", err);

    if (r == 0)
        r = policy_session_id(p, request->query, &session_id, err);
    if (r == 0 && json_type(json_get(arguments, "command")) != JSON_STRING)
        r = err_set(err, ERR_INVALID, "command must be text");
    named.session_id = session_id;
    if (r < 0)
        return r;
    return build(p, &named, (struct payload){arguments, true}, ret, ret_decision, err);
}

int policy_check_change(const struct policy *p, const struct authz_scope *scope,
                        const struct spec *spec, uint64_t changed, struct err *err)
{
    const struct profile *profile = NULL;
    int r = policy_profile(p, spec->own.profile, &profile, err);

    if (r < 0)
        return r;
    assert(profile != NULL);
    r = authz_check_profile(scope, profile->name, err);
    for (size_t i = 0; r == 0 && i < SPEC_FIELD_MAX; i++)
        if (profile->locked & changed & FIELD_BIT(i))
            r = err_set(err, ERR_DENIED,
                        "%s cannot be changed: profile '%.64s' of session '%.100s' locks it; make "
                        "a session with another profile",
                        spec_model.fields[i].name, profile->name, spec->session_id);
    return r;
}
