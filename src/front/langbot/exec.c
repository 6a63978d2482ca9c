/* SPDX-License-Identifier: Apache-2.0 */

/* The action that runs a command, and how it and box_create_session get their session: the spec is
 * read, and rewritten where admission is enforced; content-addressed mounts leave it and are
 * copied, verified, into the directory that the session has for them, before it is made or while it
 * lives; missing directories are made; the manager finds or makes the session for the rest of the
 * spec. */

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/command.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "session/artifacts.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ALL_FIELDS (FIELD_BIT(SPEC_FIELD_MAX) - 1)

/*   SPEC ──► QUEUED ──► COPY ──► DIRS ──► RECOPY ──► SESSION ──► ADD ──► READY */
#define TO(step) (1U << ACQUIRE_##step)
const unsigned langbot_acquire_moves[ACQUIRE_STEP_MAX] = {
    [ACQUIRE_SPEC] = TO(QUEUED),
    [ACQUIRE_QUEUED] = TO(COPY),
    [ACQUIRE_COPY] = TO(DIRS) | TO(RECOPY) | TO(SESSION),
    [ACQUIRE_DIRS] = TO(RECOPY) | TO(SESSION),
    [ACQUIRE_RECOPY] = TO(SESSION),
    [ACQUIRE_SESSION] = TO(ADD) | TO(READY),
    [ACQUIRE_ADD] = TO(READY),
    [ACQUIRE_READY] = 0,
};

struct langbot_exec {
    struct langbot_acquire acquire;
    struct command *command;             /* owned */
    const struct command_result *result; /* of it; sent when the session has gone */
    char *cmd, *cwd;                     /* owned */
    char **env;                          /* owned */
    int64_t timeout_sec;
    struct langbot_lane *lane; /* NULL: none */
    TAILQ_ENTRY(langbot_exec) lane_entry;
    struct loop_defer defer;
};

static const struct langbot_call_type exec_type;

/* The call as the exec that it is; NULL: it is another kind of call. */
static struct langbot_exec *exec_of(struct langbot_call *c)
{
    return c->type == &exec_type ? container_of(c, struct langbot_exec, acquire.call) : NULL;
}

static struct langbot_acquire *acquire_of(struct langbot_call *c)
{
    return container_of(c, struct langbot_acquire, call);
}

void langbot_acquire_done(struct langbot_call *c)
{
    struct langbot_acquire *a = acquire_of(c);
    if (a->session != NULL)
        session_release(a->session);
    for (size_t i = 0; i < a->n_artifacts; i++)
        model_done(&mount_spec_model, &a->artifacts[i]);
    free(a->artifacts);
    free(a->tree);
    artifacts_place_free(a->place);
    spec_free(a->spec);
}

static void tell_owner(struct langbot_acquire *a, unsigned step)
{
    langbot_call_step(&a->call, step);
    a->then(&a->call);
}

/* The spec. */

/* Takes the members of one command out of the spec: a session neither keeps the megabytes of a
 * script nor gives the variables of one command to the next. */
static void take_command(struct langbot_exec *e, struct spec *spec)
{
    AUTO_FREE char *cmd = TAKE_PTR(spec->cmd);
    AUTO_STRV char **env = TAKE_PTR(spec->env);
    spec->cmd = xstrdup("");
    if (e == NULL)
        return;
    e->cmd = TAKE_PTR(cmd);
    e->env = TAKE_PTR(env);
    e->cwd = xstrdup(spec->workdir);
    e->timeout_sec = spec->timeout_sec;
}

static void set_id(struct langbot_acquire *a)
{
    free(a->spec->session_id);
    a->spec->session_id = xstrdup(a->call.id);
}

static void add_skill_mount(struct spec *spec, const char *package_root)
{
    spec->extra_mounts =
        xreallocarray(spec->extra_mounts, spec->n_extra_mounts + 1, sizeof(*spec->extra_mounts));
    spec->extra_mounts[spec->n_extra_mounts++] = (struct mount_spec){
        .host_path = xstrdup(package_root),
        .mount_path = xasprintf("%s/.skills/%s", SPEC_DEFAULT_MOUNT, spec->skill_name),
        .mode = MOUNT_RO,
    };
}

static void on_skill_found(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_acquire *a = arg;
    const char *root = json_str(json_get(json_get(data, "skill"), "package_root"));
    if (root == NULL) {
        langbot_fail(&a->call, LANGBOT_ADMISSION,
                     "Managed sandbox skill is unavailable in this Workspace");
        return;
    }
    if (langbot_call_dropped(&a->call))
        return;
    add_skill_mount(a->spec, root);
    tell_owner(a, ACQUIRE_QUEUED);
}

