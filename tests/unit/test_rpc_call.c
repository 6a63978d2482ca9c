/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fixture.h"

/* Dispatch, sessions and commands, on the fake backend. */

#define EXEC(id, cmd) "{\"session_id\":\"" id "\",\"cmd\":\"" cmd "\"}"

static void contains(char *owned, const char *part)
{
    AUTO_FREE char *text = owned;
    if (strstr(text, part) == NULL)
        fail_msg("%s is not in %s", part, text);
}

static size_t count_sessions(const struct langbot_fixture *x)
{
    return manager_count(x->f.m);
}

static void hosts_are_answered_without_a_context(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "__ping", "{}", ""), "{}");
    contains(ok(&x, 2, "__ping", "{}", CTX1), "{}");
    refused(&x, 3, "__ping", "{}",
            "\"context\":{\"instance_uuid\":\"other\",\"workspace_uuid\":\"w\"}",
            "PermissionError: Box action context does not match the trusted instance");
    refused(&x, 4, "__heartbeat", "{}", "", "ValueError: Action __heartbeat not found");
    contains(ok(&x, 5, "box_health", "{}", ""), "{\"name\":\"fake\",\"available\":true}");
    stop_rpc(&x);
}

static void tenants_need_a_context(void **state)
{
    static const char *const actions[] = {"box_status", "box_exec", "box_get_sessions",
                                          "box_list_skills"};
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < (int)ARRAY_SIZE(actions); i++) {
        refused(&x, i, actions[i], "{}", "",
                "PermissionError: Box tenant action requires a trusted Workspace context");
        refused(&x, 10 + i, actions[i], "{}",
                "\"context\":{\"instance_uuid\":\"other\",\"workspace_uuid\":\"w\"}",
                "PermissionError: Box action context does not match the trusted instance");
    }
    stop_rpc(&x);
}

static void nobody_is_trusted_before_somebody_came(void **state)
{
    const struct langbot_options options = {.legacy = true};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    ask(&x.b, 1, "box_status", "{}", CTX1);
    expect_error(&x, &x.b, 1,
                 "PermissionError: Box action context does not match the trusted instance");
    stop_rpc(&x);
}

static void a_command_is_run(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "box_exec", EXEC("s", "echo  hi ;err e;exit 3"), CTX1),
             "{\"session_id\":\"s\",\"backend_name\":\"fake\",\"status\":\"completed\","
             "\"exit_code\":3,\"stdout\":\"hi\",\"stderr\":\"e\",\"duration_ms\":");
    contains(ok(&x, 2, "box_exec", EXEC("s", "kill 9"), CTX1), "\"exit_code\":137");
    /* Its own environment and directory, and not those of the one before. */
    contains(
        ok(&x, 3, "box_exec",
           "{\"session_id\":\"s\",\"cmd\":\"env;pwd\",\"env\":{\"A\":\"1\"},\"workdir\":\"/x\"}",
           CTX1),
        "\"stdout\":\"A=1\\n/x\"");
    contains(ok(&x, 4, "box_exec", EXEC("s", "env;pwd"), CTX1), "\"stdout\":\"/workspace\"");
    assert_int_equal(fake_creations(x.f.backend), 1); /* T05: one session, all in order */
    stop_rpc(&x);
}

