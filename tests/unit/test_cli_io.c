/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/app.h"
#include "cli/io/pipe.h"
#include "cli/io/text.h"
#include "loop/loop.h"

/* Text. */

static void escapes_to(const char *in, size_t len, const char *expected)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 1024);
    assert_true(text_escape(&out, in, len) >= 0);
    assert_string_equal(buf_str(&out), expected);
}

static void controls_are_shown_not_obeyed(void **state)
{
    escapes_to("plain \xc3\xa4 \xe2\x82\xac", 12, "plain \xc3\xa4 \xe2\x82\xac");
    escapes_to("\033]0;x\a", 6, "\\x1b]0;x\\x07");
    escapes_to("a\xe2\x80\xae"
               "b",
               5, "a\\xe2\\x80\\xaeb"); /* right to left from here on */
    escapes_to("a\nb\tc\r\x7f", 7, "a\\x0ab\\x09c\\x0d\\x7f");
    escapes_to("\xc2\x9b"
               "31m",
               5, "\\xc2\\x9b31m");
    escapes_to("\xff\xc3", 2, "\\xff\\xc3");
    escapes_to("a\0b", 3, "a\\x00b");
}

static void tables_are_aligned_and_escaped(void **state)
{
    static const char *const titles[] = {"NAME", "VALUE"};
    struct text_table *t = text_table_new(titles, 2);
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};

    buf_init(&out, 4096);
    text_table_cell(t, "\xc3\xa4\033[m");
    text_table_cell(t, NULL);
    text_table_note(t, "do that");
    text_table_cell(t, "a");
    text_table_cell(t, "b");
    AUTO_CLOSE int kept = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    AUTO_CLOSE int file = memfd_create("stdout", MFD_CLOEXEC);
    (void)fflush(stdout);
    assert_true(dup2(file, STDOUT_FILENO) >= 0);
    int r = text_table_print(t, &err);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0);
    assert_int_equal(r, 0);
    assert_int_equal(lseek(file, 0, SEEK_SET), 0);
    assert_int_equal(fd_read_to_buf(file, &out), 0);
    assert_string_equal(buf_str(&out), "NAME     VALUE\n"
                                       "\xc3\xa4\\x1b[m  -\n"
                                       "    do that\n"
                                       "a        b\n");
    text_table_free(t);
}

/* Lists. */

static void items_come_one_by_one(void **state)
{
    static const char text[] =
        " { \"sessions\" : [ {\"a\":\"}]{\\\"\"} ,{\"b\":{\"c\":[1,{}]}}\n] }";
    struct items it;
    struct err err = {0};
    AUTO(json) struct json *first = NULL;
    AUTO(json) struct json *second = NULL;
    struct json *none = NULL;

    assert_int_equal(items_init(&it, text, strlen(text), "sessions", &err), 0);
    assert_int_equal(items_next(&it, &first, &err), 1);
    assert_string_equal(json_str(json_get(first, "a")), "}]{\"");
    assert_int_equal(items_next(&it, &second, &err), 1);
    assert_int_equal(json_len(json_get(json_get(second, "b"), "c")), 2);
    assert_int_equal(items_next(&it, &none, &err), 0);
    assert_int_equal(items_next(&it, &none, &err), 0);
}

/* More than json_parse() takes at once. */
static void a_list_may_be_long(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct items it;
    struct err err = {0};
    struct json *whole = NULL;
    int n = 0;

    buf_init(&text, 8 << 20);
    (void)buf_puts(&text, "{\"sessions\":[");
    for (int i = 0; i < 20000; i++)
        (void)buf_printf(&text, "%s{\"a\":1,\"b\":2,\"c\":3}", i > 0 ? "," : "");
    (void)buf_puts(&text, "]}");
    assert_true(json_parse(buf_str(&text), text.len, &whole, &err) < 0);
    assert_int_equal(items_init(&it, buf_str(&text), text.len, "sessions", &err), 0);
    for (int r = 1; r > 0; n++) {
        AUTO(json) struct json *v = NULL;
        r = items_next(&it, &v, &err);
        assert_true(r >= 0);
    }
    assert_int_equal(n, 20001);
}

static void broken_lists_are_errors(void **state)
{
    static const char *const heads[] = {"", "{}", "{\"sessions\":{}}", "{\"sessions\"", "sessions"};
    static const char *const tails[] = {"{\"sessions\":[", "{\"sessions\":[1]}", "{\"sessions\":[{",
                                        "{\"sessions\":[{\"a\":\"\\", "{\"sessions\":[}]}"};
    struct items it;
    struct err err = {0};
    struct json *v = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(heads); i++)
        assert_true(items_init(&it, heads[i], strlen(heads[i]), "sessions", &err) < 0);
    for (size_t i = 0; i < ARRAY_SIZE(tails); i++) {
        assert_int_equal(items_init(&it, tails[i], strlen(tails[i]), "sessions", &err), 0);
        assert_true(items_next(&it, &v, &err) < 0);
    }
}

