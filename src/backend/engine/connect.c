/* SPDX-License-Identifier: Apache-2.0 */

/* Connections to servers inside a container, and listeners for its programs. box-guest connects to
 * the server and then to the session's socket, where it says the random number that it was told for
 * this connection. Programs of the session can connect there, too: a connection without the number
 * is closed. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define CALLERS_MAX 16U /* that have not said their number */
#define DIAL_NS (10ULL * NSEC_PER_SEC)

struct engine_dial {
    struct engine_sandbox *home; /* NULL: it has ended */
    LIST_ENTRY(engine_dial) entry;
    struct loop *loop;
    uint32_t id;
    struct guest_connect order;
    bool listens; /* for programs inside: box-guest has to say that it does, too */
    int fd;       /* owned; -1: none yet */
    struct loop_timer timer;
    backend_connected_fn *done;
    void *arg;
    struct err err;
};

/* A connection to the session's socket that may be one of ours. */
struct engine_caller {
    struct engine_sandbox *home;
    LIST_ENTRY(engine_caller) entry;
    int fd; /* owned */
    struct loop_io io;
    struct loop_timer timer;
    unsigned char said[GUEST_SECRET_LEN];
    size_t len;
};

static void caller_free(struct engine_caller *c)
{
    LIST_REMOVE(c, entry);
    c->home->n_callers--;
    loop_io_stop(&c->io);
    loop_timer_stop(&c->timer);
    fd_close_many(&c->fd, 1);
    free(c);
}

/* With d->fd, or with d->err. */
static void dial_tell(struct engine_dial *d)
{
    struct engine_sandbox *sb = TAKE_PTR(d->home);
    loop_timer_stop(&d->timer);
    LIST_REMOVE(d, entry);
    if (--sb->n_dials == 0) {
        if (sb->linked)
            engine_link_extra(&sb->link, false);
        while (!LIST_EMPTY(&sb->callers))
            caller_free(LIST_FIRST(&sb->callers));
    }
    backend_tell_connected(d->loop, d->fd, &d->err, d->done, d->arg);
    free(d);
}

static void dial_fail(struct engine_dial *d)
{
    fd_close_many(&d->fd, 1);
    dial_tell(d);
}

static void on_late(struct loop_timer *t)
{
    struct engine_dial *d = container_of(t, struct engine_dial, timer);
    (void)err_set(&d->err, ERR_UNAVAILABLE, "port %u in the session %s for %llu s", d->order.port,
                  d->listens ? "could not be listened on" : "accepted no connection",
                  (unsigned long long)(DIAL_NS / NSEC_PER_SEC));
    dial_fail(d);
}

static struct engine_dial *dial_by_secret(struct engine_sandbox *sb, const unsigned char *said)
{
    struct engine_dial *d;
    LIST_FOREACH (d, &sb->dials, entry)
        if (!d->listens && memcmp(d->order.secret, said, GUEST_SECRET_LEN) == 0)
            return d;
    return NULL;
}

