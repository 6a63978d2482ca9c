/* SPDX-License-Identifier: Apache-2.0 */
#include "core_process.h"

static void test_row_T70_started_process_is_tracked(void **state)
{
    struct fixture f;
    struct told t;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "mcp-session");
    struct process_spec *spec = xnew(struct process_spec);
    model_init(&process_spec_model, spec);
    spec->command = xstrdup("python");
    strv_add(&spec->args, "-m");
    strv_add(&spec->args, "demo");
    uint64_t t0 = f.clock.real_ns;
    assert_int_equal(start_spec(s, spec, &t, &err), 0);
    pump(&f);
    assert_int_equal(t.n, 1);
    struct process *p = process_find(s, "default");
    assert_ptr_equal(t.process, p);
    assert_true(process_running(p));
    assert_ptr_equal(process_session(p), s);
    assert_string_equal(process_spec_of(p)->command, "python");
    assert_string_equal(process_spec_of(p)->args[1], "demo");
    assert_int_equal(process_started_at(p), t0);
    assert_int_equal(process_exited_at(p), 0);
    assert_false(process_attached(p));
    assert_int_equal(manager_processes_running(f.m), 1);
    assert_null(process_find(s, "other"));
    session_release(s);

    struct heard gone = {0};
    manager_close(f.m, on_gone, &gone); /* shutdown works */
    pump(&f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(manager_processes_running(f.m), 0);
    assert_int_equal(fake_sandboxes(f.backend), 0);
    fixture_stop(&f);
}

static void exit_is_noticed_and_told_as_python_does(void **state)
{
    static const struct {
        const char *steps;
        int code;
    } cases[] = {
        {"", 0}, {"exit 7", 7}, {"kill 15", -15}, {"kill 9", -9}, {"nonsense", 127},
    };
    struct fixture f;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct process *p = running(&f, s, "p", cases[i].steps);
        assert_false(process_running(p));
        assert_int_equal(process_exit_code(p), cases[i].code);
        assert_int_equal(process_exited_at(p), f.clock.real_ns);
        assert_int_equal(manager_processes_running(f.m), 0);
        assert_int_equal(manager_processes_exited(f.m), 1); /* each replaces the one before */
    }
    session_release(s);
    fixture_stop(&f);
}

static void a_process_is_killed_when_its_time_is_up(void **state)
{
    struct fixture f;
    struct told t;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process_spec *spec = steps_spec("p", "cat");
    spec->timeout_sec = 5;
    assert_int_equal(start_spec(s, spec, &t, &err), 0);
    pump(&f);
    (void)running(&f, s, "q", "cat"); /* without a limit */
    pass(&f, 4 * SEC);
    assert_true(process_running(process_find(s, "p")));
    pass(&f, 2 * SEC);
    assert_false(process_running(process_find(s, "p")));
    assert_int_equal(process_exit_code(process_find(s, "p")), -SIGKILL);
    assert_string_equal(process_reason(process_find(s, "p")), "its 5 s are over (timeout_sec)");
    expect_preview(process_find(s, "p"), "Process was killed: its 5 s are over (timeout_sec)");
    assert_true(process_running(process_find(s, "q")));
    session_release(s);
    fixture_stop(&f);
}

static void several_live_in_one_session_by_id(void **state)
{
    struct fixture f;
    struct told t;
    char names[16] = "";
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "b", "cat");
    (void)running(&f, s, "a", "cat");
    (void)running(&f, s, "", "cat"); /* any text is an id */
    end_it(s, "a", &t);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.err.code, ERR_NONE);
    assert_null(process_find(s, "a")); /* forgotten, not merely ended */
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "[%s]",
                       process_spec_of(p)->process_id);
    assert_string_equal(names, "[b][]");
    session_release(s);
    fixture_stop(&f);
}

