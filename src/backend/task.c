/* SPDX-License-Identifier: Apache-2.0 */

/* Commands and managed processes of every backend: their start, their stdin and output, their end,
 * and what their users are told. */

#include "backend/task.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/state.h"
#include "inside/guest_wire.h"

#define DRAIN_NS                                                                                   \
    (50ULL * NSEC_PER_MSEC)           /* an answer waits for others that still hold the pipes      \
                                       */
#define STDIN_QUEUE_MAX (16U << 20)   /* one message of a client, and what is left before it */
#define STDIN_HIGH_WATER (256U << 10) /* above it the writer is asked to hold back */

static struct task *of_exec(struct exec *e)
{
    return container_of(e, struct task, exec);
}

static struct tasks *of_sandbox(struct sandbox *sb)
{
    return container_of(sb, struct tasks, sandbox);
}

static struct task *of_proc(struct proc *p)
{
    return container_of(p, struct task, proc);
}

static bool is_proc(const struct task *t)
{
    return t->ops->forget != NULL;
}

static void task_move(struct task *t, enum task_state to)
{
    static const unsigned moves[TASK_STATE_MAX] = {
        [TASK_RUNNING] = 1U << TASK_EXITED,
        [TASK_EXITED] = 1U << TASK_TOLD,
    };
    STATE_MOVE(t->state, moves, to);
}

static void user_move(struct task *t, enum task_user to)
{
    static const unsigned moves[TASK_USER_MAX] = {
        [TASK_UNTAKEN] = 1U << TASK_TAKEN | 1U << TASK_FREED,
        [TASK_TAKEN] = 1U << TASK_ENDING | 1U << TASK_FREED,
        [TASK_ENDING] = 1U << TASK_FREED,
    };
    STATE_MOVE(t->user, moves, to);
}

static void task_link(struct task *t, struct tasks *home, struct task_list *list)
{
    assert(t->home == NULL);
    t->home = home;
    t->loop = home->loop;
    LIST_INSERT_HEAD(list, t, entry);
}

static void task_unlink(struct task *t)
{
    if (t->home == NULL)
        return;
    LIST_REMOVE(t, entry);
    t->home = NULL;
}

struct task *task_find(const struct task_list *list, uint32_t id)
{
    struct task *t = LIST_FIRST(list);
    while (t != NULL && t->id != id)
        t = LIST_NEXT(t, entry);
    return t;
}

bool task_hears(const struct task *t)
{
    return t->user == TASK_TAKEN && t->state != TASK_TOLD;
}

/* Stdin. */

static void stdin_closing(struct task *t)
{
    if (t->in_state == TASK_STDIN_OPEN)
        t->in_state = TASK_STDIN_CLOSING;
}

void task_flush(struct task *t)
{
    ssize_t n = 1;
    while (n > 0 && t->in_pos < t->in.len) {
        n = t->ops->write(t, t->in.data + t->in_pos, t->in.len - t->in_pos);
        t->in_pos += n > 0 ? (size_t)n : 0;
    }
    if (n < 0 && n != -EAGAIN) { /* the program reads no more */
        stdin_closing(t);
        t->in_pos = t->in.len;
    }
    if (t->in_pos == t->in.len) {
        buf_done(&t->in);
        t->in_pos = 0;
    }
    if (t->in_state == TASK_STDIN_CLOSING && t->in.len == 0 && t->ops->close_stdin(t) != -EAGAIN)
        t->in_state = TASK_STDIN_CLOSED;
}

/* What waits is not written any more. */
static void drop_stdin(struct task *t)
{
    buf_done(&t->in);
    t->in_pos = 0;
    stdin_closing(t);
    task_flush(t);
}

static size_t unwritten(const struct task *t)
{
    return t->in.len - t->in_pos + (size_t)t->in_flight;
}

/* Also when the program closed its stdin and never reads what waited. */
void task_drained(struct task *t)
{
    if (!t->in_held_back || unwritten(t) > 0)
        return;
    t->in_held_back = false;
    void (*fn)(void *) = is_proc(t) ? t->events.proc.stdin_drained : t->events.exec.stdin_drained;
    if (!task_hears(t) || fn == NULL)
        return;
    t->busy++;
    fn(t->arg);
    t->busy--;
}

