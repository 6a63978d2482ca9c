/* SPDX-License-Identifier: Apache-2.0 */
#include "core_process.h"

#define LINES 3

static void reader_gets_the_backlog_and_what_follows(void **state)
{
    struct fixture f;
    struct reader r;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "echo before; cat");
    attach(p, &r, true);
    assert_true(process_attached(p));
    pump(&f);
    assert_int_equal(r.active, 1);
    assert_string_equal(buf_str(&r.got), "before\n");
    assert_int_equal(attachment_write(r.a, "hello\n", 6), 0);
    pump(&f);
    assert_string_equal(buf_str(&r.got), "before\nhello\n");
    assert_false(attachment_eof(r.a, r.at));
    leave(&r);
    assert_false(process_attached(p));
    assert_true(process_running(p)); /* leaving does not end it */
    session_release(s);
    fixture_stop(&f);
}

static void readers_have_it_one_after_the_other(void **state)
{
    struct fixture f;
    struct reader r[LINES];
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "cat");
    for (int i = 0; i < LINES; i++)
        attach(p, &r[i], true);
    pump(&f);
    assert_int_equal(r[0].active, 1);
    assert_int_equal(r[1].active + r[2].active, 0);
    assert_int_equal(attachment_write(r[0].a, "0\n", 2), 0);
    pump(&f);
    leave(&r[1]); /* one that waited gives up */
    pump(&f);
    assert_int_equal(r[2].active, 0);
    leave(&r[0]);
    assert_int_equal(r[2].active, 0); /* from the loop, not from here */
    pump(&f);
    assert_int_equal(r[2].active, 1);
    assert_int_equal(r[2].got.len, 0); /* the first has had its line */
    assert_int_equal(attachment_write(r[2].a, "2\n", 2), 0);
    pump(&f);
    assert_string_equal(buf_str(&r[2].got), "2\n");
    leave(&r[2]);
    session_release(s);
    fixture_stop(&f);
}

static void what_was_not_released_is_read_again(void **state)
{
    struct fixture f;
    struct reader a, b;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "echo one; echo two; cat");
    attach(p, &a, false);
    pump(&f);
    read_all(&a);
    assert_string_equal(buf_str(&a.got), "one\ntwo\n");
    attachment_release(a.a, 4); /* its peer has the first line, then the line is cut */
    char byte;
    assert_int_equal(attachment_read(a.a, 3, &byte, 1), -ERANGE);
    leave(&a);
    attach(p, &b, true);
    pump(&f);
    assert_string_equal(buf_str(&b.got), "two\n"); /* no gap and no repeat */
    leave(&b);
    session_release(s);
    fixture_stop(&f);
}

static void slow_reader_holds_the_process_back(void **state)
{
    struct fixture f;
    struct reader r;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "flood 300000; exit 5");
    assert_true(process_running(p)); /* nobody reads: it waits */
    attach(p, &r, false);
    pump(&f);
    read_all(&r);
    assert_in_range(r.got.len, 1, 299999);
    r.greedy = true;
    attachment_release(r.a, r.at);
    pump(&f);
    assert_int_equal(r.got.len, 300000);
    assert_int_equal(r.ended, 1);
    assert_int_equal(process_exit_code(p), 5);
    leave(&r);
    session_release(s);
    fixture_stop(&f);
}

static void full_stdin_is_told_when_it_has_room(void **state)
{
    struct fixture f;
    struct reader r;
    static char bulk[300000];
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    attach(running(&f, s, "p", "sleep 1000; cat"), &r, true);
    pump(&f);
    memset(bulk, 'y', sizeof(bulk));
    assert_int_equal(attachment_write(r.a, bulk, sizeof(bulk)), 1);
    assert_int_equal(r.drained, 0);
    pass(&f, SEC);
    assert_int_equal(r.drained, 1);
    assert_int_equal(r.got.len, sizeof(bulk));
    leave(&r);
    session_release(s);
    fixture_stop(&f);
}

