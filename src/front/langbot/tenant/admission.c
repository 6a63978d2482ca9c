/* SPDX-License-Identifier: Apache-2.0 */

/* Installs, revokes, expires and checks grants, and rewrites a spec into that of a managed
 * sandbox. */

#include "front/langbot/tenant/admission.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/admission.h"
#include "spec/model.h"
#include "spec/spec.h"

#define USEC_PER_SEC 1000000

/* What is remembered of a workspace, also after its grant: revisions never come back. */
struct record {
    struct nsmap_entry entry;
    bool granted, reaped;         /* reaped: it expired and its sessions went */
    int64_t generation, revision; /* highest ever granted */
    int64_t revoked;              /* revisions up to this one are void */
    int64_t expires_at;
    struct admission_limits limits;
};

struct admission {
    struct nsmap map; /* of struct record, owned */
    size_t max;
    struct admission_policy policy;
    bool enforced;
    char error[320]; /* what is wrong with the configuration, "" when nothing is */
};

struct admission *admission_new(size_t max_records)
{
    struct admission *a = xnew(struct admission);
    struct err err = {0};
    a->max = max_records;
    (void)admission_policy_parse(NULL, &a->policy, NULL, &err);
    return a;
}

void admission_free(struct admission *a)
{
    if (a == NULL)
        return;
    for (struct nsmap_entry *e; (e = nsmap_take(&a->map)) != NULL;)
        free(e);
    nsmap_done(&a->map);
    free(a);
}

void admission_set_max(struct admission *a, size_t max_records)
{
    a->max = max_records;
}

void admission_configure(struct admission *a, const struct json *section)
{
    struct report report = {0};
    struct err err = {0};
    struct admission_policy policy = {0};
    if (json_type(section) == JSON_NULL)
        section = NULL;
    a->error[0] = '\0';
    if (admission_policy_parse(section, &policy, &report, &err) < 0) {
        (void)admission_policy_parse(NULL, &a->policy, NULL, &err);
        (void)str_fmt(a->error, sizeof(a->error), "%s: %s", report.issues[0].where,
                      report.issues[0].text);
        a->enforced = true;
        return;
    }
    a->policy = policy;
    if (a->enforced && !policy.required)
        (void)str_copy(a->error, sizeof(a->error),
                       "Sandbox admission enforcement cannot be disabled without restarting the "
                       "Box Runtime");
    a->enforced |= policy.required;
}

bool admission_enforced(const struct admission *a)
{
    return a->enforced;
}

const char *admission_config_error(const struct admission *a)
{
    return a->error[0] != '\0' ? a->error : NULL;
}

const struct admission_policy *admission_rules(const struct admission *a)
{
    return &a->policy;
}

static struct record *find(const struct admission *a, const char *ns)
{
    static_assert(offsetof(struct record, entry) == 0, "an entry is its record");
    return (struct record *)(void *)nsmap_find(&a->map, ns);
}

static int find_or_add(struct admission *a, const char *ns, struct record **ret, struct err *err)
{
    struct record *r = find(a, ns);
    if (r == NULL && a->map.n >= a->max)
        return err_set(err, ERR_DENIED,
                       "Sandbox admission record capacity reached; refusing an unbounded "
                       "Workspace fence allocation");
    if (r == NULL) {
        r = xnew(struct record);
        nsmap_add(&a->map, &r->entry, ns);
    }
    *ret = r;
    return 0;
}

static int check_enabled(const struct admission *a, struct err *err)
{
    return a->enforced ? 0
                       : err_set(err, ERR_DENIED, "Sandbox admission enforcement is not enabled");
}

/* What can be said without knowing the past of the workspace. */
static int check_grant(const struct admission *a, const struct admission_grant *g, int64_t now,
                       struct err *err)
{
    const struct admission_policy *p = &a->policy;
    if (a->error[0] != '\0')
        return err_set(err, ERR_STATE, "Invalid sandbox admission configuration: %s", a->error);
    if (g->expires_at <= now)
        return err_set(err, ERR_DENIED, "Cannot install an expired sandbox admission grant");
    if (g->expires_at > now + p->max_grant_ttl_sec * USEC_PER_SEC)
        return err_set(err, ERR_DENIED,
                       "Sandbox admission grant lifetime exceeds the configured maximum");
    if (g->max_sessions > p->max_sessions)
        return err_set(err, ERR_DENIED, "Sandbox admission grant exceeds the session cap");
    if (g->max_managed_processes > p->max_managed_processes)
        return err_set(err, ERR_DENIED, "Sandbox admission grant exceeds the managed-process cap");
    return 0;
}

static int check_history(const struct record *r, const struct admission_grant *g, struct err *err)
{
    if (g->entitlement_revision <= r->revoked)
        return err_set(err, ERR_DENIED, "Sandbox admission grant revision was revoked");
    if (g->entitlement_revision < r->revision)
        return err_set(err, ERR_DENIED, "Sandbox admission grant revision is stale");
    if (g->execution_generation < r->generation)
        return err_set(err, ERR_DENIED, "Sandbox admission execution generation is stale");
    if (g->entitlement_revision == r->revision &&
        (g->max_sessions != r->limits.max_sessions ||
         g->max_managed_processes != r->limits.max_managed_processes))
        return err_set(err, ERR_DENIED,
                       "Sandbox admission limits changed without a new entitlement revision");
    return 0;
}