static int write_stdin(struct task *t, const char *data, size_t len)
{
    if (t->state != TASK_RUNNING || t->in_state != TASK_STDIN_OPEN || t->home == NULL)
        return -EPIPE;
    /* What is written already makes room, but is not moved for every message. */
    if (t->in_pos >= t->in.len / 2) {
        buf_consume(&t->in, t->in_pos);
        t->in_pos = 0;
    }
    int r = buf_append(&t->in, data, len);
    if (r < 0)
        return r;
    task_flush(t);
    if (unwritten(t) <= STDIN_HIGH_WATER)
        return 0;
    t->in_held_back = true;
    return 1;
}

static void close_stdin(struct task *t)
{
    stdin_closing(t);
    task_flush(t);
}

/* The end. */

static void tell_finished(struct task *t)
{
    bool hears = task_hears(t);
    task_move(t, TASK_TOLD);
    loop_timer_stop(&t->drain);
    if (!hears)
        return;
    t->busy++;
    t->events.exec.finished(t->arg, &t->outcome);
    t->busy--;
}

static bool forgotten(struct task *t)
{
    if (t->home != NULL && !t->forgotten)
        t->forgotten = t->ops->forget(t) != -EAGAIN;
    return t->home == NULL || t->forgotten;
}

/* Nothing can come of it any more. */
static bool is_over(struct task *t)
{
    if (is_proc(t))
        return t->user >= TASK_ENDING && forgotten(t);
    return t->state != TASK_RUNNING && !t->ops->open(t);
}

void task_settle(struct task *t)
{
    if (t->busy > 0 || !is_over(t))
        return;
    if (!is_proc(t) && t->state == TASK_EXITED)
        tell_finished(t);
    if (t->user != TASK_FREED)
        return;
    task_unlink(t);
    loop_timer_stop(&t->drain);
    loop_timer_stop(&t->overdue);
    loop_defer_stop(&t->news);
    buf_done(&t->in);
    buf_done(&t->copy.out);
    buf_done(&t->copy.err);
    t->ops->free(t);
}

/* Commands. */

/* No output came for a while, but background processes hold the pipes: they do not hold the answer.
 * On a busy host it may be boxd that did not read in time, so it looks once more. */
static void on_drained(struct loop_timer *timer)
{
    struct task *t = container_of(timer, struct task, drain);
    t->busy++;
    if (!t->paused)
        t->ops->read(t); /* which starts the timer again when there was any */
    t->busy--;
    if (timer->loop == NULL && t->paused)
        loop_timer_start(t->loop, timer, DRAIN_NS, on_drained);
    else if (timer->loop == NULL && t->state == TASK_EXITED)
        tell_finished(t);
    task_settle(t);
}

void task_output(struct task *t, enum exec_stream stream, const char *data, size_t len)
{
    if (!task_hears(t))
        return;
    if (t->state == TASK_EXITED)
        loop_timer_start(t->loop, &t->drain, DRAIN_NS, on_drained);
    t->events.exec.output(t->arg, stream, data, len);
}

static void exec_pause(struct exec *e, bool paused)
{
    struct task *t = of_exec(e);
    /* A killed command writes no more than its pipes hold: those are read even while paused, so
     * that its end does not wait for the reader. */
    t->paused = paused && !(t->killed && t->state != TASK_RUNNING);
    t->ops->pause(t);
}

static void end_exec(struct task *t)
{
    if (t->state == TASK_RUNNING)
        task_move(t, TASK_EXITED);
    if (!t->killed)
        loop_timer_stop(&t->overdue);
    drop_stdin(t);
    exec_pause(&t->exec, t->paused);
    if (t->state == TASK_EXITED && t->ops->open(t))
        loop_timer_start(t->loop, &t->drain, DRAIN_NS, on_drained);
    task_settle(t);
}

void task_exec_exited(struct task *t, const struct outcome *outcome)
{
    struct tasks *home = t->home;
    bool unended = outcome->unended;
    assert(home->running > 0);
    home->running--;
    t->outcome = *outcome;
    end_exec(t); /* which may free it, and `outcome` with it */
    if (unended)
        home->ops->lose(home);
}

