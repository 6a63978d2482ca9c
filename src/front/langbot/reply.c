/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the answers and errors of actions, with the table of LangBot's error classes, and the
 * audit records of sessions; reads the arguments that many actions share. */

#include <stdarg.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/langbot/langbot_internal.h"
#include "policy/audit/audit.h"
#include "session/manager.h"
#include "spec/model.h"

#define TEXT_MAX (64U * 1024)
#define TEXT_CHARS_MAX 4096 /* of an error */

/* clang-format off */
static const struct {
    const char *name, *code;
} classes[LANGBOT_CLASS_MAX] = {
    [LANGBOT_ERROR] = {"BoxError", "box_error"},
    [LANGBOT_ADMISSION] = {"BoxAdmissionError", "admission"},
    [LANGBOT_READINESS] = {"BoxReadinessError", "not_ready"},
    [LANGBOT_CAPACITY] = {"BoxCapacityExceededError", "capacity_exceeded"},
    [LANGBOT_VALIDATION] = {"BoxValidationError", "invalid"},
    [LANGBOT_SESSION_NOT_FOUND] = {"BoxSessionNotFoundError", "session_not_found"},
    [LANGBOT_SESSION_CONFLICT] = {"BoxSessionConflictError", "session_conflict"},
    [LANGBOT_PROCESS_NOT_FOUND] = {"BoxManagedProcessNotFoundError", "process_not_found"},
    [LANGBOT_PROCESS_CONFLICT] = {"BoxManagedProcessConflictError", "process_conflict"},
    [LANGBOT_BACKEND_UNAVAILABLE] = {"BoxBackendUnavailableError", "backend_unavailable"},
    [LANGBOT_RUNTIME_UNAVAILABLE] = {"BoxRuntimeUnavailableError", "runtime_unavailable"},
    [LANGBOT_VALUE_ERROR] = {"ValueError", "bad_value"},
    [LANGBOT_KEY_ERROR] = {"KeyError", "missing_key"},
    [LANGBOT_PERMISSION_ERROR] = {"PermissionError", "denied"},
    [LANGBOT_ENVELOPE_ERROR] = {"ValidationError", "bad_request"},
    [LANGBOT_BASE64_ERROR] = {"Error", "bad_base64"},
    [LANGBOT_NO_FILE_ERROR] = {"FileNotFoundError", "file_not_found"},
    [LANGBOT_OS_ERROR] = {"OSError", "system"},
    [LANGBOT_BUSY] = {"", "busy"},
};
/* clang-format on */

const char *langbot_class_name(enum langbot_class class)
{
    return classes[class].name;
}

static enum langbot_class class_of(const struct err *err)
{
    static const enum langbot_class by_code[ERR_CODE_MAX] = {
        [ERR_NONE] = LANGBOT_ERROR,
        [ERR_INVALID] = LANGBOT_VALIDATION,
        [ERR_NOT_FOUND] = LANGBOT_SESSION_NOT_FOUND,
        [ERR_CONFLICT] = LANGBOT_SESSION_CONFLICT,
        [ERR_STATE] = LANGBOT_ERROR,
        [ERR_LIMIT] = LANGBOT_CAPACITY,
        [ERR_DENIED] = LANGBOT_VALIDATION,
        [ERR_UNSUPPORTED] = LANGBOT_ERROR,
        [ERR_BACKEND] = LANGBOT_ERROR,
        [ERR_UNAVAILABLE] = LANGBOT_BACKEND_UNAVAILABLE,
        [ERR_SYSTEM] = LANGBOT_ERROR,
    };
    return by_code[err->code];
}

static enum langbot_class class_named(const char *name)
{
    for (int i = 0; i < LANGBOT_BUSY; i++)
        if (str_eq(name, classes[i].name))
            return (enum langbot_class)i;
    return LANGBOT_ERROR;
}

/* Length of a class name with its colon at s, the part that clients search for; 0: none. */
static size_t marker_at(const char *s)
{
    if (s[0] != 'B')
        return 0;
    for (int i = LANGBOT_ADMISSION; i <= LANGBOT_BACKEND_UNAVAILABLE; i++) {
        size_t n = strlen(classes[i].name);
        if (strncmp(s, classes[i].name, n) == 0 && s[n] == ':')
            return n + 1;
    }
    return 0;
}

/* "<name>: <text>", cut and defused. */
static void put_error_text(enum langbot_class class, const char *text, struct buf *out)
{
    size_t left = strlen(text), chars = 0;
    if (class != LANGBOT_BUSY)
        (void)buf_printf(out, "%s: ", classes[class].name);
    while (left > 0 && chars < TEXT_CHARS_MAX) {
        bool incomplete = false;
        size_t marker = marker_at(text);
        int n = marker > 0 ? (int)marker : utf8_next(text, left, &incomplete);
        size_t len = (size_t)(n < 0 ? -n : n);
        if (marker > 0)
            (void)buf_printf(out, "%.*s :", (int)marker - 1, text);
        else
            (void)buf_append(out, text, len);
        text += len;
        left -= len;
        chars += marker > 0 ? marker + 1 : 1;
    }
    if (left > 0)
        (void)buf_puts(out, "... [protocol error truncated]");
}

