/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "policy/truncate.h"

static char *letters(size_t n)
{
    char *text = xcalloc(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i % 26);
    return text;
}

/* Where each character begins, and where the last one ends; returns how many there are. */
static size_t find_chars(const char *text, size_t len, size_t *starts)
{
    size_t n = 0, at = 0;
    for (bool incomplete; at < len; n++) {
        starts[n] = at;
        int step = utf8_next(text + at, len - at, &incomplete);
        at += (size_t)(step < 0 ? -step : step);
    }
    starts[n] = at;
    return n;
}

static size_t count_chars(const char *text, size_t len)
{
    AUTO_FREE size_t *starts = xnew_n(size_t, len + 1);
    return find_chars(text, len, starts);
}

/* What the truncator must give, from the whole text at once: up to four times the notice is written
 * for what the round before has left out. */
static void reference(const char *text, size_t len, size_t limit, struct buf *out, bool *ret_cut)
{
    AUTO_FREE size_t *starts = xnew_n(size_t, len + 1);
    size_t total = find_chars(text, len, starts), head = 0, tail = 0, n = 0;
    char notice[80] = "";
    *ret_cut = total > limit;
    if (!*ret_cut) {
        assert_int_equal(buf_append(out, text, len), 0);
        return;
    }
    for (int round = 0; round < 4; round++) {
        n = (size_t)snprintf(notice, sizeof(notice), "\n\n... [%zu characters truncated] ...\n\n",
                             total - head - tail);
        size_t room = limit > n ? limit - n : 0, next = (size_t)((double)room * 0.6);
        bool settled = next == head && room - next == tail;
        head = next;
        tail = room - next;
        if (settled || room == 0)
            break;
    }
    assert_int_equal(buf_append(out, text, starts[head]), 0);
    assert_int_equal(buf_append(out, notice, n < limit ? n : limit), 0);
    assert_int_equal(buf_append(out, text + starts[total - tail], len - starts[total - tail]), 0);
}

/* The whole text in one piece. */
static int truncate_text(const char *text, size_t len, int64_t limit, struct buf *out,
                         bool *ret_cut)
{
    AUTO(truncator) struct truncator *t = truncator_new(limit);
    truncator_feed(t, text, len);
    return truncator_finish(t, out, ret_cut);
}

static bool cut(const char *text, size_t len, int64_t limit, struct buf *out)
{
    bool was_cut = false;
    buf_reset(out);
    assert_int_equal(truncate_text(text, len, limit, out, &was_cut), 0);
    return was_cut;
}

static void test_row_T15_short_output_is_unchanged(void **state)
{
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, 4096);
    assert_false(cut("hello world", 11, 100, &out));
    assert_string_equal(buf_str(&out), "hello world");
    assert_false(cut("", 0, 100, &out));
    assert_int_equal(out.len, 0);
}

static void test_row_T16_head_and_tail_are_kept(void **state)
{
    AUTO_DONE(buf) struct buf out;
    char text[1024];
    buf_init(&out, 4096);
    (void)snprintf(text, sizeof(text), "HEAD_START|%0500d|TAIL_END", 0);
    assert_int_equal(strlen(text), 520);
    assert_true(cut(text, strlen(text), 100, &out));
    assert_true(str_starts(buf_str(&out), "HEAD_START|"));
    assert_true(str_ends(buf_str(&out), "|TAIL_END"));
    assert_non_null(strstr(buf_str(&out), "characters truncated"));
    assert_int_equal(out.len, 100);
}

static void test_row_T17_output_of_exactly_the_limit_is_not_cut(void **state)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_FREE char *text = letters(101);
    buf_init(&out, 4096);
    assert_false(cut(text, 100, 100, &out));
    assert_memory_equal(out.data, text, 100);
    assert_true(cut(text, 101, 100, &out));
}

/* Text length, limit: length of the result, number in the notice, head, tail. */
static void the_reference_vectors_hold(void **state)
{
    static const struct {
        size_t len;
        int64_t limit;
        size_t out, number, head, tail;
    } vectors[] = {
        {520, 100, 100, 458, 37, 25},
        {300, 100, 100, 238, 37, 25},
        {5000, 4000, 4000, 1039, 2376, 1585},
        {4001, 4000, 4000, 38, 2377, 1586},
        {1000000, 4000, 4000, 996041, 2375, 1584},
        {1000, 50, 50, 988, 7, 5},
        {10000, 60, 60, 9979, 12, 9},
        {200, 40, 40, 198, 1, 1},
        {200, 38, 38, 200, 0, 0},
    };
    AUTO_DONE(buf) struct buf out;
    char notice[80];
    buf_init(&out, 8192);
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        AUTO_FREE char *text = letters(vectors[i].len);
        size_t head = vectors[i].head, tail = vectors[i].tail;
        size_t n =
            (size_t)snprintf(notice, sizeof(notice), "\n\n... [%zu characters truncated] ...\n\n",
                             vectors[i].number);
        assert_true(cut(text, vectors[i].len, vectors[i].limit, &out));
        assert_int_equal(out.len, vectors[i].out);
        assert_int_equal(head + n + tail, out.len);
        assert_memory_equal(out.data, text, head);
        assert_memory_equal(out.data + head, notice, n);
        assert_memory_equal(out.data + head + n, text + vectors[i].len - tail, tail);
    }
}

