/* SPDX-License-Identifier: Apache-2.0 */
#include "mcp_scene.h"

/* Messages. */

static const struct {
    const char *text;
    int code;
} bad[] = {
    {"", -32700},
    {"{", -32700},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}", -32700},
    {"{\"jsonrpc\":\"2.0\",\"id\":99999999999999999999,\"method\":\"ping\"}", -32700},
    {"[]", -32600},
    {"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600},
    {"1", -32600},
    {"{}", -32600},
    {"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":1}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\\u0000x\"}", -32600},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":[]}", -32602},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"_meta\":1}}", -32602},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":{\"progressToken\":[]}}"
     "}",
     -32602},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":"
     "{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"}}}",
     -32602},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":"
     "{\"io.modelcontextprotocol/protocolVersion\":3}}}",
     -32602},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":"
     "{\"io.modelcontextprotocol/protocolVersion\":\"1900-01-01\"}}}",
     -32022},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":"
     "{\"io.modelcontextprotocol/protocolVersion\":\"2025-11-25\"}}}",
     -32022},
};

static void bad_messages_are_refused_with_the_code_of_the_specification(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        AUTO_DONE(mcp_message) struct mcp_message m = {0};
        struct mcp_error why = {0};
        if (mcp_message_parse(bad[i].text, strlen(bad[i].text), &m, &why) == 0)
            fail_msg("row %zu is taken", i);
        if (why.code != (enum mcp_code)bad[i].code)
            fail_msg("row %zu: %d, %s", i, why.code, why.text);
    }
}

static void long_ids_and_deep_messages_are_refused(void **state)
{
    AUTO_DONE(buf) struct buf text = {0};
    struct mcp_message m = {0};
    struct mcp_error why;

    buf_init(&text, 1 << 20);
    (void)buf_puts(&text, "{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":\"");
    for (int i = 0; i < 257; i++)
        (void)buf_putc(&text, 'x');
    (void)buf_puts(&text, "\"}");
    assert_true(mcp_message_parse(text.data, text.len, &m, &why) < 0);
    assert_int_equal(why.code, MCP_INVALID_REQUEST);
    assert_null(m.id); /* nothing of it comes back */
    mcp_message_done(&m);
    buf_reset(&text);
    for (int i = 0; i < 100000; i++)
        (void)buf_putc(&text, '[');
    assert_true(mcp_message_parse(text.data, text.len, &m, &why) < 0);
    assert_true(why.code == MCP_INVALID_REQUEST || why.code == MCP_PARSE_ERROR);
    mcp_message_done(&m);
}

static void an_unsupported_revision_is_told_which_there_are(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c, bad[ARRAY_SIZE(bad) - 2].text);
    const struct json *data = json_get(json_get(c.last, "error"), "data");
    assert_string_equal(json_str(json_get(data, "requested")), "1900-01-01");
    assert_string_equal(json_str(json_at(json_get(data, "supported"), 0)), "2026-07-28");
    assert_string_equal(json_str(json_at(json_get(data, "supported"), 1)), "2025-11-25");
    assert_int_equal(json_int(json_get(c.last, "id")), 1);
    scene_stop(&c);
}

static void headers_are_compared_after_decoding(void **state)
{
    assert_true(mcp_header_matches("exec", "exec"));
    assert_false(mcp_header_matches("Exec", "exec"));
    assert_false(mcp_header_matches(NULL, "exec"));
    assert_true(mcp_header_matches("=?base64?ZXhlYw==?=", "exec"));
    assert_false(mcp_header_matches("=?base64?ZXhlYw==?=", "=?base64?ZXhlYw==?="));
    assert_false(mcp_header_matches("=?base64?%%%?=", "exec"));
    assert_false(mcp_header_matches("=?base64?=", "exec"));
    assert_true(mcp_header_matches("=?base64?"
                                   "?=",
                                   ""));
}

static void the_handshake_agrees_on_the_newest_that_both_know(void **state)
{
    assert_string_equal(mcp_negotiate("2025-06-18"), "2025-06-18");
    assert_string_equal(mcp_negotiate("2024-11-05"), "2024-11-05");
    assert_string_equal(mcp_negotiate("2026-07-28"), "2025-11-25");
    assert_string_equal(mcp_negotiate("2099-01-01"), "2025-11-25");
}

