/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the LangBot front share: messages, calls, connections, errors,
 * actions. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "front/langbot/langbot.h"
#include "front/langbot/release.h"
#include "front/langbot/tenant/admission.h"
#include "front/langbot/tenant/boxconf.h"
#include "front/langbot/tenant/tenancy.h"
#include "jobs/jobs.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"

struct artifacts_place;
struct http_request;
struct mount_spec;
struct readiness;
struct readiness_report;
struct report;
struct langbot_call;
struct langbot_conn;
struct session;
struct spec;

#define LANGBOT_MESSAGE_MAX (16U << 20)
#define LANGBOT_CALLS_MAX 128   /* in flight on one connection */
#define LANGBOT_REQUEST_MAX 40U /* of the id of a connection's request; a call adds its number */

/* Messages about other calls: they pass even when that many are in flight. */
#define LANGBOT_CANCEL_ACTION "__cancel_action"
#define LANGBOT_STREAM_ACK "__stream_ack"

/* The envelope of a request (call.c). */

struct langbot_message {
    struct json *root;         /* owned */
    char *seq;                 /* owned; the same JSON value, as text */
    const char *action;        /* in root */
    const struct json *data;   /* in root; an object */
    bool scoped;               /* it has a context */
    bool no_memory;            /* it was not read for lack of it */
    struct tenant_context ctx; /* owned */
};

void langbot_message_drop(struct langbot_message *m); /* all but the caller and how to answer */

/* reply.c: names of errors. A client finds out the class of an error by looking for "<name>:"
 * anywhere in the message. So the name is put in front here, and no other text can pass for one. */

enum langbot_class {
    LANGBOT_ERROR, /* BoxError */
    LANGBOT_ADMISSION,
    LANGBOT_READINESS,
    LANGBOT_CAPACITY,
    LANGBOT_VALIDATION,
    LANGBOT_SESSION_NOT_FOUND,
    LANGBOT_SESSION_CONFLICT,
    LANGBOT_PROCESS_NOT_FOUND,
    LANGBOT_PROCESS_CONFLICT,
    LANGBOT_BACKEND_UNAVAILABLE,
    LANGBOT_RUNTIME_UNAVAILABLE,
    LANGBOT_VALUE_ERROR,
    LANGBOT_KEY_ERROR,
    LANGBOT_PERMISSION_ERROR,
    LANGBOT_ENVELOPE_ERROR, /* ValidationError */
    LANGBOT_BASE64_ERROR,   /* Error */
    LANGBOT_NO_FILE_ERROR,  /* FileNotFoundError */
    LANGBOT_OS_ERROR,
    LANGBOT_BUSY, /* has no name in front */
    LANGBOT_CLASS_MAX,
};

const char *langbot_class_name(enum langbot_class class); /* as on the wire, "" for LANGBOT_BUSY */

/* The runtime */

#define LANGBOT_LANES 1024

struct langbot {
    struct langbot_options o;
    struct loop *loop;                 /* borrowed */
    char *instance;                    /* owned; the trusted one; NULL: the first that connects */
    bool configured;                   /* the operator chose it, for all users */
    LIST_HEAD(, langbot_trust) trusts; /* owned; otherwise each bound user has one of its own */
    bool selected;       /* false: the configuration selects a backend that boxd does not have */
    char *wanted;        /* owned; what the configuration says about it, "" for nothing */
    size_t sessions_max; /* of the operator; a client cannot raise it */
    bool draining;       /* box_shutdown is at work */
    bool shut;           /* a token is needed, and there is none */
    struct box_limits limits;
    struct box_paths paths;
    struct fence *fence;
    struct admission *admission;
    struct readiness *readiness;
    TAILQ_HEAD(, langbot_call) calls;  /* oldest first; owned by themselves until langbot_free() */
    LIST_HEAD(, langbot_conn) conns;   /* owned by their transports */
    LIST_HEAD(, langbot_relay) relays; /* owned by themselves */
    LIST_HEAD(, langbot_lane) lanes[LANGBOT_LANES]; /* owned; execs by session */
    size_t n_sweeps;
    struct loop_timer reaper;
};

/* Connections (call.c): what carries messages. */

