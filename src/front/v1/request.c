/* SPDX-License-Identifier: Apache-2.0 */

/* The table of fields of an exec request, and the JSON of sessions and outcomes in answers. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/execs.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define STDIN_TEXT_MAX (8 << 20)
#define TIMEOUT_MAX 31536000

static bool is_absolute(const char *s)
{
    return s[0] == '/';
}

/* clang-format off */
static const char *const disconnect_names[] = {
    [V1_DISCONNECT_KILL] = "kill", [V1_DISCONNECT_KEEP] = "keep", NULL};

static const struct field exec_fields[] = {
    {"argv", FIELD_STRV, .offset = offsetof(struct v1_exec, argv), .max = SPEC_ARGS_ENTRIES_MAX,
     .max_bytes = SPEC_ARGS_BYTES_MAX, .doc = "Program and arguments; or use cmd."},
    {"cmd", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, cmd), .max = SPEC_CMD_MAX,
     .doc = "A shell command; or use argv."},
    {"env", FIELD_ENV, .offset = offsetof(struct v1_exec, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX, .doc = "Environment, on top of the session's."},
    {"cwd", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, cwd), .max = SPEC_PATH_MAX,
     .valid = is_absolute, .rule = "cwd must be an absolute path inside the sandbox",
     .doc = "Working directory; default: that of the session."},
    {"stdin_text", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, stdin_text), .max = STDIN_TEXT_MAX,
     .doc = "What the program reads; default: nothing (/dev/null)."},
    {"timeout_sec", FIELD_REAL, .offset = offsetof(struct v1_exec, timeout_sec), .real = TIMEOUT_MAX,
     .max = TIMEOUT_MAX, .rule = "timeout_sec must be greater than 0", .doc = "Seconds until the whole tree is killed."},
    {"tty", FIELD_BOOL, .offset = offsetof(struct v1_exec, tty), .doc = "Give it a terminal (streams only)."},
    {"stdin", FIELD_BOOL, .offset = offsetof(struct v1_exec, with_stdin), .doc = "Keep stdin open (streams only)."},
    {"stdin_acks", FIELD_BOOL, .offset = offsetof(struct v1_exec, stdin_acks),
     .doc = "Tell how much of stdin the program has taken (streams only)."},
    {"cleanup", FIELD_BOOL, .offset = offsetof(struct v1_exec, cleanup),
     .doc = "It only makes room: it may start although the workspace is over its quota."},
    {"rows", FIELD_INT, .offset = offsetof(struct v1_exec, rows), .number = 24, .min = 1, .max = 4096,
     .rule = "rows must be at least 1", .doc = "Height of the terminal."},
    {"cols", FIELD_INT, .offset = offsetof(struct v1_exec, cols), .number = 80, .min = 1, .max = 4096,
     .rule = "cols must be at least 1", .doc = "Width of the terminal."},
    {"capture_bytes", FIELD_INT, .offset = offsetof(struct v1_exec, capture_bytes), .number = RUN_CAPTURE_DEFAULT,
     .min = 0, .max = RUN_CAPTURE_MAX, .rule = "capture_bytes must not be negative",
     .doc = "Bytes kept: of each stream in a whole answer, of both for readers who come back to a stream. The rest is "
            "counted."},
    {"exec_id", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, exec_id), .max = EXEC_ID_MAX,
     .valid = id_valid,
     .rule = "exec_id must be 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit",
     .doc = "Name of a stream, to come back to it; default: a random one (streams only)."},
    {"on_disconnect", FIELD_ENUM, .offset = offsetof(struct v1_exec, on_disconnect), .names = disconnect_names,
     .doc = "What becomes of the command when its last reader is gone (streams only)."},
    {"detach", FIELD_BOOL, .offset = offsetof(struct v1_exec, detach),
     .doc = "Answer at once; the command goes on by itself, as with on_disconnect keep."},
};
/* clang-format on */

const struct model v1_exec_model = {
    .name = "Exec",
    .doc = "One command in a session.",
    .fields = exec_fields,
    .n_fields = ARRAY_SIZE(exec_fields),
    .size = sizeof(struct v1_exec),
};

int v1_exec_parse(const struct json *object, const char *const *more, struct v1_exec *ret,
                  struct err *err)
{
    struct report report = {0};
    *ret = (struct v1_exec){0};
    int r = front_strict(&v1_exec_model, object, more, err);
    if (r < 0)
        return r;
    model_init(&v1_exec_model, ret);
    if (model_parse(&v1_exec_model, object, 0, ret, &report) < 0)
        r = report_fail_plain(&report, err);
    bool has_argv = strv_len(ret->argv) > 0, has_cmd = ret->cmd != NULL;
    if (r == 0 && has_argv == has_cmd)
        r = err_set(err, ERR_INVALID, "give either argv or cmd");
    if (r == 0 && has_argv && ret->argv[0][0] == '\0')
        r = err_set(err, ERR_INVALID, "argv[0] must not be empty");
    if (r < 0)
        v1_exec_done(ret);
    return r;
}

