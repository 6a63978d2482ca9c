/* SPDX-License-Identifier: Apache-2.0 */

/* One question under way: asked of one server after the other until one has an answer.
 *
 *   ASKING (by UDP) ──answer──► done
 *   CONNECTING ──► SENDING ──► READING (by TCP) ──answer──► done
 *   any ──error, time-out──► next server, or done with SERVFAIL
 *
 * Questions that came by TCP are asked by TCP, as the client wants an answer that fits nothing
 * else. Every attempt has a new id and a new port. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "sandbox/dns/dns_internal.h"

#define ATTEMPTS_MAX 3
#define STRAYS_MAX 16 /* datagrams that are not the answer, before the attempt is given up */

enum flight_state { FLIGHT_ASKING, FLIGHT_CONNECTING, FLIGHT_SENDING, FLIGHT_READING };

struct dns_flight {
    struct dns *dns; /* borrowed */
    struct dns_client client;
    struct dns_query query;
    struct dns_servers servers; /* as they were when it began */
    enum flight_state state;
    unsigned attempt; /* counted from 1 */
    unsigned strays;
    uint16_t id;
    int fd; /* owned; -1: none */
    struct loop_io io;
    struct loop_timer timer;
    struct buf out, in; /* by TCP only */
    struct dns_flight *prev, *next;
};

static void attempt_next(struct dns_flight *f);

static void flight_disarm(struct dns_flight *f)
{
    loop_io_stop(&f->io);
    loop_timer_stop(&f->timer);
    if (f->fd >= 0)
        (void)close(f->fd);
    f->fd = -1;
}

static void flight_free(struct dns_flight *f)
{
    flight_disarm(f);
    buf_done(&f->out);
    buf_done(&f->in);
    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        f->dns->flights = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    f->dns->n_flights--;
    free(f);
}

static void flight_fail(struct dns_flight *f)
{
    uint8_t out[DNS_FORWARD_MAX];
    size_t len = dns_error_write(&f->query, DNS_SERVFAIL, false, out);

    f->dns->stats.failed++;
    dns_reply(f->dns, &f->client, out, len);
    flight_free(f);
}

static void flight_done(struct dns_flight *f, const struct dns_answer *answer, const uint8_t *data)
{
    uint8_t out[DNS_TCP_MAX];
    size_t max = f->client.conn != NULL ? sizeof(out) : f->query.udp_max;
    size_t len = dns_answer_write(answer, data, &f->query, max, out);

    if (answer->internal)
        f->dns->stats.refused_answer++;
    else
        f->dns->stats.answered++;
    dns_reply(f->dns, &f->client, out, len);
    flight_free(f);
}

/* true: the flight is over or goes on elsewhere; the caller must not touch it. */
static bool flight_consider(struct dns_flight *f, const uint8_t *data, size_t len)
{
    struct dns_answer answer;

    if (dns_answer_parse(data, len, &f->query, f->id, &answer) < 0)
        return false;
    bool useless =
        answer.rcode == DNS_SERVFAIL || answer.rcode == DNS_NOTIMP || answer.rcode == DNS_REFUSED;
    if (useless && f->attempt < f->servers.n)
        attempt_next(f);
    else
        flight_done(f, &answer, data);
    return true;
}

static void on_datagram(struct loop_io *io, uint32_t events)
{
    struct dns_flight *f = container_of(io, struct dns_flight, io);
    uint8_t data[4096];

    for (;;) {
        ssize_t n = recv(f->fd, data, sizeof(data), MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n >= 0 && flight_consider(f, data, (size_t)n))
            return;
        /* Refused at the other end; or somebody guesses answers. */
        if (n < 0 || ++f->strays > STRAYS_MAX) {
            attempt_next(f);
            return;
        }
    }
}

