/* SPDX-License-Identifier: Apache-2.0 */

/* Creates and destroys native sandboxes through box-priv, and makes the backend itself. */

#include "backend/native/native.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "sandbox/dns/dns.h"
#include "sandbox/plan/plan.h"
#include "sandbox/setup/userns.h"
#include "spec/spec.h"

static const struct {
    const char *name;
    unsigned next;
} states[NATIVE_STATE_MAX] = {
    [NATIVE_CREATING] = {"creating", 1U << NATIVE_READY | 1U << NATIVE_DESTROYING},
    [NATIVE_READY] = {"ready", 1U << NATIVE_DESTROYING},
    [NATIVE_DESTROYING] = {"destroying", 0},
};

void native_move(struct native_sandbox *sb, enum native_state to)
{
    assert(states[sb->state].next & (1U << to));
    sb->state = to;
}

void native_index(struct native *n, uint32_t i, bool used)
{
    if (i >= USERNS_INDEX_MAX)
        return;
    if (used)
        n->index_used[i / 8] |= (uint8_t)(1U << (i % 8));
    else
        n->index_used[i / 8] &= (uint8_t) ~(1U << (i % 8));
}

/* Ranges go round: one that was just given back is the last to be used again. */
static int take_index(struct native *n, uint32_t *ret, struct err *err)
{
    for (uint32_t tries = 0; tries < USERNS_INDEX_MAX; tries++) {
        uint32_t i = n->next_index++ % USERNS_INDEX_MAX;
        if (n->index_used[i / 8] & (1U << (i % 8)))
            continue;
        native_index(n, i, true);
        *ret = i;
        return 0;
    }
    return err_set(err, ERR_LIMIT, "no range of host ids is free");
}

/* Nobody in there asks any more, and the namespace goes when the resolver's sockets are closed. */
static void stop_watching(struct native_sandbox *sb)
{
    loop_io_stop(&sb->conn_io);
    loop_io_stop(&sb->pid_io);
    loop_timer_stop(&sb->patience);
    dns_unlisten(TAKE_PTR(sb->dns));
}

void native_sandbox_free(struct native_sandbox *sb)
{
    struct native *n = sb->native;
    native_index(n, sb->uid_index, false);
    stop_watching(sb);
    fd_close_many(&sb->conn, 1);
    fd_close_many(&sb->pidfd, 1);
    strv_free(sb->env);
    free(sb->workdir);
    free(sb->image);
    free(sb->words);
    free(sb);
}

/* PID 1 is gone or no longer makes sense. The user of the sandbox hears of it once, and still
 * destroys it. */
void native_lose(struct native_sandbox *sb)
{
    struct err err = {0};
    if (sb->lost || sb->state == NATIVE_DESTROYING)
        return;
    sb->lost = true;
    stop_watching(sb);
    native_exec_lose_all(sb);
    native_proc_lose_all(sb);
    if (sb->state == NATIVE_READY) {
        sb->on_lost(sb->arg);
    } else if (sb->adopting) {
        (void)err_set(&err, ERR_NOT_FOUND, "the sandbox is not alive any more");
        native_abandon(sb, &err);
    }
}

static void fail_creation(struct native_sandbox *sb, const struct err *err)
{
    backend_created_fn *created = sb->created;
    void *arg = sb->arg;
    native_sandbox_free(sb);
    created(arg, NULL, err);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_destroyed(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_sandbox *sb = arg;
    backend_done_fn *done = sb->destroyed;
    void *done_arg = sb->destroyed_arg;
    struct err err = {0};
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0 && reply->err.code != ERR_NOT_FOUND)
        err = reply->err; /* not found: it died by itself and is cleaned up already */
    native_sandbox_free(sb);
    if (done != NULL)
        done(done_arg, err.code != ERR_NONE ? &err : NULL);
}

void native_abandon(struct native_sandbox *sb, const struct err *err)
{
    backend_created_fn *created = sb->created;
    void *arg = sb->arg;
    struct err ignored, why = *err;
    native_move(sb, NATIVE_DESTROYING);
    stop_watching(sb);
    native_proc_lose_all(sb);
    if (priv_client_destroy(sb->native->priv, sb->name, on_destroyed, sb, &ignored) < 0)
        native_sandbox_free(sb);
    created(arg, NULL, &why);
}

static void start_dns(struct native_sandbox *sb, int *fds)
{
    struct native *n = sb->native;
    struct err err = {0};
    int r = n->dns == NULL ? dns_new(n->loop, &(struct dns_options){0}, &n->dns, &err) : 0;
    if (r == 0)
        r = dns_listen(n->dns, TAKE_FD(fds[0]), TAKE_FD(fds[1]), &sb->dns, &err);
    if (r < 0)
        log_warn(NULL, "name resolution in sandbox %s: %s; ignoring", sb->name, err.msg);
}

