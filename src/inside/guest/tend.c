/* SPDX-License-Identifier: Apache-2.0 */

/* Looks after a program from its start to the end of the last process that it left: its time, its
 * memory, its death. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/guest/guest.h"

#define MSEC 1000000ULL
#define ROUND_NS (1 * MSEC) /* between two rounds of killing; later ones take their time */
#define ROUND_MAX_NS (50 * MSEC)
#define END_NS (4000 * MSEC) /* then EXITED says that a killed program still runs */
#define LOOK_NS (100 * MSEC)
#define OOM_NS (200 * MSEC) /* there is no event for it that an ordinary process may have */
#define LOOK_SOON_NS (3 * MSEC)
#define GREED 2 /* bytes that a program can take in a nanosecond, at the most */

/* No more than a container may have; what lies beyond is met in the next round. */
#define TREE_MAX 32768U

/* The processes of one brand. */

static pid_t table[TREE_MAX];

/* A tree that exists when the list is opened is found in it: one of its processes is a child of
 * ours, and we reap none while we read the list. */
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

/* How many are in the table then; UINT_MAX: /proc cannot be read. */
static unsigned tree_find(uint64_t brand)
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

/* All of them get the signal. How many there were, with those that have ended and were not reaped;
 * UINT_MAX: /proc cannot be read. */
static unsigned tree_signal(uint64_t brand, int signo)
{
    unsigned n = tree_find(brand);
    for (unsigned i = 0; n != UINT_MAX && i < n; i++)
        (void)kill(table[i], signo);
    return n;
}

/* Sets `left` of all cells; false when /proc cannot be read. */
static bool tree_count(struct guest *g)
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

/* A kernel or a container runtime that does not report the parts reports the sum. */
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

/* How many bytes are left until all of them together have that many; 0: they have more. Pages that
 * several of them have count once, when it comes to that. */
static uint64_t tree_memory_left(uint64_t brand, uint64_t bytes)
{
    unsigned n = tree_find(brand);
    if (n == 0 || n == UINT_MAX)
        return bytes;
    uint64_t left = left_by(n, resident_kb, bytes);
    return left > 0 ? left : left_by(n, share_kb, bytes);
}

/* Time, memory, death. */

/* How often the kernel has killed for memory in this container. */
static uint64_t count_ooms(void)
{
    uint64_t n = 0;
    if (supervisor_oom_kills(AT_FDCWD, "/sys/fs/cgroup/memory.events", &n) == -ENOENT)
        (void)supervisor_oom_kills(AT_FDCWD, "/sys/fs/cgroup/memory/memory.oom_control", &n);
    return n;
}

/* A command runs, other than this one. */
static bool any_exec(const struct guest *g, const struct guest_cell *but)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state == CELL_RUNNING && !guest_is_proc(&g->cells[i]) &&
            &g->cells[i] != but)
            return true;
    return false;
}

static void cell_judge(const struct guest *g, struct guest_cell *c, int status,
                       const struct rusage *use)
{
    const struct child_report *report = &g->reports[c - g->cells];
    struct inside_exited *r = &c->result;
    bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    supervisor_judge(report, c->started, status, use, r);
    c->failed = failed && r->stage == INSIDE_STAGE_NONE;
    c->oom_seen = r->stage == INSIDE_STAGE_NONE && count_ooms() > c->ooms;
    if (c->failed && !c->oom_seen && supervisor_hit_quota(g->config.quota_path, status))
        r->flags |= INSIDE_EXITED_DISK_FULL;
}

void tend_start(struct guest *g, struct guest_cell *c, const struct guest_start *head)
{
    c->started = supervisor_now();
    c->deadline = head->timeout_ns > 0 ? c->started + head->timeout_ns : 0;
    c->memory_max = head->memory_bytes;
    c->look_at = c->memory_max > 0 ? c->started : 0;
    c->ooms = count_ooms();
    c->left = 1;
    /* Kills are not counted while no command runs: those since the last one are not this one's. */
    if (!any_exec(g, c))
        g->ooms = c->ooms;
}

static void cell_reaped(struct guest *g, pid_t pid, int status, const struct rusage *use)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct guest_cell *c = &g->cells[i];
        if (c->state != CELL_RUNNING || c->main != pid)
            continue;
        c->main = -1;
        cell_judge(g, c, status, use);
        return;
    }
}

void tend_reap(struct guest *g)
{
    struct signalfd_siginfo ignored[8];
    struct rusage use;
    int status;
    pid_t pid;
    while (read(g->signal_fd, ignored, sizeof(ignored)) > 0)
        ;
    while ((pid = wait4(-1, &status, WNOHANG | __WALL, &use)) > 0) {
        g->recount = true;
        cell_reaped(g, pid, status, &use);
    }
}

void tend_signal(const struct guest_cell *c, int signo)
{
    if (c->state == CELL_RUNNING)
        supervisor_signal(c->main, signo);
}

/* A child that has only just begun has no brand yet. */
int tend_list(const struct guest *g, uint32_t after, struct inside_process *ret, size_t max)
{
    int n = supervisor_list(after, ret, max);
    for (int k = 0; k < n; k++) {
        pid_t pid = (pid_t)ret[k].pid;
        uint64_t brand = brand_of(pid);
        for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
            const struct guest_cell *c = &g->cells[i];
            if (c->state == CELL_FREE || (brand != 0 ? c->brand != brand : c->main != pid))
                continue;
            ret[k].owner = guest_is_proc(c) ? INSIDE_OWNER_PROC : INSIDE_OWNER_EXEC;
            ret[k].left = c->state != CELL_RUNNING;
            memcpy(ret[k].label, c->label, sizeof(c->label));
        }
    }
    return n;
}