static void mount_skill(struct langbot_acquire *a)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(4096);
    AUTO(json) struct json *request = NULL;
    struct err err = {0};
    struct jw w = JW_INIT(&text);
    if (a->spec->skill_name == NULL) {
        tell_owner(a, ACQUIRE_QUEUED);
        return;
    }
    jw_object(&w);
    jw_kstr(&w, "name", a->spec->skill_name);
    jw_object_end(&w);
    if (jw_end(&w) < 0 || json_parse(text.data, text.len, &request, &err) < 0 ||
        jobs_skill(langbot_skills(&a->call), a->call.ns[0] != '\0' ? a->call.ns : NULL, SKILLS_GET,
                   request, -1, on_skill_found, a, &err) < 0)
        on_skill_found(a, NULL, NULL);
}

static void on_workspace_made(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_acquire *a = arg;
    if (data == NULL) {
        langbot_fail(&a->call, LANGBOT_READINESS, "%s", failure->text);
        return;
    }
    if (!langbot_call_dropped(&a->call))
        mount_skill(a);
}

/* Where admission is enforced: the one session, in the directory of its workspace. */
static void rewrite_spec(struct langbot_acquire *a)
{
    struct langbot_call *c = &a->call;
    struct err err = {0};
    const char *root = NULL;
    if (c->rpc->o.skills == NULL || box_paths_managed_place(&c->rpc->paths, &root, &err) < 0) {
        langbot_fail(c, LANGBOT_READINESS, "%s",
                     err.code != ERR_NONE ? err.msg : "box-fetch is missing");
        return;
    }
    if (a->spec->n_extra_mounts > 0 && !c->rules->admitted_mounts) {
        langbot_fail(c, LANGBOT_ADMISSION, "Managed sandbox additional host mounts are disabled");
        return;
    }
    AUTO_FREE char *dir = box_paths_tenant_dir(&c->rpc->paths, c->ns);
    if (admission_rewrite(c->rpc->admission, a->spec, dir, &err) < 0 ||
        admission_check_mounts(&c->rpc->paths, a->spec, &err) < 0) {
        langbot_fail(c, LANGBOT_ADMISSION, "%s", err.msg);
        return;
    }
    if (exec_of(c) != NULL)
        exec_of(c)->timeout_sec = a->spec->timeout_sec;
    free(c->id);
    c->id = xasprintf("%s%s", c->prefix, ADMISSION_SESSION);
    set_id(a);
    if (manager_find(c->rpc->o.manager, c->id) != NULL) /* then the directory is there */
        mount_skill(a);
    else if (hostdir_ensure(langbot_skills(c), dir, on_workspace_made, a, &err) < 0)
        langbot_fail(c, LANGBOT_READINESS, "%s", err.msg);
}

void langbot_spec_begin(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    struct langbot_acquire *a = acquire_of(c);
    struct langbot_exec *e = exec_of(c);
    struct report report = {0};
    struct err err = {0};
    int r = c->rules->closed
                ? spec_parse_closed(c->msg.data, c->rules->gone, &a->spec, &report, &err)
                : spec_parse_report(c->msg.data, &a->spec, &report, &err);
    if (r < 0) {
        langbot_fail_report(c, &report, spec_model.name);
        return;
    }
    take_command(e, a->spec);
    if (c->rpc->paths.placed)
        a->spec->own.place = xstrdup(c->rpc->paths.host_root);
    a->spec->own.bound = c->bound;
    a->spec->own.uid = c->uid;
    bool enforced = admission_enforced(c->rpc->admission); /* then boxd chooses the id */
    if (c->ns[0] == '\0' || enforced)
        c->id = xstrdup(a->spec->session_id);
    else if (tenant_physical(c->prefix, a->spec->session_id, &c->id, &err) < 0) {
        langbot_fail(c, c->rules->bad_id_is_checked ? LANGBOT_VALIDATION : LANGBOT_VALUE_ERROR,
                     "%s", err.msg);
        return;
    }
    set_id(a);
    if (e != NULL && e->cmd[0] == '\0') {
        langbot_fail(c, LANGBOT_VALIDATION, "cmd must not be empty");
        return;
    }
    a->then = then;
    if (enforced)
        rewrite_spec(a);
    else
        tell_owner(a, ACQUIRE_QUEUED);
}

/* Content-addressed mounts. */

