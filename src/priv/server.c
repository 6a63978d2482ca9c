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
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/state.h"
#include "base/str.h"
#include "inside/landlock.h"
#include "sandbox/host/children.h"
#include "sandbox/setup/userns.h"

#define REMOVE_PATIENCE_NS (2ULL * NSEC_PER_SEC)
#define SWEEP_INTERVAL_NS (500 * NSEC_PER_MSEC)
#define ROOTS_TEXT_MAX (512U << 10)
#define BACKLOG 8
/* Loop timers stand still while the machine sleeps, deadlines do not. */
#define LOOK_INTERVAL_NS (30ULL * NSEC_PER_SEC)

static void unlisten(struct priv *p);
static void priv_end_all(struct priv *p);
static bool read_request(struct priv *p);
static void on_readable(struct loop_io *io, uint32_t events);

static const unsigned priv_moves[PRIV_STATE_MAX] = {
    [PRIV_NEW] = 1U << PRIV_SERVING | 1U << PRIV_WAITING | 1U << PRIV_ENDING,
    [PRIV_SERVING] = 1U << PRIV_WAITING | 1U << PRIV_ENDING,
    [PRIV_WAITING] = 1U << PRIV_NEW | 1U << PRIV_ENDING,
};

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

static struct priv_session *session_by_name(struct priv *p, const char *name)
{
    struct priv_session *s;
    LIST_FOREACH (s, &p->by_name[str_hash(name) % PRIV_BUCKETS], same_name)
        if (strcmp(s->launch.name, name) == 0)
            return s;
    return NULL;
}

static struct priv_session *session_by_range(struct priv *p, uint32_t uid_index)
{
    struct priv_session *s;
    LIST_FOREACH (s, &p->by_range[uid_index % PRIV_BUCKETS], same_range)
        if (s->launch.uid_index == uid_index)
            return s;
    return NULL;
}

static void session_add(struct priv *p, struct priv_session *s)
{
    assert(p->n_sessions < PRIV_SESSIONS_MAX);
    s->at = p->n_sessions;
    p->sessions[p->n_sessions++] = s;
    LIST_INSERT_HEAD(&p->by_name[str_hash(s->launch.name) % PRIV_BUCKETS], s, same_name);
    LIST_INSERT_HEAD(&p->by_range[s->launch.uid_index % PRIV_BUCKETS], s, same_range);
}

static void session_free(struct priv_session *s)
{
    struct priv *p = s->priv;
    loop_io_stop(&s->status_io);
    loop_io_stop(&s->pid_io);
    loop_io_stop(&s->remover_io);
    loop_timer_stop(&s->patience);
    priv_held_stop(s);
    priv_update_stop(s);
    priv_quota_end(s);
    fd_close_many(&s->remover_fd, 1);
    assert(p->sessions[s->at] == s);
    p->sessions[s->at] = p->sessions[--p->n_sessions];
    p->sessions[s->at]->at = s->at;
    LIST_REMOVE(s, same_name);
    LIST_REMOVE(s, same_range);
    free(s);
    if (p->n_sessions > 0)
        return;
    if (p->state == PRIV_ENDING)
        loop_quit(p->loop);
    else if (p->state == PRIV_WAITING)
        priv_end_all(p); /* nothing is left for a later boxd */
}

/* Nothing is left, or so much that its removal goes on after boxd has its answer. */
static void finish(struct priv_session *s)
{
    struct priv *p = s->priv;
    struct err why = s->why;
    struct priv_head created = {PRIV_CREATE, s->create_id}, destroyed = s->destroy;
    session_free(
        s); /* before the answer: the client that reads it finds nothing of ours any more */
    prewarm_settle(&p->host->ahead);
    if (why.code != ERR_NONE && created.id != 0)
        answer_error(p, &created, why.sys > 0 ? -why.sys : err_code_errno(why.code), &why);
    if (destroyed.id != 0) {
        struct priv_reply reply = {.head = destroyed};
        priv_answer(p, &reply, NULL, 0);
    }
    launch_refill_storage(p->host, 1);
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

static void on_removed(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, remover_io);
    children_reap(); /* the client finds no trace of the child either */
    finish(s);
}

