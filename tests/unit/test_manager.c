/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "session/run.h"

#define SEC NSEC_PER_SEC

static const struct fake_options slow = {.create_ns = 10 * SEC, .destroy_ns = 10 * SEC};

/* Deletes with nobody listening. */
static void drop(struct fixture *f, const char *id)
{
    struct heard gone;
    delete_id(f, id, &gone);
    pass(f, 20 * SEC);
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.err.code, ERR_NONE);
}

static void session_is_made_once_and_found_again(void **state)
{
    struct fixture f;
    struct heard a, b;
    fixture_start(&f, NULL, NULL);
    acquire_id(&f, "s", &a);
    assert_int_equal(manager_count(f.m), 1);
    assert_int_equal(session_state(manager_find(f.m, "s")), SESSION_CREATING);
    assert_null(session_sandbox(manager_find(f.m, "s")));
    pump(&f);
    acquire_id(&f, "s", &b);
    pump(&f);
    assert_ptr_equal(a.session, b.session);
    assert_ptr_equal(manager_find(f.m, "s"), a.session);
    assert_string_equal(session_id(a.session), "s");
    assert_ptr_equal(session_manager(a.session), f.m);
    assert_ptr_equal(manager_backend(f.m), f.backend);
    assert_ptr_equal(manager_loop(f.m), f.loop);
    assert_string_equal(session_state_name(session_state(a.session)), "ready");
    assert_non_null(session_sandbox(a.session));
    assert_int_equal(fake_sandboxes(f.backend), 1);
    assert_null(manager_find(f.m, "S"));
    give_back(&a);
    give_back(&b);
    fixture_stop(&f);
}

static void sessions_are_listed_in_order_of_creation(void **state)
{
    struct fixture f;
    struct heard h[4];
    char names[32] = "";
    static const char *const ids[] = {"d", "a", "c", "b"};
    fixture_start(&f, NULL, NULL);
    for (size_t i = 0; i < 4; i++)
        acquire_id(&f, ids[i], &h[i]);
    pump(&f);
    for (size_t i = 0; i < 4; i++)
        give_back(&h[i]);
    drop(&f, "a");
    for (struct session *s = manager_next(f.m, NULL); s != NULL; s = manager_next(f.m, s))
        (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s", session_id(s));
    assert_string_equal(names, "dcb");
    drop(&f, "d");
    drop(&f, "b");
    drop(&f, "c");
    assert_null(manager_next(f.m, NULL));
    fixture_stop(&f);
}

static void who_comes_while_it_is_made_waits_for_the_same(void **state)
{
    struct fixture f;
    struct heard h[3];
    fixture_start(&f, &slow, NULL);
    for (size_t i = 0; i < 3; i++)
        acquire_id(&f, "s", &h[i]);
    pass(&f, 9 * SEC);
    assert_int_equal(h[0].n + h[1].n + h[2].n, 0);
    assert_int_equal(manager_count(f.m), 1);
    pass(&f, SEC);
    struct session *s = manager_find(f.m, "s");
    for (size_t i = 0; i < 3; i++) {
        assert_ptr_equal(h[i].session, s);
        give_back(&h[i]);
    }
    assert_int_equal(fake_sandboxes(f.backend), 1);
    fixture_stop(&f);
}

static void failed_creation_is_told_to_everybody(void **state)
{
    struct fixture f;
    struct heard h[2];
    struct err err = {.code = ERR_BACKEND, .msg = "no luck"};
    fixture_start(&f, &slow, NULL);
    fake_fail(f.backend, FAKE_CREATE_LATER, &err);
    acquire_id(&f, "s", &h[0]);
    acquire_id(&f, "s", &h[1]);
    pass(&f, 10 * SEC);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(h[i].n, 1);
        assert_null(h[i].session);
        assert_int_equal(h[i].err.code, ERR_BACKEND);
        assert_string_equal(h[i].err.msg, "no luck");
    }
    assert_int_equal(manager_count(f.m), 0);
    /* The name is free. */
    acquire_id(&f, "s", &h[0]);
    pass(&f, 10 * SEC);
    give_back(&h[0]);
    fixture_stop(&f);
}