static void artifacts_copied(struct langbot_acquire *a);

static void fail_copy(struct langbot_acquire *a, const char *why)
{
    langbot_fail(&a->call, LANGBOT_ERROR, "Immutable artifact preparation failed: %s", why);
}

/* The session has no place for them, or could have none. */
static void fail_place(struct langbot_acquire *a, const char *why, const char *advice)
{
    langbot_fail(&a->call, LANGBOT_ERROR, "Immutable artifact cache is unavailable%s%s%s",
                 why[0] != '\0' ? ": " : "", why, advice);
}

/* They are moved, not copied. */
static void take_artifacts(struct langbot_acquire *a)
{
    struct spec *spec = a->spec;
    size_t kept = 0;
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        struct mount_spec *m = &spec->extra_mounts[i];
        if (!mount_content_addressed(m)) {
            spec->extra_mounts[kept++] = *m;
            continue;
        }
        a->artifacts = xreallocarray(a->artifacts, a->n_artifacts + 1, sizeof(*m));
        a->artifacts[a->n_artifacts++] = *m;
    }
    spec->n_extra_mounts = kept;
}

static void copy_next(struct langbot_acquire *a);

static void on_artifact_added(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_acquire *a = arg;
    if (langbot_call_dropped(&a->call))
        return;
    if (data == NULL) {
        fail_copy(a, failure->text);
        return;
    }
    a->at++;
    copy_next(a);
}

/* The rest of them, one after the other. */
static void copy_next(struct langbot_acquire *a)
{
    struct langbot *r = a->call.rpc;
    struct err err = {0};
    const struct session *s =
        a->session != NULL ? a->session : manager_find(r->o.manager, a->call.id);
    bool same = s != NULL && str_eq(session_spec(s)->own.artifacts, a->tree);
    while (same && a->at < a->n_artifacts && session_has_artifact(s, &a->artifacts[a->at]))
        a->at++;
    if (a->at == a->n_artifacts)
        artifacts_copied(a);
    else if (artifacts_add(r->o.artifacts, a->tree, &a->artifacts[a->at], on_artifact_added, a,
                           &err) < 0)
        err.code == ERR_DENIED ? langbot_fail_err(&a->call, &err) : fail_copy(a, err.msg);
}

/* Without artifacts, a session does without a place for them. */
static void on_place_made(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_acquire *a = arg;
    if (langbot_call_dropped(&a->call))
        return;
    if (data == NULL) {
        log_debug(a->call.id, "%s; ignoring", failure->text);
        free(TAKE_PTR(a->spec->own.artifacts));
    }
    copy_next(a);
}

static void copy_for_new(struct langbot_acquire *a)
{
    struct artifacts *store = a->call.rpc->o.artifacts;
    struct err err = {0};
    bool ready = false;
    a->place = artifacts_place(store, a->spec, a->n_artifacts > 0, &ready, &err);
    if (a->place == NULL && a->n_artifacts > 0) {
        err.code == ERR_DENIED ? langbot_fail_err(&a->call, &err) : fail_place(a, err.msg, "");
        return;
    }
    if (a->place == NULL) {
        artifacts_copied(a);
        return;
    }
    a->tree = xstrdup(a->spec->own.artifacts);
    /* Adding the first artifact makes the place. */
    if (ready || a->n_artifacts > 0)
        copy_next(a);
    else if (artifacts_make(store, a->tree, on_place_made, a, &err) < 0)
        on_place_made(a, NULL, &(struct job_failure){.text = err.msg});
}

static void copy_for(struct langbot_acquire *a, const struct session *s)
{
    const char *tree = session_spec(s)->own.artifacts;
    a->at = 0;
    if (a->n_artifacts > 0 && tree == NULL) {
        fail_place(a, artifacts_problem(a->call.rpc->o.artifacts), "; acquire a new Box");
        return;
    }
    free(a->tree);
    a->tree = tree != NULL ? xstrdup(tree) : NULL;
    copy_next(a);
}

/* Acquiring. */

static size_t count_others(const struct langbot_call *c)
{
    size_t n = 0;
    struct manager *m = c->rpc->o.manager;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        n += str_starts(session_id(s), c->prefix) && !str_eq(session_id(s), c->id);
    return n;
}

