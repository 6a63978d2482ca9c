/* SPDX-License-Identifier: Apache-2.0 */

/* The `box_init` action: checks and applies the limits, paths and backend that LangBot
 * configures. */

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "jobs/hostdir.h"
#include "jobs/jobs.h"
#include "session/artifacts.h"
#include "session/manager.h"

void langbot_setup_done(struct langbot_setup *s)
{
    box_paths_done(&s->paths);
    free(s->base);
    free(s->written);
    *s = (struct langbot_setup){0};
}

/* Hands the limits to the manager. */
static void set_caps(struct langbot *r)
{
    const struct box_limits *l = &r->limits;
    size_t sessions = (size_t)l->max_sessions;
    manager_set_caps(r->o.manager, sessions < r->sessions_max ? sessions : r->sessions_max,
                     (size_t)l->max_managed_processes, (size_t)l->max_completed_processes,
                     (uint64_t)l->completed_process_retention_sec * NSEC_PER_SEC);
}

/* Names that mean what we have: nothing at all, any backend of this host, ours by name, or the one
 * that admission requires; see readiness.h for that. */
static void select_backend(struct langbot *r)
{
    struct backend *b = manager_backend(r->o.manager);
    bool any = r->wanted[0] == '\0' || str_eq(r->wanted, "local") ||
               str_eq(r->wanted, r->o.backend_name) ||
               (admission_enforced(r->admission) && str_eq(r->wanted, READINESS_BACKEND));
    r->selected = backend_limit(b, any ? "" : r->wanted);
    if (r->selected)
        return;
    log_warn(NULL, "box.backend is '%s', which this boxd does not have", r->wanted);
    (void)backend_limit(b, ""); /* others, who did not ask for it, go on */
}

const char *langbot_selected(void *arg)
{
    const struct langbot *r = arg;
    if (!r->selected)
        return NULL;
    return r->o.backend_name != NULL ? r->o.backend_name : manager_backend(r->o.manager)->ops->name;
}

const char *langbot_backend_name(const struct langbot *r)
{
    return readiness_backend(r->readiness);
}

int langbot_select_defaults(struct langbot *r, struct err *err)
{
    const struct box_base base = {.dir = r->o.base_dir};
    select_backend(r);
    int e = box_paths_parse(NULL, &base, &r->paths, err);
    if (e == 0 && r->o.skills != NULL)
        jobs_set_skills_root(r->o.skills, r->paths.skills_root);
    if (e == 0 && r->o.artifacts != NULL)
        artifacts_set_root(r->o.artifacts, r->paths.host_root);
    return e;
}

