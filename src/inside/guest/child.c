/* SPDX-License-Identifier: Apache-2.0 */

/* The child of box-guest before execve: streams, limits, directory, filter, environment. */

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/guest/guest.h"
#include "inside/seccomp_install.h"

/* MAX_ARG_STRLEN of the kernel: one string of argv cannot be longer. */
#define ARG_STRLEN_MAX (128U * 1024U)
#define SHELL "/bin/sh"
#define SCRIPT_FD 3
#define KERNEL_SIGNALS 64
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define DEFAULT_PATH_ENTRY "PATH=" DEFAULT_PATH

struct strings {
    char **argv, **envp;
    const char *cwd;
};

static struct child_report *report;

static _Noreturn void fail(enum guest_stage stage, int error)
{
    report->error = error;
    report->stage = stage;
    child_exit(stage == GUEST_STAGE_EXEC && error == ENOENT ? 127 : 126);
}

/* The child's own memory, gone at execve. */
static void *scratch(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail(GUEST_STAGE_REQUEST, ENOMEM);
    return p;
}

/* Later entries win. */
static void put_env(char **envp, size_t *n, char *entry)
{
    size_t name = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < *n; i++) {
        if (strncmp(envp[i], entry, name) == 0) {
            envp[i] = entry;
            return;
        }
    }
    envp[(*n)++] = entry;
}

/* The image's environment is ours, since we are the container's own program. */
static void split_strings(const struct start_request *req, struct strings *ret)
{
    static const char *const defaults[] = {DEFAULT_PATH_ENTRY, "HOME=/tmp", "LANG=C.UTF-8",
                                           "TERM=xterm-256color"};
    const struct guest_start *head = &req->head;
    size_t n_own = 0, n_env = 0;
    while (environ[n_own] != NULL)
        n_own++;
    char *at = (char *)(uintptr_t)req->strings;
    const char *end = at + req->strings_len;
    ret->argv = scratch((head->argc + 1) * sizeof(char *));
    ret->envp = scratch((head->envc + n_own + ARRAY_SIZE(defaults) + 1) * sizeof(char *));
    for (size_t i = 0; i + ((req->flags & GUEST_START_TTY) == 0) < ARRAY_SIZE(defaults); i++)
        put_env(ret->envp, &n_env, (char *)(uintptr_t)defaults[i]);
    for (size_t i = 0; i < n_own; i++)
        put_env(ret->envp, &n_env, environ[i]);
    for (size_t i = 0; i <= (size_t)head->argc + head->envc; i++) {
        if (at >= end)
            fail(GUEST_STAGE_REQUEST, EBADMSG);
        if (i < head->argc)
            ret->argv[i] = at;
        else if (i < (size_t)head->argc + head->envc)
            put_env(ret->envp, &n_env, at);
        else
            ret->cwd = at;
        at += strlen(at) + 1;
    }
    if (at != end || ret->cwd == NULL)
        fail(GUEST_STAGE_REQUEST, EBADMSG);
}

