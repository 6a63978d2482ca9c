/* SPDX-License-Identifier: Apache-2.0 */

/* Measures the storage of a workspace: its directory of the host, by a job, and the storage of its
 * sandboxes. Only the sandboxes can see the latter, so a command measures from inside, confined and
 * limited like every other; the session stays idle meanwhile. Roots add up to the whole; details
 * lie inside of a root. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/process.h"
#include "session/run.h"
#include "spec/spec.h"

#define AT_ONCE 4U
#define ONE_NS (10 * NSEC_PER_SEC)
#define ALL_NS (30 * NSEC_PER_SEC)
#define OUTPUT_MAX 4096U

/* A line for each place: its number, KiB and files, or "-" if it does not exist. Another mount of
 * the same file system below it counts: inside, the two look the same. */
static const char script[] =
    "look() {\n"
    "  [ -n \"$2\" ] && [ -d \"$2\" ] || { echo \"$1 -\"; return; }\n"
    "  kib=$(du -skx \"$2\" 2>/dev/null)\n"
    "  echo \"$1 ${kib%%[!0-9]*} $(find \"$2\" -xdev -type f 2>/dev/null | wc -l)\"\n"
    "}\n"
    "look 0 \"$BOX_USAGE_WORKSPACE\"; look 1 \"$HOME/.cache\"; look 2 /tmp\n";

enum usage_place {
    USAGE_WORKSPACE, /* not of sessions whose workspace is a directory of the host */
    USAGE_CACHE,     /* ~/.cache */
    USAGE_TEMP,      /* /tmp */
    USAGE_PLACE_MAX,
};

struct tenant_usage_amount {
    bool exists; /* anywhere */
    uint64_t bytes, files;
    uint64_t errors; /* in a directory of the host */
};

struct tenant_usage_report {
    size_t sessions, measured; /* those there are, and those that answered in time */
    size_t managed;            /* measured ones with processes and a workspace of their own */
    size_t processes;          /* managed ones, running or not */
    struct tenant_usage_amount at[USAGE_PLACE_MAX];
    struct tenant_usage_amount
        managed_workspaces; /* of those with processes, out of USAGE_WORKSPACE */
};

/* Once, from the loop; the report is borrowed for the call. */
typedef void tenant_usage_fn(void *arg, const struct tenant_usage_report *report);

struct probe {
    struct tenant_usage *usage;
    struct run *run;         /* owned; NULL: this one is free */
    struct session *session; /* held */
};

struct tenant_usage {
    struct manager *m;
    const char *command;
    tenant_usage_fn *done;
    void *arg;
    struct session **sessions; /* owned, each held; those from `next` on are still to come */
    size_t n, next;
    struct probe probes[AT_ONCE];
    size_t busy;
    struct tenant_usage_report report;
    struct loop_timer timer;
    struct loop_defer defer;
};

static bool has_own_workspace(const struct spec *spec)
{
    return spec->host_path == NULL || spec->host_path_mode == MOUNT_NONE;
}

static size_t count_processes(struct session *s)
{
    size_t n = 0;
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        n++;
    return n;
}

static void add_amount(struct tenant_usage_amount *to, const struct tenant_usage_amount *one)
{
    to->exists |= one->exists;
    to->bytes += one->bytes;
    to->files += one->files;
}

/* "1 104 7", written by a program in the session, which is not trusted. */
static void read_line(const char *line, size_t len,
                      struct tenant_usage_amount at[static USAGE_PLACE_MAX])
{
    char text[64], *save = NULL;
    uint64_t place, kib, files;
    if (len >= sizeof(text))
        return;
    memcpy(text, line, len);
    text[len] = '\0';
    const char *first = strtok_r(text, " ", &save), *second = strtok_r(NULL, " ", &save),
               *third = strtok_r(NULL, " ", &save);
    if (first == NULL || second == NULL || third == NULL || str_to_u64(first, &place) < 0 ||
        place >= USAGE_PLACE_MAX || str_to_u64(second, &kib) < 0 || kib > UINT32_MAX ||
        str_to_u64(third, &files) < 0 || files > UINT32_MAX)
        return;
    at[place] = (struct tenant_usage_amount){.exists = true, .bytes = kib * 1024, .files = files};
}

