/* SPDX-License-Identifier: Apache-2.0 */

/* Takes questions over UDP and TCP, limits their rate, and answers them itself or asks a server. */

#include "sandbox/dns/dns.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "loop/loop.h"
#include "sandbox/dns/dns_msg.h"

#define DNS_SERVERS_MAX 3

struct dns_server {
    struct sockaddr_storage addr;
    socklen_t len;
};

struct dns_servers {
    struct dns_server list[DNS_SERVERS_MAX];
    size_t n;
};

struct dns_listener {
    struct dns *dns; /* borrowed */
    int udp, tcp;    /* owned */
    struct loop_io udp_io, tcp_io;
    struct loop_timer tcp_pause;
    uint64_t paid_until_ns; /* how far ahead of its allowed pace it is */
    unsigned n_conns, n_flights;
    LIST_ENTRY(dns_listener) link;
};

/* The client of a query. */
struct dns_client {
    struct dns_listener *listener; /* borrowed */
    struct dns_conn *conn;         /* borrowed; NULL: by UDP */
    struct sockaddr_storage addr;
    socklen_t addr_len;
};

/* Counted since the start. */
struct dns_stats {
    uint64_t questions;
    uint64_t answered;       /* with what a server said */
    uint64_t malformed;      /* dropped or told so */
    uint64_t refused_name;   /* not to be asked outside */
    uint64_t refused_rate;   /* too fast, or too many under way */
    uint64_t refused_answer; /* led to an internal address */
    uint64_t failed;         /* no server answered */
};

struct dns {
    struct loop *loop; /* borrowed */
    struct dns_options options;
    char *resolv_conf; /* owned */
    struct dns_servers servers;
    struct stat conf_stat; /* of what the servers were read from */
    uint64_t conf_checked_ns;
    bool conf_read;
    LIST_HEAD(, dns_listener) listeners; /* owned */
    LIST_HEAD(, dns_conn) conns;         /* owned */
    LIST_HEAD(, dns_flight) flights;     /* owned */
    unsigned n_conns, n_flights;
    struct dns_stats stats;
};

static void dns_reply(const struct dns_client *client, const uint8_t *data, size_t len);

/* Over TCP a message follows two bytes that are its length. */
static int frame_put(struct buf *out, const uint8_t *data, size_t len)
{
    const uint8_t head[2] = {(uint8_t)(len >> 8), (uint8_t)len};

    buf_reset(out);
    int r = buf_append(out, head, sizeof(head));
    return r < 0 ? r : buf_append(out, data, len);
}

/* 1: all of it is sent; 0: the rest later. */
static int frame_send(int fd, struct buf *out)
{
    while (out->len > 0) {
        ssize_t n = send(fd, out->data, out->len, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        buf_consume(out, (size_t)n);
    }
    return 1;
}

/* 1: a message of min to max bytes is in `in`, behind its length; 0: the rest later. */
static int frame_read(int fd, struct buf *in, size_t min, size_t max)
{
    for (;;) {
        const uint8_t *data = (const uint8_t *)in->data;
        size_t want = 2;

        if (in->len >= 2) {
            size_t len = (size_t)(data[0] << 8 | data[1]);
            if (len < min || len > max)
                return -EBADMSG;
            want += len;
            if (in->len == want)
                return 1;
        }
        int r = buf_reserve(in, want - in->len);
        if (r < 0)
            return r;
        ssize_t n = recv(fd, in->data + in->len, want - in->len, MSG_DONTWAIT);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        in->len += (size_t)n;
    }
}

static void reply_error(const struct dns_client *client, const struct dns_query *query,
                        enum dns_rcode rcode)
{
    uint8_t out[DNS_FORWARD_MAX];
    size_t len = dns_error_write(query, rcode, false, out);

    dns_reply(client, out, len);
}

/* One question under way: asked of one server after the other until one has an answer.
 *
 *   ASKING (by UDP) ──answer──► done
 *   CONNECTING ──► SENDING ──► READING (by TCP) ──answer──► done
 *   any ──error, time-out──► next server, or done with SERVFAIL
 *
 * Questions that came by TCP are asked by TCP, as the client wants an answer that fits nothing
 * else. Every attempt has a new id and a new port. */

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
    LIST_ENTRY(dns_flight) link;
};

static void attempt_next(struct dns_flight *f);

static void flight_disarm(struct dns_flight *f)
{
    loop_io_stop(&f->io);
    loop_timer_stop(&f->timer);
    fd_close_many(&f->fd, 1);
}

static void flight_free(struct dns_flight *f)
{
    flight_disarm(f);
    buf_done(&f->out);
    buf_done(&f->in);
    LIST_REMOVE(f, link);
    f->client.listener->n_flights--;
    f->dns->n_flights--;
    free(f);
}

