/* SPDX-License-Identifier: Apache-2.0 */

/* The states of one command of a user, and the rules that apply to the commands of each front. */

#include "command/command.h"

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
#include "base/state.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "command/quota.h"
#include "command/quota_guard.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "policy/truncate.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

/* The rules that do not apply to the commands of a front. All others apply to every command. */
enum rule {
    RULE_ENABLED, /* box.enabled, and a backend that is there */
    RULE_PROFILE, /* the longest timeout of the configured profile, or of the token's */
    RULE_QUOTA,   /* the counted quota of a workspace that is a directory of the host */
};

static const struct {
    const char *via;
    enum rule rule;
} exempt[] = {
    {"rpc", RULE_ENABLED}, /* LangBot has its own box.enabled, and does not call without */
    {"rpc", RULE_PROFILE}, /* it has applied its own profile; a grant is applied to the spec */
    {"rpc", RULE_QUOTA},   /* it counts before and after its calls */
};

#define TO(s) (1U << COMMAND_##s)
static const unsigned moves[COMMAND_STATE_MAX] = {
    [COMMAND_ASKING] = TO(ACQUIRING) | TO(RUNNING) | TO(DONE),
    [COMMAND_ACQUIRING] = TO(RUNNING) | TO(DONE) | TO(ABANDONED),
    [COMMAND_RUNNING] = TO(JUDGING),
    [COMMAND_JUDGING] = TO(DROPPING) | TO(DONE),
    [COMMAND_DROPPING] = TO(DONE) | TO(ABANDONED),
};

struct command {
    const struct policy_service *service; /* borrowed */
    struct log_scope request;             /* that asked, for the log */
    enum command_state state;
    bool by_query;
    bool recorded; /* its start is on record, so its end will be, too */
    bool keep_rest;
    enum command_keep keep;
    const struct command_events *events; /* borrowed */
    void *arg;
    const char *via;           /* static */
    char *who, *query_id, *id; /* owned; the last is the session's, NULL: not known yet */
    struct policy_decision decision;
    struct spec *spec;         /* owned; of the query's session, until that is asked for */
    struct spec *own;          /* owned; the part of it that belongs to the command, from then on */
    struct run_options run;    /* borrows from the front, or from `own`, until it runs */
    const char *stdin_text;    /* the same */
    struct share *share;       /* held; that is charged for it; NULL: none is */
    struct session *session;   /* held; NULL: not found yet, or to be removed */
    struct run *running;       /* owned; NULL unless it runs */
    struct quota_count *count; /* owned; the one under way */
    struct quota_check quota;
    struct quota_watch watch;
    struct truncator *cutters[2]; /* owned */
    struct output *outputs[2];    /* open until the end */
    struct command_result result;
    struct err err;
    struct loop_defer defer;
};

static void command_move(struct command *c, enum command_state to)
{
    STATE_MOVE(c->state, moves, to);
}

static bool applies(const struct command *c, enum rule rule)
{
    for (size_t i = 0; i < ARRAY_SIZE(exempt); i++)
        if (exempt[i].rule == rule && str_eq(exempt[i].via, c->via))
            return false;
    return true;
}

enum command_state command_state(const struct command *c)
{
    return c->state;
}

struct run *command_run(const struct command *c)
{
    return c != NULL ? c->running : NULL;
}

/* Records ------------------------------------------------------------------------------------- */

static struct audit_record record_of(const struct command *c, enum audit_event event)
{
    return (struct audit_record){.event = event,
                                 .who = c->who,
                                 .via = c->via,
                                 .session = c->id,
                                 .query = c->query_id[0] != '\0' ? c->query_id : NULL,
                                 .decision = c->decision.profile != NULL ? &c->decision : NULL};
}

static void write_record(const struct command *c, struct audit_record *r)
{
    if (c->service->audit != NULL)
        (void)audit_write(c->service->audit, r, NULL); /* it counts what it loses */
}

static int record_start(struct command *c, struct err *err)
{
    AUTO_FREE char *command = NULL;
    struct audit_record r = record_of(c, AUDIT_EXEC_START);
    int e = c->service->audit != NULL ? audit_ready(c->service->audit, err) : 0;

    if (e == 0 && c->service->audit != NULL) {
        command = policy_command_text(c->run.exec.argv, c->run.exec.cmd);
        r.command = command;
        r.command_len = strlen(command);
        e = audit_write(c->service->audit, &r, err);
    }
    c->recorded = e == 0;
    return e;
}

