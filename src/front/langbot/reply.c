/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the answers and errors of actions, and reads the arguments that many actions share. */

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
#include "jobs/jobs.h"
#include "session/manager.h"
#include "spec/model.h"

#define TEXT_MAX (64U * 1024)

/* The members that every reply has; `data` is still to come. */
static void begin(struct jw *w, struct buf *out, const struct langbot_call *c, int code,
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

static void send_text(struct langbot_call *c, const struct buf *out)
{
    if (c->conn != NULL)
        c->conn->transport->send(c->conn->arg, out->data, out->len);
}

void langbot_say_error(struct langbot_call *c, enum langbot_class class, const char *text)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_DONE(buf) struct buf message;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    buf_init(&message, TEXT_MAX / 4);
    langbot_error_text(class, text, &message);
    begin(&w, &out, c, 1, buf_str(&message));
    jw_object_end(&w);
    jw_kstr(&w, "error_code", langbot_class_code(class));
    jw_object_end(&w);
    if (jw_end(&w) == 0)
        send_text(c, &out);
    langbot_call_answered(c, langbot_class_code(class));
}

void langbot_fail(struct langbot_call *c, enum langbot_class class, const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf text;
    va_list ap;
    buf_init(&text, TEXT_MAX);
    va_start(ap, fmt);
    /* Text that is too long for us is cut for the client anyway. */
    if (buf_vprintf(&text, fmt, ap) < 0)
        (void)buf_puts(&text, "the request holds more than can be repeated here");
    va_end(ap);
    langbot_say_error(c, class, buf_str(&text));
    langbot_call_end(c);
}

void langbot_fail_err(struct langbot_call *c, const struct err *err)
{
    langbot_fail(c, langbot_class_of(err), "%s", err->msg);
}

void langbot_fail_report(struct langbot_call *c, const struct report *report, const char *model)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, TEXT_MAX);
    (void)report_write(report, model, &text);
    langbot_fail(c, LANGBOT_VALIDATION, "%s", buf_str(&text));
}

void langbot_fail_named(struct langbot_call *c, const char *message)
{
    const char *rest = NULL;
    enum langbot_class class = langbot_class_split(message, &rest);
    langbot_fail(c, class, "%s", rest);
}

void langbot_reply_open(struct langbot_call *c, struct langbot_reply *reply)
{
    buf_init(&reply->out, LANGBOT_MESSAGE_MAX);
    begin(&reply->w, &reply->out, c, 0, "success");
}

void langbot_reply_close(struct langbot_call *c, struct langbot_reply *reply)
{
    jw_object_end(&reply->w);
    jw_object_end(&reply->w);
    if (jw_end(&reply->w) == 0) {
        send_text(c, &reply->out);
        buf_done(&reply->out);
        langbot_call_answered(c, "ok");
        langbot_call_end(c);
        return;
    }
    buf_done(&reply->out);
    langbot_fail(c, LANGBOT_VALUE_ERROR, "Runtime message exceeds %u byte limit",
                 LANGBOT_MESSAGE_MAX);
}

void langbot_reply_json(struct langbot_call *c, const char *json, size_t len)
{
    AUTO(json) struct json *data = NULL;
    struct langbot_reply reply;
    struct err err = {0};
    if (json_parse(json, len, &data, &err) < 0) {
        langbot_fail(c, LANGBOT_ERROR, "a helper gave no proper answer: %s", err.msg);
        return;
    }
    langbot_reply_open(c, &reply);
    for (void *it = json_iter(data); it != NULL; it = json_iter_next(data, it)) {
        jw_key(&reply.w, json_iter_key(it));
        jw_value(&reply.w, json_iter_value(it));
    }
    langbot_reply_close(c, &reply);
}

void langbot_ok(struct langbot_call *c)
{
    struct langbot_reply reply;
    langbot_reply_open(c, &reply);
    langbot_reply_close(c, &reply);
}

/* What handlers read and write alike. */

static const char *langbot_need_str(struct langbot_call *c, const char *name)
{
    const struct json *v = json_get(c->msg.data, name);
    const char *text = json_str(v);
    if (v == NULL)
        langbot_fail(c, LANGBOT_KEY_ERROR, "'%s'", name);
    else if (text == NULL || strlen(text) != json_str_len(v))
        langbot_fail(c, LANGBOT_VALUE_ERROR, "%s must be a string", name);
    else
        return text;
    return NULL;
}

bool langbot_need_session_id(struct langbot_call *c)
{
    struct err err = {0};
    const char *logical = langbot_need_str(c, "session_id");
    if (logical == NULL)
        return false;
    if (admission_enforced(c->rpc->admission) && !str_eq(logical, ADMISSION_SESSION)) {
        langbot_fail(c, LANGBOT_ADMISSION, "Managed sandbox session_id is runtime-owned");
        return false;
    }
    if (c->ns[0] == '\0') {
        c->id = str_strip(logical);
        return true;
    }
    if (tenant_physical(c->prefix, logical, &c->id, &err) == 0)
        return true;
    langbot_fail(c, LANGBOT_VALUE_ERROR, "%s", err.msg);
    return false;
}

struct jobs *langbot_skills(const struct langbot_call *c)
{
    if (c->rpc->o.skills != NULL)
        jobs_act_for(c->rpc->o.skills, c->bound ? &c->uid : NULL);
    return c->rpc->o.skills;
}

bool langbot_may_use(struct langbot_call *c, const struct session *s)
{
    struct err err = {0};
    if (!c->bound || policy_check_user(session_spec(s), c->uid, &err) == 0)
        return true;
    langbot_fail_err(c, &err);
    return false;
}

struct session *langbot_need_session(struct langbot_call *c)
{
    struct session *s = manager_find(c->rpc->o.manager, c->id);
    if (s != NULL && session_sandbox(s) != NULL)
        return langbot_may_use(c, s) ? s : NULL;
    langbot_fail(c, LANGBOT_SESSION_NOT_FOUND, "session %s not found", c->id);
    return NULL;
}

const char *langbot_logical(const struct langbot_call *c, const char *physical)
{
    return tenant_logical(c->prefix, physical);
}

/* As pydantic writes a time in UTC: microseconds, none when they are zero. */
void langbot_write_time(struct jw *w, const char *key, uint64_t real_ns)
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
