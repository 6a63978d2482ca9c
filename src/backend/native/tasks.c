/* SPDX-License-Identifier: Apache-2.0 */

/* Commands and managed processes of a native sandbox: the connection to its PID 1, the pipes of
 * commands, and the rings that hold the output of managed processes. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "inside/init_wire.h"
#include "inside/ring.h"

#define READ_CHUNK 65536U
#define FILES_SIZE_MAX (16U << 20) /* of the program */
#define READS_PER_TURN 16          /* then other sessions get their turn */
#define LOOKS_PER_TURN 4

/* What commands and processes have alike. */
struct native_task {
    struct task task;
    int in_fd; /* owned; the pipe or terminal that is its stdin; -1: not started yet, or closed */
    struct loop_io in_io;
    bool in_full; /* the last write did not fit */
    bool crowded; /* it was ended: boxd could not take its descriptors */
};

/* One readable descriptor of an exec: a pipe, or its terminal. */
struct native_output {
    struct native_exec *exec; /* the one it is part of */
    enum exec_stream stream;
    int fd; /* owned, -1 when closed */
    struct loop_io io;
};

struct native_exec {
    struct native_task base;
    struct native_output out[2];
};

struct native_proc {
    struct native_task base;
    struct ring_reader ring; /* its output lies in memory that PID 1 writes */
    bool started;            /* the ring is there */
    bool midline;            /* PID 1 knows that a write has begun */
    bool memory_open;        /* its memory limit could not be set */
    /* What PID 1 is to be told as soon as it reads. */
    bool send_room, send_kill;
    int send_signo;
    struct loop_defer again, room;
};

static struct native_sandbox *home_of(const struct task *t) /* or NULL */
{
    return t->home == NULL ? NULL : container_of(t->home, struct native_sandbox, tasks);
}

static struct native_task *task_of(struct task *t)
{
    return container_of(t, struct native_task, task);
}

static struct native_exec *exec_of(struct task *t)
{
    return container_of(t, struct native_exec, base.task);
}

static struct native_proc *proc_of(struct task *t)
{
    return container_of(t, struct native_proc, base.task);
}

static int send_kill(struct task *t, uint32_t type, int signo, bool tree)
{
    struct init_kill m = {
        .type = type, .id = t->id, .scope = tree ? INIT_KILL_TREE : INIT_KILL_MAIN, .signo = signo};
    return native_send(home_of(t), &m, sizeof(m));
}

/* Stdin. */

static void stdin_close(struct native_task *n)
{
    loop_io_stop(&n->in_io);
    fd_close_many(&n->in_fd, 1);
}

static void on_writable(struct loop_io *io, uint32_t events)
{
    struct native_task *n = container_of(io, struct native_task, in_io);
    struct task *t = &n->task;
    n->in_full = false;
    task_flush(t);
    if (!n->in_full)
        loop_io_stop(io);
    task_drained(t);
    task_settle(t);
}

static ssize_t stdin_write(struct task *t, const char *data, size_t len)
{
    struct native_task *in = task_of(t);
    ssize_t n;
    if (in->in_fd < 0)
        return -EAGAIN; /* not started yet */
    do
        n = write(in->in_fd, data, len);
    while (n < 0 && errno == EINTR);
    if (n >= 0 || errno != EAGAIN)
        return n < 0 ? -errno : n;
    in->in_full = true;
    if (in->in_io.loop == NULL)
        (void)loop_io_start(t->loop, &in->in_io, in->in_fd, EPOLLOUT, on_writable);
    return -EAGAIN;
}

static void stdin_open(struct native_task *n, int fd) /* which is taken */
{
    n->in_fd = fd;
    if (n->task.in_state == TASK_STDIN_CLOSED || (fd >= 0 && fd_set_nonblock(fd, true) < 0))
        stdin_close(n);
    task_flush(&n->task);
}

/* Commands: output. */

static void close_output(struct native_output *o)
{
    loop_io_stop(&o->io);
    fd_close_many(&o->fd, 1);
}

