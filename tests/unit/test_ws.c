/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/str.h"
#include "http/codec/http1.h"
#include "http/codec/ws.h"
#include "lib/http1_whole.h"

static const uint8_t key[4] = {0x37, 0xfa, 0x21, 0x3d};

/* Appends a frame; `masked` as a client sends it. */
static void put_frame(struct buf *b, bool masked, unsigned opcode, bool fin, const void *data,
                      size_t len)
{
    uint8_t frame[WS_FRAME_HEAD_MAX];
    size_t n = ws_frame_head(frame, (enum ws_opcode)opcode, fin, len, masked ? key : NULL);

    assert_int_equal(buf_append(b, frame, n), 0);
    assert_int_equal(buf_append(b, data, len), 0);
    if (masked && len > 0)
        ws_mask(b->data + b->len - len, len, key, 0);
}

static void put_text(struct buf *b, unsigned opcode, bool fin, const char *text)
{
    put_frame(b, true, opcode, fin, text, strlen(text));
}

/* Runs the decoder over the bytes in pieces of `step` and writes down what happened, as
 * "T:hello P:x C:1000:bye !1002". The input is copied piece by piece so that sanitizers see any
 * step outside it. */
static char *transcript(enum ws_role role, size_t max, unsigned fragments, const struct buf *in,
                        size_t step)
{
    static const char letters[] = {
        [WS_EVENT_MESSAGE] = 'T', [WS_EVENT_PING] = 'P', [WS_EVENT_PONG] = 'O'};
    AUTO_DONE(buf) struct buf out;
    struct ws_decoder d;
    ssize_t used = 0;

    buf_init(&out, 1 << 20);
    ws_decoder_init(&d, role, max, fragments);
    for (size_t pos = 0; pos < in->len && used >= 0; pos += step) {
        size_t n = in->len - pos < step ? in->len - pos : step;
        char *copy = malloc(n);
        memcpy(copy, in->data + pos, n);
        for (size_t at = 0;;) {
            struct ws_event e;
            used = ws_decode(&d, copy + at, n - at, &e);
            if (used < 0) {
                (void)buf_printf(&out, "!%u ", ws_error_code((int)used));
                break;
            }
            at += (size_t)used;
            if (e.type == WS_EVENT_NONE) {
                assert_int_equal(at, n);
                break;
            }
            if (e.type == WS_EVENT_CLOSE)
                (void)buf_printf(&out, "C:%u:%.*s ", e.code, (int)e.len, e.data);
            else if (e.opcode == WS_BINARY)
                (void)buf_printf(&out, "B:%.*s ", (int)e.len, e.data);
            else
                (void)buf_printf(&out, "%c:%.*s ", letters[e.type], (int)e.len, e.data);
        }
        free(copy);
    }
    if (used >= 0 && !ws_decoder_partial(&d)) {
        assert_null(d.message.data); /* nothing is kept while idle */
        (void)buf_puts(&out, ".");
    }
    ws_decoder_done(&d);
    return buf_take(&out);
}

static void assert_transcript_of(enum ws_role role, const struct buf *in, const char *expected)
{
    for (size_t step = 1; step <= in->len; step += step < 40 ? 1 : 37) {
        char *got = transcript(role, 0, 0, in, step);
        assert_string_equal(got, expected);
        free(got);
    }
    char *whole = transcript(role, 0, 0, in, in->len);
    assert_string_equal(whole, expected);
    free(whole);
}

static void assert_transcript(const struct buf *in, const char *expected)
{
    assert_transcript_of(WS_SERVER, in, expected);
}

static void the_example_of_the_rfc_is_read(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 1000);
    (void)buf_append(&b, "\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", 11);
    assert_transcript(&b, "T:Hello .");
    buf_reset(&b);
    (void)buf_append(&b, "\x81\x05Hello\x89\x05Hello\x8a\x05Hello", 21);
    assert_transcript_of(WS_CLIENT, &b, "T:Hello P:Hello O:Hello .");
    buf_reset(&b);
    (void)buf_append(&b, "\x01\x03Hel\x80\x02lo", 9);
    assert_transcript_of(WS_CLIENT, &b, "T:Hello .");
}

