/* SPDX-License-Identifier: Apache-2.0 */

/* A daemon that is killed, and the next one: the store and the fake backend's sandboxes outlive the
 * manager. */

#include "core_process.h"

struct world {
    struct fixture f;
    struct place place;
    struct manager_options options;
    struct heard adopted;
};

static void world_start(struct world *w, const struct fake_options *fake)
{
    *w = (struct world){0};
    place_start(&w->place);
    w->options = proc_options;
    w->options.store = w->place.store;
    fixture_start(&w->f, fake, &w->options);
}

/* The daemon dies without a word; the store is as its last commit left it. */
static void crash(struct world *w)
{
    fake_restart(w->f.backend);
    /* What manager_free() would still write is not written: its store is another by then. */
    struct place nowhere;
    place_start(&nowhere);
    ((struct manager_options *)(uintptr_t)manager_get_options(w->f.m))->store = nowhere.store;
    manager_free(w->f.m);
    w->f.m = NULL;
    place_stop(&nowhere);
    store_free(w->place.store);
    place_open(&w->place);
    w->options.store = w->place.store;
}

static void next_daemon(struct world *w)
{
    struct err err = {0};
    assert_int_equal(manager_new(w->f.loop, w->f.backend, &w->options, &w->f.m, &err), 0);
    w->adopted = (struct heard){0};
    assert_int_equal(manager_adopt(w->f.m, on_gone, &w->adopted, &err), 0);
    assert_int_equal(w->adopted.n, 0); /* from the loop */
    pump(&w->f);
    assert_int_equal(w->adopted.n, 1);
}

static void restart(struct world *w)
{
    crash(w);
    next_daemon(w);
    assert_int_equal(w->adopted.err.code, ERR_NONE);
}

static void world_stop(struct world *w)
{
    fixture_stop(&w->f);
    place_stop(&w->place);
}

static int count_one(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    ++*(int *)arg;
    return 0;
}

static int count_process(void *arg, const char *id, uint64_t when, const char *json, size_t len)
{
    ++*(int *)arg;
    return 0;
}

static int records(struct world *w)
{
    struct err err = {0};
    int n = 0;
    assert_int_equal(store_each_session(w->place.store, count_one, &n, &err), 0);
    return n;
}

static int process_records(struct world *w, const char *id)
{
    struct err err = {0};
    int n = 0;
    assert_int_equal(store_each_process(w->place.store, id, count_process, &n, &err), 0);
    return n;
}

