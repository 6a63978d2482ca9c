/* SPDX-License-Identifier: Apache-2.0 */

/* Creates the HTTP API: its routes for health, doctor, status, errors and sessions, and what the
 * handlers of other routes share. */

#include "front/v1/v1.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/str.h"
#include "command/execs.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "session/ports.h"
#include "spec/process.h"
#include "spec/spec.h"

#define LIST_MAX (32U << 20)
#define BODY_MAX (12U << 20)
#define JSON_TYPE "application/json"

/* What several routes read and write ------------------------------------------------------------
 */

bool v1_query_number(struct http_request *req, const char *name, uint64_t most, uint64_t otherwise,
                     uint64_t *ret)
{
    char text[24];
    ssize_t len = http_request_query_get(req, name, text, sizeof(text));
    *ret = otherwise;
    if (len == -ENOENT || (len >= 0 && str_to_u64(text, ret) == 0 && *ret <= most))
        return true;
    front_failf(req, ERR_INVALID, "%s must be a whole number from 0 to %llu", name,
                (unsigned long long)most);
    return false;
}

bool v1_query_flag(const struct http_request *req, const char *name, bool otherwise)
{
    char text[8];
    ssize_t n = http_request_query_get(req, name, text, sizeof(text));

    if (n == -ENOENT)
        return otherwise;
    return n == 0 || (n > 0 && (str_eq(text, "1") || str_eq(text, "true")));
}

bool v1_range_parse(const char *text, struct v1_range *ret)
{
    static const char unit[] = "bytes=";
    char word[48];
    uint64_t first = 0, last = UINT64_MAX;

    if (!str_starts(text, unit) || str_copy(word, sizeof(word), text + strlen(unit)) < 0)
        return false;
    char *dash = strchr(word, '-');
    if (dash == NULL)
        return false;
    *dash++ = '\0';
    if ((word[0] != '\0' && str_to_u64(word, &first) < 0) ||
        (dash[0] != '\0' && str_to_u64(dash, &last) < 0) || (word[0] == '\0' && dash[0] == '\0'))
        return false;
    if (word[0] == '\0') {
        *ret = (struct v1_range){.length = last, .is_suffix = true};
        return true;
    }
    if (last < first)
        return false;
    *ret = (struct v1_range){.from = first,
                             .length = last == UINT64_MAX ? UINT64_MAX - first : last - first + 1};
    return true;
}

void v1_put_range(struct http_request *req, uint64_t from, uint64_t end, uint64_t size)
{
    char text[96];

    if (end == 0)
        (void)str_fmt(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
    else
        (void)str_fmt(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)from,
                      (unsigned long long)end - 1, (unsigned long long)size);
    (void)http_reply_header(req, "Content-Range", text);
}

/* Mounts whose content a client says to be of a digest that boxd has not verified. */
static void write_unverified(struct jw *w, const struct spec *spec)
{
    bool any = false;
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        if (m->content_digest == NULL || m->mode == MOUNT_NONE)
            continue;
        if (!any)
            jw_karray(w, "content_unverified");
        any = true;
        jw_str(w, m->mount_path);
    }
    if (any)
        jw_array_end(w);
}

/* Digests that boxd has verified. */
static void write_artifacts(struct jw *w, const struct spec *spec)
{
    if (spec->own.artifacts == NULL)
        return;
    jw_karray(w, "artifacts");
    for (char *const *d = spec->own.artifact_digests; d != NULL && *d != NULL; d++)
        jw_str(w, *d);
    jw_array_end(w);
}

/* Members that boxd itself sets for a session: that of a chat has an end and labels. */
static void write_own(struct jw *w, const struct spec *spec)
{
    if (spec->own.expires_ns == 0)
        return;
    front_write_time(w, "expires_at", spec->own.expires_ns);
    jw_kobject(w, "labels");
    for (char *const *l = spec->own.labels; l != NULL && *l != NULL; l++) {
        AUTO_FREE char *key = xstrndup(*l, strcspn(*l, "="));
        jw_kstr(w, key, *l + strlen(key) + 1);
    }
    jw_object_end(w);
}

/* Whether it stays until it is removed, and what its files took of the disk when it was stopped. */
static void write_kept(struct jw *w, const struct session *s)
{
    bool known = false;
    uint64_t bytes = session_disk(s, &known);

    jw_kbool(w, "durable", session_durable(s));
    if (session_state(s) == SESSION_STOPPED && known)
        jw_ku64(w, "disk_bytes", bytes);
}

