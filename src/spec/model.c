/* SPDX-License-Identifier: Apache-2.0 */

/* Reads, checks and frees objects by the tables of their models, and reports what is wrong. */

#include "spec/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"

/* Where in the request we are: a chain on the stack, turned into text only when needed. */
struct field_place {
    const struct field_place *up; /* borrowed; NULL at the root */
    const char *key;              /* NULL: index counts */
    size_t index;
};

static void field_clear(const struct field *f, void *object);
static bool model_parse_at(const struct model *m, const struct json *v, uint64_t fixed,
                           void *object, const struct field_place *up, struct report *report);
static bool model_check_at(const struct model *m, void *object, const struct field_place *up,
                           struct report *report);

bool text_not_empty(const char *s)
{
    return s[0] != '\0';
}

bool text_absolute(const char *s)
{
    return s[0] == '/';
}

static size_t put_plain(char *dst, size_t size, size_t used, const char *s, size_t len)
{
    for (size_t i = 0; i < len && used + 1 < size; i++) {
        char c = s[i];
        bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '.' || c == '-';
        dst[used++] = plain ? c : '?';
    }
    dst[used] = '\0';
    return used;
}

static size_t write_place(const struct field_place *p, char *dst, size_t size)
{
    char number[24];
    size_t used = p->up ? write_place(p->up, dst, size) : 0;
    const char *step = p->key;

    if (!step) {
        (void)str_fmt(number, sizeof(number), "%zu", p->index);
        step = number;
    }
    if (used > 0)
        used = put_plain(dst, size, used, ".", 1);
    return put_plain(dst, size, used, step, strlen(step));
}

/* Always returns false, so that a check can end in `return report_add(…)`. The text is that of the
 * issue when fmt is NULL. */
__attribute__((format(printf, 4, 5))) static bool report_add(struct report *report,
                                                             const struct field_place *place,
                                                             enum issue issue, const char *fmt, ...)
{
    report->n_total++;
    if (report->n == REPORT_ISSUES_MAX)
        return false;

    struct report_issue *entry = &report->issues[report->n++];
    entry->issue = issue;
    entry->where[0] = '\0';
    if (place)
        (void)write_place(place, entry->where, sizeof(entry->where));
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(entry->text, sizeof(entry->text), fmt, ap);
        va_end(ap);
    } else {
        (void)str_copy(entry->text, sizeof(entry->text), issue_text(issue));
    }
    return false;
}

int report_fail(const struct report *report, struct err *err)
{
    assert(report->n > 0);
    const struct report_issue *first = &report->issues[0];
    return err_set(err, ERR_INVALID, "%s%s", first->issue == ISSUE_VALUE ? "Value error, " : "",
                   first->text);
}

int report_fail_plain(const struct report *report, struct err *err)
{
    assert(report->n > 0);
    const struct report_issue *first = &report->issues[0];
    if (first->where[0] == '\0' || first->issue == ISSUE_VALUE)
        return err_set(err, ERR_INVALID, "%s", first->text);
    return err_set(err, ERR_INVALID, "%s: %s", first->where, first->text);
}

int report_write(const struct report *report, const char *model, struct buf *out)
{
    int r = buf_printf(out, "%zu validation error%s for %s", report->n_total,
                       report->n_total == 1 ? "" : "s", model);

    for (size_t i = 0; i < report->n && r >= 0; i++) {
        const struct report_issue *issue = &report->issues[i];
        r = buf_printf(out, "%s%s\n  %s%s [type=%s]", issue->where[0] ? "\n" : "", issue->where,
                       issue->issue == ISSUE_VALUE ? "Value error, " : "", issue->text,
                       issue_type(issue->issue));
    }
    return r;
}

/* A field that is read or checked, where in the request it is, and what is to be said about it. */
struct field_at {
    const struct field *f;
    const struct field_place *place;
    struct report *report;
};

/* Always returns false, as report_add() does: what a rule of ours or of the model says. */
__attribute__((format(printf, 2, 3))) static bool field_wrong(const struct field_at *at,
                                                              const char *fmt, ...)
{
    char text[sizeof(at->report->issues[0].text)];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return report_add(at->report, at->place, ISSUE_VALUE, "%s", text);
}

static bool field_issue(const struct field_at *at, enum issue issue)
{
    return issue == ISSUE_NONE || report_add(at->report, at->place, issue, NULL);
}

/* Bounds that hold for what was read and for what is about to be copied: the peer chose the size.
 */

static bool length_ok(const struct field_at *at, size_t len)
{
    return len <= (size_t)at->f->max ||
           field_wrong(at, "%s must be at most %lld bytes", at->f->name, (long long)at->f->max);
}

