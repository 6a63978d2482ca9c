/* SPDX-License-Identifier: Apache-2.0 */

/* Checks the value of one field of an object against its row in the table. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model_internal.h"

static bool check_str(const struct field *f, void *object, const struct place *place,
                      struct report *report)
{
    char **member = field_member(f, object);

    if (*member && (f->flags & FIELD_TRIM)) {
        char *trimmed = str_strip(*member);
        free(*member);
        *member = trimmed;
    }
    if (*member && (f->flags & FIELD_BLANK_NULL) && **member == '\0') {
        free(*member);
        *member = NULL;
    }
    if (!*member)
        return (f->flags & FIELD_NULLABLE) || report_add(report, place, ISSUE_MISSING, NULL);
    if (strlen(*member) > (size_t)f->max)
        return report_add(report, place, ISSUE_VALUE, "%s must be at most %lld bytes", f->name,
                          (long long)f->max);
    if (!utf8_valid(*member, strlen(*member)))
        return report_add(report, place, ISSUE_VALUE, "%s must be valid UTF-8", f->name);
    if (f->valid && !f->valid(*member))
        return report_add(report, place, ISSUE_VALUE, "%s", f->rule);
    const char *wrong = f->wrong ? f->wrong(*member) : NULL;
    return !wrong || report_add(report, place, ISSUE_VALUE, "%s", wrong);
}

static bool check_above(const struct field *f, const struct place *place, struct report *report)
{
    if (f->max_rule)
        return report_add(report, place, ISSUE_VALUE, "%s", f->max_rule);
    return report_add(report, place, ISSUE_VALUE, "%s must be at most %lld", f->name,
                      (long long)f->max);
}

static bool check_int(const struct field *f, void *object, const struct place *place,
                      struct report *report)
{
    int64_t value = *(const int64_t *)field_member(f, object);

    if (value < f->min)
        return report_add(report, place, ISSUE_VALUE, "%s", f->rule);
    return value <= f->max || check_above(f, place, report);
}

static bool check_real(const struct field *f, void *object, const struct place *place,
                       struct report *report)
{
    double value = *(const double *)field_member(f, object);

    if (!isfinite(value))
        return report_add(report, place, ISSUE_FINITE, NULL);
    if (value <= 0)
        return report_add(report, place, ISSUE_VALUE, "%s", f->rule);
    return value <= (double)f->max || check_above(f, place, report);
}

static bool check_enum(const struct field *f, void *object, const struct place *place,
                       struct report *report)
{
    int value = *(const int *)field_member(f, object);
    int count = 0;

    while (f->names[count])
        count++;
    /* JSON cannot bring this about: it is a bug of ours. */
    assert(value >= 0 && value < count);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    const char *x = *(const char *const *)a;
    const char *y = *(const char *const *)b;
    size_t nx = strcspn(x, "=");
    size_t ny = strcspn(y, "=");
    int r = memcmp(x, y, nx < ny ? nx : ny);
    return r != 0 ? r : (nx > ny) - (nx < ny);
}

/* Twice the same name would mean one thing to the kernel and another to whoever reads JSON. */
static bool names_differ(char *const *env, size_t n)
{
    if (n < 2)
        return true;
    AUTO_FREE const char **sorted = xnew_n(const char *, n);
    memcpy(sorted, env, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < n; i++)
        if (compare_names(&sorted[i - 1], &sorted[i]) == 0)
            return false;
    return true;
}

static bool check_entries(const struct field *f, char *const *list, const struct place *place,
                          struct report *report)
{
    size_t n = strv_len(list);
    size_t bytes = 0;

    if (n > (size_t)f->max)
        return report_add(report, place, ISSUE_VALUE, "%s must have at most %lld entries", f->name,
                          (long long)f->max);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(list[i]) + 1;
        if (len > ENTRY_BYTES_MAX)
            return report_add(report, place, ISSUE_VALUE,
                              "%s entries must be at most %d bytes each", f->name,
                              ENTRY_BYTES_MAX - 1);
        if (!utf8_valid(list[i], len - 1))
            return report_add(report, place, ISSUE_VALUE, "%s must be valid UTF-8", f->name);
        bytes += len;
    }
    return bytes <= (size_t)f->max_bytes ||
           report_add(report, place, ISSUE_VALUE, "%s must be at most %lld bytes in all", f->name,
                      (long long)f->max_bytes);
}

static bool check_strv(const struct field *f, void *object, const struct place *place,
                       struct report *report)
{
    return check_entries(f, *(char ***)field_member(f, object), place, report);
}

static bool check_env(const struct field *f, void *object, const struct place *place,
                      struct report *report)
{
    char *const *env = *(char ***)field_member(f, object);
    size_t n = strv_len(env);

    if (!check_entries(f, env, place, report))
        return false;
    for (size_t i = 0; i < n; i++)
        if (env[i][0] == '=' || !strchr(env[i], '='))
            return report_add(report, place, ISSUE_VALUE, "%s entries must be NAME=value", f->name);
    return names_differ(env, n) ||
           report_add(report, place, ISSUE_VALUE, "%s names must differ", f->name);
}

static bool check_list(const struct field *f, void *object, const struct place *place,
                       struct report *report)
{
    size_t count = *(const size_t *)(const void *)((const char *)object + f->count_offset);
    char *items = *(char **)field_member(f, object);
    bool ok = true;

    if (count > (size_t)f->max)
        return report_add(report, place, ISSUE_VALUE, "%s must have at most %lld entries", f->name,
                          (long long)f->max);
    for (size_t i = 0; i < count; i++) {
        struct place here = {.up = place, .index = i};
        ok = model_check_at(f->items, items + i * f->items->size, &here, report) && ok;
    }
    return ok;
}

bool field_check(const struct field *f, void *object, const struct place *place,
                 struct report *report)
{
    /* A bool is right once it is one, and a time once it was read. */
    static bool (*const checks[])(const struct field *f, void *object, const struct place *place,
                                  struct report *report) = {
        [FIELD_STR] = check_str,   [FIELD_INT] = check_int,   [FIELD_REAL] = check_real,
        [FIELD_BOOL] = NULL,       [FIELD_ENUM] = check_enum, [FIELD_ENV] = check_env,
        [FIELD_STRV] = check_strv, [FIELD_LIST] = check_list, [FIELD_TIME] = NULL,
    };

    assert(f->kind < ARRAY_SIZE(checks));
    return !checks[f->kind] || checks[f->kind](f, object, place, report);
}
