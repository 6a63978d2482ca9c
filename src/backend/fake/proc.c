/* SPDX-License-Identifier: Apache-2.0 */

/* A managed process is an exec whose output goes into a ring instead of to a listener. */

#include <errno.h>
#include <string.h>

#include "backend/fake/fake_internal.h"
#include "base/alloc.h"
#include "base/str.h"

#define RING (64U << 10)     /* above it the program is held back */
#define RING_MAX (32U << 20) /* one step may write that much at once */
#define STDERR_KEPT (64U << 10)

struct fake_proc {
    struct proc base;
    struct fake *fake;       /* borrowed */
    struct fake_sandbox *sb; /* NULL once it is gone */
    struct fake_proc *prev, *next;
    uint32_t number;
    struct proc_events events; /* nothing in it: nobody listens */
    void *arg;
    bool orphan;       /* its daemon is gone */
    struct exec *exec; /* owned; NULL once it has ended */
    struct buf out, err;
    uint64_t begin;   /* offset of the first byte in `out` */
    uint64_t err_end; /* behind the last byte of stderr */
    bool ended;
    struct outcome outcome;
    struct loop_defer defer; /* tells of an end that came before anybody listened */
    unsigned busy;           /* callbacks under way: not to be freed underneath them */
    bool freed;
};

static struct fake_proc *proc_of(struct proc *p)
{
    return container_of(p, struct fake_proc, base);
}

static void unlink_proc(struct fake_proc *p)
{
    if (p->sb == NULL)
        return;
    if (p->prev != NULL)
        p->prev->next = p->next;
    else
        p->sb->procs = p->next;
    if (p->next != NULL)
        p->next->prev = p->prev;
    p->sb = NULL;
}

static void maybe_free(struct fake_proc *p)
{
    if (p->busy > 0 || !p->freed)
        return;
    loop_defer_stop(&p->defer);
    buf_done(&p->out);
    buf_done(&p->err);
    free(p);
}

static void tell_output(struct fake_proc *p)
{
    p->busy++;
    if (!p->freed && p->events.output != NULL)
        p->events.output(p->arg);
    p->busy--;
    maybe_free(p);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct fake_proc *p = arg;
    if (stream == EXEC_STDERR) {
        p->err_end += len;
        if (len > STDERR_KEPT) {
            data += len - STDERR_KEPT;
            len = STDERR_KEPT;
        }
        if (p->err.len + len > STDERR_KEPT)
            buf_consume(&p->err, p->err.len + len - STDERR_KEPT);
        (void)buf_append(&p->err, data, len);
        return;
    }
    (void)buf_append(&p->out, data, len);
    if (p->out.len >= RING)
        fake_exec_pause(p->exec, true);
    tell_output(p);
}

static void on_drained(void *arg)
{
    struct fake_proc *p = arg;
    if (p->events.stdin_drained != NULL)
        p->events.stdin_drained(p->arg);
}

/* The end of a process, and then that of its output. */
static void tell_end(struct fake_proc *p)
{
    p->busy++;
    if (!p->freed && p->events.exited != NULL)
        p->events.exited(p->arg, &p->outcome);
    p->busy--;
    tell_output(p);
}

static void on_late(struct loop_defer *d)
{
    tell_end(container_of(d, struct fake_proc, defer));
}

static void on_finished(void *arg, const struct outcome *outcome)
{
    struct fake_proc *p = arg;
    p->ended = true;
    p->outcome = *outcome;
    fake_exec_free(TAKE_PTR(p->exec));
    tell_end(p);
}

static const struct exec_events exec_events = {on_output, on_drained, on_finished};

int fake_proc_start(struct sandbox *base, const struct proc_request *req,
                    const struct proc_events *events, void *arg, struct proc **ret, struct err *err)
{
    struct fake_sandbox *sb = container_of(base, struct fake_sandbox, base);
    struct exec_request exec = {.env = req->env, .cwd = req->cwd, .with_stdin = true};
    struct err fault;
    if (fake_fault(sb->fake, FAKE_PROC_START, &fault)) {
        *err = fault;
        return err_code_errno(fault.code);
    }
    bool shell = str_eq(req->argv[0], "sh") && req->argv[1] != NULL && req->argv[2] != NULL;
    if (shell)
        exec.cmd = req->argv[2];
    else if (fake_exec_knows(req->argv[0]))
        exec.argv = req->argv;
    else
        exec.cmd = "cat";
    struct fake_proc *p = xnew(struct fake_proc);
    int r = fake_exec_start(base, &exec, &exec_events, p, &p->exec, err);
    if (r < 0) {
        free(p);
        return r;
    }
    p->base.backend = &sb->fake->base;
    p->fake = sb->fake;
    p->sb = sb;
    p->number = req->number;
    p->events = *events;
    p->arg = arg;
    buf_init(&p->out, RING_MAX);
    buf_init(&p->err, STDERR_KEPT);
    p->next = sb->procs;
    if (p->next != NULL)
        p->next->prev = p;
    sb->procs = p;
    *ret = &p->base;
    return 0;
}