static void on_caller(struct loop_io *io, uint32_t events)
{
    struct engine_caller *c = container_of(io, struct engine_caller, io);
    ssize_t n = recv(c->fd, c->said + c->len, sizeof(c->said) - c->len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    c->len += n > 0 ? (size_t)n : 0;
    if (n > 0 && c->len < sizeof(c->said))
        return;
    struct engine_dial *d = n > 0 ? dial_by_secret(c->home, c->said) : NULL;
    if (d != NULL) {
        loop_io_stop(&c->io);
        d->fd = TAKE_FD(c->fd);
    }
    caller_free(c);
    if (d != NULL)
        dial_tell(d);
}

static void on_caller_late(struct loop_timer *t)
{
    caller_free(container_of(t, struct engine_caller, timer));
}

void engine_on_extra(struct engine_sandbox *sb, int fd)
{
    struct engine_caller *c = xnew(struct engine_caller);
    c->home = sb;
    c->fd = fd;
    LIST_INSERT_HEAD(&sb->callers, c, entry);
    sb->n_callers++;
    if (sb->n_callers > CALLERS_MAX ||
        loop_io_start(sb->link.loop, &c->io, fd, EPOLLIN, on_caller) < 0)
        caller_free(c);
    else
        loop_timer_start(sb->link.loop, &c->timer, DIAL_NS, on_caller_late);
}

static struct engine_dial *dial_by_id(struct engine_sandbox *sb, uint32_t id)
{
    struct engine_dial *d;
    LIST_FOREACH (d, &sb->dials, entry)
        if (d->id == id)
            return d;
    return NULL;
}

void engine_on_listening(struct engine_sandbox *sb, const struct guest_head *head)
{
    struct engine_dial *d = dial_by_id(sb, head->id);
    if (d != NULL && d->listens)
        dial_tell(d);
}

void engine_on_refused(struct engine_sandbox *sb, const struct guest_head *head)
{
    struct engine_dial *d = dial_by_id(sb, head->id);
    if (d == NULL)
        return;
    if (d->listens && head->flags == EADDRINUSE)
        (void)err_set(&d->err, ERR_CONFLICT, "a program in the session listens on port %u already",
                      d->order.port);
    else if (d->listens && head->flags == EACCES)
        (void)err_set(&d->err, ERR_UNSUPPORTED,
                      "this backend cannot listen on port %u of the session; choose one from 1024 "
                      "on: ADDRESS:PORT:INSIDE_PORT",
                      d->order.port);
    else if (head->flags == ECONNREFUSED || head->flags == EADDRNOTAVAIL ||
             head->flags == EAFNOSUPPORT || head->flags == ENETUNREACH)
        (void)err_set(&d->err, ERR_UNAVAILABLE,
                      "no program in the session listens on port %u of its loopback address",
                      d->order.port);
    else
        (void)err_sys(&d->err, head->flags > 0 && head->flags < 4096 ? (int)head->flags : EIO,
                      "%s port %u in the session", d->listens ? "listen on" : "connect to",
                      d->order.port);
    dial_fail(d);
}

/* Takes *want, also on failure: what is told, and the listener if it is to be one. */
static int dial_start(struct engine_sandbox *sb, const struct engine_dial *want, struct err *err)
{
    AUTO_FREE struct engine_dial *d = xnew(struct engine_dial);
    AUTO_CLOSE int fd = want->fd;
    *d = *want;
    d->home = sb;
    d->loop = sb->link.loop;
    d->id = ++sb->next_dial;
    if (!d->listens &&
        getrandom(d->order.secret, sizeof(d->order.secret), 0) != (ssize_t)GUEST_SECRET_LEN)
        return err_sys(err, errno, "random number");
    /* Before box-guest calls: what others have left in the queue makes room for it. */
    if (!d->listens)
        engine_link_extra(&sb->link, true);
    if (engine_send(sb, d->listens ? GUEST_LISTEN : GUEST_CONNECT, d->id, 0, &d->order,
                    sizeof(d->order)) < 0) {
        if (sb->n_dials == 0)
            engine_link_extra(&sb->link, false);
        return err_set(err, ERR_UNAVAILABLE, "the session's supervisor is not connected just now");
    }
    LIST_INSERT_HEAD(&sb->dials, d, entry);
    sb->n_dials++;
    loop_timer_start(d->loop, &d->timer, DIAL_NS, on_late);
    d->fd = TAKE_FD(fd);
    d = NULL;
    return 0;
}

int engine_connect(struct sandbox *base, uint16_t port, backend_connected_fn *done, void *arg,
                   struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    if (sb->state != ENGINE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not ready");
    if (sb->n_dials >= GUEST_CONNS_MAX)
        return err_set(err, ERR_LIMIT, "%u connections to this session are being made already",
                       sb->n_dials);
    return dial_start(
        sb, &(struct engine_dial){.order = {.port = port}, .fd = -1, .done = done, .arg = arg},
        err);
}

struct engine_listen {
    backend_listening_fn *done;
    void *arg;
};

static void on_listener(void *arg, int fd, const struct err *err)
{
    AUTO_FREE struct engine_listen *l = arg;
    int fds[2] = {fd, -1};
    l->done(l->arg, fds, fd < 0 ? err : NULL);
    fd_close_many(fds, 2);
}

int engine_host_listen(struct sandbox *base, uint16_t port, backend_listening_fn *done, void *arg,
                       struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    if (sb->state != ENGINE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not ready");
    int fd = engine_link_listen(&sb->link, port, err);
    if (fd < 0)
        return fd;
    struct engine_listen *l = xnew(struct engine_listen);
    *l = (struct engine_listen){done, arg};
    int r = dial_start(
        sb,
        &(struct engine_dial){
            .order = {.port = port}, .listens = true, .fd = fd, .done = on_listener, .arg = l},
        err);
    if (r < 0)
        free(l);
    return r;
}

void engine_dials_lose(struct engine_sandbox *sb)
{
    while (!LIST_EMPTY(&sb->dials)) {
        struct engine_dial *d = LIST_FIRST(&sb->dials);
        (void)err_set(&d->err, ERR_UNAVAILABLE, "the session has ended");
        dial_fail(d);
    }
}
