/* SPDX-License-Identifier: Apache-2.0 */

/* Listeners, accepting, the lists of connections, and the life of the HTTP server. */

#include "http/server/server.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define ACCEPTS_PER_EVENT 64
#define ACCEPT_PAUSE_NS (100 * NSEC_PER_MSEC)

/* Lists of connections. */

void server_add(struct http_server *s, struct http_conn *c, struct conn_list *list)
{
    server_remove(c);
    c->list = list;
    c->prev = list->last;
    c->next = NULL;
    if (list->last != NULL)
        list->last->next = c;
    else
        list->first = c;
    list->last = c;
    list->count++;
}

void server_remove(struct http_conn *c)
{
    struct conn_list *list = c->list;

    if (list == NULL)
        return;
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        list->first = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    else
        list->last = c->prev;
    list->count--;
    c->list = NULL;
    c->prev = c->next = NULL;
}

/* Makes room: the connection that has waited longest without ever being authorised goes. */
static void drop_oldest_waiting(struct http_server *s)
{
    struct http_conn *c = s->waiting.first;

    while (c != NULL && c->state == CONN_DEAD)
        c = c->next;
    if (c != NULL)
        conn_kill(c);
}

/* Accepting. */

static bool peer_allowed(const struct http_server *s, const struct peer *peer)
{
    if (s->opts.accept_peer != NULL)
        return s->opts.accept_peer(s->opts.arg, peer);
    return peer->uid == 0 || peer->uid == geteuid();
}

/* A peer that vanished without a word is noticed within a minute, also while nothing is sent. */
static void set_tcp_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},   {IPPROTO_TCP, TCP_USER_TIMEOUT, 30000},
    };
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof(options[i].value));
}

/* Takes fd. */
static int welcome(struct http_server *s, int fd, bool filter)
{
    AUTO_CLOSE int owned = fd;
    struct peer peer;
    int domain = 0;
    socklen_t domain_len = sizeof(domain);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_len) < 0)
        return -errno;
    peer_identify(s->opts.diag_fd > 0 ? s->opts.diag_fd : -1, fd, &peer);
    if (domain == AF_UNIX && (!peer.known || (filter && !peer_allowed(s, &peer))))
        return -EPERM;
    if (domain != AF_UNIX)
        set_tcp_options(fd);
    if (http_server_count(s) >= s->opts.max_conns)
        return -EMFILE;
    if (s->waiting.count >= s->opts.max_waiting)
        drop_oldest_waiting(s);
    return conn_new(s, TAKE_FD(owned), domain == AF_UNIX, &peer);
}

static void on_accept(struct loop_io *io, uint32_t events);

static void on_pause_over(struct loop_timer *t)
{
    struct http_listener *l = container_of(t, struct http_listener, pause);
    (void)loop_io_events(&l->io, l->server->held ? 0 : EPOLLIN);
}

/* Out of descriptors or memory: the listener would be readable for ever and the loop would spin. So
 * it rests, the backlog waits, and somebody who never said who he is makes room. */
static void pause_accept(struct http_listener *l)
{
    drop_oldest_waiting(l->server);
    (void)loop_io_events(&l->io, 0);
    loop_timer_start(l->server->loop, &l->pause, ACCEPT_PAUSE_NS, on_pause_over);
}

static void on_accept(struct loop_io *io, uint32_t events)
{
    struct http_listener *l = container_of(io, struct http_listener, io);

    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            (void)welcome(l->server, fd, true);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accept(l);
        else if (errno != EAGAIN)
            continue; /* that one connection failed (ECONNABORTED and the like), not the listener */
        return;
    }
}

static struct http_listener *free_listener(struct http_server *s)
{
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        if (s->listeners[i].fd < 0)
            return &s->listeners[i];
    return NULL;
}

static void stop_listener(struct http_listener *l)
{
    loop_timer_stop(&l->pause);
    loop_io_stop(&l->io);
    listen_unlink(l);
    if (l->fd >= 0)
        (void)close(TAKE_FD(l->fd));
}

static int start_listener(struct http_listener *l, struct err *err)
{
    uint32_t events = l->server->held ? 0 : EPOLLIN;
    int r = loop_io_start(l->server->loop, &l->io, l->fd, events, on_accept);
    if (r < 0) {
        stop_listener(l);
        return err_sys(err, -r, "watch a listening socket");
    }
    return 0;
}

int http_server_listen_unix(struct http_server *s, const char *path, mode_t mode, struct err *err)
{
    struct http_listener *l = free_listener(s);
    if (l == NULL)
        return err_set(err, ERR_LIMIT, "too many listening sockets");
    int r = listen_unix(path, mode != 0 ? mode : 0600, l, err);
    return r < 0 ? r : start_listener(l, err);
}

int http_server_listen_tcp(struct http_server *s, const char *address, uint16_t port,
                           struct err *err)
{
    struct http_listener *l = free_listener(s);
    if (l == NULL)
        return err_set(err, ERR_LIMIT, "too many listening sockets");
    int bound = listen_tcp(address, port, s->opts.authorize == NULL, l, err);
    if (bound < 0)
        return bound;
    int r = start_listener(l, err);
    return r < 0 ? r : bound;
}

int http_server_listen_fd(struct http_server *s, int fd, struct err *err)
{
    AUTO_CLOSE int owned = fd;
    struct http_listener *l = free_listener(s);

    if (l == NULL)
        return err_set(err, ERR_LIMIT, "too many listening sockets");
    int r = listen_fd(TAKE_FD(owned), s->opts.authorize == NULL, l, err);
    return r < 0 ? r : start_listener(l, err);
}

