/* SPDX-License-Identifier: Apache-2.0 */

/* The control connection of box-init to boxd: receives orders, sends starts and exits, and keeps
 * the output of managed processes. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "inside/clone.h"
#include "inside/init/init.h"

#define READS_PER_TURN 16
#define SHORT_READ 4096        /* less than this has emptied the pipe */
#define STARVED_NS 50000000ULL /* without memory for the ring: until the next try */

union message {
    uint32_t type;
    struct init_hello hello;
    struct init_exec exec;
    struct init_kill kill;
    struct init_number number;
    struct init_stdin in;
    struct init_connect connect;
    struct init_list list;
    struct init_end_left left;
    char bytes[sizeof(struct init_exec) + INIT_INLINE_MAX];
};

/* A peer that makes no sense is not listened to until it introduces itself again. */
static void drop_peer(struct init *in)
{
    in->talk = TALK_NONE;
    in->blocked = false;
}

/* Sends one message; false when it has to be tried again: later, or never to this peer. */
static bool serve_send(struct init *in, const void *data, size_t len, const int *fds, size_t n_fds)
{
    ssize_t n = fd_send_msg(in->conn_fd, data, len, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0)
        return true;
    if (n == -EAGAIN)
        in->blocked = true; /* the main loop tries again */
    else
        drop_peer(in);
    return false;
}

void serve_tell(struct init *in, struct cell *c)
{
    if (c->orphan || (in->talk == TALK_OPEN && !in->blocked &&
                      serve_send(in, &c->result, sizeof(c->result), NULL, 0)))
        cell_move(c, CELL_LINGER);
}

