/* SPDX-License-Identifier: Apache-2.0 */
#include "core_process.h"

/* The measuring of sessions is private to the action. */
#include "front/langbot/storage.c"
#include "session/run.h"

DEFINE_CLEANUP(tenant_usage)

struct looked {
    int n;
    struct tenant_usage_report report;
};

static void on_usage(void *arg, const struct tenant_usage_report *report)
{
    struct looked *t = arg;
    t->n++;
    t->report = *report;
}

static struct tenant_usage *look(struct fixture *f, const char *prefix, const char *command,
                                 struct looked *t)
{
    *t = (struct looked){0};
    struct tenant_usage *u = tenant_usage_new(f->m, prefix, command, on_usage, t);
    assert_int_equal(t->n, 0); /* never from inside the call */
    return u;
}

static void make(struct fixture *f, const char *id)
{
    session_release(ready_session(f, id));
}

static void sessions_add_up(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    for (int i = 0; i < 10; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "a-%d", i);
        make(&f, id);
    }
    make(&f, "b-0");
    struct tenant_usage *u = look(&f, "a-", "echo 0 100 3;echo 2 1 2", &t);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.report.sessions, 10);
    assert_int_equal(t.report.measured, 10);
    assert_int_equal(t.report.at[USAGE_WORKSPACE].bytes, 10 * 100 * 1024);
    assert_int_equal(t.report.at[USAGE_WORKSPACE].files, 30);
    assert_false(t.report.at[USAGE_CACHE].exists);
    assert_true(t.report.at[USAGE_TEMP].exists);
    assert_int_equal(t.report.at[USAGE_TEMP].files, 20);
    assert_int_equal(t.report.managed + t.report.processes, 0);
    tenant_usage_free(u);
    fixture_stop(&f);
}

static void nobody_is_there(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    struct tenant_usage *u = look(&f, "", "echo", &t);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.report.sessions, 0);
    tenant_usage_free(u);
    fixture_stop(&f);
}

static void what_makes_no_sense_is_not_counted(void **state)
{
    static const char *const commands[] = {
        "echo",
        "echo 0 1",
        "echo 9 1 1",
        "echo 0 -1 1",
        "echo 0 1 99999999999",
        "echo 0 x 1",
        "echo 0 4294967296 1",
        "echo 0 -",
        "echo -",
        "flood 9000",
        "echo 01 1 1 1 ",
    };
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    make(&f, "s");
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        struct tenant_usage *u = look(&f, "", commands[i], &t);
        pump(&f);
        assert_int_equal(t.report.measured, 1);
        assert_int_equal(t.report.at[USAGE_WORKSPACE].bytes, 0);
        tenant_usage_free(u);
    }
    fixture_stop(&f);
}

static void a_directory_of_the_host_is_not_the_session_s(void **state)
{
    struct fixture f;
    struct heard h;
    struct looked t;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct spec *spec = named_spec("host");
    spec->host_path = xstrdup("/srv/x");
    assert_int_equal(acquire_spec(&f, spec, 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    make(&f, "own");
    struct tenant_usage *u = look(&f, "", "echo 0 100 3;echo 1 7 1", &t);
    pump(&f);
    assert_int_equal(t.report.measured, 2);
    assert_int_equal(t.report.at[USAGE_WORKSPACE].bytes, 100 * 1024);
    assert_int_equal(t.report.at[USAGE_CACHE].bytes, 2 * 7 * 1024);
    tenant_usage_free(u);
    fixture_stop(&f);
}

static void sessions_with_processes_are_told_apart(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    make(&f, "idle");
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "sleep 900000");
    struct tenant_usage *u = look(&f, "", "echo 0 100 3", &t);
    pump(&f);
    assert_int_equal(t.report.managed, 1);
    assert_int_equal(t.report.processes, 1);
    assert_int_equal(t.report.at[USAGE_WORKSPACE].bytes, 2 * 100 * 1024);
    assert_int_equal(t.report.managed_workspaces.bytes, 100 * 1024);
    assert_int_equal(t.report.managed_workspaces.files, 3);
    session_release(s);
    tenant_usage_free(u);
    fixture_stop(&f);
}

static void those_who_fail_are_told(void **state)
{
    struct fixture f;
    struct looked t;
    const struct err broken = {.code = ERR_BACKEND, .msg = "no"};
    fixture_start(&f, NULL, &proc_options);
    make(&f, "a");
    make(&f, "b");
    fake_fail(f.backend, FAKE_EXEC, &broken);
    AUTO(tenant_usage) struct tenant_usage *u = look(&f, "", "echo 0 100 3;exit 0", &t);
    pump(&f);
    assert_int_equal(t.report.sessions, 2);
    assert_int_equal(t.report.measured, 1);
    tenant_usage_free(TAKE_PTR(u));
    u = look(&f, "", "echo 0 100 3;exit 1", &t);
    pump(&f);
    assert_int_equal(t.report.measured, 0);
    assert_int_equal(t.report.at[USAGE_WORKSPACE].bytes, 0);
    fixture_stop(&f);
}

static void nobody_waits_for_ever(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    for (int i = 0; i < 20; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "s%d", i);
        make(&f, id);
    }
    AUTO(tenant_usage) struct tenant_usage *u = look(&f, "", "echo 0 1 1;sleep 9000", &t);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.n, 0);
        pass(&f, 9 * SEC);
    }
    pass(&f, 4 * SEC);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.report.sessions, 20);
    assert_int_equal(t.report.measured, 12); /* four at once, three times */
    tenant_usage_free(TAKE_PTR(u));
    /* One that hangs is one that failed. */
    u = look(&f, "s0", "sleep 900000", &t);
    pass(&f, 10 * SEC);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.report.measured, 0);
    fixture_stop(&f);
}

static void looking_is_not_using(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    uint64_t used = session_last_used(s);
    pass(&f, 5 * SEC);
    struct tenant_usage *u = look(&f, "", "sleep 1000", &t);
    pump(&f);
    assert_int_equal(session_execs(s), 0);
    pass(&f, 1 * SEC);
    assert_int_equal(t.report.measured, 1);
    assert_int_equal(session_last_used(s), used);
    session_release(s);
    tenant_usage_free(u);
    fixture_stop(&f);
}

static void it_may_be_given_up(void **state)
{
    struct fixture f;
    struct looked t;
    fixture_start(&f, NULL, &proc_options);
    for (int i = 0; i < 6; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "s%d", i);
        make(&f, id);
    }
    tenant_usage_free(look(&f, "", "sleep 1000", &t));
    struct tenant_usage *u = look(&f, "", "sleep 1000", &t);
    pump(&f);
    tenant_usage_free(u);
    pass(&f, 5 * SEC);
    assert_int_equal(t.n, 0);
    /* A session that ends meanwhile fails. */
    struct heard gone;
    u = look(&f, "s0", "sleep 1000", &t);
    pump(&f);
    delete_id(&f, "s0", &gone);
    pump(&f);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.report.measured, 0);
    tenant_usage_free(u);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_add_up),
        cmocka_unit_test(nobody_is_there),
        cmocka_unit_test(what_makes_no_sense_is_not_counted),
        cmocka_unit_test(a_directory_of_the_host_is_not_the_session_s),
        cmocka_unit_test(sessions_with_processes_are_told_apart),
        cmocka_unit_test(those_who_fail_are_told),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(looking_is_not_using),
        cmocka_unit_test(it_may_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
