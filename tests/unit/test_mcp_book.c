/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/mcp/requests.h"
#include "cli/mcp/status.h"

/* Lines as they pass. */

static void note(void *arg, const struct mcp_msg *m)
{
    (void)buf_printf(arg, "[%s|%s%s%s]", m->id, m->method, m->has_result ? "|result" : "",
                     m->has_error ? "|error" : "");
}

/* In one piece, and byte by byte. */
static void scans(const char *line, const char *expected)
{
    for (size_t step = 1; step <= strlen(line); step += strlen(line) > 1 ? strlen(line) - 1 : 1) {
        AUTO_DONE(buf) struct buf out;
        struct mcp_scan s;
        buf_init(&out, 65536);
        mcp_scan_reset(&s);
        for (size_t i = 0; i < strlen(line); i += step) {
            size_t n = strlen(line) - i < step ? strlen(line) - i : step;
            mcp_scan_feed(&s, line + i, n, note, &out);
        }
        assert_string_equal(buf_str(&out), expected);
    }
}

static void messages_are_seen_byte_by_byte(void **state)
{
    scans("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", "[1|ping]");
    scans("{\"id\":\"a b\",\"result\":{\"id\":2,\"method\":\"x\"}}", "[\"a b\"||result]");
    scans("{\"result\":{\"a\":[{\"id\":9}],\"s\":\"}\\\"{\"}, \"jsonrpc\":\"2.0\", \"id\" : 7 }",
          "[7||result]");
    scans("{\"error\":{\"code\":1,\"message\":\"id\"},\"id\":null}", "[||error]");
    scans("{\"method\":\"notifications/initialized\"}", "[|notifications/initialized]");
    scans("[{\"id\":1,\"method\":\"a\"},{\"id\":2,\"result\":[]}]", "[1|a][2||result]");
    scans("{\"id\":-1.5e3,\"method\":\"a\"}", "[-1.5e3|a]");
    scans("{\"id\":\"x\\\"y\",\"method\":\"a\"}", "[\"x\\\"y\"|a]");
    scans("{\"params\":{\"method\":\"no\"},\"method\":\"yes\",\"id\":1}", "[1|yes]");
}

static void what_is_no_json_is_no_message(void **state)
{
    scans("hello {\"id\":1,\"method\":\"a\"}", "");
    scans("\"{\\\"id\\\":1}\"", "");
    scans("}{", "");
    scans("{\"id\":1,\"method\":\"cut", "");
    scans("{", "");
}

static void an_id_that_is_too_long_is_not_relied_on(void **state)
{
    AUTO_DONE(buf) struct buf line;
    struct mcp_requests b;

    buf_init(&line, 4096);
    (void)buf_puts(&line, "{\"method\":\"a\",\"id\":\"");
    for (int i = 0; i < 300; i++)
        (void)buf_putc(&line, 'x');
    (void)buf_puts(&line, "\"}\n");
    mcp_requests_init(&b);
    assert_int_equal(mcp_requests_from_client(&b, line.data, line.len), MCP_PASS);
    assert_int_equal(b.n_asked, 0);
    mcp_requests_done(&b);
}

/* Who waits for what. */

static enum mcp_verdict client(struct mcp_requests *b, const char *line)
{
    return mcp_requests_from_client(b, line, strlen(line));
}

struct server_line {
    struct mcp_requests *book;
    enum mcp_verdict verdict;
};

static void on_server(void *arg, const struct mcp_msg *msg)
{
    struct server_line *l = arg;

    l->verdict = mcp_requests_from_server(l->book, msg);
}

static enum mcp_verdict server(struct mcp_requests *b, const char *line)
{
    struct server_line l = {.book = b, .verdict = MCP_PASS};
    struct mcp_scan s;

    mcp_scan_reset(&s);
    mcp_scan_feed(&s, line, strlen(line), on_server, &l);
    return l.verdict;
}

