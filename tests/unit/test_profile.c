/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/profile.h"

/* A policy without a configuration: the built-in profiles. */
static struct policy *bare_policy(void)
{
    const struct policy_options options = {.cwd = "/"};
    struct policy *p = NULL;
    assert_int_equal(policy_new(&options, &p, NULL), 0);
    return p;
}

/* The built-in profile that a policy finds by that name. */
static const struct profile *find(const char *name)
{
    AUTO(policy) struct policy *policy = bare_policy();
    const struct profile *p = NULL;
    assert_int_equal(policy_profile(policy, name, &p, NULL), 0);
    for (size_t i = 0; i < n_profiles; i++)
        if (str_eq(profiles[i].name, p->name))
            return &profiles[i];
    fail_msg("%s is not built in", p->name);
    return NULL;
}

static int build(const struct spec_policy *policy, const char *text, struct spec **ret,
                 struct err *err)
{
    AUTO(json) struct json *v = NULL;
    assert_int_equal(json_parse(text, strlen(text), &v, err), 0);
    return spec_build(v, policy, ret, NULL, err);
}

static struct spec *good(const struct spec_policy *policy, const char *text)
{
    struct spec *s = NULL;
    struct err err = {0};
    if (build(policy, text, &s, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return s;
}

static void bad(const struct spec_policy *policy, const char *text, const char *message)
{
    AUTO(spec) struct spec *s = NULL;
    struct err err = {0};
    assert_true(build(policy, text, &s, &err) < 0);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, message);
}

static void test_row_T25_builtin_profiles_are_consistent(void **state)
{
    const struct profile *normal = find("default");
    const struct profile *offline = find("offline_readonly");
    const struct profile *basic = find("network_basic");
    const struct profile *extended = find("network_extended");

    assert_int_equal(n_profiles, 5);
    assert_int_equal(normal->network, NETWORK_OFF);
    assert_int_equal(normal->locked, 0);
    assert_int_equal(offline->network, NETWORK_OFF);
    assert_int_equal(offline->host_path_mode, MOUNT_RO);
    assert_true(profile_locks(offline, SPEC_NETWORK));
    assert_true(profile_locks(offline, SPEC_HOST_PATH_MODE));
    assert_true(profile_locks(offline, SPEC_READ_ONLY_ROOTFS));
    assert_false(profile_locks(offline, SPEC_CPUS));
    assert_true(offline->max_timeout_sec <= normal->max_timeout_sec);
    assert_int_equal(basic->network, NETWORK_ON);
    assert_true(basic->read_only_rootfs);
    assert_int_equal(extended->network, NETWORK_ON);
    assert_false(extended->read_only_rootfs);
    assert_true(extended->cpus > normal->cpus);
    assert_true(extended->memory_mb > normal->memory_mb);
}

static void profiles_have_the_documented_values(void **state)
{
    static const struct {
        const char *name;
        enum network network;
        enum mount_mode mode;
        double cpus;
        int64_t memory_mb, pids;
        bool read_only;
        int64_t max_timeout;
    } rows[] = {
        {"default", NETWORK_OFF, MOUNT_RW, 1.0, 512, 128, true, 120},
        {"offline", NETWORK_OFF, MOUNT_RW, 1.0, 512, 128, true, 120},
        {"offline_readonly", NETWORK_OFF, MOUNT_RO, 0.5, 256, 64, true, 60},
        {"network_basic", NETWORK_ON, MOUNT_RW, 1.0, 512, 128, true, 120},
        {"network_extended", NETWORK_ON, MOUNT_RW, 2.0, 1024, 256, false, 300},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct profile *p = find(rows[i].name);
        assert_int_equal(p->network, rows[i].network);
        assert_int_equal(p->host_path_mode, rows[i].mode);
        assert_true(fabs(p->cpus - rows[i].cpus) < 1e-12);
        assert_int_equal(p->memory_mb, rows[i].memory_mb);
        assert_int_equal(p->pids_limit, rows[i].pids);
        assert_int_equal(p->read_only_rootfs, rows[i].read_only);
        assert_int_equal(p->max_timeout_sec, rows[i].max_timeout);
        assert_int_equal(p->timeout_sec, 30);
        assert_int_equal(p->workspace_quota_mb, 0);
        assert_string_equal(p->image, "python:3.11-slim");
    }
    for (size_t i = 1; i < n_profiles; i++)
        assert_true(strcmp(profiles[i - 1].name, profiles[i].name) < 0);
}

/* The model's part of T24, which is about the constructor of the policy. */
static void test_row_T24_unknown_profile_is_an_error(void **state)
{
    const struct profile *p = NULL;
    struct err err = {0};

    AUTO(policy) struct policy *policy = bare_policy();
    assert_true(policy_profile(policy, "nope", &p, &err) < 0);
    assert_null(p);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, "unknown box profile 'nope', available profiles: default, "
                                 "network_basic, network_extended, offline, offline_readonly");
}

