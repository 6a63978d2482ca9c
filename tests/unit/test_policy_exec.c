/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_stage.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "policy/error_ring.c"
#include "policy/outputs.c"

static void on_done(void *arg, const struct command_result *result, const struct err *err)
{
    struct stage *s = arg;
    s->n++;
    s->ok = result != NULL;
    s->err = err != NULL ? *err : (struct err){0};
    if (result != NULL) {
        AUTO_DONE(buf) struct buf out;
        struct jw w;
        buf_init(&out, sizeof(s->json) - 1);
        jw_init(&w, &out);
        jw_object(&w);
        command_write_result(result, &w);
        jw_object_end(&w);
        assert_int_equal(jw_end(&w), 0);
        memcpy(s->json, buf_str(&out), out.len + 1);
        memcpy(s->id, result->id, sizeof(s->id));
    }
    command_cancel(TAKE_PTR(s->command));
}

static int begin(struct stage *s, const char *query, const char *arguments, bool cleanup)
{
    AUTO(json) struct json *q = query != NULL ? parse(query) : NULL, *a = parse(arguments);
    static const struct command_events events = {.ended = on_done};
    const struct command_options options = {.request = {.query = q},
                                            .arguments = a,
                                            .via = "test",
                                            .cleanup = cleanup,
                                            .keep = COMMAND_KEEP_CHARS,
                                            .keep_rest = true};
    s->n = 0;
    s->err = (struct err){0};
    return command_start(&s->service, &options, &events, s, &s->command, &s->err);
}

static bool call(struct stage *s, const char *query, const char *arguments)
{
    if (begin(s, query, arguments, false) < 0)
        return false;
    pump(&s->f);
    assert_int_equal(s->n, 1);
    return s->ok;
}

#define QUERY                                                                                      \
    "{\"query_id\": 7, \"launcher_type\": \"person\", \"launcher_id\": \"test_user\", "            \
    "\"sender_id\": \"test_user\"}"

static void test_row_T06_a_tool_call_runs_in_the_session_of_its_query(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    assert_true(call(&s, QUERY, "{\"command\": \"echo hi\"}"));
    assert_string_equal(
        s.json, "{\"session_id\":\"person_test_user\",\"backend\":\"fake\",\"status\":"
                "\"completed\",\"ok\":true,\"exit_code\":0,\"stdout\":\"hi\\n\",\"stderr\":\"\","
                "\"stdout_truncated\":false,\"stderr_truncated\":false,\"duration_ms\":0,"
                "\"outcome\":\"exited\"}");
    assert_non_null(manager_find(s.f.m, "person_test_user"));
    assert_true(call(&s, QUERY, "{\"command\": \"exit 3\"}"));
    assert_non_null(strstr(s.json, "\"ok\":false,\"exit_code\":3"));
    assert_int_equal(fake_creations(s.f.backend), 1);
    expect_log(&s, "\"event\":\"exec_start\",\"who\":\"local\",\"via\":\"test\",\"session\":"
                   "\"person_test_user\",\"query\":\"7\",\"command\":\"echo hi\"");
    expect_log(&s, "\"outcome\":\"exited\",\"exit_code\":3,\"duration_ms\":0,\"stdout_bytes\":0,"
                   "\"stderr_bytes\":0,\"policy\":{\"profile\":\"default\"");
    stage_stop(&s);
}

static void test_row_T07_without_a_backend_nothing_runs(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    s.service.unavailable = "cannot start box-priv";
    assert_false(call(&s, QUERY, "{\"command\": \"echo hello\"}"));
    assert_int_equal(s.err.code, ERR_BACKEND);
    assert_string_equal(error_class_name(s.err.code), "BoxBackendUnavailableError");
    assert_string_equal(
        s.err.msg, "Configured sandbox backend \"fake\" is unavailable: cannot start box-priv");
    assert_int_equal(fake_creations(s.f.backend), 0);
    stage_stop(&s);
}

static void test_row_F22_row_F23_a_runtime_that_did_not_start_degrades_with_a_reason(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct stage s;
    struct jw w;
    buf_init(&out, 4096);
    stage_start(&s, FLAT());
    s.service.manager = NULL;
    s.service.audit = NULL;
    s.service.unavailable = "The state directory is not writable.";
    assert_false(call(&s, QUERY, "{\"command\": \"x\"}"));
    assert_string_equal(s.err.msg,
                        "Box runtime is not available. The state directory is not writable.");
    jw_init(&w, &out);
    jw_object(&w);
    policy_service_write_status(&s.service, NULL, &w);
    jw_object_end(&w);
    assert_string_equal(buf_str(&out),
                        "{\"enabled\":true,\"available\":false,\"profile\":\"default\","
                        "\"recent_error_count\":1,\"connector_error\":\"Box runtime is not "
                        "available. The state directory is not writable.\"}");
    s.service.manager = s.f.m;
    stage_stop(&s);

    stage_start(&s, "{\"box\": {\"enabled\": false}}");
    assert_false(call(&s, QUERY, "{\"command\": \"x\"}"));
    assert_string_equal(s.err.msg, "Box runtime is disabled in config (box.enabled = false)");
    stage_stop(&s);
}

