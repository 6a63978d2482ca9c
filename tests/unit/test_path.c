/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "base/str.h"

static char root_path[64];
static int root = -1;

static int make_root(void **state)
{
    /* Memory where there is some: this is about calls, not about disks. $TMPDIR says otherwise. */
    const char *base = getenv("TMPDIR");
    if (!base)
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (str_fmt(root_path, sizeof(root_path), "%s/test_path.XXXXXX", base) < 0 ||
        !mkdtemp(root_path))
        return -1;
    root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? -1 : 0;
}

static int remove_root(void **state)
{
    (void)close(root);
    return path_remove_tree_at(AT_FDCWD, root_path);
}

static bool exists(int dirfd, const char *name)
{
    struct stat st;

    return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void make_file(int dirfd, const char *name)
{
    AUTO_CLOSE int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
}

static int make_dir(int dirfd, const char *name)
{
    int fd = path_make_dir_at(dirfd, name, 0755);

    assert_true(fd >= 0);
    return fd;
}

static void nothing_outside_can_be_opened(void **state)
{
    AUTO_CLOSE int in = make_dir(root, "in");
    make_file(root, "outside");
    make_file(in, "file");
    assert_int_equal(symlinkat("../outside", in, "up"), 0);
    assert_int_equal(symlinkat("file", in, "same"), 0);
    assert_int_equal(symlinkat("/proc/self/fd/0", in, "magic"), 0);

    int fd = path_open_beneath(in, "file", O_RDONLY, 0);
    if (fd == -ENOSYS)
        print_message("skipped: this kernel has no openat2\n"), skip();
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    (void)close(fd);

    static const char *const self[] = {"", ".", "./"};
    for (size_t i = 0; i < ARRAY_SIZE(self); i++) {
        fd = path_open_beneath(in, self[i], O_RDONLY | O_DIRECTORY, 0);
        assert_true(fd >= 0);
        assert_true(exists(fd, "file"));
        (void)close(fd);
    }

    assert_int_equal(path_open_beneath(in, "../outside", O_RDONLY, 0), -EXDEV);
    assert_int_equal(path_open_beneath(in, "..", O_RDONLY, 0), -EXDEV);
    assert_int_equal(path_open_beneath(in, "/etc/passwd", O_RDONLY, 0), -EXDEV);
    assert_int_equal(path_open_beneath(in, "up", O_RDONLY, 0), -ELOOP);
    assert_int_equal(path_open_beneath(in, "same", O_RDONLY, 0), -ELOOP);
    assert_int_equal(path_open_beneath(in, "magic", O_RDONLY, 0), -ELOOP);
    assert_int_equal(path_open_beneath(in, "missing", O_RDONLY, 0), -ENOENT);
}

static void a_mode_matters_only_to_what_is_made(void **state)
{
    struct stat st;
    int fd = path_open_beneath(root, "made", O_WRONLY | O_CREAT | O_EXCL, 0600);

    if (fd == -ENOSYS)
        print_message("skipped: this kernel has no openat2\n"), skip();
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    (void)close(fd);
    fd = path_open_beneath(root, "made", O_RDONLY, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    /* O_TMPFILE holds the bits of O_DIRECTORY. */
    fd = path_open_beneath(root, ".", O_RDONLY | O_DIRECTORY, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void clean_paths(void **state)
{
    static const char *const good[] = {"/", "/a", "/a/b.c", "/...", "/.a", "/a/..b", "/ "};
    static const char *const bad[] = {"",    "a",    ".",     "//",   "/a/",   "/a//b", "/.",
                                      "/..", "/a/.", "/a/..", "/./a", "/../a", "a/b",   "/a/./b"};
    char long_path[PATH_MAX + 1];

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_true(path_is_clean_absolute(good[i]));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(path_is_clean_absolute(bad[i]));
    assert_false(path_is_clean_absolute(NULL));
    memset(long_path, 'a', sizeof(long_path));
    long_path[0] = '/';
    long_path[PATH_MAX] = '\0';
    assert_false(path_is_clean_absolute(long_path));
    long_path[PATH_MAX - 1] = '\0';
    assert_true(path_is_clean_absolute(long_path));
}

static void a_directory_is_made_once_and_never_a_link(void **state)
{
    AUTO_CLOSE int a = path_make_dir_at(root, "dir", 0700);
    AUTO_CLOSE int b = path_make_dir_at(root, "dir", 0700);

    assert_true(a >= 0);
    assert_true(b >= 0);
    assert_true(fcntl(b, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(symlinkat("dir", root, "link"), 0);
    assert_int_equal(path_make_dir_at(root, "link", 0700), -ENOTDIR);
    make_file(root, "plain");
    assert_int_equal(path_make_dir_at(root, "plain", 0700), -ENOTDIR);
    assert_int_equal(path_make_dir_at(root, "no/such", 0700), -ENOENT);
}

static void the_deepest_directory_and_what_is_missing(void **state)
{
    static const struct {
        const char *path, *missing;
        int result; /* a negative errno, or 0 */
    } cases[] = {
        {"", "", 0},
        {"a", "", 0},
        {"a/b", "", 0},
        {"a/b/c", "c", 0},
        {"a/x/y/z", "x/y/z", 0},
        {"x", "x", 0},
        {"link/b", "", -ELOOP},
        {"plain/x", "", -ENOTDIR},
        {"a/plain", "", -ENOTDIR},
    };
    AUTO_CLOSE int a = path_make_dir_at(root, "a", 0700);
    AUTO_CLOSE int b = path_make_dir_at(a, "b", 0700);
    struct stat st, want;

    assert_true(b >= 0);
    assert_int_equal(symlinkat("a", root, "link"), 0);
    make_file(root, "plain");
    make_file(a, "plain");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *missing = NULL;
        AUTO_CLOSE int fd = path_open_deepest(root, cases[i].path, &missing);
        if (cases[i].result < 0) {
            assert_int_equal(fd, cases[i].result);
            continue;
        }
        assert_true(fd >= 0);
        assert_string_equal(missing, cases[i].missing);
        int depth = cases[i].path[0] != 'a' ? root : str_starts(cases[i].path, "a/b") ? b : a;
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(fstat(depth, &want), 0);
        assert_int_equal(st.st_ino, want.st_ino);
    }
}

static void storage_is_opened_and_other_mounts_are_not(void **state)
{
    static const struct {
        const char *path;
        int flags, result;
    } cases[] = {
        {"a", O_DIRECTORY, 0},      {"a/plain", 0, 0},
        {"", O_DIRECTORY, 0},       {"a/plain", O_DIRECTORY, -ENOTDIR},
        {"link", 0, -ELOOP},        {"link/plain", 0, -ELOOP},
        {"../outside", 0, -EXDEV},  {"a/missing", 0, -ENOENT},
        {"a/plain/x", 0, -ENOTDIR},
    };
    AUTO_CLOSE int a = path_make_dir_at(root, "a", 0700);
    AUTO_CLOSE int host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    make_file(a, "plain");
    assert_int_equal(symlinkat("a", root, "link"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_CLOSE int fd = path_open_storage(root, cases[i].path, cases[i].flags);
        assert_int_equal(fd < 0 ? fd : 0, cases[i].result);
    }
    assert_true(host >= 0);
    assert_int_equal(path_open_storage(host, "proc", O_DIRECTORY), -EXDEV);
    assert_int_equal(path_open_storage(host, "proc/self/root", 0), -EXDEV);
    assert_int_equal(path_open_storage(host, "proc/../etc", 0), -EXDEV);
}

static void what_is_missing_is_removed_already(void **state)
{
    assert_int_equal(path_remove_tree_at(root, "missing"), 0);
    make_file(root, "f");
    assert_int_equal(path_remove_tree_at(root, "f"), 0);
    assert_false(exists(root, "f"));
    assert_int_equal(path_remove_tree_at(root, "no/such"), 0);
}

static void links_are_removed_and_not_followed(void **state)
{
    AUTO_CLOSE int keep = make_dir(root, "keep");
    AUTO_CLOSE int tree = make_dir(root, "tree");
    make_file(keep, "precious");
    assert_int_equal(symlinkat("../keep", tree, "dir"), 0);
    assert_int_equal(symlinkat("../keep/precious", tree, "file"), 0);
    assert_int_equal(linkat(keep, "precious", tree, "hard", 0), 0);
    assert_int_equal(symlinkat("keep", root, "top"), 0);

    assert_int_equal(path_remove_tree_at(root, "top"), 0);
    assert_int_equal(path_remove_tree_at(root, "tree"), 0);
    assert_false(exists(root, "top"));
    assert_false(exists(root, "tree"));
    assert_true(exists(keep, "precious"));
}

static void names_of_any_bytes_and_files_of_any_kind(void **state)
{
    AUTO_CLOSE int tree = make_dir(root, "tree");
    char name[256];

    for (int c = 1; c < 256; c++) {
        if (c == '/')
            continue;
        name[0] = (char)c;
        name[1] = 'x';
        name[2] = '\0';
        if (c % 2) {
            make_file(tree, name);
        } else {
            AUTO_CLOSE int sub = make_dir(tree, name);
            make_file(sub, "-rf");
        }
    }
    memset(name, 'n', 255);
    name[255] = '\0';
    AUTO_CLOSE int sub = make_dir(tree, name);
    AUTO_CLOSE int sub2 = make_dir(sub, name);
    make_file(sub2, name);
    assert_int_equal(mkfifoat(tree, "fifo", 0600), 0);
    assert_int_equal(mknodat(tree, "sock", S_IFSOCK | 0600, 0), 0);
    assert_int_equal(path_remove_tree_at(root, "tree"), 0);
    assert_false(exists(root, "tree"));
}

/* A chain of directories below name, deeper than any path. */
static void make_chain(int dirfd, const char *name, int depth)
{
    int fd = make_dir(dirfd, name);

    for (int i = 1; i < depth; i++) {
        int next = make_dir(fd, "d");
        if (i % 100 == 0)
            make_file(fd, "f");
        (void)close(fd);
        fd = next;
    }
    make_file(fd, "deepest");
    (void)close(fd);
}

static void depth_costs_no_descriptors(void **state)
{
    struct rlimit old, few = {.rlim_cur = 64, .rlim_max = 64};

    make_chain(root, "chain", 10000);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = path_remove_tree_at(root, "chain");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(r, 0);
    assert_false(exists(root, "chain"));
}

static void chains_beside_each_other(void **state)
{
    AUTO_CLOSE int tree = make_dir(root, "tree");
    char name[16];

    for (int i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof(name), "%d", i);
        make_chain(tree, name, 20 + 5 * i);
    }
    assert_int_equal(path_remove_tree_at(root, "tree"), 0);
    assert_false(exists(root, "tree"));
}

static void many_files_in_one_directory(void **state)
{
    AUTO_CLOSE int tree = make_dir(root, "tree");
    char name[16];

    for (int i = 0; i < 3000; i++) {
        (void)snprintf(name, sizeof(name), "%d", i);
        assert_int_equal(mknodat(tree, name, S_IFREG | 0600, 0), 0);
    }
    assert_int_equal(path_remove_tree_at(root, "tree"), 0);
    assert_false(exists(root, "tree"));
}

/* Runs fn in a child as nobody in particular; fn returns 0 when all is well. */
static void run_unprivileged(int (*fn)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
            _exit(99);
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int locked_tree(void)
{
    int fd = path_make_dir_at(root, "mine", 0755);

    if (fd < 0)
        return 1;
    for (int i = 0; i < 100; i++) {
        int next = path_make_dir_at(fd, "locked", 0755);
        if (next < 0 || mknodat(next, "file", S_IFREG | 0600, 0) < 0)
            return 2;
        if (fchmod(fd, i % 2 ? 0000 : 0500) < 0)
            return 3;
        (void)close(fd);
        fd = next;
    }
    (void)close(fd);
    if (path_remove_tree_at(root, "mine") < 0)
        return 4;
    return exists(root, "mine") ? 5 : 0;
}

static void directories_without_permission_are_opened_up(void **state)
{
    assert_int_equal(fchmod(root, 0777), 0);
    run_unprivileged(locked_tree);
}

static int foreign_tree(void)
{
    int r = path_remove_tree_at(root, "foreign");

    return r == -EACCES || r == -EPERM ? 0 : 1;
}

static void what_may_not_be_removed_is_told(void **state)
{
    if (geteuid() != 0)
        print_message("skipped: needs root\n"), skip();
    AUTO_CLOSE int tree = make_dir(root, "foreign");
    AUTO_CLOSE int sub = make_dir(tree, "sub");
    make_file(sub, "file");
    assert_int_equal(fchmod(root, 0777), 0);
    run_unprivileged(foreign_tree);
    assert_true(exists(sub, "file"));
    assert_int_equal(path_remove_tree_at(root, "foreign"), 0);
}

/* In a mount namespace of its own, so that nothing is left behind. */
static int mounted_tree(void)
{
    char path[96], source[96];

    if (unshare(CLONE_NEWNS) < 0)
        return errno == EPERM ? 77 : 1;
    if (mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0)
        return 2;
    (void)snprintf(path, sizeof(path), "%s/tree/sub/mnt", root_path);
    (void)snprintf(source, sizeof(source), "%s/host", root_path);
    if (mount(source, path, "none", MS_BIND, NULL) < 0)
        return 3;
    root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* as this namespace sees it */
    if (root < 0)
        return 4;
    if (path_remove_tree_at(root, "tree/sub/mnt") != -EBUSY)
        return 4;
    if (path_remove_tree_at(root, "tree") != -EBUSY)
        return 5;

    /* Without rights in the tree the kernel does not get as far as to say "busy"; with rights in
     * what is mounted, only our own look at it protects that. */
    if (chown(source, 65534, 65534) < 0 || fchmod(root, 0777) < 0)
        return 6;
    if (setgid(65534) < 0 || setuid(65534) < 0)
        return 7;
    return path_remove_tree_at(root, "tree") < 0 ? 0 : 8;
}

static void what_is_mounted_is_not_ours_to_remove(void **state)
{
    AUTO_CLOSE int host = make_dir(root, "host");
    AUTO_CLOSE int tree = make_dir(root, "tree");
    AUTO_CLOSE int sub = make_dir(tree, "sub");
    int status;

    (void)close(make_dir(sub, "mnt"));
    make_file(host, "precious");
    make_file(tree, "gone");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(mounted_tree());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        print_message("skipped: no right to mount here\n"), skip();
    assert_int_equal(status, 0);
    assert_true(exists(host, "precious"));
    assert_false(exists(tree, "gone"));
    assert_true(exists(sub, "mnt"));
}

/* Swaps a directory and a link to what must stay, as fast as it can. */
static void swap_for_ever(int tree, int ready)
{
    for (bool told = false;;) {
        int sub = path_make_dir_at(tree, "a", 0755);
        if (sub >= 0) {
            (void)mknodat(sub, "f", S_IFREG | 0600, 0);
            (void)close(sub);
        }
        (void)!symlinkat("../keep", tree, "b");
        (void)renameat2(tree, "a", tree, "b", RENAME_EXCHANGE);
        (void)renameat2(tree, "b", tree, "c", RENAME_NOREPLACE);
        if (!told)
            (void)!write(ready, "x", 1);
        told = true;
    }
}

static void swapping_entries_leads_nowhere(void **state)
{
    AUTO_CLOSE int keep = make_dir(root, "keep");
    make_file(keep, "precious");

    for (int i = 0; i < 20; i++) {
        int tree = make_dir(root, "tree"), ready[2];
        char byte;
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            swap_for_ever(tree, ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        /* Whether it gets to the end is a race; that it stays inside is not. */
        (void)path_remove_tree_at(root, "tree");
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        (void)close(tree);
        (void)close(ready[0]);
        (void)close(ready[1]);
        assert_int_equal(path_remove_tree_at(root, "tree"), 0);
        assert_true(exists(keep, "precious"));
    }
}

/* Each test has the root directory for itself. */
static int empty_root(void **state)
{
    static const char *const names[] = {"in",    "outside", "made", "dir", "link",
                                        "plain", "keep",    "tree", "top", "foreign",
                                        "host",  "mine",    "chain"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (path_remove_tree_at(root, names[i]) < 0)
            return -1;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_outside_can_be_opened, empty_root),
        cmocka_unit_test_teardown(a_mode_matters_only_to_what_is_made, empty_root),
        cmocka_unit_test(clean_paths),
        cmocka_unit_test_teardown(a_directory_is_made_once_and_never_a_link, empty_root),
        cmocka_unit_test_teardown(the_deepest_directory_and_what_is_missing, empty_root),
        cmocka_unit_test_teardown(storage_is_opened_and_other_mounts_are_not, empty_root),
        cmocka_unit_test_teardown(what_is_missing_is_removed_already, empty_root),
        cmocka_unit_test_teardown(links_are_removed_and_not_followed, empty_root),
        cmocka_unit_test_teardown(names_of_any_bytes_and_files_of_any_kind, empty_root),
        cmocka_unit_test_teardown(depth_costs_no_descriptors, empty_root),
        cmocka_unit_test_teardown(chains_beside_each_other, empty_root),
        cmocka_unit_test_teardown(many_files_in_one_directory, empty_root),
        cmocka_unit_test_teardown(directories_without_permission_are_opened_up, empty_root),
        cmocka_unit_test_teardown(what_may_not_be_removed_is_told, empty_root),
        cmocka_unit_test_teardown(what_is_mounted_is_not_ours_to_remove, empty_root),
        cmocka_unit_test_teardown(swapping_entries_leads_nowhere, empty_root),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
