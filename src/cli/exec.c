/* SPDX-License-Identifier: Apache-2.0 */

/* `box run` and `box exec`: one command over a WebSocket, with its streams, signals and terminal.
 * `box attach`, `logs` and `wait` follow a detached command in the same way. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/state.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/pipe.h"
#include "cli/io/text.h"
#include "cli/io/tty.h"
#include "cli/job.h"
#include "cli/port.h"
#include "http/client/client.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

#define TARGET "/v1/exec"
#define TAIL_MAX 1000000000U    /* lines */
#define REQUEST_MAX (24u << 20) /* arguments may fill ARG_MAX, and JSON may double them */
#define MESSAGE_MAX (1u << 20)  /* boxd sends less than 128 KiB at a time */
#define CONTROL_MAX 256
#define SECOND_INT_NS (2 * NSEC_PER_SEC)
#define LEAVE_NS (1 * NSEC_PER_SEC)
#define TERM_NS (10 * NSEC_PER_SEC) /* what a command gets to end by itself after SIGTERM */
#define CLOSE_NS (100 * NSEC_PER_MSEC)
#define KEY_P '\x10' /* Ctrl-P Ctrl-Q leaves a detached command */
#define KEY_Q '\x11'

/* Messages of /v1/exec: what boxd is sent. job.h has what it tells. */

/* First byte of a binary message. */
enum job_channel { JOB_STDIN, JOB_STDOUT, JOB_STDERR };

struct job_terms {
    bool with_stdin;
    uint16_t rows, cols; /* of the terminal, when there is one */
};

/* The first message: what to run and where.
 *
 * With standard input it asks for acknowledgements. A boxd that grants them names a window: as many
 * bytes may be on their way unacknowledged. It never stops reading then, so that signals and the
 * end of the connection reach it even while the command does not read. */
