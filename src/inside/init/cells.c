/* SPDX-License-Identifier: Apache-2.0 */

/* Every exec runs in a cgroup2 group of its own, so that a time-out ends all of its processes and
 * nothing else. The groups are kept and used again: a warm exec makes no directory. Only one that
 * was killed is made anew: kernels up to at least 6.18 compare the kill counter of the parent's
 * group with that of the group a process is cloned into, and so kill every newcomer to it.
 *
 * Memory on v1: the first cell uses the session's own group, further cells get a child group, so
 * that the kernel's counter of kills tells whose process died. On v2 memory.oom.group lets the
 * kernel end the whole group itself. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/init/init.h"

static const struct {
    const char *name;
    unsigned next;
} states[CELL_STATE_MAX] = {
    [CELL_FREE] = {"free", 1U << CELL_RUNNING},
    [CELL_RUNNING] = {"running", 1U << CELL_DONE},
    [CELL_DONE] = {"done", 1U << CELL_LINGER},
    [CELL_LINGER] = {"linger", 1U << CELL_FREE},
};

void cell_move(struct cell *c, enum cell_state to)
{
    assert(states[c->state].next & (1U << to));
    c->state = to;
}

unsigned cell_index(const struct init *in, const struct cell *c)
{
    return (unsigned)(c - in->cells);
}

/* "populated 0" in cgroup.events; a group that cannot be read counts as occupied. */
static bool group_is_empty(int cgroup_fd)
{
    char text[256];
    if (cgroup_fd < 0)
        return true;
    if (fd_read_file_at(cgroup_fd, "cgroup.events", text, sizeof(text)) < 0)
        return false;
    return strstr(text, "populated 0") != NULL;
}

static uint64_t oom_kills(int memcg_fd, const char *file)
{
    char text[512];
    if (memcg_fd < 0 || fd_read_file_at(memcg_fd, file, text, sizeof(text)) < 0)
        return 0;
    const char *at = strstr(text, "oom_kill ");
    if (at == NULL)
        return 0;
    uint64_t n = 0;
    for (at += strlen("oom_kill "); *at >= '0' && *at <= '9'; at++)
        n = n * 10 + (uint64_t)(*at - '0');
    return n;
}

/* Asks the v1 controller to signal an eventfd when the group runs out of memory. */
static int oom_watch(int memcg_fd)
{
    char line[64];
    int efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (efd < 0)
        return -errno;
    int control = openat(memcg_fd, "memory.oom_control", O_RDONLY | O_CLOEXEC);
    if (control < 0) {
        (void)close(efd);
        return -ENOENT;
    }
    (void)snprintf(line, sizeof(line), "%d %d", efd, control);
    int r = fd_write_file_at(memcg_fd, "cgroup.event_control", line);
    (void)close(control);
    if (r < 0) {
        (void)close(efd);
        return r;
    }
    return efd;
}

