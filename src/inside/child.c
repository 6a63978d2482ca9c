/* SPDX-License-Identifier: Apache-2.0 */

/* The last code before execve: puts up the walls around a command, in its own process. */

#include "inside/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
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
#include "inside/caps.h"
#include "inside/clone.h"
#include "inside/landlock.h"
#include "inside/seccomp_install.h"

/* MAX_ARG_STRLEN of the kernel: one string of argv cannot be longer. */
#define ARG_STRLEN_MAX (128U * 1024U)
#define SHELL "/bin/sh"
#define BASH "/bin/bash"
#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"
#define KEPT_FD                                                                                    \
    3 /* a long script, or the program: the one descriptor beside the standard streams */

const struct child_ns_kind child_ns_kinds[CHILD_NS_MAX] = {
    [CHILD_NS_USER] = {CLONE_NEWUSER, "user", "user"},
    [CHILD_NS_TIME] = {CLONE_NEWTIME, "time", "time_for_children"},
    [CHILD_NS_CGROUP] = {CLONE_NEWCGROUP, "cgroup", "cgroup"},
};

struct child_strings {
    char **argv, **envp;
    const char *cwd;
};

static struct child_report *own_report;

static _Noreturn void fail(enum inside_stage stage, int error)
{
    own_report->error = error;
    own_report->stage = stage;
    child_exit(stage == INSIDE_STAGE_EXEC && error == ENOENT ? 127 : 126);
}

/* A wall's own result: 0, or a negative errno. */
static void must(int r)
{
    if (r < 0)
        fail(INSIDE_STAGE_CONFINE, -r);
}

/* A system call's: -1, and the reason in errno. */
static void must_call(long r)
{
    if (r < 0)
        fail(INSIDE_STAGE_CONFINE, errno);
}