int admission_install(struct admission *a, const char *ns, const struct admission_grant *grant,
                      int64_t now, bool *ret_drop, struct err *err)
{
    struct record *r = NULL;
    int e = check_enabled(a, err);
    if (e == 0)
        e = check_grant(a, grant, now, err);
    if (e == 0)
        e = find_or_add(a, ns, &r, err);
    if (e == 0)
        e = check_history(r, grant, err);
    if (e < 0)
        return e;
    bool same = r->granted && grant->entitlement_revision == r->revision &&
                grant->execution_generation == r->generation;
    *ret_drop = grant->execution_generation != r->generation || grant->max_sessions == 0;
    if (!same || grant->expires_at > r->expires_at)
        r->expires_at = grant->expires_at;
    r->granted = true;
    r->reaped = false;
    r->generation = grant->execution_generation;
    r->revision = grant->entitlement_revision;
    r->limits = (struct admission_limits){grant->max_sessions, grant->max_managed_processes};
    return 0;
}

int admission_revoke(struct admission *a, const char *ns,
                     const struct admission_revocation *revocation, struct err *err)
{
    struct record *r = NULL;
    int e = check_enabled(a, err);
    if (e == 0)
        e = find_or_add(a, ns, &r, err);
    if (e < 0)
        return e;
    if (revocation->entitlement_revision < r->revision ||
        revocation->entitlement_revision < r->revoked)
        return err_set(err, ERR_DENIED, "Sandbox admission revocation is stale");
    r->granted = false;
    r->revoked = revocation->entitlement_revision;
    return 0;
}

int admission_check(struct admission *a, const char *ns, int64_t generation, int64_t now,
                    struct admission_limits *ret, struct err *err)
{
    const struct record *r = find(a, ns);
    if (r == NULL || !r->granted)
        return err_set(err, ERR_DENIED, "Sandbox admission grant is missing");
    if (r->expires_at <= now)
        return err_set(err, ERR_DENIED, "Sandbox admission grant has expired");
    if (r->generation != generation)
        return err_set(err, ERR_DENIED,
                       "Sandbox admission grant belongs to another execution generation");
    if (r->limits.max_sessions <= 0)
        return err_set(err, ERR_DENIED, "Sandbox admission grant does not permit sessions");
    if (r->limits.max_sessions > a->policy.max_sessions ||
        r->limits.max_managed_processes > a->policy.max_managed_processes)
        return err_set(err, ERR_DENIED,
                       "Sandbox admission grant exceeds the active runtime policy");
    *ret = r->limits;
    return 0;
}

void admission_reap(struct admission *a, int64_t now, void (*expired)(void *arg, const char *ns),
                    void *arg)
{
    for (struct nsmap_entry *e = nsmap_next(&a->map, NULL); e != NULL; e = nsmap_next(&a->map, e)) {
        struct record *r = (struct record *)(void *)e;
        if (!r->granted || r->reaped || r->expires_at > now)
            continue;
        r->reaped = true;
        expired(arg, e->ns);
    }
}

static bool is_below_workspace(const char *path)
{
    size_t n = strlen(SPEC_DEFAULT_MOUNT);
    return str_starts(path, SPEC_DEFAULT_MOUNT) && (path[n] == '\0' || path[n] == '/') &&
           strstr(path, "/../") == NULL && !str_ends(path, "/..");
}

static int check_request(const struct spec *s, const char *host_path, struct err *err)
{
    if (s->network != NETWORK_OFF)
        return err_set(err, ERR_DENIED, "Managed sandbox network access is disabled");
    if (!str_eq(s->mount_path, SPEC_DEFAULT_MOUNT))
        return err_set(err, ERR_DENIED, "Managed sandbox mount_path is runtime-owned");
    if (!is_below_workspace(s->workdir))
        return err_set(err, ERR_DENIED, "Managed sandbox workdir must stay under /workspace");
    if (s->host_path != NULL && !str_eq(s->host_path, host_path))
        return err_set(err, ERR_DENIED, "Managed sandbox host_path is runtime-owned");
    return 0;
}

static void replace(char **at, const char *text)
{
    free(*at);
    *at = xstrdup(text);
}

int admission_rewrite(const struct admission *a, struct spec *spec, const char *host_path,
                      struct err *err)
{
    const struct admission_policy *p = &a->policy;
    int r = check_request(spec, host_path, err);
    if (r < 0)
        return r;
    replace(&spec->session_id, ADMISSION_SESSION);
    replace(&spec->image, SPEC_DEFAULT_IMAGE);
    replace(&spec->host_path, host_path);
    spec->host_path_mode = MOUNT_RW;
    spec->persistent = true;
    if (spec->timeout_sec > p->max_timeout_sec)
        spec->timeout_sec = p->max_timeout_sec;
    spec->cpus = p->cpus;
    spec->memory_mb = p->memory_mb;
    spec->pids_limit = p->pids_limit;
    spec->read_only_rootfs = p->read_only_rootfs;
    spec->workspace_quota_mb = p->workspace_quota_mb;
    return 0;
}
