/* SPDX-License-Identifier: Apache-2.0 */

/* The states of `box mcp run`: connect, hold a session, prepare, start, run, retry, leave. */

#include "cli/mcp_run/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/state.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "cli/mcp/failure.h"
#include "http/client/client.h"

#define LINK_FIRST_NS (50 * NSEC_PER_MSEC)
#define LINK_LAST_NS (500 * NSEC_PER_MSEC)
#define LINK_TRIES_FIRST 6 /* before there is no boxd at all */
#define LINK_TRIES 20      /* before another boxd is started where none was named */
#define LEAVE_NS (2 * NSEC_PER_SEC)
#define FINISH_NS (5 * NSEC_PER_SEC) /* for a server whose input has ended */
#define FINISH_TRIES 12              /* as long as it still owes answers */
#define SAY_MAX 1024
#define INSTALL_LINES 12 /* of an installer's last words, on standard error */

#define TO(s) (1u << STEP_##s)
#define ANY (TO(WAIT) | TO(LEAVE) | TO(LINK))
static const unsigned next_steps[STEP_MAX] = {
    [STEP_LINK] = TO(HOLD) | ANY,
    [STEP_HOLD] = TO(PREPARE) | TO(START) | TO(ATTACH) | TO(HOLD) | ANY,
    [STEP_PREPARE] = TO(START) | ANY,
    [STEP_START] = TO(ATTACH) | ANY,
    [STEP_ATTACH] = TO(SERVE) | ANY,
    [STEP_SERVE] = ANY,
    [STEP_WAIT] = TO(HOLD) | TO(PREPARE) | TO(START) | ANY,
    [STEP_LEAVE] = 0,
};

static const enum mcp_phase step_phases[STEP_MAX] = {
    [STEP_LINK] = MCP_SESSION_CREATE,  [STEP_HOLD] = MCP_SESSION_CREATE,
    [STEP_PREPARE] = MCP_DEP_INSTALL,  [STEP_START] = MCP_PROCESS_START,
    [STEP_ATTACH] = MCP_RELAY_CONNECT, [STEP_SERVE] = MCP_INIT,
    [STEP_WAIT] = MCP_SESSION_CREATE,  [STEP_LEAVE] = MCP_RUNTIME,
};

/* Messages. */

void mcp_say(struct mcp_run *m, const char *fmt, ...)
{
    char text[SAY_MAX];
    AUTO_DONE(buf) struct buf hidden = BUF_INIT(SAY_MAX * 4);
    AUTO_DONE(buf) struct buf line = BUF_INIT(SAY_MAX * 16);
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    mcp_hide_secrets(text, m->plan.server.env, &hidden);
    (void)buf_printf(&line, "box: %s: ", m->plan.name);
    (void)text_escape(&line, buf_str(&hidden), hidden.len);
    (void)buf_putc(&line, '\n');
    mcp_pipe_note(m, &line);
}

static void set_phase(struct mcp_run *m, enum mcp_phase phase)
{
    if (phase == m->phase)
        return;
    m->phase = phase;
    mcp_say(m, "%s", mcp_phase_name(phase));
    mcp_link_info(m);
}

static void set_error(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf hidden = BUF_INIT(4 * MCP_ERROR_MAX);

    mcp_hide_secrets(why, m->plan.server.env, &hidden);
    text_cut(m->error, sizeof(m->error), buf_str(&hidden));
}

/* The phase of a failure stays to be seen until another attempt gets as far. */
static void enter_step(struct mcp_run *m, enum mcp_step to)
{
    STATE_MOVE(m->step, next_steps, to);
    if (to != STEP_WAIT && to != STEP_LEAVE && !(to == STEP_LINK && m->process_number != 0))
        set_phase(m, step_phases[to]);
}

/* Leaving. */

/* Not before the client has what is its. */
static void quit_when_drained(struct mcp_run *m)
{
    m->quitting = true;
    if (!sink_busy(&m->out))
        loop_quit(m->app->loop);
}

static void on_left(struct loop_timer *t)
{
    quit_when_drained(container_of(t, struct mcp_run, timer));
}

void mcp_out_drained(struct mcp_run *m)
{
    if (m->quitting)
        quit_when_drained(m);
}

