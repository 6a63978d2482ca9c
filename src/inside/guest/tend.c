/* SPDX-License-Identifier: Apache-2.0 */

/* Looks after a program from its start to the end of the last process that it left: its time, its
 * memory, its death. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/disk_full.h"
#include "inside/guest/guest.h"

#define MSEC 1000000ULL
#define ROUND_NS (1 * MSEC) /* between two rounds of killing; later ones take their time */
#define ROUND_MAX_NS (50 * MSEC)
#define END_NS (4000 * MSEC) /* then it is told that a killed one still runs */
#define LOOK_NS (100 * MSEC)
#define LOOK_SOON_NS (3 * MSEC)
#define GREED 2 /* bytes that a program can take in a nanosecond, at the most */

uint64_t tend_count_ooms(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.events",
                                        "/sys/fs/cgroup/memory/memory.oom_control"};
    char text[512];
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        ssize_t n = fd_read_file_at(AT_FDCWD, files[i], text, sizeof(text));
        char *at = n > 0 ? strstr(text, "oom_kill ") : NULL;
        uint64_t count = 0;
        if (at == NULL)
            continue;
        at += strlen("oom_kill ");
        at[strcspn(at, "\n")] = '\0';
        return str_to_u64(at, &count) == 0 ? count : 0;
    }
    return 0;
}

static bool hit_quota(const struct guest *g, int status)
{
    struct statfs fs;
    return g->config.quota_path[0] != '\0' &&
           (disk_file_too_large(status) ||
            (statfs(g->config.quota_path, &fs) == 0 && disk_is_full(&fs)));
}

static uint64_t time_ns(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000 * MSEC + (uint64_t)t.tv_usec * 1000;
}

static void judge(const struct guest *g, struct cell *c, int status, const struct rusage *use)
{
    const struct child_report *report = &g->reports[c - g->cells];
    struct guest_exited *r = &c->result;
    bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    r->wait_status = status;
    r->duration_ns = guest_now() - c->started;
    r->cpu_ns = time_ns(use->ru_utime) + time_ns(use->ru_stime);
    r->max_rss_kb = (uint64_t)use->ru_maxrss;
    r->stage = report->stage;
    r->error = report->error;
    c->failed = failed && r->stage == GUEST_STAGE_NONE;
    c->oom_seen = r->stage == GUEST_STAGE_NONE && tend_count_ooms() > c->ooms;
    if (c->failed && !c->oom_seen && hit_quota(g, status))
        r->flags |= GUEST_EXITED_DISK_FULL;
}

void tend_start(struct cell *c, const struct guest_start *head)
{
    c->started = guest_now();
    c->deadline = head->timeout_ns > 0 ? c->started + head->timeout_ns : 0;
    c->memory_max = head->memory_bytes;
    c->look_at = c->memory_max > 0 ? c->started : 0;
    c->ooms = tend_count_ooms();
    c->left = 1;
}

void tend_reaped(struct guest *g, pid_t pid, int status, const struct rusage *use)
{
    g->recount = true;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct cell *c = &g->cells[i];
        if (c->state != CELL_RUNNING || c->main != pid)
            continue;
        c->main = -1;
        judge(g, c, status, use);
        return;
    }
}

void tend_signal(const struct cell *c, int signo)
{
    if (c->state != CELL_RUNNING || c->main <= 0 || signo <= 0 || signo >= NSIG)
        return;
    /* The process leads its own group; what a terminal would reach, we reach. */
    if (kill(-c->main, signo) < 0)
        (void)kill(c->main, signo);
}

/* Stopped first, so that none of them makes more while the others die. */
void tend_end(struct cell *c, uint32_t flag)
{
    if (c->state == CELL_RUNNING && c->main > 0)
        c->result.flags |= flag;
    if (c->gone || c->ending)
        return;
    c->ending = true;
    c->round_ns = ROUND_NS;
    c->round_at = 0;
    c->end_by = guest_now() + END_NS;
    (void)tree_signal(c->brand, SIGSTOP);
}

static void kill_again(struct guest *g, struct cell *c, uint64_t now)
{
    if (!c->ending || now < c->round_at)
        return;
    c->left = tree_signal(c->brand, SIGKILL);
    if (c->left == UINT_MAX) /* none can be told from the others */
        (void)kill(-1, SIGKILL);
    else if (c->main > 0) /* it may not even have its brand yet */
        (void)kill(c->main, SIGKILL);
    c->round_at = now + c->round_ns;
    c->round_ns = c->round_ns * 2 < ROUND_MAX_NS ? c->round_ns * 2 : ROUND_MAX_NS;
    g->recount = true;
}

/* What the whole container uses: while that is below the limit, nobody has to be counted. */
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

static void watch_memory(const struct guest *g, struct cell *c, uint64_t now)
{
    if (c->memory_max == 0 || c->gone || c->ending || now < c->look_at)
        return;
    c->look_at = now + LOOK_NS;
    if (container_memory() <= c->memory_max)
        return;
    uint64_t left = tree_memory_left(c->brand, c->memory_max);
    if (left == 0)
        tend_end(c, GUEST_EXITED_OOM);
    /* On gVisor we are the only ones who look before the host does, who would end it all. */
    uint64_t soon = left / GREED > LOOK_SOON_NS ? left / GREED : LOOK_SOON_NS;
    if (g->gvisor && soon < LOOK_NS)
        c->look_at = now + soon;
}

/* The main process has ended: that is told when nothing of a killed one is left. */
static void report(struct guest *g, struct cell *c, uint64_t now)
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

static void look_after(struct guest *g, struct cell *c, uint64_t now)
{
    if (c->main > 0 && c->deadline > 0 && now >= c->deadline) {
        c->deadline = 0;
        tend_end(c, GUEST_EXITED_TIMEOUT);
    }
    watch_memory(g, c, now);
    kill_again(g, c, now);
}

void tend_cells(struct guest *g)
{
    uint64_t now = guest_now();
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE && !g->cells[i].gone)
            look_after(g, &g->cells[i], now);
    if (g->recount && tree_count(g))
        g->recount = false;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct cell *c = &g->cells[i];
        if (c->state == CELL_FREE)
            continue;
        report(g, c, now);
        c->gone = c->gone || (c->main <= 0 && c->left == 0);
    }
}

static void sooner(uint64_t *due, uint64_t at)
{
    if (at < *due)
        *due = at;
}

uint64_t tend_due(const struct guest *g)
{
    uint64_t due = g->recount ? guest_now() + ROUND_MAX_NS : UINT64_MAX;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        const struct cell *c = &g->cells[i];
        if (c->state == CELL_FREE || c->gone)
            continue;
        if (c->main > 0 && c->deadline > 0)
            sooner(&due, c->deadline);
        if (c->ending)
            sooner(&due, c->round_at);
        else if (c->look_at > 0)
            sooner(&due, c->look_at);
    }
    return due;
}