static void write_hosts(struct jw *w, const struct spec *spec)
{
    jw_karray(w, SPEC_ALLOW_HOSTS_NAME);
    for (char *const *h = spec->own.allow_hosts; h != NULL && *h != NULL; h++)
        jw_str(w, *h);
    jw_array_end(w);
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

int v1_read_signal(struct http_request *req, const struct json *body)
{
    int signo = v1_signal_number(json_str(json_get(body, "signal")));
    if (signo > 0 && json_len(body) == 1)
        return signo;
    front_failf(req, ERR_INVALID,
                "signal must be one of INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP, CONT, STOP, "
                "ALRM, WINCH, and nothing else is known");
    return 0;
}

/* The command that it is for, if any, and whether that runs or is to run again. */
static void write_start(struct jw *w, const struct session *s)
{
    const struct session_start *start = session_get_start(s);
    if (start->spec == NULL)
        return;
    jw_kobject(w, "start");
    jw_kstr(w, "process_id", PROCESS_START_ID);
    jw_kstr(w, "command", start->spec->command);
    jw_karray(w, "args");
    for (char *const *a = start->spec->args; a != NULL && *a != NULL; a++)
        jw_str(w, *a);
    jw_array_end(w);
    jw_kstr(w, "restart", start_policy_names[start->policy]);
    jw_kbool(w, "remove", start->removes);
    jw_kbool(w, "wanted", start->wanted);
    jw_object_end(w);
}

void v1_write_session(struct jw *w, const struct session *s)
{
    const struct spec *spec = session_spec(s);
    jw_kstr(w, "session_id", spec->session_id);
    jw_kstr(w, "backend_name", session_backend_name(s));
    jw_kstr(w, "state", session_state_name(session_state(s)));
    front_write_settings(w, spec);
    write_hosts(w, spec);
    write_kept(w, s);
    write_start(w, s);
    front_write_unenforced(w, s);
    front_write_time(w, "created_at", session_created(s));
    front_write_time(w, "last_used_at", session_last_used(s));
    jw_kint(w, "execs", session_execs(s));
    write_own(w, spec);
    write_unverified(w, spec);
    write_artifacts(w, spec);
}

/* Routes -------------------------------------------------------------------------------------- */

/* A request that waits for the receipt of a session. */
struct receipt_call {
    struct http_request *req;
    struct session *session; /* held */
};

static void receipt_call_free(struct receipt_call *c)
{
    session_release(c->session);
    free(c);
}

static void get_openapi(struct http_request *req, void *arg)
{
    http_reply(req, 200, JSON_TYPE, v1_openapi_json, v1_openapi_json_len);
}

static void get_health(struct http_request *req, void *arg)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, 1024);

    jw_kstr(w, "status", "ok");
    /* A TCP port may be open to the network: its clients learn only that boxd is there. */
    if (http_request_is_unix(req))
        jw_kstr(w, "version", BOX_VERSION);
    front_reply(&out, req, 200);
}

static void on_text(void *arg, const char *json, size_t len, const struct err *err)
{
    struct http_request *req = arg;
    if (err != NULL)
        front_fail(req, err);
    else
        http_reply(req, 200, JSON_TYPE, json, len);
}

static void get_doctor(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct backend *b = manager_backend(v->front.manager);
    struct err err = {0};
    if (!front_may(req, &v->front, "doctor"))
        return;
    if (b->ops->doctor(b, on_text, req, &err) < 0)
        front_fail(req, &err);
}

static void get_status(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    if (!front_may(req, &v->front, "status"))
        return;
    AUTO_DONE(front_answer) struct front_answer out;

    policy_service_write_status(v->front.service, front_caller(req), front_begin(&out, LIST_MAX));
    front_reply(&out, req, 200);
}

static void get_errors(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    if (!front_may(req, &v->front, "errors"))
        return;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    jw_key(w, "errors");
    error_ring_write_json(v->front.service->errors, authz_errors(front_caller(req)), w);
    front_reply(&out, req, 200);
}

static void list_sessions(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->front.manager;
    const bool running = v1_query_flag(req, "running", false);
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    jw_karray(w, "sessions");
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!authz_sees(front_caller(req), NULL, session_id(s)) ||
            (running && session_state(s) == SESSION_STOPPED))
            continue;
        jw_object(w);
        v1_write_session(w, s);
        jw_object_end(w);
    }
    jw_array_end(w);
    front_reply(&out, req, 200);
}

/* A request for a session, and for the command that it is for. */
struct create_call {
    struct http_request *req;
    const struct v1 *v1;
    struct json *body;       /* owned */
    struct session *session; /* held */
    struct session_start start;
    struct v1_ports *ports; /* owned; to publish; NULL: none */
    bool made;              /* there was no session of that name */
};

/* `err` NULL: it went well. A session that was made for a command which cannot run goes again. */
static void create_answer(struct create_call *c, const struct err *err)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    if (err != NULL) {
        front_fail(c->req, err);
    } else {
        v1_write_session(w, c->session);
        v1_ports_write(c->ports, w);
        front_reply(&out, c->req, 201);
    }
    if (err != NULL && c->made && c->session != NULL)
        front_session_discard(&c->v1->front, c->session);
    if (c->session != NULL)
        session_release(c->session);
    v1_ports_free(c->ports);
    json_free(c->body);
    free(c);
}

