/* SPDX-License-Identifier: Apache-2.0 */

/* The table of tools, the life of one tool call, and the tool `exec`. */

#include "agent/tools.h"

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/regex.h"
#include "base/str.h"
#include "command/command.h"
#include "command/policy_service.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define CONTENT_MAX (8 << 20)
#define NUMBER_MAX 9007199254740991 /* what every JSON reader can count to */

/* clang-format off */
#define PATH_FIELD(type, member, more, deflt, what) \
    {#member, FIELD_STR, (more) | FIELD_TRIM, .offset = offsetof(struct type, member), .text = (deflt), \
     .max = FILES_PATH_MAX - 1, .valid = text_not_empty, .rule = #member " must not be empty", .doc = (what)}

static const char *const encodings[] = {"text", "base64", NULL};
static const char *const write_modes[] = {"overwrite", "append", NULL};
static const char *const grep_modes[] = {"content", "files_with_matches", "count", NULL};

static const struct field exec_fields[] = {
    {"command", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct exec_args, command), .max = SPEC_CMD_MAX,
     .doc = "Shell command to run."},
    {"workdir", FIELD_STR, FIELD_TRIM, .offset = offsetof(struct exec_args, workdir), .text = SPEC_DEFAULT_MOUNT,
     .max = SPEC_PATH_MAX, .doc = "Working directory inside the sandbox."},
    {"timeout_sec", FIELD_INT, .offset = offsetof(struct exec_args, timeout_sec), .number = 30, .min = 1,
     .max = 86400, .rule = "timeout_sec must be at least 1",
     .doc = "Seconds until the command and all it started are killed. The policy may allow less."},
    {"env", FIELD_ENV, .offset = offsetof(struct exec_args, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX, .doc = "Environment variables for this command."},
    {"description", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct exec_args, description), .max = 4096,
     .doc = "What the command is for, in a few words."},
};

static const struct field read_fields[] = {
    PATH_FIELD(read_args, path, FIELD_REQUIRED, NULL, "File or directory, under /workspace."),
    {"offset", FIELD_INT, .offset = offsetof(struct read_args, offset), .number = 1, .min = 1, .max = NUMBER_MAX,
     .rule = "offset must be at least 1", .doc = "First line to show, counted from 1."},
    {"limit", FIELD_INT, .offset = offsetof(struct read_args, limit), .number = 2000, .min = 1, .max = 10000,
     .rule = "limit must be at least 1", .doc = "Lines to show at most."},
    {"max_bytes", FIELD_INT, .offset = offsetof(struct read_args, max_bytes), .number = TOOL_RESULT_BYTES, .min = 1,
     .max = TOOL_RESULT_BYTES, .rule = "max_bytes must be at least 1", .doc = "Bytes to show at most."},
    {"encoding", FIELD_ENUM, .offset = offsetof(struct read_args, encoding), .names = encodings,
     .doc = "base64 for files that are no text; byte_offset and max_bytes then say which part."},
    {"byte_offset", FIELD_INT, .offset = offsetof(struct read_args, byte_offset), .number = 0, .min = 0,
     .max = NUMBER_MAX, .rule = "byte_offset must not be negative", .doc = "base64: first byte, counted from 0."},
};

static const struct field write_fields[] = {
    PATH_FIELD(write_args, path, FIELD_REQUIRED, NULL, "File, under /workspace. Missing directories are made."),
    {"content", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct write_args, content), .max = CONTENT_MAX,
     .doc = "What the file is to hold."},
    {"encoding", FIELD_ENUM, .offset = offsetof(struct write_args, encoding), .names = encodings,
     .doc = "How content is written here."},
    {"mode", FIELD_ENUM, .offset = offsetof(struct write_args, mode), .names = write_modes,
     .doc = "overwrite replaces the file in one step; append adds to its end."},
};

static const struct field edit_fields[] = {
    PATH_FIELD(edit_args, path, FIELD_REQUIRED, NULL, "File, under /workspace."),
    {"old_string", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct edit_args, old_string), .max = FILES_EDIT_MAX,
     .valid = text_not_empty, .rule = "old_string must not be empty",
     .doc = "Text to replace, exactly as it is in the file. It must occur once, unless replace_all is set."},
    {"new_string", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct edit_args, new_string), .max = FILES_EDIT_MAX,
     .doc = "What takes its place."},
    {"replace_all", FIELD_BOOL, .offset = offsetof(struct edit_args, replace_all),
     .doc = "Replace every occurrence."},
};

static const struct field glob_fields[] = {
    {"pattern", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct glob_args, pattern), .max = FILES_PATH_MAX - 1,
     .valid = text_not_empty, .rule = "pattern must not be empty",
     .doc = "Glob, matched at any depth: *.py, src/**/*.ts, *.{c,h}."},
    PATH_FIELD(glob_args, path, 0, SPEC_DEFAULT_MOUNT, "Directory to search, under /workspace."),
};

