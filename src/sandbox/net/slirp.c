/* SPDX-License-Identifier: Apache-2.0 */

/* Starts and stops slirp4netns or pasta for a session, with packet rules inside. */

#include "sandbox/net/slirp.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"

#define START_TIMEOUT_MS 5000
#define STOP_TIMEOUT_MS 1000
#define POLL_MS 2
#define LOG_MAX 4096
#define RULES_MAX 65536
#define FDS_OF_HELPER 64 /* that are no connections */

/* Descriptors of the helper; the options below name them. */
enum { FD_NETNS = 3, FD_USERNS = 4, FD_READY = 5, FD_EXIT = 6, FD_COUNT = 7 };
#define NETNS_PATH "/proc/self/fd/3"
#define USERNS_PATH "/proc/self/fd/4"

/* It parses what the session sends, hence its sandbox and filter. */
#define SLIRP4NETNS_OPTIONS                                                                        \
    "slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", "--disable-dns",       \
        "--enable-sandbox", "--enable-seccomp", "--ready-fd=5", "--exit-fd=6", "--netns-type=path"
static const char *const slirp4netns_argv[] = {SLIRP4NETNS_OPTIONS, NETNS_PATH, NET_GUEST_IFNAME,
                                               NULL};
static const char *const slirp4netns_userns_argv[] = {
    SLIRP4NETNS_OPTIONS, ("--userns-path=" USERNS_PATH), NETNS_PATH, NET_GUEST_IFNAME, NULL};

/* No mapping of the gateway to the host, no ports in either direction; those are on by default.
 * "--runas 0" is ourselves: in our user namespace there is no other user to become. */
#define PASTA_OPTIONS                                                                              \
    "pasta", "--foreground", "--quiet", "--config-net", "--no-map-gw", "--ipv4-only", "--runas",   \
        "0", "--ns-ifname", NET_GUEST_IFNAME, "-t", "none", "-u", "none", "-T", "none", "-U",      \
        "none", "--mtu", "65520"
static const char *const pasta_argv[] = {PASTA_OPTIONS, "--netns-only", "--netns", NETNS_PATH,
                                         NULL};
static const char *const pasta_userns_argv[] = {PASTA_OPTIONS, "--userns", USERNS_PATH,
                                                "--netns",     NETNS_PATH, NULL};

static const struct {
    const char *program;
    enum net_kind kind;
    const char *const *argv;        /* the namespace belongs to the caller's user namespace */
    const char *const *userns_argv; /* it belongs to one below */
    bool tells;                     /* writes to FD_READY when it is ready */
} helpers[] = {
    {"slirp4netns", NET_SLIRP4NETNS, slirp4netns_argv, slirp4netns_userns_argv, true},
    {"pasta", NET_PASTA, pasta_argv, pasta_userns_argv, false},
};

static int find_helper(const char *wanted, size_t *ret, struct err *err)
{
    char path[256];

    for (size_t i = 0; i < ARRAY_SIZE(helpers); i++) {
        if (wanted != NULL && !str_eq(wanted, helpers[i].program))
            continue;
        if (hostcmd_find(helpers[i].program, path, sizeof(path), NULL) == 0) {
            *ret = i;
            return 0;
        }
    }
    if (wanted != NULL)
        return err_set(err, ERR_UNSUPPORTED, "network without root: '%s' is not installed", wanted);
    return err_set(err, ERR_UNSUPPORTED,
                   "network without root needs slirp4netns or pasta, and neither is installed: "
                   "apt-get install slirp4netns");
}

int slirp_probe(const char *helper, struct err *err)
{
    char path[256];
    size_t index;
    int r = find_helper(helper, &index, err);

    if (r < 0)
        return r;
    if (hostcmd_find("nft", path, sizeof(path), NULL) < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "network needs nft, which is not installed: apt-get install nftables");
    AUTO_CLOSE int tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    if (tun < 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "network without root needs a /dev/net/tun that users may open (%s): "
                       "chmod 666 /dev/net/tun",
                       err_errno_text(errno));
    return 0;
}

/* Inside: loopback, the rules, and a socket by which the interface can be watched from outside. */
static int prepare_within(void *arg, int *ret_fds, struct err *err)
{
    const struct buf *rules = arg;
    int r = net_lo_up();

    if (r < 0)
        return err_sys(err, -r, "loopback of the session");
    r = nft_load(rules, err);
    if (r < 0)
        return err_wrap(err, "load the session's network rules");
    ret_fds[0] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return ret_fds[0] < 0 ? err_sys(err, errno, "socket in the session") : 0;
}

