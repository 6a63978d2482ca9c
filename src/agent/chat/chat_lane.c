/* SPDX-License-Identifier: Apache-2.0 */

/* Operations of one chat run one after the other: create, delete, clean up. */

#include <assert.h>
#include <string.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "policy/chat_config.h"
#include "session/manager.h"
#include "spec/spec.h"

#define OPS_MAX 16384U /* that wait or are under way, over all chats */
#define USEC_NS 1000U

#define TO(s) (1U << CHAT_OP_##s)
static const struct {
    const char *name;
    unsigned next; /* set of states this one may move to */
} states[CHAT_OP_STATE_MAX] = {
    [CHAT_OP_QUEUED] = {"queued", TO(STOPPING) | TO(SWEEPING) | TO(STARTING)},
    [CHAT_OP_STOPPING] = {"stopping", TO(STARTING)},
    [CHAT_OP_SWEEPING] = {"sweeping", TO(STARTING)},
    [CHAT_OP_STARTING] = {"starting", 0},
};

static void op_move(struct chat_op *op, enum chat_op_state to)
{
    assert(states[op->state].next & (1U << to));
    op->state = to;
}

/* Lanes. */

static struct chat_lane **lane_at(const struct chat *c, const char *chat_id)
{
    struct chat_lane **at =
        (struct chat_lane **)(uintptr_t)&c->lanes[str_hash(chat_id) % CHAT_BUCKETS];
    while (*at != NULL && !str_eq((*at)->chat_id, chat_id))
        at = &(*at)->next;
    return at;
}

static struct chat_lane *lane_get(struct chat *c, const char *chat_id)
{
    struct chat_lane **at = lane_at(c, chat_id);
    if (*at == NULL) {
        *at = xnew(struct chat_lane);
        (void)str_copy((*at)->chat_id, sizeof((*at)->chat_id), chat_id);
    }
    return *at;
}

static void on_turn(struct loop_defer *d);

static void lane_begin(struct chat_lane *lane)
{
    loop_defer_start(manager_loop(lane->first->chat->m), &lane->first->defer, on_turn);
}

/* The first is done: the next has its turn. */
static void lane_pop(struct chat_op *op)
{
    struct chat_lane *lane = op->lane;
    assert(lane->first == op);
    lane->first = op->next;
    op->chat->n_ops--;
    op->lane = NULL;
    if (lane->first != NULL) {
        lane_begin(lane);
        return;
    }
    *lane_at(op->chat, lane->chat_id) = lane->next;
    free(lane);
}

bool chat_is_cleaning(const struct chat *c, const char *chat_id)
{
    const struct chat_lane *lane = *lane_at(c, chat_id);
    const struct chat_op *op = lane != NULL ? lane->first : NULL;
    while (op != NULL && op->verb != CHAT_CLEAN)
        op = op->next;
    return op != NULL;
}

void chat_lanes_free(struct chat *c)
{
    for (size_t i = 0; i < CHAT_BUCKETS; i++)
        for (struct chat_lane *lane = c->lanes[i], *next; lane != NULL; lane = next) {
            next = lane->next;
            for (struct chat_op *op = lane->first, *behind; op != NULL; op = behind) {
                behind = op->next;
                loop_defer_stop(&op->defer);
                free(op);
            }
            free(lane);
        }
}

/* The end of an operation. */

static void inner_begin(struct chat_op *op, const char *name)
{
    op->inner = (struct chat_span){
        .name = name, .chat_id = op->lane->chat_id, .session_id = op->session_id};
    op->inner_open = true;
    chat_span_begin(op->chat, &op->inner);
}

static void inner_end(struct chat_op *op, enum chat_result result)
{
    if (op->inner_open)
        chat_span_end(op->chat, &op->inner, result, result == CHAT_FAILED ? &op->failure : NULL);
    op->inner_open = false;
}

static void finish(struct chat_op *op, enum chat_result result, const struct chat_session *s)
{
    struct chat *c = op->chat;
    const struct chat_failure *failure = result == CHAT_FAILED ? &op->failure : NULL;
    c->counts[op->verb][result]++;
    inner_end(op, result);
    chat_span_end(c, &op->span, result, failure);
    lane_pop(op);
    if (op->created != NULL)
        op->created(op->arg, s, result, failure);
    if (op->deleted != NULL)
        op->deleted(op->arg, result, failure);
    free(op);
}

static void fail(struct chat_op *op, const char *code, const struct err *err)
{
    op->failure.code = code;
    op->failure.err = *err;
    (void)str_copy(op->failure.chat_id, sizeof(op->failure.chat_id), op->lane->chat_id);
    finish(op, CHAT_FAILED, NULL);
}

/* Starting. */

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct chat_op *op = arg;
    struct chat_session made;
    struct err other = {0};
    if (s == NULL) {
        fail(op, CHAT_START_FAILED, err);
        return;
    }
    if (chat_session_of(s, &made) && str_eq(made.session_id, op->session_id)) {
        session_release(s);
        finish(op, CHAT_CREATED, &made);
        return;
    }
    (void)err_set(&other, ERR_CONFLICT, "session '%s' exists and is not a chat's; remove it first",
                  op->lane->chat_id);
    session_release(s);
    fail(op, CHAT_START_FAILED, &other);
}

