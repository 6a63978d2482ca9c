/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One table per kind of request object. The same rows read JSON, supply defaults, check, write the
 * canonical form, free, document (docs/reference/protocol.md) and describe (JSON Schema). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "spec/coerce.h"

struct buf;
struct err;
struct json;
struct jw;

enum field_kind {
    FIELD_STR,  /* char *, owned */
    FIELD_INT,  /* int64_t */
    FIELD_REAL, /* double */
    FIELD_BOOL, /* bool */
    FIELD_ENUM, /* an enum of the size of int, counted from 0 */
    FIELD_ENV,  /* char **, owned, "NAME=value" in the order given */
    FIELD_STRV, /* char **, owned */
    FIELD_LIST, /* pointer to an owned array of the items' struct, and a size_t beside it */
    FIELD_TIME, /* int64_t, microseconds since 1970 in UTC */
};

enum field_flag {
    FIELD_REQUIRED = 1 << 0,
    FIELD_NULLABLE = 1 << 1,   /* FIELD_STR: null is legal and stored as NULL */
    FIELD_TRIM = 1 << 2,       /* FIELD_STR: blanks at both ends are dropped */
    FIELD_BLANK_NULL = 1 << 3, /* FIELD_STR: what is empty after trimming is NULL */
    FIELD_STRICT = 1 << 4,     /* FIELD_INT, FIELD_REAL: JSON numbers only, see strict_text */
    FIELD_LITERAL = 1 << 5,    /* FIELD_ENUM with one spelling */
};

struct model;

struct field {
    const char *name;
    enum field_kind kind;
    unsigned flags; /* of enum field_flag */
    size_t offset;
    size_t count_offset; /* FIELD_LIST: the size_t */

    const char *text; /* default of FIELD_STR; NULL is null */
    int64_t number;   /* default of FIELD_INT, FIELD_BOOL, FIELD_ENUM */
    double real;      /* default of FIELD_REAL */

    /* FIELD_INT: below min or above max is an error. FIELD_REAL: must be above 0 and at most max.
     * FIELD_STR: max bytes. FIELD_ENV, FIELD_STRV, FIELD_LIST: max entries. Every field that has a
     * size has a max. */
    int64_t min, max;
    int64_t max_bytes;            /* FIELD_ENV, FIELD_STRV: of all entries, NULs included */
    bool (*valid)(const char *s); /* FIELD_STR, optional; sees the trimmed text */
    /* The same for a text that can be wrong in several ways, after `valid`: says which, or NULL. */
    const char *(*wrong)(const char *s);
    const char *rule;        /* what is said when min or valid is broken */
    const char *max_rule;    /* what is said when max is; NULL: "<name> must be at most …" */
    const char *strict_text; /* what FIELD_STRICT says */

    const char *const *names;  /* FIELD_ENUM, ends with NULL */
    const struct model *items; /* FIELD_LIST */
    const char *doc;
};

#define MODEL_FIELDS_MAX 64
/* Of an initialiser: the table of fields, and the struct that they are members of. */
#define MODEL_FIELDS(list, type)                                                                   \
    .fields = (list), .n_fields = ARRAY_SIZE(list), .size = sizeof(type)

struct model {
    const char *name; /* as clients know it: "BoxSpec" */
    const char *doc;
    const struct field *fields;
    size_t n_fields; /* at most MODEL_FIELDS_MAX, so that a set of them fits a mask */
    size_t size;     /* of the struct */
    bool partial;    /* what is left out stays as it is: there are no defaults */
    bool closed;     /* unknown members are errors; they are ignored otherwise */
    uint64_t gone;   /* FIELD_BIT() set: fields that are not read, and unknown as others are */

    /* Optional: where the value of a field comes from when it is not simply the member. */
    const struct json *(*lookup)(const struct json *object, const struct field *f, const void *arg);
    const void *arg; /* borrowed */
    /* Optional: a rule over several fields. Runs when each field is right; returns what is wrong.
     */
    const char *(*check)(const void *object);
};

#define FIELD_BIT(index) (UINT64_C(1) << (index))

/* A single argument or environment entry that the kernel would take (MAX_ARG_STRLEN with the NUL).
 */
#define ENTRY_BYTES_MAX 131072

/* What was found wrong, in declaration order. Texts hold nothing of the input; places hold member
 * names with every character outside [A-Za-z0-9_.-] replaced, so that neither can pass for a
 * message of another kind. */
#define REPORT_ISSUES_MAX 8

struct report {
    size_t n_total; /* all issues */
    size_t n;       /* those kept */
    struct report_issue {
        enum issue issue;
        char where[96]; /* "extra_mounts.0.mode", "" for the object as a whole */
        char text[160]; /* without the "Value error, " that clients of the LangBot wire expect */
    } issues[REPORT_ISSUES_MAX];
};

/* The first issue as an error: ERR_INVALID with "Value error, " before the text of ISSUE_VALUE. */
int report_fail(const struct report *report, struct err *err);

/* The same in plain words, with the place in front where the text does not name it. */
int report_fail_plain(const struct report *report, struct err *err);

/* "2 validation errors for BoxSpec\nworkdir\n  Value error, … [type=value_error]\n…". */
int report_write(const struct report *report, const char *model, struct buf *out);

/* For `valid` of a field. */
bool text_not_empty(const char *s);
bool text_absolute(const char *s);

/* The member of `object` that a row describes. */
static inline void *field_member(const struct field *f, const void *object)
{
    return (char *)object + f->offset;
}

/* Fills a zeroed object with the defaults. Required fields stay empty. */
void model_init(const struct model *m, void *object);
void model_done(const struct model *m, void *object); /* frees what the members own */

/* Reads into an object that was model_init()ed and perhaps preset: members of `v` replace what is
 * there, absent ones leave it. Fields in the mask `fixed` are not read at all. Everything is then
 * checked. Returns 0, or -EINVAL with the report filled; the object is to be freed either way. */
int model_parse(const struct model *m, const struct json *v, uint64_t fixed, void *object,
                struct report *report);

/* For an object built in C: trims and checks it just as model_parse() does. */
int model_check(const struct model *m, void *object, struct report *report);

/* The member of one field, its name included. */
void model_write_field(const struct field *f, const void *object, struct jw *w);

/* All fields, in declaration order. */
void model_write_json(const struct model *m, const void *object, struct jw *w);

/* A JSON Schema (2020-12) object for the model. */
void model_write_schema(const struct model *m, struct jw *w);