static bool output_open(const struct task *t)
{
    const struct native_exec *e = container_of(t, const struct native_exec, base.task);
    return e->out[0].fd >= 0 || e->out[1].fd >= 0;
}

static void on_output(struct loop_io *io, uint32_t events)
{
    static char chunk[READ_CHUNK];
    struct native_output *o = container_of(io, struct native_output, io);
    struct task *t = &o->exec->base.task;
    bool hung_up = false;
    t->busy++;
    for (int i = 0; i < READS_PER_TURN && o->fd >= 0 && (!t->paused || !task_hears(t)); i++) {
        ssize_t n = read(o->fd, chunk, sizeof(chunk));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        /* A terminal says EIO when the last process has closed it. The kernel looks for input first
         * and for that after, so what was written in between is still there: ask once more. */
        if (n < 0 && errno == EIO && !hung_up) {
            hung_up = true;
            continue;
        }
        if (n <= 0) {
            close_output(o);
            break;
        }
        task_output(t, o->stream, chunk, (size_t)n);
    }
    t->busy--;
    task_settle(t);
}

/* Without a sandbox no more follows than the pipes hold. */
static void read_output(struct task *t)
{
    struct native_exec *e = exec_of(t);
    for (int i = 0; i < 2; i++) {
        if (e->out[i].fd >= 0)
            on_output(&e->out[i].io, 0);
        if (t->home == NULL)
            close_output(&e->out[i]);
    }
}

static void watch_output(struct task *t)
{
    struct native_exec *e = exec_of(t);
    for (int i = 0; i < 2; i++) {
        struct native_output *o = &e->out[i];
        if (t->paused)
            loop_io_stop(&o->io);
        else if (o->fd >= 0 && o->io.loop == NULL &&
                 loop_io_start(t->loop, &o->io, o->fd, EPOLLIN, on_output) < 0)
            close_output(o);
    }
}

static int exec_close_stdin(struct task *t)
{
    stdin_close(task_of(t));
    return 0;
}

static void exec_send_kill(struct task *t, int signo, bool tree)
{
    (void)send_kill(t, INIT_MSG_KILL, signo, tree);
}

static void resize(struct task *t, uint16_t rows, uint16_t cols)
{
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    int terminal = task_of(t)->in_fd; /* or a pipe, which has no size */
    if (terminal >= 0)
        (void)ioctl(terminal, TIOCSWINSZ, &size);
}

static void exec_free(struct task *t)
{
    free(exec_of(t));
}

static const struct task_ops exec_ops = {
    .write = stdin_write,
    .close_stdin = exec_close_stdin,
    .kill = exec_send_kill,
    .read = read_output,
    .open = output_open,
    .pause = watch_output,
    .resize = resize,
    .free = exec_free,
};

/* Commands: start and end. */

/* The session runs a sealed copy, which a change of the file does not reach. */
static int load_files(struct native *n, struct err *err)
{
    const char *path = n->options.files_program;
    if (n->files_fd >= 0)
        return 0;
    if (path == NULL)
        return err_set(err, ERR_UNSUPPORTED, "there is no %s beside boxd", NATIVE_FILES);
    n->files_fd = fd_sealed_program(NATIVE_FILES, path, FILES_SIZE_MAX);
    return n->files_fd < 0 ? err_sys(err, -n->files_fd, "load '%s'", path) : 0;
}

