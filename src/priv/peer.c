/* SPDX-License-Identifier: Apache-2.0 */

/* Which boxd box-priv serves. The first one started it; when that is gone without a BYE, the
 * sandboxes wait for the next. There is never more than one. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/path.h"
#include "priv/server_internal.h"

#define BACKLOG 8
/* Loop timers stand still while the machine sleeps, deadlines do not. */
#define LOOK_INTERVAL_NS (30ULL * NSEC_PER_SEC)

static uint64_t due_ns(const struct priv *p, const struct priv_session *s)
{
    return s->deadline_ns > 0 ? s->deadline_ns
                              : p->waiting_ns + p->options.linger_sec * NSEC_PER_SEC;
}

static void on_wait(struct loop_timer *t)
{
    struct priv *p = container_of(t, struct priv, wait);
    uint64_t now = clock_boot(loop_clock(p->loop)), next = now + LOOK_INTERVAL_NS;
    for (size_t i = 0; i < p->n_sessions; i++) {
        uint64_t due = due_ns(p, p->sessions[i]);
        if (due <= now)
            launch_kill(p->host, &p->sessions[i]->launch);
        else if (due < next)
            next = due;
    }
    loop_timer_start(p->loop, t, next - now, on_wait);
}

static void disconnect(struct priv *p)
{
    loop_io_stop(&p->io);
    fd_close_many(&p->sock, 1);
    for (size_t i = 0; i < p->n_sessions; i++)
        p->sessions[i]->create_id = p->sessions[i]->destroy_id = p->sessions[i]->held_id = 0;
}

/* Whoever reads what boxd and we say waits for its end: with boxd gone nobody is to wait for us. A
 * file or a journal can be written on. */
static void let_go_of_readers(void)
{
    AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && null >= 0; fd++) {
        struct stat st;
        if (fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || isatty(fd)))
            (void)dup3(null, fd, 0);
    }
}

void priv_peer_gone(struct priv *p)
{
    disconnect(p);
    priv_jobs_done(&p->jobs); /* nobody will read their answers */
    if (p->listen_fd < 0 || p->n_sessions == 0) {
        priv_end_all(p);
        return;
    }
    let_go_of_readers();
    priv_move(p, PRIV_WAITING);
    p->waiting_ns = clock_boot(loop_clock(p->loop));
    on_wait(&p->wait);
}

static bool hung_up(int sock)
{
    struct pollfd pfd = {.fd = sock, .events = POLLRDHUP};
    return poll(&pfd, 1, 0) == 1 && (pfd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void refuse(int fd)
{
    struct priv_reply reply = {.head = {.type = PRIV_HELLO}, .result = -EBUSY};
    (void)err_set(&reply.err, ERR_CONFLICT, "another boxd runs on this state directory");
    (void)fd_send_msg(fd, &reply, sizeof(reply), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Only who may start a box-priv may have one: root, or the user whose id is ours in this
 * namespace. Whatever became of the socket's mode, the kernel says who has connected. */
static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static void on_connect(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, listen_io);
    AUTO_CLOSE int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || !is_ours(fd))
        return;
    /* What a dead one has asked for is done first. */
    if (p->sock >= 0 && hung_up(p->sock))
        while (priv_read_request(p))
            ;
    if (p->state == PRIV_ENDING)
        return;
    if (p->sock >= 0) {
        refuse(fd);
        return;
    }
    if (loop_io_start(p->loop, &p->io, fd, EPOLLIN, priv_on_readable) < 0)
        return;
    loop_timer_stop(&p->wait);
    p->sock = TAKE_FD(fd);
    priv_move(p, PRIV_NEW);
}

int priv_listen(struct priv *p, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "socket for the next boxd");
    /* We hold the lock on the state directory: whoever listened here is no more. */
    int r = path_remove_tree_at(p->host->state_fd, PRIV_SOCKET);
    if (r < 0)
        return err_sys(err, -r, "remove '" PRIV_SOCKET "' in the state directory");
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" PRIV_SOCKET,
                   p->host->state_fd);
    /* The mode of the socket is that of its name, from the first moment on. */
    if (fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on '" PRIV_SOCKET "' in the state directory");
    r = loop_io_start(p->loop, &p->listen_io, fd, EPOLLIN, on_connect);
    if (r < 0)
        return err_sys(err, -r, "watch for the next boxd");
    p->listen_fd = TAKE_FD(fd);
    return 0;
}

void priv_unlisten(struct priv *p)
{
    loop_timer_stop(&p->wait);
    if (p->listen_fd < 0)
        return;
    loop_io_stop(&p->listen_io);
    (void)unlinkat(p->host->state_fd, PRIV_SOCKET, 0);
    fd_close_many(&p->listen_fd, 1);
}
