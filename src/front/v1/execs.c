/* SPDX-License-Identifier: Apache-2.0 */

/* Execs with an id: starts them detached, lists, shows, signals, streams and deletes them. */

#include <signal.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "command/execs.h"
#include "front/common/sse.h"
#include "front/v1/idem.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/authz.h"
#include "session/manager.h"

#define LIST_MAX (4U << 20)

/* Starting ------------------------------------------------------------------------------------ */

static void free_exec(void *owned)
{
    struct v1_exec *e = owned;

    v1_exec_done(e);
    free(e);
}

int v1_exec_begin(const struct v1 *v, struct session *s, const struct front_asker *asker,
                  struct v1_exec *e, struct named_exec **ret, struct err *err)
{
    struct v1_exec *owned = xnew(struct v1_exec);

    *owned = *e;
    *e = (struct v1_exec){0};
    struct named_exec_options options = {.session = s,
                                         .stdin_text = owned->stdin_text,
                                         .owned = owned,
                                         .owned_free = free_exec,
                                         .id = owned->exec_id,
                                         .scope = asker->scope,
                                         .who = asker->who,
                                         .via = "http",
                                         .cleanup = owned->cleanup,
                                         .keep = owned->detach ||
                                                 owned->on_disconnect == V1_DISCONNECT_KEEP,
                                         .log_max = (size_t)owned->capture_bytes};
    v1_exec_request(owned, &options.run);
    return execs_start(v->execs, &options, ret, err);
}

/* Answers ------------------------------------------------------------------------------------- */

static void write_kept(struct jw *w, const struct named_exec *k)
{
    uint64_t begin, at_end;
    char when[40];

    named_exec_range(k, &begin, &at_end);
    clock_format(named_exec_started(k), when, sizeof(when));
    jw_object(w);
    jw_kstr(w, "session_id", named_exec_session_id(k));
    jw_kstr(w, "exec_id", named_exec_id(k));
    jw_kstr(w, "status", named_exec_state_name(k));
    jw_kstr(w, "on_disconnect", named_exec_keeps(k) ? "keep" : "kill");
    jw_kstr(w, "started_at", when);
    jw_key(w, "output");
    jw_object(w);
    jw_ku64(w, "begin", begin);
    jw_ku64(w, "end", at_end);
    jw_object_end(w);
    jw_ku64(w, "stdin_bytes", named_exec_stdin_bytes(k));
    if (named_exec_error(k) != NULL)
        v1_write_problem(w, "problem", named_exec_error(k));
    else if (named_exec_state(k) == NAMED_EXEC_ENDED)
        v1_write_outcome(w, named_exec_result(k));
    jw_object_end(w);
}

void v1_write_problem(struct jw *w, const char *key, const struct err *err)
{
    jw_key(w, key);
    jw_object(w);
    jw_kstr(w, "code", err_code_name(err->code));
    jw_kstr(w, "detail", err->msg);
    jw_kstr(w, "remediation", front_remedy(err));
    jw_object_end(w);
}

static void reply_kept(struct http_request *req, unsigned status, const struct named_exec *k)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, LIST_MAX);
    jw_init(&w, &out);
    write_kept(&w, k);
    front_reply_json(req, status, &out, &w);
}

/* A detached command is on its way when the policy has let it in. */
struct launch {
    struct http_request *req;
    struct named_exec_reader reader;
};

static void on_launched(void *arg)
{
    struct launch *l = arg;
    const struct named_exec *k = l->reader.kept;
    struct http_request *req = l->req;
    struct err err = {0};

    if (named_exec_state(k) == NAMED_EXEC_ASKING)
        return;
    if (named_exec_error(k) != NULL)
        err = *named_exec_error(k);
    else
        reply_kept(req, 202, k);
    named_exec_detach(&l->reader);
    free(l);
    if (err.code != ERR_NONE)
        front_fail(req, &err);
}

static void launch(struct http_request *req, struct named_exec *k)
{
    static const struct named_exec_events events = {.ready = on_launched};
    struct launch *l = xnew(struct launch);

    l->req = req;
    named_exec_attach(k, &l->reader, 0, &events, l);
}

