/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "fetch/frontmatter.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

static struct frontmatter fm;
static struct err err;

static int parse(const char *text)
{
    frontmatter_done(&fm);
    err = (struct err){0};
    return frontmatter_read(text, strlen(text), &fm, &err);
}

static int forget(void **state)
{
    frontmatter_done(&fm);
    return 0;
}

/* Reads a block in which the name is this plain scalar. */
static void read_name(const char *scalar)
{
    AUTO_FREE char *text = xasprintf("---\nname: %s\n---\n", scalar);
    assert_int_equal(parse(text), 0);
}

static void scalars_read_as_python_shows_them(void **state)
{
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"1", "1"},
        {"-7", "-7"},
        {"+7", "7"},
        {"0x1F", "31"},
        {"0b101", "5"},
        {"010", "8"},
        {"1_000", "1000"},
        {"1:30", "90"},
        {"1:30:15", "5415"},
        {"08", "08"},
        {"1.50", "1.5"},
        {".5", "0.5"},
        {"1.", "1.0"},
        {"1e3", "1e3"},
        {"1.0e+3", "1000.0"},
        {".inf", "inf"},
        {"-.INF", "-inf"},
        {".nan", "nan"},
        {"yes", "True"},
        {"On", "True"},
        {"TRUE", "True"},
        {"y", "y"},
        {"2024-01-31", "2024-01-31"},
        {"99999999999999999999", "99999999999999999999"},
        {"1.2.3", "1.2.3"},
        {"0x", "0x"},
        {"--1", "--1"},
        {"1:75", "1:75"},
        {"_1", "_1"},
    };
    static const char *const false_ones[] = {"",  "~",  "null", "no",  "Off", "false",
                                             "0", "-0", "0x0",  "0.0", "0b0", "00"};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        read_name(cases[i][0]);
        assert_non_null(fm.name);
        assert_string_equal(fm.name, cases[i][1]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(false_ones); i++) {
        read_name(false_ones[i]);
        assert_null(fm.name);
    }
}

static void the_block_ends_where_it_says(void **state)
{
    static const struct {
        const char *text, *name;
        size_t body;
    } cases[] = {
        {"", NULL, 0},
        {"text", NULL, 0},
        {"---", NULL, 0},
        {"---\n", NULL, 0},
        {"---\nname: x", NULL, 0},
        {"----\nname: x\n---\n", NULL, 0},
        {"---x\nname: x\n---\n", NULL, 0},
        {"---\n---", NULL, 7},
        {"---\nname: x\n---", "x", 15},
        {"---\nname: x\n---\nbody", "x", 16},
        {"---\nname: x\n---\n\n\nbody", "x", 18},
        {"--- \t\nname: x\n  ---\r\nbody", "x", 21},
        {"---\xe2\x80\xa8name: x\xe2\x80\xa8---\xe2\x80\xa8"
         "body",
         "x", 22},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(parse(cases[i].text), 0);
        assert_int_equal(fm.body, cases[i].body);
        assert_true(str_eq(fm.name, cases[i].name));
    }
}

static void three_keys_are_found_among_others(void **state)
{
    assert_int_equal(
        parse("---\nmeta: {name: a, list: [name, {name: b}]}\nname: &n 'x'\n? [k]\n: v\n"
              "display_name: *n\ndescription: !!str 5\n---\n"),
        0);
    assert_string_equal(fm.name, "x");
    assert_string_equal(fm.display_name, "x");
    assert_string_equal(fm.description, "5");
    assert_int_equal(parse("---\nname: a\nname: [1, 2]\n---\n"), 0);
    assert_null(fm.name);
    assert_int_equal(parse("---\n- name: a\n---\n"), 0);
    assert_null(fm.name);
}

static void what_breaks_it_is_told_with_its_line(void **state)
{
    static const char *const broken[] = {"a: [",         "a: b: c",    "a: *x",
                                         "a: !x y",      "a: \"\\0\"", "a: 1\n...\n--- b",
                                         "[a]\n...\n{}", "\x01"};
    for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
        char text[64];
        (void)snprintf(text, sizeof(text), "---\n%s\n---\n", broken[i]);
        assert_true(parse(text) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_true(str_starts(err.msg, "SKILL.md front matter is not valid YAML: line "));
    }
}

static void parts_are_counted(void **state)
{
    static char text[200000];
    size_t n = 0;
    for (unsigned depth = FRONTMATTER_DEPTH_MAX; depth <= FRONTMATTER_DEPTH_MAX + 1; depth++) {
        n = (size_t)snprintf(text, sizeof(text), "---\n");
        memset(text + n, '[', depth);
        memset(text + n + depth, ']', depth);
        (void)snprintf(text + n + 2 * depth, 16, "\n---\n");
        assert_int_equal(parse(text) < 0, depth > FRONTMATTER_DEPTH_MAX);
    }
    n = (size_t)snprintf(text, sizeof(text), "---\n");
    for (unsigned i = 0; i < FRONTMATTER_EVENTS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "- a\n");
    (void)snprintf(text + n, sizeof(text) - n, "---\n");
    assert_true(parse(text) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    for (unsigned anchors = FRONTMATTER_ANCHORS_MAX; anchors <= FRONTMATTER_ANCHORS_MAX + 1;
         anchors++) {
        n = (size_t)snprintf(text, sizeof(text), "---\n");
        for (unsigned i = 0; i < anchors; i++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "- &a%u x\n", i);
        (void)snprintf(text + n, sizeof(text) - n, "---\n");
        assert_int_equal(parse(text) < 0, anchors > FRONTMATTER_ANCHORS_MAX);
    }
}

static void what_is_written_reads_the_same(void **state)
{
    static const char hard[] = "q\" b\\ t\t n\n r\r d\x7f c\xc2\x85 l\xe2\x80\xa8 f\xef\xbf\xbf "
                               "z\xef\xbb\xbf e\xf0\x9f\x98\x80 : # - {";
    char *text = (char *)(uintptr_t)hard;
    const struct frontmatter in = {.name = (char *)(uintptr_t) "no",
                                   .description = text,
                                   .display_name = (char *)(uintptr_t) " \n"};
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, 4096);
    assert_int_equal(frontmatter_write(&in, "---\nbody", 8, &out), 0);
    assert_int_equal(parse(out.data), 0);
    assert_string_equal(fm.name, "no");
    assert_null(fm.display_name);
    assert_string_equal(fm.description, hard);
    assert_string_equal(out.data + fm.body, "---\nbody");
    buf_reset(&out);
    const struct frontmatter none = {0};
    assert_int_equal(frontmatter_write(&none, "body", 4, &out), 0);
    assert_string_equal(out.data, "body");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_read_as_python_shows_them),
        cmocka_unit_test_teardown(the_block_ends_where_it_says, forget),
        cmocka_unit_test_teardown(three_keys_are_found_among_others, forget),
        cmocka_unit_test_teardown(what_breaks_it_is_told_with_its_line, forget),
        cmocka_unit_test_teardown(parts_are_counted, forget),
        cmocka_unit_test_teardown(what_is_written_reads_the_same, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
