/* SPDX-License-Identifier: Apache-2.0 */

/* Creates the LangBot front, registers its HTTP routes and answers the health probes; and the
 * action `box_init`, which checks and applies the limits, paths and backend that LangBot
 * configures. LangBot says "./data/box" and means the directory that it runs in. boxd finds that
 * directory by looking at LangBot's process, or else uses a setting; it never guesses. */

#include "front/langbot/langbot.h"

#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/server/server.h"
#include "loop/peer.h"
#include "session/artifacts.h"
#include "session/manager.h"
#include "session/process.h"

/* A configuration that is not in force yet. */
struct box_setup {
    struct box_limits limits;
    struct box_paths paths; /* owned */
    bool make_workspace;    /* that of the paths has to be made first */
    char *base;             /* owned; the directory that LangBot runs in, NULL: not known */
    char *written;          /* owned; host_root as LangBot has it, where that is relative */
    struct err why;         /* why `base` is not known */
    bool relative;          /* host_root was, and starts at `base` */
    bool from_peer;         /* `base` is the directory of the client's own process */
};

static void box_setup_done(struct box_setup *s)
{
    box_paths_done(&s->paths);
    free(s->base);
    free(s->written);
}
DEFINE_CLEANUP_DONE(box_setup)

/* A path below the directory, not the directory itself. */
static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* Hands the limits to the manager. */
static void set_caps(struct langbot *r)
{
    const struct box_limits *l = &r->limits;
    size_t sessions = (size_t)l->max_sessions;
    manager_set_caps(r->o.manager, sessions < r->sessions_max ? sessions : r->sessions_max,
                     (size_t)l->max_managed_processes, (size_t)l->max_completed_processes,
                     (uint64_t)l->completed_process_retention_sec * NSEC_PER_SEC);
}

/* Names that select a backend of this boxd: none, any of this host, one of ours by name, or the one
 * that admission requires; see readiness.h for that. */
static void select_backend(struct langbot *r)
{
    struct backend *b = manager_backend(r->o.manager);
    bool any = r->wanted[0] == '\0' || str_eq(r->wanted, "local") ||
               str_eq(r->wanted, r->o.backend_name) ||
               (admission_enforced(r->admission) && str_eq(r->wanted, READINESS_BACKEND));
    r->selected = backend_limit(b, any ? "" : r->wanted);
    if (r->selected)
        return;
    log_warn(NULL, "box.backend is '%s', which this boxd does not have", r->wanted);
    (void)backend_limit(b, ""); /* the other fronts go on with any backend */
}

/* Of a struct langbot: the name of the backend to report; NULL: the configuration selects one that
 * this boxd does not have. */
static const char *selected_backend(void *arg)
{
    const struct langbot *r = arg;
    if (!r->selected)
        return NULL;
    return r->o.backend_name != NULL ? r->o.backend_name : manager_backend(r->o.manager)->ops->name;
}

/* Tells the stores where the paths are. */
static void set_roots(struct langbot *r)
{
    if (r->o.skills != NULL)
        jobs_set_skills_root(r->o.skills, r->paths.skills_root);
    if (r->o.artifacts != NULL)
        artifacts_set_root(r->o.artifacts, r->paths.host_root);
}

/* Before a client has configured anything. */
static int select_defaults(struct langbot *r, struct err *err)
{
    const struct box_base base = {.dir = r->o.base_dir};
    select_backend(r);
    int e = box_paths_parse(NULL, &base, &r->paths, err);
    if (e == 0)
        set_roots(r);
    return e;
}

/* Nothing fails from here on. */
static void apply_setup(struct langbot *r, const struct json *config, struct box_setup *setup)
{
    const struct box_limits *limits = &setup->limits;
    const struct json *admission = json_get(config, "admission");
    const struct json *backend = json_get(config, "backend");
    r->limits = *limits;
    if (json_len(json_get(config, "limits")) > 0)
        set_caps(r);
    fence_set_max(r->fence, (size_t)limits->max_admission_records);
    admission_set_max(r->admission, (size_t)limits->max_admission_records);
    box_paths_done(&r->paths);
    r->paths = setup->paths;
    setup->paths = (struct box_paths){0};
    set_roots(r);
    if (admission != NULL)
        admission_configure(r->admission, admission);
    if (backend != NULL) {
        free(r->wanted);
        r->wanted = str_strip(json_str(backend) != NULL ? json_str(backend) : "");
    }
    /* Sessions that are there stay where they are. */
    if (manager_count(r->o.manager) == 0)
        select_backend(r);
    readiness_clear(r->readiness);
}