static void flight_fail(struct dns_flight *f)
{
    f->dns->stats.failed++;
    reply_error(&f->client, &f->query, DNS_SERVFAIL);
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
    dns_reply(&f->client, out, len);
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
        /* Refused at the other end; or another host guesses answers. */
        if (n < 0 || ++f->strays > STRAYS_MAX) {
            attempt_next(f);
            return;
        }
    }
}

static int tcp_send(struct dns_flight *f)
{
    int r = frame_send(f->fd, &f->out);

    if (r <= 0)
        return r;
    f->state = FLIGHT_READING;
    return loop_io_events(&f->io, EPOLLIN);
}

/* 1: the flight is over. */
static int tcp_read(struct dns_flight *f)
{
    int r = frame_read(f->fd, &f->in, 1, DNS_TCP_MAX);

    if (r <= 0)
        return r;
    return flight_consider(f, (const uint8_t *)f->in.data + 2, f->in.len - 2) ? 1 : -EBADMSG;
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
    uint8_t out[DNS_FORWARD_MAX];
    size_t len = dns_query_write(&f->query, f->id, out);

    buf_reset(&f->in);
    int r = frame_put(&f->out, out, len);
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

static void dns_flight_start(struct dns *dns, const struct dns_client *client,
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
    LIST_INSERT_HEAD(&dns->flights, f, link);
    f->client.listener->n_flights++;
    dns->n_flights++;
    attempt_next(f);
}

/* Those of either; NULL matches none. */
static void dns_flight_cancel(struct dns *dns, const struct dns_listener *listener,
                              const struct dns_conn *conn)
{
    struct dns_flight *f, *next;

    LIST_FOREACH_SAFE (f, &dns->flights, link, next) {
        if ((listener != NULL && f->client.listener == listener) ||
            (conn != NULL && f->client.conn == conn))
            flight_free(f);
    }
}

#define CONF_MAX 16384
#define BLANKS " \t\r"

/* Judges a question and answers it, now or later. */
static void dns_ask(struct dns *dns, const struct dns_client *client, const uint8_t *data,
                    size_t len);

static bool parse_server(const char *text, uint16_t port, struct dns_server *ret)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&ret->addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ret->addr;

    *ret = (struct dns_server){0};
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        ret->len = sizeof(*v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        ret->len = sizeof(*v6);
        return true;
    }
    return false;
}

static void parse_line(const char *line, size_t len, uint16_t port, struct dns_servers *ret)
{
    static const char keyword[] = "nameserver";
    char word[INET6_ADDRSTRLEN];
    size_t at = strlen(keyword);

    if (len <= at || memcmp(line, keyword, at) != 0 || strchr(BLANKS, line[at]) == NULL)
        return;
    at += strspn(line + at, BLANKS);
    size_t n = strcspn(line + at, BLANKS "\n#;");
    if (n == 0 || n >= sizeof(word) || ret->n == DNS_SERVERS_MAX)
        return;
    memcpy(word, line + at, n);
    word[n] = '\0';
    if (parse_server(word, port, &ret->list[ret->n]))
        ret->n++;
}

static void dns_servers_parse(const char *text, uint16_t port, struct dns_servers *ret)
{
    *ret = (struct dns_servers){0};
    for (const char *line = text; *line != '\0';) {
        const char *end = strchrnul(line, '\n');

        parse_line(line, (size_t)(end - line), port, ret);
        line = *end == '\n' ? end + 1 : end;
    }
    /* What the C library does. */
    if (ret->n == 0 && parse_server("127.0.0.1", port, &ret->list[0]))
        ret->n = 1;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* cheap: looks at the file once a second */
static void dns_servers_refresh(struct dns *dns)
{
    char text[CONF_MAX];
    struct stat st = {0};
    uint64_t now = loop_now(dns->loop);

    if (dns->conf_read && now - dns->conf_checked_ns < NSEC_PER_SEC)
        return;
    dns->conf_checked_ns = now;
    /* A file that is gone or being replaced: go on with what we have. */
    if (stat(dns->resolv_conf, &st) < 0 && dns->conf_read)
        return;
    if (dns->conf_read && same_file(&st, &dns->conf_stat))
        return;
    if (fd_read_file_at(AT_FDCWD, dns->resolv_conf, text, sizeof(text)) < 0) {
        if (dns->conf_read)
            return;
        text[0] = '\0';
    }
    dns_servers_parse(text, dns->options.upstream_port, &dns->servers);
    dns->conf_stat = st;
    dns->conf_read = true;
}

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
    LIST_ENTRY(dns_conn) link;
};