static void stopping_what_is_not_there_is_an_error(void **state)
{
    struct fixture f;
    struct told t = {0};
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    assert_int_equal(process_stop(s, "x", on_stopped, &t, &err), err_code_errno(ERR_NOT_FOUND));
    assert_string_equal(err.msg, "session s has no managed process with process_id=x");
    (void)running(&f, s, "x", "exit 1");
    end_it(s, "x", &t); /* an exited one is forgotten at once */
    assert_null(process_find(s, "x"));
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(manager_processes_exited(f.m), 0);
    session_release(s);
    fixture_stop(&f);
}

/* A backend that takes its time to end what a process has started. */
static backend_done_fn *is_gone;
static void *is_gone_arg;

static void slow_end(struct proc *p, backend_done_fn *done, void *arg)
{
    is_gone = done;
    is_gone_arg = arg;
}

static void stop_is_told_when_all_of_it_is_gone(void **state)
{
    struct err err = {0};
    (void)err_set(&err, ERR_BACKEND, "it does not end");
    for (int fails = 0; fails < 2; fails++) {
        struct fixture f;
        struct told t = {0};
        fixture_start(&f, NULL, &proc_options);
        struct backend_ops ops = *f.backend->ops;
        ops.proc_end = slow_end;
        f.backend->ops = &ops;
        struct session *s = ready_session(&f, "s");
        (void)running(&f, s, "x", "cat");
        is_gone = NULL;
        end_it(s, "x", &t);
        pump(&f);
        assert_non_null(is_gone); /* its main process has ended */
        assert_int_equal(t.n, 0);
        assert_int_equal(manager_processes_running(f.m), 1);
        is_gone(is_gone_arg, fails ? &err : NULL);
        pump(&f);
        assert_int_equal(t.n, 1);
        assert_int_equal(t.err.code, fails ? ERR_BACKEND : ERR_NONE);
        assert_null(process_find(s, "x"));
        assert_int_equal(manager_processes_running(f.m), 0);
        session_release(s);
        fixture_stop(&f);
    }
}

/* Ending: stdin is closed, SIGTERM is sent, and after five seconds the tree is killed. */

static void gentle_end_comes_first(void **state)
{
    struct fixture f;
    struct told t;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "sleep 1000000");
    end_it(s, "p", &t);
    pump(&f); /* no time passes */
    assert_int_equal(t.n, 1);
    (void)running(&f, s, "p", "ignore; cat; exit 3"); /* ends by its stdin alone */
    end_it(s, "p", &t);
    pump(&f);
    assert_int_equal(t.n, 1);
    session_release(s);
    fixture_stop(&f);
}

static void stubborn_process_is_killed_after_the_grace(void **state)
{
    struct fixture f;
    struct told t, again;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "ignore; sleep 1000000");
    end_it(s, "p", &t);
    pass(&f, 4999 * NSEC_PER_MSEC);
    assert_int_equal(t.n, 0);
    assert_true(process_running(p));
    end_it(s, "p", &again); /* both hear of the one end */
    pass(&f, NSEC_PER_MSEC);
    assert_int_equal(t.n, 1);
    assert_int_equal(again.n, 1);
    assert_null(process_find(s, "p"));
    assert_int_equal(manager_processes_running(f.m), 0);
    session_release(s);
    fixture_stop(&f);
}

/* Replacing. */

static void running_one_of_the_same_id_is_ended_first(void **state)
{
    struct fixture f;
    struct told t;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *old = running(&f, s, "p", "ignore; sleep 1000000");
    pass(&f, SEC);
    begin(s, "p", "cat", &t);
    pass(&f, 4 * SEC);
    assert_int_equal(t.n, 0);
    assert_ptr_equal(process_find(s, "p"), old); /* there is one of that id at any time */
    assert_int_equal(manager_processes_running(f.m), 1);
    pass(&f, SEC);
    assert_int_equal(t.n, 1);
    assert_ptr_equal(process_find(s, "p"), t.process);
    assert_int_equal(process_started_at(t.process), f.clock.real_ns);
    assert_true(process_running(t.process));
    assert_null(process_next(s, t.process));
    assert_int_equal(manager_processes_running(f.m), 1);
    session_release(s);
    fixture_stop(&f);
}

