/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one command under the policy, from counting the quota to the answer. */

#include "command/policy_exec.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "command/policy_count.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy/share.h"
#include "policy/truncate.h"
#include "session/manager.h"
#include "session/run.h"
#include "spec/model.h"
#include "spec/spec.h"

/*   COUNTING ──► ACQUIRING ──► RUNNING ──► RECOUNTING ──► DONE
 *       │            │            │             └─► DROPPING ─┘
 *       └────────────┴────────────┴─────────────────────► DONE    */
enum state { COUNTING, ACQUIRING, RUNNING, RECOUNTING, DROPPING, DONE, STATE_MAX };

#define TO(s) (1U << (s))
static const unsigned moves[STATE_MAX] = {
    [COUNTING] = TO(ACQUIRING) | TO(DONE),
    [ACQUIRING] = TO(RUNNING) | TO(DONE),
    [RUNNING] = TO(RECOUNTING) | TO(DONE),
    [RECOUNTING] = TO(DROPPING) | TO(DONE),
    [DROPPING] = TO(DONE),
};

struct policy_exec {
    const struct policy_service *service; /* borrowed */
    struct log_scope request;             /* who asked, for the log */
    enum state state;
    bool freed; /* while the manager still owes us an answer */
    policy_exec_fn *done;
    void *arg;
    struct policy_exec_options options; /* what it points to is gone, except via */
    char *query_id, *who;               /* owned */
    struct policy_decision decision;
    struct spec *spec;         /* owned; of the command only, once the session was asked for */
    struct share *share;       /* held; that it is one command of; NULL: nobody's */
    struct session *session;   /* held */
    struct run *run;           /* owned */
    struct quota_count *count; /* owned; the one under way */
    struct quota_check quota;
    struct quota_watch watch;
    struct truncator *cutters[2]; /* owned */
    struct output *outputs[2];    /* open until the end */
    struct policy_result result;
    struct err err;
    struct loop_defer defer;
};

static void move(struct policy_exec *e, enum state to)
{
    assert((moves[e->state] & TO(to)) != 0);
    e->state = to;
}

static struct loop *loop_of(const struct policy_exec *e)
{
    return manager_loop(e->service->manager);
}

static void destroy(struct policy_exec *e)
{
    loop_defer_stop(&e->defer);
    quota_count_free(e->count);
    quota_watch_stop(&e->watch);
    if (e->run != NULL && e->state == RUNNING)
        run_kill(e->run);
    run_free(e->run);
    if (e->session != NULL)
        session_release(e->session);
    for (int i = 0; i < 2; i++) {
        truncator_free(e->cutters[i]);
        if (e->outputs[i] != NULL)
            output_discard(e->outputs[i]);
        buf_done(&e->result.text[i]);
    }
    share_give(e->share, SHARE_EXECS);
    spec_free(e->spec);
    free(e->query_id);
    free(e->who);
    free(e);
}

static struct audit_record record_of(const struct policy_exec *e, enum audit_event event)
{
    return (struct audit_record){.event = event,
                                 .who = e->who,
                                 .via = e->options.via,
                                 .session = e->spec->session_id,
                                 .query = e->query_id[0] != '\0' ? e->query_id : NULL,
                                 .decision = &e->decision};
}

void policy_exec_free(struct policy_exec *e)
{
    if (e == NULL)
        return;
    if (e->state != DONE && e->service->audit != NULL) {
        struct audit_record r = record_of(e, AUDIT_EXEC_END);
        r.outcome = "given_up";
        (void)audit_write(e->service->audit, &r, NULL); /* it counts what it loses */
    }
    /* Callbacks of the manager cannot be taken back: the last of them frees us. */
    if (e->state == ACQUIRING || e->state == DROPPING)
        e->freed = true;
    else
        destroy(e);
}

/* Tells; the caller may free us in it. */
static void answer(struct policy_exec *e, const struct err *err)
{
    move(e, DONE);
    e->done(e->arg, err == NULL ? &e->result : NULL, err);
}

static void fail(struct policy_exec *e, const struct err *err)
{
    struct audit_record r = record_of(e, AUDIT_EXEC_END);

    if (err != &e->err)
        e->err = *err;
    policy_service_failed(e->service, &e->err, e->query_id, &r);
    answer(e, &e->err);
}

