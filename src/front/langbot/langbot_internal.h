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
struct langbot_call;
struct langbot_conn;
struct run;
struct run_result;
struct session;
struct spec;
struct usage;

#define LANGBOT_MESSAGE_MAX (16U << 20)
#define LANGBOT_CALLS_MAX 128   /* in flight on one connection */
#define LANGBOT_REQUEST_MAX 40U /* of the id of a connection's request; a call adds its number */

/* Those who are about other calls pass even when that many are in flight. */
#define LANGBOT_CANCEL_ACTION "__cancel_action"
#define LANGBOT_STREAM_ACK "__stream_ack"

/* message.c: the envelope, without I/O
 * ------------------------------------------------------
 */

struct langbot_message {
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
bool langbot_message_read(const char *text, size_t len, bool code_first,
                          struct langbot_message *ret);
/* What is wrong with the envelope goes to `problem`: -EINVAL. */
int langbot_message_check(struct langbot_message *m, struct buf *problem);
void langbot_message_drop(struct langbot_message *m); /* all but who asked and how to answer */
void langbot_message_done(struct langbot_message *m);

/* error.c: names of errors
 * -------------------------------------------------------------------
 *
 * A client finds out the class of an error by looking for "<name>:" anywhere in the message. So the
 * name is put in front here, and no other text can pass for one. */

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
const char *langbot_class_code(enum langbot_class class); /* stable, for programs */
enum langbot_class langbot_class_of(const struct err *err);
/* The class whose name and ": " the message begins with, and the rest of it; LANGBOT_ERROR: all of
 * it.
 */
enum langbot_class langbot_class_split(const char *message, const char **ret_rest);
/* "<name>: <text>", cut and defused. */
void langbot_error_text(enum langbot_class class, const char *text, struct buf *out);

/* The runtime -----------------------------------------------------------------------------------
 */

#define LANGBOT_LANES 1024

struct langbot {
    struct langbot_options o;
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
    /* All of them, oldest first; owned by themselves until langbot_free(). */
    struct langbot_call *calls, *calls_last;
    struct langbot_conn *conns;        /* owned by their transports */
    struct langbot_relay *relays;      /* owned by themselves */
    struct lane *lanes[LANGBOT_LANES]; /* owned; execs by session */
    size_t n_sweeps;
    struct loop_timer reaper;
};

/* A configuration that is not in force yet. */
struct langbot_setup {
    struct box_limits limits;
    struct box_paths paths; /* owned */
    bool make_workspace;    /* that of the paths has to be made first */
    char *base;             /* owned; the directory that LangBot runs in, NULL: not known */
    char *written;          /* owned; host_root as LangBot has it, where that is relative */
    struct err why;         /* it is not known */
    bool relative;          /* host_root was, and starts at `base` */
    bool from_peer;         /* the peer's own process was looked at */
};

void langbot_setup_done(struct langbot_setup *s);

bool langbot_is_below(const char *path, const char *dir); /* place.c; not the directory itself */
/* place.c: c->setup.base, or why there is none; then `then`. */
void langbot_find_base(struct langbot_call *c, void (*then)(struct langbot_call *c));
/* host_root, which is relative, as a place that may be mounted; `then` unless the call has failed.
 */
void langbot_open_place(struct langbot_call *c, void (*then)(struct langbot_call *c));

/* config.c */
/* What clients are told; NULL: the configuration selects one that we do not have. */
const char *langbot_backend_name(const struct langbot *r);
/* Of a struct langbot: the backend's name to report, NULL when none is selected. */
const char *langbot_selected(void *arg);
/* What box_init would say, before anybody can. */
int langbot_preset(struct langbot *r, const struct json *config, struct err *err);
int langbot_select_defaults(struct langbot *r,
                            struct err *err); /* before anybody has said anything */

/* Connections (conn.c): whatever carries messages
 * -------------------------------------------
 */

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
    struct langbot_conn *prev, *next;
    const struct langbot_transport *transport;
    void *arg;
    struct langbot_call *calls; /* in flight */
    size_t n_calls;
    struct langbot_file *files; /* owned; uploads */
    size_t n_files;
    int64_t file_max; /* bytes of one, as configured when the connection was opened */
    unsigned flags;   /* enum langbot_conn_flags */
    char request[LANGBOT_REQUEST_MAX]; /* id of the request that opened it, or one of our own */
    uint64_t n_requests;
    bool bound; /* mounts and jobs are only what the user `uid` could do itself */
    uid_t uid;
    enum langbot_family family; /* what its client has shown itself to be */
    bool local;                 /* whoever is at the other end started us */
    bool by_token;              /* what let it in may change */
    bool outdated;              /* and has: nothing new is begun on it */
};

