/* SPDX-License-Identifier: Apache-2.0 */

/* Opens the policy, tokens, audit log and outputs, judges tokens and users, and ends revoked
 * requests. */

#include "daemon/boxd_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/path.h"
#include "command/policy_service.h"
#include "config/config.h"
#include "config/tokens.h"
#include "http/codec/crypto.h"
#include "http/server/server.h"
#include "jobs/jobs.h"
#include "loop/loop.h"
#include "loop/peer.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy/outputs.h"
#include "policy/policy.h"
#include "policy/share.h"
#include "policy/users.h"
#include "session/events.h"
#include "session/manager.h"

#define TOKEN_INTERVAL_NS (500ULL * NSEC_PER_MSEC) /* an old token is dead within a second */
#define MIB (1ULL << 20)
#define WRONG_ANSWERED 1000.0 /* wrong tokens that are told so; more are told to wait */
#define WRONG_ANSWERED_SEC 50.0
#define WRONG_RECORDED 32.0 /* those that are recorded; the rest is counted in the next record */
#define WRONG_RECORDED_SEC 0.5

/* So much at once, and so much a second. */
struct token_budget {
    double left;
    uint64_t at;
};

struct boxd_service {
    struct boxd_service_options o;
    struct policy_service policy;
    struct authz_sessions sessions; /* of users */
    struct error_ring *errors;      /* owned */
    struct audit *audit;            /* owned, or NULL */
    struct outputs *outputs;        /* owned */
    char *degraded;                 /* owned, or NULL */
    bool making;                    /* the default workspace is being made */
    struct loop_timer timer;
    uint64_t master;                      /* which token of token_file it is by now, from 1 */
    struct token_budget answers, records; /* for wrong tokens */
    uint64_t unrecorded;
};

static bool is_master(const struct config *c, const char *given)
{
    const char *token = c->token_file != NULL ? token_file_text(c->token_file) : c->control_token;

    return token != NULL && http_secret_eq(given, strlen(given), token, strlen(token));
}

static bool spend(struct boxd_service *s, struct token_budget *b, double most, double per_sec)
{
    uint64_t now = loop_now(s->o.loop);

    b->left = b->at == 0 ? most : b->left + (double)(now - b->at) * per_sec / NSEC_PER_SEC;
    b->at = now;
    if (b->left > most)
        b->left = most;
    if (b->left < 1.0)
        return false;
    b->left -= 1.0;
    return true;
}

/* A client that guesses tokens must neither fill the log nor hold up other clients. */
static int refuse_token(struct boxd_service *s)
{
    struct audit_record r = {
        .event = AUDIT_DENIED, .who = "anyone", .via = "http", .reason = "wrong token"};
    char reason[64];

    if (s->audit != NULL && spend(s, &s->records, WRONG_RECORDED, WRONG_RECORDED_SEC)) {
        if (s->unrecorded > 0) {
            (void)snprintf(reason, sizeof(reason), "wrong token, and %llu before it",
                           (unsigned long long)s->unrecorded);
            r.reason = reason;
        }
        s->unrecorded = 0;
        (void)audit_write(s->audit, &r, NULL); /* it counts what it loses */
    } else {
        s->unrecorded++;
    }
    return spend(s, &s->answers, WRONG_ANSWERED, WRONG_ANSWERED_SEC) ? 401 : 429;
}

static enum authz_owner session_owner(void *arg, const char *session, uid_t uid)
{
    const struct boxd_service *s = arg;
    bool any = false;

    if (manager_owned_by(s->o.manager, session, uid, &any))
        return AUTHZ_OWN;
    return any ? AUTHZ_OTHERS : AUTHZ_NO_SESSION;
}

static bool session_is_users(void *arg, const char *session)
{
    const struct boxd_service *s = arg;

    return manager_is_users(s->o.manager, session);
}

static void release_scope(const void *scope)
{
    authz_release(scope);
}

/* By the user at the other end, not by a token. */
static int authorize_user(const struct boxd_service *s, struct http_request *req)
{
    const struct peer *peer = http_request_peer(req);

    switch (users_rank(s->o.users, peer)) {
    case USERS_FULL:
        return 0;
    case USERS_BOUND:
        http_request_set_user(req, authz_user(peer->uid, &s->sessions), release_scope);
        return 0;
    case USERS_REFUSED:
        break;
    }
    users_log_refusal(peer);
    return (int)HTTP_REFUSE_USER;
}

