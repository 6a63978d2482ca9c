/* SPDX-License-Identifier: Apache-2.0 */

/* boxd: the daemon. Starts box-priv while it still may, gives up its own privileges, and serves. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/chat/chat.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/path.h"
#include "base/state.h"
#include "base/state_dir.h"
#include "base/str.h"
#include "base/user.h"
#include "command/disk_guard.h"
#include "command/kernel_guard.h"
#include "command/quota_guard.h"
#include "config/config.h"
#include "config/tokens.h"
#include "daemon/boxd_backend.h"
#include "daemon/boxd_service.h"
#include "daemon/identity.h"
#include "daemon/remedy.h"
#include "daemon/systemd.h"
#include "front/chat/chat_http.h"
#include "front/langbot/langbot.h"
#include "front/mcp/mcp.h"
#include "front/v1/v1.h"
#include "http/server/server.h"
#include "inside/seccomp_install.h"
#include "jobs/jobs.h"
#include "loop/loop.h"
#include "loop/peer.h"
#include "policy/policy.h"
#include "policy/share.h"
#include "policy/users.h"
#include "sandbox/seccomp/seccomp.h"
#include "session/artifacts.h"
#include "session/events.h"
#include "session/manager.h"
#include "store/store.h"

#define FAREWELL_NS (100ULL * NSEC_PER_MSEC) /* for WebSockets to hear that we go */
#define LARGE_BYTES (128 * 1024) /* from here on an allocation is a mapping of its own */

/* What an earlier boxd left is found step by step before any client is served.
 *
 *   STARTING ──► RECONCILED ──► ADOPTED ──► SERVING */
enum boxd_state {
    BOXD_STARTING,
    BOXD_RECONCILED, /* the chat sandboxes that an earlier boxd left are known */
    BOXD_ADOPTED,    /* and every other session of it is ours */
    BOXD_SERVING,
    BOXD_STATE_MAX,
};

static const unsigned next_states[BOXD_STATE_MAX] = {
    [BOXD_STARTING] = 1U << BOXD_RECONCILED,
    [BOXD_RECONCILED] = 1U << BOXD_ADOPTED,
    [BOXD_ADOPTED] = 1U << BOXD_SERVING,
    [BOXD_SERVING] = 0,
};

/* Everything that boxd owns; boxd_done() frees it in the order that their uses of each other need.
 */
struct boxd {
    enum boxd_state state;
    struct loop *loop;
    struct config *config;
    struct boxd_backend *backends;
    struct store *store;
    struct events *events;
    struct shares *shares;
    struct quota_guards *guards;
    struct disk_guard *disk;
    struct kernel_guard *kernel;
    struct manager *manager;
    struct boxd_service *service;
    struct v1 *v1;
    struct mcp *mcp;
    struct chat *chat;
    struct http_server *server;
    struct jobs *skills;
    struct users *users;
    struct artifacts *artifacts;
    struct langbot *langbot;
    struct langbot_stdio *stdio;
    struct loop_signal signals;
    struct loop_timer farewell;
    struct systemd systemd;
    int lock_fd, state_fd, spool_fd, in_fd, out_fd, chats_fd;
    int diag_fd; /* for peer_identify() */
    char tag[16];
    char artifacts_tag[40]; /* also of the directory itself: containers call theirs the same */
    uid_t uid;
    gid_t gid;
    gid_t socket_gid; /* of config->socket_group; 0: none */
    bool rootful;
    bool keep; /* the sessions that we leave are for the next boxd */
    struct err reconcile_err;
    int status;
};

/* Which user boxd will be, and which users it serves; while it is still privileged. */
static int take_identity(struct boxd *d, struct err *err)
{
    struct rlimit limit;

    d->uid = geteuid();
    d->gid = getegid();
    d->rootful = user_is_host_root();
    if (d->rootful)
        identity_find(d->config, &d->uid, &d->gid);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    d->diag_fd = peer_socket(); /* our filter will not let us make one */
    int r = users_new(d->uid, d->config->allowed_users, d->config->allowed_groups, &d->users, err);
    if (r == 0 && d->rootful)
        r = users_set_group(d->users, d->config->socket_group, IDENTITY_USER, &d->socket_gid, err);
    return r;
}

/* A directory that we can use as the user we are about to become; *ret_fd is the caller's. `claim`:
 * for our state, and so for nothing else. */
