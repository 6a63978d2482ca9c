/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of sessions share: sessions, the manager, processes, waiters, notices. */

#include <netinet/in.h>
#include <sys/socket.h>

#include "backend/backend.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "loop/relay.h"
#include "session/events.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "session/ports.h"
#include "session/process.h"
#include "session/process_reader.h"

struct process_record;
struct share;

/* A caller that waits for a session to be ready (spec set while it has to be made first), or to be
 * gone, or for all sessions to be gone (no session). */
struct waiter {
    STAILQ_ENTRY(waiter) link;   /* of the session, in order of arrival */
    LIST_ENTRY(waiter) all_link; /* of the manager */
    struct manager *m;
    struct session *session; /* held */
    struct spec *spec;       /* owned; set while another session has the name */
    uint64_t given;
    unsigned flags; /* enum acquire_flags */
    session_ready_fn *ready;
    session_gone_fn *gone;
    void *arg;
    struct err err;
    struct log_scope request; /* that asked, for the log */
    struct loop_defer defer;
};

STAILQ_HEAD(waiter_queue, waiter);

/* After which event the services of the host are to be reachable. */
enum hosts_after {
    HOSTS_CREATED, /* a session without them is removed again */
    HOSTS_STARTED,
    HOSTS_ADOPTED, /* adopt_finished_one() is due */
};

struct session {
    struct manager *m;
    LIST_ENTRY(session) bucket;
    TAILQ_ENTRY(session) link; /* in order of creation */
    enum session_state state;
    unsigned refs; /* the manager's own is one while it is listed */
    unsigned execs;
    unsigned claims;         /* acquires that wait for it */
    unsigned guests;         /* see session_guest_comes() */
    unsigned condemned;      /* how often session_condemn() was called */
    char *sentence;          /* owned; why, the last time */
    struct spec *spec;       /* owned */
    struct share *share;     /* held; that is charged for the session; NULL: none is */
    struct sandbox *sandbox; /* owned by the backend; set until it is destroyed */
    char *sandbox_id;        /* owned; its name for people, as the backend gave it; or NULL */
    char *kept_backend, *kept_name; /* owned; where the files of a durable session are; or NULL */
    uint64_t disk_bytes;            /* bytes of these files when it was last stopped */
    uint64_t created_real, used_real, used_boot;
    uint64_t quiet_boot;         /* when nothing ran in it; 0: never seen */
    uint64_t begun;              /* to be made; monotonic */
    enum metrics_end end;        /* why it goes, once it does */
    uint64_t deadline;           /* as sent to the backend last; 0: none */
    struct log_scope request;    /* of the request that made or ended it, for the log */
    struct waiter_queue waiters; /* called when READY, or gone; first come, first served */
    bool delete_asked;           /* while it was still being created */
    bool retiring;   /* a caller waits to make it anew, with other mounts, once it is idle */
    bool adopting;   /* CREATING, but an earlier boxd made it */
    bool restarting; /* CREATING, from what is kept on disk: it goes back to STOPPED on failure */
    bool discarding; /* STOPPING, from STOPPED: only files are left to remove */
    bool halt_asked; /* CREATING: it is to be stopped once it is ready */
    bool told;       /* the session was made; events and metrics have counted it */
    bool stored;     /* the store has a record of it */
    bool used_dirty;
    bool disk_failed; /* STOPPED: it could not be measured; the reaper tries again */
    bool disk_known;  /* STOPPED: disk_bytes is right, or cannot be had */
    bool left;        /* it outlives us: manager_close() does not wait for it */
    bool updating;    /* its limits are being changed */
    uint32_t next_number,
        numbers_end;                 /* of processes; what lies between is reserved in the store */
    TAILQ_HEAD(, process) processes; /* by start */
    size_t n_running;                /* of these */
    unsigned holders;                /* of its lease */
    uint32_t lease_sec; /* it ends so long after its last holder let go; 0: it has no lease */
    struct loop_timer lease_timer;
    unsigned retries; /* of a start that found what is kept still in use */
    struct loop_timer retry_timer;
    TAILQ_HEAD(, port_map) ports; /* owned; published, in that order */
    LIST_HEAD(, port_dial) dials; /* connections to its ports; their callers own them */
    unsigned n_ports, n_dials;
    unsigned n_asked;            /* of the dials: those that the backend has not answered */
    LIST_HEAD(, host_map) hosts; /* owned; services that it may reach, while it has a sandbox */
    unsigned n_links;            /* connections to these */
    unsigned hosts_asked;        /* of them: listeners that the backend has not made yet */
    enum hosts_after hosts_after;
    struct err hosts_err; /* the first that went wrong with them */
    uint64_t links_since; /* how many connections began in a short time */
    unsigned links_recent;
    struct session_start start;
    unsigned reruns; /* of the start command in a row, none of which lasted */
    struct loop_timer start_timer;
};

