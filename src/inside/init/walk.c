/* SPDX-License-Identifier: Apache-2.0 */

/* Kills processes without a kill group: all that do not provably belong to another managed process.
 * None can slip through, because all of them are stopped meanwhile; what a managed process has
 * detached from itself (its session and its parents) is not spared. */

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/init/init.h"

#define DEPTH_MAX 256

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
static bool read_parents(pid_t pid, pid_t *ret_parent, pid_t *ret_session)
{
    char path[32], text[512];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        return false;
    const char *at = strrchr(text, ')');
    if (at == NULL || strlen(at) < 4)
        return false;
    at += 3;
    *ret_parent = number_at(at, &at);
    (void)number_at(at, &at);
    *ret_session = number_at(at, &at);
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
    pid_t parent = 0, session = 0;
    for (int i = 0; i < DEPTH_MAX && pid > 1; i++, pid = parent) {
        if (leads_process(in, except, pid))
            return true;
        if (!read_parents(pid, &parent, &session))
            return false;
        if (leads_process(in, except, session))
            return true;
    }
    return false;
}

static void kill_listed(const struct init *in, const struct cell *except, int proc_fd)
{
    _Alignas(struct dirent64) char entries[2048];
    long n;
    while ((n = syscall(SYS_getdents64, proc_fd, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            const char *end = NULL;
            pid_t pid = number_at(e->d_name, &end);
            if (*end == '\0' && pid > 1 && !spared(in, except, pid))
                (void)kill(pid, SIGKILL);
            at += e->d_reclen;
        }
    }
}

/* The numbers in /proc are those of our own namespace, and we are its first process. */
static bool proc_is_ours(void)
{
    char self[16];
    return readlink("/proc/self", self, sizeof(self)) == 1 && self[0] == '1';
}

bool walk_kill(const struct init *in, const struct cell *except)
{
    if (!proc_is_ours())
        return false;
    int proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc_fd < 0)
        return false;
    (void)kill(-1, SIGSTOP);
    kill_listed(in, except, proc_fd);
    (void)kill(-1, SIGCONT);
    (void)close(proc_fd);
    return true;
}
