/* SPDX-License-Identifier: Apache-2.0 */

/* One sandbox per chat: making, reusing, replacing, ending. */

#include "chat_fixture.h"

static const struct fake_options slow = {.create_ns = 2 * SEC, .destroy_ns = 2 * SEC};

static void test_row_T65_a_chat_gets_its_directory_three_mounts_and_three_labels(void **state)
{
    struct chats w;
    char created[CHAT_TIME_SIZE], expires[CHAT_TIME_SIZE];
    chats_start(&w, NULL);
    struct answer a = create(&w, CHAT_A_OTHERWISE, CHAT_CREATED);
    assert_string_equal(a.session.chat_id, CHAT_A);
    assert_int_equal(strlen(a.session.session_id), 36);
    assert_string_equal(a.session.container_id, "fake-1");
    assert_int_equal(a.session.created_ns, w.f.clock.real_ns);
    assert_int_equal(a.session.expires_ns, w.f.clock.real_ns + TTL);
    assert_true(is_dir(&w, "chats/" CHAT_A));
    chat_time_format(a.session.created_ns, created);
    chat_time_format(a.session.expires_ns, expires);
    assert_string_equal(created, "2026-01-01T00:00:00+00:00");
    assert_string_equal(expires, "2026-01-01T00:05:00+00:00");

    const struct spec *s = session_spec(manager_find(w.f.m, CHAT_A));
    assert_string_equal(s->image, "sandbox:latest");
    const char *const places[] = {("chats/" CHAT_A), "dependencies", "lambda-tools"};
    const struct mount_spec mounts[] = {
        {s->host_path, s->mount_path, s->host_path_mode}, s->extra_mounts[0], s->extra_mounts[1]};
    const char *const targets[] = {"/workspace/chat", "/workspace/dependencies",
                                   "/workspace/lambda-tools"};
    assert_int_equal(s->n_extra_mounts, 2);
    for (size_t i = 0; i < 3; i++) {
        AUTO_FREE char *source = below(&w, places[i]);
        assert_string_equal(mounts[i].host_path, source);
        assert_string_equal(mounts[i].mount_path, targets[i]);
        assert_int_equal(mounts[i].mode, i == 0 ? MOUNT_RW : MOUNT_RO);
    }
    AUTO_FREE char *label = xasprintf("session_id=%s", a.session.session_id);
    assert_int_equal(strv_len(s->own.labels), 3);
    assert_string_equal(s->own.labels[0], label);
    assert_string_equal(s->own.labels[1], "chat_id=" CHAT_A);
    assert_string_equal(s->own.labels[2], "expires_at=2026-01-01T00:05:00+00:00");
    chats_stop(&w);
}

static void test_row_T66_what_cannot_be_started_says_so_with_its_chat(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)err_set(&why, ERR_BACKEND, "it made a container without an id");
    for (int i = 0; i < 2; i++) {
        fake_fail(w.f.backend, i == 0 ? FAKE_CREATE : FAKE_CREATE_LATER, &why);
        struct answer a = create(&w, CHAT_A_OTHERWISE, CHAT_FAILED);
        assert_string_equal(a.failure.code, "sandbox_start_failed");
        assert_string_equal(a.failure.chat_id, CHAT_A);
        assert_string_equal(a.failure.err.msg, why.msg);
    }
    assert_int_equal(metric(&w, "sandbox.create.total", "failed"), 2);
    (void)create(&w, CHAT_A, CHAT_CREATED); /* and that was all */
    chats_stop(&w);
}

static void directory_of_others_is_never_made(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "dependencies" : "lambda-tools";
        assert_int_equal(unlinkat(w.place.fd, name, AT_REMOVEDIR), 0);
        struct answer a = create(&w, CHAT_A, CHAT_FAILED);
        assert_string_equal(a.failure.code, "sandbox_start_failed");
        assert_non_null(strstr(a.failure.err.msg, name));
        assert_false(is_dir(&w, name));
        assert_int_equal(fake_sandboxes(w.f.backend), 0);
        assert_int_equal(mkdirat(w.place.fd, name, 0755), 0);
    }
    chats_stop(&w);
}