static void last_start_wins(void **state)
{
    struct fixture f;
    struct told b, c, d;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "ignore; sleep 1000000");
    begin(s, "p", "exit 1", &b);
    begin(s, "p", "cat", &c);
    pump(&f);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.err.code, ERR_STATE);
    pass(&f, 5 * SEC);
    assert_int_equal(c.n, 1);
    assert_true(process_running(c.process));

    begin(s, "p", "cat", &d); /* a stop ends both, the old and the one that waits */
    end_it(s, "p", &b);
    pump(&f);
    assert_int_equal(b.n, 1);
    assert_int_equal(b.err.code, ERR_NONE);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.err.code, ERR_STATE);
    assert_null(process_find(s, "p"));

    (void)running(&f, s, "p", "cat");
    end_it(s, "p", &b);
    begin(s, "p", "cat", &d); /* a start behind a stop does start */
    pump(&f);
    assert_int_equal(b.n, 1);
    assert_int_equal(d.n, 1);
    assert_non_null(process_find(s, "p"));
    session_release(s);
    fixture_stop(&f);
}

static void failed_start_is_told_and_leaves_nothing(void **state)
{
    struct fixture f;
    struct told t;
    struct err fault = {.code = ERR_BACKEND, .msg = "no luck"}, err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "exit 4");
    fake_fail(f.backend, FAKE_PROC_START, &fault);
    assert_int_equal(start_spec(s, steps_spec("p", "cat"), &t, &err), err_code_errno(ERR_BACKEND));
    pump(&f);
    assert_int_equal(t.n, 0);
    assert_int_equal(process_exit_code(process_find(s, "p")), 4); /* not replaced */

    (void)running(&f, s, "p", "cat");
    fake_fail(f.backend, FAKE_PROC_START, &fault);
    begin(s, "p", "cat", &t);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_string_equal(t.err.msg, "no luck");
    assert_null(process_find(s, "p")); /* the old one was ended for it */
    assert_int_equal(manager_processes_running(f.m), 0);
    session_release(s);
    fixture_stop(&f);
}

/* Caps. */

static void running_processes_are_limited_over_all_sessions(void **state)
{
    struct fixture f;
    struct told t;
    struct err err = {0};
    struct manager_options two = proc_options;
    two.max_processes = 2;
    fixture_start(&f, NULL, &two);
    struct session *a = ready_session(&f, "a"), *b = ready_session(&f, "b");
    (void)running(&f, a, "p", "cat");
    (void)running(&f, b, "p", "ignore; sleep 1000000");
    assert_int_equal(start_spec(a, steps_spec("q", "cat"), &t, &err), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "Box managed process capacity reached (2)");
    begin(b, "p", "cat", &t); /* the one that is replaced does not count */
    assert_true(start_spec(a, steps_spec("q", "cat"), &t, &err) < 0); /* but its successor does */
    pass(&f, 5 * SEC);
    assert_true(process_running(process_find(b, "p")));
    manager_set_caps(f.m, 9, 3, 5, 0);
    assert_int_equal(manager_get_options(f.m)->max_processes, 3);
    (void)running(&f, a, "q", "exit 0");
    (void)running(&f, a, "r", "exit 0"); /* ended ones do not count */
    session_release(a);
    session_release(b);
    fixture_stop(&f);
}

