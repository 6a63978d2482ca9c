/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Whether this runtime is ready for sandboxes. Where admission is enforced the answer is found out
 * by doing: a sandbox is made, writes to the workspace, where the host must see it, and shows its
 * network namespace; the rest is what the backend says it enforces. An answer counts for a while.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

struct admission;
struct box_limits;
struct box_paths;
struct jw;
struct manager;
struct readiness;
struct jobs;

/* In the order of the wire. */
enum readiness_check {
    READY_CONFIGURATION,
    READY_REQUIRED_BACKEND,
    READY_WORKSPACE_MOUNT,
    READY_BACKEND_AVAILABLE,
    READY_CGROUP_V2, /* limits on memory, processor and processes are enforced by control groups */
    READY_NAMESPACE_ISOLATION,
    READY_MOUNT_ISOLATION,
    READY_NETWORK_ISOLATION,
    READY_HARD_WORKSPACE_QUOTA,
    READY_HARD_SKILL_STORAGE_QUOTA,
    READY_BOUNDED_EPHEMERAL_STORAGE,
    READY_INODE_QUOTA,
    READY_SESSION_CAP,
    READY_MANAGED_PROCESS_CAP,
    READY_CHECK_MAX,
};

struct readiness_report {
    bool enforced; /* else only the backend is looked at */
    bool ready;
    const char *backend;          /* borrowed; NULL: none is selected */
    bool found[READY_CHECK_MAX];  /* as it is */
    bool checks[READY_CHECK_MAX]; /* as it counts: see `unsafe_storage` */
    bool unsafe_storage;          /* soft storage limits were declared good enough */
    char error[360];              /* "" when nothing is known */
};

/* All borrowed for the life of the object. */
struct readiness_options {
    struct manager *manager;
    struct jobs *skills; /* looks at directories of the host; NULL: box-fetch is missing */
    const struct admission *admission;
    const struct box_paths *paths;
    const struct box_limits *limits;
    const char *(*backend)(void *arg); /* name to report; NULL: none is selected */
    void *backend_arg;
    bool unsafe_storage;
};

struct readiness *readiness_new(const struct readiness_options *options);
void readiness_free(struct readiness *r); /* callbacks that wait are not called */
DEFINE_CLEANUP(readiness)

/* The name that clients are to know the backend by; NULL: none is selected. Where admission is
 * enforced the policy asks for READINESS_BACKEND by name, and means a backend that puts commands
 * into namespaces and control groups of their own. Ours goes by that name as long as the last probe
 * has shown that it does; a name of the operator's choice is left alone. */
const char *readiness_backend(const struct readiness *r);
#define READINESS_BACKEND "nsjail"

/* From the loop, exactly once; the report is borrowed for the call. */
typedef void readiness_fn(void *arg, const struct readiness_report *report);
void readiness_get(struct readiness *r, readiness_fn *fn, void *arg);
void readiness_clear(struct readiness *r); /* the next one looks again */

void readiness_write(const struct readiness_report *report, struct jw *w); /* members only */
/* "a, b": the checks that fail, under the names that clients know since 0.7.13, or knew before. */
void readiness_failed(const struct readiness_report *report, bool newer, char *ret, size_t size);
