/* SPDX-License-Identifier: Apache-2.0 */

/* A daemon that is killed, and what the next one finds of its chats: by labels, by records. */

#include "chat_fixture.h"

#define SESSION_1 "00000000-0000-0000-0000-000000000001"
#define SESSION_2 "00000000-0000-0000-0000-000000000002"

/* The daemon dies without a word. */
static void crash(struct chats *w)
{
    chat_free(w->chat);
    w->chat = NULL;
    fake_restart(w->f.backend);
    manager_free(w->f.m);
    w->f.m = NULL;
}

static void on_reconciled(void *arg, const struct err *err)
{
    on_gone(arg, err);
}

static struct heard reconcile(struct chats *w)
{
    struct err err = {0};
    struct heard h = {0};
    assert_int_equal(manager_new(w->f.loop, w->f.backend, &w->options, &w->f.m, &err), 0);
    chats_open(w);
    assert_int_equal(chat_reconcile(w->chat, on_reconciled, &h, &err), 0);
    assert_int_equal(h.n, 0); /* from the loop */
    pump(&w->f);
    assert_int_equal(h.n, 1);
    return h;
}

static void next_daemon(struct chats *w)
{
    struct err err = {0};
    struct heard adopted = {0}, h = reconcile(w);
    assert_int_equal(h.err.code, ERR_NONE);
    assert_int_equal(manager_adopt(w->f.m, on_gone, &adopted, &err), 0);
    pump(&w->f);
    assert_int_equal(adopted.n, 1);
    assert_int_equal(adopted.err.code, ERR_NONE);
}

static void restart(struct chats *w)
{
    crash(w);
    next_daemon(w);
}

/* Behind our back: a sandbox with these labels, as if another life of this daemon had made it. */
static void on_made(void *arg, struct sandbox *sb, const struct err *err)
{
    assert_null(err);
    *(struct sandbox **)arg = sb;
}

static void on_made_lost(void *arg)
{
}

static void make_labelled(struct chats *w, const char *session, const char *chat,
                          const char *expires)
{
    AUTO(spec) struct spec *s = named_spec("x");
    struct sandbox *sb = NULL;
    struct err err = {0};
    if (session != NULL)
        strv_push(&s->own.labels, xasprintf("session_id=%s", session));
    if (chat != NULL)
        strv_push(&s->own.labels, xasprintf("chat_id=%s", chat));
    if (expires != NULL)
        strv_push(&s->own.labels, xasprintf("expires_at=%s", expires));
    assert_int_equal(w->f.backend->ops->create(w->f.backend, s, on_made, on_made_lost, &sb, &err),
                     0);
    pump(&w->f);
    assert_non_null(sb);
}

static void lose_records(struct chats *w)
{
    struct err err = {0};
    assert_int_equal(store_drop_session(w->place.store, CHAT_A, &err), 0);
    assert_int_equal(store_drop_session(w->place.store, CHAT_B, &err), 0);
}

static void chat_is_found_again_with_all_it_was(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    struct answer before = create(&w, CHAT_A, CHAT_CREATED);
    session_release(ready_session(&w.f, "ordinary"));
    restart(&w);
    assert_non_null(manager_find(w.f.m, "ordinary"));
    pass(&w.f, 100 * SEC); /* longer than other sessions may be idle */
    restart(&w);
    struct answer after = create(&w, CHAT_A_OTHERWISE, CHAT_REUSED);
    assert_memory_equal(&after.session, &before.session, sizeof(after.session));
    assert_int_equal(fake_creations(w.f.backend), 2);
    assert_int_equal(fake_deadline(w.f.backend, before.session.container_id),
                     w.f.clock.boot_ns + TTL - 100 * SEC);
    assert_int_equal(metric(&w, "sandbox.active", NULL), 1);
    pass(&w.f, 200 * SEC);
    chat_cleanup(w.chat);
    pump(&w.f);
    assert_int_equal(fake_sandboxes(w.f.backend), 0);
    chats_stop(&w);
}

