/* SPDX-License-Identifier: Apache-2.0 */

/* Connections of boxd to servers in the container, and of programs there to services of the host.
 * boxd is outside of the container's network, and
 * under gVisor no descriptor can be handed over, so box-guest connects to the server, connects to
 * boxd's socket once more for each of them, and copies bytes both ways. A side that does not read
 * holds the other back. */

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "inside/guest/guest.h"

#define CHUNK (32U * 1024U)

static void conn_done(struct guest_conn *c)
{
    for (int i = 0; i < 2; i++) {
        fd_close_many(&c->sides[i].fd, 1);
        free(c->sides[i].rest);
    }
    *c = (struct guest_conn){.sides = {{.fd = -1}, {.fd = -1}}};
}

static void conn_refuse(struct guest *g, struct guest_conn *c, int error)
{
    struct guest_head head = {.type = GUEST_REFUSED, .id = c->id, .flags = (uint32_t)error};
    serve_send(g, &head, NULL, 0, NULL, 0);
    conn_done(c);
}

/* Begins to connect to the server; a server may listen on one of the two addresses only. */
static int conn_begin(struct guest_conn *c, bool ipv6)
{
    fd_close_many(&c->sides[0].fd, 1);
    c->ipv6 = ipv6;
    c->sides[0].fd = supervisor_connect(c->order.port, ipv6);
    return c->sides[0].fd < 0 ? c->sides[0].fd : 0;
}

static void conn_try(struct guest *g, struct guest_conn *c, bool ipv6)
{
    int r = conn_begin(c, ipv6);
    if (r < 0 && !ipv6)
        r = conn_begin(c, true);
    if (r < 0) {
        c->sides[0].fd = -1;
        conn_refuse(g, c, -r);
    }
}

static struct guest_conn *free_conn(struct guest *g)
{
    for (unsigned i = 0; i < GUEST_CONNS_MAX; i++)
        if (g->conns[i].state == GUEST_CONN_FREE)
            return &g->conns[i];
    return NULL;
}

void conn_order(struct guest *g, const struct guest_head *h, const char *body)
{
    struct guest_conn *c = free_conn(g);
    struct guest_conn none = {.id = h->id, .sides = {{.fd = -1}, {.fd = -1}}};
    if (c == NULL || h->len != sizeof(c->order)) {
        conn_refuse(g, &none, EAGAIN);
        return;
    }
    *c = none;
    memcpy(&c->order, body, sizeof(c->order));
    c->state = GUEST_CONN_CONNECTING;
    conn_try(g, c, false);
}

/* A socket of boxd's in the session's own directory. */
static int conn_call(struct guest_conn *c, const char *name)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    int fd = c->sides[1].fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), GUEST_DIR "/%s", name);
    return fd < 0 || connect(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 ? -errno : 0;
}

