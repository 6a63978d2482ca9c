/* SPDX-License-Identifier: Apache-2.0 */

/* Leases of addresses, joining and leaving a network, and the removal of old interfaces. */

#include "sandbox/launch/launch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/host/children.h"
#include "sandbox/launch/launch.h"
#include "sandbox/net/netlink.h"
#include "sandbox/net/slirp.h"
#include "sandbox/setup/userns.h"

#define NETWORK_MARK "network"
#define ATTACH_TRIES 16
#define GOING_TRIES 200
#define GOING_INTERVAL_MS 10

int launch_net_init(struct launch_net *net, const char *tag, const char *pool, struct err *err)
{
    *net = (struct launch_net){.pool = pool, .cleaner_fd = -1, .watch_fd = -1};
    return net_config_init(&net->config, tag, pool, err);
}

static int update_host(struct launch_net *net, struct err *err)
{
    int r = net_host_update(&net->config, err);

    net->stale = r < 0;
    return r < 0 ? err_wrap(err, "network") : 0;
}

void launch_net_follow(struct launch_host *h)
{
    if (net_onlink_changed(h->net.watch_fd) && h->net.ready)
        (void)update_host(&h->net, NULL);
}

/* The host side comes with the first session that wants it, not before. */
static int ready_host(struct launch_host *h, struct err *err)
{
    struct launch_net *net = &h->net;
    char tag[NET_TAG_MAX + 1];

    if (net->ready)
        return net->stale ? update_host(net, err) : 0;
    /* Noted first: after a crash the next box-priv knows that there may be something to remove. */
    AUTO_CLOSE int mark =
        openat(h->state_fd, NETWORK_MARK, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (mark < 0)
        return err_sys(err, errno, "note the network");
    /* Again: another instance may have taken the pool since we looked. */
    (void)str_copy(tag, sizeof(tag), net->config.tag);
    int r = net_config_init(&net->config, tag, net->pool, err);
    if (r == 0)
        r = net_host_init(&net->config, &net->info, err);
    if (r < 0)
        return err_wrap(err, "network");
    net->ready = true;
    return 0;
}

static uint32_t lease_count(const struct launch_net *net)
{
    uint32_t max = net_lease_max(&net->config);

    return max < LAUNCH_LEASES_MAX - 1 ? max : LAUNCH_LEASES_MAX - 1;
}

/* They go round: one that was just given back is the last to be used again, so that what is still
 * under way to its last owner does not meet the next. 0: none is free. */
static uint32_t take_lease(struct launch_net *net)
{
    uint32_t max = lease_count(net);

    for (uint32_t n = 0; n < max; n++) {
        uint32_t i = net->next++ % max + 1;

        if (net->leases[i] == LEASE_FREE) {
            net->leases[i] = LEASE_USED;
            return i;
        }
    }
    return 0;
}

static void let_go(struct launch_net *net, uint32_t index)
{
    net->leases[index] = LEASE_CUT;
    net->n_going++;
}

/* What the child did not manage goes another round. */
static void take_back(struct launch_net *net)
{
    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);
    if (sock < 0)
        return;
    for (uint32_t i = 1; i <= lease_count(net); i++) {
        struct net_lease lease;

        if (net->leases[i] != LEASE_CLEANING)
            continue;
        if (net_lease_init(&lease, &net->config, i, NULL) == 0 &&
            nl_ifindex(sock, lease.ifname) == -ENODEV) {
            net->leases[i] = LEASE_FREE;
            net->n_going--;
        } else {
            net->leases[i] = LEASE_CUT;
        }
    }
}

static bool lease_ended(void *arg, uint32_t index)
{
    const struct launch_net *net = arg;

    return index < LAUNCH_LEASES_MAX && net->leases[index] == LEASE_CLEANING;
}

/* Most interfaces are gone already, with their namespaces. */
_Noreturn static void clean_child(struct launch_net *net)
{
    (void)net_flows_drop(&net->config, lease_ended, net, NULL);
    for (uint32_t i = 1; i <= lease_count(net); i++) {
        struct net_lease lease;

        if (net->leases[i] == LEASE_CLEANING && net_lease_init(&lease, &net->config, i, NULL) == 0)
            (void)net_detach(&lease, NULL);
    }
    child_exit(0);
}

/* By a child, because either takes the kernel a while. */
void launch_net_sweep(struct launch_host *h)
{
    struct launch_net *net = &h->net;
    struct pollfd pfd = {.fd = net->cleaner_fd, .events = POLLIN};

    if (net->cleaner_fd >= 0 && poll(&pfd, 1, 0) == 0)
        return;
    fd_close_many(&net->cleaner_fd, 1);
    take_back(net);
    if (net->n_going == 0)
        return;
    for (uint32_t i = 1; i <= lease_count(net); i++)
        if (net->leases[i] == LEASE_CUT)
            net->leases[i] = LEASE_CLEANING;
    pid_t pid = clone_process(0, -1, &net->cleaner_fd);
    if (pid == 0)
        clean_child(net);
    children_add(pid);
}

static bool interface_left(const struct launch_net *net)
{
    AUTO_CLOSE int sock = nl_socket(NETLINK_ROUTE);

    for (uint32_t i = 1; sock >= 0 && i <= lease_count(net); i++) {
        struct net_lease lease;

        if (net->leases[i] != LEASE_FREE && net_lease_init(&lease, &net->config, i, NULL) == 0 &&
            nl_ifindex(sock, lease.ifname) >= 0)
            return true;
    }
    return false;
}

