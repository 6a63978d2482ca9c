/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the limits and paths of `box_init`, and checks paths against the allowed roots. */

#include "front/langbot/tenant/boxconf.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/coerce.h"

#define ROOTS_MAX 64U

const struct box_limits box_limits_default = {
    .max_sessions = 64,
    .max_managed_processes = 64,
    .max_completed_processes = 256,
    .max_admission_records = 100000,
    .max_rpc_file_bytes = 20971520,
    .completed_process_retention_sec = 300,
};

/* clang-format off */
static const struct {
    const char *name;
    size_t offset;
    int64_t min, max;
} limit_rows[] = {
    {"max_sessions", offsetof(struct box_limits, max_sessions), 0, 5000},
    {"max_managed_processes", offsetof(struct box_limits, max_managed_processes), 0, 1024},
    {"max_completed_processes", offsetof(struct box_limits, max_completed_processes), 0, 10000},
    {"max_admission_records", offsetof(struct box_limits, max_admission_records), 1, 250000},
    {"max_rpc_file_bytes", offsetof(struct box_limits, max_rpc_file_bytes), 1, 104857600},
    {"completed_process_retention_sec", offsetof(struct box_limits, completed_process_retention_sec), 0, 86400},
};
/* clang-format on */

int box_limits_parse(const struct json *limits, struct box_limits *ret, struct err *err)
{
    struct box_limits next = *ret;
    if (!coerce_truth(limits))
        return 0;
    if (json_type(limits) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "box.limits must be an object");
    for (size_t i = 0; i < ARRAY_SIZE(limit_rows); i++) {
        const struct json *v = json_get(limits, limit_rows[i].name);
        int64_t value = json_int(v);
        if (v == NULL)
            continue;
        if (json_type(v) != JSON_INT)
            return err_set(err, ERR_INVALID, "box.limits.%s must be an integer",
                           limit_rows[i].name);
        if (value < limit_rows[i].min || value > limit_rows[i].max)
            return err_set(err, ERR_INVALID,
                           "box.limits.%s must be between %" PRId64 " and %" PRId64,
                           limit_rows[i].name, limit_rows[i].min, limit_rows[i].max);
        *(int64_t *)(void *)((char *)&next + limit_rows[i].offset) = value;
    }
    *ret = next;
    return 0;
}

/* Paths. */

static bool is_home(const char *text)
{
    return text[0] == '~' && (text[1] == '/' || text[1] == '\0');
}

/* `name` is that of the setting. */
static int resolve(const struct box_base *base, const char *name, const char *text, char **ret,
                   struct err *err)
{
    char joined[PATH_MAX];
    const char *home = getenv("HOME");
    int r;
    if (base->dir == NULL && text[0] != '/' && !is_home(text))
        return err_set(
            err, ERR_INVALID,
            "box.local.%s '%.60s' is relative, and boxd cannot tell to what: %.160s. Set "
            "it to an absolute path in LangBot, or langbot_base_dir of boxd to the "
            "directory that LangBot runs in",
            name, text, base->why);
    if (is_home(text) && home != NULL && home[0] == '/')
        r = str_fmt(joined, sizeof(joined), "%s%s", home, text + 1);
    else if (text[0] == '/')
        r = str_copy(joined, sizeof(joined), text);
    else
        r = str_fmt(joined, sizeof(joined), "%s/%s", base->dir != NULL ? base->dir : "", text);
    if (r < 0)
        return err_set(err, ERR_INVALID, "box.local.%s is too long", name);
    *ret = path_real(joined);
    return 0;
}

/* The trimmed text of a member, "" when it has none. */
static char *member_text(const struct json *object, const char *name)
{
    const struct json *v = json_get(object, name);
    const char *text = json_str(v);
    return text != NULL && strlen(text) == json_str_len(v) ? str_strip(text) : xstrdup("");
}

static int add_root(struct box_paths *p, const struct box_base *base, const char *text,
                    struct err *err)
{
    AUTO_FREE char *stripped = str_strip(text);
    char *path = NULL;
    if (stripped[0] == '\0')
        return 0;
    if (strv_len(p->mount_roots) >= ROOTS_MAX)
        return err_set(err, ERR_INVALID, "box.local.allowed_mount_roots has more than %u entries",
                       ROOTS_MAX);
    int r = resolve(base, "allowed_mount_roots", stripped, &path, err);
    if (r == 0)
        strv_push(&p->mount_roots, path);
    return r;
}

static int parse_roots(struct box_paths *p, const struct box_base *base, const struct json *v,
                       struct err *err)
{
    int r = 0;
    if (json_type(v) == JSON_STRING) {
        AUTO_FREE char *copy = xstrdup(json_str(v));
        char *save = NULL;
        for (char *item = strtok_r(copy, ",", &save); item != NULL && r == 0;
             item = strtok_r(NULL, ",", &save))
            r = add_root(p, base, item, err);
    }
    for (size_t i = 0; json_type(v) == JSON_ARRAY && i < json_len(v) && r == 0; i++)
        if (json_str(json_at(v, i)) != NULL)
            r = add_root(p, base, json_str(json_at(v, i)), err);
    if (r == 0 && p->mount_roots == NULL && p->host_root != NULL)
        strv_add(&p->mount_roots, p->host_root);
    return r;
}

