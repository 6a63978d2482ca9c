/* SPDX-License-Identifier: Apache-2.0 */

/* Actions that create, show and delete sessions, and getting a session for other actions. */

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
static void take_command(struct langbot_call *c, struct spec *spec)
{
    c->cmd = TAKE_PTR(spec->cmd);
    c->env = TAKE_PTR(spec->env);
    c->cwd = xstrdup(spec->workdir);
    spec->cmd = xstrdup("");
}

static void set_id(struct langbot_call *c)
{
    free(c->spec->session_id);
    c->spec->session_id = xstrdup(c->id);
}

/* Where admission is enforced: the one session, in the directory of its workspace. */
static void rewritten(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (json == NULL) {
        const char *rest = NULL;
        (void)langbot_class_split(message, &rest);
        langbot_fail(c, LANGBOT_READINESS, "%s", rest);
        return;
    }
    if (c->cancelled)
        langbot_call_end(c);
    else
        langbot_mount_skill(c, c->then);
}

static void rewrite(struct langbot_call *c)
{
    struct err err = {0};
    const char *root = NULL;
    if (c->rpc->o.skills == NULL || box_paths_managed_place(&c->rpc->paths, &root, &err) < 0) {
        langbot_fail(c, LANGBOT_READINESS, "%s",
                     err.code != ERR_NONE ? err.msg : "box-fetch is missing");
        return;
    }
    if (c->spec->n_extra_mounts > 0 && !c->rules->admitted_mounts) {
        langbot_fail(c, LANGBOT_ADMISSION, "Managed sandbox additional host mounts are disabled");
        return;
    }
    AUTO_FREE char *dir = box_paths_tenant_dir(&c->rpc->paths, c->ns);
    if (admission_rewrite(c->rpc->admission, c->spec, dir, &err) < 0 ||
        admission_check_mounts(&c->rpc->paths, c->spec, &err) < 0) {
        langbot_fail(c, LANGBOT_ADMISSION, "%s", err.msg);
        return;
    }
    c->timeout_sec = c->spec->timeout_sec;
    free(c->id);
    c->id = xasprintf("%s%s", c->prefix, ADMISSION_SESSION);
    set_id(c);
    if (manager_find(c->rpc->o.manager, c->id) != NULL) /* then that has been done */
        langbot_mount_skill(c, c->then);
    else if (hostdir_ensure(langbot_skills(c), dir, rewritten, c, &err) < 0)
        langbot_fail(c, LANGBOT_READINESS, "%s", err.msg);
}

void langbot_spec_begin(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    struct report report = {0};
    struct err err = {0};
    int r = c->rules->closed
                ? spec_parse_closed(c->msg.data, c->rules->gone, &c->spec, &report, &err)
                : spec_parse_report(c->msg.data, &c->spec, &report, &err);
    if (r < 0) {
        langbot_fail_report(c, &report, spec_model.name);
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
        langbot_fail(c, c->rules->bad_id_is_checked ? LANGBOT_VALIDATION : LANGBOT_VALUE_ERROR,
                     "%s", err.msg);
        return;
    }
    set_id(c);
    if (c->action->run == langbot_exec && c->cmd[0] == '\0') {
        langbot_fail(c, LANGBOT_VALIDATION, "cmd must not be empty");
        return;
    }
    c->then = then;
    if (enforced)
        rewrite(c);
    else
        then(c);
}

/* Acquiring. */

static size_t count_others(const struct langbot_call *c)
{
    size_t n = 0;
    struct manager *m = c->rpc->o.manager;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        n += str_starts(session_id(s), c->prefix) && !str_eq(session_id(s), c->id);
    return n;
}

/* False: the call has failed. */
static bool can_create(struct langbot_call *c)
{
    if (c->rpc->draining)
        langbot_fail(c, LANGBOT_RUNTIME_UNAVAILABLE, "Box runtime is shutting down");
    else if (!c->rpc->selected)
        langbot_fail(
            c, LANGBOT_BACKEND_UNAVAILABLE,
            "LangBot Box backend unavailable. Install and start Docker or nsjail before using "
            "exec.");
    else if (admission_enforced(c->rpc->admission) &&
             count_others(c) >= (size_t)c->grant.max_sessions)
        langbot_fail(c, LANGBOT_ADMISSION, "Sandbox admission session limit reached");
    else
        return true;
    return false;
}

static void fail_acquire(struct langbot_call *c, const struct err *err)
{
    langbot_audit_failed(c, AUDIT_SESSION_CREATE, err);
    if (err->code == ERR_NOT_FOUND) /* of an image */
        langbot_fail(c, LANGBOT_ERROR, "%s", err->msg);
    else
        langbot_fail_err(c, err);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct langbot_call *c = arg;
    if (s == NULL) {
        fail_acquire(c, err);
        return;
    }
    c->session = s;
    if (!langbot_may_use(c, s))
        return;
    if (c->made)
        langbot_audit_session(c, AUDIT_SESSION_CREATE);
    if (c->cancelled)
        langbot_call_end(c);
    else
        langbot_artifacts_ready(c);
}

