/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "http/client/client.h"
#include "http/client/client_internal.h"

static char dir[64];
static char path[96];
static char endpoint[128];

/* What the server and the client saw. */
static struct {
    struct ws_conn *server_ws;
    struct ws_conn *client_ws;
    struct buf log; /* of the client's callbacks */
    struct buf body;
    int calls;
    bool cancel;
    bool ok;
    int dones;
    struct err err;
} seen;

static void post_echo(struct http_request *req, void *arg)
{
    size_t len;
    const char *body = http_request_body(req, &len);
    const char *type = http_request_header(req, "Content-Type");

    seen.calls++;
    http_reply(req, 200, type, body, len);
}

static void get_parts(struct http_request *req, void *arg)
{
    http_reply_start(req, 200, "text/plain");
    (void)http_reply_chunk(req, "one ", 4);
    (void)http_reply_chunk(req, "two", 3);
    http_reply_end(req);
}

static void server_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                           void *arg)
{
    assert_int_equal(ws_send(c, opcode, data, len), 0);
}

static void server_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    seen.server_ws = NULL;
}

static const struct ws_handlers server_handlers = {server_message, NULL, server_closed};

static void get_ws(struct http_request *req, void *arg)
{
    static const struct ws_opts opts = {.protocol = "mcp"};
    struct err err;
    (void)http_upgrade_ws(req, &opts, &server_handlers, NULL, &seen.server_ws, &err);
}

static const struct http_route routes[] = {
    {"POST", "/echo", post_echo, 0, 8u * 1024 * 1024},
    {"GET", "/parts", get_parts, 0, 0},
    {"GET", "/ws", get_ws, 0, 0},
    {0},
};

static void on_head(struct http_call *call, const struct http1_head *head, void *arg)
{
    const struct http1_header *type = http1_find(head, "Content-Type");
    (void)buf_printf(&seen.log, "head:%u", head->status);
    if (type != NULL)
        (void)buf_printf(&seen.log, ":%.*s", (int)type->value.len, type->value.p);
    (void)buf_puts(&seen.log, " ");
}

static void on_body(struct http_call *call, const char *data, size_t len, void *arg)
{
    assert_int_equal(buf_append(&seen.body, data, len), 0);
    if (seen.cancel)
        http_call_cancel(call);
}

static void on_writable(struct http_call *call, void *arg)
{
    assert_false(http_call_full(call));
    (void)buf_puts(&seen.log, "writable ");
}

static void on_done(struct http_call *call, const struct err *err, void *arg)
{
    seen.dones++;
    seen.ok = err == NULL;
    if (err != NULL)
        seen.err = *err;
    (void)buf_puts(&seen.log, err == NULL ? "done" : "failed");
}

static const struct http_call_handlers handlers = {on_head, on_body, on_writable, on_done};

static int make_dir(void **state)
{
    (void)str_copy(dir, sizeof(dir), "/tmp/box-client-XXXXXX");
    if (mkdtemp(dir) == NULL || str_fmt(path, sizeof(path), "%s/s", dir) < 0)
        return -1;
    return str_fmt(endpoint, sizeof(endpoint), "unix://%s", path);
}

static int remove_dir(void **state)
{
    (void)unlink(path);
    return rmdir(dir);
}

static void forget(void)
{
    buf_done(&seen.log);
    buf_done(&seen.body);
    memset(&seen, 0, sizeof(seen));
    buf_init(&seen.log, 1000);
    buf_init(&seen.body, 16u * 1024 * 1024);
}

static struct http_client *start(struct fixture *f, bool listening)
{
    struct http_client *c = NULL;

    forget();
    fixture_start(f, NULL, routes, NULL);
    if (listening)
        assert_int_equal(http_server_listen_unix(f->server, path, 0, &f->err), 0);
    assert_int_equal(http_client_new(f->loop, endpoint, &c, &f->err), 0);
    return c;
}

static void stop(struct fixture *f, struct http_client *c)
{
    http_client_free(c);
    fixture_stop(f);
    forget();
}

