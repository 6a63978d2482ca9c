/* SPDX-License-Identifier: Apache-2.0 */

/* Managed processes of a native sandbox: follows their rings and passes output and exits on. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"

#define LOOKS_PER_TURN 4

static struct native_proc *proc_of(struct proc *p)
{
    return container_of(p, struct native_proc, base);
}

static struct native_proc *find(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = sb->procs;
    while (p != NULL && p->number != number)
        p = p->next;
    return p;
}

static struct native_proc *proc_new(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = xnew(struct native_proc);
    p->base.backend = &sb->native->base;
    p->native = sb->native;
    p->sb = sb;
    p->number = number;
    native_stdin_init(p);
    p->next = sb->procs;
    if (p->next != NULL)
        p->next->prev = p;
    sb->procs = p;
    return p;
}

static void take(struct native_proc *p, const struct proc_events *events, void *arg)
{
    p->events = *events;
    p->arg = arg;
    p->taken = true;
}

static void unlink_proc(struct native_proc *p)
{
    if (p->sb == NULL)
        return;
    if (p->prev != NULL)
        p->prev->next = p->next;
    else
        p->sb->procs = p->next;
    if (p->next != NULL)
        p->next->prev = p->prev;
    p->prev = p->next = NULL;
    p->sb = NULL;
}

/* What PID 1 has to know of goes now, or when it reads again. */

static int tell_forget(struct native_proc *p)
{
    struct init_number m = {.type = INIT_MSG_PROC_FORGET, .id = p->number};
    return native_tell(p->sb, &m, sizeof(m));
}

static void tell_kill(struct native_proc *p, enum init_kill_scope scope, int signo)
{
    struct init_kill m = {
        .type = INIT_MSG_PROC_KILL, .id = p->number, .scope = scope, .signo = signo};
    int r = p->sb == NULL ? -EPIPE : native_tell(p->sb, &m, sizeof(m));
    if (scope == INIT_KILL_TREE)
        p->send_kill = r == -EAGAIN;
    else
        p->send_signo = r == -EAGAIN ? signo : 0;
}

static void tell_room(struct native_proc *p)
{
    struct init_number m = {.type = INIT_MSG_PROC_ROOM, .id = p->number};
    if (p->sb != NULL)
        p->send_room = native_tell(p->sb, &m, sizeof(m)) == -EAGAIN;
}

static void on_room(struct loop_defer *d)
{
    tell_room(container_of(d, struct native_proc, room));
}

static void stop_defers(struct native_proc *p)
{
    loop_defer_stop(&p->news);
    loop_defer_stop(&p->again);
    loop_defer_stop(&p->room);
}

static void proc_delete(struct native_proc *p)
{
    unlink_proc(p);
    stop_defers(p);
    loop_timer_stop(&p->overdue);
    native_stdin_done(p);
    ring_reader_done(&p->ring);
    free(p);
}

void native_proc_settle(struct native_proc *p)
{
    if (p->busy > 0 || !p->freed)
        return;
    if (p->sb == NULL || p->forgotten || tell_forget(p) != -EAGAIN)
        proc_delete(p);
}

/* Telling its user. */

struct proc_range native_proc_range(const struct proc *base)
{
    const struct native_proc *p = container_of(base, const struct native_proc, base);
    bool over = p->started ? p->ring.eof || p->sb == NULL : p->exited;
    return (struct proc_range){.begin = p->ring.begin, .end = p->ring.end, .eof = over};
}

static void tell_output(struct native_proc *p)
{
    if (p->freed || p->ending || !p->taken || p->told_eof)
        return;
    p->told_eof = native_proc_range(&p->base).eof;
    p->events.output(p->arg);
}

static void tell_exited(struct native_proc *p)
{
    if (p->freed || p->ending || !p->taken || p->told || !p->exited)
        return;
    p->told = true;
    p->events.exited(p->arg, &p->outcome);
}

static void tell_ended(struct native_proc *p, const struct err *err)
{
    backend_done_fn *done = TAKE_PTR(p->gone);
    loop_timer_stop(&p->overdue);
    if (done != NULL)
        done(p->gone_arg, err);
}

/* What its user does not know yet, from the loop. */
static void on_news(struct loop_defer *d)
{
    struct native_proc *p = container_of(d, struct native_proc, news);
    p->busy++;
    if (p->sb == NULL)
        (void)ring_reader_look(&p->ring); /* the last bytes of one that is gone */
    native_stdin_drained(p);
    struct proc_range range = native_proc_range(&p->base);
    if (range.end > range.begin || range.eof)
        tell_output(p);
    tell_exited(p);
    if (p->sb == NULL) /* it went with all the others */
        tell_ended(p, NULL);
    p->busy--;
    native_proc_settle(p);
}

