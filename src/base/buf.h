/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The only growable buffer. It cannot be made without a maximum; hitting it is -ENOBUFS, never OOM.
 * Content may hold NUL; data[len] is always NUL as well once anything was allocated. */

#include <stdarg.h>
#include <stddef.h>

#include "base/cleanup.h"

struct buf {
    char *data; /* owned; NULL while empty and never grown */
    size_t len;
    size_t cap;
    size_t max;
    int error; /* the first failure since buf_init() or buf_reset(); 0: none */
};

void buf_init(struct buf *b, size_t max);
#define BUF_INIT(most) ((struct buf){.max = (most)}) /* the same, where a local is declared */
void buf_done(struct buf *b); /* frees; the buffer may be used again with the same max */
DEFINE_CLEANUP_DONE(buf)

void buf_reset(struct buf *b); /* len = 0, no error, memory kept */
/* A writer of many parts need not check each: what failed is remembered, although later and shorter
 * parts may fit. Only the functions that add bytes fail; buf_fail() adds an error of the caller's,
 * and returns it. */
int buf_error(const struct buf *b);
int buf_fail(struct buf *b, int error);
int buf_append(struct buf *b, const void *data, size_t len); /* 0 or -ENOBUFS; all or nothing */
int buf_puts(struct buf *b, const char *s);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* Makes room for `len` more bytes at data + len; the caller adds what it wrote to b->len (buf_str()
 * and buf_take() put the NUL back). */
int buf_reserve(struct buf *b, size_t len);
void buf_consume(struct buf *b, size_t len); /* drops the first len bytes */
const char *buf_str(const struct buf *b);    /* NUL-terminated, "" while empty; borrowed */
char *buf_take(struct buf *b); /* the memory, NUL-terminated, never NULL; b is empty after */
