/* SPDX-License-Identifier: Apache-2.0 */

/* Finds all processes of one program in /proc, to signal them and to add up their memory. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/guest/guest.h"

/* No more than a container may have; what lies beyond is met in the next round. */
#define TREE_MAX 32768U

static pid_t table[TREE_MAX];

/* Whoever is in here at the beginning is still in here at the end, as what is left of it at least:
 * a tree has a process whose parent we are, and we reap none meanwhile. So one that is not found
 * is not there. */
static DIR *open_list(void)
{
    return opendir("/proc");
}

static pid_t next_pid(DIR *list)
{
    uint64_t pid;
    for (struct dirent *d = readdir(list); d != NULL; d = readdir(list))
        if (str_to_u64(d->d_name, &pid) == 0)
            return (pid_t)pid;
    return -1;
}

/* How many are in the table then; UINT_MAX: nobody knows. */
static unsigned find(uint64_t brand)
{
    unsigned n = 0;
    DIR *list = open_list();
    if (list == NULL)
        return UINT_MAX;
    for (pid_t pid = next_pid(list); pid > 0 && n < TREE_MAX; pid = next_pid(list))
        if (brand_of(pid) == brand)
            table[n++] = pid;
    (void)closedir(list);
    return n;
}

unsigned tree_signal(uint64_t brand, int signo)
{
    unsigned n = find(brand);
    for (unsigned i = 0; n != UINT_MAX && i < n; i++)
        (void)kill(table[i], signo);
    return n;
}

bool tree_count(struct guest *g)
{
    DIR *list = open_list();
    if (list == NULL)
        return false;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE)
            g->cells[i].left = 0;
    for (pid_t pid = next_pid(list); pid > 0; pid = next_pid(list)) {
        uint64_t brand = brand_of(pid);
        for (unsigned i = 0; i < GUEST_CELLS_MAX && brand != 0; i++)
            if (g->cells[i].state != CELL_FREE && g->cells[i].brand == brand)
                g->cells[i].left++;
    }
    (void)closedir(list);
    return true;
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

static uint64_t left_by(unsigned n, uint64_t (*of)(pid_t pid), uint64_t bytes)
{
    uint64_t kb = 0;
    for (unsigned i = 0; i < n; i++) {
        uint64_t more = of(table[i]);
        kb += more != UINT64_MAX ? more : 0; /* gone meanwhile */
    }
    return kb > bytes / 1024 ? 0 : bytes - kb * 1024 + 1;
}

uint64_t tree_memory_left(uint64_t brand, uint64_t bytes)
{
    unsigned n = find(brand);
    if (n == 0 || n == UINT_MAX)
        return bytes;
    uint64_t left = left_by(n, resident_kb, bytes);
    return left > 0 ? left : left_by(n, share_kb, bytes);
}
