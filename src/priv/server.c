/* SPDX-License-Identifier: Apache-2.0 */

/* The table of requests of box-priv, and the sandboxes that it keeps. */

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

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/landlock.h"
#include "priv/server_internal.h"
#include "sandbox/launch/storage.h"
#include "sandbox/setup/userns.h"

#define REMOVE_PATIENCE_NS (2ULL * NSEC_PER_SEC)
#define SWEEP_INTERVAL_NS (500 * NSEC_PER_MSEC)
#define ROOTS_TEXT_MAX (512U << 10)

static const struct {
    const char *name;
    unsigned next;
} states[PRIV_STATE_MAX] = {
    [PRIV_NEW] = {"new", 1U << PRIV_SERVING | 1U << PRIV_WAITING | 1U << PRIV_ENDING},
    [PRIV_SERVING] = {"serving", 1U << PRIV_WAITING | 1U << PRIV_ENDING},
    [PRIV_WAITING] = {"waiting", 1U << PRIV_NEW | 1U << PRIV_ENDING},
    [PRIV_ENDING] = {"ending", 0},
};

void priv_move(struct priv *p, enum priv_state to)
{
    assert(states[p->state].next & (1U << to));
    p->state = to;
}

void priv_answer(struct priv *p, struct priv_reply *reply, const int *fds, size_t n_fds)
{
    if (p->sock < 0)
        return;
    /* Blocking: boxd always reads, and never waits for us to read. */
    ssize_t n = fd_send_msg(p->sock, reply, sizeof(*reply), fds, n_fds, MSG_NOSIGNAL);
    (void)n; /* a dead peer is noticed by its end of file */
}

static void answer_error(struct priv *p, const struct priv_head *head, int result,
                         const struct err *err)
{
    struct priv_reply reply = {.head = *head, .result = result, .err = *err};
    priv_answer(p, &reply, NULL, 0);
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
    priv_held_stop(s);
    priv_quota_end(s);
    fd_close_many(&s->remover_fd, 1);
    for (size_t i = 0; i < p->n_sessions; i++) {
        if (p->sessions[i] == s) {
            p->sessions[i] = p->sessions[--p->n_sessions];
            break;
        }
    }
    free(s);
    if (p->n_sessions > 0)
        return;
    if (p->state == PRIV_ENDING)
        loop_quit(p->loop);
    else if (p->state == PRIV_WAITING)
        priv_end_all(p); /* nothing is left that somebody could come for */
}

/* Nothing is left, or so much that its removal goes on while whoever asked gets the answer. */
static void finish(struct priv_session *s)
{
    struct priv *p = s->priv;
    struct err why = s->why;
    struct priv_head created = {PRIV_CREATE, s->create_id},
                     destroyed = {PRIV_DESTROY, s->destroy_id};
    session_free(s); /* before the answer: whoever reads it finds nothing of ours any more */
    prewarm_settle(&p->host->ahead);
    if (why.code != ERR_NONE && created.id != 0)
        answer_error(p, &created, why.sys > 0 ? -why.sys : err_code_errno(why.code), &why);
    if (destroyed.id != 0) {
        struct priv_reply reply = {.head = destroyed};
        priv_answer(p, &reply, NULL, 0);
    }
    storage_refill(p->host, 1);
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

static void on_removed(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, remover_io);
    reap_others(s->priv); /* whoever gets the answer finds no trace of the child either */
    finish(s);
}

/* PID 1 is gone, and with it every process: take the rest away and tell who asked. */
static void on_pid_gone(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, pid_io);
    struct priv *p = s->priv;
    loop_io_stop(&s->pid_io);
    loop_io_stop(&s->status_io);
    if ((!s->started || s->create_id != 0) && s->why.code == ERR_NONE)
        (void)err_set(&s->why, ERR_BACKEND,
                      "the sandbox's first process died while it was being set up");
    launch_kill(p->host, &s->launch); /* what is left of the group, if PID 1 died by itself */
    s->remover_fd = launch_cleanup(p->host, &s->launch);
    reap_others(p);
    sweep_later(p);
    if (s->remover_fd < 0 ||
        loop_io_start(p->loop, &s->remover_io, s->remover_fd, EPOLLIN, on_removed) < 0)
        finish(s);
    else
        loop_timer_start(p->loop, &s->patience, REMOVE_PATIENCE_NS, on_remove_slow);
}

/* What boxd needs to work with a sandbox. We keep the pidfd and the control socket, for the next
 * boxd; the resolver's sockets can be made again. */
