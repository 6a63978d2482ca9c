/* SPDX-License-Identifier: Apache-2.0 */

/* Escapes text for terminals, prints messages, and lays out tables. */

#include "cli/io/text.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

#define LINE_MAX_BYTES 65536

int text_escape(struct buf *out, const char *s, size_t len)
{
    int r = 0;

    for (size_t i = 0; i < len && r >= 0;) {
        bool incomplete;
        int n = utf8_next(s + i, len - i, &incomplete);
        size_t size = (size_t)(n < 0 ? -n : n);
        if (n >= 0 && s[i] != '\0' && utf8_unsafe(s + i, n) == 0)
            r = buf_append(out, s + i, size);
        else
            for (size_t k = 0; k < size && r >= 0; k++)
                r = buf_printf(out, "\\x%02x", (unsigned char)s[i + k]);
        i += size;
    }
    return r;
}

void text_cut(char *dst, size_t size, const char *src)
{
    size_t len = src != NULL ? strlen(src) : 0;

    if (len >= size)
        len = utf8_boundary(src, size - 1);
    if (src != NULL)
        memcpy(dst, src, len);
    dst[len] = '\0';
}

/* Columns of the line of text_wait(); 0: there is none. */
static size_t wait_columns;
static bool wait_never;

void text_wait_never(void)
{
    wait_never = true;
}

/* Only in the foreground of a terminal: from the background the line would be in the way of others.
 */
void text_wait(const char *what, uint64_t bytes, uint64_t seconds)
{
    AUTO_DONE(buf) struct buf line = BUF_INIT(256);

    if (wait_never || !isatty(STDERR_FILENO) || tcgetpgrp(STDERR_FILENO) != getpgrp())
        return;
    (void)buf_printf(&line, "\rbox: %s", what);
    if (bytes > 0)
        (void)buf_printf(&line, ", %.1f MiB", (double)bytes / (1 << 20));
    (void)buf_printf(&line, ", %llu s", (unsigned long long)seconds);
    size_t columns = line.len - 1;
    if (columns < wait_columns)
        (void)buf_printf(&line, "%*s", (int)(wait_columns - columns), "");
    wait_columns = columns;
    (void)fd_write_all(STDERR_FILENO, line.data, line.len);
}

void text_wait_clear(void)
{
    AUTO_DONE(buf) struct buf line = BUF_INIT(256);

    if (wait_columns == 0)
        return;
    (void)buf_printf(&line, "\r%*s\r", (int)wait_columns, "");
    wait_columns = 0;
    (void)fd_write_all(STDERR_FILENO, line.data, line.len);
}

/* One write(2), so that lines of several programs do not mix. Nothing can be done when it fails. */
void text_say(const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf raw = BUF_INIT(LINE_MAX_BYTES);
    AUTO_DONE(buf) struct buf line = BUF_INIT(4 * LINE_MAX_BYTES + 16);
    va_list ap;

    va_start(ap, fmt);
    int r = buf_vprintf(&raw, fmt, ap);
    va_end(ap);
    text_wait_clear();
    (void)buf_puts(&line, "box: ");
    if (r < 0)
        (void)buf_puts(&line, "a message that is too long to show");
    else
        (void)text_escape(&line, buf_str(&raw), raw.len);
    (void)buf_putc(&line, '\n');
    (void)fd_write_all(STDERR_FILENO, line.data, line.len);
}

void text_say_err(const struct err *err)
{
    text_say("%s", err->msg);
}

int text_print(const struct buf *text, struct err *err)
{
    int r = fd_write_all(STDOUT_FILENO, buf_str(text), text->len);

    if (r < 0 && r != -EPIPE)
        return err_sys(err, -r, "write to standard output");
    return 0;
}

int text_print_json(const struct buf *json, struct err *err)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 6 * (json->len + 1)); /* as much as escapes can make of it */
    int r = json_plain(&out, buf_str(json), json->len);
    if (r >= 0 && !str_ends(buf_str(json), "\n"))
        r = buf_putc(&out, '\n');
    return r < 0 ? err_sys(err, -r, "write JSON") : text_print(&out, err);
}

