/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/host_path.h"
#include "base/path.h"
#include "base/strv.h"
#include "policy/policy.c"
#include "spec/profile.h"

#include <fcntl.h>

static struct policy *with_env(const char *file, const char *const *env)
{
    struct policy *p = NULL;
    struct err err;
    if (policy_from(file, env, &p, &err) < 0)
        fail_msg("%s: %s", file, err.msg);
    return p;
}

static void refused(const char *file, const char *const *env, const char *message)
{
    AUTO(policy) struct policy *p = NULL;
    struct err err;
    assert_true(policy_from(file, env, &p, &err) < 0);
    assert_string_equal(err.msg, message);
}

static void nothing_said_gives_the_defaults(void **state)
{
    AUTO(policy) struct policy *p = policy_good("{}");
    const struct policy_settings *s = policy_settings(p);
    struct policy_row row;
    assert_true(s->enabled);
    assert_string_equal(s->profile, "default");
    assert_null(s->image);
    assert_null(s->host_root);
    assert_null(s->default_workspace);
    assert_null(s->mount_roots);
    assert_false(s->has_quota);
    assert_int_equal(s->max_workspace_entries, 100000);
    assert_string_equal(s->session_template, "{launcher_type}_{launcher_id}");
    assert_true(s->mcp_stdio_enabled);
    assert_int_equal(s->mcp_stdio_fallback, POLICY_FALLBACK_REFUSE);
    assert_true(s->audit_enabled);
    assert_int_equal(s->audit_full, POLICY_FULL_CONTINUE);
    for (size_t i = 0; policy_explain(p, i, &row); i++) {
        assert_string_equal(row.source, "default");
        assert_non_null(row.value);
        assert_true(strlen(row.doc) > 0);
    }
}

static void test_row_I06_the_output_limit_is_a_setting(void **state)
{
    AUTO(policy) struct policy *p = policy_good("{}");
    AUTO(policy) struct policy *q = policy_good("{\"box\": {\"output_limit_chars\": 100}}");
    assert_int_equal(policy_settings(p)->output_limit_chars, 4000);
    assert_int_equal(policy_settings(q)->output_limit_chars, 100);
}

static void test_row_I04_both_shapes_are_read_and_the_nested_wins(void **state)
{
    AUTO(policy)
    struct policy *flat =
        policy_good("{\"box\": {\"profile\": \"network_basic\", \"shared_host_root\": \"/srv/r\", "
                    "\"allowed_host_mount_roots\": [\"/srv/r\", \" /tmp \", \"\"], "
                    "\"default_host_workspace\": \"/srv/r/w\", \"workspace_quota_mb\": \"12.0\"}}");
    AUTO(policy)
    struct policy *both =
        policy_good("{\"box\": {\"profile\": \"network_basic\", \"shared_host_root\": \"/flat\", "
                    "\"local\": {\"profile\": \"offline_readonly\", \"host_root\": \"/nested\", "
                    "\"workspace_quota_mb\": null}}}");
    const struct policy_settings *s = policy_settings(flat);
    assert_string_equal(s->profile, "network_basic");
    assert_string_equal(s->host_root, "/srv/r");
    assert_string_equal(s->default_workspace, "/srv/r/w");
    assert_int_equal(strv_len(s->mount_roots), 2);
    assert_string_equal(s->mount_roots[1], "/tmp");
    assert_true(s->has_quota);
    assert_int_equal(s->workspace_quota_mb, 12);
    assert_string_equal(source_of(flat, "box.local.profile"), "file box.yaml: box.profile");
    assert_string_equal(policy_settings(both)->profile, "offline_readonly");
    assert_string_equal(policy_settings(both)->host_root, "/nested");
    assert_string_equal(source_of(both, "box.local.profile"), "file box.yaml: box.local.profile");
}

static void test_row_T11_workspace_and_root_derive_from_the_shared_root(void **state)
{
    AUTO(policy)
    struct policy *p =
        policy_good("{\"box\": {\"shared_host_root\": \"/srv/shared\", "
                    "\"allowed_host_mount_roots\": [], \"default_host_workspace\": \"\"}}");
    const struct policy_settings *s = policy_settings(p);
    assert_string_equal(s->host_root, "/srv/shared");
    assert_string_equal(s->default_workspace, "/srv/shared/default");
    assert_int_equal(strv_len(s->mount_roots), 1);
    assert_string_equal(s->mount_roots[0], "/srv/shared");
    assert_string_equal(source_of(p, "box.local.default_workspace"),
                        "derived from box.local.host_root");
    assert_string_equal(source_of(p, "box.local.allowed_mount_roots"),
                        "derived from box.local.host_root");
}

