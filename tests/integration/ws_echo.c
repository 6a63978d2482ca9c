/* SPDX-License-Identifier: Apache-2.0 */

/* usage: ws_echo SOCKET
 *
 * Sends every WebSocket message back, through the server's own code. Prints "ready" when it
 * listens; ends when stdin does. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "http/server/server.h"
#include "loop/loop.h"

static struct loop *loop;

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    (void)ws_send(c, opcode, data, len);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
}

static void echo(struct http_request *req, void *arg)
{
    static const struct ws_handlers handlers = {.message = on_message, .closed = on_closed};
    static const struct ws_opts opts = {0};
    struct ws_conn *c;
    struct err err = {0};
    (void)http_upgrade_ws(req, &opts, &handlers, arg, &c, &err);
}

static void on_stdin(struct loop_io *io, uint32_t events)
{
    char byte;
    if (read(STDIN_FILENO, &byte, 1) <= 0)
        loop_quit(loop);
}

int main(int argc, char **argv)
{
    static const struct http_route routes[] = {{"GET", "/echo", echo, HTTP_ROUTE_OPEN, 0}, {0}};
    static const struct http_server_opts opts = {0};
    struct http_server *server = NULL;
    struct loop_io in = {0};
    struct err err = {0};
    if (argc != 2 || loop_new(&clock_system, &loop, &err) < 0 ||
        http_server_new(loop, &opts, &server, &err) < 0 ||
        http_server_add_routes(server, routes, NULL, &err) < 0 ||
        http_server_listen_unix(server, argv[1], 0600, &err) < 0 ||
        loop_io_start(loop, &in, STDIN_FILENO, EPOLLIN, on_stdin) < 0) {
        (void)fprintf(stderr, "ws_echo: %s\n", err.msg);
        return 1;
    }
    (void)puts("ready");
    (void)fflush(stdout);
    int r = loop_run(loop, &err);
    loop_io_stop(&in);
    http_server_free(server);
    loop_free(loop);
    return r < 0;
}
