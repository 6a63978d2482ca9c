/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/coerce.h"

/* The tables below were measured on the reference implementation (pydantic 2.13). Where we differ
 * on purpose, a comment says so. */

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return v;
}

/* clang-format off */
static const struct {
    const char *json;
    enum issue issue;
    int64_t value;
} ints[] = {
    {"0", ISSUE_NONE, 0}, {"1", ISSUE_NONE, 1}, {"-1", ISSUE_NONE, -1},
    {"true", ISSUE_NONE, 1}, {"false", ISSUE_NONE, 0},
    {"999.0", ISSUE_NONE, 999}, {"-0.0", ISSUE_NONE, 0}, {"1e3", ISSUE_NONE, 1000}, {"1e18", ISSUE_NONE, 1000000000000000000},
    {"9223372036854774000.0", ISSUE_NONE, 9223372036854773760},
    {"1.5", ISSUE_INT_FRACTION, 0}, {"999.5", ISSUE_INT_FRACTION, 0}, {"-0.5", ISSUE_INT_FRACTION, 0},
    {"9.3e18", ISSUE_INT_SIZE, 0}, {"-9.3e18", ISSUE_INT_SIZE, 0}, {"1e30", ISSUE_INT_SIZE, 0},
    {"9223372036854775807.0", ISSUE_INT_SIZE, 0}, {"-9223372036854775808.0", ISSUE_INT_SIZE, 0},
    {"9223372036854775807", ISSUE_NONE, INT64_MAX}, {"-9223372036854775808", ISSUE_NONE, INT64_MIN},
    {"null", ISSUE_INT_TYPE, 0}, {"[]", ISSUE_INT_TYPE, 0}, {"[1]", ISSUE_INT_TYPE, 0}, {"{}", ISSUE_INT_TYPE, 0},

    {"\"12\"", ISSUE_NONE, 12}, {"\" 12 \"", ISSUE_NONE, 12}, {"\"\\t12\\n\"", ISSUE_NONE, 12}, {"\"\\u000b12\"", ISSUE_NONE, 12},
    {"\"\\u00a012\\u00a0\"", ISSUE_NONE, 12}, {"\"\\u300012\"", ISSUE_NONE, 12}, {"\"\\u008512\\u2028\"", ISSUE_NONE, 12},
    {"\"\\u001c12\"", ISSUE_INT_PARSING, 0}, {"\"12\\u200b\"", ISSUE_INT_PARSING, 0},
    {"\"12.0\"", ISSUE_NONE, 12}, {"\"12.00\"", ISSUE_NONE, 12}, {"\"-12.0\"", ISSUE_NONE, -12}, {"\"+12.0\"", ISSUE_NONE, 12},
    {"\"0.0\"", ISSUE_NONE, 0}, {"\"-0.0\"", ISSUE_NONE, 0}, {"\"12.0 \"", ISSUE_NONE, 12},
    {"\"12.\"", ISSUE_INT_PARSING, 0}, {"\".0\"", ISSUE_INT_PARSING, 0}, {"\"12.5\"", ISSUE_INT_PARSING, 0},
    {"\"12 .0\"", ISSUE_INT_PARSING, 0}, {"\"1.0.0\"", ISSUE_INT_PARSING, 0}, {"\"12.0e0\"", ISSUE_INT_PARSING, 0},
    {"\"1_000\"", ISSUE_NONE, 1000}, {"\"1_0_0\"", ISSUE_NONE, 100}, {"\"1_000.0\"", ISSUE_NONE, 1000}, {"\"0_7\"", ISSUE_NONE, 7},
    {"\"+00_7\"", ISSUE_NONE, 7}, {"\"-1_0\"", ISSUE_NONE, -10},
    {"\"1__0\"", ISSUE_INT_PARSING, 0}, {"\"_1\"", ISSUE_INT_PARSING, 0}, {"\"1_\"", ISSUE_INT_PARSING, 0},
    {"\"+_1\"", ISSUE_INT_PARSING, 0}, {"\"_\"", ISSUE_INT_PARSING, 0}, {"\"1_.0\"", ISSUE_INT_PARSING, 0},
    {"\"1._0\"", ISSUE_INT_PARSING, 0}, {"\"12.0_0\"", ISSUE_INT_PARSING, 0}, {"\"0_\"", ISSUE_INT_PARSING, 0},
    {"\"+7\"", ISSUE_NONE, 7}, {"\"-5\"", ISSUE_NONE, -5}, {"\"-0\"", ISSUE_NONE, 0}, {"\"0012\"", ISSUE_NONE, 12}, {"\"-0012\"", ISSUE_NONE, -12},
    {"\"+-5\"", ISSUE_INT_PARSING, 0}, {"\"--5\"", ISSUE_INT_PARSING, 0}, {"\"- 5\"", ISSUE_INT_PARSING, 0}, {"\"+\"", ISSUE_INT_PARSING, 0},
    {"\"1e3\"", ISSUE_INT_PARSING, 0}, {"\"0x10\"", ISSUE_INT_PARSING, 0}, {"\"0b1\"", ISSUE_INT_PARSING, 0},
    {"\"\"", ISSUE_INT_PARSING, 0}, {"\"  \"", ISSUE_INT_PARSING, 0}, {"\"abc\"", ISSUE_INT_PARSING, 0}, {"\"True\"", ISSUE_INT_PARSING, 0},
    {"\"inf\"", ISSUE_INT_PARSING, 0}, {"\"nan\"", ISSUE_INT_PARSING, 0}, {"\"1,000\"", ISSUE_INT_PARSING, 0}, {"\"1 2\"", ISSUE_INT_PARSING, 0},
    {"\"\\uff11\\uff12\"", ISSUE_INT_PARSING, 0}, {"\"\\u0663\"", ISSUE_INT_PARSING, 0}, {"\"12\\u0000\"", ISSUE_INT_PARSING, 0},
    {"\"9223372036854775807\"", ISSUE_NONE, INT64_MAX}, {"\"-9223372036854775808\"", ISSUE_NONE, INT64_MIN},
    /* Beyond 64 bits the reference has big integers; here the field's own maximum refuses them. */
    {"\"9223372036854775808\"", ISSUE_NONE, INT64_MAX}, {"\"99999999999999999999.0\"", ISSUE_NONE, INT64_MAX},
    {"\"-99999999999999999999999\"", ISSUE_NONE, INT64_MIN},
    /* Accidents of the reference ("0__0" is 0 and "0-1" is -1 there). */
    {"\"0__0\"", ISSUE_INT_PARSING, 0}, {"\"0-1\"", ISSUE_INT_PARSING, 0},
};