static void test_row_T69_labels_are_enough_when_the_records_are_lost(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    struct answer before = create(&w, CHAT_A, CHAT_CREATED);
    (void)create(&w, CHAT_B, CHAT_CREATED);
    crash(&w);
    lose_records(&w);
    next_daemon(&w);
    struct answer after = create(&w, CHAT_A, CHAT_REUSED);
    assert_memory_equal(&after.session, &before.session, sizeof(after.session));
    assert_int_equal(fake_sandboxes(w.f.backend), 2);
    assert_int_equal(fake_creations(w.f.backend), 2);
    chats_stop(&w);
}

static void test_row_T69_labels_that_make_no_sense_are_skipped(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    make_labelled(&w, NULL, CHAT_A, "2026-01-01T00:05:00+00:00");
    make_labelled(&w, SESSION_1, "no uuid", "2026-01-01T00:05:00+00:00");
    make_labelled(&w, SESSION_1, CHAT_B, "soon");
    make_labelled(&w, SESSION_1, CHAT_B, "2026-01-01T00:05:00"); /* of which zone? */
    make_labelled(&w, SESSION_2, CHAT_C, "2026-01-01T01:05:00.123456789+01:00");
    restart(&w);
    assert_int_equal(manager_count(w.f.m), 1);
    struct answer a = create(&w, CHAT_C, CHAT_REUSED);
    assert_string_equal(a.session.session_id, SESSION_2);
    assert_int_equal(a.session.expires_ns,
                     w.f.clock.real_ns + TTL + 123456 * UINT64_C(1000)); /* in UTC */
    assert_int_equal(fake_sandboxes(w.f.backend), 1); /* what nobody knows is ended */
    chats_stop(&w);
}

static void newest_of_a_chat_wins(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED); /* the store has this one */
    make_labelled(&w, SESSION_1, CHAT_B, "2026-01-01T00:05:00+00:00");
    pass(&w.f, SEC);
    make_labelled(&w, SESSION_2, CHAT_A, "2026-01-01T00:05:01+00:00");
    make_labelled(&w, SESSION_2, CHAT_B, "2026-01-01T00:05:01+00:00");
    restart(&w);
    assert_int_equal(fake_sandboxes(w.f.backend), 2);
    for (int i = 0; i < 2; i++) {
        struct answer a = create(&w, i == 0 ? CHAT_A : CHAT_B, CHAT_REUSED);
        assert_string_equal(a.session.session_id, SESSION_2);
        assert_int_equal(a.session.created_ns, w.f.clock.real_ns);
    }
    chats_stop(&w);
}

static void those_that_have_expired_are_left_to_the_cleanup(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    crash(&w);
    fake_clock_advance(&w.f.clock, TTL);
    next_daemon(&w);
    assert_non_null(manager_find(w.f.m, CHAT_A));
    chat_start(w.chat);
    pump(&w.f);
    assert_null(manager_find(w.f.m, CHAT_A));
    assert_int_equal(metric(&w, "sandbox.cleanup.total", "cleaned"), 1);
    chats_stop(&w);
}

static void backend_that_cannot_tell_is_an_error(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    crash(&w);
    (void)err_set(&why, ERR_BACKEND, "docker cannot be reached");
    fake_fail(w.f.backend, FAKE_LIST, &why);
    struct heard h = reconcile(&w);
    assert_int_equal(h.err.code, ERR_BACKEND);
    assert_non_null(strstr(h.err.msg, "cannot be listed"));
    assert_int_equal(fake_sandboxes(w.f.backend), 1); /* untouched */
    chats_stop(&w);
}

