/* SPDX-License-Identifier: Apache-2.0 */

/* Code that box-init and box-guest share for the programs that they start. */

#include "inside/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/wire.h"

#define KERNEL_SIGNALS 64
#define BLIND_NS 20000000L /* between looks at everything, where poll(2) fails */
#define DISK_NEARLY_FULL (2ULL << 20)
#define TICK_NS 10000000ULL /* USER_HZ is 100 on every machine that we build for */

uint64_t supervisor_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

/* By the kernel's own structures, all of one value: a C library would leave out those signals that
 * it keeps for itself. */
int supervisor_take_signals(void)
{
    static const uint64_t every = UINT64_MAX, deflt[4];
    sigset_t child;
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &every, NULL, sizeof(every));
    for (int signo = 1; signo <= KERNEL_SIGNALS; signo++)
        (void)syscall(SYS_rt_sigaction, signo, deflt, NULL, sizeof(deflt[0]));
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    int fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? -errno : fd;
}

/* poll(2) refuses to look at more descriptors than we may open, and that limit can be lowered
 * behind our back. None of ours blocks: after a pause all of them are tried. So commands are
 * answered, if only by a refusal, and nothing spins. */
bool supervisor_poll(struct pollfd *fds, size_t n, const struct timespec *wait)
{
    struct timespec blind = {.tv_nsec = BLIND_NS};
    int r = ppoll(fds, n, wait, NULL);
    if (r >= 0 || errno == EINTR)
        return r > 0;
    if (wait != NULL && wait->tv_sec == 0 && wait->tv_nsec < blind.tv_nsec)
        blind = *wait;
    (void)ppoll(NULL, 0, &blind, NULL);
    for (size_t i = 0; i < n; i++)
        fds[i].revents = fds[i].fd >= 0 ? fds[i].events : 0;
    return true;
}

void streams_close_child(struct streams *s)
{
    int child[4] = {s->child.in, s->child.out, s->child.err, s->child.tty};
    fd_close_many(child, 4);
    s->child = (struct child_stdio){-1, -1, -1, -1};
}

void streams_close(struct streams *s)
{
    streams_close_child(s);
    fd_close_many(s->ours, 3);
}

/* By the master, whatever lies at /dev/pts. */
static int open_slave(int master, bool by_name)
{
    int number = 0, fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    char path[32];
    if (fd >= 0)
        return fd;
    if (!by_name || errno != ENOTTY || ioctl(master, TIOCGPTN, &number) < 0 ||
        str_fmt(path, sizeof(path), "/dev/pts/%d", number) < 0)
        return -errno;
    fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_tty(const struct streams_request *req, struct streams *s)
{
    int unlock = 0;
    int master =
        open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | (req->nonblock ? O_NONBLOCK : 0));
    if (master < 0)
        return -errno;
    s->ours[s->n_ours++] = master;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    s->child.tty = open_slave(master, req->by_name);
    if (s->child.tty < 0)
        return s->child.tty;
    struct winsize size = {.ws_row = req->rows, .ws_col = req->cols};
    if (size.ws_row > 0 && size.ws_col > 0)
        (void)ioctl(master, TIOCSWINSZ, &size);
    return 0;
}

static int open_pipe(const struct streams_request *req, struct streams *s, int *child_end,
                     bool child_reads)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    int ours = ends[child_reads ? 1 : 0];
    *child_end = ends[child_reads ? 0 : 1];
    s->ours[s->n_ours++] = ours;
    return req->nonblock ? fd_set_nonblock(ours, true) : 0;
}

int streams_open(const struct streams_request *req, struct streams *ret)
{
    int r;
    *ret = (struct streams){.child = {-1, -1, -1, -1}, .ours = {-1, -1, -1}};
    if (req->tty) {
        r = open_tty(req, ret);
    } else {
        r = open_pipe(req, ret, &ret->child.out, false);
        if (r == 0)
            r = open_pipe(req, ret, &ret->child.err, false);
        if (r == 0 && req->with_stdin)
            r = open_pipe(req, ret, &ret->child.in, true);
    }
    if (r < 0)
        streams_close(ret);
    return r;
}

void supervisor_signal(pid_t leader, int signo)
{
    if (leader <= 0 || signo <= 0 || signo >= NSIG)
        return;
    if (kill(-leader, signo) < 0)
        (void)kill(leader, signo);
}

static uint64_t timeval_ns(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_usec * 1000ULL;
}

void supervisor_judge(const struct child_report *report, uint64_t started_ns, int status,
                      const struct rusage *use, struct inside_exited *ret)
{
    ret->wait_status = status;
    ret->stage = report->stage <= INSIDE_STAGE_EXEC ? report->stage : INSIDE_STAGE_CONFINE;
    ret->error = report->error;
    ret->duration_ns = supervisor_now() - started_ns;
    ret->cpu_ns = timeval_ns(use->ru_utime) + timeval_ns(use->ru_stime);
    ret->max_rss_kb = (uint64_t)use->ru_maxrss;
}

int supervisor_oom_kills(int group, const char *file, uint64_t *ret)
{
    return fd_read_counter_at(group, file, "oom_kill", ret) < 0 ? -ENOENT : 0;
}

