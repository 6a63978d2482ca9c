/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "core/manager.h"
#include "core/readiness.h"
#include "core/skills.h"
#include "rpc/rpc_internal.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/log.h"
#include "util/str.h"

/* Hands the limits to the manager. */
static void set_caps(struct rpc *r)
{
    const struct box_limits *l = &r->limits;
    size_t sessions = (size_t)l->max_sessions;
    manager_set_caps(r->o.manager, sessions < r->sessions_max ? sessions : r->sessions_max,
                     (size_t)l->max_managed_processes, (size_t)l->max_completed_processes,
                     (uint64_t)l->completed_process_retention_sec * NSEC_PER_SEC);
}

/* Names that mean what we have: nothing at all, any backend of this host, or ours by name. */
static void select_backend(struct rpc *r)
{
    const char *own = manager_backend(r->o.manager)->ops->name;
    const char *name = r->o.backend_name != NULL ? r->o.backend_name : own;
    bool ours = r->wanted[0] == '\0' || str_eq(r->wanted, "local") || str_eq(r->wanted, own) ||
                str_eq(r->wanted, name);
    if (!ours)
        log_warn(NULL, "box.backend is '%s', which this boxd does not have", r->wanted);
    r->backend = ours ? name : NULL;
}

int rpc_select_defaults(struct rpc *r, struct err *err)
{
    select_backend(r);
    int e = box_paths_parse(NULL, &r->paths, err);
    if (e == 0 && r->o.skills != NULL)
        skills_set_root(r->o.skills, r->paths.skills_root);
    return e;
}

/* Nothing fails from here on. */
static void apply(struct rpc *r, const struct json *config, const struct box_limits *limits,
                  struct box_paths *paths)
{
    const struct json *admission = json_get(config, "admission");
    const struct json *backend = json_get(config, "backend");
    r->limits = *limits;
    if (json_len(json_get(config, "limits")) > 0)
        set_caps(r);
    fence_set_max(r->fence, (size_t)limits->max_admission_records);
    admission_set_max(r->admission, (size_t)limits->max_admission_records);
    if (paths != NULL) {
        box_paths_done(&r->paths);
        r->paths = *paths;
        *paths = (struct box_paths){0};
        if (r->o.skills != NULL)
            skills_set_root(r->o.skills, r->paths.skills_root);
    }
    if (admission != NULL)
        admission_configure(r->admission, admission);
    if (backend != NULL) {
        free(r->wanted);
        r->wanted = str_strip(json_str(backend) != NULL ? json_str(backend) : "");
    }
    /* Sessions that are there stay where they are. */
    if (manager_count(r->o.manager) == 0)
        select_backend(r);
    readiness_clear(r->readiness);
}

int rpc_configure(struct rpc *r, const struct json *config, enum rpc_class *ret_class,
                  struct err *err)
{
    AUTO_DONE(box_paths) struct box_paths paths = {0};
    struct box_limits limits = r->limits;
    const struct json *local = json_get(config, "local");
    *ret_class = RPC_VALUE_ERROR;
    int e = box_limits_parse(json_get(config, "limits"), &limits, err);
    if (e < 0)
        return e;
    *ret_class = RPC_VALIDATION;
    if (local != NULL)
        e = box_paths_parse(local, &paths, err);
    if (e == 0)
        e = box_paths_ensure_workspace(local != NULL ? &paths : &r->paths, err);
    if (e < 0)
        return e;
    apply(r, config, &limits, local != NULL ? &paths : NULL);
    return 0;
}
