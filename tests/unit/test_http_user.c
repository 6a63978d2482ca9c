/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include <stdlib.h>
#include <string.h>

#define HOST "Host: localhost\r\n"

static int users_left, calls;

static void get_hello(struct http_request *req, void *arg)
{
    calls++;
    http_reply(req, 200, "text/plain", "hello", 5);
}

static void get_user(struct http_request *req, void *arg)
{
    const char *user = http_request_user(req);
    http_reply(req, 200, "text/plain", user, strlen(user));
}

static const struct http_route routes[] = {
    {"GET", "/hello", get_hello, 0, 0},
    {"GET", "/open", get_hello, HTTP_ROUTE_OPEN, 0},
    {"GET", "/user", get_user, HTTP_ROUTE_SCOPED, 0},
    {0},
};

static void on_user_done(const void *user)
{
    assert_string_equal(user, "alice");
    users_left++;
}

static int authorize_alice(void *arg, struct http_request *req)
{
    http_request_set_user(req, "alice", on_user_done);
    return 0;
}

/* A handler that never asks who calls does not get to serve somebody with less rights. */
static void a_user_is_kept_to_the_routes_that_ask(void **state)
{
    const struct http_server_opts opts = {.authorize = authorize_alice};
    struct fixture f;
    fixture_start(&f, &opts, routes, NULL);
    users_left = calls = 0;
    int fd = peer_new(&f);

    say(&f, fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 403);
    assert_int_equal(calls, 0);
    assert_int_equal(users_left, 1);
    say(&f, fd, "GET /user HTTP/1.1\r\n" HOST "\r\n");
    const char *text = hear(fd);
    assert_int_equal(status_of(text), 200);
    assert_non_null(strstr(text, "alice"));
    assert_int_equal(users_left, 2);
    say(&f, fd, "GET /open HTTP/1.1\r\n" HOST "\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    (void)close(fd);
    fixture_stop(&f);
    assert_int_equal(users_left, 2);
}

/* Streams of users who come and go. */

static int cancels;
static unsigned closed_code;

static void on_cancel(struct http_request *req, void *arg)
{
    cancels++;
    if (http_request_cancelled(req))
        http_abort(req);
    else
        http_reply_end(req);
}

static void on_revoked(struct http_request *req, const char *reason, void *arg)
{
    (void)http_reply_chunk(req, reason, strlen(reason));
}

/* With an argument: one that has no last words. */
static void get_stream(struct http_request *req, void *arg)
{
    bool mute = http_request_head(req)->query.p != NULL;
    http_on_cancel(req, on_cancel, NULL);
    if (!mute)
        http_on_revoked(req, on_revoked, NULL);
    http_reply_start(req, 200, "text/plain");
    (void)http_reply_chunk(req, "begun", 5);
}

static struct http_request *waiting;

static void get_later(struct http_request *req, void *arg)
{
    waiting = req;
}

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    fail();
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    closed_code = code;
}

static void get_ws(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {.message = on_message, .closed = on_closed};
    struct ws_conn *c;
    struct err err;
    assert_int_equal(http_upgrade_ws(req, NULL, &handlers, NULL, &c, &err), 0);
}

static const struct http_route streams[] = {
    {"GET", "/stream", get_stream, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/later", get_later, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/ws", get_ws, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/plain", get_ws, 0, 0},
    {0},
};

#define UPGRADE                                                                                    \
    HOST "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"              \
         "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"

static int authorize_by_pass(void *arg, struct http_request *req)
{
    http_request_set_pass(req, 7);
    return 0;
}

static bool nobody(void *arg, const void *user, uint64_t pass)
{
    return user == NULL && pass == 0;
}

static bool everybody(void *arg, const void *user, uint64_t pass)
{
    assert_true(*(bool *)arg ? user != NULL : user == NULL && pass == 7);
    return true;
}

/* Streams end with whoever asked for them; whoever waits for an answer gets it. */
static void check_revoked(struct fixture *f, bool by_user)
{
    static const char *const targets[] = {"/stream", "/stream?mute", "/later"};
    int fds[3];
    users_left = cancels = 0;
    closed_code = 0;
    for (size_t i = 0; i < 3; i++) {
        AUTO_FREE char *text = xasprintf("GET %s HTTP/1.1\r\n" HOST "\r\n", targets[i]);
        fds[i] = peer_new(f);
        say(f, fds[i], text);
    }
    int ws = peer_new(f);
    say(f, ws, "GET /ws HTTP/1.1\r\n" UPGRADE);
    (void)hear(ws);
    for (size_t i = 0; i < 3; i++)
        (void)hear(fds[i]);
    assert_int_equal(users_left, 0); /* a WebSocket keeps it */
    assert_int_equal(http_server_revoke(f->server, everybody, &by_user, "bye"), 0);
    pump(f);
    assert_int_equal(http_server_revoke(f->server, nobody, NULL, "bye"), 3);
    pump(f);
    assert_string_equal(hear(fds[0]), "3\r\nbye\r\n0\r\n\r\n");
    assert_true(is_closed(fds[1]));
    assert_int_equal(cancels, 2);
    assert_int_equal(closed_code, WS_CODE_POLICY); /* without a word from the peer */
    assert_memory_equal(hear(ws),
                        "\x88\x05\x03\xf0"
                        "bye",
                        7);
    (void)close(ws);
    pass(f, 10 * NSEC_PER_SEC);
    assert_int_equal(http_server_revoke(f->server, nobody, NULL, "bye"), 0);
    http_reply(waiting, 200, NULL, "late", 4);
    pump(f);
    assert_non_null(strstr(hear(fds[2]), "late"));
    for (size_t i = 0; i < 3; i++)
        (void)close(fds[i]);
    pump(f);
    assert_int_equal(users_left, by_user ? 4 : 0);
}

static void streams_end_with_their_users(void **state)
{
    const struct http_server_opts opts = {.authorize = authorize_alice};
    struct fixture f;
    fixture_start(&f, &opts, streams, NULL);
    check_revoked(&f, true);
    fixture_stop(&f);
}

static void streams_end_with_what_let_them_in(void **state)
{
    const struct http_server_opts opts = {.authorize = authorize_by_pass};
    struct fixture f;
    fixture_start(&f, &opts, streams, NULL);
    check_revoked(&f, false);
    /* A route that never asks looks after that itself. */
    int ws = peer_new(&f);
    say(&f, ws, "GET /plain HTTP/1.1\r\n" UPGRADE);
    assert_int_equal(status_of(hear(ws)), 101);
    assert_int_equal(http_server_revoke(f.server, nobody, NULL, "bye"), 0);
    http_server_drain(f.server, WS_CODE_GOING_AWAY, "bye");
    (void)close(ws);
    closed_code = 0;
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_user_is_kept_to_the_routes_that_ask),
                                       cmocka_unit_test(streams_end_with_their_users),
                                       cmocka_unit_test(streams_end_with_what_let_them_in)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
