/* SPDX-License-Identifier: Apache-2.0 */

/* Work inside another network namespace. Root goes there and back. Without root there is no way
 * back to the host's namespace, so a child goes, and what it made comes back by descriptor. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "inside/clone.h"
#include "sandbox/net/net_internal.h"

struct report {
    int result;
    struct err err;
};

int net_visit_enter(struct net_visit *v, int netns_fd, struct err *err)
{
    AUTO_CLOSE int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    if (home < 0)
        return err_sys(err, errno, "open our network namespace");
    /* From where we are to where we are: allowed to whoever may come back. */
    if (setns(home, CLONE_NEWNET) < 0 || setns(netns_fd, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter the network namespace");
    v->home = TAKE_FD(home);
    return 0;
}

void net_visit_leave(struct net_visit *v)
{
    if (v->home < 0)
        return;
    /* Going on in a sandbox's namespace would do to the sandbox what is meant for the host. */
    if (setns(v->home, CLONE_NEWNET) < 0)
        abort();
    (void)close(v->home);
    v->home = -1;
}

static int send_report(int sock, int result, const struct err *err, const int *fds, size_t n_fds)
{
    struct report report = {.result = result};

    report.err = *err;
    ssize_t n = fd_send_msg(sock, &report, sizeof(report), fds, n_fds, MSG_NOSIGNAL);
    return n < 0 ? (int)n : 0;
}

_Noreturn static void within_child(int sock, int netns_fd, net_within_fn *fn, void *arg,
                                   size_t n_fds)
{
    int fds[NET_WITHIN_FDS_MAX] = {-1, -1};
    struct err err = {0};
    int r = setns(netns_fd, CLONE_NEWNET) < 0 ? err_sys(&err, errno, "enter the network namespace")
                                              : fn(arg, fds, &err);

    r = send_report(sock, r, &err, fds, r < 0 ? 0 : n_fds);
    child_exit(r < 0);
}

static int receive_report(int sock, int *ret_fds, size_t n_fds, struct err *err)
{
    struct report report = {0};
    int fds[NET_WITHIN_FDS_MAX];
    size_t n = NET_WITHIN_FDS_MAX;
    ssize_t len = fd_recv_msg(sock, &report, sizeof(report), fds, &n, 0);

    if (len < 0)
        return err_sys(err, (int)-len, "wait for the child in the network namespace");
    if (len != (ssize_t)sizeof(report) || (report.result >= 0 && n != n_fds)) {
        if (len > 0)
            fd_close_many(fds, n);
        return err_set(err, ERR_SYSTEM, "the child in the network namespace died");
    }
    if (report.result < 0) {
        if (err != NULL)
            *err = report.err;
        return report.result;
    }
    if (n_fds > 0)
        memcpy(ret_fds, fds, n_fds * sizeof(*fds));
    return 0;
}

int net_within(int netns_fd, net_within_fn *fn, void *arg, int *ret_fds, size_t n_fds,
               struct err *err)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, errno, "socketpair");
    AUTO_CLOSE int here = pair[0];
    AUTO_CLOSE int there = pair[1];
    pid_t pid = clone_process(0, -1, NULL);
    if (pid == 0)
        within_child(there, netns_fd, fn, arg, n_fds);
    if (pid < 0)
        return err_sys(err, -pid, "clone");
    (void)close(TAKE_FD(there));
    int r = receive_report(here, ret_fds, n_fds, err);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return r;
}
