/* SPDX-License-Identifier: Apache-2.0 */

/* What a process wrote, as a log: all at once, or over a WebSocket as it comes, with stdin and the
 * terminal of a detached command. Messages are those of /v1/exec (stream.c): `box logs`, `attach`
 * and `wait` follow a process as `box run` follows a command. Nothing here ends the process when
 * the client leaves. */

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "inside/wire.h"
#include "loop/loop.h"
#include "session/process_reader.h"
#include "spec/process.h"

#define MESSAGE_MAX (1U << 20)
#define TEXT_MAX (64U << 10)
#define TERMINAL_MAX 4096         /* rows, columns */
#define STDIN_WINDOW (256 * 1024) /* bytes a client with acknowledgements sends ahead */
#define WHOLE_MAX (2U << 20)      /* more than any process keeps */
#define TAIL_MAX 1000000000U
#define PIECE_MAX INSIDE_LOG_MAX
#define PUMP_PIECES 64                /* then other clients get their turn */
#define LOOK_NS (50 * NSEC_PER_MSEC)  /* no event tells of stderr that is not part of a log */
#define REST_NS (500 * NSEC_PER_MSEC) /* for output on its way when a process has ended */
#define STALL_NS (365ULL * 24 * 3600 * NSEC_PER_SEC) /* a pager at the other end */

/* Reading: the records of a log, or stderr and stdout of a process without one. --------------- */

struct log_cursor {
    struct process *process; /* borrowed */
    uint64_t at, err_at;     /* the next record or byte of stdout; of stderr */
    uint64_t since_ns;       /* records before are left out */
    uint64_t skip[2];        /* lines to leave out; those of a log count together, in the first */
};

struct log_piece {
    unsigned stream;          /* 0: stdout, 1: stderr */
    char data[1 + PIECE_MAX]; /* from the second byte on; the first is for the head of a frame */
    size_t begin, len;
};

/* The head first, so that a log of many small records costs no more than its bytes. A record is
 * hostile: it comes from beside the program. */
static bool next_record(struct log_cursor *c, struct log_piece *ret)
{
    struct proc_range range = process_range(c->process);
    struct inside_log head;
    if (c->at < range.begin)
        c->at = range.begin; /* the oldest records are gone */
    if (range.end - c->at < sizeof(head) ||
        process_read(c->process, c->at, (char *)&head, sizeof(head)) != sizeof(head))
        return false;
    if (inside_log_size(&head, SIZE_MAX) == 0) { /* nor is anything that follows */
        c->at = range.end;
        return false;
    }
    ssize_t n = process_read(c->process, c->at + sizeof(head), ret->data + 1, head.len);
    if (n != -ERANGE && n < (ssize_t)head.len)
        return false; /* the rest is on its way */
    c->at += sizeof(head) + head.len;
    ret->stream = head.stream;
    ret->len = n < 0 || head.time_ns < c->since_ns ? 0 : head.len; /* < 0: overwritten meanwhile */
    return true;
}

static bool next_bytes(struct log_cursor *c, struct log_piece *ret)
{
    ret->stream = 1;
    ret->len = process_stderr_from(c->process, &c->err_at, ret->data + 1, PIECE_MAX);
    if (ret->len > 0)
        return true;
    ret->stream = 0;
    if (c->at < process_range(c->process).begin)
        c->at = process_range(c->process).begin; /* its reader has released them */
    ssize_t n = process_read(c->process, c->at, ret->data + 1, PIECE_MAX);
    ret->len = n > 0 ? (size_t)n : 0;
    c->at += ret->len;
    return n > 0;
}

static bool is_log(const struct log_cursor *c)
{
    return process_spec_of(c->process)->log;
}

/* The next piece, which may have nothing in it. False: there is no more for now. */
static bool cursor_next(struct log_cursor *c, struct log_piece *ret)
{
    ret->begin = 1;
    if (!(is_log(c) ? next_record(c, ret) : next_bytes(c, ret)))
        return false;
    uint64_t *skip = &c->skip[is_log(c) ? 0 : ret->stream];
    while (*skip > 0 && ret->len > 0) {
        const char *line = memchr(ret->data + ret->begin, '\n', ret->len);
        size_t gone = line != NULL ? (size_t)(line - ret->data) + 1 - ret->begin : ret->len;
        ret->begin += gone;
        ret->len -= gone;
        *skip -= line != NULL;
    }
    return true;
}

/* Moves a cursor to where all has been read that is there now, and leaves out all but the last
 * `tail` lines from where it was. Returns the first place. */
