/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "front/common/front.h"
#include "front/langbot/langbot_internal.h"
#include "jobs/hostdir.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ALL_FIELDS (FIELD_BIT(SPEC_FIELD_MAX) - 1)

/* What belongs to one command leaves the spec: a session neither keeps the megabytes of a script
 * nor gives the variables of one command to the next. */
static void take_command(struct rpc_call *c, struct spec *spec)
{
    c->cmd = TAKE_PTR(spec->cmd);
    c->env = TAKE_PTR(spec->env);
    c->cwd = xstrdup(spec->workdir);
    spec->cmd = xstrdup("");
}

static void set_id(struct rpc_call *c)
{
    free(c->spec->session_id);
    c->spec->session_id = xstrdup(c->id);
}

/* Where admission is enforced: the one session, in the directory of its workspace. */
static void rewritten(void *arg, const char *json, size_t len, const char *message)
{
    struct rpc_call *c = arg;
    (void)len;
    if (json == NULL) {
        const char *rest = NULL;
        (void)rpc_class_split(message, &rest);
        rpc_fail(c, RPC_READINESS, "%s", rest);
        return;
    }
    if (c->cancelled)
        rpc_call_end(c);
    else
        rpc_mount_skill(c, c->then);
}

static void rewrite(struct rpc_call *c)
{
    struct err err = {0};
    const char *root = NULL;
    if (c->rpc->o.skills == NULL || box_paths_managed_place(&c->rpc->paths, &root, &err) < 0) {
        rpc_fail(c, RPC_READINESS, "%s", err.code != ERR_NONE ? err.msg : "box-fetch is missing");
        return;
    }
    if (c->spec->n_extra_mounts > 0 && !c->rules->admitted_mounts) {
        rpc_fail(c, RPC_ADMISSION, "Managed sandbox additional host mounts are disabled");
        return;
    }
    AUTO_FREE char *dir = box_paths_tenant_dir(&c->rpc->paths, c->ns);
    if (admission_rewrite(c->rpc->admission, c->spec, dir, &err) < 0 ||
        admission_check_mounts(&c->rpc->paths, c->spec, &err) < 0) {
        rpc_fail(c, RPC_ADMISSION, "%s", err.msg);
        return;
    }
    c->timeout_sec = c->spec->timeout_sec;
    free(c->id);
    c->id = xasprintf("%s%s", c->prefix, ADMISSION_SESSION);
    set_id(c);
    if (manager_find(c->rpc->o.manager, c->id) != NULL) /* then that has been done */
        rpc_mount_skill(c, c->then);
    else if (hostdir_ensure(rpc_skills(c), dir, rewritten, c, &err) < 0)
        rpc_fail(c, RPC_READINESS, "%s", err.msg);
}

void rpc_spec_begin(struct rpc_call *c, void (*then)(struct rpc_call *c))
{
    struct report report = {0};
    struct err err = {0};
    int r = c->rules->closed
                ? spec_parse_closed(c->msg.data, c->rules->gone, &c->spec, &report, &err)
                : spec_parse_report(c->msg.data, &c->spec, &report, &err);
    if (r < 0) {
        rpc_fail_report(c, &report, spec_model.name);
        return;
    }
    take_command(c, c->spec);
    if (c->rpc->paths.placed)
        c->spec->own.place = xstrdup(c->rpc->paths.host_root);
    c->spec->own.bound = c->bound;
    c->spec->own.uid = c->uid;
    c->timeout_sec = c->spec->timeout_sec;
    bool enforced = admission_enforced(c->rpc->admission); /* then the id is ours to say */
    if (c->ns[0] == '\0' || enforced)
        c->id = xstrdup(c->spec->session_id);
    else if (tenant_physical(c->prefix, c->spec->session_id, &c->id, &err) < 0) {
        rpc_fail(c, c->rules->bad_id_is_checked ? RPC_VALIDATION : RPC_VALUE_ERROR, "%s", err.msg);
        return;
    }
    set_id(c);
    if (c->action->run == rpc_exec && c->cmd[0] == '\0') {
        rpc_fail(c, RPC_VALIDATION, "cmd must not be empty");
        return;
    }
    c->then = then;
    if (enforced)
        rewrite(c);
    else
        then(c);
}

