/* SPDX-License-Identifier: Apache-2.0 */

/* The states of `box mcp run`: connect, hold a session, prepare, start, run, retry, leave. */

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/outcome.h"
#include "cli/io/text.h"
#include "cli/mcp.h"
#include "cli/mcp/npm_errors.h"
#include "http/client/client.h"

#define LINK_FIRST_NS (50 * NSEC_PER_MSEC)
#define LINK_LAST_NS (500 * NSEC_PER_MSEC)
#define LINK_TRIES_FIRST 6 /* before there is no boxd at all */
#define LINK_TRIES 20      /* before another boxd is started where none was named */
#define LEAVE_NS (2 * NSEC_PER_SEC)
#define FINISH_NS (5 * NSEC_PER_SEC) /* for a server whose input has ended */
#define FINISH_TRIES 12              /* as long as it still owes answers */
#define GRACE_SEC 5
#define SAY_MAX 1024

#define TO(s) (1u << STEP_##s)
#define ANY (TO(WAIT) | TO(LEAVE) | TO(LINK))
static const struct {
    enum mcp_phase phase;
    unsigned next;
} steps[STEP_MAX] = {
    [STEP_LINK] = {MCP_SESSION_CREATE, TO(HOLD) | ANY},
    [STEP_HOLD] = {MCP_SESSION_CREATE, TO(PREPARE) | TO(START) | TO(ATTACH) | TO(HOLD) | ANY},
    [STEP_PREPARE] = {MCP_DEP_INSTALL, TO(START) | ANY},
    [STEP_START] = {MCP_PROCESS_START, TO(ATTACH) | ANY},
    [STEP_ATTACH] = {MCP_RELAY_CONNECT, TO(SERVE) | ANY},
    [STEP_SERVE] = {MCP_INIT, ANY},
    [STEP_WAIT] = {MCP_SESSION_CREATE, TO(HOLD) | TO(PREPARE) | TO(START) | ANY},
    [STEP_LEAVE] = {MCP_RUNTIME, 0},
};

/* What is said and told. */

void mcp_say(struct mcp_run *m, const char *fmt, ...)
{
    char text[SAY_MAX];
    AUTO_DONE(buf) struct buf hidden;
    AUTO_DONE(buf) struct buf line;
    va_list ap;

    buf_init(&hidden, SAY_MAX * 4);
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    mcp_hide_secrets(text, m->server.env, &hidden);
    buf_init(&line, SAY_MAX * 16);
    (void)buf_printf(&line, "box: %s: ", m->name);
    (void)text_escape(&line, buf_str(&hidden), hidden.len);
    (void)buf_putc(&line, '\n');
    mcp_pipe_note(m, &line);
}

void mcp_tell(struct mcp_run *m)
{
    if (m->ws != NULL)
        mcp_link_info(m);
}

void mcp_set_phase(struct mcp_run *m, enum mcp_phase phase)
{
    if (phase == m->phase)
        return;
    m->phase = phase;
    mcp_say(m, "%s", mcp_phase_name(phase));
    mcp_tell(m);
}

static void set_error(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf hidden;

    buf_init(&hidden, 4 * MCP_ERROR_MAX);
    mcp_hide_secrets(why, m->server.env, &hidden);
    size_t len = utf8_boundary(buf_str(&hidden),
                               hidden.len < MCP_ERROR_MAX ? hidden.len : MCP_ERROR_MAX - 1);
    memcpy(m->error, buf_str(&hidden), len);
    m->error[len] = '\0';
}

static void move(struct mcp_run *m, enum mcp_step to)
{
    assert((steps[m->step].next & (1u << to)) != 0);
    m->step = to;
}

/* The phase of a failure stays to be seen until another attempt gets as far. */
void mcp_enter(struct mcp_run *m, enum mcp_step to)
{
    move(m, to);
    if (to != STEP_WAIT && to != STEP_LEAVE && !(to == STEP_LINK && m->process_number != 0))
        mcp_set_phase(m, steps[to].phase);
}

/* Leaving. */

/* Not before the client has what is its. */
static void quit(struct mcp_run *m)
{
    m->quitting = true;
    if (!sink_busy(&m->out))
        loop_quit(m->app->loop);
}

static void on_left(struct loop_timer *t)
{
    quit(container_of(t, struct mcp_run, timer));
}

void mcp_out_drained(struct mcp_run *m)
{
    if (m->quitting)
        quit(m);
}

