/* SPDX-License-Identifier: Apache-2.0 */

/* Images, loop devices and mounts. */

#include "sandbox/quota/loopimg.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/host/children.h"
#include "sandbox/host/hostcmd.h"

#define BLOCK 4096
#define LOOP_MAJOR_NUMBER 7
#define LOOP_TRIES 64

/* One path component that is neither "." nor "..". */
static int loopimg_name_check(const char *name, struct err *err)
{
    if (name[0] == '\0' || strchr(name, '/') != NULL || str_eq(name, ".") || str_eq(name, ".."))
        return err_set(err, ERR_INVALID, "bad image name '%s'", name);
    return 0;
}

/* Where /dev is not a devtmpfs (containers), the kernel's new loop devices have no node there. We
 * make one in a file system of our own that no path leads to. */
static int loop_open_private(unsigned number)
{
    AUTO_CLOSE int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fs < 0)
        return -errno;
    if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    AUTO_CLOSE int dir = fsmount(fs, FSMOUNT_CLOEXEC, 0);
    if (dir < 0)
        return -errno;
    if (mknodat(dir, "loop", S_IFBLK | 0600, makedev(LOOP_MAJOR_NUMBER, number)) < 0)
        return -errno;
    int fd = openat(dir, "loop", O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A node of the right name with another device behind it must never be written to. */
static int loop_open(unsigned number)
{
    char path[32];
    struct stat st;

    (void)str_fmt(path, sizeof(path), "/dev/loop%u", number);
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISBLK(st.st_mode) &&
        st.st_rdev == makedev(LOOP_MAJOR_NUMBER, number))
        return TAKE_FD(fd);
    return loop_open_private(number);
}

/* Binds a free device to the image. Between asking for a free one and taking it another process may
 * be faster (EBUSY), or have removed it (ENXIO and friends): then we ask again. */
static int loop_attach(int image_fd, unsigned *ret_number, struct err *err)
{
    struct loop_config config = {
        .fd = (uint32_t)image_fd,
        .block_size = BLOCK,
        .info = {.lo_flags = LO_FLAGS_AUTOCLEAR},
    };
    AUTO_CLOSE int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return err_set(err, ERR_UNSUPPORTED, "quota: no loop devices here (/dev/loop-control: %s)",
                       err_errno_text(errno));

    for (int i = 0; i < LOOP_TRIES; i++) {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0)
            return err_sys(err, errno, "quota: no free loop device");
        AUTO_CLOSE int fd = loop_open((unsigned)number);
        if (fd == -ENXIO || fd == -ENODEV || fd == -ENOENT)
            continue;
        if (fd < 0)
            return err_sys(err, -fd, "quota: open loop device %d", number);
        if (ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
            *ret_number = (unsigned)number;
            return TAKE_FD(fd);
        }
        if (errno != EBUSY)
            return err_sys(err, errno, "quota: set up loop device %d", number);
    }
    return err_set(err, ERR_LIMIT, "quota: lost the race for a loop device %d times", LOOP_TRIES);
}

static int mount_error(int fs, int error, struct err *err)
{
    char text[160];
    ssize_t n = read(fs, text, sizeof(text) - 1);

    if (n <= 0)
        return err_sys(err, error, "quota: mount ext4 image");
    text[n] = '\0';
    return err_sys(err, error, "quota: mount ext4 image (%s)", text);
}

static int mount_loop(int loop_fd, unsigned number, int *ret_mnt_fd, struct err *err)
{
    static const char *const options[][2] = {
        {"errors", "remount-ro"},
        {"noinit_itable", NULL}, /* the image reads as zeroes: nothing to initialise */
        {"nodiscard", NULL},     /* would give promised blocks back to the host */
    };
    char path[32];

    AUTO_CLOSE int fs = fsopen("ext4", FSOPEN_CLOEXEC);
    if (fs < 0)
        return err_set(err, ERR_UNSUPPORTED, "quota: this kernel cannot mount ext4 (fsopen: %s)",
                       err_errno_text(errno));
    (void)str_fmt(path, sizeof(path), "/dev/loop%u", number);
    if (access(path, F_OK) < 0)
        (void)str_fmt(path, sizeof(path), "/proc/self/fd/%d", loop_fd);
    if (fsconfig(fs, FSCONFIG_SET_STRING, "source", path, 0) < 0)
        return mount_error(fs, errno, err);
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        if (fsconfig(fs, options[i][1] != NULL ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG,
                     options[i][0], options[i][1], 0) < 0)
            return mount_error(fs, errno, err);
    if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return mount_error(fs, errno, err);
    int mnt = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (mnt < 0)
        return err_sys(err, errno, "quota: fsmount");
    *ret_mnt_fd = mnt;
    return 0;
}

/* Mounts an open image or template. */
static int loopimg_mount_fd(int image_fd, int *ret_mnt_fd, struct err *err)
{
    unsigned number = 0;

    AUTO_CLOSE int loop = loop_attach(image_fd, &number, err);
    if (loop < 0)
        return loop;
    /* From here on the device clears itself: our descriptor and the mount are its only users. */
    return mount_loop(loop, number, ret_mnt_fd, err);
}