struct langbot_transport {
    /* One message; it is copied or sent. */
    void (*send)(void *arg, const char *text, size_t len);
    /* Optional: the connection is of no use any more. It ends later. */
    void (*close)(void *arg, unsigned code, const char *reason);
    /* Optional: the socket, borrowed, to ask the kernel who is at its other end. */
    int (*socket)(void *arg);
};

struct langbot_conn {
    struct langbot *rpc;
    LIST_ENTRY(langbot_conn) entry;
    const struct langbot_transport *transport;
    void *arg;
    LIST_HEAD(, langbot_call) calls; /* in flight, newest first */
    size_t n_calls;
    LIST_HEAD(, langbot_file) files; /* owned; uploads */
    size_t n_files;
    int64_t file_max; /* bytes of one, as configured when the connection was opened */
    unsigned flags;   /* enum langbot_conn_flags */
    char request[LANGBOT_REQUEST_MAX]; /* id of the request that opened it, or one of our own */
    uint64_t n_requests;
    bool bound; /* mounts and jobs have only the rights of the user `uid` */
    uid_t uid;
    enum langbot_family family; /* what its client has shown itself to be */
    bool local;                 /* its client has started boxd */
    bool by_token;              /* a token let it in, which may change */
    bool outdated;              /* the token has changed: nothing new is begun on it */
};

/* Where the first release is served as well. */
enum langbot_conn_flags {
    LANGBOT_CONN_BARE = 1,    /* the client named no instance: contexts mean nothing */
    LANGBOT_CONN_LENIENT = 2, /* requests may lack one */
};

struct langbot_conn *langbot_conn_new(struct langbot *r, const struct langbot_transport *transport,
                                      void *arg, unsigned flags);
void langbot_conn_message(struct langbot_conn *c, const char *text, size_t len);
void langbot_conn_free(struct langbot_conn *c); /* what is in flight is cancelled */

/* Calls (call.c). */

/* How far a call is with what all calls have in common. The table of moves is in call.c. */
enum langbot_stage {
    STAGE_CHECK, /* looks at the envelope, the action and the context */
    STAGE_PROBE, /* waits for the answer whether this runtime is ready */
    STAGE_WAIT,  /* waits for the sweep of another call of its workspace */
    STAGE_WOKEN, /* that sweep has ended; the handler is next */
    STAGE_CLEAR, /* ends the sessions of older generations before its handler runs */
    STAGE_RUN,   /* its handler is at work; see the steps of its type */
    STAGE_SWEEP, /* ends sessions because its handler wants that */
    STAGE_END,   /* answered or given up; may have to end a session that it made too late */
    STAGE_MAX,
};

/* One kind of call. All members but the size are optional. */
struct langbot_call_type {
    size_t size;           /* of its struct, which begins with struct langbot_call */
    const unsigned *moves; /* for each of its steps, the set of steps that may follow */
    void (*cancel)(struct langbot_call *c); /* the client has given up; may end the call */
    void (*swept)(struct langbot_call *c);  /* after langbot_call_sweep() */
    void (*ended)(struct langbot_call *c);  /* answered or given up; it may be freed later */
    void (*done)(struct langbot_call *c);   /* frees what the kind keeps, but not the call */
};

enum langbot_action_flags {
    LANGBOT_TENANT = 1,      /* acts for a workspace */
    LANGBOT_SANDBOX = 2 | 1, /* and on its sandboxes: needs admission where that is enforced */
};

/* An action that clients can call. Each file of handlers has a table of its actions, which ends
 * with an empty row. */
struct langbot_action {
    const char *name;
    unsigned flags;
    unsigned call; /* of enum langbot_kind; 0: every release knows it */
    /* Owes one answer, now or later: langbot_reply_close(), langbot_ok() or one of langbot_fail*().
     */
    void (*run)(struct langbot_call *c);
    const struct langbot_call_type *type; /* NULL: a plain struct langbot_call will do */
    enum skills_op skill;                 /* of the actions of skill.c */
    /* Of the actions of admin.c that tell of the backend. */
    void (*answer)(struct langbot_call *c, const struct readiness_report *report);
};

extern const struct langbot_action langbot_init_actions[], langbot_runtime_actions[],
    langbot_session_actions[], langbot_exec_actions[], langbot_skill_actions[],
    langbot_storage_actions[];

