/* SPDX-License-Identifier: Apache-2.0 */

/* Managed processes. Their output is kept in the container until it is released; what is here is a
 * copy of that, never more than the guest keeps, so that reading needs no waiting. */

#include <errno.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/str.h"
#include "base/strv.h"

#define STDIN_QUEUE_MAX (16U << 20)
#define STDIN_HIGH_WATER (256U << 10)

struct engine_proc {
    struct proc base;
    struct engine_sandbox *sb; /* NULL once the sandbox is gone */
    struct engine *engine;     /* borrowed */
    struct engine_proc *prev, *next;
    uint32_t id;
    struct proc_events events;
    void *arg;
    struct buf out; /* bytes [begin, end) of stdout */
    uint64_t begin;
    bool ended[2];
    struct buf tail;  /* of stderr, at most GUEST_STDERR_KEPT */
    uint64_t err_end; /* behind its last byte, since this daemon listens */
    struct buf in;
    size_t in_pos;
    uint64_t under_way;
    bool close_in, close_sent, held_back;
    bool exited, told, freed;
    bool ending;           /* nothing else is wanted of it */
    backend_done_fn *gone; /* NULL: nobody waits for that */
    void *gone_arg;
    struct loop_timer overdue;
    unsigned busy;
    struct outcome outcome;
    struct loop_defer defer;
    struct loop_defer release; /* readers let go line by line; the guest is told once per turn */
};

static struct engine_proc *proc_of(struct proc *p)
{
    return container_of(p, struct engine_proc, base);
}

static void unlink_proc(struct engine_proc *p)
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

static void maybe_free(struct engine_proc *p)
{
    if (!p->freed || p->busy > 0)
        return;
    loop_timer_stop(&p->overdue);
    loop_defer_stop(&p->defer);
    loop_defer_stop(&p->release);
    buf_done(&p->out);
    buf_done(&p->tail);
    buf_done(&p->in);
    free(p);
}

/* Making one. */

static struct engine_proc *add(struct engine_sandbox *sb, uint32_t number,
                               const struct proc_events *events, void *arg)
{
    struct engine_proc *p = xnew(struct engine_proc);
    p->base.backend = &sb->engine->base;
    p->engine = sb->engine;
    p->sb = sb;
    p->id = number | GUEST_PROC_BIT;
    p->events = *events;
    p->arg = arg;
    buf_init(&p->out, GUEST_RING);
    buf_init(&p->tail, GUEST_STDERR_KEPT);
    buf_init(&p->in, STDIN_QUEUE_MAX);
    p->next = sb->procs;
    if (p->next != NULL)
        p->next->prev = p;
    sb->procs = p;
    return p;
}

int engine_proc_start(struct sandbox *base, const struct proc_request *req,
                      const struct proc_events *events, void *arg, struct proc **ret,
                      struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, base);
    AUTO_DONE(buf) struct buf strings;
    struct guest_start start = {.memory_bytes =
                                    req->memory_bytes > 0 ? req->memory_bytes : sb->tree_bytes};
    struct guest_head head = {.type = GUEST_START,
                              .id = req->number | GUEST_PROC_BIT,
                              .flags = GUEST_START_STDIN | GUEST_START_PROC};
    char *const *const envs[2] = {sb->spec->env, req->env};
    buf_init(&strings, GUEST_STRINGS_MAX);
    if (sb->state != ENGINE_READY || sb->lost)
        return err_set(err, ERR_STATE, "the session is not running");
    if (engine_pack(&strings, &start, req->argv, NULL, envs,
                    req->cwd != NULL ? req->cwd : sb->spec->workdir) < 0)
        return err_set(err, ERR_LIMIT, "arguments and environment are larger than %u MiB in all",
                       GUEST_STRINGS_MAX >> 20);
    int r = engine_link_send(&sb->link, &head, &start, sizeof(start), strings.data, strings.len);
    if (r < 0)
        return err_sys(err, -r, "ask the container's supervisor");
    *ret = &add(sb, req->number, events, arg)->base;
    return 0;
}

