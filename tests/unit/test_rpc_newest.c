/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fixture.h"

#include <sys/stat.h>

/* What isolation is decides a function that no header has. */
#include "front/langbot/tenant/readiness.c"

/* What the wire has gained since 0.5.5, on the fake backend. */

#define EXEC(id, cmd) "{\"session_id\":\"" id "\",\"cmd\":\"" cmd "\"}"

static void contains(char *owned, const char *part)
{
    AUTO_FREE char *text = owned;
    if (strstr(text, part) == NULL)
        fail_msg("%s is not in %s", part, text);
}

static void a_session_tells_whether_it_is_busy(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    contains(ok(&x, 1, "box_create_session", "{\"session_id\":\"s\"}", CTX1),
             "\"status\":\"idle\"");
    ask(&x.a, 2, "box_exec", EXEC("s", "sleep 1000"), CTX1);
    pump(&x.f);
    contains(ok(&x, 3, "box_get_session", "{\"session_id\":\"s\"}", CTX1),
             "\"status\":\"running\"");
    pass(&x.f, 1 * SEC);
    free(expect_ok(&x, &x.a, 2));
    contains(ok(&x, 4, "box_get_sessions", "{}", CTX1), "\"status\":\"idle\"");
    stop_rpc(&x);
}

static void capacity_is_what_is_left(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_init", "{\"limits\":{\"max_sessions\":3}}", "");
    contains(ok(&x, 2, "box_status", "{}", CTX1),
             "\"capacity\":{\"limit\":3,\"used\":0,\"remaining\":3}");
    done(&x, 3, "box_create_session", "{\"session_id\":\"a\"}", CTX1);
    done(&x, 4, "box_create_session", "{\"session_id\":\"b\"}", CTX("ws-2", 1));
    contains(ok(&x, 5, "box_status", "{}", CTX1), /* what others use is not there for us */
             "\"capacity\":{\"limit\":3,\"used\":1,\"remaining\":1}");
    done(&x, 6, "box_init", "{\"limits\":{\"max_sessions\":1}}", "");
    contains(ok(&x, 7, "box_status", "{}", CTX1),
             "\"capacity\":{\"limit\":1,\"used\":1,\"remaining\":0}");
    stop_rpc(&x);
}

static void without_a_grant_there_is_no_capacity(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_init", "{\"admission\":{\"required\":true}}", "");
    contains(ok(&x, 2, "box_status", "{}", CTX1),
             "\"capacity\":{\"limit\":0,\"used\":0,\"remaining\":0}");
    AUTO_FREE char *grant =
        xasprintf("{\"instance_uuid\":\"" INSTANCE "\",\"workspace_uuid\":\"ws-1\","
                  "\"execution_generation\":1,\"entitlement_revision\":1,\"expires_at\":%lld,"
                  "\"max_sessions\":1,\"max_managed_processes\":0}",
                  (long long)(x.f.clock.real_ns / SEC) + 60);
    done(&x, 3, "box_upsert_sandbox_admission_grant", grant, "");
    contains(ok(&x, 4, "box_status", "{}", CTX1),
             "\"capacity\":{\"limit\":1,\"used\":0,\"remaining\":1}");
    contains(ok(&x, 5, "box_status", "{}", CTX("ws-2", 1)),
             "\"capacity\":{\"limit\":0,\"used\":0,\"remaining\":0}");
    stop_rpc(&x);
}

static void a_call_can_be_cancelled(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    ask(&x.a, 1, "box_exec", EXEC("s", "sleep 9000"), CTX1);
    ask(&x.a, 2, "box_exec", EXEC("s", "echo next"), CTX1);
    pump(&x.f);
    contains(ok(&x, 3, "__cancel_action", "{\"seq_id\":1}", CTX1), "{\"cancelled\":true}");
    contains(expect_ok(&x, &x.a, 2), "\"stdout\":\"next\""); /* its turn has come */
    assert_false(is_answered(&x.a, 1));
    contains(ok(&x, 4, "__cancel_action", "{\"seq_id\":1}", CTX1), "{\"cancelled\":false}");
    assert_true(TAILQ_EMPTY(&x.rpc->calls));
    stop_rpc(&x);
}

static void only_whoever_asked_can_cancel(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    ask(&x.a, 1, "box_exec", EXEC("s", "sleep 9000"), CTX1);
    pump(&x.f);
    contains(ok(&x, 2, "__cancel_action", "{\"seq_id\":1}", ""), "{\"cancelled\":false}");
    contains(ok(&x, 3, "__cancel_action", "{\"seq_id\":1}", CTX("ws-2", 1)),
             "{\"cancelled\":false}");
    contains(ok(&x, 4, "__cancel_action", "{\"seq_id\":4}", ""), "{\"cancelled\":false}"); /* me */
    ask(&x.b, 5, "__cancel_action", "{\"seq_id\":1}", CTX1); /* numbers are of a connection */
    contains(expect_ok(&x, &x.b, 5), "{\"cancelled\":false}");
    pass(&x.f, 9 * SEC);
    free(expect_ok(&x, &x.a, 1));
    stop_rpc(&x);
}

