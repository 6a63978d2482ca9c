/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include "http/server/ws_conn.c"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>

#define UPGRADE                                                                                    \
    "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"         \
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define DEFLATE "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"

static const uint8_t key[4] = {1, 2, 3, 4};

static struct {
    struct ws_conn *conn;
    struct ws_opts opts;
    struct buf log;
    bool pause; /* after each message */
    bool echo;
    bool many; /* more than one connection is open */
    int writables;
    int closes;
    unsigned code;
    char reason[128];
} seen;

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    assert_ptr_equal(c, seen.conn);
    assert_string_equal(arg, "arg");
    (void)buf_printf(&seen.log, "%c:%.*s ", opcode == WS_TEXT ? 'T' : 'B', (int)len, data);
    if (seen.echo)
        assert_int_equal(ws_send(c, opcode, data, len), 0);
    if (seen.pause)
        ws_pause(c, true);
}

static void on_writable(struct ws_conn *c, void *arg)
{
    assert_false(ws_full(c));
    seen.writables++;
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    if (!seen.many)
        assert_ptr_equal(c, seen.conn);
    seen.conn = NULL;
    seen.closes++;
    seen.code = code;
    (void)str_copy(seen.reason, sizeof(seen.reason), reason);
}

static const struct ws_handlers handlers = {on_message, on_writable, on_closed};

static void get_ws(struct http_request *req, void *arg)
{
    struct err err;
    (void)http_upgrade_ws(req, &seen.opts, &handlers, arg, &seen.conn, &err);
}

static const struct http_route routes[] = {{"GET", "/ws", get_ws, 0, 0}, {0}};

static void start(struct fixture *f, const struct ws_opts *opts)
{
    memset(&seen, 0, sizeof(seen));
    if (opts != NULL)
        seen.opts = *opts;
    buf_init(&seen.log, 1 << 20);
    fixture_start(f, NULL, routes, (void *)"arg");
}

static void stop(struct fixture *f, int fd)
{
    (void)close(fd);
    fixture_stop(f);
    buf_done(&seen.log);
}

/* An upgraded connection; the answer has been read. */
static int open_ws(struct fixture *f)
{
    int fd = peer_new(f);
    say(f, fd, UPGRADE "\r\n");
    assert_int_equal(status_of(hear(fd)), 101);
    assert_non_null(seen.conn);
    return fd;
}

static size_t frame(char *out, unsigned opcode, bool fin, const void *data, size_t len)
{
    size_t n = ws_frame_head((uint8_t *)out, (enum ws_opcode)opcode, fin, len, key);
    if (len > 0)
        memcpy(out + n, data, len);
    ws_mask(out + n, len, key, 0);
    return n + len;
}

static void say_frame(struct fixture *f, int fd, unsigned opcode, const char *text)
{
    char out[256];
    say_bytes(f, fd, out, frame(out, opcode, true, text, strlen(text)));
}

static void assert_hears(int fd, const void *bytes, size_t len)
{
    size_t n;
    const char *got = hear_bytes(fd, &n, NULL);
    assert_int_equal(n, len);
    assert_memory_equal(got, bytes, len);
}
#define ASSERT_HEARS(fd, bytes) assert_hears(fd, bytes, sizeof(bytes) - 1)

static void an_upgrade_is_answered_without_extensions(void **state)
{
    struct fixture f;
    const struct ws_opts opts = {.protocol = "mcp"};
    start(&f, &opts);
    int fd = peer_new(&f);

    say(&f, fd, UPGRADE DEFLATE "X-Request-Id: r1\r\nSec-WebSocket-Protocol: a, mcp\r\n\r\n");
    assert_string_equal(hear(fd), "HTTP/1.1 101 Switching Protocols\r\n"
                                  "Upgrade: websocket\r\n"
                                  "Connection: Upgrade\r\n"
                                  "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
                                  "Sec-WebSocket-Protocol: mcp\r\n"
                                  "X-Request-Id: r1\r\n\r\n");
    assert_int_equal(http_server_count(f.server), 1);
    (void)close(fd);
    pump(&f);
    assert_int_equal(seen.closes, 1);
    assert_int_equal(seen.code, 1006);
    assert_int_equal(http_server_count(f.server), 0);
    fd = peer_new(&f);
    say(&f, fd, UPGRADE "\r\n");
    assert_null(strstr(hear(fd), "Protocol:"));
    stop(&f, fd);
    assert_int_equal(seen.closes, 2);
    assert_int_equal(seen.code, 1001);
}

