/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include "loop/peer.h"

#include "http/codec/crypto.h"

#define HOST "Host: localhost\r\n"
#define TOKEN "0123456789abcdef0123456789abcdef"
#define AUTH "Authorization: Bearer " TOKEN "\r\n"

/* What the handlers saw, for the tests to look at. */
static struct {
    struct http_request *held; /* by the "later" handler */
    int calls;
    int cancels;
    int writables;
    char body[64];
    size_t body_len;
} seen;

static void get_hello(struct http_request *req, void *arg)
{
    seen.calls++;
    assert_string_equal(arg, "arg");
    http_reply(req, 200, "text/plain", "hello", 5);
}

static void get_session(struct http_request *req, void *arg)
{
    char q[16];
    ssize_t n = http_request_query_get(req, "q", q, sizeof(q));
    AUTO_FREE char *text =
        xasprintf("%s|%s|%s|%s|%s", http_request_method(req), http_request_path(req),
                  http_request_param(req, "id"), http_request_param(req, "pid"), n >= 0 ? q : "-");
    assert_null(http_request_param(req, "i"));
    http_reply(req, 200, "text/plain", text, strlen(text));
}

static void put_body(struct http_request *req, void *arg)
{
    const char *body = http_request_body(req, &seen.body_len);

    seen.calls++;
    assert_true(seen.body_len < sizeof(seen.body));
    memcpy(seen.body, body, seen.body_len + 1);
    http_reply(req, 204, NULL, NULL, 0);
}

static void on_cancel(struct http_request *req, void *arg)
{
    assert_true(http_request_cancelled(req));
    assert_ptr_equal(req, seen.held);
    seen.cancels++;
}

static void on_writable(struct http_request *req, void *arg)
{
    seen.writables++;
}

static void get_later(struct http_request *req, void *arg)
{
    assert_null(seen.held);
    seen.calls++;
    seen.held = req;
    http_on_cancel(req, on_cancel, NULL);
    http_on_writable(req, on_writable, NULL);
}

static void get_peer(struct http_request *req, void *arg)
{
    const struct peer *peer = http_request_peer(req);
    bool right = http_request_is_unix(req) && peer->known && peer->pid == getpid();
    http_reply(req, right ? 200 : 500, NULL, NULL, 0);
}

static void get_header(struct http_request *req, void *arg)
{
    assert_int_equal(http_reply_header(req, "X-Bad", "a\r\nb"), -EINVAL);
    assert_int_equal(http_reply_header(req, "X-Good", "yes"), 0);
    http_reply(req, 200, NULL, "", 0);
}

static const struct http_route routes[] = {
    {"GET", "/", get_hello, 0, 0},
    {"GET", "/hello", get_hello, 0, 0},
    {"GET", "/open", get_hello, HTTP_ROUTE_OPEN, 0},
    {"GET", "/s/{id}/p/{pid}", get_session, 0, 0},
    {"PUT", "/body", put_body, 0, 16},
    {"DELETE", "/body", get_hello, 0, 0},
    {"GET", "/later", get_later, 0, 0},
    {"GET", "/peer", get_peer, 0, 0},
    {"GET", "/header", get_header, 0, 0},
    {0},
};

static int authorize(void *arg, struct http_request *req)
{
    const char *token = http_request_bearer(req);
    return token != NULL && http_secret_eq(token, strlen(token), TOKEN, 32) ? 0 : 401;
}

static void start(struct fixture *f, const struct http_server_opts *opts)
{
    memset(&seen, 0, sizeof(seen));
    fixture_start(f, opts, routes, (void *)"arg");
}

