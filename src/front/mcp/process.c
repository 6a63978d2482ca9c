/* SPDX-License-Identifier: Apache-2.0 */

/* MCP tools that start, list and stop managed processes. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "front/mcp/mcp_internal.h"
#include "front/mcp/process.h"
#include "policy/audit/audit.h"
#include "session/manager.h"
#include "session/process.h"
#include "spec/model.h"
#include "spec/process.h"

#define ANSWER_MAX (8U << 20)

void mcp_write_process(struct jw *w, struct process *p)
{
    const struct process_spec *spec = process_spec_of(p);
    AUTO_DONE(buf) struct buf preview = {0};
    struct proc_range range = process_range(p);
    char when[40];

    buf_init(&preview, PROCESS_STDERR_CHARS * 4U + 1U);
    process_stderr_preview(p, &preview);
    jw_kstr(w, "session_id", session_id(process_session(p)));
    jw_kstr(w, "process_id", spec->process_id);
    jw_kstr(w, "status", process_running(p) ? "running" : "exited");
    jw_kstr(w, "command", spec->command);
    jw_key(w, "args");
    jw_array(w);
    for (char **arg = spec->args; arg != NULL && *arg != NULL; arg++)
        jw_str(w, *arg);
    jw_array_end(w);
    clock_format(process_started_at(p), when, sizeof(when));
    jw_kstr(w, "started_at", when);
    jw_key(w, "exit_code");
    if (process_running(p))
        jw_null(w);
    else
        jw_int(w, process_exit_code(p));
    jw_ku64(w, "output_bytes", range.end);
    jw_kstr(w, "stderr_preview", buf_str(&preview));
}

static void reply_process(struct mcp_call *c, struct process *p, const char *what)
{
    AUTO_FREE char *text = xasprintf("Process %s %s.", process_spec_of(p)->process_id, what);
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    mcp_write_process(&w, p);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, text);
}

/* start_process */

static void on_started(void *arg, struct process *p, const struct err *err)
{
    struct mcp_wait *w = arg;
    AUTO_FREE char *session = w->text;
    struct mcp_call *c = mcp_wait_end(w);

    if (c != NULL && p != NULL) {
        quota_guard(c->mcp->front->service, process_session(p));
        reply_process(c, p, process_running(p) ? "runs" : "has ended");
    } else if (c != NULL) {
        struct audit_record record = {
            .event = AUDIT_PROCESS_END, .who = c->place->who, .via = "mcp", .session = session};
        policy_service_failed(c->mcp->front->service, err, NULL, &record);
        mcp_call_tool_err(c, err);
    }
}

/* Before it starts: what cannot be recorded does not, where that is asked for. */
static int record_start(const struct mcp_call *c, const struct session *s,
                        const struct process_spec *spec, struct err *err)
{
    const struct policy_service *service = c->mcp->front->service;
    AUTO_FREE char *args = policy_command_text(spec->args, NULL);
    AUTO_FREE char *command = xasprintf("%s %s", spec->command, args);
    const struct audit_record record = {.event = AUDIT_PROCESS_START,
                                        .who = c->place->who,
                                        .via = "mcp",
                                        .session = session_id(s),
                                        .process = spec->process_id,
                                        .command = command,
                                        .command_len = strlen(command)};
    int r = policy_service_guard(service, err);

    if (r == 0 && service->audit != NULL)
        r = audit_ready(service->audit, err);
    return r == 0 && service->audit != NULL ? audit_write(service->audit, &record, err) : r;
}

static void start_in(struct mcp_call *c, struct session *s)
{
    AUTO(process_spec) struct process_spec *spec = NULL;
    const struct json *arguments = mcp_call_arguments(c);
    struct err err = {0};

    if (front_strict(&process_spec_model, arguments, NULL, &err) < 0 ||
        process_spec_parse(arguments, &spec, &err) < 0 || record_start(c, s, spec, &err) < 0) {
        mcp_call_tool_err(c, &err);
        return;
    }
    spec->owner = front_owner(c->place->scope);
    struct mcp_wait *w = mcp_wait_new(c);
    w->text = xstrdup(session_id(s));
    if (process_start(s, &spec, on_started, w, &err) == 0)
        return;
    free(w->text);
    (void)mcp_wait_end(w);
    mcp_call_tool_err(c, &err);
}

static void start_process(struct mcp_call *c, const struct json *arguments)
{
    mcp_call_session(c, c->session_id, start_in);
}

