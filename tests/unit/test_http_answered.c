/* SPDX-License-Identifier: Apache-2.0 */

/* What is told of every request when it is over, and the id that it has. */

#include "http_fixture.h"

#include <netinet/in.h>
#include <sys/un.h>

#include "base/log.h"

#define HOST "Host: localhost\r\n"

static struct {
    unsigned told;
    const char *pattern;
    unsigned status;
    uint64_t bytes, duration_ns;
    bool had_request;
    char id[LOG_REQUEST_SIZE];
    char scope[LOG_REQUEST_SIZE]; /* of the log, inside of the handler */
    struct http_request *held;
} seen;

static void on_answered(void *arg, const struct http_answer *a)
{
    assert_string_equal(arg, "arg");
    seen.told++;
    seen.pattern = a->route != NULL ? a->route->pattern : NULL;
    seen.status = a->status;
    seen.bytes = a->bytes;
    seen.duration_ns = a->duration_ns;
    seen.had_request = a->req != NULL;
    if (a->req == NULL)
        return;
    (void)str_copy(seen.id, sizeof(seen.id), http_request_id(a->req));
    assert_string_equal(log_scope_now().id, seen.id);
}

static void get_hello(struct http_request *req, void *arg)
{
    (void)str_copy(seen.scope, sizeof(seen.scope), log_scope_now().id);
    http_reply(req, 200, "text/plain", "hello", 5);
    /* The request is gone, its id is not. */
    assert_string_equal(log_scope_now().id, seen.scope);
}

static void get_pieces(struct http_request *req, void *arg)
{
    http_reply_start(req, 200, "text/plain");
    assert_int_equal(http_reply_chunk(req, "abc", 3), 0);
    assert_int_equal(http_reply_chunk(req, "defg", 4), 0);
    http_reply_end(req);
}

static void get_later(struct http_request *req, void *arg)
{
    seen.held = req;
}

static void get_abort(struct http_request *req, void *arg)
{
    http_abort(req);
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
}

static void get_ws(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {.message = on_message, .closed = on_closed};
    struct ws_conn *ws;
    struct err err = {0};
    assert_int_equal(http_upgrade_ws(req, NULL, &handlers, NULL, &ws, &err), 0);
}

static int authorize(void *arg, struct http_request *req)
{
    return http_request_bearer(req) != NULL ? 401 : 0;
}

static const struct http_route routes[] = {
    {"GET", "/hello/{name}", get_hello, 0, 0},
    {"GET", "/pieces", get_pieces, 0, 0},
    {"GET", "/later", get_later, 0, 0},
    {"GET", "/abort", get_abort, 0, 0},
    {"GET", "/ws", get_ws, 0, 0},
    {"PUT", "/body", get_hello, 0, 4},
    {0},
};

static void start(struct fixture *f)
{
    static const struct http_server_opts opts = {
        .answered = on_answered, .authorize = authorize, .arg = (void *)(uintptr_t) "arg"};
    memset(&seen, 0, sizeof(seen));
    fixture_start(f, &opts, routes, NULL);
}

static void assert_told(const char *pattern, unsigned status, uint64_t bytes)
{
    assert_int_equal(seen.told, 1);
    seen.told = 0;
    if (pattern == NULL)
        assert_null(seen.pattern);
    else
        assert_string_equal(seen.pattern, pattern);
    assert_int_equal(seen.status, status);
    assert_int_equal(seen.bytes, bytes);
}

static void each_request_is_told_once(void **state)
{
    static const struct {
        const char *request, *pattern;
        unsigned status;
        uint64_t bytes;
    } cases[] = {
        {"GET /hello/a HTTP/1.1\r\n" HOST "\r\n", "/hello/{name}", 200, 5},
        {"HEAD /hello/b HTTP/1.1\r\n" HOST "\r\n", "/hello/{name}", 200, 0},
        {"GET /pieces HTTP/1.1\r\n" HOST "\r\n", "/pieces", 200, 7},
        {"GET /abort HTTP/1.1\r\n" HOST "\r\n", "/abort", 0, 0},
        {"GET /hello/a HTTP/1.1\r\n" HOST "Authorization: Bearer x\r\n\r\n", "/hello/{name}", 401,
         0},
        {"PUT /body HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nabcd", "/body", 200, 5},
        {"GET /ws HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: websocket\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         "/ws", 101, 0},
    };
    struct fixture f;
    start(&f);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int fd = peer_new(&f);
        say(&f, fd, cases[i].request);
        assert_told(cases[i].pattern, cases[i].status, cases[i].bytes);
        assert_true(seen.had_request);
        (void)close(fd);
        pump(&f);
        assert_int_equal(seen.told, 0);
    }
    fixture_stop(&f);
}

static void refusals_and_unknown_paths_are_told(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);
    say(&f, fd, "GET /nothing/here HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(seen.status, 404);
    assert_null(seen.pattern);
    seen.told = 0;
    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n");
    assert_int_equal(seen.told, 1);
    assert_int_equal(seen.status, 413);
    (void)close(fd);
    pump(&f);
    seen.told = 0;
    fd = peer_new(&f);
    say(&f, fd, "nonsense\r\n\r\n");
    assert_told(NULL, 400, 0);
    assert_false(seen.had_request);
    (void)close(fd);
    fixture_stop(&f);
}