static int send_request(struct native_sandbox *sb, struct init_exec *head,
                        const struct exec_request *req, struct err *err)
{
    AUTO_DONE(buf) struct buf message;
    AUTO_CLOSE int memfd = -1;
    buf_init(&message, sizeof(*head) + INSIDE_STRINGS_MAX);
    int r = buf_append(&message, head, sizeof(*head));
    if (r == 0)
        r = native_pack(&message, head, req, sb->env, sb->workdir);
    if (r < 0)
        return err_set(err, ERR_LIMIT,
                       "command, arguments and environment are larger than %u MiB in all",
                       INSIDE_STRINGS_MAX >> 20);
    size_t len = message.len;
    if (head->strings_len > INIT_INLINE_MAX) {
        memfd = fd_sealed_memfd("box-exec", message.data + sizeof(*head), head->strings_len);
        if (memfd < 0)
            return err_sys(err, -memfd, "pass the command");
        head->flags |= INIT_EXEC_MEMFD;
        len = sizeof(*head);
    }
    memcpy(message.data, head, sizeof(*head));
    int fds[2];
    size_t n_fds = 0;
    if (memfd >= 0)
        fds[n_fds++] = memfd;
    if (req->files)
        fds[n_fds++] = sb->native->files_fd;
    ssize_t n = fd_send_msg(sb->conn, message.data, len, fds, n_fds, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == -EAGAIN)
        return err_set(err, ERR_LIMIT,
                       "too many commands are being started in this session; try again");
    return n < 0 ? err_sys(err, (int)-n, "ask the sandbox's first process") : 0;
}

static struct task *exec_start(struct tasks *home, const struct exec_request *req, struct err *err)
{
    struct native_sandbox *sb = container_of(home, struct native_sandbox, tasks);
    struct init_exec head = {
        .type = INIT_MSG_EXEC,
        .id = sb->next_exec++,
        .flags = (req->with_stdin ? INIT_EXEC_STDIN : 0) | (req->tty ? INIT_EXEC_TTY : 0) |
                 (req->posture ? INIT_EXEC_POSTURE : 0) | (req->files ? INIT_EXEC_PROGRAM : 0),
        .timeout_ns = req->timeout_ns,
        .rows = req->rows,
        .cols = req->cols,
        .nproc = sb->pids,
    };
    if (req->label != NULL)
        (void)str_copy(head.label, sizeof(head.label), req->label); /* one too long is none */
    int r = req->files ? load_files(sb->native, err) : 0;
    if (r == 0)
        r = send_request(sb, &head, req, err);
    if (r < 0)
        return NULL;
    struct native_exec *e = xnew(struct native_exec);
    e->base.task.ops = &exec_ops;
    e->base.task.id = head.id;
    e->base.in_fd = -1;
    for (int i = 0; i < 2; i++)
        e->out[i] = (struct native_output){.exec = e, .stream = (enum exec_stream)i, .fd = -1};
    return &e->base.task;
}

static void on_exec_started(struct native_sandbox *sb, const struct init_started *m, int *fds,
                            size_t n_fds)
{
    struct task *t = task_find(&sb->tasks.execs, m->id);
    if (t == NULL || t->state != TASK_RUNNING || output_open(t))
        return;
    struct native_exec *e = exec_of(t);
    if (n_fds < (t->tty ? 1U : 2U)) { /* its output would be lost */
        e->base.crowded = true;
        task_exec_kill(&t->exec);
        return;
    }
    int in = -1;
    e->out[0].fd = TAKE_FD(fds[0]);
    if (t->tty)
        in = fcntl(e->out[0].fd, F_DUPFD_CLOEXEC, 3);
    else
        e->out[1].fd = TAKE_FD(fds[1]);
    if (!t->tty && n_fds >= 3)
        in = TAKE_FD(fds[2]);
    for (int i = 0; i < 2; i++)
        if (e->out[i].fd >= 0 && fd_set_nonblock(e->out[i].fd, true) < 0)
            close_output(&e->out[i]);
    watch_output(t);
    stdin_open(&e->base, in);
    task_drained(t);
    task_settle(t);
}

static struct outcome outcome_of(const struct init_exited *m, bool crowded)
{
    struct outcome o;
    if (crowded)
        return (struct outcome){.kind = OUTCOME_EXITED,
                                .exit_code = 126,
                                .error = "boxd has no file descriptor left for its output"};
    backend_outcome(&o, &m->end);
    return o;
}

static void on_exec_exited(struct native_sandbox *sb, const struct init_exited *m)
{
    bool ended =
        (m->end.flags & (INSIDE_EXITED_TIMEOUT | INSIDE_EXITED_OOM | INSIDE_EXITED_KILLED)) != 0;
    struct task *t = task_find(&sb->tasks.execs, m->id);
    if (t == NULL || t->state != TASK_RUNNING)
        return;
    struct outcome o = outcome_of(m, task_of(t)->crowded);
    o.unended = ended && m->end.remaining > 0;
    task_exec_exited(t, &o);
}