/* An answer that says how it ended has the output that came before. */
static void end_lost_exec(struct task *t)
{
    t->paused = false;
    t->busy++;
    t->ops->read(t);
    t->busy--;
    end_exec(t);
}

static void on_lost_exec(struct loop_defer *d)
{
    end_lost_exec(container_of(d, struct task, news));
}

/* The user of one that is FREED need not be told: the loop may never turn again. */
static void lose_exec(struct task *t)
{
    task_unlink(t);
    if (t->user == TASK_FREED)
        end_lost_exec(t);
    else
        loop_defer_start(t->loop, &t->news, on_lost_exec);
}

/* What runs in the sandbox enforces timeouts and kills. When it does not, it is stopped, starved or
 * frozen: the user gets an answer, and the sandbox goes. */
static void on_overdue_exec(struct loop_timer *timer)
{
    struct task *t = container_of(timer, struct task, overdue);
    struct tasks *home = t->home;
    if (t->state != TASK_RUNNING) { /* killed, and a process of another command holds its pipes */
        if (t->state == TASK_EXITED)
            tell_finished(t);
        task_settle(t);
        return;
    }
    if (home == NULL)
        return;
    if (home->frozen) {
        loop_timer_start(t->loop, timer, BACKEND_OVERDUE_NS, on_overdue_exec);
        return;
    }
    home->running--;
    t->outcome = (struct outcome){.kind = t->killed ? OUTCOME_SESSION_LOST : OUTCOME_TIMED_OUT,
                                  .unended = true};
    lose_exec(t);
    home->ops->lose(home);
}

static int exec_start(struct sandbox *sb, const struct exec_request *req,
                      const struct exec_events *events, void *arg, struct exec **ret,
                      struct err *err)
{
    struct tasks *home = of_sandbox(sb);
    if (!home->ops->ready(home))
        return err_set(err, ERR_STATE, "the session is not running");
    if (home->running >= home->ops->execs_max)
        return err_set(err, ERR_LIMIT, "%u commands run in this session already", home->running);
    struct task *t = home->ops->exec_start(home, req, err);
    if (t == NULL)
        return err_code_errno(err->code);
    task_link(t, home, &home->execs);
    t->exec.backend = sb->backend;
    t->user = TASK_TAKEN;
    t->events.exec = *events;
    t->arg = arg;
    t->tty = req->tty;
    t->in_state = req->with_stdin || req->tty ? TASK_STDIN_OPEN : TASK_STDIN_CLOSED;
    buf_init(&t->in, STDIN_QUEUE_MAX);
    home->running++;
    if (req->timeout_ns > 0)
        loop_timer_start(t->loop, &t->overdue, req->timeout_ns + BACKEND_OVERDUE_NS,
                         on_overdue_exec);
    *ret = &t->exec;
    return 0;
}

static int exec_write(struct exec *e, const char *data, size_t len)
{
    return write_stdin(of_exec(e), data, len);
}

static void exec_close_stdin(struct exec *e)
{
    struct task *t = of_exec(e);
    if (t->tty)
        (void)write_stdin(t, "\004", 1); /* what a person would type */
    else
        close_stdin(t);
}

static void exec_signal(struct exec *e, int signo)
{
    struct task *t = of_exec(e);
    if (t->home != NULL && signo > 0)
        t->ops->kill(t, signo, false);
}

void task_exec_kill(struct exec *e)
{
    struct task *t = of_exec(e);
    if (t->home == NULL)
        return;
    t->ops->kill(t, SIGKILL, true);
    if (t->state != TASK_RUNNING || t->killed)
        return;
    t->killed = true;
    loop_timer_start(t->loop, &t->overdue, BACKEND_OVERDUE_NS, on_overdue_exec);
}

static void exec_free(struct exec *e)
{
    if (e == NULL)
        return;
    struct task *t = of_exec(e);
    user_move(t, TASK_FREED);
    drop_stdin(t);
    exec_pause(e, false);
    if (t->home == NULL && t->state == TASK_RUNNING)
        end_lost_exec(t);
    else
        task_settle(t);
}

static void exec_resize(struct exec *e, uint16_t rows, uint16_t cols)
{
    struct task *t = of_exec(e);
    if (t->home != NULL && t->tty)
        t->ops->resize(t, rows, cols);
}

