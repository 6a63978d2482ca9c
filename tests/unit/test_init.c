/* SPDX-License-Identifier: Apache-2.0 */

/* The whole of PID 1, in a child of this process that only believes to be PID 1: no namespace, no
 * cgroup, no filter to speak of. What is left is its loop, the messages, and everything a command
 * goes through on its way to execve(2). */

#include "init_fixture.h"

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <time.h>

static void command_runs_and_its_end_is_told(void **state)
{
    char out[4096];
    need(start_config(&plain));
    struct init_exited m = run(&(struct request){.id = 1, .argv = {"/bin/true"}}, out, sizeof(out));
    expect_exit(&m, 0);
    assert_true(m.end.duration_ns > 0);
    assert_true(m.end.max_rss_kb > 0);
    m = run(&(struct request){.id = 2, .argv = {"sh", "-c", "pwd; echo $A; exit 7"}, .cwd = "/usr"},
            out, sizeof(out));
    expect_exit(&m, 7);
    assert_string_equal(out, "/usr\n1\n");
    m = run(&(struct request){.id = 3, .argv = {"sh", "-c", "kill -9 $$"}}, out, sizeof(out));
    assert_true(WIFSIGNALED(m.end.wait_status));
    assert_int_equal(WTERMSIG(m.end.wait_status), SIGKILL);
    assert_int_equal(m.end.flags, 0); /* by itself */
    stop();
}

static void streams_are_three(void **state)
{
    char out[64], text[64];
    int fds[3] = {-1, -1, -1};
    need(start_config(&plain));
    send_request(&(struct request){
        .id = 1, .flags = INIT_EXEC_STDIN | INIT_EXEC_SCRIPT, .argv = {"cat; echo e >&2"}});
    assert_int_equal(expect_started(1, fds), 3);
    assert_int_equal(fd_write_all(fds[2], "hello", 5), 0);
    (void)close(fds[2]);
    ssize_t n = fd_read_full(fds[0], out, sizeof(out));
    assert_int_equal(n, 5);
    assert_memory_equal(out, "hello", 5);
    assert_int_equal(fd_read_full(fds[1], text, sizeof(text)), 2);
    fd_close_many(fds, 2);
    struct init_exited m = expect_exited(1);
    expect_exit(&m, 0);
    /* Without one it is at its end at once. */
    m = run(&(struct request){.id = 2, .argv = {"cat"}}, out, sizeof(out));
    expect_exit(&m, 0);
    assert_string_equal(out, "");
    stop();
}

static void terminal_has_its_size(void **state)
{
    static const char want[] = "33 99";
    char out[256] = "";
    size_t len = 0;
    int fds[3] = {-1, -1, -1};
    if (access("/dev/ptmx", R_OK | W_OK) < 0) {
        print_message("skipped: there is no /dev/ptmx\n");
        skip();
    }
    need(start_config(&plain));
    send_request(&(struct request){.id = 1,
                                   .flags = INIT_EXEC_TTY | INIT_EXEC_SCRIPT,
                                   .argv = {"test -t 2 && stty size </dev/tty"}});
    assert_int_equal(expect_started(1, fds), 1);
    ssize_t n;
    while (len < sizeof(out) - 1 && (n = read(fds[0], out + len, sizeof(out) - 1 - len)) > 0)
        len += (size_t)n; /* until EIO: nobody has it open any more */
    assert_non_null(strstr(out, want));
    fd_close_many(fds, 3);
    struct init_exited m = expect_exited(1);
    expect_exit(&m, 0);
    stop();
}

static void program_that_cannot_run_says_why(void **state)
{
    static const struct {
        const char *program;
        int error;
    } cases[] = {{"/nonexistent", ENOENT},
                 {"no-such-program-anywhere", ENOENT},
                 {"/etc/passwd", EACCES},
                 {"/", EACCES}};
    char out[64];
    need(start_config(&plain));
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct request r = {.id = i, .argv = {cases[i].program}};
        struct init_exited m = run(&r, out, sizeof(out));
        assert_int_equal(m.end.stage, INSIDE_STAGE_EXEC);
        assert_int_equal(m.end.error, cases[i].error);
    }
    stop();
}