int loopimg_usage(int fd, struct loopimg_usage *ret, struct err *err)
{
    struct statfs st;

    if (fstatfs(fd, &st) < 0)
        return err_sys(err, errno, "quota: fstatfs");
    if (st.f_type != EXT4_SUPER_MAGIC)
        return err_set(err, ERR_INVALID, "quota: not a quota image");
    *ret = (struct loopimg_usage){
        .bytes_total = (uint64_t)st.f_blocks * (uint64_t)st.f_bsize,
        .bytes_used = (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize,
        .inodes_total = st.f_files,
        .inodes_used = st.f_files - st.f_ffree,
    };
    return 0;
}

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
    struct geometry g = {.bytes = spec->bytes & ~(uint64_t)(BLOCK - 1)};

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

    DIR *dir = fd_opendir(template_dirfd);
    if (dir == NULL)
        return err_sys(err, errno, "quota: open the template directory");
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        struct stat st;

        if (!str_starts(e->d_name, TEMPLATE_PREFIX) ||
            fstatat(template_dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
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

    (void)str_fmt(block, sizeof(block), "%d", BLOCK);
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
 * would need space that was not reserved. */
static int copy_extent(int src, int dst, off_t from, off_t to)
{
    char chunk[COPY_CHUNK];

    while (from < to) {
        size_t want = to - from < COPY_CHUNK ? (size_t)(to - from) : COPY_CHUNK;
        ssize_t n = pread(src, chunk, want, from);

        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        for (ssize_t at = 0; at < n; at += BLOCK) {
            size_t len = n - at < BLOCK ? (size_t)(n - at) : BLOCK;

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
        pread(fd, group, sizeof(group), BLOCK) != sizeof(group))
        return -EIO;
    if (get_le(super + EXT4_SUPER_MAGIC_AT, 2) != EXT4_SUPER_MAGIC ||
        get_le(super + EXT4_SUPER_INODE_SIZE_AT, 2) != EXT4_INODE_SIZE)
        return -EUCLEAN;
    off_t at = (off_t)get_le(group + EXT4_GROUP_TABLE_AT, 4) * BLOCK +
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

#define SUPERBLOCK_STATE (1024 + 58) /* little-endian, 16 bits */
#define STATE_UNMOUNTED 1U
#define STATE_ERRORS 2U
#define FSCK_TIMEOUT_MS 120000
#define FSCK_CORRECTED 1 /* exit status: errors were found, and none is left */
#define CHECKS_MAX 8     /* at a time */
#define CHECKER_FD 3     /* the image, then its directory */
#define BOOT_FILE "disk.boot"
#define BOOT_ID_SIZE 64
#define CHECK_FILE "disk.check" /* why the last check failed */
#define CHECKING                                                                                   \
    "quota: the host went down while the image was in use; it is being checked (e2fsck); try "     \
    "again"

/* The kernel takes the first bit away while the image is mounted, and sets the second when it finds
 * errors. */
static unsigned image_state(int fd)
{
    unsigned char state[2] = {0};
    ssize_t n = pread(fd, state, sizeof(state), SUPERBLOCK_STATE);
    return n == (ssize_t)sizeof(state) ? state[0] & (STATE_UNMOUNTED | STATE_ERRORS) : 0;
}

static int write_note(int dirfd, const char *name, const char *text)
{
    AUTO_CLOSE int fd =
        openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

static int read_boot(int dirfd, char now[static BOOT_ID_SIZE], bool *ret_same)
{
    char then[BOOT_ID_SIZE] = "";
    ssize_t n = fd_read_file_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", now, BOOT_ID_SIZE);
    if (n <= 0)
        return n < 0 ? (int)n : -EIO;
    *ret_same = fd_read_file_at(dirfd, BOOT_FILE, then, sizeof(then)) > 0 && str_eq(now, then);
    return 0;
}

int loopimg_note_boot(int dirfd, bool *ret_same)
{
    char now[BOOT_ID_SIZE] = "";
    int r = read_boot(dirfd, now, ret_same);
    return r < 0 || *ret_same ? r : write_note(dirfd, BOOT_FILE, now);
}

/* An image has no journal, so a power cut may leave more than e2fsck -p mends, and there is no
 * person to ask: -y mends it, and what had not reached the disk is lost as on every disk. */
static int image_check(int fd, struct err *err)
{
    const char *const argv[] = {"e2fsck", "-fy", "/proc/self/fd/0", NULL};
    const struct hostcmd_opts opts = {.stdin_fd = fd,
                                      .stdout_fd = -1,
                                      .timeout_ms = FSCK_TIMEOUT_MS,
                                      .max_status = FSCK_CORRECTED};
    return hostcmd_wait_opts(argv, &opts, err);
}

/* A process that waits for the end of one of box-priv's descriptors would wait for this child: only
 * two stay open. */
static _Noreturn void check_child(int dirfd, int fd)
{
    struct err err = {0};
    int image = fcntl(fd, F_DUPFD_CLOEXEC, CHECKER_FD + 2);
    int dir = fcntl(dirfd, F_DUPFD_CLOEXEC, CHECKER_FD + 2);
    if (image < 0 || dir < 0 || dup3(image, CHECKER_FD, O_CLOEXEC) < 0 ||
        dup3(dir, CHECKER_FD + 1, O_CLOEXEC) < 0 ||
        syscall(SYS_close_range, CHECKER_FD + 2, ~0U, 0) < 0)
        child_exit(1);
    if (image_check(CHECKER_FD, &err) < 0)
        (void)write_note(CHECKER_FD + 1, CHECK_FILE, err.msg);
    child_exit(0);
}

/* A place for the descriptor of another checker, or NULL. */
static int *checker_place(void)
{
    static int checkers[CHECKS_MAX]; /* 0: none */
    for (size_t i = 0; i < CHECKS_MAX; i++) {
        struct pollfd p = {.fd = checkers[i], .events = POLLIN};
        if (checkers[i] != 0 && poll(&p, 1, 0) == 0)
            continue;
        fd_close_many(&checkers[i], checkers[i] > 0);
        checkers[i] = 0;
        return &checkers[i];
    }
    return NULL;
}

/* By a child, which has the lock of the image: a check can take minutes, and others wait for us. */
static int check_start(int dirfd, int fd, struct err *err)
{
    char why[sizeof(err->msg)] = "";
    if (fd_read_file_at(dirfd, CHECK_FILE, why, sizeof(why)) > 0) {
        (void)unlinkat(dirfd, CHECK_FILE, 0); /* the next start tries again */
        return err_set(err, ERR_BACKEND, "quota: the kept image was not unmounted, and %.200s",
                       why);
    }
    int *checker = checker_place();
    if (checker == NULL)
        return err_set(err, ERR_STATE,
                       "quota: other kept images are being checked (e2fsck); try again");
    pid_t pid = clone_process(0, -1, checker);
    if (pid == 0)
        check_child(dirfd, fd);
    if (pid < 0)
        return err_sys(err, -pid, "quota: check the kept image");
    children_add(pid);
    return err_set(err, ERR_STATE, CHECKING);
}

/* 0: it may be mounted. Never waits: who is refused with ERR_STATE tries again. */
static int image_ready(int dirfd, int fd, struct err *err)
{
    char now[BOOT_ID_SIZE] = "";
    bool same_boot = false;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_STATE, CHECKING);
    int r = read_boot(dirfd, now, &same_boot);
    if (r < 0)
        return err_sys(err, -r, "quota: the last mount of the kept image");
    unsigned state = image_state(fd);
    if (same_boot && (state & STATE_UNMOUNTED) == 0)
        return err_set(err, ERR_STATE, "quota: the kept image is still in use; try again");
    if (state != STATE_UNMOUNTED)
        return check_start(dirfd, fd, err);
    (void)flock(fd, LOCK_UN); /* the loop device will have this descriptor */
    r = same_boot ? 0 : write_note(dirfd, BOOT_FILE, now);
    return r < 0 ? err_sys(err, -r, "quota: note the mount of the kept image") : 0;
}

int loopimg_mount_kept(int dirfd, const char *name, const struct loopimg_spec *spec,
                       int *ret_mnt_fd, struct err *err)
{
    struct stat dir, st;
    int r = loopimg_name_check(name, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, errno, "quota: open the kept image");
    if (fstat(dirfd, &dir) < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "quota: stat the kept image");
    if (dir.st_uid != geteuid() || (dir.st_mode & (S_IWGRP | S_IWOTH)) != 0 ||
        !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1 ||
        (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return err_set(err, ERR_DENIED,
                       "quota: the kept image is not root's alone any more, so it "
                       "is not mounted");
    if ((uint64_t)st.st_size != (spec->bytes & ~(uint64_t)(BLOCK - 1)))
        return err_set(err, ERR_CONFLICT, "quota: the kept image is %lld bytes long, not %" PRIu64,
                       (long long)st.st_size, spec->bytes);
    r = image_ready(dirfd, fd, err);
    return r < 0 ? r : loopimg_mount_fd(fd, ret_mnt_fd, err);
}

/* What came of the template for this size is of no use: the next image is made anew. */
static void template_forget(int template_dirfd, const struct geometry *g)
{
    char name[64];

    template_name(g, name, sizeof(name));
    (void)unlinkat(template_dirfd, name, 0);
}

int loopimg_create_mounted(int dirfd, int template_dirfd, const char *name,
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
        template_forget(template_dirfd, &g);
    if (r == 0 && ret_mnt_fd != NULL) {
        r = loopimg_mount_fd(fd, ret_mnt_fd, err);
        if (r < 0)
            template_forget(template_dirfd, &g);
    }
    if (r < 0)
        (void)unlinkat(dirfd, name, 0);
    return r;
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