static void bad_upgrades_are_refused(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
        const char *header;
    } rows[] = {
        {"GET /ws HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""},
        {"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
         "Sec-WebSocket-Version: 12\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         426, "Sec-WebSocket-Version: 13\r\n"},
        {"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n",
         400, ""},
        {"POST /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         405, "Allow: GET,HEAD\r\n"},
        {"HEAD /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
         405, "Allow: GET\r\n"},
        {UPGRADE "Origin: http://evil\r\n\r\n", 403, ""},
    };
    struct fixture f;
    start(&f, NULL);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int fd = peer_new(&f);
        say(&f, fd, rows[i].text);
        const char *text = hear(fd);
        assert_int_equal(status_of(text), rows[i].status);
        assert_non_null(strstr(text, rows[i].header));
        (void)close(fd);
    }
    assert_null(seen.conn);
    stop(&f, -1);
}

static void messages_go_both_ways(void **state)
{
    struct fixture f;
    start(&f, NULL);
    seen.echo = true;
    int fd = open_ws(&f);

    say_frame(&f, fd, WS_TEXT, "hello");
    ASSERT_HEARS(fd, "\x81\x05hello");
    say_frame(&f, fd, WS_BINARY, "\xff");
    ASSERT_HEARS(fd, "\x82\x01\xff");
    assert_string_equal(buf_str(&seen.log), "T:hello B:\xff ");
    stop(&f, fd);
}

static void frames_may_come_with_the_handshake(void **state)
{
    char text[512];
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);

    int n = snprintf(text, sizeof(text), "%s\r\n", UPGRADE);
    size_t len = (size_t)n + frame(text + n, WS_TEXT, true, "early", 5);
    len += frame(text + len, WS_TEXT, true, "bird", 4);
    say_bytes(&f, fd, text, len);
    assert_string_equal(buf_str(&seen.log), "T:early T:bird ");
    say_frame(&f, fd, WS_TEXT, "late");
    assert_string_equal(buf_str(&seen.log), "T:early T:bird T:late ");
    stop(&f, fd);
}

static void large_messages_are_echoed(void **state)
{
    const size_t size = 3 * 1024 * 1024;
    struct fixture f;
    start(&f, NULL);
    seen.echo = true;
    int fd = open_ws(&f);
    char *out = malloc(size + WS_FRAME_HEAD_MAX);
    char *data = malloc(size);
    size_t sent = 0, got = 0;

    memset(data, 'x', size);
    size_t len = frame(out, WS_TEXT, true, data, size);
    buf_done(&seen.log);
    buf_init(&seen.log, 0); /* the log is not what is tested here */
    while (got < size + 10) {
        if (sent < len) {
            ssize_t n = send(fd, out + sent, len - sent, MSG_NOSIGNAL);
            sent += n > 0 ? (size_t)n : 0;
        }
        pump(&f);
        size_t n;
        (void)hear_bytes(fd, &n, NULL);
        got += n;
    }
    assert_int_equal(got, size + 10);
    free(out);
    free(data);
    stop(&f, fd);
}

static void pings_are_answered(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);

    say_frame(&f, fd, WS_PING, "are you there");
    ASSERT_HEARS(fd, "\x8a\x0d"
                     "are you there");
    say_frame(&f, fd, WS_PONG, "unasked");
    ASSERT_HEARS(fd, "");
    assert_string_equal(buf_str(&seen.log), "");
    stop(&f, fd);
}

static void a_flood_of_pings_costs_no_memory(void **state)
{
    char burst[64 * 131];
    char payload[125];
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);
    size_t len = 0;

    memset(payload, 'p', sizeof(payload));
    for (int i = 0; i < 64; i++)
        len += frame(burst + len, WS_PING, true, payload, sizeof(payload));
    for (int i = 0; i < 500; i++)
        say_bytes(&f, fd, burst, len); /* never reads an answer */
    assert_in_range(stream_queued(&seen.conn->stream), 0, 2 * 127);
    assert_int_equal(seen.closes, 0);
    /* The last ping is answered once there is room again. */
    say_frame(&f, fd, WS_PING, "last");
    for (int i = 0; i < 100; i++) {
        size_t n;
        const char *text = hear_bytes(fd, &n, NULL);
        pump(&f);
        if (n >= 6 && memcmp(text + n - 6, "\x8a\x04last", 6) == 0) {
            stop(&f, fd);
            return;
        }
    }
    fail_msg("the last ping was not answered");
}