void tend_end_left(struct guest *g, const char *label)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state == CELL_LINGER && !guest_is_proc(&g->cells[i]) &&
            str_eq(g->cells[i].label, label))
            tend_end(&g->cells[i], 0);
}

/* Stopped first, so that none of them makes more while the others die. */
void tend_end(struct guest_cell *c, uint32_t flag)
{
    if (c->state == CELL_RUNNING && c->main > 0)
        c->result.flags |= flag;
    if (c->gone || c->ending)
        return;
    c->ending = true;
    c->round_ns = ROUND_NS;
    c->round_at = 0;
    c->end_by = supervisor_now() + END_NS;
    (void)tree_signal(c->brand, SIGSTOP);
}

static void kill_again(struct guest *g, struct guest_cell *c, uint64_t now)
{
    if (!c->ending || now < c->round_at)
        return;
    c->left = tree_signal(c->brand, SIGKILL);
    if (c->left == UINT_MAX) /* its processes cannot be found */
        (void)kill(-1, SIGKILL);
    else if (c->main > 0) /* it may not even have its brand yet */
        (void)kill(c->main, SIGKILL);
    c->round_at = now + c->round_ns;
    c->round_ns = c->round_ns * 2 < ROUND_MAX_NS ? c->round_ns * 2 : ROUND_MAX_NS;
    g->recount = true;
}

/* What the whole container uses: while that is below the limit, no process has to be counted. */
static uint64_t container_memory(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.current",
                                        "/sys/fs/cgroup/memory/memory.usage_in_bytes"};
    uint64_t bytes;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (fd_read_u64_at(AT_FDCWD, files[i], &bytes) == 0)
            return bytes;
    return UINT64_MAX;
}

static void watch_memory(const struct guest *g, struct guest_cell *c, uint64_t now)
{
    if (c->memory_max == 0 || c->gone || c->ending || now < c->look_at)
        return;
    c->look_at = now + LOOK_NS;
    if (container_memory() <= c->memory_max)
        return;
    uint64_t left = tree_memory_left(c->brand, c->memory_max);
    if (left == 0)
        tend_end(c, INSIDE_EXITED_OOM);
    /* On gVisor the host's limit would end the whole container: look before it is reached. */
    uint64_t soon = left / GREED > LOOK_SOON_NS ? left / GREED : LOOK_SOON_NS;
    if (g->gvisor && soon < LOOK_NS)
        c->look_at = now + soon;
}

/* The main process has ended. EXITED waits until nothing of a killed tree is left. */
static void cell_report(struct guest *g, struct guest_cell *c, uint64_t now)
{
    if (c->state != CELL_RUNNING || c->main > 0)
        return;
    if (c->left > 0 && c->oom_seen && c->failed)
        tend_end(c, 0); /* out of memory ends the whole exec */
    if (c->ending && c->left > 0 && now < c->end_by)
        return;
    c->result.remaining = c->left;
    cell_on_result(g, c);
}

static void look_after(struct guest *g, struct guest_cell *c, uint64_t now)
{
    if (c->main > 0 && c->deadline > 0 && now >= c->deadline) {
        c->deadline = 0;
        tend_end(c, INSIDE_EXITED_TIMEOUT);
    }
    watch_memory(g, c, now);
    kill_again(g, c, now);
}

/* Out of memory, as the kernel sees it. With one command the whole of it ends; with several the
 * kernel has chosen. */
static void end_only_exec(struct guest *g)
{
    struct guest_cell *only = NULL;
    unsigned n = 0;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        if (g->cells[i].state != CELL_RUNNING)
            continue;
        only = &g->cells[i];
        n++;
    }
    if (n == 1 && only->alone && !guest_is_proc(only))
        tend_end(only, INSIDE_EXITED_OOM);
}

static void watch_ooms(struct guest *g, uint64_t now)
{
    if (now < g->ooms_at || !any_exec(g, NULL))
        return;
    g->ooms_at = now + OOM_NS;
    uint64_t n = count_ooms();
    if (n > g->ooms)
        end_only_exec(g);
    g->ooms = n;
}

void tend_cells(struct guest *g)
{
    uint64_t now = supervisor_now();
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE && !g->cells[i].gone)
            look_after(g, &g->cells[i], now);
    if (g->recount && tree_count(g))
        g->recount = false;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct guest_cell *c = &g->cells[i];
        if (c->state == CELL_FREE)
            continue;
        cell_report(g, c, now);
        c->gone = c->gone || (c->main <= 0 && c->left == 0);
    }
    watch_ooms(g, now);
}

static void be_sooner(uint64_t *due, uint64_t at)
{
    if (at < *due)
        *due = at;
}

uint64_t tend_due(const struct guest *g)
{
    uint64_t due = g->recount ? supervisor_now() + ROUND_MAX_NS : UINT64_MAX;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        const struct guest_cell *c = &g->cells[i];
        if (c->state == CELL_FREE || c->gone)
            continue;
        if (c->main > 0 && c->deadline > 0)
            be_sooner(&due, c->deadline);
        if (c->ending)
            be_sooner(&due, c->round_at);
        else if (c->look_at > 0)
            be_sooner(&due, c->look_at);
    }
    if (any_exec(g, NULL))
        be_sooner(&due, supervisor_now() + OOM_NS);
    return due;
}