/* Rules first: no packet leaves before they stand. The host's addresses are those of the namespace
 * we are in. */
static int prepare_guest(int netns_fd, int *ret_sock, struct err *err)
{
    AUTO_DONE(buf) struct buf rules = BUF_INIT(RULES_MAX);

    int r = net_rules_guest_self(&rules, err);
    return r < 0 ? r : net_within(netns_fd, prepare_within, &rules, ret_sock, 1, err);
}

/* Where the helper may write what goes wrong: it cannot grow, as what it says over the years is up
 * to the session. */
static int capped_log(void)
{
    AUTO_CLOSE int fd = memfd_create("slirp", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, LOG_MAX) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static void log_text(int fd, char *ret, size_t size)
{
    ssize_t n = pread(fd, ret, size - 1, 0);

    ret[n > 0 ? n : 0] = '\0';
    for (char *p = ret; *p != '\0'; p++)
        if (*p < ' ' || *p > '~')
            *p = ' ';
}

static bool interface_ready(int sock)
{
    struct ifreq req = {.ifr_name = NET_GUEST_IFNAME};

    return ioctl(sock, SIOCGIFADDR, &req) == 0 && ioctl(sock, SIOCGIFFLAGS, &req) == 0 &&
           (req.ifr_flags & IFF_UP) != 0;
}

static int64_t now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* 1: ready, 0: it ended or time is out. `ready_fd` is -1 for a helper that does not tell: then the
 * interface is looked at every now and then. */
static int wait_ready(const struct slirp *s, int ready_fd, int guest_sock)
{
    struct pollfd pfd[2] = {{.fd = s->proc.pidfd, .events = POLLIN},
                            {.fd = ready_fd, .events = POLLIN}};
    int64_t deadline = now_ms() + START_TIMEOUT_MS;

    for (;;) {
        int64_t left = deadline - now_ms();
        char byte;

        if (left <= 0)
            return 0;
        int n = poll(pfd, 2, ready_fd >= 0 ? (int)left : POLL_MS);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0 && pfd[1].revents != 0)
            return read(ready_fd, &byte, 1) == 1;
        if (n > 0 && pfd[0].revents != 0)
            return 0;
        if (n == 0 && ready_fd < 0 && interface_ready(guest_sock))
            return 1;
    }
}

/* It has a descriptor for each connection: so many a session may have. `pid` 0 is this process. */
static int limit_connections(pid_t pid)
{
    const struct rlimit limit = {NET_CONN_MAX + FDS_OF_HELPER, NET_CONN_MAX + FDS_OF_HELPER};

    return prlimit(pid, RLIMIT_NOFILE, &limit, NULL) < 0 ? -errno : 0;
}

/* slirp4netns watches FD_EXIT by itself. For pasta a child of ours does: it has no other
 * descriptors, or it would keep alive what box-priv lets go of. */
_Noreturn static void guard_child(const char *const argv[], const int *fds)
{
    enum { KEEP_EXIT = 3, KEEP_PIDFD = 4, KEEP_COUNT = 5 };
    struct hostcmd helper = {.pid = 0, .pidfd = -1};

    if (limit_connections(0) < 0 || hostcmd_start(argv, fds, FD_EXIT, &helper, NULL) < 0)
        child_exit(1);
    AUTO_CLOSE int gone = fcntl(helper.pidfd, F_DUPFD_CLOEXEC, KEEP_COUNT);
    AUTO_CLOSE int owner = fcntl(fds[FD_EXIT], F_DUPFD_CLOEXEC, KEEP_COUNT);
    if (gone < 0 || owner < 0 || dup3(owner, KEEP_EXIT, O_CLOEXEC) < 0 ||
        dup3(gone, KEEP_PIDFD, O_CLOEXEC) < 0) {
        hostcmd_kill(&helper);
        child_exit(1);
    }
    (void)close_range(KEEP_COUNT, ~0U, 0);
    helper.pidfd = KEEP_PIDFD;
    struct pollfd pfd[2] = {{.fd = KEEP_EXIT, .events = POLLIN},
                            {.fd = KEEP_PIDFD, .events = POLLIN}};
    while (poll(pfd, 2, -1) < 0 && errno == EINTR)
        ;
    hostcmd_kill(&helper);
    child_exit(0);
}

