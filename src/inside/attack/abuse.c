/* SPDX-License-Identifier: Apache-2.0 */

/* E01 to E11 and F01: what a program can try to have too much of, and the supervisor of the
 * session. Each mode runs alone and stops at a bound above the limit that it is told, so that a
 * host whose walls do not stand is not hurt either. */

#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)
#define FORKS_MAX 2048 /* more are not tried */
#define SPINNERS 4
#define SPIN_NS 2000000000LL
#define GAP_NS 500000 /* a spinner that sees the clock jump further did not run meanwhile */
#define FLOOD_MIB 64
#define DATAGRAM 8000
#define DATAGRAMS 600
#define ABUSE_SEC 8 /* what a child has for its attempt */

/* What a child tells its parent. */
struct abuse_slot {
    uint64_t held; /* bytes or pieces so far */
    int error;     /* positive errno that stopped it; 0: it reached its bound */
    bool done;     /* it came to an end of its own */
};

static char piece[MIB];

static void *share(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

static pid_t start_child(void)
{
    pid_t pid;
    (void)fflush(stdout);
    pid = fork();
    if (pid == 0)
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    return pid;
}

/* When memory is short it is this process that is in the way, not the one that reports. */
static void be_the_victim(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    (void)!write(fd, "1000", 4);
    (void)close(fd);
}

/* Runs fn(arg, slot) in a child of its own and reports: FAIL when it has reached its bound. */
static void abuse_child(const char *id, const char *unit, uint64_t scale,
                        const struct probe_options *opt,
                        void (*fn)(const void *arg, volatile struct abuse_slot *slot),
                        const void *arg)
{
    volatile struct abuse_slot *slot = share(sizeof(*slot));
    unsigned long long held, limit = opt->limit / scale;
    int status = 0;
    pid_t pid = start_child();

    if (pid == 0) {
        be_the_victim();
        (void)alarm(ABUSE_SEC);
        fn(arg, slot);
        slot->done = true;
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        probe_report(id, PROBE_NA, "no child: %s", strerrorname_np(errno));
        return;
    }
    held = slot->held / scale;
    if (slot->done && slot->error == 0)
        probe_report(id, PROBE_FAIL, "%llu %s, and the limit is %llu", held, unit, limit);
    else if (slot->done && slot->held == 0 && slot->error != ENOSPC && slot->error != EDQUOT)
        probe_report(id, PROBE_NA, "%s", strerrorname_np(slot->error));
    else if (slot->done)
        probe_report(id, PROBE_OK, "%s at %llu %s of %llu", strerrorname_np(slot->error), held,
                     unit, limit);
    else if (WTERMSIG(status) == SIGALRM)
        probe_report(id, PROBE_NA, "%llu %s of %llu in %d s", held, unit, limit, ABUSE_SEC);
    else
        probe_report(id, PROBE_OK, "SIG%s at %llu %s of %llu", sigabbrev_np(WTERMSIG(status)), held,
                     unit, limit);
}

/* Processes. */

static void abuse_forks(const struct probe_options *opt)
{
    static pid_t pids[2 * FORKS_MAX];
    unsigned n = 0, most = (unsigned)opt->limit + (unsigned)opt->limit / 2 + 8;
    const char *why = "";
    if (opt->limit > FORKS_MAX) {
        probe_report("E01", PROBE_NA, "the limit is %llu, more than what is tried",
                     (unsigned long long)opt->limit);
        return;
    }
    while (n < most) {
        pids[n] = start_child();
        if (pids[n] == 0)
            for (;;)
                (void)pause();
        if (pids[n] < 0) {
            why = strerrorname_np(errno);
            break;
        }
        n++;
    }
    for (unsigned i = 0; i < n; i++)
        (void)kill(pids[i], SIGKILL);
    for (unsigned i = 0; i < n; i++)
        (void)waitpid(pids[i], NULL, 0);
    CHECK("E01", n <= opt->limit, "%s after %u processes of %llu", why, n,
          (unsigned long long)opt->limit);
}

/* Descriptors. */

static void raise_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static void open_all(const void *arg, volatile struct abuse_slot *slot)
{
    raise_files();
    while (slot->held < *(const uint64_t *)arg) {
        if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) {
            slot->error = errno;
            return;
        }
        slot->held++;
    }
}

static void abuse_files(const struct probe_options *opt)
{
    const uint64_t most = opt->limit + 1;
    abuse_child("E08", "descriptors", 1, opt, open_all, &most);
}

/* Processor time. The clock is read as fast as can be: where it jumps, the spinner was not running.
 * This does not depend on how a kernel accounts for time, which gVisor does by its own clock. */