static void succeed(struct policy_exec *e)
{
    struct audit_record r = record_of(e, AUDIT_EXEC_END);

    policy_record_outcome(e->service, &r, &e->result.outcome, e->result.produced);
    quota_guard(e->service, e->session); /* what it left running may go on writing */
    answer(e, NULL);
}

/* Counting. */

static void acquire(struct policy_exec *e);
static void drop(struct policy_exec *e);

static bool counts(const struct policy_exec *e)
{
    return quota_applies(e->spec) && e->spec->host_path_mode != MOUNT_NONE;
}

static void on_counted(void *arg, const struct usage *usage, const struct err *err)
{
    struct policy_exec *e = arg;
    int r = 0;

    if (err != NULL)
        e->err = *err;
    else
        r = quota_judge(&e->quota, quota_watch_most(&e->watch, usage), &e->err);
    if (e->state == COUNTING && err == NULL)
        e->quota.before = *usage;
    quota_count_free(TAKE_PTR(e->count));
    if (e->state == COUNTING && err == NULL && r == 0)
        acquire(e);
    else if (e->state == COUNTING)
        fail(e, &e->err);
    else if (err == NULL && r == 0)
        succeed(e);
    else
        drop(e);
}

/* The session that is there already, on the same directory: the kernel may hold its limit. */
static struct session *earlier(const struct policy_exec *e)
{
    struct session *s = manager_find(e->service->manager, e->spec->session_id);

    return s != NULL && session_state(s) == SESSION_READY &&
                   str_eq(session_spec(s)->host_path, e->spec->host_path)
               ? s
               : NULL;
}

/* Before and after. */
static void count(struct loop_defer *d)
{
    struct policy_exec *e = container_of(d, struct policy_exec, defer);
    bool before = e->state == COUNTING;
    LOG_REQUEST(e->request.id);

    e->err = (struct err){0};
    e->quota.spec = e->spec;
    e->quota.phase = before ? QUOTA_BEFORE : QUOTA_AFTER;
    e->quota.max_entries = (uint64_t)policy_settings(e->service->policy)->max_workspace_entries;
    e->quota.cleanup = e->options.cleanup;
    const struct quota_place place = {e->spec->host_path, before ? earlier(e) : e->session};
    int r =
        counts(e) ? quota_count_start(e->service, &place, on_counted, e, &e->count, &e->err) : 1;
    if (r == 0)
        return;
    if (before && r > 0)
        acquire(e);
    else if (before)
        fail(e, &e->err);
    else if (r > 0)
        succeed(e);
    else
        drop(e);
}

/* Running. */

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct policy_exec *e = arg;

    truncator_feed(e->cutters[stream], data, len);
    if (e->outputs[stream] != NULL)
        output_append(e->outputs[stream], data, len);
}

/* What is shown, and an id for the rest. */
static void finish_stream(struct policy_exec *e, int i)
{
    struct policy_result *r = &e->result;

    (void)truncator_finish(e->cutters[i], &r->text[i], &r->cut[i]);
    if (e->outputs[i] == NULL)
        return;
    if (r->cut[i])
        output_finish(TAKE_PTR(e->outputs[i]), r->id[i]);
    else
        output_discard(TAKE_PTR(e->outputs[i]));
}

/* A command that did not end by itself says so where a person will look for it. */
static void explain(struct policy_exec *e)
{
    const struct outcome *o = &e->result.outcome;
    struct buf *text = &e->result.text[EXEC_STDERR];

    if (text->len > 0)
        return;
    if (o->kind == OUTCOME_TIMED_OUT)
        (void)buf_printf(text, "Command timed out after %lld seconds.",
                         (long long)e->spec->timeout_sec);
    else if (o->kind == OUTCOME_OOM_KILLED)
        (void)buf_puts(text, "Command was killed: the session is out of memory.");
    else
        (void)buf_puts(text, o->error);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct policy_exec *e = arg;

    quota_watch_stop(&e->watch);
    e->result.outcome = result->outcome;
    for (int i = 0; i < 2; i++) {
        e->result.produced[i] = result->produced[i];
        finish_stream(e, i);
    }
    explain(e);
    if (result->outcome.kind == OUTCOME_SESSION_LOST) {
        (void)err_set(&e->err, ERR_BACKEND, "session %s ended while the command was running",
                      e->spec->session_id);
        fail(e, &e->err);
        return;
    }
    move(e, RECOUNTING);
    loop_defer_start(loop_of(e), &e->defer, count);
}