static void relative_paths_start_where_their_shape_says(void **state)
{
    AUTO(policy)
    struct policy *nested =
        policy_good("{\"box\": {\"local\": {\"host_root\": \"./data/box\", \"default_workspace\": "
                    "\"mine\", \"allowed_mount_roots\": \"./data/box, /tmp,\"}}}");
    AUTO(policy)
    struct policy *flat = policy_good(
        "{\"box\": {\"shared_host_root\": \"data\", \"default_host_workspace\": \"mine\"}}");
    const struct policy_settings *s = policy_settings(nested);
    assert_string_equal(s->host_root, "/home/u/data/box");
    assert_string_equal(s->default_workspace, "/home/u/data/box/mine");
    assert_int_equal(strv_len(s->mount_roots), 2);
    assert_string_equal(s->mount_roots[0], "/home/u/data/box");
    assert_string_equal(s->mount_roots[1], "/tmp");
    assert_string_equal(policy_settings(flat)->default_workspace, "/home/u/mine");
}

static void the_environment_wins_over_the_file(void **state)
{
    AUTO(policy)
    struct policy *p =
        with_env("{\"box\": {\"local\": {\"profile\": \"default\", \"workspace_quota_mb\": 5}}}",
                 ENV("BOX__PROFILE=network_basic", "BOX__LOCAL__WORKSPACE_QUOTA_MB=7",
                     "BOX__LOCAL__ALLOWED_MOUNT_ROOTS=/a,/b", "AUDIT__ON_FULL=refuse", "HOME=/root",
                     "MCP__STDIO__ENABLED=off"));
    const struct policy_settings *s = policy_settings(p);
    assert_string_equal(s->profile, "network_basic");
    assert_string_equal(source_of(p, "box.local.profile"), "environment BOX__PROFILE");
    assert_int_equal(s->workspace_quota_mb, 7);
    assert_string_equal(source_of(p, "box.local.workspace_quota_mb"),
                        "environment BOX__LOCAL__WORKSPACE_QUOTA_MB");
    assert_int_equal(strv_len(s->mount_roots), 2);
    assert_int_equal(s->audit_full, POLICY_FULL_REFUSE);
    assert_false(s->mcp_stdio_enabled);
}

static void names_of_variables_follow_the_hosts_rule(void **state)
{
    static const struct {
        const char *entry;
        bool counts;
    } cases[] = {
        {"BOX__LOCAL__PROFILE=network_basic", true},
        {"BOX____LOCAL__PROFILE=network_basic", true}, /* an empty part is none */
        {"__BOX__LOCAL__PROFILE__=network_basic", true},
        {"Box__Local__Profile=network_basic", false}, /* not in capitals */
        {"BOX_LOCAL_PROFILE=network_basic", false},
        {"BOX__LOCAL___PROFILE=network_basic", false}, /* the part is _profile */
        {"BOX__LOCAL__PROFILES=network_basic", false},
        {"BOX__LOCAL__PROFILE", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *entry = xstrdup(cases[i].entry);
        AUTO(policy) struct policy *p = with_env("{}", ENV(entry));
        assert_string_equal(policy_settings(p)->profile,
                            cases[i].counts ? "network_basic" : "default");
    }
}

static void an_empty_variable_is_an_empty_text_and_no_number(void **state)
{
    AUTO(policy)
    struct policy *p =
        with_env("{\"box\": {\"local\": {\"host_root\": \"/srv\", \"image\": \"x\"}}, \"audit\": "
                 "{\"file_mb\": 3}}",
                 ENV("BOX__LOCAL__HOST_ROOT=", "BOX__LOCAL__IMAGE=", "AUDIT__FILE_MB=",
                     "AUDIT__SYNC=", "BOX__LOCAL__WORKSPACE_QUOTA_MB="));
    assert_null(policy_settings(p)->host_root);
    assert_null(policy_settings(p)->image);
    assert_int_equal(policy_settings(p)->audit_file_mb, 3);
    assert_false(policy_settings(p)->has_quota);
}

static void the_switch_is_off_only_when_it_says_so(void **state)
{
    static const struct {
        const char *value;
        bool on;
    } cases[] = {
        {"true", true},      {"false", false},  {"\"false\"", false}, {"\" OFF \"", false},
        {"\"0\"", false},    {"\"no\"", false}, {"\"\"", false},      {"\"yes\"", true},
        {"\"maybe\"", true}, {"0", true},       {"null", true},
    };
    char text[64];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(text, sizeof(text), "{\"box\": {\"enabled\": %s}}", cases[i].value);
        AUTO(policy) struct policy *p = policy_good(text);
        assert_int_equal(policy_settings(p)->enabled, cases[i].on);
    }
    AUTO(policy) struct policy *p = with_env("{}", ENV("BOX__ENABLED="));
    assert_false(policy_settings(p)->enabled);
}