/* False: the call has failed. */
static bool can_create(struct langbot_call *c)
{
    if (c->rpc->draining)
        langbot_fail(c, LANGBOT_RUNTIME_UNAVAILABLE, "Box runtime is shutting down");
    else if (!c->rpc->selected)
        langbot_fail(
            c, LANGBOT_BACKEND_UNAVAILABLE,
            "LangBot Box backend unavailable. Install and start Docker or nsjail before using "
            "exec.");
    else if (admission_enforced(c->rpc->admission) &&
             count_others(c) >= (size_t)c->grant.max_sessions)
        langbot_fail(c, LANGBOT_ADMISSION, "Sandbox admission session limit reached");
    else
        return true;
    return false;
}

/* All artifacts are in the directory that the session has for them. */
static void add_artifacts(struct langbot_acquire *a)
{
    for (size_t i = 0; i < a->n_artifacts; i++)
        session_add_artifact(a->session, &a->artifacts[i]);
    tell_owner(a, ACQUIRE_READY);
}

static void fail_acquire(struct langbot_call *c, const struct err *err)
{
    langbot_audit_failed(c, AUDIT_SESSION_CREATE, err);
    if (err->code == ERR_NOT_FOUND) /* of an image */
        langbot_fail(c, LANGBOT_ERROR, "%s", err->msg);
    else
        langbot_fail_err(c, err);
}

static void on_session(void *arg, struct session *s, const struct err *err)
{
    struct langbot_acquire *a = arg;
    struct langbot_call *c = &a->call;
    if (s == NULL) {
        fail_acquire(c, err);
        return;
    }
    a->session = s;
    if (!langbot_may_use(c, s))
        return;
    if (a->made)
        langbot_audit_session(c, AUDIT_SESSION_CREATE);
    if (langbot_call_dropped(c))
        return;
    artifacts_place_free(TAKE_PTR(a->place));
    if (a->n_artifacts == 0 || str_eq(session_spec(s)->own.artifacts, a->tree)) {
        add_artifacts(a);
        return;
    }
    langbot_call_step(c, ACQUIRE_ADD);
    copy_for(a, s);
}

static void acquire_session(struct langbot_acquire *a)
{
    struct langbot_call *c = &a->call;
    struct manager *m = c->rpc->o.manager;
    struct err err = {0};
    a->made = manager_find(m, c->id) == NULL;
    if (a->found && a->made) { /* the session has gone that the mounts were copied for */
        langbot_call_step(c, ACQUIRE_RECOPY);
        a->found = false;
        a->at = 0;
        free(TAKE_PTR(a->tree));
        copy_for_new(a);
        return;
    }
    langbot_call_step(c, ACQUIRE_SESSION);
    unsigned mounts = c->rules->keeps_mounts ? ACQUIRE_KEEP_MOUNTS : ACQUIRE_REMOUNT;
    if (manager_acquire(m, &a->spec, ALL_FIELDS, mounts, on_session, a, &err) < 0)
        fail_acquire(c, &err);
}

/* Directories that an engine makes before it mounts, and that clients rely on: the workspace, if it
 * is a directory of the host, and in it the places of further mounts. Number 0 is the workspace;
 * the others are the extra mounts. NULL: that one needs nothing. */
static char *needed_dir(const struct langbot_acquire *a, size_t number)
{
    const struct spec *s = a->spec;
    if (s->host_path == NULL || s->host_path_mode != MOUNT_RW ||
        !path_is_clean_absolute(s->host_path))
        return NULL;
    if (number == 0)
        return box_paths_own(&a->call.rpc->paths, s->host_path) ? xstrdup(s->host_path) : NULL;
    const struct mount_spec *m = &s->extra_mounts[number - 1];
    size_t n = strlen(s->mount_path);
    if (m->mode == MOUNT_NONE || !path_is_clean_absolute(m->mount_path) ||
        !str_starts(m->mount_path, s->mount_path) || m->mount_path[n] != '/')
        return NULL;
    return xasprintf("%s%s", s->host_path, m->mount_path + n);
}

static void make_dirs(struct langbot_acquire *a);

static void on_dir_made(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct langbot_acquire *a = arg;
    if (data == NULL) /* the backend will say why it cannot do without */
        log_debug(a->call.id, "make a directory to mount: %s; ignoring", failure->text);
    if (!langbot_call_dropped(&a->call))
        make_dirs(a);
}

/* The rest of them, one after the other. */
static void make_dirs(struct langbot_acquire *a)
{
    while (a->dirs_made <= a->spec->n_extra_mounts) {
        AUTO_FREE char *dir = needed_dir(a, a->dirs_made++);
        struct err err = {0};
        struct stat st;
        /* boxd may not be allowed to look; the job may: it runs as the owner. */
        if (dir == NULL || stat(dir, &st) == 0)
            continue;
        if (hostdir_ensure(langbot_skills(&a->call), dir, on_dir_made, a, &err) == 0)
            return;
    }
    acquire_session(a);
}

