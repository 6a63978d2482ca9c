/* SPDX-License-Identifier: Apache-2.0 */

/* Reads one JSON value into the field that a row of the table describes. */

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model_internal.h"

static bool has_nul(const struct json *v)
{
    return memchr(json_str(v), '\0', json_str_len(v)) != NULL;
}

static bool read_str(const struct field *f, const struct json *v, void *object,
                     const struct place *place, struct report *report)
{
    char **member = field_member(f, object);
    char *text = NULL;

    if (json_type(v) != JSON_NULL || !(f->flags & FIELD_NULLABLE)) {
        if (json_type(v) != JSON_STRING)
            return report_add(report, place, ISSUE_STRING_TYPE, NULL);
        /* Before anything is copied: the peer chose the size. */
        if (json_str_len(v) > (size_t)f->max)
            return report_add(report, place, ISSUE_VALUE, "%s must be at most %lld bytes", f->name,
                              (long long)f->max);
        if (has_nul(v))
            return report_add(report, place, ISSUE_VALUE, "%s must not contain NUL", f->name);
        text = xstrndup(json_str(v), json_str_len(v));
    }
    free(*member);
    *member = text;
    return true;
}

static bool read_int(const struct field *f, const struct json *v, void *object,
                     const struct place *place, struct report *report)
{
    if ((f->flags & FIELD_STRICT) && json_type(v) != JSON_INT)
        return report_add(report, place, ISSUE_VALUE, "%s", f->strict_text);
    enum issue issue = coerce_int(v, field_member(f, object));
    return issue == ISSUE_NONE || report_add(report, place, issue, NULL);
}

static bool read_real(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    if ((f->flags & FIELD_STRICT) && json_type(v) != JSON_INT && json_type(v) != JSON_REAL)
        return report_add(report, place, ISSUE_VALUE, "%s", f->strict_text);
    enum issue issue = coerce_real(v, field_member(f, object));
    return issue == ISSUE_NONE || report_add(report, place, issue, NULL);
}

static bool read_bool(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    enum issue issue = coerce_bool(v, field_member(f, object));
    return issue == ISSUE_NONE || report_add(report, place, issue, NULL);
}

/* "Input should be 'none', 'ro' or 'rw'". */
static bool add_enum_issue(const struct field *f, const struct place *place, struct report *report)
{
    AUTO_DONE(buf) struct buf list;
    buf_init(&list, sizeof(report->issues[0].text));

    for (size_t i = 0; f->names[i]; i++) {
        const char *link = i == 0 ? "" : f->names[i + 1] ? ", " : " or ";
        (void)buf_printf(&list, "%s'%s'", link, f->names[i]);
    }
    return report_add(report, place, f->flags & FIELD_LITERAL ? ISSUE_LITERAL : ISSUE_ENUM,
                      "Input should be %s", buf_str(&list));
}

static bool read_enum(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    return coerce_enum(v, f->names, field_member(f, object)) == ISSUE_NONE ||
           add_enum_issue(f, place, report);
}

static bool read_time(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    bool zoned;
    enum issue issue = coerce_time(v, field_member(f, object), &zoned);
    if (issue != ISSUE_NONE)
        return report_add(report, place, issue, NULL);
    return zoned || report_add(report, place, ISSUE_VALUE, "%s", f->rule);
}

/* A value of an environment or of an argument list, before it is copied. */
static bool entry_ok(const struct field *f, const struct json *v, size_t name_len,
                     const struct place *place, struct report *report)
{
    if (json_type(v) != JSON_STRING)
        return report_add(report, place, ISSUE_STRING_TYPE, NULL);
    if (has_nul(v))
        return report_add(report, place, ISSUE_VALUE, "%s must not contain NUL", f->name);
    if (name_len + json_str_len(v) >= ENTRY_BYTES_MAX)
        return report_add(report, place, ISSUE_VALUE, "%s entries must be at most %d bytes each",
                          f->name, ENTRY_BYTES_MAX - 1);
    return true;
}

static bool count_ok(const struct field *f, const struct json *v, const struct place *place,
                     struct report *report)
{
    return json_len(v) <= (size_t)f->max ||
           report_add(report, place, ISSUE_VALUE, "%s must have at most %lld entries", f->name,
                      (long long)f->max);
}

