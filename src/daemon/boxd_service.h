/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd's fronts share beside the sessions: policy, tokens, audit log, kept outputs, errors. */

#include "base/cleanup.h"

struct boxd_service;
struct config;
struct err;
struct events;
struct http_request;
struct http_server;
struct loop;
struct manager;
struct policy_service;
struct quota_guards;
struct shares;
struct jobs;
struct users;

/* All borrowed. */
struct boxd_service_options {
    struct loop *loop;
    struct config *config;
    struct manager *manager;
    struct events *events; /* of the manager; we hear them first */
    struct quota_guards *guards;
    struct shares *shares;      /* of the manager; we say what tokens may have */
    const struct users *users;  /* those served without a token */
    struct http_server *server; /* whose streams end with the tokens that let them in */
    int state_fd;               /* of the state directory */
    /* The token of LangBot clients is another one now; NULL: none is let in. */
    void (*token_changed)(void *arg, const char *token);
    void *arg;
};

/* As the user that we are from now on: the files are that user's. Looks after the tokens from then
 * on. */
int boxd_service_new(const struct boxd_service_options *options, struct boxd_service **ret,
                     struct err *err);
void boxd_service_free(struct boxd_service *s);
DEFINE_CLEANUP(boxd_service)

/* The helper that may look into, and make, directories that we may not. Makes the default workspace
 * unless it is there, and turns the loop until that is done: what is wrong with its setting is an
 * error, what is wrong with the host is told in the status. */
int boxd_service_set_helper(struct boxd_service *s, struct jobs *helper, struct err *err);

const struct policy_service *boxd_service_policy(const struct boxd_service *s);

/* authorize() of the server; attaches the scope of the token to the request. `s` may be NULL while
 * we start, when no client is let in. */
int boxd_service_authorize(struct boxd_service *s, struct http_request *req);