static void session_is_found_again_with_all_it_was(void **state)
{
    struct world w;
    struct heard h;
    struct err err = {0};
    world_start(&w, NULL);
    struct spec *spec = named_spec("chat \xc3\xa4/1");
    spec->cpus = 1.5;
    spec->network = NETWORK_ON;
    strv_add(&spec->env, "TOKEN=secret");
    free(spec->cmd);
    spec->cmd = xstrdup("echo the first command");
    assert_int_equal(acquire_spec(&w.f, spec, 0, &h, &err), 0);
    assert_int_equal(records(&w), 0);
    pump(&w.f);
    assert_int_equal(records(&w), 1);
    give_back(&h);
    session_release(ready_session(&w.f, "second"));
    uint64_t created = session_created(manager_find(w.f.m, "second"));
    pass(&w.f, 7 * SEC);
    restart(&w);

    assert_int_equal(manager_count(w.f.m), 2);
    struct session *s = manager_find(w.f.m, "chat \xc3\xa4/1");
    assert_non_null(s);
    assert_ptr_equal(manager_next(w.f.m, NULL), s); /* in the order of creation */
    assert_int_equal(session_state(s), SESSION_READY);
    assert_true(session_spec(s)->cpus == 1.5);
    assert_int_equal(session_spec(s)->network, NETWORK_ON);
    assert_string_equal(session_spec(s)->env[0], "TOKEN=secret");
    assert_string_equal(session_spec(s)->cmd, "");
    assert_int_equal(session_created(manager_find(w.f.m, "second")), created);
    assert_int_equal(fake_sandboxes(w.f.backend), 2);
    assert_int_equal(fake_creations(w.f.backend), 2); /* none was made anew */

    acquire_id(&w.f, "second", &h);
    pump(&w.f);
    give_back(&h);
    struct heard gone;
    delete_id(&w.f, "second", &gone);
    pump(&w.f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(records(&w), 1);
    world_stop(&w);
}

static void idle_time_goes_on_over_a_restart(void **state)
{
    struct world w;
    world_start(&w, NULL);
    session_release(ready_session(&w.f, "s"));
    pass(&w.f, 20 * SEC);
    session_release(ready_session(&w.f, "s")); /* used; written within five seconds */
    uint64_t used = w.f.clock.real_ns;
    pass(&w.f, 5 * SEC);
    crash(&w);
    fake_clock_advance(&w.f.clock, 30 * SEC);
    next_daemon(&w);
    assert_int_equal(session_last_used(manager_find(w.f.m, "s")), used);
    pass(&w.f, 20 * SEC);
    assert_non_null(manager_find(w.f.m, "s"));
    pass(&w.f, 5 * SEC);
    assert_null(manager_find(w.f.m, "s"));
    assert_int_equal(records(&w), 0);
    world_stop(&w);
}

static void clock_that_was_set_back_makes_nothing_older(void **state)
{
    struct world w;
    world_start(&w, NULL);
    session_release(ready_session(&w.f, "s"));
    pass(&w.f, 5 * SEC);
    crash(&w);
    w.f.clock.real_ns -= 3600 * SEC;
    next_daemon(&w);
    pass(&w.f, 55 * SEC);
    assert_non_null(manager_find(w.f.m, "s"));
    pass(&w.f, 5 * SEC);
    assert_null(manager_find(w.f.m, "s"));
    world_stop(&w);
}

static void test_row_F11_a_lease_runs_out_when_nobody_holds_it(void **state)
{
    struct world w;
    struct err err = {0};
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    struct told t;
    assert_int_equal(start_spec(s, steps_spec("mcp", "cat"), &t, &err), 0);
    assert_int_equal(session_lease_take(s, 5, &err), 0);
    assert_int_equal(session_lease_take(s, 5, &err), 0);
    session_lease_drop(s);
    pass(&w.f, 60 * SEC);
    assert_non_null(manager_find(w.f.m, "s")); /* somebody still does */
    session_lease_drop(s);
    pass(&w.f, 4 * SEC);
    assert_int_equal(session_lease_take(s, 5, &err), 0); /* and comes back in time */
    pass(&w.f, 60 * SEC);
    assert_non_null(manager_find(w.f.m, "s"));
    session_lease_drop(s);
    session_release(s);
    pass(&w.f, 5 * SEC);
    assert_null(manager_find(w.f.m, "s"));
    pass(&w.f, 10 * SEC);
    assert_int_equal(records(&w), 0);
    world_stop(&w);
}

static void test_row_F11_the_next_daemon_waits_for_the_holder_no_longer_than_the_lease(void **state)
{
    struct world w;
    struct err err = {0};
    struct told t;
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s"), *kept = ready_session(&w.f, "kept");
    assert_int_equal(start_spec(s, steps_spec("mcp", "cat"), &t, &err), 0);
    assert_int_equal(start_spec(kept, steps_spec("mcp", "cat"), &t, &err), 0);
    assert_int_equal(session_lease_take(s, 5, &err), 0);
    assert_int_equal(session_lease_take(kept, 5, &err), 0);
    session_lease_drop(s);
    session_lease_drop(kept);
    session_release(s);
    session_release(kept);
    pass(&w.f, 4 * SEC);
    restart(&w);
    pass(&w.f, 4 * SEC); /* it counts from the start of the new one */
    kept = manager_find(w.f.m, "kept");
    assert_non_null(kept);
    assert_int_equal(session_lease_sec(kept), 5);
    assert_false(session_lease_held(kept));
    session_hold(kept);
    assert_int_equal(session_lease_take(kept, 5, &err), 0);
    pass(&w.f, 60 * SEC);
    assert_null(manager_find(w.f.m, "s"));
    assert_non_null(manager_find(w.f.m, "kept"));
    session_lease_drop(kept);
    session_release(kept);
    world_stop(&w);
}

static void process_runs_on_and_no_byte_is_lost(void **state)
{
    struct world w;
    struct reader r;
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    struct process_spec *spec = steps_spec("mcp", "echo one; echo two; cat");
    struct told t;
    struct err err = {0};
    strv_add(&spec->env, "KEY=secret");
    assert_int_equal(start_spec(s, spec, &t, &err), 0);
    assert_int_equal(process_records(&w, "s"), 1); /* before anybody is told */
    pump(&w.f);
    uint64_t started = process_started_at(process_find(s, "mcp"));
    attach(process_find(s, "mcp"), &r, false);
    pump(&w.f);
    read_all(&r);
    process_reader_release(&r.r, 4);
    leave(&r);
    session_release(s);
    fake_clock_advance(&w.f.clock, SEC);
    restart(&w);

    s = manager_find(w.f.m, "s");
    struct process *p = process_find(s, "mcp");
    assert_non_null(p);
    assert_true(process_running(p));
    assert_int_equal(process_started_at(p), started);
    assert_int_equal(manager_processes_running(w.f.m), 1);
    assert_string_equal(process_spec_of(p)->args[1], "echo one; echo two; cat");
    assert_string_equal(process_spec_of(p)->env[0], "KEY="); /* names only */
    attach(p, &r, true);
    pump(&w.f);
    assert_string_equal(buf_str(&r.got), "two\n");
    assert_int_equal(process_reader_write(&r.r, "three\n", 6), 0);
    pump(&w.f);
    assert_string_equal(buf_str(&r.got), "two\nthree\n");
    leave(&r);
    for (int i = 0; i < 10; i++)
        pass(&w.f, 60 * SEC);
    assert_non_null(manager_find(w.f.m, "s")); /* it is not idle */
    world_stop(&w);
}

static void time_of_a_process_goes_on_over_a_restart(void **state)
{
    struct world w;
    struct told t;
    struct err err = {0};
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    struct process_spec *spec = steps_spec("p", "cat");
    spec->timeout_sec = 10;
    assert_int_equal(start_spec(s, spec, &t, &err), 0);
    pump(&w.f);
    session_release(s);
    fake_clock_advance(&w.f.clock, 6 * SEC);
    restart(&w);
    pass(&w.f, 3 * SEC);
    assert_true(process_running(process_find(manager_find(w.f.m, "s"), "p")));
    pass(&w.f, 2 * SEC);
    assert_false(process_running(process_find(manager_find(w.f.m, "s"), "p")));
    world_stop(&w);
}

static void process_that_ended_meanwhile_says_how(void **state)
{
    struct world w;
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    (void)running(&w.f, s, "ends", "sleep 1000; err bye; exit 9");
    (void)running(&w.f, s, "gone", "cat");
    (void)running(&w.f, s, "old", "err out of luck; exit 4");
    uint64_t ended = w.f.clock.real_ns;
    session_release(s);
    crash(&w);
    fake_vanish(w.f.backend, "fake-1", 2);
    fake_clock_advance(&w.f.clock, 5 * SEC);
    next_daemon(&w);

    s = manager_find(w.f.m, "s");
    assert_int_equal(process_exit_code(process_find(s, "ends")), 9);
    expect_preview(process_find(s, "ends"), "bye");
    assert_false(process_running(process_find(s, "gone")));
    assert_int_equal(process_exit_code(process_find(s, "gone")), -SIGKILL);
    assert_int_equal(process_exit_code(process_find(s, "old")), 4);
    assert_int_equal(process_exited_at(process_find(s, "old")), ended);
    expect_preview(process_find(s, "old"), "out of luck");
    assert_int_equal(manager_processes_running(w.f.m), 0);
    assert_int_equal(manager_processes_exited(w.f.m), 3);
    restart(&w); /* and it is remembered */
    s = manager_find(w.f.m, "s");
    assert_int_equal(process_exit_code(process_find(s, "gone")), -SIGKILL);
    expect_preview(process_find(s, "ends"), "bye");
    w.options.exited_ns = 3 * SEC;
    crash(&w);
    next_daemon(&w);
    s = manager_find(w.f.m, "s");
    assert_null(process_find(s, "old")); /* its time was over */
    assert_non_null(process_find(s, "ends"));
    assert_int_equal(process_records(&w, "s"), 2);
    world_stop(&w);
}

static void output_of_an_ended_process_outlives_the_daemon_too(void **state)
{
    struct world w;
    char text[32] = "";
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    (void)running(&w.f, s, "p", "echo done; err bye; exit 4");
    session_release(s);
    pass(&w.f, 2 * SEC);
    restart(&w);
    struct process *p = process_find(manager_find(w.f.m, "s"), "p");
    assert_false(process_running(p));
    assert_int_equal(process_exit_code(p), 4);
    assert_int_equal(process_read(p, 0, text, sizeof(text) - 1), 5);
    assert_string_equal(text, "done\n");
    expect_preview(p, "bye");
    assert_int_equal(manager_processes_running(w.f.m), 0);
    assert_int_equal(manager_processes_exited(w.f.m), 1);
    world_stop(&w);
}

static void numbers_of_processes_are_never_used_again(void **state)
{
    struct world w;
    struct told t;
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    for (int i = 0; i < 70; i++) /* more than are reserved at once */
        (void)running(&w.f, s, "p", "exit 0");
    end_it(s, "p", &t);
    pump(&w.f);
    session_release(s);
    restart(&w);
    s = manager_find(w.f.m, "s");
    (void)running(&w.f, s, "p", "cat");
    crash(&w);
    for (uint32_t i = 1; i <= 70; i++)
        fake_vanish(w.f.backend, "fake-1", i); /* hits nothing that runs */
    next_daemon(&w);
    assert_true(process_running(process_find(manager_find(w.f.m, "s"), "p")));
    world_stop(&w);
}

static void test_row_F21_what_is_nobodys_is_swept(void **state)
{
    struct world w;
    struct heard h;
    struct err err = {0};
    world_start(&w, &(struct fake_options){.create_ns = SEC, .destroy_ns = SEC});
    acquire_id(&w.f, "kept", &h);
    pass(&w.f, SEC);
    give_back(&h);
    acquire_id(&w.f, "half", &h); /* never acknowledged */
    pass(&w.f, SEC / 2);
    assert_int_equal(fake_sandboxes(w.f.backend), 2);
    crash(&w);
    pass(&w.f, SEC); /* it is made all the same, for nobody */
    next_daemon(&w);
    assert_int_equal(manager_count(w.f.m), 1);
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    crash(&w);
    err = (struct err){.code = ERR_SYSTEM, .msg = "cannot remove"};
    fake_fail(w.f.backend, FAKE_SWEEP, &err);
    next_daemon(&w);
    assert_int_equal(w.adopted.err.code, ERR_SYSTEM); /* told, and nothing else happens */
    assert_non_null(manager_find(w.f.m, "kept"));
    world_stop(&w);
}

static void session_that_died_meanwhile_is_forgotten(void **state)
{
    struct world w;
    world_start(&w, NULL);
    session_release(ready_session(&w.f, "dead"));
    session_release(ready_session(&w.f, "alive"));
    crash(&w);
    fake_vanish(w.f.backend, "fake-1", 0);
    next_daemon(&w);
    assert_int_equal(manager_count(w.f.m), 1);
    assert_null(manager_find(w.f.m, "dead"));
    assert_non_null(manager_find(w.f.m, "alive"));
    assert_int_equal(records(&w), 1);
    session_release(ready_session(&w.f, "dead")); /* the name is free */
    world_stop(&w);
}

static void hostile_records_are_dropped_and_the_rest_is_taken(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[1]",
        "{\"version\":2,\"spec\":{},\"state\":{}}",
        "{\"version\":1,\"spec\":{\"session_id\":\"x\"},\"state\":{}}",
    };
    struct world w;
    struct err err = {0};
    char good[4096] = "";
    world_start(&w, NULL);
    session_release(ready_session(&w.f, "s"));
    struct session *s = manager_find(w.f.m, "s");
    (void)running(&w.f, s, "p", "cat");
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char id[8];
        (void)snprintf(id, sizeof(id), "bad%zu", i);
        assert_int_equal(store_put_session(w.place.store, id, bad[i], strlen(bad[i]), &err), 0);
        assert_int_equal(store_put_process(w.place.store, "s", id, bad[i], strlen(bad[i]), &err),
                         0);
    }
    /* Sound, but of somebody else, or of another backend. */
    static const char record[] =
        "{\"version\":1,\"spec\":{\"session_id\":\"%s\"},\"state\":{\"backend\":\"%s\","
        "\"sandbox\":\"fake-1\",\"created_ns\":1,\"numbers_end\":1}}";
    (void)snprintf(good, sizeof(good), record, "s", "fake");
    assert_int_equal(store_put_session(w.place.store, "other", good, strlen(good), &err), 0);
    (void)snprintf(good, sizeof(good), record, "docked", "docker");
    assert_int_equal(store_put_session(w.place.store, "docked", good, strlen(good), &err), 0);
    (void)snprintf(good, sizeof(good), record, "thief", "fake"); /* a sandbox that s has */
    assert_int_equal(store_put_session(w.place.store, "thief", good, strlen(good), &err), 0);
    restart(&w);
    assert_int_equal(manager_count(w.f.m), 1);
    assert_int_equal(records(&w), 1);
    assert_int_equal(process_records(&w, "s"), 1);
    assert_true(process_running(process_find(manager_find(w.f.m, "s"), "p")));
    world_stop(&w);
}