/* Managed processes: what PID 1 has to know of goes now, or when it reads again. */

static int forget(struct task *t)
{
    struct native_proc *p = proc_of(t);
    struct init_number m = {.type = INIT_MSG_PROC_FORGET, .id = t->id};
    loop_defer_stop(&p->again);
    loop_defer_stop(&p->room);
    return native_send(home_of(t), &m, sizeof(m));
}

static void proc_send_kill(struct task *t, int signo, bool tree)
{
    struct native_proc *p = proc_of(t);
    int r = send_kill(t, INIT_MSG_PROC_KILL, signo, tree);
    if (tree)
        p->send_kill = r == -EAGAIN;
    else
        p->send_signo = r == -EAGAIN ? signo : 0;
}

static void tell_room(struct native_proc *p)
{
    struct init_number m = {.type = INIT_MSG_PROC_ROOM, .id = p->base.task.id};
    if (p->base.task.home != NULL)
        p->send_room = native_send(home_of(&p->base.task), &m, sizeof(m)) == -EAGAIN;
}

static void on_room(struct loop_defer *d)
{
    tell_room(container_of(d, struct native_proc, room));
}

/* A managed process outlives boxd: the next boxd must not go on in the middle of a line that this
 * one was writing. A write that the kernel does whole or not at all needs nothing for that. Before
 * any other PID 1 is told that a line has begun, and afterwards that it is whole; the next daemon
 * ends the line if the second message never came. */

static int tell_stdin(struct native_proc *p, enum init_stdin_op op)
{
    struct init_stdin m = {.type = INIT_MSG_PROC_STDIN, .id = p->base.task.id, .op = op};
    struct native_sandbox *sb = home_of(&p->base.task);
    return sb == NULL ? -EPIPE : native_send(sb, &m, sizeof(m));
}

static void tell_whole(struct native_proc *p)
{
    if (p->midline && p->base.task.in.len == 0 && tell_stdin(p, INIT_STDIN_WHOLE) != -EAGAIN)
        p->midline = false;
}

static ssize_t proc_write(struct task *t, const char *data, size_t len)
{
    struct native_proc *p = proc_of(t);
    /* PID 1 reads in order: once this is sent, it is known before any next daemon's greeting. */
    if (len > PIPE_BUF && !p->midline && p->base.in_fd >= 0) {
        int r = tell_stdin(p, INIT_STDIN_MIDLINE);
        if (r < 0)
            return r;
        p->midline = true;
    }
    ssize_t n = stdin_write(t, data, len);
    if (n == (ssize_t)len && p->midline && tell_stdin(p, INIT_STDIN_WHOLE) != -EAGAIN)
        p->midline = false;
    return n;
}

/* Our end, and the one that PID 1 keeps. */
static int proc_close_stdin(struct task *t)
{
    struct native_proc *p = proc_of(t);
    bool wanted = t->user == TASK_TAKEN && t->state == TASK_RUNNING;
    if (wanted && !p->started)
        return -EAGAIN;
    stdin_close(&p->base);
    return wanted ? tell_stdin(p, INIT_STDIN_CLOSE) : 0;
}

static void proc_free(struct task *t)
{
    struct native_proc *p = proc_of(t);
    loop_defer_stop(&p->again);
    loop_defer_stop(&p->room);
    stdin_close(&p->base);
    ring_reader_done(&p->ring);
    free(p);
}

static void read_last(struct task *t)
{
    (void)ring_reader_look(&proc_of(t)->ring);
}

/* Managed processes: output. */

static struct proc_range proc_range(const struct task *t)
{
    const struct native_proc *p = container_of(t, const struct native_proc, base.task);
    bool over = p->started ? p->ring.eof || t->home == NULL : t->state != TASK_RUNNING;
    return (struct proc_range){
        .begin = ring_reader_begin(&p->ring), .end = p->ring.end, .eof = over};
}

