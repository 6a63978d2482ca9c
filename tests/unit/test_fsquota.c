/* SPDX-License-Identifier: Apache-2.0 */

/* What can be known of quotas without a file system that has some: tests/integration/
 * test_kernel_quota.py has the rest. */

#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/path.h"
/* For what is private to it. */
#include "priv/quota.c"

static char dir[64];
static int dir_fd;

static int make_dir(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-fsquota-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir_fd < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)close(dir_fd);
    return path_remove_tree_at(AT_FDCWD, dir);
}

static void only_projects_of_the_range_are_ours(void **state)
{
    static const struct {
        uint64_t id;
        bool ours;
    } rows[] = {{0, false},
                {1, false},
                {FSQUOTA_FIRST_ID - 1U, false},
                {FSQUOTA_FIRST_ID, true},
                {FSQUOTA_FIRST_ID + FSQUOTA_IDS - 1U, true},
                {FSQUOTA_FIRST_ID + FSQUOTA_IDS, false},
                {UINT32_MAX, false},
                {(1ULL << 32) + FSQUOTA_FIRST_ID, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(fsquota_is_ours(&(struct fsquota){FSQUOTA_PROJECT, rows[i].id}),
                         rows[i].ours);
    assert_false(fsquota_is_ours(&(struct fsquota){FSQUOTA_SUBVOLUME, FSQUOTA_FIRST_ID}));
}

static void a_file_system_without_quotas_says_so(void **state)
{
    AUTO_CLOSE int fd = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct fsquota q = {0};
    struct err err = {0};
    assert_true(fd >= 0);
    assert_true(fsquota_find(fd, &q, &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "none of ext4, XFS and Btrfs"));
    assert_int_equal(q.kind, FSQUOTA_NONE);
}

/* Of a subvolume nothing has to be changed, so any directory will do. */
static void a_tree_is_looked_at_without_waiting_or_leaving(void **state)
{
    const struct fsquota q = {FSQUOTA_SUBVOLUME, 256};
    uid_t us = geteuid(), other = us + 1;
    struct err err = {0};
    assert_int_equal(mkfifoat(dir_fd, "pipe", 0600), 0);
    assert_int_equal(symlinkat("/", dir_fd, "out"), 0);
    assert_int_equal(symlinkat("/dev/null", dir_fd, "device"), 0);
    assert_int_equal(symlinkat("loop", dir_fd, "loop"), 0);
    assert_int_equal(mkdirat(dir_fd, "d", 0700), 0);
    AUTO_CLOSE int fd = openat(dir_fd, "d/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fsquota_cover(dir_fd, &q, NULL, &err), 0);
    assert_int_equal(fsquota_cover(dir_fd, &q, &us, &err), 0);
    assert_true(fsquota_cover(dir_fd, &q, &other, &err) < 0);
    assert_non_null(strstr(err.msg, "files of other users"));
}

static void what_cannot_be_put_into_a_project_ends_it(void **state)
{
    AUTO_CLOSE int fd = open("/proc/self/net", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct fsquota q = {FSQUOTA_PROJECT, FSQUOTA_FIRST_ID};
    struct err err = {0};
    assert_true(fd >= 0);
    assert_true(fsquota_put(fd, &q) < 0);
    assert_true(fsquota_cover(fd, &q, NULL, &err) < 0);
    assert_int_not_equal(err.code, ERR_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_projects_of_the_range_are_ours),
        cmocka_unit_test(a_file_system_without_quotas_says_so),
        cmocka_unit_test_setup_teardown(a_tree_is_looked_at_without_waiting_or_leaving, make_dir,
                                        remove_dir),
        cmocka_unit_test(what_cannot_be_put_into_a_project_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
