/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_stage.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/json.h"
#include "command/execs.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "session/events.h"
#include "session/run.h"

/* Execs by id, in one session, and what a reader has seen of them. */
struct play {
    struct stage s;
    struct execs *x;
    struct session *session;
    struct named_exec *k;
    struct err err;
};

struct watcher {
    struct named_exec_reader reader;
    unsigned ready, drained;
    bool reads;
    char text[4096];
    size_t len;
};

static void play_start(struct play *p, size_t max_bytes)
{
    struct execs_options options = execs_defaults;
    memset(p, 0, sizeof(*p));
    stage_start(&p->s, FLAT());
    options.service = &p->s.service;
    options.max_running = 3;
    options.max_ended = 2;
    options.max_bytes = max_bytes > 0 ? max_bytes : options.max_bytes;
    p->x = execs_new(p->s.f.loop, &options);
    p->session = ready_session(&p->s.f, "s");
}

static void play_stop(struct play *p)
{
    execs_free(p->x);
    pump(&p->s.f);
    session_release(p->session);
    stage_stop(&p->s);
}

static int ask(struct play *p, const char *cmd, const char *id, bool keep)
{
    const struct named_exec_options options = {.session = p->session,
                                               .run = {.exec = {.cmd = cmd, .with_stdin = true}},
                                               .id = id,
                                               .via = "test",
                                               .keep = keep,
                                               .log_max = 1 << 20};
    return execs_start(p->x, &options, &p->k, &p->err);
}

static void on_more(void *arg)
{
    struct watcher *w = arg;
    enum exec_stream stream;
    size_t n;
    w->ready++;
    while (w->reads && (n = named_exec_read(&w->reader, &stream, w->text + w->len,
                                            sizeof(w->text) - 1 - w->len)) > 0) {
        named_exec_advance(&w->reader, n);
        w->len += n;
    }
}

static void on_drained(void *arg)
{
    ((struct watcher *)arg)->drained++;
}

static void watch(struct watcher *w, struct named_exec *k, uint64_t from, bool reads)
{
    static const struct named_exec_events events = {.ready = on_more, .stdin_drained = on_drained};
    memset(w, 0, sizeof(*w));
    w->reads = reads;
    named_exec_attach(k, &w->reader, from, &events, w);
    on_more(w);
}

static void a_reader_sees_both_streams_in_order_to_the_end(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "echo one;err two;echo three;exit 4", NULL, false), 0);
    assert_int_equal(named_exec_state(p.k), COMMAND_ASKING);
    watch(&w, p.k, 0, true);
    pump(&p.s.f);
    assert_string_equal(w.text, "one\ntwo\nthree\n");
    assert_int_equal(named_exec_state(p.k), COMMAND_DONE);
    assert_true(named_exec_at_end(&w.reader));
    assert_int_equal(named_exec_result(p.k)->outcome.exit_code, 4);
    assert_int_equal(named_exec_result(p.k)->produced[EXEC_STDERR], 4);
    named_exec_detach(&w.reader);
    pump(&p.s.f);
    assert_null(execs_next(p.x, "s", NULL)); /* nobody asked for it to be remembered */
    play_stop(&p);
}

static void whoever_comes_back_goes_on_without_gap_or_repeat(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "echo one;sleep 10;echo two", "x", true), 0);
    watch(&w, p.k, 0, true);
    pump(&p.s.f);
    named_exec_detach(&w.reader);
    pass(&p.s.f, 20 * NSEC_PER_MSEC);
    assert_ptr_equal(execs_find(p.x, "s", "x"), p.k);
    assert_null(execs_find(p.x, "other", "x")); /* an id is one of its session */
    watch(&w, p.k, 4, true);
    assert_string_equal(w.text, "two\n");
    assert_true(named_exec_at_end(&w.reader));
    named_exec_detach(&w.reader);
    play_stop(&p);
}

static void without_keep_the_last_reader_takes_it_along(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "sleep 1000000", NULL, false), 0);
    watch(&w, p.k, 0, true);
    pump(&p.s.f);
    assert_int_equal(named_exec_state(p.k), COMMAND_RUNNING);
    named_exec_detach(&w.reader);
    pump(&p.s.f);
    assert_null(execs_next(p.x, "s", NULL));
    expect_log(&p.s, "\"event\":\"exec_end\"");
    play_stop(&p);
}

