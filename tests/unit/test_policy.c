/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/strv.h"
#include "policy/authz.h"
#include "spec/model.h"
#include "spec/profile.h"
#include "spec/spec.h"

static const struct policy_request plain;

/* The seeds' make_query (I03). */
static struct json *query(int id)
{
    char text[512];
    (void)snprintf(
        text, sizeof(text),
        "{\"query_id\": %d, \"launcher_type\": \"person\", \"launcher_id\": "
        "\"test_user\", \"sender_id\": \"test_user\", \"variables\": {\"launcher_type\": "
        "\"person\", \"launcher_id\": \"test_user\", \"sender_id\": \"test_user\", "
        "\"query_id\": \"%d\"}}",
        id, id);
    return parse(text);
}

static struct spec *tool(const struct policy *p, const char *arguments)
{
    AUTO(json) struct json *q = query(7), *a = parse(arguments);
    struct spec *s = NULL;
    struct err err = {0};
    const struct policy_request request = {.query = q};
    if (policy_tool_spec(p, &request, a, &s, NULL, &err) < 0)
        fail_msg("%s: %s", arguments, err.msg);
    return s;
}

static int payload_with(const struct policy *p, const struct policy_request *request,
                        const char *text, struct spec **ret, struct policy_decision *d,
                        struct err *err)
{
    AUTO(json) struct json *v = parse(text);
    *err = (struct err){0};
    return policy_payload_spec(p, request, v, ret, d, err);
}

static struct spec *payload(const struct policy *p, const char *text)
{
    struct spec *s = NULL;
    struct err err;
    if (payload_with(p, &plain, text, &s, NULL, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return s;
}

static void refused(const struct policy *p, const char *text, const char *message)
{
    AUTO(spec) struct spec *s = NULL;
    struct err err;
    assert_true(payload_with(p, &plain, text, &s, NULL, &err) < 0);
    assert_int_equal(err.code, strstr(message, "host_path") != NULL ? ERR_DENIED : ERR_INVALID);
    assert_string_equal(err.msg, message);
}

static void test_row_T06_the_session_is_named_after_the_query(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"pwd\"}");
    assert_string_equal(s->session_id, "person_test_user");
    assert_string_equal(s->cmd, "pwd");
}

static void test_row_T08_a_host_path_below_an_allowed_root_is_taken(void **state)
{
    AUTO(policy)
    struct policy *p = policy_good("{\"box\": {\"allowed_host_mount_roots\": [\"/srv/a\"]}}");
    AUTO(spec)
    struct spec *s = payload(p, "{\"cmd\": \"pwd\", \"host_path\": \"/srv/a/w\", "
                                "\"host_path_mode\": \"rw\", \"session_id\": \"11\"}");
    assert_string_equal(s->host_path, "/srv/a/w");
    assert_int_equal(s->host_path_mode, MOUNT_RW);
    assert_string_equal(s->session_id, "11");
}

static void test_row_T09_the_default_workspace_stands_in_for_a_missing_host_path(void **state)
{
    AUTO(policy)
    struct policy *p = policy_good("{\"box\": {\"default_host_workspace\": \"/srv/a/default\", "
                                   "\"allowed_host_mount_roots\": [\"/srv/a\"]}}");
    static const char *const open[] = {
        "{\"session_id\": \"s\"}",
        "{\"session_id\": \"s\", \"host_path\": null}",
        "{\"session_id\": \"s\", \"host_path\": \"\"}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(open); i++) {
        AUTO(spec) struct spec *s = payload(p, open[i]);
        assert_string_equal(s->host_path, "/srv/a/default");
    }
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"pwd\"}");
    assert_string_equal(s->host_path, "/srv/a/default");
}