static void numbers_are_asked_for(void **state)
{
    static const char *const bad[] = {"{}", "{\"seq_id\":true,\"index\":0}",
                                      "{\"seq_id\":\"1\",\"index\":0}"};
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < (int)ARRAY_SIZE(bad); i++) {
        refused(&x, i, "__cancel_action", bad[i], "",
                "ValueError: Cancellation requires an integer seq_id");
        refused(&x, 10 + i, "__stream_ack", bad[i], "",
                "ValueError: Stream acknowledgement requires integer sequence and index");
    }
    contains(ok(&x, 20, "__stream_ack", "{\"seq_id\":1,\"index\":0}", ""), "{\"accepted\":false}");
    stop_rpc(&x);
}

static void cancelling_is_possible_when_all_is_busy(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < LANGBOT_CALLS_MAX; i++)
        ask(&x.a, i, "box_exec", EXEC("s", "sleep 9000"), CTX1);
    contains(ok(&x, 500, "__stream_ack", "{\"seq_id\":1,\"index\":0}", ""), "false");
    contains(ok(&x, 501, "__cancel_action", "{\"seq_id\":7}", CTX1), "{\"cancelled\":true}");
    contains(ok(&x, 502, "__ping", "{}", ""), "{}"); /* there is room again */
    stop_rpc(&x);
}

/* Storage. */

static char *workspace_config(struct langbot_fixture *x)
{
    (void)mkdirat(x->dir_fd, "default", 0755);
    return xasprintf("{\"local\":{\"host_root\":\"%s\"}}", x->dir);
}

static void storage_is_that_of_host_and_sessions(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    AUTO_FREE char *config = workspace_config(&x);
    AUTO_FREE char *dir = xasprintf("%s/default/tenants/" NS1, x.dir);
    done(&x, 1, "box_init", config, "");
    done(&x, 2, "box_create_session", "{\"session_id\":\"s\"}", CTX1);
    done(&x, 3, "box_create_session", "{\"session_id\":\"s\"}", CTX("ws-2", 1));
    ask(&x.a, 4, "box_get_storage_analysis", "{}", CTX1);
    pump(&x.f);
    assert_string_equal(store.dir, dir);
    skills_answer(&store,
                  "{\"\":{\"exists\":true,\"size_bytes\":700,\"file_count\":7,\"error_count\":0},"
                  "\"inbox\":{\"exists\":true,\"size_bytes\":50,\"file_count\":1,"
                  "\"error_count\":2},\"outbox\":{\"size_bytes\":-1}}",
                  NULL);
    /* The fake backend does not know our command: that session counts as an error. */
    AUTO_FREE char *said = expect_ok(&x, &x.a, 4);
    AUTO_FREE char *expected = xasprintf(
        "{\"directories\":[{\"key\":\"workspace\",\"path\":\"%s\",\"kind\":\"root\","
        "\"exists\":true,\"size_bytes\":700,\"file_count\":7,\"error_count\":0,"
        "\"scope\":\"runtime_host\"},{\"key\":\"mcp\",\"path\":\"%s/.mcp\",\"kind\":\"detail\","
        "\"exists\":false,\"size_bytes\":0,\"file_count\":0,\"error_count\":0,"
        "\"parent_key\":\"workspace\",\"scope\":\"runtime_host\"},{\"key\":\"inbox\","
        "\"path\":\"%s/inbox\",\"kind\":\"detail\",\"exists\":true,\"size_bytes\":50,"
        "\"file_count\":1,\"error_count\":2,\"parent_key\":\"workspace\","
        "\"scope\":\"runtime_host\"},{\"key\":\"outbox\",\"path\":\"%s/outbox\","
        "\"kind\":\"detail\",\"exists\":false,\"size_bytes\":0,\"file_count\":0,"
        "\"error_count\":0,\"parent_key\":\"workspace\",\"scope\":\"runtime_host\"},"
        "{\"key\":\"session_workspaces\",\"path\":\"/workspace (0 sandbox sessions)\","
        "\"kind\":\"root\",\"exists\":false,\"size_bytes\":0,\"file_count\":0,\"error_count\":1,"
        "\"scope\":\"sandbox_sessions\"},{\"key\":\"session_caches\","
        "\"path\":\"~/.cache (0 sandbox sessions)\",\"kind\":\"root\",\"exists\":false,"
        "\"size_bytes\":0,\"file_count\":0,\"error_count\":1,\"scope\":\"sandbox_sessions\"},"
        "{\"key\":\"session_temp\",\"path\":\"/tmp (0 sandbox sessions)\",\"kind\":\"root\","
        "\"exists\":false,\"size_bytes\":0,\"file_count\":0,\"error_count\":1,"
        "\"scope\":\"sandbox_sessions\"}],\"size_bytes\":700,\"active_sessions\":1,"
        "\"managed_processes\":0}",
        dir, dir, dir, dir);
    assert_string_equal(said, expected);
    stop_rpc(&x);
    free(store.root);
}

