/* SPDX-License-Identifier: Apache-2.0 */

/* The receipt of a session and the doctor's report of an engine. Both say what the engine and the
 * kernel report, not what was asked for. */

#include <stdio.h>
#include <string.h>

#include "backend/common.h"
#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "priv/wire.h"
#include "sandbox/setup/userns.h"

#define REPORT_MAX (64U * 1024U)
#define POSTURE_MAX 16384U
#define POSTURE_TIMEOUT_NS (10ULL * NSEC_PER_SEC)
#define DOCTOR_TIMEOUT_NS (10ULL * NSEC_PER_SEC)

struct engine_report {
    struct engine_job job;
    const struct engine_sandbox *sb; /* of a receipt; NULL once it is gone */
    backend_text_fn *done;
    struct exec *exec;
    struct buf posture, out;
    struct jw w;
};

static void report_release(struct engine_job *job)
{
    struct engine_report *r = container_of(job, struct engine_report, job);
    buf_done(&r->posture);
    buf_done(&r->out);
}

static struct engine_report *report_new(struct engine *e, backend_text_fn *done, void *arg)
{
    struct engine_report *r = xnew(struct engine_report);
    r->done = done;
    buf_init(&r->posture, POSTURE_MAX);
    buf_init(&r->out, REPORT_MAX);
    jw_init(&r->w, &r->out);
    r->job.release = report_release;
    engine_job_start(e, &r->job, NULL, arg);
    return r;
}

static void finish(struct engine_report *r, const struct err *err)
{
    struct err large = {0};
    if (err == NULL && jw_end(&r->w) < 0) {
        (void)err_set(&large, ERR_LIMIT, "the report is too large");
        err = &large;
    }
    struct buf out = r->out;
    buf_init(&r->out, REPORT_MAX);
    backend_text_fn *done = r->done;
    void *arg = r->job.arg;
    engine_job_free(&r->job);
    done(arg, err == NULL ? out.data : NULL, err == NULL ? out.len : 0, err);
    buf_done(&out);
}

/* Receipts. */

void engine_report_forget(const struct engine_sandbox *sb)
{
    struct engine_job *job;
    LIST_FOREACH (job, &sb->engine->jobs, entry) {
        struct engine_report *r = container_of(job, struct engine_report, job);
        if (job->release == report_release && r->sb == sb)
            r->sb = NULL;
    }
}

static void tell_gone(struct engine_report *r)
{
    struct err err = {0};
    (void)err_set(&err, ERR_NOT_FOUND, "the session has ended meanwhile");
    finish(r, &err);
}

static const char not_set[] = "the engine does not enforce it";
static const char not_counted[] =
    "boxd counts it for its own sandboxes, not for containers of an engine";
static const char not_tracked[] = "the engine makes the network, without a limit of connections";

static void put_limit(struct jw *w, const char *key, int64_t value, const char *why)
{
    backend_write_limit(w, key, value > 0, (uint64_t)value, why);
}

static void put_pids(struct jw *w, const struct engine_sandbox *sb, int64_t asked)
{
    int64_t got = asked > 0 ? sb->spec->pids_limit : 0;
    /* Where the engine took it for something else, what is in force is what it says. */
    if (got > 0 && asked != engine_pids_max(sb->spec, sb->own_id, sb->gvisor))
        got = asked - engine_pids_reserve(sb->own_id);
    backend_begin_limit(w, "pids", got > 0, (uint64_t)got, not_set);
    if (got > 0 && sb->gvisor) {
        jw_kstr(w, "how", "RLIMIT_NPROC, which gVisor counts for this session alone");
        jw_kint(w, "host_tasks", asked);
    }
    jw_object_end(w);
}

