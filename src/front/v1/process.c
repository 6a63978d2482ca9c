/* SPDX-License-Identifier: Apache-2.0 */

/* Lists, starts, shows and stops managed processes over HTTP, and reads their stdout by offset. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "front/v1/idem.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "session/manager.h"
#include "session/process.h"
#include "spec/process.h"

#define ANSWER_MAX (4U << 20)
#define BODY_MAX (4U << 20)
#define READ_DEFAULT (64U << 10)
#define READ_MAX (1U << 20)
#define WAIT_MAX_MS 60000U

static void write_process(struct jw *w, struct process *p)
{
    const struct process_spec *spec = process_spec_of(p);
    AUTO_DONE(buf) struct buf preview;
    struct proc_range range = process_range(p);
    char when[40];
    buf_init(&preview, PROCESS_STDERR_CHARS * 4U + 1U);
    process_stderr_preview(p, &preview);
    jw_object(w);
    jw_kstr(w, "session_id", session_id(process_session(p)));
    jw_kstr(w, "process_id", spec->process_id);
    jw_kstr(w, "status", process_running(p) ? "running" : "exited");
    jw_kstr(w, "command", spec->command);
    jw_key(w, "args");
    jw_array(w);
    for (char **arg = spec->args; arg != NULL && *arg != NULL; arg++)
        jw_str(w, *arg);
    jw_array_end(w);
    jw_kstr(w, "cwd", spec->cwd);
    jw_kbool(w, "attached", process_attached(p));
    clock_format(process_started_at(p), when, sizeof(when));
    jw_kstr(w, "started_at", when);
    if (!process_running(p)) {
        clock_format(process_exited_at(p), when, sizeof(when));
        jw_kstr(w, "exited_at", when);
        jw_kint(w, "exit_code", process_exit_code(p));
    }
    if (process_reason(p) != NULL)
        jw_kstr(w, "reason", process_reason(p));
    jw_kstr(w, "stderr_preview", buf_str(&preview));
    jw_key(w, "output");
    jw_object(w);
    jw_ku64(w, "begin", range.begin);
    jw_ku64(w, "end", range.end);
    jw_kbool(w, "eof", range.eof);
    jw_object_end(w);
    jw_object_end(w);
}

static void reply_process(struct http_request *req, unsigned status, struct process *p)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, ANSWER_MAX);
    jw_init(&w, &out);
    write_process(&w, p);
    front_reply_json(req, status, &out, &w);
}

struct process *v1_find_process(struct http_request *req, const struct v1 *v)
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
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "process");
    buf_init(&out, ANSWER_MAX * 16U);
    if (s == NULL)
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "processes");
    jw_array(&w);
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        write_process(&w, p);
    jw_array_end(&w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static void get_process(struct http_request *req, void *arg)
{
    struct process *p = v1_find_process(req, arg);
    if (p != NULL)
        reply_process(req, 200, p);
}

struct starting {
    struct http_request *req;
    const struct v1 *v1;
};

static void on_started(void *arg, struct process *p, const struct err *err)
{
    struct starting *st = arg;
    if (p == NULL) {
        struct audit_record record = {.event = AUDIT_PROCESS_END,
                                      .session = http_request_param(st->req, "id")};
        front_failed(&st->v1->front, st->req, err, NULL, &record);
        front_fail(st->req, err);
    } else {
        reply_process(st->req, 201, p);
        quota_guard(st->v1->front.service, process_session(p));
    }
    free(st);
}

/* Before it starts: what cannot be recorded does not, where that is asked for. */
static int record_start(const struct v1 *v, const struct http_request *req,
                        const struct process_spec *spec, struct err *err)
{
    AUTO_FREE char *args = policy_command_text(spec->args, NULL);
    AUTO_FREE char *command = xasprintf("%s %s", spec->command, args);
    struct audit_record record = {.event = AUDIT_PROCESS_START,
                                  .session = http_request_param(req, "id"),
                                  .process = spec->process_id,
                                  .command = command,
                                  .command_len = strlen(command)};
    int r = policy_service_guard(v->front.service, err);
    if (r == 0 && v->front.service->audit != NULL)
        r = audit_ready(v->front.service->audit, err);
    return r < 0 ? r : front_audit(&v->front, req, &record, err);
}

