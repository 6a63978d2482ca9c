/* SPDX-License-Identifier: Apache-2.0 */

/* Connects boxd to box-priv, sends requests from the loop and dispatches the answers. */

#include "priv/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/clone.h"
#include "loop/loop.h"

/* A connection to box-priv, from nothing to the first answer and back. All of it blocks: it
 * connects boxd to a running box-priv, or starts one, and greets it. */

struct priv_conn {
    int sock;  /* owned */
    int pidfd; /* owned */
    pid_t pid;
    bool child; /* we started it, and have to reap it */
    struct priv_host host;
    char **roots;            /* owned */
    struct priv_item *items; /* owned; what was there already */
    size_t n_items;
};

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
    GREETING_GONE,    /* no box-priv was there after all */
    GREETING_BUSY,    /* another boxd is connected */
    GREETING_FOREIGN, /* it does not understand us, or serves another boxd */
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

static void priv_conn_done(struct priv_conn *c)
{
    fd_close_many(&c->sock, 1);
    fd_close_many(&c->pidfd, 1);
    strv_free(TAKE_PTR(c->roots));
    free(TAKE_PTR(c->items));
    c->n_items = 0;
}

/* One request that is answered before the next; others' answers are not under way yet. */
static ssize_t conn_ask(int sock, const void *request, size_t len, struct priv_reply *reply,
                        int *ret_fd)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    size_t n_fds = 1;
    *ret_fd = -1;
    /* A box-priv that refuses us does not wait for our question; its answer is there all the same.
     */
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
    AUTO_DONE(buf) struct buf text = BUF_INIT(ROOTS_TEXT_MAX);
    AUTO_STRV char **roots = NULL;
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

