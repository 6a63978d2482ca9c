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
#include "base/str.h"
#include "front/langbot/langbot_internal.h"

/* Messages over a pipe: a line each, and large ones in pieces. */

#define PIECE_MAX                                                                                  \
    16384U /* bytes of a message that goes as one line, and of a piece of a larger one */
#define PIECES_MAX 4096U

struct unpipe {
    struct buf line;    /* that is not complete yet */
    struct buf message; /* being put together */
    bool chunked;
    size_t total, lines;
};

static void unpipe_init(struct unpipe *u)
{
    *u = (struct unpipe){0};
    buf_init(&u->line, LANGBOT_MESSAGE_MAX);
    buf_init(&u->message, LANGBOT_MESSAGE_MAX);
}

static void unpipe_done(struct unpipe *u)
{
    buf_done(&u->line);
    buf_done(&u->message);
}

static int begin_chunks(struct unpipe *u, const struct json *m)
{
    const struct json *total = json_get(m, "total_size");
    if (json_type(total) != JSON_INT || json_int(total) < 0 ||
        json_int(total) > (int64_t)LANGBOT_MESSAGE_MAX)
        return -EPROTO;
    u->chunked = true;
    u->total = (size_t)json_int(total);
    u->lines = 0;
    buf_reset(&u->message);
    return 0;
}

static int add_chunk(struct unpipe *u, const struct json *m)
{
    const struct json *data = json_get(m, "data"), *offset = json_get(m, "offset");
    size_t len = json_str_len(data);
    if (json_type(data) != JSON_STRING || json_type(offset) != JSON_INT ||
        json_int(offset) != (int64_t)u->message.len || len > u->total - u->message.len)
        return -EPROTO;
    return buf_append(&u->message, json_str(data), len) < 0 ? -EPROTO : 0;
}

/* One line, trimmed. Returns 1 when it completes a message that came in pieces, 2 when it is one.
 */
static int take_line(struct unpipe *u, const char *line, size_t len)
{
    AUTO(json) struct json *m = NULL;
    struct err err = {0};
    if (u->chunked && ++u->lines > PIECES_MAX)
        return -EPROTO;
    if (len < 2 || line[0] != '{' || line[len - 1] != '}')
        return 0;
    if (!u->chunked && memmem(line, len, "\"chunk_", 7) == NULL)
        return 2;
    if (json_parse(line, len, &m, &err) < 0)
        return u->chunked ? 0 : 2;
    const char *type = json_str(json_get(m, "type"));
    if (!u->chunked)
        return str_eq(type, "chunk_start")                               ? begin_chunks(u, m)
               : str_eq(type, "chunk_data") || str_eq(type, "chunk_end") ? 0
                                                                         : 2;
    if (str_eq(type, "chunk_data"))
        return add_chunk(u, m);
    if (!str_eq(type, "chunk_end"))
        return 0;
    u->chunked = false;
    return u->message.len == u->total ? 1 : -EPROTO;
}

/* 0, or -EPROTO: the peer does not keep to the protocol and has to go. */
static int unpipe_feed(struct unpipe *u, const char *data, size_t len,
                       void (*message)(void *arg, const char *text, size_t len), void *arg)
{
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) : len;
        if (buf_append(&u->line, data, n) < 0)
            return -EPROTO;
        data += n + (end != NULL);
        len -= n + (end != NULL);
        if (end == NULL)
            break;
        const char *line = buf_str(&u->line);
        size_t line_len = u->line.len;
        str_trim(&line, &line_len);
        int r = take_line(u, line, line_len);
        if (r < 0)
            return r;
        if (r == 1) {
            message(arg, buf_str(&u->message), u->message.len);
            buf_done(&u->message);
        } else if (r == 2) {
            message(arg, line, line_len);
        }
        buf_reset(&u->line);
    }
    return 0;
}

