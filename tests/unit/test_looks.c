/* SPDX-License-Identifier: Apache-2.0 */

/* Questions to the supervisor of a sandbox about what runs there, with a supervisor of the test's
 * own that may say anything. */

#include "lib/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/task.h"
#include "base/clock.h"
#include "base/err.h"
#include "inside/usage.h"
#include "inside/wire.h"
#include "loop/loop.h"

static struct {
    struct tasks home;
    uint32_t id, after; /* of the last question */
    unsigned asked, ordered, told;
    size_t n;
    bool more;
    struct err err;
} t;

static bool is_ready(const struct tasks *home)
{
    return true;
}

static int list(struct tasks *home, uint32_t look, uint32_t after)
{
    t.id = look;
    t.after = after;
    t.asked++;
    return 0;
}

static int end_left(struct tasks *home, const char *label)
{
    assert_string_equal(label, "job");
    t.ordered++;
    return 0;
}

static int ask_usage(struct tasks *home, uint32_t look)
{
    t.id = look;
    return 0;
}

static void on_top(void *arg, const struct backend_process *rows, size_t n, bool more,
                   const struct err *err)
{
    t.told++;
    t.n = n;
    t.more = more;
    t.err = err != NULL ? *err : (struct err){0};
    for (size_t i = 1; i < n; i++)
        assert_true(rows[i].pid > rows[i - 1].pid);
}

static void on_ended(void *arg, const struct err *err)
{
    t.told++;
    t.err = err != NULL ? *err : (struct err){0};
}

static void on_usage(void *arg, const struct inside_usage *usage)
{
    t.told++;
    t.n = usage != NULL ? (size_t)usage->pids : 0;
}

static void start(void)
{
    static const struct tasks_ops ops = {
        .ready = is_ready, .list = list, .end_left = end_left, .usage = ask_usage};
    struct err err = {0};
    struct loop *loop = NULL;
    memset(&t, 0, sizeof(t));
    assert_int_equal(loop_new(&clock_system, &loop, &err), 0);
    tasks_init(&t.home, NULL, &ops, loop);
}

static void stop(void)
{
    looks_lose(&t.home);
    (void)loop_turn(t.home.loop, 0);
    loop_free(t.home.loop);
}

static void turn(void)
{
    (void)loop_turn(t.home.loop, 100);
}

static struct inside_process row(uint32_t pid, const char *label)
{
    struct inside_process p = {
        .pid = pid, .owner = INSIDE_OWNER_EXEC, .left = 1, .state = 'S', .command = "x"};
    (void)snprintf(p.label, sizeof(p.label), "%s", label);
    return p;
}

/* Answers whole pages until so many processes were listed. */
static void answer(uint32_t n)
{
    static struct inside_process rows[INSIDE_LIST_MAX];
    for (uint32_t done = 0, part = INSIDE_LIST_MAX; part == INSIDE_LIST_MAX; done += part) {
        part = n - done < INSIDE_LIST_MAX ? n - done : INSIDE_LIST_MAX;
        assert_int_equal(t.after, done > 0 ? done + 1 : 0);
        for (uint32_t i = 0; i < part; i++)
            rows[i] = row(2 + done + i, "job");
        looks_answer(&t.home, t.id, rows, part, 0);
    }
}