static int job_write_request(struct buf *out, const struct args *args,
                             const struct job_terms *terms)
{
    struct jw w = JW_INIT(out);

    jw_object(&w);
    args_put_session(args, &w);
    port_args_write(args, &w);
    jw_karray(&w, "argv");
    for (size_t i = 0; args->command[i] != NULL; i++)
        jw_str(&w, args->command[i]);
    jw_array_end(&w);
    if (args_given(args, SPEC_ENV))
        model_write_field(&spec_model.fields[SPEC_ENV], args->spec, &w);
    if (args_given(args, SPEC_WORKDIR))
        jw_kstr(&w, "cwd", args->spec->workdir);
    if (args_given(args, SPEC_TIMEOUT_SEC))
        jw_kint(&w, "timeout_sec", args->spec->timeout_sec);
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

static int job_write_signal(struct buf *out, int signo)
{
    static const char *const names[] = {[SIGINT] = "INT",
                                        [SIGTERM] = "TERM",
                                        [SIGHUP] = "HUP",
                                        [SIGQUIT] = "QUIT",
                                        [SIGKILL] = "KILL"};
    struct jw w = JW_INIT(out);

    jw_object(&w);
    jw_kstr(&w, "type", "signal");
    jw_kstr(&w, "signal", (size_t)signo < ARRAY_SIZE(names) ? names[signo] : NULL);
    jw_object_end(&w);
    return jw_end(&w);
}

static int job_write_resize(struct buf *out, uint16_t rows, uint16_t cols)
{
    return buf_printf(out, "{\"type\":\"resize\",\"rows\":%u,\"cols\":%u}", rows, cols);
}

static const char stdin_eof[] = "{\"type\":\"stdin_eof\"}";

/* The command. */

/*   OPENING ──► ASKED ──► RUNNING ──► ENDED
 *      │          ├──────────┴────────► ^      boxd told the end, or is gone
 *      │          └► LEAVING ◄─(RUNNING)       we go first: nothing it says matters any more
 *      └──────────────────────────────► ENDED
 */
enum exec_state {
    EXEC_OPENING,
    EXEC_ASKED,
    EXEC_RUNNING,
    EXEC_LEAVING,
    EXEC_ENDED,
    EXEC_STATE_MAX
};

#define TO(s) (1u << EXEC_##s)
static const unsigned next_states[EXEC_STATE_MAX] = {
    [EXEC_OPENING] = TO(ASKED) | TO(ENDED),
    [EXEC_ASKED] = TO(RUNNING) | TO(LEAVING) | TO(ENDED),
    [EXEC_RUNNING] = TO(LEAVING) | TO(ENDED),
    [EXEC_LEAVING] = TO(ENDED),
    [EXEC_ENDED] = 0,
};

struct exec_call {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    const char *follows;     /* borrowed; where a detached command is, which goes on without us */
    bool with_tty;           /* the command has a terminal */
    bool key;                /* the last byte that was typed is KEY_P, and waits */
    struct job_terms terms;
    enum exec_state state;
    struct ws_conn *ws; /* NULL before it is open and after it is closed */
    struct sink out, err_out;
    struct intake in;
    int64_t stdin_window; /* bytes of input that boxd takes unacknowledged; 0: as many as come */
    int64_t in_flight;
    struct tty tty;
    struct loop_signal window; /* SIGWINCH, SIGTSTP; with a terminal only */
    struct loop_timer timer;   /* bounds the wait for the connection's end */
    struct loop_timer grace;   /* since a signal asked us to end */
    uint64_t last_int;         /* when the last Ctrl-C came; 0: none */
    struct outcome_context context;

    int status;      /* in EXEC_ENDED */
    bool has_report; /* the command ended by itself, as `report` says */
    struct outcome_report report;
    struct err err; /* why there is no report */
};

static void exec_move(struct exec_call *j, enum exec_state state)
{
    STATE_MOVE(j->state, next_states, state);
}

static void on_timer(struct loop_timer *t)
{
    struct exec_call *j = container_of(t, struct exec_call, timer);

    loop_quit(j->app->loop);
}

/* The end, as soon as the connection is closed; a boxd that dawdles does not hold us up. */
static void exec_end(struct exec_call *j)
{
    if (j->state == EXEC_ENDED)
        return;
    exec_move(j, EXEC_ENDED);
    intake_stop(&j->in);
    if (j->ws == NULL) {
        loop_quit(j->app->loop);
        return;
    }
    ws_close(j->ws, WS_CODE_NORMAL, NULL);
    loop_timer_start(j->app->loop, &j->timer, CLOSE_NS, on_timer);
}

static void exec_fail(struct exec_call *j, const struct err *err)
{
    if (j->state == EXEC_ENDED || j->state == EXEC_LEAVING)
        return;
    j->err = *err;
    exec_end(j);
}

static void send_text(struct exec_call *j, const char *text)
{
    if (j->ws != NULL)
        (void)ws_send(j->ws, WS_TEXT, text, strlen(text));
}

static void send_signal(struct exec_call *j, int signo)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(CONTROL_MAX);

    if (job_write_signal(&text, signo) >= 0)
        send_text(j, buf_str(&text));
}

/* Without waiting for the command: it is killed, and boxd gets a moment to take note. */
static void exec_leave(struct exec_call *j, int status)
{
    if (j->state == EXEC_OPENING || j->state == EXEC_ENDED || j->state == EXEC_LEAVING) {
        loop_quit(j->app->loop);
        if (j->state == EXEC_OPENING)
            j->status = status;
        return;
    }
    if (j->state == EXEC_RUNNING && j->follows == NULL)
        send_signal(j, SIGKILL);
    exec_move(j, EXEC_LEAVING);
    j->status = status;
    intake_stop(&j->in);
    ws_pause(j->ws, false);
    ws_close(j->ws, WS_CODE_GOING_AWAY, NULL);
    loop_timer_start(j->app->loop, &j->timer, LEAVE_NS, on_timer);
}

/* Output. */

static void out_failed(struct exec_call *j, const struct sink *s)
{
    /* The reader is gone: like any program at the head of a pipe, we end, and so does the command.
     */
    if (s->error == EPIPE || s->error == ECONNRESET) {
        exec_leave(j, STATUS_SIGNAL + SIGPIPE);
        return;
    }
    (void)err_sys(&j->err, s->error, "write to standard %s", s == &j->out ? "output" : "error");
    exec_leave(j, STATUS_FAILED);
}

static void hold_back(struct exec_call *j)
{
    if (j->ws != NULL && j->state != EXEC_LEAVING)
        ws_pause(j->ws, sink_busy(&j->out) || sink_busy(&j->err_out));
}

static void out_changed(struct exec_call *j, const struct sink *s)
{
    if (s->error != 0 && j->state != EXEC_LEAVING)
        out_failed(j, s);
    else
        hold_back(j);
}

