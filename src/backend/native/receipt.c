/* SPDX-License-Identifier: Apache-2.0 */

/* The isolation receipt: what is in force for this session, as the kernel tells it. Two witnesses:
 * box-priv reads the cgroups, ids and namespaces from outside; a process inside, confined like
 * every command, reads its own status. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "backend/walls.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "inside/init_wire.h"
#include "sandbox/quota/fsquota.h"
#include "sandbox/setup/gvisor.h"

#define POSTURE_MAX 16384U
#define RECEIPT_MAX (64U * 1024U)
#define POSTURE_TIMEOUT_NS (10ULL * 1000000000ULL)

struct receipt {
    struct native_sandbox *sb; /* valid until the exec below has finished */
    backend_text_fn *done;
    void *arg;
    struct exec *exec;
    struct buf posture;
    struct priv_inspect inspect;
    struct priv_limit limit;
    unsigned pending; /* answers of box-priv */
    struct err err;
};

static void receipt_finish(struct receipt *rc, const char *json, size_t len)
{
    rc->done(rc->arg, json, len, rc->err.code != ERR_NONE ? &rc->err : NULL);
    buf_done(&rc->posture);
    free(rc);
}

static void write_namespaces(struct jw *w, const struct priv_inspect *in)
{
    static const char *const names[PRIV_NS_MAX] = {"user", "mnt", "pid",    "net",
                                                   "ipc",  "uts", "cgroup", "time"};
    jw_key(w, "namespaces");
    jw_object(w);
    for (int i = 0; i < PRIV_NS_MAX; i++) {
        bool own = in->ns[i] != 0 && in->ns[i] != in->host_ns[i];
        jw_kstr(w, names[i], own ? "private" : in->ns[i] == 0 ? "unknown" : "shared with the host");
    }
    jw_object_end(w);
}

static void write_limit(struct jw *w, const char *key, bool enforced, uint64_t value,
                        const char *why)
{
    jw_key(w, key);
    jw_object(w);
    jw_kbool(w, "enforced", enforced);
    if (enforced)
        jw_ku64(w, "value", value);
    else
        jw_kstr(w, "reason", why);
    jw_object_end(w);
}

static bool in_force(const struct receipt *rc, int controller, uint64_t value)
{
    return priv_client_host(rc->sb->native->priv)->enforced[controller] && value > 0;
}

/* What programs have, who sees to that, and the host's limit around gVisor and all of them. */
static void write_gvisor_limit(struct jw *w, const char *key, uint64_t value, const char *how,
                               const char *outer_key, uint64_t outer)
{
    jw_key(w, key);
    jw_object(w);
    jw_kbool(w, "enforced", true);
    jw_ku64(w, "value", value);
    jw_kstr(w, "how", how);
    if (outer > 0)
        jw_ku64(w, outer_key, outer);
    else
        jw_knull(w, outer_key);
    jw_object_end(w);
}

static void write_gvisor_limits(struct jw *w, const struct receipt *rc)
{
    const struct cgroup_readback *c = &rc->inspect.cgroup;
    uint64_t memory = in_force(rc, CGROUP_MEMORY, c->memory_max) ? c->memory_max : 0;
    if (memory > GVISOR_MEMORY_RESERVE)
        write_gvisor_limit(
            w, "memory_bytes", memory - GVISOR_MEMORY_RESERVE,
            "box-guest ends a command that has more; what is quicker, and all of them "
            "together, meets the host's limit, and the session ends",
            "host_bytes", memory);
    else
        write_limit(w, "memory_bytes", false, 0,
                    priv_client_host(rc->sb->native->priv)->why[CGROUP_MEMORY]);
    write_gvisor_limit(w, "pids", rc->sb->pids,
                       "RLIMIT_NPROC, which gVisor counts for this session alone", "host_tasks",
                       in_force(rc, CGROUP_PIDS, c->pids_max) ? c->pids_max : 0);
}

