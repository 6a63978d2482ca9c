/* SPDX-License-Identifier: Apache-2.0 */

/* The control connection to PID 1 of a sandbox: receives its messages and sends ours. */

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"

#define MESSAGES_PER_TURN 64 /* then other sessions get theirs */

union message {
    uint32_t type;
    struct init_hello hello;
    struct init_started started;
    struct init_exited exited;
    struct init_number number;
    struct init_state state;
};

static void on_pid1_gone(struct loop_io *io, uint32_t events)
{
    native_lose(container_of(io, struct native_sandbox, pid_io));
}

/* False when it makes no sense. `room` is false when all of the message is there, but we had no
 * room for the descriptors that came along. */
static bool dispatch(struct native_sandbox *sb, const union message *m, size_t len, bool room,
                     int *fds, size_t n_fds)
{
    if (m->type == INIT_MSG_STARTED && (len == sizeof(m->started) || !room))
        native_exec_on_started(sb, &m->started, fds, n_fds);
    else if (m->type == INIT_MSG_PROC_STATE && (len == sizeof(m->state) || !room))
        return native_proc_on_state(sb, &m->state, fds, n_fds);
    else if (!room)
        return false;
    else if (m->type == INIT_MSG_EXITED && len == sizeof(m->exited))
        native_exec_on_exited(sb, &m->exited);
    else if (m->type == INIT_MSG_PROC_OUTPUT && len == sizeof(m->number))
        return native_proc_on_output(sb, m->number.id);
    else if (m->type == INIT_MSG_PROC_EXITED && len == sizeof(m->exited))
        return native_proc_on_exited(sb, &m->exited);
    else if (m->type == INIT_MSG_PROC_GONE && len == sizeof(m->number))
        return native_proc_on_gone(sb, m->number.id);
    else if (m->type == INIT_MSG_PROC_END && len == sizeof(m->number))
        native_on_listed(sb);
    else
        return false;
    return true;
}

static void on_conn(struct loop_io *io, uint32_t events)
{
    struct native_sandbox *sb = container_of(io, struct native_sandbox, conn_io);
    if (events & EPOLLOUT)
        native_proc_flush(sb);
    /* A callback may end the sandbox. */
    for (int i = 0; i < MESSAGES_PER_TURN && io->loop != NULL; i++) {
        union message m = {0};
        int fds[4];
        size_t n_fds = 4;
        ssize_t n = fd_recv_msg(sb->conn, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
        if (n == -EAGAIN)
            return;
        bool fine = n > 0 || n == -EMSGSIZE;
        if (fine && sb->greeted)
            fine = dispatch(sb, &m, n > 0 ? (size_t)n : 0, n > 0, fds, n_fds);
        else if (fine) /* what is not for us comes before the answer to our own greeting */
            sb->greeted = n == (ssize_t)sizeof(m.hello) && m.type == INIT_MSG_HELLO &&
                          m.hello.version == INIT_WIRE_VERSION && m.hello.epoch == sb->epoch;
        fd_close_many(fds, n_fds);
        if (!fine) {
            native_lose(sb);
            return;
        }
    }
}

/* runsc says nothing unless something is wrong. The first of it is kept, fit to be shown. */
static void on_words(struct loop_io *io, uint32_t events)
{
    struct native_sandbox *sb = container_of(io, struct native_sandbox, conn_io);
    char text[1024];
    ssize_t n = recv(sb->conn, text, sizeof(text), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        loop_io_stop(io); /* that it is gone is told by its pidfd */
    if (n > 0 && sb->words == NULL)
        sb->words = xnew_n(char, NATIVE_WORDS_MAX);
    size_t len = sb->words != NULL ? strlen(sb->words) : 0;
    for (ssize_t i = 0; i < n && len + 1 < NATIVE_WORDS_MAX; i++) {
        bool blank = text[i] <= ' ' || text[i] > '~';
        if (!blank || (len > 0 && sb->words[len - 1] != ' '))
            sb->words[len++] = blank ? ' ' : text[i];
    }
}

/* What it said last may still be on its way when it is gone. */
const char *native_last_words(struct sandbox *base)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    if (sb->conn >= 0)
        on_words(&sb->conn_io, EPOLLIN);
    return sb->words != NULL ? sb->words : "";
}

static int watch(struct native_sandbox *sb, loop_io_fn *fn, struct err *err)
{
    int r = loop_io_start(sb->native->loop, &sb->conn_io, sb->conn, EPOLLIN, fn);
    if (r == 0)
        r = loop_io_start(sb->native->loop, &sb->pid_io, sb->pidfd, EPOLLIN, on_pid1_gone);
    return r < 0 ? err_sys(err, -r, "watch the sandbox's first process") : 0;
}

int native_greet(struct native_sandbox *sb, struct err *err)
{
    if (sb->native->facts.gvisor)
        return watch(sb, on_words, err);
    struct init_hello hello = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION};
    if (getrandom(&sb->epoch, sizeof(sb->epoch), 0) != (ssize_t)sizeof(sb->epoch))
        return err_sys(err, errno, "random number");
    hello.epoch = sb->epoch;
    ssize_t n = fd_send_msg(sb->conn, &hello, sizeof(hello), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return err_sys(err, (int)-n, "greet the sandbox's first process");
    return watch(sb, on_conn, err);
}

int native_tell(struct native_sandbox *sb, const void *data, size_t len)
{
    if (sb->conn_io.loop == NULL)
        return -EPIPE;
    ssize_t n = fd_send_msg(sb->conn, data, len, NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == -EAGAIN)
        (void)loop_io_events(&sb->conn_io, EPOLLIN | EPOLLOUT);
    return n < 0 ? (int)n : 0;
}
