/* SPDX-License-Identifier: Apache-2.0 */

/* `box run` and `box exec`: one command over a WebSocket, with its streams, signals and
 * terminal. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/outcome.h"
#include "cli/io/pipe.h"
#include "cli/io/text.h"
#include "cli/io/tty.h"
#include "cli/job.h"
#include "http/client/client.h"
#include "spec/model.h"
#include "spec/spec.h"

#define TARGET "/v1/exec"
#define REQUEST_MAX (24u << 20) /* arguments may fill ARG_MAX, and JSON may double them */
#define MESSAGE_MAX (1u << 20)  /* boxd sends less than 128 KiB at a time */
#define CONTROL_MAX 256
#define SECOND_INT_NS (2 * NSEC_PER_SEC)
#define LEAVE_NS (1 * NSEC_PER_SEC)
#define CLOSE_NS (100 * NSEC_PER_MSEC)
#define NEVER_NS (UINT64_C(10) * 365 * 24 * 3600 * NSEC_PER_SEC)

/*   OPENING ──► ASKED ──► RUNNING ──► ENDED
 *      │          ├──────────┴────────► ^      boxd told the end, or is gone
 *      │          └► LEAVING ◄─(RUNNING)       we go first: nothing it says matters any more
 *      └──────────────────────────────► ENDED
 */
enum job_state { JOB_OPENING, JOB_ASKED, JOB_RUNNING, JOB_LEAVING, JOB_ENDED, JOB_STATE_MAX };

#define TO(s) (1u << JOB_##s)
static const unsigned next_states[JOB_STATE_MAX] = {
    [JOB_OPENING] = TO(ASKED) | TO(ENDED),
    [JOB_ASKED] = TO(RUNNING) | TO(LEAVING) | TO(ENDED),
    [JOB_RUNNING] = TO(LEAVING) | TO(ENDED),
    [JOB_LEAVING] = TO(ENDED),
    [JOB_ENDED] = 0,
};

struct job {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    struct job_terms terms;
    enum job_state state;
    struct ws_conn *ws; /* NULL before it is open and after it is closed */
    struct sink out, err_out;
    struct source in;
    int64_t
        stdin_window; /* bytes of input that boxd takes unacknowledged; 0: it does not count them */
    int64_t in_flight;
    struct tty tty;
    struct loop_signal window; /* SIGWINCH, SIGTSTP; with a terminal only */
    struct loop_timer timer;   /* bounds the wait for the connection's end */
    uint64_t last_int;         /* when the last Ctrl-C came; 0: none */
    struct outcome_context context;

    int status;      /* in JOB_ENDED */
    bool has_report; /* the command ended by itself, as `report` says */
    struct outcome_report report;
    bool failed; /* `err` says why there is no report */
    struct err err;
};

static void move(struct job *j, enum job_state state)
{
    if ((next_states[j->state] & (1u << state)) != 0)
        j->state = state;
}

static void on_timer(struct loop_timer *t)
{
    struct job *j = container_of(t, struct job, timer);

    loop_quit(j->app->loop);
}

/* The end, as soon as the connection is closed; a boxd that dawdles does not hold us up. */
static void end(struct job *j)
{
    if (j->state == JOB_ENDED)
        return;
    move(j, JOB_ENDED);
    source_stop(&j->in);
    if (j->ws == NULL) {
        loop_quit(j->app->loop);
        return;
    }
    ws_close(j->ws, WS_CODE_NORMAL, NULL);
    loop_timer_start(j->app->loop, &j->timer, CLOSE_NS, on_timer);
}

static void fail(struct job *j, const struct err *err)
{
    if (j->state == JOB_ENDED || j->state == JOB_LEAVING)
        return;
    j->failed = true;
    j->err = *err;
    end(j);
}

static void send_text(struct job *j, const struct buf *text)
{
    if (j->ws != NULL)
        (void)ws_send(j->ws, WS_TEXT, buf_str(text), text->len);
}

static void send_signal(struct job *j, int signo)
{
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, CONTROL_MAX);
    if (job_write_signal(&text, signo) >= 0)
        send_text(j, &text);
}

/* Without waiting for the command: it is killed, and boxd gets a moment to take note. */
static void leave(struct job *j, int status)
{
    if (j->state == JOB_OPENING || j->state == JOB_ENDED || j->state == JOB_LEAVING) {
        loop_quit(j->app->loop);
        if (j->state == JOB_OPENING)
            j->status = status;
        return;
    }
    if (j->state == JOB_RUNNING)
        send_signal(j, SIGKILL);
    move(j, JOB_LEAVING);
    j->status = status;
    source_stop(&j->in);
    ws_pause(j->ws, false);
    ws_close(j->ws, WS_CODE_GOING_AWAY, NULL);
    loop_timer_start(j->app->loop, &j->timer, LEAVE_NS, on_timer);
}

/* Output. */