/* PID 1 is gone, and with it every process: take the rest away and answer the requester. */
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
    children_reap();
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
                                          .foreign_rules_added = info->foreign_rules_added,
                                          .paused = s->paused};
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
    prewarm_refill(&p->host->ahead, s->launch.uid_index + 1, s->launch.cpu_quota_us,
                   p->host->daemon_uid, p->host->daemon_gid);
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
    if (s->quota.pidfd < 0) /* else its end calls priv_started() */
        priv_started(s);
}

/* The allow-list that indices of plans mean: a later boxd may have been given another. */
static int list_roots(const struct priv *p)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(ROOTS_TEXT_MAX);
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
    reply.host.engine = p->options.engine != NULL;
    reply.host.gvisor = h->runsc_fd >= 0 && h->guest_fd >= 0;
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        reply.host.enforced[i] = h->cgroups.enforced[i];
        memcpy(reply.host.why[i], h->cgroups.why[i], sizeof(reply.host.why[i]));
    }
    STATE_MOVE(p->state, priv_moves, PRIV_SERVING);
    priv_answer(p, &reply, &roots, 1);
    return 0;
}

/* A requester gains nothing here that the plan's own checks and the bounds of launch.h do not
 * allow: names are ours, ids come from a block that nothing else uses, and no two live sandboxes
 * share a range. */
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
    if (session_by_name(p, m->plan.name) != NULL || session_by_range(p, m->plan.uid_index) != NULL)
        return err_set(err, ERR_CONFLICT, "plan: name or id range is in use");

    struct priv_session *s = xnew(struct priv_session);
    s->priv = p;
    s->create_id = m->head.id;
    s->remover_fd = -1;
    s->quota.fd = s->quota.above_fd = s->quota.pidfd = s->quota.result_fd = -1;
    priv_etc_refresh(p);
    r = launch_start(p->host, &m->plan, &s->launch, err);
    if (r < 0) {
        free(s);
        sweep_later(p);
        return r;
    }
    session_add(p, s);
    priv_quota_start(s, &m->plan);
    if (loop_io_start(p->loop, &s->status_io, s->launch.status_fd, EPOLLIN, on_status) == 0 &&
        loop_io_start(p->loop, &s->pid_io, s->launch.pidfd, EPOLLIN, on_pid_gone) == 0)
        return 0;
    /* No event would tell us when it is gone: it goes now, while we wait. */
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
        s = session_by_name(p, m->name);
    if (s == NULL)
        (void)err_set(err, ERR_NOT_FOUND, "no such sandbox");
    return s;
}

static int begin_end(struct priv_session *s, const struct priv_head *head, struct err *err)
{
    if (s->destroy.id != 0)
        return err_set(err, ERR_STATE, "the sandbox is being destroyed already");
    s->destroy = *head; /* also when it died by itself and its files are just going */
    launch_kill(s->priv->host, &s->launch);
    return 0;
}

/* The name of a sandbox, which need not be there. */
static const char *asked_name(const void *data, size_t len, struct err *err)
{
    const struct priv_name *m = data;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0' && id_valid(m->name))
        return m->name;
    (void)err_set(err, ERR_NOT_FOUND, "no such sandbox");
    return NULL;
}

/* A requester may remove the storage of every sandbox, and so can an attacker who has taken boxd
 * over: it is boxd's to give and to take. The name cannot lead out of the directory. */
static int on_destroy(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_head *head = data;
    const char *name = asked_name(data, len, err);
    struct priv_session *s = name != NULL ? session_by_name(p, name) : NULL;
    if (name == NULL)
        return -ENOENT;
    if (s != NULL) {
        s->launch.keep = false;
        return begin_end(s, head, err);
    }
    int r = launch_forget(p->host, name);
    if (r < 0)
        return r == -ENOENT ? err_set(err, ERR_NOT_FOUND, "no such sandbox")
                            : err_sys(err, -r, "remove the storage of '%s'", name);
    priv_answer(p, &(struct priv_reply){.head = *head}, NULL, 0);
    return 0;
}

static int on_stop(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = priv_by_request(p, data, len, err);
    return s == NULL ? -ENOENT : begin_end(s, data, err);
}