static void conn_free(struct dns_conn *c)
{
    dns_flight_cancel(c->dns, NULL, c);
    loop_io_stop(&c->io);
    loop_timer_stop(&c->timer);
    (void)close(c->fd);
    buf_done(&c->in);
    buf_done(&c->out);
    LIST_REMOVE(c, link);
    c->client.listener->n_conns--;
    c->dns->n_conns--;
    free(c);
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
static int conn_wait(struct dns_conn *c)
{
    c->state = CONN_WAITING;
    loop_timer_stop(&c->timer);
    int r = loop_io_events(&c->io, 0);
    if (r < 0 || ++c->questions > QUESTIONS_MAX)
        return -ECONNABORTED;
    uint64_t before = c->dns->stats.malformed;
    dns_ask(c->dns, &c->client, (const uint8_t *)c->in.data + 2, c->in.len - 2);
    /* Not worth an answer: then there is nothing to wait for. */
    if (c->state == CONN_WAITING && c->dns->stats.malformed != before)
        return -EBADMSG;
    return 0;
}

static int conn_read(struct dns_conn *c)
{
    int r = frame_read(c->fd, &c->in, DNS_HEADER, DNS_QUERY_MAX);

    return r <= 0 ? r : conn_wait(c);
}

static int conn_write(struct dns_conn *c)
{
    int r = frame_send(c->fd, &c->out);

    if (r <= 0)
        return r;
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
static void dns_conn_reply(struct dns_conn *conn, const uint8_t *data, size_t len)
{
    conn->state = CONN_WRITING;
    conn_patience(conn);
    /* Should either fail, the connection is closed when its time is up. */
    if (frame_put(&conn->out, data, len) == 0)
        (void)loop_io_events(&conn->io, EPOLLOUT);
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
    LIST_INSERT_HEAD(&d->conns, c, link);
    l->n_conns++;
    d->n_conns++;
    conn_patience(c);
    if (loop_io_start(d->loop, &c->io, fd, EPOLLIN, on_conn) < 0)
        conn_free(c);
}

static int dns_conn_accept(struct dns_listener *listener)
{
    struct dns *d = listener->dns;

    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct dns_client client = {.listener = listener, .addr_len = sizeof(client.addr)};
        int fd = accept4(listener->tcp, (struct sockaddr *)&client.addr, &client.addr_len,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : 0;
        if (d->n_conns >= d->options.conns || listener->n_conns >= d->options.listener_conns) {
            d->stats.refused_rate++;
            (void)close(fd);
            continue;
        }
        conn_new(listener, fd, &client);
    }
    return 0;
}

#define DATAGRAMS_PER_TURN 32
#define ACCEPT_PAUSE_NS (100 * NSEC_PER_MSEC)

static unsigned or_default(unsigned v, unsigned d)
{
    return v != 0 ? v : d;
}

struct dns *dns_new(struct loop *loop, const struct dns_options *options)
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
    return d;
}

void dns_free(struct dns *dns)
{
    if (dns == NULL)
        return;
    struct dns_listener *l, *next;

    LIST_FOREACH_SAFE (l, &dns->listeners, link, next)
        dns_unlisten(l);
    free(dns->resolv_conf);
    free(dns);
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

static void dns_ask(struct dns *dns, const struct dns_client *client, const uint8_t *data,
                    size_t len)
{
    struct dns_query query;
    int r = dns_query_parse(data, len, &query);

    dns->stats.questions++;
    if (r != 0) {
        dns->stats.malformed++;
        if (r > 0)
            reply_error(client, &query, (enum dns_rcode)r);
        return;
    }
    if (!within_rate(client->listener) || dns->n_flights >= dns->options.flights ||
        client->listener->n_flights >= dns->options.listener_flights) {
        dns->stats.refused_rate++;
        reply_error(client, &query, DNS_REFUSED);
        return;
    }
    r = dns_query_judge(&query);
    if (r != 0) {
        dns->stats.refused_name++;
        reply_error(client, &query, (enum dns_rcode)r);
        return;
    }
    dns_servers_refresh(dns);
    dns_flight_start(dns, client, &query);
}

static void dns_reply(const struct dns_client *client, const uint8_t *data, size_t len)
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
    LIST_INSERT_HEAD(&dns->listeners, l, link);
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
    struct dns_conn *c, *next;

    dns_flight_cancel(listener->dns, listener, NULL);
    LIST_FOREACH_SAFE (c, &listener->dns->conns, link, next)
        if (c->client.listener == listener)
            conn_free(c);
    loop_io_stop(&listener->udp_io);
    loop_io_stop(&listener->tcp_io);
    loop_timer_stop(&listener->tcp_pause);
    (void)close(listener->udp);
    fd_close_many(&listener->tcp, 1);
    LIST_REMOVE(listener, link);
    free(listener);
}