static void tell_later(struct native_proc *p)
{
    loop_defer_start(p->native->loop, &p->news, on_news);
}

/* Passes on what there is, until PID 1 is to tell of more. Others get their turn before one that
 * writes without end goes on. False when the ring makes no sense. */
static bool look(struct native_proc *p);

static void on_again(struct loop_defer *d)
{
    struct native_proc *p = container_of(d, struct native_proc, again);
    struct native_sandbox *sb = p->sb; /* p may be gone when its user has looked */
    if (sb != NULL && !look(p))
        native_lose(sb);
}

static bool look(struct native_proc *p)
{
    int r = 1;
    p->busy++;
    for (int i = 0; i < LOOKS_PER_TURN && r > 0 && !p->freed; i++) {
        r = ring_reader_wait(&p->ring);
        if (r > 0)
            tell_output(p);
    }
    if (r > 0 && !p->freed)
        loop_defer_start(p->native->loop, &p->again, on_again);
    p->busy--;
    native_proc_settle(p);
    return r >= 0;
}

/* Of one that was started or found: from the loop, like all that its user is told. */
static void tell_all_later(struct native_proc *p)
{
    tell_later(p);
    if (p->started)
        loop_defer_start(p->native->loop, &p->again, on_again);
}

static void end(struct native_proc *p, const struct init_exited *m)
{
    native_outcome(&p->outcome, m);
    if (p->crowded)
        p->outcome = (struct outcome){.kind = OUTCOME_EXITED,
                                      .exit_code = 126,
                                      .error = "boxd has no file descriptor left for its output"};
    p->exited = true;
    native_stdin_done(p);
}

/* From PID 1. */

bool native_proc_on_state(struct native_sandbox *sb, const struct init_state *m, int *fds,
                          size_t n_fds)
{
    struct native_proc *p = find(sb, m->id);
    if (p == NULL && sb->adopting && m->id != 0)
        p = proc_new(sb, m->id);
    if (p == NULL || p->freed)
        return true; /* forgotten meanwhile */
    if (p->started)
        return false;
    if (n_fds == 0) { /* nobody would see what it does */
        p->crowded = true;
        tell_kill(p, INIT_KILL_TREE, SIGKILL);
        return true;
    }
    if (ring_reader_init(&p->ring, fds[0], m->begin) < 0)
        return false;
    p->started = true;
    p->memory_open = (m->flags & INIT_STATE_MEMORY_OPEN) != 0;
    if (p->memory_open)
        log_warn(NULL,
                 "managed process %u of sandbox %s: its memory limit cannot be enforced here; "
                 "ignoring",
                 p->number, sb->name);
    if (n_fds > 1)
        native_stdin_open(p, TAKE_FD(fds[1]), (m->flags & INIT_STATE_MIDLINE) != 0);
    if (m->flags & INIT_STATE_EXITED)
        end(p, &m->exited);
    if (p->taken)
        tell_all_later(p);
    return true;
}

bool native_proc_on_output(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = find(sb, number);
    return p == NULL || !p->started || p->freed || look(p);
}

bool native_proc_on_exited(struct native_sandbox *sb, const struct init_exited *m)
{
    struct native_proc *p = find(sb, m->id);
    if (p == NULL || p->exited || p->freed)
        return true;
    end(p, m);
    p->busy++;
    tell_exited(p);
    if (!p->started) /* nor will it be */
        tell_output(p);
    p->busy--;
    native_proc_settle(p);
    return true;
}

bool native_proc_on_gone(struct native_sandbox *sb, uint32_t number)
{
    struct native_proc *p = find(sb, number);
    if (p == NULL || !p->ending)
        return true;
    p->busy++;
    tell_ended(p, NULL);
    p->busy--;
    native_proc_settle(p);
    return true;
}

void native_proc_flush(struct native_sandbox *sb)
{
    (void)loop_io_events(&sb->conn_io, EPOLLIN);
    for (struct native_proc *p = sb->procs, *next; p != NULL; p = next) {
        next = p->next;
        if (p->freed) {
            native_proc_settle(p);
            continue;
        }
        if (p->ending) {
            p->forgotten = p->forgotten || tell_forget(p) != -EAGAIN;
            continue;
        }
        if (p->send_signo != 0)
            tell_kill(p, INIT_KILL_MAIN, p->send_signo);
        if (p->send_kill)
            tell_kill(p, INIT_KILL_TREE, SIGKILL);
        if (p->send_room)
            tell_room(p);
        native_stdin_flush(p);
        if (p->held_back && p->in_queue.len == 0)
            tell_later(p);
    }
}

void native_proc_end_untaken(struct native_sandbox *sb)
{
    for (struct native_proc *p = sb->procs, *next; p != NULL; p = next) {
        next = p->next;
        if (!p->taken)
            native_proc_free(&p->base);
    }
}

