/* SPDX-License-Identifier: Apache-2.0 */

/* Converts JSON values to integers, reals, flags, choices and points in time, as pydantic does. */

#include "spec/coerce.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"

#define NUMBER_TEXT_MAX 4300 /* digits the reference implementation takes in one number */

/* clang-format off */
static const struct {
    const char *type;
    const char *text;
} issues[ISSUE_MAX] = {
    [ISSUE_NONE]         = {"", ""},
    [ISSUE_MISSING]      = {"missing", "Field required"},
    [ISSUE_VALUE]        = {"value_error", ""},
    [ISSUE_STRING_TYPE]  = {"string_type", "Input should be a valid string"},
    [ISSUE_INT_TYPE]     = {"int_type", "Input should be a valid integer"},
    [ISSUE_INT_PARSING]  = {"int_parsing", "Input should be a valid integer, unable to parse string as an integer"},
    [ISSUE_INT_SIZE]     = {"int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"},
    [ISSUE_INT_FRACTION] = {"int_from_float", "Input should be a valid integer, got a number with a fractional part"},
    [ISSUE_FINITE]       = {"finite_number", "Input should be a finite number"},
    [ISSUE_REAL_TYPE]    = {"float_type", "Input should be a valid number"},
    [ISSUE_REAL_PARSING] = {"float_parsing", "Input should be a valid number, unable to parse string as a number"},
    [ISSUE_BOOL_TYPE]    = {"bool_type", "Input should be a valid boolean"},
    [ISSUE_BOOL_PARSING] = {"bool_parsing", "Input should be a valid boolean, unable to interpret input"},
    [ISSUE_ENUM]         = {"enum", ""},
    [ISSUE_LITERAL]      = {"literal_error", ""},
    [ISSUE_DICT_TYPE]    = {"dict_type", "Input should be a valid dictionary"},
    [ISSUE_LIST_TYPE]    = {"list_type", "Input should be a valid list"},
    [ISSUE_MODEL_TYPE]   = {"model_type", ""},
    [ISSUE_TIME_TYPE]    = {"datetime_type", "Input should be a valid datetime"},
    [ISSUE_TIME_PARSING] = {"datetime_from_date_parsing", "Input should be a valid datetime or date"},
    [ISSUE_EXTRA]        = {"extra_forbidden", "Extra inputs are not permitted"},
};

/* Code points with the White_Space property. Not the set of str_strip(): the reference trims
 * numbers by Unicode's definition but strings by Python's, which adds U+001C to U+001F. */