static struct http_call *call(struct fixture *f, struct http_client *c,
                              const struct http_call_opts *opts)
{
    struct http_call *ret = NULL;
    assert_int_equal(http_client_call(c, opts, &handlers, NULL, &ret, &f->err), 0);
    assert_int_equal(seen.dones, 0); /* never from inside the call */
    return ret;
}

/* A peer written by hand: accepts the client's connection and reads its request. */
static int by_hand_listen(void)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    (void)str_copy(sun.sun_path, sizeof(sun.sun_path), path);
    assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

static int by_hand_accept(struct fixture *f, int listener)
{
    pump(f);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    return fd;
}

static void a_call_is_answered(void **state)
{
    static const char *const headers[][2] = {{"X-A", "b"}, {NULL, NULL}};
    const struct http_call_opts opts = {.method = "POST",
                                        .target = "/echo",
                                        .headers = headers,
                                        .type = "text/x",
                                        .body = "hello",
                                        .body_len = 5};
    struct fixture f;
    struct http_client *c = start(&f, true);

    (void)call(&f, c, &opts);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "head:200:text/x done");
    assert_string_equal(buf_str(&seen.body), "hello");
    stop(&f, c);
}

static void a_connection_is_used_again(void **state)
{
    const struct http_call_opts opts = {.target = "/parts"};
    struct fixture f;
    struct http_client *c = start(&f, true);

    for (int i = 0; i < 5; i++) {
        forget();
        (void)call(&f, c, &opts);
        pump(&f);
        assert_string_equal(buf_str(&seen.log), "head:200:text/plain done");
        assert_string_equal(buf_str(&seen.body), "one two");
        assert_int_equal(http_server_count(f.server), 1);
    }
    pass(&f, 21 * NSEC_PER_SEC); /* not kept for ever */
    assert_int_equal(http_server_count(f.server), 0);
    stop(&f, c);
}

static void a_body_can_be_streamed(void **state)
{
    static char chunk[65536];
    const struct http_call_opts opts = {
        .method = "POST", .target = "/echo", .flags = HTTP_CALL_STREAM};
    struct fixture f;
    struct http_client *c = start(&f, true);
    struct http_call *k = call(&f, c, &opts);

    memset(chunk, 'z', sizeof(chunk));
    for (int i = 0; i < 64; i++)
        assert_int_equal(http_call_send(k, chunk, sizeof(chunk)), 0);
    assert_true(http_call_full(k));
    pump(&f);
    assert_non_null(strstr(buf_str(&seen.log), "writable"));
    assert_int_equal(http_call_send_end(k), 0);
    assert_int_equal(http_call_send(k, "x", 1), -EPIPE);
    pump(&f);
    assert_true(seen.ok);
    assert_int_equal(seen.body.len, 64 * sizeof(chunk));
    stop(&f, c);
}

static void failures_are_told_once(void **state)
{
    static const struct {
        const char *answer;
        const char *log;
    } rows[] = {
        {"", "failed"},
        {"HTTP/1.1 200 OK\r\nContent-Le", "failed"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "head:200 failed"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "head:200 failed"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz", "head:200 failed"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "failed"},
        {"HTTP/1.1 101 Oh\r\n\r\n", "failed"},
        {"garbage\r\n\r\n", "failed"},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
         "head:200 done"},
        {"HTTP/1.1 200 OK\r\n\r\nuntil the end", "head:200 done"},
        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "head:200 done"},
    };
    const struct http_call_opts opts = {.target = "/x"};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        forget();
        (void)call(&f, c, &opts);
        int fd = by_hand_accept(&f, listener);
        assert_non_null(strstr(hear(fd), "GET /x HTTP/1.1\r\nHost: localhost\r\n"));
        say(&f, fd, rows[i].answer);
        (void)close(fd);
        pump(&f);
        if (!str_eq(buf_str(&seen.log), rows[i].log))
            fail_msg("row %zu: %s", i, buf_str(&seen.log));
        assert_int_equal(seen.dones, 1);
    }
    (void)close(listener);
    stop(&f, c);
}