static void storage_that_cannot_be_had(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    /* Nowhere to look. */
    contains(ok(&x, 1, "box_get_storage_analysis", "{}", CTX1),
             "{\"directories\":[],\"size_bytes\":0,\"active_sessions\":0,\"managed_processes\":0}");
    AUTO_FREE char *config = workspace_config(&x);
    done(&x, 2, "box_init", config, "");
    ask(&x.a, 3, "box_get_storage_analysis", "{}", CTX1);
    pump(&x.f);
    skills_answer(&store, NULL, "BoxError: " HOSTDIR_MISSING); /* it is just not there */
    contains(expect_ok(&x, &x.a, 3), "\"exists\":false,\"size_bytes\":0,\"file_count\":0,"
                                     "\"error_count\":0,\"scope\"");
    ask(&x.a, 4, "box_get_storage_analysis", "{}", CTX1);
    pump(&x.f);
    skills_answer(&store, NULL, "BoxError: Permission denied");
    contains(expect_ok(&x, &x.a, 4), "\"exists\":false,\"size_bytes\":0,\"file_count\":0,"
                                     "\"error_count\":1,\"scope\"");
    ask(&x.a, 5, "box_get_storage_analysis", "{}", CTX1); /* whoever asks may leave */
    pump(&x.f);
    peer_close(&x.a);
    skills_answer(&store, NULL, "BoxError: " HOSTDIR_MISSING);
    pump(&x.f);
    assert_true(TAILQ_EMPTY(&x.rpc->calls));
    stop_rpc(&x);
    free(store.root);
}

/* Directories that become workspaces. */

static void a_missing_workspace_is_made_once(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    assert_int_equal(mkdirat(x.dir_fd, "default", 0755), 0);
    AUTO_FREE char *config = xasprintf("{\"local\":{\"host_root\":\"%s\"}}", x.dir);
    AUTO_FREE char *dir = xasprintf("%s/default/tenants/" NS1, x.dir);
    AUTO_FREE char *spec =
        xasprintf("{\"session_id\":\"s\",\"cmd\":\"echo hi\",\"host_path\":\"%s\"}", dir);
    done(&x, 1, "box_init", config, "");
    ask(&x.a, 2, "box_exec", spec, CTX1);
    pump(&x.f);
    assert_string_equal(store.dir, dir);
    assert_int_equal(fake_creations(x.f.backend), 0); /* not before it is there */
    skills_answer(&store, "{}", NULL);
    contains(expect_ok(&x, &x.a, 2), "\"stdout\":\"hi\"");
    done(&x, 3, "box_exec", spec, CTX1); /* nobody looks again */
    assert_int_equal(store.calls, 1);
    /* Whoever cannot be helped hears of it from the backend. */
    done(&x, 4, "box_delete_session", "{\"session_id\":\"s\"}", CTX1);
    const struct err missing = {.code = ERR_NOT_FOUND, .msg = "mount source 'x' does not exist"};
    fake_fail(x.f.backend, FAKE_CREATE_LATER, &missing);
    ask(&x.a, 5, "box_exec", spec, CTX1);
    pump(&x.f);
    skills_answer(&store, NULL, "BoxValidationError: Permission denied");
    expect_error(&x, &x.a, 5, "BoxError: mount source 'x' does not exist");
    stop_rpc(&x);
    free(store.root);
}

static void other_directories_are_not_made(void **state)
{
    static const char *const cases[] = {
        "\"host_path\":\"/srv/elsewhere\"",
        "\"host_path\":\"/srv/box-other/x\"",
        "\"host_path\":\"/srv/box/../x\"",
        "\"host_path\":\"/srv/box/x\",\"host_path_mode\":\"ro\"",
        "\"host_path\":\"/srv/box/x\",\"host_path_mode\":\"none\"",
        "\"extra_mounts\":[{\"host_path\":\"/srv/box/x\",\"mount_path\":\"/m\"}]",
    };
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    x.rpc->paths.host_root = xstrdup("/srv/box");
    for (int i = 0; i < (int)ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *spec = xasprintf("{\"session_id\":\"s%d\",%s}", i, cases[i]);
        done(&x, i, "box_create_session", spec, CTX1);
    }
    assert_int_equal(store.calls, 0);
    stop_rpc(&x);
    free(store.root);
}

