/* SPDX-License-Identifier: Apache-2.0 */

/* Actions that create, show and delete sessions, and that start, show and stop their managed
 * processes. */

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/policy_service.h"
#include "front/common/front.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "session/manager.h"
#include "session/process.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

/* Managed processes. */

#define PREVIEW_MAX (PROCESS_STDERR_CHARS * 4U)

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names only: what a variable holds may be a secret. */
static void write_env_keys(struct jw *w, char *const *env)
{
    AUTO_STRV char **names = NULL;
    for (; env != NULL && *env != NULL; env++)
        strv_push(&names, xstrndup(*env, strcspn(*env, "=")));
    if (names != NULL)
        qsort(names, strv_len(names), sizeof(*names), by_name);
    jw_karray(w, "env_keys");
    for (char **name = names; name != NULL && *name != NULL; name++)
        jw_str(w, *name);
    jw_array_end(w);
}

static void write_process(const struct langbot_call *c, struct jw *w, struct process *p)
{
    AUTO_DONE(buf) struct buf preview = BUF_INIT(PREVIEW_MAX);
    const struct process_spec *spec = process_spec_of(p);
    bool running = process_running(p);
    front_write_process(w, p, tenant_logical(c->prefix, session_id(process_session(p))));
    jw_kstr(w, "cwd", spec->cwd);
    write_env_keys(w, spec->env);
    jw_kbool(w, "attached", process_attached(p));
    langbot_write_time(w, "started_at", process_started_at(p), "Z");
    if (running) {
        jw_knull(w, "exited_at");
        jw_knull(w, "exit_code");
    } else {
        langbot_write_time(w, "exited_at", process_exited_at(p), "Z");
        jw_kint(w, "exit_code", process_exit_code(p));
    }
    process_stderr_preview(p, &preview);
    jw_kstrn(w, "stderr_preview", buf_str(&preview), preview.len);
}

static void write_processes(struct langbot_call *c, struct jw *w, struct session *s)
{
    struct process *p = process_next(s, NULL), *main = process_find(s, PROCESS_DEFAULT_ID);
    if (p == NULL)
        return;
    jw_kobject(w, "managed_processes");
    for (; p != NULL; p = process_next(s, p)) {
        jw_kobject(w, process_spec_of(p)->process_id);
        write_process(c, w, p);
        jw_object_end(w);
    }
    jw_object_end(w);
    if (main == NULL)
        return;
    jw_kobject(w, "managed_process");
    write_process(c, w, main);
    jw_object_end(w);
}

size_t langbot_count_processes(struct langbot *r, const char *prefix)
{
    struct manager *m = r->o.manager;
    size_t n = 0;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!str_starts(session_id(s), prefix))
            continue;
        for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
            n += process_running(p);
    }
    return n;
}

static void reply_process(struct langbot_call *c, struct process *p)
{
    write_process(c, langbot_reply_open(c), p);
    langbot_reply_close(c);
}

/* ERR_LIMIT where nothing may happen that cannot be recorded. */
static int audit_process(const struct langbot_call *c, const struct process_spec *spec,
                         struct err *err)
{
    struct audit *audit = c->rpc->o.service->audit;
    AUTO_FREE char *args = policy_command_text(spec->args, NULL);
    AUTO_FREE char *command = xasprintf("%s %s", spec->command, args);
    const struct audit_record record = {.event = AUDIT_PROCESS_START,
                                        .who = langbot_who(c),
                                        .via = "rpc",
                                        .session = c->id,
                                        .process = spec->process_id,
                                        .command = command,
                                        .command_len = strlen(command)};
    int r = audit != NULL ? audit_ready(audit, err) : 0;
    return r < 0 || audit == NULL ? r : audit_write(audit, &record, err);
}

static void on_started(void *arg, struct process *p, const struct err *err)
{
    struct langbot_call *c = arg;
    if (p != NULL) {
        reply_process(c, p);
        return;
    }
    langbot_audit_failed(c, AUDIT_PROCESS_END, err);
    if (err->code == ERR_CONFLICT || err->code == ERR_STATE)
        langbot_fail(c, LANGBOT_PROCESS_CONFLICT, "%s", err->msg);
    else
        langbot_fail_err(c, err);
}

static void start_process(struct langbot_call *c)
{
    AUTO(process_spec) struct process_spec *spec = NULL;
    const struct json *wanted = json_get(c->msg.data, "spec");
    struct report report = {0};
    struct err err = {0};
    if (!langbot_need_session_id(c))
        return;
    if (wanted == NULL) {
        langbot_fail(c, LANGBOT_KEY_ERROR, "'spec'");
        return;
    }
    if (process_spec_parse_report(wanted, &spec, &report, &err) < 0) {
        langbot_fail_report(c, &report, process_spec_model.name);
        return;
    }
    if (admission_enforced(c->rpc->admission) &&
        langbot_count_processes(c->rpc, c->prefix) >= (size_t)c->grant.max_managed_processes) {
        langbot_fail(c, LANGBOT_ADMISSION,
                     "Sandbox admission grant does not permit managed processes");
        return;
    }
    struct session *s = langbot_need_session(c);
    if (s == NULL)
        return;
    if (audit_process(c, spec, &err) < 0) {
        langbot_audit_failed(c, AUDIT_DENIED, &err);
        langbot_fail(c, LANGBOT_ERROR, "%s", err.msg);
    } else if (process_start(s, &spec, on_started, c, &err) < 0) {
        on_started(c, NULL, &err);
    }
}

