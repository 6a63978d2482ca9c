/* SPDX-License-Identifier: Apache-2.0 */

/* The actions that LangBot's client can call, its connections, and the life of one call: from its
 * envelope through the checks to its handler and the answer. */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/codec/ws.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "spec/coerce.h"
#include "spec/model.h"
#include "spec/spec.h"

#define PROBLEM_MAX (16U * 1024)
#define SEQ_MAX 256 /* bytes of a seq_id that is given back */
#define NO_SEQ "-1"

/* The envelope, without I/O. */

/* The client finds its call by this value, of any scalar type; others are replaced. */
static char *seq_text(const struct json *v)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(SEQ_MAX);
    struct jw w = JW_INIT(&out);
    if (v == NULL || json_type(v) == JSON_OBJECT || json_type(v) == JSON_ARRAY)
        return xstrdup(NO_SEQ);
    jw_value(&w, v);
    return jw_end(&w) < 0 ? xstrdup(NO_SEQ) : xstrdup(buf_str(&out));
}

/* False: not a request at all, to be ignored. `code_first` is the order of checks of today's
 * protocol; the first release looked for an action only. */
static bool message_read(const char *text, size_t len, bool code_first, struct langbot_message *ret)
{
    AUTO(json) struct json *root = NULL;
    struct err err = {0};
    *ret = (struct langbot_message){0};
    if (json_parse(text, len, &root, &err) < 0) {
        log_debug(NULL, "a message that is no request: %s; ignoring", err.msg);
        ret->no_memory = err.sys == ENOMEM;
        return false;
    }
    if (json_type(root) != JSON_OBJECT || json_get(root, "action") == NULL ||
        (code_first && json_get(root, "code") != NULL)) {
        log_debug(NULL, "a message that is no request; ignoring");
        return false;
    }
    ret->seq = seq_text(json_get(root, "seq_id"));
    ret->root = TAKE_PTR(root);
    return true;
}

/* Issues in pydantic's shape, collected before their number is known. */
struct issues {
    struct buf text;
    size_t n;
};

static void add_issue(struct issues *i, const char *where, enum issue issue)
{
    i->n++;
    (void)buf_printf(&i->text, "\n%s\n  %s [type=%s]", where, issue_text(issue), issue_type(issue));
}

static void check_message_context(struct langbot_message *m, struct issues *issues)
{
    const struct json *context = json_get(m->root, "context");
    struct report report = {0};
    struct err err = {0};
    if (json_type(context) == JSON_NULL)
        return;
    if (tenant_context_parse(context, &m->ctx, &report, &err) == 0) {
        m->scoped = true;
        return;
    }
    for (size_t i = 0; i < report.n; i++) {
        const struct report_issue *issue = &report.issues[i];
        issues->n++;
        (void)buf_printf(&issues->text, "\ncontext%s%s\n  %s%s [type=%s]",
                         issue->where[0] != '\0' ? "." : "", issue->where,
                         issue->issue == ISSUE_VALUE ? "Value error, " : "", issue->text,
                         issue_type(issue->issue));
    }
}

/* What is wrong with the envelope goes to `problem`: -EINVAL. */
static int message_check(struct langbot_message *m, struct buf *problem)
{
    const struct json *seq = json_get(m->root, "seq_id"), *action = json_get(m->root, "action");
    struct issues issues = {.n = 0};
    int64_t number;
    buf_init(&issues.text, problem->max);
    m->data = json_get(m->root, "data");
    m->action = json_str(action);
    enum issue issue = seq == NULL ? ISSUE_MISSING : coerce_int(seq, &number);
    if (issue != ISSUE_NONE)
        add_issue(&issues, "seq_id", issue);
    if (m->action == NULL)
        add_issue(&issues, "action", ISSUE_STRING_TYPE);
    if (m->data == NULL)
        add_issue(&issues, "data", ISSUE_MISSING);
    else if (json_type(m->data) != JSON_OBJECT)
        add_issue(&issues, "data", ISSUE_DICT_TYPE);
    check_message_context(m, &issues);
    if (issues.n > 0)
        (void)buf_printf(problem, "%zu validation error%s for ActionRequest%s", issues.n,
                         issues.n == 1 ? "" : "s", buf_str(&issues.text));
    buf_done(&issues.text);
    return issues.n > 0 ? -EINVAL : 0;
}

