/* SPDX-License-Identifier: Apache-2.0 */

/* How fronts read a body, and answer with JSON or with what went wrong.
 *
 * Requests are read strictly: each is checked against its table of fields, then the table parses
 * it. An API takes what it documents and nothing else. The tables that it shares with the LangBot
 * wire forgive more (a number given as text, true for 1, an unknown member), because clients there
 * rely on it; here a slip would go unnoticed. */

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "front/common/front.h"
#include "http/server/server.h"
#include "spec/model.h"

#define JSON_TYPE "application/json"

static const struct {
    unsigned status;
    const char *remedy;
} answers[ERR_CODE_MAX] = {
    [ERR_NONE] = {500, NULL},
    [ERR_INVALID] = {422, "correct the request and send it again"},
    [ERR_NOT_FOUND] = {404, NULL}, /* see below */
    [ERR_CONFLICT] = {409, "use the session as it is, another name, or remove it first (`box rm`)"},
    [ERR_STATE] = {409, "try again"},
    [ERR_LIMIT] = {429, "lower the demand, raise the limit, or try again later"},
    [ERR_DENIED] = {403, "change the request, or the policy in boxd's configuration"},
    [ERR_UNSUPPORTED] = {501, "`box doctor` tells what this host lacks and how to get it"},
    [ERR_BACKEND] = {502, "see boxd's log; `box doctor` checks the host"},
    [ERR_UNAVAILABLE] = {503,
                         "`box doctor` tells which backends there are and what each lacks; boxd "
                         "tries again by itself"},
    [ERR_SYSTEM] = {500, "see boxd's log; `box doctor` checks the host"},
};

static const char *const missing[ERR_THING_MAX] = {
    [ERR_THING_ANY] = "check what was asked for, and whether it is still there",
    [ERR_THING_SESSION] = "check the name; `box ps` lists the sessions",
    [ERR_THING_EXEC] = "check the id; GET /v1/sessions/ID/execs lists the commands that have one, "
                       "and forgets them a while after their end",
    [ERR_THING_PROCESS] = "check the id; GET /v1/sessions/ID/processes lists the processes",
    [ERR_THING_IMAGE] = "name an image that the backend has; with Docker or Podman fetch it there, "
                        "or set image_pull: missing",
    [ERR_THING_MOUNT] = "make the directory or the file first, or correct the path of the mount",
    [ERR_THING_OUTPUT] = "run the command again: outputs make room for newer ones",
    [ERR_THING_TOOL] = "check the name; GET /v1/tools lists the tools",
};

unsigned front_status(const struct err *err)
{
    return answers[err->code].status;
}

const char *front_remedy(const struct err *err)
{
    if (err->code == ERR_NOT_FOUND && (unsigned)err->thing < ERR_THING_MAX)
        return missing[err->thing];
    return answers[err->code].remedy;
}

void front_fail(struct http_request *req, const struct err *err)
{
    http_reply_problem(req, &(struct http_problem){.status = front_status(err),
                                                   .code = err_code_name(err->code),
                                                   .detail = err->msg,
                                                   .cause = err->code == ERR_SYSTEM && err->sys != 0
                                                                ? err_errno_text(err->sys)
                                                                : NULL,
                                                   .remediation = front_remedy(err)});
}

void front_failf(struct http_request *req, enum err_code code, const char *fmt, ...)
{
    struct err err = {0};
    char text[sizeof(err.msg)];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)err_set(&err, code, "%s", text);
    front_fail(req, &err);
}

void front_done(void *arg, const struct err *err)
{
    if (err != NULL)
        front_fail(arg, err);
    else
        http_reply(arg, 204, NULL, NULL, 0);
}

void front_write_problem(struct jw *w, const struct err *err)
{
    jw_kstr(w, "code", err_code_name(err->code));
    jw_kstr(w, "detail", err->msg);
    jw_kstr(w, "remediation", front_remedy(err));
}

struct jw *front_begin(struct front_answer *a, size_t max)
{
    buf_init(&a->out, max);
    jw_init(&a->w, &a->out);
    jw_object(&a->w);
    return &a->w;
}

void front_answer_done(struct front_answer *a)
{
    buf_done(&a->out);
}

int front_end(struct front_answer *a)
{
    jw_object_end(&a->w);
    return jw_end(&a->w);
}

void front_reply(struct front_answer *a, struct http_request *req, unsigned status)
{
    if (front_end(a) < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, status, JSON_TYPE, a->out.data, a->out.len);
}

void front_send(struct front_answer *a, struct ws_conn *ws)
{
    if (front_end(a) == 0 && ws != NULL)
        (void)ws_send(ws, WS_TEXT, a->out.data, a->out.len);
}

void front_write_time(struct jw *w, const char *key, uint64_t real_ns)
{
    char when[40];

    clock_format(real_ns, when, sizeof(when));
    jw_kstr(w, key, when);
}

