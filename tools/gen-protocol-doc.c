/* SPDX-License-Identifier: Apache-2.0 */

/* Prints the generated sections of docs/reference/protocol.md, from the tables that the daemon
 * itself reads requests with: gen-protocol-doc SECTION. tools/gen-protocol-doc.py puts them in
 * their place. */

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "front/langbot/release.h"
#include "spec/admission.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/profile.h"

static void print_type(const struct field *f)
{
    static const char *const types[] = {
        [FIELD_STR] = "string",
        [FIELD_INT] = "integer",
        [FIELD_REAL] = "number",
        [FIELD_BOOL] = "bool",
        [FIELD_ENUM] = "",
        [FIELD_ENV] = "map of strings",
        [FIELD_STRV] = "list of strings",
        [FIELD_LIST] = "",
        [FIELD_TIME] = "date and time",
    };

    if (f->kind == FIELD_LIST)
        (void)printf("list of %s", f->items->name);
    else if (f->kind != FIELD_ENUM)
        (void)printf("%s", types[f->kind]);
    for (size_t i = 0; f->names && f->names[i]; i++)
        (void)printf("%s`%s`", i > 0 ? ", " : "", f->names[i]);
    if (f->flags & FIELD_NULLABLE)
        (void)printf(" or null");
}

static void print_default(const struct field *f)
{
    if (f->flags & FIELD_REQUIRED) {
        (void)printf("required");
        return;
    }
    switch (f->kind) {
    case FIELD_STR:
        if (f->text)
            (void)printf("`\"%s\"`", f->text);
        else
            (void)printf("null");
        break;
    case FIELD_INT:
        (void)printf("%" PRId64, f->number);
        break;
    case FIELD_REAL:
        (void)printf("%.1f", f->real);
        break;
    case FIELD_BOOL:
        (void)printf("%s", f->number ? "true" : "false");
        break;
    case FIELD_ENUM:
        (void)printf("`%s`", f->names[f->number]);
        break;
    case FIELD_ENV:
        (void)printf("`{}`");
        break;
    case FIELD_STRV:
    case FIELD_LIST:
        (void)printf("`[]`");
        break;
    case FIELD_TIME:
        break;
    }
}

/* The sentences a client may get, and the limits behind them. */
static void print_rules(const struct field *f)
{
    if (f->strict_text)
        (void)printf(" *%s*.", f->strict_text);
    if (f->rule)
        (void)printf(" *%s*.", f->rule);
    if (f->max_rule && !str_eq(f->max_rule, f->rule))
        (void)printf(" *%s*.", f->max_rule);
    switch (f->kind) {
    case FIELD_STR:
        (void)printf(" At most %" PRId64 " bytes%s.", f->max,
                     f->flags & FIELD_TRIM ? ", trimmed" : "");
        break;
    case FIELD_INT:
    case FIELD_REAL:
        if (!f->max_rule)
            (void)printf(" At most %" PRId64 ".", f->max);
        break;
    case FIELD_ENV:
    case FIELD_STRV:
        (void)printf(" At most %" PRId64 " entries, %d bytes each, %" PRId64 " in all.", f->max,
                     ENTRY_BYTES_MAX - 1, f->max_bytes);
        break;
    case FIELD_LIST:
        (void)printf(" At most %" PRId64 " entries.", f->max);
        break;
    case FIELD_BOOL:
    case FIELD_ENUM:
    case FIELD_TIME:
        break;
    }
}

static void print_model(const struct model *m)
{
    (void)printf("### %s\n\n%s Unknown members are %s.\n\n"
                 "| field | type | default | meaning, *messages* and limits |\n|---|---|---|---|\n",
                 m->name, m->doc, m->closed ? "errors" : "ignored");
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        (void)printf("| `%s` | ", f->name);
        print_type(f);
        (void)printf(" | ");
        print_default(f);
        (void)printf(" | %s", f->doc);
        print_rules(f);
        (void)printf(" |\n");
    }
    (void)printf("\n");
}

static void print_locked(const struct profile *p)
{
    bool first = true;

    for (int i = 0; i < SPEC_FIELD_MAX; i++)
        if (profile_locks(p, (enum spec_field)i)) {
            (void)printf("%s`%s`", first ? "" : ", ", spec_model.fields[i].name);
            first = false;
        }
    if (first)
        (void)printf("none");
}