static void test_row_T12_a_host_path_outside_the_roots_is_refused(void **state)
{
    AUTO(policy)
    struct policy *p =
        policy_good("{\"box\": {\"allowed_host_mount_roots\": [\"/srv/a\", \"/srv/b/\"]}}");
    static const char *const outside[] = {"/srv",      "/srv/ab",     "/srv/a/../c",
                                          "/srv/a/..", "/etc/passwd", "/srv/a/../../etc"};
    char text[128];
    for (size_t i = 0; i < ARRAY_SIZE(outside); i++) {
        (void)snprintf(text, sizeof(text), "{\"host_path\": \"%s\", \"session_id\": \"12\"}",
                       outside[i]);
        AUTO_FREE char *said = xasprintf(
            "host_path is outside allowed_host_mount_roots: /srv/a, /srv/b (it is %s)", outside[i]);
        refused(p, text, said);
    }
    refused(p, "{\"host_path\": \"C:\\\\x\", \"session_id\": \"12\"}",
            "host_path is outside allowed_host_mount_roots: /srv/a, /srv/b (it is C:\\x)");
    refused(p,
            "{\"session_id\": \"12\", \"extra_mounts\": [{\"host_path\": \"/srv/a\", "
            "\"mount_path\": \"/a\"}, {\"host_path\": \"/srv/c\", \"mount_path\": \"/c\"}]}",
            "extra_mounts.1: host_path is outside allowed_host_mount_roots: /srv/a, /srv/b (it is "
            "/srv/c)");
}

static void without_roots_nothing_is_mounted(void **state)
{
    AUTO(policy) struct policy *flat = policy_good(FLAT());
    AUTO(policy) struct policy *nested = policy_good("{}");
    refused(flat, "{\"host_path\": \"/srv/a\", \"session_id\": \"s\"}",
            "host_path mounting is disabled because no allowed_host_mount_roots are configured");
    refused(nested, "{\"host_path\": \"/srv/a\", \"session_id\": \"s\"}",
            "host_path mounting is disabled because no allowed_mount_roots are configured");
}

static void what_is_mounted_is_what_was_checked(void **state)
{
    AUTO(policy)
    struct policy *p = policy_good("{\"box\": {\"allowed_host_mount_roots\": [\"/srv/a\"]}}");
    AUTO(spec)
    struct spec *s =
        payload(p, "{\"session_id\": \"s\", \"host_path\": \"/srv//a/./x/../y/\", "
                   "\"extra_mounts\": [{\"host_path\": \"/tmp/../srv/a/z\", \"mount_path\": "
                   "\"/z\"}, {\"host_path\": \"/etc\", \"mount_path\": \"/e\", \"mode\": "
                   "\"none\"}]}");
    assert_string_equal(s->host_path, "/srv/a/y");
    assert_string_equal(s->extra_mounts[0].host_path, "/srv/a/z");
}

static void test_row_F24_an_administrators_mount_is_not_checked(void **state)
{
    static const struct policy_request admin = {.skip_mount_check = true};
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec) struct spec *s = NULL;
    struct err err;
    assert_int_equal(payload_with(p, &admin,
                                  "{\"session_id\": \"mcp-1\", \"host_path\": \"/opt/server\"}", &s,
                                  NULL, &err),
                     0);
    assert_string_equal(s->host_path, "/opt/server");
}

static void test_row_T19_the_default_profile_fills_what_is_open(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"echo hi\"}");
    assert_int_equal(s->network, NETWORK_OFF);
    assert_string_equal(s->image, "python:3.11-slim");
    assert_int_equal(s->timeout_sec, 30);
}

static void test_row_T20_what_is_not_locked_can_be_overridden(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec)
    struct spec *s = payload(
        p, "{\"cmd\": \"x\", \"timeout_sec\": 60, \"network\": \"on\", \"session_id\": \"31\"}");
    assert_int_equal(s->timeout_sec, 60);
    assert_int_equal(s->network, NETWORK_ON);
}

static void test_row_T21_what_is_locked_cannot(void **state)
{
    AUTO(policy) struct policy *p = policy_good("{\"box\": {\"profile\": \"offline_readonly\"}}");
    AUTO(spec) struct spec *s = NULL;
    struct policy_decision d;
    struct err err;
    assert_int_equal(payload_with(p, &plain,
                                  "{\"cmd\": \"x\", \"network\": \"on\", \"host_path_mode\": "
                                  "\"rw\", \"cpus\": 2, \"session_id\": \"32\"}",
                                  &s, &d, &err),
                     0);
    assert_int_equal(s->network, NETWORK_OFF);
    assert_int_equal(s->host_path_mode, MOUNT_RO);
    assert_true(s->cpus == 2.0);
    assert_string_equal(d.profile->name, "offline_readonly");
    assert_int_equal(d.overridden, FIELD_BIT(SPEC_NETWORK) | FIELD_BIT(SPEC_HOST_PATH_MODE));
    assert_false(d.clamped);
}