/* What sockets hold for programs. gVisor's are its own, in its own memory. */
static void write_sockets(struct jw *w, const struct receipt *rc)
{
    const struct priv_host *host = priv_client_host(rc->sb->native->priv);
    const struct cgroup_readback *c = &rc->inspect.cgroup;
    bool with_memory = host->cgroup_mode == INIT_CGROUP_V2 || rc->sb->native->facts.gvisor;
    write_limit(
        w, "socket_bytes", in_force(rc, CGROUP_MEMORY, with_memory ? c->memory_max : c->socket_max),
        with_memory ? c->memory_max : c->socket_max,
        host->enforced[CGROUP_MEMORY] ? "the kernel counts no sockets" : host->why[CGROUP_MEMORY]);
}

static void write_kernel_limit(struct jw *w, const char *key, uint64_t value, uint64_t used,
                               const char *how)
{
    if (value == 0)
        return;
    jw_key(w, key);
    jw_object(w);
    jw_kbool(w, "enforced", true);
    jw_ku64(w, "value", value);
    jw_ku64(w, "used", used);
    jw_kstr(w, "how", how);
    jw_object_end(w);
}

/* A host directory. Sessions that share one have the least of their limits. */
static void write_workspace(struct jw *w, const struct receipt *rc)
{
    const struct priv_limit *l = &rc->limit;
    char how[128];
    if (l->kind == FSQUOTA_NONE || l->max_bytes == 0) {
        backend_write_counted(w, rc->sb->counted_bytes, l->why);
        return;
    }
    (void)snprintf(how, sizeof(how), "%s %llu of the file system, for all that the directory holds",
                   l->kind == FSQUOTA_PROJECT ? "quota of project" : "quota of subvolume",
                   (unsigned long long)l->id);
    write_kernel_limit(w, "workspace_bytes", l->max_bytes, l->bytes, how);
    write_kernel_limit(w, "workspace_inodes", l->max_inodes, l->inodes, how);
}

static void write_limits(struct jw *w, const struct receipt *rc)
{
    const struct priv_host *host = priv_client_host(rc->sb->native->priv);
    const struct cgroup_readback *c = &rc->inspect.cgroup;
    jw_key(w, "limits");
    jw_object(w);
    if (rc->sb->native->facts.gvisor) {
        write_gvisor_limits(w, rc);
    } else {
        write_limit(w, "memory_bytes", in_force(rc, CGROUP_MEMORY, c->memory_max), c->memory_max,
                    host->why[CGROUP_MEMORY]);
        write_limit(w, "pids", in_force(rc, CGROUP_PIDS, c->pids_max),
                    c->pids_max > 0 ? c->pids_max - 1 : 0, host->why[CGROUP_PIDS]);
    }
    write_sockets(w, rc);
    write_limit(w, "cpu_quota_us_per_100ms", in_force(rc, CGROUP_CPU, c->cpu_quota_us),
                c->cpu_quota_us, host->why[CGROUP_CPU]);
    write_limit(w, "disk_bytes", rc->sb->quota_bytes > 0, rc->sb->quota_bytes,
                "no quota was asked for; what is on disk is counted (box.limits.session_disk_mb)");
    write_workspace(w, rc);
    jw_object_end(w);
}

/* As `df` tells it inside; what the image needs for itself is not part of it. */
static void write_disk(struct jw *w, const struct priv_inspect *in)
{
    if (in->disk_total == 0)
        return;
    jw_key(w, "disk");
    jw_object(w);
    jw_ku64(w, "bytes_total", in->disk_total);
    jw_ku64(w, "bytes_used", in->disk_used);
    jw_ku64(w, "inodes_total", in->inodes_total);
    jw_ku64(w, "inodes_used", in->inodes_used);
    jw_object_end(w);
}

/* Managed processes whose own memory limit is only that of the session. */
static void write_processes(struct jw *w, const struct native_sandbox *sb)
{
    jw_key(w, "process_memory_unenforced");
    jw_array(w);
    for (const struct native_proc *p = sb->procs; p != NULL; p = p->next)
        if (p->memory_open)
            jw_u64(w, p->number);
    jw_array_end(w);
}