/* If a program could not be started, boxd still gets one EXITED for it. */
static void serve_refuse(struct init *in, const struct init_exec *head, enum inside_stage stage,
                         int error)
{
    struct init_exited out = {.type = head->type == INIT_MSG_PROC ? INIT_MSG_PROC_EXITED
                                                                  : INIT_MSG_EXITED,
                              .id = head->id,
                              .end = {.stage = stage, .error = error}};
    if (fd_send_msg(in->conn_fd, &out, sizeof(out), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        drop_peer(in);
}

/* Managed processes. Their output is read here, whether a boxd is there or not, into a ring that
 * the next one finds again; a full ring stops the reading, and so the process. What boxd is to know
 * follows from the fields of struct init_proc: nothing is queued. */

static struct cell *cell_of(struct init *in, const struct init_proc *p)
{
    return &in->cells[INIT_EXECS_MAX + (size_t)(p - in->procs)];
}

static struct init_proc *proc_find(struct init *in, uint32_t number)
{
    for (unsigned i = 0; number != 0 && i < in->procs_top; i++)
        if (in->procs[i].number == number)
            return &in->procs[i];
    return NULL;
}

static void proc_done(struct init_proc *p)
{
    int fds[] = {p->ring_fd, p->in_fd, p->out_fd, p->err_fd};
    fd_close_many(fds, 4);
    ring_writer_done(&p->ring);
    *p = (struct init_proc){0};
}

/* A place that is free, with a cell whose last processes are gone. */
static int proc_acquire(struct init *in, struct init_proc **ret_proc, struct cell **ret_cell)
{
    for (unsigned i = 0; i < INIT_PROCS_MAX; i++) {
        if (in->procs[i].number != 0)
            continue;
        int r = cell_acquire_at(in, INIT_EXECS_MAX + i, ret_cell);
        if (r == -EAGAIN)
            continue;
        if (r < 0)
            return r;
        in->procs_top = i + 1 > in->procs_top ? i + 1 : in->procs_top;
        *ret_proc = &in->procs[i];
        return 0;
    }
    return -EAGAIN;
}

/* A terminal is read from and written to by two descriptors: the second one is its stdin. */
static int proc_open_streams(const struct init *in, const struct init_exec *head, struct streams *w)
{
    bool tty = (head->flags & INIT_EXEC_TTY) != 0;
    int r = cell_open_streams(in, head, w);
    if (r < 0)
        return r;
    if (tty)
        w->ours[2] = fcntl(w->ours[0], F_DUPFD_CLOEXEC, 3);
    if ((tty && w->ours[2] < 0) || fd_set_nonblock(w->ours[0], true) < 0 ||
        (!tty && fd_set_nonblock(w->ours[1], true) < 0)) {
        streams_close(w);
        return -EIO;
    }
    return 0;
}

static int proc_start(struct init *in, const struct init_request *req)
{
    struct streams w;
    struct cell *c = NULL;
    struct init_proc *p = NULL;
    struct ring_writer ring;
    int r = proc_acquire(in, &p, &c);
    if (r < 0)
        return r;
    assert(p != NULL && c != NULL);
    r = cell_limit_memory(in, c, req->head.memory_bytes);
    bool memory_open = r < 0 && req->head.memory_bytes > 0;
    int ring_fd = ring_writer_init(&ring);
    if (ring_fd < 0)
        return ring_fd;
    r = proc_open_streams(in, &req->head, &w);
    if (r == 0) {
        r = cell_start(in, c, req, &w.child);
        streams_close_child(&w);
        if (r < 0)
            fd_close_many(w.ours, 3);
    }
    if (r < 0) {
        ring_writer_done(&ring);
        (void)close(ring_fd);
        return r;
    }
    *p = (struct init_proc){.number = req->head.id,
                            .ring_fd = ring_fd,
                            .out_fd = w.ours[0],
                            .err_fd = w.ours[1],
                            .in_fd = w.ours[2],
                            .ring = ring,
                            .log = (req->head.flags & INIT_EXEC_LOG) != 0,
                            .memory_open = memory_open};
    return 0;
}

static void procs_start(struct init *in, const struct init_request *req)
{
    struct init_request plain = *req;
    if (req->head.id == 0 || proc_find(in, req->head.id) != NULL) {
        serve_refuse(in, &req->head, INSIDE_STAGE_REQUEST, EEXIST);
        return;
    }
    uint32_t asked = INIT_EXEC_MEMFD | INIT_EXEC_SCRIPT;
    if ((req->head.flags & INIT_EXEC_LOG) != 0)
        plain.head.flags &= asked | INIT_EXEC_LOG | INIT_EXEC_STDIN | INIT_EXEC_TTY;
    else
        plain.head.flags = (req->head.flags & asked) | INIT_EXEC_STDIN;
    plain.head.timeout_ns = 0;
    int r = proc_start(in, &plain);
    if (r < 0)
        serve_refuse(in, &req->head, INSIDE_STAGE_LIMIT, -r);
}

static void procs_stdin(struct init *in, const struct init_stdin *m)
{
    struct init_proc *p = proc_find(in, m->id);
    if (p == NULL)
        return;
    p->midline = m->op == INIT_STDIN_MIDLINE;
    if (m->op == INIT_STDIN_CLOSE)
        fd_close_many(&p->in_fd, 1);
}

/* A whole tree, or a signal to the main process and, of a command, to its group. */
static void cell_kill(struct init *in, struct cell *c, const struct init_kill *m, bool group)
{
    if (m->scope == INIT_KILL_TREE) {
        if (c->state == CELL_RUNNING)
            c->result.end.flags |= INSIDE_EXITED_KILLED;
        (void)cell_kill_tree(in, c);
    } else if (c->state == CELL_RUNNING && group) {
        supervisor_signal(c->pid, m->signo);
    } else if (c->state == CELL_RUNNING && m->signo > 0 && m->signo < NSIG) {
        (void)kill(c->pid, m->signo);
    }
}

static void procs_kill(struct init *in, const struct init_kill *m)
{
    struct init_proc *p = proc_find(in, m->id);
    struct cell *c = p == NULL ? NULL : cell_of(in, p);
    if (c != NULL && c->state != CELL_FREE)
        cell_kill(in, c, m, false);
}

static void procs_forget(struct init *in, uint32_t number)
{
    struct init_number none = {.type = INIT_MSG_PROC_GONE, .id = number};
    struct init_proc *p = proc_find(in, number);
    if (p == NULL) {
        (void)serve_send(in, &none, sizeof(none), NULL, 0);
        return;
    }
    struct cell *c = cell_of(in, p);
    if (c->state == CELL_RUNNING || !cell_empty(c))
        (void)cell_kill_tree(in, c);
    c->forgotten = number;
    proc_done(p);
}

bool procs_gone(struct init *in, struct cell *c)
{
    struct init_number m = {.type = INIT_MSG_PROC_GONE, .id = c->forgotten};
    if (c->forgotten == 0)
        return true;
    if (in->blocked || !cell_empty(c) || !serve_send(in, &m, sizeof(m), NULL, 0))
        return false;
    c->forgotten = 0;
    return true;
}

void procs_exited(struct init *in, struct cell *c)
{
    struct init_proc *p = &in->procs[cell_index(in, c) - INIT_EXECS_MAX];
    cell_move(c, CELL_LINGER);
    if (p->number == 0)
        return; /* forgotten while it ran */
    p->exited = true;
    p->result = c->result;
    p->result.type = INIT_MSG_PROC_EXITED;
    p->midline = false;
    fd_close_many(&p->in_fd, 1);
}

static void procs_new_peer(struct init *in)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct init_proc *p = &in->procs[i];
        p->announced = p->exit_told = false;
        cell_of(in, p)->forgotten = 0; /* the boxd that asked is gone */
        if (p->number != 0)
            ring_reader_left(&p->ring);
    }
}

