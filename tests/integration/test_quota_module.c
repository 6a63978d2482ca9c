/* SPDX-License-Identifier: Apache-2.0 */

/* Needs root and loop devices; skips otherwise. Everything happens in a mount namespace of its own,
 * on a tmpfs of 192 MiB that stands for the host's disk. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
/* For what is private to it. */
#include "sandbox/quota/loopimg.c"

#define MIB (1ULL << 20)
#define HOST_MIB 192

static char base[] = "/tmp/test_quota_XXXXXX";
static int host = -1;
static int templates = -1;
static struct err err;
static bool loop_was_there[64];

#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        err = (struct err){0};                                                                     \
        if ((expr) < 0)                                                                            \
            fail_msg("%s: %s", #expr, err.msg);                                                    \
    } while (0)

static int open_image(int dirfd, const char *name, struct err *e)
{
    int r = loopimg_name_check(name, e);
    if (r < 0)
        return r;
    int fd = openat(dirfd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? err_sys(e, errno, "quota: open image '%s'", name) : fd;
}

/* What no program of ours does: an image without a mount, one that is there already, and repairs.
 */
static int loopimg_create(int dirfd, int template_dirfd, const char *name,
                          const struct loopimg_spec *spec, struct err *e)
{
    return loopimg_create_mounted(dirfd, template_dirfd, name, spec, NULL, e);
}

static int loopimg_mount(int dirfd, const char *name, int *ret_mnt_fd, struct err *e)
{
    AUTO_CLOSE int fd = open_image(dirfd, name, e);
    if (fd < 0)
        return fd;
    return loopimg_mount_fd(fd, ret_mnt_fd, e);
}

static int loopimg_check(int dirfd, const char *name, struct err *e)
{
    /* -p repairs what is safe to repair without asking; 1 means "repaired". */
    static const char *const argv[] = {"e2fsck", "-p", "/proc/self/fd/0", NULL};
    AUTO_CLOSE int fd = open_image(dirfd, name, e);
    if (fd < 0)
        return fd;
    const struct hostcmd_opts opts = {
        .stdin_fd = fd, .stdout_fd = -1, .timeout_ms = 60000, .max_status = 1};
    return hostcmd_wait_opts(argv, &opts, e);
}

static int mount_new(const char *name, uint64_t bytes, uint64_t inodes)
{
    const struct loopimg_spec spec = {
        .bytes = bytes, .inodes = inodes, .uid = 2000000123, .gid = 2000000456};
    int mnt = -1;

    assert_ok(loopimg_create(host, templates, name, &spec, &err));
    assert_ok(loopimg_mount(host, name, &mnt, &err));
    return mnt;
}

static void remove_image(const char *name)
{
    assert_int_equal(unlinkat(host, name, 0), 0);
}

static unsigned count_entries(int dirfd)
{
    unsigned n = 0;
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fdopendir(fd);

    assert_non_null(dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static bool loop_is_bound(unsigned number)
{
    char path[64];

    assert_true(str_fmt(path, sizeof(path), "/sys/block/loop%u/loop/backing_file", number) >= 0);
    return access(path, F_OK) == 0;
}

/* Writes until the file system is full; returns the bytes that went in. */
static uint64_t fill(int mnt, const char *name)
{
    static const char chunk[64 * 1024] = {1};
    uint64_t total = 0;
    ssize_t n;
    AUTO_CLOSE int fd = openat(mnt, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    while ((n = write(fd, chunk, sizeof(chunk))) > 0)
        total += (uint64_t)n;
    assert_int_equal(n, -1);
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(fsync(fd), 0);
    return total;
}

static void smallest_image_works_is_empty_and_has_its_owner(void **state)
{
    struct loopimg_usage usage = {0};
    struct stat st;
    AUTO_CLOSE int mnt = mount_new("small", LOOPIMG_BYTES_MIN, 0);

    assert_ok(loopimg_usage(mnt, &usage, &err));
    assert_in_range(usage.bytes_total, 900 * 1024, LOOPIMG_BYTES_MIN);
    assert_in_range(usage.bytes_used, 0, 64 * 1024);
    assert_int_equal(fstat(mnt, &st), 0);
    assert_int_equal(st.st_uid, 2000000123);
    assert_int_equal(st.st_gid, 2000000456);
    assert_int_equal(count_entries(mnt), 0);
    remove_image("small");
}

static void mount_has_nosuid_and_nodev(void **state)
{
    struct statfs st;
    AUTO_CLOSE int mnt = mount_new("flags", LOOPIMG_BYTES_MIN, 0);

    assert_int_equal(fstatfs(mnt, &st), 0);
    assert_true((st.f_flags & (MS_NOSUID | MS_NODEV)) == (MS_NOSUID | MS_NODEV));
    remove_image("flags");
}

static void impossible_sizes_are_refused(void **state)
{
    static const struct loopimg_spec bad[] = {
        {.bytes = 0},
        {.bytes = LOOPIMG_BYTES_MIN - 1},
        {.bytes = LOOPIMG_BYTES_MAX + 4096},
        {.bytes = UINT64_MAX},
        {.bytes = MIB, .inodes = 100000},
        {.bytes = 64 * MIB, .inodes = UINT64_MAX},
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_true(loopimg_create(host, templates, "bad", &bad[i], &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
    assert_int_equal(faccessat(host, "bad", F_OK, 0), -1);
}

static void names_that_are_not_one_component_are_refused(void **state)
{
    static const char *const bad[] = {"", ".", "..", "a/b", "/a"};
    const struct loopimg_spec spec = {.bytes = MIB};
    int mnt;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        assert_true(loopimg_create(host, templates, bad[i], &spec, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_true(loopimg_mount(host, bad[i], &mnt, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

static void existing_image_is_not_overwritten(void **state)
{
    const struct loopimg_spec spec = {.bytes = MIB};

    assert_ok(loopimg_create(host, templates, "once", &spec, &err));
    assert_int_equal(loopimg_create(host, templates, "once", &spec, &err), -EEXIST);
    assert_int_equal(faccessat(host, "once", F_OK, 0), 0);
    remove_image("once");
}

static void writes_stop_at_the_limit_and_the_host_never_gives_more(void **state)
{
    struct stat st;
    AUTO_CLOSE int mnt = mount_new("full", 32 * MIB, 0);
    int fd = openat(mnt, "big", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_int_equal(fallocate(fd, 0, 0, 1 << 30), -1);
    assert_int_equal(errno, ENOSPC);
    close(fd);
    assert_int_equal(unlinkat(mnt, "big", 0), 0);
    assert_in_range(fill(mnt, "a"), 30 * MIB, 32 * MIB);
    assert_int_equal(fstatat(host, "full", &st, 0), 0);
    assert_int_equal(st.st_size, 32 * MIB);
    assert_true((uint64_t)st.st_blocks * 512 <= 32 * MIB + 64 * 1024);

    /* A full session can still clean up and go on. */
    assert_int_equal(renameat(mnt, "a", mnt, "b"), 0);
    assert_int_equal(unlinkat(mnt, "b", 0), 0);
    assert_in_range(fill(mnt, "c"), 30 * MIB, 32 * MIB);
    remove_image("full");
}

static void deleted_but_open_files_still_count(void **state)
{
    struct loopimg_usage usage = {0};
    AUTO_CLOSE int mnt = mount_new("held", 8 * MIB, 0);
    AUTO_CLOSE int fd = openat(mnt, "a", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_int_equal(fallocate(fd, 0, 0, 6 * MIB), 0);
    assert_int_equal(unlinkat(mnt, "a", 0), 0);
    assert_ok(loopimg_usage(mnt, &usage, &err));
    assert_true(usage.bytes_used >= 6 * MIB);
    assert_in_range(fill(mnt, "b"), 0, 2 * MIB);
    remove_image("held");
}

static void inodes_are_limited(void **state)
{
    char name[16];
    unsigned made = 0;
    AUTO_CLOSE int mnt = mount_new("inodes", 16 * MIB, 500);

    for (; made < 5000; made++) {
        assert_true(str_fmt(name, sizeof(name), "f%u", made) >= 0);
        if (mknodat(mnt, name, S_IFREG | 0600, 0) < 0)
            break;
    }
    assert_int_equal(errno, ENOSPC);
    assert_in_range(made, 500, 600);
    remove_image("inodes");
}

static void image_is_fully_allocated_when_made(void **state)
{
    const struct loopimg_spec spec = {.bytes = 16 * MIB};
    struct stat st;

    assert_ok(loopimg_create(host, templates, "whole", &spec, &err));
    assert_int_equal(fstatat(host, "whole", &st, 0), 0);
    assert_true((uint64_t)st.st_blocks * 512 >= 16 * MIB);
    remove_image("whole");
}

static void host_without_room_refuses_and_keeps_nothing(void **state)
{
    const struct loopimg_spec spec = {.bytes = HOST_MIB * MIB};
    unsigned before = count_entries(host);

    assert_true(loopimg_create(host, templates, "large", &spec, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "quota"));
    assert_int_equal(count_entries(host), before);
    /* The reserve counts too: what is just about free is not for us. */
    const struct loopimg_spec almost = {.bytes = HOST_MIB * MIB / 100 * 97};
    assert_true(loopimg_create(host, templates, "large", &almost, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
}

static void loop_device_clears_itself_with_the_mount(void **state)
{
    struct stat st;
    int mnt = mount_new("gone", MIB, 0);

    assert_int_equal(fstat(mnt, &st), 0);
    assert_int_equal(major(st.st_dev), 7);
    assert_true(loop_is_bound(minor(st.st_dev)));
    assert_int_equal(close(mnt), 0);
    assert_false(loop_is_bound(minor(st.st_dev)));
    remove_image("gone");
}

static void content_survives_a_remount_and_a_check(void **state)
{
    char text[8] = "";
    int again = -1;
    int mnt = mount_new("keep", 4 * MIB, 0);
    int fd = openat(mnt, "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_int_equal(write(fd, "kept", 4), 4);
    close(fd);
    close(mnt);
    assert_ok(loopimg_check(host, "keep", &err));
    assert_ok(loopimg_mount(host, "keep", &again, &err));
    fd = openat(again, "file", O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, sizeof(text)), 4);
    assert_string_equal(text, "kept");
    close(fd);
    close(again);
    remove_image("keep");
}

static void fresh_image_shows_nothing_of_an_older_one(void **state)
{
    char page[4096];
    int mnt = mount_new("older", 4 * MIB, 0);
    fill(mnt, "secret");
    close(mnt);
    remove_image("older");

    const struct loopimg_spec spec = {.bytes = 4 * MIB};
    assert_ok(loopimg_create(host, templates, "newer", &spec, &err));
    AUTO_CLOSE int fd = openat(host, "newer", O_RDONLY | O_CLOEXEC);
    for (off_t at = 2 * MIB; at < (off_t)(4 * MIB); at += (off_t)sizeof(page)) {
        assert_int_equal(pread(fd, page, sizeof(page), at), sizeof(page));
        assert_true(page[0] == 0 && memcmp(page, page + 1, sizeof(page) - 1) == 0);
    }
    remove_image("newer");
}

static void many_images_live_side_by_side(void **state)
{
    enum { N = 24 };
    char name[16];
    int mnt[N];

    for (int i = 0; i < N; i++) {
        assert_true(str_fmt(name, sizeof(name), "m%d", i) >= 0);
        mnt[i] = mount_new(name, MIB, 0);
        assert_int_equal(mkdirat(mnt[i], name, 0700), 0);
        remove_image(name);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(count_entries(mnt[i]), 1);
        close(mnt[i]);
    }
}

static void templates_are_reused_and_do_not_pile_up(void **state)
{
    struct loopimg_spec spec = {.bytes = MIB, .inodes = 20};
    struct stat first, second;
    static const char name[] = "ext4-1048576-31";

    assert_ok(loopimg_create(host, templates, "t", &spec, &err));
    remove_image("t");
    assert_int_equal(fstatat(templates, name, &first, 0), 0);
    assert_ok(loopimg_create(host, templates, "t", &spec, &err));
    remove_image("t");
    assert_int_equal(fstatat(templates, name, &second, 0), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    for (unsigned i = 0; i < 70; i++) {
        spec.inodes = 100 + i;
        assert_ok(loopimg_create(host, templates, "t", &spec, &err));
        remove_image("t");
    }
    assert_in_range(count_entries(templates), 1, 64);
    assert_int_equal(fstatat(templates, name, &second, 0), -1);
}

static void missing_device_nodes_are_no_obstacle(void **state)
{
    AUTO_CLOSE int mnt = -1;

    assert_int_equal(mkdir("control", 0700), 0);
    int fd = open("control/node", O_CREAT | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(mount("/dev/loop-control", "control/node", NULL, MS_BIND, NULL), 0);
    assert_int_equal(mount("none", "/dev", "tmpfs", 0, "size=64k"), 0);
    fd = open("/dev/loop-control", O_CREAT | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(mount("control/node", "/dev/loop-control", NULL, MS_BIND, NULL), 0);
    assert_int_equal(mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)), 0);
    mnt = mount_new("nodes", MIB, 0);
    assert_int_equal(mkdirat(mnt, "works", 0700), 0);
    remove_image("nodes");
    assert_int_equal(umount2("/dev/loop-control", MNT_DETACH), 0);
    assert_int_equal(umount2("/dev", MNT_DETACH), 0);
    assert_int_equal(umount2("control/node", MNT_DETACH), 0);
}

static const struct loopimg_spec kept_spec = {
    .bytes = 4 * MIB, .uid = 2000000123, .gid = 2000000456};

/* An image with a file in it, not mounted, in a directory of its own. */
static int make_kept(const char *name)
{
    bool same = true;
    int mnt = -1;
    int dir = path_make_dir_at(host, name, 0700);
    assert_true(dir >= 0);
    assert_int_equal(loopimg_note_boot(dir, &same), 0);
    assert_false(same); /* for the first time */
    assert_ok(loopimg_create_mounted(dir, templates, "i", &kept_spec, &mnt, &err));
    AUTO_CLOSE int file = openat(mnt, "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "kept", 4), 4);
    (void)close(mnt);
    return dir;
}

static int mount_kept(int dir, int *ret_mnt)
{
    err = (struct err){0};
    return loopimg_mount_kept(dir, "i", &kept_spec, ret_mnt, &err);
}

/* As boxd does while the kernel unmounts the image, or a child checks it. */
static int mount_kept_patiently(int dir, int *ret_mnt)
{
    struct pollfd none;
    int r = mount_kept(dir, ret_mnt);
    for (int i = 0; i < 2000 && r < 0 && err.code == ERR_STATE; i++) {
        (void)poll(&none, 0, 10);
        children_reap();
        r = mount_kept(dir, ret_mnt);
    }
    return r;
}

static void set_state(int dir, unsigned value)
{
    AUTO_CLOSE int fd = openat(dir, "i", O_RDWR | O_CLOEXEC);
    const unsigned char state[2] = {(unsigned char)value, 0};
    struct pollfd none;
    assert_true(fd >= 0);
    for (int i = 0; i < 2000 && image_state(fd) != STATE_UNMOUNTED; i++)
        (void)poll(&none, 0, 10);
    assert_int_equal(image_state(fd), STATE_UNMOUNTED); /* by the kernel */
    assert_int_equal(pwrite(fd, state, sizeof(state), SUPERBLOCK_STATE), sizeof(state));
}

static void set_boot(int dir)
{
    AUTO_CLOSE int boot = openat(dir, BOOT_FILE, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(boot, "another\n", 8), 8);
}

static void assert_kept(int dir)
{
    char text[8] = "";
    int mnt = -1;
    assert_ok(mount_kept_patiently(dir, &mnt));
    assert_int_equal(fd_read_file_at(mnt, "f", text, sizeof(text)), 4);
    assert_string_equal(text, "kept");
    (void)close(mnt);
}

static void end_kept(int dir, const char *name)
{
    (void)close(dir);
    assert_int_equal(path_remove_tree_at(host, name), 0);
}

static void kept_image_is_mounted_again(void **state)
{
    int dir = make_kept("kept");
    assert_kept(dir);
    assert_kept(dir); /* while the kernel may still be at the last one */
    end_kept(dir, "kept");
}

/* Long before the 2 s that box-priv once gave it: it serves all sessions in one thread. */
static void assert_refused_at_once(int dir)
{
    struct timespec from, to;
    int mnt = -1;
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 10; i++) {
        assert_true(mount_kept(dir, &mnt) < 0);
        assert_int_equal(err.code, ERR_STATE);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    assert_in_range(to.tv_sec - from.tv_sec, 0, 2);
}

static void kept_image_that_is_in_use_is_refused_at_once(void **state)
{
    int mnt = -1;
    int dir = make_kept("kept");
    assert_ok(mount_kept_patiently(dir, &mnt));
    int file = openat(mnt, "f", O_RDONLY | O_CLOEXEC);
    (void)close(mnt);
    assert_refused_at_once(dir);
    assert_non_null(strstr(err.msg, "in use"));
    (void)close(file);
    assert_kept(dir);
    end_kept(dir, "kept");
}

static void kept_image_of_a_host_that_went_down_is_checked_first(void **state)
{
    int mnt = -1;
    int dir = make_kept("kept");
    set_state(dir, 0);
    /* In this life of the host that means that it is mounted: nothing may touch it. */
    assert_true(mount_kept(dir, &mnt) < 0);
    assert_int_equal(err.code, ERR_STATE);
    set_boot(dir);
    assert_true(mount_kept(dir, &mnt) < 0); /* by a child, for which nobody waits */
    assert_int_equal(err.code, ERR_STATE);
    assert_non_null(strstr(err.msg, "being checked"));
    assert_kept(dir);
    end_kept(dir, "kept");
}

static void kept_image_with_errors_is_checked_first(void **state)
{
    int mnt = -1;
    int dir = make_kept("kept");
    set_state(dir, STATE_UNMOUNTED | STATE_ERRORS);
    assert_true(mount_kept(dir, &mnt) < 0);
    assert_non_null(strstr(err.msg, "being checked"));
    assert_kept(dir);
    end_kept(dir, "kept");
}

static void kept_image_that_cannot_be_mended_says_so_each_time(void **state)
{
    static const char nothing[64 * 1024];
    int mnt = -1;
    int dir = make_kept("kept");
    set_state(dir, 0);
    set_boot(dir);
    AUTO_CLOSE int fd = openat(dir, "i", O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, nothing, sizeof(nothing), 0), sizeof(nothing));
    for (int i = 0; i < 2; i++) {
        assert_true(mount_kept_patiently(dir, &mnt) < 0);
        assert_int_equal(err.code, ERR_BACKEND);
        assert_non_null(strstr(err.msg, "e2fsck"));
    }
    end_kept(dir, "kept");
}

static void kept_image_that_others_could_change_is_not_mounted(void **state)
{
    int mnt = -1;
    int dir = make_kept("kept");
    const struct loopimg_spec larger = {.bytes = 5 * MIB, .uid = 1, .gid = 1};
    assert_true(loopimg_mount_kept(dir, "i", &larger, &mnt, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_int_equal(fchmodat(dir, "i", 0622, 0), 0);
    err = (struct err){0};
    assert_true(loopimg_mount_kept(dir, "i", &kept_spec, &mnt, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_int_equal(fchmodat(dir, "i", 0600, 0), 0);
    assert_int_equal(fchown(dir, 12345, 12345), 0);
    err = (struct err){0};
    assert_true(loopimg_mount_kept(dir, "i", &kept_spec, &mnt, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_int_equal(fchown(dir, 0, 0), 0);
    assert_int_equal(linkat(dir, "i", dir, "j", 0), 0);
    err = (struct err){0};
    assert_true(loopimg_mount_kept(dir, "i", &kept_spec, &mnt, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_int_equal(mnt, -1);
    end_kept(dir, "kept");
}

static int set_up(void **state)
{
    char data[32];

    for (int i = 0; i < 64; i++) {
        char path[32];

        assert_true(str_fmt(path, sizeof(path), "/sys/block/loop%d", i) >= 0);
        loop_was_there[i] = access(path, F_OK) == 0;
    }
    if (mkdtemp(base) == NULL || unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -1;
    if (str_fmt(data, sizeof(data), "size=%dm", HOST_MIB) < 0 ||
        mount("none", base, "tmpfs", 0, data) < 0 || chdir(base) < 0)
        return -1;
    if (mkdir("host", 0700) < 0 || mkdir("templates", 0700) < 0)
        return -1;
    host = open("host", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    templates = open("templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return host < 0 || templates < 0 ? -1 : 0;
}

/* The kernel keeps loop devices that were once needed; those we caused go again. */
static void remove_loops(void)
{
    AUTO_CLOSE int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

    for (int i = 0; i < 64; i++)
        if (!loop_was_there[i])
            (void)ioctl(control, LOOP_CTL_REMOVE, i);
}

static int tear_down(void **state)
{
    remove_loops();
    assert_int_equal(count_entries(host), 0);
    (void)close(host);
    (void)close(templates);
    assert_int_equal(chdir("/"), 0);
    (void)umount2(base, MNT_DETACH);
    return rmdir(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smallest_image_works_is_empty_and_has_its_owner),
        cmocka_unit_test(mount_has_nosuid_and_nodev),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(names_that_are_not_one_component_are_refused),
        cmocka_unit_test(existing_image_is_not_overwritten),
        cmocka_unit_test(writes_stop_at_the_limit_and_the_host_never_gives_more),
        cmocka_unit_test(deleted_but_open_files_still_count),
        cmocka_unit_test(inodes_are_limited),
        cmocka_unit_test(image_is_fully_allocated_when_made),
        cmocka_unit_test(host_without_room_refuses_and_keeps_nothing),
        cmocka_unit_test(loop_device_clears_itself_with_the_mount),
        cmocka_unit_test(content_survives_a_remount_and_a_check),
        cmocka_unit_test(fresh_image_shows_nothing_of_an_older_one),
        cmocka_unit_test(many_images_live_side_by_side),
        cmocka_unit_test(templates_are_reused_and_do_not_pile_up),
        cmocka_unit_test(missing_device_nodes_are_no_obstacle),
        cmocka_unit_test(kept_image_is_mounted_again),
        cmocka_unit_test(kept_image_that_is_in_use_is_refused_at_once),
        cmocka_unit_test(kept_image_with_errors_is_checked_first),
        cmocka_unit_test(kept_image_that_cannot_be_mended_says_so_each_time),
        cmocka_unit_test(kept_image_of_a_host_that_went_down_is_checked_first),
        cmocka_unit_test(kept_image_that_others_could_change_is_not_mounted),
    };

    if (geteuid() != 0 || access("/dev/loop-control", F_OK) < 0) {
        (void)fprintf(stderr, "skipped: needs root and loop devices\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
