/* SPDX-License-Identifier: Apache-2.0 */

/* The tools `glob` and `grep`. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"

#define GLOB_SHOWN 100U
#define GREP_SHOWN 200U

/* A path as shown: that of the search, and what was found beneath it. */
static void put_path(struct buf *out, const struct tool_call *c, const char *name, size_t len)
{
    size_t base = strlen(c->path);

    while (len > 0 && base > 1 && c->path[base - 1] == '/')
        base--;
    (void)buf_append(out, c->path, base);
    if (len > 0 && !(base == 1 && c->path[0] == '/'))
        (void)buf_putc(out, '/');
    tool_text(out, name, len);
}

/* The list grows in c->text, and with it what is shown as text. */
static void begin_list(struct tool_call *c)
{
    jw_init(&c->list, &c->text);
    jw_array(&c->list);
}

static void put_list(struct tool_call *c, struct jw *w)
{
    jw_array_end(&c->list);
    jw_key(w, "matches");
    (void)buf_append(&c->result.json, buf_str(&c->text), c->text.len);
    w->comma = true;
}

/* glob */

static void on_hit(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    AUTO_DONE(buf) struct buf path;
    struct files_entry e;

    buf_init(&path, 4 * FILES_PATH_MAX);
    if (type != FILES_FRAME_ENTRY || len < sizeof(e) || c->cut != FILES_CUT_NONE)
        return;
    memcpy(&e, data, sizeof(e));
    put_path(&path, c, data + sizeof(e), e.name_len);
    if (c->result.text.len + path.len + 1 > TOOL_RESULT_BYTES) {
        c->cut = FILES_CUT_BYTES;
        return;
    }
    if (c->shown++ > 0)
        (void)buf_putc(&c->result.text, '\n');
    (void)buf_append(&c->result.text, path.data, path.len);
    jw_strn(&c->list, path.data, path.len);
}

static void on_globbed(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;

    if (failure != NULL) {
        if (failure->why == FILES_WHY_PATTERN)
            tool_say(c, "Invalid pattern: %s", failure->err.msg);
        else if (failure->why == FILES_WHY_ERRNO &&
                 (failure->error == ENOENT || failure->error == ENOTDIR))
            tool_say(c, "Path is not a directory: %s", c->path);
        else
            tool_say_failure(c, failure);
        return;
    }
    jw_init(&w, &c->result.json);
    jw_object(&w);
    jw_kbool(&w, "ok", true);
    put_list(c, &w);
    jw_key(&w, "preview");
    jw_strn(&w, buf_str(&c->result.text), c->result.text.len);
    jw_ku64(&w, "total", done->total);
    tool_write_cut(&w,
                   done->cut == FILES_CUT_SCAN || c->cut == FILES_CUT_NONE ? done->cut : c->cut);
    jw_object_end(&w);
    if (c->shown == 0)
        (void)buf_puts(&c->result.text, "No files match.");
    else if (done->total > c->shown)
        (void)buf_printf(&c->result.text, "\n[%llu of %llu matches shown]",
                         (unsigned long long)c->shown, (unsigned long long)done->total);
    tool_finish(c);
}

static int begin_glob(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_hit, .finished = on_globbed};
    const struct glob_args *a = c->args;
    const char *pattern = a->pattern;
    struct files_ask ask = {.head = {.op = FILES_GLOB, .length = GLOB_SHOWN}};

    ask.path = tool_beneath(c, a->path);
    if (ask.path == NULL)
        return 0;
    /* A pattern that begins with the directory is meant beneath it. */
    size_t len = strlen(c->path);
    if (strncmp(pattern, c->path, len) == 0 && pattern[len] == '/')
        pattern += len + 1;
    ask.a = (struct files_text){pattern, strlen(pattern)};
    begin_list(c);
    return tool_ask(c, &ask, &events, err);
}

const struct tool_ops tool_glob_ops = {.begin = begin_glob};

/* grep */