static bool proc_announce(struct init *in, struct init_proc *p)
{
    struct init_state m = {
        .type = INIT_MSG_PROC_STATE,
        .id = p->number,
        .flags = (p->exited ? INIT_STATE_EXITED : 0) | (p->midline ? INIT_STATE_MIDLINE : 0) |
                 (p->memory_open ? INIT_STATE_MEMORY_OPEN : 0) | (p->log ? INIT_STATE_LOG : 0),
        .begin = ring_released(&p->ring),
        .exited = p->result};
    const int fds[] = {p->ring_fd, p->in_fd};
    if (!serve_send(in, &m, sizeof(m), fds, p->in_fd >= 0 ? 2 : 1))
        return false;
    p->announced = true;
    p->exit_told = p->exited;
    return true;
}

static bool procs_list(struct init *in)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct init_proc *p = &in->procs[i];
        if (p->number != 0 && !p->announced && !proc_announce(in, p))
            return false;
    }
    return true;
}

static bool tell_output(struct init *in, struct init_proc *p)
{
    struct init_number m = {.type = INIT_MSG_PROC_OUTPUT, .id = p->number};
    if (!ring_must_tell(&p->ring))
        return true;
    if (!serve_send(in, &m, sizeof(m), NULL, 0))
        return false;
    ring_told(&p->ring);
    return true;
}

static void procs_flush(struct init *in)
{
    if (!procs_list(in))
        return;
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct init_proc *p = &in->procs[i];
        if (p->number == 0)
            continue;
        if (!tell_output(in, p))
            return;
        if (p->exited && !p->exit_told) {
            if (!serve_send(in, &p->result, sizeof(p->result), NULL, 0))
                return;
            p->exit_told = true;
        }
    }
}

size_t procs_poll(struct init *in, struct pollfd *fds, uint64_t now, uint64_t *next)
{
    size_t n = 0;
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct init_proc *p = &in->procs[i];
        if (p->number == 0)
            continue;
        if (p->starved_ns > now) {
            *next = p->starved_ns < *next ? p->starved_ns : *next;
            continue;
        }
        if (p->out_fd >= 0 && (p->log || ring_room(&p->ring) > 0))
            fds[n++] = (struct pollfd){.fd = p->out_fd, .events = POLLIN};
        if (p->err_fd >= 0)
            fds[n++] = (struct pollfd){.fd = p->err_fd, .events = POLLIN};
    }
    return n;
}

static ssize_t proc_fill(struct init_proc *p, int fd, uint32_t stream)
{
    if (p->log)
        return ring_fill_log(&p->ring, fd, stream);
    return stream == 0 ? ring_fill_out(&p->ring, fd) : ring_fill_err(&p->ring, fd);
}

static void proc_drain(struct init_proc *p, int *fd, uint32_t stream)
{
    ssize_t n = SHORT_READ;
    for (int i = 0; i < READS_PER_TURN && n >= SHORT_READ; i++)
        n = proc_fill(p, *fd, stream);
    /* A terminal says EIO when the last process has closed it; what was written just before is
     * still there. */
    if (n == -EIO)
        n = proc_fill(p, *fd, stream);
    if (n == 0 || n == -EIO)
        fd_close_many(fd, 1);
    else if (n < 0 && n != -EAGAIN && n != -ENOBUFS)
        p->starved_ns = supervisor_now() + STARVED_NS;
    if (p->log && p->out_fd < 0 && p->err_fd < 0)
        ring_end_log(&p->ring);
}

void procs_ready(struct init *in, const struct pollfd *fds, size_t n)
{
    size_t at = 0;
    for (unsigned i = 0; i < in->procs_top && at < n; i++) {
        struct init_proc *p = &in->procs[i];
        if (p->number == 0)
            continue;
        if (p->out_fd >= 0 && fds[at].fd == p->out_fd && fds[at++].revents != 0)
            proc_drain(p, &p->out_fd, 0);
        if (at < n && p->err_fd >= 0 && fds[at].fd == p->err_fd && fds[at++].revents != 0)
            proc_drain(p, &p->err_fd, 1);
    }
}