/* Managed processes. Their output, unless the transport has it where it can be read: copies are
 * never larger than what the sandbox keeps, so that reading needs no waiting. */

int task_copy_output(struct task *t, const char *data, size_t len)
{
    if (t->log && t->copy.out.len + len > GUEST_RING) {
        /* A quarter at once: what is left has to be moved. */
        size_t gone = inside_log_excess(t->copy.out.data, t->copy.out.len, GUEST_RING / 4 * 3);
        t->copy.begin += gone;
        buf_consume(&t->copy.out, gone);
    }
    return buf_append(&t->copy.out, data, len);
}

void task_copy_stderr(struct task *t, const char *data, size_t len)
{
    struct buf *kept = &t->copy.err;
    t->copy.err_end += len;
    if (len > GUEST_STDERR_KEPT) {
        data += len - GUEST_STDERR_KEPT;
        len = GUEST_STDERR_KEPT;
    }
    if (kept->len + len > GUEST_STDERR_KEPT)
        buf_consume(kept, kept->len + len - GUEST_STDERR_KEPT);
    (void)buf_append(kept, data, len);
}

static struct proc_range range_of(const struct task *t)
{
    if (t->ops->range != NULL)
        return t->ops->range(t);
    uint64_t end = t->copy.begin + t->copy.out.len;
    bool eof = t->copy.eof, behind = !eof && end < t->copy.known;
    return (struct proc_range){.begin = t->copy.begin, .end = end, .eof = eof, .behind = behind};
}

static struct proc_range proc_range(const struct proc *p)
{
    return range_of(container_of(p, const struct task, proc));
}

/* From `at` on, of a buffer whose first byte has the offset `begin`. */
static size_t copy_from(const struct buf *b, uint64_t begin, uint64_t at, char *ret, size_t size)
{
    assert(at >= begin && at <= begin + b->len);
    size_t left = (size_t)(begin + b->len - at), n = left < size ? left : size;
    if (n > 0)
        memcpy(ret, b->data + (size_t)(at - begin), n);
    return n;
}

static ssize_t proc_read(struct proc *p, uint64_t from, char *buf, size_t size)
{
    struct task *t = of_proc(p);
    if (t->ops->read_out != NULL)
        return t->ops->read_out(t, from, buf, size);
    if (from < t->copy.begin || from > t->copy.begin + t->copy.out.len)
        return -ERANGE;
    return (ssize_t)copy_from(&t->copy.out, t->copy.begin, from, buf, size);
}

static void proc_release(struct proc *p, uint64_t upto)
{
    struct task *t = of_proc(p);
    if (t->ops->release != NULL) {
        t->ops->release(t, upto);
        return;
    }
    if (t->log || upto <= t->copy.begin || upto > t->copy.begin + t->copy.out.len)
        return;
    buf_consume(&t->copy.out, (size_t)(upto - t->copy.begin));
    t->copy.begin = upto;
    if (t->copy.out.len == 0)
        buf_done(&t->copy.out);
    t->ops->released(t);
}

static size_t proc_stderr_from(struct proc *p, uint64_t *at, char *buf, size_t size)
{
    struct task *t = of_proc(p);
    if (t->ops->read_err_from != NULL)
        return t->ops->read_err_from(t, at, buf, size);
    uint64_t begin = t->copy.err_end - t->copy.err.len;
    if (*at < begin)
        *at = begin;
    if (*at > t->copy.err_end) /* it counted with an earlier daemon */
        *at = t->copy.err_end;
    size_t n = copy_from(&t->copy.err, begin, *at, buf, size);
    *at += n;
    return n;
}

static size_t proc_stderr(struct proc *p, char *buf, size_t size)
{
    struct task *t = of_proc(p);
    if (t->ops->read_err != NULL)
        return t->ops->read_err(t, buf, size);
    uint64_t at = t->copy.err_end - (t->copy.err.len < size ? t->copy.err.len : size);
    return proc_stderr_from(p, &at, buf, size);
}

/* Their life. */

void task_proc_init(struct task *t, struct tasks *home)
{
    task_link(t, home, &home->procs);
    t->proc.backend = home->sandbox.backend;
    buf_init(&t->in, STDIN_QUEUE_MAX);
    buf_init(&t->copy.out, GUEST_RING);
    buf_init(&t->copy.err, GUEST_STDERR_KEPT);
}