/* A directory of the host has no wall of the kernel's. */
static void on_over(void *arg)
{
    run_kill(((struct policy_exec *)arg)->run);
}

static void open_streams(struct policy_exec *e)
{
    const struct policy_settings *s = policy_settings(e->service->policy);

    for (int i = 0; i < 2; i++) {
        e->cutters[i] = truncator_new(s->output_limit_chars);
        /* Four bytes a character, and the notice or a sentence of ours. */
        buf_init(&e->result.text[i], (size_t)s->output_limit_chars * 4 + 512);
        if (e->service->outputs != NULL)
            e->outputs[i] =
                output_new(e->service->outputs, e->spec->session_id, share_name(e->share));
    }
}

static void on_ready(void *arg, struct session *session, const struct err *err)
{
    static const struct run_events events = {.output = on_output, .finished = on_finished};
    struct policy_exec *e = arg;

    if (e->freed) {
        e->session = session;
        destroy(e);
        return;
    }
    if (session == NULL) {
        fail(e, err);
        return;
    }
    e->session = session;
    open_streams(e);
    const struct run_options options = {
        .exec = {.cmd = e->spec->cmd,
                 .env = e->spec->env,
                 .cwd = e->spec->workdir,
                 .timeout_ns = (uint64_t)e->spec->timeout_sec * NSEC_PER_SEC},
    };
    if (run_start(session, &options, &events, e, &e->run, &e->err) < 0) {
        fail(e, &e->err);
        return;
    }
    move(e, RUNNING);
    e->watch = (struct quota_watch){
        .service = e->service, .check = &e->quota, .session = session, .over = on_over, .arg = e};
    if (counts(e))
        quota_watch_start(&e->watch);
}

/* The manager takes the spec. What belongs to the command rather than the session stays with us,
 * and so does what the quota and the records ask for. */
static struct spec *keep_command(struct spec *s)
{
    struct spec *ours = spec_new();

    ours->session_id = xstrdup(s->session_id);
    ours->host_path = s->host_path != NULL ? xstrdup(s->host_path) : NULL;
    ours->host_path_mode = s->host_path_mode;
    ours->workspace_quota_mb = s->workspace_quota_mb;
    ours->timeout_sec = s->timeout_sec;
    ours->env = TAKE_PTR(s->env);
    free(ours->cmd);
    ours->cmd = s->cmd;
    s->cmd = xstrdup("");
    free(ours->workdir);
    ours->workdir = xstrdup(s->workdir);
    return ours;
}

static void acquire(struct policy_exec *e)
{
    struct spec *theirs = e->spec;

    move(e, ACQUIRING);
    e->err = (struct err){0};
    e->spec = keep_command(theirs);
    e->result.session_id = e->spec->session_id;
    e->quota.spec = e->spec;
    if (manager_acquire(e->service->manager, &theirs, POLICY_SESSION_FIELDS, ACQUIRE_REMOUNT,
                        on_ready, e, &e->err) == 0)
        return;
    spec_free(theirs);
    fail(e, &e->err);
}

/* Over the quota: the session goes, whatever the command said. */

static void on_dropped(void *arg, const struct err *err)
{
    struct policy_exec *e = arg;

    (void)err; /* the manager has logged it */
    if (e->freed)
        destroy(e);
    else
        fail(e, &e->err);
}

static void drop(struct policy_exec *e)
{
    struct err ignored;

    move(e, DROPPING);
    run_free(TAKE_PTR(e->run));
    session_release(TAKE_PTR(e->session));
    if (manager_delete(e->service->manager, e->spec->session_id, on_dropped, e, &ignored) < 0)
        on_dropped(e, &ignored);
}

/* Starting. */

static int build(struct policy_exec *e, struct err *err)
{
    const struct policy_exec_options *o = &e->options;
    const struct policy *p = e->service->policy;

    if (o->request.query != NULL)
        return policy_tool_spec(p, &o->request, o->arguments, &e->spec, &e->decision, err);
    return policy_payload_spec(p, &o->request, o->arguments, &e->spec, &e->decision, err);
}

