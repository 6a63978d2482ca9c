/* SPDX-License-Identifier: Apache-2.0 */

/* What the native backend tells about itself. The receipt of a session has two witnesses: box-priv
 * reads the cgroups, ids and namespaces from outside; a process inside, confined like every
 * command, reads its own status. For the doctor's report box-priv tries things out; the rest it
 * told when it started. */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "inside/init_wire.h"
#include "priv/wire.h"
#include "sandbox/setup/gvisor.h"

#define POSTURE_MAX 16384U
#define REPORT_MAX (64U * 1024U)
#define CHANGES_MAX (8U << 20) /* escaped, with their kinds */
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
    jw_kobject(w, "namespaces");
    for (int i = 0; i < PRIV_NS_MAX; i++) {
        bool own = in->ns[i] != 0 && in->ns[i] != in->host_ns[i];
        jw_kstr(w, names[i], own ? "private" : in->ns[i] == 0 ? "unknown" : "shared with the host");
    }
    jw_object_end(w);
}

static bool in_force(const struct receipt *rc, int controller, uint64_t value)
{
    return priv_client_host(rc->sb->native->priv)->enforced[controller] && value > 0;
}

/* The limit of programs, what enforces it, and the host's limit around gVisor and all of them. */
static void write_gvisor_limit(struct jw *w, const char *key, uint64_t value, const char *how,
                               const char *outer_key, uint64_t outer)
{
    backend_begin_limit(w, key, true, value, NULL);
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
            "box-guest ends a command that has more; one that is too quick for that, or several "
            "together, can reach the host's limit, and the session ends",
            "host_bytes", memory);
    else
        backend_write_limit(w, "memory_bytes", false, 0,
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
    backend_write_limit(
        w, "socket_bytes", in_force(rc, CGROUP_MEMORY, with_memory ? c->memory_max : c->socket_max),
        with_memory ? c->memory_max : c->socket_max,
        host->enforced[CGROUP_MEMORY] ? "the kernel counts no sockets" : host->why[CGROUP_MEMORY]);
}

/* Kernel memory that no cgroup charges: boxd counts it (command/kernel_guard.h). gVisor keeps both
 * kinds itself, in memory that counts. */
static void write_uncharged(struct jw *w, const struct receipt *rc)
{
    static const char *const kinds[] = {"netlink_bytes", "lock_bytes"};
    const struct cgroup_readback *c = &rc->inspect.cgroup;
    bool gvisor = rc->sb->native->facts.gvisor;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        backend_begin_limit(w, kinds[i], !gvisor || in_force(rc, CGROUP_MEMORY, c->memory_max),
                            gvisor ? c->memory_max : BACKEND_GREEDY_BYTES,
                            priv_client_host(rc->sb->native->priv)->why[CGROUP_MEMORY]);
        if (!gvisor)
            jw_kstr(w, "how",
                    "boxd counts it and ends what runs in a session that has more; see "
                    "docs/reference/limits.md");
        jw_object_end(w);
    }
}

static void write_kernel_limit(struct jw *w, const char *key, uint64_t value, uint64_t used,
                               const char *how)
{
    if (value == 0)
        return;
    backend_begin_limit(w, key, true, value, NULL);
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
    bool network = rc->sb->network != NET_NONE;
    jw_kobject(w, "limits");
    if (rc->sb->native->facts.gvisor) {
        write_gvisor_limits(w, rc);
    } else {
        backend_write_limit(w, "memory_bytes", in_force(rc, CGROUP_MEMORY, c->memory_max),
                            c->memory_max, host->why[CGROUP_MEMORY]);
        backend_write_limit(w, "pids", in_force(rc, CGROUP_PIDS, c->pids_max),
                            c->pids_max > 0 ? c->pids_max - 1 : 0, host->why[CGROUP_PIDS]);
    }
    write_sockets(w, rc);
    write_uncharged(w, rc);
    /* What firewalls on the host track for the session: our packet rules, and without root the
     * descriptors of the helper program, too. */
    backend_write_limit(w, "connections", true, network ? NET_CONN_MAX : 0, NULL);
    backend_write_limit(w, "connections_per_sec", true, network ? NET_CONN_RATE : 0, NULL);
    backend_write_limit(w, "cpu_quota_us_per_100ms", in_force(rc, CGROUP_CPU, c->cpu_quota_us),
                        c->cpu_quota_us, host->why[CGROUP_CPU]);
    backend_write_limit(
        w, "disk_bytes", rc->sb->quota_bytes > 0, rc->sb->quota_bytes,
        "no quota was asked for; what is on disk is counted (box.limits.session_disk_mb)");
    write_workspace(w, rc);
    jw_object_end(w);
}

