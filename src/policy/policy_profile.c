/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the profiles of the configuration, and finds one by name. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/policy_internal.h"
#include "spec/model.h"

/* A profile of the configuration, while it is read. */
struct draft {
    char *extends; /* owned */
    char *image;   /* owned */
    enum network network;
    int64_t timeout_sec;
    int64_t max_timeout_sec;
    enum mount_mode host_path_mode;
    double cpus;
    int64_t memory_mb;
    int64_t pids_limit;
    bool read_only_rootfs;
    int64_t workspace_quota_mb;
    char **locked; /* owned */
};

/* clang-format off */
static const struct field fields[] = {
    {"extends", FIELD_STR, 0, offsetof(struct draft, extends), .text = "default", .max = 64,
     .doc = "Profile that supplies what is not said here."},
    {"image", FIELD_STR, FIELD_TRIM, offsetof(struct draft, image), .text = PROFILE_DEFAULT_IMAGE, .max = SPEC_IMAGE_MAX, .doc = "Image."},
    {"network", FIELD_ENUM, 0, offsetof(struct draft, network), .names = network_names, .doc = "Network."},
    {"timeout_sec", FIELD_INT, 0, offsetof(struct draft, timeout_sec), .min = 1, .max = SPEC_TIMEOUT_MAX,
     .number = 30, .rule = "timeout_sec must be greater than 0", .doc = "Timeout of requests that name none."},
    {"max_timeout_sec", FIELD_INT, 0, offsetof(struct draft, max_timeout_sec), .min = 1, .max = SPEC_TIMEOUT_MAX,
     .number = 30, .rule = "max_timeout_sec must be greater than 0", .doc = "Longer ones are cut to this."},
    {"host_path_mode", FIELD_ENUM, 0, offsetof(struct draft, host_path_mode), .names = mount_mode_names, .doc = "Workspace."},
    {"cpus", FIELD_REAL, 0, offsetof(struct draft, cpus), .real = 1.0, .max = SPEC_CPUS_MAX,
     .rule = "cpus must be greater than 0", .doc = "Processor share."},
    {"memory_mb", FIELD_INT, 0, offsetof(struct draft, memory_mb), .min = 32, .max = SPEC_SIZE_MB_MAX,
     .number = 512, .rule = "memory_mb must be at least 32", .doc = "Memory."},
    {"pids_limit", FIELD_INT, 0, offsetof(struct draft, pids_limit), .min = 1, .max = SPEC_PIDS_MAX,
     .number = 128, .rule = "pids_limit must be at least 1", .doc = "Processes."},
    {"read_only_rootfs", FIELD_BOOL, 0, offsetof(struct draft, read_only_rootfs), .doc = "Root filesystem."},
    {"workspace_quota_mb", FIELD_INT, 0, offsetof(struct draft, workspace_quota_mb), .min = 0, .max = SPEC_SIZE_MB_MAX,
     .rule = "workspace_quota_mb must be greater than or equal to 0", .doc = "Quota; 0: none."},
    {"locked", FIELD_STRV, 0, offsetof(struct draft, locked), .max = SPEC_FIELD_MAX, .max_bytes = 4096,
     .doc = "Fields that requests cannot change."},
};

static const struct model draft_model = {
    .name = "Profile", .fields = fields, .n_fields = ARRAY_SIZE(fields), .size = sizeof(struct draft), .closed = true,
};
/* clang-format on */

/* What can be locked: the command and the session are what a request is about, and a workdir of its
 * own follows from the mount path. */
static const uint64_t lockable =
    (FIELD_BIT(SPEC_FIELD_MAX) - 1) &
    ~(FIELD_BIT(SPEC_CMD) | FIELD_BIT(SPEC_SESSION_ID) | FIELD_BIT(SPEC_WORKDIR));

static const struct profile *find(const struct policy *p, const char *name)
{
    for (size_t i = 0; i < p->n_profiles; i++)
        if (str_eq(p->profiles[i].name, name))
            return &p->profiles[i];
    return NULL;
}