/* Which sessions a sweep ends, by name. Those of chats (spec->own) are never among them. */
struct langbot_sweep_match {
    const char *prefix; /* names that begin so; NULL: all */
    const char *except; /* but not those that begin so; NULL: no exception */
    bool physical;      /* only names that were made for a workspace (tenant/tenancy.h) */
    bool keep_persistent;
};

/* Members of every request under way. A kind of call that keeps more between its steps has a struct
 * of its own, which begins with this one. */
struct langbot_call {
    struct langbot *rpc;
    struct langbot_conn *conn;       /* NULL: the client does not wait for the answer any more */
    TAILQ_ENTRY(langbot_call) entry; /* of the runtime */
    LIST_ENTRY(langbot_call) conn_entry; /* of the connection */
    const struct langbot_call_type *type;
    const struct langbot_action *action; /* NULL: not found, or its envelope is wrong */
    const struct langbot_release *rules; /* what the client's release expects, as far as known */
    struct langbot_message msg;
    struct log_scope request; /* its id, in every log record that it causes */
    uint64_t begun;
    enum langbot_stage stage; /* langbot_call_*() of call.c alone change it */
    unsigned step;            /* of its type, while its handler is at work */
    bool answered;
    bool cancelled; /* its handler ends it at the next opportunity: langbot_call_dropped() */
    bool bound;     /* as of its connection, which it may outlive */
    uid_t uid;
    char ns[NS_SIZE];                /* "" for a client of the first release */
    char prefix[TENANT_PREFIX_SIZE]; /* of its sessions; "" as well */
    struct admission_limits grant;   /* where admission is enforced */
    char *id;                        /* owned; the session's name in core; NULL: not about one */
    /* It ends sessions. It may only be freed when that is over, or with the manager. */
    bool sweeping;
    size_t sweep_pending; /* sessions that are on their way out */
    struct loop_defer sweep_defer;
    struct langbot_call *waits_for; /* in STAGE_WAIT: the call whose sweep it waits for */
    struct buf out;                 /* an answer that is being written */
    struct jw w;                    /* inside of its object `data` */
};

/* The step must be one that its type allows. */
void langbot_call_step(struct langbot_call *c, unsigned step);
/* Ends a call that was cancelled. False: it was not, and goes on. */
bool langbot_call_dropped(struct langbot_call *c);
void langbot_call_free(struct langbot_call *c); /* without an answer */
/* Ends sessions, then goes on with type->swept(). */
void langbot_call_sweep(struct langbot_call *c, const struct langbot_sweep_match *match);
/* A newer generation has come: calls of older ones are answered and cancelled, relays closed. Their
 * sessions are still there. */
void langbot_shut_out(struct langbot *r, const char *ns, int64_t generation);
/* For counters and the log, once. `result` is a literal. */
void langbot_call_answered(struct langbot_call *c, const char *result);
void langbot_call_end(struct langbot_call *c); /* it was answered, or the client has given up */

/* The audit log (reply.c), as for every other front; command/command.c records commands. */
const char *langbot_who(const struct langbot_call *c); /* for records: its workspace */
void langbot_audit_session(const struct langbot_call *c, enum audit_event event);
void langbot_audit_failed(const struct langbot_call *c, enum audit_event event,
                          const struct err *err);