/* Passes on what there is, until PID 1 is to tell of more. Others get their turn before one that
 * writes without end goes on. False when the ring makes no sense. */
static bool look(struct native_proc *p);

static void on_again(struct loop_defer *d)
{
    struct native_proc *p = container_of(d, struct native_proc, again);
    struct native_sandbox *sb = home_of(&p->base.task); /* its user may free p while it looks */
    if (sb != NULL && !look(p))
        native_lose(sb);
}

static bool look(struct native_proc *p)
{
    struct task *t = &p->base.task;
    int r = 1;
    t->busy++;
    for (int i = 0; i < LOOKS_PER_TURN && r > 0 && t->user != TASK_FREED; i++) {
        r = ring_reader_wait(&p->ring);
        if (r > 0)
            task_proc_output(t);
    }
    if (r > 0 && t->user != TASK_FREED)
        loop_defer_start(t->loop, &p->again, on_again);
    t->busy--;
    task_settle(t);
    return r >= 0;
}

/* Of one that was started or found: from the loop, like all that its user is told. */
static void tell_all_later(struct task *t)
{
    task_proc_later(t);
    if (proc_of(t)->started)
        loop_defer_start(t->loop, &proc_of(t)->again, on_again);
}

static ssize_t proc_read(struct task *t, uint64_t from, char *buf, size_t size)
{
    const struct native_proc *p = proc_of(t);
    if (!p->started)
        return from == 0 ? 0 : -ERANGE;
    return ring_read(&p->ring, from, buf, size);
}

static void proc_release(struct task *t, uint64_t until)
{
    struct native_proc *p = proc_of(t);
    /* Told once per turn of the loop, however many lines it was. */
    if (ring_reader_release(&p->ring, until) > 0)
        loop_defer_start(t->loop, &p->room, on_room);
}

static size_t proc_stderr(struct task *t, char *buf, size_t size)
{
    return ring_read_err(&proc_of(t)->ring, buf, size);
}

static size_t proc_stderr_from(struct task *t, uint64_t *at, char *buf, size_t size)
{
    return ring_read_err_from(&proc_of(t)->ring, at, buf, size);
}

static const struct task_ops proc_ops = {
    .write = proc_write,
    .close_stdin = proc_close_stdin,
    .kill = proc_send_kill,
    .resize = resize,
    .read = read_last,
    .free = proc_free,
    .adopted = tell_all_later,
    .forget = forget,
    .range = proc_range,
    .read_out = proc_read,
    .release = proc_release,
    .read_err = proc_stderr,
    .read_err_from = proc_stderr_from,
};

/* Managed processes: start and end. */

static struct task *proc_new(uint32_t number)
{
    struct native_proc *p = xnew(struct native_proc);
    p->base.task.ops = &proc_ops;
    p->base.task.id = number;
    p->base.in_fd = -1;
    return &p->base.task;
}

static struct task *proc_start(struct tasks *home, const struct proc_request *req, struct err *err)
{
    struct native_sandbox *sb = container_of(home, struct native_sandbox, tasks);
    const struct priv_host *host = priv_client_host(sb->native->priv);
    unsigned known = 0;
    const struct task *t;
    int r = 0;
    LIST_FOREACH (t, &home->procs, entry)
        known++;
    if (req->number == 0 || task_find(&home->procs, req->number) != NULL)
        r = err_set(err, ERR_INVALID, "managed process %u is there already", req->number);
    else if (known >= INIT_PROCS_MAX)
        r = err_set(err, ERR_LIMIT, "%u managed processes are in this session already", known);
    else if (req->memory_bytes > 0 && sb->native->facts.require_limits &&
             !host->enforced[CGROUP_MEMORY])
        r = err_set(err, ERR_UNSUPPORTED, "limits are required but cannot be enforced here: %s",
                    host->why[CGROUP_MEMORY]);
    struct init_exec head = {.type = INIT_MSG_PROC,
                             .id = req->number,
                             .flags = (req->log ? INIT_EXEC_LOG : 0) |
                                      (req->with_stdin ? INIT_EXEC_STDIN : 0) |
                                      (req->tty ? INIT_EXEC_TTY : 0),
                             .rows = req->rows,
                             .cols = req->cols,
                             .nproc = sb->pids,
                             .memory_bytes = req->memory_bytes};
    const struct exec_request exec = {
        .argv = req->argv, .env = req->env, .cwd = req->cwd, .tty = req->tty};
    (void)str_fmt(head.label, sizeof(head.label), "%u", req->number);
    if (r == 0)
        r = send_request(sb, &head, &exec, err);
    return r < 0 ? NULL : proc_new(req->number);
}