/* Where the first release is served as well. */
enum langbot_conn_flags {
    LANGBOT_CONN_BARE = 1,    /* a peer that has said who it is to nobody: contexts mean nothing */
    LANGBOT_CONN_LENIENT = 2, /* requests may lack one */
};

struct langbot_conn *langbot_conn_new(struct langbot *r, const struct langbot_transport *transport,
                                      void *arg, unsigned flags);
void langbot_conn_message(struct langbot_conn *c, const char *text, size_t len);
void langbot_conn_idle(
    struct langbot_conn *c); /* nothing is in flight: one that is outdated ends */
void langbot_conn_free(struct langbot_conn *c); /* what is in flight is cancelled */

/* Calls (call.c)
 * ----------------------------------------------------------------------------
 */

enum langbot_action_flags {
    LANGBOT_TENANT = 1,      /* acts for a workspace */
    LANGBOT_SANDBOX = 2 | 1, /* and on its sandboxes: needs admission where that is enforced */
};

struct langbot_action {
    const char *name;
    unsigned flags;
    unsigned call; /* of enum langbot_kind; 0: one that every release knows */
    /* Owes one answer, now or later: langbot_reply_close(), langbot_ok() or one of langbot_fail*().
     */
    void (*run)(struct langbot_call *c);
};

const struct langbot_action *langbot_action_find(const char *name); /* actions.c; NULL: none */

/* How much a workspace keeps, as far as it is known. */
struct langbot_storage {
    char *dir;             /* owned; of the host; NULL: none */
    struct json *measured; /* owned; what lies there; NULL: nothing */
    bool failed;           /* that could not be found out */
    struct usage *usage;   /* owned */
};

/* The content-addressed mounts of a request. */
struct langbot_artifacts {
    struct mount_spec *list;       /* owned; taken out of the spec */
    size_t n, at;                  /* those before `at` are there */
    char *tree;                    /* owned; where, on the host; NULL: nowhere */
    struct artifacts_place *place; /* owned; of a session that is to be made; NULL: none */
    bool found;                    /* the session was there when we looked */
    void (*then)(struct langbot_call *c);
};

/* One request under way. What handlers keep between their steps is here, so that one function frees
 * it whatever happens. */
struct langbot_call {
    struct langbot *rpc;
    struct langbot_conn *conn;        /* NULL: nobody waits for the answer any more */
    struct langbot_call *prev, *next; /* of the runtime */
    struct langbot_call *conn_prev, *conn_next;
    const struct langbot_action *action;
    const struct langbot_release *rules; /* what the client's release expects, as far as known */
    struct langbot_message msg;
    struct log_scope request; /* its id, in every log record that it causes */
    uint64_t begun;
    bool answered;
    bool bound; /* as of its connection, which it may outlive */
    uid_t uid;
    char ns[NS_SIZE];                /* "" for a client of the first release */
    char prefix[TENANT_PREFIX_SIZE]; /* of its sessions; "" as well */
    struct admission_limits grant;   /* where admission is enforced */
    /* Asked to stop early; may end the call. NULL: it runs to its end unheard. */
    void (*cancel)(struct langbot_call *c);
    bool cancelled, woken;
    bool made; /* the session was not there before */

    struct sweep sweep;
    void (*then)(struct langbot_call *c); /* after the sweep, or after whoever we wait for */
    struct langbot_call *waits_for;       /* whose sweep ends what is in our way */
    struct loop_defer defer;
    struct spec *spec;       /* owned */
    struct session *session; /* held */
    struct run *run;         /* owned */
    char *id;                /* owned; name of the session as core knows it */
    char *process_id;        /* owned */
    char *cmd, *cwd;         /* owned; of an exec */
    char **env;              /* owned */
    int64_t timeout_sec;
    struct langbot_artifacts artifacts;
    size_t dirs_made;                /* of those that its mounts need; see session.c */
    const struct run_result *result; /* of run; told when the session has gone */
    struct lane *lane;
    struct langbot_call *lane_next;
    int fd; /* owned; an upload */
    struct langbot_setup setup;
    struct langbot_storage storage;
};

void langbot_call_start(struct langbot_conn *conn,
                        struct langbot_message *m); /* takes what is in m */