static void a_peer_that_leaves_first_is_told_as_that(void **state)
{
    struct fixture f;
    start(&f);
    int fd = peer_new(&f);
    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(seen.told, 0);
    f.now_ns += NSEC_PER_SEC;
    (void)close(fd);
    pump(&f);
    assert_told("/later", 0, 0);
    assert_int_equal(seen.duration_ns, NSEC_PER_SEC);
    http_reply(seen.held, 200, NULL, NULL, 0); /* nobody is there, and nothing is told again */
    assert_int_equal(seen.told, 0);
    /* Half a body is no request that was answered, but one that was begun. */
    fd = peer_new(&f);
    say(&f, fd, "PUT /body HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nab");
    (void)close(fd);
    pump(&f);
    assert_told("/body", 0, 0);
    /* One that outlives the server. */
    fd = peer_new(&f);
    say(&f, fd, "GET /later HTTP/1.1\r\n" HOST "\r\n");
    http_server_free(f.server);
    assert_told("/later", 0, 0);
    http_reply(seen.held, 200, NULL, NULL, 0);
    assert_int_equal(seen.told, 0);
    loop_free(f.loop);
    (void)close(fd);
}

static void ids_are_kept_when_sane_and_made_otherwise(void **state)
{
    static const char *const bad[] = {"", "a b", "a\"b", "<x>", "a,b", "\xc3\xa4", "{\"a\":1}"};
    struct fixture f;
    char request[256], last[LOG_REQUEST_SIZE] = "";
    start(&f);
    int fd = peer_new(&f);
    say(&f, fd, "GET /hello/a HTTP/1.1\r\n" HOST "X-Request-Id: Good.1_-\r\n\r\n");
    assert_non_null(strstr(hear(fd), "\r\nX-Request-Id: Good.1_-\r\n"));
    assert_string_equal(seen.id, "Good.1_-");
    assert_string_equal(seen.scope, "Good.1_-");
    assert_string_equal(log_scope_now().id, "");
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        (void)str_fmt(request, sizeof(request),
                      "GET /hello/a HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n", bad[i]);
        say(&f, fd, request);
        const char *text = hear(fd);
        assert_int_equal(status_of(text), 200);
        assert_int_equal(strlen(seen.id), 16);
        assert_int_equal(strspn(seen.id, "0123456789abcdef"), 16);
        assert_string_not_equal(seen.id, last);
        assert_non_null(strstr(text, seen.id));
        (void)str_copy(last, sizeof(last), seen.id);
    }
    (void)close(fd);
    fixture_stop(&f);
}

/* Sockets of a service manager. */

static int bound(int family, int type, uint32_t address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    struct sockaddr_un un = {.sun_family = AF_UNIX}; /* the kernel chooses an abstract name */
    int fd = socket(family, type | SOCK_CLOEXEC, 0);
    int r = family == AF_INET ? bind(fd, (struct sockaddr *)&in, sizeof(in))
                              : bind(fd, (struct sockaddr *)&un, sizeof(sa_family_t));
    assert_int_equal(r, 0);
    return fd;
}

static void sockets_that_listen_are_served(void **state)
{
    struct fixture f;
    struct sockaddr_un un;
    socklen_t len = sizeof(un);
    size_t before = count_open_fds();
    start(&f);
    int fd = bound(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&un, &len), 0);
    assert_int_equal(http_server_listen_fd(f.server, fd, &f.err), 0);
    int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(peer, (struct sockaddr *)&un, len), 0);
    say(&f, peer, "GET /hello/a HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(peer)), 200);
    (void)close(peer);
    fixture_stop(&f);
    assert_int_equal(count_open_fds(), before);
}

static void sockets_that_cannot_be_served_are_refused(void **state)
{
    struct fixture f;
    size_t before = count_open_fds();
    memset(&seen, 0, sizeof(seen));
    fixture_start(&f, NULL, routes, NULL); /* without authorize() */
    assert_true(http_server_listen_fd(f.server, bound(AF_UNIX, SOCK_STREAM, 0), &f.err) < 0);
    assert_non_null(strstr(f.err.msg, "ListenStream="));
    assert_true(http_server_listen_fd(f.server, bound(AF_UNIX, SOCK_DGRAM, 0), &f.err) < 0);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(http_server_listen_fd(f.server, fd, &f.err), -ENOTSOCK);
    fd = bound(AF_INET, SOCK_STREAM, INADDR_ANY);
    assert_int_equal(listen(fd, 8), 0);
    assert_true(http_server_listen_fd(f.server, fd, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_DENIED);
    fd = bound(AF_INET, SOCK_STREAM, INADDR_LOOPBACK);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(http_server_listen_fd(f.server, fd, &f.err), 0);
    fixture_stop(&f);
    assert_int_equal(count_open_fds(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_is_told_once),
        cmocka_unit_test(refusals_and_unknown_paths_are_told),
        cmocka_unit_test(a_peer_that_leaves_first_is_told_as_that),
        cmocka_unit_test(ids_are_kept_when_sane_and_made_otherwise),
        cmocka_unit_test(sockets_that_listen_are_served),
        cmocka_unit_test(sockets_that_cannot_be_served_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
