/* SPDX-License-Identifier: Apache-2.0 */

/* Commands in a container: starts them through box-guest and passes their output, stdin and end
 * on. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"

/* How long an answer waits for more output once the main process is gone but others still hold the
 * pipes. */
#define DRAIN_NS (50ULL * NSEC_PER_MSEC)
#define STDIN_QUEUE_MAX (16U << 20)
#define STDIN_HIGH_WATER (256U << 10) /* above it the writer is asked to hold back */

struct engine_exec {
    struct exec base;
    struct engine *engine;     /* borrowed */
    struct engine_sandbox *sb; /* NULL once the sandbox is gone */
    struct engine_exec *prev, *next;
    uint32_t id;
    struct exec_events events;
    void *arg;
    bool exited;   /* the main process is gone, or never was */
    bool told;     /* its user has heard the outcome */
    bool killed;   /* its supervisor was asked to end it */
    bool detached; /* its user is gone: what it still writes is drained and dropped */
    bool paused, tty, close_in, close_sent, held_back;
    bool ended[2];      /* streams */
    unsigned busy;      /* callbacks under way: not to be freed underneath them */
    uint64_t under_way; /* bytes of stdin the guest has not given to the program yet */
    struct buf in_queue;
    size_t in_pos;
    struct buf kept[2]; /* output that came while paused; no more than a window */
    struct loop_timer drain, overdue;
    struct loop_defer defer, resume;
    struct outcome outcome;
};

static struct engine_exec *exec_of(struct exec *e)
{
    return container_of(e, struct engine_exec, base);
}

static void unlink_exec(struct engine_exec *e)
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

static bool streams_ended(const struct engine_exec *e)
{
    return e->ended[0] && e->ended[1];
}

/* Frees an exec that nobody watches any more and that nothing can come from. */
static void maybe_free(struct engine_exec *e)
{
    if (e->busy > 0 || !e->detached || !e->exited || (e->sb != NULL && !streams_ended(e)))
        return;
    unlink_exec(e);
    loop_timer_stop(&e->drain);
    loop_timer_stop(&e->overdue);
    loop_defer_stop(&e->defer);
    loop_defer_stop(&e->resume);
    buf_done(&e->in_queue);
    buf_done(&e->kept[0]);
    buf_done(&e->kept[1]);
    free(e);
}

static void tell(struct engine_exec *e)
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

static void maybe_finish(struct engine_exec *e)
{
    bool waits = e->kept[0].len > 0 || e->kept[1].len > 0;
    if (e->exited && (streams_ended(e) || e->sb == NULL) && (!waits || e->detached))
        tell(e);
    maybe_free(e);
}

/* Nothing came for a while, but background processes hold the pipes: they do not hold the answer.
 */
static void on_drained(struct loop_timer *t)
{
    struct engine_exec *e = container_of(t, struct engine_exec, drain);
    if (e->paused || e->kept[0].len > 0 || e->kept[1].len > 0) {
        loop_timer_start(e->engine->loop, t, DRAIN_NS, on_drained);
        return;
    }
    tell(e);
    maybe_free(e);
}

/* Output. */

static void consumed(struct engine_exec *e, int stream, uint64_t n)
{
    if (e->sb != NULL && n > 0)
        (void)engine_send(e->sb, GUEST_CREDIT, e->id, (uint32_t)stream, &n, sizeof(n));
}

static void give(struct engine_exec *e, int stream, const char *data, size_t len)
{
    if (!e->detached && !e->told)
        e->events.output(e->arg, (enum exec_stream)stream, data, len);
}

static void on_output(struct engine_exec *e, int stream, const char *data, size_t len)
{
    e->busy++;
    if ((e->paused || e->kept[stream].len > 0) && !e->detached && !e->told) {
        /* Behind what waits already. The guest stops at its window, so this is all there can be. */
        if (buf_append(&e->kept[stream], data, len) < 0)
            engine_exec_kill(&e->base);
    } else {
        if (e->exited && !e->told)
            loop_timer_start(e->engine->loop, &e->drain, DRAIN_NS, on_drained);
        give(e, stream, data, len);
        consumed(e, stream, len);
    }
    e->busy--;
}

/* Its reader goes on, and may stop again at any piece. No piece is larger than those that come
 * without a stop in between: readers count on that. */
static void give_kept(struct engine_exec *e)
{
    e->busy++;
    for (int i = 0; i < 2; i++) {
        while (e->kept[i].len > 0 && !e->paused) {
            char piece[GUEST_DATA_MAX];
            size_t n = e->kept[i].len < sizeof(piece) ? e->kept[i].len : sizeof(piece);
            memcpy(piece, e->kept[i].data, n);
            buf_consume(&e->kept[i], n);
            give(e, i, piece, n);
            consumed(e, i, n);
        }
        if (e->kept[i].len == 0)
            buf_done(&e->kept[i]);
    }
    e->busy--;
}

