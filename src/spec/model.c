/* SPDX-License-Identifier: Apache-2.0 */

/* Initialises, parses, checks and frees an object by its table of fields. */

#include "spec/model.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model_internal.h"

static_assert(sizeof(enum field_kind) == sizeof(int), "FIELD_ENUM stores enums as int");

static size_t *list_count(const struct field *f, const void *object)
{
    return (size_t *)(void *)((char *)object + f->count_offset);
}

static void field_init(const struct field *f, void *object)
{
    void *member = field_member(f, object);

    switch (f->kind) {
    case FIELD_STR:
        *(char **)member = f->text ? xstrdup(f->text) : NULL;
        break;
    case FIELD_INT:
        *(int64_t *)member = f->number;
        break;
    case FIELD_REAL:
        *(double *)member = f->real;
        break;
    case FIELD_BOOL:
        *(bool *)member = f->number != 0;
        break;
    case FIELD_ENUM:
        *(int *)member = (int)f->number;
        break;
    case FIELD_ENV:
    case FIELD_STRV:
    case FIELD_LIST:
    case FIELD_TIME:
        break; /* empty, as the caller zeroed it */
    }
}

void field_clear(const struct field *f, void *object)
{
    char **member = field_member(f, object);

    switch (f->kind) {
    case FIELD_STR:
        free(*member);
        *member = NULL;
        break;
    case FIELD_ENV:
    case FIELD_STRV:
        strv_free(*(char ***)(void *)member);
        *member = NULL;
        break;
    case FIELD_LIST:
        for (size_t i = 0; i < *list_count(f, object); i++)
            model_done(f->items, *member + i * f->items->size);
        free(*member);
        *member = NULL;
        *list_count(f, object) = 0;
        break;
    case FIELD_INT:
    case FIELD_REAL:
    case FIELD_BOOL:
    case FIELD_ENUM:
    case FIELD_TIME:
        break;
    }
}

void model_init(const struct model *m, void *object)
{
    for (size_t i = 0; i < m->n_fields; i++)
        field_init(&m->fields[i], object);
}

void model_done(const struct model *m, void *object)
{
    for (size_t i = 0; i < m->n_fields; i++)
        field_clear(&m->fields[i], object);
}

static bool is_known(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_fields; i++)
        if (str_eq(m->fields[i].name, name))
            return !(m->gone & FIELD_BIT(i));
    return false;
}

static void check_members_known(const struct model *m, const struct json *v, const struct place *up,
                                struct report *report)
{
    for (void *it = json_iter(v); it; it = json_iter_next(v, it)) {
        struct place here = {.up = up, .key = json_iter_key(it)};
        if (!is_known(m, here.key))
            (void)report_add(report, &here, ISSUE_EXTRA, NULL);
    }
}

static void check_whole(const struct model *m, const void *object, const struct place *up,
                        struct report *report)
{
    const char *wrong = m->check ? m->check(object) : NULL;
    if (wrong)
        (void)report_add(report, up, ISSUE_VALUE, "%s", wrong);
}

bool model_parse_at(const struct model *m, const struct json *v, uint64_t fixed, void *object,
                    const struct place *up, struct report *report)
{
    size_t before = report->n_total;

    assert(m->n_fields <= MODEL_FIELDS_MAX);
    if (json_type(v) != JSON_OBJECT)
        return report_add(report, up, ISSUE_MODEL_TYPE,
                          "Input should be a valid dictionary or instance of %s", m->name);
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        struct place here = {.up = up, .key = f->name};

        if (!((fixed | m->gone) & FIELD_BIT(i))) {
            const struct json *value = m->lookup ? m->lookup(v, f) : json_get(v, f->name);
            if (!value && (f->flags & FIELD_REQUIRED)) {
                (void)report_add(report, &here, ISSUE_MISSING, NULL);
                continue;
            }
            if (value && !field_read(f, value, object, &here, report))
                continue;
        }
        (void)field_check(f, object, &here, report);
    }
    if (m->closed)
        check_members_known(m, v, up, report);
    if (report->n_total == before)
        check_whole(m, object, up, report);
    return report->n_total == before;
}

bool model_check_at(const struct model *m, void *object, const struct place *up,
                    struct report *report)
{
    size_t before = report->n_total;

    for (size_t i = 0; i < m->n_fields; i++) {
        struct place here = {.up = up, .key = m->fields[i].name};
        (void)field_check(&m->fields[i], object, &here, report);
    }
    if (report->n_total == before)
        check_whole(m, object, up, report);
    return report->n_total == before;
}

int model_parse(const struct model *m, const struct json *v, uint64_t fixed, void *object,
                struct report *report)
{
    *report = (struct report){0};
    return model_parse_at(m, v, fixed, object, NULL, report) ? 0 : -EINVAL;
}

int model_check(const struct model *m, void *object, struct report *report)
{
    *report = (struct report){0};
    return model_check_at(m, object, NULL, report) ? 0 : -EINVAL;
}
