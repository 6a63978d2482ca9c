/* SPDX-License-Identifier: Apache-2.0 */

/* The table of fields of a managed process, and its parser. */

#include "spec/process.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

#define TERMINAL_MAX 4096 /* rows, columns */

/* clang-format off */
static const struct field fields[] = {
    {"process_id", FIELD_STR, 0, offsetof(struct process_spec, process_id),
     .text = PROCESS_DEFAULT_ID, .max = SPEC_ID_MAX,
     .doc = "Name of the process within its session. A running process of that name is replaced."},
    {"command", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, offsetof(struct process_spec, command),
     .max = SPEC_PATH_MAX, .valid = text_not_empty, .rule = "command must not be empty",
     .doc = "Program: a path, or a name to look up in `PATH`."},
    {"args", FIELD_STRV, 0, offsetof(struct process_spec, args),
     .max = SPEC_ARGS_ENTRIES_MAX, .max_bytes = SPEC_ARGS_BYTES_MAX,
     .doc = "Arguments, passed as they are."},
    {"env", FIELD_ENV, 0, offsetof(struct process_spec, env),
     .max = SPEC_ENV_ENTRIES_MAX, .max_bytes = SPEC_ENV_BYTES_MAX,
     .doc = "Environment variables of the process. Values are never shown again."},
    {"cwd", FIELD_STR, FIELD_TRIM, offsetof(struct process_spec, cwd),
     .text = SPEC_DEFAULT_MOUNT, .max = SPEC_PATH_MAX, .valid = text_absolute,
     .rule = "cwd must be an absolute path inside the sandbox",
     .doc = "Directory the process starts in, made when missing."},
    {"memory_mb", FIELD_INT, 0, offsetof(struct process_spec, memory_mb),
     .number = 0, .min = INT64_MIN, .max = SPEC_SIZE_MB_MAX,
     .doc = "Memory of this process, in MiB. 0 or less: that of the session."},
    {"timeout_sec", FIELD_INT, 0, offsetof(struct process_spec, timeout_sec),
     .number = 0, .min = 0, .max = SPEC_TIMEOUT_MAX, .rule = "timeout_sec must not be negative",
     .doc = "Seconds until the process and all it started are killed. 0: never."},
    /* From here on not of the LangBot wire. */
    {"log", FIELD_BOOL, 0, offsetof(struct process_spec, log),
     .doc = "Keep the end of stdout and stderr as a log, read at `…/log`, and never hold the process back. A running "
            "process with a log is not replaced."},
    {"stdin", FIELD_BOOL, 0, offsetof(struct process_spec, with_stdin),
     .doc = "A pipe as stdin, instead of `/dev/null`; with a log. A process without a log always has one."},
    {"tty", FIELD_BOOL, 0, offsetof(struct process_spec, tty), .doc = "A terminal for all three streams; with a log."},
    {"rows", FIELD_INT, 0, offsetof(struct process_spec, rows),
     .number = 24, .min = 0, .max = TERMINAL_MAX, .rule = "rows must be a number from 0 to 4096", .doc = "Of the terminal."},
    {"cols", FIELD_INT, 0, offsetof(struct process_spec, cols),
     .number = 80, .min = 0, .max = TERMINAL_MAX, .rule = "cols must be a number from 0 to 4096", .doc = "Of the terminal."},
};
/* clang-format on */
#define FIELDS_LANGBOT 7

const struct model process_spec_model = {
    .name = "BoxManagedProcessSpec",
    .doc = "A long-lived process of a session, to which clients attach.",
    .fields = fields,
    .n_fields = FIELDS_LANGBOT,
    .size = sizeof(struct process_spec),
};

const struct model process_request_model = {
    .name = "BoxManagedProcessSpec",
    .doc = "A long-lived process of a session.",
    .fields = fields,
    .n_fields = ARRAY_SIZE(fields),
    .size = sizeof(struct process_spec),
};

void process_spec_free(struct process_spec *p)
{
    if (!p)
        return;
    model_done(&process_request_model, p);
    free(p->owner);
    free(p);
}

struct process_spec *process_spec_copy(const struct process_spec *p)
{
    struct process_spec *copy = xnew(struct process_spec);

    *copy = *p;
    copy->process_id = xstrdup(p->process_id);
    copy->command = xstrdup(p->command);
    copy->args = strv_copy(p->args);
    copy->env = strv_copy(p->env);
    copy->cwd = xstrdup(p->cwd);
    copy->owner = p->owner != NULL ? xstrdup(p->owner) : NULL;
    return copy;
}

static int process_parse(const struct model *m, const struct json *object,
                         struct process_spec **ret, struct report *report, struct err *err)
{
    AUTO(process_spec) struct process_spec *p = xnew(struct process_spec);

    model_init(m, p);
    if (model_parse(m, object, 0, p, report) < 0)
        return report_fail(report, err);
    if (p->tty || p->with_stdin)
        p->log = true; /* without one it has a pipe, and no choice */
    *ret = TAKE_PTR(p);
    return 0;
}

int process_spec_parse_report(const struct json *object, struct process_spec **ret,
                              struct report *report, struct err *err)
{
    return process_parse(&process_spec_model, object, ret, report, err);
}

int process_spec_parse(const struct json *object, struct process_spec **ret, struct err *err)
{
    struct report report;
    return process_parse(&process_request_model, object, ret, &report, err);
}
