/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "util/alloc.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/str.h"

#define FILE_MAX (1U << 20)
#define EVENTS_MAX 4096U

struct reader {
    yaml_parser_t parser;
    const char *path;
    char **values;
    int key;  /* index of the setting whose value comes next, -1: a key comes next */
    bool top; /* inside the document's mapping */
    bool list;
};

static int bad(const struct reader *r, size_t line, struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "%s line %zu: %s", r->path, line + 1, what);
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
    switch (e->type) {
    case YAML_MAPPING_START_EVENT:
        if (r->top)
            return bad(r, line, err, "settings have no sections");
        r->top = true;
        return 0;
    case YAML_SEQUENCE_START_EVENT:
        if (r->key != CONFIG_MOUNT_ROOTS || r->list)
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

int config_file_read(const char *path, char **values, struct err *err)
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
    bool end = false;
    for (unsigned n = 0; r == 0 && !end; n++) {
        yaml_event_t e;
        if (n >= EVENTS_MAX) {
            r = err_set(err, ERR_LIMIT, "configuration '%s' is too large", path);
        } else if (!yaml_parser_parse(&reader.parser, &e)) {
            r = bad(&reader, reader.parser.problem_mark.line, err,
                    reader.parser.problem != NULL ? reader.parser.problem : "not valid YAML");
        } else {
            end = e.type == YAML_STREAM_END_EVENT;
            r = on_event(&reader, &e, err);
            yaml_event_delete(&e);
        }
    }
    yaml_parser_delete(&reader.parser);
    return r;
}
