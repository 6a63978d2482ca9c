/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the host's cgroup trees, makes the groups of a session, sets its limits and reads them
 * back. */

#include "sandbox/cgroup/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/usage.h"

#define MOUNTINFO_MAX (1U << 20)
#define MEMORY_LIMIT_V1 "memory.limit_in_bytes"
#define MEMSW_LIMIT_V1 "memory.memsw.limit_in_bytes"
#define SOCKET_LIMIT_V1 "memory.kmem.tcp.limit_in_bytes" /* UDP too, whatever it is called */
#define PERIOD_US 100000U
#define USAGE_V1 "memory.usage_in_bytes"
#define SPARE "spare"
/* Memory groups of sessions that have ended, for the spare ones to come. */
#define USED "used-"
#define USED_MAX 16U
#define USED_BYTES_MAX (16ULL << 20)   /* with more in it, emptying takes longer than it saves */
#define EMPTY_BYTES_MAX (512ULL << 10) /* what the next session may begin with */

static const char *const controller_names[CGROUP_CONTROLLERS] = {
    [CGROUP_CPU] = "cpu",
    [CGROUP_MEMORY] = "memory",
    [CGROUP_PIDS] = "pids",
};

/* Where the hierarchies are mounted, "" where one is not. */
struct cgroup_mounts {
    char v2[256];
    char v1[CGROUP_CONTROLLERS][256];
};

/* `list` has words with commas or blanks between them. */
static bool cgroup_has_word(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += len)
        if ((at == list || at[-1] == ',' || at[-1] == ' ') && strchr(", \n", at[len]) != NULL)
            return true;
    return false;
}

/* One line of mountinfo: "… root mountpoint options … - fstype source superoptions". Octal escapes
 * do not occur in the places cgroups are mounted at; such a mount is simply not found. */
static void read_mount_line(char *line, struct cgroup_mounts *ret)
{
    char *fields[12] = {0}, *save = NULL;
    size_t n = 0;
    char *dash = strstr(line, " - ");
    if (dash == NULL)
        return;
    *dash = '\0';
    for (char *f = strtok_r(line, " ", &save); f != NULL && n < 5; f = strtok_r(NULL, " ", &save))
        fields[n++] = f;
    char *type = strtok_r(dash + 3, " ", &save);
    (void)strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save);
    if (n < 5 || type == NULL || super == NULL || !str_eq(fields[3], "/"))
        return;
    if (str_eq(type, "cgroup2") && ret->v2[0] == '\0')
        (void)str_copy(ret->v2, sizeof(ret->v2), fields[4]);
    for (int i = 0; str_eq(type, "cgroup") && i < CGROUP_CONTROLLERS; i++)
        if (ret->v1[i][0] == '\0' && cgroup_has_word(super, controller_names[i]))
            (void)str_copy(ret->v1[i], sizeof(ret->v1[i]), fields[4]);
}

/* From the text of /proc/self/mountinfo, which is taken apart in place. Only whole hierarchies
 * count; of several mounts the first. */
static void cgroup_read_mounts(char *mountinfo, struct cgroup_mounts *ret)
{
    char *save = NULL;
    *ret = (struct cgroup_mounts){0};
    for (char *line = strtok_r(mountinfo, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save))
        read_mount_line(line, ret);
}

static int find_mounts(struct cgroup_mounts *ret, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(MOUNTINFO_MAX);
    AUTO_CLOSE int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, &text);
    if (r < 0)
        return err_sys(err, -r, "read /proc/self/mountinfo");
    *ret = (struct cgroup_mounts){0};
    if (text.data != NULL)
        cgroup_read_mounts(text.data, ret);
    return 0;
}

/* Our own place in the v2 tree when it was handed to us (systemd's Delegate=, or an ordinary user's
 * own subtree); else -1: the top is ours to use only as root. */
