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

static bool is_of(const struct tree *tree, size_t n, const struct process *p)
{
    if (p->pid == tree->root || (tree->spare != NULL && tree->spare(tree->g, p->pid)))
        return false;
    return p->parent == tree->root || is_below(n, p->parent) ||
           (tree->brand != 0 && brand_of(p->pid) == tree->brand);
}

/* Finds all of a tree: how many, and how long the table is. */
static unsigned mark(const struct tree *tree, size_t *ret_n)
{
    size_t n = read_table();
    unsigned count = 0;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < n; i++) {
            struct process *p = &table[i];
            if (p->below || !is_of(tree, n, p))
                continue;
            p->below = more = true;
            count++;
        }
    }
    *ret_n = n;
    return count;
}

unsigned tree_signal(const struct tree *tree, int signo)
{
    size_t n;
    unsigned count = mark(tree, &n);
    for (size_t i = 0; i < n && signo != 0; i++)
        if (table[i].below)
            (void)kill(table[i].pid, signo);
    return count;
}

/* The number behind "Name:" in a file of lines, in KiB; false without such a line. */
static bool find_kb(const char *text, const char *name, uint64_t *ret)
{
    const char *at = strstr(text, name);
    char digits[24];
    if (at == NULL)
        return false;
    at += strlen(name);
    at += strspn(at, ": \t");
    size_t len = strspn(at, "0123456789");
    return str_fmt(digits, sizeof(digits), "%.*s", (int)(len < 20 ? len : 20), at) == 0 &&
           str_to_u64(digits, ret) == 0;
}

/* Memory of its own and memory it shares with others, but no files, which the kernel can drop. */
static uint64_t sum_kb(pid_t pid, const char *file, const char *own, const char *shared)
{
    char path[48], text[4096];
    uint64_t a = 0, b = 0;
    if (str_fmt(path, sizeof(path), "/proc/%d/%s", pid, file) < 0 ||
        fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) <= 0)
        return UINT64_MAX;
    if (!find_kb(text, own, &a) || (shared != NULL && !find_kb(text, shared, &b)))
        return UINT64_MAX;
    return a + b;
}

/* What a kernel or a container runtime does not tell in parts it tells as a whole. */
static uint64_t resident_kb(pid_t pid)
{
    uint64_t kb = sum_kb(pid, "status", "\nRssAnon", "\nRssShmem");
    if (kb == UINT64_MAX)
        kb = sum_kb(pid, "status", "\nVmRSS", "\nVmSwap");
    return kb != UINT64_MAX ? kb : sum_kb(pid, "status", "\nVmRSS", NULL); /* gVisor: no swap */
}

/* Its share: costs a walk over all its pages, so it is asked for only in doubt. One that forbids to
 * look at it has what it has. */
static uint64_t share_kb(pid_t pid)
{
    uint64_t kb = sum_kb(pid, "smaps_rollup", "\nPss_Anon", "\nPss_Shmem");
    return kb != UINT64_MAX ? kb : resident_kb(pid);
}

static bool sum_above(size_t n, uint64_t (*of)(pid_t pid), uint64_t bytes)
{
    uint64_t kb = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t more = table[i].below ? of(table[i].pid) : 0;
        kb += more != UINT64_MAX ? more : 0; /* gone meanwhile */
    }
    return kb > bytes / 1024;
}

bool tree_above(const struct tree *tree, uint64_t bytes)
{
    size_t n;
    return mark(tree, &n) > 0 && sum_above(n, resident_kb, bytes) && sum_above(n, share_kb, bytes);
}