static void take_result(struct tenant_usage_report *r, struct session *s,
                        const struct run_result *result)
{
    struct tenant_usage_amount at[USAGE_PLACE_MAX] = {{0}};
    bool own = has_own_workspace(session_spec(s));
    if (result->outcome.kind != OUTCOME_EXITED || result->outcome.exit_code != 0)
        return;
    const char *text = buf_str(&result->kept[EXEC_STDOUT]);
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        read_line(text, (size_t)(end - text), at);
    if (!own)
        at[USAGE_WORKSPACE] = (struct tenant_usage_amount){0};
    r->measured++;
    for (int i = 0; i < USAGE_PLACE_MAX; i++)
        add_amount(&r->at[i], &at[i]);
    if (own && count_processes(s) > 0) {
        r->managed++;
        add_amount(&r->managed_workspaces, &at[USAGE_WORKSPACE]);
    }
}

static void tenant_usage_finish(struct loop_defer *d)
{
    struct tenant_usage *u = container_of(d, struct tenant_usage, defer);
    loop_timer_stop(&u->timer);
    u->done(u->arg, &u->report); /* may free us */
}

static void start_some(struct tenant_usage *u);

static void end_probe(struct probe *p)
{
    run_free(TAKE_PTR(p->run));
    session_release(TAKE_PTR(p->session));
    assert(p->usage->busy > 0);
    p->usage->busy--;
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct probe *p = arg;
    take_result(&p->usage->report, p->session, result);
    end_probe(p);
    start_some(p->usage);
}

/* False: it has nothing to tell. */
static bool start_probe(struct tenant_usage *u, struct session *s)
{
    static const struct run_events events = {.finished = on_finished};
    const struct spec *spec = session_spec(s);
    struct probe *p = u->probes;
    struct err err = {0};
    AUTO_FREE char *where =
        xasprintf("BOX_USAGE_WORKSPACE=%s", has_own_workspace(spec) ? spec->mount_path : "");
    char *env[] = {where, NULL};
    const struct run_options options = {
        .exec = {.cmd = u->command, .env = env, .cwd = "/", .timeout_ns = ONE_NS},
        .capture = OUTPUT_MAX,
        .quiet = true};
    while (p->run != NULL)
        p++;
    if (run_start(s, &options, &events, p, &p->run, &err) < 0) {
        log_debug(session_id(s), "measure its storage: %s; ignoring", err.msg);
        return false;
    }
    p->session = s;
    u->busy++;
    return true;
}

static void start_some(struct tenant_usage *u)
{
    while (u->busy < AT_ONCE && u->next < u->n) {
        struct session *s = u->sessions[u->next++];
        if (!start_probe(u, s))
            session_release(s);
    }
    if (u->busy == 0)
        loop_defer_start(manager_loop(u->m), &u->defer, tenant_usage_finish);
}

static void drop_rest(struct tenant_usage *u)
{
    while (u->next < u->n)
        session_release(u->sessions[u->next++]);
    for (size_t i = 0; i < AT_ONCE; i++) {
        if (u->probes[i].run == NULL)
            continue;
        run_kill(u->probes[i].run);
        end_probe(&u->probes[i]);
    }
}

static void on_late(struct loop_timer *t)
{
    struct tenant_usage *u = container_of(t, struct tenant_usage, timer);
    drop_rest(u);
    loop_defer_start(manager_loop(u->m), &u->defer, tenant_usage_finish);
}

/* Looks at every session whose name begins with `prefix`, a few at a time, for a bounded time, by
 * `command`, a literal. */