static void backend_that_keeps_nothing_is_fine(void **state)
{
    struct world w;
    struct backend_ops poor;
    struct told t;
    struct err err = {0};
    world_start(&w, NULL);
    session_release(ready_session(&w.f, "s"));
    crash(&w);
    poor = *w.f.backend->ops;
    poor.adopt = NULL;
    poor.sweep = NULL;
    poor.sandbox_name = NULL;
    poor.set_deadline = NULL;
    poor.proc_start = NULL;
    poor.proc_adopt = NULL;
    const struct backend_ops *rich = w.f.backend->ops;
    w.f.backend->ops = &poor;
    next_daemon(&w);
    assert_int_equal(manager_count(w.f.m), 0);
    assert_int_equal(records(&w), 0);
    struct session *s = ready_session(&w.f, "s");
    assert_int_equal(records(&w), 0); /* what cannot be found again is not written down */
    assert_int_equal(start_spec(s, steps_spec("p", "cat"), &t, &err),
                     err_code_errno(ERR_UNSUPPORTED));
    assert_string_equal(err.msg, "fake backend does not support managed processes");
    session_release(s);
    w.f.backend->ops = rich;
    world_stop(&w);
}

static void no_store_is_no_obstacle(void **state)
{
    struct fixture f;
    struct heard adopted = {0};
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    assert_int_equal(manager_adopt(f.m, on_gone, &adopted, &err), 0);
    pump(&f);
    assert_int_equal(adopted.n, 1);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "exit 0");
    session_release(s);
    fixture_stop(&f);
}