static const struct field grep_fields[] = {
    {"pattern", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct grep_args, pattern), .max = REGEX_PATTERN_MAX,
     .valid = text_not_empty, .rule = "pattern must not be empty",
     .doc = "Regular expression, matched against each line. No backreferences, no lookaround."},
    PATH_FIELD(grep_args, path, 0, SPEC_DEFAULT_MOUNT, "File or directory to search, under /workspace."),
    {"include", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct grep_args, include), .max = FILES_PATH_MAX - 1,
     .doc = "Only files that match this glob: *.py."},
    {"ignore_case", FIELD_BOOL, .offset = offsetof(struct grep_args, ignore_case),
     .doc = "Upper and lower case (of ASCII) are the same."},
    {"output_mode", FIELD_ENUM, .offset = offsetof(struct grep_args, mode), .names = grep_modes,
     .doc = "The lines that match, or only the files, or how many lines each file has."},
};

#define PARAMS(tool, title) \
    static const struct model tool_##tool##_params = {.name = (title), .doc = "Arguments of the tool " #tool ".", \
        .fields = tool##_fields, .n_fields = ARRAY_SIZE(tool##_fields), .size = sizeof(struct tool##_args), \
        .closed = true}
/* clang-format on */

PARAMS(exec, "ExecArguments");
PARAMS(read, "ReadArguments");
PARAMS(write, "WriteArguments");
PARAMS(edit, "EditArguments");
PARAMS(glob, "GlobArguments");
PARAMS(grep, "GrepArguments");

/* exec: runs a command by a query or in a named session. */

/* stdout and stderr as one text, or the one that is there. */
static void put_preview(const struct command_result *r, struct buf *out)
{
    const struct buf *o = &r->text[0], *e = &r->text[1];
    bool both = o->len > 0 && e->len > 0;
    if (both)
        (void)buf_puts(out, "stdout:\n");
    (void)buf_append(out, buf_str(o), o->len);
    if (both)
        (void)buf_puts(out, "\n\nstderr:\n");
    (void)buf_append(out, buf_str(e), e->len);
}

static void show_result(struct tool_call *c, const struct command_result *r)
{
    const struct outcome *o = &r->outcome;
    struct tool_result *result = &c->result;
    struct jw w;
    put_preview(r, &c->text);
    jw_init(&w, &result->json);
    jw_object(&w);
    command_write_result(r, &w);
    jw_kstrn(&w, "preview", buf_str(&c->text), c->text.len);
    jw_kbool(&w, "truncated", r->cut[0] || r->cut[1]);
    jw_kstr(&w, "truncated_by", r->cut[0] || r->cut[1] ? "chars" : NULL);
    if (o->remaining > 0) {
        jw_kint(&w, "remaining", o->remaining);
        jw_kstr(&w, "exec_id", o->left_as);
    }
    jw_object_end(&w);
    (void)buf_append(&result->text, buf_str(&c->text), c->text.len);
    if (o->remaining > 0)
        (void)buf_printf(&result->text, "%s[left in the background: %u as exec_id %s]",
                         c->text.len > 0 ? "\n" : "", o->remaining, o->left_as);
    if (o->kind == OUTCOME_EXITED && o->exit_code != 0)
        (void)buf_printf(&result->text, "%s[exit code %d]", c->text.len > 0 ? "\n" : "",
                         o->exit_code);
    else if (o->kind != OUTCOME_EXITED)
        (void)buf_printf(&result->text, "%s[%s]", c->text.len > 0 ? "\n" : "",
                         outcome_name(o->kind));
    result->is_error = o->kind != OUTCOME_EXITED || o->error[0] != '\0';
    tool_finish(c);
}

static void on_ended(void *arg, const struct command_result *result, const struct err *err)
{
    struct tool_call *c = arg;
    if (err != NULL)
        c->done(c->arg, NULL, err); /* it is in the records already */
    else
        show_result(c, result);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct tool_call *c = arg;
    if (c->output != NULL)
        c->output(c->arg, data, len);
}

static int start_command(struct tool_call *c, const struct tool_where *where,
                         const struct json *arguments, struct err *err)
{
    static const struct command_events events = {.output = on_output, .ended = on_ended};
    const struct exec_args *a = c->args;
    const struct command_options options = {
        .session = c->session,
        .run.exec = {.cmd = a->command,
                     .bash = true, /* what models write */
                     .env = a->env,
                     .cwd = a->workdir,
                     .timeout_ns = (uint64_t)a->timeout_sec * NSEC_PER_SEC},
        .arguments = arguments,
        .request = where->request,
        .via = c->via,
        .who = c->who,
        .keep = COMMAND_KEEP_CHARS,
        .keep_rest = true};
    return command_start(c->service, &options, &events, c, &c->command, err);
}

/* The table. */

