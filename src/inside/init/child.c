/* SPDX-License-Identifier: Apache-2.0 */

/* The child of box-init before execve: puts up the walls around a command. */

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
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
#include "inside/caps.h"
#include "inside/clone.h"
#include "inside/init/init.h"
#include "inside/landlock.h"
#include "inside/seccomp_install.h"

/* MAX_ARG_STRLEN of the kernel: one string of argv cannot be longer. */
#define ARG_STRLEN_MAX (128U * 1024U)
#define SHELL "/bin/sh"
#define SCRIPT_FD 3
#define PROGRAM_FD 3

struct strings {
    char **argv, **envp;
    const char *cwd;
};

static struct child_report *report;

static _Noreturn void fail(enum init_stage stage, int error)
{
    report->error = error;
    report->stage = stage;
    child_exit(stage == INIT_STAGE_EXEC && error == ENOENT ? 127 : 126);
}

/* Bytes for the pointer arrays; the child's own memory, gone at execve. */
static void *scratch(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        fail(INIT_STAGE_REQUEST, ENOMEM);
    return p;
}

static void split_strings(const struct exec_request *req, struct strings *ret)
{
    const struct init_exec *head = &req->head;
    char *at = scratch(head->strings_len);
    size_t n = (size_t)head->argc + head->envc + 1;
    char **all = scratch((n + 3) * sizeof(char *));

    if (req->memfd >= 0) {
        if (pread(req->memfd, at, head->strings_len, 0) != (ssize_t)head->strings_len)
            fail(INIT_STAGE_REQUEST, EBADMSG);
    } else {
        memcpy(at, req->strings, head->strings_len);
    }
    const char *end = at + head->strings_len;
    ret->argv = all;
    ret->envp = all + head->argc + 1;
    for (size_t i = 0; i < n; i++) {
        char *nul = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (nul == NULL)
            fail(INIT_STAGE_REQUEST, EBADMSG);
        if (i < head->argc)
            ret->argv[i] = at;
        else if (i < (size_t)head->argc + head->envc)
            ret->envp[i - head->argc] = at;
        else
            ret->cwd = at;
        at = nul + 1;
    }
    if (at != end || head->argc == 0 || ret->cwd == NULL)
        fail(INIT_STAGE_REQUEST, EBADMSG);
}

static void move_fd(int from, int to)
{
    if (from < 0) {
        from = open("/dev/null", (to == STDIN_FILENO ? O_RDONLY : O_WRONLY) | O_CLOEXEC);
        if (from < 0)
            fail(INIT_STAGE_CONFINE, errno);
    }
    if (dup3(from, to, 0) < 0)
        fail(INIT_STAGE_CONFINE, errno);
}

static void take_stdio(const struct child_stdio *io)
{
    if (io->tty >= 0) {
        if (ioctl(io->tty, TIOCSCTTY, 0) < 0)
            fail(INIT_STAGE_CONFINE, errno);
        for (int fd = 0; fd < 3; fd++)
            move_fd(io->tty, fd);
        return;
    }
    move_fd(io->in, STDIN_FILENO);
    move_fd(io->out, STDOUT_FILENO);
    move_fd(io->err, STDERR_FILENO);
}

