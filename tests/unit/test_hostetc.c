/* SPDX-License-Identifier: Apache-2.0 */

/* In a mount namespace of its own, with an /etc that the test has written. */

#include "lib/unit.h"

#include "sandbox/setup/hostetc.h"
#include "sandbox/setup/hostetc_rules.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
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
    char path[128];
    (void)close(state_fd);
    (void)snprintf(path, sizeof(path), "%s/etc", dir); /* by a test that failed */
    if (ready)
        (void)umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
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

static struct hostetc *build(bool rootful)
{
    struct hostetc *h = NULL;
    struct err err = {0};
    mode_t mask = umask(077); /* what the launcher was started with does not matter */
    const struct hostetc_options options = {
        .state_fd = state_fd, .name = "etc", .resolver = "198.18.0.1", .rootful = rootful};
    int r = hostetc_new(&options, &h, &err);
    assert_int_equal(umask(mask), 077);
    if (r < 0)
        fail_msg("%s", err.msg);
    return h;
}

/* Takes what was mounted away again. */
static void done(struct hostetc *h)
{
    char path[128];
    hostetc_free(h);
    (void)snprintf(path, sizeof(path), "%s/etc", dir);
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
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    expect_text(fd, "passwd",
                "root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\n"
                "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    expect_text(fd, "group", "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n");
    expect_text(fd, "hostname", "box\n");
    expect_text(fd, "hosts", "127.0.0.1 localhost box\n::1 localhost\n");
    expect_text(fd, "resolv.conf", "# no network\n");
    fd = hostetc_dir(h, true);
    expect_text(fd, "resolv.conf", "nameserver 198.18.0.1\noptions edns0\n");
    expect_text(fd, "hostname", "box\n");
    done(h);
}

static void named_secrets_are_hidden_and_the_rest_is_copied(void **state)
{
    static const char *const secret[] = {"shadow",  "gshadow", "machine-id",  "wireguard",
                                         "sudoers", "fstab",   "environment", "crontab",
                                         "box",     "private"};
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
    put("/etc/whatever.conf", "set = 1\n", 0644);
    put_dir("/etc/alternatives", 0755);
    assert_int_equal(symlink("/usr/bin/vim.basic", "/etc/alternatives/vi"), 0);
    put_dir("/etc/ssl", 0755);
    put_dir("/etc/ssl/certs", 0775);
    put("/etc/ssl/certs/ca.pem", "cert\n", 0444);
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    for (size_t i = 0; i < ARRAY_SIZE(secret); i++)
        assert_false(exists(fd, secret[i]));
    expect_text(fd, "services", "http 80/tcp\n");
    expect_text(fd, "whatever.conf", "set = 1\n");
    expect_text(fd, "ssl/certs/ca.pem", "cert\n");
    assert_int_equal(fstatat(fd, "ssl/certs", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    ssize_t n = readlinkat(fd, "alternatives/vi", target, sizeof(target) - 1);
    assert_true(n > 0);
    target[n] = '\0';
    assert_string_equal(target, "/usr/bin/vim.basic"); /* as a link, never what it leads to */
    done(h);
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
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    expect_text(fd, "perl/open", "open\n");
    assert_false(exists(fd, "perl/closed"));
    assert_false(exists(fd, "perl/private"));
    assert_false(exists(fd, "perl/team/key"));
    assert_false(exists(fd, "perl/unlisted/key"));
    assert_false(exists(fd, "perl/unsearchable/key"));
    assert_false(exists(fd, "php/key"));
    done(h);
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
    assert_int_equal(symlink("/home/alice", "/etc/alice"), 0);
    assert_int_equal(symlink("/etc/shadow", "/etc/timezone"), 0);
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    assert_false(exists(fd, "fonts/fifo"));
    assert_true(exists(fd, "fonts/d/d/d"));
    assert_true(exists(fd, "fonts/d/d/d/d/d/d/d"));
    assert_false(exists(fd, "fonts/d/d/d/d/d/d/d/d"));
    assert_false(exists(fd, "magic"));
    assert_true(exists(fd, "loop")); /* as a link, which is never followed */
    assert_false(exists(fd, "alice"));
    char target[32];
    assert_int_equal(readlinkat(fd, "timezone", target, sizeof(target)), strlen("/etc/shadow"));
    done(h);
}

static void place_has_a_file_system_of_its_own(void **state)
{
    struct statfs st;
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    assert_int_equal(fstatfs(fd, &st), 0);
    assert_int_equal(st.f_type, TMPFS_MAGIC_NUMBER);
    AUTO_CLOSE int seen = openat(state_fd, "etc/off", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(exists(seen, "passwd")); /* attached where it was asked for */
    done(h);
    assert_false(exists(state_fd, "etc/off"));
    /* What an earlier run left there goes first. */
    int old = openat(state_fd, "etc/old", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(old >= 0);
    (void)close(old);
    h = build(geteuid() == 0);
    assert_false(exists(state_fd, "etc/old"));
    expect_text(hostetc_dir(h, false), "hostname", "box\n");
    done(h);
}

static void what_is_mounted_below_is_not_shown(void **state)
{
    char path[128];
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    (void)snprintf(path, sizeof(path), "%s/of-a-service", dir);
    put(path, "secret\n", 0644);
    put("/etc/k8s.conf", "below\n", 0644);
    put("/etc/later.conf", "below\n", 0644);
    put_dir("/etc/other", 0755);
    assert_int_equal(mount("tmpfs", "/etc/other", "tmpfs", 0, "mode=0755"), 0);
    put("/etc/other/file", "secret\n", 0644);
    assert_int_equal(mount(path, "/etc/k8s.conf", NULL, MS_BIND, NULL), 0);
    struct hostetc *h = build(geteuid() == 0);
    int fd = hostetc_dir(h, false);
    assert_false(exists(fd, "k8s.conf"));
    assert_false(exists(fd, "other"));
    expect_text(fd, "later.conf", "below\n");
    assert_int_equal(chmod("/etc/later.conf", 0664),
                     0); /* is told, and looked at behind the mount */
    assert_int_equal(mount(path, "/etc/later.conf", NULL, MS_BIND, NULL), 0);
    hostetc_refresh(h);
    assert_false(exists(fd, "later.conf"));
    static const char *const mounts[] = {"/etc/k8s.conf", "/etc/later.conf", "/etc/other"};
    for (size_t i = 0; i < ARRAY_SIZE(mounts); i++)
        assert_int_equal(umount2(mounts[i], MNT_DETACH | UMOUNT_NOFOLLOW), 0);
    done(h);
}

static void mounts_that_do_not_answer_are_not_waited_for(void **state)
{
    char options[96];
    AUTO_CLOSE int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC); /* nobody reads its requests */
    (void)snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (!ready || fuse < 0)
        print_message("skipped: no FUSE here\n"), skip();
    put_dir("/etc/hung", 0755);
    if (mount("hung", "/etc/hung", "fuse", MS_NOSUID | MS_NODEV, options) < 0)
        print_message("skipped: no FUSE here (%d)\n", errno), skip();
    (void)alarm(30); /* ends the test when it waits */
    struct hostetc *h = build(geteuid() == 0);
    assert_false(exists(hostetc_dir(h, false), "hung"));
    (void)alarm(0);
    assert_int_equal(umount2("/etc/hung", MNT_DETACH | UMOUNT_NOFOLLOW), 0);
    done(h);
}

static void changes_are_followed(void **state)
{
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/app", 0755);
    put("/etc/app/a", "old\n", 0644);
    struct hostetc *h = build(geteuid() == 0);
    int off = hostetc_dir(h, false), on = hostetc_dir(h, true);
    AUTO_CLOSE int held = openat(off, "app/a", O_RDONLY | O_CLOEXEC);
    char text[16] = "";
    put("/etc/app/a", "new\n", 0644);
    put_dir("/etc/app/sub", 0755);
    put("/etc/app/sub/b", "b\n", 0644);
    put("/etc/passwd", "mallory\n", 0644);
    hostetc_refresh(h);
    for (int i = 0; i < 2; i++) {
        expect_text(i == 0 ? off : on, "app/a", "new\n");
        expect_text(i == 0 ? off : on, "app/sub/b", "b\n");
    }
    assert_int_equal(fd_read_full(held, text, sizeof(text)), 4); /* whole, as it was opened */
    assert_string_equal(text, "old\n");
    assert_true(fd_read_file_at(off, "passwd", text, sizeof(text)) == -E2BIG); /* still ours */
    put("/etc/app/sub/c", "c\n", 0644); /* in a directory that came later */
    assert_int_equal(rename("/etc/app/sub", "/etc/app/moved"), 0);
    put("/etc/app/moved/d", "d\n", 0644);
    assert_int_equal(unlink("/etc/app/a"), 0);
    put_dir("/etc/app/a", 0755); /* another type under the same name */
    hostetc_refresh(h);
    expect_text(on, "app/moved/c", "c\n");
    expect_text(on, "app/moved/d", "d\n");
    assert_false(exists(on, "app/sub"));
    assert_true(exists(on, "app/a/."));
    assert_int_equal(rmdir("/etc/app/a"), 0);
    put("/etc/app/a", "file\n", 0644);
    assert_int_equal(chmod("/etc/app/moved/d", 0640), 0);
    hostetc_refresh(h);
    expect_text(off, "app/a", "file\n");
    assert_false(exists(off, "app/moved/d"));
    assert_false(exists(on, "app/moved/d"));
    assert_int_equal(chmod("/etc/app", 0750), 0);
    hostetc_refresh(h);
    assert_false(exists(off, "app"));
    put("/etc/app/a", "closed\n", 0644); /* nobody looks any more */
    hostetc_refresh(h);
    assert_false(exists(off, "app"));
    done(h);
}

/* The queue then tells of the file before it tells that its directory was closed. */
static void what_is_written_in_a_closed_directory_is_never_copied(void **state)
{
    char copied[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/p", 0755);
    put_dir("/etc/p/q", 0755);
    put("/etc/p/q/x", "old\n", 0644);
    struct hostetc *h = build(geteuid() == 0);
    AUTO_CLOSE int copy = openat(hostetc_dir(h, false), "p/q", O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int seen = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    (void)snprintf(copied, sizeof(copied), "/proc/self/fd/%d", copy);
    assert_true(inotify_add_watch(seen, copied, IN_MOVED_TO) >= 0);
    put("/etc/p/q/x", "new\n", 0644);
    hostetc_refresh(h);
    assert_true(read(seen, copied, sizeof(copied)) > 0); /* this is how a copy is seen */
    put("/etc/p/q/x", "newer\n", 0644);
    assert_int_equal(chmod("/etc/p", 0700), 0);
    put("/etc/p/q/x", "secret\n", 0644);
    hostetc_refresh(h);
    assert_false(exists(hostetc_dir(h, false), "p"));
    ssize_t n = read(seen, copied, sizeof(copied));
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(copied + at);
        assert_false(e->mask & IN_MOVED_TO);
        at += (ssize_t)(sizeof(*e) + e->len);
    }
    done(h);
}

/* Everything is looked at again after a while. */
static void settle(struct hostetc *h)
{
    for (int tries = 0; hostetc_is_stale(h); tries++) {
        assert_in_range(tries, 0, 1000);
        (void)usleep(10000);
        hostetc_refresh(h);
    }
}

/* What this process has read, in MiB. */
static unsigned long read_so_far(void)
{
    char text[512];
    assert_true(fd_read_file_at(AT_FDCWD, "/proc/self/io", text, sizeof(text)) > 0);
    return strtoul(text + strlen("rchar: "), NULL, 10) >> 20;
}

static void touch_all(unsigned names, unsigned times)
{
    char path[64];
    for (unsigned i = 0; i < names * times; i++) {
        (void)snprintf(path, sizeof(path), "/etc/svc/%u", i % names);
        assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
    }
}

static void work_of_one_refresh_has_a_bound(void **state)
{
    enum { LARGE = 4 << 20, NAMES = 200 };
    char path[64];
    if (!ready || access("/proc/self/io", R_OK) < 0)
        print_message("skipped: no right to mount here, or no count of what is read\n"), skip();
    put_dir("/etc/svc", 0755);
    put("/etc/svc/0", "x", 0644);
    put("/etc/svc/1", "x", 0644);
    assert_int_equal(truncate("/etc/svc/0", LARGE), 0);
    assert_int_equal(truncate("/etc/svc/1", LARGE), 0);
    struct hostetc *h = build(geteuid() == 0);
    unsigned long before = read_so_far();
    touch_all(2, 200); /* of many events about a name, one counts */
    hostetc_refresh(h);
    assert_in_range(read_so_far() - before, 0, 20);
    for (int i = 2; i < NAMES; i++) {
        (void)snprintf(path, sizeof(path), "/etc/svc/%d", i);
        assert_int_equal(link("/etc/svc/0", path), 0);
    }
    put("/etc/after", "after\n", 0644);
    before = read_so_far();
    hostetc_refresh(h); /* the first look at everything is made at once */
    assert_in_range(read_so_far() - before, 0, 300);
    expect_text(hostetc_dir(h, false), "after", "after\n");
    touch_all(NAMES, 2);
    before = read_so_far();
    hostetc_refresh(h); /* the next one is not */
    assert_in_range(read_so_far() - before, 0, 150);
    assert_true(hostetc_is_stale(h));
    assert_int_equal(path_remove_tree_at(AT_FDCWD, "/etc/svc"), 0);
    settle(h);
    assert_false(exists(hostetc_dir(h, false), "svc"));
    done(h);
}

static void a_file_stays_as_it_was_while_memory_is_short(void **state)
{
    static const char zeros[65536];
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put("/etc/app.conf", "old\n", 0644);
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false);
    int held = openat(fd, "held", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(unlinkat(fd, "held", 0), 0); /* as a session does that has it open */
    while (write(held, zeros, sizeof(zeros)) > 0)
        ;
    put("/etc/app.conf", "new\n", 0644);
    hostetc_refresh(h);
    expect_text(fd, "app.conf", "old\n");
    assert_int_equal(hostetc_left_out(h), 1); /* which is logged */
    assert_true(hostetc_is_stale(h));
    (void)close(held);
    settle(h); /* nothing has changed in /etc since */
    expect_text(fd, "app.conf", "new\n");
    assert_int_equal(hostetc_left_out(h), 0);
    done(h);
}

static void a_want_of_descriptors_hides_nothing(void **state)
{
    struct rlimit all, few;
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/few", 0755);
    put("/etc/few/file", "old\n", 0644);
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, false), next = dup(fd);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
    (void)close(next);
    put("/etc/few/file", "new\n", 0644);
    for (int i = 0; i < 8; i++) {
        few = (struct rlimit){.rlim_cur = (rlim_t)(next + i), .rlim_max = all.rlim_max};
        put("/etc/few/other", "other\n", 0644);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        hostetc_refresh(h);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
        assert_true(exists(fd, "few/file"));
        assert_true(i > 0 || (hostetc_left_out(h) > 0 && hostetc_is_stale(h)));
    }
    settle(h);
    expect_text(fd, "few/file", "new\n");
    assert_int_equal(hostetc_left_out(h), 0);
    done(h);
}

static unsigned count_watches(const struct hostetc *h)
{
    char path[64], text[65536];
    unsigned n = 0;
    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", hostetc_watch_fd(h));
    assert_true(fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) > 0);
    for (const char *at = text; (at = strstr(at, "inotify wd:")) != NULL; at++)
        n++;
    return n;
}

/* Their number has a limit. A directory that moved on within the file system keeps its watch, until
 * someone takes it away. */
static void watches_of_directories_that_went_are_given_back(void **state)
{
    char text[16];
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/svc", 0755);
    put("/etc/svc/0", "", 0644);
    put("/etc/svc/1", "", 0644);
    put_dir("/etc/goes", 0755);
    put_dir("/etc/goes/too", 0755);
    put_dir("/etc/my-secrets", 0755);
    struct hostetc *h = build(false);
    unsigned before = count_watches(h);
    assert_true(fd_read_file_at(AT_FDCWD, "/proc/sys/fs/inotify/max_queued_events", text,
                                sizeof(text)) > 0);
    touch_all(2, (unsigned)atoi(text)); /* what comes then is not told */
    assert_int_equal(rename("/etc/goes", "/etc/my-secrets/goes"), 0);
    hostetc_refresh(h);
    settle(h);
    assert_false(exists(hostetc_dir(h, false), "goes"));
    assert_int_equal(count_watches(h), before - 2);
    put("/etc/svc/0", "followed\n", 0644);
    hostetc_refresh(h);
    expect_text(hostetc_dir(h, false), "svc/0", "followed\n");
    done(h);
}

static void fill_dir(const char *in, int n)
{
    char path[64];
    for (int i = 0; i < n; i++) {
        (void)snprintf(path, sizeof(path), "%s/%d", in, i);
        put(path, "", 0644);
    }
}

static void one_directory_takes_no_room_from_others(void **state)
{
    char name[32], path[64];
    if (!ready)
        print_message("skipped: no right to mount here\n"), skip();
    put_dir("/etc/many", 0755);
    put_dir("/etc/many/below", 0755);
    put("/etc/many/first", "first\n", 0644);
    fill_dir("/etc/many/below", 9000);
    put_dir("/etc/large", 0755);
    for (int i = 0; i < 20; i++) {
        (void)snprintf(path, sizeof(path), "/etc/large/%d", i);
        put(path, "", 0644);
        assert_int_equal(truncate(path, 4 << 20), 0);
    }
    put_dir("/etc/zz", 0755);
    fill_dir("/etc/zz", 1500);
    struct hostetc *h = build(false);
    int fd = hostetc_dir(h, true), shown = 0;
    assert_true(hostetc_left_out(h) > 0);
    assert_true(exists(fd, "zz/1499"));
    assert_false(exists(fd, "many/below")); /* all or nothing of so many */
    for (int i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof(name), "large/%d", i);
        shown += exists(fd, name);
    }
    assert_int_equal(shown, 4);
    put("/etc/zz/new", "new\n", 0644);
    hostetc_refresh(h);
    expect_text(fd, "zz/new", "new\n");
    assert_int_equal(path_remove_tree_at(AT_FDCWD, "/etc/many/below"), 0);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, "/etc/large"), 0);
    hostetc_refresh(h);
    settle(h);
    expect_text(fd, "many/first", "first\n");
    assert_int_equal(hostetc_left_out(h), 0);
    fill_dir("/etc/many", 9000); /* while it is watched */
    put("/etc/zz/new", "newer\n", 0644);
    hostetc_refresh(h);
    settle(h);
    expect_text(fd, "zz/new", "newer\n");
    assert_true(exists(fd, "zz/1499"));
    assert_false(exists(fd, "many/1"));
    assert_int_equal(path_remove_tree_at(AT_FDCWD, "/etc/many"), 0);
    done(h);
}