static void closing_is_a_handshake(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);

    /* Theirs first. */
    say_frame(&f, fd, WS_CLOSE,
              "\x0f\xa0"
              "done");
    ASSERT_HEARS(fd, "\x88\x02\x0f\xa0");
    assert_int_equal(seen.closes, 1);
    assert_int_equal(seen.code, 4000);
    assert_string_equal(seen.reason, "done");
    assert_true(is_closed(fd));
    (void)close(fd);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 0);

    /* Ours first. */
    fd = open_ws(&f);
    ws_close(seen.conn, 1000, "bye");
    assert_int_equal(ws_send(seen.conn, WS_TEXT, "x", 1), -EPIPE);
    ws_close(seen.conn, 1001, "twice");
    pump(&f);
    ASSERT_HEARS(fd, "\x88\x05\x03\xe8"
                     "bye");
    say_frame(&f, fd, WS_TEXT, "still on its way");
    assert_int_equal(seen.closes, 1);
    say_frame(&f, fd, WS_CLOSE, "\x03\xe8");
    assert_int_equal(seen.closes, 2);
    assert_int_equal(seen.code, 1000);
    assert_string_equal(buf_str(&seen.log), "");
    (void)close(fd);

    /* Ours, and nobody answers. */
    fd = open_ws(&f);
    ws_close(seen.conn, 1000, NULL);
    pass(&f, 4 * NSEC_PER_SEC);
    assert_int_equal(seen.closes, 2);
    pass(&f, 2 * NSEC_PER_SEC);
    assert_int_equal(seen.closes, 3);
    assert_int_equal(seen.code, 1006);
    stop(&f, fd);
}

static void violations_are_answered_with_their_code(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        unsigned code;
    } rows[] = {
        {"\x81\x01x", 3, 1002},
        {"\xc1\x81\0\0\0\0x", 7, 1002},
        {"\x80\x80\0\0\0\0", 6, 1002},
        {"\x88\x81\0\0\0\0x", 7, 1002},
        {"\x89\xfe\x00\x7e\0\0\0\0", 8, 1002},
        {"\x81\x81\0\0\0\0\xff", 7, 1007},
        {"\x82\xff\0\0\0\0\x01\0\0\x01\0\0\0\0", 14, 1009},
    };
    struct fixture f;
    start(&f, NULL);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        int fd = open_ws(&f);
        bool eof;
        size_t n;
        say_bytes(&f, fd, rows[i].bytes, rows[i].len);
        const char *text = hear_bytes(fd, &n, &eof);
        assert_int_equal(n, 4);
        assert_int_equal((uint8_t)text[0], 0x88);
        assert_int_equal((uint8_t)text[2] << 8 | (uint8_t)text[3], rows[i].code);
        assert_true(eof);
        assert_int_equal(seen.code, rows[i].code);
        assert_int_equal(seen.closes, i + 1);
        /* It goes on sending: thrown away, and not for ever. */
        say(&f, fd, "more and more");
        pass(&f, 3 * NSEC_PER_SEC);
        assert_int_equal(http_server_count(f.server), 0);
        (void)close(fd);
    }
    stop(&f, -1);
}

static void a_paused_connection_holds_its_peer_back(void **state)
{
    char out[64];
    static char big[65536 + 16];
    static char data[65536];
    struct fixture f;
    start(&f, NULL);
    seen.pause = true;
    int fd = open_ws(&f);
    size_t len = frame(out, WS_TEXT, true, "1", 1);
    int sent = 0;

    len += frame(out + len, WS_TEXT, true, "2", 1);
    len += frame(out + len, WS_TEXT, true, "3", 1);
    say_bytes(&f, fd, out, len);
    assert_string_equal(buf_str(&seen.log), "T:1 ");
    ws_pause(seen.conn, false);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "T:1 T:2 ");
    len = frame(big, WS_BINARY, true, data, sizeof(data));
    while (send(fd, big, len, MSG_NOSIGNAL) == (ssize_t)len && sent < 1000) {
        pump(&f);
        sent++;
    }
    assert_in_range(sent, 1, 100);
    pass(&f, 3600 * NSEC_PER_SEC); /* and is not punished for it */
    assert_int_equal(seen.closes, 0);
    seen.pause = false;
    ws_pause(seen.conn, false);
    pump(&f);
    assert_non_null(strstr(buf_str(&seen.log), "T:3 "));
    stop(&f, fd);
}

