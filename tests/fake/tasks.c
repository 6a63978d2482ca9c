/* SPDX-License-Identifier: Apache-2.0 */

/* Programs of the fake backend: runs their steps on the loop, as commands and as managed
 * processes. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"
#include "fake/fake_internal.h"
#include "inside/wire.h"

#define CHUNK 65536U
#define COMMAND_MAX (16U << 20)
#define PIPE_MAX (64U << 10) /* of stdin that the program has not read yet */
#define RING (64U << 10)     /* output of a managed process; above it the program is held back */
#define SLEEP_MS_MAX (1ULL << 40)
#define BAD_USAGE 2 /* exit code of a step whose argument makes no sense */

enum progress {
    STEP_DONE,
    STEP_AGAIN, /* more to do at once */
    STEP_WAITS, /* for stdin, a timer, or the reader of its output */
};

struct program {
    struct task task;
    char **steps; /* owned */
    size_t at;    /* which of them */
    bool begun;   /* the step has read its argument into `left`, or set its timer */
    uint64_t left;
    char **env;    /* owned */
    char *cwd;     /* owned */
    bool stubborn; /* only SIGKILL ends it */
    bool ended;    /* `outcome` is known */
    struct buf pipe;
    uint64_t started_ns;
    struct loop_timer timeout, sleep;
    struct loop_defer turn, gone;
    struct outcome outcome;
};

static void on_turn(struct loop_defer *d);

static struct program *program_of(struct task *t)
{
    return container_of(t, struct program, task);
}

static bool is_proc(const struct program *p)
{
    return p->task.ops->forget != NULL;
}

static struct loop *loop_of(const struct program *p)
{
    return p->task.loop;
}

static void run_later(struct program *p)
{
    loop_defer_start(loop_of(p), &p->turn, on_turn);
}

/* The first reason to end is the one that counts. */
static void end(struct program *p, const struct outcome *outcome)
{
    if (p->ended)
        return;
    p->ended = true;
    p->task.in_state = TASK_STDIN_CLOSED; /* it reads no more */
    p->outcome = *outcome;
    p->outcome.duration_ns = loop_now(loop_of(p)) - p->started_ns;
    loop_timer_stop(&p->timeout);
    loop_timer_stop(&p->sleep);
    run_later(p);
}

static void output(struct program *p, enum exec_stream stream, const char *data, size_t len)
{
    if (is_proc(p) && p->task.log) {
        const struct inside_log head = {.time_ns = clock_real(loop_clock(loop_of(p))),
                                        .len = (uint32_t)len,
                                        .stream = stream == EXEC_STDERR};
        (void)task_copy_output(&p->task, (const char *)&head, sizeof(head));
        (void)task_copy_output(&p->task, data, len);
        task_proc_output(&p->task);
    } else if (!is_proc(p)) {
        task_output(&p->task, stream, data, len);
    } else if (stream == EXEC_STDERR) {
        task_copy_stderr(&p->task, data, len);
    } else {
        (void)task_copy_output(&p->task, data, len);
        task_proc_output(&p->task);
    }
}

/* Whether what it writes has to wait for the reader. */
static bool is_held_back(const struct program *p)
{
    if (is_proc(p))
        return !p->task.log && p->task.copy.out.len >= RING;
    return p->task.paused && task_hears(&p->task);
}

static void on_slept(struct loop_timer *t)
{
    struct program *p = container_of(t, struct program, sleep);
    p->begun = false;
    p->at++;
    run_later(p);
}

static enum progress leave(struct program *p, const struct outcome *outcome)
{
    end(p, outcome);
    return STEP_WAITS;
}

/* The step's number, into `left`, once. */
static bool read_number(struct program *p, const char *arg)
{
    if (!p->begun && str_to_u64(arg, &p->left) < 0)
        return false;
    p->begun = true;
    return true;
}

static enum progress say_line(struct program *p, enum exec_stream stream, const char *text)
{
    AUTO_FREE char *line = xasprintf("%s\n", text);
    output(p, stream, line, strlen(line));
    return STEP_DONE;
}

static enum progress do_echo(struct program *p, const char *arg)
{
    return say_line(p, EXEC_STDOUT, arg);
}

static enum progress do_err(struct program *p, const char *arg)
{
    return say_line(p, EXEC_STDERR, arg);
}

static enum progress do_pwd(struct program *p, const char *arg)
{
    return say_line(p, EXEC_STDOUT, p->cwd);
}

static enum progress do_env(struct program *p, const char *arg)
{
    for (size_t i = 0; p->env != NULL && p->env[i] != NULL; i++)
        (void)say_line(p, EXEC_STDOUT, p->env[i]);
    return STEP_DONE;
}