/* Finds everything that is wrong before anything changes. */
static int check_setup(struct langbot *r, const struct json *config, struct box_setup *ret,
                       enum langbot_class *ret_class, struct err *err)
{
    const struct json *local = json_get(config, "local");
    ret->limits = r->limits;
    *ret_class = LANGBOT_VALUE_ERROR;
    int e = box_limits_parse(json_get(config, "limits"), &ret->limits, err);
    if (e < 0)
        return e;
    *ret_class = LANGBOT_VALIDATION;
    const struct box_base base = {.dir = ret->base, .why = ret->why.msg};
    e = local != NULL || r->paths.skills_root == NULL
            ? box_paths_parse(local, &base, &ret->paths, err)
            : box_paths_copy(&r->paths, &ret->paths);
    if (e == 0 && local != NULL && box_paths_relative_root(local, &ret->written) != NULL) {
        ret->relative = ret->base != NULL;
        ret->paths.placed = ret->relative && is_below(ret->paths.host_root, ret->base);
    }
    return e < 0 ? e : box_paths_check_workspace(&ret->paths, &ret->make_workspace, err);
}

static void on_preset_made(void *arg, const struct json *data, const struct job_failure *failure)
{
    if (data == NULL)
        log_warn(NULL, "default workspace: %s; ignoring", failure->text);
}

static int preset_config(struct langbot *r, const struct json *config, struct err *err)
{
    AUTO_DONE(box_setup) struct box_setup setup = {0};
    enum langbot_class class = LANGBOT_ERROR;
    char cwd[PATH_MAX];
    /* Paths in the environment are relative to the directory that boxd was started in. */
    if (r->o.base_dir != NULL || getcwd(cwd, sizeof(cwd)) != NULL)
        setup.base = xstrdup(r->o.base_dir != NULL ? r->o.base_dir : cwd);
    int e = check_setup(r, config, &setup, &class, err);
    if (e < 0 && class == LANGBOT_VALIDATION) { /* LangBot sends it again and gets the error */
        log_warn(NULL, "LANGBOT_BOX_CONFIG: %s; ignoring", err->msg);
        return 0;
    }
    if (e < 0)
        return err_wrap(err, "LANGBOT_BOX_CONFIG");
    if (setup.make_workspace &&
        (r->o.skills == NULL ||
         hostdir_ensure(r->o.skills, setup.paths.default_workspace, on_preset_made, r, err) < 0))
        log_warn(NULL, "default workspace: not made; ignoring");
    apply_setup(r, config, &setup);
    return 0;
}

/* The action. */

/*   BASE ──► PLACE ──► WORKSPACE */
enum init_step {
    INIT_BASE,      /* finds the directory that LangBot runs in */
    INIT_PLACE,     /* asks the backend whether it can mount a relative host_root */
    INIT_WORKSPACE, /* has the default workspace made */
};

static const unsigned init_moves[] = {
    [INIT_BASE] = 1U << INIT_PLACE,
    [INIT_PLACE] = 1U << INIT_WORKSPACE,
    [INIT_WORKSPACE] = 0,
};

struct init_call {
    struct langbot_call call;
    struct box_setup setup;
};

static void init_done(struct langbot_call *c)
{
    box_setup_done(&container_of(c, struct init_call, call)->setup);
}

static void answer_init(struct init_call *i)
{
    apply_setup(i->call.rpc, i->call.msg.data, &i->setup);
    jw_kbool(langbot_reply_open(&i->call), "initialized", true);
    langbot_reply_close(&i->call);
}

/* The error names the user that has to be able to use the directory. */
static void on_workspace_made(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct init_call *i = arg;
    const struct passwd *pw = getpwuid(geteuid());
    if (data != NULL) {
        answer_init(i);
        return;
    }
    langbot_fail(
        &i->call, LANGBOT_VALIDATION,
        "box.local.default_workspace %.200s cannot be created: %.300s. boxd runs as user "
        "'%.32s' (uid %u): make the directory yourself and give it to that user (install -d "
        "-o %u DIRECTORY), or name one below boxd's allowed_mount_roots that it may write to",
        i->setup.paths.default_workspace, failure->text, pw != NULL ? pw->pw_name : "unnamed",
        geteuid(), geteuid());
}

