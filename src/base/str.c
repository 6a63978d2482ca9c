/* SPDX-License-Identifier: Apache-2.0 */

/* Parses numbers, strips and copies strings, and walks UTF-8. */

#include "base/str.h"

#include <assert.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

bool str_eq(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t len = strlen(s), n = strlen(suffix);

    return len >= n && memcmp(s + len - n, suffix, n) == 0;
}

/* isdigit() depends on the locale and on the sign of char. */
static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int str_to_u64(const char *s, uint64_t *ret)
{
    uint64_t value = 0;
    bool overflow = false;

    if (*s == '\0')
        return -EINVAL;
    for (; *s; s++) {
        if (!is_digit(*s))
            return -EINVAL;
        overflow |= __builtin_mul_overflow(value, 10, &value);
        overflow |= __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value);
    }
    if (overflow)
        return -ERANGE;
    *ret = value;
    return 0;
}

int str_to_i64(const char *s, int64_t *ret)
{
    bool negative = *s == '-';
    uint64_t value;
    int r = str_to_u64(s + negative, &value);

    if (r < 0)
        return r;
    if (value > (uint64_t)INT64_MAX + negative)
        return -ERANGE;
    *ret = negative ? (int64_t)(0 - value) : (int64_t)value;
    return 0;
}

static const char *skip_digits(const char *s)
{
    while (is_digit(*s))
        s++;
    return s;
}

/* strtod() also takes blanks, hexadecimal, "inf" and "nan"; none of these is a number here. */
static bool is_decimal(const char *s)
{
    if (*s == '-' || *s == '+')
        s++;
    const char *end = skip_digits(s);
    bool digits = end > s;
    if (*end == '.') {
        s = end + 1;
        end = skip_digits(s);
        digits |= end > s;
    }
    if (digits && (*end == 'e' || *end == 'E')) {
        s = end + 1;
        s += *s == '-' || *s == '+';
        end = skip_digits(s);
        digits = end > s;
    }
    return digits && *end == '\0';
}

int str_to_double(const char *s, double *ret)
{
    if (!is_decimal(s))
        return -EINVAL;

    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* glibc's static one: never fails */
    assert(c);
    double value = strtod_l(s, NULL, c);
    freelocale(c);
    if (!isfinite(value))
        return -ERANGE;
    *ret = value;
    return 0;
}

int str_copy(char *dst, size_t size, const char *src)
{
    size_t len = strlen(src);

    assert(size > 0);
    if (len >= size) {
        dst[0] = '\0';
        return -ENAMETOOLONG;
    }
    memcpy(dst, src, len + 1);
    return 0;
}

int str_fmt(char *dst, size_t size, const char *fmt, ...)
{
    va_list ap;

    assert(size > 0);
    va_start(ap, fmt);
    int n = vsnprintf(dst, size, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= size) {
        dst[0] = '\0';
        return -ENAMETOOLONG;
    }
    return 0;
}

/* What Python's str.isspace() holds for, in UTF-8. */
static const char *const blanks[] = {" ",
                                     "\t",
                                     "\n",
                                     "\v",
                                     "\f",
                                     "\r",
                                     "\x1c",
                                     "\x1d",
                                     "\x1e",
                                     "\x1f",
                                     "\xc2\x85",
                                     "\xc2\xa0",
                                     "\xe1\x9a\x80",
                                     "\xe2\x80\x80",
                                     "\xe2\x80\x81",
                                     "\xe2\x80\x82",
                                     "\xe2\x80\x83",
                                     "\xe2\x80\x84",
                                     "\xe2\x80\x85",
                                     "\xe2\x80\x86",
                                     "\xe2\x80\x87",
                                     "\xe2\x80\x88",
                                     "\xe2\x80\x89",
                                     "\xe2\x80\x8a",
                                     "\xe2\x80\xa8",
                                     "\xe2\x80\xa9",
                                     "\xe2\x80\xaf",
                                     "\xe2\x81\x9f",
                                     "\xe3\x80\x80"};

