/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Who may do what: one scope per token. What a scope does not name it does not allow, except
 * sessions without a network. A caller without a scope (NULL: the unix socket of the user who runs
 * us) may do everything that the policy allows. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "spec/spec.h"

struct authz;
struct authz_scope;
struct err;
struct json;

#define AUTHZ_TOKENS_MAX 1024
#define AUTHZ_TOKEN_MIN 32U /* characters */
#define AUTHZ_TOKEN_MAX 4096U

/* The file of tokens as an object: {"tokens": [{...}]}, see docs/reference/policy.md. ERR_INVALID
 * names the token and never shows one. */
int authz_parse(const struct json *object, struct authz **ret, struct err *err);
void authz_free(struct authz *a); /* scopes that are held stay */
DEFINE_CLEANUP(authz)
struct authz_sessions;
/* Borrowed for as long as one of its scopes is asked: tokens with names of sessions (not "*") have
 * none that a user of this machine has made. NULL: there are no users. */
void authz_set_sessions(struct authz *a, const struct authz_sessions *sessions);

/* Whose a session is that a user asks for. */
enum authz_owner {
    AUTHZ_NO_SESSION, /* there is none of that name */
    AUTHZ_OTHERS,     /* another user's, root's or a token's */
    AUTHZ_OWN,
};
struct authz_sessions {
    enum authz_owner (*owner)(void *arg, const char *session, uid_t uid);
    bool (*is_users)(void *arg,
                     const char *session); /* whether a user made it, not root or a token */
    void *arg;
};

/* The scope of a user of this machine who needs no token: its own sessions alone, with everything,
 * but of the host's directories only what the user could itself open. `sessions` is borrowed for as
 * long as the scope is asked. Held; authz_release(). */
const struct authz_scope *authz_user(uid_t uid, const struct authz_sessions *sessions);
#define AUTHZ_USER_NAME "uid-%u"                             /* what records call such a user */
bool authz_is_user(const struct authz_scope *s, uid_t *ret); /* false for NULL and for tokens */

/* The scope of a token, borrowed; NULL: unknown or expired. Takes as long for a wrong one. */
const struct authz_scope *authz_find(const struct authz *a, const char *token, size_t len,
                                     uint64_t now_real_ns);
/* A scope that must outlive its file being read again is held; NULL is fine. */
const struct authz_scope *authz_hold(const struct authz_scope *s);
void authz_release(const struct authz_scope *s);
/* Whether it still counts: `now` (NULL: there is no file) has the same token with exactly the same
 * rights, and it has not expired. For streams, which outlive the request that was let in. */
bool authz_counts(const struct authz_scope *s, const struct authz *now, uint64_t now_real_ns);
const char *authz_name(const struct authz_scope *s); /* for records; "local" for NULL */
/* Under which name it counts what it uses (policy/share.h): a token's own; NULL for NULL and users.
 */
const char *authz_share(const struct authz_scope *s);

/* How much a token may have of what all share; -1: its entry does not say. */
struct authz_caps {
    int64_t sessions, execs, processes, output_mb;
};
/* Of the token of that name; `a` NULL, or a name that is not there: nothing is said. */
struct authz_caps authz_caps_of(const struct authz *a, const char *name);

/* ERR_DENIED says which token lacks what. */
int authz_check_profile(const struct authz_scope *s, const char *profile, struct err *err);
int authz_check_tool(const struct authz_scope *s, const char *tool, struct err *err);
int authz_check_network(const struct authz_scope *s, enum network network, struct err *err);
/* Whether its sessions may reach that service, ADDRESS:PORT as host_service_write() has it. A user
 * can connect to what the policy allows anyway. */
int authz_check_host(const struct authz_scope *s, const char *service, struct err *err);
/* `path` is clean and absolute, as policy_check_mount() leaves it. */
int authz_check_mount(const struct authz_scope *s, const char *path, enum mount_mode mode,
                      struct err *err);
/* ERR_NOT_FOUND, just as for a session that does not exist: names of others are not to be probed. A
 * name that no session has is free for every user. */
int authz_check_session(const struct authz_scope *s, const char *id, struct err *err);
/* The same for one that is to be made, or taken if it is there. A caller that may have the name but
 * finds it taken by another user gets ERR_CONFLICT. */
int authz_check_name(const struct authz_scope *s, const char *id, struct err *err);

/* Whether it may read about what `who` (a name of records; NULL: no caller in particular) did in
 * `session` (NULL: in none): what it did itself, and what concerns sessions of its scope. Both
 * NULL: numbers and texts about all callers, for scopes with all sessions ("*") only. Whatever a
 * token or a user can read (lists, events, records, counters) is cut by this function and no other
 * rule. The session of a name may be another user's tomorrow. So with `who` given a user sees what
 * that user did, or what happened to the user's own session; without, `session` is one that
 * exists now. */
bool authz_sees(const struct authz_scope *s, const char *who, const char *session);

/* Whose errors it may read (policy/error_ring.h): NULL for all. */
const char *authz_errors(const struct authz_scope *s);

/* A name for a session that is made up for it: as its scope has them begin, ending with `tail`; or
 * the one name that it may use. Owned; NULL: it may use none. */
char *authz_session_name(const struct authz_scope *s, const char *tail);
