/* SPDX-License-Identifier: Apache-2.0 */

/* Finds, parses and writes the YAML block of a SKILL.md file. */

#include "fetch/frontmatter.h"

#include <errno.h>
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

struct anchor {
    char *name; /* owned */
    char *text; /* owned; NULL: false, or not a scalar */
};

struct reader {
    yaml_parser_t parser;
    struct frontmatter *out;
    unsigned depth; /* of open collections */
    bool mapping;   /* the document is one */
    bool value;     /* in the top mapping a value comes next */
    char **slot;    /* where it belongs, NULL: nobody asked */
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

static int broken(const struct reader *r, const char *problem, struct err *err)
{
    return err_set(err, ERR_INVALID, "SKILL.md front matter is not valid YAML: line %zu: %s",
                   r->parser.mark.line + 2, problem != NULL ? problem : "syntax error");
}

/* A tag of one's own would make the reference implementation refuse the whole block. */
static bool tag_is_known(const unsigned char *tag)
{
    static const char *const names[] = {"null",      "bool", "int",   "float", "binary",
                                        "timestamp", "omap", "pairs", "set",   "str",
                                        "seq",       "map",  "merge", "value"};
    const char *text = (const char *)tag;
    if (text == NULL || str_eq(text, "!"))
        return true;
    if (!str_starts(text, STANDARD_TAG))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (str_eq(text + strlen(STANDARD_TAG), names[i]))
            return true;
    return false;
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
    return frontmatter_scalar(text);
}

static void give(struct reader *r, char *owned)
{
    if (r->slot == NULL) {
        free(owned);
        return;
    }
    free(*r->slot); /* of keys that are given twice the last one counts */
    *r->slot = owned;
}

static int add_anchor(struct reader *r, const unsigned char *name, const char *text,
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

static const struct anchor *find_anchor(const struct reader *r, const char *name)
{
    for (size_t i = r->n_anchors; i > 0; i--)
        if (str_eq(r->anchors[i - 1].name, name))
            return &r->anchors[i - 1];
    return NULL;
}

/* Something has ended or stood alone at the level of the top mapping: `text` is a key or a value.
 */
static void top_item(struct reader *r, char *owned)
{
    struct {
        const char *name;
        char **slot;
    } keys[] = {{"name", &r->out->name},
                {"display_name", &r->out->display_name},
                {"description", &r->out->description}};
    if (r->value) {
        give(r, owned);
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

static int on_scalar(struct reader *r, const yaml_event_t *e, struct err *err)
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

static int on_alias(struct reader *r, const yaml_event_t *e, struct err *err)
{
    const struct anchor *a = find_anchor(r, (const char *)e->data.alias.anchor);
    if (a == NULL)
        return broken(r, "undefined alias", err);
    if (r->mapping && r->depth == 1)
        top_item(r, a->text != NULL ? xstrdup(a->text) : NULL);
    return 0;
}

static int on_start(struct reader *r, const yaml_event_t *e, struct err *err)
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

static int on_event(struct reader *r, const yaml_event_t *e, struct err *err)
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

static int read_events(struct reader *r, struct err *err)
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
    struct reader r = {.out = ret};
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
    struct jw w;
    buf_init(&json, out->max);
    jw_init(&w, &json);
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
