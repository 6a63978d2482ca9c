/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every verb needs: a loop, the signals that end a program, and a boxd to talk to. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "cli/io/daemon.h"
#include "loop/loop.h"

struct args;
struct buf;
struct err;
struct http_client;

/* Of an answer. A list of 10,000 sessions has about a tenth of it. */
#define APP_BODY_MAX (32u << 20)

struct app {
    struct loop *loop; /* owned */
    struct loop_signal signals;
    int signo;                                       /* the signal that ended a wait; 0: none */
    void (*take_signal)(struct app *app, int signo); /* NULL: a signal ends the wait */
    void *arg;                                       /* of whoever takes signals */
    struct http_client *client;                      /* owned; after app_connect() */
    char *endpoint;                                  /* owned */
    bool told;                                       /* of the endpoint, by the environment */
    char *authorization;                             /* owned; value of the header, or NULL */
    struct daemon daemon;
};

enum app_need {
    APP_RUNNING, /* only a boxd that runs already has what is asked for */
    APP_ANY,     /* a private one will do */
    APP_KEPT,    /* it must outlive us */
};

/* From here on INT, TERM, HUP and QUIT arrive in the loop, unless they were ignored. */
int app_init(struct app *app, struct err *err);
void app_done(struct app *app); /* stops a private boxd */
DEFINE_CLEANUP_DONE(app)

int app_connect(struct app *app, enum app_need need, struct err *err);
/* For a client that outlives its boxd: starts another where none was named and none listens. */
int app_reconnect(struct app *app, struct err *err);
/* Headers for a call, as http_client_call() wants them; what they point to lives as long as app. */
struct app_headers {
    const char *const list[2][2];
};
struct app_headers app_headers(const struct app *app);

/* Runs the loop until loop_quit(). -EINTR and an err of code ERR_STATE when a signal ended it. */
int app_wait(struct app *app, struct err *err);

/* One call, to its end. Fails also for a status above 299, with what the problem says. */
int app_call(struct app *app, const char *method, const char *target, struct buf *ret_body,
             struct err *err);

/* The same with a body, and with an end to waiting. */
struct app_request {
    const char *method, *target;
    const char *type; /* of the body */
    const void *body; /* NULL: none */
    size_t body_len;
    uint64_t idle_ns; /* longest silence; 0: for ever */
};
int app_send(struct app *app, const struct app_request *request, struct buf *ret_body,
             struct err *err);

/* What an answer with that status says: application/problem+json, or at least the number. Returns
 * what err_set() does. */
int app_problem(unsigned status, const struct buf *body, struct err *err);

/* A failure to talk to boxd, with what to do about it. Returns what err_set() does. */
int app_unreachable(const struct app *app, const struct err *cause, struct err *err);

/* The verbs. Each returns an exit status, or a negative errno with err filled. */
int verb_command(struct app *app, const struct args *args, struct err *err); /* run, exec */
int verb_cp(struct app *app, const struct args *args, struct err *err);
int verb_ps(struct app *app, const struct args *args, struct err *err);
int verb_rm(struct app *app, const struct args *args, struct err *err);
int verb_config(struct app *app, const struct args *args, struct err *err);
int verb_completion(struct app *app, const struct args *args, struct err *err);
int verb_audit(struct app *app, const struct args *args, struct err *err);
int verb_mcp_run(struct app *app, const struct args *args, struct err *err);
int verb_mcp_ls(struct app *app, const struct args *args, struct err *err);
int verb_mcp_logs(struct app *app, const struct args *args, struct err *err);
int verb_mcp_serve(struct app *app, const struct args *args, struct err *err);
int verb_doctor(struct app *app, const struct args *args, struct err *err);
int verb_attack(struct app *app, const struct args *args, struct err *err); /* doctor --attack */