static long long now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static _Noreturn void spin(volatile long long *ran)
{
    const long long begin = now();
    long long last = begin, t = 0, sum = 0;
    while ((t = now()) - begin < SPIN_NS) {
        sum += t - last < GAP_NS ? t - last : 0;
        last = t;
    }
    *ran = sum;
    _exit(0);
}

static void abuse_spin(const struct probe_options *opt)
{
    volatile long long *ran = share(SPINNERS * sizeof(*ran));
    pid_t pids[SPINNERS];
    long long sum = 0;
    double used, limit = (double)opt->limit / 100000;

    for (unsigned i = 0; i < SPINNERS; i++) {
        pids[i] = start_child();
        if (pids[i] == 0)
            spin(&ran[i]);
    }
    for (unsigned i = 0; i < SPINNERS; i++) {
        if (pids[i] > 0)
            (void)waitpid(pids[i], NULL, 0);
        sum += ran[i];
    }
    used = (double)sum / (double)SPIN_NS;
    CHECK("E05", used <= limit * 1.3 + 0.1, "%.2f processors for %d programs, the limit is %.2f",
          used, SPINNERS, limit);
}

/* Disk. */

struct disk_abuse {
    const char *id;
    bool fallocates, unlinks;
};

struct disk_order {
    const struct disk_abuse *how;
    uint64_t bound;
};

static void fill_disk(const void *arg, volatile struct abuse_slot *slot)
{
    const struct disk_order *o = arg;
    int fd = open("box-attack.fill", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (o->how->unlinks)
        (void)unlink("box-attack.fill");
    while (fd >= 0 && slot->held < o->bound) {
        long n = o->how->fallocates ? fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)slot->held, MIB)
                                    : write(fd, piece, sizeof(piece));
        if (n < 0)
            break;
        slot->held += o->how->fallocates ? MIB : (uint64_t)n;
    }
    slot->error = slot->held < o->bound ? errno : 0;
}

static void abuse_disk(const struct probe_options *opt)
{
    struct disk_order o = {opt->arg, opt->limit + opt->limit / 4 + 8 * MIB};
    abuse_child(o.how->id, "MiB", MIB, opt, fill_disk, &o);
    (void)unlink("box-attack.fill");
}

/* Memory that a program has, and memory that the kernel holds for it. */

/* Each takes some more, keeps it, and returns how many bytes that were or a negative errno. */

static long take_anon(void)
{
    char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    memset(p, 1, MIB);
    return MIB;
}

/* In files of 16 MiB: how large one may be is another limit. */
static long take_file(int (*open_one)(void))
{
    static int fd = -1;
    static unsigned n;
    if (n++ % 16 == 0)
        fd = open_one();
    ssize_t written = fd < 0 ? -1 : write(fd, piece, sizeof(piece));
    return written < 0 ? -errno : written;
}

static int open_memfd(void)
{
    return memfd_create("box-attack", MFD_CLOEXEC);
}

static long take_memfd(void)
{
    return take_file(open_memfd);
}

static int open_shm(void)
{
    int fd = open("/dev/shm/box-attack", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)unlink("/dev/shm/box-attack");
    return fd;
}

static long take_shm(void)
{
    return take_file(open_shm);
}