void native_proc_lose_all(struct native_sandbox *sb)
{
    struct native_proc *p = TAKE_PTR(sb->procs), *next;
    for (; p != NULL; p = next) {
        next = p->next;
        p->prev = p->next = NULL;
        p->sb = NULL;
        if (!p->exited)
            p->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
        p->exited = true;
        native_stdin_done(p);
        if (!p->taken)
            p->freed = true;
        if (p->freed)
            native_proc_settle(p);
        else
            tell_later(p);
    }
}

/* From its user. */

int native_proc_start(struct sandbox *base, const struct proc_request *req,
                      const struct proc_events *events, void *arg, struct proc **ret,
                      struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    const struct priv_host *host = priv_client_host(sb->native->priv);
    unsigned known = 0;
    for (const struct native_proc *p = sb->procs; p != NULL; p = p->next)
        known++;
    if (sb->state != NATIVE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not running");
    if (req->number == 0 || find(sb, req->number) != NULL)
        return err_set(err, ERR_INVALID, "managed process %u is there already", req->number);
    if (known >= INIT_PROCS_MAX)
        return err_set(err, ERR_LIMIT, "%u managed processes are in this session already", known);
    if (req->memory_bytes > 0 && sb->native->facts.require_limits && !host->enforced[CGROUP_MEMORY])
        return err_set(err, ERR_UNSUPPORTED, "limits are required but cannot be enforced here: %s",
                       host->why[CGROUP_MEMORY]);
    struct init_exec head = {
        .type = INIT_MSG_PROC, .id = req->number, .memory_bytes = req->memory_bytes};
    const struct exec_request exec = {.argv = req->argv, .env = req->env, .cwd = req->cwd};
    int r = native_send_request(sb, &head, &exec, err);
    if (r < 0)
        return r;
    struct native_proc *p = proc_new(sb, req->number);
    take(p, events, arg);
    *ret = &p->base;
    return 0;
}

int native_proc_adopt(struct sandbox *base, uint32_t number, const struct proc_events *events,
                      void *arg, struct proc **ret, struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    struct native_proc *p = find(sb, number);
    if (p == NULL || p->taken || p->freed)
        return err_set(err, ERR_NOT_FOUND, "no managed process %u", number);
    take(p, events, arg);
    tell_all_later(p);
    *ret = &p->base;
    return 0;
}

ssize_t native_proc_read(struct proc *base, uint64_t from, char *buf, size_t size)
{
    const struct native_proc *p = proc_of(base);
    if (!p->started)
        return from == 0 ? 0 : -ERANGE;
    return ring_read(&p->ring, from, buf, size);
}

void native_proc_release(struct proc *base, uint64_t until)
{
    struct native_proc *p = proc_of(base);
    /* Told once per turn of the loop, however many lines it was. */
    if (ring_reader_release(&p->ring, until) > 0)
        loop_defer_start(p->native->loop, &p->room, on_room);
}

size_t native_proc_stderr(struct proc *base, char *buf, size_t size)
{
    return ring_read_err(&proc_of(base)->ring, buf, size);
}

size_t native_proc_stderr_from(struct proc *base, uint64_t *at, char *buf, size_t size)
{
    return ring_read_err_from(&proc_of(base)->ring, at, buf, size);
}

void native_proc_signal(struct proc *base, int signo)
{
    tell_kill(proc_of(base), INIT_KILL_MAIN, signo);
}

void native_proc_kill(struct proc *base)
{
    tell_kill(proc_of(base), INIT_KILL_TREE, SIGKILL);
}

/* PID 1 says nothing: what it is to end cannot be ended but with it. */
static void on_overdue(struct loop_timer *t)
{
    struct native_proc *p = container_of(t, struct native_proc, overdue);
    struct native_sandbox *sb = p->sb;
    struct err err = {0};
    (void)backend_unended(&err, "process");
    p->busy++;
    tell_ended(p, &err);
    p->busy--;
    native_proc_settle(p);
    if (sb != NULL)
        native_lose(sb);
}

void native_proc_end(struct proc *base, backend_done_fn *done, void *arg)
{
    struct native_proc *p = proc_of(base);
    p->ending = true;
    p->gone = done;
    p->gone_arg = arg;
    stop_defers(p);
    native_stdin_done(p);
    if (p->sb == NULL) {
        tell_later(p);
        return;
    }
    p->forgotten = tell_forget(p) != -EAGAIN;
    loop_timer_start(p->native->loop, &p->overdue, BACKEND_OVERDUE_NS, on_overdue);
}

void native_proc_free(struct proc *base)
{
    if (base == NULL)
        return;
    struct native_proc *p = proc_of(base);
    p->freed = true;
    p->gone = NULL;
    stop_defers(p);
    native_stdin_done(p);
    native_proc_settle(p);
}
