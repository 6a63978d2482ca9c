/* SPDX-License-Identifier: Apache-2.0 */
#include "mcp_scene.h"

/* Sessions. */

static void a_client_without_a_scope_reaches_only_what_is_its_own(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    session_release(ready_session(&c.s.f, "somebody"));
    session_release(ready_session(&c.s.f, "mcp-01")); /* begins alike, and is not */
    call(&c, "1", "list_sessions", "{}");
    assert_int_equal(json_int(json_get(structured(&c), "total")), 0);
    call(&c, "1", "exec", "{\"command\":\"pwd\",\"session_id\":\"somebody\"}");
    assert_true(says_no(&c));
    call(&c, "1", "delete_session", "{\"session_id\":\"mcp-01\"}");
    assert_true(says_no(&c));
    assert_non_null(manager_find(c.s.f.m, "mcp-01"));
    call(&c, "1", "create_session", "{\"name\":\"two\",\"memory_mb\":64}");
    assert_string_equal(json_str(json_get(structured(&c), "session_id")), "mcp-0-two");
    assert_int_equal(json_int(json_get(structured(&c), "memory_mb")), 64);
    call(&c, "1", "exec", "{\"command\":\"echo in\",\"session_id\":\"mcp-0-two\"}");
    assert_string_equal(shown(&c), "in\n");
    call(&c, "1", "delete_session", "{\"session_id\":\"mcp-0-two\"}");
    assert_false(says_no(&c));
    assert_null(manager_find(c.s.f.m, "mcp-0-two"));
    call(&c, "1", "create_session", "{\"name\":\"a/b\"}");
    assert_true(says_no(&c));
    call(&c, "1", "create_session", "{\"host_path\":\"/etc\"}");
    assert_true(says_no(&c));
    scene_stop(&c);
}

static void a_model_does_not_outvote_who_started_the_server(void **state)
{
    struct scene c;
    struct err err = {0};
    scene_start(&c, NULL, "local");
    assert_int_equal(json_parse("{\"memory_mb\":128}", 17, &c.place->settings, &err), 0);
    call(&c, "1", "create_session", "{\"network\":\"on\"}");
    assert_true(says_no(&c) && strstr(shown(&c), "--network on") != NULL);
    call(&c, "1", "create_session", "{}");
    assert_int_equal(json_int(json_get(structured(&c), "memory_mb")), 128);
    assert_true(str_starts(json_str(json_get(structured(&c), "session_id")), "mcp-0-"));
    scene_stop(&c);
}

static void what_is_ephemeral_goes_with_its_client(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    c.place->ephemeral = true;
    call(&c, "1", "exec", "{\"command\":\"sleep 100000\"}");
    assert_int_equal(fake_sandboxes(c.s.f.backend), 1);
    mcp_place_close(c.place);
    c.place = NULL;
    pump(&c.s.f);
    assert_int_equal(fake_sandboxes(c.s.f.backend), 0);
    assert_int_equal(c.answers, 0);
    scene_stop(&c);
}

static void the_session_of_a_client_that_is_there_is_never_idle(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    const struct manager_options *o = manager_get_options(c.s.f.m);
    ((struct manager_options *)(uintptr_t)o)->ttl_ns = 10 * NSEC_PER_SEC;
    c.place->keeps = true;
    call(&c, "1", "exec", "{\"command\":\"pwd\"}");
    call(&c, "1", "create_session", "{\"name\":\"two\"}");
    pass(&c.s.f, 60 * NSEC_PER_SEC);
    manager_reap(c.s.f.m);
    pump(&c.s.f);
    assert_non_null(manager_find(c.s.f.m, "mcp-0"));
    assert_null(manager_find(c.s.f.m, "mcp-0-two")); /* a handle is nobody's */
    mcp_place_keep(c.place, false);
    pass(&c.s.f, 60 * NSEC_PER_SEC);
    manager_reap(c.s.f.m);
    pump(&c.s.f);
    assert_null(manager_find(c.s.f.m, "mcp-0"));
    /* One that goes meanwhile is made again, and kept again. */
    c.place->keeps = true;
    call(&c, "1", "exec", "{\"command\":\"pwd\"}");
    struct heard h;
    delete_id(&c.s.f, "mcp-0", &h);
    pump(&c.s.f);
    call(&c, "1", "exec", "{\"command\":\"pwd\"}");
    pass(&c.s.f, 60 * NSEC_PER_SEC);
    manager_reap(c.s.f.m);
    pump(&c.s.f);
    assert_non_null(manager_find(c.s.f.m, "mcp-0"));
    scene_stop(&c);
}