static void test_row_T08_row_T09_workspaces_reach_the_backend(void **state)
{
    struct stage s;
    char text[256], dir[96];
    stage_start(&s, "{\"box\": {\"shared_host_root\": \"%D\"}}");
    (void)snprintf(dir, sizeof(dir), "%s/default", s.dir);
    assert_int_equal(policy_ensure_workspace(s.policy, NULL), 0);
    assert_true(call(&s, QUERY, "{\"command\": \"pwd\"}"));
    assert_string_equal(session_spec(manager_find(s.f.m, "person_test_user"))->host_path, dir);
    (void)snprintf(text, sizeof(text),
                   "{\"cmd\": \"pwd\", \"host_path\": \"%s\", \"host_path_mode\": \"rw\", "
                   "\"session_id\": \"11\"}",
                   s.dir);
    assert_true(call(&s, NULL, text));
    assert_string_equal(session_spec(manager_find(s.f.m, "11"))->host_path, s.dir);
    (void)snprintf(text, sizeof(text), "{\"host_path\": \"%s/missing\", \"session_id\": \"12\"}",
                   s.dir);
    assert_false(call(&s, NULL, text));
    assert_string_equal(s.err.msg, "host_path must point to an existing directory on the host");
    stage_stop(&s);
}

static void test_row_T12_a_foreign_directory_is_refused_and_recorded(void **state)
{
    struct stage s;
    stage_start(&s, "{\"box\": {\"allowed_host_mount_roots\": [\"%D\"]}}");
    assert_false(call(&s, NULL, "{\"host_path\": \"/etc\", \"session_id\": \"12\"}"));
    assert_int_equal(s.err.code, ERR_DENIED);
    assert_int_equal(error_ring_count(s.errors, NULL), 1);
    expect_log(&s, "\"event\":\"denied\",\"who\":\"local\",\"via\":\"test\","
                   "\"outcome\":\"BoxValidationError\",\"reason\":\"host_path is outside");
    stage_stop(&s);
}

static void test_row_T16_row_T18_streams_are_cut_each_for_itself(void **state)
{
    struct stage s;
    struct output_info info;
    char got[600];
    stage_start(&s, "{\"box\": {\"output_limit_chars\": 100}}");
    assert_true(call(&s, QUERY, "{\"command\": \"flood 500; err short\"}"));
    assert_non_null(strstr(s.json, "characters truncated]"));
    assert_non_null(strstr(s.json, "\"stderr\":\"short\\n\",\"stdout_truncated\":true,"
                                   "\"stderr_truncated\":false"));
    /* The whole can be read by its id; what was shown whole is not kept. */
    assert_int_equal(strlen(s.id[0]), 16);
    assert_string_equal(s.id[1], "");
    assert_int_equal(
        outputs_stat(s.outputs, &(struct output_ref){"person_test_user", s.id[0]}, &info, NULL), 0);
    assert_int_equal(info.produced, 500);
    assert_int_equal(outputs_read(s.outputs, &(struct output_ref){"person_test_user", s.id[0]}, 0,
                                  got, sizeof(got), NULL),
                     500);
    assert_int_equal(s.outputs->n, 1);
    stage_stop(&s);
}

static void test_row_T28_a_full_workspace_starts_no_session(void **state)
{
    struct stage s;
    stage_start(&s, "{\"box\": {\"local\": {\"default_workspace\": \"%D\", "
                    "\"allowed_mount_roots\": \"/tmp\", \"workspace_quota_mb\": 1}}}");
    fill(&s, "already-too-large.bin", 2 << 20);
    assert_false(call(&s, QUERY, "{\"command\": \"echo hi\"}"));
    assert_true(str_starts(s.err.msg, "workspace quota exceeded before execution: used="));
    assert_int_equal(s.err.code, ERR_INVALID);
    assert_int_equal(fake_creations(s.f.backend), 0);
    assert_int_equal(error_ring_count(s.errors, NULL), 1);
    expect_log(&s, "\"event\":\"exec_end\"");
    stage_stop(&s);
}

