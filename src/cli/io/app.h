/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every verb needs: a loop, the signals that end a program, and a boxd to talk to. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "loop/loop.h"

struct args;
struct buf;
struct err;
struct http1_head;
struct http_client;
struct json;
struct ws_conn;
struct ws_handlers;

/* Exit statuses of box beside those of commands. */
#define STATUS_TIMED_OUT 124
#define STATUS_FAILED 125 /* box itself failed, not the command */
#define STATUS_SIGNAL 128 /* plus the number of the signal */

/* Of an answer. A list of 10,000 sessions has about a tenth of it. */
#define APP_BODY_MAX (32u << 20)

/* The boxd that we start when none listens where one would be. */
struct daemon {
    pid_t pid;       /* 0: none, or one that is not ours to stop */
    int pidfd;       /* owned, while there is a pid */
    char *state_dir; /* owned; a temporary one, removed when the daemon is stopped */
    const char *why; /* this one is used, for people; NULL: the environment says which */
    bool warned;     /* that the system's does not let us in */
};

enum daemon_kind {
    DAEMON_RUNNING, /* only a boxd that runs already has what is asked for */
    DAEMON_ANY, /* where none runs, a private one for as long as we live, with a state of its own */
    DAEMON_KEPT, /* where none runs, one in the usual places that outlives us */
};

struct app {
    struct loop *loop; /* owned */
    struct loop_signal signals;
    int signo;                                       /* the signal that ended a wait; 0: none */
    void (*take_signal)(struct app *app, int signo); /* NULL: a signal ends the wait */
    void *arg;                                       /* for take_signal() */
    struct http_client *client;                      /* owned; after app_connect() */
    char *endpoint;                                  /* owned */
    bool told;                                       /* of the endpoint, by the environment */
    char *authorization;                             /* owned; value of the header, or NULL */
    struct daemon daemon;
    struct {
        struct loop_timer timer; /* runs while box waits */
        const char *what;        /* borrowed */
        uint64_t since;          /* monotonic */
        uint64_t bytes;          /* that have been copied meanwhile, for the line */
    } patience;
};

/* From here on INT, TERM, HUP and QUIT arrive in the loop, unless they were ignored. */
int app_init(struct app *app, struct err *err);
void app_done(struct app *app); /* stops a private boxd */
DEFINE_CLEANUP_DONE(app)

int app_connect(struct app *app, enum daemon_kind need, struct err *err);
/* For a client that outlives its boxd: starts another where none was named and none listens. */
int app_reconnect(struct app *app, struct err *err);
/* Headers for a call, as http_client_call() wants them; what they point to lives as long as app. */
struct app_headers {
    const char *const list[2][2];
};
struct app_headers app_headers(const struct app *app);

/* Runs the loop until loop_quit(). -EINTR and an err of code ERR_STATE when a signal ended it. */
int app_wait(struct app *app, struct err *err);

/* From here on box waits for boxd: when that takes longer than a second a line on standard error
 * says what for (text_wait()), until app_patience_stop(). Calls have it by themselves, until the
 * head of the answer is there. */
void app_patience_start(struct app *app, const char *what);
void app_patience_stop(struct app *app);

/* One call, to its end. Fails also for a status above 299, with what the problem says. */
int app_call(struct app *app, const char *method, const char *target, struct buf *ret_body,
             struct err *err);

/* The same with a body, an end to waiting, and callbacks for a long answer. */
struct app_request {
    const char *method, *target;
    const char *type; /* of the body */
    const void *body; /* NULL: none */
    size_t body_len;
    uint64_t idle_ns; /* longest silence; 0: for ever */
    /* Optional: the head of the answer, and the bytes of one that succeeds instead of ret_body. */
    void (*head)(void *arg, const struct http1_head *head);
    void (*bytes)(void *arg, const char *data, size_t len);
    void *arg;
};
int app_send(struct app *app, const struct app_request *request, struct buf *ret_body,
             struct err *err);

/* For --rm with a name: the session is made for a command and goes with it. ERR_CONFLICT for one
 * that exists: a client keeps it. */
int app_name_is_new(struct app *app, const char *id, struct err *err);

/* The objects of a list in an answer, one at a time: a boxd with thousands of sessions lists more
 * than json_parse() takes in one piece. */
