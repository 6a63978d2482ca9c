/* SPDX-License-Identifier: Apache-2.0 */

/* Reads YAML files: the configuration of boxd, plain settings as text and sections as JSON; and any
 * other file as JSON. */

#include "config/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <yaml.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

#define FILE_MAX (1U << 20)
#define SETTINGS_EVENTS_MAX 4096U
#define YAML_EVENTS_MAX 65536U
#define YAML_BYTES_MAX (4U << 20) /* of JSON */
#define YAML_DEPTH_MAX 16U

struct yaml_json {
    struct buf text;
    struct jw w;
    unsigned depth;
    bool wants_key[YAML_DEPTH_MAX]; /* by depth: in a mapping, and a key comes next */
    bool in_mapping[YAML_DEPTH_MAX];
    bool done; /* the value is complete */
};

/* YAML as JSON: events in, one value out. */

static bool has_anchor(const yaml_event_t *e)
{
    return (e->type == YAML_SCALAR_EVENT && e->data.scalar.anchor != NULL) ||
           (e->type == YAML_SEQUENCE_START_EVENT && e->data.sequence_start.anchor != NULL) ||
           (e->type == YAML_MAPPING_START_EVENT && e->data.mapping_start.anchor != NULL);
}

static void yaml_json_init(struct yaml_json *y)
{
    memset(y, 0, sizeof(*y));
    buf_init(&y->text, YAML_BYTES_MAX);
    jw_init(&y->w, &y->text);
}

static bool is_one_of(const char *s, const char *const *words)
{
    while (*words != NULL && !str_eq(*words, s))
        words++;
    return *words != NULL;
}

/* A plain scalar has the type that YAML's core schema gives it, as far as JSON has that type. */
static void put_plain(struct jw *w, const char *s)
{
    static const char *const null[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"true", "True", "TRUE", NULL};
    static const char *const no[] = {"false", "False", "FALSE", NULL};
    int64_t number;
    double real;

    if (is_one_of(s, null))
        jw_null(w);
    else if (is_one_of(s, yes) || is_one_of(s, no))
        jw_bool(w, is_one_of(s, yes));
    else if (str_to_i64(s, &number) == 0)
        jw_int(w, number);
    else if (strspn(s, "+-.0123456789eE") == strlen(s) && str_to_double(s, &real) == 0)
        jw_real(w, real);
    else
        jw_str(w, s);
}

static const char *put_scalar(struct yaml_json *y, const yaml_event_t *e)
{
    const char *s = (const char *)e->data.scalar.value;

    if (strlen(s) != e->data.scalar.length)
        return "NUL is not allowed";
    if (y->in_mapping[y->depth] && y->wants_key[y->depth]) {
        y->wants_key[y->depth] = false;
        jw_key(&y->w, s);
        return NULL;
    }
    y->wants_key[y->depth] = true;
    if (e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        put_plain(&y->w, s);
    else
        jw_str(&y->w, s);
    return NULL;
}

static const char *open_nested(struct yaml_json *y, bool mapping)
{
    if (y->in_mapping[y->depth] && y->wants_key[y->depth])
        return "a key must be text";
    if (y->depth + 1 >= YAML_DEPTH_MAX)
        return "this is nested too deep";
    y->wants_key[y->depth++] = true;
    y->in_mapping[y->depth] = mapping;
    y->wants_key[y->depth] = true;
    if (mapping)
        jw_object(&y->w);
    else
        jw_array(&y->w);
    return NULL;
}

/* One event that belongs to the value: scalars, and beginnings and ends of lists and mappings.
 * NULL, or what is wrong with it. */
static const char *yaml_json_feed(struct yaml_json *y, const yaml_event_t *e)
{
    const char *wrong = NULL;

    if (has_anchor(e))
        return "anchors are not allowed";
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        wrong = put_scalar(y, e);
        break;
    case YAML_SEQUENCE_START_EVENT:
        wrong = open_nested(y, false);
        break;
    case YAML_MAPPING_START_EVENT:
        wrong = open_nested(y, true);
        break;
    case YAML_SEQUENCE_END_EVENT:
        jw_array_end(&y->w);
        y->depth--;
        break;
    case YAML_MAPPING_END_EVENT:
        jw_object_end(&y->w);
        y->depth--;
        break;
    case YAML_ALIAS_EVENT:
        return "aliases are not allowed";
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    default:
        return NULL;
    }
    y->done = y->depth == 0;
    return wrong;
}

