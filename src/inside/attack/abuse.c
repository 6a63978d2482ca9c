/* SPDX-License-Identifier: Apache-2.0 */

/* E01, E05 to E11 and F01: processes, processor time, descriptors, output, disk, and the supervisor
 * of the session. */

#include "abuse.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)
#define FORKS_MAX 2048 /* more are not tried */
#define SPINNERS 4
#define SPIN_NS 2000000000LL
#define GAP_NS 500000 /* a spinner that sees the clock jump further did not run meanwhile */
#define FLOOD_MIB 64

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

void abuse_child(const char *id, const char *unit, uint64_t scale, const struct probe_options *opt,
                 void (*fn)(const void *arg, volatile struct abuse_slot *slot), const void *arg)
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

void abuse_forks(const struct probe_options *opt)
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
    probe_report("E01", n <= opt->limit ? PROBE_OK : PROBE_FAIL, "%s after %u processes of %llu",
                 why, n, (unsigned long long)opt->limit);
}

/* Descriptors. */

static void open_all(const void *arg, volatile struct abuse_slot *slot)
{
    struct rlimit files = {0};

    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    while (slot->held < *(const uint64_t *)arg) {
        if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) {
            slot->error = errno;
            return;
        }
        slot->held++;
    }
}

void abuse_files(const struct probe_options *opt)
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

void abuse_spin(const struct probe_options *opt)
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
    probe_report("E05", used <= limit * 1.3 + 0.1 ? PROBE_OK : PROBE_FAIL,
                 "%.2f processors for %d programs, the limit is %.2f", used, SPINNERS, limit);
}

/* Disk. */

struct disk_order {
    bool fallocates, unlinks;
    uint64_t bound;
};

static void fill_disk(const void *arg, volatile struct abuse_slot *slot)
{
    static char piece[MIB];
    const struct disk_order *o = arg;
    int fd = open("box-attack.fill", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (o->unlinks)
        (void)unlink("box-attack.fill");
    while (fd >= 0 && slot->held < o->bound) {
        long n = o->fallocates ? fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)slot->held, MIB)
                               : write(fd, piece, sizeof(piece));
        if (n < 0)
            break;
        slot->held += o->fallocates ? MIB : (uint64_t)n;
    }
    slot->error = slot->held < o->bound ? errno : 0;
}

static void disk(const char *id, const struct probe_options *opt, bool fallocates, bool unlinks)
{
    struct disk_order o = {fallocates, unlinks, opt->limit + opt->limit / 4 + 8 * MIB};

    abuse_child(id, "MiB", MIB, opt, fill_disk, &o);
    (void)unlink("box-attack.fill");
}

void abuse_write(const struct probe_options *opt)
{
    disk("F01.write", opt, false, false);
}

void abuse_fallocate(const struct probe_options *opt)
{
    disk("F01.fallocate", opt, true, false);
}

void abuse_unlinked(const struct probe_options *opt)
{
    disk("F01.unlinked", opt, false, true);
}

/* Seen from outside. */

void abuse_flood(const struct probe_options *opt)
{
    static char text[MIB];

    memset(text, 'x', sizeof(text));
    for (unsigned i = 0; i < FLOOD_MIB; i++)
        for (size_t at = 0; at < sizeof(text);) {
            ssize_t n = write(STDOUT_FILENO, text + at, sizeof(text) - at);
            if (n < 0)
                return;
            at += (size_t)n;
        }
}

/* The supervisor of the session has PID 1, or started us. */
void abuse_wedge(const struct probe_options *opt)
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

void abuse_stubborn(const struct probe_options *opt)
{
    if (fork() == 0) {
        (void)setsid();
        if (fork() == 0)
            live_on();
        _exit(0);
    }
    live_on();
}
