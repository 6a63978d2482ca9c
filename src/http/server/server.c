/* SPDX-License-Identifier: Apache-2.0 */

/* The HTTP server: its listening sockets, tables of routes, and connections. */

#include "http/server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define BACKLOG 4096 /* the kernel cuts it to net.core.somaxconn */
#define ACCEPTS_PER_EVENT 64
#define ACCEPT_PAUSE_NS (100 * NSEC_PER_MSEC)

/* Sockets that listen, not blocking. */

/* The directory of a path, opened, and the name in it. */
static int open_parent(const char *path, const char **ret_name, struct err *err)
{
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *dir = NULL;

    if (slash == NULL)
        dir = xstrdup(".");
    else
        dir = xstrndup(path, slash == path ? 1 : (size_t)(slash - path));
    *ret_name = slash == NULL ? path : slash + 1;
    if (**ret_name == '\0')
        return err_set(err, ERR_INVALID, "'%s' names no socket", path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "open directory '%s'", dir);
    return fd;
}

/* Paths too long for an address go through the directory's descriptor. */
static int fill_address(struct sockaddr_un *sun, const char *path, int dir, const char *name)
{
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (str_copy(sun->sun_path, sizeof(sun->sun_path), path) == 0)
        return 0;
    return str_fmt(sun->sun_path, sizeof(sun->sun_path), "/proc/self/fd/%d/%s", dir, name);
}

/* A process listens at that address, or might. */
static bool is_alive(const struct sockaddr_un *sun)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return true;
    /* A full backlog is EAGAIN, a foreign socket EACCES or EPROTOTYPE: only a refusal is a no. */
    return connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 || errno != ECONNREFUSED;
}

static int remove_stale(int dir, const char *name, const struct sockaddr_un *sun, const char *path,
                        struct err *err)
{
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at '%s'", path);
    if (!S_ISSOCK(st.st_mode))
        return err_set(err, ERR_CONFLICT, "'%s' exists and is not a socket", path);
    if (is_alive(sun))
        return err_set(err, ERR_CONFLICT, "another process is listening on '%s'", path);
    if (unlinkat(dir, name, 0) < 0)
        return err_sys(err, errno, "remove stale socket '%s'", path);
    return 0;
}

