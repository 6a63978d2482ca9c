/* SPDX-License-Identifier: Apache-2.0 */

/* Lists, starts, shows and stops managed processes over HTTP, and reads their output by offset. */

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "front/v1/v1_internal.h"
#include "loop/loop.h"
#include "session/process_reader.h"
#include "spec/process.h"

#define ANSWER_MAX (4U << 20)
#define BODY_MAX (4U << 20)
#define READ_DEFAULT (64U << 10)
#define READ_MAX (1U << 20)
#define STDERR_MAX (16U << 10)
#define WAIT_MAX_MS 60000U
#define LOOK_NS (100 * NSEC_PER_MSEC)

static void write_process(struct jw *w, struct process *p)
{
    struct proc_range range = process_range(p);

    front_write_process(w, p, session_id(process_session(p)));
    jw_kstr(w, "cwd", process_spec_of(p)->cwd);
    jw_kbool(w, "log", process_spec_of(p)->log);
    jw_kbool(w, "tty", process_spec_of(p)->tty);
    jw_kbool(w, "attached", process_attached(p));
    front_write_time(w, "started_at", process_started_at(p));
    if (!process_running(p)) {
        front_write_time(w, "exited_at", process_exited_at(p));
        jw_kint(w, "exit_code", process_exit_code(p));
    }
    if (process_reason(p) != NULL)
        jw_kstr(w, "reason", process_reason(p));
    front_write_stderr(w, p);
    jw_kobject(w, "output");
    jw_ku64(w, "begin", range.begin);
    jw_ku64(w, "end", range.end);
    jw_kbool(w, "eof", range.eof);
    jw_object_end(w);
}

static void reply_process(struct http_request *req, unsigned status, struct process *p)
{
    AUTO_DONE(front_answer) struct front_answer out;

    write_process(front_begin(&out, ANSWER_MAX), p);
    front_reply(&out, req, status);
}

/* The process of {id} and {process}. NULL: answered. */
static struct process *find_process(struct http_request *req, const struct v1 *v)
{
    struct session *s = front_use_session(req, &v->front, "process");
    if (s == NULL)
        return NULL;
    const char *id = http_request_param(req, "process");
    struct process *p = process_find(s, id);
    if (p == NULL) {
        struct err err = {0};
        (void)err_missing(&err, ERR_THING_PROCESS, "session %.80s has no process %.80s",
                          session_id(s), id);
        front_fail(req, &err);
    }
    return p;
}

static void list_processes(struct http_request *req, void *arg)
{
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "process");
    if (s == NULL)
        return;
    AUTO_DONE(front_answer) struct front_answer out;

    front_write_processes(front_begin(&out, ANSWER_MAX * 16U), s, write_process);
    front_reply(&out, req, 200);
}

static void get_process(struct http_request *req, void *arg)
{
    struct process *p = find_process(req, arg);
    if (p != NULL)
        reply_process(req, 200, p);
}

static void on_started(void *arg, struct process *p, const struct err *err)
{
    if (p == NULL)
        front_fail(arg, err);
    else
        reply_process(arg, 201, p);
}

static void start_process(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct session *s = front_use_session(req, &v->front, "process");
    if (s == NULL || !idem_begin(v->idem, req, asker.who) || !front_read_body(req, &body))
        return;
    const struct front_process want = {.session = s, .object = body};
    if (front_process_start(&v->front, &asker, &want, on_started, req, &err) < 0)
        front_fail(req, &err);
}

static void stop_process(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "process");
    if (s != NULL && process_stop(s, http_request_param(req, "process"), front_done, req, &err) < 0)
        front_fail(req, &err);
}

/* Output ------------------------------------------------------------------------------------- */

/* A request that waits for bytes that are not there yet. */
struct output_reading {
    struct http_request *req;
    struct process_reader reader;
    size_t max;
    uint64_t until; /* of stderr: when it is answered without any */
};

static void reply_bytes(struct http_request *req, const char *data, size_t len, uint64_t next,
                        bool end)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)next);
    (void)http_reply_header(req, "Box-Next-Offset", text);
    (void)http_reply_header(req, "Box-End", end ? "true" : "false");
    http_reply(req, 200, "application/octet-stream", data, len);
}

static void reply_output(struct http_request *req, struct process *p, uint64_t from, size_t max)
{
    struct proc_range range = process_range(p);
    AUTO_FREE char *data = xcalloc(1, max + 1);
    ssize_t n = process_read(p, from, data, max);
    if (n < 0) {
        front_failf(req, ERR_NOT_FOUND, "offset %llu is outside of what is kept, %llu to %llu",
                    (unsigned long long)from, (unsigned long long)range.begin,
                    (unsigned long long)range.end);
    } else {
        uint64_t next = from + (uint64_t)n;
        reply_bytes(req, data, (size_t)n, next, range.eof && next == range.end);
    }
}

