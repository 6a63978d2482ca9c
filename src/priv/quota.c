/* SPDX-License-Identifier: Apache-2.0 */

/* The quota of a session's host directory as a limit of the kernel's.
 *
 * The directory gets a project of Box's own before the session is answered for, and a child of ours
 * puts what lies in it there, too. Where anything is in the way, the directory is counted as it
 * would be without us, and the receipt says why. At the end the limit goes; the project stays with
 * the files: it limits nothing by itself, and the next session moves them on into its own.
 *
 * Sessions that share a directory share its project, and the least of their limits holds for all:
 * a quota is what there may be at most, and no promise that there will be so much. */

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/quota.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/usage.h"
#include "inside/clone.h"
#include "priv/server.h"
#include "sandbox/host/children.h"
#include "sandbox/setup/mount.h"

/* Limits on a directory of the host that the kernel enforces, where its file system can: project
 * quotas of ext4 and XFS, the quota group of a Btrfs subvolume. Everything is done by descriptor,
 * and needs root. Nothing here turns quotas on: that is the administrator's to do.
 *
 * Project quotas count by an id that every file carries. Box has a range of ids of its own. A
 * directory that carries a foreign id is refused, and so is a subvolume with a limit. */

#define FSQUOTA_FIRST_ID 0x42000000U /* high: ids that people choose are small */
#define FSQUOTA_IDS (1U << 24)
#define FSQUOTA_OWN_IDS (1U << 12) /* of one boxd: instances on a host do not meet by chance */

#define ENTRIES_MAX 200000U
#define CPU_SECONDS 4 /* a busy machine is no reason to give up */
#define PASSES 3

#define BLOCK 512U /* what the calls count in, on every file system */

/* Project quotas. The calls have XFS's names and structures; the kernel serves them for ext4, too.
 * Linux before 5.14 has none that takes a descriptor, and a device found by name could be another:
 * there directories are counted. */
static int quota_call(int fd, unsigned call, uint64_t id, void *data)
{
    long r = syscall(SYS_quotactl_fd, fd, QCMD(call, PRJQUOTA), (uint32_t)id, data);
    return r < 0 ? -errno : 0;
}

static int find_project(int fd, struct fsquota *ret, struct err *err)
{
    struct fs_quota_statv state = {.qs_version = FS_QSTATV_VERSION1};
    struct fsxattr attr = {0};
    int r = quota_call(fd, Q_XGETQSTATV, 0, &state);
    if (r == -EPERM)
        return err_set(err, ERR_UNSUPPORTED, "boxd has no right to set quotas");
    if (r < 0 || !(state.qs_flags & FS_QUOTA_PDQ_ENFD) || !(state.qs_flags & FS_QUOTA_PDQ_ACCT))
        return err_set(err, ERR_UNSUPPORTED,
                       "its file system is not mounted with project quotas (prjquota)");
    if (ioctl(fd, FS_IOC_FSGETXATTR, &attr) < 0)
        return err_set(err, ERR_UNSUPPORTED, "its file system reports no project id (%s)",
                       err_errno_text(errno));
    *ret = (struct fsquota){FSQUOTA_PROJECT, attr.fsx_projid};
    return 0;
}

static int read_project(int fd, const struct fsquota *q, struct fsquota_use *ret)
{
    struct fs_disk_quota d = {0};
    int r = quota_call(fd, Q_XGETQUOTA, q->id, &d);
    if (r == -ENOENT) /* nothing was ever known of it */
        r = 0;
    *ret = (struct fsquota_use){.max_bytes = d.d_blk_hardlimit * BLOCK,
                                .max_inodes = d.d_ino_hardlimit,
                                .bytes = d.d_bcount * BLOCK,
                                .inodes = d.d_icount};
    return r;
}

