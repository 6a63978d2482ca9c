/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Events of sessions, for clients that watch: the last ones by number, in memory. Readers come and
 * go, each at its own pace; a reader that is too slow, or comes back too late, gets the number of
 * events that it has missed. Numbers start anew with the process. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "loop/loop.h"

struct events;

#define EVENTS_MAX 1024U

enum event_kind {
    EVENT_SESSION_CREATED,
    EVENT_SESSION_DELETED, /* on request */
    EVENT_SESSION_EXPIRED, /* idle for too long */
    EVENT_SESSION_LOST,    /* its sandbox died */
    EVENT_SESSION_STOPPED, /* on request, or idle for too long; its files stay */
    EVENT_SESSION_STARTED, /* after that */
    EVENT_SESSION_PAUSED,
    EVENT_SESSION_UNPAUSED,
    EVENT_SESSION_RENAMED, /* `session` is the new name */
    EVENT_SESSION_UPDATED, /* it has other limits */
    EVENT_PROCESS_STARTED,
    EVENT_PROCESS_EXITED,
    EVENT_EXEC_ENDED,
    EVENT_KIND_MAX,
};

/* All text is borrowed, by events_emit() for the call, by readers until the next event. */
struct event {
    enum event_kind kind;
    const char *session;
    const char *name; /* of the process or exec; NULL: none */
    enum outcome_kind outcome;
    int exit_code; /* of a process: minus the signal */
    uint64_t duration_ns;
    bool bound; /* the session is of a user without a token: */
    uid_t uid;
    /* Filled in here. */
    uint64_t seq, real_ns;
};

struct events *events_new(struct loop *loop, size_t max);
void events_free(struct events *e); /* readers must be gone */
DEFINE_CLEANUP(events)

void events_emit(struct events *e, const struct event *event); /* e NULL: does nothing */
/* Gets every event at once, before any reader: for records that may not miss any. */
void events_set_sink(struct events *e, void (*fn)(void *arg, const struct event *event), void *arg);
uint64_t events_last(const struct events *e);     /* number of the last; 0: none */
const char *events_epoch(const struct events *e); /* 16 hex digits, this process only */
const char *event_kind_name(enum event_kind kind);

struct events_reader {
    struct events *hub; /* NULL: not attached; the rest is private but `arg` */
    LIST_ENTRY(events_reader) link;
    uint64_t at, missed;
    bool (*visible)(void *arg, const struct event *event);
    void (*ready)(void *arg);
    void *arg;
    struct loop_defer defer;
};

/* How many events a reader that continues after `after` has lost, of all callers. */
uint64_t events_lost(const struct events *e, uint64_t after);
/* Continues after event number `after`. `ready` comes from the loop, whenever there may be more.
 * Events that `visible` (NULL: all) refuses are neither shown nor counted. */
void events_attach(struct events *e, struct events_reader *r, uint64_t after);
void events_detach(struct events_reader *r);
/* The next one, or NULL. *ret_missed: events that were dropped before it. */
const struct event *events_next(struct events_reader *r, uint64_t *ret_missed);
