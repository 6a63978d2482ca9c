/* SPDX-License-Identifier: Apache-2.0 */

/* The table of tools, and the life of one tool call. */

#include "agent/tools.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "command/policy_exec.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

static const struct tool tools[] = {
    {"exec", "Run a command",
     "Run a shell command in the sandbox. Files under /workspace stay for later calls. Long output "
     "is shortened in the middle; stdout_id and stderr_id name the whole.",
     &tool_exec_params, TOOL_RUNS, false, &tool_exec_ops},
    {"read", "Read a file",
     "Read the lines of a file under /workspace, or list a directory. When "
     "truncated, go on at next_offset. encoding base64 reads bytes of files that are no text.",
     &tool_read_params, TOOL_READS, true, &tool_read_ops},
    {"write", "Write a file",
     "Write a file under /workspace. Missing directories are made; the file is replaced in one "
     "step, or added to with mode append.",
     &tool_write_params, TOOL_WRITES, false, &tool_write_ops},
    {"edit", "Edit a file",
     "Replace text in a file under /workspace. old_string must be exactly what the file holds and "
     "occur once, unless replace_all is set.",
     &tool_edit_params, TOOL_WRITES, false, &tool_edit_ops},
    {"glob", "Find files",
     "Find files and directories under /workspace by a glob pattern such as **/*.py, newest first.",
     &tool_glob_params, TOOL_READS, true, &tool_glob_ops},
    {"grep", "Search in files",
     "Search the lines of files under /workspace for a regular expression. Binary files are "
     "skipped.",
     &tool_grep_params, TOOL_READS, true, &tool_grep_ops},
};

size_t tools_count(void)
{
    return ARRAY_SIZE(tools);
}

const struct tool *tools_at(size_t i)
{
    return i < ARRAY_SIZE(tools) ? &tools[i] : NULL;
}

const struct tool *tools_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (str_eq(tools[i].name, name))
            return &tools[i];
    return NULL;
}

void tool_write(const struct tool *t, struct jw *w)
{
    static const char *const classes[] = {
        [TOOL_READS] = "reads", [TOOL_WRITES] = "writes", [TOOL_RUNS] = "runs"};

    jw_object(w);
    jw_kstr(w, "name", t->name);
    jw_kstr(w, "title", t->title);
    jw_kstr(w, "description", t->description);
    jw_kstr(w, "class", classes[t->kind]);
    jw_key(w, "parameters");
    model_write_schema(t->params, w);
    jw_object_end(w);
}

static void record(const struct tool_call *c, const char *outcome, const char *reason)
{
    char command[FILES_PATH_MAX + 16];
    struct audit_record r = {.event = AUDIT_FILE_WRITE,
                             .who = c->who,
                             .via = c->via,
                             .session = session_id(c->session),
                             .query = c->query_id[0] != '\0' ? c->query_id : NULL,
                             .command = command,
                             .outcome = outcome,
                             .reason = reason};

    (void)snprintf(command, sizeof(command), "%s %s", c->tool->name, c->path);
    r.command_len = strlen(command);
    if (c->service->audit != NULL)
        (void)audit_write(c->service->audit, &r, NULL); /* it has happened; losses are counted */
}

/* The life of a call. */

static void destroy(struct tool_call *c)
{
    loop_defer_stop(&c->defer);
    files_call_free(c->files);
    if (c->own_free != NULL)
        c->own_free(c->own);
    if (c->session != NULL)
        session_release(c->session);
    if (c->args != NULL)
        model_done(c->tool->params, c->args);
    free(c->args);
    free(c->who);
    free(c->query_id);
    buf_done(&c->result.json);
    buf_done(&c->result.text);
    buf_done(&c->text);
    free(c);
}

void tool_call_free(struct tool_call *c)
{
    if (c == NULL)
        return;
    /* It may have happened all the same: whoever leaves in time is not to change files unseen. */
    if (c->tool->kind == TOOL_WRITES && c->files != NULL && !c->ended)
        record(c, "given_up", "whoever asked has gone");
    /* A callback of the manager cannot be taken back: it frees us. */
    if (c->acquiring)
        c->freed = true;
    else
        destroy(c);
}