static void on_out(struct sink *s)
{
    out_changed(container_of(s, struct exec_call, out), s);
}

/* A command whose messages are not read still has its work to do. */
static void on_err_out(struct sink *s)
{
    struct exec_call *j = container_of(s, struct exec_call, err_out);

    if (s->error == EPIPE)
        hold_back(j);
    else
        out_changed(j, s);
}

static void got_output(struct exec_call *j, const char *data, size_t len)
{
    struct sink *s = data[0] == JOB_STDERR ? &j->err_out : &j->out;

    if ((data[0] != JOB_STDOUT && data[0] != JOB_STDERR) || j->args->verb == VERB_WAIT)
        return;
    (void)sink_write(s, data + 1, len - 1);
    s->changed(s);
}

/* Input. */

static void hold_input(struct exec_call *j)
{
    bool window_full =
        j->stdin_window > 0 && j->in_flight > 0 && j->in_flight + INTAKE_CHUNK > j->stdin_window;

    intake_pause(&j->in, j->ws == NULL || ws_full(j->ws) || window_full);
}

/* Copies what was typed, up to the keys that leave a detached command: then *ret_leaves. A KEY_P at
 * the end waits for the next key. */
static size_t take_keys(struct exec_call *j, const char *data, size_t len, char *ret,
                        bool *ret_leaves)
{
    size_t n = 0;

    for (size_t i = 0; i < len && !*ret_leaves; i++) {
        *ret_leaves = j->key && data[i] == KEY_Q;
        if (j->key && !*ret_leaves)
            ret[n++] = KEY_P;
        j->key = data[i] == KEY_P;
        if (!j->key && !*ret_leaves)
            ret[n++] = data[i];
    }
    return n;
}

static void on_input(struct intake *s, const char *data, size_t len)
{
    struct exec_call *j = container_of(s, struct exec_call, in);
    char message[INTAKE_CHUNK + 2]; /* the channel, and a key that waited */
    bool leaves = false;

    if (len == 0 && j->follows != NULL && j->with_tty) {
        exec_leave(j, STATUS_SIGNAL + SIGHUP); /* the terminal is gone, the command stays */
        return;
    }
    if (len == 0) {
        send_text(j, stdin_eof);
        return;
    }
    if (j->ws == NULL)
        return;
    message[0] = JOB_STDIN;
    if (j->follows != NULL && j->with_tty)
        len = take_keys(j, data, len, message + 1, &leaves);
    else
        memcpy(message + 1, data, len);
    if (len > 0)
        (void)ws_send(j->ws, WS_BINARY, message, len + 1);
    j->in_flight += (int64_t)len;
    hold_input(j);
    if (leaves)
        exec_leave(j, 0);
}

static void on_ws_writable(struct ws_conn *c, void *arg)
{
    hold_input(arg);
}

/* Messages. */

/* Only limits that the user asked for: `box doctor` reports defaults that are not enforced. */
static void say_unenforced(const struct args *args, const struct job_event *event)
{
    for (size_t i = 0; i < event->n_unenforced; i++)
        for (size_t f = 0; f < SPEC_FIELD_MAX; f++)
            if (args_given(args, (unsigned)f) &&
                str_eq(spec_model.fields[f].name, event->unenforced[i].field))
                text_say("%s is not enforced: %s", event->unenforced[i].field,
                         event->unenforced[i].why);
}

static int take_terminal(struct exec_call *j, struct err *err);
static void send_size(struct exec_call *j, uint16_t more);
static bool wants_stdin(const struct args *args);

/* The process is as it was started. One with a terminal sees its size change, so that it draws its
 * screen anew. */
static int got_followed(struct exec_call *j, const struct job_event *event, struct err *err)
{
    j->with_tty = event->tty && event->with_stdin;
    j->terms.with_stdin = event->with_stdin && (isatty(STDIN_FILENO) || wants_stdin(j->args));
    int r = take_terminal(j, err);
    if (r >= 0 && j->with_tty) {
        send_size(j, 1);
        send_size(j, 0);
    }
    return r;
}