static void ended_ones_are_kept_for_a_while_and_some_only(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s"), *t = ready_session(&f, "t");
    session_exec_begins(s);
    session_exec_begins(t);
    for (int i = 0; i < 6; i++) { /* one more than may be */
        char id[8];
        (void)snprintf(id, sizeof(id), "p%d", i);
        (void)running(&f, i % 2 ? s : t, id, "exit 0");
        pass(&f, 2 * SEC);
    }
    assert_int_equal(manager_processes_exited(f.m), 5);
    assert_null(process_find(t, "p0")); /* the oldest, whose session that is */
    assert_non_null(process_find(s, "p1"));
    manager_set_caps(f.m, 9, 9, 3, 300 * SEC);
    assert_int_equal(manager_processes_exited(f.m), 3);
    pass(&f, 280 * SEC);
    assert_int_equal(manager_processes_exited(f.m), 3);
    pass(&f, 25 * SEC);
    assert_int_equal(manager_processes_exited(f.m), 0);
    manager_set_caps(f.m, 9, 9, 3, 0);
    struct told told;
    begin(s, "p", "exit 0", &told);
    pump(&f);
    assert_int_equal(told.n, 1);
    assert_null(process_find(s, "p")); /* not kept at all */
    session_exec_ends(s);
    session_exec_ends(t);
    session_release(s);
    session_release(t);
    fixture_stop(&f);
}

/* The last words. */

static void preview_is_the_end_of_stderr_as_text(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    expect_preview(running(&f, s, "p", "err first line; err  second\t; cat"),
                   "first line\nsecond"); /* also while it runs */
    expect_preview(running(&f, s, "p", "err \xff\xc3\x28 x; exit 1"),
                   "\xef\xbf\xbd\xef\xbf\xbd( x");
    expect_preview(running(&f, s, "p", "exit 0"), "");
    /* One that never ran cannot say why. */
    expect_preview(running(&f, s, "p", "nonsense"),
                   "sh: cannot execute: No such file or directory");
    expect_preview(running(&f, s, "p", "err mine;nonsense"), "mine");

    /* Code points, not bytes; one long piece does not erase it. */
    AUTO_DONE(buf) struct buf steps;
    AUTO_DONE(buf) struct buf want;
    buf_init(&steps, 65536);
    buf_init(&want, 65536);
    (void)buf_puts(&steps, "err ");
    for (int i = 0; i < 5000; i++)
        (void)buf_puts(&steps, i % 2 ? "\xe2\x82\xac" : "x");
    for (int i = 1000; i < 5000; i++)
        (void)buf_puts(&want, i % 2 ? "\xe2\x82\xac" : "x");
    (void)buf_puts(&steps, "; exit 1");
    expect_preview(running(&f, s, "p", buf_str(&steps)), buf_str(&want));
    session_release(s);
    fixture_stop(&f);
}

/* With its session. */

static void test_row_T71_session_with_a_running_process_is_not_reaped(void **state)
{
    struct fixture f;
    struct told t;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "cat");
    session_release(s);
    f.clock.boot_ns += 3600 * SEC; /* far beyond */
    manager_reap(f.m);
    pump(&f);
    s = manager_find(f.m, "s");
    assert_non_null(s);
    for (int i = 0; i < 20; i++)
        pass(&f, 60 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    end_it(s, "p", &t);
    pass(&f, 55 * SEC); /* its idle time begins with the end */
    assert_non_null(manager_find(f.m, "s"));
    pass(&f, 5 * SEC);
    assert_null(manager_find(f.m, "s"));
    fixture_stop(&f);
}

static void exit_is_use_of_the_session(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "sleep 200000");
    session_release(s);
    pass(&f, 200 * SEC);
    assert_int_equal(session_last_used(s), f.clock.real_ns);
    pass(&f, 55 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    pass(&f, 5 * SEC);
    assert_null(manager_find(f.m, "s"));
    assert_int_equal(manager_processes_exited(f.m), 0);
    fixture_stop(&f);
}

