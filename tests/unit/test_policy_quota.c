/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "command/quota.h"
#include "spec/spec.h"

static char dir[64];
static int dir_fd;

static int make_dir(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-quota-XXXXXX");
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

static void make_file(const char *name, off_t size)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
}

static struct usage count(uint64_t max, size_t step)
{
    AUTO(usage_walk) struct usage_walk *w = usage_walk_new(dir_fd, max);
    int r;
    while ((r = usage_walk_step(w, step)) > 0)
        continue;
    assert_int_equal(r, 0);
    return *usage_walk_result(w);
}

static struct spec *spec_of(int64_t quota_mb)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup("person_test_user");
    s->host_path = xstrdup(dir);
    s->workspace_quota_mb = quota_mb;
    return s;
}

static void sizes_of_all_that_is_no_directory_are_added(void **state)
{
    make_file("a", 1000);
    make_file("sparse", 5 << 20);
    assert_int_equal(mkdirat(dir_fd, "d", 0700), 0);
    assert_int_equal(mkdirat(dir_fd, "d/e", 0700), 0);
    make_file("d/e/f", 24);
    assert_int_equal(linkat(dir_fd, "a", dir_fd, "d/hard", 0), 0); /* once per name */
    assert_int_equal(symlinkat("/etc", dir_fd, "d/link"), 0);      /* 4 bytes, not followed */
    assert_int_equal(symlinkat("..", dir_fd, "d/up"), 0);
    for (size_t step = 1; step <= USAGE_STEP; step *= 8) {
        struct usage u = count(100, step);
        assert_int_equal(u.bytes, 1000 + (5 << 20) + 24 + 1000 + 4 + 2);
        assert_int_equal(u.entries, 8);
        assert_int_equal(u.unreadable, 0);
        assert_false(u.too_many);
    }
}

static void what_is_allocated_beyond_the_end_is_counted(void **state)
{
    AUTO_CLOSE int fd = openat(dir_fd, "kept", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 3 << 20), 0);
    assert_in_range(count(100, USAGE_STEP).bytes, 3 << 20, (3 << 20) + 65536);
}

static void an_empty_workspace_uses_nothing(void **state)
{
    struct usage u = count(1, 1);
    assert_int_equal(u.bytes, 0);
    assert_int_equal(u.entries, 0);
}

static void counting_ends_at_the_cap(void **state)
{
    char name[16];
    for (int i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof(name), "%d", i);
        make_file(name, 1);
    }
    assert_false(count(20, 7).too_many);
    struct usage u = count(19, 7);
    assert_true(u.too_many);
    assert_int_equal(u.entries, 20);
}

/* Deeper than any path the kernel takes: counting gives up rather than miss what lies below. */
static void a_tree_too_deep_for_a_path_is_counted(void **state)
{
    AUTO_CLOSE int at = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[201];
    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (int i = 0; i < 50; i++) {
        assert_int_equal(mkdirat(at, name, 0700), 0);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(at);
        at = next;
    }
    AUTO_CLOSE int file = openat(at, "f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(file, 12345), 0);
    for (size_t step = 1; step <= USAGE_STEP; step *= 8) {
        struct usage u = count(1000, step);
        assert_false(u.too_many);
        assert_int_equal(u.bytes, 12345);
        assert_int_equal(u.entries, 51);
    }
    assert_true(count(40, USAGE_STEP).too_many);
}

static void many_directories_are_all_seen(void **state)
{
    char name[32];
    for (int i = 0; i < 40; i++) {
        (void)snprintf(name, sizeof(name), "d%d", i);
        assert_int_equal(mkdirat(dir_fd, name, 0700), 0);
        for (int k = 0; k < 5; k++) {
            (void)snprintf(name, sizeof(name), "d%d/%d", i, k);
            if (k == 3)
                assert_int_equal(mkdirat(dir_fd, name, 0700), 0);
            else
                make_file(name, 10);
        }
        (void)snprintf(name, sizeof(name), "d%d/3/x", i);
        make_file(name, 100);
    }
    struct usage u = count(10000, 3);
    assert_int_equal(u.bytes, 40 * (4 * 10 + 100));
    assert_int_equal(u.entries, 40 * 7);
}

static void test_row_T28_a_full_workspace_is_told_before_execution(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_BEFORE, .max_entries = 100};
    struct err err = {0};
    char want[256];
    make_file("already-too-large.bin", 2 << 20);
    struct usage u = count(100, USAGE_STEP);
    assert_true(quota_judge(&check, &u, &err) < 0);
    assert_int_equal(err.code, ERR_INVALID);
    (void)snprintf(want, sizeof(want),
                   "workspace quota exceeded before execution: used=2097152 bytes limit=1048576 "
                   "bytes host_path=%s session_id=person_test_user",
                   dir);
    assert_string_equal(err.msg, want);
}

