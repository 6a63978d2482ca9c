/* SPDX-License-Identifier: Apache-2.0 */

/* Chat sandboxes: one sandbox for each chat, under its name, with labels, an end and counters. What
 * is asked for one chat is done one after the other: create, delete, clean up. */

#include "agent/chat/chat.h"

#include <assert.h>
#include <string.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "policy/chat_config.h"
#include "session/manager.h"
#include "spec/spec.h"

#define OPS_MAX 16384U /* that wait or are under way, over all chats */
#define USEC_NS 1000U

/*   QUEUED ──► STOPPING ──► STARTING ──► (answered)
 *     │ └────► SWEEPING ──────▲ ▲
 *     └─────────────────────────┘
 * An operation may be answered in every state. */
enum chat_op_state {
    CHAT_OP_QUEUED,   /* its turn has not come, or comes with the loop's next one */
    CHAT_OP_STOPPING, /* the manager ends the sandbox */
    CHAT_OP_SWEEPING, /* the backend looks again for what an earlier stop has left */
    CHAT_OP_STARTING, /* the manager makes a sandbox */
    CHAT_OP_STATE_MAX,
};

#define TO(s) (1U << CHAT_OP_##s)
static const unsigned op_moves[CHAT_OP_STATE_MAX] = {
    [CHAT_OP_QUEUED] = TO(STOPPING) | TO(SWEEPING) | TO(STARTING),
    [CHAT_OP_STOPPING] = TO(STARTING),
    [CHAT_OP_SWEEPING] = TO(STARTING),
    [CHAT_OP_STARTING] = 0,
};

/* Something that is to be done for one chat. */
struct chat_op {
    struct chat *chat;
    TAILQ_ENTRY(chat_op) entry; /* of its bucket */
    char chat_id[CHAT_UUID_SIZE];
    enum chat_verb verb;
    enum chat_op_state state;
    char session_id[CHAT_UUID_SIZE]; /* the one to clean, or to make; "" while it is not known */
    uint64_t sweep_serial;           /* stops that had failed when the sweep began */
    struct chat_failure failure;
    struct chat_span span;  /* of the use case */
    struct chat_span inner; /* of the call to the backend in it; no name: there is none */
    chat_created_fn *created;
    chat_deleted_fn *deleted;
    void *arg;
    struct loop_defer defer;
};

/* Counters and spans. */

static const char *const result_names[CHAT_RESULT_MAX] = {
    [CHAT_CREATED] = "created",     [CHAT_REUSED] = "reused",   [CHAT_DELETED] = "deleted",
    [CHAT_NOT_FOUND] = "not_found", [CHAT_CLEANED] = "cleaned", [CHAT_SKIPPED] = "skipped",
    [CHAT_FAILED] = "failed",
};

static const struct {
    const char *name;
    enum chat_verb verb;
    enum chat_result result;
} counters[] = {
    {"sandbox.create.total", CHAT_CREATE, CHAT_CREATED},
    {"sandbox.create.total", CHAT_CREATE, CHAT_REUSED},
    {"sandbox.create.total", CHAT_CREATE, CHAT_FAILED},
    {"sandbox.delete.total", CHAT_DELETE, CHAT_DELETED},
    {"sandbox.delete.total", CHAT_DELETE, CHAT_NOT_FOUND},
    {"sandbox.delete.total", CHAT_DELETE, CHAT_FAILED},
    {"sandbox.cleanup.total", CHAT_CLEAN, CHAT_CLEANED},
    {"sandbox.cleanup.total", CHAT_CLEAN, CHAT_SKIPPED},
    {"sandbox.cleanup.total", CHAT_CLEAN, CHAT_FAILED},
};

const char *chat_result_name(enum chat_result result)
{
    assert(result < CHAT_RESULT_MAX);
    return result_names[result];
}

static uint64_t count_active(const struct chat *c)
{
    struct chat_session ignored;
    uint64_t n = 0;
    for (struct session *s = manager_next(c->m, NULL); s != NULL; s = manager_next(c->m, s))
        n += chat_session_of(s, &ignored);
    return n;
}

