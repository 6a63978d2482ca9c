/* SPDX-License-Identifier: Apache-2.0 */

/* boxd: the daemon. Starts box-priv while it still may, gives up its own privileges, and serves. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <malloc.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
#include "base/state_dir.h"
#include "base/str.h"
#include "base/user.h"
#include "command/disk_guard.h"
#include "command/quota_guard.h"
#include "config/config.h"
#include "daemon/boxd_backend.h"
#include "daemon/boxd_service.h"
#include "daemon/chat_log.h"
#include "daemon/systemd.h"
#include "front/chat/chat_http.h"
#include "front/langbot/langbot.h"
#include "front/mcp/mcp.h"
#include "front/v1/metrics.h"
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

#define FALLBACK_ID 1999999999U /* just below the ids of sessions: nobody's */
#define DAEMON_USER "box"
#define FAREWELL_NS (100ULL * NSEC_PER_MSEC) /* for WebSockets to hear that we go */
#define LARGE_BYTES (128 * 1024) /* from here on an allocation is a mapping of its own */

struct daemon {
    struct loop *loop;
    struct config *config;
    struct boxd_backend *backends;
    struct backend *backend; /* of these */
    struct store *store;
    struct events *events;
    struct shares *shares;
    struct quota_guards *guards;
    struct disk_guard *disk;
    struct manager *manager;
    struct boxd_service *service;
    struct v1 *v1;
    struct mcp *mcp;
    struct chat *chat;
    struct http_server *server;
    struct jobs *skills;
    struct users *users;
    struct artifacts *artifacts;
    struct langbot *rpc;
    struct langbot_stdio *stdio;
    struct loop_signal signals;
    struct loop_timer farewell;
    struct systemd systemd;
    int lock_fd, state_fd, spool_fd, in_fd, out_fd, chats_fd;
    int diag_fd; /* for peer_identify() */
    char tag[16];
    char
        artifacts_tag[40]; /* also of the state directory itself: containers call theirs the same */
    char fetch_program[PATH_MAX];
    uid_t uid;
    gid_t gid;
    bool rootful;
    bool reconciled; /* it is known which chat sandboxes an earlier boxd left */
    bool adopted;    /* what an earlier boxd left is ours */
    struct err reconcile_err;
    bool keep; /* what we leave is the next one's */
    bool served;
    int status;
};

static void find_ids(struct daemon *d)
{
    d->uid = geteuid();
    d->gid = getegid();
    d->rootful = user_is_host_root();
    if (!d->rootful)
        return;
    const struct passwd *pw = getpwnam(DAEMON_USER);
    d->uid = pw != NULL ? pw->pw_uid : FALLBACK_ID;
    d->gid = pw != NULL ? pw->pw_gid : FALLBACK_ID;
    if (pw == NULL)
        log_warn(NULL, "there is no user '%s' (`make install` creates it); running as uid %u",
                 DAEMON_USER, FALLBACK_ID);
    boxd_backend_ids(d->config, &d->uid, &d->gid);
}

/* A directory that we can use as the user we are about to become; *ret_fd is the caller's. `claim`:
 * for our state, and so for nothing else. */
static int own_dir(const struct daemon *d, const char *dir, bool claim, int *ret_fd,
                   struct err *err)
{
    AUTO_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, "open directory '%s'", dir);
    struct stat st;
    if (fstat(fd, &st) < 0 || (st.st_uid != geteuid() && st.st_uid != d->uid))
        return err_set(err, ERR_DENIED, "directory '%s' belongs to somebody else", dir);
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
static int make_spool(struct daemon *d, int state_fd, struct err *err)
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
static int take_state(struct daemon *d, struct err *err)
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
    if (r < 0)
        return r;
    d->lock_fd = openat(fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock_fd < 0)
        return err_sys(err, errno, "lock file in '%s'", dir);
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

/* We read what others send. Whoever takes us over by it finds no namespaces, mounts, tracing, new
 * kinds of sockets or programs for the kernel: the calls that the programs in our sandboxes have,
 * and one more. What we start later, to unpack archives, has less still. */
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

static int drop_privileges(const struct daemon *d, struct err *err)
{
    /* Whoever started us may want us to go with it (`box run`); a change of ids forgets that. */
    int death_signal = 0;
    const gid_t *groups = NULL;
    size_t n_groups = boxd_backend_groups(d->backends, &groups);
    (void)prctl(PR_GET_PDEATHSIG, &death_signal, 0, 0, 0);
    if (d->rootful && (setgroups(n_groups, groups) < 0 || setresgid(d->gid, d->gid, d->gid) < 0 ||
                       setresuid(d->uid, d->uid, d->uid) < 0))
        return err_sys(err, errno, "become uid %u", d->uid);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return err_sys(err, errno, "give up privileges");
    if (prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) < 0)
        return err_sys(err, errno, "parent death signal");
    return confine(err);
}

