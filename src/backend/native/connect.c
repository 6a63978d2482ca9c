/* SPDX-License-Identifier: Apache-2.0 */

/* Connections to servers inside a native sandbox, and listeners for its programs. PID 1 makes the
 * socket, because a socket belongs to the network namespace of the process that makes it; boxd
 * waits until it is connected. A server that listens on ::1 only is found by a second try. */

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"

#define DIALS_MAX 64U                  /* of one sandbox at once: their answers fit its socket */
#define DIAL_NS (10ULL * NSEC_PER_SEC) /* until it is connected */

/*   ASKED ──► CONNECTING ──► TELLING
 *     ^  └──────────────────────^ │
 *     └───── second try ──────────┘   */
struct native_dial {
    struct native_sandbox *home; /* NULL: the sandbox is gone, or it has ended */
    LIST_ENTRY(native_dial) entry;
    struct loop *loop;
    uint32_t id;
    uint16_t port;
    bool ipv6;
    int fd; /* owned; -1: PID 1 has not answered */
    struct loop_io io;
    struct loop_timer timer;
    backend_connected_fn *done;
    void *arg;
    struct err err;
};

static void dial_leave(struct native_dial *d)
{
    if (d->home == NULL)
        return;
    LIST_REMOVE(d, entry);
    d->home->n_dials--;
    d->home = NULL;
}

/* With d->fd, or with d->err. */
static void dial_tell(struct native_dial *d)
{
    loop_io_stop(&d->io);
    loop_timer_stop(&d->timer);
    dial_leave(d);
    backend_tell_connected(d->loop, d->fd, &d->err, d->done, d->arg);
    free(d);
}

static void dial_fail(struct native_dial *d)
{
    loop_io_stop(&d->io);
    fd_close_many(&d->fd, 1);
    dial_tell(d);
}

static int dial_ask(struct native_dial *d)
{
    struct init_connect m = {
        .type = INIT_MSG_CONNECT, .id = d->id, .port = d->port, .ipv6 = d->ipv6};
    return native_send(d->home, &m, sizeof(m));
}

static void dial_refused(struct native_dial *d, int error)
{
    loop_io_stop(&d->io);
    fd_close_many(&d->fd, 1);
    if (!d->ipv6) {
        d->ipv6 = true;
        d->id = d->home->next_dial++;
        if (dial_ask(d) == 0)
            return;
    }
    if (error == ECONNREFUSED || error == EAFNOSUPPORT || error == EADDRNOTAVAIL ||
        error == ENETUNREACH)
        (void)err_set(&d->err, ERR_UNAVAILABLE,
                      "no program in the session listens on port %u of its loopback address",
                      d->port);
    else
        (void)err_sys(&d->err, error, "connect to port %u in the session", d->port);
    dial_tell(d);
}

static void on_connected(struct loop_io *io, uint32_t events)
{
    struct native_dial *d = container_of(io, struct native_dial, io);
    int error = 0;
    socklen_t len = sizeof(error);
    if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (error != 0)
        dial_refused(d, error);
    else
        dial_tell(d);
}

static void on_late(struct loop_timer *t)
{
    struct native_dial *d = container_of(t, struct native_dial, timer);
    (void)err_set(&d->err, ERR_UNAVAILABLE,
                  "port %u in the session accepted no connection for %llu s", d->port,
                  (unsigned long long)(DIAL_NS / NSEC_PER_SEC));
    dial_fail(d);
}

/* Only a socket of the right kind is used: PID 1 runs beside hostile code. */
static bool is_stream_socket(int fd)
{
    int type = 0, domain = 0;
    socklen_t len = sizeof(type);
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
           (domain == AF_INET || domain == AF_INET6);
}

bool native_on_connected(struct native_sandbox *sb, const struct init_connected *m, int *fds,
                         size_t n_fds)
{
    struct native_dial *d;
    LIST_FOREACH (d, &sb->dials, entry)
        if (d->id == m->id && d->fd < 0)
            break;
    if (d == NULL)
        return true; /* it took too long */
    if (n_fds == 0) {
        dial_refused(d, m->error > 0 ? m->error : EMFILE);
        return true;
    }
    if (!is_stream_socket(fds[0]))
        return false;
    d->fd = TAKE_FD(fds[0]);
    int r = fd_set_nonblock(d->fd, true);
    if (r == 0)
        r = loop_io_start(d->loop, &d->io, d->fd, EPOLLOUT, on_connected);
    if (r < 0) {
        (void)err_sys(&d->err, -r, "watch a connection to the session");
        dial_fail(d);
    }
    return true;
}

int native_connect(struct sandbox *base, uint16_t port, backend_connected_fn *done, void *arg,
                   struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    if (sb->state != NATIVE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not ready");
    if (sb->n_dials >= DIALS_MAX)
        return err_set(err, ERR_LIMIT, "%u connections to this session are being made already",
                       sb->n_dials);
    struct native_dial *d = xnew(struct native_dial);
    *d = (struct native_dial){.home = sb,
                              .loop = sb->native->loop,
                              .id = sb->next_dial++,
                              .port = port,
                              .fd = -1,
                              .done = done,
                              .arg = arg};
    int r = dial_ask(d);
    if (r < 0) {
        free(d);
        return err_set(err, ERR_UNAVAILABLE, "the session's first process takes no requests now");
    }
    LIST_INSERT_HEAD(&sb->dials, d, entry);
    sb->n_dials++;
    loop_timer_start(d->loop, &d->timer, DIAL_NS, on_late);
    return 0;
}

void native_dials_lose(struct native_sandbox *sb)
{
    struct native_dial *d, *next;
    LIST_FOREACH_SAFE (d, &sb->dials, entry, next) {
        (void)err_set(&d->err, ERR_UNAVAILABLE, "the session has ended");
        dial_fail(d);
    }
}

/* Listeners inside ----------------------------------------------------------------------------- */

struct native_listen {
    backend_listening_fn *done;
    void *arg;
};

/* They come from box-priv, so that no program inside can make them block. */
static void on_listening(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_listen *l = arg;
    int none[2] = {-1, -1};
    int got[2] = {n_fds > 0 ? fds[0] : -1, n_fds > 1 ? fds[1] : -1};
    struct err err = {0};
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0 && reply->err.code == ERR_INVALID)
        (void)err_set(&err, ERR_UNSUPPORTED,
                      "box-priv was started by an earlier version of boxd and cannot listen in "
                      "sessions; stop boxd and start it again");
    else if (reply->result < 0)
        err = reply->err;
    else if (n_fds == 0)
        (void)err_set(&err, ERR_LIMIT, "boxd has no file descriptor left for another listener");
    l->done(l->arg, err.code != ERR_NONE ? none : got, err.code != ERR_NONE ? &err : NULL);
    for (size_t i = 0; err.code == ERR_NONE && i < n_fds && i < 2; i++)
        fds[i] = got[i];
}

int native_listen(struct sandbox *base, uint16_t port, backend_listening_fn *done, void *arg,
                  struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    struct native_listen *l = xnew(struct native_listen);
    *l = (struct native_listen){done, arg};
    int r = priv_client_listen(sb->native->priv, sb->name, port, on_listening, l, err);
    if (r < 0)
        free(l);
    return r;
}
