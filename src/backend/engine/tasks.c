/* SPDX-License-Identifier: Apache-2.0 */

/* Commands and managed processes in a container: starts them through box-guest and passes their
 * output, stdin and end on. Managed processes keep their output in the container until it is
 * released; the copy here is never more than the guest keeps. */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "backend/common.h"
#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"

#define PACE_NS (10 * NSEC_PER_MSEC)

struct engine_exec {
    struct task task;
    bool ended[2];      /* streams */
    struct buf kept[2]; /* output that came while paused; no more than a window */
    struct loop_defer resume;
};

struct engine_proc {
    struct task task;
    uint64_t taken;         /* of a log, bytes for which the guest has no credit yet */
    struct loop_timer pace; /* until it gets that: a program that writes without end is not ours to
                               keep up with */
    struct loop_defer release; /* readers let go line by line; the guest is told once per turn */
};

static struct engine_sandbox *home_of(const struct task *t) /* or NULL */
{
    return t->home == NULL ? NULL : container_of(t->home, struct engine_sandbox, tasks);
}

static struct engine_exec *exec_of(struct task *t)
{
    return container_of(t, struct engine_exec, task);
}

/* Stdin and orders. */

static ssize_t stdin_write(struct task *t, const char *data, size_t len)
{
    size_t n = len < GUEST_DATA_MAX ? len : GUEST_DATA_MAX;
    if (t->home == NULL)
        return -EPIPE;
    if (t->in_flight >= GUEST_WINDOW ||
        engine_send(home_of(t), GUEST_INPUT, t->id, n < len ? GUEST_INPUT_PART : 0, data, n) < 0)
        return -EAGAIN;
    t->in_flight += n;
    return (ssize_t)n;
}

static int stdin_close(struct task *t)
{
    if (t->home != NULL && t->state == TASK_RUNNING)
        (void)engine_send(home_of(t), GUEST_INPUT, t->id, GUEST_INPUT_CLOSE, NULL, 0);
    return 0;
}

static void on_stdin_taken(struct task *t, const char *body)
{
    uint64_t n = 0;
    memcpy(&n, body, sizeof(n));
    t->in_flight -= n < t->in_flight ? n : t->in_flight;
    task_flush(t);
    task_drained(t);
}

static void send_kill(struct task *t, int signo, bool tree)
{
    (void)engine_send(home_of(t), tree ? GUEST_KILL : GUEST_SIGNAL, t->id,
                      tree ? 0 : (uint32_t)signo, NULL, 0);
}

/* Commands. */

static bool output_open(const struct task *t)
{
    const struct engine_exec *e = container_of(t, const struct engine_exec, task);
    bool waits = e->kept[0].len > 0 || e->kept[1].len > 0;
    return waits || (t->home != NULL && !(e->ended[0] && e->ended[1]));
}

static void give(struct engine_exec *e, int stream, const char *data, size_t len)
{
    uint64_t n = len;
    task_output(&e->task, (enum exec_stream)stream, data, len);
    if (e->task.home != NULL)
        (void)engine_send(home_of(&e->task), GUEST_CREDIT, e->task.id, (uint32_t)stream, &n,
                          sizeof(n));
}

static void on_output(struct engine_exec *e, int stream, const char *data, size_t len)
{
    struct task *t = &e->task;
    t->busy++;
    if ((!t->paused && e->kept[stream].len == 0) || !task_hears(t))
        give(e, stream, data, len);
    /* Behind what waits already. The guest stops at its window, so this is all there can be. */
    else if (buf_append(&e->kept[stream], data, len) < 0)
        task_exec_kill(&t->exec);
    t->busy--;
}

/* Its reader goes on, and may stop again at any piece. No piece is larger than those that come
 * without a stop in between: readers count on that. */