static void make(struct chat_op *op)
{
    struct chat *c = op->chat;
    AUTO(spec) struct spec *spec = NULL;
    struct chat_labels labels = {0};
    struct err err = {0};
    uint64_t ttl = (uint64_t)c->options.config->ttl_seconds * NSEC_PER_SEC;
    uint64_t now = clock_real(loop_clock(manager_loop(c->m))) / USEC_NS * USEC_NS;
    op_move(op, CHAT_OP_STARTING);
    chat_uuid_random(op->session_id);
    memcpy(labels.session_id, op->session_id, sizeof(labels.session_id));
    memcpy(labels.chat_id, op->lane->chat_id, sizeof(labels.chat_id));
    labels.expires_ns = now + ttl;
    inner_begin(op, "adapter.create_sandbox");
    if (chat_make_spec(c, &labels, now, &spec, &err) < 0 ||
        manager_acquire(c->m, &spec, 0, 0, on_ready, op, &err) < 0)
        fail(op, CHAT_START_FAILED, &err);
}

/* Stopping. */

static void on_swept(void *arg, const struct err *err)
{
    struct chat_op *op = arg;
    if (err != NULL) {
        fail(op, op->verb == CHAT_CREATE ? CHAT_START_FAILED : CHAT_STOP_FAILED, err);
        return;
    }
    chat_debris_forget(op->chat, op->sweep_serial);
    if (op->verb == CHAT_CREATE)
        make(op);
    else
        finish(op, CHAT_DELETED, NULL);
}

/* A sandbox of this chat could not be stopped earlier: it has to go first. */
static void sweep(struct chat_op *op)
{
    struct backend *b = manager_backend(op->chat->m);
    struct err err = {0};
    op_move(op, CHAT_OP_SWEEPING);
    op->sweep_serial = op->chat->debris_serial;
    if (b->ops->sweep == NULL)
        on_swept(op, NULL);
    else if (b->ops->sweep(b, on_swept, op, &err) < 0)
        on_swept(op, &err);
}

static void on_gone(void *arg, const struct err *err)
{
    struct chat_op *op = arg;
    if (err != NULL) {
        chat_debris_add(op->chat, op->lane->chat_id);
        fail(op, CHAT_STOP_FAILED, err);
        return;
    }
    inner_end(op, CHAT_DELETED);
    if (op->verb == CHAT_CREATE)
        make(op);
    else
        finish(op, op->verb == CHAT_DELETE ? CHAT_DELETED : CHAT_CLEANED, NULL);
}

static void stop(struct chat_op *op, const struct chat_session *s)
{
    struct err err = {0};
    op_move(op, CHAT_OP_STOPPING);
    memcpy(op->session_id, s->session_id, sizeof(op->session_id));
    inner_begin(op, "adapter.stop_sandbox");
    if (manager_delete(op->chat->m, op->lane->chat_id, on_gone, op, &err) < 0)
        on_gone(op, NULL); /* there is none, which is what was wanted */
}

/* Turns. */

static void run_create(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL && !expired) {
        memcpy(op->session_id, have->session_id, sizeof(op->session_id));
        finish(op, CHAT_REUSED, have);
    } else if (have != NULL) {
        stop(op, have);
    } else if (chat_debris_has(op->chat, op->lane->chat_id)) {
        sweep(op);
    } else {
        make(op);
    }
}

static void run_delete(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL)
        stop(op, have);
    else if (chat_debris_has(op->chat, op->lane->chat_id))
        sweep(op);
    else
        finish(op, CHAT_NOT_FOUND, NULL);
}

/* Whoever was before us in the lane may have replaced it. */
static void run_clean(struct chat_op *op, const struct chat_session *have, bool expired)
{
    if (have != NULL && expired && str_eq(have->session_id, op->session_id))
        stop(op, have);
    else
        finish(op, CHAT_SKIPPED, NULL);
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
    struct session *s = manager_find(c->m, op->lane->chat_id);
    struct chat_session have;
    bool found = s != NULL && chat_session_of(s, &have);
    /* The moment of its end is the first at which it has expired. */
    bool expired = found && have.expires_ns <= clock_real(loop_clock(manager_loop(c->m)));
    verbs[op->verb].run(op, found ? &have : NULL, expired);
}

int chat_submit(struct chat *c, const char *chat_id, const struct chat_op *what, struct err *err)
{
    if (c->n_ops >= OPS_MAX)
        return err_set(err, ERR_LIMIT,
                       "too many requests are waiting for chat sandboxes; try again");
    struct chat_lane *lane = lane_get(c, chat_id);
    struct chat_op *op = xnew(struct chat_op);
    *op = *what;
    op->chat = c;
    op->lane = lane;
    op->span = (struct chat_span){
        .name = verbs[op->verb].span, .chat_id = lane->chat_id, .session_id = op->session_id};
    c->n_ops++;
    chat_span_begin(c, &op->span);
    if (lane->first == NULL) {
        lane->first = lane->last = op;
        lane_begin(lane);
    } else {
        lane->last->next = op;
        lane->last = op;
    }
    return 0;
}