static void artifacts_copied(struct langbot_acquire *a)
{
    struct langbot_call *c = &a->call;
    struct manager *m = c->rpc->o.manager;
    if (c->step == ACQUIRE_ADD) {
        add_artifacts(a);
        return;
    }
    /* A command in a session that is there pays for nothing, and one that is refused leaves
     * nothing. */
    bool kept = c->rules->keeps_mounts && manager_find(m, c->id) != NULL;
    if (c->step == ACQUIRE_RECOPY || c->rpc->o.skills == NULL || kept || manager_has(m, a->spec)) {
        acquire_session(a);
        return;
    }
    langbot_call_step(c, ACQUIRE_DIRS);
    make_dirs(a);
}

void langbot_acquire(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    struct langbot_acquire *a = acquire_of(c);
    const struct session *s = manager_find(c->rpc->o.manager, c->id);
    if (!can_create(c))
        return;
    a->then = then;
    langbot_call_step(c, ACQUIRE_COPY);
    if (c->rpc->o.artifacts != NULL)
        take_artifacts(a);
    if (c->rpc->o.artifacts == NULL || (a->n_artifacts == 0 && !c->rules->adds_artifacts)) {
        artifacts_copied(a);
        return;
    }
    a->found = s != NULL;
    if (s != NULL)
        copy_for(a, s);
    else
        copy_for_new(a);
}

/* Commands of one session run one after the other, in the order they came: a lane for each session
 * that has any. The first call of a lane is at work, the others wait. */
struct langbot_lane {
    LIST_ENTRY(langbot_lane) entry; /* of the bucket */
    TAILQ_HEAD(, langbot_exec) execs;
    char *id; /* owned */
};

static void exec_begin(struct langbot_call *c);

static void on_turn(struct loop_defer *d)
{
    struct langbot_exec *e = container_of(d, struct langbot_exec, defer);
    exec_begin(&e->acquire.call);
}

/* exec_begin() comes when all earlier ones have left, now or later; it may be cancelled before. */
static void lane_enter(struct langbot_exec *e)
{
    struct langbot_call *c = &e->acquire.call;
    size_t bucket = str_hash(c->id) % LANGBOT_LANES;
    assert(e->lane == NULL && c->step == ACQUIRE_QUEUED);
    struct langbot_lane *lane;
    LIST_FOREACH (lane, &c->rpc->lanes[bucket], entry)
        if (str_eq(lane->id, c->id))
            break;
    bool first = lane == NULL;
    if (first) {
        lane = xnew(struct langbot_lane);
        lane->id = xstrdup(c->id);
        TAILQ_INIT(&lane->execs);
        LIST_INSERT_HEAD(&c->rpc->lanes[bucket], lane, entry);
    }
    TAILQ_INSERT_TAIL(&lane->execs, e, lane_entry);
    e->lane = lane;
    if (first)
        exec_begin(c);
}

static void lane_leave(struct langbot_exec *e)
{
    struct langbot_lane *lane = TAKE_PTR(e->lane);
    if (lane == NULL)
        return;
    bool first = TAILQ_FIRST(&lane->execs) == e;
    TAILQ_REMOVE(&lane->execs, e, lane_entry);
    if (TAILQ_EMPTY(&lane->execs)) {
        LIST_REMOVE(lane, entry);
        free(lane->id);
        free(lane);
    } else if (first) {
        loop_defer_start(e->acquire.call.rpc->loop, &TAILQ_FIRST(&lane->execs)->defer, on_turn);
    }
}

/* Results. */

static void write_stream(struct jw *w, const char *key, const struct command_result *result,
                         enum exec_stream stream, const char *if_empty)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(RUN_CAPTURE_DEFAULT + 256);
    const char *kept = buf_str(&result->text[stream]);
    size_t len = result->text[stream].len;
    uint64_t lost = result->produced[stream] - len;
    str_trim(&kept, &len);
    jw_key(w, key);
    if (lost == 0) {
        if (len > 0)
            jw_strn(w, kept, len);
        else
            jw_str(w, if_empty);
        return;
    }
    (void)buf_append(&text, kept, len);
    (void)buf_printf(&text, "\n... [raw output clipped at %u bytes, %" PRIu64 " bytes discarded]",
                     RUN_CAPTURE_DEFAULT, lost);
    jw_strn(w, text.data, text.len);
}

