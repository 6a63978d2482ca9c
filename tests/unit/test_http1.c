/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/str.h"
#include "http/codec/http1.h"
#include "lib/http1_whole.h"

#define GET "GET / HTTP/1.1\r\nHost: a\r\n"

static struct http1_head head;

static ssize_t request(const char *text)
{
    return http1_head(HTTP1_REQUEST, text, strlen(text), HTTP1_HEAD_MAX, &head);
}

static ssize_t response(const char *text)
{
    return http1_head(HTTP1_RESPONSE, text, strlen(text), HTTP1_HEAD_MAX, &head);
}

static void assert_str(struct http1_str s, const char *text)
{
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.p, text, s.len);
}

static void a_request_is_taken_apart(void **state)
{
    const char *text = "POST /v1/a%20b?x=1&y HTTP/1.1\r\n"
                       "Host: localhost:5410\r\n"
                       "content-length:  12 \t\r\n"
                       "X-Empty:\r\n"
                       "Connection: foo, Upgrade\r\n"
                       "Expect: 100-continue\r\n\r\nbody";

    assert_int_equal(request(text), strlen(text) - 4);
    assert_str(head.method, "POST");
    assert_str(head.target, "/v1/a%20b?x=1&y");
    assert_str(head.path, "/v1/a%20b");
    assert_str(head.query, "x=1&y");
    assert_str(head.host, "localhost:5410");
    assert_int_equal(head.minor, 1);
    assert_int_equal(head.n_headers, 5);
    assert_str(http1_find(&head, "x-EMPTY")->value, "");
    assert_null(http1_find(&head, "x-none"));
    assert_true(head.keep_alive);
    assert_true(head.connection_upgrade);
    assert_int_equal(head.expect, HTTP1_EXPECT_CONTINUE);
    assert_int_equal(http1_request_body(&head), HTTP1_BODY_LENGTH);
    assert_int_equal(head.content_length, 12);
    assert_true(http1_lists(&head, "connection", "FOO"));
    assert_false(http1_lists(&head, "connection", "fooo"));
}

static void a_response_is_taken_apart(void **state)
{
    const char *text = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

    assert_int_equal(response(text), strlen(text));
    assert_int_equal(head.status, 101);
    assert_str(head.reason, "UPGRADED");
    assert_int_equal(http1_response_body(&head, false), HTTP1_BODY_NONE);

    assert_true(response("HTTP/1.1 200\r\n\r\n") > 0);
    assert_int_equal(http1_response_body(&head, false), HTTP1_BODY_UNTIL_CLOSE);
    assert_int_equal(http1_response_body(&head, true), HTTP1_BODY_NONE);
    assert_true(response("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n") > 0);
    assert_int_equal(http1_response_body(&head, false), HTTP1_BODY_NONE);
    assert_false(head.keep_alive);
    assert_true(response("HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n") > 0);
    assert_int_equal(http1_response_body(&head, false), HTTP1_BODY_CHUNKED);
    assert_true(response("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n") > 0);
    assert_int_equal(http1_response_body(&head, false), HTTP1_BODY_NONE);
}

static void targets_have_three_forms(void **state)
{
    assert_true(request("GET http://Local:1/p?q HTTP/1.1\r\nHost: local:1\r\n\r\n") > 0);
    assert_str(head.path, "/p");
    assert_str(head.query, "q");
    assert_str(head.host, "local:1");
    assert_true(request("GET http://h HTTP/1.1\r\nHost: h\r\n\r\n") > 0);
    assert_int_equal(head.path.len, 0);
    assert_true(request("GET http://h?q HTTP/1.0\r\n\r\n") > 0);
    assert_str(head.host, "h");
    assert_str(head.query, "q");
    assert_true(request("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n") > 0);
    assert_str(head.path, "*");
}

