/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

/* Private to the relay and to the transport. */
#include "front/langbot/relay.c"
#include "front/langbot/stdio.c"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"

/* What was handed on: a message each, and whether it ends a line. */
struct seen {
    char **texts; /* owned */
    size_t n, splits, longest;
    size_t stop_at; /* no more after that many; 0: never */
};

static bool see(void *arg, const char *text, size_t len, bool line)
{
    struct seen *s = arg;
    assert_true(utf8_valid(text, len));
    assert_true(len <= LANGBOT_MESSAGE_MAX);
    if (len < 4096)
        strv_push(&s->texts, xstrndup(text, len));
    s->n++;
    s->splits += !line;
    s->longest = len > s->longest ? len : s->longest;
    return s->stop_at == 0 || s->n < s->stop_at;
}

/* Feeds it in steps of that size, as a reader does that comes back for what was left. */
static void feed(struct seen *s, const char *data, size_t len, size_t step)
{
    struct buf l;
    size_t at = 0, end = 0;
    buf_init(&l, LANGBOT_MESSAGE_MAX);
    while (at < len || end < len) {
        end = end + step < len ? end + step : len;
        at += lines_feed(&l, data + at, end - at, end == len, see, s);
        if (end == len)
            break;
    }
    if (len == 0)
        (void)lines_feed(&l, "", 0, true, see, s);
    buf_done(&l);
}

static void lines_are(const char *data, size_t len, const char *const *want)
{
    for (size_t step = 1; step <= len + 1; step++) {
        struct seen s = {0};
        size_t n = 0;
        feed(&s, data, len, step);
        for (; want[n] != NULL; n++) {
            assert_true(n < s.n);
            assert_string_equal(s.texts[n], want[n]);
        }
        assert_int_equal(s.n, n);
        assert_int_equal(s.splits, 0);
        strv_free(s.texts);
    }
}

#define LINES(text, ...) lines_are(text, sizeof(text) - 1, (const char *const[]){__VA_ARGS__, NULL})

/* Upstream bug 1: raw chunks of 64 KiB, which break messages and characters. */
static void a_message_is_a_line(void **state)
{
    static const char *const none[] = {NULL};
    lines_are("", 0, none);
    LINES("a\n", "a");
    LINES("a\nbb\n\nc\n", "a", "bb", "", "c");
    LINES("a\nrest", "a", "rest");
    LINES("a\r\n", "a\r");
    LINES("\n", "");
}

static void characters_are_never_cut(void **state)
{
    LINES("\xe2\x82\xac\xf0\x9f\x98\x80\n\xc3\xa9", "\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9");
}

static void what_is_no_character_is_replaced(void **state)
{
    LINES("a\xff\xfe\n", "a\xef\xbf\xbd\xef\xbf\xbd");
    LINES("\xe2\x82\nx", "\xef\xbf\xbd", "x");
    LINES("\xf0\x9f\x98", "\xef\xbf\xbd"); /* the end, in the middle of one */
    LINES("\xc3(\n", "\xef\xbf\xbd(");
}

static void nothing_is_lost_when_the_reader_wants_a_pause(void **state)
{
    static const char data[] = "one\ntwo\nthree\n\xff\nfive";
    struct buf l;
    size_t at = 0;
    struct seen s = {0};
    buf_init(&l, LANGBOT_MESSAGE_MAX);
    for (size_t turn = 1; turn <= 5; turn++) {
        s.stop_at = turn;
        at += lines_feed(&l, data + at, sizeof(data) - 1 - at, true, see, &s);
        assert_int_equal(s.n, turn);
    }
    assert_int_equal(at, sizeof(data) - 1);
    assert_string_equal(s.texts[2], "three");
    assert_string_equal(s.texts[4], "five");
    strv_free(s.texts);
    buf_done(&l);
}