static void blank_profile_is_the_default(void **state)
{
    assert_string_equal(find(NULL)->name, "default");
    assert_string_equal(find("")->name, "default");
    assert_string_equal(find("  ")->name, "default");
    assert_string_equal(find(" network_basic ")->name, "network_basic");
}

static void test_row_T19_row_T26_default_profile_fills_what_is_absent(void **state)
{
    const struct spec_policy policy = {.profile = find("default")};
    AUTO(spec) struct spec *s = good(&policy, "{\"cmd\":\"echo\",\"session_id\":\"s\"}");

    assert_int_equal(s->network, NETWORK_OFF);
    assert_string_equal(s->image, "python:3.11-slim");
    assert_int_equal(s->timeout_sec, 30);
    assert_true(fabs(s->cpus - 1.0) < 1e-12);
    assert_int_equal(s->memory_mb, 512);
    assert_int_equal(s->pids_limit, 128);
    assert_true(s->read_only_rootfs);
    assert_int_equal(s->workspace_quota_mb, 0);
}

static void test_row_T20_unlocked_fields_can_be_overridden(void **state)
{
    const struct spec_policy policy = {.profile = find("default")};
    AUTO(spec)
    struct spec *s = good(&policy, "{\"session_id\":\"s\",\"timeout_sec\":60,\"network\":\"on\"}");

    assert_int_equal(s->timeout_sec, 60);
    assert_int_equal(s->network, NETWORK_ON);
}

static void test_row_T21_row_T30_locked_fields_cannot_be_overridden(void **state)
{
    const struct spec_policy policy = {.profile = find("offline_readonly")};
    AUTO(spec)
    struct spec *s =
        good(&policy, "{\"session_id\":\"s\",\"network\":\"on\",\"host_path_mode\":\"rw\","
                      "\"read_only_rootfs\":false,\"memory_mb\":300}");

    assert_int_equal(s->network, NETWORK_OFF);
    assert_int_equal(s->host_path_mode, MOUNT_RO);
    assert_true(s->read_only_rootfs);
    assert_int_equal(s->memory_mb, 300);
    assert_true(fabs(s->cpus - 0.5) < 1e-12);

    /* Overwritten before it is looked at, so not even nonsense matters. */
    AUTO(spec) struct spec *t = good(&policy, "{\"session_id\":\"s\",\"network\":17}");
    assert_int_equal(t->network, NETWORK_OFF);
}

static void test_row_T22_row_T23_timeout_is_clamped_after_coercion(void **state)
{
    static const struct {
        const char *json;
        int64_t wanted;
    } rows[] = {
        {"999", 120},
        {"\"999\"", 120},
        {"999.0", 120},
        {"\" 1_000.0 \"", 120},
        {"120", 120},
        {"119", 119},
        {"\"12.0\"", 12},
        {"true", 1},
        {"9223372036854775807", 120},
        {"\"99999999999999999999999\"", 120},
    };
    const struct spec_policy policy = {.profile = find("default")};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char text[128];
        assert_int_equal(
            str_fmt(text, sizeof(text), "{\"session_id\":\"s\",\"timeout_sec\":%s}", rows[i].json),
            0);
        AUTO(spec) struct spec *s = good(&policy, text);
        assert_int_equal(s->timeout_sec, rows[i].wanted);
    }
    bad(&policy, "{\"session_id\":\"s\",\"timeout_sec\":0}",
        "Value error, timeout_sec must be greater than 0");
    bad(&policy, "{\"session_id\":\"s\",\"timeout_sec\":999.5}",
        "Input should be a valid integer, got a number with a fractional part");
    bad(&policy, "{\"session_id\":\"s\",\"timeout_sec\":\"1e3\"}",
        "Input should be a valid integer, unable to parse string as an integer");
    bad(&policy, "{\"session_id\":\"s\",\"timeout_sec\":null}", "Input should be a valid integer");
}