/* Nothing fails from here on. */
static void apply(struct langbot *r, const struct json *config, struct langbot_setup *setup)
{
    const struct box_limits *limits = &setup->limits;
    const struct json *admission = json_get(config, "admission");
    const struct json *backend = json_get(config, "backend");
    r->limits = *limits;
    if (json_len(json_get(config, "limits")) > 0)
        set_caps(r);
    fence_set_max(r->fence, (size_t)limits->max_admission_records);
    admission_set_max(r->admission, (size_t)limits->max_admission_records);
    box_paths_done(&r->paths);
    r->paths = setup->paths;
    setup->paths = (struct box_paths){0};
    if (r->o.skills != NULL)
        jobs_set_skills_root(r->o.skills, r->paths.skills_root);
    if (r->o.artifacts != NULL)
        artifacts_set_root(r->o.artifacts, r->paths.host_root);
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

/* What is wrong with it is told before anything changes. */
static int check(struct langbot *r, const struct json *config, struct langbot_setup *ret,
                 enum langbot_class *ret_class, struct err *err)
{
    const struct json *local = json_get(config, "local");
    ret->limits = r->limits;
    *ret_class = LANGBOT_VALUE_ERROR;
    int e = box_limits_parse(json_get(config, "limits"), &ret->limits, err);
    if (e < 0)
        return e;
    *ret_class = LANGBOT_VALIDATION;
    const struct box_base base = {.dir = ret->base, .why = ret->why.msg};
    e = local != NULL || r->paths.skills_root == NULL
            ? box_paths_parse(local, &base, &ret->paths, err)
            : box_paths_copy(&r->paths, &ret->paths);
    if (e == 0 && local != NULL && box_paths_relative_root(local, &ret->written) != NULL) {
        ret->relative = ret->base != NULL;
        ret->paths.placed = ret->relative && langbot_is_below(ret->paths.host_root, ret->base);
    }
    return e < 0 ? e : box_paths_check_workspace(&ret->paths, &ret->make_workspace, err);
}

static void on_preset_made(void *arg, const char *json, size_t len, const char *message)
{
    if (json == NULL)
        log_warn(NULL, "default workspace: %s; ignoring", message);
}

int langbot_preset(struct langbot *r, const struct json *config, struct err *err)
{
    struct langbot_setup setup = {0};
    enum langbot_class class = LANGBOT_ERROR;
    char cwd[PATH_MAX];
    /* Whoever wrote our environment means the directory that we were started in. */
    if (r->o.base_dir != NULL || getcwd(cwd, sizeof(cwd)) != NULL)
        setup.base = xstrdup(r->o.base_dir != NULL ? r->o.base_dir : cwd);
    int e = check(r, config, &setup, &class, err);
    if (e < 0)
        langbot_setup_done(&setup);
    if (e < 0 && class == LANGBOT_VALIDATION) { /* the host will say it again, and be told */
        log_warn(NULL, "LANGBOT_BOX_CONFIG: %s; ignoring", err->msg);
        return 0;
    }
    if (e < 0)
        return err_wrap(err, "LANGBOT_BOX_CONFIG");
    if (setup.make_workspace &&
        (r->o.skills == NULL ||
         hostdir_ensure(r->o.skills, setup.paths.default_workspace, on_preset_made, r, err) < 0))
        log_warn(NULL, "default workspace: not made; ignoring");
    apply(r, config, &setup);
    langbot_setup_done(&setup);
    return 0;
}

static void initialised(struct langbot_call *c)
{
    struct langbot_reply reply;
    apply(c->rpc, c->msg.data, &c->setup);
    langbot_reply_open(c, &reply);
    jw_kbool(&reply.w, "initialized", true);
    langbot_reply_close(c, &reply);
}

/* Whoever reads it must know for whom the directory has to be usable. */
static void on_made(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    const struct passwd *pw = getpwuid(geteuid());
    if (json != NULL) {
        initialised(c);
        return;
    }
    const char *text = strstr(message, ": ");
    langbot_fail(
        c, LANGBOT_VALIDATION,
        "box.local.default_workspace %.200s cannot be created: %.300s. boxd runs as user "
        "'%.32s' (uid %u): make the directory yourself and give it to that user (install -d "
        "-o %u DIRECTORY), or name one below boxd's allowed_mount_roots that it may write to",
        c->setup.paths.default_workspace, text != NULL ? text + 2 : message,
        pw != NULL ? pw->pw_name : "unnamed", geteuid(), geteuid());
}

/* Commands of anybody who reaches the port would run on the host itself. That is no backend of
 * ours; whoever asks for it is told what they would be told elsewhere. */
static bool wants_bare_host(const struct langbot_call *c)
{
    const char *name = json_str(json_get(c->msg.data, "backend"));
    AUTO_FREE char *stripped = str_strip(name != NULL ? name : "");
    return str_eq(stripped, "host") && c->rpc->o.token == NULL && !c->conn->local;
}

static void make_workspace(struct langbot_call *c)
{
    struct err err = {0};
    if (!c->setup.make_workspace)
        initialised(c);
    else if (c->rpc->o.skills == NULL)
        on_made(c, NULL, 0, "box-fetch is missing");
    else if (hostdir_ensure(langbot_skills(c), c->setup.paths.default_workspace, on_made, c, &err) <
             0)
        on_made(c, NULL, 0, err.msg);
}

static void init_with_base(struct langbot_call *c)
{
    enum langbot_class class = LANGBOT_ERROR;
    struct err err = {0};
    if (check(c->rpc, c->msg.data, &c->setup, &class, &err) < 0)
        langbot_fail(c, class, "%s", err.msg);
    else
        langbot_open_place(c, make_workspace);
}

void langbot_init(struct langbot_call *c)
{
    if (wants_bare_host(c))
        langbot_fail(c, LANGBOT_VALIDATION,
                     "host backend requires local stdio control or WebSocket control protected by "
                     "LANGBOT_BOX_CONTROL_TOKEN");
    else
        langbot_find_base(c, init_with_base);
}