static void record_failure(const struct command *c, const struct err *err)
{
    struct audit_record r = record_of(c, c->recorded ? AUDIT_EXEC_END : AUDIT_DENIED);

    policy_service_failed(c->service, err, c->query_id, &r);
}

/* Ending -------------------------------------------------------------------------------------- */

static void stop(struct command *c)
{
    loop_defer_stop(&c->defer);
    quota_count_free(TAKE_PTR(c->count));
    quota_watch_stop(&c->watch);
}

static void destroy(struct command *c)
{
    stop(c);
    run_free(c->running);
    if (c->session != NULL)
        session_release(c->session);
    for (int i = 0; i < 2; i++) {
        truncator_free(c->cutters[i]);
        if (c->outputs[i] != NULL)
            output_discard(c->outputs[i]);
        buf_done(&c->result.text[i]);
    }
    share_give(c->share, SHARE_EXECS);
    spec_free(c->spec);
    spec_free(c->own);
    free(c->who);
    free(c->query_id);
    free(c->id);
    free(c);
}

static void record_given_up(const struct command *c)
{
    struct audit_record r = record_of(c, AUDIT_EXEC_END);

    r.outcome = "given_up";
    if (c->recorded && c->state < COMMAND_DROPPING)
        write_record(c, &r);
}

void command_free(struct command *c)
{
    if (c == NULL)
        return;
    record_given_up(c);
    /* Callbacks of the manager cannot be taken back: the last of them frees us. */
    if (c->state == COMMAND_ACQUIRING || c->state == COMMAND_DROPPING)
        command_move(c, COMMAND_ABANDONED);
    else
        destroy(c);
}

void command_cancel(struct command *c)
{
    if (command_run(c) != NULL)
        run_kill(c->running);
    command_free(c);
}

/* Calls back; the front may free the command in it. */
static void end(struct command *c, const struct err *err)
{
    command_move(c, COMMAND_DONE);
    c->events->ended(c->arg, err == NULL ? &c->result : NULL, err);
}

static void fail(struct command *c)
{
    record_failure(c, &c->err);
    end(c, &c->err);
}

void command_kill(struct command *c)
{
    if (c->running != NULL) {
        run_kill(c->running);
    } else if (c->state == COMMAND_ASKING) {
        stop(c);
        record_given_up(c);
        (void)err_set(&c->err, ERR_STATE, "the command was given up before it ran");
        end(c, &c->err);
    }
}

/* Fills the shown output, and an id for the rest. */
static void finish_stream(struct command *c, int i)
{
    struct command_result *r = &c->result;

    if (c->cutters[i] != NULL)
        (void)truncator_finish(c->cutters[i], &r->text[i], &r->cut[i]);
    else
        r->cut[i] = r->produced[i] > r->text[i].len;
    if (c->outputs[i] != NULL && r->cut[i])
        output_finish(TAKE_PTR(c->outputs[i]), r->id[i]);
}

static void succeed(struct command *c)
{
    struct audit_record r = record_of(c, AUDIT_EXEC_END);

    for (int i = 0; i < 2; i++)
        finish_stream(c, i);
    if (c->keep == COMMAND_KEEP_CHARS && c->result.text[EXEC_STDERR].len == 0)
        command_explain(&c->result, &c->result.text[EXEC_STDERR]);
    policy_record_outcome(c->service, &r, &c->result.outcome, c->result.produced);
    if (applies(c, RULE_QUOTA))
        quota_guard(c->service, c->session); /* what it left running may go on writing */
    end(c, NULL);
}

static void on_dropped(void *arg, const struct err *err)
{
    struct command *c = arg;

    (void)err; /* the manager has logged it */
    if (c->state == COMMAND_ABANDONED)
        destroy(c);
    else
        end(c, &c->err);
}

/* Over the quota: the session is removed, however the command ended. */
static void drop(struct command *c)
{
    struct audit_record gone = record_of(c, AUDIT_SESSION_DELETE);
    struct err ignored;

    record_failure(c, &c->err);
    gone.reason = "over its quota";
    write_record(c, &gone);
    command_move(c, COMMAND_DROPPING);
    struct session *s = TAKE_PTR(c->session);
    if (manager_expel(c->service->manager, s, on_dropped, c, &ignored) < 0)
        on_dropped(c, &ignored);
    session_release(s);
}

