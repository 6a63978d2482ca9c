/* SPDX-License-Identifier: Apache-2.0 */

/* A08: everything a process inherits, as sorted text without numbers that differ from session to
 * session, so that a golden file can be kept of it. */

#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

extern char **environ;

static char *lines[4096];
static size_t n_lines;

__attribute__((format(printf, 1, 2))) static void add(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (n_lines == sizeof(lines) / sizeof(lines[0]) || vasprintf(&lines[n_lines], fmt, ap) < 0)
        abort();
    va_end(ap);
    n_lines++;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Which ids there are matters, and that none is the host's 0; the private range does not. */
static void add_map(const char *name)
{
    unsigned long inner, outer, count;
    char path[64], text[1024], *p = text;
    (void)snprintf(path, sizeof(path), "/proc/self/%s", name);
    if (probe_read(path, text, sizeof(text)) < 0)
        return;
    while (*(p += strspn(p, " \n"))) {
        inner = strtoul(p, &p, 10);
        outer = strtoul(p, &p, 10);
        count = strtoul(p, &p, 10);
        add("%s %lu -> %s %lu", name, inner, outer == 0 ? "0" : "private", count);
    }
}

static void add_status(const char *who, const char *path)
{
    static const char *const names[] = {
        "Uid",    "Gid",    "Groups", "CapInh", "CapPrm",     "CapEff",  "CapBnd",
        "CapAmb", "SigBlk", "SigIgn", "Umask",  "NoNewPrivs", "Seccomp", "Seccomp_filters"};
    char value[256];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        probe_status(path, names[i], value, sizeof(value));
        for (char *p = value; *p; p++) {
            if (*p == '\t')
                *p = ' ';
        }
        add("%s %s %s", who, names[i], value);
    }
}

static void add_threads(void)
{
    char path[300];
    const struct dirent *e;
    unsigned n = 0;
    DIR *d = opendir("/proc/self/task");
    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
        add_status("thread", path);
        n++;
    }
    if (d)
        (void)closedir(d);
    add("threads %u", n);
}

/* Paths of layers and of the workspace, and ids, are not ours to keep. */
static bool is_private(const char *option)
{
    return strstr(option, "dir=") || strncmp(option, "uid=", 4) == 0 ||
           strncmp(option, "gid=", 4) == 0;
}

static void add_mount(const struct probe_mount *m, void *arg)
{
    static const char *const ours[] = {"tmpfs", "proc", "devpts", "mqueue", "overlay"};
    char super[1024] = "", *copy = strdup(m->super), *rest = copy, *word;
    size_t len = 0, i = 0;

    /* Filesystems of the host have options of the host. */
    while (i < sizeof(ours) / sizeof(ours[0]) && strcmp(ours[i], m->type) != 0)
        i++;
    if (i == sizeof(ours) / sizeof(ours[0]))
        rest = NULL;

    while (copy && (word = strsep(&rest, ",")) && len < sizeof(super)) {
        size_t keep = is_private(word) ? strcspn(word, "=") + 1 : strlen(word);
        len += (size_t)snprintf(super + len, sizeof(super) - len, "%s%.*s%s", len ? "," : "",
                                (int)keep, word, is_private(word) ? "*" : "");
    }
    free(copy);
    add("mount %s %s root=%s %s%s%s super=%s", m->target, super[0] ? m->type : "*",
        strcmp(m->root, "/") == 0 ? "/" : "*", m->options,
        strstr(m->propagation, "shared:") ? " shared" : "",
        strstr(m->propagation, "master:") ? " slave" : "", super);
}

/* Kinds, since the numbers behind "pipe:[123]" differ. */
static void add_fds(const struct probe_options *opt)
{
    char path[64], target[256], *end;
    for (unsigned fd = 0; fd < 32; fd++) {
        ssize_t n;
        if (fd > 2 && !(opt->first_fds & 1u << fd))
            continue;
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%u", fd);
        n = readlink(path, target, sizeof(target) - 1);
        if (n < 0)
            continue;
        target[n] = '\0';
        end = strchr(target, '[');
        if (end && target[0] != '/')
            *end = '\0';
        add("fd %u %s %s", fd, target,
            (fcntl((int)fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? "read" : "write");
    }
}

static void add_limits(void)
{
    static const struct {
        const char *name;
        int resource;
    } limits[] = {
        {"AS", RLIMIT_AS},
        {"CORE", RLIMIT_CORE},
        {"CPU", RLIMIT_CPU},
        {"DATA", RLIMIT_DATA},
        {"FSIZE", RLIMIT_FSIZE},
        {"MEMLOCK", RLIMIT_MEMLOCK},
        {"MSGQUEUE", RLIMIT_MSGQUEUE},
        {"NICE", RLIMIT_NICE},
        {"NOFILE", RLIMIT_NOFILE},
        {"NPROC", RLIMIT_NPROC},
        {"RTPRIO", RLIMIT_RTPRIO},
        {"SIGPENDING", RLIMIT_SIGPENDING},
        {"STACK", RLIMIT_STACK},
    };
    struct rlimit r;
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &r) == 0)
            add("rlimit %s %lld %lld", limits[i].name, (long long)r.rlim_cur,
                (long long)r.rlim_max);
    }
}