void langbot_call_cancel(struct langbot_call *c);   /* whoever asked has gone; may free it */
void langbot_call_free(struct langbot_call *c);     /* without a word */
/* Ends sessions; `c` goes on by `then` when they are gone. */
void langbot_call_sweep(struct langbot_call *c, const struct sweep_match *match,
                        void (*then)(struct langbot_call *c));
/* A newer generation has come: calls of older ones are answered and cancelled, relays closed. Their
 * sessions are still there. */
void langbot_shut_out(struct langbot *r, const char *ns, int64_t generation);
/* It has been answered, or never will be: for counters and the log. `result` lives for ever. */
void langbot_call_answered(struct langbot_call *c, const char *result);
void langbot_call_end(struct langbot_call *c); /* its answer has been given, or nobody wants it */

/* audit.c: ERR_LIMIT where nothing may happen that cannot be recorded. */
int langbot_audit_exec(const struct langbot_call *c, struct err *err);
void langbot_audit_exec_end(const struct langbot_call *c, const struct run_result *result);
int langbot_audit_process(const struct langbot_call *c, const struct process_spec *spec,
                          struct err *err);
void langbot_audit_session(const struct langbot_call *c, enum audit_event event);
void langbot_audit_failed(const struct langbot_call *c, enum audit_event event,
                          const struct err *err);