static void nobody_there_is_a_failure_too(void **state)
{
    const struct http_call_opts opts = {.target = "/x"};
    struct fixture f;
    struct http_client *c = start(&f, false);

    (void)call(&f, c, &opts);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "failed");
    assert_int_equal(seen.err.sys, ENOENT);
    stop(&f, c);
}

static void a_full_backlog_is_waited_for(void **state)
{
    const struct http_call_opts opts = {.target = "/x"};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();
    int waiting[16];
    size_t n = 0;

    /* A listen backlog of 0 holds one connection. */
    assert_int_equal(listen(listener, 0), 0);
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    (void)str_copy(sun.sun_path, sizeof(sun.sun_path), path);
    for (; n < ARRAY_SIZE(waiting); n++) {
        waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(waiting[n], (struct sockaddr *)&sun, sizeof(sun)) < 0) {
            (void)close(waiting[n]);
            break;
        }
    }
    assert_in_range(n, 1, ARRAY_SIZE(waiting) - 1);
    (void)call(&f, c, &opts);
    pass(&f, 50 * NSEC_PER_MSEC);
    assert_int_equal(seen.dones, 0);
    for (size_t i = 0; i < n; i++)
        (void)close(by_hand_accept(&f, listener));
    for (int i = 0; i < 3; i++)
        pass(&f, 10 * NSEC_PER_MSEC);
    int fd = by_hand_accept(&f, listener);
    say(&f, fd, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_string_equal(buf_str(&seen.log), "head:204 done");
    (void)close(fd);
    for (size_t i = 0; i < n; i++)
        (void)close(waiting[i]);
    (void)close(listener);
    stop(&f, c);
}

static void a_silent_peer_is_given_up(void **state)
{
    const struct http_call_opts opts = {.target = "/x", .idle_ns = 5 * NSEC_PER_SEC};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();

    (void)call(&f, c, &opts);
    int fd = by_hand_accept(&f, listener);
    pass(&f, 4 * NSEC_PER_SEC);
    say(&f, fd, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    pass(&f, 4 * NSEC_PER_SEC);
    assert_int_equal(seen.dones, 0);
    pass(&f, 2 * NSEC_PER_SEC);
    assert_string_equal(buf_str(&seen.log), "head:200 failed");
    (void)close(fd);
    (void)close(listener);
    stop(&f, c);
}

static void an_answer_can_be_cancelled(void **state)
{
    const struct http_call_opts opts = {.target = "/x"};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();

    seen.cancel = true;
    (void)call(&f, c, &opts);
    int fd = by_hand_accept(&f, listener);
    say(&f, fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab");
    assert_int_equal(seen.dones, 0);
    assert_true(is_closed(fd));
    (void)close(fd);
    forget();
    struct http_call *k = call(&f, c, &opts);
    http_call_cancel(k);
    pump(&f);
    assert_int_equal(seen.dones, 0);
    (void)close(listener);
    stop(&f, c);
}

static void a_connection_can_be_hijacked(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nfirst",
        "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\nfirst",
    };
    const struct http_call_opts opts = {.method = "POST",
                                        .target = "/exec/1/start",
                                        .type = "application/json",
                                        .body = "{}",
                                        .body_len = 2,
                                        .flags = HTTP_CALL_HIJACK};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();

    for (size_t i = 0; i < ARRAY_SIZE(answers); i++) {
        bool eof;
        forget();
        struct http_call *k = call(&f, c, &opts);
        int fd = by_hand_accept(&f, listener);
        const char *request = hear(fd);
        assert_non_null(strstr(request, "Upgrade: tcp\r\n"));
        assert_string_equal(body_of(request), "{}");
        assert_int_equal(http_call_send(k, "too early", 9), -EPIPE);
        say(&f, fd, answers[i]);
        assert_string_equal(buf_str(&seen.body), "first");
        assert_int_equal(http_call_send(k, "stdin", 5), 0);
        assert_int_equal(http_call_send_end(k), 0);
        pump(&f);
        assert_string_equal(hear_bytes(fd, NULL, &eof), "stdin");
        assert_true(eof); /* they read end of file, and can still answer */
        say(&f, fd, " last");
        assert_string_equal(buf_str(&seen.body), "first last");
        (void)close(fd);
        pump(&f);
        assert_true(seen.ok);
        assert_int_equal(seen.dones, 1);
    }
    (void)close(listener);
    stop(&f, c);
}

static void a_refusal_is_heard_before_the_body_is_out(void **state)
{
    static char chunk[65536];
    const struct http_call_opts opts = {
        .method = "POST", .target = "/x", .flags = HTTP_CALL_STREAM};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();
    struct http_call *k = call(&f, c, &opts);
    int fd = by_hand_accept(&f, listener);

    for (int i = 0; i < 32; i++)
        assert_int_equal(http_call_send(k, chunk, sizeof(chunk)), 0);
    static const char answer[] = "HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno";
    assert_int_equal(send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL), sizeof(answer) - 1);
    (void)shutdown(fd, SHUT_RD); /* our writes fail from here on */
    (void)http_call_send(k, chunk, sizeof(chunk));
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "head:413 done");
    (void)close(fd);
    (void)close(listener);
    stop(&f, c);
}