static void requests_are_validated_in_order(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    refused(&x, 1, "box_exec", "{\"session_id\":\"/\",\"cmd\":\"\",\"memory_mb\":3}", CTX1,
            "BoxValidationError: 1 validation error for BoxSpec\nmemory_mb\n  Value error, "
            "memory_mb must be at least 32 [type=value_error]");
    refused(&x, 2, "box_exec", "{\"session_id\":\"/\",\"cmd\":\"\"}", CTX1,
            "BoxValidationError: Box session_id must contain a valid character");
    refused(&x, 3, "box_exec", EXEC("s", "  "), CTX1, "BoxValidationError: cmd must not be empty");
    refused(&x, 4, "box_get_session", "{}", CTX1, "KeyError: 'session_id'");
    refused(&x, 5, "box_get_session", "{\"session_id\":1}", CTX1,
            "ValueError: session_id must be a string");
    refused(&x, 6, "box_get_session", "{\"session_id\":\" \"}", CTX1,
            "ValueError: Box session_id must not be empty");
    refused(&x, 7, "box_get_session", "{\"session_id\":\"a b\"}", CTX1,
            "BoxSessionNotFoundError: session " NS1 "-g1-a-b not found");
    assert_int_equal(count_sessions(&x), 0);
    stop_rpc(&x);
}

/* I10: a session may be made without a command. */
static void sessions_are_made_found_and_ended(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "box_create_session", "{\"session_id\":\"a b/c\",\"cmd\":\"\"}", CTX1),
             "{\"session_id\":\"a-b-c\",\"backend_name\":\"fake\",\"backend_session_id\":\"");
    contains(ok(&x, 2, "box_get_session", "{\"session_id\":\"a-b-c\"}", CTX1),
             "\"image\":\"rockchin/langbot-sandbox:latest\",\"network\":\"off\","
             "\"host_path\":null,\"host_path_mode\":\"rw\",\"mount_path\":\"/workspace\","
             "\"persistent\":false,\"cpus\":1.0,\"memory_mb\":512,\"pids_limit\":128,"
             "\"read_only_rootfs\":true,\"workspace_quota_mb\":0,\"created_at\":\"2026-");
    contains(ok(&x, 3, "box_get_sessions", "{}", CTX1), "{\"sessions\":[{\"session_id\":\"a-b-c\"");
    contains(ok(&x, 4, "box_get_sessions", "{}", CTX("ws-2", 1)), "{\"sessions\":[]}");
    contains(ok(&x, 5, "box_status", "{}", CTX1),
             "{\"backend\":{\"name\":\"fake\",\"available\":true},\"active_sessions\":1,"
             "\"managed_processes\":0,\"session_ttl_sec\":300,\"limits\":{\"max_sessions\":100,"
             "\"max_managed_processes\":64,\"max_completed_processes\":256,"
             "\"max_admission_records\":100000,\"max_rpc_file_bytes\":20971520},"
             "\"capacity\":{\"limit\":100,\"used\":1,\"remaining\":99}}");
    refused(&x, 6, "box_create_session", "{\"session_id\":\"a-b-c\",\"cpus\":0.5}", CTX1,
            "BoxSessionConflictError: Box session " NS1 "-g1-a-b-c already exists with cpus=1.0");
    contains(ok(&x, 7, "box_delete_session", "{\"session_id\":\"a b/c\"}", CTX1),
             "{\"deleted\":\"a b/c\"}");
    refused(&x, 8, "box_delete_session", "{\"session_id\":\"a-b-c\"}", CTX1,
            "BoxSessionNotFoundError: session " NS1 "-g1-a-b-c not found");
    stop_rpc(&x);
}

static void times_are_written_as_pydantic_does(void **state)
{
    struct langbot_fixture x;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    start_rpc(&x);
    buf_init(&out, 256);
    jw_init(&w, &out);
    jw_object(&w);
    langbot_write_time(&w, "a", 1794745180 * SEC, "Z");
    langbot_write_time(&w, "b", 1794745180 * SEC + 164467999, "Z");
    jw_object_end(&w);
    assert_string_equal(buf_str(&out), "{\"a\":\"2026-11-15T12:19:40Z\","
                                       "\"b\":\"2026-11-15T12:19:40.164467Z\"}");
    stop_rpc(&x);
}

