/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of sessions share: sessions, the manager, processes, waiters, notices. */

#include "backend/backend.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "loop/loop.h"
#include "session/events.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "session/process.h"

struct process_record;
struct share;

#define SESSION_BUCKETS 4096U

/* Somebody who waits for a session to be ready (spec set while it has to be made first), or to be
 * gone, or for all to be gone (no session). */
struct waiter {
    struct waiter *next;                /* of the session, in order of arrival */
    struct waiter *all_prev, *all_next; /* of the manager */
    struct manager *m;
    struct session *session; /* held */
    struct spec *spec;       /* owned; set while the name is still somebody else's */
    uint64_t given;
    unsigned flags; /* enum acquire_flags */
    session_ready_fn *ready;
    session_gone_fn *gone;
    void *arg;
    struct err err;
    struct log_scope request; /* who asked, for the log */
    struct loop_defer defer;
};

struct waiter_queue {
    struct waiter *first, **end;
};

struct session {
    struct manager *m;
    struct session *bucket_next, *prev, *next;
    enum session_state state;
    unsigned refs; /* the manager's own is one while it is listed */
    unsigned execs;
    unsigned claims;         /* acquires that wait for it */
    unsigned guests;         /* see session_guest_comes() */
    unsigned condemned;      /* how often session_condemn() was called */
    char *sentence;          /* owned; why, the last time */
    struct spec *spec;       /* owned */
    struct share *share;     /* that it is one session of; NULL: nobody's */
    struct sandbox *sandbox; /* owned by the backend; from its making until it is destroyed */
    char *sandbox_id;        /* owned; what people know it by, as the backend said first; or NULL */
    uint64_t created_real, used_real, used_boot;
    uint64_t quiet_boot;         /* nothing ran in it then; 0: that was never seen */
    uint64_t begun;              /* to be made; monotonic */
    enum metrics_end end;        /* why it goes, once it does */
    uint64_t deadline;           /* as the backend was told last; 0: none */
    struct log_scope request;    /* which had it made or ended, for the log */
    struct waiter_queue waiters; /* told when READY, or gone; first come, first served */
    bool delete_asked;           /* while it was still being created */
    bool retiring; /* somebody waits to make it anew, with other mounts, once it is idle */
    bool adopting; /* CREATING, but it was there before us */
    bool told;     /* it was made, and who watches or counts knows of it */
    bool stored;   /* the store has a record of it */
    bool used_dirty;
    bool left; /* it outlives us: whoever waits for all to be gone does not wait for it */
    uint32_t next_number,
        numbers_end; /* of processes; what lies between is reserved in the store */
    struct process *processes, *last_process;
    size_t n_running;   /* of these */
    unsigned holders;   /* of its lease */
    uint32_t lease_sec; /* it ends so long after its last holder let go; 0: it has no lease */
    struct loop_timer lease_timer;
};

struct manager {
    struct loop *loop;
    struct backend *backend;
    struct manager_options options;
    struct session *buckets[SESSION_BUCKETS];
    struct session *first, *last;
    struct waiter *waiters; /* owned; all of them, also those whose answer is queued */
    size_t n_sessions, n_waiters;
    size_t n_left;                              /* of the sessions: those that stay when all end */
    struct waiter_queue all_gone;               /* told when the last session is gone */
    struct notice *notices;                     /* owned; all of them */
    struct lease_holder *holders, *last_holder; /* borrowed, in the order they came */
    struct process *exited_first, *exited_last; /* in the order they ended */
    size_t n_running, n_exited;                 /* processes */
    struct metrics metrics;
    struct loop_timer reaper, flusher;
    bool closing;
    struct {
        session_gone_fn *done; /* NULL: nobody waits */
        void *arg;
        size_t pending; /* sessions on their way, and one while the store is read */
        struct err err;
        struct loop_defer defer;
    } adopt;
};

/* Who hears that a process was started or stopped; told from the loop, exactly once. */
struct notice {
    struct manager *m;
    struct notice *all_prev, *all_next;
    struct notice *next;     /* of the process */
    struct process *process; /* borrowed; NULL once it is gone */
    process_started_fn *started;
    process_stopped_fn *stopped;
    void *arg;
    struct err err;
    struct log_scope request; /* who asked, for the log */
    struct loop_defer defer;
};