static void messages_are_joined_around_control_frames(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 1000);
    put_text(&b, WS_TEXT, false, "a");
    put_text(&b, WS_PING, true, "p");
    put_text(&b, WS_CONTINUATION, false, "");
    put_text(&b, WS_CONTINUATION, false, "b");
    put_text(&b, WS_PONG, true, "");
    put_text(&b, WS_CONTINUATION, true, "c");
    put_text(&b, WS_BINARY, true, "\xff\xfe");
    put_text(&b, WS_TEXT, true, "");
    put_text(&b, WS_TEXT, false, "");
    put_text(&b, WS_CONTINUATION, true, "");
    put_text(&b, WS_CLOSE, true,
             "\x03\xe8"
             "bye");
    assert_transcript(&b, "P:p O: T:abc B:\xff\xfe T: T: C:1000:bye .");
}

/* One row per violation: the bytes a client would send, and how the decoder must answer. */
static const struct {
    const char *what;
    const char *bytes;
    size_t len;
    const char *expected;
} hostile[] = {
#define ROW(what, bytes, expected)                                                                 \
    {                                                                                              \
        what, bytes, sizeof(bytes) - 1, expected                                                   \
    }
    ROW("unmasked", "\x81\x01x", "!1002 "),
    ROW("unmasked empty", "\x81\x00", "!1002 "),
    ROW("rsv1", "\xc1\x80\0\0\0\0", "!1002 "),
    ROW("rsv2", "\xa1\x80\0\0\0\0", "!1002 "),
    ROW("rsv3", "\x91\x80\0\0\0\0", "!1002 "),
    ROW("opcode 3", "\x83\x80\0\0\0\0", "!1002 "),
    ROW("opcode 7", "\x87\x80\0\0\0\0", "!1002 "),
    ROW("opcode 11", "\x8b\x80\0\0\0\0", "!1002 "),
    ROW("opcode 15", "\x8f\x80\0\0\0\0", "!1002 "),
    ROW("ping of 126", "\x89\xfe\0\x7e\0\0\0\0", "!1002 "),
    ROW("close of 2^63", "\x88\xff\x80\0\0\0\0\0\0\0\0\0\0\0", "!1002 "),
    ROW("fragmented ping", "\x09\x80\0\0\0\0", "!1002 "),
    ROW("fragmented close", "\x08\x80\0\0\0\0", "!1002 "),
    ROW("continuation of nothing", "\x80\x80\0\0\0\0", "!1002 "),
    ROW("unfinished continuation of nothing", "\x00\x80\0\0\0\0", "!1002 "),
    ROW("text within a message", "\x01\x80\0\0\0\0\x81\x80\0\0\0\0", "!1002 "),
    ROW("continuation after the end", "\x81\x80\0\0\0\0\x80\x80\0\0\0\0", "T: !1002 "),
    ROW("length in too many bytes (16)", "\x81\xfe\0\x7d\0\0\0\0", "!1002 "),
    ROW("length in too many bytes (64)", "\x81\xff\0\0\0\0\0\0\xff\xff\0\0\0\0", "!1002 "),
    ROW("length with the top bit", "\x81\xff\x80\0\0\0\0\0\0\0\0\0\0\0", "!1002 "),
    ROW("length of 2^63-1", "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", "!1009 "),
    ROW("length of 16 MiB and 1", "\x82\xff\0\0\0\0\x01\0\0\x01\0\0\0\0", "!1009 "),
    ROW("close of one byte", "\x88\x81\0\0\0\0\x03", "!1002 "),
    ROW("close with 999", "\x88\x82\0\0\0\0\x03\xe7", "!1002 "),
    ROW("close with 1004", "\x88\x82\0\0\0\0\x03\xec", "!1002 "),
    ROW("close with 1005", "\x88\x82\0\0\0\0\x03\xed", "!1002 "),
    ROW("close with 1006", "\x88\x82\0\0\0\0\x03\xee", "!1002 "),
    ROW("close with 1015", "\x88\x82\0\0\0\0\x03\xf7", "!1002 "),
    ROW("close with 2999", "\x88\x82\0\0\0\0\x0b\xb7", "!1002 "),
    ROW("close with 5000", "\x88\x82\0\0\0\0\x13\x88", "!1002 "),
    ROW("close with bad reason", "\x88\x83\0\0\0\0\x03\xe8\xff", "!1007 "),
    ROW("close with cut reason", "\x88\x83\0\0\0\0\x03\xe8\xc3", "!1007 "),
    ROW("invalid text", "\x81\x81\0\0\0\0\xff", "!1007 "),
    ROW("text cut in a character", "\x81\x81\0\0\0\0\xc3", "!1007 "),
    ROW("fragment with invalid text", "\x01\x81\0\0\0\0\xc0", "!1007 "),
    ROW("surrogate over fragments", "\x01\x81\0\0\0\0\xed\x80\x82\0\0\0\0\xa0\x80", "!1007 "),
    ROW("valid close codes", "\x88\x82\0\0\0\0\x0f\xa0", "C:4000: ."),
    ROW("close with no code", "\x88\x80\0\0\0\0", "C:1005: ."),
    ROW("character over fragments", "\x01\x81\0\0\0\0\xc3\x80\x81\0\0\0\0\xa4", "T:\xc3\xa4 ."),
#undef ROW
};