/* Users of the socket have boxd's group. */
static void directory_of_a_chat_is_closed_to_the_group_of_boxd(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    assert_int_equal(mkdirat(w.place.fd, "chats/" CHAT_B, 0750), 0); /* by an older boxd */
    (void)create(&w, CHAT_A, CHAT_CREATED);
    (void)create(&w, CHAT_B, CHAT_CREATED);
    assert_int_equal(mode_of(&w, "chats/" CHAT_A), 0700);
    assert_int_equal(mode_of(&w, "chats/" CHAT_B), 0700);
    chats_stop(&w);
}

static void group_that_the_operator_gave_chats_root_can_read_them(void **state)
{
    struct chats w;
    if (geteuid() != 0)
        print_message("skipped: only root may give a directory any group\n"), skip();
    chats_start(&w, NULL);
    assert_int_equal(fchownat(w.place.fd, "chats", (uid_t)-1, getegid() + 1, 0), 0);
    assert_int_equal(fchmodat(w.place.fd, "chats", 02755, 0), 0);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    assert_int_equal(mode_of(&w, "chats/" CHAT_A), 0750);
    chats_stop(&w);
}

static void link_in_place_of_a_chat_is_not_followed(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    assert_int_equal(symlinkat("../dependencies", w.place.fd, "chats/" CHAT_A), 0);
    struct answer a = create(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_start_failed");
    assert_int_equal(fake_creations(w.f.backend), 0);
    chats_stop(&w);
}

static void dependencies_may_be_a_link_that_moves_on(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    AUTO_FREE char *v2 = below(&w, "v2");
    assert_int_equal(mkdirat(w.place.fd, "v2", 0755), 0);
    assert_int_equal(unlinkat(w.place.fd, "dependencies", AT_REMOVEDIR), 0);
    assert_int_equal(symlinkat("v2", w.place.fd, "dependencies"), 0);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    assert_string_equal(session_spec(manager_find(w.f.m, CHAT_A))->extra_mounts[0].host_path, v2);
    chats_stop(&w);
}

static void chat_keeps_its_sandbox_whatever_its_spelling(void **state)
{
    static const char *const spellings[] = {CHAT_A, CHAT_A_OTHERWISE, ("{" CHAT_A "}"),
                                            ("urn:uuid:" CHAT_A),
                                            "12-3e4567e89b12d3a4-56426614174000"};
    struct chats w;
    chats_start(&w, NULL);
    struct answer first = create(&w, CHAT_A, CHAT_CREATED);
    for (size_t i = 0; i < ARRAY_SIZE(spellings); i++) {
        struct answer a = create(&w, spellings[i], CHAT_REUSED);
        assert_memory_equal(&a.session, &first.session, sizeof(a.session));
    }
    struct answer other = create(&w, CHAT_B, CHAT_CREATED);
    assert_string_not_equal(other.session.session_id, first.session.session_id);
    assert_int_equal(metric(&w, "sandbox.create.total", "created"), 2);
    assert_int_equal(metric(&w, "sandbox.create.total", "reused"), ARRAY_SIZE(spellings));
    assert_int_equal(metric(&w, "sandbox.active", NULL), 2);
    chats_stop(&w);
}

static void what_is_no_uuid_is_refused(void **state)
{
    static const char *const bad[] = {
        "",          "x", (CHAT_A "0"), "123e4567-e89b-12d3-a456-42661417400g", "../../etc/passwd",
        ("{" CHAT_A)};
    struct chats w;
    struct answer a = {0};
    chats_start(&w, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct err err = {0};
        assert_true(chat_create(w.chat, bad[i], on_chat_created, &a, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_true(chat_delete(w.chat, bad[i], on_chat_deleted, &a, &err) < 0);
    }
    pump(&w.f);
    assert_int_equal(a.n, 0);
    chats_stop(&w);
}

static void without_a_section_there_are_none(void **state)
{
    struct chats w;
    struct answer a = {0};
    struct err err = {0};
    chats_start(&w, NULL);
    chat_config_done(&w.config);
    assert_true(chat_create(w.chat, CHAT_A, on_chat_created, &a, &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    (void)end_chat(&w, CHAT_A, CHAT_NOT_FOUND);
    chats_stop(&w);
}

static void two_creates_at_once_start_one_sandbox(void **state)
{
    struct chats w;
    struct answer a, b, c;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &a);
    ask(&w, CHAT_A_OTHERWISE, &b);
    ask(&w, CHAT_B, &c);
    pump(&w.f);
    assert_int_equal(a.n + b.n + c.n, 0);
    assert_int_equal(fake_creations(w.f.backend), 2); /* chats do not wait for each other */
    pass(&w.f, 2 * SEC);
    expect(&a, CHAT_CREATED);
    expect(&b, CHAT_REUSED);
    expect(&c, CHAT_CREATED);
    assert_memory_equal(&a.session, &b.session, sizeof(a.session));
    assert_int_equal(fake_creations(w.f.backend), 2);
    chats_stop(&w);
}

static void create_that_fails_lets_the_next_one_try(void **state)
{
    struct chats w;
    struct answer a, b;
    struct err why = {0};
    chats_start(&w, &slow);
    (void)err_set(&why, ERR_BACKEND, "not now");
    fake_fail(w.f.backend, FAKE_CREATE_LATER, &why);
    ask(&w, CHAT_A, &a);
    ask(&w, CHAT_A, &b);
    pass(&w.f, 2 * SEC);
    expect(&a, CHAT_FAILED);
    assert_int_equal(b.n, 0);
    pass(&w.f, 2 * SEC);
    expect(&b, CHAT_CREATED);
    chats_stop(&w);
}

static void create_during_a_stop_waits_for_its_end(void **state)
{
    struct chats w;
    struct answer first, gone, again;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &first);
    pass(&w.f, 2 * SEC);
    ask_delete(&w, CHAT_A, &gone);
    pump(&w.f);
    ask(&w, CHAT_A, &again);
    pump(&w.f);
    assert_int_equal(fake_creations(w.f.backend), 1);
    pass(&w.f, 2 * SEC);
    expect(&gone, CHAT_DELETED);
    assert_int_equal(again.n, 0);
    assert_int_equal(fake_creations(w.f.backend), 2);
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    pass(&w.f, 2 * SEC);
    expect(&again, CHAT_CREATED);
    assert_string_not_equal(first.session.session_id, again.session.session_id);
    chats_stop(&w);
}

/* Somebody removes it as the session that it is. */
static void create_waits_for_a_stop_by_another_front(void **state)
{
    struct chats w;
    struct answer again;
    struct heard gone;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &again);
    pass(&w.f, 2 * SEC);
    delete_id(&w.f, CHAT_A, &gone);
    ask(&w, CHAT_A, &again);
    pump(&w.f);
    assert_int_equal(fake_creations(w.f.backend), 1);
    pass(&w.f, 2 * SEC);
    assert_int_equal(gone.n, 1);
    pass(&w.f, 2 * SEC);
    expect(&again, CHAT_CREATED);
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    chats_stop(&w);
}

static void it_expires_at_the_very_moment_and_is_replaced(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    struct answer first = create(&w, CHAT_A, CHAT_CREATED);
    fake_clock_advance(&w.f.clock, TTL - 1);
    struct answer same = create(&w, CHAT_A, CHAT_REUSED);
    assert_memory_equal(&same.session, &first.session, sizeof(same.session)); /* not prolonged */
    fake_clock_advance(&w.f.clock, 1);
    struct answer next = create(&w, CHAT_A, CHAT_CREATED);
    assert_string_not_equal(next.session.session_id, first.session.session_id);
    assert_int_equal(next.session.expires_ns, first.session.expires_ns + TTL);
    assert_int_equal(fake_sandboxes(w.f.backend), 1); /* the old one was ended first */
    chats_stop(&w);
}

static void cleanup_ends_what_has_expired_and_nothing_else(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    pass(&w.f, SEC);
    (void)create(&w, CHAT_B, CHAT_CREATED);
    session_release(ready_session(&w.f, "ordinary"));
    fake_clock_advance(&w.f.clock, TTL - SEC - 1);
    chat_cleanup(w.chat);
    pump(&w.f);
    assert_non_null(manager_find(w.f.m, CHAT_A));
    fake_clock_advance(&w.f.clock, 1); /* expires_at == now */
    chat_cleanup(w.chat);
    pump(&w.f);
    assert_null(manager_find(w.f.m, CHAT_A));
    assert_non_null(manager_find(w.f.m, CHAT_B));
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "cleaned"), 1);
    assert_int_equal(metric(&w, "sandbox.active", NULL), 1);
    assert_true(is_dir(&w, "chats/" CHAT_A)); /* its files are the chat's */
    chats_stop(&w);
}

