/* SPDX-License-Identifier: Apache-2.0 */

/* Passes lines between an MCP client and its server, over the connection on which boxd holds the
 * session, and makes single HTTP calls beside it. Bytes stay as they are; each line is scanned for
 * the request that it asks or answers. */

#include "cli/mcp_run/run.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "spec/spec.h"

#define WINDOW (1u << 20)          /* bytes of lines that were sent and not acknowledged */
#define WAITING_MAX (2u << 20)     /* of those that wait for a server; then the client has to */
#define PART_MAX (1u << 20)        /* of a line of the server that is kept until it is whole */
#define PART_REPLAY (16u << 20)    /* and while it may have to be dropped */
#define OUT_QUEUE (24u << 20)      /* boxd sends no more than its ring holds before we ask for it */
#define ERR_QUEUE (256u << 10)     /* of stderr; what is above is dropped, and counted */
#define RECEIVED_EVERY (32u << 10) /* bytes, until boxd is told how far we are */
#define AWAKE_NS (NSEC_PER_MSEC / 2)
#define MISSES_MAX 8u

#define TARGET "/v1/hold"
#define REQUEST_MAX (24u << 20)
#define ANSWER_MAX (16u << 20)
#define GRACE_SEC 5 /* that boxd keeps the session after a lost connection */

enum { CHANNEL_STDIN, CHANNEL_STDOUT, CHANNEL_STDERR, CHANNEL_STDOUT_ACK };
#define ACK_SIZE 8U

/* Messages to boxd. */

static void send_message(struct mcp_run *m, struct buf *text, struct jw *w)
{
    jw_object_end(w);
    if (jw_end(w) >= 0 && m->ws != NULL)
        (void)ws_send(m->ws, WS_TEXT, buf_str(text), text->len);
}

static void begin_message(struct jw *w, struct buf *text, const char *type)
{
    buf_init(text, REQUEST_MAX);
    jw_init(w, text);
    jw_object(w);
    jw_kstr(w, "type", type);
}

void mcp_link_hold(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin_message(&w, &text, "hold");
    jw_kint(&w, "grace_sec", GRACE_SEC);
    jw_kbool(&w, "create", !m->has_session);
    jw_key(&w, "session");
    if (m->has_session) {
        jw_object(&w);
        jw_kstr(&w, "session_id", m->plan.session_id);
        jw_object_end(&w);
    } else {
        mcp_write_session(&w, &m->plan, m->args);
    }
    send_message(m, &text, &w);
}

void mcp_link_attach(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin_message(&w, &text, "attach");
    jw_kstr(&w, "process_id", m->process_id);
    jw_ku64(&w, "from", m->at);
    jw_ku64(&w, "stderr_from", m->err_at);
    jw_kbool(&w, "joined_acks", true);
    send_message(m, &text, &w);
}

static void send_plain(struct mcp_run *m, const char *type)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin_message(&w, &text, type);
    send_message(m, &text, &w);
}

void mcp_link_release(struct mcp_run *m)
{
    send_plain(m, "release");
}

/* How far we are, once the client has all of it. */
static void tell_received(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    if (sink_busy(&m->out) || m->at - m->received < RECEIVED_EVERY)
        return;
    begin_message(&w, &text, "received");
    jw_ku64(&w, "upto", m->at);
    m->received = m->at;
    send_message(m, &text, &w);
}

void mcp_link_info(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    const char *slash = strrchr(m->plan.server.command, '/');
    const struct mcp_info info = {
        .name = m->plan.name,
        .command = slash != NULL ? slash + 1 : m->plan.server.command,
        .session_id = m->plan.session_id,
        .status = m->status,
        .phase = m->phase,
        .error = m->error[0] != '\0' ? m->error : NULL,
        .retries = m->plan.retry.failed,
        .restarts = m->restarts,
        .tools = &m->tools,
        .pid = getpid(),
    };

    begin_message(&w, &text, "info");
    jw_key(&w, "info");
    mcp_write_info(&w, &info);
    send_message(m, &text, &w);
}