static const struct {
    const char *json;
    enum issue issue;
    double value;
} reals[] = {
    {"0", ISSUE_NONE, 0}, {"1", ISSUE_NONE, 1}, {"true", ISSUE_NONE, 1}, {"false", ISSUE_NONE, 0}, {"1.5", ISSUE_NONE, 1.5}, {"-2e-3", ISSUE_NONE, -0.002},
    {"null", ISSUE_REAL_TYPE, 0}, {"[]", ISSUE_REAL_TYPE, 0}, {"{}", ISSUE_REAL_TYPE, 0},
    {"\"1.5\"", ISSUE_NONE, 1.5}, {"\" 1.5 \"", ISSUE_NONE, 1.5}, {"\"\\u00a01.5\"", ISSUE_NONE, 1.5}, {"\"1e3\"", ISSUE_NONE, 1000}, {"\"1E3\"", ISSUE_NONE, 1000},
    {"\".5\"", ISSUE_NONE, 0.5}, {"\"5.\"", ISSUE_NONE, 5}, {"\"+1.5\"", ISSUE_NONE, 1.5}, {"\"-1.5\"", ISSUE_NONE, -1.5}, {"\"-.5\"", ISSUE_NONE, -0.5},
    {"\"1_000.5\"", ISSUE_NONE, 1000.5}, {"\"1_.5\"", ISSUE_NONE, 1.5}, {"\"1e5_0\"", ISSUE_NONE, 1e50}, {"\"1e05\"", ISSUE_NONE, 100000},
    {"\"1.e5\"", ISSUE_NONE, 100000}, {"\"1e-400\"", ISSUE_NONE, 0}, {"\"00.1\"", ISSUE_NONE, 0.1},
    {"\"1__0\"", ISSUE_REAL_PARSING, 0}, {"\"_1\"", ISSUE_REAL_PARSING, 0}, {"\"1_\"", ISSUE_REAL_PARSING, 0}, {"\"1.5_\"", ISSUE_REAL_PARSING, 0},
    {"\"\"", ISSUE_REAL_PARSING, 0}, {"\"  \"", ISSUE_REAL_PARSING, 0}, {"\"abc\"", ISSUE_REAL_PARSING, 0}, {"\".\"", ISSUE_REAL_PARSING, 0}, {"\"e5\"", ISSUE_REAL_PARSING, 0},
    {"\"0x10\"", ISSUE_REAL_PARSING, 0}, {"\"0x1p3\"", ISSUE_REAL_PARSING, 0}, {"\"1.5f\"", ISSUE_REAL_PARSING, 0}, {"\"1e\"", ISSUE_REAL_PARSING, 0},
    {"\"1e+\"", ISSUE_REAL_PARSING, 0}, {"\"1 2\"", ISSUE_REAL_PARSING, 0}, {"\"- 1\"", ISSUE_REAL_PARSING, 0}, {"\"\\u001c1.5\"", ISSUE_REAL_PARSING, 0},
    {"\"1.5\\u0000\"", ISSUE_REAL_PARSING, 0}, {"\"\\uff11.5\"", ISSUE_REAL_PARSING, 0}, {"\"+\"", ISSUE_REAL_PARSING, 0}, {"\"nan(1)\"", ISSUE_REAL_PARSING, 0},
    /* The reference lets infinity and NaN pass as a number of processors. */
    {"\"inf\"", ISSUE_FINITE, 0}, {"\"-Infinity\"", ISSUE_FINITE, 0}, {"\"NaN\"", ISSUE_FINITE, 0}, {"\"1e400\"", ISSUE_FINITE, 0},
};