struct manager {
    struct loop *loop;
    struct backend *backend;
    struct manager_options options;
    TABLE(session, 4096) by_id;
    TAILQ_HEAD(, session) sessions;
    LIST_HEAD(, waiter) waiters; /* owned; all of them, also those whose answer is queued */
    size_t n_sessions, n_waiters;
    size_t n_left;                           /* of the sessions: those that stay when all end */
    size_t n_stopped;                        /* of the sessions: those in STOPPED */
    bool measuring;                          /* what one of them has on disk */
    struct waiter_queue all_gone;            /* called when the last session is gone */
    LIST_HEAD(, notice) notices;             /* owned; all of them */
    TAILQ_HEAD(, lease_holder) holders;      /* borrowed, in the order they came */
    TAILQ_HEAD(exited_list, process) exited; /* in the order they ended */
    size_t n_running, n_exited;              /* processes */
    struct reader_round *round;              /* of telling readers, while there is one */
    struct metrics metrics;
    struct loop_timer reaper, flusher;
    bool closing;
    unsigned n_dials;        /* of all sessions */
    unsigned n_links;        /* the same */
    void (*busy)(void *arg); /* manager_on_busy() */
    void *busy_arg;
    void (*rerun)(void *arg, struct session *s); /* manager_on_rerun() */
    void *rerun_arg;
    struct {
        session_gone_fn *done; /* NULL: no caller waits */
        void *arg;
        size_t pending; /* sessions on their way, and one while the store is read */
        struct err err;
        struct loop_defer defer;
    } adopt;
};

/* A caller that waits for a process to start or stop; called from the loop, exactly once. */
struct notice {
    struct manager *m;
    LIST_ENTRY(notice) all_link; /* of the manager */
    LIST_ENTRY(notice) link;     /* of the process */
    struct process *process;     /* borrowed; NULL once it is gone */
    process_started_fn *started;
    process_stopped_fn *stopped;
    void *arg;
    struct err err;
    struct log_scope request; /* that asked, for the log */
    struct loop_defer defer;
};

struct process {
    struct session *session;          /* borrowed: it goes before its session does */
    TAILQ_ENTRY(process) link;        /* of the session; not while it is STARTING */
    TAILQ_ENTRY(process) exited_link; /* of the manager; while it is EXITED */
    enum process_state state;
    struct process_spec *spec; /* owned */
    struct share *share;       /* held while it runs; that is charged for it; NULL: none is */
    uint32_t number;
    struct proc *proc;         /* owned; NULL before it is started and once its output is gone */
    struct process *successor; /* owned; STARTING, takes our place when we are gone */
    LIST_HEAD(, notice) notices;
    uint64_t started_real, exited_real, exited_boot;
    int exit_code;
    char *reason;       /* owned; why it was killed, or NULL */
    uint64_t counted;   /* bytes of output, in the metrics */
    struct buf preview; /* of stderr, once there is no proc, or where it says nothing */
    struct buf saved;   /* the end of its log, once there is no proc */
    uint64_t saved_begin;
    LIST_HEAD(, process_reader) readers; /* borrowed; the newest comes first */
    struct loop_timer timer; /* until it is killed, or its last words are written down */
    struct loop_timer limit; /* until its time is up; armed while it runs and has such a limit */
};

/* manager.c. Each kind of waiter hears the error that concerns it; NULL: things went well. */
void waiters_wake(struct session *s, const struct err *ready_err, const struct err *gone_err);
void waiters_wake_all_gone(struct manager *m);
void waiter_add_gone(struct session *s, session_gone_fn *gone, void *arg);
void waiter_add_ready(struct session *s, session_ready_fn *ready, void *arg);
int manager_check_capacity(const struct manager *m, struct err *err);
/* Refuses host paths that no session may mount, whatever the policy allows. */
int hostpath_check(const struct spec *spec, struct err *err);