static void proc_take(struct task *t, const struct proc_events *events, void *arg)
{
    user_move(t, TASK_TAKEN);
    t->events.proc = *events;
    t->arg = arg;
}

static int proc_start(struct sandbox *sb, const struct proc_request *req,
                      const struct proc_events *events, void *arg, struct proc **ret,
                      struct err *err)
{
    struct tasks *home = of_sandbox(sb);
    if (!home->ops->ready(home))
        return err_set(err, ERR_STATE, "the session is not running");
    struct task *t = home->ops->proc_start(home, req, err);
    if (t == NULL)
        return err_code_errno(err->code);
    task_proc_init(t, home);
    proc_take(t, events, arg);
    t->log = req->log;
    if (t->log && !req->with_stdin && !req->tty)
        t->in_state = TASK_STDIN_CLOSED;
    *ret = &t->proc;
    return 0;
}

static int proc_adopt(struct sandbox *sb, uint32_t number, const struct proc_events *events,
                      void *arg, struct proc **ret, struct err *err)
{
    struct tasks *home = of_sandbox(sb);
    struct task *t = home->ops->proc_adopt(home, number);
    if (t == NULL)
        return err_set(err, ERR_NOT_FOUND, "the session has no managed process %u", number);
    if (t->home == NULL)
        task_proc_init(t, home);
    proc_take(t, events, arg);
    if (t->ops->adopted != NULL)
        t->ops->adopted(t);
    *ret = &t->proc;
    return 0;
}

void task_proc_output(struct task *t)
{
    if (t->user != TASK_TAKEN || t->told_eof)
        return;
    t->told_eof = range_of(t).eof;
    t->events.proc.output(t->arg);
}

static void tell_exited(struct task *t)
{
    if (t->user != TASK_TAKEN || t->state != TASK_EXITED)
        return;
    task_move(t, TASK_TOLD);
    t->events.proc.exited(t->arg, &t->outcome);
}

static void tell_ended(struct task *t, const struct err *err)
{
    backend_done_fn *done = TAKE_PTR(t->gone);
    loop_timer_stop(&t->overdue);
    if (done != NULL)
        done(t->gone_arg, err);
}

void task_proc_exited(struct task *t, const struct outcome *outcome)
{
    if (t->state != TASK_RUNNING)
        return;
    task_move(t, TASK_EXITED);
    t->outcome = *outcome;
    drop_stdin(t);
    t->busy++;
    tell_exited(t);
    if (range_of(t).eof) /* it never ran: there is no other end of its output */
        task_proc_output(t);
    t->busy--;
    task_settle(t);
}

void task_proc_gone(struct task *t)
{
    if (t->user != TASK_ENDING)
        return;
    t->busy++;
    tell_ended(t, NULL);
    t->busy--;
    task_settle(t);
}

static void on_news_proc(struct loop_defer *d)
{
    struct task *t = container_of(d, struct task, news);
    t->busy++;
    if (t->home == NULL)
        t->ops->read(t);
    task_drained(t);
    struct proc_range range = range_of(t);
    if (range.end > range.begin || range.eof)
        task_proc_output(t);
    tell_exited(t);
    if (t->home == NULL) /* it went with all the others */
        tell_ended(t, NULL);
    t->busy--;
    task_settle(t);
}

void task_proc_later(struct task *t)
{
    loop_defer_start(t->loop, &t->news, on_news_proc);
}

static void lose_proc(struct task *t)
{
    task_unlink(t);
    if (t->state == TASK_RUNNING) {
        t->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
        task_move(t, TASK_EXITED);
    }
    drop_stdin(t);
    if (t->user == TASK_UNTAKEN)
        user_move(t, TASK_FREED);
    if (t->user == TASK_FREED)
        task_settle(t);
    else
        task_proc_later(t);
}

void tasks_lose(struct tasks *home)
{
    struct task *t;
    while ((t = LIST_FIRST(&home->execs)) != NULL) {
        if (t->state == TASK_RUNNING)
            t->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
        lose_exec(t);
    }
    home->running = 0;
    while ((t = LIST_FIRST(&home->procs)) != NULL)
        lose_proc(t);
    looks_lose(home);
}

