/* SPDX-License-Identifier: Apache-2.0 */

/* Sets, reads and removes limits of file systems: project quotas of ext4 and XFS, qgroups of Btrfs.
 */

#include "sandbox/quota/fsquota.h"

#include <endian.h>
#include <errno.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/quota.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/compat.h"
#include "base/err.h"
#include "base/str.h"

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
        return err_set(err, ERR_UNSUPPORTED, "its file system tells no project (%s)",
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

bool fsquota_is_ours(const struct fsquota *q)
{
    return q->kind == FSQUOTA_PROJECT && q->id >= FSQUOTA_FIRST_ID &&
           q->id - FSQUOTA_FIRST_ID < FSQUOTA_IDS;
}

/* The lowest, because XFS never gives back what it once stored about an id. */
int fsquota_choose(int fd, const char *tag, struct fsquota *ret, struct err *err)
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

int fsquota_put(int fd, const struct fsquota *q)
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

/* Btrfs. */

/* One item of the tree that holds quotas. -ENOENT: it is not there, or quotas were never on. */
static int search(int fd, uint32_t type, uint64_t offset, void *ret, size_t size)
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
    int r = search(fd, BTRFS_QGROUP_STATUS_KEY, 0, &status,
                   offsetof(struct btrfs_qgroup_status_item, rescan));
    uint64_t flags = r == 0 ? le64toh(status.flags) : 0;
    if (!(flags & BTRFS_QGROUP_STATUS_FLAG_ON))
        return err_set(err, ERR_UNSUPPORTED,
                       "quotas are not on for its file system (btrfs quota enable)");
    if (flags & BTRFS_QGROUP_STATUS_FLAG_INCONSISTENT)
        return err_set(err, ERR_UNSUPPORTED,
                       "the quotas of its file system are not consistent (btrfs quota rescan)");
    if (ioctl(fd, BTRFS_IOC_INO_LOOKUP, &at) < 0)
        return err_set(err, ERR_UNSUPPORTED, "its file system does not tell which subvolume it is");
    *ret = (struct fsquota){FSQUOTA_SUBVOLUME, at.treeid};
    return 0;
}

bool fsquota_same_volume(int fd, int other)
{
    struct btrfs_ioctl_fs_info_args one = {0}, two = {0};
    return ioctl(fd, BTRFS_IOC_FS_INFO, &one) == 0 && ioctl(other, BTRFS_IOC_FS_INFO, &two) == 0 &&
           memcmp(one.fsid, two.fsid, sizeof(one.fsid)) == 0;
}

static int read_subvolume(int fd, const struct fsquota *q, struct fsquota_use *ret)
{
    struct btrfs_qgroup_limit_item limit = {0};
    struct btrfs_qgroup_info_item info = {0};
    int r = search(fd, BTRFS_QGROUP_INFO_KEY, q->id, &info, sizeof(info));
    if (r == 0)
        r = search(fd, BTRFS_QGROUP_LIMIT_KEY, q->id, &limit, sizeof(limit));
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

int fsquota_find(int fd, struct fsquota *ret, struct err *err)
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

int fsquota_read(int fd, const struct fsquota *q, struct fsquota_use *ret)
{
    return q->kind == FSQUOTA_PROJECT ? read_project(fd, q, ret) : read_subvolume(fd, q, ret);
}

int fsquota_limit(int fd, const struct fsquota *q, uint64_t bytes, uint64_t inodes)
{
    return q->kind == FSQUOTA_PROJECT ? limit_project(fd, q, bytes, inodes)
                                      : limit_subvolume(fd, q, bytes);
}