static int limit_project(int fd, const struct fsquota *q, uint64_t bytes, uint64_t inodes)
{
    struct fs_disk_quota d = {.d_version = FS_DQUOT_VERSION,
                              .d_flags = FS_PROJ_QUOTA,
                              .d_fieldmask = FS_DQ_BHARD | FS_DQ_BSOFT | FS_DQ_IHARD | FS_DQ_ISOFT,
                              .d_id = (uint32_t)q->id,
                              .d_blk_hardlimit = bytes / BLOCK,
                              .d_ino_hardlimit = inodes};
    return quota_call(fd, Q_XSETQLIM, q->id, &d);
}

/* Btrfs. */

/* One item of the tree that holds quotas. -ENOENT: it is not there, or quotas were never on. */
static int btrfs_search(int fd, uint32_t type, uint64_t offset, void *ret, size_t size)
{
    struct btrfs_ioctl_search_args args = {.key = {.tree_id = BTRFS_QUOTA_TREE_OBJECTID,
                                                   .max_transid = UINT64_MAX,
                                                   .min_type = type,
                                                   .max_type = type,
                                                   .min_offset = offset,
                                                   .max_offset = offset,
                                                   .nr_items = 1}};
    struct btrfs_ioctl_search_header head;
    if (ioctl(fd, BTRFS_IOC_TREE_SEARCH, &args) < 0)
        return -errno;
    memcpy(&head, args.buf, sizeof(head));
    if (args.key.nr_items != 1 || head.type != type || head.offset != offset || head.len < size)
        return -ENOENT;
    memcpy(ret, args.buf + sizeof(head), size);
    return 0;
}

static int find_subvolume(int fd, struct fsquota *ret, struct err *err)
{
    struct btrfs_ioctl_ino_lookup_args at = {.objectid = BTRFS_FIRST_FREE_OBJECTID};
    struct btrfs_qgroup_status_item status = {0};
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_ino != BTRFS_FIRST_FREE_OBJECTID)
        return err_set(err, ERR_UNSUPPORTED,
                       "on Btrfs only a subvolume has a quota, and this directory is none");
    int r = btrfs_search(fd, BTRFS_QGROUP_STATUS_KEY, 0, &status,
                         offsetof(struct btrfs_qgroup_status_item, rescan));
    uint64_t flags = r == 0 ? le64toh(status.flags) : 0;
    if (!(flags & BTRFS_QGROUP_STATUS_FLAG_ON))
        return err_set(err, ERR_UNSUPPORTED,
                       "quotas are not on for its file system (btrfs quota enable)");
    if (flags & BTRFS_QGROUP_STATUS_FLAG_INCONSISTENT)
        return err_set(err, ERR_UNSUPPORTED,
                       "the quotas of its file system are not consistent (btrfs quota rescan)");
    if (ioctl(fd, BTRFS_IOC_INO_LOOKUP, &at) < 0)
        return err_set(err, ERR_UNSUPPORTED, "its file system does not report its subvolume");
    *ret = (struct fsquota){FSQUOTA_SUBVOLUME, at.treeid};
    return 0;
}

/* Both are of one Btrfs file system. */
static bool fsquota_same_volume(int fd, int other)
{
    struct btrfs_ioctl_fs_info_args one = {0}, two = {0};
    return ioctl(fd, BTRFS_IOC_FS_INFO, &one) == 0 && ioctl(other, BTRFS_IOC_FS_INFO, &two) == 0 &&
           memcmp(one.fsid, two.fsid, sizeof(one.fsid)) == 0;
}

static int read_subvolume(int fd, const struct fsquota *q, struct fsquota_use *ret)
{
    struct btrfs_qgroup_limit_item limit = {0};
    struct btrfs_qgroup_info_item info = {0};
    int r = btrfs_search(fd, BTRFS_QGROUP_INFO_KEY, q->id, &info, sizeof(info));
    if (r == 0)
        r = btrfs_search(fd, BTRFS_QGROUP_LIMIT_KEY, q->id, &limit, sizeof(limit));
    uint64_t flags = le64toh(limit.flags);
    *ret = (struct fsquota_use){.bytes = le64toh(info.rfer)};
    if (flags & BTRFS_QGROUP_LIMIT_MAX_RFER)
        ret->max_bytes = le64toh(limit.max_rfer);
    else if (flags & BTRFS_QGROUP_LIMIT_MAX_EXCL)
        ret->max_bytes = le64toh(limit.max_excl);
    return r;
}