/* What the first session with a network changes on the host, its owner should find in the log. */
static void tell_changes(const struct native *n, const struct priv_created *m)
{
    if (m->forwarding_enabled)
        log_info(NULL, "network: turned on net.ipv4.ip_forward of this host, for sessions with a "
                       "network");
    if (m->foreign_rules_added)
        log_info(NULL,
                 "network: another firewall of this host drops what is forwarded; added two accept "
                 "rules for sessions to it, marked box_%s",
                 n->options.tag + strlen(n->options.tag) - NET_TAG_MAX);
}

void native_take_fds(struct native_sandbox *sb, const struct priv_reply *reply, int *fds,
                     size_t n_fds)
{
    if (n_fds >= 2) {
        sb->pidfd = TAKE_FD(fds[0]);
        sb->conn = TAKE_FD(fds[1]);
    }
    if (reply->created.network < NET_KIND_MAX)
        sb->network = reply->created.network;
    if (n_fds == 4)
        start_dns(sb, fds + 2);
    tell_changes(sb->native, &reply->created);
}

static void on_created(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_sandbox *sb = arg;
    struct err err = {0};
    if (reply == NULL) {
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
        fail_creation(sb, &err);
        return;
    }
    if (reply->result < 0) {
        fail_creation(sb, &reply->err);
        return;
    }
    native_take_fds(sb, reply, fds, n_fds);
    if (sb->conn < 0)
        (void)err_set(&err, ERR_LIMIT, "boxd has no file descriptor left for another session");
    if (sb->conn < 0 || native_greet(sb, &err) < 0) {
        native_abandon(sb, &err);
        return;
    }
    /* Requests queue behind our greeting: nobody has to wait for its answer. */
    native_move(sb, NATIVE_READY);
    sb->created(sb->arg, &sb->base, NULL);
}

struct native_sandbox *native_sandbox_new(struct native *n, const struct spec *spec,
                                          backend_created_fn *created, backend_lost_fn *lost,
                                          void *arg)
{
    struct native_sandbox *sb = xnew(struct native_sandbox);
    sb->base.backend = &n->base;
    sb->native = n;
    sb->conn = sb->pidfd = -1;
    sb->uid_index = UINT32_MAX;
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
    sb->env = strv_copy(spec->env);
    sb->workdir = xstrdup(spec->workdir);
    sb->image = xstrdup(spec->image);
    sb->root_writable = !spec->read_only_rootfs;
    sb->quota_bytes = (uint64_t)spec->workspace_quota_mb << 20;
    sb->counted_bytes = backend_counted_bytes(spec);
    sb->pids = (uint32_t)spec->pids_limit;
    sb->next_exec = 1;
    return sb;
}

static int check_image(const struct native *n, const struct spec *spec, struct err *err)
{
    if (!spec->own.image_named || str_eq(spec->image, "host"))
        return 0;
    return err_missing(
        err, ERR_THING_IMAGE,
        "image '%.100s' is not available: %s has none but the host's own files; leave it "
        "out or name it 'host', or start boxd with --backend docker or podman",
        spec->image, n->base.ops->name);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations, and a name. */
int native_create_named(struct backend *b, const char *name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    static struct plan plan; /* large, and needed only here */
    struct native_sandbox *sb = native_sandbox_new(n, spec, created, lost, arg);
    (void)str_copy(sb->name, sizeof(sb->name), name);
    int r = check_image(n, spec, err);
    if (r == 0)
        r = take_index(n, &sb->uid_index, err);
    if (r == 0)
        r = native_plan(spec, &n->facts, sb->name, sb->uid_index, &plan, err);
    if (r == 0)
        r = priv_client_create(n->priv, &plan, on_created, sb, err);
    if (r < 0)
        native_sandbox_free(sb);
    return r;
}

static int native_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                         backend_lost_fn *lost, void *arg, struct err *err)
{
    char name[PLAN_NAME_LEN + 1];
    id_random(name);
    return native_create_named(b, name, spec, created, lost, arg, err);
}

static void native_destroy(struct sandbox *base, backend_done_fn *done, void *arg)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    struct err err = {0};
    if (sb->state == NATIVE_DESTROYING)
        return;
    native_move(sb, NATIVE_DESTROYING);
    stop_watching(sb);
    native_exec_lose_all(sb);
    native_proc_lose_all(sb);
    sb->destroyed = done;
    sb->destroyed_arg = arg;
    if (priv_client_destroy(sb->native->priv, sb->name, on_destroyed, sb, &err) < 0)
        log_error(NULL, "destroy sandbox %s: %s", sb->name, err.msg);
}

static const char *native_sandbox_name(const struct sandbox *base)
{
    return container_of(base, const struct native_sandbox, base)->name;
}