static void hand_over(struct priv_session *s, const struct priv_head *head, const int *dns_fds)
{
    struct priv *p = s->priv;
    struct priv_reply reply = {.head = *head};
    struct net_host_info *info = &p->host->net.info;
    reply.created = (struct priv_created){.network = s->launch.net,
                                          .uid_index = s->launch.uid_index,
                                          .forwarding_enabled = info->forwarding_enabled,
                                          .foreign_rules_added = info->foreign_rules_added};
    *info = (struct net_host_info){0};
    const int fds[PRIV_FDS_MAX] = {s->launch.pidfd, s->launch.control_fd, dns_fds[0], dns_fds[1]};
    priv_answer(p, &reply, fds, dns_fds[1] >= 0 ? 4 : 2);
}

void priv_started(struct priv_session *s)
{
    struct priv *p = s->priv;
    if (s->create_id != 0)
        hand_over(s, &(struct priv_head){PRIV_CREATE, s->create_id}, s->launch.dns_fds);
    s->create_id = 0;
    fd_close_many(s->launch.dns_fds, 2);
    /* boxd gives out ranges in order, so the next session most likely has the next one. */
    prewarm_refill(&p->host->ahead, s->launch.uid_index + 1, p->host->daemon_uid,
                   p->host->daemon_gid);
}

/* The child has become box-init, or has said why not. */
static void on_status(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, status_io);
    struct priv *p = s->priv;
    loop_io_stop(&s->status_io);
    if (s->launch.state == LAUNCH_DYING)
        return; /* it is too late for a start; what there is to say is said when it is gone */
    if (launch_finish_start(&s->launch, &s->why) < 0) {
        launch_kill(p->host, &s->launch); /* answered when it is gone */
        return;
    }
    s->started = true;
    if (!priv_quota_busy(s))
        priv_started(s);
}

/* The allow-list that indices of plans mean: a later boxd may have been given another. */
static int list_roots(const struct priv *p)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, ROOTS_TEXT_MAX);
    for (size_t i = 0; i < p->options.n_roots; i++)
        if (buf_append(&text, p->options.roots[i], strlen(p->options.roots[i]) + 1) < 0)
            return -E2BIG;
    return fd_sealed_memfd("box-roots", text.len > 0 ? text.data : "", text.len);
}

static int on_hello(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_hello *m = data;
    const struct launch_host *h = p->host;
    if (len != sizeof(*m) || m->version != PRIV_WIRE_VERSION)
        return err_set(err, ERR_INVALID, "box-priv and boxd are not of the same version");
    if (h->rootful && (m->uid != h->daemon_uid || m->gid != h->daemon_gid))
        return err_set(err, ERR_INVALID, "box-priv was started for another user");
    AUTO_CLOSE int roots = list_roots(p);
    if (roots < 0)
        return err_sys(err, -roots, "tell the allow-list");
    struct priv_reply reply = {.head = m->head};
    reply.host.version = PRIV_WIRE_VERSION;
    reply.host.rootful = h->rootful;
    reply.host.host_uid = h->host_uid;
    reply.host.init_uid = h->init_uid;
    reply.host.cgroup_mode = h->cgroups.mode;
    reply.host.landlock_abi = (uint32_t)landlock_abi();
    reply.host.engine = p->binds.engine != NULL;
    reply.host.gvisor = h->runsc_fd >= 0 && h->guest_fd >= 0;
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        reply.host.enforced[i] = h->cgroups.enforced[i];
        memcpy(reply.host.why[i], h->cgroups.why[i], sizeof(reply.host.why[i]));
    }
    priv_move(p, PRIV_SERVING);
    priv_answer(p, &reply, &roots, 1);
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
    s->quota.fd = s->quota.above_fd = s->quota.pidfd = s->quota.result_fd = -1;
    r = launch_start(p->host, &m->plan, &s->launch, err);
    if (r < 0) {
        free(s);
        sweep_later(p);
        return r;
    }
    p->sessions[p->n_sessions++] = s;
    priv_quota_start(s, &m->plan);
    if (loop_io_start(p->loop, &s->status_io, s->launch.status_fd, EPOLLIN, on_status) == 0 &&
        loop_io_start(p->loop, &s->pid_io, s->launch.pidfd, EPOLLIN, on_pid_gone) == 0)
        return 0;
    /* Nobody would tell us when it is gone: it goes now, while we wait. */
    launch_kill(p->host, &s->launch);
    s->remover_fd = launch_cleanup(p->host, &s->launch);
    session_free(s);
    return err_set(err, ERR_LIMIT, "cannot watch another sandbox");
}

