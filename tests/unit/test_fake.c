/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

/* One exec straight on the backend, and all that it said. */
struct seen {
    struct fixture *f;
    struct exec *exec;
    struct buf out[2];
    struct outcome outcome;
    int finished, drained;
    bool free_on_output;
};

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct seen *s = arg;
    assert_int_equal(s->finished, 0);
    assert_int_equal(buf_append(&s->out[stream], data, len), 0);
    if (s->free_on_output) {
        s->f->backend->ops->exec_free(s->exec);
        s->exec = NULL;
    }
}

static void on_drained(void *arg)
{
    ((struct seen *)arg)->drained++;
}

static void on_finished(void *arg, const struct outcome *outcome)
{
    struct seen *s = arg;
    s->finished++;
    s->outcome = *outcome;
}

static const struct exec_events events = {on_output, on_drained, on_finished};

static void start(struct fixture *f, struct session *session, const struct exec_request *req,
                  struct seen *s)
{
    struct err err = {0};
    *s = (struct seen){.f = f};
    for (int i = 0; i < 2; i++)
        buf_init(&s->out[i], 4U << 20);
    assert_int_equal(
        f->backend->ops->exec(session_sandbox(session), req, &events, s, &s->exec, &err), 0);
    assert_int_equal(s->finished, 0);
}

static void done(struct seen *s)
{
    s->f->backend->ops->exec_free(s->exec);
    for (int i = 0; i < 2; i++)
        buf_done(&s->out[i]);
}

static void commands_do_what_the_table_says(void **state)
{
    static const struct {
        const char *cmd, *out, *err;
        enum outcome_kind kind;
        int number; /* exit code or signal */
    } cases[] = {
        {"", "", "", OUTCOME_EXITED, 0},
        {"echo hello world", "hello world\n", "", OUTCOME_EXITED, 0},
        {"err no; exit 3", "", "no\n", OUTCOME_EXITED, 3},
        {" echo a ;; echo b\n", "a\nb\n", "", OUTCOME_EXITED, 0},
        {"exit 255; echo never", "", "", OUTCOME_EXITED, 255},
        {"exit 256", "", "", OUTCOME_EXITED, 2},
        {"flood nine", "", "", OUTCOME_EXITED, 2},
        {"sleep", "", "", OUTCOME_EXITED, 2},
        {"flood 2", "xx", "", OUTCOME_EXITED, 0},
        {"flood 0", "", "", OUTCOME_EXITED, 0},
        {"cat", "", "", OUTCOME_EXITED, 0}, /* no stdin: at its end at once */
        {"kill 15", "", "", OUTCOME_SIGNALED, 15},
        {"kill 0", "", "", OUTCOME_EXITED, 2},
        {"pwd; env", "/workspace\nA=1\n", "", OUTCOME_EXITED, 0},
        {"ech x", "", "", OUTCOME_EXITED, 127},
        {"echoes", "", "", OUTCOME_EXITED, 127},
        {"die", "", "", OUTCOME_SESSION_LOST, 0},
    };
    static char *const env[] = {(char *)(uintptr_t) "A=1", NULL};
    struct fixture f;
    fixture_start(&f, NULL, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct session *session = ready_session(&f, "s");
        struct exec_request req = {.cmd = cases[i].cmd, .env = env};
        struct seen s;
        start(&f, session, &req, &s);
        pump(&f);
        assert_int_equal(s.finished, 1);
        assert_string_equal(buf_str(&s.out[0]), cases[i].out);
        assert_string_equal(buf_str(&s.out[1]), cases[i].err);
        assert_int_equal(s.outcome.kind, cases[i].kind);
        assert_int_equal(cases[i].kind == OUTCOME_SIGNALED ? s.outcome.signo : s.outcome.exit_code,
                         cases[i].number);
        assert_int_equal(s.outcome.error[0] != '\0', cases[i].number == 127);
        done(&s);
        session_release(session);
    }
    fixture_stop(&f);
}