int boxd_service_authorize(struct boxd_service *s, struct http_request *req)
{
    const struct authz_scope *scope = NULL;

    if (s == NULL)
        return 503;
    if (http_request_is_unix(req) || !config_needs_token(s->o.config))
        return authorize_user(s, req);
    const char *given = http_request_bearer(req);
    if (given == NULL)
        return 401;
    if (is_master(s->o.config, given)) {
        http_request_set_pass(req, s->master);
        return 0;
    }
    const struct authz *scopes = tokens_file_scopes(s->o.config->tokens);
    if (scopes != NULL)
        scope = authz_find(scopes, given, strlen(given), clock_real(loop_clock(s->o.loop)));
    if (scope == NULL)
        return refuse_token(s);
    http_request_set_user(req, authz_hold(scope), release_scope);
    return 0;
}

static void check_token_file(struct boxd_service *s)
{
    struct token_file *file = s->o.config->token_file;
    struct err err = {0};

    if (file == NULL || token_file_check(file, &err) == 0)
        return;
    s->master++;
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

static bool still_counts(void *arg, const void *user, uint64_t pass)
{
    const struct boxd_service *s = arg;

    if (user == NULL)
        return pass == 0 || pass == s->master;
    return authz_counts(user, tokens_file_scopes(s->o.config->tokens),
                        clock_real(loop_clock(s->o.loop)));
}

/* Each time, not only when a file has changed: tokens expire, and what was let in before may only
 * now have become a stream. */
static void end_revoked(struct boxd_service *s)
{
    size_t n = http_server_revoke(s->o.server, still_counts, s,
                                  "the token was removed, has changed or has expired");

    if (n > 0)
        log_info(NULL, "%zu streams have ended with their tokens", n);
}

static void on_timer(struct loop_timer *t)
{
    struct boxd_service *s = container_of(t, struct boxd_service, timer);

    loop_timer_start(s->o.loop, t, TOKEN_INTERVAL_NS, on_timer);
    check_token_file(s);
    check_tokens_file(s);
    end_revoked(s);
}

/* A cap of the token's own counts as it is. Tokens without one never get all there is. */
static uint64_t cap_of(int64_t own, int64_t otherwise, uint64_t all)
{
    uint64_t half = all / 2 > 0 ? all / 2 : 1;

    if (own >= 0)
        return (uint64_t)own;
    return (uint64_t)otherwise < half ? (uint64_t)otherwise : half;
}

static void on_caps(void *arg, const char *name, uint64_t ret[SHARE_KIND_MAX])
{
    const struct boxd_service *s = arg;
    const struct policy_settings *p = policy_settings(s->o.config->policy);
    const struct manager_options *all = manager_get_options(s->o.manager);
    const struct authz_caps own = authz_caps_of(tokens_file_scopes(s->o.config->tokens), name);

    ret[SHARE_SESSIONS] = cap_of(own.sessions, p->token_sessions, all->max_sessions);
    ret[SHARE_EXECS] = cap_of(own.execs, p->token_execs, UINT64_MAX);
    ret[SHARE_PROCESSES] = cap_of(own.processes, p->token_processes, all->max_processes);
    ret[SHARE_OUTPUT] =
        MIB * cap_of(own.output_mb, p->token_output_mb, (uint64_t)p->outputs_max_mb);
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
                                            .each_bytes = (uint64_t)p->outputs_each_mb * MIB,
                                            .shares = s->o.shares};
    return outputs_new(&options, &s->outputs, err);
}

/* Records events that no request causes at that moment: sessions that are gone, processes that have
 * ended. The front that serves a request records what the request does. */
