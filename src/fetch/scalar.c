/* SPDX-License-Identifier: Apache-2.0 */

/* YAML 1.1 decides by its looks what a plain scalar is, and clients see what Python's str() makes
 * of that: `name: 0x10` is a skill called 16. */

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "fetch/frontmatter.h"

#define NUMBER_MAX 64U /* digits; whatever is longer stays text */

static bool is_one_of(const char *text, const char *const *words)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool is_false(const char *text)
{
    static const char *const words[] = {"",    "~",   "null", "Null",  "NULL",  "no",    "No", "NO",
                                        "off", "Off", "OFF",  "false", "False", "FALSE", NULL};
    return is_one_of(text, words);
}

static bool is_true(const char *text)
{
    static const char *const words[] = {"yes", "Yes",  "YES",  "on",   "On",
                                        "ON",  "true", "True", "TRUE", NULL};
    return is_one_of(text, words);
}

static unsigned digit_value(char c)
{
    if (isdigit((unsigned char)c))
        return (unsigned)(c - '0');
    return isxdigit((unsigned char)c) ? (unsigned)(tolower((unsigned char)c) - 'a' + 10) : 99;
}

/* Digits of a base without the underscores; false when there is anything else, or nothing. */
static bool digits(const char *s, unsigned base, char ret[static NUMBER_MAX])
{
    size_t n = 0;
    for (; *s != '\0'; s++) {
        if (*s == '_')
            continue;
        if (digit_value(*s) >= base || n + 1 >= NUMBER_MAX)
            return false;
        ret[n++] = *s;
    }
    ret[n] = '\0';
    return n > 0;
}

static bool to_number(const char *s, unsigned base, uint64_t *ret)
{
    uint64_t sum = 0;
    for (; *s != '\0'; s++)
        if (__builtin_mul_overflow(sum, base, &sum) ||
            __builtin_add_overflow(sum, digit_value(*s), &sum))
            return false;
    *ret = sum;
    return true;
}

/* Hours, minutes and seconds: 1:30 is 90. */
static bool sexagesimal(const char *s, uint64_t *ret)
{
    uint64_t sum = 0;
    unsigned parts = 0;
    while (*s != '\0') {
        size_t n = strspn(s, "0123456789");
        char part[24];
        uint64_t value;
        if (n == 0 || n >= sizeof(part) || (parts > 0 && n > 2) ||
            str_fmt(part, sizeof(part), "%.*s", (int)n, s) < 0 || str_to_u64(part, &value) < 0 ||
            (parts > 0 && value > 59) || __builtin_mul_overflow(sum, 60, &sum) ||
            __builtin_add_overflow(sum, value, &sum))
            return false;
        parts++;
        s += n;
        if (*s != ':')
            break;
        s++;
        if (*s == '\0')
            return false;
    }
    *ret = sum;
    return *s == '\0' && parts > 1;
}

/* 1: an integer, *ret its text, NULL for zero. 0: not one. */
static bool integer(const char *text, char **ret)
{
    bool negative = text[0] == '-';
    const char *s = text + (text[0] == '-' || text[0] == '+');
    char plain[NUMBER_MAX];
    uint64_t value = 0;
    bool known = false;
    if (s[0] == '0' && s[1] == 'b')
        known = digits(s + 2, 2, plain) && to_number(plain, 2, &value);
    else if (s[0] == '0' && s[1] == 'x')
        known = digits(s + 2, 16, plain) && to_number(plain, 16, &value);
    else if (s[0] == '0' && s[1] != '\0')
        known = digits(s + 1, 8, plain) && to_number(plain, 8, &value);
    else if (isdigit((unsigned char)s[0]) && digits(s, 10, plain)) {
        known = to_number(plain, 10, &value);
        if (!known) { /* Python has no largest integer */
            *ret = xasprintf("%s%s", negative ? "-" : "", plain);
            return true;
        }
    } else if (isdigit((unsigned char)s[0]) && s[0] != '0') {
        known = sexagesimal(s, &value);
    }
    if (known && value != 0)
        *ret = xasprintf("%s%llu", negative ? "-" : "", (unsigned long long)value);
    return known;
}

/* [-+]? digits "." digits? ([eE] [-+] digits)?, or without the first digits and the sign. */
static bool looks_real(const char *s)
{
    bool sign = *s == '-' || *s == '+';
    s += sign;
    size_t before = strspn(s, "0123456789_");
    if (before > 0 && *s == '_')
        return false;
    if (s[before] != '.' || (before == 0 && sign))
        return false;
    s += before + 1;
    size_t after = strspn(s, "0123456789_");
    if (before == 0 && (after == 0 || *s == '_'))
        return false;
    s += after;
    if (*s == 'e' || *s == 'E') {
        if (s[1] != '-' && s[1] != '+')
            return false;
        s += 2;
        size_t n = strspn(s, "0123456789");
        return n > 0 && s[n] == '\0';
    }
    return *s == '\0';
}

static bool real(const char *text, char **ret)
{
    static const char *const inf[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nan[] = {".nan", ".NaN", ".NAN", NULL};
    bool sign = *text == '-' || *text == '+';
    double value;
    if (is_one_of(text + sign, inf)) {
        *ret = xstrdup(*text == '-' ? "-inf" : "inf");
        return true;
    }
    if (is_one_of(text, nan)) {
        *ret = xstrdup("nan");
        return true;
    }
    char plain[NUMBER_MAX];
    size_t n = 0;
    if (!looks_real(text) || strlen(text) + 2 >= NUMBER_MAX)
        return false;
    for (const char *s = text + (*text == '+'); *s != '\0'; s++)
        if (*s != '_')
            plain[n++] = *s;
    plain[n] = '\0';
    if (str_to_double(plain, &value) < 0)
        return false;
    if (fpclassify(value) == FP_ZERO)
        return true;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, NUMBER_MAX);
    jw_init(&w, &out);
    jw_real(&w, value);
    if (jw_end(&w) < 0)
        return false;
    *ret = buf_take(&out);
    return true;
}

char *frontmatter_scalar(const char *text)
{
    char *number = NULL;
    if (is_false(text))
        return NULL;
    if (is_true(text))
        return xstrdup("True");
    if (integer(text, &number) || real(text, &number))
        return number;
    return xstrdup(text);
}
