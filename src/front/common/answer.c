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
    [ERR_NOT_FOUND] = {404, "check the name; `box ps` lists the sessions"},
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

unsigned front_status(const struct err *err)
{
    return answers[err->code].status;
}

const char *front_remedy(const struct err *err)
{
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
