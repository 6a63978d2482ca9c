/* SPDX-License-Identifier: Apache-2.0 */

/* How fronts that speak HTTP read a body, and answer with JSON or with what went wrong. */

#include <errno.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "front/common/front.h"
#include "http/server/server.h"

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

void front_reply_json(struct http_request *req, unsigned status, struct buf *out, struct jw *w)
{
    if (jw_end(w) < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, status, JSON_TYPE, out->data, out->len);
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
