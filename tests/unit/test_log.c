/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

/* Standard error while a record is written. Datagrams, so that two writes are seen as two. */
static int record_socket = -1;
static int saved_stderr = -1;

static void configure(const char *format, const char *level)
{
    if (format)
        (void)setenv("BOX_LOG_FORMAT", format, 1);
    else
        (void)unsetenv("BOX_LOG_FORMAT");
    if (level)
        (void)setenv("BOX_LOG_LEVEL", level, 1);
    else
        (void)unsetenv("BOX_LOG_LEVEL");
}

static int capture(void **state)
{
    int s[2];

    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, s) < 0)
        return -1;
    saved_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    (void)dup2(s[1], STDERR_FILENO);
    (void)close(s[1]);
    record_socket = s[0];
    return 0;
}

static int release(void **state)
{
    (void)dup2(saved_stderr, STDERR_FILENO);
    (void)close(saved_stderr);
    (void)close(record_socket);
    return 0;
}

/* The next record without its newline; "" when there is none. */
static const char *record(void)
{
    static char text[65536];
    ssize_t n = recv(record_socket, text, sizeof(text) - 1, MSG_DONTWAIT);

    if (n <= 0)
        return "";
    assert_int_equal(text[n - 1], '\n');
    text[n - 1] = '\0';
    assert_null(strchr(text, '\n'));
    return text;
}

static void a_record_is_one_json_object(void **state)
{
    struct json *root = NULL;

    configure(NULL, NULL);
    log_init("boxd");
    log_warn("s1", "a %s\n\"b\"", "\x1b[31m");
    const char *text = record();
    assert_null(strchr(text, '\x1b'));
    assert_int_equal(json_parse(text, strlen(text), &root, NULL), 0);
    assert_int_equal(strlen(json_str(json_get(root, "time"))), 32);
    assert_string_equal(json_str(json_get(root, "level")), "warn");
    assert_string_equal(json_str(json_get(root, "program")), "boxd");
    assert_string_equal(json_str(json_get(root, "session")), "s1");
    assert_string_equal(json_str(json_get(root, "msg")), "a \x1b[31m\n\"b\"");
    json_free(root);
    assert_string_equal(record(), "");

    log_info(NULL, "x");
    text = record();
    assert_int_equal(json_parse(text, strlen(text), &root, NULL), 0);
    assert_null(json_get(root, "session"));
    json_free(root);
}

static void text_cannot_be_forged(void **state)
{
    configure("text", NULL);
    log_init("boxd");
    log_error(
        "s\n1",
        "a\r\n12:00:00 info fake\x1b]0;t\x07 \x7f \xc2\x9b \xff \xe2\x80\xae \xe2\x82\xac\t.");
    const char *text = record();
    assert_true(str_ends(text, "s\\n1: a\\u000d\\n12:00:00 info fake\\u001b]0;t\\u0007 \\u007f "
                               "\\u009b \xef\xbf\xbd \\u202e \xe2\x82\xac\\u0009."));
    assert_non_null(strstr(text, " error "));
    assert_null(strchr(text, '\x1b')); /* no terminal, no colour */
}

static void levels_are_obeyed(void **state)
{
    configure("text", NULL);
    log_init("boxd");
    log_debug(NULL, "x");
    assert_string_equal(record(), "");
    log_info(NULL, "x");
    assert_string_not_equal(record(), "");

    configure("text", "error");
    log_init("boxd");
    log_warn(NULL, "x");
    assert_string_equal(record(), "");
    log_error(NULL, "x");
    assert_string_not_equal(record(), "");

    configure("text", "debug");
    log_init("boxd");
    log_debug(NULL, "x");
    assert_string_not_equal(record(), "");

    configure("nonsense", "nonsense");
    log_init("boxd");
    log_debug(NULL, "x");
    assert_string_equal(record(), "");
    log_info(NULL, "x");
    assert_true(str_starts(record(), "{"));
}