/* Orders. */

static void exec_start(struct init *in, const struct init_request *req)
{
    const struct init_exec *head = &req->head;
    struct streams w;
    struct cell *c = NULL;
    int r = cell_acquire(in, &c);
    if (r >= 0)
        r = cell_open_streams(in, head, &w);
    if (r < 0) {
        serve_refuse(in, head, INSIDE_STAGE_LIMIT, -r);
        return;
    }
    pid_t pid = cell_start(in, c, req, &w.child);
    if (pid < 0) {
        streams_close(&w);
        serve_refuse(in, head, INSIDE_STAGE_LIMIT, -pid);
        return;
    }
    struct init_started started = {.type = INIT_MSG_STARTED, .id = head->id};
    ssize_t n = fd_send_msg(in->conn_fd, &started, sizeof(started), w.ours, w.n_ours,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
    streams_close(&w);
    if (n < 0) {
        /* boxd did not get the other ends: its output would never be read. */
        (void)cell_kill_tree(in, c);
        drop_peer(in);
    }
}

static void serve_exec(struct init *in, const union message *m, size_t len, const int *fds,
                       size_t n_fds)
{
    struct init_request req = {.head = m->exec, .memfd = -1, .program = -1};
    const struct init_exec *head = &m->exec;
    if (len < sizeof(*head)) {
        drop_peer(in);
        return;
    }
    bool by_memfd = (head->flags & INIT_EXEC_MEMFD) != 0;
    bool by_program = (head->flags & INIT_EXEC_PROGRAM) != 0;
    if (n_fds != (size_t)by_memfd + by_program ||
        !inside_start_fits(head->argc, head->envc, head->strings_len) ||
        (!by_memfd && len != sizeof(*head) + head->strings_len)) {
        serve_refuse(in, head, INSIDE_STAGE_REQUEST, EBADMSG);
        return;
    }
    if (by_memfd)
        req.memfd = fds[0];
    else
        req.strings = m->bytes + sizeof(*head);
    if (by_program)
        req.program = fds[n_fds - 1];
    if (head->type == INIT_MSG_PROC)
        procs_start(in, &req);
    else
        exec_start(in, &req);
}

static void serve_kill(struct init *in, const union message *m, size_t len)
{
    if (len != sizeof(m->kill)) {
        drop_peer(in);
        return;
    }
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++) {
        struct cell *c = &in->cells[i];
        if (c->id != m->kill.id || c->state == CELL_FREE)
            continue;
        cell_kill(in, c, &m->kill, true);
        return;
    }
}

/* Commands of an earlier boxd are ended, because no boxd waits for them. What such a command had
 * left in the background stays, as ever. */
static void end_orphans(struct init *in)
{
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++) {
        struct cell *c = &in->cells[i];
        if (c->id != 0) /* one that was never used is not written to */
            c->id = 0;  /* the next boxd counts from the beginning */
        if (c->state != CELL_RUNNING && c->state != CELL_DONE)
            continue;
        c->orphan = true;
        if (c->state == CELL_RUNNING)
            (void)cell_kill_tree(in, c);
    }
}

/* Opens the files that the first command will open. Its view of the image is new, so that each name
 * must be looked up in the layers below: done here, while the client reads that its session is
 * ready. A name that does not exist costs nothing; one that would block is not waited for. */
static void open_first_names(void)
{
    static const char *const names[] = {
        "/bin/sh",
#if defined(__x86_64__)
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libc.so.6",
#elif defined(__aarch64__)
        "/lib/ld-linux-aarch64.so.1",
        "/lib/aarch64-linux-gnu/libc.so.6",
#endif
        "/etc/ld.so.cache",
        "/usr/lib/locale/C.utf8/LC_CTYPE",
        "/etc/profile",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int fd = openat(AT_FDCWD, names[i], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd >= 0)
            (void)close(fd);
    }
}

static void serve_hello(struct init *in, const union message *m, size_t len)
{
    if (len != sizeof(m->hello) || m->hello.version != INIT_WIRE_VERSION) {
        drop_peer(in);
        return;
    }
    bool first = in->epoch == 0;
    if (m->hello.epoch != in->epoch)
        end_orphans(in);
    in->epoch = m->hello.epoch;
    in->talk = TALK_ANSWER;
    procs_new_peer(in);
    serve_flush(in);
    cell_prepare(in);
    if (first)
        open_first_names();
}