static void got_started(struct exec_call *j, const struct job_event *event)
{
    struct err err;

    if (j->state != EXEC_ASKED)
        return; /* boxd says it once */
    exec_move(j, EXEC_RUNNING);
    app_patience_stop(j->app);
    if (j->follows != NULL && got_followed(j, event, &err) < 0) {
        exec_fail(j, &err);
        return;
    }
    if (event->temporary && j->args->verb == VERB_RUN && !j->args->temporary && !j->args->remove &&
        args_given(j->args, SPEC_SESSION_ID))
        text_say("session '%s' is not kept: it was made as a temporary one, or its backend cannot "
                 "keep it; add --temporary if that is fine",
                 j->args->spec->session_id);
    if (event->memory_mb > 0)
        j->context.memory_mb = event->memory_mb;
    say_unenforced(j->args, event);
    j->stdin_window = event->stdin_window;
    port_args_tell(j->args, event->host_ports);
    if (!j->terms.with_stdin)
        return;
    int r = intake_start(&j->in, j->app->loop, STDIN_FILENO, on_input);
    if (r < 0) {
        (void)err_sys(&err, -r, "read standard input");
        exec_fail(j, &err);
    }
}

static void got_event(struct exec_call *j, const char *data, size_t len)
{
    struct job_event event;
    struct err err;

    if (job_parse_event(data, len, &event, &err) < 0) {
        exec_fail(j, &err);
        return;
    }
    switch (event.type) {
    case JOB_EVENT_STARTED:
        got_started(j, &event);
        break;
    case JOB_EVENT_EXIT:
        j->has_report = true;
        j->report = event.outcome;
        exec_end(j);
        break;
    case JOB_EVENT_ERROR:
        exec_fail(j, &event.err);
        break;
    case JOB_EVENT_END:
        exec_end(j);
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
    struct exec_call *j = arg;

    if (j->state == EXEC_LEAVING || j->state == EXEC_ENDED)
        return;
    if (opcode == WS_TEXT)
        got_event(j, data, len);
    else if (len > 1)
        got_output(j, data, len);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    struct exec_call *j = arg;
    struct err err;

    j->ws = NULL;
    if (j->state == EXEC_LEAVING || j->state == EXEC_ENDED) {
        loop_quit(j->app->loop);
        return;
    }
    (void)app_lost(code, reason, &err);
    exec_fail(j, &err);
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct exec_call *j = arg;
    AUTO_DONE(buf) struct buf text = BUF_INIT(REQUEST_MAX);
    struct err err;

    j->ws = c;
    if (c == NULL) {
        (void)app_unreachable(j->app, cause, &err);
        exec_fail(j, &err);
        return;
    }
    exec_move(j, EXEC_ASKED);
    if (j->follows != NULL)
        return; /* the target says it all */
    int r = job_write_request(&text, j->args, &j->terms);
    if (r >= 0)
        r = ws_send(c, WS_TEXT, buf_str(&text), text.len);
    if (r < 0) {
        (void)err_sys(&err, -r, "send the command to boxd");
        exec_fail(j, &err);
    }
}

/* Signals. */

static void on_grace(struct loop_timer *t)
{
    exec_leave(container_of(t, struct exec_call, grace), STATUS_SIGNAL + SIGTERM);
}

/* A signal that ends us is meant for the command as well. One on a terminal loses it, too: shells
 * ignore TERM there, and obey HUP. */
static void ask_to_end(struct exec_call *j)
{
    send_signal(j, SIGTERM);
    if (j->with_tty)
        send_signal(j, SIGHUP);
    if (j->grace.loop == NULL)
        loop_timer_start(j->app->loop, &j->grace, TERM_NS, on_grace);
}

static void on_app_signal(struct app *app, int signo)
{
    struct exec_call *j = app->arg;
    uint64_t now = loop_now(app->loop);

    /* Of a detached command only Ctrl-C is meant for it, and only by a client that is attached. */
    bool leaves =
        j->follows != NULL && (j->args->verb != VERB_ATTACH || signo == SIGHUP || signo == SIGTERM);
    if (j->state != EXEC_RUNNING || leaves) {
        exec_leave(j, STATUS_SIGNAL + signo);
        return;
    }
    if (signo == SIGINT && j->last_int != 0 && now - j->last_int < SECOND_INT_NS) {
        exec_leave(j, STATUS_SIGNAL + SIGINT);
        return;
    }
    if (signo == SIGINT)
        j->last_int = now;
    if (signo == SIGTERM)
        ask_to_end(j);
    else
        send_signal(j, signo);
}

static void send_size(struct exec_call *j, uint16_t more)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(CONTROL_MAX);
    uint16_t rows, cols;

    tty_size(&rows, &cols);
    rows = (uint16_t)(rows + (rows < TTY_SIDE_MAX ? more : -more));
    if (j->state == EXEC_RUNNING && job_write_resize(&text, rows, cols) >= 0)
        send_text(j, buf_str(&text));
}

