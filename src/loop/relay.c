/* SPDX-License-Identifier: Apache-2.0 */

/* Copies bytes between two sockets, and accepts the clients of a third. What was read is written at
 * once; only what the other side does not take is kept, and nothing more is read from this side
 * until that is gone. */

#include "loop/relay.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"

#define READS_PER_TURN 4 /* then other connections get theirs */
#define ACCEPTS_PER_TURN 16
#define ACCEPT_PAUSE_NS (20ULL * 1000000ULL) /* without room, or without a descriptor */

struct relay_side {
    struct relay *relay;
    struct relay_side *other;
    struct loop_io io;
    int fd;     /* owned */
    bool eof;   /* it sends no more */
    bool shut;  /* nothing more is sent to it */
    char *rest; /* owned; bytes for it that it has not taken yet; NULL: none */
    size_t rest_pos, rest_len;
};

struct relay {
    struct loop *loop; /* borrowed */
    struct relay_side sides[2];
    struct loop_timer timer;
    struct loop_defer defer;
    uint64_t moved; /* when a byte moved last */
    bool over;
    void (*ended)(void *arg);
    void *arg;
};

static void on_side(struct loop_io *io, uint32_t events);

static void on_ended(struct loop_defer *d)
{
    struct relay *r = container_of(d, struct relay, defer);
    r->ended(r->arg);
}

/* The rest is for relay_free(). */
static void relay_end(struct relay *r)
{
    if (r->over)
        return;
    r->over = true;
    loop_timer_stop(&r->timer);
    for (int i = 0; i < 2; i++) {
        loop_io_stop(&r->sides[i].io);
        fd_close_many(&r->sides[i].fd, 1);
    }
    loop_defer_start(r->loop, &r->defer, on_ended);
}

/* What is not wanted is not watched: a socket that was hung up would wake us without end. */
static void side_watch(struct relay_side *s)
{
    uint32_t want = (!s->eof && s->other->rest == NULL && !s->other->shut ? EPOLLIN : 0U) |
                    (s->rest != NULL ? EPOLLOUT : 0U);
    int r = 0;
    if (s->relay->over)
        return;
    if (want == 0)
        loop_io_stop(&s->io);
    else if (s->io.loop == NULL)
        r = loop_io_start(s->relay->loop, &s->io, s->fd, want, on_side);
    else
        r = loop_io_events(&s->io, want);
    if (r < 0)
        relay_end(s->relay);
}

static void on_stall(struct loop_timer *t);

/* Passes the end of input on, finds the end of all, and sets what is waited for. */
static void relay_settle(struct relay *r)
{
    bool stalls = false;
    if (r->over)
        return;
    for (int i = 0; i < 2; i++) {
        struct relay_side *s = &r->sides[i];
        if (s->eof && s->other->rest == NULL && !s->other->shut) {
            s->other->shut = true;
            (void)shutdown(s->other->fd, SHUT_WR);
        }
        stalls = stalls || s->eof || s->rest != NULL;
    }
    if (r->sides[0].shut && r->sides[1].shut) {
        relay_end(r);
        return;
    }
    for (int i = 0; i < 2; i++)
        side_watch(&r->sides[i]);
    if (stalls && !r->over && r->timer.loop == NULL)
        loop_timer_start(r->loop, &r->timer, RELAY_STALL_NS, on_stall);
    else if (!stalls)
        loop_timer_stop(&r->timer);
}

static void on_stall(struct loop_timer *t)
{
    struct relay *r = container_of(t, struct relay, timer);
    uint64_t now = loop_now(r->loop);
    if (now >= r->moved + RELAY_STALL_NS)
        relay_end(r);
    else
        loop_timer_start(r->loop, &r->timer, r->moved + RELAY_STALL_NS - now, on_stall);
}