static void raise_nofile(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void on_all_gone(void *arg, const struct err *err)
{
    struct daemon *d = arg;
    d->keep = manager_count(d->manager) > 0;
    if (d->keep)
        log_info(NULL, "leaving %zu chat sandboxes until they expire, or to the next boxd",
                 manager_count(d->manager));
    loop_quit(d->loop);
}

/* Of all but chat sandboxes, which end when they expire and not when we do. */
static void end_all(struct daemon *d)
{
    systemd_notify(&d->systemd, "STOPPING=1\nSTATUS=ending every session");
    http_server_drain(d->server, 1001, "Box runtime shutting down");
    manager_close(d->manager, on_all_gone, d);
}

static void on_farewell(struct loop_timer *t)
{
    struct daemon *d = container_of(t, struct daemon, farewell);
    d->keep = true;
    loop_quit(d->loop);
}

/* The next daemon takes over. */
static void leave(struct daemon *d)
{
    log_info(NULL, "leaving %zu sessions to the next boxd", manager_count(d->manager));
    systemd_notify(&d->systemd, "STOPPING=1\nSTATUS=leaving the sessions to the next boxd");
    http_server_drain(d->server, 1001, "boxd is restarting");
    loop_timer_start(d->loop, &d->farewell, FAREWELL_NS, on_farewell);
}

static void on_signal(struct loop_signal *s, int signo)
{
    struct daemon *d = container_of(s, struct daemon, signals);
    if (signo == SIGUSR2) {
        leave(d);
        return;
    }
    loop_timer_stop(&d->farewell);
    log_info(NULL, "signal %d: ending %zu sessions", signo, manager_count(d->manager));
    end_all(d);
}

/* Whoever started us for itself alone has gone. */
static void on_stdio_ended(void *arg)
{
    struct daemon *d = arg;
    log_info(NULL, "the host has left: ending %zu sessions", manager_count(d->manager));
    end_all(d);
}

static void on_priv_gone(void *arg)
{
    struct daemon *d = arg;
    log_error(NULL, "box-priv has died; every session is lost. Start boxd again.");
    d->status = 1;
    loop_quit(d->loop);
}

static int start_backend(struct daemon *d, struct err *err)
{
    struct boxd_backend_options options = {.loop = d->loop,
                                           .config = d->config,
                                           .tag = d->tag,
                                           .uid = d->uid,
                                           .gid = d->gid,
                                           .rootful = d->rootful,
                                           .gone = on_priv_gone,
                                           .gone_arg = d};
    int r = boxd_find_program("box-fetch", d->fetch_program, err);
    options.fetch_program = d->fetch_program;
    if (r == 0)
        r = boxd_backend_new(&options, &d->backends, err);
    if (r == 0)
        d->backend = boxd_backend_get(d->backends);
    return r;
}

/* A socket that is not open to others has no word for them. Where some are served, authorize()
 * tells the rest what to do about it. */
static bool accept_peer(void *arg, const struct peer *peer)
{
    const struct daemon *d = arg;
    return users_any(d->users) || users_rank(d->users, peer) != USERS_REFUSED;
}

static int authorize(void *arg, struct http_request *req)
{
    return boxd_service_authorize(((const struct daemon *)arg)->service, req);
}

static void on_answered(void *arg, const struct http_answer *answer)
{
    metrics_answered(((const struct daemon *)arg)->manager, answer);
}

static void on_token_changed(void *arg, const char *token)
{
    langbot_set_token(((const struct daemon *)arg)->rpc, token);
}

static int listen_tcp(struct daemon *d, struct err *err)
{
    const struct config *c = d->config;
    if (c->port == 0 || d->systemd.has_tcp)
        return 0;
    if (!boxd_service_needs_token(c) && !config_host_is_loopback(c))
        return err_set(err, ERR_DENIED,
                       "listening on %s needs a token: put one of at least 32 characters into a "
                       "file and name it with token_file in the configuration or $BOX_TOKEN_FILE, "
                       "or set $LANGBOT_BOX_CONTROL_TOKEN",
                       c->host);
    if (!boxd_service_needs_token(c) && d->diag_fd >= 0)
        log_info(NULL,
                 "listening on %s:%u without a token: root, boxd's own user, allowed_users and "
                 "allowed_groups are served",
                 c->host, c->port);
    else if (!boxd_service_needs_token(c))
        log_warn(NULL,
                 "listening on %s:%u without a token, and this kernel does not tell who connects: "
                 "nobody is served there; set token_file",
                 c->host, c->port);
    int r = http_server_listen_tcp(d->server, c->host, c->port, err);
    if (r < 0 && c->stdio_control) {
        log_warn(NULL, "%s. Managed process WebSocket attach will be unavailable.", err->msg);
        return 0;
    }
    return r < 0 ? r : 0;
}

/* Sockets that a service manager made take the place of our own of that kind. */
static int listen_systemd(struct daemon *d, struct err *err)
{
    int r = 0;
    if (d->systemd.outside && !boxd_service_needs_token(d->config))
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

static int start_server(struct daemon *d, struct err *err)
{
    /* Names in Host headers are looked at because pages in a browser can lead here. Who is served
     * from outside is reached by names that we cannot know, and no page knows the token. */
    static const char *const any_host[] = {"*", NULL};
    struct http_server_opts opts = {
        .authorize = authorize,
        .accept_peer = accept_peer,
        .diag_fd = d->diag_fd,
        .answered = on_answered,
        .arg = d,
        .hosts = config_host_is_loopback(d->config) && !d->systemd.outside ? NULL : any_host};
    int r = http_server_new(d->loop, &opts, &d->server, err);
    if (r == 0)
        r = listen_systemd(d, err);
    if (r == 0 && !d->systemd.has_unix)
        r = http_server_listen_unix(d->server, d->config->socket_path,
                                    users_any(d->users) ? 0666 : 0600, err);
    return r < 0 ? r : listen_tcp(d, err);
}

static int start_skills(struct daemon *d, struct err *err)
{
    struct jobs_options options = {.program = d->fetch_program,
                                   .launcher = boxd_backend_launcher(d->backends),
                                   .roots = d->config->mount_roots};
    int r = jobs_new(d->loop, &options, &d->skills, err);
    struct artifacts_options artifacts = {
        .jobs = options, .manager = d->manager, .tag = d->artifacts_tag};
    return r < 0 ? r : artifacts_new(d->loop, &artifacts, &d->artifacts, err);
}

/* As the user that we are from now on, who must be able to use what the configuration names. */
static int start_rpc(struct daemon *d, struct err *err)
{
    const struct config *c = d->config;
    struct langbot_options options = {.manager = d->manager,
                                      .service = boxd_service_policy(d->service),
                                      .token = boxd_service_rpc_token(c),
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
        r = langbot_new(&options, &d->rpc, err);
    if (r == 0 && options.token == NULL && boxd_service_needs_token(c))
        langbot_set_token(d->rpc, NULL); /* tokens with scopes are not for this front */
    if (r == 0)
        r = langbot_routes(d->rpc, d->server, err);
    if (r == 0 && c->stdio_control) {
        struct langbot_stdio_options pipes = {.in_fd = TAKE_FD(d->in_fd),
                                              .out_fd = TAKE_FD(d->out_fd),
                                              .ended = on_stdio_ended,
                                              .arg = d};
        r = langbot_stdio_new(d->rpc, &pipes, &d->stdio, err);
    }
    return r;
}

/* Nobody else gets to see what belongs to the protocol: not our children, not a stray printf. */
static int take_stdio(struct daemon *d, struct err *err)
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
static int open_chats(struct daemon *d, struct err *err)
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
    struct daemon *d = arg;
    d->reconciled = true;
    if (err != NULL)
        d->reconcile_err = *err;
}

static int start_chat(struct daemon *d, struct err *err)
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
    struct daemon *d = arg;
    d->adopted = true;
    if (err != NULL)
        log_warn(NULL, "what an earlier boxd left behind: %s; ignoring", err->msg);
}

/* What all fronts share, and the first of them. */
static int start_service(struct daemon *d, struct err *err)
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
    struct v1_options v1 = {
        .manager = d->manager, .events = d->events, .service = boxd_service_policy(d->service)};
    d->v1 = v1_new(&v1);
    d->mcp = mcp_new(v1_front(d->v1));
    r = v1_routes(d->server, d->v1, err);
    return r < 0 ? r : mcp_routes(d->server, d->mcp, err);
}