static void become_payload(const struct init_config *config)
{
    for (uint32_t i = 0; i < config->n_rlimits; i++) {
        const struct init_rlimit *rl = &config->rlimits[i];
        struct rlimit limit;
        /* Where the host has less to give, that is the limit: raising it is not ours. */
        if (getrlimit((__rlimit_resource_t)rl->resource, &limit) < 0)
            fail(INIT_STAGE_CONFINE, errno);
        limit.rlim_max = rl->hard < limit.rlim_max ? rl->hard : limit.rlim_max;
        limit.rlim_cur = rl->soft < limit.rlim_max ? rl->soft : limit.rlim_max;
        if (setrlimit((__rlimit_resource_t)rl->resource, &limit) < 0)
            fail(INIT_STAGE_CONFINE, errno);
    }
    if (config->switch_uid) {
        /* Leaving uid 0 would otherwise take the capability that the next steps need to drop the
         * rest properly. */
        int r = caps_lock_securebits();
        if (r < 0)
            fail(INIT_STAGE_CONFINE, -r);
        if (setresgid(config->payload_gid, config->payload_gid, config->payload_gid) < 0 ||
            setresuid(config->payload_uid, config->payload_uid, config->payload_uid) < 0)
            fail(INIT_STAGE_CONFINE, errno);
    }
    int r = caps_drop_all();
    if (r < 0)
        fail(INIT_STAGE_CONFINE, -r);
    /* PID 1 is not dumpable and we are a copy of it; the payload owns its own /proc/self. execve
     * resets this too. */
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* As `mkdir -p` would, and with no more rights: we are the payload by now. */
static void make_cwd(const char *cwd)
{
    char path[4096];
    size_t len = strlen(cwd);
    if (len >= sizeof(path))
        fail(INIT_STAGE_CWD, ENAMETOOLONG);
    memcpy(path, cwd, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        path[i] = '\0';
        int r = mkdir(path, 0755) < 0 ? errno : 0;
        path[i] = cwd[i];
        /* On the way there any refusal may be about a directory that exists already. */
        if (r != 0 && r != EEXIST && cwd[i] == '\0')
            fail(INIT_STAGE_CWD, r);
    }
}

static void enter_cwd(const char *cwd)
{
    char real[4096];
    if (cwd[0] != '/')
        fail(INIT_STAGE_CWD, EINVAL);
    int r = chdir(cwd);
    if (r < 0 && errno == ENOENT) {
        make_cwd(cwd);
        r = chdir(cwd);
    }
    if (r < 0)
        fail(INIT_STAGE_CWD, errno);
    /* A directory outside our root is reported as "(unreachable)…"; /proc/self/fd/N is how one gets
     * there. */
    if (syscall(SYS_getcwd, real, sizeof(real)) < 0 || real[0] != '/' ||
        strcmp(real, "/proc") == 0 || strncmp(real, "/proc/", strlen("/proc/")) == 0)
        fail(INIT_STAGE_CWD, EACCES);
}

/* The shell's command string, as one argument where the kernel takes it, else as a file of its own.
 */
static bool shape_script(struct strings *s)
{
    char **argv = scratch(4 * sizeof(char *));
    char *cmd = s->argv[0];
    size_t len = strlen(cmd);
    argv[0] = (char *)(uintptr_t) "sh";
    if (len < ARG_STRLEN_MAX) {
        argv[1] = (char *)(uintptr_t) "-c";
        argv[2] = cmd;
        s->argv = argv;
        return false;
    }
    int fd = memfd_create("script", 0);
    if (fd < 0 || fd_write_all(fd, cmd, len) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        fail(INIT_STAGE_CONFINE, errno);
    if (fd != SCRIPT_FD && dup3(fd, SCRIPT_FD, 0) < 0)
        fail(INIT_STAGE_CONFINE, errno);
    argv[1] = (char *)(uintptr_t) "/proc/self/fd/3";
    s->argv = argv;
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
        dirs = "/usr/local/bin:/usr/bin:/bin";
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

/* Everything but the standard streams and the program is closed, and that goes with execve. */
static void keep_program(int fd)
{
    if (fd != PROGRAM_FD && dup3(fd, PROGRAM_FD, O_CLOEXEC) < 0)
        fail(INIT_STAGE_CONFINE, errno);
    if (syscall(SYS_close_range, PROGRAM_FD + 1U, ~0U, 0U) < 0)
        fail(INIT_STAGE_CONFINE, errno);
}

/* The receipt's witness: under every wall, before any program could have changed anything. */
static _Noreturn void tell_posture(void)
{
    static const char *const files[] = {"/proc/self/status", "/proc/self/uid_map"};
    static char text[8192];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        ssize_t n = fd_read_file_at(AT_FDCWD, files[i], text, sizeof(text));
        if (n < 0 || fd_write_all(STDOUT_FILENO, text, (size_t)n) < 0)
            fail(INIT_STAGE_CONFINE, EIO);
    }
    child_exit(0);
}

/* The filter that PID 1 has is ours already. What it has for itself hides its flags behind a
 * pointer: a new namespace would hand out every capability again. */
static int give_up_clone3(void)
{
    static const struct sock_filter prog[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return seccomp_install(prog, ARRAY_SIZE(prog));
}

/* Order is security-relevant: groups and ids need capabilities, which are then given up for good;
 * Landlock and the filter come last, because they forbid the calls before them. */
void exec_child(struct init *in, struct cell *c, const struct exec_request *req,
                const struct child_stdio *io)
{
    struct strings s = {0};
    sigset_t none;
    bool keep_script = false;

    report = &in->reports[cell_index(in, c)];
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
    (void)umask(022);

    if (c->memcg_fd >= 0 && fd_write_file_at(c->memcg_fd, "tasks", "0") < 0)
        fail(INIT_STAGE_CONFINE, EIO);
    split_strings(req, &s);
    take_stdio(io);
    become_payload(&in->config);
    enter_cwd(s.cwd);
    if (in->config.landlock > 0 && landlock_restrict(in->landlock_fd) < 0)
        fail(INIT_STAGE_CONFINE, EPERM);
    if (req->program >= 0)
        keep_program(req->program);
    /* Our own descriptors are close-on-exec already; this also holds if one ever is not. */
    else if (syscall(SYS_close_range, 3U, ~0U, 0U) < 0)
        fail(INIT_STAGE_CONFINE, errno);
    if (req->head.flags & INIT_EXEC_SCRIPT)
        keep_script = shape_script(&s);
    if (!keep_script && req->program < 0 && syscall(SYS_close_range, 3U, ~0U, 0U) < 0)
        fail(INIT_STAGE_CONFINE, errno);
    int r = give_up_clone3();
    if (r < 0)
        fail(INIT_STAGE_CONFINE, -r);

    if (req->head.flags & INIT_EXEC_POSTURE)
        tell_posture();
    if (req->program >= 0)
        (void)syscall(SYS_execveat, PROGRAM_FD, "", s.argv, s.envp, AT_EMPTY_PATH);
    else if (req->head.flags & INIT_EXEC_SCRIPT)
        (void)execve(SHELL, s.argv, s.envp);
    else if (strchr(s.argv[0], '/') != NULL)
        (void)execve(s.argv[0], s.argv, s.envp);
    else
        errno = exec_search(&s);
    fail(INIT_STAGE_EXEC, errno);
}