int http_server_adopt(struct http_server *s, int fd, struct err *err)
{
    int r = fd_set_nonblock(fd, true);
    if (r < 0)
        (void)close(fd);
    else
        r = welcome(s, fd, false);
    return r < 0 ? err_sys(err, -r, "serve a connected socket") : 0;
}

/* Life. */

static void set_defaults(struct http_server_opts *o)
{
    o->max_head = o->max_head > 0 ? o->max_head : HTTP1_HEAD_MAX;
    o->max_queue = o->max_queue > 0 ? o->max_queue : 32u * 1024 * 1024;
    o->low_water = o->low_water > 0 ? o->low_water : 64u * 1024;
    o->max_conns = o->max_conns > 0 ? o->max_conns : 4096;
    o->max_waiting = o->max_waiting > 0 ? o->max_waiting : 1024;
    o->head_ns = o->head_ns > 0 ? o->head_ns : 5 * NSEC_PER_SEC;
    o->idle_ns = o->idle_ns > 0 ? o->idle_ns : 60 * NSEC_PER_SEC;
    o->stall_ns = o->stall_ns > 0 ? o->stall_ns : 30 * NSEC_PER_SEC;
}

int http_server_new(struct loop *loop, const struct http_server_opts *opts,
                    struct http_server **ret, struct err *err)
{
    static const struct http_server_opts none;
    struct http_server *s = xnew(struct http_server);

    s->loop = loop;
    s->opts = opts != NULL ? *opts : none;
    set_defaults(&s->opts);
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++) {
        s->listeners[i].server = s;
        s->listeners[i].fd = -1;
    }
    *ret = s;
    return 0;
}

int http_server_add_routes(struct http_server *s, const struct http_route *routes, void *arg,
                           struct err *err)
{
    if (s->n_tables == SERVER_TABLES_MAX)
        return err_set(err, ERR_LIMIT, "too many route tables");
    s->tables[s->n_tables].routes = routes;
    s->tables[s->n_tables].arg = arg;
    s->n_tables++;
    return 0;
}

static void free_conns(struct conn_list *list)
{
    while (list->first != NULL) {
        struct http_conn *c = list->first;
        if (c->req != NULL)
            request_lost(c->req);
        conn_free(c);
    }
}

void http_server_free(struct http_server *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        stop_listener(&s->listeners[i]);
    while (s->sockets.first != NULL)
        ws_conn_abort(s->sockets.first, WS_CODE_GOING_AWAY);
    free_conns(&s->waiting);
    free_conns(&s->known);
    free(s);
}

void http_server_hold(struct http_server *s, bool on)
{
    s->held = on;
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        if (s->listeners[i].fd >= 0 && s->listeners[i].pause.loop == NULL)
            (void)loop_io_events(&s->listeners[i].io, on ? 0 : EPOLLIN);
}

static void drain_conns(struct conn_list *list)
{
    for (struct http_conn *c = list->first; c != NULL; c = c->next)
        if (c->state == CONN_HEAD && c->in.len == 0)
            conn_kill(c);
}

void http_server_drain(struct http_server *s, unsigned code, const char *reason)
{
    s->draining = true;
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        stop_listener(&s->listeners[i]);
    for (struct ws_conn *c = s->sockets.first; c != NULL; c = ws_conn_next(c))
        ws_close(c, code, reason);
    drain_conns(&s->waiting);
    drain_conns(&s->known);
}

static size_t revoke_answers(struct conn_list *list, http_good_fn *good, void *arg,
                             const char *reason)
{
    size_t n = 0;

    for (struct http_conn *c = list->first, *next; c != NULL; c = next) {
        struct http_request *req = c->req;
        next = c->next;
        if (c->state != CONN_HANDLER || req == NULL || !req->started ||
            good(arg, req->user, request_pass(req)))
            continue;
        request_revoke(req, reason);
        n++;
    }
    return n;
}

size_t http_server_revoke(struct http_server *s, http_good_fn *good, void *arg, const char *reason)
{
    size_t n = revoke_answers(&s->known, good, arg, reason);

    for (struct ws_conn *c = s->sockets.first, *next; c != NULL; c = next) {
        const struct ws_user *user = ws_conn_user(c);
        next = ws_conn_next(c);
        if (good(arg, user->user, user->pass) || !ws_conn_end(c, WS_CODE_POLICY, reason))
            continue;
        n++;
    }
    return n;
}

size_t http_server_count(const struct http_server *s)
{
    return s->waiting.count + s->known.count + s->sockets.count;
}

size_t http_server_count_ws(const struct http_server *s)
{
    return s->sockets.count;
}

/* Once a second at most; every answer carries it. */
const char *server_date(struct http_server *s)
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    uint64_t sec = clock_real(loop_clock(s->loop)) / NSEC_PER_SEC;
    time_t t = (time_t)sec;
    struct tm tm;

    if (sec == s->date_sec && s->date[0] != '\0')
        return s->date;
    s->date_sec = sec;
    if (gmtime_r(&t, &tm) == NULL)
        return "Thu, 01 Jan 1970 00:00:00 GMT";
    (void)str_fmt(s->date, sizeof(s->date), "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday],
                  tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min,
                  tm.tm_sec);
    return s->date;
}