static void cleanup_runs_by_itself_at_each_interval(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    chat_start(w.chat);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    for (int i = 0; i < 4; i++)
        pass(&w.f, 60 * SEC);
    pass(&w.f, 59 * SEC);
    assert_non_null(manager_find(w.f.m, CHAT_A)); /* used or not: no idle time */
    pass(&w.f, 1 * SEC);
    assert_null(manager_find(w.f.m, CHAT_A));
    chats_stop(&w);
}

static void replacement_made_meanwhile_survives_the_cleanup(void **state)
{
    struct chats w;
    struct answer a;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &a);
    pass(&w.f, 2 * SEC);
    fake_clock_advance(&w.f.clock, TTL);
    ask(&w, CHAT_A, &a); /* ends the old one, then makes another */
    chat_cleanup(w.chat);
    chat_cleanup(w.chat); /* which is not asked for twice */
    pass(&w.f, 2 * SEC);
    pass(&w.f, 2 * SEC);
    expect(&a, CHAT_CREATED);
    pass(&w.f, 10 * SEC);
    struct session *s = manager_find(w.f.m, CHAT_A);
    assert_non_null(s);
    struct chat_session is;
    assert_true(chat_session_of(s, &is));
    assert_string_equal(is.session_id, a.session.session_id);
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "skipped"), 1);
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "cleaned"), 0);
    chats_stop(&w);
}