#define TABLE_MAX (192U << 20)
#define CELL_MAX 4096
#define GAP 2
#define NOTE_INDENT 4

struct text_row {
    char **cells; /* owned, n_columns of them; NULL for a note */
    char *note;   /* owned */
};

struct text_table {
    size_t n_columns;
    size_t n_filled; /* cells of the last row; n_columns: the next one starts a row */
    struct text_row *rows;
    size_t n_rows;
};

static char *escaped_copy(const char *s)
{
    struct buf b = BUF_INIT(CELL_MAX);

    (void)text_escape(&b, s, strlen(s)); /* what fits is shown */
    return buf_take(&b);
}

static struct text_row *add_row(struct text_table *t)
{
    t->rows = xreallocarray(t->rows, t->n_rows + 1, sizeof(*t->rows));
    memset(&t->rows[t->n_rows], 0, sizeof(*t->rows));
    return &t->rows[t->n_rows++];
}

void text_table_free(struct text_table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->n_rows; i++) {
        for (size_t j = 0; t->rows[i].cells != NULL && j < t->n_columns; j++)
            free(t->rows[i].cells[j]);
        free(t->rows[i].cells);
        free(t->rows[i].note);
    }
    free(t->rows);
    free(t);
}

void text_table_cell(struct text_table *t, const char *s)
{
    if (t->n_filled == t->n_columns) {
        add_row(t)->cells = xnew_n(char *, t->n_columns);
        t->n_filled = 0;
    }
    t->rows[t->n_rows - 1].cells[t->n_filled++] = escaped_copy(s != NULL ? s : "-");
}

struct text_table *text_table_new(const char *const *titles, size_t n_columns)
{
    struct text_table *t = xnew(struct text_table);

    t->n_columns = t->n_filled = n_columns;
    for (size_t i = 0; i < n_columns; i++)
        text_table_cell(t, titles[i]);
    return t;
}

void text_table_number(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld", (long long)json_int(v));
    text_table_cell(t, json_type(v) == JSON_INT ? text : NULL);
}

void text_table_note(struct text_table *t, const char *s)
{
    assert(t->n_filled == t->n_columns);
    add_row(t)->note = escaped_copy(s);
}

/* In characters; that a few are wider or narrower than one place is not worth a table of them. */
static size_t width(const char *s)
{
    size_t n = 0;

    for (; *s != '\0'; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static size_t column_width(const struct text_table *t, size_t column)
{
    size_t max = 0;

    for (size_t i = 0; i < t->n_rows; i++) {
        size_t n = t->rows[i].cells != NULL ? width(t->rows[i].cells[column]) : 0;
        max = n > max ? n : max;
    }
    return max;
}

static void write_row(const struct text_table *t, const struct text_row *row, const size_t *widths,
                      struct buf *out)
{
    if (row->note != NULL)
        (void)buf_printf(out, "%*s%s", NOTE_INDENT, "", row->note);
    for (size_t j = 0; row->note == NULL && j < t->n_columns; j++) {
        size_t pad = j + 1 < t->n_columns ? widths[j] - width(row->cells[j]) + GAP : 0;
        (void)buf_printf(out, "%s%*s", row->cells[j], (int)pad, "");
    }
    (void)buf_putc(out, '\n');
}

int text_table_print(const struct text_table *t, struct err *err)
{
    AUTO_FREE size_t *widths = xnew_n(size_t, t->n_columns);
    AUTO_DONE(buf) struct buf out = BUF_INIT(TABLE_MAX);

    assert(t->n_filled == t->n_columns);
    for (size_t j = 0; j < t->n_columns; j++)
        widths[j] = column_width(t, j);
    for (size_t i = 0; i < t->n_rows; i++)
        write_row(t, &t->rows[i], widths, &out);
    int r = buf_error(&out);
    return r < 0 ? err_sys(err, -r, "write a table") : text_print(&out, err);
}