void tasks_drop(struct tasks *home)
{
    struct task *t;
    while ((t = LIST_FIRST(&home->procs)) != NULL) {
        task_unlink(t);
        if (t->user != TASK_FREED)
            task_proc_free(&t->proc);
    }
}

static int proc_write(struct proc *p, const char *data, size_t len)
{
    return write_stdin(of_proc(p), data, len);
}

static size_t proc_unwritten(const struct proc *p)
{
    return unwritten(container_of(p, const struct task, proc));
}

void task_proc_close_stdin(struct proc *p)
{
    close_stdin(of_proc(p));
}

static void proc_resize(struct proc *p, uint16_t rows, uint16_t cols)
{
    struct task *t = of_proc(p);
    if (t->home != NULL)
        t->ops->resize(t, rows, cols);
}

static void proc_signal(struct proc *p, int signo)
{
    struct task *t = of_proc(p);
    if (t->home != NULL && signo > 0)
        t->ops->kill(t, signo, false);
}

void task_proc_kill(struct proc *p)
{
    struct task *t = of_proc(p);
    if (t->home != NULL)
        t->ops->kill(t, SIGKILL, true);
}

/* PID 1 does not answer: what it is to end can be ended only with it. */
static void on_overdue_proc(struct loop_timer *timer)
{
    struct task *t = container_of(timer, struct task, overdue);
    struct tasks *home = t->home;
    struct err err = {0};
    if (home != NULL && home->frozen) {
        loop_timer_start(t->loop, timer, BACKEND_OVERDUE_NS, on_overdue_proc);
        return;
    }
    (void)backend_unended(&err, "process");
    t->busy++;
    tell_ended(t, &err);
    t->busy--;
    task_settle(t);
    if (home != NULL)
        home->ops->lose(home);
}

static void proc_end(struct proc *p, backend_done_fn *done, void *arg)
{
    struct task *t = of_proc(p);
    user_move(t, TASK_ENDING);
    t->gone = done;
    t->gone_arg = arg;
    loop_defer_stop(&t->news);
    drop_stdin(t);
    if (t->home == NULL) {
        task_proc_later(t);
        return;
    }
    (void)forgotten(t);
    loop_timer_start(t->loop, &t->overdue, BACKEND_OVERDUE_NS, on_overdue_proc);
}

void task_proc_free(struct proc *p)
{
    if (p == NULL)
        return;
    struct task *t = of_proc(p);
    user_move(t, TASK_FREED);
    t->gone = NULL;
    loop_defer_stop(&t->news);
    drop_stdin(t);
    task_settle(t);
}

/* All of a sandbox. */

void tasks_init(struct tasks *home, struct backend *b, const struct tasks_ops *ops,
                struct loop *loop)
{
    home->sandbox.backend = b;
    home->ops = ops;
    home->loop = loop;
    LIST_INIT(&home->execs);
    LIST_INIT(&home->procs);
    LIST_INIT(&home->looks);
}

void tasks_operations(struct backend_ops *ops)
{
    ops->exec = exec_start;
    ops->exec_write = exec_write;
    ops->exec_close_stdin = exec_close_stdin;
    ops->exec_signal = exec_signal;
    ops->exec_kill = task_exec_kill;
    ops->exec_resize = exec_resize;
    ops->exec_pause = exec_pause;
    ops->exec_free = exec_free;
    ops->proc_start = proc_start;
    ops->proc_adopt = proc_adopt;
    ops->proc_range = proc_range;
    ops->proc_read = proc_read;
    ops->proc_release = proc_release;
    ops->proc_stderr = proc_stderr;
    ops->proc_stderr_from = proc_stderr_from;
    ops->proc_write = proc_write;
    ops->proc_unwritten = proc_unwritten;
    ops->proc_close_stdin = task_proc_close_stdin;
    ops->proc_resize = proc_resize;
    ops->proc_signal = proc_signal;
    ops->proc_kill = task_proc_kill;
    ops->proc_end = proc_end;
    ops->proc_free = task_proc_free;
    ops->top = tasks_top;
    ops->end_left = tasks_end_left;
}