static int start_kept(struct http_request *req, const struct v1 *v, struct session *s,
                      const struct json *body, struct err *err)
{
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    struct v1_exec e = {0};
    struct named_exec *k = NULL;
    int r = v1_exec_parse(body, NULL, &e, err);

    if (r < 0)
        return r;
    bool detach = e.detach;
    if (!detach && !sse_wanted(req))
        r = err_set(err, ERR_INVALID,
                    "exec_id and on_disconnect are for streams: send 'Accept: text/event-stream', "
                    "or detach");
    else if (e.tty || e.with_stdin)
        r = err_set(err, ERR_INVALID, "tty and stdin need the streaming endpoint /v1/exec");
    if (r == 0)
        r = v1_exec_begin(v, s, &asker, &e, &k, err);
    v1_exec_done(&e);
    if (r < 0)
        return r;
    if (detach)
        launch(req, k);
    else
        v1_exec_sse(req, v, k, 0);
    return 0;
}

bool v1_exec_kept(struct http_request *req, const struct v1 *v, struct session *s,
                  const struct json *body)
{
    static const char *const members[] = {"detach", "exec_id", "on_disconnect"};
    struct err err = {0};
    bool ours = sse_wanted(req);

    for (size_t i = 0; i < ARRAY_SIZE(members); i++)
        ours = ours || json_get(body, members[i]) != NULL;
    if (!ours)
        return false;
    if (json_bool(json_get(body, "detach")) && !idem_begin(v->idem, req, front_who(req)))
        return true;
    if (start_kept(req, v, s, body, &err) < 0)
        front_fail(req, &err);
    return true;
}

/* Those that are there ------------------------------------------------------------------------ */

/* Of a session that is the caller's, or was. NULL: answered. */
static struct named_exec *find_kept(struct http_request *req, const struct v1 *v)
{
    const char *session = http_request_param(req, "id"), *id = http_request_param(req, "exec");
    struct err err = {0};
    struct named_exec *k = NULL;

    if (front_owns(req, &v->front, session))
        k = execs_find(v->execs, session, id);
    if (k == NULL) {
        (void)err_missing(&err, ERR_THING_EXEC, "session %.80s has no exec %.80s", session, id);
        front_fail(req, &err);
    }
    return k;
}

/* To follow it, talk to it or end it: as much as running it. What a session was made with is asked
 * while there is one. NULL: answered. */
static struct named_exec *use_kept(struct http_request *req, const struct v1 *v)
{
    struct named_exec *k = front_may(req, &v->front, "exec") ? find_kept(req, v) : NULL;
    const struct session *s =
        k != NULL ? manager_find(v->front.manager, named_exec_session_id(k)) : NULL;

    return s == NULL || front_may_use(req, &v->front, s) ? k : NULL;
}

static void list_execs(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    struct session *s = front_find_session(req, &v->front);
    buf_init(&out, LIST_MAX);

    if (s == NULL)
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_key(&w, "execs");
    jw_array(&w);
    for (struct named_exec *k = execs_next(v->execs, session_id(s), NULL); k != NULL;
         k = execs_next(v->execs, session_id(s), k))
        write_kept(&w, k);
    jw_array_end(&w);
    jw_object_end(&w);
    front_reply_json(req, 200, &out, &w);
}

static void get_exec(struct http_request *req, void *arg)
{
    struct named_exec *k = find_kept(req, arg);
    if (k != NULL)
        reply_kept(req, 200, k);
}

/* Who ended an exec and is answered when nothing of it runs any more. */
struct ending {
    struct http_request *req;
    struct named_exec_reader reader; /* of nothing but its end */
};

static void ending_free(struct ending *e)
{
    named_exec_detach(&e->reader);
    free(e);
}

static void on_ending(void *arg)
{
    struct ending *e = arg;
    struct named_exec *k = e->reader.kept;
    uint64_t begin, at_end;
    struct err err = {0};

    named_exec_range(k, &begin, &at_end);
    named_exec_advance(&e->reader,
                       at_end - e->reader.at); /* nothing is held back for this reader */
    if (named_exec_state(k) != NAMED_EXEC_ENDED)
        return;
    if (named_exec_result(k)->outcome.unended) {
        (void)backend_unended(&err, "command");
        front_fail(e->req, &err);
    } else {
        http_reply(e->req, 204, NULL, NULL, 0);
    }
    ending_free(e);
}

static void on_ender_gone(struct http_request *req, void *arg)
{
    ending_free(arg);
    http_abort(req);
}