/* The value, owned, once `done`. */
static int yaml_json_take(struct yaml_json *y, struct json **ret, struct err *err)
{
    if (jw_end(&y->w) < 0)
        return err_set(err, ERR_LIMIT, "it is too large");
    return json_parse(y->text.data, y->text.len, ret, err);
}

typedef int yaml_event_fn(void *arg, const yaml_event_t *e, struct err *err);

/* Hands over each event of the text. 1 when there are more than `max` of them. */
static int walk_events(const struct buf *text, const char *path, unsigned max, yaml_event_fn *fn,
                       void *arg, struct err *err)
{
    yaml_parser_t parser;
    bool end = false;
    int r = 0;

    if (!yaml_parser_initialize(&parser))
        return err_set(err, ERR_LIMIT, "no memory to read '%s'", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)buf_str(text), text->len);
    for (unsigned n = 0; r == 0 && !end; n++) {
        yaml_event_t e;
        if (n >= max) {
            r = 1;
        } else if (!yaml_parser_parse(&parser, &e)) {
            r = err_set(err, ERR_INVALID, "%s line %zu: %s", path, parser.problem_mark.line + 1,
                        parser.problem != NULL ? parser.problem : "not valid YAML");
        } else {
            end = e.type == YAML_STREAM_END_EVENT;
            r = fn(arg, &e, err);
            yaml_event_delete(&e);
        }
    }
    yaml_parser_delete(&parser);
    return r;
}

struct yaml_file {
    struct yaml_json y;
    const char *path;
};

static int on_yaml_event(void *arg, const yaml_event_t *e, struct err *err)
{
    struct yaml_file *r = arg;
    const char *wrong = r->y.done && e->type == YAML_DOCUMENT_START_EVENT
                            ? "a second document is not allowed"
                            : yaml_json_feed(&r->y, e);

    return wrong == NULL ? 0
                         : err_set(err, ERR_INVALID, "%s line %zu: %s", r->path,
                                   e->start_mark.line + 1, wrong);
}

int config_yaml_read(int fd, const char *path, struct json **ret, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(FILE_MAX);
    struct yaml_file reader = {.path = path};

    int r = fd_read_to_buf(fd, &text);
    if (r < 0)
        return err_sys(err, -r, "read '%s'", path);
    yaml_json_init(&reader.y);
    r = walk_events(&text, path, YAML_EVENTS_MAX, on_yaml_event, &reader, err);
    if (text.len > 0)
        explicit_bzero(text.data, text.len); /* it may hold tokens */
    if (r > 0)
        r = err_set(err, ERR_LIMIT, "'%s' is too large", path);
    else if (r == 0 && !reader.y.done)
        r = json_parse("{}", 2, ret, err);
    else if (r == 0 && yaml_json_take(&reader.y, ret, err) < 0)
        r = err_wrap(err, "%s", path);
    buf_done(&reader.y.text);
    return r;
}

/* The configuration of boxd. */

struct settings_reader {
    const char *path;
    char **values;
    int key;  /* index of the setting whose value comes next, -1: a key comes next */
    bool top; /* inside the document's mapping */
    bool list;
    struct yaml_json sections; /* an object that is open all the time */
    unsigned seen;             /* set of sections */
};

static const char *const section_names[] = {"audit",    "box",     "mcp",    "outputs", "ports",
                                            "profiles", "sandbox", "system", "tokens"};

static int bad_line(const struct settings_reader *r, size_t line, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "%s line %zu: %s", r->path, line + 1, what);
}

/* A value of a section is under way. */
static bool in_section(const struct settings_reader *r)
{
    return r->sections.depth > 1 || !r->sections.wants_key[1];
}