static const struct {
    uint32_t first, last;
} blanks[] = {
    {0x09, 0x0d}, {0x20, 0x20}, {0x85, 0x85}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

static const struct {
    const char *word;
    bool value;
} bool_words[] = {
    {"true", true}, {"yes", true}, {"on", true}, {"t", true}, {"y", true}, {"1", true},
    {"false", false}, {"no", false}, {"off", false}, {"f", false}, {"n", false}, {"0", false},
};
/* clang-format on */

const char *issue_type(enum issue issue)
{
    assert(issue < ISSUE_MAX);
    return issues[issue].type;
}

const char *issue_text(enum issue issue)
{
    assert(issue < ISSUE_MAX);
    return issues[issue].text;
}

/* A span of text that shrinks from the front as it is read. */
struct number_text {
    const char *s;
    size_t len;
};

/* Length of the blank that s[0..len) begins with; 0 when there is none. */
static size_t blank_len(const char *s, size_t len)
{
    bool incomplete;
    int n = len > 0 ? utf8_next(s, len, &incomplete) : 0;
    uint32_t c = n > 0 ? utf8_point(s, n) : 0;

    for (size_t i = 0; n > 0 && i < ARRAY_SIZE(blanks); i++)
        if (c >= blanks[i].first && c <= blanks[i].last)
            return (size_t)n;
    return 0;
}

static struct number_text trim(struct number_text t)
{
    for (size_t n; (n = blank_len(t.s, t.len)) > 0; t.len -= n)
        t.s += n;
    while (t.len > 0) {
        size_t start = t.len - 1;
        while (start > 0 && ((unsigned char)t.s[start] & 0xc0) == 0x80)
            start--;
        if (blank_len(t.s + start, t.len - start) != t.len - start)
            break;
        t.len = start;
    }
    return t;
}

static bool take(struct number_text *t, char c)
{
    if (t->len == 0 || t->s[0] != c)
        return false;
    t->s++;
    t->len--;
    return true;
}

static bool at_digit(const struct number_text *t)
{
    return t->len > 0 && t->s[0] >= '0' && t->s[0] <= '9';
}

static size_t take_digits(struct number_text *t)
{
    size_t n = 0;
    for (; at_digit(t); n++) {
        t->s++;
        t->len--;
    }
    return n;
}

/* Digits in groups parted by single underscores, accumulated towards INT64_MIN (the longer side).
 * false when the text has no such shape; *digits counts from the first that is not zero. */
static bool take_magnitude(struct number_text *t, int64_t *ret, size_t *digits)
{
    *ret = 0;
    *digits = 0;
    if (!at_digit(t))
        return false;
    for (;;) {
        int digit = t->s[0] - '0';
        *digits += *digits > 0 || digit > 0;
        if (__builtin_mul_overflow(*ret, (int64_t)10, ret) ||
            __builtin_sub_overflow(*ret, (int64_t)digit, ret))
            *ret = INT64_MIN;
        t->s++;
        t->len--;
        bool more = take(t, '_');
        if (!at_digit(t))
            return !more;
    }
}

static enum issue coerce_int_text(const char *s, size_t len, int64_t *ret)
{
    struct number_text t = trim((struct number_text){s, len});
    bool negative = take(&t, '-');
    int64_t value;
    size_t digits;

    if (!negative)
        (void)take(&t, '+');
    if (!take_magnitude(&t, &value, &digits))
        return ISSUE_INT_PARSING;
    if (take(&t, '.')) {
        if (t.len == 0)
            return ISSUE_INT_PARSING;
        while (take(&t, '0'))
            ;
    }
    if (t.len > 0)
        return ISSUE_INT_PARSING;
    if (digits > NUMBER_TEXT_MAX)
        return ISSUE_INT_SIZE;
    if (negative)
        *ret = value;
    else
        *ret = value == INT64_MIN ? INT64_MAX : -value;
    return ISSUE_NONE;
}

static enum issue int_from_real(double d, int64_t *ret)
{
    if (!isfinite(d))
        return ISSUE_FINITE;
    if (d != trunc(d))
        return ISSUE_INT_FRACTION;
    if (fabs(d) >= 9223372036854775808.0) /* 2^63 */
        return ISSUE_INT_SIZE;
    *ret = (int64_t)d;
    return ISSUE_NONE;
}

enum issue coerce_int(const struct json *v, int64_t *ret)
{
    switch (json_type(v)) {
    case JSON_INT:
        *ret = json_int(v);
        return ISSUE_NONE;
    case JSON_BOOL:
        *ret = json_bool(v);
        return ISSUE_NONE;
    case JSON_REAL:
        return int_from_real(json_real(v), ret);
    case JSON_STRING:
        return coerce_int_text(json_str(v), json_str_len(v), ret);
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return ISSUE_INT_TYPE;
}

/* Copies the text without its underscores, which may stand alone between any two characters. */
static bool drop_underscores(struct number_text t, struct buf *ret)
{
    for (size_t i = 0; i < t.len; i++) {
        if (t.s[i] != '_') {
            if (buf_putc(ret, t.s[i]) < 0)
                return false;
        } else if (i == 0 || i + 1 == t.len || t.s[i - 1] == '_') {
            return false;
        }
    }
    return true;
}

static bool is_word(struct number_text t, const char *word)
{
    return t.len == strlen(word) && strncasecmp(t.s, word, t.len) == 0;
}

static bool is_decimal(struct number_text t)
{
    size_t digits = take_digits(&t);
    if (take(&t, '.'))
        digits += take_digits(&t);
    if (digits == 0)
        return false;
    if (take(&t, 'e') || take(&t, 'E')) {
        if (!take(&t, '-'))
            (void)take(&t, '+');
        if (take_digits(&t) == 0)
            return false;
    }
    return t.len == 0;
}

static enum issue coerce_real_text(const char *s, size_t len, double *ret)
{
    struct number_text t = trim((struct number_text){s, len});
    AUTO_DONE(buf) struct buf text = BUF_INIT(NUMBER_TEXT_MAX);
    double d;

    if (t.len == 0 || !drop_underscores(t, &text))
        return ISSUE_REAL_PARSING;

    struct number_text body = {buf_str(&text), text.len};
    bool negative = take(&body, '-');
    if (!negative)
        (void)take(&body, '+');
    /* The reference takes these words; a limit that is not a number is no limit, so we do not. */
    if (is_word(body, "inf") || is_word(body, "infinity") || is_word(body, "nan"))
        return ISSUE_FINITE;
    if (!is_decimal(body))
        return ISSUE_REAL_PARSING;
    if (str_to_double(body.s, &d) < 0 || !isfinite(d))
        return ISSUE_FINITE;
    *ret = negative ? -d : d;
    return ISSUE_NONE;
}

enum issue coerce_real(const struct json *v, double *ret)
{
    switch (json_type(v)) {
    case JSON_INT:
    case JSON_REAL:
        if (!isfinite(json_real(v)))
            return ISSUE_FINITE;
        *ret = json_real(v);
        return ISSUE_NONE;
    case JSON_BOOL:
        *ret = json_bool(v);
        return ISSUE_NONE;
    case JSON_STRING:
        return coerce_real_text(json_str(v), json_str_len(v), ret);
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return ISSUE_REAL_TYPE;
}

static enum issue bool_from_int(int64_t i, bool *ret)
{
    if (i != 0 && i != 1)
        return ISSUE_BOOL_PARSING;
    *ret = i == 1;
    return ISSUE_NONE;
}

enum issue coerce_bool(const struct json *v, bool *ret)
{
    int64_t i;

    switch (json_type(v)) {
    case JSON_BOOL:
        *ret = json_bool(v);
        return ISSUE_NONE;
    case JSON_INT:
        return bool_from_int(json_int(v), ret);
    case JSON_REAL:
        return int_from_real(json_real(v), &i) ? ISSUE_BOOL_TYPE : bool_from_int(i, ret);
    case JSON_STRING:
        for (size_t n = 0; n < ARRAY_SIZE(bool_words); n++)
            if (is_word((struct number_text){json_str(v), json_str_len(v)}, bool_words[n].word)) {
                *ret = bool_words[n].value;
                return ISSUE_NONE;
            }
        return ISSUE_BOOL_PARSING;
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return ISSUE_BOOL_TYPE;
}

bool coerce_truth(const struct json *v)
{
    switch (json_type(v)) {
    case JSON_BOOL:
        return json_bool(v);
    case JSON_INT:
    case JSON_REAL:
        return json_real(v) < 0 || json_real(v) > 0;
    case JSON_STRING:
        return json_str_len(v) > 0;
    case JSON_ARRAY:
    case JSON_OBJECT:
        return json_len(v) > 0;
    case JSON_NULL:
        return false;
    }
    return false;
}

enum issue coerce_enum(const struct json *v, const char *const *names, int *ret)
{
    if (json_type(v) != JSON_STRING)
        return ISSUE_ENUM;
    for (int i = 0; names[i]; i++)
        if (json_str_len(v) == strlen(names[i]) && str_eq(json_str(v), names[i])) {
            *ret = i;
            return ISSUE_NONE;
        }
    return ISSUE_ENUM;
}

/* Times ---------------------------------------------------------------------------------------- */

#define USEC_PER_SEC 1000000LL
#define MSEC_WATERSHED 2e10           /* larger numbers count milliseconds, not seconds */
#define LAST_SECOND 253402300799LL    /* 9999-12-31T23:59:59Z */
#define FIRST_SECOND (-62135596800LL) /* 0001-01-01T00:00:00Z */

struct time_cursor {
    const char *s; /* NUL-terminated */
};

static bool take_char(struct time_cursor *c, char wanted)
{
    if (*c->s != wanted)
        return false;
    c->s++;
    return true;
}

static bool take_number(struct time_cursor *c, int digits, int64_t *ret)
{
    *ret = 0;
    for (int i = 0; i < digits; i++, c->s++) {
        if (*c->s < '0' || *c->s > '9')
            return false;
        *ret = *ret * 10 + (*c->s - '0');
    }
    return true;
}

/* Days since 1970-01-01 in the proleptic Gregorian calendar, counted from March so that the leap
 * day is the last of its year. */
static int64_t days_from_civil(int64_t year, int64_t month, int64_t day)
{
    year -= month <= 2;
    int64_t era = year / 400;
    int64_t year_of_era = year % 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year -
           719468;
}

static bool take_date(struct time_cursor *c, int64_t *ret_days)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year, month, day;

    if (!take_number(c, 4, &year) || !take_char(c, '-') || !take_number(c, 2, &month) ||
        !take_char(c, '-') || !take_number(c, 2, &day))
        return false;
    if (year < 1 || month < 1 || month > 12)
        return false;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day < 1 || day > lengths[month - 1] + (month == 2 && leap))
        return false;
    *ret_days = days_from_civil(year, month, day);
    return true;
}

/* Any number of digits; those beyond microseconds are dropped. */
static bool take_fraction(struct time_cursor *c, int64_t *ret_usec)
{
    int64_t unit = USEC_PER_SEC / 10;
    const char *start = c->s;

    for (*ret_usec = 0; *c->s >= '0' && *c->s <= '9'; c->s++) {
        *ret_usec += unit * (*c->s - '0');
        unit /= 10;
    }
    return c->s > start;
}

static bool take_clock(struct time_cursor *c, int64_t *ret_usec)
{
    int64_t hour, minute, second = 0, fraction = 0;

    if (!take_number(c, 2, &hour) || !take_char(c, ':') || !take_number(c, 2, &minute))
        return false;
    if (take_char(c, ':') && !take_number(c, 2, &second))
        return false;
    if ((take_char(c, '.') || take_char(c, ',')) && !take_fraction(c, &fraction))
        return false;
    if (hour > 23 || minute > 59 || second > 59)
        return false;
    *ret_usec = (hour * 3600 + minute * 60 + second) * USEC_PER_SEC + fraction;
    return true;
}

static bool take_zone(struct time_cursor *c, int64_t *ret_sec, bool *ret_zoned)
{
    int64_t hour, minute, sign;

    *ret_sec = 0;
    *ret_zoned = *c->s != '\0';
    if (!*ret_zoned || take_char(c, 'Z') || take_char(c, 'z'))
        return true;
    if (take_char(c, '+'))
        sign = 1;
    else if (take_char(c, '-'))
        sign = -1;
    else
        return false;
    if (!take_number(c, 2, &hour))
        return false;
    (void)take_char(c, ':');
    if (!take_number(c, 2, &minute) || hour > 23 || minute > 59)
        return false;
    *ret_sec = sign * (hour * 3600 + minute * 60);
    return true;
}

static enum issue time_from_text(struct time_cursor c, int64_t *ret, bool *ret_zoned)
{
    int64_t days, usec = 0, zone = 0;
    bool zoned = false;

    if (!take_date(&c, &days))
        return ISSUE_TIME_PARSING;
    if (*c.s != '\0') {
        if (!take_char(&c, 'T') && !take_char(&c, 't') && !take_char(&c, ' ') &&
            !take_char(&c, '_'))
            return ISSUE_TIME_PARSING;
        if (!take_clock(&c, &usec) || !take_zone(&c, &zone, &zoned) || *c.s != '\0')
            return ISSUE_TIME_PARSING;
    }
    *ret = (days * 86400 - zone) * USEC_PER_SEC + usec;
    *ret_zoned = zoned;
    return ISSUE_NONE;
}

static enum issue time_from_number(double d, int64_t *ret, bool *ret_zoned)
{
    if (fabs(d) > MSEC_WATERSHED)
        d /= 1000;
    if (!(d >= (double)FIRST_SECOND && d <= (double)LAST_SECOND))
        return ISSUE_TIME_PARSING;
    *ret = (int64_t)round(d * (double)USEC_PER_SEC);
    *ret_zoned = true;
    return ISSUE_NONE;
}

enum issue coerce_time_text(const char *s, int64_t *ret, bool *ret_zoned)
{
    return time_from_text((struct time_cursor){s}, ret, ret_zoned);
}

enum issue coerce_time(const struct json *v, int64_t *ret, bool *ret_zoned)
{
    switch (json_type(v)) {
    case JSON_STRING:
        /* A NUL in the middle would hide what follows it. */
        for (size_t i = 0; i < json_str_len(v); i++)
            if (json_str(v)[i] == '\0')
                return ISSUE_TIME_PARSING;
        return time_from_text((struct time_cursor){json_str(v)}, ret, ret_zoned);
    case JSON_INT:
    case JSON_REAL:
        return time_from_number(json_real(v), ret, ret_zoned);
    case JSON_NULL:
    case JSON_BOOL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return ISSUE_TIME_TYPE;
}