static void out_failed(struct job *j, const struct sink *s)
{
    struct err err;

    /* Nobody reads: like any program at the head of a pipe, we end, and so does the command. */
    if (s->error == EPIPE || s->error == ECONNRESET) {
        leave(j, STATUS_SIGNAL + SIGPIPE);
        return;
    }
    (void)err_sys(&err, s->error, "write to standard %s", s == &j->out ? "output" : "error");
    j->failed = true;
    j->err = err;
    leave(j, STATUS_FAILED);
}

static void hold_back(struct job *j)
{
    if (j->ws != NULL && j->state != JOB_LEAVING)
        ws_pause(j->ws, sink_busy(&j->out) || sink_busy(&j->err_out));
}

static void out_changed(struct job *j, const struct sink *s)
{
    if (s->error != 0 && j->state != JOB_LEAVING)
        out_failed(j, s);
    else
        hold_back(j);
}

static void on_out(struct sink *s)
{
    out_changed(container_of(s, struct job, out), s);
}

/* Without anybody to read messages the command still has its work to do. */
static void on_err_out(struct sink *s)
{
    struct job *j = container_of(s, struct job, err_out);

    if (s->error == EPIPE)
        hold_back(j);
    else
        out_changed(j, s);
}

static void got_output(struct job *j, const char *data, size_t len)
{
    struct sink *s = data[0] == JOB_STDERR ? &j->err_out : &j->out;

    if (data[0] != JOB_STDOUT && data[0] != JOB_STDERR)
        return;
    (void)sink_write(s, data + 1, len - 1);
    s->changed(s);
}

/* Input. */

static void hold_input(struct job *j)
{
    bool window_full =
        j->stdin_window > 0 && j->in_flight > 0 && j->in_flight + SOURCE_CHUNK > j->stdin_window;

    source_pause(&j->in, j->ws == NULL || ws_full(j->ws) || window_full);
}

static void on_input(struct source *s, const char *data, size_t len)
{
    struct job *j = container_of(s, struct job, in);
    char message[SOURCE_CHUNK + 1];

    if (len == 0) {
        AUTO_DONE(buf) struct buf text;
        buf_init(&text, CONTROL_MAX);
        if (job_write_stdin_eof(&text) >= 0)
            send_text(j, &text);
        return;
    }
    if (j->ws == NULL)
        return;
    message[0] = JOB_STDIN;
    memcpy(message + 1, data, len);
    (void)ws_send(j->ws, WS_BINARY, message, len + 1);
    j->in_flight += (int64_t)len;
    hold_input(j);
}

static void on_ws_writable(struct ws_conn *c, void *arg)
{
    hold_input(arg);
}

/* Messages. */

static void got_started(struct job *j, const struct job_event *event)
{
    struct err err;

    move(j, JOB_RUNNING);
    if (event->memory_mb > 0)
        j->context.memory_mb = event->memory_mb;
    j->stdin_window = event->stdin_window;
    if (!j->terms.with_stdin)
        return;
    int r = source_start(&j->in, j->app->loop, STDIN_FILENO, on_input);
    if (r < 0) {
        (void)err_sys(&err, -r, "read standard input");
        fail(j, &err);
    }
}

static void got_event(struct job *j, const char *data, size_t len)
{
    struct job_event event;
    struct err err;

    if (job_parse_event(data, len, &event, &err) < 0) {
        fail(j, &err);
        return;
    }
    switch (event.type) {
    case JOB_EVENT_STARTED:
        got_started(j, &event);
        break;
    case JOB_EVENT_EXIT:
        j->has_report = true;
        j->report = event.outcome;
        end(j);
        break;
    case JOB_EVENT_ERROR:
        fail(j, &event.err);
        break;
    case JOB_EVENT_STDIN_ACK:
        j->in_flight -= event.stdin_acked;
        hold_input(j);
        break;
    case JOB_EVENT_OTHER:
    default:
        break;
    }
}

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct job *j = arg;

    if (j->state == JOB_LEAVING || j->state == JOB_ENDED)
        return;
    if (opcode == WS_TEXT)
        got_event(j, data, len);
    else if (len > 1)
        got_output(j, data, len);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    struct job *j = arg;
    struct err err;

    j->ws = NULL;
    if (j->state == JOB_LEAVING || j->state == JOB_ENDED) {
        loop_quit(j->app->loop);
        return;
    }
    (void)err_set(&err, ERR_BACKEND, "the connection to boxd was lost (%u%s%s)", code,
                  reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
    fail(j, &err);
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct job *j = arg;
    AUTO_DONE(buf) struct buf text;
    struct err err;

    buf_init(&text, REQUEST_MAX);
    j->ws = c;
    if (c == NULL) {
        (void)app_unreachable(j->app, cause, &err);
        fail(j, &err);
        return;
    }
    move(j, JOB_ASKED);
    int r = job_write_request(&text, j->args, &j->terms);
    if (r >= 0)
        r = ws_send(c, WS_TEXT, buf_str(&text), text.len);
    if (r < 0) {
        (void)err_sys(&err, -r, "send the command to boxd");
        fail(j, &err);
    }
}

/* Signals. */