static void make_workspace(struct init_call *i)
{
    struct err err = {0};
    langbot_call_step(&i->call, INIT_WORKSPACE);
    if (!i->setup.make_workspace)
        answer_init(i);
    else if (i->call.rpc->o.skills == NULL)
        on_workspace_made(i, NULL, &(struct job_failure){.text = "box-fetch is missing"});
    else if (hostdir_ensure(langbot_skills(&i->call), i->setup.paths.default_workspace,
                            on_workspace_made, i, &err) < 0)
        on_workspace_made(i, NULL, &(struct job_failure){.text = err.msg});
}

static int socket_of(const struct langbot_call *c)
{
    const struct langbot_conn *conn = c->conn;
    return conn != NULL && conn->transport->socket != NULL ? conn->transport->socket(conn->arg)
                                                           : -1;
}

static void on_place_opened(void *arg, const char *path, const struct err *err)
{
    struct init_call *i = arg;
    struct jobs *jobs = i->call.rpc->o.skills;
    if (path == NULL) {
        langbot_fail(
            &i->call, LANGBOT_VALIDATION,
            "box.local.host_root '%.200s' is %.300s for LangBot, and boxd cannot use that: "
            "%.300s",
            i->setup.written, i->setup.paths.host_root, err->msg);
        return;
    }
    if (jobs != NULL)
        jobs_add_place(jobs, path);
    if (!langbot_call_dropped(&i->call))
        make_workspace(i);
}

static bool is_allowed(const struct langbot *r, const char *path)
{
    for (char *const *root = r->o.roots; root != NULL && *root != NULL; root++)
        if (is_below(path, *root))
            return true;
    return false;
}

/* A host_root that is relative becomes a place that may be mounted. */
static void open_place(struct init_call *i)
{
    struct backend *b = manager_backend(i->call.rpc->o.manager);
    const struct box_setup *s = &i->setup;
    struct err err = {0};
    langbot_call_step(&i->call, INIT_PLACE);
    if (!s->relative || !s->from_peer || is_allowed(i->call.rpc, s->paths.host_root)) {
        make_workspace(i);
        return;
    }
    struct backend_place want = {.sock = socket_of(&i->call), .base = s->base};
    int r = -1;
    if (!s->paths.placed)
        (void)err_set(&err, ERR_DENIED, "add it to allowed_mount_roots of boxd");
    else if (b->ops->place == NULL)
        (void)err_set(&err, ERR_UNSUPPORTED, "add it to allowed_mount_roots of boxd");
    else {
        want.rest = s->paths.host_root + strlen(s->base) + 1;
        r = b->ops->place(b, &want, on_place_opened, i, &err);
    }
    if (r != 0) /* else it comes later */
        on_place_opened(i, r > 0 ? s->paths.host_root : NULL, &err);
}

static void init_with_base(struct init_call *i)
{
    enum langbot_class class = LANGBOT_ERROR;
    struct err err = {0};
    if (check_setup(i->call.rpc, i->call.msg.data, &i->setup, &class, &err) < 0)
        langbot_fail(&i->call, class, "%s", err.msg);
    else
        open_place(i);
}

static void take_base(struct init_call *i)
{
    struct box_setup *s = &i->setup;
    s->from_peer = s->base != NULL;
    if (s->base == NULL && i->call.rpc->o.base_dir != NULL)
        s->base = xstrdup(i->call.rpc->o.base_dir);
    init_with_base(i);
}

static void on_base_found(void *arg, const char *path, const struct err *err)
{
    struct init_call *i = arg;
    if (path != NULL)
        i->setup.base = xstrdup(path);
    else
        i->setup.why = *err;
    if (!langbot_call_dropped(&i->call))
        take_base(i);
}

static void find_base(struct init_call *i)
{
    AUTO_DONE(peer_process) struct peer_process peer = {.cwd = -1};
    const struct langbot *r = i->call.rpc;
    struct backend *b = manager_backend(r->o.manager);
    const struct backend_place where = {.sock = socket_of(&i->call), .rest = ""};
    struct err ignored = {0};
    char cwd[PATH_MAX];
    if (i->call.conn->local) { /* LangBot has started boxd: its directory is boxd's */
        if (getcwd(cwd, sizeof(cwd)) != NULL)
            i->setup.base = xstrdup(cwd);
        init_with_base(i);
        return;
    }
    if (peer_find_process(r->o.diag_fd, where.sock, peer_mnt_ns(), &peer, &i->setup.why) == 0)
        i->setup.base = xstrdup(peer.path);
    else if (where.sock >= 0 && b->ops->place != NULL &&
             b->ops->place(b, &where, on_base_found, i, &ignored) == 0)
        return;
    take_base(i);
}