/* Acquiring. */

static size_t count_others(const struct rpc_call *c)
{
    size_t n = 0;
    struct manager *m = c->rpc->o.manager;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        n += str_starts(session_id(s), c->prefix) && !str_eq(session_id(s), c->id);
    return n;
}

/* False: the call has failed. */
static bool can_create(struct rpc_call *c)
{
    if (c->rpc->draining)
        rpc_fail(c, RPC_RUNTIME_UNAVAILABLE, "Box runtime is shutting down");
    else if (!c->rpc->selected)
        rpc_fail(c, RPC_BACKEND_UNAVAILABLE,
                 "LangBot Box backend unavailable. Install and start Docker or nsjail before using "
                 "exec.");
    else if (admission_enforced(c->rpc->admission) &&
             count_others(c) >= (size_t)c->grant.max_sessions)
        rpc_fail(c, RPC_ADMISSION, "Sandbox admission session limit reached");
    else
        return true;
    return false;
}

static void fail_acquire(struct rpc_call *c, const struct err *err)
{
    rpc_audit_failed(c, AUDIT_SESSION_CREATE, err);
    if (err->code == ERR_NOT_FOUND) /* of an image */
        rpc_fail(c, RPC_ERROR, "%s", err->msg);
    else
        rpc_fail_err(c, err);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct rpc_call *c = arg;
    if (s == NULL) {
        fail_acquire(c, err);
        return;
    }
    c->session = s;
    if (!rpc_may_use(c, s))
        return;
    if (c->made)
        rpc_audit_session(c, AUDIT_SESSION_CREATE);
    if (c->cancelled)
        rpc_call_end(c);
    else
        rpc_artifacts_ready(c);
}

static void acquire(struct rpc_call *c)
{
    struct err err = {0};
    if (rpc_artifacts_again(c, acquire))
        return;
    c->made = manager_find(c->rpc->o.manager, c->id) == NULL;
    unsigned mounts = c->rules->keeps_mounts ? ACQUIRE_KEEP_MOUNTS : ACQUIRE_REMOUNT;
    if (manager_acquire(c->rpc->o.manager, &c->spec, ALL_FIELDS, mounts, on_ready, c, &err) < 0)
        fail_acquire(c, &err);
}

/* What an engine makes before it mounts, and clients rely on: the directory that becomes the
 * workspace, if it is one of the host's own, and in it the places of what is mounted there. Number
 * 0 is the former; the others are the extra mounts. NULL: that one needs nothing. */
static char *needed_dir(const struct rpc_call *c, size_t number)
{
    const struct spec *s = c->spec;
    if (s->host_path == NULL || s->host_path_mode != MOUNT_RW ||
        !path_is_clean_absolute(s->host_path))
        return NULL;
    if (number == 0)
        return box_paths_own(&c->rpc->paths, s->host_path) ? xstrdup(s->host_path) : NULL;
    const struct mount_spec *m = &s->extra_mounts[number - 1];
    size_t n = strlen(s->mount_path);
    if (m->mode == MOUNT_NONE || !path_is_clean_absolute(m->mount_path) ||
        !str_starts(m->mount_path, s->mount_path) || m->mount_path[n] != '/')
        return NULL;
    return xasprintf("%s%s", s->host_path, m->mount_path + n);
}

static void make_dirs(struct rpc_call *c);

static void on_dir_made(void *arg, const char *json, size_t len, const char *message)
{
    struct rpc_call *c = arg;
    (void)len;
    if (json == NULL) /* the backend will say why it cannot do without */
        log_debug(c->id, "make a directory to mount: %s; ignoring", message);
    if (c->cancelled)
        rpc_call_end(c);
    else
        make_dirs(c);
}

/* The rest of them, one after the other. */
static void make_dirs(struct rpc_call *c)
{
    while (c->dirs_made <= c->spec->n_extra_mounts) {
        AUTO_FREE char *dir = needed_dir(c, c->dirs_made++);
        struct err err = {0};
        struct stat st;
        /* We may not be allowed to look; whoever owns it is. */
        if (dir == NULL || stat(dir, &st) == 0)
            continue;
        if (hostdir_ensure(rpc_skills(c), dir, on_dir_made, c, &err) == 0)
            return;
    }
    acquire(c);
}

