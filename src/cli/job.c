/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the messages for /v1/exec and parses those that boxd sends. */

#include "cli/job.h"

#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "spec/model.h"
#include "spec/spec.h"

/* Of one command rather than of the session it runs in: these stand beside the session. */
#define OF_COMMAND (FIELD_BIT(SPEC_ENV) | FIELD_BIT(SPEC_WORKDIR) | FIELD_BIT(SPEC_TIMEOUT_SEC))

static const struct {
    int signo;
    const char *name;
} signals[] = {
    {SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}, {SIGKILL, "KILL"},
};

const char *job_signal_name(int signo)
{
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        if (signals[i].signo == signo)
            return signals[i].name;
    return NULL;
}

static void put_mounts(struct jw *w, const struct spec *spec)
{
    jw_array(w);
    for (size_t i = 0; i < spec->n_extra_mounts; i++)
        model_write_json(&mount_spec_model, &spec->extra_mounts[i], w);
    jw_array_end(w);
}

static void put_field(struct jw *w, const struct field *f, const struct spec *spec)
{
    const void *member = (const char *)spec + f->offset;

    jw_key(w, f->name);
    switch (f->kind) {
    case FIELD_INT:
        jw_int(w, *(const int64_t *)member);
        break;
    case FIELD_REAL:
        jw_real(w, *(const double *)member);
        break;
    case FIELD_BOOL:
        jw_bool(w, *(const bool *)member);
        break;
    case FIELD_ENUM:
        jw_str(w, f->names[*(const int *)member]);
        break;
    case FIELD_STR:
        jw_str(w, *(char *const *)member);
        break;
    case FIELD_LIST:
        put_mounts(w, spec);
        break;
    case FIELD_ENV:
    case FIELD_STRV:
    case FIELD_TIME:
    default:
        jw_null(w);
        break;
    }
}

/* Only what was given: the rest is for boxd and its profile to decide. */
void job_put_session(struct jw *w, const struct args *args)
{
    uint64_t fields = args->given & ~OF_COMMAND;

    if (args->verb == VERB_EXEC)
        fields = FIELD_BIT(SPEC_SESSION_ID);
    jw_key(w, "session");
    jw_object(w);
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if ((fields & FIELD_BIT(i)) != 0)
            put_field(w, &spec_model.fields[i], args->spec);
    jw_object_end(w);
    jw_kbool(w, "ephemeral", (fields & FIELD_BIT(SPEC_SESSION_ID)) == 0);
    jw_kbool(w, "create", args->verb != VERB_EXEC);
}

static void put_env(struct jw *w, char *const *env)
{
    jw_key(w, "env");
    jw_object(w);
    for (size_t i = 0; i < strv_len(env); i++) {
        const char *equals = strchr(env[i], '=');
        AUTO_FREE char *name = xstrndup(env[i], (size_t)(equals - env[i]));
        jw_kstr(w, name, equals + 1);
    }
    jw_object_end(w);
}

static void put_command(struct jw *w, const struct args *args)
{
    jw_key(w, "argv");
    jw_array(w);
    for (size_t i = 0; args->command[i] != NULL; i++)
        jw_str(w, args->command[i]);
    jw_array_end(w);
    if ((args->given & FIELD_BIT(SPEC_ENV)) != 0)
        put_env(w, args->spec->env);
    if ((args->given & FIELD_BIT(SPEC_WORKDIR)) != 0)
        jw_kstr(w, "cwd", args->spec->workdir);
    if ((args->given & FIELD_BIT(SPEC_TIMEOUT_SEC)) != 0)
        jw_kint(w, "timeout_sec", args->spec->timeout_sec);
}

int job_write_request(struct buf *out, const struct args *args, const struct job_terms *terms)
{
    struct jw w;

    jw_init(&w, out);
    jw_object(&w);
    job_put_session(&w, args);
    put_command(&w, args);
    jw_kbool(&w, "tty", args->tty);
    if (args->tty) {
        jw_kint(&w, "rows", terms->rows);
        jw_kint(&w, "cols", terms->cols);
    }
    jw_kbool(&w, "stdin", terms->with_stdin);
    if (terms->with_stdin)
        jw_kbool(&w, "stdin_acks", true);
    jw_object_end(&w);
    return jw_end(&w);
}

int job_write_signal(struct buf *out, int signo)
{
    struct jw w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "type", "signal");
    jw_kstr(&w, "signal", job_signal_name(signo));
    jw_object_end(&w);
    return jw_end(&w);
}

int job_write_resize(struct buf *out, uint16_t rows, uint16_t cols)
{
    struct jw w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "type", "resize");
    jw_kint(&w, "rows", rows);
    jw_kint(&w, "cols", cols);
    jw_object_end(&w);
    return jw_end(&w);
}

int job_write_stdin_eof(struct buf *out)
{
    return buf_puts(out, "{\"type\":\"stdin_eof\"}");
}

/* What boxd says. */

static int read_started(const struct json *v, struct job_event *ret, struct err *err)
{
    ret->memory_mb = json_int(json_get(v, "memory_mb"));
    ret->stdin_window = json_int(json_get(v, "stdin_window"));
    return 0;
}

static int read_stdin_ack(const struct json *v, struct job_event *ret, struct err *err)
{
    ret->stdin_acked = json_int(json_get(v, "bytes"));
    return 0;
}

static int read_exit(const struct json *v, struct job_event *ret, struct err *err)
{
    return outcome_parse(v, &ret->outcome, err);
}

static int read_error(const struct json *v, struct job_event *ret, struct err *err)
{
    const char *detail = json_str(json_get(v, "detail"));
    const char *code = json_str(json_get(v, "code"));
    const char *remedy = json_str(json_get(v, "remediation"));

    if (detail == NULL)
        detail = code != NULL ? code : "boxd refused without a reason";
    if (remedy != NULL && remedy[0] != '\0')
        (void)err_set(&ret->err, ERR_BACKEND, "%s; %s", detail, remedy);
    else
        (void)err_set(&ret->err, ERR_BACKEND, "%s", detail);
    return 0;
}

static const struct {
    const char *name;
    enum job_event_type type;
    int (*read)(const struct json *v, struct job_event *ret, struct err *err);
} events[] = {
    {"started", JOB_EVENT_STARTED, read_started},
    {"exit", JOB_EVENT_EXIT, read_exit},
    {"error", JOB_EVENT_ERROR, read_error},
    {"stdin_ack", JOB_EVENT_STDIN_ACK, read_stdin_ack},
};

int job_parse_event(const char *text, size_t len, struct job_event *ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;
    int r = json_parse(text, len, &v, err);

    if (r < 0)
        return err_set(err, ERR_BACKEND, "boxd sent a message that is not JSON");
    const char *type = json_str(json_get(v, "type"));
    memset(ret, 0, sizeof(*ret));
    ret->type = JOB_EVENT_OTHER;
    for (size_t i = 0; i < ARRAY_SIZE(events); i++) {
        if (!str_eq(events[i].name, type))
            continue;
        ret->type = events[i].type;
        return events[i].read(v, ret, err);
    }
    return 0;
}
