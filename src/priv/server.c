/* SPDX-License-Identifier: Apache-2.0 */
#include "priv/server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/loop.h"
#include "priv/wire.h"
#include "sandbox/landlock.h"
#include "sandbox/launch.h"
#include "sandbox/loopimg.h"
#include "sandbox/mount.h"
#include "sandbox/storage.h"
#include "sandbox/userns.h"
#include "util/alloc.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/path.h"
#include "util/str.h"

#define REMOVE_PATIENCE_NS (2ULL * NSEC_PER_SEC)
#define SWEEP_INTERVAL_NS (500 * NSEC_PER_MSEC)

struct priv;

struct priv_session {
    struct priv *priv; /* borrowed */
    struct launch launch;
    uint32_t create_id;  /* who waits for the start */
    bool started;        /* and has heard of it */
    uint32_t destroy_id; /* who waits for the end, 0: nobody */
    struct err why;      /* the child's error, told when it is gone */
    struct loop_io status_io, pid_io;
    int remover_fd; /* child that removes the files, -1: none */
    struct loop_io remover_io;
    struct loop_timer patience;
};

/*   NEW ──hello──► SERVING ──peer gone──► ENDING   */
enum priv_state { PRIV_NEW, PRIV_SERVING, PRIV_ENDING, PRIV_STATE_MAX };

struct priv {
    struct loop *loop;
    struct launch_host *host;
    int sock;
    enum priv_state state;
    struct loop_io io;
    struct loop_signal signals;
    struct loop_timer sweep; /* runs while leases of networks are to be taken back */
    struct priv_session *sessions[PRIV_SESSIONS_MAX]; /* owned, dense */
    size_t n_sessions;
};

static void answer(struct priv *p, struct priv_reply *reply, const int *fds, size_t n_fds)
{
    if (p->state == PRIV_ENDING)
        return;
    /* Blocking: boxd always reads, and never waits for us to read. */
    ssize_t n = fd_send_msg(p->sock, reply, sizeof(*reply), fds, n_fds, MSG_NOSIGNAL);
    (void)n; /* a dead peer is noticed by its end of file */
}

static void answer_error(struct priv *p, const struct priv_head *head, int result,
                         const struct err *err)
{
    struct priv_reply reply = {.head = *head, .result = result, .err = *err};
    answer(p, &reply, NULL, 0);
}

static struct priv_session *find(struct priv *p, const char *name)
{
    for (size_t i = 0; i < p->n_sessions; i++)
        if (strcmp(p->sessions[i]->launch.name, name) == 0)
            return p->sessions[i];
    return NULL;
}

static void session_free(struct priv_session *s)
{
    struct priv *p = s->priv;
    loop_io_stop(&s->status_io);
    loop_io_stop(&s->pid_io);
    loop_io_stop(&s->remover_io);
    loop_timer_stop(&s->patience);
    fd_close_many(&s->remover_fd, 1);
    for (size_t i = 0; i < p->n_sessions; i++) {
        if (p->sessions[i] == s) {
            p->sessions[i] = p->sessions[--p->n_sessions];
            break;
        }
    }
    free(s);
    if (p->state == PRIV_ENDING && p->n_sessions == 0)
        loop_quit(p->loop);
}

/* Nothing is left, or so much that its removal goes on while whoever asked gets the answer. */
static void finish(struct priv_session *s)
{
    struct priv *p = s->priv;
    struct err why = s->why;
    struct priv_head created = {PRIV_CREATE, s->create_id},
                     destroyed = {PRIV_DESTROY, s->destroy_id};
    session_free(s); /* before the answer: whoever reads it finds nothing of ours any more */
    ahead_settle(&p->host->ahead);
    if (why.code != ERR_NONE)
        answer_error(p, &created, why.sys > 0 ? -why.sys : err_code_errno(why.code), &why);
    if (destroyed.id != 0) {
        struct priv_reply reply = {.head = destroyed};
        answer(p, &reply, NULL, 0);
    }
    storage_refill(p->host, 1);
}

static void on_removed(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, remover_io);
    (void)events;
    (void)waitid(P_PIDFD, (id_t)s->remover_fd, NULL, WEXITED); /* unless somebody has */
    finish(s);
}

static void on_remove_slow(struct loop_timer *t)
{
    finish(container_of(t, struct priv_session, patience));
}

static void on_sweep(struct loop_timer *t)
{
    struct priv *p = container_of(t, struct priv, sweep);
    launch_net_sweep(p->host);
    if (p->host->net.n_going > 0)
        loop_timer_start(p->loop, &p->sweep, SWEEP_INTERVAL_NS, on_sweep);
}

static void sweep_later(struct priv *p)
{
    if (p->host->net.n_going > 0 && p->sweep.loop == NULL)
        loop_timer_start(p->loop, &p->sweep, SWEEP_INTERVAL_NS, on_sweep);
}