static void hostile_frames_get_their_code(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
        struct buf in = {.data = (char *)hostile[i].bytes, .len = hostile[i].len};
        for (size_t step = 1; step <= in.len; step++) {
            char *got = transcript(WS_SERVER, 0, 0, &in, step);
            if (!str_eq(got, hostile[i].expected))
                fail_msg("%s, step %zu: %s instead of %s", hostile[i].what, step, got,
                         hostile[i].expected);
            free(got);
        }
    }
}

static void a_client_refuses_masked_frames(void **state)
{
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 100);
    put_text(&b, WS_TEXT, true, "x");
    assert_transcript_of(WS_CLIENT, &b, "!1002 ");
}

static void caps_hold_for_the_joined_message(void **state)
{
    AUTO_DONE(buf) struct buf b;
    char *got;

    buf_init(&b, 100000);
    put_text(&b, WS_TEXT, false, "12345");
    put_text(&b, WS_CONTINUATION, true, "67890");
    got = transcript(WS_SERVER, 10, 0, &b, b.len);
    assert_string_equal(got, "T:1234567890 .");
    free(got);
    got = transcript(WS_SERVER, 9, 0, &b, b.len);
    assert_string_equal(got, "!1009 ");
    free(got);

    buf_reset(&b);
    put_text(&b, WS_TEXT, false, "");
    for (unsigned i = 2; i < WS_FRAGMENTS_MAX; i++)
        put_text(&b, WS_CONTINUATION, false, "");
    size_t len = b.len;
    put_text(&b, WS_CONTINUATION, true, "x");
    got = transcript(WS_SERVER, 0, 0, &b, 1000);
    assert_string_equal(got, "T:x .");
    free(got);
    b.len = len;
    put_text(&b, WS_CONTINUATION, false, "");
    put_text(&b, WS_CONTINUATION, true, "x");
    got = transcript(WS_SERVER, 0, 0, &b, 1000);
    assert_string_equal(got, "!1009 ");
    free(got);
}