/* As `df` tells it inside; what the image needs for itself is not part of it. */
static void write_disk(struct jw *w, const struct priv_inspect *in)
{
    if (in->disk_total == 0)
        return;
    jw_kobject(w, "disk");
    jw_ku64(w, "bytes_total", in->disk_total);
    jw_ku64(w, "bytes_used", in->disk_used);
    jw_ku64(w, "inodes_total", in->inodes_total);
    jw_ku64(w, "inodes_used", in->inodes_used);
    jw_object_end(w);
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
    native_proc_write_unenforced(w, rc->sb);
    if (gvisor)
        walls_write(w, &(struct walls){.posture = buf_str(&rc->posture), .gvisor = true});
    backend_write_status(w, "payload", buf_str(&rc->posture));
    rc->inspect.status[sizeof(rc->inspect.status) - 1] = '\0';
    backend_write_status(w, "init", rc->inspect.status);
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
    struct buf out = BUF_INIT(REPORT_MAX);
    struct jw w = JW_INIT(&out);
    rc->exec->backend->ops->exec_free(rc->exec);
    if (outcome->kind != OUTCOME_EXITED || outcome->exit_code != 0) {
        (void)err_set(&rc->err, ERR_BACKEND, "the session could not report on itself: %s %s",
                      outcome_name(outcome->kind), outcome->error);
        receipt_finish(rc, NULL, 0);
        return;
    }
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
                : n->ops.exec(&rc->sb->tasks.sandbox, &req, &events, rc, &rc->exec, &rc->err);
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
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    struct receipt *rc = xnew(struct receipt);
    rc->sb = sb;
    rc->done = done;
    rc->arg = arg;
    buf_init(&rc->posture, POSTURE_MAX);
    struct err why = {0};
    rc->pending = 2;
    int r = priv_client_ask_about(sb->native->priv, PRIV_INSPECT, sb->name, on_inspected, rc, err);
    if (r < 0) {
        free(rc);
    } else if (priv_client_ask_about(sb->native->priv, PRIV_QUOTA, sb->name, on_limit, rc, &why) <
               0) {
        (void)snprintf(rc->limit.why, sizeof(rc->limit.why), "%.199s", why.msg);
        rc->pending--; /* the other one is still to come */
    }
    return r;
}

/* A caller that waits for box-priv's answer. */
struct native_wait {
    struct native *native;
    union {
        backend_held_fn *held;
        backend_greedy_fn *greedy;
        backend_text_fn *text;
        backend_usage_fn *usage;
    } done;
    void *arg;
};

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_held(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_wait *wait = arg;
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
    wait->done.held(wait->arg, reply != NULL ? &held : NULL);
}