/* Answers (reply.c). All of them end the call. */
struct jw *langbot_reply_open(struct langbot_call *c); /* for the members of `data` */
void langbot_reply_close(struct langbot_call *c);
/* What a job has found is the answer to the call `arg`. */
jobs_done_fn langbot_on_job;
void langbot_ok(struct langbot_call *c); /* data {} */
void langbot_fail(struct langbot_call *c, enum langbot_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void langbot_fail_err(struct langbot_call *c, const struct err *err);
void langbot_fail_report(struct langbot_call *c, const struct report *report, const char *model);

/* An error reply that leaves the call alive and its connection unaware of it. */
void langbot_say_error(struct langbot_call *c, enum langbot_class class, const char *text);

/* c->id from the member session_id; false: the call has failed. */
bool langbot_need_session_id(struct langbot_call *c);
/* The next job is done for the client of this call. */
struct jobs *langbot_skills(const struct langbot_call *c);
/* The session, ready for use. NULL: the call has failed. */
struct session *langbot_need_session(struct langbot_call *c);
/* Whether it is the caller's: a user without a token has its own sessions only. */
bool langbot_owns(const struct langbot_call *c, const struct session *s);
/* Whether the caller may use it; false: the call has failed. */
bool langbot_may_use(struct langbot_call *c, const struct session *s);
/* A time in UTC as Python writes it, its microseconds only where they are not zero. */
void langbot_write_time(struct jw *w, const char *key, uint64_t real_ns, const char *zone);

/* exec.c: what box_create_session and box_exec have in common */
struct langbot_acquire {
    struct langbot_call call;
    void (*then)(struct langbot_call *c); /* of langbot_spec_begin(), then of langbot_acquire() */
    struct spec *spec;                    /* owned */
    struct session *session;              /* held */
    bool made;                            /* the session was not there before */
    bool found;                           /* it was when its artifacts were prepared */
    size_t dirs_made;                     /* of those that its mounts need */
    struct mount_spec *artifacts;  /* owned; content-addressed mounts, taken out of the spec */
    size_t n_artifacts, at;        /* those before `at` are in the tree */
    char *tree;                    /* owned; directory of the host for them; NULL: none */
    struct artifacts_place *place; /* owned; of a session that is to be made; NULL: none */
};
/* DIRS, RECOPY and ADD are left out where there is nothing to do. The table of moves is in
 * exec.c. */
enum langbot_acquire_step {
    ACQUIRE_SPEC,    /* reads the spec, has the workspace's directory made, looks up the skill */
    ACQUIRE_QUEUED,  /* the spec is complete; an exec waits for earlier ones of its session */
    ACQUIRE_COPY,    /* copies artifacts for the session that is there, or for one to be made */
    ACQUIRE_DIRS,    /* makes directories that mounts need */
    ACQUIRE_RECOPY,  /* the session has gone meanwhile: copies artifacts for a new one */
    ACQUIRE_SESSION, /* the manager finds or makes the session */
    ACQUIRE_ADD,     /* copies artifacts again: the session is not the one they were copied for */
    ACQUIRE_READY,   /* the session is there; `then` is called */
    ACQUIRE_STEP_MAX,
};
extern const unsigned langbot_acquire_moves[ACQUIRE_STEP_MAX];
/* The spec of the request, rewritten where admission is enforced; `then` has it in a->spec and the
 * session's name in c->id. */
void langbot_spec_begin(struct langbot_call *c, void (*then)(struct langbot_call *c));
/* a->session from a->spec, made if need be, then `then`. */
void langbot_acquire(struct langbot_call *c, void (*then)(struct langbot_call *c));
void langbot_acquire_done(struct langbot_call *c);

/* Other handlers. */
void langbot_files_free(struct langbot_conn *conn); /* uploads that no action has used */
void langbot_reap_grants(struct langbot *r);
int64_t langbot_now_us(const struct langbot *r);
size_t langbot_count_processes(struct langbot *r, const char *prefix);

/* ws.c: the client at the other end of an HTTP request. */

/* A client that was let in, by a token or as a user whom boxd serves without one. */
struct langbot_guest {
    char *instance; /* owned; NULL for a client of the first release, which has none */
    bool bound;     /* as of struct langbot_conn */
    uid_t uid;
};
/* Whether user or token, and instance, are right: 0, or the status to refuse with. Where no
 * instance is trusted yet, any is right; the caller decides whether to trust it. A bound user is
 * held to the first instance that it came with itself, and cannot choose that of others. */
unsigned langbot_auth(const struct langbot *r, const struct http_request *req,
                      struct langbot_guest *ret);
/* The trusted instance of the user `bound_uid`; NULL: that of root and of callers with the token.
 * NULL if there is none yet. */
const char *langbot_instance(const struct langbot *r, const uid_t *bound_uid);
bool langbot_trusts(const struct langbot *r, const uid_t *bound_uid, const char *instance);
void langbot_trusts_free(struct langbot *r);
void langbot_refuse(struct http_request *req, unsigned status); /* 401 or 403 */
/* One header, trimmed and owned; NULL when it is absent or there are two. */
char *langbot_header(const struct http_request *req, const char *name);

/* ws.c, relay.c: routes */
void langbot_ws_open(struct http_request *req, void *arg);
void langbot_relay_open(struct http_request *req, void *arg);
void langbot_relays_outdated(struct langbot *r); /* ends those that a token has let in */
/* Ends relays of the workspace that are not of this generation. */
void langbot_relays_close(struct langbot *r, const char *ns, int64_t generation);
