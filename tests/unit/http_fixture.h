/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A server on a loop whose clock the test moves by hand. Peers are plain descriptors. Bytes over a
 * socket pair arrive at once, so "run until nothing happens" needs no sleeping. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/codec/http1.h"
#include "http/server/server.h"
#include "loop/loop.h"

struct fixture {
    uint64_t now_ns;
    struct clock clock;
    struct loop *loop;
    struct http_server *server;
    struct err err;
};

static inline uint64_t fixture_now(void *arg)
{
    return ((struct fixture *)arg)->now_ns;
}

static inline void fixture_start(struct fixture *f, const struct http_server_opts *opts,
                                 const struct http_route *routes, void *arg)
{
    *f = (struct fixture){.now_ns = 1000 * NSEC_PER_SEC};
    f->clock = (struct clock){fixture_now, fixture_now, fixture_now, f};
    assert_int_equal(loop_new(&f->clock, &f->loop, &f->err), 0);
    assert_int_equal(http_server_new(f->loop, opts, &f->server, &f->err), 0);
    assert_int_equal(http_server_add_routes(f->server, routes, arg, &f->err), 0);
}

static inline void fixture_stop(struct fixture *f)
{
    http_server_free(f->server);
    loop_free(f->loop);
}

/* Runs the loop until nothing is left to do. */
static inline void pump(struct fixture *f)
{
    for (int i = 0; i < 10000; i++)
        if (loop_turn(f->loop, 0) == 0)
            return;
    fail_msg("the loop does not come to rest");
}

static inline void pass(struct fixture *f, uint64_t ns)
{
    f->now_ns += ns;
    pump(f);
}

/* A peer of the server: our end of a socket pair, not blocking. */
static inline int peer_new(struct fixture *f)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(http_server_adopt(f->server, fds[1], &f->err), 0);
    return fds[0];
}

static inline void say_bytes(struct fixture *f, int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
    pump(f);
}

static inline void say(struct fixture *f, int fd, const char *text)
{
    say_bytes(f, fd, text, strlen(text));
}

/* What has arrived, NUL-terminated, in static memory; *ret_eof when the peer closed. */
static inline char *hear_bytes(int fd, size_t *ret_len, bool *ret_eof)
{
    static char text[1 << 20];
    size_t len = 0;
    ssize_t n = -1;

    while (len < sizeof(text) - 1) {
        n = recv(fd, text + len, sizeof(text) - 1 - len, MSG_DONTWAIT);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    if (ret_eof != NULL)
        *ret_eof = n == 0 || (n < 0 && errno == ECONNRESET);
    if (ret_len != NULL)
        *ret_len = len;
    text[len] = '\0';
    return text;
}

static inline char *hear(int fd)
{
    return hear_bytes(fd, NULL, NULL);
}

static inline bool is_closed(int fd)
{
    bool eof;
    (void)hear_bytes(fd, NULL, &eof);
    return eof;
}

/* Status of the first answer in a text; 0 when there is none. */
static inline unsigned status_of(const char *text)
{
    if (strncmp(text, "HTTP/1.1 ", 9) != 0)
        return 0;
    return (unsigned)((text[9] - '0') * 100 + (text[10] - '0') * 10 + (text[11] - '0'));
}

/* What follows the first empty line. */
static inline const char *body_of(const char *text)
{
    const char *end = strstr(text, "\r\n\r\n");
    return end != NULL ? end + 4 : "";
}

static inline size_t count_open_fds(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}