static struct log_cursor cursor_to_end(struct log_cursor *c, uint64_t tail)
{
    static struct log_piece piece;
    struct log_cursor begin = *c;
    uint64_t lines[2] = {0}, stop = process_range(c->process).end;
    char last[2] = {'\n', '\n'};
    while (c->at < stop || !is_log(c)) { /* stderr without a log is never more than it keeps */
        if (!cursor_next(c, &piece))
            break;
        unsigned i = is_log(c) ? 0 : piece.stream;
        for (size_t k = 0; k < piece.len; k++)
            lines[i] += piece.data[1 + k] == '\n';
        if (piece.len > 0)
            last[i] = piece.data[piece.len];
        if (!is_log(c) && c->at >= stop)
            break;
    }
    for (int i = 0; i < 2; i++) {
        lines[i] += last[i] != '\n';
        begin.skip[i] = lines[i] > tail ? lines[i] - tail : 0;
    }
    return tail > 0 ? begin : *c;
}

/* Following. ---------------------------------------------------------------------------------- */

struct log_stream {
    struct ws_conn *ws; /* NULL once closed */
    struct process_reader reader;
    struct log_cursor cursor;
    struct log_cursor end; /* without `follow`: where to stop */
    uint64_t tail;         /* lines to begin with */
    bool begun;            /* the two cursors are where they belong */
    bool follow, with_stdin, acks;
    bool rested; /* no more output is waited for */
    bool ended;  /* all has been said */
    size_t unacked;
    struct loop_timer rest;
    struct loop_defer again;
};

static struct log_stream *stream_of(const struct process_reader *r)
{
    return container_of(r, struct log_stream, reader);
}

static void log_stream_free(struct log_stream *st)
{
    process_reader_stop(&st->reader);
    loop_timer_stop(&st->rest);
    loop_defer_stop(&st->again);
    free(st);
}

static void say_last(struct log_stream *st, struct front_answer *out)
{
    st->ended = true;
    front_send(out, st->ws);
    ws_close(st->ws, WS_CODE_NORMAL, NULL);
}

static void say_end(struct log_stream *st)
{
    AUTO_DONE(front_answer) struct front_answer out;
    jw_kstr(front_begin(&out, TEXT_MAX), "type", "end");
    say_last(st, &out);
}

/* What a process that never ran has not said itself is the error. */
static void say_exit(struct log_stream *st, struct process *p)
{
    AUTO_DONE(front_answer) struct front_answer out;
    AUTO_DONE(buf) struct buf why = BUF_INIT(PROCESS_STDERR_CHARS * 4U + 1U);
    struct jw *w = front_begin(&out, TEXT_MAX);
    int code = process_exit_code(p);

    if (is_log(&st->cursor))
        process_stderr_preview(p, &why);
    jw_kstr(w, "type", "exit");
    jw_kstr(w, "outcome", code < 0 ? "signaled" : "exited");
    if (code < 0)
        jw_knull(w, "exit_code");
    else
        jw_kint(w, "exit_code", code);
    if (code < 0)
        jw_kint(w, "signal", -code);
    else
        jw_knull(w, "signal");
    uint64_t began = process_started_at(p), ended = process_exited_at(p); /* by the wall clock */
    jw_ku64(w, "duration_ms", ended > began ? (ended - began) / NSEC_PER_MSEC : 0);
    jw_kstr(w, "error", buf_str(&why));
    say_last(st, &out);
}

static void say_started(struct log_stream *st, const struct process *p)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, TEXT_MAX);

    jw_kstr(w, "type", "started");
    jw_kstr(w, "session_id", session_id(process_session(p)));
    jw_kstr(w, "process_id", process_spec_of(p)->process_id);
    jw_kbool(w, "tty", process_spec_of(p)->tty);
    jw_kbool(w, "stdin", st->with_stdin);
    if (st->acks)
        jw_kint(w, "stdin_window", STDIN_WINDOW);
    front_send(&out, st->ws);
}

static void log_pump(struct log_stream *st);

static void on_rest(struct loop_timer *t)
{
    struct log_stream *st = container_of(t, struct log_stream, rest);
    st->rested = true;
    log_pump(st);
}

static void on_again(struct loop_defer *d)
{
    log_pump(container_of(d, struct log_stream, again));
}

/* All that is there was sent. */
static void log_settle(struct log_stream *st)
{
    struct process *p = st->reader.process;
    if (!st->follow && process_running(p)) {
        say_end(st);
    } else if (process_running(p)) {
        if (!is_log(&st->cursor))
            process_reader_wait(&st->reader, LOOK_NS);
    } else if (process_range(p).eof || st->rested || !st->follow) {
        say_exit(st, p);
    } else if (st->rest.loop == NULL) { /* a child in the background may hold the streams */
        loop_timer_start(st->reader.loop, &st->rest, REST_NS, on_rest);
    }
}