static int start_guarded(const char *const argv[], const int *fds, struct hostcmd *ret,
                         struct err *err)
{
    int pidfd = -1;
    pid_t pid = clone_process(0, -1, &pidfd);

    if (pid == 0)
        guard_child(argv, fds);
    if (pid < 0)
        return err_sys(err, -pid, "clone");
    *ret = (struct hostcmd){.pid = pid, .pidfd = pidfd};
    return 0;
}

static int start_helper(size_t i, bool userns, const int *fds, struct hostcmd *ret, struct err *err)
{
    const char *const *argv = userns ? helpers[i].userns_argv : helpers[i].argv;

    if (!helpers[i].tells)
        return start_guarded(argv, fds, ret, err);
    int r = hostcmd_start(argv, fds, FD_COUNT, ret, err);
    if (r == 0 && (r = limit_connections(ret->pid)) < 0)
        return err_sys(err, -r, "limit the connections of %s", helpers[i].program);
    return r;
}

static int run_helper(size_t i, int netns_fd, int userns_fd, struct slirp *s, struct err *err)
{
    char text[160];
    int ready[2], ending[2];
    AUTO_CLOSE int sock = -1;
    int r = prepare_guest(netns_fd, &sock, err);

    if (r < 0)
        return r;
    AUTO_CLOSE int log = capped_log();
    if (log < 0)
        return err_sys(err, -log, "log of %s", helpers[i].program);
    if (pipe2(ready, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    AUTO_CLOSE int ready_rd = ready[0];
    AUTO_CLOSE int ready_wr = ready[1];
    /* Unlike a pipe, it can be shut while a child of ours still has a copy of our end. */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ending) < 0)
        return err_sys(err, errno, "socketpair");
    AUTO_CLOSE int exit_rd = ending[0];
    s->exit_fd = ending[1];
    s->kind = helpers[i].kind;
    const int fds[FD_COUNT] = {-1, -1, log, netns_fd, userns_fd, ready_wr, exit_rd};
    r = start_helper(i, userns_fd >= 0, fds, &s->proc, err);
    if (r < 0)
        return r;
    (void)close(TAKE_FD(ready_wr));
    r = wait_ready(s, helpers[i].tells ? ready_rd : -1, sock);
    if (r > 0)
        return 0;
    log_text(log, text, sizeof(text));
    return err_set(err, ERR_BACKEND, "%s did not bring up the session's network: %s",
                   helpers[i].program, r < 0 ? err_errno_text(-r) : text);
}

int slirp_start(const char *helper, int netns_fd, int userns_fd, struct slirp *ret, struct err *err)
{
    struct slirp s = SLIRP_NONE;
    size_t index = 0;
    int r = slirp_probe(helper, err);

    if (r == 0)
        r = find_helper(helper, &index, err);
    if (r == 0)
        r = run_helper(index, netns_fd, userns_fd, &s, err);
    if (r < 0) {
        slirp_stop(&s);
        return r;
    }
    *ret = s;
    return 0;
}

/* Shutting our end is what makes the guard of pasta take its helper along; being killed, it could
 * not. slirp4netns needs no such care. */
static void tell_end(const struct slirp *s)
{
    if (s->exit_fd >= 0)
        (void)shutdown(s->exit_fd, SHUT_RDWR);
    if (s->proc.pid > 0 && s->kind == NET_SLIRP4NETNS)
        (void)pidfd_send_signal(s->proc.pidfd, SIGKILL, NULL, 0);
}

void slirp_stop(struct slirp *s)
{
    tell_end(s);
    if (s->proc.pid > 0) {
        struct pollfd pfd = {.fd = s->proc.pidfd, .events = POLLIN};

        (void)poll(&pfd, 1, STOP_TIMEOUT_MS);
    }
    hostcmd_kill(&s->proc);
    fd_close_many(&s->exit_fd, 1);
}

void slirp_drop(struct slirp *s)
{
    tell_end(s);
    if (s->proc.pid > 0)
        (void)close(s->proc.pidfd);
    fd_close_many(&s->exit_fd, 1);
    *s = SLIRP_NONE;
}