void v1_exec_done(struct v1_exec *e)
{
    model_done(&v1_exec_model, e);
    *e = (struct v1_exec){0};
}

void v1_exec_request(const struct v1_exec *e, struct run_options *ret)
{
    uint64_t timeout_ns = e->timeout_sec < TIMEOUT_MAX ? (uint64_t)(e->timeout_sec * 1e9) : 0;
    if (e->timeout_sec * 1e9 < 1.0)
        timeout_ns = 1; /* 0 would be none at all */
    *ret = (struct run_options){
        .exec = {.argv = strv_len(e->argv) > 0 ? e->argv : NULL,
                 .cmd = e->cmd,
                 .env = e->env,
                 .cwd = e->cwd,
                 .timeout_ns = timeout_ns,
                 .with_stdin = e->with_stdin || e->stdin_text != NULL,
                 .tty = e->tty,
                 .rows = (uint16_t)e->rows,
                 .cols = (uint16_t)e->cols},
        .capture = (size_t)e->capture_bytes,
    };
}

/* Where content is said to be of a digest that nobody has verified. */
static void write_unverified(struct jw *w, const struct spec *spec)
{
    bool any = false;
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        if (m->content_digest == NULL || m->mode == MOUNT_NONE)
            continue;
        if (!any) {
            jw_key(w, "content_unverified");
            jw_array(w);
        }
        any = true;
        jw_str(w, m->mount_path);
    }
    if (any)
        jw_array_end(w);
}

/* What was verified, where it is. */
static void write_artifacts(struct jw *w, const struct spec *spec)
{
    if (spec->own.artifacts == NULL)
        return;
    jw_key(w, "artifacts");
    jw_array(w);
    for (char *const *d = spec->own.artifact_digests; d != NULL && *d != NULL; d++)
        jw_str(w, *d);
    jw_array_end(w);
}

/* What the daemon itself says of a session: one of a chat has an end and labels. */
static void write_own(struct jw *w, const struct spec *spec)
{
    char when[40];
    if (spec->own.expires_ns == 0)
        return;
    clock_format(spec->own.expires_ns, when, sizeof(when));
    jw_kstr(w, "expires_at", when);
    jw_key(w, "labels");
    jw_object(w);
    for (char *const *l = spec->own.labels; l != NULL && *l != NULL; l++) {
        AUTO_FREE char *key = xstrndup(*l, strcspn(*l, "="));
        jw_kstr(w, key, *l + strlen(key) + 1);
    }
    jw_object_end(w);
}

void v1_write_session(struct jw *w, const struct session *s)
{
    char when[40];
    const struct spec *spec = session_spec(s);
    jw_kstr(w, "session_id", spec->session_id);
    const struct sandbox *sb = session_sandbox(s);
    const struct backend *b = sb != NULL ? sb->backend : manager_backend(session_manager(s));
    jw_kstr(w, "backend_name", b->ops->name);
    jw_kstr(w, "state", session_state_name(session_state(s)));
    front_write_settings(w, spec);
    clock_format(session_created(s), when, sizeof(when));
    jw_kstr(w, "created_at", when);
    clock_format(session_last_used(s), when, sizeof(when));
    jw_kstr(w, "last_used_at", when);
    jw_kint(w, "execs", session_execs(s));
    write_own(w, spec);
    write_unverified(w, spec);
    write_artifacts(w, spec);
}

void v1_write_outcome(struct jw *w, const struct run_result *r)
{
    const struct outcome *o = &r->outcome;
    bool has_code = o->kind == OUTCOME_EXITED || o->kind == OUTCOME_QUOTA_EXCEEDED;
    jw_kstr(w, "outcome", outcome_name(o->kind));
    if (has_code)
        jw_kint(w, "exit_code", o->exit_code);
    else
        jw_knull(w, "exit_code");
    if (o->kind == OUTCOME_SIGNALED)
        jw_kint(w, "signal", o->signo);
    else
        jw_knull(w, "signal");
    jw_kstr(w, "error", o->error[0] != '\0' ? o->error : NULL);
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_ku64(w, "cpu_ms", o->cpu_ns / NSEC_PER_MSEC);
    jw_ku64(w, "max_rss_kb", o->max_rss_kb);
    jw_kint(w, "remaining", o->remaining);
    jw_ku64(w, "stdout_bytes", r->produced[EXEC_STDOUT]);
    jw_ku64(w, "stderr_bytes", r->produced[EXEC_STDERR]);
}
