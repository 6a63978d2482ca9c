/* SPDX-License-Identifier: Apache-2.0 */

/* Decodes the body of an HTTP/1.1 message: by length, chunked, or until the end. */

#include "http/codec/http1.h"

#include <errno.h>

#include "http/codec/http1_internal.h"

/* A chunked body, RFC 9112 §7.1, one byte at a time outside the payload:
 *
 *   SIZE ─┬────────── CR ──> SIZE_LF ── n > 0 ──> DATA ──> DATA_CR ──> DATA_LF ──> SIZE
 *         └─ ';' ─> EXT ─ CR ─┘ └────── n = 0 ──> TRAILER ─┬─ CR ──> END_LF ──> done
 *                                                  ^       └─> NAME ─ ':' ─> VALUE ─ CR ─> VALUE_LF
 *                                                  └──────────────────────────────────────────┘
 */
enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* first byte of a line */
    CHUNK_NAME,
    CHUNK_VALUE,
    CHUNK_VALUE_LF,
    CHUNK_END_LF,
};

void http1_body_init(struct http1_body *b, enum http1_body_kind kind, uint64_t length)
{
    *b = (struct http1_body){.kind = kind};
    if (kind == HTTP1_BODY_LENGTH)
        b->left = length;
    b->done = kind == HTTP1_BODY_NONE || (kind == HTTP1_BODY_LENGTH && length == 0);
}

static int expect(struct http1_body *b, char c, char wanted, enum chunk_state next)
{
    if (c != wanted)
        return -EBADMSG;
    b->state = (uint8_t)next;
    return 0;
}

static int size_byte(struct http1_body *b, char c)
{
    int digit = http1_hex(c);

    if (digit >= 0) {
        if (b->digits == 15) /* 60 bits; nothing can overflow */
            return -EBADMSG;
        b->digits++;
        b->left = b->left * 16 + (uint64_t)digit;
        return 0;
    }
    if (b->digits == 0)
        return -EBADMSG;
    if (c == ';') {
        b->state = CHUNK_EXT;
        return 0;
    }
    return expect(b, c, '\r', CHUNK_SIZE_LF);
}

/* The end of a chunk line. A peer may cut its payload small or add extensions, but not make us
 * read many framing bytes per byte of payload. */
static int size_line_end(struct http1_body *b, char c)
{
    uint64_t excess = (uint64_t)b->excess + b->line;
    uint64_t justified = 16 + 2 * b->left;

    excess = excess > justified ? excess - justified : 0;
    if (excess > HTTP1_CHUNK_EXCESS)
        return -EBADMSG;
    b->excess = (uint32_t)excess;
    b->line = 0;
    b->digits = 0;
    return expect(b, c, '\n', b->left > 0 ? CHUNK_DATA : CHUNK_TRAILER);
}

static int text_byte(struct http1_body *b, char c, enum chunk_state at_end)
{
    if (http1_is_text(c))
        return 0;
    return expect(b, c, '\r', at_end);
}

static int name_byte(struct http1_body *b, char c)
{
    if (http1_is_token(c)) {
        b->state = CHUNK_NAME;
        return 0;
    }
    if (b->state == CHUNK_TRAILER)
        return expect(b, c, '\r', CHUNK_END_LF);
    return expect(b, c, ':', CHUNK_VALUE);
}

static int end_byte(struct http1_body *b, char c)
{
    b->done = c == '\n';
    return b->done ? 0 : -EBADMSG;
}

static int framing_byte(struct http1_body *b, char c)
{
    if (b->state <= CHUNK_SIZE_LF && ++b->line > HTTP1_CHUNK_LINE_MAX)
        return -EBADMSG;
    if (b->state >= CHUNK_TRAILER && ++b->trailers > HTTP1_TRAILERS_MAX)
        return -EBADMSG;

    switch ((enum chunk_state)b->state) {
    case CHUNK_SIZE:
        return size_byte(b, c);
    case CHUNK_EXT:
        return text_byte(b, c, CHUNK_SIZE_LF);
    case CHUNK_SIZE_LF:
        return size_line_end(b, c);
    case CHUNK_DATA_CR:
        return expect(b, c, '\r', CHUNK_DATA_LF);
    case CHUNK_DATA_LF:
        return expect(b, c, '\n', CHUNK_SIZE);
    case CHUNK_TRAILER:
    case CHUNK_NAME:
        return name_byte(b, c);
    case CHUNK_VALUE:
        return text_byte(b, c, CHUNK_VALUE_LF);
    case CHUNK_VALUE_LF:
        return expect(b, c, '\n', CHUNK_TRAILER);
    case CHUNK_END_LF:
        return end_byte(b, c);
    case CHUNK_DATA:
        break; /* handled by the caller */
    }
    return -EBADMSG;
}

/* Payload up to the end of the body or chunk. */
static size_t take_payload(struct http1_body *b, const char *data, size_t len,
                           struct http1_str *ret_part)
{
    size_t n = len < b->left ? len : (size_t)b->left;

    *ret_part = (struct http1_str){data, n};
    b->left -= n;
    return n;
}

static ssize_t read_chunked(struct http1_body *b, const char *data, size_t len,
                            struct http1_str *ret_part)
{
    size_t used = 0;

    while (used < len && !b->done) {
        if (b->state == CHUNK_DATA) {
            used += take_payload(b, data + used, len - used, ret_part);
            if (b->left == 0)
                b->state = CHUNK_DATA_CR;
            return (ssize_t)used;
        }
        int r = framing_byte(b, data[used++]);
        if (r < 0)
            return r;
    }
    return (ssize_t)used;
}

ssize_t http1_body_read(struct http1_body *b, const char *data, size_t len,
                        struct http1_str *ret_part)
{
    *ret_part = (struct http1_str){data, 0};
    if (b->done || len == 0)
        return 0;

    switch (b->kind) {
    case HTTP1_BODY_CHUNKED:
        return read_chunked(b, data, len, ret_part);
    case HTTP1_BODY_LENGTH: {
        size_t n = take_payload(b, data, len, ret_part);
        b->done = b->left == 0;
        return (ssize_t)n;
    }
    case HTTP1_BODY_UNTIL_CLOSE:
        ret_part->len = len;
        return (ssize_t)len;
    case HTTP1_BODY_NONE:
        break;
    }
    return 0;
}

int http1_body_eof(struct http1_body *b)
{
    if (b->kind == HTTP1_BODY_UNTIL_CLOSE)
        b->done = true;
    return b->done ? 0 : -EBADMSG;
}

size_t http1_chunk_head(char ret[static HTTP1_CHUNK_HEAD_MAX], size_t len)
{
    static const char hex[] = "0123456789abcdef";
    size_t digits = 1;

    for (size_t v = len >> 4; v > 0; v >>= 4)
        digits++;
    for (size_t i = digits; i > 0; i--) {
        ret[i - 1] = hex[len & 15];
        len >>= 4;
    }
    ret[digits] = '\r';
    ret[digits + 1] = '\n';
    return digits + 2;
}
