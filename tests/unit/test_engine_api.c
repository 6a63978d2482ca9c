/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/engine/api.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "loop/loop.h"

/* The client against an engine that says whatever a test wants it to: check K08. */

#define PING "HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 2\r\n\r\nOK"

static struct {
    uint64_t now;
    struct clock clock;
    struct loop *loop;
    struct engine_api *api;
    int listen_fd;
    char dir[64], path[96];
    /* The last answer. */
    unsigned answers;
    bool ok;
    struct err err;
    char text[256];
    unsigned lines;
    struct engine_call *cancel_at_line;
} t;

static uint64_t now(void *arg)
{
    return t.now;
}

static int setup(void **state)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    struct err err = {0};
    char endpoint[128];
    memset(&t, 0, sizeof(t));
    t.now = 1000 * NSEC_PER_SEC;
    t.clock = (struct clock){now, now, now, NULL};
    assert_int_equal(loop_new(&t.clock, &t.loop, &err), 0);
    (void)snprintf(t.dir, sizeof(t.dir), "/tmp/box-engine-XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    (void)snprintf(t.path, sizeof(t.path), "%s/s", t.dir);
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", t.path);
    t.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(t.listen_fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
    assert_int_equal(listen(t.listen_fd, 8), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "unix://%s", t.path);
    assert_int_equal(engine_api_new(t.loop, "docker", endpoint, NULL, &t.api, &err), 0);
    return 0;
}

static int teardown(void **state)
{
    engine_api_free(t.api);
    loop_free(t.loop);
    (void)close(t.listen_fd);
    (void)unlink(t.path);
    (void)rmdir(t.dir);
    return 0;
}

static void pump(void)
{
    for (int i = 0; i < 10000; i++)
        if (loop_turn(t.loop, 0) == 0)
            return;
    fail_msg("the loop does not come to rest");
}

static void on_answer(void *arg, const struct json *body, const struct err *err)
{
    t.answers++;
    t.ok = err == NULL;
    t.err = err != NULL ? *err : (struct err){0};
    (void)snprintf(t.text, sizeof(t.text), "%s", "");
    if (json_str(json_get(body, "Id")) != NULL)
        (void)snprintf(t.text, sizeof(t.text), "%s", json_str(json_get(body, "Id")));
}

static int on_line(void *arg, const struct json *object, struct err *err)
{
    t.lines++;
    if (t.cancel_at_line != NULL) {
        engine_call_cancel(t.cancel_at_line);
        return 0;
    }
    if (json_get(object, "error") != NULL)
        return err_set(err, ERR_BACKEND, "told: %s", json_str(json_get(object, "error")));
    return 0;
}

static int accept_one(void)
{
    pump();
    int fd = accept4(t.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    return fd;
}

/* What the client asked, in static memory. */
static const char *asked(int fd)
{
    static char text[65536];
    pump();
    ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void say(int fd, const char *text)
{
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
    pump();
}

static void say_chunk(int fd, const char *text)
{
    char chunk[500];
    (void)snprintf(chunk, sizeof(chunk), "%zx\r\n%s\r\n", strlen(text), text);
    say(fd, chunk);
}

static struct engine_call *ask(const char *target)
{
    return engine_call_start(t.api, &(struct engine_request){.target = target}, on_answer, NULL);
}

/* Connected, and agreed on a version. */
static int agreed(void)
{
    int fd = accept_one();
    assert_non_null(strstr(asked(fd), "GET /_ping HTTP/1.1"));
    say(fd, PING);
    return fd;
}

static void the_version_is_agreed_on_once(void **state)
{
    (void)ask("/info");
    int fd = agreed();
    assert_non_null(strstr(asked(fd), "GET /v1.41/info HTTP/1.1"));
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"Id\": \"one\"");
    assert_int_equal(t.answers, 1); /* that was no JSON */
    assert_false(t.ok);
    (void)ask("/info");
    assert_non_null(strstr(asked(fd), "GET /v1.41/info HTTP/1.1"));
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"Id\": \"one\"}");
    assert_true(t.ok);
    assert_string_equal(t.text, "one");
    assert_string_equal(t.api->version, "1.41");
    (void)close(fd);
}

static void newer_engines_are_spoken_to_in_our_version_and_older_ones_not_at_all(void **state)
{
    (void)ask("/info");
    int fd = accept_one();
    say(fd, "HTTP/1.1 200 OK\r\nApi-Version: 1.99\r\nContent-Length: 0\r\n\r\n");
    assert_non_null(strstr(asked(fd), "GET /v1.47/info"));
    say(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 22\r\n\r\n{\"message\": \"too new\"}\n");
    assert_int_equal(t.err.code, ERR_INVALID);
    assert_string_equal(t.err.msg, "docker backend error: too new");
    (void)close(fd);
    assert_int_equal(teardown(state), 0);
    assert_int_equal(setup(state), 0);
    (void)ask("/info");
    fd = accept_one();
    say(fd, "HTTP/1.1 200 OK\r\nApi-Version: 1.24\r\nContent-Length: 0\r\n\r\n");
    assert_int_equal(t.answers, 1);
    assert_int_equal(t.err.code, ERR_BACKEND);
    assert_non_null(strstr(t.err.msg, "1.24"));
    (void)close(fd);
}

static void statuses_become_kinds_of_errors(void **state)
{
    static const struct {
        const char *status;
        enum err_code code;
    } cases[] = {{"400 x", ERR_INVALID},  {"403 x", ERR_DENIED},  {"404 x", ERR_NOT_FOUND},
                 {"409 x", ERR_CONFLICT}, {"500 x", ERR_BACKEND}, {"503 x", ERR_BACKEND},
                 {"301 x", ERR_BACKEND},  {"418 x", ERR_BACKEND}};
    (void)ask("/first");
    int fd = agreed();
    say(fd, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_true(t.ok);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        static const char body[] = "{\"message\":\"a  b\\n\\tc \\u0007\"}";
        char text[200];
        (void)ask("/x");
        (void)asked(fd);
        (void)snprintf(
            text, sizeof(text),
            "HTTP/1.1 %s\r\nLocation: http://elsewhere/\r\nContent-Length: %zu\r\n\r\n%s",
            cases[i].status, strlen(body), body);
        say(fd, text);
        assert_int_equal(t.answers, 2 + i);
        assert_int_equal(t.err.code, cases[i].code);
        assert_string_equal(t.err.msg, "docker backend error: a b c");
        assert_int_equal(t.err.sys, 0);
    }
    (void)close(fd);
}

static void an_error_that_is_no_json_is_told_and_cut(void **state)
{
    struct buf answer;
    (void)ask("/x");
    int fd = agreed();
    (void)asked(fd);
    buf_init(&answer, 10000);
    (void)buf_puts(&answer, "HTTP/1.1 500 x\r\nContent-Length: 4000\r\n\r\n");
    for (int i = 0; i < 1000; i++)
        (void)buf_puts(&answer, "x y ");
    say(fd, buf_str(&answer));
    buf_done(&answer);
    assert_int_equal(t.answers, 1);
    assert_true(strlen(t.err.msg) < 340);
    assert_true(str_ends(t.err.msg, "..."));
    (void)close(fd);
}

static void an_engine_that_is_not_there(void **state)
{
    (void)close(t.listen_fd);
    t.listen_fd = -1;
    (void)unlink(t.path);
    (void)ask("/x");
    assert_int_equal(t.answers, 0);
    pump();
    assert_int_equal(t.answers, 1);
    assert_int_equal(t.err.code, ERR_UNAVAILABLE);
    assert_true(t.err.sys != 0);
    assert_non_null(strstr(t.err.msg, "docker cannot be reached at unix://"));
}

static void an_engine_that_hangs_up(void **state)
{
    static const char *const before[] = {
        "", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"};
    for (size_t i = 0; i < ARRAY_SIZE(before); i++) {
        (void)ask("/x");
        int fd = agreed();
        (void)asked(fd);
        say(fd, before[i]);
        (void)close(fd);
        pump();
        assert_int_equal(t.answers, i + 1);
        assert_int_equal(t.err.code, ERR_UNAVAILABLE);
        assert_true(t.err.sys != 0); /* so the next call compares versions again */
    }
}

static void nonsense_is_refused(void **state)
{
    static const char *const nonsense[] = {
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{\"Id\": 1, \"Id\":2}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(nonsense); i++) {
        (void)ask("/x");
        int fd;
        if (i == 0 || t.err.sys != 0) {
            fd = agreed();
        } else {
            fd = accept_one();
        }
        (void)asked(fd);
        say(fd, nonsense[i]);
        assert_int_equal(t.answers, i + 1);
        /* What speaks no HTTP is no engine. */
        assert_int_equal(t.err.code, i < ARRAY_SIZE(nonsense) - 1 ? ERR_UNAVAILABLE : ERR_BACKEND);
        (void)close(fd);
        pump();
    }
}

static void a_large_answer_is_cut_off(void **state)
{
    static char chunk[65536];
    (void)ask("/x");
    int fd = agreed();
    (void)asked(fd);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n[");
    memset(chunk, ' ', sizeof(chunk));
    for (int i = 0; i < 400 && t.answers == 0; i++) {
        (void)send(fd, chunk, sizeof(chunk), MSG_NOSIGNAL | MSG_DONTWAIT);
        pump();
    }
    assert_int_equal(t.answers, 1);
    assert_string_equal(t.err.msg, "docker backend error: the answer is too large");
    (void)close(fd);
}

static void depth_is_bounded(void **state)
{
    struct buf answer;
    (void)ask("/x");
    int fd = agreed();
    (void)asked(fd);
    buf_init(&answer, 100000);
    (void)buf_puts(&answer, "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n");
    for (int i = 0; i < 20000; i++)
        (void)buf_putc(&answer, i < 10000 ? '[' : ']');
    say(fd, buf_str(&answer));
    buf_done(&answer);
    assert_int_equal(t.answers, 1);
    assert_string_equal(t.err.msg, "docker backend error: the answer is not valid JSON");
    (void)close(fd);
}

static void a_slow_answer_ends_at_the_deadline(void **state)
{
    (void)engine_call_start(
        t.api, &(struct engine_request){.target = "/x", .timeout_ns = 5 * NSEC_PER_SEC}, on_answer,
        NULL);
    int fd = agreed();
    (void)asked(fd);
    say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[");
    for (int i = 0; i < 10 && t.answers == 0; i++) {
        t.now += NSEC_PER_SEC;
        say(fd, " "); /* a byte now and then buys no time */
    }
    assert_int_equal(t.answers, 1);
    assert_int_equal(t.err.sys, ETIMEDOUT);
    assert_true(t.now <= 1006 * NSEC_PER_SEC);
    (void)close(fd);
}

static void lines_come_one_by_one(void **state)
{
    (void)engine_call_start(t.api, &(struct engine_request){.target = "/x", .line = on_line},
                            on_answer, NULL);
    int fd = agreed();
    (void)asked(fd);
    say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    say_chunk(fd, "{\"a\":");
    assert_int_equal(t.lines, 0);
    say_chunk(fd, "1}\r\n{\"b\":2}\r\n\r\n");
    assert_int_equal(t.lines, 2);
    say(fd, "0\r\n\r\n");
    assert_int_equal(t.answers, 1);
    assert_true(t.ok);
    (void)close(fd);
}

static void a_line_can_end_the_call(void **state)
{
    (void)engine_call_start(t.api, &(struct engine_request){.target = "/x", .line = on_line},
                            on_answer, NULL);
    int fd = agreed();
    (void)asked(fd);
    say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: "
            "chunked\r\n\r\n12\r\n{\"error\":\"denied\"}\r\n1\r\n\n\r\n");
    assert_int_equal(t.answers, 1);
    assert_string_equal(t.err.msg, "told: denied");
    (void)close(fd);
}

static void a_call_can_be_cancelled_from_its_own_line(void **state)
{
    t.cancel_at_line = engine_call_start(
        t.api, &(struct engine_request){.target = "/x", .line = on_line}, on_answer, NULL);
    int fd = agreed();
    (void)asked(fd);
    say(fd,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"a\":1}\n{\"b\":2}\n\r\n");
    assert_int_equal(t.lines, 1);
    assert_int_equal(t.answers, 0);
    (void)close(fd);
}

static void a_call_can_be_cancelled_at_any_time(void **state)
{
    engine_call_cancel(ask("/x"));
    struct engine_call *call = ask("/x");
    int fd = accept_one();
    (void)close(fd); /* of the first */
    fd = agreed();
    engine_call_cancel(call);
    pump();
    assert_int_equal(t.answers, 0);
    (void)ask("/y"); /* left to engine_api_free() */
    (void)close(fd);
}

static void text_is_quoted_for_queries(void **state)
{
    AUTO_FREE char *quoted = engine_quote("a/b:c?{\"x\"}&=%\xc3\xbc-_.~");
    assert_string_equal(quoted, "a%2Fb%3Ac%3F%7B%22x%22%7D%26%3D%25%C3%BC-_.~");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_version_is_agreed_on_once),
        TEST(newer_engines_are_spoken_to_in_our_version_and_older_ones_not_at_all),
        TEST(statuses_become_kinds_of_errors),
        TEST(an_error_that_is_no_json_is_told_and_cut),
        TEST(an_engine_that_is_not_there),
        TEST(an_engine_that_hangs_up),
        TEST(nonsense_is_refused),
        TEST(a_large_answer_is_cut_off),
        TEST(depth_is_bounded),
        TEST(a_slow_answer_ends_at_the_deadline),
        TEST(lines_come_one_by_one),
        TEST(a_line_can_end_the_call),
        TEST(a_call_can_be_cancelled_from_its_own_line),
        TEST(a_call_can_be_cancelled_at_any_time),
        cmocka_unit_test(text_is_quoted_for_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