static void give_kept(struct task *t)
{
    struct engine_exec *e = exec_of(t);
    t->busy++;
    for (int i = 0; i < 2; i++) {
        while (e->kept[i].len > 0 && !t->paused) {
            char piece[GUEST_DATA_MAX];
            size_t n = e->kept[i].len < sizeof(piece) ? e->kept[i].len : sizeof(piece);
            memcpy(piece, e->kept[i].data, n);
            buf_consume(&e->kept[i], n);
            give(e, i, piece, n);
        }
        if (e->kept[i].len == 0)
            buf_done(&e->kept[i]);
    }
    t->busy--;
}

static void on_resumed(struct loop_defer *d)
{
    struct task *t = &container_of(d, struct engine_exec, resume)->task;
    give_kept(t);
    task_settle(t);
}

static void resume_output(struct task *t)
{
    struct engine_exec *e = exec_of(t);
    if (!t->paused && (e->kept[0].len > 0 || e->kept[1].len > 0))
        loop_defer_start(t->loop, &e->resume, on_resumed);
}

static void resize(struct task *t, uint16_t rows, uint16_t cols)
{
    (void)engine_send(home_of(t), GUEST_RESIZE, t->id, (uint32_t)rows << 16 | cols, NULL, 0);
}

static void exec_free(struct task *t)
{
    struct engine_exec *e = exec_of(t);
    loop_defer_stop(&e->resume);
    buf_done(&e->kept[0]);
    buf_done(&e->kept[1]);
    free(e);
}

static const struct task_ops exec_ops = {
    .write = stdin_write,
    .close_stdin = stdin_close,
    .kill = send_kill,
    .read = give_kept,
    .open = output_open,
    .pause = resume_output,
    .resize = resize,
    .free = exec_free,
};

static void on_exec_exited(struct engine_exec *e, const char *body)
{
    struct inside_exited m;
    struct outcome o;
    if (e->task.state != TASK_RUNNING)
        return;
    memcpy(&m, body, sizeof(m));
    backend_outcome(&o, &m);
    if (m.stage == INSIDE_STAGE_LIMIT || m.stage == INSIDE_STAGE_REQUEST)
        e->ended[0] = e->ended[1] = true; /* it never had streams, or lost them at once */
    /* What was killed and runs on can only be ended with its container. Out of memory may have
     * ended some of it only. */
    o.unended = m.remaining > 0 && (m.flags & (INSIDE_EXITED_TIMEOUT | INSIDE_EXITED_KILLED)) != 0;
    task_exec_exited(&e->task, &o);
}

static void on_exec_frame(struct engine_sandbox *sb, const struct guest_head *head,
                          const char *body)
{
    struct task *t = task_find(&sb->tasks.execs, head->id);
    if (t == NULL)
        return;
    struct engine_exec *e = exec_of(t);
    if (head->type == GUEST_EXITED && head->len == sizeof(struct inside_exited)) {
        on_exec_exited(e, body);
        return;
    }
    if (head->type == GUEST_OUTPUT && head->flags < 2 && head->len > 0)
        on_output(e, (int)head->flags, body, head->len);
    else if (head->type == GUEST_END && head->flags < 2)
        e->ended[head->flags] = true;
    else if (head->type == GUEST_DRAINED && head->len == sizeof(uint64_t))
        on_stdin_taken(t, body);
    task_settle(t);
}

