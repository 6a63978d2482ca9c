/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the two source files of chat sandboxes share. */

#include "agent/chat/chat.h"
#include "base/list.h"
#include "loop/loop.h"

struct session;
struct spec;

#define CHAT_BUCKETS 256U

enum chat_verb { CHAT_CREATE, CHAT_DELETE, CHAT_CLEAN, CHAT_VERB_MAX };

/* A chat whose sandbox could not be stopped: it may still run, until it expires. */
struct chat_debris {
    LIST_ENTRY(chat_debris) entry;
    char chat_id[CHAT_UUID_SIZE];
    uint64_t serial;
};

struct chat {
    struct manager *m; /* borrowed */
    struct chat_options options;
    /* Owned, by chat_id, in the order of the requests. Of each chat the first is at work. */
    TAILQ_HEAD(chat_ops, chat_op) ops[CHAT_BUCKETS];
    size_t n_ops;
    LIST_HEAD(, chat_debris) debris;      /* owned */
    uint64_t debris_serial, sweep_serial; /* of the last; of the last when the sweep began */
    bool sweeping;                        /* by the timer */
    uint64_t counts[CHAT_VERB_MAX][CHAT_RESULT_MAX];
    struct loop_timer timer;
    struct chat_reconcile *reconcile; /* owned; under way */
};

void chat_uuid_random(char ret[static CHAT_UUID_SIZE]);
/* The chat sandbox that this session is; false: it is another kind of session. */
bool chat_session_of(struct session *s, struct chat_session *ret);
/* The spec of the sandbox to make, which has no container yet. The chat's own directory is made. */
int chat_make_spec(struct chat *c, const struct chat_session *want, struct spec **ret,
                   struct err *err);
void chat_reconcile_free(struct chat_reconcile *r); /* NULL is fine */