bool chat_metric(const struct chat *c, size_t i, struct chat_metric *ret)
{
    if (i > ARRAY_SIZE(counters))
        return false;
    if (i == ARRAY_SIZE(counters)) {
        *ret =
            (struct chat_metric){.name = "sandbox.active", .gauge = true, .value = count_active(c)};
        return true;
    }
    *ret = (struct chat_metric){.name = counters[i].name,
                                .result = result_names[counters[i].result],
                                .value = c->counts[counters[i].verb][counters[i].result]};
    return true;
}

static void span_begin(struct chat *c, struct chat_span *span)
{
    const struct chat_observer *o = c->options.observer;
    span->backend = manager_backend(c->m)->ops->name;
    span->begin_ns = loop_now(manager_loop(c->m));
    if (o != NULL)
        o->begin(o->arg, span);
}

static void span_end(struct chat *c, struct chat_span *span, enum chat_result result,
                     const struct chat_failure *failure)
{
    const struct chat_observer *o = c->options.observer;
    span->end_ns = loop_now(manager_loop(c->m));
    span->result = result;
    span->failure = failure;
    if (o != NULL)
        o->end(o->arg, span);
}

/* Chats whose sandbox could not be stopped. It belongs to no session any more; the backend knows
 * how to find it. */

static bool debris_has(const struct chat *c, const char *chat_id)
{
    const struct chat_debris *d;
    LIST_FOREACH (d, &c->debris, entry)
        if (str_eq(d->chat_id, chat_id))
            break;
    return d != NULL;
}

static void debris_add(struct chat *c, const char *chat_id)
{
    struct chat_debris *d = xnew(struct chat_debris);
    (void)str_copy(d->chat_id, sizeof(d->chat_id), chat_id);
    d->serial = ++c->debris_serial;
    LIST_INSERT_HEAD(&c->debris, d, entry);
}

/* That one and those before. */
static void debris_forget(struct chat *c, uint64_t serial)
{
    struct chat_debris *d, *next;
    LIST_FOREACH_SAFE (d, &c->debris, entry, next) {
        if (d->serial > serial)
            continue;
        LIST_REMOVE(d, entry);
        free(d);
    }
}

static void on_debris_swept(void *arg, const struct err *err)
{
    struct chat *c = arg;
    c->sweeping = false;
    if (err != NULL)
        log_warn(NULL, "chat sandboxes that could not be stopped: %s; trying again later",
                 err->msg);
    else
        debris_forget(c, c->sweep_serial);
}

static void debris_sweep(struct chat *c)
{
    struct backend *b = manager_backend(c->m);
    struct err err = {0};
    if (LIST_EMPTY(&c->debris) || c->sweeping || b->ops->sweep == NULL)
        return;
    c->sweep_serial = c->debris_serial;
    c->sweeping = true;
    if (b->ops->sweep(b, on_debris_swept, c, &err) < 0)
        on_debris_swept(c, &err);
}

/* The operations of one chat, one after the other. */

static struct chat_ops *bucket_of(struct chat *c, const char *chat_id)
{
    return &c->ops[str_hash(chat_id) % CHAT_BUCKETS];
}

/* The operation that is at work for the chat; NULL: none is to be done. */
static struct chat_op *op_first(struct chat *c, const char *chat_id)
{
    struct chat_op *op;
    TAILQ_FOREACH (op, bucket_of(c, chat_id), entry)
        if (str_eq(op->chat_id, chat_id))
            break;
    return op;
}

static void on_turn(struct loop_defer *d);

static void op_begin(struct chat_op *op)
{
    loop_defer_start(manager_loop(op->chat->m), &op->defer, on_turn);
}

