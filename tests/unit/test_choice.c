/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "backend/choice.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

/* Backends that are there, or are not, or say no: each a fake under a name of its own. */

#define SEC NSEC_PER_SEC

static struct test {
    struct fixture f; /* its backend is the choice */
    struct backend *made[3];
    struct backend_ops ops[3];
    struct err cannot[3]; /* be made */
    struct fake_options options[3];
    int changes;
    char serving[32];
} t;

static const char *const names[] = {"one", "two", "three"};

static size_t number(const char *name)
{
    size_t i = 0;
    while (i < ARRAY_SIZE(names) && !str_eq(names[i], name))
        i++;
    assert_true(i < ARRAY_SIZE(names));
    return i;
}

static int make(void *arg, struct loop *loop, const char *name, struct backend **ret,
                struct err *err)
{
    size_t i = number(name);
    assert_ptr_equal(arg, &t);
    if (t.cannot[i].code != ERR_NONE) {
        *err = t.cannot[i];
        return err_code_errno(err->code);
    }
    assert_null(t.made[i]);
    assert_int_equal(fake_new(t.f.loop, &t.options[i], ret, err), 0);
    t.ops[i] = *(*ret)->ops;
    t.ops[i].name = names[i];
    (*ret)->ops = &t.ops[i];
    t.made[i] = *ret;
    return 0;
}

static void on_changed(void *arg, const char *name, const struct err *err)
{
    assert_ptr_equal(arg, &t);
    assert_true((name == NULL) == (err != NULL));
    t.changes++;
    (void)str_copy(t.serving, sizeof(t.serving), name != NULL ? name : "");
}

static void start_all(size_t n)
{
    static const struct manager_options roomy = {.max_sessions = 100};
    static const struct choice_candidate list[] = {{"one", make, NULL, "pwd", "mend one"},
                                                   {"two", make, NULL, "pwd", "mend two"},
                                                   {"three", make, NULL, "pwd", NULL}};
    static const struct choice_options options[] = {
        {list, 1, &t, on_changed}, {list, 2, &t, on_changed}, {list, 3, &t, on_changed}};
    struct err err = {0};
    fake_clock_init(&t.f.clock);
    assert_int_equal(loop_new(&t.f.clock.clock, &t.f.loop, &err), 0);
    t.f.backend = choice_new(t.f.loop, &options[n - 1]);
    assert_int_equal(manager_new(t.f.loop, t.f.backend, &roomy, &t.f.m, &err), 0);
}

static int setup(void **state)
{
    t = (struct test){0};
    return 0;
}

static int teardown(void **state)
{
    fixture_stop(&t.f);
    return 0;
}

static struct err saying(enum err_code code, const char *text)
{
    struct err err = {0};
    (void)err_set(&err, code, "%s", text);
    return err;
}

static void on_probe(void *arg, const struct err *err)
{
    on_gone(arg, err);
}

static void probe(struct heard *h)
{
    *h = (struct heard){0};
    t.f.backend->ops->probe(t.f.backend, on_probe, h);
    assert_int_equal(h->n, 0);
}

static bool is_available(void)
{
    struct err why = {0};
    return backend_available(t.f.backend, &why) == 0;
}

static void end(const char *id, struct session *s)
{
    struct heard h;
    session_release(s);
    delete_id(&t.f, id, &h);
    pump(&t.f);
    assert_int_equal(h.n, 1);
}

static void the_first_that_works_serves(void **state)
{
    struct heard h;
    start_all(2);
    assert_false(is_available()); /* nobody has tried */
    probe(&h);
    pump(&t.f);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_true(is_available());
    assert_string_equal(t.f.backend->ops->name, "one");
    assert_int_equal(fake_creations(t.made[0]), 1); /* by doing */
    assert_int_equal(fake_sandboxes(t.made[0]), 0); /* and nothing is left */
    assert_null(t.made[1]);                         /* nobody has bothered the other */
    assert_int_equal(t.changes, 1);
}

static void a_call_that_comes_first_waits_for_the_choice(void **state)
{
    struct err no = saying(ERR_UNSUPPORTED, "no namespaces here");
    start_all(2);
    t.cannot[0] = no;
    struct session *s = ready_session(&t.f, "a");
    assert_ptr_equal(session_sandbox(s)->backend, t.made[1]);
    assert_string_equal(t.f.backend->ops->name, "two");
    end("a", s);
}