#define INIT "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{}}\n"
#define INITIALIZED "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n"
#define ANSWER0 "{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}"

static void died_says(struct mcp_requests *b, const char *expected)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 65536);
    mcp_requests_server_died(b, "gone", &out);
    assert_string_equal(buf_str(&out), expected);
}

static void replay_is(struct mcp_requests *b, const char *expected)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 65536);
    mcp_requests_replay(b, &out);
    assert_string_equal(buf_str(&out), expected);
}

static void replayed_is(struct mcp_requests *b, const char *expected)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 65536);
    mcp_requests_replayed(b, &out);
    assert_string_equal(buf_str(&out), expected);
}

static void a_handshake_is_replayed_and_its_answer_kept_back(void **state)
{
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(client(&b, INIT), MCP_PASS);
    assert_false(b.answered_any);
    assert_int_equal(server(&b, ANSWER0), MCP_PASS);
    assert_true(b.answered_any);
    assert_int_equal(client(&b, INITIALIZED), MCP_PASS);
    assert_int_equal(client(&b, "{\"id\":\"q\",\"method\":\"tools/call\"}\n"), MCP_PASS);
    died_says(&b,
              "{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"error\":{\"code\":-32000,\"message\":\"gone\"}}"
              "\n");
    replay_is(&b, INIT);
    assert_true(b.replaying);
    assert_int_equal(server(&b, "{\"method\":\"notifications/x\"}"), MCP_PASS);
    assert_int_equal(server(&b, ANSWER0), MCP_DROP);
    replayed_is(&b, INITIALIZED);
    assert_false(b.replaying);
    died_says(&b, "");
    mcp_requests_done(&b);
}

static void an_initialize_without_an_answer_goes_to_the_next_server(void **state)
{
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(client(&b, INIT), MCP_PASS);
    died_says(&b, "");
    replay_is(&b, INIT);
    assert_false(b.replaying); /* this time the client waits for it */
    assert_int_equal(server(&b, ANSWER0), MCP_PASS);
    mcp_requests_done(&b);
}

static void without_a_handshake_nothing_is_replayed(void **state)
{
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(client(&b, "{\"id\":1,\"method\":\"tools/call\",\"params\":{\"_meta\":{}}}\n"),
                     MCP_PASS);
    died_says(&b,
              "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"gone\"}}\n");
    replay_is(&b, "");
    mcp_requests_done(&b);
}

static void test_row_F12_giving_up_answers_everybody(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct mcp_requests b;

    buf_init(&out, 65536);
    mcp_requests_init(&b);
    assert_int_equal(client(&b, INIT), MCP_PASS);
    mcp_requests_give_up(&b, "no", &out);
    assert_string_equal(buf_str(&out), "{\"jsonrpc\":\"2.0\",\"id\":0,\"error\":{\"code\":-32000,"
                                       "\"message\":\"no\"}}\n");
    assert_int_equal(b.n_asked, 0);
    replay_is(&b, "");
    buf_reset(&out);
    mcp_requests_refuse("[{\"id\":1,\"method\":\"a\"},{\"method\":\"b\"},{\"id\":2,\"result\":0}]",
                        56, "no", &out);
    assert_string_equal(buf_str(&out), "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,"
                                       "\"message\":\"no\"}}\n");
    mcp_requests_done(&b);
}

static void an_answer_to_a_dead_server_is_not_for_the_next(void **state)
{
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(server(&b, "{\"id\":0,\"method\":\"roots/list\"}"), MCP_PASS);
    died_says(&b, "");
    assert_int_equal(server(&b, "{\"id\":0,\"method\":\"roots/list\"}"), MCP_PASS);
    assert_int_equal(client(&b, "{\"id\":0,\"result\":{}}\n"), MCP_DROP);
    assert_int_equal(client(&b, "{\"id\":0,\"result\":{}}\n"), MCP_PASS);
    mcp_requests_done(&b);
}