int launch_net_end(struct launch_host *h, struct err *err)
{
    struct pollfd none;

    fd_close_many(&h->net.cleaner_fd, 1);
    fd_close_many(&h->net.watch_fd, 1);
    if (!h->rootful || faccessat(h->state_fd, NETWORK_MARK, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    /* The kernel removes the interfaces of many namespaces at once; we would do it one by one. */
    for (int i = 0; i < GOING_TRIES && interface_left(&h->net); i++)
        (void)poll(&none, 0, GOING_INTERVAL_MS);
    int r = net_host_done(&h->net.config, err);
    if (r == 0 && unlinkat(h->state_fd, NETWORK_MARK, 0) < 0)
        r = err_sys(err, errno, "forget the network");
    return r;
}

static int open_ns(pid_t pid, const char *name, struct err *err)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? err_sys(err, errno, "the session's %s namespace", name) : fd;
}

static int attach_next(struct launch_host *h, int netns_fd, uint32_t *ret, struct err *err)
{
    struct launch_net *net = &h->net;
    struct net_lease lease;
    uint32_t index = take_lease(net);

    if (index == 0 && net->n_going > 0) {
        launch_net_sweep(h);
        index = take_lease(net);
    }
    if (index == 0)
        return err_set(err, ERR_LIMIT, "no network address is free: %u sessions have one",
                       lease_count(net));
    int r = net_lease_init(&lease, &net->config, index, err);
    if (r == 0)
        r = net_attach(&lease, netns_fd, err);
    if (r < 0)
        let_go(net, index);
    else
        *ret = index;
    return r;
}

/* An interface whose lease is free is about to be removed by the kernel: the next index will do. */
static int attach(struct launch_host *h, struct launch *l, int netns_fd, struct err *err)
{
    int r = ready_host(h, err);

    for (int i = 0; r == 0 && i < ATTACH_TRIES; i++) {
        struct err why = {0};

        r = attach_next(h, netns_fd, &l->net_index, &why);
        if (r == 0)
            return 0;
        *err = why;
        if (why.code == ERR_CONFLICT && i + 1 < ATTACH_TRIES)
            r = 0;
    }
    return r;
}

int launch_net_join(struct launch_host *h, struct launch *l, struct err *err)
{
    AUTO_CLOSE int userns = -1;
    AUTO_CLOSE int netns = open_ns(l->pid, "net", err);
    int r = netns < 0 ? netns : 0;

    if (r == 0 && h->rootful) {
        r = attach(h, l, netns, err);
        l->net = NET_NAT;
    } else if (r == 0) {
        userns = open_ns(l->pid, "user", err);
        r = userns < 0 ? userns : slirp_start(NULL, netns, userns, &l->slirp, err);
        if (r == 0)
            children_add(l->slirp.proc.pid); /* slirp_drop() does not wait for it */
        l->net = r < 0 ? NET_NONE : l->slirp.kind;
    }
    if (r == 0)
        r = net_dns_open(netns, &l->dns_fds[0], &l->dns_fds[1], err);
    return r;
}

int launch_net_resolver(const struct launch *l, int ret_fds[2], struct err *err)
{
    AUTO_CLOSE int netns = open_ns(l->pid, "net", err);
    return netns < 0 ? netns : net_dns_open(netns, &ret_fds[0], &ret_fds[1], err);
}

int launch_net_listen(const struct launch *l, uint16_t port, int ret_fds[2], struct err *err)
{
    struct err ignored = {0};
    AUTO_CLOSE int netns = open_ns(l->pid, "net", err);
    int fd = netns < 0 ? netns : net_listen_open(netns, port, false, err);

    if (fd < 0)
        return fd;
    ret_fds[0] = fd;
    ret_fds[1] = net_listen_open(netns, port, true, &ignored);
    return 0;
}

void launch_net_leave(struct launch_host *h, struct launch *l)
{
    struct net_lease lease;

    fd_close_many(l->dns_fds, 2);
    slirp_drop(&l->slirp);
    if (l->net_index != 0) {
        if (net_lease_init(&lease, &h->net.config, l->net_index, NULL) == 0)
            net_cut(&lease);
        let_go(&h->net, l->net_index);
        l->net_index = 0;
    }
}

/* A user namespace and a network namespace as a session's, with only a waiting child in them. */
static int probe_guest(pid_t pid, struct err *err)
{
    struct id_pair ids = {1000, geteuid()}, groups = {1000, getegid()};
    struct slirp slirp = SLIRP_NONE;
    int r = userns_map(pid, &ids, &groups, 1, err);

    AUTO_CLOSE int netns = r < 0 ? -1 : open_ns(pid, "net", err);
    AUTO_CLOSE int userns = r < 0 ? -1 : open_ns(pid, "user", err);
    if (netns < 0 || userns < 0)
        return r < 0 ? r : -ESRCH;
    r = slirp_start(NULL, netns, userns, &slirp, err);
    slirp_stop(&slirp);
    return r;
}

int launch_net_probe(const struct launch_host *h, struct err *err)
{
    pid_t parent = getpid();
    int pidfd = -1;
    int r = h->rootful ? net_probe(err) : slirp_probe(NULL, err);

    if (r < 0 || h->rootful)
        return r;
    pid_t pid = clone_process(CLONE_NEWUSER | CLONE_NEWNET, -1, &pidfd);
    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 && getppid() == parent)
            (void)pause();
        child_exit(0);
    }
    if (pid < 0)
        return err_sys(err, -pid, "scratch namespaces");
    r = probe_guest(pid, err);
    (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    (void)waitpid(pid, NULL, 0);
    (void)close(pidfd);
    return r;
}
