/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions that are kept: stopped, started, paused and renamed, and over the end of the daemon. */

#include "core_process.h"

#define TTL_NS (300 * 1000000000ULL)

struct world {
    struct fixture f;
    struct place place;
    struct manager_options options;
};

static void world_start(struct world *w)
{
    *w = (struct world){0};
    place_start(&w->place);
    w->options = proc_options;
    w->options.store = w->place.store;
    w->options.ttl_ns = TTL_NS;
    fixture_start(&w->f, NULL, &w->options);
}

static void world_stop(struct world *w)
{
    fixture_stop(&w->f);
    place_stop(&w->place);
}

/* The manager is told the end of the daemon (`in_order`) or is not; then the next one comes. */
static void next_daemon(struct world *w, bool in_order)
{
    struct heard h = {0};
    struct err err = {0};
    if (in_order) {
        manager_close(w->f.m, on_gone, &h);
        pump(&w->f);
        assert_int_equal(h.n, 1);
    }
    manager_free(w->f.m);
    fake_restart(w->f.backend);
    h = (struct heard){0};
    assert_int_equal(manager_new(w->f.loop, w->f.backend, &w->options, &w->f.m, &err), 0);
    assert_int_equal(manager_adopt(w->f.m, on_gone, &h, &err), 0);
    pump(&w->f);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_NONE);
}

static struct session *durable(struct world *w, const char *id)
{
    struct heard h;
    struct err err = {0};
    struct spec *spec = named_spec(id);
    spec->own.durable = true;
    assert_int_equal(acquire_spec(&w->f, spec, 0, &h, &err), 0);
    pump(&w->f);
    assert_non_null(h.session);
    session_release(h.session); /* the manager has it */
    return h.session;
}

static enum session_state state_of(struct world *w, const char *id)
{
    const struct session *s = manager_find(w->f.m, id);
    assert_non_null(s);
    return session_state(s);
}

static void stop_id(struct world *w, const char *id)
{
    struct heard h = {0};
    struct err err = {0};
    assert_int_equal(manager_stop(w->f.m, id, on_gone, &h, &err), 0);
    assert_int_equal(h.n, 0);
    pump(&w->f);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_int_equal(state_of(w, id), SESSION_STOPPED);
}

static void stopped_session_has_no_sandbox_and_starts_when_it_is_used(void **state)
{
    struct world w;
    struct heard h;
    bool known = false;
    world_start(&w);
    const struct session *s = durable(&w, "k");
    assert_true(session_durable(s));
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    stop_id(&w, "k");
    assert_int_equal(fake_sandboxes(w.f.backend), 0);
    assert_int_equal(manager_count(w.f.m), 0);
    assert_true(fake_keeps(w.f.backend, "fake-1"));
    assert_int_equal(session_disk(s, &known), FAKE_STORED_BYTES);
    assert_true(known);
    assert_null(session_sandbox(s));
    stop_id(&w, "k"); /* which it is already */
    acquire_id(&w.f, "k", &h);
    pump(&w.f);
    assert_ptr_equal(h.session, s);
    assert_int_equal(state_of(&w, "k"), SESSION_READY);
    assert_string_equal(session_sandbox_id(s), "fake-1"); /* on the same storage */
    give_back(&h);
    world_stop(&w);
}

static void caller_that_comes_while_it_is_stopped_gets_it_running(void **state)
{
    struct world w;
    struct heard stopped = {0}, a, b = {0};
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    assert_int_equal(manager_stop(w.f.m, "k", on_gone, &stopped, &err), 0);
    assert_int_equal(state_of(&w, "k"), SESSION_HALTING);
    acquire_id(&w.f, "k", &a);
    assert_int_equal(manager_start(w.f.m, "k", on_ready, &b, &err), 0);
    pump(&w.f);
    assert_int_equal(stopped.n, 1);
    give_back(&a);
    give_back(&b);
    assert_int_equal(state_of(&w, "k"), SESSION_READY);
    world_stop(&w);
}

static void idle_session_is_stopped_and_its_temporary_neighbour_removed(void **state)
{
    struct world w;
    world_start(&w);
    (void)durable(&w, "k");
    session_release(ready_session(&w.f, "t"));
    pass(&w.f, TTL_NS + 1);
    manager_reap(w.f.m);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    assert_null(manager_find(w.f.m, "t"));
    world_stop(&w);
}

