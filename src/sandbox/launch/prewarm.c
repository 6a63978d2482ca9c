/* SPDX-License-Identifier: Apache-2.0 */

/* The child that makes namespaces and id maps ahead, and the orders to it. */

#include "sandbox/launch/prewarm.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/net/net.h"

#define RETURN_TRIES 1000
#define MAKER_SOCK 3

struct order {
    struct idmap_key key;
    bool map, netns; /* what is missing */
};

struct delivery {
    bool map, netns; /* descriptors that came along, in this order */
};

static int open_netns(void)
{
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* A new one each time: that of the last order is left behind, and lives where it was sent. */
static int make_netns(void)
{
    return unshare(CLONE_NEWNET) == 0 && net_lo_up() == 0 ? open_netns() : -1;
}

static void serve_order(int sock, const struct order *o)
{
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    struct delivery d = {0};
    struct err ignored = {0}; /* the session tries again by itself, and tells */
    int fds[2];
    size_t n = 0;
    int map = o->map ? idmaps_get(&maps, &o->key, &ignored) : -1;
    AUTO_CLOSE int netns = o->netns ? make_netns() : -1;
    if (map >= 0) {
        d.map = true;
        fds[n++] = map;
    }
    if (netns >= 0) {
        d.netns = true;
        fds[n++] = netns;
    }
    if (fd_send_msg(sock, &d, sizeof(d), fds, n, MSG_NOSIGNAL) < 0)
        child_exit(1);
}

static _Noreturn void maker_child(int sock, pid_t parent)
{
    struct order o;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_NAME, "box-maker", 0, 0, 0); /* for people who look at processes */
    /* It is asked when a session has just been made: whoever is about to say so, or to use it, is
     * not to wait for us. */
    (void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
        child_exit(1);
    /* Nothing else of box-priv's is its business. */
    if ((sock != MAKER_SOCK && dup3(sock, MAKER_SOCK, O_CLOEXEC) < 0) ||
        syscall(SYS_close_range, MAKER_SOCK + 1, ~0U, 0) < 0)
        child_exit(1);
    while (recv(MAKER_SOCK, &o, sizeof(o), 0) == (ssize_t)sizeof(o))
        serve_order(MAKER_SOCK, &o);
    child_exit(0);
}

void prewarm_init(struct prewarm *a, bool on)
{
    int pair[2];
    *a = (struct prewarm){.home_fd = -1, .sock = -1, .netns_fd = -1, .map_fd = -1};
    if (!on || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    pid_t parent = getpid();
    pid_t pid = clone_process(0, -1, NULL);
    if (pid == 0) {
        (void)close(pair[0]);
        maker_child(pair[1], parent);
    }
    (void)close(pair[1]);
    a->sock = pair[0];
    a->home_fd = open_netns();
    a->on = pid > 0 && a->home_fd >= 0;
    if (!a->on)
        prewarm_done(a);
}

void prewarm_done(struct prewarm *a)
{
    fd_close_many(&a->home_fd, 1);
    fd_close_many(&a->sock, 1);
    fd_close_many(&a->netns_fd, 1);
    fd_close_many(&a->map_fd, 1);
    a->on = a->asked = false;
}

/* Takes what has come. A maker that fails is done without. */
static void collect(struct prewarm *a, int flags)
{
    struct delivery d = {0};
    int fds[2];
    size_t n = ARRAY_SIZE(fds), i = 0;
    if (!a->asked)
        return;
    ssize_t r;
    do
        r = fd_recv_msg(a->sock, &d, sizeof(d), fds, &n, flags);
    while (r == -EINTR);
    if (r == -EAGAIN)
        return;
    a->asked = false;
    if (r != (ssize_t)sizeof(d) || n != (size_t)d.map + (size_t)d.netns) {
        if (r >= 0)
            fd_close_many(fds, n);
        prewarm_done(a);
        return;
    }
    if (d.map)
        a->map_fd = fds[i++];
    if (d.netns)
        a->netns_fd = fds[i++];
}

void prewarm_leave_netns(const struct prewarm *a)
{
    for (int i = 0; i < RETURN_TRIES; i++)
        if (setns(a->home_fd, CLONE_NEWNET) == 0)
            return;
    abort();
}

void prewarm_refill(struct prewarm *a, uint32_t next_index, uid_t daemon_uid, gid_t daemon_gid)
{
    collect(a, MSG_DONTWAIT);
    if (!a->on || a->asked)
        return;
    if (a->map_fd >= 0 && a->key.index != next_index)
        fd_close_many(&a->map_fd, 1);
    struct order o = {.map = a->map_fd < 0, .netns = a->netns_fd < 0};
    if (!o.map && !o.netns)
        return;
    o.key = a->key = (struct idmap_key){
        .index = next_index, .uid = daemon_uid, .gid = daemon_gid, .root_too = true};
    a->asked = send(a->sock, &o, sizeof(o), MSG_NOSIGNAL) == (ssize_t)sizeof(o);
}

void prewarm_settle(struct prewarm *a)
{
    collect(a, 0);
}

void prewarm_take_maps(struct prewarm *a, uint32_t index, struct idmaps *ret)
{
    collect(a, MSG_DONTWAIT);
    if (a->map_fd < 0 || a->key.index != index)
        return;
    ret->maps[0].key = a->key;
    ret->maps[0].fd = TAKE_FD(a->map_fd);
    ret->n = 1;
}

bool prewarm_enter_netns(struct prewarm *a)
{
    collect(a, MSG_DONTWAIT);
    if (!a->on || a->netns_fd < 0)
        return false;
    bool entered = setns(a->netns_fd, CLONE_NEWNET) == 0;
    fd_close_many(&a->netns_fd, 1);
    return entered;
}
