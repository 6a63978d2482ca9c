/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "front/langbot/langbot.h"
#include "front/langbot/release.h"
#include "front/langbot/tenant/admission.h"
#include "front/langbot/tenant/boxconf.h"
#include "front/langbot/tenant/sweep.h"
#include "front/langbot/tenant/tenancy.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"

struct artifacts_place;
struct http_request;
struct mount_spec;
struct process_spec;
struct readiness;
struct report;
struct rpc_call;
struct rpc_conn;
struct run;
struct run_result;
struct session;
struct spec;
struct usage;

#define RPC_MESSAGE_MAX (16U << 20)
#define RPC_CALLS_MAX 128   /* in flight on one connection */
#define RPC_REQUEST_MAX 40U /* of the id of a connection's request; a call adds its number */

/* Those who are about other calls pass even when that many are in flight. */
#define RPC_CANCEL_ACTION "__cancel_action"
#define RPC_STREAM_ACK "__stream_ack"

/* rpc_message.c: the envelope, without I/O ------------------------------------------------------
 */

struct rpc_message {
    struct json *root;         /* owned */
    char *seq;                 /* owned; the same JSON value, as text */
    const char *action;        /* in root */
    const struct json *data;   /* in root; an object */
    bool scoped;               /* it has a context */
    bool no_memory;            /* it was not read for lack of it */
    struct tenant_context ctx; /* owned */
};

/* False: not a request at all, to be ignored. `code_first` is the order of checks of today's
 * protocol; the first release looked for an action only. */
bool rpc_message_read(const char *text, size_t len, bool code_first, struct rpc_message *ret);
/* What is wrong with the envelope goes to `problem`: -EINVAL. */
int rpc_message_check(struct rpc_message *m, struct buf *problem);
void rpc_message_drop(struct rpc_message *m); /* all but who asked and how to answer */
void rpc_message_done(struct rpc_message *m);

/* rpc_error.c: names of errors -------------------------------------------------------------------
 *
 * A client finds out the class of an error by looking for "<name>:" anywhere in the message. So the
 * name is put in front here, and no other text can pass for one. */

enum rpc_class {
    RPC_ERROR, /* BoxError */
    RPC_ADMISSION,
    RPC_READINESS,
    RPC_CAPACITY,
    RPC_VALIDATION,
    RPC_SESSION_NOT_FOUND,
    RPC_SESSION_CONFLICT,
    RPC_PROCESS_NOT_FOUND,
    RPC_PROCESS_CONFLICT,
    RPC_BACKEND_UNAVAILABLE,
    RPC_RUNTIME_UNAVAILABLE,
    RPC_VALUE_ERROR,
    RPC_KEY_ERROR,
    RPC_PERMISSION_ERROR,
    RPC_ENVELOPE_ERROR, /* ValidationError */
    RPC_BASE64_ERROR,   /* Error */
    RPC_NO_FILE_ERROR,  /* FileNotFoundError */
    RPC_OS_ERROR,
    RPC_BUSY, /* has no name in front */
    RPC_CLASS_MAX,
};

const char *rpc_class_name(enum rpc_class class); /* as on the wire, "" for RPC_BUSY */
const char *rpc_class_code(enum rpc_class class); /* stable, for programs */
enum rpc_class rpc_class_of(const struct err *err);
/* The class whose name and ": " the message begins with, and the rest of it; RPC_ERROR: all of it.
 */
enum rpc_class rpc_class_split(const char *message, const char **ret_rest);
/* "<name>: <text>", cut and defused. */
void rpc_error_text(enum rpc_class class, const char *text, struct buf *out);

/* The runtime -----------------------------------------------------------------------------------
 */

#define RPC_LANES 1024