/* Counting: before and after ------------------------------------------------------------------ */

static void let_in(struct command *c);

static void judged(struct command *c, bool ok)
{
    if (c->state == COMMAND_ASKING)
        ok ? let_in(c) : fail(c);
    else
        ok ? succeed(c) : drop(c);
}

static void on_counted(void *arg, const struct usage *usage, const struct err *err)
{
    struct command *c = arg;
    bool ok = false;

    if (err != NULL)
        c->err = *err;
    else
        ok = quota_judge(&c->quota, quota_watch_most(&c->watch, usage), &c->err) == 0;
    if (c->state == COMMAND_ASKING && err == NULL)
        c->quota.before = *usage;
    quota_count_free(TAKE_PTR(c->count));
    judged(c, ok);
}

static bool counts(const struct command *c)
{
    return applies(c, RULE_QUOTA) && quota_applies(c->quota.spec) &&
           c->quota.spec->host_path_mode != MOUNT_NONE;
}

/* An existing session on the same directory: the kernel may enforce its limit. */
static struct session *earlier(const struct command *c)
{
    struct session *s = manager_find(c->service->manager, c->id);

    return s != NULL && session_state(s) == SESSION_READY &&
                   str_eq(session_spec(s)->host_path, c->quota.spec->host_path)
               ? s
               : NULL;
}

static void judge(struct command *c)
{
    if (!counts(c)) {
        judged(c, true);
        return;
    }
    const struct quota_place place = {c->quota.spec->host_path,
                                      c->session != NULL ? c->session : earlier(c)};
    if (quota_count_start(c->service, &place, on_counted, c, &c->count, &c->err) < 0)
        judged(c, false);
}

/* Running ------------------------------------------------------------------------------------- */

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct command *c = arg;
    struct buf *text = &c->result.text[stream];
    size_t room = text->max - text->len;

    if (c->cutters[stream] != NULL)
        truncator_feed(c->cutters[stream], data, len);
    else if (room > 0)
        (void)buf_append(text, data, len < room ? len : room);
    if (c->outputs[stream] != NULL)
        output_append(c->outputs[stream], data, len);
    if (c->events->output != NULL)
        c->events->output(c->arg, stream, data, len);
}

static void on_stdin_drained(void *arg)
{
    struct command *c = arg;

    if (c->events->stdin_drained != NULL)
        c->events->stdin_drained(c->arg);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct command *c = arg;
    bool lost = result->outcome.kind == OUTCOME_SESSION_LOST;

    c->result.outcome = result->outcome;
    memcpy(c->result.produced, result->produced, sizeof(result->produced));
    stop(c);
    run_free(TAKE_PTR(c->running));
    command_move(c, COMMAND_JUDGING);
    if (lost && c->by_query) { /* it asked for no session, and knows of none */
        (void)err_set(&c->err, ERR_BACKEND, "session %s ended while the command was running",
                      c->id);
        fail(c);
    } else if (lost) {
        judged(c, true);
    } else {
        judge(c);
    }
}

/* For a directory of the host the kernel enforces no limit. */
static void on_over(void *arg)
{
    run_kill(((struct command *)arg)->running);
}

static void open_streams(struct command *c)
{
    int64_t limit = policy_settings(c->service->policy)->output_limit_chars;

    for (int i = 0; i < 2; i++) {
        if (c->keep == COMMAND_KEEP_CHARS) {
            c->cutters[i] = truncator_new(limit);
            /* Four bytes a character, and the notice or a sentence of ours. */
            buf_init(&c->result.text[i], (size_t)limit * 4 + 512);
        } else if (c->keep == COMMAND_KEEP_BYTES) {
            buf_init(&c->result.text[i], c->run.capture);
        }
        if (c->keep_rest && c->service->outputs != NULL)
            c->outputs[i] = output_new(c->service->outputs, c->id, share_name(c->share));
    }
}

