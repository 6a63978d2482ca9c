/* SPDX-License-Identifier: Apache-2.0 */

/* Reads, writes, seals and passes descriptors, and makes listeners. */

#include "base/fd.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/str.h"

#define READ_STEP 65536
#define LISTEN_BACKLOG 64

static ssize_t read_retry(int fd, void *data, size_t len)
{
    ssize_t n;

    do
        n = read(fd, data, len);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static ssize_t write_retry(int fd, const void *data, size_t len)
{
    ssize_t n;

    do
        n = write(fd, data, len);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static int open_retry(int dirfd, const char *path, int flags)
{
    int fd;

    do
        fd = openat(dirfd, path, flags | O_CLOEXEC | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

int fd_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = write_retry(fd, p, len);
        if (n < 0)
            return (int)n;
        if (n == 0)
            return -EIO; /* a device that takes nothing would keep us here for ever */
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

ssize_t fd_read_full(int fd, void *data, size_t len)
{
    size_t done = 0;

    assert(len <= SSIZE_MAX);
    while (done < len) {
        ssize_t n = read_retry(fd, (char *)data + done, len - done);
        if (n < 0)
            return n;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int fd_set_nonblock(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0)
        return -errno;
    int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
    if (wanted != flags && fcntl(fd, F_SETFL, wanted) < 0)
        return -errno;
    return 0;
}

/* The buffer is full: it is an error only if there is more to come. */
static int expect_end(int fd)
{
    char extra;
    ssize_t n = read_retry(fd, &extra, 1);

    return n > 0 ? -ENOBUFS : (int)n;
}

int fd_read_to_buf(int fd, struct buf *b)
{
    for (;;) {
        size_t step = b->max - b->len;
        if (step == 0)
            return expect_end(fd);
        if (step > READ_STEP)
            step = READ_STEP;
        int r = buf_reserve(b, step);
        if (r < 0)
            return r;
        ssize_t n = read_retry(fd, b->data + b->len, step);
        if (n <= 0) {
            b->data[b->len] = '\0';
            return (int)n;
        }
        b->len += (size_t)n;
        b->data[b->len] = '\0';
    }
}

ssize_t fd_read_file_at(int dirfd, const char *path, char *ret, size_t size)
{
    if (size == 0)
        return -E2BIG;
    ret[0] = '\0';
    AUTO_CLOSE int fd = open_retry(dirfd, path, O_RDONLY);
    if (fd < 0)
        return fd;

    /* The byte of the NUL tells whether there was more than fits. */
    ssize_t n = fd_read_full(fd, ret, size);
    if (n < 0 || (size_t)n == size) {
        ret[0] = '\0';
        return n < 0 ? n : -E2BIG;
    }
    ret[n] = '\0';
    return n;
}

int fd_write_file_at(int dirfd, const char *path, const char *text)
{
    size_t len = strlen(text);
    AUTO_CLOSE int fd = open_retry(dirfd, path, O_WRONLY);
    if (fd < 0)
        return fd;
    ssize_t n = write_retry(fd, text, len);
    if (n < 0)
        return (int)n;
    return (size_t)n == len ? 0 : -EIO;
}

int fd_read_u64_at(int dirfd, const char *path, uint64_t *ret)
{
    char text[64];
    ssize_t n = fd_read_file_at(dirfd, path, text, sizeof(text));

    if (n < 0)
        return n == -E2BIG ? -EINVAL : (int)n;
    if (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    if (strlen(text) != (size_t)n)
        return -EINVAL;
    return str_to_u64(text, ret);
}

int fd_read_counter_at(int dirfd, const char *path, const char *word, uint64_t *ret)
{
    char text[1024];
    size_t len = strlen(word);
    ssize_t n = fd_read_file_at(dirfd, path, text, sizeof(text));

    if (n < 0)
        return (int)n;
    for (char *at = text; *at != '\0'; at += strspn(at, "\n")) {
        char *line = at;
        at += strcspn(at, "\n");
        if (strncmp(line, word, len) != 0 || line[len] != ' ')
            continue;
        *at = '\0';
        return str_to_u64(line + len + 1, ret);
    }
    return -ENOENT;
}

int fd_set_u64_at(int dirfd, const char *path, uint64_t value, uint64_t *ret)
{
    char text[32];
    AUTO_CLOSE int fd = open_retry(dirfd, path, O_RDWR);
    if (fd < 0)
        return fd;
    int len = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    int r = fd_write_all(fd, text, (size_t)len);
    if (r < 0)
        return r;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    if (n < 0)
        return -errno;
    text[n > 0 && text[n - 1] == '\n' ? n - 1 : n] = '\0';
    return str_to_u64(text, ret);
}

int fd_sealed_memfd(const char *name, const void *data, size_t len)
{
    /* A host may refuse memfds that could be executed; a kernel before 6.3 does not know how to
     * make others. */
    AUTO_CLOSE int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;

    int r = fd_write_all(fd, data, len);
    if (r < 0)
        return r;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return -errno;
    return TAKE_FD(fd);
}

int fd_sealed_program(const char *name, const char *path, size_t max)
{
    AUTO_DONE(buf) struct buf bytes;
    char self[64];

    buf_init(&bytes, max);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, &bytes);
    if (r < 0)
        return r;
    AUTO_CLOSE int mem = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mem < 0)
        return -errno;
    r = fd_write_all(mem, bytes.data, bytes.len);
    if (r < 0)
        return r;
    if (fchmod(mem, 0555) < 0 ||
        fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    /* A descriptor open for writing would make execve say ETXTBSY. */
    (void)snprintf(self, sizeof(self), "/proc/self/fd/%d", mem);
    int exe = open(self, O_RDONLY | O_CLOEXEC);
    return exe < 0 ? -errno : exe;
}

union control {
    struct cmsghdr header; /* for its alignment */
    char bytes[CMSG_SPACE(FD_PASS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

ssize_t fd_send_msg(int sock, const void *data, size_t len, const int *fds, size_t n_fds, int flags)
{
    union control control = {0};
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds > FD_PASS_MAX)
        return -EINVAL;
    if (n_fds > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = (socklen_t)CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = (socklen_t)CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }

    ssize_t n;
    do
        n = sendmsg(sock, &msg, flags | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

/* Everything the kernel installed for this message, into fds (which has room for a full control
 * buffer). */
static size_t collect_fds(struct msghdr *msg, int *fds, size_t room)
{
    size_t count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        assert(n <= room - count);
        memcpy(fds + count, CMSG_DATA(c), n * sizeof(int));
        count += n;
    }
    return count;
}

ssize_t fd_recv_msg(int sock, void *data, size_t size, int *fds, size_t *n_fds, int flags)
{
    union control control;
    int got[sizeof(control.bytes) / sizeof(int)];
    size_t capacity = n_fds ? *n_fds : 0;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};

    if (n_fds)
        *n_fds = 0;
    ssize_t n;
    do
        n = recvmsg(sock, &msg, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;

    /* A peer must not be able to leave descriptors in our table, whatever it sends. */
    size_t count = collect_fds(&msg, got, ARRAY_SIZE(got));
    int r = 0;
    if ((msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) || count > capacity)
        r = -EMSGSIZE;
    else if (n == 0 && count > 0)
        r = -EBADMSG;
    if (r < 0) {
        fd_close_many(got, count);
        return r;
    }
    if (count > 0) {
        memcpy(fds, got, count * sizeof(int));
        *n_fds = count;
    }
    return n;
}

int fd_listen_loopback(uint16_t port, bool ipv6)
{
    const struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *at = ipv6 ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4;
    const int on = 1;
    AUTO_CLOSE int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(fd, at, ipv6 ? sizeof(v6) : sizeof(v4)) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
        return -errno;
    return TAKE_FD(fd);
}

void fd_close_many(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fds[i] >= 0)
            (void)close(fds[i]);
        fds[i] = -1;
    }
}

DIR *fd_opendir(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int error = errno;

    if (dir == NULL && fd >= 0)
        (void)close(fd);
    errno = error;
    return dir;
}
