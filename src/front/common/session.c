/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions and managed processes for a client of any front: reads the request, asks the policy,
 * finds, makes and deletes them, records that; and writes what all fronts answer about them. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "front/common/front.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/outputs.h"
#include "policy/policy.h"
#include "session/ports.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/profile.h"
#include "spec/spec.h"

#define HOST_IMAGE "host" /* of a request that names none; it works everywhere */
#define STARTING 4        /* members of a request for more than a session */

static uint64_t given_fields(const struct json *object)
{
    uint64_t given = 0;
    for (size_t i = 0; i < spec_model.n_fields; i++)
        if (json_get(object, spec_model.fields[i].name) != NULL)
            given |= FIELD_BIT(i);
    if (json_get(object, SPEC_ALLOW_HOSTS_NAME) != NULL)
        given |= FIELD_BIT(SPEC_ALLOW_HOSTS);
    return given;
}

/* Without the policy: a spec from the members that were given; `given` is the set of them. Ids
 * follow the grammar; without one (`id_required` false) a random one is made. */
static int read_spec(const struct front_want *want, struct spec **ret, uint64_t *ret_given,
                     struct err *err)
{
    const struct json *object = want->object;
    const bool id_required = want->id_required;
    struct report report = {0};
    const struct json *id = json_get(object, "session_id");
    AUTO(spec) struct spec *spec = spec_new();
    static const char *const ours[] = {"start",   "restart", "remove",      "ports",
                                       "profile", "durable", "best_effort", SPEC_ALLOW_HOSTS_NAME,
                                       NULL};
    const struct json *profile = json_get(object, "profile"),
                      *durable = json_get(object, "durable"),
                      *effort = json_get(object, "best_effort");
    int r = front_strict(&spec_model, object, want->starts ? ours : ours + STARTING, err);
    if (r == 0 && profile != NULL && json_type(profile) != JSON_STRING)
        r = err_set(err, ERR_INVALID, "profile must be a string");
    if (r == 0 && durable != NULL && json_type(durable) != JSON_BOOL)
        r = err_set(err, ERR_INVALID, "durable must be true or false");
    if (r == 0 && json_bool(durable) && json_str(id) == NULL)
        r = err_set(err, ERR_INVALID, "a durable session needs a session_id to come back to");
    if (r == 0 && effort != NULL && json_type(effort) != JSON_BOOL)
        r = err_set(err, ERR_INVALID, "best_effort must be true or false");
    if (r == 0 && json_str(id) != NULL)
        r = spec_check_id(json_str(id), err);
    if (r < 0)
        return r;
    *ret_given = given_fields(object);
    bool has_id = (*ret_given & FIELD_BIT(SPEC_SESSION_ID)) != 0;
    if (!has_id && !id_required) {
        char random[17];
        id_random(random);
        spec->session_id = xasprintf("tmp-%s", random);
    }
    if (!(*ret_given & FIELD_BIT(SPEC_IMAGE))) {
        free(spec->image);
        spec->image = xstrdup(HOST_IMAGE);
    }
    uint64_t fixed = !has_id && !id_required ? FIELD_BIT(SPEC_SESSION_ID) : 0;
    if (model_parse(&spec_model, object, fixed, spec, &report) < 0)
        return report_fail_plain(&report, err);
    *ret = TAKE_PTR(spec);
    return 0;
}

/* The policy makes one path of many spellings; here a path means what it says. Slashes at the end
 * are forgiven. */
static int check_spelling(const char *path, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(path);

    for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    if (path_is_clean_absolute(copy))
        return 0;
    return err_set(err, ERR_INVALID, "host_path %.200s must be absolute, without '.', '..' or '//'",
                   path);
}

static int check_spellings(const struct spec *s, struct err *err)
{
    int r = s->host_path != NULL ? check_spelling(s->host_path, err) : 0;

    for (size_t i = 0; r == 0 && i < s->n_extra_mounts; i++)
        r = check_spelling(s->extra_mounts[i].host_path, err);
    return r;
}

/* Only fields that the caller itself gave: a default is never a reason to refuse a session. */
static void require_given(struct spec *spec, uint64_t given, const struct front_want *want)
{
    spec->own.best_effort = json_bool(json_get(want->object, "best_effort"));
    if (spec->own.best_effort)
        return;
    spec->own.image_named = (given & FIELD_BIT(SPEC_IMAGE)) != 0;
    for (size_t i = 0; i < BACKEND_ASKED && want->exact; i++)
        spec->own.required |= given & FIELD_BIT(backend_asked[i]);
}