static void what_a_peer_sent_before_it_left_is_read_after_a_pause(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);

    ws_pause(seen.conn, true);
    say_frame(&f, fd, WS_TEXT, "last words");
    (void)close(fd);
    pump(&f);
    assert_int_equal(seen.closes, 0);
    assert_int_equal(ws_send(seen.conn, WS_TEXT, "x", 1), -EPIPE);
    ws_pause(seen.conn, false);
    pump(&f);
    assert_string_equal(buf_str(&seen.log), "T:last words ");
    assert_int_equal(seen.closes, 1);
    stop(&f, -1);
}

static void a_slow_reader_is_told_apart_from_a_dead_one(void **state)
{
    static char data[65536];
    const struct ws_opts opts = {.max_queue = 1024 * 1024};
    struct fixture f;
    int r;
    start(&f, &opts);
    int fd = open_ws(&f);
    size_t total = 0;

    while ((r = ws_send(seen.conn, WS_BINARY, data, sizeof(data))) == 0)
        total += sizeof(data) + 10;
    assert_int_equal(r, -ENOBUFS);
    assert_true(ws_full(seen.conn));
    assert_in_range(stream_queued(&seen.conn->stream), 900 * 1024, 1024 * 1024);
    for (size_t got = 0; got < total;) {
        size_t n;
        pass(&f, NSEC_PER_SEC);
        (void)hear_bytes(fd, &n, NULL);
        got += n;
    }
    pump(&f);
    assert_int_equal(seen.writables, 1);
    assert_int_equal(stream_queued(&seen.conn->stream), 0);

    while (ws_send(seen.conn, WS_BINARY, data, sizeof(data)) == 0)
        ;
    pass(&f, 31 * NSEC_PER_SEC);
    assert_int_equal(seen.closes, 1);
    assert_int_equal(seen.code, 1006);
    stop(&f, fd);
}

/* A peer over TCP: our end of it, not blocking, with a small window. */
static int tcp_peer(struct fixture *f)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int small = 4096;
    AUTO_CLOSE int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(accepted >= 0);
    assert_int_equal(http_server_adopt(f->server, accepted, &f->err), 0);
    assert_int_equal(fd_set_nonblock(fd, true), 0);
    return fd;
}

static void what_the_other_side_has_is_known(void **state)
{
    static char data[1 << 20];
    struct fixture f;
    start(&f, NULL);
    int fd = tcp_peer(&f);

    say(&f, fd, UPGRADE "\r\n");
    while (status_of(hear(fd)) != 101)
        pump(&f);
    uint64_t before = ws_written(seen.conn);
    assert_int_equal(ws_send(seen.conn, WS_BINARY, data, sizeof(data)), 0);
    assert_int_equal(ws_written(seen.conn), before + sizeof(data) + 10);
    assert_true(ws_acked(seen.conn) < ws_written(seen.conn)); /* nobody reads */
    while (ws_acked(seen.conn) < ws_written(seen.conn)) {     /* bounded by the test's own end */
        (void)hear(fd);
        pump(&f);
    }
    assert_int_equal(ws_acked(seen.conn), ws_written(seen.conn));
    stop(&f, fd);
}

static void on_a_unix_socket_what_was_taken_has_arrived(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);

    assert_int_equal(ws_send(seen.conn, WS_TEXT, "unread", 6), 0);
    assert_int_equal(ws_acked(seen.conn), ws_written(seen.conn));
    stop(&f, fd);
}

static void a_silent_peer_is_pinged_and_dropped(void **state)
{
    const struct ws_opts opts = {.ping_ns = 30 * NSEC_PER_SEC, .pong_ns = 15 * NSEC_PER_SEC};
    struct fixture f;
    start(&f, &opts);
    int fd = open_ws(&f);

    pass(&f, 20 * NSEC_PER_SEC);
    say_frame(&f, fd, WS_TEXT, "x");
    pass(&f, 20 * NSEC_PER_SEC);
    ASSERT_HEARS(fd, "");
    pass(&f, 10 * NSEC_PER_SEC);
    ASSERT_HEARS(fd, "\x89\x00");
    pass(&f, 14 * NSEC_PER_SEC);
    say_frame(&f, fd, WS_PONG, "");
    pass(&f, 29 * NSEC_PER_SEC);
    ASSERT_HEARS(fd, "");
    pass(&f, NSEC_PER_SEC);
    ASSERT_HEARS(fd, "\x89\x00");
    assert_int_equal(seen.closes, 0);
    pass(&f, 15 * NSEC_PER_SEC);
    assert_int_equal(seen.closes, 1);
    assert_int_equal(seen.code, 1006);
    assert_true(is_closed(fd));
    (void)close(fd);
    /* Without ping_ns a connection may be silent for as long as it likes. */
    seen.opts.ping_ns = 0;
    fd = open_ws(&f);
    pass(&f, 86400 * NSEC_PER_SEC);
    assert_int_equal(seen.closes, 1);
    stop(&f, fd);
}

