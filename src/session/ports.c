/* SPDX-License-Identifier: Apache-2.0 */

/* Connections to servers inside sessions, and the published ports that accept them. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "session/session_internal.h"

#define BACKLOG 128
#define ASKED_MAX 32U /* dials of a session under way for its published ports */
/* Anyone on the host can hold connections to published ports open: the rest of both caps is for
 * requests of the API. */
#define PUBLISHED_MAX (PORT_CONNS_MAX / 4 * 3)
#define PUBLISHED_ALL (PORT_CONNS_ALL / 4 * 3)

/* Dials ---------------------------------------------------------------------------------------- */

/*   ASKED ──► OPEN ──► (freed);  ASKED ──► LEFT ──► (freed)   */
enum dial_state {
    DIAL_ASKED, /* the backend has not answered */
    DIAL_LEFT,  /* nor does the caller wait any more */
    DIAL_OPEN,
};

struct port_dial {
    struct session *session; /* held */
    LIST_ENTRY(port_dial) link;
    enum dial_state state;
    const struct port_dial_events *events; /* borrowed; static */
    void *arg;
};

static void dial_done(struct port_dial *d)
{
    struct session *s = d->session;
    LIST_REMOVE(d, link);
    s->n_dials--;
    s->m->n_dials--;
    free(d);
    session_guest_leaves(s);
    session_release(s);
}

void port_dial_free(struct port_dial *d)
{
    if (d == NULL)
        return;
    if (d->state == DIAL_ASKED)
        d->state = DIAL_LEFT;
    else
        dial_done(d);
}

static void on_dialed(void *arg, int fd, const struct err *err)
{
    struct port_dial *d = arg;
    d->session->n_asked--;
    if (d->state == DIAL_LEFT) {
        fd_close_many(&fd, 1);
        dial_done(d);
        return;
    }
    int one = 1;
    d->state = DIAL_OPEN;
    if (fd < 0) {
        d->events->failed(d->arg, err);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    d->events->connected(d->arg, fd);
}

int port_dial_start(struct session *s, uint16_t port, const struct port_dial_events *events,
                    void *arg, struct port_dial **ret, struct err *err)
{
    struct sandbox *sb = session_sandbox(s);
    if (session_state(s) == SESSION_PAUSED)
        return session_refuse_paused(s, err);
    if (sb == NULL)
        return err_set(err, ERR_STATE,
                       "session '%.100s' is %s: no server in it can be reached; 'box start' starts "
                       "a stopped session",
                       session_id(s), session_state_name(session_state(s)));
    if (sb->backend->ops->connect == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend cannot connect to ports of a session",
                       sb->backend->ops->name);
    if (s->n_dials >= PORT_CONNS_MAX)
        return err_set(err, ERR_LIMIT, "session '%.100s' has %u connections to its ports already",
                       session_id(s), s->n_dials);
    if (s->m->n_dials >= PORT_CONNS_ALL)
        return err_set(err, ERR_LIMIT, "there are %u connections to ports of sessions already",
                       s->m->n_dials);
    struct port_dial *d = xnew(struct port_dial);
    d->session = s;
    d->events = events;
    d->arg = arg;
    int r = sb->backend->ops->connect(sb, port, on_dialed, d, err);
    if (r < 0) {
        free(d);
        return r;
    }
    session_hold(s);
    session_guest_comes(s);
    LIST_INSERT_HEAD(&s->dials, d, link);
    s->n_dials++;
    s->n_asked++;
    s->m->n_dials++;
    *ret = d;
    return 0;
}

/* Dials that the backend still works at fail with its own error. */
void ports_cut(struct session *s)
{
    struct port_dial *d, *next;
    session_hold(s);
    for (d = LIST_FIRST(&s->dials); d != NULL; d = next) {
        next = LIST_NEXT(d, link);
        if (d->state == DIAL_OPEN)
            d->events->cut(d->arg); /* frees this one, and no other */
    }
    session_release(s);
}

/* Published ports ------------------------------------------------------------------------------ */

struct port_conn {
    struct port_map *map; /* NULL: it was unpublished meanwhile */
    LIST_ENTRY(port_conn) link;
    struct port_dial *dial; /* owned */
    struct relay *relay;    /* owned; NULL until connected */
    struct loop *loop;
    int client; /* owned until connected */
};

struct port_map {
    struct session *session; /* borrowed: it is the session's */
    TAILQ_ENTRY(port_map) link;
    struct port_map_info info;
    LIST_HEAD(, port_conn) conns;
    struct relay_door door; /* closed: not listening */
};

static void conn_free(struct port_conn *c)
{
    if (c->map != NULL) {
        LIST_REMOVE(c, link);
        c->map->info.connections--;
    }
    relay_free(c->relay);
    fd_close_many(&c->client, 1);
    port_dial_free(c->dial);
    free(c);
}

static void on_relay_ended(void *arg)
{
    conn_free(arg);
}

static void conn_connected(void *arg, int fd)
{
    struct port_conn *c = arg;
    if (relay_new(c->loop, TAKE_FD(c->client), fd, on_relay_ended, c, &c->relay) < 0)
        conn_free(c);
}

/* The client reads an end without a byte, as from a server that has gone. */
static void conn_failed(void *arg, const struct err *err)
{
    struct port_conn *c = arg;
    log_debug(c->map != NULL ? session_id(c->map->session) : NULL, "published port: %s", err->msg);
    conn_free(c);
}

static void conn_cut(void *arg)
{
    conn_free(arg);
}

static const struct port_dial_events conn_events = {conn_connected, conn_failed, conn_cut};

static bool map_has_room(void *arg)
{
    const struct session *s = ((const struct port_map *)arg)->session;
    return s->n_dials < PUBLISHED_MAX && s->m->n_dials < PUBLISHED_ALL && s->n_asked < ASKED_MAX;
}

static void map_take(void *arg, int fd)
{
    struct port_map *p = arg;
    struct err err = {0};
    struct port_conn *c = xnew(struct port_conn);
    c->loop = p->session->m->loop;
    c->client = fd;
    c->map = p;
    LIST_INSERT_HEAD(&p->conns, c, link);
    p->info.connections++;
    if (port_dial_start(p->session, p->info.port, &conn_events, c, &c->dial, &err) < 0)
        conn_failed(c, &err);
}

bool port_address_read(const char *text, uint16_t port, union port_address *ret, socklen_t *len)
{
    *ret = (union port_address){0};
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons(port);
        *len = sizeof(ret->v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &ret->v6.sin6_addr) == 1) {
        ret->v6.sin6_family = AF_INET6;
        ret->v6.sin6_port = htons(port);
        *len = sizeof(ret->v6);
        return true;
    }
    return false;
}

