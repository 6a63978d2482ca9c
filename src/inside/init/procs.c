/* SPDX-License-Identifier: Apache-2.0 */

/* Managed processes. Their output is read here, whether a boxd is there or not, into a ring that
 * the next one finds again; a full ring stops the reading, and so the process. What boxd is to know
 * follows from the fields of struct proc: nothing is queued. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/init/init.h"

#define READS_PER_TURN 16
#define SHORT_READ 4096        /* less than this has emptied the pipe */
#define STARVED_NS 50000000ULL /* without memory for the ring: until the next try */

static struct cell *cell_of(struct init *in, const struct proc *p)
{
    return &in->cells[INIT_EXECS_MAX + (size_t)(p - in->procs)];
}

static struct proc *find(struct init *in, uint32_t number)
{
    for (unsigned i = 0; number != 0 && i < in->procs_top; i++)
        if (in->procs[i].number == number)
            return &in->procs[i];
    return NULL;
}

static void proc_done(struct proc *p)
{
    int fds[] = {p->ring_fd, p->in_fd, p->out_fd, p->err_fd};
    fd_close_many(fds, 4);
    ring_writer_done(&p->ring);
    *p = (struct proc){0};
}

/* A place that is free, with a cell whose last processes are gone. */
static int acquire(struct init *in, struct proc **ret_proc, struct cell **ret_cell)
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

static int start(struct init *in, const struct exec_request *req)
{
    struct wires w;
    struct cell *c = NULL;
    struct proc *p = NULL;
    struct ring_writer ring;

    int r = acquire(in, &p, &c);
    if (r < 0)
        return r;
    r = cell_limit_memory(in, c, req->head.memory_bytes);
    bool memory_open = r < 0 && req->head.memory_bytes > 0;
    int ring_fd = ring_writer_init(&ring);
    if (ring_fd < 0)
        return ring_fd;
    r = wires_open(in, &req->head, &w);
    if (r == 0 && (fd_set_nonblock(w.ours[0], true) < 0 || fd_set_nonblock(w.ours[1], true) < 0)) {
        wires_close(&w);
        r = -EIO;
    }
    if (r == 0) {
        r = wires_start(in, c, req, &w);
        int theirs[] = {w.child.in, w.child.out, w.child.err};
        fd_close_many(theirs, 3);
        if (r < 0)
            fd_close_many(w.ours, 3);
    }
    if (r < 0) {
        ring_writer_done(&ring);
        (void)close(ring_fd);
        return r;
    }
    *p = (struct proc){.number = req->head.id,
                       .ring_fd = ring_fd,
                       .out_fd = w.ours[0],
                       .err_fd = w.ours[1],
                       .in_fd = w.ours[2],
                       .ring = ring,
                       .memory_open = memory_open};
    return 0;
}

void procs_start(struct init *in, const struct exec_request *req)
{
    struct exec_request plain = *req;
    if (req->head.id == 0 || find(in, req->head.id) != NULL) {
        serve_refuse(in, &req->head, INIT_STAGE_REQUEST, EEXIST);
        return;
    }
    plain.head.flags = (req->head.flags & (INIT_EXEC_MEMFD | INIT_EXEC_SCRIPT)) | INIT_EXEC_STDIN;
    plain.head.timeout_ns = 0;
    int r = start(in, &plain);
    if (r < 0)
        serve_refuse(in, &req->head, INIT_STAGE_LIMIT, -r);
}

void procs_stdin(struct init *in, const struct init_stdin *m)
{
    struct proc *p = find(in, m->id);
    if (p == NULL)
        return;
    p->midline = m->op == INIT_STDIN_MIDLINE;
    if (m->op == INIT_STDIN_CLOSE)
        fd_close_many(&p->in_fd, 1);
}

void procs_kill(struct init *in, const struct init_kill *m)
{
    struct proc *p = find(in, m->id);
    struct cell *c = p == NULL ? NULL : cell_of(in, p);
    if (c == NULL || c->state == CELL_FREE)
        return;
    if (m->scope == INIT_KILL_TREE) {
        if (c->state == CELL_RUNNING)
            c->result.flags |= INIT_EXITED_KILLED;
        (void)cell_kill_tree(in, c);
    } else if (c->state == CELL_RUNNING && m->signo > 0 && m->signo < NSIG) {
        (void)kill(c->pid, m->signo);
    }
}