struct rpc {
    struct rpc_options o;
    struct loop *loop;   /* borrowed */
    char *instance;      /* owned; NULL: nobody is trusted yet */
    bool selected;       /* else the configuration selects a backend that we do not have */
    char *wanted;        /* owned; what the configuration says about it, "" for nothing */
    size_t sessions_max; /* of the operator; a client cannot raise it */
    bool draining;       /* box_shutdown is at work */
    bool shut;           /* a token is needed, and there is none */
    struct box_limits limits;
    struct box_paths paths;
    struct fence *fence;
    struct admission *admission;
    struct readiness *readiness;
    /* All of them, oldest first; owned by themselves until rpc_free(). */
    struct rpc_call *calls, *calls_last;
    struct rpc_conn *conns;        /* owned by their transports */
    struct rpc_relay *relays;      /* owned by themselves */
    struct lane *lanes[RPC_LANES]; /* owned; execs by session */
    size_t n_sweeps;
    struct loop_timer reaper;
};

/* A configuration that is not in force yet. */
struct rpc_setup {
    struct box_limits limits;
    struct box_paths paths; /* owned */
    bool make_workspace;    /* that of the paths has to be made first */
    char *base;             /* owned; the directory that LangBot runs in, NULL: not known */
    char *written;          /* owned; host_root as LangBot has it, where that is relative */
    struct err why;         /* it is not known */
    bool relative;          /* host_root was, and starts at `base` */
    bool from_peer;         /* the peer's own process was looked at */
};

void rpc_setup_done(struct rpc_setup *s);

bool rpc_is_below(const char *path, const char *dir); /* rpc_place.c; not the directory itself */
/* rpc_place.c: c->setup.base, or why there is none; then `then`. */
void rpc_find_base(struct rpc_call *c, void (*then)(struct rpc_call *c));
/* host_root, which is relative, as a place that may be mounted; `then` unless the call has failed.
 */
void rpc_open_place(struct rpc_call *c, void (*then)(struct rpc_call *c));

/* rpc_config.c */
/* What clients are told; NULL: the configuration selects one that we do not have. */
const char *rpc_backend_name(const struct rpc *r);
/* Of a struct rpc: the backend's name to report, NULL when none is selected. */
const char *rpc_selected(void *arg);
/* What box_init would say, before anybody can. */
int rpc_preset(struct rpc *r, const struct json *config, struct err *err);
int rpc_select_defaults(struct rpc *r, struct err *err); /* before anybody has said anything */

/* Connections (rpc_conn.c): whatever carries messages -------------------------------------------
 */

struct rpc_transport {
    /* One message; it is copied or sent. */
    void (*send)(void *arg, const char *text, size_t len);
    /* Optional: the connection is of no use any more. It ends later. */
    void (*close)(void *arg, unsigned code, const char *reason);
    /* Optional: the socket, borrowed, to ask the kernel who is at its other end. */
    int (*socket)(void *arg);
};

struct rpc_conn {
    struct rpc *rpc;
    struct rpc_conn *prev, *next;
    const struct rpc_transport *transport;
    void *arg;
    struct rpc_call *calls; /* in flight */
    size_t n_calls;
    struct rpc_file *files; /* owned; uploads */
    size_t n_files;
    int64_t file_max;              /* bytes of one, as configured when the connection was opened */
    unsigned flags;                /* enum rpc_conn_flags */
    char request[RPC_REQUEST_MAX]; /* id of the request that opened it, or one of our own */
    uint64_t n_requests;
    bool bound; /* mounts and jobs are only what the user `uid` could do itself */
    uid_t uid;
    enum langbot_family family; /* what its client has shown itself to be */
    bool local;                 /* whoever is at the other end started us */
    bool by_token;              /* what let it in may change */
    bool outdated;              /* and has: nothing new is begun on it */
};

/* Where the first release is served as well. */
enum rpc_conn_flags {
    RPC_CONN_BARE = 1,    /* a peer that has said who it is to nobody: contexts mean nothing */
    RPC_CONN_LENIENT = 2, /* requests may lack one */
};

struct rpc_conn *rpc_conn_new(struct rpc *r, const struct rpc_transport *transport, void *arg,
                              unsigned flags);
void rpc_conn_message(struct rpc_conn *c, const char *text, size_t len);
void rpc_conn_idle(struct rpc_conn *c); /* nothing is in flight: one that is outdated ends */
void rpc_conn_free(struct rpc_conn *c); /* what is in flight is cancelled */

/* Calls (rpc_call.c) ----------------------------------------------------------------------------
 */