void mcp_leave(struct mcp_run *m, int status)
{
    if (m->step == STEP_LEAVE)
        return;
    enter_step(m, STEP_LEAVE);
    m->exit_status = status;
    mcp_call_cancel(m);
    intake_stop(&m->in);
    loop_timer_stop(&m->start_timer);
    if (m->ws == NULL || (!m->has_session && !m->hold_asked)) {
        quit_when_drained(m);
        return;
    }
    /* boxd does the rest, also when we do not wait for it to say so. */
    if (!m->hold_asked)
        mcp_link_release(m);
    loop_timer_start(m->app->loop, &m->timer, LEAVE_NS, on_left);
}

static void fail_for_good(struct mcp_run *m, int status, const char *why)
{
    if (m->step == STEP_LEAVE)
        return;
    set_error(m, why);
    mcp_say(m, "%s: %s", mcp_phase_name(m->phase), m->error);
    mcp_pipe_refuse_all(m, m->error);
    mcp_leave(m, status);
}

/* Trying again. */

static void begin_attempt(struct mcp_run *m);

static void on_retry(struct loop_timer *t)
{
    begin_attempt(container_of(t, struct mcp_run, timer));
}

static void refuse_waiting(struct mcp_run *m)
{
    AUTO_FREE char *why =
        xasprintf("box: the server failed after %u attempt%s: %s: %s", m->plan.retry.failed,
                  m->plan.retry.failed == 1 ? "" : "s", mcp_phase_name(m->phase), m->error);

    m->failed = true;
    set_error(m, why);
    mcp_pipe_refuse_all(m, m->error);
}

static void fail_step(struct mcp_run *m, const char *why)
{
    if (m->step == STEP_LEAVE || m->step == STEP_WAIT)
        return;
    loop_timer_stop(&m->start_timer);
    mcp_call_cancel(m);
    mcp_pipe_listen(m);
    m->status = MCP_ERROR;
    set_error(m, why);
    uint64_t delay = mcp_retry_failed(&m->plan.retry);
    mcp_say(m, "%s: %s; trying again in %g s", mcp_phase_name(m->phase), m->error,
            (double)delay / (double)NSEC_PER_SEC);
    if (mcp_retry_exhausted(&m->plan.retry))
        refuse_waiting(m);
    if (m->client_ended && (m->failed || mcp_pipe_idle(m))) {
        mcp_leave(m, MCP_STATUS_FAILED);
        return;
    }
    enter_step(m, STEP_WAIT);
    mcp_link_info(m);
    loop_timer_start(m->app->loop, &m->timer, delay, on_retry);
}

/* Preparing and starting. */

/* Whether the call succeeded; otherwise the step has failed. */
static bool call_succeeded(struct mcp_run *m, unsigned status, const struct err *err)
{
    struct err problem;

    if (err == NULL && status >= 200 && status <= 299)
        return true;
    if (err == NULL)
        (void)app_problem(status, &m->answer, &problem);
    fail_step(m, err != NULL ? err->msg : problem.msg);
    return false;
}

static void on_started(struct mcp_run *m, unsigned status, const struct err *err)
{
    unsigned number = m->process_number;

    m->process_number = 0;
    if (!call_succeeded(m, status, err))
        return;
    m->process_number = number;
    enter_step(m, STEP_ATTACH);
    mcp_link_attach(m);
}

static void start_server(struct mcp_run *m);

static void on_forgotten(struct mcp_run *m, unsigned status, const struct err *err)
{
    if (err != NULL) {
        fail_step(m, err->msg);
        return;
    }
    m->has_remains = false;
    start_server(m);
}

/* The record of the last process was kept so that its last words could be read. It goes now, with
 * what that process left in the background. */
static void end_remains(struct mcp_run *m)
{
    AUTO_FREE char *target =
        xasprintf("/v1/sessions/%s/processes/%s", m->plan.session_id, m->process_id);

    mcp_call(m, "DELETE", target, NULL, on_forgotten);
}

static void start_server(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(4 << 20);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes", m->plan.session_id);
    AUTO_STRV char **env =
        mcp_env_of_process(m->plan.server.box.network, &m->prepared, m->plan.server.env);
    struct jw w = JW_INIT(&body);

    if (m->step != STEP_START)
        enter_step(m, STEP_START);
    if (m->has_remains) {
        end_remains(m);
        return;
    }
    m->process_number = ++m->starts;
    (void)str_fmt(m->process_id, sizeof(m->process_id), "server-%u", m->starts);
    m->at = m->received = m->err_at = m->sent_bytes = 0;
    m->eof_sent = false;
    mcp_write_process(&w, m->process_id, m->prepared.command, m->plan.inside_args, env,
                      m->plan.cwd);
    if (jw_end(&w) < 0)
        fail_for_good(m, STATUS_FAILED, "arguments and environment are larger than 4 MiB");
    else
        mcp_call(m, "POST", target, &body, on_started);
}

