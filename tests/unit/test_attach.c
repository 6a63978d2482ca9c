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
    assert_int_equal(process_reader_write(&r.r, "hello\n", 6), 0);
    pump(&f);
    assert_string_equal(buf_str(&r.got), "before\nhello\n");
    assert_false(at_eof(&r));
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
    assert_int_equal(process_reader_write(&r[0].r, "0\n", 2), 0);
    pump(&f);
    leave(&r[1]); /* one that waited gives up */
    pump(&f);
    assert_int_equal(r[2].active, 0);
    leave(&r[0]);
    assert_int_equal(r[2].active, 0); /* from the loop, not from here */
    pump(&f);
    assert_int_equal(r[2].active, 1);
    assert_int_equal(r[2].got.len, 0); /* the first has had its line */
    assert_int_equal(process_reader_write(&r[2].r, "2\n", 2), 0);
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
    process_reader_release(&a.r, 4); /* its peer has the first line, then the line is cut */
    char byte;
    assert_int_equal(process_read(p, 3, &byte, 1), -ERANGE);
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
    process_reader_release(&r.r, r.r.at);
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
    assert_int_equal(process_reader_write(&r.r, bulk, sizeof(bulk)), 1);
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
    assert_true(at_eof(&r));
    pass(&f, 10 * SEC);
    assert_int_equal(r.ended, 0);
    process_reader_release(&r.r, r.r.at);
    pump(&f);
    assert_int_equal(r.ended, 1);
    assert_int_equal(parked.ended, 1); /* nothing is left for the next */
    assert_int_equal(parked.active, 0);
    assert_int_equal(process_reader_write(&r.r, "x", 1), -EPIPE);
    process_reader_release(&r.r, 1);
    assert_false(process_attached(p));
    expect_preview(p, "bye");
    struct process_reader late = {0};
    process_reader_start(&late, p, &reader_events);
    assert_int_equal(process_reader_claim(&late, &err), err_code_errno(ERR_STATE));
    process_reader_stop(&late);
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
    assert_int_equal(process_reader_write(&r.r, "x", 1), 0);
    assert_int_equal(session_last_used(s), now);
    leave(&r);
    session_release(s);
    fixture_stop(&f);
}

/* A bell rings when it hears of output, and may do something to the others then. The process tells
 * the newest reader first, so bell 0 is started last and hears first. */
#define BELLS 3

struct tower {
    struct session *s;
    struct process *p;
    struct bell {
        struct process_reader r;
        struct tower *tower;
        int rung, ended;
        void (*act)(struct bell *b);
    } bells[BELLS + 1]; /* the last is not started at first */
};

static void on_ring(struct process_reader *r)
{
    struct bell *b = container_of(r, struct bell, r);
    b->rung++;
    if (b->act != NULL)
        b->act(b);
}

static void on_bell_ended(struct process_reader *r)
{
    container_of(r, struct bell, r)->ended++;
}

static const struct process_reader_events bell_events = {.output = on_ring, .ended = on_bell_ended};

static void bell_start(struct bell *b)
{
    process_reader_start(&b->r, b->tower->p, &bell_events);
}

static void tower_start(struct tower *t, struct fixture *f, const char *steps)
{
    *t = (struct tower){.s = ready_session(f, "s")};
    t->p = running(f, t->s, "p", steps);
    for (int i = BELLS; i >= 0; i--) {
        t->bells[i].tower = t;
        if (i < BELLS)
            bell_start(&t->bells[i]);
    }
}

static void expect_rung(struct fixture *f, struct tower *t, int a, int b, int c, int d)
{
    const int want[] = {a, b, c, d};
    pass(f, SEC);
    for (int i = 0; i <= BELLS; i++)
        assert_int_equal(t->bells[i].rung, want[i]);
}

static void tower_stop(struct tower *t)
{
    for (int i = 0; i <= BELLS; i++)
        process_reader_stop(&t->bells[i].r);
    session_release(t->s);
}

static void stop_next(struct bell *b)
{
    process_reader_stop(&b[1].r);
}

static void stop_itself(struct bell *b)
{
    process_reader_stop(&b->r);
}

static void stop_all(struct bell *b)
{
    for (int i = 0; i < BELLS; i++)
        process_reader_stop(&b->tower->bells[i].r);
}

static void add_one(struct bell *b)
{
    if (b->tower->bells[BELLS].r.process == NULL)
        bell_start(&b->tower->bells[BELLS]);
}

static void start_again(struct bell *b)
{
    process_reader_stop(&b->r);
    bell_start(b);
}

static void forget_process(struct bell *b)
{
    static struct told t; /* told from the loop */
    if (!process_running(b->tower->p))
        end_it(b->tower->s, "p", &t);
}

