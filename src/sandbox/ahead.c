/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/clone.h"
#include "sandbox/net.h"
#include "util/compat.h"
#include "util/err.h"
#include "util/fd.h"

#define RETURN_TRIES 1000

void ahead_init(struct ahead *a, bool on)
{
    *a = (struct ahead){.home_fd = -1, .pidfd = -1, .netns_fd = -1, .parent = getpid()};
    if (on)
        a->home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    a->on = a->home_fd >= 0;
}

/* True when the helper has ended and what it made is there to use. */
static bool is_idle(struct ahead *a, int timeout_ms)
{
    struct pollfd p = {.fd = a->pidfd, .events = POLLIN};
    if (a->pidfd < 0)
        return true;
    int n;
    do
        n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return false;
    (void)waitid(P_PIDFD, (id_t)a->pidfd, NULL, WEXITED); /* unless somebody has */
    fd_close_many(&a->pidfd, 1);
    return true;
}

void ahead_done(struct ahead *a)
{
    if (!a->on)
        return;
    if (!is_idle(a, 0)) {
        (void)syscall(SYS_pidfd_send_signal, a->pidfd, SIGKILL, NULL, 0);
        (void)is_idle(a, -1);
    }
    fd_close_many(&a->home_fd, 1);
    fd_close_many(&a->netns_fd, 1);
    idmaps_done(&a->maps);
    a->on = false;
}

void ahead_leave_netns(const struct ahead *a)
{
    for (int i = 0; i < RETURN_TRIES; i++)
        if (setns(a->home_fd, CLONE_NEWNET) == 0)
            return;
    abort();
}

/* Nothing here allocates, and only what fails touches the errno that we share. */
static int refill_child(void *arg)
{
    struct ahead *a = arg;
    struct err ignored = {0};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != a->parent)
        child_exit(1);
    if (a->maps.n == 0)
        (void)idmaps_get(&a->maps, &a->key, &ignored); /* the session tries again, and tells */
    if (a->netns_fd < 0 && unshare(CLONE_NEWNET) == 0 && net_lo_up() == 0)
        a->netns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    child_exit(0);
}

/* Away from the processor where the next exec is about to run, if there is another. */
static void move_away(pid_t pid)
{
    cpu_set_t set;
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE || sched_getaffinity(0, sizeof(set), &set) < 0)
        return;
    CPU_CLR((size_t)here, &set);
    if (CPU_COUNT(&set) > 0)
        (void)sched_setaffinity(pid, sizeof(set), &set);
}

void ahead_refill(struct ahead *a, uint32_t next_index, uid_t daemon_uid, gid_t daemon_gid)
{
    if (!a->on || !is_idle(a, 0))
        return;
    if (a->maps.n > 0 && a->key.index != next_index)
        idmaps_done(&a->maps);
    if (a->maps.n > 0 && a->netns_fd >= 0)
        return;
    a->key = (struct idmap_key){
        .index = next_index, .uid = daemon_uid, .gid = daemon_gid, .root_too = true};
    pid_t pid = clone_shared(0, refill_child, a, a->stack + sizeof(a->stack), &a->pidfd);
    if (pid < 0)
        a->pidfd = -1;
    else
        move_away(pid);
}

void ahead_settle(struct ahead *a)
{
    if (a->on)
        (void)is_idle(a, -1);
}

void ahead_take_maps(struct ahead *a, uint32_t index, struct idmaps *ret)
{
    if (!a->on || !is_idle(a, 0) || a->key.index != index)
        return;
    *ret = a->maps;
    a->maps.n = 0;
}

bool ahead_enter_netns(struct ahead *a)
{
    if (!a->on || !is_idle(a, 0) || a->netns_fd < 0)
        return false;
    bool entered = setns(a->netns_fd, CLONE_NEWNET) == 0;
    fd_close_many(&a->netns_fd, 1);
    return entered;
}
