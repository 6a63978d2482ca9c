/* SPDX-License-Identifier: Apache-2.0 */

/* Converts a date and time, as ISO 8601 text or as a number, to microseconds since 1970. */

#include <math.h>

#include "base/json.h"
#include "spec/coerce.h"

#define USEC_PER_SEC 1000000LL
#define MSEC_WATERSHED 2e10           /* larger numbers count milliseconds, not seconds */
#define LAST_SECOND 253402300799LL    /* 9999-12-31T23:59:59Z */
#define FIRST_SECOND (-62135596800LL) /* 0001-01-01T00:00:00Z */

struct cursor {
    const char *s; /* NUL-terminated */
};

static bool take(struct cursor *c, char wanted)
{
    if (*c->s != wanted)
        return false;
    c->s++;
    return true;
}

static bool take_number(struct cursor *c, int digits, int64_t *ret)
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

static bool take_date(struct cursor *c, int64_t *ret_days)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year, month, day;

    if (!take_number(c, 4, &year) || !take(c, '-') || !take_number(c, 2, &month) || !take(c, '-') ||
        !take_number(c, 2, &day))
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
static bool take_fraction(struct cursor *c, int64_t *ret_usec)
{
    int64_t unit = USEC_PER_SEC / 10;
    const char *start = c->s;

    for (*ret_usec = 0; *c->s >= '0' && *c->s <= '9'; c->s++) {
        *ret_usec += unit * (*c->s - '0');
        unit /= 10;
    }
    return c->s > start;
}

static bool take_clock(struct cursor *c, int64_t *ret_usec)
{
    int64_t hour, minute, second = 0, fraction = 0;

    if (!take_number(c, 2, &hour) || !take(c, ':') || !take_number(c, 2, &minute))
        return false;
    if (take(c, ':') && !take_number(c, 2, &second))
        return false;
    if ((take(c, '.') || take(c, ',')) && !take_fraction(c, &fraction))
        return false;
    if (hour > 23 || minute > 59 || second > 59)
        return false;
    *ret_usec = (hour * 3600 + minute * 60 + second) * USEC_PER_SEC + fraction;
    return true;
}

static bool take_zone(struct cursor *c, int64_t *ret_sec, bool *ret_zoned)
{
    int64_t hour, minute, sign;

    *ret_sec = 0;
    *ret_zoned = *c->s != '\0';
    if (!*ret_zoned || take(c, 'Z') || take(c, 'z'))
        return true;
    if (take(c, '+'))
        sign = 1;
    else if (take(c, '-'))
        sign = -1;
    else
        return false;
    if (!take_number(c, 2, &hour))
        return false;
    (void)take(c, ':');
    if (!take_number(c, 2, &minute) || hour > 23 || minute > 59)
        return false;
    *ret_sec = sign * (hour * 3600 + minute * 60);
    return true;
}

static enum issue time_from_text(struct cursor c, int64_t *ret, bool *ret_zoned)
{
    int64_t days, usec = 0, zone = 0;
    bool zoned = false;

    if (!take_date(&c, &days))
        return ISSUE_TIME_PARSING;
    if (*c.s != '\0') {
        if (!take(&c, 'T') && !take(&c, 't') && !take(&c, ' ') && !take(&c, '_'))
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
    return time_from_text((struct cursor){s}, ret, ret_zoned);
}

enum issue coerce_time(const struct json *v, int64_t *ret, bool *ret_zoned)
{
    switch (json_type(v)) {
    case JSON_STRING:
        /* A NUL in the middle would hide what follows it. */
        for (size_t i = 0; i < json_str_len(v); i++)
            if (json_str(v)[i] == '\0')
                return ISSUE_TIME_PARSING;
        return time_from_text((struct cursor){json_str(v)}, ret, ret_zoned);
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
