/* SPDX-License-Identifier: Apache-2.0 */

/* usage: unruly PID|parent|all [FILE]
 *
 * Does to one process, under the id it has itself, what would stop or blind it, and prints a line
 * for each: its name, then "done" or the name of the error. With FILE it then goes on for good, and
 * so does a grandchild of it in a session of its own: neither hears of any signal that can be
 * ignored, and both write to FILE that they are there. "all" stops every process that it can reach,
 * again and again, and writes all the while: to FILE, and to a new file below the current directory
 * whenever the one before may not grow. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BEAT_US 20000
#define KILLS_PER_BLOCK 512 /* so that the host's disk lasts */
#define IDLE_CLASS (3 << 13)

static void say(const char *what, long r)
{
    (void)printf("%s %s\n", what, r < 0 ? strerrorname_np(errno) : "done");
}

static long take_files(pid_t pid)
{
    const struct rlimit none = {0};
    return prlimit(pid, RLIMIT_NOFILE, &none, NULL);
}

static long write_memory(pid_t pid)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/mem", pid);
    return open(path, O_RDWR | O_CLOEXEC);
}

static long write_directly(pid_t pid)
{
    char byte = 0;
    struct iovec ours = {&byte, 1}, theirs = {(void *)0x400000, 1};
    return process_vm_writev(pid, &ours, 1, &theirs, 1, 0);
}

static long steal_file(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0U);
    return fd < 0 ? fd : syscall(SYS_pidfd_getfd, fd, 0, 0U);
}

static long be_last(pid_t pid)
{
    const struct sched_param none = {0};
    return sched_setscheduler(pid, SCHED_IDLE, &none);
}

static void attack(pid_t pid)
{
    say("prlimit", take_files(pid));
    say("sched_setscheduler", be_last(pid));
    say("setpriority", setpriority(PRIO_PROCESS, (id_t)pid, 19));
    say("setpriority_user", setpriority(PRIO_USER, 0, 19));
    say("ioprio_set", syscall(SYS_ioprio_set, 1, pid, IDLE_CLASS));
    say("mem", write_memory(pid));
    say("process_vm_writev", write_directly(pid));
    say("pidfd_getfd", steal_file(pid));
    say("ptrace", ptrace(PTRACE_SEIZE, pid, NULL, NULL));
    say("stop", kill(pid, SIGSTOP));
    say("tgkill_stop", syscall(SYS_tgkill, pid, pid, SIGSTOP));
    (void)fflush(stdout);
}

static void live(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    while (fd >= 0 && write(fd, "x", 1) == 1)
        (void)usleep(BEAT_US);
}

static _Noreturn void stop_all(const char *path)
{
    static char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    char more[32];
    for (unsigned i = 0;; i++) {
        (void)kill(-1, SIGSTOP);
        if (i % KILLS_PER_BLOCK == 0 && write(fd, block, sizeof(block)) < 0) {
            (void)close(fd);
            (void)snprintf(more, sizeof(more), "more-%u", i);
            fd = open(more, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        }
    }
}

static void leave_another(const char *path)
{
    if (fork() != 0)
        return;
    (void)setsid();
    if (fork() == 0)
        live(path);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    for (int signo = 1; signo < NSIG && argc > 2; signo++)
        if (signo != SIGCHLD)
            (void)signal(signo, SIG_IGN);
    pid_t pid = strcmp(argv[1], "parent") == 0 ? getppid() : (pid_t)strtol(argv[1], NULL, 10);
    if (argc > 2 && strcmp(argv[1], "all") == 0)
        stop_all(argv[2]);
    if (argc > 2)
        leave_another(argv[2]); /* first: what it is to be ended with may be gone after */
    attack(pid);
    if (argc > 2)
        live(argv[2]);
    return 0;
}
