/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "backend/backend.h"
#include "backend/fake.h"
#include "io/loop.h"
#include "util/buf.h"
#include "util/err.h"

struct fake_exec;

struct fake {
    struct backend base;
    struct loop *loop; /* borrowed */
    struct fake_options options;
    struct fake_sandbox *sandboxes; /* list, owned */
    struct fake_text *texts;        /* list, owned; answers on their way */
    struct err faults[FAKE_CALL_MAX];
};

/*   CREATING ──► READY ──► DESTROYING
 *       └──────────────────────┘          */
enum fake_state { FAKE_CREATING, FAKE_READY, FAKE_DESTROYING, FAKE_STATE_MAX };

struct fake_sandbox {
    struct sandbox base;
    struct fake *fake; /* borrowed */
    struct fake_sandbox *prev, *next;
    enum fake_state state;
    char **env;              /* owned; of the spec */
    char *workdir;           /* owned */
    bool lost;               /* died by itself */
    struct fake_exec *execs; /* list; owned by their users */
    backend_created_fn *created;
    backend_lost_fn *on_lost;
    void *arg;
    backend_done_fn *destroyed;
    void *destroyed_arg;
    struct loop_defer defer;
    struct loop_timer timer;
};

/* True, and the fault is used up, when the test has asked for one. */
bool fake_fault(struct fake *f, enum fake_call call, struct err *err);

/* The sandbox dies by itself. */
void fake_lose(struct fake_sandbox *sb);

/* fake_exec.c */
int fake_exec_start(struct sandbox *base, const struct exec_request *req,
                    const struct exec_events *events, void *arg, struct exec **ret,
                    struct err *err);
int fake_exec_write(struct exec *base, const char *data, size_t len);
void fake_exec_close_stdin(struct exec *base);
void fake_exec_signal(struct exec *base, int signo);
void fake_exec_kill(struct exec *base);
void fake_exec_resize(struct exec *base, uint16_t rows, uint16_t cols);
void fake_exec_pause(struct exec *base, bool paused);
void fake_exec_free(struct exec *base);
/* Every exec of the sandbox ends as SESSION_LOST, from the loop. */
void fake_exec_lose_all(struct fake_sandbox *sb);
