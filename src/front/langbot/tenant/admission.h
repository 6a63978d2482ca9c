/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Whether a workspace may have sandboxes at all: grants that a trusted host installs and takes
 * back, within the policy of this instance. All of it is in memory and starts empty.
 *
 * What fails here is ERR_DENIED for what a grant says ("BoxAdmissionError" of the wire) and
 * ERR_STATE for what this runtime is not ready for ("BoxReadinessError"). Times are microseconds
 * since 1970. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct admission;
struct admission_grant;
struct admission_policy;
struct admission_revocation;
struct box_paths;
struct err;
struct json;
struct spec;

struct admission *admission_new(size_t max_records);
void admission_free(struct admission *a);
DEFINE_CLEANUP(admission)
void admission_set_max(struct admission *a, size_t max_records);

/* The section `admission` of the box configuration; NULL: there is none. An error in it turns
 * enforcement on, as `required` does; it never goes off again. */
void admission_configure(struct admission *a, const struct json *section);
bool admission_enforced(const struct admission *a);
const char *admission_config_error(const struct admission *a); /* NULL: none */
const struct admission_policy *admission_rules(const struct admission *a);

/* *ret_drop: every session of the workspace has to go before the grant is acknowledged. The fence
 * is not touched. */
int admission_install(struct admission *a, const char *ns, const struct admission_grant *grant,
                      int64_t now, bool *ret_drop, struct err *err);
/* Every session of the workspace has to go. */
int admission_revoke(struct admission *a, const char *ns,
                     const struct admission_revocation *revocation, struct err *err);

struct admission_limits {
    int64_t max_sessions, max_managed_processes;
};
/* Whether there is a grant for that generation now, and what it allows. */
int admission_check(struct admission *a, const char *ns, int64_t generation, int64_t now,
                    struct admission_limits *ret, struct err *err);

/* Calls `expired` once for each grant that has: the sessions of its workspace have to go. */
void admission_reap(struct admission *a, int64_t now, void (*expired)(void *arg, const char *ns),
                    void *arg);

/* Refuses members that a request may not have under enforcement, then sets the forced values.
 * `host_path` is the directory of the workspace. The caller looks up the skill. */
int admission_rewrite(const struct admission *a, struct spec *spec, const char *host_path,
                      struct err *err);
#define ADMISSION_SESSION "global" /* the one session of a workspace */
/* The extra mounts of a request: read-only directories below the allowed roots, at places below the
 * workspace or named by their digest. Their paths become those without links. */
int admission_check_mounts(const struct box_paths *paths, struct spec *spec, struct err *err);
