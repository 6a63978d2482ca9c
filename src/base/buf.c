/* SPDX-License-Identifier: Apache-2.0 */

/* Grows, fills, consumes and hands out the bytes of a buffer. */

#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define BUF_FIRST 64

void buf_init(struct buf *b, size_t max)
{
    /* One byte is always kept for the NUL, so that cap = max + 1 cannot wrap. */
    *b = (struct buf){.max = max < SIZE_MAX ? max : SIZE_MAX - 1};
}

void buf_done(struct buf *b)
{
    if (!b)
        return;
    free(b->data);
    *b = (struct buf){.max = b->max};
}

int buf_fail(struct buf *b, int error)
{
    assert(error < 0);
    if (b->error == 0)
        b->error = error;
    return error;
}

int buf_error(const struct buf *b)
{
    return b->error;
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->error = 0;
    if (b->data)
        b->data[0] = '\0';
}

int buf_reserve(struct buf *b, size_t len)
{
    assert(b->len <= b->max);
    if (len > b->max - b->len)
        return buf_fail(b, -ENOBUFS);

    size_t need = b->len + len + 1;
    if (need <= b->cap)
        return 0;

    size_t cap = b->cap > (b->max + 1) / 2 ? b->max + 1 : b->cap * 2;
    if (cap < BUF_FIRST)
        cap = BUF_FIRST;
    if (cap > b->max + 1)
        cap = b->max + 1;
    if (cap < need)
        cap = need;

    /* To the peer that sized it, memory that is out and a cap that is hit are the same thing. */
    char *data = realloc(b->data, cap);
    if (!data)
        return buf_fail(b, -ENOBUFS);
    data[b->len] = '\0';
    b->data = data;
    b->cap = cap;
    return 0;
}

int buf_append(struct buf *b, const void *data, size_t len)
{
    int r = buf_reserve(b, len);
    if (r < 0)
        return r;
    if (len > 0)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return 0;
}

int buf_puts(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

int buf_putc(struct buf *b, char c)
{
    return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int r = buf_vprintf(b, fmt, ap);
    va_end(ap);
    return r;
}

int buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    size_t room = b->cap - b->len; /* counts the NUL; 0 only before the first allocation */
    va_list first;

    va_copy(first, ap);
    /* clang-tidy 14 does not see through va_copy(). NOLINTNEXTLINE(clang-analyzer-valist*) */
    int n = vsnprintf(b->data ? b->data + b->len : NULL, room, fmt, first);
    va_end(first);
    int r = n < 0 ? buf_fail(b, -EINVAL) : 0;
    if (n >= 0 && (size_t)n >= room) {
        r = buf_reserve(b, (size_t)n);
        if (r == 0)
            n = vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    }

    /* All or nothing, although a first try that did not fit left bytes behind. */
    if (r < 0) {
        if (b->data)
            b->data[b->len] = '\0';
        return r;
    }
    b->len += (size_t)n;
    return 0;
}

void buf_consume(struct buf *b, size_t len)
{
    assert(len <= b->len);
    if (len == 0)
        return;
    b->len -= len;
    memmove(b->data, b->data + len, b->len);
    b->data[b->len] = '\0';
}

const char *buf_str(const struct buf *b)
{
    if (!b->data)
        return "";
    /* After buf_reserve() the owner moved len itself; there is always room for the NUL. */
    b->data[b->len] = '\0';
    return b->data;
}

char *buf_take(struct buf *b)
{
    char *data = b->data ? b->data : xcalloc(1, 1);

    data[b->len] = '\0';
    *b = (struct buf){.max = b->max};
    return data;
}