void mcp_leave(struct mcp_run *m, int status)
{
    if (m->step == STEP_LEAVE)
        return;
    mcp_enter(m, STEP_LEAVE);
    m->exit_status = status;
    mcp_call_cancel(m);
    source_stop(&m->in);
    loop_timer_stop(&m->start_timer);
    if (m->ws == NULL || (!m->has_session && !m->hold_asked)) {
        quit(m);
        return;
    }
    /* boxd does the rest, also when we do not wait for it to say so. */
    if (!m->hold_asked)
        mcp_link_release(m);
    loop_timer_start(m->app->loop, &m->timer, LEAVE_NS, on_left);
}

static void hold(struct mcp_run *m);

void mcp_released(struct mcp_run *m)
{
    if (m->step == STEP_LEAVE) {
        quit(m);
    } else if (m->must_release) {
        m->must_release = m->has_session = m->is_prepared = m->has_remains = false;
        hold(m);
    }
}

void mcp_client_left(struct mcp_run *m)
{
    mcp_leave(m, 0);
}

void mcp_fatal(struct mcp_run *m, int status, const char *why)
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

static void tell_waiters(struct mcp_run *m)
{
    AUTO_FREE char *why =
        xasprintf("box: the server failed after %u attempt%s: %s: %s", m->retry.failed,
                  m->retry.failed == 1 ? "" : "s", mcp_phase_name(m->phase), m->error);
    char *text = xstrdup(why);

    m->failed = true;
    set_error(m, text);
    free(text);
    mcp_pipe_refuse_all(m, m->error);
}

void mcp_step_failed(struct mcp_run *m, const char *why)
{
    if (m->step == STEP_LEAVE || m->step == STEP_WAIT)
        return;
    loop_timer_stop(&m->start_timer);
    mcp_call_cancel(m);
    mcp_pipe_listen(m);
    m->status = MCP_ERROR;
    set_error(m, why);
    uint64_t delay = mcp_retry_failed(&m->retry);
    mcp_say(m, "%s: %s; trying again in %g s", mcp_phase_name(m->phase), m->error,
            (double)delay / (double)NSEC_PER_SEC);
    if (mcp_retry_exhausted(&m->retry))
        tell_waiters(m);
    if (m->client_ended && (m->failed || mcp_pipe_idle(m))) {
        mcp_leave(m, MCP_STATUS_FAILED);
        return;
    }
    mcp_enter(m, STEP_WAIT);
    mcp_tell(m);
    loop_timer_start(m->app->loop, &m->timer, delay, on_retry);
}

/* The connection. */

static void on_link_timer(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, timer);
    struct err err;

    /* The boxd that was there is gone for good, it seems; where nobody named one we may. */
    if (m->link_failures >= LINK_TRIES && !m->app->told) {
        m->link_failures = 0;
        if (app_reconnect(m->app, &err) < 0)
            mcp_say(m, "%s", err.msg);
    }
    mcp_link_open(m);
}

/* Nothing that could box it: whether it runs all the same is for its owner to say. */
static void unavailable(struct mcp_run *m, const char *why)
{
    struct err err;

    mcp_set_phase(m, MCP_BOX_UNAVAILABLE);
    if (mcp_run_on_host(m, why, &err) < 0)
        mcp_fatal(m, STATUS_FAILED, err.msg);
}

void mcp_link_lost(struct mcp_run *m, const char *why)
{
    if (m->step == STEP_LEAVE) {
        quit(m);
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
        unavailable(m, text);
        return;
    }
    if (m->step == STEP_WAIT)
        return; /* its timer connects */
    mcp_enter(m, STEP_LINK);
    loop_timer_start(m->app->loop, &m->timer, m->link_delay_ns, on_link_timer);
    m->link_delay_ns = m->link_delay_ns * 2 < LINK_LAST_NS ? m->link_delay_ns * 2 : LINK_LAST_NS;
}

static void hold(struct mcp_run *m)
{
    mcp_enter(m, STEP_HOLD);
    m->hold_asked = true;
    mcp_link_hold(m);
}

static void begin_attempt(struct mcp_run *m)
{
    m->status = m->failed ? MCP_ERROR : MCP_CONNECTING;
    if (m->ws == NULL) {
        mcp_enter(m, STEP_LINK);
        mcp_link_open(m);
    } else if (m->must_release) {
        mcp_enter(m, STEP_HOLD);
        mcp_link_release(m);
    } else if (!m->has_session) {
        hold(m);
    } else {
        mcp_held(m);
    }
}

void mcp_linked(struct mcp_run *m)
{
    m->must_release = false;
    m->was_linked = true;
    mcp_tell(m);
    hold(m);
}

