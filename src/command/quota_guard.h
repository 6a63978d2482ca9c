/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Looks after the workspaces of sessions between commands: what a command left running in the
 * background, and managed processes, can write, too. Only directories of the host that have a quota
 * are counted (a workspace of the session's own has a wall of the kernel's), and only where a
 * command or a process was let in under the policy.
 *
 * Over the quota: every process of the session is killed, managed ones with the reason, and the
 * failure is on record. The session stays, so that a command marked `cleanup` can make room. One
 * that goes on growing all the same is removed, as it would be after a command. */

#include <stdbool.h>

#include "base/cleanup.h"

struct err;
struct policy_service;
struct quota_guards;
struct run;
struct run_events;
struct run_result;
struct session;

struct quota_guards *quota_guards_new(void);
void quota_guards_free(struct quota_guards *all); /* before the backend goes */
DEFINE_CLEANUP(quota_guards)

/* From now on until it ends. Does nothing without a quota to count, without service->guards, or
 * when it is looked after already. */
void quota_guard(const struct policy_service *service, struct session *s); /* service borrowed */

/* Kills every process of a session, for that reason, which is recorded and told to the callers that
 * started them. The run that does it is *ret; without one it was not possible: try again. */
int quota_kill(const struct policy_service *service, struct session *s, const struct err *why,
               const struct run_events *events, void *arg, struct run **ret);
/* Whether that run has done it. If not the session is to be removed. */
bool quota_killed(const struct run_result *result);