static int feed_section(struct settings_reader *r, const yaml_event_t *e, struct err *err)
{
    const char *wrong = yaml_json_feed(&r->sections, e);
    return wrong != NULL ? bad_line(r, e->start_mark.line, err, wrong) : 0;
}

/* 1: the key was that of a section, and what follows belongs to it. */
static int begin_section(struct settings_reader *r, const yaml_event_t *e, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(section_names); i++) {
        if (!str_eq((const char *)e->data.scalar.value, section_names[i]))
            continue;
        if ((r->seen & 1U << i) != 0)
            return bad_line(r, e->start_mark.line, err, "setting given twice");
        r->seen |= 1U << i;
        int n = feed_section(r, e, err);
        return n < 0 ? n : 1;
    }
    return 0;
}

static int on_scalar(struct settings_reader *r, const yaml_event_t *e, struct err *err)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t line = e->start_mark.line;
    if (strlen(text) != e->data.scalar.length)
        return bad_line(r, line, err, "NUL is not allowed");
    if (!r->top)
        return bad_line(r, line, err, "the file must be a mapping of settings");
    if (r->key < 0) {
        int section = begin_section(r, e, err);
        if (section != 0)
            return section < 0 ? section : 0;
        for (int i = 0; i < CONFIG_KEY_MAX; i++)
            if (str_eq(text, config_keys[i].name))
                r->key = i;
        if (r->key < 0)
            return err_set(err, ERR_INVALID,
                           "%s line %zu: unknown setting '%.60s'; see boxd --help", r->path,
                           line + 1, text);
        return r->values[r->key] != NULL ? bad_line(r, line, err, "setting given twice") : 0;
    }
    char *old = r->values[r->key];
    r->values[r->key] = old == NULL || *old == '\0' ? xstrdup(text) : xasprintf("%s,%s", old, text);
    free(old);
    if (!r->list)
        r->key = -1;
    return 0;
}

static int on_event(void *arg, const yaml_event_t *e, struct err *err)
{
    struct settings_reader *r = arg;
    size_t line = e->start_mark.line;
    if (in_section(r))
        return feed_section(r, e, err);
    if (has_anchor(e))
        return bad_line(r, line, err, "anchors are not allowed");
    switch (e->type) {
    case YAML_MAPPING_START_EVENT:
        if (r->top)
            return bad_line(r, line, err, "settings have no sections");
        r->top = true;
        return 0;
    case YAML_SEQUENCE_START_EVENT:
        if ((r->key != CONFIG_MOUNT_ROOTS && r->key != CONFIG_ALIASES) || r->list)
            return bad_line(r, line, err, "a list is not expected here");
        r->list = true;
        r->values[r->key] = xstrdup(""); /* an empty list is not the same as none */
        return 0;
    case YAML_SEQUENCE_END_EVENT:
        r->list = false;
        r->key = -1;
        return 0;
    case YAML_SCALAR_EVENT:
        return on_scalar(r, e, err);
    case YAML_ALIAS_EVENT:
        return bad_line(r, line, err, "aliases are not allowed");
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return 0;
    }
    return 0;
}

static void begin_sections(struct yaml_json *y)
{
    yaml_json_init(y);
    jw_object(&y->w);
    y->depth = 1;
    y->in_mapping[1] = y->wants_key[1] = true;
}

int config_file_read(const char *path, char **values, struct json **ret_sections, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(FILE_MAX);
    struct settings_reader reader = {.path = path, .values = values, .key = -1};
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, &text);
    if (r < 0)
        return err_sys(err, -r, "read configuration '%s'", path);
    begin_sections(&reader.sections);
    r = walk_events(&text, path, SETTINGS_EVENTS_MAX, on_event, &reader, err);
    if (r > 0)
        r = err_set(err, ERR_LIMIT, "configuration '%s' is too large", path);
    if (r == 0) {
        jw_object_end(&reader.sections.w);
        if (yaml_json_take(&reader.sections, ret_sections, err) < 0)
            r = err_wrap(err, "%s", path);
    }
    buf_done(&reader.sections.text);
    return r;
}