static void write_gvisor(struct jw *w, const struct native_sandbox *sb)
{
    jw_kstr(w, "runtime", "runsc");
    jw_kstr(w, "runtime_version", sb->native->options.runsc_version);
    jw_kstr(w, "kernel", "gvisor");
    jw_kstr(w, "network_stack",
            sb->network == NET_NONE ? "gVisor's" : "the host's, in the session's own namespace");
    jw_kstr(w, "out_of_memory_ends", "the command, or the session where it is too quick");
}

static void write_receipt(struct jw *w, struct receipt *rc)
{
    static const char *const modes[] = {"none", "v1 with cgroup2 for killing", "v2"};
    static const char *const networks[NET_KIND_MAX] = {
        [NET_NONE] = "none",
        [NET_NAT] = "nat, private ranges refused",
        [NET_SLIRP4NETNS] = "user-mode (slirp4netns), private ranges refused",
        [NET_PASTA] = "user-mode (pasta), private ranges refused",
    };
    const struct native_sandbox *sb = rc->sb;
    const struct priv_host *host = priv_client_host(sb->native->priv);
    bool own_range = host->rootful != 0, gvisor = sb->native->facts.gvisor;
    jw_object(w);
    jw_kstr(w, "backend", gvisor ? "runsc" : "native");
    if (gvisor)
        write_gvisor(w, sb);
    jw_kstr(w, "image_requested", sb->image);
    jw_kstr(w, "image", "host");
    jw_kbool(w, "image_substituted", !str_eq(sb->image, "host"));
    jw_kbool(w, "image_private", rc->inspect.own_view != 0);
    jw_kbool(w, "root_writable", sb->root_writable);
    jw_kstr(w, "network", networks[sb->network]);
    jw_kstr(w, "host_ids",
            own_range ? "private range of this session"
                      : "shared by all sessions of this user: boxd was not started by root");
    jw_kstr(w, "init_out_of_reach",
            rc->inspect.host_uid != rc->inspect.payload_uid
                ? "by its id, and by the system call filter"
                : "by the system call filter: it has the id of the program");
    jw_ku64(w, "host_uid_init", rc->inspect.host_uid);
    jw_ku64(w, "host_uid_payload", rc->inspect.payload_uid);
    jw_ku64(w, "host_pid", rc->inspect.pid);
    jw_ku64(w, "landlock_abi", gvisor ? 0 : host->landlock_abi);
    jw_kstr(w, "cgroup", modes[host->cgroup_mode <= INIT_CGROUP_V2 ? host->cgroup_mode : 0]);
    jw_kstr(w, "kill_on_timeout",
            gvisor || host->cgroup_mode != INIT_CGROUP_NONE ? "the exec's own process tree"
                                                            : "every process of the session");
    write_namespaces(w, &rc->inspect);
    write_limits(w, rc);
    write_disk(w, &rc->inspect);
    write_processes(w, rc->sb);
    if (gvisor)
        walls_write(w, &(struct walls){.posture = buf_str(&rc->posture), .gvisor = true});
    jw_key(w, "payload");
    jw_object(w);
    backend_write_status(w, buf_str(&rc->posture));
    jw_object_end(w);
    jw_key(w, "init");
    jw_object(w);
    rc->inspect.status[sizeof(rc->inspect.status) - 1] = '\0';
    backend_write_status(w, rc->inspect.status);
    jw_object_end(w);
    jw_object_end(w);
}

static void on_posture_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct receipt *rc = arg;
    if (stream == EXEC_STDOUT)
        (void)buf_append(&rc->posture, data, len);
}