static int add_host(const struct front *f, const struct authz_scope *scope, const char *text,
                    struct spec *spec, struct err *err)
{
    char service[SPEC_HOST_TEXT_MAX];
    struct host_service at, other;

    if (text == NULL || !host_service_parse(text, &at))
        return err_set(err, ERR_INVALID,
                       SPEC_ALLOW_HOSTS_NAME
                       ": '%.64s' must be ADDRESS:PORT[:INSIDE_PORT] with a numeric address, such "
                       "as 127.0.0.1:5432 or [::1]:5432:15432",
                       text != NULL ? text : "");
    for (char **o = spec->own.allow_hosts; o != NULL && *o != NULL; o++)
        if (host_service_parse(*o, &other) && other.inside == at.inside)
            return err_set(err, ERR_INVALID,
                           SPEC_ALLOW_HOSTS_NAME
                           ": port %u of the session leads to %s already; choose another with "
                           "ADDRESS:PORT:INSIDE_PORT",
                           at.inside, *o);
    host_service_write(&at, false, service);
    int r = authz_check_host(scope, service, err);
    if (r == 0)
        r = manager_may_allow(f->manager, &at, err);
    if (r < 0)
        return r;
    host_service_write(&at, true, service);
    strv_add(&spec->own.allow_hosts, service);
    return 0;
}

/* A profile that locks the network off means services of the host, too. */
static bool locks_hosts(const struct profile *p)
{
    return (p->locked & FIELD_BIT(SPEC_ALLOW_HOSTS)) != 0 ||
           (profile_locks(p, SPEC_NETWORK) && p->network == NETWORK_OFF);
}

/* Services of the host that the session may reach. */
static int read_hosts(const struct front *f, const struct authz_scope *scope,
                      const struct json *list, const struct profile *profile, struct spec *spec,
                      struct err *err)
{
    int r = 0;

    if (list != NULL && (json_type(list) != JSON_ARRAY || json_len(list) > SPEC_HOSTS_MAX))
        return err_set(err, ERR_INVALID,
                       SPEC_ALLOW_HOSTS_NAME " must be a list of at most %d texts", SPEC_HOSTS_MAX);
    if (json_len(list) > 0 && locks_hosts(profile))
        return err_set(err, ERR_DENIED,
                       "the profile '%.64s' lets no session reach services of the host; choose "
                       "another profile, or leave " SPEC_ALLOW_HOSTS_NAME " out",
                       profile->name);
    for (size_t i = 0; r == 0 && i < json_len(list); i++)
        r = add_host(f, scope, json_str(json_at(list, i)), spec, err);
    return r;
}

/* What was asked for, as it will be. `given` are the fields in which a session of that name has to
 * be the same. */
struct wish {
    struct spec *spec; /* owned */
    uint64_t given;
    struct policy_decision decision;
};

static int read_wish(const struct front *f, const struct authz_scope *scope,
                     const struct front_want *want, struct wish *ret, struct err *err)
{
    const struct json *object = want->object;
    AUTO(spec) struct spec *plain = NULL;
    struct policy_request request = {
        .profile = json_str(json_get(object, "profile")), .scope = scope, .image = HOST_IMAGE};
    uint64_t given = 0;

    /* First as a request to this API, which forgives less; then as the policy makes it. */
    int r = read_spec(want, &plain, &given, err);
    if (r < 0)
        return r;
    assert(plain != NULL);
    r = check_spellings(plain, err);
    request.session_id = plain->session_id;
    if (r == 0)
        r = policy_payload_spec(f->service->policy, &request, object, &ret->spec, &ret->decision,
                                err);
    if (r == 0)
        ret->given = given | ret->decision.profile->locked |
                     (locks_hosts(ret->decision.profile) ? FIELD_BIT(SPEC_ALLOW_HOSTS) : 0);
    if (r == 0)
        ret->spec->own.durable = json_bool(json_get(object, "durable"));
    if (r == 0)
        r = read_hosts(f, scope, json_get(object, SPEC_ALLOW_HOSTS_NAME), ret->decision.profile,
                       ret->spec, err);
    /* An image that is named here was typed by a person. LangBot's clients send their default with
     * every request, whatever serves them: there image_policy decides. */
    if (r == 0)
        require_given(ret->spec, given & ~ret->decision.profile->locked, want);
    return r;
}

/* A client that waits for its session, or for a process there. */
struct front_waiting {
    const struct front *front;
    const char *via;
    char *who, *session;             /* owned */
    struct policy_decision decision; /* about the session */
    bool made;                       /* there was no session of that name */
    session_ready_fn *ready;
    process_started_fn *started;
    void *arg;
};