static void prepared(struct rpc_call *c)
{
    /* A command in a session that is there pays for nothing, and one that is refused leaves
     * nothing. */
    bool kept = c->rules->keeps_mounts && manager_find(c->rpc->o.manager, c->id) != NULL;
    if (c->rpc->o.skills == NULL || kept || manager_has(c->rpc->o.manager, c->spec))
        acquire(c);
    else
        make_dirs(c);
}

void rpc_acquire(struct rpc_call *c, void (*then)(struct rpc_call *c))
{
    if (!can_create(c))
        return;
    c->then = then;
    rpc_artifacts_prepare(c, prepared);
}

/* Answers. */

static void rpc_write_session(struct rpc_call *c, struct jw *w, struct session *s)
{
    const struct spec *spec = session_spec(s);
    struct sandbox *sb = session_sandbox(s);
    jw_kstr(w, "session_id", rpc_logical(c, session_id(s)));
    /* One that was made by another than what serves now says so. */
    bool other = sb != NULL &&
                 backend_find(sb->backend, manager_backend(c->rpc->o.manager)->ops->name) == NULL;
    jw_kstr(w, "backend_name", other ? sb->backend->ops->name : rpc_backend_name(c->rpc));
    jw_kstr(w, "backend_session_id",
            sb != NULL && sb->backend->ops->sandbox_name != NULL
                ? sb->backend->ops->sandbox_name(sb)
                : session_id(s));
    front_write_settings(w, spec);
    rpc_write_time(w, "created_at", session_created(s));
    rpc_write_time(w, "last_used_at", session_last_used(s));
    if (c->rules->tells_of_workspace)
        jw_kstr(w, "status", sb == NULL ? "closing" : session_execs(s) > 0 ? "running" : "idle");
}

static void created(struct rpc_call *c)
{
    struct rpc_reply reply;
    rpc_reply_open(c, &reply);
    rpc_write_session(c, &reply.w, c->session);
    rpc_reply_close(c, &reply);
}

static void create(struct rpc_call *c)
{
    rpc_acquire(c, created);
}

void rpc_create_session(struct rpc_call *c)
{
    rpc_spec_begin(c, create);
}

void rpc_get_session(struct rpc_call *c)
{
    struct rpc_reply reply;
    struct session *s = rpc_need_session_id(c) ? rpc_need_session(c) : NULL;
    if (s == NULL)
        return;
    rpc_reply_open(c, &reply);
    rpc_write_session(c, &reply.w, s);
    rpc_write_processes(c, &reply.w, s);
    rpc_reply_close(c, &reply);
}

void rpc_get_sessions(struct rpc_call *c)
{
    struct manager *m = c->rpc->o.manager;
    struct rpc_reply reply;
    rpc_reply_open(c, &reply);
    jw_key(&reply.w, "sessions");
    jw_array(&reply.w);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_sandbox(s) == NULL || !str_starts(session_id(s), c->prefix))
            continue;
        jw_object(&reply.w);
        rpc_write_session(c, &reply.w, s);
        jw_object_end(&reply.w);
    }
    jw_array_end(&reply.w);
    rpc_reply_close(c, &reply);
}

static void on_deleted(void *arg, const struct err *err)
{
    struct rpc_call *c = arg;
    struct rpc_reply reply;
    if (err != NULL) {
        rpc_fail_err(c, err);
        return;
    }
    rpc_reply_open(c, &reply);
    jw_kstr(&reply.w, "deleted", json_str(json_get(c->msg.data, "session_id")));
    rpc_reply_close(c, &reply);
}

void rpc_delete_session(struct rpc_call *c)
{
    struct err err = {0};
    if (!rpc_need_session_id(c))
        return;
    if (manager_delete(c->rpc->o.manager, c->id, on_deleted, c, &err) < 0)
        rpc_fail_err(c, &err);
    else
        rpc_audit_session(c, AUDIT_SESSION_DELETE);
}