/* boxd knows our session no more: it was removed by hand, or died. */
static void lose_session(struct mcp_run *m)
{
    m->has_session = m->is_prepared = m->has_remains = false;
    if (m->process_number != 0)
        mcp_server_exited(m, false, 0, "");
    else if (m->step == STEP_HOLD)
        hold(m);
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

    if (m->chain.n > 0 && strstr(why, "mount") != NULL)
        more = xasprintf("%s; '%s' has to be mounted to run '%s' of your own: install it for "
                         "everybody, such as in /usr/local/bin, or name an image that has it",
                         why, m->chain.list[0].host, m->command);
    mcp_fatal(m, STATUS_FAILED, more != NULL ? more : why);
}

void mcp_refused(struct mcp_run *m, const char *about, const char *code, const char *why)
{
    static const char *const wrong[] = {"invalid", "denied", "conflict", "not_found", NULL};
    static const char *const nowhere[] = {"unsupported", "backend", NULL};

    if (m->step == STEP_LEAVE) {
        quit(m);
        return;
    }
    if (str_eq(about, "hold")) {
        m->hold_asked = false;
        if (m->has_session)
            lose_session(m);
        else if (is_one_of(code, nowhere) && m->starts == 0) {
            unavailable(m, why);
        } else if (is_one_of(code, wrong)) {
            refused_for_good(m, why);
        } else {
            mcp_step_failed(m, why);
        }
    } else if (str_eq(about, "attach")) {
        m->process_number = 0;
        mcp_step_failed(m, why);
    } else if (m->step != STEP_WAIT) {
        mcp_say(m, "boxd says: %s", why);
    }
}

void mcp_held(struct mcp_run *m)
{
    m->hold_asked = false;
    if (m->step == STEP_LEAVE) {
        mcp_link_release(m);
        return;
    }
    m->has_session = true;
    mcp_pipe_listen(m);
    if (m->process_number != 0) {
        if (m->step != STEP_ATTACH)
            move(m, STEP_ATTACH);
        mcp_link_attach(m);
    } else if (m->is_prepared) {
        mcp_start(m);
    } else {
        mcp_prepare_box(m);
    }
}

/* Of a tool that downloads what it runs, and never came to run it. */
static const char *why_at_once(const struct mcp_run *m)
{
    bool never = m->working_since == 0 && mcp_command_installs(m->server.command);
    const char *hint = never ? mcp_download_hint(m) : NULL;

    return hint != NULL ? hint : "";
}

static void mcp_stop_process(struct mcp_run *m, const char *why);

static void on_start_slow(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, start_timer);
    const char *hint = why_at_once(m);
    AUTO_FREE char *why =
        xasprintf("the server has not answered within %lld s (--startup-timeout)%s%s",
                  (long long)m->server.box.startup_timeout_sec, hint[0] != '\0' ? "; " : "", hint);

    if (m->phase != MCP_INIT || m->step != STEP_SERVE)
        return;
    if (m->book.n_asked == 0 && mcp_pipe_idle(m)) /* nobody has asked: nothing is owed */
        return;
    mcp_stop_process(m, why);
}

void mcp_attached(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf lines;
    bool again = m->attached_once == m->process_number;

    buf_init(&lines, 2 * MCP_LINE_MAX);
    if (m->step != STEP_ATTACH)
        return;
    move(m, STEP_SERVE);
    m->sent_bytes = 0;
    if (again) {
        /* Only the connection was lost. What boxd had not written yet goes once more. */
        mcp_say(m, "attached again");
        mcp_tell(m);
        mcp_pipe_resend(m);
        mcp_pipe_send(m);
        return;
    }
    m->attached_once = m->process_number;
    m->failed = false; /* whether it works is found out by asking it */
    mcp_set_phase(m, MCP_INIT);
    loop_timer_start(m->app->loop, &m->start_timer,
                     (uint64_t)m->server.box.startup_timeout_sec * NSEC_PER_SEC, on_start_slow);
    mcp_requests_replay(&m->book, &lines);
    mcp_pipe_send_first(m, &lines);
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
    mcp_set_phase(m, MCP_RUNTIME);
}

/* Its end. */

static void answer_in_flight(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf answers;
    AUTO_FREE char *text = xasprintf("box: %s before it answered", why);
    AUTO_DONE(buf) struct buf hidden;

    buf_init(&answers, 8u << 20);
    buf_init(&hidden, 4096);
    mcp_hide_secrets(text, m->server.env, &hidden);
    mcp_requests_server_died(&m->book, buf_str(&hidden), &answers);
    mcp_pipe_answer(m, &answers);
}