/* The first is done: the next has its turn. */
static void op_pop(struct chat_op *op)
{
    struct chat *c = op->chat;
    assert(op_first(c, op->chat_id) == op && c->n_ops > 0);
    TAILQ_REMOVE(bucket_of(c, op->chat_id), op, entry);
    c->n_ops--;
    struct chat_op *next = op_first(c, op->chat_id);
    if (next != NULL)
        op_begin(next);
}

/* The end of an operation. */

static void inner_begin(struct chat_op *op, const char *name)
{
    op->inner =
        (struct chat_span){.name = name, .chat_id = op->chat_id, .session_id = op->session_id};
    span_begin(op->chat, &op->inner);
}

static void inner_end(struct chat_op *op, enum chat_result result)
{
    if (op->inner.name != NULL)
        span_end(op->chat, &op->inner, result, result == CHAT_FAILED ? &op->failure : NULL);
    op->inner.name = NULL;
}

static void op_finish(struct chat_op *op, enum chat_result result, const struct chat_session *s)
{
    struct chat *c = op->chat;
    const struct chat_failure *failure = result == CHAT_FAILED ? &op->failure : NULL;
    assert(op->verb < CHAT_VERB_MAX && result < CHAT_RESULT_MAX);
    c->counts[op->verb][result]++;
    inner_end(op, result);
    span_end(c, &op->span, result, failure);
    op_pop(op);
    if (op->created != NULL)
        op->created(op->arg, s, result, failure);
    if (op->deleted != NULL)
        op->deleted(op->arg, result, failure);
    free(op);
}

static void op_fail(struct chat_op *op, const char *code, const struct err *err)
{
    op->failure.code = code;
    op->failure.err = *err;
    (void)str_copy(op->failure.chat_id, sizeof(op->failure.chat_id), op->chat_id);
    op_finish(op, CHAT_FAILED, NULL);
}

/* Starting. */

static void on_op_made(void *arg, struct session *s, const struct err *err)
{
    struct chat_op *op = arg;
    struct chat_session made;
    struct err other = {0};
    if (s == NULL) {
        op_fail(op, CHAT_START_FAILED, err);
        return;
    }
    if (chat_session_of(s, &made) && str_eq(made.session_id, op->session_id)) {
        session_release(s);
        op_finish(op, CHAT_CREATED, &made);
        return;
    }
    (void)err_set(&other, ERR_CONFLICT, "session '%s' exists and is not a chat's; remove it first",
                  op->chat_id);
    session_release(s);
    op_fail(op, CHAT_START_FAILED, &other);
}

static void op_make(struct chat_op *op)
{
    struct chat *c = op->chat;
    AUTO(spec) struct spec *spec = NULL;
    struct chat_session want = {0};
    struct err err = {0};
    uint64_t ttl = (uint64_t)c->options.config->ttl_seconds * NSEC_PER_SEC;
    STATE_MOVE(op->state, op_moves, CHAT_OP_STARTING);
    chat_uuid_random(op->session_id);
    memcpy(want.session_id, op->session_id, sizeof(want.session_id));
    memcpy(want.chat_id, op->chat_id, sizeof(want.chat_id));
    want.created_ns = clock_real(loop_clock(manager_loop(c->m))) / USEC_NS * USEC_NS;
    want.expires_ns = want.created_ns + ttl;
    inner_begin(op, "adapter.create_sandbox");
    if (chat_make_spec(c, &want, &spec, &err) < 0 ||
        manager_acquire(c->m, &spec, 0, 0, on_op_made, op, &err) < 0)
        op_fail(op, CHAT_START_FAILED, &err);
}

/* Stopping. */

static void on_op_swept(void *arg, const struct err *err)
{
    struct chat_op *op = arg;
    if (err != NULL) {
        op_fail(op, op->verb == CHAT_CREATE ? CHAT_START_FAILED : CHAT_STOP_FAILED, err);
        return;
    }
    debris_forget(op->chat, op->sweep_serial);
    if (op->verb == CHAT_CREATE)
        op_make(op);
    else
        op_finish(op, CHAT_DELETED, NULL);
}