/* Only groups that are ours have such a name. */
static int on_pause(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_head *head = data;
    struct priv_session *s = priv_by_request(p, data, len, err);
    if (s == NULL)
        return -ENOENT;
    if (s->launch.state != LAUNCH_LIVE)
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    int r = cgroup_freeze(&p->host->cgroups, s->launch.name, head->type == PRIV_PAUSE);
    if (r == -EOPNOTSUPP || r == -ENOENT)
        return err_set(err, ERR_UNSUPPORTED,
                       "boxd has no control groups of its own here (cgroup v2), so no session can "
                       "be paused");
    if (r < 0)
        return err_sys(err, -r, "freeze the processes");
    s->paused = head->type == PRIV_PAUSE;
    priv_answer(p, &(struct priv_reply){.head = *head}, NULL, 0);
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
    /* A frozen PID 1 could not greet the new boxd, which freezes it again. */
    if (s->paused)
        (void)cgroup_freeze(&p->host->cgroups, s->launch.name, false);
    hand_over(s, &((const struct priv_name *)data)->head, dns);
    s->paused = false;
    fd_close_many(dns, 2);
    return 0;
}

/* The sockets are on the loopback addresses of a sandbox of ours: a requester that has been taken
 * over can serve programs inside, which boxd can do by its own connections anyway. */