static int limit_subvolume(int fd, const struct fsquota *q, uint64_t bytes)
{
    struct btrfs_ioctl_qgroup_limit_args args = {
        .qgroupid = q->id,
        .lim = {.flags = BTRFS_QGROUP_LIMIT_MAX_RFER, .max_rfer = bytes > 0 ? bytes : UINT64_MAX}};
    return ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &args) < 0 ? -errno : 0;
}

/* Both. */

/* Whether the kernel would enforce a limit on the directory `fd` (opened for reading). `ret` is
 * what it belongs to now; a project of id 0 is none. ERR_UNSUPPORTED says why not. */
static int fsquota_find(int fd, struct fsquota *ret, struct err *err)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) < 0)
        return err_sys(err, errno, "ask for its file system");
    if (fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC)
        return find_project(fd, ret, err);
    if (fs.f_type == BTRFS_SUPER_MAGIC)
        return find_subvolume(fd, ret, err);
    return err_set(err, ERR_UNSUPPORTED, "its file system is none of ext4, XFS and Btrfs");
}

/* Negative errno. */
static int fsquota_read(int fd, const struct fsquota *q, struct fsquota_use *ret)
{
    return q->kind == FSQUOTA_PROJECT ? read_project(fd, q, ret) : read_subvolume(fd, q, ret);
}

/* 0 removes a limit. Btrfs limits no inodes, and refuses the call itself in a subvolume that is
 * over its limit: there `fd` is a directory of another one (fsquota_same_volume()). Negative errno.
 */
static int fsquota_limit(int fd, const struct fsquota *q, uint64_t bytes, uint64_t inodes)
{
    return q->kind == FSQUOTA_PROJECT ? limit_project(fd, q, bytes, inodes)
                                      : limit_subvolume(fd, q, bytes);
}
/* An id of the range above. */
static bool fsquota_is_ours(const struct fsquota *q)
{
    return q->kind == FSQUOTA_PROJECT && q->id >= FSQUOTA_FIRST_ID &&
           q->id - FSQUOTA_FIRST_ID < FSQUOTA_IDS;
}

/* The first project of that instance that nothing belongs to, on the file system of `fd`. The
 * lowest, because XFS never gives back what it once stored about an id. */
static int fsquota_choose(int fd, const char *tag, struct fsquota *ret, struct err *err)
{
    uint64_t first =
        FSQUOTA_FIRST_ID + str_hash(tag) % (FSQUOTA_IDS / FSQUOTA_OWN_IDS) * FSQUOTA_OWN_IDS;
    for (uint64_t id = first; id < first + FSQUOTA_OWN_IDS; id++) {
        struct fsquota q = {FSQUOTA_PROJECT, id};
        struct fsquota_use use;
        int r = fsquota_read(fd, &q, &use);
        if (r < 0)
            return err_sys(err, -r, "read the quota of project %llu", (unsigned long long)id);
        if (use.max_bytes == 0 && use.max_inodes == 0 && use.bytes == 0 && use.inodes == 0) {
            *ret = q;
            return 0;
        }
    }
    return err_set(err, ERR_LIMIT, "none of boxd's %u projects is free on its file system",
                   FSQUOTA_OWN_IDS);
}

/* A project of ours that has no limit was left behind by a session that has ended. */
static bool may_take(int fd, const struct fsquota *from)
{
    struct fsquota_use use;
    return from->id == 0 || (fsquota_is_ours(from) && fsquota_read(fd, from, &use) == 0 &&
                             use.max_bytes == 0 && use.max_inodes == 0);
}

/* Puts a file or directory into a project. What is made in a directory belongs to its project.
 * -EUSERS: it is in another that is not ours, or that is in use. */