static void a_request_is_answered(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST "X-Request-Id: a.B-c_9\r\n\r\n");
    assert_string_equal(hear(fd), "HTTP/1.1 200 OK\r\n"
                                  "Date: Thu, 01 Jan 1970 00:16:40 GMT\r\n"
                                  "Content-Type: text/plain\r\n"
                                  "X-Request-Id: a.B-c_9\r\n"
                                  "Content-Length: 5\r\n\r\nhello");
    say(&f, fd, "GET /s/a%2Fb/p/c?x=&q=1%202+3&q=no HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(body_of(hear(fd)), "GET|/s/a%2Fb/p/c|a/b|c|1 2 3");
    say(&f, fd, "GET http://localhost HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(body_of(hear(fd)), "hello");
    say(&f, fd, "GET /header HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(hear(fd), "\r\nX-Good: yes\r\n"));
    assert_int_equal(http_server_count(f.server), 1);
    (void)close(fd);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 0);
    fixture_stop(&f);
}

static void bytes_may_come_one_by_one(void **state)
{
    static const char text[] =
        "PUT /body HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "2\r\nab\r\n1\r\nc\r\n0\r\n\r\nPUT /body HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nxy";
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        say_bytes(&f, fd, text + i, 1);
        if (seen.calls == 1 && i < sizeof(text) - 4)
            assert_string_equal(seen.body, "abc");
    }
    assert_int_equal(seen.calls, 2);
    assert_string_equal(seen.body, "xy");
    (void)close(fd);
    fixture_stop(&f);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd,
        "GET /s/1/p/x HTTP/1.1\r\n" HOST "\r\nGET /later HTTP/1.1\r\n" HOST "\r\n"
        "GET /s/3/p/x HTTP/1.1\r\n" HOST "\r\nGET /s/4/p/x HTTP/1.1\r\n" HOST "\r\nGET /s");
    const char *text = hear(fd);
    assert_non_null(strstr(text, "|1|x|"));
    assert_null(strstr(text, "|3|x|"));
    http_reply(TAKE_PTR(seen.held), 200, "text/plain", "two", 3);
    pump(&f);
    text = hear(fd);
    const char *two = strstr(text, "two");
    const char *three = strstr(text, "|3|x|");
    const char *four = strstr(text, "|4|x|");
    assert_true(two != NULL && three > two && four > three);
    say(&f, fd, "/5/p/x HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(hear(fd), "|5|x|"));
    (void)close(fd);
    fixture_stop(&f);
}

static void a_flood_of_pipelined_requests_waits_for_its_reader(void **state)
{
    static const char one[] = "GET /hello HTTP/1.1\r\n" HOST "\r\n";
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);
    int sent = 0;

    for (; sent < 100000; sent++) {
        if (send(fd, one, sizeof(one) - 1, MSG_NOSIGNAL) != sizeof(one) - 1)
            break;
        if (sent % 64 == 0)
            pump(&f);
    }
    pump(&f);
    assert_in_range(sent, 100, 20000); /* it was stopped by us, not by the end of the loop */
    assert_true(seen.calls < sent);
    (void)close(fd);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 0);
    fixture_stop(&f);
}

static void head_has_no_body(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n");
    const char *text = hear(fd);
    assert_non_null(strstr(text, "Content-Length: 5\r\n"));
    assert_string_equal(body_of(text), "");
    (void)close(fd);
    fixture_stop(&f);
}

