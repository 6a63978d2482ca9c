/* SPDX-License-Identifier: Apache-2.0 */

/* Starts an exec in the session's sandbox, keeps its output, and reports its result. */

#include "session/run.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "session/events.h"
#include "session/manager.h"
#include "session/metrics.h"
#include "spec/spec.h"

struct run {
    struct session *session; /* held */
    struct exec *exec;       /* owned, NULL once finished */
    const struct backend_ops *ops;
    struct run_events events;
    void *arg;
    struct log_scope request; /* that asked, for the log */
    bool counted;             /* the session counts us among its running execs */
    bool quiet;
    unsigned condemned; /* the session, when it began */
    char *id;           /* owned, or NULL */
    char label[65];     /* what it leaves is known by it: the id, or a random one; "": quiet */
    struct run_result result;
};

static struct metrics *metrics_of(const struct run *r)
{
    return manager_metrics(session_manager(r->session));
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct run *r = arg;
    r->result.produced[stream] += len;
    if (r->counted)
        metrics_of(r)->output_bytes[stream] += len;
    if (r->events.output != NULL) {
        r->events.output(r->arg, stream, data, len);
        return;
    }
    struct buf *kept = &r->result.kept[stream];
    size_t room = kept->max - kept->len;
    (void)buf_append(kept, data, len < room ? len : room);
}

static void on_stdin_drained(void *arg)
{
    struct run *r = arg;
    if (r->events.stdin_drained != NULL)
        r->events.stdin_drained(r->arg);
}

/* `how`: enum outcome_kind or enum metrics_exec. */
static void uncount(struct run *r, unsigned how)
{
    if (!r->counted)
        return;
    metrics_of(r)->execs[how]++;
    metrics_of(r)->execs_running--;
    r->counted = false;
    session_exec_ends(r->session);
}

static void tell_ended(const struct run *r)
{
    const struct outcome *o = &r->result.outcome; /* the backend freed its own with the exec */
    struct manager *m = session_manager(r->session);
    if (!r->quiet)
        events_emit(manager_get_options(m)->events,
                    &(struct event){.kind = EVENT_EXEC_ENDED,
                                    .session = session_id(r->session),
                                    .name = r->id,
                                    .bound = session_spec(r->session)->own.bound,
                                    .uid = session_spec(r->session)->own.uid,
                                    .outcome = o->kind,
                                    .exit_code = o->exit_code,
                                    .duration_ns = o->duration_ns});
}

/* If boxd killed the command because of its session, the outcome has the reason. */
static void explain(struct run *r)
{
    struct outcome *o = &r->result.outcome;
    const char *why = NULL;
    if (session_condemned(r->session, &why) == r->condemned || o->kind != OUTCOME_SIGNALED)
        return;
    o->kind = OUTCOME_QUOTA_EXCEEDED;
    o->exit_code = 128 + o->signo;
    (void)snprintf(o->error, sizeof(o->error), "%.*s", (int)sizeof(o->error) - 1, why);
}

static void on_finished(void *arg, const struct outcome *outcome)
{
    struct run *r = arg;
    LOG_REQUEST(r->request.id);
    r->result.outcome = *outcome;
    (void)str_copy(r->result.outcome.left_as, sizeof(r->result.outcome.left_as), r->label);
    explain(r);
    outcome = &r->result.outcome;
    if (r->counted)
        hist_add(&metrics_of(r)->exec, outcome->duration_ns);
    uncount(r, outcome->kind);
    r->ops->exec_free(r->exec);
    r->exec = NULL;
    tell_ended(r);
    r->events.finished(r->arg, &r->result);
}

static const struct exec_events exec_events = {
    .output = on_output, .stdin_drained = on_stdin_drained, .finished = on_finished};

int run_start(struct session *s, const struct run_options *options, const struct run_events *events,
              void *arg, struct run **ret, struct err *err)
{
    struct sandbox *sb = session_sandbox(s);
    if (sb == NULL)
        return err_set(err, ERR_STATE, "session '%s' is not running", session_id(s));
    struct run *r = xnew(struct run);
    r->session = s;
    r->ops = sb->backend->ops;
    r->events = *events;
    r->arg = arg;
    r->request = log_scope_now();
    for (int i = 0; i < 2; i++)
        buf_init(&r->result.kept[i],
                 options->capture < RUN_CAPTURE_MAX ? options->capture : RUN_CAPTURE_MAX);
    struct exec_request request = options->exec;
    if (session_spec(s)->own.env_locked && !options->quiet) /* what is quiet is our own */
        request.env = NULL;
    if (!options->quiet && options->id == NULL)
        id_random(r->label);
    else if (!options->quiet)
        (void)str_copy(r->label, sizeof(r->label), options->id);
    request.label = r->label;
    int e = r->ops->exec(sb, &request, &exec_events, r, &r->exec, err);
    if (e < 0) {
        if (!options->quiet)
            metrics_of(r)->execs[METRICS_EXEC_FAILED]++;
        free(r);
        return e;
    }
    session_hold(s);
    r->quiet = options->quiet;
    const char *ignored = NULL;
    r->condemned = session_condemned(s, &ignored);
    r->id = options->id != NULL ? xstrdup(options->id) : NULL;
    r->counted = !options->quiet;
    if (r->counted) {
        session_exec_begins(s);
        metrics_of(r)->execs_running++;
    }
    *ret = r;
    return 0;
}

void run_free(struct run *r)
{
    if (r == NULL)
        return;
    if (r->exec != NULL)
        r->ops->exec_free(r->exec);
    uncount(r, METRICS_EXEC_ABANDONED);
    for (int i = 0; i < 2; i++)
        buf_done(&r->result.kept[i]);
    session_release(r->session);
    free(r->id);
    free(r);
}

int run_write(struct run *r, const char *data, size_t len)
{
    return r->exec == NULL ? -EPIPE : r->ops->exec_write(r->exec, data, len);
}

void run_close_stdin(struct run *r)
{
    if (r->exec != NULL)
        r->ops->exec_close_stdin(r->exec);
}

void run_signal(struct run *r, int signo)
{
    if (r->exec != NULL)
        r->ops->exec_signal(r->exec, signo);
}

void run_kill(struct run *r)
{
    if (r->exec != NULL)
        r->ops->exec_kill(r->exec);
}

void run_resize(struct run *r, uint16_t rows, uint16_t cols)
{
    if (r->exec != NULL)
        r->ops->exec_resize(r->exec, rows, cols);
}

void run_pause(struct run *r, bool paused)
{
    if (r->exec != NULL)
        r->ops->exec_pause(r->exec, paused);
}