static void json_for_people_drives_no_terminal(void **state)
{
    static const char text[] = "{\"a\":\"\x1b\x7f\xc2\x9b\xc2\xa9\xe2\x80\xae\x9b\"}\n";
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 1024);
    assert_true(json_plain(&out, text, strlen(text)) >= 0);
    assert_string_equal(buf_str(&out),
                        "{\"a\":\"\\u001b\\u007f\\u009b\xc2\xa9\\u202e\xef\xbf\xbd\"}\n");
}

/* Pipes. */

struct fixture {
    struct loop *loop;
    struct sink sink;
    struct intake source;
    int fds[2]; /* read end, write end */
    unsigned changes;
    struct buf got;
    bool ended;
};

static struct fixture f;

static int setup(void **state)
{
    struct err err;

    memset(&f, 0, sizeof(f));
    buf_init(&f.got, 8 << 20);
    if (loop_new(&clock_system, &f.loop, &err) < 0)
        return -1;
    return pipe2(f.fds, O_CLOEXEC);
}

static int teardown(void **state)
{
    intake_stop(&f.source);
    sink_done(&f.sink);
    loop_free(f.loop);
    (void)close(f.fds[0]);
    if (f.fds[1] >= 0)
        (void)close(f.fds[1]);
    buf_done(&f.got);
    return 0;
}

static void changed(struct sink *s)
{
    f.changes++;
}

static size_t read_all(int fd, char *data, size_t size)
{
    size_t n = 0;

    while (n < size) {
        ssize_t r = read(fd, data + n, size - n);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    return n;
}

/* More than a pipe holds: the rest waits, the order stays, and the end is told once. */
static void fills_and_drains(enum sink_kind kind)
{
    static char data[300000];
    static char back[300000];

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 31 + i / 251);
    assert_int_equal(f.sink.kind, kind);
    assert_int_equal(sink_write(&f.sink, data, sizeof(data) - 5), 0);
    assert_true(sink_busy(&f.sink));
    assert_int_equal(sink_write(&f.sink, data + sizeof(data) - 5, 5), 0);
    size_t n = 0;
    while (n < sizeof(back)) {
        n += read_all(f.fds[0], back + n, sizeof(back) - n > 4096 ? 4096 : sizeof(back) - n);
        (void)loop_turn(f.loop, 0);
    }
    assert_memory_equal(data, back, sizeof(data));
    assert_false(sink_busy(&f.sink));
    assert_int_equal(f.changes, 1);
}

static void a_sink_queues_what_a_pipe_does_not_take(void **state)
{
    sink_init(&f.sink, f.loop, f.fds[1], 1 << 20, changed);
    fills_and_drains(SINK_OWN);
    /* The description is shared with other programs: it still blocks. */
    assert_int_equal(fcntl(f.fds[1], F_GETFL) & O_NONBLOCK, 0);
}

static void a_sink_that_cannot_be_opened_again_never_blocks_either(void **state)
{
    sink_init(&f.sink, f.loop, f.fds[1], 1 << 20, changed);
    (void)close(f.sink.own_fd);
    f.sink.own_fd = -1;
    f.sink.fd = f.fds[1];
    f.sink.kind = SINK_BLOCKING;
    fills_and_drains(SINK_BLOCKING);
}

static void a_sink_on_a_socket_does_not_block(void **state)
{
    (void)close(f.fds[0]);
    (void)close(f.fds[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, f.fds), 0);
    sink_init(&f.sink, f.loop, f.fds[1], 1 << 20, changed);
    fills_and_drains(SINK_SOCKET);
}

static void a_file_is_written_at_once(void **state)
{
    char path[] = "/tmp/box-test-XXXXXX";
    char back[8] = "";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a", 1), 1);
    sink_init(&f.sink, f.loop, fd, 16, changed);
    assert_int_equal(f.sink.kind, SINK_FILE);
    assert_int_equal(sink_write(&f.sink, "bc", 2), 0);
    assert_false(sink_busy(&f.sink));
    /* At the place where whoever shares the file left it. */
    assert_int_equal(pread(fd, back, sizeof(back), 0), 3);
    assert_string_equal(back, "abc");
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
}

