/* SPDX-License-Identifier: Apache-2.0 */

/* Commands in a native sandbox: sends them to PID 1 and passes their pipes, stdin and end on. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/init_wire.h"
#include "sandbox/plan/plan.h"

/* How long an answer waits for more output once the main process is gone but others still hold the
 * pipes. */
#define DRAIN_NS (50ULL * NSEC_PER_MSEC)
#define READ_CHUNK 65536U
#define FILES_NAME "box-files"
#define FILES_SIZE_MAX (16U << 20) /* of the program */
#define READS_PER_TURN 16          /* then other sessions get their turn */
#define STDIN_QUEUE_MAX                                                                            \
    (16U << 20) /* one message of a client, whole, and what is left before it                      \
                 */
#define STDIN_HIGH_WATER (256U << 10) /* above it the writer is asked to hold back */

static struct native_exec *exec_of(struct exec *e)
{
    return container_of(e, struct native_exec, base);
}

static void unlink_exec(struct native_exec *e)
{
    if (e->sb == NULL)
        return;
    if (e->prev != NULL)
        e->prev->next = e->next;
    else
        e->sb->execs = e->next;
    if (e->next != NULL)
        e->next->prev = e->prev;
    e->sb = NULL;
}

static void close_stdin(struct native_exec *e)
{
    loop_io_stop(&e->in_io);
    fd_close_many(&e->in_fd, 1);
    buf_done(&e->in_queue);
    e->in_pos = 0;
}

static void close_output(struct native_output *o)
{
    loop_io_stop(&o->io);
    fd_close_many(&o->fd, 1);
}

static bool output_open(const struct native_exec *e)
{
    return e->out[0].fd >= 0 || e->out[1].fd >= 0;
}

/* Frees an exec that nobody watches any more and that nothing can come from. */
static void maybe_free(struct native_exec *e)
{
    if (e->busy > 0 || !e->detached || !e->exited || output_open(e))
        return;
    unlink_exec(e);
    loop_timer_stop(&e->drain);
    loop_timer_stop(&e->overdue);
    loop_defer_stop(&e->defer);
    close_stdin(e);
    free(e);
}

static void tell(struct native_exec *e)
{
    if (e->told)
        return;
    e->told = true;
    loop_timer_stop(&e->drain);
    if (!e->detached) {
        e->busy++;
        e->events.finished(e->arg, &e->outcome);
        e->busy--;
    }
}

static void maybe_finish(struct native_exec *e)
{
    if (e->exited && !output_open(e))
        tell(e);
    maybe_free(e);
}

static void on_output(struct loop_io *io, uint32_t events);
static void watch_end(struct native_exec *e, uint64_t ns);

/* Nothing came for a while, but background processes hold the pipes: they do not hold the answer.
 */
static void on_drained(struct loop_timer *t)
{
    struct native_exec *e = container_of(t, struct native_exec, drain);
    if (e->paused) {
        loop_timer_start(e->native->loop, t, DRAIN_NS, on_drained);
        return;
    }
    /* On a busy host it may be us who did not read in time. What is there is part of the answer. */
    e->busy++;
    for (int i = 0; i < 2; i++)
        if (e->out[i].fd >= 0)
            on_output(&e->out[i].io, 0);
    e->busy--;
    if (t->loop == NULL)
        tell(e);
    maybe_free(e);
}

static void on_output(struct loop_io *io, uint32_t events)
{
    static char chunk[READ_CHUNK];
    struct native_output *o = container_of(io, struct native_output, io);
    struct native_exec *e = o->exec;
    bool hung_up = false;
    e->busy++;
    for (int i = 0; i < READS_PER_TURN && o->fd >= 0 && (!e->paused || e->told || e->detached);
         i++) {
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
        if (e->detached || e->told)
            continue;
        if (e->exited)
            loop_timer_start(e->native->loop, &e->drain, DRAIN_NS, on_drained);
        e->events.output(e->arg, o->stream, chunk, (size_t)n);
    }
    e->busy--;
    maybe_finish(e);
}