void serve_flush(struct init *in)
{
    struct init_hello hello = {
        .type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION, .epoch = in->epoch};
    struct init_number end = {.type = INIT_MSG_PROC_END};
    in->blocked = false;
    if (in->talk == TALK_ANSWER && serve_send(in, &hello, sizeof(hello), NULL, 0))
        in->talk = TALK_LIST;
    if (in->talk == TALK_LIST && procs_list(in) && serve_send(in, &end, sizeof(end), NULL, 0))
        in->talk = TALK_OPEN;
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++)
        if (in->cells[i].state == CELL_DONE && in->cells[i].settle_ns == 0)
            serve_tell(in, &in->cells[i]);
    if (in->talk == TALK_OPEN && !in->blocked)
        procs_flush(in);
}

/* Messages about one managed process that have a fixed size. */
static bool serve_proc(struct init *in, const union message *m, size_t len)
{
    if (m->type == INIT_MSG_PROC_ROOM && len == sizeof(m->number))
        return true; /* it has woken us, and each turn looks for room */
    if (m->type == INIT_MSG_PROC_STDIN && len == sizeof(m->in))
        procs_stdin(in, &m->in);
    else if (m->type == INIT_MSG_PROC_KILL && len == sizeof(m->kill))
        procs_kill(in, &m->kill);
    else if (m->type == INIT_MSG_PROC_FORGET && len == sizeof(m->number))
        procs_forget(in, m->number.id);
    else
        return false;
    return true;
}

/* Nothing is kept of it here: whether the connection succeeds is for boxd to see, and an answer
 * that boxd has no room for is not repeated. */
static void serve_connect(struct init *in, const union message *m, size_t len)
{
    if (len != sizeof(m->connect)) {
        drop_peer(in);
        return;
    }
    struct init_connected out = {.type = INIT_MSG_CONNECTED, .id = m->connect.id};
    AUTO_CLOSE int fd = supervisor_connect(m->connect.port, m->connect.ipv6 != 0);
    out.error = fd < 0 ? -fd : 0;
    ssize_t n = fd_send_msg(in->conn_fd, &out, sizeof(out), &fd, fd >= 0 ? 1 : 0,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && n != -EAGAIN)
        drop_peer(in);
}

static void serve_list(struct init *in, const struct init_list *m)
{
    static struct init_listed out;
    out = (struct init_listed){.type = INIT_MSG_LISTED, .id = m->id};
    cells_list(in, m->after, &out);
    size_t len = offsetof(struct init_listed, rows) + out.n * sizeof(out.rows[0]);
    ssize_t n = fd_send_msg(in->conn_fd, &out, len, NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && n != -EAGAIN)
        drop_peer(in);
}

/* What is about processes of all kinds. */
static bool serve_look(struct init *in, union message *m, size_t len)
{
    if (m->type == INIT_MSG_LIST && len == sizeof(m->list)) {
        serve_list(in, &m->list);
    } else if (m->type == INIT_MSG_END_LEFT && len == sizeof(m->left)) {
        m->left.label[sizeof(m->left.label) - 1] = '\0';
        cells_end_left(in, m->left.label);
    } else {
        return false;
    }
    return true;
}

void serve_message(struct init *in)
{
    static union message m;
    int fds[4];
    size_t n_fds = 4;
    ssize_t n = fd_recv_msg(in->conn_fd, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
    if (n == 0)
        child_exit(125); /* box-priv holds the other end for as long as it lives */
    if (n < (ssize_t)sizeof(m.type)) {
        if (n != -EAGAIN)
            drop_peer(in);
        return;
    }
    if (m.type == INIT_MSG_HELLO)
        serve_hello(in, &m, (size_t)n);
    else if (in->talk == TALK_NONE)
        drop_peer(in);
    else if (m.type == INIT_MSG_EXEC || m.type == INIT_MSG_PROC)
        serve_exec(in, &m, (size_t)n, fds, n_fds);
    else if (m.type == INIT_MSG_KILL)
        serve_kill(in, &m, (size_t)n);
    else if (m.type == INIT_MSG_CONNECT)
        serve_connect(in, &m, (size_t)n);
    else if (!serve_proc(in, &m, (size_t)n) && !serve_look(in, &m, (size_t)n))
        drop_peer(in);
    fd_close_many(fds, n_fds);
}
