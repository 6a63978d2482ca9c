/* SPDX-License-Identifier: Apache-2.0 */

/* Passes lines between an MCP client and its server. Bytes stay as they are; each line is scanned
 * for the request that it asks or answers. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "cli/mcp.h"
#include "http/client/client.h"

#define WINDOW (1u << 20)          /* bytes of lines that were sent and not acknowledged */
#define WAITING_MAX (2u << 20)     /* of those that wait for a server; then the client has to */
#define PART_MAX (1u << 20)        /* of a line of the server that is kept until it is whole */
#define PART_REPLAY (16u << 20)    /* and while it may have to be dropped */
#define OUT_QUEUE (24u << 20)      /* boxd sends no more than its ring holds before we ask for it */
#define ERR_QUEUE (256u << 10)     /* of stderr; what is above is dropped, and counted */
#define RECEIVED_EVERY (32u << 10) /* bytes, until boxd is told how far we are */
#define AWAKE_NS (NSEC_PER_MSEC / 2)
#define MISSES_MAX 8u

static void lines_add(struct mcp_lines *l, struct mcp_line *line)
{
    line->next = NULL;
    *l->end = line;
    l->end = &line->next;
    l->bytes += line->len;
}

static struct mcp_line *lines_take(struct mcp_lines *l)
{
    struct mcp_line *line = l->first;

    l->first = line->next;
    if (l->first == NULL)
        l->end = &l->first;
    l->bytes -= line->len;
    return line;
}