static struct tenant_usage *tenant_usage_new(struct manager *m, const char *prefix,
                                             const char *command, tenant_usage_fn *done, void *arg)
{
    struct tenant_usage *u = xnew(struct tenant_usage);
    u->m = m;
    u->command = command;
    u->done = done;
    u->arg = arg;
    u->sessions = xnew_n(struct session *, manager_count(m) + 1);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_sandbox(s) == NULL || !str_starts(session_id(s), prefix))
            continue;
        session_hold(s);
        u->sessions[u->n++] = s;
        u->report.processes += count_processes(s);
    }
    u->report.sessions = u->n;
    for (size_t i = 0; i < AT_ONCE; i++)
        u->probes[i].usage = u;
    loop_timer_start(manager_loop(m), &u->timer, ALL_NS, on_late);
    start_some(u);
    return u;
}

/* Ends what is under way, without a report. */
static void tenant_usage_free(struct tenant_usage *u)
{
    if (u == NULL)
        return;
    drop_rest(u);
    loop_timer_stop(&u->timer);
    loop_defer_stop(&u->defer);
    free(u->sessions);
    free(u);
}

/* The action. */

static const struct {
    const char *key, *name; /* in the directory of the workspace; "": itself */
} parts[] = {{"workspace", ""}, {"mcp", ".mcp"}, {"inbox", "inbox"}, {"outbox", "outbox"}};

static const struct {
    const char *key, *path;
} places[USAGE_PLACE_MAX] = {
    [USAGE_WORKSPACE] = {"session_workspaces", "/workspace"},
    [USAGE_CACHE] = {"session_caches", "~/.cache"},
    [USAGE_TEMP] = {"session_temp", "/tmp"},
};

/*   MEASURE ──► SESSIONS */
enum storage_step {
    STORAGE_MEASURE,  /* a job measures the workspace's directory of the host */
    STORAGE_SESSIONS, /* commands measure inside of the sessions */
};

static const unsigned storage_moves[] = {
    [STORAGE_MEASURE] = 1U << STORAGE_SESSIONS,
    [STORAGE_SESSIONS] = 0,
};

struct storage_call {
    struct langbot_call call;
    char *dir; /* owned; the directory of the host; NULL: none */
    struct tenant_usage_amount host[ARRAY_SIZE(parts)]; /* what the job found there */
    struct tenant_usage *usage;                         /* owned */
};

static void storage_cancel(struct langbot_call *c)
{
    if (c->step == STORAGE_SESSIONS)
        langbot_call_end(c);
}

static void storage_done(struct langbot_call *c)
{
    struct storage_call *s = container_of(c, struct storage_call, call);
    tenant_usage_free(s->usage);
    free(s->dir);
}

struct row {
    const char *key, *path, *parent; /* parent NULL: a root */
    const struct tenant_usage_amount *at;
};

static void write_row(struct jw *w, const struct row *row, uint64_t errors, const char *scope)
{
    jw_object(w);
    jw_kstr(w, "key", row->key);
    jw_kstr(w, "path", row->path);
    jw_kstr(w, "kind", row->parent == NULL ? "root" : "detail");
    jw_kbool(w, "exists", row->at->exists);
    jw_ku64(w, "size_bytes", row->at->bytes);
    jw_ku64(w, "file_count", row->at->files);
    jw_ku64(w, "error_count", errors);
    if (row->parent != NULL)
        jw_kstr(w, "parent_key", row->parent);
    jw_kstr(w, "scope", scope);
    jw_object_end(w);
}

/* The job's numbers are not trusted: the files that it met may have misled it. */
static uint64_t amount(const struct json *part, const char *name)
{
    int64_t value = json_int(json_get(part, name));
    return value > 0 ? (uint64_t)value : 0;
}

static uint64_t write_host(const struct storage_call *s, struct jw *w)
{
    uint64_t total = 0;
    if (s->dir == NULL)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        const struct tenant_usage_amount *at = &s->host[i];
        AUTO_FREE char *path = xasprintf("%s%s%s", s->dir, i > 0 ? "/" : "", parts[i].name);
        const struct row row = {parts[i].key, path, i > 0 ? parts[0].key : NULL, at};
        write_row(w, &row, at->errors, "runtime_host");
        total += i == 0 ? at->bytes : 0;
    }
    return total;
}

