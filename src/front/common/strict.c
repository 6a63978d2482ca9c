/* SPDX-License-Identifier: Apache-2.0 */

/* Checks a request strictly against its table of fields, before the table parses it. This API takes
 * what it documents and nothing else. The tables it shares with the LangBot wire forgive more (a
 * number given as text, true for 1, an unknown member), because clients there rely on it; here a
 * slip would go unnoticed. */

#include <ctype.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "front/common/front.h"
#include "spec/model.h"

#define WHERE_MAX 96

static const struct {
    const char *text;
    unsigned types; /* of enum json_type */
} kinds[] = {
    [FIELD_STR] = {"a string", 1U << JSON_STRING},
    [FIELD_INT] = {"an integer", 1U << JSON_INT},
    [FIELD_REAL] = {"a number", 1U << JSON_INT | 1U << JSON_REAL},
    [FIELD_BOOL] = {"true or false", 1U << JSON_BOOL},
    [FIELD_ENUM] = {"a string", 1U << JSON_STRING},
    [FIELD_ENV] = {"an object of strings", 1U << JSON_OBJECT},
    [FIELD_STRV] = {"an array of strings", 1U << JSON_ARRAY},
    [FIELD_LIST] = {"an array of objects", 1U << JSON_ARRAY},
    [FIELD_TIME] = {"a string", 1U << JSON_STRING},
};

/* Names come from the peer and go to logs and terminals. */
static void put_name(char *ret, size_t size, const char *prefix, const char *name)
{
    (void)str_fmt(ret, size, "%.40s%.48s", prefix, name);
    for (char *c = ret; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr("_.-", *c) == NULL)
            *c = '?';
}

static const struct field *find_field(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_fields; i++)
        if (str_eq(m->fields[i].name, name))
            return &m->fields[i];
    return NULL;
}

static bool all_strings(const struct field *f, const struct json *v)
{
    for (size_t i = 0; f->kind == FIELD_STRV && i < json_len(v); i++)
        if (json_type(json_at(v, i)) != JSON_STRING)
            return false;
    for (void *it = f->kind == FIELD_ENV ? json_iter(v) : NULL; it != NULL;
         it = json_iter_next(v, it))
        if (json_type(json_iter_value(it)) != JSON_STRING)
            return false;
    return true;
}

/* Names and paths mean what they say: "/data\n" is not another way to write "/data". */
static bool is_padded(const struct field *f, const struct json *v)
{
    if (f->kind != FIELD_STR || !(f->flags & FIELD_TRIM) || f->valid == NULL)
        return false;
    AUTO_FREE char *stripped = str_strip(json_str(v));
    return strlen(stripped) != json_str_len(v);
}

static int check_object(const struct model *m, const struct json *object, const char *prefix,
                        const char *const *more, struct err *err);

/* null stands for "not given" where the table allows it; the table says so where not. */
static int check_member(const struct field *f, const struct json *v, const char *where,
                        struct err *err)
{
    int r = 0;
    if (json_type(v) == JSON_NULL)
        return 0;
    if (!(kinds[f->kind].types & 1U << json_type(v)) || !all_strings(f, v))
        return err_set(err, ERR_INVALID, "%s must be %s", where, kinds[f->kind].text);
    if (is_padded(f, v))
        return err_set(err, ERR_INVALID, "%s must not hold NUL, nor begin or end with blanks",
                       where);
    for (size_t i = 0; f->kind == FIELD_LIST && i < json_len(v) && r == 0; i++) {
        char item[WHERE_MAX];
        (void)str_fmt(item, sizeof(item), "%.60s.%zu.", where, i);
        r = json_type(json_at(v, i)) == JSON_OBJECT
                ? check_object(f->items, json_at(v, i), item, NULL, err)
                : err_set(err, ERR_INVALID, "%s must be %s", where, kinds[f->kind].text);
    }
    return r;
}

static int check_object(const struct model *m, const struct json *object, const char *prefix,
                        const char *const *more, struct err *err)
{
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        char where[WHERE_MAX];
        const struct field *f = find_field(m, json_iter_key(it));
        const char *const *known = more;
        put_name(where, sizeof(where), prefix, json_iter_key(it));
        while (f == NULL && known != NULL && *known != NULL && !str_eq(*known, json_iter_key(it)))
            known++;
        if (f == NULL && (known == NULL || *known == NULL))
            return err_set(err, ERR_INVALID, "unknown member '%s'", where);
        int r = f != NULL ? check_member(f, json_iter_value(it), where, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int front_strict(const struct model *m, const struct json *object, const char *const *more,
                 struct err *err)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "a JSON object is needed");
    return check_object(m, object, "", more, err);
}
