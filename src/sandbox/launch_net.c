/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/launch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/clone.h"
#include "sandbox/launch.h"
#include "sandbox/netlink.h"
#include "sandbox/slirp.h"
#include "sandbox/userns.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/str.h"

#define NETWORK_MARK "network"
#define ATTACH_TRIES 16
#define GOING_TRIES 200
#define GOING_INTERVAL_MS 10
#define PROBE_LIFE_MS 20000

static bool bit(const uint8_t *set, uint32_t i)
{
    return (set[i / 8] & (1U << (i % 8))) != 0;
}

static void set_bit(uint8_t *set, uint32_t i, bool on)
{
    if (on)
        set[i / 8] |= (uint8_t)(1U << (i % 8));
    else
        set[i / 8] &= (uint8_t) ~(1U << (i % 8));
}

int launch_net_init(struct launch_net *net, const char *tag, const char *pool, struct err *err)
{
    *net = (struct launch_net){.pool = pool, .remover_fd = -1};
    return net_config_init(&net->config, tag, pool, err);
}

/* The host side comes with the first session that wants it, not before. */
static int ready_host(struct launch_host *h, struct err *err)
{
    struct launch_net *net = &h->net;
    char tag[NET_TAG_MAX + 1];

    if (net->ready)
        return 0;
    /* Noted first: whoever comes after a crash knows that there may be something to remove. */
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

        if (!bit(net->used, i)) {
            set_bit(net->used, i, true);
            return i;
        }
    }
    return 0;
}

static void free_lease(struct launch_net *net, uint32_t index)
{
    set_bit(net->used, index, false);
    set_bit(net->going, index, false);
    set_bit(net->late, index, false);
    net->n_going--;
}

static void let_go(struct launch_net *net, uint32_t index)
{
    set_bit(net->going, index, true);
    net->n_going++;
}

/* By a child, because the kernel takes its time. */
static void remove_late(struct launch_net *net)
{
    struct pollfd pfd = {.fd = net->remover_fd, .events = POLLIN};

    if (net->remover_fd >= 0 && poll(&pfd, 1, 0) == 0)
        return; /* the last one is still at it */
    fd_close_many(&net->remover_fd, 1);
    if (clone_process(0, -1, &net->remover_fd) != 0)
        return;
    for (uint32_t i = 1; i <= lease_count(net); i++) {
        struct net_lease lease;

        if (bit(net->late, i) && net_lease_init(&lease, &net->config, i, NULL) == 0)
            (void)net_detach(&lease, NULL);
    }
    child_exit(0);
}

/* Takes back the leases whose interface is gone. True when some are still there that were there the
 * last time. */
static bool take_back(struct launch_net *net)
{
    bool late = false;

    AUTO_CLOSE int sock = nl_socket();
    if (sock < 0)
        return false;
    for (uint32_t i = 1; i <= lease_count(net) && net->n_going > 0; i++) {
        struct net_lease lease;

        if (!bit(net->going, i) || net_lease_init(&lease, &net->config, i, NULL) < 0)
            continue;
        if (nl_ifindex(sock, lease.ifname) == -ENODEV) {
            free_lease(net, i);
            continue;
        }
        late = late || bit(net->late, i);
        set_bit(net->late, i, true);
    }
    return late;
}

void launch_net_sweep(struct launch_host *h)
{
    if (take_back(&h->net))
        remove_late(&h->net);
}

int launch_net_end(struct launch_host *h, struct err *err)
{
    struct pollfd none;

    fd_close_many(&h->net.remover_fd, 1);
    if (!h->rootful || faccessat(h->state_fd, NETWORK_MARK, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    /* The kernel removes the interfaces of many namespaces at once; we would do it one by one. */
    for (int i = 0; h->net.n_going > 0 && i < GOING_TRIES; i++) {
        (void)poll(&none, 0, GOING_INTERVAL_MS);
        (void)take_back(&h->net);
    }
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

static int attach_next(struct launch_net *net, int netns_fd, uint32_t *ret, struct err *err)
{
    struct net_lease lease;
    uint32_t index = take_lease(net);

    if (index == 0 && net->n_going > 0) {
        (void)take_back(net);
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

/* An interface that is there although nobody has its lease is a moment from its end: the next one
 * will do. */
static int attach(struct launch_host *h, struct launch *l, int netns_fd, struct err *err)
{
    int r = ready_host(h, err);

    for (int i = 0; r == 0 && i < ATTACH_TRIES; i++) {
        struct err why = {0};

        r = attach_next(&h->net, netns_fd, &l->net_index, &why);
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
        l->net = r < 0 ? NET_NONE : l->slirp.kind;
    }
    if (r == 0)
        r = net_dns_open(netns, &l->dns_fds[0], &l->dns_fds[1], err);
    return r;
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

/* A user namespace and a network namespace such as a session has, with nobody in them but a child
 * that waits for its end. */
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
    struct pollfd none;
    int pidfd = -1;
    int r = h->rootful ? net_probe(err) : slirp_probe(NULL, err);

    if (r < 0 || h->rootful)
        return r;
    pid_t pid = clone_process(CLONE_NEWUSER | CLONE_NEWNET, -1, &pidfd);
    if (pid == 0) {
        (void)poll(&none, 0, PROBE_LIFE_MS);
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
