/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the command line says. Everything that came from somewhere else is shown with control
 * characters and broken UTF-8 escaped: only box itself drives the reader's terminal. */

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct json;

/* Appends s with every C0 and C1 control, DEL and invalid byte as \xNN (a newline and a tab too).
 */
int text_escape(struct buf *out, const char *s, size_t len);

/* As much of src as fits, cut between characters; NULL is "". */
void text_cut(char *dst, size_t size, const char *src);

/* One line on standard error that starts with "box: ". Escapes all of it. */
void text_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void text_say_err(const struct err *err);

/* A line on standard error, where that is a terminal, which says what box waits for. The next one
 * takes its place. It goes by text_wait_clear(), which must be called before anything else is
 * written, or by text_say(). No escape sequence is needed for it. */
void text_wait(const char *what, uint64_t bytes, uint64_t seconds);
void text_wait_clear(void);
void text_wait_never(void); /* nothing of that is shown from here on */

/* Everything to standard output. A reader that has gone (EPIPE) is no failure. */
int text_print(const struct buf *text, struct err *err);
/* The same with JSON that is complete, and a newline behind it. */
int text_print_json(const struct buf *json, struct err *err);

/* Columns of what people read: cells are copied and escaped, the last column is not padded. */
struct text_table;

struct text_table *text_table_new(const char *const *titles, size_t n_columns);
void text_table_free(struct text_table *t);
DEFINE_CLEANUP(text_table)
void text_table_cell(struct text_table *t, const char *s); /* NULL is "-"; fills row by row */
void text_table_number(struct text_table *t, const struct json *v); /* what is no int is "-" */
/* Writes it to standard output. */
int text_table_print(const struct text_table *t, struct err *err);
/* A line of its own after the row so far, indented; no cell may be missing in that row. */
void text_table_note(struct text_table *t, const char *s);