static void a_line_up_to_the_limit_is_one_message(void **state)
{
    char *data = malloc(LANGBOT_MESSAGE_MAX + 2);
    struct seen s = {0};
    assert_non_null(data);
    memset(data, 'x', LANGBOT_MESSAGE_MAX + 2);
    data[LANGBOT_MESSAGE_MAX] = '\n';
    feed(&s, data, LANGBOT_MESSAGE_MAX + 1, 65536);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.longest, LANGBOT_MESSAGE_MAX);
    s = (struct seen){0};
    data[LANGBOT_MESSAGE_MAX] = 'x';
    data[LANGBOT_MESSAGE_MAX + 1] = '\n';
    feed(&s, data, LANGBOT_MESSAGE_MAX + 2, 65536);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.splits, 1);
    assert_string_equal(s.texts[0], "x");
    strv_free(s.texts);
    /* What stands for a byte that is none takes three. */
    s = (struct seen){0};
    memset(data, 0xff, LANGBOT_MESSAGE_MAX / 2);
    feed(&s, data, LANGBOT_MESSAGE_MAX / 2, 65536);
    assert_int_equal(s.n, 2);
    assert_true(s.longest > LANGBOT_MESSAGE_MAX - 3);
    free(data);
}

/* Pipes. */

static void note(void *arg, const char *text, size_t len)
{
    strv_push(arg, xstrndup(text, len));
}

/* How feeding all of it in steps of one size ends; the messages are the caller's. */
static int unpipe(const char *data, size_t len, size_t step, char ***ret)
{
    struct unpipe u;
    int r = 0;
    unpipe_init(&u);
    for (size_t at = 0; at < len && r == 0; at += step)
        r = unpipe_feed(&u, data + at, len - at < step ? len - at : step, note, ret);
    unpipe_done(&u);
    return r;
}

static void messages_are(const char *data, const char *const *want)
{
    size_t len = strlen(data);
    for (size_t step = 1; step <= len; step++) {
        AUTO_STRV char **got = NULL;
        size_t n = 0;
        assert_int_equal(unpipe(data, len, step, &got), 0);
        for (; want[n] != NULL; n++)
            assert_string_equal(got[n], want[n]);
        assert_int_equal(strv_len(got), n);
    }
}

#define MESSAGES(text, ...) messages_are(text, (const char *const[]){__VA_ARGS__, NULL})

static void a_line_is_a_message(void **state)
{
    MESSAGES("{\"a\":1}\n\n  {\"b\":2} \r\nnoise\n{half\n[1]\n{\"c\":3}\n", "{\"a\":1}",
             "{\"b\":2}", "{\"c\":3}");
    MESSAGES("{\"type\":\"chunk_data\",\"data\":\"x\"}\n{\"type\":\"chunk_end\"}\n{\"d\":1}\n",
             "{\"d\":1}");
    /* Words of the protocol inside of a message are the message's. */
    MESSAGES("{\"x\":\"\\\"chunk_start\\\"\",\"type\":\"other\"}\n",
             "{\"x\":\"\\\"chunk_start\\\"\",\"type\":\"other\"}");
    MESSAGES("{\"chunk_x\" no json}\n", "{\"chunk_x\" no json}"); /* for others to judge */
}

static void pieces_are_put_together(void **state)
{
    MESSAGES("{\"type\": \"chunk_start\", \"total_size\": 8}\n"
             "{\"type\": \"chunk_data\", \"data\": \"{\\\"a\\u00e9\", \"offset\": 0}\n"
             "\nnoise\n{\"other\": 1}\n"
             "{\"type\": \"chunk_data\", \"data\": \"\\\":1\", \"offset\": 5}\n"
             "{\"type\": \"chunk_end\"}\n{\"b\":1}\n",
             "{\"a\xc3\xa9\":1", "{\"b\":1}");
    MESSAGES("{\"type\":\"chunk_start\",\"total_size\":0}\n{\"type\":\"chunk_end\"}\n", "");
}

