/* SPDX-License-Identifier: Apache-2.0 */

/* The life of one action call, from its envelope through the checks to the answer; cancelling. */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/codec/crypto.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "session/run.h"
#include "spec/spec.h"

#define PROBLEM_MAX (16U * 1024)

/* A call on its way:
 *
 *   envelope ──► action ──► context ──► admission ──► fence ──► sweep ──► handler ──► answer
 *
 * Each step may end it with an error. Admission and the sweep take time; the rest happens at once.
 */

static const char stale_text[] = "Stale Box placement generation";

static void link_call(struct langbot_call *c)
{
    struct langbot *r = c->rpc;
    c->prev = r->calls_last;
    if (c->prev != NULL)
        c->prev->next = c;
    else
        r->calls = c;
    r->calls_last = c;
    c->conn_next = c->conn->calls;
    if (c->conn_next != NULL)
        c->conn_next->conn_prev = c;
    c->conn->calls = c;
    c->conn->n_calls++;
}

/* Nobody waits for it any more. */
static void leave_conn(struct langbot_call *c)
{
    if (c->conn == NULL)
        return;
    if (c->conn_prev != NULL)
        c->conn_prev->conn_next = c->conn_next;
    else
        c->conn->calls = c->conn_next;
    if (c->conn_next != NULL)
        c->conn_next->conn_prev = c->conn_prev;
    if (--c->conn->n_calls == 0)
        langbot_conn_idle(c->conn);
    c->conn = NULL;
}

void langbot_call_answered(struct langbot_call *c, const char *result)
{
    struct metrics *metrics = manager_metrics(c->rpc->o.manager);
    const char *action = c->action != NULL ? c->action->name : "unknown";
    uint64_t took = loop_now(c->rpc->loop) - c->begun;
    if (c->answered)
        return;
    c->answered = true;
    metrics_count(&metrics->rpc, action, result, 0);
    hist_add(&metrics->langbot_seconds, took);
    const struct log_field fields[] = {
        {.key = "action", .text = action},
        {.key = "result", .text = result},
        {.key = "duration_us", .number = (int64_t)(took / 1000)},
    };
    LOG_REQUEST(c->request.id);
    log_event(log_access_level(), c->id, fields, ARRAY_SIZE(fields), "rpc");
}

void langbot_call_free(struct langbot_call *c)
{
    langbot_call_answered(c, "cancelled");
    leave_conn(c);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->rpc->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    else
        c->rpc->calls_last = c->prev;
    langbot_lane_leave(c);
    sweep_stop(&c->sweep);
    loop_defer_stop(&c->defer);
    run_free(c->run);
    if (c->session != NULL)
        session_release(c->session);
    langbot_artifacts_free(c);
    spec_free(c->spec);
    langbot_message_done(&c->msg);
    free(c->id);
    free(c->process_id);
    free(c->cmd);
    free(c->cwd);
    strv_free(c->env);
    langbot_setup_done(&c->setup);
    fd_close_many(&c->fd, 1);
    langbot_storage_done(&c->storage);
    free(c);
}

/* Sweeps. */

static struct langbot_call *find_woken(const struct langbot *r)
{
    struct langbot_call *c = r->calls;
    while (c != NULL && !c->woken)
        c = c->next;
    return c;
}

static void go_on(struct langbot_call *c)
{
    LOG_REQUEST(c->request.id);
    c->then(c);
}

/* Those who waited go on in the order they came, and before anybody who comes now. Any of them may
 * be gone after its turn. */
static void on_swept(void *arg)
{
    struct langbot_call *c = arg;
    struct langbot *r = c->rpc;
    r->n_sweeps--;
    for (struct langbot_call *w = r->calls; w != NULL; w = w->next) {
        w->woken = w->waits_for == c;
        if (w->woken)
            w->waits_for = NULL;
    }
    go_on(c);
    while ((c = find_woken(r)) != NULL) {
        c->woken = false;
        go_on(c);
    }
}

void langbot_call_sweep(struct langbot_call *c, const struct sweep_match *match,
                        void (*then)(struct langbot_call *c))
{
    c->then = then;
    c->rpc->n_sweeps++;
    sweep_start(&c->sweep, c->rpc->o.manager, match, on_swept, c);
}

/* Everything of the workspace that is not of the current generation. */
static void sweep_stale(struct langbot_call *c, int64_t current,
                        void (*then)(struct langbot_call *c))
{
    char own[NS_SIZE + 1], except[TENANT_PREFIX_SIZE];
    const struct sweep_match match = {.prefix = own, .except = except};
    (void)str_fmt(own, sizeof(own), "%s-", c->ns);
    tenant_prefix(c->ns, current, except);
    langbot_call_sweep(c, &match, then);
}