/* The fake command writes nothing: the file comes while it runs. */
static void test_row_T29_a_command_over_the_quota_costs_the_session(void **state)
{
    struct stage s;
    stage_start(&s, "{\"box\": {\"local\": {\"default_workspace\": \"%D\", "
                    "\"allowed_mount_roots\": \"/tmp\", \"workspace_quota_mb\": 1}}}");
    assert_int_equal(begin(&s, QUERY, "{\"command\": \"sleep 50\"}", false), 0);
    pump(&s.f);
    assert_non_null(manager_find(s.f.m, "person_test_user"));
    fill(&s, "output.bin", 2 << 20);
    pass(&s.f, 60 * NSEC_PER_MSEC);
    assert_int_equal(s.n, 1);
    assert_false(s.ok);
    assert_true(str_starts(s.err.msg, "workspace quota exceeded after execution: used="));
    assert_int_equal(fake_creations(s.f.backend), 1);
    assert_null(manager_find(s.f.m, "person_test_user"));
    assert_int_equal(fake_sandboxes(s.f.backend), 0);
    stage_stop(&s);
}

/* Whoever is over the quota can get below it. */
static void a_cleanup_runs_over_the_quota(void **state)
{
    struct stage s;
    stage_start(&s, "{\"box\": {\"local\": {\"default_workspace\": \"%D\", "
                    "\"allowed_mount_roots\": \"/tmp\", \"workspace_quota_mb\": 1}}}");
    fill(&s, "a", 2 << 20);
    fill(&s, "b", 2 << 20);
    assert_int_equal(begin(&s, QUERY, "{\"command\": \"sleep 50\"}", true), 0);
    pump(&s.f);
    assert_int_equal(unlinkat(s.dir_fd, "a", 0), 0); /* the work of `rm a` */
    pass(&s.f, 60 * NSEC_PER_MSEC);
    assert_true(s.ok);
    assert_false(call(&s, QUERY, "{\"command\": \"echo hi\"}")); /* still over it */
    assert_int_equal(unlinkat(s.dir_fd, "b", 0), 0);
    assert_true(call(&s, QUERY, "{\"command\": \"echo hi\"}"));
    stage_stop(&s);
}

static void test_row_T36_row_T37_failures_are_remembered(void **state)
{
    struct stage s;
    const struct err broken = {.code = ERR_BACKEND, .msg = "no sandbox today"};
    char query[64];
    stage_start(&s, FLAT());
    for (int i = 0; i < 60; i++) {
        fake_fail(s.f.backend, FAKE_CREATE_LATER, &broken);
        (void)snprintf(query, sizeof(query), "{\"query_id\": %d}", 100 + i);
        assert_false(call(&s, query, "{\"command\": \"fail\"}"));
        assert_string_equal(s.err.msg, "no sandbox today");
    }
    assert_int_equal(error_ring_count(s.errors, NULL), 50);
    assert_string_equal(error_ring_at(s.errors, NULL, 0)->query_id, "110");
    assert_string_equal(error_ring_at(s.errors, NULL, 49)->query_id, "159");
    assert_string_equal(error_ring_at(s.errors, NULL, 0)->type, "BoxBackendUnavailableError");
    stage_stop(&s);
}

static void test_row_T38_the_status_tells_about_both(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct stage s;
    struct jw w;
    buf_init(&out, 4096);
    stage_start(&s, FLAT());
    assert_true(call(&s, QUERY, "{\"command\": \"echo hi\"}"));
    jw_init(&w, &out);
    jw_object(&w);
    policy_service_write_status(&s.service, NULL, &w);
    jw_object_end(&w);
    assert_true(str_starts(buf_str(&out),
                           "{\"enabled\":true,\"available\":true,\"profile\":\"default\","
                           "\"recent_error_count\":0,\"backend\":{\"name\":\"fake\","
                           "\"available\":true},\"active_sessions\":1,\"managed_processes\":0,"
                           "\"session_ttl_sec\":300,\"audit\":{\"records\":3,\"head\":\""));
    stage_stop(&s);
}

static void test_row_T58_a_query_without_a_launcher_runs_by_its_id(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    assert_true(call(&s, "{\"query_id\": 42}", "{\"command\": \"echo hi\"}"));
    assert_true(str_starts(s.json, "{\"session_id\":\"42\",\"backend\":\"fake\",\"status\":"
                                   "\"completed\",\"ok\":true"));
    stage_stop(&s);
}