static bool count_ok(const struct field_at *at, size_t n)
{
    return n <= (size_t)at->f->max ||
           field_wrong(at, "%s must have at most %lld entries", at->f->name, (long long)at->f->max);
}

static bool entry_length_ok(const struct field_at *at, size_t len)
{
    return len < ENTRY_BYTES_MAX || field_wrong(at, "%s entries must be at most %d bytes each",
                                                at->f->name, ENTRY_BYTES_MAX - 1);
}

static bool bytes_ok(const struct field_at *at, size_t bytes)
{
    return bytes <= (size_t)at->f->max_bytes ||
           field_wrong(at, "%s must be at most %lld bytes in all", at->f->name,
                       (long long)at->f->max_bytes);
}

static bool utf8_ok(const struct field_at *at, const char *text)
{
    return utf8_valid(text, strlen(text)) || field_wrong(at, "%s must be valid UTF-8", at->f->name);
}

static bool check_str(const struct field_at *at, void *object)
{
    const struct field *f = at->f;
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
        return (f->flags & FIELD_NULLABLE) || field_issue(at, ISSUE_MISSING);
    if (!length_ok(at, strlen(*member)) || !utf8_ok(at, *member))
        return false;
    if (f->valid && !f->valid(*member))
        return field_wrong(at, "%s", f->rule);
    const char *wrong = f->wrong ? f->wrong(*member) : NULL;
    return !wrong || field_wrong(at, "%s", wrong);
}

static bool check_above(const struct field_at *at)
{
    if (at->f->max_rule)
        return field_wrong(at, "%s", at->f->max_rule);
    return field_wrong(at, "%s must be at most %lld", at->f->name, (long long)at->f->max);
}

static bool check_int(const struct field_at *at, void *object)
{
    int64_t value = *(const int64_t *)field_member(at->f, object);

    if (value < at->f->min)
        return field_wrong(at, "%s", at->f->rule);
    return value <= at->f->max || check_above(at);
}

static bool check_real(const struct field_at *at, void *object)
{
    double value = *(const double *)field_member(at->f, object);

    if (!isfinite(value))
        return field_issue(at, ISSUE_FINITE);
    if (value <= 0)
        return field_wrong(at, "%s", at->f->rule);
    return value <= (double)at->f->max || check_above(at);
}

static bool check_enum(const struct field_at *at, void *object)
{
    int value = *(const int *)field_member(at->f, object);
    int count = 0;

    while (at->f->names[count])
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

/* Twice the same name would mean one thing to the kernel and another to a reader of JSON. */
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

static bool check_strv(const struct field_at *at, void *object)
{
    char *const *list = *(char ***)field_member(at->f, object);
    size_t n = strv_len(list);
    size_t bytes = 0;

    if (!count_ok(at, n))
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(list[i]);
        if (!entry_length_ok(at, len) || !utf8_ok(at, list[i]))
            return false;
        bytes += len + 1;
    }
    return bytes_ok(at, bytes);
}

static bool check_env(const struct field_at *at, void *object)
{
    char *const *env = *(char ***)field_member(at->f, object);
    size_t n = strv_len(env);

    if (!check_strv(at, object))
        return false;
    for (size_t i = 0; i < n; i++)
        if (env[i][0] == '=' || !strchr(env[i], '='))
            return field_wrong(at, "%s entries must be NAME=value", at->f->name);
    return names_differ(env, n) || field_wrong(at, "%s names must differ", at->f->name);
}

static size_t *list_count(const struct field *f, const void *object)
{
    return (size_t *)(void *)((char *)object + f->count_offset);
}