static void a_reader_that_is_gone_is_told_and_sticks(void **state)
{
    sink_init(&f.sink, f.loop, f.fds[1], 1 << 20, changed);
    (void)close(f.fds[0]);
    f.fds[0] = -1;
    assert_int_equal(sink_write(&f.sink, "x", 1), -EPIPE);
    assert_int_equal(sink_write(&f.sink, "x", 1), -EPIPE);
    assert_int_equal(f.sink.error, EPIPE);
    assert_false(sink_busy(&f.sink));
}

static void a_reader_that_goes_while_bytes_wait_is_told_by_the_loop(void **state)
{
    static char data[200000];

    sink_init(&f.sink, f.loop, f.fds[1], 1 << 20, changed);
    assert_int_equal(sink_write(&f.sink, data, sizeof(data)), 0);
    (void)close(f.fds[0]);
    f.fds[0] = -1;
    assert_true(loop_turn(f.loop, 1000) > 0);
    assert_int_equal(f.changes, 1);
    assert_int_equal(f.sink.error, EPIPE);
}

static void a_sink_has_a_cap(void **state)
{
    static char data[200000];

    sink_init(&f.sink, f.loop, f.fds[1], 1000, changed);
    assert_int_equal(sink_write(&f.sink, data, sizeof(data)), -ENOBUFS);
    assert_false(sink_busy(&f.sink));
}

static void got(struct intake *s, const char *data, size_t len)
{
    if (len == 0)
        f.ended = true;
    else
        assert_true(buf_append(&f.got, data, len) >= 0);
}

static void a_source_tells_bytes_and_the_end(void **state)
{
    assert_int_equal(intake_start(&f.source, f.loop, f.fds[0], got), 0);
    assert_int_equal(write(f.fds[1], "hello", 5), 5);
    assert_true(loop_turn(f.loop, 1000) > 0);
    assert_string_equal(buf_str(&f.got), "hello");
    assert_false(f.ended);
    (void)close(f.fds[1]);
    f.fds[1] = -1;
    assert_true(loop_turn(f.loop, 1000) > 0);
    assert_true(f.ended);
    assert_null(f.source.loop);
}

static void a_paused_source_reads_nothing(void **state)
{
    assert_int_equal(intake_start(&f.source, f.loop, f.fds[0], got), 0);
    intake_pause(&f.source, true);
    assert_int_equal(write(f.fds[1], "hello", 5), 5);
    assert_int_equal(loop_turn(f.loop, 10), 0);
    assert_int_equal(f.got.len, 0);
    intake_pause(&f.source, false);
    assert_true(loop_turn(f.loop, 1000) > 0);
    assert_string_equal(buf_str(&f.got), "hello");
}

/* epoll refuses files: they are read piece by piece, turn by turn, and can be paused as well. */
static void a_file_is_a_source_too(void **state)
{
    char path[] = "/tmp/box-test-XXXXXX";
    static char data[3 * INTAKE_CHUNK + 5];
    int fd = mkstemp(path);

    memset(data, 'd', sizeof(data));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, sizeof(data)), sizeof(data));
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(intake_start(&f.source, f.loop, fd, got), 0);
    assert_true(loop_turn(f.loop, 0) > 0);
    intake_pause(&f.source, true);
    size_t before = f.got.len;
    assert_true(before > 0 && before < sizeof(data));
    assert_int_equal(loop_turn(f.loop, 0), 0);
    assert_int_equal(f.got.len, before);
    intake_pause(&f.source, false);
    for (int i = 0; i < 10 && !f.ended; i++)
        (void)loop_turn(f.loop, 0);
    assert_true(f.ended);
    assert_int_equal(f.got.len, sizeof(data));
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
}

#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(controls_are_shown_not_obeyed),
        cmocka_unit_test(tables_are_aligned_and_escaped),
        cmocka_unit_test(items_come_one_by_one),
        cmocka_unit_test(a_list_may_be_long),
        cmocka_unit_test(broken_lists_are_errors),
        cmocka_unit_test(json_for_people_drives_no_terminal),
        WITH_LOOP(a_sink_queues_what_a_pipe_does_not_take),
        WITH_LOOP(a_sink_that_cannot_be_opened_again_never_blocks_either),
        WITH_LOOP(a_sink_on_a_socket_does_not_block),
        WITH_LOOP(a_file_is_written_at_once),
        WITH_LOOP(a_reader_that_is_gone_is_told_and_sticks),
        WITH_LOOP(a_reader_that_goes_while_bytes_wait_is_told_by_the_loop),
        WITH_LOOP(a_sink_has_a_cap),
        WITH_LOOP(a_source_tells_bytes_and_the_end),
        WITH_LOOP(a_paused_source_reads_nothing),
        WITH_LOOP(a_file_is_a_source_too),
    };
    const struct sigaction ignore = {.sa_handler = SIG_IGN};

    (void)sigaction(SIGPIPE, &ignore, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