/* The two eras. */

static void nothing_but_ping_comes_before_initialize(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}");
    assert_int_equal(error_code(&c), -32600);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}");
    assert_int_equal(json_len(result(&c)), 0);
    tell(&c, INITIALIZE);
    assert_string_equal(json_str(json_get(result(&c), "protocolVersion")), "2025-11-25");
    assert_null(json_get(result(&c), "resultType"));
    tell(&c, INITIALIZE);
    assert_int_equal(error_code(&c), -32600);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}");
    assert_null(json_get(result(&c), "ttlMs"));
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"prompts/list\"}");
    assert_int_equal(error_code(&c), -32601);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server/discover\"}");
    assert_int_equal(error_code(&c), -32602);
    int n = c.answers;
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{}}"); /* to what we never asked */
    tell(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/whatever\"}");
    assert_int_equal(c.answers, n);
    scene_stop(&c);
}

static void a_request_that_stands_alone_needs_no_handshake(void **state)
{
    static const char *const gone[] = {"initialize", "ping", "resources/subscribe",
                                       "logging/setLevel"};
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c,
         "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"server/discover\",\"params\":{" META "}}");
    assert_string_equal(json_str(json_get(result(&c), "resultType")), "complete");
    assert_string_equal(json_str(json_at(json_get(result(&c), "supportedVersions"), 0)),
                        "2026-07-28");
    assert_non_null(json_get(json_get(result(&c), "capabilities"), "tools"));
    assert_string_equal(json_str(json_get(c.last, "id")), "a");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{" META "}}");
    assert_string_equal(json_str(json_get(result(&c), "cacheScope")), "public");
    assert_true(json_int(json_get(result(&c), "ttlMs")) > 0);
    for (size_t i = 0; i < ARRAY_SIZE(gone); i++) {
        AUTO_FREE char *text = xasprintf(
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"%s\",\"params\":{" META "}}", gone[i]);
        tell(&c, text);
        assert_int_equal(error_code(&c), -32601);
    }
    scene_stop(&c);
}

/* Tools. */

static const struct json *listed(const struct scene *c, const char *name)
{
    const struct json *tools = json_get(result(c), "tools");
    for (size_t i = 0; i < json_len(tools); i++)
        if (str_eq(json_str(json_get(json_at(tools, i), "name")), name))
            return json_at(tools, i);
    fail_msg("%s is not listed", name);
    return NULL;
}

static void every_row_of_the_table_is_listed_with_its_schema(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{" META "}}");
    assert_int_equal(json_len(json_get(result(&c), "tools")), tools_count() + 11);
    for (size_t i = 0; i < tools_count(); i++) {
        const struct tool *t = tools_at(i);
        const struct json *tool = listed(&c, t->name);
        const struct json *input = json_get(tool, "inputSchema");
        const struct json *hints = json_get(tool, "annotations");
        assert_int_equal(json_len(json_get(input, "properties")), t->params->n_fields + 1);
        assert_non_null(json_get(json_get(input, "properties"), "session_id"));
        assert_string_equal(json_str(json_get(input, "type")), "object");
        assert_int_equal(json_bool(json_get(hints, "readOnlyHint")), t->kind == TOOL_READS);
        assert_int_equal(json_bool(json_get(hints, "destructiveHint")), t->kind != TOOL_READS);
        assert_true(json_len(json_get(json_get(tool, "outputSchema"), "properties")) > 0);
    }
    const struct json *make =
        json_get(json_get(listed(&c, "create_session"), "inputSchema"), "properties");
    assert_null(json_get(make, "host_path"));
    assert_null(json_get(make, "extra_mounts"));
    tell(
        &c,
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"," META
        "}}");
    assert_int_equal(error_code(&c), -32602);
    scene_stop(&c);
}