static void a_gate_that_is_not_clearly_open_is_shut(void **state)
{
    static const struct {
        const char *value;
        bool on;
    } cases[] = {
        {"true", true}, {"false", false}, {"\"maybe\"", false}, {"[]", false}, {"2", false}};
    char text[64];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(text, sizeof(text), "{\"mcp\": {\"stdio\": {\"enabled\": %s}}}",
                       cases[i].value);
        AUTO(policy) struct policy *p = policy_good(text);
        assert_int_equal(policy_settings(p)->mcp_stdio_enabled, cases[i].on);
    }
}

static void entries_of_a_workspace_are_clamped(void **state)
{
    static const struct {
        const char *value;
        int64_t want;
    } cases[] = {{"5", 5}, {"0", 1}, {"-3", 1}, {"2000000", 1000000}, {"\"x\"", 100000}};
    char text[96];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"box\": {\"limits\": {\"max_workspace_entries\": %s}}}", cases[i].value);
        AUTO(policy) struct policy *p = policy_good(text);
        assert_int_equal(policy_settings(p)->max_workspace_entries, cases[i].want);
    }
}

static void test_row_T24_an_unknown_profile_is_told_at_once(void **state)
{
    refused("{\"box\": {\"profile\": \"nonexistent\"}}", NULL,
            "unknown box profile 'nonexistent', available profiles: default, network_basic, "
            "network_extended, offline, offline_readonly (box.local.profile from file box.yaml: "
            "box.profile)");
    refused("{}", ENV("BOX__LOCAL__PROFILE=x"),
            "unknown box profile 'x', available profiles: default, network_basic, "
            "network_extended, offline, offline_readonly (box.local.profile from environment "
            "BOX__LOCAL__PROFILE)");
    AUTO(policy) struct policy *blank = policy_good("{\"box\": {\"profile\": \"  \"}}");
    const struct profile *p = NULL;
    assert_int_equal(policy_profile(blank, NULL, &p, NULL), 0);
    assert_string_equal(p->name, "default");
}

static void mistakes_name_the_setting_and_its_source(void **state)
{
    refused("{\"box\": {\"workspace_quota_mb\": \"many\"}}", NULL,
            "workspace_quota_mb must be an integer greater than or equal to 0 "
            "(box.local.workspace_quota_mb from file box.yaml: box.workspace_quota_mb)");
    refused("{}", ENV("BOX__WORKSPACE_QUOTA_MB=-1"),
            "workspace_quota_mb must be greater than or equal to 0 "
            "(box.local.workspace_quota_mb from environment BOX__WORKSPACE_QUOTA_MB)");
    refused("{\"audit\": {\"on_full\": \"panic\"}}", NULL,
            "audit.on_full must be continue or refuse (from file box.yaml: audit.on_full)");
    refused("{\"outputs\": {\"max_mb\": -1}}", NULL,
            "outputs.max_mb must be a number from 0 to 1048576 (from file box.yaml: "
            "outputs.max_mb)");
    refused("{\"audit\": {\"enabled\": \"perhaps\"}}", NULL,
            "audit.enabled must be true or false (from file box.yaml: audit.enabled)");
    refused("{\"box\": {\"profile\": 7}}", NULL,
            "box.local.profile must be text (from file box.yaml: box.profile)");
    refused("{\"box\": {\"local\": {\"allowed_mount_roots\": [1]}}}", NULL,
            "box.local.allowed_mount_roots must be a list of paths (from file box.yaml: "
            "box.local.allowed_mount_roots)");
    refused("{\"box\": {\"local\": {\"allowed_mount_roots\": [\"/\"]}}}", NULL,
            "box.local.allowed_mount_roots (from file box.yaml: box.local.allowed_mount_roots): "
            "the whole file system cannot be allowed");
    refused("{\"box\": {\"local\": {\"session_id_template\": \"{a.b}\"}}}", NULL,
            "session id template has a brace that is not part of {name}, {{ or }} "
            "(box.local.session_id_template from file box.yaml: box.local.session_id_template)");
}

