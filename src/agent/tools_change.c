/* SPDX-License-Identifier: Apache-2.0 */

/* The tools `write` and `edit`. */

#include <errno.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"

static void on_stat(void *arg, enum files_type type, const char *data, size_t len)
{
    struct tool_call *c = arg;

    if (type == FILES_FRAME_STAT && len == sizeof(c->stat))
        memcpy(&c->stat, data, len);
}

static void begin_result(struct tool_call *c, struct jw *w)
{
    tool_record(c, NULL);
    jw_init(w, &c->result.json);
    jw_object(w);
    jw_kbool(w, "ok", true);
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
    tool_record(c, &failure->err);
    if (failure->why == FILES_WHY_SPECIAL || failure->error == EISDIR)
        tool_say(c, "Path must reference a regular file.");
    else
        tool_say_failure(c, failure);
}

/* The bytes that are meant: *ret is owned or borrowed from the arguments. False: told. */
static bool decode(struct tool_call *c, const struct write_args *a, char **ret_owned,
                   struct files_text *ret)
{
    size_t len = strlen(a->content);

    *ret = (struct files_text){a->content, len};
    if (a->encoding == ENCODING_TEXT)
        return true;
    *ret_owned = xcalloc(1, len / 4 * 3 + 3);
    ssize_t n = http_base64_decode(a->content, len, (unsigned char *)*ret_owned);
    *ret = (struct files_text){*ret_owned, n > 0 ? (size_t)n : 0};
    if (n < 0)
        tool_say(c, "invalid base64 content: only padded base64 is allowed");
    return n >= 0;
}

static int begin_write(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_written};
    const struct write_args *a = c->args;
    AUTO_FREE char *owned = NULL;
    struct files_text content;
    struct files_ask ask = {
        .head = {.op = FILES_WRITE,
                 .flags = FILES_PARENTS | (a->mode == WRITE_APPEND ? FILES_APPEND : 0)}};

    ask.path = tool_beneath(c, a->path);
    if (ask.path == NULL || !decode(c, a, &owned, &content))
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

const struct tool_ops tool_write_ops = {.begin = begin_write};

/* edit */

static void explain_edit(struct tool_call *c, const struct files_failure *f)
{
    switch (f->why) {
    case FILES_WHY_NO_PLACE:
        tool_say(c, "old_string not found in file.");
        return;
    case FILES_WHY_PLACES:
        tool_say(c, "old_string matches %llu locations; provide a more unique string.",
                 (unsigned long long)f->n);
        return;
    case FILES_WHY_TOO_LARGE:
        tool_say(c,
                 f->error == EOVERFLOW ? "Edited file exceeds the %u-byte limit."
                                       : "File exceeds the %u-byte edit limit.",
                 FILES_EDIT_MAX);
        return;
    case FILES_WHY_ERRNO:
        if (f->error == ENOENT || f->error == ENOTDIR || f->error == EISDIR) {
            tool_say(c, "File not found: %s", c->path);
            return;
        }
        break;
    case FILES_WHY_SPECIAL:
        tool_say(c, "File not found: %s", c->path);
        return;
    case FILES_WHY_ESCAPE:
    case FILES_WHY_CHANGED:
    case FILES_WHY_RANGE:
    case FILES_WHY_PATTERN:
    case FILES_WHY_BUSY:
    case FILES_WHY_CUT_OFF:
    case FILES_WHY_REQUEST:
    case FILES_WHY_MAX:
        break;
    }
    tool_say_failure(c, f);
}

static void on_edited(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct tool_call *c = arg;
    struct jw w;

    if (failure != NULL) {
        tool_record(c, &failure->err);
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

static int begin_edit(struct tool_call *c, struct err *err)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_edited};
    const struct edit_args *a = c->args;
    struct files_ask ask = {
        .head = {.op = FILES_EDIT, .flags = a->replace_all ? FILES_ALL : 0},
        .a = {a->old_string, strlen(a->old_string)},
        .b = {a->new_string, strlen(a->new_string)},
    };

    ask.path = tool_beneath(c, a->path);
    return ask.path == NULL ? 0 : tool_ask(c, &ask, &events, err);
}

const struct tool_ops tool_edit_ops = {.begin = begin_edit};
