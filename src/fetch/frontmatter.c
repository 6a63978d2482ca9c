/* SPDX-License-Identifier: Apache-2.0 */

/* Finds, parses and writes the YAML block of a SKILL.md file.
 *
 * YAML 1.1 decides by its looks what a plain scalar is, and clients see what Python's str() makes
 * of that: `name: 0x10` is a skill called 16. */

#include "fetch/frontmatter.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <yaml.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#define MARKER "---"
#define MARKER_LINE_MAX 256U /* bytes, blanks included */
#define STANDARD_TAG "tag:yaml.org,2002:"
#define NUMBER_MAX 64U /* digits; whatever is longer stays text */

static bool is_one_of(const char *text, const char *const *words)
{
    for (size_t i = 0; words[i] != NULL; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

static unsigned digit_value(char c)
{
    if (isdigit((unsigned char)c))
        return (unsigned)(c - '0');
    return isxdigit((unsigned char)c) ? (unsigned)(tolower((unsigned char)c) - 'a' + 10) : 99;
}

/* Digits of a base without the underscores; false when there is anything else, or nothing. */
static bool plain_digits(const char *s, unsigned base, char ret[static NUMBER_MAX])
{
    size_t n = 0;
    for (; *s != '\0'; s++) {
        if (*s == '_')
            continue;
        if (digit_value(*s) >= base || n + 1 >= NUMBER_MAX)
            return false;
        ret[n++] = *s;
    }
    ret[n] = '\0';
    return n > 0;
}

static bool to_number(const char *s, unsigned base, uint64_t *ret)
{
    uint64_t sum = 0;
    for (; *s != '\0'; s++)
        if (__builtin_mul_overflow(sum, base, &sum) ||
            __builtin_add_overflow(sum, digit_value(*s), &sum))
            return false;
    *ret = sum;
    return true;
}

/* Hours, minutes and seconds: 1:30 is 90. */
static bool sexagesimal(const char *s, uint64_t *ret)
{
    uint64_t sum = 0;
    unsigned parts = 0;
    while (*s != '\0') {
        size_t n = strspn(s, "0123456789");
        char part[24];
        uint64_t value;
        if (n == 0 || n >= sizeof(part) || (parts > 0 && n > 2) ||
            str_fmt(part, sizeof(part), "%.*s", (int)n, s) < 0 || str_to_u64(part, &value) < 0 ||
            (parts > 0 && value > 59) || __builtin_mul_overflow(sum, 60, &sum) ||
            __builtin_add_overflow(sum, value, &sum))
            return false;
        parts++;
        s += n;
        if (*s != ':')
            break;
        s++;
        if (*s == '\0')
            return false;
    }
    *ret = sum;
    return *s == '\0' && parts > 1;
}

/* 1: an integer, *ret its text, NULL for zero. 0: not one. */
static bool integer_text(const char *text, char **ret)
{
    bool negative = text[0] == '-';
    const char *s = text + (text[0] == '-' || text[0] == '+');
    char plain[NUMBER_MAX];
    uint64_t value = 0;
    bool known = false;
    unsigned base = s[0] != '0' || s[1] == '\0' ? 10 : s[1] == 'b' ? 2 : s[1] == 'x' ? 16 : 8;
    if (base != 10)
        known =
            plain_digits(s + (base == 8 ? 1 : 2), base, plain) && to_number(plain, base, &value);
    else if (isdigit((unsigned char)s[0]) && plain_digits(s, 10, plain)) {
        known = to_number(plain, 10, &value);
        if (!known) { /* Python has no largest integer */
            *ret = xasprintf("%s%s", negative ? "-" : "", plain);
            return true;
        }
    } else if (isdigit((unsigned char)s[0]) && s[0] != '0') {
        known = sexagesimal(s, &value);
    }
    if (known && value != 0)
        *ret = xasprintf("%s%llu", negative ? "-" : "", (unsigned long long)value);
    return known;
}

/* [-+]? digits "." digits? ([eE] [-+] digits)?, or without the first digits and the sign. */
static bool looks_real(const char *s)
{
    bool sign = *s == '-' || *s == '+';
    s += sign;
    size_t before = strspn(s, "0123456789_");
    if (before > 0 && *s == '_')
        return false;
    if (s[before] != '.' || (before == 0 && sign))
        return false;
    s += before + 1;
    size_t after = strspn(s, "0123456789_");
    if (before == 0 && (after == 0 || *s == '_'))
        return false;
    s += after;
    if (*s == 'e' || *s == 'E') {
        if (s[1] != '-' && s[1] != '+')
            return false;
        s += 2;
        size_t n = strspn(s, "0123456789");
        return n > 0 && s[n] == '\0';
    }
    return *s == '\0';
}

static bool real_text(const char *text, char **ret)
{
    static const char *const inf[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nan[] = {".nan", ".NaN", ".NAN", NULL};
    bool sign = *text == '-' || *text == '+';
    double value;
    if (is_one_of(text + sign, inf)) {
        *ret = xstrdup(*text == '-' ? "-inf" : "inf");
        return true;
    }
    if (is_one_of(text, nan)) {
        *ret = xstrdup("nan");
        return true;
    }
    char plain[NUMBER_MAX];
    size_t n = 0;
    if (!looks_real(text) || strlen(text) + 2 >= NUMBER_MAX)
        return false;
    for (const char *s = text + (*text == '+'); *s != '\0'; s++)
        if (*s != '_')
            plain[n++] = *s;
    plain[n] = '\0';
    if (str_to_double(plain, &value) < 0)
        return false;
    if (fpclassify(value) == FP_ZERO)
        return true;
    AUTO_DONE(buf) struct buf out = BUF_INIT(NUMBER_MAX);
    struct jw w = JW_INIT(&out);
    jw_real(&w, value);
    if (jw_end(&w) < 0)
        return false;
    *ret = buf_take(&out);
    return true;
}

/* A plain scalar as Python's str() of what it means; NULL when that is false ("no", "0x0", "~").
 * Owned by the caller. */
static char *plain_scalar(const char *text)
{
    static const char *const no[] = {"",    "~",   "null", "Null",  "NULL",  "no",    "No", "NO",
                                     "off", "Off", "OFF",  "false", "False", "FALSE", NULL};
    static const char *const yes[] = {"yes", "Yes",  "YES",  "on",   "On",
                                      "ON",  "true", "True", "TRUE", NULL};
    char *number = NULL;
    if (is_one_of(text, no))
        return NULL;
    if (is_one_of(text, yes))
        return xstrdup("True");
    if (integer_text(text, &number) || real_text(text, &number))
        return number;
    return xstrdup(text);
}

struct anchor {
    char *name; /* owned */
    char *text; /* owned; NULL: false, or not a scalar */
};

struct yaml_reader {
    yaml_parser_t parser;
    struct frontmatter *out;
    unsigned depth; /* of open collections */
    bool mapping;   /* the document is one */
    bool value;     /* in the top mapping a value comes next */
    char **slot;    /* where it belongs, NULL: it is of no interest */
    unsigned documents;
    struct anchor anchors[FRONTMATTER_ANCHORS_MAX];
    size_t n_anchors;
};

void frontmatter_done(struct frontmatter *fm)
{
    free(fm->name);
    free(fm->display_name);
    free(fm->description);
    *fm = (struct frontmatter){0};
}

/* How many bytes end a line here: those that Python's splitlines() knows. 0: none. */
static size_t line_end(const char *s, size_t len)
{
    static const char ends[] = "\n\r\v\f\x1c\x1d\x1e";
    if (len >= 2 && s[0] == '\r' && s[1] == '\n')
        return 2;
    if (s[0] != '\0' && strchr(ends, s[0]) != NULL)
        return 1;
    if (len >= 2 && memcmp(s, "\xc2\x85", 2) == 0)
        return 2;
    if (len >= 3 && (memcmp(s, "\xe2\x80\xa8", 3) == 0 || memcmp(s, "\xe2\x80\xa9", 3) == 0))
        return 3;
    return 0;
}

/* The end of the line that starts at `at`, its terminator included. */
static size_t next_line(const char *text, size_t len, size_t at)
{
    for (; at < len; at++) {
        size_t n = line_end(text + at, len - at);
        if (n > 0)
            return at + n;
    }
    return len;
}

static bool is_marker(const char *line, size_t len)
{
    if (len > MARKER_LINE_MAX || memmem(line, len, MARKER, strlen(MARKER)) == NULL ||
        memchr(line, '\0', len) != NULL)
        return false;
    AUTO_FREE char *copy = xstrndup(line, len);
    AUTO_FREE char *bare = str_strip(copy);
    return str_eq(bare, MARKER);
}

/* Finds the block. False: there is none, and the whole text is instructions. */
static bool find_block(const char *text, size_t len, size_t *ret_start, size_t *ret_end,
                       size_t *ret_body)
{
    if (len < strlen(MARKER) || memcmp(text, MARKER, strlen(MARKER)) != 0)
        return false;
    size_t start = next_line(text, len, 0);
    if (!is_marker(text, start))
        return false;
    for (size_t at = start; at < len;) {
        size_t end = next_line(text, len, at);
        if (is_marker(text + at, end - at)) {
            *ret_start = start;
            *ret_end = at;
            for (; end < len && text[end] == '\n'; end++)
                ;
            *ret_body = end;
            return true;
        }
        at = end;
    }
    return false;
}

static int broken(const struct yaml_reader *r, const char *problem, struct err *err)
{
    return err_set(err, ERR_INVALID, "SKILL.md front matter is not valid YAML: line %zu: %s",
                   r->parser.mark.line + 2, problem != NULL ? problem : "syntax error");
}

/* A tag of one's own would make the reference implementation refuse the whole block. */
static bool tag_is_known(const unsigned char *tag)
{
    static const char *const names[] = {"null",      "bool", "int",   "float", "binary",
                                        "timestamp", "omap", "pairs", "set",   "str",
                                        "seq",       "map",  "merge", "value", NULL};
    const char *text = (const char *)tag;
    return text == NULL || str_eq(text, "!") ||
           (str_starts(text, STANDARD_TAG) && is_one_of(text + strlen(STANDARD_TAG), names));
}

static char *scalar_text(const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    const char *tag = (const char *)e->data.scalar.tag;
    bool is_text = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || str_eq(tag, "!");
    if (tag != NULL && !str_eq(tag, "!"))
        is_text = str_eq(tag, STANDARD_TAG "str");
    if (is_text)
        return *text != '\0' ? xstrdup(text) : NULL;
    return plain_scalar(text);
}

static void set_slot(struct yaml_reader *r, char *owned)
{
    if (r->slot == NULL) {
        free(owned);
        return;
    }
    free(*r->slot); /* of keys that are given twice the last one counts */
    *r->slot = owned;
}

static int add_anchor(struct yaml_reader *r, const unsigned char *name, const char *text,
                      struct err *err)
{
    if (name == NULL)
        return 0;
    if (r->n_anchors == FRONTMATTER_ANCHORS_MAX)
        return err_set(err, ERR_LIMIT, "SKILL.md front matter has more than %u anchors",
                       FRONTMATTER_ANCHORS_MAX);
    r->anchors[r->n_anchors++] =
        (struct anchor){xstrdup((const char *)name), text != NULL ? xstrdup(text) : NULL};
    return 0;
}

static const struct anchor *find_anchor(const struct yaml_reader *r, const char *name)
{
    for (size_t i = r->n_anchors; i > 0; i--)
        if (str_eq(r->anchors[i - 1].name, name))
            return &r->anchors[i - 1];
    return NULL;
}

/* Something has ended or stood alone at the level of the top mapping: `text` is a key or a value.
 */
static void top_item(struct yaml_reader *r, char *owned)
{
    struct {
        const char *name;
        char **slot;
    } keys[] = {{"name", &r->out->name},
                {"display_name", &r->out->display_name},
                {"description", &r->out->description}};
    if (r->value) {
        set_slot(r, owned);
        r->slot = NULL;
    } else {
        r->slot = NULL;
        for (size_t i = 0; owned != NULL && i < ARRAY_SIZE(keys); i++)
            if (str_eq(owned, keys[i].name))
                r->slot = keys[i].slot;
        free(owned);
    }
    r->value = !r->value;
}

static int on_scalar(struct yaml_reader *r, const yaml_event_t *e, struct err *err)
{
    if (!tag_is_known(e->data.scalar.tag))
        return broken(r, "unknown tag", err);
    if (strlen((const char *)e->data.scalar.value) != e->data.scalar.length)
        return broken(r, "NUL is not allowed", err);
    AUTO_FREE char *text = scalar_text(e);
    int rc = add_anchor(r, e->data.scalar.anchor, text, err);
    if (rc == 0 && r->mapping && r->depth == 1)
        top_item(r, TAKE_PTR(text));
    return rc;
}

static int on_alias(struct yaml_reader *r, const yaml_event_t *e, struct err *err)
{
    const struct anchor *a = find_anchor(r, (const char *)e->data.alias.anchor);
    if (a == NULL)
        return broken(r, "undefined alias", err);
    if (r->mapping && r->depth == 1)
        top_item(r, a->text != NULL ? xstrdup(a->text) : NULL);
    return 0;
}

static int on_start(struct yaml_reader *r, const yaml_event_t *e, struct err *err)
{
    bool map = e->type == YAML_MAPPING_START_EVENT;
    if (!tag_is_known(map ? e->data.mapping_start.tag : e->data.sequence_start.tag))
        return broken(r, "unknown tag", err);
    if (r->depth == FRONTMATTER_DEPTH_MAX)
        return err_set(err, ERR_LIMIT, "SKILL.md front matter is nested deeper than %u levels",
                       FRONTMATTER_DEPTH_MAX);
    if (r->depth++ == 0)
        r->mapping = map;
    return add_anchor(r, map ? e->data.mapping_start.anchor : e->data.sequence_start.anchor, NULL,
                      err);
}

static int on_event(struct yaml_reader *r, const yaml_event_t *e, struct err *err)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return on_scalar(r, e, err);
    case YAML_ALIAS_EVENT:
        return on_alias(r, e, err);
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return on_start(r, e, err);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        if (--r->depth == 1 && r->mapping)
            top_item(r, NULL); /* a collection: none of our three keys wants one */
        return 0;
    case YAML_DOCUMENT_START_EVENT:
        return ++r->documents > 1 ? broken(r, "a second document", err) : 0;
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        return 0;
    }
    return 0;
}

static int read_events(struct yaml_reader *r, struct err *err)
{
    int rc = 0;
    bool end = false;
    for (unsigned n = 0; rc == 0 && !end; n++) {
        yaml_event_t e;
        if (n >= FRONTMATTER_EVENTS_MAX)
            return err_set(err, ERR_LIMIT, "SKILL.md front matter has more than %u parts",
                           FRONTMATTER_EVENTS_MAX);
        if (!yaml_parser_parse(&r->parser, &e))
            return broken(r, r->parser.problem, err);
        end = e.type == YAML_STREAM_END_EVENT;
        rc = on_event(r, &e, err);
        yaml_event_delete(&e);
    }
    return rc;
}

int frontmatter_read(const char *text, size_t len, struct frontmatter *ret, struct err *err)
{
    struct yaml_reader r = {.out = ret};
    size_t start = 0, end = 0;
    *ret = (struct frontmatter){0};
    if (!find_block(text, len, &start, &end, &ret->body))
        return 0;
    if (!yaml_parser_initialize(&r.parser))
        return err_set(err, ERR_LIMIT, "no memory to read SKILL.md");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text + start, end - start);
    int rc = read_events(&r, err);
    yaml_parser_delete(&r.parser);
    for (size_t i = 0; i < r.n_anchors; i++) {
        free(r.anchors[i].name);
        free(r.anchors[i].text);
    }
    return rc;
}