static void run(struct command *c)
{
    static const struct run_events events = {
        .output = on_output, .stdin_drained = on_stdin_drained, .finished = on_finished};

    open_streams(c);
    if (run_start(c->session, &c->run, &events, c, &c->running, &c->err) < 0) {
        fail(c);
        return;
    }
    command_move(c, COMMAND_RUNNING);
    if (c->stdin_text != NULL) {
        (void)run_write(c->running, c->stdin_text, strlen(c->stdin_text));
        run_close_stdin(c->running);
    }
    spec_free(TAKE_PTR(c->own));
    c->quota.phase = QUOTA_AFTER;
    c->watch = (struct quota_watch){.service = c->service,
                                    .check = &c->quota,
                                    .session = c->session,
                                    .over = on_over,
                                    .arg = c};
    if (counts(c))
        quota_watch_start(&c->watch);
    if (c->events->started != NULL)
        c->events->started(c->arg);
}

static void on_ready(void *arg, struct session *session, const struct err *err)
{
    struct command *c = arg;

    c->session = session;
    if (c->state == COMMAND_ABANDONED) {
        destroy(c);
    } else if (session == NULL) {
        c->err = *err;
        fail(c);
    } else {
        c->quota.spec = session_spec(session);
        run(c);
    }
}

/* The manager takes the spec; what belongs to the command rather than the session stays with us. */
static void acquire(struct command *c)
{
    struct spec *theirs = TAKE_PTR(c->spec), *ours = spec_new();

    free(ours->cmd);
    ours->cmd = theirs->cmd;
    theirs->cmd = xstrdup("");
    ours->env = TAKE_PTR(theirs->env);
    free(ours->workdir);
    ours->workdir = xstrdup(theirs->workdir);
    c->own = ours;
    c->run.exec.env = ours->env;
    c->run.exec.cwd = ours->workdir;
    command_move(c, COMMAND_ACQUIRING);
    if (manager_acquire(c->service->manager, &theirs, COMMAND_SESSION_FIELDS, ACQUIRE_REMOUNT,
                        on_ready, c, &c->err) == 0)
        return;
    spec_free(theirs);
    fail(c);
}

static void let_in(struct command *c)
{
    if (c->by_query)
        acquire(c);
    else if (!c->recorded && record_start(c, &c->err) < 0)
        fail(c);
    else
        run(c);
}

/* Asking -------------------------------------------------------------------------------------- */

/* Found by name only for a better message: the backend finds it by descriptor when it mounts it. */
static int find_workspace(const struct spec *spec, struct err *err)
{
    if (spec->host_path == NULL || spec->host_path_mode == MOUNT_NONE)
        return 0;
    int fd = path_open_unlinked(spec->host_path, O_PATH | O_DIRECTORY);
    if (fd >= 0)
        (void)close(fd);
    if (fd >= 0 || fd == -EACCES)
        return 0;
    return err_set(err, ERR_INVALID, "host_path must point to an existing directory on the host");
}

static int ask_query(struct command *c, const struct command_options *o, struct err *err)
{
    const struct policy *p = c->service->policy;
    int r = o->request.query != NULL
                ? policy_tool_spec(p, &o->request, o->arguments, &c->spec, &c->decision, err)
                : policy_payload_spec(p, &o->request, o->arguments, &c->spec, &c->decision, err);

    if (r < 0)
        return r;
    c->by_query = true;
    c->id = xstrdup(c->spec->session_id);
    c->quota.spec = c->spec;
    c->run = (struct run_options){
        .exec = {.cmd = c->spec->cmd, .timeout_ns = (uint64_t)c->spec->timeout_sec * NSEC_PER_SEC}};
    return find_workspace(c->spec, err);
}

/* A command may take as long as its caller's profile says, whatever was asked for. */
static void clamp(struct command *c, const struct authz_scope *scope)
{
    const struct policy *p = c->service->policy;
    uint64_t *timeout = &c->run.exec.timeout_ns;
    int64_t longest = policy_longest_sec(p, scope);

    (void)policy_profile(p, NULL, &c->decision.profile, NULL);
    c->decision.clamped =
        longest > 0 && (*timeout == 0 || *timeout > (uint64_t)longest * NSEC_PER_SEC);
    if (c->decision.clamped)
        *timeout = (uint64_t)longest * NSEC_PER_SEC;
}

static int ask_session(struct command *c, const struct command_options *o, struct err *err)
{
    c->session = o->session;
    session_hold(c->session);
    c->id = xstrdup(session_id(c->session));
    c->quota.spec = session_spec(c->session);
    if (o->run.exec.env != NULL && c->quota.spec->own.env_locked)
        c->decision.overridden = FIELD_BIT(SPEC_ENV);
    if (applies(c, RULE_PROFILE))
        clamp(c, o->request.scope);
    int r = authz_check_tool(o->request.scope, "exec", err);
    return r < 0 ? r : policy_check_use(c->service->policy, o->request.scope, c->quota.spec, err);
}

