/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <string.h>

#include "front/v1/history.c"

static void a_number_comes_back_to_its_reader_only(void **state)
{
    static const uint64_t numbers[] = {0, 1, 2, 1023, 1ULL << 40, UINT64_MAX};
    const struct v1 v = {.cursor_key = "a key of this process"}, other = {.cursor_key = "another"};
    char text[CURSOR_SIZE], again[CURSOR_SIZE];
    uint64_t got;

    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
        cursor_write(&v, "alice", numbers[i], text);
        cursor_write(&v, "alice", numbers[i], again);
        assert_int_equal(strlen(text), CURSOR_SIZE - 1);
        assert_string_not_equal(text, again); /* nobody sees that it is the same */
        assert_true(cursor_read(&v, "alice", text, &got) && got == numbers[i]);
        assert_true(cursor_read(&v, "alice", again, &got) && got == numbers[i]);
        assert_true(cursor_read(&v, "bob", text, &got) && got != numbers[i]);
        assert_true(cursor_read(&other, "alice", text, &got) && got != numbers[i]);
        text[31] = text[31] == '0' ? '1' : '0';
        assert_true(cursor_read(&v, "alice", text, &got) && got != numbers[i]);
    }
}

static void what_is_none_is_not_read(void **state)
{
    static const char *const texts[] = {"",
                                        "12",
                                        "0123456789abcdef0123456789abcde",
                                        "0123456789abcdef0123456789abcdef0",
                                        "0123456789ABCDEF0123456789abcdef",
                                        "0123456789abcdef0123456789abcde "};
    const struct v1 v = {0};
    uint64_t got;

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        assert_false(cursor_read(&v, "alice", texts[i], &got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_comes_back_to_its_reader_only),
        cmocka_unit_test(what_is_none_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
