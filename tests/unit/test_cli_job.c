/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <signal.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/exec.c"
#include "cli/io/app.h"

static void request_is(const char *expected, const struct job_terms *terms, int argc, char **argv)
{
    AUTO_DONE(args) struct args a;
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};

    buf_init(&out, 65536);
    if (args_parse(argc, argv, &a, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(job_write_request(&out, &a, terms), 0);
    assert_string_equal(buf_str(&out), expected);
}

#define REQUEST(expected, terms, ...)                                                              \
    do {                                                                                           \
        char *words[] = {(char[]){"box"}, __VA_ARGS__, NULL};                                      \
        request_is(expected, terms, (int)ARRAY_SIZE(words) - 1, words);                            \
    } while (0)

static void a_throw_away_run_says_only_what_was_given(void **state)
{
    const struct job_terms terms = {.rows = 24, .cols = 80};

    REQUEST("{\"session\":{},\"ephemeral\":true,\"create\":true,\"argv\":[\"true\"],"
            "\"tty\":false,\"stdin\":false}",
            &terms, (char[]){"run"}, (char[]){"--"}, (char[]){"true"});
}

static void a_named_run_keeps_its_session(void **state)
{
    const struct job_terms terms = {.rows = 24, .cols = 80, .with_stdin = true};

    REQUEST("{\"session\":{\"network\":\"on\",\"session_id\":\"s\",\"image\":\"i\","
            "\"extra_mounts\":[{\"host_path\":\"/etc\",\"mount_path\":\"/e\",\"mode\":\"ro\","
            "\"content_digest\":null,\"manifest_path\":null}],"
            "\"cpus\":0.5,\"memory_mb\":64,\"pids_limit\":9,\"read_only_rootfs\":false,"
            "\"workspace_quota_mb\":8,\"durable\":true},\"ephemeral\":false,\"create\":true,"
            "\"argv\":[\"a\",\"\"],"
            "\"env\":{\"A\":\"1=2\",\"B\":\"\"},\"cwd\":\"/w\",\"timeout_sec\":5,"
            "\"tty\":false,\"stdin\":true,\"stdin_acks\":true}",
            &terms, (char[]){"run"}, (char[]){"--session=s"}, (char[]){"--image=i"},
            (char[]){"--network=on"}, (char[]){"--mount=/etc:/e:ro"}, (char[]){"--cpus=0.5"},
            (char[]){"--memory-mb=64"}, (char[]){"--pids=9"}, (char[]){"--read-only-root=off"},
            (char[]){"--quota-mb=8"}, (char[]){"--env=A=1=2"}, (char[]){"--env=B="},
            (char[]){"--workdir=/w"}, (char[]){"--timeout=5"}, (char[]){"--"}, (char[]){"a"},
            (char[]){""});
}

static void exec_never_makes_a_session(void **state)
{
    const struct job_terms terms = {.rows = 30, .cols = 100, .with_stdin = true};

    REQUEST("{\"session\":{\"session_id\":\"s\"},\"ephemeral\":false,\"create\":false,"
            "\"argv\":[\"sh\"],\"env\":{\"A\":\"1\"},\"tty\":true,\"rows\":30,\"cols\":100,"
            "\"stdin\":true,\"stdin_acks\":true}",
            &terms, (char[]){"exec"}, (char[]){"s"}, (char[]){"-t"}, (char[]){"--env"},
            (char[]){"A=1"}, (char[]){"--"}, (char[]){"sh"});
}

static void control_messages_have_their_form(void **state)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 1024);
    assert_true(job_write_signal(&out, SIGINT) >= 0);
    assert_string_equal(buf_str(&out), "{\"type\":\"signal\",\"signal\":\"INT\"}");
    buf_reset(&out);
    assert_true(job_write_resize(&out, 3, 4) >= 0);
    assert_string_equal(buf_str(&out), "{\"type\":\"resize\",\"rows\":3,\"cols\":4}");
    buf_reset(&out);
    assert_string_equal(stdin_eof, "{\"type\":\"stdin_eof\"}");
    assert_true(job_write_signal(&out, SIGQUIT) >= 0);
    assert_string_equal(buf_str(&out), "{\"type\":\"signal\",\"signal\":\"QUIT\"}");
    buf_reset(&out);
    assert_true(job_write_signal(&out, SIGSEGV) >= 0);
    assert_string_equal(buf_str(&out), "{\"type\":\"signal\",\"signal\":null}");
}

static int event_of(const char *text, struct job_event *ret, struct err *err)
{
    return job_parse_event(text, strlen(text), ret, err);
}

static void events_are_told_apart(void **state)
{
    struct job_event e = {0};
    struct err err = {0};

    assert_int_equal(
        event_of("{\"type\":\"started\",\"session_id\":\"s\",\"memory_mb\":64,\"stdin_window\":9}",
                 &e, &err),
        0);
    assert_int_equal(e.type, JOB_EVENT_STARTED);
    assert_int_equal(e.memory_mb, 64);
    assert_int_equal(e.stdin_window, 9);
    assert_int_equal(event_of("{\"type\":\"started\",\"session_id\":\"s\"}", &e, &err), 0);
    assert_int_equal(e.stdin_window, 0);
    assert_int_equal(event_of("{\"type\":\"stdin_ack\",\"bytes\":7}", &e, &err), 0);
    assert_int_equal(e.type, JOB_EVENT_STDIN_ACK);
    assert_int_equal(e.stdin_acked, 7);
    assert_int_equal(event_of("{\"type\":\"error\",\"code\":\"denied\",\"detail\":\"no\","
                              "\"remediation\":\"ask\"}",
                              &e, &err),
                     0);
    assert_int_equal(e.type, JOB_EVENT_ERROR);
    assert_string_equal(e.err.msg, "no; ask");
    assert_int_equal(
        event_of("{\"type\":\"error\",\"detail\":\"no\",\"remediation\":null}", &e, &err), 0);
    assert_string_equal(e.err.msg, "no");
    assert_int_equal(event_of("{\"type\":\"error\"}", &e, &err), 0);
    assert_string_equal(e.err.msg, "boxd refused without a reason");
    assert_int_equal(event_of("{\"type\":\"of a newer boxd\"}", &e, &err), 0);
    assert_int_equal(e.type, JOB_EVENT_OTHER);
    assert_int_equal(event_of("[]", &e, &err), 0);
    assert_int_equal(e.type, JOB_EVENT_OTHER);
    assert_true(event_of("{", &e, &err) < 0);
}