static enum progress do_flood(struct program *p, const char *arg)
{
    static char chunk[CHUNK];
    if (!read_number(p, arg))
        return leave(p, &(struct outcome){.exit_code = BAD_USAGE});
    size_t n = p->left < CHUNK ? (size_t)p->left : CHUNK;
    memset(chunk, 'x', sizeof(chunk));
    p->left -= n;
    if (n > 0)
        output(p, EXEC_STDOUT, chunk, n);
    return p->left > 0 ? STEP_AGAIN : STEP_DONE;
}

static enum progress do_cat(struct program *p, const char *arg)
{
    struct task *t = &p->task;
    if (p->pipe.len == 0)
        return t->in_state == TASK_STDIN_CLOSED ? STEP_DONE : STEP_WAITS;
    struct buf taken = p->pipe; /* a callback may write more */
    buf_init(&p->pipe, PIPE_MAX);
    t->in_flight -= taken.len;
    output(p, EXEC_STDOUT, taken.data, taken.len);
    buf_done(&taken);
    task_flush(t);
    task_drained(t);
    return STEP_AGAIN;
}

static enum progress do_sleep(struct program *p, const char *arg)
{
    if (p->begun)
        return STEP_WAITS; /* woken by something else */
    if (!read_number(p, arg))
        return leave(p, &(struct outcome){.exit_code = BAD_USAGE});
    uint64_t ms = p->left < SLEEP_MS_MAX ? p->left : SLEEP_MS_MAX;
    loop_timer_start(loop_of(p), &p->sleep, ms * NSEC_PER_MSEC, on_slept);
    return STEP_WAITS;
}

static enum progress do_exit(struct program *p, const char *arg)
{
    bool ok = read_number(p, arg) && p->left <= 255;
    return leave(p, &(struct outcome){.exit_code = ok ? (int)p->left : BAD_USAGE});
}

static enum progress do_kill(struct program *p, const char *arg)
{
    if (str_eq(arg, "-9 -1")) /* all the others: it has none */
        return STEP_DONE;
    if (!read_number(p, arg) || p->left == 0 || p->left >= NSIG)
        return leave(p, &(struct outcome){.exit_code = BAD_USAGE});
    return leave(p, &(struct outcome){.kind = OUTCOME_SIGNALED, .signo = (int)p->left});
}

static enum progress do_die(struct program *p, const char *arg)
{
    if (p->task.home != NULL)
        fake_lose(container_of(p->task.home, struct fake_sandbox, tasks));
    return STEP_WAITS;
}

static enum progress do_ignore(struct program *p, const char *arg)
{
    p->stubborn = true;
    return STEP_DONE;
}

static const struct {
    const char *name;
    enum progress (*run)(struct program *p, const char *arg);
    bool writes; /* waits while its output is not read */
} verbs[] = {
    {"echo", do_echo, true},  {"err", do_err, true},        {"pwd", do_pwd, true},
    {"env", do_env, true},    {"flood", do_flood, true},    {"cat", do_cat, true},
    {"exit", do_exit, false}, {"sleep", do_sleep, false},   {"kill", do_kill, false},
    {"die", do_die, false},   {"ignore", do_ignore, false},
};

static bool is_verb(const char *word)
{
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (str_eq(verbs[i].name, word))
            return true;
    return false;
}

static enum progress run_step(struct program *p, const char *step)
{
    size_t len = strcspn(step, " ");
    const char *arg = step + len + strspn(step + len, " ");
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++) {
        if (strlen(verbs[i].name) != len || strncmp(verbs[i].name, step, len) != 0)
            continue;
        if (verbs[i].writes && is_held_back(p))
            return STEP_WAITS;
        return verbs[i].run(p, arg);
    }
    struct outcome unknown = {.exit_code = 127};
    (void)snprintf(unknown.error, sizeof(unknown.error), "cannot execute: %s",
                   err_errno_text(ENOENT));
    return leave(p, &unknown);
}

static void finish_proc(struct program *p)
{
    p->task.copy.eof = true;
    task_proc_exited(&p->task, &p->outcome);
}

static void run(struct program *p)
{
    if (p->steps == NULL || p->steps[p->at] == NULL) {
        end(p, &(struct outcome){.kind = OUTCOME_EXITED});
        return;
    }
    enum progress progress = run_step(p, p->steps[p->at]);
    if (progress == STEP_DONE) {
        p->at++;
        p->begun = false;
    }
    if (progress != STEP_WAITS)
        run_later(p);
}

static void on_turn(struct loop_defer *d)
{
    struct program *p = container_of(d, struct program, turn);
    struct task *t = &p->task;
    if (t->home == NULL || t->state != TASK_RUNNING)
        return;
    t->busy++;
    if (!p->ended)
        run(p);
    bool told = p->ended && d->loop == NULL; /* not in the turn in which it ends */
    t->busy--;
    if (!told)
        task_settle(t);
    else if (is_proc(p))
        finish_proc(p);
    else
        task_exec_exited(t, &p->outcome);
}

