/* SPDX-License-Identifier: Apache-2.0 */

/* Commands of the fake backend: runs their steps on the loop, with output, stdin, signals and
 * timeout. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "backend/fake/fake_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"

#define CHUNK 65536U
#define COMMAND_MAX (16U << 20)
#define STDIN_QUEUE_MAX (16U << 20)
#define STDIN_HIGH_WATER (256U << 10) /* as with a real program: above it the writer holds back */
#define SLEEP_MS_MAX (1ULL << 40)
#define BAD_USAGE 2 /* exit code of a step whose argument makes no sense */

enum progress {
    STEP_DONE,
    STEP_AGAIN, /* more to do at once */
    STEP_WAITS, /* for stdin, a timer, or the reader of its output */
};

struct fake_exec {
    struct exec base;
    struct loop *loop;       /* borrowed */
    struct fake_sandbox *sb; /* NULL once the sandbox is gone */
    struct fake_exec *prev, *next;
    struct exec_events events;
    void *arg;
    char **steps; /* owned */
    size_t at;    /* which of them */
    bool begun;   /* the step has read its argument into `left`, or set its timer */
    uint64_t left;
    char **env; /* owned */
    char *cwd;  /* owned */
    bool ended; /* the outcome is known */
    bool told;  /* and its user knows it */
    bool detached, paused, close_in, held_back;
    bool stubborn; /* only SIGKILL ends it */
    unsigned busy; /* callbacks under way: not to be freed underneath them */
    struct buf in;
    uint64_t started_ns;
    struct loop_timer timeout, sleep;
    struct loop_defer turn;
    struct outcome outcome;
};

static void on_turn(struct loop_defer *d);

static struct fake_exec *exec_of(struct exec *e)
{
    return container_of(e, struct fake_exec, base);
}

static void unlink_exec(struct fake_exec *e)
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

static void maybe_free(struct fake_exec *e)
{
    if (e->busy > 0 || !e->detached || !e->told)
        return;
    unlink_exec(e);
    loop_timer_stop(&e->timeout);
    loop_timer_stop(&e->sleep);
    loop_defer_stop(&e->turn);
    strv_free(e->steps);
    strv_free(e->env);
    free(e->cwd);
    buf_done(&e->in);
    free(e);
}

/* The first reason to end is the one that counts. */
static void end(struct fake_exec *e, const struct outcome *outcome)
{
    if (e->ended)
        return;
    e->ended = true;
    e->outcome = *outcome;
    e->outcome.duration_ns = loop_now(e->loop) - e->started_ns;
    loop_timer_stop(&e->timeout);
    loop_timer_stop(&e->sleep);
    loop_defer_start(e->loop, &e->turn, on_turn);
}

static void output(struct fake_exec *e, enum exec_stream stream, const char *data, size_t len)
{
    if (!e->detached)
        e->events.output(e->arg, stream, data, len);
}

static void on_slept(struct loop_timer *t)
{
    struct fake_exec *e = container_of(t, struct fake_exec, sleep);
    e->begun = false;
    e->at++;
    loop_defer_start(e->loop, &e->turn, on_turn);
}

static enum progress leave(struct fake_exec *e, const struct outcome *outcome)
{
    end(e, outcome);
    return STEP_WAITS;
}

/* The step's number, into `left`, once. */
static bool read_number(struct fake_exec *e, const char *arg)
{
    if (!e->begun && str_to_u64(arg, &e->left) < 0)
        return false;
    e->begun = true;
    return true;
}

static enum progress say_line(struct fake_exec *e, enum exec_stream stream, const char *text)
{
    AUTO_FREE char *line = xasprintf("%s\n", text);
    output(e, stream, line, strlen(line));
    return STEP_DONE;
}

static enum progress do_echo(struct fake_exec *e, const char *arg)
{
    return say_line(e, EXEC_STDOUT, arg);
}

static enum progress do_err(struct fake_exec *e, const char *arg)
{
    return say_line(e, EXEC_STDERR, arg);
}

static enum progress do_pwd(struct fake_exec *e, const char *arg)
{
    return say_line(e, EXEC_STDOUT, e->cwd);
}

static enum progress do_env(struct fake_exec *e, const char *arg)
{
    for (size_t i = 0; e->env != NULL && e->env[i] != NULL; i++)
        (void)say_line(e, EXEC_STDOUT, e->env[i]);
    return STEP_DONE;
}

