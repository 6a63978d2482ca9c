/* SPDX-License-Identifier: Apache-2.0 */

/* Writes an object as JSON, and a table of fields as a JSON schema. */

#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/strv.h"
#include "spec/model.h"

static void write_env(char *const *env, struct jw *w)
{
    size_t n = strv_len(env);

    jw_object(w);
    for (size_t i = 0; i < n; i++) {
        const char *value = strchr(env[i], '=');
        AUTO_FREE char *name = xstrndup(env[i], value ? (size_t)(value - env[i]) : strlen(env[i]));
        jw_kstr(w, name, value ? value + 1 : "");
    }
    jw_object_end(w);
}

static void write_strv(char *const *list, struct jw *w)
{
    size_t n = strv_len(list);

    jw_array(w);
    for (size_t i = 0; i < n; i++)
        jw_str(w, list[i]);
    jw_array_end(w);
}

static void write_list(const struct field *f, const void *object, struct jw *w)
{
    size_t count = *(const size_t *)(const void *)((const char *)object + f->count_offset);
    const char *items = *(char **)field_member(f, object);

    jw_array(w);
    for (size_t i = 0; i < count; i++)
        model_write_json(f->items, items + i * f->items->size, w);
    jw_array_end(w);
}

static void write_time(int64_t usec, struct jw *w)
{
    const int64_t last = (int64_t)(UINT64_MAX / 1000);
    char text[48];

    /* clock_format() knows the years 1970 to 2554; what is meant to be outside stays outside. */
    usec = usec < 0 ? 0 : usec > last ? last : usec;
    clock_format((uint64_t)usec * 1000, text, sizeof(text));
    jw_str(w, text);
}

void model_write_field(const struct field *f, const void *object, struct jw *w)
{
    const void *member = field_member(f, object);

    jw_key(w, f->name);
    switch (f->kind) {
    case FIELD_STR:
        jw_str(w, *(char *const *)member);
        break;
    case FIELD_INT:
        jw_int(w, *(const int64_t *)member);
        break;
    case FIELD_REAL:
        jw_real(w, *(const double *)member);
        break;
    case FIELD_BOOL:
        jw_bool(w, *(const bool *)member);
        break;
    case FIELD_ENUM:
        jw_str(w, f->names[*(const int *)member]);
        break;
    case FIELD_ENV:
        write_env(*(char **const *)member, w);
        break;
    case FIELD_STRV:
        write_strv(*(char **const *)member, w);
        break;
    case FIELD_LIST:
        write_list(f, object, w);
        break;
    case FIELD_TIME:
        write_time(*(const int64_t *)member, w);
        break;
    }
}

void model_write_json(const struct model *m, const void *object, struct jw *w)
{
    jw_object(w);
    for (size_t i = 0; i < m->n_fields; i++)
        model_write_field(&m->fields[i], object, w);
    jw_object_end(w);
}

static const char *schema_type(enum field_kind kind)
{
    switch (kind) {
    case FIELD_INT:
        return "integer";
    case FIELD_REAL:
        return "number";
    case FIELD_BOOL:
        return "boolean";
    case FIELD_ENV:
        return "object";
    case FIELD_STRV:
    case FIELD_LIST:
        return "array";
    case FIELD_STR:
    case FIELD_ENUM:
    case FIELD_TIME:
        break;
    }
    return "string";
}

static void write_type(const struct field *f, struct jw *w)
{
    jw_key(w, "type");
    if (!(f->flags & FIELD_NULLABLE)) {
        jw_str(w, schema_type(f->kind));
        return;
    }
    jw_array(w);
    jw_str(w, schema_type(f->kind));
    jw_str(w, "null");
    jw_array_end(w);
}

/* What a schema can say about the values. Lengths are in characters there and in bytes here, so
 * they are upper bounds. */
static void write_limits(const struct field *f, struct jw *w)
{
    switch (f->kind) {
    case FIELD_STR:
        jw_kint(w, "maxLength", f->max);
        break;
    case FIELD_INT:
        if (f->min > INT64_MIN)
            jw_kint(w, "minimum", f->min);
        jw_kint(w, "maximum", f->max);
        break;
    case FIELD_REAL:
        jw_kint(w, "exclusiveMinimum", 0);
        jw_kint(w, "maximum", f->max);
        break;
    case FIELD_ENUM:
        jw_karray(w, "enum");
        for (size_t i = 0; f->names[i]; i++)
            jw_str(w, f->names[i]);
        jw_array_end(w);
        break;
    case FIELD_ENV:
        jw_kint(w, "maxProperties", f->max);
        jw_kobject(w, "additionalProperties");
        jw_kstr(w, "type", "string");
        jw_object_end(w);
        break;
    case FIELD_STRV:
        jw_kint(w, "maxItems", f->max);
        jw_kobject(w, "items");
        jw_kstr(w, "type", "string");
        jw_object_end(w);
        break;
    case FIELD_LIST:
        jw_kint(w, "maxItems", f->max);
        jw_key(w, "items");
        model_write_schema(f->items, w);
        break;
    case FIELD_TIME:
        jw_kstr(w, "format", "date-time");
        break;
    case FIELD_BOOL:
        break;
    }
}

static void write_default(const struct field *f, struct jw *w)
{
    if (f->flags & FIELD_REQUIRED)
        return;
    switch (f->kind) {
    case FIELD_STR:
        jw_kstr(w, "default", f->text);
        break;
    case FIELD_INT:
        jw_kint(w, "default", f->number);
        break;
    case FIELD_REAL:
        jw_kreal(w, "default", f->real);
        break;
    case FIELD_BOOL:
        jw_kbool(w, "default", f->number != 0);
        break;
    case FIELD_ENUM:
        jw_kstr(w, "default", f->names[f->number]);
        break;
    case FIELD_ENV:
    case FIELD_STRV:
    case FIELD_LIST:
    case FIELD_TIME:
        break;
    }
}

void model_write_schema(const struct model *m, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "type", "object");
    jw_kstr(w, "description", m->doc);
    jw_kobject(w, "properties");
    for (size_t i = 0; i < m->n_fields; i++) {
        jw_kobject(w, m->fields[i].name);
        write_type(&m->fields[i], w);
        jw_kstr(w, "description", m->fields[i].doc);
        write_limits(&m->fields[i], w);
        if (!m->partial)
            write_default(&m->fields[i], w);
        jw_object_end(w);
    }
    jw_object_end(w);
    jw_karray(w, "required");
    for (size_t i = 0; i < m->n_fields; i++)
        if (m->fields[i].flags & FIELD_REQUIRED)
            jw_str(w, m->fields[i].name);
    jw_array_end(w);
    if (m->closed)
        jw_kbool(w, "additionalProperties", false);
    jw_object_end(w);
}