enum rpc_action_flags {
    RPC_TENANT = 1,      /* acts for a workspace */
    RPC_SANDBOX = 2 | 1, /* and on its sandboxes: needs admission where that is enforced */
};

struct rpc_action {
    const char *name;
    unsigned flags;
    unsigned call; /* of enum langbot_call; 0: one that every release knows */
    /* Owes one answer, now or later: rpc_reply_close(), rpc_ok() or one of rpc_fail*(). */
    void (*run)(struct rpc_call *c);
};

const struct rpc_action *rpc_action_find(const char *name); /* rpc_actions.c; NULL: none */

/* How much a workspace keeps, as far as it is known. */
struct rpc_storage {
    char *dir;             /* owned; of the host; NULL: none */
    struct json *measured; /* owned; what lies there; NULL: nothing */
    bool failed;           /* that could not be found out */
    struct usage *usage;   /* owned */
};

/* The content-addressed mounts of a request. */
struct rpc_artifacts {
    struct mount_spec *list;       /* owned; taken out of the spec */
    size_t n, at;                  /* those before `at` are there */
    char *tree;                    /* owned; where, on the host; NULL: nowhere */
    struct artifacts_place *place; /* owned; of a session that is to be made; NULL: none */
    bool found;                    /* the session was there when we looked */
    void (*then)(struct rpc_call *c);
};

/* One request under way. What handlers keep between their steps is here, so that one function frees
 * it whatever happens. */
struct rpc_call {
    struct rpc *rpc;
    struct rpc_conn *conn;        /* NULL: nobody waits for the answer any more */
    struct rpc_call *prev, *next; /* of the runtime */
    struct rpc_call *conn_prev, *conn_next;
    const struct rpc_action *action;
    const struct langbot_release *rules; /* what the client's release expects, as far as known */
    struct rpc_message msg;
    struct log_scope request; /* its id, in every log record that it causes */
    uint64_t begun;
    bool answered;
    bool bound; /* as of its connection, which it may outlive */
    uid_t uid;
    char ns[NS_SIZE];                /* "" for a client of the first release */
    char prefix[TENANT_PREFIX_SIZE]; /* of its sessions; "" as well */
    struct admission_limits grant;   /* where admission is enforced */
    /* Asked to stop early; may end the call. NULL: it runs to its end unheard. */
    void (*cancel)(struct rpc_call *c);
    bool cancelled, woken;
    bool made; /* the session was not there before */

    struct sweep sweep;
    void (*then)(struct rpc_call *c); /* after the sweep, or after whoever we wait for */
    struct rpc_call *waits_for;       /* whose sweep ends what is in our way */
    struct loop_defer defer;
    struct spec *spec;       /* owned */
    struct session *session; /* held */
    struct run *run;         /* owned */
    char *id;                /* owned; name of the session as core knows it */
    char *process_id;        /* owned */
    char *cmd, *cwd;         /* owned; of an exec */
    char **env;              /* owned */
    int64_t timeout_sec;
    struct rpc_artifacts artifacts;
    size_t dirs_made;                /* of those that its mounts need; see rpc_session.c */
    const struct run_result *result; /* of run; told when the session has gone */
    struct lane *lane;
    struct rpc_call *lane_next;
    int fd; /* owned; an upload */
    struct rpc_setup setup;
    struct rpc_storage storage;
};

void rpc_call_start(struct rpc_conn *conn, struct rpc_message *m); /* takes what is in m */
void rpc_call_cancel(struct rpc_call *c); /* whoever asked has gone; may free it */
void rpc_call_free(struct rpc_call *c);   /* without a word */
/* Ends sessions; `c` goes on by `then` when they are gone. */
void rpc_call_sweep(struct rpc_call *c, const struct sweep_match *match,
                    void (*then)(struct rpc_call *c));
/* A newer generation has come: calls of older ones are answered and cancelled, relays closed. Their
 * sessions are still there. */
void rpc_shut_out(struct rpc *r, const char *ns, int64_t generation);
/* It has been answered, or never will be: for counters and the log. `result` lives for ever. */
void rpc_call_answered(struct rpc_call *c, const char *result);
void rpc_call_end(struct rpc_call *c); /* its answer has been given, or nobody wants it */