static void move_fd(int from, int to)
{
    if (from < 0) {
        from = open("/dev/null", (to == STDIN_FILENO ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
        if (from < 0)
            fail(GUEST_STAGE_CONFINE, errno);
    }
    if (dup3(from, to, 0) < 0)
        fail(GUEST_STAGE_CONFINE, errno);
}

static void take_stdio(const struct child_stdio *io)
{
    if (io->tty >= 0) {
        if (ioctl(io->tty, TIOCSCTTY, 0) < 0)
            fail(GUEST_STAGE_CONFINE, errno);
        for (int fd = 0; fd < 3; fd++)
            move_fd(io->tty, fd);
        return;
    }
    move_fd(io->in, STDIN_FILENO);
    move_fd(io->out, STDOUT_FILENO);
    move_fd(io->err, STDERR_FILENO);
}

static void set_limit(const struct guest *g, uint32_t resource, uint64_t soft, uint64_t hard)
{
    struct rlimit limit;
    /* Where the engine gave less, that is the limit: raising it is not ours. */
    if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
        fail(GUEST_STAGE_CONFINE, errno);
    limit.rlim_max = hard < limit.rlim_max ? hard : limit.rlim_max;
    limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
    /* gVisor does not let anybody set what it does not have: queues of messages and of signals are
     * memory of its own there, which the container's limit counts. */
    if (setrlimit((__rlimit_resource_t)resource, &limit) < 0 &&
        !(errno == EPERM && g->gvisor &&
          (resource == RLIMIT_MSGQUEUE || resource == RLIMIT_SIGPENDING)))
        fail(GUEST_STAGE_CONFINE, errno);
}

/* The container's own limit has room for us; programs must not take it. */
static void set_limits(const struct guest *g)
{
    const struct guest_hello *config = &g->config;
    uint32_t nproc = g->gvisor ? config->processes : config->nproc;
    /* The kernel (since 5.14) counts in the user namespace, where box-guest is not. */
    if (nproc > 1 && g->within[WITHIN_USER] >= 0)
        nproc--;
    for (uint32_t i = 0; i < config->n_rlimits; i++)
        set_limit(g, config->rlimits[i].resource, config->rlimits[i].soft, config->rlimits[i].hard);
    if (nproc > 0)
        set_limit(g, RLIMIT_NPROC, nproc, nproc);
    /* When memory runs out it is not box-guest that goes. */
    (void)fd_write_file_at(AT_FDCWD, "/proc/self/oom_score_adj", "500");
}

/* As `mkdir -p` would. */
static void make_cwd(const char *cwd)
{
    char path[4096];
    size_t len = strlen(cwd);
    if (str_copy(path, sizeof(path), cwd) < 0)
        fail(GUEST_STAGE_CWD, ENAMETOOLONG);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        int r = mkdir(path, 0755) < 0 ? errno : 0;
        path[i] = cwd[i];
        /* On the way there any refusal may be about a directory that exists already. */
        if (r != 0 && r != EEXIST && cwd[i] == '\0')
            fail(GUEST_STAGE_CWD, r);
    }
}

static void enter_cwd(const char *cwd)
{
    char real[4096];
    if (cwd[0] != '/')
        fail(GUEST_STAGE_CWD, EINVAL);
    int r = chdir(cwd);
    if (r < 0 && errno == ENOENT) {
        make_cwd(cwd);
        r = chdir(cwd);
    }
    if (r < 0)
        fail(GUEST_STAGE_CWD, errno);
    /* A directory outside our root is reported as "(unreachable)…"; /proc/self/fd/N is how one gets
     * there (CVE-2024-21626). */
    if (syscall(SYS_getcwd, real, sizeof(real)) < 0 || real[0] != '/' || str_eq(real, "/proc") ||
        str_starts(real, "/proc/"))
        fail(GUEST_STAGE_CWD, EACCES);
}

/* The shell's command string, as one argument where the kernel takes it, else as a file of its own.
 */
static bool shape_script(struct strings *s)
{
    char **argv = scratch(4 * sizeof(char *));
    char *cmd = s->argv[0];
    size_t len = strlen(cmd);
    argv[0] = (char *)(uintptr_t) "sh";
    s->argv = argv;
    if (len < ARG_STRLEN_MAX) {
        argv[1] = (char *)(uintptr_t) "-c";
        argv[2] = cmd;
        return false;
    }
    int fd = memfd_create("script", 0);
    if (fd < 0 || fd_write_all(fd, cmd, len) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        fail(GUEST_STAGE_CONFINE, errno);
    if (fd != SCRIPT_FD && dup3(fd, SCRIPT_FD, 0) < 0)
        fail(GUEST_STAGE_CONFINE, errno);
    argv[1] = (char *)(uintptr_t) "/proc/self/fd/3";
    return true;
}

static const char *env_get(char **envp, const char *name)
{
    size_t len = strlen(name);
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=')
            return *envp + len + 1;
    return NULL;
}

/* Tries each directory of PATH; EACCES is remembered, as a shell does. */
static int exec_search(const struct strings *s)
{
    char path[4096];
    const char *dirs = env_get(s->envp, "PATH");
    int seen = ENOENT;
    if (dirs == NULL || *dirs == '\0')
        dirs = DEFAULT_PATH;
    while (*dirs != '\0') {
        size_t len = strcspn(dirs, ":");
        int n = snprintf(path, sizeof(path), "%.*s%s%s", (int)len, dirs, len > 0 ? "/" : "",
                         s->argv[0]);
        if (n > 0 && (size_t)n < sizeof(path)) {
            (void)execve(path, s->argv, s->envp);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return errno;
            if (errno == EACCES)
                seen = EACCES;
        }
        dirs += len + (dirs[len] == ':');
    }
    return seen;
}

/* Namespaces as the lines of a status file, "Ns-user:" and its number, and why box-guest could not
 * make one. */
static void tell_namespaces(const struct guest *g)
{
    static const char *const names[] = {"user", "mnt", "pid",    "net",
                                        "ipc",  "uts", "cgroup", "time"};
    static const char *const made[WITHIN_MAX] = {"user", "time", "cgroup"};
    char path[32], line[64];
    struct stat st;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        (void)str_fmt(path, sizeof(path), "/proc/self/ns/%s", names[i]);
        if (stat(path, &st) < 0)
            continue; /* gVisor has few of them */
        (void)str_fmt(line, sizeof(line), "Ns-%s:\t%llu\n", names[i],
                      (unsigned long long)st.st_ino);
        (void)fd_write_all(STDOUT_FILENO, line, strlen(line));
    }
    for (size_t i = 0; i < WITHIN_MAX; i++) {
        (void)str_fmt(line, sizeof(line), "Ns-errno-%s:\t%d\n", made[i],
                      g->within[i] < 0 ? -g->within[i] : 0);
        (void)fd_write_all(STDOUT_FILENO, line, strlen(line));
    }
}

/* The receipt's witness: under every wall, before any program could have changed anything. */
static _Noreturn void tell_posture(const struct guest *g)
{
    static const char *const files[] = {"/proc/self/status", "/proc/self/uid_map"};
    static const char nnp[] = "NoNewPrivs:\t1\n";
    static char text[8192];
    bool tells = false;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        ssize_t n = fd_read_file_at(AT_FDCWD, files[i], text, sizeof(text));
        if (n < 0 || fd_write_all(STDOUT_FILENO, text, (size_t)n) < 0)
            fail(GUEST_STAGE_CONFINE, EIO);
        tells = tells || strstr(text, "\nNoNewPrivs:") != NULL;
    }
    /* gVisor's file does not have it. */
    if (!tells && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 &&
        fd_write_all(STDOUT_FILENO, nnp, strlen(nnp)) < 0)
        fail(GUEST_STAGE_CONFINE, EIO);
    tell_namespaces(g);
    child_exit(0);
}

