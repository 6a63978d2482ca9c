/* SPDX-License-Identifier: Apache-2.0 */

/* The action that runs a command; commands of one session run one after the other. */

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "session/manager.h"
#include "session/run.h"

/* Commands of one session run one after the other, in the order they came: a lane for each session
 * that has any. The first call of a lane is at work, the others wait. */
struct lane {
    struct lane *next; /* of the bucket */
    struct langbot_call *first, *last;
    char *id; /* owned */
};

static struct lane **find_lane(struct langbot *r, const char *id)
{
    struct lane **at = &r->lanes[str_hash(id) % LANGBOT_LANES];
    while (*at != NULL && !str_eq((*at)->id, id))
        at = &(*at)->next;
    return at;
}

static void go_on(struct loop_defer *d)
{
    struct langbot_call *c = container_of(d, struct langbot_call, defer);
    c->cancel = NULL;
    c->then(c);
}

/* `begin` comes when all earlier ones have left, now or later; it may be cancelled before. */
static void lane_enter(struct langbot_call *c, void (*begin)(struct langbot_call *c))
{
    struct lane **at = find_lane(c->rpc, c->id);
    bool first = *at == NULL;
    if (first) {
        *at = xnew(struct lane);
        (*at)->id = xstrdup(c->id);
        (*at)->first = c;
    } else {
        (*at)->last->lane_next = c;
    }
    (*at)->last = c;
    c->lane = *at;
    c->then = begin;
    if (first)
        begin(c);
    else
        c->cancel = langbot_call_end; /* nothing has begun */
}

void langbot_lane_leave(struct langbot_call *c)
{
    struct lane *lane = c->lane;
    struct langbot_call *before = NULL;
    if (lane == NULL)
        return;
    c->lane = NULL;
    for (struct langbot_call *it = lane->first; it != c; it = it->lane_next)
        before = it;
    if (before != NULL)
        before->lane_next = c->lane_next;
    else
        lane->first = c->lane_next;
    if (lane->last == c)
        lane->last = before;
    c->lane_next = NULL;
    if (lane->first == NULL) {
        *find_lane(c->rpc, lane->id) = lane->next;
        free(lane->id);
        free(lane);
    } else if (before == NULL) {
        loop_defer_start(c->rpc->loop, &lane->first->defer, go_on);
    }
}

/* Results. */

static void write_stream(struct jw *w, const char *key, const struct run_result *result,
                         enum exec_stream stream, const char *if_empty)
{
    AUTO_DONE(buf) struct buf text;
    const char *kept = buf_str(&result->kept[stream]);
    size_t len = result->kept[stream].len;
    uint64_t lost = result->produced[stream] - len;
    buf_init(&text, RUN_CAPTURE_DEFAULT + 256);
    str_trim(&kept, &len);
    jw_key(w, key);
    if (lost == 0) {
        if (len > 0 || if_empty == NULL)
            jw_strn(w, kept, len);
        else
            jw_str(w, if_empty);
        return;
    }
    (void)buf_append(&text, kept, len);
    (void)buf_printf(&text, "\n... [raw output clipped at %u bytes, %" PRIu64 " bytes discarded]",
                     RUN_CAPTURE_DEFAULT, lost);
    jw_strn(w, text.data, text.len);
}

/* A command that did not end by itself says so where a person will look for it. */
static void describe(const struct langbot_call *c, const struct outcome *o, char *ret, size_t size)
{
    ret[0] = '\0';
    if (o->kind == OUTCOME_TIMED_OUT)
        (void)snprintf(ret, size, "Command timed out after %" PRId64 " seconds.", c->timeout_sec);
    else if (o->kind == OUTCOME_OOM_KILLED)
        (void)snprintf(ret, size, "Command was killed: the session is out of memory.");
    else if (o->error[0] != '\0')
        (void)snprintf(ret, size, "%s", o->error);
}

/* As a container engine's command line tells it. */
static void write_exit(struct jw *w, const struct outcome *o)
{
    if (o->kind == OUTCOME_TIMED_OUT)
        jw_knull(w, "exit_code");
    else if (o->kind == OUTCOME_SIGNALED)
        jw_kint(w, "exit_code", 128 + o->signo);
    else
        jw_kint(w, "exit_code", o->kind == OUTCOME_OOM_KILLED ? 137 : o->exit_code);
}

static void reply_result(struct langbot_call *c)
{
    const struct run_result *result = c->result;
    const struct outcome *o = &result->outcome;
    struct langbot_reply reply;
    struct jw *w = &reply.w;
    char text[256];
    if (o->kind == OUTCOME_SESSION_LOST) {
        langbot_fail(c, LANGBOT_ERROR, "session %s ended while the command was running", c->id);
        return;
    }
    describe(c, o, text, sizeof(text));
    langbot_reply_open(c, &reply);
    jw_kstr(w, "session_id", langbot_logical(c, c->id));
    jw_kstr(w, "backend_name", langbot_backend_name(c->rpc));
    jw_kstr(w, "status", o->kind == OUTCOME_TIMED_OUT ? "timed_out" : "completed");
    write_exit(w, o);
    write_stream(w, "stdout", result, EXEC_STDOUT, NULL);
    write_stream(w, "stderr", result, EXEC_STDERR, text[0] != '\0' ? text : NULL);
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_kstr(w, "outcome", outcome_name(o->kind));
    langbot_reply_close(c, &reply);
}

static void on_dropped(void *arg, const struct err *err)
{
    (void)err; /* the manager has logged it; the result stands all the same */
    reply_result(arg);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct langbot_call *c = arg;
    struct err err = {0};
    c->result = result;
    c->cancel = NULL;
    langbot_audit_exec_end(c, result);
    /* What a command that hung has left behind is not for the next one. */
    if (result->outcome.kind == OUTCOME_TIMED_OUT &&
        manager_delete(c->rpc->o.manager, c->id, on_dropped, c, &err) == 0)
        return;
    reply_result(c);
}

static void kill_run(struct langbot_call *c)
{
    run_kill(c->run);
}

static void run_it(struct langbot_call *c)
{
    static const struct run_events events = {.finished = on_finished};
    struct err err = {0};
    const struct run_options options = {
        .exec = {.cmd = c->cmd,
                 .env = c->env,
                 .cwd = c->cwd,
                 .timeout_ns = (uint64_t)c->timeout_sec * NSEC_PER_SEC},
        .capture = RUN_CAPTURE_DEFAULT,
    };
    if (langbot_audit_exec(c, &err) < 0) {
        langbot_audit_failed(c, AUDIT_DENIED, &err);
        langbot_fail(c, LANGBOT_ERROR, "%s", err.msg);
        return;
    }
    if (run_start(c->session, &options, &events, c, &c->run, &err) < 0) {
        langbot_audit_failed(c, AUDIT_EXEC_END, &err);
        langbot_fail(c, err.code == ERR_INVALID ? LANGBOT_VALIDATION : LANGBOT_ERROR, "%s",
                     err.msg);
        return;
    }
    free(TAKE_PTR(c->cmd)); /* it may be megabytes, and is on its way */
    c->cancel = kill_run;
}

static void begin(struct langbot_call *c)
{
    langbot_acquire(c, run_it);
}

static void enter(struct langbot_call *c)
{
    langbot_message_drop(&c->msg); /* the request may be megabytes, and all of it has been read */
    lane_enter(c, begin);
}

void langbot_exec(struct langbot_call *c)
{
    langbot_spec_begin(c, enter);
}