static void native_detach(struct backend *b)
{
    struct native *n = container_of(b, struct native, base);
    dns_free(n->dns);
    priv_client_detach(n->priv);
    strv_free(n->roots);
    strv_free(n->aliases);
    fd_close_many(&n->files_fd, 1);
    free(n->found);
    free(n->index_used);
    free(n);
}

static void native_free(struct backend *b)
{
    struct native *n = container_of(b, struct native, base);
    priv_client_free(TAKE_PTR(n->priv));
    native_detach(b);
}

static const struct backend_ops native_ops = {
    .name = "native",
    .create = native_create,
    .destroy = native_destroy,
    .exec = native_exec_start,
    .exec_write = native_exec_write,
    .exec_close_stdin = native_exec_close_stdin,
    .exec_signal = native_exec_signal,
    .exec_kill = native_exec_kill,
    .exec_resize = native_exec_resize,
    .exec_pause = native_exec_pause,
    .exec_free = native_exec_free,
    .sandbox_name = native_sandbox_name,
    .adopt = native_adopt,
    .sweep = native_sweep,
    .set_deadline = native_set_deadline,
    .detach = native_detach,
    .proc_start = native_proc_start,
    .proc_adopt = native_proc_adopt,
    .proc_range = native_proc_range,
    .proc_read = native_proc_read,
    .proc_release = native_proc_release,
    .proc_stderr = native_proc_stderr,
    .proc_stderr_from = native_proc_stderr_from,
    .proc_unwritten = native_proc_unwritten,
    .proc_write = native_proc_write,
    .proc_close_stdin = native_proc_close_stdin,
    .proc_signal = native_proc_signal,
    .proc_kill = native_proc_kill,
    .proc_end = native_proc_end,
    .proc_free = native_proc_free,
    .receipt = native_receipt,
    .held = native_held,
    .place = native_place,
    .doctor = native_doctor,
    .free = native_free,
};

/* Plans name a root by its number in box-priv's list, which was fixed when that started. What is
 * not ours any more is covered up; what is new has to wait until box-priv is started again. */
static void take_roots(struct native *n)
{
    char *const *theirs = priv_client_roots(n->priv);
    char *const *ours = n->options.roots;
    for (size_t i = 0; theirs != NULL && theirs[i] != NULL; i++) {
        size_t k = 0;
        while (ours != NULL && ours[k] != NULL && !str_eq(ours[k], theirs[i]))
            k++;
        strv_add(&n->roots, ours != NULL && ours[k] != NULL ? theirs[i] : NATIVE_NO_ROOT);
    }
    for (size_t k = 0; ours != NULL && ours[k] != NULL; k++) {
        size_t i = 0;
        while (theirs != NULL && theirs[i] != NULL && !str_eq(ours[k], theirs[i]))
            i++;
        if (theirs == NULL || theirs[i] == NULL)
            log_warn(NULL,
                     "'%s' cannot be mounted yet: sessions of an earlier boxd run on, under the "
                     "allowed_mount_roots of their time",
                     ours[k]);
    }
    n->facts.roots = n->roots;
}

int native_new(struct loop *loop, const struct native_options *options, struct backend **ret,
               struct err *err)
{
    struct native *n = xnew(struct native);
    n->base.ops = &native_ops;
    n->loop = loop;
    n->options = *options;
    n->files_fd = -1;
    n->index_used = xnew_n(uint8_t, USERNS_INDEX_MAX / 8 + 1);
    /* Another instance on this host starts elsewhere: its sessions should have ids of their own. */
    n->next_index = (uint32_t)(str_hash(options->tag) % USERNS_INDEX_MAX);
    native_facts_read(&n->facts);
    n->facts.aliases = n->aliases = native_aliases(options->aliases);
    n->facts.roots_are_outer = options->roots_are_outer;
    n->facts.require_limits = options->require_limits;
    n->facts.workspace_entries = options->workspace_entries;
    n->facts.gvisor = options->runsc_program != NULL;
    struct priv_client_options po = {.program = options->program,
                                     .fetch_program = options->fetch_program,
                                     .init_program = options->init_program,
                                     .runsc_program = options->runsc_program,
                                     .guest_program = options->guest_program,
                                     .state_dir = options->state_dir,
                                     .tag = options->tag,
                                     .uid = options->uid,
                                     .gid = options->gid,
                                     .roots = options->roots,
                                     .places = options->roots_are_outer,
                                     .linger_sec = options->linger_sec};
    int r = priv_client_new(loop, &po, &n->priv, err);
    if (r < 0) {
        native_detach(&n->base);
        return r;
    }
    n->facts.one_id = !priv_client_host(n->priv)->rootful;
    take_roots(n);
    native_find(n);
    priv_client_on_gone(n->priv, options->gone, options->gone_arg);
    *ret = &n->base;
    return 0;
}
