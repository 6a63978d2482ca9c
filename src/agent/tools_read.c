/* SPDX-License-Identifier: Apache-2.0 */

/* The tool `read`: lines or bytes of a file, or the names in a directory. */

#include <errno.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "http/codec/crypto.h"

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

static void on_listed(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;

    if (failure != NULL) {
        tool_say_failure(c, failure);
        return;
    }
    jw_init(&w, &c->result.json);
    jw_object(&w);
    jw_kbool(&w, "ok", true);
    jw_key(&w, "content");
    jw_strn(&w, buf_str(&c->text), c->text.len);
    jw_kbool(&w, "is_directory", true);
    jw_ku64(&w, "total", done->total);
    tool_write_cut(&w, done->cut != FILES_CUT_NONE ? done->cut : c->cut);
    jw_object_end(&w);
    (void)buf_append(&c->result.text, buf_str(&c->text), c->text.len);
    tool_finish(c);
}

static void list(struct tool_call *c)
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

static void explain(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == FILES_WHY_ERRNO && f->error == EISDIR)
        list(c);
    else if (f->why == FILES_WHY_ERRNO && (f->error == ENOENT || f->error == ENOTDIR))
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
        explain(c, failure);
        return;
    }
    if (done->last < done->first && done->cut == FILES_CUT_BYTES) {
        put_too_long(c, done->next);
    } else if (a->offset > 1 && done->last < done->first && done->next == 0) {
        tool_say(c, "Offset %lld is beyond end of file (%llu lines total)", (long long)a->offset,
                 (unsigned long long)done->total);
        return;
    }
    jw_init(&w, &c->result.json);
    jw_object(&w);
    jw_kbool(&w, "ok", true);
    jw_key(&w, "content");
    jw_strn(&w, buf_str(&c->text), c->text.len);
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
        explain(c, failure);
        return;
    }
    uint64_t size = beyond ? failure->n : c->stat.tag.size;
    uint64_t next = (uint64_t)a->byte_offset + c->text.len;
    char *encoded = xcalloc(1, HTTP_BASE64_SIZE(c->text.len));
    http_base64(buf_str(&c->text), c->text.len, encoded);
    jw_init(&w, &c->result.json);
    jw_object(&w);
    jw_kbool(&w, "ok", true);
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

static int begin(struct tool_call *c, struct err *err)
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

const struct tool_ops tool_read_ops = {.begin = begin};
