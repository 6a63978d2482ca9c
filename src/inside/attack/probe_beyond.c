/* SPDX-License-Identifier: Apache-2.0 */

/* Tables D and M: the host's network and the session beside this one. The other side of each check
 * is real: box listens on the host, and a program in another session has what is looked for here.
 */

#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECT_MS 1000
#define NEIGHBOUR_SEC 60

/* 0 when the address answered, else a negative errno. */
static long connect_within(int fd, const struct sockaddr *to, socklen_t len)
{
    struct pollfd p = {fd, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    if (connect(fd, to, len) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -errno;
    if (poll(&p, 1, CONNECT_MS) <= 0)
        return -ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? -errno : -error;
}

static long try_address(const char *address, unsigned port)
{
    bool six = strchr(address, ':') != NULL;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    long r;
    if (fd < 0)
        return -errno;
    (void)inet_pton(AF_INET, address, &in.sin_addr);
    (void)inet_pton(AF_INET6, address, &in6.sin6_addr);
    r = six ? connect_within(fd, (struct sockaddr *)&in6, sizeof(in6))
            : connect_within(fd, (struct sockaddr *)&in, sizeof(in));
    (void)close(fd);
    return r;
}

static void report_closed(const char *id, const char *what, long r)
{
    CHECK(id, r < 0, "%s: %s", what, probe_result_name(r));
}

static long try_abstract(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    size_t len = strnlen(name, sizeof(at.sun_path) - 1);
    long r;
    if (fd < 0)
        return -errno;
    memcpy(at.sun_path + 1, name, len);
    r = connect_within(fd, (struct sockaddr *)&at,
                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len));
    (void)close(fd);
    return r;
}

static void secret_of(const struct probe_options *opt, char ret[static 64])
{
    size_t len = strnlen(opt->secret_reversed, 63);
    for (size_t i = 0; i < len; i++)
        ret[i] = opt->secret_reversed[len - 1 - i];
    ret[len] = '\0';
}

/* Any number that both sides agree on. */
static key_t key_of(const char *name)
{
    unsigned h = 5381;
    while (*name)
        h = h * 33 + (unsigned char)*name++;
    return (key_t)(h | 1);
}

static void interfaces(void)
{
    struct if_nameindex *all = if_nameindex();
    const char *other = NULL;
    for (const struct if_nameindex *i = all; i && i->if_index != 0; i++)
        if (strcmp(i->if_name, "lo") != 0)
            other = i->if_name;
    probe_report("D01",
                 !all    ? PROBE_NA
                 : other ? PROBE_FAIL
                         : PROBE_OK,
                 "%s",
                 !all    ? strerrorname_np(errno)
                 : other ? other
                         : "no interface but lo");
    if (all)
        if_freenameindex(all);
}

static void probe_network(const struct probe_options *opt)
{
    char id[64], name[64] = "";
    interfaces();
    for (unsigned i = 0; opt->host_address[i]; i++) {
        (void)snprintf(id, sizeof(id), "D02.address-%u", i + 1);
        report_closed(id, opt->host_address[i], try_address(opt->host_address[i], opt->port));
    }
    if (opt->secret_reversed) {
        secret_of(opt, name);
        report_closed("D02.abstract", "a socket of the host", try_abstract(name));
    }
    report_closed("D04.metadata", "169.254.169.254", try_address("169.254.169.254", 80));
}

/* The session beside. */

static const char *const places[] = {"/tmp", "/dev/shm", "/var/tmp", "/workspace", "."};

static void have_all(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char path[128];
    memcpy(at.sun_path + 1, name, strlen(name));
    (void)bind(fd, (struct sockaddr *)&at,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)));
    (void)listen(fd, 4);
    (void)shmget(key_of(name), 4096, IPC_CREAT | 0666);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", places[i], name);
        (void)close(open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666));
    }
    (void)snprintf(path, sizeof(path), "/%s", name);
    (void)mq_open(path, O_CREAT | O_RDWR, 0666, &attr);
}

/* Stays in the background, and the command ends when all is there. */
static void probe_neighbour(const struct probe_options *opt)
{
    char name[64];
    int ready[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    secret_of(opt, name);
    if (pipe2(ready, O_CLOEXEC) < 0)
        return;
    if (fork() == 0) {
        for (int fd = 0; fd < 3; fd++)
            (void)dup2(null, fd);
        have_all(name);
        (void)close(ready[0]);
        (void)close(ready[1]);
        (void)sleep(NEIGHBOUR_SEC);
        _exit(0);
    }
    (void)close(ready[1]);
    (void)!read(ready[0], name, 1);
}

static void probe_neighbours(const struct probe_options *opt)
{
    char name[64], path[128], where[128] = "";
    long r = -ENOENT;
    secret_of(opt, name);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", places[i], name);
        if (access(path, F_OK) == 0)
            memcpy(where, path, sizeof(where));
    }
    CHECK("M03.file", !where[0], "%s", where[0] ? where : "none");
    report_closed("M03.abstract", "its socket", try_abstract(name));
    r = shmget(key_of(name), 0, 0);
    report_closed("M03.sysv", "its shared memory", r < 0 ? -errno : 0);
    (void)snprintf(path, sizeof(path), "/%s", name);
    r = mq_open(path, O_RDONLY);
    /* One that may not be read is there all the same. */
    report_closed("M03.mq", "its message queue", r < 0 && errno != EACCES ? -errno : 0);
}

const struct probe_mode probe_beyond_modes[] = {
    {"network", probe_network, true},
    {"neighbour", probe_neighbour, false}, /* has what the next one looks for */
    {"neighbours", probe_neighbours, true},
    {0},
};
