/* SPDX-License-Identifier: Apache-2.0 */

/* Needs root to build the stage, and plays an ordinary user on it: a network namespace that is the
 * host's, another that is the internet, a /dev/net/tun for everybody in a mount namespace of its
 * own. Skips without root or helpers. No packet leaves the machine. */

#include "lib/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"
#include "sandbox/net/slirp.h"

#define USER 12345
#define HOST_PUBLIC "11.0.0.2"
#define TIMEOUT_MS 3000

static int host_ns = -1;
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

static void ip_batch(const char *text)
{
    static const char *const argv[] = {"ip", "-batch", "-", NULL};
    AUTO_CLOSE int fd = fd_sealed_memfd("batch", text, strlen(text));

    assert_true(fd >= 0 && lseek(fd, 0, SEEK_SET) == 0);
    assert_ok(hostcmd_wait(argv, fd, 10000, &err));
}

static struct sockaddr_in address(const char *ip, uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_int_equal(inet_pton(AF_INET, ip, &sa.sin_addr), 1);
    return sa;
}

/* Stays open until the program ends; the kernel completes connections to it by itself. */
static void listen_on(const char *ip, uint16_t port)
{
    struct sockaddr_in sa = address(ip, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 128), 0);
}

static int make_socket(void *arg, int *ret_fds, struct err *e)
{
    ret_fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return ret_fds[0] < 0 ? -errno : 0;
}

/* -1 is the host's namespace. */
static int try_connect(int ns, const char *ip, uint16_t port)
{
    struct sockaddr_in sa = address(ip, port);
    int error = 0;
    socklen_t len = sizeof(error);
    AUTO_CLOSE int fd = -1;

    if (ns < 0)
        assert_int_equal(make_socket(NULL, &fd, NULL), 0);
    else
        assert_ok(net_within(ns, make_socket, NULL, &fd, 1, &err));
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    struct pollfd pfd = {.fd = fd, .events = POLLOUT};
    if (poll(&pfd, 1, TIMEOUT_MS) == 0)
        return ETIMEDOUT;
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), 0);
    return error;
}

/* A process in a user namespace and a network namespace below ours, as a session has it. */
struct session {
    pid_t pid;
    int netns, userns;
};

