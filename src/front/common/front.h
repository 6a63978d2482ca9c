/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Code that all fronts share: the caller and its rights, sessions and processes as requests
 * describe them, and answers. */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "session/manager.h"
#include "session/process.h"

struct audit_record;
struct authz_scope;
struct chat;
struct http_request;
struct model;
struct policy_service;
struct spec;
struct ws_conn;

struct front {
    struct manager *manager;              /* borrowed */
    const struct policy_service *service; /* borrowed; policy, errors, audit log, outputs */
    struct chat *chat;                    /* borrowed; NULL without chat_routes() */
};

/* The client that asks; borrowed. */
struct front_asker {
    const struct authz_scope *scope; /* or NULL */
    const char *who;                 /* its name in the records */
    const char *via;                 /* the front, for the records; static; NULL: "http" */
    const char *tool;                /* that its scope must name; NULL: "session" */
};

static inline const char *front_via(const struct front_asker *asker)
{
    return asker->via != NULL ? asker->via : "http";
}

/* A session as a request describes it. */
struct front_want {
    const struct json *object;
    bool id_required;
    bool exact;  /* limits that it asks for must be enforced, unless it says best_effort */
    bool starts; /* its members start, restart, remove and ports are for the caller to read */
};

/* The session that a request describes, made if need be, under the policy: profile, locks,
 * defaults, mounts, scope; and on record. `ready` as that of manager_acquire(). */
int front_session_get(const struct front *f, const struct front_asker *asker,
                      const struct front_want *want, session_ready_fn *ready, void *arg,
                      struct err *err);

/* The session of that name, borrowed; ready, or stopped (session_dormant()), which manager_start()
 * is for. One that is outside of the client's scope is
 * recorded as refused, and answered like one that does not exist: ERR_NOT_FOUND; so is one that its
 * scope does not cover in every respect, with ERR_DENIED: policy_check_use(). `id` may be NULL. */
int front_session_find(const struct front *f, const struct front_asker *asker, const char *id,
                       struct session **ret, struct err *err);
/* Deletes a session that the client may delete: puts that on record and forgets its outputs. `gone`
 * as that of manager_delete(). */
int front_session_delete(const struct front *f, const struct front_asker *asker, const char *id,
                         session_gone_fn *gone, void *arg, struct err *err);
/* Removes a session that the caller holds and that no client asks about any more. Never another
 * session that has its name by now. A failure is logged. */
void front_session_discard(const struct front *f, struct session *s);

/* The limits of a session that its backend does not enforce, as the member unenforced. */
void front_write_unenforced(struct jw *w, const struct session *s);

/* The settings of a session, under the names that both fronts use. */
void front_write_settings(struct jw *w, const struct spec *spec);

/* A process as a request describes it. */
struct front_process {
    struct session *session;
    const struct json *object;
    bool is_start; /* it is the command that its session is for: PROCESS_START_ID, with a log */
};

/* Starts a managed process, under the policy and on record; then its
 * session's quota is guarded. A failure is on record, too. `started` as that of process_start(). */
int front_process_start(const struct front *f, const struct front_asker *asker,
                        const struct front_process *want, process_started_fn *started, void *arg,
                        struct err *err);
/* Members of a process in every front: session_id, process_id, status, command, args. */
void front_write_process(struct jw *w, const struct process *p, const char *session_id);
/* The member processes: all of a session, each by `write`, which writes its members. */
void front_write_processes(struct jw *w, struct session *s,
                           void (*write)(struct jw *w, struct process *p));
/* What runs in a session, with what started it: the members processes and truncated. `left`: only
 * what belongs to no command or managed process that runs. */
struct front_top {
    struct session *session;
    const struct backend_process *rows;
    size_t n;
    bool more, left;
};
void front_write_top(struct jw *w, const struct front_top *top);
/* Asks the session's supervisor; ERR_STATE for one that does not run. */
int front_ask_top(struct session *s, backend_top_fn *done, void *arg, struct err *err);
/* Ends what an exec of that id has left; ERR_NOT_FOUND, here or through `done`. */
int front_end_left(struct session *s, const char *exec_id, backend_done_fn *done, void *arg,
                   struct err *err);
