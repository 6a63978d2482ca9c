/* SPDX-License-Identifier: Apache-2.0 */

/* box-init's own strings, under the names own_*, against the C library's. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/unit.h"

void *own_memcpy(void *to, const void *from, size_t n);
void *own_memmove(void *to, const void *from, size_t n);
void *own_memset(void *to, int c, size_t n);
int own_memcmp(const void *a, const void *b, size_t n);
void *own_memchr(const void *data, int c, size_t n);
size_t own_strlen(const char *s);
size_t own_strnlen(const char *s, size_t max);
int own_strncmp(const char *a, const char *b, size_t n);
int own_strcmp(const char *a, const char *b);
char *own_strchr(const char *s, int c);
char *own_strrchr(const char *s, int c);
size_t own_strcspn(const char *s, const char *reject);
char *own_strstr(const char *s, const char *what);
int own_snprintf(char *ret, size_t size, const char *fmt, ...);

static const char *const words[] = {
    "", "a", "b", "ab", "aab", "oom_kill 3", "populated 0\nfrozen 0\n", "\xff\x01"};

static int sign(int n)
{
    return (n > 0) - (n < 0);
}

static void memory_is_copied_set_and_compared(void **state)
{
    char from[64], want[64], got[64];
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (char)(i * 37);
    for (size_t n = 0; n <= 40; n++) {
        memset(want, 1, sizeof(want));
        memcpy(got, want, sizeof(got));
        memcpy(want + 3, from + 5, n);
        assert_ptr_equal(own_memcpy(got + 3, from + 5, n), got + 3);
        assert_memory_equal(got, want, sizeof(got));
        memset(want + 1, (int)n, n);
        assert_ptr_equal(own_memset(got + 1, (int)n, n), got + 1);
        assert_memory_equal(got, want, sizeof(got));
        assert_int_equal(own_memcmp(got, want, sizeof(got)), 0);
        got[n] ^= 0x40;
        assert_int_equal(sign(own_memcmp(got, want, sizeof(got))),
                         sign(memcmp(got, want, sizeof(got))));
        assert_ptr_equal(own_memchr(from, from[n], n), memchr(from, from[n], n));
        assert_ptr_equal(own_memchr(from, from[n], n + 1), memchr(from, from[n], n + 1));
    }
}

static void memory_that_overlaps_is_moved(void **state)
{
    for (size_t to = 0; to < 20; to++) {
        for (size_t n = 0; n < 30; n++) {
            char want[64], got[64];
            for (size_t i = 0; i < sizeof(want); i++)
                want[i] = got[i] = (char)i;
            memmove(want + to, want + 10, n);
            assert_ptr_equal(own_memmove(got + to, got + 10, n), got + to);
            assert_memory_equal(got, want, sizeof(got));
        }
    }
}

static void strings_are_measured_and_searched(void **state)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *a = words[i];
        assert_int_equal(own_strlen(a), strlen(a));
        assert_int_equal(own_strnlen(a, 2), strnlen(a, 2));
        assert_ptr_equal(own_strchr(a, 'b'), strchr(a, 'b'));
        assert_ptr_equal(own_strchr(a, '\0'), strchr(a, '\0'));
        assert_ptr_equal(own_strrchr(a, 'a'), strrchr(a, 'a'));
        assert_ptr_equal(own_strrchr(a, '\0'), strrchr(a, '\0'));
        assert_int_equal(own_strcspn(a, " b\n"), strcspn(a, " b\n"));
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) {
            const char *b = words[k];
            assert_int_equal(sign(own_strcmp(a, b)), sign(strcmp(a, b)));
            assert_int_equal(sign(own_strncmp(a, b, 1)), sign(strncmp(a, b, 1)));
            assert_ptr_equal(own_strstr(a, b), strstr(a, b));
        }
    }
}

static void text_is_formatted_and_cut(void **state)
{
    char want[32], got[32];
    for (size_t size = 0; size <= sizeof(got); size++) {
        memset(want, 'x', sizeof(want));
        memset(got, 'x', sizeof(got));
        int n = snprintf(want, size, "%d %u%%", INT32_MIN, UINT32_MAX);
        assert_int_equal(own_snprintf(got, size, "%d %u%%", INT32_MIN, UINT32_MAX), n);
        assert_memory_equal(got, want, sizeof(got));
        n = snprintf(want, size, "%.*s%s%s", 4, "/usr/bin", "/", "ls");
        assert_int_equal(own_snprintf(got, size, "%.*s%s%s", 4, "/usr/bin", "/", "ls"), n);
        assert_memory_equal(got, want, sizeof(got));
    }
    assert_int_equal(own_snprintf(got, sizeof(got), "%llu", (unsigned long long)UINT64_MAX), 20);
    assert_string_equal(got, "18446744073709551615");
    assert_int_equal(own_snprintf(got, sizeof(got), "%ld", INT64_MIN), 20);
    assert_string_equal(got, "-9223372036854775808");
    assert_int_equal(own_snprintf(got, sizeof(got), "s%u", 0U), 2);
    assert_string_equal(got, "s0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_copied_set_and_compared),
        cmocka_unit_test(memory_that_overlaps_is_moved),
        cmocka_unit_test(strings_are_measured_and_searched),
        cmocka_unit_test(text_is_formatted_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