static void http_1_0_needs_no_host_and_closes(void **state)
{
    assert_true(request("GET / HTTP/1.0\r\n\r\n") > 0);
    assert_null(head.host.p);
    assert_false(head.keep_alive);
    assert_true(request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n") > 0);
    assert_true(head.keep_alive);
    assert_true(request(GET "Connection: close, keep-alive\r\n\r\n") > 0);
    assert_false(head.keep_alive);
}

/* One row per way to be read differently by two implementations. */
static const struct {
    const char *text;
    int error;
} bad_requests[] = {
    {GET "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", EBADMSG},
    {GET "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", EBADMSG},
    {GET "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", EBADMSG},
    {GET "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", EBADMSG},
    {GET "Content-Length: 5, 5\r\n\r\n", EBADMSG},
    {GET "Content-Length: +5\r\n\r\n", EBADMSG},
    {GET "Content-Length: -1\r\n\r\n", EBADMSG},
    {GET "Content-Length: 0x5\r\n\r\n", EBADMSG},
    {GET "Content-Length: 5 5\r\n\r\n", EBADMSG},
    {GET "Content-Length:\r\n\r\n", EBADMSG},
    {GET "Content-Length: 9999999999999999999\r\n\r\n", EBADMSG},
    {GET "Content-Length : 5\r\n\r\n", EBADMSG},
    {GET "Content-Length\t: 5\r\n\r\n", EBADMSG},
    {GET "X: a\r\n b\r\n\r\n", EBADMSG},
    {GET "X: a\r\n\tb\r\n\r\n", EBADMSG},
    {GET " X: a\r\n\r\n", EBADMSG},
    {GET "X\r\n\r\n", EBADMSG},
    {GET ": a\r\n\r\n", EBADMSG},
    {GET "X(: a\r\n\r\n", EBADMSG},
    {GET "X: a\rb\r\n\r\n", EBADMSG},
    {GET "X: a\nY: b\r\n\r\n", EBADMSG},
    {GET "X: a\x7f\r\n\r\n", EBADMSG},
    {GET "X: \x01\r\n\r\n", EBADMSG},
    {GET "\n", EBADMSG},
    {GET "\r\r\n", EBADMSG},
    {GET "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", EBADMSG},
    {GET "Transfer-Encoding: gzip, chunked\r\n\r\n", EOPNOTSUPP},
    {GET "Transfer-Encoding: identity\r\n\r\n", EOPNOTSUPP},
    {GET "Transfer-Encoding: chunked,\r\n\r\n", EOPNOTSUPP},
    {GET "Transfer-Encoding: \x0b"
         "chunked\r\n\r\n",
     EBADMSG},
    {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", EBADMSG},
    {"GET / HTTP/1.1\r\n\r\n", EBADMSG},
    {GET "Host: b\r\n\r\n", EBADMSG},
    {"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n", EBADMSG},
    {"GET http://u@a/ HTTP/1.1\r\nHost: u@a\r\n\r\n", EBADMSG},
    {"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", EBADMSG},
    {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /a%0 HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", EBADMSG},
    {"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET /\r\n\r\n", EBADMSG},
    {"GET / http/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET / HTTP/1.10\r\nHost: a\r\n\r\n", EBADMSG},
    {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", EPROTONOSUPPORT},
    {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", EPROTONOSUPPORT},
    {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", EPROTONOSUPPORT},
    {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", EBADMSG},
    {"\x16\x03\x01", EBADMSG},
};

static void ambiguous_requests_are_refused(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(bad_requests); i++) {
        ssize_t r = request(bad_requests[i].text);
        if (r != -bad_requests[i].error)
            fail_msg("row %zu: got %zd for: %s", i, r, bad_requests[i].text);
    }
}

static void a_nul_is_refused_anywhere(void **state)
{
    static const char text[] = GET "X: abc\r\n\r\n";
    char copy[sizeof(text)];

    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        memcpy(copy, text, sizeof(text));
        copy[i] = '\0';
        assert_int_equal(http1_head(HTTP1_REQUEST, copy, sizeof(text) - 1, 8192, &head), -EBADMSG);
    }
}

static void ambiguous_responses_are_refused(void **state)
{
    static const char *const bad[] = {
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(response(bad[i]), -EBADMSG);
}

static void no_strict_prefix_is_complete(void **state)
{
    static const char *const texts[] = {
        GET "X: y\r\n\r\n",
        "\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    };
    for (size_t t = 0; t < ARRAY_SIZE(texts); t++) {
        size_t len = strlen(texts[t]);
        for (size_t n = 0; n < len; n++)
            assert_int_equal(http1_head(HTTP1_REQUEST, texts[t], n, 8192, &head), 0);
        assert_int_equal(http1_head(HTTP1_REQUEST, texts[t], len, 8192, &head), len);
    }
}

static void scanning_goes_on_where_it_stopped(void **state)
{
    static const char text[] = "\r\n" GET "X: y\r\n\r\nrest";
    const size_t end = sizeof(text) - 5;
    struct http1_scan scan = {0};

    for (size_t n = 0; n < end; n++) {
        /* Moved every time: only offsets may be kept. */
        char *copy = malloc(n + 1);
        memcpy(copy, text, n);
        assert_int_equal(http1_scan(&scan, copy, n, 8192), 0);
        free(copy);
    }
    assert_int_equal(http1_scan(&scan, text, sizeof(text) - 1, 8192), end);
    assert_int_equal(http1_parse(HTTP1_REQUEST, text, end, &head), 0);
    assert_str(http1_find(&head, "X")->value, "y");
}

static void a_long_head_is_cut_off_at_the_cap(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 20000);
    (void)buf_puts(&b, GET "X: ");
    while (b.len < 8192 - 4)
        (void)buf_putc(&b, 'x');
    (void)buf_puts(&b, "\r\n\r\n");
    assert_int_equal(b.len, 8192);
    assert_int_equal(http1_head(HTTP1_REQUEST, b.data, b.len, 8192, &head), 8192);
    assert_int_equal(http1_head(HTTP1_REQUEST, b.data, b.len, 8191, &head), -E2BIG);
    assert_int_equal(http1_head(HTTP1_REQUEST, b.data, 8191, 8191, &head), -E2BIG);
    assert_int_equal(http1_error_status(-E2BIG), 431);
}

static void headers_are_counted(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 20000);
    (void)buf_puts(&b, GET);
    for (int i = 1; i < HTTP1_HEADERS_MAX; i++)
        (void)buf_puts(&b, "a:\r\n");
    size_t len = b.len;
    (void)buf_puts(&b, "\r\n");
    assert_true(http1_head(HTTP1_REQUEST, b.data, b.len, 8192, &head) > 0);
    assert_int_equal(head.n_headers, HTTP1_HEADERS_MAX);
    assert_int_equal(http1_count(&head, "A"), HTTP1_HEADERS_MAX - 1);
    b.len = len;
    (void)buf_puts(&b, "a:\r\n\r\n");
    assert_int_equal(http1_head(HTTP1_REQUEST, b.data, b.len, 8192, &head), -E2BIG);
}

/* Feeds a body in pieces of `step` bytes and joins what comes out. Returns bytes taken or error. */
static ssize_t feed(struct http1_body *b, const char *data, size_t len, size_t step,
                    struct buf *out)
{
    size_t pos = 0;

    while (pos < len && !b->done) {
        size_t n = len - pos < step ? len - pos : step;
        while (n > 0 && !b->done) {
            struct http1_str part;
            ssize_t used = http1_body_read(b, data + pos, n, &part);
            if (used < 0)
                return used;
            assert_true(used > 0);
            assert_int_equal(buf_append(out, part.p, part.len), 0);
            pos += (size_t)used;
            n -= (size_t)used;
        }
    }
    return (ssize_t)pos;
}

static void a_chunked_body_is_joined_at_any_cut(void **state)
{
    static const char text[] = "5\r\nhello\r\n1;a=b;c=\"d\"\r\n \r\n00A\r\n0123456789\r\n"
                               "0\r\nTrailer: x\r\nOther:\r\n\r\nnext";

    for (size_t step = 1; step < sizeof(text); step++) {
        AUTO_DONE(buf) struct buf out;
        struct http1_body b;
        buf_init(&out, 100);
        http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
        assert_int_equal(feed(&b, text, sizeof(text) - 1, step, &out), sizeof(text) - 5);
        assert_true(b.done);
        assert_string_equal(buf_str(&out), "hello 0123456789");
        assert_int_equal(http1_body_eof(&b), 0);
    }
}

static void broken_chunks_are_refused(void **state)
{
    static const char *const bad[] = {
        "\r\n",
        "g\r\n",
        "-1\r\n",
        "+1\r\n",
        "0x1\r\n",
        " 1\r\n",
        "1 \r\n",
        "1\n",
        "1\r\r\n",
        "1\r\na\n",
        "1\r\nab\r\n",
        "1;\n\r\n",
        "1;\x01\r\n",
        "1111111111111111\r\n",
        "0\r\n \r\n",
        "0\r\nX\r\n",
        "0\r\nX : y\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\nX: y\r\n\n",
        "0\r\n\rX",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        for (size_t step = 1; step < 20; step += 18) {
            AUTO_DONE(buf) struct buf out;
            struct http1_body b;
            buf_init(&out, 100);
            http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
            if (feed(&b, bad[i], strlen(bad[i]), step, &out) != -EBADMSG)
                fail_msg("row %zu was taken", i);
        }
    }
}

static void framing_without_payload_is_bounded(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct http1_body b;
    char line[HTTP1_CHUNK_LINE_MAX + 8];
    ssize_t r = 0;
    int rounds = 0;

    buf_init(&out, 100000);
    memset(line, 'x', sizeof(line));
    memcpy(line, "1;", 2);
    memcpy(line + 200, "\r\na\r\n", 5);
    http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
    while (r >= 0 && rounds++ < 1000)
        r = feed(&b, line, 205, 64, &out);
    assert_int_equal(r, -EBADMSG);
    assert_in_range(rounds, 50, 150);

    memset(line, 'x', sizeof(line));
    memcpy(line, "1;", 2);
    http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
    assert_int_equal(feed(&b, line, sizeof(line), 1, &out), -EBADMSG);
    http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
    assert_true(feed(&b, "0\r\nX:", 5, 5, &out) == 5);
    for (r = 0; r >= 0 && rounds++ < 2000;)
        r = feed(&b, "yyyyyyyyyy", 10, 10, &out);
    assert_int_equal(r, -EBADMSG);
}

static void a_body_by_length_ends_exactly(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct http1_body b;

    buf_init(&out, 100);
    http1_body_init(&b, HTTP1_BODY_LENGTH, 5);
    assert_int_equal(feed(&b, "abc", 3, 1, &out), 3);
    assert_false(b.done);
    assert_int_equal(http1_body_eof(&b), -EBADMSG);
    assert_int_equal(feed(&b, "deXX", 4, 4, &out), 2);
    assert_true(b.done);
    assert_string_equal(buf_str(&out), "abcde");

    http1_body_init(&b, HTTP1_BODY_NONE, 7);
    assert_true(b.done);
    http1_body_init(&b, HTTP1_BODY_UNTIL_CLOSE, 0);
    assert_int_equal(feed(&b, "abc", 3, 2, &out), 3);
    assert_false(b.done);
    assert_int_equal(http1_body_eof(&b), 0);
}

static void what_is_written_can_be_read(void **state)
{
    AUTO_DONE(buf) struct buf b;
    char chunk[HTTP1_CHUNK_HEAD_MAX];

    buf_init(&b, 1000);
    assert_int_equal(http1_put_request(&b, "PUT", "/x?y"), 0);
    assert_int_equal(http1_put_header(&b, "Host", "a"), 0);
    assert_int_equal(http1_put_length(&b, 42), 0);
    assert_int_equal(http1_put_end(&b), 0);
    assert_int_equal(request(buf_str(&b)), b.len);
    assert_int_equal(head.content_length, 42);
    buf_reset(&b);
    assert_int_equal(http1_put_status(&b, 404), 0);
    assert_int_equal(http1_put_end(&b), 0);
    assert_int_equal(response(buf_str(&b)), b.len);
    assert_str(head.reason, "Not Found");

    assert_int_equal(http1_chunk_head(chunk, 1), 3);
    assert_memory_equal(chunk, "1\r\n", 3);
    assert_int_equal(http1_chunk_head(chunk, 0x1f0), 5);
    assert_memory_equal(chunk, "1f0\r\n", 5);
    assert_int_equal(http1_chunk_head(chunk, SIZE_MAX), 18);
}

static void nothing_written_breaks_out_of_its_place(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 1000);
    assert_int_equal(http1_put_header(&b, "X", "a\r\nSet-Cookie: b"), -EINVAL);
    assert_int_equal(http1_put_header(&b, "X", "a\nb"), -EINVAL);
    assert_int_equal(http1_put_header(&b, "X: y\r\nZ", "a"), -EINVAL);
    assert_int_equal(http1_put_header(&b, "", "a"), -EINVAL);
    assert_int_equal(http1_put_request(&b, "GET", "/a b"), -EINVAL);
    assert_int_equal(http1_put_request(&b, "GET", "/a\r\nX:"), -EINVAL);
    assert_int_equal(http1_put_request(&b, "GET", ""), -EINVAL);
    assert_int_equal(http1_put_request(&b, "G T", "/"), -EINVAL);
    assert_int_equal(http1_put_status(&b, 1000), -EINVAL);
    assert_int_equal(b.len, 0);
}

static void escapes_are_decoded(void **state)
{
    char out[8];
    struct http1_str s = {"a%2Fb+%e4", 9};

    assert_int_equal(http1_percent_decode(s, false, out, sizeof(out)), 5);
    assert_string_equal(out, "a/b+\xe4");
    assert_int_equal(http1_percent_decode(s, true, out, sizeof(out)), 5);
    assert_string_equal(out, "a/b \xe4");
    assert_int_equal(http1_percent_decode(s, true, out, 5), -ENOBUFS);
    assert_int_equal(http1_percent_decode((struct http1_str){"%00", 3}, true, out, 8), -EINVAL);
    assert_int_equal(http1_percent_decode((struct http1_str){"%0", 2}, true, out, 8), -EINVAL);
    assert_int_equal(http1_percent_decode((struct http1_str){"", 0}, true, out, 1), 0);
}

static void the_payload_of_small_chunks_is_gathered(void **state)
{
    char text[] = "1\r\na\r\n2;x=y\r\nbc\r\n1\r\nd\r\n0\r\n\r\nGET /", bad[] = "1\r\na\r\nx";
    struct http1_body b;
    size_t size;

    /* Cut anywhere. */
    for (size_t cut = 0; cut <= sizeof(text) - 1; cut++) {
        char copy[sizeof(text)], out[8];
        memcpy(copy, text, sizeof(text));
        http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
        ssize_t n = http1_body_gather(&b, copy, cut, &size);
        assert_true(n >= 0 && (size_t)n <= cut && size <= 4);
        memcpy(out, copy, size);
        size_t before = size;
        ssize_t m = http1_body_gather(&b, copy + n, sizeof(text) - 1 - (size_t)n, &size);
        assert_int_equal(n + m, sizeof(text) - 1 - strlen("GET /"));
        memcpy(out + before, copy + n, size);
        assert_int_equal(before + size, 4);
        assert_memory_equal(out, "abcd", 4);
        assert_true(b.done);
        assert_string_equal(copy + n + m, "GET /");
    }
    http1_body_init(&b, HTTP1_BODY_CHUNKED, 0);
    assert_int_equal(http1_body_gather(&b, bad, sizeof(bad) - 1, &size), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_payload_of_small_chunks_is_gathered),
        cmocka_unit_test(a_request_is_taken_apart),
        cmocka_unit_test(a_response_is_taken_apart),
        cmocka_unit_test(targets_have_three_forms),
        cmocka_unit_test(http_1_0_needs_no_host_and_closes),
        cmocka_unit_test(ambiguous_requests_are_refused),
        cmocka_unit_test(a_nul_is_refused_anywhere),
        cmocka_unit_test(ambiguous_responses_are_refused),
        cmocka_unit_test(no_strict_prefix_is_complete),
        cmocka_unit_test(scanning_goes_on_where_it_stopped),
        cmocka_unit_test(a_long_head_is_cut_off_at_the_cap),
        cmocka_unit_test(headers_are_counted),
        cmocka_unit_test(a_chunked_body_is_joined_at_any_cut),
        cmocka_unit_test(broken_chunks_are_refused),
        cmocka_unit_test(framing_without_payload_is_bounded),
        cmocka_unit_test(a_body_by_length_ends_exactly),
        cmocka_unit_test(what_is_written_can_be_read),
        cmocka_unit_test(nothing_written_breaks_out_of_its_place),
        cmocka_unit_test(escapes_are_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