struct priv_session *priv_by_request(struct priv *p, const void *data, size_t len, struct err *err)
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
    struct priv_session *s = priv_by_request(p, data, len, err);
    if (s == NULL)
        return -ENOENT;
    if (s->destroy_id != 0)
        return err_set(err, ERR_STATE, "the sandbox is being destroyed already");
    s->destroy_id = m->head.id; /* also when it died by itself and its files are just going */
    launch_kill(p->host, &s->launch);
    return 0;
}

/* What a boxd gets here it or an earlier one got when the sandbox was made. */
static int on_adopt(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = priv_by_request(p, data, len, err);
    int dns[2] = {-1, -1};
    struct err ignored = {0};
    if (s == NULL)
        return -ENOENT;
    if (s->launch.state != LAUNCH_LIVE)
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    /* Without them names are not resolved inside; the rest goes on. */
    if (s->launch.net != NET_NONE)
        (void)launch_net_resolver(&s->launch, dns, &ignored);
    hand_over(s, &((const struct priv_name *)data)->head, dns);
    fd_close_many(dns, 2);
    return 0;
}

static int on_list(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    AUTO_FREE struct priv_item *items = xnew_n(struct priv_item, p->n_sessions + 1);
    if (len != sizeof(struct priv_head))
        return err_set(err, ERR_INVALID, "malformed request");
    for (size_t i = 0; i < p->n_sessions; i++) {
        const struct launch *l = &p->sessions[i]->launch;
        memcpy(items[i].name, l->name, sizeof(items[i].name));
        items[i].uid_index = l->uid_index;
    }
    AUTO_CLOSE int fd = fd_sealed_memfd("box-list", items, p->n_sessions * sizeof(items[0]));
    if (fd < 0)
        return err_sys(err, -fd, "list the sandboxes");
    reply.n_items = (uint32_t)p->n_sessions;
    priv_answer(p, &reply, &fd, 1);
    return 0;
}

/* Counts only while nobody is connected: who is can end a sandbox whenever it likes. */
static int on_deadline(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_deadline *m = data;
    struct priv_session *s = NULL;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0')
        s = find(p, m->name);
    if (s != NULL)
        s->deadline_ns = m->boot_ns;
    return 0;
}

static bool is_known(void *arg, const char *name)
{
    return find(arg, name) != NULL;
}

static int on_sweep_request(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    if (len != sizeof(struct priv_head))
        return err_set(err, ERR_INVALID, "malformed request");
    launch_sweep(p->host, is_known, p);
    priv_answer(p, &reply, NULL, 0);
    return 0;
}

static int on_bye(struct priv *p, const void *data, size_t len, struct err *err)
{
    priv_end_all(p);
    return 0;
}

static int on_job(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    int fds[PRIV_JOB_FDS];
    int r = priv_job_start(&p->jobs, p->host, data, len, fds, err);
    if (r < 0)
        return r;
    priv_answer(p, &reply, fds, PRIV_JOB_FDS);
    fd_close_many(fds, PRIV_JOB_FDS);
    return 0;
}

static int on_bind(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    AUTO_CLOSE int fd = -1;
    int r = priv_bind_make(&p->binds, p->host, data, len, &fd, err);
    if (r < 0)
        return r;
    priv_answer(p, &reply, &fd, fd >= 0 ? 1 : 0);
    return 0;
}

static int on_unbind(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_name *m = data;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0' && id_valid(m->name))
        priv_bind_remove(&p->binds, p->host, m->name);
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
    [PRIV_INSPECT] = {1U << PRIV_SERVING, priv_on_inspect},
    [PRIV_PROBE] = {1U << PRIV_SERVING, priv_on_probe},
    [PRIV_BYE] = {1U << PRIV_NEW | 1U << PRIV_SERVING, on_bye},
    [PRIV_LIST] = {1U << PRIV_SERVING, on_list},
    [PRIV_ADOPT] = {1U << PRIV_SERVING, on_adopt},
    [PRIV_DEADLINE] = {1U << PRIV_SERVING, on_deadline},
    [PRIV_SWEEP] = {1U << PRIV_SERVING, on_sweep_request},
    [PRIV_JOB] = {1U << PRIV_SERVING, on_job},
    [PRIV_HELD] = {1U << PRIV_SERVING, priv_on_held},
    [PRIV_JOB_AS] = {1U << PRIV_SERVING, on_job},
    [PRIV_PLACE] = {1U << PRIV_SERVING, priv_on_place},
    [PRIV_BIND] = {1U << PRIV_SERVING, on_bind},
    [PRIV_UNBIND] = {1U << PRIV_SERVING, on_unbind},
    [PRIV_COPY] = {1U << PRIV_SERVING, on_job},
    [PRIV_QUOTA] = {1U << PRIV_SERVING, priv_on_quota},
};

