/* SPDX-License-Identifier: Apache-2.0 */

/* Connects boxd to a running box-priv, or starts one, and greets it. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/clone.h"
#include "priv/client_internal.h"

/* It may have to remove what thousands of dead sandboxes have left before it says a word. When it
 * dies we know at once. */
#define HELLO_TIMEOUT_MS 300000
#define END_TIMEOUT_MS 30000
/* We hold the state directory, so a boxd that is still connected is about to be gone. */
#define BUSY_TRIES 150
#define BUSY_INTERVAL_MS 20
#define CHILD_SOCK 3
#define ROOTS_TEXT_MAX (512U << 10)

/* How the greeting went. */
enum greeting {
    GREETING_FINE,
    GREETING_GONE,    /* nobody was there after all */
    GREETING_BUSY,    /* another boxd is connected */
    GREETING_FOREIGN, /* it does not understand us, or serves somebody else */
    GREETING_SILENT,
};

static _Noreturn void exec_helper(const struct priv_client_options *o, int sock)
{
    char uid[16], gid[16], sock_text[8], linger[24];
    AUTO_STRV char **argv = NULL;
    sigset_t none;

    (void)snprintf(uid, sizeof(uid), "%u", o->uid);
    (void)snprintf(gid, sizeof(gid), "%u", o->gid);
    (void)snprintf(linger, sizeof(linger), "%llu", (unsigned long long)o->linger_sec);
    (void)snprintf(sock_text, sizeof(sock_text), "%d", CHILD_SOCK);
    const char *const fixed[] = {"box-priv", "--sock", sock_text, "--state",       o->state_dir,
                                 "--tag",    o->tag,   "--init",  o->init_program, "--uid",
                                 uid,        "--gid",  gid,       "--linger",      linger};
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        strv_add(&argv, fixed[i]);
    const struct {
        const char *option, *program;
    } others[] = {{"--fetch", o->fetch_program},
                  {"--runsc", o->runsc_program},
                  {"--guest", o->guest_program},
                  {"--engine", o->engine_socket}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (others[i].program == NULL)
            continue;
        strv_add(&argv, others[i].option);
        strv_add(&argv, others[i].program);
    }
    for (size_t i = 0; o->roots != NULL && o->roots[i] != NULL; i++) {
        strv_add(&argv, "--root");
        strv_add(&argv, o->roots[i]);
    }
    if (o->places)
        strv_add(&argv, "--places");
    (void)setsid(); /* a Ctrl-C is for boxd, which then tells us */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (sock == CHILD_SOCK ? fcntl(sock, F_SETFD, 0) < 0 : dup3(sock, CHILD_SOCK, 0) < 0)
        child_exit(1);
    (void)execv(o->program, argv);
    (void)dprintf(STDERR_FILENO, "cannot run '%s': %s\n", o->program, err_errno_text(errno));
    child_exit(127);
}

void priv_conn_done(struct priv_conn *c)
{
    fd_close_many(&c->sock, 1);
    fd_close_many(&c->pidfd, 1);
    strv_free(TAKE_PTR(c->roots));
    free(TAKE_PTR(c->items));
    c->n_items = 0;
}

/* One request that is answered before the next; others' answers are not under way yet. */
static ssize_t ask(int sock, const void *request, size_t len, struct priv_reply *reply, int *ret_fd)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    size_t n_fds = 1;
    *ret_fd = -1;
    /* Whoever refuses us does not wait for our question; its answer is there all the same. */
    ssize_t n = fd_send_msg(sock, request, len, NULL, 0, MSG_NOSIGNAL);
    if (n < 0 && n != -EPIPE && n != -ECONNRESET)
        return n;
    if (poll(&p, 1, HELLO_TIMEOUT_MS) != 1)
        return -ETIMEDOUT;
    n = fd_recv_msg(sock, reply, sizeof(*reply), ret_fd, &n_fds, MSG_DONTWAIT);
    if (n == -ECONNRESET) { /* told once, before what it said */
        n_fds = 1;
        n = fd_recv_msg(sock, reply, sizeof(*reply), ret_fd, &n_fds, MSG_DONTWAIT);
    }
    return n == -ECONNRESET ? 0 : n;
}