static void missing_command(struct mcp_run *m)
{
    const char *image = m->plan.server.box.image;
    AUTO_FREE char *why = xasprintf(
        "command '%s' was not found inside the box (image '%s'); install it there, or name another "
        "image with --image",
        m->plan.command, image != NULL ? image : "host");

    set_phase(m, MCP_PROCESS_START);
    fail_for_good(m, 127, why);
}

/* An error holds one sentence; its reader needs the last lines of the installer to mend it. */
static void install_failed(struct mcp_run *m, const struct json *result)
{
    const char *said = json_str(json_get(result, "stderr"));
    AUTO_FREE char *why = mcp_install_failure(result, m->plan.server.box.startup_timeout_sec,
                                              mcp_plan_download_hint(&m->plan));

    for (const char *line = mcp_last_lines(said != NULL ? said : "", INSTALL_LINES);
         *line != '\0';) {
        size_t len = strcspn(line, "\n");
        if (len > 0)
            mcp_say(m, "  | %.*s", (int)(len < MCP_INSTALL_TEXT ? len : MCP_INSTALL_TEXT), line);
        line += len + (line[len] != '\0' ? 1 : 0);
    }
    fail_step(m, why);
}

static void on_prepared(struct mcp_run *m, unsigned status, const struct err *err)
{
    AUTO(json) struct json *v = NULL;
    struct err bad;

    if (!call_succeeded(m, status, err))
        return;
    if (json_parse(buf_str(&m->answer), m->answer.len, &v, &bad) < 0) {
        fail_step(m, bad.msg);
        return;
    }
    bool exited = str_eq(json_str(json_get(v, "outcome")), "exited");
    int64_t code = json_int(json_get(v, "exit_code"));
    if (exited && code == MCP_PREPARE_MISSING) {
        missing_command(m);
        return;
    }
    if (!exited || code != 0) {
        install_failed(m, v);
        return;
    }
    mcp_prepared_done(&m->prepared);
    const char *said = json_str(json_get(v, "stdout"));
    if (mcp_prepare_read(said != NULL ? said : "", &m->prepared, &bad) < 0) {
        fail_step(m, bad.msg);
        return;
    }
    m->is_prepared = true;
    start_server(m);
}

static void prepare_box(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(1 << 20);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/exec", m->plan.session_id);

    enter_step(m, STEP_PREPARE);
    (void)mcp_write_prepare(&m->plan, &body);
    mcp_call(m, "POST", target, &body, on_prepared);
}

static void use_session(struct mcp_run *m)
{
    m->hold_asked = false;
    m->has_session = true;
    mcp_pipe_listen(m);
    if (m->process_number != 0) {
        if (m->step != STEP_ATTACH)
            STATE_MOVE(m->step, next_steps, STEP_ATTACH);
        mcp_link_attach(m);
    } else if (m->is_prepared) {
        start_server(m);
    } else {
        prepare_box(m);
    }
}

/* The end of a server. */

/* For a server that downloads what it runs, and has not answered yet; "": none. */
static const char *download_hint(const struct mcp_run *m)
{
    bool never = m->working_since == 0 && mcp_command_installs(m->plan.server.command);
    const char *hint = never ? mcp_plan_download_hint(&m->plan) : NULL;

    return hint != NULL ? hint : "";
}

static void forget_server(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf hidden = BUF_INIT(4096);

    mcp_hide_secrets(why, m->plan.server.env, &hidden);
    mcp_pipe_server_gone(m, buf_str(&hidden));
}

static void stop_server(struct mcp_run *m, const char *why)
{
    loop_timer_stop(&m->start_timer);
    if (m->working_since != 0)
        mcp_retry_worked(&m->plan.retry, loop_now(m->app->loop) - m->working_since);
    m->working_since = 0;
    m->process_number = 0;
    m->has_remains = true;
    m->restarts++;
    forget_server(m, why);
    fail_step(m, why);
}

