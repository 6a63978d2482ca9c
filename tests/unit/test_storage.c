/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

/* For what is private to it. */
#include "sandbox/launch/launch.c"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"

static char dir[64];
static struct launch_host host;

static int start(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-storage-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    AUTO_CLOSE int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    host = (struct launch_host){.daemon_uid = geteuid(), .daemon_gid = getegid()};
    host.sessions_fd = path_make_dir_at(fd, "sessions", 0700);
    host.trash_fd = path_make_dir_at(fd, "trash", 0700);
    host.kept_fd = path_make_dir_at(fd, "kept", 0700);
    return host.sessions_fd < 0 || host.trash_fd < 0 || host.kept_fd < 0 ? -1 : 0;
}

static int stop(void **state)
{
    (void)close(host.sessions_fd);
    (void)close(host.trash_fd);
    (void)close(host.kept_fd);
    return path_remove_tree_at(AT_FDCWD, dir);
}

static bool exists(int dirfd, const char *name)
{
    return faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static struct plan plan_of(const char *name, bool quota, unsigned flags)
{
    static struct plan plan;
    plan = (struct plan){.flags = flags, .quota_bytes = quota ? 1U << 20 : 0};
    (void)str_copy(plan.name, sizeof(plan.name), name);
    return plan;
}

static void make(const char *name, bool quota)
{
    struct err err = {0};
    struct stat st;
    const struct plan plan = plan_of(name, quota, 0);
    AUTO_CLOSE int fd = storage_make(&host, &plan, &err);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700); /* closed to everybody else */
    assert_int_equal(st.st_uid, host.daemon_uid);
}

/* As the launcher does: a directory for each private mount. */
static void make_used(const char *name)
{
    make(name, false);
    AUTO_CLOSE int fd = openat(host.sessions_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int workspace = path_make_dir_at(fd, "workspace", 0755);
    AUTO_CLOSE int home = path_make_dir_at(fd, "home", 0755);
    assert_true(workspace >= 0 && home >= 0);
}

/* Removes, and waits for the child that does it. Tells whether there was one. */
static bool drop(const char *name, bool quota)
{
    int pidfd = storage_remove(&host, host.sessions_fd, name, quota);
    assert_false(exists(host.sessions_fd, name)); /* at once, whoever deletes the files */
    if (pidfd < 0)
        return false;
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    siginfo_t info;
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED), 0);
    (void)close(pidfd);
    assert_false(exists(host.trash_fd, name));
    return true;
}

static void storage_is_made_once(void **state)
{
    struct err err = {0};
    const struct plan plan = plan_of("a", false, 0);
    make("a", false);
    assert_int_equal(storage_make(&host, &plan, &err), -EEXIST);
    assert_string_equal(err.msg, "make storage for 'a': File exists");
    make("b", false);
}

static void empty_storage_is_kept_for_the_next(void **state)
{
    make_used("a");
    assert_false(drop("a", false));
    assert_int_equal(host.n_spares, 1);
    assert_true(exists(host.trash_fd, "spare-0"));
    make("b", false);
    assert_int_equal(host.n_spares, 0);
    assert_false(exists(host.trash_fd, "spare-0"));
    assert_true(exists(host.sessions_fd, "b/workspace"));
    /* A quota has everything in an image: such storage begins empty. */
    assert_false(drop("b", false));
    make("c", true);
    assert_int_equal(host.n_spares, 1);
    assert_false(exists(host.sessions_fd, "c/workspace"));
    assert_true(drop("c", true));
    assert_int_equal(host.n_spares, 1);
}