static void client_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                           void *arg)
{
    (void)buf_printf(&seen.log, "%c:%zu:%.*s ", opcode == WS_TEXT ? 'T' : 'B', len,
                     len < 10 ? (int)len : 3, data);
}

static void client_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    (void)buf_printf(&seen.log, "closed:%u:%s", code, reason);
    seen.client_ws = NULL;
}

static const struct ws_handlers client_handlers = {client_message, NULL, client_closed};

static void on_opened(struct ws_conn *c, const struct err *err, void *arg)
{
    seen.client_ws = c;
    (void)buf_puts(&seen.log, c != NULL ? "open " : "refused ");
}

static void a_websocket_works_from_end_to_end(void **state)
{
    static char big[3 * 1024 * 1024];
    const struct ws_opts opts = {.protocol = "mcp"};
    const struct http_ws_call ws = {
        .target = "/ws", .opts = &opts, .handlers = &client_handlers, .opened = on_opened};
    struct fixture f;
    struct http_client *c = start(&f, true);

    assert_int_equal(http_client_ws(c, &ws, &f.err), 0);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "open ");
    assert_int_equal(ws_send(seen.client_ws, WS_TEXT, "hello", 5), 0);
    memset(big, 'b', sizeof(big));
    assert_int_equal(ws_send(seen.client_ws, WS_BINARY, big, sizeof(big)), 0);
    assert_int_equal(ws_send(seen.client_ws, WS_TEXT, "", 0), 0);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "open T:5:hello B:3145728:bbb T:0: ");
    buf_reset(&seen.log);
    ws_close(seen.client_ws, 4001, "enough");
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "closed:4001:");
    assert_null(seen.server_ws);
    pass(&f, 3 * NSEC_PER_SEC);
    assert_int_equal(http_server_count(f.server), 0);
    stop(&f, c);
}

static void a_websocket_can_be_refused(void **state)
{
    struct http_ws_call ws = {
        .target = "/nowhere", .handlers = &client_handlers, .opened = on_opened};
    struct fixture f;
    struct http_client *c = start(&f, true);

    assert_int_equal(http_client_ws(c, &ws, &f.err), 0);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "refused ");
    ws.target = "no slash here\r\n";
    assert_int_equal(http_client_ws(c, &ws, &f.err), -EINVAL);
    stop(&f, c);
}

static void endpoints_are_checked(void **state)
{
    static const char *const bad[] = {"",
                                      "boxd.sock",
                                      "unix://relative",
                                      "http://",
                                      "http://:80",
                                      "http://127.0.0.1:80/path",
                                      "ftp://host",
                                      "http://127.0.0.1:notaport"};
    static const char *const good[] = {"http://127.0.0.1:5410", "http://[::1]:5410/",
                                       "tcp://127.0.0.1", "unix:///run/x.sock"};
    struct fixture f;
    struct http_client *c = start(&f, false);

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct http_client *none = NULL;
        if (http_client_new(f.loop, bad[i], &none, &f.err) >= 0)
            fail_msg("'%s' was taken", bad[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        AUTO(http_client) struct http_client *one = NULL;
        assert_int_equal(http_client_new(f.loop, good[i], &one, &f.err), 0);
    }
    stop(&f, c);
}

static void a_client_may_end_before_its_calls(void **state)
{
    const struct http_call_opts opts = {.target = "/x"};
    struct fixture f;
    struct http_client *c = start(&f, false);
    int listener = by_hand_listen();

    (void)call(&f, c, &opts);
    (void)call(&f, c, &opts);
    pump(&f);
    stop(&f, c);
    (void)close(listener);
}

/* A TCP port of our own, bound but not yet listening. */
static int own_port(struct sockaddr_in *ret)
{
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)ret, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &len), 0);
    return fd;
}