static int open_group(int parent_fd, const char *name)
{
    if (mkdirat(parent_fd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* -EBUSY while a process that was killed has not left yet. */
static int cell_drop_killed(struct init *in, struct cell *c)
{
    char name[16];
    if (!c->killed || c->cgroup_fd < 0)
        return 0;
    (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
    if (unlinkat(in->cgroup_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return -errno;
    fd_close_many(&c->cgroup_fd, 1);
    c->killed = false;
    return 0;
}

static int cell_make_groups(struct init *in, struct cell *c)
{
    char name[16];
    if (in->config.cgroup_mode == INIT_CGROUP_NONE)
        return 0;
    if (c->cgroup_fd < 0) {
        (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
        int fd = open_group(in->cgroup_fd, name);
        if (fd < 0)
            return fd;
        c->cgroup_fd = fd;
        if (in->config.cgroup_mode == INIT_CGROUP_V2)
            (void)fd_write_file_at(fd, "memory.oom.group", "1");
    }
    if (in->config.cgroup_mode != INIT_CGROUP_HYBRID || in->memcg_fd < 0 || c->oom_fd >= 0)
        return 0;
    int memcg = in->memcg_fd;
    if (cell_index(in, c) > 0) {
        (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
        /* It may be there already, from a time when it could not be watched. */
        int fd = c->memcg_fd >= 0 ? c->memcg_fd : open_group(in->memcg_fd, name);
        if (fd < 0)
            return fd;
        memcg = c->memcg_fd = fd;
    }
    int efd = oom_watch(memcg);
    if (efd < 0)
        return efd;
    c->oom_fd = efd;
    return 0;
}

static uint64_t cell_oom_count(const struct init *in, const struct cell *c)
{
    if (in->config.cgroup_mode == INIT_CGROUP_V2)
        return oom_kills(c->cgroup_fd, "memory.events");
    if (in->config.cgroup_mode == INIT_CGROUP_HYBRID)
        return oom_kills(c->memcg_fd >= 0 ? c->memcg_fd : in->memcg_fd, "memory.oom_control");
    return 0;
}

static void cell_touch(struct cell *c)
{
    if (!c->touched)
        c->cgroup_fd = c->memcg_fd = c->oom_fd = -1;
    c->touched = true;
}

void cell_prepare(struct init *in)
{
    cell_touch(&in->cells[0]);
    (void)cell_make_groups(in, &in->cells[0]); /* the first exec tries again, and tells */
}

int cell_acquire_at(struct init *in, unsigned at, struct cell **ret)
{
    struct cell *c = &in->cells[at];
    if (c->state == CELL_LINGER && group_is_empty(c->cgroup_fd))
        cell_move(c, CELL_FREE);
    if (c->state != CELL_FREE || c->forgotten != 0)
        return -EAGAIN;
    cell_touch(c);
    if (cell_drop_killed(in, c) < 0)
        return -EAGAIN;
    int r = cell_make_groups(in, c);
    if (r < 0)
        return r == -EAGAIN ? -EBUSY : r;
    c->oom_seen = cell_oom_count(in, c);
    c->oom_checks = 0;
    c->orphan = false;
    in->reports[at] = (struct child_report){0};
    *ret = c;
    return 0;
}

int cell_acquire(struct init *in, struct cell **ret)
{
    int r = -EAGAIN;
    for (unsigned i = 0; i < INIT_EXECS_MAX && r == -EAGAIN; i++)
        r = cell_acquire_at(in, i, ret);
    return r;
}

static int limit_v1(int memcg_fd, const char *text)
{
    /* Memory with swap may never be less than memory alone, so first both are opened. */
    (void)fd_write_file_at(memcg_fd, "memory.memsw.limit_in_bytes", "-1");
    int r = fd_write_file_at(memcg_fd, "memory.limit_in_bytes", text);
    int swap = r < 0 ? -ENOENT : fd_write_file_at(memcg_fd, "memory.memsw.limit_in_bytes", text);
    return r < 0 ? r : swap < 0 && swap != -ENOENT ? swap : 0;
}

/* The group is kept from one process to the next, and with it its limit: it is always set. */
int cell_limit_memory(const struct init *in, const struct cell *c, uint64_t bytes)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    if (in->config.cgroup_mode == INIT_CGROUP_V2) {
        int r = fd_write_file_at(c->cgroup_fd, "memory.max", bytes > 0 ? text : "max");
        if (r >= 0 && bytes > 0)
            (void)fd_write_file_at(c->cgroup_fd, "memory.swap.max", "0");
        return r < 0 ? r : 0;
    }
    if (in->config.cgroup_mode != INIT_CGROUP_HYBRID || c->memcg_fd < 0)
        return -EOPNOTSUPP;
    return limit_v1(c->memcg_fd, bytes > 0 ? text : "-1");
}

int cell_kill_tree(struct init *in, struct cell *c)
{
    if (in->config.cgroup_mode != INIT_CGROUP_NONE) {
        c->killed = true;
        if (fd_write_file_at(c->cgroup_fd, "cgroup.kill", "1") >= 0)
            return 0;
    }
    /* Without a group, or a descriptor to reach it by, the only kill that nothing can slip through
     * is the whole namespace, ourselves and other managed processes excepted. */
    bool all = true;
    for (unsigned i = 0; i < in->procs_top && all; i++) {
        const struct cell *other = &in->cells[INIT_EXECS_MAX + i];
        all = other == c || other->state != CELL_RUNNING || in->procs[i].number == 0;
    }
    if (walk_kill(in, c, all))
        return 0;
    return kill(-1, SIGKILL) < 0 && errno != ESRCH ? -errno : 0;
}

uint32_t cell_remaining(struct init *in, const struct cell *c)
{
    char text[4096];
    if (in->config.cgroup_mode == INIT_CGROUP_NONE || group_is_empty(c->cgroup_fd))
        return 0;
    int fd = openat(c->cgroup_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    uint32_t n = 0;
    ssize_t got;
    while ((got = read(fd, text, sizeof(text))) > 0)
        for (ssize_t i = 0; i < got; i++)
            n += text[i] == '\n';
    (void)close(fd);
    return n;
}

bool cell_empty(const struct cell *c)
{
    return (c->state == CELL_FREE || c->state == CELL_LINGER) && group_is_empty(c->cgroup_fd);
}

bool cell_settled(struct init *in, struct cell *c)
{
    if (c->settle_ns > init_now() && !group_is_empty(c->cgroup_fd))
        return false;
    c->settle_ns = 0;
    c->result.remaining = cell_remaining(in, c);
    return true;
}

bool cell_oom_check(struct init *in, struct cell *c)
{
    uint64_t n = cell_oom_count(in, c);
    if (n > c->oom_seen) {
        c->oom_seen = n;
        c->oom_checks = 0;
        return true;
    }
    if (c->oom_checks > 0)
        c->oom_checks--;
    return false;
}