void langbot_call_end(struct langbot_call *c)
{
    leave_conn(c);
    c->cancel = NULL;
    int64_t current = c->ns[0] != '\0' ? fence_current(c->rpc->fence, c->ns) : 0;
    if (current <= c->msg.ctx.placement_generation) {
        langbot_call_free(c);
        return;
    }
    /* A call that was shut out may have made a session after the others went. */
    langbot_lane_leave(c);
    sweep_stale(c, current, langbot_call_free);
}

void langbot_call_cancel(struct langbot_call *c)
{
    leave_conn(c);
    c->cancelled = true;
    if (c->cancel != NULL)
        c->cancel(c);
}

/* Who may stop a call: whoever it was made for. */
static bool same_context(const struct langbot_message *a, const struct langbot_message *b)
{
    return a->scoped == b->scoped && a->ctx.placement_generation == b->ctx.placement_generation &&
           str_eq(a->ctx.instance_uuid, b->ctx.instance_uuid) &&
           str_eq(a->ctx.workspace_uuid, b->ctx.workspace_uuid);
}

/* The call of this connection that has that number, as the client wrote it. */
static struct langbot_call *find_seq(const struct langbot_call *c, int64_t number)
{
    char text[24];
    struct langbot_call *other = c->conn->calls;
    (void)str_fmt(text, sizeof(text), "%" PRId64, number);
    while (other != NULL && (other == c || !str_eq(other->msg.seq, text)))
        other = other->conn_next;
    return other;
}

/* What is stopped is not answered any more. */
void langbot_cancel_action(struct langbot_call *c)
{
    const struct json *seq = json_get(c->msg.data, "seq_id");
    struct langbot_reply reply;
    if (json_type(seq) != JSON_INT) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Cancellation requires an integer seq_id");
        return;
    }
    struct langbot_call *other = find_seq(c, json_int(seq));
    bool cancelled = other != NULL && same_context(&c->msg, &other->msg);
    if (cancelled)
        langbot_call_cancel(other);
    langbot_reply_open(c, &reply);
    jw_kbool(&reply.w, "cancelled", cancelled);
    langbot_reply_close(c, &reply);
}

void langbot_shut_out(struct langbot *r, const char *ns, int64_t generation)
{
    langbot_relays_close(r, ns, generation);
    for (struct langbot_call *c = r->calls, *next; c != NULL; c = next) {
        next = c->next;
        if (!str_eq(c->ns, ns) || c->msg.ctx.placement_generation >= generation || c->cancelled)
            continue;
        langbot_say_error(c, LANGBOT_PERMISSION_ERROR, stale_text);
        langbot_call_cancel(c);
    }
}

/* The steps. */

static void run_handler(struct langbot_call *c)
{
    c->then = NULL;
    if (c->cancelled)
        langbot_call_end(c);
    else
        c->action->run(c);
}

static struct langbot_call *find_sweeper(const struct langbot_call *c)
{
    struct langbot_call *other = c->rpc->n_sweeps > 0 ? c->rpc->calls : NULL;
    while (other != NULL && !(sweep_active(&other->sweep) && str_eq(other->ns, c->ns)))
        other = other->next;
    return other;
}

static void pass_fence(struct langbot_call *c)
{
    struct err err = {0};
    int64_t generation = c->msg.ctx.placement_generation;
    if (c->ns[0] == '\0') {
        run_handler(c);
        return;
    }
    int r = fence_pass(c->rpc->fence, c->ns, generation, &err);
    if (r < 0) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR, "%s", err.msg);
        return;
    }
    if (r > 0) {
        langbot_shut_out(c->rpc, c->ns, generation);
        sweep_stale(c, generation, run_handler);
        return;
    }
    c->waits_for = find_sweeper(c);
    c->then = run_handler;
    if (c->waits_for == NULL)
        run_handler(c);
}

static void on_readiness(void *arg, const struct readiness_report *report)
{
    struct langbot_call *c = arg;
    struct err err = {0};
    char failed[320];
    LOG_REQUEST(c->request.id);
    if (c->cancelled) {
        langbot_call_end(c);
        return;
    }
    if (!report->ready) {
        readiness_failed(report, c->rules->newer_checks, failed, sizeof(failed));
        langbot_fail(c, LANGBOT_READINESS,
                     "Managed sandbox isolation is not ready (failed checks: %s)", failed);
        return;
    }
    langbot_reap_grants(c->rpc);
    if (admission_check(c->rpc->admission, c->ns, c->msg.ctx.placement_generation,
                        langbot_now_us(c->rpc), &c->grant, &err) < 0)
        langbot_fail(c, LANGBOT_ADMISSION, "%s", err.msg);
    else
        pass_fence(c);
}