static void processes_are_told_up_to_the_cap_and_one_past_it_is_said(void **state)
{
    static const struct {
        uint32_t n, told;
        bool more;
    } cases[] = {{0, 0, false},     {1, 1, false},       {128, 128, false},
                 {129, 129, false}, {1024, 1024, false}, {1025, 1024, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        start();
        assert_int_equal(tasks_top(&t.home.sandbox, on_top, NULL, &err), 0);
        answer(cases[i].n);
        turn();
        assert_int_equal(t.told, 1);
        assert_int_equal(t.err.code, ERR_NONE);
        assert_int_equal(t.n, cases[i].told);
        assert_int_equal(t.more, cases[i].more);
        stop();
    }
}

static void rows_that_make_no_sense_are_refused(void **state)
{
    for (int i = 0; i < 7; i++) {
        struct inside_process rows[2] = {row(5, "a"), row(6, "a")};
        struct err err = {0};
        start();
        assert_int_equal(tasks_top(&t.home.sandbox, on_top, NULL, &err), 0);
        if (i == 1)
            rows[1].pid = 5; /* again */
        if (i == 2)
            rows[1].owner = INSIDE_OWNER_MAX;
        if (i == 3)
            memset(rows[1].label, 'a', sizeof(rows[1].label));
        if (i == 4)
            memset(rows[1].command, 'a', sizeof(rows[1].command));
        if (i == 5)
            rows[1].state = 128;
        if (i == 6)
            (void)snprintf(rows[1].label, sizeof(rows[1].label), "a/b");
        looks_answer(&t.home, t.id + 1, rows, 2, 0); /* to no question of ours */
        looks_answer(&t.home, t.id, rows, 2, 0);
        turn();
        assert_int_equal(t.told, 1);
        assert_int_equal(t.err.code, i == 0 ? ERR_NONE : ERR_BACKEND);
        assert_int_equal(t.n, i == 0 ? 2 : 0);
        stop();
    }
}

static void what_was_left_is_killed_until_it_is_gone(void **state)
{
    struct err err = {0};
    struct inside_process rows[] = {row(5, "other"), row(6, "job"), row(7, "job"), row(8, "job")};
    rows[2].left = 0;    /* of one that runs */
    rows[3].state = 'Z'; /* dead, and not reaped yet */
    start();
    assert_int_equal(tasks_end_left(&t.home.sandbox, "job", on_ended, NULL, &err), 0);
    looks_answer(&t.home, t.id, rows, 4, 0);
    assert_int_equal(t.ordered, 1);
    while (t.asked < 2)
        turn();
    looks_answer(&t.home, t.id, rows, 4, 0); /* it takes its time */
    assert_int_equal(t.ordered, 2);
    while (t.asked < 3)
        turn();
    rows[1].state = 'Z';
    looks_answer(&t.home, t.id, rows, 4, 0);
    turn();
    assert_int_equal(t.told, 1);
    assert_int_equal(t.err.code, ERR_NONE);
    assert_int_equal(tasks_end_left(&t.home.sandbox, "job", on_ended, NULL, &err), 0);
    looks_answer(&t.home, t.id, rows, 4, 0);
    turn();
    assert_int_equal(t.told, 2);
    assert_int_equal(t.err.code, ERR_NOT_FOUND);
    stop();
}

static void questions_are_bounded_and_end_with_the_sandbox(void **state)
{
    struct err err = {0};
    start();
    assert_int_equal(tasks_usage(&t.home.sandbox, on_usage, NULL, &err), 0);
    looks_used(&t.home, t.id, &(struct inside_usage){.pids = 7});
    turn();
    assert_int_equal(t.n, 7);
    for (int i = 0; i < 16; i++)
        assert_int_equal(tasks_top(&t.home.sandbox, on_top, NULL, &err), 0);
    assert_true(tasks_top(&t.home.sandbox, on_top, NULL, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    looks_lose(&t.home);
    turn();
    assert_int_equal(t.told, 17);
    assert_int_equal(t.err.code, ERR_STATE);
    stop();
}

static void network_counters_are_those_of_all_interfaces_but_the_loopback(void **state)
{
    static const char text[] =
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n"
        "    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n"
        "  eth0: 100 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
        "eth10:7 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n";
    char path[] = "/tmp/box-looks-XXXXXX";
    struct inside_usage u;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    usage_unknown(&u);
    usage_network(AT_FDCWD, "/nowhere", &u);
    assert_true(u.received_bytes == INSIDE_UNKNOWN && u.cpu_ns == INSIDE_UNKNOWN);
    usage_network(AT_FDCWD, path, &u);
    assert_int_equal(u.received_bytes, 107);
    assert_int_equal(u.sent_bytes, 23);
    (void)unlink(path);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_are_told_up_to_the_cap_and_one_past_it_is_said),
        cmocka_unit_test(rows_that_make_no_sense_are_refused),
        cmocka_unit_test(what_was_left_is_killed_until_it_is_gone),
        cmocka_unit_test(questions_are_bounded_and_end_with_the_sandbox),
        cmocka_unit_test(network_counters_are_those_of_all_interfaces_but_the_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