static void on_timeout(struct loop_timer *t)
{
    end(container_of(t, struct program, timeout), &(struct outcome){.kind = OUTCOME_TIMED_OUT});
}

/* The transport. */

static ssize_t stdin_write(struct task *t, const char *data, size_t len)
{
    struct program *p = program_of(t);
    size_t room = PIPE_MAX - p->pipe.len, n = len < room ? len : room;
    if (n == 0)
        return -EAGAIN;
    (void)buf_append(&p->pipe, data, n);
    t->in_flight += n;
    run_later(p);
    return (ssize_t)n;
}

static int stdin_close(struct task *t)
{
    run_later(program_of(t));
    return 0;
}

static void send_signal(struct task *t, int signo, bool tree)
{
    struct program *p = program_of(t);
    if (p->stubborn && signo != SIGKILL)
        return;
    if (signo < NSIG && signo != SIGCONT && signo != SIGWINCH && signo != SIGCHLD)
        end(p, &(struct outcome){.kind = OUTCOME_SIGNALED, .signo = signo});
}

static void stop(struct program *p)
{
    loop_timer_stop(&p->timeout);
    loop_timer_stop(&p->sleep);
    loop_defer_stop(&p->turn);
}

static void read_last(struct task *t)
{
    stop(program_of(t));
    t->copy.eof = true;
}

static void program_free(struct task *t)
{
    struct program *p = program_of(t);
    stop(p);
    loop_defer_stop(&p->gone);
    strv_free(p->steps);
    strv_free(p->env);
    free(p->cwd);
    buf_done(&p->pipe);
    free(p);
}

static bool exec_open(const struct task *t)
{
    return false; /* all that it has written was told at once */
}

static void exec_read(struct task *t)
{
    if (t->home == NULL)
        stop(program_of(t));
}

static void go_on(struct task *t)
{
    if (!t->paused)
        run_later(program_of(t));
}

static void resize(struct task *t, uint16_t rows, uint16_t cols)
{
    (void)t; /* there is no terminal */
}

static const struct task_ops exec_ops = {
    .write = stdin_write,
    .close_stdin = stdin_close,
    .kill = send_signal,
    .read = exec_read,
    .free = program_free,
    .open = exec_open,
    .pause = go_on,
    .resize = resize,
};

static void on_gone(struct loop_defer *d)
{
    task_proc_gone(&container_of(d, struct program, gone)->task);
}

static int forget(struct task *t)
{
    struct program *p = program_of(t);
    stop(p);
    loop_defer_start(t->loop, &p->gone, on_gone);
    return 0;
}

static const struct task_ops proc_ops = {
    .write = stdin_write,
    .close_stdin = stdin_close,
    .kill = send_signal,
    .resize = resize,
    .read = read_last,
    .free = program_free,
    .adopted = task_proc_later,
    .forget = forget,
    .released = go_on,
};

/* Starting. */

static char *strip_blanks(char *s)
{
    s += strspn(s, " \n");
    size_t len = strlen(s);
    while (len > 0 && (s[len - 1] == ' ' || s[len - 1] == '\n'))
        s[--len] = '\0';
    return s;
}

static int read_steps(const struct exec_request *req, char ***ret, struct err *err)
{
    char *save = NULL;
    if (req->argv != NULL) {
        AUTO_DONE(buf) struct buf words;
        int r = 0;
        buf_init(&words, COMMAND_MAX);
        for (size_t i = 0; r == 0 && req->argv[i] != NULL; i++)
            r = buf_printf(&words, "%s%s", i > 0 ? " " : "", req->argv[i]);
        if (r < 0)
            return err_set(err, ERR_LIMIT, "the command is larger than %u MiB", COMMAND_MAX >> 20);
        strv_push(ret, buf_take(&words));
        return 0;
    }
    AUTO_FREE char *cmd = xstrdup(req->cmd != NULL ? req->cmd : "");
    for (char *step = strtok_r(cmd, ";", &save); step != NULL; step = strtok_r(NULL, ";", &save)) {
        step = strip_blanks(step);
        if (*step != '\0')
            strv_add(ret, step);
    }
    return 0;
}

