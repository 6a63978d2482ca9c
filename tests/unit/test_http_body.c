/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#define HOST "Host: localhost\r\n"

/* Bodies that a handler takes as they come, and answers whose length is known before they are. */
static struct {
    struct http_request *req;
    char body[256];
    size_t len;
    int pieces, ends, cancels;
    bool refuse; /* in the first piece */
} seen;

static void on_body(struct http_request *req, const char *data, size_t len, bool end, void *arg)
{
    assert_ptr_equal(req, seen.req);
    assert_string_equal(arg, "arg");
    if (end) {
        assert_int_equal(len, 0);
        seen.ends++;
        seen.req = NULL;
        http_reply(req, 201, "text/plain", seen.body, seen.len);
        return;
    }
    seen.pieces++;
    assert_true(seen.len + len <= sizeof(seen.body));
    memcpy(seen.body + seen.len, data, len);
    seen.len += len;
    if (seen.refuse) {
        seen.req = NULL;
        http_reply_error(req, 507, "limit", "no", NULL);
    }
}

static void on_cancel(struct http_request *req, void *arg)
{
    seen.cancels++;
    http_abort(req);
    seen.req = NULL;
}

static void put_stream(struct http_request *req, void *arg)
{
    seen.req = req;
    http_on_cancel(req, on_cancel, NULL);
    http_body_start(req, on_body, arg);
}

/* Not before it is told to. */
static void put_later(struct http_request *req, void *arg)
{
    seen.req = req;
    http_on_cancel(req, on_cancel, NULL);
}

static void put_refuse(struct http_request *req, void *arg)
{
    http_reply_error(req, 403, "denied", "no", NULL);
}

static void get_counted(struct http_request *req, void *arg)
{
    http_reply_start_length(req, 200, "text/plain", 10);
    assert_int_equal(http_reply_chunk(req, "01234", 5), 0);
    if (strcmp(http_request_method(req), "HEAD") != 0)
        assert_int_equal(http_reply_chunk(req, "567890", 6), -EMSGSIZE);
    if (http_request_head(req)->query.p == NULL)
        assert_int_equal(http_reply_chunk(req, "56789", 5), 0);
    http_reply_end(req);
}

static const struct http_route routes[] = {
    {"PUT", "/stream", put_stream, HTTP_ROUTE_STREAM, 100},
    {"PUT", "/later", put_later, HTTP_ROUTE_STREAM, 100},
    {"PUT", "/refuse", put_refuse, HTTP_ROUTE_STREAM, 100},
    {"GET", "/counted", get_counted, 0, 0},
    {0},
};

static void start(struct fixture *f)
{
    memset(&seen, 0, sizeof(seen));
    fixture_start(f, NULL, routes, (void *)"arg");
}

static void a_body_comes_in_pieces(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);

    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Content-Length: 6\r\n\r\nab");
    assert_int_equal(seen.pieces, 1); /* before the rest is there */
    say(&f, fd, "cd");
    say(&f, fd, "efPUT /stream HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    assert_int_equal(seen.ends, 2);
    char *answer = hear(fd);
    assert_non_null(strstr(answer, "201 Created"));
    assert_non_null(strstr(answer, "abcdefHTTP/1.1 201")); /* the next request was not lost */
    /* Chunks, byte by byte. */
    seen.len = 0;
    const char *text = "PUT /stream HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                       "3\r\nxyz\r\n1\r\n!\r\n0\r\n\r\n";
    for (size_t i = 0; text[i] != '\0'; i++)
        say_bytes(&f, fd, text + i, 1);
    assert_int_equal(seen.ends, 3);
    assert_string_equal(body_of(hear(fd)), "xyz!");
    fixture_stop(&f);
}

static void what_is_held_waits(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);

    say(&f, fd, "PUT /later HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 8\r\n\r\n");
    assert_non_null(seen.req);
    assert_string_equal(hear(fd), ""); /* nobody has asked for the body yet */
    http_body_start(seen.req, on_body, (void *)"arg");
    pump(&f);
    assert_string_equal(hear(fd), "HTTP/1.1 100 Continue\r\n\r\n");
    http_body_hold(seen.req, true);
    say(&f, fd, "1234");
    assert_int_equal(seen.pieces, 0);
    http_body_hold(seen.req, false);
    pump(&f);
    assert_int_equal(seen.len, 4);
    http_body_hold(seen.req, true);
    say(&f, fd, "5678");
    assert_int_equal(seen.ends, 0);
    http_body_hold(seen.req, false);
    pump(&f);
    assert_int_equal(seen.ends, 1);
    assert_string_equal(body_of(hear(fd)), "12345678");
    fixture_stop(&f);
}

static void a_refusal_does_not_wait_for_the_body(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);

    say(&f, fd,
        "PUT /refuse HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 8\r\n\r\n");
    char *answer = hear(fd);
    assert_non_null(strstr(answer, "403"));
    assert_non_null(strstr(answer, "Connection: close"));
    fd = peer_new(&f);
    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Content-Length: 101\r\n\r\n");
    assert_non_null(strstr(hear(fd), "413"));
    fd = peer_new(&f);
    seen.refuse = true;
    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Content-Length: 8\r\n\r\n12");
    assert_non_null(strstr(hear(fd), "507"));
    fixture_stop(&f);
}

static void whoever_leaves_is_noticed(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);

    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Content-Length: 8\r\n\r\n12");
    (void)close(fd);
    pump(&f);
    assert_int_equal(seen.cancels, 1);
    assert_int_equal(seen.ends, 0);
    fd = peer_new(&f); /* and one whose chunks make no sense */
    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nzz\r\n");
    assert_int_equal(seen.cancels, 2);
    fd = peer_new(&f); /* and one that sends nothing any more */
    say(&f, fd, "PUT /stream HTTP/1.1\r\n" HOST "Content-Length: 8\r\n\r\n12");
    pass(&f, 31 * NSEC_PER_SEC);
    assert_int_equal(seen.cancels, 3);
    fixture_stop(&f);
}

static void a_known_length_is_kept(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);

    say(&f, fd, "GET /counted HTTP/1.1\r\n" HOST "\r\n");
    char *answer = hear(fd);
    assert_non_null(strstr(answer, "Content-Length: 10\r\n"));
    assert_null(strstr(answer, "chunked"));
    assert_string_equal(body_of(answer), "0123456789");
    say(&f, fd, "HEAD /counted HTTP/1.1\r\n" HOST "\r\n");
    answer = hear(fd);
    assert_non_null(strstr(answer, "Content-Length: 10\r\n"));
    assert_string_equal(body_of(answer), "");
    /* Less than was promised: the connection goes, so that nobody takes it for all. */
    say(&f, fd, "GET /counted?short HTTP/1.1\r\n" HOST "\r\n");
    assert_true(is_closed(fd));
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_comes_in_pieces),
        cmocka_unit_test(what_is_held_waits),
        cmocka_unit_test(a_refusal_does_not_wait_for_the_body),
        cmocka_unit_test(whoever_leaves_is_noticed),
        cmocka_unit_test(a_known_length_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