/* Stopped by another process (in raw mode Ctrl-Z is a key like any other): the shell shall find its
 * terminal as it was. */
static void on_window(struct loop_signal *s, int signo)
{
    struct exec_call *j = container_of(s, struct exec_call, window);
    struct err err;

    if (signo == SIGTSTP) {
        tty_restore(&j->tty);
        (void)raise(SIGSTOP);
        if (tty_make_raw(&j->tty, &err) < 0)
            text_say_err(&err);
    }
    send_size(j, 0);
}

static int take_terminal(struct exec_call *j, struct err *err)
{
    sigset_t set;

    if (!j->with_tty)
        return 0;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGWINCH);
    if (isatty(STDIN_FILENO))
        (void)sigaddset(&set, SIGTSTP);
    int r = loop_signal_start(j->app->loop, &j->window, &set, on_window);
    if (r < 0)
        return err_sys(err, -r, "watch the size of the terminal");
    return isatty(STDIN_FILENO) ? tty_make_raw(&j->tty, err) : 0;
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
static int exec_result(struct exec_call *j, struct err *err)
{
    AUTO_DONE(buf) struct buf say = BUF_INIT(1024);

    if (j->err.code != ERR_NONE) {
        *err = j->err;
        return err_code_errno(j->err.code);
    }
    if (!j->has_report)
        return j->status;
    int status = outcome_status(&j->report, &j->context, &say);
    if (say.len > 0)
        text_say("%s", buf_str(&say));
    if (j->args->verb == VERB_WAIT) {
        buf_reset(&say);
        (void)buf_printf(&say, "%d\n", status);
        status = text_print(&say, err);
    }
    return j->args->verb == VERB_LOGS ? 0 : status;
}

static int exec_run(struct exec_call *j, struct err *err)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_ws_writable, .closed = on_closed};
    const struct app_ws ws = {.target = j->follows != NULL ? j->follows : TARGET,
                              .handlers = &handlers,
                              .opened = on_opened};

    int r = take_terminal(j, err);
    if (r == 0)
        r = app_open_ws(j->app, &ws, j, err);
    if (r < 0)
        return r;
    j->app->take_signal = on_app_signal;
    j->app->arg = j;
    app_patience_start(j->app, "waiting for the session");
    r = app_wait(j->app, err);
    app_patience_stop(j->app);
    j->app->take_signal = NULL;
    return r;
}

static void exec_call_done(struct exec_call *j)
{
    intake_stop(&j->in);
    sink_done(&j->out);
    sink_done(&j->err_out);
    loop_timer_stop(&j->timer);
    loop_timer_stop(&j->grace);
    if (j->window.loop != NULL)
        loop_signal_stop(&j->window);
    tty_restore(&j->tty);
}
DEFINE_CLEANUP_DONE(exec_call)

/* A number of lines, or all of them; a wait wants none. */
static int read_tail(const struct args *args, uint64_t *ret, struct err *err)
{
    *ret = args->verb == VERB_LOGS ? TAIL_MAX : 0;
    if (args->tail == NULL || str_eq(args->tail, "all"))
        return 0;
    if (str_to_u64(args->tail, ret) < 0 || *ret > TAIL_MAX)
        return err_set(err, ERR_INVALID,
                       "--tail: '%.40s' is no number of lines; all is all of them", args->tail);
    return 0;
}

/* How long ago, as 1h30m; seconds since 1970; or a date and time in UTC, as 2026-01-31T12:00:00Z.
 */