static enum greeting conn_greet(const struct priv_client_options *o, struct priv_conn *c)
{
    struct priv_hello hello = {
        .head = {PRIV_HELLO, 0}, .version = PRIV_WIRE_VERSION, .uid = o->uid, .gid = o->gid};
    struct priv_reply reply = {0};
    AUTO_CLOSE int fd = -1;
    ssize_t n = conn_ask(c->sock, &hello, sizeof(hello), &reply, &fd);
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

static int conn_list(struct priv_conn *c, struct err *err)
{
    struct priv_head head = {.type = PRIV_LIST};
    struct priv_reply reply = {0};
    AUTO_CLOSE int fd = -1;
    ssize_t n = conn_ask(c->sock, &head, sizeof(head), &reply, &fd);
    if (n != (ssize_t)sizeof(reply) || reply.result < 0 || fd < 0 ||
        read_items(fd, c, reply.n_items) < 0)
        return err_set(err, ERR_BACKEND, "box-priv does not tell which sandboxes it has");
    return 0;
}

/* Tells it to end everything, and waits for its end: at most so long, -1 for ever. False: it is
 * still there. */
static bool priv_dismiss(struct priv_conn *c, int timeout_ms)
{
    struct priv_head bye = {.type = PRIV_BYE};
    struct pollfd p[] = {{.fd = c->sock, .events = POLLIN | POLLOUT},
                         {.fd = c->pidfd, .events = POLLIN}};
    bool said = false;
    if (c->sock < 0)
        return true;
    /* It may be waiting for us to read its answers: they are read and thrown away. */
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

/* 1 with a connection to our box-priv that listens in the state directory, 0 when none does.
 * The directory belongs to the user boxd runs as, so what is found there is believed only if the
 * kernel says that it was made with the rights that starting one needs. */
static int conn_dial(const char *state_dir, struct priv_conn *c)
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

/* As conn_dial(), and it has greeted us; or an error. */
static int conn_join(const struct priv_client_options *o, struct priv_conn *c, struct err *err)
{
    for (int i = 0; conn_dial(o->state_dir, c) > 0; i++) {
        enum greeting g = conn_greet(o, c);
        if (g == GREETING_FINE) {
            int r = conn_list(c, err);
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
static int conn_spawn(const struct priv_client_options *o, struct priv_conn *c, struct err *err)
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
    if (conn_greet(o, c) == GREETING_FINE)
        return 0;
    (void)syscall(SYS_pidfd_send_signal, c->pidfd, SIGTERM, NULL, 0);
    (void)waitpid(c->pid, NULL, 0);
    return err_set(err, ERR_BACKEND, "box-priv did not start; its own message is above");
}

static int priv_connect(const struct priv_client_options *o, struct priv_conn *ret, struct err *err)
{
    struct priv_conn c = {.sock = -1, .pidfd = -1};
    int r = conn_join(o, &c, err);
    if (r == 0)
        r = conn_spawn(o, &c, err);
    if (r < 0) {
        priv_conn_done(&c);
        return r;
    }
    *ret = c;
    return 0;
}

#define PENDING_MAX 16384U
#define QUEUE_BYTES_MAX                                                                            \
    (16U << 20) /* of plans that wait for box-priv; what ends a sandbox always goes */

struct pending {
    uint32_t id; /* 0: free */
    priv_reply_fn *fn;
    void *arg;
};

struct outgoing {
    STAILQ_ENTRY(outgoing) link;
    int fd; /* owned; goes with it, -1: none */
    size_t len;
    char data[];
};

struct priv_client {
    struct loop *loop;
    struct priv_conn conn;
    bool lost;
    struct loop_io io, pid_io;
    STAILQ_HEAD(, outgoing) queue; /* owned */
    size_t queued;                 /* bytes */
    priv_gone_fn *gone;
    void *gone_arg;
    struct pending *pending; /* owned, dense */
    size_t n_pending, cap_pending;
    uint32_t next_id;
    struct place {
        char *path; /* owned */
        uint32_t number;
    } * places; /* owned; directories of callers, by box-priv's numbers */
    size_t n_places;
};

static void learn_place(struct priv_client *c, const struct priv_placed *placed)
{
    size_t i = 0;
    while (i < c->n_places && c->places[i].number != placed->root)
        i++;
    if (i == c->n_places) {
        c->places = xreallocarray(c->places, ++c->n_places, sizeof(*c->places));
        c->places[i] = (struct place){.number = placed->root};
    }
    free(c->places[i].path);
    c->places[i].path = xstrdup(placed->path);
}

bool priv_client_place_of(const struct priv_client *c, const char *dir, uint32_t *ret,
                          const char **ret_rest)
{
    for (size_t i = 0; i < c->n_places; i++) {
        size_t len = strlen(c->places[i].path);
        if (strncmp(dir, c->places[i].path, len) != 0 || (dir[len] != '/' && dir[len] != '\0'))
            continue;
        *ret = c->places[i].number;
        *ret_rest = dir[len] == '/' ? dir + len + 1 : dir + len;
        return true;
    }
    return false;
}

static void dispatch(struct priv_client *c, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    for (size_t i = 0; i < c->n_pending; i++) {
        if (c->pending[i].id != reply->head.id)
            continue;
        struct pending p = c->pending[i];
        c->pending[i] = c->pending[--c->n_pending];
        if (reply->head.type == PRIV_PLACE && reply->result >= 0 &&
            reply->placed.root != PRIV_NO_ROOT)
            learn_place(c, &reply->placed);
        p.fn(p.arg, reply, fds, n_fds);
        return;
    }
}

static void drop_first(struct priv_client *c)
{
    struct outgoing *o = STAILQ_FIRST(&c->queue);
    STAILQ_REMOVE_HEAD(&c->queue, link);
    c->queued -= o->len;
    fd_close_many(&o->fd, 1);
    free(o);
}

static void lose(struct priv_client *c)
{
    if (c->lost)
        return;
    c->lost = true;
    loop_io_stop(&c->io);
    loop_io_stop(&c->pid_io);
    while (!STAILQ_EMPTY(&c->queue))
        drop_first(c);
    while (c->n_pending > 0) {
        struct pending p = c->pending[--c->n_pending];
        p.fn(p.arg, NULL, NULL, 0);
    }
    if (c->gone != NULL)
        c->gone(c->gone_arg);
}

/* Never blocks: box-priv may wait for us to read its answers just now. */
static int send_or_queue(struct priv_client *c, const void *data, size_t len, int fd)
{
    ssize_t n = -EAGAIN;
    if (STAILQ_EMPTY(&c->queue))
        n = fd_send_msg(c->conn.sock, data, len, &fd, fd >= 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n != -EAGAIN)
        return n < 0 ? (int)n : 0;
    int copy = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (fd >= 0 && copy < 0)
        return -errno;
    struct outgoing *o = xcalloc(1, sizeof(*o) + len);
    o->fd = copy;
    o->len = len;
    memcpy(o->data, data, len);
    STAILQ_INSERT_TAIL(&c->queue, o, link);
    c->queued += len;
    return loop_io_events(&c->io, EPOLLIN | EPOLLOUT);
}

static void flush_queue(struct priv_client *c)
{
    for (struct outgoing *o; (o = STAILQ_FIRST(&c->queue)) != NULL;) {
        ssize_t n = fd_send_msg(c->conn.sock, o->data, o->len, &o->fd, o->fd >= 0,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n == -EAGAIN)
            return;
        if (n < 0) {
            lose(c);
            return;
        }
        drop_first(c);
    }
    (void)loop_io_events(&c->io, EPOLLIN);
}

static void on_socket(struct loop_io *io, uint32_t events)
{
    struct priv_client *c = container_of(io, struct priv_client, io);
    static struct priv_reply reply;
    if (events & EPOLLOUT)
        flush_queue(c);
    while (!c->lost) {
        int fds[PRIV_FDS_MAX];
        size_t n_fds = PRIV_FDS_MAX;
        ssize_t n = fd_recv_msg(c->conn.sock, &reply, sizeof(reply), fds, &n_fds, MSG_DONTWAIT);
        if (n == -EAGAIN)
            return;
        /* The answer is there, but we had no room for its descriptors: one request fails, not all.
         */
        if (n == -EMSGSIZE)
            n = sizeof(reply);
        if (n != (ssize_t)sizeof(reply)) {
            lose(c);
            return;
        }
        reply.err.msg[sizeof(reply.err.msg) - 1] = '\0';
        dispatch(c, &reply, fds, n_fds);
        fd_close_many(fds, n_fds);
    }
}

/* The socket alone would not tell: children of box-priv may hold its end for a while. */
static void on_helper_exit(struct loop_io *io, uint32_t events)
{
    lose(container_of(io, struct priv_client, pid_io));
}

int priv_client_new(struct loop *loop, const struct priv_client_options *options,
                    struct priv_client **ret, struct err *err)
{
    struct priv_client *c = xnew(struct priv_client);
    c->loop = loop;
    c->conn = (struct priv_conn){.sock = -1, .pidfd = -1};
    c->next_id = 1;
    STAILQ_INIT(&c->queue);
    int r = priv_connect(options, &c->conn, err);
    if (r == 0) {
        r = loop_io_start(loop, &c->io, c->conn.sock, EPOLLIN, on_socket);
        if (r == 0)
            r = loop_io_start(loop, &c->pid_io, c->conn.pidfd, EPOLLIN, on_helper_exit);
        if (r < 0)
            (void)err_sys(err, -r, "watch box-priv");
    }
    if (r < 0) {
        priv_client_detach(c);
        return r;
    }
    *ret = c;
    return 0;
}

void priv_client_detach(struct priv_client *c)
{
    if (c == NULL)
        return;
    loop_io_stop(&c->io);
    loop_io_stop(&c->pid_io);
    while (!STAILQ_EMPTY(&c->queue))
        drop_first(c);
    priv_conn_done(&c->conn);
    free(c->pending);
    for (size_t i = 0; i < c->n_places; i++)
        free(c->places[i].path);
    free(c->places);
    free(c);
}

void priv_client_free(struct priv_client *c)
{
    if (c == NULL)
        return;
    priv_dismiss(&c->conn, -1);
    priv_client_detach(c);
}

void priv_client_on_gone(struct priv_client *c, priv_gone_fn *fn, void *arg)
{
    c->gone = fn;
    c->gone_arg = arg;
}

const struct priv_host *priv_client_host(const struct priv_client *c)
{
    return &c->conn.host;
}

char *const *priv_client_roots(const struct priv_client *c)
{
    return c->conn.roots;
}

size_t priv_client_found(const struct priv_client *c, const struct priv_item **ret)
{
    *ret = c->conn.items;
    return c->conn.n_items;
}

struct message {
    struct priv_head *head;
    size_t len;
    int fd; /* that goes along; -1: none */
};

static int request_with(struct priv_client *c, const struct message *m, priv_reply_fn *fn,
                        void *arg, struct err *err)
{
    struct priv_head *head = m->head;
    if (c->lost)
        return err_set(err, ERR_BACKEND, "box-priv has gone away");
    if (c->n_pending >= PENDING_MAX ||
        (head->type == PRIV_CREATE && c->queued + m->len > QUEUE_BYTES_MAX))
        return err_set(err, ERR_LIMIT, "too many requests under way; try again");
    if (c->n_pending == c->cap_pending) {
        c->cap_pending = c->cap_pending > 0 ? c->cap_pending * 2 : 64;
        c->pending = xreallocarray(c->pending, c->cap_pending, sizeof(*c->pending));
    }
    head->id = c->next_id++;
    if (c->next_id == 0)
        c->next_id = 1;
    int r = send_or_queue(c, head, m->len, m->fd);
    if (r < 0)
        return err_sys(err, -r, "ask box-priv");
    c->pending[c->n_pending++] = (struct pending){head->id, fn, arg};
    return 0;
}

static int request(struct priv_client *c, struct priv_head *head, size_t len, priv_reply_fn *fn,
                   void *arg, struct err *err)
{
    return request_with(c, &(struct message){head, len, -1}, fn, arg, err);
}

int priv_client_create(struct priv_client *c, const struct plan *plan, priv_reply_fn *fn, void *arg,
                       struct err *err)
{
    static struct priv_create m;
    size_t len = plan_wire_size(plan);
    m.head.type = PRIV_CREATE;
    memcpy(&m.plan, plan, len);
    return request(c, &m.head, offsetof(struct priv_create, plan) + len, fn, arg, err);
}

int priv_client_ask_about(struct priv_client *c, enum priv_type type, const char *name,
                          priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_name m = {.head = {.type = type}};
    (void)snprintf(m.name, sizeof(m.name), "%s", name);
    return request(c, &m.head, sizeof(m), fn, arg, err);
}

int priv_client_update(struct priv_client *c, const char *name, const struct cgroup_limits *limits,
                       priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_update m = {.of = {.head = {.type = PRIV_UPDATE}}, .limits = *limits};
    (void)snprintf(m.of.name, sizeof(m.of.name), "%s", name);
    return request(c, &m.of.head, sizeof(m), fn, arg, err);
}

int priv_client_listen(struct priv_client *c, const char *name, uint16_t port, priv_reply_fn *fn,
                       void *arg, struct err *err)
{
    struct priv_listen m = {.of.head.type = PRIV_LISTEN, .port = port};
    (void)snprintf(m.of.name, sizeof(m.of.name), "%s", name);
    return request(c, &m.of.head, sizeof(m), fn, arg, err);
}

int priv_client_ask(struct priv_client *c, enum priv_type type, priv_reply_fn *fn, void *arg,
                    struct err *err)
{
    struct priv_head head = {.type = type};
    return request(c, &head, sizeof(head), fn, arg, err);
}

int priv_client_job(struct priv_client *c, const struct priv_job_request *request_job,
                    priv_reply_fn *fn, void *arg, struct err *err)
{
    bool copies = request_job->source != NULL, bound = request_job->bound;
    struct priv_copy m = {.source_root = request_job->source_root,
                          .manifest_root = request_job->manifest_root};
    struct priv_job *job = &m.as.job;
    *job = (struct priv_job){.head = {.type = copies  ? PRIV_COPY
                                              : bound ? PRIV_JOB_AS
                                                      : PRIV_JOB},
                             .root = request_job->root,
                             .create = request_job->create,
                             .seconds = request_job->seconds};
    m.as.bound = bound;
    m.as.uid = request_job->uid;
    if (str_copy(job->path, sizeof(job->path), request_job->path) < 0 ||
        (copies && (str_copy(m.source, sizeof(m.source), request_job->source) < 0 ||
                    str_copy(m.manifest, sizeof(m.manifest), request_job->manifest) < 0)))
        return err_set(err, ERR_INVALID, "the path of a directory is too long");
    return request(c, &job->head,
                   copies  ? sizeof(m)
                   : bound ? sizeof(m.as)
                           : sizeof(*job),
                   fn, arg, err);
}

int priv_client_place(struct priv_client *c, int sock, const char *path, priv_reply_fn *fn,
                      void *arg, struct err *err)
{
    struct priv_place m = {.head = {.type = PRIV_PLACE}};
    if (str_copy(m.path, sizeof(m.path), path) < 0)
        return err_set(err, ERR_INVALID, "the path of a directory is too long");
    return request_with(c, &(struct message){&m.head, sizeof(m), sock}, fn, arg, err);
}

int priv_client_bind(struct priv_client *c, const struct priv_bind_request *b, priv_reply_fn *fn,
                     void *arg, struct err *err)
{
    struct priv_bind m = {.head = {.type = PRIV_BIND},
                          .index = b->index,
                          .root = b->root,
                          .flags = b->flags,
                          .uid = b->uid};
    (void)snprintf(m.name, sizeof(m.name), "%s", b->name);
    if (str_copy(m.path, sizeof(m.path), b->path) < 0)
        return err_set(err, ERR_INVALID, "the path of a directory is too long");
    return request(c, &m.head, sizeof(m), fn, arg, err);
}

void priv_client_unbind(struct priv_client *c, const char *name)
{
    struct priv_name m = {.head = {.type = PRIV_UNBIND}};
    if (c->lost)
        return;
    (void)snprintf(m.name, sizeof(m.name), "%s", name);
    (void)send_or_queue(c, &m, sizeof(m), -1);
}

void priv_client_deadline(struct priv_client *c, const char *name, uint64_t boot_ns)
{
    struct priv_deadline m = {.head = {.type = PRIV_DEADLINE}, .boot_ns = boot_ns};
    if (c->lost || c->queued + sizeof(m) > QUEUE_BYTES_MAX)
        return;
    (void)snprintf(m.name, sizeof(m.name), "%s", name);
    (void)send_or_queue(c, &m, sizeof(m), -1);
}
