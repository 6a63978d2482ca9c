/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/regex.h"
#include "base/str.h"

static bool matches(struct regex *r, const char *text, size_t len)
{
    bool found = false;
    int32_t c;
    regex_begin(r);
    for (size_t at = 0; at < len && !found;) {
        at += regex_char(text + at, len - at, &c);
        found = regex_feed(r, c);
    }
    return found || regex_feed(r, REGEX_END);
}

static struct regex *make(const char *pattern, unsigned flags)
{
    struct regex *r = NULL;
    struct err err = {0};
    if (regex_new(pattern, strlen(pattern), flags, &r, &err) < 0)
        fail_msg("%s: %s", pattern, err.msg);
    return r;
}

static void patterns_match_what_they_say(void **state)
{
    static const struct {
        const char *pattern, *yes, *no;
    } cases[] = {
        {"abc", "xxabcxx", "abxc"},
        {"^abc", "abcd", "xabc"},
        {"abc$", "xabc", "abcx"},
        {"^$", "", "x"},
        {"a.c", "abc", "ac"},
        {"a.c",
         "a\xc3\xa4"
         "c",
         "a\xc3"},
        {"^.$", "\xf0\x9f\x93\xa6", "ab"},
        {"ab*c", "ac", "adc"},
        {"ab+c", "abbbc", "ac"},
        {"^ab?c$", "abc", "abbc"},
        {"^a{3}$", "aaa", "aaaa"},
        {"^a{2,3}$", "aa", "a"},
        {"^a{2,3}$", "aaa", "aaaa"},
        {"^a{2,}$", "aaaaaa", "a"},
        {"^a{0,2}$", "", "aaa"},
        {"^(ab){2}$", "abab", "ab"},
        {"^(a|b|cd)+$", "abcdba", "abc"},
        {"cat|dog", "hotdog", "do"},
        {"^(?:x|y)z$", "yz", "xyz"},
        {"[a-c]x", "bx", "dx"},
        {"[^a-c]x", "dx", "bx"},
        {"[]x]y", "]y", "zy"},
        {"[a-]y", "-y", "by"},
        {"[\\d_]+$", "a1_2", "1a"},
        {"[\\D]", "a", "5"},
        {"^[\xc3\xa4-\xc3\xbc]$", "\xc3\xb6", "o"},
        {"\\d+", "abc123", "abc"},
        {"^\\D+$", "abc", "a1"},
        {"^\\w+$", "a_1", "a b"},
        {"\\W", "a b", "ab"},
        {"a\\sb", "a\tb", "ab"},
        {"^\\S+$", "ab", "a b"},
        {"\\bcat\\b", "a cat!", "concat"},
        {"\\bcat\\b", "cat", "cats"},
        {"a\\.b", "a.b", "axb"},
        {"\\(x\\)", "(x)", "x"},
        {"a\\tb", "a\tb", "atb"},
        {"a{,2}", "a{,2}", "aa"},
        {"{", "{", "}"},
        {"a|", "zzz", NULL},
        {"()", "", NULL},
        {"(a*)*b", "aaab", "aaac"},
        {"x*?y", "xxy", "xx"},
        {"\xff", "\xfe", "a"}, /* a broken byte is like any other */
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(regex) struct regex *r = make(cases[i].pattern, 0);
        if (!matches(r, cases[i].yes, strlen(cases[i].yes)))
            fail_msg("'%s' does not match '%s'", cases[i].pattern, cases[i].yes);
        if (cases[i].no != NULL && matches(r, cases[i].no, strlen(cases[i].no)))
            fail_msg("'%s' matches '%s'", cases[i].pattern, cases[i].no);
    }
}

static void case_can_be_ignored(void **state)
{
    AUTO(regex) struct regex *r = make("error: [a-c]", REGEX_IGNORE_CASE);
    AUTO(regex) struct regex *not_b = make("^[^b]$", REGEX_IGNORE_CASE);
    assert_true(matches(r, "ERROR: B", 8));
    assert_true(matches(r, "Error: a", 8));
    assert_false(matches(r, "error: d", 8));
    assert_false(matches(not_b, "B", 1));
    assert_true(matches(not_b, "c", 1));
}

static void a_literal_means_itself(void **state)
{
    AUTO(regex) struct regex *r = make("a.*[b](", REGEX_LITERAL);
    assert_true(matches(r, "xa.*[b](y", 9));
    assert_false(matches(r, "aabb", 4));
    struct regex *end = NULL;
    assert_int_equal(regex_new("\\", 1, REGEX_LITERAL, &end, NULL), 0);
    assert_true(matches(end, "\\", 1));
    regex_free(end);
}

