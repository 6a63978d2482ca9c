/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "lib/fake_clock.h"
#include "lib/fault.h"
#include "policy/audit/audit.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/profile.h"

static char dir[64];
static int dir_fd = -1;
static struct fake_clock fake;

static int make_dir(void **state)
{
    fake_clock_init(&fake);
    (void)snprintf(dir, sizeof(dir), "/tmp/box-audit-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir_fd < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    fault_reset();
    (void)close(dir_fd);
    return path_remove_tree_at(AT_FDCWD, dir);
}

static struct audit *open_with(uint64_t max_bytes, size_t keep, bool refuse)
{
    const struct audit_options options = {.dir_fd = dir_fd,
                                          .clock = &fake.clock,
                                          .max_bytes = max_bytes,
                                          .keep_files = keep,
                                          .refuse = refuse};
    struct audit *a = NULL;
    struct err err = {0};
    if (audit_open(&options, &a, &err) < 0)
        fail_msg("%s", err.msg);
    return a;
}

static struct audit *open_plain(void)
{
    return open_with(0, 0, false);
}

static void exec_start(struct audit *a, const char *command)
{
    const struct audit_record r = {.event = AUDIT_EXEC_START,
                                   .who = "ci",
                                   .via = "http",
                                   .session = "s1",
                                   .command = command,
                                   .command_len = strlen(command)};
    struct err err = {0};
    assert_int_equal(audit_write(a, &r, &err), 0);
}

static void read_log(const char *name, struct buf *text)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    buf_reset(text);
    assert_int_equal(fd_read_to_buf(fd, text), 0);
    (void)buf_str(text);
}

static void write_log(const char *name, const char *text, size_t len)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, len), 0);
}

static int verify(struct audit_chain *c, const char *name)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    struct err err = {0};
    assert_true(fd >= 0);
    return audit_verify(c, fd, name, &err);
}

/* The head of the chain, as the status tells it. */
static void read_head(const struct audit *a, char ret[static AUDIT_HASH_LEN + 1])
{
    AUTO_DONE(buf) struct buf text;
    AUTO(json) struct json *status = NULL;
    struct jw w;
    buf_init(&text, 4096);
    jw_init(&w, &text);
    audit_write_status(a, true, &w);
    assert_int_equal(jw_end(&w), 0);
    assert_int_equal(json_parse(text.data, text.len, &status, NULL), 0);
    (void)str_copy(ret, AUDIT_HASH_LEN + 1, json_str(json_get(status, "head")));
}

static void records_follow_from_each_other(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct audit_chain c = {0};
    char head[AUDIT_HASH_LEN + 1];
    buf_init(&text, 1 << 20);
    AUTO(audit) struct audit *a = open_plain();
    for (int i = 0; i < 10; i++)
        exec_start(a, "echo hi");
    assert_int_equal(audit_count(a), 11);
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.first, 1);
    assert_int_equal(c.last, 11);
    read_head(a, head);
    assert_string_equal(c.head, head);
    assert_null(c.bad_file);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(strstr(buf_str(&text), "{\"seq\":1,\"time\":\"2026-"));
    assert_non_null(strstr(buf_str(&text), "\"event\":\"log_begin\""));
    assert_non_null(strstr(
        buf_str(&text), "\"event\":\"exec_start\",\"who\":\"ci\",\"via\":\"http\",\"session\":"
                        "\"s1\",\"command\":\"echo hi\",\"command_bytes\":7,\"command_sha256\":"));
}