static void a_token_does_what_its_scope_names(void **state)
{
    static const char file[] =
        "{\"tokens\":[{\"name\":\"ci\",\"token\":\"0123456789abcdef0123456789abcdef\","
        "\"profiles\":[\"*\"],\"tools\":[\"exec\"],\"sessions\":[\"ci-*\"]}]}";
    AUTO(json) struct json *object = NULL;
    AUTO(authz) struct authz *authz = NULL;
    struct err err = {0};
    struct scene c;

    assert_int_equal(json_parse(file, strlen(file), &object, &err), 0);
    if (authz_parse(object, &authz, &err) < 0)
        fail_msg("%s", err.msg);
    const struct authz_scope *scope =
        authz_find(authz, "0123456789abcdef0123456789abcdef", 32, 1000000000ULL * 1000000000ULL);
    assert_non_null(scope);
    scene_start(&c, scope, "ci");
    call(&c, "1", "exec", "{\"command\":\"echo mine\"}");
    assert_string_equal(shown(&c), "mine\n");
    assert_string_equal(json_str(json_get(structured(&c), "session_id")), "ci-mcp-0");
    call(&c, "1", "read", "{\"path\":\"x\"}");
    assert_true(says_no(&c));
    expect_log(&c.s, "\"denied\"");
    call(&c, "1", "create_session", "{}");
    assert_true(says_no(&c));
    call(&c, "1", "start_process", "{\"command\":\"cat\"}");
    assert_true(says_no(&c));
    session_release(ready_session(&c.s.f, "other"));
    call(&c, "1", "exec", "{\"command\":\"pwd\",\"session_id\":\"other\"}");
    assert_true(says_no(&c) && strstr(shown(&c), "not found") != NULL);
    /* What it may not read is not listed, either. */
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/list\",\"params\":{" META "}}");
    assert_int_equal(json_len(json_get(result(&c), "resources")), 0);
    scene_stop(&c);
}

static void names_of_sessions_follow_the_scope(void **state)
{
    AUTO_FREE char *local = authz_session_name(NULL, "mcp-x");
    assert_string_equal(local, "mcp-x");
}

/* Processes. */