static int on_listen(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_listen *m = data;
    struct priv_session *s =
        len == sizeof(*m) ? priv_by_request(p, &m->of, sizeof(m->of), err) : NULL;
    int fds[2] = {-1, -1};
    if (s == NULL || s->launch.state != LAUNCH_LIVE)
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    if (m->port == 0 || m->port > UINT16_MAX)
        return err_set(err, ERR_INVALID, "port out of range");
    int r = launch_net_listen(&s->launch, (uint16_t)m->port, fds, err);
    if (r < 0)
        return r;
    priv_answer(p, &(struct priv_reply){.head = m->of.head}, fds, fds[1] >= 0 ? 2 : 1);
    fd_close_many(fds, 2);
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

/* Counts only while no boxd is connected: a connected one can end a sandbox whenever it likes. */
static int on_deadline(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_deadline *m = data;
    struct priv_session *s = NULL;
    if (len == sizeof(*m) && m->name[PLAN_NAME_LEN] == '\0')
        s = session_by_name(p, m->name);
    if (s != NULL)
        s->deadline_ns = m->boot_ns;
    return 0;
}

static bool is_known(void *arg, const char *name)
{
    return session_by_name(arg, name) != NULL;
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

/* Every request there is, and when it may come. */
static const struct {
    unsigned states;
    int (*run)(struct priv *p, const void *data, size_t len, struct err *err);
} requests[PRIV_TYPE_MAX] = {
    [PRIV_HELLO] = {1U << PRIV_NEW, on_hello},
    [PRIV_CREATE] = {1U << PRIV_SERVING, on_create},
    [PRIV_DESTROY] = {1U << PRIV_SERVING, on_destroy},
    [PRIV_STOP] = {1U << PRIV_SERVING, on_stop},
    [PRIV_PAUSE] = {1U << PRIV_SERVING, on_pause},
    [PRIV_UNPAUSE] = {1U << PRIV_SERVING, on_pause},
    [PRIV_KEPT] = {1U << PRIV_SERVING, priv_on_kept},
    [PRIV_INSPECT] = {1U << PRIV_SERVING, priv_on_inspect},
    [PRIV_PROBE] = {1U << PRIV_SERVING, priv_on_probe},
    [PRIV_BYE] = {1U << PRIV_NEW | 1U << PRIV_SERVING, on_bye},
    [PRIV_LIST] = {1U << PRIV_SERVING, on_list},
    [PRIV_ADOPT] = {1U << PRIV_SERVING, on_adopt},
    [PRIV_DEADLINE] = {1U << PRIV_SERVING, on_deadline},
    [PRIV_SWEEP] = {1U << PRIV_SERVING, on_sweep_request},
    [PRIV_JOB] = {1U << PRIV_SERVING, priv_on_job},
    [PRIV_HELD] = {1U << PRIV_SERVING, priv_on_held},
    [PRIV_JOB_AS] = {1U << PRIV_SERVING, priv_on_job},
    [PRIV_PLACE] = {1U << PRIV_SERVING, priv_on_place},
    [PRIV_BIND] = {1U << PRIV_SERVING, priv_on_bind},
    [PRIV_UNBIND] = {1U << PRIV_SERVING, priv_on_unbind},
    [PRIV_COPY] = {1U << PRIV_SERVING, priv_on_job},
    [PRIV_QUOTA] = {1U << PRIV_SERVING, priv_on_quota},
    [PRIV_GREEDY] = {1U << PRIV_SERVING, priv_on_greediest},
    [PRIV_DIFF] = {1U << PRIV_SERVING, priv_on_diff},
    [PRIV_UPDATE] = {1U << PRIV_SERVING, priv_on_update},
    [PRIV_LISTEN] = {1U << PRIV_SERVING, on_listen},
    [PRIV_USAGE] = {1U << PRIV_SERVING, priv_on_usage},
};

/* The sandboxes go too, so that no sandbox is left without a box-priv. */
static void priv_end_all(struct priv *p)
{
    if (p->state == PRIV_ENDING)
        return;
    STATE_MOVE(p->state, priv_moves, PRIV_ENDING);
    unlisten(p);
    /* The connection stays open: its end tells boxd that we are done. */
    loop_io_stop(&p->io);
    priv_jobs_done(p);
    for (size_t i = 0; i < p->n_sessions; i++) {
        p->sessions[i]->create_id = p->sessions[i]->destroy.id = 0;
        launch_kill(p->host, &p->sessions[i]->launch);
    }
    if (p->n_sessions == 0)
        loop_quit(p->loop);
}

/* Which boxd is served. The first one started us; when that is gone without a BYE, the sandboxes
 * wait for the next. There is never more than one. */

static uint64_t due_ns(const struct priv *p, const struct priv_session *s)
{
    return s->deadline_ns > 0 ? s->deadline_ns
                              : p->waiting_ns + p->options.linger_sec * NSEC_PER_SEC;
}

static void on_wait(struct loop_timer *t)
{
    struct priv *p = container_of(t, struct priv, wait);
    uint64_t now = clock_boot(loop_clock(p->loop)), next = now + LOOK_INTERVAL_NS;
    for (size_t i = 0; i < p->n_sessions; i++) {
        uint64_t due = due_ns(p, p->sessions[i]);
        if (due <= now)
            launch_kill(p->host, &p->sessions[i]->launch);
        else if (due < next)
            next = due;
    }
    loop_timer_start(p->loop, t, next - now, on_wait);
}

static void disconnect(struct priv *p)
{
    loop_io_stop(&p->io);
    fd_close_many(&p->sock, 1);
    for (size_t i = 0; i < p->n_sessions; i++)
        p->sessions[i]->create_id = p->sessions[i]->destroy.id = p->sessions[i]->held_id =
            p->sessions[i]->update.id = 0;
    p->greedy.id = p->kept.id = p->diff.id = 0;
}

/* A reader of what boxd and we say waits for the end of both: with boxd gone it must not wait for
 * us. A file or a journal can be written on. */
static void let_go_of_readers(void)
{
    AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && null >= 0; fd++) {
        struct stat st;
        if (fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || isatty(fd)))
            (void)dup3(null, fd, 0);
    }
}

static void peer_gone(struct priv *p)
{
    disconnect(p);
    priv_jobs_done(p); /* no boxd will read their answers */
    if (p->listen_fd < 0 || p->n_sessions == 0) {
        priv_end_all(p);
        return;
    }
    let_go_of_readers();
    STATE_MOVE(p->state, priv_moves, PRIV_WAITING);
    p->waiting_ns = clock_boot(loop_clock(p->loop));
    on_wait(&p->wait);
}