/* NULL: its user has freed it meanwhile. */
static struct native_proc *find_live(struct native_sandbox *sb, uint32_t number)
{
    struct task *t = task_find(&sb->tasks.procs, number);
    return t == NULL || t->user == TASK_FREED ? NULL : proc_of(t);
}

static struct task *proc_adopt(struct tasks *home, uint32_t number)
{
    struct task *t = task_find(&home->procs, number);
    return t == NULL || t->user != TASK_UNTAKEN ? NULL : t;
}

static void open_stdin(struct native_proc *p, int fd, bool midline)
{
    p->midline = midline;
    if (midline)
        (void)buf_append(&p->base.task.in, "\n", 1); /* of what the last daemon left unfinished */
    stdin_open(&p->base, fd);
}

static bool on_proc_exited(struct native_sandbox *sb, const struct init_exited *m)
{
    struct native_proc *p = find_live(sb, m->id);
    if (p != NULL) {
        struct outcome o = outcome_of(m, p->base.crowded);
        task_proc_exited(&p->base.task, &o);
    }
    return true;
}

static bool on_proc_state(struct native_sandbox *sb, const struct init_state *m, int *fds,
                          size_t n_fds)
{
    if (task_find(&sb->tasks.procs, m->id) == NULL && sb->adopting && m->id != 0)
        task_proc_init(proc_new(m->id), &sb->tasks);
    struct native_proc *p = find_live(sb, m->id);
    if (p == NULL)
        return true;
    if (p->started)
        return false;
    if (n_fds == 0) { /* its output would be lost */
        p->base.crowded = true;
        task_proc_kill(&p->base.task.proc);
        return true;
    }
    p->base.task.log = (m->flags & INIT_STATE_LOG) != 0;
    if (ring_reader_init(&p->ring, fds[0], m->begin, p->base.task.log) < 0)
        return false;
    p->started = true;
    p->memory_open = (m->flags & INIT_STATE_MEMORY_OPEN) != 0;
    if (p->memory_open)
        log_warn(NULL,
                 "managed process %u of sandbox %s: its memory limit cannot be enforced here; "
                 "ignoring",
                 p->base.task.id, sb->name);
    if (n_fds > 1)
        open_stdin(p, TAKE_FD(fds[1]), (m->flags & INIT_STATE_MIDLINE) != 0);
    else
        task_proc_close_stdin(&p->base.task.proc);
    if (p->base.task.user == TASK_TAKEN)
        tell_all_later(&p->base.task);
    return (m->flags & INIT_STATE_EXITED) == 0 || on_proc_exited(sb, &m->exited);
}

static bool on_proc_output(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = find_live(sb, number);
    return p == NULL || !p->started || look(p);
}

static bool on_proc_gone(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = find_live(sb, number);
    if (p != NULL)
        task_proc_gone(&p->base.task);
    return true;
}

void native_flush(struct native_sandbox *sb)
{
    (void)loop_io_events(&sb->conn_io, EPOLLIN);
    struct task *t, *next;
    LIST_FOREACH_SAFE (t, &sb->tasks.procs, entry, next) {
        struct native_proc *p = proc_of(t);
        if (t->user >= TASK_ENDING) {
            task_settle(t);
            continue;
        }
        if (p->send_signo != 0)
            proc_send_kill(t, p->send_signo, false);
        if (p->send_kill)
            proc_send_kill(t, SIGKILL, true);
        if (p->send_room)
            tell_room(p);
        task_flush(t);
        tell_whole(p);
        if (t->in_held_back && t->in.len == 0)
            task_proc_later(t);
    }
}

