/* SPDX-License-Identifier: Apache-2.0 */

/* Needs root; skips otherwise. The process moves into a network namespace of its own, which plays
 * the host; another one plays the internet and has every address that matters on its loopback. No
 * packet leaves the machine, and the machine's own rules and routes are not touched. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/net/net.h"
/* For what is private to it. */
#include "sandbox/net/net_host.c"
#include "sandbox/net/netlink.h"

#define HOST_PUBLIC "11.0.0.2"
#define TIMEOUT_MS 1500

/* A TCP server until the end of the scope; the kernel completes connections to it by itself. */
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared has none around it. */
#define LISTENER(name, ns, port) __attribute__((unused)) AUTO_CLOSE int name = listen_in(ns, port)

static int host_ns = -1;
static int inet_ns = -1;
static struct net_config config;
static struct err err;

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        err = (struct err){0};                                                                     \
        if ((expr) < 0)                                                                            \
            fail_msg("%s: %s", #expr, err.msg);                                                    \
    } while (0)

static void enter(int ns)
{
    assert_int_equal(setns(ns, CLONE_NEWNET), 0);
}

static int new_ns(void)
{
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    if (host_ns >= 0)
        enter(host_ns);
    return fd;
}

static int run_text(const char *const argv[], const char *text)
{
    AUTO_CLOSE int fd = fd_sealed_memfd("batch", text, strlen(text));

    assert_true(fd >= 0 && lseek(fd, 0, SEEK_SET) == 0);
    return hostcmd_wait(argv, fd, 10000, &err);
}

static void ip_batch(const char *text)
{
    static const char *const argv[] = {"ip", "-batch", "-", NULL};

    assert_ok(run_text(argv, text));
}

static void nft_text(const char *text)
{
    static const char *const argv[] = {"nft", "-f", "-", NULL};

    assert_ok(run_text(argv, text));
}

static bool nft_has(const char *const argv[], const char *needle)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 1 << 20);
    assert_ok(nft_query(argv, &out, &err));
    return strstr(buf_str(&out), needle) != NULL;
}

static struct sockaddr_in addr_of(const char *ip, uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_int_equal(inet_pton(AF_INET, ip, &sa.sin_addr), 1);
    return sa;
}

static const char *ip_text(uint32_t addr)
{
    static char text[INET_ADDRSTRLEN];
    struct in_addr in = {.s_addr = htonl(addr)};

    return inet_ntop(AF_INET, &in, text, sizeof(text));
}

static int listen_in(int ns, uint16_t port)
{
    struct sockaddr_in sa = addr_of("0.0.0.0", port);
    const int on = 1;

    enter(ns);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 512), 0);
    enter(host_ns);
    return fd;
}

/* 0, or the errno that a program in that namespace sees; ETIMEDOUT when nothing came at all. */
static int try_connect_fd(int ns, const char *ip, uint16_t port, int *ret_fd)
{
    struct sockaddr_in sa = addr_of(ip, port);
    int error = 0;
    socklen_t len = sizeof(error);

    enter(ns);
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enter(host_ns);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        if (errno != EINPROGRESS)
            return errno;
        struct pollfd pfd = {.fd = fd, .events = POLLOUT};
        if (poll(&pfd, 1, TIMEOUT_MS) == 0)
            return ETIMEDOUT;
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), 0);
    }
    if (error == 0 && ret_fd != NULL)
        *ret_fd = TAKE_FD(fd);
    return error;
}

static int try_connect(int ns, const char *ip, uint16_t port)
{
    return try_connect_fd(ns, ip, port, NULL);
}

struct box {
    int ns;
    struct net_lease lease;
};

static struct box box_new(uint32_t index)
{
    struct box b = {.ns = new_ns()};

    assert_ok(net_lease_init(&b.lease, &config, index, &err));
    assert_ok(net_attach(&b.lease, b.ns, &err));
    return b;
}

/* Closing the last descriptor removes the namespace a moment later; this does not wait for it. */
static void box_free(struct box *b)
{
    assert_ok(net_detach(&b->lease, &err));
    (void)close(b->ns);
}