/* A sandbox of this chat could not be stopped earlier: it has to go first. */
static void op_sweep(struct chat_op *op)
{
    struct backend *b = manager_backend(op->chat->m);
    struct err err = {0};
    STATE_MOVE(op->state, op_moves, CHAT_OP_SWEEPING);
    op->sweep_serial = op->chat->debris_serial;
    if (b->ops->sweep == NULL)
        on_op_swept(op, NULL);
    else if (b->ops->sweep(b, on_op_swept, op, &err) < 0)
        on_op_swept(op, &err);
}

static void on_op_stopped(void *arg, const struct err *err)
{
    struct chat_op *op = arg;
    if (err != NULL) {
        debris_add(op->chat, op->chat_id);
        op_fail(op, CHAT_STOP_FAILED, err);
        return;
    }
    inner_end(op, CHAT_DELETED);
    if (op->verb == CHAT_CREATE)
        op_make(op);
    else
        op_finish(op, op->verb == CHAT_DELETE ? CHAT_DELETED : CHAT_CLEANED, NULL);
}

static void op_stop(struct chat_op *op, const struct chat_session *s)
{
    struct err err = {0};
    STATE_MOVE(op->state, op_moves, CHAT_OP_STOPPING);
    memcpy(op->session_id, s->session_id, sizeof(op->session_id));
    inner_begin(op, "adapter.stop_sandbox");
    if (manager_delete(op->chat->m, op->chat_id, on_op_stopped, op, &err) < 0)
        on_op_stopped(op, NULL); /* there is none, which is what was wanted */
}

/* Turns. */

static void run_create(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL && !expired) {
        memcpy(op->session_id, have->session_id, sizeof(op->session_id));
        op_finish(op, CHAT_REUSED, have);
    } else if (have != NULL) {
        op_stop(op, have);
    } else if (debris_has(op->chat, op->chat_id)) {
        op_sweep(op);
    } else {
        op_make(op);
    }
}

static void run_delete(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL)
        op_stop(op, have);
    else if (debris_has(op->chat, op->chat_id))
        op_sweep(op);
    else
        op_finish(op, CHAT_NOT_FOUND, NULL);
}

/* The operation before this one may have replaced it. */
static void run_clean(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL && expired && str_eq(have->session_id, op->session_id))
        op_stop(op, have);
    else
        op_finish(op, CHAT_SKIPPED, NULL);
}

static const struct {
    const char *span;
    void (*run)(struct chat_op *op, const struct chat_session *have, bool expired);
} verbs[CHAT_VERB_MAX] = {
    [CHAT_CREATE] = {"usecase.create_sandbox", run_create},
    [CHAT_DELETE] = {"usecase.delete_sandbox", run_delete},
    [CHAT_CLEAN] = {"usecase.cleanup_sandbox", run_clean},
};

static void on_turn(struct loop_defer *d)
{
    struct chat_op *op = container_of(d, struct chat_op, defer);
    const struct chat *c = op->chat;
    struct session *s = manager_find(c->m, op->chat_id);
    struct chat_session have;
    bool found = s != NULL && chat_session_of(s, &have);
    /* The moment of its end is the first at which it has expired. */
    bool expired = found && have.expires_ns <= clock_real(loop_clock(manager_loop(c->m)));
    verbs[op->verb].run(op, found ? &have : NULL, expired);
}

static int op_submit(struct chat *c, const char *chat_id, const struct chat_op *what,
                     struct err *err)
{
    if (c->n_ops >= OPS_MAX)
        return err_set(err, ERR_LIMIT,
                       "too many requests are waiting for chat sandboxes; try again");
    bool first = op_first(c, chat_id) == NULL;
    struct chat_op *op = xnew(struct chat_op);
    *op = *what;
    op->chat = c;
    (void)str_copy(op->chat_id, sizeof(op->chat_id), chat_id);
    op->span = (struct chat_span){
        .name = verbs[op->verb].span, .chat_id = op->chat_id, .session_id = op->session_id};
    c->n_ops++;
    span_begin(c, &op->span);
    TAILQ_INSERT_TAIL(bucket_of(c, chat_id), op, entry);
    if (first)
        op_begin(op);
    return 0;
}

