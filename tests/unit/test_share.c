/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <string.h>

#include "base/err.h"
#include "policy/share.h"

/* Two sessions for "small", nothing said about anything else. */
static void caps(void *arg, const char *name, uint64_t ret[SHARE_KIND_MAX])
{
    if (strcmp(name, "small") == 0)
        ret[SHARE_SESSIONS] = *(uint64_t *)arg;
}

static void one_share_is_not_anothers(void **state)
{
    AUTO(shares) struct shares *s = shares_new();
    uint64_t max = 2;
    struct err err = {0};

    shares_set_caps(s, caps, &max);
    assert_int_equal(shares_check(s, "small", SHARE_SESSIONS, &err), 0);
    struct share *a = shares_take(s, "small", SHARE_SESSIONS);
    struct share *b = shares_take(s, "small", SHARE_SESSIONS);
    assert_ptr_equal(a, b);
    assert_int_equal(share_used(a, SHARE_SESSIONS), 2);
    assert_true(shares_check(s, "small", SHARE_SESSIONS, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(err.msg, "token 'small' has 2 sessions and may have 2 (max_sessions); "
                                 "delete one, or have its share raised");
    assert_int_equal(shares_refused(s, SHARE_SESSIONS), 1);
    assert_int_equal(shares_refused(s, SHARE_EXECS), 0);
    /* Other things, other tokens, and callers without one. */
    assert_int_equal(shares_check(s, "small", SHARE_EXECS, &err), 0);
    assert_int_equal(shares_check(s, "large", SHARE_SESSIONS, &err), 0);
    assert_int_equal(shares_check(s, NULL, SHARE_SESSIONS, &err), 0);
    assert_int_equal(shares_check(NULL, "small", SHARE_SESSIONS, &err), 0);
    /* A cap that is raised holds at once, and so does one that is lowered. */
    max = 3;
    assert_int_equal(shares_check(s, "small", SHARE_SESSIONS, &err), 0);
    max = 1;
    assert_true(shares_check(s, "small", SHARE_SESSIONS, &err) < 0);
    share_give(a, SHARE_SESSIONS);
    share_give(b, SHARE_SESSIONS);
    assert_int_equal(shares_check(s, "small", SHARE_SESSIONS, &err), 0);
}

static void only_those_who_use_something_are_known(void **state)
{
    AUTO(shares) struct shares *s = shares_new();

    assert_null(shares_next(s, NULL));
    assert_null(shares_next(NULL, NULL));
    struct share *a = shares_get(s, "a");
    struct share *b = shares_take(s, "b", SHARE_EXECS);
    struct share *c = shares_get(s, "c");
    share_add(c, SHARE_OUTPUT, 100);
    assert_string_equal(share_name(shares_next(s, NULL)), "c");
    assert_ptr_equal(shares_next(s, b), a);
    assert_null(shares_next(s, a));
    share_give(b, SHARE_EXECS);
    assert_ptr_equal(shares_next(s, c), a);
    share_put(a);
    assert_null(shares_next(s, c));
    share_sub(c, SHARE_OUTPUT, 100);
    share_put(c);
    assert_null(shares_next(s, NULL));
}

static void nobody_has_no_share(void **state)
{
    assert_null(shares_get(NULL, "a"));
    assert_null(shares_take(NULL, NULL, SHARE_EXECS));
    share_add(NULL, SHARE_EXECS, 1);
    share_sub(NULL, SHARE_EXECS, 1);
    share_give(NULL, SHARE_EXECS);
    assert_null(share_name(NULL));
    assert_int_equal(share_used(NULL, SHARE_EXECS), 0);
    assert_true(share_max(NULL, SHARE_EXECS) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_share_is_not_anothers),
        cmocka_unit_test(only_those_who_use_something_are_known),
        cmocka_unit_test(nobody_has_no_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