/* The name that admission requires. */

static void the_name_stands_for_isolation(void **state)
{
    static const enum readiness_check needed[] = {READY_CGROUP_V2, READY_NAMESPACE_ISOLATION,
                                                  READY_MOUNT_ISOLATION, READY_NETWORK_ISOLATION};
    struct readiness_report report = {.enforced = true};
    for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
        report.found[needed[i]] = true;
    assert_true(isolates(&report)); /* storage is another matter */
    for (size_t i = 0; i < ARRAY_SIZE(needed); i++) {
        report.found[needed[i]] = false;
        assert_false(isolates(&report));
        report.found[needed[i]] = true;
    }
}

static void what_is_not_proven_keeps_its_own_name(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    /* Asked for by that name, we are there, but go by it only after the proof. */
    done(&x, 1, "box_init", "{\"backend\":\"nsjail\"}", "");
    contains(ok(&x, 2, "box_get_backend_info", "{}", ""), "{\"name\":null,\"available\":false}");
    done(&x, 3, "box_init", "{\"backend\":\"nsjail\",\"admission\":{\"required\":true}}", "");
    contains(ok(&x, 4, "box_get_backend_info", "{}", ""), "{\"name\":\"fake\",\"available\":false");
    /* The status of a workspace says the same, and why. */
    contains(ok(&x, 5, "box_status", "{}", CTX1),
             "\"backend\":{\"name\":\"fake\",\"available\":false,\"readiness\":{\"ready\":false,"
             "\"mode\":\"grant_enforced\"");
    stop_rpc(&x);
}

static void checks_have_their_newer_names_too(void **state)
{
    const struct langbot_options options = {.unsafe_storage = true};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    done(&x, 1, "box_init", "{\"admission\":{\"required\":true}}", "");
    AUTO_FREE char *info = ok(&x, 2, "box_get_backend_info", "{}", "");
    assert_non_null(strstr(info, "\"hard_skill_storage_quota\":true,"
                                 "\"hard_read_only_mount_quota\":true,"));
    assert_non_null(strstr(info, "\"hard_skill_storage_quota\":false,"
                                 "\"hard_read_only_mount_quota\":false,")); /* of the details */
    stop_rpc(&x);
}

static void the_bare_host_is_not_for_everybody(void **state)
{
    static const char text[] = "BoxValidationError: host backend requires local stdio control or "
                               "WebSocket control protected by LANGBOT_BOX_CONTROL_TOKEN";
    const struct langbot_options guarded = {.token = "01234567890123456789012345678901"};
    struct langbot_fixture x;
    start_rpc(&x);
    refused(&x, 1, "box_init", "{\"backend\":\" host \",\"limits\":{\"max_sessions\":1}}", "",
            text);
    assert_int_equal(x.rpc->limits.max_sessions, 64); /* nothing has changed */
    x.a.conn->local = true;
    done(&x, 2, "box_init", "{\"backend\":\"host\"}", "");
    contains(ok(&x, 3, "box_get_backend_info", "{}", ""), "{\"name\":null,\"available\":false}");
    stop_rpc(&x);
    start_with(&x, NULL, &guarded);
    done(&x, 4, "box_init", "{\"backend\":\"host\"}", "");
    contains(ok(&x, 5, "box_get_backend_info", "{}", ""), "{\"name\":null,\"available\":false}");
    stop_rpc(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_tells_whether_it_is_busy),
        cmocka_unit_test(capacity_is_what_is_left),
        cmocka_unit_test(without_a_grant_there_is_no_capacity),
        cmocka_unit_test(a_call_can_be_cancelled),
        cmocka_unit_test(only_whoever_asked_can_cancel),
        cmocka_unit_test(numbers_are_asked_for),
        cmocka_unit_test(cancelling_is_possible_when_all_is_busy),
        cmocka_unit_test(storage_is_that_of_host_and_sessions),
        cmocka_unit_test(storage_that_cannot_be_had),
        cmocka_unit_test(a_missing_workspace_is_made_once),
        cmocka_unit_test(other_directories_are_not_made),
        cmocka_unit_test(the_name_stands_for_isolation),
        cmocka_unit_test(what_is_not_proven_keeps_its_own_name),
        cmocka_unit_test(checks_have_their_newer_names_too),
        cmocka_unit_test(the_bare_host_is_not_for_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