static void content_of_secrets_is_recognised(void **state)
{
    static const struct {
        const char *text;
        bool secret;
    } cases[] = {
        {"-----BEGIN RSA PRIVATE KEY-----\n", true},
        {"x\n-----BEGIN PGP PRIVATE KEY BLOCK-----", true},
        {"-----BEGIN CERTIFICATE-----\nPRIVATE KEY\n", false},
        {"proxy = http://me:word@proxy:3128/\n", true},
        {"url = \"https://:x@h\"", true},
        {"http://host:8080/a@b", false},
        {"https://user@host/", false},
        {"https://user:@host/", false},
        {"//r/:_authToken=1", true},
        {"//r/:_password=1", true},
        {"_password=1", true},
        {"a=b\n_password = 1", true},
        {"# input_password = secret\n", false}, /* of openssl.cnf, which programs need */
        {"proxy_password = x\n", true},
        {"[global]\nhttp-proxy-password = x\n", true},
        {"<server><password>x</password></server>", true},
        {"PuTTY-User-Key-File-3: ssh-ed25519\n", true},
        {"users:\n- user:\n    client-key-data: LS0t\n", true},
        {"header = \"Authorization: Bearer x\"\n", true},
        {"{\"proxy\": \"http:\\/\\/me:word@proxy\"}", true},
        {"{\"page\": \"http:\\/\\/host\\/a:b@c\"}", false},
        {"https://ghp_0123456789abcdef@host/x.git", true},
        {"ssh://a.rather.long.user-name@host/", true},
        {"ssh://nineteen-characters@host/", false},
        {"https://host.example.org/01234567890123456789@1", false},
        {"", false},
        {"://", false},
        {"a://b:c", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(hostetc_is_secret(cases[i].text, strlen(cases[i].text)), cases[i].secret);
}

/* Repeats `text` in a file of the largest size that is looked at. */
static char *repeated(const char *text, size_t size)
{
    char *all = malloc(size);
    assert_non_null(all);
    for (size_t i = 0, n = strlen(text); i < size; i++)
        all[i] = text[i % n];
    return all;
}

static void content_is_looked_at_in_linear_time(void **state)
{
    static const char *const texts[] = {
        "-----BEGIN ", "://", "://a:", "-----BEGIN \n", "a://b@", ":\\/\\/"};
    const size_t size = 1U << 20;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        AUTO_FREE char *text = repeated(texts[i], size);
        clock_t before = clock();
        assert_false(hostetc_is_secret(text, size));
        assert_in_range(clock() - before, 0, 2 * CLOCKS_PER_SEC);
        memcpy(text + size - 11, "PRIVATE KEY", 11); /* at the end of what may be a long line */
        assert_int_equal(hostetc_is_secret(text, size), i == 0);
    }
}

static void links_fit_when_they_stay_in_the_image(void **state)
{
    static const struct {
        const char *path, *target;
        bool fits;
    } cases[] = {
        {"alternatives/vi", "/usr/bin/vim", true},
        {"localtime", "../usr/share/zoneinfo/UTC", true},
        {"mtab", "../proc/self/mounts", true},
        {"a/b/c", "../../../usr/x", true},
        {"a/b/c", "../../usr/x", true}, /* /etc/usr/x */
        {"a/b/c", "../../../home/x", false},
        {"a", "/usr/../root/x", false},
        {"a", "/usrlocal", false},
        {"a", "../../../../..", false},
        {"a", "/", false},
        {"a", "/dev/null", true},
        {"a", "/dev/sda", false},
        {"a", "b", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(hostetc_link_fits(cases[i].path, cases[i].target), cases[i].fits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_is_made_up),
        cmocka_unit_test(named_secrets_are_hidden_and_the_rest_is_copied),
        cmocka_unit_test(what_others_may_not_read_is_left_out),
        cmocka_unit_test(odd_things_do_no_harm),
        cmocka_unit_test(place_has_a_file_system_of_its_own),
        cmocka_unit_test(what_is_mounted_below_is_not_shown),
        cmocka_unit_test(mounts_that_do_not_answer_are_not_waited_for),
        cmocka_unit_test(changes_are_followed),
        cmocka_unit_test(what_is_written_in_a_closed_directory_is_never_copied),
        cmocka_unit_test(work_of_one_refresh_has_a_bound),
        cmocka_unit_test(a_file_stays_as_it_was_while_memory_is_short),
        cmocka_unit_test(a_want_of_descriptors_hides_nothing),
        cmocka_unit_test(watches_of_directories_that_went_are_given_back),
        cmocka_unit_test(one_directory_takes_no_room_from_others),
        cmocka_unit_test(content_of_secrets_is_recognised),
        cmocka_unit_test(content_is_looked_at_in_linear_time),
        cmocka_unit_test(links_fit_when_they_stay_in_the_image),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