static int unknown(const struct policy *p, const char *name, struct err *err)
{
    AUTO_DONE(buf) struct buf list;
    size_t len = strlen(name);

    buf_init(&list, 4096);
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
    const struct profile *found = find(p, wanted[0] != '\0' ? wanted : configured);

    if (found == NULL)
        return unknown(p, wanted[0] != '\0' ? wanted : configured, err);
    *ret = found;
    return 0;
}

const struct profile *policy_profile_at(const struct policy *p, size_t i)
{
    return i < p->n_profiles ? &p->profiles[i] : NULL;
}

static void preset(const struct profile *base, struct draft *d)
{
    free(d->image);
    d->image = xstrdup(base->image);
    d->network = base->network;
    d->timeout_sec = base->timeout_sec;
    d->max_timeout_sec = base->max_timeout_sec;
    d->host_path_mode = base->host_path_mode;
    d->cpus = base->cpus;
    d->memory_mb = base->memory_mb;
    d->pids_limit = base->pids_limit;
    d->read_only_rootfs = base->read_only_rootfs;
    d->workspace_quota_mb = base->workspace_quota_mb;
}

static int add_lock(const char *name, uint64_t *set, struct err *err)
{
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if (str_eq(spec_model.fields[i].name, name) && (lockable & FIELD_BIT(i)) != 0) {
            *set |= FIELD_BIT(i);
            return 0;
        }
    return err_set(err, ERR_INVALID, "'%.64s' cannot be locked", name);
}

static void add(struct policy *p, const struct profile *profile)
{
    p->profiles = xreallocarray(p->profiles, p->n_profiles + 1, sizeof(*p->profiles));
    p->profiles[p->n_profiles] = *profile;
    p->profiles[p->n_profiles].name = xstrdup(profile->name);
    p->profiles[p->n_profiles].image = xstrdup(profile->image);
    p->n_profiles++;
}

/* Locks are only ever added: a profile that extends another is at least as tight. */
static int finish(struct policy *p, const char *name, const struct draft *d, uint64_t locked,
                  struct err *err)
{
    for (char **l = d->locked; l != NULL && *l != NULL; l++) {
        int r = add_lock(*l, &locked, err);
        if (r < 0)
            return r;
    }
    if (d->timeout_sec > d->max_timeout_sec)
        return err_set(err, ERR_INVALID, "timeout_sec is above max_timeout_sec");
    add(p, &(struct profile){.name = name,
                             .image = d->image,
                             .timeout_sec = d->timeout_sec,
                             .max_timeout_sec = d->max_timeout_sec,
                             .cpus = d->cpus,
                             .memory_mb = d->memory_mb,
                             .pids_limit = d->pids_limit,
                             .workspace_quota_mb = d->workspace_quota_mb,
                             .locked = locked,
                             .network = d->network,
                             .host_path_mode = d->host_path_mode,
                             .read_only_rootfs = d->read_only_rootfs});
    return 0;
}

static int read_profile(struct policy *p, const char *name, const struct json *v, struct err *err)
{
    struct draft d = {0};
    struct report report;
    const char *extends = json_str(json_get(v, "extends"));

    if (!id_valid(name))
        return err_set(err, ERR_INVALID, "names are letters, digits, '-' and '_'");
    if (find(p, name) != NULL)
        return err_set(err, ERR_INVALID, "it is built in");
    if (extends == NULL)
        extends = "default";
    const struct profile *base = find(p, extends);
    if (base == NULL)
        return unknown(p, extends, err);
    uint64_t locked = base->locked;
    model_init(&draft_model, &d);
    preset(base, &d);
    int r = model_parse(&draft_model, v, 0, &d, &report);
    r = r < 0 ? report_fail_plain(&report, err) : finish(p, name, &d, locked, err);
    model_done(&draft_model, &d);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct profile *)a)->name, ((const struct profile *)b)->name);
}

int policy_read_profiles(struct policy *p, const struct json *section, struct err *err)
{
    for (size_t i = 0; i < n_profiles; i++)
        add(p, &profiles[i]);
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

void policy_profiles_done(struct policy *p)
{
    for (size_t i = 0; i < p->n_profiles; i++) {
        free((char *)(uintptr_t)p->profiles[i].name);
        free((char *)(uintptr_t)p->profiles[i].image);
    }
    free(p->profiles);
}
