/* SPDX-License-Identifier: Apache-2.0 */

/* The host's side of `box doctor --attack`. */

#include "cli/attack/host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/io/app.h"

#define PROGRAM_MAX (16u << 20)

/* Namespaces, addresses and sockets are those of this machine: boxd has to be on it, too. */
static int check_local(const struct app *app, struct err *err)
{
    static const char *const here[] = {"unix://", "http://127.", "http://localhost",
                                       "http://[::1]"};

    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        if (str_starts(app->endpoint, here[i]))
            return 0;
    return err_set(err, ERR_INVALID,
                   "the attack is on the host of boxd: run it there, with BOX_HOST naming boxd's "
                   "socket or an address of the loopback");
}

/* Beside our own program as built, else where installations have it. */
static int open_program(char path[static PATH_MAX], struct err *err)
{
    static const char *const beside[] = {"/box-attack", "/../libexec/box/box-attack"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    self[n > 0 ? n : 0] = '\0';
    if (strrchr(self, '/') != NULL)
        *strrchr(self, '/') = '\0';
    for (size_t i = 0; i <= ARRAY_SIZE(beside); i++) {
        int r = i < ARRAY_SIZE(beside)
                    ? str_fmt(path, PATH_MAX, "%s%s", self, beside[i])
                    : str_fmt(path, PATH_MAX, "%s", BOX_LIBEXECDIR "/box-attack");
        int fd = r < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
    }
    return err_set(err, ERR_NOT_FOUND,
                   "'box-attack' is missing: it should stand beside box or in %s", BOX_LIBEXECDIR);
}

static int read_program(struct attack_host *h, struct err *err)
{
    char path[PATH_MAX], piece[65536];
    AUTO_CLOSE int fd = open_program(path, err);
    ssize_t n = 0;

    if (fd < 0)
        return fd;
    while ((n = read(fd, piece, sizeof(piece))) > 0)
        if (buf_append(&h->program, piece, (size_t)n) < 0)
            return err_set(err, ERR_LIMIT, "'%s' is larger than 16 MiB", path);
    return n < 0 ? err_sys(err, errno, "read '%s'", path) : 0;
}

static void write_namespaces(struct attack_host *h)
{
    static const char *const names[] = {"cgroup", "ipc",  "mnt",  "net",
                                        "pid",    "time", "user", "uts"};
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, 1024);
    (void)buf_puts(&text, "--host-ns=");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[64];
        struct stat st;
        (void)str_fmt(path, sizeof(path), "/proc/self/ns/%s", names[i]);
        if (stat(path, &st) == 0)
            (void)buf_printf(&text, "%s%s=%llu", str_ends(buf_str(&text), "=") ? "" : ",", names[i],
                             (unsigned long long)st.st_ino);
    }
    h->ns_option = xstrdup(buf_str(&text));
}

/* A name that only this process knows, and an abstract socket of that name. The program inside is
 * told it backwards, because its own arguments are one of the places where it looks. */
static int make_secret(struct attack_host *h, struct err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char name[17], reversed[17];

    id_random(name);
    for (size_t i = 0; i < 16; i++)
        reversed[i] = name[15 - i];
    reversed[16] = '\0';
    h->secret_option = xasprintf("--secret-reversed=%s", reversed);
    memcpy(at.sun_path + 1, name, 16);
    h->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->unix_fd < 0 ||
        bind(h->unix_fd, (const struct sockaddr *)&at,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 17)) < 0 ||
        listen(h->unix_fd, 8) < 0)
        return err_sys(err, errno, "listen on an abstract socket");
    return 0;
}

static void add_option(struct attack_host *h, char *option)
{
    h->address_options[h->n_addresses++] = option;
}

static int listen_tcp(struct attack_host *h, struct err *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);
    struct ifaddrs *all = NULL;

    h->tcp_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->tcp_fd < 0 || bind(h->tcp_fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
        listen(h->tcp_fd, 8) < 0 || getsockname(h->tcp_fd, (struct sockaddr *)&at, &len) < 0)
        return err_sys(err, errno, "listen on this host");
    add_option(h, xasprintf("--port=%u", ntohs(at.sin_port)));
    if (getifaddrs(&all) < 0)
        return err_sys(err, errno, "list the addresses of this host");
    for (const struct ifaddrs *i = all; i != NULL && h->n_addresses < ATTACK_ADDRESSES;
         i = i->ifa_next) {
        char text[INET_ADDRSTRLEN];
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        if (inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)) != NULL)
            add_option(h, xasprintf("--host-address=%s", text));
    }
    freeifaddrs(all);
    return 0;
}

int attack_host_init(struct attack_host *h, const struct app *app, struct err *err)
{
    memset(h, 0, sizeof(*h));
    h->tcp_fd = h->unix_fd = -1;
    buf_init(&h->program, PROGRAM_MAX);
    int r = check_local(app, err);
    if (r >= 0)
        r = read_program(h, err);
    if (r >= 0)
        r = make_secret(h, err);
    if (r >= 0)
        r = listen_tcp(h, err);
    write_namespaces(h);
    return r;
}

void attack_host_done(struct attack_host *h)
{
    fd_close_many((int[]){h->tcp_fd, h->unix_fd}, 2);
    buf_done(&h->program);
    free(h->ns_option);
    free(h->secret_option);
    for (size_t i = 0; i < h->n_addresses; i++)
        free(h->address_options[i]);
}