static int write_piece(const char *text, size_t len, size_t offset, struct buf *out)
{
    struct jw w = JW_INIT(out);
    jw_object(&w);
    jw_kstr(&w, "type", "chunk_data");
    jw_kstrn(&w, "data", text, len);
    jw_ku64(&w, "offset", offset);
    jw_object_end(&w);
    return jw_end(&w) < 0 ? -ENOBUFS : buf_putc(out, '\n');
}

/* 0 or -ENOBUFS. */
static int pipe_write(const char *text, size_t len, struct buf *out)
{
    size_t before = out->len;
    int r;
    if (len <= PIECE_MAX) {
        r = buf_append(out, text, len);
        if (r == 0)
            r = buf_putc(out, '\n');
    } else {
        r = buf_printf(out, "{\"type\": \"chunk_start\", \"total_size\": %zu}\n", len);
        for (size_t at = 0, n; at < len && r == 0; at += n) {
            n = utf8_boundary(text + at, len - at < PIECE_MAX ? len - at : PIECE_MAX);
            r = write_piece(text + at, n, at, out);
        }
        if (r == 0)
            r = buf_puts(out, "{\"type\": \"chunk_end\"}\n");
    }
    if (r < 0)
        out->len = before; /* all or nothing */
    return r;
}

/* The transport. */

#define QUEUE_MAX                                                                                  \
    (128U << 20) /* a message in pieces is somewhat larger, and there may be several */
#define READ_SIZE 65536U

struct langbot_stdio {
    struct langbot *rpc;
    struct langbot_conn *conn; /* owned; NULL once the peer has gone */
    int in_fd, out_fd;         /* owned */
    struct loop_io in, out;
    struct loop_defer defer; /* reading what cannot be watched, and the end */
    struct unpipe unpipe;
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

static void stdio_end(struct langbot_stdio *s)
{
    loop_io_stop(&s->in);
    loop_io_stop(&s->out);
    loop_defer_start(s->rpc->loop, &s->defer, tell_ended);
}

static void take_message(void *arg, const char *text, size_t len)
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
    if (n > 0 && unpipe_feed(&s->unpipe, data, (size_t)n, take_message, s) == 0)
        return true;
    log_info(NULL, n > 0 ? "the peer on stdin does not keep to the protocol" : "stdin has ended");
    stdio_end(s);
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

static void on_out_ready(struct loop_io *io, uint32_t events);

static void flush_queue(struct langbot_stdio *s)
{
    while (s->sent < s->queue.len) {
        ssize_t n = write(s->out_fd, s->queue.data + s->sent, s->queue.len - s->sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (s->out.loop == NULL &&
                loop_io_start(s->rpc->loop, &s->out, s->out_fd, EPOLLOUT, on_out_ready) < 0)
                stdio_end(s);
            return;
        }
        if (n < 0) {
            log_info(NULL, "stdout: %s", err_errno_text(errno));
            stdio_end(s);
            return;
        }
        s->sent += (size_t)n;
    }
    loop_io_stop(&s->out);
    buf_done(&s->queue);
    s->sent = 0;
}

static void on_out_ready(struct loop_io *io, uint32_t events)
{
    flush_queue(container_of(io, struct langbot_stdio, out));
}

static void send_message(void *arg, const char *text, size_t len)
{
    struct langbot_stdio *s = arg;
    buf_consume(&s->queue, s->sent);
    s->sent = 0;
    if (pipe_write(text, len, &s->queue) < 0) {
        log_warn(NULL, "answers on stdout are not being read");
        stdio_end(s);
        return;
    }
    if (s->out.loop == NULL)
        flush_queue(s);
}

static const struct langbot_transport transport = {.send = send_message};

/* Only pipes and sockets: a terminal or a file may be shared with programs that do not expect
 * EAGAIN.
 */
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
    unpipe_init(&s->unpipe);
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
    unpipe_done(&s->unpipe);
    buf_done(&s->queue);
    fd_close_many(&s->in_fd, 1);
    fd_close_many(&s->out_fd, 1);
    free(s);
}