/* Answers (reply.c). All of them end the call. */
struct langbot_reply {
    struct buf out;
    struct jw w; /* inside of the object `data` */
};
void langbot_reply_open(struct langbot_call *c, struct langbot_reply *reply);
void langbot_reply_close(struct langbot_call *c, struct langbot_reply *reply);
void langbot_reply_json(struct langbot_call *c, const char *json, size_t len); /* data as text */
void langbot_ok(struct langbot_call *c);                                       /* data {} */
void langbot_fail(struct langbot_call *c, enum langbot_class class, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void langbot_fail_err(struct langbot_call *c, const struct err *err);
void langbot_fail_report(struct langbot_call *c, const struct report *report, const char *model);
/* With a message of core that begins with the name of its class. */
void langbot_fail_named(struct langbot_call *c, const char *message);

/* An error reply that leaves the call alive and its connection unaware of it. */
void langbot_say_error(struct langbot_call *c, enum langbot_class class, const char *text);

/* The text of a required member. NULL: the call has failed (KeyError). */
/* c->id from the member session_id; false: the call has failed. */
bool langbot_need_session_id(struct langbot_call *c);
/* What is done with it is done for whoever has called. */
struct jobs *langbot_skills(const struct langbot_call *c);
/* The session, ready for use. NULL: the call has failed. */
struct session *langbot_need_session(struct langbot_call *c);
/* Whether the caller may use it; false: the call has failed. */
bool langbot_may_use(struct langbot_call *c, const struct session *s);
const char *langbot_logical(const struct langbot_call *c, const char *physical);
void langbot_write_time(struct jw *w, const char *key, uint64_t real_ns);

/* Handlers --------------------------------------------------------------------------------------
 */

/* session.c */
/* The spec of the request, rewritten where admission is enforced; `then` has it in c->spec and its
 * name in c->id. */
void langbot_spec_begin(struct langbot_call *c, void (*then)(struct langbot_call *c));
/* c->session from c->spec, made if need be, then `then`. */
void langbot_acquire(struct langbot_call *c, void (*then)(struct langbot_call *c));
void langbot_create_session(struct langbot_call *c);
void langbot_get_session(struct langbot_call *c);
void langbot_get_sessions(struct langbot_call *c);
void langbot_delete_session(struct langbot_call *c);

/* artifact.c */
/* Takes the content-addressed mounts out of c->spec and puts what they name where the session will
 * find it; then `then`. */
void langbot_artifacts_prepare(struct langbot_call *c, void (*then)(struct langbot_call *c));
/* Once more, if the session that they were prepared for has gone. False: it is there, or was not.
 */
bool langbot_artifacts_again(struct langbot_call *c, void (*then)(struct langbot_call *c));
/* c->session is there: sees to it that it is the one they were prepared for; then c->then. */
void langbot_artifacts_ready(struct langbot_call *c);
void langbot_artifacts_free(struct langbot_call *c);

/* exec.c */
void langbot_exec(struct langbot_call *c);
void langbot_lane_leave(struct langbot_call *c); /* fine when it is in none */

/* file.c */
struct langbot_file;
void langbot_file_chunk(struct langbot_call *c);
int langbot_file_take(struct langbot_conn *conn, const char *key); /* descriptor, or -ENOENT */
void langbot_files_free(struct langbot_conn *conn);

/* admin.c */
void langbot_ping(struct langbot_call *c);
void langbot_cancel_action(struct langbot_call *c); /* call.c */
void langbot_stream_ack(struct langbot_call *c);
void langbot_init(struct langbot_call *c); /* config.c */
void langbot_health(struct langbot_call *c);
void langbot_backend_info(struct langbot_call *c);
void langbot_status(struct langbot_call *c);
void langbot_shutdown(struct langbot_call *c);
void langbot_verify_workspace(struct langbot_call *c);
void langbot_write_resources(struct langbot *r, struct jw *w);

/* grant.c */
void langbot_upsert_grant(struct langbot_call *c);
void langbot_revoke_grant(struct langbot_call *c);
void langbot_reap_grants(struct langbot *r);
int64_t langbot_now_us(const struct langbot *r);

/* process.c */
void langbot_start_process(struct langbot_call *c);
void langbot_get_process(struct langbot_call *c);
void langbot_stop_process(struct langbot_call *c);
void langbot_write_processes(struct langbot_call *c, struct jw *w, struct session *s);
size_t langbot_count_processes(struct langbot *r, const char *prefix);

/* storage.c */
void langbot_storage_analysis(struct langbot_call *c);
void langbot_storage_done(struct langbot_storage *s);

/* skill.c */
void langbot_skill(struct langbot_call *c); /* all of them */
/* The skill as a mount of c->spec, then `then`. */
void langbot_mount_skill(struct langbot_call *c, void (*then)(struct langbot_call *c));

/* auth.c: who is at the other end of an HTTP request
 * ----------------------------------------
 */

/* Who has come in, by a token or by being a user whom boxd serves without one. */
struct langbot_guest {
    char *instance; /* owned; NULL for a client of the first release, which has none */
    bool bound;     /* as of struct langbot_conn */
    uid_t uid;
};
/* Whether user or token, and instance, are right: 0, or the status to refuse with. Trusts nobody
 * yet when no instance is trusted; that is the caller's. */
unsigned langbot_auth(const struct langbot *r, const struct http_request *req,
                      struct langbot_guest *ret);
void langbot_refuse(struct http_request *req, unsigned status); /* 401 or 403 */
/* One header, trimmed and owned; NULL when it is absent or there are two. */
char *langbot_header(const struct http_request *req, const char *name);

/* framing.c: pieces of text, without I/O
 * -----------------------------------------------------
 */

/* The output of a process as messages: one for each line, without its end; what is not UTF-8
 * becomes U+FFFD. A line that is too long for a message is split. */
struct langbot_lines {
    struct buf part; /* of a line that came in pieces, as it will be sent */
};
/* `line`: the message ends a line (or is the rest before the end). False: no more for now. */
typedef bool langbot_line_fn(void *arg, const char *text, size_t len, bool line);

void langbot_lines_init(struct langbot_lines *l);
void langbot_lines_done(struct langbot_lines *l);
/* Returns how much of the data was used: all but a character that is cut off at its end, and what
 * follows the message at which `emit` wanted no more. `eof`: nothing follows. */
size_t langbot_lines_feed(struct langbot_lines *l, const char *data, size_t len, bool eof,
                          langbot_line_fn *emit, void *arg);

/* Messages over a pipe: a line each, and large ones in pieces. */
struct langbot_unpipe {
    struct buf line;    /* that is not complete yet */
    struct buf message; /* being put together */
    bool chunked;
    size_t total, lines;
};
void langbot_unpipe_init(struct langbot_unpipe *u);
void langbot_unpipe_done(struct langbot_unpipe *u);
/* 0, or -EPROTO: the peer does not keep to the protocol and has to go. */
int langbot_unpipe_feed(struct langbot_unpipe *u, const char *data, size_t len,
                        void (*message)(void *arg, const char *text, size_t len), void *arg);
int langbot_pipe_write(const char *text, size_t len, struct buf *out); /* 0 or -ENOBUFS */

/* ws.c, relay.c: routes */
void langbot_ws_open(struct http_request *req, void *arg);
void langbot_relay_open(struct http_request *req, void *arg);
void langbot_relays_outdated(struct langbot *r); /* ends those that a token has let in */
/* Ends relays of the workspace that are not of this generation. */
void langbot_relays_close(struct langbot *r, const char *ns, int64_t generation);
