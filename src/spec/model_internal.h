/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of models share: places in a request, and reading and checking a field. */

#include "spec/model.h"

/* Where in the request we are: a chain on the stack, turned into text only when needed. */
struct place {
    const struct place *up; /* borrowed; NULL at the root */
    const char *key;        /* NULL: index counts */
    size_t index;
};

/* Always returns false, so that a check can end in `return report_add(…)`. The text is that of the
 * issue when fmt is NULL. */
bool report_add(struct report *report, const struct place *place, enum issue issue, const char *fmt,
                ...) __attribute__((format(printf, 4, 5)));

/* The member of `object` that a row describes. */
static inline void *field_member(const struct field *f, const void *object)
{
    return (char *)object + f->offset;
}

/* One field of an object, already of the right type: trims it, then holds it against its row. */
bool field_check(const struct field *f, void *object, const struct place *place,
                 struct report *report);

/* One JSON value into its field. */
bool field_read(const struct field *f, const struct json *v, void *object,
                const struct place *place, struct report *report);
void field_clear(const struct field *f, void *object);

bool model_parse_at(const struct model *m, const struct json *v, uint64_t fixed, void *object,
                    const struct place *up, struct report *report);
bool model_check_at(const struct model *m, void *object, const struct place *up,
                    struct report *report);