static void a_message_must_keep_a_pace(void **state)
{
    char out[64];
    struct fixture f;
    start(&f, NULL);

    /* One byte every ten seconds, in the head and in the payload. */
    for (size_t begin = 0; begin < 2; begin++) {
        int fd = open_ws(&f);
        size_t len = frame(out, WS_TEXT, true, "0123456789012345678901234567890", 31);
        size_t pos = begin == 0 ? 1 : 10;
        say_bytes(&f, fd, out, pos);
        while (seen.closes == (int)begin && pos < len) {
            pass(&f, 10 * NSEC_PER_SEC);
            if (seen.closes == (int)begin)
                say_bytes(&f, fd, out + pos++, 1);
        }
        assert_int_equal(seen.closes, begin + 1);
        assert_int_equal(seen.code, 1008);
        (void)close(fd);
    }
    /* A large message at a decent pace may take its time. */
    static char big[65536 + 16];
    static char data[65536];
    memset(data, 'x', sizeof(data));
    buf_done(&seen.log);
    buf_init(&seen.log, 0);
    int fd = open_ws(&f);
    size_t len = frame(big, WS_TEXT, true, data, sizeof(data));
    for (size_t pos = 0; pos < len; pos += 1024) {
        say_bytes(&f, fd, big + pos, len - pos < 1024 ? len - pos : 1024);
        pass(&f, 29 * NSEC_PER_SEC);
    }
    assert_int_equal(seen.closes, 2);
    stop(&f, fd);
}

static void draining_closes_with_a_reason(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = open_ws(&f);

    http_server_drain(f.server, 1001, "Box runtime shutting down");
    pump(&f);
    ASSERT_HEARS(fd, "\x88\x1b\x03\xe9"
                     "Box runtime shutting down");
    say_frame(&f, fd, WS_CLOSE, "\x03\xe9");
    assert_int_equal(seen.closes, 1);
    (void)close(fd);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 0);
    stop(&f, -1);
}

static void an_idle_connection_is_cheap(void **state)
{
    enum { CONNS = 200 };
    static int fds[CONNS];
    struct fixture f;
    start(&f, NULL);
    seen.many = true;

    struct mallinfo2 before = mallinfo2();
    for (size_t i = 0; i < CONNS; i++) {
        fds[i] = open_ws(&f);
        say_frame(&f, fds[i], WS_TEXT, "x");
    }
    struct mallinfo2 after = mallinfo2();
    /* Sanitizers keep their own books; then this measures nothing and says nothing. */
    if (after.uordblks > before.uordblks)
        assert_in_range((after.uordblks - before.uordblks) / CONNS, 1, 1200);
    for (size_t i = 0; i < CONNS; i++)
        (void)close(fds[i]);
    pump(&f);
    stop(&f, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_upgrade_is_answered_without_extensions),
        cmocka_unit_test(bad_upgrades_are_refused),
        cmocka_unit_test(messages_go_both_ways),
        cmocka_unit_test(frames_may_come_with_the_handshake),
        cmocka_unit_test(large_messages_are_echoed),
        cmocka_unit_test(pings_are_answered),
        cmocka_unit_test(a_flood_of_pings_costs_no_memory),
        cmocka_unit_test(closing_is_a_handshake),
        cmocka_unit_test(violations_are_answered_with_their_code),
        cmocka_unit_test(a_paused_connection_holds_its_peer_back),
        cmocka_unit_test(what_a_peer_sent_before_it_left_is_read_after_a_pause),
        cmocka_unit_test(a_slow_reader_is_told_apart_from_a_dead_one),
        cmocka_unit_test(what_the_other_side_has_is_known),
        cmocka_unit_test(on_a_unix_socket_what_was_taken_has_arrived),
        cmocka_unit_test(a_silent_peer_is_pinged_and_dropped),
        cmocka_unit_test(a_message_must_keep_a_pace),
        cmocka_unit_test(draining_closes_with_a_reason),
        cmocka_unit_test(an_idle_connection_is_cheap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