static int read_roots(int fd, char ***ret)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_STRV char **roots = NULL;
    buf_init(&text, ROOTS_TEXT_MAX);
    int r = fd_read_to_buf(fd, &text);
    if (r < 0)
        return r;
    for (size_t at = 0; at < text.len;) {
        size_t len = strnlen(text.data + at, text.len - at);
        if (at + len == text.len)
            return -EBADMSG; /* the last has no end */
        strv_add(&roots, text.data + at);
        at += len + 1;
    }
    *ret = TAKE_PTR(roots);
    return 0;
}

static enum greeting greet(const struct priv_client_options *o, struct priv_conn *c)
{
    struct priv_hello hello = {
        .head = {PRIV_HELLO, 0}, .version = PRIV_WIRE_VERSION, .uid = o->uid, .gid = o->gid};
    struct priv_reply reply = {0};
    AUTO_CLOSE int fd = -1;
    ssize_t n = ask(c->sock, &hello, sizeof(hello), &reply, &fd);
    if (n == 0)
        return GREETING_GONE;
    if (n == -ETIMEDOUT)
        return GREETING_SILENT;
    /* An answer of another version may have another length, but begins the same. */
    if (n > (ssize_t)offsetof(struct priv_reply, err) && reply.result == -EBUSY)
        return GREETING_BUSY;
    if (n != (ssize_t)sizeof(reply) || reply.result < 0 ||
        reply.host.version != PRIV_WIRE_VERSION || fd < 0 || read_roots(fd, &c->roots) < 0)
        return GREETING_FOREIGN;
    if ((o->runsc_program != NULL && !reply.host.gvisor) ||
        (o->engine_socket != NULL && !reply.host.engine))
        return GREETING_FOREIGN; /* of a boxd with another backend: it cannot make what we need */
    c->host = reply.host;
    return GREETING_FINE;
}

static int read_items(int fd, struct priv_conn *c, uint32_t n)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || n > PRIV_SESSIONS_MAX ||
        st.st_size != (off_t)(n * sizeof(struct priv_item)))
        return -EBADMSG;
    AUTO_FREE struct priv_item *items = xnew_n(struct priv_item, (size_t)n + 1);
    if (fd_read_full(fd, items, n * sizeof(*items)) != (ssize_t)(n * sizeof(*items)))
        return -EBADMSG;
    for (uint32_t i = 0; i < n; i++)
        if (strnlen(items[i].name, sizeof(items[i].name)) != PLAN_NAME_LEN)
            return -EBADMSG;
    c->items = TAKE_PTR(items);
    c->n_items = n;
    return 0;
}

static int list(struct priv_conn *c, struct err *err)
{
    struct priv_head head = {.type = PRIV_LIST};
    struct priv_reply reply = {0};
    AUTO_CLOSE int fd = -1;
    ssize_t n = ask(c->sock, &head, sizeof(head), &reply, &fd);
    if (n != (ssize_t)sizeof(reply) || reply.result < 0 || fd < 0 ||
        read_items(fd, c, reply.n_items) < 0)
        return err_set(err, ERR_BACKEND, "box-priv does not tell which sandboxes it has");
    return 0;
}