static void a_limit_below_the_notice_leaves_a_part_of_it(void **state)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_FREE char *text = letters(200);
    buf_init(&out, 4096);
    assert_true(cut(text, 200, 36, &out));
    assert_string_equal(buf_str(&out), "\n\n... [200 characters truncated] ...");
    assert_true(cut(text, 200, 1, &out));
    assert_string_equal(buf_str(&out), "\n");
    assert_true(cut(text, 200, 0, &out));
    assert_int_equal(out.len, 0);
    assert_true(cut(text, 200, -5, &out));
    assert_int_equal(out.len, 0);
}

static void nothing_is_cut_from_nothing_even_without_room(void **state)
{
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, 16);
    assert_false(cut("", 0, 0, &out));
    assert_false(cut("", 0, -1, &out));
}

/* 300 characters of four bytes each. */
static void code_points_are_counted_not_bytes(void **state)
{
    AUTO_DONE(buf) struct buf text, out;
    buf_init(&text, 4096);
    buf_init(&out, 4096);
    for (int i = 0; i < 300; i++)
        assert_int_equal(buf_puts(&text, "\xf0\x9f\x93\xa6"), 0);
    assert_int_equal(count_chars(text.data, text.len), 300);
    assert_false(cut(text.data, text.len, 300, &out));
    assert_true(cut(text.data, text.len, 100, &out));
    assert_int_equal(count_chars(out.data, out.len), 100);
    assert_int_equal(out.len, (37 + 25) * 4 + 38);
    assert_true(utf8_valid(out.data, out.len));
    assert_non_null(strstr(buf_str(&out), "[238 characters truncated]"));
}

/* What is shown as one U+FFFD counts as one: a lone byte, and the start of a character cut off. */
static void broken_bytes_count_as_what_they_are_shown_as(void **state)
{
    AUTO_DONE(buf) struct buf out;
    static const char broken[] = "\xff\xff"
                                 "a\xe2\x82"
                                 "b\0c";
    buf_init(&out, 64);
    assert_int_equal(count_chars(broken, sizeof(broken) - 1), 7);
    assert_false(cut(broken, sizeof(broken) - 1, 7, &out));
    assert_int_equal(out.len, sizeof(broken) - 1);
    assert_true(cut(broken, sizeof(broken) - 1, 6, &out));
}

static void a_full_buffer_is_told_and_left_alone(void **state)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_FREE char *text = letters(200);
    bool was_cut;
    buf_init(&out, 90);
    assert_int_equal(buf_puts(&out, "before"), 0);
    assert_int_equal(truncate_text(text, 200, 100, &out, &was_cut), -ENOBUFS);
    assert_int_equal(out.len, 6);
}

/* Whatever the pieces, the result is that of the whole. */
static void pieces_give_what_the_whole_gives(void **state)
{
    static const char *const words[] = {"a",    "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x93\xa6",
                                        "\xff", "\xe2\x82", "\xf0\x9f",     "\n",
                                        "\xc3"};
    unsigned seed = 7;
    for (int round = 0; round < 3000; round++) {
        AUTO_DONE(buf) struct buf text, want, got;
        int64_t limit = rand_r(&seed) % 70;
        AUTO(truncator) struct truncator *t = truncator_new(limit);
        bool cut_want, cut_got;
        buf_init(&text, 4096);
        buf_init(&want, 4096);
        buf_init(&got, 4096);
        for (int n = rand_r(&seed) % 200; n > 0; n--)
            assert_int_equal(buf_puts(&text, words[(size_t)rand_r(&seed) % ARRAY_SIZE(words)]), 0);
        for (size_t at = 0; at < text.len;) {
            size_t n = 1 + (size_t)rand_r(&seed) % 9;
            n = n < text.len - at ? n : text.len - at;
            truncator_feed(t, text.data + at, n);
            at += n;
        }
        reference(buf_str(&text), text.len, (size_t)limit, &want, &cut_want);
        assert_int_equal(truncator_finish(t, &got, &cut_got), 0);
        assert_int_equal(cut_got, cut_want);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(buf_str(&got), buf_str(&want), want.len);
    }
}

static void a_flood_needs_little_memory(void **state)
{
    AUTO_DONE(buf) struct buf out;
    AUTO(truncator) struct truncator *t = truncator_new(4000);
    AUTO_FREE char *text = letters(1000);
    bool was_cut;
    buf_init(&out, 8192);
    for (int i = 0; i < 1000; i++)
        truncator_feed(t, text, 1000);
    assert_int_equal(truncator_finish(t, &out, &was_cut), 0);
    assert_true(was_cut);
    assert_int_equal(out.len, 4000);
    assert_non_null(strstr(buf_str(&out), "[996041 characters truncated]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T15_short_output_is_unchanged),
        cmocka_unit_test(test_row_T16_head_and_tail_are_kept),
        cmocka_unit_test(test_row_T17_output_of_exactly_the_limit_is_not_cut),
        cmocka_unit_test(the_reference_vectors_hold),
        cmocka_unit_test(a_limit_below_the_notice_leaves_a_part_of_it),
        cmocka_unit_test(nothing_is_cut_from_nothing_even_without_room),
        cmocka_unit_test(code_points_are_counted_not_bytes),
        cmocka_unit_test(broken_bytes_count_as_what_they_are_shown_as),
        cmocka_unit_test(a_full_buffer_is_told_and_left_alone),
        cmocka_unit_test(pieces_give_what_the_whole_gives),
        cmocka_unit_test(a_flood_needs_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
