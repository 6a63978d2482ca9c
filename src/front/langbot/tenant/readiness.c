/* SPDX-License-Identifier: Apache-2.0 */

/* The readiness probe as a state machine, and the report that it fills. */

#include "front/langbot/tenant/readiness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "front/langbot/tenant/admission.h"
#include "front/langbot/tenant/boxconf.h"
#include "http/codec/crypto.h"
#include "jobs/jobs.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/run.h"
#include "spec/admission.h"
#include "spec/spec.h"

#define PROBE_TIMEOUT_NS (10 * NSEC_PER_SEC)
#define MARKER_PREFIX ".langbot-box-volume-probe-" /* as of a host that checks what is shared */
#define PROBE_TEXT "readiness"

struct readiness_waiter {
    STAILQ_ENTRY(readiness_waiter) entry;
    readiness_fn *done;
    void *arg;
};

/*   IDLE ──► BACKEND ──► DOCTOR ──► CREATE ──► WRITE ──► LOOK ──► WIPE ──► DELETE ──► IDLE
 *
 * Each step that fails goes on to the one that undoes what was done. */
enum probe_state {
    PROBE_IDLE,
    PROBE_BACKEND, /* whether there is one */
    PROBE_DOCTOR,  /* the backend says what it enforces */
    PROBE_CREATE,
    PROBE_WRITE, /* the sandbox leaves a file in the workspace */
    PROBE_LOOK,  /* the host looks at it */
    PROBE_WIPE,
    PROBE_DELETE,
    PROBE_STATE_MAX,
};

#define TO(s) (1U << PROBE_##s)
static const unsigned probe_moves[PROBE_STATE_MAX] = {
    [PROBE_IDLE] = TO(BACKEND) | TO(DOCTOR),
    [PROBE_BACKEND] = TO(DOCTOR) | TO(IDLE),
    [PROBE_DOCTOR] = TO(CREATE) | TO(IDLE),
    [PROBE_CREATE] = TO(WRITE) | TO(DELETE) | TO(IDLE),
    [PROBE_WRITE] = TO(LOOK) | TO(WIPE) | TO(DELETE),
    [PROBE_LOOK] = TO(WIPE) | TO(DELETE),
    [PROBE_WIPE] = TO(DELETE),
    [PROBE_DELETE] = TO(IDLE),
};

struct readiness {
    struct readiness_options o;
    struct readiness_report report;
    enum probe_state state;
    bool known;  /* the report counts until... */
    bool proven; /* the last probe has shown isolation */
    bool again;  /* what was asked changed while it was being found out */
    uint64_t until;
    STAILQ_HEAD(, readiness_waiter) waiters; /* owned */
    struct loop_defer defer;
    struct session *session; /* held */
    struct run *run;         /* owned */
    char *root;              /* owned; the workspace */
    char id[48], marker[64];
};

enum row_flags {
    ROW_DETAIL = 1,        /* reported as a detail of the backend */
    ROW_STORAGE = 2 | 1,   /* and may be declared good enough without being enforced */
    ROW_ISOLATION = 4 | 1, /* and is what the required backend is required for */
};

static const struct {
    const char *name;
    unsigned flags;
    const char *newer_name; /* what later clients look for as well; NULL: the same */
} rows[READY_CHECK_MAX] = {
    [READY_CONFIGURATION] = {"configuration", 0},
    [READY_REQUIRED_BACKEND] = {"required_backend", 0},
    [READY_WORKSPACE_MOUNT] = {"workspace_mount", 0},
    [READY_BACKEND_AVAILABLE] = {"backend_available", 0},
    [READY_CGROUP_V2] = {"cgroup_v2", ROW_ISOLATION},
    [READY_NAMESPACE_ISOLATION] = {"namespace_isolation", ROW_ISOLATION},
    [READY_MOUNT_ISOLATION] = {"mount_isolation", ROW_ISOLATION},
    [READY_NETWORK_ISOLATION] = {"network_isolation", ROW_ISOLATION},
    [READY_HARD_WORKSPACE_QUOTA] = {"hard_workspace_quota", ROW_STORAGE},
    [READY_HARD_SKILL_STORAGE_QUOTA] = {"hard_skill_storage_quota", ROW_STORAGE,
                                        "hard_read_only_mount_quota"},
    [READY_BOUNDED_EPHEMERAL_STORAGE] = {"bounded_ephemeral_storage", ROW_STORAGE},
    [READY_INODE_QUOTA] = {"inode_quota", ROW_STORAGE},
    [READY_SESSION_CAP] = {"session_cap", 0},
    [READY_MANAGED_PROCESS_CAP] = {"managed_process_cap", 0},
};

