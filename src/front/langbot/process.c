/* SPDX-License-Identifier: Apache-2.0 */

/* Actions that start, show and stop managed processes. */

#include "session/process.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "front/langbot/langbot_internal.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/process.h"

#define PREVIEW_MAX (PROCESS_STDERR_CHARS * 4U)

static int compare(const void *a, const void *b)
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
        qsort(names, strv_len(names), sizeof(*names), compare);
    jw_key(w, "env_keys");
    jw_array(w);
    for (char **name = names; name != NULL && *name != NULL; name++)
        jw_str(w, *name);
    jw_array_end(w);
}

static void write_process(const struct langbot_call *c, struct jw *w, struct process *p)
{
    AUTO_DONE(buf) struct buf preview;
    const struct process_spec *spec = process_spec_of(p);
    bool running = process_running(p);
    buf_init(&preview, PREVIEW_MAX);
    jw_kstr(w, "session_id", langbot_logical(c, session_id(process_session(p))));
    jw_kstr(w, "process_id", spec->process_id);
    jw_kstr(w, "status", running ? "running" : "exited");
    jw_kstr(w, "command", spec->command);
    jw_key(w, "args");
    jw_array(w);
    for (char **arg = spec->args; arg != NULL && *arg != NULL; arg++)
        jw_str(w, *arg);
    jw_array_end(w);
    jw_kstr(w, "cwd", spec->cwd);
    write_env_keys(w, spec->env);
    jw_kbool(w, "attached", process_attached(p));
    langbot_write_time(w, "started_at", process_started_at(p));
    if (running)
        jw_knull(w, "exited_at");
    else
        langbot_write_time(w, "exited_at", process_exited_at(p));
    if (running)
        jw_knull(w, "exit_code");
    else
        jw_kint(w, "exit_code", process_exit_code(p));
    process_stderr_preview(p, &preview);
    jw_key(w, "stderr_preview");
    jw_strn(w, buf_str(&preview), preview.len);
}

void langbot_write_processes(struct langbot_call *c, struct jw *w, struct session *s)
{
    struct process *p = process_next(s, NULL), *main = process_find(s, PROCESS_DEFAULT_ID);
    if (p == NULL)
        return;
    jw_key(w, "managed_processes");
    jw_object(w);
    for (; p != NULL; p = process_next(s, p)) {
        jw_key(w, process_spec_of(p)->process_id);
        jw_object(w);
        write_process(c, w, p);
        jw_object_end(w);
    }
    jw_object_end(w);
    if (main == NULL)
        return;
    jw_key(w, "managed_process");
    jw_object(w);
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
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    write_process(c, &reply.w, p);
    langbot_reply_close(c, &reply);
}

static void on_started(void *arg, struct process *p, const struct err *err)
{
    struct langbot_call *c = arg;
    if (p == NULL)
        langbot_audit_failed(c, AUDIT_PROCESS_END, err);
    if (p != NULL)
        reply_process(c, p);
    else if (err->code == ERR_CONFLICT || err->code == ERR_STATE)
        langbot_fail(c, LANGBOT_PROCESS_CONFLICT, "%s", err->msg);
    else
        langbot_fail_err(c, err);
}

void langbot_start_process(struct langbot_call *c)
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
    if (langbot_audit_process(c, spec, &err) < 0) {
        langbot_audit_failed(c, AUDIT_DENIED, &err);
        langbot_fail(c, LANGBOT_ERROR, "%s", err.msg);
    } else if (process_start(s, &spec, on_started, c, &err) < 0) {
        on_started(c, NULL, &err);
    }
}

/* c->process_id; false: the call has failed. */
static bool need_process_id(struct langbot_call *c)
{
    const struct json *v = json_get(c->msg.data, "process_id");
    const char *text = v == NULL ? PROCESS_DEFAULT_ID : json_str(v);
    if (text == NULL || (v != NULL && strlen(text) != json_str_len(v))) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "process_id must be a string");
        return false;
    }
    c->process_id = xstrdup(text);
    return true;
}

static void fail_not_found(struct langbot_call *c)
{
    langbot_fail(c, LANGBOT_PROCESS_NOT_FOUND,
                 "session %s has no managed process with process_id=%s", c->id, c->process_id);
}

void langbot_get_process(struct langbot_call *c)
{
    if (!langbot_need_session_id(c) || !need_process_id(c))
        return;
    struct session *s = langbot_need_session(c);
    if (s == NULL)
        return;
    struct process *p = process_find(s, c->process_id);
    if (p == NULL)
        fail_not_found(c);
    else
        reply_process(c, p);
}

static void on_stopped(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    struct langbot_reply reply;
    if (err != NULL) {
        langbot_fail(c, LANGBOT_ERROR, "%s", err->msg);
        return;
    }
    langbot_reply_open(c, &reply);
    jw_kstr(&reply.w, "stopped", c->process_id);
    langbot_reply_close(c, &reply);
}

void langbot_stop_process(struct langbot_call *c)
{
    struct err err = {0};
    if (!langbot_need_session_id(c) || !need_process_id(c))
        return;
    struct session *s = langbot_need_session(c);
    if (s == NULL)
        return;
    if (process_find(s, c->process_id) == NULL)
        fail_not_found(c);
    else if (process_stop(s, c->process_id, on_stopped, c, &err) < 0)
        on_stopped(c, &err);
}
