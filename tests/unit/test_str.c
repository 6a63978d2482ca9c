/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <locale.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

static void null_equals_only_null(void **state)
{
    assert_true(str_eq(NULL, NULL));
    assert_false(str_eq(NULL, ""));
    assert_false(str_eq("", NULL));
    assert_true(str_eq("a", "a"));
    assert_false(str_eq("a", "b"));
}

static void prefixes_and_suffixes(void **state)
{
    assert_true(str_starts("hello", "he"));
    assert_true(str_starts("hello", ""));
    assert_false(str_starts("he", "hello"));
    assert_true(str_ends("hello", "lo"));
    assert_true(str_ends("hello", ""));
    assert_false(str_ends("lo", "hello"));
    assert_false(str_ends("hello", "la"));
}

static void unsigned_numbers_are_whole_and_bounded(void **state)
{
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } rows[] = {
        {"0", 0, 0},
        {"007", 0, 7},
        {"18446744073709551615", 0, UINT64_MAX},
        {"18446744073709551616", -ERANGE, 0},
        {"99999999999999999999999", -ERANGE, 0},
        {"99999999999999999999999x", -EINVAL, 0},
        {"", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t value = 42;
        assert_int_equal(str_to_u64(rows[i].text, &value), rows[i].r);
        assert_true(value == (rows[i].r < 0 ? 42 : rows[i].value));
    }
}

static void signed_numbers_reach_both_ends(void **state)
{
    int64_t value = 42;

    assert_int_equal(str_to_i64("-9223372036854775808", &value), 0);
    assert_true(value == INT64_MIN);
    assert_int_equal(str_to_i64("9223372036854775807", &value), 0);
    assert_true(value == INT64_MAX);
    assert_int_equal(str_to_i64("-9223372036854775809", &value), -ERANGE);
    assert_int_equal(str_to_i64("9223372036854775808", &value), -ERANGE);
    assert_int_equal(str_to_i64("-", &value), -EINVAL);
    assert_int_equal(str_to_i64("--1", &value), -EINVAL);
    assert_int_equal(str_to_i64("", &value), -EINVAL);
    assert_int_equal(str_to_i64("-0", &value), 0);
    assert_true(value == 0);
}

static void real_numbers_are_plain_decimals(void **state)
{
    static const char *const bad[] = {"",   " 1",  "1 ",  "inf", "nan",   "0x1p3", ".",   "e5",
                                      "1e", "1e+", "1,5", "-",   "1.2.3", "1e5.0", "+-1", "1f"};
    double value = 42;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(str_to_double(bad[i], &value), -EINVAL);
    assert_int_equal(str_to_double("1e400", &value), -ERANGE);
    assert_true(value == 42);
    assert_int_equal(str_to_double("1.5", &value), 0);
    assert_true(value == 1.5);
    assert_int_equal(str_to_double("-.5e1", &value), 0);
    assert_true(value == -5);
    assert_int_equal(str_to_double("+3.", &value), 0);
    assert_true(value == 3);
    assert_int_equal(str_to_double("1e-400", &value), 0);
    assert_true(value == 0);
}

static void real_numbers_ignore_the_locale(void **state)
{
    double value = 0;

    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        print_message("skipped: that locale is not installed\n"), skip();
    int r = str_to_double("1.5", &value);
    (void)setlocale(LC_ALL, "C");
    assert_int_equal(r, 0);
    assert_true(value == 1.5);
}

static void copies_fit_or_fail(void **state)
{
    char dst[4] = "old";

    assert_int_equal(str_copy(dst, sizeof(dst), "abc"), 0);
    assert_string_equal(dst, "abc");
    assert_int_equal(str_copy(dst, sizeof(dst), "abcd"), -ENAMETOOLONG);
    assert_string_equal(dst, "");
    assert_int_equal(str_fmt(dst, sizeof(dst), "%d", 123), 0);
    assert_string_equal(dst, "123");
    assert_int_equal(str_fmt(dst, sizeof(dst), "%d", 1234), -ENAMETOOLONG);
    assert_string_equal(dst, "");
}

static void strip_is_pythons(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"", ""},
        {"a", "a"},
        {" \t\r\n\v\f a b \x1c\x1d\x1e\x1f", "a b"},
        {"\xc2\xa0\xe3\x80\x80x\xe2\x80\xa8\xc2\x85", "x"},
        {" \xe2\x80\x83 ", ""},
        {"\xe2\x80\x8bx\xe2\x80\x8b", "\xe2\x80\x8bx\xe2\x80\x8b"}, /* zero width: no blank */
        {"\xef\xbb\xbfx", "\xef\xbb\xbfx"},
        {"\xa0x\x85", "\xa0x\x85"}, /* not UTF-8, so not those blanks */
        {"x\xc3\xa0", "x\xc3\xa0"}, /* ends in a byte that a blank ends in, too */
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *out = str_strip(rows[i].in);
        assert_string_equal(out, rows[i].out);
    }
}