static void add_file(const char *name, const char *path)
{
    char text[4096], *rest = text, *line;
    ssize_t n = probe_read(path, text, sizeof(text));
    if (n < 0) {
        add("%s %s", name, probe_result_name(n));
        return;
    }
    while ((line = strsep(&rest, "\n"))) {
        if (*line)
            add("%s %s", name, line);
    }
}

/* Where, in whatever hierarchies this host has. */
static void add_cgroups(void)
{
    char text[4096], *rest = text, *line;
    if (probe_read("/proc/self/cgroup", text, sizeof(text)) < 0)
        return;
    while ((line = strsep(&rest, "\n"))) {
        const char *path = strstr(line, ":/");
        if (path)
            add("cgroup %s", path + 1);
    }
}

/* What a status file says as well, but not that of every kernel. */
static void add_asked(void)
{
    sigset_t blocked;
    struct sigaction action;
    unsigned n_blocked = 0, n_handled = 0;
    mode_t mask = umask(0);
    (void)umask(mask);
    (void)sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int signo = 1; signo < NSIG; signo++) {
        n_blocked += sigismember(&blocked, signo) == 1;
        n_handled += sigaction(signo, NULL, &action) == 0 && action.sa_handler != SIG_DFL;
    }
    add("asked no_new_privs %d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    add("asked seccomp %d", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
    add("asked umask %04o", (unsigned)mask);
    add("asked signals blocked %u, not default %u", n_blocked, n_handled);
}

static void add_process(void)
{
    struct utsname uts;
    char cwd[4096];
    add("securebits %#x", (unsigned)prctl(PR_GET_SECUREBITS, 0, 0, 0, 0));
    add("dumpable %d", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0));
    add("subreaper-or-init %s", getpid() == 1 ? "init" : "no");
    add("nice %d", getpriority(PRIO_PROCESS, 0));
    add("scheduler %d", sched_getscheduler(0));
    add("personality %#x", (unsigned)personality(0xffffffff));
    add("session-leader %s", getsid(0) == getpid() ? "yes" : "no");
    add("group-leader %s", getpgrp() == getpid() ? "yes" : "no");
    add("terminal %s", isatty(STDIN_FILENO) ? "yes" : "no");
    add("cwd %s", getcwd(cwd, sizeof(cwd)) ? cwd : strerrorname_np(errno));
    if (uname(&uts) == 0)
        add("hostname %s domain %s", uts.nodename, uts.domainname);
    for (char **e = environ; *e; e++)
        add("env %.*s", (int)strcspn(*e, "="), *e);
}

static void probe_posture(const struct probe_options *opt)
{
    add_map("uid_map");
    add_map("gid_map");
    add_file("setgroups", "/proc/self/setgroups");
    add_status("self", "/proc/self/status");
    add_status("pid1", "/proc/1/status");
    add_threads();
    for (size_t i = 0; i < NS_MAX; i++) {
        uint64_t own = probe_ns_inode(probe_ns_names[i]);
        const char *kind = own == opt->host_ns[i] ? "of the host" : "private";
        add("ns %s %s", probe_ns_names[i], opt->host_ns[i] == 0 ? "unknown" : kind);
    }
    (void)probe_mounts_each(add_mount, NULL);
    add_fds(opt);
    add_limits();
    add_cgroups();
    add_file("oom_score_adj", "/proc/self/oom_score_adj");
    add_process();
    add_asked();
    qsort(lines, n_lines, sizeof(lines[0]), compare_lines);
    for (size_t i = 0; i < n_lines; i++) {
        if (i == 0 || strcmp(lines[i - 1], lines[i]) != 0)
            puts(lines[i]);
    }
}

const struct probe_mode probe_posture_modes[] = {
    {"posture", probe_posture, false},
    {0},
};