static void print_profiles(void)
{
    (void)printf("### Profiles\n\n"
                 "| profile | image | network | host_path_mode | cpus | memory_mb | pids_limit | "
                 "read_only_rootfs | timeout_sec | at most | workspace_quota_mb | locked |\n"
                 "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < n_profiles; i++) {
        const struct profile *p = &profiles[i];
        (void)printf("| `%s` | `%s` | %s | %s | %.1f | %" PRId64 " | %" PRId64 " | %s | %" PRId64
                     " | %" PRId64 " | %" PRId64 " | ",
                     p->name, p->image, network_names[p->network],
                     mount_mode_names[p->host_path_mode], p->cpus, p->memory_mb, p->pids_limit,
                     p->read_only_rootfs ? "true" : "false", p->timeout_sec, p->max_timeout_sec,
                     p->workspace_quota_mb);
        print_locked(p);
        (void)printf(" |\n");
    }
}

static void print_spec(void)
{
    static const struct model *const models[] = {
        &spec_model,
        &mount_spec_model,
        &process_spec_model,
        &admission_grant_model,
        &admission_revocation_model,
        &admission_policy_model,
    };
    for (size_t i = 0; i < ARRAY_SIZE(models); i++)
        print_model(models[i]);
    print_profiles();
}

/* One row for each rule, one column for each family of releases. */
static void print_rule(const char *rule, const char *(*value)(const struct langbot_release *r))
{
    (void)printf("| %s |", rule);
    for (int i = 0; i < LANGBOT_FAMILY_MAX; i++)
        (void)printf(" %s |", value(&langbot_releases[i]));
    (void)printf("\n");
}

static const char *call(const struct langbot_release *r, unsigned bit)
{
    return r->calls & bit ? "served" : "not found";
}

#define CALL(name, bit)                                                                            \
    static const char *name(const struct langbot_release *r)                                       \
    {                                                                                              \
        return call(r, bit);                                                                       \
    }
#define RULE(member, yes, no)                                                                      \
    static const char *member(const struct langbot_release *r)                                     \
    {                                                                                              \
        return r->member ? (yes) : (no);                                                           \
    }
CALL(skills, LANGBOT_SKILL)
CALL(grants, LANGBOT_GRANT)
CALL(storage, LANGBOT_STORAGE)
CALL(flow, LANGBOT_FLOW)
RULE(closed, "refused", "ignored")
RULE(gone, "unknown", "read")
RULE(keeps_mounts, "conflict", "made anew")
RULE(adds_artifacts, "have a place for artifacts", "have one if they begin with some")
RULE(admitted_mounts, "`ro`", "none")
RULE(newer_checks, "`hard_read_only_mount_quota`", "`hard_skill_storage_quota`")
RULE(bad_id_is_checked, "`BoxValidationError`", "`ValueError`")
RULE(tells_of_workspace, "told", "not told")

static const char *releases(const struct langbot_release *r)
{
    return r->releases;
}

static void print_releases(void)
{
    print_rule("rule", releases);
    (void)printf("|---|---|---|---|---|\n");
    print_rule("skill calls", skills);
    print_rule("grants, `box_verify_shared_workspace`", grants);
    print_rule("`box_get_storage_analysis`", storage);
    print_rule("`__cancel_action`, `__stream_ack`", flow);
    print_rule("unknown fields of a BoxSpec", closed);
    print_rule("`skill_name`", gone);
    print_rule("other extra mounts than the session's", keeps_mounts);
    print_rule("new sessions", adds_artifacts);
    print_rule("extra mounts of a managed sandbox", admitted_mounts);
    print_rule("a check that fails is called", newer_checks);
    print_rule("a session_id without a usable character", bad_id_is_checked);
    print_rule("`limits`, `capacity`, `status` of a session", tells_of_workspace);
}

static const struct {
    const char *name;
    void (*print)(void);
} sections[] = {
    {"spec", print_spec},
    {"releases", print_releases},
};

int main(int argc, char *argv[])
{
    for (size_t i = 0; argc == 2 && i < ARRAY_SIZE(sections); i++)
        if (str_eq(argv[1], sections[i].name)) {
            sections[i].print();
            return fflush(stdout) == 0 ? 0 : 1;
        }
    (void)fprintf(stderr, "usage: gen-protocol-doc SECTION\n");
    return 2;
}
