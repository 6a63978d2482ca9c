/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kinds of settings: from a value of the file, or a text of the environment, to a member. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct json;
struct policy;
struct policy_options;
struct setting;

struct value {
    const struct json *json;
    bool flat; /* it was found under the older spelling of its name */
    struct policy *policy;
    const struct policy_options *options;
};

/* Sets the member at `dst` and writes to `shown` what it is now. An error may begin with "must",
 * "may" or "is": the name of the setting is put before it. */
typedef int value_fn(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                     struct err *err);

struct setting {
    const char *path;  /* nested shape */
    const char *alias; /* flat shape; NULL: there is none */
    value_fn *set;
    size_t offset;
    const char *text; /* default, as it could be given; NULL: not set */
    int64_t min, max;
    const char *const *names; /* two of them */
    const char *env;          /* a variable that says it too, whole; NULL: none */
    const char *doc;
};

value_fn value_enabled;  /* bool; anything that does not say no means yes */
value_fn value_bool;     /* bool */
value_fn value_gate;     /* bool; anything that is not clearly yes means no */
value_fn value_int;      /* int64_t */
value_fn value_clamped;  /* int64_t; nonsense is the default, beyond a bound is that bound */
value_fn value_quota;    /* int64_t and has_quota */
value_fn value_choice;   /* an enum of the size of int */
value_fn value_text;     /* char *; blank is NULL */
value_fn value_template; /* char * */
value_fn value_path;     /* char *; absolute and resolved */
value_fn value_paths;    /* char **; absolute, as spelled */