/* The sandboxes go too, so that nothing is left that nobody answers for. */
void priv_end_all(struct priv *p)
{
    if (p->state == PRIV_ENDING)
        return;
    priv_move(p, PRIV_ENDING);
    priv_unlisten(p);
    /* The connection stays open: its end tells boxd that we are done. */
    loop_io_stop(&p->io);
    priv_jobs_done(&p->jobs);
    for (size_t i = 0; i < p->n_sessions; i++) {
        p->sessions[i]->create_id = p->sessions[i]->destroy_id = 0;
        launch_kill(p->host, &p->sessions[i]->launch);
    }
    if (p->n_sessions == 0)
        loop_quit(p->loop);
}

bool priv_read_request(struct priv *p)
{
    static struct priv_create m; /* the largest request */
    int fds[PRIV_FDS_MAX];
    size_t n_fds = PRIV_FDS_MAX;
    struct err err = {0};

    if (p->sock < 0 || p->state == PRIV_ENDING)
        return false;
    ssize_t n = fd_recv_msg(p->sock, &m, sizeof(m), fds, &n_fds, MSG_DONTWAIT);
    if (n == -EAGAIN)
        return false;
    if (n < (ssize_t)sizeof(m.head)) {
        priv_peer_gone(p);
        return false;
    }
    p->request_fd = n_fds > 0 ? TAKE_FD(fds[0]) : -1; /* at most one request carries one */
    fd_close_many(fds, n_fds);
    struct priv_head head = m.head;
    int r;
    if (head.type >= PRIV_TYPE_MAX || requests[head.type].run == NULL)
        r = err_set(&err, ERR_INVALID, "unknown privileged request");
    else if (!(requests[head.type].states & (1U << p->state)))
        r = err_set(&err, ERR_STATE, "privileged request in the wrong state");
    else
        r = requests[head.type].run(p, &m, (size_t)n, &err);
    fd_close_many(&p->request_fd, 1);
    if (r < 0)
        answer_error(p, &head, r, &err);
    return true;
}

void priv_on_readable(struct loop_io *io, uint32_t events)
{
    (void)priv_read_request(container_of(io, struct priv, io));
}

static void on_signal(struct loop_signal *sig, int signo)
{
    struct priv *p = container_of(sig, struct priv, signals);
    if (signo == SIGCHLD)
        reap_others(p);
    else
        priv_end_all(p);
}

static void on_addresses(struct loop_io *io, uint32_t events)
{
    launch_net_follow(container_of(io, struct priv, net_io)->host);
}

/* Without it rules would be those of the first session's time. */
static int watch_addresses(struct priv *p, struct err *err)
{
    launch_net_watch(p->host);
    int fd = p->host->net.watch_fd;
    int r = fd >= 0            ? loop_io_start(p->loop, &p->net_io, fd, EPOLLIN, on_addresses)
            : p->host->rootful ? fd
                               : 0;
    return r < 0 ? err_sys(err, -r, "watch the host's addresses") : 0;
}

int priv_serve(struct loop *loop, struct launch_host *host,
               const struct priv_serve_options *options, struct err *err)
{
    struct priv *p = xnew(struct priv);
    sigset_t set;
    p->loop = loop;
    p->host = host;
    p->options = *options;
    p->sock = options->sock;
    p->listen_fd = p->request_fd = p->diag_fd = -1;
    priv_jobs_init(&p->jobs);
    priv_binds_init(&p->binds, host, options->state, options->engine);
    priv_quota_sweep(host);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    int r = options->linger_sec > 0 ? priv_listen(p, err) : 0;
    if (r == 0 && (r = loop_signal_start(loop, &p->signals, &set, on_signal)) < 0)
        r = err_sys(err, -r, "watch signals");
    if (r == 0 && (r = loop_io_start(loop, &p->io, p->sock, EPOLLIN, priv_on_readable)) < 0)
        r = err_sys(err, -r, "watch boxd");
    if (r == 0)
        r = watch_addresses(p, err);
    if (r == 0)
        r = loop_run(loop, err);
    priv_unlisten(p);
    priv_binds_done(&p->binds, host);
    loop_io_stop(&p->io);
    loop_io_stop(&p->net_io);
    loop_signal_stop(&p->signals);
    loop_timer_stop(&p->sweep);
    fd_close_many(&p->diag_fd, 1);
    /* boxd sees the end of the connection when we have ended, not before. */
    free(p);
    return r;
}