static int fsquota_put(int fd, const struct fsquota *q)
{
    struct fsxattr attr = {0};
    struct stat st;
    if (fstat(fd, &st) < 0 || ioctl(fd, FS_IOC_FSGETXATTR, &attr) < 0)
        return -errno;
    uint32_t inherit = S_ISDIR(st.st_mode) ? FS_XFLAG_PROJINHERIT : 0;
    if (attr.fsx_projid == q->id && (attr.fsx_xflags & inherit) == inherit)
        return 0;
    struct fsquota from = {FSQUOTA_PROJECT, attr.fsx_projid};
    if (from.id != q->id && !may_take(fd, &from))
        return -EUSERS;
    attr.fsx_projid = (uint32_t)q->id;
    attr.fsx_xflags |= inherit;
    return ioctl(fd, FS_IOC_FSSETXATTR, &attr) < 0 ? -errno : 0;
}

struct cover {
    const struct fsquota *quota;
    const uid_t *owner; /* NULL: any user */
    dev_t dev;
    const char *why; /* it cannot be covered */
};

static int cover_refuse(struct cover *c, const char *why)
{
    c->why = why;
    return -EUSERS;
}

static int cover_judge(struct cover *c, int fd, const struct stat *st)
{
    if (st->st_dev != c->dev)
        return cover_refuse(c, "it holds further subvolumes");
    if (c->owner != NULL && st->st_uid != *c->owner)
        return cover_refuse(c, "it holds files of other users");
    if (c->quota->kind != FSQUOTA_PROJECT)
        return 0;
    int r = fsquota_put(fd, c->quota);
    return r == -EUSERS
               ? cover_refuse(c, "it holds files of another project, or another session's limit")
               : r;
}

/* Links, pipes, sockets and devices cannot be opened for this; they take no room worth counting. A
 * name may have come to mean something else since it was read: no link is followed, no device
 * opened, and no pipe waited for. */
static int cover_visit(void *arg, int dir_fd, const char *name, const struct stat *st)
{
    struct cover *c = arg;
    struct stat now;
    if (name != NULL && !S_ISREG(st->st_mode))
        return 0;
    if (name == NULL)
        return fstat(dir_fd, &now) < 0 ? -errno : cover_judge(c, dir_fd, &now);
    AUTO_CLOSE int fd = path_open_beneath(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd == -ENOENT || fd == -ELOOP || fd == -ENXIO)
        return 0;
    if (fd < 0 || fstat(fd, &now) < 0)
        return fd < 0 ? fd : -errno;
    return S_ISREG(now.st_mode) ? cover_judge(c, fd, &now) : 0;
}

static bool out_of_time(void)
{
    struct timespec used = {0};
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0 && used.tv_sec >= CPU_SECONDS;
}

/* 0: everything was met; 1: some of it was moved meanwhile. */
static int cover_pass(struct cover *c, int fd, struct err *err)
{
    AUTO(usage_walk) struct usage_walk *w = usage_walk_new(fd, ENTRIES_MAX);
    int r;
    usage_walk_visit(w, cover_visit, c);
    while ((r = usage_walk_step(w, USAGE_STEP)) > 0)
        if (out_of_time())
            return err_set(err, ERR_LIMIT, "looking at all of its files takes too long");
    const struct usage *found = usage_walk_result(w);
    if (c->why != NULL)
        return err_set(err, ERR_CONFLICT, "%s", c->why);
    if (r < 0)
        return err_sys(err, -r, "look at all of its files");
    if (found->too_many)
        return err_set(err, ERR_LIMIT, "it holds more than %u files", ENTRIES_MAX);
    if (found->unreadable > 0)
        return err_set(err, ERR_DENIED, "some of its directories cannot be read");
    return found->gone > 0;
}

/* Sees to it that all that lies beneath the directory `fd` falls under the limit. `fd` must be in a
 * mount of its own that has nothing mounted in it and opens no devices. With `owner` everything has
 * to be that user's. Takes as long as it takes: for a process of its own.
 *
 * A directory is in the project before it is read, and the kernel lets nothing of another project
 * be moved or linked into it: what was not met yet can only be moved to where it will be. But a
 * directory that was met may be moved with what it holds, so that is looked for again. */