/* T23 too: what can be taken for a number is clamped like one. */
static void test_row_T22_row_T23_a_long_timeout_is_clamped(void **state)
{
    static const struct {
        const char *given;
        int64_t want;
        bool clamped;
    } cases[] = {
        {"999", 120, true},        {"\"999\"", 120, true},   {"999.0", 120, true},
        {"\" 999 \"", 120, true},  {"\"1_000\"", 120, true}, {"\"+121\"", 120, true},
        {"\"120.0\"", 120, false}, {"120", 120, false},      {"\"12.0\"", 12, false},
        {"true", 1, false},        {"1e18", 120, true},
    };
    AUTO(policy) struct policy *p = policy_good(FLAT());
    char text[128];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(spec) struct spec *s = NULL;
        struct policy_decision d;
        struct err err;
        (void)snprintf(text, sizeof(text), "{\"session_id\": \"s\", \"timeout_sec\": %s}",
                       cases[i].given);
        assert_int_equal(payload_with(p, &plain, text, &s, &d, &err), 0);
        assert_int_equal(s->timeout_sec, cases[i].want);
        assert_int_equal(d.clamped, cases[i].clamped);
    }
}

static void what_is_no_number_is_refused(void **state)
{
    static const char *const bad[] = {"999.5", "\"12.5\"", "\"1e3\"", "\"0x10\"", "\"\"", "\"abc\"",
                                      "null",  "[1]",      "0",       "-5",       "false"};
    AUTO(policy) struct policy *p = policy_good(FLAT());
    char text[128];
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        AUTO(spec) struct spec *s = NULL;
        struct err err;
        (void)snprintf(text, sizeof(text), "{\"session_id\": \"s\", \"timeout_sec\": %s}", bad[i]);
        assert_true(payload_with(p, &plain, text, &s, NULL, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

static void test_row_T26_the_default_profile_limits_resources(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"echo hi\"}");
    const struct profile *d = NULL;
    assert_int_equal(policy_profile(p, NULL, &d, NULL), 0);
    assert_true(s->cpus == d->cpus && s->cpus == 1.0);
    assert_int_equal(s->memory_mb, d->memory_mb);
    assert_int_equal(s->pids_limit, d->pids_limit);
    assert_int_equal(s->read_only_rootfs, d->read_only_rootfs);
    assert_int_equal(s->workspace_quota_mb, d->workspace_quota_mb);
}

static void test_row_T27_the_configured_quota_reaches_the_spec(void **state)
{
    AUTO(policy)
    struct policy *p =
        policy_good("{\"box\": {\"workspace_quota_mb\": 32, \"shared_host_root\": \"/srv\"}}");
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"echo hi\"}");
    AUTO(spec) struct spec *own = payload(p, "{\"session_id\": \"s\", \"workspace_quota_mb\": 7}");
    assert_int_equal(s->workspace_quota_mb, 32);
    assert_int_equal(own->workspace_quota_mb, 7);
}

static void test_row_T30_offline_readonly_locks_the_root(void **state)
{
    AUTO(policy) struct policy *p = policy_good("{\"box\": {\"profile\": \"offline_readonly\"}}");
    AUTO(spec)
    struct spec *s =
        payload(p, "{\"cmd\": \"echo hi\", \"read_only_rootfs\": false, \"session_id\": \"41\"}");
    assert_true(s->read_only_rootfs);
}

static void test_row_T31_network_extended_is_roomier(void **state)
{
    AUTO(policy) struct policy *p = policy_good("{\"box\": {\"profile\": \"network_extended\"}}");
    AUTO(spec) struct spec *s = tool(p, "{\"command\": \"echo hi\"}");
    assert_int_equal(s->network, NETWORK_ON);
    assert_true(s->cpus == 2.0);
    assert_int_equal(s->memory_mb, 1024);
    assert_false(s->read_only_rootfs);
}

static void a_model_decides_about_its_command_only(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(spec)
    struct spec *s =
        tool(p, "{\"command\": \"id\", \"workdir\": \"/tmp\", \"timeout_sec\": 5, \"env\": "
                "{\"A\": \"1\"}, \"network\": \"on\", \"image\": \"evil\", \"host_path\": \"/\", "
                "\"session_id\": \"other\", \"mount_path\": \"/x\", \"memory_mb\": 99999, "
                "\"extra_mounts\": [{\"host_path\": \"/etc\", \"mount_path\": \"/e\"}], "
                "\"persistent\": true, \"cmd\": \"rm\", \"nonsense\": 1}");
    assert_string_equal(s->cmd, "id");
    assert_string_equal(s->workdir, "/tmp");
    assert_int_equal(s->timeout_sec, 5);
    assert_int_equal(strv_len(s->env), 1);
    assert_string_equal(s->env[0], "A=1");
    assert_int_equal(s->network, NETWORK_OFF);
    assert_string_equal(s->image, "python:3.11-slim");
    assert_null(s->host_path);
    assert_string_equal(s->session_id, "person_test_user");
    assert_string_equal(s->mount_path, "/workspace");
    assert_int_equal(s->memory_mb, 512);
    assert_int_equal(s->n_extra_mounts, 0);
    assert_false(s->persistent);
}

static void a_tool_call_without_a_command_is_refused(void **state)
{
    static const char *const bad[] = {"{}", "{\"command\": null}", "{\"command\": [\"ls\"]}"};
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(json) struct json *q = query(1);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        AUTO(json) struct json *a = parse(bad[i]);
        AUTO(spec) struct spec *s = NULL;
        struct err err = {0};
        const struct policy_request request = {.query = q};
        assert_true(policy_tool_spec(p, &request, a, &s, NULL, &err) < 0);
        assert_string_equal(err.msg, "command must be text");
    }
}

