/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* State that all fronts share: the policy, the sessions, and the records about both. */

#include <stdint.h>
#include <sys/types.h>

#include "session/manager.h"

struct audit;
struct audit_record;
struct authz_scope;
struct err;
struct error_ring;
struct jw;
struct manager;
struct outcome;
struct outputs;
struct policy;
struct quota_guards;
struct shares;
struct spec;
struct jobs;

/* All borrowed. */
struct policy_service {
    const struct policy *policy;
    struct manager *manager; /* NULL: the runtime did not start */
    const char *unavailable; /* why no sandbox can be had, as a sentence; NULL: they can */
    struct error_ring *errors;
    struct audit *audit;         /* NULL: nothing is recorded */
    struct outputs *outputs;     /* NULL: full outputs are not kept */
    struct shares *shares;       /* what tokens use; NULL: not counted */
    struct quota_guards *guards; /* look after workspaces between commands; NULL: none */
    struct jobs *helper;         /* looks into directories that we may not; NULL: none */
    uint64_t session_ttl_sec;    /* for the status */
    const char *degraded;        /* what is degraded, as a sentence; NULL: nothing */
};

/* Whether a command may be run at all. ERR_STATE: switched off, or no runtime; ERR_BACKEND: a
 * runtime without a usable backend. Nothing ever runs elsewhere instead. */
int policy_service_guard(const struct policy_service *s, struct err *err);

/* Sessions that a scope sees, and their managed processes. */
struct policy_counts {
    uint64_t sessions, by_state[SESSION_STATE_MAX];
    uint64_t running, exited; /* managed processes; ended ones as long as they are remembered */
};
void policy_count_seen(struct manager *m, const struct authz_scope *scope,
                       struct policy_counts *ret);

/* Members: enabled, available, profile, recent_error_count; connector_error when not available;
 * degraded when something is amiss; else backend, active_sessions, managed_processes,
 * session_ttl_sec; and audit. Counts are of what that scope sees. */
void policy_service_write_status(const struct policy_service *s, const struct authz_scope *scope,
                                 struct jw *w);

/* Records how a command ended; `produced` are the bytes of stdout and stderr. The command has run,
 * so a record that cannot be written is only counted. */
void policy_record_outcome(const struct policy_service *s, const struct audit_record *begun,
                           const struct outcome *outcome, const uint64_t produced[2]);

/* Remembers a failure: in the ring, as one of record->who, and in the log as `record` (NULL: only
 * the ring) with outcome and reason filled in. */
void policy_service_failed(const struct policy_service *s, const struct err *err,
                           const char *query_id, struct audit_record *record);

/* How many seconds a command may take that a front runs for that caller; 0: as long as it likes. A
 * token's may take as long as the longest of its profiles says. Others are bound by the configured
 * profile, if there is one. */
int64_t policy_longest_sec(const struct policy *p, const struct authz_scope *scope);

/* Whether the scope covers what a session was made with: its name, its network, its mounts. */
int policy_check_use(const struct policy *p, const struct authz_scope *scope,
                     const struct spec *spec, struct err *err);

/* Whether a user without a token (authz_user()) may use a session: only one of that user's own. */
int policy_check_user(const struct spec *spec, uid_t uid, struct err *err);

/* A command for the records, owned: `cmd`, or `argv` with quotes where a shell needs them. */
char *policy_command_text(char *const *argv, const char *cmd);