static void without_a_section_the_backend_is_not_asked(void **state)
{
    struct chats w;
    struct err why = {0};
    chats_start(&w, NULL);
    (void)create(&w, CHAT_A, CHAT_CREATED);
    crash(&w);
    chat_config_done(&w.config);
    w.config.cleanup_interval_seconds = 60;
    (void)err_set(&why, ERR_BACKEND, "docker cannot be reached");
    fake_fail(w.f.backend, FAKE_LIST, &why);
    next_daemon(&w); /* the record is enough */
    fake_clock_advance(&w.f.clock, TTL);
    chat_start(w.chat); /* and it ends all the same */
    pump(&w.f);
    assert_int_equal(fake_sandboxes(w.f.backend), 0);
    chats_stop(&w);
}

struct edit {
    const char *from, *to;
    char *text; /* owned */
};

static int on_record(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    struct edit *e = arg;
    AUTO_FREE char *old = xstrndup(json, len);
    const char *at = strstr(old, e->from);
    assert_string_equal(id, CHAT_A);
    assert_non_null(at);
    e->text = xasprintf("%.*s%s%s", (int)(at - old), old, e->to, at + strlen(e->from));
    return 0;
}

static void edit_record(struct chats *w, const char *from, const char *to)
{
    struct edit e = {from, to, NULL};
    struct err err = {0};
    assert_int_equal(store_each_session(w->place.store, on_record, &e, &err), 0);
    assert_int_equal(store_put_session(w->place.store, CHAT_A, e.text, strlen(e.text), &err), 0);
    free(e.text);
}

/* Anybody may have edited it. A backend that keeps no labels has nothing else to go by. */
static void record_that_makes_no_sense_is_forgotten(void **state)
{
    static const char *const edits[][2] = {
        {"\"chat_id\":\"" CHAT_A, "\"chat_id\":\"" CHAT_A}, /* this one does */
        {"\"chat_id\":\"" CHAT_A, "\"chat_id\":\"" CHAT_B},
        {"\"expires_ns\":1767225900000000000", "\"expires_ns\":1767225900000000001"},
        {"\"expires_ns\":1767225900000000000", "\"expires_ns\":0"},
        {"\"expires_at\":\"2026", "\"expires_at\":\"then"},
        {"\"labels\":{\"session_id\"", "\"labels\":{\"of_nobody\""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(edits); i++) {
        struct chats w;
        chats_start(&w, NULL);
        (void)create(&w, CHAT_A, CHAT_CREATED);
        crash(&w);
        edit_record(&w, edits[i][0], edits[i][1]);
        chat_config_done(&w.config); /* so that labels are not asked for */
        next_daemon(&w);
        assert_int_equal(manager_count(w.f.m), i == 0);
        assert_int_equal(fake_sandboxes(w.f.backend), i == 0);
        chats_stop(&w);
    }
}

static void next_daemon_closes_directories_to_its_own_group(void **state)
{
    struct chats w;
    chats_start(&w, NULL);
    assert_int_equal(mkdirat(w.place.fd, "chats/" CHAT_A, 0750), 0);
    assert_int_equal(mkdirat(w.place.fd, "chats/others", 0750), 0);
    restart(&w);
    assert_int_equal(mode_of(&w, "chats/" CHAT_A), 0700);
    assert_int_equal(mode_of(&w, "chats/others"), 0750); /* not a chat */
    chats_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_daemon_closes_directories_to_its_own_group),
        cmocka_unit_test(chat_is_found_again_with_all_it_was),
        cmocka_unit_test(test_row_T69_labels_are_enough_when_the_records_are_lost),
        cmocka_unit_test(test_row_T69_labels_that_make_no_sense_are_skipped),
        cmocka_unit_test(newest_of_a_chat_wins),
        cmocka_unit_test(those_that_have_expired_are_left_to_the_cleanup),
        cmocka_unit_test(backend_that_cannot_tell_is_an_error),
        cmocka_unit_test(without_a_section_the_backend_is_not_asked),
        cmocka_unit_test(record_that_makes_no_sense_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