static struct session session_new(void)
{
    struct session s = {0};
    char path[64], byte;
    int up[2];

    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (s.pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0 || write(up[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    (void)close(up[1]);
    assert_int_equal(read(up[0], &byte, 1), 1);
    assert_true(str_fmt(path, sizeof(path), "/proc/%d/uid_map", s.pid) >= 0);
    assert_int_equal(fd_write_file_at(AT_FDCWD, path, "1000 0 1"), 0);
    assert_true(str_fmt(path, sizeof(path), "/proc/%d/ns/net", s.pid) >= 0);
    s.netns = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(str_fmt(path, sizeof(path), "/proc/%d/ns/user", s.pid) >= 0);
    s.userns = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(s.netns >= 0 && s.userns >= 0);
    (void)close(up[0]);
    return s;
}

static void session_free(struct session *s)
{
    (void)kill(s->pid, SIGKILL);
    (void)waitpid(s->pid, NULL, 0);
    (void)close(s->netns);
    (void)close(s->userns);
}

static bool helper_missing(const char *helper)
{
    char path[256];

    return hostcmd_find(helper, path, sizeof(path), NULL) < 0;
}

static void check_helper(const char *helper)
{
    static const char *const refused[] = {"10.0.0.1",      "169.254.169.254", "192.168.1.1",
                                          "168.63.129.16", "100.100.100.200", "10.0.2.2",
                                          HOST_PUBLIC};
    struct slirp slirp = SLIRP_NONE;
    AUTO_CLOSE int udp = -1;
    AUTO_CLOSE int tcp = -1;

    if (helper_missing(helper))
        print_message("skipped: slirp4netns is not installed\n"), skip();
    struct session s = session_new();
    assert_ok(slirp_start(helper, s.netns, s.userns, &slirp, &err));
    assert_int_equal(try_connect(s.netns, "8.8.8.8", 80), 0);
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        int error = try_connect(s.netns, refused[i], 80);
        if (error != ECONNREFUSED)
            fail_msg("%s: %s", refused[i], error == 0 ? "connected" : err_errno_text(error));
    }
    assert_int_equal(try_connect(s.netns, "8.8.8.8", 25), ECONNREFUSED);
    /* What the host has on its loopback is there for the host only. */
    assert_int_equal(try_connect(-1, "127.0.0.1", 5411), 0);
    assert_int_equal(try_connect(s.netns, "127.0.0.1", 5411), ECONNREFUSED);
    assert_ok(net_dns_open(s.netns, &udp, &tcp, &err));
    assert_int_equal(try_connect(s.netns, "127.0.0.53", 53), 0);
    slirp_stop(&slirp);
    slirp_stop(&slirp);
    assert_int_not_equal(try_connect(s.netns, "8.8.8.8", 80), 0);
    session_free(&s);
}

static void slirp4netns_reaches_the_internet_and_nothing_else(void **state)
{
    check_helper("slirp4netns");
}

static void pasta_reaches_the_internet_and_nothing_else(void **state)
{
    check_helper("pasta");
}

static void check_orphan(const char *helper)
{
    struct slirp slirp = SLIRP_NONE;

    if (helper_missing(helper))
        print_message("skipped: slirp4netns is not installed\n"), skip();
    struct session s = session_new();
    assert_ok(slirp_start(helper, s.netns, s.userns, &slirp, &err));
    (void)close(slirp.exit_fd); /* as the kernel does for a dead process */
    slirp.exit_fd = -1;
    struct pollfd pfd = {.fd = slirp.proc.pidfd, .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 5000), 1);
    slirp_stop(&slirp);
    session_free(&s);
}

static void helpers_end_when_their_owner_is_gone(void **state)
{
    check_orphan("slirp4netns");
    check_orphan("pasta");
}

static int make_eth0(void *arg, int *ret_fds, struct err *e)
{
    static const char *const argv[] = {"ip",   "link", "add",  "eth0", "type",
                                       "veth", "peer", "name", "eth1", NULL};

    return hostcmd_wait(argv, -1, 10000, e);
}

static void failure_is_told_and_leaves_no_process(void **state)
{
    struct slirp slirp = SLIRP_NONE;

    if (helper_missing("slirp4netns"))
        print_message("skipped: slirp4netns is not installed\n"), skip();
    struct session s = session_new();
    /* The interface that the helper wants to make is there already. */
    assert_ok(net_within(s.netns, make_eth0, NULL, NULL, 0, &err));
    assert_true(slirp_start("slirp4netns", s.netns, s.userns, &slirp, &err) < 0);
    assert_int_equal(err.code, ERR_BACKEND);
    assert_non_null(strstr(err.msg, "slirp4netns did not"));
    session_free(&s);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void missing_device_is_named(void **state)
{
    if (helper_missing("slirp4netns"))
        print_message("skipped: slirp4netns is not installed\n"), skip();
    assert_int_equal(mount("/dev/null", "/dev/net/tun", NULL, MS_BIND, NULL), 0);
    assert_int_equal(mount(NULL, "/dev/net/tun", NULL, MS_REMOUNT | MS_BIND | MS_NODEV, NULL), 0);
    assert_true(slirp_probe(NULL, &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "/dev/net/tun"));
    assert_int_equal(umount2("/dev/net/tun", MNT_DETACH), 0);
    assert_ok(slirp_probe(NULL, &err));
}

static void missing_helper_is_named(void **state)
{
    assert_true(slirp_probe("no-such-helper", &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
}

static void build_stage(void)
{
    char text[256];

    assert_int_equal(unshare(CLONE_NEWNS), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    assert_int_equal(mount("none", "/mnt", "tmpfs", 0, "size=64k"), 0);
    assert_int_equal(mknod("/mnt/tun", S_IFCHR | 0666, makedev(10, 200)), 0);
    assert_int_equal(chmod("/mnt/tun", 0666), 0);
    assert_int_equal(mount("/mnt/tun", "/dev/net/tun", NULL, MS_BIND, NULL), 0);

    assert_int_equal(unshare(CLONE_NEWNET), 0);
    AUTO_CLOSE int inet_ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    listen_on("0.0.0.0", 80);
    listen_on("0.0.0.0", 25);
    assert_int_equal(unshare(CLONE_NEWNET), 0);
    host_ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    listen_on("0.0.0.0", 80);
    listen_on("127.0.0.1", 5411);
    assert_true(str_fmt(text, sizeof(text),
                        "link add up0 type veth peer name up1 netns /proc/%d/fd/%d\n"
                        "addr add " HOST_PUBLIC "/24 dev up0\nlink set up0 up\nlink set lo up\n"
                        "route add default via 11.0.0.1\n",
                        getpid(), inet_ns) >= 0);
    ip_batch(text);
    enter(inet_ns);
    ip_batch("link set lo up\naddr add 11.0.0.1/24 dev up1\nlink set up1 up\n"
             "addr add 8.8.8.8/32 dev lo\naddr add 10.0.0.1/32 dev lo\n"
             "addr add 10.0.2.2/32 dev lo\naddr add 100.100.100.200/32 dev lo\n"
             "addr add 169.254.169.254/32 dev lo\naddr add 192.168.1.1/32 dev lo\n"
             "addr add 168.63.129.16/32 dev lo\n");
    enter(host_ns);
}

static int set_up(void **state)
{
    char text[32];

    build_stage();
    assert_int_equal(setgroups(0, NULL), 0);
    assert_int_equal(setresgid(USER, USER, USER), 0);
    assert_int_equal(setresuid(USER, USER, USER), 0);
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
    assert_int_equal(unshare(CLONE_NEWUSER | CLONE_NEWNS), 0);
    assert_int_equal(fd_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny"), 0);
    assert_true(str_fmt(text, sizeof(text), "0 %d 1", USER) >= 0);
    assert_int_equal(fd_write_file_at(AT_FDCWD, "/proc/self/uid_map", text), 0);
    assert_int_equal(fd_write_file_at(AT_FDCWD, "/proc/self/gid_map", text), 0);
    assert_int_equal(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), 0);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slirp4netns_reaches_the_internet_and_nothing_else),
        cmocka_unit_test(pasta_reaches_the_internet_and_nothing_else),
        cmocka_unit_test(helpers_end_when_their_owner_is_gone),
        cmocka_unit_test(failure_is_told_and_leaves_no_process),
        cmocka_unit_test(missing_device_is_named),
        cmocka_unit_test(missing_helper_is_named),
    };

    if (geteuid() != 0 || access("/dev/net/tun", F_OK) < 0) {
        (void)fprintf(stderr, "skipped: needs root and /dev/net/tun\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, NULL);
}