static void of_two_answers_to_a_request_sent_twice_one_passes(void **state)
{
    static const char line[] = "{\"id\":5,\"method\":\"tools/call\"}\n";
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(client(&b, line), MCP_PASS);
    mcp_requests_sent_again(&b, line, strlen(line));
    assert_int_equal(server(&b, "{\"id\":5,\"result\":1}"), MCP_PASS);
    assert_int_equal(server(&b, "{\"id\":5,\"result\":1}"), MCP_TWICE);
    assert_int_equal(server(&b, "{\"id\":5,\"result\":1}"), MCP_PASS); /* its own doing */
    mcp_requests_done(&b);
}

static void so_many_requests_are_known_and_no_more(void **state)
{
    struct mcp_requests b;

    mcp_requests_init(&b);
    for (int i = 0; i < MCP_IN_FLIGHT_MAX + 10; i++) {
        char line[64];
        (void)str_fmt(line, sizeof(line), "{\"id\":%d,\"method\":\"a\"}\n", i);
        assert_int_equal(client(&b, line), MCP_PASS);
    }
    assert_int_equal(b.n_asked, MCP_IN_FLIGHT_MAX);
    mcp_requests_done(&b);
}

static void tools_are_read_from_the_answer_to_their_list(void **state)
{
    static const char line[] = "{\"id\":1,\"result\":{\"tools\":[{\"name\":\"a\",\"description\":"
                               "\"d\"},{\"name\":\"b\"}]}}";
    struct mcp_tools t = {0};
    struct mcp_requests b;

    mcp_requests_init(&b);
    assert_int_equal(client(&b, "{\"id\":1,\"method\":\"tools/list\"}\n"), MCP_PASS);
    assert_int_equal(server(&b, line), MCP_TOOLS);
    mcp_tools_read(&t, line, strlen(line), b.tools_more);
    assert_int_equal(t.total, 2);
    assert_string_equal(t.list[1].name, "b");
    assert_int_equal(
        client(&b, "{\"id\":1,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}\n"),
        MCP_PASS);
    assert_int_equal(server(&b, line), MCP_TOOLS);
    mcp_tools_read(&t, line, strlen(line), b.tools_more);
    assert_int_equal(t.total, 4);
    mcp_tools_read(&t, "{\"result\":7}", 12, false);
    assert_int_equal(t.total, 4);
    mcp_tools_done(&t);
    mcp_requests_done(&b);
}

/* Retries. */

static void test_row_F09_retries_come_after_2_4_and_8_seconds_then_slowly_for_ever(void **state)
{
    struct mcp_retry r;

    mcp_retry_init(&r);
    assert_int_equal(mcp_retry_failed(&r), 2 * NSEC_PER_SEC);
    assert_int_equal(mcp_retry_failed(&r), 4 * NSEC_PER_SEC);
    assert_int_equal(mcp_retry_failed(&r), 8 * NSEC_PER_SEC);
    assert_false(mcp_retry_exhausted(&r));
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(mcp_retry_failed(&r), 60 * NSEC_PER_SEC);
        assert_true(mcp_retry_exhausted(&r));
    }
    mcp_retry_worked(&r, NSEC_PER_SEC);
    assert_true(mcp_retry_exhausted(&r));
    mcp_retry_worked(&r, 31 * NSEC_PER_SEC);
    assert_int_equal(mcp_retry_failed(&r), 2 * NSEC_PER_SEC);
}

static void delays_can_be_given(void **state)
{
    static const char *const wrong[] = {"", "x", "1,", "-1", "1,2,3,4,5,6,7,8,9", "1e9", ",1"};
    struct mcp_retry r;

    mcp_retry_init(&r);
    assert_int_equal(mcp_retry_parse(&r, "0.5,0"), 0);
    assert_int_equal(mcp_retry_failed(&r), NSEC_PER_SEC / 2);
    assert_int_equal(mcp_retry_failed(&r), 0);
    assert_true(mcp_retry_exhausted(&r));
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_int_equal(mcp_retry_parse(&r, wrong[i]), -EINVAL);
}

