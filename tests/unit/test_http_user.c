/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include <stdlib.h>
#include <string.h>

#define HOST "Host: localhost\r\n"

static int users_left, calls;

static void get_hello(struct http_request *req, void *arg)
{
    (void)arg;
    calls++;
    http_reply(req, 200, "text/plain", "hello", 5);
}

static void get_user(struct http_request *req, void *arg)
{
    const char *user = http_request_user(req);
    (void)arg;
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
    (void)arg;
    http_request_set_user(req, "alice", on_user_done);
    return 0;
}

/* A handler that never asks who calls does not get to serve somebody with less rights. */
static void a_user_is_kept_to_the_routes_that_ask(void **state)
{
    const struct http_server_opts opts = {.authorize = authorize_alice};
    struct fixture f;
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_user_is_kept_to_the_routes_that_ask)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