/* kept.c */
void kept_know(struct session *s); /* a new one: under which name its files stay, if they do */
int session_start(struct session *s, struct err *err); /* of a STOPPED one */
void session_halt(struct session *s);                  /* of a durable one: ends what runs */
void kept_halt_now(struct session *s);                 /* HALTING: nothing is waited for any more */
void kept_back(struct session *s, const struct err *err); /* CREATING to STOPPED: it has failed */
void kept_discard_failed(struct session *s, const struct err *err); /* its files are there still */
void kept_pause_again(struct session *s);                           /* it was paused when we came */
/* A start has failed: true when it is tried again in a moment. */
bool kept_try_again(struct session *s, const struct err *err);
void kept_measure_again(struct manager *m);
/* Whether the user of the spec may have another session, and whether another may be kept. */
int kept_check_user(const struct manager *m, const struct spec *spec, struct err *err);
int kept_admit(const struct manager *m, const struct spec *spec, struct err *err);

/* session.c */
void session_move(struct session *s, enum session_state to);
void session_tell(const struct session *s, enum event_kind kind); /* the clients that watch */
int session_restart(struct session *s, struct backend *b, struct err *err);
struct session *session_new(struct manager *m, struct spec *spec); /* takes spec; lists it */
struct session *session_lookup(struct manager *m, const char *id); /* in any state */
void session_unlist(struct session *s);
void session_touch(struct session *s);
void session_busy(struct session *s); /* calls the observer of manager_on_busy() */
int session_create(struct session *s, struct err *err);
int session_adopt(struct session *s, struct backend *b, const char *sandbox, struct err *err);
void session_stop(struct session *s);
/* The last process of a session that is stopping has ended. */
void session_processes_gone(struct session *s);
/* The sandbox is gone or could not be made: forgets the session and answers its waiters. */
void session_fail(struct session *s, const struct err *err);
void reap_start(struct manager *m); /* (re)arms the timer */
void reap_exited(struct manager *m);

/* durable.c: the store, as sessions see it. Without one everything succeeds. */
int durable_put_session(struct session *s, struct err *err);
void durable_drop_session(struct session *s);
int durable_put_process(struct process *p, struct err *err);
void durable_drop_process(struct process *p);
int durable_take_number(struct session *s, uint32_t *ret, struct err *err);
void durable_touch(struct session *s);
void durable_flush(struct manager *m);
void adopt_processes(struct session *s); /* from inside `created` */
void adopt_finished_one(struct manager *m);

/* process.c */
void process_forget(struct process *p);      /* an exited one */
void process_record_exit(struct process *p); /* what the store knows of an exited one */
/* Its output or its readers have changed: perhaps there is nothing left for them. */
void process_settle(struct process *p);
/* One that an earlier daemon started. Takes what the record owns. */
void process_adopt(struct session *s, struct process_record *record);
void processes_stop_all(struct session *s); /* begins to; see session_processes_gone() */
void processes_drop_all(struct session *s, bool backend_is_there);
void processes_halted(struct session *s); /* the sandbox goes, the session stays */
void notice_free(struct notice *n);
#define PREVIEW_BYTES (PROCESS_STDERR_CHARS * 4U + 4U) /* of stderr; all that can matter */

/* ports.c */
void ports_cut(struct session *s);           /* ends the connections to its ports */
void ports_drop(struct session *s);          /* and what is published */
char **ports_write(const struct session *s); /* for its record; owned */
void ports_restore(struct session *s, char *const *list);
union port_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};
/* False: `text` is no numeric address. */
bool port_address_read(const char *text, uint16_t port, union port_address *ret, socklen_t *len);

/* hosts.c */
/* Of a session that is READY: true when its callers have to wait, and are woken when that is done.
 */
bool hosts_open(struct session *s, enum hosts_after after);
void hosts_close(struct session *s); /* before its sandbox ends */

/* start.c */
bool start_is(const struct process *p);      /* the command that its session is for */
void start_process_ended(struct process *p); /* perhaps the start command has, by itself */
void start_session_ready(struct session *s); /* one that was made before */
/* It was stopped, but not because a client asked for it: perhaps it is to run again. */
void start_session_stopped(struct session *s);
void start_unwanted(struct session *s); /* a client has stopped the session, or the command */
void start_done(struct session *s);

/* process_reader.c */
void process_save_log(struct process *p); /* while its proc is there */
void readers_tell_output(struct process *p);
void readers_tell_drained(struct process *p);
void readers_end_turns(struct process *p);
void readers_end(struct process *p); /* it is being forgotten */