/* How many bytes the side took; negative: it is lost. */
static ssize_t side_send(struct relay_side *s, const char *data, size_t len)
{
    ssize_t n;
    do
        n = send(s->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? 0 : -errno;
    s->relay->moved = loop_now(s->relay->loop);
    return n;
}

static int side_flush(struct relay_side *s)
{
    if (s->rest == NULL)
        return 0;
    ssize_t n = side_send(s, s->rest + s->rest_pos, s->rest_len - s->rest_pos);
    if (n < 0)
        return (int)n;
    s->rest_pos += (size_t)n;
    if (s->rest_pos == s->rest_len) {
        free(s->rest);
        s->rest = NULL;
    }
    return 0;
}

/* 1: there may be more. 0: not now. Negative: the connection is lost. */
static int side_read(struct relay_side *s)
{
    static char scratch[RELAY_CHUNK]; /* of all relays: it is empty again when we return */
    struct relay_side *to = s->other;
    ssize_t n;
    do
        n = recv(s->fd, scratch, sizeof(scratch), MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? 0 : -errno;
    if (n == 0) {
        s->eof = true;
        return 0;
    }
    ssize_t sent = side_send(to, scratch, (size_t)n);
    if (sent < 0)
        return (int)sent;
    if (sent == n)
        return n == (ssize_t)sizeof(scratch);
    to->rest_pos = 0;
    to->rest_len = (size_t)(n - sent);
    to->rest = xnew_n(char, to->rest_len);
    memcpy(to->rest, scratch + sent, to->rest_len);
    return 0;
}

static void on_side(struct loop_io *io, uint32_t events)
{
    struct relay_side *s = container_of(io, struct relay_side, io);
    int r = events & (EPOLLOUT | EPOLLERR | EPOLLHUP) ? side_flush(s) : 0;
    bool reads = (events & ~(uint32_t)EPOLLOUT) != 0 && !s->eof && s->other->rest == NULL;
    for (int i = 0; r >= 0 && reads && i < READS_PER_TURN; i++) {
        r = side_read(s);
        if (r <= 0)
            break;
    }
    if (r < 0)
        relay_end(s->relay);
    else
        relay_settle(s->relay);
}

int relay_new(struct loop *loop, int a, int b, void (*ended)(void *arg), void *arg,
              struct relay **ret)
{
    struct relay *r = xnew(struct relay);
    r->loop = loop;
    r->ended = ended;
    r->arg = arg;
    r->moved = loop_now(loop);
    for (int i = 0; i < 2; i++)
        r->sides[i] =
            (struct relay_side){.relay = r, .other = &r->sides[1 - i], .fd = i == 0 ? a : b};
    int rc = fd_set_nonblock(a, true);
    if (rc >= 0)
        rc = fd_set_nonblock(b, true);
    for (int i = 0; i < 2 && rc >= 0; i++)
        rc = loop_io_start(loop, &r->sides[i].io, r->sides[i].fd, EPOLLIN, on_side);
    if (rc < 0) {
        relay_free(r);
        return rc;
    }
    *ret = r;
    return 0;
}

void relay_free(struct relay *r)
{
    if (r == NULL)
        return;
    loop_timer_stop(&r->timer);
    loop_defer_stop(&r->defer);
    for (int i = 0; i < 2; i++) {
        loop_io_stop(&r->sides[i].io);
        fd_close_many(&r->sides[i].fd, 1);
        free(r->sides[i].rest);
    }
    free(r);
}

/* Doors ---------------------------------------------------------------------------------------- */

static void on_client(struct loop_io *io, uint32_t events);

static void on_pause_over(struct loop_timer *t)
{
    struct relay_door *d = container_of(t, struct relay_door, pause);
    if (loop_io_start(d->loop, &d->io, d->fd, EPOLLIN, on_client) < 0)
        loop_timer_start(d->loop, t, ACCEPT_PAUSE_NS, on_pause_over);
}

static void door_pause(struct relay_door *d)
{
    loop_io_stop(&d->io);
    loop_timer_start(d->loop, &d->pause, ACCEPT_PAUSE_NS, on_pause_over);
}

static void on_client(struct loop_io *io, uint32_t events)
{
    struct relay_door *d = container_of(io, struct relay_door, io);
    for (int i = 0; i < ACCEPTS_PER_TURN && d->fd >= 0; i++) {
        if (!d->room(d->arg)) {
            door_pause(d);
            return;
        }
        int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            door_pause(d);
        if (fd < 0)
            return;
        int one = 1;
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        d->take(d->arg, fd);
    }
}

int relay_door_open(struct relay_door *d, int fd)
{
    int r = loop_io_start(d->loop, &d->io, fd, EPOLLIN, on_client);
    d->fd = fd;
    if (r < 0)
        relay_door_close(d);
    return r;
}

void relay_door_close(struct relay_door *d)
{
    loop_io_stop(&d->io);
    loop_timer_stop(&d->pause);
    fd_close_many(&d->fd, 1);
}