static int ask(struct command *c, const struct command_options *o, struct err *err)
{
    const char *payer = authz_share(o->request.scope);
    int r = applies(c, RULE_ENABLED) ? policy_service_guard(c->service, err) : 0;

    if (r == 0)
        r = o->session != NULL ? ask_session(c, o, err) : ask_query(c, o, err);
    if (r == 0)
        r = shares_check(c->service->shares, payer, SHARE_EXECS, err);
    if (r == 0 && (c->by_query || !counts(c))) /* else when that is done */
        r = record_start(c, err);
    if (r == 0)
        c->share = shares_take(c->service->shares, payer, SHARE_EXECS);
    return r;
}

static void on_turn(struct loop_defer *d)
{
    struct command *c = container_of(d, struct command, defer);
    LOG_REQUEST(c->request.id);

    judge(c);
}

int command_start(const struct policy_service *service, const struct command_options *options,
                  const struct command_events *events, void *arg, struct command **ret,
                  struct err *err)
{
    struct command *c = xnew(struct command);

    c->service = service;
    c->request = log_scope_now();
    c->keep = options->keep;
    c->keep_rest = options->keep_rest;
    c->events = events;
    c->arg = arg;
    c->via = options->via;
    c->who = xstrdup(options->who != NULL ? options->who : authz_name(options->request.scope));
    c->query_id = policy_query_id(options->request.query);
    c->run = options->run;
    c->stdin_text = options->stdin_text;
    int r = ask(c, options, &c->err);
    if (r < 0) {
        record_failure(c, &c->err);
        if (err != NULL)
            *err = c->err;
        destroy(c);
        return r;
    }
    c->quota.max_entries = (uint64_t)policy_settings(service->policy)->max_workspace_entries;
    c->quota.cleanup = options->cleanup;
    c->result.session_id = c->id;
    c->result.backend = manager_backend(service->manager)->ops->name;
    c->result.timeout_sec = c->run.exec.timeout_ns / NSEC_PER_SEC;
    loop_defer_start(manager_loop(service->manager), &c->defer, on_turn);
    *ret = c;
    return 0;
}

/* Answers ------------------------------------------------------------------------------------- */

void command_explain(const struct command_result *r, struct buf *out)
{
    if (r->outcome.kind == OUTCOME_TIMED_OUT)
        (void)buf_printf(out, "Command timed out after %llu seconds.",
                         (unsigned long long)r->timeout_sec);
    else if (r->outcome.kind == OUTCOME_OOM_KILLED)
        (void)buf_puts(out, "Command was killed: the session is out of memory.");
    else
        (void)buf_puts(out, r->outcome.error);
}

void command_write_exit(const struct command_result *r, struct jw *w)
{
    const struct outcome *o = &r->outcome;

    if (o->kind == OUTCOME_TIMED_OUT)
        jw_knull(w, "exit_code");
    else if (o->kind == OUTCOME_SIGNALED)
        jw_kint(w, "exit_code", 128 + o->signo);
    else
        jw_kint(w, "exit_code", o->kind == OUTCOME_OOM_KILLED ? 137 : o->exit_code);
}

void command_write_result(const struct command_result *r, struct jw *w)
{
    static const char *const names[2][3] = {{"stdout", "stdout_truncated", "stdout_id"},
                                            {"stderr", "stderr_truncated", "stderr_id"}};
    const struct outcome *o = &r->outcome;

    jw_kstr(w, "session_id", r->session_id);
    jw_kstr(w, "backend", r->backend);
    jw_kstr(w, "status", o->kind == OUTCOME_TIMED_OUT ? "timed_out" : "completed");
    jw_kbool(w, "ok", o->kind == OUTCOME_EXITED && o->exit_code == 0);
    command_write_exit(r, w);
    for (int i = 0; i < 2; i++)
        jw_kstrn(w, names[i][0], buf_str(&r->text[i]), r->text[i].len);
    for (int i = 0; i < 2; i++)
        jw_kbool(w, names[i][1], r->cut[i]);
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_kstr(w, "outcome", outcome_name(o->kind));
    for (int i = 0; i < 2; i++)
        if (r->id[i][0] != '\0')
            jw_kstr(w, names[i][2], r->id[i]);
}