static void test_row_T31_network_extended_has_relaxed_limits(void **state)
{
    const struct spec_policy policy = {.profile = find("network_extended")};
    AUTO(spec) struct spec *s = good(&policy, "{\"session_id\":\"s\",\"timeout_sec\":1000}");

    assert_int_equal(s->network, NETWORK_ON);
    assert_true(fabs(s->cpus - 2.0) < 1e-12);
    assert_int_equal(s->memory_mb, 1024);
    assert_false(s->read_only_rootfs);
    assert_int_equal(s->timeout_sec, 300);
}

static void null_is_not_absent(void **state)
{
    const struct spec_policy policy = {.profile = find("default")};

    bad(&policy, "{\"session_id\":\"s\",\"network\":null}", "Input should be 'off' or 'on'");
    bad(&policy, "{\"session_id\":\"s\",\"memory_mb\":null}", "Input should be a valid integer");
    bad(&policy, "{\"session_id\":\"s\",\"image\":null}", "Input should be a valid string");
    bad(&policy, "{\"session_id\":\"s\",\"env\":null}", "Input should be a valid dictionary");
    bad(&policy, "[]", "Input should be a valid dictionary or instance of BoxSpec");
    bad(&policy, "{}", "Field required");
}

static void default_workspace_stands_in_for_an_open_host_path(void **state)
{
    static const char *const open[] = {"{\"session_id\":\"s\"}",
                                       "{\"session_id\":\"s\",\"host_path\":null}",
                                       "{\"session_id\":\"s\",\"host_path\":\"\"}"};
    const struct spec_policy policy = {.profile = find("default"),
                                       .default_workspace = "/srv/box/default"};
    const struct spec_policy none = {.profile = find("default")};

    for (size_t i = 0; i < ARRAY_SIZE(open); i++) {
        AUTO(spec) struct spec *s = good(&policy, open[i]);
        assert_string_equal(s->host_path, "/srv/box/default");
    }
    AUTO(spec) struct spec *given = good(&policy, "{\"session_id\":\"s\",\"host_path\":\"/x\"}");
    assert_string_equal(given->host_path, "/x");
    bad(&policy, "{\"session_id\":\"s\",\"host_path\":\" \"}",
        "Value error, host_path must be an absolute host path");
    /* With a directory mounted, the rule about workdir applies. */
    bad(&policy, "{\"session_id\":\"s\",\"workdir\":\"/tmp\"}",
        "Value error, workdir must stay under mount_path when host_path is provided");

    AUTO(spec) struct spec *without = good(&none, open[1]);
    assert_null(without->host_path);
    bad(&none, open[2], "Value error, host_path must be an absolute host path");
}

static void test_row_T27_configured_quota_stands_in_for_an_open_one(void **state)
{
    static const char *const open[] = {"{\"session_id\":\"s\"}",
                                       "{\"session_id\":\"s\",\"workspace_quota_mb\":null}",
                                       "{\"session_id\":\"s\",\"workspace_quota_mb\":\"\"}"};
    const struct spec_policy policy = {
        .profile = find("default"), .has_quota = true, .workspace_quota_mb = 32};
    const struct spec_policy none = {.profile = find("default")};

    for (size_t i = 0; i < ARRAY_SIZE(open); i++) {
        AUTO(spec) struct spec *s = good(&policy, open[i]);
        assert_int_equal(s->workspace_quota_mb, 32);
    }
    AUTO(spec)
    struct spec *given = good(&policy, "{\"session_id\":\"s\",\"workspace_quota_mb\":\"5\"}");
    assert_int_equal(given->workspace_quota_mb, 5);
    bad(&none, open[1], "Input should be a valid integer");
}