static bool check_list(const struct field_at *at, void *object)
{
    const struct model *m = at->f->items;
    size_t count = *list_count(at->f, object);
    char *items = *(char **)field_member(at->f, object);
    bool ok = true;

    if (!count_ok(at, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        struct field_place here = {.up = at->place, .index = i};
        ok = model_check_at(m, items + i * m->size, &here, at->report) && ok;
    }
    return ok;
}

/* One field of an object, already of the right type: trims it, then holds it against its row. */
static bool field_check(const struct field_at *at, void *object)
{
    /* A bool is right once it is one, and a time once it was read. */
    static bool (*const checks[])(const struct field_at *at, void *object) = {
        [FIELD_STR] = check_str,   [FIELD_INT] = check_int,   [FIELD_REAL] = check_real,
        [FIELD_BOOL] = NULL,       [FIELD_ENUM] = check_enum, [FIELD_ENV] = check_env,
        [FIELD_STRV] = check_strv, [FIELD_LIST] = check_list, [FIELD_TIME] = NULL,
    };

    assert(at->f->kind < ARRAY_SIZE(checks));
    return !checks[at->f->kind] || checks[at->f->kind](at, object);
}

/* A JSON value of the right type for a text. */
static bool text_ok(const struct field_at *at, const struct json *v)
{
    if (json_type(v) != JSON_STRING)
        return field_issue(at, ISSUE_STRING_TYPE);
    return memchr(json_str(v), '\0', json_str_len(v)) == NULL ||
           field_wrong(at, "%s must not contain NUL", at->f->name);
}

static bool read_str(const struct field_at *at, const struct json *v, void *object)
{
    char **member = field_member(at->f, object);
    char *text = NULL;

    if (json_type(v) != JSON_NULL || !(at->f->flags & FIELD_NULLABLE)) {
        if (json_type(v) == JSON_STRING && !length_ok(at, json_str_len(v)))
            return false;
        if (!text_ok(at, v))
            return false;
        text = xstrndup(json_str(v), json_str_len(v));
    }
    free(*member);
    *member = text;
    return true;
}

static bool read_int(const struct field_at *at, const struct json *v, void *object)
{
    if ((at->f->flags & FIELD_STRICT) && json_type(v) != JSON_INT)
        return field_wrong(at, "%s", at->f->strict_text);
    return field_issue(at, coerce_int(v, field_member(at->f, object)));
}

static bool read_real(const struct field_at *at, const struct json *v, void *object)
{
    if ((at->f->flags & FIELD_STRICT) && json_type(v) != JSON_INT && json_type(v) != JSON_REAL)
        return field_wrong(at, "%s", at->f->strict_text);
    return field_issue(at, coerce_real(v, field_member(at->f, object)));
}

static bool read_bool(const struct field_at *at, const struct json *v, void *object)
{
    return field_issue(at, coerce_bool(v, field_member(at->f, object)));
}

/* "Input should be 'none', 'ro' or 'rw'". */
static bool add_enum_issue(const struct field_at *at)
{
    const struct field *f = at->f;
    AUTO_DONE(buf) struct buf list;
    buf_init(&list, sizeof(at->report->issues[0].text));

    for (size_t i = 0; f->names[i]; i++) {
        const char *link = i == 0 ? "" : f->names[i + 1] ? ", " : " or ";
        (void)buf_printf(&list, "%s'%s'", link, f->names[i]);
    }
    return report_add(at->report, at->place, f->flags & FIELD_LITERAL ? ISSUE_LITERAL : ISSUE_ENUM,
                      "Input should be %s", buf_str(&list));
}

static bool read_enum(const struct field_at *at, const struct json *v, void *object)
{
    return coerce_enum(v, at->f->names, field_member(at->f, object)) == ISSUE_NONE ||
           add_enum_issue(at);
}

static bool read_time(const struct field_at *at, const struct json *v, void *object)
{
    bool zoned;
    if (!field_issue(at, coerce_time(v, field_member(at->f, object), &zoned)))
        return false;
    return zoned || field_wrong(at, "%s", at->f->rule);
}

/* An environment or an argument list while it is read. */
struct entries {
    const struct field_at *at;
    char **list; /* owned */
    size_t n, bytes;
    bool ok; /* no entry was wrong by itself */
};

/* One entry, `name` NULL in an argument list. False: the list as a whole is wrong, and the rest of
 * it does not matter. */
static bool add_entry(struct entries *e, const char *name, const struct json *v)
{
    const struct field_place here = {.up = e->at->place, .key = name, .index = e->n};
    const struct field_at at = {e->at->f, &here, e->at->report};
    size_t name_len = name ? strlen(name) + 1 : 0;

    e->n++;
    if (!text_ok(&at, v) || !entry_length_ok(&at, name_len + json_str_len(v))) {
        e->ok = false;
        return true;
    }
    if (name && name[0] == '\0')
        return field_wrong(e->at, "%s names must not be empty", at.f->name);
    if (name && strchr(name, '='))
        return field_wrong(e->at, "%s names must not contain '='", at.f->name);
    e->bytes += name_len + json_str_len(v) + 1;
    if (!bytes_ok(e->at, e->bytes))
        return false;
    if (e->ok)
        e->list[e->n - 1] = xasprintf("%s%s%s", name ? name : "", name ? "=" : "", json_str(v));
    return true;
}

/* FIELD_ENV: an object of texts; FIELD_STRV: an array of them. */
static bool read_entries(const struct field_at *at, const struct json *v, void *object)
{
    bool is_env = at->f->kind == FIELD_ENV, whole = true;
    char ***member = field_member(at->f, object);

    if (json_type(v) != (is_env ? JSON_OBJECT : JSON_ARRAY))
        return field_issue(at, is_env ? ISSUE_DICT_TYPE : ISSUE_LIST_TYPE);
    if (!count_ok(at, json_len(v)))
        return false;
    AUTO_STRV char **list = xnew_n(char *, json_len(v) + 1);
    struct entries e = {.at = at, .list = list, .ok = true};
    for (void *it = is_env ? json_iter(v) : NULL; it && whole; it = json_iter_next(v, it))
        whole = add_entry(&e, json_iter_key(it), json_iter_value(it));
    for (size_t i = 0; !is_env && i < json_len(v) && whole; i++)
        whole = add_entry(&e, NULL, json_at(v, i));
    if (!whole || !e.ok)
        return false;
    strv_free(*member);
    *member = TAKE_PTR(list);
    return true;
}

/* The items go straight into the object, also half-built ones: its owner frees them. */
static bool read_list(const struct field_at *at, const struct json *v, void *object)
{
    const struct model *m = at->f->items;
    char **member = field_member(at->f, object);
    bool ok = true;

    if (json_type(v) != JSON_ARRAY)
        return field_issue(at, ISSUE_LIST_TYPE);
    if (!count_ok(at, json_len(v)))
        return false;
    field_clear(at->f, object);
    if (json_len(v) == 0)
        return true;
    *member = xcalloc(json_len(v), m->size);
    for (size_t i = 0; i < json_len(v); i++) {
        struct field_place here = {.up = at->place, .index = i};
        char *item = *member + i * m->size;

        model_init(m, item);
        *list_count(at->f, object) = i + 1;
        ok = model_parse_at(m, json_at(v, i), 0, item, &here, at->report) && ok;
    }
    return ok;
}

/* One JSON value into its field. */
static bool field_read(const struct field_at *at, const struct json *v, void *object)
{
    static bool (*const readers[])(const struct field_at *at, const struct json *v,
                                   void *object) = {
        [FIELD_STR] = read_str,      [FIELD_INT] = read_int,   [FIELD_REAL] = read_real,
        [FIELD_BOOL] = read_bool,    [FIELD_ENUM] = read_enum, [FIELD_ENV] = read_entries,
        [FIELD_STRV] = read_entries, [FIELD_LIST] = read_list, [FIELD_TIME] = read_time,
    };

    assert(at->f->kind < ARRAY_SIZE(readers));
    return readers[at->f->kind](at, v, object);
}

static_assert(sizeof(enum field_kind) == sizeof(int), "FIELD_ENUM stores enums as int");

static void field_init(const struct field *f, void *object)
{
    void *member = field_member(f, object);

    switch (f->kind) {
    case FIELD_STR:
        *(char **)member = f->text ? xstrdup(f->text) : NULL;
        break;
    case FIELD_INT:
    case FIELD_TIME:
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
        break; /* empty, as the caller zeroed it */
    }
}

/* Frees what the member owns. */
static void field_clear(const struct field *f, void *object)
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

static void check_members_known(const struct model *m, const struct json *v,
                                const struct field_place *up, struct report *report)
{
    for (void *it = json_iter(v); it; it = json_iter_next(v, it)) {
        struct field_place here = {.up = up, .key = json_iter_key(it)};
        if (!is_known(m, here.key))
            (void)report_add(report, &here, ISSUE_EXTRA, NULL);
    }
}

static void check_whole(const struct model *m, const void *object, const struct field_place *up,
                        struct report *report)
{
    const char *wrong = m->check ? m->check(object) : NULL;
    if (wrong)
        (void)report_add(report, up, ISSUE_VALUE, "%s", wrong);
}

static bool model_parse_at(const struct model *m, const struct json *v, uint64_t fixed,
                           void *object, const struct field_place *up, struct report *report)
{
    size_t before = report->n_total;

    assert(m->n_fields <= MODEL_FIELDS_MAX);
    if (json_type(v) != JSON_OBJECT)
        return report_add(report, up, ISSUE_MODEL_TYPE,
                          "Input should be a valid dictionary or instance of %s", m->name);
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        struct field_place here = {.up = up, .key = f->name};
        const struct field_at at = {f, &here, report};

        if (!((fixed | m->gone) & FIELD_BIT(i))) {
            const struct json *value = m->lookup ? m->lookup(v, f, m->arg) : json_get(v, f->name);
            if (!value && (f->flags & FIELD_REQUIRED)) {
                (void)report_add(report, &here, ISSUE_MISSING, NULL);
                continue;
            }
            if (value && !field_read(&at, value, object))
                continue;
        }
        (void)field_check(&at, object);
    }
    if (m->closed)
        check_members_known(m, v, up, report);
    if (report->n_total == before)
        check_whole(m, object, up, report);
    return report->n_total == before;
}

static bool model_check_at(const struct model *m, void *object, const struct field_place *up,
                           struct report *report)
{
    size_t before = report->n_total;

    for (size_t i = 0; i < m->n_fields; i++) {
        struct field_place here = {.up = up, .key = m->fields[i].name};
        (void)field_check(&(struct field_at){&m->fields[i], &here, report}, object);
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