static void a_record_says_how_it_ended_and_what_was_decided(void **state)
{
    AUTO_DONE(buf) struct buf text;
    const struct policy_decision decision = {
        .profile = &profiles[0], .overridden = FIELD_BIT(SPEC_NETWORK), .clamped = true};
    const int64_t code = -9;
    const uint64_t ms = 12, bytes[] = {100, 5};
    const struct audit_record r = {.event = AUDIT_EXEC_END,
                                   .query = "42",
                                   .outcome = "signaled",
                                   .reason = "a\nb",
                                   .exit_code = &code,
                                   .duration_ms = &ms,
                                   .bytes = bytes,
                                   .decision = &decision};
    buf_init(&text, 1 << 20);
    AUTO(audit) struct audit *a = open_plain();
    assert_int_equal(audit_write(a, &r, NULL), 0);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(
        strstr(buf_str(&text),
               "\"event\":\"exec_end\",\"query\":\"42\",\"outcome\":\"signaled\",\"reason\":"
               "\"a\\nb\",\"exit_code\":-9,\"duration_ms\":12,\"stdout_bytes\":100,"
               "\"stderr_bytes\":5,\"policy\":{\"profile\":\"default\",\"overridden\":"
               "[\"network\"],\"clamped\":true}}\n"));
}

static void long_commands_keep_their_digest(void **state)
{
    AUTO_DONE(buf) struct buf text;
    static char command[100000];
    buf_init(&text, 1 << 20);
    memset(command, '\1', sizeof(command) - 1); /* each is written as six */
    AUTO(audit) struct audit *a = open_plain();
    exec_start(a, command);
    assert_int_equal(audit_lost(a), 0);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(strstr(buf_str(&text), "\"command_bytes\":99999,"));
    assert_true(text.len < AUDIT_LINE_MAX);
}

static void a_new_process_goes_on(void **state)
{
    struct audit_chain c = {0};
    for (int i = 0; i < 3; i++) {
        AUTO(audit) struct audit *a = open_plain();
        exec_start(a, "one");
    }
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.last, 4); /* one begin, three commands */
}

static void two_processes_cannot_write_one_log(void **state)
{
    AUTO(audit) struct audit *a = open_plain();
    AUTO(audit) struct audit *b = NULL;
    const struct audit_options options = {.dir_fd = dir_fd, .clock = &fake.clock};
    struct err err = {0};
    assert_true(audit_open(&options, &b, &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    assert_int_equal(audit_count(a), 1);
}

/* Every single byte of a log matters. */
static void any_change_is_found(void **state)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, 1 << 20);
    {
        AUTO(audit) struct audit *a = open_plain();
        for (int i = 0; i < 4; i++)
            exec_start(a, "x");
    }
    read_log(AUDIT_CURRENT, &text);
    const char *last = memrchr(text.data, '\n', text.len - 1);
    size_t checked = (size_t)(last - text.data);
    for (size_t i = 0; i < checked; i++) {
        struct audit_chain c = {0};
        text.data[i] ^= 1;
        write_log("changed.log", text.data, text.len);
        assert_int_equal(verify(&c, "changed.log"), 1);
        assert_string_equal(c.bad_file, "changed.log");
        assert_true(c.bad_line >= 1 && c.bad_line <= 5);
        text.data[i] ^= 1;
    }
}

/* Lines of a log, taken apart. */
static size_t split(char *text, char **lines, size_t max)
{
    size_t n = 0;
    char *save = NULL;
    for (char *l = strtok_r(text, "\n", &save); l != NULL && n < max;
         l = strtok_r(NULL, "\n", &save))
        lines[n++] = l;
    return n;
}

static void missing_and_moved_lines_are_named(void **state)
{
    static const struct {
        int order[5];
        uint64_t line; /* 0: it is right */
        const char *reason;
    } cases[] = {
        {{0, 1, 2, 3, -1}, 0, NULL},
        {{1, 2, 3, -1}, 0, NULL}, /* the beginning may have been removed with its file */
        {{0, 2, 3, -1}, 2, "the record does not follow from the line before"},
        {{0, 1, 3, -1}, 3, "the record does not follow from the line before"},
        {{0, 2, 1, 3, -1}, 2, "the record does not follow from the line before"},
        {{0, 1, 1, 2, -1}, 3, "the record does not follow from the line before"},
        {{0, 1, 2, -1}, 0, NULL}, /* what a head that was noted finds, see below */
    };
    AUTO_DONE(buf) struct buf text, made;
    char *lines[8] = {0};
    buf_init(&text, 1 << 20);
    buf_init(&made, 1 << 20);
    {
        AUTO(audit) struct audit *a = open_plain();
        for (int i = 0; i < 3; i++)
            exec_start(a, "x");
    }
    read_log(AUDIT_CURRENT, &text);
    assert_int_equal(split(text.data, lines, 8), 4);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct audit_chain c = {0};
        buf_reset(&made);
        for (size_t k = 0; cases[i].order[k] >= 0; k++)
            assert_int_equal(buf_printf(&made, "%s\n", lines[cases[i].order[k]]), 0);
        write_log("made.log", made.data, made.len);
        assert_int_equal(verify(&c, "made.log"), cases[i].line != 0);
        if (cases[i].line != 0) {
            assert_int_equal(c.bad_line, cases[i].line);
            assert_string_equal(c.bad_reason, cases[i].reason);
        }
    }
}

