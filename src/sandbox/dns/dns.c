/* SPDX-License-Identifier: Apache-2.0 */

/* Takes questions over UDP and TCP, limits their rate, and answers or forwards them. */

#include "sandbox/dns/dns.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "sandbox/dns/dns_internal.h"

#define DATAGRAMS_PER_TURN 32
#define ACCEPT_PAUSE_NS (100 * NSEC_PER_MSEC)

static unsigned or_default(unsigned v, unsigned d)
{
    return v != 0 ? v : d;
}

int dns_new(struct loop *loop, const struct dns_options *options, struct dns **ret, struct err *err)
{
    struct dns *d = xnew(struct dns);
    struct dns_options o = *options;

    d->resolv_conf = xstrdup(o.resolv_conf != NULL ? o.resolv_conf : "/etc/resolv.conf");
    o.resolv_conf = d->resolv_conf;
    o.rate = or_default(o.rate, 50);
    o.burst = or_default(o.burst, 200);
    o.flights = or_default(o.flights, 256);
    o.listener_flights = or_default(o.listener_flights, 32);
    o.conns = or_default(o.conns, 64);
    o.listener_conns = or_default(o.listener_conns, 8);
    o.attempt_ms = or_default(o.attempt_ms, 1500);
    o.idle_ms = or_default(o.idle_ms, 5000);
    o.upstream_port = (uint16_t)or_default(o.upstream_port, 53);
    d->loop = loop;
    d->options = o;
    dns_servers_refresh(d);
    *ret = d;
    return 0;
}

void dns_free(struct dns *dns)
{
    if (dns == NULL)
        return;
    for (struct dns_listener *l = dns->listeners, *next; l != NULL; l = next) {
        next = l->next;
        dns_unlisten(l);
    }
    free(dns->resolv_conf);
    free(dns);
}

const struct dns_stats *dns_stats(const struct dns *dns)
{
    return &dns->stats;
}

/* Each question moves the listener's account ahead by one interval; it may be ahead by a burst. */
static bool within_rate(struct dns_listener *l)
{
    const struct dns_options *o = &l->dns->options;
    const uint64_t interval = NSEC_PER_SEC / o->rate;
    uint64_t now = loop_now(l->dns->loop);

    if (l->paid_until_ns < now)
        l->paid_until_ns = now;
    if (l->paid_until_ns - now > interval * (o->burst - 1))
        return false;
    l->paid_until_ns += interval;
    return true;
}

static void reply_error(struct dns *d, const struct dns_client *client,
                        const struct dns_query *query, enum dns_rcode rcode)
{
    uint8_t out[DNS_FORWARD_MAX];
    size_t len = dns_error_write(query, rcode, false, out);

    dns_reply(d, client, out, len);
}

void dns_ask(struct dns *dns, const struct dns_client *client, const uint8_t *data, size_t len)
{
    struct dns_query query;
    int r = dns_query_parse(data, len, &query);

    dns->stats.questions++;
    if (r != 0) {
        dns->stats.malformed++;
        if (r > 0)
            reply_error(dns, client, &query, (enum dns_rcode)r);
        return;
    }
    if (!within_rate(client->listener) || dns->n_flights >= dns->options.flights ||
        dns_flight_count(dns, client->listener) >= dns->options.listener_flights) {
        dns->stats.refused_rate++;
        reply_error(dns, client, &query, DNS_REFUSED);
        return;
    }
    r = dns_query_judge(&query);
    if (r != 0) {
        dns->stats.refused_name++;
        reply_error(dns, client, &query, (enum dns_rcode)r);
        return;
    }
    dns_servers_refresh(dns);
    dns_flight_start(dns, client, &query);
}

void dns_reply(struct dns *dns, const struct dns_client *client, const uint8_t *data, size_t len)
{
    if (client->conn != NULL) {
        dns_conn_reply(client->conn, data, len);
        return;
    }
    /* A full socket loses the datagram, as the network might have; the client asks again. */
    (void)sendto(client->listener->udp, data, len, MSG_DONTWAIT | MSG_NOSIGNAL,
                 (const struct sockaddr *)&client->addr, client->addr_len);
}

static void on_udp(struct loop_io *io, uint32_t events)
{
    struct dns_listener *l = container_of(io, struct dns_listener, udp_io);
    uint8_t data[DNS_QUERY_MAX + 1];

    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        struct dns_client client = {.listener = l, .addr_len = sizeof(client.addr)};
        ssize_t n = recvfrom(l->udp, data, sizeof(data), MSG_DONTWAIT,
                             (struct sockaddr *)&client.addr, &client.addr_len);

        /* Errors of earlier answers (a client that is gone) are reported here: not ours. */
        if (n < 0 && errno == EAGAIN)
            return;
        if (n >= 0)
            dns_ask(l->dns, &client, data, (size_t)n);
    }
}

static void on_tcp(struct loop_io *io, uint32_t events);

static void on_pause_over(struct loop_timer *t)
{
    struct dns_listener *l = container_of(t, struct dns_listener, tcp_pause);

    if (loop_io_start(l->dns->loop, &l->tcp_io, l->tcp, EPOLLIN, on_tcp) < 0)
        loop_timer_start(l->dns->loop, t, ACCEPT_PAUSE_NS, on_pause_over);
}

/* Out of descriptors, the connection stays in the queue and the socket readable: without a pause
 * the loop would turn for nothing else. */
static void on_tcp(struct loop_io *io, uint32_t events)
{
    struct dns_listener *l = container_of(io, struct dns_listener, tcp_io);

    if (dns_conn_accept(l) < 0) {
        loop_io_stop(&l->tcp_io);
        loop_timer_start(l->dns->loop, &l->tcp_pause, ACCEPT_PAUSE_NS, on_pause_over);
    }
}

int dns_listen(struct dns *dns, int udp_fd, int tcp_fd, struct dns_listener **ret, struct err *err)
{
    struct dns_listener *l = xnew(struct dns_listener);

    *l = (struct dns_listener){.dns = dns, .udp = udp_fd, .tcp = tcp_fd};
    l->next = dns->listeners;
    if (l->next != NULL)
        l->next->prev = l;
    dns->listeners = l;
    int r = loop_io_start(dns->loop, &l->udp_io, udp_fd, EPOLLIN, on_udp);
    if (r == 0 && tcp_fd >= 0)
        r = loop_io_start(dns->loop, &l->tcp_io, tcp_fd, EPOLLIN, on_tcp);
    if (r < 0) {
        dns_unlisten(l);
        return err_sys(err, -r, "watch the resolver's sockets");
    }
    *ret = l;
    return 0;
}

void dns_unlisten(struct dns_listener *listener)
{
    if (listener == NULL)
        return;
    struct dns *d = listener->dns;
    dns_flight_cancel(d, listener, NULL);
    dns_conn_close_all(d, listener);
    loop_io_stop(&listener->udp_io);
    loop_io_stop(&listener->tcp_io);
    loop_timer_stop(&listener->tcp_pause);
    (void)close(listener->udp);
    if (listener->tcp >= 0)
        (void)close(listener->tcp);
    if (listener->prev != NULL)
        listener->prev->next = listener->next;
    else
        d->listeners = listener->next;
    if (listener->next != NULL)
        listener->next->prev = listener->prev;
    free(listener);
}
