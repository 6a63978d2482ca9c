/* SPDX-License-Identifier: Apache-2.0 */

/* Parses an outcome, writes the message for the user and chooses the exit status. */

#include "cli/io/outcome.h"

#include <signal.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

/* What the command left behind, by its code or its signal. */
static int own_status(const struct outcome_report *r)
{
    if (r->exit_code >= 0)
        return (int)(r->exit_code & 0xff);
    if (r->signal > 0)
        return STATUS_SIGNAL + (int)r->signal;
    return STATUS_FAILED;
}

static int say_exited(const struct outcome_report *r, const struct outcome_context *c,
                      struct buf *say)
{
    return r->error[0] != '\0' ? buf_printf(say, "%s: %s", c->program, r->error) : 0;
}

static int say_timed_out(const struct outcome_report *r, const struct outcome_context *c,
                         struct buf *say)
{
    int64_t sec = c->timeout_sec > 0 ? c->timeout_sec : r->duration_ms / 1000;
    return buf_printf(say, "timed out after %lld s", (long long)sec);
}

static int say_oom(const struct outcome_report *r, const struct outcome_context *c, struct buf *say)
{
    int e = buf_puts(say, "killed: out of memory");

    if (e >= 0 && c->memory_mb > 0)
        e = buf_printf(say, " (limit %lld MiB)", (long long)c->memory_mb);
    return e;
}

static int say_quota(const struct outcome_report *r, const struct outcome_context *c,
                     struct buf *say)
{
    return buf_puts(say, r->error[0] != '\0' ? r->error
                                             : "the disk of the session is full (see --quota-mb)");
}

static int say_lost(const struct outcome_report *r, const struct outcome_context *c,
                    struct buf *say)
{
    int e = buf_puts(say, "the session was lost while the command ran");

    if (e >= 0 && r->error[0] != '\0')
        e = buf_printf(say, ": %s", r->error);
    return e;
}

static const struct {
    const char *name;
    int status; /* -1: the command's own */
    int (*say)(const struct outcome_report *r, const struct outcome_context *c, struct buf *say);
} outcomes[OUTCOME_IS_MAX] = {
    [OUTCOME_IS_EXITED] = {"exited", -1, say_exited},
    [OUTCOME_IS_SIGNALED] = {"signaled", -1, say_exited},
    [OUTCOME_IS_TIMED_OUT] = {"timed_out", STATUS_TIMED_OUT, say_timed_out},
    [OUTCOME_IS_OOM_KILLED] = {"oom_killed", STATUS_SIGNAL + SIGKILL, say_oom},
    [OUTCOME_IS_QUOTA_EXCEEDED] = {"quota_exceeded", -1, say_quota},
    [OUTCOME_IS_SESSION_LOST] = {"session_lost", STATUS_FAILED, say_lost},
};

/* A number, or `absent` for null and for no member. */
static int read_number(const struct json *message, const char *key, int64_t absent, int64_t max,
                       int64_t *ret)
{
    const struct json *v = json_get(message, key);

    *ret = absent;
    if (json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_INT || json_int(v) < 0 || json_int(v) > max)
        return -1;
    *ret = json_int(v);
    return 0;
}

int outcome_parse(const struct json *message, struct outcome_report *ret, struct err *err)
{
    const char *name = json_str(json_get(message, "outcome"));
    const char *error = json_str(json_get(message, "error"));
    struct outcome_report r = {.outcome = OUTCOME_IS_MAX};

    for (size_t i = 0; i < OUTCOME_IS_MAX; i++)
        if (str_eq(outcomes[i].name, name))
            r.outcome = (enum outcome)i;
    if (r.outcome == OUTCOME_IS_MAX ||
        read_number(message, "exit_code", -1, 255, &r.exit_code) < 0 ||
        read_number(message, "signal", 0, 64, &r.signal) < 0 ||
        read_number(message, "duration_ms", 0, INT64_MAX, &r.duration_ms) < 0)
        return err_set(err, ERR_BACKEND,
                       "boxd reported the end of the command in a way that this "
                       "version does not understand");
    if (error != NULL) {
        size_t len = strlen(error);
        len = len < sizeof(r.error) ? len : utf8_boundary(error, sizeof(r.error) - 1);
        memcpy(r.error, error, len);
    }
    *ret = r;
    return 0;
}

int outcome_status(const struct outcome_report *report, const struct outcome_context *context,
                   struct buf *say)
{
    int status = outcomes[report->outcome].status;

    (void)outcomes[report->outcome].say(report, context, say);
    return status >= 0 ? status : own_status(report);
}