static void commands_of_a_session_take_turns(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    ask(&x.a, 1, "box_exec", EXEC("s", "sleep 100;echo 1"), CTX1);
    ask(&x.a, 2, "box_exec", EXEC("s", "echo 2"), CTX1);
    ask(&x.b, 3, "box_exec", EXEC("s", "sleep 100;echo 3"), CTX1);
    ask(&x.a, 4, "box_exec", EXEC("t", "echo 4"), CTX1); /* another session does not wait */
    ask(&x.a, 5, "__ping", "{}", "");
    pump(&x.f);
    assert_false(is_answered(&x.a, 1));
    assert_false(is_answered(&x.a, 2));
    assert_true(is_answered(&x.a, 4));
    assert_true(is_answered(&x.a, 5));
    pass(&x.f, 100 * NSEC_PER_MSEC);
    contains(expect_ok(&x, &x.a, 1), "\"stdout\":\"1\"");
    contains(expect_ok(&x, &x.a, 2), "\"stdout\":\"2\"");
    assert_false(is_answered(&x.b, 3));
    pass(&x.f, 100 * NSEC_PER_MSEC);
    contains(expect_ok(&x, &x.b, 3), "\"stdout\":\"3\"");
    stop_rpc(&x);
}

static void a_timeout_ends_the_session_before_the_answer(void **state)
{
    const struct fake_options slow = {.destroy_ns = 5 * SEC};
    struct langbot_fixture x;
    start_with(&x, &slow, NULL);
    ask(&x.a, 1, "box_exec",
        "{\"session_id\":\"s\",\"cmd\":\"echo a;sleep 9000\",\"timeout_sec\":1}", CTX1);
    ask(&x.a, 2, "box_exec", EXEC("s", "echo next"), CTX1);
    pass(&x.f, 1 * SEC);
    assert_false(is_answered(&x.a, 1)); /* it is still being taken down */
    pass(&x.f, 5 * SEC);
    contains(expect_ok(&x, &x.a, 1),
             "\"status\":\"timed_out\",\"exit_code\":null,\"stdout\":\"a\","
             "\"stderr\":\"Command timed out after 1 seconds.\",\"duration_ms\":1000");
    contains(expect_ok(&x, &x.a, 2), "\"stdout\":\"next\""); /* in a new one */
    assert_int_equal(fake_creations(x.f.backend), 2);
    stop_rpc(&x);
}

static void stderr_of_a_timeout_is_kept(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    ask(&x.a, 1, "box_exec",
        "{\"session_id\":\"s\",\"cmd\":\"err why;sleep 9000\",\"timeout_sec\":1}", CTX1);
    pass(&x.f, 1 * SEC);
    contains(expect_ok(&x, &x.a, 1), "\"stderr\":\"why\"");
    stop_rpc(&x);
}

static void output_is_clipped(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "box_exec", EXEC("s", "flood 1048576"), CTX1), "\"stderr\":\"\"");
    contains(ok(&x, 2, "box_exec", EXEC("s", "flood 1048579"), CTX1),
             "\\n... [raw output clipped at 1048576 bytes, 3 bytes discarded]\"");
    stop_rpc(&x);
}

static void a_session_that_dies_fails_its_command(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    refused(&x, 1, "box_exec", EXEC("s", "die"), CTX1,
            "BoxError: session " NS1 "-g1-s ended while the command was running");
    contains(ok(&x, 2, "box_exec", EXEC("s", "echo again"), CTX1), "again");
    stop_rpc(&x);
}

static void a_peer_that_leaves_takes_its_commands_along(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    ask(&x.a, 1, "box_exec", EXEC("s", "sleep 10000"), CTX1);
    ask(&x.a, 2, "box_exec", EXEC("s", "sleep 20000"), CTX1);
    ask(&x.b, 3, "box_exec", EXEC("s", "echo mine"), CTX1);
    pump(&x.f);
    peer_close(&x.a);
    contains(expect_ok(&x, &x.b, 3), "\"stdout\":\"mine\""); /* at once: nobody is in its way */
    assert_null(x.a.heard);
    assert_int_equal(count_sessions(&x), 1); /* the session stays */
    assert_true(TAILQ_EMPTY(&x.rpc->calls));
    stop_rpc(&x);
}