struct items {
    const char *at;
    const char *end;
};

/* `text` is a JSON object with an array of objects as its member `key`, which comes before any text
 * that could be taken for it. Borrows the text. */
int items_init(struct items *it, const char *text, size_t len, const char *key, struct err *err);
/* 1 and the next object in place of the one in *ret, which is freed; 0 at the end. The caller owns
 * the last one: `AUTO(json) struct json *item = NULL; while ((r = items_next(&it, &item, err)) >
 * 0)`. */
int items_next(struct items *it, struct json **ret, struct err *err);

/* What an answer with that status says: application/problem+json, or at least the number. Returns
 * what err_set() does. */
int app_problem(unsigned status, const struct buf *body, struct err *err);

/* {"detail", "remediation"} of a message of boxd, in one line. Returns what err_set() does. */
int app_refusal(const struct json *message, struct err *err);

/* A WebSocket of boxd, with our headers, that no silence ends. */
struct app_ws {
    const char *target;
    const struct ws_handlers *handlers; /* borrowed for its life */
    void (*opened)(struct ws_conn *c, const struct err *err, void *arg);
    size_t max_message; /* 0: the default */
};
/* ERR_BACKEND with what to do about it. */
int app_open_ws(struct app *app, const struct app_ws *ws, void *arg, struct err *err);
/* The message for a connection that boxd closed. Returns what err_set() does. */
int app_lost(unsigned code, const char *reason, struct err *err);

/* A failure to talk to boxd, with what to do about it. Returns what err_set() does. */
int app_unreachable(const struct app *app, const struct err *cause, struct err *err);

/* daemon.c: finding and starting a boxd. *ret_socket is where a boxd serves, owned:
 * /run/box/boxd.sock for root and whom it lets in, in $XDG_RUNTIME_DIR/box or ~/.local/state/box
 * for other users. Starts one as `kind` says where none listens there, and waits until it serves;
 * gives up, with ERR_STATE, when `wake_fd` becomes readable. A line on standard error names a boxd
 * that outlives us. ERR_NOT_FOUND where none runs and none may be started. */
int daemon_find(struct daemon *d, enum daemon_kind kind, int wake_fd, char **ret_socket,
                struct err *err);
/* Stops a private one and waits for its end; fine on a zeroed one. */
void daemon_stop(struct daemon *d);

/* The verbs. Each returns an exit status, or a negative errno with err filled. */
int verb_command(struct app *app, const struct args *args, struct err *err); /* run, exec */
int verb_agent(struct app *app, const struct args *args, struct err *err);
int verb_follow(struct app *app, const struct args *args, struct err *err); /* logs, attach, wait */
int verb_detach(struct app *app, const struct args *args, struct err *err); /* run -d, exec -d */
int verb_kill(struct app *app, const struct args *args, struct err *err);
int verb_cp(struct app *app, const struct args *args, struct err *err);
int verb_port(struct app *app, const struct args *args, struct err *err);
int verb_ps(struct app *app, const struct args *args, struct err *err);
int verb_rm(struct app *app, const struct args *args, struct err *err);
int verb_state(struct app *app, const struct args *args, struct err *err);
int verb_rename(struct app *app, const struct args *args, struct err *err);
int verb_diff(struct app *app, const struct args *args, struct err *err);
int verb_inspect(struct app *app, const struct args *args, struct err *err);
int verb_top(struct app *app, const struct args *args, struct err *err);
int verb_stats(struct app *app, const struct args *args, struct err *err);
int verb_events(struct app *app, const struct args *args, struct err *err);
int verb_config(struct app *app, const struct args *args, struct err *err);
int verb_audit(struct app *app, const struct args *args, struct err *err);
int verb_mcp_run(struct app *app, const struct args *args, struct err *err);
int verb_mcp_ls(struct app *app, const struct args *args, struct err *err);
int verb_mcp_logs(struct app *app, const struct args *args, struct err *err);
int verb_mcp_serve(struct app *app, const struct args *args, struct err *err);
int verb_doctor(struct app *app, const struct args *args, struct err *err);
int verb_info(struct app *app, const struct args *args, struct err *err);
int verb_attack(struct app *app, const struct args *args, struct err *err); /* doctor --attack */