static void ends(const char *exit_members, int status, const char *say)
{
    const struct outcome_context context = {.program = "prog", .timeout_sec = 5, .memory_mb = 64};
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(buf) struct buf said;
    struct job_event e = {0};
    struct err err = {0};

    buf_init(&text, 4096);
    buf_init(&said, 4096);
    (void)buf_printf(&text, "{\"type\":\"exit\",%s}", exit_members);
    if (event_of(buf_str(&text), &e, &err) < 0)
        fail_msg("%s: %s", exit_members, err.msg);
    assert_int_equal(e.type, JOB_EVENT_EXIT);
    assert_int_equal(outcome_status(&e.outcome, &context, &said), status);
    assert_string_equal(buf_str(&said), say);
}

static void every_outcome_has_its_status(void **state)
{
    ends("\"outcome\":\"exited\",\"exit_code\":0,\"signal\":null,\"error\":null", 0, "");
    ends("\"outcome\":\"exited\",\"exit_code\":3", 3, "");
    ends("\"outcome\":\"exited\",\"exit_code\":255", 255, "");
    ends("\"outcome\":\"exited\",\"exit_code\":127,\"error\":\"not found\"", 127,
         "prog: not found");
    ends("\"outcome\":\"exited\",\"exit_code\":126,\"error\":\"denied\"", 126, "prog: denied");
    ends("\"outcome\":\"signaled\",\"exit_code\":null,\"signal\":9", 137, "");
    ends("\"outcome\":\"signaled\",\"exit_code\":null,\"signal\":2", 130, "");
    ends("\"outcome\":\"timed_out\",\"exit_code\":null,\"signal\":null", 124,
         "timed out after 5 s");
    ends("\"outcome\":\"oom_killed\",\"exit_code\":null,\"signal\":9", 137,
         "killed: out of memory (limit 64 MiB)");
    ends("\"outcome\":\"quota_exceeded\",\"exit_code\":1", 1,
         "the disk of the session is full (see --quota)");
    ends("\"outcome\":\"session_lost\",\"exit_code\":null", 125,
         "the session was lost while the command ran");
}

static void what_is_not_known_is_not_claimed(void **state)
{
    const struct outcome_context nothing = {.program = "prog"};
    const struct outcome_report oom = {.outcome = OUTCOME_IS_OOM_KILLED, .exit_code = -1};
    const struct outcome_report late = {
        .outcome = OUTCOME_IS_TIMED_OUT, .exit_code = -1, .duration_ms = 2999};
    AUTO_DONE(buf) struct buf said;

    buf_init(&said, 4096);
    assert_int_equal(outcome_status(&oom, &nothing, &said), 137);
    assert_string_equal(buf_str(&said), "killed: out of memory");
    buf_reset(&said);
    assert_int_equal(outcome_status(&late, &nothing, &said), 124);
    assert_string_equal(buf_str(&said), "timed out after 2 s");
}

static void an_end_that_makes_no_sense_is_an_error(void **state)
{
    static const char *const rows[] = {
        "{\"type\":\"exit\"}",
        "{\"type\":\"exit\",\"outcome\":\"flown\"}",
        "{\"type\":\"exit\",\"outcome\":7}",
        "{\"type\":\"exit\",\"outcome\":\"exited\",\"exit_code\":256}",
        "{\"type\":\"exit\",\"outcome\":\"exited\",\"exit_code\":-1}",
        "{\"type\":\"exit\",\"outcome\":\"exited\",\"exit_code\":\"0\"}",
        "{\"type\":\"exit\",\"outcome\":\"signaled\",\"signal\":65}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct job_event e = {0};
        struct err err = {0};
        assert_true(event_of(rows[i], &e, &err) < 0);
        assert_int_equal(err.code, ERR_BACKEND);
    }
}

static void a_long_reason_is_cut_at_a_character(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct job_event e = {0};
    struct err err = {0};

    buf_init(&text, 4096);
    (void)buf_puts(&text,
                   "{\"type\":\"exit\",\"outcome\":\"exited\",\"exit_code\":126,\"error\":\"");
    for (int i = 0; i < 200; i++)
        (void)buf_puts(&text, "\xc3\xa4");
    (void)buf_puts(&text, "\"}");
    assert_int_equal(event_of(buf_str(&text), &e, &err), 0);
    assert_int_equal(strlen(e.outcome.error), 254);
    assert_true(utf8_valid(e.outcome.error, 254));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_throw_away_run_says_only_what_was_given),
        cmocka_unit_test(a_named_run_keeps_its_session),
        cmocka_unit_test(exec_never_makes_a_session),
        cmocka_unit_test(control_messages_have_their_form),
        cmocka_unit_test(events_are_told_apart),
        cmocka_unit_test(every_outcome_has_its_status),
        cmocka_unit_test(what_is_not_known_is_not_claimed),
        cmocka_unit_test(an_end_that_makes_no_sense_is_an_error),
        cmocka_unit_test(a_long_reason_is_cut_at_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