static void a_peer_may_leave_at_any_time(void **state)
{
    const struct fake_options slow = {.create_ns = 1 * SEC, .destroy_ns = 1 * SEC};
    struct langbot_fixture x;
    start_with(&x, &slow, NULL);
    ask(&x.a, 1, "box_exec", EXEC("s", "echo"), CTX1);
    ask(&x.a, 2, "box_create_session", "{\"session_id\":\"t\"}", CTX1);
    ask(&x.a, 3, "box_delete_session", "{\"session_id\":\"t\"}", CTX1);
    ask(&x.a, 4, "box_shutdown", "{}", "");
    peer_close(&x.a);
    for (int i = 0; i < 5; i++)
        pass(&x.f, 1 * SEC);
    assert_true(TAILQ_EMPTY(&x.rpc->calls));
    assert_int_equal(count_sessions(&x), 0);
    stop_rpc(&x);
}

static void more_than_128_at_once_are_refused(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < 128; i++)
        ask(&x.a, i, "box_exec", EXEC("s", "sleep 1"), CTX1);
    ask(&x.a, 128, "__ping", "{}", "");
    ask(&x.b, 1, "__ping", "{}", ""); /* counted by connection */
    AUTO(json) struct json *busy = reply_to(&x.a, 128);
    assert_non_null(busy);
    assert_string_equal(json_str(json_get(busy, "message")),
                        "Runtime connection is busy (max 128 concurrent actions)");
    assert_string_equal(json_str(json_get(busy, "error_code")), "busy");
    contains(expect_ok(&x, &x.b, 1), "{}");
    for (int i = 0; i < 128; i++)
        pass(&x.f, 1 * NSEC_PER_MSEC);
    for (int i = 0; i < 128; i++)
        assert_true(is_answered(&x.a, i));
    contains(ok(&x, 200, "__ping", "{}", ""), "{}");
    stop_rpc(&x);
}

/* Upstream bug 9: calls of an older generation got no answer at all. */
static void a_newer_generation_shuts_out_older_ones(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_create_session", "{\"session_id\":\"old\",\"persistent\":true}", CTX1);
    done(&x, 2, "box_create_session", "{\"session_id\":\"other\"}", CTX("ws-2", 1));
    ask(&x.a, 3, "box_exec", EXEC("s", "sleep 9000"), CTX1);
    ask(&x.a, 4, "box_exec", EXEC("s", "sleep 9000"), CTX1);
    pump(&x.f);
    ask(&x.b, 5, "box_get_sessions", "{}", CTX("ws-1", 2));
    expect_error(&x, &x.a, 3, "PermissionError: Stale Box placement generation");
    expect_error(&x, &x.a, 4, "PermissionError: Stale Box placement generation");
    contains(expect_ok(&x, &x.b, 5), "{\"sessions\":[]}");
    assert_int_equal(count_sessions(&x), 1); /* that of the other workspace */
    refused(&x, 6, "box_status", "{}", CTX1, "PermissionError: Stale Box placement generation");
    contains(ok(&x, 7, "box_exec", EXEC("s", "echo new"), CTX("ws-1", 2)), "new");
    assert_int_equal(strv_len(x.a.heard), 6); /* one answer each, and no more */
    assert_true(TAILQ_EMPTY(&x.rpc->calls));
    stop_rpc(&x);
}

