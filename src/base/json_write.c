/* SPDX-License-Identifier: Apache-2.0 */

/* The streaming JSON writer: structure, escapes, and numbers as Python prints them. */

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

static void put(struct jw *w, const char *data, size_t len)
{
    if (w->error == 0)
        w->error = buf_append(w->out, data, len);
}

static void put_text(struct jw *w, const char *s)
{
    put(w, s, strlen(s));
}

/* Every value and every key starts here. Two roots in one text would be our own bug. */
static void separate(struct jw *w)
{
    assert(!w->comma || w->depth > 0);
    if (w->comma)
        put(w, ",", 1);
    w->comma = true;
}

static void scalar(struct jw *w, const char *text)
{
    separate(w);
    put_text(w, text);
}

void jw_init(struct jw *w, struct buf *out)
{
    *w = (struct jw){.out = out};
}

int jw_end(struct jw *w)
{
    assert(w->depth == 0);
    return w->error;
}

static void open_with(struct jw *w, const char *bracket)
{
    scalar(w, bracket);
    w->comma = false;
    w->depth++;
}

static void close_with(struct jw *w, const char *bracket)
{
    assert(w->depth > 0);
    w->depth--;
    put_text(w, bracket);
    w->comma = true;
}

void jw_object(struct jw *w)
{
    open_with(w, "{");
}

void jw_object_end(struct jw *w)
{
    close_with(w, "}");
}

void jw_array(struct jw *w)
{
    open_with(w, "[");
}

void jw_array_end(struct jw *w)
{
    close_with(w, "]");
}

void jw_key(struct jw *w, const char *key)
{
    jw_str(w, key);
    put(w, ":", 1);
    w->comma = false;
}

/* What one character becomes: NULL when it may stand as it is. JSON only asks for quotes, the
 * backslash and C0; DEL, C1 and the two separators are escaped so that a text that is shown raw
 * neither drives a terminal nor starts a line. */