static void one_that_makes_sandboxes_that_do_not_work_does_not_serve(void **state)
{
    struct err no = saying(ERR_BACKEND, "no program runs");
    struct heard h;
    start_all(2);
    assert_non_null(backend_find(t.f.backend, "one")); /* has it made */
    fake_fail(t.made[0], FAKE_EXEC, &no);
    probe(&h);
    pump(&t.f);
    assert_string_equal(t.serving, "two");
    assert_int_equal(fake_sandboxes(t.made[0]), 0);
}

/* Rows T07 and T57: nothing runs elsewhere instead, and everybody hears why. */
static void test_row_T07_row_T57_nothing_works_and_every_call_fails_closed(void **state)
{
    struct heard h[3];
    struct err err = {0};
    start_all(2);
    t.cannot[0] = saying(ERR_UNSUPPORTED, "no namespaces here");
    t.cannot[1] = saying(ERR_UNAVAILABLE, "nobody listens");
    for (int i = 0; i < 2; i++)
        acquire_id(&t.f, i == 0 ? "a" : "b", &h[i]);
    pump(&t.f);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(h[i].n, 1);
        assert_int_equal(h[i].err.code, ERR_UNAVAILABLE);
        assert_non_null(strstr(h[i].err.msg, "one: no namespaces here"));
        assert_non_null(strstr(h[i].err.msg, "two: nobody listens"));
    }
    /* For a moment the answer is known. */
    assert_true(acquire_spec(&t.f, named_spec("c"), 0, &h[2], &err) < 0);
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    assert_int_equal(manager_count(t.f.m), 0);
    assert_false(is_available());
}

static void test_row_T07_a_call_works_as_soon_as_a_backend_does(void **state)
{
    struct heard h;
    start_all(2);
    t.cannot[0] = t.cannot[1] = saying(ERR_UNAVAILABLE, "nobody listens");
    acquire_id(&t.f, "a", &h);
    pump(&t.f);
    assert_int_equal(h.err.code, ERR_UNAVAILABLE);
    t.cannot[1] = (struct err){0};
    fake_clock_advance(&t.f.clock, SEC + 1); /* before the next look in the background */
    struct session *s = ready_session(&t.f, "a");
    assert_string_equal(t.serving, "two");
    end("a", s);
}

static void what_comes_up_is_noticed_without_a_call(void **state)
{
    struct heard h;
    start_all(2);
    t.cannot[0] = t.cannot[1] = saying(ERR_UNAVAILABLE, "nobody listens");
    probe(&h);
    pump(&t.f);
    assert_int_equal(h.err.code, ERR_UNAVAILABLE);
    pass(&t.f, 2 * SEC);
    pass(&t.f, 4 * SEC);
    t.cannot[0] = (struct err){0};
    assert_false(is_available());
    pass(&t.f, 3 * SEC); /* less and less often: after 8 seconds now */
    assert_false(is_available());
    pass(&t.f, 5 * SEC);
    assert_true(is_available());
    assert_string_equal(t.serving, "one");
}

static void one_that_fails_somebody_has_to_prove_itself_again(void **state)
{
    struct err no = saying(ERR_BACKEND, "out of order");
    struct heard h;
    start_all(2);
    probe(&h);
    pump(&t.f);
    fake_clock_advance(&t.f.clock, 10 * SEC);
    fake_fail(t.made[0], FAKE_CREATE_LATER, &no);
    acquire_id(&t.f, "a", &h);
    pump(&t.f);
    assert_int_equal(h.err.code, ERR_BACKEND);      /* its own words */
    assert_int_equal(fake_creations(t.made[0]), 3); /* the failed one, and it is tried again */
    assert_string_equal(t.serving, "one");
    end("a", ready_session(&t.f, "a"));
}

