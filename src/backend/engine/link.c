/* SPDX-License-Identifier: Apache-2.0 */

/* The unix socket of one session that its box-guest connects to: frames in both directions. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "base/fd.h"
#include "base/path.h"

#define READ_CHUNK (64U * 1024U)
#define READS_PER_TURN 16 /* then other sessions get their turn */
#define QUEUE_MAX (64U << 20)

static void drop(struct engine_link *l)
{
    loop_io_stop(&l->io);
    fd_close_many(&l->fd, 1);
    buf_done(&l->in);
    buf_done(&l->out);
    l->out_pos = 0;
}

static void on_connection(struct loop_io *io, uint32_t events);

/* While the guest is connected, others are not accepted unless they are wanted. */
static void watch_listener(struct engine_link *l)
{
    bool wanted = l->listen_fd >= 0 && (l->fd < 0 || l->extra);
    if (!wanted)
        loop_io_stop(&l->listen_io);
    else if (l->listen_io.loop == NULL)
        (void)loop_io_start(l->loop, &l->listen_io, l->listen_fd, EPOLLIN, on_connection);
}

void engine_link_extra(struct engine_link *l, bool on)
{
    l->extra = on;
    watch_listener(l);
}

static void lose(struct engine_link *l)
{
    if (l->fd < 0)
        return;
    drop(l);
    watch_listener(l);
    l->handlers->lost(l->arg);
}

/* Frames that are complete; a callback may close the link. */
static void take_frames(struct engine_link *l)
{
    size_t pos = 0;
    while (l->fd >= 0 && l->in.len - pos >= sizeof(struct guest_head)) {
        struct guest_head head;
        memcpy(&head, l->in.data + pos, sizeof(head));
        if (head.len > GUEST_ANSWER_MAX) {
            lose(l);
            return;
        }
        if (l->in.len - pos - sizeof(head) < head.len)
            break;
        l->handlers->frame(l->arg, &head, l->in.data + pos + sizeof(head));
        pos += sizeof(head) + head.len;
    }
    if (l->fd >= 0)
        buf_consume(&l->in, pos);
}

static void flush(struct engine_link *l)
{
    bool had = l->out.len > l->out_pos;
    while (l->fd >= 0 && l->out_pos < l->out.len) {
        ssize_t n = send(l->fd, l->out.data + l->out_pos, l->out.len - l->out_pos,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return; /* the reading side tells */
        if (n < 0)
            break;
        l->out_pos += (size_t)n;
    }
    if (l->fd < 0)
        return;
    if (l->out_pos == l->out.len) {
        buf_done(&l->out);
        l->out_pos = 0;
    } else if (l->out_pos > l->out.len / 2) {
        buf_consume(&l->out, l->out_pos);
        l->out_pos = 0;
    }
    (void)loop_io_events(&l->io, EPOLLIN | (l->out.len > 0 ? EPOLLOUT : 0));
    if (had && l->out.len == 0 && l->handlers->drained != NULL)
        l->handlers->drained(l->arg);
}

static void on_io(struct loop_io *io, uint32_t events)
{
    struct engine_link *l = container_of(io, struct engine_link, io);
    if (events & EPOLLOUT)
        flush(l);
    for (int i = 0; i < READS_PER_TURN && l->fd >= 0; i++) {
        if (buf_reserve(&l->in, READ_CHUNK) < 0) {
            lose(l);
            return;
        }
        ssize_t n = recv(l->fd, l->in.data + l->in.len, READ_CHUNK, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0) {
            lose(l);
            return;
        }
        l->in.len += (size_t)n;
        take_frames(l);
    }
    if (l->fd >= 0 && l->in.len == 0)
        buf_done(&l->in);
}

/* One guest at a time; any other connection is one that it makes for a connection of ours, or from
 * a program of the session. */
static void on_connection(struct loop_io *io, uint32_t events)
{
    struct engine_link *l = container_of(io, struct engine_link, listen_io);
    int fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (l->fd >= 0) {
        l->handlers->extra(l->arg, fd);
        return;
    }
    if (loop_io_start(l->loop, &l->io, fd, EPOLLIN, on_io) < 0) {
        (void)close(fd);
        return;
    }
    l->fd = fd;
    watch_listener(l);
    l->handlers->connected(l->arg);
}

/* Short, whatever the name of the state directory: by way of a descriptor. */
static int listen_in(int dir_fd, const char *name, struct err *err)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a socket");
    (void)unlinkat(dir_fd, name, 0);
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), "/proc/self/fd/%d/%s", dir_fd, name);
    /* Any id in the container may connect; other users of the host cannot enter the directory. */
    if (bind(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 || fchmodat(dir_fd, name, 0666, 0) < 0 ||
        listen(fd, 64) < 0)
        return err_sys(err, errno, "listen for the container's supervisor");
    return TAKE_FD(fd);
}