int native_held(struct sandbox *base, backend_held_fn *done, void *arg, struct err *err)
{
    const struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    struct native_wait *wait = xnew(struct native_wait);
    *wait = (struct native_wait){.done.held = done, .arg = arg};
    int r = priv_client_ask_about(sb->native->priv, PRIV_HELD, sb->name, on_held, wait, err);
    if (r < 0)
        free(wait);
    return r;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_usage(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_wait *wait = arg;
    if (reply == NULL || reply->result < 0) {
        wait->done.usage(wait->arg, NULL);
        return;
    }
    struct inside_usage usage = reply->usage;
    if (wait->native->facts.gvisor) /* the host counts gVisor's own threads */
        usage.pids = usage.pids_max = INSIDE_UNKNOWN;
    wait->done.usage(wait->arg, &usage);
}

int native_usage(struct sandbox *base, backend_usage_fn *done, void *arg, struct err *err)
{
    const struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    struct native_wait *wait = xnew(struct native_wait);
    *wait = (struct native_wait){.native = sb->native, .done.usage = done, .arg = arg};
    int r = priv_client_ask_about(sb->native->priv, PRIV_USAGE, sb->name, on_usage, wait, err);
    if (r < 0)
        free(wait);
    return r;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_greediest(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_wait *wait = arg;
    if (reply == NULL || reply->result < 0) {
        wait->done.greedy(wait->arg, NULL);
        return;
    }
    struct priv_greedy found = reply->greedy;
    found.name[sizeof(found.name) - 1] = '\0';
    wait->done.greedy(wait->arg, &(struct backend_greedy){.name = found.name,
                                                          .incomplete = found.incomplete != 0,
                                                          .netlink_bytes = found.netlink_bytes,
                                                          .lock_bytes = found.lock_bytes});
}

int native_greediest(struct backend *b, backend_greedy_fn *done, void *arg, struct err *err)
{
    struct native_wait *wait = xnew(struct native_wait);
    *wait = (struct native_wait){.done.greedy = done, .arg = arg};
    int r = priv_client_ask(container_of(b, struct native, base)->priv, PRIV_GREEDY, on_greediest,
                            wait, err);
    if (r < 0)
        free(wait);
    return r;
}

/* What box-priv lists: names that programs of the session have chosen. */
static void write_changes(struct jw *w, const char *text, size_t len, bool truncated)
{
    jw_object(w);
    jw_karray(w, "changes");
    for (size_t at = 0; at + 2 < len; at += strlen(text + at) + 1) {
        jw_object(w);
        jw_kstr(w, "kind", text[at] == 'A' ? "added" : text[at] == 'D' ? "deleted" : "changed");
        jw_kstr(w, "path", text + at + 1);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_kbool(w, "truncated", truncated);
    jw_object_end(w);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_diff(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_wait *wait = arg;
    AUTO_DONE(buf) struct buf text = BUF_INIT(PRIV_DIFF_BYTES_MAX + 1);
    AUTO_DONE(buf) struct buf out = BUF_INIT(CHANGES_MAX);
    struct err err = {0};
    struct jw w = JW_INIT(&out);
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0)
        err = reply->err;
    else if (n_fds != 1 || lseek(fds[0], 0, SEEK_SET) < 0 || fd_read_to_buf(fds[0], &text) < 0)
        (void)err_set(&err, ERR_BACKEND, "box-priv listed changes in a way that makes no sense");
    else
        write_changes(&w, buf_str(&text), text.len, reply->diff.truncated != 0);
    if (err.code == ERR_NONE && jw_end(&w) < 0)
        (void)err_set(&err, ERR_LIMIT, "the list of changes is too large");
    wait->done.text(wait->arg, out.data, out.len, err.code != ERR_NONE ? &err : NULL);
}

int native_diff(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    const struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    struct native_wait *wait = xnew(struct native_wait);
    *wait = (struct native_wait){.done.text = done, .arg = arg};
    int r = priv_client_ask_about(sb->native->priv, PRIV_DIFF, sb->name, on_diff, wait, err);
    if (r < 0)
        free(wait);
    return r;
}

/* The doctor. */

static void check_ids(struct jw *w, const struct priv_host *host)
{
    bool as_root = !host->rootful && host->host_uid == 0;
    doctor_check(w, "id-ranges",
                 host->rootful ? "ok"
                 : as_root     ? "missing"
                               : "warn",
                 host->rootful ? "every session has host ids of its own"
                 : as_root     ? "sessions have the id of the host's root, without its capabilities"
                               : "all sessions share the host id of this user",
                 as_root ? "start boxd outside of this user namespace"
                         : "start boxd as root: it then gives every session its own range");
}

static void check_init_id(struct jw *w, const struct priv_host *host)
{
    bool second = host->rootful || host->init_uid != host->host_uid;
    doctor_check(
        w, "init-id", second ? "ok" : "warn",
        second ? "PID 1 of a session is out of its programs' reach by its id"
               : "PID 1 of a session has the id of its programs; the system call filter keeps "
                 "them from it",
        "install newuidmap and newgidmap (apt-get install uidmap) and give this user a range in "
        "/etc/subuid and /etc/subgid (usermod --add-subuids, --add-subgids)");
}

static void check_groups(struct jw *w, const struct priv_host *host)
{
    static const char *const ids[] = {"limit-cpu", "limit-memory", "limit-pids"};
    static const char *const modes[] = {
        "no cgroup for us: a timeout ends every process of the session",
        "cgroup v1 for limits, cgroup2 for killing",
        "cgroup v2",
    };
    uint32_t mode = host->cgroup_mode <= INIT_CGROUP_V2 ? host->cgroup_mode : 0;
    bool limits =
        host->enforced[CGROUP_CPU] || host->enforced[CGROUP_MEMORY] || host->enforced[CGROUP_PIDS];
    doctor_check(w, "kill", mode != INIT_CGROUP_NONE ? "ok" : "warn",
                 mode == INIT_CGROUP_HYBRID && !limits ? "cgroup2 for killing, without controllers"
                                                       : modes[mode],
                 "start boxd as root, or as a systemd user service with Delegate=yes");
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        doctor_check(
            w, ids[i], host->enforced[i] ? "ok" : "missing",
            host->enforced[i] ? "enforced by cgroup" : host->why[i],
            "start boxd as root, or delegate the controller: systemd-run --user -p Delegate=yes "
            "boxd");
}

/* What differs from sessions on the host's own kernel. */
static void check_gvisor(struct jw *w, const struct native *n)
{
    char text[320];
    (void)snprintf(text, sizeof(text),
                   "gVisor %.60s (%.120s), inside the walls of a native session; its own filter is "
                   "around its kernel, ours around every command inside",
                   n->options.runsc_version, n->options.runsc_program);
    doctor_check(w, "runsc", "ok", text, NULL);
    (void)snprintf(text, sizeof(text),
                   "the host's memory limit of a session has %llu MiB for gVisor itself; a command "
                   "that takes more than its own is ended, but one that is too quick for that ends "
                   "the session",
                   GVISOR_MEMORY_RESERVE >> 20);
    doctor_check(w, "gvisor-limits", "warn", text,
                 "use the native backend, where that matters more than a kernel of its own");
}

static void check_kernel(struct jw *w, const struct priv_host *host, bool gvisor)
{
    char text[80], value[32] = "";
    struct utsname u;
    (void)uname(&u);
    (void)snprintf(text, sizeof(text), "Linux %.60s", u.release);
    doctor_check(w, "kernel", "ok", text, NULL);
    if (gvisor)
        return;
    (void)snprintf(text, sizeof(text), "ABI %u", host->landlock_abi);
    doctor_check(w, "landlock", host->landlock_abi > 0 ? "ok" : "warn",
                 host->landlock_abi > 0 ? text : "not in this kernel, or not switched on",
                 "boot with lsm=landlock,… ; it is a second wall, sessions run without it");
    doctor_check(w, "seccomp", "ok", "filter compiled and loaded for every command", NULL);
    if (fd_read_file_at(AT_FDCWD, "/proc/sys/kernel/core_pattern", value, sizeof(value)) > 0 &&
        value[0] == '|')
        doctor_check(
            w, "core-pattern", "warn",
            "the host pipes core dumps to a program; sessions get a core limit of 1, which "
            "stops that",
            "sysctl kernel.core_pattern=core");
}

static void check_network(struct jw *w, const struct priv_host *host,
                          const struct priv_probe *probe)
{
    char forward[8] = "";
    (void)fd_read_file_at(AT_FDCWD, "/proc/sys/net/ipv4/ip_forward", forward, sizeof(forward));
    const char *detail = !host->rootful ? "own namespace, user-mode, private ranges refused"
                         : forward[0] == '0'
                             ? "own namespace, NAT, private ranges refused; the first session with "
                               "a network turns on net.ipv4.ip_forward"
                             : "own namespace, NAT, private ranges refused";
    doctor_check(w, "network", probe->network.ok ? "ok" : "missing",
                 probe->network.ok ? detail : probe->network.why,
                 host->rootful
                     ? "start boxd as root with nftables (apt-get install nftables)"
                     : "apt-get install slirp4netns nftables, and /dev/net/tun open to users "
                       "(chmod 666 /dev/net/tun); or start boxd as root");
}

static void write_doctor(struct jw *w, const struct native *n, const struct priv_probe *probe)
{
    const struct priv_host *host = priv_client_host(n->priv);
    jw_object(w);
    jw_kstr(w, "version", BOX_VERSION);
    jw_kstr(w, "backend", n->facts.gvisor ? "runsc" : "native");
    jw_kbool(w, "rootful", host->rootful);
    jw_karray(w, "checks");
    if (n->facts.gvisor)
        check_gvisor(w, n);
    check_kernel(w, host, n->facts.gvisor);
    check_ids(w, host);
    if (!n->facts.gvisor)
        check_init_id(w, host);
    check_groups(w, host);
    doctor_check(w, "idmapped-mounts",
                 probe->idmap.ok ? "ok"
                 : host->rootful ? "missing"
                                 : "warn",
                 probe->idmap.ok ? "host directories keep their owners" : probe->idmap.why,
                 "keep the state directory on ext4, xfs, btrfs or tmpfs, on Linux 5.19 or newer");
    doctor_check(w, "disk-quota", probe->quota.ok ? "ok" : "missing",
                 probe->quota.ok ? "hard, by an image per session" : probe->quota.why,
                 "start boxd as root with loop devices and e2fsprogs (apt-get install e2fsprogs)");
    check_network(w, host, probe);
    jw_array_end(w);
    jw_object_end(w);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_probed(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    AUTO_FREE struct native_wait *wait = arg;
    AUTO_DONE(buf) struct buf out = BUF_INIT(REPORT_MAX);
    struct err err = {0};
    struct jw w = JW_INIT(&out);
    if (reply == NULL || reply->result < 0) {
        (void)err_set(&err, ERR_BACKEND, "box-priv cannot probe the host: %s",
                      reply != NULL ? reply->err.msg : "it has gone away");
    } else {
        struct priv_probe probe = reply->probe;
        probe.quota.why[sizeof(probe.quota.why) - 1] = '\0';
        probe.network.why[sizeof(probe.network.why) - 1] = '\0';
        probe.idmap.why[sizeof(probe.idmap.why) - 1] = '\0';
        write_doctor(&w, wait->native, &probe);
        if (jw_end(&w) < 0)
            (void)err_set(&err, ERR_LIMIT, "the report is too large");
    }
    wait->done.text(wait->arg, out.data, out.len, err.code != ERR_NONE ? &err : NULL);
}

int native_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    struct native_wait *wait = xnew(struct native_wait);
    *wait = (struct native_wait){container_of(b, struct native, base), {.text = done}, arg};
    int r = priv_client_ask(wait->native->priv, PRIV_PROBE, on_probed, wait, err);
    if (r < 0)
        free(wait);
    return r;
}