static struct front_waiting *waiting_new(const struct front *f, const struct front_asker *asker,
                                         const char *session, void *arg)
{
    struct front_waiting *g = xnew(struct front_waiting);

    g->front = f;
    g->via = front_via(asker);
    g->who = xstrdup(asker->who);
    g->session = xstrdup(session);
    g->arg = arg;
    return g;
}

static void waiting_free(struct front_waiting *g)
{
    if (g == NULL)
        return;
    free(g->who);
    free(g->session);
    free(g);
}

/* For records; owned, NULL: it may reach no service of the host. */
static char *hosts_text(const struct spec *spec)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(SPEC_HOSTS_MAX * SPEC_HOST_TEXT_MAX + 16U);

    for (char *const *h = spec->own.allow_hosts; h != NULL && *h != NULL; h++)
        (void)buf_printf(&text, "%s%s", text.len > 0 ? ", " : "may reach ", *h);
    return text.len > 0 ? xstrdup(buf_str(&text)) : NULL;
}

static void on_session_ready(void *arg, struct session *s, const struct err *err)
{
    struct front_waiting *g = arg;
    const struct policy_service *service = g->front->service;
    struct audit_record record = {.event = AUDIT_SESSION_CREATE,
                                  .who = g->who,
                                  .via = g->via,
                                  .session = g->session,
                                  .decision = &g->decision};

    if (s == NULL) {
        policy_service_failed(service, err, NULL, &record);
    } else if (g->made && service->audit != NULL) {
        AUTO_FREE char *hosts = hosts_text(session_spec(s));
        record.outcome = "ready";
        record.reason = hosts;
        (void)audit_write(service->audit, &record, NULL); /* it is there; losses are counted */
    }
    g->ready(g->arg, s, err);
    waiting_free(g);
}

/* Whether anything may begin now, and can be recorded. */
static int check_service(const struct policy_service *service, struct err *err)
{
    int r = policy_service_guard(service, err);

    return r == 0 && service->audit != NULL ? audit_ready(service->audit, err) : r;
}

static void record_refusal(const struct front *f, const struct front_asker *asker, const char *id,
                           const struct err *err)
{
    struct audit_record record = {
        .event = AUDIT_DENIED, .who = asker->who, .via = front_via(asker), .session = id};

    policy_service_failed(f->service, err, NULL, &record);
}

int front_session_get(const struct front *f, const struct front_asker *asker,
                      const struct front_want *want, session_ready_fn *ready, void *arg,
                      struct err *err)
{
    struct wish wish = {0};
    struct front_waiting *g = NULL;
    int r = authz_check_tool(asker->scope, asker->tool != NULL ? asker->tool : "session", err);

    if (r == 0)
        r = check_service(f->service, err);
    if (r == 0)
        r = read_wish(f, asker->scope, want, &wish, err);
    if (r == 0) {
        g = waiting_new(f, asker, wish.spec->session_id, arg);
        g->made = manager_find(f->manager, g->session) == NULL;
        g->decision = wish.decision;
        g->ready = ready;
        /* A session that exists gets no other mounts, and is not used as if it had them. */
        unsigned mounts = wish.given & FIELD_BIT(SPEC_EXTRA_MOUNTS) ? ACQUIRE_KEEP_MOUNTS : 0;
        r = manager_acquire(f->manager, &wish.spec, wish.given, mounts, on_session_ready, g, err);
    }
    spec_free(wish.spec);
    if (r < 0) {
        record_refusal(f, asker, json_str(json_get(want->object, "session_id")), err);
        waiting_free(g);
        return r;
    }
    return 0;
}

int front_session_find(const struct front *f, const struct front_asker *asker, const char *id,
                       struct session **ret, struct err *err)
{
    bool may = id != NULL && authz_check_session(asker->scope, id, err) == 0;
    struct session *s = may ? manager_find(f->manager, id) : NULL;

    if (id != NULL && !may)
        record_refusal(f, asker, id, err);
    if (s != NULL && session_state(s) == SESSION_PAUSED)
        return session_refuse_paused(s, err);
    if (s == NULL || (session_sandbox(s) == NULL && !session_dormant(s)))
        return err_missing(err, ERR_THING_SESSION, "session %.80s not found",
                           id != NULL ? id : "(none given)");
    int r = policy_check_use(f->service->policy, asker->scope, session_spec(s), err);
    if (r < 0) {
        record_refusal(f, asker, id, err);
        return r;
    }
    *ret = s;
    return 0;
}