static void a_head_noted_earlier_finds_a_cut_end(void **state)
{
    AUTO_DONE(buf) struct buf text;
    char head[AUDIT_HASH_LEN + 1];
    buf_init(&text, 1 << 20);
    {
        AUTO(audit) struct audit *a = open_plain();
        exec_start(a, "x");
        read_head(a, head);
    }
    struct audit_chain c = {.wanted = head};
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_true(c.found);
    read_log(AUDIT_CURRENT, &text);
    size_t first = (size_t)((char *)memchr(text.data, '\n', text.len) - text.data) + 1;
    write_log(AUDIT_CURRENT, text.data, first);
    c = (struct audit_chain){.wanted = head};
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_false(c.found);
}

static void what_is_no_log_is_told(void **state)
{
    static const struct {
        const char *text, *reason;
        uint64_t line;
    } cases[] = {
        {"hello\n", "the line is no record", 1},
        {"{}\n", "the line is no record", 1},
        {"{\"seq\":0,\"prev\":\"00\"}\n", "the line is no record", 1},
        {"{\"seq\":1", "the last line is not complete", 1},
        {"\n", "the line is no record", 1},
        {"{\"seq\":1,\"prev\":\"1000000000000000000000000000000000000000000000000000000000000000\"}"
         "\n",
         "the first record names one before it", 1},
    };
    AUTO_DONE(buf) struct buf big;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct audit_chain c = {0};
        write_log("x.log", cases[i].text, strlen(cases[i].text));
        assert_int_equal(verify(&c, "x.log"), 1);
        assert_string_equal(c.bad_reason, cases[i].reason);
        assert_int_equal(c.bad_line, cases[i].line);
    }
    buf_init(&big, 1 << 20);
    while (big.len < 200000)
        assert_int_equal(buf_putc(&big, 'x'), 0);
    for (int end = 0; end < 2; end++) {
        struct audit_chain c = {0};
        write_log("x.log", big.data, big.len);
        assert_int_equal(verify(&c, "x.log"), 1);
        assert_string_equal(c.bad_reason, "the line is too long");
        assert_int_equal(buf_putc(&big, '\n'), 0);
    }
}

static void an_incomplete_record_is_dropped_and_told(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct audit_chain c = {0};
    buf_init(&text, 1 << 20);
    {
        AUTO(audit) struct audit *a = open_plain();
        exec_start(a, "x");
    }
    read_log(AUDIT_CURRENT, &text);
    assert_int_equal(buf_puts(&text, "{\"seq\":3,\"ti"), 0);
    write_log(AUDIT_CURRENT, text.data, text.len);
    {
        AUTO(audit) struct audit *a = open_plain();
        assert_int_equal(audit_count(a), 3);
    }
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(strstr(buf_str(&text), "\"event\":\"log_recovered\",\"reason\":\"12 bytes of "
                                           "an incomplete record were dropped\""));
}

static void a_log_that_cannot_be_continued_is_set_aside(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct audit_chain c = {0};
    buf_init(&text, 1 << 20);
    write_log(AUDIT_CURRENT, "garbage\n", 8);
    AUTO(audit) struct audit *a = open_plain();
    exec_start(a, "x");
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.last, 2);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(strstr(buf_str(&text), "was not readable and was set aside"));
    char name[64];
    (void)snprintf(name, sizeof(name), "audit-bad-%llu.log", (unsigned long long)fake.real_ns);
    read_log(name, &text);
    assert_string_equal(buf_str(&text), "garbage\n");
}