static void reader_may_stop_and_start_any_while_all_are_told(void **state)
{
    static const struct {
        void (*act)(struct bell *b);
        int first[BELLS + 1], second[BELLS + 1];
    } cases[] = {
        {stop_next, {1, 0, 1, 0}, {2, 0, 2, 0}},
        {stop_itself, {1, 1, 1, 0}, {1, 2, 2, 0}},
        {stop_all, {1, 0, 0, 0}, {1, 0, 0, 0}},
        {add_one, {1, 1, 1, 0}, {2, 2, 2, 1}}, /* one that is new has not missed anything */
        {start_again, {1, 1, 1, 0}, {2, 2, 2, 0}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct tower t;
        fixture_start(&f, NULL, &proc_options);
        tower_start(&t, &f, "sleep 1000; echo 1; sleep 1000; echo 2; sleep 1000000");
        for (int b = 0; b < BELLS; b++)
            t.bells[b].act = b == 0 || cases[i].act == start_again ? cases[i].act : NULL;
        const int *want = cases[i].first;
        expect_rung(&f, &t, want[0], want[1], want[2], want[3]);
        want = cases[i].second;
        expect_rung(&f, &t, want[0], want[1], want[2], want[3]);
        tower_stop(&t);
        fixture_stop(&f);
    }
}

static void reader_may_forget_the_process_while_all_are_told(void **state)
{
    struct fixture f;
    struct tower t;
    fixture_start(&f, NULL, &proc_options);
    tower_start(&t, &f, "sleep 1000; exit 0");
    t.bells[0].act = forget_process;
    t.bells[1].act = forget_process;
    pass(&f, SEC);
    assert_null(process_find(t.s, "p"));
    for (int i = 0; i < BELLS; i++) {
        assert_int_equal(t.bells[i].ended, 1);
        assert_null(t.bells[i].r.process);
    }
    assert_true(t.bells[0].rung > t.bells[1].rung); /* the process was gone before its turn */
    tower_stop(&t);
    fixture_stop(&f);
}

static void one_that_stays_reads_on_when_its_turn_is_over(void **state)
{
    struct fixture f;
    struct tower t;
    struct told told;
    struct err err = {0};
    static const struct process_reader_events staying = {
        .output = on_ring, .ended = on_bell_ended, .stays = true};
    fixture_start(&f, NULL, &proc_options);
    tower_start(&t, &f, "ignore; sleep 1000; echo late; sleep 1000000");
    struct bell *b = &t.bells[BELLS];
    process_reader_start(&b->r, t.p, &staying);
    assert_int_equal(process_reader_claim(&b->r, &err), 0);
    pump(&f);
    assert_int_equal(b->r.state, READER_ACTIVE);
    end_it(t.s, "p", &told);
    assert_int_equal(b->r.state, READER_BESIDE);
    assert_int_equal(process_reader_write(&b->r, "x", 1), -EPIPE);
    pass(&f, SEC);
    assert_int_equal(b->rung, 1);
    assert_int_equal(b->ended, 0);
    pass(&f, 5 * SEC); /* it is killed */
    assert_int_equal(b->ended, 1);
    tower_stop(&t);
    fixture_stop(&f);
}

/* For process_reader_pump(): takes so much at once, and so much in all. */
struct sink {
    struct process_reader r;
    size_t at_once, left;
    struct buf got;
    int ended;
    enum reader_pumped pumped;
    bool last;
};

static bool sink_ready(const struct process_reader *r)
{
    return container_of(r, struct sink, r)->left > 0;
}

static size_t sink_take(struct process_reader *r, char *data, size_t len, bool last)
{
    struct sink *s = container_of(r, struct sink, r);
    size_t n = len < s->at_once ? len : s->at_once;
    n = n < s->left ? n : s->left;
    memset(data - READER_ROOM, '#', READER_ROOM); /* this much is the front's to write */
    assert_int_equal(buf_append(&s->got, data, n), 0);
    s->left -= n;
    s->last = last;
    return n;
}

static void sink_output(struct process_reader *r)
{
    struct sink *s = container_of(r, struct sink, r);
    s->pumped = process_reader_pump(r);
}

static void sink_ended(struct process_reader *r)
{
    container_of(r, struct sink, r)->ended++;
}

static void pump_obeys_the_front_and_tells_the_end(void **state)
{
    static const struct process_reader_events events = {
        .output = sink_output, .ended = sink_ended, .ready = sink_ready, .take = sink_take};
    struct fixture f;
    struct sink s = {.at_once = 3, .left = 5};
    fixture_start(&f, NULL, &proc_options);
    struct session *session = ready_session(&f, "s");
    struct process *p = running(&f, session, "p", "echo one; echo two; sleep 1000; exit 0");
    buf_init(&s.got, 1U << 20);
    process_reader_start(&s.r, p, &events);
    assert_int_equal(process_reader_pump(&s.r), READER_HELD);
    assert_string_equal(buf_str(&s.got), "one\nt");
    assert_int_equal(process_reader_pump(&s.r), READER_HELD);
    s.left = 1000;
    assert_int_equal(process_reader_pump(&s.r), READER_ALL);
    assert_string_equal(buf_str(&s.got), "one\ntwo\n");
    assert_int_equal(s.r.at, 8);
    assert_false(s.last);
    pass(&f, SEC);
    assert_int_equal(s.pumped, READER_END);
    process_reader_release(&s.r, 4);
    s.r.at = 2;
    assert_int_equal(process_reader_pump(&s.r), READER_LOST);
    s.r.at = 4;
    assert_int_equal(process_reader_pump(&s.r), READER_END);
    assert_true(s.last);
    process_reader_stop(&s.r);
    buf_done(&s.got);
    session_release(session);
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
        cmocka_unit_test(reader_may_stop_and_start_any_while_all_are_told),
        cmocka_unit_test(reader_may_forget_the_process_while_all_are_told),
        cmocka_unit_test(one_that_stays_reads_on_when_its_turn_is_over),
        cmocka_unit_test(pump_obeys_the_front_and_tells_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