static void server_exited(struct mcp_run *m, bool known, int64_t code, const char *stderr_preview)
{
    char why[SAY_MAX];
    AUTO_FREE char *hint = mcp_failure_hint(stderr_preview, &m->plan, m->args->spec);
    bool silent = m->working_since == 0 && m->book.n_asked == 0 && mcp_pipe_idle(m);

    if (m->step == STEP_LEAVE)
        return;
    if (known)
        mcp_exit_text(code, hint != NULL ? hint : download_hint(m), stderr_preview, why,
                      sizeof(why));
    else
        (void)str_copy(why, sizeof(why), "the server was stopped with its session");
    if (m->eof_sent || (known && code == 0 && silent)) {
        /* It has done what it was started for. */
        forget_server(m, why);
        mcp_leave(m, code < 0 ? STATUS_SIGNAL + (int)-code : (int)code);
        return;
    }
    m->must_release = m->must_release || !known; /* boxd may still think that we hold it */
    stop_server(m, why);
}

/* The connection. */

static void on_link_timer(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, timer);
    struct err err;

    /* The boxd that was there seems to be gone for good; where the user named none we start one. */
    if (m->link_failures >= LINK_TRIES && !m->app->told) {
        m->link_failures = 0;
        if (app_reconnect(m->app, &err) < 0)
            mcp_say(m, "%s", err.msg);
    }
    mcp_link_open(m);
}

/* There is no box to run the server in. It runs without one only where its user asked for that. */
static int run_without_box(struct mcp_run *m, const char *why, struct err *err)
{
    if (!str_eq(m->args->fallback, "host"))
        return err_set(err, ERR_BACKEND,
                       "%s; not started: --fallback host would run it without a box", why);
    mcp_say(m, "WARNING: NO BOX: %s", why);
    mcp_say(m, "WARNING: '%s' runs on this host with all of your rights (--fallback host)",
            m->plan.server.command);
    return mcp_plan_run_on_host(&m->plan, err);
}

static void box_unavailable(struct mcp_run *m, const char *why)
{
    struct err err;

    set_phase(m, MCP_BOX_UNAVAILABLE);
    if (run_without_box(m, why, &err) < 0)
        fail_for_good(m, STATUS_FAILED, err.msg);
}

void mcp_link_lost(struct mcp_run *m, const char *why)
{
    if (m->step == STEP_LEAVE) {
        quit_when_drained(m);
        return;
    }
    mcp_call_cancel(m);
    loop_timer_stop(&m->start_timer);
    m->hold_asked = false;
    if (m->link_failures++ == 0) {
        m->link_delay_ns = LINK_FIRST_NS;
        mcp_say(m, "%s; connecting again", why);
    }
    if (!m->was_linked && m->link_failures >= LINK_TRIES_FIRST) {
        AUTO_FREE char *text = xasprintf("no boxd answers at %s: %s", m->app->endpoint, why);
        box_unavailable(m, text);
        return;
    }
    if (m->step == STEP_WAIT)
        return; /* its timer connects */
    enter_step(m, STEP_LINK);
    loop_timer_start(m->app->loop, &m->timer, m->link_delay_ns, on_link_timer);
    m->link_delay_ns = m->link_delay_ns * 2 < LINK_LAST_NS ? m->link_delay_ns * 2 : LINK_LAST_NS;
}

static void hold_session(struct mcp_run *m)
{
    enter_step(m, STEP_HOLD);
    m->hold_asked = true;
    mcp_link_hold(m);
}

static void begin_attempt(struct mcp_run *m)
{
    m->status = m->failed ? MCP_ERROR : MCP_CONNECTING;
    if (m->ws == NULL) {
        enter_step(m, STEP_LINK);
        mcp_link_open(m);
    } else if (m->must_release) {
        enter_step(m, STEP_HOLD);
        mcp_link_release(m);
    } else if (!m->has_session) {
        hold_session(m);
    } else {
        use_session(m);
    }
}

void mcp_linked(struct mcp_run *m)
{
    m->must_release = false;
    m->was_linked = true;
    mcp_link_info(m);
    hold_session(m);
}

/* boxd does not know our session any more: it was removed by hand, or died. */
static void lose_session(struct mcp_run *m)
{
    m->has_session = m->is_prepared = m->has_remains = false;
    if (m->process_number != 0)
        server_exited(m, false, 0, "");
    else if (m->step == STEP_HOLD)
        hold_session(m);
}

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list != NULL; list++)
        if (str_eq(word, *list))
            return true;
    return false;
}