void tool_finish(struct tool_call *c)
{
    c->ended = true;
    c->done(c->arg, &c->result, NULL);
}

void tool_fail(struct tool_call *c, const struct err *err)
{
    struct err copy = *err;
    struct audit_record r = {.event = AUDIT_DENIED,
                             .who = c->who,
                             .via = c->via,
                             .session = c->session != NULL ? session_id(c->session) : NULL,
                             .query = c->query_id[0] != '\0' ? c->query_id : NULL,
                             .command = c->tool->name,
                             .command_len = strlen(c->tool->name)};

    policy_service_failed(c->service, &copy, c->query_id, &r);
    c->ended = true;
    c->done(c->arg, NULL, &copy);
}

void tool_say(struct tool_call *c, const char *fmt, ...)
{
    struct tool_result *r = &c->result;
    struct jw w;
    va_list ap;

    buf_reset(&r->text);
    buf_reset(&r->json);
    va_start(ap, fmt);
    (void)buf_vprintf(&r->text, fmt, ap);
    va_end(ap);
    r->is_error = true;
    jw_init(&w, &r->json);
    jw_object(&w);
    jw_kbool(&w, "ok", false);
    jw_key(&w, "error");
    jw_strn(&w, buf_str(&r->text), r->text.len);
    jw_object_end(&w);
    tool_finish(c);
}

void tool_say_failure(struct tool_call *c, const struct files_failure *f)
{
    if (f->why == 0)
        tool_fail(c, &f->err);
    else if (f->why == FILES_WHY_ESCAPE)
        tool_say(c, "Path escapes the workspace boundary.");
    else
        tool_say(c, "%s: %s", c->path, f->err.msg);
}

void tool_record(const struct tool_call *c, const struct err *err)
{
    record(c, err == NULL ? "done" : err_code_name(err->code), err != NULL ? err->msg : NULL);
}

/* Paths. */

const char *tool_root(const struct tool_call *c)
{
    return session_spec(c->session)->mount_path;
}

const char *tool_beneath(struct tool_call *c, const char *given)
{
    const char *root = tool_root(c);
    size_t len = strlen(root);

    if (given[0] != '/') {
        (void)str_fmt(c->path, sizeof(c->path), "%s/%s", root, given);
        return given;
    }
    (void)str_copy(c->path, sizeof(c->path), given);
    if (strncmp(given, root, len) == 0 && (given[len] == '/' || given[len] == '\0'))
        return given[len] == '\0' ? "." : given + len;
    tool_say(c, "Path must be under %s.", root);
    return NULL;
}

int tool_ask(struct tool_call *c, struct files_ask *ask, const struct files_events *events,
             struct err *err)
{
    ask->root = tool_root(c);
    if (ask->timeout_ns == 0)
        ask->timeout_ns = FILES_TIMEOUT_NS;
    files_call_free(TAKE_PTR(c->files));
    return files_start(c->session, ask, events, c, &c->files, err);
}

/* Starting. */

static void begin(struct tool_call *c)
{
    struct err err = {0};

    if (c->tool->ops->begin(c, &err) < 0)
        tool_fail(c, &err);
}

static void on_turn(struct loop_defer *d)
{
    begin(container_of(d, struct tool_call, defer));
}

static void on_ready(void *arg, struct session *session, const struct err *err)
{
    struct tool_call *c = arg;

    c->acquiring = false;
    c->session = session;
    if (c->freed)
        destroy(c);
    else if (session == NULL)
        tool_fail(c, err);
    else
        begin(c);
}

/* One that is there and is named. */
static int find_session(struct tool_call *c, const struct tool_where *where, struct err *err)
{
    const struct authz_scope *scope = where->request.scope;
    bool ours = authz_check_session(scope, where->session_id, NULL) == 0;
    struct session *s = ours ? manager_find(c->service->manager, where->session_id) : NULL;

    if (s == NULL)
        return err_missing(err, ERR_THING_SESSION, "session %.80s not found", where->session_id);
    int r = policy_check_use(c->service->policy, scope, session_spec(s), err);
    if (r < 0)
        return r;
    c->session = s;
    session_hold(s);
    return 0;
}