static void link_stdin(struct mcp_run *m, const char *data, size_t len)
{
    char small[4096];
    AUTO_FREE char *large = len + 1 > sizeof(small) ? xmalloc(len + 1) : NULL;
    char *message = large != NULL ? large : small;

    if (m->ws == NULL)
        return;
    message[0] = CHANNEL_STDIN;
    memcpy(message + 1, data, len);
    (void)ws_send(m->ws, WS_BINARY, message, len + 1);
}

/* Lines of the client. */

static void lines_add(struct client_lines *l, struct client_line *line)
{
    STAILQ_INSERT_TAIL(&l->list, line, entry);
    l->bytes += line->len;
}

static struct client_line *lines_take(struct client_lines *l)
{
    struct client_line *line = STAILQ_FIRST(&l->list);

    STAILQ_REMOVE_HEAD(&l->list, entry);
    l->bytes -= line->len;
    return line;
}

/* Moves all of `first` before what is in `l`. */
static void lines_put_before(struct client_lines *l, struct client_lines *first)
{
    STAILQ_CONCAT(&first->list, &l->list);
    STAILQ_CONCAT(&l->list, &first->list);
    l->bytes += first->bytes;
    first->bytes = 0;
}

static void lines_clear(struct client_lines *l)
{
    while (!STAILQ_EMPTY(&l->list))
        free(lines_take(l));
    assert(l->bytes == 0);
}

/* Being woken, on another processor, takes longer than the answer of a quick server does. So that
 * is waited for awake, for a moment; with one that is slower it is tried less and less often. */
static void expect_answer(struct mcp_run *m)
{
    struct mcp_awake *a = &m->awake;

    if (!a->possible)
        return;
    if (a->until != 0 && a->in_time)
        a->misses = 0;
    else if (a->until != 0)
        a->asleep = (1u << (a->misses < MISSES_MAX ? ++a->misses : MISSES_MAX)) - 1;
    a->until = 0;
    if (a->asleep > 0) {
        a->asleep--;
        return;
    }
    a->until = loop_now(m->app->loop) + AWAKE_NS;
    a->in_time = false;
    loop_stay_awake(m->app->loop, a->until);
}

static void note_answer(struct mcp_run *m)
{
    struct mcp_awake *a = &m->awake;

    if (a->until == 0 || a->in_time)
        return;
    a->in_time = loop_now(m->app->loop) <= a->until;
    if (m->book.n_asked == 0)
        loop_stay_awake(m->app->loop, 0);
}

static void write_out(struct mcp_run *m, const char *data, size_t len)
{
    if (len == 0)
        return;
    (void)sink_write(&m->out, data, len);
    if (m->out.error != 0)
        mcp_leave(m, 0); /* the client is gone */
}

/* To the server. */

static bool may_send(const struct mcp_run *m, const struct client_line *line)
{
    return m->step == STEP_SERVE && (!m->book.replaying || line->booked) && m->ws != NULL &&
           !ws_full(m->ws) && (m->sent.bytes == 0 || m->sent.bytes + line->len <= WINDOW);
}

static void hold_client(struct mcp_run *m)
{
    intake_pause(&m->in, m->waiting.bytes > WAITING_MAX);
}

static void pipe_send(struct mcp_run *m)
{
    while (!STAILQ_EMPTY(&m->waiting.list) && may_send(m, STAILQ_FIRST(&m->waiting.list))) {
        struct client_line *line = lines_take(&m->waiting);
        if (line->again)
            mcp_requests_sent_again(&m->book, line->data, line->len);
        line->again = false;
        size_t asked = m->book.n_asked;
        bool drop =
            !line->booked && mcp_requests_from_client(&m->book, line->data, line->len) == MCP_DROP;
        line->booked = true;
        if (drop) {
            free(line);
            continue;
        }
        mcp_explain_asked(m, line->data, line->len);
        link_stdin(m, line->data, line->len);
        if (m->book.n_asked > asked)
            expect_answer(m);
        m->sent_bytes += line->len;
        line->end = m->sent_bytes;
        lines_add(&m->sent, line);
    }
    if (m->client_ended && m->step == STEP_SERVE && mcp_pipe_idle(m) && !m->eof_sent) {
        m->eof_sent = true;
        send_plain(m, "stdin_eof");
    }
    hold_client(m);
}

