/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sessions: named sandboxes that are made once, used often, and end by themselves. The loop is
 * their one owner: creating one session never delays another. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/list.h"

struct backend;
struct err;
struct events;
struct loop;
struct manager;
struct metrics;
struct process_spec;
struct sandbox;
struct session;
struct shares;
struct spec;
struct store;

/*   CREATING ──► READY ◄──► PAUSED ──► STOPPING ──► (gone)
 *     ▲   │        └────┬─────┘            ▲ │
 *     │   └──────┐      ▼                  │ │
 *     └─────── STOPPED ◄─── HALTING        │ │
 *                 └────────────────────────┘ │
 *                 ▲──────────────────────────┘  its files could not be removed
 * CREATING and READY may move to STOPPING, too. HALTING and STOPPED are for durable ones only. */
enum session_state {
    SESSION_CREATING, /* the backend is building the sandbox */
    SESSION_READY,    /* exec is possible */
    SESSION_STOPPING, /* destroy requested; the name is free again when it is done */
    SESSION_PAUSED,   /* every process of it is frozen */
    SESSION_HALTING,  /* its processes are ended, its files stay */
    SESSION_STOPPED,  /* only its files and its record are there */
    SESSION_STATE_MAX,
};

struct manager_options {
    size_t max_sessions;  /* alive, being made or being removed; stopped ones do not count */
    size_t max_kept;      /* durable ones, stopped or not; 0: no limit */
    uint64_t kept_bytes;  /* disk of all durable ones; 0: no limit */
    size_t max_processes; /* managed processes that run, over all sessions */
    size_t max_exited;    /* records of ended ones; the oldest goes first */
    uint64_t exited_ns;   /* and how long they are kept; 0: not at all */
    struct store *store;  /* borrowed; NULL: nothing is durable */
    uint64_t ttl_ns;    /* an idle session that is not persistent is removed after this, or stopped
                           where it is durable; 0: never */
    bool strict_images; /* refuse an image that is not there instead of running on `host` */
    struct events *events;          /* borrowed; NULL: none are emitted */
    struct shares *shares;          /* borrowed; what tokens have of it; NULL: not counted */
    char *const *publish_addresses; /* borrowed; beside loopback: see manager_may_publish() */
    char *const *allow_hosts;       /* borrowed; beside loopback: see manager_may_allow() */
    bool (*own_port)(void *arg, uint16_t port); /* whether boxd listens there; NULL: nowhere */
    void *own_port_arg;
};

int manager_new(struct loop *loop, struct backend *backend, const struct manager_options *options,
                struct manager **ret, struct err *err); /* backend borrowed */
/* Sessions must be gone or their sandboxes abandoned: the backend is not called any more, and the
 * store keeps its records of them. Callers that still wait get no answer. */
void manager_free(struct manager *m);
DEFINE_CLEANUP(manager)

typedef void session_ready_fn(void *arg, struct session *s,
                              const struct err *err);           /* s NULL: err says why */
typedef void session_gone_fn(void *arg, const struct err *err); /* err NULL: nothing is left */

/* Settings that may change while boxd runs: the caps, by box_init of the LangBot wire. */
void manager_set_caps(struct manager *m, size_t max_sessions, size_t max_processes,
                      size_t max_exited, uint64_t exited_ns);
const struct manager_options *manager_get_options(const struct manager *m);

/* Takes over the sessions that an earlier daemon left, by their records, ends sandboxes that have
 * no session, then calls back. To be called once, before the first manager_acquire(). */
int manager_adopt(struct manager *m, session_gone_fn *done, void *arg, struct err *err);

/* Does the timer's work: ends sessions that were idle for too long, forgets processes that ended
 * long ago. For tests, which move the clock. */
void manager_reap(struct manager *m);

enum acquire_flags {
    /* An existing session whose extra mounts differ is ended and made anew (LangBot), once the
     * callers that asked for it before have it and nothing is executed in it. Without it they are
     * not compared. */
    ACQUIRE_REMOUNT = 1U << 0,
    /* The session is kept, and a caller that wants other ordinary mounts gets ERR_CONFLICT: it has
     * to use another session. Artifacts that are added later do not count (session/artifacts.h). */
    ACQUIRE_KEEP_MOUNTS = 1U << 1,
};

