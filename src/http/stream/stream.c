/* SPDX-License-Identifier: Apache-2.0 */

/* Buffered reading and writing of a socket on the loop, with a timer and a deferred call. */

#include "http/stream/stream_internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

/* One for all: there is one thread, and reads never nest (`busy` holds us to that). */
static struct {
    bool busy;
    char data[STREAM_SCRATCH];
} scratch;

static uint32_t wanted_events(const struct stream *s)
{
    uint32_t events = 0;

    if (s->read_max > 0)
        events |= EPOLLIN | EPOLLRDHUP;
    else if (s->hangup == STREAM_HANGUP_EOF)
        events |= EPOLLRDHUP;
    if (stream_queued(s) > 0)
        events |= EPOLLOUT;
    return events;
}

static void fail(struct stream *s, int error)
{
    if (s->error == 0)
        s->error = error;
    s->read_max = 0;
    buf_done(&s->out);
    s->out_pos = 0;
    stream_kick(s);
}

static int fail_write(struct stream *s, int error)
{
    s->no_write = true;
    fail(s, error);
    return -EPIPE;
}

static void update(struct stream *s)
{
    if (s->io.loop == NULL)
        return;
    int r = loop_io_events(&s->io, wanted_events(s));
    if (r < 0)
        fail(s, -r);
}

static void do_read(struct stream *s)
{
    size_t max = s->read_max < sizeof(scratch.data) ? s->read_max : sizeof(scratch.data);
    ssize_t n;

    /* Plain recv: descriptors that come with SCM_RIGHTS are never installed in our table, the
     * kernel drops them with the message. */
    n = recv(s->fd, scratch.data, max, MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail(s, errno);
        return;
    }
    if (n == 0) {
        stream_pause(s, STREAM_HANGUP_FAIL);
        s->ops->eof(s);
        return;
    }
    assert(!scratch.busy);
    scratch.busy = true;
    s->ops->data(s, scratch.data, (size_t)n);
    scratch.busy = false;
}

static void on_hangup(struct stream *s, uint32_t events)
{
    switch ((enum stream_hangup)s->hangup) {
    case STREAM_HANGUP_EOF:
        stream_pause(s, STREAM_HANGUP_FAIL);
        s->ops->eof(s);
        break;
    case STREAM_HANGUP_FAIL:
        if ((events & (EPOLLHUP | EPOLLERR)) != 0)
            fail(s, ECONNRESET);
        break;
    case STREAM_HANGUP_KEEP:
        /* The event cannot be masked, only the watcher stopped. */
        loop_io_stop(&s->io);
        s->hung_up = true;
        buf_done(&s->out);
        s->out_pos = 0;
        break;
    }
}

static void on_io(struct loop_io *io, uint32_t events)
{
    struct stream *s = container_of(io, struct stream, io);

    if ((events & EPOLLOUT) != 0 && stream_queued(s) > 0) {
        uint64_t before = s->sent;
        (void)stream_flush(s);
        if (s->sent != before && s->error == 0)
            s->ops->sent(s);
    }
    if (s->fd < 0 || s->error != 0)
        return;
    if (s->read_max > 0 && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        do_read(s);
    else if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
        on_hangup(s, events);
}

static void on_timer(struct loop_timer *t)
{
    struct stream *s = container_of(t, struct stream, timer);
    s->ops->timer(s);
}

static void on_defer(struct loop_defer *d)
{
    struct stream *s = container_of(d, struct stream, defer);
    s->ops->kick(s);
}

int stream_init(struct stream *s, struct loop *loop, int fd, const struct stream_ops *ops,
                size_t max_queue)
{
    *s = (struct stream){.loop = loop, .ops = ops, .fd = fd};
    buf_init(&s->out, max_queue);
    int r = loop_io_start(loop, &s->io, fd, 0, on_io);
    if (r < 0)
        s->fd = -1;
    return r;
}

int stream_take_fd(struct stream *s)
{
    loop_io_stop(&s->io);
    loop_timer_stop(&s->timer);
    loop_defer_stop(&s->defer);
    buf_done(&s->out);
    s->out_pos = 0;
    s->read_max = 0;
    return TAKE_FD(s->fd);
}

void stream_done(struct stream *s)
{
    if (s->ops == NULL)
        return; /* never begun */
    int fd = stream_take_fd(s);
    if (fd >= 0)
        (void)close(fd);
}

void stream_read(struct stream *s, size_t max)
{
    if (s->fd < 0 || s->error != 0)
        return;
    s->read_max = max;
    if (!s->hung_up) {
        update(s);
        return;
    }
    s->hung_up = false;
    int r = loop_io_start(s->loop, &s->io, s->fd, wanted_events(s), on_io);
    if (r < 0)
        fail(s, -r);
}

void stream_pause(struct stream *s, enum stream_hangup hangup)
{
    s->read_max = 0;
    s->hangup = (uint8_t)hangup;
    update(s);
}

bool stream_read_rest(struct stream *s)
{
    if (s->fd < 0 || !s->no_write || s->rest_read)
        return false;
    s->rest_read = true;
    s->error = 0;
    stream_read(s, STREAM_SCRATCH);
    return true;
}

size_t stream_queued(const struct stream *s)
{
    return s->out.len - s->out_pos;
}

/* The kernel took n bytes of the queue. Memory is moved only when that at least halves it, so
 * draining a queue costs in all no more than filling it. */
static void drop_sent(struct stream *s, size_t n)
{
    s->out_pos += n;
    if (s->out_pos == s->out.len) {
        buf_done(&s->out);
        s->out_pos = 0;
    } else if (s->out_pos >= s->out.len / 2) {
        buf_consume(&s->out, s->out_pos);
        s->out_pos = 0;
    }
}

static ssize_t send_now(struct stream *s, const struct iovec *iov, size_t n)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
    ssize_t sent;

    do
        sent = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN ? 0 : -errno;
    s->sent += (uint64_t)sent;
    s->last_out = loop_now(s->loop);
    return sent;
}