static void put_limits(struct jw *w, const struct engine_sandbox *sb, const struct json *host)
{
    const struct spec *spec = sb->spec;
    bool none = sb->engine->facts.no_limits;
    int64_t pids = none ? 0 : json_int(json_get(host, "PidsLimit"));
    int64_t memory = none ? 0 : json_int(json_get(host, "Memory"));
    int64_t cpus = none ? 0 : json_int(json_get(host, "NanoCpus"));
    bool sized =
        spec->workspace_quota_mb > 0 && engine_workspace(spec, false) == ENGINE_WORKSPACE_MEMORY;
    jw_kobject(w, "limits");
    put_limit(w, "memory_bytes", memory, not_set);
    put_pids(w, sb, pids);
    /* KernelMemoryTCP is asked for where there is such a thing, but runc does not apply it, and the
     * engine tells what it was asked for. */
    bool apart = sb->engine->facts.v1 && !sb->gvisor;
    put_limit(
        w, "socket_bytes", apart ? 0 : memory,
        "on cgroup v1 runtimes of engines need not limit what sockets hold, and runc does not");
    /* gVisor keeps its own locks and netlink sockets, in memory that counts. */
    int64_t own = sb->gvisor ? memory : 0;
    put_limit(w, "netlink_bytes", own, sb->gvisor ? not_set : not_counted);
    put_limit(w, "lock_bytes", own, sb->gvisor ? not_set : not_counted);
    put_limit(w, "connections", 0, not_tracked);
    put_limit(w, "connections_per_sec", 0, not_tracked);
    put_limit(w, "cpu_quota_us_per_100ms", cpus / 10000, not_set);
    put_limit(w, "disk_bytes", sized ? (int64_t)engine_workspace_bytes(spec) : 0,
              spec->workspace_quota_mb > 0 ? "engines cannot limit a host directory"
                                           : "no quota was asked for");
    backend_write_counted(w, backend_counted_bytes(spec),
                          "boxd sets quotas of file systems for its own sandboxes, not for "
                          "containers of an engine");
    jw_object_end(w);
}

/* By what the engine says that it mounted: an earlier daemon may have asked for it. */
static void put_owners(struct jw *w, const struct engine_sandbox *sb, const struct json *inspected)
{
    const struct json *mounts = json_get(inspected, "Mounts");
    AUTO_FREE char *binds = xasprintf("%s/" PRIV_BINDS "/", sb->engine->options.state_dir);
    bool mapped = false;
    for (size_t i = 0; i < json_len(mounts); i++) {
        const char *source = json_str(json_get(json_at(mounts, i), "Source"));
        mapped = mapped || (source != NULL && str_starts(source, binds));
    }
    if (sb->mounts.n == 0)
        return;
    jw_kobject(w, "mount_owners");
    jw_kbool(w, "mapped", mapped);
    if (!mapped)
        jw_kstr(w, "reason",
                sb->not_mapped[0] != '\0' ? sb->not_mapped : "an earlier boxd did not say");
    jw_object_end(w);
}

/* Why another session or user of the host may have the id of its programs; NULL: none has. */
static const char *why_ids_shared(const struct engine_sandbox *sb)
{
    if (sb->engine->facts.narrow)
        return "the engine has one range of ids for all its containers";
    if (sb->guest_uid >= USERNS_BLOCK)
        return NULL;
    if (sb->not_mapped[0] != '\0')
        return sb->not_mapped;
    return sb->spec->read_only_rootfs ? "the image has a user of its own"
                                      : "the root can be written to, and an image's files are "
                                        "those of the host's root";
}

