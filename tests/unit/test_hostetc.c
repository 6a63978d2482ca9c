/* SPDX-License-Identifier: Apache-2.0 */

/* In a mount namespace of its own, with an /etc that the test has written. */

#include "lib/unit.h"

#include "sandbox/setup/hostetc.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"

#define TMPFS_MAGIC_NUMBER 0x01021994

static char dir[64];
static int state_fd = -1;
static bool ready;

static bool write_map(const char *file, unsigned id)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "0 %u 1", id);
    return fd_write_file_at(AT_FDCWD, file, text) == 0;
}

static bool own_mounts(void)
{
    unsigned uid = geteuid(), gid = getegid();
    if (uid == 0
            ? unshare(CLONE_NEWNS) < 0
            : unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0 ||
                  fd_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny") < 0 ||
                  !write_map("/proc/self/uid_map", uid) || !write_map("/proc/self/gid_map", gid))
        return false;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", "/etc", "tmpfs", 0, "mode=0755") == 0;
}

static int start(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-etc-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    ready = own_mounts();
    if (!ready)
        print_message("skipped: no mount namespace to be had (%d)\n", errno);
    state_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* of that namespace */
    return state_fd < 0 ? -1 : 0;
}

static int stop(void **state)
{
    static const char *const left[] = {"off", "on"}; /* by a test that failed */
    char path[128];
    (void)close(state_fd);
    for (size_t i = 0; ready && i < ARRAY_SIZE(left); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, left[i]);
        (void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
    }
    return path_remove_tree_at(AT_FDCWD, dir);
}