static const struct {
    const char *json;
    enum issue issue;
    bool value;
} bools[] = {
    {"true", ISSUE_NONE, true}, {"false", ISSUE_NONE, false}, {"1", ISSUE_NONE, true}, {"0", ISSUE_NONE, false},
    {"1.0", ISSUE_NONE, true}, {"0.0", ISSUE_NONE, false}, {"-0.0", ISSUE_NONE, false},
    {"2", ISSUE_BOOL_PARSING, false}, {"-1", ISSUE_BOOL_PARSING, false}, {"2.0", ISSUE_BOOL_PARSING, false},
    {"0.5", ISSUE_BOOL_TYPE, false}, {"1e30", ISSUE_BOOL_TYPE, false}, {"null", ISSUE_BOOL_TYPE, false}, {"[]", ISSUE_BOOL_TYPE, false}, {"{}", ISSUE_BOOL_TYPE, false},
    {"\"true\"", ISSUE_NONE, true}, {"\"TRUE\"", ISSUE_NONE, true}, {"\"yes\"", ISSUE_NONE, true}, {"\"On\"", ISSUE_NONE, true},
    {"\"t\"", ISSUE_NONE, true}, {"\"Y\"", ISSUE_NONE, true}, {"\"1\"", ISSUE_NONE, true},
    {"\"false\"", ISSUE_NONE, false}, {"\"No\"", ISSUE_NONE, false}, {"\"off\"", ISSUE_NONE, false}, {"\"F\"", ISSUE_NONE, false},
    {"\"n\"", ISSUE_NONE, false}, {"\"0\"", ISSUE_NONE, false},
    {"\" true\"", ISSUE_BOOL_PARSING, false}, {"\"true \"", ISSUE_BOOL_PARSING, false}, {"\"\"", ISSUE_BOOL_PARSING, false}, {"\"2\"", ISSUE_BOOL_PARSING, false},
    {"\"01\"", ISSUE_BOOL_PARSING, false}, {"\"1.0\"", ISSUE_BOOL_PARSING, false}, {"\"enable\"", ISSUE_BOOL_PARSING, false}, {"\"true\\u0000\"", ISSUE_BOOL_PARSING, false},
};

static const struct {
    const char *json;
    enum issue issue;
    int value;
} modes[] = {
    {"\"none\"", ISSUE_NONE, 0}, {"\"ro\"", ISSUE_NONE, 1}, {"\"rw\"", ISSUE_NONE, 2},
    {"\"RW\"", ISSUE_ENUM, 0}, {"\" rw\"", ISSUE_ENUM, 0}, {"\"\"", ISSUE_ENUM, 0}, {"\"rw\\u0000\"", ISSUE_ENUM, 0},
    {"null", ISSUE_ENUM, 0}, {"1", ISSUE_ENUM, 0}, {"true", ISSUE_ENUM, 0}, {"[]", ISSUE_ENUM, 0}, {"{}", ISSUE_ENUM, 0},
};