static void probe_begin(struct readiness *r);

static void probe_move(struct readiness *r, enum probe_state to)
{
    STATE_MOVE(r->state, probe_moves, to);
}

struct readiness *readiness_new(const struct readiness_options *options)
{
    struct readiness *r = xnew(struct readiness);
    r->o = *options;
    STAILQ_INIT(&r->waiters);
    return r;
}

static void drop_probe(struct readiness *r)
{
    run_free(TAKE_PTR(r->run));
    if (r->session != NULL)
        session_release(TAKE_PTR(r->session));
}

void readiness_free(struct readiness *r)
{
    if (r == NULL)
        return;
    loop_defer_stop(&r->defer);
    drop_probe(r);
    free(r->root);
    while (!STAILQ_EMPTY(&r->waiters)) {
        struct readiness_waiter *w = STAILQ_FIRST(&r->waiters);
        STAILQ_REMOVE_HEAD(&r->waiters, entry);
        free(w);
    }
    free(r);
}

void readiness_clear(struct readiness *r)
{
    r->known = false;
    r->again = r->state != PROBE_IDLE;
}

/* The answer. */

/* Whether what was found is what READINESS_BACKEND stands for. */
static bool isolates(const struct readiness_report *report)
{
    for (int i = 0; i < READY_CHECK_MAX; i++)
        if ((rows[i].flags & ROW_ISOLATION) == ROW_ISOLATION && !report->found[i])
            return false;
    return true;
}

const char *readiness_backend(const struct readiness *r)
{
    const char *name = r->o.backend(r->o.backend_arg);
    bool own = str_eq(name, manager_backend(r->o.manager)->ops->name);
    return own && r->proven ? READINESS_BACKEND : name;
}

static void judge_report(struct readiness *r)
{
    struct readiness_report *p = &r->report;
    r->proven = p->enforced && isolates(p);
    p->backend = readiness_backend(r);
    p->found[READY_REQUIRED_BACKEND] = p->enforced && str_eq(p->backend, READINESS_BACKEND);
    p->ready = true;
    for (int i = 0; i < READY_CHECK_MAX; i++) {
        bool storage = (rows[i].flags & ROW_STORAGE) == ROW_STORAGE;
        p->checks[i] = p->found[i] || (storage && p->unsafe_storage);
        if (p->enforced || i == READY_BACKEND_AVAILABLE)
            p->ready &= p->checks[i];
    }
}

/* A caller that asks in a callback waits for the next answer. */
static void answer_waiters(struct loop_defer *d)
{
    struct readiness *r = container_of(d, struct readiness, defer);
    struct readiness_report report = r->report;
    STAILQ_HEAD(, readiness_waiter) waiters = STAILQ_HEAD_INITIALIZER(waiters);
    STAILQ_CONCAT(&waiters, &r->waiters);
    while (!STAILQ_EMPTY(&waiters)) {
        AUTO_FREE struct readiness_waiter *w = STAILQ_FIRST(&waiters);
        STAILQ_REMOVE_HEAD(&waiters, entry);
        w->done(w->arg, &report);
    }
}