static void refused_for_good(struct mcp_run *m, const char *why)
{
    AUTO_FREE char *more = NULL;

    if (m->plan.chain.n > 0 && strstr(why, "mount") != NULL)
        more = xasprintf("%s; '%s' has to be mounted to run '%s' of your own: install it for "
                         "all users, such as in /usr/local/bin, or name an image that has it",
                         why, m->plan.chain.list[0].host, m->plan.command);
    fail_for_good(m, STATUS_FAILED, more != NULL ? more : why);
}

/* A cache is a convenience: where boxd mounts nothing of it, the server starts cold. */
static void hold_without_cache(struct mcp_run *m, const char *why)
{
    mcp_say(m, "boxd refuses the session with its package cache (%s); trying without a cache", why);
    mcp_roots_done(&m->plan.cache);
    hold_session(m);
}

static void got_refusal(struct mcp_run *m, const char *about, const char *code, const char *why)
{
    static const char *const wrong[] = {"invalid", "denied", "conflict", "not_found", NULL};
    static const char *const nowhere[] = {"unsupported", "backend", NULL};

    if (m->step == STEP_LEAVE) {
        quit_when_drained(m);
    } else if (str_eq(about, "hold")) {
        m->hold_asked = false;
        if (m->has_session)
            lose_session(m);
        else if (m->plan.cache.n > 0 && !m->was_held && !str_eq(code, "limit"))
            hold_without_cache(m, why);
        else if (is_one_of(code, nowhere) && m->starts == 0)
            box_unavailable(m, why);
        else if (is_one_of(code, wrong))
            refused_for_good(m, why);
        else
            fail_step(m, why);
    } else if (str_eq(about, "attach")) {
        m->process_number = 0;
        fail_step(m, why);
    } else if (m->step != STEP_WAIT) {
        mcp_say(m, "boxd says: %s", why);
    }
}

static void got_error(struct mcp_run *m, const struct json *v)
{
    const char *about = json_str(json_get(v, "about")), *code = json_str(json_get(v, "code"));
    struct err why;

    (void)app_refusal(v, &why);
    got_refusal(m, about != NULL ? about : "", code != NULL ? code : "", why.msg);
}

static void got_released(struct mcp_run *m, const struct json *v)
{
    if (m->step == STEP_LEAVE) {
        quit_when_drained(m);
    } else if (m->must_release) {
        m->must_release = m->has_session = m->is_prepared = m->has_remains = false;
        hold_session(m);
    }
}

/* Only with --best-effort: otherwise there would be no session. */
static void say_unenforced(struct mcp_run *m, const struct json *list)
{
    for (size_t i = 0; i < json_len(list) && m->args->best_effort; i++) {
        const char *field = json_str(json_get(json_at(list, i), "field"));
        const char *why = json_str(json_get(json_at(list, i), "reason"));
        if (field != NULL && why != NULL)
            mcp_say(m, "%s is not enforced: %s", field, why);
    }
}

static void got_held(struct mcp_run *m, const struct json *v)
{
    if (!m->hold_asked)
        return;
    say_unenforced(m, json_get(v, "unenforced"));
    m->hold_asked = false;
    m->was_held = true;
    if (m->step == STEP_LEAVE)
        mcp_link_release(m);
    else
        use_session(m);
}

static void on_start_slow(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, start_timer);
    const char *hint = download_hint(m);
    AUTO_FREE char *why = xasprintf(
        "the server has not answered within %lld s (--startup-timeout)%s%s",
        (long long)m->plan.server.box.startup_timeout_sec, hint[0] != '\0' ? "; " : "", hint);

    if (m->phase != MCP_INIT || m->step != STEP_SERVE)
        return;
    if (m->book.n_asked == 0 && mcp_pipe_idle(m)) /* no client has asked: no answer is owed */
        return;
    stop_server(m, why);
}

static void got_attached(struct mcp_run *m, const struct json *v)
{
    bool same = m->attached_once == m->process_number;

    if (m->step != STEP_ATTACH)
        return;
    STATE_MOVE(m->step, next_steps, STEP_SERVE);
    m->sent_bytes = 0;
    if (same) { /* only the connection was lost */
        mcp_say(m, "attached again");
        mcp_link_info(m);
    } else {
        m->attached_once = m->process_number;
        m->failed = false; /* whether it works is found out by asking it */
        set_phase(m, MCP_INIT);
        loop_timer_start(m->app->loop, &m->start_timer,
                         (uint64_t)m->plan.server.box.startup_timeout_sec * NSEC_PER_SEC,
                         on_start_slow);
    }
    mcp_pipe_attached(m, same);
}