/* As if the name of the host had another address, before those that it has. */
static void put_first(struct http_client *c, const struct sockaddr_in *address)
{
    struct places old = c->places;

    c->places = (struct places){0};
    assert_true(places_add(&c->places, (const struct sockaddr *)address, sizeof(*address)));
    for (size_t i = 0; i < old.n; i++)
        assert_true(
            places_add(&c->places, (const struct sockaddr *)&old.list[i].address, old.list[i].len));
}

/* What the network does it may do a moment later. */
static void wait_done(struct fixture *f)
{
    while (seen.dones == 0)
        assert_true(loop_turn(f->loop, 20000) > 0);
}

static void every_address_of_a_host_is_tried(void **state)
{
    const struct http_call_opts opts = {.target = "/parts"};
    struct sockaddr_in address;
    struct fixture f;
    struct http_client *c = start(&f, true);
    int refuses = own_port(&address);

    put_first(c, &address);
    (void)call(&f, c, &opts);
    wait_done(&f);
    assert_string_equal(buf_str(&seen.log), "head:200:text/plain done");
    assert_int_equal(c->places.at, 1); /* where the next one begins */
    /* From there it goes round, and ends when all were tried. */
    pass(&f, 21 * NSEC_PER_SEC);
    http_server_free(TAKE_PTR(f.server));
    (void)unlink(path);
    forget();
    (void)call(&f, c, &opts);
    wait_done(&f);
    assert_string_equal(buf_str(&seen.log), "failed");
    assert_int_equal(seen.err.sys, ECONNREFUSED); /* of the last */
    (void)close(refuses);
    stop(&f, c);
}

static void an_address_that_does_not_answer_has_its_share_of_the_time(void **state)
{
    const struct http_call_opts opts = {.target = "/parts"};
    struct sockaddr_in address;
    struct fixture f;
    struct http_client *c = start(&f, true);
    int silent = own_port(&address), waiting = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd queue = {.fd = silent, .events = POLLIN};

    /* There is room for one in its queue; whoever knocks after that hears nothing. */
    assert_int_equal(listen(silent, 0), 0);
    assert_int_equal(connect(waiting, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(poll(&queue, 1, 20000), 1);
    put_first(c, &address);
    (void)call(&f, c, &opts);
    pump(&f);
    pass(&f, 4 * NSEC_PER_SEC);
    assert_string_equal(buf_str(&seen.log), "");
    pass(&f, 2 * NSEC_PER_SEC);
    assert_string_equal(buf_str(&seen.log), "head:200:text/plain done");
    (void)close(waiting);
    (void)close(silent);
    stop(&f, c);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_is_answered),
        TEST(a_connection_is_used_again),
        TEST(a_body_can_be_streamed),
        TEST(failures_are_told_once),
        TEST(nobody_there_is_a_failure_too),
        TEST(a_full_backlog_is_waited_for),
        TEST(every_address_of_a_host_is_tried),
        TEST(an_address_that_does_not_answer_has_its_share_of_the_time),
        TEST(a_silent_peer_is_given_up),
        TEST(an_answer_can_be_cancelled),
        TEST(a_connection_can_be_hijacked),
        TEST(a_refusal_is_heard_before_the_body_is_out),
        TEST(a_websocket_works_from_end_to_end),
        TEST(a_websocket_can_be_refused),
        TEST(endpoints_are_checked),
        TEST(a_client_may_end_before_its_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
