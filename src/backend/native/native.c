/* SPDX-License-Identifier: Apache-2.0 */

/* Native sandboxes: creates, adopts, sweeps and destroys them through box-priv, keeps the
 * connection to the PID 1 of each, and makes the backend itself. */

#include "backend/native/native.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "base/strv.h"
#include "sandbox/dns/dns.h"
#include "sandbox/plan/plan.h"
#include "sandbox/setup/userns.h"
#include "spec/spec.h"

#define MESSAGES_PER_TURN 64               /* then other sessions get theirs */
#define PATIENCE_NS (15ULL * NSEC_PER_SEC) /* a PID 1 that has nothing to say by then is stuck */
#define WORDS_MAX 320
#define NO_ROOT "-" /* no path of a mount begins like this */

static void native_move(struct native_sandbox *sb, enum native_state to)
{
    static const unsigned moves[NATIVE_STATE_MAX] = {
        [NATIVE_CREATING] = 1U << NATIVE_READY | 1U << NATIVE_DESTROYING,
        [NATIVE_READY] = 1U << NATIVE_DESTROYING,
    };
    STATE_MOVE(sb->state, moves, to);
}

static void mark_index(struct native *n, uint32_t i, bool used)
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
        mark_index(n, i, true);
        *ret = i;
        return 0;
    }
    return err_set(err, ERR_LIMIT, "no range of host ids is free");
}

/* No program in there resolves names any more, and the namespace goes when the resolver's sockets
 * are closed. */
static void stop_watching(struct native_sandbox *sb)
{
    loop_io_stop(&sb->conn_io);
    loop_io_stop(&sb->pid_io);
    loop_timer_stop(&sb->patience);
    dns_unlisten(TAKE_PTR(sb->dns));
}

static void sandbox_free(struct native_sandbox *sb)
{
    struct native *n = sb->native;
    mark_index(n, sb->uid_index, false);
    stop_watching(sb);
    fd_close_many(&sb->conn, 1);
    fd_close_many(&sb->pidfd, 1);
    strv_free(sb->env);
    free(sb->workdir);
    free(sb->image);
    free(sb->words);
    free(sb);
}

static void abandon(struct native_sandbox *sb, const struct err *err);

/* PID 1 is gone or no longer makes sense. The user of the sandbox hears of it once, and still
 * destroys it. */
void native_lose(struct native_sandbox *sb)
{
    struct err err = {0};
    if (sb->lost || sb->state == NATIVE_DESTROYING)
        return;
    sb->lost = true;
    stop_watching(sb);
    tasks_lose(&sb->tasks);
    native_dials_lose(sb);
    if (sb->state == NATIVE_READY) {
        sb->on_lost(sb->arg);
    } else if (sb->adopting) {
        (void)err_set(&err, ERR_NOT_FOUND, "the sandbox is not alive any more");
        abandon(sb, &err);
    }
}

static void fail_creation(struct native_sandbox *sb, const struct err *err)
{
    backend_created_fn *created = sb->created;
    void *arg = sb->arg;
    sandbox_free(sb);
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
    sandbox_free(sb);
    if (done != NULL)
        done(done_arg, err.code != ERR_NONE ? &err : NULL);
}

static void abandon(struct native_sandbox *sb, const struct err *err)
{
    backend_created_fn *created = sb->created;
    void *arg = sb->arg;
    struct err ignored, why = *err;
    native_move(sb, NATIVE_DESTROYING);
    stop_watching(sb);
    tasks_lose(&sb->tasks);
    native_dials_lose(sb);
    /* What it was to take over from an earlier one stays. */
    enum priv_type how = sb->adopting || sb->stored ? PRIV_STOP : PRIV_DESTROY;
    if (priv_client_ask_about(sb->native->priv, how, sb->name, on_destroyed, sb, &ignored) < 0)
        sandbox_free(sb);
    created(arg, NULL, &why);
}