/* Children that are nobody's sandbox: removers of large storage, helpers of networks, and what the
 * sandbox modules ran. */
static void reap_others(struct priv *p)
{
    for (;;) {
        siginfo_t si = {0};
        if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || si.si_pid == 0)
            return;
        for (size_t i = 0; i < p->n_sessions; i++)
            if (p->sessions[i]->launch.pid == si.si_pid)
                return; /* its pidfd tells, and then the others have their turn */
        (void)waitpid(si.si_pid, NULL, WNOHANG);
    }
}

/* PID 1 is gone, and with it every process: take the rest away and tell who asked. */
static void on_pid_gone(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, pid_io);
    struct priv *p = s->priv;
    (void)events;
    loop_io_stop(&s->pid_io);
    loop_io_stop(&s->status_io);
    if (!s->started && s->why.code == ERR_NONE)
        (void)err_set(&s->why, ERR_BACKEND,
                      "the sandbox's first process died while it was being set up");
    launch_kill(&s->launch); /* what is left of the group, if PID 1 died by itself */
    s->remover_fd = launch_cleanup(p->host, &s->launch);
    reap_others(p);
    sweep_later(p);
    if (s->remover_fd < 0 ||
        loop_io_start(p->loop, &s->remover_io, s->remover_fd, EPOLLIN, on_removed) < 0)
        finish(s);
    else
        loop_timer_start(p->loop, &s->patience, REMOVE_PATIENCE_NS, on_remove_slow);
}

/* The child has become box-init, or has said why not. */
static void on_status(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, status_io);
    struct priv *p = s->priv;
    (void)events;
    loop_io_stop(&s->status_io);
    if (s->launch.state == LAUNCH_DYING)
        return; /* it is too late for a start; what there is to say is said when it is gone */
    if (launch_finish_start(&s->launch, &s->why) < 0) {
        launch_kill(&s->launch); /* answered when it is gone */
        return;
    }
    s->started = true;
    struct priv_reply reply = {.head = {PRIV_CREATE, s->create_id}};
    struct net_host_info *info = &p->host->net.info;
    reply.created = (struct priv_created){.network = s->launch.net,
                                          .forwarding_enabled = info->forwarding_enabled,
                                          .foreign_rules_added = info->foreign_rules_added};
    *info = (struct net_host_info){0};
    const int fds[PRIV_FDS_MAX] = {s->launch.pidfd, s->launch.control_fd, s->launch.dns_fds[0],
                                   s->launch.dns_fds[1]};
    answer(p, &reply, fds, s->launch.net != NET_NONE ? 4 : 2);
    fd_close_many(&s->launch.control_fd, 1);
    fd_close_many(s->launch.dns_fds, 2);
    /* boxd gives out ranges in order, so the next session most likely has the next one. */
    ahead_refill(&p->host->ahead, s->launch.uid_index + 1, p->host->daemon_uid,
                 p->host->daemon_gid);
}

static int on_hello(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_hello *m = data;
    const struct launch_host *h = p->host;
    if (len != sizeof(*m) || m->version != PRIV_WIRE_VERSION)
        return err_set(err, ERR_INVALID, "box-priv and boxd are not of the same version");
    struct priv_reply reply = {.head = m->head};
    reply.host.version = PRIV_WIRE_VERSION;
    reply.host.rootful = h->rootful;
    reply.host.host_uid = h->host_uid;
    reply.host.cgroup_mode = h->cgroups.mode;
    reply.host.landlock_abi = (uint32_t)landlock_abi();
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        reply.host.enforced[i] = h->cgroups.enforced[i];
        memcpy(reply.host.why[i], h->cgroups.why[i], sizeof(reply.host.why[i]));
    }
    p->state = PRIV_SERVING;
    answer(p, &reply, NULL, 0);
    return 0;
}

/* A requester gains nothing here that the plan's own checks and the bounds of launch.h do not
 * allow: names are ours, ids come from a block nobody else uses, and no two live sandboxes share a
 * range. */