static void session_reaches_the_internet_and_is_masqueraded(void **state)
{
    struct sockaddr_in peer = {0};
    socklen_t len = sizeof(peer);
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int fd = -1;
    struct box b = box_new(1);

    assert_int_equal(try_connect_fd(b.ns, "8.8.8.8", 80, &fd), 0);
    AUTO_CLOSE int conn = accept4(server, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
    assert_true(conn >= 0);
    assert_int_equal(peer.sin_addr.s_addr, addr_of(HOST_PUBLIC, 0).sin_addr.s_addr);
    box_free(&b);
}

static void internal_ranges_are_refused_at_once(void **state)
{
    static const char *const list[] = {"10.0.0.1",      "100.100.100.200", "169.254.169.254",
                                       "172.16.0.1",    "192.0.0.192",     "192.168.1.1",
                                       "168.63.129.16", "100.64.0.1",      "198.18.255.1",
                                       "198.19.255.1",  "172.31.255.255"};
    LISTENER(server, inet_ns, 80);
    struct box b = box_new(1);

    for (size_t i = 0; i < ARRAY_SIZE(list); i++) {
        /* They are there: the host reaches them. */
        assert_int_equal(try_connect(host_ns, list[i], 80), 0);
        int error = try_connect(b.ns, list[i], 80);
        if (error != ECONNREFUSED)
            fail_msg("%s: %s", list[i], error == 0 ? "connected" : err_errno_text(error));
    }
    box_free(&b);
}

static void odd_destinations_lead_nowhere(void **state)
{
    static const char *const list[] = {"0.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"};
    struct box b = box_new(1);

    for (size_t i = 0; i < ARRAY_SIZE(list); i++)
        assert_int_not_equal(try_connect(b.ns, list[i], 80), 0);
    /* Its own loopback is its own. */
    assert_int_equal(try_connect(b.ns, "127.0.0.1", 80), ECONNREFUSED);
    box_free(&b);
}

static void host_is_out_of_reach_on_every_address(void **state)
{
    LISTENER(server, host_ns, 5410);
    struct box b = box_new(1);
    const char *gateway = ip_text(b.lease.host);

    assert_int_equal(try_connect(host_ns, HOST_PUBLIC, 5410), 0);
    assert_int_equal(try_connect(b.ns, HOST_PUBLIC, 5410), ECONNREFUSED);
    assert_int_equal(try_connect(b.ns, gateway, 5410), ECONNREFUSED);
    assert_int_equal(try_connect(b.ns, ip_text(config.pool + 1), 5410), ECONNREFUSED);
    /* The DNS port is no exception. */
    LISTENER(dns, host_ns, 53);
    assert_int_equal(try_connect(host_ns, HOST_PUBLIC, 53), 0);
    assert_int_equal(try_connect(b.ns, HOST_PUBLIC, 53), ECONNREFUSED);
    assert_int_equal(try_connect(b.ns, "127.0.0.1", 5410), ECONNREFUSED);
    box_free(&b);
}

static void published_port_of_a_container_is_no_way_round(void **state)
{
    LISTENER(server, inet_ns, 80);
    struct box b = box_new(1);

    /* What Docker does for `-p 8080:80`, with a container address in a private range. */
    nft_text("table ip fakedocker { chain pre { type nat hook prerouting priority dstnat;\n"
             "fib daddr type local tcp dport 8080 dnat to 172.16.0.1:80\n}\n}\n");
    int error = try_connect(b.ns, HOST_PUBLIC, 8080);
    nft_text("delete table ip fakedocker\n");
    assert_int_equal(error, ECONNREFUSED);
    box_free(&b);
}

static void resolver_lives_inside_the_session(void **state)
{
    AUTO_CLOSE int udp = -1;
    AUTO_CLOSE int tcp = -1;
    struct box b = box_new(1);

    assert_ok(net_dns_open(b.ns, &udp, &tcp, &err));
    assert_int_equal(try_connect(b.ns, "127.0.0.53", 53), 0);
    assert_int_equal(try_connect(host_ns, "127.0.0.53", 53), ECONNREFUSED);
    box_free(&b);
}

static void sessions_cannot_reach_each_other(void **state)
{
    struct box a = box_new(1), b = box_new(2);
    LISTENER(server, b.ns, 80);
    char guest[INET_ADDRSTRLEN];

    assert_int_equal(str_copy(guest, sizeof(guest), ip_text(b.lease.guest)), 0);
    assert_int_equal(try_connect(b.ns, guest, 80), 0);
    assert_int_equal(try_connect(a.ns, guest, 80), ECONNREFUSED);
    box_free(&a);
    box_free(&b);
}

static void nobody_outside_can_open_a_connection_to_a_session(void **state)
{
    struct box b = box_new(1);
    LISTENER(server, b.ns, 80);
    char text[96];

    enter(inet_ns);
    assert_true(str_fmt(text, sizeof(text), "route add %s/32 via " HOST_PUBLIC "\n",
                        ip_text(b.lease.guest)) >= 0);
    ip_batch(text);
    enter(host_ns);
    assert_int_equal(try_connect(inet_ns, ip_text(b.lease.guest), 80), ETIMEDOUT);
    enter(inet_ns);
    assert_true(str_fmt(text, sizeof(text), "route del %s/32\n", ip_text(b.lease.guest)) >= 0);
    ip_batch(text);
    enter(host_ns);
    box_free(&b);
}

static void mail_ports_are_closed(void **state)
{
    static const uint16_t ports[] = {25, 465, 587};
    struct box b = box_new(1);

    for (size_t i = 0; i < ARRAY_SIZE(ports); i++) {
        LISTENER(server, inet_ns, ports[i]);

        assert_int_equal(try_connect(host_ns, "8.8.8.8", ports[i]), 0);
        assert_int_equal(try_connect(b.ns, "8.8.8.8", ports[i]), ECONNREFUSED);
    }
    box_free(&b);
}

static void spoofed_source_addresses_go_nowhere(void **state)
{
    char text[96];
    LISTENER(server, inet_ns, 80);
    struct box a = box_new(1), b = box_new(2);

    /* As nobody in a session can, for want of capabilities. */
    enter(a.ns);
    assert_true(str_fmt(text, sizeof(text),
                        "addr add %s/32 dev eth0\nroute replace default dev eth0 via ",
                        ip_text(b.lease.guest)) >= 0);
    char batch[256];
    assert_true(str_fmt(batch, sizeof(batch), "%s%s onlink src ", text, ip_text(a.lease.host)) >=
                0);
    assert_true(str_fmt(text, sizeof(text), "%s\n", ip_text(b.lease.guest)) >= 0);
    char whole[400];
    assert_true(str_fmt(whole, sizeof(whole), "%s%s", batch, text) >= 0);
    ip_batch(whole);
    enter(host_ns);
    assert_int_equal(try_connect(a.ns, "8.8.8.8", 80), ETIMEDOUT);
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), 0);
    box_free(&a);
    box_free(&b);
}

