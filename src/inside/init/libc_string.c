/* SPDX-License-Identifier: Apache-2.0 */

/* Strings and memory for box-init; libc.c says why. A compiler that sees a loop which copies may
 * make it a call of memcpy(), which is this very loop: KEEP_LOOP() hides that from it. */

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names that the library's headers give to parameters are reserved for it, and a system call
 * has as many as it has. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,readability-function-size) */

static_assert(sizeof(long) == sizeof(long long), "vsnprintf() takes one for the other");

#define KEEP_LOOP() __asm__ volatile("" ::: "memory")

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
#if defined(__x86_64__)
    void *at = to;
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(n)::"memory");
#else
    char *d = to;
    const char *s = from;
    for (size_t i = 0; i < n; i++) {
        d[i] = s[i];
        KEEP_LOOP();
    }
#endif
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    char *d = to;
    const char *s = from;
    if ((uintptr_t)d - (uintptr_t)s >= n)
        return memcpy(to, from, n);
    while (n-- > 0) {
        d[n] = s[n];
        KEEP_LOOP();
    }
    return to;
}

void *memset(void *to, int c, size_t n)
{
#if defined(__x86_64__)
    void *at = to;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(n) : "a"(c) : "memory");
#else
    char *d = to;
    for (size_t i = 0; i < n; i++) {
        d[i] = (char)c;
        KEEP_LOOP();
    }
#endif
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

void *memchr(const void *data, int c, size_t n)
{
    const unsigned char *s = data;
    for (size_t i = 0; i < n; i++)
        if (s[i] == (unsigned char)c)
            return (void *)(uintptr_t)(s + i);
    return NULL;
}

size_t strlen(const char *s)
{
    size_t n = 0;
    while (s[n] != '\0') {
        n++;
        KEEP_LOOP();
    }
    return n;
}

size_t strnlen(const char *s, size_t max)
{
    size_t n = 0;
    while (n < max && s[n] != '\0')
        n++;
    return n;
}

int strncmp(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] || a[i] == '\0')
            return (unsigned char)a[i] - (unsigned char)b[i];
    return 0;
}

int strcmp(const char *a, const char *b)
{
    return strncmp(a, b, SIZE_MAX);
}

char *strchr(const char *s, int c)
{
    for (; *s != (char)c; s++)
        if (*s == '\0')
            return NULL;
    return (char *)(uintptr_t)s;
}

char *strrchr(const char *s, int c)
{
    for (size_t n = strlen(s) + 1; n > 0; n--)
        if (s[n - 1] == (char)c)
            return (char *)(uintptr_t)(s + n - 1);
    return NULL;
}

size_t strcspn(const char *s, const char *reject)
{
    size_t n = 0;
    while (s[n] != '\0' && strchr(reject, s[n]) == NULL)
        n++;
    return n;
}

char *strstr(const char *s, const char *what)
{
    size_t len = strlen(what);
    for (; strncmp(s, what, len) != 0; s++)
        if (*s == '\0')
            return NULL;
    return (char *)(uintptr_t)s;
}

/* Bytes that do not fit are counted and dropped. */
struct out {
    char *at;
    size_t size, len;
};

static void put(struct out *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++, o->len++)
        if (o->len + 1 < o->size)
            o->at[o->len] = s[i];
}

static void put_number(struct out *o, unsigned long value, bool negative)
{
    char digits[24];
    size_t n = sizeof(digits);
    do
        digits[--n] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    if (negative)
        digits[--n] = '-';
    put(o, digits + n, sizeof(digits) - n);
}

/* The analyzer does not see who began the list.
 * NOLINTBEGIN(clang-analyzer-valist.Uninitialized) */

/* `wide`: with an 'l' or two, which are the same here. */
static void put_argument(struct out *o, char kind, bool wide, size_t max, va_list *ap)
{
    if (kind == 's') {
        const char *s = va_arg(*ap, const char *);
        put(o, s, strnlen(s, max));
    } else if (kind == 'u') {
        put_number(o, wide ? va_arg(*ap, unsigned long) : va_arg(*ap, unsigned), false);
    } else if (kind == 'd') {
        long value = wide ? va_arg(*ap, long) : va_arg(*ap, int);
        put_number(o, value < 0 ? 0UL - (unsigned long)value : (unsigned long)value, value < 0);
    } else {
        abort();
    }
}

/* %s, %.*s, %%, and %d and %u of any length from int on: what box-init says. Anything else is a
 * mistake of ours. */
int vsnprintf(char *ret, size_t size, const char *fmt, va_list ap)
{
    struct out o = {ret, size, 0};
    va_list args;
    va_copy(args, ap); /* whose address may be taken, on every processor */
    for (; *fmt != '\0'; fmt++) {
        size_t max = SIZE_MAX;
        bool wide = false;
        if (*fmt != '%' || *++fmt == '%') {
            put(&o, fmt, 1);
            continue;
        }
        if (fmt[0] == '.' && fmt[1] == '*') {
            int precision = va_arg(args, int);
            max = precision < 0 ? SIZE_MAX : (size_t)precision;
            fmt += 2;
        }
        for (; *fmt == 'l'; fmt++)
            wide = true;
        put_argument(&o, *fmt, wide, max, &args);
    }
    va_end(args);
    if (size > 0)
        ret[o.len < size ? o.len : size - 1] = '\0';
    return o.len > INT_MAX ? -1 : (int)o.len;
}

/* NOLINTEND(clang-analyzer-valist.Uninitialized) */

int snprintf(char *ret, size_t size, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(ret, size, fmt, ap);
    va_end(ap);
    return n;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name,readability-function-size) */