/* Lines that the book of requests has already, before everything that waits. */
static void send_first(struct mcp_run *m, const struct buf *lines)
{
    if (lines->len > 0) {
        struct client_line *line = xcalloc(1, sizeof(*line) + lines->len);
        line->len = lines->len;
        line->booked = true;
        memcpy(line->data, lines->data, lines->len);
        STAILQ_INSERT_HEAD(&m->waiting.list, line, entry);
        m->waiting.bytes += line->len;
    }
    pipe_send(m);
}

void mcp_pipe_acked(struct mcp_run *m, uint64_t bytes)
{
    while (!STAILQ_EMPTY(&m->sent.list) && STAILQ_FIRST(&m->sent.list)->end <= bytes)
        free(lines_take(&m->sent));
    pipe_send(m);
}

void mcp_pipe_attached(struct mcp_run *m, bool same)
{
    AUTO_DONE(buf) struct buf lines = BUF_INIT(2 * MCP_LINE_MAX);
    struct client_line *line;

    if (same) {
        STAILQ_FOREACH(line, &m->sent.list, entry)
        line->again = true;
        lines_put_before(&m->waiting, &m->sent);
    } else {
        mcp_requests_replay(&m->book, &lines);
    }
    send_first(m, &lines);
}

bool mcp_pipe_idle(const struct mcp_run *m)
{
    return STAILQ_EMPTY(&m->waiting.list) && STAILQ_EMPTY(&m->sent.list) && !m->book.replaying;
}

void mcp_pipe_refuse_all(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(OUT_QUEUE / 2);

    mcp_requests_give_up(&m->book, why, &answers);
    while (!STAILQ_EMPTY(&m->waiting.list)) {
        struct client_line *line = lines_take(&m->waiting);
        if (!line->booked)
            mcp_requests_refuse(line->data, line->len, why, &answers);
        free(line);
    }
    lines_clear(&m->sent);
    write_out(m, answers.data, answers.len);
    hold_client(m);
}

/* From the client. */

static void on_long_line(void *arg, const struct mcp_msg *msg)
{
    struct mcp_run *m = arg;
    AUTO_DONE(buf) struct buf answers = BUF_INIT(65536);

    if (mcp_msg_is_request(msg) && !msg->id_cut)
        mcp_put_error(&answers, msg->id, MCP_SERVER_ERROR, "box: a request has at most 16 MiB");
    write_out(m, answers.data, answers.len);
}

static void client_line(struct mcp_run *m, const char *data, size_t len)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(65536);

    if (len == 1)
        return; /* an empty line says nothing */
    if (m->failed) {
        mcp_requests_refuse(data, len, m->error, &answers);
        write_out(m, answers.data, answers.len);
        return;
    }
    struct client_line *line = calloc(1, sizeof(*line) + len); /* the client sizes it */
    if (line == NULL) {
        mcp_say(m, "out of memory for a line of %zu bytes", len);
        return;
    }
    line->len = len;
    memcpy(line->data, data, len);
    lines_add(&m->waiting, line);
}

/* Bytes up to a newline, which is one of them when `whole`. */
static void client_part(struct mcp_run *m, const char *data, size_t len, bool whole)
{
    if (m->line_too_long || m->line.len + len > MCP_LINE_MAX) {
        if (!m->line_too_long) {
            mcp_scan_reset(&m->line_scan);
            mcp_scan_feed(&m->line_scan, buf_str(&m->line), m->line.len, on_long_line, m);
            buf_done(&m->line);
            m->line_too_long = true;
        }
        mcp_scan_feed(&m->line_scan, data, whole ? len - 1 : len, on_long_line, m);
        m->line_too_long = !whole;
        return;
    }
    if (whole && m->line.len == 0) {
        client_line(m, data, len);
        return;
    }
    (void)buf_append(&m->line, data, len);
    if (!whole)
        return;
    client_line(m, m->line.data, m->line.len);
    buf_done(&m->line);
}

