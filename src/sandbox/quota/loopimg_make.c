/* SPDX-License-Identifier: Apache-2.0 */

/* Making images: a sparse template per size by mkfs.ext4, then cheap copies of it. */

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/quota/loopimg.h"
#include "sandbox/quota/loopimg_internal.h"

#define TEMPLATE_PREFIX "ext4-"
#define TEMPLATES_MAX 64
#define MKFS_TIMEOUT_MS 60000
#define RESERVE_MAX (1ULL << 30)
#define COPY_CHUNK (64 * 1024)

/* ext4 on disk, as in the kernel's Documentation/filesystems/ext4. All little-endian. */
#define EXT4_INODE_SIZE 256
#define EXT4_RESERVED_INODES 11 /* the root directory and ten that cannot be used */
#define EXT4_SUPER_OFFSET 1024
#define EXT4_SUPER_MAGIC_AT 0x38
#define EXT4_SUPER_INODE_SIZE_AT 0x58
#define EXT4_GROUP_TABLE_AT 0x08 /* bg_inode_table_lo of the first group descriptor */
#define EXT4_ROOT_INODE 2
#define EXT4_INODE_MODE_AT 0x00
#define EXT4_INODE_UID_AT 0x02
#define EXT4_INODE_GID_AT 0x18
#define EXT4_INODE_UID_HIGH_AT 0x78
#define EXT4_INODE_GID_HIGH_AT 0x7a

/* Named one by one, so that an image does not depend on the host's mke2fs.conf. There is no
 * metadata_csum, because the owner of the root directory is patched into each copy. */
#define MKFS_FEATURES                                                                              \
    ("none,ext_attr,dir_index,filetype,sparse_super,large_file,huge_file,extent,flex_bg,"          \
     "uninit_bg,dir_nlink,extra_isize,64bit")

struct geometry {
    uint64_t bytes;
    uint64_t inodes;
};

static int geometry_of(const struct loopimg_spec *spec, struct geometry *ret, struct err *err)
{
    struct geometry g = {.bytes = spec->bytes & ~(uint64_t)(LOOPIMG_BLOCK - 1)};

    if (g.bytes < LOOPIMG_BYTES_MIN)
        return err_set(err, ERR_INVALID, "quota: %" PRIu64 " bytes is below the minimum of %llu",
                       spec->bytes, LOOPIMG_BYTES_MIN);
    if (g.bytes > LOOPIMG_BYTES_MAX)
        return err_set(err, ERR_INVALID, "quota: %" PRIu64 " bytes is above the maximum of %llu",
                       spec->bytes, LOOPIMG_BYTES_MAX);
    g.inodes = spec->inodes != 0 ? spec->inodes : g.bytes / 16384;
    /* The table of inodes is part of the image: leave at least half of it for files. */
    if (g.inodes > g.bytes / 2 / EXT4_INODE_SIZE || g.inodes > UINT32_MAX - EXT4_RESERVED_INODES)
        return err_set(err, ERR_INVALID,
                       "quota: %" PRIu64 " inodes do not fit in %" PRIu64 " bytes", g.inodes,
                       g.bytes);
    g.inodes += EXT4_RESERVED_INODES;
    *ret = g;
    return 0;
}

/* A session is promised its bytes, so the host must have them, with something left for itself.
 * Being root we could take the blocks reserved for root too; f_bavail keeps us from that. */
static int admit(int dirfd, uint64_t bytes, struct err *err)
{
    struct statfs st;

    if (fstatfs(dirfd, &st) < 0)
        return err_sys(err, errno, "quota: fstatfs");
    uint64_t total = (uint64_t)st.f_blocks * (uint64_t)st.f_bsize;
    uint64_t available = (uint64_t)st.f_bavail * (uint64_t)st.f_bsize;
    uint64_t reserve = total / 20 < RESERVE_MAX ? total / 20 : RESERVE_MAX;
    if (available < bytes || available - bytes < reserve)
        return err_set(err, ERR_LIMIT,
                       "quota: the host has %" PRIu64 " MiB free, which is not enough for %" PRIu64
                       " MiB and the %" PRIu64 " MiB it keeps for itself; ask for a smaller quota "
                       "or free disk space",
                       available >> 20, bytes >> 20, reserve >> 20);
    return 0;
}