static void bad_pieces_end_it(void **state)
{
    static const char *const cases[] = {
        "{\"type\":\"chunk_start\"}\n",
        "{\"type\":\"chunk_start\",\"total_size\":-1}\n",
        "{\"type\":\"chunk_start\",\"total_size\":16777217}\n",
        "{\"type\":\"chunk_start\",\"total_size\":\"3\"}\n",
        "{\"type\":\"chunk_start\",\"total_size\":3}\n{\"type\":\"chunk_end\"}\n",
        "{\"type\":\"chunk_start\",\"total_size\":3}\n"
        "{\"type\":\"chunk_data\",\"data\":\"abcd\",\"offset\":0}\n",
        "{\"type\":\"chunk_start\",\"total_size\":3}\n"
        "{\"type\":\"chunk_data\",\"data\":\"a\",\"offset\":1}\n",
        "{\"type\":\"chunk_start\",\"total_size\":3}\n"
        "{\"type\":\"chunk_data\",\"data\":\"a\",\"offset\":0}\n"
        "{\"type\":\"chunk_data\",\"data\":\"a\",\"offset\":0}\n",
        "{\"type\":\"chunk_start\",\"total_size\":3}\n"
        "{\"type\":\"chunk_data\",\"data\":7,\"offset\":0}\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_STRV char **got = NULL;
        assert_int_equal(unpipe(cases[i], strlen(cases[i]), 7, &got), -EPROTO);
        assert_null(got);
    }
}

static void pieces_have_caps(void **state)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_STRV char **got = NULL;
    buf_init(&text, 1 << 20);
    (void)buf_puts(&text, "{\"type\":\"chunk_start\",\"total_size\":0}\n");
    for (int i = 0; i < 4095; i++)
        (void)buf_puts(&text, "\n");
    size_t len = text.len;
    (void)buf_puts(&text, "{\"type\":\"chunk_end\"}\n");
    assert_int_equal(unpipe(text.data, text.len, 1000, &got), 0);
    assert_int_equal(strv_len(got), 1);
    text.len = len;
    (void)buf_puts(&text, "\n{\"type\":\"chunk_end\"}\n");
    assert_int_equal(unpipe(text.data, text.len, 1000, &got), -EPROTO);
}

/* Through the pipe and back, whatever it holds; no line is longer than peers take. */
static void round_trip(const char *text, size_t len)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_STRV char **got = NULL;
    buf_init(&out, 128U << 20);
    assert_int_equal(pipe_write(text, len, &out), 0);
    for (const char *line = out.data, *end; line < out.data + out.len; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        assert_true(end - line < 65535);
    }
    assert_int_equal(unpipe(out.data, out.len, 8192, &got), 0);
    assert_int_equal(strv_len(got), 1);
    assert_non_null(got);
    assert_int_equal(strlen(got[0]), len);
    assert_memory_equal(got[0], text, len);
}

static void messages_go_through(void **state)
{
    enum { SIZE = 99999 };
    char *text = malloc(SIZE + 1);
    assert_non_null(text);
    round_trip("{\"a\":1}", 7);
    for (int fill = 0; fill < 2; fill++) {
        for (size_t i = 0; i < SIZE; i += 3)
            memcpy(text + i, fill ? "\xe2\x82\xac" : "ab\\", 3);
        text[0] = '{';
        text[1] = ' ';
        text[2] = ' ';
        for (size_t n = 16383; n <= 16389; n += 3) {
            char kept = text[n];
            text[n] = '}';
            round_trip(text, n + 1);
            text[n] = kept;
        }
        memcpy(text + SIZE - 3, "  }", 3);
        round_trip(text, SIZE);
    }
    free(text);
}

static void a_message_goes_whole_or_not_at_all(void **state)
{
    AUTO_DONE(buf) struct buf out;
    static char text[20000];
    memset(text, 'x', sizeof(text));
    buf_init(&out, 20050);
    assert_int_equal(pipe_write("{}", 2, &out), 0);
    assert_int_equal(pipe_write(text, sizeof(text), &out), -ENOBUFS);
    assert_int_equal(out.len, 3);
    assert_int_equal(pipe_write("{}", 2, &out), 0);
    assert_int_equal(out.len, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_a_line),
        cmocka_unit_test(characters_are_never_cut),
        cmocka_unit_test(what_is_no_character_is_replaced),
        cmocka_unit_test(nothing_is_lost_when_the_reader_wants_a_pause),
        cmocka_unit_test(a_line_up_to_the_limit_is_one_message),
        cmocka_unit_test(a_line_is_a_message),
        cmocka_unit_test(pieces_are_put_together),
        cmocka_unit_test(bad_pieces_end_it),
        cmocka_unit_test(pieces_have_caps),
        cmocka_unit_test(messages_go_through),
        cmocka_unit_test(a_message_goes_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