/* A session that was made with another profile is not used. */
static void a_session_made_otherwise_is_a_conflict(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    assert_true(call(&s, NULL, "{\"session_id\": \"person_test_user\", \"network\": \"on\"}"));
    assert_false(call(&s, QUERY, "{\"command\": \"echo hi\"}"));
    assert_int_equal(s.err.code, ERR_CONFLICT);
    stage_stop(&s);
}

static void a_timeout_is_told_as_hosts_know_it(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    assert_int_equal(begin(&s, QUERY, "{\"command\": \"sleep 9000\", \"timeout_sec\": 2}", false),
                     0);
    pass(&s.f, 3 * NSEC_PER_SEC);
    assert_true(s.ok);
    assert_non_null(strstr(s.json, "\"status\":\"timed_out\",\"ok\":false,\"exit_code\":null,"
                                   "\"stdout\":\"\",\"stderr\":\"Command timed out after 2 "
                                   "seconds.\""));
    stage_stop(&s);
}

static void a_signal_and_a_lost_session_are_told(void **state)
{
    struct stage s;
    stage_start(&s, FLAT());
    assert_true(call(&s, QUERY, "{\"command\": \"kill 9\"}"));
    assert_non_null(strstr(s.json, "\"ok\":false,\"exit_code\":137,"));
    assert_non_null(strstr(s.json, "\"outcome\":\"signaled\""));
    assert_false(call(&s, QUERY, "{\"command\": \"die\"}"));
    assert_string_equal(s.err.msg, "session person_test_user ended while the command was running");
    stage_stop(&s);
}

/* A caller that goes away takes its command along, whenever that is. */
static void a_caller_may_leave_at_any_time(void **state)
{
    for (int turns = 0; turns < 8; turns++) {
        struct stage s;
        stage_start(&s, "{\"box\": {\"local\": {\"default_workspace\": \"%D\", "
                        "\"allowed_mount_roots\": \"/tmp\", \"workspace_quota_mb\": 1}}}");
        assert_int_equal(begin(&s, QUERY, "{\"command\": \"sleep 50\"}", false), 0);
        for (int i = 0; i < turns && s.n == 0; i++)
            (void)loop_turn(s.f.loop, 0);
        command_cancel(TAKE_PTR(s.command));
        pass(&s.f, NSEC_PER_SEC);
        assert_int_equal(s.n, 0);
        expect_log(&s, "\"event\":\"exec_end\"");
        expect_log(&s, "\"outcome\":\"given_up\"");
        stage_stop(&s);
    }
    struct stage s;
    stage_start(&s, "{\"box\": {\"local\": {\"default_workspace\": \"%D\", "
                    "\"allowed_mount_roots\": \"/tmp\", \"workspace_quota_mb\": 1}}}");
    assert_int_equal(begin(&s, QUERY, "{\"command\": \"sleep 50\"}", false), 0);
    pump(&s.f);
    fill(&s, "x", 2 << 20);
    fake_clock_advance(&s.f.clock, 60 * NSEC_PER_MSEC);
    for (int i = 0; i < 3; i++)
        (void)loop_turn(s.f.loop, 0);
    command_cancel(TAKE_PTR(s.command));
    pump(&s.f);
    assert_int_equal(s.n, 0);
    stage_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T06_a_tool_call_runs_in_the_session_of_its_query),
        cmocka_unit_test(test_row_T07_without_a_backend_nothing_runs),
        cmocka_unit_test(test_row_F22_row_F23_a_runtime_that_did_not_start_degrades_with_a_reason),
        cmocka_unit_test(test_row_T08_row_T09_workspaces_reach_the_backend),
        cmocka_unit_test(test_row_T12_a_foreign_directory_is_refused_and_recorded),
        cmocka_unit_test(test_row_T16_row_T18_streams_are_cut_each_for_itself),
        cmocka_unit_test(test_row_T28_a_full_workspace_starts_no_session),
        cmocka_unit_test(test_row_T29_a_command_over_the_quota_costs_the_session),
        cmocka_unit_test(a_cleanup_runs_over_the_quota),
        cmocka_unit_test(test_row_T36_row_T37_failures_are_remembered),
        cmocka_unit_test(test_row_T38_the_status_tells_about_both),
        cmocka_unit_test(test_row_T58_a_query_without_a_launcher_runs_by_its_id),
        cmocka_unit_test(a_session_made_otherwise_is_a_conflict),
        cmocka_unit_test(a_timeout_is_told_as_hosts_know_it),
        cmocka_unit_test(a_signal_and_a_lost_session_are_told),
        cmocka_unit_test(a_caller_may_leave_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
