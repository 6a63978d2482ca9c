/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "lib/fault.h"

static void an_empty_buffer_is_an_empty_string(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 10);
    assert_string_equal(buf_str(&b), "");
    assert_null(b.data);
    AUTO_FREE char *taken = buf_take(&b);
    assert_string_equal(taken, "");
    buf_reset(&b);
    buf_consume(&b, 0);
}

static void bytes_come_out_as_they_went_in(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 1000);
    assert_int_equal(buf_append(&b, "a\0b", 3), 0);
    assert_int_equal(buf_puts(&b, "cd"), 0);
    assert_int_equal(buf_putc(&b, 'e'), 0);
    assert_int_equal(buf_append(&b, NULL, 0), 0);
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.data, "a\0bcde", 7);
}

static void it_grows_up_to_its_maximum_and_no_further(void **state)
{
    for (size_t max = 0; max < 300; max++) {
        AUTO_DONE(buf) struct buf b;
        buf_init(&b, max);
        for (size_t i = 0; i < max; i++)
            assert_int_equal(buf_putc(&b, (char)('a' + i % 26)), 0);
        assert_int_equal(buf_putc(&b, '!'), -ENOBUFS);
        assert_int_equal(buf_append(&b, NULL, 0), 0);
        assert_int_equal(b.len, max);
        assert_true(b.cap <= max + 1);
        assert_int_equal(strlen(buf_str(&b)), max);
    }
}

static void an_append_that_does_not_fit_changes_nothing(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 8);
    assert_int_equal(buf_puts(&b, "abc"), 0);
    assert_int_equal(buf_puts(&b, "defghi"), -ENOBUFS);
    assert_int_equal(buf_append(&b, "", SIZE_MAX), -ENOBUFS);
    assert_int_equal(buf_printf(&b, "%s", "defghi"), -ENOBUFS);
    assert_int_equal(b.len, 3);
    assert_int_equal(b.data[3], 0);
    assert_string_equal(buf_str(&b), "abc");
    assert_int_equal(buf_printf(&b, "%s", "defgh"), 0);
    assert_string_equal(buf_str(&b), "abcdefgh");
}

static void no_maximum_can_make_sizes_wrap(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(buf_puts(&b, "abc"), 0);
    assert_int_equal(buf_reserve(&b, SIZE_MAX - 1), -ENOBUFS);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), -ENOBUFS);
    assert_string_equal(buf_str(&b), "abc");
}

static void printf_grows_as_needed(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 100000);
    assert_int_equal(buf_printf(&b, "%s", ""), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_printf(&b, "%03d,", i), 0);
    assert_int_equal(b.len, 4000);
    assert_memory_equal(b.data + 4 * 123, "123,124,", 8);
    assert_int_equal(strlen(b.data), 4000);
}

static void reserved_room_is_the_owners(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 100);
    assert_int_equal(buf_puts(&b, "ab"), 0);
    assert_int_equal(buf_reserve(&b, 98), 0);
    memset(b.data + b.len, 'x', 98);
    b.len += 98;
    assert_int_equal(strlen(buf_str(&b)), 100);
    assert_int_equal(buf_reserve(&b, 1), -ENOBUFS);
}

static void consume_drops_the_front(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 100);
    assert_int_equal(buf_puts(&b, "hello world"), 0);
    buf_consume(&b, 6);
    assert_string_equal(buf_str(&b), "world");
    buf_consume(&b, 5);
    assert_int_equal(b.len, 0);
    assert_string_equal(buf_str(&b), "");
}

static void take_leaves_a_usable_buffer(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 5);
    assert_int_equal(buf_puts(&b, "abc"), 0);
    AUTO_FREE char *taken = buf_take(&b);
    assert_string_equal(taken, "abc");
    assert_int_equal(b.len, 0);
    assert_int_equal(buf_puts(&b, "123456"), -ENOBUFS);
    assert_int_equal(buf_puts(&b, "12345"), 0);
    buf_reset(&b);
    assert_string_equal(buf_str(&b), "");
    buf_done(&b);
    assert_int_equal(buf_puts(&b, "1"), 0);
}

static int fill(struct buf *b)
{
    int r = 0;

    for (int i = 0; i < 200 && r == 0; i++)
        r = buf_printf(b, "%d-", i);
    return r;
}

static void memory_that_is_out_is_a_full_buffer(void **state)
{
    for (long nth = 1; fault_next(FAULT_MALLOC, nth, ENOMEM); nth++) {
        AUTO_DONE(buf) struct buf b;
        buf_init(&b, 10000);
        int r = fill(&b);
        assert_int_equal(r, fault_missed() ? 0 : -ENOBUFS);
        /* Whole records only, and still a string. */
        assert_int_equal(strlen(buf_str(&b)), b.len);
        assert_true(b.len == 0 || b.data[b.len - 1] == '-');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buffer_is_an_empty_string),
        cmocka_unit_test(bytes_come_out_as_they_went_in),
        cmocka_unit_test(it_grows_up_to_its_maximum_and_no_further),
        cmocka_unit_test(an_append_that_does_not_fit_changes_nothing),
        cmocka_unit_test(no_maximum_can_make_sizes_wrap),
        cmocka_unit_test(printf_grows_as_needed),
        cmocka_unit_test(reserved_room_is_the_owners),
        cmocka_unit_test(consume_drops_the_front),
        cmocka_unit_test(take_leaves_a_usable_buffer),
        cmocka_unit_test(memory_that_is_out_is_a_full_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