static void test_row_T29_a_workspace_that_grew_is_told_after_execution(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_AFTER, .max_entries = 100};
    struct err err = {0};
    make_file("output.bin", (1 << 20) + 1);
    struct usage u = count(100, USAGE_STEP);
    assert_true(quota_judge(&check, &u, &err) < 0);
    assert_true(str_starts(err.msg, "workspace quota exceeded after execution: used=1048577 "));
}

static void exactly_the_limit_is_within_it(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_BEFORE, .max_entries = 100};
    struct usage u = {.bytes = 1 << 20, .entries = 1};
    assert_int_equal(quota_judge(&check, &u, NULL), 0);
    u.bytes++;
    assert_true(quota_judge(&check, &u, NULL) < 0);
}

static void too_many_entries_are_told(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_AFTER, .max_entries = 100};
    struct usage u = {.entries = 101, .too_many = true};
    struct err err = {0};
    assert_true(quota_judge(&check, &u, &err) < 0);
    assert_true(
        str_starts(err.msg, "workspace entry limit exceeded after execution: entries>100 "));
}

/* Somebody over the limit must be able to get below it again. */
static void a_cleanup_may_start_and_must_not_add(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {
        .spec = s, .phase = QUOTA_BEFORE, .max_entries = 100, .cleanup = true};
    struct usage much = {.bytes = 5 << 20, .entries = 10};
    struct usage less = {.bytes = 2 << 20, .entries = 10};
    struct usage more = {.bytes = (5 << 20) + 1, .entries = 10};
    struct usage wider = {.bytes = 5 << 20, .entries = 11};
    struct usage within = {.bytes = 1, .entries = 11};
    assert_int_equal(quota_judge(&check, &much, NULL), 0);
    check.phase = QUOTA_AFTER;
    check.before = much;
    assert_int_equal(quota_judge(&check, &less, NULL), 0);
    assert_int_equal(quota_judge(&check, &much, NULL), 0);
    assert_true(quota_judge(&check, &more, NULL) < 0);
    assert_true(quota_judge(&check, &wider, NULL) < 0);
    assert_int_equal(quota_judge(&check, &within, NULL), 0);
}

