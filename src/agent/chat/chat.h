/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Chat sandboxes: one sandbox per chat, made when it is first asked for, the same one until it
 * expires. A chat is a UUID, in whatever spelling. What a chat sandbox is stands in labels that the
 * sandbox carries (an engine's own, or those of the session's record): session_id, chat_id and
 * expires_at. There is no other register: the sessions of the manager that have these labels are
 * the chat sandboxes, each under the name of its chat, and a client that may use sessions may use
 * them.
 *
 * Everything that is done for one chat is done one after the other, in the order it was asked for:
 * two creates make one sandbox, and a create during a stop waits for its end. Chats do not wait for
 * each other. Completions come from the loop. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"

struct chat;
struct chat_config;
struct manager;

#define CHAT_UUID_SIZE 37       /* canonical: 36 characters, and NUL */
#define CHAT_CONTAINER_SIZE 129 /* name in its backend, or the engine's id */

/* Which sandbox a chat has. */
struct chat_session {
    char session_id[CHAT_UUID_SIZE], chat_id[CHAT_UUID_SIZE];
    char container_id[CHAT_CONTAINER_SIZE];
    uint64_t created_ns, expires_ns; /* wall clock, whole microseconds */
};

enum chat_result {
    CHAT_CREATED,
    CHAT_REUSED,
    CHAT_DELETED,
    CHAT_NOT_FOUND, /* nothing to delete, which is as good */
    CHAT_CLEANED,   /* it had expired, and is gone */
    CHAT_SKIPPED,   /* it had expired, but there is another by now, or none */
    CHAT_FAILED,
    CHAT_RESULT_MAX,
};
const char *chat_result_name(enum chat_result result);

/* What could not be done. The code is stable and for programs. */
#define CHAT_START_FAILED "sandbox_start_failed"
#define CHAT_STOP_FAILED "sandbox_stop_failed"
struct chat_failure {
    const char *code;
    char chat_id[CHAT_UUID_SIZE];
    struct err err; /* the cause, for people */
};

/* Tracing. A span begins and ends exactly once unless the chat is freed in between; the pointer is
 * the same, and `user` is the observer's. Names: usecase.create_sandbox, usecase.delete_sandbox,
 * usecase.cleanup_sandbox, and inside of these adapter.create_sandbox and adapter.stop_sandbox. */
struct chat_span {
    const char *name;
    const char *backend;    /* "docker" */
    const char *chat_id;    /* attribute chat.id */
    const char *session_id; /* attribute session.id; "" while it is not known */
    uint64_t begin_ns;      /* CLOCK_MONOTONIC */
    uint64_t end_ns;        /* at its end */
    enum chat_result result;
    const struct chat_failure *failure; /* at the end of one that failed, else NULL */
    void *user;
};

struct chat_observer {
    void (*begin)(void *arg, struct chat_span *span);
    void (*end)(void *arg, struct chat_span *span);
    void *arg;
};

struct chat_options {
    const struct chat_config *config;     /* borrowed */
    int chats_fd;                         /* of config->chats_root; borrowed; -1: not configured */
    const struct chat_observer *observer; /* borrowed; NULL: none */
};

int chat_new(struct manager *m, const struct chat_options *options, struct chat **ret,
             struct err *err); /* manager borrowed */
/* No callback is called; the manager must not call back any more, so the loop has ended. */
void chat_free(struct chat *c);
DEFINE_CLEANUP(chat)

/* Finds again what an earlier daemon left, by its labels: to be called once, before
 * manager_adopt(), which then takes it over. Of several sandboxes of one chat the newest is kept;
 * the others, and those whose labels make no sense, are not adopted. An error, here or through
 * `done`, means that the backend cannot tell; then no client should be served. */
typedef void chat_done_fn(void *arg, const struct err *err); /* err NULL: done */
int chat_reconcile(struct chat *c, chat_done_fn *done, void *arg, struct err *err);
/* From now on what has expired is ended, first at once, then at each interval. */
void chat_start(struct chat *c);

/* `s` NULL: `failure` says why. */
typedef void chat_created_fn(void *arg, const struct chat_session *s, enum chat_result result,
                             const struct chat_failure *failure);
typedef void chat_deleted_fn(void *arg, enum chat_result result,
                             const struct chat_failure *failure);
/* ERR_INVALID when that is no UUID, ERR_UNSUPPORTED when chat sandboxes are not configured,
 * ERR_LIMIT when too many wait. */
int chat_create(struct chat *c, const char *chat_id, chat_created_fn *done, void *arg,
                struct err *err);
int chat_delete(struct chat *c, const char *chat_id, chat_deleted_fn *done, void *arg,
                struct err *err);

/* Counters and gauges, for the metrics page: the i-th, false behind the last.
 * sandbox.create.total, sandbox.delete.total and sandbox.cleanup.total have a result,
 * sandbox.active has none and is a gauge. */
struct chat_metric {
    const char *name;   /* "sandbox.create.total" */
    const char *result; /* "created"; NULL: it has no such label */
    bool gauge;
    uint64_t value;
};
bool chat_metric(const struct chat *c, size_t i, struct chat_metric *ret);

/* Every spelling that Python's uuid.UUID() takes, in the canonical one. -EINVAL. */
int chat_uuid_parse(const char *text, char ret[static CHAT_UUID_SIZE]);
/* As Python's isoformat() writes it: 2026-04-02T12:05:00+00:00, with microseconds if there are any.
 */
#define CHAT_TIME_SIZE 40
void chat_time_format(uint64_t real_ns, char ret[static CHAT_TIME_SIZE]);