static int tcp_send(struct dns_flight *f)
{
    while (f->out.len > 0) {
        ssize_t n = send(f->fd, f->out.data, f->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        buf_consume(&f->out, (size_t)n);
    }
    f->state = FLIGHT_READING;
    return loop_io_events(&f->io, EPOLLIN);
}

/* 1: the flight is over. */
static int tcp_read(struct dns_flight *f)
{
    for (;;) {
        const uint8_t *data = (const uint8_t *)f->in.data;
        size_t want = 2;

        if (f->in.len >= 2)
            want += (size_t)(data[0] << 8 | data[1]);
        if (want > 2 && f->in.len == want)
            return flight_consider(f, data + 2, want - 2) ? 1 : -EBADMSG;
        if (want == 2 && f->in.len == 2)
            return -EBADMSG;
        int r = buf_reserve(&f->in, want - f->in.len);
        if (r < 0)
            return r;
        ssize_t n = recv(f->fd, f->in.data + f->in.len, want - f->in.len, MSG_DONTWAIT);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        f->in.len += (size_t)n;
    }
}

static void on_stream(struct loop_io *io, uint32_t events)
{
    struct dns_flight *f = container_of(io, struct dns_flight, io);
    int r = 0, error = 0;
    socklen_t len = sizeof(error);

    if (f->state == FLIGHT_CONNECTING) {
        if (getsockopt(f->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
            error = errno;
        r = -error;
        f->state = FLIGHT_SENDING;
    }
    if (r == 0 && f->state == FLIGHT_SENDING)
        r = tcp_send(f);
    else if (r == 0 && f->state == FLIGHT_READING)
        r = tcp_read(f);
    if (r < 0)
        attempt_next(f);
}

static void on_timeout(struct loop_timer *t)
{
    attempt_next(container_of(t, struct dns_flight, timer));
}

static int attempt_udp(struct dns_flight *f, const struct dns_server *server)
{
    uint8_t out[DNS_FORWARD_MAX];
    size_t len = dns_query_write(&f->query, f->id, out);

    if (connect(f->fd, (const struct sockaddr *)&server->addr, server->len) < 0 ||
        send(f->fd, out, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return -errno;
    f->state = FLIGHT_ASKING;
    f->strays = 0;
    return loop_io_start(f->dns->loop, &f->io, f->fd, EPOLLIN, on_datagram);
}

static int attempt_tcp(struct dns_flight *f, const struct dns_server *server)
{
    uint8_t out[2 + DNS_FORWARD_MAX];
    size_t len = dns_query_write(&f->query, f->id, out + 2);

    out[0] = (uint8_t)(len >> 8);
    out[1] = (uint8_t)len;
    buf_reset(&f->in);
    buf_reset(&f->out);
    int r = buf_append(&f->out, out, len + 2);
    if (r < 0)
        return r;
    if (connect(f->fd, (const struct sockaddr *)&server->addr, server->len) < 0 &&
        errno != EINPROGRESS)
        return -errno;
    f->state = FLIGHT_CONNECTING;
    return loop_io_start(f->dns->loop, &f->io, f->fd, EPOLLOUT, on_stream);
}

static int attempt_start(struct dns_flight *f)
{
    const struct dns_server *server = &f->servers.list[(f->attempt - 1) % f->servers.n];
    bool tcp = f->client.conn != NULL;

    if (getrandom(&f->id, sizeof(f->id), 0) != sizeof(f->id))
        return -EAGAIN;
    f->fd = socket(server->addr.ss_family,
                   (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->fd < 0)
        return -errno;
    int r = tcp ? attempt_tcp(f, server) : attempt_udp(f, server);
    if (r == 0)
        loop_timer_start(f->dns->loop, &f->timer, f->dns->options.attempt_ms * NSEC_PER_MSEC,
                         on_timeout);
    return r;
}

static void attempt_next(struct dns_flight *f)
{
    do {
        flight_disarm(f);
        if (f->attempt == ATTEMPTS_MAX) {
            flight_fail(f);
            return;
        }
    } while (f->attempt++, attempt_start(f) < 0);
}

void dns_flight_start(struct dns *dns, const struct dns_client *client,
                      const struct dns_query *query)
{
    struct dns_flight *f = xnew(struct dns_flight);

    assert(dns->servers.n > 0);
    f->dns = dns;
    f->client = *client;
    f->query = *query;
    f->servers = dns->servers;
    f->fd = -1;
    buf_init(&f->out, 2 + DNS_FORWARD_MAX);
    buf_init(&f->in, 2 + DNS_TCP_MAX);
    f->next = dns->flights;
    if (f->next != NULL)
        f->next->prev = f;
    dns->flights = f;
    dns->n_flights++;
    attempt_next(f);
}

unsigned dns_flight_count(const struct dns *dns, const struct dns_listener *listener)
{
    unsigned n = 0;

    for (const struct dns_flight *f = dns->flights; f != NULL; f = f->next)
        n += f->client.listener == listener;
    return n;
}

void dns_flight_cancel(struct dns *dns, const struct dns_listener *listener,
                       const struct dns_conn *conn)
{
    for (struct dns_flight *f = dns->flights, *next; f != NULL; f = next) {
        next = f->next;
        if ((listener != NULL && f->client.listener == listener) ||
            (conn != NULL && f->client.conn == conn))
            flight_free(f);
    }
}