static void log_pump(struct log_stream *st)
{
    static struct log_piece piece;
    bool more = true;
    if (!st->begun && st->reader.process != NULL) {
        if (process_range(st->reader.process).behind)
            return; /* its last lines are not here yet */
        st->begun = true;
        st->end.at = process_range(st->reader.process).begin;
        st->cursor = cursor_to_end(&st->end, st->tail);
    }
    for (int i = 0; i < PUMP_PIECES && more; i++) {
        if (st->ws == NULL || st->ended || st->reader.process == NULL || ws_full(st->ws))
            return;
        bool at_end = !st->follow && st->cursor.at >= st->end.at &&
                      (is_log(&st->cursor) || st->cursor.err_at >= st->end.err_at);
        more = !at_end && cursor_next(&st->cursor, &piece);
        if (!more || piece.len == 0)
            continue;
        char *frame = piece.data + piece.begin - 1;
        frame[0] = (char)(1 + piece.stream);
        (void)ws_send(st->ws, WS_BINARY, frame, piece.len + 1);
    }
    if (more)
        loop_defer_start(st->reader.loop, &st->again, on_again);
    else
        log_settle(st);
}

static void on_output(struct process_reader *r)
{
    log_pump(stream_of(r));
}

/* Its turn to write: what the client has sent meanwhile is read now. */
static void on_active(struct process_reader *r)
{
    if (stream_of(r)->ws != NULL)
        ws_pause(stream_of(r)->ws, false);
}

static void on_drained(struct process_reader *r)
{
    struct log_stream *st = stream_of(r);
    if (st->ws == NULL)
        return;
    if (st->acks)
        v1_say_stdin_ack(st->ws, &st->unacked);
    else
        ws_pause(st->ws, false);
}

static void on_gone(struct process_reader *r)
{
    struct log_stream *st = stream_of(r);
    AUTO_DONE(front_answer) struct front_answer out;
    struct err err = {0};
    if (st->ws == NULL || st->ended)
        return;
    struct jw *w = front_begin(&out, TEXT_MAX);
    (void)err_missing(&err, ERR_THING_PROCESS, "the process was ended and forgotten meanwhile");
    jw_kstr(w, "type", "error");
    front_write_problem(w, &err);
    say_last(st, &out);
}

static const struct process_reader_events log_events = {.output = on_output,
                                                        .due = on_output,
                                                        .active = on_active,
                                                        .drained = on_drained,
                                                        .ended = on_gone,
                                                        .stays = true};

/* What the client says. */

static void log_stdin(struct log_stream *st, const char *data, size_t len)
{
    if (st->reader.state != READER_ACTIVE)
        return; /* no program reads */
    int r = process_reader_write(&st->reader, data, len);
    if (r == -ENOBUFS) {
        ws_close(st->ws, WS_CODE_TOO_BIG, "stdin arrives faster than the program reads");
        return;
    }
    st->unacked += len;
    if (st->acks && r != 1)
        v1_say_stdin_ack(st->ws, &st->unacked);
    else if (!st->acks && r == 1)
        ws_pause(st->ws, true);
}

static void log_stdin_eof(struct log_stream *st)
{
    if (st->reader.state != READER_ACTIVE)
        return;
    if (process_spec_of(st->reader.process)->tty)
        (void)process_reader_write(&st->reader, "\004", 1); /* what a person would type */
    else
        process_reader_close_stdin(&st->reader);
}

static void log_control(struct log_stream *st, const struct json *m)
{
    const char *type = json_str(json_get(m, "type"));
    struct process *p = st->reader.process;
    if (!st->with_stdin || type == NULL)
        return; /* one that only looks changes nothing */
    if (str_eq(type, "stdin_eof")) {
        log_stdin_eof(st);
    } else if (str_eq(type, "resize")) {
        int64_t rows = json_int(json_get(m, "rows")), cols = json_int(json_get(m, "cols"));
        if (rows > 0 && rows <= TERMINAL_MAX && cols > 0 && cols <= TERMINAL_MAX)
            process_resize(p, (uint16_t)rows, (uint16_t)cols);
    } else if (str_eq(type, "signal")) {
        int signo = v1_signal_number(json_str(json_get(m, "signal")));
        if (signo > 0)
            (void)process_signal(p, signo, NULL);
    }
}

static void on_message(struct ws_conn *ws, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct log_stream *st = arg;
    AUTO(json) struct json *m = NULL;
    if (st->ended || st->reader.process == NULL)
        return;
    if (opcode == WS_BINARY) {
        if (len > 1 && data[0] == 0 && st->with_stdin)
            log_stdin(st, data + 1, len - 1);
    } else if (json_parse(data, len, &m, NULL) == 0) {
        log_control(st, m);
    }
}

