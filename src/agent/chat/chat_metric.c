/* SPDX-License-Identifier: Apache-2.0 */

/* Counts and traces the operations of chat sandboxes. */

#include <assert.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/str.h"
#include "session/manager.h"

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

void chat_span_begin(struct chat *c, struct chat_span *span)
{
    const struct chat_observer *o = c->options.observer;
    span->backend = manager_backend(c->m)->ops->name;
    span->begin_ns = loop_now(manager_loop(c->m));
    if (o != NULL)
        o->begin(o->arg, span);
}

void chat_span_end(struct chat *c, struct chat_span *span, enum chat_result result,
                   const struct chat_failure *failure)
{
    const struct chat_observer *o = c->options.observer;
    span->end_ns = loop_now(manager_loop(c->m));
    span->result = result;
    span->failure = failure;
    if (o != NULL)
        o->end(o->arg, span);
}