static void probe_finish(struct readiness *r)
{
    drop_probe(r);
    if (r->state != PROBE_IDLE)
        probe_move(r, PROBE_IDLE);
    judge_report(r);
    if (r->again) { /* the question has changed: waiters want the new answer */
        r->again = false;
        probe_begin(r);
        return;
    }
    r->known = r->report.enforced;
    r->until = loop_now(manager_loop(r->o.manager)) +
               (uint64_t)admission_rules(r->o.admission)->readiness_cache_sec * NSEC_PER_SEC;
    loop_defer_start(manager_loop(r->o.manager), &r->defer, answer_waiters);
}

static void note_error(struct readiness *r, const char *text)
{
    if (r->report.error[0] == '\0')
        (void)snprintf(r->report.error, sizeof(r->report.error), "%s", text);
}

/* A sandbox that shows what it can. */

static void on_probe_gone(void *arg, const struct err *err)
{
    struct readiness *r = arg;
    if (err != NULL)
        log_warn(r->id, "end the readiness probe: %s; ignoring", err->msg);
    probe_finish(r);
}

static void end_probe(struct readiness *r)
{
    struct err err = {0};
    probe_move(r, PROBE_DELETE);
    if (manager_delete(r->o.manager, r->id, on_probe_gone, r, &err) < 0)
        probe_finish(r);
}

static bool shows_other_network(const struct run_result *result)
{
    char own[64] = "";
    const char *text = buf_str(&result->kept[EXEC_STDOUT]);
    size_t len = result->kept[EXEC_STDOUT].len;
    if (readlink("/proc/self/ns/net", own, sizeof(own) - 1) < 0)
        return false;
    str_trim(&text, &len);
    return len > 0 && str_starts(text, "net:[") && strncmp(text, own, strlen(own)) != 0;
}

/* A command of ours in the probe. False: it could not even be started. */
static bool run_probe(struct readiness *r, const char *cmd, const struct run_events *events)
{
    const struct run_options options = {
        .exec = {.cmd = cmd, .cwd = SPEC_DEFAULT_MOUNT, .timeout_ns = PROBE_TIMEOUT_NS},
        .capture = 4096};
    struct err err = {0};
    run_free(TAKE_PTR(r->run));
    if (run_start(r->session, &options, events, r, &r->run, &err) == 0)
        return true;
    note_error(r, err.msg);
    return false;
}

static void on_wiped(void *arg, const struct run_result *result)
{
    struct readiness *r = arg;
    if (result->outcome.kind != OUTCOME_EXITED || result->outcome.exit_code != 0)
        log_warn(r->id, "%s is left in the workspace; ignoring", r->marker);
    end_probe(r);
}

static void wipe_marker(struct readiness *r)
{
    static const struct run_events events = {.finished = on_wiped};
    char cmd[128];
    (void)str_fmt(cmd, sizeof(cmd), "rm -f %s", r->marker);
    if (!run_probe(r, cmd, &events)) {
        end_probe(r);
        return;
    }
    probe_move(r, PROBE_WIPE);
}

static void on_looked(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct readiness *r = arg;
    char sha256[65] = "", text[sizeof(r->report.error)];
    (void)http_sha256_hex(PROBE_TEXT, strlen(PROBE_TEXT), sha256);
    r->report.found[READY_MOUNT_ISOLATION] = str_eq(json_str(json_get(data, "sha256")), sha256);
    if (data == NULL) {
        (void)snprintf(text, sizeof(text), "%s: %s", failure->class, failure->text);
        note_error(r, text);
    }
    wipe_marker(r);
}

static void on_written(void *arg, const struct run_result *result)
{
    struct readiness *r = arg;
    struct err err = {0};
    bool ran = result->outcome.kind == OUTCOME_EXITED && result->outcome.exit_code == 0;
    r->report.found[READY_NAMESPACE_ISOLATION] = ran;
    r->report.found[READY_NETWORK_ISOLATION] = ran && shows_other_network(result);
    if (!ran)
        note_error(r, "the readiness probe did not run to its end");
    if (!ran || r->o.skills == NULL ||
        hostdir_verify_marker(r->o.skills, r->root, r->marker, on_looked, r, &err) < 0)
        wipe_marker(r);
    else
        probe_move(r, PROBE_LOOK);
}

