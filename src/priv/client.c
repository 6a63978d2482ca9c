/* SPDX-License-Identifier: Apache-2.0 */

/* Sends requests to box-priv from the loop and dispatches its answers. */

#include "priv/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "loop/loop.h"
#include "priv/client_internal.h"

#define PENDING_MAX 16384U
#define QUEUE_BYTES_MAX                                                                            \
    (16U << 20) /* of plans that wait for box-priv; what ends a sandbox always goes */

struct pending {
    uint32_t id; /* 0: free */
    priv_reply_fn *fn;
    void *arg;
};

struct outgoing {
    struct outgoing *next;
    int fd; /* owned; goes with it, -1: none */
    size_t len;
    char data[];
};

struct priv_client {
    struct loop *loop;
    struct priv_conn conn;
    bool lost;
    struct loop_io io, pid_io;
    struct outgoing *first, *last; /* owned */
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
    struct outgoing *o = c->first;
    c->first = o->next;
    if (c->first == NULL)
        c->last = NULL;
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
static int send_or_queue(struct priv_client *c, const void *data, size_t len, int fd)
{
    ssize_t n = -EAGAIN;
    if (c->first == NULL)
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
        ssize_t n = fd_send_msg(c->conn.sock, c->first->data, c->first->len, &c->first->fd,
                                c->first->fd >= 0, MSG_NOSIGNAL | MSG_DONTWAIT);
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
    while (c->first != NULL)
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

pid_t priv_client_pid(const struct priv_client *c)
{
    return c->conn.pid;
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

int priv_client_held(struct priv_client *c, const char *name, priv_reply_fn *fn, void *arg,
                     struct err *err)
{
    return request_by_name(c, PRIV_HELD, name, fn, arg, err);
}

int priv_client_quota(struct priv_client *c, const char *name, priv_reply_fn *fn, void *arg,
                      struct err *err)
{
    return request_by_name(c, PRIV_QUOTA, name, fn, arg, err);
}

int priv_client_adopt(struct priv_client *c, const char *name, priv_reply_fn *fn, void *arg,
                      struct err *err)
{
    return request_by_name(c, PRIV_ADOPT, name, fn, arg, err);
}

int priv_client_probe(struct priv_client *c, priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_head head = {.type = PRIV_PROBE};
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

int priv_client_sweep(struct priv_client *c, priv_reply_fn *fn, void *arg, struct err *err)
{
    struct priv_head head = {.type = PRIV_SWEEP};
    return request(c, &head, sizeof(head), fn, arg, err);
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