static void a_process_is_written_to_and_read(void **state)
{
    struct manager_options roomy = {
        .max_sessions = 10, .max_processes = 10, .max_exited = 10, .exited_ns = 100 * NSEC_PER_SEC};
    struct scene c;
    scene_start(&c, NULL, "local");
    manager_set_caps(c.s.f.m, roomy.max_sessions, roomy.max_processes, roomy.max_exited,
                     roomy.exited_ns);
    call(&c, "1", "start_process", "{\"process_id\":\"p\",\"command\":\"cat\",\"wait_ms\":0}");
    assert_string_equal(json_str(json_get(structured(&c), "status")), "running");
    call(&c, "1", "write_stdin", "{\"process_id\":\"p\",\"data\":\"hello\\n\"}");
    assert_int_equal(json_int(json_get(structured(&c), "written_bytes")), 6);
    call(&c, "1", "write_stdin",
         "{\"process_id\":\"p\",\"data\":\"d29ybGQK\",\"encoding\":\"base64\"}");
    assert_int_equal(json_int(json_get(structured(&c), "written_bytes")), 6);
    call(&c, "1", "write_stdin", "{\"process_id\":\"p\",\"data\":\"%\",\"encoding\":\"base64\"}");
    assert_true(says_no(&c));
    call(&c, "1", "read_process_output", "{\"process_id\":\"p\"}");
    assert_string_equal(json_str(json_get(structured(&c), "output")), "hello\nworld\n");
    assert_int_equal(json_int(json_get(structured(&c), "next_offset")), 12);
    assert_false(json_bool(json_get(structured(&c), "end")));
    /* Waiting for more, until it comes. */
    int n = c.answers;
    call(&c, "2", "read_process_output", "{\"process_id\":\"p\",\"offset\":12,\"wait_ms\":5000}");
    assert_int_equal(c.answers, n);
    call(&c, "1", "write_stdin", "{\"process_id\":\"p\",\"data\":\"more\"}");
    assert_int_equal(c.answers, n + 2);
    call(&c, "2", "read_process_output", "{\"process_id\":\"p\",\"offset\":16,\"wait_ms\":5000}");
    assert_int_equal(c.answers, n + 2);
    pass(&c.s.f, 6 * NSEC_PER_SEC); /* or until the patience is gone */
    assert_string_equal(json_str(json_get(structured(&c), "output")), "");
    call(&c, "2", "read_process_output", "{\"process_id\":\"p\",\"offset\":0}");
    assert_true(says_no(&c)); /* forgotten */
    call(&c, "1", "start_process", "{\"process_id\":\"q\",\"command\":\"cat\",\"wait_ms\":0}");
    call(&c, "1", "write_stdin", "{\"process_id\":\"q\",\"data\":\"x\",\"close\":true}");
    call(&c, "1", "read_process_output", "{\"process_id\":\"q\"}");
    assert_string_equal(json_str(json_get(structured(&c), "output")), "x");
    assert_true(json_bool(json_get(structured(&c), "end")));
    assert_string_equal(json_str(json_get(structured(&c), "status")), "exited");
    call(&c, "1", "write_stdin", "{\"process_id\":\"q\",\"data\":\"x\"}");
    assert_true(says_no(&c));
    call(&c, "1", "stop_process", "{\"process_id\":\"q\"}");
    call(&c, "1", "list_processes", "{}");
    assert_int_equal(json_len(json_get(structured(&c), "processes")), 1);
    call(&c, "1", "stop_process", "{\"process_id\":\"p\"}");
    for (int i = 0; i < 30; i++)
        pass(&c.s.f, NSEC_PER_SEC);
    assert_true(json_bool(json_get(structured(&c), "stopped")));
    call(&c, "1", "stop_process", "{\"process_id\":\"p\"}");
    assert_true(says_no(&c));
    scene_stop(&c);
}

static const char *status_of(const struct scene *c)
{
    return json_str(json_get(structured(c), "status"));
}

static void a_process_that_ends_at_once_is_told_with_its_error(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    manager_set_caps(c.s.f.m, 10, 10, 10, 100 * NSEC_PER_SEC);
    call(&c, "1", "start_process", "{\"command\":\"err no such script; exit 127\"}");
    assert_true(says_no(&c));
    assert_string_equal(shown(&c), "Process default has ended: exit code 127.\nno such script");
    assert_string_equal(status_of(&c), "exited");
    assert_int_equal(json_int(json_get(structured(&c), "exit_code")), 127);
    call(&c, "1", "start_process", "{\"command\":\"echo done\"}");
    assert_false(says_no(&c)); /* it has done its work */
    assert_string_equal(status_of(&c), "exited");
    /* One that goes on running is waited for no longer than was asked for. */
    int n = c.answers;
    call(&c, "1", "start_process", "{\"command\":\"cat\",\"wait_ms\":2000}");
    assert_int_equal(c.answers, n);
    pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.answers, n);
    pass(&c.s.f, 2 * NSEC_PER_SEC);
    assert_int_equal(c.answers, n + 1);
    assert_string_equal(status_of(&c), "running");
    /* One that is stopped meanwhile is gone. */
    call(&c, "1", "start_process", "{\"process_id\":\"p\",\"command\":\"cat\",\"wait_ms\":9000}");
    call(&c, "2", "stop_process", "{\"process_id\":\"p\"}");
    pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.answers, n + 3);
    scene_stop(&c);
}

