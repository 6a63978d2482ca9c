/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the fake backend share: its sandboxes and their programs. */

#include "backend/backend.h"
#include "backend/task.h"
#include "base/err.h"
#include "base/list.h"
#include "fake/fake.h"
#include "loop/loop.h"

struct fake {
    struct backend base;
    struct loop *loop; /* borrowed */
    struct fake_options options;
    int64_t memory_mb;                   /* fake_memory_mb() */
    LIST_HEAD(, fake_sandbox) sandboxes; /* owned */
    LIST_HEAD(, fake_answer) answers;    /* owned; on their way */
    uint64_t names;                      /* how many were given */
    char **kept;                         /* owned; names of durable ones, alive or not */
    struct err faults[FAKE_CALL_MAX];
};

/*   CREATING ──► READY ──► DESTROYING
 *       └──────────────────────┘          */
enum fake_state { FAKE_CREATING, FAKE_READY, FAKE_DESTROYING, FAKE_STATE_MAX };

struct fake_sandbox {
    struct tasks tasks;
    struct fake *fake; /* borrowed */
    LIST_ENTRY(fake_sandbox) entry;
    enum fake_state state;
    char name[32];
    bool orphan; /* its daemon is gone: nobody is told anything */
    bool lost;   /* died by itself */
    bool frozen; /* paused */
    uint64_t deadline;
    uint64_t created_ns; /* wall clock */
    char **labels;       /* owned; of the spec */
    char **env;          /* owned; of the spec */
    char *workdir;       /* owned */
    uint32_t next_id;
    backend_created_fn *created;
    backend_lost_fn *on_lost;
    void *arg;
    backend_done_fn *destroyed;
    void *destroyed_arg;
    struct loop_defer defer;
    struct loop_timer timer;
};

/* fake.c */
/* True, and the fault is used up, when the test has asked for one. */
bool fake_fault(struct fake *f, enum fake_call call, struct err *err);
void fake_lose(struct fake_sandbox *sb); /* it dies by itself */

/* tasks.c */
extern const struct tasks_ops fake_tasks_ops;
void fake_tasks_orphan(struct fake_sandbox *sb);       /* processes run on, nobody hears of it */
void fake_tasks_end_detached(struct fake_sandbox *sb); /* commands that run on unobserved */
/* Processes that nobody took, of that number; 0: all. */
void fake_tasks_end_untaken(struct fake_sandbox *sb, uint32_t number);