static void create_behind_a_cleanup_gets_a_new_one(void **state)
{
    struct chats w;
    struct answer a, b;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &a);
    pass(&w.f, 2 * SEC);
    fake_clock_advance(&w.f.clock, TTL);
    chat_cleanup(w.chat);
    pump(&w.f);
    ask(&w, CHAT_A, &b);
    pass(&w.f, 2 * SEC);
    pass(&w.f, 2 * SEC);
    expect(&b, CHAT_CREATED);
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "cleaned"), 1);
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    chats_stop(&w);
}

static void one_that_cannot_be_ended_does_not_keep_the_others(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    (void)create(&w, CHAT_B, CHAT_CREATED);
    (void)create(&w, CHAT_C, CHAT_CREATED);
    fake_clock_advance(&w.f.clock, TTL);
    (void)err_set(&why, ERR_BACKEND, "boom");
    fake_fail(w.f.backend, FAKE_DESTROY, &why);
    chat_cleanup(w.chat);
    pump(&w.f);
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "failed"), 1);
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "cleaned"), 2);
    assert_int_equal(metric(&w, "sandbox.active", NULL), 0);
    chats_stop(&w);
}

static void test_row_T67_stop_of_what_is_not_there_succeeds(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    (void)end_chat(&w, CHAT_A, CHAT_NOT_FOUND);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    (void)end_chat(&w, CHAT_A_OTHERWISE, CHAT_DELETED);
    (void)end_chat(&w, CHAT_A, CHAT_NOT_FOUND);
    assert_int_equal(fake_sandboxes(w.f.backend), 0);
    assert_int_equal(metric(&w, "sandbox.delete.total", "not_found"), 2);
    assert_int_equal(metric(&w, "sandbox.delete.total", "deleted"), 1);
    chats_stop(&w);
}

