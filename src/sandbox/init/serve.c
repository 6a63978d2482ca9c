/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/clone.h"
#include "sandbox/init/init.h"
#include "util/fd.h"

union message {
    uint32_t type;
    struct init_hello hello;
    struct init_exec exec;
    struct init_kill kill;
    char bytes[sizeof(struct init_exec) + INIT_INLINE_MAX];
};

/* A peer that makes no sense is not listened to until it introduces itself again. */
static void drop_peer(struct init *in)
{
    in->hello = false;
}

void serve_tell(struct init *in, struct cell *c)
{
    if (!in->hello)
        return;
    ssize_t n = fd_send_msg(in->conn_fd, &c->result, sizeof(c->result), NULL, 0,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == -EAGAIN)
        return; /* the main loop tries again */
    if (n < 0) {
        drop_peer(in);
        return;
    }
    cell_move(c, CELL_LINGER);
}

/* An exec that never became a process still gets its one EXITED. */
static void refuse(struct init *in, uint32_t id, enum init_stage stage, int error)
{
    struct init_exited out = {.type = INIT_MSG_EXITED, .id = id, .stage = stage, .error = error};
    if (fd_send_msg(in->conn_fd, &out, sizeof(out), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        drop_peer(in);
}

/* Both ends of what connects an exec to boxd. */
struct wires {
    struct child_stdio child;
    int ours[3];
    size_t n_ours;
};

static void wires_close(struct wires *w)
{
    int child[4] = {w->child.in, w->child.out, w->child.err, w->child.tty};
    fd_close_many(child, 4);
    fd_close_many(w->ours, 3);
}

static int open_tty(const struct init_exec *head, struct wires *w)
{
    int unlock = 0;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return -errno;
    w->ours[w->n_ours++] = master;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    /* By descriptor, never by the name of the slave. */
    w->child.tty = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (w->child.tty < 0)
        return -errno;
    struct winsize size = {.ws_row = head->rows, .ws_col = head->cols};
    if (size.ws_row > 0 && size.ws_col > 0)
        (void)ioctl(master, TIOCSWINSZ, &size);
    return 0;
}

static int open_pipe(struct wires *w, int *child_end, bool child_reads)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *child_end = ends[child_reads ? 0 : 1];
    w->ours[w->n_ours++] = ends[child_reads ? 1 : 0];
    return 0;
}

/* We end with box-priv. A change of fsuid makes the kernel forget that; and a box-priv that died
 * before it is told again sends nothing. */
static void stay_mortal(void)
{
    struct pollfd parent = {.fd = INIT_FD_PARENT, .events = POLLIN};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&parent, 1, 0) != 0)
        child_exit(125);
}

/* The inodes belong to the payload, so that it may open /dev/stdout and /dev/tty by name. */
static int wires_open(const struct init *in, const struct init_exec *head, struct wires *w)
{
    *w = (struct wires){.child = {-1, -1, -1, -1}, .ours = {-1, -1, -1}};
    if (in->config.switch_uid) {
        (void)setfsuid(in->config.payload_uid);
        (void)setfsgid(in->config.payload_gid);
    }
    int r;
    if (head->flags & INIT_EXEC_TTY) {
        r = open_tty(head, w);
    } else {
        r = open_pipe(w, &w->child.out, false);
        if (r == 0)
            r = open_pipe(w, &w->child.err, false);
        if (r == 0 && (head->flags & INIT_EXEC_STDIN))
            r = open_pipe(w, &w->child.in, true);
    }
    if (in->config.switch_uid) {
        (void)setfsuid(geteuid());
        (void)setfsgid(getegid());
        stay_mortal();
    }
    if (r < 0)
        wires_close(w);
    return r;
}