static void how_it_ended(const struct mcp_run *m, bool known, int64_t code, const char *said,
                         char *ret, size_t size)
{
    const char *last;
    size_t len = mcp_npm_last(said, &last);
    size_t shown = len < 200 ? len : utf8_boundary(last, 200);
    const char *hint = why_at_once(m);

    if (!known)
        (void)snprintf(ret, size, "the server was stopped with its session");
    else
        (void)snprintf(ret, size, "the server %s %lld%s%s%s%.*s",
                       code < 0 ? "was killed by signal" : "exited with status",
                       (long long)(code < 0 ? -code : code), hint[0] != '\0' ? "; " : "", hint,
                       len > 0 ? ": " : "", (int)shown, last);
}

static void gone(struct mcp_run *m, const char *why)
{
    loop_timer_stop(&m->start_timer);
    mcp_pipe_cut(m);
    if (m->working_since != 0)
        mcp_retry_worked(&m->retry, loop_now(m->app->loop) - m->working_since);
    m->working_since = 0;
    m->process_number = 0;
    m->has_remains = true;
    m->restarts++;
    mcp_pipe_forget(m);
    answer_in_flight(m, why);
}

void mcp_server_exited(struct mcp_run *m, bool known, int64_t code, const char *stderr_preview)
{
    char why[SAY_MAX];
    bool silent = m->working_since == 0 && m->book.n_asked == 0 && mcp_pipe_idle(m);

    if (m->step == STEP_LEAVE)
        return;
    how_it_ended(m, known, code, stderr_preview, why, sizeof(why));
    if (m->eof_sent || (known && code == 0 && silent)) {
        /* It has done what it was started for. */
        mcp_pipe_cut(m);
        answer_in_flight(m, why);
        mcp_leave(m, code < 0 ? STATUS_SIGNAL + (int)-code : (int)code);
        return;
    }
    gone(m, why);
    if (!known)
        m->must_release = true; /* boxd may still think that we hold it */
    mcp_step_failed(m, why);
}

static void mcp_stop_process(struct mcp_run *m, const char *why)
{
    gone(m, why);
    mcp_step_failed(m, why);
}

/* Beginning and end. */

static void on_finish(struct loop_timer *t)
{
    struct mcp_run *m = container_of(t, struct mcp_run, finish_timer);

    if (m->step != STEP_SERVE || !m->eof_sent)
        m->finish_tries = 0;
    else if (m->book.n_asked == 0 || ++m->finish_tries >= FINISH_TRIES) {
        mcp_leave(m, 0); /* it does not care that nobody speaks to it any more */
        return;
    }
    if (m->step != STEP_LEAVE)
        loop_timer_start(m->app->loop, t, FINISH_NS, on_finish);
}

void mcp_client_ended(struct mcp_run *m)
{
    loop_timer_start(m->app->loop, &m->finish_timer, FINISH_NS, on_finish);
}

static void on_signal(struct app *app, int signo)
{
    struct mcp_run *m = app->arg;

    if (m->step == STEP_LEAVE)
        loop_quit(app->loop);
    else
        mcp_leave(m, STATUS_SIGNAL + signo);
}

static void run_done(struct mcp_run *m)
{
    mcp_call_cancel(m);
    loop_timer_stop(&m->timer);
    loop_timer_stop(&m->start_timer);
    loop_timer_stop(&m->finish_timer);
    mcp_pipe_done(m);
    buf_done(&m->answer);
    mcp_tools_done(&m->tools);
    mcp_server_done(&m->server);
    mcp_prepared_done(&m->prepared);
    mcp_roots_done(&m->roots);
    mcp_roots_done(&m->chain);
    free(m->chain_path);
    free(m->name);
    free(m->command);
    strv_free(m->inside_args);
    free(m->venv);
    free(m->cwd);
}

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
    struct mcp_run m = {.app = app, .args = args, .grace_sec = GRACE_SEC, .out_copy = -1};
    struct err why;
    int r = mcp_plan(&m, err);

    if (r >= 0) {
        r = app_connect(app, APP_KEPT, &why);
        /* Nothing that could box it: whether it runs all the same is for its owner to say. */
        if (r < 0)
            r = mcp_run_on_host(&m, why.msg, err);
        else
            r = serve(&m, err);
    }
    http_client_free(TAKE_PTR(app->client)); /* its callbacks are ours */
    run_done(&m);
    return r;
}