void engine_link_init(struct engine_link *l, struct loop *loop,
                      const struct engine_link_handlers *handlers, void *arg)
{
    *l = (struct engine_link){
        .loop = loop, .dir_fd = -1, .listen_fd = -1, .fd = -1, .handlers = handlers, .arg = arg};
    buf_init(&l->in, sizeof(struct guest_head) + GUEST_ANSWER_MAX + READ_CHUNK);
    buf_init(&l->out, QUEUE_MAX);
}

int engine_link_open(struct engine_link *l, int parent_fd, const char *name, struct err *err)
{
    l->dir_fd = path_make_dir_at(parent_fd, name, 0711);
    if (l->dir_fd < 0)
        return err_sys(err, -l->dir_fd, "make the session's directory");
    (void)fchmod(l->dir_fd, 0711);
    int r = l->listen_fd = listen_in(l->dir_fd, GUEST_SOCKET_NAME, err);
    if (r >= 0 &&
        (r = loop_io_start(l->loop, &l->listen_io, l->listen_fd, EPOLLIN, on_connection)) < 0)
        (void)err_sys(err, -r, "watch the session's socket");
    if (r < 0)
        engine_link_close(l);
    return r < 0 ? r : 0;
}

void engine_link_close(struct engine_link *l)
{
    loop_io_stop(&l->listen_io);
    drop(l);
    fd_close_many(&l->listen_fd, 1);
    if (l->dir_fd >= 0)
        (void)unlinkat(l->dir_fd, GUEST_SOCKET_NAME, 0);
    fd_close_many(&l->dir_fd, 1);
}

int engine_link_listen(struct engine_link *l, uint16_t port, struct err *err)
{
    char name[16];
    (void)snprintf(name, sizeof(name), GUEST_HOST_NAME, port);
    return listen_in(l->dir_fd, name, err);
}

int engine_link_send(struct engine_link *l, const struct guest_head *head, const void *a,
                     size_t a_len, const void *b, size_t b_len)
{
    struct guest_head h = *head;
    h.len = (uint32_t)(a_len + b_len);
    if (l->fd < 0)
        return -EPIPE;
    if (sizeof(h) + a_len + b_len > l->out.max - l->out.len)
        return -ENOBUFS;
    (void)buf_append(&l->out, &h, sizeof(h));
    if (a_len > 0)
        (void)buf_append(&l->out, a, a_len);
    if (b_len > 0)
        (void)buf_append(&l->out, b, b_len);
    /* Written at once where it can be; `drained` is for the loop to tell. */
    ssize_t n = l->io.events & EPOLLOUT
                    ? 0
                    : send(l->fd, l->out.data + l->out_pos, l->out.len - l->out_pos,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    l->out_pos += n > 0 ? (size_t)n : 0;
    if (l->out_pos == l->out.len) {
        buf_done(&l->out);
        l->out_pos = 0;
    } else {
        (void)loop_io_events(&l->io, EPOLLIN | EPOLLOUT);
    }
    return 0;
}
