/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the stdin of a managed process, which outlives boxd: the next boxd must not go on in the
 * middle of a line that this one was writing. A write that the kernel does whole or not at all
 * needs nothing for that. Before any other PID 1 is told that a line has begun, and afterwards that
 * it is whole; the next daemon ends the line if the second message never came. */

#include <errno.h>
#include <limits.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "backend/native/native_internal.h"
#include "base/fd.h"

#define QUEUE_MAX (16U << 20)   /* one message of a client, whole, and what is left before it */
#define HIGH_WATER (256U << 10) /* above it the writer is asked to hold back */

static int tell(struct native_proc *p, enum init_stdin_op op)
{
    struct init_stdin m = {.type = INIT_MSG_PROC_STDIN, .id = p->number, .op = op};
    return p->sb == NULL ? -EPIPE : native_tell(p->sb, &m, sizeof(m));
}

void native_stdin_done(struct native_proc *p)
{
    loop_io_stop(&p->in_io);
    fd_close_many(&p->in_fd, 1);
    buf_done(&p->in_queue);
    p->in_pos = 0;
}

/* Our end, and the one that PID 1 keeps. */
static void shut(struct native_proc *p)
{
    native_stdin_done(p);
    p->send_close = !p->exited && tell(p, INIT_STDIN_CLOSE) == -EAGAIN;
}

void native_stdin_drained(struct native_proc *p)
{
    if (!p->held_back || p->in_queue.len > 0)
        return;
    p->held_back = false;
    if (p->freed || p->told || p->events.stdin_drained == NULL)
        return;
    p->busy++;
    p->events.stdin_drained(p->arg);
    p->busy--;
}

static void on_writable(struct loop_io *io, uint32_t events)
{
    struct native_proc *p = container_of(io, struct native_proc, in_io);
    p->busy++;
    native_stdin_flush(p);
    native_stdin_drained(p);
    p->busy--;
    native_proc_settle(p);
}

/* -EAGAIN while the pipe is full, -ENOBUFS while PID 1 does not read, or a negative errno when
 * nothing can ever be written again. */
static int write_some(struct native_proc *p)
{
    size_t left = p->in_queue.len - p->in_pos;
    /* PID 1 reads in order: once this is sent, it is known before any next daemon's greeting. */
    if (left > PIPE_BUF && !p->midline) {
        int r = tell(p, INIT_STDIN_MIDLINE);
        if (r < 0)
            return r == -EAGAIN ? -ENOBUFS : r;
        p->midline = true;
    }
    ssize_t n = write(p->in_fd, p->in_queue.data + p->in_pos, left);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    p->in_pos += (size_t)n;
    if (p->in_pos == p->in_queue.len) {
        buf_done(&p->in_queue);
        p->in_pos = 0;
    }
    return 0;
}

void native_stdin_flush(struct native_proc *p)
{
    int r = 0;
    if (p->send_close)
        p->send_close = !p->exited && tell(p, INIT_STDIN_CLOSE) == -EAGAIN;
    if (p->in_fd < 0)
        return; /* not started yet, or closed */
    while (p->in_queue.len > 0 && r == 0)
        r = write_some(p);
    if (r == -EAGAIN && p->in_io.loop == NULL)
        (void)loop_io_start(p->native->loop, &p->in_io, p->in_fd, EPOLLOUT, on_writable);
    if (r == -EAGAIN)
        return;
    loop_io_stop(&p->in_io);
    if (r == -ENOBUFS)
        return; /* native_proc_flush() comes back */
    if (r < 0)
        p->close_in = true; /* nobody reads it any more */
    if (p->close_in)
        shut(p);
    else if (p->midline && tell(p, INIT_STDIN_WHOLE) != -EAGAIN)
        p->midline = false;
}

void native_stdin_init(struct native_proc *p)
{
    p->in_fd = -1;
    buf_init(&p->in_queue, QUEUE_MAX);
}

void native_stdin_open(struct native_proc *p, int fd, bool midline)
{
    p->in_fd = fd;
    p->midline = midline;
    if (fd_set_nonblock(fd, true) < 0) {
        p->close_in = true;
        shut(p);
        return;
    }
    if (midline)
        (void)buf_append(&p->in_queue, "\n", 1); /* of what the last daemon left unfinished */
    native_stdin_flush(p);
}

int native_proc_write(struct proc *base, const char *data, size_t len)
{
    struct native_proc *p = container_of(base, struct native_proc, base);
    if (p->exited || p->close_in || (p->started && p->in_fd < 0))
        return -EPIPE;
    /* What is written already makes room, but is not moved for every message. */
    if (p->in_pos >= p->in_queue.len / 2) {
        buf_consume(&p->in_queue, p->in_pos);
        p->in_pos = 0;
    }
    int r = buf_append(&p->in_queue, data, len);
    if (r < 0)
        return r;
    native_stdin_flush(p);
    if (p->in_queue.len - p->in_pos <= HIGH_WATER)
        return 0;
    p->held_back = true;
    return 1;
}

size_t native_proc_unwritten(const struct proc *base)
{
    const struct native_proc *p = container_of(base, const struct native_proc, base);
    return p->in_queue.len - p->in_pos;
}

void native_proc_close_stdin(struct proc *base)
{
    struct native_proc *p = container_of(base, struct native_proc, base);
    if (p->close_in || p->exited)
        return;
    p->close_in = true;
    native_stdin_flush(p);
}