static void a_long_message_is_cut_between_characters(void **state)
{
    char text[9001];
    struct json *root = NULL;

    for (size_t i = 0; i + 3 < sizeof(text); i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    configure("json", NULL);
    log_init("boxd");
    log_info(NULL, "%s", text);
    const char *line = record();
    assert_int_equal(json_parse(line, strlen(line), &root, NULL), 0);
    size_t len = json_str_len(json_get(root, "msg"));
    assert_true(len > 4000 && len % 3 == 0);
    assert_null(strstr(line, "\xef\xbf\xbd"));
    json_free(root);

    /* All of it grows sixfold, and still gets out. */
    memset(text, 1, sizeof(text) - 1);
    log_info(NULL, "%s", text);
    line = record();
    assert_int_equal(json_parse(line, strlen(line), &root, NULL), 0);
    json_free(root);
}

static void a_record_names_its_request(void **state)
{
    static const struct log_field fields[] = {{.key = "path", .text = "/a\x1b\n"},
                                              {.key = "status", .number = -7}};
    struct json *root = NULL;

    configure("json", NULL);
    log_init("boxd");
    {
        LOG_REQUEST("outer");
        char id[] = "inner";
        struct log_scope outer = log_scope_enter(id);
        memset(id, 'x', sizeof(id) - 1); /* it was copied */
        log_event(LOG_LEVEL_INFO, "s1", fields, ARRAY_SIZE(fields), "http");
        log_scope_leave(&outer);
        log_info(NULL, "x");
    }
    const char *text = record();
    assert_null(strchr(text, '\x1b'));
    assert_int_equal(json_parse(text, strlen(text), &root, NULL), 0);
    assert_string_equal(json_str(json_get(root, "request")), "inner");
    assert_string_equal(json_str(json_get(root, "session")), "s1");
    assert_string_equal(json_str(json_get(root, "path")), "/a\x1b\n");
    assert_int_equal(json_int(json_get(root, "status")), -7);
    json_free(root);
    assert_non_null(strstr(record(), "\"request\":\"outer\""));
    log_info(NULL, "x");
    assert_null(strstr(record(), "request"));

    configure("human", NULL);
    log_init("boxd");
    LOG_REQUEST("r1");
    log_event(LOG_LEVEL_INFO, "s1", fields, ARRAY_SIZE(fields), "http");
    assert_true(str_ends(record(), " info  [r1] s1: http path=/a\\u001b\\n status=-7"));
    log_event(LOG_LEVEL_DEBUG, NULL, fields, ARRAY_SIZE(fields), "http");
    log_event(LOG_LEVEL_OFF, NULL, fields, ARRAY_SIZE(fields), "http");
    assert_string_equal(record(), "");
}

static void settings_are_taken_by_name(void **state)
{
    configure("json", NULL);
    log_init("boxd");
    assert_int_equal(log_set_level("loud"), -EINVAL);
    assert_int_equal(log_set_format("xml"), -EINVAL);
    assert_int_equal(log_set_access("sometimes"), -EINVAL);
    assert_int_equal(log_access_level(), LOG_LEVEL_DEBUG);
    assert_int_equal(log_set_access("off"), 0);
    assert_int_equal(log_access_level(), LOG_LEVEL_OFF);
    assert_int_equal(log_set_access("warn"), 0);
    assert_int_equal(log_access_level(), LOG_LEVEL_WARN);
    assert_int_equal(log_set_format("human"), 0);
    assert_int_equal(log_set_level("error"), 0);
    log_warn(NULL, "x");
    assert_string_equal(record(), "");
    log_error(NULL, "x");
    assert_true(str_ends(record(), " error x"));
    assert_int_equal(log_set_format("auto"), 0); /* no terminal */
    log_error(NULL, "x");
    assert_true(str_starts(record(), "{"));
}

static void ids_of_requests_are_told_apart(void **state)
{
    char a[LOG_REQUEST_SIZE], b[LOG_REQUEST_SIZE];

    log_request_make(a);
    log_request_make(b);
    assert_string_not_equal(a, b);
    assert_true(log_request_valid(a) && log_request_valid(b));
    assert_true(log_request_valid("A-z_0.9"));
    assert_false(log_request_valid(""));
    assert_false(log_request_valid("a b"));
    assert_false(log_request_valid("a\n"));
    assert_true(
        log_request_valid("0123456789012345678901234567890123456789012345678901234567890123"));
    assert_false(
        log_request_valid("01234567890123456789012345678901234567890123456789012345678901234"));
}

static void logging_keeps_errno(void **state)
{
    configure("json", NULL);
    log_init("boxd");
    (void)close(STDERR_FILENO);
    errno = ENOTTY;
    log_info(NULL, "%m");
    assert_int_equal(errno, ENOTTY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_is_one_json_object, capture, release),
        cmocka_unit_test_setup_teardown(text_cannot_be_forged, capture, release),
        cmocka_unit_test_setup_teardown(levels_are_obeyed, capture, release),
        cmocka_unit_test_setup_teardown(a_long_message_is_cut_between_characters, capture, release),
        cmocka_unit_test_setup_teardown(a_record_names_its_request, capture, release),
        cmocka_unit_test_setup_teardown(settings_are_taken_by_name, capture, release),
        cmocka_unit_test(ids_of_requests_are_told_apart),
        cmocka_unit_test_setup_teardown(logging_keeps_errno, capture, release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