/* The members that every reply has; `data` is still to come. */
static void begin_reply(struct jw *w, struct buf *out, const struct langbot_call *c, int code,
                        const char *message)
{
    jw_init(w, out);
    jw_object(w);
    jw_kraw(w, "seq_id", c->msg.seq, strlen(c->msg.seq));
    jw_kint(w, "code", code);
    jw_kstr(w, "message", message);
    jw_kstr(w, "chunk_status", "continue");
    jw_kobject(w, "data");
}

static void send_text(struct langbot_call *c, const struct buf *out)
{
    if (c->conn != NULL)
        c->conn->transport->send(c->conn->arg, out->data, out->len);
}

void langbot_say_error(struct langbot_call *c, enum langbot_class class, const char *text)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(TEXT_MAX);
    AUTO_DONE(buf) struct buf message = BUF_INIT(TEXT_MAX / 4);
    struct jw w;
    put_error_text(class, text, &message);
    begin_reply(&w, &out, c, 1, buf_str(&message));
    jw_object_end(&w);
    jw_kstr(&w, "error_code", classes[class].code);
    jw_object_end(&w);
    if (jw_end(&w) == 0)
        send_text(c, &out);
    langbot_call_answered(c, classes[class].code);
}

void langbot_fail(struct langbot_call *c, enum langbot_class class, const char *fmt, ...)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(TEXT_MAX);
    va_list ap;
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
    langbot_fail(c, class_of(err), "%s", err->msg);
}

void langbot_fail_report(struct langbot_call *c, const struct report *report, const char *model)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(TEXT_MAX);
    (void)report_write(report, model, &text);
    langbot_fail(c, LANGBOT_VALIDATION, "%s", buf_str(&text));
}

struct jw *langbot_reply_open(struct langbot_call *c)
{
    buf_init(&c->out, LANGBOT_MESSAGE_MAX);
    begin_reply(&c->w, &c->out, c, 0, "success");
    return &c->w;
}

void langbot_reply_close(struct langbot_call *c)
{
    jw_object_end(&c->w);
    jw_object_end(&c->w);
    if (jw_end(&c->w) < 0) {
        langbot_fail(c, LANGBOT_VALUE_ERROR, "Runtime message exceeds %u byte limit",
                     LANGBOT_MESSAGE_MAX);
        return;
    }
    send_text(c, &c->out);
    buf_done(&c->out); /* the call may stay for a while */
    langbot_call_answered(c, "ok");
    langbot_call_end(c);
}

void langbot_on_job(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_call *c = arg;
    if (data == NULL) {
        langbot_fail(c, class_named(failure->class), "%s", failure->text);
        return;
    }
    struct jw *w = langbot_reply_open(c);
    for (void *it = json_iter(data); it != NULL; it = json_iter_next(data, it)) {
        jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    }
    langbot_reply_close(c);
}

void langbot_ok(struct langbot_call *c)
{
    (void)langbot_reply_open(c);
    langbot_reply_close(c);
}

/* What handlers read and write alike. */

static const char *need_str(struct langbot_call *c, const char *name)
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
    const char *logical = need_str(c, "session_id");
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

bool langbot_owns(const struct langbot_call *c, const struct session *s)
{
    return !c->bound || policy_check_user(session_spec(s), c->uid, NULL) == 0;
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

void langbot_write_time(struct jw *w, const char *key, uint64_t real_ns, const char *zone)
{
    char text[64];
    bool whole = real_ns % NSEC_PER_SEC < 1000;
    clock_format(real_ns, text, sizeof(text));
    char *end = strchr(text, '.') + (whole ? 0 : strlen(".000000"));
    (void)str_copy(end, sizeof(text) - (size_t)(end - text), zone);
    jw_kstr(w, key, text);
}

/* The audit log. */

const char *langbot_who(const struct langbot_call *c)
{
    const char *workspace = c->msg.scoped ? c->msg.ctx.workspace_uuid : NULL;
    return workspace != NULL ? workspace : "langbot";
}

static struct audit_record record_of(const struct langbot_call *c, enum audit_event event)
{
    return (struct audit_record){
        .event = event, .who = langbot_who(c), .via = "rpc", .session = c->id};
}

void langbot_audit_session(const struct langbot_call *c, enum audit_event event)
{
    struct audit *audit = c->rpc->o.service->audit;
    struct audit_record r = record_of(c, event);
    if (audit != NULL)
        (void)audit_write(audit, &r, NULL); /* it has happened; losses are counted */
}

void langbot_audit_failed(const struct langbot_call *c, enum audit_event event,
                          const struct err *err)
{
    struct audit_record r = record_of(c, event);
    policy_service_failed(c->rpc->o.service, err, NULL, &r);
}
