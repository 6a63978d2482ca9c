/* SPDX-License-Identifier: Apache-2.0 */

/* Takes inherited sockets, sends readiness, and feeds the watchdog. */

#include "daemon/systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"

#define FIRST_FD 3 /* by the protocol */
#define NSEC_PER_USEC 1000U
#define SPARE_FDS 4 /* one command needs as many */

/* A variable that is ours alone from here on; NULL: there is none. Owned. */
static char *take_variable(const char *name)
{
    const char *value = getenv(name);
    char *copy = value != NULL ? xstrdup(value) : NULL;

    (void)unsetenv(name);
    return copy;
}

/* Whether a message is meant for this process: it may have been started by one that was. */
static bool is_ours(const char *pid)
{
    uint64_t n;
    return pid != NULL && str_to_u64(pid, &n) == 0 && n == (uint64_t)getpid();
}

static bool is_outside(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 != 127;
    return a->ss_family == AF_INET6 &&
           !IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int describe_socket(struct systemd *s, struct systemd_socket *k, struct err *err)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);

    if (fcntl(k->fd, F_SETFD, FD_CLOEXEC) < 0 ||
        getsockname(k->fd, (struct sockaddr *)&a, &len) < 0)
        return err_sys(err, errno, "descriptor %d ('%s') of the service manager", k->fd, k->name);
    s->has_tcp |= a.ss_family != AF_UNIX;
    s->has_unix |= a.ss_family == AF_UNIX;
    s->outside |= is_outside(&a);
    return 0;
}

static int take_sockets(struct systemd *s, struct err *err)
{
    AUTO_FREE char *pid = take_variable("LISTEN_PID");
    AUTO_FREE char *count = take_variable("LISTEN_FDS");
    AUTO_FREE char *names = take_variable("LISTEN_FDNAMES");
    char *save = NULL;
    uint64_t n = 0;
    int r = 0;

    if (count == NULL || !is_ours(pid))
        return 0;
    if (str_to_u64(count, &n) < 0 || n > SYSTEMD_FDS_MAX)
        return err_set(err, ERR_INVALID,
                       "LISTEN_FDS is '%.20s'; boxd serves up to %d sockets of a service manager",
                       count, SYSTEMD_FDS_MAX);
    const char *name = names != NULL ? strtok_r(names, ":", &save) : NULL;
    for (; r == 0 && s->n_sockets < n; name = name != NULL ? strtok_r(NULL, ":", &save) : NULL) {
        struct systemd_socket *k = &s->sockets[s->n_sockets];
        k->fd = FIRST_FD + (int)s->n_sockets++;
        if (name == NULL || str_copy(k->name, sizeof(k->name), name) < 0)
            (void)str_copy(k->name, sizeof(k->name), "unknown");
        r = describe_socket(s, k, err);
    }
    return r;
}

/* A path, or with '@' in front a name in the abstract namespace. */
static void take_notify(struct systemd *s)
{
    AUTO_FREE char *path = take_variable("NOTIFY_SOCKET");

    if (path == NULL || (path[0] != '/' && path[0] != '@'))
        return;
    s->address.sun_family = AF_UNIX;
    if (str_copy(s->address.sun_path, sizeof(s->address.sun_path), path) < 0) {
        log_warn(NULL, "NOTIFY_SOCKET is too long; ignoring");
        return;
    }
    s->address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@')
        s->address.sun_path[0] = '\0';
    else
        s->address_len++;
    s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void take_watchdog(struct systemd *s)
{
    AUTO_FREE char *usec = take_variable("WATCHDOG_USEC");
    AUTO_FREE char *pid = take_variable("WATCHDOG_PID");
    uint64_t n = 0;

    if (usec == NULL || (pid != NULL && !is_ours(pid)))
        return;
    if (str_to_u64(usec, &n) < 0 || n == 0 || n > UINT64_MAX / NSEC_PER_USEC)
        log_warn(NULL, "WATCHDOG_USEC is '%.20s'; ignoring", usec);
    else
        s->watchdog_ns = n * NSEC_PER_USEC;
}

int systemd_take(struct systemd *s, struct err *err)
{
    *s = (struct systemd){.notify_fd = -1};
    take_notify(s);
    take_watchdog(s);
    return take_sockets(s, err);
}

void systemd_done(struct systemd *s)
{
    loop_timer_stop(&s->timer);
    for (size_t i = 0; i < s->n_sockets; i++)
        fd_close_many(&s->sockets[i].fd, 1);
    s->n_sockets = 0;
    fd_close_many(&s->notify_fd, 1);
}

void systemd_notify(struct systemd *s, const char *state)
{
    if (s->notify_fd < 0)
        return;
    ssize_t n;
    do
        n = sendto(s->notify_fd, state, strlen(state), MSG_NOSIGNAL,
                   (const struct sockaddr *)&s->address, s->address_len);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        log_debug(NULL, "tell the service manager: %s; ignoring", err_errno_text(errno));
}

/* Without a few descriptors to spare boxd can start nothing for its clients. That passes, or it
 * is a leak that only a new process ends; sessions outlive it. */
static bool is_healthy(void)
{
    int fds[SPARE_FDS];
    size_t n = 0;

    while (n < SPARE_FDS && (fds[n] = open("/", O_PATH | O_CLOEXEC)) >= 0)
        n++;
    bool healthy = n == SPARE_FDS || (errno != EMFILE && errno != ENFILE);
    fd_close_many(fds, n);
    return healthy;
}

static void on_timer(struct loop_timer *t)
{
    struct systemd *s = container_of(t, struct systemd, timer);

    if (is_healthy())
        systemd_notify(s, "WATCHDOG=1");
    else
        log_warn(NULL, "no descriptor is left: no sign of life for the service manager");
    loop_timer_start(s->loop, t, s->watchdog_ns / 2, on_timer);
}

void systemd_watch(struct systemd *s, struct loop *loop)
{
    s->loop = loop;
    if (s->watchdog_ns > 0 && s->notify_fd >= 0)
        loop_timer_start(loop, &s->timer, 0, on_timer);
}
