/* SPDX-License-Identifier: Apache-2.0 */

/* E02 and E03: memory that a program has, and memory that the kernel holds for it. */

#include "abuse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE (1u << 20)
#define DATAGRAM 8000
#define DATAGRAMS 600

static char piece[PIECE];

/* Each takes some more, keeps it, and returns how many bytes that were or a negative errno. */

static long take_anon(void)
{
    char *p = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return -errno;
    memset(p, 1, PIECE);
    return PIECE;
}

static long write_piece(int fd)
{
    ssize_t n = write(fd, piece, sizeof(piece));

    return n < 0 ? -errno : n;
}

/* In files of 16 MiB: how large one may be is another limit. */
static long take_file(int (*open_one)(void))
{
    static int fd = -1;
    static unsigned n;

    if (n++ % 16 == 0)
        fd = open_one();
    return fd < 0 ? -errno : write_piece(fd);
}

static int open_memfd(void)
{
    return memfd_create("box-attack", MFD_CLOEXEC);
}

static long take_memfd(void)
{
    return take_file(open_memfd);
}

static int open_shm(void)
{
    int fd = open("/dev/shm/box-attack", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    if (fd >= 0)
        (void)unlink("/dev/shm/box-attack");
    return fd;
}

static long take_shm(void)
{
    return take_file(open_shm);
}

/* All that the other end does not read. */
static long fill(int fd)
{
    long total = 0;
    ssize_t n;

    while ((n = send(fd, piece, 65536, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0 ||
           (n < 0 && errno == ENOTSOCK && (n = write(fd, piece, 65536)) > 0))
        total += n;
    return total > 0 ? total : -errno;
}

static long take_pipe(void)
{
    int fds[2];

    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[1], F_SETPIPE_SZ, PIECE);
    return fill(fds[1]);
}

static long take_unix(void)
{
    int fds[2], size = 4 * PIECE;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    (void)setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return fill(fds[0]);
}

static int bound_socket(int type, struct sockaddr_in *ret)
{
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (fd >= 0 && bind(fd, (struct sockaddr *)ret, len) == 0 &&
        getsockname(fd, (struct sockaddr *)ret, &len) == 0)
        return fd;
    return -errno;
}

static long take_tcp(void)
{
    static struct sockaddr_in at;
    static int listener = -1;
    int fd = -1;

    if (listener < 0) {
        listener = bound_socket(SOCK_STREAM, &at);
        if (listener < 0 || listen(listener, 64) < 0)
            return -errno;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
        accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0)
        return -errno;
    return fill(fd);
}

/* What is dropped on the way is not held, so the receiver is asked. */
static long take_udp(void)
{
    struct sockaddr_in at;
    uint32_t info[SK_MEMINFO_VARS];
    socklen_t len = sizeof(info);
    int size = 4 * PIECE, to = bound_socket(SOCK_DGRAM, &at),
        from = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (to < 0 || from < 0)
        return -errno;
    (void)setsockopt(to, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    for (unsigned i = 0; i < DATAGRAMS; i++)
        if (sendto(from, piece, DATAGRAM, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof(at)) < 0)
            break;
    (void)close(from);
    if (getsockopt(to, SOL_SOCKET, SO_MEMINFO, info, &len) < 0)
        return -errno;
    return info[SK_MEMINFO_RMEM_ALLOC] > 0 ? (long)info[SK_MEMINFO_RMEM_ALLOC] : -ENOBUFS;
}

static const struct hog {
    const char *mode, *id;
    long (*take)(void);
} hogs[] = {
    {"hog-anon", "E02", take_anon},      {"hog-memfd", "E03.memfd", take_memfd},
    {"hog-shm", "E03.shm", take_shm},    {"hog-pipe", "E03.pipe", take_pipe},
    {"hog-unix", "E03.unix", take_unix}, {"hog-tcp", "E03.tcp", take_tcp},
    {"hog-udp", "E03.udp", take_udp},
};

struct order {
    const struct hog *hog;
    uint64_t bound;
};

static void take_all(const void *arg, volatile struct abuse_slot *slot)
{
    const struct order *o = arg;
    struct rlimit files;
    long n = 0;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    while (slot->held < o->bound && (n = o->hog->take()) > 0)
        slot->held += (uint64_t)n;
    slot->error = n < 0 ? (int)-n : 0;
}

bool abuse_hog(const char *mode, const struct probe_options *opt)
{
    for (size_t i = 0; i < sizeof(hogs) / sizeof(hogs[0]); i++) {
        struct order o = {&hogs[i], opt->limit + opt->limit / 2 + 16 * PIECE};
        if (strcmp(hogs[i].mode, mode) != 0)
            continue;
        abuse_child(hogs[i].id, "MiB", PIECE, opt, take_all, &o);
        return true;
    }
    return false;
}