static void on_probe_ready(void *arg, struct session *s, const struct err *err)
{
    static const struct run_events events = {.finished = on_written};
    struct readiness *r = arg;
    char cmd[160];
    if (s == NULL) {
        note_error(r, err->msg);
        probe_finish(r);
        return;
    }
    r->session = s;
    (void)str_fmt(cmd, sizeof(cmd), "printf " PROBE_TEXT " > %s && readlink /proc/self/ns/net",
                  r->marker);
    if (run_probe(r, cmd, &events))
        probe_move(r, PROBE_WRITE);
    else
        end_probe(r);
}

static void start_probe(struct readiness *r, const char *root)
{
    AUTO(spec) struct spec *spec = spec_new();
    struct err err = {0};
    char one[17], two[17];
    probe_move(r, PROBE_CREATE);
    id_random(one);
    id_random(two);
    (void)str_fmt(r->id, sizeof(r->id), "readiness-%s", one);
    (void)str_fmt(r->marker, sizeof(r->marker), MARKER_PREFIX "%s%s", one, two);
    free(r->root);
    r->root = xstrdup(root);
    spec->session_id = xstrdup(r->id);
    spec->host_path = xstrdup(root);
    if (manager_acquire(r->o.manager, &spec, 0, 0, on_probe_ready, r, &err) < 0) {
        note_error(r, err.msg);
        probe_finish(r);
    }
}

static bool doctor_says(const struct json *doctor, const char *id)
{
    const struct json *checks = json_get(doctor, "checks");
    for (size_t i = 0; i < json_len(checks); i++)
        if (str_eq(json_str(json_get(json_at(checks, i), "id")), id))
            return str_eq(json_str(json_get(json_at(checks, i), "status")), "ok");
    return false;
}

static void on_doctor(void *arg, const char *json, size_t len, const struct err *err)
{
    struct readiness *r = arg;
    AUTO(json) struct json *doctor = NULL;
    struct err parse_err = {0};
    const char *root = NULL;
    if (err == NULL && json_parse(json, len, &doctor, &parse_err) < 0)
        err = &parse_err;
    if (err != NULL)
        note_error(r, err->msg);
    r->report.found[READY_CGROUP_V2] = doctor_says(doctor, "limit-cpu") &&
                                       doctor_says(doctor, "limit-memory") &&
                                       doctor_says(doctor, "limit-pids");
    if (err != NULL || box_paths_managed_place(r->o.paths, &root, &parse_err) < 0)
        probe_finish(r);
    else
        start_probe(r, root);
}

/* What can be said without trying. The workspace is a directory of the host, and so is the store of
 * skills: no quota of ours reaches there. Everything else a managed sandbox writes goes to memory
 * file systems of a fixed size, unless its root is writable. */
static void check_settings(struct readiness *r)
{
    const struct admission_policy *rules = admission_rules(r->o.admission);
    struct readiness_report *p = &r->report;
    struct err err = {0};
    struct stat st;
    const char *root = NULL, *wrong = admission_config_error(r->o.admission);
    *p = (struct readiness_report){.enforced = admission_enforced(r->o.admission),
                                   .unsafe_storage = r->o.unsafe_storage};
    p->found[READY_BACKEND_AVAILABLE] = r->o.backend(r->o.backend_arg) != NULL &&
                                        backend_available(manager_backend(r->o.manager), &err) == 0;
    if (err.code != ERR_NONE)
        note_error(r, err.msg);
    err = (struct err){0};
    if (!p->enforced)
        return;
    p->found[READY_CONFIGURATION] = wrong == NULL;
    if (box_paths_managed_place(r->o.paths, &root, &err) == 0 && stat(root, &st) == 0 &&
        !S_ISDIR(st.st_mode))
        (void)err_set(&err, ERR_STATE, "Managed sandbox workspace path is not a directory");
    p->found[READY_WORKSPACE_MOUNT] = err.code == ERR_NONE;
    p->found[READY_BOUNDED_EPHEMERAL_STORAGE] = rules->read_only_rootfs;
    p->found[READY_SESSION_CAP] = rules->max_sessions <= r->o.limits->max_sessions;
    p->found[READY_MANAGED_PROCESS_CAP] =
        rules->max_managed_processes <= r->o.limits->max_managed_processes;
    if (wrong != NULL)
        note_error(r, wrong);
    else if (err.code != ERR_NONE)
        note_error(r, err.msg);
}