int front_session_delete(const struct front *f, const struct front_asker *asker, const char *id,
                         session_gone_fn *gone, void *arg, struct err *err)
{
    const struct policy_service *service = f->service;
    const struct audit_record record = {
        .event = AUDIT_SESSION_DELETE, .who = asker->who, .via = front_via(asker), .session = id};
    int r = manager_delete(f->manager, id, gone, arg, err);

    if (r < 0)
        return r;
    if (service->audit != NULL)
        (void)audit_write(service->audit, &record, NULL); /* it goes; losses are counted */
    if (service->outputs != NULL)
        outputs_forget(service->outputs, id);
    return 0;
}

static void on_discarded(void *arg, const struct err *err)
{
    AUTO_FREE char *id = arg;

    if (err != NULL)
        log_warn(id, "remove the session of a client that has gone: %s; ignoring", err->msg);
}

void front_session_discard(const struct front *f, struct session *s)
{
    char *copy = xstrdup(session_id(s));

    if (manager_delete_this(f->manager, s, on_discarded, copy, NULL) < 0)
        free(copy); /* it is gone already */
}

void front_write_unenforced(struct jw *w, const struct session *s)
{
    const struct sandbox *sb = session_sandbox(s);
    jw_karray(w, "unenforced");
    for (size_t i = 0; i < BACKEND_ASKED && sb != NULL; i++) {
        const char *why = backend_unenforced(sb->backend, session_spec(s), backend_asked[i]);
        if (why == NULL)
            continue;
        jw_object(w);
        jw_kstr(w, "field", spec_model.fields[backend_asked[i]].name);
        jw_kstr(w, "reason", why);
        jw_object_end(w);
    }
    jw_array_end(w);
}

void front_write_settings(struct jw *w, const struct spec *spec)
{
    jw_kstr(w, "image", spec->image);
    jw_kstr(w, "network", network_names[spec->network]);
    jw_kstr(w, "host_path", spec->host_path);
    jw_kstr(w, "host_path_mode", mount_mode_names[spec->host_path_mode]);
    jw_kstr(w, "mount_path", spec->mount_path);
    jw_kbool(w, "persistent", spec->persistent);
    jw_kreal(w, "cpus", spec->cpus);
    jw_kint(w, "memory_mb", spec->memory_mb);
    jw_kint(w, "pids_limit", spec->pids_limit);
    jw_kbool(w, "read_only_rootfs", spec->read_only_rootfs);
    jw_kint(w, "workspace_quota_mb", spec->workspace_quota_mb);
}

/* Managed processes --------------------------------------------------------------------------- */

void front_write_process(struct jw *w, const struct process *p, const char *session_id)
{
    const struct process_spec *spec = process_spec_of(p);

    jw_kstr(w, "session_id", session_id);
    jw_kstr(w, "process_id", spec->process_id);
    jw_kstr(w, "status", process_running(p) ? "running" : "exited");
    jw_kstr(w, "command", spec->command);
    jw_karray(w, "args");
    for (char **arg = spec->args; arg != NULL && *arg != NULL; arg++)
        jw_str(w, *arg);
    jw_array_end(w);
}

void front_write_processes(struct jw *w, struct session *s,
                           void (*write)(struct jw *w, struct process *p))
{
    jw_karray(w, "processes");
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p)) {
        jw_object(w);
        write(w, p);
        jw_object_end(w);
    }
    jw_array_end(w);
}

void front_write_stderr(struct jw *w, struct process *p)
{
    AUTO_DONE(buf) struct buf preview = BUF_INIT(PROCESS_STDERR_CHARS * 4U + 1U);

    process_stderr_preview(p, &preview);
    jw_kstr(w, "stderr_preview", buf_str(&preview));
}

static void record_process_failure(const struct front_waiting *st, const struct err *err)
{
    struct audit_record record = {
        .event = AUDIT_PROCESS_END, .who = st->who, .via = st->via, .session = st->session};

    policy_service_failed(st->front->service, err, NULL, &record);
}

static void on_process_started(void *arg, struct process *p, const struct err *err)
{
    struct front_waiting *st = arg;

    assert((p != NULL) != (err != NULL));
    if (p == NULL)
        record_process_failure(st, err);
    else
        quota_guard(st->front->service, process_session(p));
    st->started(st->arg, p, err);
    waiting_free(st);
}

/* Before the start: a process that must be recorded and cannot be does not start. */
static int record_start(const struct front_waiting *st, const struct process_spec *spec,
                        struct err *err)
{
    const struct policy_service *service = st->front->service;
    AUTO_FREE char *args = policy_command_text(spec->args, NULL);
    AUTO_FREE char *command = xasprintf("%s %s", spec->command, args);
    const struct audit_record record = {.event = AUDIT_PROCESS_START,
                                        .who = st->who,
                                        .via = st->via,
                                        .session = st->session,
                                        .process = spec->process_id,
                                        .command = command,
                                        .command_len = strlen(command)};
    int r = check_service(service, err);