static void unknown_paths_and_methods_are_told_apart(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /nothing HTTP/1.1\r\n" HOST "\r\n");
    const char *text = hear(fd);
    assert_int_equal(status_of(text), 404);
    assert_non_null(strstr(text, "application/problem+json"));
    say(&f, fd, "POST /hello HTTP/1.1\r\n" HOST "\r\n");
    text = hear(fd);
    assert_int_equal(status_of(text), 405);
    assert_non_null(strstr(text, "\r\nAllow: GET,HEAD\r\n"));
    say(&f, fd, "POST /body HTTP/1.1\r\n" HOST "\r\n");
    assert_non_null(strstr(hear(fd), "\r\nAllow: PUT,DELETE\r\n"));
    say(&f, fd, "GET /s//p/x HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 404);
    say(&f, fd, "GET /hello/ HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 404);
    say(&f, fd, "OPTIONS * HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 404);
    (void)close(fd);
    fixture_stop(&f);
}

static void large_bodies_are_refused(void **state)
{
    static const char *const texts[] = {
        "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 17\r\n\r\n",
        "PUT /body HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
        "9\r\n123456789\r\n8\r\n12345678\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct fixture f;
        bool eof;
        start(&f, NULL);
        int fd = peer_new(&f);
        say(&f, fd, texts[i]);
        const char *text = hear_bytes(fd, NULL, &eof);
        assert_int_equal(status_of(text), 413);
        assert_non_null(strstr(text, "Connection: close\r\n"));
        assert_true(eof);
        /* What is still on its way is taken and thrown away, so that the answer survives. */
        say(&f, fd, "12345678901234567");
        assert_int_equal(seen.calls, 0);
        pass(&f, 3 * NSEC_PER_SEC);
        assert_int_equal(http_server_count(f.server), 0);
        (void)close(fd);
        fixture_stop(&f);
    }
}

static void a_client_that_asks_first_is_told_to_go_on(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_string_equal(hear(fd), "HTTP/1.1 100 Continue\r\n\r\n");
    say(&f, fd, "ok");
    assert_int_equal(status_of(hear(fd)), 204);
    assert_string_equal(seen.body, "ok");
    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 99\r\nExpect: 100-continue\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 413);
    (void)close(fd);
    fd = peer_new(&f);
    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 2\r\nExpect: magic\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 417);
    (void)close(fd);
    fixture_stop(&f);
}

static void http_1_0_is_served_and_closed(void **state)
{
    struct fixture f;
    bool eof;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /hello HTTP/1.0\r\n\r\n");
    assert_string_equal(body_of(hear_bytes(fd, NULL, &eof)), "hello");
    assert_true(eof);
    (void)close(fd);
    fd = peer_new(&f);
    say(&f, fd, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_non_null(strstr(hear_bytes(fd, NULL, &eof), "Connection: keep-alive\r\n"));
    assert_false(eof);
    say(&f, fd, "GET /later HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    http_reply_start(seen.held, 200, "text/plain");
    assert_int_equal(http_reply_chunk(seen.held, "raw", 3), 0);
    http_reply_end(TAKE_PTR(seen.held));
    pump(&f);
    assert_string_equal(body_of(hear_bytes(fd, NULL, &eof)), "raw");
    assert_true(eof);
    (void)close(fd);
    fixture_stop(&f);
}

static void answers_can_come_in_pieces(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_reply_start(seen.held, 200, "text/event-stream");
    assert_int_equal(http_reply_chunk(seen.held, "hello", 5), 0);
    assert_int_equal(http_reply_chunk(seen.held, "", 0), 0);
    assert_int_equal(http_reply_chunk(seen.held, "0123456789abcdef", 16), 0);
    http_reply_end(TAKE_PTR(seen.held));
    pump(&f);
    const char *text = hear(fd);
    assert_non_null(strstr(text, "Transfer-Encoding: chunked\r\n"));
    assert_string_equal(body_of(text), "5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    say(&f, fd, "HEAD /later HTTP/1.1\r\n" HOST "\r\n");
    http_reply_start(seen.held, 200, NULL);
    assert_int_equal(http_reply_chunk(seen.held, "hello", 5), 0);
    http_reply_end(TAKE_PTR(seen.held));
    assert_string_equal(body_of(hear(fd)), "");
    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_string_equal(body_of(hear(fd)), "hello");
    (void)close(fd);
    fixture_stop(&f);
}

static void a_slow_reader_holds_the_answer_back(void **state)
{
    static char chunk[65536];
    struct fixture f;
    const struct http_server_opts opts = {.max_queue = 1024 * 1024};
    size_t total = 0;
    int r;
    start(&f, &opts);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_reply_start(seen.held, 200, NULL);
    while ((r = http_reply_chunk(seen.held, chunk, sizeof(chunk))) == 0)
        total += sizeof(chunk);
    assert_int_equal(r, -ENOBUFS);
    assert_true(http_reply_full(seen.held));
    assert_in_range(total, 900 * 1024, 3 * 1024 * 1024);
    pump(&f);
    assert_int_equal(seen.writables, 0);
    for (size_t got = 0; got < total;) {
        size_t n;
        (void)hear_bytes(fd, &n, NULL);
        got += n;
        pump(&f);
    }
    assert_int_equal(seen.writables, 1);
    assert_false(http_reply_full(seen.held));
    http_reply_end(TAKE_PTR(seen.held));
    (void)close(fd);
    fixture_stop(&f);
}

static void a_reader_that_never_reads_is_dropped(void **state)
{
    static char chunk[65536];
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_reply_start(seen.held, 200, NULL);
    for (int i = 0; i < 32; i++)
        assert_int_equal(http_reply_chunk(seen.held, chunk, sizeof(chunk)), 0);
    pass(&f, 29 * NSEC_PER_SEC);
    assert_int_equal(seen.cancels, 0);
    pass(&f, 2 * NSEC_PER_SEC);
    assert_int_equal(seen.cancels, 1);
    assert_int_equal(http_reply_chunk(seen.held, "x", 1), -EPIPE);
    http_reply_end(TAKE_PTR(seen.held));
    assert_int_equal(http_server_count(f.server), 0);
    (void)close(fd);
    fixture_stop(&f);
}

static void a_peer_that_leaves_cancels_its_request(void **state)
{
    struct fixture f;
    start(&f, NULL);

    for (int half = 0; half < 2; half++) {
        int fd = peer_new(&f);
        say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
        pass(&f, 3600 * NSEC_PER_SEC); /* handlers take the time they need */
        assert_int_equal(seen.cancels, half);
        if (half)
            (void)shutdown(fd, SHUT_WR);
        else
            (void)close(fd);
        pump(&f);
        assert_int_equal(seen.cancels, half + 1);
        assert_int_equal(http_server_count(f.server), 0);
        http_reply(TAKE_PTR(seen.held), 200, NULL, "late", 4);
        if (half)
            (void)close(fd);
    }
    fixture_stop(&f);
}

static void a_server_may_end_before_its_requests(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_server_free(TAKE_PTR(f.server));
    assert_int_equal(seen.cancels, 1);
    assert_true(is_closed(fd));
    http_reply_start(seen.held, 200, NULL);
    http_reply_end(TAKE_PTR(seen.held));
    (void)close(fd);
    fixture_stop(&f);
}

static void an_aborted_request_closes_the_connection(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_abort(TAKE_PTR(seen.held));
    pump(&f);
    assert_true(is_closed(fd));
    (void)close(fd);
    fixture_stop(&f);
}

/* The hostile table: what is sent, what status it must get. Every one is also closed. */
static const struct {
    const char *text;
    unsigned status;
} hostile[] = {
    {"GET /hello HTTP/1.1\r\n" HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
     "0\r\n\r\nGET /hello HTTP/1.1\r\n" HOST "\r\n",
     400},
    {"PUT /body HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
    {"PUT /body HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\nabcde", 400},
    {"PUT /body HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400},
    {"PUT /body HTTP/1.1\r\n" HOST "Content-Length : 5\r\n\r\nabcde", 400},
    {"PUT /body HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"PUT /body HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
    {"GET /hello HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n", 400},
    {"GET /hello HTTP/1.1\nHost: localhost\n\n", 400},
    {"GET /hello HTTP/1.1\r\n" HOST "X: a\rb\r\n\r\n", 400},
    {"GET /hello HTTP/1.1\r\n\r\n", 400},
    {"GET /hello HTTP/1.1\r\n" HOST HOST "\r\n", 400},
    {"GET /hello HTTP/3.0\r\n" HOST "\r\n", 505},
    {"G\"T /hello HTTP/1.1\r\n" HOST "\r\n", 400},
    {"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n", 400},
    {"GET http://evil/hello HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /hello HTTP/1.1\r\n" HOST "Origin: http://evil\r\n\r\n", 403},
    {"GET /hello HTTP/1.1\r\n" HOST "Origin: null\r\n\r\n", 403},
    {"\x16\x03\x01\x02", 400},
};

static void hostile_requests_are_refused_and_closed(void **state)
{
    struct fixture f;
    start(&f, NULL);

    for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
        bool eof;
        int fd = peer_new(&f);
        say(&f, fd, hostile[i].text);
        const char *text = hear_bytes(fd, NULL, &eof);
        if (status_of(text) != hostile[i].status || !eof ||
            strstr(text, "Connection: close\r\n") == NULL)
            fail_msg("row %zu: %s", i, text);
        assert_null(strstr(text + 1, "HTTP/1.1")); /* one answer, never two */
        (void)close(fd);
        pump(&f);
    }
    assert_int_equal(seen.calls, 0);
    assert_int_equal(http_server_count(f.server), 0);
    fixture_stop(&f);
}

static void a_nul_in_the_head_is_refused(void **state)
{
    static const char text[] = "GET /hello HTTP/1.1\r\nX: a\0b\r\n" HOST "\r\n";
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say_bytes(&f, fd, text, sizeof(text) - 1);
    assert_int_equal(status_of(hear(fd)), 400);
    (void)close(fd);
    fixture_stop(&f);
}

static void an_endless_head_is_cut_off(void **state)
{
    static char junk[100000];
    struct fixture f;
    start(&f, NULL);

    memset(junk, 'x', sizeof(junk));
    for (size_t step = 500; step <= sizeof(junk); step *= 200) {
        int fd = peer_new(&f);
        say(&f, fd, "GET /hello HTTP/1.1\r\nX: ");
        size_t sent = 0;
        while (sent < sizeof(junk) && !is_closed(fd)) {
            size_t n = sizeof(junk) - sent < step ? sizeof(junk) - sent : step;
            say_bytes(&f, fd, junk, n);
            sent += n;
            const char *text = hear(fd);
            if (*text != '\0') {
                assert_int_equal(status_of(text), 431);
                break;
            }
        }
        assert_in_range(sent, 8000, step == 500 ? 9000 : sizeof(junk));
        (void)close(fd);
    }
    /* Many small headers are as bad as a long one. */
    int fd = peer_new(&f);
    for (size_t i = 0; i < sizeof(junk); i++)
        junk[i] = "a:\r\n"[i % 4];
    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST);
    say_bytes(&f, fd, junk, 404);
    say(&f, fd, "\r\n");
    assert_int_equal(status_of(hear(fd)), 431);
    (void)close(fd);
    fixture_stop(&f);
}

static void slow_heads_and_idle_connections_end(void **state)
{
    struct fixture f;
    bool eof;
    start(&f, NULL);
    int silent = peer_new(&f);
    int slow = peer_new(&f);
    int good = peer_new(&f);

    say(&f, good, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    (void)hear(good);
    for (int i = 0; i < 4; i++) {
        say(&f, slow, "G");
        pass(&f, NSEC_PER_SEC);
    }
    assert_false(is_closed(silent));
    assert_false(is_closed(slow));
    pass(&f, NSEC_PER_SEC + 1);
    assert_int_equal(status_of(hear_bytes(slow, NULL, &eof)), 408);
    assert_true(eof);
    assert_true(is_closed(silent));
    assert_false(is_closed(good));
    /* A second head on a kept connection has five seconds of its own. */
    pass(&f, 50 * NSEC_PER_SEC);
    say(&f, good, "GET");
    pass(&f, 4 * NSEC_PER_SEC);
    assert_false(is_closed(good));
    pass(&f, 2 * NSEC_PER_SEC);
    assert_int_equal(status_of(hear(good)), 408);
    (void)close(good);
    good = peer_new(&f);
    say(&f, good, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    (void)hear(good);
    pass(&f, 59 * NSEC_PER_SEC);
    assert_false(is_closed(good));
    pass(&f, 2 * NSEC_PER_SEC);
    assert_true(is_closed(good));
    pass(&f, 3 * NSEC_PER_SEC);
    assert_int_equal(http_server_count(f.server), 0);
    (void)close(silent);
    (void)close(slow);
    (void)close(good);
    fixture_stop(&f);
}

static void a_body_must_keep_a_pace(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 16\r\n\r\n");
    for (int i = 0; i < 9; i++) {
        say(&f, fd, "x");
        pass(&f, 3 * NSEC_PER_SEC);
    }
    assert_false(is_closed(fd));
    pass(&f, 4 * NSEC_PER_SEC);
    assert_int_equal(status_of(hear(fd)), 408);
    (void)close(fd);
    fixture_stop(&f);
}

static void who_is_not_authorised_learns_nothing(void **state)
{
    static const char *const requests[] = {
        "GET /hello HTTP/1.1\r\n" HOST "\r\n",
        "GET /nothing HTTP/1.1\r\n" HOST "\r\n",
        "POST /hello HTTP/1.1\r\n" HOST "\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "Authorization: Bearer wrong\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "Authorization: Bearer 0123456789abcdef\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "Authorization: Bearer " TOKEN "0\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "Authorization: Basic " TOKEN "\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST AUTH AUTH "\r\n",
        "GET /hello?token=" TOKEN " HTTP/1.1\r\n" HOST "Referer: x?token=" TOKEN "\r\n\r\n",
        "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 99999999\r\n\r\n",
    };
    const struct http_server_opts opts = {.authorize = authorize};
    struct fixture f;
    AUTO_FREE char *first = NULL;
    bool eof;
    start(&f, &opts);

    for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
        int fd = peer_new(&f);
        say(&f, fd, requests[i]);
        const char *text = hear_bytes(fd, NULL, &eof);
        assert_int_equal(status_of(text), 401);
        assert_non_null(strstr(text, "WWW-Authenticate: Bearer\r\n"));
        assert_true(eof);
        if (first == NULL)
            first = xstrdup(text);
        assert_string_equal(text, first);
        (void)close(fd);
    }
    assert_int_equal(seen.calls, 0);
    int fd = peer_new(&f);
    say(&f, fd, "GET /open HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST AUTH "\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    (void)close(fd);
    fixture_stop(&f);
}

static void origins_are_let_through_by_name(void **state)
{
    static const char *const origins[] = {"http://localhost:3000", NULL};
    const struct http_server_opts opts = {.origins = origins};
    struct fixture f;
    start(&f, &opts);
    int fd = peer_new(&f);

    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST "Origin: http://localhost:3000\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST "Origin: http://localhost:3001\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 403);
    (void)close(fd);
    fixture_stop(&f);
}

static void strangers_give_way_and_known_peers_stay(void **state)
{
    const struct http_server_opts opts = {.authorize = authorize, .max_waiting = 2, .max_conns = 4};
    struct fixture f;
    struct err err;
    int fds[2];
    start(&f, &opts);
    int known = peer_new(&f);

    say(&f, known, "GET /hello HTTP/1.1\r\n" HOST AUTH "\r\n");
    (void)hear(known);
    int a = peer_new(&f);
    int b = peer_new(&f);
    int c = peer_new(&f);
    pump(&f);
    assert_true(is_closed(a));
    assert_false(is_closed(b));
    assert_false(is_closed(c));
    assert_false(is_closed(known));
    say(&f, b, "GET /hello HTTP/1.1\r\n" HOST AUTH "\r\n");
    int d = peer_new(&f);
    assert_int_equal(http_server_count(f.server), 4);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(http_server_adopt(f.server, fds[1], &err), -EMFILE);
    assert_true(is_closed(fds[0]));
    const int all[] = {known, a, b, c, d, fds[0]};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        (void)close(all[i]);
    fixture_stop(&f);
}

static void errors_are_problem_documents(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_reply_error(TAKE_PTR(seen.held), 409, "conflict", "no \"x\"", "try y");
    pump(&f);
    const char *text = hear(fd);
    assert_non_null(strstr(text, "Content-Type: application/problem+json\r\n"));
    assert_string_equal(body_of(text),
                        "{\"type\":\"about:blank\",\"title\":\"Conflict\","
                        "\"status\":409,\"detail\":\"no \\\"x\\\"\","
                        "\"code\":\"conflict\",\"cause\":\"it exists already, or "
                        "was made with other parameters\",\"remediation\":\"try y\"}");
    (void)close(fd);
    fixture_stop(&f);
}

static void draining_finishes_what_is_under_way(void **state)
{
    struct fixture f;
    bool eof;
    start(&f, NULL);
    int idle = peer_new(&f);
    int busy = peer_new(&f);

    say(&f, busy, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_server_drain(f.server, 1001, "bye");
    pump(&f);
    assert_true(is_closed(idle));
    http_reply(TAKE_PTR(seen.held), 200, NULL, "x", 1);
    pump(&f);
    assert_non_null(strstr(hear_bytes(busy, NULL, &eof), "Connection: close\r\n"));
    assert_true(eof);
    (void)close(idle);
    (void)close(busy);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 0);
    fixture_stop(&f);
}

static void the_peer_of_a_unix_socket_is_known(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    say(&f, fd, "GET /peer HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    (void)close(fd);
    fixture_stop(&f);
}

static void secrets_are_compared_whole(void **state)
{
    assert_true(http_secret_eq("abc", 3, "abc", 3));
    assert_false(http_secret_eq("abd", 3, "abc", 3));
    assert_false(http_secret_eq("ab", 2, "abc", 3));
    assert_false(http_secret_eq("abcd", 4, "abc", 3));
    assert_false(http_secret_eq("", 0, "", 0)); /* no secret is not a secret everyone knows */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_answered),
        cmocka_unit_test(bytes_may_come_one_by_one),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_flood_of_pipelined_requests_waits_for_its_reader),
        cmocka_unit_test(head_has_no_body),
        cmocka_unit_test(unknown_paths_and_methods_are_told_apart),
        cmocka_unit_test(large_bodies_are_refused),
        cmocka_unit_test(a_client_that_asks_first_is_told_to_go_on),
        cmocka_unit_test(http_1_0_is_served_and_closed),
        cmocka_unit_test(answers_can_come_in_pieces),
        cmocka_unit_test(a_slow_reader_holds_the_answer_back),
        cmocka_unit_test(a_reader_that_never_reads_is_dropped),
        cmocka_unit_test(a_peer_that_leaves_cancels_its_request),
        cmocka_unit_test(a_server_may_end_before_its_requests),
        cmocka_unit_test(an_aborted_request_closes_the_connection),
        cmocka_unit_test(hostile_requests_are_refused_and_closed),
        cmocka_unit_test(a_nul_in_the_head_is_refused),
        cmocka_unit_test(an_endless_head_is_cut_off),
        cmocka_unit_test(slow_heads_and_idle_connections_end),
        cmocka_unit_test(a_body_must_keep_a_pace),
        cmocka_unit_test(who_is_not_authorised_learns_nothing),
        cmocka_unit_test(origins_are_let_through_by_name),
        cmocka_unit_test(strangers_give_way_and_known_peers_stay),
        cmocka_unit_test(errors_are_problem_documents),
        cmocka_unit_test(draining_finishes_what_is_under_way),
        cmocka_unit_test(the_peer_of_a_unix_socket_is_known),
        cmocka_unit_test(secrets_are_compared_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