static bool hung_up(int sock)
{
    struct pollfd pfd = {.fd = sock, .events = POLLRDHUP};
    return poll(&pfd, 1, 0) == 1 && (pfd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void refuse(int fd)
{
    struct priv_reply reply = {.head = {.type = PRIV_HELLO}, .result = -EBUSY};
    (void)err_set(&reply.err, ERR_CONFLICT, "another boxd runs on this state directory");
    (void)fd_send_msg(fd, &reply, sizeof(reply), NULL, 0, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Only a user that may start a box-priv may have one: root, or the user whose id is ours in this
 * namespace. The kernel tells the peer's user, whatever mode the socket has. */
static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static void on_connect(struct loop_io *io, uint32_t events)
{
    struct priv *p = container_of(io, struct priv, listen_io);
    AUTO_CLOSE int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || !is_ours(fd))
        return;
    /* What a dead one has asked for is done first. */
    if (p->sock >= 0 && hung_up(p->sock))
        while (read_request(p))
            ;
    if (p->state == PRIV_ENDING)
        return;
    if (p->sock >= 0) {
        refuse(fd);
        return;
    }
    if (loop_io_start(p->loop, &p->io, fd, EPOLLIN, on_readable) < 0)
        return;
    loop_timer_stop(&p->wait);
    p->sock = TAKE_FD(fd);
    STATE_MOVE(p->state, priv_moves, PRIV_NEW);
}

static int listen_for_peer(struct priv *p, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "socket for the next boxd");
    /* We hold the lock on the state directory: the box-priv that listened here is gone. */
    int r = path_remove_tree_at(p->host->state_fd, PRIV_SOCKET);
    if (r < 0)
        return err_sys(err, -r, "remove '" PRIV_SOCKET "' in the state directory");
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" PRIV_SOCKET,
                   p->host->state_fd);
    /* The mode of the socket is that of its name, from the first moment on. */
    if (fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on '" PRIV_SOCKET "' in the state directory");
    r = loop_io_start(p->loop, &p->listen_io, fd, EPOLLIN, on_connect);
    if (r < 0)
        return err_sys(err, -r, "watch for the next boxd");
    p->listen_fd = TAKE_FD(fd);
    return 0;
}

static void unlisten(struct priv *p)
{
    loop_timer_stop(&p->wait);
    if (p->listen_fd < 0)
        return;
    loop_io_stop(&p->listen_io);
    (void)unlinkat(p->host->state_fd, PRIV_SOCKET, 0);
    fd_close_many(&p->listen_fd, 1);
}

/* Reads one request; false when there is none just now, or no boxd is connected any more. */
static bool read_request(struct priv *p)
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
        peer_gone(p);
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

static void on_readable(struct loop_io *io, uint32_t events)
{
    (void)read_request(container_of(io, struct priv, io));
}

static void on_signal(struct loop_signal *sig, int signo)
{
    struct priv *p = container_of(sig, struct priv, signals);
    if (signo == SIGCHLD)
        children_reap();
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
    if (!p->host->rootful)
        return 0;
    int fd = p->host->net.watch_fd = net_onlink_watch();
    int r = fd < 0 ? fd : loop_io_start(p->loop, &p->net_io, fd, EPOLLIN, on_addresses);
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
    for (size_t i = 0; i < PRIV_JOBS_MAX; i++)
        p->jobs[i] = -1;
    priv_binds_init(p);
    priv_quota_sweep(host);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    int r = options->linger_sec > 0 ? listen_for_peer(p, err) : 0;
    if (r == 0 && (r = loop_signal_start(loop, &p->signals, &set, on_signal)) < 0)
        r = err_sys(err, -r, "watch signals");
    if (r == 0 && (r = loop_io_start(loop, &p->io, p->sock, EPOLLIN, on_readable)) < 0)
        r = err_sys(err, -r, "watch boxd");
    if (r == 0)
        r = watch_addresses(p, err);
    if (r == 0) {
        priv_etc_start(p);
        r = loop_run(loop, err);
    }
    priv_etc_stop(p);
    unlisten(p);
    priv_greediest_stop(p);
    priv_kept_stop(p);
    priv_diff_stop(p);
    priv_binds_done(p);
    loop_io_stop(&p->io);
    loop_io_stop(&p->net_io);
    loop_signal_stop(&p->signals);
    loop_timer_stop(&p->sweep);
    fd_close_many(&p->diag_fd, 1);
    /* boxd sees the end of the connection when we have ended, not before. */
    free(p);
    return r;
}