static const struct {
    const char *json;
    enum issue issue;
    bool zoned;
    int64_t value; /* microseconds */
} times[] = {
    {"\"1970-01-01T00:00:00Z\"", ISSUE_NONE, true, 0},
    {"\"2026-11-15T06:58:07.105178Z\"", ISSUE_NONE, true, 1794725887105178},
    {"\"2026-11-15 06:58:07+00:00\"", ISSUE_NONE, true, 1794725887000000},
    {"\"2026-11-15_06:58:07z\"", ISSUE_NONE, true, 1794725887000000},
    {"\"2026-11-15t06:58:07.1234567891+05:30\"", ISSUE_NONE, true, 1794706087123456},
    {"\"2026-11-15T06:58:07.1-0530\"", ISSUE_NONE, true, 1794745687100000},
    {"\"2026-11-15T06:58Z\"", ISSUE_NONE, true, 1794725880000000},
    {"\"2024-02-29T23:59:59,5Z\"", ISSUE_NONE, true, 1709251199500000},
    {"\"2000-03-01T00:00:00Z\"", ISSUE_NONE, true, 951868800000000},
    {"\"1900-03-01T00:00:00Z\"", ISSUE_NONE, true, -2203891200000000},
    {"\"0001-01-01T00:00:00Z\"", ISSUE_NONE, true, -62135596800000000},
    {"\"9999-12-31T23:59:59Z\"", ISSUE_NONE, true, 253402300799000000},
    {"\"2026-11-15T06:58:07\"", ISSUE_NONE, false, 1794725887000000},
    {"\"2026-11-15\"", ISSUE_NONE, false, 1794700800000000},
    {"1763189887", ISSUE_NONE, true, 1763189887000000}, {"1763189887.5", ISSUE_NONE, true, 1763189887500000},
    {"1763189887000", ISSUE_NONE, true, 1763189887000000}, {"-1", ISSUE_NONE, true, -1000000},
    {"1e20", ISSUE_TIME_PARSING, false, 0},
    {"true", ISSUE_TIME_TYPE, false, 0}, {"null", ISSUE_TIME_TYPE, false, 0}, {"[]", ISSUE_TIME_TYPE, false, 0},
    {"\"\"", ISSUE_TIME_PARSING, false, 0}, {"\"abc\"", ISSUE_TIME_PARSING, false, 0}, {"\" 2026-11-15T06:58:07Z\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-02-29T00:00:00Z\"", ISSUE_TIME_PARSING, false, 0}, {"\"1900-02-29T00:00:00Z\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-11-15T24:00:00Z\"", ISSUE_TIME_PARSING, false, 0}, {"\"2026-11-15T23:59:60Z\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-13-15T00:00:00Z\"", ISSUE_TIME_PARSING, false, 0}, {"\"0000-01-01T00:00:00Z\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-11-15T06:58:07+24:00\"", ISSUE_TIME_PARSING, false, 0}, {"\"2026-11-15T06:58:07+01:60\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-11-15T06:58:07-05\"", ISSUE_TIME_PARSING, false, 0}, {"\"2026-11-15T06:58:07 +01:00\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-11-15T06:58:07Zx\"", ISSUE_TIME_PARSING, false, 0}, {"\"2026-11-15T06:58:07Z\\u0000\"", ISSUE_TIME_PARSING, false, 0},
    {"\"2026-11-15T06:58:07.Z\"", ISSUE_TIME_PARSING, false, 0},
};
/* clang-format on */

static void integers_are_as_lenient_as_clients_know_them(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(ints); i++) {
        AUTO(json) struct json *v = parse(ints[i].json);
        int64_t value = 42;
        enum issue issue = coerce_int(v, &value);
        if (issue != ints[i].issue || value != (issue ? 42 : ints[i].value))
            fail_msg("%s: %s %lld", ints[i].json, issue_type(issue), (long long)value);
    }
}

/* A string of `n` times that digit and a last one. */
static enum issue coerce_digits(char digit, int n, char last, int64_t *ret)
{
    char text[4400];

    memset(text, digit, sizeof(text));
    text[0] = text[n + 2] = '"';
    text[n + 1] = last;
    text[n + 3] = '\0';
    AUTO(json) struct json *v = parse(text);
    return coerce_int(v, ret);
}

static void integers_of_too_many_digits_are_refused(void **state)
{
    int64_t value = 42;

    assert_int_equal(coerce_digits('1', 4299, '1', &value), ISSUE_NONE);
    assert_int_equal(value, INT64_MAX);
    assert_int_equal(coerce_digits('1', 4300, '1', &value), ISSUE_INT_SIZE);
    assert_int_equal(coerce_digits('0', 4304, '7', &value), ISSUE_NONE);
    assert_int_equal(value, 7);
}

