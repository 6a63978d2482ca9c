/* SPDX-License-Identifier: Apache-2.0 */

/* Installs, revokes, expires and checks grants, rewrites a spec into that of a managed sandbox and
 * checks its mounts. */

#include "front/langbot/tenant/admission.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/str.h"
#include "front/langbot/tenant/boxconf.h"
#include "front/langbot/tenant/tenancy.h"
#include "spec/admission.h"
#include "spec/model.h"
#include "spec/spec.h"

#define USEC_PER_SEC 1000000
#define MOUNTS_MAX 256U
#define BELOW_WORKSPACE SPEC_DEFAULT_MOUNT "/"

/* What is remembered of a workspace, also after its grant: revisions never come back. */
struct grant_record {
    char ns[NS_SIZE];             /* first: the key of the tree */
    bool granted, reaped;         /* reaped: it expired and its sessions went */
    int64_t generation, revision; /* highest ever granted */
    int64_t revoked;              /* revisions up to this one are void */
    int64_t expires_at;
    struct admission_limits limits;
};

struct admission {
    struct ns_table records; /* of struct grant_record */
    struct admission_policy policy;
    bool enforced;
    char error[320]; /* what is wrong with the configuration, "" when nothing is */
};

static int deny(struct err *err, const char *text)
{
    return err_set(err, ERR_DENIED, "%s", text);
}

struct admission *admission_new(size_t max_records)
{
    struct admission *a = xnew(struct admission);
    struct err err = {0};
    a->records.max = max_records;
    (void)admission_policy_parse(NULL, &a->policy, NULL, &err);
    return a;
}

void admission_free(struct admission *a)
{
    if (a == NULL)
        return;
    tdestroy(a->records.tree, free);
    free(a);
}