static void every_end_of_the_daemon_keeps_it(void **state)
{
    struct world w;
    world_start(&w);
    (void)durable(&w, "k");
    (void)durable(&w, "off");
    stop_id(&w, "off");
    session_release(ready_session(&w.f, "t"));
    next_daemon(&w, true);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    assert_int_equal(state_of(&w, "off"), SESSION_STOPPED);
    assert_null(manager_find(w.f.m, "t"));
    struct heard h;
    acquire_id(&w.f, "k", &h);
    pump(&w.f);
    give_back(&h);
    next_daemon(&w, false); /* killed: what runs is taken over */
    assert_int_equal(state_of(&w, "k"), SESSION_READY);
    assert_int_equal(state_of(&w, "off"), SESSION_STOPPED);
    assert_true(session_durable(manager_find(w.f.m, "k")));
    world_stop(&w);
}

static void what_is_not_alive_after_a_boot_is_stopped(void **state)
{
    struct world w;
    struct heard h = {0};
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    manager_free(w.f.m);
    fake_restart(w.f.backend);
    fake_vanish(w.f.backend, "fake-1", 0);
    assert_int_equal(manager_new(w.f.loop, w.f.backend, &w.options, &w.f.m, &err), 0);
    assert_int_equal(manager_adopt(w.f.m, on_gone, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    assert_true(fake_keeps(w.f.backend, "fake-1"));
    world_stop(&w);
}

static void sandbox_that_dies_leaves_a_stopped_session(void **state)
{
    struct world w;
    world_start(&w);
    struct session *s = durable(&w, "k");
    struct sandbox *sb = session_sandbox(s);
    assert_non_null(sb);
    fake_die(sb);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    world_stop(&w);
}

static void start_that_fails_loses_nothing(void **state)
{
    struct world w;
    struct heard h = {0};
    struct err err = {0}, full = {0};
    world_start(&w);
    (void)durable(&w, "k");
    stop_id(&w, "k");
    (void)err_set(&full, ERR_LIMIT, "no space left");
    for (int i = 0; i < 2; i++) { /* at once, and later */
        h = (struct heard){0};
        fake_fail(w.f.backend, i == 0 ? FAKE_CREATE : FAKE_CREATE_LATER, &full);
        int r = manager_start(w.f.m, "k", on_ready, &h, &err);
        pump(&w.f);
        assert_true(i == 0 ? r < 0 : h.n == 1 && h.err.code == ERR_LIMIT);
        assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
        assert_true(fake_keeps(w.f.backend, "fake-1"));
    }
    next_daemon(&w, false);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    world_stop(&w);
}

#define RETRY_NS (50 * 1000000ULL)

/* A start of "k" that finds its image still mounted. */
static void start_in_vain(struct world *w, struct heard *ret)
{
    struct err busy = {0}, err = {0};
    *ret = (struct heard){0};
    (void)err_set(&busy, ERR_STATE, "still in use");
    fake_fail(w->f.backend, FAKE_CREATE_LATER, &busy);
    assert_int_equal(manager_start(w->f.m, "k", on_ready, ret, &err), 0);
    pump(&w->f);
    assert_int_equal(ret->n, 0); /* not yet told */
}

static void start_waits_until_what_is_kept_is_free(void **state)
{
    struct world w;
    struct heard h;
    world_start(&w);
    (void)durable(&w, "k");
    stop_id(&w, "k");
    start_in_vain(&w, &h);
    pass(&w.f, RETRY_NS);
    pump(&w.f);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_int_equal(state_of(&w, "k"), SESSION_READY);
    give_back(&h);
    stop_id(&w, "k");
    start_in_vain(&w, &h);
    for (int i = 0; i < 20; i++) { /* and not for ever */
        struct err busy = {0};
        assert_int_equal(h.n, 0);
        (void)err_set(&busy, ERR_STATE, "still in use");
        fake_fail(w.f.backend, FAKE_CREATE_LATER, &busy);
        pass(&w.f, RETRY_NS);
        pump(&w.f);
    }
    assert_int_equal(h.n, 1);
    assert_string_equal(h.err.msg, "still in use");
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    world_stop(&w);
}

static void start_that_waits_can_be_stopped_and_removed(void **state)
{
    struct world w;
    struct heard h, end = {0};
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    stop_id(&w, "k");
    start_in_vain(&w, &h);
    assert_int_equal(manager_stop(w.f.m, "k", on_gone, &end, &err), 0);
    pass(&w.f, RETRY_NS);
    pump(&w.f);
    assert_int_equal(h.err.code, ERR_STATE);
    assert_int_equal(end.n, 1);
    assert_int_equal(end.err.code, ERR_NONE);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED);
    start_in_vain(&w, &h);
    delete_id(&w.f, "k", &end);
    pass(&w.f, RETRY_NS);
    pump(&w.f);
    assert_int_equal(end.n, 1);
    assert_null(manager_find(w.f.m, "k"));
    assert_int_equal(h.n, 1);
    world_stop(&w);
}

static void removal_takes_the_files_and_fails_with_them(void **state)
{
    struct world w;
    struct heard h;
    struct err broken = {0};
    world_start(&w);
    (void)durable(&w, "k");
    stop_id(&w, "k");
    (void)err_set(&broken, ERR_SYSTEM, "disk on fire");
    fake_fail(w.f.backend, FAKE_DISCARD, &broken);
    delete_id(&w.f, "k", &h);
    pump(&w.f);
    assert_string_equal(h.err.msg, "disk on fire");
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED); /* it can be tried again */
    delete_id(&w.f, "k", &h);
    pump(&w.f);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_null(manager_find(w.f.m, "k"));
    assert_false(fake_keeps(w.f.backend, "fake-1"));
    next_daemon(&w, false);
    assert_null(manager_find(w.f.m, "k"));
    world_stop(&w);
}