/* JSON's quoted strings are YAML's, but for three characters that YAML has only escaped. */
static int put_quoted(struct buf *out, const char *text)
{
    static const struct {
        const char *raw, *escaped;
    } special[] = {
        {"\xef\xbb\xbf", "\\ufeff"}, {"\xef\xbf\xbe", "\\ufffe"}, {"\xef\xbf\xbf", "\\uffff"}};
    AUTO_DONE(buf) struct buf json;
    struct jw w = JW_INIT(&json);
    buf_init(&json, out->max);
    jw_str(&w, text);
    int r = jw_end(&w);
    for (const char *s = buf_str(&json); r == 0 && *s != '\0';) {
        size_t i = 0;
        for (; i < ARRAY_SIZE(special) && strncmp(s, special[i].raw, 3) != 0; i++)
            ;
        if (i < ARRAY_SIZE(special)) {
            r = buf_puts(out, special[i].escaped);
            s += 3;
        } else {
            r = buf_putc(out, *s++);
        }
    }
    return r;
}

static int put_field(struct buf *out, const char *key, const char *text, bool *ret_any)
{
    AUTO_FREE char *bare = text != NULL ? str_strip(text) : NULL;
    if (bare == NULL || *bare == '\0')
        return 0;
    int r = *ret_any ? 0 : buf_puts(out, MARKER "\n");
    *ret_any = true;
    if (r == 0)
        r = buf_printf(out, "%s: ", key);
    if (r == 0)
        r = put_quoted(out, text);
    return r < 0 ? r : buf_putc(out, '\n');
}

int frontmatter_write(const struct frontmatter *fm, const char *instructions, size_t len,
                      struct buf *out)
{
    bool any = false;
    int r = put_field(out, "name", fm->name, &any);
    if (r == 0)
        r = put_field(out, "display_name", fm->display_name, &any);
    if (r == 0)
        r = put_field(out, "description", fm->description, &any);
    if (r == 0 && any)
        r = buf_puts(out, MARKER "\n\n");
    return r < 0 ? r : buf_append(out, instructions, len);
}
