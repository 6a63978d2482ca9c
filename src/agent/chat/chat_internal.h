/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of chat sandboxes share: operations, lanes, debris, labels. */

#include "agent/chat/chat.h"
#include "loop/loop.h"

struct chat_lane;
struct spec;

#define CHAT_BUCKETS 256U

/*   QUEUED ──► STOPPING ──► SWEEPING ──► STARTING ──► (answered)
 *   Each may be left out, and everything may go to the end from anywhere. */
enum chat_op_state {
    CHAT_OP_QUEUED,   /* its turn has not come, or comes with the loop's next one */
    CHAT_OP_STOPPING, /* the manager ends the sandbox */
    CHAT_OP_SWEEPING, /* what an earlier stop has left is looked for again */
    CHAT_OP_STARTING, /* the manager makes one */
    CHAT_OP_STATE_MAX,
};

enum chat_verb { CHAT_CREATE, CHAT_DELETE, CHAT_CLEAN, CHAT_VERB_MAX };

/* Something that is to be done for one chat. */
struct chat_op {
    struct chat *chat;
    struct chat_lane *lane;
    struct chat_op *next; /* of the lane */
    enum chat_verb verb;
    enum chat_op_state state;
    char session_id[CHAT_UUID_SIZE]; /* the one to clean, or to make; "" while it is not known */
    uint64_t created_ns, expires_ns; /* of the one to make */
    uint64_t sweep_serial;           /* stops that had failed when the sweep began */
    struct chat_failure failure;
    struct chat_span span, inner; /* of the use case, and of the call to the backend in it */
    bool inner_open;
    chat_created_fn *created;
    chat_deleted_fn *deleted;
    void *arg;
    struct loop_defer defer;
};

/* The line of one chat; there is one only while something is to be done for it. */
struct chat_lane {
    struct chat_lane *next; /* of its bucket */
    char chat_id[CHAT_UUID_SIZE];
    struct chat_op *first, *last;
};

/* A chat whose sandbox could not be stopped: it may still run, until it expires. */
struct chat_debris {
    struct chat_debris *next;
    char chat_id[CHAT_UUID_SIZE];
    uint64_t serial;
};

struct chat {
    struct manager *m; /* borrowed */
    struct chat_options options;
    struct chat_lane *lanes[CHAT_BUCKETS];
    size_t n_ops;
    struct chat_debris *debris;
    uint64_t debris_serial, sweep_serial; /* of the last; of the last when the sweep began */
    bool sweeping;                        /* by the timer */
    uint64_t counts[CHAT_VERB_MAX][CHAT_RESULT_MAX];
    struct loop_timer timer;
    struct chat_reconcile *reconcile; /* owned; under way */
};

/* chat_label.c */
extern const char *const chat_label_names[]; /* NULL-terminated, as an engine filters by them */
struct chat_labels {
    char session_id[CHAT_UUID_SIZE], chat_id[CHAT_UUID_SIZE];
    uint64_t expires_ns;
};
/* -EINVAL when one is missing or makes no sense. */
int chat_labels_parse(char *const *labels, struct chat_labels *ret);
char **chat_labels_new(const struct chat_labels *l); /* in their order */
void chat_uuid_random(char ret[static CHAT_UUID_SIZE]);

/* chat.c: what to make, the chat's own directory included. */
int chat_make_spec(struct chat *c, const struct chat_labels *labels, uint64_t created_ns,
                   struct spec **ret, struct err *err);

/* chat_lane.c */
int chat_submit(struct chat *c, const char *chat_id, const struct chat_op *what, struct err *err);
bool chat_is_cleaning(const struct chat *c, const char *chat_id); /* or about to */
void chat_lanes_free(struct chat *c);

/* chat_debris.c: chats whose sandbox could not be stopped. */
void chat_debris_add(struct chat *c, const char *chat_id);
bool chat_debris_has(const struct chat *c, const char *chat_id);
void chat_debris_forget(struct chat *c, uint64_t serial); /* that one and those before */
/* What could not be stopped is nobody's session any more; the backend knows how to find that. */
void chat_debris_sweep(struct chat *c);

/* chat_reconcile.c */
void chat_reconcile_free(struct chat_reconcile *r);

/* chat_metric.c */
void chat_span_begin(struct chat *c, struct chat_span *span);
void chat_span_end(struct chat *c, struct chat_span *span, enum chat_result result,
                   const struct chat_failure *failure);
