/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte picks the role and how the bytes are cut; the rest is what a peer sends. However
 * it is cut, the head ends at the same byte, no strict prefix of it is complete, everything parsed
 * lies inside it, and the body is the same. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "fuzz.h"
#include "http/codec/http1.h"

#define HEAD_MAX 1024 /* small, so that the cap is met */

static void check_inside(struct http1_str s, const char *data, size_t len)
{
    assert(s.p == NULL || (s.p >= data && s.p + s.len <= data + len));
}

static void check_head(const struct http1_head *h, const char *data, size_t len)
{
    check_inside(h->method, data, len);
    check_inside(h->target, data, len);
    check_inside(h->path, data, len);
    check_inside(h->query, data, len);
    check_inside(h->host, data, len);
    check_inside(h->reason, data, len);
    assert(h->n_headers <= HTTP1_HEADERS_MAX && h->minor <= 1);
    assert(!(h->chunked && h->has_length));
    for (size_t i = 0; i < h->n_headers; i++) {
        check_inside(h->headers[i].name, data, len);
        check_inside(h->headers[i].value, data, len);
        assert(h->headers[i].name.len > 0);
        assert(h->headers[i].value.len == 0 ||
               memchr(h->headers[i].value.p, '\r', h->headers[i].value.len) == NULL);
    }
}

/* The same search, byte by byte and with the bytes moving. */
static void check_scan(const char *data, size_t len, ssize_t expected)
{
    struct http1_scan scan = {0};
    ssize_t n = 0;

    for (size_t i = 0; i <= len && i <= HEAD_MAX && n == 0; i++) {
        char *copy = malloc(i + 1);
        assert(copy != NULL);
        memcpy(copy, data, i);
        n = http1_scan(&scan, copy, i, HEAD_MAX);
        assert(n <= 0 || (size_t)n == i);
        free(copy);
    }
    assert(n == expected);
}

/* Reads a body in steps; what came out and how it ended. */
static ssize_t read_body(const struct http1_head *h, enum http1_body_kind kind, const char *data,
                         size_t len, size_t step, struct buf *out)
{
    struct http1_body b;
    size_t pos = 0;

    http1_body_init(&b, kind, h->content_length);
    while (pos < len && !b.done) {
        size_t n = len - pos < step ? len - pos : step;
        struct http1_str part;
        ssize_t used = http1_body_read(&b, data + pos, n, &part);
        if (used < 0)
            return used;
        assert(used > 0 && (size_t)used <= n);
        check_inside(part, data + pos, n);
        assert(buf_append(out, part.p, part.len) == 0);
        pos += (size_t)used;
    }
    return b.done ? (ssize_t)pos : -1000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct http1_head head;

    if (size < 1)
        return 0;
    enum http1_role role = (data[0] & 1) != 0 ? HTTP1_RESPONSE : HTTP1_REQUEST;
    size_t step = 1 + (data[0] >> 1);
    const char *bytes = (const char *)data + 1;
    size_t len = size - 1;

    struct http1_scan scan = {0};
    ssize_t end = http1_scan(&scan, bytes, len, HEAD_MAX);
    check_scan(bytes, len, end);
    if (end <= 0 || http1_parse(role, bytes, (size_t)end, &head) < 0)
        return 0;
    check_head(&head, bytes, (size_t)end);

    enum http1_body_kind kind = role == HTTP1_REQUEST
                                    ? http1_request_body(&head)
                                    : http1_response_body(&head, (data[0] & 2) != 0);
    AUTO_DONE(buf) struct buf whole;
    AUTO_DONE(buf) struct buf cut;
    buf_init(&whole, len);
    buf_init(&cut, len);
    ssize_t a = read_body(&head, kind, bytes + end, len - (size_t)end, len, &whole);
    ssize_t b = read_body(&head, kind, bytes + end, len - (size_t)end, step, &cut);
    assert(a == b && (a < 0 || whole.len == cut.len));
    assert(whole.len == 0 || cut.len == 0 ||
           memcmp(whole.data, cut.data, whole.len < cut.len ? whole.len : cut.len) == 0);
    return 0;
}