static void a_newer_generation_waits_for_the_end_of_the_older(void **state)
{
    const struct fake_options slow = {.create_ns = 1 * SEC, .destroy_ns = 1 * SEC};
    struct langbot_fixture x;
    start_with(&x, &slow, NULL);
    ask(&x.a, 1, "box_exec", EXEC("s", "echo"), CTX1);
    pass(&x.f, NSEC_PER_MSEC); /* it is being made */
    ask(&x.b, 2, "box_status", "{}", CTX("ws-1", 2));
    ask(&x.b, 3, "box_status", "{}", CTX("ws-1", 2));
    expect_error(&x, &x.a, 1, "PermissionError: Stale Box placement generation");
    assert_false(is_answered(&x.b, 2));
    assert_false(is_answered(&x.b, 3));
    for (int i = 0; i < 4; i++)
        pass(&x.f, 1 * SEC);
    contains(expect_ok(&x, &x.b, 2), "\"active_sessions\":0");
    contains(expect_ok(&x, &x.b, 3), "\"active_sessions\":0");
    assert_int_equal(count_sessions(&x), 0);
    stop_rpc(&x);
}

static void shutdown_ends_what_was_made_here(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    struct session *other = ready_session(&x.f, "of-another-front");
    done(&x, 1, "box_create_session", "{\"session_id\":\"a\",\"persistent\":true}", CTX1);
    done(&x, 2, "box_create_session", "{\"session_id\":\"a\"}", CTX("ws-2", 9));
    ask(&x.a, 3, "box_shutdown", "{}", "");
    refused(&x, 4, "box_create_session", "{\"session_id\":\"b\"}", CTX1,
            "BoxRuntimeUnavailableError: Box runtime is shutting down");
    contains(expect_ok(&x, &x.a, 3), "{}");
    assert_int_equal(count_sessions(&x), 1);
    assert_string_equal(session_id(other), "of-another-front");
    session_release(other);
    contains(ok(&x, 5, "box_exec", EXEC("a", "echo on"), CTX1), "on"); /* it goes on */
    stop_rpc(&x);
}

static void limits_take_effect(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "box_init", "{\"limits\":{\"max_sessions\":1},\"unknown\":{}}", ""),
             "{\"initialized\":true}");
    done(&x, 2, "box_create_session", "{\"session_id\":\"a\"}", CTX1);
    refused(&x, 3, "box_create_session", "{\"session_id\":\"b\"}", CTX1,
            "BoxCapacityExceededError: Box session capacity reached (1)");
    /* Upstream bug 14: what was wrong in one part had changed another. */
    refused(&x, 4, "box_init",
            "{\"limits\":{\"max_sessions\":50},\"local\":{\"default_workspace\":\"/nowhere/x\"}}",
            "",
            "BoxValidationError: box.local.default_workspace cannot be created because no "
            "allowed_mount_roots are configured");
    refused(&x, 5, "box_init", "{\"limits\":{\"max_sessions\":50,\"max_rpc_file_bytes\":0}}", "",
            "ValueError: box.limits.max_rpc_file_bytes must be between 1 and 104857600");
    refused(&x, 6, "box_create_session", "{\"session_id\":\"b\"}", CTX1,
            "BoxCapacityExceededError: Box session capacity reached (1)");
    done(&x, 7, "box_init", "{\"limits\":{\"max_sessions\":5000}}", "");
    contains(ok(&x, 8, "box_status", "{}", CTX1), "\"max_sessions\":100"); /* the operator's */
    stop_rpc(&x);
}

/* T35, T57: a backend that we do not have. */
static void an_unknown_backend_is_none(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_init", "{\"backend\":\" e2b \"}", "");
    contains(ok(&x, 2, "box_get_backend_info", "{}", ""), "{\"name\":null,\"available\":false}");
    refused(&x, 3, "box_exec", EXEC("s", "echo"), CTX1,
            "BoxBackendUnavailableError: LangBot Box backend unavailable. Install and start Docker "
            "or nsjail before using exec.");
    done(&x, 4, "box_init", "{\"backend\":\"local\"}", "");
    done(&x, 5, "box_create_session", "{\"session_id\":\"a\"}", CTX1);
    done(&x, 6, "box_init", "{\"backend\":\"e2b\"}", ""); /* not while there are sessions */
    contains(ok(&x, 7, "box_get_backend_info", "{}", ""), "\"available\":true");
    stop_rpc(&x);
}