static void refused_creation_leaves_the_spec_with_the_caller(void **state)
{
    struct fixture f;
    struct heard h;
    struct err fault = {.code = ERR_DENIED, .msg = "not here"}, err = {0};
    fixture_start(&f, NULL, NULL);
    fake_fail(f.backend, FAKE_CREATE, &fault);
    assert_int_equal(acquire_spec(&f, named_spec("s"), 0, &h, &err), err_code_errno(ERR_DENIED));
    assert_string_equal(err.msg, "not here");
    pump(&f);
    assert_int_equal(h.n, 0);
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

/* Deleting. */

static void deleted_session_is_gone_for_good(void **state)
{
    struct fixture f;
    struct heard gone;
    struct err err = {0};
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    delete_id(&f, "s", &gone);
    assert_null(manager_find(f.m, "s"));
    assert_null(session_sandbox(s));
    assert_int_equal(session_state(s), SESSION_STOPPING);
    assert_int_equal(manager_count(f.m), 1); /* until it is gone */
    pump(&f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(manager_count(f.m), 0);
    assert_int_equal(fake_sandboxes(f.backend), 0);
    assert_string_equal(session_id(s), "s"); /* who holds it may still look */
    session_release(s);
    assert_int_equal(manager_delete(f.m, "s", on_gone, &gone, &err), -ENOENT);
    assert_string_equal(err.msg, "session s not found");
    assert_int_equal(gone.n, 1);
    fixture_stop(&f);
}

static void only_the_very_session_is_ended_not_the_next_of_its_name(void **state)
{
    struct fixture f;
    struct heard gone = {0};
    struct err err = {0};
    fixture_start(&f, NULL, NULL);
    struct session *old = ready_session(&f, "s");
    delete_id(&f, "s", &gone);
    pump(&f);
    struct session *next = ready_session(&f, "s");
    gone = (struct heard){0};
    assert_int_equal(manager_delete_this(f.m, old, on_gone, &gone, &err), -ENOENT);
    assert_string_equal(err.msg, "session s not found");
    assert_int_equal(manager_expel(f.m, old, on_gone, &gone, &err), -ENOENT);
    pump(&f);
    assert_int_equal(gone.n, 0);
    assert_ptr_equal(manager_find(f.m, "s"), next);
    assert_int_equal(manager_delete_this(f.m, next, on_gone, &gone, &err), 0);
    pump(&f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(manager_count(f.m), 0);
    session_release(old);
    session_release(next);
    fixture_stop(&f);
}

static void deleting_twice_tells_both(void **state)
{
    struct fixture f;
    struct heard first, second;
    fixture_start(&f, &slow, NULL);
    acquire_id(&f, "s", &first);
    pass(&f, 10 * SEC);
    give_back(&first);
    delete_id(&f, "s", &first);
    pass(&f, 5 * SEC);
    delete_id(&f, "s", &second);
    pass(&f, 5 * SEC);
    assert_int_equal(first.n, 1);
    assert_int_equal(second.n, 1);
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

static void deleting_while_it_is_made_ends_it_at_once(void **state)
{
    struct fixture f;
    struct heard ready, gone, again;
    fixture_start(&f, &slow, NULL);
    acquire_id(&f, "s", &ready);
    delete_id(&f, "s", &gone);
    assert_null(manager_find(f.m, "s"));
    delete_id(&f, "s", &again);
    pass(&f, 10 * SEC);
    assert_int_equal(gone.n + again.n, 0);
    assert_int_equal(fake_sandboxes(f.backend), 1); /* on its way out */
    pass(&f, 10 * SEC);
    assert_int_equal(ready.n, 1);
    assert_int_equal(ready.err.code, ERR_STATE);
    assert_string_equal(ready.err.msg, "session 's' was deleted while it was being created");
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.err.code, ERR_NONE);
    assert_int_equal(again.n, 1);
    assert_int_equal(fake_sandboxes(f.backend), 0);
    fixture_stop(&f);
}

static void deleting_what_was_never_made_is_no_failure(void **state)
{
    struct fixture f;
    struct heard ready, gone;
    struct err err = {.code = ERR_BACKEND, .msg = "no luck"};
    fixture_start(&f, &slow, NULL);
    fake_fail(f.backend, FAKE_CREATE_LATER, &err);
    acquire_id(&f, "s", &ready);
    delete_id(&f, "s", &gone);
    pass(&f, 10 * SEC);
    assert_int_equal(ready.n, 1);
    assert_null(ready.session);
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.err.code, ERR_NONE); /* nothing is left, and that was asked for */
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

static void failed_removal_is_told(void **state)
{
    struct fixture f;
    struct heard gone, again;
    struct err err = {.code = ERR_SYSTEM, .msg = "disk on fire"};
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    fake_fail(f.backend, FAKE_DESTROY, &err);
    delete_id(&f, "s", &gone);
    acquire_id(&f, "s", &again);
    pump(&f);
    assert_int_equal(gone.n, 1);
    assert_int_equal(gone.err.code, ERR_SYSTEM);
    assert_string_equal(gone.err.msg, "disk on fire");
    give_back(&again); /* not the next one's concern */
    fixture_stop(&f);
}

static void name_is_taken_again_when_it_is_free(void **state)
{
    struct fixture f;
    struct heard gone, a, b;
    struct err err = {0};
    fixture_start(&f, &slow, NULL);
    acquire_id(&f, "s", &a);
    pass(&f, 10 * SEC);
    struct session *old = a.session;
    delete_id(&f, "s", &gone);
    struct spec *wants = named_spec("s");
    wants->network = NETWORK_ON;
    /* It differs from the one that goes, which does not matter any more. */
    assert_int_equal(acquire_spec(&f, wants, FIELD_BIT(SPEC_NETWORK), &a, &err), 0);
    acquire_id(&f, "s", &b);
    pass(&f, 10 * SEC);
    assert_int_equal(gone.n, 1);
    assert_int_equal(a.n + b.n, 0);
    pass(&f, 10 * SEC);
    assert_ptr_not_equal(a.session, old);
    assert_ptr_equal(a.session, b.session);
    /* First come, first served: its wishes count. */
    assert_int_equal(session_spec(a.session)->network, NETWORK_ON);
    session_release(old);
    give_back(&a);
    give_back(&b);
    assert_int_equal(fake_sandboxes(f.backend), 1);
    fixture_stop(&f);
}

static void name_is_taken_again_after_a_deleted_creation(void **state)
{
    struct fixture f;
    struct heard first, gone, next;
    fixture_start(&f, &slow, NULL);
    acquire_id(&f, "s", &first);
    delete_id(&f, "s", &gone);
    acquire_id(&f, "s", &next);
    pass(&f, 30 * SEC); /* made */
    pass(&f, 10 * SEC); /* ended */
    assert_int_equal(first.n, 1);
    assert_null(first.session);
    assert_int_equal(gone.n, 1);
    pass(&f, 10 * SEC);
    give_back(&next);
    assert_int_equal(manager_count(f.m), 1);
    fixture_stop(&f);
}

static void next_in_line_hears_of_its_own_refusal(void **state)
{
    struct fixture f;
    struct heard gone, next, conflicting;
    struct err fault = {.code = ERR_DENIED, .msg = "not here"}, err = {0};
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    delete_id(&f, "s", &gone);
    acquire_id(&f, "s", &next);
    fake_fail(f.backend, FAKE_CREATE, &fault);
    pump(&f);
    assert_int_equal(next.n, 1);
    assert_int_equal(next.err.code, ERR_DENIED);

    session_release(ready_session(&f, "s"));
    delete_id(&f, "s", &gone);
    acquire_id(&f, "s", &next);
    struct spec *wants = named_spec("s");
    wants->cpus = 2.5;
    assert_int_equal(acquire_spec(&f, wants, FIELD_BIT(SPEC_CPUS), &conflicting, &err), 0);
    pump(&f);
    give_back(&next);
    assert_int_equal(conflicting.n, 1);
    assert_int_equal(conflicting.err.code, ERR_CONFLICT);
    fixture_stop(&f);
}

static void session_that_ends_before_it_is_handed_over_is_not(void **state)
{
    struct fixture f;
    struct heard late, gone;
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    acquire_id(&f, "s", &late);
    delete_id(&f, "s", &gone);
    pump(&f);
    assert_int_equal(late.n, 1);
    assert_null(late.session);
    assert_int_equal(late.err.code, ERR_STATE);
    assert_string_equal(late.err.msg, "session 's' was ended meanwhile");
    assert_int_equal(gone.n, 1);
    fixture_stop(&f);
}

/* Limits and policy. */

static void capacity_counts_those_on_their_way_in_and_out(void **state)
{
    struct fixture f;
    struct heard a, b, gone;
    struct err err = {0};
    fixture_start(&f, &slow, &(struct manager_options){.max_sessions = 2});
    acquire_id(&f, "a", &a);
    acquire_id(&f, "b", &b);
    assert_int_equal(acquire_spec(&f, named_spec("c"), 0, &gone, &err), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "Box session capacity reached (2)");
    pass(&f, 10 * SEC);
    give_back(&a);
    give_back(&b);
    delete_id(&f, "a", &gone);
    assert_true(acquire_spec(&f, named_spec("c"), 0, &a, &err) < 0);
    acquire_id(&f, "b", &b); /* an existing one is no new one */
    acquire_id(&f, "a", &a); /* waits for its own place */
    pass(&f, 10 * SEC);
    pass(&f, 10 * SEC);
    give_back(&a);
    give_back(&b);
    fixture_stop(&f);
}

static void waiters_are_limited(void **state)
{
    struct fixture f;
    static struct heard h[4097];
    struct err err = {0};
    fixture_start(&f, &slow, NULL);
    for (size_t i = 0; i < 4096; i++)
        acquire_id(&f, "s", &h[i]);
    assert_int_equal(acquire_spec(&f, named_spec("s"), 0, &h[4096], &err),
                     err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "too many requests are waiting for sessions; try again");
    pass(&f, 10 * SEC);
    for (size_t i = 0; i < 4096; i++)
        give_back(&h[i]);
    acquire_id(&f, "s", &h[0]);
    pump(&f);
    give_back(&h[0]);
    fixture_stop(&f);
}

static void missing_image_is_refused_when_asked_to(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &(struct manager_options){.max_sessions = 9, .strict_images = true});
    assert_int_equal(acquire_spec(&f, named_spec("s"), 0, &h, &err), err_code_errno(ERR_NOT_FOUND));
    assert_non_null(strstr(err.msg, "image 'rockchin/langbot-sandbox:latest' is not available"));
    struct spec *s = named_spec("s");
    free(s->image);
    s->image = xstrdup("host");
    assert_int_equal(acquire_spec(&f, s, 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    fixture_stop(&f);
}

/* Going away by itself. */

static const struct manager_options with_ttl = {.max_sessions = 9, .ttl_ns = 60 * SEC};

static void idle_session_is_removed(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &with_ttl);
    session_release(ready_session(&f, "s"));
    pass(&f, 55 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    session_release(ready_session(&f, "s")); /* used */
    pass(&f, 55 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    pass(&f, 5 * SEC);
    assert_null(manager_find(f.m, "s"));
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

static void time_asleep_counts_as_idle(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &with_ttl);
    session_release(ready_session(&f, "s"));
    f.clock.boot_ns += 3600 * SEC; /* the lid was closed: only this clock went on */
    pump(&f);
    assert_non_null(manager_find(f.m, "s")); /* the reaper comes by the other */
    pass(&f, 5 * SEC);
    assert_null(manager_find(f.m, "s"));
    session_release(ready_session(&f, "s"));
    f.clock.real_ns += 3600 * SEC; /* somebody set the wall clock */
    pass(&f, 5 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    fixture_stop(&f);
}

static void busy_and_persistent_sessions_stay(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &with_ttl);
    struct session *busy = ready_session(&f, "busy");
    session_exec_begins(busy);
    session_exec_begins(busy);
    struct spec *s = named_spec("kept");
    s->persistent = true;
    assert_int_equal(acquire_spec(&f, s, 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    for (int i = 0; i < 50; i++)
        pass(&f, 60 * SEC);
    assert_int_equal(session_execs(busy), 2);
    session_exec_ends(busy);
    pass(&f, 120 * SEC);
    assert_non_null(manager_find(f.m, "busy"));
    session_exec_ends(busy); /* its idle time begins now */
    pass(&f, 55 * SEC);
    assert_non_null(manager_find(f.m, "busy"));
    pass(&f, 5 * SEC);
    assert_null(manager_find(f.m, "busy"));
    assert_non_null(manager_find(f.m, "kept"));
    session_release(busy);
    fixture_stop(&f);
}

static void short_ttl_is_kept_to(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &(struct manager_options){.max_sessions = 9, .ttl_ns = SEC});
    session_release(ready_session(&f, "s"));
    pass(&f, SEC);
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

static void no_ttl_is_no_end(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    pass(&f, 86400 * SEC);
    assert_non_null(manager_find(f.m, "s"));
    fixture_stop(&f);
}

static void times_for_people_are_the_wall_clocks(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, NULL);
    uint64_t t0 = f.clock.real_ns;
    struct session *s = ready_session(&f, "s");
    assert_int_equal(session_created(s), t0);
    pass(&f, 7 * SEC);
    session_exec_begins(s);
    assert_int_equal(session_last_used(s), t0 + 7 * SEC);
    assert_int_equal(session_created(s), t0);
    session_exec_ends(s);
    session_release(s);
    fixture_stop(&f);
}

static void on_finished(void *arg, const struct run_result *result)
{
    *(int *)arg = (int)result->outcome.kind + 100;
}

static void lost_sandbox_takes_its_session_along(void **state)
{
    static const struct run_events events = {.finished = on_finished};
    struct fixture f;
    struct run *run = NULL;
    struct err err = {0};
    int finished = 0;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    struct run_options options = {.exec = {.cmd = "die"}};
    assert_int_equal(run_start(s, &options, &events, &finished, &run, &err), 0);
    pump(&f);
    assert_int_equal(finished, OUTCOME_SESSION_LOST + 100);
    assert_int_equal(manager_count(f.m), 0);
    assert_int_equal(fake_sandboxes(f.backend), 0);
    run_free(run);
    session_release(s);
    session_release(ready_session(&f, "s")); /* made anew */
    fixture_stop(&f);
}

/* Shutting down. */

static void all_sessions_end_and_nobody_gets_another(void **state)
{
    struct fixture f;
    struct heard a, creating, waiting, gone, all = {0};
    struct err err = {0};
    fixture_start(&f, &slow, &with_ttl);
    acquire_id(&f, "a", &a);
    pass(&f, 10 * SEC);
    give_back(&a);
    acquire_id(&f, "b", &creating);
    delete_id(&f, "a", &gone);
    acquire_id(&f, "a", &waiting);
    manager_close(f.m, on_gone, &all);
    assert_int_equal(acquire_spec(&f, named_spec("c"), 0, &a, &err), err_code_errno(ERR_STATE));
    assert_string_equal(err.msg, "boxd is shutting down");
    pass(&f, 10 * SEC);
    assert_int_equal(gone.n, 1);
    assert_int_equal(waiting.n, 1);
    assert_int_equal(waiting.err.code, ERR_STATE);
    assert_int_equal(all.n, 0);
    pass(&f, 10 * SEC);
    assert_int_equal(creating.n, 1);
    assert_null(creating.session);
    assert_int_equal(creating.err.code, ERR_STATE);
    assert_int_equal(all.n, 1);
    assert_int_equal(fake_sandboxes(f.backend), 0);
    fixture_stop(&f);
}

static void on_all_gone(void *arg, const struct err *err)
{
    const struct heard *waiting = ((struct heard **)arg)[0];
    struct heard *all = ((struct heard **)arg)[1];
    assert_int_equal(waiting->n, 1); /* the daemon ends here: who waits must have been told */
    on_gone(all, err);
}

static void end_of_all_is_told_last_and_from_the_loop(void **state)
{
    struct fixture f;
    struct heard gone, all = {0};
    struct heard *both[] = {&gone, &all};
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    delete_id(&f, "s", &gone);
    manager_close(f.m, on_all_gone, both);
    pump(&f);
    assert_int_equal(all.n, 1);
    fixture_stop(&f);

    fixture_start(&f, NULL, NULL);
    all = (struct heard){0};
    manager_close(f.m, on_gone, &all);
    assert_int_equal(all.n, 0);
    pump(&f);
    assert_int_equal(all.n, 1);
    fixture_stop(&f);
}

static void freed_manager_forgets_who_waits(void **state)
{
    struct fixture f;
    struct heard a, b, gone;
    fixture_start(&f, &slow, &with_ttl);
    acquire_id(&f, "a", &a);
    acquire_id(&f, "b", &b);
    pass(&f, 10 * SEC);
    give_back(&a);
    give_back(&b);
    delete_id(&f, "a", &gone);
    acquire_id(&f, "a", &a);
    acquire_id(&f, "c", &b);
    acquire_id(&f, "b", &gone); /* its answer is queued already */
    fixture_stop(&f);           /* nothing leaks; see the sanitizer */
    assert_int_equal(a.n + b.n + gone.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_is_made_once_and_found_again),
        cmocka_unit_test(sessions_are_listed_in_order_of_creation),
        cmocka_unit_test(who_comes_while_it_is_made_waits_for_the_same),
        cmocka_unit_test(failed_creation_is_told_to_everybody),
        cmocka_unit_test(refused_creation_leaves_the_spec_with_the_caller),
        cmocka_unit_test(deleted_session_is_gone_for_good),
        cmocka_unit_test(only_the_very_session_is_ended_not_the_next_of_its_name),
        cmocka_unit_test(deleting_twice_tells_both),
        cmocka_unit_test(deleting_while_it_is_made_ends_it_at_once),
        cmocka_unit_test(deleting_what_was_never_made_is_no_failure),
        cmocka_unit_test(failed_removal_is_told),
        cmocka_unit_test(name_is_taken_again_when_it_is_free),
        cmocka_unit_test(name_is_taken_again_after_a_deleted_creation),
        cmocka_unit_test(next_in_line_hears_of_its_own_refusal),
        cmocka_unit_test(session_that_ends_before_it_is_handed_over_is_not),
        cmocka_unit_test(capacity_counts_those_on_their_way_in_and_out),
        cmocka_unit_test(waiters_are_limited),
        cmocka_unit_test(missing_image_is_refused_when_asked_to),
        cmocka_unit_test(idle_session_is_removed),
        cmocka_unit_test(time_asleep_counts_as_idle),
        cmocka_unit_test(busy_and_persistent_sessions_stay),
        cmocka_unit_test(short_ttl_is_kept_to),
        cmocka_unit_test(no_ttl_is_no_end),
        cmocka_unit_test(times_for_people_are_the_wall_clocks),
        cmocka_unit_test(lost_sandbox_takes_its_session_along),
        cmocka_unit_test(all_sessions_end_and_nobody_gets_another),
        cmocka_unit_test(end_of_all_is_told_last_and_from_the_loop),
        cmocka_unit_test(freed_manager_forgets_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