static void connections_at_a_time_are_capped(void **state)
{
    enum { CAP = 8 };
    int fds[CAP + 1];
    struct net_config tight = config;
    struct net_host_info info = {0};
    LISTENER(server, inet_ns, 80);
    struct box b = box_new(1), other = box_new(2);

    tight.conn_max = CAP;
    assert_ok(net_host_init(&tight, &info, &err));
    for (int i = 0; i < CAP; i++)
        assert_int_equal(try_connect_fd(b.ns, "8.8.8.8", 80, &fds[i]), 0);
    assert_int_equal(try_connect_fd(b.ns, "8.8.8.8", 80, &fds[CAP]), ECONNREFUSED);
    /* One session's cap is not another's. */
    assert_int_equal(try_connect(other.ns, "8.8.8.8", 80), 0);
    fd_close_many(fds, CAP);
    assert_ok(net_host_init(&config, &info, &err));
    box_free(&b);
    box_free(&other);
}

static void new_connections_are_rate_limited(void **state)
{
    struct net_config tight = config;
    struct net_host_info info = {0};
    LISTENER(server, inet_ns, 80);
    struct box b = box_new(1);
    int refused = 0;

    tight.conn_rate = 1;
    assert_ok(net_host_init(&tight, &info, &err));
    for (int i = 0; i < 10; i++)
        refused += try_connect(b.ns, "8.8.8.8", 80) == ECONNREFUSED;
    assert_in_range(refused, 5, 8);
    assert_ok(net_host_init(&config, &info, &err));
    box_free(&b);
}

