/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps the /etc of sessions like the host's: soon after a change for those that are there, and
 * before the next one is made. */

#include <sys/epoll.h>

#include "base/log.h"
#include "priv/server.h"
#include "sandbox/setup/hostetc.h"

/* An installation changes many files, each several times. */
#define SETTLE_NS 200000000ULL
/* When there was too much to do at once. */
#define AGAIN_NS 2100000000ULL

static void on_settled(struct loop_timer *t);

static void on_change(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, etc_io);
    loop_io_stop(io);
    loop_timer_start(p->loop, &p->etc_timer, SETTLE_NS, on_settled);
}

/* A user who keeps changing own files in /etc makes us look five times a second, no more. */
static void on_settled(struct loop_timer *t)
{
    struct priv *p = container_of(t, struct priv, etc_timer);
    loop_io_stop(&p->etc_io);
    priv_etc_start(p);
}

void priv_etc_refresh(struct priv *p)
{
    hostetc_refresh(p->host->etc);
    size_t left_out = hostetc_left_out(p->host->etc);
    if (left_out > p->etc_left_out)
        log_warn(NULL,
                 "/etc of the host has too many or too large files for the copy that sessions see, "
                 "or memory or descriptors are short: %zu were left out or not renewed "
                 "(docs/reference/host-image.md has the limits); ignoring",
                 left_out);
    p->etc_left_out = left_out;
    if (hostetc_is_stale(p->host->etc))
        loop_timer_start(p->loop, &p->etc_timer, AGAIN_NS, on_settled);
}

void priv_etc_start(struct priv *p)
{
    int fd = hostetc_watch_fd(p->host->etc);
    priv_etc_refresh(p);
    if (fd < 0 || loop_io_start(p->loop, &p->etc_io, fd, EPOLLIN, on_change) < 0)
        log_warn(NULL, "cannot watch /etc; sessions that are there do not see its changes, "
                       "ignoring");
}

void priv_etc_stop(struct priv *p)
{
    loop_io_stop(&p->etc_io);
    loop_timer_stop(&p->etc_timer);
}
