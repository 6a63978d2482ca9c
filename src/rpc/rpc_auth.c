/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "http/crypto.h"
#include "http/http1.h"
#include "http/server.h"
#include "rpc/rpc_internal.h"
#include "util/str.h"

char *rpc_header(const struct http_request *req, const char *name)
{
    const char *value = http_request_header(req, name);
    /* Two of them would leave it open who is asking. */
    if (value == NULL || http1_count(http_request_head(req), name) != 1)
        return NULL;
    return str_strip(value);
}

static bool token_ok(const struct rpc *r, const struct http_request *req)
{
    AUTO_FREE char *given = NULL;
    /* A unix socket is protected by its mode and the peer's uid. */
    if (r->o.token == NULL || http_request_peer(req) != NULL)
        return true;
    given = rpc_header(req, "X-LangBot-Box-Control-Token");
    return given != NULL && http_secret_eq(given, strlen(given), r->o.token, strlen(r->o.token));
}

bool rpc_auth(const struct rpc *r, const struct http_request *req, char **ret_instance)
{
    AUTO_FREE char *instance = NULL;
    *ret_instance = NULL;
    if (!token_ok(r, req))
        return false;
    if (r->o.legacy && http_request_header(req, "X-LangBot-Instance-Id") == NULL)
        return true;
    instance = rpc_header(req, "X-LangBot-Instance-Id");
    if (instance == NULL || !instance_id_valid(instance))
        return false;
    if (r->instance != NULL &&
        !http_secret_eq(instance, strlen(instance), r->instance, strlen(r->instance)))
        return false;
    *ret_instance = TAKE_PTR(instance);
    return true;
}

void rpc_refuse(struct http_request *req)
{
    static const char body[] = "Unauthorized";
    http_reply(req, 401, "text/plain; charset=utf-8", body, sizeof(body) - 1);
}