static void on_writable(struct ws_conn *ws, void *arg)
{
    log_pump(arg);
}

static void on_closed(struct ws_conn *ws, unsigned code, const char *reason, void *arg)
{
    struct log_stream *st = arg;
    st->ws = NULL;
    log_stream_free(st);
}

static void log_follow(struct http_request *req, const struct log_stream *want)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    const struct ws_opts opts = {
        .max_message = MESSAGE_MAX, .stall_ns = STALL_NS, .hangup_ends = true};
    struct log_stream *st = xnew(struct log_stream);
    struct process *p = want->cursor.process;
    struct err err = {0};
    *st = *want;
    if (http_upgrade_ws(req, &opts, &handlers, st, &st->ws, &err) < 0) {
        free(st);
        return;
    }
    process_reader_start(&st->reader, p, &log_events);
    st->with_stdin =
        st->with_stdin && is_log(&st->cursor) && process_reader_claim(&st->reader, &err) == 0;
    say_started(st, p);
    if (st->with_stdin)
        ws_pause(st->ws, true); /* until its turn has come */
    log_pump(st);
}

/* All at once. -------------------------------------------------------------------------------- */

static void reply_log(struct http_request *req, struct log_cursor *c, const struct log_cursor *end)
{
    static struct log_piece piece;
    AUTO_DONE(buf) struct buf out = BUF_INIT(WHOLE_MAX);
    while ((c->at < end->at || c->err_at < end->err_at) && cursor_next(c, &piece))
        if (buf_append(&out, piece.data + piece.begin, piece.len) < 0)
            break;
    http_reply(req, 200, "application/octet-stream", out.data, out.len);
}

/* A session that is stopped stays so: it has no process any more. NULL: answered. */
static struct process *find_process(struct http_request *req, const struct v1 *v)
{
    struct session *s = front_look_session(req, &v->front, "process");
    if (s == NULL)
        return NULL;
    const char *id = http_request_param(req, "process");
    struct process *p = process_find(s, id);
    struct err err = {0};
    if (p == NULL && str_eq(id, PROCESS_START_ID)) {
        p = process_next(s,
                         NULL); /* where a session is for no command, its only process is meant */
        p = p != NULL && process_next(s, p) == NULL ? p : NULL;
    }
    if (p == NULL) {
        (void)err_missing(&err, ERR_THING_PROCESS,
                          "session '%.80s' %s process %.80s; 'box inspect %.80s' lists them",
                          session_id(s), session_dormant(s) ? "is stopped and has no" : "has no",
                          id, session_id(s));
        front_fail(req, &err);
    }
    return p;
}

/* since_ms: what was written after that time; tail: the last lines only; over a WebSocket follow=1:
 * until the process ends, stdin=1: with its stdin, stdin_acks=1: as for /v1/exec. */
static void read_log(struct http_request *req, void *arg)
{
    struct log_stream want = {0};
    uint64_t since_ms;
    struct process *p = find_process(req, arg);
    if (p == NULL || !v1_query_number(req, "since_ms", UINT64_MAX / NSEC_PER_MSEC, 0, &since_ms) ||
        !v1_query_number(req, "tail", TAIL_MAX, TAIL_MAX, &want.tail))
        return;
    if (since_ms > 0 && !process_spec_of(p)->log) {
        front_failf(req, ERR_INVALID,
                    "process %.100s keeps no times, only one with log does; leave out since",
                    process_spec_of(p)->process_id);
        return;
    }
    want.follow = v1_query_flag(req, "follow", false);
    want.with_stdin = v1_query_flag(req, "stdin", false);
    want.acks = v1_query_flag(req, "stdin_acks", false);
    want.end = (struct log_cursor){
        .process = p, .at = process_range(p).begin, .since_ns = since_ms * NSEC_PER_MSEC};
    if (http_request_header(req, "Upgrade") != NULL) {
        want.cursor = want.end;
        log_follow(req, &want);
        return;
    }
    want.cursor = cursor_to_end(&want.end, want.tail);
    reply_log(req, &want.cursor, &want.end);
}

static void signal_process(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct process *p = find_process(req, arg);
    if (p == NULL || !front_read_body(req, &body))
        return;
    int signo = v1_read_signal(req, body);
    if (signo == 0)
        return;
    if (process_signal(p, signo, &err) < 0)
        front_fail(req, &err);
    else
        http_reply(req, 204, NULL, NULL, 0);
}

const struct http_route v1_log_routes[] = {
    {"GET", "/v1/sessions/{id}/processes/{process}/log", read_log, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/processes/{process}/signal", signal_process, HTTP_ROUTE_SCOPED, 0},
    {0},
};