static void acquire(struct langbot_call *c)
{
    struct err err = {0};
    if (langbot_artifacts_again(c, acquire))
        return;
    c->made = manager_find(c->rpc->o.manager, c->id) == NULL;
    unsigned mounts = c->rules->keeps_mounts ? ACQUIRE_KEEP_MOUNTS : ACQUIRE_REMOUNT;
    if (manager_acquire(c->rpc->o.manager, &c->spec, ALL_FIELDS, mounts, on_ready, c, &err) < 0)
        fail_acquire(c, &err);
}

/* What an engine makes before it mounts, and clients rely on: the directory that becomes the
 * workspace, if it is one of the host's own, and in it the places of what is mounted there. Number
 * 0 is the former; the others are the extra mounts. NULL: that one needs nothing. */
static char *needed_dir(const struct langbot_call *c, size_t number)
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

static void make_dirs(struct langbot_call *c);

static void on_dir_made(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (json == NULL) /* the backend will say why it cannot do without */
        log_debug(c->id, "make a directory to mount: %s; ignoring", message);
    if (c->cancelled)
        langbot_call_end(c);
    else
        make_dirs(c);
}

/* The rest of them, one after the other. */
static void make_dirs(struct langbot_call *c)
{
    while (c->dirs_made <= c->spec->n_extra_mounts) {
        AUTO_FREE char *dir = needed_dir(c, c->dirs_made++);
        struct err err = {0};
        struct stat st;
        /* We may not be allowed to look; whoever owns it is. */
        if (dir == NULL || stat(dir, &st) == 0)
            continue;
        if (hostdir_ensure(langbot_skills(c), dir, on_dir_made, c, &err) == 0)
            return;
    }
    acquire(c);
}

static void prepared(struct langbot_call *c)
{
    /* A command in a session that is there pays for nothing, and one that is refused leaves
     * nothing. */
    bool kept = c->rules->keeps_mounts && manager_find(c->rpc->o.manager, c->id) != NULL;
    if (c->rpc->o.skills == NULL || kept || manager_has(c->rpc->o.manager, c->spec))
        acquire(c);
    else
        make_dirs(c);
}

void langbot_acquire(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    if (!can_create(c))
        return;
    c->then = then;
    langbot_artifacts_prepare(c, prepared);
}

/* Answers. */

static void langbot_write_session(struct langbot_call *c, struct jw *w, struct session *s)
{
    const struct spec *spec = session_spec(s);
    struct sandbox *sb = session_sandbox(s);
    jw_kstr(w, "session_id", langbot_logical(c, session_id(s)));
    /* One that was made by another than what serves now says so. */
    bool other = sb != NULL &&
                 backend_find(sb->backend, manager_backend(c->rpc->o.manager)->ops->name) == NULL;
    jw_kstr(w, "backend_name", other ? sb->backend->ops->name : langbot_backend_name(c->rpc));
    jw_kstr(w, "backend_session_id",
            sb != NULL && sb->backend->ops->sandbox_name != NULL
                ? sb->backend->ops->sandbox_name(sb)
                : session_id(s));
    front_write_settings(w, spec);
    langbot_write_time(w, "created_at", session_created(s));
    langbot_write_time(w, "last_used_at", session_last_used(s));
    if (c->rules->tells_of_workspace)
        jw_kstr(w, "status", sb == NULL ? "closing" : session_execs(s) > 0 ? "running" : "idle");
}

static void created(struct langbot_call *c)
{
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    langbot_write_session(c, &reply.w, c->session);
    langbot_reply_close(c, &reply);
}

static void create(struct langbot_call *c)
{
    langbot_acquire(c, created);
}

void langbot_create_session(struct langbot_call *c)
{
    langbot_spec_begin(c, create);
}

void langbot_get_session(struct langbot_call *c)
{
    struct langbot_reply reply;
    struct session *s = langbot_need_session_id(c) ? langbot_need_session(c) : NULL;
    if (s == NULL)
        return;
    langbot_reply_open(c, &reply);
    langbot_write_session(c, &reply.w, s);
    langbot_write_processes(c, &reply.w, s);
    langbot_reply_close(c, &reply);
}

void langbot_get_sessions(struct langbot_call *c)
{
    struct manager *m = c->rpc->o.manager;
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    jw_key(&reply.w, "sessions");
    jw_array(&reply.w);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_sandbox(s) == NULL || !str_starts(session_id(s), c->prefix))
            continue;
        jw_object(&reply.w);
        langbot_write_session(c, &reply.w, s);
        jw_object_end(&reply.w);
    }
    jw_array_end(&reply.w);
    langbot_reply_close(c, &reply);
}

static void on_deleted(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    struct langbot_reply reply;
    if (err != NULL) {
        langbot_fail_err(c, err);
        return;
    }
    langbot_reply_open(c, &reply);
    jw_kstr(&reply.w, "deleted", json_str(json_get(c->msg.data, "session_id")));
    langbot_reply_close(c, &reply);
}

void langbot_delete_session(struct langbot_call *c)
{
    struct err err = {0};
    if (!langbot_need_session_id(c))
        return;
    if (manager_delete(c->rpc->o.manager, c->id, on_deleted, c, &err) < 0)
        langbot_fail_err(c, &err);
    else
        langbot_audit_session(c, AUDIT_SESSION_DELETE);
}