static int bind_error(const struct port_map_info *want, int error, struct err *err)
{
    if (error == EADDRINUSE)
        return err_set(err, ERR_CONFLICT,
                       "port %u of %s is in use by another program; choose another host port, or "
                       "leave it out for any free one",
                       want->host_port, want->address);
    if (error == EACCES)
        return err_set(err, ERR_DENIED,
                       "boxd may not listen on port %u; choose a host port from 1024 on",
                       want->host_port);
    return err_sys(err, error, "listen on port %u of %s", want->host_port, want->address);
}

static int map_listen(struct port_map *p, struct err *err)
{
    union port_address at;
    socklen_t len;
    int one = 1;
    if (!port_address_read(p->info.address, p->info.host_port, &at, &len))
        return err_set(err, ERR_INVALID, "'%.60s' is no numeric address", p->info.address);
    AUTO_CLOSE int fd =
        socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return err_sys(err, errno, "make a socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (at.any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, &at.any, len) < 0 || listen(fd, BACKLOG) < 0 || getsockname(fd, &at.any, &len) < 0)
        return bind_error(&p->info, errno, err);
    p->info.host_port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
    int r = relay_door_open(&p->door, TAKE_FD(fd));
    if (r < 0)
        return err_sys(err, -r, "watch a published port");
    p->info.listening = true;
    return 0;
}

static struct port_map *map_new(struct session *s, const struct port_map_info *info)
{
    struct port_map *p = xnew(struct port_map);
    p->session = s;
    p->info = *info;
    p->info.listening = false;
    p->info.connections = 0;
    p->door = (struct relay_door){
        .loop = s->m->loop, .fd = -1, .room = map_has_room, .take = map_take, .arg = p};
    LIST_INIT(&p->conns);
    TAILQ_INSERT_TAIL(&s->ports, p, link);
    s->n_ports++;
    return p;
}

/* Connections go on: they belong to the session. */
static void map_free(struct port_map *p)
{
    struct port_conn *c;
    LIST_FOREACH (c, &p->conns, link)
        c->map = NULL;
    relay_door_close(&p->door);
    TAILQ_REMOVE(&p->session->ports, p, link);
    p->session->n_ports--;
    free(p);
}

/* One that does the same already. */
static struct port_map *map_find(struct session *s, const struct port_map_info *want)
{
    struct port_map *p;
    TAILQ_FOREACH (p, &s->ports, link)
        if (p->info.listening && p->info.port == want->port &&
            str_eq(p->info.address, want->address) &&
            (want->host_port == 0 || want->host_port == p->info.host_port))
            return p;
    return NULL;
}

/* The entries that could not listen before: `p` does. */
static void drop_dead(const struct port_map *p)
{
    struct port_map *q, *next;
    TAILQ_FOREACH_SAFE (q, &p->session->ports, link, next)
        if (!q->info.listening && q->info.port == p->info.port &&
            q->info.host_port == p->info.host_port && str_eq(q->info.address, p->info.address))
            map_free(q);
}

static bool is_loopback(const char *address)
{
    union port_address at;
    socklen_t len;
    if (!port_address_read(address, 0, &at, &len))
        return false;
    return at.any.sa_family == AF_INET ? ntohl(at.v4.sin_addr.s_addr) >> 24 == 127
                                       : IN6_IS_ADDR_LOOPBACK(&at.v6.sin6_addr);
}

int manager_may_publish(const struct manager *m, const char *address, struct err *err)
{
    if (is_loopback(address))
        return 0;
    for (char *const *a = m->options.publish_addresses; a != NULL && *a != NULL; a++)
        if (str_eq(*a, address))
            return 0;
    return err_set(err, ERR_DENIED,
                   "ports are published on loopback addresses only; add '%.45s' to "
                   "ports.publish_addresses in boxd's configuration to allow it",
                   address);
}

int session_publish(struct session *s, struct port_map_info *want, struct err *err)
{
    int r = manager_may_publish(s->m, want->address, err);
    if (r < 0)
        return r;
    struct port_map *p = map_find(s, want);
    if (p != NULL) {
        *want = p->info;
        return 0;
    }
    if (s->state != SESSION_READY)
        return err_set(err, ERR_STATE, "session '%.100s' is not ready", session_id(s));
    if (s->sandbox->backend->ops->connect == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the %s backend cannot connect to ports of a session",
                       s->sandbox->backend->ops->name);
    if (s->n_ports >= PORT_MAPS_MAX)
        return err_set(err, ERR_LIMIT, "session '%.100s' has %u published ports already",
                       session_id(s), s->n_ports);
    p = map_new(s, want);
    r = map_listen(p, err);
    if (r == 0) {
        drop_dead(p);
        r = durable_put_session(s, err);
    }
    if (r < 0)
        map_free(p);
    else
        *want = p->info;
    return r;
}

int session_unpublish(struct session *s, uint16_t port, uint16_t host_port, struct err *err)
{
    struct port_map *p, *next;
    unsigned before = s->n_ports;
    TAILQ_FOREACH_SAFE (p, &s->ports, link, next)
        if (p->info.port == port && (host_port == 0 || host_port == p->info.host_port))
            map_free(p);
    if (s->n_ports == before)
        return err_set(err, ERR_NOT_FOUND, "port %u of session '%.100s' is not published", port,
                       session_id(s));
    return durable_put_session(s, err);
}

bool session_port_at(const struct session *s, unsigned at, struct port_map_info *ret)
{
    const struct port_map *p;
    TAILQ_FOREACH (p, &s->ports, link)
        if (at-- == 0) {
            *ret = p->info;
            return true;
        }
    return false;
}

void ports_drop(struct session *s)
{
    struct port_map *p;
    while ((p = TAILQ_FIRST(&s->ports)) != NULL)
        map_free(p);
}

/* Records: "ADDRESS HOST_PORT PORT". */

char **ports_write(const struct session *s)
{
    char **list = NULL;
    const struct port_map *p;
    TAILQ_FOREACH (p, &s->ports, link) {
        char text[PORT_ADDRESS_MAX + 16];
        (void)str_fmt(text, sizeof(text), "%s %u %u", p->info.address, p->info.host_port,
                      p->info.port);
        strv_add(&list, text);
    }
    return list;
}

static bool read_port(const char *text, uint16_t *ret)
{
    uint64_t n;
    if (str_to_u64(text, &n) < 0 || n == 0 || n > UINT16_MAX)
        return false;
    *ret = (uint16_t)n;
    return true;
}

static bool info_read(const char *text, struct port_map_info *ret)
{
    union port_address ignored;
    socklen_t len;
    char copy[PORT_ADDRESS_MAX + 16];
    *ret = (struct port_map_info){0};
    if (str_copy(copy, sizeof(copy), text) < 0)
        return false;
    char *host = strchr(copy, ' '), *port = host != NULL ? strchr(host + 1, ' ') : NULL;
    if (port == NULL)
        return false;
    *host++ = *port++ = '\0';
    return str_copy(ret->address, sizeof(ret->address), copy) >= 0 &&
           port_address_read(copy, 0, &ignored, &len) && read_port(host, &ret->host_port) &&
           read_port(port, &ret->port);
}

void ports_restore(struct session *s, char *const *list)
{
    for (size_t i = 0; list != NULL && list[i] != NULL && i < PORT_MAPS_MAX; i++) {
        struct port_map_info info;
        struct err err = {0};
        if (!info_read(list[i], &info)) {
            log_warn(session_id(s), "a published port of its record makes no sense; ignoring");
            continue;
        }
        /* The operator's settings may have changed, and the record may have been edited. */
        struct port_map *p = map_new(s, &info);
        if (manager_may_publish(s->m, info.address, &err) < 0 || map_listen(p, &err) < 0)
            log_warn(session_id(s),
                     "published port: %s; it is not reachable until it is published "
                     "again",
                     err.msg);
    }
}