struct process {
    struct session *session;       /* borrowed: it goes before its session does */
    struct process *prev, *next;   /* of the session, by start */
    struct process *older, *newer; /* of the manager, by exit */
    enum process_state state;
    struct process_spec *spec; /* owned */
    struct share *share;       /* that it is one process of, while it runs; NULL: nobody's */
    uint32_t number;
    struct proc *proc;         /* owned; NULL before it is started and once its output is gone */
    struct process *successor; /* owned; STARTING, takes our place when we are gone */
    struct notice *notices;
    uint64_t started_real, exited_real, exited_boot;
    int exit_code;
    char *reason;       /* owned; why it was killed, or NULL */
    uint64_t counted;   /* bytes of output, in the metrics */
    struct buf preview; /* of stderr, once there is no proc, or where it says nothing */
    struct attachment *readers, *last_reader; /* the first has it */
    struct process_watch *watches;
    struct loop_timer timer; /* until it is killed, or its last words are written down */
};

/* waiter.c */
struct waiter *waiter_new(struct manager *m, void *arg);
void waiter_free(struct waiter *w);
void waiter_add(struct session *s, struct waiter *w);
/* Each kind of waiter hears the error that concerns it; NULL: things went well. */
void waiters_wake(struct session *s, const struct err *ready_err, const struct err *gone_err);
void waiters_wake_all_gone(struct manager *m);

/* manager.c: the second half of manager_acquire(), also for one whose turn has come (`queued`).
 * Takes w->spec in every case of success. */
int manager_acquire_for(struct manager *m, struct waiter *w, bool queued, struct err *err);

/* session.c */
struct session *session_new(struct manager *m, struct spec *spec); /* takes spec; lists it */
struct session *session_lookup(struct manager *m, const char *id); /* in any state */
void session_unlist(struct session *s);
void session_touch(struct session *s);
int session_create(struct session *s, struct err *err);
int session_adopt(struct session *s, struct backend *b, const char *sandbox, struct err *err);
void session_stop(struct session *s);
/* The last process of a session that is stopping has ended. */
void session_processes_gone(struct session *s);
/* It is not there or could not be made: forgets it and tells. */
void session_fail(struct session *s, const struct err *err);

/* compat.c */
int session_check_same(const struct session *s, const struct spec *want, uint64_t given,
                       struct err *err);
bool session_same_mounts(const struct spec *a, const struct spec *b);

/* hostpath.c */
int hostpath_check(const struct spec *spec, struct err *err);

/* durable.c: the store, as sessions see it. Without one everything succeeds. */
int durable_put_session(struct session *s, struct err *err);
void durable_drop_session(struct session *s);
int durable_put_process(struct process *p, struct err *err);
void durable_drop_process(struct process *p);
int durable_take_number(struct session *s, uint32_t *ret, struct err *err);
void durable_touch(struct session *s);
void durable_flush(struct manager *m);

/* reap.c */
void reap_start(struct manager *m); /* (re)arms the timer */
void reap_exited(struct manager *m);
void session_update_deadline(struct session *s);

/* lease.c */
void lease_adopted(struct session *s); /* its holder has so long to come back */

/* adopt.c */
void adopt_processes(struct session *s); /* from inside `created` */
void adopt_finished_one(struct manager *m);

/* process.c */
int process_launch(struct process *p, struct err *err); /* a STARTING one */

/* process_life.c */
extern const struct proc_events process_events;
struct process *process_new(struct session *s, struct process_spec *spec); /* takes spec */
/* In any state; what runs of it is killed. Whoever waits is told that it is gone. */
void process_free(struct process *p);
/* Frees one that never ran; whoever started it is told why. */
void process_cancel(struct process *p, const struct err *err);
void process_list_running(struct process *p); /* it has just been started */
void process_terminate(struct process *p);    /* begins to, if it runs */
void process_forget(struct process *p);       /* an exited one */
void process_record_exit(struct process *p);  /* what the store knows of an exited one */
/* Its output or its readers have changed: perhaps there is nothing left for them. */
void process_settle(struct process *p);
/* One that an earlier daemon started. Takes what the record owns. */
void process_adopt(struct session *s, struct process_record *record);
void processes_stop_all(struct session *s); /* begins to; see session_processes_gone() */
void processes_drop_all(struct session *s, bool backend_is_there);

/* process_output.c */
void process_watches_tell(struct process *p);
void process_watches_end(struct process *p);

/* notice.c */
struct notice *notice_new(struct process *p, void *arg);
void notice_tell(struct notice *n);                              /* from the loop */
void notices_fail_all(struct process *p, const struct err *err); /* whatever they wait for */
void notices_tell_all(struct process *p, const struct err *start_err);
void notice_free(struct notice *n);

/* attach.c */
void attachments_end(struct process *p);
void attachment_on_output(struct process *p);
void attachment_on_drained(struct process *p);

/* preview.c: the last code points of the bytes, as process_stderr_preview() promises them. */
#define PREVIEW_BYTES (PROCESS_STDERR_CHARS * 4U + 4U) /* all that can matter */
void preview_write(const char *data, size_t len, bool cut, struct buf *ret);