static void processes_of_an_ended_session_end_gently_too(void **state)
{
    struct fixture f;
    struct heard gone;
    struct told t, stopped;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "ignore; sleep 1000000");
    (void)running(&f, s, "q", "cat");
    (void)running(&f, s, "r", "exit 0");
    begin(s, "p", "cat", &t);
    end_it(s, "q", &stopped);
    delete_id(&f, "s", &gone);
    assert_null(manager_find(f.m, "s"));
    assert_int_equal(start_spec(s, steps_spec("x", "cat"), &t, &err), err_code_errno(ERR_STATE));
    assert_string_equal(err.msg, "session s is being deleted");
    pass(&f, 4 * SEC);
    assert_int_equal(gone.n, 0);
    assert_int_equal(stopped.n, 1);
    pass(&f, SEC);
    assert_int_equal(gone.n, 1);
    assert_int_equal(manager_processes_running(f.m), 0);
    assert_int_equal(manager_processes_exited(f.m), 0);
    session_release(s);
    fixture_stop(&f);
}

static void start_that_waited_hears_of_its_sessions_end(void **state)
{
    struct fixture f;
    struct heard gone;
    struct told t;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "cat");
    begin(s, "p", "cat", &t);
    delete_id(&f, "s", &gone);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.err.code, ERR_STATE);
    assert_int_equal(gone.n, 1);
    session_release(s);
    fixture_stop(&f);
}

static void lost_sandbox_takes_its_processes_along(void **state)
{
    struct fixture f;
    struct told t;
    struct reader r;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "stays", "ignore; sleep 1000000");
    attach(process_find(s, "stays"), &r, true);
    begin(s, "bad", "die", &t);
    pump(&f); /* at once: there is nothing to be gentle with */
    assert_int_equal(t.n, 1);
    assert_int_equal(r.ended, 1);
    assert_int_equal(manager_count(f.m), 0);
    assert_int_equal(manager_processes_running(f.m), 0);
    leave(&r);
    session_release(s);
    fixture_stop(&f);
}

static void freed_manager_leaves_nothing_of_them(void **state)
{
    struct fixture f;
    struct told t, u;
    struct reader r, parked;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    attach(running(&f, s, "p", "cat"), &r, true);
    attach(process_find(s, "p"), &parked, true);
    (void)running(&f, s, "q", "exit 0");
    (void)running(&f, s, "r", "ignore; sleep 1000000");
    begin(s, "r", "cat", &t);
    begin(s, "x", "cat", &u);
    session_release(s);
    fixture_stop(&f); /* see the sanitizer */
    assert_int_equal(t.n + u.n, 0);
    leave(&r);
    leave(&parked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T70_started_process_is_tracked),
        cmocka_unit_test(exit_is_noticed_and_told_as_python_does),
        cmocka_unit_test(a_process_is_killed_when_its_time_is_up),
        cmocka_unit_test(several_live_in_one_session_by_id),
        cmocka_unit_test(stopping_what_is_not_there_is_an_error),
        cmocka_unit_test(stop_is_told_when_all_of_it_is_gone),
        cmocka_unit_test(gentle_end_comes_first),
        cmocka_unit_test(stubborn_process_is_killed_after_the_grace),
        cmocka_unit_test(running_one_of_the_same_id_is_ended_first),
        cmocka_unit_test(last_start_wins),
        cmocka_unit_test(failed_start_is_told_and_leaves_nothing),
        cmocka_unit_test(running_processes_are_limited_over_all_sessions),
        cmocka_unit_test(ended_ones_are_kept_for_a_while_and_some_only),
        cmocka_unit_test(preview_is_the_end_of_stderr_as_text),
        cmocka_unit_test(test_row_T71_session_with_a_running_process_is_not_reaped),
        cmocka_unit_test(exit_is_use_of_the_session),
        cmocka_unit_test(processes_of_an_ended_session_end_gently_too),
        cmocka_unit_test(start_that_waited_hears_of_its_sessions_end),
        cmocka_unit_test(lost_sandbox_takes_its_processes_along),
        cmocka_unit_test(freed_manager_leaves_nothing_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