/* Let in at once, it begins from the loop; what is given up before that must not begin at all. */
static void what_is_given_up_before_it_begins_never_runs(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "echo ran", NULL, false), 0);
    watch(&w, p.k, 0, true);
    named_exec_detach(&w.reader);
    assert_int_equal(ask(&p, "echo ran", "x", true), 0);
    named_exec_dismiss(p.k);
    pump(&p.s.f);
    assert_null(execs_next(p.x, "s", NULL));

    assert_int_equal(ask(&p, "echo ran", "y", true), 0);
    watch(&w, p.k, 0, true);
    named_exec_kill(p.k);
    pump(&p.s.f);
    assert_int_equal(w.len, 0);
    assert_false(named_exec_ran(p.k));
    assert_int_equal(named_exec_error(p.k)->code, ERR_STATE);
    named_exec_detach(&w.reader);
    expect_log(&p.s, "\"outcome\":\"given_up\"");
    play_stop(&p);
}

static void names_and_numbers_are_bounded(void **state)
{
    struct play p;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "sleep 10", "a", true), 0);
    assert_true(ask(&p, "sleep 10", "a", true) < 0);
    assert_int_equal(p.err.code, ERR_CONFLICT);
    assert_int_equal(ask(&p, "sleep 10", "b", true), 0);
    assert_int_equal(ask(&p, "sleep 10", "c", true), 0);
    assert_true(ask(&p, "sleep 10", "d", true) < 0);
    assert_int_equal(p.err.code, ERR_LIMIT);
    pass(&p.s.f, 20 * NSEC_PER_MSEC);
    assert_null(execs_find(p.x, "s", "a")); /* of those that ended the oldest went */
    assert_non_null(execs_find(p.x, "s", "b"));
    pass(&p.s.f, 400 * NSEC_PER_SEC);
    assert_null(execs_next(p.x, "s", NULL));
    play_stop(&p);
}

#define TOKEN "11111111111111111111111111111111"

/* Whoever has the most remembered makes room, not whoever has the oldest. */
static void one_token_does_not_cost_others_what_is_remembered(void **state)
{
    static const char file[] = "{\"tokens\": [{\"name\": \"a\", \"token\": \"" TOKEN "\", "
                               "\"tools\": [\"*\"], \"sessions\": [\"*\"]}]}";
    AUTO(shares) struct shares *shares = shares_new();
    AUTO(authz) struct authz *authz = NULL;
    AUTO(json) struct json *v = NULL;
    struct play p;
    assert_int_equal(json_parse(file, sizeof(file) - 1, &v, NULL), 0);
    assert_int_equal(authz_parse(v, &authz, NULL), 0);
    play_start(&p, 0);
    p.s.service.shares = shares;
    assert_int_equal(ask(&p, "echo mine", "mine", true), 0);
    pump(&p.s.f);
    for (int i = 0; i < 3; i++) {
        const char *const names[] = {"a0", "a1", "a2"};
        const struct named_exec_options options = {.session = p.session,
                                                   .run = {.exec = {.cmd = "echo theirs"}},
                                                   .id = names[i],
                                                   .scope = authz_find(authz, TOKEN, 32, 0),
                                                   .via = "test",
                                                   .keep = true,
                                                   .log_max = 1 << 20};
        if (execs_start(p.x, &options, &p.k, &p.err) != 0)
            fail_msg("%s", p.err.msg);
        pump(&p.s.f);
    }
    assert_non_null(execs_find(p.x, "s", "mine"));
    assert_null(execs_find(p.x, "s", "a0"));
    assert_null(execs_find(p.x, "s", "a1"));
    assert_non_null(execs_find(p.x, "s", "a2"));
    play_stop(&p);
    assert_null(shares_next(shares, NULL));
}

static uint64_t written(const struct named_exec *k)
{
    uint64_t begin, end;
    named_exec_range(k, &begin, &end);
    return end;
}

static void a_slow_reader_holds_the_program_back(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "flood 1000000;echo end", NULL, false), 0);
    watch(&w, p.k, 0, false);
    pump(&p.s.f);
    assert_int_equal(named_exec_state(p.k), COMMAND_RUNNING);
    assert_in_range(written(p.k), 1, 400000);
    named_exec_detach(&w.reader);
    play_stop(&p);
}

/* Each change of streams is a segment of its own: it is their memory that counts. */
static void so_does_one_that_leaves_small_pieces_unread(void **state)
{
    struct play p;
    struct watcher w;
    AUTO_DONE(buf) struct buf cmd;
    play_start(&p, 0);
    buf_init(&cmd, 1 << 20);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(buf_puts(&cmd, "echo a;err b;"), 0);
    assert_int_equal(ask(&p, buf_str(&cmd), NULL, false), 0);
    watch(&w, p.k, 0, false);
    pump(&p.s.f);
    assert_int_equal(named_exec_state(p.k), COMMAND_RUNNING);
    assert_in_range(written(p.k), 1, 1000); /* of 8000 */
    w.reads = true;
    for (int i = 0; i < 100 && named_exec_state(p.k) != COMMAND_DONE; i++) {
        w.len = 0;
        on_more(&w);
        pump(&p.s.f);
    }
    assert_int_equal(named_exec_state(p.k), COMMAND_DONE);
    named_exec_detach(&w.reader);
    play_stop(&p);
}