bool front_read_body(struct http_request *req, struct json **ret)
{
    struct err err = {0};
    size_t len;
    const char *body = http_request_body(req, &len);
    int r = json_parse(body, len, ret, &err);
    if (r == 0 && json_type(*ret) != JSON_OBJECT)
        r = err_set(&err, ERR_INVALID, "the body must be a JSON object");
    if (r == 0)
        return true;
    if (err.sys == ENOMEM)
        http_reply_error(req, 503, err_code_name(err.code), err.msg, "try again later");
    else
        http_reply_error(req, 400, err_code_name(err.code), err.msg, "send one JSON object");
    json_free(*ret);
    *ret = NULL;
    return false;
}

/* Reading by a table -------------------------------------------------------------------------- */

#define WHERE_MAX 96

static const struct {
    const char *text;
    unsigned types; /* of enum json_type */
} kinds[] = {
    [FIELD_STR] = {"a string", 1U << JSON_STRING},
    [FIELD_INT] = {"an integer", 1U << JSON_INT},
    [FIELD_REAL] = {"a number", 1U << JSON_INT | 1U << JSON_REAL},
    [FIELD_BOOL] = {"true or false", 1U << JSON_BOOL},
    [FIELD_ENUM] = {"a string", 1U << JSON_STRING},
    [FIELD_ENV] = {"an object of strings", 1U << JSON_OBJECT},
    [FIELD_STRV] = {"an array of strings", 1U << JSON_ARRAY},
    [FIELD_LIST] = {"an array of objects", 1U << JSON_ARRAY},
    [FIELD_TIME] = {"a string", 1U << JSON_STRING},
};

/* Names come from the peer and go to logs and terminals. */
static void put_name(char *ret, size_t size, const char *prefix, const char *name)
{
    (void)str_fmt(ret, size, "%.40s%.48s", prefix, name);
    for (char *c = ret; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr("_.-", *c) == NULL)
            *c = '?';
}

static const struct field *find_field(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_fields; i++)
        if (str_eq(m->fields[i].name, name))
            return &m->fields[i];
    return NULL;
}

static bool all_strings(const struct field *f, const struct json *v)
{
    for (size_t i = 0; f->kind == FIELD_STRV && i < json_len(v); i++)
        if (json_type(json_at(v, i)) != JSON_STRING)
            return false;
    for (void *it = f->kind == FIELD_ENV ? json_iter(v) : NULL; it != NULL;
         it = json_iter_next(v, it))
        if (json_type(json_iter_value(it)) != JSON_STRING)
            return false;
    return true;
}

/* Names and paths mean what they say: "/data\n" is not another way to write "/data". */
static bool is_padded(const struct field *f, const struct json *v)
{
    if (f->kind != FIELD_STR || !(f->flags & FIELD_TRIM) || f->valid == NULL)
        return false;
    AUTO_FREE char *stripped = str_strip(json_str(v));
    return strlen(stripped) != json_str_len(v);
}

static int check_object(const struct model *m, const struct json *object, const char *prefix,
                        const char *const *more, struct err *err);

/* null stands for "not given" where the table allows it; the table says so where not. */
static int check_member(const struct field *f, const struct json *v, const char *where,
                        struct err *err)
{
    int r = 0;
    if (json_type(v) == JSON_NULL)
        return 0;
    if (!(kinds[f->kind].types & 1U << json_type(v)) || !all_strings(f, v))
        return err_set(err, ERR_INVALID, "%s must be %s", where, kinds[f->kind].text);
    if (is_padded(f, v))
        return err_set(err, ERR_INVALID, "%s must not hold NUL, nor begin or end with blanks",
                       where);
    for (size_t i = 0; f->kind == FIELD_LIST && i < json_len(v) && r == 0; i++) {
        char item[WHERE_MAX];
        (void)str_fmt(item, sizeof(item), "%.60s.%zu.", where, i);
        r = json_type(json_at(v, i)) == JSON_OBJECT
                ? check_object(f->items, json_at(v, i), item, NULL, err)
                : err_set(err, ERR_INVALID, "%s must be %s", where, kinds[f->kind].text);
    }
    return r;
}

static int check_object(const struct model *m, const struct json *object, const char *prefix,
                        const char *const *more, struct err *err)
{
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        char where[WHERE_MAX];
        const struct field *f = find_field(m, json_iter_key(it));
        const char *const *known = more;
        put_name(where, sizeof(where), prefix, json_iter_key(it));
        while (f == NULL && known != NULL && *known != NULL && !str_eq(*known, json_iter_key(it)))
            known++;
        if (f == NULL && (known == NULL || *known == NULL))
            return err_set(err, ERR_INVALID, "unknown member '%s'", where);
        int r = f != NULL ? check_member(f, json_iter_value(it), where, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

int front_strict(const struct model *m, const struct json *object, const char *const *more,
                 struct err *err)
{
    if (json_type(object) != JSON_OBJECT)
        return err_set(err, ERR_INVALID, "a JSON object is needed");
    return check_object(m, object, "", more, err);
}

int front_read(const struct model *m, const struct json *object, const char *const *more, void *ret,
               struct err *err)
{
    struct report report = {0};
    int r = front_strict(m, object, more, err);

    if (r < 0)
        return r;
    model_init(m, ret);
    if (model_parse(m, object, 0, ret, &report) == 0)
        return 0;
    model_done(m, ret);
    return report_fail_plain(&report, err);
}
