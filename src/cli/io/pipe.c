/* SPDX-License-Identifier: Apache-2.0 */

/* Non-blocking reading and writing of descriptors that may not be switched to non-blocking. */

#include "cli/io/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/str.h"

#define TTYAUX_MAJOR_NUMBER 5
#define PTMX_MINOR 2

/* Opening the master of a terminal again would make a new terminal. */
static bool is_terminal_master(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && major(st->st_rdev) == TTYAUX_MAJOR_NUMBER &&
           minor(st->st_rdev) == PTMX_MINOR;
}

static int reopen(int fd)
{
    char path[32];

    (void)str_fmt(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void sink_init(struct sink *s, struct loop *loop, int fd, size_t max_queue, sink_fn *changed)
{
    struct stat st;

    memset(s, 0, sizeof(*s));
    s->loop = loop;
    s->fd = fd;
    s->own_fd = -1;
    s->changed = changed;
    buf_init(&s->queue, max_queue);
    if (fstat(fd, &st) < 0 || S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
        s->kind = SINK_FILE;
        return;
    }
    if (S_ISSOCK(st.st_mode)) {
        s->kind = SINK_SOCKET;
        return;
    }
    s->kind = SINK_BLOCKING;
    if (!is_terminal_master(&st))
        s->own_fd = reopen(fd);
    if (s->own_fd >= 0) {
        s->kind = SINK_OWN;
        s->fd = s->own_fd;
    }
}

void sink_done(struct sink *s)
{
    loop_io_stop(&s->io);
    if (s->own_fd >= 0)
        (void)close(s->own_fd);
    s->own_fd = -1;
    buf_done(&s->queue);
    s->pos = 0;
}

/* A pipe that is said to be writable takes PIPE_BUF bytes without waiting. */
static ssize_t write_piece(const struct sink *s, const char *data, size_t len)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};

    if (poll(&p, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(s->fd, data, len < PIPE_BUF ? len : PIPE_BUF);
}

static ssize_t write_some(const struct sink *s, const char *data, size_t len)
{
    if (s->kind == SINK_SOCKET)
        return send(s->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (s->kind == SINK_BLOCKING)
        return write_piece(s, data, len);
    return write(s->fd, data, len);
}

/* How many bytes went; fewer than len when the rest must wait or s->error is set. */
static size_t write_now(struct sink *s, const char *data, size_t len)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = write_some(s, data + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            s->error = errno;
        if (n < 0)
            break;
        done += (size_t)n;
    }
    return done;
}

static void sink_drop(struct sink *s)
{
    loop_io_stop(&s->io);
    buf_reset(&s->queue);
    s->pos = 0;
}

static void on_writable(struct loop_io *io, uint32_t events)
{
    struct sink *s = container_of(io, struct sink, io);

    s->pos += write_now(s, s->queue.data + s->pos, s->queue.len - s->pos);
    if (s->error == 0 && s->pos < s->queue.len)
        return;
    sink_drop(s);
    s->changed(s);
}

int sink_write(struct sink *s, const char *data, size_t len)
{
    if (s->error != 0)
        return -s->error;
    size_t done = sink_busy(s) ? 0 : write_now(s, data, len);
    if (s->error == 0 && done < len) {
        int r = buf_append(&s->queue, data + done, len - done);
        if (r >= 0 && s->io.loop == NULL)
            r = loop_io_start(s->loop, &s->io, s->fd, EPOLLOUT, on_writable);
        s->error = r < 0 ? -r : 0;
    }
    if (s->error != 0)
        sink_drop(s);
    return -s->error;
}

bool sink_busy(const struct sink *s)
{
    return s->pos < s->queue.len;
}

/* Input. */

static void intake_read(struct intake *s)
{
    char data[INTAKE_CHUNK];
    ssize_t n = read(s->fd, data, sizeof(data));

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    /* A terminal that hung up, or a directory: no more will come. */
    if (n <= 0)
        intake_stop(s);
    s->got(s, data, n > 0 ? (size_t)n : 0);
}

static void on_readable(struct loop_io *io, uint32_t events)
{
    intake_read(container_of(io, struct intake, io));
}

static void on_turn(struct loop_defer *d)
{
    struct intake *s = container_of(d, struct intake, defer);

    intake_read(s);
    if (s->loop != NULL && !s->paused)
        loop_defer_start(s->loop, &s->defer, on_turn);
}

int intake_start(struct intake *s, struct loop *loop, int fd, intake_fn *got)
{
    memset(s, 0, sizeof(*s));
    s->fd = fd;
    s->got = got;
    int r = loop_io_start(loop, &s->io, fd, EPOLLIN, on_readable);
    if (r < 0 && r != -EPERM)
        return r;
    s->loop = loop;
    s->waits = r >= 0;
    if (!s->waits)
        loop_defer_start(loop, &s->defer, on_turn);
    return 0;
}

void intake_pause(struct intake *s, bool paused)
{
    if (s->loop == NULL || s->paused == paused)
        return;
    s->paused = paused;
    if (!s->waits && paused)
        loop_defer_stop(&s->defer);
    else if (!s->waits)
        loop_defer_start(s->loop, &s->defer, on_turn);
    else if (paused)
        loop_io_stop(&s->io);
    else if (loop_io_start(s->loop, &s->io, s->fd, EPOLLIN, on_readable) < 0)
        intake_stop(s);
}

void intake_stop(struct intake *s)
{
    loop_io_stop(&s->io);
    loop_defer_stop(&s->defer);
    s->loop = NULL;
}