    return r == 0 && service->audit != NULL ? audit_write(service->audit, &record, err) : r;
}

int front_process_start(const struct front *f, const struct front_asker *asker,
                        const struct front_process *want, process_started_fn *started, void *arg,
                        struct err *err)
{
    AUTO(process_spec) struct process_spec *spec = NULL;
    int r = front_strict(&process_request_model, want->object, NULL, err);

    if (r == 0)
        r = process_spec_parse(want->object, &spec, err);
    if (r < 0)
        return r;
    assert(spec != NULL);
    if (want->is_start) {
        free(spec->process_id);
        spec->process_id = xstrdup(PROCESS_START_ID);
        spec->log = true;
    }
    struct front_waiting *st = waiting_new(f, asker, session_id(want->session), arg);
    st->started = started;
    /* The process counts to the share of the caller's token. */
    spec->owner = asker->scope != NULL ? xstrdup(authz_share(asker->scope)) : NULL;
    r = record_start(st, spec, err);
    if (r == 0) {
        r = process_start(want->session, &spec, on_process_started, st, err);
        if (r == 0)
            return 0;
        record_process_failure(st, err);
    }
    waiting_free(st);
    return r;
}

/* What runs inside --------------------------------------------------------------------------- */

/* NULL: it was forgotten meanwhile. */
static const char *process_of_number(struct session *s, const char *label)
{
    uint64_t number = 0;

    (void)str_to_u64(label, &number);
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        if (process_number(p) == number)
            return process_spec_of(p)->process_id;
    return NULL;
}

/* Of no command or process that runs, as far as is known. */
static bool is_background(const struct backend_process *p)
{
    return p->owner == BACKEND_OWNER_NONE || (p->owner == BACKEND_OWNER_EXEC && p->left);
}

static void write_running(struct jw *w, struct session *s, const struct backend_process *p)
{
    const bool exec = p->owner == BACKEND_OWNER_EXEC, proc = p->owner == BACKEND_OWNER_PROC;

    jw_object(w);
    jw_kint(w, "pid", p->pid);
    jw_kint(w, "parent_pid", p->parent);
    jw_kstrn(w, "state", &p->state, 1);
    jw_kstr(w, "exec_id", exec && p->label[0] != '\0' ? p->label : NULL);
    jw_kstr(w, "process_id", proc ? process_of_number(s, p->label) : NULL);
    jw_kbool(w, "background", is_background(p));
    jw_ku64(w, "user_ms", p->user_ns / NSEC_PER_MSEC);
    jw_ku64(w, "system_ms", p->system_ns / NSEC_PER_MSEC);
    jw_ku64(w, "age_ms", p->age_ns / NSEC_PER_MSEC);
    jw_ku64(w, "memory_bytes", p->memory_bytes);
    jw_kstr(w, "command", p->command);
    jw_object_end(w);
}

void front_write_top(struct jw *w, const struct front_top *top)
{
    jw_karray(w, "processes");
    for (size_t i = 0; i < top->n; i++) {
        const struct backend_process *p = &top->rows[i];
        if (top->left && !is_background(p))
            continue;
        write_running(w, top->session, p);
    }
    jw_array_end(w);
    jw_kbool(w, "truncated", top->more);
}

/* NULL: err says why there is none to ask. */
static struct sandbox *running_sandbox(const struct session *s, struct err *err)
{
    if (session_state(s) == SESSION_READY && session_sandbox(s) != NULL)
        return session_sandbox(s);
    if (session_state(s) == SESSION_PAUSED)
        (void)session_refuse_paused(s, err);
    else
        (void)err_set(err, ERR_STATE, "nothing runs in session %.80s: it is %s%s", session_id(s),
                      session_state_name(session_state(s)),
                      session_dormant(s) ? "; start it with `box start`" : "");
    return NULL;
}

int front_ask_top(struct session *s, backend_top_fn *done, void *arg, struct err *err)
{
    struct sandbox *sb = running_sandbox(s, err);

    return sb == NULL ? err_code_errno(err->code) : sb->backend->ops->top(sb, done, arg, err);
}

int front_end_left(struct session *s, const char *exec_id, backend_done_fn *done, void *arg,
                   struct err *err)
{
    struct sandbox *sb = running_sandbox(s, err);

    if (sb == NULL)
        return err_code_errno(err->code);
    return sb->backend->ops->end_left(sb, exec_id, done, arg, err);
}
