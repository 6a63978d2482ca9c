/* SPDX-License-Identifier: Apache-2.0 */

/* `box run` and `box exec`: one command over a WebSocket, with its streams, signals and
 * terminal. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
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
#include "cli/port.h"
#include "http/client/client.h"
#include "spec/model.h"
#include "spec/spec.h"

#define TARGET "/v1/exec"
#define REQUEST_MAX (24u << 20) /* arguments may fill ARG_MAX, and JSON may double them */
#define MESSAGE_MAX (1u << 20)  /* boxd sends less than 128 KiB at a time */
#define CONTROL_MAX 256
#define SECOND_INT_NS (2 * NSEC_PER_SEC)
#define LEAVE_NS (1 * NSEC_PER_SEC)
#define TERM_NS (10 * NSEC_PER_SEC) /* what a command gets to end by itself after SIGTERM */
#define UNENFORCED_MAX 8
#define CLOSE_NS (100 * NSEC_PER_MSEC)

/* Messages of /v1/exec: what boxd is sent, and what it tells of the end of a command. */

/* First byte of a binary message. */
enum job_channel { JOB_STDIN, JOB_STDOUT, JOB_STDERR };

struct job_terms {
    bool with_stdin;
    uint16_t rows, cols; /* of the terminal, when there is one */
};

enum outcome {
    OUTCOME_IS_EXITED,
    OUTCOME_IS_SIGNALED,
    OUTCOME_IS_TIMED_OUT,
    OUTCOME_IS_OOM_KILLED,
    OUTCOME_IS_QUOTA_EXCEEDED,
    OUTCOME_IS_SESSION_LOST,
    OUTCOME_IS_MAX,
};

struct outcome_report {
    enum outcome outcome;
    int64_t exit_code;   /* -1: none */
    int64_t signal;      /* 0: none */
    int64_t duration_ms; /* of the command */
    char error[256];     /* why the command never ran; "" when it did */
};

/* What this side knows of the command; 0 stands for unknown. */
struct outcome_context {
    const char *program; /* borrowed; its first argument */
    int64_t timeout_sec;
    int64_t memory_mb;
};

enum job_event_type {
    JOB_EVENT_OTHER, /* of a newer boxd; to be ignored */
    JOB_EVENT_STARTED,
    JOB_EVENT_EXIT,
    JOB_EVENT_ERROR,
    JOB_EVENT_STDIN_ACK,
};

struct job_event {
    enum job_event_type type;
    int64_t memory_mb;    /* STARTED: the limit, 0 when boxd does not tell */
    int64_t stdin_window; /* STARTED: see below, 0: no acknowledgements will come */
    bool temporary;       /* STARTED: boxd says that the session is not kept */
    struct {
        char field[32], why[160];
    } unenforced[UNENFORCED_MAX]; /* STARTED: limits of the session that are not */
    size_t n_unenforced;
    int64_t stdin_acked; /* STDIN_ACK: bytes the command has taken since the last one */
    uint16_t host_ports[PORT_NUMBERS_MAX]; /* STARTED: of the ports that were asked for */
    struct outcome_report outcome;         /* EXIT */
    struct err err;                        /* ERROR: in the words of boxd, with the remedy */
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

/* The exit status of box, and what it says beside it. */
static int outcome_status(const struct outcome_report *r, const struct outcome_context *context,
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

/* A text message of boxd. ERR_BACKEND for one that makes no sense. */
static int job_parse_event(const char *text, size_t len, struct job_event *ret, struct err *err)
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
        port_numbers_read(json_get(v, "ports"), ret->host_ports);
        read_unenforced(json_get(v, "unenforced"), ret);
    } else if (str_eq(type, "exit")) {
        ret->type = JOB_EVENT_EXIT;
        return parse_outcome(v, &ret->outcome, err);
    } else if (str_eq(type, "error")) {
        ret->type = JOB_EVENT_ERROR;
        (void)app_refusal(v, &ret->err);
    } else if (str_eq(type, "stdin_ack")) {
        ret->type = JOB_EVENT_STDIN_ACK;
        ret->stdin_acked = json_int(json_get(v, "bytes"));
    }
    return 0;
}

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
    if (j->state == EXEC_RUNNING)
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

    if (data[0] != JOB_STDOUT && data[0] != JOB_STDERR)
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

static void on_input(struct intake *s, const char *data, size_t len)
{
    struct exec_call *j = container_of(s, struct exec_call, in);
    char message[INTAKE_CHUNK + 1];

    if (len == 0) {
        send_text(j, stdin_eof);
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

static void got_started(struct exec_call *j, const struct job_event *event)
{
    struct err err;

    if (j->state != EXEC_ASKED)
        return; /* boxd says it once */
    exec_move(j, EXEC_RUNNING);
    app_patience_stop(j->app);
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
    if (j->args->tty)
        send_signal(j, SIGHUP);
    if (j->grace.loop == NULL)
        loop_timer_start(j->app->loop, &j->grace, TERM_NS, on_grace);
}

static void on_app_signal(struct app *app, int signo)
{
    struct exec_call *j = app->arg;
    uint64_t now = loop_now(app->loop);

    if (j->state != EXEC_RUNNING) {
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

static void send_size(struct exec_call *j)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(CONTROL_MAX);
    uint16_t rows, cols;

    tty_size(&rows, &cols);
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
    send_size(j);
}

static int take_terminal(struct exec_call *j, struct err *err)
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
    return status;
}

static int exec_run(struct exec_call *j, struct err *err)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_ws_writable, .closed = on_closed};
    static const struct app_ws ws = {.target = TARGET, .handlers = &handlers, .opened = on_opened};

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

/* --rm with a name: the session is made for this command and goes with it. One that exists is kept
 * by somebody. */
static int check_name_is_new(struct app *app, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(MESSAGE_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", id);
    int r = app_call(app, "GET", target, &body, err);

    if (r >= 0)
        return err_set(err, ERR_CONFLICT,
                       "session '%s' exists, and --rm would remove it; choose another name, or "
                       "leave out --rm",
                       id);
    return r != -EINTR && err->code == ERR_NOT_FOUND ? 0 : r;
}

int verb_command(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(exec_call) struct exec_call j = {.app = app, .args = args};
    bool named = args_given(args, SPEC_SESSION_ID);
    enum daemon_kind need = args->verb == VERB_EXEC  ? DAEMON_RUNNING
                            : named && !args->remove ? DAEMON_KEPT
                                                     : DAEMON_ANY;

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
        r = check_name_is_new(app, args->spec->session_id, err);
    if (r >= 0)
        r = exec_run(&j, err);
    tty_restore(&j.tty);
    return r < 0 ? r : exec_result(&j, err);
}