static void a_promised_length_costs_no_memory(void **state)
{
    char frame[WS_FRAME_HEAD_MAX + 1];
    struct ws_decoder d;
    struct ws_event e;

    ws_decoder_init(&d, WS_SERVER, 0, 0);
    size_t n = ws_frame_head((uint8_t *)frame, WS_BINARY, true, WS_MESSAGE_MAX, key);
    assert_int_equal(ws_decode(&d, frame, n + 1, &e), n + 1);
    assert_int_equal(e.type, WS_EVENT_NONE);
    assert_true(ws_decoder_partial(&d));
    assert_in_range(d.message.cap, 1, 4096);
    ws_decoder_done(&d);
}

static void a_whole_message_is_not_copied(void **state)
{
    AUTO_DONE(buf) struct buf b;
    struct ws_decoder d;
    struct ws_event e;

    buf_init(&b, 100);
    put_text(&b, WS_TEXT, true, "hello");
    ws_decoder_init(&d, WS_SERVER, 0, 0);
    assert_int_equal(ws_decode(&d, b.data, b.len, &e), b.len);
    assert_ptr_equal(e.data, b.data + 6);
    assert_null(d.message.data);
    ws_decoder_done(&d);
}

static void frame_heads_use_the_shortest_length(void **state)
{
    static const struct {
        uint64_t len;
        size_t head;
    } rows[] = {{0, 2}, {125, 2}, {126, 4}, {65535, 4}, {65536, 10}, {UINT64_C(1) << 40, 10}};
    uint8_t out[WS_FRAME_HEAD_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(ws_frame_head(out, WS_TEXT, true, rows[i].len, NULL), rows[i].head);
        assert_int_equal(ws_frame_head(out, WS_TEXT, true, rows[i].len, key), rows[i].head + 4);
        assert_memory_equal(out + rows[i].head, key, 4);
    }
}

static void sizes_round_trip(void **state)
{
    static const size_t sizes[] = {0, 1, 31, 32, 33, 125, 126, 127, 65535, 65536, 70001};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        AUTO_DONE(buf) struct buf b;
        struct ws_decoder d;
        struct ws_event e = {0};
        char *data = malloc(sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++)
            data[k] = (char)('a' + k % 23);
        buf_init(&b, 100000);
        put_frame(&b, true, WS_TEXT, true, data, sizes[i]);
        ws_decoder_init(&d, WS_SERVER, 0, 0);
        for (size_t pos = 0; pos < b.len;) {
            size_t n = b.len - pos < 4099 ? b.len - pos : 4099;
            assert_int_equal(e.type, WS_EVENT_NONE);
            assert_int_equal(ws_decode(&d, b.data + pos, n, &e), n);
            pos += n;
        }
        assert_int_equal(e.type, WS_EVENT_MESSAGE);
        assert_int_equal(e.len, sizes[i]);
        assert_memory_equal(e.data, data, sizes[i]);
        ws_decoder_done(&d);
        free(data);
    }
}

static void masking_can_be_cut_anywhere(void **state)
{
    char whole[100];
    char parts[100];

    for (size_t i = 0; i < sizeof(whole); i++)
        whole[i] = parts[i] = (char)i;
    ws_mask(whole, sizeof(whole), key, 0);
    for (size_t i = 0; i < sizeof(whole); i++)
        assert_int_equal((uint8_t)whole[i], (uint8_t)(i ^ key[i & 3]));
    for (size_t cut = 0; cut <= sizeof(parts); cut++) {
        for (size_t i = 0; i < sizeof(parts); i++)
            parts[i] = (char)i;
        ws_mask(parts, cut, key, 0);
        ws_mask(parts + cut, sizeof(parts) - cut, key, cut);
        assert_memory_equal(parts, whole, sizeof(whole));
    }
}

