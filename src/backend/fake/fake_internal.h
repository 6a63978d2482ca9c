/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the fake backend share: its sandboxes, commands and processes. */

#include "backend/backend.h"
#include "backend/fake/fake.h"
#include "base/buf.h"
#include "base/err.h"
#include "loop/loop.h"

struct fake_exec;
struct fake_proc;

struct fake {
    struct backend base;
    struct loop *loop; /* borrowed */
    struct fake_options options;
    struct fake_sandbox *sandboxes; /* list, owned */
    struct fake_text *texts;        /* list, owned; answers on their way */
    struct fake_answer *answers;    /* list, owned; the same */
    uint64_t names;                 /* how many were given */
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
    char name[32];
    bool orphan; /* its daemon is gone: nobody is told anything */
    uint64_t deadline;
    uint64_t created_ns;     /* wall clock */
    char **labels;           /* owned; of the spec */
    char **env;              /* owned; of the spec */
    char *workdir;           /* owned */
    bool lost;               /* died by itself */
    struct fake_exec *execs; /* list; owned by their users, or by a proc */
    struct fake_proc *procs; /* list; owned by their users, or by us while they have none */
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
void fake_sandbox_free(struct fake_sandbox *sb);

/* adopt.c */
int fake_adopt(struct backend *b, const char *name, const struct spec *spec,
               backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);
int fake_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err);
int fake_list(struct backend *b, const char *const *labels, backend_found_fn *each,
              backend_done_fn *done, void *arg, struct err *err);
void fake_answers_free(struct fake *f);

/* exec.c */
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
void fake_exec_end_detached(struct fake_sandbox *sb); /* those that run on unobserved */
bool fake_exec_knows(const char *word);               /* a step may begin with it */
/* Every exec of the sandbox ends as SESSION_LOST, from the loop. */
void fake_exec_lose_all(struct fake_sandbox *sb);

/* proc.c */
int fake_proc_start(struct sandbox *base, const struct proc_request *req,
                    const struct proc_events *events, void *arg, struct proc **ret,
                    struct err *err);
int fake_proc_adopt(struct sandbox *base, uint32_t number, const struct proc_events *events,
                    void *arg, struct proc **ret, struct err *err);
struct proc_range fake_proc_range(const struct proc *base);
ssize_t fake_proc_read(struct proc *base, uint64_t from, char *buf, size_t size);
void fake_proc_release(struct proc *base, uint64_t upto);
size_t fake_proc_stderr(struct proc *base, char *buf, size_t size);
size_t fake_proc_stderr_from(struct proc *base, uint64_t *at, char *buf, size_t size);
size_t fake_proc_unwritten(const struct proc *base);
int fake_proc_write(struct proc *base, const char *data, size_t len);
void fake_proc_close_stdin(struct proc *base);
void fake_proc_signal(struct proc *base, int signo);
void fake_proc_kill(struct proc *base);
void fake_proc_free(struct proc *base);
void fake_procs_orphan(struct fake_sandbox *sb); /* they run on, nobody hears of it */
/* Those that nobody took, of that number; 0: all. */
void fake_procs_vanish(struct fake_sandbox *sb, uint32_t number);
void fake_procs_lose(struct fake_sandbox *sb); /* the sandbox goes; their users free them */
void fake_procs_free(struct fake_sandbox *sb); /* the backend goes */