static void on_start_begun(void *arg, struct process *p, const struct err *err)
{
    struct create_call *c = arg;
    struct err why = {0};
    if (p == NULL) {
        create_answer(c, err);
        return;
    }
    c->start.spec = process_spec_copy(process_spec_of(p));
    if (session_set_start(c->session, &c->start, &why) < 0) {
        process_spec_free(c->start.spec);
        process_kill(p, why.msg);
        create_answer(c, &why);
        return;
    }
    create_answer(c, NULL);
}

static void on_created(void *arg, struct session *s, const struct err *err)
{
    struct create_call *c = arg;
    const struct front_asker asker = {.scope = front_caller(c->req), .who = front_who(c->req)};
    const struct front_process want = {
        .session = s, .object = json_get(c->body, "start"), .is_start = true};
    struct err why = {0};
    c->session = s;
    if (s == NULL)
        create_answer(c, err);
    else if (v1_ports_publish(c->ports, s, &why) < 0)
        create_answer(c, &why);
    else if (want.object == NULL)
        create_answer(c, NULL);
    else if (front_process_start(&c->v1->front, &asker, &want, on_start_begun, c, &why) < 0)
        create_answer(c, &why);
}

static int start_read(const struct json *body, struct session_start *ret, struct err *err)
{
    const struct json *start = json_get(body, "start"), *policy = json_get(body, "restart"),
                      *removes = json_get(body, "remove");
    int found = 0;
    if (start != NULL && (json_type(start) != JSON_OBJECT || json_get(start, "process_id") != NULL))
        return err_set(err, ERR_INVALID,
                       "start must be an object, as for a process, without process_id");
    if (removes != NULL && json_type(removes) != JSON_BOOL)
        return err_set(err, ERR_INVALID, "remove must be true or false");
    while (policy != NULL && found < START_POLICY_MAX &&
           !str_eq(start_policy_names[found], json_str(policy)))
        found++;
    if (found == START_POLICY_MAX)
        return err_set(err, ERR_INVALID, "restart must be no, on-failure or always");
    ret->policy = (enum start_policy)found;
    ret->removes = json_bool(removes);
    if (start == NULL && (removes != NULL || policy != NULL))
        return err_set(err, ERR_INVALID, "restart and remove are about start, which is missing");
    if (ret->policy != START_NO && (ret->removes || !json_bool(json_get(body, "durable"))))
        return err_set(err, ERR_INVALID,
                       "restart wants a durable session, which is not removed when its command "
                       "ends");
    /* Before a session is made for it. */
    AUTO(process_spec) struct process_spec *spec = NULL;
    int r = start != NULL ? front_strict(&process_request_model, start, NULL, err) : 0;
    return r == 0 && start != NULL ? process_spec_parse(start, &spec, err) : r;
}

static void create_session(struct http_request *req, void *arg)
{
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    const struct v1 *v = arg;
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct session_start start = {0};
    struct v1_ports *ports = NULL;
    if (!idem_begin(v->idem, req, asker.who) || !front_read_body(req, &body))
        return;
    if (json_get(body, "start") != NULL && !front_may(req, &v->front, "process"))
        return;
    int r = start_read(body, &start, &err);
    if (r == 0)
        r = v1_ports_parse(v, asker.scope, json_get(body, "ports"), &ports, &err);
    if (r < 0) {
        front_fail(req, &err);
        return;
    }
    struct create_call *c = xnew(struct create_call);
    const char *id = json_str(json_get(body, "session_id"));
    *c = (struct create_call){.req = req, .v1 = v, .start = start, .ports = ports};
    c->made = id == NULL || manager_find(v->front.manager, id) == NULL;
    c->body = TAKE_PTR(body);
    const struct front_want want = {
        .object = c->body, .id_required = true, .exact = true, .starts = true};
    if (front_session_get(&v->front, &asker, &want, on_created, c, &err) < 0)
        create_answer(c, &err);
}

/* What the backend says, and what boxd itself lets the session reach. */
static void write_receipt(struct jw *w, const struct json *receipt, const struct session *s)
{
    struct host_map_info host;

    jw_kobject(w, "receipt");
    for (void *it = json_iter(receipt); it != NULL; it = json_iter_next(receipt, it))
        jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    jw_karray(w, SPEC_ALLOW_HOSTS_NAME);
    for (unsigned i = 0; session_host_at(s, i, &host); i++) {
        jw_object(w);
        jw_kstr(w, "host", host.at.address);
        jw_kint(w, "host_port", host.at.port);
        jw_kint(w, "port", host.at.inside);
        jw_kbool(w, "listening", host.listening);
        jw_kint(w, "connections", host.connections);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_object_end(w);
}

static void on_receipt(void *arg, const char *json, size_t len, const struct err *err)
{
    struct receipt_call *c = arg;
    AUTO(json) struct json *receipt = NULL;
    struct err parse_err = {0};
    if (err == NULL && json_parse(json, len, &receipt, &parse_err) < 0)
        err = &parse_err;
    if (err != NULL) {
        front_fail(c->req, err);
        receipt_call_free(c);
        return;
    }
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, LIST_MAX);

    v1_write_session(w, c->session);
    write_receipt(w, receipt, c->session);
    front_reply(&out, c->req, 200);
    receipt_call_free(c);
}

