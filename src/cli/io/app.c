/* SPDX-License-Identifier: Apache-2.0 */

/* Sets up the loop and signals of `box`, finds and connects to boxd, and makes plain HTTP calls. */

#include "cli/io/app.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/text.h"
#include "http/client/client.h"
#include "http/codec/http1.h"

#define TOKEN_MAX 4096
#define PATIENCE_NS (1 * NSEC_PER_SEC)
#define NEVER_NS (UINT64_C(10) * 365 * 24 * 3600 * NSEC_PER_SEC)

static void on_signal(struct loop_signal *s, int signo)
{
    struct app *app = container_of(s, struct app, signals);

    if (app->take_signal != NULL) {
        app->take_signal(app, signo);
        return;
    }
    app->signo = signo;
    loop_quit(app->loop);
}

/* A signal that our parent ignores (nohup, a shell's background job) stays ignored. */
static void add_signal(sigset_t *set, int signo)
{
    struct sigaction now;

    if (sigaction(signo, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        (void)sigaddset(set, signo);
}

int app_init(struct app *app, struct err *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigset_t set;

    memset(app, 0, sizeof(*app));
    app->daemon.pidfd = -1;
    (void)sigaction(SIGPIPE, &ignore, NULL);
    (void)sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        add_signal(&set, signals[i]);
    int r = loop_new(&clock_system, &app->loop, err);
    if (r < 0)
        return r;
    r = loop_signal_start(app->loop, &app->signals, &set, on_signal);
    return r < 0 ? err_sys(err, -r, "watch signals") : 0;
}

static void on_patience(struct loop_timer *t)
{
    struct app *app = container_of(t, struct app, patience.timer);
    uint64_t waited = loop_now(app->loop) - app->patience.since;

    text_wait(app->patience.what, app->patience.bytes, waited / NSEC_PER_SEC);
    loop_timer_start(app->loop, t, PATIENCE_NS, on_patience);
}

void app_patience_start(struct app *app, const char *what)
{
    app->patience.what = what;
    app->patience.bytes = 0;
    app->patience.since = loop_now(app->loop);
    loop_timer_start(app->loop, &app->patience.timer, PATIENCE_NS, on_patience);
}

void app_patience_stop(struct app *app)
{
    loop_timer_stop(&app->patience.timer);
    text_wait_clear();
}

void app_done(struct app *app)
{
    app_patience_stop(app);
    http_client_free(app->client);
    if (app->loop != NULL)
        loop_signal_stop(&app->signals);
    loop_free(app->loop);
    free(app->endpoint);
    free(app->authorization);
    daemon_stop(&app->daemon);
    memset(app, 0, sizeof(*app));
    app->daemon.pidfd = -1;
}

int app_wait(struct app *app, struct err *err)
{
    if (app->signo == 0) {
        int r = loop_run(app->loop, err);
        if (r < 0)
            return r;
    }
    if (app->signo != 0) {
        (void)err_set(err, ERR_STATE, "interrupted");
        return -EINTR;
    }
    return 0;
}

/* Where. */

/* The token of a file, as the value of a header. */
static int read_token(const char *path, char **ret, struct err *err)
{
    char text[TOKEN_MAX];
    ssize_t n = fd_read_file_at(AT_FDCWD, path, text, sizeof(text));

    if (n < 0)
        return err_sys(err, (int)-n, "read the token in '%s' (BOX_TOKEN_FILE)", path);
    AUTO_FREE char *token = str_strip(text);
    if (token[0] == '\0')
        return err_set(err, ERR_INVALID, "the file '%s' (BOX_TOKEN_FILE) holds no token", path);
    for (const char *c = token; *c != '\0'; c++)
        if (*c <= ' ' || *c == 0x7f)
            return err_set(err, ERR_INVALID,
                           "the file '%s' (BOX_TOKEN_FILE) holds more than one token", path);
    *ret = xasprintf("Bearer %s", token);
    return 0;
}

static int connect_told(struct app *app, const char *host, struct err *err)
{
    const char *token_file = getenv("BOX_TOKEN_FILE");

    app->told = true;
    app->endpoint = xstrdup(host);
    if (!str_starts(host, "unix://") && !str_starts(host, "http://"))
        return err_set(err, ERR_INVALID,
                       "BOX_HOST is '%s', it must be unix:///path/boxd.sock or http://host:port",
                       host);
    if (str_starts(host, "http://") && token_file != NULL && token_file[0] != '\0')
        return read_token(token_file, &app->authorization, err);
    return 0;
}

static int connect_default(struct app *app, enum daemon_kind need, struct err *err)
{
    AUTO_FREE char *path = NULL;
    int r = daemon_find(&app->daemon, need, app->signals.fd, &path, err);

    if (r < 0)
        (void)loop_turn(app->loop, 0); /* a signal that ended the wait is still to be taken */
    else
        app->endpoint = xasprintf("unix://%s", path);
    return r;
}

int app_connect(struct app *app, enum daemon_kind need, struct err *err)
{
    const char *host = getenv("BOX_HOST");
    int r = host != NULL && host[0] != '\0' ? connect_told(app, host, err)
                                            : connect_default(app, need, err);

    if (r >= 0)
        r = http_client_new(app->loop, app->endpoint, &app->client, err);
    return r;
}

int app_reconnect(struct app *app, struct err *err)
{
    AUTO_FREE char *ignored = NULL;

    return app->told ? 0 : daemon_find(&app->daemon, DAEMON_KEPT, app->signals.fd, &ignored, err);
}

int app_unreachable(const struct app *app, const struct err *cause, struct err *err)
{
    const char *remedy = "";

    if (app->told)
        remedy = "; start it there, or correct or unset BOX_HOST";
    if (app->told && str_starts(app->endpoint, "http://") && app->authorization == NULL)
        remedy = "; start it there, name the file of its token in BOX_TOKEN_FILE, or correct or "
                 "unset BOX_HOST";
    return err_set(err, ERR_BACKEND, "cannot talk to boxd at %s: %s%s", app->endpoint, cause->msg,
                   remedy);
}

struct app_headers app_headers(const struct app *app)
{
    const char *name = app->authorization != NULL ? "Authorization" : NULL;

    return (struct app_headers){{{name, app->authorization}, {NULL, NULL}}};
}

/* Calls. */

struct app_exchange {
    struct app *app;
    const struct app_request *request;
    struct buf *body;
    unsigned status;
    bool too_big;
    bool ended;
    bool patient;   /* the line that tells of a long wait is ours */
    struct err err; /* why it failed, if it did */
};

static void on_head(struct http_call *c, const struct http1_head *head, void *arg)
{
    struct app_exchange *call = arg;

    call->status = head->status;
    if (call->patient)
        app_patience_stop(call->app);
    if (call->request->head != NULL)
        call->request->head(call->request->arg, head);
}

static void on_body(struct http_call *c, const char *data, size_t len, void *arg)
{
    struct app_exchange *call = arg;

    if (call->request->bytes != NULL && call->status <= 299)
        call->request->bytes(call->request->arg, data, len);
    else if (buf_append(call->body, data, len) < 0)
        call->too_big = true;
}

static void on_done(struct http_call *c, const struct err *err, void *arg)
{
    struct app_exchange *call = arg;

    call->ended = true;
    if (err != NULL)
        call->err = *err;
    loop_quit(call->app->loop);
}

/* Words of boxd, and what to do about them. */
static int put_problem(enum err_code code, const char *detail, const char *remedy, struct err *err)
{
    if (remedy != NULL && remedy[0] != '\0')
        return err_set(err, code, "%s; %s", detail, remedy);
    return err_set(err, code, "%s", detail);
}

int app_problem(unsigned status, const struct buf *body, struct err *err)
{
    AUTO(json) struct json *v = NULL;

    (void)json_parse(buf_str(body), body->len, &v, NULL);
    const char *detail = json_str(json_get(v, "detail"));
    const char *title = json_str(json_get(v, "title"));
    const char *remedy = json_str(json_get(v, "remediation"));

    if (status == 401)
        remedy = "name the file of the token in BOX_TOKEN_FILE";
    if (detail == NULL)
        detail = title != NULL ? title : http1_reason(status);
    return put_problem(status == 404 ? ERR_NOT_FOUND : ERR_BACKEND, detail, remedy, err);
}

int app_refusal(const struct json *message, struct err *err)
{
    const char *detail = json_str(json_get(message, "detail"));
    const char *code = json_str(json_get(message, "code"));

    if (detail == NULL)
        detail = code != NULL ? code : "boxd refused without a reason";
    return put_problem(ERR_BACKEND, detail, json_str(json_get(message, "remediation")), err);
}

int app_lost(unsigned code, const char *reason, struct err *err)
{
    bool has_reason = reason != NULL && reason[0] != '\0';

    return err_set(err, ERR_BACKEND, "the connection to boxd was lost (%u%s%s)", code,
                   has_reason ? ": " : "", has_reason ? reason : "");
}

int app_open_ws(struct app *app, const struct app_ws *ws, void *arg, struct err *err)
{
    const struct ws_opts opts = {.stall_ns = NEVER_NS, .max_message = ws->max_message};
    struct app_headers headers = app_headers(app);
    const struct http_ws_call call = {.target = ws->target,
                                      .headers = headers.list,
                                      .opts = &opts,
                                      .handlers = ws->handlers,
                                      .opened = ws->opened,
                                      .arg = arg};
    struct err cause;

    return http_client_ws(app->client, &call, &cause) < 0 ? app_unreachable(app, &cause, err) : 0;
}

int app_send(struct app *app, const struct app_request *request, struct buf *ret_body,
             struct err *err)
{
    static const struct http_call_handlers handlers = {
        .head = on_head, .body = on_body, .done = on_done};
    struct app_headers headers = app_headers(app);
    struct http_call_opts opts = {.method = request->method,
                                  .target = request->target,
                                  .headers = headers.list,
                                  .type = request->type,
                                  .body = request->body,
                                  .body_len = request->body_len,
                                  .idle_ns = request->idle_ns};
    struct app_exchange call = {.app = app,
                                .request = request,
                                .body = ret_body,
                                .patient = app->patience.timer.loop == NULL};
    struct http_call *under_way = NULL;
    struct err cause;

    int r = http_client_call(app->client, &opts, &handlers, &call, &under_way, &cause);
    if (r < 0)
        return app_unreachable(app, &cause, err);
    if (call.patient)
        app_patience_start(app, "waiting for boxd");
    r = app_wait(app, err);
    if (call.patient)
        app_patience_stop(app);
    if (r < 0) {
        if (!call.ended)
            http_call_cancel(under_way); /* its callbacks have nowhere to go */
        return r;
    }
    if (call.err.code != ERR_NONE)
        return app_unreachable(app, &call.err, err);
    if (call.too_big)
        return err_set(err, ERR_LIMIT, "the answer of boxd is too large");
    return call.status >= 200 && call.status <= 299 ? 0 : app_problem(call.status, ret_body, err);
}

int app_call(struct app *app, const char *method, const char *target, struct buf *ret_body,
             struct err *err)
{
    return app_send(app, &(struct app_request){.method = method, .target = target}, ret_body, err);
}

int app_name_is_new(struct app *app, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", id);
    int r = app_call(app, "GET", target, &body, err);

    if (r >= 0)
        return err_set(err, ERR_CONFLICT,
                       "session '%s' exists, and --rm would remove it; choose another name, or "
                       "leave out --rm",
                       id);
    return r != -EINTR && err->code == ERR_NOT_FOUND ? 0 : r;
}

/* Lists. */

static void items_skip(struct items *it, const char *bytes)
{
    while (it->at < it->end && *it->at != '\0' && strchr(bytes, *it->at) != NULL)
        it->at++;
}

static bool items_take(struct items *it, char c)
{
    items_skip(it, " \t\r\n");
    if (it->at == it->end || *it->at != c)
        return false;
    it->at++;
    return true;
}

int items_init(struct items *it, const char *text, size_t len, const char *key, struct err *err)
{
    const char *found = memmem(text, len, key, strlen(key));

    *it = (struct items){.at = found, .end = text + len};
    if (found != NULL) {
        it->at += strlen(key);
        if (items_take(it, '"') && items_take(it, ':') && items_take(it, '['))
            return 0;
    }
    return err_set(err, ERR_BACKEND, "the answer of boxd has no list '%s'", key);
}

/* Past the string that starts at p. */
static const char *past_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\' && p + 1 < end;
    return p < end ? p + 1 : end;
}

/* Past the object that starts at p. What is wrong inside is for the parser to find. */
static const char *past_object(const char *p, const char *end)
{
    size_t depth = 0;

    while (p < end) {
        char c = *p;
        p = c == '"' ? past_string(p, end) : p + 1;
        depth += c == '{';
        if (c == '}' && --depth == 0)
            break;
    }
    return p;
}

int items_next(struct items *it, struct json **ret, struct err *err)
{
    json_free(TAKE_PTR(*ret));
    items_skip(it, " \t\r\n,");
    if (it->at < it->end && *it->at == ']')
        return 0;
    if (it->at == it->end || *it->at != '{')
        return err_set(err, ERR_BACKEND, "a list of boxd holds something else than objects");
    const char *start = it->at;
    it->at = past_object(start, it->end);
    int r = json_parse(start, (size_t)(it->at - start), ret, err);
    return r < 0 ? err_wrap(err, "list of boxd") : 1;
}