static void removal_while_it_is_stopped_waits_for_both(void **state)
{
    struct world w;
    struct heard stopped = {0}, gone;
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    assert_int_equal(manager_stop(w.f.m, "k", on_gone, &stopped, &err), 0);
    delete_id(&w.f, "k", &gone);
    pump(&w.f);
    assert_int_equal(stopped.n, 1);
    assert_int_equal(gone.n, 1);
    assert_null(manager_find(w.f.m, "k"));
    assert_false(fake_keeps(w.f.backend, "fake-1"));
    world_stop(&w);
}

static void paused_session_refuses_callers_until_it_is_idle(void **state)
{
    struct world w;
    struct heard h = {0};
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    assert_int_equal(manager_pause(w.f.m, "k", true, on_gone, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(h.n, 1);
    assert_int_equal(state_of(&w, "k"), SESSION_PAUSED);
    assert_true(acquire_spec(&w.f, named_spec("k"), 0, &h, &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    assert_non_null(strstr(err.msg, "box unpause k"));
    pass(&w.f, TTL_NS * 2);
    manager_reap(w.f.m);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_STOPPED); /* it was idle */
    (void)durable(&w, "k");
    h = (struct heard){0};
    assert_int_equal(manager_pause(w.f.m, "k", true, on_gone, &h, &err), 0);
    pump(&w.f);
    next_daemon(&w, false);
    assert_int_equal(state_of(&w, "k"), SESSION_PAUSED);
    h = (struct heard){0};
    assert_int_equal(manager_pause(w.f.m, "k", false, on_gone, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_READY);
    err = (struct err){0};
    (void)err_set(&err, ERR_SYSTEM, "no");
    fake_fail(w.f.backend, FAKE_PAUSE, &err);
    assert_int_equal(manager_pause(w.f.m, "k", true, on_gone, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(state_of(&w, "k"), SESSION_READY); /* it could not be paused */
    assert_int_equal(manager_pause(w.f.m, "k", true, on_gone, &h, &err), 0);
    pump(&w.f);
    stop_id(&w, "k"); /* what is frozen can be stopped */
    world_stop(&w);
}

static int set_memory(struct world *w, int64_t memory_mb, struct heard *h, struct err *err)
{
    struct spec want = *session_spec(manager_find(w->f.m, "k"));
    want.memory_mb = memory_mb;
    *h = (struct heard){0};
    want.own.required = FIELD_BIT(SPEC_MEMORY_MB);
    return manager_update(w->f.m, "k", &want, on_gone, h, err);
}

static void new_limits_are_in_force_and_on_record_or_neither(void **state)
{
    struct world w;
    struct heard h, other;
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "k");
    assert_int_equal(set_memory(&w, 64, &h, &err), 0);
    assert_true(set_memory(&w, 65, &other, &err) < 0); /* one after the other */
    assert_int_equal(err.code, ERR_STATE);
    assert_int_equal(h.n, 0);
    pump(&w.f);
    assert_int_equal(h.n, 1);
    next_daemon(&w, false);
    struct session *s = manager_find(w.f.m, "k");
    struct spec *spec = (struct spec *)(uintptr_t)session_spec(s);
    assert_int_equal(spec->memory_mb, 64);
    assert_int_equal(fake_memory_mb(w.f.backend), 64);

    (void)err_set(&err, ERR_STATE, "it uses more");
    fake_fail(w.f.backend, FAKE_UPDATE, &err);
    assert_int_equal(set_memory(&w, 32, &h, &err), 0);
    pump(&w.f);
    assert_string_equal(h.err.msg, "it uses more");
    assert_int_equal(spec->memory_mb, 64);

    char *large = xnew_n(char, STORE_RECORD_MAX + 1);
    memset(large, 'x', STORE_RECORD_MAX);
    strv_push(&spec->env, large); /* it cannot be recorded */
    assert_int_equal(set_memory(&w, 128, &h, &err), 0);
    pump(&w.f);
    assert_int_equal(h.err.code, ERR_LIMIT);
    assert_int_equal(spec->memory_mb, 64);
    assert_int_equal(fake_memory_mb(w.f.backend), 64); /* set back */
    strv_free(TAKE_PTR(spec->env));

    stop_id(&w, "k");
    assert_int_equal(set_memory(&w, 96, &h, &err), 0);
    assert_int_equal(h.n, 0);
    pump(&w.f);
    assert_int_equal(h.n, 1);
    next_daemon(&w, true);
    assert_int_equal(session_spec(manager_find(w.f.m, "k"))->memory_mb, 96);
    world_stop(&w);
}

static void name_is_changed_in_the_store_too(void **state)
{
    struct world w;
    struct err err = {0};
    world_start(&w);
    (void)durable(&w, "a");
    (void)durable(&w, "b");
    assert_true(manager_rename(w.f.m, "a", "b", &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_true(manager_rename(w.f.m, "a", "x/y", &err) < 0);
    assert_true(manager_rename(w.f.m, "none", "n", &err) < 0);
    assert_int_equal(manager_rename(w.f.m, "a", "c", &err), 0);
    assert_null(manager_find(w.f.m, "a"));
    stop_id(&w, "c");
    assert_int_equal(manager_rename(w.f.m, "c", "d", &err), 0);
    next_daemon(&w, false);
    assert_null(manager_find(w.f.m, "a"));
    assert_null(manager_find(w.f.m, "c"));
    assert_int_equal(state_of(&w, "d"), SESSION_STOPPED);
    assert_int_equal(state_of(&w, "b"), SESSION_READY);
    struct session *s = manager_find(w.f.m, "b");
    session_exec_begins(s);
    assert_true(manager_rename(w.f.m, "b", "e", &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    session_exec_ends(s);
    world_stop(&w);
}

static int try_durable(struct world *w, const char *id, struct err *err)
{
    struct heard h;
    struct spec *spec = named_spec(id);
    spec->own.durable = true;
    *err = (struct err){0};
    int r = acquire_spec(&w->f, spec, 0, &h, err);
    pump(&w->f);
    if (r == 0)
        give_back(&h);
    return r;
}

static void what_is_kept_is_limited_by_number_and_by_disk(void **state)
{
    struct world w;
    struct err err = {0};
    world_start(&w);
    w.options.max_kept = 2;
    next_daemon(&w, true);
    assert_int_equal(try_durable(&w, "a", &err), 0);
    assert_int_equal(try_durable(&w, "b", &err), 0);
    assert_true(try_durable(&w, "c", &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "max_kept_sessions"));
    session_release(ready_session(&w.f, "t")); /* which is not kept */
    w.options.max_kept = 0;
    w.options.kept_bytes = FAKE_STORED_BYTES + 1; /* one is below, two are not */
    next_daemon(&w, true);
    stop_id(&w, "a");
    assert_true(try_durable(&w, "c", &err) < 0);
    assert_non_null(strstr(err.msg, "kept_disk_mb"));
    assert_int_equal(try_durable(&w, "a", &err), 0); /* it may be started, to make room */
    struct heard h;
    delete_id(&w.f, "b", &h);
    pump(&w.f);
    assert_int_equal(try_durable(&w, "c", &err), 0);
    world_stop(&w);
}

static void temporary_session_that_is_paused_ends_when_it_is_idle(void **state)
{
    struct world w;
    struct heard h = {0};
    struct err err = {0};
    world_start(&w);
    session_release(ready_session(&w.f, "t"));
    pass(&w.f, TTL_NS - 1);
    assert_int_equal(manager_pause(w.f.m, "t", true, on_gone, &h, &err), 0);
    pass(&w.f, TTL_NS - 1); /* since it was paused */
    manager_reap(w.f.m);
    pump(&w.f);
    assert_int_equal(state_of(&w, "t"), SESSION_PAUSED);
    pass(&w.f, 1);
    manager_reap(w.f.m);
    pump(&w.f);
    assert_null(manager_find(w.f.m, "t"));
    world_stop(&w);
}

static int try_as(struct world *w, const char *id, uid_t uid, bool is_durable, struct err *err)
{
    struct heard h;
    struct spec *spec = named_spec(id);
    spec->own.durable = is_durable;
    spec->own.bound = true;
    spec->own.uid = uid;
    *err = (struct err){0};
    int r = acquire_spec(&w->f, spec, 0, &h, err);
    pump(&w->f);
    if (r == 0)
        give_back(&h);
    return r;
}

static void one_user_has_at_most_half_of_all_sessions(void **state)
{
    struct world w;
    struct err err = {0};
    struct heard h = {0};
    world_start(&w);
    w.options.max_kept = 4;
    w.options.max_sessions = 6;
    next_daemon(&w, true);
    assert_int_equal(try_as(&w, "a", 1000, true, &err), 0);
    assert_int_equal(try_as(&w, "b", 1000, true, &err), 0);
    assert_true(try_as(&w, "c", 1000, true, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "half of max_kept_sessions"));
    stop_id(&w, "a"); /* it is kept still */
    assert_true(try_as(&w, "c", 1000, true, &err) < 0);
    assert_int_equal(try_as(&w, "c", 1000, false, &err), 0);
    assert_int_equal(try_as(&w, "d", 1000, false, &err), 0);
    assert_true(try_as(&w, "e", 1000, false, &err) < 0);
    assert_non_null(strstr(err.msg, "half of max_sessions"));
    err = (struct err){0};
    assert_true(manager_start(w.f.m, "a", on_ready, &h, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_int_equal(try_as(&w, "e", 1001, true, &err), 0); /* another user has its own half */
    assert_int_equal(try_durable(&w, "f", &err), 0);        /* and root what is left */
    world_stop(&w);
}

static void failed_measurement_is_tried_again(void **state)
{
    struct world w;
    struct err broken = {0};
    bool known = true;
    world_start(&w);
    const struct session *s = durable(&w, "k");
    (void)err_set(&broken, ERR_SYSTEM, "no child");
    fake_fail(w.f.backend, FAKE_STORED, &broken);
    stop_id(&w, "k");
    (void)session_disk(s, &known);
    assert_false(known);
    manager_reap(w.f.m);
    pump(&w.f);
    assert_int_equal(session_disk(s, &known), FAKE_STORED_BYTES);
    assert_true(known);
    world_stop(&w);
}

static void stopped_sessions_need_no_room_among_those_that_run(void **state)
{
    struct world w;
    struct err err = {0};
    struct heard h = {0};
    world_start(&w);
    w.options.max_sessions = 1;
    next_daemon(&w, true);
    assert_int_equal(try_durable(&w, "a", &err), 0);
    assert_true(try_durable(&w, "b", &err) < 0);
    stop_id(&w, "a");
    assert_int_equal(try_durable(&w, "b", &err), 0);
    err = (struct err){0};
    assert_true(manager_start(w.f.m, "a", on_ready, &h, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_int_equal(state_of(&w, "a"), SESSION_STOPPED);
    world_stop(&w);
}

static void temporary_session_cannot_be_stopped(void **state)
{
    struct world w;
    struct err err = {0};
    struct heard h = {0};
    world_start(&w);
    session_release(ready_session(&w.f, "t"));
    assert_true(manager_stop(w.f.m, "t", on_gone, &h, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    world_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_session_has_no_sandbox_and_starts_when_it_is_used),
        cmocka_unit_test(caller_that_comes_while_it_is_stopped_gets_it_running),
        cmocka_unit_test(idle_session_is_stopped_and_its_temporary_neighbour_removed),
        cmocka_unit_test(every_end_of_the_daemon_keeps_it),
        cmocka_unit_test(what_is_not_alive_after_a_boot_is_stopped),
        cmocka_unit_test(sandbox_that_dies_leaves_a_stopped_session),
        cmocka_unit_test(start_that_fails_loses_nothing),
        cmocka_unit_test(start_waits_until_what_is_kept_is_free),
        cmocka_unit_test(start_that_waits_can_be_stopped_and_removed),
        cmocka_unit_test(removal_takes_the_files_and_fails_with_them),
        cmocka_unit_test(removal_while_it_is_stopped_waits_for_both),
        cmocka_unit_test(paused_session_refuses_callers_until_it_is_idle),
        cmocka_unit_test(new_limits_are_in_force_and_on_record_or_neither),
        cmocka_unit_test(name_is_changed_in_the_store_too),
        cmocka_unit_test(what_is_kept_is_limited_by_number_and_by_disk),
        cmocka_unit_test(temporary_session_that_is_paused_ends_when_it_is_idle),
        cmocka_unit_test(one_user_has_at_most_half_of_all_sessions),
        cmocka_unit_test(failed_measurement_is_tried_again),
        cmocka_unit_test(stopped_sessions_need_no_room_among_those_that_run),
        cmocka_unit_test(temporary_session_cannot_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
