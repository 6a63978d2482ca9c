/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the tenant context, maps session names, and keeps the fence of placement generations. */

#include "front/langbot/tenant/tenancy.h"

#include <assert.h>
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "spec/model.h"
#include "spec/spec.h"

#define NS_DIGITS 24
#define INSTANCE_MAX 128
/* What is left of SPEC_ID_MAX behind the longest prefix. */
#define LOGICAL_MAX (SPEC_ID_MAX - TENANT_PREFIX_SIZE)

/* clang-format off */
static const struct field context_fields[] = {
    {"instance_uuid", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct tenant_context, instance_uuid),
     .max = SPEC_ID_MAX, .valid = text_not_empty, .rule = "must not be empty",
     .doc = "The trusted instance."},
    {"workspace_uuid", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct tenant_context, workspace_uuid),
     .max = SPEC_ID_MAX, .valid = text_not_empty, .rule = "must not be empty",
     .doc = "The workspace that the caller acts for."},
    {"placement_generation", FIELD_INT, 0, offsetof(struct tenant_context, placement_generation),
     .number = 1, .min = 1, .max = INT64_MAX - 1,
     .rule = "placement_generation must be greater than or equal to 1",
     .doc = "Grows when the workspace moves; older ones are shut out."},
    {"installation_uuid", FIELD_STR, FIELD_NULLABLE | FIELD_TRIM, offsetof(struct tenant_context, installation_uuid),
     .max = SPEC_ID_MAX,
     .doc = "Of no meaning here."},
};
/* clang-format on */

const struct model tenant_context_model = {
    .name = "ActionContext",
    .doc = "Who a request of the LangBot wire acts for.",
    .fields = context_fields,
    .n_fields = ARRAY_SIZE(context_fields),
    .size = sizeof(struct tenant_context),
    .closed = true,
};

static bool is_binding(const struct json *object)
{
    return json_get(object, "installation_uuid") != NULL &&
           json_get(object, "runtime_revision") != NULL &&
           json_get(object, "artifact_digest") != NULL;
}

int tenant_context_parse(const struct json *object, struct tenant_context *ret,
                         struct report *report, struct err *err)
{
    struct model m = tenant_context_model;
    m.closed = !is_binding(object);
    *ret = (struct tenant_context){0};
    model_init(&m, ret);
    if (model_parse(&m, object, 0, ret, report) == 0)
        return 0;
    tenant_context_done(ret);
    return report_fail(report, err);
}

void tenant_context_done(struct tenant_context *c)
{
    model_done(&tenant_context_model, c);
    *c = (struct tenant_context){0};
}

