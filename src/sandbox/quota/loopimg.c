/* SPDX-License-Identifier: Apache-2.0 */

/* Loop devices and mounts. The images themselves are made in loopimg_make.c. */

#include "sandbox/quota/loopimg.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/quota/loopimg_internal.h"

#define LOOP_MAJOR_NUMBER 7
#define LOOP_TRIES 64
#define CHECK_TIMEOUT_MS 60000

int loopimg_name_check(const char *name, struct err *err)
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
        .block_size = LOOPIMG_BLOCK,
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

int loopimg_mount_fd(int image_fd, int *ret_mnt_fd, struct err *err)
{
    unsigned number = 0;

    AUTO_CLOSE int loop = loop_attach(image_fd, &number, err);
    if (loop < 0)
        return loop;
    /* From here on the device clears itself: our descriptor and the mount are its only users. */
    return mount_loop(loop, number, ret_mnt_fd, err);
}

int loopimg_mount(int dirfd, const char *name, int *ret_mnt_fd, struct err *err)
{
    int r = loopimg_name_check(name, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, "quota: open image '%s'", name);
    return loopimg_mount_fd(fd, ret_mnt_fd, err);
}

int loopimg_check(int dirfd, const char *name, struct err *err)
{
    /* -p repairs what is safe to repair without asking; 1 means "repaired". */
    static const char *const argv[] = {"e2fsck", "-p", "/proc/self/fd/0", NULL};
    int r = loopimg_name_check(name, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = openat(dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_sys(err, errno, "quota: open image '%s'", name);
    const struct hostcmd_opts opts = {
        .stdin_fd = fd, .stdout_fd = -1, .timeout_ms = CHECK_TIMEOUT_MS, .max_status = 1};
    return hostcmd_wait_opts(argv, &opts, err);
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