static void the_backend_has_the_name_it_is_given(void **state)
{
    const struct langbot_options options = {.backend_name = "nsjail"};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    contains(ok(&x, 1, "box_get_backend_info", "{}", ""),
             "{\"name\":\"nsjail\",\"available\":true}");
    done(&x, 2, "box_init", "{\"backend\":\"nsjail\"}", "");
    contains(ok(&x, 3, "box_exec", EXEC("s", "echo"), CTX1), "\"backend_name\":\"nsjail\"");
    stop_rpc(&x);
}

/* Upstream bug 23, kept: limits in the environment that are wrong keep us from starting. */
static void the_environment_configures_first(void **state)
{
    const struct langbot_options options = {.config = "{\"limits\":{\"max_sessions\":2}}"};
    struct langbot_options bad = {.config = "{\"limits\":{\"max_sessions\":-2}}", .spool_fd = -1};
    struct langbot_fixture x;
    struct langbot *none = NULL;
    struct err err = {0};
    start_with(&x, NULL, &options);
    contains(ok(&x, 1, "box_status", "{}", CTX1), "\"max_sessions\":2,");
    bad.manager = x.f.m;
    assert_true(langbot_new(&bad, &none, &err) < 0);
    assert_string_equal(err.msg,
                        "LANGBOT_BOX_CONFIG: box.limits.max_sessions must be between 0 and 5000");
    bad.config = "{not json";
    assert_int_equal(langbot_new(&bad, &none, &err), 0);
    langbot_free(none);
    bad.instance = "no good";
    assert_true(langbot_new(&bad, &none, &err) < 0);
    assert_string_equal(err.msg, "A valid trusted LangBot instance UUID is required");
    stop_rpc(&x);
}

/* A chat sandbox is a session with an end of its own. */
static void sweeps_go_around_chats(void **state)
{
    const struct langbot_options options = {.legacy = true};
    struct langbot_fixture x;
    struct heard h = {0};
    struct err err = {0};
    struct spec *spec = named_spec("chat");
    spec->own.expires_ns = 4000000000ULL * SEC;
    start_with(&x, NULL, &options);
    assert_int_equal(acquire_spec(&x.f, spec, 0, &h, &err), 0);
    pump(&x.f);
    give_back(&h);
    session_release(ready_session(&x.f, "ordinary"));
    contains(ok(&x, 1, "box_shutdown", "{}", ""), "{}");
    assert_null(manager_find(x.f.m, "ordinary"));
    assert_non_null(manager_find(x.f.m, "chat"));
    stop_rpc(&x);
}

/* The first release: no contexts, names as they are, persistent sessions survive. */
static void the_first_release_is_served_when_asked_for(void **state)
{
    const struct langbot_options options = {.legacy = true};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    contains(ok(&x, 1, "box_exec", EXEC("a b", "echo x"), ""), "\"session_id\":\"a b\"");
    assert_non_null(manager_find(x.f.m, "a b"));
    contains(ok(&x, 2, "box_status", "{}", CTX1), "\"session_ttl_sec\":300}"); /* four keys */
    say(&x.a, "{\"seq_id\":3,\"action\":\"__ping\",\"data\":{},\"code\":0}");
    contains(expect_ok(&x, &x.a, 3), "{}");
    done(&x, 4, "box_create_session", "{\"session_id\":\"keep\",\"persistent\":true}", "");
    done(&x, 5, "box_shutdown", "{}", "");
    assert_int_equal(count_sessions(&x), 1);
    refused(&x, 6, "box_get_session", "{\"session_id\":\"a b\"}", "",
            "BoxSessionNotFoundError: session a b not found");
    stop_rpc(&x);
}

