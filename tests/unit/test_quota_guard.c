/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_stage.h"

#include "command/quota_guard.h"
#include "core_process.h"
#include "session/process.h"

/* A session on a directory of the host, looked after. */
struct guarded {
    struct stage s;
    struct quota_guards *guards;
    struct session *session;
};

static void on_session(void *arg, struct session *session, const struct err *err)
{
    ((struct guarded *)arg)->session = session;
}

static void guarded_start(struct guarded *g, int64_t quota_mb, enum mount_mode mode)
{
    struct spec *spec = named_spec("s");
    memset(g, 0, sizeof(*g));
    stage_start(&g->s, FLAT());
    manager_set_caps(g->s.f.m, 10, 10, 10, 1000 * NSEC_PER_SEC);
    g->guards = quota_guards_new();
    g->s.service.guards = g->guards;
    assert_int_equal(mkdirat(g->s.dir_fd, "w", 0700), 0);
    spec->workspace_quota_mb = quota_mb;
    spec->host_path = xasprintf("%s/w", g->s.dir);
    spec->host_path_mode = mode;
    assert_int_equal(manager_acquire(g->s.f.m, &spec, 0, 0, on_session, g, NULL), 0);
    pump(&g->s.f);
    assert_non_null(g->session);
    quota_guard(&g->s.service, g->session);
    quota_guard(&g->s.service, g->session); /* once is enough */
}

static void guarded_stop(struct guarded *g)
{
    session_release(g->session);
    quota_guards_free(g->guards);
    stage_stop(&g->s);
}

static uint64_t refusals(const struct guarded *g)
{
    return error_ring_count(g->s.errors, NULL);
}

static void wait_sec(struct guarded *g, int seconds)
{
    for (int i = 0; i < seconds; i++)
        pass(&g->s.f, NSEC_PER_SEC);
}

static void what_stays_within_is_left_alone(void **state)
{
    struct guarded g;
    guarded_start(&g, 2, MOUNT_RW);
    struct process *p = running(&g.s.f, g.session, "p", "cat");
    fill(&g.s, "w/a", 1 << 20);
    wait_sec(&g, 30);
    fill(&g.s, "w/b", 1 << 20);
    wait_sec(&g, 30);
    assert_true(process_running(p));
    assert_null(process_reason(p));
    assert_int_equal(refusals(&g), 0);
    guarded_stop(&g);
}

static void what_runs_is_ended_once_with_the_reason(void **state)
{
    struct guarded g;
    guarded_start(&g, 1, MOUNT_RW);
    struct process *p = running(&g.s.f, g.session, "p", "cat");
    wait_sec(&g, 10);
    fill(&g.s, "w/big", 2 << 20);
    wait_sec(&g, 3); /* soon, while a process runs */
    assert_false(process_running(p));
    assert_non_null(strstr(process_reason(p), "workspace quota exceeded between executions: "
                                              "used=2097152 bytes limit=1048576 bytes"));
    assert_int_equal(refusals(&g), 1);
    expect_log(&g.s, "between executions");
    /* Nobody adds to it: nothing more is done, and the session stays. */
    wait_sec(&g, 100);
    assert_int_equal(refusals(&g), 1);
    assert_ptr_equal(manager_find(g.s.f.m, "s"), g.session);
    /* There is room again, and it is used up again. */
    fill(&g.s, "w/big", 1000);
    wait_sec(&g, 20);
    fill(&g.s, "w/big", 2 << 20);
    wait_sec(&g, 10);
    assert_int_equal(refusals(&g), 2);
    guarded_stop(&g);
}

static void what_does_not_stop_goes_with_its_session(void **state)
{
    struct guarded g;
    guarded_start(&g, 1, MOUNT_RW);
    for (int i = 2; i < 60 && manager_find(g.s.f.m, "s") != NULL; i++) {
        fill(&g.s, "w/big", (off_t)i << 20);
        wait_sec(&g, 1);
    }
    assert_null(manager_find(g.s.f.m, "s"));
    assert_int_equal(refusals(&g), 5); /* four times ended, then removed */
    expect_log(&g.s, "\"session_delete\"");
    wait_sec(&g, 10);
    assert_int_equal(refusals(&g), 5);
    guarded_stop(&g);
}

static void only_what_can_be_overrun_is_looked_after(void **state)
{
    static const struct {
        int64_t quota_mb;
        enum mount_mode mode;
    } cases[] = {{0, MOUNT_RW}, {1, MOUNT_RO}, {1, MOUNT_NONE}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct guarded g;
        guarded_start(&g, cases[i].quota_mb, cases[i].mode);
        fill(&g.s, "w/big", 2 << 20);
        wait_sec(&g, 100);
        assert_int_equal(refusals(&g), 0);
        guarded_stop(&g);
    }
}

/* A command has a watch of its own, and may be there to make room. */
static void commands_are_not_disturbed(void **state)
{
    struct guarded g;
    guarded_start(&g, 1, MOUNT_RW);
    session_exec_begins(g.session);
    fill(&g.s, "w/big", 2 << 20);
    wait_sec(&g, 100);
    assert_int_equal(refusals(&g), 0);
    session_exec_ends(g.session);
    wait_sec(&g, 3);
    assert_int_equal(refusals(&g), 1);
    guarded_stop(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stays_within_is_left_alone),
        cmocka_unit_test(what_runs_is_ended_once_with_the_reason),
        cmocka_unit_test(what_does_not_stop_goes_with_its_session),
        cmocka_unit_test(only_what_can_be_overrun_is_looked_after),
        cmocka_unit_test(commands_are_not_disturbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
