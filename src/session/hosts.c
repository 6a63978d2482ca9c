/* SPDX-License-Identifier: Apache-2.0 */

/* Services of the host that a session may reach. boxd has a listener on a port of the session's own
 * loopback address, connects to the service for each client, and copies bytes. The session gets no
 * socket of the host's network, so it reaches these services and no others. */

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_internal.h"
#include "spec/spec.h"

/* Programs in sessions are hostile: none of them can keep boxd busy with connections that it makes
 * and drops. */
#define RATE_NS (20ULL * NSEC_PER_MSEC)
#define RATE_MAX 32U /* connections of a session in that time; the others wait to be accepted */
#define DIAL_NS (10ULL * NSEC_PER_SEC)

struct host_link {
    struct host_map *map; /* borrowed: links end with it */
    LIST_ENTRY(host_link) entry;
    struct relay *relay; /* owned; NULL until connected */
    int client, server;  /* owned until connected */
    struct loop_io io;   /* until connected */
    struct loop_timer timer;
};

struct host_map {
    struct session *session; /* borrowed: it is the session's */
    LIST_ENTRY(host_map) entry;
    struct host_service at;
    struct relay_door doors[2]; /* IPv4 and IPv6, inside */
    LIST_HEAD(, host_link) links;
    unsigned n_links;
};

/* Connections ---------------------------------------------------------------------------------- */

static void link_free(struct host_link *l)
{
    struct session *s = l->map->session;
    LIST_REMOVE(l, entry);
    l->map->n_links--;
    s->n_links--;
    s->m->n_links--;
    loop_io_stop(&l->io);
    loop_timer_stop(&l->timer);
    relay_free(l->relay);
    fd_close_many(&l->client, 1);
    fd_close_many(&l->server, 1);
    free(l);
}

static void on_relay_ended(void *arg)
{
    link_free(arg);
}

/* The program inside reads an end without a byte, as from a server that has gone. */
static void link_fail(struct host_link *l, int error)
{
    struct err err = {0};
    (void)err_sys(&err, error, "connect to port %u of %s", l->map->at.port, l->map->at.address);
    log_debug(session_id(l->map->session), "allowed host: %s", err.msg);
    link_free(l);
}

/* The kernel may take the service's own port for our end where no service listens: a session would
 * speak to itself, and the service could not start. */
static bool is_self(int fd)
{
    union port_address here = {0}, there = {0};
    socklen_t len = sizeof(here), len_there = sizeof(there);
    return getsockname(fd, &here.any, &len) == 0 && getpeername(fd, &there.any, &len_there) == 0 &&
           len == len_there && memcmp(&here, &there, len) == 0;
}