static enum progress do_flood(struct fake_exec *e, const char *arg)
{
    static char chunk[CHUNK];
    if (!read_number(e, arg))
        return leave(e, &(struct outcome){.exit_code = BAD_USAGE});
    size_t n = e->left < CHUNK ? (size_t)e->left : CHUNK;
    memset(chunk, 'x', sizeof(chunk));
    e->left -= n;
    if (n > 0)
        output(e, EXEC_STDOUT, chunk, n);
    return e->left > 0 ? STEP_AGAIN : STEP_DONE;
}

static enum progress do_cat(struct fake_exec *e, const char *arg)
{
    if (e->in.len == 0)
        return e->close_in ? STEP_DONE : STEP_WAITS;
    struct buf taken = e->in; /* a callback may write more */
    buf_init(&e->in, STDIN_QUEUE_MAX);
    output(e, EXEC_STDOUT, taken.data, taken.len);
    buf_done(&taken);
    if (e->held_back && e->in.len == 0) {
        e->held_back = false;
        if (!e->detached && e->events.stdin_drained != NULL)
            e->events.stdin_drained(e->arg);
    }
    return STEP_AGAIN;
}

static enum progress do_sleep(struct fake_exec *e, const char *arg)
{
    if (e->begun)
        return STEP_WAITS; /* woken by something else */
    if (!read_number(e, arg))
        return leave(e, &(struct outcome){.exit_code = BAD_USAGE});
    uint64_t ms = e->left < SLEEP_MS_MAX ? e->left : SLEEP_MS_MAX;
    loop_timer_start(e->loop, &e->sleep, ms * NSEC_PER_MSEC, on_slept);
    return STEP_WAITS;
}

static enum progress do_exit(struct fake_exec *e, const char *arg)
{
    bool ok = read_number(e, arg) && e->left <= 255;
    return leave(e, &(struct outcome){.exit_code = ok ? (int)e->left : BAD_USAGE});
}

static enum progress do_kill(struct fake_exec *e, const char *arg)
{
    if (str_eq(arg, "-9 -1")) /* all the others: it has none */
        return STEP_DONE;
    if (!read_number(e, arg) || e->left == 0 || e->left >= NSIG)
        return leave(e, &(struct outcome){.exit_code = BAD_USAGE});
    return leave(e, &(struct outcome){.kind = OUTCOME_SIGNALED, .signo = (int)e->left});
}

static enum progress do_die(struct fake_exec *e, const char *arg)
{
    if (e->sb != NULL)
        fake_lose(e->sb);
    return STEP_WAITS;
}

static enum progress do_ignore(struct fake_exec *e, const char *arg)
{
    e->stubborn = true;
    return STEP_DONE;
}

static const struct {
    const char *name;
    enum progress (*run)(struct fake_exec *e, const char *arg);
    bool writes; /* waits while its output is not read */
} verbs[] = {
    {"echo", do_echo, true},  {"err", do_err, true},        {"pwd", do_pwd, true},
    {"env", do_env, true},    {"flood", do_flood, true},    {"cat", do_cat, true},
    {"exit", do_exit, false}, {"sleep", do_sleep, false},   {"kill", do_kill, false},
    {"die", do_die, false},   {"ignore", do_ignore, false},
};

bool fake_exec_knows(const char *word)
{
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        if (str_eq(verbs[i].name, word))
            return true;
    return false;
}

static enum progress run_step(struct fake_exec *e, const char *step)
{
    size_t len = strcspn(step, " ");
    const char *arg = step + len + strspn(step + len, " ");
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++) {
        if (strlen(verbs[i].name) != len || strncmp(verbs[i].name, step, len) != 0)
            continue;
        if (verbs[i].writes && e->paused && !e->detached)
            return STEP_WAITS;
        return verbs[i].run(e, arg);
    }
    struct outcome unknown = {.exit_code = 127};
    (void)snprintf(unknown.error, sizeof(unknown.error), "cannot execute: %s",
                   err_errno_text(ENOENT));
    return leave(e, &unknown);
}

static void tell(struct fake_exec *e)
{
    unlink_exec(e);
    e->told = true;
    if (!e->detached)
        e->events.finished(e->arg, &e->outcome);
}

static void on_turn(struct loop_defer *d)
{
    struct fake_exec *e = container_of(d, struct fake_exec, turn);
    e->busy++;
    if (e->ended) {
        if (!e->told)
            tell(e);
    } else if (e->steps == NULL || e->steps[e->at] == NULL) {
        end(e, &(struct outcome){.kind = OUTCOME_EXITED});
    } else {
        enum progress p = run_step(e, e->steps[e->at]);
        if (p == STEP_DONE) {
            e->at++;
            e->begun = false;
        }
        if (p != STEP_WAITS)
            loop_defer_start(e->loop, &e->turn, on_turn);
    }
    e->busy--;
    maybe_free(e);
}

