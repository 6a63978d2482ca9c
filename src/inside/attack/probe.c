/* SPDX-License-Identifier: Apache-2.0 */

/* Runs the checks that it is asked for and prints one line for each, in a format for programs. */

#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char *const probe_ns_names[NS_MAX] = {
    [NS_CGROUP] = "cgroup", [NS_IPC] = "ipc",   [NS_MNT] = "mnt",   [NS_NET] = "net",
    [NS_PID] = "pid",       [NS_TIME] = "time", [NS_USER] = "user", [NS_UTS] = "uts",
};

static unsigned n_checks, n_failed;

void probe_report(const char *id, enum probe_state state, const char *fmt, ...)
{
    static const char *const names[] = {"ok", "FAIL", "n/a"};
    char detail[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(detail, sizeof(detail), fmt, ap);
    va_end(ap);
    for (char *p = detail; *p; p++) {
        if ((unsigned char)*p < ' ')
            *p = ' ';
    }
    n_checks++;
    n_failed += state == PROBE_FAIL;
    printf("%s %s %s\n", id, names[state], detail);
}

const char *probe_result_name(long result)
{
    static char text[32];
    const char *name = NULL;
    if (result >= 0)
        return "success";
    if (result == PROBE_BLOCKED)
        return "blocks";
    if (result == PROBE_EXITED)
        return "exits";
    if (result <= PROBE_SIGNAL(0)) {
        name = sigabbrev_np((int)(PROBE_SIGNAL(0) - result));
        (void)snprintf(text, sizeof(text), "SIG%s", name ? name : "?");
        return text;
    }
    name = strerrorname_np((int)-result);
    (void)snprintf(text, sizeof(text), "%s", name ? name : "E?");
    return text;
}

void probe_expect(const char *id, long result, const int *want)
{
    for (; *want; want++) {
        if (result == -*want) {
            probe_report(id, PROBE_OK, "%s", probe_result_name(result));
            return;
        }
    }
    probe_report(id, PROBE_FAIL, "%s", probe_result_name(result));
}

/* Asleep, as opposed to not scheduled yet: on a busy machine half a second is nothing. */
static bool is_asleep(pid_t pid)
{
    char path[32], text[256];
    const char *p;
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (probe_read(path, text, sizeof(text)) < 0)
        return true; /* nothing more will be learned */
    p = strrchr(text, ')');
    return p && strchr("StT", p[1] ? p[2] : 'S');
}

/* The exit of the child. One that sleeps is killed after half a second, any other after a minute.
 */
static bool reap(pid_t pid, int *status)
{
    struct timespec limit = {.tv_nsec = 500 * 1000 * 1000};
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    for (unsigned tries = 0; tries < 120;) {
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        /* Blocked by then, so that none is lost between the two calls. */
        if (sigtimedwait(&chld, NULL, &limit) >= 0 || errno != EAGAIN)
            continue;
        if (is_asleep(pid))
            break;
        tries++;
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, status, 0);
    return false;
}

long probe_forked(long (*fn)(const void *arg), const void *arg)
{
    struct slot {
        long result;
        bool done;
    } * slot;
    sigset_t chld, old;
    long result;
    int status = 0;
    pid_t pid;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    slot = mmap(NULL, sizeof(*slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (slot == MAP_FAILED)
        return -errno;
    slot->done = false;
    (void)fflush(stdout);
    (void)sigprocmask(SIG_BLOCK, &chld, &old);
    pid = fork();
    if (pid == 0) {
        (void)sigprocmask(SIG_SETMASK, &old, NULL);
        result = fn(arg);
        slot->result = result;
        slot->done = true;
        _exit(0);
    }
    if (pid < 0)
        result = -errno;
    else if (!reap(pid, &status))
        result = PROBE_BLOCKED;
    else if (slot->done)
        result = slot->result;
    else
        result = WIFSIGNALED(status) ? PROBE_SIGNAL(WTERMSIG(status)) : PROBE_EXITED;
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    (void)munmap(slot, sizeof(*slot));
    return result;
}

ssize_t probe_read(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t len = 0;
    ssize_t n = 0;
    if (fd < 0)
        return -errno;
    while (len < size - 1 && (n = read(fd, buf + len, size - 1 - len)) > 0)
        len += (size_t)n;
    buf[len] = '\0';
    (void)close(fd);
    return n < 0 ? -errno : (ssize_t)len;
}

void probe_status(const char *path, const char *name, char *ret, size_t size)
{
    char text[8192], key[64];
    const char *p;
    ret[0] = '\0';
    if (probe_read(path, text, sizeof(text)) < 0)
        return;
    (void)snprintf(key, sizeof(key), "\n%s:", name);
    p = strstr(text, key);
    if (!p)
        return;
    p += strlen(key);
    p += strspn(p, "\t ");
    (void)snprintf(ret, size, "%.*s", (int)strcspn(p, "\n"), p);
}

uint64_t probe_ns_inode(const char *name)
{
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

/* name=number,...: the inode numbers of the links in /proc/self/ns on the host. */
static bool parse_host_ns(const char *text, uint64_t ret[NS_MAX])
{
    while (*text) {
        size_t len = strcspn(text, "="), i = 0;
        char *end;
        while (i < NS_MAX &&
               (strlen(probe_ns_names[i]) != len || strncmp(probe_ns_names[i], text, len) != 0))
            i++;
        if (i == NS_MAX || text[len] != '=')
            return false;
        ret[i] = strtoull(text + len + 1, &end, 10);
        if (ret[i] == 0 || (*end != ',' && *end != '\0'))
            return false;
        text = *end ? end + 1 : end;
    }
    return true;
}

/* Everything that may not be done before we know what was open at start stays out of here. */
static const char *parse(int argc, char *argv[], struct probe_options *opt)
{
    const char *mode = NULL;
    size_t n_prefix = 0, n_address = 0;
    for (unsigned fd = 3; fd < 32; fd++) {
        if (fcntl((int)fd, F_GETFD) >= 0)
            opt->first_fds |= 1u << fd;
    }
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (value && strncmp(argv[i], "--host-ns=", 10) == 0) {
            if (!parse_host_ns(value + 1, opt->host_ns))
                return NULL;
        } else if (value && strncmp(argv[i], "--secret-reversed=", 18) == 0) {
            opt->secret_reversed = value + 1;
        } else if (value && strncmp(argv[i], "--root-prefix=", 14) == 0 && n_prefix < 7) {
            opt->root_prefix[n_prefix++] = value + 1;
        } else if (value && strncmp(argv[i], "--host-address=", 15) == 0 && n_address < 7) {
            opt->host_address[n_address++] = value + 1;
        } else if (value && strncmp(argv[i], "--port=", 7) == 0) {
            opt->port = (unsigned)strtoul(value + 1, NULL, 10);
        } else if (value && strncmp(argv[i], "--limit=", 8) == 0) {
            opt->limit = strtoull(value + 1, NULL, 10);
        } else if (value && strncmp(argv[i], "--walk-sec=", 11) == 0) {
            opt->walk_sec = (unsigned)strtoul(value + 1, NULL, 10);
        } else if (argv[i][0] != '-' && !mode) {
            mode = argv[i];
        } else {
            return NULL;
        }
    }
    return mode;
}

static void probe_nothing(const struct probe_options *opt)
{
}

static void probe_all(const struct probe_options *opt)
{
    probe_identity(opt);
    probe_kernel(opt);
    probe_files(opt);
}

static const struct probe_mode probe_modes[] = {
    {"all", probe_all, true},
    {"alive", probe_nothing, true},
    {0},
};

static const struct probe_mode *const modes[] = {
    probe_modes,        probe_identity_modes, probe_kernel_modes, probe_files_modes,
    probe_beyond_modes, probe_posture_modes,  abuse_modes,
};

static bool run_mode(struct probe_options *opt)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        for (const struct probe_mode *m = modes[i]; m->name; m++) {
            if (strcmp(m->name, opt->mode) != 0)
                continue;
            opt->arg = m->arg;
            m->run(opt);
            if (m->summary)
                printf("# %u checks, %u failed\n", n_checks, n_failed);
            return true;
        }
    }
    return false;
}

/* include/linux/proc_ns.h: the initial namespaces have fixed numbers. */
#define INITIAL_PID_NS 0xeffffffcu
#define INITIAL_MNT_NS 0xeffffff8u

static bool refuse(const char *why)
{
    fprintf(stderr, "box-attack: refused: %s\n", why);
    return false;
}

/* All of the host's uids, and the capability to do harm with them. */
static bool is_real_root(void)
{
    char map[256], caps[64];
    unsigned long first, outer, count;
    char *p = map;
    if (probe_read("/proc/self/uid_map", map, sizeof(map)) < 0)
        return true; /* no idea: assume the worst */
    first = strtoul(p, &p, 10);
    outer = strtoul(p, &p, 10);
    count = strtoul(p, &p, 10);
    if (first != 0 || outer != 0 || count != 0xffffffff)
        return false;
    probe_status("/proc/self/status", "CapEff", caps, sizeof(caps));
    return caps[0] == '\0' || (strtoull(caps, NULL, 16) & UINT64_C(1) << CAP_SYS_ADMIN);
}

/* What its uname(2) says is a constant. It has no /proc/self/ns, and nothing of the host to harm.
 */
static bool is_gvisor(void)
{
    struct utsname uts;
    return uname(&uts) == 0 && strcmp(uts.version, "#1 SMP Sun Jan 10 15:06:54 PST 2016") == 0;
}

/* Refuses (and says why) anywhere but in a sandbox. */
static bool is_sandbox(const struct probe_options *opt)
{
    uint64_t mnt = probe_ns_inode("mnt"), pid = probe_ns_inode("pid");
    if (opt->host_ns[NS_MNT] == 0 || opt->host_ns[NS_PID] == 0)
        return refuse("--host-ns must name the host's mnt and pid namespaces");
    if (mnt == 0 && is_gvisor())
        return true;
    if (mnt == 0 || pid == 0)
        return refuse("cannot read /proc/self/ns");
    if (mnt == opt->host_ns[NS_MNT] || pid == opt->host_ns[NS_PID])
        return refuse("this is the host's mount or pid namespace");
    if (pid == INITIAL_PID_NS || mnt == INITIAL_MNT_NS)
        return refuse("this is the initial mount or pid namespace of the machine");
    if (is_real_root())
        return refuse("this process is root of the whole machine");
    return true;
}

int main(int argc, char *argv[])
{
    struct probe_options opt = {0};
    opt.mode = parse(argc, argv, &opt);
    if (opt.mode && !is_sandbox(&opt))
        return 3;
    if (opt.mode && run_mode(&opt))
        return n_failed > 0 ? 1 : 0;
    fprintf(stderr,
            "usage: box-attack --host-ns=mnt=N,pid=N[,user=N...] [--secret-reversed=TEXT]\n"
            "           [--root-prefix=PATH]... [--limit=N] [--walk-sec=N]\n"
            "           [--host-address=IP]... [--port=N] all|identity|kernel|files|tty|uring|...\n"
            "Runs inside a session; 'box doctor --attack' starts it there.\n");
    return 2;
}
