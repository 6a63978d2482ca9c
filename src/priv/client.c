/* SPDX-License-Identifier: Apache-2.0 */
#include "priv/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/loop.h"
#include "sandbox/clone.h"
#include "util/alloc.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/str.h"
#include "util/strv.h"

#define HELLO_TIMEOUT_MS 20000
#define PENDING_MAX 16384U
#define CHILD_SOCK 3
#define QUEUE_BYTES_MAX                                                                            \
    (16U << 20) /* of plans that wait for box-priv; what ends a sandbox always goes */

struct pending {
    uint32_t id; /* 0: free */
    priv_reply_fn *fn;
    void *arg;
};

struct outgoing {
    struct outgoing *next;
    size_t len;
    char data[];
};

struct priv_client {
    struct loop *loop;
    int sock;
    pid_t pid;
    int pidfd;
    bool lost;
    struct loop_io io, pid_io;
    struct outgoing *first, *last; /* owned */
    size_t queued;                 /* bytes */
    struct priv_host host;
    priv_gone_fn *gone;
    void *gone_arg;
    struct pending *pending; /* owned, dense */
    size_t n_pending, cap_pending;
    uint32_t next_id;
};

static _Noreturn void exec_helper(const struct priv_client_options *o, int sock)
{
    char uid[16], gid[16], sock_text[8];
    AUTO_STRV char **argv = NULL;
    sigset_t none;

    (void)snprintf(uid, sizeof(uid), "%u", o->uid);
    (void)snprintf(gid, sizeof(gid), "%u", o->gid);
    (void)snprintf(sock_text, sizeof(sock_text), "%d", CHILD_SOCK);
    const char *const fixed[] = {"box-priv", "--sock", sock_text, "--state",       o->state_dir,
                                 "--tag",    o->tag,   "--init",  o->init_program, "--uid",
                                 uid,        "--gid",  gid};
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        strv_add(&argv, fixed[i]);
    if (o->fetch_program != NULL) {
        strv_add(&argv, "--fetch");
        strv_add(&argv, o->fetch_program);
    }
    for (size_t i = 0; o->roots != NULL && o->roots[i] != NULL; i++) {
        strv_add(&argv, "--root");
        strv_add(&argv, o->roots[i]);
    }
    (void)setsid(); /* a Ctrl-C is for boxd, which then tells us */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (sock == CHILD_SOCK ? fcntl(sock, F_SETFD, 0) < 0 : dup3(sock, CHILD_SOCK, 0) < 0)
        child_exit(1);
    (void)execv(o->program, argv);
    (void)dprintf(STDERR_FILENO, "cannot run '%s': %s\n", o->program, err_errno_text(errno));
    child_exit(127);
}

static void dispatch(struct priv_client *c, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    for (size_t i = 0; i < c->n_pending; i++) {
        if (c->pending[i].id != reply->head.id)
            continue;
        struct pending p = c->pending[i];
        c->pending[i] = c->pending[--c->n_pending];
        p.fn(p.arg, reply, fds, n_fds);
        return;
    }
}

static void drop_first(struct priv_client *c)
{
    struct outgoing *o = c->first;
    c->first = o->next;
    if (c->first == NULL)
        c->last = NULL;
    c->queued -= o->len;
    free(o);
}

static void lose(struct priv_client *c)
{
    if (c->lost)
        return;
    c->lost = true;
    loop_io_stop(&c->io);
    loop_io_stop(&c->pid_io);
    while (c->first != NULL)
        drop_first(c);
    while (c->n_pending > 0) {
        struct pending p = c->pending[--c->n_pending];
        p.fn(p.arg, NULL, NULL, 0);
    }
    if (c->gone != NULL)
        c->gone(c->gone_arg);
}

/* Never blocks: box-priv may wait for us to read its answers just now. */
static int send_or_queue(struct priv_client *c, const void *data, size_t len)
{
    ssize_t n = -EAGAIN;
    if (c->first == NULL)
        n = fd_send_msg(c->sock, data, len, NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n != -EAGAIN)
        return n < 0 ? (int)n : 0;
    struct outgoing *o = xcalloc(1, sizeof(*o) + len);
    o->len = len;
    memcpy(o->data, data, len);
    if (c->last != NULL)
        c->last->next = o;
    else
        c->first = o;
    c->last = o;
    c->queued += len;
    return loop_io_events(&c->io, EPOLLIN | EPOLLOUT);
}