static void reply_result(struct langbot_exec *e)
{
    struct langbot_call *c = &e->acquire.call;
    const struct command_result *result = e->result;
    const struct outcome *o = &result->outcome;
    AUTO_DONE(buf) struct buf why = BUF_INIT(512);
    if (o->kind == OUTCOME_SESSION_LOST) {
        langbot_fail(c, LANGBOT_ERROR, "session %s ended while the command was running", c->id);
        return;
    }
    command_explain(result, &why);
    struct jw *w = langbot_reply_open(c);
    jw_kstr(w, "session_id", tenant_logical(c->prefix, c->id));
    jw_kstr(w, "backend_name", readiness_backend(c->rpc->readiness));
    jw_kstr(w, "status", o->kind == OUTCOME_TIMED_OUT ? "timed_out" : "completed");
    command_write_exit(result, w);
    write_stream(w, "stdout", result, EXEC_STDOUT, "");
    write_stream(w, "stderr", result, EXEC_STDERR, buf_str(&why));
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_kstr(w, "outcome", outcome_name(o->kind));
    langbot_reply_close(c);
}

static void on_dropped(void *arg, const struct err *err)
{
    (void)err; /* the manager has logged it; the result stands all the same */
    reply_result(arg);
}

static void on_started(void *arg)
{
    struct langbot_exec *e = arg;
    free(TAKE_PTR(e->cmd)); /* it may be megabytes, and is on its way */
}

static void on_ended(void *arg, const struct command_result *result, const struct err *err)
{
    struct langbot_exec *e = arg;
    struct langbot_call *c = &e->acquire.call;
    struct err ignored = {0};
    e->result = result;
    if (err != NULL) {
        langbot_fail(c, err->code == ERR_INVALID ? LANGBOT_VALIDATION : LANGBOT_ERROR, "%s",
                     err->msg);
        return;
    }
    assert(result != NULL);
    /* The processes that a hung command left must not disturb the next one; kept files stay. */
    if (result->outcome.kind != OUTCOME_TIMED_OUT ||
        manager_expel(c->rpc->o.manager, e->acquire.session, on_dropped, e, &ignored) < 0)
        reply_result(e);
}

static void run_it(struct langbot_call *c)
{
    static const struct command_events events = {.started = on_started, .ended = on_ended};
    struct langbot_exec *e = exec_of(c);
    struct err err = {0};
    const struct command_options options = {
        .session = e->acquire.session,
        .run = {.exec = {.cmd = e->cmd,
                         .env = e->env,
                         .cwd = e->cwd,
                         .timeout_ns = (uint64_t)e->timeout_sec * NSEC_PER_SEC},
                .capture = RUN_CAPTURE_DEFAULT},
        .via = "rpc",
        .who = langbot_who(c),
        .keep = COMMAND_KEEP_BYTES,
    };
    if (command_start(c->rpc->o.service, &options, &events, e, &e->command, &err) < 0)
        on_ended(e, NULL, &err);
}

static void exec_begin(struct langbot_call *c)
{
    langbot_acquire(c, run_it);
}

static void exec_enter(struct langbot_call *c)
{
    langbot_message_drop(&c->msg); /* the request may be megabytes, and all of it has been read */
    lane_enter(exec_of(c));
}

static void exec_action(struct langbot_call *c)
{
    langbot_spec_begin(c, exec_enter);
}

static void exec_cancel(struct langbot_call *c)
{
    const struct langbot_exec *e = exec_of(c);
    if (c->step == ACQUIRE_QUEUED) /* nothing has begun */
        langbot_call_end(c);
    else if (e->command != NULL && e->result == NULL)
        command_kill(e->command);
}

static void exec_done(struct langbot_call *c)
{
    struct langbot_exec *e = exec_of(c);
    lane_leave(e);
    loop_defer_stop(&e->defer);
    command_free(e->command);
    free(e->cmd);
    free(e->cwd);
    strv_free(e->env);
    langbot_acquire_done(c);
}

static void exec_ended(struct langbot_call *c)
{
    lane_leave(exec_of(c));
}

static const struct langbot_call_type exec_type = {.size = sizeof(struct langbot_exec),
                                                   .moves = langbot_acquire_moves,
                                                   .cancel = exec_cancel,
                                                   .ended = exec_ended,
                                                   .done = exec_done};

const struct langbot_action langbot_exec_actions[] = {
    {"box_exec", LANGBOT_SANDBOX, LANGBOT_SPEC, exec_action, &exec_type},
    {0},
};