static void on_connected(struct loop_io *io, uint32_t events)
{
    struct host_link *l = container_of(io, struct host_link, io);
    int error = 0, one = 1;
    socklen_t len = sizeof(error);
    if (getsockopt(l->server, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error == 0 && is_self(l->server))
        error = ECONNREFUSED;
    if (error != 0) {
        link_fail(l, error);
        return;
    }
    loop_io_stop(&l->io);
    loop_timer_stop(&l->timer);
    (void)setsockopt(l->server, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    (void)setsockopt(l->server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (relay_new(l->map->session->m->loop, TAKE_FD(l->client), TAKE_FD(l->server), on_relay_ended,
                  l, &l->relay) < 0)
        link_free(l);
}

static void on_late(struct loop_timer *t)
{
    link_fail(container_of(t, struct host_link, timer), ETIMEDOUT);
}

static int link_dial(struct host_link *l)
{
    struct loop *loop = l->map->session->m->loop;
    union port_address to;
    socklen_t len;
    if (!port_address_read(l->map->at.address, l->map->at.port, &to, &len))
        return -EINVAL;
    l->server = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (l->server < 0)
        return -errno;
    if (connect(l->server, &to.any, len) < 0 && errno != EINPROGRESS)
        return -errno;
    loop_timer_start(loop, &l->timer, DIAL_NS, on_late);
    return loop_io_start(loop, &l->io, l->server, EPOLLOUT, on_connected);
}

static bool map_has_room(void *arg)
{
    struct session *s = ((const struct host_map *)arg)->session;
    uint64_t now = loop_now(s->m->loop);
    if (now - s->links_since >= RATE_NS) {
        s->links_since = now;
        s->links_recent = 0;
    }
    return s->n_links < HOST_CONNS_MAX && s->m->n_links < HOST_CONNS_ALL &&
           s->links_recent < RATE_MAX;
}

static void map_take(void *arg, int fd)
{
    struct host_map *map = arg;
    struct session *s = map->session;
    struct host_link *l = xnew(struct host_link);
    *l = (struct host_link){.map = map, .client = fd, .server = -1};
    LIST_INSERT_HEAD(&map->links, l, entry);
    map->n_links++;
    s->n_links++;
    s->links_recent++;
    s->m->n_links++;
    int r = link_dial(l);
    if (r < 0)
        link_fail(l, -r);
}

/* Listeners ------------------------------------------------------------------------------------ */

static struct host_map *map_find(const struct session *s, uint16_t inside)
{
    struct host_map *map;
    LIST_FOREACH (map, &s->hosts, entry)
        if (map->at.inside == inside)
            return map;
    return NULL;
}

int manager_may_allow(const struct manager *m, const struct host_service *at, struct err *err)
{
    const struct manager_options *o = &m->options;
    char text[SPEC_HOST_TEXT_MAX];
    host_service_write(at, false, text);
    for (char *const *a = o->allow_hosts; a != NULL && *a != NULL; a++)
        if (str_eq(*a, text))
            return 0;
    if (!at->loopback)
        return err_set(err, ERR_DENIED,
                       "sessions may reach services on loopback addresses only; add '%s' to "
                       "ports.allow_hosts in boxd's configuration to allow it",
                       text);
    /* A program inside would be a client like the user who runs boxd. */
    if (o->own_port != NULL && o->own_port(o->own_port_arg, at->port))
        return err_set(err, ERR_DENIED,
                       "port %u is boxd's own: a session that reaches it could do all that boxd's "
                       "user can; add '%s' to ports.allow_hosts in boxd's configuration if that is "
                       "what you want",
                       at->port, text);
    return 0;
}

/* All have answered. */
static void hosts_settle(struct session *s)
{
    struct manager *m = s->m;
    struct err err = s->hosts_err;
    enum hosts_after after = s->hosts_after;
    bool lives = s->state == SESSION_READY || s->state == SESSION_PAUSED;
    bool fails = lives && err.code != ERR_NONE;
    s->hosts_err = (struct err){0};
    /* One that was there before goes on without: its files are its owner's. */
    if (fails && after != HOSTS_CREATED)
        log_warn(session_id(s), "allowed host: %s; it cannot be reached from the session", err.msg);
    if (lives)
        waiters_wake(s, fails && after == HOSTS_CREATED ? &err : NULL, NULL);
    if (fails && after == HOSTS_CREATED)
        session_stop(s);
    if (s->state == SESSION_READY)
        start_session_ready(s);
    if (after == HOSTS_ADOPTED)
        adopt_finished_one(m);
}

/* One listener that was asked for. */
struct host_ask {
    struct session *session; /* held */
    uint16_t inside;
};

static void ask_done(struct session *s, const struct err *err)
{
    if (err != NULL && s->hosts_err.code == ERR_NONE)
        s->hosts_err = *err;
    if (--s->hosts_asked == 0)
        hosts_settle(s);
}

static void on_listening(void *arg, int fds[2], const struct err *err)
{
    AUTO_FREE struct host_ask *ask = arg;
    struct session *s = ask->session;
    struct host_map *map = map_find(s, ask->inside); /* NULL: the session ends */
    struct err why = {0};
    int r = 0;
    for (int i = 1; map != NULL && err == NULL && i >= 0; i--) /* without ::1 it goes on */
        if (fds[i] >= 0)
            r = relay_door_open(&map->doors[i], TAKE_FD(fds[i]));
    if (r < 0)
        (void)err_sys(&why, -r, "watch port %u of the session", ask->inside);
    ask_done(s, r < 0 ? &why : err);
    session_release(s);
}

static void map_open(struct session *s, const char *text)
{
    struct err err = {0};
    struct host_map *map = xnew(struct host_map);
    map->session = s;
    LIST_INIT(&map->links);
    for (int i = 0; i < 2; i++)
        map->doors[i] = (struct relay_door){
            .loop = s->m->loop, .fd = -1, .room = map_has_room, .take = map_take, .arg = map};
    LIST_INSERT_HEAD(&s->hosts, map, entry);
    /* What the operator allows may have changed, and so may the record. */
    int r = host_service_parse(text, &map->at)
                ? manager_may_allow(s->m, &map->at, &err)
                : err_set(&err, ERR_INVALID, "'%.64s' is no address and port", text);
    struct host_ask *ask = xnew(struct host_ask);
    *ask = (struct host_ask){s, map->at.inside};
    session_hold(s);
    const struct backend_ops *ops = s->sandbox->backend->ops;
    if (r == 0 && ops->listen == NULL)
        r = err_set(&err, ERR_UNSUPPORTED, "the %s backend cannot listen in a session", ops->name);
    if (r == 0)
        r = ops->listen(s->sandbox, map->at.inside, on_listening, ask, &err);
    if (r == 0)
        return;
    int none[2] = {-1, -1};
    on_listening(ask, none, &err);
}

bool hosts_open(struct session *s, enum hosts_after after)
{
    char *const *list = s->spec->own.allow_hosts;
    if (list == NULL)
        return false;
    s->hosts_after = after;
    s->hosts_asked = 1; /* until all are asked */
    for (size_t i = 0; list[i] != NULL; i++) {
        s->hosts_asked++;
        map_open(s, list[i]);
    }
    ask_done(s, NULL);
    return true;
}

void hosts_close(struct session *s)
{
    struct host_map *map;
    while ((map = LIST_FIRST(&s->hosts)) != NULL) {
        while (!LIST_EMPTY(&map->links))
            link_free(LIST_FIRST(&map->links));
        relay_door_close(&map->doors[0]);
        relay_door_close(&map->doors[1]);
        LIST_REMOVE(map, entry);
        free(map);
    }
}

bool session_host_at(const struct session *s, unsigned at, struct host_map_info *ret)
{
    char *const *list = s->spec->own.allow_hosts;
    *ret = (struct host_map_info){0};
    for (unsigned i = 0; list != NULL && list[i] != NULL; i++) {
        if (i != at || !host_service_parse(list[i], &ret->at))
            continue;
        const struct host_map *map = map_find(s, ret->at.inside);
        ret->listening = map != NULL && map->doors[0].fd >= 0;
        ret->connections = map != NULL ? map->n_links : 0;
        return true;
    }
    return false;
}
