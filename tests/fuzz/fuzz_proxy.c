/* SPDX-License-Identifier: Apache-2.0 */

/* The answer of a server in a session, as the reverse proxy passes it on. The first byte says how
 * the rest is cut into writes and what was asked for. At the end the server leaves, and so does the
 * client; nothing may be left behind. */

#include <assert.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "fuzz.h"
#include "http/proxy/proxy.h"
#include "http/server/server.h"
#include "loop/loop.h"

static struct {
    uint64_t now;
    struct loop *loop;
    struct http_proxy *proxy;
    int server; /* its end of the connection; -1: none */
} world;

static uint64_t now_ns(void *arg)
{
    return world.now;
}

static void on_ended(void *arg)
{
    http_proxy_free(world.proxy);
    world.proxy = NULL;
}

static void pass(struct http_request *req, void *arg)
{
    int fds[2];
    if (world.server >= 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0) {
        http_abort(req);
        return;
    }
    world.server = fds[0];
    world.proxy = http_proxy_new(req, &(struct http_proxy_opts){.loop = world.loop,
                                                                .fd = fds[1],
                                                                .prefix = "/p",
                                                                .path = "/x",
                                                                .host = "localhost:1",
                                                                .ended = on_ended});
}

static const struct http_route routes[] = {
    {"GET", "/p/{path}", pass, HTTP_ROUTE_STREAM | HTTP_ROUTE_BELOW, SIZE_MAX},
    {"DELETE", "/p/{path}", pass, HTTP_ROUTE_STREAM | HTTP_ROUTE_BELOW, SIZE_MAX},
    {0},
};

static void pump(void)
{
    for (int i = 0; i < 1000 && loop_turn(world.loop, 0) > 0; i++)
        ;
}

static void drain(int fd)
{
    char junk[4096];
    while (recv(fd, junk, sizeof(junk), MSG_DONTWAIT) > 0)
        ;
}

static void ask(int fd, unsigned mood)
{
    static const char *const heads[] = {
        "GET /p/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HEAD /p/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "DELETE /p/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /p/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    };
    (void)send(fd, heads[mood], strlen(heads[mood]), MSG_NOSIGNAL);
    pump();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct clock clock = {now_ns, now_ns, now_ns, NULL};
    const struct http_server_opts opts = {0};
    AUTO(loop) struct loop *loop = NULL;
    AUTO(http_server) struct http_server *server = NULL;
    struct err err;
    int fds[2];

    if (size < 2)
        return 0;
    size_t step = 1 + (size_t)(data[0] & 0x3f) * 16;
    world.now = 1000 * NSEC_PER_SEC;
    world.server = -1;
    if (loop_new(&clock, &loop, &err) < 0 || http_server_new(loop, &opts, &server, &err) < 0 ||
        http_server_add_routes(server, routes, NULL, &err) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
        return 0;
    world.loop = loop;
    if (http_server_adopt(server, fds[1], &err) == 0) {
        ask(fds[0], data[0] >> 6);
        for (size_t pos = 1; world.server >= 0 && pos < size; pos += step) {
            size_t n = size - pos < step ? size - pos : step;
            (void)send(world.server, data + pos, n, MSG_NOSIGNAL);
            pump();
            drain(fds[0]);
        }
    }
    if (world.server >= 0)
        (void)close(world.server);
    pump();
    (void)close(fds[0]);
    pump();
    world.now += 100 * NSEC_PER_SEC;
    pump();
    assert(http_server_count(server) == 0 && world.proxy == NULL);
    return 0;
}