/* Without a setting skills are where LangBot has them by default. Where that is not known, there is
 * no store, and skill actions are refused. */
static int find_skills(struct box_paths *p, const struct box_base *base, const char *text,
                       struct err *err)
{
    AUTO_FREE char *root = NULL;
    int r = 0;
    if (p->host_root == NULL && text[0] != '/' && base->dir == NULL)
        return 0;
    if (p->host_root == NULL)
        r = resolve(base, "host_root", BOX_DEFAULT_ROOT, &root, err);
    const struct box_base below = {.dir = root != NULL ? root : p->host_root};
    return r < 0 ? r : resolve(&below, "skills_root", text, &p->skills_root, err);
}

int box_paths_parse(const struct json *local, const struct box_base *base, struct box_paths *ret,
                    struct err *err)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    AUTO_FREE char *root = member_text(local, "host_root");
    AUTO_FREE char *workspace = member_text(local, "default_workspace");
    AUTO_FREE char *skills = member_text(local, "skills_root");
    int r = 0;
    if (root[0] != '\0')
        r = resolve(base, "host_root", root, &p.host_root, err);
    const struct box_base below = {.dir = p.host_root};
    if (r == 0 && (workspace[0] != '\0' || p.host_root != NULL))
        r = resolve(p.host_root != NULL ? &below : base, "default_workspace",
                    workspace[0] != '\0' ? workspace : "default", &p.default_workspace, err);
    if (r == 0)
        r = find_skills(&p, base, skills[0] != '\0' ? skills : "skills", err);
    if (r == 0)
        r = parse_roots(&p, base, json_get(local, "allowed_mount_roots"), err);
    if (r < 0)
        return r;
    *ret = p;
    p = (struct box_paths){0};
    return 0;
}

const char *box_paths_relative_root(const struct json *local, char **ret)
{
    *ret = member_text(local, "host_root");
    return (*ret)[0] != '\0' && (*ret)[0] != '/' && !is_home(*ret) ? *ret : NULL;
}

static char *copy_text(const char *s)
{
    return s != NULL ? xstrdup(s) : NULL;
}

int box_paths_copy(const struct box_paths *p, struct box_paths *ret)
{
    *ret = (struct box_paths){.host_root = copy_text(p->host_root),
                              .default_workspace = copy_text(p->default_workspace),
                              .skills_root = copy_text(p->skills_root),
                              .placed = p->placed,
                              .mount_roots = strv_copy(p->mount_roots)};
    return 0;
}

void box_paths_done(struct box_paths *p)
{
    free(p->host_root);
    free(p->default_workspace);
    free(p->skills_root);
    strv_free(p->mount_roots);
    *p = (struct box_paths){0};
}

bool box_paths_allow(const struct box_paths *p, const char *path)
{
    for (char **root = p->mount_roots; root != NULL && *root != NULL; root++)
        if (path_at_or_below(path, *root))
            return true;
    return false;
}

bool box_paths_own(const struct box_paths *p, const char *path)
{
    return (p->default_workspace != NULL && path_at_or_below(path, p->default_workspace)) ||
           (p->host_root != NULL && path_at_or_below(path, p->host_root));
}

static void list_roots(const struct box_paths *p, char *ret, size_t size)
{
    ret[0] = '\0';
    for (char **root = p->mount_roots; root != NULL && *root != NULL; root++) {
        size_t used = strlen(ret);
        if (str_fmt(ret + used, size - used, "%s%s", used > 0 ? ", " : "", *root) < 0)
            return;
    }
}

int box_paths_check_workspace(const struct box_paths *p, bool *ret_make, struct err *err)
{
    char roots[160];
    struct stat st;
    *ret_make = false;
    if (p->default_workspace == NULL)
        return 0;
    if (stat(p->default_workspace, &st) == 0)
        return S_ISDIR(st.st_mode) ? 0
                                   : err_set(err, ERR_INVALID,
                                             "box.local.default_workspace must point to a "
                                             "directory on the Box runtime host");
    if (p->mount_roots == NULL)
        return err_set(err, ERR_INVALID,
                       "box.local.default_workspace cannot be created because no "
                       "allowed_mount_roots are configured");
    if (!box_paths_allow(p, p->default_workspace)) {
        list_roots(p, roots, sizeof(roots));
        return err_set(
            err, ERR_INVALID,
            "box.local.default_workspace is outside allowed_mount_roots: %s (it is %.120s)", roots,
            p->default_workspace);
    }
    *ret_make = true;
    return 0;
}

int box_paths_managed_place(const struct box_paths *p, const char **ret, struct err *err)
{
    if (p->default_workspace == NULL)
        return err_set(err, ERR_STATE,
                       "Managed sandbox admission requires box.local.default_workspace");
    if (!box_paths_allow(p, p->default_workspace))
        return err_set(err, ERR_STATE,
                       "Managed sandbox workspace is outside box.local.allowed_mount_roots");
    *ret = p->default_workspace;
    return 0;
}

char *box_paths_tenant_dir(const struct box_paths *p, const char *ns)
{
    return xasprintf("%s/tenants/%s", p->default_workspace, ns);
}