static void configured_image_stands_in_for_an_absent_one(void **state)
{
    const struct spec_policy policy = {.profile = find("default"), .image = "host"};
    AUTO(spec) struct spec *s = good(&policy, "{\"session_id\":\"s\"}");
    AUTO(spec) struct spec *given = good(&policy, "{\"session_id\":\"s\",\"image\":\"alpine\"}");
    AUTO(spec) struct spec *empty = good(&policy, "{\"session_id\":\"s\",\"image\":\"\"}");

    assert_string_equal(s->image, "host");
    assert_string_equal(given->image, "alpine");
    assert_string_equal(empty->image, "");
}

/* No built-in profile does this, but the order of the steps says who wins. */
static void a_lock_beats_the_configuration(void **state)
{
    struct profile strict = *find("default");
    strict.locked =
        FIELD_BIT(SPEC_IMAGE) | FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB) | FIELD_BIT(SPEC_TIMEOUT_SEC);
    const struct spec_policy policy = {
        .profile = &strict, .image = "host", .has_quota = true, .workspace_quota_mb = 32};
    AUTO(spec) struct spec *s = good(&policy, "{\"session_id\":\"s\",\"timeout_sec\":999}");

    assert_string_equal(s->image, "python:3.11-slim");
    assert_int_equal(s->workspace_quota_mb, 0);
    assert_int_equal(s->timeout_sec, 30);
}

static void quota_of_the_configuration_is_read(void **state)
{
    static const struct {
        const char *json;
        bool given;
        int64_t value;
        const char *message;
    } rows[] = {
        {"null", false, 0, NULL},
        {"\"\"", false, 0, NULL},
        {"0", true, 0, NULL},
        {"\"64\"", true, 64, NULL},
        {"-1", false, 0, "workspace_quota_mb must be greater than or equal to 0"},
        {"\"x\"", false, 0, "workspace_quota_mb must be an integer greater than or equal to 0"},
        {"[]", false, 0, "workspace_quota_mb must be an integer greater than or equal to 0"},
        {"2000000000", false, 0, "workspace_quota_mb must be at most 1073741824"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO(json) struct json *v = NULL;
        struct err err = {0};
        bool given = false;
        int64_t value = 0;
        assert_int_equal(json_parse(rows[i].json, strlen(rows[i].json), &v, &err), 0);
        int r = quota_parse(v, &given, &value, &err);
        assert_int_equal(r < 0, rows[i].message != NULL);
        assert_int_equal(given, rows[i].given);
        assert_int_equal(value, rows[i].value);
        if (rows[i].message)
            assert_string_equal(err.msg, rows[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T25_builtin_profiles_are_consistent),
        cmocka_unit_test(profiles_have_the_documented_values),
        cmocka_unit_test(test_row_T24_unknown_profile_is_an_error),
        cmocka_unit_test(blank_profile_is_the_default),
        cmocka_unit_test(test_row_T19_row_T26_default_profile_fills_what_is_absent),
        cmocka_unit_test(test_row_T20_unlocked_fields_can_be_overridden),
        cmocka_unit_test(test_row_T21_row_T30_locked_fields_cannot_be_overridden),
        cmocka_unit_test(test_row_T22_row_T23_timeout_is_clamped_after_coercion),
        cmocka_unit_test(test_row_T31_network_extended_has_relaxed_limits),
        cmocka_unit_test(null_is_not_absent),
        cmocka_unit_test(default_workspace_stands_in_for_an_open_host_path),
        cmocka_unit_test(test_row_T27_configured_quota_stands_in_for_an_open_one),
        cmocka_unit_test(configured_image_stands_in_for_an_absent_one),
        cmocka_unit_test(a_lock_beats_the_configuration),
        cmocka_unit_test(quota_of_the_configuration_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
