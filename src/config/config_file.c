/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the YAML file: plain settings as text, sections as JSON. */

#include "config/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "config/config_yaml.h"

#define FILE_MAX (1U << 20)
#define EVENTS_MAX 4096U

struct reader {
    yaml_parser_t parser;
    const char *path;
    char **values;
    int key;  /* index of the setting whose value comes next, -1: a key comes next */
    bool top; /* inside the document's mapping */
    bool list;
    struct config_yaml sections; /* an object that is open all the time */
    unsigned seen;               /* set of sections */
};

static const char *const section_names[] = {"audit",    "box",     "mcp",    "outputs",
                                            "profiles", "sandbox", "system", "tokens"};

static int bad(const struct reader *r, size_t line, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "%s line %zu: %s", r->path, line + 1, what);
}

/* A value of a section is under way. */
static bool in_section(const struct reader *r)
{
    return r->sections.depth > 1 || !r->sections.wants_key[1];
}

static int feed(struct reader *r, const yaml_event_t *e, struct err *err)
{
    const char *wrong = config_yaml_feed(&r->sections, e);
    return wrong != NULL ? bad(r, e->start_mark.line, err, wrong) : 0;
}

/* 1: the key was that of a section, and what follows belongs to it. */
static int begin_section(struct reader *r, const yaml_event_t *e, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(section_names); i++) {
        if (!str_eq((const char *)e->data.scalar.value, section_names[i]))
            continue;
        if ((r->seen & 1U << i) != 0)
            return bad(r, e->start_mark.line, err, "setting given twice");
        r->seen |= 1U << i;
        int n = feed(r, e, err);
        return n < 0 ? n : 1;
    }
    return 0;
}

static int on_scalar(struct reader *r, const yaml_event_t *e, struct err *err)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t line = e->start_mark.line;
    if (strlen(text) != e->data.scalar.length)
        return bad(r, line, err, "NUL is not allowed");
    if (!r->top)
        return bad(r, line, err, "the file must be a mapping of settings");
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
        return r->values[r->key] != NULL ? bad(r, line, err, "setting given twice") : 0;
    }
    char *old = r->values[r->key];
    r->values[r->key] = old == NULL || *old == '\0' ? xstrdup(text) : xasprintf("%s,%s", old, text);
    free(old);
    if (!r->list)
        r->key = -1;
    return 0;
}

static bool has_anchor(const yaml_event_t *e)
{
    return (e->type == YAML_SCALAR_EVENT && e->data.scalar.anchor != NULL) ||
           (e->type == YAML_SEQUENCE_START_EVENT && e->data.sequence_start.anchor != NULL) ||
           (e->type == YAML_MAPPING_START_EVENT && e->data.mapping_start.anchor != NULL);
}

static int on_event(struct reader *r, const yaml_event_t *e, struct err *err)
{
    size_t line = e->start_mark.line;
    if (has_anchor(e))
        return bad(r, line, err, "anchors are not allowed");
    if (in_section(r))
        return feed(r, e, err);
    switch (e->type) {
    case YAML_MAPPING_START_EVENT:
        if (r->top)
            return bad(r, line, err, "settings have no sections");
        r->top = true;
        return 0;
    case YAML_SEQUENCE_START_EVENT:
        if ((r->key != CONFIG_MOUNT_ROOTS && r->key != CONFIG_ALIASES) || r->list)
            return bad(r, line, err, "a list is not expected here");
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
        return bad(r, line, err, "aliases are not allowed");
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

static int read_events(struct reader *r, struct err *err)
{
    bool end = false;
    int e = 0;
    for (unsigned n = 0; e == 0 && !end; n++) {
        yaml_event_t event;
        if (n >= EVENTS_MAX)
            return err_set(err, ERR_LIMIT, "configuration '%s' is too large", r->path);
        if (!yaml_parser_parse(&r->parser, &event))
            return bad(r, r->parser.problem_mark.line, err,
                       r->parser.problem != NULL ? r->parser.problem : "not valid YAML");
        end = event.type == YAML_STREAM_END_EVENT;
        e = on_event(r, &event, err);
        yaml_event_delete(&event);
    }
    return e;
}

static void begin_sections(struct config_yaml *y)
{
    config_yaml_init(y);
    jw_object(&y->w);
    y->depth = 1;
    y->in_mapping[1] = y->wants_key[1] = true;
}

static int take_sections(struct reader *r, struct json **ret, struct err *err)
{
    jw_object_end(&r->sections.w);
    return config_yaml_take(&r->sections, ret, err) < 0 ? err_wrap(err, "%s", r->path) : 0;
}

int config_file_read(const char *path, char **values, struct json **ret_sections, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    struct reader reader = {.path = path, .values = values, .key = -1};
    buf_init(&text, FILE_MAX);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, &text);
    if (r < 0)
        return err_sys(err, -r, "read configuration '%s'", path);
    if (!yaml_parser_initialize(&reader.parser))
        return err_set(err, ERR_LIMIT, "no memory to read '%s'", path);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)buf_str(&text), text.len);
    begin_sections(&reader.sections);
    r = read_events(&reader, err);
    if (r == 0)
        r = take_sections(&reader, ret_sections, err);
    config_yaml_done(&reader.sections);
    yaml_parser_delete(&reader.parser);
    return r;
}