/* Whether a text message of these bytes is taken, of which `first` come before the others. */
static bool text_is_taken(const char *text, size_t first, size_t len)
{
    char frame[WS_FRAME_HEAD_MAX + 256];
    struct ws_decoder d;
    struct ws_event e = {0};

    assert_in_range(len, first, 256);
    ws_decoder_init(&d, WS_CLIENT, 0, 0);
    size_t n = ws_frame_head((uint8_t *)frame, WS_TEXT, true, len, NULL);
    memcpy(frame + n, text, len);
    ssize_t r = ws_decode(&d, frame, n + first, &e);
    if (r >= 0)
        r = ws_decode(&d, frame + n + first, len - first, &e);
    bool taken = r >= 0 && e.type == WS_EVENT_MESSAGE;
    ws_decoder_done(&d);
    return taken;
}

/* Sequences of bytes from around the borders, against the one-shot check that base has. */
static void text_is_judged_like_the_one_shot_check(void **state)
{
    static const uint8_t edges[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                    0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
                                    0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    const size_t n = ARRAY_SIZE(edges);

    for (size_t i = 0; i < n * n * n * n; i++) {
        const uint8_t s[] = {edges[i % n], edges[i / n % n], edges[i / n / n % n],
                             edges[i / n / n / n]};
        if (text_is_taken((const char *)s, 1, 4) != utf8_valid((const char *)s, sizeof(s)))
            fail_msg("%02x %02x %02x %02x", s[0], s[1], s[2], s[3]);
    }
}

static void a_bad_byte_is_found_behind_long_ascii(void **state)
{
    char text[200];

    memset(text, 'a', sizeof(text));
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (char)0xff;
        assert_false(text_is_taken(text, 0, sizeof(text)));
        text[i] = 'a';
    }
    assert_true(text_is_taken(text, 0, sizeof(text)));
}

static void close_payloads_are_cut_on_a_character(void **state)
{
    char out[WS_CONTROL_MAX];
    char reason[WS_REASON_MAX + 3];

    assert_int_equal(ws_close_payload(out, 1001, "bye"), 5);
    assert_memory_equal(out,
                        "\x03\xe9"
                        "bye",
                        5);
    assert_int_equal(ws_close_payload(out, 1000, NULL), 2);
    assert_int_equal(ws_close_payload(out, WS_CODE_NONE, "x"), 0);
    memset(reason, 'a', sizeof(reason));
    memcpy(reason + WS_REASON_MAX - 1, "\xc3\xa4", 3);
    assert_int_equal(ws_close_payload(out, 1000, reason), WS_CONTROL_MAX - 1);
}

#define UPGRADE                                                                                    \
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
#define VERSION "Sec-WebSocket-Version: 13\r\n"
#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

static unsigned check(const char *text, char *accept)
{
    struct http1_head head;
    const char *why = NULL;

    assert_true(http1_head(HTTP1_REQUEST, text, strlen(text), 8192, &head) > 0);
    unsigned status = ws_check_request(&head, accept, &why);
    assert_true(status == 101 || why != NULL);
    return status;
}