static int own_dir(const struct boxd *d, const char *dir, bool claim, int *ret_fd, struct err *err)
{
    AUTO_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, "open directory '%s'", dir);
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at directory '%s'", dir);
    if (st.st_uid != geteuid() && st.st_uid != d->uid)
        return remedy_owner(dir, st.st_uid, d->uid, err);
    int r = claim ? state_dir_claim(fd, dir, err) : 0;
    if (r < 0)
        return r;
    if (d->rootful && fchown(fd, d->uid, d->gid) < 0)
        return err_sys(err, errno, "own directory '%s'", dir);
    if (fchmod(fd, 0711) < 0)
        return err_sys(err, errno, "protect directory '%s'", dir);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* Where uploads are kept while they are on their way. */
static int make_spool(struct boxd *d, int state_fd, struct err *err)
{
    d->spool_fd = path_make_dir_at(state_fd, "spool", 0700);
    if (d->spool_fd < 0)
        return err_sys(err, -d->spool_fd, "directory for uploads");
    if (d->rootful && fchown(d->spool_fd, d->uid, d->gid) < 0)
        return err_sys(err, errno, "own the directory for uploads");
    return 0;
}

/* Holds the directory for as long as we live: two daemons on one state would take each other's
 * sessions for dead. */
static int take_state(struct boxd *d, struct err *err)
{
    const char *dir = d->config->state_dir;
    AUTO_FREE char *run = xstrdup(d->config->socket_path);
    AUTO_CLOSE int run_fd = -1;
    AUTO_CLOSE int fd = -1;
    struct stat st;
    *strrchr(run, '/') = '\0';
    int r = config_make_dirs(d->config, err);
    if (r == 0)
        r = own_dir(d, dir, true, &fd, err);
    if (r == 0)
        r = own_dir(d, run, false, &run_fd, err);
    if (r == 0) {
        d->lock_fd = openat(fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        r = d->lock_fd < 0 ? err_sys(err, errno, "lock file in '%s'", dir) : 0;
    }
    if (r < 0)
        return remedy_dir(r, dir, "state_dir ($BOX_STATE_DIR, --state-dir)", err);
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_CONFLICT,
                       "another boxd serves '%s'; use it, or choose another --state-dir", dir);
    r = make_spool(d, fd, err);
    if (r < 0)
        return r;
    (void)snprintf(d->tag, sizeof(d->tag), "box-%011llx",
                   (unsigned long long)(str_hash(dir) & 0xfffffffffff));
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "state directory '%s'", dir);
    (void)snprintf(d->artifacts_tag, sizeof(d->artifacts_tag), "%s-%llx", d->tag,
                   (unsigned long long)st.st_ino);
    d->state_fd = TAKE_FD(fd);
    return 0;
}

/* boxd reads bytes of strangers. An attacker who takes it over by them finds no namespaces, mounts,
 * tracing, new kinds of sockets or programs for the kernel: only the calls that the programs in our
 * sandboxes have, and one more. Programs that boxd starts later, to unpack archives, have less
 * still. */
static int confine(struct err *err)
{
    AUTO_FREE struct sock_filter *filter = NULL;
    size_t n = 0;
    int r = seccomp_compile(SECCOMP_DAEMON, &filter, &n, err);
    if (r < 0)
        return r;
    r = seccomp_install(filter, (unsigned short)n);
    return r < 0 ? err_sys(err, -r, "install the system call filter") : 0;
}

static int drop_privileges(struct boxd *d, struct err *err)
{
    /* The program that started us may want us to end with it (`box run`); a change of ids forgets
     * that. */
    int death_signal = 0;
    (void)prctl(PR_GET_PDEATHSIG, &death_signal, 0, 0, 0);
    if (d->rootful &&
        (setgroups(d->backends->n_groups, d->backends->groups) < 0 ||
         setresgid(d->gid, d->gid, d->gid) < 0 || setresuid(d->uid, d->uid, d->uid) < 0))
        return err_sys(err, errno, "become uid %u", d->uid);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_sys(err, errno, "give up privileges");
    if (prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) < 0)
        return err_sys(err, errno, "parent death signal");
    return confine(err);
}