static void old_output_goes_and_is_counted(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 64 << 10);
    assert_int_equal(ask(&p, "flood 300000;echo end;sleep 10", "x", true), 0);
    pump(&p.s.f);
    assert_int_equal(written(p.k), 300004);
    watch(&w, p.k, 0, false);
    uint64_t dropped = named_exec_take_dropped(&w.reader);
    assert_in_range(dropped, 200000, 300004);
    assert_int_equal(named_exec_take_dropped(&w.reader), 0);
    named_exec_detach(&w.reader);
    play_stop(&p);
}

static void stdin_is_counted_and_its_end_ends_the_program(void **state)
{
    struct play p;
    struct watcher w;
    play_start(&p, 0);
    assert_int_equal(ask(&p, "cat", "x", true), 0);
    assert_int_equal(named_exec_write(p.k, "early", 5), -EPIPE); /* it does not run yet */
    watch(&w, p.k, 0, true);
    pump(&p.s.f);
    assert_true(named_exec_write(p.k, "hello", 5) >= 0);
    assert_int_equal(named_exec_stdin_bytes(p.k), 5);
    named_exec_close_stdin(p.k);
    pump(&p.s.f);
    assert_string_equal(w.text, "hello");
    assert_int_equal(named_exec_state(p.k), COMMAND_DONE);
    named_exec_detach(&w.reader);
    play_stop(&p);
}

/* Sessions that die by themselves. */

static void on_event(void *arg, const struct event *event)
{
    char *log = arg;
    size_t len = strlen(log);
    (void)snprintf(log + len, 256 - len, "%s %s;", event_kind_name(event->kind), event->session);
}

static void on_run_end(void *arg, const struct run_result *result)
{
    *(enum outcome_kind *)arg = result->outcome.kind;
}

static void a_sandbox_that_dies_is_told_as_a_session_that_is_lost(void **state)
{
    static const struct run_events run_events = {.finished = on_run_end};
    static const struct fake_options at_once = {0};
    const struct run_options options = {.exec = {.cmd = "die"}};
    struct manager_options roomy = {.max_sessions = 10};
    enum outcome_kind kind = OUTCOME_EXITED;
    struct fixture f = {0};
    struct run *run = NULL;
    char log[256] = "";
    fake_clock_init(&f.clock);
    assert_int_equal(loop_new(&f.clock.clock, &f.loop, NULL), 0);
    roomy.events = events_new(f.loop, 16);
    events_set_sink(roomy.events, on_event, log);
    assert_int_equal(fake_new(f.loop, &at_once, &f.backend, NULL), 0);
    assert_int_equal(manager_new(f.loop, f.backend, &roomy, &f.m, NULL), 0);
    struct session *s = ready_session(&f, "s");
    session_release(ready_session(&f, "other"));
    assert_int_equal(run_start(s, &options, &run_events, &kind, &run, NULL), 0);
    pump(&f);
    assert_int_equal(kind, OUTCOME_SESSION_LOST);
    assert_null(manager_find(f.m, "s"));
    assert_string_equal(log,
                        "session.created s;session.created other;exec.ended s;session.lost s;");
    run_free(run);
    session_release(s);
    fixture_stop(&f);
    events_free(roomy.events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_sees_both_streams_in_order_to_the_end),
        cmocka_unit_test(whoever_comes_back_goes_on_without_gap_or_repeat),
        cmocka_unit_test(without_keep_the_last_reader_takes_it_along),
        cmocka_unit_test(what_is_given_up_before_it_begins_never_runs),
        cmocka_unit_test(names_and_numbers_are_bounded),
        cmocka_unit_test(one_token_does_not_cost_others_what_is_remembered),
        cmocka_unit_test(a_slow_reader_holds_the_program_back),
        cmocka_unit_test(so_does_one_that_leaves_small_pieces_unread),
        cmocka_unit_test(old_output_goes_and_is_counted),
        cmocka_unit_test(stdin_is_counted_and_its_end_ends_the_program),
        cmocka_unit_test(a_sandbox_that_dies_is_told_as_a_session_that_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