static void a_command_runs_in_a_session_that_is_made_for_it(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    call(&c, "1", "exec", "{\"command\":\"echo hi; exit 3\"}");
    assert_false(says_no(&c)); /* it ran */
    assert_string_equal(shown(&c), "hi\n\n[exit code 3]");
    assert_int_equal(json_int(json_get(structured(&c), "exit_code")), 3);
    assert_string_equal(json_str(json_get(structured(&c), "session_id")), "mcp-0");
    assert_non_null(manager_find(c.s.f.m, "mcp-0"));
    expect_log(&c.s, "\"via\":\"mcp\"");
    /* Gone meanwhile: made again. */
    struct heard h;
    delete_id(&c.s.f, "mcp-0", &h);
    pump(&c.s.f);
    call(&c, "1", "exec", "{\"command\":\"echo again\"}");
    assert_string_equal(shown(&c), "again\n");
    scene_stop(&c);
}

static void failures_of_tools_are_results_and_those_of_the_protocol_errors(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    call(&c, "1", "nope", "{}");
    assert_int_equal(error_code(&c), -32602);
    call(&c, "1", "exec", "[]");
    assert_int_equal(error_code(&c), -32602);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{" META "}}");
    assert_int_equal(error_code(&c), -32602);
    call(&c, "1", "exec", "{}");
    assert_true(says_no(&c)); /* the model can mend that */
    call(&c, "1", "exec", "{\"command\":\"pwd\",\"sudo\":true}");
    assert_true(says_no(&c));
    call(&c, "1", "exec", "{\"command\":\"pwd\",\"session_id\":7}");
    assert_true(says_no(&c));
    call(&c, "1", "exec", "{\"command\":\"pwd\",\"session_id\":\"mcp-0-gone\"}");
    assert_true(says_no(&c) && strstr(shown(&c), "not found") != NULL);
    call(&c, "1", "exec", "{\"command\":\"sleep 10000\",\"timeout_sec\":1}");
    int n = c.answers;
    pass(&c.s.f, 2 * NSEC_PER_SEC);
    assert_int_equal(c.answers, n + 1);
    assert_true(says_no(&c));
    scene_stop(&c);
}

static void a_call_that_is_taken_back_is_killed_and_never_answered(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    call(&c, "\"x\"", "exec", "{\"command\":\"sleep 100000\"}");
    struct session *s = manager_find(c.s.f.m, "mcp-0");
    assert_int_equal(session_execs(s), 1);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":"
             "{\"requestId\":\"y\"}}");
    assert_int_equal(session_execs(s), 1);
    tell(&c, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":"
             "{\"requestId\":\"x\",\"reason\":\"enough\"}}");
    assert_int_equal(session_execs(s), 0);
    pass(&c.s.f, 200 * NSEC_PER_SEC);
    assert_int_equal(c.answers, 0);
    assert_int_equal(c.silent, 1);
    /* Also while its session is still being made. */
    struct heard h;
    delete_id(&c.s.f, "mcp-0", &h);
    pump(&c.s.f);
    AUTO_DONE(mcp_message) struct mcp_message m = {0};
    struct mcp_error why;
    struct mcp_call *slot = NULL;
    static const char exec[] =
        "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"exec\","
        "\"arguments\":{\"command\":\"pwd\"}," META "}}";
    assert_int_equal(mcp_message_parse(exec, strlen(exec), &m, &why), 0);
    mcp_receive(c.place, &m, &scene_sink, &c, &slot);
    assert_non_null(slot);
    mcp_call_free(slot);
    assert_null(slot);
    pump(&c.s.f);
    assert_int_equal(c.answers, 0);
    scene_stop(&c);
}

static void an_id_that_is_in_use_does_not_end_the_first(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    call(&c, "7", "exec", "{\"command\":\"sleep 1000; echo first\"}");
    call(&c, "7", "exec", "{\"command\":\"echo second\"}");
    assert_int_equal(error_code(&c), -32600);
    assert_int_equal(json_type(json_get(c.last, "id")), JSON_NULL);
    pass(&c.s.f, 2 * NSEC_PER_SEC);
    assert_string_equal(shown(&c), "first\n");
    scene_stop(&c);
}