/* Which sizes are asked for is up to the callers of the daemon, so templates must not pile up. */
static int evict_oldest(int template_dirfd, struct err *err)
{
    char oldest[64] = "";
    struct timespec oldest_time = {0};
    unsigned count = 0;

    int fd = openat(template_dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "quota: open the template directory");
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return err_sys(err, errno, "quota: read the template directory");
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        struct stat st;

        if (!str_starts(e->d_name, TEMPLATE_PREFIX) ||
            fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        count++;
        if (oldest[0] != '\0' &&
            (st.st_mtim.tv_sec > oldest_time.tv_sec || (st.st_mtim.tv_sec == oldest_time.tv_sec &&
                                                        st.st_mtim.tv_nsec >= oldest_time.tv_nsec)))
            continue;
        if (str_copy(oldest, sizeof(oldest), e->d_name) == 0)
            oldest_time = st.st_mtim;
    }
    (void)closedir(dir);
    if (count >= TEMPLATES_MAX)
        (void)unlinkat(template_dirfd, oldest, 0);
    return 0;
}

/* An empty workspace should look empty. */
static int template_tidy(int fd, struct err *err)
{
    AUTO_CLOSE int mnt = -1;
    int r = loopimg_mount_fd(fd, &mnt, err);
    if (r < 0)
        return r;
    if (unlinkat(mnt, "lost+found", AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_sys(err, errno, "quota: tidy the template");
    return 0;
}

static int template_fill(int fd, const struct geometry *g, struct err *err)
{
    char block[16], inode[16], inodes[24];
    const char *const argv[] = {"mkfs.ext4",
                                "-q",
                                "-F",
                                "-b",
                                block,
                                "-I",
                                inode,
                                "-m",
                                "0",
                                "-N",
                                inodes,
                                "-O",
                                MKFS_FEATURES,
                                "-E",
                                "lazy_itable_init=1,nodiscard,root_owner=0:0",
                                "/proc/self/fd/0",
                                NULL};
    int r;

    (void)str_fmt(block, sizeof(block), "%d", LOOPIMG_BLOCK);
    (void)str_fmt(inode, sizeof(inode), "%d", EXT4_INODE_SIZE);
    (void)str_fmt(inodes, sizeof(inodes), "%" PRIu64, g->inodes);
    if (ftruncate(fd, (off_t)g->bytes) < 0)
        return err_sys(err, errno, "quota: template of %" PRIu64 " bytes", g->bytes);
    r = hostcmd_wait(argv, fd, MKFS_TIMEOUT_MS, err);
    if (r < 0)
        return err_wrap(err, "quota");
    return template_tidy(fd, err);
}

/* Built under another name and renamed when complete: a template is whole or absent. */
static int template_make(int template_dirfd, const char *name, const struct geometry *g,
                         struct err *err)
{
    static const char temporary[] = "new-ext4";
    int r = evict_oldest(template_dirfd, err);
    if (r < 0)
        return r;
    if (unlinkat(template_dirfd, temporary, 0) < 0 && errno != ENOENT)
        return err_sys(err, errno, "quota: remove a stale template");
    AUTO_CLOSE int fd =
        openat(template_dirfd, temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(err, errno, "quota: make a template");
    r = template_fill(fd, g, err);
    if (r == 0 && renameat(template_dirfd, temporary, template_dirfd, name) < 0)
        r = err_sys(err, errno, "quota: keep template '%s'", name);
    if (r < 0) {
        (void)unlinkat(template_dirfd, temporary, 0);
        return r;
    }
    return TAKE_FD(fd);
}

static void template_name(const struct geometry *g, char *ret, size_t size)
{
    (void)str_fmt(ret, size, TEMPLATE_PREFIX "%" PRIu64 "-%" PRIu64, g->bytes, g->inodes);
}

static int template_open(int template_dirfd, const struct geometry *g, struct err *err)
{
    char name[64];
    struct stat st;

    template_name(g, name, sizeof(name));
    AUTO_CLOSE int fd = openat(template_dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        (uint64_t)st.st_size == g->bytes)
        return TAKE_FD(fd);
    (void)path_remove_tree_at(template_dirfd, name); /* whatever it is, it is not ours */
    return template_make(template_dirfd, name, g, err);
}

static bool all_zero(const char *p, size_t len)
{
    return p[0] == 0 && memcmp(p, p + 1, len - 1) == 0;
}

/* Copies [from, to) block by block, leaving out blocks of zeroes: the new image reads as zeroes
 * already. Not copy_file_range: where that shares blocks with the template, the first write to each
 * would need space that nobody reserved. */
static int copy_extent(int src, int dst, off_t from, off_t to)
{
    char chunk[COPY_CHUNK];

    while (from < to) {
        size_t want = to - from < COPY_CHUNK ? (size_t)(to - from) : COPY_CHUNK;
        ssize_t n = pread(src, chunk, want, from);

        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        for (ssize_t at = 0; at < n; at += LOOPIMG_BLOCK) {
            size_t len = n - at < LOOPIMG_BLOCK ? (size_t)(n - at) : LOOPIMG_BLOCK;

            if (!all_zero(chunk + at, len) &&
                pwrite(dst, chunk + at, len, from + at) != (ssize_t)len)
                return -EIO;
        }
        from += n;
    }
    return 0;
}

static int copy_data(int src, int dst, uint64_t bytes)
{
    off_t at = 0;

    while ((uint64_t)at < bytes) {
        off_t from = lseek(src, at, SEEK_DATA);
        if (from < 0)
            return errno == ENXIO ? 0 : -errno;
        off_t to = lseek(src, from, SEEK_HOLE);
        if (to < 0)
            return -errno;
        int r = copy_extent(src, dst, from, to);
        if (r < 0)
            return r;
        at = to;
    }
    return 0;
}

static uint32_t get_le(const uint8_t *p, size_t size)
{
    uint32_t v = 0;

    for (size_t i = size; i > 0; i--)
        v = v << 8 | p[i - 1];
    return v;
}

static void put_le16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Writes the owner into the root directory's inode. Everything read here was written by mkfs.ext4
 * a moment or a template ago; the checks guard against our own mistakes. */
static int patch_owner(int fd, uid_t uid, gid_t gid)
{
    uint8_t super[256], group[64], inode[EXT4_INODE_SIZE];

    if (pread(fd, super, sizeof(super), EXT4_SUPER_OFFSET) != sizeof(super) ||
        pread(fd, group, sizeof(group), LOOPIMG_BLOCK) != sizeof(group))
        return -EIO;
    if (get_le(super + EXT4_SUPER_MAGIC_AT, 2) != EXT4_SUPER_MAGIC ||
        get_le(super + EXT4_SUPER_INODE_SIZE_AT, 2) != EXT4_INODE_SIZE)
        return -EUCLEAN;
    off_t at = (off_t)get_le(group + EXT4_GROUP_TABLE_AT, 4) * LOOPIMG_BLOCK +
               (EXT4_ROOT_INODE - 1) * EXT4_INODE_SIZE;
    if (pread(fd, inode, sizeof(inode), at) != sizeof(inode))
        return -EIO;
    if (!S_ISDIR(get_le(inode + EXT4_INODE_MODE_AT, 2)))
        return -EUCLEAN;
    put_le16(inode + EXT4_INODE_UID_AT, uid);
    put_le16(inode + EXT4_INODE_UID_HIGH_AT, uid >> 16);
    put_le16(inode + EXT4_INODE_GID_AT, gid);
    put_le16(inode + EXT4_INODE_GID_HIGH_AT, gid >> 16);
    return pwrite(fd, inode, sizeof(inode), at) == sizeof(inode) ? 0 : -EIO;
}

/* On btrfs an overwrite goes to new blocks, which makes an allocation worthless; not so for files
 * marked while empty. Elsewhere the mark is unknown or harmless. */
static void mark_no_cow(int fd)
{
    struct statfs st;
    int flags = 0;

    if (fstatfs(fd, &st) < 0 || st.f_type != BTRFS_SUPER_MAGIC)
        return;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_NOCOW_FL;
        (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
    }
}

static int allocate(int fd, uint64_t bytes, struct err *err)
{
    int r;

    do
        r = fallocate(fd, 0, 0, (off_t)bytes) < 0 ? errno : 0;
    while (r == EINTR);
    switch (r) {
    case 0:
        return 0;
    case ENOSPC:
    case EDQUOT:
        return err_set(err, ERR_LIMIT, "quota: the host has no room for %" PRIu64 " MiB",
                       bytes >> 20);
    case EFBIG:
        return err_set(err, ERR_INVALID,
                       "quota: the host's file system has no files of %" PRIu64 " MiB",
                       bytes >> 20);
    case EOPNOTSUPP:
        return err_set(err, ERR_UNSUPPORTED,
                       "quota: the host's file system cannot reserve space (fallocate)");
    default:
        return err_sys(err, r, "quota: allocate %" PRIu64 " MiB", bytes >> 20);
    }
}

static int image_fill(int fd, int template_fd, const struct geometry *g,
                      const struct loopimg_spec *spec, struct err *err)
{
    mark_no_cow(fd);
    int r = allocate(fd, g->bytes, err);
    if (r < 0)
        return r;
    r = copy_data(template_fd, fd, g->bytes);
    if (r < 0)
        return err_sys(err, -r, "quota: copy the template");
    r = patch_owner(fd, spec->uid, spec->gid);
    if (r < 0)
        return err_sys(err, -r, "quota: set the owner");
    return 0;
}

int loopimg_templates(int state_fd, struct err *err)
{
    struct stat st;

    AUTO_CLOSE int fd = path_make_dir_at(state_fd, "templates", 0700);
    if (fd < 0)
        return err_sys(err, -fd, "quota: open the template directory");
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "quota: stat the template directory");
    if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return err_set(err, ERR_DENIED,
                       "quota: 'templates' in the state directory belongs to uid %u; nothing of it "
                       "is mounted, remove it",
                       st.st_uid);
    return TAKE_FD(fd);
}

/* What came of the template for this size is of no use: the next image is made anew. */
static void forget(int template_dirfd, const struct geometry *g)
{
    char name[64];

    template_name(g, name, sizeof(name));
    (void)unlinkat(template_dirfd, name, 0);
}

/* With ret_mnt_fd: mounted, too. */
static int image_make(int dirfd, int template_dirfd, const char *name,
                      const struct loopimg_spec *spec, int *ret_mnt_fd, struct err *err)
{
    struct geometry g = {0};
    int r = loopimg_name_check(name, err);
    if (r == 0)
        r = geometry_of(spec, &g, err);
    if (r == 0)
        r = admit(dirfd, g.bytes, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int template = template_open(template_dirfd, &g, err);
    if (template <0)
        return template;
    AUTO_CLOSE int fd =
        openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(err, errno, "quota: make image '%s'", name);
    r = image_fill(fd, template, &g, spec, err);
    if (r == -EUCLEAN || r == -EIO)
        forget(template_dirfd, &g);
    if (r == 0 && ret_mnt_fd != NULL) {
        r = loopimg_mount_fd(fd, ret_mnt_fd, err);
        if (r < 0)
            forget(template_dirfd, &g);
    }
    if (r < 0)
        (void)unlinkat(dirfd, name, 0);
    return r;
}

int loopimg_create(int dirfd, int template_dirfd, const char *name, const struct loopimg_spec *spec,
                   struct err *err)
{
    return image_make(dirfd, template_dirfd, name, spec, NULL, err);
}

int loopimg_create_mounted(int dirfd, int template_dirfd, const char *name,
                           const struct loopimg_spec *spec, int *ret_mnt_fd, struct err *err)
{
    return image_make(dirfd, template_dirfd, name, spec, ret_mnt_fd, err);
}

static int probe_with(int dirfd, int template_dirfd, const char *name, struct err *err)
{
    const struct loopimg_spec spec = {.bytes = LOOPIMG_BYTES_MIN, .inodes = 16, .uid = 1, .gid = 1};
    struct loopimg_usage usage = {0};
    struct stat st;
    AUTO_CLOSE int mnt = -1;

    int r = loopimg_create_mounted(dirfd, template_dirfd, name, &spec, &mnt, err);
    if (r < 0)
        return r;
    (void)unlinkat(dirfd, name, 0);
    r = loopimg_usage(mnt, &usage, err);
    if (r < 0)
        return r;
    if (fstat(mnt, &st) < 0)
        return err_sys(err, errno, "quota: stat the mount");
    if (usage.bytes_total > spec.bytes || usage.bytes_used >= usage.bytes_total ||
        st.st_uid != spec.uid)
        return err_set(err, ERR_UNSUPPORTED, "quota: the test image does not hold its limits");
    return 0;
}

int loopimg_probe(int dirfd, int template_dirfd, struct err *err)
{
    char id[17], name[32];

    id_random(id);
    (void)str_fmt(name, sizeof(name), "probe-%s", id);
    int r = probe_with(dirfd, template_dirfd, name, err);
    if (r < 0 && err != NULL && err->code != ERR_LIMIT)
        err->code = ERR_UNSUPPORTED;
    return r;
}