static void one_that_is_gone_is_replaced_and_keeps_what_it_made(void **state)
{
    struct err no = saying(ERR_UNAVAILABLE, "gone");
    struct heard h;
    start_all(2);
    probe(&h);
    pump(&t.f);
    struct session *old = ready_session(&t.f, "old");
    fake_clock_advance(&t.f.clock, 10 * SEC);
    fake_fail(t.made[0], FAKE_CREATE, &no); /* for who asks, and then for the look at it */
    struct err err = {0};
    assert_true(acquire_spec(&t.f, named_spec("a"), 0, &h, &err) < 0);
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    fake_fail(t.made[0], FAKE_CREATE, &no);
    struct session *fresh = ready_session(&t.f, "a");
    assert_string_equal(t.serving, "two");
    assert_ptr_equal(session_sandbox(fresh)->backend, t.made[1]);
    assert_ptr_equal(session_sandbox(old)->backend, t.made[0]);
    end("a", fresh);
    end("old", old);
}

static void one_that_does_not_answer_is_given_up_and_tidied_up(void **state)
{
    struct heard h;
    t.options[0].create_ns = 40 * SEC;
    start_all(2);
    probe(&h);
    pass(&t.f, 14 * SEC);
    assert_int_equal(h.n, 0);
    pass(&t.f, 2 * SEC);
    assert_int_equal(h.n, 1);
    assert_string_equal(t.serving, "two");
    assert_int_equal(fake_sandboxes(t.made[0]), 1); /* still being made */
    pass(&t.f, 60 * SEC);
    assert_int_equal(fake_sandboxes(t.made[0]), 0);
}

static void a_name_limits_the_choice_and_unknown_ones_are_told(void **state)
{
    struct heard h;
    start_all(3);
    assert_false(backend_limit(t.f.backend, "e2b"));
    assert_true(backend_limit(t.f.backend, "two"));
    struct session *s = ready_session(&t.f, "a");
    assert_ptr_equal(session_sandbox(s)->backend, t.made[1]);
    assert_null(t.made[0]);
    end("a", s);
    assert_true(backend_limit(t.f.backend, ""));
    probe(&h);
    pump(&t.f);
    assert_string_equal(t.serving, "two"); /* what serves goes on */
    assert_true(backend_limit(t.f.backend, "three"));
    assert_false(is_available());
    probe(&h);
    pump(&t.f);
    assert_string_equal(t.serving, "three");
}

static void the_only_one_is_asked_at_once(void **state)
{
    struct err gone = saying(ERR_UNAVAILABLE, "gone"), err = {0};
    struct heard h;
    start_all(1);
    struct session *s = ready_session(&t.f, "a");
    assert_int_equal(fake_creations(t.made[0]), 1); /* the session itself is the proof */
    assert_true(is_available());
    end("a", s);
    for (int i = 0; i < 3; i++) { /* each time it is asked, and answers for itself */
        fake_fail(t.made[0], FAKE_CREATE, &gone);
        assert_true(acquire_spec(&t.f, named_spec("b"), 0, &h, &err) < 0);
        assert_string_equal(err.msg, "gone");
        assert_false(is_available());
    }
    end("b", ready_session(&t.f, "b"));
    assert_true(is_available());
}

static void on_doctor(void *arg, const char *json, size_t len, const struct err *err)
{
    assert_null(err);
    *(char **)arg = xstrndup(json, len);
}

static void check_doctor(const char *said)
{
    AUTO_FREE char *text = NULL;
    struct err err = {0};
    assert_int_equal(t.f.backend->ops->doctor(t.f.backend, on_doctor, &text, &err), 0);
    pump(&t.f);
    assert_non_null(text);
    assert_non_null(strstr(text, said));
}

static void a_session_is_no_proof_for_the_doctor(void **state)
{
    struct err no = saying(ERR_BACKEND, "no program runs");
    start_all(1);
    end("a", ready_session(&t.f, "a"));
    assert_true(is_available());
    fake_fail(t.made[0], FAKE_EXEC, &no);
    check_doctor("no program runs");
    assert_false(is_available());
    end("b", ready_session(&t.f, "b")); /* it can be made, as before */
    assert_false(is_available());
    fake_clock_advance(&t.f.clock, 60 * NSEC_PER_SEC);
    check_doctor("serves: it has made a sandbox and run a command");
    assert_true(is_available());
}

static struct {
    int n;
    struct err err; /* to be told */
    struct loop_defer defer;
    backend_done_fn *done;
    void *arg;
} pinged;