int engine_proc_adopt(struct sandbox *base, uint32_t number, const struct proc_events *events,
                      void *arg, struct proc **ret, struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, base);
    for (size_t i = 0; i < sb->n_found; i++) {
        if (sb->found[i].number != number || number == 0)
            continue;
        struct engine_proc *p = add(sb, number, events, arg);
        p->begin = sb->found[i].begin;
        sb->found[i].number = 0; /* taken */
        (void)engine_send(sb, GUEST_ATTACH, p->id, 0, NULL, 0);
        *ret = &p->base;
        return 0;
    }
    return err_set(err, ERR_NOT_FOUND, "the session has no process %u", number);
}

void engine_proc_forget_found(struct engine_sandbox *sb)
{
    for (size_t i = 0; i < sb->n_found; i++)
        if (sb->found[i].number != 0)
            (void)engine_send(sb, GUEST_FORGET, sb->found[i].number | GUEST_PROC_BIT, 0, NULL, 0);
    sb->n_found = 0;
}

/* Output. */

struct proc_range engine_proc_range(const struct proc *base)
{
    const struct engine_proc *p = container_of(base, struct engine_proc, base);
    return (struct proc_range){.begin = p->begin, .end = p->begin + p->out.len, .eof = p->ended[0]};
}

ssize_t engine_proc_read(struct proc *base, uint64_t from, char *buf, size_t size)
{
    struct engine_proc *p = proc_of(base);
    if (from < p->begin || from > p->begin + p->out.len)
        return -ERANGE;
    size_t at = (size_t)(from - p->begin);
    size_t n = p->out.len - at < size ? p->out.len - at : size;
    if (n > 0)
        memcpy(buf, p->out.data + at, n);
    return (ssize_t)n;
}

static void on_release(struct loop_defer *d)
{
    struct engine_proc *p = container_of(d, struct engine_proc, release);
    if (p->sb != NULL)
        (void)engine_send(p->sb, GUEST_RELEASE, p->id, 0, &p->begin, sizeof(p->begin));
}

void engine_proc_release(struct proc *base, uint64_t upto)
{
    struct engine_proc *p = proc_of(base);
    if (upto <= p->begin || upto > p->begin + p->out.len)
        return;
    buf_consume(&p->out, (size_t)(upto - p->begin));
    p->begin = upto;
    if (p->out.len == 0)
        buf_done(&p->out);
    loop_defer_start(p->engine->loop, &p->release, on_release);
}

size_t engine_proc_stderr(struct proc *base, char *buf, size_t size)
{
    const struct engine_proc *p = proc_of(base);
    size_t n = p->tail.len < size ? p->tail.len : size;
    if (n > 0)
        memcpy(buf, p->tail.data + p->tail.len - n, n);
    return n;
}

size_t engine_proc_stderr_from(struct proc *base, uint64_t *at, char *buf, size_t size)
{
    const struct engine_proc *p = proc_of(base);
    uint64_t begin = p->err_end - p->tail.len;
    if (*at < begin)
        *at = begin;
    if (*at > p->err_end) /* it counted with an earlier daemon */
        *at = p->err_end;
    size_t n = (size_t)(p->err_end - *at) < size ? (size_t)(p->err_end - *at) : size;
    if (n > 0)
        memcpy(buf, p->tail.data + (size_t)(*at - begin), n);
    *at += n;
    return n;
}

static void tell_output(struct engine_proc *p)
{
    if (!p->freed && !p->ending)
        p->events.output(p->arg);
}

/* Offsets are the guest's word: what does not follow is refused. */
static bool take_output(struct engine_proc *p, const char *body, size_t len)
{
    struct guest_at at;
    if (len <= sizeof(at))
        return false;
    memcpy(&at, body, sizeof(at));
    if (at.offset != p->begin + p->out.len)
        return false;
    return buf_append(&p->out, body + sizeof(at), len - sizeof(at)) == 0;
}