static bool trusted(const struct langbot *r, const char *instance)
{
    return r->instance != NULL &&
           http_secret_eq(instance, strlen(instance), r->instance, strlen(r->instance));
}

/* Whose call it is. False: it has failed. */
static bool check_context(struct langbot_call *c)
{
    bool tenant = (c->action->flags & LANGBOT_TENANT) != 0;
    bool lenient = c->conn->flags != 0 && !admission_enforced(c->rpc->admission);
    if (tenant && !c->msg.scoped && !lenient) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR,
                     "Box tenant action requires a trusted Workspace context");
        return false;
    }
    if (c->msg.scoped && !trusted(c->rpc, c->msg.ctx.instance_uuid)) {
        langbot_fail(c, LANGBOT_PERMISSION_ERROR,
                     "Box action context does not match the trusted instance");
        return false;
    }
    if (tenant && c->msg.scoped) {
        tenant_ns(c->msg.ctx.instance_uuid, c->msg.ctx.workspace_uuid, c->ns);
        tenant_prefix(c->ns, c->msg.ctx.placement_generation, c->prefix);
    }
    return true;
}

/* Every request tells, until one has told what the client is. */
static void recognise(struct langbot_call *c)
{
    struct langbot_conn *conn = c->conn;
    const struct langbot_request request = {
        .call = c->action->call,
        .tenant = conn->flags != 0 && (c->action->flags & LANGBOT_TENANT) != 0,
        .scoped = c->msg.scoped,
        .data = c->msg.data,
    };
    if (conn->family == LANGBOT_UNKNOWN) {
        conn->family = langbot_recognise(&request);
        if (conn->family != LANGBOT_UNKNOWN)
            log_info(NULL, "the client is langbot-plugin %s",
                     langbot_releases[conn->family].releases);
    }
    c->rules = &langbot_releases[conn->family];
}

static void start(struct langbot_call *c)
{
    c->action = langbot_action_find(c->msg.action);
    if (c->conn->flags & LANGBOT_CONN_BARE)
        c->msg.scoped = false;
    if (c->action != NULL)
        recognise(c);
    if (c->action == NULL || (c->action->call & ~c->rules->calls) != 0) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Action %s not found", c->msg.action);
        return;
    }
    if (!check_context(c))
        return;
    if (c->action->flags == LANGBOT_SANDBOX && admission_enforced(c->rpc->admission))
        readiness_get(c->rpc->readiness, on_readiness, c);
    else if (c->action->flags != 0)
        pass_fence(c);
    else
        run_handler(c);
}

void langbot_call_start(struct langbot_conn *conn, struct langbot_message *m)
{
    AUTO_DONE(buf) struct buf problem;
    struct langbot_call *c = xnew(struct langbot_call);
    const char *action = json_str(json_get(m->root, "action"));
    bool busy = conn->n_calls >= LANGBOT_CALLS_MAX && !str_eq(action, LANGBOT_CANCEL_ACTION) &&
                !str_eq(action, LANGBOT_STREAM_ACK);
    buf_init(&problem, PROBLEM_MAX);
    c->rpc = conn->rpc;
    c->conn = conn;
    c->bound = conn->bound;
    c->uid = conn->uid;
    c->fd = -1;
    c->msg = *m;
    *m = (struct langbot_message){0};
    c->begun = loop_now(c->rpc->loop);
    (void)str_fmt(c->request.id, sizeof(c->request.id), "%s.%" PRIu64, conn->request,
                  ++conn->n_requests);
    LOG_REQUEST(c->request.id);
    link_call(c);
    if (busy)
        langbot_fail(c, LANGBOT_BUSY, "Runtime connection is busy (max %d concurrent actions)",
                     LANGBOT_CALLS_MAX);
    else if (conn->outdated)
        langbot_fail(c, LANGBOT_PERMISSION_ERROR, "the token has changed; connect again");
    else if (langbot_message_check(&c->msg, &problem) < 0)
        langbot_fail(c, LANGBOT_ENVELOPE_ERROR, "%s", buf_str(&problem));
    else
        start(c);
}