/* A stopped session has no walls to report, and a frozen one cannot be asked. */
static void reply_without_receipt(struct http_request *req, const struct session *s)
{
    AUTO_DONE(front_answer) struct front_answer out;

    v1_write_session(front_begin(&out, LIST_MAX), s);
    front_reply(&out, req, 200);
}

static void get_session(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = front_find_session(req, &((const struct v1 *)arg)->front);
    if (s == NULL)
        return;
    struct sandbox *sb = session_sandbox(s);
    if (session_dormant(s) || session_state(s) == SESSION_PAUSED) {
        reply_without_receipt(req, s);
        return;
    }
    if (sb == NULL) {
        front_failf(req, ERR_STATE, "session %s is still being made", session_id(s));
        return;
    }
    struct receipt_call *c = xnew(struct receipt_call);
    c->req = req;
    c->session = s;
    session_hold(s);
    if (sb->backend->ops->receipt(sb, on_receipt, c, &err) < 0) {
        front_fail(req, &err);
        receipt_call_free(c);
    }
}

static void get_changes(struct http_request *req, void *arg)
{
    struct err err = {0};
    struct session *s = front_use_session(req, &((const struct v1 *)arg)->front, "read");
    if (s == NULL)
        return;
    struct sandbox *sb = session_sandbox(s);
    if (session_spec(s)->read_only_rootfs) {
        static const char none[] =
            "{\"changes\":[],\"truncated\":false,\"read_only_rootfs\":true}\n";
        http_reply(req, 200, JSON_TYPE, none, strlen(none));
    } else if (sb->backend->ops->diff == NULL) {
        front_failf(req, ERR_UNSUPPORTED,
                    "the %s backend cannot tell what a session has changed of its image; list the "
                    "files inside with find",
                    sb->backend->ops->name);
    } else if (sb->backend->ops->diff(sb, on_text, req, &err) < 0) {
        front_fail(req, &err);
    }
}

static void delete_session(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *id = http_request_param(req, "id");
    struct err err = {0};
    if (!front_may(req, &v->front, "session"))
        return;
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    int r = front_owns(req, &v->front, id)
                ? front_session_delete(&v->front, &asker, id, front_done, req, &err)
                : authz_check_session(front_caller(req), id, &err);
    if (r < 0)
        front_fail(req, &err);
}

static const struct http_route routes[] = {
    {"GET", "/v1/health", get_health, HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/openapi.json", get_openapi, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/doctor", get_doctor, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/status", get_status, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/errors", get_errors, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions", list_sessions, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions", create_session, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}", get_session, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/changes", get_changes, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}", delete_session, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    static const struct http_route *const tables[] = {
        routes,          v1_exec_routes,   v1_stream_routes, v1_process_routes, v1_hold_routes,
        v1_files_routes, v1_output_routes, v1_tools_routes,  v1_history_routes, v1_metrics_routes,
        v1_state_routes, v1_ports_routes,  v1_look_routes,   v1_log_routes};
    int r = 0;

    v->server = server;
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(tables); i++)
        r = http_server_add_routes(server, tables[i], v, err);
    return r;
}

static void on_rerun(void *arg, struct session *s)
{
    const struct v1 *v = arg;
    quota_guard(v->front.service, s);
}

struct v1 *v1_new(struct manager *m, struct events *events, const struct policy_service *service)
{
    struct v1 *v = xnew(struct v1);
    v->front.manager = m;
    v->front.service = service;
    v->events = events;
    struct execs_options execs = execs_defaults;
    execs.service = v->front.service;
    v->execs = execs_new(manager_loop(v->front.manager), &execs);
    http_random(v->cursor_key, sizeof(v->cursor_key));
    manager_on_rerun(m, on_rerun, v);
    v->idem =
        idem_new(manager_loop(v->front.manager), manager_get_options(v->front.manager)->store);
    return v;
}

struct front *v1_front(struct v1 *v)
{
    return &v->front;
}

void v1_free(struct v1 *v)
{
    if (v == NULL)
        return;
    manager_on_rerun(v->front.manager, NULL, NULL);
    execs_free(v->execs);
    idem_free(v->idem);
    free(v);
}