static void on_event(void *arg, const struct event *event)
{
    struct boxd_service *s = arg;
    const int64_t code = event->exit_code;
    struct audit_record r = {.who = "boxd", .session = event->session};

    switch (event->kind) {
    case EVENT_SESSION_DELETED:
    case EVENT_SESSION_EXPIRED:
    case EVENT_SESSION_LOST:
        r.event = AUDIT_SESSION_END;
        r.reason = event->kind == EVENT_SESSION_LOST      ? "its sandbox died"
                   : event->kind == EVENT_SESSION_EXPIRED ? "idle for too long"
                                                          : "deleted";
        break;
    case EVENT_PROCESS_EXITED:
        r.event = AUDIT_PROCESS_END;
        r.process = event->name;
        r.exit_code = &code;
        break;
    case EVENT_SESSION_STOPPED:
        r.event = AUDIT_SESSION_STATE;
        r.outcome = "stopped";
        break;
    case EVENT_SESSION_CREATED:
    case EVENT_SESSION_STARTED:
    case EVENT_SESSION_PAUSED:
    case EVENT_SESSION_UNPAUSED:
    case EVENT_SESSION_RENAMED:
    case EVENT_SESSION_UPDATED:
    case EVENT_PROCESS_STARTED:
    case EVENT_EXEC_ENDED:
    case EVENT_KIND_MAX:
        return;
    }
    (void)audit_write(s->audit, &r, NULL); /* it has happened; losses are counted */
}

int boxd_service_new(const struct boxd_service_options *options, struct boxd_service **ret,
                     struct err *err)
{
    AUTO(boxd_service) struct boxd_service *s = xnew(struct boxd_service);

    s->o = *options;
    s->sessions =
        (struct authz_sessions){.owner = session_owner, .is_users = session_is_users, .arg = s};
    tokens_file_set_sessions(options->config->tokens, &s->sessions);
    s->errors = error_ring_new();
    int r = open_audit(s, err);
    if (r == 0)
        r = open_outputs(s, err);
    if (r < 0)
        return r;
    s->policy = (struct policy_service){.policy = options->config->policy,
                                        .manager = options->manager,
                                        .errors = s->errors,
                                        .audit = s->audit,
                                        .outputs = s->outputs,
                                        .shares = s->o.shares,
                                        .guards = s->o.guards,
                                        .session_ttl_sec = options->config->session_ttl_sec};
    shares_set_caps(s->o.shares, on_caps, s);
    s->master = 1;
    if (s->audit != NULL)
        events_set_sink(options->events, on_event, s);
    if (options->config->token_file != NULL || options->config->tokens != NULL)
        loop_timer_start(options->loop, &s->timer, TOKEN_INTERVAL_NS, on_timer);
    *ret = TAKE_PTR(s);
    return 0;
}

static void degrade(struct boxd_service *s, const char *why)
{
    free(s->degraded);
    s->degraded = xstrdup(why);
    s->policy.degraded = s->degraded;
    log_warn(NULL, "%s; going on without", why);
}

static void on_workspace(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct boxd_service *s = arg;

    s->making = false;
    if (data == NULL)
        degrade(s, failure->text);
}

int boxd_service_set_helper(struct boxd_service *s, struct jobs *helper, struct err *err)
{
    const struct policy *p = s->o.config->policy;
    struct err why = {0};

    s->policy.helper = helper;
    int r = policy_ensure_workspace(p, &why);
    if (r == 0)
        return 0;
    if (why.code != ERR_SYSTEM) {
        *err = why;
        return r;
    }
    /* The owner of the directory above may be allowed what we are not. */
    s->making = true;
    if (hostdir_ensure(helper, policy_settings(p)->default_workspace, on_workspace, s, &why) < 0) {
        s->making = false;
        degrade(s, why.msg);
    }
    while (s->making)
        if ((r = loop_turn(s->o.loop, -1)) < 0)
            return err_sys(err, -r, "event loop");
    return 0;
}

void boxd_service_free(struct boxd_service *s)
{
    if (s == NULL)
        return;
    loop_timer_stop(&s->timer);
    events_set_sink(s->o.events, NULL, NULL);
    shares_set_caps(s->o.shares, NULL, NULL);
    tokens_file_set_sessions(s->o.config->tokens, NULL);
    outputs_free(s->outputs);
    audit_free(s->audit);
    error_ring_free(s->errors);
    free(s->degraded);
    free(s);
}

const struct policy_service *boxd_service_policy(const struct boxd_service *s)
{
    return &s->policy;
}