static void handshakes_are_checked(void **state)
{
    char accept[WS_ACCEPT_SIZE];

    assert_int_equal(check(UPGRADE VERSION KEY "\r\n", accept), 101);
    assert_string_equal(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_int_equal(check(UPGRADE KEY "\r\n", accept), 426);
    assert_int_equal(check(UPGRADE KEY "Sec-WebSocket-Version: 8\r\n\r\n", accept), 426);
    assert_int_equal(check(UPGRADE VERSION "\r\n", accept), 400);
    assert_int_equal(check(UPGRADE VERSION KEY KEY "\r\n", accept), 400);
    assert_int_equal(check(UPGRADE VERSION "Sec-WebSocket-Key: abc\r\n\r\n", accept), 400);
    assert_int_equal(
        check(UPGRADE VERSION "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZf==\r\n\r\n", accept), 400);
    assert_int_equal(
        check(UPGRADE VERSION "Sec-WebSocket-Key: dGhl*HNhbXBsZSBub25jZQ==\r\n\r\n", accept), 400);
    assert_int_equal(check("GET / HTTP/1.1\r\nHost: a\r\n" VERSION KEY "\r\n", accept), 400);
    assert_int_equal(
        check("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n" VERSION KEY "\r\n", accept),
        400);
    assert_int_equal(check("POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n"
                           "Upgrade: websocket\r\n" VERSION KEY "\r\n",
                           accept),
                     405);
    assert_int_equal(check("GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\n"
                           "Upgrade: websocket\r\n" VERSION KEY "\r\n",
                           accept),
                     400);
    assert_int_equal(check(UPGRADE VERSION KEY "Content-Length: 1\r\n\r\n", accept), 400);
}

static void protocols_keep_their_case(void **state)
{
    static const char text[] = UPGRADE VERSION KEY "Sec-WebSocket-Protocol: a, mcp\r\n"
                                                   "sec-websocket-protocol: Z\r\n\r\n";
    struct http1_head head;

    assert_true(http1_head(HTTP1_REQUEST, text, sizeof(text) - 1, 8192, &head) > 0);
    assert_true(ws_offers_protocol(&head, "mcp"));
    assert_true(ws_offers_protocol(&head, "Z"));
    assert_false(ws_offers_protocol(&head, "MCP"));
}

static int check_answer(const char *rest, const char *protocol)
{
    AUTO_DONE(buf) struct buf b;
    struct http1_head head;
    struct err err = {0};

    buf_init(&b, 1000);
    (void)buf_printf(&b, "HTTP/1.1 %s\r\n\r\n", rest);
    assert_true(http1_head(HTTP1_RESPONSE, b.data, b.len, 8192, &head) > 0);
    return ws_check_response(&head, "dGhlIHNhbXBsZSBub25jZQ==", protocol, &err);
}

#define ANSWER "101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
#define ACCEPT "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

static void answers_to_a_handshake_are_checked(void **state)
{
    assert_int_equal(check_answer(ANSWER ACCEPT, NULL), 0);
    assert_int_equal(check_answer(ANSWER ACCEPT "\r\nSec-WebSocket-Protocol: mcp", "mcp"), 0);
    assert_true(check_answer(ANSWER ACCEPT "\r\nSec-WebSocket-Protocol: mcp", NULL) < 0);
    assert_true(check_answer(ANSWER ACCEPT "\r\nSec-WebSocket-Protocol: x", "mcp") < 0);
    assert_true(check_answer(ANSWER ACCEPT "\r\n" ACCEPT, NULL) < 0);
    assert_true(check_answer(ANSWER "Sec-WebSocket-Accept: x", NULL) < 0);
    assert_true(check_answer(ANSWER "X: y", NULL) < 0);
    assert_true(check_answer("200 OK\r\n" ACCEPT, NULL) < 0);
    assert_true(check_answer("101 x\r\n" ACCEPT, NULL) < 0);
    assert_true(
        check_answer(ANSWER ACCEPT "\r\nSec-WebSocket-Extensions: permessage-deflate", NULL) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_rfc_is_read),
        cmocka_unit_test(messages_are_joined_around_control_frames),
        cmocka_unit_test(hostile_frames_get_their_code),
        cmocka_unit_test(a_client_refuses_masked_frames),
        cmocka_unit_test(caps_hold_for_the_joined_message),
        cmocka_unit_test(a_promised_length_costs_no_memory),
        cmocka_unit_test(a_whole_message_is_not_copied),
        cmocka_unit_test(frame_heads_use_the_shortest_length),
        cmocka_unit_test(sizes_round_trip),
        cmocka_unit_test(masking_can_be_cut_anywhere),
        cmocka_unit_test(text_is_judged_like_the_one_shot_check),
        cmocka_unit_test(a_bad_byte_is_found_behind_long_ascii),
        cmocka_unit_test(close_payloads_are_cut_on_a_character),
        cmocka_unit_test(handshakes_are_checked),
        cmocka_unit_test(protocols_keep_their_case),
        cmocka_unit_test(answers_to_a_handshake_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