static void working_directory_is_entered_or_made(void **state)
{
    static const struct {
        const char *cwd;
        int error;
    } bad[] = {{"usr", EINVAL},          {"", EINVAL},
               {"/proc", EACCES},        {"/proc/self", EACCES},
               {"/etc/passwd", ENOTDIR}, {"/etc/passwd/x", ENOTDIR}};
    char out[128], cwd[128], want[160];
    need(start_config(&plain));
    for (uint32_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct request r = {.id = i, .argv = {"/bin/true"}, .cwd = bad[i].cwd};
        struct init_exited m = run(&r, out, sizeof(out));
        assert_int_equal(m.end.stage, INSIDE_STAGE_CWD);
        assert_int_equal(m.end.error, bad[i].error);
    }
    assert_int_equal(chmod(dir, 0777), 0);
    (void)snprintf(cwd, sizeof(cwd), "%s/a/b", dir);
    (void)snprintf(want, sizeof(want), "%s\n", cwd);
    struct init_exited m =
        run(&(struct request){.id = 50, .argv = {"pwd"}, .cwd = cwd}, out, sizeof(out));
    expect_exit(&m, 0);
    assert_string_equal(out, want);
    stop();
}

static void strings_must_be_as_many_as_said(void **state)
{
    static const struct {
        uint32_t argc, envc;
        const char *bytes;
        size_t len;
    } cases[] = {
        {1, 0, "a", 1},                            /* no end */
        {1, 0, "a\0/", 3},                         /* the last has none */
        {1, 0, "a", 2},                            /* no directory */
        {2, 0, "a\0/", 4},                         /* one too few */
        {1, 1, "a\0/", 4},   {1, 0, "a\0/\0x", 6}, /* one too many */
        {1, 0, "a\0/\0", 5}, {3, 3, "a\0b\0c\0", 6},
    };
    need(start_config(&plain));
    for (uint32_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        AUTO_DONE(buf) struct buf s;
        int fds[3] = {-1, -1, -1};
        size_t k = i / 2;
        struct init_exec head = {.type = INIT_MSG_EXEC,
                                 .id = i,
                                 .flags = i % 2 ? INIT_EXEC_MEMFD : 0,
                                 .argc = cases[k].argc,
                                 .envc = cases[k].envc,
                                 .strings_len = (uint32_t)cases[k].len};
        buf_init(&s, 64);
        assert_int_equal(buf_append(&s, cases[k].bytes, cases[k].len), 0);
        send_strings(&head, &s);
        assert_int_equal(expect_started(i, fds), 2);
        fd_close_many(fds, 3);
        struct init_exited m = expect_exited(i);
        assert_int_equal(m.end.stage, INSIDE_STAGE_REQUEST);
        assert_int_equal(m.end.error, EBADMSG);
    }
    /* A descriptor with less in it than was said. */
    AUTO_DONE(buf) struct buf s;
    int fds[3] = {-1, -1, -1};
    struct init_exec head = {
        .type = INIT_MSG_EXEC, .id = 99, .flags = INIT_EXEC_MEMFD, .argc = 1, .strings_len = 9};
    buf_init(&s, 64);
    assert_int_equal(buf_append(&s, "a\0/", 4), 0);
    send_strings(&head, &s);
    assert_int_equal(expect_started(99, fds), 2);
    fd_close_many(fds, 3);
    assert_int_equal(expect_exited(99).end.error, EBADMSG);
    stop();
}

static void script_may_be_longer_than_an_argument(void **state)
{
    AUTO_DONE(buf) struct buf script;
    char out[64];
    need(start_config(&plain));
    buf_init(&script, 1 << 20);
    while (script.len < 200000)
        assert_int_equal(buf_puts(&script, ": a line that does nothing\n"), 0);
    assert_int_equal(buf_puts(&script, "echo done; exit 4"), 0);
    struct request r = {
        .id = 1, .flags = INIT_EXEC_SCRIPT | INIT_EXEC_MEMFD, .argv = {buf_str(&script)}};
    struct init_exited m = run(&r, out, sizeof(out));
    expect_exit(&m, 4);
    assert_string_equal(out, "done\n");
    stop();
}

