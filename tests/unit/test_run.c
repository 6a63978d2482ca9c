/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "session/run.h"

struct seen {
    struct run *run;
    int finished, drained;
    struct outcome outcome;
    size_t out[2];
    uint64_t produced[2];
    size_t kept[2];
    char text[2][32]; /* the beginning of what was kept */
    bool free_when_finished, free_on_output;
};

static void on_finished(void *arg, const struct run_result *result)
{
    struct seen *s = arg;
    s->finished++;
    s->outcome = result->outcome;
    for (int i = 0; i < 2; i++) {
        const struct buf *kept = &result->kept[i];
        s->produced[i] = result->produced[i];
        s->kept[i] = kept->len;
        memcpy(s->text[i], buf_str(kept), kept->len < 31 ? kept->len : 31);
    }
    if (s->free_when_finished) {
        run_free(s->run);
        s->run = NULL;
    }
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct seen *s = arg;
    s->out[stream] += len;
    if (s->free_on_output) {
        run_free(s->run);
        s->run = NULL;
    }
}

static void on_drained(void *arg)
{
    ((struct seen *)arg)->drained++;
}

static const struct run_events whole = {.finished = on_finished};
static const struct run_events streamed = {on_output, on_drained, on_finished};

static void start(struct session *s, const struct run_options *options,
                  const struct run_events *events, struct seen *seen)
{
    struct err err = {0};
    *seen = (struct seen){0};
    assert_int_equal(run_start(s, options, events, seen, &seen->run, &err), 0);
    assert_int_equal(seen->finished, 0);
}

static void output_is_kept_up_to_the_bound_and_counted_beyond(void **state)
{
    static const struct {
        const char *cmd;
        size_t capture;
        uint64_t produced, kept;
    } cases[] = {
        {"flood 99", 100, 99, 99},
        {"flood 100", 100, 100, 100},
        {"flood 101", 100, 101, 100},
        {"flood 70000; flood 70000", 100000, 140000, 100000},
        {"flood 5", 0, 5, 0},
        {"flood 2000000", RUN_CAPTURE_DEFAULT, 2000000, RUN_CAPTURE_DEFAULT},
        {"flood 9000000", SIZE_MAX, 9000000, RUN_CAPTURE_MAX},
    };
    struct fixture f;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct seen seen;
        struct run_options options = {.exec = {.cmd = cases[i].cmd}, .capture = cases[i].capture};
        start(s, &options, &whole, &seen);
        pump(&f);
        assert_int_equal(seen.finished, 1);
        assert_int_equal(seen.produced[EXEC_STDOUT], cases[i].produced);
        assert_int_equal(seen.kept[EXEC_STDOUT], cases[i].kept);
        assert_int_equal(seen.produced[EXEC_STDERR], 0);
        run_free(seen.run);
    }
    session_release(s);
    fixture_stop(&f);
}

static void streams_are_kept_apart(void **state)
{
    struct fixture f;
    struct seen seen;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    struct run_options options = {.exec = {.cmd = "echo one; err two; echo three; exit 9"},
                                  .capture = 6};
    start(s, &options, &whole, &seen);
    pump(&f);
    assert_string_equal(seen.text[EXEC_STDOUT], "one\nth");
    assert_string_equal(seen.text[EXEC_STDERR], "two\n");
    assert_int_equal(seen.produced[EXEC_STDOUT], 10);
    assert_int_equal(seen.outcome.exit_code, 9);
    run_free(seen.run);
    session_release(s);
    fixture_stop(&f);
}

static void streamed_output_is_counted_and_not_kept(void **state)
{
    struct fixture f;
    struct seen seen;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    struct run_options options = {.exec = {.cmd = "flood 200000; err no"}, .capture = 100};
    start(s, &options, &streamed, &seen);
    pump(&f);
    assert_int_equal(seen.out[EXEC_STDOUT], 200000);
    assert_int_equal(seen.out[EXEC_STDERR], 3);
    assert_int_equal(seen.produced[EXEC_STDOUT], 200000);
    assert_int_equal(seen.kept[EXEC_STDOUT] + seen.kept[EXEC_STDERR], 0);
    run_free(seen.run);
    session_release(s);
    fixture_stop(&f);
}

static void paused_run_waits_for_its_reader(void **state)
{
    struct fixture f;
    struct seen seen;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    start(s, &(struct run_options){.exec = {.cmd = "flood 200000"}}, &streamed, &seen);
    run_pause(seen.run, true);
    pump(&f);
    assert_int_equal(seen.out[EXEC_STDOUT], 0);
    assert_int_equal(seen.finished, 0);
    run_pause(seen.run, false);
    pump(&f);
    assert_int_equal(seen.out[EXEC_STDOUT], 200000);
    assert_int_equal(seen.finished, 1);
    run_free(seen.run);
    session_release(s);
    fixture_stop(&f);
}

