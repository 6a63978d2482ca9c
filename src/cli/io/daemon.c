/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the boxd program, starts it, waits until it is ready, and stops it again. */

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/state_dir.h"
#include "base/str.h"
#include "base/strv.h"
#include "base/user.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "config/config.h"
#include "inside/clone.h"

#define READY_FD 3
#define LOOK_MS 1000
#define READY_MS 30000
#define STOP_MS 15000
#define RACE_TRIES 100 /* times RACE_MS: another box may be starting the same boxd */
#define RACE_MS 20
#define LOG_NAME "boxd.log"
#define SOCKET_NAME "boxd.sock"
#define SYSTEM_SOCKET "/run/box/" SOCKET_NAME
#define GROUPS_MAX 1024

/* Places. */

static int home_dir(char **ret, struct err *err)
{
    const char *dir = getenv("HOME");

    if (dir != NULL && dir[0] == '/') {
        *ret = xstrdup(dir);
        return 0;
    }
    struct passwd entry;
    struct passwd *found = NULL;
    char text[4096];
    (void)getpwuid_r(geteuid(), &entry, text, sizeof(text), &found);
    if (found == NULL || found->pw_dir == NULL || found->pw_dir[0] != '/')
        return err_set(err, ERR_NOT_FOUND, "no home directory: set HOME or BOX_HOST");
    *ret = xstrdup(found->pw_dir);
    return 0;
}

/* Where boxd keeps its files unless it is told otherwise: `of_root`, or a directory of the user's.
 */
static int default_dir(const char *of_root, const char *xdg_name, char **ret, struct err *err)
{
    const char *xdg = getenv(xdg_name);
    AUTO_FREE char *dir = NULL;
    int r = 0;

    if (user_is_host_root())
        *ret = xstrdup(of_root);
    else if (xdg != NULL && xdg[0] == '/')
        *ret = xasprintf("%s/box", xdg);
    else if ((r = home_dir(&dir, err)) >= 0)
        *ret = xasprintf("%s/.local/state/box", dir);
    return r;
}