static int is_full(const struct dirent *e)
{
    return str_starts(e->d_name, "audit-0");
}

static void full_files_are_put_by_and_the_chain_goes_on(void **state)
{
    struct audit_chain c = {0};
    struct dirent **names = NULL;
    struct stat st;
    for (int run = 0; run < 2; run++) { /* over a restart, too */
        AUTO(audit) struct audit *a = open_with(1300, 0, false);
        for (int i = run; i < 6; i++)
            exec_start(a, "echo hi");
    }
    int n = scandir(dir, &names, is_full, alphasort);
    assert_true(n >= 2);
    for (int i = 0; i < n; i++) {
        char want[64];
        (void)snprintf(want, sizeof(want), "audit-%020llu.log", (unsigned long long)c.last + 1);
        assert_string_equal(names[i]->d_name, want);
        assert_int_equal(verify(&c, names[i]->d_name), 0);
        assert_int_equal(fstatat(dir_fd, names[i]->d_name, &st, 0), 0);
        assert_true(st.st_size <= 1300);
        assert_int_equal(st.st_mode & 0777, 0600);
        free(names[i]);
    }
    free(names);
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.first, 1);
    assert_int_equal(c.last, 12);
}

/* The daemon was killed between putting a file by and beginning the next. */
static void the_chain_goes_on_from_a_full_file(void **state)
{
    struct audit_chain c = {0};
    {
        AUTO(audit) struct audit *a = open_plain();
        exec_start(a, "x");
    }
    assert_int_equal(renameat(dir_fd, AUDIT_CURRENT, dir_fd, "audit-00000000000000000001.log"), 0);
    {
        AUTO(audit) struct audit *a = open_plain();
        exec_start(a, "y");
        assert_int_equal(audit_count(a), 3);
    }
    assert_int_equal(verify(&c, "audit-00000000000000000001.log"), 0);
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
}

static void old_files_go_when_there_are_too_many(void **state)
{
    struct dirent **names = NULL;
    AUTO(audit) struct audit *a = open_with(1300, 2, false);
    for (int i = 0; i < 40; i++)
        exec_start(a, "echo hi");
    assert_int_equal(audit_lost(a), 0);
    assert_int_equal(scandir(dir, &names, is_full, alphasort), 2);
    assert_true(strcmp(names[0]->d_name, "audit-00000000000000000030.log") > 0);
    free(names[0]);
    free(names[1]);
    free(names);
}

static void what_cannot_be_written_is_counted_and_told(void **state)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(buf) struct buf status;
    struct audit_chain c = {0};
    struct jw w;
    buf_init(&text, 1 << 20);
    buf_init(&status, 4096);
    AUTO(audit) struct audit *a = open_plain();
    for (int i = 0; i < 3; i++) {
        fault_set(FAULT_WRITE, 1, ENOSPC);
        exec_start(a, "lost");
    }
    fault_reset();
    assert_int_equal(audit_lost(a), 3);
    jw_init(&w, &status);
    audit_write_status(a, true, &w);
    assert_non_null(strstr(buf_str(&status), "\"lost\":3,\"full\":true,\"on_full\":\"continue\","
                                             "\"error\":\"No space left on device\""));
    exec_start(a, "kept");
    exec_start(a, "kept, too");
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.last, 3);
    assert_int_equal(c.lost, 3);
    read_log(AUDIT_CURRENT, &text);
    assert_non_null(strstr(buf_str(&text), "\"lost\":3}"));
}

/* A write that comes to an end half way leaves no trace. */
static void half_a_record_is_taken_back(void **state)
{
    struct audit_chain c = {0};
    AUTO(audit) struct audit *a = open_plain();
    fault_set(FAULT_WRITE, 2, ENOSPC);
    fault_short(40);
    exec_start(a, "half");
    fault_reset();
    exec_start(a, "whole");
    assert_int_equal(audit_lost(a), 1);
    assert_int_equal(verify(&c, AUDIT_CURRENT), 0);
    assert_int_equal(c.last, 2);
}