static struct fake_proc *find(const struct fake_sandbox *sb, uint32_t number)
{
    struct fake_proc *p = sb->procs;
    while (p != NULL && (!p->orphan || p->number != number))
        p = p->next;
    return p;
}

int fake_proc_adopt(struct sandbox *base, uint32_t number, const struct proc_events *events,
                    void *arg, struct proc **ret, struct err *err)
{
    struct fake_proc *p = find(container_of(base, struct fake_sandbox, base), number);
    if (p == NULL)
        return err_set(err, ERR_NOT_FOUND, "there is no process %u", number);
    p->orphan = false;
    p->events = *events;
    p->arg = arg;
    if (p->ended)
        loop_defer_start(p->fake->loop, &p->defer, on_late);
    *ret = &p->base;
    return 0;
}

struct proc_range fake_proc_range(const struct proc *base)
{
    const struct fake_proc *p = (const struct fake_proc *)(const void *)base;
    return (struct proc_range){.begin = p->begin, .end = p->begin + p->out.len, .eof = p->ended};
}

ssize_t fake_proc_read(struct proc *base, uint64_t from, char *buf, size_t size)
{
    const struct fake_proc *p = proc_of(base);
    if (from < p->begin || from > p->begin + p->out.len)
        return -ERANGE;
    size_t at = (size_t)(from - p->begin), left = p->out.len - at;
    size_t n = left < size ? left : size;
    if (n > 0)
        memcpy(buf, p->out.data + at, n);
    return (ssize_t)n;
}

void fake_proc_release(struct proc *base, uint64_t upto)
{
    struct fake_proc *p = proc_of(base);
    if (upto <= p->begin || upto > p->begin + p->out.len)
        return;
    buf_consume(&p->out, (size_t)(upto - p->begin));
    p->begin = upto;
    if (p->exec != NULL && p->out.len < RING)
        fake_exec_pause(p->exec, false);
}

size_t fake_proc_stderr(struct proc *base, char *buf, size_t size)
{
    const struct fake_proc *p = proc_of(base);
    size_t n = p->err.len < size ? p->err.len : size;
    if (n > 0)
        memcpy(buf, p->err.data + p->err.len - n, n);
    return n;
}

size_t fake_proc_stderr_from(struct proc *base, uint64_t *at, char *buf, size_t size)
{
    const struct fake_proc *p = proc_of(base);
    uint64_t begin = p->err_end - p->err.len;
    if (*at < begin)
        *at = begin;
    if (*at >= p->err_end)
        return 0;
    size_t n = (size_t)(p->err_end - *at) < size ? (size_t)(p->err_end - *at) : size;
    if (n > 0)
        memcpy(buf, p->err.data + (size_t)(*at - begin), n);
    *at += n;
    return n;
}

/* Whatever a simulated program is given it has at once. */
size_t fake_proc_unwritten(const struct proc *base)
{
    return 0;
}

int fake_proc_write(struct proc *base, const char *data, size_t len)
{
    const struct fake_proc *p = proc_of(base);
    return p->exec == NULL ? -EPIPE : fake_exec_write(p->exec, data, len);
}

void fake_proc_close_stdin(struct proc *base)
{
    const struct fake_proc *p = proc_of(base);
    if (p->exec != NULL)
        fake_exec_close_stdin(p->exec);
}

void fake_proc_signal(struct proc *base, int signo)
{
    const struct fake_proc *p = proc_of(base);
    if (p->exec != NULL)
        fake_exec_signal(p->exec, signo);
}

void fake_proc_kill(struct proc *base)
{
    const struct fake_proc *p = proc_of(base);
    if (p->exec != NULL)
        fake_exec_kill(p->exec);
}

void fake_proc_free(struct proc *base)
{
    if (base == NULL)
        return;
    struct fake_proc *p = proc_of(base);
    fake_proc_kill(base);
    fake_exec_free(TAKE_PTR(p->exec));
    unlink_proc(p);
    p->freed = true;
    maybe_free(p);
}

void fake_procs_orphan(struct fake_sandbox *sb)
{
    for (struct fake_proc *p = sb->procs; p != NULL; p = p->next) {
        p->orphan = true;
        p->events = (struct proc_events){0};
        loop_defer_stop(&p->defer);
    }
}

void fake_procs_vanish(struct fake_sandbox *sb, uint32_t number)
{
    for (struct fake_proc *p = sb->procs, *next; p != NULL; p = next) {
        next = p->next;
        if (p->orphan && (number == 0 || p->number == number))
            fake_proc_free(&p->base);
    }
}

void fake_procs_lose(struct fake_sandbox *sb)
{
    while (sb->procs != NULL)
        unlink_proc(sb->procs);
}

void fake_procs_free(struct fake_sandbox *sb)
{
    for (struct fake_proc *p = sb->procs, *next; p != NULL; p = next) {
        next = p->next;
        fake_proc_free(&p->base);
    }
}