static struct program *program_new(struct fake_sandbox *sb, const struct exec_request *req,
                                   const struct task_ops *ops, struct err *err)
{
    AUTO_STRV char **steps = NULL;
    if (read_steps(req, &steps, err) < 0)
        return NULL;
    struct program *p = xnew(struct program);
    p->task.ops = ops;
    p->task.id = ++sb->next_id;
    p->task.loop = sb->tasks.loop;
    p->env = strv_copy(sb->env);
    for (size_t i = 0; req->env != NULL && req->env[i] != NULL; i++)
        strv_add(&p->env, req->env[i]);
    p->cwd = xstrdup(req->cwd != NULL ? req->cwd : sb->workdir);
    p->started_ns = loop_now(sb->tasks.loop);
    buf_init(&p->pipe, PIPE_MAX);
    p->steps = TAKE_PTR(steps);
    if (req->timeout_ns > 0)
        loop_timer_start(sb->tasks.loop, &p->timeout, req->timeout_ns, on_timeout);
    run_later(p);
    return p;
}

static struct task *exec_start(struct tasks *home, const struct exec_request *req, struct err *err)
{
    struct fake_sandbox *sb = container_of(home, struct fake_sandbox, tasks);
    if (fake_fault(sb->fake, FAKE_EXEC, err))
        return NULL;
    if (req->files) {
        (void)err_set(err, ERR_UNSUPPORTED, "the backend 'fake' has no files; use another backend");
        return NULL;
    }
    struct program *p = program_new(sb, req, &exec_ops, err);
    return p != NULL ? &p->task : NULL;
}

static struct task *proc_start(struct tasks *home, const struct proc_request *req, struct err *err)
{
    struct fake_sandbox *sb = container_of(home, struct fake_sandbox, tasks);
    struct exec_request exec = {.env = req->env, .cwd = req->cwd};
    if (fake_fault(sb->fake, FAKE_PROC_START, err))
        return NULL;
    if ((str_eq(req->argv[0], "sh") || str_eq(req->argv[0], "/bin/sh")) && req->argv[1] != NULL &&
        req->argv[2] != NULL)
        exec.cmd = req->argv[2];
    else if (is_verb(req->argv[0]))
        exec.argv = req->argv;
    else
        exec.cmd = "cat";
    struct program *p = program_new(sb, &exec, &proc_ops, err);
    if (p == NULL)
        return NULL;
    p->task.id = req->number;
    return &p->task;
}

static struct task *proc_adopt(struct tasks *home, uint32_t number)
{
    struct task *t = task_find(&home->procs, number);
    return t != NULL && t->user == TASK_UNTAKEN ? t : NULL;
}

static bool is_ready(const struct tasks *home)
{
    const struct fake_sandbox *sb = container_of(home, const struct fake_sandbox, tasks);
    return sb->state == FAKE_READY && !sb->lost;
}

static void lose_sandbox(struct tasks *home)
{
    fake_lose(container_of(home, struct fake_sandbox, tasks));
}

/* Every command that runs is a process; the first of those behind that number. */
static int list_processes(struct tasks *home, uint32_t look, uint32_t after)
{
    struct inside_process rows[INSIDE_LIST_MAX] = {0};
    size_t n = 0;
    for (const struct task *t = NULL, *next; n < INSIDE_LIST_MAX; after = t->id) {
        t = NULL;
        LIST_FOREACH (next, &home->execs, entry)
            if (next->id > after && (t == NULL || next->id < t->id))
                t = next;
        if (t == NULL)
            break;
        rows[n++] = (struct inside_process){
            .pid = t->id, .parent = 1, .owner = INSIDE_OWNER_EXEC, .state = 'S', .command = "fake"};
    }
    looks_answer(home, look, rows, n, 0);
    return 0;
}

static int end_left(struct tasks *home, const char *label)
{
    return 0;
}

const struct tasks_ops fake_tasks_ops = {
    .execs_max = UINT32_MAX,
    .ready = is_ready,
    .exec_start = exec_start,
    .proc_start = proc_start,
    .proc_adopt = proc_adopt,
    .lose = lose_sandbox,
    .list = list_processes,
    .end_left = end_left,
};

/* A daemon that is killed, and the next one. */

void fake_tasks_orphan(struct fake_sandbox *sb)
{
    struct task *t;
    LIST_FOREACH (t, &sb->tasks.procs, entry) {
        loop_defer_stop(&t->news);
        t->user = TASK_UNTAKEN;
        t->told_eof = t->in_held_back = false;
        if (t->state == TASK_TOLD)
            t->state = TASK_EXITED;
    }
}

void fake_tasks_end_untaken(struct fake_sandbox *sb, uint32_t number)
{
    struct task *t, *next;
    LIST_FOREACH_SAFE (t, &sb->tasks.procs, entry, next)
        if (t->user == TASK_UNTAKEN && (number == 0 || t->id == number))
            task_proc_free(&t->proc);
}

void fake_tasks_end_detached(struct fake_sandbox *sb)
{
    struct task *t;
    LIST_FOREACH (t, &sb->tasks.execs, entry)
        if (t->user == TASK_FREED)
            end(program_of(t), &(struct outcome){.kind = OUTCOME_SESSION_LOST});
}
