/* SPDX-License-Identifier: Apache-2.0 */

/* The control connection of box-init to boxd: receives orders, sends starts, exits and output. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/clone.h"
#include "inside/init/init.h"

union message {
    uint32_t type;
    struct init_hello hello;
    struct init_exec exec;
    struct init_kill kill;
    struct init_number number;
    struct init_stdin in;
    char bytes[sizeof(struct init_exec) + INIT_INLINE_MAX];
};

/* A peer that makes no sense is not listened to until it introduces itself again. */
static void drop_peer(struct init *in)
{
    in->talk = TALK_NONE;
    in->blocked = false;
}

bool serve_send(struct init *in, const void *data, size_t len, const int *fds, size_t n_fds)
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

/* A program that never became a process still gets its one EXITED. */
void serve_refuse(struct init *in, const struct init_exec *head, enum init_stage stage, int error)
{
    struct init_exited out = {.type = head->type == INIT_MSG_PROC ? INIT_MSG_PROC_EXITED
                                                                  : INIT_MSG_EXITED,
                              .id = head->id,
                              .stage = stage,
                              .error = error};
    if (fd_send_msg(in->conn_fd, &out, sizeof(out), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        drop_peer(in);
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
        serve_refuse(in, head, INIT_STAGE_LIMIT, -r);
        return;
    }
    pid_t pid = wires_start(in, c, req, &w);
    if (pid < 0) {
        wires_close(&w);
        serve_refuse(in, head, INIT_STAGE_LIMIT, -pid);
        return;
    }
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
    struct exec_request req = {.head = m->exec, .memfd = -1, .program = -1};
    const struct init_exec *head = &m->exec;

    if (len < sizeof(*head)) {
        drop_peer(in);
        return;
    }
    bool by_memfd = (head->flags & INIT_EXEC_MEMFD) != 0;
    bool by_program = (head->flags & INIT_EXEC_PROGRAM) != 0;
    if (n_fds != (size_t)by_memfd + by_program || head->strings_len == 0 ||
        head->strings_len > INIT_STRINGS_MAX || head->argc == 0 || head->argc > head->strings_len ||
        head->envc > head->strings_len || (!by_memfd && len != sizeof(*head) + head->strings_len)) {
        serve_refuse(in, head, INIT_STAGE_REQUEST, EBADMSG);
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

/* What an earlier boxd ran has nobody any more who could be told of it. What such a command had
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

static void serve_hello(struct init *in, const union message *m, size_t len)
{
    if (len != sizeof(m->hello) || m->hello.version != INIT_WIRE_VERSION) {
        drop_peer(in);
        return;
    }
    if (m->hello.epoch != in->epoch)
        end_orphans(in);
    in->epoch = m->hello.epoch;
    in->talk = TALK_ANSWER;
    procs_new_peer(in);
    serve_flush(in);
    cell_prepare(in);
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

/* What is about one managed process and has a fixed size. */
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
    else if (!serve_proc(in, &m, (size_t)n))
        drop_peer(in);
    fd_close_many(fds, n_fds);
}