/* The server is there: now boxd, which knows us by the number that it has told us. */
static int conn_call_boxd(struct guest_conn *c)
{
    int r = conn_call(c, GUEST_SOCKET_NAME);
    if (r < 0)
        return r;
    ssize_t n =
        send(c->sides[1].fd, c->order.secret, sizeof(c->order.secret), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n == (ssize_t)sizeof(c->order.secret) ? 0 : -EPIPE;
}

static void conn_connected(struct guest *g, struct guest_conn *c)
{
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(c->sides[0].fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error != 0 && !c->ipv6) {
        conn_try(g, c, true);
        return;
    }
    if (error == 0)
        error = -conn_call_boxd(c);
    if (error != 0)
        conn_refuse(g, c, error);
    else
        c->state = GUEST_CONN_OPEN;
}

/* How many bytes the side took; negative: it is lost. */
static ssize_t side_send(struct guest_side *s, const char *data, size_t len)
{
    ssize_t n = send(s->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    return n;
}

static bool side_flush(struct guest_side *s)
{
    if (s->rest == NULL)
        return true;
    ssize_t n = side_send(s, s->rest + s->rest_pos, s->rest_len - s->rest_pos);
    if (n < 0)
        return false;
    s->rest_pos += (size_t)n;
    if (s->rest_pos == s->rest_len) {
        free(s->rest);
        s->rest = NULL;
    }
    return true;
}

static bool side_read(struct guest_side *from, struct guest_side *to)
{
    static char scratch[CHUNK];
    ssize_t n = recv(from->fd, scratch, sizeof(scratch), MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    from->eof = n == 0;
    ssize_t sent = n > 0 ? side_send(to, scratch, (size_t)n) : 0;
    if (sent < 0)
        return false;
    if (sent < n) {
        to->rest_pos = 0;
        to->rest_len = (size_t)(n - sent);
        to->rest = xcalloc(1, to->rest_len);
        memcpy(to->rest, scratch + sent, to->rest_len);
    }
    return true;
}

static short side_wants(const struct guest_side *s, const struct guest_side *other)
{
    return (short)((!s->eof && other->rest == NULL ? POLLIN : 0) | (s->rest != NULL ? POLLOUT : 0));
}

size_t conns_watch(const struct guest *g, struct pollfd *polls)
{
    size_t n = 0;
    for (unsigned i = 0; i < GUEST_CONNS_MAX; i++) {
        const struct guest_conn *c = &g->conns[i];
        for (int k = 0; k < 2; k++) {
            struct pollfd *p = &polls[2 * i + (unsigned)k];
            *p = (struct pollfd){.fd = -1};
            if (c->state == GUEST_CONN_CONNECTING && k == 0)
                *p = (struct pollfd){.fd = c->sides[0].fd, .events = POLLOUT};
            if (c->state == GUEST_CONN_OPEN)
                p->events = side_wants(&c->sides[k], &c->sides[1 - k]);
            /* A side that was hung up would wake us without end. */
            if (c->state == GUEST_CONN_OPEN && p->events != 0)
                p->fd = c->sides[k].fd;
        }
        if (c->state != GUEST_CONN_FREE)
            n = 2 * (i + 1);
    }
    return n;
}

static void conn_copy(struct guest_conn *c, const struct pollfd *polls)
{
    bool good = true;
    for (int k = 0; k < 2 && good; k++) {
        struct guest_side *s = &c->sides[k], *other = &c->sides[1 - k];
        if (polls[k].revents == 0)
            continue;
        good = side_flush(s);
        if (good && !s->eof && other->rest == NULL && (polls[k].revents & ~POLLOUT) != 0)
            good = side_read(s, other);
    }
    for (int k = 0; k < 2 && good; k++) {
        struct guest_side *s = &c->sides[k], *other = &c->sides[1 - k];
        if (!s->eof || other->rest != NULL || other->shut)
            continue;
        other->shut = true;
        (void)shutdown(other->fd, SHUT_WR);
    }
    if (!good || (c->sides[0].shut && c->sides[1].shut))
        conn_done(c);
}

void conns_serve(struct guest *g, const struct pollfd *polls, size_t n)
{
    for (size_t i = 0; 2 * i < n; i++) {
        struct guest_conn *c = &g->conns[i];
        if (c->state == GUEST_CONN_CONNECTING && polls[2 * i].revents != 0)
            conn_connected(g, c);
        else if (c->state == GUEST_CONN_OPEN)
            conn_copy(c, &polls[2 * i]);
    }
}

/* Services of the host ------------------------------------------------------------------------- */

static int listener_add(struct guest *g, uint16_t port)
{
    struct guest_listener *l = &g->listeners[g->n_listeners];
    for (size_t i = 0; i < g->n_listeners; i++)
        if (g->listeners[i].port == port)
            return 0; /* an earlier boxd has asked */
    if (g->n_listeners == GUEST_LISTENS_MAX)
        return -ENOSPC;
    *l = (struct guest_listener){.port = port, .fds = {fd_listen_loopback(port, false), -1}};
    if (l->fds[0] < 0)
        return l->fds[0];
    l->fds[1] = fd_listen_loopback(port, true);
    g->n_listeners++;
    return 0;
}

void listener_order(struct guest *g, const struct guest_head *h, const char *body)
{
    struct guest_connect order = {0};
    if (h->len == sizeof(order))
        memcpy(&order, body, sizeof(order));
    int r = order.port == 0 ? -EINVAL : listener_add(g, order.port);
    struct guest_head head = {.type = r < 0 ? GUEST_REFUSED : GUEST_LISTENING,
                              .id = h->id,
                              .flags = r < 0 ? (uint32_t)-r : 0};
    serve_send(g, &head, NULL, 0, NULL, 0);
}

/* Without room clients wait to be accepted. */
size_t listeners_watch(const struct guest *g, struct pollfd *polls)
{
    unsigned open = 0, taken = 0;
    for (unsigned i = 0; i < GUEST_CONNS_MAX; i++) {
        open += g->conns[i].state != GUEST_CONN_FREE;
        taken += g->conns[i].state != GUEST_CONN_FREE && g->conns[i].to_host;
    }
    if (open == GUEST_CONNS_MAX || taken >= GUEST_HOST_CONNS_MAX)
        return 0;
    for (size_t i = 0; i < 2 * g->n_listeners; i++)
        polls[i] = (struct pollfd){.fd = g->listeners[i / 2].fds[i % 2], .events = POLLIN};
    return 2 * g->n_listeners;
}

static void listener_accept(struct guest *g, const struct guest_listener *l, int fd)
{
    char name[16];
    struct guest_conn *c = free_conn(g);
    int client = c != NULL ? accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
    if (client < 0)
        return;
    *c = (struct guest_conn){
        .state = GUEST_CONN_OPEN, .to_host = true, .sides = {{.fd = client}, {.fd = -1}}};
    (void)snprintf(name, sizeof(name), GUEST_HOST_NAME, l->port);
    if (conn_call(c, name) < 0)
        conn_done(c);
}

void listeners_serve(struct guest *g, const struct pollfd *polls, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (polls[i].revents != 0 && polls[i].fd >= 0)
            listener_accept(g, &g->listeners[i / 2], polls[i].fd);
}
