/* SPDX-License-Identifier: Apache-2.0 */

/* The TLS client and its tunnels, by OpenSSL. */

#include "http/stream/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* A type of theirs has the name of a code of ours. It is not needed here. */
#define ERR_STATE openssl_err_state
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#undef ERR_STATE

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/state.h"
#include "base/str.h"
#include "http/stream/places.h"
#include "loop/loop.h"

#define CHUNK (64U * 1024U) /* waits in each direction, no more */
#define OPEN_NS (10ULL * NSEC_PER_SEC)
#define TURNS 16 /* chunks at a time; then others get their turn */

struct tls_client {
    struct loop *loop; /* borrowed */
    SSL_CTX *ctx;      /* owned */
    char *host;        /* owned */
    bool by_address;
    LIST_HEAD(, tunnel) tunnels; /* owned */
    struct err failure;
};

/*   CONNECTING ──► GREETING ──► OPEN      (each can end) */
enum tunnel_state {
    TUNNEL_CONNECTING,
    TUNNEL_GREETING,
    TUNNEL_OPEN,
    TUNNEL_STATE_MAX,
};

#define TO(s) (1U << TUNNEL_##s)
static const unsigned next_states[TUNNEL_STATE_MAX] = {
    [TUNNEL_CONNECTING] = TO(GREETING),
    [TUNNEL_GREETING] = TO(OPEN),
    [TUNNEL_OPEN] = 0,
};

/* Bytes on their way in one direction. */
struct half {
    char data[CHUNK];
    size_t pos, len;
    bool ended; /* nothing follows */
    bool told;  /* and the reader knows */
};

struct tunnel {
    struct tls_client *client; /* borrowed */
    LIST_ENTRY(tunnel) link;
    SSL *ssl;           /* owned */
    int net_fd, own_fd; /* owned */
    struct loop_io net_io, own_io;
    struct loop_timer timer;
    struct places_walk walk;
    uint64_t due; /* when it has to be open */
    enum tunnel_state state;
    struct half out, in;
    uint32_t net_wants; /* EPOLL* bits that TLS waits for */
    bool heard;         /* something has come from the peer, after the greeting */
};

/* The client. */

/* What the library says last is what is wrong. */
static int err_tls(struct err *err, const char *what, const char *about)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return err_set(err, ERR_INVALID, "%s '%.120s': %.120s", what, about,
                   reason != NULL ? reason : "unknown error");
}

static int load(SSL_CTX *ctx, const struct tls_files *f, struct err *err)
{
    if ((f->cert != NULL) != (f->key != NULL))
        return err_set(err, ERR_INVALID, "a certificate needs its key, and a key its certificate");
    if (f->ca == NULL && SSL_CTX_set_default_verify_paths(ctx) != 1)
        return err_tls(err, "certificates of", "the system");
    if (f->ca != NULL && SSL_CTX_load_verify_locations(ctx, f->ca, NULL) != 1)
        return err_tls(err, "certificates in", f->ca);
    if (f->cert != NULL && SSL_CTX_use_certificate_chain_file(ctx, f->cert) != 1)
        return err_tls(err, "certificate in", f->cert);
    if (f->key != NULL && SSL_CTX_use_PrivateKey_file(ctx, f->key, SSL_FILETYPE_PEM) != 1)
        return err_tls(err, "key in", f->key);
    if (f->key != NULL && SSL_CTX_check_private_key(ctx) != 1)
        return err_tls(err, "the certificate is not for the key in", f->key);
    return 0;
}

int tls_client_new(struct loop *loop, const struct tls_files *files, const char *host,
                   struct tls_client **ret, struct err *err)
{
    AUTO(tls_client) struct tls_client *c = xnew(struct tls_client);
    struct in6_addr address;
    c->loop = loop;
    c->host = xstrdup(host);
    c->by_address =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (c->ctx == NULL || SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION) != 1)
        return err_tls(err, "TLS for", host);
    SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_mode(c->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS);
    int r = load(c->ctx, files, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(c);
    return 0;
}

static void tunnel_free(struct tunnel *t)
{
    LIST_REMOVE(t, link);
    loop_io_stop(&t->net_io);
    loop_io_stop(&t->own_io);
    loop_timer_stop(&t->timer);
    SSL_free(t->ssl);
    fd_close_many(&t->net_fd, 1);
    fd_close_many(&t->own_fd, 1);
    free(t);
}

void tls_client_free(struct tls_client *c)
{
    if (c == NULL)
        return;
    while (!LIST_EMPTY(&c->tunnels))
        tunnel_free(LIST_FIRST(&c->tunnels));
    SSL_CTX_free(c->ctx);
    free(c->host);
    free(c);
}

bool tls_client_failure(struct tls_client *c, struct err *ret)
{
    if (c->failure.code == ERR_NONE)
        return false;
    *ret = c->failure;
    c->failure = (struct err){0};
    return true;
}

/* The end of a tunnel. */

static void fail_sys(struct tunnel *t, int error, const char *what)
{
    (void)err_sys(&t->client->failure, error, "%s", what);
    tunnel_free(t);
}

