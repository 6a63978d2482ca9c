/* SPDX-License-Identifier: Apache-2.0 */

/* The tools that work on files: `read` shows lines or bytes of a file, or the names in a directory;
 * `write` and `edit` change files; `glob` and `grep` search. */

#include <errno.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "session/manager.h"
#include "spec/spec.h"

/* What these tools share. */

/* truncated, truncated_by */
static void tool_write_cut(struct jw *w, uint32_t cut)
{
    const char *name = files_cut_name(cut);
    jw_kbool(w, "truncated", name != NULL);
    jw_kstr(w, "truncated_by", name);
}

/* Text from files: what is no UTF-8 is shown as such. */
static void tool_text(struct buf *out, const char *text, size_t len)
{
    static const char replacement[] = "\xef\xbf\xbd";
    for (size_t at = 0; at < len;) {
        size_t good = at;
        bool incomplete;
        int n = 1;
        while (good < len && (n = utf8_next(text + good, len - good, &incomplete)) > 0)
            good += (size_t)n;
        (void)buf_append(out, text + at, good - at);
        at = good;
        if (at < len) {
            (void)buf_puts(out, replacement);
            at += (size_t)-n;
        }
    }
}

/* The object of a result that says yes. */
static void begin_json(struct tool_call *c, struct jw *w)
{
    jw_init(w, &c->result.json);
    jw_object(w);
    jw_kbool(w, "ok", true);
}

static bool is_missing(const struct files_failure *f)
{
    return f->why == FILES_WHY_ERRNO && (f->error == ENOENT || f->error == ENOTDIR);
}

/* What a failure means where the tool has no words of its own for it. */
static void tool_say_failure(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == 0)
        tool_fail(c, &f->err);
    else if (f->why == FILES_WHY_ESCAPE)
        tool_say(c, "Path escapes the workspace boundary.");
    else
        tool_say(c, "%s: %s", c->path, f->err.msg);
}

/* The root that paths must not leave: the session's workspace. */
static const char *tool_root(const struct tool_call *c)
{
    return session_spec(c->session)->mount_path;
}

/* `given` as an absolute path into c->path, and where it lies beneath the root. NULL: it does not,
 * and the call has ended with a message. */
static const char *tool_beneath(struct tool_call *c, const char *given)
{
    const char *root = tool_root(c);
    size_t len = strlen(root);
    if (given[0] != '/') {
        (void)str_fmt(c->path, sizeof(c->path), "%s/%s", root, given);
        return given;
    }
    (void)str_copy(c->path, sizeof(c->path), given);
    if (strncmp(given, root, len) == 0 && (given[len] == '/' || given[len] == '\0'))
        return given[len] == '\0' ? "." : given + len;
    tool_say(c, "Path must be under %s.", root);
    return NULL;
}

/* Asks; the root is filled in. */
static int tool_ask(struct tool_call *c, struct files_ask *ask, const struct files_events *events,
                    struct err *err)
{
    ask->root = tool_root(c);
    if (ask->timeout_ns == 0)
        ask->timeout_ns = FILES_TIMEOUT_NS;
    files_call_free(TAKE_PTR(c->files));
    return files_start(c->session, ask, events, c, &c->files, err);
}

/* read */

#define DIRECTORY_MAX FILES_LIST_MAX

/* A directory: its names. */

static void on_name(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    struct files_entry e;
    if (type != FILES_FRAME_ENTRY || len < sizeof(e) || c->cut != FILES_CUT_NONE)
        return;
    memcpy(&e, data, sizeof(e));
    if (c->text.len + e.name_len + 1 > TOOL_RESULT_BYTES) {
        c->cut = FILES_CUT_BYTES;
        return;
    }
    if (c->shown++ > 0)
        (void)buf_putc(&c->text, '\n');
    tool_text(&c->text, data + sizeof(e), e.name_len);
}