void procs_forget(struct init *in, uint32_t number)
{
    struct init_number none = {.type = INIT_MSG_PROC_GONE, .id = number};
    struct proc *p = find(in, number);
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
    struct proc *p = &in->procs[cell_index(in, c) - INIT_EXECS_MAX];
    cell_move(c, CELL_LINGER);
    if (p->number == 0)
        return; /* forgotten while it ran */
    p->exited = true;
    p->result = c->result;
    p->result.type = INIT_MSG_PROC_EXITED;
    p->midline = false;
    fd_close_many(&p->in_fd, 1);
}

void procs_new_peer(struct init *in)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct proc *p = &in->procs[i];
        p->announced = p->exit_told = false;
        cell_of(in, p)->forgotten = 0; /* who asked is gone */
        if (p->number != 0)
            ring_reader_left(&p->ring);
    }
}

static bool announce(struct init *in, struct proc *p)
{
    struct init_state m = {.type = INIT_MSG_PROC_STATE,
                           .id = p->number,
                           .flags = (p->exited ? INIT_STATE_EXITED : 0) |
                                    (p->midline ? INIT_STATE_MIDLINE : 0) |
                                    (p->memory_open ? INIT_STATE_MEMORY_OPEN : 0),
                           .begin = ring_released(&p->ring),
                           .exited = p->result};
    const int fds[] = {p->ring_fd, p->in_fd};
    if (!serve_send(in, &m, sizeof(m), fds, p->in_fd >= 0 ? 2 : 1))
        return false;
    p->announced = true;
    p->exit_told = p->exited;
    return true;
}

bool procs_list(struct init *in)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct proc *p = &in->procs[i];
        if (p->number != 0 && !p->announced && !announce(in, p))
            return false;
    }
    return true;
}

static bool tell_output(struct init *in, struct proc *p)
{
    struct init_number m = {.type = INIT_MSG_PROC_OUTPUT, .id = p->number};
    if (!ring_must_tell(&p->ring))
        return true;
    if (!serve_send(in, &m, sizeof(m), NULL, 0))
        return false;
    ring_told(&p->ring);
    return true;
}

void procs_flush(struct init *in)
{
    if (!procs_list(in))
        return;
    for (unsigned i = 0; i < in->procs_top; i++) {
        struct proc *p = &in->procs[i];
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
        struct proc *p = &in->procs[i];
        if (p->number == 0)
            continue;
        if (p->starved_ns > now) {
            *next = p->starved_ns < *next ? p->starved_ns : *next;
            continue;
        }
        if (p->out_fd >= 0 && ring_room(&p->ring) > 0)
            fds[n++] = (struct pollfd){.fd = p->out_fd, .events = POLLIN};
        if (p->err_fd >= 0)
            fds[n++] = (struct pollfd){.fd = p->err_fd, .events = POLLIN};
    }
    return n;
}

static void drain(struct proc *p, int *fd, ssize_t (*fill)(struct ring_writer *w, int fd))
{
    ssize_t n = SHORT_READ;
    for (int i = 0; i < READS_PER_TURN && n >= SHORT_READ; i++)
        n = fill(&p->ring, *fd);
    if (n == 0)
        fd_close_many(fd, 1);
    else if (n < 0 && n != -EAGAIN && n != -ENOBUFS)
        p->starved_ns = init_now() + STARVED_NS;
}

void procs_ready(struct init *in, const struct pollfd *fds, size_t n)
{
    size_t at = 0;
    for (unsigned i = 0; i < in->procs_top && at < n; i++) {
        struct proc *p = &in->procs[i];
        if (p->number == 0)
            continue;
        if (p->out_fd >= 0 && fds[at].fd == p->out_fd && fds[at++].revents != 0)
            drain(p, &p->out_fd, ring_fill_out);
        if (at < n && p->err_fd >= 0 && fds[at].fd == p->err_fd && fds[at++].revents != 0)
            drain(p, &p->err_fd, ring_fill_err);
    }
}
