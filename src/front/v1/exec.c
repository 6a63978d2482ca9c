/* SPDX-License-Identifier: Apache-2.0 */

/* POST /v1/sessions/{id}/exec: runs one command and answers with its result when it has ended. */

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
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/outputs.h"
#include "session/manager.h"
#include "session/run.h"

#define ANSWER_MAX (128U << 20) /* what is kept of both, escaped */

/* One command, answered when it has ended. */
struct call {
    struct http_request *req;
    const struct v1 *v1;
    struct session *session;  /* held */
    struct policy_gate *gate; /* owned */
    struct run *run;          /* owned, NULL: not started */
    struct v1_exec exec;
    struct buf kept[2];
    struct output *outputs[2]; /* open until the end */
    struct run_result result;  /* without what is kept */
    bool cancelled;
};

static void call_free(struct call *c)
{
    policy_gate_free(c->gate);
    run_free(c->run);
    session_release(c->session);
    for (int i = 0; i < 2; i++) {
        buf_done(&c->kept[i]);
        if (c->outputs[i] != NULL)
            output_discard(c->outputs[i]);
    }
    v1_exec_done(&c->exec);
    free(c);
}

static void fail(struct call *c, const struct err *err)
{
    front_fail(c->req, err);
    call_free(c);
}

/* Text that was cut is cut between characters; the whole has an id. */
static void write_stream(struct call *c, enum exec_stream stream, struct jw *w)
{
    static const char *const names[2][3] = {{"stdout", "stdout_truncated_bytes", "stdout_id"},
                                            {"stderr", "stderr_truncated_bytes", "stderr_id"}};
    const struct buf *kept = &c->kept[stream];
    uint64_t produced = c->result.produced[stream];
    size_t len = produced > kept->len ? utf8_boundary(buf_str(kept), kept->len) : kept->len;
    char id[OUTPUT_ID_SIZE];

    jw_key(w, names[stream][0]);
    jw_strn(w, buf_str(kept), len);
    jw_ku64(w, names[stream][1], produced - len);
    if (c->outputs[stream] == NULL || produced == len)
        return;
    output_finish(TAKE_PTR(c->outputs[stream]), id);
    jw_kstr(w, names[stream][2], id);
}

static void on_judged(void *arg, const struct err *err)
{
    struct call *c = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, ANSWER_MAX);

    if (err != NULL) {
        fail(c, err);
        return;
    }
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "session_id", session_id(c->session));
    v1_write_outcome(&w, &c->result);
    write_stream(c, EXEC_STDOUT, &w);
    write_stream(c, EXEC_STDERR, &w);
    jw_object_end(&w);
    front_reply_json(c->req, 200, &out, &w);
    call_free(c);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct call *c = arg;
    struct buf *kept = &c->kept[stream];
    size_t room = kept->max - kept->len;

    (void)buf_append(kept, data, len < room ? len : room);
    if (c->outputs[stream] != NULL)
        output_append(c->outputs[stream], data, len);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct call *c = arg;

    c->result.outcome = result->outcome;
    memcpy(c->result.produced, result->produced, sizeof(c->result.produced));
    if (policy_gate_end(c->gate, &result->outcome, result->produced, on_judged) == 0)
        on_judged(c, NULL);
}

static void open_outputs(struct call *c)
{
    struct outputs *store = c->v1->front.service->outputs;

    for (int i = 0; i < 2; i++) {
        buf_init(&c->kept[i], (size_t)c->exec.capture_bytes);
        if (store != NULL)
            c->outputs[i] = output_new(store, session_id(c->session), policy_gate_payer(c->gate));
    }
}

static void on_let_in(void *arg, const struct err *err)
{
    static const struct run_events events = {.output = on_output, .finished = on_finished};
    struct call *c = arg;
    struct run_options options;
    struct err why = {0};
    int r = 0;

    if (err != NULL) {
        fail(c, err);
        return;
    }
    open_outputs(c);
    v1_exec_request(&c->exec, &options);
    if (c->cancelled)
        r = err_set(&why, ERR_STATE, "whoever asked has gone");
    if (r == 0)
        r = run_start(c->session, &options, &events, c, &c->run, &why);
    if (r == 0 && c->exec.stdin_text != NULL) {
        (void)run_write(c->run, c->exec.stdin_text, strlen(c->exec.stdin_text));
        run_close_stdin(c->run);
    }
    if (r < 0) {
        policy_gate_failed(c->gate, &why);
        fail(c, &why);
    }
}

/* Nobody will read the result, so the command ends too. */
static void on_cancelled(struct http_request *req, void *arg)
{
    struct call *c = arg;

    c->cancelled = true;
    if (c->run != NULL)
        run_kill(c->run);
}

static void on_over(void *arg)
{
    struct call *c = arg;

    if (c->run != NULL)
        run_kill(c->run);
}

static int v1_exec_gate(const struct v1 *v, const struct v1_gate *g, policy_gate_fn *ready,
                        void *arg, struct policy_gate **ret, struct err *err)
{
    struct v1_exec *exec = g->exec;
    AUTO_FREE char *command = policy_command_text(exec->argv, exec->cmd);
    int64_t longest = policy_longest_sec(v->front.service->policy, g->scope);
    bool clamped = longest > 0 && exec->timeout_sec > (double)longest;
    const struct policy_gate_options options = {.session = g->session,
                                                .scope = g->scope,
                                                .who = g->who,
                                                .via = "http",
                                                .command = command,
                                                .clamped = clamped,
                                                .has_env = exec->env != NULL,
                                                .cleanup = exec->cleanup,
                                                .over = g->over};
    if (clamped)
        exec->timeout_sec = (double)longest;
    return policy_gate_begin(v->front.service, &options, ready, arg, ret, err);
}

void v1_exec(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct v1_exec e = {0};
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "exec");

    if (s == NULL || !front_read_body(req, &body) || v1_exec_kept(req, arg, s, body))
        return;
    int r = v1_exec_parse(body, NULL, &e, &err);
    if (r == 0 && (e.tty || e.with_stdin))
        r = err_set(&err, ERR_INVALID, "tty and stdin need the streaming endpoint /v1/exec");
    if (r < 0) {
        v1_exec_done(&e);
        front_fail(req, &err);
        return;
    }
    struct call *c = xnew(struct call);
    c->req = req;
    c->v1 = arg;
    c->session = s;
    c->exec = e;
    session_hold(s);
    const struct v1_gate gate = {.session = s,
                                 .scope = front_caller(req),
                                 .who = front_who(req),
                                 .exec = &c->exec,
                                 .over = on_over};
    r = v1_exec_gate(c->v1, &gate, on_let_in, c, &c->gate, &err);
    if (r < 0) {
        fail(c, &err);
        return;
    }
    http_on_cancel(req, on_cancelled, c);
    if (r == 0)
        on_let_in(c, NULL);
}