void langbot_message_drop(struct langbot_message *m)
{
    json_free(m->root);
    m->root = NULL;
    m->action = NULL;
    m->data = NULL;
}

static void message_done(struct langbot_message *m)
{
    json_free(m->root);
    free(m->seq);
    tenant_context_done(&m->ctx);
    *m = (struct langbot_message){0};
}

/* Ending many sessions at once. */

static bool sweep_matches(const struct langbot_sweep_match *match, const struct session *s)
{
    const char *id = session_id(s);
    if (match->prefix != NULL && !str_starts(id, match->prefix))
        return false;
    if (match->except != NULL && str_starts(id, match->except))
        return false;
    if (match->physical && !tenant_name_is_physical(id))
        return false;
    if (session_spec(s)->own.expires_ns > 0)
        return false; /* the daemon's own, with an end of its own */
    if (session_spec(s)->own.durable)
        return false; /* a person's, which stays until it is removed */
    return !(match->keep_persistent && session_spec(s)->persistent);
}

/* Actions. */

static void cancel_action(struct langbot_call *c);

/* Names and shapes are those of LangBot's runtime. */
static const struct langbot_action call_actions[] = {
    {LANGBOT_CANCEL_ACTION, 0, LANGBOT_FLOW, cancel_action},
    {0},
};

static const struct langbot_action *const tables[] = {
    call_actions,
    langbot_runtime_actions,
    langbot_init_actions,
    langbot_exec_actions,
    langbot_session_actions,
    langbot_skill_actions,
    langbot_storage_actions,
};

static const struct langbot_action *find_action(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct langbot_action *a = tables[i]; a->name != NULL; a++)
            if (str_eq(a->name, name))
                return a;
    return NULL;
}

/*   CHECK ──► PROBE ──► WAIT ──► WOKEN ──► RUN ◄──► SWEEP
 *     │         │  │                       ▲ │
 *     │         │  └────► CLEAR ───────────┘ └──► END ──► (freed)
 *
 * Only what an action needs is gone through: admission needs PROBE, a new generation CLEAR. Each
 * stage that checks something may end the call with an error. */
#define TO(stage) (1U << STAGE_##stage)
static const unsigned stage_moves[STAGE_MAX] = {
    [STAGE_CHECK] = TO(PROBE) | TO(WAIT) | TO(CLEAR) | TO(RUN) | TO(END),
    [STAGE_PROBE] = TO(WAIT) | TO(CLEAR) | TO(RUN) | TO(END),
    [STAGE_WAIT] = TO(WOKEN),
    [STAGE_WOKEN] = TO(RUN) | TO(END),
    [STAGE_CLEAR] = TO(RUN) | TO(END),
    [STAGE_RUN] = TO(SWEEP) | TO(END),
    [STAGE_SWEEP] = TO(RUN),
    [STAGE_END] = 0,
};

static void enter_stage(struct langbot_call *c, enum langbot_stage stage)
{
    STATE_MOVE(c->stage, stage_moves, stage);
}

void langbot_call_step(struct langbot_call *c, unsigned step)
{
    assert(c->stage == STAGE_RUN);
    STATE_MOVE(c->step, c->type->moves, step);
}

static const char stale_text[] = "Stale Box placement generation";

/* A connection whose token has changed ends when nothing is in flight. */
static void conn_idle(struct langbot_conn *c)
{
    if (c->outdated && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_POLICY, "the token has changed");
}