static void exit_ends_readers_when_all_is_read(void **state)
{
    struct fixture f;
    struct reader r, parked;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "sleep 1000; echo last words; err bye; exit 3");
    attach(p, &r, false);
    attach(p, &parked, true);
    pass(&f, SEC);
    assert_false(process_running(p));
    assert_int_equal(r.ended, 0); /* there is something left for it */
    assert_true(process_attached(p));
    read_all(&r);
    assert_string_equal(buf_str(&r.got), "last words\n");
    assert_true(attachment_eof(r.a, r.at));
    pass(&f, 10 * SEC);
    assert_int_equal(r.ended, 0);
    attachment_release(r.a, r.at);
    pump(&f);
    assert_int_equal(r.ended, 1);
    assert_int_equal(parked.ended, 1); /* nothing is left for the next */
    assert_int_equal(parked.active, 0);
    assert_int_equal(attachment_write(r.a, "x", 1), -EPIPE);
    assert_int_equal(attachment_read(r.a, r.at, (char[1]){0}, 1), 0);
    attachment_release(r.a, 1);
    assert_false(process_attached(p));
    expect_preview(p, "bye");
    struct attachment *late = NULL;
    assert_int_equal(process_attach(p, &reader_events, &r, &late, &err), err_code_errno(ERR_STATE));
    assert_string_equal(err.msg, "managed process p in session s is not running");
    leave(&r);
    leave(&parked);
    session_release(s);
    fixture_stop(&f);
}

static void next_reader_gets_the_rest_of_an_ended_process(void **state)
{
    struct fixture f;
    struct reader r, parked;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    struct process *p = running(&f, s, "p", "sleep 1000; echo rest; exit 0");
    attach(p, &r, false);
    attach(p, &parked, true);
    pass(&f, SEC);
    leave(&r); /* without having read */
    pump(&f);
    assert_string_equal(buf_str(&parked.got), "rest\n");
    assert_int_equal(parked.ended, 1);
    leave(&parked);
    session_release(s);
    fixture_stop(&f);
}

static void record_is_kept_while_somebody_reads(void **state)
{
    struct fixture f;
    struct reader r;
    struct manager_options none = proc_options;
    none.exited_ns = 0;
    fixture_start(&f, NULL, &none);
    struct session *s = ready_session(&f, "s");
    attach(running(&f, s, "p", "sleep 1000; echo rest; exit 0"), &r, false);
    pass(&f, 10 * SEC);
    assert_non_null(process_find(s, "p"));
    read_all(&r);
    assert_string_equal(buf_str(&r.got), "rest\n");
    leave(&r);
    assert_null(process_find(s, "p"));
    session_release(s);
    fixture_stop(&f);
}

static void stop_replacement_and_deletion_end_readers(void **state)
{
    struct fixture f;
    struct reader r[2];
    struct told t;
    struct heard gone;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    for (int how = 0; how < 3; how++) {
        struct process *p = running(&f, s, "p", "ignore; sleep 1000000");
        attach(p, &r[0], true);
        attach(p, &r[1], true);
        pump(&f);
        if (how == 0)
            end_it(s, "p", &t);
        else if (how == 1)
            begin(s, "p", "cat", &t);
        else
            delete_id(&f, "s", &gone);
        assert_int_equal(r[0].ended + r[1].ended, 0); /* from the loop */
        pump(&f);                                     /* at once, not when it has ended */
        assert_int_equal(r[0].ended, 1);
        assert_int_equal(r[1].ended, 1);
        leave(&r[0]);
        leave(&r[1]);
        pass(&f, 5 * SEC);
    }
    session_release(s);
    fixture_stop(&f);
}

static void forwarding_is_use_of_the_session(void **state)
{
    struct fixture f;
    struct reader r;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    attach(running(&f, s, "p", "cat"), &r, true);
    pass(&f, 30 * SEC);
    uint64_t now = f.clock.real_ns;
    assert_true(session_last_used(s) < now);
    assert_int_equal(attachment_write(r.a, "x", 1), 0);
    assert_int_equal(session_last_used(s), now);
    leave(&r);
    session_release(s);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reader_gets_the_backlog_and_what_follows),
        cmocka_unit_test(readers_have_it_one_after_the_other),
        cmocka_unit_test(what_was_not_released_is_read_again),
        cmocka_unit_test(slow_reader_holds_the_process_back),
        cmocka_unit_test(full_stdin_is_told_when_it_has_room),
        cmocka_unit_test(exit_ends_readers_when_all_is_read),
        cmocka_unit_test(next_reader_gets_the_rest_of_an_ended_process),
        cmocka_unit_test(record_is_kept_while_somebody_reads),
        cmocka_unit_test(stop_replacement_and_deletion_end_readers),
        cmocka_unit_test(forwarding_is_use_of_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