/* Mounts of the daemon itself are not asked about. */
static void own_mounts_are_added_to_a_tool_call(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    AUTO(json) struct json *q = query(1), *a = parse("{\"command\": \"ls\"}");
    AUTO(json)
    struct json *mounts =
        parse("[{\"host_path\": \"/var/lib/skills/x\", \"mount_path\": \"/workspace/.skills/x\"}]");
    const struct policy_request request = {.query = q, .own_mounts = mounts};
    AUTO(spec) struct spec *s = NULL;
    struct err err = {0};
    assert_int_equal(policy_tool_spec(p, &request, a, &s, NULL, &err), 0);
    assert_int_equal(s->n_extra_mounts, 1);
    assert_string_equal(s->extra_mounts[0].host_path, "/var/lib/skills/x");
}

static void a_request_may_choose_a_profile(void **state)
{
    AUTO(policy) struct policy *p = policy_good(FLAT());
    const struct policy_request basic = {.profile = "network_basic"};
    const struct policy_request none = {.profile = "nope"};
    AUTO(spec) struct spec *s = NULL, *t = NULL;
    struct err err;
    assert_int_equal(payload_with(p, &basic, "{\"session_id\": \"s\"}", &s, NULL, &err), 0);
    assert_int_equal(s->network, NETWORK_ON);
    assert_true(payload_with(p, &none, "{\"session_id\": \"s\"}", &t, NULL, &err) < 0);
    assert_string_equal(err.msg,
                        "unknown box profile 'nope', available profiles: default, network_basic, "
                        "network_extended, offline, offline_readonly");
}

/* Names of sessions. */

static char *name_of(const char *config, const char *query_text)
{
    AUTO(policy) struct policy *p = policy_good(config);
    AUTO(json) struct json *q = parse(query_text);
    struct err err = {0};
    char *id = NULL;
    if (policy_session_id(p, q, &id, &err) < 0)
        return xasprintf("error: %s", err.msg);
    return id;
}