static void on_all_gone(void *arg, const struct err *err)
{
    struct boxd *d = arg;
    d->keep = manager_count(d->manager) > 0; /* stopped ones need no box-priv */
    if (d->keep)
        log_info(NULL, "leaving %zu chat sandboxes until they expire, or to the next boxd",
                 manager_count(d->manager));
    loop_quit(d->loop);
}

/* Of all but chat sandboxes, which end when they expire and not when we do. */
static void end_all(struct boxd *d)
{
    systemd_notify(&d->systemd, "STOPPING=1\nSTATUS=ending every session");
    http_server_drain(d->server, 1001, "Box runtime shutting down");
    manager_close(d->manager, on_all_gone, d);
}

static void on_farewell(struct loop_timer *t)
{
    struct boxd *d = container_of(t, struct boxd, farewell);
    d->keep = true;
    loop_quit(d->loop);
}

/* The next daemon takes over. */
static void leave_sessions(struct boxd *d)
{
    log_info(NULL, "leaving %zu sessions to the next boxd", manager_count(d->manager));
    systemd_notify(&d->systemd, "STOPPING=1\nSTATUS=leaving the sessions to the next boxd");
    http_server_drain(d->server, 1001, "boxd is restarting");
    loop_timer_start(d->loop, &d->farewell, FAREWELL_NS, on_farewell);
}

static void on_signal(struct loop_signal *s, int signo)
{
    struct boxd *d = container_of(s, struct boxd, signals);
    if (signo == SIGUSR2) {
        leave_sessions(d);
        return;
    }
    loop_timer_stop(&d->farewell);
    log_info(NULL, "signal %d: ending %zu sessions", signo, manager_count(d->manager));
    end_all(d);
}

/* The program that started us for itself alone has gone. */
static void on_stdio_ended(void *arg)
{
    struct boxd *d = arg;
    log_info(NULL, "the host has left: ending %zu sessions", manager_count(d->manager));
    end_all(d);
}

static void on_priv_gone(void *arg)
{
    struct boxd *d = arg;
    log_error(NULL,
              "box-priv has died, and every process of every session with it; sessions that are "
              "kept have their files. Start boxd again.");
    d->status = 1;
    loop_quit(d->loop);
}

static int start_backend(struct boxd *d, struct err *err)
{
    const struct boxd_backend_options options = {.loop = d->loop,
                                                 .config = d->config,
                                                 .tag = d->tag,
                                                 .uid = d->uid,
                                                 .gid = d->gid,
                                                 .rootful = d->rootful,
                                                 .gone = on_priv_gone,
                                                 .gone_arg = d};
    return boxd_backend_new(&options, &d->backends, err);
}

/* A socket that is not open to others answers nothing to them. Where some are served,
 * on_authorize() tells the rest what to do about it. */
static bool on_accept_peer(void *arg, const struct peer *peer)
{
    const struct boxd *d = arg;
    return users_any(d->users) || d->socket_gid != 0 || users_rank(d->users, peer) != USERS_REFUSED;
}

static int on_authorize(void *arg, struct http_request *req)
{
    return boxd_service_authorize(((const struct boxd *)arg)->service, req);
}

static void on_answered(void *arg, const struct http_answer *answer)
{
    metrics_answered(((const struct boxd *)arg)->manager, answer);
}

static void on_token_changed(void *arg, const char *token)
{
    langbot_set_token(((const struct boxd *)arg)->langbot, token);
}

static int listen_tcp(struct boxd *d, struct err *err)
{
    const struct config *c = d->config;
    if (c->port == 0 || d->systemd.has_tcp)
        return 0;
    if (!config_needs_token(c) && !config_host_is_loopback(c))
        return err_set(err, ERR_DENIED,
                       "listening on %s needs a token: put one of at least 32 characters into a "
                       "file and name it with token_file in the configuration or $BOX_TOKEN_FILE, "
                       "or set $LANGBOT_BOX_CONTROL_TOKEN",
                       c->host);
    if (!config_needs_token(c) && d->diag_fd >= 0)
        log_info(NULL,
                 "listening on %s:%llu without a token: root, boxd's own user, socket_group, "
                 "allowed_users and allowed_groups are served",
                 c->host, (unsigned long long)c->port);
    else if (!config_needs_token(c))
        log_warn(NULL,
                 "listening on %s:%llu without a token, and this kernel does not tell which user "
                 "connects: every client is refused there; set token_file",
                 c->host, (unsigned long long)c->port);
    int r = http_server_listen_tcp(d->server, c->host, (uint16_t)c->port, err);
    if (r < 0 && c->stdio_control) {
        log_warn(NULL, "%s. Managed process WebSocket attach will be unavailable.", err->msg);
        return 0;
    }
    return r < 0 ? remedy_port(r, c->host, c->port, err) : 0;
}