static void a_process_takes_what_exec_takes(void **state)
{
    static const struct {
        const char *arguments, *says;
    } wrong[] = {
        {"{}", "command"},
        {"{\"command\":\" \"}", "empty"},
        {"{\"command\":\"cat\",\"workdir\":\"x\"}", "absolute"},
        {"{\"command\":\"cat\",\"workdir\":\"/a\",\"cwd\":\"/b\"}", "workdir and cwd"},
        {"{\"command\":\"cat\",\"timeout_sec\":-1}", "negative"},
        {"{\"command\":\"cat\",\"other\":1}", "other"},
        {"{\"command\":\"cat\",\"wait_ms\":60001}", "wait_ms"},
    };
    struct scene c;
    scene_start(&c, NULL, "local");
    manager_set_caps(c.s.f.m, 10, 10, 10, 100 * NSEC_PER_SEC);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        call(&c, "1", "start_process", wrong[i].arguments);
        if (!says_no(&c) || strstr(shown(&c), wrong[i].says) == NULL)
            fail_msg("row %zu: %s", i, c.text);
    }
    call(&c, "1", "start_process",
         "{\"command\":\"pwd; env; cat\",\"workdir\":\"/tmp\",\"env\":{\"A\":\"1\"},"
         "\"timeout_sec\":5,\"description\":\"a server\",\"wait_ms\":0}");
    assert_string_equal(json_str(json_get(structured(&c), "command")), "/bin/sh");
    call(&c, "1", "read_process_output", "{}");
    assert_string_equal(json_str(json_get(structured(&c), "output")), "/tmp\nA=1\n");
    pass(&c.s.f, 6 * NSEC_PER_SEC);
    call(&c, "1", "read_process_output", "{}");
    assert_string_equal(status_of(&c), "exited"); /* its time was up */
    /* With arguments it is a program, and no shell reads it. */
    call(&c, "1", "start_process", "{\"command\":\"echo\",\"args\":[\"a;\",\"b\"],\"cwd\":\"/\"}");
    assert_string_equal(json_str(json_get(structured(&c), "command")), "echo");
    call(&c, "1", "read_process_output", "{}");
    assert_string_equal(json_str(json_get(structured(&c), "output")), "a; b\n");
    scene_stop(&c);
}

/* Whole outputs. */

static void what_exec_has_shortened_is_read_by_its_id(void **state)
{
    AUTO_FREE char *id = NULL, *text = NULL;
    struct scene c;
    scene_start(&c, NULL, "local");
    call(&c, "1", "exec", "{\"command\":\"flood 60000\"}");
    id = xstrdup(json_str(json_get(structured(&c), "stdout_id")));
    text = xasprintf("{\"output_id\":\"%s\",\"offset\":59998}", id);
    call(&c, "1", "read_output", text);
    assert_string_equal(json_str(json_get(structured(&c), "output")), "xx");
    assert_int_equal(json_type(json_get(structured(&c), "next_offset")), JSON_NULL);
    assert_int_equal(json_int(json_get(structured(&c), "produced_bytes")), 60000);
    free(text);
    text = xasprintf("{\"output_id\":\"%s\",\"max_bytes\":51200}", id);
    call(&c, "1", "read_output", text);
    assert_int_equal(json_int(json_get(structured(&c), "next_offset")), 51200);
    free(text);
    text = xasprintf("{\"output_id\":\"%s\",\"max_bytes\":51201}", id);
    call(&c, "1", "read_output", text);
    assert_true(says_no(&c));
    free(text);
    text = xasprintf("{\"output_id\":\"%s\",\"offset\":60001}", id);
    call(&c, "1", "read_output", text);
    assert_true(says_no(&c));
    /* An id is read in the session that it was given in, and nowhere else. */
    call(&c, "1", "create_session", "{\"name\":\"two\"}");
    free(text);
    text = xasprintf("{\"output_id\":\"%s\",\"session_id\":\"mcp-0-two\"}", id);
    call(&c, "1", "read_output", text);
    assert_true(says_no(&c));
    call(&c, "1", "read_output", "{\"output_id\":\"0123456789abcdef0\"}");
    assert_true(says_no(&c));
    scene_stop(&c);
}

/* Resources. */