static void test_row_T58_a_query_without_a_launcher_has_a_session_of_its_own(void **state)
{
    static const struct {
        const char *query, *want;
    } cases[] = {
        {"{\"query_id\": 42}", "42"},
        {"{\"query_id\": \"42\", \"variables\": {}}", "42"},
        {"{\"query_id\": 42, \"launcher_type\": null, \"launcher_id\": \"\"}", "42"},
        {"{\"variables\": {\"query_id\": \"9\"}}", "9"},
        {"{}", "unknown"},
        /* Half a launcher is one. */
        {"{\"query_id\": 42, \"launcher_type\": \"group\"}", "group_42"},
        {"{\"query_id\": 42, \"launcher_id\": 5}", "query_5"},
        {"{\"query_id\": 42, \"variables\": {\"launcher_id\": \"x\", \"launcher_type\": \"g\"}}",
         "g_x"},
        /* What the variables say wins. */
        {"{\"launcher_type\": \"person\", \"launcher_id\": \"a\", \"variables\": {\"launcher_id\": "
         "\"b\"}}",
         "person_b"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *id = name_of(FLAT(), cases[i].query);
        assert_string_equal(id, cases[i].want);
    }
}

static void templates_are_filled_from_the_query(void **state)
{
    static const struct {
        const char *template, *want;
    } cases[] = {
        {"{global}", "global"},
        {"{launcher_type}_{launcher_id}_{sender_id}", "person_u_u"},
        {"{launcher_type}_{launcher_id}_{conversation_id}", "person_u_c1"},
        {"{query_id}", "7"},
        {"{nothing}-{flag}-{n}-{x}", "unknown-True-3-1.5"},
        {"{{{query_id}}}", "{7}"},
        {"plain", "plain"},
        {"{pipeline_config}", "unknown"},
    };
    char text[512];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"query_id\": 7, \"launcher_type\": \"person\", \"launcher_id\": \"u\", "
                       "\"variables\": {\"conversation_id\": \"c1\", \"flag\": true, \"n\": 3, "
                       "\"x\": 1.5}, \"pipeline_config\": {\"ai\": {\"local-agent\": "
                       "{\"box-session-id-template\": \"%s\"}}}}",
                       cases[i].template);
        AUTO_FREE char *id = name_of(FLAT(), text);
        assert_string_equal(id, cases[i].want);
    }
}

static void a_template_can_name_and_nothing_else(void **state)
{
    static const char *const bad[] = {"{query_id.__class__}",
                                      "{query_id[0]}",
                                      "{query_id!r}",
                                      "{query_id:>9}",
                                      "{}",
                                      "{",
                                      "a}",
                                      "{query_id",
                                      "{a b}"};
    char text[256];
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct err err = {0};
        assert_true(policy_template_check(bad[i], &err) < 0);
        (void)snprintf(text, sizeof(text), "{\"query_id\": 1, \"session_id_template\": \"%s\"}",
                       bad[i]);
        AUTO_FREE char *id = name_of(FLAT(), text);
        assert_true(str_starts(id, "error: session id template has a brace"));
    }
}

static void the_forced_template_wins(void **state)
{
    AUTO_FREE char *forced = name_of(
        "{\"system\": {\"limitation\": {\"force_box_session_id_template\": \"one-{sender_id}\"}}}",
        "{\"query_id\": 1, \"sender_id\": \"s\", \"session_id_template\": \"{global}\"}");
    AUTO_FREE char *own =
        name_of("{\"box\": {\"local\": {\"session_id_template\": \"q-{query_id}\"}}}",
                "{\"query_id\": 1, \"session_id_template\": \"{global}\"}");
    AUTO_FREE char *configured =
        name_of("{\"box\": {\"local\": {\"session_id_template\": \"q-{query_id}\"}}}",
                "{\"query_id\": 1, \"session_id_template\": \"\"}");
    assert_string_equal(forced, "one-s");
    assert_string_equal(own, "global");
    assert_string_equal(configured, "q-1");
}

static void a_name_is_refused_rather_than_cut(void **state)
{
    char text[1200];
    (void)snprintf(text, sizeof(text), "{\"query_id\": \"%0512d\"}", 0);
    AUTO_FREE char *fits = name_of(FLAT(), text);
    assert_int_equal(strlen(fits), 512);
    (void)snprintf(text, sizeof(text), "{\"query_id\": \"%0513d\"}", 0);
    AUTO_FREE char *over = name_of(FLAT(), text);
    assert_string_equal(over, "error: session_id must be at most 512 bytes");
    AUTO_FREE char *nul = name_of(FLAT(), "{\"query_id\": \"a\\u0000b\"}");
    assert_string_equal(nul, "error: session_id must not contain NUL");
}