bool priv_dismiss(struct priv_conn *c, int timeout_ms)
{
    struct priv_head bye = {.type = PRIV_BYE};
    struct pollfd p[] = {{.fd = c->sock, .events = POLLIN | POLLOUT},
                         {.fd = c->pidfd, .events = POLLIN}};
    bool said = false;
    if (c->sock < 0)
        return true;
    /* It may be waiting for us to read its answers: they are read, and nobody wants them. */
    while (poll(p, ARRAY_SIZE(p), timeout_ms) > 0) {
        struct priv_reply reply;
        int fds[PRIV_FDS_MAX];
        size_t n_fds = PRIV_FDS_MAX;
        ssize_t n = -EAGAIN;
        if (p[1].revents != 0)
            break;
        if (p[0].revents & POLLIN)
            n = fd_recv_msg(c->sock, &reply, sizeof(reply), fds, &n_fds, MSG_DONTWAIT);
        if (n > 0)
            fd_close_many(fds, n_fds);
        if ((p[0].revents & POLLOUT) && !said) {
            said =
                fd_send_msg(c->sock, &bye, sizeof(bye), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
            p[0].events = said ? POLLIN : POLLIN | POLLOUT;
        }
        if (p[0].revents & (POLLHUP | POLLERR))
            p[0].fd = -1; /* only its end is missing */
    }
    if (p[1].revents == 0)
        return false;
    if (c->child)
        (void)waitpid(c->pid, NULL, 0);
    c->child = false;
    return true;
}

static int find_pid(struct priv_conn *c, uid_t *ret_uid)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(c->sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return -errno;
    *ret_uid = peer.uid;
    c->pid = peer.pid;
    c->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    return c->pidfd < 0 ? -errno : 0;
}

/* 1 with a connection to whoever listens in the state directory and is ours, 0 when nobody does.
 * The directory belongs to the user boxd runs as, so what is found there is believed only if the
 * kernel says that it was made with the rights that starting one needs. */
static int dial(const char *state_dir, struct priv_conn *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uid_t uid = 0;
    AUTO_CLOSE int dir = open(state_dir, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    c->sock = dir < 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c->sock < 0)
        return 0;
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" PRIV_SOCKET,
                   dir);
    if (connect(c->sock, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
        find_pid(c, &uid) == 0 && uid == geteuid())
        return 1;
    priv_conn_done(c);
    return 0;
}

/* As dial(), and it has greeted us; or an error. */
static int join(const struct priv_client_options *o, struct priv_conn *c, struct err *err)
{
    for (int i = 0; dial(o->state_dir, c) > 0; i++) {
        enum greeting g = greet(o, c);
        if (g == GREETING_FINE) {
            int r = list(c, err);
            return r < 0 ? r : 1;
        }
        if (g == GREETING_SILENT)
            return err_set(err, ERR_BACKEND,
                           "the box-priv of an earlier boxd (pid %d) does not answer; end it",
                           c->pid);
        if (g == GREETING_BUSY && i == BUSY_TRIES)
            return err_set(err, ERR_CONFLICT, "another boxd runs on this state directory");
        if (g == GREETING_FOREIGN && !priv_dismiss(c, END_TIMEOUT_MS))
            return err_set(err, ERR_BACKEND,
                           "the box-priv of an earlier boxd (pid %d) does not end", c->pid);
        priv_conn_done(c);
        if (g != GREETING_BUSY)
            return 0;
        (void)poll(NULL, 0, BUSY_INTERVAL_MS);
    }
    return 0;
}

/* The helper opens everything it will ever need before it answers; a failure has been logged by it.
 */
static int spawn(const struct priv_client_options *o, struct priv_conn *c, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, errno, "socketpair");
    c->sock = pair[0];
    c->pid = clone_process(0, -1, &c->pidfd);
    if (c->pid == 0)
        exec_helper(o, pair[1]);
    (void)close(pair[1]);
    if (c->pid < 0)
        return err_sys(err, -c->pid, "start box-priv");
    c->child = true;
    if (greet(o, c) == GREETING_FINE)
        return 0;
    (void)syscall(SYS_pidfd_send_signal, c->pidfd, SIGTERM, NULL, 0);
    (void)waitpid(c->pid, NULL, 0);
    return err_set(err, ERR_BACKEND, "box-priv did not start; its own message is above");
}

int priv_connect(const struct priv_client_options *o, struct priv_conn *ret, struct err *err)
{
    struct priv_conn c = {.sock = -1, .pidfd = -1};
    int r = join(o, &c, err);
    if (r == 0)
        r = spawn(o, &c, err);
    if (r < 0) {
        priv_conn_done(&c);
        return r;
    }
    *ret = c;
    return 0;
}
