/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A command that a front runs in its own way (whole, as a stream, on a terminal), under the policy:
 * asked before, told after.
 *
 *   policy_gate_begin() ─► (ready) ─► the front starts the command; it ends ─► policy_gate_end()
 *                                                            ─► (done) ─► the front answers
 *
 * Before: is there a backend, does the scope allow it, has the token room for it in its share, is
 * the workspace within its quota, can it be recorded. Meanwhile: does the workspace stay within.
 * After: the same again, and the record of how it ended. A session whose workspace is over its
 * quota afterwards is removed. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "policy/policy.h"

struct err;
struct outcome;
struct policy_gate;
struct policy_service;
struct session;
struct spec;

/* All borrowed for the call, except the session, which is held, and `via`, which is static. */
struct policy_gate_options {
    struct session *session;
    const struct authz_scope *scope; /* NULL: may do everything that the policy allows */
    const char *who;                 /* for the records; NULL: authz_name(scope) */
    const char *via;
    const char *query_id; /* or NULL */
    const char *command;  /* as policy_command_text() writes it */
    bool clamped;         /* its timeout was cut to policy_longest_sec() */
    bool has_env;         /* it names variables; recorded where they are locked */
    bool cleanup;         /* it only makes room: see policy_quota.h */
    /* The workspace has grown beyond its quota: the command is to be killed. NULL: it is left. */
    void (*over)(void *arg);
};

/* err NULL: go on. From the loop, where a call has said that it will come. */
typedef void policy_gate_fn(void *arg, const struct err *err);

/* 0: it may start now; 1: `ready` comes and says whether it may. What is refused, here or there, is
 * in the records already. */
int policy_gate_begin(const struct policy_service *service,
                      const struct policy_gate_options *options, policy_gate_fn *ready, void *arg,
                      struct policy_gate **ret, struct err *err); /* service borrowed */
/* The command is over. `produced` are the bytes of stdout and stderr. 0: that is all; 1: `done`
 * comes, and may be told of an error although the command ran: its answer is that error. */
int policy_gate_end(struct policy_gate *g, const struct outcome *outcome,
                    const uint64_t produced[2], policy_gate_fn *done);
/* It could not be started: recorded, nobody is told. */
void policy_gate_failed(struct policy_gate *g, const struct err *err);
/* One that was let in and never ended is recorded as given up. */
void policy_gate_free(struct policy_gate *g);
DEFINE_CLEANUP(policy_gate)
/* The token whose share what it leaves behind counts to; NULL: nobody's. */
const char *policy_gate_payer(const struct policy_gate *g);

/* How many seconds a command may take that a front runs for that caller; 0: as long as it likes. A
 * token's may take as long as the longest of its profiles says. Others are bound by the configured
 * profile, where somebody has configured one. */
int64_t policy_longest_sec(const struct policy *p, const struct authz_scope *scope);

/* Whether the scope covers what a session was made with: its name, its network, its mounts. */
int policy_check_use(const struct policy *p, const struct authz_scope *scope,
                     const struct spec *spec, struct err *err);

/* What a user without a token (authz_user()) may use: sessions without directories of the host, and
 * those that it has made itself. */
int policy_check_user(const struct spec *spec, uid_t uid, struct err *err);

/* A command for the records, owned: `cmd`, or `argv` with quotes where a shell needs them. */
char *policy_command_text(char *const *argv, const char *cmd);