static void put_line(struct buf *out, const char *text, const struct files_match *m)
{
    tool_text(out, text, m->text_len);
    if (m->flags & FILES_MATCH_CUT)
        (void)buf_puts(out, "... [truncated]");
}

static void put_match(struct tool_call *c, const struct buf *path, const struct buf *line,
                      uint64_t number)
{
    enum grep_mode mode = ((const struct grep_args *)c->args)->mode;
    struct buf *text = &c->result.text;
    struct jw *w = &c->list;

    if (c->shown++ > 0)
        (void)buf_putc(text, '\n');
    (void)buf_append(text, path->data, path->len);
    if (mode == GREP_FILES) {
        jw_strn(w, path->data, path->len);
        return;
    }
    (void)buf_printf(text, ":%llu", (unsigned long long)number);
    jw_object(w);
    jw_key(w, "file");
    jw_strn(w, path->data, path->len);
    jw_ku64(w, mode == GREP_COUNT ? "count" : "line", number);
    if (mode == GREP_CONTENT) {
        jw_key(w, "content");
        jw_strn(w, buf_str(line), line->len);
        (void)buf_putc(text, ':');
        (void)buf_append(text, buf_str(line), line->len);
    }
    jw_object_end(w);
}

static void on_match(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    AUTO_DONE(buf) struct buf path;
    AUTO_DONE(buf) struct buf line;
    struct files_match m;

    buf_init(&path, 4 * FILES_PATH_MAX);
    buf_init(&line, 16 * FILES_GREP_LINE_MAX);
    if (type != FILES_FRAME_MATCH || len < sizeof(m) || c->cut != FILES_CUT_NONE)
        return;
    memcpy(&m, data, sizeof(m));
    put_path(&path, c, data + sizeof(m), m.path_len);
    put_line(&line, data + sizeof(m) + m.path_len, &m);
    if (c->text.len + path.len + line.len + 64 > TOOL_RESULT_BYTES)
        c->cut = FILES_CUT_BYTES;
    else
        put_match(c, &path, &line, m.line);
}

static void explain_grep(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == FILES_WHY_PATTERN)
        tool_say(c, "Invalid regex: %s", f->err.msg);
    else if ((f->why == FILES_WHY_ERRNO && (f->error == ENOENT || f->error == ENOTDIR)) ||
             f->why == FILES_WHY_SPECIAL)
        tool_say(c, "Path not found: %s", c->path);
    else
        tool_say_failure(c, f);
}

static void on_searched(void *arg, const struct files_done *done,
                        const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;

    if (failure != NULL) {
        explain_grep(c, failure);
        return;
    }
    jw_init(&w, &c->result.json);
    jw_object(&w);
    jw_kbool(&w, "ok", true);
    put_list(c, &w);
    jw_ku64(&w, "total", c->shown);
    tool_write_cut(&w, c->cut != FILES_CUT_NONE ? c->cut : done->cut);
    jw_object_end(&w);
    if (c->shown == 0)
        (void)buf_puts(&c->result.text, "No matches.");
    else if (c->cut != FILES_CUT_NONE || done->cut != FILES_CUT_NONE)
        (void)buf_puts(&c->result.text, "\n[there may be more]");
    tool_finish(c);
}

static int begin_grep(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_match, .finished = on_searched};
    const struct grep_args *a = c->args;
    struct files_ask ask = {
        .head = {.op = FILES_GREP,
                 .length = GREP_SHOWN,
                 .flags = (a->ignore_case ? FILES_IGNORE_CASE : 0) |
                          (a->mode != GREP_CONTENT ? FILES_GREP_NAMES : 0)},
        .a = {a->pattern, strlen(a->pattern)},
    };

    ask.path = tool_beneath(c, a->path);
    if (ask.path == NULL)
        return 0;
    if (a->include != NULL)
        ask.b = (struct files_text){a->include, strlen(a->include)};
    begin_list(c);
    return tool_ask(c, &ask, &events, err);
}

const struct tool_ops tool_grep_ops = {.begin = begin_grep};
