/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/boxd_service.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/config.h"
#include "cmd/token.h"
#include "cmd/tokens.h"
#include "core/audit.h"
#include "core/authz.h"
#include "core/error_ring.h"
#include "core/outputs.h"
#include "core/policy.h"
#include "core/policy_service.h"
#include "http/crypto.h"
#include "http/server.h"
#include "io/loop.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/path.h"

#define TOKEN_INTERVAL_NS (500ULL * NSEC_PER_MSEC) /* an old token is dead within a second */
#define MIB (1ULL << 20)

struct boxd_service {
    struct boxd_service_options o;
    struct policy_service policy;
    struct error_ring *errors; /* owned */
    struct audit *audit;       /* owned, or NULL */
    struct outputs *outputs;   /* owned */
    struct loop_timer timer;
};

bool boxd_service_needs_token(const struct config *c)
{
    return c->token_file != NULL || c->control_token != NULL || c->tokens != NULL;
}

const char *boxd_service_rpc_token(const struct config *c)
{
    if (c->control_token != NULL)
        return c->control_token;
    return c->token_file != NULL ? token_file_text(c->token_file) : NULL;
}

static bool is_master(const struct config *c, const char *given)
{
    const char *token = c->token_file != NULL ? token_file_text(c->token_file) : c->control_token;

    return token != NULL && http_secret_eq(given, strlen(given), token, strlen(token));
}

static void release_scope(const void *scope)
{
    authz_release(scope);
}

int boxd_service_authorize(struct boxd_service *s, struct http_request *req)
{
    const struct authz_scope *scope = NULL;

    if (s == NULL)
        return 503;
    if (http_request_peer(req) != NULL || !boxd_service_needs_token(s->o.config))
        return 0; /* the unix socket is protected by its mode and the peer's uid */
    const char *given = http_request_bearer(req);
    if (given == NULL)
        return 401;
    if (is_master(s->o.config, given))
        return 0;
    const struct authz *scopes =
        s->o.config->tokens != NULL ? tokens_file_scopes(s->o.config->tokens) : NULL;
    if (scopes != NULL)
        scope = authz_find(scopes, given, strlen(given), clock_real(loop_clock(s->o.loop)));
    if (scope == NULL)
        return 401;
    http_request_set_user(req, authz_hold(scope), release_scope);
    return 0;
}

static void check_token_file(struct boxd_service *s)
{
    struct token_file *file = s->o.config->token_file;
    struct err err = {0};

    if (file == NULL || token_file_check(file, &err) == 0)
        return;
    if (token_file_text(file) == NULL)
        log_error(NULL, "%s; no TCP client is let in until that is put right", err.msg);
    else
        log_info(NULL, "the token has changed");
    if (s->o.config->control_token == NULL)
        s->o.token_changed(s->o.arg, token_file_text(file));
}

static void check_tokens_file(struct boxd_service *s)
{
    struct tokens_file *file = s->o.config->tokens;
    struct err err = {0};

    if (file == NULL || tokens_file_check(file, &err) == 0)
        return;
    if (tokens_file_scopes(file) == NULL)
        log_error(NULL, "%s; none of its tokens counts until that is put right", err.msg);
    else
        log_info(NULL, "the tokens have changed");
}

static void on_timer(struct loop_timer *t)
{
    struct boxd_service *s = container_of(t, struct boxd_service, timer);

    loop_timer_start(s->o.loop, t, TOKEN_INTERVAL_NS, on_timer);
    check_token_file(s);
    check_tokens_file(s);
}

static int open_audit(struct boxd_service *s, struct err *err)
{
    const struct policy_settings *p = policy_settings(s->o.config->policy);

    if (!p->audit_enabled)
        return 0;
    AUTO_CLOSE int fd = path_make_dir_at(s->o.state_fd, "audit", 0700);
    if (fd < 0)
        return err_sys(err, -fd, "directory of the audit log");
    const struct audit_options options = {.dir_fd = fd,
                                          .clock = loop_clock(s->o.loop),
                                          .max_bytes = (uint64_t)p->audit_file_mb * MIB,
                                          .keep_files = (size_t)p->audit_keep_files,
                                          .sync = p->audit_sync == POLICY_SYNC_RECORD,
                                          .refuse = p->audit_full == POLICY_FULL_REFUSE};
    return audit_open(&options, &s->audit, err);
}

static int open_outputs(struct boxd_service *s, struct err *err)
{
    const struct policy_settings *p = policy_settings(s->o.config->policy);
    AUTO_CLOSE int fd = path_make_dir_at(s->o.state_fd, "outputs", 0700);

    if (fd < 0)
        return err_sys(err, -fd, "directory of outputs");
    const struct outputs_options options = {.dir_fd = fd,
                                            .max_bytes = (uint64_t)p->outputs_max_mb * MIB,
                                            .each_bytes = (uint64_t)p->outputs_each_mb * MIB};
    return outputs_new(&options, &s->outputs, err);
}

int boxd_service_new(const struct boxd_service_options *options, struct boxd_service **ret,
                     struct err *err)
{
    AUTO(boxd_service) struct boxd_service *s = xnew(struct boxd_service);

    s->o = *options;
    s->errors = error_ring_new();
    int r = policy_ensure_workspace(options->config->policy, err);
    if (r == 0)
        r = open_audit(s, err);
    if (r == 0)
        r = open_outputs(s, err);
    if (r < 0)
        return r;
    s->policy = (struct policy_service){.policy = options->config->policy,
                                        .manager = options->manager,
                                        .errors = s->errors,
                                        .audit = s->audit,
                                        .outputs = s->outputs,
                                        .session_ttl_sec = options->config->session_ttl_sec};
    if (options->config->token_file != NULL || options->config->tokens != NULL)
        loop_timer_start(options->loop, &s->timer, TOKEN_INTERVAL_NS, on_timer);
    *ret = TAKE_PTR(s);
    return 0;
}

void boxd_service_free(struct boxd_service *s)
{
    if (s == NULL)
        return;
    loop_timer_stop(&s->timer);
    outputs_free(s->outputs);
    audit_free(s->audit);
    error_ring_free(s->errors);
    free(s);
}

const struct policy_service *boxd_service_policy(const struct boxd_service *s)
{
    return &s->policy;
}
