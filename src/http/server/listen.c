/* SPDX-License-Identifier: Apache-2.0 */

/* Opens and checks the listening sockets of the HTTP server: unix, TCP, or inherited. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "http/server/server_internal.h"

#define BACKLOG 4096 /* the kernel cuts it to net.core.somaxconn */

/* The directory of a path, opened, and the name in it. */
static int open_parent(const char *path, const char **ret_name, struct err *err)
{
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *dir = NULL;

    if (slash == NULL)
        dir = xstrdup(".");
    else
        dir = xstrndup(path, slash == path ? 1 : (size_t)(slash - path));
    *ret_name = slash == NULL ? path : slash + 1;
    if (**ret_name == '\0')
        return err_set(err, ERR_INVALID, "'%s' names no socket", path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "open directory '%s'", dir);
    return fd;
}

/* Paths too long for an address go through the directory's descriptor. */
static int fill_address(struct sockaddr_un *sun, const char *path, int dir, const char *name)
{
    *sun = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (str_copy(sun->sun_path, sizeof(sun->sun_path), path) == 0)
        return 0;
    return str_fmt(sun->sun_path, sizeof(sun->sun_path), "/proc/self/fd/%d/%s", dir, name);
}

/* Somebody answers at that address, or might. */
static bool is_alive(const struct sockaddr_un *sun)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return true;
    /* A full backlog is EAGAIN, a foreign socket EACCES or EPROTOTYPE: only a refusal is a no. */
    return connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) == 0 || errno != ECONNREFUSED;
}

static int remove_stale(int dir, const char *name, const struct sockaddr_un *sun, const char *path,
                        struct err *err)
{
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at '%s'", path);
    if (!S_ISSOCK(st.st_mode))
        return err_set(err, ERR_CONFLICT, "'%s' exists and is not a socket", path);
    if (is_alive(sun))
        return err_set(err, ERR_CONFLICT, "somebody is listening on '%s'", path);
    if (unlinkat(dir, name, 0) < 0)
        return err_sys(err, errno, "remove stale socket '%s'", path);
    return 0;
}

int listen_unix(const char *path, mode_t mode, struct http_listener *l, struct err *err)
{
    struct sockaddr_un sun;
    struct stat st;
    const char *name;
    int r;

    AUTO_CLOSE int dir = open_parent(path, &name, err);
    if (dir < 0)
        return dir;
    if (fill_address(&sun, path, dir, name) < 0)
        return err_set(err, ERR_INVALID, "socket name '%s' is too long", name);
    /* Two of us starting at once must not take each other's unfinished socket for a stale one. */
    if (flock(dir, LOCK_EX | LOCK_NB) < 0)
        return err_sys(err, errno, "lock the directory of '%s'", path);
    r = remove_stale(dir, name, &sun, path, err);
    if (r < 0)
        return r;

    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a unix socket");
    /* The mode of an unbound socket becomes that of its file, less the umask: nobody can get in
     * between bind and a later chmod. bind does not follow a symlink. */
    mode_t mask = umask(0);
    bool bound = fchmod(fd, mode) == 0 && bind(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0;
    int error = errno;
    (void)umask(mask);
    errno = error;
    if (!bound)
        return err_sys(err, errno, "bind '%s'", path);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "look at '%s'", path);
    if (!S_ISSOCK(st.st_mode) || (st.st_mode & 07777 & ~mode) != 0) {
        (void)unlinkat(dir, name, 0);
        return err_set(err, ERR_UNSUPPORTED, "'%s' does not keep its mode", path);
    }
    if (listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on '%s'", path);
    l->path = xstrdup(path);
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    l->fd = TAKE_FD(fd);
    return 0;
}

void listen_unlink(struct http_listener *l)
{
    struct stat st;

    if (l->path == NULL)
        return;
    /* Only if it is still ours: another server may have taken the place. */
    if (lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        (void)unlink(l->path);
    free(TAKE_PTR(l->path));
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool parse_address(const char *text, uint16_t port, union address *ret, socklen_t *ret_len)
{
    *ret = (union address){0};
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons(port);
        *ret_len = sizeof(ret->v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &ret->v6.sin6_addr) != 1)
        return false;
    ret->v6.sin6_family = AF_INET6;
    ret->v6.sin6_port = htons(port);
    *ret_len = sizeof(ret->v6);
    return true;
}

static bool is_loopback(const union address *a)
{
    if (a->any.sa_family == AF_INET)
        return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

int listen_tcp(const char *address, uint16_t port, bool loopback_only, struct http_listener *l,
               struct err *err)
{
    const int on = 1;
    union address a;
    socklen_t len;

    if (!parse_address(address, port, &a, &len))
        return err_set(err, ERR_INVALID, "'%s' is not a numeric address", address);
    if (loopback_only && !is_loopback(&a))
        return err_set(err, ERR_DENIED, "%s can be reached from outside and no token is set",
                       address);
    AUTO_CLOSE int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a TCP socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &a.any, len) < 0)
        return err_sys(err, errno, "bind %s port %u", address, port);
    if (listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on %s port %u", address, port);
    if (getsockname(fd, &a.any, &len) < 0)
        return err_sys(err, errno, "read the port of %s", address);
    l->fd = TAKE_FD(fd);
    return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

/* Nobody but a service manager should hand us sockets; what it got wrong is better said at once
 * than found out by clients. */
int listen_fd(int fd, bool loopback_only, struct http_listener *l, struct err *err)
{
    AUTO_CLOSE int owned = fd;
    union address a = {0};
    socklen_t len = sizeof(a), size = sizeof(int);
    int type = 0, listening = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0)
        return err_sys(err, errno, "descriptor %d was to be a socket", fd);
    size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0)
        return err_sys(err, errno, "descriptor %d", fd);
    if (type != SOCK_STREAM || !listening)
        return err_set(err, ERR_INVALID,
                       "descriptor %d is not a stream socket that listens (ListenStream=, "
                       "Accept=no)",
                       fd);
    if (getsockname(fd, &a.any, &len) < 0)
        return err_sys(err, errno, "address of descriptor %d", fd);
    bool tcp = a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6;
    if (!tcp && a.any.sa_family != AF_UNIX)
        return err_set(err, ERR_INVALID, "descriptor %d is neither a unix nor a TCP socket", fd);
    if (tcp && loopback_only && !is_loopback(&a))
        return err_set(err, ERR_DENIED,
                       "descriptor %d can be reached from outside and no token is set", fd);
    int r = fd_set_nonblock(fd, true);
    if (r < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return err_sys(err, r < 0 ? -r : errno, "descriptor %d", fd);
    l->fd = TAKE_FD(owned);
    return 0;
}
