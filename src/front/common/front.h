/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What fronts share: who calls and what that caller may do, sessions as requests describe them, and
 * how a failure is answered. */

#include <stdbool.h>
#include <stdint.h>

#include "session/manager.h"

struct audit_record;
struct authz_scope;
struct buf;
struct chat;
struct err;
struct http_request;
struct json;
struct jw;
struct model;
struct policy_service;
struct spec;

struct front {
    struct manager *manager;              /* borrowed */
    const struct policy_service *service; /* borrowed; policy, errors, audit log, outputs */
    struct chat *chat;                    /* borrowed; NULL without chat_routes() */
};

/* Who asks; borrowed. */
struct front_asker {
    const struct authz_scope *scope; /* or NULL */
    const char *who;
    const char *via;  /* the front, for the records; static; NULL: "http" */
    const char *tool; /* that its scope must name; NULL: "session" */
};

/* A session as a request describes it. */
struct front_want {
    const struct json *object;
    bool id_required;
    char **ret_id; /* its name, owned; NULL: not wanted */
};

/* The session that a request describes, made if need be, under the policy: profile, locks,
 * defaults, mounts, scope; and on record. `ready` as that of manager_acquire(). */
int front_session_get(const struct front *f, const struct front_asker *asker,
                      const struct front_want *want, session_ready_fn *ready, void *arg,
                      struct err *err);

/* Without a policy: a spec from the members that were given; `given` is the set of them. Ids follow
 * the grammar; without one (`id_required` false) a random one is made. */
int front_spec_parse(const struct json *object, bool id_required, struct spec **ret,
                     uint64_t *ret_given, struct err *err);

/* What a session was made with, under the names that both fronts use. */
void front_write_settings(struct jw *w, const struct spec *spec);

/* Problem details for an error of ours. */
void front_fail(struct http_request *req, const struct err *err);
const char *front_remedy(const struct err *err);
unsigned front_status(const struct err *err);

/* No member that the table does not know, and each of its own JSON type. */
int front_strict(const struct model *m, const struct json *object, const char *const *more,
                 struct err *err);

void front_reply_json(struct http_request *req, unsigned status, struct buf *out, struct jw *w);
/* A body that must be a JSON object; *ret is owned. False: answered. */
bool front_read_body(struct http_request *req, struct json **ret);
/* The session of {id}; one that is not the caller's is not found. NULL: answered. */
struct session *front_find_session(struct http_request *req, const struct front *f);

/* Who calls, what they may, and what is remembered of it. A route whose handler asks
 * one of these has HTTP_ROUTE_SCOPED; without it tokens with a scope are refused. */

/* NULL: no scope, bound by the policy alone. Lives as long as the request; authz_hold() it for a
 * stream. */
const struct authz_scope *front_caller(const struct http_request *req);
/* For records: the token's name, "local" for the unix socket, "token" for a client with the token
 * of token_file, "anyone" where none is asked for. Lives as long as the request. */
const char *front_who(const struct http_request *req);
/* The token whose share a session or a command of this caller uses, owned; NULL: none. */
char *front_owner(const struct authz_scope *scope);
/* Whether the caller's scope names that tool or call ("exec", "session", "process", "read", …).
 * False: answered, and recorded. */
bool front_may(struct http_request *req, const struct front *f, const char *tool);
/* Whether a session of that name is the caller's. What is not is recorded, and for the caller to
 * answer as if there were none. */
bool front_owns(struct http_request *req, const struct front *f, const char *session_id);
/* Whether the caller's scope covers that session in every respect. False: answered, recorded. */
bool front_may_use(struct http_request *req, const struct front *f, const struct session *s);
/* The session of {id} for that tool or call, which its scope must cover in every respect: see
 * policy_check_use(). NULL: answered. */
struct session *front_use_session(struct http_request *req, const struct front *f,
                                  const char *tool);
/* Writes it with who and via filled in. 0, or ERR_LIMIT where nothing may happen unrecorded. */
int front_audit(const struct front *f, const struct http_request *req, struct audit_record *record,
                struct err *err);
/* A failure: into the ring of errors, and into the log as `record` (NULL: only the ring), which
 * gets outcome and reason. `query_id` may be NULL. Does not answer. */
void front_failed(const struct front *f, const struct http_request *req, const struct err *err,
                  const char *query_id, struct audit_record *record);