static void bad_patterns_are_told(void **state)
{
    static const struct {
        const char *pattern, *want;
    } cases[] = {
        {"", "pattern: it is empty"},
        {"(a", "pattern: ( is not closed"},
        {"a)", "pattern: there is a ) too many"},
        {"[a", "pattern: [ is not closed"},
        {"*a", "pattern: there is nothing to repeat"},
        {"a**", "pattern: there is nothing to repeat"},
        {"a\\", "pattern: it ends with a backslash"},
        {"(a)\\1", "pattern: it has a backslash before a letter or digit that means nothing here"},
        {"\\pL", "pattern: it has a backslash before a letter or digit that means nothing here"},
        {"(?=a)", "pattern: groups that begin with (? are not known, except (?:"},
        {"[z-a]", "pattern: it has a range with its ends the wrong way round"},
        {"a{3,2}", "pattern: it has a number of repeats that cannot be"},
        {"a{3", "pattern: { is not closed"},
        {"a{999}", "pattern: it repeats too often"},
        {"(a{200}){200}", "pattern: it is too large"},
        {"((((((){200}){200}){200}){200}){200}){200}", "pattern: it is too large"},
    };
    char deep[128];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(regex) struct regex *r = NULL;
        struct err err = {0};
        assert_true(regex_new(cases[i].pattern, strlen(cases[i].pattern), 0, &r, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.msg, cases[i].want);
    }
    memset(deep, '(', sizeof(deep));
    AUTO(regex) struct regex *r = NULL;
    assert_true(regex_new(deep, sizeof(deep), 0, &r, NULL) < 0);
    static char longer[REGEX_PATTERN_MAX + 1];
    memset(longer, 'a', sizeof(longer));
    assert_true(regex_new(longer, sizeof(longer), 0, &r, NULL) < 0);
    assert_int_equal(regex_new(longer, 1000, 0, &r, NULL), 0);
}

/* What makes other matchers take for ever costs pattern times text here. */
static void work_is_linear(void **state)
{
    static const char *const evil[] = {"(a+)+$",
                                       "(a|a)*b",
                                       "(a*)*c",
                                       "(.*)*x",
                                       "a?{30}a{30}",
                                       "(a|aa)+$",
                                       "^(([a-z])+.)+[A-Z]([a-z])+$"};
    static char text[10001];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 2] = '!';
    for (size_t i = 0; i < ARRAY_SIZE(evil); i++) {
        struct regex *r = NULL;
        if (regex_new(evil[i], strlen(evil[i]), 0, &r, NULL) < 0)
            continue;
        (void)matches(r, text, strlen(text));
        assert_true(regex_work(r) <= 10001 * 200);
        regex_free(r);
    }
}

/* Random patterns, against the matcher of the C library. */
static void random_patterns_agree_with_another_matcher(void **state)
{
    static const char *const pieces[] = {"a", "b", "c",    ".",    "*", "+", "?",   "|",
                                         "(", ")", "[ab]", "[^a]", "^", "$", "{2}", "{1,2}"};
    unsigned seed = 12345;
    int compared = 0;
    for (int round = 0; round < 30000; round++) {
        AUTO_DONE(buf) struct buf made;
        char text[8] = "";
        int n = 1 + rand_r(&seed) % 8;
        buf_init(&made, 128);
        for (int i = 0; i < n; i++)
            (void)buf_puts(&made, pieces[(size_t)rand_r(&seed) % ARRAY_SIZE(pieces)]);
        const char *pattern = buf_str(&made);
        n = rand_r(&seed) % 7;
        for (int i = 0; i < n; i++)
            text[i] = (char)('a' + rand_r(&seed) % 3);
        AUTO(regex) struct regex *ours = NULL;
        regex_t theirs;
        if (regex_new(pattern, strlen(pattern), 0, &ours, NULL) < 0 ||
            strstr(pattern, "+?") != NULL || strstr(pattern, "*?") != NULL ||
            strstr(pattern, "??") != NULL || strstr(pattern, "}?") != NULL ||
            strstr(pattern, "|*") != NULL || strstr(pattern, "^*") != NULL)
            continue;
        if (regcomp(&theirs, pattern, REG_EXTENDED | REG_NOSUB) != 0)
            continue;
        bool want = regexec(&theirs, text, 0, NULL, 0) == 0;
        regfree(&theirs);
        if (matches(ours, text, strlen(text)) != want)
            fail_msg("'%s' on '%s': %d expected", pattern, text, want);
        compared++;
    }
    assert_true(compared > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_what_they_say),
        cmocka_unit_test(case_can_be_ignored),
        cmocka_unit_test(a_literal_means_itself),
        cmocka_unit_test(bad_patterns_are_told),
        cmocka_unit_test(work_is_linear),
        cmocka_unit_test(random_patterns_agree_with_another_matcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
