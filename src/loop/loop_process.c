/* SPDX-License-Identifier: Apache-2.0 */

/* Signals and children: descriptors with a meaning. Each callback is the last thing done, because
 * it may free its watcher. */

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "loop/loop.h"

/* One signal per event: the descriptor stays readable while there are more. */
static void on_signalfd(struct loop_io *io, uint32_t events)
{
    struct loop_signal *s = container_of(io, struct loop_signal, io);
    struct signalfd_siginfo info;

    if (read(s->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        s->fn(s, (int)info.ssi_signo);
}

int loop_signal_start(struct loop *loop, struct loop_signal *s, const sigset_t *set,
                      loop_signal_fn *fn)
{
    assert(!s->loop && fn);
    if (sigprocmask(SIG_BLOCK, set, NULL) < 0)
        return -errno;
    AUTO_CLOSE int fd = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    *s = (struct loop_signal){.fn = fn, .fd = -1};
    int r = loop_io_start(loop, &s->io, fd, EPOLLIN, on_signalfd);
    if (r < 0)
        return r;
    s->loop = loop;
    s->fd = TAKE_FD(fd);
    return 0;
}

/* The signals stay blocked: one that is pending would otherwise strike now. */
void loop_signal_stop(struct loop_signal *s)
{
    if (!s || !s->loop)
        return;
    loop_io_stop(&s->io);
    (void)close(s->fd);
    s->fd = -1;
    s->loop = NULL;
}

static int wait_status(const siginfo_t *info)
{
    if (info->si_code == CLD_EXITED)
        return (info->si_status & 0xff) << 8;
    return (info->si_status & 0x7f) | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

static void on_pidfd(struct loop_io *io, uint32_t events)
{
    struct loop_child *c = container_of(io, struct loop_child, io);
    siginfo_t info = {0};
    int status = -1;

    if (waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED | WNOHANG) == 0) {
        if (info.si_pid == 0)
            return; /* not dead yet */
        status = wait_status(&info);
    } else if (errno == EINTR) {
        return;
    }
    loop_child_stop(c);
    c->fn(c, status);
}

int loop_child_start(struct loop *loop, struct loop_child *c, int pidfd, loop_child_fn *fn)
{
    assert(!c->loop && fn);
    *c = (struct loop_child){.fn = fn, .pidfd = pidfd};
    int r = loop_io_start(loop, &c->io, pidfd, EPOLLIN, on_pidfd);
    if (r < 0)
        return r;
    c->loop = loop;
    return 0;
}

void loop_child_stop(struct loop_child *c)
{
    if (!c || !c->loop)
        return;
    loop_io_stop(&c->io);
    c->loop = NULL;
}
