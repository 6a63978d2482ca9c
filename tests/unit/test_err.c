/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

static void every_code_has_a_name_and_an_errno(void **state)
{
    for (int a = ERR_INVALID; a < ERR_CODE_MAX; a++) {
        assert_true(err_code_errno((enum err_code)a) < 0);
        assert_true(strlen(err_code_name((enum err_code)a)) > 0);
        for (int b = a + 1; b < ERR_CODE_MAX; b++)
            assert_string_not_equal(err_code_name((enum err_code)a),
                                    err_code_name((enum err_code)b));
    }
    assert_string_equal(err_code_name(ERR_NOT_FOUND), "not_found");
    assert_string_equal(err_code_name((enum err_code)999), "unknown");
    assert_true(err_code_errno((enum err_code)999) < 0);
}

static void set_fills_and_returns_the_errno_of_the_code(void **state)
{
    struct err err = {.sys = 7};

    assert_int_equal(err_set(&err, ERR_NOT_FOUND, "no session '%s'", "s1"), -ENOENT);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_int_equal(err.sys, 0);
    assert_string_equal(err.msg, "no session 's1'");
    assert_int_equal(err_set(NULL, ERR_INVALID, "x"), -EINVAL);
}

static void sys_appends_the_text_of_the_errno(void **state)
{
    struct err err;

    assert_int_equal(err_sys(&err, EACCES, "open '%s'", "/x"), -EACCES);
    assert_int_equal(err.code, ERR_SYSTEM);
    assert_int_equal(err.sys, EACCES);
    assert_string_equal(err.msg, "open '/x': Permission denied");
    assert_int_equal(err_sys(NULL, EACCES, "x"), -EACCES);
    assert_string_equal(err_errno_text(123456), "unknown error");
}

static void wrap_keeps_code_and_value(void **state)
{
    struct err err;

    (void)err_set(&err, ERR_LIMIT, "too many");
    assert_int_equal(err_wrap(&err, "step '%s'", "mount"), err_code_errno(ERR_LIMIT));
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(err.msg, "step 'mount': too many");

    (void)err_sys(&err, ENOSPC, "write");
    assert_int_equal(err_wrap(&err, "a"), -ENOSPC);
    assert_int_equal(err_wrap(&err, "b"), -ENOSPC);
    assert_string_equal(err.msg, "b: a: write: No space left on device");
    assert_true(err_wrap(NULL, "x") < 0);
}

static void its_own_text_may_be_an_argument(void **state)
{
    struct err err;

    (void)err_set(&err, ERR_INVALID, "inner");
    (void)err_set(&err, ERR_BACKEND, "outer (%s)", err.msg);
    assert_string_equal(err.msg, "outer (inner)");
    (void)err_wrap(&err, "again %s", err.msg);
    assert_string_equal(err.msg, "again outer (inner): outer (inner)");
}

static void a_long_text_is_cut_and_the_cause_stays(void **state)
{
    char text[1000];
    struct err err;

    memset(text, 'z', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)err_sys(&err, ENOENT, "open '%s'", text);
    assert_int_equal(strlen(err.msg), sizeof(err.msg) - 1);
    assert_true(str_ends(err.msg, ": No such file or directory"));

    (void)err_set(&err, ERR_INVALID, "%s", text);
    assert_int_equal(strlen(err.msg), sizeof(err.msg) - 1);
    (void)err_wrap(&err, "prefix");
    assert_true(str_starts(err.msg, "prefix: zzz"));
    assert_int_equal(strlen(err.msg), sizeof(err.msg) - 1);

    (void)err_wrap(&err, "y%s", text);
    assert_true(str_starts(err.msg, "yz"));
    assert_non_null(strstr(err.msg, "z: prefix: zzz"));
}

static void a_cut_never_splits_a_character(void **state)
{
    char text[1001];
    struct err err;

    for (size_t shift = 0; shift < 3; shift++) {
        memset(text, 'a', shift);
        for (size_t i = shift; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4);
        (void)err_set(&err, ERR_INVALID, "%s", text);
        assert_true(utf8_valid(err.msg, strlen(err.msg)));
        assert_true(strlen(err.msg) > sizeof(err.msg) - 4);
        (void)err_wrap(&err, "%s", text);
        assert_true(utf8_valid(err.msg, strlen(err.msg)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name_and_an_errno),
        cmocka_unit_test(set_fills_and_returns_the_errno_of_the_code),
        cmocka_unit_test(sys_appends_the_text_of_the_errno),
        cmocka_unit_test(wrap_keeps_code_and_value),
        cmocka_unit_test(its_own_text_may_be_an_argument),
        cmocka_unit_test(a_long_text_is_cut_and_the_cause_stays),
        cmocka_unit_test(a_cut_never_splits_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