static void on_timeout(struct loop_timer *t)
{
    end(container_of(t, struct fake_exec, timeout), &(struct outcome){.kind = OUTCOME_TIMED_OUT});
}

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

int fake_exec_start(struct sandbox *base, const struct exec_request *req,
                    const struct exec_events *events, void *arg, struct exec **ret, struct err *err)
{
    struct fake_sandbox *sb = container_of(base, struct fake_sandbox, base);
    struct err fault;
    if (sb->state != FAKE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not running");
    if (fake_fault(sb->fake, FAKE_EXEC, &fault)) {
        *err = fault;
        return err_code_errno(fault.code);
    }
    if (req->files)
        return err_set(err, ERR_UNSUPPORTED,
                       "the backend 'fake' has no files; use another backend");
    AUTO_STRV char **steps = NULL;
    int r = read_steps(req, &steps, err);
    if (r < 0)
        return r;
    struct fake_exec *e = xnew(struct fake_exec);
    e->base.backend = &sb->fake->base;
    e->loop = sb->fake->loop;
    e->sb = sb;
    e->events = *events;
    e->arg = arg;
    e->env = strv_copy(sb->env);
    for (size_t i = 0; req->env != NULL && req->env[i] != NULL; i++)
        strv_add(&e->env, req->env[i]);
    e->cwd = xstrdup(req->cwd != NULL ? req->cwd : sb->workdir);
    e->close_in = !req->with_stdin && !req->tty;
    e->started_ns = loop_now(e->loop);
    buf_init(&e->in, STDIN_QUEUE_MAX);
    e->steps = TAKE_PTR(steps);
    if (req->timeout_ns > 0)
        loop_timer_start(e->loop, &e->timeout, req->timeout_ns, on_timeout);
    e->next = sb->execs;
    if (e->next != NULL)
        e->next->prev = e;
    sb->execs = e;
    loop_defer_start(e->loop, &e->turn, on_turn);
    *ret = &e->base;
    return 0;
}

int fake_exec_write(struct exec *base, const char *data, size_t len)
{
    struct fake_exec *e = exec_of(base);
    if (e->ended || e->close_in)
        return -EPIPE;
    int r = buf_append(&e->in, data, len);
    if (r < 0)
        return r;
    loop_defer_start(e->loop, &e->turn, on_turn);
    e->held_back = e->held_back || e->in.len > STDIN_HIGH_WATER;
    return e->held_back ? 1 : 0;
}

void fake_exec_close_stdin(struct exec *base)
{
    struct fake_exec *e = exec_of(base);
    e->close_in = true;
    if (!e->ended)
        loop_defer_start(e->loop, &e->turn, on_turn);
}

void fake_exec_signal(struct exec *base, int signo)
{
    struct fake_exec *e = exec_of(base);
    if (e->stubborn && signo != SIGKILL)
        return;
    if (signo > 0 && signo < NSIG && signo != SIGCONT && signo != SIGWINCH && signo != SIGCHLD)
        end(e, &(struct outcome){.kind = OUTCOME_SIGNALED, .signo = signo});
}

void fake_exec_kill(struct exec *base)
{
    fake_exec_signal(base, SIGKILL);
}

void fake_exec_resize(struct exec *base, uint16_t rows, uint16_t cols)
{
    (void)base; /* there is no terminal */
}

void fake_exec_pause(struct exec *base, bool paused)
{
    struct fake_exec *e = exec_of(base);
    e->paused = paused;
    if (!paused && !e->ended)
        loop_defer_start(e->loop, &e->turn, on_turn);
}

void fake_exec_free(struct exec *base)
{
    if (base == NULL)
        return;
    struct fake_exec *e = exec_of(base);
    e->detached = true;
    e->close_in = true;
    if (e->ended)
        e->told = true; /* nobody is left to tell */
    else
        loop_defer_start(e->loop, &e->turn, on_turn);
    maybe_free(e);
}

void fake_exec_end_detached(struct fake_sandbox *sb)
{
    for (struct fake_exec *e = sb->execs; e != NULL; e = e->next)
        if (e->detached)
            end(e, &(struct outcome){.kind = OUTCOME_SESSION_LOST});
}

void fake_exec_lose_all(struct fake_sandbox *sb)
{
    for (struct fake_exec *e = sb->execs, *next; e != NULL; e = next) {
        next = e->next;
        end(e, &(struct outcome){.kind = OUTCOME_SESSION_LOST});
        unlink_exec(e);
        e->told = e->told || e->detached;
        maybe_free(e);
    }
}