static void time_out_ends_the_tree(void **state)
{
    char out[64];
    need(start_config(&plain));
    struct request r = {
        .id = 1, .argv = {"sh", "-c", "sleep 19 & echo begun; sleep 19"}, .timeout_ns = 100000000};
    /* That reading ends shows that nobody is left to write. */
    struct init_exited m = run(&r, out, sizeof(out));
    assert_string_equal(out, "begun\n");
    assert_int_equal(m.end.flags, INSIDE_EXITED_TIMEOUT);
    assert_true(WIFSIGNALED(m.end.wait_status));
    assert_true(m.end.duration_ns >= 100000000);
    stop();
}

static void send_kill(uint32_t id, enum init_kill_scope scope, int signo)
{
    struct init_kill m = {.type = INIT_MSG_KILL, .id = id, .scope = scope, .signo = signo};
    assert_int_equal(fd_send_msg(conn, &m, sizeof(m), NULL, 0, 0), sizeof(m));
}

static void signals_and_kills_are_delivered(void **state)
{
    int fds[3] = {-1, -1, -1};
    char byte;
    need(start_config(&plain));
    struct request r = {
        .id = 1, .argv = {"sh", "-c", "trap 'exit 5' TERM; echo; while :; do sleep 0.01; done"}};
    send_request(&r);
    assert_int_equal(expect_started(1, fds), 2);
    assert_int_equal(read(fds[0], &byte, 1), 1); /* the trap is set */
    send_kill(1, INIT_KILL_MAIN, SIGTERM);
    struct init_exited m = expect_exited(1);
    expect_exit(&m, 5);
    fd_close_many(fds, 3);

    r = (struct request){.id = 2, .argv = {"sleep", "19"}};
    send_request(&r);
    assert_int_equal(expect_started(2, fds), 2);
    fd_close_many(fds, 3);
    send_kill(2, INIT_KILL_TREE, 0);
    m = expect_exited(2);
    assert_int_equal(m.end.flags, INSIDE_EXITED_KILLED);
    assert_true(WIFSIGNALED(m.end.wait_status));
    stop();
}