static uint64_t write_sessions(const struct tenant_usage_report *report, struct jw *w)
{
    static const char scope[] = "sandbox_sessions";
    uint64_t total = 0, errors = report->sessions - report->measured;
    for (int i = 0; i < USAGE_PLACE_MAX && report->sessions > 0; i++) {
        AUTO_FREE char *path =
            xasprintf("%s (%zu sandbox sessions)", places[i].path, report->measured);
        const struct row row = {places[i].key, path, NULL, &report->at[i]};
        write_row(w, &row, errors, scope);
        total += report->at[i].bytes;
    }
    if (report->managed > 0) {
        AUTO_FREE char *path =
            xasprintf("/workspace (%zu managed-process sessions)", report->managed);
        const struct row row = {"managed_process_workspaces", path, places[USAGE_WORKSPACE].key,
                                &report->managed_workspaces};
        write_row(w, &row, errors, scope);
    }
    return total;
}

static void on_measured_sessions(void *arg, const struct tenant_usage_report *report)
{
    struct storage_call *s = arg;
    struct jw *w = langbot_reply_open(&s->call);
    jw_karray(w, "directories");
    uint64_t total = write_host(s, w);
    total += write_sessions(report, w);
    jw_array_end(w);
    jw_ku64(w, "size_bytes", total);
    jw_ku64(w, "active_sessions", report->sessions);
    jw_ku64(w, "managed_processes", report->processes);
    langbot_reply_close(&s->call);
}

static void ask_sessions(struct storage_call *s)
{
    langbot_call_step(&s->call, STORAGE_SESSIONS);
    s->usage =
        tenant_usage_new(s->call.rpc->o.manager, s->call.prefix, script, on_measured_sessions, s);
}

static void on_measured(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct storage_call *s = arg;
    bool failed = data == NULL && !str_eq(failure->text, HOSTDIR_MISSING);
    if (failed)
        log_debug(NULL, "measure '%s': %s; ignoring", s->dir, failure->text);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        const struct json *part = json_get(data, parts[i].name);
        s->host[i] = (struct tenant_usage_amount){.exists = json_bool(json_get(part, "exists")),
                                                  .bytes = amount(part, "size_bytes"),
                                                  .files = amount(part, "file_count"),
                                                  .errors = amount(part, "error_count") + failed};
    }
    if (!langbot_call_dropped(&s->call))
        ask_sessions(s);
}

static void analyse_storage(struct langbot_call *c)
{
    struct storage_call *s = container_of(c, struct storage_call, call);
    const char *names[ARRAY_SIZE(parts)] = {NULL}; /* all but the first */
    const char *root = NULL;
    struct err err = {0};
    if (c->ns[0] == '\0' || c->rpc->o.skills == NULL ||
        box_paths_managed_place(&c->rpc->paths, &root, &err) < 0) {
        ask_sessions(s);
        return;
    }
    for (size_t i = 1; i < ARRAY_SIZE(parts); i++)
        names[i - 1] = parts[i].name;
    s->dir = box_paths_tenant_dir(&c->rpc->paths, c->ns);
    if (hostdir_measure(langbot_skills(c), s->dir, names, on_measured, s, &err) < 0)
        on_measured(s, NULL, &(struct job_failure){.text = err.msg});
}

static const struct langbot_call_type storage_type = {.size = sizeof(struct storage_call),
                                                      .moves = storage_moves,
                                                      .cancel = storage_cancel,
                                                      .done = storage_done};

const struct langbot_action langbot_storage_actions[] = {
    {"box_get_storage_analysis", LANGBOT_TENANT, LANGBOT_STORAGE, analyse_storage, &storage_type},
    {0},
};