static int listen_unix(const char *path, mode_t mode, struct http_listener *l, struct err *err)
{
    struct sockaddr_un sun;
    struct stat st;
    const char *name;
    int r;

    AUTO_CLOSE int dir = open_parent(path, &name, err);
    if (dir < 0)
        return dir;
    if (fill_address(&sun, path, dir, name) < 0)
        return err_set(err, ERR_INVALID, "socket name '%s' is too long", name);
    /* Two of us starting at once must not take each other's unfinished socket for a stale one. */
    if (flock(dir, LOCK_EX | LOCK_NB) < 0)
        return err_sys(err, errno, "lock the directory of '%s'", path);
    r = remove_stale(dir, name, &sun, path, err);
    if (r < 0)
        return r;

    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a unix socket");
    /* The mode of an unbound socket becomes that of its file, less the umask: no process can get in
     * between bind and a later chmod. bind does not follow a symlink. */
    mode_t mask = umask(0);
    bool bound = fchmod(fd, mode) == 0 && bind(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0;
    int error = errno;
    (void)umask(mask);
    errno = error;
    if (!bound)
        return err_sys(err, errno, "bind '%s'", path);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "look at '%s'", path);
    if (!S_ISSOCK(st.st_mode) || (st.st_mode & 07777 & ~mode) != 0) {
        (void)unlinkat(dir, name, 0);
        return err_set(err, ERR_UNSUPPORTED, "'%s' does not keep its mode", path);
    }
    if (listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on '%s'", path);
    l->path = xstrdup(path);
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    l->fd = TAKE_FD(fd);
    return 0;
}

static void listen_unlink(struct http_listener *l)
{
    struct stat st;

    if (l->path == NULL)
        return;
    /* Only if it is still ours: another server may have taken the place. */
    if (lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        (void)unlink(l->path);
    free(TAKE_PTR(l->path));
}

static bool parse_address(const char *text, uint16_t port, union address *ret, socklen_t *ret_len)
{
    *ret = (union address){0};
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons(port);
        *ret_len = sizeof(ret->v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &ret->v6.sin6_addr) != 1)
        return false;
    ret->v6.sin6_family = AF_INET6;
    ret->v6.sin6_port = htons(port);
    *ret_len = sizeof(ret->v6);
    return true;
}

static bool is_loopback(const union address *a)
{
    if (a->any.sa_family == AF_INET)
        return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

/* Returns the port. */
static int listen_tcp(const char *address, uint16_t port, bool loopback_only,
                      struct http_listener *l, struct err *err)
{
    const int on = 1;
    union address a;
    socklen_t len;

    if (!parse_address(address, port, &a, &len))
        return err_set(err, ERR_INVALID, "'%s' is not a numeric address", address);
    if (loopback_only && !is_loopback(&a))
        return err_set(err, ERR_DENIED, "%s can be reached from outside and no token is set",
                       address);
    AUTO_CLOSE int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a TCP socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &a.any, len) < 0)
        return err_sys(err, errno, "bind %s port %u", address, port);
    if (listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on %s port %u", address, port);
    if (getsockname(fd, &a.any, &len) < 0)
        return err_sys(err, errno, "read the port of %s", address);
    l->fd = TAKE_FD(fd);
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

/* Takes fd. Only a service manager should hand us sockets; what it got wrong is better said at once
 * than found out by clients. */
static int listen_fd(int fd, bool loopback_only, struct http_listener *l, struct err *err)
{
    AUTO_CLOSE int owned = fd;
    union address a = {0};
    socklen_t len = sizeof(a), size = sizeof(int);
    int type = 0, listening = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return err_sys(err, errno, "descriptor %d was to be a socket", fd);
    size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0)
        return err_sys(err, errno, "descriptor %d", fd);
    if (type != SOCK_STREAM || !listening)
        return err_set(err, ERR_INVALID,
                       "descriptor %d is not a stream socket that listens (ListenStream=, "
                       "Accept=no)",
                       fd);
    if (getsockname(fd, &a.any, &len) < 0)
        return err_sys(err, errno, "address of descriptor %d", fd);
    bool tcp = a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6;
    if (!tcp && a.any.sa_family != AF_UNIX)
        return err_set(err, ERR_INVALID, "descriptor %d is neither a unix nor a TCP socket", fd);
    if (tcp && loopback_only && !is_loopback(&a))
        return err_set(err, ERR_DENIED,
                       "descriptor %d can be reached from outside and no token is set", fd);
    int r = fd_set_nonblock(fd, true);
    if (r < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_sys(err, r < 0 ? -r : errno, "descriptor %d", fd);
    l->fd = TAKE_FD(owned);
    return 0;
}

/* Accepting. */

/* Makes room: the connection that has waited longest without ever being authorised goes. */
static void drop_oldest_waiting(struct http_server *s)
{
    struct http_conn *c = TAILQ_FIRST(&s->waiting.conns);

    while (c != NULL && c->state == CONN_DEAD)
        c = TAILQ_NEXT(c, link);
    if (c != NULL)
        conn_kill(c);
}

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

static void on_pause_over(struct loop_timer *t)
{
    struct http_listener *l = container_of(t, struct http_listener, pause);
    (void)loop_io_events(&l->io, l->server->held ? 0 : EPOLLIN);
}

/* Out of descriptors or memory: the listener would be readable for ever and the loop would spin. So
 * it rests, the backlog waits, and a connection without an authorised request makes room. */
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

/* A place for one more, or NULL. */
static struct http_listener *free_listener(struct http_server *s, struct err *err)
{
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        if (s->listeners[i].fd < 0)
            return &s->listeners[i];
    (void)err_set(err, ERR_LIMIT,
                  "the server has %d listening sockets already, and can have no more",
                  SERVER_LISTENERS_MAX);
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
    struct http_listener *l = free_listener(s, err);
    if (l == NULL)
        return -ENOBUFS;
    int r = listen_unix(path, mode != 0 ? mode : 0600, l, err);
    return r < 0 ? r : start_listener(l, err);
}

int http_server_listen_tcp(struct http_server *s, const char *address, uint16_t port,
                           struct err *err)
{
    struct http_listener *l = free_listener(s, err);
    if (l == NULL)
        return -ENOBUFS;
    int bound = listen_tcp(address, port, s->opts.authorize == NULL, l, err);
    if (bound < 0)
        return bound;
    int r = start_listener(l, err);
    return r < 0 ? r : bound;
}

int http_server_listen_fd(struct http_server *s, int fd, struct err *err)
{
    AUTO_CLOSE int owned = fd;
    struct http_listener *l = free_listener(s, err);

    if (l == NULL)
        return -ENOBUFS;
    int r = listen_fd(TAKE_FD(owned), s->opts.authorize == NULL, l, err);
    return r < 0 ? r : start_listener(l, err);
}

bool http_server_listens(const struct http_server *s, uint16_t port)
{
    bool found = false;

    for (size_t i = 0; i < SERVER_LISTENERS_MAX && !found; i++) {
        union address a = {0};
        socklen_t len = sizeof(a);
        if (s->listeners[i].fd < 0 || getsockname(s->listeners[i].fd, &a.any, &len) < 0)
            continue;
        found = (a.any.sa_family == AF_INET && ntohs(a.v4.sin_port) == port) ||
                (a.any.sa_family == AF_INET6 && ntohs(a.v6.sin6_port) == port);
    }
    return found;
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
    TAILQ_INIT(&s->waiting.conns);
    TAILQ_INIT(&s->known.conns);
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
    for (struct http_conn *c; (c = TAILQ_FIRST(&list->conns)) != NULL; conn_free(c))
        if (c->req != NULL)
            request_lost(c->req);
}

void http_server_free(struct http_server *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        stop_listener(&s->listeners[i]);
    while (!LIST_EMPTY(&s->sockets.conns))
        ws_conn_abort(LIST_FIRST(&s->sockets.conns), WS_CODE_GOING_AWAY);
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
    struct http_conn *c;

    TAILQ_FOREACH (c, &list->conns, link)
        if ((c->state == CONN_HEAD && c->in.len == 0) ||
            (c->state == CONN_HANDLER && c->req != NULL && c->req->raw))
            conn_kill(c);
}

void http_server_drain(struct http_server *s, unsigned code, const char *reason)
{
    s->draining = true;
    for (size_t i = 0; i < SERVER_LISTENERS_MAX; i++)
        stop_listener(&s->listeners[i]);
    for (struct ws_conn *c = LIST_FIRST(&s->sockets.conns); c != NULL; c = ws_conn_next(c))
        ws_close(c, code, reason);
    drain_conns(&s->waiting);
    drain_conns(&s->known);
}

static size_t revoke_answers(struct conn_list *list, http_good_fn *good, void *arg,
                             const char *reason)
{
    struct http_conn *c, *next;
    size_t n = 0;

    TAILQ_FOREACH_SAFE (c, &list->conns, link, next) {
        struct http_request *req = c->req;
        bool streams = req != NULL && (req->started || (req->body_fn != NULL && !req->body_ended));
        if (c->state != CONN_HANDLER || !streams || good(arg, req->user, request_pass(req)))
            continue;
        request_revoke(req, reason);
        n++;
    }
    return n;
}

size_t http_server_revoke(struct http_server *s, http_good_fn *good, void *arg, const char *reason)
{
    size_t n = revoke_answers(&s->known, good, arg, reason);

    for (struct ws_conn *c = LIST_FIRST(&s->sockets.conns), *next; c != NULL; c = next) {
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