/* The session of that name, made if need be. Takes *spec on success of the call (not of the
 * outcome). `given` is a set of FIELD_BIT(enum spec_field): only these are compared with an
 * existing session; a difference is ERR_CONFLICT, and so is a session that a user made, unless that
 * user asks (spec->own.bound), and one that no user made, when a user asks. The caller holds the
 * session from `ready` on and gives it back by session_release(). */
int manager_acquire(struct manager *m, struct spec **spec, uint64_t given, unsigned flags,
                    session_ready_fn *ready, void *arg, struct err *err);
/* Whether a ready session with these extra mounts exists: nothing would have to be made. */
bool manager_has(struct manager *m, const struct spec *spec);
struct session *manager_find(struct manager *m,
                             const char *id); /* NULL; stopping ones are not found */
/* Whether the user `uid` made the session of that name, also one that is on its way out; *ret_any:
 * whether there is one at all. */
bool manager_owned_by(struct manager *m, const char *id, uid_t uid, bool *ret_any);
bool manager_is_users(struct manager *m, const char *id); /* whether any user made it */
size_t manager_count(const struct manager *m);            /* stopped ones do not count */
struct session *manager_next(struct manager *m,
                             struct session *after); /* in order of creation; NULL starts */
struct backend *manager_backend(const struct manager *m);
struct loop *manager_loop(const struct manager *m);
struct metrics *manager_metrics(struct manager *m); /* what has happened so far */

/* Ends a session: every process, file and trace of it. ERR_NOT_FOUND when there is none. */
int manager_delete(struct manager *m, const char *id, session_gone_fn *gone, void *arg,
                   struct err *err);
/* The same for a session that the caller holds: this one only, not another that has its name by
 * now. */
int manager_delete_this(struct manager *m, struct session *s, session_gone_fn *gone, void *arg,
                        struct err *err);
/* Ends a session that the caller holds without losing files: stops a durable one, deletes any other
 * as manager_delete_this() does. */
int manager_expel(struct manager *m, struct session *s, session_gone_fn *gone, void *arg,
                  struct err *err);
/* Ends everything that runs in a durable session; its files and its record stay. Done when nothing
 * of it runs; one that is stopped already is done at once. */
int manager_stop(struct manager *m, const char *id, session_gone_fn *done, void *arg,
                 struct err *err);
/* Makes a stopped session run again, with its files as they were. As manager_acquire() for one that
 * is there already: the caller holds the session from `ready` on. */
int manager_start(struct manager *m, const char *id, session_ready_fn *ready, void *arg,
                  struct err *err);
/* The same, and its start command runs (again), if it has one that does not. */
int manager_run_start(struct manager *m, const char *id, session_ready_fn *ready, void *arg,
                      struct err *err);
/* Freezes every process of a session, or lets them go on. Nothing can be asked of a paused one but
 * its end. */
int manager_pause(struct manager *m, const char *id, bool paused, session_gone_fn *done, void *arg,
                  struct err *err);
/* Gives a session the limits of the spec `want`: cpus, memory_mb, pids_limit; of these the ones in
 * own.required must be enforced. One that runs has them at once, one that is stopped from
 * its next start on. All of them or none; the record has them when `done` hears of success. */
int manager_update(struct manager *m, const char *id, const struct spec *want,
                   session_gone_fn *done, void *arg, struct err *err);
/* Gives a session another name. Refused while commands, processes or clients know the old one. */
int manager_rename(struct manager *m, const char *id, const char *name, struct err *err);
/* Ends all sessions at the end of the daemon. `done` comes when the last is gone, after all other
 * callers have their answer; until then no session can be acquired. A ready session with an end of
 * its own (spec->own.expires_ns) stays, for the next daemon to adopt, or until it expires. Durable
 * ones are stopped. */
void manager_close(struct manager *m, session_gone_fn *gone, void *arg);