/* LangBot's `host` backend runs commands on the host itself, for every client that reaches the
 * port. boxd has no such backend; the answer is the one that LangBot's runtime gives. */
static bool wants_bare_host(const struct langbot_call *c)
{
    const char *name = json_str(json_get(c->msg.data, "backend"));
    AUTO_FREE char *stripped = str_strip(name != NULL ? name : "");
    return str_eq(stripped, "host") && c->rpc->o.token == NULL && !c->conn->local;
}

static void init_action(struct langbot_call *c)
{
    if (wants_bare_host(c))
        langbot_fail(c, LANGBOT_VALIDATION,
                     "host backend requires local stdio control or WebSocket control protected by "
                     "LANGBOT_BOX_CONTROL_TOKEN");
    else
        find_base(container_of(c, struct init_call, call));
}

static const struct langbot_call_type init_type = {
    .size = sizeof(struct init_call), .moves = init_moves, .done = init_done};

const struct langbot_action langbot_init_actions[] = {
    {"box_init", 0, 0, init_action, &init_type},
    {0},
};

/* The front. */

#define REAP_NS (30 * NSEC_PER_SEC)
#define HEALTH_MAX (64U * 1024)
#define JSON_TYPE "application/json; charset=utf-8"

static void on_reap(struct loop_timer *t)
{
    struct langbot *r = container_of(t, struct langbot, reaper);
    langbot_reap_grants(r);
    loop_timer_start(r->loop, t, REAP_NS, on_reap);
}

/* The configuration in the environment counts as that of a first box_init. */
static int preset_from_text(struct langbot *r, const char *text, struct err *err)
{
    AUTO(json) struct json *config = NULL;
    struct err parse_err = {0};
    if (text == NULL || text[0] == '\0')
        return 0;
    if (json_parse(text, strlen(text), &config, &parse_err) < 0 ||
        json_type(config) != JSON_OBJECT) {
        log_warn(NULL, "Failed to parse LANGBOT_BOX_CONFIG: %.100s", text);
        return 0;
    }
    return preset_config(r, config, err);
}

/* The names of sessions that boxd took over hold the generation of their workspace: clients of
 * older generations stay shut out. */
static void find_generations(struct langbot *r)
{
    struct manager *m = r->o.manager;
    char ns[NS_SIZE];
    int64_t generation;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        if (tenant_of_physical(session_id(s), ns, &generation))
            fence_found(r->fence, ns, generation);
}

int langbot_new(const struct langbot_options *options, struct langbot **ret, struct err *err)
{
    AUTO(langbot) struct langbot *r = xnew(struct langbot);
    r->o = *options;
    TAILQ_INIT(&r->calls);
    r->loop = manager_loop(options->manager);
    r->limits = box_limits_default;
    r->sessions_max = manager_get_options(options->manager)->max_sessions;
    r->wanted = xstrdup("");
    r->fence = fence_new((size_t)r->limits.max_admission_records);
    r->admission = admission_new((size_t)r->limits.max_admission_records);
    r->readiness =
        readiness_new(&(struct readiness_options){.manager = options->manager,
                                                  .skills = options->skills,
                                                  .admission = r->admission,
                                                  .paths = &r->paths,
                                                  .limits = &r->limits,
                                                  .backend = selected_backend,
                                                  .backend_arg = r,
                                                  .unsafe_storage = options->unsafe_storage});
    if (options->instance != NULL && !instance_id_valid(options->instance))
        return err_set(err, ERR_INVALID, "A valid trusted LangBot instance UUID is required");
    r->configured = options->instance != NULL;
    if (r->configured)
        r->instance = xstrdup(options->instance);
    int e = select_defaults(r, err);
    if (e == 0)
        e = preset_from_text(r, options->config, err);
    if (e < 0)
        return e;
    find_generations(r);
    loop_timer_start(r->loop, &r->reaper, REAP_NS, on_reap);
    *ret = TAKE_PTR(r);
    return 0;
}