/* What our starter ignores, programs would ignore too: `yes | head` must end by SIGPIPE. */
static void default_signals(void)
{
    static const unsigned long long deflt[4];
    sigset_t none;
    for (int signo = 1; signo <= KERNEL_SIGNALS; signo++)
        (void)syscall(SYS_rt_sigaction, signo, deflt, NULL, sizeof(deflt[0]));
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_rest(void)
{
    int r = guest_close_from(3);
    if (r < 0)
        fail(GUEST_STAGE_CONFINE, -r);
}

void child_run(const struct guest *g, uint64_t brand, const struct start_request *req,
               const struct child_stdio *io, struct child_report *shared)
{
    struct strings s = {0};
    bool keep_script = false;

    report = shared;
    int r = brand_take(brand); /* first: from here on it is found whatever it does */
    if (r < 0)
        fail(GUEST_STAGE_CONFINE, -r);
    default_signals();
    (void)setsid();
    split_strings(req, &s);
    take_stdio(io);
    set_limits(g);
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    r = within_enter(g);
    if (r < 0)
        fail(GUEST_STAGE_CONFINE, -r);
    enter_cwd(s.cwd);
    close_rest();
    if (req->flags & GUEST_START_SCRIPT)
        keep_script = shape_script(&s);
    if (!keep_script)
        close_rest();
    /* The engine has done both already, for the whole container; an engine that forgot is not
     * trusted to have done the rest. */
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        fail(GUEST_STAGE_CONFINE, EPERM);
    r = brand_keep();
    if (r == 0)
        r = seccomp_install(g->filter,
                            (unsigned short)(g->config.filter_len / sizeof(struct sock_filter)));
    if (r < 0)
        fail(GUEST_STAGE_CONFINE, -r);

    if (req->flags & GUEST_START_POSTURE)
        tell_posture(g);
    if (req->flags & GUEST_START_SCRIPT)
        (void)execve(SHELL, s.argv, s.envp);
    else if (strchr(s.argv[0], '/') != NULL)
        (void)execve(s.argv[0], s.argv, s.envp);
    else
        errno = exec_search(&s);
    fail(GUEST_STAGE_EXEC, errno);
}
