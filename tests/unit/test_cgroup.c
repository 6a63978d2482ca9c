/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

/* For what is private to it. */
#include "sandbox/cgroup/cgroup.c"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"

#define NAME "0123456789abcdef"

static char dir[64];
static int dir_fd = -1; /* plain files stand in for those of the kernel */

static int make_dir(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/box-cgroup-XXXXXX");
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

static void put(const char *name, const char *text)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void put_dir(const char *name)
{
    assert_int_equal(mkdirat(dir_fd, name, 0755), 0);
}

static bool exists(const char *name)
{
    return faccessat(dir_fd, name, F_OK, 0) == 0;
}

static void words_are_whole(void **state)
{
    static const struct {
        const char *list, *word;
        bool found;
    } cases[] = {
        {"cpu", "cpu", true},
        {"cpu\n", "cpu", true},
        {"cpuset cpu io memory pids\n", "cpu", true},
        {"cpuset,cpuacct", "cpu", false},
        {"cpuacct,cpu", "cpu", true},
        {"rw,cpu,cpuacct", "cpu", true},
        {"rw,memory", "memory", true},
        {"rw,xmemory", "memory", false},
        {"memory2", "memory", false},
        {"hugetlb pids", "pids", true},
        {"spids pids", "pids", true},
        {"pid pidss", "pids", false},
        {"", "cpu", false},
        {"pidspids", "pids", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (cgroup_has_word(cases[i].list, cases[i].word) != cases[i].found)
            fail_msg("'%s' in '%s'", cases[i].word, cases[i].list);
}

struct layout {
    const char *text;
    const char *v2, *cpu, *memory, *pids;
};

static void expect_layout(const struct layout *l)
{
    struct cgroup_mounts m;
    AUTO_FREE char *text = strdup(l->text);
    cgroup_read_mounts(text, &m);
    assert_string_equal(m.v2, l->v2);
    assert_string_equal(m.v1[CGROUP_CPU], l->cpu);
    assert_string_equal(m.v1[CGROUP_MEMORY], l->memory);
    assert_string_equal(m.v1[CGROUP_PIDS], l->pids);
}

static void hierarchies_are_found_in_each_layout(void **state)
{
    static const struct layout layouts[] = {
        /* Unified. */
        {"24 30 0:22 / /proc rw,nosuid - proc proc rw\n"
         "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:9 - cgroup2 cgroup2 "
         "rw,nsdelegate\n"
         "36 24 0:31 / /sys/fs/bpf rw - bpf bpf rw\n",
         "/sys/fs/cgroup", "", "", ""},
        /* Both, as systemd's hybrid has it. */
        {"35 24 0:30 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
         "36 35 0:31 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
         "37 35 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
         "38 35 0:33 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
         "39 35 0:34 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
         "40 35 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
         "41 35 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
         "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory",
         "/sys/fs/cgroup/pids"},
        /* All controllers in one, without a newline at the end. */
        {"9 1 0:8 / /cg rw - cgroup none rw,pids,memory,cpu,cpuset", "", "/cg", "/cg", "/cg"},
        /* The first of several; parts of a hierarchy do not count. */
        {"1 0 0:1 /docker/x /part rw - cgroup2 cgroup rw\n"
         "2 0 0:1 / /first rw - cgroup2 cgroup rw\n"
         "3 0 0:1 / /second rw - cgroup2 cgroup rw\n"
         "4 0 0:2 /docker/x /part1 rw - cgroup cgroup rw,memory\n"
         "5 0 0:2 / /memory rw - cgroup cgroup rw,memory\n",
         "/first", "", "/memory", ""},
        /* Many optional fields, and none. */
        {"1 0 0:1 / /a rw shared:1 master:2 propagate_from:3 unbindable - cgroup2 c rw\n", "/a", "",
         "", ""},
        {"1 0 0:1 / /a rw - cgroup2 c rw\n", "/a", "", "", ""},
        {"", "", "", "", ""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(layouts); i++)
        expect_layout(&layouts[i]);
}

static void lines_that_make_no_sense_are_passed_over(void **state)
{
    static const char *const lines[] = {
        "\n\n\n",
        "cgroup2",
        " - ",
        " - cgroup2",
        " - cgroup2 c",
        " - cgroup2 c rw",
        "1 0 0:1 / - cgroup2 c rw",
        "1 0 0:1 / /a rw - cgroup2 c\n",
        "1 0 0:1 / /a rw - cgroup2",
        "1 0 0:1 / /a rw cgroup2 c rw",
        "1 0 0:1 / /a rw - cgroup22 c rw",
        "1 0 0:1 / /a rw - cgroup c rw,memoryx,cpuset,apids",
    };
    struct cgroup_mounts m;
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
        expect_layout(&(struct layout){lines[i], "", "", "", ""});
    /* A place that is longer than we keep is not cut to another. */
    char text[600], where[300];
    memset(where, 'x', sizeof(where) - 1);
    where[0] = '/';
    where[sizeof(where) - 1] = '\0';
    (void)snprintf(text, sizeof(text), "1 0 0:1 / %s rw - cgroup2 c rw\n", where);
    cgroup_read_mounts(text, &m);
    assert_string_equal(m.v2, "");
}

static void limit_is_written_and_read_back(void **state)
{
    struct err err = {0};
    uint64_t got = 0;
    put("pids.max", "");
    assert_int_equal(cgroup_set_limit(dir_fd, "pids.max", 100, &err), 0);
    assert_int_equal(fd_read_u64_at(dir_fd, "pids.max", &got), 0);
    assert_int_equal(got, 100);
    put("memory.max", "");
    assert_int_equal(cgroup_set_limit(dir_fd, "memory.max", UINT64_MAX, &err), 0);
}

static void limit_that_came_out_higher_is_refused(void **state)
{
    struct err err = {0};
    put("memory.max", "9999"); /* what is longer than the request stays behind it */
    assert_int_equal(cgroup_set_limit(dir_fd, "memory.max", 100, &err),
                     err_code_errno(ERR_UNSUPPORTED));
    assert_string_equal(err.msg, "cgroup limit memory.max: asked for 100, the kernel made it 1009");
}

/* The kernel's own file for this: it takes a decimal number and shows it in hexadecimal. */
static void limit_that_came_out_lower_is_as_good(void **state)
{
    struct err err = {0};
    char before[32], restore[40];
    AUTO_CLOSE int self = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd_read_file_at(self, "coredump_filter", before, sizeof(before)) > 0);
    assert_int_equal(cgroup_set_limit(self, "coredump_filter", 51, &err), 0);
    (void)snprintf(restore, sizeof(restore), "0x%s", before);
    assert_int_equal(fd_write_file_at(self, "coredump_filter", restore), 0);
}

static void limit_without_a_file_is_an_error(void **state)
{
    struct err err = {0};
    assert_int_equal(cgroup_set_limit(dir_fd, "absent.max", 1, &err), -ENOENT);
    assert_string_equal(err.msg, "set cgroup limit absent.max: No such file or directory");
    put("odd.max", "max\n");
    assert_int_equal(cgroup_set_limit(dir_fd, "odd.max", 1, &err), -EINVAL); /* "1ax" */
}

/* A host whose parent directory in the v2 tree is ours. */
static struct cgroup_host fake_host(void)
{
    struct cgroup_host h = {.mode = INIT_CGROUP_HYBRID, .v2_fd = -1, .v1_fd = {-1, -1, -1}};
    h.v2_fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(h.v2_fd >= 0);
    return h;
}

static void group_lives_and_goes(void **state)
{
    struct cgroup_host h = fake_host();
    struct cgroup g;
    struct err err = {0};
    const struct cgroup_limits limits = {.memory_bytes = 1, .pids = 1};
    const struct cgroup_owner owner = {geteuid(), getegid()};
    assert_int_equal(cgroup_create(&h, NAME, &owner, &g, &err), 0);
    assert_int_equal(cgroup_limit(&h, NAME, &limits, &owner, &g, &err), 0); /* nothing enforced */
    assert_true(g.v2_fd >= 0);
    assert_true(exists(NAME));
    assert_int_equal(cgroup_kill(&h, NAME), -ENOENT); /* the file is the kernel's */
    put(NAME "/cgroup.kill", "");
    assert_int_equal(cgroup_kill(&h, NAME), 0);
    assert_int_equal(unlinkat(dir_fd, NAME "/cgroup.kill", 0), 0);
    put_dir(NAME "/s0");
    put_dir(NAME "/s1");
    /* Another of the same name is not shared. */
    struct cgroup other;
    assert_int_equal(cgroup_create(&h, NAME, &owner, &other, &err), -EEXIST);
    assert_int_equal(other.v2_fd, -1);
    cgroup_close(&g);
    cgroup_close(&g);
    assert_int_equal(g.v2_fd, -1);
    (void)cgroup_remove(&h, NAME);
    assert_false(exists(NAME));
    assert_int_equal(cgroup_remove(&h, NAME), 0); /* again */
    cgroup_host_done(&h);
    assert_int_equal(cgroup_kill(&h, NAME), -EOPNOTSUPP);
}

static void limit_that_cannot_be_set_is_told(void **state)
{
    struct cgroup_host h = fake_host();
    struct cgroup g;
    struct err err = {0};
    const struct cgroup_limits limits = {.memory_bytes = 1, .pids = 1};
    const struct cgroup_owner owner = {geteuid(), getegid()};
    h.mode = INIT_CGROUP_V2;
    h.enforced[CGROUP_MEMORY] = true; /* whose file does not exist here */
    assert_int_equal(mkdirat(dir_fd, NAME, 0755), 0);
    assert_int_equal(cgroup_create(&h, NAME, &owner, &g, &err), -EEXIST);
    assert_int_equal(g.v2_fd, -1);
    assert_false(exists(NAME));  /* a failed creation leaves no group */
    h.mode = INIT_CGROUP_HYBRID; /* no leaf, whose files do not exist here either */
    assert_int_equal(cgroup_create(&h, NAME, &owner, &g, &err), 0);
    h.mode = INIT_CGROUP_V2;
    assert_int_equal(cgroup_limit(&h, NAME, &limits, &owner, &g, &err), -ENOENT);
    assert_string_equal(err.msg, "set cgroup limit memory.max: No such file or directory");
    cgroup_close(&g);
    assert_int_equal(cgroup_remove(&h, NAME), 0);
    assert_false(exists(NAME));
    cgroup_host_done(&h);
}

static void purge_takes_what_is_ours_and_nothing_else(void **state)
{
    static const char *const ours[] = {NAME, "ffffffffffffffff"};
    static const char *const others[] = {
        "daemon",           "0123456789abcde",  "0123456789abcdefa",
        "0123456789ABCDEF", "0123456789abcdeg", ".hidden"};
    struct cgroup_host h = fake_host();
    for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
        put_dir(ours[i]);
    put_dir(NAME "/s0");
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        put_dir(others[i]);
    assert_int_equal(cgroup_host_purge(&h), 0);
    for (size_t i = 0; i < ARRAY_SIZE(ours); i++)
        assert_false(exists(ours[i]));
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        assert_true(exists(others[i]));
        assert_int_equal(unlinkat(dir_fd, others[i], AT_REMOVEDIR), 0);
    }
    cgroup_host_done(&h);
}

static void readings_are_zero_where_there_are_none(void **state)
{
    struct cgroup_host h = fake_host();
    struct cgroup g = {.v2_fd = h.v2_fd, .leaf_fd = -1, .v1_fd = {-1, -1, -1}};
    struct cgroup_readback r;
    h.mode = INIT_CGROUP_V2;
    put("memory.max", "max\n");
    put("memory.current", "4096\n");
    put("pids.max", "17\n");
    put("cpu.max", "50000 100000\n");
    read_groups(&h, &g, &r);
    assert_int_equal(r.memory_max, 0);
    assert_int_equal(r.memory_now, 4096);
    assert_int_equal(r.memory_peak, 0);
    assert_int_equal(r.pids_max, 17);
    assert_int_equal(r.cpu_quota_us, 50000);
    assert_int_equal(r.cpu_period_us, 100000);
    put("cpu.max", "max 100000\n");
    read_groups(&h, &g, &r);
    assert_int_equal(r.cpu_quota_us + r.cpu_period_us, 0);
    put("cpu.max", "1234");
    read_groups(&h, &g, &r);
    assert_int_equal(r.cpu_quota_us, 0);

    h.mode = INIT_CGROUP_HYBRID;
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        g.v1_fd[i] = h.v2_fd;
    put("memory.limit_in_bytes", "8192\n");
    put("cpu.cfs_quota_us", "-1\n"); /* none */
    put("cpu.cfs_period_us", "100000\n");
    read_groups(&h, &g, &r);
    assert_int_equal(r.memory_max, 8192);
    assert_int_equal(r.pids_max, 17);
    assert_int_equal(r.cpu_quota_us, 0);
    assert_int_equal(r.cpu_period_us, 100000);
    cgroup_host_done(&h);
}

static void usage_is_read_in_both_dialects_and_unknown_where_there_is_none(void **state)
{
    struct cgroup_host h = fake_host();
    struct inside_usage u;
    put_dir(NAME);
    put(NAME "/cpu.stat", "usage_usec_not 9\nusage_usec 1500\nuser_usec 1000\n");
    put(NAME "/memory.current", "4096\n");
    put(NAME "/memory.max", "max\n");
    put(NAME "/pids.current", "3\n");
    put(NAME "/pids.max", "17\n");
    h.mode = INIT_CGROUP_V2;
    usage_unknown(&u);
    cgroup_usage(&h, NAME, &u);
    assert_int_equal(u.cpu_ns, 1500000);
    assert_int_equal(u.memory_bytes, 4096);
    assert_true(u.memory_max == INSIDE_UNKNOWN && u.disk_bytes == INSIDE_UNKNOWN);
    assert_int_equal(u.pids, 3);
    assert_int_equal(u.pids_max, 17);

    /* The hybrid: cgroup2 counts processor time, v1 the rest; no limit is a large number. */
    h.mode = INIT_CGROUP_HYBRID;
    put(NAME "/memory.usage_in_bytes", "8192\n");
    put(NAME "/memory.limit_in_bytes", "9223372036854771712\n");
    usage_unknown(&u);
    cgroup_usage(&h, NAME, &u);
    assert_int_equal(u.cpu_ns, 1500000);
    assert_true(u.memory_bytes == INSIDE_UNKNOWN && u.pids == INSIDE_UNKNOWN);
    h.v1_fd[CGROUP_MEMORY] = h.v2_fd;
    cgroup_usage(&h, NAME, &u);
    assert_int_equal(u.memory_bytes, 8192);
    assert_true(u.memory_max == INSIDE_UNKNOWN);
    h.v1_fd[CGROUP_MEMORY] = -1;
    cgroup_host_done(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_whole),
        cmocka_unit_test(hierarchies_are_found_in_each_layout),
        cmocka_unit_test(lines_that_make_no_sense_are_passed_over),
        cmocka_unit_test(limit_is_written_and_read_back),
        cmocka_unit_test(limit_that_came_out_higher_is_refused),
        cmocka_unit_test(limit_that_came_out_lower_is_as_good),
        cmocka_unit_test(limit_without_a_file_is_an_error),
        cmocka_unit_test(group_lives_and_goes),
        cmocka_unit_test(limit_that_cannot_be_set_is_told),
        cmocka_unit_test(purge_takes_what_is_ours_and_nothing_else),
        cmocka_unit_test(readings_are_zero_where_there_are_none),
        cmocka_unit_test(usage_is_read_in_both_dialects_and_unknown_where_there_is_none),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