static uint64_t cpu_ns(void)
{
    clockid_t clock;
    struct timespec t;
    assert_int_equal(clock_getcpuclockid(init_pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

/* poll(2) fails then. */
static void without_descriptors_it_answers_and_does_not_spin(void **state)
{
    static const struct rlimit none = {0};
    int fds[3] = {-1, -1, -1};
    need(start_config(&plain));
    struct request r = {.id = 1, .flags = INIT_EXEC_STDIN, .argv = {"cat"}};
    send_request(&r);
    assert_int_equal(expect_started(1, fds), 3);
    assert_int_equal(prlimit(init_pid, RLIMIT_NOFILE, &none, NULL), 0);

    r.id = 2;
    send_request(&r);
    struct init_exited m = expect_exited(2);
    assert_int_equal(m.end.stage, INSIDE_STAGE_LIMIT);
    assert_int_equal(m.end.error, EMFILE);
    struct pollfd quiet = {.fd = conn, .events = POLLIN};
    uint64_t before = cpu_ns();
    assert_int_equal(poll(&quiet, 1, 500), 0);
    assert_true(cpu_ns() - before < 100000000ULL);

    fd_close_many(fds, 3);
    m = expect_exited(1);
    expect_exit(&m, 0);
    stop();
}

static void what_is_left_behind_holds_nothing_back(void **state)
{
    int fds[3] = {-1, -1, -1};
    char out[16];
    need(start_config(&plain));
    send_request(&(struct request){.id = 1, .argv = {"sh", "-c", "sleep 19 & exit 3"}});
    assert_int_equal(expect_started(1, fds), 2);
    struct init_exited m = expect_exited(1);
    expect_exit(&m, 3);
    send_kill(1, INIT_KILL_TREE, 0); /* also after the end */
    assert_int_equal(fd_read_full(fds[0], out, sizeof(out)), 0);
    fd_close_many(fds, 3);
    stop();
}

/* PID 1 has read every message that was sent. */
static void wait_until_read(void)
{
    int unread = 1;
    while (unread > 0) {
        assert_int_equal(ioctl(conn, SIOCOUTQ, &unread), 0);
        (void)sched_yield();
    }
}

static void result_is_kept_for_the_next_hello(void **state)
{
    struct init_hello answer;
    uint32_t nonsense = 77;
    int fds[3] = {-1, -1, -1};
    need(start_config(&plain));
    send_request(&(struct request){.id = 1, .flags = INIT_EXEC_STDIN, .argv = {"cat"}});
    assert_int_equal(expect_started(1, fds), 3);
    assert_int_equal(fd_send_msg(conn, &nonsense, sizeof(nonsense), NULL, 0, 0), 4);
    wait_until_read();
    fd_close_many(fds, 3); /* it ends */
    say_hello();
    assert_true(receive(&answer, sizeof(answer), sizeof(answer), NULL, NULL));
    expect_list_end();
    struct init_exited m = expect_exited(1);
    expect_exit(&m, 0);
    stop();
}

static void limits_are_the_commands(void **state)
{
    struct init_config config = plain;
    char out[64];
    config.n_rlimits = 2;
    config.rlimits[0] = (struct inside_rlimit){.resource = RLIMIT_NOFILE, .soft = 50, .hard = 60};
    config.rlimits[1] = (struct inside_rlimit){.resource = RLIMIT_CORE, .soft = 0, .hard = 0};
    need(start_config(&config));
    struct request r = {
        .id = 1, .flags = INIT_EXEC_SCRIPT, .argv = {"ulimit -Sn; ulimit -Hn; ulimit -c; umask"}};
    struct init_exited m = run(&r, out, sizeof(out));
    expect_exit(&m, 0);
    assert_string_equal(out, "50\n60\n0\n0022\n");
    stop();
}

static void wall_that_cannot_be_put_up_lets_nothing_run(void **state)
{
    struct init_config config = plain;
    char out[64];
    config.n_rlimits = 1;
    config.rlimits[0] = (struct inside_rlimit){.resource = 999};
    need(start_config(&config));
    struct init_exited m =
        run(&(struct request){.id = 1, .argv = {"echo", "hi"}}, out, sizeof(out));
    assert_int_equal(m.end.stage, INSIDE_STAGE_CONFINE);
    assert_int_equal(m.end.error, EINVAL);
    assert_string_equal(out, "");
    stop();
}

static void too_large_a_file_under_a_quota_is_told(void **state)
{
    struct init_config config = plain;
    char out[64], script[128];
    config.n_rlimits = 1;
    config.rlimits[0] = (struct inside_rlimit){RLIMIT_FSIZE, 0, 4096, 4096};
    for (int quota = 0; quota < 2; quota++) {
        (void)str_copy(config.quota_path, sizeof(config.quota_path), quota ? "/proc" : "");
        need(start_config(&config));
        assert_int_equal(chmod(dir, 0777), 0);
        (void)snprintf(script, sizeof(script), "exec head -c 9999 /dev/zero >%s/f", dir);
        struct request r = {.id = 1, .flags = INIT_EXEC_SCRIPT, .argv = {script}};
        struct init_exited m = run(&r, out, sizeof(out));
        assert_true(WIFSIGNALED(m.end.wait_status));
        assert_int_equal(WTERMSIG(m.end.wait_status), SIGXFSZ);
        assert_int_equal(m.end.flags, quota ? INSIDE_EXITED_DISK_FULL : 0);
        stop();
    }
}

static bool says(const char *status, const char *name, const char *value)
{
    char want[64];
    (void)snprintf(want, sizeof(want), "\n%s:\t%s\n", name, value);
    return strstr(status, want) != NULL;
}

static void posture_is_that_of_every_command(void **state)
{
    char out[16384], cat[16384];
    need(start_config(&plain));
    struct request r = {.id = 1, .flags = INIT_EXEC_POSTURE, .argv = {"posture"}};
    struct init_exited m = run(&r, out, sizeof(out));
    expect_exit(&m, 0);
    r = (struct request){.id = 2, .argv = {"cat", "/proc/self/status"}};
    m = run(&r, cat, sizeof(cat));
    expect_exit(&m, 0);
    const char *const both[] = {out, cat};
    for (int i = 0; i < 2; i++) {
        assert_true(says(both[i], "NoNewPrivs", "1"));
        assert_true(says(both[i], "Seccomp", "2"));
        assert_true(says(both[i], "CapEff", "0000000000000000"));
        assert_true(says(both[i], "CapPrm", "0000000000000000"));
        assert_true(says(both[i], "CapInh", "0000000000000000"));
        assert_true(says(both[i], "CapBnd", "0000000000000000"));
        assert_true(says(both[i], "CapAmb", "0000000000000000"));
        assert_true(says(both[i], "SigBlk", "0000000000000000"));
        assert_true(says(both[i], "SigIgn", "0000000000000000"));
    }
    stop();
}

static void command_gets_three_descriptors(void **state)
{
    char out[256];
    need(start_config(&plain));
    struct request r = {.id = 1, .argv = {"ls", "/proc/self/fd"}};
    struct init_exited m = run(&r, out, sizeof(out));
    expect_exit(&m, 0);
    assert_string_equal(out, "0\n1\n2\n3\n"); /* the last is ls's own, for the directory */
    stop();
}

static void nobody_else_is_ever_signalled(void **state)
{
    assert_int_equal(test_kill(getppid(), 0), -1); /* 0: even if it were */
    assert_int_equal(test_kill(1, 0), -1);
    assert_int_equal(test_kill(getpid(), 0), -1);
}

/* No start at all. */

static void expect_no_start(const struct init_config *config)
{
    int status = 0;
    start_with(config);
    assert_int_equal(waitpid(init_pid, &status, 0), init_pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != UNSUITED)
        assert_int_equal(WEXITSTATUS(status), 125);
    fd_close_many(&conn, 1);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
}

static void bad_configuration_is_not_started_with(void **state)
{
    struct init_config config = plain;
    config.version++;
    expect_no_start(&config);
    config = plain;
    config.n_rlimits = INSIDE_RLIMITS_MAX + 1;
    expect_no_start(&config);
    config = plain;
    memset(config.quota_path, 'x', sizeof(config.quota_path)); /* no end */
    expect_no_start(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_runs_and_its_end_is_told),
        cmocka_unit_test(streams_are_three),
        cmocka_unit_test(terminal_has_its_size),
        cmocka_unit_test(program_that_cannot_run_says_why),
        cmocka_unit_test(working_directory_is_entered_or_made),
        cmocka_unit_test(strings_must_be_as_many_as_said),
        cmocka_unit_test(script_may_be_longer_than_an_argument),
        cmocka_unit_test(time_out_ends_the_tree),
        cmocka_unit_test(signals_and_kills_are_delivered),
        cmocka_unit_test(without_descriptors_it_answers_and_does_not_spin),
        cmocka_unit_test(what_is_left_behind_holds_nothing_back),
        cmocka_unit_test(result_is_kept_for_the_next_hello),
        cmocka_unit_test(limits_are_the_commands),
        cmocka_unit_test(wall_that_cannot_be_put_up_lets_nothing_run),
        cmocka_unit_test(too_large_a_file_under_a_quota_is_told),
        cmocka_unit_test(posture_is_that_of_every_command),
        cmocka_unit_test(command_gets_three_descriptors),
        cmocka_unit_test(nobody_else_is_ever_signalled),
        cmocka_unit_test(bad_configuration_is_not_started_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