/* 1 when a boxd listens there, 0 when none does, or why that cannot be told. */
static int probe_socket(const char *socket_path, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (str_copy(address.sun_path, sizeof(address.sun_path), socket_path) < 0)
        return err_set(err, ERR_INVALID, "the path of a socket is too long: '%s'", socket_path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(err, errno, "make a socket");
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        return 1;
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
        return 0;
    return err_sys(err, errno, "connect to boxd at '%s'", socket_path);
}

/* Whether the host's list of groups has us in that one, whatever groups this process has. */
static bool is_listed(gid_t gid)
{
    const struct passwd *pw = getpwuid(geteuid());
    gid_t groups[GROUPS_MAX];
    int n = GROUPS_MAX;

    if (pw == NULL || getgrouplist(pw->pw_name, pw->pw_gid, groups, &n) < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (groups[i] == gid)
            return true;
    return false;
}

/* The system's boxd is stronger than one without root, so a user who is kept out has to hear of it.
 */
static void tell_kept_out(struct daemon *d)
{
    const struct passwd *pw = getpwuid(geteuid());
    struct stat st = {0};

    if (d->warned)
        return;
    d->warned = true;
    bool found = stat(SYSTEM_SOCKET, &st) == 0 && st.st_gid != 0;
    const struct group *gr = found ? getgrgid(st.st_gid) : NULL;
    const char *group = gr != NULL ? gr->gr_name : "box";
    if (found && is_listed(st.st_gid))
        text_say("the system's boxd (" SYSTEM_SOCKET ") will serve you from your next login on, as "
                 "a member of the group '%s' (or now, in the shell of 'newgrp %s'); going on "
                 "without root",
                 group, group);
    else
        text_say("the system's boxd (" SYSTEM_SOCKET ") serves members of the group '%s'; going on "
                 "without root. To use it: 'sudo usermod -aG %s %s', then log in again",
                 group, group, pw != NULL ? pw->pw_name : "USER");
}

/* The system's, for those whom it lets in: 1 when it is to be used. */
static int find_system(struct daemon *d, char **ret_socket)
{
    struct err err = {0};

    if (user_is_host_root())
        return 0;
    int r = probe_socket(SYSTEM_SOCKET, &err);
    if (r == -EACCES || r == -EPERM)
        tell_kept_out(d);
    if (r <= 0)
        return 0;
    *ret_socket = xstrdup(SYSTEM_SOCKET);
    d->why = "the system's boxd lets you in, as a member of its group";
    return 1;
}

/* Beside our own program, as built and as installed; else where installations have it. */
static int find_program(char **ret, struct err *err)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    AUTO_FREE char *beside = NULL;
    AUTO_FREE char *installed = xstrdup(BOX_LIBEXECDIR "/../../bin/boxd");

    if (n > 0) {
        self[n] = '\0';
        beside = xasprintf("%.*s/boxd", (int)(strrchr(self, '/') - self), self);
        if (access(beside, X_OK) == 0) {
            *ret = TAKE_PTR(beside);
            return 0;
        }
    }
    if (access(installed, X_OK) != 0)
        return err_set(err, ERR_NOT_FOUND,
                       "no boxd is running, and there is none to start at '%s' or '%s'",
                       beside != NULL ? beside : "-", installed);
    *ret = TAKE_PTR(installed);
    return 0;
}

/* Starting. */

struct daemon_launch {
    char *program;   /* owned */
    char **argv;     /* owned */
    char *state_dir; /* owned; NULL: boxd's default */
    int log_fd;      /* owned */
    int ready_fd;    /* owned; the child's end */
    bool is_private;
};

static void daemon_launch_done(struct daemon_launch *l)
{
    free(l->program);
    strv_free(l->argv);
    free(l->state_dir);
    if (l->log_fd >= 0)
        (void)close(l->log_fd);
    if (l->ready_fd >= 0)
        (void)close(l->ready_fd);
}
DEFINE_CLEANUP_DONE(daemon_launch)

/* In the child, after a plain fork of a process with one thread. Its messages go to the log. */
static _Noreturn void exec_child(const struct daemon_launch *l, pid_t parent)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    sigset_t none;

    (void)setsid(); /* a Ctrl-C is for us, not for it */
    if (l->is_private) {
        /* We may be killed without a chance to stop it. */
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            child_exit(1);
    }
    (void)sigaction(SIGPIPE, &by_default, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    /* All of ours are above READY_FD: see open_high(). */
    if (null_fd < 0 || dup3(null_fd, STDIN_FILENO, 0) < 0 ||
        dup3(l->log_fd >= 0 ? l->log_fd : null_fd, STDOUT_FILENO, 0) < 0 ||
        dup3(l->log_fd >= 0 ? l->log_fd : null_fd, STDERR_FILENO, 0) < 0 ||
        dup3(l->ready_fd, READY_FD, 0) < 0)
        child_exit(1);
    if (l->is_private)
        (void)setenv("BOX_LINGER_SEC", "0", 1); /* no client comes back for its sessions */
    (void)setenv("BOX_LOG_FORMAT", "text", 0);
    (void)execv(l->program, l->argv);
    (void)dprintf(STDERR_FILENO, "cannot run '%s': %s\n", l->program, err_errno_text(errno));
    child_exit(127);
}

/* The same descriptor, above those that the child has by number. */
static int move_high(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, READY_FD + 1);
    int saved = errno;

    (void)close(fd);
    return high < 0 ? -saved : high;
}

static int open_log(const char *dir)
{
    AUTO_FREE char *path = xasprintf("%s/" LOG_NAME, dir);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);

    return fd < 0 ? fd : move_high(fd);
}

static int make_private_dir(char **ret, struct err *err)
{
    const char *base = getenv("TMPDIR");
    struct sockaddr_un address;

    /* The name of the socket must fit. */
    if (base == NULL || base[0] != '/' ||
        strlen(base) + sizeof("/box-XXXXXX/" SOCKET_NAME) > sizeof(address.sun_path))
        base = "/tmp";
    AUTO_FREE char *dir = xasprintf("%s/box-XXXXXX", base);
    if (mkdtemp(dir) == NULL)
        return err_sys(err, errno, "make a directory '%s'", dir);
    *ret = TAKE_PTR(dir);
    return 0;
}