static void start_doctor(struct readiness *r)
{
    struct backend *b = manager_backend(r->o.manager);
    struct err err = {0};
    check_settings(r);
    if (!r->report.enforced || !r->report.found[READY_BACKEND_AVAILABLE]) {
        probe_finish(r);
        return;
    }
    probe_move(r, PROBE_DOCTOR);
    if (b->ops->doctor(b, on_doctor, r, &err) < 0) {
        note_error(r, err.msg);
        probe_finish(r);
    }
}

static void on_backend(void *arg, const struct err *err)
{
    (void)err; /* check_settings() asks again whether there is one */
    start_doctor(arg);
}

/* Which backend there is comes first. */
static void probe_begin(struct readiness *r)
{
    struct backend *b = manager_backend(r->o.manager);
    if (b->ops->probe == NULL) {
        start_doctor(r);
        return;
    }
    probe_move(r, PROBE_BACKEND);
    b->ops->probe(b, on_backend, r);
}

void readiness_get(struct readiness *r, readiness_fn *fn, void *arg)
{
    struct readiness_waiter *w = xnew(struct readiness_waiter);
    w->done = fn;
    w->arg = arg;
    STAILQ_INSERT_TAIL(&r->waiters, w, entry);
    if (r->state != PROBE_IDLE)
        return;
    if (r->known && loop_now(manager_loop(r->o.manager)) < r->until)
        loop_defer_start(manager_loop(r->o.manager), &r->defer, answer_waiters);
    else
        probe_begin(r);
}

void readiness_failed(const struct readiness_report *report, bool newer, char *ret, size_t size)
{
    ret[0] = '\0';
    for (int i = 0; i < READY_CHECK_MAX; i++) {
        size_t used = strlen(ret);
        const char *name = newer && rows[i].newer_name != NULL ? rows[i].newer_name : rows[i].name;
        if (!report->checks[i] &&
            str_fmt(ret + used, size - used, "%s%s", used > 0 ? ", " : "", name) < 0)
            return;
    }
}

static void write_row(int row, bool value, struct jw *w)
{
    jw_kbool(w, rows[row].name, value);
    if (rows[row].newer_name != NULL)
        jw_kbool(w, rows[row].newer_name, value);
}

static void write_checks(const struct readiness_report *p, struct jw *w)
{
    jw_kobject(w, "checks");
    for (int i = 0; i < READY_CHECK_MAX; i++)
        if (p->enforced || i == READY_BACKEND_AVAILABLE)
            write_row(i, p->checks[i], w);
    jw_object_end(w);
}

void readiness_write(const struct readiness_report *report, struct jw *w)
{
    const struct readiness_report *p = report;
    jw_kbool(w, "ready", p->ready);
    jw_kstr(w, "mode", p->enforced ? "grant_enforced" : "standard");
    jw_kobject(w, "backend");
    jw_kstr(w, "name", p->backend);
    jw_kbool(w, "available", p->found[READY_BACKEND_AVAILABLE]);
    if (p->enforced) {
        jw_kobject(w, "details");
        jw_kbool(w, "available", p->found[READY_BACKEND_AVAILABLE]);
        for (int i = 0; i < READY_CHECK_MAX; i++)
            if (rows[i].flags & ROW_DETAIL)
                write_row(i, p->found[i], w);
        jw_object_end(w);
    }
    jw_object_end(w);
    write_checks(p, w);
    if (p->enforced)
        jw_kbool(w, "unsafe_soft_storage_limits", p->unsafe_storage);
    if (p->error[0] != '\0')
        jw_kstr(w, "error", p->error);
}