static void the_id_of_a_query_is_text(void **state)
{
    AUTO(json) struct json *q = parse("{\"query_id\": 42}"), *none = parse("{}");
    AUTO_FREE char *id = policy_query_id(q), *empty = policy_query_id(none),
                   *nothing = policy_query_id(NULL);
    assert_string_equal(id, "42");
    assert_string_equal(empty, "");
    assert_string_equal(nothing, "");
}

/* Profiles of the configuration. */

static void a_profile_extends_another_and_is_at_least_as_tight(void **state)
{
    AUTO(policy)
    struct policy *p = policy_good(
        "{\"box\": {\"local\": {\"profile\": \"student\", \"host_root\": \"/srv\"}}, "
        "\"profiles\": {\"student\": {\"extends\": \"offline_readonly\", \"memory_mb\": 128, "
        "\"max_timeout_sec\": 45, \"locked\": [\"env\", \"extra_mounts\", \"host_path\", "
        "\"mount_path\", \"persistent\", \"memory_mb\"]}}}");
    AUTO(spec)
    struct spec *s = payload(
        p, "{\"session_id\": \"s\", \"network\": \"on\", \"memory_mb\": 4096, \"env\": {\"A\": "
           "\"1\"}, \"extra_mounts\": [{\"host_path\": \"/etc\", \"mount_path\": \"/e\"}], "
           "\"host_path\": \"/etc\", \"mount_path\": \"/m\", \"persistent\": true, "
           "\"timeout_sec\": 46}");
    assert_int_equal(s->network, NETWORK_OFF); /* the lock was inherited */
    assert_int_equal(s->memory_mb, 128);
    assert_null(s->env);
    assert_int_equal(s->n_extra_mounts, 0);
    assert_string_equal(s->host_path, "/srv/default");
    assert_string_equal(s->mount_path, "/workspace");
    assert_false(s->persistent);
    assert_int_equal(s->timeout_sec, 45);
    assert_string_equal(policy_profile_at(p, 5)->name, "student");
    assert_null(policy_profile_at(p, 6));
}

static void wrong_profiles_are_told(void **state)
{
    static const struct {
        const char *profiles, *want;
    } cases[] = {
        {"{\"default\": {}}", "box.yaml: profile 'default': it is built in"},
        {"{\"a b\": {}}", "box.yaml: profile 'a b': names are letters, digits, '-' and '_'"},
        {"{\"x\": {\"extends\": \"y\"}}",
         "box.yaml: profile 'x': unknown box profile 'y', available profiles: default, "
         "network_basic, network_extended, offline, offline_readonly"},
        {"{\"x\": {\"memory_mb\": 8}}", "box.yaml: profile 'x': memory_mb must be at least 32"},
        {"{\"x\": {\"locked\": [\"cmd\"]}}", "box.yaml: profile 'x': 'cmd' cannot be locked"},
        {"{\"x\": {\"locked\": [\"nope\"]}}", "box.yaml: profile 'x': 'nope' cannot be locked"},
        {"{\"x\": {\"timeout_sec\": 200}}",
         "box.yaml: profile 'x': timeout_sec is above max_timeout_sec"},
        {"{\"x\": {\"memroy_mb\": 64}}",
         "box.yaml: profile 'x': memroy_mb: Extra inputs are not permitted"},
        {"[]", "box.yaml: profiles must be a section"},
    };
    char text[256];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(policy) struct policy *p = NULL;
        struct err err;
        (void)snprintf(text, sizeof(text), "{\"profiles\": %s}", cases[i].profiles);
        assert_true(policy_from(text, NULL, &p, &err) < 0);
        assert_string_equal(err.msg, cases[i].want);
    }
}