static int read_since(const char *text, uint64_t *ret_ms, struct err *err)
{
    static const char units[] = "smhd";
    static const uint64_t seconds[] = {1, 60, 3600, 86400};
    struct tm tm = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    uint64_t now = (uint64_t)time(NULL), total = 0, number = 0;
    bool ago = false;

    if (end != NULL && (*end == '\0' || str_eq(end, "Z"))) {
        *ret_ms = (uint64_t)timegm(&tm) * 1000;
        return 0;
    }
    for (const char *at = text; *at != '\0'; at++) {
        const char *unit = strchr(units, *at);
        if (*at >= '0' && *at <= '9' && number < UINT32_MAX * 10ULL) {
            number = number * 10 + (uint64_t)(*at - '0');
        } else if (unit != NULL && at > text && at[-1] <= '9') {
            total += number * seconds[unit - units];
            number = 0;
            ago = true;
        } else {
            number = UINT64_MAX;
            break;
        }
    }
    if (text[0] == '\0' || number > UINT32_MAX * 10ULL || (ago && (number > 0 || total > now)))
        return err_set(err, ERR_INVALID,
                       "--since: '%.40s' is no time such as 10m, 1h30m or 2026-01-31T12:00:00Z",
                       text);
    *ret_ms = (ago ? now - total : number) * 1000;
    return 0;
}

int verb_follow(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(exec_call) struct exec_call j = {.app = app, .args = args};
    const bool attach = args->verb == VERB_ATTACH;
    AUTO_DONE(buf) struct buf body = BUF_INIT(MESSAGE_MAX);
    uint64_t tail = 0, since_ms = 0;
    int r = read_tail(args, &tail, err);

    if (r >= 0 && args->since != NULL)
        r = read_since(args->since, &since_ms, err);
    if (r >= 0)
        r = app_connect(app, DAEMON_RUNNING, err);
    if (r < 0)
        return r;
    AUTO_FREE char *log = xasprintf(
        "/v1/sessions/%s/processes/%s/log?since_ms=%llu", args->names[0],
        args->names[1] != NULL ? args->names[1] : PROCESS_START_ID, (unsigned long long)since_ms);
    AUTO_FREE char *check = xasprintf("%s&tail=0", log);
    AUTO_FREE char *target =
        xasprintf("%s&tail=%llu&follow=%d&stdin=%d&stdin_acks=1", log, (unsigned long long)tail,
                  args->verb != VERB_LOGS || args->follow, attach);
    r = app_call(app, "GET", check, &body, err); /* whose refusal says more than a WebSocket's */
    if (r < 0)
        return r;
    j.follows = target;
    j.context.program = args->names[0];
    sink_init(&j.out, app->loop, STDOUT_FILENO, 2 * MESSAGE_MAX, on_out);
    sink_init(&j.err_out, app->loop, STDERR_FILENO, 2 * MESSAGE_MAX, on_err_out);
    r = exec_run(&j, err);
    tty_restore(&j.tty);
    return r < 0 ? r : exec_result(&j, err);
}

int verb_command(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(exec_call) struct exec_call j = {.app = app, .args = args, .with_tty = args->tty};
    bool named = args_given(args, SPEC_SESSION_ID);
    enum daemon_kind need = args->verb == VERB_EXEC  ? DAEMON_RUNNING
                            : named && !args->remove ? DAEMON_KEPT
                                                     : DAEMON_ANY;

    if (args->detach)
        return verb_detach(app, args, err);
    if (args->restart != NULL)
        return err_set(err, ERR_INVALID, "--restart wants -d: box starts no terminal again");
    if (args->tty && args->interactive && !isatty(STDIN_FILENO))
        return err_set(err, ERR_INVALID,
                       "the input device is not a TTY; leave out -t, or run box in a terminal");
    j.terms.with_stdin = wants_stdin(args);
    tty_size(&j.terms.rows, &j.terms.cols);
    j.context.program = args->command[0];
    if (args_given(args, SPEC_TIMEOUT_SEC))
        j.context.timeout_sec = args->spec->timeout_sec;
    if (args_given(args, SPEC_MEMORY_MB))
        j.context.memory_mb = args->spec->memory_mb;
    sink_init(&j.out, app->loop, STDOUT_FILENO, 2 * MESSAGE_MAX, on_out);
    sink_init(&j.err_out, app->loop, STDERR_FILENO, 2 * MESSAGE_MAX, on_err_out);
    int r = port_args_check(args, err);
    if (r >= 0)
        r = app_connect(app, need, err);
    if (r >= 0 && named && args->remove)
        r = app_name_is_new(app, args->spec->session_id, err);
    if (r >= 0)
        r = exec_run(&j, err);
    tty_restore(&j.tty);
    return r < 0 ? r : exec_result(&j, err);
}