static int fsquota_cover(int fd, const struct fsquota *q, const uid_t *owner, struct err *err)
{
    struct cover c = {.quota = q, .owner = owner};
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at it");
    c.dev = st.st_dev;
    int r = 1;
    for (int i = 0; i < PASSES && r > 0; i++)
        r = cover_pass(&c, fd, err);
    return r > 0 ? err_set(err, ERR_CONFLICT, "its directories are being moved about") : r;
}

#define RECORDS "quotas"
#define RECORDS_MAX 65536U
#define WALL_SECONDS 20U
#define RESULT_FD 3
#define TREE_FD 4

/* Records: what has a limit, so that the next box-priv removes the limit if this one is killed. A
 * file each, named by id and device, with the path in it. They are root's: boxd, whose directory
 * holds them, cannot make one. */

static int open_records(const struct launch_host *h, bool make)
{
    struct stat st;
    AUTO_CLOSE int fd = -1;
    if (make)
        fd = path_make_dir_at(h->state_fd, RECORDS, 0700);
    else
        fd = openat(h->state_fd, RECORDS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return make ? fd : -errno;
    if (fstat(fd, &st) < 0 || st.st_uid != 0 || (st.st_mode & 022) != 0)
        return -EPERM;
    return TAKE_FD(fd);
}

static void record_name(const struct priv_quota *q, char ret[static 64])
{
    (void)snprintf(ret, 64, "%llu-%llu", (unsigned long long)q->of.id, (unsigned long long)q->dev);
}

static int record_write(const struct launch_host *h, const struct priv_quota *q, int source,
                        struct err *err)
{
    char name[64], link[32], path[PATH_MAX];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", source);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    AUTO_CLOSE int dir = open_records(h, true);
    if (n <= 0 || dir < 0)
        return err_sys(err, n <= 0 ? errno : -dir, "note its limit in the state directory");
    record_name(q, name);
    AUTO_CLOSE int fd =
        openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, path, (size_t)n) != n)
        return err_sys(err, errno, "note its limit in the state directory");
    return 0;
}

static void record_forget(const struct launch_host *h, const struct priv_quota *q)
{
    char name[64];
    AUTO_CLOSE int dir = open_records(h, false);
    if (dir < 0)
        return;
    record_name(q, name);
    (void)unlinkat(dir, name, 0);
    (void)unlinkat(h->state_fd, RECORDS, AT_REMOVEDIR); /* the last one */
}

/* The directory, which still belongs there, or what is left above it: of a project all that counts
 * is the file system. Devices may have other numbers after a start of the machine. */
static int open_limited(const struct launch_host *h, char *path, const struct priv_quota *was,
                        struct fsquota *ret)
{
    bool whole = true;
    for (char *end = path + strlen(path); end > path; end = strrchr(path, '/'), whole = false) {
        struct err ignored = {0};
        struct stat st;
        *end = '\0';
        AUTO_CLOSE int at = launch_open_outer(h, path[0] != '\0' ? path : "/");
        AUTO_CLOSE int fd = at < 0 ? -1 : openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0 || fsquota_find(fd, ret, &ignored) < 0)
            continue;
        if ((whole && ret->id == was->of.id) ||
            (ret->kind == FSQUOTA_PROJECT && st.st_dev == was->dev))
            return TAKE_FD(fd);
    }
    return -ENOENT;
}

/* True: the record is not needed any more. */
static bool remove_limit(const struct launch_host *h, int dir, const char *name)
{
    char text[64], path[PATH_MAX + 1] = "";
    struct priv_quota was = {0};
    struct fsquota of = {0};
    uint64_t dev = 0;
    char *dash = str_copy(text, sizeof(text), name) < 0 ? NULL : strchr(text, '-');
    if (dash == NULL)
        return true;
    *dash = '\0';
    if (str_to_u64(text, &was.of.id) < 0 || str_to_u64(dash + 1, &dev) < 0 ||
        fd_read_file_at(dir, name, path, sizeof(path)) <= 0 || path[0] != '/')
        return true;
    was.dev = (dev_t)dev;
    AUTO_CLOSE int fd = open_limited(h, path, &was, &of);
    if (fd < 0)
        return false; /* it is not there now, and may be again */
    of.id = was.of.id;
    if (of.kind == FSQUOTA_PROJECT)
        return !fsquota_is_ours(&of) || fsquota_limit(fd, &of, 0, 0) == 0;
    AUTO_CLOSE int above = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return above >= 0 && fsquota_same_volume(fd, above) && fsquota_limit(above, &of, 0, 0) == 0;
}

