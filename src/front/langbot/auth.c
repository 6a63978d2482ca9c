/* SPDX-License-Identifier: Apache-2.0 */

/* Decides whether a connection may use the LangBot front: by token, or by the user behind the
 * socket. */

#include <string.h>

#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"
#include "http/server/server.h"
#include "loop/peer.h"
#include "policy/users.h"

char *langbot_header(const struct http_request *req, const char *name)
{
    const char *value = http_request_header(req, name);
    /* Two of them would leave it open who is asking. */
    if (value == NULL || http1_count(http_request_head(req), name) != 1)
        return NULL;
    return str_strip(value);
}

static bool token_ok(const struct langbot *r, const struct http_request *req)
{
    AUTO_FREE char *given = langbot_header(req, "X-LangBot-Box-Control-Token");
    return r->o.token != NULL && given != NULL &&
           http_secret_eq(given, strlen(given), r->o.token, strlen(r->o.token));
}

/* A unix socket, and TCP without a token, by who it is. */
static unsigned admit(const struct langbot *r, const struct http_request *req,
                      struct langbot_guest *ret)
{
    const struct peer *peer = http_request_peer(req);
    if (!http_request_is_unix(req) && (r->o.token != NULL || r->shut))
        return token_ok(r, req) ? 0 : 401;
    enum users_rank rank = users_rank(r->o.users, peer);
    ret->bound = rank == USERS_BOUND;
    ret->uid = peer->uid;
    if (rank == USERS_REFUSED)
        users_log_refusal(peer);
    return rank == USERS_REFUSED ? 403 : 0;
}

unsigned langbot_auth(const struct langbot *r, const struct http_request *req,
                      struct langbot_guest *ret)
{
    AUTO_FREE char *instance = NULL;
    *ret = (struct langbot_guest){0};
    unsigned status = admit(r, req, ret);
    if (status != 0)
        return status;
    if (r->o.legacy && http_request_header(req, "X-LangBot-Instance-Id") == NULL)
        return 0;
    instance = langbot_header(req, "X-LangBot-Instance-Id");
    if (instance == NULL || !instance_id_valid(instance))
        return 401;
    if (r->instance != NULL &&
        !http_secret_eq(instance, strlen(instance), r->instance, strlen(r->instance)))
        return 401;
    ret->instance = TAKE_PTR(instance);
    return 0;
}

void langbot_set_token(struct langbot *r, const char *token)
{
    r->o.token = token;
    r->shut = token == NULL;
    langbot_relays_outdated(r);
    for (struct langbot_conn *c = r->conns; c != NULL; c = c->next) {
        c->outdated = c->outdated || c->by_token;
        if (c->n_calls == 0)
            langbot_conn_idle(c);
    }
}

void langbot_refuse(struct http_request *req, unsigned status)
{
    const char *body = status == 403 ? USERS_REFUSAL : "Unauthorized";
    http_reply(req, status, "text/plain; charset=utf-8", body, strlen(body));
}
