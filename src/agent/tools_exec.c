/* SPDX-License-Identifier: Apache-2.0 */

/* The tool `exec`: runs a command by a query or in a named session. */

#include <string.h>

#include "agent/tools_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "command/policy_exec.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "policy/truncate.h"
#include "session/manager.h"
#include "session/run.h"

/* With a query the policy does it all. In a session that is named the command runs under its gate,
 * and is shown in the same way. */
struct running {
    struct policy_exec *exec; /* owned; of a query */
    struct policy_gate *gate; /* owned; of a named session, like the rest */
    struct run *run;          /* owned */
    bool ended;
    struct truncator *cutters[2]; /* owned */
    struct output *outputs[2];    /* open until the end */
    struct policy_result result;
};

static void running_free(void *arg)
{
    struct running *r = arg;

    policy_exec_free(r->exec);
    if (r->run != NULL && !r->ended)
        run_kill(r->run);
    policy_gate_free(r->gate);
    run_free(r->run);
    for (int i = 0; i < 2; i++) {
        truncator_free(r->cutters[i]);
        if (r->outputs[i] != NULL)
            output_discard(r->outputs[i]);
        buf_done(&r->result.text[i]);
    }
    free(r);
}

/* stdout and stderr as one text, or the one that is there. */
static void put_preview(const struct policy_result *r, struct buf *out)
{
    const struct buf *o = &r->text[0], *e = &r->text[1];
    bool both = o->len > 0 && e->len > 0;

    if (both)
        (void)buf_puts(out, "stdout:\n");
    (void)buf_append(out, buf_str(o), o->len);
    if (both)
        (void)buf_puts(out, "\n\nstderr:\n");
    (void)buf_append(out, buf_str(e), e->len);
}

static void show(struct tool_call *c, const struct policy_result *r)
{
    const struct outcome *o = &r->outcome;
    struct tool_result *result = &c->result;
    bool cut = r->cut[0] || r->cut[1];
    struct jw w;

    put_preview(r, &c->text);
    jw_init(&w, &result->json);
    policy_result_write(r, &w);
    /* The same object with a few more members. */
    if (jw_end(&w) == 0 && result->json.len > 0)
        result->json.len--;
    jw_init(&w, &result->json);
    (void)buf_puts(&result->json, ",\"preview\":");
    jw_strn(&w, buf_str(&c->text), c->text.len);
    (void)buf_printf(&result->json, ",\"truncated\":%s,\"truncated_by\":%s}",
                     cut ? "true" : "false", cut ? "\"chars\"" : "null");
    (void)buf_append(&result->text, buf_str(&c->text), c->text.len);
    if (o->kind == OUTCOME_EXITED && o->exit_code != 0)
        (void)buf_printf(&result->text, "%s[exit code %d]", c->text.len > 0 ? "\n" : "",
                         o->exit_code);
    else if (o->kind != OUTCOME_EXITED)
        (void)buf_printf(&result->text, "%s[%s]", c->text.len > 0 ? "\n" : "",
                         outcome_name(o->kind));
    result->is_error = o->kind != OUTCOME_EXITED || o->error[0] != '\0';
    tool_finish(c);
}

/* By a query. */

static void on_exec_done(void *arg, const struct policy_result *result, const struct err *err)
{
    struct tool_call *c = arg;

    if (err != NULL)
        c->done(c->arg, NULL, err); /* it is in the records already */
    else
        show(c, result);
}

static int start_query(struct tool_call *c, const struct tool_where *where,
                       const struct json *arguments, struct err *err)
{
    struct running *r = c->own;
    const struct policy_exec_options options = {
        .request = where->request, .arguments = arguments, .via = where->via, .who = c->who};
    return policy_exec_start(c->service, &options, on_exec_done, c, &r->exec, err);
}

/* In a session. */

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct tool_call *c = arg;
    struct running *r = c->own;

    truncator_feed(r->cutters[stream], data, len);
    if (r->outputs[stream] != NULL)
        output_append(r->outputs[stream], data, len);
    if (c->output != NULL)
        c->output(c->arg, data, len);
}

static void on_judged(void *arg, const struct err *err)
{
    struct tool_call *c = arg;
    struct running *r = c->own;

    if (err != NULL)
        c->done(c->arg, NULL, err); /* it is in the records already */
    else
        show(c, &r->result);
}