void priv_quota_sweep(const struct launch_host *h)
{
    int fd = h->rootful ? open_records(h, false) : -1;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        fd_close_many(&fd, fd >= 0);
        return;
    }
    const struct dirent *e;
    for (unsigned n = 0; n < RECORDS_MAX && (e = readdir(dir)) != NULL; n++)
        if (e->d_name[0] != '.' && remove_limit(h, fd, e->d_name))
            (void)unlinkat(fd, e->d_name, 0);
    (void)closedir(dir);
    (void)unlinkat(h->state_fd, RECORDS, AT_REMOVEDIR);
}

/* Limits. */

static bool same_limit(const struct priv_quota *a, const struct priv_quota *b)
{
    return a->of.kind == b->of.kind && a->of.id == b->of.id && a->dev == b->dev;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* The least of what all its sessions asked for; none when there is none left. */
static int quota_impose(const struct priv *p, const struct priv_quota *q)
{
    uint64_t bytes = 0, inodes = 0;
    for (size_t i = 0; i < p->n_sessions; i++) {
        const struct priv_quota *other = &p->sessions[i]->quota;
        if (!same_limit(q, other))
            continue;
        bytes = least(bytes, other->bytes);
        inodes = least(inodes, other->inodes);
    }
    int r = fsquota_limit(q->above_fd >= 0 ? q->above_fd : q->fd, &q->of, bytes, inodes);
    if (r == 0 && bytes == 0)
        record_forget(p->host, q);
    return r;
}

/* It was never limited, or is no more. */
static void quota_let_go(struct priv_session *s)
{
    struct priv_quota was = s->quota;
    s->quota.of.kind = FSQUOTA_NONE;
    if (was.of.kind != FSQUOTA_NONE)
        (void)quota_impose(s->priv, &was);
    fd_close_many(&s->quota.fd, 1);
    fd_close_many(&s->quota.above_fd, 1);
}

static void only_count(struct priv_session *s, const struct err *why)
{
    (void)snprintf(s->quota.why, sizeof(s->quota.why), "%.*s", (int)sizeof(s->quota.why) - 1,
                   why->msg);
    quota_let_go(s);
}

/* In a mount of our own: nothing is mounted in it that would hide what the session sees, no device
 * can be opened through it, and the host's own mount is not busy for it. */
static int open_copy(const struct launch_host *h, int source, struct err *err)
{
    AUTO_CLOSE int copy = launch_clone_allowed(h, source, 0);
    int r = copy < 0
                ? copy
                : mount_set(copy, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, -1, 0);
    AUTO_CLOSE int fd = r < 0 ? -1 : openat(copy, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, LAUNCH_LASTING_FDS);
    return high < 0 ? err_sys(err, r < 0 ? -r : errno, "open it") : high;
}

static int open_workspace(const struct launch_host *h, int source, struct priv_quota *q,
                          struct err *err)
{
    struct stat st;
    q->fd = open_copy(h, source, err);
    if (q->fd < 0 || fstat(q->fd, &st) < 0)
        return q->fd < 0 ? q->fd : err_sys(err, errno, "look at it");
    q->dev = st.st_dev;
    q->ino = st.st_ino;
    q->uid = st.st_uid;
    return 0;
}

static int open_above(const struct launch_host *h, int source, struct priv_quota *q,
                      struct err *err)
{
    if (q->of.kind != FSQUOTA_SUBVOLUME)
        return 0;
    AUTO_CLOSE int up = openat(source, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    q->above_fd = up < 0 ? err_sys(err, errno, "open what holds it") : open_copy(h, up, err);
    if (q->above_fd >= 0 && !fsquota_same_volume(q->fd, q->above_fd)) {
        fd_close_many(&q->above_fd, 1);
        return err_set(err, ERR_UNSUPPORTED, "its subvolume is mounted by itself");
    }
    return q->above_fd < 0 ? q->above_fd : 0;
}

static bool is_shared(const struct priv_session *s, const struct fsquota *of)
{
    const struct priv *p = s->priv;
    for (size_t i = 0; i < p->n_sessions; i++) {
        const struct priv_quota *q = &p->sessions[i]->quota;
        if (p->sessions[i] != s && q->of.kind == of->kind && q->of.id == of->id &&
            q->dev == s->quota.dev && q->ino == s->quota.ino)
            return true;
    }
    return false;
}

/* What this box-priv has not set stays as it is: an administrator's project or limit, and a limit
 * of another session's directory around this one, or of another boxd. */
static int quota_choose(struct priv_session *s, struct err *err)
{
    struct priv_quota *q = &s->quota;
    struct fsquota of = {0};
    struct fsquota_use use = {0};
    int r = fsquota_find(q->fd, &of, err);
    if (r < 0)
        return r;
    bool project = of.kind == FSQUOTA_PROJECT;
    if (project && of.id != 0 && !fsquota_is_ours(&of))
        return err_set(err, ERR_CONFLICT, "it has project id %llu, which is not one of Box's",
                       (unsigned long long)of.id);
    if (is_shared(s, &of)) {
        q->of = of;
        return 0;
    }
    if (!project || of.id != 0)
        r = fsquota_read(q->fd, &of, &use);
    if (r < 0)
        return err_sys(err, -r, "read its quota");
    if (use.max_bytes != 0 || use.max_inodes != 0)
        return err_set(err, ERR_CONFLICT, "it falls under a limit already");
    if (project)
        return fsquota_choose(q->fd, s->priv->host->tag, &q->of, err);
    q->of = of;
    return 0;
}

/* The child that puts everything into the project. */

static _Noreturn void cover_child(const struct priv_quota *q, const uid_t *owner, int result_fd)
{
    struct err err = {0};
    int result = fcntl(result_fd, F_DUPFD_CLOEXEC, TREE_FD + 1);
    int tree = fcntl(q->fd, F_DUPFD_CLOEXEC, TREE_FD + 1);
    if (result < 0 || tree < 0 || dup3(result, RESULT_FD, O_CLOEXEC) < 0 ||
        dup3(tree, TREE_FD, O_CLOEXEC) < 0 || syscall(SYS_close_range, TREE_FD + 1, ~0U, 0) < 0)
        child_exit(126);
    (void)alarm(WALL_SECONDS);
    (void)fsquota_cover(TREE_FD, &q->of, owner, &err);
    child_exit(write(RESULT_FD, &err, sizeof(err)) != sizeof(err));
}

static void stop_cover(struct priv_quota *q)
{
    loop_io_stop(&q->io);
    if (q->pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, q->pidfd, SIGKILL, NULL, 0);
    fd_close_many(&q->pidfd, 1);
    fd_close_many(&q->result_fd, 1);
}

static void on_covered(struct loop_io *io, uint32_t events)
{
    struct priv_session *s = container_of(io, struct priv_session, quota.io);
    struct err why = {0};
    if (read(s->quota.result_fd, &why, sizeof(why)) != sizeof(why))
        (void)err_set(&why, ERR_LIMIT, "looking at all of its files takes too long");
    why.msg[sizeof(why.msg) - 1] = '\0';
    stop_cover(&s->quota);
    if (why.code != ERR_NONE)
        only_count(s, &why);
    if (s->started && s->launch.state == LAUNCH_LIVE)
        priv_started(s); /* else it has died meanwhile, and that is told when it is gone */
}

static int start_cover(struct priv_session *s, const uid_t *owner, struct err *err)
{
    struct priv_quota *q = &s->quota;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, errno, "pipe");
    pid_t pid = clone_process(CLONE_CLEAR_SIGHAND, -1, &q->pidfd);
    if (pid == 0)
        cover_child(q, owner, fds[1]);
    children_add(pid);
    (void)close(fds[1]);
    q->result_fd = fds[0];
    if (pid > 0 && loop_io_start(s->priv->loop, &q->io, q->result_fd, EPOLLIN, on_covered) == 0)
        return 0;
    if (pid < 0)
        q->pidfd = -1;
    stop_cover(q);
    return err_set(err, ERR_LIMIT, "no process left to look at its files");
}

/* The limit holds for every user that writes there. A caller that may only do what one user can
 * sets no limits on others. */
static const uid_t *owner_of(const struct priv_quota *q, const struct plan *plan, bool *ret_denied)
{
    if (!(plan->flags & PLAN_AS_CALLER))
        return NULL;
    *ret_denied = q->uid != plan->as_uid;
    return &plan->as_uid;
}

static int quota_take(struct priv_session *s, const struct plan *plan, int source, struct err *err)
{
    struct priv_quota *q = &s->quota;
    bool denied = false;
    int r = open_workspace(s->priv->host, source, q, err);
    if (r < 0)
        return r;
    const uid_t *owner = owner_of(q, plan, &denied);
    if (denied)
        return err_set(err, ERR_DENIED, "it does not belong to uid %u", plan->as_uid);
    r = quota_choose(s, err);
    if (r == 0)
        r = open_above(s->priv->host, source, q, err);
    if (r == 0)
        r = record_write(s->priv->host, q, source, err);
    if (r < 0)
        return r;
    r = quota_impose(s->priv, q);
    if (r == 0 && q->of.kind == FSQUOTA_PROJECT)
        r = fsquota_put(q->fd, &q->of);
    return r < 0 ? err_sys(err, -r, "set its limit") : start_cover(s, owner, err);
}

void priv_quota_start(struct priv_session *s, const struct plan *plan)
{
    struct err why = {0};
    AUTO_CLOSE int source = TAKE_FD(s->launch.workspace_fd);
    if (source < 0)
        return;
    s->quota.bytes = plan->quota_bytes;
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].mode == PLAN_BIND_DIR && plan->ops[i].kind == PLAN_OP_BIND &&
            plan->ops[i].entries > 0)
            s->quota.inodes = (uint64_t)plan->ops[i].entries + 1; /* and the directory itself */
    if (quota_take(s, plan, source, &why) < 0)
        only_count(s, &why);
}