static int on_create(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_create *m = data;
    int r = len < sizeof(m->head)
                ? -EINVAL
                : plan_check(&m->plan, len - offsetof(struct priv_create, plan), err);
    if (r < 0)
        return err->code == ERR_NONE ? err_set(err, ERR_INVALID, "short request") : r;
    if (m->plan.uid_index >= USERNS_INDEX_MAX)
        return err_set(err, ERR_INVALID, "plan: id range out of bounds");
    if (p->n_sessions >= PRIV_SESSIONS_MAX)
        return err_set(err, ERR_LIMIT, "too many sandboxes: %u", PRIV_SESSIONS_MAX);
    for (size_t i = 0; i < p->n_sessions; i++)
        if (p->sessions[i]->launch.uid_index == m->plan.uid_index ||
            strcmp(p->sessions[i]->launch.name, m->plan.name) == 0)
            return err_set(err, ERR_CONFLICT, "plan: name or id range is in use");

    struct priv_session *s = xnew(struct priv_session);
    s->priv = p;
    s->create_id = m->head.id;
    s->remover_fd = -1;
    r = launch_start(p->host, &m->plan, &s->launch, err);
    if (r < 0) {
        free(s);
        sweep_later(p);
        return r;
    }
    p->sessions[p->n_sessions++] = s;
    if (loop_io_start(p->loop, &s->status_io, s->launch.status_fd, EPOLLIN, on_status) == 0 &&
        loop_io_start(p->loop, &s->pid_io, s->launch.pidfd, EPOLLIN, on_pid_gone) == 0)
        return 0;
    /* Nobody would tell us when it is gone: it goes now, while we wait. */
    launch_kill(&s->launch);
    s->remover_fd = launch_cleanup(p->host, &s->launch);
    session_free(s);
    return err_set(err, ERR_LIMIT, "cannot watch another sandbox");
}

static struct priv_session *by_request(struct priv *p, const void *data, size_t len,
                                       struct err *err)
{
    const struct priv_name *m = data;
    struct priv_session *s = NULL;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0')
        s = find(p, m->name);
    if (s == NULL)
        (void)err_set(err, ERR_NOT_FOUND, "no such sandbox");
    return s;
}

static int on_destroy(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_name *m = data;
    struct priv_session *s = by_request(p, data, len, err);
    if (s == NULL)
        return -ENOENT;
    if (s->destroy_id != 0)
        return err_set(err, ERR_STATE, "the sandbox is being destroyed already");
    s->destroy_id = m->head.id; /* also when it died by itself and its files are just going */
    launch_kill(&s->launch);
    return 0;
}

static void read_namespaces(pid_t pid, uint64_t *ret)
{
    /* Of time what the children are in: before Linux 6.2 whoever makes one is not itself in it. */
    static const char *const names[PRIV_NS_MAX] = {"user", "mnt", "pid",    "net",
                                                   "ipc",  "uts", "cgroup", "time_for_children"};
    for (int i = 0; i < PRIV_NS_MAX; i++) {
        char path[64];
        struct stat st;
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, names[i]);
        ret[i] = stat(path, &st) == 0 ? st.st_ino : 0;
    }
}

static void read_disk(const struct launch *l, struct priv_inspect *out)
{
    struct loopimg_usage usage = {0};
    struct err ignored = {0};
    if (l->disk_fd < 0 || loopimg_usage(l->disk_fd, &usage, &ignored) < 0)
        return;
    out->disk_total = usage.bytes_total;
    out->disk_used = usage.bytes_used;
    out->inodes_total = usage.inodes_total;
    out->inodes_used = usage.inodes_used;
}

static int on_inspect(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = by_request(p, data, len, err);
    char path[64];
    struct stat st;
    if (s == NULL)
        return -ENOENT;
    struct priv_reply reply = {.head = {PRIV_INSPECT, ((const struct priv_name *)data)->head.id}};
    struct priv_inspect *out = &reply.inspect;
    struct cgroup groups;
    cgroup_open(&p->host->cgroups, s->launch.name, &groups);
    cgroup_read(&p->host->cgroups, &groups, &out->cgroup);
    cgroup_close(&groups);
    read_disk(&s->launch, out);
    out->pid = (uint32_t)s->launch.pid;
    out->payload_uid =
        p->host->rootful ? userns_payload_id(s->launch.uid_index) : p->host->host_uid;
    read_namespaces(s->launch.pid, out->ns);
    read_namespaces(getpid(), out->host_ns);
    (void)snprintf(path, sizeof(path), "/proc/%d", s->launch.pid);
    out->host_uid = UINT32_MAX;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->status, sizeof(out->status));
    const char *uid = strstr(out->status, "\nUid:\t");
    if (!p->host->rootful) {
        out->host_uid = p->host->host_uid; /* the kernel tells us numbers of our own namespace */
    } else if (uid != NULL) {
        char digits[16] = "";
        size_t n = strspn(uid + 6, "0123456789");
        uint64_t value = 0;
        if (n < sizeof(digits)) {
            memcpy(digits, uid + 6, n);
            if (str_to_u64(digits, &value) == 0)
                out->host_uid = (uint32_t)value;
        }
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/uid_map", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->uid_map, sizeof(out->uid_map));
    (void)st;
    answer(p, &reply, NULL, 0);
    return 0;
}