static void write_receipt(struct engine_report *r, const struct json *inspected)
{
    const struct engine_sandbox *sb = r->sb;
    const struct json *host = json_get(inspected, "HostConfig");
    const struct json *state = json_get(inspected, "State");
    const char *network = json_str(json_get(host, "NetworkMode"));
    const char *runtime = json_str(json_get(host, "Runtime"));
    if (str_eq(runtime, "oci")) /* which is all that Podman says */
        runtime = sb->engine->options.runtime != NULL ? sb->engine->options.runtime
                                                      : sb->engine->facts.runtime;
    struct jw *w = &r->w;
    jw_object(w);
    jw_kstr(w, "backend", sb->engine->kind->name);
    jw_kstr(w, "container", sb->name);
    jw_kstr(w, "container_id", sb->id);
    jw_kstr(w, "runtime", runtime);
    jw_kstr(w, "kernel", sb->gvisor ? "gvisor" : "host");
    jw_kstr(w, "mounts_compared_by",
            sb->gvisor ? "owner, mode, size and times: gVisor invents inodes" : "device and inode");
    jw_kstr(w, "out_of_memory_ends", sb->gvisor ? "the session" : "the command");
    jw_kstr(w, "image_requested", sb->spec->image);
    jw_kstr(w, "image", json_str(json_get(inspected, "Image")));
    jw_kbool(w, "image_substituted", false);
    jw_kbool(w, "root_writable", !json_bool(json_get(host, "ReadonlyRootfs")));
    jw_kstr(w, "network", str_eq(network, "none") ? "none" : "the engine's own, not filtered");
    jw_kstr(w, "host_ids",
            sb->engine->facts.narrow        ? "of the engine's own range"
            : sb->guest_uid >= USERNS_BLOCK ? "private id of this session"
                                            : "shared with the owner of that id on the host");
    put_owners(w, sb, inspected);
    jw_ku64(w, "uid", sb->guest_uid);
    jw_kint(w, "host_pid", json_int(json_get(state, "Pid")));
    jw_kbool(w, "privileged", json_bool(json_get(host, "Privileged")));
    jw_kstr(w, "init", "box-guest");
    jw_kstr(w, "kill_on_timeout", "the exec's own process tree");
    put_limits(w, sb, host);
    walls_write(w, &(struct walls){.posture = buf_str(&r->posture),
                                   .gvisor = sb->gvisor,
                                   .root = sb->guest_uid == 0,
                                   .writable_dev = sb->engine->kind->masks_by_option,
                                   .ids_shared = why_ids_shared(sb)});
    backend_write_status(w, "payload", buf_str(&r->posture));
    jw_object_end(w);
}

static void on_inspected(void *arg, const struct json *body, const struct err *err)
{
    struct engine_report *r = arg;
    r->job.call = NULL;
    if (r->sb == NULL) {
        tell_gone(r);
        return;
    }
    if (err == NULL)
        write_receipt(r, body);
    finish(r, err);
}

static void on_posture_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct engine_report *r = arg;
    if (stream == EXEC_STDOUT)
        (void)buf_append(&r->posture, data, len);
}

static void on_posture(void *arg, const struct outcome *outcome)
{
    struct engine_report *r = arg;
    struct err err = {0};
    r->exec->backend->ops->exec_free(r->exec);
    if (r->sb == NULL) {
        tell_gone(r);
        return;
    }
    if (outcome->kind != OUTCOME_EXITED || outcome->exit_code != 0) {
        (void)err_set(&err, ERR_BACKEND, "the session could not report on itself: %s %s",
                      outcome_name(outcome->kind), outcome->error);
        finish(r, &err);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s/json", r->sb->id);
    engine_job_ask(&r->job, &(struct engine_request){.target = target}, on_inspected);
}

int engine_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    static const struct exec_events events = {.output = on_posture_output, .finished = on_posture};
    static char *const argv[] = {(char *)(uintptr_t) "posture", NULL};
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    struct exec_request req = {
        .argv = argv, .posture = true, .cwd = "/", .timeout_ns = POSTURE_TIMEOUT_NS};
    struct engine_report *r = report_new(sb->engine, done, arg);
    r->sb = sb;
    int e = sb->engine->ops.exec(base, &req, &events, r, &r->exec, err);
    if (e < 0)
        engine_job_free(&r->job);
    return e;
}

/* Changes. */