static void stdin_reaches_the_program(void **state)
{
    static char big[300 << 10];
    struct fixture f;
    struct seen seen;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    struct run_options options = {.exec = {.cmd = "cat", .with_stdin = true}, .capture = 10};
    start(s, &options, &whole, &seen); /* stdin_drained is optional */
    assert_int_equal(run_write(seen.run, "hello", 5), 0);
    assert_int_equal(run_write(seen.run, big, sizeof(big)), 1);
    pump(&f);
    assert_int_equal(seen.finished, 0);
    run_close_stdin(seen.run);
    pump(&f);
    assert_int_equal(seen.finished, 1);
    assert_memory_equal(seen.text[0], "hello", 5);
    assert_int_equal(seen.produced[0], 5 + sizeof(big));
    /* Afterwards everything is harmless. */
    assert_int_equal(run_write(seen.run, "x", 1), -EPIPE);
    run_close_stdin(seen.run);
    run_signal(seen.run, SIGTERM);
    run_kill(seen.run);
    run_resize(seen.run, 1, 1);
    run_pause(seen.run, true);
    pump(&f);
    assert_int_equal(seen.finished, 1);
    run_free(seen.run);

    start(s, &options, &streamed, &seen);
    assert_int_equal(run_write(seen.run, big, sizeof(big)), 1);
    run_resize(seen.run, 50, 100);
    pump(&f);
    assert_int_equal(seen.drained, 1);
    run_signal(seen.run, SIGINT);
    pump(&f);
    assert_int_equal(seen.outcome.kind, OUTCOME_SIGNALED);
    assert_int_equal(seen.outcome.signo, SIGINT);
    run_free(seen.run);
    session_release(s);
    fixture_stop(&f);
}

static void running_run_keeps_its_session_busy(void **state)
{
    struct fixture f;
    struct seen a, b;
    fixture_start(&f, NULL,
                  &(struct manager_options){.max_sessions = 2, .ttl_ns = 60 * NSEC_PER_SEC});
    struct session *s = ready_session(&f, "s");
    start(s, &(struct run_options){.exec = {.cmd = "sleep 600000"}}, &whole, &a);
    start(s, &(struct run_options){.exec = {.cmd = "sleep 600000"}}, &whole, &b);
    assert_int_equal(session_execs(s), 2);
    pass(&f, 300 * NSEC_PER_SEC);
    assert_non_null(manager_find(f.m, "s"));
    run_kill(a.run);
    pump(&f);
    assert_int_equal(a.outcome.kind, OUTCOME_SIGNALED);
    assert_int_equal(session_execs(s), 1); /* not only when it is freed */
    run_free(a.run);
    assert_int_equal(session_execs(s), 1);
    run_free(b.run); /* goes on unobserved, and counts no more */
    assert_int_equal(session_execs(s), 0);
    pass(&f, 60 * NSEC_PER_SEC);
    assert_null(manager_find(f.m, "s"));
    session_release(s);
    fixture_stop(&f);
}

static void run_holds_its_session(void **state)
{
    struct fixture f;
    struct seen seen;
    struct heard gone;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    start(s, &(struct run_options){.exec = {.cmd = "sleep 1000"}}, &whole, &seen);
    session_release(s);
    delete_id(&f, "s", &gone);
    pump(&f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(seen.finished, 1);
    assert_int_equal(seen.outcome.kind, OUTCOME_SESSION_LOST);
    assert_string_equal(session_id(s), "s"); /* the run's hold alone keeps it */
    run_free(seen.run);
    fixture_stop(&f);
}

static void run_may_be_freed_in_its_callbacks(void **state)
{
    struct fixture f;
    struct seen seen;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    start(s, &(struct run_options){.exec = {.cmd = "echo x"}, .capture = 10}, &whole, &seen);
    seen.free_when_finished = true;
    pump(&f);
    assert_int_equal(seen.finished, 1);
    assert_int_equal(session_execs(s), 0);
    start(s, &(struct run_options){.exec = {.cmd = "echo x; echo y"}}, &streamed, &seen);
    seen.free_on_output = true;
    pump(&f);
    assert_int_equal(seen.finished, 0);
    assert_int_equal(seen.out[0], 2);
    assert_int_equal(session_execs(s), 0);
    run_free(NULL);
    session_release(s);
    fixture_stop(&f);
}

static void refused_run_leaves_no_trace(void **state)
{
    struct fixture f;
    struct heard gone;
    struct run *run = NULL;
    struct err fault = {.code = ERR_LIMIT, .msg = "too many"}, err = {0};
    const struct run_options options = {.exec = {.cmd = "echo x"}};
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    fake_fail(f.backend, FAKE_EXEC, &fault);
    assert_int_equal(run_start(s, &options, &whole, NULL, &run, &err), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "too many");
    assert_null(run);
    assert_int_equal(session_execs(s), 0);
    delete_id(&f, "s", &gone);
    assert_int_equal(run_start(s, &options, &whole, NULL, &run, &err), err_code_errno(ERR_STATE));
    assert_string_equal(err.msg, "session 's' is not running");
    pump(&f);
    assert_int_equal(run_start(s, &options, &whole, NULL, &run, &err), err_code_errno(ERR_STATE));
    session_release(s);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_kept_up_to_the_bound_and_counted_beyond),
        cmocka_unit_test(streams_are_kept_apart),
        cmocka_unit_test(streamed_output_is_counted_and_not_kept),
        cmocka_unit_test(paused_run_waits_for_its_reader),
        cmocka_unit_test(stdin_reaches_the_program),
        cmocka_unit_test(running_run_keeps_its_session_busy),
        cmocka_unit_test(run_holds_its_session),
        cmocka_unit_test(run_may_be_freed_in_its_callbacks),
        cmocka_unit_test(refused_run_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