/* Turns the loop until that has come about, or the backend has died. */
static int wait_for(struct daemon *d, const bool *done, struct err *err)
{
    while (!*done && d->status == 0) {
        int r = loop_turn(d->loop, -1);
        if (r < 0)
            return err_sys(err, -r, "event loop");
    }
    return d->status != 0 ? err_set(err, ERR_BACKEND, "the backend died") : 0;
}

/* As the user that we are from now on: the records are that user's. Nobody is heard before we know
 * which sessions there are. */
static int start_manager(struct daemon *d, struct err *err)
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
                                      .max_exited = c->max_exited,
                                      .exited_ns = c->exited_sec * NSEC_PER_SEC,
                                      .store = d->store,
                                      .events = d->events,
                                      .shares = d->shares,
                                      .ttl_ns = c->session_ttl_sec * NSEC_PER_SEC,
                                      .strict_images = c->strict_images};
    r = manager_new(d->loop, d->backend, &options, &d->manager, err);
    if (r == 0)
        r = start_service(d, err);
    if (r == 0)
        d->disk = disk_guard_new(&(struct disk_guard_options){
            .service = boxd_service_policy(d->service), .dir_fd = d->state_fd});
    http_server_hold(d->server, true);
    if (r == 0)
        r = start_chat(d, err);
    if (r == 0)
        r = wait_for(d, &d->reconciled, err);
    if (r == 0 && d->reconcile_err.code != ERR_NONE)
        r = err_set(err, d->reconcile_err.code, "%s", d->reconcile_err.msg);
    if (r == 0)
        r = manager_adopt(d->manager, on_adopted, d, err);
    if (r == 0)
        r = wait_for(d, &d->adopted, err);
    http_server_hold(d->server, false);
    if (r < 0)
        return r;
    if (manager_count(d->manager) > 0)
        log_info(NULL, "took over %zu sessions", manager_count(d->manager));
    chat_start(d->chat);
    return 0;
}