static void session_that_cannot_be_recorded_is_not_acknowledged(void **state)
{
    struct world w;
    struct heard h;
    struct err err = {0};
    world_start(&w, NULL);
    struct spec *spec = named_spec("s");
    AUTO_FREE char *value = xcalloc(1, 400001);
    memset(value, '\x01', 400000); /* six bytes each, as JSON */
    strv_push(&spec->env, xasprintf("A=%s", value));
    assert_int_equal(acquire_spec(&w.f, spec, 0, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(h.n, 1);
    assert_null(h.session);
    assert_int_equal(h.err.code, ERR_LIMIT);
    assert_int_equal(manager_count(w.f.m), 0);
    assert_int_equal(fake_sandboxes(w.f.backend), 0);
    world_stop(&w);
}

static int remember_used(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    *(uint64_t *)arg = used;
    return 0;
}

static uint64_t used_in_store(struct world *w)
{
    struct err err = {0};
    uint64_t used = 0;
    assert_int_equal(store_each_session(w->place.store, remember_used, &used, &err), 0);
    return used;
}

static void times_of_use_are_written_in_batches(void **state)
{
    struct world w;
    world_start(&w, NULL);
    struct session *s = ready_session(&w.f, "s");
    pass(&w.f, 10 * SEC);
    uint64_t first = used_in_store(&w);
    session_exec_begins(s);
    pass(&w.f, 4 * SEC);
    session_exec_ends(s);
    assert_int_equal(used_in_store(&w), first);
    pass(&w.f, SEC);
    assert_int_equal(used_in_store(&w), w.f.clock.real_ns - SEC);
    session_exec_begins(s);
    session_exec_ends(s);
    session_release(s);
    uint64_t last = w.f.clock.real_ns;
    fixture_stop(&w.f); /* an orderly end writes what is left */
    assert_int_equal(used_in_store(&w), last);
    place_stop(&w.place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_is_found_again_with_all_it_was),
        cmocka_unit_test(idle_time_goes_on_over_a_restart),
        cmocka_unit_test(clock_that_was_set_back_makes_nothing_older),
        cmocka_unit_test(test_row_F11_a_lease_runs_out_when_nobody_holds_it),
        cmocka_unit_test(
            test_row_F11_the_next_daemon_waits_for_the_holder_no_longer_than_the_lease),
        cmocka_unit_test(process_runs_on_and_no_byte_is_lost),
        cmocka_unit_test(time_of_a_process_goes_on_over_a_restart),
        cmocka_unit_test(process_that_ended_meanwhile_says_how),
        cmocka_unit_test(output_of_an_ended_process_outlives_the_daemon_too),
        cmocka_unit_test(numbers_of_processes_are_never_used_again),
        cmocka_unit_test(test_row_F21_what_is_nobodys_is_swept),
        cmocka_unit_test(session_that_died_meanwhile_is_forgotten),
        cmocka_unit_test(hostile_records_are_dropped_and_the_rest_is_taken),
        cmocka_unit_test(backend_that_keeps_nothing_is_fine),
        cmocka_unit_test(no_store_is_no_obstacle),
        cmocka_unit_test(session_that_cannot_be_recorded_is_not_acknowledged),
        cmocka_unit_test(times_of_use_are_written_in_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