static const char *escape(const char *s, int n, char tmp[static 8])
{
    static const char *const shorts[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    unsigned char c = (unsigned char)s[0];
    unsigned point;

    if (n < 0)
        return "\xef\xbf\xbd"; /* U+FFFD */
    if (n == 1 && c < ARRAY_SIZE(shorts) && shorts[c])
        return shorts[c];
    if (n == 1 && (c < 0x20 || c == 0x7f))
        point = c;
    else if (n == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0)
        point = (unsigned char)s[1];
    else if (n == 3 && (memcmp(s, "\xe2\x80\xa8", 3) == 0 || memcmp(s, "\xe2\x80\xa9", 3) == 0))
        point = 0x2000 | ((unsigned char)s[2] & 0x3f);
    else
        return NULL;
    (void)str_fmt(tmp, 8, "\\u%04x", point);
    return tmp;
}

/* Printable ASCII but the quote and the backslash: the bytes nearly every text is made of. */
static bool is_plain(char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

void jw_strn(struct jw *w, const char *s, size_t len)
{
    size_t start = 0, i = 0;
    bool incomplete;
    char tmp[8];

    separate(w);
    put(w, "\"", 1);
    while (i < len && w->error == 0) {
        if (is_plain(s[i])) {
            i++;
            continue;
        }
        int n = utf8_next(s + i, len - i, &incomplete);
        const char *text = escape(s + i, n, tmp);
        size_t step = (size_t)abs(n);
        if (text) {
            put(w, s + start, i - start);
            put_text(w, text);
            start = i + step;
        }
        i += step;
    }
    if (w->error == 0)
        put(w, s + start, len - start);
    put(w, "\"", 1);
}

void jw_str(struct jw *w, const char *s)
{
    if (s)
        jw_strn(w, s, strlen(s));
    else
        jw_null(w);
}

void jw_int(struct jw *w, int64_t v)
{
    char text[24];

    (void)str_fmt(text, sizeof(text), "%" PRId64, v);
    scalar(w, text);
}

void jw_u64(struct jw *w, uint64_t v)
{
    char text[24];

    (void)str_fmt(text, sizeof(text), "%" PRIu64, v);
    scalar(w, text);
}

/* A positive finite number as d[0].d[1]d[2]... times ten to the power of exp. */
struct decimal {
    char digits[20];
    int exp;
};

static void to_decimal(double v, int n_digits, struct decimal *ret)
{
    char text[40];

    /* d.ddde±dd; the point is whatever the locale says, the places are fixed. */
    (void)snprintf(text, sizeof(text), "%.*e", n_digits - 1, v);
    char *e = strchr(text, 'e');
    assert(e);
    int64_t exp;
    int r = str_to_i64(e[1] == '+' ? e + 2 : e + 1, &exp);
    assert(r == 0);
    ret->exp = (int)exp;
    ret->digits[0] = text[0];
    memcpy(ret->digits + 1, e - (n_digits - 1), (size_t)(n_digits - 1));
    ret->digits[n_digits] = '\0';
}

static double from_decimal(const struct decimal *d)
{
    char text[48];
    double v = 0;

    (void)str_fmt(text, sizeof(text), "%c.%se%d", d->digits[0], d->digits + 1, d->exp);
    if (str_to_double(text, &v) < 0)
        return INFINITY; /* rounded up beyond the largest */
    return v;
}

/* One unit more in the last place. */
static void increment(struct decimal *d)
{
    size_t i = strlen(d->digits);

    while (i > 0 && d->digits[i - 1] == '9')
        d->digits[--i] = '0';
    if (i > 0) {
        d->digits[i - 1]++;
    } else {
        d->digits[0] = '1';
        d->exp++;
    }
}

/* The shortest digits that read back as v. Fifteen always survive the way there and back (but for
 * subnormals, which have fewer), seventeen always suffice. With sixteen the nearest may miss just
 * below a power of two, where doubles are twice as dense, and the next one up still hit. */
static void shortest(double v, struct decimal *ret)
{
    for (int n = v < DBL_MIN ? 1 : 15; n <= 16; n++) {
        to_decimal(v, n, ret);
        if (from_decimal(ret) == v)
            return;
    }
    increment(ret);
    if (from_decimal(ret) != v)
        to_decimal(v, 17, ret);
}

/* Python's repr(): plain from 1e-4 up to 1e16, always with a fraction; an exponent otherwise. */
static void format_real(double v, char *ret, size_t size)
{
    const char *sign = signbit(v) ? "-" : "";
    struct decimal d = {.digits = "0"};

    if (v != 0)
        shortest(fabs(v), &d);
    int n = (int)strlen(d.digits);
    while (n > 1 && d.digits[n - 1] == '0')
        d.digits[--n] = '\0';

    if (d.exp < -4 || d.exp >= 16)
        (void)str_fmt(ret, size, "%s%c%s%se%c%02d", sign, d.digits[0], n > 1 ? "." : "",
                      d.digits + 1, d.exp < 0 ? '-' : '+', abs(d.exp));
    else if (d.exp < 0)
        (void)str_fmt(ret, size, "%s0.%.*s%s", sign, -d.exp - 1, "000", d.digits);
    else if (n <= d.exp + 1)
        (void)str_fmt(ret, size, "%s%s%.*s.0", sign, d.digits, d.exp + 1 - n, "0000000000000000");
    else
        (void)str_fmt(ret, size, "%s%.*s.%s", sign, d.exp + 1, d.digits, d.digits + d.exp + 1);
}

void jw_real(struct jw *w, double v)
{
    char text[48];

    if (!isfinite(v)) {
        jw_null(w); /* JSON has no spelling for it */
        return;
    }
    format_real(v, text, sizeof(text));
    scalar(w, text);
}

void jw_bool(struct jw *w, bool v)
{
    scalar(w, v ? "true" : "false");
}

void jw_null(struct jw *w)
{
    scalar(w, "null");
}

void jw_raw(struct jw *w, const char *text, size_t len)
{
    separate(w);
    put(w, text, len);
}

static void object_value(struct jw *w, const struct json *v)
{
    jw_object(w);
    for (void *it = json_iter(v); it; it = json_iter_next(v, it))
        jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    jw_object_end(w);
}

static void array_value(struct jw *w, const struct json *v)
{
    jw_array(w);
    for (size_t i = 0; i < json_len(v); i++)
        jw_value(w, json_at(v, i));
    jw_array_end(w);
}

/* Recursion is bounded: json_parse() makes nothing deeper than JSON_DEPTH_MAX. */
void jw_value(struct jw *w, const struct json *v)
{
    switch (json_type(v)) {
    case JSON_NULL:
        jw_null(w);
        break;
    case JSON_BOOL:
        jw_bool(w, json_bool(v));
        break;
    case JSON_INT:
        jw_int(w, json_int(v));
        break;
    case JSON_REAL:
        jw_real(w, json_real(v));
        break;
    case JSON_STRING:
        jw_strn(w, json_str(v), json_str_len(v));
        break;
    case JSON_ARRAY:
        array_value(w, v);
        break;
    case JSON_OBJECT:
        object_value(w, v);
        break;
    }
}

void jw_karray(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_array(w);
}

void jw_kobject(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_object(w);
}

void jw_kstr(struct jw *w, const char *key, const char *s)
{
    jw_key(w, key);
    jw_str(w, s);
}

void jw_kstrn(struct jw *w, const char *key, const char *s, size_t len)
{
    jw_key(w, key);
    jw_strn(w, s, len);
}

void jw_kvalue(struct jw *w, const char *key, const struct json *v)
{
    jw_key(w, key);
    jw_value(w, v);
}

void jw_kraw(struct jw *w, const char *key, const char *text, size_t len)
{
    jw_key(w, key);
    jw_raw(w, text, len);
}

void jw_kint(struct jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_int(w, v);
}

void jw_ku64(struct jw *w, const char *key, uint64_t v)
{
    jw_key(w, key);
    jw_u64(w, v);
}

void jw_kreal(struct jw *w, const char *key, double v)
{
    jw_key(w, key);
    jw_real(w, v);
}

void jw_kbool(struct jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_knull(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

int json_plain(struct buf *out, const char *text, size_t len)
{
    bool incomplete;
    int r = 0;

    for (size_t i = 0; i < len && r >= 0;) {
        int n = utf8_next(text + i, len - i, &incomplete);
        size_t size = (size_t)(n < 0 ? -n : n);
        unsigned point = n > 0 && text[i] != '\n' ? utf8_unsafe(text + i, n) : 0;
        if (n < 0)
            r = buf_puts(out, "\xef\xbf\xbd");
        else if (point > 0)
            r = buf_printf(out, "\\u%04x", point);
        else
            r = buf_append(out, text + i, size);
        i += size;
    }
    return r;
}