static int parse_and_submit(struct chat *c, const char *chat_id, const struct chat_op *what,
                            struct err *err)
{
    char canonical[CHAT_UUID_SIZE];
    if (chat_uuid_parse(chat_id, canonical) < 0)
        return err_set(err, ERR_INVALID, "chat_id must be a UUID");
    return op_submit(c, canonical, what, err);
}

int chat_create(struct chat *c, const char *chat_id, chat_created_fn *done, void *arg,
                struct err *err)
{
    if (!chat_configured(c->options.config))
        return err_set(err, ERR_UNSUPPORTED,
                       "chat sandboxes are not configured: the configuration of boxd needs a "
                       "section 'sandbox', or $APP_SANDBOX_IMAGE and so on");
    return parse_and_submit(
        c, chat_id, &(struct chat_op){.verb = CHAT_CREATE, .created = done, .arg = arg}, err);
}

int chat_delete(struct chat *c, const char *chat_id, chat_deleted_fn *done, void *arg,
                struct err *err)
{
    return parse_and_submit(
        c, chat_id, &(struct chat_op){.verb = CHAT_DELETE, .deleted = done, .arg = arg}, err);
}

/* The end of chats. */

/* Its end has come, and an operation sees to it or is about to. */
static bool is_cleaning(struct chat *c, const char *chat_id)
{
    const struct chat_op *op;
    TAILQ_FOREACH (op, bucket_of(c, chat_id), entry)
        if (op->verb == CHAT_CLEAN && str_eq(op->chat_id, chat_id))
            break;
    return op != NULL;
}

/* What the timer does. */
static void chat_cleanup(struct chat *c)
{
    uint64_t now = clock_real(loop_clock(manager_loop(c->m)));
    struct chat_session s;
    struct err err = {0};
    for (struct session *it = manager_next(c->m, NULL); it != NULL; it = manager_next(c->m, it)) {
        if (!chat_session_of(it, &s) || s.expires_ns > now || is_cleaning(c, s.chat_id))
            continue;
        struct chat_op what = {.verb = CHAT_CLEAN};
        memcpy(what.session_id, s.session_id, sizeof(what.session_id));
        if (op_submit(c, s.chat_id, &what, &err) < 0) {
            log_warn(s.chat_id, "%s; it is ended later", err.msg);
            break;
        }
    }
    debris_sweep(c);
}

/* The timer and the life of all. */

static void on_time(struct loop_timer *t)
{
    struct chat *c = container_of(t, struct chat, timer);
    uint64_t interval = (uint64_t)c->options.config->cleanup_interval_seconds * NSEC_PER_SEC;
    loop_timer_start(manager_loop(c->m), t, interval, on_time);
    chat_cleanup(c);
}

void chat_start(struct chat *c)
{
    on_time(&c->timer);
}

int chat_new(struct manager *m, const struct chat_options *options, struct chat **ret,
             struct err *err)
{
    struct chat *c = xnew(struct chat);
    c->m = m;
    c->options = *options;
    for (size_t i = 0; i < CHAT_BUCKETS; i++)
        TAILQ_INIT(&c->ops[i]);
    *ret = c;
    return 0;
}

void chat_free(struct chat *c)
{
    if (c == NULL)
        return;
    loop_timer_stop(&c->timer);
    for (size_t i = 0; i < CHAT_BUCKETS; i++)
        while (!TAILQ_EMPTY(&c->ops[i])) {
            struct chat_op *op = TAILQ_FIRST(&c->ops[i]);
            TAILQ_REMOVE(&c->ops[i], op, entry);
            loop_defer_stop(&op->defer);
            free(op);
        }
    debris_forget(c, c->debris_serial);
    chat_reconcile_free(c->reconcile);
    free(c);
}