static void reals_are_as_lenient_as_clients_know_them(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(reals); i++) {
        AUTO(json) struct json *v = parse(reals[i].json);
        double value = 42;
        enum issue issue = coerce_real(v, &value);
        double wanted = issue ? 42 : reals[i].value;
        if (issue != reals[i].issue || fabs(value - wanted) > fabs(wanted) * 1e-15)
            fail_msg("%s: %s %g", reals[i].json, issue_type(issue), value);
    }
}

static void booleans_are_as_lenient_as_clients_know_them(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(bools); i++) {
        AUTO(json) struct json *v = parse(bools[i].json);
        for (int preset = 0; preset < 2; preset++) {
            bool value = preset;
            enum issue issue = coerce_bool(v, &value);
            if (issue != bools[i].issue || value != (issue ? (bool)preset : bools[i].value))
                fail_msg("%s: %s %d", bools[i].json, issue_type(issue), value);
        }
    }
}

static void enums_are_exact(void **state)
{
    static const char *const names[] = {"none", "ro", "rw", NULL};

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        AUTO(json) struct json *v = parse(modes[i].json);
        int value = 42;
        enum issue issue = coerce_enum(v, names, &value);
        if (issue != modes[i].issue || value != (issue ? 42 : modes[i].value))
            fail_msg("%s: %s %d", modes[i].json, issue_type(issue), value);
    }
}

static void times_are_read_to_the_microsecond(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        AUTO(json) struct json *v = parse(times[i].json);
        int64_t value = 42;
        bool zoned = false;
        enum issue issue = coerce_time(v, &value, &zoned);
        if (issue != times[i].issue || value != (issue ? 42 : times[i].value) ||
            zoned != times[i].zoned)
            fail_msg("%s: %s %lld %d", times[i].json, issue_type(issue), (long long)value, zoned);
    }
}

static void truth_is_that_of_python(void **state)
{
    static const char *const no[] = {"null", "false", "0", "0.0", "-0.0", "\"\"", "[]", "{}"};
    static const char *const yes[] = {"true",  "1",           "-1",  "0.5",
                                      "\"0\"", "\"\\u0000\"", "[0]", "{\"a\":null}"};
    assert_false(coerce_truth(NULL));
    for (size_t i = 0; i < ARRAY_SIZE(no); i++) {
        AUTO(json) struct json *v = parse(no[i]);
        assert_false(coerce_truth(v));
    }
    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        AUTO(json) struct json *v = parse(yes[i]);
        assert_true(coerce_truth(v));
    }
}

static void every_issue_has_a_type(void **state)
{
    for (int i = ISSUE_NONE + 1; i < ISSUE_MAX; i++) {
        assert_non_null(issue_type((enum issue)i));
        assert_true(issue_type((enum issue)i)[0] != '\0');
        assert_non_null(issue_text((enum issue)i));
    }
}

static void sentences_are_those_of_the_wire(void **state)
{
    assert_string_equal(issue_text(ISSUE_INT_FRACTION),
                        "Input should be a valid integer, got a number with a fractional part");
    assert_string_equal(issue_text(ISSUE_INT_TYPE), "Input should be a valid integer");
    assert_string_equal(issue_text(ISSUE_INT_PARSING),
                        "Input should be a valid integer, unable to parse string as an integer");
    assert_string_equal(issue_text(ISSUE_REAL_PARSING),
                        "Input should be a valid number, unable to parse string as a number");
    assert_string_equal(issue_text(ISSUE_BOOL_PARSING),
                        "Input should be a valid boolean, unable to interpret input");
    assert_string_equal(issue_text(ISSUE_MISSING), "Field required");
    assert_string_equal(issue_text(ISSUE_EXTRA), "Extra inputs are not permitted");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_as_lenient_as_clients_know_them),
        cmocka_unit_test(integers_of_too_many_digits_are_refused),
        cmocka_unit_test(reals_are_as_lenient_as_clients_know_them),
        cmocka_unit_test(booleans_are_as_lenient_as_clients_know_them),
        cmocka_unit_test(enums_are_exact),
        cmocka_unit_test(times_are_read_to_the_microsecond),
        cmocka_unit_test(truth_is_that_of_python),
        cmocka_unit_test(every_issue_has_a_type),
        cmocka_unit_test(sentences_are_those_of_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