/* The client does not wait for the answer any more. */
static void leave_conn(struct langbot_call *c)
{
    if (c->conn == NULL)
        return;
    LIST_REMOVE(c, conn_entry);
    assert(c->conn->n_calls > 0);
    if (--c->conn->n_calls == 0)
        conn_idle(c->conn);
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
    TAILQ_REMOVE(&c->rpc->calls, c, entry);
    if (c->type->done != NULL)
        c->type->done(c);
    loop_defer_stop(&c->sweep_defer);
    message_done(&c->msg);
    buf_done(&c->out);
    free(c->id);
    free(c);
}

static void run_handler(struct langbot_call *c)
{
    if (langbot_call_dropped(c))
        return;
    enter_stage(c, STAGE_RUN);
    c->action->run(c);
}

/* Sweeps. */

static struct langbot_call *find_woken(const struct langbot *r)
{
    struct langbot_call *c;
    TAILQ_FOREACH (c, &r->calls, entry)
        if (c->stage == STAGE_WOKEN)
            break;
    return c;
}

static void go_on(struct langbot_call *c)
{
    LOG_REQUEST(c->request.id);
    if (c->stage == STAGE_END) {
        langbot_call_free(c);
    } else if (c->stage == STAGE_SWEEP) {
        enter_stage(c, STAGE_RUN);
        c->type->swept(c);
    } else {
        run_handler(c);
    }
}

/* The calls that waited go on in the order they came, and before any call that comes now. Each of
 * them may be freed by its turn. */
static void on_swept(struct langbot_call *c)
{
    struct langbot_call *w;
    struct langbot *r = c->rpc;
    assert(c->sweeping && r->n_sweeps > 0);
    c->sweeping = false;
    r->n_sweeps--;
    TAILQ_FOREACH (w, &r->calls, entry) {
        if (w->waits_for != c)
            continue;
        w->waits_for = NULL;
        enter_stage(w, STAGE_WOKEN);
    }
    go_on(c);
    while ((c = find_woken(r)) != NULL)
        go_on(c);
}

static void on_nothing_to_sweep(struct loop_defer *d)
{
    on_swept(container_of(d, struct langbot_call, sweep_defer));
}

static void on_session_gone(void *arg, const struct err *err)
{
    struct langbot_call *c = arg;
    if (err != NULL)
        log_warn(NULL, "end a session: %s; ignoring", err->msg);
    assert(c->sweep_pending > 0);
    if (--c->sweep_pending == 0)
        on_swept(c);
}

/* Sessions that are on their way in or out count too. on_swept() comes from the loop, once. */
static void start_sweep(struct langbot_call *c, const struct langbot_sweep_match *match)
{
    struct manager *m = c->rpc->o.manager;
    assert(!c->sweeping);
    c->sweeping = true;
    c->rpc->n_sweeps++;
    for (struct session *s = manager_next(m, NULL), *next; s != NULL; s = next) {
        struct err err = {0};
        next = manager_next(m, s);
        if (sweep_matches(match, s) && langbot_owns(c, s) &&
            manager_delete(m, session_id(s), on_session_gone, c, &err) == 0)
            c->sweep_pending++;
    }
    if (c->sweep_pending == 0)
        loop_defer_start(c->rpc->loop, &c->sweep_defer, on_nothing_to_sweep);
}

void langbot_call_sweep(struct langbot_call *c, const struct langbot_sweep_match *match)
{
    assert(c->type->swept != NULL);
    enter_stage(c, STAGE_SWEEP);
    start_sweep(c, match);
}

/* Everything of the workspace that is not of the current generation. */
static void sweep_stale(struct langbot_call *c, int64_t current)
{
    char own[NS_SIZE + 1], except[TENANT_PREFIX_SIZE];
    const struct langbot_sweep_match match = {.prefix = own, .except = except};
    (void)str_fmt(own, sizeof(own), "%s-", c->ns);
    tenant_prefix(c->ns, current, except);
    start_sweep(c, &match);
}