static void requests_under_way_are_bounded(void **state)
{
    struct scene c;
    char id[16];
    scene_start(&c, NULL, "local");
    for (unsigned i = 0; i < MCP_CALLS_MAX; i++) {
        (void)snprintf(id, sizeof(id), "%u", i);
        call(&c, id, "exec", "{\"command\":\"sleep 1000\"}");
    }
    assert_int_equal(c.answers, 0);
    call(&c, "\"more\"", "list_sessions", "{}");
    assert_int_equal(error_code(&c), -32603);
    assert_string_equal(json_str(json_get(c.last, "id")), "more");
    pass(&c.s.f, 2 * NSEC_PER_SEC);
    assert_int_equal(c.answers, (int)MCP_CALLS_MAX + 1);
    call(&c, "\"more\"", "list_sessions", "{}");
    assert_int_equal(json_int(json_get(structured(&c), "total")), 1);
    scene_stop(&c);
}

/* Progress. */

static void output_is_shown_on_the_way_now_and_then(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c,
         "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"exec\","
         "\"arguments\":{\"command\":\"echo a; sleep 100; echo b; sleep 1000; echo c; sleep "
         "25000\"},\"_meta\":{\"progressToken\":\"tok\","
         "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\","
         "\"io.modelcontextprotocol/clientCapabilities\":{}}}}");
    assert_int_equal(c.notes, 0);
    pass(&c.s.f, 100 * NSEC_PER_MSEC);
    assert_int_equal(c.notes, 0); /* both lines in one */
    pass(&c.s.f, 500 * NSEC_PER_MSEC);
    assert_int_equal(c.notes, 1);
    assert_non_null(strstr(c.note, "\"progressToken\":\"tok\""));
    assert_non_null(strstr(c.note, "\"message\":\"a\\nb\\n\""));
    pass(&c.s.f, NSEC_PER_SEC);
    pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.notes, 2);
    assert_non_null(strstr(c.note, "\"message\":\"c\\n\""));
    for (int i = 0; i < 22; i++) /* silence is told, too */
        pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.notes, 4);
    for (int i = 0; i < 5; i++)
        pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.answers, 1);
    int n = c.notes;
    pass(&c.s.f, 100 * NSEC_PER_SEC);
    assert_int_equal(c.notes, n); /* nothing after the answer */
    scene_stop(&c);
}

static void a_flood_is_shown_as_its_end(void **state)
{
    struct scene c;
    scene_start(&c, NULL, "local");
    tell(&c,
         "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"exec\","
         "\"arguments\":{\"command\":\"flood 1000000; echo end; sleep 2000\"},\"_meta\":"
         "{\"progressToken\":1,\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\","
         "\"io.modelcontextprotocol/clientCapabilities\":{}}}}");
    pass(&c.s.f, NSEC_PER_SEC);
    assert_int_equal(c.notes, 1);
    assert_true(strlen(c.note) < 5000);
    assert_non_null(strstr(c.note, "end\\n\""));
    scene_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_messages_are_refused_with_the_code_of_the_specification),
        cmocka_unit_test(long_ids_and_deep_messages_are_refused),
        cmocka_unit_test(an_unsupported_revision_is_told_which_there_are),
        cmocka_unit_test(headers_are_compared_after_decoding),
        cmocka_unit_test(the_handshake_agrees_on_the_newest_that_both_know),
        cmocka_unit_test(nothing_but_ping_comes_before_initialize),
        cmocka_unit_test(a_request_that_stands_alone_needs_no_handshake),
        cmocka_unit_test(every_row_of_the_table_is_listed_with_its_schema),
        cmocka_unit_test(a_command_runs_in_a_session_that_is_made_for_it),
        cmocka_unit_test(failures_of_tools_are_results_and_those_of_the_protocol_errors),
        cmocka_unit_test(a_call_that_is_taken_back_is_killed_and_never_answered),
        cmocka_unit_test(an_id_that_is_in_use_does_not_end_the_first),
        cmocka_unit_test(requests_under_way_are_bounded),
        cmocka_unit_test(output_is_shown_on_the_way_now_and_then),
        cmocka_unit_test(a_flood_is_shown_as_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