static void flush_queue(struct priv_client *c)
{
    while (c->first != NULL) {
        ssize_t n = fd_send_msg(c->sock, c->first->data, c->first->len, NULL, 0,
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
        ssize_t n = fd_recv_msg(c->sock, &reply, sizeof(reply), fds, &n_fds, MSG_DONTWAIT);
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
    (void)events;
    lose(container_of(io, struct priv_client, pid_io));
}

/* The helper opens everything it will ever need before it answers; a failure has been logged by it.
 */
static int say_hello(struct priv_client *c, struct err *err)
{
    struct priv_hello hello = {.head = {PRIV_HELLO, 0}, .version = PRIV_WIRE_VERSION};
    struct pollfd p = {.fd = c->sock, .events = POLLIN};
    struct priv_reply reply = {0};
    size_t n_fds = 0;
    ssize_t n = fd_send_msg(c->sock, &hello, sizeof(hello), NULL, 0, MSG_NOSIGNAL);
    if (n >= 0 && poll(&p, 1, HELLO_TIMEOUT_MS) == 1)
        n = fd_recv_msg(c->sock, &reply, sizeof(reply), NULL, &n_fds, MSG_DONTWAIT);
    else
        n = 0;
    if (n != (ssize_t)sizeof(reply) || reply.result < 0)
        return err_set(err, ERR_BACKEND, "box-priv did not start; its own message is above");
    c->host = reply.host;
    return 0;
}

int priv_client_new(struct loop *loop, const struct priv_client_options *options,
                    struct priv_client **ret, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_sys(err, errno, "socketpair");
    struct priv_client *c = xnew(struct priv_client);
    c->loop = loop;
    c->sock = pair[0];
    c->pidfd = -1;
    c->next_id = 1;
    c->pid = clone_process(0, -1, &c->pidfd);
    if (c->pid == 0)
        exec_helper(options, pair[1]);
    (void)close(pair[1]);
    int r = c->pid < 0 ? err_sys(err, -c->pid, "start box-priv") : say_hello(c, err);
    if (r == 0) {
        r = loop_io_start(loop, &c->io, c->sock, EPOLLIN, on_socket);
        if (r == 0)
            r = loop_io_start(loop, &c->pid_io, c->pidfd, EPOLLIN, on_helper_exit);
        if (r < 0)
            (void)err_sys(err, -r, "watch box-priv");
    }
    if (r < 0) {
        priv_client_free(c);
        return r;
    }
    *ret = c;
    return 0;
}

void priv_client_free(struct priv_client *c)
{
    if (c == NULL)
        return;
    loop_io_stop(&c->io);
    loop_io_stop(&c->pid_io);
    while (c->first != NULL)
        drop_first(c);
    fd_close_many(&c->sock, 1);
    if (c->pid > 0)
        (void)waitpid(c->pid, NULL, 0);
    fd_close_many(&c->pidfd, 1);
    free(c->pending);
    free(c);
}

void priv_client_on_gone(struct priv_client *c, priv_gone_fn *fn, void *arg)
{
    c->gone = fn;
    c->gone_arg = arg;
}

const struct priv_host *priv_client_host(const struct priv_client *c)
{
    return &c->host;
}

pid_t priv_client_pid(const struct priv_client *c)
{
    return c->pid;
}

static int request(struct priv_client *c, struct priv_head *head, size_t len, priv_reply_fn *fn,
                   void *arg, struct err *err)
{
    if (c->lost)
        return err_set(err, ERR_BACKEND, "box-priv has gone away");
    if (c->n_pending >= PENDING_MAX ||
        (head->type == PRIV_CREATE && c->queued + len > QUEUE_BYTES_MAX))
        return err_set(err, ERR_LIMIT, "too many requests under way; try again");
    if (c->n_pending == c->cap_pending) {
        c->cap_pending = c->cap_pending > 0 ? c->cap_pending * 2 : 64;
        c->pending = xreallocarray(c->pending, c->cap_pending, sizeof(*c->pending));
    }
    head->id = c->next_id++;
    if (c->next_id == 0)
        c->next_id = 1;
    int r = send_or_queue(c, head, len);
    if (r < 0)
        return err_sys(err, -r, "ask box-priv");
    c->pending[c->n_pending++] = (struct pending){head->id, fn, arg};
    return 0;
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

static int request_by_name(struct priv_client *c, enum priv_type type, const char *name,
                           priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_name m = {.head = {.type = type}};
    (void)snprintf(m.name, sizeof(m.name), "%s", name);
    return request(c, &m.head, sizeof(m), fn, arg, err);
}

int priv_client_destroy(struct priv_client *c, const char *name, priv_reply_fn *fn, void *arg,
                        struct err *err)
{
    return request_by_name(c, PRIV_DESTROY, name, fn, arg, err);
}

int priv_client_inspect(struct priv_client *c, const char *name, priv_reply_fn *fn, void *arg,
                        struct err *err)
{
    return request_by_name(c, PRIV_INSPECT, name, fn, arg, err);
}

int priv_client_probe(struct priv_client *c, priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_head head = {.type = PRIV_PROBE};
    return request(c, &head, sizeof(head), fn, arg, err);
}

int priv_client_job(struct priv_client *c, const struct priv_job_request *request_job,
                    priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_job m = {.head = {.type = PRIV_JOB},
                         .root = request_job->root,
                         .create = request_job->create,
                         .seconds = request_job->seconds};
    if (str_copy(m.path, sizeof(m.path), request_job->path) < 0)
        return err_set(err, ERR_INVALID, "the path of a directory is too long");
    return request(c, &m.head, sizeof(m), fn, arg, err);
}