static int open_delegated(const char *mountpoint)
{
    char text[4096], path[4608], mark[4];
    ssize_t n = fd_read_file_at(AT_FDCWD, "/proc/self/cgroup", text, sizeof(text));
    char *at = n > 0 ? strstr(text, "0::/") : NULL;
    if (at == NULL)
        return -1;
    at += strlen("0::");
    at[strcspn(at, "\n")] = '\0';
    if (str_eq(at, "/") || str_fmt(path, sizeof(path), "%s%s", mountpoint, at) < 0)
        return -1;
    bool marked = getxattr(path, "user.delegate", mark, sizeof(mark)) == 1 ||
                  getxattr(path, "trusted.delegate", mark, sizeof(mark)) == 1;
    if (!marked && geteuid() == 0 && access("/proc/self/setgroups", F_OK) == 0) {
        /* Root without a delegation mark uses the top, unless it is root of a user namespace only.
         */
        char map[64];
        if (fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof(map)) > 0 &&
            strstr(map, "4294967295"))
            return -1;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 &&
        (faccessat(fd, "cgroup.procs", W_OK, 0) < 0 || faccessat(fd, ".", W_OK, 0) < 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Controllers can only be handed down from a group without processes: those in it move to a leaf.
 */
static void vacate(int base)
{
    char pids[16384], *save = NULL;
    if (mkdirat(base, "daemon", 0755) < 0 && errno != EEXIST)
        return;
    if (fd_read_file_at(base, "cgroup.procs", pids, sizeof(pids)) <= 0)
        return;
    for (char *pid = strtok_r(pids, "\n", &save); pid != NULL; pid = strtok_r(NULL, "\n", &save))
        (void)fd_write_file_at(base, "daemon/cgroup.procs", pid);
}

static int make_tag_dir(int base, const char *tag)
{
    if (mkdirat(base, tag, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(base, tag, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

static void init_v2(struct cgroup_host *h, const struct cgroup_mounts *where, const char *tag)
{
    char have[512] = "";
    AUTO_CLOSE int base = open_delegated(where->v2);
    bool delegated = base >= 0;
    if (base < 0)
        base = open(where->v2, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (base < 0)
        return;
    if (delegated)
        vacate(base);
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        char enable[16];
        (void)snprintf(enable, sizeof(enable), "+%s", controller_names[i]);
        (void)fd_write_file_at(base, "cgroup.subtree_control", enable);
    }
    h->v2_fd = make_tag_dir(base, tag);
    if (h->v2_fd < 0)
        return;
    (void)fd_read_file_at(h->v2_fd, "cgroup.controllers", have, sizeof(have));
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        char enable[16];
        (void)snprintf(enable, sizeof(enable), "+%s", controller_names[i]);
        h->enforced[i] = cgroup_has_word(have, controller_names[i]) &&
                         fd_write_file_at(h->v2_fd, "cgroup.subtree_control", enable) >= 0;
        if (h->enforced[i])
            h->mode = INIT_CGROUP_V2;
    }
}

static void init_v1(struct cgroup_host *h, const struct cgroup_mounts *where, const char *tag)
{
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        if (where->v1[i][0] == '\0' || h->enforced[i])
            continue;
        AUTO_CLOSE int base = open(where->v1[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int fd = base < 0 ? -errno : make_tag_dir(base, tag);
        if (fd < 0) {
            (void)snprintf(h->why[i], sizeof(h->why[i]), "%s: %s", where->v1[i],
                           err_errno_text(-fd));
            continue;
        }
        h->v1_fd[i] = fd;
        h->enforced[i] = true;
        /* The kernel patches its code when the first group has such a limit and when the last one
         * goes; while ours is there no session pays for that. */
        if (i == CGROUP_MEMORY)
            (void)fd_write_file_at(fd, SOCKET_LIMIT_V1, "-1");
    }
}

int cgroup_host_init(struct cgroup_host *h, const char *tag, struct err *err)
{
    struct cgroup_mounts where = {0};
    *h = (struct cgroup_host){.mode = INIT_CGROUP_NONE, .v2_fd = -1, .v1_fd = {-1, -1, -1}};
    int r = find_mounts(&where, err);
    if (r < 0)
        return r;
    if (where.v2[0] != '\0')
        init_v2(h, &where, tag);
    if (h->mode != INIT_CGROUP_V2) {
        init_v1(h, &where, tag);
        if (h->v2_fd >= 0)
            h->mode = INIT_CGROUP_HYBRID;
    }
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        if (!h->enforced[i] && h->why[i][0] == '\0')
            (void)snprintf(h->why[i], sizeof(h->why[i]),
                           "no writable cgroup with the %s controller", controller_names[i]);
    return 0;
}

void cgroup_host_done(struct cgroup_host *h)
{
    fd_close_many(&h->v2_fd, 1);
    fd_close_many(h->v1_fd, CGROUP_CONTROLLERS);
}

static bool is_session_name(const char *name)
{
    if (str_eq(name, SPARE) || str_starts(name, USED))
        return true;
    return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16;
}

/* Removes `name` and the groups one level below it, of which most have none. */
static int remove_groups(int parent, const char *name)
{
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    struct dirent *e;
    while ((e = readdir(dir)) != NULL)
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            (void)unlinkat(dirfd(dir), e->d_name, AT_REMOVEDIR);
    (void)closedir(dir);
    return unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

int cgroup_host_purge(struct cgroup_host *h)
{
    int fds[CGROUP_CONTROLLERS + 1] = {h->v2_fd, h->v1_fd[0], h->v1_fd[1], h->v1_fd[2]};
    int left = 0;
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        DIR *dir = fds[i] < 0 ? NULL : fd_opendir(fds[i]);
        if (dir == NULL)
            continue;
        struct dirent *e;
        while ((e = readdir(dir)) != NULL) {
            char path[300];
            if (!is_session_name(e->d_name))
                continue;
            (void)snprintf(path, sizeof(path), "%s/cgroup.kill", e->d_name);
            (void)fd_write_file_at(dirfd(dir), path, "1");
            int r = remove_groups(dirfd(dir), e->d_name);
            /* Killed processes need a moment to leave; the caller comes back. */
            left += r == -EBUSY;
        }
        (void)closedir(dir);
    }
    return left;
}

void cgroup_host_remove(struct cgroup_host *h, const char *tag)
{
    int fds[CGROUP_CONTROLLERS + 1] = {h->v2_fd, h->v1_fd[0], h->v1_fd[1], h->v1_fd[2]};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        AUTO_CLOSE int parent =
            fds[i] < 0 ? -1 : openat(fds[i], "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parent >= 0)
            (void)unlinkat(parent, tag, AT_REMOVEDIR);
    }
}

static int chown_at(int dirfd, const char *name, uid_t uid, gid_t gid)
{
    return fchownat(dirfd, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != ENOENT ? -errno : 0;
}

static int open_session_dir(int parent, const char *name, bool make)
{
    if (make && mkdirat(parent, name, 0755) < 0)
        return -errno;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

/* Writes a limit and reads it back: a value that the kernel has rounded up past the request is an
 * error. */
static int cgroup_set_limit(int dirfd, const char *file, uint64_t value, struct err *err)
{
    uint64_t got = 0;
    int r = fd_set_u64_at(dirfd, file, value, &got);
    if (r < 0)
        return err_sys(err, -r, "set cgroup limit %s", file);
    if (got > value)
        return err_set(err, ERR_UNSUPPORTED,
                       "cgroup limit %s: asked for %llu, the kernel made it %llu", file,
                       (unsigned long long)value, (unsigned long long)got);
    return 0;
}

static int set_v2_limits(const struct cgroup_host *h, int dir, const struct cgroup_limits *l,
                         struct err *err)
{
    char text[48], back[48];
    int r = 0;
    if (h->enforced[CGROUP_MEMORY]) {
        r = cgroup_set_limit(dir, "memory.max", l->memory_bytes, err);
        if (r == 0)
            (void)fd_write_file_at(dir, "memory.swap.max", "0");
    }
    if (r == 0 && h->enforced[CGROUP_PIDS])
        r = cgroup_set_limit(dir, "pids.max", l->pids, err);
    if (r == 0 && h->enforced[CGROUP_CPU] && l->cpu_quota_us > 0) {
        (void)snprintf(text, sizeof(text), "%u %u", l->cpu_quota_us, PERIOD_US);
        int w = fd_write_file_at(dir, "cpu.max", text);
        if (w < 0 || fd_read_file_at(dir, "cpu.max", back, sizeof(back)) < 0 ||
            !str_starts(back, text))
            r = err_set(err, ERR_UNSUPPORTED, "cgroup limit cpu.max was not taken");
    }
    return r;
}

/* Absent without swap accounting, or without a network: then there is nothing to limit. */
static int set_if_there(int dirfd, const char *file, uint64_t value, struct err *err)
{
    return faccessat(dirfd, file, F_OK, 0) < 0 ? 0 : cgroup_set_limit(dirfd, file, value, err);
}

/* The period is the kernel's own choice, and spare groups have their quota: mostly there is nothing
 * to write, which would be a walk over all groups. */
static int set_if_other(int dirfd, const char *file, uint64_t value, struct err *err)
{
    uint64_t now = 0;
    bool same = fd_read_u64_at(dirfd, file, &now) >= 0 && now == value;
    return same ? 0 : cgroup_set_limit(dirfd, file, value, err);
}

static int set_v1_memory(int dirfd, uint64_t bytes, struct err *err)
{
    int r = cgroup_set_limit(dirfd, MEMORY_LIMIT_V1, bytes, err);
    if (r == 0)
        r = set_if_there(dirfd, MEMSW_LIMIT_V1, bytes, err);
    if (r == 0)
        r = set_if_there(dirfd, SOCKET_LIMIT_V1, cgroup_socket_bytes(bytes), err);
    return r;
}

static int set_v1_limits(const struct cgroup *g, const struct cgroup_limits *l, struct err *err)
{
    int r = 0;
    if (g->v1_fd[CGROUP_MEMORY] >= 0)
        r = set_v1_memory(g->v1_fd[CGROUP_MEMORY], l->memory_bytes, err);
    if (r == 0 && g->v1_fd[CGROUP_PIDS] >= 0)
        r = cgroup_set_limit(g->v1_fd[CGROUP_PIDS], "pids.max", l->pids, err);
    if (r == 0 && g->v1_fd[CGROUP_CPU] >= 0 && l->cpu_quota_us > 0) {
        r = set_if_other(g->v1_fd[CGROUP_CPU], "cpu.cfs_period_us", PERIOD_US, err);
        if (r == 0)
            r = set_if_other(g->v1_fd[CGROUP_CPU], "cpu.cfs_quota_us", l->cpu_quota_us, err);
    }
    return r;
}

static int set_groups(const struct cgroup_host *h, const struct cgroup *g,
                      const struct cgroup_limits *limits, struct err *err)
{
    int r = h->mode == INIT_CGROUP_V2 ? set_v2_limits(h, g->v2_fd, limits, err) : 0;
    return r < 0 ? r : set_v1_limits(g, limits, err);
}

static int create_v2(const struct cgroup_host *h, const char *name, uid_t uid, gid_t gid,
                     struct cgroup *g)
{
    static const char *const delegate[] = {".", "cgroup.procs", "cgroup.subtree_control"};
    if (h->v2_fd < 0)
        return 0;
    g->v2_fd = open_session_dir(h->v2_fd, name, true);
    if (g->v2_fd < 0)
        return g->v2_fd;
    if (h->mode == INIT_CGROUP_V2) {
        if (mkdirat(g->v2_fd, "init", 0755) < 0)
            return -errno;
        g->leaf_fd = openat(g->v2_fd, "init/cgroup.procs", O_WRONLY | O_CLOEXEC);
        if (g->leaf_fd < 0)
            return -errno;
    }
    for (size_t i = 0; i < ARRAY_SIZE(delegate); i++) {
        int r = chown_at(g->v2_fd, delegate[i], uid, gid);
        if (r < 0)
            return r;
    }
    return 0;
}

static int create_v1(const struct cgroup_host *h, const char *name, bool spare, uid_t uid,
                     gid_t gid, struct cgroup *g)
{
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        if (h->v1_fd[i] < 0)
            continue;
        bool taken = spare && renameat(h->v1_fd[i], SPARE, h->v1_fd[i], name) == 0;
        g->v1_fd[i] = open_session_dir(h->v1_fd[i], name, !taken);
        if (g->v1_fd[i] < 0)
            return g->v1_fd[i];
        g->tasks_fd[i] = openat(g->v1_fd[i], "tasks", O_WRONLY | O_CLOEXEC);
        if (g->tasks_fd[i] < 0)
            return -errno;
    }
    if (g->v1_fd[CGROUP_MEMORY] < 0)
        return 0;
    /* PID 1 makes child groups and listens for out-of-memory events; the limits above stay root's.
     */
    int r = chown_at(g->v1_fd[CGROUP_MEMORY], ".", uid, gid);
    return r < 0 ? r : chown_at(g->v1_fd[CGROUP_MEMORY], "cgroup.event_control", uid, gid);
}

int cgroup_create(const struct cgroup_host *h, const char *name, const struct cgroup_owner *owner,
                  struct cgroup *ret, struct err *err)
{
    *ret = (struct cgroup){
        .v2_fd = -1, .leaf_fd = -1, .v1_fd = {-1, -1, -1}, .tasks_fd = {-1, -1, -1}};
    int r = create_v2(h, name, owner->uid, owner->gid, ret);
    if (r == 0)
        return 0;
    r = err_sys(err, -r, "make cgroup '%s'", name);
    cgroup_close(ret);
    (void)cgroup_remove(h, name);
    return r;
}

int cgroup_limit(const struct cgroup_host *h, const char *name, const struct cgroup_limits *limits,
                 const struct cgroup_owner *owner, struct cgroup *g, struct err *err)
{
    int r = create_v1(h, name, limits->spare, owner->uid, owner->gid, g);
    if (r < 0)
        return err_sys(err, -r, "make cgroup '%s'", name);
    return set_groups(h, g, limits, err);
}

static int used_name(unsigned i, char ret[static 16])
{
    return str_fmt(ret, 16, USED "%u", i);
}

/* True when a session that has ended left nothing in the group, which then is as a new one: no
 * process, next to no memory, no limit. What cannot be reset are counters of which only the growth
 * is looked at. */
static bool renew_memory_group(int parent)
{
    /* clang-format off */
    static const struct { const char *file, *value; } fresh[] = {
        {MEMSW_LIMIT_V1, "-1"},
        {MEMORY_LIMIT_V1, "-1"},
        {SOCKET_LIMIT_V1, "-1"},
        {"memory.max_usage_in_bytes", "0"},
    };
    /* clang-format on */
    char task[8];
    uint64_t bytes = 0, sockets = 0;
    AUTO_CLOSE int dir = open_session_dir(parent, SPARE, false);
    if (dir < 0 || fd_read_file_at(dir, "tasks", task, sizeof(task)) != 0 ||
        fd_read_u64_at(dir, USAGE_V1, &bytes) < 0)
        return false;
    if (bytes > EMPTY_BYTES_MAX &&
        (fd_write_file_at(dir, "memory.force_empty", "0") < 0 ||
         fd_read_u64_at(dir, USAGE_V1, &bytes) < 0 || bytes > EMPTY_BYTES_MAX))
        return false;
    if (fd_read_u64_at(dir, "memory.kmem.tcp.usage_in_bytes", &sockets) >= 0 && sockets > 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(fresh); i++) {
        int r = fd_write_file_at(dir, fresh[i].file, fresh[i].value);
        if (r < 0 && r != -ENOENT)
            return false;
    }
    return chown_at(dir, ".", 0, 0) == 0 && chown_at(dir, "cgroup.event_control", 0, 0) == 0;
}

/* Makes a used memory group the spare one, if there is one that can be used again. */
static void reuse_memory_group(int parent)
{
    char used[16];
    for (unsigned i = 0; i < USED_MAX; i++) {
        if (used_name(i, used) < 0 || renameat(parent, used, parent, SPARE) < 0)
            continue;
        if (renew_memory_group(parent))
            return;
        /* What cannot go yet must not pass for a spare one. */
        if (unlinkat(parent, SPARE, AT_REMOVEDIR) < 0)
            (void)renameat(parent, SPARE, parent, used);
    }
}

/* When a memory group ends, the kernel visits two lists of every file system that is mounted
 * anywhere, while new file systems wait: 6 ms with 4,000 sessions. So the group of a session that
 * has ended is kept for one to come, without the groups that PID 1 may have made in it. False: it
 * has to be removed. */
static bool keep_memory_group(int parent, const char *name)
{
    char used[16], path[64];
    uint64_t bytes = 0;
    struct stat st;
    if (str_fmt(path, sizeof(path), "%s/" USAGE_V1, name) < 0 ||
        fd_read_u64_at(parent, path, &bytes) < 0 || bytes > USED_BYTES_MAX ||
        fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_nlink != 2)
        return false;
    for (unsigned i = 0; i < USED_MAX; i++)
        if (used_name(i, used) >= 0 && renameat(parent, name, parent, used) == 0)
            return true;
    return false;
}

/* The period is the kernel's own choice, which the limits of a session check. */
int cgroup_spare_make(const struct cgroup_host *h, uint32_t cpu_quota_us)
{
    char quota[16] = "-1";
    if (cpu_quota_us > 0)
        (void)snprintf(quota, sizeof(quota), "%u", cpu_quota_us);
    if (h->v1_fd[CGROUP_MEMORY] >= 0)
        reuse_memory_group(h->v1_fd[CGROUP_MEMORY]);
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        if (h->v1_fd[i] >= 0 && mkdirat(h->v1_fd[i], SPARE, 0755) < 0 && errno != EEXIST)
            return -errno;
    return h->v1_fd[CGROUP_CPU] < 0
               ? 0
               : fd_write_file_at(h->v1_fd[CGROUP_CPU], SPARE "/cpu.cfs_quota_us", quota);
}

void cgroup_spare_remove(const struct cgroup_host *h)
{
    char used[16];
    for (unsigned i = 0; i < USED_MAX && h->v1_fd[CGROUP_MEMORY] >= 0; i++)
        if (used_name(i, used) >= 0)
            (void)unlinkat(h->v1_fd[CGROUP_MEMORY], used, AT_REMOVEDIR);
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        if (h->v1_fd[i] >= 0)
            (void)unlinkat(h->v1_fd[i], SPARE, AT_REMOVEDIR);
}

static int open_existing(int parent, const char *name)
{
    return parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

void cgroup_close(struct cgroup *g)
{
    fd_close_many(&g->v2_fd, 1);
    fd_close_many(&g->leaf_fd, 1);
    fd_close_many(g->v1_fd, CGROUP_CONTROLLERS);
    fd_close_many(g->tasks_fd, CGROUP_CONTROLLERS);
}

int cgroup_kill(const struct cgroup_host *h, const char *name)
{
    char path[64];
    if (h->v2_fd < 0)
        return -EOPNOTSUPP;
    int r = str_fmt(path, sizeof(path), "%s/cgroup.kill", name);
    return r < 0 ? r : fd_write_file_at(h->v2_fd, path, "1");
}

int cgroup_freeze(const struct cgroup_host *h, const char *name, bool frozen)
{
    char path[64];
    if (h->v2_fd < 0)
        return -EOPNOTSUPP;
    int r = str_fmt(path, sizeof(path), "%s/cgroup.freeze", name);
    return r < 0 ? r : fd_write_file_at(h->v2_fd, path, frozen ? "1" : "0");
}

int cgroup_remove(const struct cgroup_host *h, const char *name)
{
    int r = 0;
    if (h->v2_fd >= 0) {
        /* Nearly all have this one, of their first command, and no other. */
        char first[64];
        if (str_fmt(first, sizeof(first), "%s/s0", name) >= 0)
            (void)unlinkat(h->v2_fd, first, AT_REMOVEDIR);
        r = remove_groups(h->v2_fd, name);
    }
    for (int i = 0; i < CGROUP_CONTROLLERS; i++) {
        if (h->v1_fd[i] < 0 ||
            (i == CGROUP_MEMORY && h->reuse && keep_memory_group(h->v1_fd[i], name)))
            continue;
        int e = remove_groups(h->v1_fd[i], name);
        r = e < 0 ? e : r;
    }
    return r;
}

static uint64_t read_or_zero(int dirfd, const char *file)
{
    uint64_t v = 0;
    return dirfd >= 0 && fd_read_u64_at(dirfd, file, &v) >= 0 ? v : 0;
}

static void read_groups(const struct cgroup_host *h, const struct cgroup *g,
                        struct cgroup_readback *ret)
{
    char text[64];
    *ret = (struct cgroup_readback){0};
    if (h->mode == INIT_CGROUP_V2) {
        ret->memory_max = read_or_zero(g->v2_fd, "memory.max");
        ret->memory_now = read_or_zero(g->v2_fd, "memory.current");
        ret->memory_peak = read_or_zero(g->v2_fd, "memory.peak");
        ret->pids_max = read_or_zero(g->v2_fd, "pids.max");
        ret->pids_now = read_or_zero(g->v2_fd, "pids.current");
        if (fd_read_file_at(g->v2_fd, "cpu.max", text, sizeof(text)) > 0) {
            char *space = strchr(text, ' ');
            if (space != NULL && text[0] != 'm') {
                *space = '\0';
                space[strcspn(space + 1, "\n") + 1] = '\0';
                (void)str_to_u64(text, &ret->cpu_quota_us);
                (void)str_to_u64(space + 1, &ret->cpu_period_us);
            }
        }
        return;
    }
    ret->memory_max = read_or_zero(g->v1_fd[CGROUP_MEMORY], MEMORY_LIMIT_V1);
    ret->socket_max = read_or_zero(g->v1_fd[CGROUP_MEMORY], SOCKET_LIMIT_V1);
    ret->memory_now = read_or_zero(g->v1_fd[CGROUP_MEMORY], USAGE_V1);
    ret->memory_peak = read_or_zero(g->v1_fd[CGROUP_MEMORY], "memory.max_usage_in_bytes");
    ret->pids_max = read_or_zero(g->v1_fd[CGROUP_PIDS], "pids.max");
    ret->pids_now = read_or_zero(g->v1_fd[CGROUP_PIDS], "pids.current");
    ret->cpu_quota_us = read_or_zero(g->v1_fd[CGROUP_CPU], "cpu.cfs_quota_us");
    ret->cpu_period_us = read_or_zero(g->v1_fd[CGROUP_CPU], "cpu.cfs_period_us");
}

static struct cgroup open_groups(const struct cgroup_host *h, const char *name)
{
    struct cgroup g = {.leaf_fd = -1, .tasks_fd = {-1, -1, -1}};
    g.v2_fd = open_existing(h->v2_fd, name);
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        g.v1_fd[i] = open_existing(h->v1_fd[i], name);
    return g;
}

void cgroup_read(const struct cgroup_host *h, const char *name, struct cgroup_readback *ret)
{
    struct cgroup g = open_groups(h, name);
    read_groups(h, &g, ret);
    cgroup_close(&g);
}

/* Takes memory back until the session has no more than that. v2 would kill for a lower maximum,
 * but never for a lower memory.high; v1 refuses a lower limit by itself. With swap accounting v1
 * wants the sum of memory and swap to be raised first, and lowered last. */
static int make_room(const struct cgroup_host *h, const struct cgroup *g, uint64_t bytes,
                     struct err *err)
{
    struct cgroup_readback now = {0};
    int memory = g->v1_fd[CGROUP_MEMORY], r = 0;
    read_groups(h, g, &now);
    if (memory >= 0 && bytes > now.memory_max)
        return set_if_there(memory, MEMSW_LIMIT_V1, bytes, err);
    if (now.memory_now <= bytes)
        return 0;
    if (memory >= 0)
        r = fd_set_u64_at(memory, MEMORY_LIMIT_V1, bytes, &(uint64_t){0});
    else if (h->mode == INIT_CGROUP_V2 && h->enforced[CGROUP_MEMORY])
        r = fd_set_u64_at(g->v2_fd, "memory.high", bytes, &(uint64_t){0});
    read_groups(h, g, &now);
    if (r < 0 && r != -EBUSY)
        return err_sys(err, -r, "lower the memory limit");
    if (now.memory_now <= bytes)
        return 0;
    return err_set(err, ERR_STATE,
                   "the session uses %llu MiB of memory, which the kernel cannot bring below %llu "
                   "MiB; nothing was changed: end something that runs in it, or choose a higher "
                   "limit",
                   (unsigned long long)(now.memory_now >> 20), (unsigned long long)(bytes >> 20));
}

int cgroup_change(const struct cgroup_host *h, const char *name, const struct cgroup_limits *limits,
                  struct err *err)
{
    struct cgroup g = open_groups(h, name);
    struct cgroup_readback now = {0};
    struct err ignored = {0};
    read_groups(h, &g, &now);
    const struct cgroup_limits before = {.memory_bytes = now.memory_max,
                                         .pids = (uint32_t)now.pids_max,
                                         .cpu_quota_us = (uint32_t)now.cpu_quota_us};
    int r = make_room(h, &g, limits->memory_bytes, err);
    if (r == 0)
        r = set_groups(h, &g, limits, err);
    if (r < 0 && make_room(h, &g, before.memory_bytes, &ignored) == 0)
        (void)set_groups(h, &g, &before, &ignored);
    if (h->mode == INIT_CGROUP_V2)
        (void)fd_write_file_at(g.v2_fd, "memory.high", "max");
    cgroup_close(&g);
    return r;
}

static void read_usage(int parent, const char *name, const char *file, uint64_t *ret)
{
    char path[64];
    if (parent >= 0 && str_fmt(path, sizeof(path), "%s/%s", name, file) >= 0)
        usage_number(parent, path, ret);
}

/* The v2 tree counts processor time whatever controllers it has. */
static void read_cpu(const struct cgroup_host *h, const char *name, uint64_t *ret)
{
    char path[64];
    uint64_t usec = 0;
    if (h->v2_fd >= 0 && str_fmt(path, sizeof(path), "%s/cpu.stat", name) >= 0 &&
        fd_read_counter_at(h->v2_fd, path, "usage_usec", &usec) == 0)
        *ret = usec * 1000;
    else
        read_usage(h->v1_fd[CGROUP_CPU], name, "cpuacct.usage", ret);
}

void cgroup_usage(const struct cgroup_host *h, const char *name, struct inside_usage *ret)
{
    const bool v2 = h->mode == INIT_CGROUP_V2;
    const int memory = v2 ? h->v2_fd : h->v1_fd[CGROUP_MEMORY];
    const int pids = v2 ? h->v2_fd : h->v1_fd[CGROUP_PIDS];
    read_cpu(h, name, &ret->cpu_ns);
    read_usage(memory, name, v2 ? "memory.current" : USAGE_V1, &ret->memory_bytes);
    read_usage(memory, name, v2 ? "memory.max" : MEMORY_LIMIT_V1, &ret->memory_max);
    read_usage(pids, name, "pids.current", &ret->pids);
    read_usage(pids, name, "pids.max", &ret->pids_max);
}