/* Length of the blank that s[0..len) starts (or ends) with; 0 when there is none. A whole encoding
 * starts with a lead byte, so a match at the end cannot begin inside a character. */
static size_t blank_at(const char *s, size_t len, bool at_end)
{
    for (size_t i = 0; i < ARRAY_SIZE(blanks); i++) {
        size_t n = strlen(blanks[i]);
        if (n <= len && memcmp(at_end ? s + len - n : s, blanks[i], n) == 0)
            return n;
    }
    return 0;
}

void str_trim(const char **s, size_t *len)
{
    size_t n;

    while ((n = blank_at(*s, *len, false)) > 0) {
        *s += n;
        *len -= n;
    }
    while ((n = blank_at(*s, *len, true)) > 0)
        *len -= n;
}

char *str_strip(const char *s)
{
    size_t len = strlen(s);

    str_trim(&s, &len);
    return xstrndup(s, len);
}

unsigned utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    *hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (c < 0x80)
        return 1;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef)
        return 3;
    return c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

int utf8_next(const char *s, size_t len, bool *ret_incomplete)
{
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lo, hi;

    assert(len > 0);
    *ret_incomplete = false;
    unsigned n = utf8_lead(p[0], &lo, &hi);
    if (n == 0)
        return -1;
    for (unsigned i = 1; i < n; i++) {
        if (i == len) {
            *ret_incomplete = true;
            return -(int)i;
        }
        if (p[i] < lo || p[i] > hi)
            return -(int)i;
        lo = 0x80;
        hi = 0xbf;
    }
    return (int)n;
}

uint32_t utf8_point(const char *s, int n)
{
    uint32_t point = (unsigned char)s[0] & (n == 1 ? 0x7fU : 0x7fU >> n);
    for (int i = 1; i < n; i++)
        point = point << 6 | ((unsigned char)s[i] & 0x3fU);
    return point;
}

bool utf8_valid(const char *s, size_t len)
{
    bool incomplete;

    while (len > 0) {
        int n = utf8_next(s, len, &incomplete);
        if (n < 0)
            return false;
        s += n;
        len -= (size_t)n;
    }
    return true;
}

size_t utf8_boundary(const char *s, size_t len)
{
    bool incomplete = false;

    /* At most three bytes can be the start of something longer. */
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        if (((unsigned char)s[len - n] & 0xc0) == 0x80)
            continue;
        (void)utf8_next(s + len - n, n, &incomplete);
        return incomplete ? len - n : len;
    }
    return len;
}

static bool is_id_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

bool id_valid(const char *s)
{
    size_t n = 0;

    if (!s || *s == '_' || *s == '-')
        return false;
    while (n <= 64 && is_id_char(s[n]))
        n++;
    return n >= 1 && n <= 64 && s[n] == '\0';
}

void id_random(char ret[static 17])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[8];

    /* Up to 256 bytes come whole or not at all once the pool is ready; without it no name is safe.
     */
    ssize_t n;
    do
        n = getrandom(bytes, sizeof(bytes), 0);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(bytes))
        abort();
    for (size_t i = 0; i < sizeof(bytes); i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[16] = '\0';
}

uint64_t str_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325ULL;

    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3ULL;
    return h;
}

unsigned utf8_unsafe(const char *s, int n)
{
    unsigned c = (unsigned char)s[0];

    if (n == 1)
        return c < 0x20 || c == 0x7f ? c : 0;
    if (n == 2) /* U+0080 to U+009F */
        return c == 0xc2 && (unsigned char)s[1] < 0xa0 ? (unsigned char)s[1] : 0;
    if (n != 3 || c != 0xe2)
        return 0;
    unsigned point = 0x2000U | ((unsigned)s[1] & 0x3f) << 6 | ((unsigned)s[2] & 0x3f);
    bool unsafe = point == 0x200e || point == 0x200f || (point >= 0x2028 && point <= 0x202e) ||
                  (point >= 0x2066 && point <= 0x2069);
    return unsafe ? point : 0;
}