static void lines_clear(struct mcp_lines *l)
{
    while (l->first != NULL)
        free(lines_take(l));
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

static void got_answer(struct mcp_run *m)
{
    struct mcp_awake *a = &m->awake;

    if (a->until == 0 || a->in_time)
        return;
    a->in_time = loop_now(m->app->loop) <= a->until;
    if (m->book.n_asked == 0)
        loop_stay_awake(m->app->loop, 0);
}

/* To the server. */

static bool may_send(const struct mcp_run *m, const struct mcp_line *line)
{
    return m->step == STEP_SERVE && (!m->book.replaying || line->booked) && m->ws != NULL &&
           !ws_full(m->ws) && (m->sent.bytes == 0 || m->sent.bytes + line->len <= WINDOW);
}

static void hold_client(struct mcp_run *m)
{
    source_pause(&m->in, m->waiting.bytes > WAITING_MAX);
}

void mcp_pipe_send(struct mcp_run *m)
{
    while (m->waiting.first != NULL && may_send(m, m->waiting.first)) {
        struct mcp_line *line = lines_take(&m->waiting);
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
        (void)mcp_link_stdin(m, line->data, line->len);
        if (m->book.n_asked > asked)
            expect_answer(m);
        m->sent_bytes += line->len;
        line->end = m->sent_bytes;
        lines_add(&m->sent, line);
    }
    if (m->client_ended && m->step == STEP_SERVE && mcp_pipe_idle(m) && !m->eof_sent) {
        m->eof_sent = true;
        mcp_link_stdin_eof(m);
    }
    hold_client(m);
}

void mcp_pipe_send_first(struct mcp_run *m, const struct buf *lines)
{
    if (lines->len > 0) {
        struct mcp_line *line = xcalloc(1, sizeof(*line) + lines->len);
        line->len = lines->len;
        line->booked = true;
        memcpy(line->data, lines->data, lines->len);
        line->next = m->waiting.first;
        if (m->waiting.first == NULL)
            m->waiting.end = &line->next;
        m->waiting.first = line;
        m->waiting.bytes += line->len;
    }
    mcp_pipe_send(m);
}

void mcp_pipe_acked(struct mcp_run *m, uint64_t bytes)
{
    while (m->sent.first != NULL && m->sent.first->end <= bytes)
        free(lines_take(&m->sent));
    mcp_pipe_send(m);
}

void mcp_pipe_resend(struct mcp_run *m)
{
    if (m->sent.first == NULL)
        return;
    for (struct mcp_line *line = m->sent.first; line != NULL; line = line->next)
        line->again = true;
    *m->sent.end = m->waiting.first;
    if (m->waiting.first == NULL)
        m->waiting.end = m->sent.end;
    m->waiting.first = m->sent.first;
    m->waiting.bytes += m->sent.bytes;
    m->sent = (struct mcp_lines){.end = &m->sent.first};
}

void mcp_pipe_forget(struct mcp_run *m)
{
    lines_clear(&m->sent);
}

bool mcp_pipe_idle(const struct mcp_run *m)
{
    return m->waiting.first == NULL && m->sent.first == NULL && !m->book.replaying;
}

void mcp_pipe_refuse_all(struct mcp_run *m, const char *why)
{
    AUTO_DONE(buf) struct buf answers;

    buf_init(&answers, OUT_QUEUE / 2);
    mcp_requests_give_up(&m->book, why, &answers);
    while (m->waiting.first != NULL) {
        struct mcp_line *line = lines_take(&m->waiting);
        if (!line->booked)
            mcp_requests_refuse(line->data, line->len, why, &answers);
        free(line);
    }
    lines_clear(&m->sent);
    mcp_pipe_answer(m, &answers);
    hold_client(m);
}

/* From the client. */

static void on_long_line(void *arg, const struct mcp_msg *msg)
{
    struct mcp_run *m = arg;
    AUTO_DONE(buf) struct buf answers;
    AUTO_DONE(buf) struct buf line;

    buf_init(&answers, 65536);
    buf_init(&line, 4096);
    (void)buf_printf(&line, "{\"id\":%s,\"method\":\"x\"}", msg->id);
    if (mcp_msg_is_request(msg) && !msg->id_cut)
        mcp_requests_refuse(buf_str(&line), line.len, "box: a request has at most 16 MiB",
                            &answers);
    mcp_pipe_answer(m, &answers);
}

static void client_line(struct mcp_run *m, const char *data, size_t len)
{
    AUTO_DONE(buf) struct buf answers;

    buf_init(&answers, 65536);
    if (len == 1)
        return; /* an empty line is nothing to anybody */
    if (m->failed) {
        mcp_requests_refuse(data, len, m->error, &answers);
        mcp_pipe_answer(m, &answers);
        return;
    }
    struct mcp_line *line = calloc(1, sizeof(*line) + len); /* the client sizes it */
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

static void client_ended(struct mcp_run *m)
{
    if (m->line.len > 0)
        client_part(m, "\n", 1, true); /* the last line of a file may lack it */
    m->client_ended = true;
    mcp_client_ended(m);
    if (m->step == STEP_WAIT || m->failed ||
        (mcp_pipe_idle(m) && m->step != STEP_SERVE && m->book.n_asked == 0))
        mcp_leave(m, m->failed ? MCP_STATUS_FAILED : 0);
}

static void on_input(struct source *s, const char *data, size_t len)
{
    struct mcp_run *m = container_of(s, struct mcp_run, in);

    if (len == 0) {
        client_ended(m);
        mcp_pipe_send(m);
        return;
    }
    while (len > 0) {
        const char *end = memchr(data, '\n', len);
        size_t n = end != NULL ? (size_t)(end - data) + 1 : len;
        client_part(m, data, n, end != NULL);
        data += n;
        len -= n;
    }
    mcp_pipe_send(m);
}

/* To the client. */

static void write_out(struct mcp_run *m, const char *data, size_t len)
{
    if (len == 0)
        return;
    (void)sink_write(&m->out, data, len);
    if (m->out.error != 0)
        mcp_client_left(m);
}

void mcp_pipe_answer(struct mcp_run *m, const struct buf *answers)
{
    write_out(m, answers->data, answers->len);
}

static void tell_received(struct mcp_run *m)
{
    if (!sink_busy(&m->out) && m->at - m->received >= RECEIVED_EVERY)
        mcp_link_received(m);
}

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
    AUTO_DONE(buf) struct buf lines;

    buf_init(&lines, 2 * MCP_LINE_MAX);
    mcp_requests_replayed(&m->book, &lines);
    mcp_pipe_send_first(m, &lines);
}

/* A line is whole; `rest` are its last bytes, newline and all, behind what is kept. */
static void server_line(struct mcp_run *m, const char *rest, size_t len)
{
    struct mcp_out *o = &m->from_server;
    enum mcp_verdict verdict = o->verdict;
    bool handshake = verdict == MCP_DROP && !o->passing;
    bool dropped = handshake || (verdict == MCP_TWICE && !o->passing);

    if (verdict == MCP_TOOLS && !o->passing) {
        (void)buf_append(&o->part, rest, len);
        mcp_tools_read(&m->tools, buf_str(&o->part), o->part.len, m->book.tools_more);
        rest = "";
        len = 0;
    }
    if (!dropped) {
        write_out(m, o->part.data, o->part.len);
        write_out(m, rest, len);
    }
    buf_reset(&o->part);
    if (o->part.cap > 65536)
        buf_done(&o->part);
    o->passing = false;
    o->verdict = MCP_PASS;
    mcp_scan_reset(&o->scan);
    if (handshake)
        replayed(m);
    got_answer(m);
    mcp_server_spoke(m);
    if (verdict == MCP_TOOLS)
        mcp_tell(m);
}

static void server_part(struct mcp_run *m, const char *data, size_t len)
{
    struct mcp_out *o = &m->from_server;

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

void mcp_pipe_stdout(struct mcp_run *m, const char *data, size_t len)
{
    struct mcp_out *o = &m->from_server;

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

void mcp_pipe_cut(struct mcp_run *m)
{
    struct mcp_out *o = &m->from_server;

    if (o->passing)
        write_out(m, "\n", 1);
    else if (o->part.len > 0)
        mcp_say(m, "%zu bytes of a line that never ended were dropped", o->part.len);
    buf_reset(&o->part);
    o->passing = false;
    o->verdict = MCP_PASS;
    mcp_scan_reset(&o->scan);
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

void mcp_pipe_stderr(struct mcp_run *m, const char *data, size_t len)
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

/* Beginning and end. */

static void on_out(struct sink *s)
{
    struct mcp_run *m = container_of(s, struct mcp_run, out);

    if (s->error != 0)
        mcp_client_left(m);
    else if (m->step == STEP_LEAVE)
        mcp_out_drained(m);
    else
        tell_received(m);
}

static void on_err_out(struct sink *s)
{
    (void)s; /* nobody reads messages: the server has its work to do all the same */
}

static void on_out_gone(struct loop_io *io, uint32_t events)
{
    struct mcp_run *m = container_of(io, struct mcp_run, out_gone);

    if ((events & (EPOLLERR | EPOLLHUP)) == 0)
        return;
    loop_io_stop(io);
    mcp_client_left(m);
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
    m->waiting.end = &m->waiting.first;
    m->sent.end = &m->sent.first;
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
    int r = source_start(&m->in, m->app->loop, STDIN_FILENO, on_input);
    if (r < 0) {
        mcp_say(m, "read standard input: %s", err_errno_text(-r));
        mcp_leave(m, MCP_STATUS_FAILED);
    }
}

void mcp_pipe_done(struct mcp_run *m)
{
    source_stop(&m->in);
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