static const struct tool tools[] = {
    {"exec", "Run a command",
     "Run a shell command in the sandbox. Files under /workspace stay for later calls. Long output "
     "is shortened in the middle; stdout_id and stderr_id name the whole.",
     &tool_exec_params, TOOL_RUNS, false, NULL},
    {"read", "Read a file",
     "Read the lines of a file under /workspace, or list a directory. When "
     "truncated, go on at next_offset. encoding base64 reads bytes of files that are no text.",
     &tool_read_params, TOOL_READS, true, tool_begin_read},
    {"write", "Write a file",
     "Write a file under /workspace. Missing directories are made; the file is replaced in one "
     "step, or added to with mode append.",
     &tool_write_params, TOOL_WRITES, false, tool_begin_write},
    {"edit", "Edit a file",
     "Replace text in a file under /workspace. old_string must be exactly what the file holds and "
     "occur once, unless replace_all is set.",
     &tool_edit_params, TOOL_WRITES, false, tool_begin_edit},
    {"glob", "Find files",
     "Find files and directories under /workspace by a glob pattern such as **/*.py, newest first.",
     &tool_glob_params, TOOL_READS, true, tool_begin_glob},
    {"grep", "Search in files",
     "Search the lines of files under /workspace for a regular expression. Binary files are "
     "skipped.",
     &tool_grep_params, TOOL_READS, true, tool_begin_grep},
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

static struct audit_record record_of(const struct tool_call *c, enum audit_event event,
                                     const char *session, const char *command)
{
    return (struct audit_record){.event = event,
                                 .who = c->who,
                                 .via = c->via,
                                 .session = session,
                                 .query = c->query_id[0] != '\0' ? c->query_id : NULL,
                                 .command = command,
                                 .command_len = strlen(command)};
}

void tool_record(const struct tool_call *c, const char *outcome, const char *reason)
{
    char command[FILES_PATH_MAX + 16];
    (void)snprintf(command, sizeof(command), "%s %s", c->tool->name, c->path);
    struct audit_record r = record_of(c, AUDIT_FILE_WRITE, session_id(c->session), command);
    r.outcome = outcome;
    r.reason = reason;
    if (c->service->audit != NULL)
        (void)audit_write(c->service->audit, &r, NULL); /* it has happened; losses are counted */
}

/* A call that was refused or failed, for the records. */
static void record_denied(const struct tool_call *c, const char *session, const struct err *err)
{
    struct audit_record r = record_of(c, AUDIT_DENIED, session, c->tool->name);
    policy_service_failed(c->service, err, c->query_id, &r);
}

/* The life of a call. */

static void tool_call_destroy(struct tool_call *c)
{
    loop_defer_stop(&c->defer);
    files_call_free(c->files);
    command_cancel(c->command);
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
    /* It may have happened all the same: a client that leaves in time must not change files unseen.
     */
    if (c->tool->kind == TOOL_WRITES && c->files != NULL && !c->ended)
        tool_record(c, "given_up", "the client has gone");
    /* A callback of the manager cannot be taken back: it frees us. */
    if (c->acquiring)
        c->freed = true;
    else
        tool_call_destroy(c);
}

void tool_finish(struct tool_call *c)
{
    assert(!c->ended);
    c->ended = true;
    c->done(c->arg, &c->result, NULL);
}

void tool_fail(struct tool_call *c, const struct err *err)
{
    struct err copy = *err;
    record_denied(c, c->session != NULL ? session_id(c->session) : NULL, &copy);
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
    jw_kstrn(&w, "error", buf_str(&r->text), r->text.len);
    jw_object_end(&w);
    tool_finish(c);
}

/* Starting. */

static void begin_call(struct tool_call *c)
{
    struct err err = {0};
    if (c->tool->begin(c, &err) < 0)
        tool_fail(c, &err);
}

static void on_turn(struct loop_defer *d)
{
    begin_call(container_of(d, struct tool_call, defer));
}

static void on_ready(void *arg, struct session *session, const struct err *err)
{
    struct tool_call *c = arg;
    c->acquiring = false;
    c->session = session;
    if (c->freed)
        tool_call_destroy(c);
    else if (session == NULL)
        tool_fail(c, err);
    else
        begin_call(c);
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
    r = manager_acquire(c->service->manager, &spec, COMMAND_SESSION_FIELDS, ACQUIRE_REMOUNT,
                        on_ready, c, err);
    spec_free(spec);
    c->acquiring = r == 0;
    return r;
}

static int prepare_call(struct tool_call *c, const struct tool_where *where,
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

static int launch_call(struct tool_call *c, const struct tool_where *where,
                       const struct json *arguments, struct err *err)
{
    int r = where->session_id != NULL ? find_session(c, where, err) : 0;
    if (r < 0)
        return r;
    if (c->tool->begin == NULL) {
        c->recorded = true; /* by the part that refuses from here on */
        return start_command(c, where, arguments, err);
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
    int r = prepare_call(c, where, where->arguments, &why);
    if (r == 0)
        r = launch_call(c, where, where->arguments, &why);
    if (r == 0) {
        *ret = c;
        return 0;
    }
    if (!c->recorded)
        record_denied(c, where->session_id, &why);
    tool_call_destroy(c);
    if (err != NULL)
        *err = why;
    return r;
}
