/* SPDX-License-Identifier: Apache-2.0 */

/* Kills processes without a kill group: all that do not provably belong to another managed process.
 * None can slip through, because all of them are stopped meanwhile; what a managed process has
 * detached from itself (its session and its parents) is not spared. */

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/init/init.h"

#define DEPTH_MAX 256
/* A process that is held up in the kernel stops when it gets out of there: no longer than ROUNDS
 * looks are spent on waiting for it. */
#define ROUNDS 200
#define ROUND_NS 1000000L

struct seen {
    char state; /* as /proc tells it */
    pid_t parent, session;
};

static int number_at(const char *text, const char **ret_end)
{
    int n = 0;
    while (*text == ' ')
        text++;
    for (; *text >= '0' && *text <= '9' && n < 100000000; text++)
        n = n * 10 + (*text - '0');
    *ret_end = text;
    return n;
}

/* "pid (name) state ppid pgrp session …"; the name may hold anything. */
static bool look_at(pid_t pid, struct seen *ret)
{
    char path[32], text[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        return false;
    const char *at = strrchr(text, ')');
    if (at == NULL || strlen(at) < 4)
        return false;
    ret->state = at[2];
    at += 3;
    ret->parent = number_at(at, &at);
    (void)number_at(at, &at);
    ret->session = number_at(at, &at);
    return true;
}

static bool leads_process(const struct init *in, const struct cell *except, pid_t pid)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        const struct cell *c = &in->cells[INIT_EXECS_MAX + i];
        if (in->procs[i].number != 0 && c != except && c->state == CELL_RUNNING && c->pid == pid)
            return true;
    }
    return false;
}

static bool spared(const struct init *in, const struct cell *except, pid_t pid)
{
    struct seen seen = {0};
    for (int i = 0; i < DEPTH_MAX && pid > 1; i++, pid = seen.parent) {
        if (leads_process(in, except, pid))
            return true;
        if (!look_at(pid, &seen))
            return false;
        if (leads_process(in, except, seen.session))
            return true;
    }
    return false;
}

/* Neither dead nor stopped. */
static bool is_active(pid_t pid)
{
    struct seen seen;
    return look_at(pid, &seen) && strchr("TtZXx", seen.state) == NULL;
}

/* Returns how many are not there yet where they are to be. */
static unsigned kill_listed(const struct init *in, const struct cell *except, int proc_fd)
{
    _Alignas(struct dirent64) char entries[2048];
    unsigned active = 0;
    long n;
    (void)lseek(proc_fd, 0, SEEK_SET);
    while ((n = syscall(SYS_getdents64, proc_fd, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            const char *end = NULL;
            pid_t pid = number_at(e->d_name, &end);
            at += e->d_reclen;
            if (*end != '\0' || pid <= 1)
                continue;
            if (!spared(in, except, pid))
                (void)kill(pid, SIGKILL);
            active += is_active(pid);
        }
    }
    return active;
}

/* The numbers in /proc are those of our own namespace, and we are its first process. */
static bool proc_is_ours(void)
{
    char self[16];
    return readlink("/proc/self", self, sizeof(self)) == 1 && self[0] == '1';
}

bool walk_kill(const struct init *in, const struct cell *except, bool all)
{
    int proc_fd = proc_is_ours() ? open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (proc_fd < 0)
        return false;
    (void)kill(-1, all ? SIGKILL : SIGSTOP);
    /* Who is making a process when it is stopped still makes it, and that one begins stopped. A
     * SIGCONT that comes before it is there does not reach it: it would stay so for ever. */
    const struct timespec nap = {.tv_nsec = ROUND_NS};
    for (int i = 0; kill_listed(in, except, proc_fd) > 0 && i < ROUNDS; i++)
        (void)ppoll(NULL, 0, &nap, NULL);
    if (!all)
        (void)kill(-1, SIGCONT);
    (void)close(proc_fd);
    return true;
}
