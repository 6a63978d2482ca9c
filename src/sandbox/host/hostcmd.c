/* SPDX-License-Identifier: Apache-2.0 */

/* Finds, spawns, waits for and kills a program of the host. */

#include "sandbox/host/hostcmd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

/* What is kept of a failing program's standard error. */
#define TEXT_MAX 200

static const char *const program_dirs[] = {"/usr/sbin", "/usr/bin",        "/sbin",
                                           "/bin",      "/usr/local/sbin", "/usr/local/bin"};

/* A program found through $PATH, or steered by the variables of the process that started us, would
 * be an unreviewed input to root. */
static const char *const program_env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                                          "HOME=/", NULL};

struct text {
    char data[TEXT_MAX + 1];
    size_t len;
};

int hostcmd_find(const char *name, char *ret, size_t size, struct err *err)
{
    if (strchr(name, '/') != NULL) {
        if (access(name, X_OK) == 0 && str_copy(ret, size, name) == 0)
            return 0;
        return err_set(err, ERR_UNSUPPORTED, "program '%s' is not installed", name);
    }
    for (size_t i = 0; i < ARRAY_SIZE(program_dirs); i++)
        if (str_fmt(ret, size, "%s/%s", program_dirs[i], name) >= 0 && access(ret, X_OK) == 0)
            return 0;
    return err_set(err, ERR_UNSUPPORTED, "program '%s' is not installed", name);
}

/* Every source is first moved above the range of targets, so that no dup2 can clobber a source that
 * is still to come. `high` is owned by the caller. */
static int file_actions(posix_spawn_file_actions_t *fa, const int *fds, size_t n_fds, int *high)
{
    for (size_t i = 0; i < n_fds || i < 3; i++) {
        int r;

        if (i < n_fds && fds[i] >= 0) {
            high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, HOSTCMD_FDS_MAX);
            if (high[i] < 0)
                return -errno;
            r = posix_spawn_file_actions_adddup2(fa, high[i], (int)i);
        } else {
            r = posix_spawn_file_actions_addopen(fa, (int)i, "/dev/null", O_RDWR, 0);
        }
        if (r != 0)
            return -r;
    }
    return -posix_spawn_file_actions_addclosefrom_np(fa, n_fds > 3 ? (int)n_fds : 3);
}

static int spawn_attr(posix_spawnattr_t *attr)
{
    sigset_t none, all;
    int r;

    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    r = posix_spawnattr_setsigmask(attr, &none);
    if (r == 0)
        r = posix_spawnattr_setsigdefault(attr, &all);
    if (r == 0)
        r = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return -r;
}

static int spawn_path(const char *path, const char *const argv[], const int *fds, size_t n_fds,
                      pid_t *ret)
{
    int high[HOSTCMD_FDS_MAX];
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    int r;

    for (size_t i = 0; i < HOSTCMD_FDS_MAX; i++)
        high[i] = -1;
    r = -posix_spawn_file_actions_init(&fa);
    if (r < 0)
        return r;
    r = -posix_spawnattr_init(&attr);
    if (r == 0) {
        r = spawn_attr(&attr);
        if (r == 0)
            r = file_actions(&fa, fds, n_fds, high);
        if (r == 0)
            r = -posix_spawn(ret, path, &fa, &attr, (char *const *)argv,
                             (char *const *)program_env);
        (void)posix_spawnattr_destroy(&attr);
    }
    (void)posix_spawn_file_actions_destroy(&fa);
    fd_close_many(high, HOSTCMD_FDS_MAX);
    return r;
}

int hostcmd_start(const char *const argv[], const int *fds, size_t n_fds, struct hostcmd *ret,
                  struct err *err)
{
    char path[256];
    pid_t pid = 0;
    int r, pidfd;

    if (n_fds > HOSTCMD_FDS_MAX)
        return err_set(err, ERR_INVALID, "too many descriptors for '%s'", argv[0]);
    r = hostcmd_find(argv[0], path, sizeof(path), err);
    if (r < 0)
        return r;
    r = spawn_path(path, argv, fds, n_fds, &pid);
    if (r < 0)
        return err_sys(err, -r, "start '%s'", path);
    assert(pid > 0); /* 0 would be our own process group */
    /* The pid cannot be reused before we reap it, so this opens our child and no other. */
    pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) {
        r = errno;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        return err_sys(err, r, "pidfd_open of '%s'", argv[0]);
    }
    *ret = (struct hostcmd){.pid = pid, .pidfd = pidfd};
    return 0;
}