static void there_is_no_ipv6_but_loopback(void **state)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    struct box b = box_new(1);

    enter(b.ns);
    AUTO_CLOSE int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    enter(host_ns);
    assert_int_equal(inet_pton(AF_INET6, "2606:4700::1111", &sa.sin6_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), -1);
    assert_int_equal(errno, ENETUNREACH);
    assert_int_equal(inet_pton(AF_INET6, "fd00:ec2::254", &sa.sin6_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), -1);
    assert_int_equal(errno, ENETUNREACH);
    assert_int_equal(inet_pton(AF_INET6, "::1", &sa.sin6_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), -1);
    assert_int_equal(errno, ECONNREFUSED);
    box_free(&b);
}

static void mapped_addresses_are_refused_too(void **state)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    struct box b = box_new(1);

    enter(b.ns);
    AUTO_CLOSE int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    enter(host_ns);
    assert_int_equal(inet_pton(AF_INET6, "::ffff:169.254.169.254", &sa.sin6_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), -1);
    assert_int_equal(errno, ECONNREFUSED);
    box_free(&b);
}

static void other_forwarded_traffic_is_none_of_our_business(void **state)
{
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int other = new_ns();
    char text[256];

    assert_true(str_fmt(text, sizeof(text),
                        "link add docker9 type veth peer name eth0 netns /proc/%d/fd/%d\n"
                        "addr add 10.200.0.1/24 dev docker9\nlink set docker9 up\n",
                        getpid(), other) >= 0);
    ip_batch(text);
    enter(other);
    ip_batch("addr add 10.200.0.2/24 dev eth0\nlink set eth0 up\nlink set lo up\n"
             "route add default via 10.200.0.1\n");
    enter(inet_ns);
    ip_batch("route add 10.200.0.0/24 via " HOST_PUBLIC "\n");
    enter(host_ns);
    assert_int_equal(try_connect(other, "169.254.169.254", 80), 0);
    assert_int_equal(try_connect(other, "8.8.8.8", 80), 0);
    ip_batch("link del docker9\n");
}

static void forward_chain_that_drops_gets_two_rules_and_loses_them_again(void **state)
{
    static const char *const list[] = {"nft", "list", "table", "ip", "filter", NULL};
    struct net_host_info info = {0};
    LISTENER(server, inet_ns, 80);
    struct box b = box_new(1);

    nft_text("table ip filter {\n chain DOCKER-USER {\n  return\n }\n"
             " chain FORWARD { type filter hook forward priority filter; policy drop;\n"
             "  jump DOCKER-USER\n }\n}\n");
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), ETIMEDOUT);
    assert_ok(net_host_init(&config, &info, &err));
    assert_true(info.foreign_rules_added);
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), 0);
    assert_int_equal(try_connect(b.ns, "10.0.0.1", 80), ECONNREFUSED);
    assert_true(nft_has(list, "box_test"));
    box_free(&b);
    assert_ok(net_host_done(&config, &err));
    assert_false(nft_has(list, "box_test"));
    nft_text("delete table ip filter\n");
    assert_ok(net_host_init(&config, &info, &err));
    assert_false(info.foreign_rules_added);
}