static int watch_output(struct native_output *o)
{
    return o->fd < 0 || o->io.loop != NULL
               ? 0
               : loop_io_start(o->exec->native->loop, &o->io, o->fd, EPOLLIN, on_output);
}

/* The first byte of each list must not change once a name was seen: later entries win. */
static void merge_env(char ***env, char *const *more)
{
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) {
        size_t name = strcspn(more[i], "=") + 1;
        size_t at = 0, n = strv_len(*env);
        while (at < n && strncmp((*env)[at], more[i], name) != 0)
            at++;
        if (at == n) {
            strv_add(env, more[i]);
        } else {
            free((*env)[at]);
            (*env)[at] = xstrdup(more[i]);
        }
    }
}

static int pack(struct buf *out, struct init_exec *head, const struct native_sandbox *sb,
                const struct exec_request *req)
{
    AUTO_STRV char **env = NULL;
    int r = 0;
    for (size_t i = 0; i < PLAN_ENV_LEN; i++)
        strv_add(&env, plan_env[i]);
    if (req->tty)
        strv_add(&env, "TERM=xterm-256color");
    merge_env(&env, sb->env);
    merge_env(&env, req->env);
    if (req->files) {
        head->argc = 1;
        r = buf_append(out, FILES_NAME, sizeof(FILES_NAME));
    } else if (req->argv != NULL) {
        head->argc = (uint32_t)strv_len(req->argv);
        for (size_t i = 0; i < head->argc && r == 0; i++)
            r = buf_append(out, req->argv[i], strlen(req->argv[i]) + 1);
    } else {
        const char *cmd = req->cmd != NULL ? req->cmd : "";
        head->argc = 1;
        head->flags |= INIT_EXEC_SCRIPT;
        r = buf_append(out, cmd, strlen(cmd) + 1);
    }
    head->envc = (uint32_t)strv_len(env);
    for (size_t i = 0; i < head->envc && r == 0; i++)
        r = buf_append(out, env[i], strlen(env[i]) + 1);
    const char *cwd = req->cwd != NULL ? req->cwd : sb->workdir;
    if (r == 0)
        r = buf_append(out, cwd, strlen(cwd) + 1);
    head->strings_len = (uint32_t)(out->len - sizeof(*head));
    return r;
}

/* Bytes that nobody can change any more, whatever happens to the file: the session runs them. */
static int load_files(struct native *n, struct err *err)
{
    const char *path = n->options.files_program;
    if (n->files_fd >= 0)
        return 0;
    if (path == NULL)
        return err_set(err, ERR_UNSUPPORTED, "there is no %s beside boxd", FILES_NAME);
    n->files_fd = fd_sealed_program(FILES_NAME, path, FILES_SIZE_MAX);
    return n->files_fd < 0 ? err_sys(err, -n->files_fd, "load '%s'", path) : 0;
}