/* Sockets that a service manager made take the place of our own of that kind. */
static int listen_systemd(struct boxd *d, struct err *err)
{
    int r = 0;
    if (d->systemd.outside && !config_needs_token(d->config))
        return err_set(err, ERR_DENIED,
                       "a socket of the service manager can be reached from outside; that needs a "
                       "token: set token_file or tokens_file, or listen on 127.0.0.1");
    for (size_t i = 0; r == 0 && i < d->systemd.n_sockets; i++) {
        struct systemd_socket *s = &d->systemd.sockets[i];
        r = http_server_listen_fd(d->server, TAKE_FD(s->fd), err);
        if (r < 0)
            return err_wrap(err, "socket '%s' of the service manager", s->name);
        log_info(NULL, "serving on socket '%s' of the service manager", s->name);
    }
    return r;
}

/* For all users if the configuration names some, because boxd checks the user of each connection;
 * otherwise for the group of the socket; otherwise for ourselves and root. The file gets its group
 * when it is made: a later chown could meet another file in a directory that we have given away. */
static int listen_unix(struct boxd *d, struct err *err)
{
    const mode_t mode = users_any(d->users) ? 0666 : d->socket_gid != 0 ? 0660 : 0600;
    const gid_t before = getegid();
    if (d->socket_gid != 0)
        (void)setfsgid(d->socket_gid);
    int r = http_server_listen_unix(d->server, d->config->socket_path, mode, err);
    (void)setfsgid(before);
    return r;
}

static int start_server(struct boxd *d, struct err *err)
{
    /* Names in Host headers are checked because pages in a browser can lead here. From outside,
     * boxd is reached by names that it cannot know, and no page knows the token. */
    static const char *const any_host[] = {"*", NULL};
    struct http_server_opts opts = {
        .authorize = on_authorize,
        .accept_peer = on_accept_peer,
        .diag_fd = d->diag_fd,
        .answered = on_answered,
        .arg = d,
        .hosts = config_host_is_loopback(d->config) && !d->systemd.outside ? NULL : any_host};
    int r = http_server_new(d->loop, &opts, &d->server, err);
    if (r == 0)
        r = listen_systemd(d, err);
    if (r == 0 && !d->systemd.has_unix)
        r = listen_unix(d, err);
    return r < 0 ? r : listen_tcp(d, err);
}

static int start_skills(struct boxd *d, struct err *err)
{
    struct jobs_options options = {.program = d->backends->fetch_program,
                                   .launcher = d->backends->launcher,
                                   .roots = d->config->mount_roots};
    int r = jobs_new(d->loop, &options, &d->skills, err);
    struct artifacts_options artifacts = {
        .jobs = options, .manager = d->manager, .tag = d->artifacts_tag};
    return r < 0 ? r : artifacts_new(d->loop, &artifacts, &d->artifacts, err);
}

/* The token that LangBot's clients are asked for; NULL: none. */
static const char *langbot_token(const struct config *c)
{
    return c->control_token != NULL ? c->control_token : token_file_text(c->token_file);
}

/* As the user that we are from now on, who must be able to use what the configuration names. */
static int start_langbot(struct boxd *d, struct err *err)
{
    const struct config *c = d->config;
    struct langbot_options options = {.manager = d->manager,
                                      .service = boxd_service_policy(d->service),
                                      .token = langbot_token(c),
                                      .instance = c->instance,
                                      .backend_name = c->report_backend,
                                      .config = c->box_config,
                                      .users = d->users,
                                      .base_dir = c->langbot_base,
                                      .roots = c->mount_roots,
                                      .diag_fd = d->diag_fd,
                                      .spool_fd = d->spool_fd,
                                      .quiet_probes = c->tokens != NULL,
                                      .legacy = c->legacy_protocol,
                                      .unsafe_storage = c->unsafe_storage};
    if (c->unsafe_storage)
        log_warn(NULL, "LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS is set: storage limits that "
                       "are not enforced count as if they were");
    int r = start_skills(d, err);
    options.skills = d->skills;
    options.artifacts = d->artifacts;
    http_server_hold(d->server, true);
    if (r == 0)
        r = boxd_service_set_helper(d->service, d->skills, err);
    http_server_hold(d->server, false);
    if (r == 0)
        r = langbot_new(&options, &d->langbot, err);
    if (r == 0 && options.token == NULL && config_needs_token(c))
        langbot_set_token(d->langbot, NULL); /* tokens with scopes are not for this front */
    if (r == 0)
        r = langbot_routes(d->langbot, d->server, err);
    if (r == 0 && c->stdio_control) {
        struct langbot_stdio_options pipes = {.in_fd = TAKE_FD(d->in_fd),
                                              .out_fd = TAKE_FD(d->out_fd),
                                              .ended = on_stdio_ended,
                                              .arg = d};
        r = langbot_stdio_new(d->langbot, &pipes, &d->stdio, err);
    }
    return r;
}

