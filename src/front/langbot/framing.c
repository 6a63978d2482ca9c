/* SPDX-License-Identifier: Apache-2.0 */

/* Splits process output into UTF-8 lines, and joins and splits messages of the stdio transport. */

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"

#define PIECE_MAX                                                                                  \
    16384U /* bytes of a message that goes as one line, and of a piece of a larger one */
#define PIECES_MAX 4096U

/* Lines. */

void langbot_lines_init(struct langbot_lines *l)
{
    buf_init(&l->part, LANGBOT_MESSAGE_MAX);
}

void langbot_lines_done(struct langbot_lines *l)
{
    buf_done(&l->part);
}

/* One character, or what stands for the bytes that are none. Splits the line when there is no room.
 */
static bool put(struct langbot_lines *l, const char *text, size_t len, langbot_line_fn *emit,
                void *arg)
{
    bool more = true;
    if (l->part.len + len > LANGBOT_MESSAGE_MAX) {
        more = emit(arg, l->part.data, l->part.len, false);
        buf_reset(&l->part);
    }
    (void)buf_append(&l->part, text, len);
    return more;
}

/* Appends s as valid UTF-8; returns how much of it was used. */
static size_t convert(struct langbot_lines *l, const char *s, size_t len, langbot_line_fn *emit,
                      void *arg)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t used = 0;
    if (l->part.len + len <= LANGBOT_MESSAGE_MAX && utf8_valid(s, len)) {
        (void)buf_append(&l->part, s, len);
        return len;
    }
    while (used < len) {
        bool incomplete = false, more;
        int n = utf8_next(s + used, len - used, &incomplete);
        if (n > 0)
            more = put(l, s + used, (size_t)n, emit, arg);
        else
            more = put(l, replacement, sizeof(replacement) - 1, emit, arg);
        used += (size_t)(n > 0 ? n : -n);
        if (!more)
            break;
    }
    return used;
}

static bool end_line(struct langbot_lines *l, langbot_line_fn *emit, void *arg)
{
    bool more = emit(arg, buf_str(&l->part), l->part.len, true);
    if (l->part.cap > PIECE_MAX)
        buf_done(&l->part);
    else
        buf_reset(&l->part);
    return more;
}

size_t langbot_lines_feed(struct langbot_lines *l, const char *data, size_t len, bool eof,
                          langbot_line_fn *emit, void *arg)
{
    size_t used = 0;
    while (used < len) {
        const char *end = memchr(data + used, '\n', len - used);
        size_t n = end != NULL ? (size_t)(end - data) - used
                   : eof       ? len - used
                               : utf8_boundary(data + used, len - used);
        bool more;
        if (end != NULL && l->part.len == 0 && utf8_valid(data + used, n)) {
            more = emit(arg, data + used, n, true);
            used += n + 1;
        } else {
            size_t done = n > 0 ? convert(l, data + used, n, emit, arg) : 0;
            used += done;
            if (done < n || end == NULL)
                break;
            more = end_line(l, emit, arg);
            used++;
        }
        if (!more)
            return used;
    }
    if (eof && used == len && l->part.len > 0)
        (void)end_line(l, emit, arg);
    return used;
}

/* Pipes. */

void langbot_unpipe_init(struct langbot_unpipe *u)
{
    *u = (struct langbot_unpipe){0};
    buf_init(&u->line, LANGBOT_MESSAGE_MAX);
    buf_init(&u->message, LANGBOT_MESSAGE_MAX);
}

void langbot_unpipe_done(struct langbot_unpipe *u)
{
    buf_done(&u->line);
    buf_done(&u->message);
}

static int begin_chunks(struct langbot_unpipe *u, const struct json *m)
{
    const struct json *total = json_get(m, "total_size");
    if (json_type(total) != JSON_INT || json_int(total) < 0 ||
        json_int(total) > (int64_t)LANGBOT_MESSAGE_MAX)
        return -EPROTO;
    u->chunked = true;
    u->total = (size_t)json_int(total);
    u->lines = 0;
    buf_reset(&u->message);
    return 0;
}

static int add_chunk(struct langbot_unpipe *u, const struct json *m)
{
    const struct json *data = json_get(m, "data"), *offset = json_get(m, "offset");
    size_t len = json_str_len(data);
    if (json_type(data) != JSON_STRING || json_type(offset) != JSON_INT ||
        json_int(offset) != (int64_t)u->message.len || len > u->total - u->message.len)
        return -EPROTO;
    return buf_append(&u->message, json_str(data), len) < 0 ? -EPROTO : 0;
}

/* One line, trimmed. Returns 1 when it completes a message that came in pieces, 2 when it is one.
 */
static int take_line(struct langbot_unpipe *u, const char *line, size_t len)
{
    AUTO(json) struct json *m = NULL;
    struct err err = {0};
    if (u->chunked && ++u->lines > PIECES_MAX)
        return -EPROTO;
    if (len < 2 || line[0] != '{' || line[len - 1] != '}')
        return 0;
    if (!u->chunked && memmem(line, len, "\"chunk_", 7) == NULL)
        return 2;
    if (json_parse(line, len, &m, &err) < 0)
        return u->chunked ? 0 : 2;
    const char *type = json_str(json_get(m, "type"));
    if (!u->chunked)
        return str_eq(type, "chunk_start")                               ? begin_chunks(u, m)
               : str_eq(type, "chunk_data") || str_eq(type, "chunk_end") ? 0
                                                                         : 2;
    if (str_eq(type, "chunk_data"))
        return add_chunk(u, m);
    if (!str_eq(type, "chunk_end"))
        return 0;
    u->chunked = false;
    return u->message.len == u->total ? 1 : -EPROTO;
}

int langbot_unpipe_feed(struct langbot_unpipe *u, const char *data, size_t len,
                        void (*message)(void *arg, const char *text, size_t len), void *arg)
{
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) : len;
        if (buf_append(&u->line, data, n) < 0)
            return -EPROTO;
        data += n + (end != NULL);
        len -= n + (end != NULL);
        if (end == NULL)
            break;
        const char *line = buf_str(&u->line);
        size_t line_len = u->line.len;
        str_trim(&line, &line_len);
        int r = take_line(u, line, line_len);
        if (r < 0)
            return r;
        if (r == 1) {
            message(arg, buf_str(&u->message), u->message.len);
            buf_done(&u->message);
        } else if (r == 2) {
            message(arg, line, line_len);
        }
        buf_reset(&u->line);
    }
    return 0;
}

static int write_piece(const char *text, size_t len, size_t offset, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "type", "chunk_data");
    jw_key(&w, "data");
    jw_strn(&w, text, len);
    jw_ku64(&w, "offset", offset);
    jw_object_end(&w);
    return jw_end(&w) < 0 ? -ENOBUFS : buf_putc(out, '\n');
}

int langbot_pipe_write(const char *text, size_t len, struct buf *out)
{
    size_t before = out->len;
    int r;
    if (len <= PIECE_MAX) {
        r = buf_append(out, text, len);
        if (r == 0)
            r = buf_putc(out, '\n');
    } else {
        r = buf_printf(out, "{\"type\": \"chunk_start\", \"total_size\": %zu}\n", len);
        for (size_t at = 0, n; at < len && r == 0; at += n) {
            n = utf8_boundary(text + at, len - at < PIECE_MAX ? len - at : PIECE_MAX);
            r = write_piece(text + at, n, at, out);
        }
        if (r == 0)
            r = buf_puts(out, "{\"type\": \"chunk_end\"}\n");
    }
    if (r < 0)
        out->len = before; /* all or nothing */
    return r;
}