static void fail_tls(struct tunnel *t)
{
    long verified = SSL_get_verify_result(t->ssl);
    struct err *err = &t->client->failure;
    unsigned long code = ERR_peek_last_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    bool alert = code != 0 && ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET;
    /* What breaks later breaks like any connection. But a peer judges our certificate only after
     * the greeting, and may be gone before we hear what it thinks of it. */
    if (t->state == TUNNEL_OPEN && t->heard && !alert) {
        ERR_clear_error();
        tunnel_free(t);
        return;
    }
    if (verified != X509_V_OK)
        (void)err_set(err, ERR_DENIED, "the certificate of %.80s is not accepted: %s",
                      t->client->host, X509_verify_cert_error_string(verified));
    else if (t->state == TUNNEL_OPEN && !alert)
        (void)err_set(err, ERR_BACKEND,
                      "TLS with %.80s: it closed the connection after the handshake; it may want a "
                      "client certificate, or another one",
                      t->client->host);
    else
        (void)err_set(err, ERR_BACKEND, "TLS with %.80s: %.120s", t->client->host,
                      reason != NULL ? reason : "the connection broke");
    err->sys = EPROTO;
    ERR_clear_error();
    tunnel_free(t);
}

/* What a call of the library that did not get through waits for. False: it has failed. */
static bool waits(struct tunnel *t, int result)
{
    int why = SSL_get_error(t->ssl, result);
    if (why == SSL_ERROR_WANT_READ)
        t->net_wants |= EPOLLIN;
    else if (why == SSL_ERROR_WANT_WRITE)
        t->net_wants |= EPOLLOUT;
    else
        return false;
    return true;
}

/* Bytes. Each returns 1: something moved, 0: not now, -1: the tunnel is gone. */

static int half_fill(struct half *h, ssize_t n)
{
    h->ended = n <= 0;
    h->pos = 0;
    h->len = n > 0 ? (size_t)n : 0;
    return 1;
}

static int half_drain(struct half *h, size_t n)
{
    h->pos += n;
    if (h->pos == h->len)
        h->pos = h->len = 0;
    return 1;
}

