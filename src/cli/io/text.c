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
#include "base/str.h"

#define LINE_MAX_BYTES 65536

static int put_escaped(struct buf *out, const char *s, size_t len)
{
    int r = 0;

    for (size_t i = 0; i < len && r >= 0; i++)
        r = buf_printf(out, "\\x%02x", (unsigned char)s[i]);
    return r;
}

int text_escape(struct buf *out, const char *s, size_t len)
{
    int r = 0;

    for (size_t i = 0; i < len && r >= 0;) {
        bool incomplete;
        int n = utf8_next(s + i, len - i, &incomplete);
        size_t size = (size_t)(n < 0 ? -n : n);
        if (n < 0 || s[i] == '\0' || utf8_unsafe(s + i, n) != 0)
            r = put_escaped(out, s + i, size);
        else
            r = buf_append(out, s + i, size);
        i += size;
    }
    return r;
}

/* One write(2), so that lines of several programs do not mix. Nothing can be done when it fails. */
void text_say(const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf raw;
    AUTO_DONE(buf) struct buf line;
    va_list ap;

    buf_init(&raw, LINE_MAX_BYTES);
    buf_init(&line, 4 * LINE_MAX_BYTES + 16);
    va_start(ap, fmt);
    int r = buf_vprintf(&raw, fmt, ap);
    va_end(ap);
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
    struct buf b;

    buf_init(&b, CELL_MAX);
    (void)text_escape(&b, s, strlen(s)); /* what fits is shown */
    return buf_take(&b);
}

static struct text_row *add_row(struct text_table *t)
{
    t->rows = xreallocarray(t->rows, t->n_rows + 1, sizeof(*t->rows));
    memset(&t->rows[t->n_rows], 0, sizeof(*t->rows));
    return &t->rows[t->n_rows++];
}

struct text_table *text_table_new(size_t n_columns)
{
    struct text_table *t = xnew(struct text_table);

    t->n_columns = n_columns;
    t->n_filled = n_columns;
    return t;
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

static int write_row(const struct text_table *t, const struct text_row *row, const size_t *widths,
                     struct buf *out)
{
    int r = 0;

    if (row->note != NULL)
        return buf_printf(out, "%*s%s\n", NOTE_INDENT, "", row->note);
    for (size_t j = 0; j < t->n_columns && r >= 0; j++) {
        size_t pad = j + 1 < t->n_columns ? widths[j] - width(row->cells[j]) + GAP : 0;
        r = buf_printf(out, "%s%*s", row->cells[j], (int)pad, "");
    }
    return r < 0 ? r : buf_putc(out, '\n');
}

int text_table_write(const struct text_table *t, struct buf *out)
{
    AUTO_FREE size_t *widths = xnew_n(size_t, t->n_columns);
    int r = 0;

    assert(t->n_filled == t->n_columns);
    for (size_t j = 0; j < t->n_columns; j++)
        widths[j] = column_width(t, j);
    for (size_t i = 0; i < t->n_rows && r >= 0; i++)
        r = write_row(t, &t->rows[i], widths, out);
    return r;
}
