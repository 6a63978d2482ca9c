/* SPDX-License-Identifier: Apache-2.0 */

/* Action RPC over stdin and stdout, for a host that starts us as its child. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "front/langbot/langbot_internal.h"

#define QUEUE_MAX                                                                                  \
    (128U << 20) /* a message in pieces is somewhat larger, and there may be several */
#define READ_SIZE 65536U

struct langbot_stdio {
    struct langbot *rpc;
    struct langbot_conn *conn; /* owned; NULL once the peer has gone */
    int in_fd, out_fd;         /* owned */
    struct loop_io in, out;
    struct loop_defer defer; /* reading what cannot be watched, and the end */
    struct langbot_unpipe unpipe;
    struct buf queue; /* from `sent` on */
    size_t sent;
    void (*ended)(void *arg);
    void *arg;
};

static void tell_ended(struct loop_defer *d)
{
    struct langbot_stdio *s = container_of(d, struct langbot_stdio, defer);
    langbot_conn_free(TAKE_PTR(s->conn));
    s->ended(s->arg);
}

static void end(struct langbot_stdio *s)
{
    loop_io_stop(&s->in);
    loop_io_stop(&s->out);
    loop_defer_start(s->rpc->loop, &s->defer, tell_ended);
}

static void on_message(void *arg, const char *text, size_t len)
{
    struct langbot_stdio *s = arg;
    langbot_conn_message(s->conn, text, len);
}

/* False: there is no more for now, or for good. */
static bool read_some(struct langbot_stdio *s)
{
    static char data[READ_SIZE];
    ssize_t n = read(s->in_fd, data, sizeof(data));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n > 0 && langbot_unpipe_feed(&s->unpipe, data, (size_t)n, on_message, s) == 0)
        return true;
    log_info(NULL, n > 0 ? "the peer on stdin does not keep to the protocol" : "stdin has ended");
    end(s);
    return false;
}

static void on_readable(struct loop_io *io, uint32_t events)
{
    (void)read_some(container_of(io, struct langbot_stdio, in));
}

/* A plain file is always readable, and cannot be watched. */
static void read_file(struct loop_defer *d)
{
    struct langbot_stdio *s = container_of(d, struct langbot_stdio, defer);
    if (read_some(s))
        loop_defer_start(s->rpc->loop, d, read_file);
}

static void on_writable(struct loop_io *io, uint32_t events);

static void flush(struct langbot_stdio *s)
{
    while (s->sent < s->queue.len) {
        ssize_t n = write(s->out_fd, s->queue.data + s->sent, s->queue.len - s->sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (s->out.loop == NULL &&
                loop_io_start(s->rpc->loop, &s->out, s->out_fd, EPOLLOUT, on_writable) < 0)
                end(s);
            return;
        }
        if (n < 0) {
            log_info(NULL, "stdout: %s", err_errno_text(errno));
            end(s);
            return;
        }
        s->sent += (size_t)n;
    }
    loop_io_stop(&s->out);
    buf_done(&s->queue);
    s->sent = 0;
}

static void on_writable(struct loop_io *io, uint32_t events)
{
    flush(container_of(io, struct langbot_stdio, out));
}

static void send_message(void *arg, const char *text, size_t len)
{
    struct langbot_stdio *s = arg;
    buf_consume(&s->queue, s->sent);
    s->sent = 0;
    if (langbot_pipe_write(text, len, &s->queue) < 0) {
        log_warn(NULL, "answers on stdout are not being read");
        end(s);
        return;
    }
    if (s->out.loop == NULL)
        flush(s);
}

static const struct langbot_transport transport = {.send = send_message};

/* Only what is ours alone: a terminal or a file may be somebody else's as well, who would not
 * expect to be told to come back later. */
static void unblock(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        (void)fd_set_nonblock(fd, true);
}

int langbot_stdio_new(struct langbot *r, const struct langbot_stdio_options *options,
                      struct langbot_stdio **ret, struct err *err)
{
    AUTO(langbot_stdio) struct langbot_stdio *s = xnew(struct langbot_stdio);
    s->rpc = r;
    s->in_fd = options->in_fd;
    s->out_fd = options->out_fd;
    s->ended = options->ended;
    s->arg = options->arg;
    langbot_unpipe_init(&s->unpipe);
    buf_init(&s->queue, QUEUE_MAX);
    unblock(s->in_fd);
    unblock(s->out_fd);
    s->conn = langbot_conn_new(r, &transport, s, r->o.legacy ? LANGBOT_CONN_LENIENT : 0);
    s->conn->local = true;
    int e = loop_io_start(r->loop, &s->in, s->in_fd, EPOLLIN, on_readable);
    if (e == -EPERM)
        loop_defer_start(r->loop, &s->defer, read_file);
    else if (e < 0)
        return err_sys(err, -e, "watch stdin");
    *ret = TAKE_PTR(s);
    return 0;
}

void langbot_stdio_free(struct langbot_stdio *s)
{
    if (s == NULL)
        return;
    loop_io_stop(&s->in);
    loop_io_stop(&s->out);
    loop_defer_stop(&s->defer);
    langbot_conn_free(s->conn);
    langbot_unpipe_done(&s->unpipe);
    buf_done(&s->queue);
    fd_close_many(&s->in_fd, 1);
    fd_close_many(&s->out_fd, 1);
    free(s);
}