/* By name, for an answer that says more: whoever mounts it finds it by descriptor. */
static int find_workspace(const struct policy_exec *e, struct err *err)
{
    int fd = path_open_unlinked(e->spec->host_path, O_PATH | O_DIRECTORY);

    if (fd >= 0)
        (void)close(fd);
    if (fd >= 0 || fd == -EACCES)
        return 0;
    return err_set(err, ERR_INVALID, "host_path must point to an existing directory on the host");
}

static int record_start(struct policy_exec *e, struct err *err)
{
    struct audit_record r = record_of(e, AUDIT_EXEC_START);

    r.command = e->spec->cmd;
    r.command_len = strlen(e->spec->cmd);
    if (e->service->audit == NULL)
        return 0;
    int n = audit_ready(e->service->audit, err);
    return n < 0 ? n : audit_write(e->service->audit, &r, err);
}

static int prepare(struct policy_exec *e, struct err *err)
{
    const char *payer = authz_share(e->options.request.scope);
    int r = policy_service_guard(e->service, err);

    if (r == 0)
        r = build(e, err);
    if (r == 0 && e->spec->host_path != NULL && e->spec->host_path_mode != MOUNT_NONE)
        r = find_workspace(e, err);
    if (r == 0)
        r = shares_check(e->service->shares, payer, SHARE_EXECS, err);
    if (r == 0)
        r = record_start(e, err);
    if (r == 0)
        e->share = shares_take(e->service->shares, payer, SHARE_EXECS);
    return r;
}

int policy_exec_start(const struct policy_service *service,
                      const struct policy_exec_options *options, policy_exec_fn *done, void *arg,
                      struct policy_exec **ret, struct err *err)
{
    struct policy_exec *e = xnew(struct policy_exec);
    struct err why = {0};

    e->service = service;
    e->request = log_scope_now();
    e->options = *options;
    e->done = done;
    e->arg = arg;
    e->query_id = policy_query_id(options->request.query);
    e->who = xstrdup(options->who != NULL ? options->who : authz_name(options->request.scope));
    int r = prepare(e, &why);
    if (r < 0) {
        struct audit_record denied = {.event = AUDIT_DENIED,
                                      .who = e->who,
                                      .via = options->via,
                                      .session = e->spec != NULL ? e->spec->session_id : NULL,
                                      .query = e->query_id[0] != '\0' ? e->query_id : NULL};
        policy_service_failed(service, &why, e->query_id, &denied);
        destroy(e);
        if (err != NULL)
            *err = why;
        return r;
    }
    e->options.arguments = NULL;
    e->options.request = (struct policy_request){0};
    e->result.session_id = e->spec->session_id;
    e->result.backend = manager_backend(service->manager)->ops->name;
    loop_defer_start(loop_of(e), &e->defer, count);
    *ret = e;
    return 0;
}

/* As hosts know it. */
static void write_exit(struct jw *w, const struct outcome *o)
{
    if (o->kind == OUTCOME_TIMED_OUT)
        jw_knull(w, "exit_code");
    else if (o->kind == OUTCOME_SIGNALED)
        jw_kint(w, "exit_code", 128 + o->signo);
    else
        jw_kint(w, "exit_code", o->kind == OUTCOME_OOM_KILLED ? 137 : o->exit_code);
}

void policy_result_write(const struct policy_result *r, struct jw *w)
{
    static const char *const names[2][3] = {{"stdout", "stdout_truncated", "stdout_id"},
                                            {"stderr", "stderr_truncated", "stderr_id"}};
    const struct outcome *o = &r->outcome;

    jw_object(w);
    jw_kstr(w, "session_id", r->session_id);
    jw_kstr(w, "backend", r->backend);
    jw_kstr(w, "status", o->kind == OUTCOME_TIMED_OUT ? "timed_out" : "completed");
    jw_kbool(w, "ok", o->kind == OUTCOME_EXITED && o->exit_code == 0);
    write_exit(w, o);
    for (int i = 0; i < 2; i++) {
        jw_key(w, names[i][0]);
        jw_strn(w, buf_str(&r->text[i]), r->text[i].len);
    }
    for (int i = 0; i < 2; i++)
        jw_kbool(w, names[i][1], r->cut[i]);
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_kstr(w, "outcome", outcome_name(o->kind));
    for (int i = 0; i < 2; i++)
        if (r->id[i][0] != '\0')
            jw_kstr(w, names[i][2], r->id[i]);
    jw_object_end(w);
}