static void on_resumed(struct loop_defer *d)
{
    struct engine_exec *e = container_of(d, struct engine_exec, resume);
    if (!e->paused)
        give_kept(e);
    if (e->exited && !e->told) /* more may follow, now that there is room for it */
        loop_timer_start(e->engine->loop, &e->drain, DRAIN_NS, on_drained);
    maybe_finish(e);
}

void engine_exec_pause(struct exec *base, bool paused)
{
    struct engine_exec *e = exec_of(base);
    /* What was killed has written its last: no more follows than a window, and who waits for its
     * end does not wait for who reads it. */
    e->paused = paused && !(e->killed && e->exited);
    if (!e->paused && (e->kept[0].len > 0 || e->kept[1].len > 0))
        loop_defer_start(e->engine->loop, &e->resume, on_resumed);
}

/* Stdin. */

static void flush_stdin(struct engine_exec *e)
{
    while (e->sb != NULL && e->in_pos < e->in_queue.len && e->under_way < GUEST_WINDOW) {
        size_t n = e->in_queue.len - e->in_pos;
        n = n < GUEST_DATA_MAX ? n : GUEST_DATA_MAX;
        if (engine_send(e->sb, GUEST_INPUT, e->id, 0, e->in_queue.data + e->in_pos, n) < 0)
            break;
        e->under_way += n;
        e->in_pos += n;
    }
    if (e->in_pos == e->in_queue.len) {
        buf_done(&e->in_queue);
        e->in_pos = 0;
    }
    if (e->close_in && !e->close_sent && e->in_queue.len == 0 && e->sb != NULL) {
        (void)engine_send(e->sb, GUEST_INPUT, e->id, GUEST_INPUT_CLOSE, NULL, 0);
        e->close_sent = true;
    }
}

static void on_stdin_taken(struct engine_exec *e, uint64_t n)
{
    e->under_way -= n < e->under_way ? n : e->under_way;
    flush_stdin(e);
    if (!e->held_back || e->in_queue.len > 0 || e->under_way > 0)
        return;
    e->held_back = false;
    if (e->detached || e->told || e->events.stdin_drained == NULL)
        return;
    e->busy++;
    e->events.stdin_drained(e->arg);
    e->busy--;
}

int engine_exec_write(struct exec *base, const char *data, size_t len)
{
    struct engine_exec *e = exec_of(base);
    if (e->exited || e->close_in || e->sb == NULL)
        return -EPIPE;
    if (e->in_pos >= e->in_queue.len / 2) {
        buf_consume(&e->in_queue, e->in_pos);
        e->in_pos = 0;
    }
    int r = buf_append(&e->in_queue, data, len);
    if (r < 0)
        return r;
    flush_stdin(e);
    if (e->in_queue.len - e->in_pos + e->under_way <= STDIN_HIGH_WATER)
        return 0;
    e->held_back = true;
    return 1;
}

void engine_exec_close_stdin(struct exec *base)
{
    struct engine_exec *e = exec_of(base);
    if (e->tty) {
        (void)engine_exec_write(base, "\004", 1); /* what a person would type */
        return;
    }
    e->close_in = true;
    flush_stdin(e);
}

/* The end. */

static const char *stage_text(uint32_t stage)
{
    static const char *const texts[] = {
        [GUEST_STAGE_LIMIT] = "no process could be started",
        [GUEST_STAGE_REQUEST] = "the request was malformed",
        [GUEST_STAGE_CWD] = "working directory",
        [GUEST_STAGE_CONFINE] = "the process could not be confined",
        [GUEST_STAGE_EXEC] = "cannot execute",
    };
    return stage > GUEST_STAGE_NONE && stage <= GUEST_STAGE_EXEC ? texts[stage] : "failed";
}