static void what_cannot_be_counted_is_refused_unless_the_kernel_counts(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_BEFORE, .max_entries = 100};
    struct usage u = {.unreadable = 2};
    struct err err = {0};
    assert_true(quota_judge(&check, &u, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_true(str_starts(err.msg, "workspace cannot be measured before execution: 2 "));
    check.kernel_limit = true;
    assert_int_equal(quota_judge(&check, &u, NULL), 0);
}

/* Sizes are no blocks, and what the kernel holds to the limit is within it. */
static void bytes_are_not_held_against_a_session_that_the_kernel_limits(void **state)
{
    AUTO(spec) struct spec *s = spec_of(1);
    struct quota_check check = {.spec = s, .phase = QUOTA_AFTER, .max_entries = 100};
    struct usage u = {.bytes = 5 << 20, .entries = 3, .unreadable = 1, .kernel_bytes = 1 << 20};
    assert_int_equal(quota_judge(&check, &u, NULL), 0);
    u.kernel_bytes = (1 << 20) + 512; /* somebody has raised it */
    assert_true(quota_judge(&check, &u, NULL) < 0);
    u.kernel_bytes = 1 << 19; /* of a session that shares the directory */
    assert_int_equal(quota_judge(&check, &u, NULL), 0);
    u.too_many = true; /* names are not inodes */
    assert_true(quota_judge(&check, &u, NULL) < 0);
}

struct met {
    char order[256];
    int refuse; /* at a file: what the visitor returns */
    const char *remove;
};

static int meet(void *arg, int fd, const char *name, const struct stat *st)
{
    struct met *m = arg;
    assert_true((name == NULL) == (st == NULL));
    if (name == NULL && m->remove != NULL)
        assert_int_equal(unlinkat(dir_fd, m->remove, AT_REMOVEDIR), 0);
    if (name == NULL)
        m->remove = NULL;
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    (void)strncat(m->order, name != NULL ? name : "/", sizeof(m->order) - strlen(m->order) - 1);
    return name != NULL ? m->refuse : 0;
}

static int walk_meeting(struct met *m, struct usage *ret)
{
    AUTO(usage_walk) struct usage_walk *w = usage_walk_new(dir_fd, 100);
    int r;
    usage_walk_visit(w, meet, m);
    while ((r = usage_walk_step(w, 2)) > 0)
        continue;
    *ret = *usage_walk_result(w);
    return r;
}

static void a_visitor_meets_directories_before_what_they_hold(void **state)
{
    struct met m = {0}, refusing = {.refuse = -EUSERS}, removing = {.remove = "d"};
    struct usage u;
    assert_int_equal(mkdirat(dir_fd, "d", 0700), 0);
    make_file("d/f", 1);
    assert_int_equal(symlinkat("f", dir_fd, "d/l"), 0);
    assert_int_equal(walk_meeting(&m, &u), 0);
    assert_true(str_eq(m.order, "//fl") || str_eq(m.order, "//lf"));
    assert_int_equal(u.gone, 0);
    assert_int_equal(walk_meeting(&refusing, &u), -EUSERS);

    assert_int_equal(unlinkat(dir_fd, "d/f", 0), 0);
    assert_int_equal(unlinkat(dir_fd, "d/l", 0), 0);
    make_file("f", 1);
    /* Seen or not by then: never an error, and told when it was. */
    assert_int_equal(walk_meeting(&removing, &u), 0);
    assert_true(u.gone <= 1);
}

static void a_quota_needs_a_directory_and_a_number(void **state)
{
    AUTO(spec) struct spec *s = spec_of(0);
    assert_false(quota_applies(s));
    s->workspace_quota_mb = 1;
    assert_true(quota_applies(s));
    free(s->host_path);
    s->host_path = NULL;
    assert_false(quota_applies(s));
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(sizes_of_all_that_is_no_directory_are_added),
        IN_DIR(an_empty_workspace_uses_nothing),
        IN_DIR(counting_ends_at_the_cap),
        IN_DIR(a_tree_too_deep_for_a_path_is_counted),
        IN_DIR(many_directories_are_all_seen),
        IN_DIR(test_row_T28_a_full_workspace_is_told_before_execution),
        IN_DIR(test_row_T29_a_workspace_that_grew_is_told_after_execution),
        IN_DIR(what_is_allocated_beyond_the_end_is_counted),
        cmocka_unit_test(exactly_the_limit_is_within_it),
        cmocka_unit_test(too_many_entries_are_told),
        cmocka_unit_test(a_cleanup_may_start_and_must_not_add),
        cmocka_unit_test(what_cannot_be_counted_is_refused_unless_the_kernel_counts),
        cmocka_unit_test(bytes_are_not_held_against_a_session_that_the_kernel_limits),
        IN_DIR(a_visitor_meets_directories_before_what_they_hold),
        cmocka_unit_test(a_quota_needs_a_directory_and_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