static void on_input(struct intake *s, const char *data, size_t len)
{
    struct mcp_run *m = container_of(s, struct mcp_run, in);

    if (len == 0) {
        if (m->line.len > 0)
            client_part(m, "\n", 1, true); /* the last line of a file may lack it */
        mcp_client_ended(m);
        pipe_send(m);
        return;
    }
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) + 1 : len;
        client_part(m, data, n, end != NULL);
        data += n;
        len -= n;
    }
    pipe_send(m);
}

/* To the client. */

static void on_server(void *arg, const struct mcp_msg *msg)
{
    struct mcp_run *m = arg;
    enum mcp_verdict v = mcp_requests_from_server(&m->book, msg);

    if (v != MCP_PASS)
        m->from_server.verdict = v;
}

/* The handshake was answered again: what followed it, and then whatever waits. */
static void replayed(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf lines = BUF_INIT(2 * MCP_LINE_MAX);

    mcp_requests_replayed(&m->book, &lines);
    send_first(m, &lines);
}

static void reset_output(struct server_output *o)
{
    buf_reset(&o->part);
    o->passing = false;
    o->verdict = MCP_PASS;
    mcp_scan_reset(&o->scan);
}

/* An error that the box has to do with says so. True: the line was written. */
static bool explain_line(struct mcp_run *m, const char *rest, size_t len)
{
    struct server_output *o = &m->from_server;
    AUTO_DONE(buf) struct buf line = BUF_INIT(MCP_EXPLAIN_MAX);
    AUTO_DONE(buf) struct buf answer = BUF_INIT(8 * MCP_EXPLAIN_MAX);

    if (o->passing || len == 0 || o->part.len + len > MCP_EXPLAIN_MAX)
        return false;
    if (o->part.len > 0) {
        (void)buf_append(&line, o->part.data, o->part.len);
        (void)buf_append(&line, rest, len);
        rest = buf_str(&line);
        len = line.len;
    }
    if (!mcp_explain_answer(m, rest, len, &answer))
        return false;
    write_out(m, answer.data, answer.len);
    return true;
}

/* A line is whole; `rest` are its last bytes, newline and all, behind what is kept. */
static void server_line(struct mcp_run *m, const char *rest, size_t len)
{
    struct server_output *o = &m->from_server;
    enum mcp_verdict verdict = o->verdict;
    bool handshake = verdict == MCP_DROP && !o->passing;
    bool dropped = handshake || (verdict == MCP_TWICE && !o->passing);

    if (verdict == MCP_TOOLS && !o->passing) {
        (void)buf_append(&o->part, rest, len);
        mcp_tools_read(&m->tools, buf_str(&o->part), o->part.len, m->book.tools_more);
        rest = "";
        len = 0;
    }
    if (!dropped && !explain_line(m, rest, len)) {
        write_out(m, o->part.data, o->part.len);
        write_out(m, rest, len);
    }
    reset_output(o);
    if (o->part.cap > 65536)
        buf_done(&o->part);
    if (handshake)
        replayed(m);
    note_answer(m);
    mcp_server_spoke(m);
    if (verdict == MCP_TOOLS)
        mcp_link_info(m);
}

static void server_part(struct mcp_run *m, const char *data, size_t len)
{
    struct server_output *o = &m->from_server;

    if (!o->passing && o->part.len + len > (m->book.replaying ? PART_REPLAY : PART_MAX)) {
        o->passing = true;
        write_out(m, o->part.data, o->part.len);
        buf_done(&o->part);
    }
    if (o->passing)
        write_out(m, data, len);
    else
        (void)buf_append(&o->part, data, len);
}

static void pipe_stdout(struct mcp_run *m, const char *data, size_t len)
{
    struct server_output *o = &m->from_server;

    m->at += len;
    while (len > 0 && m->step != STEP_LEAVE) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) + 1 : len;
        mcp_scan_feed(&o->scan, data, end != NULL ? n - 1 : n, on_server, m);
        if (end != NULL)
            server_line(m, data, n);
        else
            server_part(m, data, n);
        data += n;
        len -= n;
    }
    tell_received(m);
}