static bool writable(const struct stream *s)
{
    return s->fd >= 0 && s->error == 0 && !s->no_write && !s->hung_up;
}

int stream_flush(struct stream *s)
{
    size_t len = stream_queued(s);

    if (!writable(s))
        return -EPIPE;
    if (len > 0) {
        struct iovec iov = {s->out.data + s->out_pos, len};
        ssize_t n = send_now(s, &iov, 1);
        if (n < 0)
            return fail_write(s, (int)-n);
        drop_sent(s, (size_t)n);
    }
    update(s);
    return 0;
}

char *stream_reserve(struct stream *s, size_t len)
{
    if (!writable(s))
        return NULL;
    if (stream_queued(s) == 0)
        s->last_out = loop_now(s->loop); /* a stall is counted from here */
    if (len > s->out.max - stream_queued(s))
        return NULL;
    if (s->out_pos > 0 && len > s->out.max - s->out.len) {
        buf_consume(&s->out, s->out_pos);
        s->out_pos = 0;
    }
    if (buf_reserve(&s->out, len) < 0)
        return NULL;
    char *at = s->out.data + s->out.len;
    s->out.len += len;
    return at;
}

int stream_writev(struct stream *s, const struct iovec *iov, size_t n)
{
    size_t total = 0;
    ssize_t sent = 0;

    if (!writable(s))
        return -EPIPE;
    for (size_t i = 0; i < n; i++)
        total += iov[i].iov_len;
    if (total > s->out.max - stream_queued(s))
        return -ENOBUFS;
    if (stream_queued(s) == 0) {
        sent = send_now(s, iov, n);
        if (sent < 0)
            return fail_write(s, (int)-sent);
    }
    if ((size_t)sent == total)
        return 0;

    char *to = stream_reserve(s, total - (size_t)sent);
    if (to == NULL)
        return -ENOBUFS;
    size_t skip = (size_t)sent;
    for (size_t i = 0; i < n; i++) {
        size_t from = skip < iov[i].iov_len ? skip : iov[i].iov_len;
        skip -= from;
        if (iov[i].iov_len > from) {
            memcpy(to, (const char *)iov[i].iov_base + from, iov[i].iov_len - from);
            to += iov[i].iov_len - from;
        }
    }
    update(s);
    return 0;
}

int stream_write(struct stream *s, const void *data, size_t len)
{
    struct iovec iov = {(void *)data, len};
    return stream_writev(s, &iov, 1);
}

void stream_arm(struct stream *s, uint64_t due_ns)
{
    if (due_ns == UINT64_MAX || s->fd < 0)
        return;
    if (s->timer.loop != NULL && s->timer.due_ns <= due_ns)
        return;
    uint64_t now = loop_now(s->loop);
    loop_timer_start(s->loop, &s->timer, due_ns > now ? due_ns - now : 0, on_timer);
}

void stream_kick(struct stream *s)
{
    if (s->defer.loop == NULL)
        loop_defer_start(s->loop, &s->defer, on_defer);
}

void stream_shutdown(struct stream *s)
{
    if (s->fd >= 0)
        (void)shutdown(s->fd, SHUT_WR);
}