void hostcmd_kill(struct hostcmd *p)
{
    siginfo_t info;

    if (p->pid <= 0)
        return;
    (void)pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0);
    /* Not by its number: it may have been reaped, and another child of ours have it by now. */
    while (waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
    (void)close(p->pidfd);
    *p = (struct hostcmd){.pid = 0, .pidfd = -1};
}

static int64_t now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Keeps the first bytes as one printable line, discards the rest. Returns false at end of file. */
static bool text_read(struct text *t, int fd)
{
    char chunk[512];
    ssize_t n = read(fd, chunk, sizeof(chunk));

    if (n < 0)
        return errno == EINTR || errno == EAGAIN;
    for (ssize_t i = 0; i < n && t->len < TEXT_MAX; i++) {
        bool blank = chunk[i] <= ' ' || chunk[i] > '~';

        if (blank && (t->len == 0 || t->data[t->len - 1] == ' '))
            continue;
        t->data[t->len++] = blank ? ' ' : chunk[i];
    }
    t->data[t->len] = '\0';
    return n > 0;
}

/* Reads standard error until the child ends or time is out. 1: ended, 0: time is out. */
static int wait_end(const struct hostcmd *p, int err_fd, unsigned timeout_ms, struct text *text)
{
    int64_t deadline = now_ms() + (int64_t)timeout_ms;
    struct pollfd pfd[2] = {{.fd = p->pidfd, .events = POLLIN}, {.fd = err_fd, .events = POLLIN}};

    for (;;) {
        int64_t left = deadline - now_ms();
        int n = poll(pfd, 2, left > 0 ? (int)left : 0);

        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0 && left <= 0)
            return 0;
        if (n > 0 && pfd[1].revents != 0 && !text_read(text, err_fd))
            pfd[1].fd = -1;
        else if (n > 0 && pfd[0].revents != 0)
            return 1;
    }
}

int hostcmd_wait(const char *const argv[], int stdin_fd, unsigned timeout_ms, struct err *err)
{
    const struct hostcmd_opts opts = {
        .stdin_fd = stdin_fd, .stdout_fd = -1, .timeout_ms = timeout_ms};

    return hostcmd_wait_opts(argv, &opts, err);
}

int hostcmd_wait_opts(const char *const argv[], const struct hostcmd_opts *opts, struct err *err)
{
    struct hostcmd p = {.pid = 0, .pidfd = -1};
    struct text text = {.len = 0};
    siginfo_t info = {0};
    int pipe_fd[2], r;

    if (pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, errno, "pipe");
    AUTO_CLOSE int rd = pipe_fd[0];
    AUTO_CLOSE int wr = pipe_fd[1];
    const int fds[3] = {opts->stdin_fd, opts->stdout_fd, wr};

    r = hostcmd_start(argv, fds, ARRAY_SIZE(fds), &p, err);
    if (r < 0)
        return r;
    (void)close(TAKE_FD(wr));
    r = wait_end(&p, rd, opts->timeout_ms, &text);
    if (r > 0 && waitid(P_PIDFD, (id_t)p.pidfd, &info, WEXITED | WNOWAIT) < 0)
        r = -errno;
    hostcmd_kill(&p);
    if (r < 0)
        return err_sys(err, -r, "wait for '%s'", argv[0]);
    if (r == 0)
        return err_set(err, ERR_SYSTEM, "'%s' was not done after %u ms and was killed", argv[0],
                       opts->timeout_ms);
    if (info.si_code != CLD_EXITED)
        return err_set(err, ERR_SYSTEM, "'%s' died of signal %d", argv[0], info.si_status);
    if (info.si_status > opts->max_status)
        return err_set(err, ERR_SYSTEM, "'%s' failed with status %d: %s", argv[0], info.si_status,
                       text.data);
    return info.si_status;
}