/* T71: see also the tests of core. */
static void sessions_in_use_by_a_process_are_counted(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_create_session", "{\"session_id\":\"s\"}", CTX1);
    contains(ok(&x, 2, "box_start_managed_process",
                "{\"session_id\":\"s\",\"spec\":{\"command\":\"cat\",\"args\":[\"-u\"],"
                "\"env\":{\"Z\":\"secret\",\"A\":\"1\"},\"cwd\":\"/tmp\"}}",
                CTX1),
             "{\"session_id\":\"s\",\"process_id\":\"default\",\"status\":\"running\","
             "\"command\":\"cat\",\"args\":[\"-u\"],\"cwd\":\"/tmp\",\"env_keys\":[\"A\",\"Z\"],"
             "\"attached\":false,\"started_at\":\"");
    /* Upstream bug 2: always 0. */
    contains(ok(&x, 3, "box_status", "{}", CTX1), "\"managed_processes\":1");
    contains(ok(&x, 4, "box_status", "{}", CTX("ws-2", 1)), "\"managed_processes\":0");
    pass(&x.f, 3000 * SEC);
    AUTO_FREE char *session = ok(&x, 5, "box_get_session", "{\"session_id\":\"s\"}", CTX1);
    assert_non_null(strstr(session, "\"managed_processes\":{\"default\":{"));
    assert_non_null(strstr(session, "\"managed_process\":{"));
    assert_null(strstr(session, "secret"));
    contains(ok(&x, 6, "box_stop_managed_process", "{\"session_id\":\"s\"}", CTX1),
             "{\"stopped\":\"default\"}");
    refused(&x, 7, "box_get_managed_process", "{\"session_id\":\"s\",\"process_id\":\"default\"}",
            CTX1,
            "BoxManagedProcessNotFoundError: session " NS1
            "-g1-s has no managed process with process_id=default");
    refused(&x, 8, "box_start_managed_process", "{\"session_id\":\"s\"}", CTX1, "KeyError: 'spec'");
    refused(&x, 9, "box_start_managed_process", "{\"session_id\":\"s\",\"spec\":{\"cwd\":\"x\"}}",
            CTX1,
            "BoxValidationError: 2 validation errors for BoxManagedProcessSpec\ncommand\n  Field "
            "required [type=missing]\ncwd\n  Value error, cwd must be an absolute path inside the "
            "sandbox [type=value_error]");
    stop_rpc(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_answered_without_a_context),
        cmocka_unit_test(tenants_need_a_context),
        cmocka_unit_test(nobody_is_trusted_before_somebody_came),
        cmocka_unit_test(a_command_is_run),
        cmocka_unit_test(requests_are_validated_in_order),
        cmocka_unit_test(sessions_are_made_found_and_ended),
        cmocka_unit_test(times_are_written_as_pydantic_does),
        cmocka_unit_test(commands_of_a_session_take_turns),
        cmocka_unit_test(a_timeout_ends_the_session_before_the_answer),
        cmocka_unit_test(stderr_of_a_timeout_is_kept),
        cmocka_unit_test(output_is_clipped),
        cmocka_unit_test(a_session_that_dies_fails_its_command),
        cmocka_unit_test(a_peer_that_leaves_takes_its_commands_along),
        cmocka_unit_test(a_peer_may_leave_at_any_time),
        cmocka_unit_test(more_than_128_at_once_are_refused),
        cmocka_unit_test(a_newer_generation_shuts_out_older_ones),
        cmocka_unit_test(a_newer_generation_waits_for_the_end_of_the_older),
        cmocka_unit_test(shutdown_ends_what_was_made_here),
        cmocka_unit_test(limits_take_effect),
        cmocka_unit_test(an_unknown_backend_is_none),
        cmocka_unit_test(the_backend_has_the_name_it_is_given),
        cmocka_unit_test(the_environment_configures_first),
        cmocka_unit_test(sweeps_go_around_chats),
        cmocka_unit_test(the_first_release_is_served_when_asked_for),
        cmocka_unit_test(sessions_in_use_by_a_process_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
