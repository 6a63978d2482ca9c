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
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/net/net.h"

#define RETURN_TRIES 1000
#define MAKER_SOCK 3

struct order {
    struct idmap_key key;
    uint32_t quota_us;
    bool map, netns, groups; /* what is missing */
};

/* Two for an order that asks for both: descriptors come first, as nothing may come after a
 * session's end was told. */
struct delivery {
    bool map, netns; /* descriptors that came along, in this order */
    bool of_groups;  /* it tells of groups, and not of descriptors */
    bool groups;     /* they are there */
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

static void serve_order(int sock, const struct order *o, const struct cgroup_host *cgroups)
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
    if ((o->map || o->netns) && fd_send_msg(sock, &d, sizeof(d), fds, n, MSG_NOSIGNAL) < 0)
        child_exit(1);
    if (!o->groups)
        return;
    d = (struct delivery){.of_groups = true,
                          .groups = cgroup_spare_make(cgroups, o->quota_us) >= 0};
    if (fd_send_msg(sock, &d, sizeof(d), NULL, 0, MSG_NOSIGNAL) < 0)
        child_exit(1);
}

/* Nothing else of box-priv's is its business. */
static int keep_fds_child(int sock, struct cgroup_host *cgroups)
{
    int *kept[1 + CGROUP_CONTROLLERS] = {&sock};
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        kept[1 + i] = &cgroups->v1_fd[i];
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) { /* out of each other's way first */
        if (*kept[i] >= 0 &&
            (*kept[i] = fcntl(*kept[i], F_DUPFD_CLOEXEC, MAKER_SOCK + (int)ARRAY_SIZE(kept))) < 0)
            return -errno;
    }
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        if (*kept[i] >= 0 && (*kept[i] = dup3(*kept[i], MAKER_SOCK + (int)i, O_CLOEXEC)) < 0)
            return -errno;
    }
    return syscall(SYS_close_range, MAKER_SOCK + ARRAY_SIZE(kept), ~0U, 0) < 0 ? -errno : 0;
}

static _Noreturn void maker_child(int sock, struct cgroup_host cgroups, pid_t parent)
{
    struct order o;
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_NAME, "box-maker", 0, 0, 0); /* for people who look at processes */
    /* box-priv asks for this when it has just made a session: neither its answer nor the first use
     * of the session is to wait for the maker. */
    (void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
        child_exit(1);
    if (keep_fds_child(sock, &cgroups) < 0)
        child_exit(1);
    while (recv(MAKER_SOCK, &o, sizeof(o), 0) == (ssize_t)sizeof(o))
        serve_order(MAKER_SOCK, &o, &cgroups);
    child_exit(0);
}

void prewarm_init(struct prewarm *a, bool on, const struct cgroup_host *cgroups)
{
    int pair[2];
    *a = (struct prewarm){.home_fd = -1, .sock = -1, .netns_fd = -1, .map_fd = -1};
    if (!on || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    pid_t parent = getpid();
    pid_t pid = clone_process(0, -1, NULL);
    if (pid == 0) {
        (void)close(pair[0]);
        maker_child(pair[1], *cgroups, parent);
    }
    (void)close(pair[1]);
    a->sock = pair[0];
    a->home_fd = open_netns();
    a->on = pid > 0 && a->home_fd >= 0;
    if (!a->on)
        prewarm_done(a);
}

static void prewarm_close(struct prewarm *a)
{
    fd_close_many(&a->home_fd, 1);
    fd_close_many(&a->sock, 1);
    fd_close_many(&a->netns_fd, 1);
    fd_close_many(&a->map_fd, 1);
    a->on = a->asked = a->asked_groups = a->groups = false;
}

/* Takes one delivery; false when there is none just now. A maker that fails is done without. */
static bool collect_one(struct prewarm *a, int flags)
{
    struct delivery d = {0};
    int fds[2];
    size_t n = ARRAY_SIZE(fds), i = 0;
    ssize_t r;
    do
        r = fd_recv_msg(a->sock, &d, sizeof(d), fds, &n, flags);
    while (r == -EINTR);
    if (r == -EAGAIN)
        return false;
    if (r != (ssize_t)sizeof(d) || n != (size_t)d.map + (size_t)d.netns) {
        if (r >= 0)
            fd_close_many(fds, n);
        prewarm_close(a);
        return false;
    }
    if (d.of_groups) {
        a->asked_groups = false;
        a->groups = d.groups;
        return true;
    }
    a->asked = false;
    if (d.map)
        a->map_fd = fds[i++];
    if (d.netns)
        a->netns_fd = fds[i++];
    return true;
}

/* Takes what has come. */
static void collect(struct prewarm *a)
{
    while ((a->asked || a->asked_groups) && collect_one(a, MSG_DONTWAIT))
        continue;
}

void prewarm_done(struct prewarm *a)
{
    while ((a->asked || a->asked_groups) && collect_one(a, 0))
        continue;
    prewarm_close(a);
}

void prewarm_leave_netns(const struct prewarm *a)
{
    for (int i = 0; i < RETURN_TRIES; i++)
        if (setns(a->home_fd, CLONE_NEWNET) == 0)
            return;
    abort();
}

/* Orders what is missing. While an order for descriptors is under way, `again` remembers to look
 * once more: a session may have taken some since. */
static void order_missing(struct prewarm *a)
{
    collect(a);
    a->again = a->asked;
    if (!a->on || a->asked)
        return;
    if (a->map_fd >= 0 && a->key.index != a->next.index)
        fd_close_many(&a->map_fd, 1);
    struct order o = {.key = a->next,
                      .map = a->map_fd < 0,
                      .netns = a->netns_fd < 0,
                      .groups = !a->asked_groups && (!a->groups || a->quota_us != a->next_quota_us),
                      .quota_us = a->next_quota_us};
    if (!o.map && !o.netns && !o.groups)
        return;
    a->key = a->next;
    bool sent = send(a->sock, &o, sizeof(o), MSG_NOSIGNAL) == (ssize_t)sizeof(o);
    a->asked = sent && (o.map || o.netns);
    if (sent && o.groups) {
        a->asked_groups = true;
        a->groups = false; /* the maker changes the CPU limit of those that are there */
        a->quota_us = a->next_quota_us;
    }
}

void prewarm_refill(struct prewarm *a, uint32_t next_index, uint32_t quota_us, uid_t daemon_uid,
                    gid_t daemon_gid)
{
    a->next = (struct idmap_key){
        .index = next_index, .uid = daemon_uid, .gid = daemon_gid, .root_too = true};
    a->next_quota_us = quota_us;
    order_missing(a);
}

void prewarm_settle(struct prewarm *a)
{
    do {
        while (a->asked && collect_one(a, 0))
            continue;
        if (a->again)
            order_missing(a);
    } while (a->asked);
}

bool prewarm_take_groups(struct prewarm *a, uint32_t quota_us)
{
    collect(a);
    bool there = a->groups && a->quota_us == quota_us;
    a->groups = a->groups && !there;
    return there;
}

void prewarm_take_maps(struct prewarm *a, uint32_t index, struct idmaps *ret)
{
    collect(a);
    if (a->map_fd < 0 || a->key.index != index)
        return;
    ret->maps[0].key = a->key;
    ret->maps[0].fd = TAKE_FD(a->map_fd);
    ret->n = 1;
}

bool prewarm_enter_netns(struct prewarm *a)
{
    collect(a);
    if (!a->on || a->netns_fd < 0)
        return false;
    bool entered = setns(a->netns_fd, CLONE_NEWNET) == 0;
    fd_close_many(&a->netns_fd, 1);
    return entered;
}