static int read_own(struct tunnel *t)
{
    struct half *h = &t->out;
    if (h->ended || h->len > 0)
        return 0;
    ssize_t n = recv(t->own_fd, h->data, sizeof(h->data), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return half_fill(h, n);
}

static int write_net(struct tunnel *t)
{
    struct half *h = &t->out;
    if (h->len == 0 && h->ended && !h->told) {
        int n = SSL_shutdown(t->ssl); /* we send no more; the peer may */
        if (n < 0 && waits(t, n))
            return 0;
        h->told = true;
        return 1;
    }
    if (h->len == 0)
        return 0;
    int n = SSL_write(t->ssl, h->data + h->pos, (int)(h->len - h->pos));
    if (n <= 0 && waits(t, n))
        return 0;
    if (n <= 0) {
        fail_tls(t);
        return -1;
    }
    return half_drain(h, (size_t)n);
}

static int read_net(struct tunnel *t)
{
    struct half *h = &t->in;
    if (h->ended || h->len > 0)
        return 0;
    int n = SSL_read(t->ssl, h->data, sizeof(h->data));
    if (n <= 0 && waits(t, n))
        return 0;
    if (n <= 0 && SSL_get_error(t->ssl, n) != SSL_ERROR_ZERO_RETURN) {
        fail_tls(t); /* an end without a farewell may come from an attacker on the way */
        return -1;
    }
    t->heard = true;
    return half_fill(h, n);
}

static int write_own(struct tunnel *t)
{
    struct half *h = &t->in;
    if (h->len == 0 && h->ended && !h->told) {
        h->told = true;
        (void)shutdown(t->own_fd, SHUT_WR);
        return 1;
    }
    if (h->len == 0)
        return 0;
    ssize_t n = send(t->own_fd, h->data + h->pos, h->len - h->pos, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) { /* the reader has gone */
        tunnel_free(t);
        return -1;
    }
    return half_drain(h, (size_t)n);
}

static void on_net(struct loop_io *io, uint32_t events);

/* While the network has to wait for our side, it is not watched at all: its end would wake us for
 * ever. */
static void watch_net(struct tunnel *t, uint32_t wanted)
{
    if (wanted == 0)
        loop_io_stop(&t->net_io);
    else if (t->net_io.loop == NULL)
        (void)loop_io_start(t->client->loop, &t->net_io, t->net_fd, wanted, on_net);
    else
        (void)loop_io_events(&t->net_io, wanted);
}

static void pump(struct tunnel *t)
{
    static int (*const ways[])(struct tunnel * t) = {read_own, write_net, read_net, write_own};
    bool moved = true;
    ERR_clear_error();
    for (int i = 0; i < TURNS && moved; i++) {
        moved = false;
        t->net_wants = 0;
        for (size_t k = 0; k < ARRAY_SIZE(ways); k++) {
            int r = ways[k](t);
            if (r < 0)
                return;
            moved = moved || r > 0;
        }
    }
    if (t->out.told && t->in.told) {
        tunnel_free(t);
        return;
    }
    (void)loop_io_events(&t->own_io, (t->out.len == 0 && !t->out.ended ? EPOLLIN : 0U) |
                                         (t->in.len > 0 ? EPOLLOUT : 0U));
    watch_net(t, moved ? EPOLLIN | EPOLLOUT : t->net_wants);
}

/* A program that has closed its end altogether waits for nothing any more. */
static void on_own(struct loop_io *io, uint32_t events)
{
    struct tunnel *t = container_of(io, struct tunnel, own_io);
    if (events & (EPOLLHUP | EPOLLERR))
        tunnel_free(t);
    else if (t->state == TUNNEL_OPEN)
        pump(t);
}

/* Opening. */

static void greet(struct tunnel *t)
{
    ERR_clear_error();
    t->net_wants = 0;
    int n = SSL_connect(t->ssl);
    if (n == 1) {
        loop_timer_stop(&t->timer);
        STATE_MOVE(t->state, next_states, TUNNEL_OPEN);
        pump(t);
    } else if (waits(t, n)) {
        (void)loop_io_events(&t->net_io, t->net_wants);
    } else {
        fail_tls(t);
    }
}

static uint64_t left(const struct tunnel *t)
{
    uint64_t now = loop_now(t->client->loop);
    return t->due > now ? t->due - now : 0;
}

static void reach_next(struct tunnel *t, int error);
static void on_time(struct loop_timer *timer);

static void on_net(struct loop_io *io, uint32_t events)
{
    struct tunnel *t = container_of(io, struct tunnel, net_io);
    const int on = 1;
    int error = 0;
    socklen_t len = sizeof(error);
    if (t->state == TUNNEL_OPEN) {
        pump(t);
        return;
    }
    if (t->state == TUNNEL_CONNECTING) {
        if (getsockopt(t->net_fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
            error = errno;
        if (error != 0) {
            reach_next(t, error);
            return;
        }
        (void)setsockopt(t->net_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        places_arrived(&t->walk);
        loop_timer_start(t->client->loop, &t->timer, left(t), on_time);
        STATE_MOVE(t->state, next_states, TUNNEL_GREETING);
    }
    greet(t);
}

static void on_time(struct loop_timer *timer)
{
    struct tunnel *t = container_of(timer, struct tunnel, timer);
    if (t->state == TUNNEL_CONNECTING)
        reach_next(t, ETIMEDOUT);
    else
        fail_sys(t, ETIMEDOUT, "connect");
}

/* Begins to connect to the place whose turn it is. */
static int reach(struct tunnel *t)
{
    loop_io_stop(&t->net_io);
    fd_close_many(&t->net_fd, 1);
    t->net_fd = places_socket(&t->walk);
    if (t->net_fd < 0)
        return t->net_fd;
    int r = places_connect(&t->walk, t->net_fd);
    if (r < 0 && r != -EINPROGRESS)
        return r;
    if (SSL_set_fd(t->ssl, t->net_fd) != 1)
        return -ENOMEM;
    r = loop_io_start(t->client->loop, &t->net_io, t->net_fd, EPOLLOUT, on_net);
    if (r == 0)
        loop_timer_start(t->client->loop, &t->timer, places_share(&t->walk, left(t)), on_time);
    return r;
}

/* After `error` at one place: the ones that are left. 0, or the error of the last. */
static int reach_rest(struct tunnel *t, int error)
{
    while (error != 0 && places_next(&t->walk))
        error = -reach(t);
    return error;
}

static void reach_next(struct tunnel *t, int error)
{
    error = reach_rest(t, error);
    if (error != 0)
        fail_sys(t, error, "connect");
}

static int prepare(struct tunnel *t, struct err *err)
{
    const struct tls_client *c = t->client;
    t->ssl = SSL_new(c->ctx);
    bool ok = t->ssl != NULL;
    if (ok && c->by_address)
        ok = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), c->host) == 1;
    else if (ok)
        ok = SSL_set1_host(t->ssl, c->host) == 1 && SSL_set_tlsext_host_name(t->ssl, c->host) == 1;
    return ok ? 0 : err_tls(err, "TLS for", c->host);
}

int tls_dial(struct tls_client *c, struct places *places, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return err_sys(err, errno, "make a socket pair");
    AUTO_CLOSE int theirs = pair[0];
    c->failure = (struct err){0};
    struct tunnel *t = xnew(struct tunnel);
    t->client = c;
    t->own_fd = pair[1];
    t->net_fd = -1;
    t->walk = places_begin(places);
    t->due = loop_now(c->loop) + OPEN_NS;
    LIST_INSERT_HEAD(&c->tunnels, t, link);
    int r = prepare(t, err);
    if (r == 0 && (r = loop_io_start(c->loop, &t->own_io, t->own_fd, 0, on_own)) < 0)
        (void)err_sys(err, -r, "watch the connection");
    if (r == 0) {
        int error = reach_rest(t, -reach(t));
        r = error != 0 ? err_sys(err, error, "connect") : 0;
    }
    if (r < 0) {
        tunnel_free(t);
        return r;
    }
    return TAKE_FD(theirs);
}