static void argv_is_one_step(void **state)
{
    static char *const argv[] = {(char *)(uintptr_t) "echo", (char *)(uintptr_t) "a;",
                                 (char *)(uintptr_t) "exit 3", NULL};
    struct fixture f;
    struct seen s;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.argv = argv, .cwd = "/tmp"}, &s);
    pump(&f);
    assert_string_equal(buf_str(&s.out[0]), "a; exit 3\n");
    assert_int_equal(s.outcome.exit_code, 0);
    done(&s);
    session_release(session);
    fixture_stop(&f);
}

static void time_is_the_loops(void **state)
{
    struct fixture f;
    struct seen s, limited;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "sleep 100; echo late"}, &s);
    start(&f, session, &(struct exec_request){.cmd = "sleep 100", .timeout_ns = 40 * NSEC_PER_MSEC},
          &limited);
    pass(&f, 99 * NSEC_PER_MSEC);
    assert_int_equal(s.finished, 0);
    assert_int_equal(limited.finished, 1);
    assert_int_equal(limited.outcome.kind, OUTCOME_TIMED_OUT);
    pass(&f, NSEC_PER_MSEC);
    assert_int_equal(s.finished, 1);
    assert_string_equal(buf_str(&s.out[0]), "late\n");
    assert_int_equal(s.outcome.duration_ns, 100 * NSEC_PER_MSEC);
    done(&s);
    done(&limited);
    session_release(session);
    fixture_stop(&f);
}

static void stdin_holds_the_writer_back(void **state)
{
    static char big[300 << 10];
    struct fixture f;
    struct seen s;
    const struct backend_ops *ops;
    fixture_start(&f, NULL, NULL);
    ops = f.backend->ops;
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "sleep 1; cat", .with_stdin = true}, &s);
    memset(big, 'y', sizeof(big));
    assert_int_equal(ops->exec_write(s.exec, "small", 5), 0);
    assert_int_equal(ops->exec_write(s.exec, big, sizeof(big)), 1);
    pump(&f);
    assert_int_equal(s.drained, 0); /* nothing reads it yet */
    pass(&f, NSEC_PER_MSEC);
    assert_int_equal(s.drained, 1);
    assert_int_equal(s.out[0].len, 5 + sizeof(big));
    assert_int_equal(ops->exec_write(s.exec, "x", 1), 0);
    ops->exec_close_stdin(s.exec);
    assert_int_equal(ops->exec_write(s.exec, "x", 1), -EPIPE);
    pump(&f);
    assert_int_equal(s.finished, 1);
    assert_int_equal(s.out[0].len, 6 + sizeof(big));
    done(&s);

    start(&f, session, &(struct exec_request){.cmd = "sleep 1", .with_stdin = true}, &s);
    int r = 0;
    size_t taken = 0;
    while ((r = ops->exec_write(s.exec, big, sizeof(big))) >= 0)
        taken += sizeof(big);
    assert_int_equal(r, -ENOBUFS);
    assert_true(taken >= (15U << 20) && taken <= (16U << 20));
    ops->exec_kill(s.exec);
    assert_int_equal(ops->exec_write(s.exec, "x", 1), -EPIPE);
    pump(&f);
    assert_int_equal(s.outcome.kind, OUTCOME_SIGNALED);
    assert_int_equal(s.outcome.signo, SIGKILL);
    done(&s);
    session_release(session);
    fixture_stop(&f);
}

static void paused_output_waits_and_loses_nothing(void **state)
{
    struct fixture f;
    struct seen s;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "flood 200000; err end"}, &s);
    f.backend->ops->exec_pause(s.exec, true);
    pump(&f);
    assert_int_equal(s.out[0].len, 0);
    f.backend->ops->exec_pause(s.exec, false);
    (void)loop_turn(f.loop, 0);
    assert_in_range(s.out[0].len, 1, 199999); /* others get their turn meanwhile */
    f.backend->ops->exec_pause(s.exec, true);
    pump(&f);
    assert_in_range(s.out[0].len, 1, 199999);
    f.backend->ops->exec_pause(s.exec, false);
    pump(&f);
    assert_int_equal(s.out[0].len, 200000);
    assert_int_equal(s.finished, 1);
    done(&s);
    session_release(session);
    fixture_stop(&f);
}