void langbot_call_end(struct langbot_call *c)
{
    leave_conn(c);
    enter_stage(c, STAGE_END);
    int64_t current = c->ns[0] != '\0' ? fence_current(c->rpc->fence, c->ns) : 0;
    if (current <= c->msg.ctx.placement_generation) {
        langbot_call_free(c);
        return;
    }
    /* A call that was shut out may have made a session after the others went. */
    if (c->type->ended != NULL)
        c->type->ended(c);
    sweep_stale(c, current);
}

static void cancel_call(struct langbot_call *c)
{
    leave_conn(c);
    c->cancelled = true;
    if (c->stage == STAGE_RUN && c->type->cancel != NULL)
        c->type->cancel(c);
}

bool langbot_call_dropped(struct langbot_call *c)
{
    bool dropped = c->cancelled;
    if (dropped)
        langbot_call_end(c);
    return dropped;
}

/* A call may be cancelled on behalf of the workspace that it was made for. */
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
    struct langbot_call *other;
    (void)str_fmt(text, sizeof(text), "%" PRId64, number);
    LIST_FOREACH (other, &c->conn->calls, conn_entry)
        if (other != c && str_eq(other->msg.seq, text))
            break;
    return other;
}

/* The call that is cancelled gets no answer. */
static void cancel_action(struct langbot_call *c)
{
    const struct json *seq = json_get(c->msg.data, "seq_id");
    if (json_type(seq) != JSON_INT) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Cancellation requires an integer seq_id");
        return;
    }
    struct langbot_call *other = find_seq(c, json_int(seq));
    bool cancelled = other != NULL && same_context(&c->msg, &other->msg);
    if (cancelled)
        cancel_call(other);
    jw_kbool(langbot_reply_open(c), "cancelled", cancelled);
    langbot_reply_close(c);
}

void langbot_shut_out(struct langbot *r, const char *ns, int64_t generation)
{
    langbot_relays_close(r, ns, generation);
    struct langbot_call *c, *next;
    TAILQ_FOREACH_SAFE (c, &r->calls, entry, next) {
        if (!str_eq(c->ns, ns) || c->msg.ctx.placement_generation >= generation || c->cancelled)
            continue;
        langbot_say_error(c, LANGBOT_PERMISSION_ERROR, stale_text);
        cancel_call(c);
    }
}

/* The checks. */

static struct langbot_call *find_sweeper(const struct langbot_call *c)
{
    struct langbot_call *other = c->rpc->n_sweeps > 0 ? TAILQ_FIRST(&c->rpc->calls) : NULL;
    while (other != NULL && !(other->sweeping && str_eq(other->ns, c->ns)))
        other = TAILQ_NEXT(other, entry);
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
        enter_stage(c, STAGE_CLEAR);
        sweep_stale(c, generation);
        return;
    }
    c->waits_for = find_sweeper(c);
    if (c->waits_for != NULL)
        enter_stage(c, STAGE_WAIT);
    else
        run_handler(c);
}

