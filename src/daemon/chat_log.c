/* SPDX-License-Identifier: Apache-2.0 */

/* The names of log events for chat operations, and the observer that writes them. */

#include "daemon/chat_log.h"

#include "agent/chat/chat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

/* By the result of a whole use case. Names are what programs look for. */
static const struct {
    const char *event;
    enum log_level level;
} events[CHAT_RESULT_MAX] = {
    [CHAT_CREATED] = {"sandbox_created", LOG_LEVEL_INFO},
    [CHAT_REUSED] = {"sandbox_reused", LOG_LEVEL_INFO},
    [CHAT_DELETED] = {"sandbox_deleted", LOG_LEVEL_INFO},
    [CHAT_NOT_FOUND] = {"sandbox_delete_not_found", LOG_LEVEL_INFO},
    [CHAT_CLEANED] = {"sandbox_cleaned", LOG_LEVEL_INFO},
    [CHAT_SKIPPED] = {"sandbox_cleanup_skipped", LOG_LEVEL_DEBUG},
    [CHAT_FAILED] = {NULL, LOG_LEVEL_ERROR}, /* the code says which */
};

static void on_begin(void *arg, struct chat_span *span)
{
    log_debug(span->chat_id, "span_begin name=%s backend=%s chat.id=%s session.id=%s", span->name,
              span->backend, span->chat_id, span->session_id);
}

static void on_end(void *arg, struct chat_span *span)
{
    unsigned long long ms = (span->end_ns - span->begin_ns) / NSEC_PER_MSEC;
    const struct chat_failure *f = span->failure;
    log_debug(span->chat_id,
              "span_end name=%s backend=%s chat.id=%s session.id=%s result=%s duration_ms=%llu",
              span->name, span->backend, span->chat_id, span->session_id,
              chat_result_name(span->result), ms);
    if (!str_starts(span->name, "usecase."))
        return;
    log_at(events[span->result].level, span->chat_id,
           "%s name=%s backend=%s chat.id=%s session.id=%s duration_ms=%llu%s%s",
           f != NULL ? f->code : events[span->result].event, span->name, span->backend,
           span->chat_id, span->session_id, ms, f != NULL ? " error=" : "",
           f != NULL ? f->err.msg : "");
}

const struct chat_observer chat_log = {.begin = on_begin, .end = on_end};