/* What a token may do bounds what its requests become. */
static void a_scope_bounds_the_request(void **state)
{
    static const struct {
        const char *profile, *payload, *want; /* NULL: it is taken */
    } cases[] = {
        {NULL, "{\"session_id\": \"ci-1\"}", NULL},
        {"network_basic", "{\"session_id\": \"ci-1\"}",
         "token 'ci' may not use the profile 'network_basic'"},
        {NULL, "{\"session_id\": \"ci-1\", \"network\": \"on\"}",
         "token 'ci' may not use sessions with network on"},
        {NULL, "{\"session_id\": \"other\"}", "session other not found"},
        {NULL,
         "{\"session_id\": \"ci-1\", \"host_path\": \"/srv/data/x\", \"host_path_mode\": "
         "\"ro\"}",
         NULL},
        {NULL, "{\"session_id\": \"ci-1\", \"host_path\": \"/srv/data/x\"}",
         "token 'ci' may not mount '/srv/data/x' for writing"},
        {NULL,
         "{\"session_id\": \"ci-1\", \"host_path\": \"/srv/database\", \"host_path_mode\": "
         "\"ro\"}",
         "token 'ci' may not mount '/srv/database' at all"},
        {NULL,
         "{\"session_id\": \"ci-1\", \"extra_mounts\": [{\"host_path\": \"/srv/x\", "
         "\"mount_path\": \"/x\", \"mode\": \"ro\"}]}",
         "extra_mounts.0: token 'ci' may not mount '/srv/x' at all"},
    };
    AUTO(policy) struct policy *p = policy_good("{\"box\": {\"shared_host_root\": \"/srv\"}}");
    AUTO(json)
    struct json *tokens =
        parse("{\"tokens\": [{\"name\": \"ci\", \"token\": \"0123456789abcdef0123456789abcdef\", "
              "\"profiles\": [\"default\"], \"sessions\": [\"ci-*\"], \"tools\": [\"exec\"], "
              "\"mounts\": [{\"path\": \"/srv/data\", \"mode\": \"ro\"}]}]}");
    AUTO(authz) struct authz *a = NULL;
    struct err err = {0};
    assert_int_equal(authz_parse(tokens, &a, &err), 0);
    const struct authz_scope *scope = authz_find(a, "0123456789abcdef0123456789abcdef", 32, 0);
    assert_non_null(scope);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(spec) struct spec *s = NULL;
        const struct policy_request request = {.profile = cases[i].profile, .scope = scope};
        int r = payload_with(p, &request, cases[i].payload, &s, NULL, &err);
        assert_int_equal(r == 0, cases[i].want == NULL);
        assert_string_equal(err.msg, cases[i].want != NULL ? cases[i].want : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T06_the_session_is_named_after_the_query),
        cmocka_unit_test(test_row_T08_a_host_path_below_an_allowed_root_is_taken),
        cmocka_unit_test(test_row_T09_the_default_workspace_stands_in_for_a_missing_host_path),
        cmocka_unit_test(test_row_T12_a_host_path_outside_the_roots_is_refused),
        cmocka_unit_test(without_roots_nothing_is_mounted),
        cmocka_unit_test(what_is_mounted_is_what_was_checked),
        cmocka_unit_test(test_row_F24_an_administrators_mount_is_not_checked),
        cmocka_unit_test(test_row_T19_the_default_profile_fills_what_is_open),
        cmocka_unit_test(test_row_T20_what_is_not_locked_can_be_overridden),
        cmocka_unit_test(test_row_T21_what_is_locked_cannot),
        cmocka_unit_test(test_row_T22_row_T23_a_long_timeout_is_clamped),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(test_row_T26_the_default_profile_limits_resources),
        cmocka_unit_test(test_row_T27_the_configured_quota_reaches_the_spec),
        cmocka_unit_test(test_row_T30_offline_readonly_locks_the_root),
        cmocka_unit_test(test_row_T31_network_extended_is_roomier),
        cmocka_unit_test(a_model_decides_about_its_command_only),
        cmocka_unit_test(a_tool_call_without_a_command_is_refused),
        cmocka_unit_test(own_mounts_are_added_to_a_tool_call),
        cmocka_unit_test(a_request_may_choose_a_profile),
        cmocka_unit_test(test_row_T58_a_query_without_a_launcher_has_a_session_of_its_own),
        cmocka_unit_test(templates_are_filled_from_the_query),
        cmocka_unit_test(a_template_can_name_and_nothing_else),
        cmocka_unit_test(the_forced_template_wins),
        cmocka_unit_test(a_name_is_refused_rather_than_cut),
        cmocka_unit_test(the_id_of_a_query_is_text),
        cmocka_unit_test(a_profile_extends_another_and_is_at_least_as_tight),
        cmocka_unit_test(wrong_profiles_are_told),
        cmocka_unit_test(a_scope_bounds_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