static void workspaces_are_resources(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c, INITIALIZE);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/templates/list\"}");
    const struct json *t = json_at(json_get(result(&c), "resourceTemplates"), 0);
    assert_string_equal(json_str(json_get(t, "uriTemplate")),
                        "box://sessions/{session_id}/files{+path}");
    for (int i = 0; i < 103; i++) {
        AUTO_FREE char *id = xasprintf("mcp-0-s%d", i);
        session_release(ready_session(&c.s.f, id));
    }
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/list\"}");
    assert_int_equal(json_len(json_get(result(&c), "resources")), 100);
    assert_string_equal(json_str(json_get(result(&c), "nextCursor")), "mcp-0-s99");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/list\",\"params\":{\"cursor\":"
             "\"mcp-0-s99\"}}");
    assert_int_equal(json_len(json_get(result(&c), "resources")), 3);
    assert_null(json_get(result(&c), "nextCursor"));
    const struct json *first = json_at(json_get(result(&c), "resources"), 0);
    assert_string_equal(json_str(json_get(first, "uri")),
                        "box://sessions/mcp-0-s100/files/workspace");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/list\",\"params\":{\"cursor\":"
             "\"nope\"}}");
    assert_int_equal(error_code(&c), -32602);
    scene_stop(&c);
}

static void resources_that_are_none_are_not_found(void **state)
{
    static const char *const uris[] = {
        "",
        "file:///etc/passwd",
        "box://sessions/",
        "box://sessions/mcp-0",
        "box://sessions/mcp-0/files",
        "box://sessions/mcp-0/filesx/a",
        "box://sessions/gone/files/workspace/a",
        "box://sessions/somebody/files/workspace/a",
        "box://sessions/mcp-0/files/workspace/%zz",
        "box://sessions/mcp-0/files/workspace/%00",
        "box://sessions/mcp-0/files/workspace/%2",
    };
    struct scene c;
    scene_start(&c, NULL, "local");
    session_release(ready_session(&c.s.f, "somebody"));
    session_release(ready_session(&c.s.f, "mcp-0"));
    for (size_t i = 0; i < ARRAY_SIZE(uris); i++) {
        AUTO_FREE char *modern =
            xasprintf("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{"
                      "\"uri\":\"%s\"," META "}}",
                      uris[i]);
        tell(&c, modern);
        if (error_code(&c) != -32602)
            fail_msg("%s: %s", uris[i], c.text);
    }
    tell(&c, INITIALIZE);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":"
             "\"box://sessions/gone/files/workspace/a\"}}");
    assert_int_equal(error_code(&c), -32002);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":"
             "\"box://sessions/mcp-0/files/etc/passwd\"}}");
    assert_int_equal(error_code(&c), -32602);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\"}");
    assert_int_equal(error_code(&c), -32602);
    scene_stop(&c);
}

static void callers_whose_requests_stand_alone_share_a_place(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    struct mcp_place *a = mcp_place_of_caller(c.mcp, NULL, "local");
    assert_ptr_equal(a, mcp_place_of_caller(c.mcp, NULL, "local"));
    assert_string_equal(a->session_id, "mcp-local");
    assert_true(a->shared);
    struct mcp_place *b = mcp_place_of_caller(c.mcp, NULL, "a name/with blanks");
    assert_true(id_valid(b->session_id));
    assert_false(mcp_place_reaches(a, b->session_id));
    /* The same id twice is two clients. */
    mcp_place_close(c.place);
    c.place = a;
    a->refs++;
    call(&c, "7", "exec", "{\"command\":\"sleep 1000; echo 1\"}");
    call(&c, "7", "exec", "{\"command\":\"sleep 1000; echo 2\"}");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":"
             "{\"requestId\":7}}"); /* and nobody ends another's */
    pass(&c.s.f, 2 * NSEC_PER_SEC);
    assert_int_equal(c.answers, 2);
    mcp_place_release(a);
    c.place = NULL;
    scene_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_without_a_scope_reaches_only_what_is_its_own),
        cmocka_unit_test(a_model_does_not_outvote_who_started_the_server),
        cmocka_unit_test(what_is_ephemeral_goes_with_its_client),
        cmocka_unit_test(the_session_of_a_client_that_is_there_is_never_idle),
        cmocka_unit_test(a_token_does_what_its_scope_names),
        cmocka_unit_test(names_of_sessions_follow_the_scope),
        cmocka_unit_test(a_process_is_written_to_and_read),
        cmocka_unit_test(a_process_that_ends_at_once_is_told_with_its_error),
        cmocka_unit_test(a_process_takes_what_exec_takes),
        cmocka_unit_test(what_exec_has_shortened_is_read_by_its_id),
        cmocka_unit_test(workspaces_are_resources),
        cmocka_unit_test(resources_that_are_none_are_not_found),
        cmocka_unit_test(callers_whose_requests_stand_alone_share_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