static void on_readiness(void *arg, const struct readiness_report *report)
{
    struct langbot_call *c = arg;
    struct err err = {0};
    char failed[320];
    LOG_REQUEST(c->request.id);
    if (langbot_call_dropped(c))
        return;
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
    if (c->msg.scoped &&
        !langbot_trusts(c->rpc, c->bound ? &c->uid : NULL, c->msg.ctx.instance_uuid)) {
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

/* Each request is looked at until one has shown which release the client is of. */
static void recognise_client(struct langbot_call *c)
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

static void check_and_run(struct langbot_call *c)
{
    c->action = find_action(c->msg.action);
    if (c->conn->flags & LANGBOT_CONN_BARE)
        c->msg.scoped = false;
    if (c->action != NULL)
        recognise_client(c);
    if (c->action == NULL || (c->action->call & ~c->rules->calls) != 0) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Action %s not found", c->msg.action);
        return;
    }
    if (!check_context(c))
        return;
    if (c->action->flags == LANGBOT_SANDBOX && admission_enforced(c->rpc->admission)) {
        enter_stage(c, STAGE_PROBE);
        readiness_get(c->rpc->readiness, on_readiness, c);
    } else if (c->action->flags != 0) {
        pass_fence(c);
    } else {
        run_handler(c);
    }
}

/* Takes what is in `m`. */
static void start_call(struct langbot_conn *conn, struct langbot_message *m)
{
    static const struct langbot_call_type plain = {.size = sizeof(struct langbot_call)};
    AUTO_DONE(buf) struct buf problem = BUF_INIT(PROBLEM_MAX);
    const char *action = json_str(json_get(m->root, "action"));
    const struct langbot_action *found = find_action(action);
    const struct langbot_call_type *type =
        found != NULL && found->type != NULL ? found->type : &plain;
    struct langbot_call *c = xcalloc(1, type->size);
    bool busy = conn->n_calls >= LANGBOT_CALLS_MAX && !str_eq(action, LANGBOT_CANCEL_ACTION) &&
                !str_eq(action, LANGBOT_STREAM_ACK);
    c->rpc = conn->rpc;
    c->conn = conn;
    c->bound = conn->bound;
    c->uid = conn->uid;
    c->type = type;
    c->msg = *m;
    *m = (struct langbot_message){0};
    c->begun = loop_now(c->rpc->loop);
    (void)str_fmt(c->request.id, sizeof(c->request.id), "%s.%" PRIu64, conn->request,
                  ++conn->n_requests);
    LOG_REQUEST(c->request.id);
    TAILQ_INSERT_TAIL(&c->rpc->calls, c, entry);
    LIST_INSERT_HEAD(&conn->calls, c, conn_entry);
    conn->n_calls++;
    if (busy)
        langbot_fail(c, LANGBOT_BUSY, "Runtime connection is busy (max %d concurrent actions)",
                     LANGBOT_CALLS_MAX);
    else if (conn->outdated)
        langbot_fail(c, LANGBOT_PERMISSION_ERROR, "the token has changed; connect again");
    else if (message_check(&c->msg, &problem) < 0)
        langbot_fail(c, LANGBOT_ENVELOPE_ERROR, "%s", buf_str(&problem));
    else
        check_and_run(c);
}

/* Connections. */

struct langbot_conn *langbot_conn_new(struct langbot *r, const struct langbot_transport *transport,
                                      void *arg, unsigned flags)
{
    struct langbot_conn *c = xnew(struct langbot_conn);
    char id[LOG_REQUEST_SIZE];
    c->rpc = r;
    c->transport = transport;
    c->arg = arg;
    c->flags = flags;
    log_request_make(id);
    (void)str_copy(c->request, sizeof(c->request), id);
    c->file_max = r->limits.max_rpc_file_bytes;
    LIST_INSERT_HEAD(&r->conns, c, entry);
    return c;
}

void langbot_conn_message(struct langbot_conn *c, const char *text, size_t len)
{
    struct langbot_message m;
    if (message_read(text, len, c->flags == 0, &m))
        start_call(c, &m);
    else if (m.no_memory && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_TOO_BIG, "out of memory for this message");
}

void langbot_set_token(struct langbot *r, const char *token)
{
    r->o.token = token;
    r->shut = token == NULL;
    langbot_relays_outdated(r);
    struct langbot_conn *c;
    LIST_FOREACH (c, &r->conns, entry) {
        c->outdated = c->outdated || c->by_token;
        if (c->n_calls == 0)
            conn_idle(c);
    }
}

void langbot_conn_free(struct langbot_conn *c)
{
    if (c == NULL)
        return;
    c->outdated = false; /* it has ended already */
    while (!LIST_EMPTY(&c->calls))
        cancel_call(LIST_FIRST(&c->calls));
    langbot_files_free(c);
    LIST_REMOVE(c, entry);
    free(c);
}