/* All that the other end does not read. */
static long fill(int fd)
{
    long total = 0;
    ssize_t n;
    while ((n = send(fd, piece, 65536, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0 ||
           (n < 0 && errno == ENOTSOCK && (n = write(fd, piece, 65536)) > 0))
        total += n;
    return total > 0 ? total : -errno;
}

static long take_pipe(void)
{
    int fds[2];
    if (pipe2(fds, O_NONBLOCK | O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(fds[1], F_SETPIPE_SZ, MIB);
    return fill(fds[1]);
}

static long take_unix(void)
{
    int fds[2], size = 4 * MIB;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return -errno;
    (void)setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return fill(fds[0]);
}

static int bound_socket(int type, struct sockaddr_in *ret)
{
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (fd >= 0 && bind(fd, (struct sockaddr *)ret, len) == 0 &&
        getsockname(fd, (struct sockaddr *)ret, &len) == 0)
        return fd;
    return -errno;
}

static long take_tcp(void)
{
    static struct sockaddr_in at;
    static int listener = -1;
    int fd = -1;
    if (listener < 0) {
        listener = bound_socket(SOCK_STREAM, &at);
        if (listener < 0 || listen(listener, 64) < 0)
            return -errno;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
        accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0)
        return -errno;
    return fill(fd);
}

/* What is dropped on the way is not held, so the receiver is asked. */
static long take_udp(void)
{
    struct sockaddr_in at;
    uint32_t info[SK_MEMINFO_VARS];
    socklen_t len = sizeof(info);
    int size = 4 * MIB, to = bound_socket(SOCK_DGRAM, &at),
        from = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (to < 0 || from < 0)
        return -errno;
    (void)setsockopt(to, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    for (unsigned i = 0; i < DATAGRAMS; i++)
        if (sendto(from, piece, DATAGRAM, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof(at)) < 0)
            break;
    (void)close(from);
    if (getsockopt(to, SOL_SOCKET, SO_MEMINFO, info, &len) < 0)
        return -errno;
    return info[SK_MEMINFO_RMEM_ALLOC] > 0 ? (long)info[SK_MEMINFO_RMEM_ALLOC] : -ENOBUFS;
}

struct hog {
    const char *id;
    long (*take)(void);
};

struct hog_order {
    const struct hog *hog;
    uint64_t bound;
};

static void take_all(const void *arg, volatile struct abuse_slot *slot)
{
    const struct hog_order *o = arg;
    long n = 0;
    raise_files();
    while (slot->held < o->bound && (n = o->hog->take()) > 0)
        slot->held += (uint64_t)n;
    slot->error = n < 0 ? (int)-n : 0;
}

static void abuse_hog(const struct probe_options *opt)
{
    struct hog_order o = {opt->arg, opt->limit + opt->limit / 2 + 16 * MIB};
    abuse_child(o.hog->id, "MiB", MIB, opt, take_all, &o);
}

/* These say nothing: what becomes of the session is seen from outside. */

static void abuse_flood(const struct probe_options *opt)
{
    memset(piece, 'x', sizeof(piece));
    for (unsigned i = 0; i < FLOOD_MIB; i++)
        for (size_t at = 0; at < sizeof(piece);) {
            ssize_t n = write(STDOUT_FILENO, piece + at, sizeof(piece) - at);
            if (n < 0)
                return;
            at += (size_t)n;
        }
}

/* The supervisor of the session has PID 1, or started us. */
static void abuse_wedge(const struct probe_options *opt)
{
    const pid_t pids[] = {1, getppid()};
    const struct rlimit none = {0};
    for (size_t i = 0; i < sizeof(pids) / sizeof(pids[0]); i++) {
        if (pids[i] <= 0)
            continue;
        (void)prlimit(pids[i], RLIMIT_NOFILE, &none, NULL);
        (void)prlimit(pids[i], RLIMIT_CPU, &none, NULL);
        (void)setpriority(PRIO_PROCESS, (id_t)pids[i], 19);
        (void)kill(pids[i], SIGSTOP);
        (void)kill(pids[i], SIGTERM);
        (void)kill(pids[i], SIGKILL);
    }
    (void)kill(-1, SIGSTOP);
}

static _Noreturn void live_on(void)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    for (int signo = 1; signo < NSIG; signo++)
        (void)signal(signo, SIG_IGN);
    for (;;) {
        (void)kill(-1, SIGSTOP);
        (void)nanosleep(&moment, NULL);
    }
}

static void abuse_stubborn(const struct probe_options *opt)
{
    if (fork() == 0) {
        (void)setsid();
        if (fork() == 0)
            live_on();
        _exit(0);
    }
    live_on();
}

#define DISK(...)                                                                                  \
    &(const struct disk_abuse)                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define HOG(...)                                                                                   \
    &(const struct hog)                                                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

const struct probe_mode abuse_modes[] = {
    {"forks", abuse_forks, true},
    {"spin", abuse_spin, true},
    {"files-open", abuse_files, true},
    {"disk-write", abuse_disk, true, DISK("F01.write")},
    {"disk-fallocate", abuse_disk, true, DISK("F01.fallocate", .fallocates = true)},
    {"disk-unlinked", abuse_disk, true, DISK("F01.unlinked", .unlinks = true)},
    {"hog-anon", abuse_hog, true, HOG("E02", take_anon)},
    {"hog-memfd", abuse_hog, true, HOG("E03.memfd", take_memfd)},
    {"hog-shm", abuse_hog, true, HOG("E03.shm", take_shm)},
    {"hog-pipe", abuse_hog, true, HOG("E03.pipe", take_pipe)},
    {"hog-unix", abuse_hog, true, HOG("E03.unix", take_unix)},
    {"hog-tcp", abuse_hog, true, HOG("E03.tcp", take_tcp)},
    {"hog-udp", abuse_hog, true, HOG("E03.udp", take_udp)},
    {"flood", abuse_flood},
    {"wedge", abuse_wedge},
    {"stubborn", abuse_stubborn},
    {0},
};