/* rpc_audit.c: ERR_LIMIT where nothing may happen that cannot be recorded. */
int rpc_audit_exec(const struct rpc_call *c, struct err *err);
void rpc_audit_exec_end(const struct rpc_call *c, const struct run_result *result);
int rpc_audit_process(const struct rpc_call *c, const struct process_spec *spec, struct err *err);
void rpc_audit_session(const struct rpc_call *c, enum audit_event event);
void rpc_audit_failed(const struct rpc_call *c, enum audit_event event, const struct err *err);

/* Answers (rpc_reply.c). All of them end the call. */
struct rpc_reply {
    struct buf out;
    struct jw w; /* inside of the object `data` */
};
void rpc_reply_open(struct rpc_call *c, struct rpc_reply *reply);
void rpc_reply_close(struct rpc_call *c, struct rpc_reply *reply);
void rpc_reply_json(struct rpc_call *c, const char *json, size_t len); /* data as text */
void rpc_ok(struct rpc_call *c);                                       /* data {} */
void rpc_fail(struct rpc_call *c, enum rpc_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void rpc_fail_err(struct rpc_call *c, const struct err *err);
void rpc_fail_report(struct rpc_call *c, const struct report *report, const char *model);
/* With a message of core that begins with the name of its class. */
void rpc_fail_named(struct rpc_call *c, const char *message);

/* An error reply that leaves the call alive and its connection unaware of it. */
void rpc_say_error(struct rpc_call *c, enum rpc_class class, const char *text);

/* The text of a required member. NULL: the call has failed (KeyError). */
/* c->id from the member session_id; false: the call has failed. */
bool rpc_need_session_id(struct rpc_call *c);
/* What is done with it is done for whoever has called. */
struct skills *rpc_skills(const struct rpc_call *c);
/* The session, ready for use. NULL: the call has failed. */
struct session *rpc_need_session(struct rpc_call *c);
/* Whether the caller may use it; false: the call has failed. */
bool rpc_may_use(struct rpc_call *c, const struct session *s);
const char *rpc_logical(const struct rpc_call *c, const char *physical);
void rpc_write_time(struct jw *w, const char *key, uint64_t real_ns);

/* Handlers --------------------------------------------------------------------------------------
 */

/* rpc_session.c */
/* The spec of the request, rewritten where admission is enforced; `then` has it in c->spec and its
 * name in c->id. */
void rpc_spec_begin(struct rpc_call *c, void (*then)(struct rpc_call *c));
/* c->session from c->spec, made if need be, then `then`. */
void rpc_acquire(struct rpc_call *c, void (*then)(struct rpc_call *c));
void rpc_create_session(struct rpc_call *c);
void rpc_get_session(struct rpc_call *c);
void rpc_get_sessions(struct rpc_call *c);
void rpc_delete_session(struct rpc_call *c);

/* rpc_artifact.c */
/* Takes the content-addressed mounts out of c->spec and puts what they name where the session will
 * find it; then `then`. */
void rpc_artifacts_prepare(struct rpc_call *c, void (*then)(struct rpc_call *c));
/* Once more, if the session that they were prepared for has gone. False: it is there, or was not.
 */
bool rpc_artifacts_again(struct rpc_call *c, void (*then)(struct rpc_call *c));
/* c->session is there: sees to it that it is the one they were prepared for; then c->then. */
void rpc_artifacts_ready(struct rpc_call *c);
void rpc_artifacts_free(struct rpc_call *c);

/* rpc_exec.c */
void rpc_exec(struct rpc_call *c);
void rpc_lane_leave(struct rpc_call *c); /* fine when it is in none */

/* rpc_file.c */
struct rpc_file;
void rpc_file_chunk(struct rpc_call *c);
int rpc_file_take(struct rpc_conn *conn, const char *key); /* descriptor, or -ENOENT */
void rpc_files_free(struct rpc_conn *conn);

/* rpc_admin.c */
void rpc_ping(struct rpc_call *c);
void rpc_cancel_action(struct rpc_call *c); /* rpc_call.c */
void rpc_stream_ack(struct rpc_call *c);
void rpc_init(struct rpc_call *c); /* rpc_config.c */
void rpc_health(struct rpc_call *c);
void rpc_backend_info(struct rpc_call *c);
void rpc_status(struct rpc_call *c);
void rpc_shutdown(struct rpc_call *c);
void rpc_verify_workspace(struct rpc_call *c);
void rpc_write_resources(struct rpc *r, struct jw *w);

/* rpc_grant.c */
void rpc_upsert_grant(struct rpc_call *c);
void rpc_revoke_grant(struct rpc_call *c);
void rpc_reap_grants(struct rpc *r);
int64_t rpc_now_us(const struct rpc *r);

/* rpc_process.c */
void rpc_start_process(struct rpc_call *c);
void rpc_get_process(struct rpc_call *c);
void rpc_stop_process(struct rpc_call *c);
void rpc_write_processes(struct rpc_call *c, struct jw *w, struct session *s);
size_t rpc_count_processes(struct rpc *r, const char *prefix);

/* rpc_storage.c */
void rpc_storage_analysis(struct rpc_call *c);
void rpc_storage_done(struct rpc_storage *s);

/* rpc_skill.c */
void rpc_skill(struct rpc_call *c); /* all of them */
/* The skill as a mount of c->spec, then `then`. */
void rpc_mount_skill(struct rpc_call *c, void (*then)(struct rpc_call *c));

/* rpc_auth.c: who is at the other end of an HTTP request ----------------------------------------
 */

/* Who has come in, by a token or by being a user whom boxd serves without one. */
struct rpc_guest {
    char *instance; /* owned; NULL for a client of the first release, which has none */
    bool bound;     /* as of struct rpc_conn */
    uid_t uid;
};
/* Whether user or token, and instance, are right: 0, or the status to refuse with. Trusts nobody
 * yet when no instance is trusted; that is the caller's. */
unsigned rpc_auth(const struct rpc *r, const struct http_request *req, struct rpc_guest *ret);
void rpc_refuse(struct http_request *req, unsigned status); /* 401 or 403 */
/* One header, trimmed and owned; NULL when it is absent or there are two. */
char *rpc_header(const struct http_request *req, const char *name);

/* rpc_framing.c: pieces of text, without I/O -----------------------------------------------------
 */

/* The output of a process as messages: one for each line, without its end; what is not UTF-8
 * becomes U+FFFD. A line that is too long for a message is split. */
struct rpc_lines {
    struct buf part; /* of a line that came in pieces, as it will be sent */
};
/* `line`: the message ends a line (or is the rest before the end). False: no more for now. */
typedef bool rpc_line_fn(void *arg, const char *text, size_t len, bool line);

void rpc_lines_init(struct rpc_lines *l);
void rpc_lines_done(struct rpc_lines *l);
/* Returns how much of the data was used: all but a character that is cut off at its end, and what
 * follows the message at which `emit` wanted no more. `eof`: nothing follows. */
size_t rpc_lines_feed(struct rpc_lines *l, const char *data, size_t len, bool eof,
                      rpc_line_fn *emit, void *arg);

/* Messages over a pipe: a line each, and large ones in pieces. */
struct rpc_unpipe {
    struct buf line;    /* that is not complete yet */
    struct buf message; /* being put together */
    bool chunked;
    size_t total, lines;
};
void rpc_unpipe_init(struct rpc_unpipe *u);
void rpc_unpipe_done(struct rpc_unpipe *u);
/* 0, or -EPROTO: the peer does not keep to the protocol and has to go. */
int rpc_unpipe_feed(struct rpc_unpipe *u, const char *data, size_t len,
                    void (*message)(void *arg, const char *text, size_t len), void *arg);
int rpc_pipe_write(const char *text, size_t len, struct buf *out); /* 0 or -ENOBUFS */

/* rpc_ws.c, rpc_relay.c: routes */
void rpc_ws_open(struct http_request *req, void *arg);
void rpc_relay_open(struct http_request *req, void *arg);
void rpc_relays_outdated(struct rpc *r); /* ends those that a token has let in */
/* Ends relays of the workspace that are not of this generation. */
void rpc_relays_close(struct rpc *r, const char *ns, int64_t generation);
