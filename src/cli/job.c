/* SPDX-License-Identifier: Apache-2.0 */

/* Reads what boxd tells of a command, and turns its end into an exit status and words. */

#include "cli/job.h"

#include <signal.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/app.h"
#include "cli/io/text.h"

static const struct {
    const char *name;
    int status; /* -1: the command's own */
} outcomes[OUTCOME_IS_MAX] = {
    [OUTCOME_IS_EXITED] = {"exited", -1},
    [OUTCOME_IS_SIGNALED] = {"signaled", -1},
    [OUTCOME_IS_TIMED_OUT] = {"timed_out", STATUS_TIMED_OUT},
    [OUTCOME_IS_OOM_KILLED] = {"oom_killed", STATUS_SIGNAL + SIGKILL},
    [OUTCOME_IS_QUOTA_EXCEEDED] = {"quota_exceeded", -1},
    [OUTCOME_IS_SESSION_LOST] = {"session_lost", STATUS_FAILED},
};

/* Appends the line for standard error, without "box: " and without newline; nothing where the
 * status says it all. */
static void say_outcome(const struct outcome_report *r, const struct outcome_context *c,
                        struct buf *say)
{
    bool has_error = r->error[0] != '\0';

    switch (r->outcome) {
    case OUTCOME_IS_EXITED:
    case OUTCOME_IS_SIGNALED:
        if (has_error)
            (void)buf_printf(say, "%s: %s", c->program, r->error);
        break;
    case OUTCOME_IS_TIMED_OUT:
        (void)buf_printf(say, "timed out after %lld s",
                         (long long)(c->timeout_sec > 0 ? c->timeout_sec : r->duration_ms / 1000));
        break;
    case OUTCOME_IS_OOM_KILLED:
        (void)buf_puts(say, "killed: out of memory");
        if (c->memory_mb > 0)
            (void)buf_printf(say, " (limit %lld MiB)", (long long)c->memory_mb);
        break;
    case OUTCOME_IS_QUOTA_EXCEEDED:
        (void)buf_puts(say, has_error ? r->error : "the disk of the session is full (see --quota)");
        break;
    case OUTCOME_IS_SESSION_LOST:
        (void)buf_printf(say, "the session was lost while the command ran%s%s",
                         has_error ? ": " : "", r->error);
        break;
    case OUTCOME_IS_MAX:
    default:
        break;
    }
}

int outcome_status(const struct outcome_report *r, const struct outcome_context *context,
                   struct buf *say)
{
    say_outcome(r, context, say);
    if (outcomes[r->outcome].status >= 0)
        return outcomes[r->outcome].status;
    if (r->exit_code >= 0)
        return (int)(r->exit_code & 0xff);
    return r->signal > 0 ? STATUS_SIGNAL + (int)r->signal : STATUS_FAILED;
}

/* A number, or `absent` for null and for no member. */
static bool read_number(const struct json *message, const char *key, int64_t absent, int64_t max,
                        int64_t *ret)
{
    const struct json *v = json_get(message, key);

    *ret = json_type(v) == JSON_INT ? json_int(v) : absent;
    return json_type(v) == JSON_NULL || (json_type(v) == JSON_INT && *ret >= 0 && *ret <= max);
}

/* The message {"type":"exit",...}. ERR_BACKEND for one that makes no sense. */
static int parse_outcome(const struct json *message, struct outcome_report *r, struct err *err)
{
    const char *name = json_str(json_get(message, "outcome"));

    r->outcome = OUTCOME_IS_MAX;
    for (size_t i = 0; i < OUTCOME_IS_MAX; i++)
        if (str_eq(outcomes[i].name, name))
            r->outcome = (enum outcome)i;
    if (r->outcome == OUTCOME_IS_MAX ||
        !read_number(message, "exit_code", -1, 255, &r->exit_code) ||
        !read_number(message, "signal", 0, 64, &r->signal) ||
        !read_number(message, "duration_ms", 0, INT64_MAX, &r->duration_ms))
        return err_set(err, ERR_BACKEND,
                       "boxd reported the end of the command in a way that this "
                       "version does not understand");
    text_cut(r->error, sizeof(r->error), json_str(json_get(message, "error")));
    return 0;
}

static void read_unenforced(const struct json *list, struct job_event *ret)
{
    for (size_t i = 0; i < json_len(list) && ret->n_unenforced < UNENFORCED_MAX; i++) {
        const struct json *one = json_at(list, i);
        text_cut(ret->unenforced[ret->n_unenforced].field, sizeof(ret->unenforced[0].field),
                 json_str(json_get(one, "field")));
        text_cut(ret->unenforced[ret->n_unenforced].why, sizeof(ret->unenforced[0].why),
                 json_str(json_get(one, "reason")));
        ret->n_unenforced++;
    }
}

int job_parse_event(const char *text, size_t len, struct job_event *ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;

    if (json_parse(text, len, &v, err) < 0)
        return err_set(err, ERR_BACKEND, "boxd sent a message that is not JSON");
    const char *type = json_str(json_get(v, "type"));
    *ret = (struct job_event){.type = JOB_EVENT_OTHER};
    if (str_eq(type, "started")) {
        ret->type = JOB_EVENT_STARTED;
        ret->memory_mb = json_int(json_get(v, "memory_mb"));
        ret->temporary =
            json_type(json_get(v, "durable")) == JSON_BOOL && !json_bool(json_get(v, "durable"));
        ret->stdin_window = json_int(json_get(v, "stdin_window"));
        ret->tty = json_bool(json_get(v, "tty"));
        ret->with_stdin = json_bool(json_get(v, "stdin"));
        port_numbers_read(json_get(v, "ports"), ret->host_ports);
        read_unenforced(json_get(v, "unenforced"), ret);
    } else if (str_eq(type, "exit")) {
        ret->type = JOB_EVENT_EXIT;
        return parse_outcome(v, &ret->outcome, err);
    } else if (str_eq(type, "error")) {
        ret->type = JOB_EVENT_ERROR;
        (void)app_refusal(v, &ret->err);
    } else if (str_eq(type, "end")) {
        ret->type = JOB_EVENT_END;
    } else if (str_eq(type, "stdin_ack")) {
        ret->type = JOB_EVENT_STDIN_ACK;
        ret->stdin_acked = json_int(json_get(v, "bytes"));
    }
    return 0;
}