void native_proc_end_untaken(struct native_sandbox *sb)
{
    struct task *t, *next;
    LIST_FOREACH_SAFE (t, &sb->tasks.procs, entry, next)
        if (t->user == TASK_UNTAKEN)
            task_proc_free(&t->proc);
}

/* Managed processes whose own memory limit is only that of the session. */
void native_proc_write_unenforced(struct jw *w, const struct native_sandbox *sb)
{
    jw_karray(w, "process_memory_unenforced");
    struct task *t;
    LIST_FOREACH (t, &sb->tasks.procs, entry)
        if (proc_of(t)->memory_open)
            jw_u64(w, t->id);
    jw_array_end(w);
}

static bool is_ready(const struct tasks *home)
{
    const struct native_sandbox *sb = container_of(home, const struct native_sandbox, tasks);
    return sb->state == NATIVE_READY && !sb->lost;
}

static void lose_sandbox(struct tasks *home)
{
    struct native_sandbox *sb = container_of(home, struct native_sandbox, tasks);
    log_warn(NULL, "sandbox %s does not end a program that it is to end; removing it", sb->name);
    native_lose(sb);
}

static int list_processes(struct tasks *home, uint32_t look, uint32_t after)
{
    struct init_list m = {.type = INIT_MSG_LIST, .id = look, .after = after};
    return native_send(container_of(home, struct native_sandbox, tasks), &m, sizeof(m));
}

static int end_left(struct tasks *home, const char *label)
{
    struct init_end_left m = {.type = INIT_MSG_END_LEFT};
    (void)str_copy(m.label, sizeof(m.label), label);
    return native_send(container_of(home, struct native_sandbox, tasks), &m, sizeof(m));
}

static bool on_listed(struct native_sandbox *sb, const struct init_listed *m, size_t len)
{
    size_t head = offsetof(struct init_listed, rows);
    if (len < head || m->n > INSIDE_LIST_MAX || len != head + m->n * sizeof(m->rows[0]))
        return false;
    looks_answer(&sb->tasks, m->id, m->rows, m->n, m->error);
    return true;
}

const struct tasks_ops native_tasks_ops = {
    .execs_max = INIT_EXECS_MAX,
    .ready = is_ready,
    .exec_start = exec_start,
    .proc_start = proc_start,
    .proc_adopt = proc_adopt,
    .lose = lose_sandbox,
    .list = list_processes,
    .end_left = end_left,
};

bool native_on_message(struct native_sandbox *sb, const union native_message *m, size_t len,
                       bool room, int *fds, size_t n_fds)
{
    if (m->type == INIT_MSG_STARTED && (len == sizeof(m->started) || !room))
        on_exec_started(sb, &m->started, fds, n_fds);
    else if (m->type == INIT_MSG_PROC_STATE && (len == sizeof(m->state) || !room))
        return on_proc_state(sb, &m->state, fds, n_fds);
    else if (m->type == INIT_MSG_CONNECTED && (len == sizeof(m->connected) || !room))
        return native_on_connected(sb, &m->connected, fds, n_fds);
    else if (!room)
        return false;
    else if (m->type == INIT_MSG_EXITED && len == sizeof(m->exited))
        on_exec_exited(sb, &m->exited);
    else if (m->type == INIT_MSG_PROC_OUTPUT && len == sizeof(m->number))
        return on_proc_output(sb, m->number.id);
    else if (m->type == INIT_MSG_PROC_EXITED && len == sizeof(m->exited))
        return on_proc_exited(sb, &m->exited);
    else if (m->type == INIT_MSG_PROC_GONE && len == sizeof(m->number))
        return on_proc_gone(sb, m->number.id);
    else if (m->type == INIT_MSG_LISTED)
        return on_listed(sb, &m->listed, len);
    else if (m->type == INIT_MSG_PROC_END && len == sizeof(m->number))
        native_on_listed(sb);
    else
        return false;
    return true;
}