void mcp_pipe_server_gone(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf answers = BUF_INIT(8u << 20);
    AUTO_FREE char *text = xasprintf("box: %s before it answered", why);

    if (m->from_server.passing)
        write_out(m, "\n", 1);
    else if (m->from_server.part.len > 0)
        mcp_say(m, "%zu bytes of a line that never ended were dropped", m->from_server.part.len);
    reset_output(&m->from_server);
    lines_clear(&m->sent);
    mcp_requests_server_died(&m->book, text, &answers);
    write_out(m, answers.data, answers.len);
}

/* A client that does not read what is said never holds us up. */
static void write_err(struct mcp_run *m, const char *data, size_t len)
{
    if (m->err_out.error != 0)
        return;
    if (m->err_out.queue.len - m->err_out.pos + len > ERR_QUEUE / 2) {
        m->err_lost += len;
        return;
    }
    if (m->err_lost > 0) {
        char note[96];
        (void)str_fmt(note, sizeof(note), "\nbox: %llu bytes of standard error were left out\n",
                      (unsigned long long)m->err_lost);
        m->err_lost = 0;
        (void)sink_write(&m->err_out, note, strlen(note));
    }
    (void)sink_write(&m->err_out, data, len);
}

static void pipe_stderr(struct mcp_run *m, const char *data, size_t len)
{
    m->err_at += len;
    write_err(m, data, len);
}

void mcp_pipe_note(struct mcp_run *m, const struct buf *line)
{
    if (m->err_out.loop != NULL)
        write_err(m, line->data, line->len);
    else
        (void)fd_write_all(STDERR_FILENO, line->data, line->len);
}

/* Messages from boxd. */

/* Output behind the number of bytes that the program was given. */
static void on_output(struct mcp_run *m, const char *data, size_t len)
{
    uint64_t given = 0;

    if (len < ACK_SIZE)
        return;
    for (unsigned i = 0; i < ACK_SIZE; i++)
        given = given << 8 | (unsigned char)data[i];
    pipe_stdout(m, data + ACK_SIZE, len - ACK_SIZE);
    mcp_pipe_acked(m, given);
}

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct mcp_run *m = arg;

    if (opcode == WS_TEXT) {
        AUTO(json) struct json *v = NULL;
        if (json_parse(data, len, &v, NULL) >= 0)
            mcp_boxd_said(m, v);
        return;
    }
    if (len > 1 && data[0] == CHANNEL_STDOUT)
        pipe_stdout(m, data + 1, len - 1);
    else if (len > 1 && data[0] == CHANNEL_STDOUT_ACK)
        on_output(m, data + 1, len - 1);
    else if (len > 1 && data[0] == CHANNEL_STDERR)
        pipe_stderr(m, data + 1, len - 1);
}

static void on_writable(struct ws_conn *c, void *arg)
{
    pipe_send(arg);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    struct mcp_run *m = arg;
    struct err why;

    m->ws = NULL;
    (void)app_lost(code, reason, &why);
    mcp_link_lost(m, why.msg);
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct mcp_run *m = arg;

    m->opening = false;
    m->ws = c;
    if (c == NULL) {
        mcp_link_lost(m, cause->msg);
        return;
    }
    if (m->step == STEP_LEAVE) {
        loop_quit(m->app->loop);
        return;
    }
    m->link_failures = 0;
    mcp_linked(m);
}

void mcp_link_open(struct mcp_run *m)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    static const struct app_ws ws = {.target = TARGET, .handlers = &handlers, .opened = on_opened};
    struct err cause;

    if (m->opening || m->ws != NULL)
        return;
    if (app_open_ws(m->app, &ws, m, &cause) < 0)
        mcp_link_lost(m, cause.msg);
    else
        m->opening = true;
}

/* Calls. */

static void on_head(struct http_call *c, const struct http1_head *head, void *arg)
{
    struct mcp_run *m = arg;

    m->call_status = head->status;
}

static void on_body(struct http_call *c, const char *data, size_t len, void *arg)
{
    struct mcp_run *m = arg;

    (void)buf_append(&m->answer, data, len);
}