static bool is_alnum(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

static bool is_kept(char c)
{
    return is_alnum(c) || c == '_' || c == '.' || c == '-';
}

bool instance_id_valid(const char *s)
{
    size_t n = 0;
    if (!is_alnum(s[0]))
        return false;
    while (is_kept(s[n]) || s[n] == ':')
        n++;
    return n <= INSTANCE_MAX && s[n] == '\0';
}

void tenant_ns(const char *instance_uuid, const char *workspace_uuid, char ret[static NS_SIZE])
{
    char text[2 * (SPEC_ID_MAX + 1)], hex[65];
    /* The NUL of the first part is the separator. */
    size_t first = strlen(instance_uuid) + 1, second = strlen(workspace_uuid);
    assert(first + second < sizeof(text));
    memcpy(text, instance_uuid, first);
    memcpy(text + first, workspace_uuid, second);
    int r = http_sha256_hex(text, first + second, hex);
    assert(r == 0);
    hex[NS_DIGITS] = '\0';
    r = str_fmt(ret, NS_SIZE, "ws-%s", hex);
    assert(r >= 0);
}

void tenant_prefix(const char *ns, int64_t generation, char ret[static TENANT_PREFIX_SIZE])
{
    int r = str_fmt(ret, TENANT_PREFIX_SIZE, "%s-g%" PRId64 "-", ns, generation);
    assert(r >= 0);
}

/* Every run of other characters becomes one '-', none at the ends. */
static char *sanitise(const char *s)
{
    char *out = xnew_n(char, strlen(s) + 1);
    size_t n = 0;
    for (; *s != '\0'; s++) {
        bool kept = is_kept(*s);
        if (!kept && n > 0 && !is_kept(s[-1]))
            continue; /* the run goes on */
        if ((kept && *s != '-') || n > 0)
            out[n++] = kept ? *s : '-';
    }
    while (n > 0 && out[n - 1] == '-')
        n--;
    out[n] = '\0';
    return out;
}

int tenant_physical(const char *prefix, const char *logical, char **ret, struct err *err)
{
    AUTO_FREE char *trimmed = str_strip(logical);
    AUTO_FREE char *clean = sanitise(trimmed);
    if (trimmed[0] == '\0')
        return err_set(err, ERR_INVALID, "Box session_id must not be empty");
    if (clean[0] == '\0')
        return err_set(err, ERR_INVALID, "Box session_id must contain a valid character");
    if (strlen(clean) > LOGICAL_MAX)
        return err_set(err, ERR_INVALID, "Box session_id must be at most %d characters",
                       (int)LOGICAL_MAX);
    *ret = xasprintf("%s%s", prefix, clean);
    return 0;
}

const char *tenant_logical(const char *prefix, const char *physical)
{
    return str_starts(physical, prefix) ? physical + strlen(prefix) : physical;
}

/* The digits of the generation in a name that was made for a workspace; 0: it was not. */
static size_t generation_digits(const char *id)
{
    const char *p = id + 3;
    if (!str_starts(id, "ws-") || strspn(p, "0123456789abcdef") != NS_DIGITS)
        return 0;
    p += NS_DIGITS;
    if (!str_starts(p, "-g"))
        return 0;
    size_t digits = strspn(p + 2, "0123456789");
    return p[2 + digits] == '-' && p[3 + digits] != '\0' ? digits : 0;
}

bool tenant_name_is_physical(const char *id)
{
    return generation_digits(id) > 0;
}

bool tenant_of_physical(const char *id, char ret_ns[static NS_SIZE], int64_t *ret_generation)
{
    char text[24];
    size_t digits = generation_digits(id);
    if (digits == 0 || digits >= sizeof(text))
        return false;
    memcpy(text, id + NS_SIZE - 1 + 2, digits);
    text[digits] = '\0';
    if (str_to_i64(text, ret_generation) < 0 || *ret_generation < 1)
        return false;
    memcpy(ret_ns, id, NS_SIZE - 1);
    ret_ns[NS_SIZE - 1] = '\0';
    return true;
}

/* Tables by namespace. */

static int by_ns(const void *a, const void *b)
{
    return strcmp(a, b);
}

void *ns_table_find(const struct ns_table *t, const char *ns)
{
    void *const *at = tfind(ns, &t->tree, by_ns);
    return at != NULL ? *at : NULL;
}

void *ns_table_need(struct ns_table *t, const char *ns, size_t size)
{
    void *e = ns_table_find(t, ns);
    if (e != NULL || t->n >= t->max)
        return e;
    e = xcalloc(1, size);
    (void)str_copy(e, NS_SIZE, ns);
    if (tsearch(e, &t->tree, by_ns) == NULL)
        abort(); /* as xcalloc() */
    t->n++;
    return e;
}

/* The fence. */

struct fenced {
    char ns[NS_SIZE]; /* first: the key of the tree */
    int64_t generation;
    bool found; /* in a session that boxd took over; no request has shown it yet */
};

struct fence {
    struct ns_table table; /* of struct fenced */
};

struct fence *fence_new(size_t max)
{
    struct fence *f = xnew(struct fence);
    f->table.max = max;
    return f;
}

void fence_free(struct fence *f)
{
    if (f == NULL)
        return;
    tdestroy(f->table.tree, free);
    free(f);
}

void fence_set_max(struct fence *f, size_t max)
{
    f->table.max = max;
}

int64_t fence_current(const struct fence *f, const char *ns)
{
    const struct fenced *e = ns_table_find(&f->table, ns);
    return e != NULL ? e->generation : 0;
}

int fence_pass(struct fence *f, const char *ns, int64_t generation, struct err *err)
{
    struct fenced *e = ns_table_need(&f->table, ns, sizeof(*e));
    if (e == NULL)
        return err_set(err, ERR_LIMIT,
                       "Box generation fence capacity reached; refusing an unbounded Workspace "
                       "allocation");
    if (generation < e->generation)
        return err_set(err, ERR_DENIED, "Stale Box placement generation");
    if (generation == e->generation && !e->found)
        return 0;
    e->generation = generation;
    e->found = false;
    return 1;
}

void fence_found(struct fence *f, const char *ns, int64_t generation)
{
    struct fenced *e =
        fence_pass(f, ns, generation, NULL) > 0 ? ns_table_find(&f->table, ns) : NULL;
    if (e != NULL)
        e->found = true;
}