static void test_row_T68_stop_that_fails_says_so_and_is_tried_again(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)err_set(&why, ERR_BACKEND, "boom");
    (void)create(&w, CHAT_A, CHAT_CREATED);
    fake_fail(w.f.backend, FAKE_DESTROY, &why);
    struct answer a = end_chat(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_stop_failed");
    assert_string_equal(a.failure.chat_id, CHAT_A);
    assert_string_equal(a.failure.err.msg, "boom");
    assert_int_equal(metric(&w, "sandbox.delete.total", "failed"), 1);

    /* It may still run: nothing is started beside it, and it is looked for again. */
    fake_fail(w.f.backend, FAKE_SWEEP, &why);
    a = create(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_start_failed");
    (void)create(&w, CHAT_B, CHAT_CREATED); /* others are not concerned */
    fake_fail(w.f.backend, FAKE_SWEEP, &why);
    a = end_chat(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_stop_failed");
    (void)end_chat(&w, CHAT_A, CHAT_DELETED);
    (void)end_chat(&w, CHAT_A, CHAT_NOT_FOUND);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    chats_stop(&w);
}

static void replacement_waits_until_the_old_one_can_be_stopped(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)err_set(&why, ERR_BACKEND, "boom");
    (void)create(&w, CHAT_A, CHAT_CREATED);
    fake_clock_advance(&w.f.clock, TTL);
    fake_fail(w.f.backend, FAKE_DESTROY, &why);
    struct answer a = create(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_stop_failed");
    assert_int_equal(fake_creations(w.f.backend), 1);
    chat_cleanup(w.chat); /* finds what is left */
    pump(&w.f);
    fake_fail(w.f.backend, FAKE_SWEEP, &why); /* is not needed any more */
    (void)create(&w, CHAT_A, CHAT_CREATED);
    chats_stop(&w);
}

static void name_of_another_kind_of_session_is_a_conflict(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    session_release(ready_session(&w.f, CHAT_A));
    struct answer a = create(&w, CHAT_A, CHAT_FAILED);
    assert_string_equal(a.failure.code, "sandbox_start_failed");
    assert_int_equal(a.failure.err.code, ERR_CONFLICT);
    (void)end_chat(&w, CHAT_A, CHAT_NOT_FOUND); /* it is not ours to end */
    assert_non_null(manager_find(w.f.m, CHAT_A));
    chats_stop(&w);
}

static void backend_knows_when_it_expires(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    struct answer a = create(&w, CHAT_A, CHAT_CREATED);
    assert_int_equal(fake_deadline(w.f.backend, a.session.container_id), w.f.clock.boot_ns + TTL);
    session_release(ready_session(&w.f, CHAT_A)); /* use does not prolong it */
    pass(&w.f, 10 * SEC);
    manager_reap(w.f.m);
    assert_int_equal(fake_deadline(w.f.backend, a.session.container_id),
                     w.f.clock.boot_ns + TTL - 10 * SEC);
    w.f.clock.real_ns += 100 * SEC; /* somebody sets the clock */
    manager_reap(w.f.m);
    assert_int_equal(fake_deadline(w.f.backend, a.session.container_id),
                     w.f.clock.boot_ns + TTL - 110 * SEC);
    chats_stop(&w);
}

static void end_of_the_daemon_leaves_chats_and_ends_the_rest(void **state)
{
    struct chats w;
    struct heard gone = {0};
    struct answer made, late;
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &made);
    struct heard ordinary;
    acquire_id(&w.f, "ordinary", &ordinary);
    pass(&w.f, 2 * SEC);
    expect(&made, CHAT_CREATED);
    give_back(&ordinary);
    ask(&w, CHAT_B, &late); /* still being made: nobody would know of it */
    pump(&w.f);
    manager_close(w.f.m, on_gone, &gone);
    pass(&w.f, 2 * SEC);
    pass(&w.f, 2 * SEC);
    assert_int_equal(gone.n, 1);
    expect(&late, CHAT_FAILED);
    assert_int_equal(late.failure.err.code, ERR_STATE);
    assert_int_equal(manager_count(w.f.m), 1);
    assert_non_null(manager_find(w.f.m, CHAT_A));
    assert_int_equal(fake_sandboxes(w.f.backend), 1);
    chats_stop(&w);
}

static void end_of_the_daemon_does_not_wait_for_chats(void **state)
{
    struct chats w;
    struct heard gone = {0};
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    manager_close(w.f.m, on_gone, &gone);
    pump(&w.f);
    assert_int_equal(gone.n, 1);
    assert_non_null(manager_find(w.f.m, CHAT_A));
    chats_stop(&w);
}

static void other_fronts_cannot_change_its_mounts(void **state)
{
    struct chats w;
    struct heard h = {0};
    struct err err = {0};
    chats_start(&w, NULL);
    struct answer a = create(&w, CHAT_A, CHAT_CREATED);
    struct spec *spec = named_spec(CHAT_A);
    assert_true(manager_acquire(w.f.m, &spec, 0, ACQUIRE_REMOUNT, on_ready, &h, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    spec_free(spec);
    struct answer b = create(&w, CHAT_A, CHAT_REUSED);
    assert_string_equal(a.session.session_id, b.session.session_id);
    chats_stop(&w);
}

static void spans_begin_and_end_in_pairs(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    assert_int_equal(w.spans.begun, 2); /* the use case, and the backend's part in it */
    assert_string_equal(w.spans.last, "usecase.create_sandbox");
    (void)create(&w, CHAT_A, CHAT_REUSED);
    assert_int_equal(w.spans.begun, 3);
    (void)end_chat(&w, CHAT_A, CHAT_DELETED);
    assert_string_equal(w.spans.last, "usecase.delete_sandbox");
    (void)err_set(&why, ERR_BACKEND, "boom");
    fake_fail(w.f.backend, FAKE_CREATE, &why);
    (void)create(&w, CHAT_A, CHAT_FAILED);
    assert_int_equal(w.spans.begun, 7);
    assert_int_equal(w.spans.ended, 7);
    assert_int_equal(w.spans.open_now, 0);
    chats_stop(&w);
}

/* Nothing is told, and nothing leaks, when it goes in the middle of everything. */
static void it_may_go_at_any_time(void **state)
{
    struct chats w;
    struct answer a[5];
    chats_start(&w, &slow);
    ask(&w, CHAT_A, &a[0]);
    ask(&w, CHAT_A, &a[1]);
    ask_delete(&w, CHAT_A, &a[2]);
    ask(&w, CHAT_B, &a[3]);
    pump(&w.f);
    ask(&w, CHAT_C, &a[4]);
    for (size_t i = 0; i < ARRAY_SIZE(a); i++)
        assert_int_equal(a[i].n, 0);
    chats_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T65_a_chat_gets_its_directory_three_mounts_and_three_labels),
        cmocka_unit_test(test_row_T66_what_cannot_be_started_says_so_with_its_chat),
        cmocka_unit_test(directory_of_others_is_never_made),
        cmocka_unit_test(directory_of_a_chat_is_closed_to_the_group_of_boxd),
        cmocka_unit_test(group_that_the_operator_gave_chats_root_can_read_them),
        cmocka_unit_test(link_in_place_of_a_chat_is_not_followed),
        cmocka_unit_test(dependencies_may_be_a_link_that_moves_on),
        cmocka_unit_test(chat_keeps_its_sandbox_whatever_its_spelling),
        cmocka_unit_test(what_is_no_uuid_is_refused),
        cmocka_unit_test(without_a_section_there_are_none),
        cmocka_unit_test(two_creates_at_once_start_one_sandbox),
        cmocka_unit_test(create_that_fails_lets_the_next_one_try),
        cmocka_unit_test(create_during_a_stop_waits_for_its_end),
        cmocka_unit_test(create_waits_for_a_stop_by_another_front),
        cmocka_unit_test(it_expires_at_the_very_moment_and_is_replaced),
        cmocka_unit_test(cleanup_ends_what_has_expired_and_nothing_else),
        cmocka_unit_test(cleanup_runs_by_itself_at_each_interval),
        cmocka_unit_test(replacement_made_meanwhile_survives_the_cleanup),
        cmocka_unit_test(create_behind_a_cleanup_gets_a_new_one),
        cmocka_unit_test(one_that_cannot_be_ended_does_not_keep_the_others),
        cmocka_unit_test(test_row_T67_stop_of_what_is_not_there_succeeds),
        cmocka_unit_test(test_row_T68_stop_that_fails_says_so_and_is_tried_again),
        cmocka_unit_test(replacement_waits_until_the_old_one_can_be_stopped),
        cmocka_unit_test(name_of_another_kind_of_session_is_a_conflict),
        cmocka_unit_test(backend_knows_when_it_expires),
        cmocka_unit_test(end_of_the_daemon_leaves_chats_and_ends_the_rest),
        cmocka_unit_test(end_of_the_daemon_does_not_wait_for_chats),
        cmocka_unit_test(other_fronts_cannot_change_its_mounts),
        cmocka_unit_test(spans_begin_and_end_in_pairs),
        cmocka_unit_test(it_may_go_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