static void phases_have_the_names_that_people_know(void **state)
{
    static const char *const names[] = {"session_create", "dep_install", "process_start",
                                        "relay_connect",  "mcp_init",    "runtime",
                                        "box_unavailable"};

    for (size_t i = 0; i < MCP_PHASE_MAX; i++)
        assert_string_equal(mcp_phase_name((enum mcp_phase)i), names[i]);
}

static void last_is(const char *text, const char *expected)
{
    char said[256], wanted[256];

    mcp_exit_text(1, "", text, said, sizeof(said));
    (void)snprintf(wanted, sizeof(wanted), "the server exited with status 1%s%s",
                   expected[0] != '\0' ? ": " : "", expected);
    assert_string_equal(said, wanted);
}

static void install_is(const char *text, const char *expected)
{
    AUTO(json) struct json *result = NULL;
    AUTO_DONE(buf) struct buf body;
    struct err err = {0};
    struct jw w;

    buf_init(&body, 4096);
    jw_init(&w, &body);
    jw_object(&w);
    jw_kstr(&w, "outcome", "exited");
    jw_kint(&w, "exit_code", 1);
    jw_kstr(&w, "stderr", text);
    jw_object_end(&w);
    assert_int_equal(json_parse(buf_str(&body), body.len, &result, &err), 0);
    AUTO_FREE char *said = mcp_install_failure(result, 5, NULL);
    AUTO_FREE char *wanted = xasprintf("Dependency install failed (exit code 1): %s", expected);
    assert_string_equal(said, wanted);
}

static void of_last_words_those_that_say_something_are_repeated(void **state)
{
    last_is("", "");
    last_is("\n \n", "");
    last_is("one", "one");
    last_is("Traceback:\n  File x\nKeyError: 'y'\n\n", "KeyError: 'y'");
    last_is("warn\nnpm error code E404\nnpm error 404 no such thing\nnpm error 404\n"
            "npm error A complete log of this run can be found in: /x\n",
            "npm error 404 no such thing");
    last_is("npm ERR! code X\nnpm ERR! why\n\nnpm ERR! A complete log\nnpm notice new\n",
            "npm ERR! why");
    last_is("npm error alone", "npm error alone");
    last_is("npm error early\nthe server's own words\n", "the server's own words");
    install_is("Collecting a\nERROR: no a\nmore\n", "ERROR: no a more");
    install_is("nothing\nof it", "nothing of it");
    install_is("", "");
    assert_string_equal(mcp_last_lines("a\nb\nc\n", 2), "b\nc\n");
    assert_string_equal(mcp_last_lines("a\nb", 5), "a\nb");
    assert_string_equal(mcp_last_lines("", 5), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_last_words_those_that_say_something_are_repeated),
        cmocka_unit_test(messages_are_seen_byte_by_byte),
        cmocka_unit_test(what_is_no_json_is_no_message),
        cmocka_unit_test(an_id_that_is_too_long_is_not_relied_on),
        cmocka_unit_test(a_handshake_is_replayed_and_its_answer_kept_back),
        cmocka_unit_test(an_initialize_without_an_answer_goes_to_the_next_server),
        cmocka_unit_test(without_a_handshake_nothing_is_replayed),
        cmocka_unit_test(test_row_F12_giving_up_answers_everybody),
        cmocka_unit_test(an_answer_to_a_dead_server_is_not_for_the_next),
        cmocka_unit_test(of_two_answers_to_a_request_sent_twice_one_passes),
        cmocka_unit_test(so_many_requests_are_known_and_no_more),
        cmocka_unit_test(tools_are_read_from_the_answer_to_their_list),
        cmocka_unit_test(test_row_F09_retries_come_after_2_4_and_8_seconds_then_slowly_for_ever),
        cmocka_unit_test(delays_can_be_given),
        cmocka_unit_test(phases_have_the_names_that_people_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