static void on_done(struct http_call *c, const struct err *err, void *arg)
{
    struct mcp_run *m = arg;
    mcp_call_fn *done = m->call_done;

    m->call = NULL;
    m->call_done = NULL;
    if (done != NULL)
        done(m, m->call_status, err);
}

void mcp_call_cancel(struct mcp_run *m)
{
    if (m->call != NULL)
        http_call_cancel(m->call);
    m->call = NULL;
    m->call_done = NULL;
}

void mcp_call(struct mcp_run *m, const char *method, const char *target, const struct buf *body,
              mcp_call_fn *done)
{
    static const struct http_call_handlers handlers = {
        .head = on_head, .body = on_body, .done = on_done};
    struct app_headers headers = app_headers(m->app);
    struct err err;
    const struct http_call_opts opts = {.method = method,
                                        .target = target,
                                        .headers = headers.list,
                                        .type = body != NULL ? "application/json" : NULL,
                                        .body = body != NULL ? buf_str(body) : NULL,
                                        .body_len = body != NULL ? body->len : 0};

    mcp_call_cancel(m);
    buf_done(&m->answer);
    buf_init(&m->answer, ANSWER_MAX);
    m->call_status = 0;
    m->call_done = done;
    if (http_client_call(m->app->client, &opts, &handlers, m, &m->call, &err) < 0) {
        m->call_done = NULL;
        done(m, 0, &err);
    }
}

/* Beginning and end. */

static void on_out(struct sink *s)
{
    struct mcp_run *m = container_of(s, struct mcp_run, out);

    if (s->error != 0)
        mcp_leave(m, 0);
    else if (m->step == STEP_LEAVE)
        mcp_out_drained(m);
    else
        tell_received(m);
}

static void on_err_out(struct sink *s)
{
    (void)s; /* a server whose messages are not read still has its work to do */
}

static void on_out_gone(struct loop_io *io, uint32_t events)
{
    struct mcp_run *m = container_of(io, struct mcp_run, out_gone);

    if ((events & (EPOLLERR | EPOLLHUP)) == 0)
        return;
    loop_io_stop(io);
    mcp_leave(m, 0);
}

/* A reader that goes away is noticed at once, not with the next line. */
static void watch_reader(struct mcp_run *m)
{
    struct stat st;

    if (fstat(STDOUT_FILENO, &st) < 0 || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        return;
    m->out_copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3); /* writing is watched by another */
    if (m->out_copy >= 0)
        (void)loop_io_start(m->app->loop, &m->out_gone, m->out_copy, 0, on_out_gone);
}

void mcp_pipe_start(struct mcp_run *m)
{
    STAILQ_INIT(&m->waiting.list);
    STAILQ_INIT(&m->sent.list);
    buf_init(&m->line, MCP_LINE_MAX);
    buf_init(&m->from_server.part, PART_REPLAY + 65536);
    mcp_requests_init(&m->book);
    m->awake.possible = sysconf(_SC_NPROCESSORS_ONLN) > 1;
    sink_init(&m->out, m->app->loop, STDOUT_FILENO, OUT_QUEUE, on_out);
    sink_init(&m->err_out, m->app->loop, STDERR_FILENO, ERR_QUEUE, on_err_out);
    watch_reader(m);
}

void mcp_pipe_listen(struct mcp_run *m)
{
    if (m->listening || m->step == STEP_LEAVE)
        return;
    m->listening = true;
    int r = intake_start(&m->in, m->app->loop, STDIN_FILENO, on_input);
    if (r < 0) {
        mcp_say(m, "read standard input: %s", err_errno_text(-r));
        mcp_leave(m, MCP_STATUS_FAILED);
    }
}

void mcp_pipe_done(struct mcp_run *m)
{
    intake_stop(&m->in);
    loop_io_stop(&m->out_gone);
    if (m->out_copy >= 0)
        (void)close(TAKE_FD(m->out_copy));
    sink_done(&m->out);
    sink_done(&m->err_out);
    lines_clear(&m->waiting);
    lines_clear(&m->sent);
    buf_done(&m->line);
    buf_done(&m->from_server.part);
    mcp_requests_done(&m->book);
}
