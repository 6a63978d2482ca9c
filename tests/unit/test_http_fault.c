/* SPDX-License-Identifier: Apache-2.0 */

/* Whole conversations, again and again, with the nth send failing: whatever happens, each side is
 * told exactly once and nothing is left behind. */

#include "http_fixture.h"

#include "http/client/client.h"
#include "lib/fault.h"

static char dir[64];
static char path[96];
static char endpoint[128];

static struct {
    int dones, opens, client_closes, server_opens, server_closes;
    bool ok;
    size_t body;
    size_t echoed;
    struct ws_conn *ws;
} seen;

static void get_pieces(struct http_request *req, void *arg)
{
    static const char piece[1000];

    http_reply_start(req, 200, NULL);
    for (int i = 0; i < 5; i++)
        (void)http_reply_chunk(req, piece, sizeof(piece));
    http_reply_end(req);
}

static void server_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                           void *arg)
{
    (void)ws_send(c, opcode, data, len);
}

static void server_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    seen.server_closes++;
}

static const struct ws_handlers server_handlers = {server_message, NULL, server_closed};

static void get_ws(struct http_request *req, void *arg)
{
    struct ws_conn *c;
    struct err err;
    seen.server_opens += http_upgrade_ws(req, NULL, &server_handlers, NULL, &c, &err) == 0;
}

static const struct http_route routes[] = {
    {"GET", "/pieces", get_pieces, 0, 0},
    {"GET", "/ws", get_ws, 0, 0},
    {0},
};

static void on_body(struct http_call *call, const char *data, size_t len, void *arg)
{
    seen.body += len;
}

static void on_done(struct http_call *call, const struct err *err, void *arg)
{
    seen.dones++;
    seen.ok = err == NULL;
}

static const struct http_call_handlers handlers = {NULL, on_body, NULL, on_done};

static void client_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                           void *arg)
{
    seen.echoed += len;
    ws_close(c, 1000, NULL);
}

static void client_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    seen.client_closes++;
    seen.ws = NULL;
}

static const struct ws_handlers client_handlers = {client_message, NULL, client_closed};

static void on_opened(struct ws_conn *c, const struct err *err, void *arg)
{
    seen.opens++;
    seen.ws = c;
    if (c != NULL)
        (void)ws_send(c, WS_TEXT, "hello", 5);
}

/* One call and one WebSocket, from connect to close. */
static void converse(struct fixture *f)
{
    const struct http_call_opts opts = {.target = "/pieces"};
    const struct http_ws_call ws = {
        .target = "/ws", .handlers = &client_handlers, .opened = on_opened};
    struct http_client *c = NULL;

    memset(&seen, 0, sizeof(seen));
    assert_int_equal(http_client_new(f->loop, endpoint, &c, &f->err), 0);
    assert_int_equal(http_client_call(c, &opts, &handlers, NULL, NULL, &f->err), 0);
    pump(f);
    assert_int_equal(http_client_ws(c, &ws, &f->err), 0);
    pump(f);
    for (int i = 0; i < 12; i++)
        pass(f, 3 * NSEC_PER_SEC);
    assert_int_equal(seen.dones, 1);
    assert_int_equal(seen.opens, 1);
    assert_null(seen.ws);
    assert_int_equal(seen.server_opens, seen.server_closes);
    http_client_free(c);
    pass(f, 70 * NSEC_PER_SEC);
    assert_int_equal(http_server_count(f->server), 0);
}

static void start(struct fixture *f)
{
    (void)str_copy(dir, sizeof(dir), "/tmp/box-fault-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(str_fmt(path, sizeof(path), "%s/s", dir), 0);
    assert_int_equal(str_fmt(endpoint, sizeof(endpoint), "unix://%s", path), 0);
    fixture_start(f, NULL, routes, NULL);
    assert_int_equal(http_server_listen_unix(f->server, path, 0, &f->err), 0);
}

static void stop(struct fixture *f)
{
    fixture_stop(f);
    assert_int_equal(rmdir(dir), 0);
}

static void a_send_that_must_wait_changes_nothing(void **state)
{
    static const int errors[] = {EAGAIN, EINTR};
    struct fixture f;
    start(&f);

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        long nth = 1;
        for (; fault_next(FAULT_SENDMSG, nth, errors[i]); nth++) {
            converse(&f);
            assert_true(seen.ok);
            assert_int_equal(seen.body, 5000);
            assert_int_equal(seen.echoed, 5);
            assert_int_equal(seen.client_closes, 1);
            assert_int_equal(seen.server_opens, 1);
        }
        assert_in_range(nth, 8, 100);
    }
    stop(&f);
}

static void a_send_that_fails_ends_one_connection(void **state)
{
    static const int errors[] = {EPIPE, ECONNRESET, ENOMEM};
    struct fixture f;
    start(&f);

    for (size_t i = 0; i < ARRAY_SIZE(errors); i++)
        for (long nth = 1; fault_next(FAULT_SENDMSG, nth, errors[i]); nth++)
            converse(&f);
    fault_reset();
    converse(&f);
    assert_true(seen.ok);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_send_that_must_wait_changes_nothing),
        cmocka_unit_test(a_send_that_fails_ends_one_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