static void start(struct init *in, const struct exec_request *req)
{
    const struct init_exec *head = &req->head;
    struct wires w;
    struct cell *c = NULL;

    int r = cell_acquire(in, &c);
    if (r >= 0)
        r = wires_open(in, head, &w);
    if (r < 0) {
        refuse(in, head->id, INIT_STAGE_LIMIT, -r);
        return;
    }
    uint64_t now = init_now();
    pid_t pid = clone_process(0, c->cgroup_fd, NULL);
    if (pid == 0)
        exec_child(in, c, req, &w.child);
    if (pid < 0) {
        wires_close(&w);
        refuse(in, head->id, INIT_STAGE_LIMIT, -pid);
        return;
    }
    cell_move(c, CELL_RUNNING);
    c->id = head->id;
    c->pid = pid;
    c->started_ns = now;
    c->deadline_ns = head->timeout_ns > 0 ? now + head->timeout_ns : 0;
    c->result = (struct init_exited){.type = INIT_MSG_EXITED, .id = head->id};

    struct init_started started = {.type = INIT_MSG_STARTED, .id = head->id};
    ssize_t n = fd_send_msg(in->conn_fd, &started, sizeof(started), w.ours, w.n_ours,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
    wires_close(&w);
    if (n < 0) {
        /* Nobody will ever read this one's output. */
        (void)cell_kill_tree(in, c);
        drop_peer(in);
    }
}

static void serve_exec(struct init *in, const union message *m, size_t len, const int *fds,
                       size_t n_fds)
{
    struct exec_request req = {.head = m->exec, .memfd = -1};
    const struct init_exec *head = &m->exec;

    if (len < sizeof(*head)) {
        drop_peer(in);
        return;
    }
    bool by_memfd = (head->flags & INIT_EXEC_MEMFD) != 0;
    if (by_memfd != (n_fds == 1) || n_fds > 1 || head->strings_len == 0 ||
        head->strings_len > INIT_STRINGS_MAX || head->argc == 0 || head->argc > head->strings_len ||
        head->envc > head->strings_len || (!by_memfd && len != sizeof(*head) + head->strings_len)) {
        refuse(in, head->id, INIT_STAGE_REQUEST, EBADMSG);
        return;
    }
    if (by_memfd)
        req.memfd = fds[0];
    else
        req.strings = m->bytes + sizeof(*head);
    start(in, &req);
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
        if (m->kill.scope == INIT_KILL_TREE) {
            if (c->state == CELL_RUNNING)
                c->result.flags |= INIT_EXITED_KILLED;
            (void)cell_kill_tree(in, c);
        } else if (c->state == CELL_RUNNING && m->kill.signo > 0 && m->kill.signo < NSIG) {
            /* The process leads its own group; what a terminal would reach, we reach. */
            if (kill(-c->pid, m->kill.signo) < 0)
                (void)kill(c->pid, m->kill.signo);
        }
        return;
    }
}

static void serve_hello(struct init *in, const union message *m, size_t len)
{
    struct init_hello answer = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION};
    if (len != sizeof(m->hello) || m->hello.version != INIT_WIRE_VERSION ||
        fd_send_msg(in->conn_fd, &answer, sizeof(answer), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT) <
            0) {
        drop_peer(in);
        return;
    }
    in->hello = true;
    cell_prepare(in);
}

void serve_message(struct init *in)
{
    static union message m;
    int fds[4];
    size_t n_fds = 4;

    ssize_t n = fd_recv_msg(in->conn_fd, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
    if (n < (ssize_t)sizeof(m.type)) {
        if (n != -EAGAIN)
            drop_peer(in);
        return;
    }
    if (!in->hello && m.type != INIT_MSG_HELLO) {
        drop_peer(in);
    } else if (m.type == INIT_MSG_HELLO) {
        serve_hello(in, &m, (size_t)n);
    } else if (m.type == INIT_MSG_EXEC) {
        serve_exec(in, &m, (size_t)n, fds, n_fds);
    } else if (m.type == INIT_MSG_KILL) {
        serve_kill(in, &m, (size_t)n);
    } else {
        drop_peer(in);
    }
    fd_close_many(fds, n_fds);
}
