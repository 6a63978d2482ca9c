/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "base/alloc.h"
#include "base/strv.h"

static void null_is_the_empty_vector(void **state)
{
    AUTO_STRV char **copy = strv_copy(NULL);

    assert_int_equal(strv_len(NULL), 0);
    assert_non_null(copy);
    assert_null(copy[0]);
    strv_free(NULL);
}

static void push_takes_and_add_copies(void **state)
{
    AUTO_STRV char **v = NULL;
    char text[] = "b";

    strv_push(&v, xstrdup("a"));
    strv_add(&v, text);
    text[0] = 'x';
    assert_int_equal(strv_len(v), 2);
    assert_string_equal(v[0], "a");
    assert_string_equal(v[1], "b");
    assert_null(v[2]);
}

static void a_copy_shares_nothing(void **state)
{
    AUTO_STRV char **v = NULL;
    for (int i = 0; i < 100; i++)
        strv_push(&v, xasprintf("%d", i));
    AUTO_STRV char **copy = strv_copy(v);

    assert_int_equal(strv_len(copy), 100);
    for (int i = 0; i < 100; i++) {
        assert_string_equal(copy[i], v[i]);
        assert_ptr_not_equal(copy[i], v[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_the_empty_vector),
        cmocka_unit_test(push_takes_and_add_copies),
        cmocka_unit_test(a_copy_shares_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