/* The member process_id. NULL: the call has failed. */
static const char *need_process_id(struct langbot_call *c)
{
    const struct json *v = json_get(c->msg.data, "process_id");
    const char *text = v == NULL ? PROCESS_DEFAULT_ID : json_str(v);
    if (text != NULL && (v == NULL || strlen(text) == json_str_len(v)))
        return text;
    langbot_fail(c, LANGBOT_VALUE_ERROR, "process_id must be a string");
    return NULL;
}

/* The process that session_id and process_id name. NULL: the call has failed. */
static struct process *need_process(struct langbot_call *c)
{
    const char *id = langbot_need_session_id(c) ? need_process_id(c) : NULL;
    struct session *s = id != NULL ? langbot_need_session(c) : NULL;
    struct process *p = s != NULL ? process_find(s, id) : NULL;
    if (s != NULL && p == NULL)
        langbot_fail(c, LANGBOT_PROCESS_NOT_FOUND,
                     "session %s has no managed process with process_id=%s", c->id, id);
    return p;
}

static void get_process(struct langbot_call *c)
{
    struct process *p = need_process(c);
    if (p != NULL)
        reply_process(c, p);
}

static void on_stopped(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    if (err != NULL) {
        langbot_fail(c, LANGBOT_ERROR, "%s", err->msg);
        return;
    }
    jw_kstr(langbot_reply_open(c), "stopped", need_process_id(c));
    langbot_reply_close(c);
}

static void stop_process(struct langbot_call *c)
{
    struct process *p = need_process(c);
    struct err err = {0};
    if (p != NULL &&
        process_stop(process_session(p), process_spec_of(p)->process_id, on_stopped, c, &err) < 0)
        on_stopped(c, &err);
}

/* Sessions. */

static void write_session(struct langbot_call *c, struct jw *w, struct session *s)
{
    const struct spec *spec = session_spec(s);
    struct sandbox *sb = session_sandbox(s);
    jw_kstr(w, "session_id", tenant_logical(c->prefix, session_id(s)));
    /* A session names the backend that made it, where that is another than the one in use. */
    bool other = sb != NULL &&
                 backend_find(sb->backend, manager_backend(c->rpc->o.manager)->ops->name) == NULL;
    jw_kstr(w, "backend_name",
            other ? sb->backend->ops->name : readiness_backend(c->rpc->readiness));
    jw_kstr(w, "backend_session_id",
            sb != NULL && sb->backend->ops->sandbox_name != NULL
                ? sb->backend->ops->sandbox_name(sb)
                : session_id(s));
    front_write_settings(w, spec);
    langbot_write_time(w, "created_at", session_created(s), "Z");
    langbot_write_time(w, "last_used_at", session_last_used(s), "Z");
    if (c->rules->tells_of_workspace)
        jw_kstr(w, "status", sb == NULL ? "closing" : session_execs(s) > 0 ? "running" : "idle");
}

static void answer_created(struct langbot_call *c)
{
    write_session(c, langbot_reply_open(c), container_of(c, struct langbot_acquire, call)->session);
    langbot_reply_close(c);
}

static void acquire_created(struct langbot_call *c)
{
    langbot_acquire(c, answer_created);
}

static void create_session(struct langbot_call *c)
{
    langbot_spec_begin(c, acquire_created);
}

static void get_session(struct langbot_call *c)
{
    struct session *s = langbot_need_session_id(c) ? langbot_need_session(c) : NULL;
    if (s == NULL)
        return;
    struct jw *w = langbot_reply_open(c);
    write_session(c, w, s);
    write_processes(c, w, s);
    langbot_reply_close(c);
}

static void get_sessions(struct langbot_call *c)
{
    struct manager *m = c->rpc->o.manager;
    struct jw *w = langbot_reply_open(c);
    jw_karray(w, "sessions");
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_sandbox(s) == NULL || !str_starts(session_id(s), c->prefix) ||
            !langbot_owns(c, s))
            continue;
        jw_object(w);
        write_session(c, w, s);
        jw_object_end(w);
    }
    jw_array_end(w);
    langbot_reply_close(c);
}

static void on_deleted(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    if (err != NULL) {
        langbot_fail_err(c, err);
        return;
    }
    jw_kstr(langbot_reply_open(c), "deleted", json_str(json_get(c->msg.data, "session_id")));
    langbot_reply_close(c);
}

static void delete_session(struct langbot_call *c)
{
    struct err err = {0};
    if (!langbot_need_session_id(c))
        return;
    const struct session *s = manager_find(c->rpc->o.manager, c->id);
    if (s != NULL && !langbot_may_use(c, s))
        return;
    if (manager_delete(c->rpc->o.manager, c->id, on_deleted, c, &err) < 0)
        langbot_fail_err(c, &err);
    else
        langbot_audit_session(c, AUDIT_SESSION_DELETE);
}

static const struct langbot_call_type create_type = {.size = sizeof(struct langbot_acquire),
                                                     .moves = langbot_acquire_moves,
                                                     .done = langbot_acquire_done};

const struct langbot_action langbot_session_actions[] = {
    {"box_create_session", LANGBOT_SANDBOX, LANGBOT_SPEC, create_session, &create_type},
    {"box_get_session", LANGBOT_SANDBOX, 0, get_session},
    {"box_get_sessions", LANGBOT_SANDBOX, 0, get_sessions},
    {"box_delete_session", LANGBOT_SANDBOX, 0, delete_session},
    {"box_start_managed_process", LANGBOT_SANDBOX, 0, start_process},
    {"box_get_managed_process", LANGBOT_SANDBOX, 0, get_process},
    {"box_stop_managed_process", LANGBOT_SANDBOX, 0, stop_process},
    {0},
};
