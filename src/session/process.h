/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Managed processes: programs that live in a session until they end, are stopped or replaced, or
 * the session goes. They belong to the session, never to a connection; readers come and go. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend/backend.h"

struct buf;
struct err;
struct manager;
struct process;
struct process_spec;
struct session;

#define PROCESS_STDERR_CHARS 4000U    /* of the preview, code points */
#define PROCESS_SAVED_MAX (64U << 10) /* of a log, once its session is stopped */

/*   STARTING ──► RUNNING ──► EXITED ──► (forgotten)
 *       │           └─► STOPPING ──────────┤
 *       └──────────────────────────────────┘          */
enum process_state {
    PROCESS_STARTING, /* its predecessor of the same id is still ending */
    PROCESS_RUNNING,
    PROCESS_STOPPING, /* stdin closed, SIGTERM sent; killed after a grace */
    PROCESS_EXITED,   /* kept for a while so that people can ask how it went */
    PROCESS_STATE_MAX,
};

typedef void process_started_fn(void *arg, struct process *p,
                                const struct err *err);            /* p NULL: err says why */
typedef void process_stopped_fn(void *arg, const struct err *err); /* err NULL: it is forgotten */

/* Takes *spec on success of the call. A running process of the same id is ended first and replaced;
 * an exited one is replaced at once. ERR_LIMIT when the manager's cap is reached. `p` in `started`
 * is borrowed for the call. */
int process_start(struct session *s, struct process_spec **spec, process_started_fn *started,
                  void *arg, struct err *err);
/* Ends it if it runs, and forgets it. ERR_NOT_FOUND. */
int process_stop(struct session *s, const char *process_id, process_stopped_fn *stopped, void *arg,
                 struct err *err);
/* Kills it and all it started, if it runs; process_reason() then says why (NULL: a client asked).
 */
void process_kill(struct process *p, const char *why);
const char *process_reason(const struct process *p); /* NULL: boxd did not decide to kill it */
/* To its main process; SIGKILL as process_kill(). ERR_STATE when it does not run. */
int process_signal(struct process *p, int signo, struct err *err);
void process_resize(struct process *p, uint16_t rows, uint16_t cols); /* its terminal, if any */
/* NULL: none. One that is being replaced is found until its successor runs. */
struct process *process_find(struct session *s, const char *process_id);
struct process *process_next(struct session *s, struct process *after); /* by start; NULL starts */

const struct process_spec *process_spec_of(const struct process *p);
struct session *process_session(const struct process *p);
uint32_t process_number(const struct process *p);     /* as the backend knows it */
bool process_running(const struct process *p);        /* also while it is being stopped */
bool process_attached(const struct process *p);       /* a reader has claimed it */
uint64_t process_started_at(const struct process *p); /* wall clock */
uint64_t process_exited_at(const struct process *p);  /* wall clock; 0 while it runs */
/* Exit status, or the negative number of the signal that ended it. */
int process_exit_code(const struct process *p);
/* The last PROCESS_STDERR_CHARS of stderr as valid UTF-8, white space at the end removed. Where
 * there is none: why the process never ran, or was killed by the kernel. */
void process_stderr_preview(struct process *p, struct buf *ret);

/* Bytes of stderr from offset *at on, or from the first that is still kept; *at moves behind them
 * and past what was lost. Nothing tells when there is more. */
size_t process_stderr_from(struct process *p, uint64_t *at, char *buf, size_t size);

/* Whether its output is bytes of stdout, which clients read and release. ERR_CONFLICT for a log,
 * which consists of records (inside/wire.h). */
int process_check_plain(const struct process *p, struct err *err);
/* Output by byte offset, beside any reader: looking takes nothing away. */
struct proc_range process_range(const struct process *p);
ssize_t process_read(struct process *p, uint64_t from, char *buf, size_t size);
/* ERR_CONFLICT while a reader has claimed the process: only it knows what its peer has. */
int process_release(struct process *p, uint64_t upto, struct err *err);

size_t manager_processes_running(const struct manager *m);
size_t manager_processes_exited(const struct manager *m);