void session_hold(struct session *s);
void session_release(struct session *s); /* may free it */
const char *session_id(const struct session *s);
const struct spec *session_spec(const struct session *s);
enum session_state session_state(const struct session *s);
const char *session_state_name(enum session_state state);
struct sandbox *session_sandbox(const struct session *s); /* NULL unless READY */
bool session_durable(const struct session *s);            /* it stays until it is removed */
/* Nothing runs in it; manager_start() starts it, or waits until it has started. */
bool session_dormant(const struct session *s);
/* ERR_STATE: nothing can be done in it before it is unpaused. */
int session_refuse_paused(const struct session *s, struct err *err);
/* Bytes of the files of a durable session when it was last stopped. */
uint64_t session_disk(const struct session *s, bool *ret_known);
const char *session_backend_name(const struct session *s);
/* Nothing runs in it now; and whether that was said since it was used last. What runs in the
 * background after its command has ended is not quiet. */
void session_set_quiet(struct session *s);
bool session_quiet(const struct session *s);
/* `busy` is called whenever a command or a managed process begins to run in a session, from where
 * it is started. One observer; NULL: none. */
void manager_on_busy(struct manager *m, void (*busy)(void *arg), void *arg);
/* Everything that runs in it now is to be killed for that reason. Commands that began before and
 * end by a signal say so: run.h. */
void session_condemn(struct session *s, const struct err *why);
/* How often that was; *ret_why is the last reason. */
unsigned session_condemned(const struct session *s, const char **ret_why);
/* The sandbox's name for people in its backend, the same over restarts: a container's id, or its
 * name there; "" while it has none. */
const char *session_sandbox_id(const struct session *s);
struct manager *session_manager(const struct session *s);
uint64_t session_created(const struct session *s);   /* wall clock, for people */
uint64_t session_last_used(const struct session *s); /* wall clock, for people */
unsigned session_execs(const struct session *s);
/* Leases. A session with one belongs to its holders: it ends `grace_sec` after the last holder has
 * let go, which is how long a holder has to come back. The grace is part of its record, so that the
 * next daemon goes on waiting, from its own start. */
#define LEASE_SEC_MAX 86400
int session_lease_take(struct session *s, uint32_t grace_sec, struct err *err);
void session_lease_drop(struct session *s);
uint32_t session_lease_sec(const struct session *s); /* 0: it has none */
bool session_lease_held(const struct session *s);

/* A client that holds a session, or is about to, and what it says about itself. Lives inside its
 * owner; the members are the owner's to change. */
struct lease_holder {
    TAILQ_ENTRY(lease_holder) link; /* private */
    struct session *session;        /* NULL: none yet */
    const char *info;               /* a JSON object; NULL: it has said nothing */
    size_t info_len;
    uint64_t since; /* wall clock */
};
void manager_holder_add(struct manager *m, struct lease_holder *h);
void manager_holder_remove(struct manager *m, struct lease_holder *h);
struct lease_holder *manager_holder_next(struct manager *m, struct lease_holder *after);

/* Start commands. A session may be for one command, its process PROCESS_START_ID. When it ends it
 * runs again as the policy says, soon and then less often; also when the session was stopped with
 * the host or lost its sandbox. manager_stop() ends that wish, manager_run_start() begins it anew.
 */
enum start_policy { START_NO, START_ON_FAILURE, START_ALWAYS, START_POLICY_MAX };
extern const char *const start_policy_names[]; /* "no", "on-failure", "always", NULL */
struct session_start {
    struct process_spec *spec; /* owned; NULL: the session has none */
    enum start_policy policy;
    bool removes; /* the session goes when the command ends */
    bool wanted;  /* it runs, or is to run again */
};
/* Takes *spec of one that is about to run by process_start(), and writes it down. */
int session_set_start(struct session *s, struct session_start *start, struct err *err);
const struct session_start *session_get_start(const struct session *s);
/* `fn` is called whenever such a command has been started again, which no client has asked for. One
 * observer; NULL: none. */
void manager_on_rerun(struct manager *m, void (*fn)(void *arg, struct session *s), void *arg);

/* An exec begins or ends: a session with one running is never idle. */
void session_exec_begins(struct session *s);
void session_exec_ends(struct session *s);
/* A connected client will come back to it: until the client leaves it is never idle. The caller
 * holds the session meanwhile. */
void session_guest_comes(struct session *s);
void session_guest_leaves(struct session *s);