static void begin_answer(struct tool_call *c, struct jw *w)
{
    begin_json(c, w);
    jw_kstrn(w, "content", buf_str(&c->text), c->text.len);
}

static void on_listed(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;
    if (failure != NULL) {
        tool_say_failure(c, failure);
        return;
    }
    begin_answer(c, &w);
    jw_kbool(&w, "is_directory", true);
    jw_ku64(&w, "total", done->total);
    tool_write_cut(&w, done->cut != FILES_CUT_NONE ? done->cut : c->cut);
    jw_object_end(&w);
    (void)buf_append(&c->result.text, buf_str(&c->text), c->text.len);
    tool_finish(c);
}

static void list_directory(struct tool_call *c)
{
    static const struct files_events events = {.frame = on_name, .finished = on_listed};
    struct files_ask ask = {.head = {.op = FILES_LIST, .length = DIRECTORY_MAX}};
    const struct read_args *a = c->args;
    struct err err = {0};
    ask.path = tool_beneath(c, a->path);
    if (ask.path != NULL && tool_ask(c, &ask, &events, &err) < 0)
        tool_fail(c, &err);
}

/* A file. */

static void on_content(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    if (type == FILES_FRAME_STAT)
        memcpy(&c->stat, data, sizeof(c->stat));
    else if (type == FILES_FRAME_DATA)
        (void)buf_append(&c->text, data, len);
}

static void explain_read(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == FILES_WHY_ERRNO && f->error == EISDIR)
        list_directory(c);
    else if (is_missing(f))
        tool_say(c, "File not found: %s", c->path);
    else if (f->why == FILES_WHY_SPECIAL)
        tool_say(c, "Path must reference a regular file or directory.");
    else
        tool_say_failure(c, f);
}

/* The line is longer than what may be shown: say so in its place, as hosts know it. */
static void put_too_long(struct tool_call *c, uint64_t line)
{
    const struct read_args *a = c->args;
    buf_reset(&c->text);
    (void)buf_printf(&c->text, "[Line %llu exceeds the ", (unsigned long long)line);
    if (a->max_bytes < 1024)
        (void)buf_printf(&c->text, "%lldB", (long long)a->max_bytes);
    else
        (void)buf_printf(&c->text, "%.1fKB", (double)a->max_bytes / 1024);
    (void)buf_puts(&c->text, " read limit. Use exec with a byte-range command for this line, or "
                             "read a different offset.]");
}

static void on_lines(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    const struct read_args *a = c->args;
    struct jw w;
    if (failure != NULL) {
        explain_read(c, failure);
        return;
    }
    if (done->last < done->first && done->cut == FILES_CUT_BYTES) {
        put_too_long(c, done->next);
    } else if (a->offset > 1 && done->last < done->first && done->next == 0) {
        tool_say(c, "Offset %lld is beyond end of file (%llu lines total)", (long long)a->offset,
                 (unsigned long long)done->total);
        return;
    }
    begin_answer(c, &w);
    tool_write_cut(&w, done->cut);
    jw_ku64(&w, "start_line", done->first);
    jw_ku64(&w, "end_line", done->last);
    if (done->next > 0)
        jw_ku64(&w, "next_offset", done->next);
    else
        jw_knull(&w, "next_offset");
    jw_kint(&w, "max_lines", a->limit);
    jw_kint(&w, "max_bytes", a->max_bytes);
    jw_object_end(&w);
    tool_text(&c->result.text, buf_str(&c->text), c->text.len);
    if (done->next > 0)
        (void)buf_printf(&c->result.text, "\n[truncated; go on with offset %llu]",
                         (unsigned long long)done->next);
    tool_finish(c);
}