static void on_changes(void *arg, const struct json *body, const struct err *err)
{
    static const char *const kinds[] = {"changed", "added", "deleted"};
    struct engine_report *r = arg;
    size_t n = json_len(body);
    r->job.call = NULL;
    jw_object(&r->w);
    jw_karray(&r->w, "changes");
    for (size_t i = 0; i < n && i < PRIV_DIFF_ENTRIES_MAX; i++) {
        int64_t kind = json_int(json_get(json_at(body, i), "Kind"));
        jw_object(&r->w);
        jw_kstr(&r->w, "kind", kinds[kind == 1 || kind == 2 ? kind : 0]);
        jw_kstr(&r->w, "path", json_str(json_get(json_at(body, i), "Path")));
        jw_object_end(&r->w);
    }
    jw_array_end(&r->w);
    jw_kbool(&r->w, "truncated", n > PRIV_DIFF_ENTRIES_MAX);
    jw_object_end(&r->w);
    finish(r, err);
}

int engine_diff(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    struct engine_report *r = report_new(sb->engine, done, arg);
    AUTO_FREE char *target = xasprintf("/containers/%s/changes", sb->id);
    r->out.max = ENGINE_BODY_MAX;
    engine_job_ask(&r->job, &(struct engine_request){.target = target}, on_changes);
    return 0;
}

/* The doctor. */

/* Each runtime and helper program with its version, and what it is too old for. */
static void check_versions(struct jw *w, const struct json *version)
{
    static const char *const programs[] = {"runc", "crun"};
    const struct json *parts = json_get(version, "Components");
    for (size_t i = 0; i < json_len(parts); i++) {
        const char *name = json_str(json_get(json_at(parts, i), "Name"));
        const char *text = json_str(json_get(json_at(parts, i), "Version"));
        for (size_t k = 0; name != NULL && text != NULL && k < ARRAY_SIZE(programs); k++) {
            if (strstr(name, programs[k]) == NULL)
                continue;
            const char *cves = engine_floor_breach(programs[k], text);
            char detail[300];
            (void)snprintf(detail, sizeof(detail), "%.*s%s%s", (int)strcspn(text, "\n"), text,
                           cves != NULL ? ": older than the fixes of " : "",
                           cves != NULL ? cves : "");
            doctor_check(
                w, "runtime", cves != NULL ? "warn" : "ok", detail,
                "upgrade it; a distribution may have the fixes under an older number, see its "
                "changelog");
        }
    }
}

static void check_limits(struct jw *w, const struct engine *e, const struct json *info)
{
    static const struct {
        const char *id, *key;
    } limits[] = {{"limit-memory", "MemoryLimit"},
                  {"limit-swap", "SwapLimit"},
                  {"limit-pids", "PidsLimit"},
                  {"limit-cpu", "CpuCfsQuota"}};
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        const struct json *v = json_get(info, limits[i].key);
        /* Podman tells by another name. */
        if (v == NULL && str_eq(limits[i].key, "CpuCfsQuota"))
            v = json_get(info, "CPUCfsQuota");
        bool ok = json_bool(v) && !e->facts.no_limits;
        doctor_check(w, limits[i].id, ok ? "ok" : "missing",
                     ok                   ? "enforced by the engine"
                     : e->facts.no_limits ? "a rootless engine enforces none without cgroup v2"
                                          : "the engine reports that it cannot",
                     "delegate the controller to it, or start it as root");
    }
}

static void check_runtime(struct jw *w, const struct engine *e, const struct json *info)
{
    const char *wanted = e->options.runtime;
    const struct json *all = json_get(info, "Runtimes");
    if (wanted == NULL)
        wanted = json_str(json_get(info, "DefaultRuntime"));
    bool listed = wanted != NULL && json_get(all, wanted) != NULL;
    doctor_check(w, "runtime-choice", listed ? "ok" : "missing",
                 wanted != NULL ? wanted : "the engine names none",
                 "install it and list it in the engine's configuration (Docker: \"runtimes\" in "
                 "daemon.json)");
}