void priv_quota_end(struct priv_session *s)
{
    stop_cover(&s->quota);
    quota_let_go(s);
}

/* Asked for every time: an administrator may have switched quotas off, or moved the directory into
 * another project. */
bool priv_quota_holds(const struct priv_session *s, struct fsquota_use *ret, struct err *why)
{
    const struct priv_quota *q = &s->quota;
    struct fsquota now = {0};
    if (q->of.kind == FSQUOTA_NONE) {
        (void)err_set(why, ERR_UNSUPPORTED, "%s", q->why);
        return false;
    }
    if (fsquota_find(q->fd, &now, why) < 0)
        return false;
    int r = fsquota_read(q->fd, &q->of, ret);
    if (r == 0 && now.id == q->of.id && ret->max_bytes > 0 && ret->max_bytes <= q->bytes)
        return true;
    (void)err_set(why, ERR_STATE, "another program has changed its project or its limit");
    return false;
}

int priv_on_quota(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct priv_session *s = priv_by_request(p, data, len, err);
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    struct fsquota_use use = {0};
    struct err why = {0};
    if (s == NULL)
        return -ENOENT;
    struct priv_limit *out = &reply.limit;
    if (priv_quota_holds(s, &use, &why)) {
        out->kind = s->quota.of.kind;
        out->id = s->quota.of.id;
        out->max_bytes = use.max_bytes;
        out->max_inodes = use.max_inodes;
        out->bytes = use.bytes;
        out->inodes = use.inodes;
    }
    (void)snprintf(out->why, sizeof(out->why), "%.*s", (int)sizeof(out->why) - 1, why.msg);
    priv_answer(p, &reply, NULL, 0);
    return 0;
}