/* The child's own memory, gone at execve. */
static void *scratch(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail(INSIDE_STAGE_REQUEST, ENOMEM);
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

static char *load_strings(const struct child *c)
{
    if (c->strings_fd < 0)
        return (char *)(uintptr_t)c->strings;
    char *at = scratch(c->strings_len);
    if (pread(c->strings_fd, at, c->strings_len, 0) != (ssize_t)c->strings_len)
        fail(INSIDE_STAGE_REQUEST, EBADMSG);
    return at;
}

static void split_strings(const struct child *c, struct child_strings *ret)
{
    if (!inside_start_fits(c->argc, c->envc, c->strings_len))
        fail(INSIDE_STAGE_REQUEST, EBADMSG);
    const size_t n = (size_t)c->argc + c->envc;
    size_t n_env = 0;
    char *at = load_strings(c);
    const char *end = at + c->strings_len;
    ret->argv = scratch((c->argc + 1U) * sizeof(char *));
    ret->envp = scratch((c->n_env + c->envc + 1U) * sizeof(char *));
    for (size_t i = 0; i < c->n_env; i++)
        put_env(ret->envp, &n_env, c->env[i]);
    for (size_t i = 0; i <= n; i++) {
        char *nul = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (nul == NULL)
            fail(INSIDE_STAGE_REQUEST, EBADMSG);
        if (i < c->argc)
            ret->argv[i] = at;
        else if (i == n)
            ret->cwd = at;
        else if (c->env == NULL)
            ret->envp[n_env++] = at;
        else
            put_env(ret->envp, &n_env, at);
        at = nul + 1;
    }
    if (at != end || ret->cwd == NULL)
        fail(INSIDE_STAGE_REQUEST, EBADMSG);
}

static void move_fd(int from, int to)
{
    if (from < 0) {
        from = open("/dev/null", (to == STDIN_FILENO ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
        must_call(from);
    }
    must_call(dup3(from, to, 0));
}

static void take_stdio(const struct child_stdio *io)
{
    if (io->tty >= 0) {
        must_call(ioctl(io->tty, TIOCSCTTY, 0));
        for (int fd = 0; fd < 3; fd++)
            move_fd(io->tty, fd);
        return;
    }
    move_fd(io->in, STDIN_FILENO);
    move_fd(io->out, STDOUT_FILENO);
    move_fd(io->err, STDERR_FILENO);
}

static void set_limit(const struct child *c, const struct inside_rlimit *rl)
{
    struct rlimit limit;
    /* Where the host or the engine gave less, that is the limit: raising it is not ours. */
    must_call(getrlimit((int)rl->resource, &limit));
    limit.rlim_max = rl->hard < limit.rlim_max ? rl->hard : limit.rlim_max;
    limit.rlim_cur = rl->soft < limit.rlim_max ? rl->soft : limit.rlim_max;
    if (setrlimit((int)rl->resource, &limit) == 0)
        return;
    if (errno != EPERM || rl->resource >= 32 || !(c->absent & 1U << rl->resource))
        fail(INSIDE_STAGE_CONFINE, errno);
}

int child_enter(const int namespaces[CHILD_NS_MAX])
{
    for (int i = 0; i < CHILD_NS_MAX; i++)
        if (namespaces[i] >= 0 && setns(namespaces[i], child_ns_kinds[i].flag) < 0)
            return -errno;
    /* A process that enters a user namespace has every capability in it. */
    return namespaces[CHILD_NS_USER] >= 0 ? caps_drop_all() : 0;
}

/* It stays as little dumpable as the supervisor whose copy it is: no process beside it may look
 * into that memory, nor take its descriptors. execve ends that, too. */
static void become_payload(const struct child *c)
{
    for (uint32_t i = 0; i < c->n_rlimits; i++)
        set_limit(c, &c->rlimits[i]);
    if (c->namespaces != NULL)
        must(child_enter(c->namespaces));
    if (c->switch_ids) {
        /* Leaving uid 0 would otherwise take the capability that the next steps need to drop the
         * rest properly. */
        must(caps_lock_securebits());
        must_call(setresgid(c->gid, c->gid, c->gid));
        must_call(setresuid(c->uid, c->uid, c->uid));
    }
    must(c->drop_caps ? caps_drop_all() : caps_are_none());
    /* Whatever has set it: without it the filters mean less, and so does all of the above. */
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        fail(INSIDE_STAGE_CONFINE, EPERM);
}

/* As `mkdir -p` would, and with no more rights: we are the payload by now. */
static void make_cwd(const char *cwd)
{
    char path[4096];
    size_t len = strlen(cwd);
    if (str_copy(path, sizeof(path), cwd) < 0)
        fail(INSIDE_STAGE_CWD, ENAMETOOLONG);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        int r = mkdir(path, 0755) < 0 ? errno : 0;
        path[i] = cwd[i];
        /* On the way there any refusal may be about a directory that exists already. */
        if (r != 0 && r != EEXIST && cwd[i] == '\0')
            fail(INSIDE_STAGE_CWD, r);
    }
}

static void enter_cwd(const char *cwd)
{
    char real[4096];
    if (cwd[0] != '/')
        fail(INSIDE_STAGE_CWD, EINVAL);
    int r = chdir(cwd);
    if (r < 0 && errno == ENOENT) {
        make_cwd(cwd);
        r = chdir(cwd);
    }
    if (r < 0)
        fail(INSIDE_STAGE_CWD, errno);
    /* A directory outside our root is reported as "(unreachable)…"; /proc/self/fd/N is how one gets
     * there (CVE-2024-21626). */
    if (syscall(SYS_getcwd, real, sizeof(real)) < 0 || real[0] != '/' || str_eq(real, "/proc") ||
        str_starts(real, "/proc/"))
        fail(INSIDE_STAGE_CWD, EACCES);
}

/* Our own descriptors are close-on-exec already; this also holds if one ever is not. None is larger
 * than INT_MAX, and gVisor (0.0~20221219) calls a range that ends beyond it invalid. */
static void close_from(unsigned first)
{
    must_call(syscall(SYS_close_range, first, (unsigned)INT_MAX, 0U));
}

/* The shell's command string, as one argument where the kernel takes it, else as a file. */
static void shape_script(struct child_strings *s)
{
    char **argv = scratch(4 * sizeof(char *));
    char *cmd = s->argv[0];
    size_t len = strlen(cmd);
    s->argv = argv;
    if (len < ARG_STRLEN_MAX) {
        argv[1] = (char *)(uintptr_t) "-c";
        argv[2] = cmd;
        return;
    }
    int fd = memfd_create("script", 0);
    must_call(fd);
    must(fd_write_all(fd, cmd, len));
    must_call(lseek(fd, 0, SEEK_SET));
    if (fd != KEPT_FD) /* it is the lowest that is free, and all from there on are closed */
        fail(INSIDE_STAGE_CONFINE, EBADF);
    argv[1] = (char *)(uintptr_t) "/proc/self/fd/3";
}

/* Leaves the standard streams and, where it is needed, KEPT_FD: the program's goes with execve. */
static void keep_descriptors(const struct child *c, struct child_strings *s)
{
    if (c->program >= 0) {
        if (c->program != KEPT_FD)
            must_call(dup3(c->program, KEPT_FD, O_CLOEXEC));
        close_from(KEPT_FD + 1);
        return;
    }
    close_from(KEPT_FD);
    if (c->script)
        shape_script(s);
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
static int exec_search(const struct child_strings *s)
{
    char path[4096];
    const char *dirs = env_get(s->envp, "PATH");
    int seen = ENOENT;
    if (dirs == NULL || *dirs == '\0')
        dirs = DEFAULT_PATH;
    while (*dirs != '\0') {
        size_t len = strcspn(dirs, ":");
        if (str_fmt(path, sizeof(path), "%.*s%s%s", (int)len, dirs, len > 0 ? "/" : "",
                    s->argv[0]) == 0) {
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

/* What the kernel says of this process, as the lines of a status file. */
struct posture {
    char text[16384];
    size_t len;
};

static void posture_file(struct posture *p, const char *path)
{
    ssize_t n = fd_read_file_at(AT_FDCWD, path, p->text + p->len, sizeof(p->text) - p->len);
    if (n < 0)
        fail(INSIDE_STAGE_CONFINE, EIO);
    p->len += (size_t)n;
}

static void posture_number(struct posture *p, const char *name, const char *of, uint64_t value)
{
    if (str_fmt(p->text + p->len, sizeof(p->text) - p->len, "%s%s:\t%llu\n", name, of,
                (unsigned long long)value) < 0)
        fail(INSIDE_STAGE_CONFINE, EIO);
    p->len += strlen(p->text + p->len);
}

/* The receipt's witness: under every wall, before any program could have changed anything. */
static _Noreturn void tell_posture(const struct child *c)
{
    static const char *const names[] = {"user", "mnt", "pid",    "net",
                                        "ipc",  "uts", "cgroup", "time"};
    static struct posture p;
    char path[32];
    struct stat st;
    posture_file(&p, "/proc/self/status");
    /* gVisor's file does not have it. */
    if (strstr(p.text, "\nNoNewPrivs:") == NULL)
        posture_number(&p, "NoNewPrivs", "", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    posture_file(&p, "/proc/self/uid_map");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        (void)str_fmt(path, sizeof(path), "/proc/self/ns/%s", names[i]);
        if (stat(path, &st) == 0) /* gVisor has few of them */
            posture_number(&p, "Ns-", names[i], st.st_ino);
    }
    for (size_t i = 0; c->namespaces != NULL && i < CHILD_NS_MAX; i++)
        posture_number(&p, "Ns-errno-", child_ns_kinds[i].name,
                       c->namespaces[i] < 0 ? (uint64_t)-c->namespaces[i] : 0);
    if (fd_write_all(STDOUT_FILENO, p.text, p.len) < 0)
        fail(INSIDE_STAGE_CONFINE, EIO);
    child_exit(0);
}

/* Before anything that may fail: a supervisor that has no kill groups finds it by the mark. */
static void take_mark(const struct inside_rlimit *mark)
{
    const struct rlimit limit = {.rlim_cur = mark->soft, .rlim_max = mark->hard};
    if (mark->hard != 0)
        must_call(setrlimit((int)mark->resource, &limit));
}

/* By its own name bash is bash; called sh it would be a poor one. */
static void execute_script(const struct child *c, const struct child_strings *s)
{
    if (c->bash) {
        s->argv[0] = (char *)(uintptr_t) "bash";
        (void)execve(BASH, s->argv, s->envp);
    }
    s->argv[0] = (char *)(uintptr_t) "sh";
    (void)execve(SHELL, s->argv, s->envp);
}

static void execute(const struct child *c, const struct child_strings *s)
{
    if (c->program >= 0)
        (void)syscall(SYS_execveat, KEPT_FD, "", s->argv, s->envp, AT_EMPTY_PATH);
    else if (c->script)
        execute_script(c, s);
    else if (strchr(s->argv[0], '/') != NULL)
        (void)execve(s->argv[0], s->argv, s->envp);
    else
        errno = exec_search(s);
}

/* Order is security-relevant: groups, namespaces and ids need capabilities, which are then given up
 * for good; Landlock and the filters come last, because they forbid the calls before them. */
void child_run(const struct child *c)
{
    static const uint64_t none; /* by the kernel's own structure, see supervisor_take_signals() */
    struct child_strings s = {0};
    own_report = c->report;
    take_mark(&c->mark);
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none));
    (void)setsid();
    (void)umask(022);
    if (c->memory_group >= 0 && fd_write_file_at(c->memory_group, "tasks", "0") < 0)
        fail(INSIDE_STAGE_CONFINE, EIO);
    split_strings(c, &s);
    take_stdio(&c->io);
    become_payload(c);
    enter_cwd(s.cwd);
    if (c->landlock >= 0)
        must(landlock_restrict(c->landlock));
    keep_descriptors(c, &s);
    for (size_t i = 0; i < CHILD_FILTERS_MAX; i++)
        if (c->filters[i].n > 0)
            must(seccomp_install(c->filters[i].prog, c->filters[i].n));

    if (c->posture)
        tell_posture(c);
    execute(c, &s);
    fail(INSIDE_STAGE_EXEC, errno);
}