static void start_process(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    AUTO(process_spec) struct process_spec *spec = NULL;
    struct err err = {0};
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "process");
    const struct v1 *v = arg;
    if (s == NULL || !idem_begin(v->idem, req, front_who(req)) || !front_read_body(req, &body))
        return;
    struct starting *st = xnew(struct starting);
    st->req = req;
    st->v1 = arg;
    int r = front_strict(&process_spec_model, body, NULL, &err);
    if (r == 0)
        r = process_spec_parse(body, &spec, &err);
    if (r == 0)
        spec->owner = front_owner(front_caller(req));
    if (r == 0)
        r = record_start(arg, req, spec, &err);
    if (r == 0 && process_start(s, &spec, on_started, st, &err) < 0) {
        on_started(st, NULL, &err);
    } else if (r < 0) {
        front_fail(req, &err);
        free(st);
    }
}

static void on_stopped(void *arg, const struct err *err)
{
    if (err != NULL)
        front_fail(arg, err);
    else
        http_reply(arg, 204, NULL, NULL, 0);
}

static void stop_process(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "process");
    if (s != NULL && process_stop(s, http_request_param(req, "process"), on_stopped, req, &err) < 0)
        front_fail(req, &err);
}

/* Output ------------------------------------------------------------------------------------- */

/* A reader that waits for bytes that are not there yet. */
struct reading {
    struct http_request *req;
    struct process_watch watch;
    struct loop_timer timer;
    uint64_t from;
    size_t max;
};

bool v1_query_number(struct http_request *req, const char *name, uint64_t most, uint64_t otherwise,
                     uint64_t *ret)
{
    char text[24];
    struct err err = {0};
    ssize_t len = http_request_query_get(req, name, text, sizeof(text));
    *ret = otherwise;
    if (len == -ENOENT || (len >= 0 && str_to_u64(text, ret) == 0 && *ret <= most))
        return true;
    (void)err_set(&err, ERR_INVALID, "%s must be a whole number from 0 to %llu", name,
                  (unsigned long long)most);
    front_fail(req, &err);
    return false;
}

static void reply_output(struct http_request *req, struct process *p, uint64_t from, size_t max)
{
    struct proc_range range = process_range(p);
    struct err err = {0};
    char *data = xcalloc(1, max + 1);
    char text[24];
    ssize_t n = process_read(p, from, data, max);
    if (n < 0) {
        (void)err_set(&err, ERR_NOT_FOUND, "offset %llu is outside of what is kept, %llu to %llu",
                      (unsigned long long)from, (unsigned long long)range.begin,
                      (unsigned long long)range.end);
        front_fail(req, &err);
    } else {
        (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)from + (uint64_t)n);
        (void)http_reply_header(req, "Box-Next-Offset", text);
        (void)http_reply_header(req, "Box-End",
                                range.eof && from + (uint64_t)n == range.end ? "true" : "false");
        http_reply(req, 200, "application/octet-stream", data, (size_t)n);
    }
    free(data);
}

static void finish_reading(struct reading *r, struct process *p)
{
    process_watch_stop(&r->watch);
    loop_timer_stop(&r->timer);
    if (p != NULL) {
        reply_output(r->req, p, r->from, r->max);
    } else {
        struct err err = {0};
        (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
        front_fail(r->req, &err);
    }
    free(r);
}

static void on_output(struct process_watch *w, struct process *p)
{
    finish_reading(container_of(w, struct reading, watch), p);
}

static void on_patience(struct loop_timer *t)
{
    struct reading *r = container_of(t, struct reading, timer);
    finish_reading(r, r->watch.p);
}

static void on_reader_gone(struct http_request *req, void *arg)
{
    struct reading *r = arg;
    process_watch_stop(&r->watch);
    loop_timer_stop(&r->timer);
    free(r);
    http_abort(req);
}

/* from: where to begin; max: bytes at most; wait_ms: how long to wait for the first of them;
 * release=1: what lies before `from` was received and makes room for more. */
static void read_output(struct http_request *req, void *arg)
{
    uint64_t from, max, wait_ms, release;
    struct err err = {0};
    struct process *p = v1_find_process(req, arg);
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
    struct reading *r = xnew(struct reading);
    r->req = req;
    r->from = from;
    r->max = max;
    process_watch_start(p, &r->watch, on_output);
    http_on_cancel(req, on_reader_gone, r);
    loop_timer_start(manager_loop(((const struct v1 *)arg)->front.manager), &r->timer,
                     wait_ms * NSEC_PER_MSEC, on_patience);
}

static const struct http_route routes[] = {
    {"GET", "/v1/sessions/{id}/processes", list_processes, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/processes", start_process, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}/processes/{process}", get_process, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}/processes/{process}", stop_process, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/processes/{process}/output", read_output, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/processes/{process}/stderr", v1_read_stderr, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_process_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    int r = http_server_add_routes(server, routes, v, err);
    return r < 0 ? r : v1_hold_routes(server, v, err);
}