static void put(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

static void put_dir(const char *path, mode_t mode)
{
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static bool exists(int fd, const char *name)
{
    return faccessat(fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void expect_text(int fd, const char *name, const char *want)
{
    char text[4096];
    struct stat st;
    assert_true(fd_read_file_at(fd, name, text, sizeof(text)) >= 0);
    assert_string_equal(text, want);
    assert_int_equal(fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
}

/* Builds, and takes what was mounted away again. */
static int build(const char *name, const char *resolver, bool idmapped)
{
    struct err err = {0};
    mode_t mask = umask(077); /* what the launcher was started with does not matter */
    int fd = hostetc_build(state_fd, name, resolver, idmapped, &err);
    assert_int_equal(umask(mask), 077);
    if (fd < 0)
        fail_msg("%s", err.msg);
    return fd;
}

static void done(const char *name, int fd)
{
    char path[128];
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
}

static void identity_is_made_up(void **state)
{
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put("/etc/passwd", "alice:x:1000:1000:Alice:/home/alice:/bin/zsh\n", 0644);
    put("/etc/group", "wheel:x:10:alice\n", 0644);
    put("/etc/hostname", "secret-host\n", 0644);
    put("/etc/hosts", "10.0.0.1 intranet\n", 0644);
    put("/etc/resolv.conf", "nameserver 10.0.0.53\n", 0644);
    int fd = build("off", NULL, false);
    expect_text(fd, "passwd",
                "root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\n"
                "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    expect_text(fd, "group", "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n");
    expect_text(fd, "hostname", "box\n");
    expect_text(fd, "hosts", "127.0.0.1 localhost box\n::1 localhost\n");
    expect_text(fd, "resolv.conf", "# no network\n");
    done("off", fd);
    fd = build("on", "198.18.0.1", false);
    expect_text(fd, "resolv.conf", "nameserver 198.18.0.1\noptions edns0\n");
    done("on", fd);
}

static void only_what_programs_need_is_copied(void **state)
{
    static const char *const secret[] = {"shadow", "gshadow",     "machine-id", "ssh", "sudoers",
                                         "fstab",  "environment", "crontab",    "box", "private"};
    char path[64];
    struct stat st;
    char target[64];
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    for (size_t i = 0; i < ARRAY_SIZE(secret); i++) {
        (void)snprintf(path, sizeof(path), "/etc/%s", secret[i]);
        put(path, "secret\n", 0644);
    }
    put("/etc/services", "http 80/tcp\n", 0600 | S_IROTH);
    put_dir("/etc/alternatives", 0755);
    assert_int_equal(symlink("/usr/bin/vim.basic", "/etc/alternatives/vi"), 0);
    put_dir("/etc/ssl", 0755);
    put_dir("/etc/ssl/certs", 0775);
    put("/etc/ssl/certs/ca.pem", "cert\n", 0444);
    int fd = build("off", NULL, false);
    for (size_t i = 0; i < ARRAY_SIZE(secret); i++)
        assert_false(exists(fd, secret[i]));
    expect_text(fd, "services", "http 80/tcp\n");
    expect_text(fd, "ssl/certs/ca.pem", "cert\n");
    assert_int_equal(fstatat(fd, "ssl/certs", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    ssize_t n = readlinkat(fd, "alternatives/vi", target, sizeof(target) - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, "/usr/bin/vim.basic"); /* as a link, never what it leads to */
    done("off", fd);
}

static void what_others_may_not_read_is_left_out(void **state)
{
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/perl", 0755);
    put("/etc/perl/open", "open\n", 0644);
    put("/etc/perl/closed", "secret\n", 0640);
    put_dir("/etc/perl/private", 0755); /* by its name */
    put("/etc/perl/private/key", "secret\n", 0644);
    /* A closed directory protects files that are not closed themselves. */
    put_dir("/etc/perl/team", 0750);
    put("/etc/perl/team/key", "secret\n", 0644);
    put_dir("/etc/perl/unlisted", 0751);
    put("/etc/perl/unlisted/key", "secret\n", 0644);
    put_dir("/etc/perl/unsearchable", 0744);
    put("/etc/perl/unsearchable/key", "secret\n", 0644);
    put_dir("/etc/php", 0700);
    put("/etc/php/key", "secret\n", 0644);
    int fd = build("off", NULL, false);
    expect_text(fd, "perl/open", "open\n");
    assert_false(exists(fd, "perl/closed"));
    assert_false(exists(fd, "perl/private"));
    assert_false(exists(fd, "perl/team/key"));
    assert_false(exists(fd, "perl/unlisted/key"));
    assert_false(exists(fd, "perl/unsearchable/key"));
    assert_false(exists(fd, "php/key"));
    done("off", fd);
}

static void odd_things_do_no_harm(void **state)
{
    char path[256] = "/etc/fonts";
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir(path, 0755);
    assert_int_equal(mkfifo("/etc/fonts/fifo", 0644), 0); /* would be waited for */
    for (size_t len = strlen(path); len < 34; len += 2) {
        (void)snprintf(path + len, sizeof(path) - len, "/d");
        put_dir(path, 0755);
    }
    int big = open("/etc/magic", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(ftruncate(big, (4 << 20) + 1), 0);
    (void)close(big);
    assert_int_equal(symlink("loop", "/etc/loop"), 0);
    assert_int_equal(symlink("/etc/shadow", "/etc/timezone"), 0);
    int fd = build("off", NULL, false);
    assert_false(exists(fd, "fonts/fifo"));
    assert_true(exists(fd, "fonts/d/d/d"));
    assert_false(exists(fd, "fonts/d/d/d/d/d/d/d/d/d"));
    assert_false(exists(fd, "magic"));
    assert_false(exists(fd, "loop"));
    char target[32];
    assert_int_equal(readlinkat(fd, "timezone", target, sizeof(target)), strlen("/etc/shadow"));
    done("off", fd);
}

static void place_has_a_file_system_of_its_own(void **state)
{
    struct statfs st;
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    int fd = build("off", NULL, false);
    assert_int_equal(fstatfs(fd, &st), 0);
    assert_int_equal(st.f_type, TMPFS_MAGIC_NUMBER);
    AUTO_CLOSE int seen = openat(state_fd, "off", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(exists(seen, "passwd")); /* attached where it was asked for */
    done("off", fd);
    assert_false(exists(state_fd, "off/passwd"));
    /* What an earlier run left there goes first. */
    int old = openat(state_fd, "off/old", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(old >= 0);
    (void)close(old);
    fd = build("off", NULL, true);
    assert_false(exists(fd, "old"));
    expect_text(fd, "hostname", "box\n");
    done("off", fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_is_made_up),
        cmocka_unit_test(only_what_programs_need_is_copied),
        cmocka_unit_test(what_others_may_not_read_is_left_out),
        cmocka_unit_test(odd_things_do_no_harm),
        cmocka_unit_test(place_has_a_file_system_of_its_own),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