/* What boxd said last before it gave up. */
static int boxd_died(const struct daemon_launch *l, struct err *err)
{
    char tail[1025];
    off_t size = l->log_fd >= 0 ? lseek(l->log_fd, 0, SEEK_END) : 0;
    off_t from = size > (off_t)sizeof(tail) - 1 ? size - (off_t)sizeof(tail) + 1 : 0;
    ssize_t n = l->log_fd >= 0 ? pread(l->log_fd, tail, sizeof(tail) - 1, from) : 0;

    tail[n > 0 ? n : 0] = '\0';
    while (n > 0 && tail[n - 1] == '\n')
        tail[--n] = '\0';
    const char *last = strrchr(tail, '\n');
    last = last != NULL ? last + 1 : tail;
    return err_set(err, ERR_BACKEND, "boxd did not start%s%s", last[0] != '\0' ? ": " : "", last);
}

static int wait_ready(const struct daemon_launch *l, int ready, int wake_fd, struct err *err)
{
    struct pollfd p[] = {{.fd = ready, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    char byte;
    int n = 0;

    for (int waited = 0; n == 0 && waited < READY_MS; waited += LOOK_MS) {
        if (waited > 0)
            text_wait("starting boxd", 0, (unsigned)(waited / LOOK_MS));
        do
            n = poll(p, ARRAY_SIZE(p), LOOK_MS);
        while (n < 0 && errno == EINTR);
    }
    text_wait_clear();
    if (n < 0)
        return err_sys(err, errno, "wait for boxd");
    if (n == 0)
        return err_set(err, ERR_BACKEND, "boxd did not serve within %d s", READY_MS / 1000);
    if (p[0].revents == 0)
        return err_set(err, ERR_STATE, "interrupted while boxd started");
    return fd_read_full(ready, &byte, 1) == 1 ? 0 : boxd_died(l, err);
}

static void make_argv(struct daemon_launch *l)
{
    strv_add(&l->argv, l->program);
    strv_add(&l->argv, "--ws-control-port");
    strv_add(&l->argv, "0");
    strv_add(&l->argv, "--ready-fd");
    strv_push(&l->argv, xasprintf("%d", READY_FD));
    if (l->state_dir == NULL)
        return;
    strv_add(&l->argv, "--state-dir");
    strv_add(&l->argv, l->state_dir);
}

static int spawn_boxd(struct daemon *d, struct daemon_launch *l, int wake_fd, struct err *err)
{
    int fds[2];
    pid_t self = getpid();

    make_argv(l);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "make a pipe");
    AUTO_CLOSE int ready = fds[0];
    l->ready_fd = move_high(fds[1]);
    if (l->ready_fd < 0)
        return err_sys(err, -l->ready_fd, "make a pipe");
    pid_t pid = clone_process(0, -1, &d->pidfd);
    if (pid < 0)
        return err_sys(err, -pid, "start a process");
    if (pid == 0)
        exec_child(l, self);
    d->pid = pid;
    (void)close(TAKE_FD(l->ready_fd)); /* so that its death is an end of file */
    return wait_ready(l, ready, wake_fd, err);
}

static int start_private(struct daemon *d, struct daemon_launch *l, int wake_fd, char **ret_socket,
                         struct err *err)
{
    int r = make_private_dir(&l->state_dir, err);

    if (r < 0)
        return r;
    d->state_dir = xstrdup(l->state_dir);
    l->is_private = true;
    l->log_fd = open_log(l->state_dir);
    r = spawn_boxd(d, l, wake_fd, err);
    if (r < 0) {
        daemon_stop(d);
        return r;
    }
    *ret_socket = xasprintf("%s/" SOCKET_NAME, l->state_dir);
    return 0;
}

/* The one that we lost a race against may still be on its way. */
static int adopt_other(const char *path)
{
    int r = 0;

    for (int i = 0; i < RACE_TRIES && r == 0; i++) {
        r = probe_socket(path, NULL);
        if (r == 0)
            (void)poll(NULL, 0, RACE_MS);
    }
    return r;
}

/* Before we write the log into it. What else goes wrong is for boxd to tell. */
static int claim_dir(const char *dir, struct err *err)
{
    AUTO_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    return fd < 0 ? 0 : state_dir_claim(fd, dir, err);
}

static int start_kept(struct daemon *d, struct daemon_launch *l, int wake_fd, const char *path,
                      char **ret_socket, struct err *err)
{
    AUTO_FREE char *dir = NULL;
    int r = default_dir("/var/lib/box", "XDG_STATE_HOME", &dir, err);

    if (r < 0)
        return r;
    (void)config_make_path(dir, 0711, NULL); /* what goes wrong is for boxd to tell */
    r = claim_dir(dir, err);
    if (r < 0)
        return r;
    l->log_fd = open_log(dir);
    r = spawn_boxd(d, l, wake_fd, err);
    if (r < 0) {
        daemon_stop(d);
        if (r == err_code_errno(ERR_STATE) || adopt_other(path) <= 0)
            return r;
    } else {
        text_say("started boxd (pid %d), which keeps the sessions; stop it with 'kill %d'", d->pid,
                 d->pid);
    }
    d->pid = 0;
    if (d->pidfd >= 0)
        (void)close(TAKE_FD(d->pidfd));
    *ret_socket = xstrdup(path);
    return 0;
}

int daemon_find(struct daemon *d, enum daemon_kind kind, int wake_fd, char **ret_socket,
                struct err *err)
{
    AUTO_DONE(daemon_launch) struct daemon_launch l = {.log_fd = -1, .ready_fd = -1};
    AUTO_FREE char *dir = NULL;
    int r = default_dir("/run/box", "XDG_RUNTIME_DIR", &dir, err);

    if (r < 0)
        return r;
    if (find_system(d, ret_socket) > 0)
        return 0;
    AUTO_FREE char *path = xasprintf("%s/" SOCKET_NAME, dir);
    r = probe_socket(path, err);
    d->why = user_is_host_root() ? "it is the system's, and you are root"
                                 : "it is your own, without root, and runs already";
    if (r > 0)
        *ret_socket = TAKE_PTR(path);
    if (r != 0)
        return r < 0 ? r : 0;
    if (kind == DAEMON_RUNNING)
        return err_set(
            err, ERR_NOT_FOUND,
            "no boxd is running (no program listens on '%s'), so no session runs; 'box "
            "start ID' brings back one that is kept, 'box run --session ID -- CMD' makes "
            "one",
            path);
    *d = (struct daemon){.pidfd = -1, .warned = d->warned};
    d->why = kind == DAEMON_ANY ? "none was running, so this is a private one for this command"
                                : "none was running, so box started this one, which stays";
    r = find_program(&l.program, err);
    if (r < 0)
        return r;
    return kind == DAEMON_ANY ? start_private(d, &l, wake_fd, ret_socket, err)
                              : start_kept(d, &l, wake_fd, path, ret_socket, err);
}

static void end_process(struct daemon *d)
{
    struct pollfd p = {.fd = d->pidfd, .events = POLLIN};
    int n;

    (void)syscall(SYS_pidfd_send_signal, d->pidfd, SIGTERM, NULL, 0);
    do
        n = poll(&p, 1, STOP_MS);
    while (n < 0 && errno == EINTR);
    if (n == 0) {
        text_say("boxd did not stop within %d s, killing it", STOP_MS / 1000);
        (void)syscall(SYS_pidfd_send_signal, d->pidfd, SIGKILL, NULL, 0);
    }
    siginfo_t info;
    while (waitid(P_PIDFD, (id_t)d->pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    d->pid = 0;
    (void)close(TAKE_FD(d->pidfd));
}

static void remove_state(struct daemon *d)
{
    char *slash = strrchr(d->state_dir, '/');

    *slash = '\0';
    AUTO_CLOSE int parent =
        open(d->state_dir[0] != '\0' ? d->state_dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = parent < 0 ? -errno : path_remove_tree_at(parent, slash + 1);
    *slash = '/';
    if (r < 0)
        text_say("cannot remove '%s': %s", d->state_dir, err_errno_text(-r));
}

void daemon_stop(struct daemon *d)
{
    if (d->pid > 0)
        end_process(d);
    if (d->state_dir != NULL)
        remove_state(d);
    free(d->state_dir);
    d->state_dir = NULL;
}