static void on_posture(void *arg, const struct outcome *outcome)
{
    struct receipt *rc = arg;
    struct buf out;
    struct jw w;
    rc->exec->backend->ops->exec_free(rc->exec);
    if (outcome->kind != OUTCOME_EXITED || outcome->exit_code != 0) {
        (void)err_set(&rc->err, ERR_BACKEND, "the session could not report on itself: %s %s",
                      outcome_name(outcome->kind), outcome->error);
        receipt_finish(rc, NULL, 0);
        return;
    }
    buf_init(&out, RECEIPT_MAX);
    jw_init(&w, &out);
    write_receipt(&w, rc);
    if (jw_end(&w) < 0)
        (void)err_set(&rc->err, ERR_LIMIT, "the receipt is too large");
    receipt_finish(rc, out.data, out.len);
    buf_done(&out);
}

/* The answers come in any order when box-priv is lost. */
static void ask_inside(struct receipt *rc)
{
    static const struct exec_events events = {.output = on_posture_output, .finished = on_posture};
    static char *const argv[] = {(char *)(uintptr_t) "posture", NULL};
    struct exec_request req = {
        .argv = argv, .posture = true, .cwd = "/", .timeout_ns = POSTURE_TIMEOUT_NS};
    if (--rc->pending > 0)
        return;
    if (rc->err.code != ERR_NONE) {
        receipt_finish(rc, NULL, 0);
        return;
    }
    struct native *n = rc->sb->native;
    int r = n->posture != NULL
                ? n->posture(rc->sb->arg, &req, &events, rc, &rc->exec, &rc->err)
                : native_exec_start(&rc->sb->base, &req, &events, rc, &rc->exec, &rc->err);
    if (r < 0)
        receipt_finish(rc, NULL, 0);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_inspected(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct receipt *rc = arg;
    if (reply == NULL || reply->result < 0)
        (void)err_set(&rc->err, ERR_BACKEND, "box-priv cannot inspect the session: %s",
                      reply != NULL ? reply->err.msg : "it has gone away");
    else
        rc->inspect = reply->inspect;
    ask_inside(rc);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as above. */
static void on_limit(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct receipt *rc = arg;
    if (reply != NULL && reply->result == 0)
        rc->limit = reply->limit;
    else
        (void)snprintf(rc->limit.why, sizeof(rc->limit.why), "box-priv is of an earlier boxd");
    rc->limit.why[sizeof(rc->limit.why) - 1] = '\0';
    ask_inside(rc);
}

int native_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    struct receipt *rc = xnew(struct receipt);
    rc->sb = sb;
    rc->done = done;
    rc->arg = arg;
    buf_init(&rc->posture, POSTURE_MAX);
    struct err why = {0};
    rc->pending = 2;
    int r = priv_client_inspect(sb->native->priv, sb->name, on_inspected, rc, err);
    if (r < 0) {
        free(rc);
    } else if (priv_client_quota(sb->native->priv, sb->name, on_limit, rc, &why) < 0) {
        (void)snprintf(rc->limit.why, sizeof(rc->limit.why), "%.199s", why.msg);
        rc->pending--; /* the other one is still to come */
    }
    return r;
}

struct held_wait {
    backend_held_fn *done;
    void *arg;
};

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_held(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct held_wait *h = arg;
    struct backend_held held = {0};
    if (reply != NULL)
        held = (struct backend_held){.bytes = reply->held.bytes,
                                     .files = reply->held.files,
                                     .stored_bytes = reply->held.stored_bytes,
                                     .stored_files = reply->held.stored_files,
                                     .idle = reply->held.idle != 0,
                                     .incomplete = reply->held.incomplete != 0,
                                     .unknown = reply->result < 0,
                                     .kernel_bytes = reply->held.kernel_bytes};
    h->done(h->arg, reply != NULL ? &held : NULL);
    free(h);
}

int native_held(struct sandbox *base, backend_held_fn *done, void *arg, struct err *err)
{
    const struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    struct held_wait *h = xnew(struct held_wait);
    *h = (struct held_wait){done, arg};
    int r = priv_client_held(sb->native->priv, sb->name, on_held, h, err);
    if (r < 0)
        free(h);
    return r;
}