void langbot_free(struct langbot *r)
{
    if (r == NULL)
        return;
    loop_timer_stop(&r->reaper);
    readiness_free(r->readiness);
    while (!TAILQ_EMPTY(&r->calls))
        langbot_call_free(TAILQ_FIRST(&r->calls));
    fence_free(r->fence);
    admission_free(r->admission);
    box_paths_done(&r->paths);
    langbot_trusts_free(r);
    free(r->wanted);
    free(r);
}

/* Probes. */

/* For dashboards, which expect the numbers of LangBot's thread pool. boxd has none: they are zero.
 */
static void write_counts(struct langbot *r, struct jw *w)
{
    static const char *const lags[] = {"last_lag_ms", "recent_p95_lag_ms", "recent_max_lag_ms",
                                       "max_lag_ms"};
    static const char *const zeros[] = {
        "max_workers",     "max_pending",    "max_inflight_per_scope", "inflight",
        "running",         "pending",        "active_scopes",          "submitted_total",
        "completed_total", "rejected_total", "global_rejected_total",  "scope_rejected_total"};
    struct manager *m = r->o.manager;
    size_t creating = 0, closing = 0, calls = 0;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        creating += session_state(s) == SESSION_CREATING;
        closing += session_state(s) == SESSION_STOPPING;
    }
    struct langbot_call *c;
    TAILQ_FOREACH (c, &r->calls, entry)
        calls++;
    jw_kobject(w, "resources");
    jw_kobject(w, "event_loop");
    jw_kbool(w, "running", true);
    jw_kint(w, "samples_total", 0);
    for (size_t i = 0; i < ARRAY_SIZE(lags); i++)
        jw_kreal(w, lags[i], 0.0);
    jw_object_end(w);
    jw_kobject(w, "blocking_executor");
    for (size_t i = 0; i < ARRAY_SIZE(zeros); i++)
        jw_kint(w, zeros[i], 0);
    jw_object_end(w);
    jw_ku64(w, "sessions", manager_count(m) - creating - closing);
    jw_ku64(w, "managed_processes", manager_processes_running(m));
    jw_ku64(w, "completed_processes", manager_processes_exited(m));
    jw_ku64(w, "creating_session_tasks", creating);
    jw_ku64(w, "closing_session_tasks", closing);
    jw_ku64(w, "background_tasks", calls);
    jw_object_end(w);
}

/* `report` NULL: only that boxd lives is asked. Where tokens separate users of boxd, a client
 * without one does not learn how busy they are. */
static void reply_probe(struct langbot *r, struct http_request *req,
                        const struct readiness_report *report)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(HEALTH_MAX);
    struct jw w = JW_INIT(&out);
    jw_object(&w);
    if (report != NULL)
        readiness_write(report, &w);
    else
        jw_kbool(&w, "live", true);
    if (!r->o.quiet_probes || http_request_is_unix(req))
        write_counts(r, &w);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, report == NULL || report->ready ? 200 : 503, JSON_TYPE, out.data, out.len);
}

static void get_healthz(struct http_request *req, void *arg)
{
    reply_probe(arg, req, NULL);
}

struct readyz {
    struct langbot *rpc;
    struct http_request *req;
};

static void on_readyz(void *arg, const struct readiness_report *report)
{
    AUTO_FREE struct readyz *p = arg;
    reply_probe(p->rpc, p->req, report);
}

static void get_readyz(struct http_request *req, void *arg)
{
    struct langbot *r = arg;
    struct readyz *p = xnew(struct readyz);
    p->rpc = r;
    p->req = req;
    readiness_get(r->readiness, on_readyz, p);
}

/* The handlers themselves check token and user. The two probes need no token. */
static const struct http_route routes[] = {
    {"GET", "/healthz", get_healthz, HTTP_ROUTE_OPEN, 0},
    {"GET", "/readyz", get_readyz, HTTP_ROUTE_OPEN, 0},
    {"GET", "/rpc/ws", langbot_ws_open, HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/sessions/{session}/managed-process/{process}/ws", langbot_relay_open,
     HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/sessions/{session}/managed-process/ws", langbot_relay_open, HTTP_ROUTE_OPEN, 0},
    {0},
};

int langbot_routes(struct langbot *r, struct http_server *server, struct err *err)
{
    return http_server_add_routes(server, routes, r, err);
}