static void finish_stream(struct running *r, int i)
{
    struct policy_result *result = &r->result;

    (void)truncator_finish(r->cutters[i], &result->text[i], &result->cut[i]);
    if (r->outputs[i] != NULL && result->cut[i])
        output_finish(TAKE_PTR(r->outputs[i]), result->id[i]);
}

static void on_finished(void *arg, const struct run_result *run)
{
    struct tool_call *c = arg;
    struct running *r = c->own;
    struct buf *text = &r->result.text[EXEC_STDERR];

    r->ended = true;
    r->result.outcome = run->outcome;
    for (int i = 0; i < 2; i++) {
        r->result.produced[i] = run->produced[i];
        finish_stream(r, i);
    }
    if (text->len == 0 && run->outcome.kind == OUTCOME_TIMED_OUT)
        (void)buf_printf(text, "Command timed out after %lld seconds.",
                         (long long)((struct exec_args *)c->args)->timeout_sec);
    else if (text->len == 0)
        (void)buf_puts(text, run->outcome.error);
    if (policy_gate_end(r->gate, &run->outcome, run->produced, on_judged) == 0)
        on_judged(c, NULL);
}

static void open_streams(struct tool_call *c)
{
    struct running *r = c->own;
    int64_t limit = policy_settings(c->service->policy)->output_limit_chars;

    for (int i = 0; i < 2; i++) {
        r->cutters[i] = truncator_new(limit);
        /* Four bytes a character, and the notice or a sentence of ours. */
        buf_init(&r->result.text[i], (size_t)limit * 4 + 512);
        if (c->service->outputs != NULL)
            r->outputs[i] =
                output_new(c->service->outputs, session_id(c->session), policy_gate_payer(r->gate));
    }
}

static void on_let_in(void *arg, const struct err *err)
{
    static const struct run_events events = {.output = on_output, .finished = on_finished};
    struct tool_call *c = arg;
    struct running *r = c->own;
    const struct exec_args *a = c->args;
    struct err why = {0};

    if (err != NULL) {
        c->done(c->arg, NULL, err);
        return;
    }
    open_streams(c);
    const struct run_options options = {
        .exec = {.cmd = a->command,
                 .env = a->env,
                 .cwd = a->workdir,
                 .timeout_ns = (uint64_t)a->timeout_sec * NSEC_PER_SEC}};
    if (run_start(c->session, &options, &events, c, &r->run, &why) < 0) {
        policy_gate_failed(r->gate, &why);
        c->done(c->arg, NULL, &why);
    }
}

static void on_over(void *arg)
{
    struct running *r = ((struct tool_call *)arg)->own;

    if (r->run != NULL)
        run_kill(r->run);
}

static void on_turn(struct loop_defer *d)
{
    on_let_in(container_of(d, struct tool_call, defer), NULL);
}

static int start_session(struct tool_call *c, const struct tool_where *where, struct err *err)
{
    struct running *r = c->own;
    struct exec_args *a = c->args;
    int64_t longest = policy_longest_sec(c->service->policy, where->request.scope);
    bool clamped = longest > 0 && a->timeout_sec > longest;
    const struct policy_gate_options options = {.session = c->session,
                                                .scope = where->request.scope,
                                                .who = c->who,
                                                .via = c->via,
                                                .query_id = c->query_id,
                                                .command = a->command,
                                                .clamped = clamped,
                                                .has_env = a->env != NULL,
                                                .over = on_over};
    if (clamped)
        a->timeout_sec = longest;
    r->result.session_id = session_id(c->session);
    r->result.backend = manager_backend(c->service->manager)->ops->name;
    int e = policy_gate_begin(c->service, &options, on_let_in, c, &r->gate, err);
    if (e == 0)
        loop_defer_start(manager_loop(c->service->manager), &c->defer, on_turn);
    return e < 0 ? e : 0;
}

static int start(struct tool_call *c, const struct tool_where *where, const struct json *arguments,
                 struct err *err)
{
    c->own = xnew(struct running);
    c->own_free = running_free;
    return where->session_id != NULL ? start_session(c, where, err)
                                     : start_query(c, where, arguments, err);
}

const struct tool_ops tool_exec_ops = {.start = start};
