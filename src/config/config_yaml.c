/* SPDX-License-Identifier: Apache-2.0 */

/* Turns events of libyaml into JSON text. */

#include "config/config_yaml.h"

#include <string.h>
#include <yaml.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#define FILE_MAX (1U << 20)
#define EVENTS_MAX 65536U

void config_yaml_init(struct config_yaml *y)
{
    memset(y, 0, sizeof(*y));
    buf_init(&y->text, CONFIG_YAML_BYTES_MAX);
    jw_init(&y->w, &y->text);
}

void config_yaml_done(struct config_yaml *y)
{
    buf_done(&y->text);
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

static const char *scalar(struct config_yaml *y, const yaml_event_t *e)
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

static const char *open_one(struct config_yaml *y, bool mapping)
{
    if (y->in_mapping[y->depth] && y->wants_key[y->depth])
        return "a key must be text";
    if (y->depth + 1 >= CONFIG_YAML_DEPTH_MAX)
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

const char *config_yaml_feed(struct config_yaml *y, const yaml_event_t *e)
{
    const char *wrong = NULL;

    switch (e->type) {
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.anchor != NULL)
            return "anchors are not allowed";
        wrong = scalar(y, e);
        break;
    case YAML_SEQUENCE_START_EVENT:
        wrong =
            e->data.sequence_start.anchor != NULL ? "anchors are not allowed" : open_one(y, false);
        break;
    case YAML_MAPPING_START_EVENT:
        wrong =
            e->data.mapping_start.anchor != NULL ? "anchors are not allowed" : open_one(y, true);
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

int config_yaml_take(struct config_yaml *y, struct json **ret, struct err *err)
{
    if (jw_end(&y->w) < 0)
        return err_set(err, ERR_LIMIT, "it is too large");
    return json_parse(y->text.data, y->text.len, ret, err);
}

/* 0, 1 at the end, or an error. */
static int next(yaml_parser_t *parser, struct config_yaml *y, const char *path, struct err *err)
{
    yaml_event_t e;

    if (!yaml_parser_parse(parser, &e))
        return err_set(err, ERR_INVALID, "%s line %zu: %s", path, parser->problem_mark.line + 1,
                       parser->problem != NULL ? parser->problem : "not valid YAML");
    const char *wrong = y->done && e.type == YAML_DOCUMENT_START_EVENT
                            ? "a second document is not allowed"
                            : config_yaml_feed(y, &e);
    int r = e.type == YAML_STREAM_END_EVENT;
    if (wrong != NULL)
        r = err_set(err, ERR_INVALID, "%s line %zu: %s", path, e.start_mark.line + 1, wrong);
    yaml_event_delete(&e);
    return r;
}

int config_yaml_read(int fd, const char *path, struct json **ret, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(config_yaml) struct config_yaml y;
    yaml_parser_t parser;
    unsigned n = 0;

    buf_init(&text, FILE_MAX);
    config_yaml_init(&y);
    int r = fd_read_to_buf(fd, &text);
    if (r < 0)
        return err_sys(err, -r, "read '%s'", path);
    if (!yaml_parser_initialize(&parser))
        return err_set(err, ERR_LIMIT, "no memory to read '%s'", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)buf_str(&text), text.len);
    do
        r = next(&parser, &y, path, err);
    while (r == 0 && ++n < EVENTS_MAX);
    yaml_parser_delete(&parser);
    if (text.len > 0)
        explicit_bzero(text.data, text.len); /* it may hold tokens */
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_LIMIT, "'%s' is too large", path);
    if (!y.done)
        return json_parse("{}", 2, ret, err);
    return config_yaml_take(&y, ret, err) < 0 ? err_wrap(err, "%s", path) : 0;
}
