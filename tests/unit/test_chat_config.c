/* SPDX-License-Identifier: Apache-2.0 */

/* The section `sandbox` of the configuration (I12). */

#include "policy_fixture.h"

#include "policy/chat_config.h"

#define SECTION                                                                                    \
    "{\"sandbox\": {\"image\": \"sandbox:latest\", \"ttl_seconds\": 300, "                         \
    "\"cleanup_interval_seconds\": 30, \"chats_root\": \"/srv/chats\", "                           \
    "\"dependencies_host_path\": \"/srv/dependencies\", "                                          \
    "\"lambda_tools_host_path\": \"/srv/lambda-tools\", \"chat_mount_path\": \"/workspace/c\", "   \
    "\"dependencies_mount_path\": \"/workspace/d\", "                                              \
    "\"lambda_tools_mount_path\": \"/workspace/l\"}}"

static const struct chat_config *chat_of(const struct policy *p)
{
    return &policy_settings(p)->chat;
}

static struct policy *with(const char *file, const char *const *env)
{
    struct policy *p = NULL;
    struct err err;
    if (policy_from(file, env, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return p;
}

static void test_row_I12_every_field_of_the_section(void **state)
{
    AUTO(policy) struct policy *p = policy_good(SECTION);
    const struct chat_config *c = chat_of(p);
    struct err err = {0};
    assert_true(chat_configured(c));
    assert_string_equal(c->image, "sandbox:latest");
    assert_int_equal(c->ttl_seconds, 300);
    assert_int_equal(c->cleanup_interval_seconds, 30);
    assert_string_equal(c->chats_root, "/srv/chats");
    assert_string_equal(c->dependencies_host_path, "/srv/dependencies");
    assert_string_equal(c->lambda_tools_host_path, "/srv/lambda-tools");
    assert_string_equal(c->chat_mount_path, "/workspace/c");
    assert_string_equal(c->dependencies_mount_path, "/workspace/d");
    assert_string_equal(c->lambda_tools_mount_path, "/workspace/l");
    assert_int_equal(chat_config_check(c, &err), 0);
}

static void test_row_I12_the_environment_wins(void **state)
{
    AUTO(policy)
    struct policy *p = with(
        SECTION,
        ENV("APP_SANDBOX_IMAGE=other:1", "APP_SANDBOX_TTL_SECONDS=7",
            "APP_SANDBOX_CLEANUP_INTERVAL_SECONDS=8", "APP_SANDBOX_CHATS_ROOT=/x/chats",
            "APP_SANDBOX_DEPENDENCIES_HOST_PATH=/x/d", "APP_SANDBOX_LAMBDA_TOOLS_HOST_PATH=/x/l",
            "APP_SANDBOX_CHAT_MOUNT_PATH=/m/c", "APP_SANDBOX_DEPENDENCIES_MOUNT_PATH=/m/d",
            "APP_SANDBOX_LAMBDA_TOOLS_MOUNT_PATH=/m/l", "APP_SANDBOX_NETWORK_NAME=ignored"));
    const struct chat_config *c = chat_of(p);
    assert_string_equal(c->image, "other:1");
    assert_int_equal(c->ttl_seconds, 7);
    assert_int_equal(c->cleanup_interval_seconds, 8);
    assert_string_equal(c->chats_root, "/x/chats");
    assert_string_equal(c->dependencies_host_path, "/x/d");
    assert_string_equal(c->lambda_tools_host_path, "/x/l");
    assert_string_equal(c->chat_mount_path, "/m/c");
    assert_string_equal(c->dependencies_mount_path, "/m/d");
    assert_string_equal(c->lambda_tools_mount_path, "/m/l");
    assert_string_equal(source_of(p, "sandbox.image"), "environment APP_SANDBOX_IMAGE");
}

static void nothing_said_means_no_chat_sandboxes(void **state)
{
    AUTO(policy) struct policy *p = with("{}", ENV("APP_SANDBOX_TTL_SECONDS="));
    const struct chat_config *c = chat_of(p);
    struct err err = {0};
    assert_false(chat_configured(c));
    assert_int_equal(chat_config_check(c, &err), 0);
    assert_int_equal(c->ttl_seconds, 300);
    assert_int_equal(c->cleanup_interval_seconds, 60);
    assert_string_equal(c->chat_mount_path, "/workspace/chat");
    assert_string_equal(c->dependencies_mount_path, "/workspace/dependencies");
    assert_string_equal(c->lambda_tools_mount_path, "/workspace/lambda-tools");
}

static void what_cannot_be_meant_is_refused(void **state)
{
    static const struct {
        const char *env, *message;
    } cases[] = {
        {"APP_SANDBOX_IMAGE=", "sandbox.image is missing, while sandbox.chats_root is given"},
        {"APP_SANDBOX_CHATS_ROOT=", "sandbox.chats_root is missing, while sandbox.image is given"},
        {"APP_SANDBOX_CHAT_MOUNT_PATH=",
         "sandbox.chat_mount_path is missing, while sandbox.image is given"},
        {"APP_SANDBOX_DEPENDENCIES_HOST_PATH=deps",
         "sandbox.dependencies_host_path must be absolute, without '.', '..', '//' or a '/' at its "
         "end, not 'deps'"},
        {"APP_SANDBOX_LAMBDA_TOOLS_MOUNT_PATH=/a/../b",
         "sandbox.lambda_tools_mount_path must be absolute, without '.', '..', '//' or a '/' at "
         "its end, not '/a/../b'"},
        {"APP_SANDBOX_LAMBDA_TOOLS_MOUNT_PATH=/workspace/c",
         "sandbox.chat_mount_path and sandbox.lambda_tools_mount_path are the same place"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(policy) struct policy *p = with(SECTION, ENV(cases[i].env));
        struct err err = {0};
        assert_true(chat_config_check(chat_of(p), &err) < 0);
        assert_string_equal(err.msg, cases[i].message);
    }
}

static void numbers_have_bounds_and_names_are_known(void **state)
{
    static const char *const bad[] = {
        "{\"sandbox\": {\"ttl_seconds\": 0}}", "{\"sandbox\": {\"ttl_seconds\": \"soon\"}}",
        "{\"sandbox\": {\"cleanup_interval_seconds\": -1}}", "{\"sandbox\": {\"imagee\": \"x\"}}"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct policy *p = NULL;
        struct err err;
        assert_true(policy_from(bad[i], NULL, &p, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_I12_every_field_of_the_section),
        cmocka_unit_test(test_row_I12_the_environment_wins),
        cmocka_unit_test(nothing_said_means_no_chat_sandboxes),
        cmocka_unit_test(what_cannot_be_meant_is_refused),
        cmocka_unit_test(numbers_have_bounds_and_names_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