static void nothing_runs_unrecorded_where_that_is_asked_for(void **state)
{
    const struct audit_record r = {.event = AUDIT_EXEC_START};
    struct err err = {0};
    AUTO(audit) struct audit *a = open_with(0, 0, true);
    assert_int_equal(audit_ready(a, &err), 0);
    fault_set(FAULT_WRITE, 1, EIO);
    assert_true(audit_write(a, &r, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_string_equal(err.msg, "the audit log cannot be written: Input/output error");
    fault_reset();
    assert_int_equal(audit_write(a, &r, &err), 0);
}

static bool own_mounts(void)
{
    char uids[32], gids[32];
    bool root = geteuid() == 0;
    (void)snprintf(uids, sizeof(uids), "0 %u 1", (unsigned)geteuid());
    (void)snprintf(gids, sizeof(gids), "0 %u 1", (unsigned)getegid());
    if (unshare(root ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return false;
    if (!root && (fd_write_file_at(AT_FDCWD, "/proc/self/uid_map", uids) < 0 ||
                  fd_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny") < 0 ||
                  fd_write_file_at(AT_FDCWD, "/proc/self/gid_map", gids) < 0))
        return false;
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("box-audit-test", dir, "tmpfs", 0, "size=256k") == 0;
}

/* In a file system of our own with little room. */
static int in_small_place(void)
{
    struct err err = {0};
    struct audit_chain c = {0};
    int n = 0;
    if (!own_mounts())
        return 77;
    (void)close(dir_fd);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO(audit) struct audit *a = open_with(0, 0, true);
    int filler = openat(dir_fd, "filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(filler, &c, sizeof(c)) > 0)
        continue;
    /* Others have taken the rest of the disk: what is reserved is ours. */
    while (audit_ready(a, &err) == 0) {
        exec_start(a, "echo hi");
        n++;
    }
    if (err.code != ERR_LIMIT || !str_starts(err.msg, "the audit log has no room (No space left"))
        return 2;
    /* Nothing new starts; the ends of what runs still fit. */
    for (int i = 0; i < 20; i++)
        exec_start(a, "the end of what was started before");
    if (audit_lost(a) != 0 || ftruncate(filler, 0) < 0 || audit_ready(a, &err) < 0)
        return 3;
    exec_start(a, "there is room again");
    (void)close(filler);
    return verify(&c, AUDIT_CURRENT) != 0 || c.last != (uint64_t)n + 22 ? 4 : 0;
}

static void a_full_disk_refuses_before_it_loses(void **state)
{
    int status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(in_small_place());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        print_message("skipped: no user namespaces here\n"), skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(records_follow_from_each_other),
        IN_DIR(a_record_says_how_it_ended_and_what_was_decided),
        IN_DIR(long_commands_keep_their_digest),
        IN_DIR(a_new_process_goes_on),
        IN_DIR(two_processes_cannot_write_one_log),
        IN_DIR(any_change_is_found),
        IN_DIR(missing_and_moved_lines_are_named),
        IN_DIR(a_head_noted_earlier_finds_a_cut_end),
        IN_DIR(what_is_no_log_is_told),
        IN_DIR(an_incomplete_record_is_dropped_and_told),
        IN_DIR(a_log_that_cannot_be_continued_is_set_aside),
        IN_DIR(full_files_are_put_by_and_the_chain_goes_on),
        IN_DIR(the_chain_goes_on_from_a_full_file),
        IN_DIR(old_files_go_when_there_are_too_many),
        IN_DIR(what_cannot_be_written_is_counted_and_told),
        IN_DIR(half_a_record_is_taken_back),
        IN_DIR(nothing_runs_unrecorded_where_that_is_asked_for),
        IN_DIR(a_full_disk_refuses_before_it_loses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