static const struct {
    const char *bytes;
    int next;
    bool incomplete;
} utf8_rows[] = {
    {"a", 1, false},
    {"\x7f", 1, false},
    {"\xc2\x80", 2, false},
    {"\xe0\xa0\x80", 3, false},
    {"\xed\x9f\xbf", 3, false},
    {"\xee\x80\x80", 3, false},
    {"\xf0\x90\x80\x80", 4, false},
    {"\xf4\x8f\xbf\xbf", 4, false},
    {"\x80", -1, false},
    {"\xbf", -1, false},
    {"\xc0\x80", -1, false}, /* overlong */
    {"\xc1\xbf", -1, false},
    {"\xe0\x80\x80", -1, false},
    {"\xe0\x9f\xbf", -1, false},
    {"\xf0\x8f\xbf\xbf", -1, false},
    {"\xed\xa0\x80", -1, false}, /* a surrogate */
    {"\xf4\x90\x80\x80", -1, false},
    {"\xf5\x80\x80\x80", -1, false},
    {"\xff", -1, false},
    {"\xc3", -1, true},
    {"\xe2\x82", -2, true},
    {"\xe2\x82z", -2, false},
    {"\xf0\x9f\x98", -3, true},
    {"\xf0\x9f\x98z", -3, false},
    {"\xf0\x9fz", -2, false},
    {"\xe0", -1, true},
};

static void characters_and_maximal_subparts(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(utf8_rows); i++) {
        const char *s = utf8_rows[i].bytes;
        bool incomplete;
        assert_int_equal(utf8_next(s, strlen(s), &incomplete), utf8_rows[i].next);
        assert_int_equal(incomplete, utf8_rows[i].incomplete);
        assert_int_equal(utf8_valid(s, strlen(s)), utf8_rows[i].next > 0);
    }
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\0\xe2\x82\xac", 5));
    assert_false(utf8_valid("\xe2\x82\xac", 2));
}

static void a_boundary_leaves_out_only_an_unfinished_character(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {
        {"", 0},
        {"abc", 3},
        {"ab\xc3", 2},
        {"ab\xe2\x82", 2},
        {"ab\xe2\x82\xac", 5},
        {"ab\xf0\x9f\x98", 2},
        {"ab\xf0\x9f", 2},
        {"ab\xf0\x9f\x98\x80", 6},
        {"ab\x80\x80\x80", 5}, /* no lead byte: all of their own */
        {"ab\xe0\x80", 4},     /* can never become a character */
        {"ab\xff", 3},
        {"\x80\x80\x80\x80", 4},
        {"\xf0\x9f\x98\x80\x80", 5},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(utf8_boundary(rows[i].bytes, strlen(rows[i].bytes)), rows[i].len);
}

static void ids_are_refused_never_repaired(void **state)
{
    char max[66];

    memset(max, 'a', 65);
    max[65] = '\0';
    assert_false(id_valid(max));
    max[64] = '\0';
    assert_true(id_valid(max));
    assert_true(id_valid("a"));
    assert_true(id_valid("0-_Z"));
    assert_false(id_valid(NULL));
    assert_false(id_valid(""));
    assert_false(id_valid("-a"));
    assert_false(id_valid("_a"));
    assert_false(id_valid("a.b"));
    assert_false(id_valid("a/b"));
    assert_false(id_valid(".."));
    assert_false(id_valid("a\n"));
    assert_false(id_valid("\xc3\xa9"));
}

static void random_ids_are_hex_and_differ(void **state)
{
    char a[17], b[17];

    id_random(a);
    id_random(b);
    assert_int_equal(strlen(a), 16);
    assert_int_equal(strspn(a, "0123456789abcdef"), 16);
    assert_string_not_equal(a, b);
    assert_true(id_valid(a));
}

static void the_hash_is_fnv_1a(void **state)
{
    assert_true(str_hash("") == 0xcbf29ce484222325ULL);
    assert_true(str_hash("a") == 0xaf63dc4c8601ec8cULL);
    assert_true(str_hash("foobar") == 0x85944171f73967e8ULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_equals_only_null),
        cmocka_unit_test(prefixes_and_suffixes),
        cmocka_unit_test(unsigned_numbers_are_whole_and_bounded),
        cmocka_unit_test(signed_numbers_reach_both_ends),
        cmocka_unit_test(real_numbers_are_plain_decimals),
        cmocka_unit_test(real_numbers_ignore_the_locale),
        cmocka_unit_test(copies_fit_or_fail),
        cmocka_unit_test(strip_is_pythons),
        cmocka_unit_test(characters_and_maximal_subparts),
        cmocka_unit_test(a_boundary_leaves_out_only_an_unfinished_character),
        cmocka_unit_test(ids_are_refused_never_repaired),
        cmocka_unit_test(random_ids_are_hex_and_differ),
        cmocka_unit_test(the_hash_is_fnv_1a),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