/* Standard input and output belong to the protocol: not to our children, not to a stray printf. */
static int take_stdio(struct boxd *d, struct err *err)
{
    if (!d->config->stdio_control)
        return 0;
    AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    d->in_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    d->out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (null < 0 || d->in_fd < 0 || d->out_fd < 0 || dup2(null, STDIN_FILENO) < 0 ||
        dup2(null, STDOUT_FILENO) < 0)
        return err_sys(err, errno, "take stdin and stdout");
    return 0;
}

/* Where each chat has its directory. It is made while we may; what is there already keeps its
 * owner. */
static int open_chats(struct boxd *d, struct err *err)
{
    const struct chat_config *c = &policy_settings(d->config->policy)->chat;
    struct stat st;
    if (!chat_configured(c))
        return 0;
    bool there = stat(c->chats_root, &st) == 0;
    int r = there ? 0 : config_make_path(c->chats_root, 0755, err);
    if (r < 0)
        return r;
    d->chats_fd = open(c->chats_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (d->chats_fd < 0)
        return err_sys(err, errno, "open sandbox.chats_root '%.200s'", c->chats_root);
    if (!there && d->rootful &&
        fchownat(d->chats_fd, "", d->uid, d->gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, errno, "own sandbox.chats_root '%.200s'", c->chats_root);
    return 0;
}

static void on_reconciled(void *arg, const struct err *err)
{
    struct boxd *d = arg;
    STATE_MOVE(d->state, next_states, BOXD_RECONCILED);
    if (err != NULL)
        d->reconcile_err = *err;
}

/* Chat sandboxes in the log: an event for each thing that was done, its spans at level debug. */

/* By the result of a whole use case. Names are what programs look for. */
static const struct {
    const char *event;
    enum log_level level;
} chat_events[CHAT_RESULT_MAX] = {
    [CHAT_CREATED] = {"sandbox_created", LOG_LEVEL_INFO},
    [CHAT_REUSED] = {"sandbox_reused", LOG_LEVEL_INFO},
    [CHAT_DELETED] = {"sandbox_deleted", LOG_LEVEL_INFO},
    [CHAT_NOT_FOUND] = {"sandbox_delete_not_found", LOG_LEVEL_INFO},
    [CHAT_CLEANED] = {"sandbox_cleaned", LOG_LEVEL_INFO},
    [CHAT_SKIPPED] = {"sandbox_cleanup_skipped", LOG_LEVEL_DEBUG},
    [CHAT_FAILED] = {NULL, LOG_LEVEL_ERROR}, /* the code says which */
};

static void on_span_begin(void *arg, struct chat_span *span)
{
    log_debug(span->chat_id, "span_begin name=%s backend=%s chat.id=%s session.id=%s", span->name,
              span->backend, span->chat_id, span->session_id);
}

static void on_span_end(void *arg, struct chat_span *span)
{
    unsigned long long ms = (span->end_ns - span->begin_ns) / NSEC_PER_MSEC;
    const struct chat_failure *f = span->failure;
    log_debug(span->chat_id,
              "span_end name=%s backend=%s chat.id=%s session.id=%s result=%s duration_ms=%llu",
              span->name, span->backend, span->chat_id, span->session_id,
              chat_result_name(span->result), ms);
    if (!str_starts(span->name, "usecase."))
        return;
    log_at(chat_events[span->result].level, span->chat_id,
           "%s name=%s backend=%s chat.id=%s session.id=%s duration_ms=%llu%s%s",
           f != NULL ? f->code : chat_events[span->result].event, span->name, span->backend,
           span->chat_id, span->session_id, ms, f != NULL ? " error=" : "",
           f != NULL ? f->err.msg : "");
}

static const struct chat_observer chat_log = {.begin = on_span_begin, .end = on_span_end};

static int start_chat(struct boxd *d, struct err *err)
{
    const struct chat_options options = {.config = &policy_settings(d->config->policy)->chat,
                                         .chats_fd = d->chats_fd,
                                         .observer = &chat_log};
    int r = chat_new(d->manager, &options, &d->chat, err);
    if (r == 0)
        r = chat_routes(d->server, v1_front(d->v1), d->chat, err);
    return r < 0 ? r : chat_reconcile(d->chat, on_reconciled, d, err);
}

static void on_adopted(void *arg, const struct err *err)
{
    struct boxd *d = arg;
    STATE_MOVE(d->state, next_states, BOXD_ADOPTED);
    if (err != NULL)
        log_warn(NULL,
                 "sessions that an earlier boxd left could not all be taken over: %s; ignoring",
                 err->msg);
}

/* What all fronts share, and the first of them. */
static int start_service(struct boxd *d, struct err *err)
{
    struct boxd_service_options options = {.loop = d->loop,
                                           .config = d->config,
                                           .manager = d->manager,
                                           .events = d->events,
                                           .shares = d->shares,
                                           .guards = d->guards,
                                           .users = d->users,
                                           .server = d->server,
                                           .state_fd = d->state_fd,
                                           .token_changed = on_token_changed,
                                           .arg = d};
    int r = boxd_service_new(&options, &d->service, err);
    if (r < 0)
        return r;
    d->v1 = v1_new(d->manager, d->events, boxd_service_policy(d->service));
    d->mcp = mcp_new(v1_front(d->v1));
    r = v1_routes(d->server, d->v1, err);
    return r < 0 ? r : mcp_routes(d->server, d->mcp, err);
}

/* Turns the loop until that state is reached, or the backend has died. */
static int wait_for(struct boxd *d, enum boxd_state state, struct err *err)
{
    while (d->state < state && d->status == 0) {
        int r = loop_turn(d->loop, -1);
        if (r < 0)
            return err_sys(err, -r, "event loop");
    }
    return d->status != 0 ? err_set(err, ERR_BACKEND, "the backend died") : 0;
}

static bool is_own_port(void *arg, uint16_t port)
{
    return http_server_listens(arg, port);
}

/* As the user that we are from now on: the records are that user's. No client is served before we
 * know which sessions there are. */
static int start_manager(struct boxd *d, struct err *err)
{
    const struct config *c = d->config;
    int r = store_open(d->state_fd, &d->store, err);
    if (r < 0)
        return r;
    d->events = events_new(d->loop, EVENTS_MAX);
    d->shares = shares_new();
    d->guards = quota_guards_new();
    struct manager_options options = {.max_sessions = c->max_sessions,
                                      .max_processes = c->max_processes,
                                      .max_kept = c->max_kept,
                                      .kept_bytes = c->kept_disk_mb << 20,
                                      .max_exited = c->max_exited,
                                      .exited_ns = c->exited_sec * NSEC_PER_SEC,
                                      .store = d->store,
                                      .events = d->events,
                                      .shares = d->shares,
                                      .publish_addresses =
                                          policy_settings(c->policy)->publish_addresses,
                                      .allow_hosts = policy_settings(c->policy)->allow_hosts,
                                      .own_port = is_own_port,
                                      .own_port_arg = d->server,
                                      .ttl_ns = c->session_ttl_sec * NSEC_PER_SEC,
                                      .strict_images = c->strict_images};
    r = manager_new(d->loop, d->backends->backend, &options, &d->manager, err);
    if (r == 0)
        r = start_service(d, err);
    if (r == 0) {
        d->disk = disk_guard_new(&(struct disk_guard_options){
            .service = boxd_service_policy(d->service), .dir_fd = d->state_fd});
        d->kernel = kernel_guard_new(boxd_service_policy(d->service));
    }
    http_server_hold(d->server, true);
    if (r == 0)
        r = start_chat(d, err);
    if (r == 0)
        r = wait_for(d, BOXD_RECONCILED, err);
    if (r == 0 && d->reconcile_err.code != ERR_NONE)
        r = err_set(err, d->reconcile_err.code, "%s", d->reconcile_err.msg);
    if (r == 0)
        r = manager_adopt(d->manager, on_adopted, d, err);
    if (r == 0)
        r = wait_for(d, BOXD_ADOPTED, err);
    http_server_hold(d->server, false);
    if (r < 0)
        return r;
    if (manager_count(d->manager) > 0)
        log_info(NULL, "took over %zu sessions", manager_count(d->manager));
    chat_start(d->chat);
    return 0;
}

static int make_loop(struct boxd *d, struct err *err)
{
    return loop_new(&clock_system, &d->loop, err);
}

static int watch_signals(struct boxd *d, struct err *err)
{
    struct sigaction hup;
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGUSR2);
    /* A terminal that goes away ends us properly too, unless our caller wanted us to outlive it. */
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        (void)sigaddset(&set, SIGHUP);
    int r = loop_signal_start(d->loop, &d->signals, &set, on_signal);
    return r < 0 ? err_sys(err, -r, "watch signals") : 0;
}

static void boxd_done(struct boxd *d)
{
    int *const fds[] = {&d->state_fd, &d->lock_fd,  &d->spool_fd, &d->in_fd,
                        &d->out_fd,   &d->chats_fd, &d->diag_fd};
    loop_signal_stop(&d->signals);
    loop_timer_stop(&d->farewell);
    systemd_done(&d->systemd);
    langbot_stdio_free(d->stdio);
    http_server_free(d->server);
    langbot_free(d->langbot);
    mcp_free(d->mcp);
    v1_free(d->v1);
    disk_guard_free(d->disk);
    kernel_guard_free(d->kernel);
    quota_guards_free(d->guards);
    artifacts_free(d->artifacts);
    jobs_free(d->skills);
    /* A boxd that never came to serve leaves the sessions of an earlier one alone. */
    boxd_backend_free(d->backends, d->keep || d->state != BOXD_SERVING);
    chat_free(d->chat);
    boxd_service_free(d->service);
    manager_free(d->manager);
    events_free(d->events);
    shares_free(d->shares);
    store_free(d->store);
    loop_free(d->loop);
    users_free(d->users);
    config_free(d->config);
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fd_close_many(fds[i], 1);
}
DEFINE_CLEANUP_DONE(boxd)

static int serve(struct boxd *d, struct err *err)
{
    log_info(NULL, "serving on %s%s", d->config->socket_path,
             d->config->port != 0 ? " and TCP" : "");
    STATE_MOVE(d->state, next_states, BOXD_SERVING);
    config_say_ready(d->config);
    systemd_notify(&d->systemd, "READY=1\nSTATUS=serving");
    systemd_watch(&d->systemd, d->loop);
    return loop_run(d->loop, err);
}

/* What boxd starts, in this order. Our socket may lie below a directory that only root may pass, so
 * the server comes before privileges go; it reads no byte before the loop runs. */
static int (*const steps[])(struct boxd *d, struct err *err) = {
    take_identity, take_stdio,      take_state,    make_loop,     start_backend, start_server,
    open_chats,    drop_privileges, start_manager, start_langbot, watch_signals, serve,
};

/* The exit status, or a negative errno. */
static int run(int argc, char **argv, struct err *err)
{
    AUTO_DONE(boxd)
    struct boxd d = {.lock_fd = -1,
                     .state_fd = -1,
                     .spool_fd = -1,
                     .in_fd = -1,
                     .out_fd = -1,
                     .chats_fd = -1,
                     .diag_fd = -1};
    int r = systemd_take(&d.systemd, err);
    if (r == 0)
        r = config_load(argc, argv, &d.config, err);
    if (r != 0)
        return r < 0 ? r : 0; /* > 0: --help or --version was answered */
    assert(d.config != NULL);
    config_apply_log(d.config);
    for (size_t i = 0; i < ARRAY_SIZE(steps) && r >= 0; i++)
        r = steps[i](&d, err);
    return r < 0 ? r : d.status;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    /* A large answer is held for a moment only. Left to itself malloc learns from the first one to
     * keep that much for ever. */
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
    log_init("boxd");
    (void)sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    int r = run(argc, argv, &err);
    if (r < 0)
        log_error(NULL, "%s", err.msg);
    return r < 0 ? 1 : r;
}