static void a_misspelt_setting_is_told(void **state)
{
    refused("{\"box\": {\"local\": {\"alowed_mount_roots\": []}}}", NULL,
            "box.yaml: unknown setting 'box.local.alowed_mount_roots'");
    refused("{\"bocks\": {}}", NULL, "box.yaml: unknown setting 'bocks'");
    refused("{\"box\": 7}", NULL, "box.yaml: 'box' must be a section");
}

/* A host's whole file can be used as it is. */
static void what_belongs_to_others_is_left_alone(void **state)
{
    AUTO(policy)
    struct policy *p = policy_good(
        "{\"box\": {\"enabled\": true, \"backend\": \"local\", \"runtime\": {\"endpoint\": \"\"}, "
        "\"limits\": {\"max_sessions\": 64}, \"admission\": {\"required\": false}, \"e2b\": "
        "{\"api_key\": \"s\"}, \"docker\": {\"cpu_limit_enabled\": true}, \"default_memory_mb\": "
        "1536, \"local\": {\"skills_root\": \"skills\"}}, \"mcp\": {\"lifecycle_concurrency\": "
        "16}, \"system\": {\"x\": 1}}");
    assert_non_null(p);
}

static void boxds_own_list_stands_in_for_one_that_is_not_given(void **state)
{
    char *const outer[] = {(char[]){"/home"}, (char[]){"/srv"}, NULL};
    const struct policy_options options = {.file_name = "-", .cwd = "/", .outer_roots = outer};
    AUTO(policy) struct policy *p = NULL;
    struct err err = {0};
    assert_int_equal(policy_new(&options, &p, &err), 0);
    assert_int_equal(strv_len(policy_settings(p)->mount_roots), 2);
    assert_string_equal(source_of(p, "box.local.allowed_mount_roots"),
                        "allowed_mount_roots of boxd");
}

/* With the file system. */

static char dir[] = "/tmp/box-policy-XXXXXX";