static void start_dns(struct native_sandbox *sb, int *fds)
{
    struct native *n = sb->native;
    struct err err = {0};
    if (n->dns == NULL)
        n->dns = dns_new(n->loop, &(struct dns_options){0});
    if (dns_listen(n->dns, TAKE_FD(fds[0]), TAKE_FD(fds[1]), &sb->dns, &err) < 0)
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

static void take_fds(struct native_sandbox *sb, const struct priv_reply *reply, int *fds,
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
    sb->tasks.sandbox.paused = reply->created.paused != 0;
    tell_changes(sb->native, &reply->created);
}

int native_send(struct native_sandbox *sb, const void *data, size_t len)
{
    if (sb->conn_io.loop == NULL)
        return -EPIPE;
    ssize_t n = fd_send_msg(sb->conn, data, len, NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == -EAGAIN)
        (void)loop_io_events(&sb->conn_io, EPOLLIN | EPOLLOUT);
    return n < 0 ? (int)n : 0;
}

/* The connection to PID 1. */

static void on_pid1_gone(struct loop_io *io, uint32_t events)
{
    native_lose(container_of(io, struct native_sandbox, pid_io));
}

static void on_conn(struct loop_io *io, uint32_t events)
{
    struct native_sandbox *sb = container_of(io, struct native_sandbox, conn_io);
    if (events & EPOLLOUT)
        native_flush(sb);
    /* A callback may end the sandbox. */
    for (int i = 0; i < MESSAGES_PER_TURN && io->loop != NULL; i++) {
        static union native_message m; /* a list of processes is large, and checked by its length */
        memset(&m, 0, sizeof(m.state));
        int fds[4];
        size_t n_fds = 4;
        ssize_t n = fd_recv_msg(sb->conn, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
        if (n == -EAGAIN)
            return;
        bool fine = n > 0 || n == -EMSGSIZE;
        if (fine && sb->greeted)
            fine = native_on_message(sb, &m, n > 0 ? (size_t)n : 0, n > 0, fds, n_fds);
        else if (fine) /* what is not for us comes before the answer to our own greeting */
            sb->greeted = n == (ssize_t)sizeof(m.hello) && m.type == INIT_MSG_HELLO &&
                          m.hello.version == INIT_WIRE_VERSION && m.hello.epoch == sb->epoch;
        fd_close_many(fds, n_fds);
        if (!fine) {
            native_lose(sb);
            return;
        }
    }
}

/* runsc says nothing unless something is wrong. The first of it is kept, fit to be shown. */
static void on_words(struct loop_io *io, uint32_t events)
{
    struct native_sandbox *sb = container_of(io, struct native_sandbox, conn_io);
    char text[1024];
    ssize_t n = recv(sb->conn, text, sizeof(text), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        loop_io_stop(io); /* that it is gone is told by its pidfd */
    if (n > 0 && sb->words == NULL)
        sb->words = xnew_n(char, WORDS_MAX);
    size_t len = sb->words != NULL ? strlen(sb->words) : 0;
    for (ssize_t i = 0; i < n && len + 1 < WORDS_MAX; i++) {
        bool blank = text[i] <= ' ' || text[i] > '~';
        if (!blank || (len > 0 && sb->words[len - 1] != ' '))
            sb->words[len++] = blank ? ' ' : text[i];
    }
}

/* What it said last may still be on its way when it is gone. */
const char *native_last_words(struct sandbox *base)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    if (sb->conn >= 0)
        on_words(&sb->conn_io, EPOLLIN);
    return sb->words != NULL ? sb->words : "";
}

static int watch_pid1(struct native_sandbox *sb, loop_io_fn *fn, struct err *err)
{
    int r = loop_io_start(sb->native->loop, &sb->conn_io, sb->conn, EPOLLIN, fn);
    if (r == 0)
        r = loop_io_start(sb->native->loop, &sb->pid_io, sb->pidfd, EPOLLIN, on_pid1_gone);
    return r < 0 ? err_sys(err, -r, "watch the sandbox's first process") : 0;
}

static int greet(struct native_sandbox *sb, struct err *err)
{
    if (sb->native->facts.gvisor)
        return watch_pid1(sb, on_words, err);
    struct init_hello hello = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION};
    if (getrandom(&sb->epoch, sizeof(sb->epoch), 0) != (ssize_t)sizeof(sb->epoch))
        return err_sys(err, errno, "random number");
    hello.epoch = sb->epoch;
    ssize_t n = fd_send_msg(sb->conn, &hello, sizeof(hello), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return err_sys(err, (int)-n, "greet the sandbox's first process");
    return watch_pid1(sb, on_conn, err);
}

/* False: that has failed, and the sandbox is given up. */
static bool connect_pid1(struct native_sandbox *sb, const struct priv_reply *reply, int *fds,
                         size_t n_fds)
{
    struct err err = {0};
    take_fds(sb, reply, fds, n_fds);
    if (sb->conn < 0)
        (void)err_set(&err, ERR_LIMIT, "boxd has no file descriptor left for another session");
    if (sb->conn >= 0 && greet(sb, &err) == 0)
        return true;
    abandon(sb, &err);
    return false;
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
    if (!connect_pid1(sb, reply, fds, n_fds))
        return;
    /* Requests queue behind our greeting, so its answer need not be awaited. */
    native_move(sb, NATIVE_READY);
    sb->created(sb->arg, &sb->tasks.sandbox, NULL);
}

static struct native_sandbox *sandbox_new(struct native *n, const struct spec *spec,
                                          backend_created_fn *created, backend_lost_fn *lost,
                                          void *arg)
{
    struct native_sandbox *sb = xnew(struct native_sandbox);
    tasks_init(&sb->tasks, &n->base, &native_tasks_ops, n->loop);
    LIST_INIT(&sb->dials);
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
    return err_missing(err, ERR_THING_IMAGE,
                       "image '%.100s' is not available: the backend %s has no images, only the "
                       "host's own files; leave "
                       "the image out, or start boxd with --backend docker or podman",
                       spec->image, n->base.ops->name);
}

/* On gVisor the number of processes is RLIMIT_NPROC, which counts for one session alone there. */
static const char *native_unenforced(const struct backend *b, const struct spec *spec,
                                     unsigned field)
{
    const struct native *n = container_of(b, const struct native, base);
    const struct priv_host *host = priv_client_host(n->priv);
    int controller = field == SPEC_MEMORY_MB                        ? CGROUP_MEMORY
                     : field == SPEC_CPUS                           ? CGROUP_CPU
                     : field == SPEC_PIDS_LIMIT && !n->facts.gvisor ? CGROUP_PIDS
                                                                    : -1;
    if (field == SPEC_IMAGE)
        return str_eq(spec->image, "host") ? NULL : "the host's own files take its place";
    if (controller >= 0)
        return host->enforced[controller] ? NULL : host->why[controller];
    return field == SPEC_WORKSPACE_QUOTA_MB && spec->workspace_quota_mb > 0 && !host->rootful
               ? "a disk quota needs boxd to be started by root"
               : NULL;
}

/* box-priv refuses a quota that it cannot make. */
static void drop_quota(const struct native *n, const struct spec *spec, struct plan *plan,
                       struct native_sandbox *sb)
{
    if (!spec->own.best_effort ||
        native_unenforced(&n->base, spec, SPEC_WORKSPACE_QUOTA_MB) == NULL)
        return;
    plan->quota_bytes = plan->quota_inodes = 0;
    sb->quota_bytes = 0;
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations, and a name. */
int native_create_named(struct backend *b, struct native_name name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    static struct plan plan; /* large, and needed only here */
    struct native_sandbox *sb = sandbox_new(n, spec, created, lost, arg);
    (void)str_copy(sb->name, sizeof(sb->name), name.text);
    sb->stored = name.stored;
    int r = check_image(n, spec, err);
    if (r == 0)
        r = backend_require(b, spec, err);
    if (r == 0)
        r = take_index(n, &sb->uid_index, err);
    if (r == 0)
        r = native_plan(spec, &n->facts, sb->name, sb->uid_index, &plan, err);
    if (r == 0) {
        drop_quota(n, spec, &plan, sb);
        r = priv_client_create(n->priv, &plan, on_created, sb, err);
    }
    if (r < 0)
        sandbox_free(sb);
    return r;
}

static int native_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                         backend_lost_fn *lost, void *arg, struct err *err)
{
    char name[PLAN_NAME_LEN + 1];
    id_random(name);
    return native_create_named(b, (struct native_name){.text = name}, spec, created, lost, arg,
                               err);
}

void native_end(struct native_sandbox *sb, enum priv_type how, backend_done_fn *done, void *arg)
{
    struct err err = {0};
    if (sb->state == NATIVE_DESTROYING)
        return;
    native_move(sb, NATIVE_DESTROYING);
    stop_watching(sb);
    tasks_lose(&sb->tasks);
    native_dials_lose(sb);
    sb->destroyed = done;
    sb->destroyed_arg = arg;
    if (priv_client_ask_about(sb->native->priv, how, sb->name, on_destroyed, sb, &err) < 0)
        log_error(NULL, "end sandbox %s: %s", sb->name, err.msg);
}

static void native_destroy(struct sandbox *base, backend_done_fn *done, void *arg)
{
    native_end(container_of(base, struct native_sandbox, tasks.sandbox), PRIV_DESTROY, done, arg);
}

/* Sandboxes that an earlier daemon left. */

static void find_left(struct native *n)
{
    const struct priv_item *items = NULL;
    n->n_found = priv_client_found(n->priv, &items);
    n->found = xnew_n(struct native_found, n->n_found + 1);
    for (size_t i = 0; i < n->n_found; i++) {
        (void)str_copy(n->found[i].name, sizeof(n->found[i].name), items[i].name);
        n->found[i].uid_index = items[i].uid_index;
        mark_index(n, items[i].uid_index, true); /* it is in use, adopted or not */
    }
}

static struct native_found *found_by_name(struct native *n, const char *name)
{
    for (size_t i = 0; i < n->n_found; i++)
        if (!n->found[i].taken && str_eq(n->found[i].name, name))
            return &n->found[i];
    return NULL;
}

static void on_impatient(struct loop_timer *t)
{
    native_lose(container_of(t, struct native_sandbox, patience));
}

static void on_adopted(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_sandbox *sb = arg;
    struct err err = {0};
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0)
        err = reply->err;
    if (reply == NULL || err.code == ERR_NOT_FOUND) {
        fail_creation(sb, &err);
        return;
    }
    if (err.code != ERR_NONE) { /* it may be there, but it is of no use */
        abandon(sb, &err);
        return;
    }
    sb->uid_index = reply->created.uid_index;
    mark_index(sb->native, sb->uid_index, true);
    if (!connect_pid1(sb, reply, fds, n_fds))
        return;
    if (sb->native->facts.gvisor) /* what runs in there is not ours to know */
        native_on_listed(sb);
    else
        loop_timer_start(sb->native->loop, &sb->patience, PATIENCE_NS, on_impatient);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int native_adopt(struct backend *b, const char *name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    struct native_found *found = found_by_name(n, name);
    if (strlen(name) != PLAN_NAME_LEN)
        return err_set(err, ERR_INVALID, "'%.40s' is not the name of a sandbox", name);
    /* Two connections to one PID 1 would take each other's answers. */
    if (found == NULL)
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    struct native_sandbox *sb = sandbox_new(n, spec, created, lost, arg);
    (void)str_copy(sb->name, sizeof(sb->name), name);
    sb->adopting = true;
    sb->uid_index = found->uid_index;
    int r = priv_client_ask_about(n->priv, PRIV_ADOPT, name, on_adopted, sb, err);
    if (r < 0) {
        sb->uid_index = UINT32_MAX; /* it may be there all the same */
        sandbox_free(sb);
        return r;
    }
    found->taken = true;
    return 0;
}

void native_on_listed(struct native_sandbox *sb)
{
    if (!sb->adopting || sb->state != NATIVE_CREATING)
        return;
    sb->adopting = false;
    loop_timer_stop(&sb->patience);
    native_move(sb, NATIVE_READY);
    sb->created(sb->arg, &sb->tasks.sandbox, NULL);
    native_proc_end_untaken(sb); /* none are left if that has ended the sandbox */
}

struct native_sweep {
    struct native *native;
    size_t waiting; /* answers that are still to come */
    backend_done_fn *done;
    void *arg;
    struct err err; /* the first that was told */
};

static void swept(struct native_sweep *s, const struct priv_reply *reply)
{
    if (reply == NULL)
        (void)err_set(&s->err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0 && reply->err.code != ERR_NOT_FOUND && s->err.code == ERR_NONE)
        s->err = reply->err;
    if (--s->waiting > 0)
        return;
    s->done(s->arg, s->err.code != ERR_NONE ? &s->err : NULL);
    free(s);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_swept(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    swept(arg, reply);
}

struct sweep_one {
    struct native_sweep *sweep;
    uint32_t uid_index;
};

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_swept_one(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct sweep_one *one = arg;
    struct native_sweep *s = one->sweep;
    if (reply != NULL && (reply->result == 0 || reply->err.code == ERR_NOT_FOUND))
        mark_index(s->native, one->uid_index, false);
    free(one);
    swept(s, reply);
}

static int native_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    struct native_sweep *s = xnew(struct native_sweep);
    *s = (struct native_sweep){.native = n, .done = done, .arg = arg};
    int r = priv_client_ask(n->priv, PRIV_SWEEP, on_swept, s, err);
    if (r < 0) {
        free(s);
        return r;
    }
    s->waiting = 1;
    for (size_t i = 0; i < n->n_found; i++) {
        struct native_found *f = &n->found[i];
        if (f->taken)
            continue;
        struct sweep_one *one = xnew(struct sweep_one);
        *one = (struct sweep_one){.sweep = s, .uid_index = f->uid_index};
        struct err why = {0};
        if (priv_client_ask_about(n->priv, PRIV_STOP, f->name, on_swept_one, one, &why) < 0) {
            s->err = why; /* told with the rest */
            free(one);
            continue;
        }
        f->taken = true;
        s->waiting++;
    }
    return 0;
}

static void native_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    if (sb->deadline_known && sb->deadline_ns == boot_ns)
        return;
    sb->deadline_known = true;
    sb->deadline_ns = boot_ns;
    priv_client_deadline(sb->native->priv, sb->name, boot_ns);
}

/* The backend. */

static const char *native_sandbox_name(const struct sandbox *base)
{
    return container_of(base, const struct native_sandbox, tasks.sandbox)->name;
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

/* Plans name it by box-priv's number. */
static void learn_root(void *who, uint32_t number, const char *path)
{
    struct native *n = who;
    while (strv_len(n->roots) <= number)
        strv_add(&n->roots, NO_ROOT);
    free(n->roots[number]);
    n->roots[number] = xstrdup(path);
    n->facts.roots = n->roots;
}

static int native_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                        void *arg, struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    return backend_place_by_priv(n->priv, want, &(struct backend_placer){learn_root, n, fn, arg},
                                 err);
}

static const struct backend_ops native_ops = {
    .name = "native",
    .create = native_create,
    .destroy = native_destroy,
    .sandbox_name = native_sandbox_name,
    .adopt = native_adopt,
    .sweep = native_sweep,
    .set_deadline = native_set_deadline,
    .stop = native_stop,
    .start = native_start,
    .discard = native_discard,
    .stored = native_stored,
    .pause = native_pause,
    .update = native_update,
    .diff = native_diff,
    .connect = native_connect,
    .listen = native_listen,
    .detach = native_detach,
    .receipt = native_receipt,
    .usage = native_usage,
    .unenforced = native_unenforced,
    .held = native_held,
    .greediest = native_greediest,
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
        strv_add(&n->roots, ours != NULL && ours[k] != NULL ? theirs[i] : NO_ROOT);
    }
    for (size_t k = 0; ours != NULL && ours[k] != NULL; k++) {
        size_t i = 0;
        while (theirs != NULL && theirs[i] != NULL && !str_eq(ours[k], theirs[i]))
            i++;
        if (theirs == NULL || theirs[i] == NULL)
            log_warn(NULL,
                     "'%s' cannot be mounted yet: sessions of an earlier boxd run on with its "
                     "allowed_mount_roots; stop them (box ps, box stop), then restart boxd",
                     ours[k]);
    }
    n->facts.roots = n->roots;
}

int native_new(struct loop *loop, const struct native_options *options, struct backend **ret,
               struct err *err)
{
    struct native *n = xnew(struct native);
    n->ops = native_ops;
    tasks_operations(&n->ops);
    n->base.ops = &n->ops;
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
    find_left(n);
    priv_client_on_gone(n->priv, options->gone, options->gone_arg);
    *ret = &n->base;
    return 0;
}
