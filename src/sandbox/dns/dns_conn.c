/* SPDX-License-Identifier: Apache-2.0 */

/* A client's TCP connection: one question at a time, each with its length in front.
 *
 *   READING ──whole question──► WAITING ──answer──► WRITING ──all of it──► READING
 *   any ──end, error, silence──► closed */

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sandbox/dns/dns_internal.h"

#define QUESTIONS_MAX 64 /* of one connection */
#define ACCEPTS_PER_TURN 16

enum conn_state { CONN_READING, CONN_WAITING, CONN_WRITING };

struct dns_conn {
    struct dns *dns; /* borrowed */
    struct dns_client client;
    enum conn_state state;
    unsigned questions;
    int fd; /* owned */
    struct loop_io io;
    struct loop_timer timer;
    struct buf in, out;
    struct dns_conn *prev, *next;
};

static void conn_free(struct dns_conn *c)
{
    dns_flight_cancel(c->dns, NULL, c);
    loop_io_stop(&c->io);
    loop_timer_stop(&c->timer);
    (void)close(c->fd);
    buf_done(&c->in);
    buf_done(&c->out);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->dns->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    c->dns->n_conns--;
    free(c);
}

void dns_conn_close_all(struct dns *dns, const struct dns_listener *listener)
{
    for (struct dns_conn *c = dns->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (listener == NULL || c->client.listener == listener)
            conn_free(c);
    }
}

static void on_silence(struct loop_timer *t)
{
    conn_free(container_of(t, struct dns_conn, timer));
}

/* The client has this long for each step; the servers have their own time while we wait. */
static void conn_patience(struct dns_conn *c)
{
    loop_timer_start(c->dns->loop, &c->timer, c->dns->options.idle_ms * NSEC_PER_MSEC, on_silence);
}

/* While an answer is being fetched nothing more is read: the client is held back by its socket. */
static int conn_wait(struct dns_conn *c, size_t len)
{
    c->state = CONN_WAITING;
    loop_timer_stop(&c->timer);
    int r = loop_io_events(&c->io, 0);
    if (r < 0 || ++c->questions > QUESTIONS_MAX)
        return -ECONNABORTED;
    uint64_t before = c->dns->stats.malformed;
    dns_ask(c->dns, &c->client, (const uint8_t *)c->in.data + 2, len);
    /* Not worth an answer: then there is nothing to wait for. */
    if (c->state == CONN_WAITING && c->dns->stats.malformed != before)
        return -EBADMSG;
    return 0;
}

static int conn_read(struct dns_conn *c)
{
    for (;;) {
        const uint8_t *data = (const uint8_t *)c->in.data;
        size_t want = 2;

        if (c->in.len >= 2) {
            size_t len = (size_t)(data[0] << 8 | data[1]);
            if (len < DNS_HEADER || len > DNS_QUERY_MAX)
                return -EBADMSG;
            want += len;
            if (c->in.len == want)
                return conn_wait(c, len);
        }
        int r = buf_reserve(&c->in, want - c->in.len);
        if (r < 0)
            return r;
        ssize_t n = recv(c->fd, c->in.data + c->in.len, want - c->in.len, MSG_DONTWAIT);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        c->in.len += (size_t)n;
    }
}

static int conn_write(struct dns_conn *c)
{
    while (c->out.len > 0) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        buf_consume(&c->out, (size_t)n);
    }
    c->state = CONN_READING;
    buf_reset(&c->in);
    conn_patience(c);
    return loop_io_events(&c->io, EPOLLIN);
}

static void on_conn(struct loop_io *io, uint32_t events)
{
    struct dns_conn *c = container_of(io, struct dns_conn, io);
    int r;

    if (c->state == CONN_READING)
        r = conn_read(c);
    else if (c->state == CONN_WRITING)
        r = conn_write(c);
    else
        r = -ECONNRESET; /* gone, and not waiting for the answer */
    if (r < 0)
        conn_free(c);
}

/* Called while a question is judged or when a flight ends; never frees the connection. */
void dns_conn_reply(struct dns_conn *conn, const uint8_t *data, size_t len)
{
    const uint8_t head[2] = {(uint8_t)(len >> 8), (uint8_t)len};

    buf_reset(&conn->out);
    conn->state = CONN_WRITING;
    conn_patience(conn);
    /* Should either fail, the connection is closed when its time is up. */
    if (buf_append(&conn->out, head, sizeof(head)) == 0 && buf_append(&conn->out, data, len) == 0)
        (void)loop_io_events(&conn->io, EPOLLOUT);
}

static unsigned conn_count(const struct dns *dns, const struct dns_listener *listener)
{
    unsigned n = 0;

    for (const struct dns_conn *c = dns->conns; c != NULL; c = c->next)
        n += c->client.listener == listener;
    return n;
}

static void conn_new(struct dns_listener *l, int fd, const struct dns_client *client)
{
    struct dns *d = l->dns;
    struct dns_conn *c = xnew(struct dns_conn);

    c->dns = d;
    c->client = *client;
    c->client.conn = c;
    c->fd = fd;
    buf_init(&c->in, 2 + DNS_QUERY_MAX);
    buf_init(&c->out, 2 + DNS_TCP_MAX);
    c->next = d->conns;
    if (c->next != NULL)
        c->next->prev = c;
    d->conns = c;
    d->n_conns++;
    conn_patience(c);
    if (loop_io_start(d->loop, &c->io, fd, EPOLLIN, on_conn) < 0)
        conn_free(c);
}

int dns_conn_accept(struct dns_listener *listener)
{
    struct dns *d = listener->dns;

    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct dns_client client = {.listener = listener, .addr_len = sizeof(client.addr)};
        int fd = accept4(listener->tcp, (struct sockaddr *)&client.addr, &client.addr_len,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : 0;
        if (d->n_conns >= d->options.conns ||
            conn_count(d, listener) >= d->options.listener_conns) {
            d->stats.refused_rate++;
            (void)close(fd);
            continue;
        }
        conn_new(listener, fd, &client);
    }
    return 0;
}