static void on_pong(struct loop_defer *d)
{
    pinged.done(pinged.arg, pinged.err.code != ERR_NONE ? &pinged.err : NULL);
}

static void ping(struct backend *b, backend_done_fn *done, void *arg)
{
    pinged.n++;
    pinged.done = done;
    pinged.arg = arg;
    loop_defer_start(t.f.loop, &pinged.defer, on_pong);
}

static void what_serves_is_asked_whether_it_is_there(void **state)
{
    struct heard h;
    memset(&pinged, 0, sizeof(pinged));
    start_all(2);
    probe(&h);
    pump(&t.f);
    t.ops[0].ping = ping;
    probe(&h);
    pump(&t.f);
    assert_int_equal(pinged.n, 0); /* it has just shown it */
    fake_clock_advance(&t.f.clock, 10 * SEC);
    probe(&h);
    pump(&t.f);
    assert_int_equal(pinged.n, 1);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_int_equal(fake_creations(t.made[0]), 1); /* no sandbox for that */
    fake_clock_advance(&t.f.clock, 10 * SEC);
    pinged.err = saying(ERR_UNAVAILABLE, "gone");
    probe(&h);
    pump(&t.f);
    assert_int_equal(h.n, 1);
    assert_string_equal(t.serving, "two");
}

static void the_doctor_tells_who_serves_and_why_others_do_not(void **state)
{
    AUTO_FREE char *text = NULL;
    AUTO(json) struct json *report = NULL;
    struct err err = {0};
    start_all(3);
    t.cannot[0] = saying(ERR_UNSUPPORTED, "no namespaces here");
    assert_int_equal(t.f.backend->ops->doctor(t.f.backend, on_doctor, &text, &err), 0);
    pump(&t.f);
    assert_non_null(text);
    assert_int_equal(json_parse(text, strlen(text), &report, &err), 0);
    assert_string_equal(json_str(json_get(report, "backend")), "two");
    static const char *const expected[][4] = {
        {"backend-one", "warn", "no namespaces here", "mend one"},
        {"backend-two", "ok", "serves: it has made a sandbox and run a command", NULL},
        {"backend-three", "ok", "not tried: two serves", NULL}};
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        const struct json *row = json_at(json_get(report, "checks"), i);
        const char *remedy = json_str(json_get(row, "remedy"));
        assert_string_equal(json_str(json_get(row, "id")), expected[i][0]);
        assert_string_equal(json_str(json_get(row, "status")), expected[i][1]);
        assert_string_equal(json_str(json_get(row, "detail")), expected[i][2]);
        assert_true(str_eq(remedy, expected[i][3]));
    }
    assert_string_equal(json_str(json_get(json_at(json_get(report, "checks"), 3), "id")), "gvisor");
}

static void the_doctor_answers_where_nothing_works(void **state)
{
    AUTO_FREE char *text = NULL;
    AUTO(json) struct json *report = NULL;
    struct err err = {0};
    start_all(1);
    t.cannot[0] = saying(ERR_UNSUPPORTED, "no namespaces here");
    assert_int_equal(t.f.backend->ops->doctor(t.f.backend, on_doctor, &text, &err), 0);
    pump(&t.f);
    assert_int_equal(json_parse(text, strlen(text), &report, &err), 0);
    assert_int_equal(json_type(json_get(report, "backend")), JSON_NULL);
    const struct json *row = json_at(json_get(report, "checks"), 0);
    assert_string_equal(json_str(json_get(row, "status")), "missing");
    assert_string_equal(json_str(json_get(row, "remedy")), "mend one");
}

static void the_end_may_come_at_any_moment(void **state)
{
    struct heard h[2];
    t.options[0].create_ns = 5 * SEC;
    start_all(2);
    probe(&h[0]);
    acquire_id(&t.f, "a", &h[1]);
    pass(&t.f, SEC);
    assert_int_equal(h[0].n + h[1].n, 0);
    /* The rest is for teardown, and for those who watch memory. */
}

