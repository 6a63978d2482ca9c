/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "front/langbot/langbot_internal.h"
#include "jobs/skills.h"
#include "session/manager.h"
#include "spec/model.h"

#define TEXT_MAX (64U * 1024)

/* The members that every reply has; `data` is still to come. */
static void begin(struct jw *w, struct buf *out, const struct rpc_call *c, int code,
                  const char *message)
{
    AUTO(json) struct json *seq = NULL;
    struct err err = {0};
    jw_init(w, out);
    jw_object(w);
    jw_key(w, "seq_id");
    if (json_parse(c->msg.seq, strlen(c->msg.seq), &seq, &err) < 0)
        jw_int(w, -1);
    else
        jw_value(w, seq);
    jw_kint(w, "code", code);
    jw_kstr(w, "message", message);
    jw_kstr(w, "chunk_status", "continue");
    jw_key(w, "data");
    jw_object(w);
}

static void send_text(struct rpc_call *c, const struct buf *out)
{
    if (c->conn != NULL)
        c->conn->transport->send(c->conn->arg, out->data, out->len);
}

void rpc_say_error(struct rpc_call *c, enum rpc_class class, const char *text)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_DONE(buf) struct buf message;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    buf_init(&message, TEXT_MAX / 4);
    rpc_error_text(class, text, &message);
    begin(&w, &out, c, 1, buf_str(&message));
    jw_object_end(&w);
    jw_kstr(&w, "error_code", rpc_class_code(class));
    jw_object_end(&w);
    if (jw_end(&w) == 0)
        send_text(c, &out);
    rpc_call_answered(c, rpc_class_code(class));
}

void rpc_fail(struct rpc_call *c, enum rpc_class class, const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf text;
    va_list ap;
    buf_init(&text, TEXT_MAX);
    va_start(ap, fmt);
    /* Text that is too long for us is cut for the client anyway. */
    if (buf_vprintf(&text, fmt, ap) < 0)
        (void)buf_puts(&text, "the request holds more than can be repeated here");
    va_end(ap);
    rpc_say_error(c, class, buf_str(&text));
    rpc_call_end(c);
}

void rpc_fail_err(struct rpc_call *c, const struct err *err)
{
    rpc_fail(c, rpc_class_of(err), "%s", err->msg);
}

void rpc_fail_report(struct rpc_call *c, const struct report *report, const char *model)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, TEXT_MAX);
    (void)report_write(report, model, &text);
    rpc_fail(c, RPC_VALIDATION, "%s", buf_str(&text));
}

void rpc_fail_named(struct rpc_call *c, const char *message)
{
    const char *rest = NULL;
    enum rpc_class class = rpc_class_split(message, &rest);
    rpc_fail(c, class, "%s", rest);
}

void rpc_reply_open(struct rpc_call *c, struct rpc_reply *reply)
{
    buf_init(&reply->out, RPC_MESSAGE_MAX);
    begin(&reply->w, &reply->out, c, 0, "success");
}

void rpc_reply_close(struct rpc_call *c, struct rpc_reply *reply)
{
    jw_object_end(&reply->w);
    jw_object_end(&reply->w);
    if (jw_end(&reply->w) == 0) {
        send_text(c, &reply->out);
        buf_done(&reply->out);
        rpc_call_answered(c, "ok");
        rpc_call_end(c);
        return;
    }
    buf_done(&reply->out);
    rpc_fail(c, RPC_VALUE_ERROR, "Runtime message exceeds %u byte limit", RPC_MESSAGE_MAX);
}

void rpc_reply_json(struct rpc_call *c, const char *json, size_t len)
{
    AUTO(json) struct json *data = NULL;
    struct rpc_reply reply;
    struct err err = {0};
    if (json_parse(json, len, &data, &err) < 0) {
        rpc_fail(c, RPC_ERROR, "a helper gave no proper answer: %s", err.msg);
        return;
    }
    rpc_reply_open(c, &reply);
    for (void *it = json_iter(data); it != NULL; it = json_iter_next(data, it)) {
        jw_key(&reply.w, json_iter_key(it));
        jw_value(&reply.w, json_iter_value(it));
    }
    rpc_reply_close(c, &reply);
}

void rpc_ok(struct rpc_call *c)
{
    struct rpc_reply reply;
    rpc_reply_open(c, &reply);
    rpc_reply_close(c, &reply);
}

/* What handlers read and write alike. */

static const char *rpc_need_str(struct rpc_call *c, const char *name)
{
    const struct json *v = json_get(c->msg.data, name);
    const char *text = json_str(v);
    if (v == NULL)
        rpc_fail(c, RPC_KEY_ERROR, "'%s'", name);
    else if (text == NULL || strlen(text) != json_str_len(v))
        rpc_fail(c, RPC_VALUE_ERROR, "%s must be a string", name);
    else
        return text;
    return NULL;
}

bool rpc_need_session_id(struct rpc_call *c)
{
    struct err err = {0};
    const char *logical = rpc_need_str(c, "session_id");
    if (logical == NULL)
        return false;
    if (admission_enforced(c->rpc->admission) && !str_eq(logical, ADMISSION_SESSION)) {
        rpc_fail(c, RPC_ADMISSION, "Managed sandbox session_id is runtime-owned");
        return false;
    }
    if (c->ns[0] == '\0') {
        c->id = str_strip(logical);
        return true;
    }
    if (tenant_physical(c->prefix, logical, &c->id, &err) == 0)
        return true;
    rpc_fail(c, RPC_VALUE_ERROR, "%s", err.msg);
    return false;
}

struct skills *rpc_skills(const struct rpc_call *c)
{
    if (c->rpc->o.skills != NULL)
        skills_act_for(c->rpc->o.skills, c->bound ? &c->uid : NULL);
    return c->rpc->o.skills;
}

bool rpc_may_use(struct rpc_call *c, const struct session *s)
{
    struct err err = {0};
    if (!c->bound || policy_check_user(session_spec(s), c->uid, &err) == 0)
        return true;
    rpc_fail_err(c, &err);
    return false;
}

struct session *rpc_need_session(struct rpc_call *c)
{
    struct session *s = manager_find(c->rpc->o.manager, c->id);
    if (s != NULL && session_sandbox(s) != NULL)
        return rpc_may_use(c, s) ? s : NULL;
    rpc_fail(c, RPC_SESSION_NOT_FOUND, "session %s not found", c->id);
    return NULL;
}

const char *rpc_logical(const struct rpc_call *c, const char *physical)
{
    return tenant_logical(c->prefix, physical);
}

/* As pydantic writes a time in UTC: microseconds, none when they are zero. */
void rpc_write_time(struct jw *w, const char *key, uint64_t real_ns)
{
    char text[48];
    struct tm tm;
    time_t sec = (time_t)(real_ns / NSEC_PER_SEC);
    uint64_t usec = real_ns % NSEC_PER_SEC / 1000;
    (void)gmtime_r(&sec, &tm);
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    if (usec > 0)
        n += (size_t)snprintf(text + n, sizeof(text) - n, ".%06" PRIu64, usec);
    (void)str_copy(text + n, sizeof(text) - n, "Z");
    jw_kstr(w, key, text);
}
