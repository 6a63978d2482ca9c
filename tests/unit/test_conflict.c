/* SPDX-License-Identifier: Apache-2.0 */

/* What is said to somebody who wants an existing session to be another. */

#include "core_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define SEC NSEC_PER_SEC

static const struct fake_options slow = {.create_ns = 10 * SEC, .destroy_ns = 10 * SEC};

static struct spec *other_spec(void)
{
    struct spec *s = named_spec("s");
    free(s->image);
    s->image = xstrdup("python:3");
    s->host_path = xstrdup("/srv/other");
    s->host_path_mode = MOUNT_RO;
    free(s->mount_path);
    s->mount_path = xstrdup("/data");
    s->network = NETWORK_ON;
    s->persistent = true;
    s->cpus = 2.5;
    s->memory_mb = 64;
    s->pids_limit = 7;
    s->read_only_rootfs = false;
    s->workspace_quota_mb = 3;
    free(s->workdir);
    s->workdir = xstrdup("/data");
    s->timeout_sec = 99;
    return s;
}

struct conflict {
    enum spec_field field;
    const char *tail;
};

static void expect_conflicts(struct fixture *f, struct spec *(*ask)(void),
                             const struct conflict *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct heard h;
        struct err err = {0};
        char text[128];
        assert_int_equal(acquire_spec(f, ask(), FIELD_BIT(cases[i].field), &h, &err),
                         err_code_errno(ERR_CONFLICT));
        assert_int_equal(err.code, ERR_CONFLICT);
        (void)snprintf(text, sizeof(text), "Box session s already exists with %s", cases[i].tail);
        assert_string_equal(err.msg, text);
    }
}

static struct spec *default_spec(void)
{
    return named_spec("s");
}

static void conflict_names_the_field_and_what_is_there(void **state)
{
    static const struct conflict cases[] = {
        {SPEC_NETWORK, "network=off"},
        {SPEC_IMAGE, "image=rockchin/langbot-sandbox:latest"},
        {SPEC_HOST_PATH, "host_path=None"},
        {SPEC_HOST_PATH_MODE, "host_path_mode=rw"},
        {SPEC_MOUNT_PATH, "mount_path=/workspace"},
        {SPEC_PERSISTENT, "persistent=False"},
        {SPEC_CPUS, "cpus=1.0"},
        {SPEC_MEMORY_MB, "memory_mb=512"},
        {SPEC_PIDS_LIMIT, "pids_limit=128"},
        {SPEC_READ_ONLY_ROOTFS, "read_only_rootfs=True"},
        {SPEC_WORKSPACE_QUOTA_MB, "workspace_quota_mb=0"},
    };
    struct fixture f;
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    expect_conflicts(&f, other_spec, cases, ARRAY_SIZE(cases));
    fixture_stop(&f);
}

static void conflict_is_spelled_as_python_does(void **state)
{
    static const struct conflict cases[] = {
        {SPEC_NETWORK, "network=on"},
        {SPEC_IMAGE, "image=python:3"},
        {SPEC_HOST_PATH, "host_path=/srv/other"},
        {SPEC_HOST_PATH_MODE, "host_path_mode=ro"},
        {SPEC_MOUNT_PATH, "mount_path=/data"},
        {SPEC_PERSISTENT, "persistent=True"},
        {SPEC_CPUS, "cpus=2.5"},
        {SPEC_MEMORY_MB, "memory_mb=64"},
        {SPEC_PIDS_LIMIT, "pids_limit=7"},
        {SPEC_READ_ONLY_ROOTFS, "read_only_rootfs=False"},
        {SPEC_WORKSPACE_QUOTA_MB, "workspace_quota_mb=3"},
    };
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, &slow, NULL);
    assert_int_equal(acquire_spec(&f, other_spec(), 0, &h, &err), 0);
    expect_conflicts(&f, default_spec, cases, ARRAY_SIZE(cases)); /* while it is being made */
    pass(&f, 10 * SEC);
    expect_conflicts(&f, default_spec, cases, ARRAY_SIZE(cases));
    give_back(&h);
    fixture_stop(&f);
}

static void first_difference_in_order_is_told(void **state)
{
    static const struct conflict all[] = {{SPEC_NETWORK, "network=off"}};
    static const enum spec_field ignored[] = {SPEC_CMD, SPEC_WORKDIR, SPEC_TIMEOUT_SEC, SPEC_ENV,
                                              SPEC_SKILL_NAME};
    struct fixture f;
    struct heard h;
    struct err err = {0};
    uint64_t given = 0;
    fixture_start(&f, NULL, NULL);
    session_release(ready_session(&f, "s"));
    expect_conflicts(&f, other_spec, all, 1);
    assert_true(acquire_spec(&f, other_spec(), UINT64_MAX, &h, &err) < 0);
    assert_string_equal(err.msg, "Box session s already exists with network=off");
    assert_true(
        acquire_spec(&f, other_spec(), FIELD_BIT(SPEC_CPUS) | FIELD_BIT(SPEC_IMAGE), &h, &err) < 0);
    assert_string_equal(err.msg,
                        "Box session s already exists with image=rockchin/langbot-sandbox:latest");
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        given |= FIELD_BIT(ignored[i]);
    assert_int_equal(acquire_spec(&f, other_spec(), given, &h, &err), 0);
    pump(&f);
    give_back(&h);
    /* What was not given is not compared, and equal values are no conflict. */
    assert_int_equal(acquire_spec(&f, other_spec(), 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    assert_int_equal(acquire_spec(&f, named_spec("s"), UINT64_MAX, &h, &err), 0);
    pump(&f);
    give_back(&h);
    fixture_stop(&f);
}

static struct spec *deep_spec(char last)
{
    struct spec *s = named_spec("s");
    s->host_path = xcalloc(1, 1001);
    memset(s->host_path, 'a', 1000);
    s->host_path[0] = '/';
    s->host_path[999] = last;
    return s;
}

static void values_are_compared_whole(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, NULL);
    assert_int_equal(acquire_spec(&f, deep_spec('b'), 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    assert_int_equal(acquire_spec(&f, deep_spec('c'), FIELD_BIT(SPEC_HOST_PATH), &h, &err),
                     err_code_errno(ERR_CONFLICT));
    assert_true(str_starts(err.msg, "Box session s already exists with host_path=/aaaa"));
    assert_int_equal(acquire_spec(&f, deep_spec('b'), FIELD_BIT(SPEC_HOST_PATH), &h, &err), 0);
    pump(&f);
    give_back(&h);
    struct spec *near = deep_spec('b');
    near->cpus = 1.0 + 1e-13;
    assert_int_equal(acquire_spec(&f, near, FIELD_BIT(SPEC_CPUS), &h, &err),
                     err_code_errno(ERR_CONFLICT));
    assert_string_equal(err.msg, "Box session s already exists with cpus=1.0");
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conflict_names_the_field_and_what_is_there),
        cmocka_unit_test(conflict_is_spelled_as_python_does),
        cmocka_unit_test(first_difference_in_order_is_told),
        cmocka_unit_test(values_are_compared_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