static int start(struct daemon *d, int argc, char **argv, struct err *err)
{
    sigset_t set;
    int r = systemd_take(&d->systemd, err);
    if (r == 0)
        r = config_load(argc, argv, &d->config, err);
    if (r != 0)
        return r; /* > 0: --help or --version already answered */
    assert(d->config != NULL);
    config_apply_log(d->config);
    find_ids(d);
    r = users_new(d->uid, d->config->allowed_users, d->config->allowed_groups, &d->users, err);
    if (r < 0)
        return r;
    raise_nofile();
    d->diag_fd = peer_socket(); /* our filter will not let us make one */
    r = take_stdio(d, err);
    if (r == 0)
        r = take_state(d, err);
    if (r == 0)
        r = loop_new(&clock_system, &d->loop, err);
    if (r == 0)
        r = start_backend(d, err);
    /* Our place may lie below a directory that only root may pass; nothing is read from anybody
     * before the loop runs. */
    if (r == 0)
        r = start_server(d, err);
    if (r == 0)
        r = open_chats(d, err);
    if (r == 0)
        r = drop_privileges(d, err);
    if (r == 0)
        r = start_manager(d, err);
    if (r == 0)
        r = start_rpc(d, err);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGUSR2);
    /* A terminal that goes away ends us properly too, unless somebody wanted us to outlive it. */
    struct sigaction hup;
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        (void)sigaddset(&set, SIGHUP);
    if (r == 0 && (r = loop_signal_start(d->loop, &d->signals, &set, on_signal)) < 0)
        r = err_sys(err, -r, "signals");
    return r;
}

static void stop(struct daemon *d)
{
    loop_signal_stop(&d->signals);
    loop_timer_stop(&d->farewell);
    systemd_done(&d->systemd);
    langbot_stdio_free(d->stdio);
    http_server_free(d->server);
    langbot_free(d->rpc);
    mcp_free(d->mcp);
    v1_free(d->v1);
    disk_guard_free(d->disk);
    quota_guards_free(d->guards);
    artifacts_free(d->artifacts);
    jobs_free(d->skills);
    /* One that never came to serve leaves the sessions of an earlier one alone. */
    boxd_backend_free(d->backends, d->keep || !d->served);
    chat_free(d->chat);
    boxd_service_free(d->service);
    manager_free(d->manager);
    events_free(d->events);
    shares_free(d->shares);
    store_free(d->store);
    loop_free(d->loop);
    users_free(d->users);
    config_free(d->config);
    fd_close_many(&d->state_fd, 1);
    fd_close_many(&d->lock_fd, 1);
    fd_close_many(&d->spool_fd, 1);
    fd_close_many(&d->in_fd, 1);
    fd_close_many(&d->out_fd, 1);
    fd_close_many(&d->chats_fd, 1);
    fd_close_many(&d->diag_fd, 1);
}

/* A large answer is held for a moment only. Left to itself malloc learns from the first one to keep
 * that much for ever. */
static void return_memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
}

int main(int argc, char **argv)
{
    static struct daemon d = {.lock_fd = -1,
                              .state_fd = -1,
                              .spool_fd = -1,
                              .in_fd = -1,
                              .out_fd = -1,
                              .chats_fd = -1,
                              .diag_fd = -1};
    struct err err = {0};
    return_memory();
    log_init("boxd");
    (void)sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    int r = start(&d, argc, argv, &err);
    if (r == 0) {
        log_info(NULL, "serving on %s%s", d.config->socket_path,
                 d.config->port != 0 ? " and TCP" : "");
        d.served = true;
        config_say_ready(d.config);
        systemd_notify(&d.systemd, "READY=1\nSTATUS=serving");
        systemd_watch(&d.systemd, d.loop);
        r = loop_run(d.loop, &err);
    }
    if (r < 0)
        log_error(NULL, "%s", err.msg);
    stop(&d);
    return r < 0 ? 1 : d.status;
}