void engine_outcome(struct outcome *o, const struct guest_exited *m)
{
    *o = (struct outcome){.duration_ns = m->duration_ns,
                          .cpu_ns = m->cpu_ns,
                          .max_rss_kb = m->max_rss_kb,
                          .remaining = m->remaining};
    if (m->stage != GUEST_STAGE_NONE) {
        o->kind = OUTCOME_EXITED;
        o->exit_code = m->stage == GUEST_STAGE_EXEC && m->error == ENOENT ? 127 : 126;
        (void)snprintf(o->error, sizeof(o->error), "%s: %s", stage_text(m->stage),
                       err_errno_text(m->error));
    } else if (m->flags & GUEST_EXITED_TIMEOUT) {
        o->kind = OUTCOME_TIMED_OUT;
    } else if (m->flags & GUEST_EXITED_OOM) {
        o->kind = OUTCOME_OOM_KILLED;
    } else if (m->flags & GUEST_EXITED_DISK_FULL) {
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

static void end_exec(struct engine_exec *e)
{
    e->exited = true;
    if (!e->killed)
        loop_timer_stop(&e->overdue);
    buf_done(&e->in_queue);
    e->in_pos = 0;
    engine_exec_pause(&e->base, e->paused);
    if (e->sb != NULL && !streams_ended(e) && !e->told)
        loop_timer_start(e->engine->loop, &e->drain, DRAIN_NS, on_drained);
    maybe_finish(e);
}

static void on_exited(struct engine_exec *e, const struct guest_exited *m)
{
    if (e->exited)
        return;
    e->sb->running--;
    engine_outcome(&e->outcome, m);
    if (m->stage == GUEST_STAGE_LIMIT || m->stage == GUEST_STAGE_REQUEST)
        e->ended[0] = e->ended[1] = true; /* it never had streams, or lost them at once */
    /* What was killed and runs on can only be ended with its container. Out of memory may have
     * ended some of it only. */
    bool unended =
        m->remaining > 0 && (m->flags & (GUEST_EXITED_TIMEOUT | GUEST_EXITED_KILLED)) != 0;
    struct engine_sandbox *sb = e->sb;
    e->outcome.unended = unended;
    end_exec(e);
    if (unended)
        engine_lose(sb);
}

void engine_exec_frame(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    struct engine_exec *e = sb->execs;
    uint64_t n = 0;
    while (e != NULL && e->id != head->id)
        e = e->next;
    if (e == NULL)
        return;
    if (head->type == GUEST_OUTPUT && head->flags < 2 && head->len > 0) {
        on_output(e, (int)head->flags, body, head->len);
    } else if (head->type == GUEST_END && head->flags < 2) {
        e->ended[head->flags] = true;
    } else if (head->type == GUEST_DRAINED && head->len == sizeof(n)) {
        memcpy(&n, body, sizeof(n));
        on_stdin_taken(e, n);
    } else if (head->type == GUEST_EXITED && head->len == sizeof(struct guest_exited)) {
        struct guest_exited m;
        memcpy(&m, body, sizeof(m));
        on_exited(e, &m);
        return;
    }
    maybe_finish(e);
}

static void on_lost(struct loop_defer *d)
{
    struct engine_exec *e = container_of(d, struct engine_exec, defer);
    e->paused = false;
    give_kept(e);
    end_exec(e);
}

void engine_exec_lose_all(struct engine_sandbox *sb)
{
    while (sb->execs != NULL) {
        struct engine_exec *e = sb->execs;
        if (!e->exited)
            e->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
        unlink_exec(e);
        loop_defer_start(e->engine->loop, &e->defer, on_lost);
    }
    sb->running = 0;
}

/* A container that is frozen enforces nothing: what is overdue by far is over, and the session with
 * it, since whoever froze it may thaw it again. */
static void on_overdue(struct loop_timer *t)
{
    struct engine_exec *e = container_of(t, struct engine_exec, overdue);
    struct engine_sandbox *sb = e->sb;
    if (e->exited) {
        tell(e); /* killed; a process of another command goes on writing to its pipes */
        maybe_free(e);
        return;
    }
    if (sb == NULL)
        return;
    sb->running--;
    e->outcome = backend_overdue(e->killed);
    unlink_exec(e);
    end_exec(e);
    engine_lose(sb);
}

/* Starting. */

/* Of the two environments the later entry wins, which the guest sees to. */
int engine_pack(struct buf *out, struct guest_start *head, char *const *argv, const char *cmd,
                char *const *const envs[2], const char *cwd)
{
    int r = 0;
    head->argc = argv != NULL ? (uint32_t)strv_len(argv) : 1;
    for (size_t i = 0; argv != NULL && argv[i] != NULL && r == 0; i++)
        r = buf_append(out, argv[i], strlen(argv[i]) + 1);
    if (argv == NULL)
        r = buf_append(out, cmd, strlen(cmd) + 1);
    for (int k = 0; k < 2; k++) {
        head->envc += (uint32_t)strv_len(envs[k]);
        for (size_t i = 0; envs[k] != NULL && envs[k][i] != NULL && r == 0; i++)
            r = buf_append(out, envs[k][i], strlen(envs[k][i]) + 1);
    }
    return r == 0 ? buf_append(out, cwd, strlen(cwd) + 1) : r;
}

static int send_request(struct engine_sandbox *sb, uint32_t id, const struct exec_request *req,
                        struct err *err)
{
    AUTO_DONE(buf) struct buf strings;
    struct guest_start start = {.timeout_ns = req->timeout_ns,
                                .memory_bytes = sb->tree_bytes,
                                .rows = req->rows,
                                .cols = req->cols};
    static char *const files[] = {(char *)(uintptr_t)GUEST_PROGRAM, (char *)(uintptr_t)GUEST_FILES,
                                  NULL};
    char *const *argv = req->files ? files : req->argv;
    struct guest_head head = {.type = GUEST_START,
                              .id = id,
                              .flags = (req->with_stdin ? GUEST_START_STDIN : 0) |
                                       (req->tty ? GUEST_START_TTY : 0) |
                                       (req->posture ? GUEST_START_POSTURE : 0) |
                                       (argv == NULL ? GUEST_START_SCRIPT : 0)};
    char *const *const envs[2] = {sb->spec->env, req->env};
    buf_init(&strings, GUEST_STRINGS_MAX);
    int r = engine_pack(&strings, &start, argv, req->cmd != NULL ? req->cmd : "", envs,
                        req->cwd != NULL ? req->cwd : sb->spec->workdir);
    if (r < 0)
        return err_set(err, ERR_LIMIT,
                       "command, arguments and environment are larger than %u MiB in all",
                       GUEST_STRINGS_MAX >> 20);
    r = engine_link_send(&sb->link, &head, &start, sizeof(start), strings.data, strings.len);
    if (r == -ENOBUFS)
        return err_set(err, ERR_LIMIT,
                       "too many commands are being started in this session; try again");
    return r < 0 ? err_sys(err, -r, "ask the container's supervisor") : 0;
}

int engine_exec_start(struct sandbox *base, const struct exec_request *req,
                      const struct exec_events *events, void *arg, struct exec **ret,
                      struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, base);
    if (sb->state != ENGINE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not running");
    if (sb->running >= GUEST_CELLS_MAX)
        return err_set(err, ERR_LIMIT, "%u commands run in this session already", sb->running);
    uint32_t id = sb->next_exec++ & ~GUEST_PROC_BIT;
    int r = send_request(sb, id, req, err);
    if (r < 0)
        return r;
    struct engine_exec *e = xnew(struct engine_exec);
    e->base.backend = &sb->engine->base;
    e->engine = sb->engine;
    e->sb = sb;
    e->id = id;
    e->events = *events;
    e->arg = arg;
    e->tty = req->tty;
    e->close_in = e->close_sent = !req->with_stdin && !req->tty;
    buf_init(&e->in_queue, STDIN_QUEUE_MAX);
    buf_init(&e->kept[0], GUEST_WINDOW);
    buf_init(&e->kept[1], GUEST_WINDOW);
    if (req->timeout_ns > 0)
        loop_timer_start(e->engine->loop, &e->overdue, req->timeout_ns + BACKEND_OVERDUE_NS,
                         on_overdue);
    e->next = sb->execs;
    if (e->next != NULL)
        e->next->prev = e;
    sb->execs = e;
    sb->running++;
    *ret = &e->base;
    return 0;
}

/* Orders. */

void engine_exec_signal(struct exec *base, int signo)
{
    struct engine_exec *e = exec_of(base);
    if (e->sb != NULL && signo > 0)
        (void)engine_send(e->sb, GUEST_SIGNAL, e->id, (uint32_t)signo, NULL, 0);
}

void engine_exec_kill(struct exec *base)
{
    struct engine_exec *e = exec_of(base);
    if (e->sb == NULL)
        return;
    (void)engine_send(e->sb, GUEST_KILL, e->id, 0, NULL, 0);
    if (e->exited || e->killed)
        return;
    e->killed = true;
    loop_timer_start(e->engine->loop, &e->overdue, BACKEND_OVERDUE_NS, on_overdue);
}

void engine_exec_resize(struct exec *base, uint16_t rows, uint16_t cols)
{
    struct engine_exec *e = exec_of(base);
    if (e->sb != NULL)
        (void)engine_send(e->sb, GUEST_RESIZE, e->id, (uint32_t)rows << 16 | cols, NULL, 0);
}

void engine_exec_free(struct exec *base)
{
    if (base == NULL)
        return;
    struct engine_exec *e = exec_of(base);
    e->detached = true;
    e->close_in = true;
    e->paused = false;
    give_kept(e);
    buf_done(&e->in_queue);
    e->in_pos = 0;
    flush_stdin(e);
    maybe_free(e);
}