static bool bytes_ok(const struct field *f, size_t bytes, const struct place *place,
                     struct report *report)
{
    return bytes <= (size_t)f->max_bytes ||
           report_add(report, place, ISSUE_VALUE, "%s must be at most %lld bytes in all", f->name,
                      (long long)f->max_bytes);
}

static bool read_env(const struct field *f, const struct json *v, void *object,
                     const struct place *place, struct report *report)
{
    char ***member = field_member(f, object);
    AUTO_STRV char **env = NULL;
    size_t n = 0;
    size_t bytes = 0;
    bool ok = true;

    if (json_type(v) != JSON_OBJECT)
        return report_add(report, place, ISSUE_DICT_TYPE, NULL);
    if (!count_ok(f, v, place, report))
        return false;
    env = xnew_n(char *, json_len(v) + 1);
    for (void *it = json_iter(v); it; it = json_iter_next(v, it)) {
        const char *name = json_iter_key(it);
        struct place here = {.up = place, .key = name};
        const struct json *value = json_iter_value(it);

        if (!entry_ok(f, value, strlen(name) + 1, &here, report)) {
            ok = false;
            continue;
        }
        if (name[0] == '\0')
            return report_add(report, place, ISSUE_VALUE, "%s names must not be empty", f->name);
        if (strchr(name, '='))
            return report_add(report, place, ISSUE_VALUE, "%s names must not contain '='", f->name);
        bytes += strlen(name) + json_str_len(value) + 2;
        if (!bytes_ok(f, bytes, place, report))
            return false;
        env[n++] = xasprintf("%s=%s", name, json_str(value));
    }
    if (!ok)
        return false;
    strv_free(*member);
    *member = TAKE_PTR(env);
    return true;
}

static bool read_strv(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    char ***member = field_member(f, object);
    AUTO_STRV char **list = NULL;
    size_t n = 0;
    size_t bytes = 0;
    bool ok = true;

    if (json_type(v) != JSON_ARRAY)
        return report_add(report, place, ISSUE_LIST_TYPE, NULL);
    if (!count_ok(f, v, place, report))
        return false;
    list = xnew_n(char *, json_len(v) + 1);
    for (size_t i = 0; i < json_len(v); i++) {
        struct place here = {.up = place, .index = i};
        const struct json *item = json_at(v, i);

        if (!entry_ok(f, item, 0, &here, report)) {
            ok = false;
            continue;
        }
        bytes += json_str_len(item) + 1;
        if (!bytes_ok(f, bytes, place, report))
            return false;
        list[n++] = xstrndup(json_str(item), json_str_len(item));
    }
    if (!ok)
        return false;
    strv_free(*member);
    *member = TAKE_PTR(list);
    return true;
}

/* The items go straight into the object, also half-built ones: its owner frees them. */
static bool read_list(const struct field *f, const struct json *v, void *object,
                      const struct place *place, struct report *report)
{
    size_t *count = (size_t *)(void *)((char *)object + f->count_offset);
    char **member = field_member(f, object);
    bool ok = true;

    if (json_type(v) != JSON_ARRAY)
        return report_add(report, place, ISSUE_LIST_TYPE, NULL);
    if (!count_ok(f, v, place, report))
        return false;
    field_clear(f, object);
    if (json_len(v) == 0)
        return true;
    *member = xcalloc(json_len(v), f->items->size);
    for (size_t i = 0; i < json_len(v); i++) {
        struct place here = {.up = place, .index = i};
        char *item = *member + i * f->items->size;

        model_init(f->items, item);
        *count = i + 1;
        ok = model_parse_at(f->items, json_at(v, i), 0, item, &here, report) && ok;
    }
    return ok;
}

bool field_read(const struct field *f, const struct json *v, void *object,
                const struct place *place, struct report *report)
{
    static bool (*const readers[])(const struct field *f, const struct json *v, void *object,
                                   const struct place *place, struct report *report) = {
        [FIELD_STR] = read_str,   [FIELD_INT] = read_int,   [FIELD_REAL] = read_real,
        [FIELD_BOOL] = read_bool, [FIELD_ENUM] = read_enum, [FIELD_ENV] = read_env,
        [FIELD_STRV] = read_strv, [FIELD_LIST] = read_list, [FIELD_TIME] = read_time,
    };

    assert(f->kind < ARRAY_SIZE(readers));
    return readers[f->kind](f, v, object, place, report);
}