static void check_owners(struct jw *w, const struct engine *e)
{
    char detail[300];
    const char *why = NULL;
    bool ok = engine_can_bind(e, &why);
    (void)snprintf(detail, sizeof(detail), "%s%s",
                   ok ? "the owner of a host directory is the session's user inside"
                      : "sessions have the id of the owner of their host directory: ",
                   ok ? "" : why);
    doctor_check(w, "mount-owners", ok ? "ok" : "warn", detail,
                 "start boxd as root, with the engine's socket on the same host");
}

static void check_ids(struct jw *w, const struct engine *e)
{
    const char *path = e->api->endpoint;
    doctor_check(w, "id-ranges", "ok",
                 e->facts.narrow
                     ? "the engine maps ids: rootless, or remapped"
                     : "sessions have host ids of their own, where nothing below says otherwise",
                 NULL);
    check_owners(w, e);
    doctor_check(w, "socket", e->facts.narrow ? "ok" : "warn",
                 e->facts.narrow ? path
                                 : "a user of this socket is root on the host, and so is boxd",
                 "use a rootless engine, or the native backend");
}

static void write_doctor(struct engine_report *r, const struct json *info)
{
    struct engine *e = r->job.engine;
    struct jw *w = &r->w;
    const struct json *version = json_get(info, "ServerVersion");
    char detail[200];
    (void)snprintf(detail, sizeof(detail), "%s %.60s, API %s, at %.80s", e->kind->name,
                   json_str(version) != NULL ? json_str(version) : "of unknown version",
                   e->api->version, e->api->endpoint);
    engine_facts_read(&e->facts, info, e->options.runtime);
    doctor_check(w, "engine", "ok", detail, NULL);
    check_ids(w, e);
    check_runtime(w, e, info);
    check_limits(w, e, info);
    if (e->facts.gvisor)
        doctor_check(
            w, "gvisor-limits", "warn",
            "out of memory ends the whole session; mounts are compared by owner, mode, size and "
            "times, because gVisor invents inodes",
            "use the engine's own runtime, or the native backend, where that matters more than a "
            "kernel of its own");
    doctor_check(w, "seccomp", "ok",
                 "our profile for the container, and our filter for every command", NULL);
    doctor_check(w, "disk-quota", "warn",
                 "hard for a workspace in memory; a host directory or a writable root has none",
                 "use the native backend where disk limits matter");
    doctor_check(w, "network", "warn",
                 "off is off; on is the engine's own network, private ranges too",
                 "use the native backend where a session with a network must not reach your own");
}

static void end_doctor(struct engine_report *r)
{
    jw_array_end(&r->w);
    jw_object_end(&r->w);
    finish(r, NULL);
}

static void on_version(void *arg, const struct json *body, const struct err *err)
{
    struct engine_report *r = arg;
    r->job.call = NULL;
    if (err == NULL)
        check_versions(&r->w, body);
    end_doctor(r);
}

/* An engine that does not answer is a finding, not a failure of ours. */
static void on_doctor_info(void *arg, const struct json *body, const struct err *err)
{
    struct engine_report *r = arg;
    r->job.call = NULL;
    if (err != NULL) {
        doctor_check(&r->w, "engine", "missing", err->msg,
                     "start it, and let the user that boxd runs as use its socket");
        end_doctor(r);
        return;
    }
    write_doctor(r, body);
    engine_job_ask(&r->job,
                   &(struct engine_request){.target = "/version", .timeout_ns = DOCTOR_TIMEOUT_NS},
                   on_version);
}

int engine_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    struct engine_report *r = report_new(e, done, arg);
    jw_object(&r->w);
    jw_kstr(&r->w, "version", BOX_VERSION);
    jw_kstr(&r->w, "backend", e->kind->name);
    jw_karray(&r->w, "checks");
    engine_job_ask(&r->job,
                   &(struct engine_request){.target = "/info", .timeout_ns = DOCTOR_TIMEOUT_NS},
                   on_doctor_info);
    return 0;
}