static void end_kept(struct http_request *req, struct named_exec *k,
                     void (*end)(struct named_exec *k))
{
    static const struct named_exec_events events = {.ready = on_ending};
    struct ending *e = xnew(struct ending);

    e->req = req;
    named_exec_attach(k, &e->reader, UINT64_MAX, &events, e);
    http_on_cancel(req, on_ender_gone, e);
    end(k); /* what has not begun ends in here */
}

static void delete_exec(struct http_request *req, void *arg)
{
    struct named_exec *k = use_kept(req, arg);
    if (k == NULL)
        return;
    if (named_exec_state(k) != NAMED_EXEC_ENDED) {
        end_kept(req, k, named_exec_dismiss);
        return;
    }
    named_exec_dismiss(k);
    http_reply(req, 204, NULL, NULL, 0);
}

int v1_signal_number(const char *name)
{
    static const struct {
        const char *name;
        int signo;
    } signals[] = {{"INT", SIGINT},   {"TERM", SIGTERM}, {"HUP", SIGHUP},   {"QUIT", SIGQUIT},
                   {"KILL", SIGKILL}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"TSTP", SIGTSTP},
                   {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"ALRM", SIGALRM}, {"WINCH", SIGWINCH}};
    for (size_t i = 0; name != NULL && i < ARRAY_SIZE(signals); i++)
        if (str_eq(name, signals[i].name))
            return signals[i].signo;
    return 0;
}

void v1_kept_signal(struct named_exec *k, int signo)
{
    if (signo == SIGKILL)
        named_exec_kill(k); /* and all it started */
    else if (signo > 0)
        named_exec_signal(k, signo);
}

static void signal_exec(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct named_exec *k = use_kept(req, arg);

    if (k == NULL || !front_read_body(req, &body))
        return;
    int signo = v1_signal_number(json_str(json_get(body, "signal")));
    if (signo == 0 || json_len(body) != 1)
        (void)err_set(&err, ERR_INVALID,
                      "signal must be one of INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP, CONT, "
                      "STOP, ALRM, WINCH, and nothing else is known");
    else if (named_exec_state(k) != NAMED_EXEC_RUNNING)
        (void)err_set(&err, ERR_STATE, "exec %.64s is not running", named_exec_id(k));
    if (err.code != ERR_NONE) {
        front_fail(req, &err);
        return;
    }
    if (signo == SIGKILL) {
        end_kept(req, k, named_exec_kill); /* and all it started */
        return;
    }
    named_exec_signal(k, signo);
    http_reply(req, 204, NULL, NULL, 0);
}

/* Where the caller wants to go on: `from`, or behind the last event it has. False: answered. */
static bool start_of(struct http_request *req, const struct named_exec *k, uint64_t *ret)
{
    const char *last = sse_last_id(req);
    struct err err = {0};
    uint64_t begin, at_end, most;

    named_exec_range(k, &begin, &at_end);
    most = named_exec_state(k) == NAMED_EXEC_ENDED ? at_end + 1 : at_end;
    *ret = 0;
    if (last != NULL && (str_to_u64(last, ret) < 0 || *ret > most)) {
        (void)err_set(&err, ERR_INVALID, "Last-Event-ID must be a whole number from 0 to %llu",
                      (unsigned long long)most);
        front_fail(req, &err);
        return false;
    }
    return v1_query_number(req, "from", most, *ret, ret);
}

static void stream_exec(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct named_exec *k = use_kept(req, v);
    uint64_t from, begin, at_end;

    if (k == NULL || !start_of(req, k, &from))
        return;
    named_exec_range(k, &begin, &at_end);
    if (http_request_header(req, "Upgrade") != NULL)
        v1_stream_attach(req, v, k, from);
    else if (from > at_end)
        http_reply(req, 204, NULL, NULL, 0); /* the caller has it all; do not come again */
    else if (str_eq(http_request_method(req), "HEAD"))
        http_reply(req, 200, "text/event-stream", NULL, 0);
    else
        v1_exec_sse(req, v, k, from);
}

static const struct http_route routes[] = {
    {"GET", "/v1/sessions/{id}/execs", list_execs, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/execs/{exec}", get_exec, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}/execs/{exec}", delete_exec, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/execs/{exec}/signal", signal_exec, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/execs/{exec}/stream", stream_exec, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_execs_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