static void freed_exec_goes_on_unobserved(void **state)
{
    struct fixture f;
    struct seen s, other;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "echo a; echo b; sleep 5; die"}, &s);
    s.free_on_output = true;
    start(&f, session, &(struct exec_request){.cmd = "sleep 1000"}, &other);
    pass(&f, 5 * NSEC_PER_MSEC);
    assert_string_equal(buf_str(&s.out[0]), "a\n");
    assert_int_equal(s.finished, 0);
    assert_int_equal(other.outcome.kind, OUTCOME_SESSION_LOST); /* it did go on */
    s.exec = NULL;
    done(&s);
    done(&other);
    session_release(session);
    fixture_stop(&f);
}

static void signals_that_end_nothing_end_nothing(void **state)
{
    struct fixture f;
    struct seen s;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "sleep 5", .tty = true}, &s);
    f.backend->ops->exec_signal(s.exec, SIGWINCH);
    f.backend->ops->exec_signal(s.exec, 0);
    f.backend->ops->exec_signal(s.exec, NSIG);
    f.backend->ops->exec_resize(s.exec, 24, 80);
    pump(&f);
    assert_int_equal(s.finished, 0);
    f.backend->ops->exec_signal(s.exec, SIGTERM);
    f.backend->ops->exec_signal(s.exec, SIGINT);
    assert_int_equal(s.finished, 0); /* from the loop only */
    pump(&f);
    assert_int_equal(s.finished, 1);
    assert_int_equal(s.outcome.signo, SIGTERM);
    done(&s);
    session_release(session);
    fixture_stop(&f);
}

struct text {
    int n;
    char json[512];
};

static void on_text(void *arg, const char *json, size_t len, const struct err *err)
{
    struct text *t = arg;
    assert_null(err);
    assert_true(len < sizeof(t->json));
    memcpy(t->json, json, len);
    t->json[len] = '\0';
    t->n++;
}

static void reports_are_json_from_the_loop(void **state)
{
    struct fixture f;
    struct text receipt = {0}, doctor = {0};
    struct err err = {0};
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    struct sandbox *sb = session_sandbox(session);
    assert_int_equal(f.backend->ops->receipt(sb, on_text, &receipt, &err), 0);
    assert_int_equal(f.backend->ops->doctor(f.backend, on_text, &doctor, &err), 0);
    assert_int_equal(receipt.n + doctor.n, 0);
    pump(&f);
    assert_int_equal(receipt.n, 1);
    assert_string_equal(receipt.json, "{\"backend\":\"fake\"}");
    AUTO(json) struct json *v = NULL;
    assert_int_equal(json_parse(doctor.json, strlen(doctor.json), &v, &err), 0);
    assert_int_equal(json_len(json_get(v, "checks")), 1);
    /* Those that never arrive are not leaked. */
    assert_int_equal(f.backend->ops->receipt(sb, on_text, &receipt, &err), 0);
    assert_int_equal(f.backend->ops->receipt(sb, on_text, &receipt, &err), 0);
    session_release(session);
    fixture_stop(&f);
    assert_int_equal(receipt.n, 1);
}

static void ended_backend_leaves_nothing_behind(void **state)
{
    struct fixture f;
    struct seen s, detached;
    fixture_start(&f, NULL, NULL);
    struct session *session = ready_session(&f, "s");
    start(&f, session, &(struct exec_request){.cmd = "sleep 5"}, &s);
    start(&f, session, &(struct exec_request){.cmd = "sleep 5"}, &detached);
    done(&detached);
    assert_int_equal(fake_sandboxes(f.backend), 1);
    session_release(session);
    /* A run may be freed later than its backend. */
    const struct backend_ops *ops = f.backend->ops;
    ops->free(f.backend);
    ops->exec_free(s.exec);
    manager_free(f.m);
    loop_free(f.loop);
    assert_int_equal(s.finished, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_do_what_the_table_says),
        cmocka_unit_test(argv_is_one_step),
        cmocka_unit_test(time_is_the_loops),
        cmocka_unit_test(stdin_holds_the_writer_back),
        cmocka_unit_test(paused_output_waits_and_loses_nothing),
        cmocka_unit_test(freed_exec_goes_on_unobserved),
        cmocka_unit_test(signals_that_end_nothing_end_nothing),
        cmocka_unit_test(reports_are_json_from_the_loop),
        cmocka_unit_test(ended_backend_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