void mcp_server_spoke(struct mcp_run *m)
{
    if (m->phase != MCP_INIT || !m->book.answered_any)
        return;
    loop_timer_stop(&m->start_timer);
    m->working_since = loop_now(m->app->loop);
    m->status = MCP_CONNECTED;
    m->failed = false;
    m->error[0] = '\0';
    set_phase(m, MCP_RUNTIME);
}

static void got_exit(struct mcp_run *m, const struct json *v)
{
    const char *preview = json_str(json_get(v, "stderr_preview"));

    if (!str_eq(json_str(json_get(v, "process_id")), m->process_id) || m->process_number == 0)
        return; /* one that we are done with */
    server_exited(m, json_bool(json_get(v, "known")), json_int(json_get(v, "exit_code")),
                  preview != NULL ? preview : "");
}

static void got_ack(struct mcp_run *m, const struct json *v)
{
    mcp_pipe_acked(m, (uint64_t)json_int(json_get(v, "bytes")));
}

static void got_stderr_lost(struct mcp_run *m, const struct json *v)
{
    m->err_lost += (uint64_t)json_int(json_get(v, "bytes"));
    m->err_at += (uint64_t)json_int(json_get(v, "bytes"));
}

void mcp_boxd_said(struct mcp_run *m, const struct json *message)
{
    static const struct {
        const char *type;
        void (*act)(struct mcp_run *m, const struct json *v);
    } messages[] = {{"stdin_ack", got_ack},           {"held", got_held},
                    {"attached", got_attached},       {"exit", got_exit},
                    {"stderr_lost", got_stderr_lost}, {"error", got_error},
                    {"released", got_released}};
    const char *type = json_str(json_get(message, "type"));

    for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
        if (str_eq(type, messages[i].type))
            messages[i].act(m, message);
}

/* Beginning and end. */

static void on_finish(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, finish_timer);

    if (m->step != STEP_SERVE || !m->eof_sent)
        m->finish_tries = 0;
    else if (m->book.n_asked == 0 || ++m->finish_tries >= FINISH_TRIES) {
        mcp_leave(m, 0); /* it does not care that its input has ended */
        return;
    }
    if (m->step != STEP_LEAVE)
        loop_timer_start(m->app->loop, t, FINISH_NS, on_finish);
}

void mcp_client_ended(struct mcp_run *m)
{
    m->client_ended = true;
    loop_timer_start(m->app->loop, &m->finish_timer, FINISH_NS, on_finish);
    if (m->step == STEP_WAIT || m->failed ||
        (mcp_pipe_idle(m) && m->step != STEP_SERVE && m->book.n_asked == 0))
        mcp_leave(m, m->failed ? MCP_STATUS_FAILED : 0);
}

static void on_signal(struct app *app, int signo)
{
    struct mcp_run *m = app->arg;

    if (m->step == STEP_LEAVE)
        loop_quit(app->loop);
    else
        mcp_leave(m, STATUS_SIGNAL + signo);
}

static void mcp_run_done(struct mcp_run *m)
{
    mcp_call_cancel(m);
    loop_timer_stop(&m->timer);
    loop_timer_stop(&m->start_timer);
    loop_timer_stop(&m->finish_timer);
    mcp_pipe_done(m);
    mcp_explain_done(m);
    buf_done(&m->answer);
    mcp_tools_done(&m->tools);
    mcp_prepared_done(&m->prepared);
    mcp_plan_done(&m->plan);
}
DEFINE_CLEANUP_DONE(mcp_run)

static int serve(struct mcp_run *m, struct err *err)
{
    mcp_pipe_start(m);
    m->app->take_signal = on_signal;
    m->app->arg = m;
    m->phase = MCP_PHASE_MAX;
    m->step = STEP_WAIT;
    begin_attempt(m);
    int r = m->step == STEP_LEAVE && m->timer.loop == NULL ? 0 : app_wait(m->app, err);
    m->app->take_signal = NULL;
    return r < 0 ? r : m->exit_status;
}

int verb_mcp_run(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(mcp_run) struct mcp_run m = {.app = app, .args = args, .out_copy = -1};
    struct err why;
    int r = mcp_plan_make(args, &m.plan, err);

    if (r < 0)
        return r;
    r = app_connect(app, DAEMON_KEPT, &why);
    r = r < 0 ? run_without_box(&m, why.msg, err) : serve(&m, err);
    http_client_free(TAKE_PTR(app->client)); /* its callbacks are ours */
    return r;
}