static void on_app_signal(struct app *app, int signo)
{
    struct job *j = app->arg;
    uint64_t now = loop_now(app->loop);

    if (j->state != JOB_RUNNING) {
        leave(j, STATUS_SIGNAL + signo);
        return;
    }
    if (signo == SIGINT && j->last_int != 0 && now - j->last_int < SECOND_INT_NS) {
        leave(j, STATUS_SIGNAL + SIGINT);
        return;
    }
    if (signo == SIGINT)
        j->last_int = now;
    send_signal(j, signo);
}

static void send_size(struct job *j)
{
    AUTO_DONE(buf) struct buf text;
    uint16_t rows;
    uint16_t cols;

    buf_init(&text, CONTROL_MAX);
    tty_size(&rows, &cols);
    if (j->state == JOB_RUNNING && job_write_resize(&text, rows, cols) >= 0)
        send_text(j, &text);
}

/* Stopped by somebody else (in raw mode Ctrl-Z is a key like any other): the shell shall find its
 * terminal as it was. */
static void on_window(struct loop_signal *s, int signo)
{
    struct job *j = container_of(s, struct job, window);
    struct err err;

    if (signo == SIGTSTP) {
        tty_restore(&j->tty);
        (void)raise(SIGSTOP);
        if (tty_make_raw(&j->tty, STDIN_FILENO, &err) < 0)
            text_say_err(&err);
    }
    send_size(j);
}

static int take_terminal(struct job *j, struct err *err)
{
    sigset_t set;

    if (!j->args->tty)
        return 0;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGWINCH);
    if (isatty(STDIN_FILENO))
        (void)sigaddset(&set, SIGTSTP);
    int r = loop_signal_start(j->app->loop, &j->window, &set, on_window);
    if (r < 0)
        return err_sys(err, -r, "watch the size of the terminal");
    return isatty(STDIN_FILENO) ? tty_make_raw(&j->tty, STDIN_FILENO, err) : 0;
}

/* A terminal is the caller's unless it was offered; whatever else was put there on purpose is meant
 * for the command. */
static bool wants_stdin(const struct args *args)
{
    struct stat st;

    if (args->tty || args->interactive)
        return true;
    if (fstat(STDIN_FILENO, &st) < 0 || isatty(STDIN_FILENO))
        return false;
    return !(S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)); /* /dev/null */
}

/* The exit status, and the line on standard error where the status alone does not tell. */
static int tell(struct job *j, struct err *err)
{
    AUTO_DONE(buf) struct buf say;

    buf_init(&say, 1024);
    if (j->failed) {
        *err = j->err;
        return err_code_errno(j->err.code);
    }
    if (!j->has_report)
        return j->status;
    int status = outcome_status(&j->report, &j->context, &say);
    if (say.len > 0)
        text_say("%s", buf_str(&say));
    return status;
}

static int run(struct job *j, struct err *err)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_ws_writable, .closed = on_closed};
    /* A command that does not read its input, and a reader of ours that pauses, are no faults. */
    const struct ws_opts opts = {.stall_ns = NEVER_NS};
    struct app_headers headers = app_headers(j->app);
    struct err cause;

    int r = take_terminal(j, err);
    if (r < 0)
        return r;
    const struct http_ws_call call = {.target = TARGET,
                                      .headers = headers.list,
                                      .opts = &opts,
                                      .handlers = &handlers,
                                      .opened = on_opened,
                                      .arg = j};
    r = http_client_ws(j->app->client, &call, &cause);
    if (r < 0)
        return app_unreachable(j->app, &cause, err);
    j->app->take_signal = on_app_signal;
    j->app->arg = j;
    r = app_wait(j->app, err);
    j->app->take_signal = NULL;
    return r;
}

static void job_done(struct job *j)
{
    source_stop(&j->in);
    sink_done(&j->out);
    sink_done(&j->err_out);
    loop_timer_stop(&j->timer);
    if (j->window.loop != NULL)
        loop_signal_stop(&j->window);
    tty_restore(&j->tty);
}
DEFINE_CLEANUP_DONE(job)

int verb_command(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(job) struct job j = {.app = app, .args = args};
    bool named = (args->given & FIELD_BIT(SPEC_SESSION_ID)) != 0;
    enum app_need need = args->verb == VERB_EXEC ? APP_RUNNING : named ? APP_KEPT : APP_ANY;

    j.terms.with_stdin = wants_stdin(args);
    tty_size(&j.terms.rows, &j.terms.cols);
    j.context.program = args->command[0];
    if ((args->given & FIELD_BIT(SPEC_TIMEOUT_SEC)) != 0)
        j.context.timeout_sec = args->spec->timeout_sec;
    if ((args->given & FIELD_BIT(SPEC_MEMORY_MB)) != 0)
        j.context.memory_mb = args->spec->memory_mb;
    sink_init(&j.out, app->loop, STDOUT_FILENO, 2 * MESSAGE_MAX, on_out);
    sink_init(&j.err_out, app->loop, STDERR_FILENO, 2 * MESSAGE_MAX, on_err_out);
    int r = app_connect(app, need, err);
    if (r >= 0)
        r = run(&j, err);
    tty_restore(&j.tty);
    return r < 0 ? r : tell(&j, err);
}
