/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Counts the workspaces of sessions between commands: processes that a command left in the
 * background, and managed processes, can write, too. Only directories of the host with a quota are
 * counted (the kernel limits a session's own workspace), and only if a command or a process was let
 * in under the policy.
 *
 * Over the quota boxd kills every process of the session, managed ones with the reason, and records
 * the failure. The session stays, so that a command marked `cleanup` can make room. If it goes on
 * growing, boxd removes it, as it would after a command. */

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

/* Kills every process of a session for that reason, which is recorded and reported to the callers
 * that started them. *ret is the run that does it; NULL: it was not possible, try again. */
int quota_kill(const struct policy_service *service, struct session *s, const struct err *why,
               const struct run_events *events, void *arg, struct run **ret);
/* Whether that run has done it. If not the session is to be removed. */
bool quota_killed(const struct run_result *result);