static void one_who_gives_up_while_waiting_gets_nothing(void **state)
{
    struct heard h;
    start_all(2);
    t.options[0].create_ns = SEC;
    acquire_id(&t.f, "a", &h);
    t.f.backend->ops->abandon(t.f.backend, manager_find(t.f.m, "a"));
    pass(&t.f, 2 * SEC);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_STATE);
    assert_int_equal(fake_creations(t.made[0]), 1); /* the one that proved it */
}

static backend_done_fn *sweep_done;
static void *sweep_arg;

static int slow_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    (void)b, (void)err;
    sweep_done = done;
    sweep_arg = arg;
    return 0;
}

static void nobody_waits_for_ever_for_what_was_left(void **state)
{
    struct heard h = {0};
    struct err err = {0};
    start_all(1);
    assert_int_equal(choice_make(t.f.backend, "one", &err), 0);
    t.ops[0].sweep = slow_sweep;
    assert_int_equal(t.f.backend->ops->sweep(t.f.backend, on_gone, &h, &err), 0);
    pass(&t.f, 2 * SEC);
    assert_int_equal(h.n, 0);
    pass(&t.f, 2 * SEC);
    assert_int_equal(h.n, 1);
    sweep_done(sweep_arg, NULL);
    pump(&t.f);
    assert_int_equal(h.n, 1); /* once */
}

/* Chats ask for it whenever one could not be stopped. */
static void what_is_left_can_be_swept_again(void **state)
{
    struct heard h[3] = {0};
    struct err err = {0};
    start_all(1);
    assert_int_equal(choice_make(t.f.backend, "one", &err), 0);
    assert_int_equal(t.f.backend->ops->sweep(t.f.backend, on_gone, &h[0], &err), 0);
    pump(&t.f);
    assert_int_equal(h[0].n, 1);
    assert_int_equal(h[0].err.code, ERR_NONE);
    t.ops[0].sweep = slow_sweep;
    assert_int_equal(t.f.backend->ops->sweep(t.f.backend, on_gone, &h[1], &err), 0);
    pass(&t.f, 60 * SEC);
    assert_int_equal(h[1].n, 0); /* who asks later wants to know the end */
    struct err why = saying(ERR_UNAVAILABLE, "not there");
    sweep_done(sweep_arg, &why);
    pump(&t.f);
    assert_int_equal(h[1].n, 1);
    assert_string_equal(h[1].err.msg, "not there");
    assert_int_equal(t.f.backend->ops->sweep(t.f.backend, on_gone, &h[2], &err), 0);
}

static void before_anybody_is_served_one_can_be_tried_alone(void **state)
{
    struct err err = {0};
    start_all(2);
    t.cannot[0] = saying(ERR_UNSUPPORTED, "no namespaces here");
    assert_true(choice_try_now(t.f.backend, "one", &err) < 0);
    assert_string_equal(err.msg, "no namespaces here");
    assert_null(t.made[1]);
    pump(&t.f); /* the others follow by themselves */
    assert_string_equal(t.serving, "two");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_that_works_serves),
        TEST(a_call_that_comes_first_waits_for_the_choice),
        TEST(one_that_makes_sandboxes_that_do_not_work_does_not_serve),
        TEST(test_row_T07_row_T57_nothing_works_and_every_call_fails_closed),
        TEST(test_row_T07_a_call_works_as_soon_as_a_backend_does),
        TEST(what_comes_up_is_noticed_without_a_call),
        TEST(one_that_fails_somebody_has_to_prove_itself_again),
        TEST(one_that_is_gone_is_replaced_and_keeps_what_it_made),
        TEST(one_that_does_not_answer_is_given_up_and_tidied_up),
        TEST(a_name_limits_the_choice_and_unknown_ones_are_told),
        TEST(the_only_one_is_asked_at_once),
        TEST(a_session_is_no_proof_for_the_doctor),
        TEST(what_serves_is_asked_whether_it_is_there),
        TEST(the_doctor_tells_who_serves_and_why_others_do_not),
        TEST(the_doctor_answers_where_nothing_works),
        TEST(the_end_may_come_at_any_moment),
        TEST(one_who_gives_up_while_waiting_gets_nothing),
        TEST(nobody_waits_for_ever_for_what_was_left),
        TEST(what_is_left_can_be_swept_again),
        TEST(before_anybody_is_served_one_can_be_tried_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