void admission_set_max(struct admission *a, size_t max_records)
{
    a->records.max = max_records;
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

static int find_or_add(struct admission *a, const char *ns, struct grant_record **ret,
                       struct err *err)
{
    *ret = ns_table_need(&a->records, ns, sizeof(**ret));
    return *ret != NULL ? 0
                        : deny(err, "Sandbox admission record capacity reached; refusing an "
                                    "unbounded Workspace fence allocation");
}

static int check_enabled(const struct admission *a, struct err *err)
{
    return a->enforced ? 0 : deny(err, "Sandbox admission enforcement is not enabled");
}

/* What can be said without knowing the past of the workspace. */
static int check_grant(const struct admission *a, const struct admission_grant *g, int64_t now,
                       struct err *err)
{
    const struct admission_policy *p = &a->policy;
    if (a->error[0] != '\0')
        return err_set(err, ERR_STATE, "Invalid sandbox admission configuration: %s", a->error);
    if (g->expires_at <= now)
        return deny(err, "Cannot install an expired sandbox admission grant");
    if (g->expires_at > now + p->max_grant_ttl_sec * USEC_PER_SEC)
        return deny(err, "Sandbox admission grant lifetime exceeds the configured maximum");
    if (g->max_sessions > p->max_sessions)
        return deny(err, "Sandbox admission grant exceeds the session cap");
    if (g->max_managed_processes > p->max_managed_processes)
        return deny(err, "Sandbox admission grant exceeds the managed-process cap");
    return 0;
}

static int check_history(const struct grant_record *r, const struct admission_grant *g,
                         struct err *err)
{
    if (g->entitlement_revision <= r->revoked)
        return deny(err, "Sandbox admission grant revision was revoked");
    if (g->entitlement_revision < r->revision)
        return deny(err, "Sandbox admission grant revision is stale");
    if (g->execution_generation < r->generation)
        return deny(err, "Sandbox admission execution generation is stale");
    if (g->entitlement_revision == r->revision &&
        (g->max_sessions != r->limits.max_sessions ||
         g->max_managed_processes != r->limits.max_managed_processes))
        return deny(err, "Sandbox admission limits changed without a new entitlement revision");
    return 0;
}

int admission_install(struct admission *a, const char *ns, const struct admission_grant *grant,
                      int64_t now, bool *ret_drop, struct err *err)
{
    struct grant_record *r = NULL;
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
    struct grant_record *r = NULL;
    int e = check_enabled(a, err);
    if (e == 0)
        e = find_or_add(a, ns, &r, err);
    if (e < 0)
        return e;
    if (revocation->entitlement_revision < r->revision ||
        revocation->entitlement_revision < r->revoked)
        return deny(err, "Sandbox admission revocation is stale");
    r->granted = false;
    r->revoked = revocation->entitlement_revision;
    return 0;
}

int admission_check(struct admission *a, const char *ns, int64_t generation, int64_t now,
                    struct admission_limits *ret, struct err *err)
{
    const struct grant_record *r = ns_table_find(&a->records, ns);
    if (r == NULL || !r->granted)
        return deny(err, "Sandbox admission grant is missing");
    if (r->expires_at <= now)
        return deny(err, "Sandbox admission grant has expired");
    if (r->generation != generation)
        return deny(err, "Sandbox admission grant belongs to another execution generation");
    if (r->limits.max_sessions <= 0)
        return deny(err, "Sandbox admission grant does not permit sessions");
    if (r->limits.max_sessions > a->policy.max_sessions ||
        r->limits.max_managed_processes > a->policy.max_managed_processes)
        return deny(err, "Sandbox admission grant exceeds the active runtime policy");
    *ret = r->limits;
    return 0;
}

struct reaping {
    int64_t now;
    void (*expired)(void *arg, const char *ns);
    void *arg;
};

static void reap_record(const void *node, VISIT visit, void *closure)
{
    struct grant_record *r = *(struct grant_record *const *)node;
    const struct reaping *reaping = closure;
    bool once = visit == postorder || visit == leaf;
    if (!once || !r->granted || r->reaped || r->expires_at > reaping->now)
        return;
    r->reaped = true;
    reaping->expired(reaping->arg, r->ns);
}

void admission_reap(struct admission *a, int64_t now, void (*expired)(void *arg, const char *ns),
                    void *arg)
{
    twalk_r(a->records.tree, reap_record, &(struct reaping){now, expired, arg});
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
        return deny(err, "Managed sandbox network access is disabled");
    if (!str_eq(s->mount_path, SPEC_DEFAULT_MOUNT))
        return deny(err, "Managed sandbox mount_path is runtime-owned");
    if (!is_below_workspace(s->workdir))
        return deny(err, "Managed sandbox workdir must stay under /workspace");
    if (s->host_path != NULL && !str_eq(s->host_path, host_path))
        return deny(err, "Managed sandbox host_path is runtime-owned");
    return 0;
}

static void replace_text(char **at, const char *text)
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
    replace_text(&spec->session_id, ADMISSION_SESSION);
    replace_text(&spec->image, SPEC_DEFAULT_IMAGE);
    replace_text(&spec->host_path, host_path);
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

/* The extra mounts: read-only directories of a trusted host, beside the workspace. They are looked
 * at by name, for an answer that says what is wrong; when they are mounted they are resolved again,
 * by descriptor and without links. */

static const struct {
    mode_t type;
    const char *unavailable, *outside;
} kinds[] = {
    {S_IFDIR, "Managed sandbox read-only mount source is unavailable",
     "Managed sandbox read-only mount source is outside allowed_mount_roots"},
    {S_IFREG, "Managed sandbox read-only mount manifest is unavailable",
     "Managed sandbox read-only mount manifest is outside allowed_mount_roots"},
};

/* Replaces the path by the one without links. */
static int check_source(const struct box_paths *paths, char **path, size_t kind, struct err *err)
{
    AUTO_FREE char *real = path_real(*path);
    struct stat st;
    if ((*path)[0] != '/')
        return deny(err, kinds[kind].unavailable);
    /* boxd may not be allowed to look at it; box-priv is. */
    bool seen = stat(real, &st) == 0;
    if (seen ? (st.st_mode & S_IFMT) != kinds[kind].type : errno != EACCES)
        return deny(err, kinds[kind].unavailable);
    if (!box_paths_allow(paths, real))
        return deny(err, kinds[kind].outside);
    free(*path);
    *path = TAKE_PTR(real);
    return 0;
}

static int check_mount(const struct box_paths *paths, struct mount_spec *m, struct err *err)
{
    if (m->mode != MOUNT_RO)
        return deny(err, "Managed sandbox additional host mounts are disabled");
    int r = check_source(paths, &m->host_path, 0, err);
    if (r < 0)
        return r;
    if (m->manifest_path != NULL && m->content_digest == NULL)
        return deny(err, "Managed sandbox mount manifests require content_digest");
    r = m->manifest_path != NULL ? check_source(paths, &m->manifest_path, 1, err) : 0;
    if (r < 0)
        return r;
    if (!mount_content_addressed(m) && !str_starts(m->mount_path, BELOW_WORKSPACE))
        return deny(err, "Managed sandbox additional mount targets must stay under /workspace");
    return 0;
}

int admission_check_mounts(const struct box_paths *paths, struct spec *spec, struct err *err)
{
    if (spec->n_extra_mounts > MOUNTS_MAX)
        return err_set(err, ERR_DENIED, "Managed sandbox accepts at most %u read-only mounts",
                       MOUNTS_MAX);
    if (spec->n_extra_mounts > 0 && paths->mount_roots == NULL)
        return deny(err, "Managed sandbox read-only mounts require allowed_mount_roots");
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        struct mount_spec *m = &spec->extra_mounts[i];
        int r = check_mount(paths, m, err);
        if (r < 0)
            return r;
        for (size_t k = 0; k < i; k++)
            if (str_eq(spec->extra_mounts[k].mount_path, m->mount_path))
                return deny(err, "Managed sandbox additional mount targets must be unique");
    }
    return 0;
}