/* Of the two environments the later entry wins, which the guest sees to. */
static int pack(struct buf *out, struct guest_start *head, char *const *argv, const char *cmd,
                char *const *const envs[2], const char *cwd)
{
    int r = 0;
    assert(argv != NULL || cmd != NULL);
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

static int send_start(struct engine_sandbox *sb, const struct guest_head *head,
                      const struct guest_start *start, const struct buf *strings, struct err *err)
{
    int r = engine_link_send(&sb->link, head, start, sizeof(*start), strings->data, strings->len);
    if (r == -ENOBUFS)
        return err_set(err, ERR_LIMIT,
                       "too many commands are being started in this session; try again");
    return r < 0 ? err_sys(err, -r, "ask the container's supervisor") : 0;
}

static struct task *exec_start(struct tasks *home, const struct exec_request *req, struct err *err)
{
    struct engine_sandbox *sb = container_of(home, struct engine_sandbox, tasks);
    uint32_t id = sb->next_exec++ & ~GUEST_PROC_BIT;
    AUTO_DONE(buf) struct buf strings = BUF_INIT(INSIDE_STRINGS_MAX);
    struct guest_start start = {.timeout_ns = req->timeout_ns,
                                .memory_bytes = sb->tree_bytes,
                                .rows = req->rows,
                                .cols = req->cols};
    static char *const files[] = {(char *)(uintptr_t)GUEST_PROGRAM, (char *)(uintptr_t)GUEST_FILES,
                                  NULL};
    char *const *argv = req->files ? files : req->argv;
    struct guest_head head = {
        .type = GUEST_START,
        .id = id,
        .flags = (req->with_stdin ? GUEST_START_STDIN : 0) | (req->tty ? GUEST_START_TTY : 0) |
                 (req->posture ? GUEST_START_POSTURE : 0) |
                 (argv == NULL ? GUEST_START_SCRIPT : 0) | (req->bash ? GUEST_START_BASH : 0)};
    char *const *const envs[2] = {sb->spec->env, req->env};
    if (req->label != NULL)
        (void)str_copy(start.label, sizeof(start.label), req->label); /* one too long is none */
    int r = pack(&strings, &start, argv, req->cmd != NULL ? req->cmd : "", envs,
                 req->cwd != NULL ? req->cwd : sb->spec->workdir);
    if (r < 0) {
        (void)err_set(err, ERR_LIMIT,
                      "command, arguments and environment are larger than %u MiB in all",
                      INSIDE_STRINGS_MAX >> 20);
        return NULL;
    }
    if (send_start(sb, &head, &start, &strings, err) < 0)
        return NULL;
    struct engine_exec *e = xnew(struct engine_exec);
    e->task.ops = &exec_ops;
    e->task.id = id;
    buf_init(&e->kept[0], GUEST_WINDOW);
    buf_init(&e->kept[1], GUEST_WINDOW);
    return &e->task;
}

/* Managed processes. */

/* The sandbox is gone: no output follows. */
static void read_last(struct task *t)
{
    t->copy.eof = true;
}

static int forget(struct task *t)
{
    (void)engine_send(home_of(t), GUEST_FORGET, t->id, 0, NULL, 0);
    return 0;
}

static void on_release(struct loop_defer *d)
{
    struct task *t = &container_of(d, struct engine_proc, release)->task;
    if (t->home != NULL)
        (void)engine_send(home_of(t), GUEST_RELEASE, t->id, 0, &t->copy.begin,
                          sizeof(t->copy.begin));
}

static void released(struct task *t)
{
    loop_defer_start(t->loop, &container_of(t, struct engine_proc, task)->release, on_release);
}

static void proc_free(struct task *t)
{
    struct engine_proc *p = container_of(t, struct engine_proc, task);
    loop_timer_stop(&p->pace);
    loop_defer_stop(&p->release);
    free(p);
}

static const struct task_ops proc_ops = {
    .write = stdin_write,
    .close_stdin = stdin_close,
    .kill = send_kill,
    .resize = resize,
    .read = read_last,
    .free = proc_free,
    .forget = forget,
    .released = released,
};

static struct task *proc_new(uint32_t number)
{
    struct engine_proc *p = xnew(struct engine_proc);
    p->task.ops = &proc_ops;
    p->task.id = number | GUEST_PROC_BIT;
    return &p->task;
}

static struct task *proc_start(struct tasks *home, const struct proc_request *req, struct err *err)
{
    struct engine_sandbox *sb = container_of(home, struct engine_sandbox, tasks);
    AUTO_DONE(buf) struct buf strings = BUF_INIT(INSIDE_STRINGS_MAX);
    struct guest_start start = {.memory_bytes =
                                    req->memory_bytes > 0 ? req->memory_bytes : sb->tree_bytes,
                                .rows = req->rows,
                                .cols = req->cols};
    struct guest_head head = {.type = GUEST_START,
                              .id = req->number | GUEST_PROC_BIT,
                              .flags = GUEST_START_PROC | (req->log ? GUEST_START_LOG : 0) |
                                       (req->with_stdin || !req->log ? GUEST_START_STDIN : 0) |
                                       (req->tty ? GUEST_START_TTY : 0)};
    char *const *const envs[2] = {sb->spec->env, req->env};
    (void)str_fmt(start.label, sizeof(start.label), "%u", req->number);
    if (pack(&strings, &start, req->argv, NULL, envs,
             req->cwd != NULL ? req->cwd : sb->spec->workdir) < 0) {
        (void)err_set(err, ERR_LIMIT, "arguments and environment are larger than %u MiB in all",
                      INSIDE_STRINGS_MAX >> 20);
        return NULL;
    }
    return send_start(sb, &head, &start, &strings, err) < 0 ? NULL : proc_new(req->number);
}

static struct task *proc_adopt(struct tasks *home, uint32_t number)
{
    struct engine_sandbox *sb = container_of(home, struct engine_sandbox, tasks);
    for (size_t i = 0; i < sb->n_found; i++) {
        if (sb->found[i].number != number || number == 0)
            continue;
        struct task *t = proc_new(number);
        t->copy.begin = sb->found[i].begin;
        t->copy.known = sb->found[i].end;
        t->log = (sb->found[i].flags & GUEST_PROC_LOG) != 0;
        sb->found[i].number = 0; /* taken */
        (void)engine_send(sb, GUEST_ATTACH, t->id, 0, NULL, 0);
        return t;
    }
    return NULL;
}

void engine_proc_forget_found(struct engine_sandbox *sb)
{
    for (size_t i = 0; i < sb->n_found; i++)
        if (sb->found[i].number != 0)
            (void)engine_send(sb, GUEST_FORGET, sb->found[i].number | GUEST_PROC_BIT, 0, NULL, 0);
    sb->n_found = 0;
}

static void on_pace(struct loop_timer *timer)
{
    struct engine_proc *p = container_of(timer, struct engine_proc, pace);
    if (p->task.home != NULL)
        (void)engine_send(home_of(&p->task), GUEST_CREDIT, p->task.id, 0, &p->taken,
                          sizeof(p->taken));
    p->taken = 0;
}

static void take_log(struct task *t, size_t len)
{
    struct engine_proc *p = container_of(t, struct engine_proc, task);
    p->taken += len;
    if (p->pace.loop == NULL)
        loop_timer_start(t->loop, &p->pace, PACE_NS, on_pace);
}

/* Offsets are the guest's word: what does not follow is refused. A log goes on behind records that
 * the guest had to give up; those before are older, and go too. */
static void on_proc_output(struct task *t, const char *body, size_t len)
{
    struct guest_at at;
    if (len <= sizeof(at))
        return;
    memcpy(&at, body, sizeof(at));
    if (t->log)
        take_log(t, len - sizeof(at));
    if (t->log && at.offset > t->copy.begin + t->copy.out.len) {
        buf_reset(&t->copy.out);
        t->copy.begin = at.offset;
    }
    if (at.offset == t->copy.begin + t->copy.out.len &&
        task_copy_output(t, body + sizeof(at), len - sizeof(at)) == 0)
        task_proc_output(t);
}

static void on_proc_exited(struct task *t, const char *body)
{
    struct inside_exited m;
    struct outcome o;
    memcpy(&m, body, sizeof(m));
    backend_outcome(&o, &m);
    if (m.stage == INSIDE_STAGE_LIMIT || m.stage == INSIDE_STAGE_REQUEST)
        t->copy.eof = true;
    task_proc_exited(t, &o);
}

static void on_taken_proc_frame(struct task *t, const struct guest_head *head, const char *body)
{
    if (head->type == GUEST_OUTPUT && head->flags == 0) {
        on_proc_output(t, body, head->len);
    } else if (head->type == GUEST_OUTPUT && head->len > sizeof(struct guest_at)) {
        task_copy_stderr(t, body + sizeof(struct guest_at), head->len - sizeof(struct guest_at));
    } else if (head->type == GUEST_END && head->flags == 0) {
        t->copy.eof = true;
        task_proc_output(t);
    } else if (head->type == GUEST_DRAINED && head->len == sizeof(uint64_t)) {
        on_stdin_taken(t, body);
    } else if (head->type == GUEST_EXITED && head->len == sizeof(struct inside_exited)) {
        on_proc_exited(t, body);
    }
}

static void on_proc_frame(struct engine_sandbox *sb, const struct guest_head *head,
                          const char *body)
{
    struct task *t = task_find(&sb->tasks.procs, head->id);
    if (t == NULL)
        return;
    t->busy++;
    if (t->user == TASK_TAKEN)
        on_taken_proc_frame(t, head, body);
    else if (head->type == GUEST_GONE)
        task_proc_gone(t);
    t->busy--;
    task_settle(t);
}

/* Both. */

static int list_processes(struct tasks *home, uint32_t look, uint32_t after)
{
    return engine_send(container_of(home, struct engine_sandbox, tasks), GUEST_LIST, look, after,
                       NULL, 0);
}

static int end_left(struct tasks *home, const char *label)
{
    return engine_send(container_of(home, struct engine_sandbox, tasks), GUEST_END_LEFT, 0, 0,
                       label, strlen(label));
}

/* The body has no alignment of its own. */
static void on_listed(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    static struct inside_process rows[INSIDE_LIST_MAX];
    bool fits = head->len <= sizeof(rows) && head->len % sizeof(rows[0]) == 0;
    if (fits)
        memcpy(rows, body, head->len);
    looks_answer(&sb->tasks, head->id, rows, fits ? head->len / sizeof(rows[0]) : 0,
                 fits ? (int)(head->flags & 0xfff) : EBADMSG);
}

static int ask_usage(struct tasks *home, uint32_t look)
{
    return engine_send(container_of(home, struct engine_sandbox, tasks), GUEST_USAGE, look, 0, NULL,
                       0);
}

static void on_used(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    struct inside_usage usage;
    if (head->len != sizeof(usage))
        return;
    memcpy(&usage, body, sizeof(usage));
    const uint64_t ours = (uint64_t)engine_pids_reserve(sb->own_id);
    if (usage.pids != INSIDE_UNKNOWN && usage.pids > 0)
        usage.pids--; /* box-guest */
    if (usage.pids_max != INSIDE_UNKNOWN && usage.pids_max > ours)
        usage.pids_max -= ours;
    looks_used(&sb->tasks, head->id, &usage);
}

void engine_task_frame(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    if (head->type == GUEST_LISTED)
        on_listed(sb, head, body);
    else if (head->type == GUEST_USED)
        on_used(sb, head, body);
    else if (head->id & GUEST_PROC_BIT)
        on_proc_frame(sb, head, body);
    else
        on_exec_frame(sb, head, body);
}

static bool is_ready(const struct tasks *home)
{
    const struct engine_sandbox *sb = container_of(home, const struct engine_sandbox, tasks);
    return sb->state == ENGINE_READY && !sb->lost;
}

static void lose_sandbox(struct tasks *home)
{
    engine_lose(container_of(home, struct engine_sandbox, tasks));
}

const struct tasks_ops engine_tasks_ops = {
    .execs_max = GUEST_CELLS_MAX,
    .list = list_processes,
    .end_left = end_left,
    .usage = ask_usage,
    .ready = is_ready,
    .exec_start = exec_start,
    .proc_start = proc_start,
    .proc_adopt = proc_adopt,
    .lose = lose_sandbox,
};
