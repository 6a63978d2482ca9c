/* SPDX-License-Identifier: Apache-2.0 */

/* A whole connection: the first byte says how the rest is cut into writes. Handlers answer at once,
 * later, in pieces, or by an upgrade. The clock jumps between writes, so deadlines strike too. At
 * the end the peer leaves and nothing may be left behind. */

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "fuzz.h"
#include "http/server/server.h"
#include "loop/loop.h"

#define HELD_MAX 4

static struct {
    uint64_t now;
    struct http_request *held[HELD_MAX]; /* to be answered later */
    struct ws_conn *ws;
} world;

static uint64_t now_ns(void *arg)
{
    return world.now;
}

static void at_once(struct http_request *req, void *arg)
{
    size_t len;
    const char *body = http_request_body(req, &len);
    http_reply(req, 200, http_request_header(req, "Content-Type"), body, len);
}

static void later(struct http_request *req, void *arg)
{
    for (size_t i = 0; i < HELD_MAX; i++) {
        if (world.held[i] == NULL) {
            world.held[i] = req;
            return;
        }
    }
    http_abort(req);
}

static void in_pieces(struct http_request *req, void *arg)
{
    const char *id = http_request_param(req, "id");
    http_reply_start(req, 200, "text/plain");
    (void)http_reply_chunk(req, id, 1);
    (void)http_reply_chunk(req, "abc", 3);
    http_reply_end(req);
}

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    (void)ws_send(c, opcode, data, len);
    if (len == 1)
        ws_pause(c, true);
    if (len == 2)
        ws_close(c, 1000, "two");
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    assert(c == world.ws);
    world.ws = NULL;
}

static const struct ws_handlers handlers = {on_message, NULL, on_closed};

static void upgrade(struct http_request *req, void *arg)
{
    static const struct ws_opts opts = {.max_message = 4096, .ping_ns = NSEC_PER_SEC};
    struct err err;
    (void)http_upgrade_ws(req, &opts, &handlers, NULL, &world.ws, &err);
}

static const struct http_route routes[] = {
    {"GET", "/", at_once, 0, 0},         {"PUT", "/", at_once, 0, 64}, {"GET", "/l", later, 0, 0},
    {"GET", "/p/{id}", in_pieces, 0, 0}, {"GET", "/w", upgrade, 0, 0}, {0},
};

static void pump(struct loop *loop)
{
    for (int i = 0; i < 1000 && loop_turn(loop, 0) > 0; i++)
        ;
}

static void answer_held(void)
{
    for (size_t i = 0; i < HELD_MAX; i++) {
        struct http_request *req = world.held[i];
        world.held[i] = NULL;
        if (req != NULL)
            http_reply_error(req, 409, "late", "late", NULL);
    }
}

static void drain(int fd)
{
    char junk[4096];
    while (recv(fd, junk, sizeof(junk), MSG_DONTWAIT) > 0)
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct clock clock = {now_ns, now_ns, now_ns, NULL};
    const struct http_server_opts opts = {.max_head = 512};
    AUTO(loop) struct loop *loop = NULL;
    AUTO(http_server) struct http_server *server = NULL;
    struct err err;
    int fds[2];

    if (size < 2)
        return 0;
    size_t step = 1 + (size_t)(data[0] & 0x3f) * 4;
    unsigned mood = data[0] >> 6;
    world.now = 1000 * NSEC_PER_SEC;
    if (loop_new(&clock, &loop, &err) < 0 || http_server_new(loop, &opts, &server, &err) < 0 ||
        http_server_add_routes(server, routes, NULL, &err) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return 0;
    if (http_server_adopt(server, fds[1], &err) == 0) {
        for (size_t pos = 1; pos < size; pos += step) {
            size_t n = size - pos < step ? size - pos : step;
            (void)send(fds[0], data + pos, n, MSG_NOSIGNAL);
            pump(loop);
            if ((mood & 1) != 0)
                answer_held();
            if ((mood & 2) != 0)
                world.now += NSEC_PER_SEC / 2;
            if (world.ws != NULL)
                ws_pause(world.ws, false);
            drain(fds[0]);
        }
    }
    pump(loop);
    answer_held();
    pump(loop);
    (void)close(fds[0]);
    if (world.ws != NULL)
        ws_pause(world.ws, false);
    pump(loop);
    answer_held(); /* pipelined behind the first ones */
    pump(loop);
    world.now += 100 * NSEC_PER_SEC;
    pump(loop);
    assert(http_server_count(server) == 0 && world.ws == NULL);
    return 0;
}