int native_send_request(struct native_sandbox *sb, struct init_exec *head,
                        const struct exec_request *req, struct err *err)
{
    AUTO_DONE(buf) struct buf message;
    AUTO_CLOSE int memfd = -1;
    buf_init(&message, sizeof(*head) + INIT_STRINGS_MAX);
    int r = buf_append(&message, head, sizeof(*head));
    if (r == 0)
        r = pack(&message, head, sb, req);
    if (r < 0)
        return err_set(err, ERR_LIMIT,
                       "command, arguments and environment are larger than %u MiB in all",
                       INIT_STRINGS_MAX >> 20);
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

int native_exec_start(struct sandbox *base, const struct exec_request *req,
                      const struct exec_events *events, void *arg, struct exec **ret,
                      struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    if (sb->state != NATIVE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not running");
    if (sb->running >= INIT_EXECS_MAX)
        return err_set(err, ERR_LIMIT, "%u commands run in this session already", sb->running);
    struct init_exec head = {
        .type = INIT_MSG_EXEC,
        .id = sb->next_exec++,
        .flags = (req->with_stdin ? INIT_EXEC_STDIN : 0) | (req->tty ? INIT_EXEC_TTY : 0) |
                 (req->posture ? INIT_EXEC_POSTURE : 0) | (req->files ? INIT_EXEC_PROGRAM : 0),
        .timeout_ns = req->timeout_ns,
        .rows = req->rows,
        .cols = req->cols,
    };
    int r = req->files ? load_files(sb->native, err) : 0;
    if (r == 0)
        r = native_send_request(sb, &head, req, err);
    if (r < 0)
        return r;
    struct native_exec *e = xnew(struct native_exec);
    e->base.backend = &sb->native->base;
    e->native = sb->native;
    e->sb = sb;
    e->id = head.id;
    e->events = *events;
    e->arg = arg;
    e->tty = req->tty;
    e->in_fd = -1;
    e->close_in = !req->with_stdin && !req->tty;
    buf_init(&e->in_queue, STDIN_QUEUE_MAX);
    for (int i = 0; i < 2; i++)
        e->out[i] = (struct native_output){.exec = e, .stream = (enum exec_stream)i, .fd = -1};
    e->next = sb->execs;
    if (e->next != NULL)
        e->next->prev = e;
    sb->execs = e;
    sb->running++;
    if (req->timeout_ns > 0)
        watch_end(e, req->timeout_ns + BACKEND_OVERDUE_NS);
    *ret = &e->base;
    return 0;
}

static struct native_exec *find_exec(struct native_sandbox *sb, uint32_t id)
{
    struct native_exec *e = sb->execs;
    while (e != NULL && (e->id != id || e->exited))
        e = e->next;
    return e;
}

static void flush_stdin(struct native_exec *e);

/* Whoever was asked to hold back goes on; also when nobody will ever read what it has. */
static void tell_drained(struct native_exec *e)
{
    if (!e->held_back || e->in_queue.len > 0)
        return;
    e->held_back = false;
    if (e->detached || e->told || e->events.stdin_drained == NULL)
        return;
    e->busy++;
    e->events.stdin_drained(e->arg);
    e->busy--;
}

static void on_stdin(struct loop_io *io, uint32_t events)
{
    struct native_exec *e = container_of(io, struct native_exec, in_io);
    flush_stdin(e);
    tell_drained(e);
    maybe_free(e);
}

static void flush_stdin(struct native_exec *e)
{
    while (e->in_fd >= 0 && e->in_queue.len > 0) {
        ssize_t n = write(e->in_fd, e->in_queue.data + e->in_pos, e->in_queue.len - e->in_pos);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (e->in_io.loop == NULL)
                (void)loop_io_start(e->native->loop, &e->in_io, e->in_fd, EPOLLOUT, on_stdin);
            return;
        }
        if (n < 0) {
            e->close_in = true; /* nobody reads it any more */
            break;
        }
        e->in_pos += (size_t)n;
        if (e->in_pos == e->in_queue.len) {
            buf_done(&e->in_queue);
            e->in_pos = 0;
        }
    }
    if (e->in_fd < 0)
        return; /* not started yet, or closed */
    loop_io_stop(&e->in_io);
    if (e->close_in)
        close_stdin(e);
}

void native_exec_on_started(struct native_sandbox *sb, const struct init_started *m, int *fds,
                            size_t n_fds)
{
    struct native_exec *e = find_exec(sb, m->id);
    if (e == NULL || output_open(e))
        return;
    if (n_fds < (e->tty ? 1U : 2U)) { /* nobody would see what it does */
        e->crowded = true;
        native_exec_kill(&e->base);
        return;
    }
    e->out[0].fd = TAKE_FD(fds[0]);
    if (e->tty)
        e->in_fd = fcntl(e->out[0].fd, F_DUPFD_CLOEXEC, 3);
    else
        e->out[1].fd = TAKE_FD(fds[1]);
    if (!e->tty && n_fds >= 3)
        e->in_fd = TAKE_FD(fds[2]);
    for (int i = 0; i < 2; i++) {
        if (e->out[i].fd >= 0 && (fd_set_nonblock(e->out[i].fd, true) < 0 ||
                                  (!e->paused && watch_output(&e->out[i]) < 0)))
            close_output(&e->out[i]);
    }
    if (e->in_fd >= 0 && fd_set_nonblock(e->in_fd, true) < 0)
        close_stdin(e);
    flush_stdin(e);
    tell_drained(e);
}

static const char *stage_text(uint32_t stage)
{
    static const char *const texts[] = {
        [INIT_STAGE_LIMIT] = "no process could be started",
        [INIT_STAGE_REQUEST] = "the request was malformed",
        [INIT_STAGE_CWD] = "working directory",
        [INIT_STAGE_CONFINE] = "the process could not be confined",
        [INIT_STAGE_EXEC] = "cannot execute",
    };
    return stage > INIT_STAGE_NONE && stage <= INIT_STAGE_EXEC ? texts[stage] : "failed";
}

void native_outcome(struct outcome *o, const struct init_exited *m)
{
    *o = (struct outcome){.duration_ns = m->duration_ns,
                          .cpu_ns = m->cpu_ns,
                          .max_rss_kb = m->max_rss_kb,
                          .remaining = m->remaining};
    if (m->stage != INIT_STAGE_NONE) {
        o->kind = OUTCOME_EXITED;
        o->exit_code = m->stage == INIT_STAGE_EXEC && m->error == ENOENT ? 127 : 126;
        (void)snprintf(o->error, sizeof(o->error), "%s: %s", stage_text(m->stage),
                       err_errno_text(m->error));
    } else if (m->flags & INIT_EXITED_TIMEOUT) {
        o->kind = OUTCOME_TIMED_OUT;
    } else if (m->flags & INIT_EXITED_OOM) {
        o->kind = OUTCOME_OOM_KILLED;
    } else if (m->flags & INIT_EXITED_DISK_FULL) {
        o->kind = OUTCOME_QUOTA_EXCEEDED;
        o->exit_code = WIFEXITED(m->wait_status) ? WEXITSTATUS(m->wait_status)
                                                 : 128 + WTERMSIG(m->wait_status);
    } else if (WIFSIGNALED(m->wait_status)) {
        o->kind = OUTCOME_SIGNALED;
        o->signo = WTERMSIG(m->wait_status);
    } else {
        o->kind = OUTCOME_EXITED;
        o->exit_code = WEXITSTATUS(m->wait_status);
    }
}

static void end_exec(struct native_exec *e)
{
    e->exited = true;
    if (!e->killed)
        loop_timer_stop(&e->overdue);
    close_stdin(e);
    native_exec_pause(&e->base, e->paused);
    if (output_open(e) && !e->told)
        loop_timer_start(e->native->loop, &e->drain, DRAIN_NS, on_drained);
    maybe_finish(e);
}

void native_exec_on_exited(struct native_sandbox *sb, const struct init_exited *m)
{
    struct native_exec *e = find_exec(sb, m->id);
    bool ended = (m->flags & (INIT_EXITED_TIMEOUT | INIT_EXITED_OOM | INIT_EXITED_KILLED)) != 0;
    if (e == NULL)
        return;
    sb->running--;
    native_outcome(&e->outcome, m);
    if (e->crowded)
        e->outcome = (struct outcome){.kind = OUTCOME_EXITED,
                                      .exit_code = 126,
                                      .error = "boxd has no file descriptor left for its output"};
    bool unended = ended && m->remaining > 0;
    e->outcome.unended = unended;
    end_exec(e);
    if (!unended)
        return;
    log_warn(NULL, "sandbox %s: %u processes of a command do not end; removing it", sb->name,
             m->remaining);
    native_lose(sb);
}

static void on_lost(struct loop_defer *d)
{
    struct native_exec *e = container_of(d, struct native_exec, defer);
    /* What it wrote before is in the pipes still, no more than they hold: an answer that says how
     * it ended has its output too. */
    e->paused = false;
    e->busy++;
    for (int i = 0; i < 2; i++) {
        if (e->out[i].fd >= 0)
            on_output(&e->out[i].io, 0);
        close_output(&e->out[i]);
    }
    e->busy--;
    end_exec(e);
}

void native_exec_lose_all(struct native_sandbox *sb)
{
    while (sb->execs != NULL) {
        struct native_exec *e = sb->execs;
        if (!e->exited)
            e->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
        unlink_exec(e);
        loop_defer_start(e->native->loop, &e->defer, on_lost);
    }
}

/* PID 1 ends what is over time, and tells; one that does not is stopped, starved or worse. Nobody
 * waits for it, and its session ends: nothing in there can be ended otherwise. */
static void on_overdue(struct loop_timer *t)
{
    struct native_exec *e = container_of(t, struct native_exec, overdue);
    struct native_sandbox *sb = e->sb;
    if (e->exited) {
        tell(e); /* killed; a process of another command goes on writing to its pipes */
        maybe_free(e);
        return;
    }
    if (sb == NULL)
        return;
    log_warn(NULL, "sandbox %s does not end a command that it is to end; removing it", sb->name);
    e->outcome = backend_overdue(e->killed);
    sb->running--;
    unlink_exec(e);
    loop_defer_start(e->native->loop, &e->defer, on_lost);
    native_lose(sb);
}

static void watch_end(struct native_exec *e, uint64_t ns)
{
    loop_timer_start(e->native->loop, &e->overdue, ns, on_overdue);
}

int native_exec_write(struct exec *base, const char *data, size_t len)
{
    struct native_exec *e = exec_of(base);
    if (e->exited || e->close_in)
        return -EPIPE;
    /* What is written already makes room, but is not moved for every message. */
    if (e->in_pos >= e->in_queue.len / 2) {
        buf_consume(&e->in_queue, e->in_pos);
        e->in_pos = 0;
    }
    int r = buf_append(&e->in_queue, data, len);
    if (r < 0)
        return r;
    flush_stdin(e);
    if (e->in_queue.len - e->in_pos <= STDIN_HIGH_WATER)
        return 0;
    e->held_back = true;
    return 1;
}

void native_exec_close_stdin(struct exec *base)
{
    struct native_exec *e = exec_of(base);
    if (e->tty) {
        (void)native_exec_write(base, "\004", 1); /* what a person would type */
        return;
    }
    e->close_in = true;
    flush_stdin(e);
}

static void send_kill(struct native_exec *e, enum init_kill_scope scope, int signo)
{
    struct init_kill m = {.type = INIT_MSG_KILL, .id = e->id, .scope = scope, .signo = signo};
    if (e->sb != NULL && e->sb->conn >= 0)
        (void)fd_send_msg(e->sb->conn, &m, sizeof(m), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void native_exec_signal(struct exec *base, int signo)
{
    send_kill(exec_of(base), INIT_KILL_MAIN, signo);
}

void native_exec_kill(struct exec *base)
{
    struct native_exec *e = exec_of(base);
    send_kill(e, INIT_KILL_TREE, SIGKILL);
    if (e->sb == NULL || e->exited || e->killed)
        return;
    e->killed = true;
    watch_end(e, BACKEND_OVERDUE_NS);
}

void native_exec_resize(struct exec *base, uint16_t rows, uint16_t cols)
{
    struct native_exec *e = exec_of(base);
    struct winsize size = {.ws_row = rows, .ws_col = cols};
    if (e->tty && e->out[0].fd >= 0)
        (void)ioctl(e->out[0].fd, TIOCSWINSZ, &size);
}

void native_exec_pause(struct exec *base, bool paused)
{
    struct native_exec *e = exec_of(base);
    /* What was killed has written its last: no more follows than its pipes hold, and who waits for
     * its end does not wait for who reads it. */
    e->paused = paused && !(e->killed && e->exited);
    for (int i = 0; i < 2; i++) {
        if (e->paused)
            loop_io_stop(&e->out[i].io);
        else if (watch_output(&e->out[i]) < 0)
            close_output(&e->out[i]);
    }
}

void native_exec_free(struct exec *base)
{
    if (base == NULL)
        return;
    struct native_exec *e = exec_of(base);
    e->detached = true;
    e->paused = false;
    close_stdin(e);
    for (int i = 0; i < 2; i++)
        if (watch_output(&e->out[i]) < 0)
            close_output(&e->out[i]);
    maybe_free(e);
}