static void on_bytes(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    const struct read_args *a = c->args;
    struct jw w;
    /* Nothing is there from byte_offset on: so much is shown. */
    bool beyond = failure != NULL && failure->why == FILES_WHY_RANGE;
    if (failure != NULL && !beyond) {
        explain_read(c, failure);
        return;
    }
    uint64_t size = beyond ? failure->n : c->stat.tag.size;
    uint64_t next = (uint64_t)a->byte_offset + c->text.len;
    char *encoded = xcalloc(1, HTTP_BASE64_SIZE(c->text.len));
    http_base64(buf_str(&c->text), c->text.len, encoded);
    begin_json(c, &w);
    jw_kstr(&w, "content", encoded);
    jw_kstr(&w, "encoding", "base64");
    jw_kint(&w, "byte_offset", a->byte_offset);
    jw_ku64(&w, "length", c->text.len);
    jw_ku64(&w, "size_bytes", size);
    jw_kbool(&w, "has_more", next < size);
    if (next < size)
        jw_ku64(&w, "next_byte_offset", next);
    else
        jw_knull(&w, "next_byte_offset");
    jw_kint(&w, "max_bytes", a->max_bytes);
    jw_object_end(&w);
    (void)buf_puts(&c->result.text, encoded);
    free(encoded);
    tool_finish(c);
}

int tool_begin_read(struct tool_call *c, struct err *err)
{
    static const struct files_events lines = {.frame = on_content, .finished = on_lines};
    static const struct files_events bytes = {.frame = on_content, .finished = on_bytes};
    const struct read_args *a = c->args;
    bool raw = a->encoding == ENCODING_BASE64;
    struct files_ask ask = {.head = {.op = raw ? FILES_READ : FILES_LINES,
                                     .flags = raw ? FILES_RANGE : 0,
                                     .offset = (uint64_t)(raw ? a->byte_offset : a->offset),
                                     .length = (uint64_t)(raw ? a->max_bytes : a->limit),
                                     .max = (uint64_t)a->max_bytes}};
    ask.path = tool_beneath(c, a->path);
    return ask.path == NULL ? 0 : tool_ask(c, &ask, raw ? &bytes : &lines, err);
}

static void begin_result(struct tool_call *c, struct jw *w)
{
    tool_record(c, "done", NULL);
    begin_json(c, w);
    jw_kstr(w, "path", c->path);
    jw_ku64(w, "size_bytes", c->stat.tag.size);
}

/* write */

static void on_written(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;
    if (failure == NULL) {
        begin_result(c, &w);
        jw_kbool(&w, "created", done->created != 0);
        jw_object_end(&w);
        (void)buf_printf(&c->result.text, "Wrote %s (%llu bytes).", c->path,
                         (unsigned long long)c->stat.tag.size);
        tool_finish(c);
        return;
    }
    tool_record(c, err_code_name(failure->err.code), failure->err.msg);
    if (failure->why == FILES_WHY_SPECIAL || failure->error == EISDIR)
        tool_say(c, "Path must reference a regular file.");
    else
        tool_say_failure(c, failure);
}

/* The bytes that are meant: *ret is owned or borrowed from the arguments. False: the call has
 * ended with a message. */
static bool decode_content(struct tool_call *c, const struct write_args *a, char **ret_owned,
                           struct files_text *ret)
{
    size_t len = strlen(a->content);
    *ret = (struct files_text){a->content, len};
    if (a->encoding == ENCODING_TEXT)
        return true;
    char *bytes = *ret_owned = xcalloc(1, len / 4 * 3 + 3);
    ssize_t n = http_base64_decode(a->content, len, (unsigned char *)bytes);
    *ret = (struct files_text){bytes, n > 0 ? (size_t)n : 0};
    if (n < 0)
        tool_say(c, "invalid base64 content: only padded base64 is allowed");
    return n >= 0;
}