static int probe_quota(const struct launch_host *h, struct err *err)
{
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "an ordinary user cannot mount an image");
    AUTO_CLOSE int templates = path_make_dir_at(h->state_fd, "templates", 0700);
    return templates < 0 ? err_sys(err, -templates, "template directory")
                         : loopimg_probe(h->trash_fd, templates, err);
}

/* Whether the file system that holds our state can show its files under other ids. */
static int probe_idmap(const struct launch_host *h, struct err *err)
{
    struct idmap_key key = {.index = 0, .uid = h->daemon_uid, .gid = h->daemon_gid};
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    int map = idmaps_get(&maps, &key, err);
    AUTO_CLOSE int copy = map < 0 ? -1 : mount_clone(h->sessions_fd, 0);
    if (copy < 0)
        return map < 0 ? map : err_sys(err, -copy, "copy a mount");
    int r = mount_set(copy, 0, map, 0);
    return r < 0 ? err_sys(err, -r, "map the ids of a mount") : 0;
}

/* Costs a requester nothing but our time: everything it makes is ours and gone when it returns. */
static int on_probe(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    struct {
        int (*run)(const struct launch_host *h, struct err *err);
        uint32_t *ok;
        char *why;
    } probes[] = {{probe_quota, &reply.probe.quota.ok, reply.probe.quota.why},
                  {launch_net_probe, &reply.probe.network.ok, reply.probe.network.why},
                  {probe_idmap, &reply.probe.idmap.ok, reply.probe.idmap.why}};
    if (len != sizeof(struct priv_head))
        return err_set(err, ERR_INVALID, "malformed request");
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        struct err why = {0};
        *probes[i].ok = probes[i].run(p->host, &why) >= 0;
        (void)snprintf(probes[i].why, sizeof(reply.probe.quota.why), "%.199s", why.msg);
    }
    answer(p, &reply, NULL, 0);
    return 0;
}

/* Every request there is, and when it may come. */
static const struct {
    unsigned states;
    int (*run)(struct priv *p, const void *data, size_t len, struct err *err);
} requests[PRIV_TYPE_MAX] = {
    [PRIV_HELLO] = {1U << PRIV_NEW, on_hello},
    [PRIV_CREATE] = {1U << PRIV_SERVING, on_create},
    [PRIV_DESTROY] = {1U << PRIV_SERVING, on_destroy},
    [PRIV_INSPECT] = {1U << PRIV_SERVING, on_inspect},
    [PRIV_PROBE] = {1U << PRIV_SERVING, on_probe},
};

/* boxd is gone: its sandboxes go too, so that nothing is left that nobody answers for. */
static void end_all(struct priv *p)
{
    p->state = PRIV_ENDING;
    loop_io_stop(&p->io);
    for (size_t i = 0; i < p->n_sessions; i++)
        launch_kill(&p->sessions[i]->launch);
    if (p->n_sessions == 0)
        loop_quit(p->loop);
}

static void on_request(struct loop_io *io, uint32_t events)
{
    static struct priv_create m; /* the largest request */
    struct priv *p = container_of(io, struct priv, io);
    int fds[PRIV_FDS_MAX];
    size_t n_fds = PRIV_FDS_MAX;
    struct err err = {0};
    (void)events;

    ssize_t n = fd_recv_msg(p->sock, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
    if (n == -EAGAIN)
        return;
    if (n < (ssize_t)sizeof(m.head)) {
        end_all(p);
        return;
    }
    fd_close_many(fds, n_fds); /* no request carries descriptors */
    struct priv_head head = m.head;
    int r;
    if (head.type >= PRIV_TYPE_MAX || requests[head.type].run == NULL)
        r = err_set(&err, ERR_INVALID, "unknown privileged request");
    else if (!(requests[head.type].states & (1U << p->state)))
        r = err_set(&err, ERR_STATE, "privileged request in the wrong state");
    else
        r = requests[head.type].run(p, &m, (size_t)n, &err);
    if (r < 0)
        answer_error(p, &head, r, &err);
}

static void on_signal(struct loop_signal *sig, int signo)
{
    struct priv *p = container_of(sig, struct priv, signals);
    if (signo == SIGCHLD)
        reap_others(p);
    else
        end_all(p);
}

int priv_serve(struct loop *loop, struct launch_host *host, int sock, struct err *err)
{
    struct priv *p = xnew(struct priv);
    sigset_t set;
    p->loop = loop;
    p->host = host;
    p->sock = sock;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    int r = loop_signal_start(loop, &p->signals, &set, on_signal);
    if (r == 0)
        r = loop_io_start(loop, &p->io, sock, EPOLLIN, on_request);
    r = r < 0 ? err_sys(err, -r, "watch boxd") : loop_run(loop, err);
    loop_signal_stop(&p->signals);
    loop_timer_stop(&p->sweep);
    free(p);
    return r;
}