static void reading_free(struct output_reading *r)
{
    process_reader_stop(&r->reader);
    free(r);
}

static void on_gone(struct process_reader *reader)
{
    struct output_reading *r = container_of(reader, struct output_reading, reader);
    struct err err = {0};
    (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
    front_fail(r->req, &err);
    reading_free(r);
}

static void on_output(struct process_reader *reader)
{
    struct output_reading *r = container_of(reader, struct output_reading, reader);
    reply_output(r->req, reader->process, reader->at, r->max);
    reading_free(r);
}

static void on_cancelled(struct http_request *req, void *arg)
{
    reading_free(arg);
    http_abort(req);
}

static struct output_reading *reading_start(struct http_request *req, struct process *p,
                                            uint64_t from,
                                            const struct process_reader_events *events)
{
    struct output_reading *r = xnew(struct output_reading);
    r->req = req;
    r->reader.at = from;
    process_reader_start(&r->reader, p, events);
    http_on_cancel(req, on_cancelled, r);
    return r;
}

/* from: where to begin; max: bytes at most; wait_ms: how long to wait for the first of them;
 * release=1: what lies before `from` was received and makes room for more. */
static void read_output(struct http_request *req, void *arg)
{
    static const struct process_reader_events events = {
        .output = on_output, .due = on_output, .ended = on_gone};
    uint64_t from, max, wait_ms, release;
    struct err err = {0};
    struct process *p = find_process(req, arg);
    if (p != NULL && process_check_plain(p, &err) < 0) {
        front_fail(req, &err);
        return;
    }
    if (p == NULL || !v1_query_number(req, "from", UINT64_MAX, process_range(p).begin, &from) ||
        !v1_query_number(req, "max", READ_MAX, READ_DEFAULT, &max) ||
        !v1_query_number(req, "wait_ms", WAIT_MAX_MS, 0, &wait_ms) ||
        !v1_query_number(req, "release", 1, 0, &release))
        return;
    struct proc_range range = process_range(p);
    if (release && from >= range.begin && from <= range.end && process_release(p, from, &err) < 0) {
        front_fail(req, &err);
        return;
    }
    if (from != range.end || range.eof || wait_ms == 0) {
        reply_output(req, p, from, max);
        return;
    }
    struct output_reading *r = reading_start(req, p, from, &events);
    r->max = max;
    process_reader_wait(&r->reader, wait_ms * NSEC_PER_MSEC);
}

/* False: there is no stderr yet, and some may come. Only the last part of it is kept, so a slow
 * reader misses bytes: Box-Next-Offset tells where those it got end. */
static bool reply_stderr(struct http_request *req, struct process *p, uint64_t from, bool patient)
{
    static char data[STDERR_MAX];
    size_t n = process_stderr_from(p, &from, data, sizeof(data));
    bool over = !process_running(p);
    if (n == 0 && !over && patient)
        return false;
    reply_bytes(req, data, n, from, over && n == 0);
    return true;
}

/* No event reports stderr, so we look again and again. */
static void on_look(struct process_reader *reader)
{
    struct output_reading *r = container_of(reader, struct output_reading, reader);
    if (reply_stderr(r->req, reader->process, reader->at, loop_now(reader->loop) < r->until))
        reading_free(r);
    else
        process_reader_wait(reader, LOOK_NS);
}

/* from: where to begin, 0 for all that is kept; wait_ms: how long to wait for the first byte. */
static void read_stderr(struct http_request *req, void *arg)
{
    static const struct process_reader_events events = {.due = on_look, .ended = on_gone};
    uint64_t from, wait_ms;
    struct process *p = find_process(req, arg);
    if (p == NULL || !v1_query_number(req, "from", UINT64_MAX, 0, &from) ||
        !v1_query_number(req, "wait_ms", WAIT_MAX_MS, 0, &wait_ms) ||
        reply_stderr(req, p, from, wait_ms > 0))
        return;
    struct output_reading *r = reading_start(req, p, from, &events);
    r->until = loop_now(r->reader.loop) + wait_ms * NSEC_PER_MSEC;
    process_reader_wait(&r->reader, LOOK_NS);
}

const struct http_route v1_process_routes[] = {
    {"GET", "/v1/sessions/{id}/processes", list_processes, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/processes", start_process, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}/processes/{process}", get_process, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}/processes/{process}", stop_process, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/processes/{process}/output", read_output, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/processes/{process}/stderr", read_stderr, HTTP_ROUTE_SCOPED, 0},
    {0},
};