/* list_processes */

static void list_in(struct mcp_call *c, struct session *s)
{
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "processes");
    jw_array(&w);
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p)) {
        jw_object(&w);
        mcp_write_process(&w, p);
        jw_object_end(&w);
    }
    jw_array_end(&w);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, NULL);
}

static void list_processes(struct mcp_call *c, const struct json *arguments)
{
    struct err err = {0};

    if (json_len(arguments) > 0) {
        (void)err_set(&err, ERR_INVALID, "list_processes takes session_id and nothing else");
        mcp_call_tool_err(c, &err);
        return;
    }
    mcp_call_session(c, c->session_id, list_in);
}

/* stop_process */

static void on_stopped(void *arg, const struct err *err)
{
    struct mcp_call *c = mcp_wait_end(arg);
    AUTO_DONE(buf) struct buf out = {0};
    struct jw w;

    if (c == NULL)
        return;
    if (err != NULL) {
        mcp_call_tool_err(c, err);
        return;
    }
    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kbool(&w, "stopped", true);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, "Stopped.");
}

static void stop_in(struct mcp_call *c, struct session *s)
{
    struct process_args *a = NULL;
    struct err err = {0};
    int r = mcp_process_args(c, &process_id_model, &a, &err);
    struct mcp_wait *w = mcp_wait_new(c);

    if (r == 0)
        r = process_stop(s, a->process_id, on_stopped, w, &err);
    mcp_process_args_free(&process_id_model, a);
    if (r == 0)
        return;
    (void)mcp_wait_end(w);
    mcp_call_tool_err(c, &err);
}

static void stop_process(struct mcp_call *c, const struct json *arguments)
{
    mcp_call_session(c, c->session_id, stop_in);
}

/* clang-format off */
#define PROCESS \
    {"session_id", "string", "Where it runs.", false}, \
    {"process_id", "string", "Its name there.", false}, \
    {"status", "string", "running or exited.", false}, \
    {"command", "string", "The program.", false}, \
    {"args", "array", "Its arguments.", false}, \
    {"started_at", "string", "When it began.", false}, \
    {"exit_code", "integer?", "How it ended: its status, or the negative number of a signal; null while it runs.", false}, \
    {"output_bytes", "integer", "Bytes it has written to standard output.", false}, \
    {"stderr_preview", "string", "The last of what it wrote to standard error.", false}

static const struct mcp_output process_output[] = {PROCESS, {0}};
static const struct mcp_output list_output[] = {{"processes", "array", "In the order they were started.", false}, {0}};
static const struct mcp_output stop_output[] = {{"stopped", "boolean", "It is gone.", false}, {0}};
static const struct model none_model = {.name = "none", .doc = "Nothing more.", .closed = true};

const struct mcp_tool mcp_process_tools[] = {
    {.name = "start_process", .title = "Start a process",
     .description = "Start a program that goes on running, such as a server. A running one of the same process_id is "
                    "replaced. It is not a shell: for one, the command is sh with arguments -c and the text.",
     .params = &process_spec_model, .output = process_output, .scope = "process", .in_session = true, .destructive = true,
     .open_world = true, .start = start_process},
    {.name = "list_processes", .title = "List processes",
     .description = "List the processes that start_process has started, also those that have ended.",
     .params = &none_model, .output = list_output, .scope = "process", .in_session = true, .read_only = true,
     .idempotent = true, .start = list_processes},
    {.name = "read_process_output", .title = "Read the output of a process",
     .description = "Read what a process has written to standard output, from an offset in bytes on. Go on at "
                    "next_offset; what lies before it is then forgotten, which makes room for more.",
     .params = &process_read_model, .output = mcp_read_output, .scope = "process", .in_session = true, .idempotent = true,
     .start = mcp_read_process},
    {.name = "write_stdin", .title = "Write to a process",
     .description = "Write to the standard input of a process. Lines need their newline.",
     .params = &process_write_model, .output = mcp_write_output, .scope = "process", .in_session = true,
     .destructive = true, .open_world = true, .start = mcp_write_stdin},
    {.name = "stop_process", .title = "Stop a process",
     .description = "End a process, and all it started, and forget it.",
     .params = &process_id_model, .output = stop_output, .scope = "process", .in_session = true, .destructive = true,
     .idempotent = true, .start = stop_process},
    {0},
};
/* clang-format on */