/* started_at and the like, in UTC. */
void front_write_time(struct jw *w, const char *key, uint64_t real_ns);
/* The last that a process wrote to stderr, as the member stderr_preview. */
void front_write_stderr(struct jw *w, struct process *p);

/* One JSON object for a client. front_begin() opens it; the caller writes its members; one of the
 * others closes and sends it. */
struct front_answer {
    struct buf out;
    struct jw w;
};
struct jw *front_begin(struct front_answer *a, size_t max); /* borrowed; at most `max` bytes */
void front_answer_done(struct front_answer *a);
DEFINE_CLEANUP_DONE(front_answer)
int front_end(struct front_answer *a); /* closes only; 0, or negative when it is too large */
void front_reply(struct front_answer *a, struct http_request *req, unsigned status);
/* As a text message. It is lost when ws is NULL, or when the object is too large. */
void front_send(struct front_answer *a, struct ws_conn *ws);
/* Members that describe an error: code, detail, remediation. */
void front_write_problem(struct jw *w, const struct err *err);

/* Problem details for an error of ours. */
void front_fail(struct http_request *req, const struct err *err);
void front_failf(struct http_request *req, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* For a call that has nothing to answer: 204, or the error. `arg` is the request. */
void front_done(void *arg, const struct err *err);
const char *front_remedy(const struct err *err);
unsigned front_status(const struct err *err);

/* No member that the table does not know, and each of its own JSON type. */
int front_strict(const struct model *m, const struct json *object, const char *const *more,
                 struct err *err);

/* The same for a request whose table is `m`, which is then parsed into *ret. model_done() is owed
 * after success only. */
int front_read(const struct model *m, const struct json *object, const char *const *more, void *ret,
               struct err *err);

/* A body that must be a JSON object; *ret is owned. False: answered. */
bool front_read_body(struct http_request *req, struct json **ret);
/* The session of {id}; one that is not the caller's is not found. NULL: answered. */
struct session *front_find_session(struct http_request *req, const struct front *f);

/* The caller of a request: its rights, and its name in records. A route whose handler calls one of
 * these has HTTP_ROUTE_SCOPED; without that flag tokens with a scope are refused. */

/* NULL: no scope, bound by the policy alone. Lives as long as the request; authz_hold() it for a
 * stream. */
const struct authz_scope *front_caller(const struct http_request *req);
/* For records: the token's name, "local" for the unix socket, "token" for a client with the token
 * of token_file, "anyone" where none is asked for. Lives as long as the request. */
const char *front_who(const struct http_request *req);
/* Whether the caller's scope names that tool or call ("exec", "session", "process", "read", …).
 * False: answered, and recorded. */
bool front_may(struct http_request *req, const struct front *f, const char *tool);
/* Whether a session of that name is the caller's. If not, this is recorded, and the caller of this
 * function answers as if there were none. */
bool front_owns(struct http_request *req, const struct front *f, const char *session_id);
/* Whether the caller's scope covers that session in every respect. False: answered, recorded. */
bool front_may_use(struct http_request *req, const struct front *f, const struct session *s);
/* Whether programs run in a session that the caller may use. One that is stopped is started first,
 * and then the handler runs again. False: answered, or it will be. */
bool front_awake(struct http_request *req, const struct front *f, const struct session *s);
/* The session of {id} for that tool or call, which its scope must cover in every respect: see
 * policy_check_use(). It is left as it is, stopped or paused. NULL: answered. */
struct session *front_look_session(struct http_request *req, const struct front *f,
                                   const char *tool);
/* The same, and front_awake(). NULL: answered, or it will be. */
struct session *front_use_session(struct http_request *req, const struct front *f,
                                  const char *tool);
/* Writes the record, with who and via filled in. ERR_LIMIT: nothing may happen unrecorded. */
int front_audit(const struct front *f, const struct http_request *req, struct audit_record *record,
                struct err *err);
/* A failure: into the ring of errors, and into the log as `record` (NULL: only the ring), which
 * gets outcome and reason. `query_id` may be NULL. Does not answer. */
void front_failed(const struct front *f, const struct http_request *req, const struct err *err,
                  const char *query_id, struct audit_record *record);