static void take_stderr(struct engine_proc *p, const char *body, size_t len)
{
    if (len <= sizeof(struct guest_at))
        return;
    body += sizeof(struct guest_at);
    len -= sizeof(struct guest_at);
    p->err_end += len;
    if (len > GUEST_STDERR_KEPT) {
        body += len - GUEST_STDERR_KEPT;
        len = GUEST_STDERR_KEPT;
    }
    if (p->tail.len + len > GUEST_STDERR_KEPT)
        buf_consume(&p->tail, p->tail.len + len - GUEST_STDERR_KEPT);
    (void)buf_append(&p->tail, body, len);
}

/* Input. */

static void flush_stdin(struct engine_proc *p)
{
    while (p->sb != NULL && p->in_pos < p->in.len && p->under_way < GUEST_WINDOW) {
        size_t n = p->in.len - p->in_pos;
        n = n < GUEST_DATA_MAX ? n : GUEST_DATA_MAX;
        uint32_t flags = n < p->in.len - p->in_pos ? GUEST_INPUT_PART : 0;
        if (engine_send(p->sb, GUEST_INPUT, p->id, flags, p->in.data + p->in_pos, n) < 0)
            break;
        p->under_way += n;
        p->in_pos += n;
    }
    if (p->in_pos == p->in.len) {
        buf_done(&p->in);
        p->in_pos = 0;
    }
    if (p->close_in && !p->close_sent && p->in.len == 0 && p->sb != NULL) {
        (void)engine_send(p->sb, GUEST_INPUT, p->id, GUEST_INPUT_CLOSE, NULL, 0);
        p->close_sent = true;
    }
}

static void on_stdin_taken(struct engine_proc *p, uint64_t n)
{
    p->under_way -= n < p->under_way ? n : p->under_way;
    flush_stdin(p);
    if (!p->held_back || p->in.len > 0 || p->under_way > 0)
        return;
    p->held_back = false;
    if (!p->freed && !p->ending && p->events.stdin_drained != NULL)
        p->events.stdin_drained(p->arg);
}

int engine_proc_write(struct proc *base, const char *data, size_t len)
{
    struct engine_proc *p = proc_of(base);
    if (p->exited || p->close_in || p->sb == NULL)
        return -EPIPE;
    if (p->in_pos >= p->in.len / 2) {
        buf_consume(&p->in, p->in_pos);
        p->in_pos = 0;
    }
    int r = buf_append(&p->in, data, len);
    if (r < 0)
        return r;
    flush_stdin(p);
    if (p->in.len - p->in_pos + p->under_way <= STDIN_HIGH_WATER)
        return 0;
    p->held_back = true;
    return 1;
}

size_t engine_proc_unwritten(const struct proc *base)
{
    const struct engine_proc *p = container_of(base, const struct engine_proc, base);
    return p->in.len - p->in_pos + (size_t)p->under_way;
}

void engine_proc_close_stdin(struct proc *base)
{
    struct engine_proc *p = proc_of(base);
    p->close_in = true;
    flush_stdin(p);
}

/* Orders and the end. */

void engine_proc_signal(struct proc *base, int signo)
{
    struct engine_proc *p = proc_of(base);
    if (p->sb != NULL && signo > 0)
        (void)engine_send(p->sb, GUEST_SIGNAL, p->id, (uint32_t)signo, NULL, 0);
}

void engine_proc_kill(struct proc *base)
{
    struct engine_proc *p = proc_of(base);
    if (p->sb != NULL)
        (void)engine_send(p->sb, GUEST_KILL, p->id, 0, NULL, 0);
}

static void tell_ended(struct engine_proc *p, const struct err *err)
{
    backend_done_fn *done = TAKE_PTR(p->gone);
    loop_timer_stop(&p->overdue);
    if (done != NULL)
        done(p->gone_arg, err);
}

/* A supervisor that says nothing does nothing: its container goes. */
static void on_overdue(struct loop_timer *t)
{
    struct engine_proc *p = container_of(t, struct engine_proc, overdue);
    struct engine_sandbox *sb = p->sb;
    struct err err = {0};
    (void)backend_unended(&err, "process");
    p->busy++;
    tell_ended(p, &err);
    p->busy--;
    maybe_free(p);
    if (sb != NULL)
        engine_lose(sb);
}