/* That of the query, as exec would have it. */
static int acquire_session(struct tool_call *c, const struct tool_where *where, struct err *err)
{
    static const char nothing[] = "{\"command\":\"\"}";
    AUTO(json) struct json *arguments = NULL;
    struct policy_request request = where->request;
    struct spec *spec = NULL;

    request.tool = c->tool->name;
    int r = json_parse(nothing, sizeof(nothing) - 1, &arguments, err);
    if (r == 0)
        r = policy_tool_spec(c->service->policy, &request, arguments, &spec, NULL, err);
    if (r < 0)
        return r;
    r = manager_acquire(c->service->manager, &spec, POLICY_SESSION_FIELDS, ACQUIRE_REMOUNT,
                        on_ready, c, err);
    spec_free(spec);
    c->acquiring = r == 0;
    return r;
}

static int prepare(struct tool_call *c, const struct tool_where *where,
                   const struct json *arguments, struct err *err)
{
    struct report report = {0};
    int r = authz_check_tool(where->request.scope, c->tool->name, err);

    if (r < 0)
        return r;
    c->args = xcalloc(1, c->tool->params->size);
    model_init(c->tool->params, c->args);
    if (json_type(arguments) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "the arguments of a tool are a JSON object");
    if (model_parse(c->tool->params, arguments, 0, c->args, &report) < 0)
        return report_fail_plain(&report, err);
    r = policy_service_guard(c->service, err);
    if (r == 0 && c->tool->kind != TOOL_READS && c->service->audit != NULL)
        r = audit_ready(c->service->audit, err);
    return r;
}

static int launch(struct tool_call *c, const struct tool_where *where, const struct json *arguments,
                  struct err *err)
{
    int r = where->session_id != NULL ? find_session(c, where, err) : 0;

    if (r < 0)
        return r;
    if (c->tool->ops->start != NULL) {
        c->recorded = true; /* by whoever says no from here on */
        return c->tool->ops->start(c, where, arguments, err);
    }
    if (where->session_id == NULL)
        return acquire_session(c, where, err);
    loop_defer_start(manager_loop(c->service->manager), &c->defer, on_turn);
    return 0;
}

/* What the operator lets an agent see of a command: both streams, each twice, every character
 * escaped. */
static size_t answer_max(const struct tool *t, const struct policy *policy)
{
    size_t shown = (size_t)policy_settings(policy)->output_limit_chars * 2 * 2 * 6;

    return t->kind == TOOL_RUNS && shown > TOOL_ANSWER_MAX / 2 ? shown + TOOL_ANSWER_MAX
                                                               : TOOL_ANSWER_MAX;
}

int tool_call_start(const struct tool *t, const struct tool_where *where, tool_done_fn *done,
                    void *arg, struct tool_call **ret, struct err *err)
{
    struct tool_call *c = xnew(struct tool_call);
    struct err why = {0};

    c->tool = t;
    c->service = where->service;
    c->via = where->via;
    c->who = xstrdup(where->who != NULL ? where->who : authz_name(where->request.scope));
    c->query_id = policy_query_id(where->request.query);
    c->done = done;
    c->output = where->output;
    c->arg = arg;
    size_t most = answer_max(t, where->service->policy);
    buf_init(&c->result.json, most);
    buf_init(&c->result.text, most);
    buf_init(&c->text, most);
    int r = prepare(c, where, where->arguments, &why);
    if (r == 0)
        r = launch(c, where, where->arguments, &why);
    if (r == 0) {
        *ret = c;
        return 0;
    }
    struct audit_record denied = {.event = AUDIT_DENIED,
                                  .who = c->who,
                                  .via = c->via,
                                  .session = where->session_id,
                                  .query = c->query_id[0] != '\0' ? c->query_id : NULL,
                                  .command = t->name,
                                  .command_len = strlen(t->name)};
    if (!c->recorded)
        policy_service_failed(c->service, &why, c->query_id, &denied);
    destroy(c);
    if (err != NULL)
        *err = why;
    return r;
}