int tool_begin_write(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_content, .finished = on_written};
    const struct write_args *a = c->args;
    struct files_text content;
    struct files_ask ask = {
        .head = {.op = FILES_WRITE,
                 .flags = FILES_PARENTS | (a->mode == WRITE_APPEND ? FILES_APPEND : 0)}};
    ask.path = tool_beneath(c, a->path);
    if (ask.path == NULL)
        return 0;
    AUTO_FREE char *owned = NULL;
    if (!decode_content(c, a, &owned, &content))
        return 0;
    if (str_eq(ask.path, ".")) {
        tool_say(c, "Path must reference a file under %s.", tool_root(c));
        return 0;
    }
    int r = tool_ask(c, &ask, &events, err);
    if (r < 0)
        return r;
    (void)files_write(c->files, content.p, content.len); /* all of it fits the queue */
    files_write_end(c->files);
    return 0;
}

/* edit */

static void explain_edit(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == FILES_WHY_NO_PLACE)
        tool_say(c, "old_string not found in file.");
    else if (f->why == FILES_WHY_PLACES)
        tool_say(c, "old_string matches %llu locations; provide a more unique string.",
                 (unsigned long long)f->n);
    else if (f->why == FILES_WHY_TOO_LARGE)
        tool_say(c,
                 f->error == EOVERFLOW ? "Edited file exceeds the %u-byte limit."
                                       : "File exceeds the %u-byte edit limit.",
                 FILES_EDIT_MAX);
    else if (is_missing(f) || f->why == FILES_WHY_SPECIAL ||
             (f->why == FILES_WHY_ERRNO && f->error == EISDIR))
        tool_say(c, "File not found: %s", c->path);
    else
        tool_say_failure(c, f);
}

static void on_edited(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;
    if (failure != NULL) {
        tool_record(c, err_code_name(failure->err.code), failure->err.msg);
        explain_edit(c, failure);
        return;
    }
    begin_result(c, &w);
    jw_ku64(&w, "replacements", done->total);
    jw_object_end(&w);
    (void)buf_printf(&c->result.text, "Edited %s: %llu replacement%s.", c->path,
                     (unsigned long long)done->total, done->total == 1 ? "" : "s");
    tool_finish(c);
}

int tool_begin_edit(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_content, .finished = on_edited};
    const struct edit_args *a = c->args;
    struct files_ask ask = {
        .head = {.op = FILES_EDIT, .flags = a->replace_all ? FILES_ALL : 0},
        .a = {a->old_string, strlen(a->old_string)},
        .b = {a->new_string, strlen(a->new_string)},
    };
    ask.path = tool_beneath(c, a->path);
    return ask.path == NULL ? 0 : tool_ask(c, &ask, &events, err);
}

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
    jw_kraw(w, "matches", buf_str(&c->text), c->text.len);
}

/* glob */

static void on_hit(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    AUTO_DONE(buf) struct buf path = BUF_INIT(4 * FILES_PATH_MAX);
    struct files_entry e;
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
        else if (is_missing(failure))
            tool_say(c, "Path is not a directory: %s", c->path);
        else
            tool_say_failure(c, failure);
        return;
    }
    begin_json(c, &w);
    put_list(c, &w);
    jw_kstrn(&w, "preview", buf_str(&c->result.text), c->result.text.len);
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

int tool_begin_glob(struct tool_call *c, struct err *err)
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
    jw_kstrn(w, "file", path->data, path->len);
    jw_ku64(w, mode == GREP_COUNT ? "count" : "line", number);
    if (mode == GREP_CONTENT) {
        jw_kstrn(w, "content", buf_str(line), line->len);
        (void)buf_putc(text, ':');
        (void)buf_append(text, buf_str(line), line->len);
    }
    jw_object_end(w);
}

static void on_match(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;
    AUTO_DONE(buf) struct buf path = BUF_INIT(4 * FILES_PATH_MAX);
    AUTO_DONE(buf) struct buf line = BUF_INIT(16 * FILES_GREP_LINE_MAX);
    struct files_match m;
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
    else if (is_missing(f) || f->why == FILES_WHY_SPECIAL)
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
    begin_json(c, &w);
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

int tool_begin_grep(struct tool_call *c, struct err *err)
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
