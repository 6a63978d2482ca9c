/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/guest/guest.h"
#include "util/fd.h"
#include "util/str.h"

/* No more than a container may have; what lies beyond is met in the next round. */
#define TREE_MAX 32768U

struct process {
    pid_t pid, parent;
    bool below;
};

static struct process table[TREE_MAX];

/* The parent of a process stands behind its name, which may hold anything, parentheses too. */
static pid_t parent_of(const char *pid)
{
    char path[32], text[512];
    uint64_t parent = 0;
    if (str_fmt(path, sizeof(path), "/proc/%.16s/stat", pid) < 0)
        return -1;
    ssize_t n = fd_read_file_at(AT_FDCWD, path, text, sizeof(text));
    char *at = n > 0 ? strrchr(text, ')') : NULL;
    if (at == NULL || strlen(at) < 5)
        return -1;
    at += 4; /* ") S " */
    at[strcspn(at, " ")] = '\0';
    return str_to_u64(at, &parent) == 0 ? (pid_t)parent : -1;
}

static int compare(const void *a, const void *b)
{
    const struct process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static size_t read_table(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc");
    if (dir == NULL)
        return 0;
    for (struct dirent *d = readdir(dir); d != NULL && n < TREE_MAX; d = readdir(dir)) {
        uint64_t pid;
        if (str_to_u64(d->d_name, &pid) < 0)
            continue;
        pid_t parent = parent_of(d->d_name);
        if (parent >= 0)
            table[n++] = (struct process){.pid = (pid_t)pid, .parent = parent};
    }
    (void)closedir(dir);
    qsort(table, n, sizeof(table[0]), compare);
    return n;
}

static bool is_below(size_t n, pid_t pid)
{
    const struct process key = {.pid = pid};
    const struct process *p = bsearch(&key, table, n, sizeof(table[0]), compare);
    return p != NULL && p->below;
}

unsigned tree_signal(pid_t root, int signo, tree_spare_fn *spare, const struct guest *g)
{
    size_t n = read_table();
    unsigned count = 0;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < n; i++) {
            struct process *p = &table[i];
            if (p->below || p->pid == root || (spare != NULL && spare(g, p->pid)) ||
                (p->parent != root && !is_below(n, p->parent)))
                continue;
            p->below = more = true;
            count++;
        }
    }
    for (size_t i = 0; i < n && signo != 0; i++)
        if (table[i].below)
            (void)kill(table[i].pid, signo);
    return count;
}
