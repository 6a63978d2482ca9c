/* SPDX-License-Identifier: Apache-2.0 */

/* `box run -d` and `box exec -d` start a command that goes on without us; `box kill` sends one a
 * signal. The others that come back to it are in exec.c. */

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "cli/io/tty.h"
#include "cli/port.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

#define REQUEST_MAX (24U << 20)
#define ANSWER_MAX (1U << 20)
#define ID_LEN 8 /* of what we choose */

/* The members of a process. Without -i it reads nothing. */
static void write_process(struct jw *w, const struct args *args)
{
    uint16_t rows, cols;

    jw_kstr(w, "command", args->command[0]);
    jw_karray(w, "args");
    for (size_t i = 1; args->command[i] != NULL; i++)
        jw_str(w, args->command[i]);
    jw_array_end(w);
    if (args_given(args, SPEC_ENV))
        model_write_field(&spec_model.fields[SPEC_ENV], args->spec, w);
    if (args_given(args, SPEC_WORKDIR))
        jw_kstr(w, "cwd", args->spec->workdir);
    if (args_given(args, SPEC_TIMEOUT_SEC))
        jw_kint(w, "timeout_sec", args->spec->timeout_sec);
    jw_kbool(w, "log", true);
    jw_kbool(w, "stdin", args->interactive);
    jw_kbool(w, "tty", args->tty);
    if (args->tty) {
        tty_size(&rows, &cols);
        jw_kint(w, "rows", rows);
        jw_kint(w, "cols", cols);
    }
}

static int post(struct app *app, const char *target, const struct buf *body, struct json **ret,
                struct err *err)
{
    AUTO_DONE(buf) struct buf answer = BUF_INIT(ANSWER_MAX);
    const struct app_request req = {.method = "POST",
                                    .target = target,
                                    .type = "application/json",
                                    .body = body->data,
                                    .body_len = body->len};
    int r = app_send(app, &req, &answer, err);

    if (r >= 0 && ret != NULL)
        r = json_parse(buf_str(&answer), answer.len, ret, err);
    return r;
}

static int detach_exec(struct app *app, const struct args *args, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(REQUEST_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes", args->names[0]);
    struct jw w = JW_INIT(&body);

    jw_object(&w);
    jw_kstr(&w, "process_id", id);
    write_process(&w, args);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_INVALID, "the command is too large");
    return post(app, target, &body, NULL, err);
}

/* A session that nobody named is kept, too: its name is what we print. */
static int detach_run(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(REQUEST_MAX);
    AUTO(json) struct json *answer = NULL;
    uint16_t host_ports[PORT_NUMBERS_MAX];
    struct jw w = JW_INIT(&body);

    jw_object(&w);
    args_put_fields(args, &w);
    jw_kbool(&w, "durable", !args->temporary && !args->remove);
    port_args_write(args, &w);
    jw_kobject(&w, "start");
    write_process(&w, args);
    jw_object_end(&w);
    if (args->restart != NULL)
        jw_kstr(&w, "restart", args->restart);
    if (args->remove)
        jw_kbool(&w, "remove", true);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_INVALID, "the command is too large");
    int r = post(app, "/v1/sessions", &body, &answer, err);
    if (r < 0)
        return r;
    if (!args->temporary && !args->remove && !json_bool(json_get(answer, "durable")))
        text_say("session '%s' is not kept: its backend cannot keep it; --temporary says that this "
                 "is fine",
                 args->spec->session_id);
    const struct json *list = json_get(answer, "unenforced");
    for (size_t i = 0; i < json_len(list); i++) {
        const char *field = json_str(json_get(json_at(list, i), "field"));
        for (unsigned f = 0; f < SPEC_FIELD_MAX; f++)
            if (args_given(args, f) && str_eq(spec_model.fields[f].name, field))
                text_say("%s is not enforced: %s", field,
                         json_str(json_get(json_at(list, i), "reason")));
    }
    port_numbers_read(json_get(answer, "ports"), host_ports);
    port_args_tell(args, host_ports);
    return 0;
}

static int print_line(const char *text, struct err *err)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(ANSWER_MAX);

    (void)buf_printf(&out, "%s\n", text);
    return text_print(&out, err);
}

int verb_detach(struct app *app, const struct args *args, struct err *err)
{
    const bool run = args->verb == VERB_RUN;
    char id[17];

    id_random(id);
    id[ID_LEN] = '\0';
    int r = port_args_check(args, err);
    if (r >= 0 && args->remove && args->restart != NULL && !str_eq(args->restart, "no"))
        r = err_set(err, ERR_INVALID,
                    "--rm and --restart exclude each other; leave out one of them");
    if (r >= 0)
        r = app_connect(app, run ? DAEMON_KEPT : DAEMON_RUNNING, err);
    if (r >= 0 && run && args->remove && args_given(args, SPEC_SESSION_ID))
        r = app_name_is_new(app, args->spec->session_id, err);
    if (r < 0)
        return r;
    if (run && !args_given(args, SPEC_SESSION_ID)) {
        free(args->spec->session_id);
        args->spec->session_id = xasprintf("box-%s", id);
    }
    r = run ? detach_run(app, args, err) : detach_exec(app, args, id, err);
    return r < 0 ? r : print_line(run ? args->spec->session_id : id, err);
}

int verb_kill(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(ANSWER_MAX);
    const char *name = args->signal != NULL ? args->signal : "KILL";
    struct jw w = JW_INIT(&body);

    jw_object(&w);
    jw_kstr(&w, "signal", str_starts(name, "SIG") ? name + 3 : name);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_INVALID, "the name of the signal is too long");
    int r = app_connect(app, DAEMON_RUNNING, err);
    if (r < 0)
        return r;
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes/%s/signal", args->names[0],
                                       args->names[1] != NULL ? args->names[1] : PROCESS_START_ID);
    return post(app, target, &body, NULL, err);
}