static void instances_leave_each_other_alone(void **state)
{
    static const char *const tables[] = {"nft", "list", "tables", NULL};
    struct net_config second;
    struct net_host_info info = {0};
    struct net_lease lease;
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int ns = new_ns();
    struct box b = box_new(1);

    assert_ok(net_config_init(&second, "other", "198.19.240.0/20", &err));
    assert_ok(net_host_init(&second, &info, &err));
    assert_ok(net_lease_init(&lease, &second, 1, &err));
    assert_ok(net_attach(&lease, ns, &err));
    assert_int_equal(try_connect(ns, "8.8.8.8", 80), 0);
    assert_int_equal(try_connect(ns, ip_text(b.lease.guest), 80), ECONNREFUSED);
    assert_ok(net_host_done(&second, &err));
    assert_int_equal(if_nametoindex(lease.ifname), 0);
    assert_false(nft_has(tables, "box_other"));
    assert_true(nft_has(tables, "box_test"));
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), 0);
    box_free(&b);
}

static void overlapping_pools_are_refused(void **state)
{
    struct net_config bad;
    struct net_host_info info = {0};

    assert_ok(net_config_init(&bad, "bad", "11.0.0.0/16", &err));
    assert_true(net_host_init(&bad, &info, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
}

static void default_pool_avoids_what_is_taken_and_knows_its_own(void **state)
{
    struct net_config first, again, other;
    struct net_host_info info = {0};
    char text[64];

    assert_ok(net_config_init(&first, "zz", NULL, &err));
    assert_ok(net_host_init(&first, &info, &err));
    assert_ok(net_config_init(&again, "zz", NULL, &err));
    assert_int_equal(first.pool, again.pool);
    assert_ok(net_host_done(&first, &err));

    assert_true(str_fmt(text, sizeof(text), "addr add %s/32 dev lo\n", ip_text(first.pool + 99)) >=
                0);
    ip_batch(text);
    assert_ok(net_config_init(&other, "zz", NULL, &err));
    assert_int_not_equal(first.pool, other.pool);
    assert_ok(net_host_init(&other, &info, &err));
    assert_ok(net_host_done(&other, &err));
    assert_true(str_fmt(text, sizeof(text), "addr del %s/32 dev lo\n", ip_text(first.pool + 99)) >=
                0);
    ip_batch(text);
}

static void taken_lease_is_a_conflict_and_stays_whole(void **state)
{
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int ns = new_ns();
    struct box b = box_new(1);

    assert_true(net_attach(&b.lease, ns, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), 0);
    box_free(&b);
}

static void failed_attach_leaves_nothing(void **state)
{
    struct net_lease lease;
    AUTO_CLOSE int ns = new_ns();

    enter(ns);
    ip_batch("link add eth0 type veth peer name eth1\n");
    enter(host_ns);
    assert_ok(net_lease_init(&lease, &config, 3, &err));
    assert_true(net_attach(&lease, ns, &err) < 0);
    assert_int_equal(if_nametoindex(lease.ifname), 0);
    assert_true(net_attach(&lease, STDIN_FILENO, &err) < 0);
    assert_int_equal(if_nametoindex(lease.ifname), 0);
}

static void interface_goes_with_its_namespace(void **state)
{
    struct box b = box_new(1);
    struct net_lease lease = b.lease;
    struct timespec pause = {.tv_nsec = 1000000};

    (void)close(b.ns);
    /* The kernel does this in the background and tells nobody whom we could wait for. */
    for (int i = 0; i < 5000 && if_nametoindex(lease.ifname) != 0; i++)
        (void)nanosleep(&pause, NULL);
    assert_int_equal(if_nametoindex(lease.ifname), 0);
    assert_ok(net_detach(&lease, &err));
    assert_ok(net_detach(&lease, &err));
}

static uint64_t flow_count(void)
{
    uint64_t n = 0;

    assert_int_equal(fd_read_u64_at(AT_FDCWD, "/proc/sys/net/netfilter/nf_conntrack_count", &n), 0);
    return n;
}

static bool is_one(void *arg, uint32_t index)
{
    return index == 1;
}

static void cut_session_is_cut_in_both_directions(void **state)
{
    char byte;
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int fd = -1;
    struct box b = box_new(1), other = box_new(2);

    assert_int_equal(try_connect_fd(b.ns, "8.8.8.8", 80, &fd), 0);
    AUTO_CLOSE int conn = accept4(server, NULL, NULL, SOCK_CLOEXEC);
    net_cut(&b.lease);
    net_cut(&b.lease);
    assert_int_equal(send(fd, "x", 1, 0), 1);
    struct pollfd pfd = {.fd = conn, .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 500), 0);
    assert_int_equal(send(conn, "x", 1, 0), 1);
    pfd.fd = fd;
    assert_int_equal(poll(&pfd, 1, 500), 0);
    assert_int_equal(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(try_connect(b.ns, "8.8.8.8", 80), ETIMEDOUT);
    assert_int_equal(try_connect(other.ns, "8.8.8.8", 80), 0);
    box_free(&b);
    box_free(&other);
    net_cut(&b.lease);
}

static void connections_are_forgotten_by_lease(void **state)
{
    enum { EACH = 200 }; /* more than fit into one answer of the kernel's */
    int fds[2 * EACH];
    LISTENER(server, inet_ns, 80);
    struct box a = box_new(1), b = box_new(2);

    for (int i = 0; i < EACH; i++) {
        assert_int_equal(try_connect_fd(a.ns, "8.8.8.8", 80, &fds[2 * i]), 0);
        assert_int_equal(try_connect_fd(b.ns, "8.8.8.8", 80, &fds[2 * i + 1]), 0);
    }
    /* A few of the host's own, from earlier tests, may run out meanwhile. */
    uint64_t both = flow_count();
    assert_ok(net_flows_drop(&config, is_one, NULL, &err));
    uint64_t one = flow_count();
    assert_ok(net_flows_drop(&config, NULL, NULL, &err));
    uint64_t none = flow_count();
    assert_in_range(both - one, EACH, EACH + EACH / 2);
    assert_in_range(one - none, EACH, EACH + EACH / 2);
    fd_close_many(fds, 2 * EACH);
    box_free(&a);
    box_free(&b);
}

static void connections_of_others_are_remembered(void **state)
{
    LISTENER(server, inet_ns, 80);
    AUTO_CLOSE int fd = -1;

    assert_int_equal(try_connect_fd(host_ns, "8.8.8.8", 80, &fd), 0);
    assert_ok(net_flows_drop(&config, NULL, NULL, &err));
    assert_true(flow_count() >= 1);
}

static void loopback_comes_up_for_the_network_off_case(void **state)
{
    AUTO_CLOSE int ns = new_ns();

    enter(ns);
    int r = net_lo_up();
    enter(host_ns);
    assert_int_equal(r, 0);
    assert_int_equal(try_connect(ns, "127.0.0.1", 80), ECONNREFUSED);
    assert_int_equal(try_connect(ns, "8.8.8.8", 80), ENETUNREACH);
}

static void probe_works_and_comes_back(void **state)
{
    char before[64] = "", after[64] = "";

    assert_true(readlink("/proc/self/ns/net", before, sizeof(before) - 1) > 0);
    assert_ok(net_probe(&err));
    assert_true(readlink("/proc/self/ns/net", after, sizeof(after) - 1) > 0);
    assert_string_equal(before, after);
}

static int set_up(void **state)
{
    struct net_host_info info = {0};
    char text[256];

    host_ns = new_ns();
    inet_ns = new_ns();
    assert_true(str_fmt(text, sizeof(text),
                        "link add up0 type veth peer name up1 netns /proc/%d/fd/%d\n"
                        "addr add " HOST_PUBLIC "/24 dev up0\nlink set up0 up\nlink set lo up\n"
                        "route add default via 11.0.0.1\n",
                        getpid(), inet_ns) >= 0);
    ip_batch(text);
    enter(inet_ns);
    ip_batch("link set lo up\naddr add 11.0.0.1/24 dev up1\nlink set up1 up\n"
             "addr add 8.8.8.8/32 dev lo\naddr add 10.0.0.1/32 dev lo\n"
             "addr add 100.100.100.200/32 dev lo\naddr add 100.64.0.1/32 dev lo\n"
             "addr add 169.254.169.254/32 dev lo\naddr add 172.16.0.1/32 dev lo\n"
             "addr add 172.31.255.255/32 dev lo\naddr add 192.0.0.192/32 dev lo\n"
             "addr add 192.168.1.1/32 dev lo\naddr add 168.63.129.16/32 dev lo\n"
             "addr add 198.18.255.1/32 dev lo\naddr add 198.19.255.1/32 dev lo\n");
    enter(host_ns);
    /* A new namespace starts with the settings of the machine's own. */
    assert_int_equal(fd_write_file_at(AT_FDCWD, "/proc/sys/net/ipv4/ip_forward", "0"), 0);
    assert_ok(net_config_init(&config, "test", "198.18.64.0/18", &err));
    assert_ok(net_host_init(&config, &info, &err));
    assert_true(info.forwarding_enabled);
    assert_false(info.foreign_rules_added);
    assert_ok(net_host_init(&config, &info, &err));
    assert_false(info.forwarding_enabled);
    return 0;
}

static int tear_down(void **state)
{
    static const char *const rules[] = {"nft", "list", "ruleset", NULL};
    static const char *const argv[] = {"ip", "-o", "addr", NULL};

    assert_ok(net_host_done(&config, &err));
    assert_ok(net_host_done(&config, &err));
    assert_false(nft_has(rules, "box_"));
    AUTO_CLOSE int out = memfd_create("ip", MFD_CLOEXEC);
    const struct hostcmd_opts opts = {.stdin_fd = -1, .stdout_fd = out, .timeout_ms = 10000};
    assert_ok(hostcmd_wait_opts(argv, &opts, &err));
    char text[8192] = "";
    assert_true(pread(out, text, sizeof(text) - 1, 0) > 0);
    assert_null(strstr(text, "198.18."));
    assert_null(strstr(text, "bxtest"));
    (void)close(inet_ns);
    (void)close(host_ns);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_reaches_the_internet_and_is_masqueraded),
        cmocka_unit_test(internal_ranges_are_refused_at_once),
        cmocka_unit_test(odd_destinations_lead_nowhere),
        cmocka_unit_test(host_is_out_of_reach_on_every_address),
        cmocka_unit_test(published_port_of_a_container_is_no_way_round),
        cmocka_unit_test(resolver_lives_inside_the_session),
        cmocka_unit_test(sessions_cannot_reach_each_other),
        cmocka_unit_test(nobody_outside_can_open_a_connection_to_a_session),
        cmocka_unit_test(mail_ports_are_closed),
        cmocka_unit_test(spoofed_source_addresses_go_nowhere),
        cmocka_unit_test(connections_at_a_time_are_capped),
        cmocka_unit_test(new_connections_are_rate_limited),
        cmocka_unit_test(there_is_no_ipv6_but_loopback),
        cmocka_unit_test(mapped_addresses_are_refused_too),
        cmocka_unit_test(other_forwarded_traffic_is_none_of_our_business),
        cmocka_unit_test(forward_chain_that_drops_gets_two_rules_and_loses_them_again),
        cmocka_unit_test(instances_leave_each_other_alone),
        cmocka_unit_test(overlapping_pools_are_refused),
        cmocka_unit_test(default_pool_avoids_what_is_taken_and_knows_its_own),
        cmocka_unit_test(taken_lease_is_a_conflict_and_stays_whole),
        cmocka_unit_test(failed_attach_leaves_nothing),
        cmocka_unit_test(interface_goes_with_its_namespace),
        cmocka_unit_test(cut_session_is_cut_in_both_directions),
        cmocka_unit_test(connections_are_forgotten_by_lease),
        cmocka_unit_test(connections_of_others_are_remembered),
        cmocka_unit_test(loopback_comes_up_for_the_network_off_case),
        cmocka_unit_test(probe_works_and_comes_back),
    };

    if (geteuid() != 0) {
        (void)fprintf(stderr, "skipped: needs root\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