static void on_lost(struct loop_defer *d);

void engine_proc_end(struct proc *base, backend_done_fn *done, void *arg)
{
    struct engine_proc *p = proc_of(base);
    p->ending = true;
    p->gone = done;
    p->gone_arg = arg;
    if (p->sb == NULL) {
        loop_defer_start(p->engine->loop, &p->defer, on_lost);
        return;
    }
    (void)engine_send(p->sb, GUEST_FORGET, p->id, 0, NULL, 0);
    loop_timer_start(p->engine->loop, &p->overdue, BACKEND_OVERDUE_NS, on_overdue);
}

void engine_proc_free(struct proc *base)
{
    if (base == NULL)
        return;
    struct engine_proc *p = proc_of(base);
    p->gone = NULL;
    if (p->sb != NULL && !p->ending)
        (void)engine_send(p->sb, GUEST_FORGET, p->id, 0, NULL, 0);
    unlink_proc(p);
    p->freed = true;
    maybe_free(p);
}

static void tell_exit(struct engine_proc *p)
{
    if (p->told)
        return;
    p->told = true;
    if (!p->freed && !p->ending)
        p->events.exited(p->arg, &p->outcome);
}

static void on_exited(struct engine_proc *p, const struct guest_exited *m)
{
    if (p->exited)
        return;
    p->exited = true;
    engine_outcome(&p->outcome, m);
    if (m->stage == GUEST_STAGE_LIMIT || m->stage == GUEST_STAGE_REQUEST)
        p->ended[0] = p->ended[1] = true;
    buf_done(&p->in);
    p->in_pos = 0;
    tell_exit(p);
}

void engine_proc_frame(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    struct engine_proc *p = sb->procs;
    uint64_t n = 0;
    while (p != NULL && p->id != head->id)
        p = p->next;
    if (p == NULL)
        return;
    p->busy++;
    if (p->ending) {
        if (head->type == GUEST_GONE)
            tell_ended(p, NULL);
    } else if (head->type == GUEST_OUTPUT && head->flags == 0) {
        if (take_output(p, body, head->len))
            tell_output(p);
    } else if (head->type == GUEST_OUTPUT) {
        take_stderr(p, body, head->len);
    } else if (head->type == GUEST_END && head->flags < 2) {
        p->ended[head->flags] = true;
        if (head->flags == 0)
            tell_output(p);
    } else if (head->type == GUEST_DRAINED && head->len == sizeof(n)) {
        memcpy(&n, body, sizeof(n));
        on_stdin_taken(p, n);
    } else if (head->type == GUEST_EXITED && head->len == sizeof(struct guest_exited)) {
        struct guest_exited m;
        memcpy(&m, body, sizeof(m));
        on_exited(p, &m);
    }
    p->busy--;
    maybe_free(p);
}

static void on_lost(struct loop_defer *d)
{
    struct engine_proc *p = container_of(d, struct engine_proc, defer);
    p->busy++;
    if (!p->exited)
        p->outcome = (struct outcome){.kind = OUTCOME_SESSION_LOST};
    p->exited = true;
    bool more = !p->ended[0];
    p->ended[0] = p->ended[1] = true;
    if (more)
        tell_output(p);
    tell_exit(p);
    tell_ended(p, NULL); /* it went with all the others */
    p->busy--;
    maybe_free(p);
}

void engine_proc_drop_all(struct engine_sandbox *sb)
{
    for (struct engine_proc *p = sb->procs, *next; p != NULL; p = next) {
        next = p->next;
        unlink_proc(p);
        p->freed = true;
        maybe_free(p);
    }
}

void engine_proc_lose_all(struct engine_sandbox *sb)
{
    while (sb->procs != NULL) {
        struct engine_proc *p = sb->procs;
        unlink_proc(p);
        loop_defer_start(p->engine->loop, &p->defer, on_lost);
    }
}