static int make_dir(void **state)
{
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int remove_dir(void **state)
{
    return path_remove_tree_at(AT_FDCWD, dir);
}

static struct policy *resolved(const char *format)
{
    AUTO_FREE char *text = NULL;
    AUTO(json) struct json *root = NULL;
    struct policy *p = NULL;
    struct err err = {0};
    /* %D stands for the directory. */
    const char *at = format;
    while ((at = strstr(format, "%D")) != NULL) {
        char *next = xasprintf("%.*s%s%s", (int)(at - format), format, dir, at + 2);
        free(text);
        text = next;
        format = text;
    }
    root = parse(format);
    const struct policy_options options = {
        .file = root, .file_name = "f", .cwd = dir, .resolve = path_real};
    if (policy_new(&options, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return p;
}

static void test_row_T10_the_default_workspace_is_made(void **state)
{
    AUTO(policy)
    struct policy *p = resolved("{\"box\": {\"default_host_workspace\": \"%D/a/b/w\", "
                                "\"allowed_host_mount_roots\": [\"%D\"]}}");
    struct stat st;
    struct err err = {0};
    assert_int_equal(policy_ensure_workspace(p, &err), 0);
    assert_int_equal(stat(policy_settings(p)->default_workspace, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(policy_ensure_workspace(p, &err), 0); /* it is there */
}

static void a_workspace_that_cannot_be_made_is_told(void **state)
{
    static const struct {
        const char *file, *want;
    } cases[] = {
        {"{\"box\": {\"default_host_workspace\": \"%D/new\"}}",
         "default_workspace cannot be created because no allowed_mount_roots are configured"},
        {"{\"box\": {\"default_host_workspace\": \"/nonexistent/w\", \"allowed_host_mount_roots\": "
         "[\"/srv\"]}}",
         "default_host_workspace is outside allowed_host_mount_roots: /srv (it is /nonexistent/w)"},
        {"{\"box\": {\"local\": {\"default_workspace\": \"%D/file\"}}}",
         "default_workspace must point to a directory on the host"},
    };
    AUTO_FREE char *file = xasprintf("%s/file", dir);
    int fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(policy) struct policy *p = resolved(cases[i].file);
        struct err err = {0};
        assert_true(policy_ensure_workspace(p, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.msg, cases[i].want);
    }
    AUTO(policy) struct policy *none = policy_good("{}");
    assert_int_equal(policy_ensure_workspace(none, NULL), 0);
}

/* A root can be named by a link; what is mounted is named by where it leads. */
static void a_root_is_resolved_once(void **state)
{
    AUTO_FREE char *link = xasprintf("%s/link", dir), *real = xasprintf("%s/real", dir),
                   *asked = xasprintf("%s/link/x", dir), *want = xasprintf("%s/real/x", dir);
    AUTO_FREE char *got = NULL, *again = NULL;
    struct err err = {0};
    assert_int_equal(mkdir(real, 0700), 0);
    assert_int_equal(symlink("real", link), 0);
    AUTO(policy)
    struct policy *p = resolved("{\"box\": {\"local\": {\"host_root\": \"%D/link\"}}}");
    assert_string_equal(policy_settings(p)->mount_roots[0], real);
    assert_true(str_starts(policy_settings(p)->default_workspace, real));
    /* host_root was resolved already; a list keeps both spellings. */
    AUTO(policy)
    struct policy *q = resolved("{\"box\": {\"local\": {\"allowed_mount_roots\": [\"%D/link\"]}}}");
    assert_int_equal(policy_check_mount(q, asked, &got, &err), 0);
    assert_string_equal(got, want);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("/etc", link), 0);
    assert_int_equal(policy_check_mount(q, asked, &again, &err), 0);
    assert_string_equal(again, want);
}

static void a_path_that_does_not_exist_keeps_its_end(void **state)
{
    AUTO_FREE char *real = path_real("/usr/./nonexistent-box/a/../b");
    AUTO_FREE char *root = path_real("/");
    AUTO_FREE char *top = path_real("/nonexistent-box");
    assert_string_equal(real, "/usr/nonexistent-box/b");
    assert_string_equal(root, "/");
    assert_string_equal(top, "/nonexistent-box");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said_gives_the_defaults),
        cmocka_unit_test(test_row_I06_the_output_limit_is_a_setting),
        cmocka_unit_test(test_row_I04_both_shapes_are_read_and_the_nested_wins),
        cmocka_unit_test(test_row_T11_workspace_and_root_derive_from_the_shared_root),
        cmocka_unit_test(relative_paths_start_where_their_shape_says),
        cmocka_unit_test(the_environment_wins_over_the_file),
        cmocka_unit_test(names_of_variables_follow_the_hosts_rule),
        cmocka_unit_test(an_empty_variable_is_an_empty_text_and_no_number),
        cmocka_unit_test(the_switch_is_off_only_when_it_says_so),
        cmocka_unit_test(a_gate_that_is_not_clearly_open_is_shut),
        cmocka_unit_test(entries_of_a_workspace_are_clamped),
        cmocka_unit_test(test_row_T24_an_unknown_profile_is_told_at_once),
        cmocka_unit_test(mistakes_name_the_setting_and_its_source),
        cmocka_unit_test(a_misspelt_setting_is_told),
        cmocka_unit_test(what_belongs_to_others_is_left_alone),
        cmocka_unit_test(boxds_own_list_stands_in_for_one_that_is_not_given),
        cmocka_unit_test(test_row_T10_the_default_workspace_is_made),
        cmocka_unit_test(a_workspace_that_cannot_be_made_is_told),
        cmocka_unit_test(a_root_is_resolved_once),
        cmocka_unit_test(a_path_that_does_not_exist_keeps_its_end),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