/* So little left that no program can go on: not one inode, or less than what a write in large
 * pieces is refused for (the file system takes or refuses up to 2 MiB at once), which on a small
 * disk is a tenth of it. Some file systems do not count inodes. */
static bool disk_is_full(const char *path)
{
    struct statfs st;
    if (statfs(path, &st) < 0)
        return false;
    uint64_t left = (uint64_t)st.f_bavail * (uint64_t)st.f_bsize;
    uint64_t tenth = (uint64_t)st.f_blocks * (uint64_t)st.f_bsize / 10;
    return left < (tenth < DISK_NEARLY_FULL ? tenth : DISK_NEARLY_FULL) ||
           (st.f_files > 0 && st.f_ffree == 0);
}

/* A file may not become larger than the disk: the kernel says that with a signal of its own. */
bool supervisor_hit_quota(const char *path, int status)
{
    bool too_large = WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ;
    return status != 0 && path[0] != '\0' && (too_large || disk_is_full(path));
}

int supervisor_connect(uint16_t port, bool ipv6)
{
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *to = ipv6 ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4;
    AUTO_CLOSE int fd =
        socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    if (connect(fd, to, ipv6 ? sizeof(v6) : sizeof(v4)) < 0 && errno != EINPROGRESS)
        return -errno;
    return TAKE_FD(fd);
}

/* The list of processes. */

pid_t supervisor_next_pid(struct supervisor_walk *w)
{
    uint64_t pid = 0;
    for (;;) {
        if (w->at >= w->len) {
            w->len = syscall(SYS_getdents64, w->fd, w->entries, sizeof(w->entries));
            w->at = 0;
        }
        if (w->len <= 0)
            return 0;
        const struct dirent64 *e = (const struct dirent64 *)(const void *)(w->entries + w->at);
        w->at += e->d_reclen;
        if (str_to_u64(e->d_name, &pid) == 0 && pid > 1 && pid <= INT_MAX)
            return (pid_t)pid;
    }
}

/* Numbers behind the state, in the order of /proc/PID/stat. */
enum stat_field {
    STAT_PARENT,
    STAT_SESSION = 2,
    STAT_USER = 10,
    STAT_SYSTEM,
    STAT_START = 18,
    STAT_RSS = 20,
    STAT_MAX,
};

static void read_numbers(const char *text, uint64_t ret[STAT_MAX])
{
    for (size_t i = 0; i < STAT_MAX; i++) {
        text += strspn(text, " -"); /* none that we use can be negative */
        for (; *text >= '0' && *text <= '9'; text++)
            ret[i] = ret[i] * 10 + (uint64_t)(*text - '0');
    }
}

/* "pid (name) state parent …"; the name may hold anything. */
bool supervisor_process(pid_t pid, struct inside_process *ret)
{
    char path[32], text[1024];
    uint64_t n[STAT_MAX] = {0};
    struct timespec now = {0};
    (void)str_fmt(path, sizeof(path), "/proc/%d/stat", pid);
    if (fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        return false;
    const char *name = strchr(text, '('), *end = strrchr(text, ')');
    if (name == NULL || end == NULL || end < name || strlen(end) < 4)
        return false;
    read_numbers(end + 3, n);
    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
    *ret = (struct inside_process){
        .pid = (uint32_t)pid,
        .parent = (uint32_t)n[STAT_PARENT],
        .session = (uint32_t)n[STAT_SESSION],
        .state = (unsigned char)end[2],
        .user_ns = n[STAT_USER] * TICK_NS,
        .system_ns = n[STAT_SYSTEM] * TICK_NS,
        .age_ns = now_ns > n[STAT_START] * TICK_NS ? now_ns - n[STAT_START] * TICK_NS : 0,
        .memory_bytes = n[STAT_RSS] * (uint64_t)sysconf(_SC_PAGESIZE)};
    (void)str_fmt(ret->command, sizeof(ret->command), "[%.*s]", (int)(end - name - 1), name + 1);
    return true;
}

/* One that has none, as the dead and the dying, keeps its name. */
static void read_arguments(struct inside_process *p)
{
    char path[32], text[INSIDE_COMMAND_SIZE];
    (void)str_fmt(path, sizeof(path), "/proc/%u/cmdline", p->pid);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    while (n > 0 && text[n - 1] == '\0')
        n--;
    if (n <= 0)
        return;
    for (ssize_t i = 0; i < n; i++)
        p->command[i] = text[i] != '\0' ? text[i] : ' ';
    p->command[n] = '\0';
}

int supervisor_list(uint32_t after, struct inside_process *ret, size_t max)
{
    AUTO_CLOSE int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct supervisor_walk w = {.fd = fd};
    size_t n = 0;
    if (fd < 0)
        return -errno;
    for (pid_t pid = supervisor_next_pid(&w); pid > 0 && n < max; pid = supervisor_next_pid(&w)) {
        if ((uint32_t)pid <= after || !supervisor_process(pid, &ret[n]))
            continue;
        read_arguments(&ret[n++]);
    }
    return (int)n;
}
