/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* From a JSON value to a C value, with the leniency and the sentences that existing clients know
 * (pydantic's "lax" mode). These return an issue, not an errno: what a wrong value means is part of
 * the wire contract, and the caller alone knows the field it belongs to. `*ret` is untouched unless
 * the result is ISSUE_NONE. `v` NULL counts as null. */

#include <stdbool.h>
#include <stdint.h>

struct json;

enum issue {
    ISSUE_NONE,
    ISSUE_MISSING,
    ISSUE_VALUE, /* a rule of ours or of the model was broken; the text comes from the rule */
    ISSUE_STRING_TYPE,
    ISSUE_INT_TYPE,
    ISSUE_INT_PARSING,
    ISSUE_INT_SIZE,
    ISSUE_INT_FRACTION,
    ISSUE_FINITE,
    ISSUE_REAL_TYPE,
    ISSUE_REAL_PARSING,
    ISSUE_BOOL_TYPE,
    ISSUE_BOOL_PARSING,
    ISSUE_ENUM,    /* the text lists the spellings */
    ISSUE_LITERAL, /* same, for a field with one legal value */
    ISSUE_DICT_TYPE,
    ISSUE_LIST_TYPE,
    ISSUE_MODEL_TYPE, /* the text names the model */
    ISSUE_TIME_TYPE,
    ISSUE_TIME_PARSING,
    ISSUE_EXTRA,
    ISSUE_MAX,
};

/* Stable identifier ("int_parsing"), and the sentence; "" where the caller must supply one. */
const char *issue_type(enum issue issue);
const char *issue_text(enum issue issue);

/* Integers, true and false as 1 and 0, reals without a fraction, and strings such as " 12 ",
 * "1_000", "+7" or "12.0". Integers beyond int64 become INT64_MIN or INT64_MAX, so that the range
 * check of the field words the refusal. */
enum issue coerce_int(const struct json *v, int64_t *ret);

/* Numbers, true and false, and strings such as " 1.5 ", ".5" or "1e3". Never infinite, never NaN.
 */
enum issue coerce_real(const struct json *v, double *ret);

/* true, false, 1, 0 and the words true/false, yes/no, on/off, t/f, y/n, 1/0 in any case, unpadded.
 */
enum issue coerce_bool(const struct json *v, bool *ret);
/* Python's bool(): null, false, 0, "", [] and {} are false. */
bool coerce_truth(const struct json *v);

/* Exact spelling; `names` ends with NULL. *ret is the index. */
enum issue coerce_enum(const struct json *v, const char *const *names, int *ret);

/* A point in time as microseconds since 1970 in UTC: ISO 8601 text, or a number of seconds (or of
 * milliseconds when beyond 2e10). *ret_zoned tells whether the text named a zone. */
enum issue coerce_time(const struct json *v, int64_t *ret, bool *ret_zoned);
enum issue coerce_time_text(const char *s, int64_t *ret, bool *ret_zoned);