static void put(const char *path)
{
    int fd = openat(host.sessions_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void used_storage_is_deleted(void **state)
{
    static const char *const files[] = {"a/workspace/f", "a/home/f", "a/workspace/.hidden",
                                        "a/other"};
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        make_used("a");
        put(files[i]);
        assert_true(drop("a", false));
    }
    make_used("a");
    assert_int_equal(mkdirat(host.sessions_fd, "a/layer-usr", 0700), 0);
    assert_true(drop("a", false));
    make_used("a"); /* a link in the place of a directory is not followed */
    assert_int_equal(unlinkat(host.sessions_fd, "a/home", AT_REMOVEDIR), 0);
    assert_int_equal(symlinkat("/", host.sessions_fd, "a/home"), 0);
    assert_true(drop("a", false));
    assert_int_equal(host.n_spares, 0);
}

static void what_the_last_owner_did_to_a_directory_is_undone(void **state)
{
    struct stat st;
    make_used("a");
    assert_int_equal(fchmodat(host.sessions_fd, "a/workspace", 07777, 0), 0);
    assert_false(drop("a", false));
    assert_int_equal(fstatat(host.trash_fd, "spare-0/workspace", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    make("b", false);

    AUTO_CLOSE int fd = openat(host.sessions_fd, "b/workspace", O_RDONLY | O_CLOEXEC);
    if (fsetxattr(fd, "user.note", "x", 1, 0) < 0) {
        print_message("no user attributes on this file system; not tried\n");
        return;
    }
    assert_true(drop("b", false)); /* attributes cannot all be listed: deleted */
}

static void spares_are_made_ahead_and_limited(void **state)
{
    char name[16];
    launch_refill_storage(&host, 3);
    assert_int_equal(host.n_spares, 3);
    assert_true(exists(host.trash_fd, "spare-2/home"));
    launch_refill_storage(&host, 100);
    assert_int_equal(host.n_spares, LAUNCH_SPARES_MAX);
    make_used("a"); /* takes one, and is one too many afterwards only if nothing took another */
    assert_int_equal(host.n_spares, LAUNCH_SPARES_MAX - 1);
    launch_refill_storage(&host, 1);
    assert_true(drop("a", false));
    assert_int_equal(host.n_spares, LAUNCH_SPARES_MAX);
    for (unsigned i = 0; i < LAUNCH_SPARES_MAX; i++) {
        (void)snprintf(name, sizeof(name), "s%u", i);
        make(name, false);
    }
    assert_int_equal(host.n_spares, 0);
    make("last", false);
}

static void spare_that_is_gone_is_made_up_for(void **state)
{
    host.n_spares = 1; /* somebody has tidied up */
    make("a", false);
    assert_int_equal(host.n_spares, 0);
}

static void missing_storage_is_nothing_to_remove(void **state)
{
    assert_false(drop("never-made", false));
    assert_false(drop("never-made", true));
}

#define T(name) cmocka_unit_test_setup_teardown(name, start, stop)

static bool is_live(void *arg, const char *name)
{
    return str_eq(name, arg);
}

/* As the launcher does for a sandbox that is to be kept; tells whether its storage was there. */
static bool get_kept(const char *name)
{
    struct err err = {0};
    const struct plan plan = plan_of(name, false, PLAN_DURABLE);
    bool kept = false;
    AUTO_CLOSE int fd = storage_get(&host, &plan, &kept, &err);
    AUTO_CLOSE int workspace = path_make_dir_at(fd, "workspace", 0755);
    assert_true(fd >= 0 && workspace >= 0);
    return kept;
}

static void kept_storage_is_found_again(void **state)
{
    assert_false(get_kept("k"));
    assert_true(exists(host.kept_fd, "k/workspace"));
    assert_true(get_kept("k"));
    assert_int_equal(launch_forget(&host, "k"), 0);
    assert_false(exists(host.kept_fd, "k"));
    assert_int_equal(launch_forget(&host, "k"), -ENOENT);
    while (children_reap(), exists(host.trash_fd, "k"))
        (void)poll(NULL, 0, 1);
}

static void a_sweep_leaves_every_file_that_is_kept(void **state)
{
    struct stat before, after;
    char live[] = "live";
    assert_false(get_kept("empty"));
    assert_false(get_kept("full"));
    assert_false(get_kept("live"));
    assert_false(get_kept("layer"));
    assert_int_equal(mkdirat(host.kept_fd, "layer/layer-usr", 0700), 0);
    assert_int_equal(mkdirat(host.kept_fd, "full/home", 0755), 0);
    int fd = openat(host.kept_fd, "full/home/f", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(fchmodat(host.kept_fd, "full/workspace", 01777, 0), 0);
    assert_int_equal(fstatat(host.kept_fd, "full/workspace", &before, 0), 0);
    launch_sweep(&host, is_live, live);
    assert_false(exists(host.kept_fd, "empty")); /* of a session that never came to be */
    assert_true(exists(host.kept_fd, "live/workspace"));
    assert_true(exists(host.kept_fd, "layer/layer-usr"));
    assert_true(exists(host.kept_fd, "full/home/f"));
    assert_int_equal(fstatat(host.kept_fd, "full/workspace", &after, 0), 0);
    assert_int_equal(after.st_mode, before.st_mode); /* it looks, and changes nothing */
    assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(storage_is_made_once),
        T(empty_storage_is_kept_for_the_next),
        T(used_storage_is_deleted),
        T(what_the_last_owner_did_to_a_directory_is_undone),
        T(spares_are_made_ahead_and_limited),
        T(spare_that_is_gone_is_made_up_for),
        T(missing_storage_is_nothing_to_remove),
        T(kept_storage_is_found_again),
        T(a_sweep_leaves_every_file_that_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
