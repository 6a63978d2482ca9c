/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"

#define LONG_MS 10000

static int run_shell(const char *script, int stdin_fd, unsigned timeout_ms, struct err *err)
{
    const char *const argv[] = {"sh", "-c", script, NULL};

    return hostcmd_wait(argv, stdin_fd, timeout_ms, err);
}

static void success_is_zero(void **state)
{
    struct err err = {0};

    assert_int_equal(run_shell("exit 0", -1, LONG_MS, &err), 0);
}

static void failure_carries_what_the_program_said_on_one_line(void **state)
{
    struct err err = {0};

    assert_true(run_shell("printf 'first\\nse\\033cond\\n' >&2; exit 3", -1, LONG_MS, &err) < 0);
    assert_int_equal(err.code, ERR_SYSTEM);
    assert_non_null(strstr(err.msg, "status 3"));
    assert_non_null(strstr(err.msg, "first se cond"));
}

static void endless_error_output_is_cut_and_does_not_block(void **state)
{
    struct err err = {0};

    assert_true(run_shell("yes abcdefgh | head -c 1000000 >&2; exit 1", -1, LONG_MS, &err) < 0);
    assert_non_null(strstr(err.msg, "status 1"));
}

static void good_statuses_other_than_zero_are_returned(void **state)
{
    const char *const argv[] = {"sh", "-c", "exit 1", NULL};
    struct err err = {0};

    const struct hostcmd_opts opts = {
        .stdin_fd = -1, .stdout_fd = -1, .timeout_ms = LONG_MS, .max_status = 1};

    assert_int_equal(hostcmd_wait_opts(argv, &opts, &err), 1);
}

static void late_program_is_killed_and_reaped(void **state)
{
    struct err err = {0};

    assert_true(run_shell("exec sleep 1000", -1, 50, &err) < 0);
    assert_non_null(strstr(err.msg, "was killed"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void death_by_signal_is_told(void **state)
{
    struct err err = {0};

    assert_true(run_shell("kill -SEGV $$", -1, LONG_MS, &err) < 0);
    assert_non_null(strstr(err.msg, "signal 11"));
}

static void missing_program_is_unsupported(void **state)
{
    const char *const argv[] = {"no-such-program-of-the-host", NULL};
    struct err err = {0};

    assert_true(hostcmd_wait(argv, -1, LONG_MS, &err) < 0);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
}

static void standard_input_is_the_given_descriptor(void **state)
{
    struct err err = {0};
    AUTO_CLOSE int fd = fd_sealed_memfd("stdin", "hello", 5);

    assert_true(fd >= 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(run_shell("test \"$(cat)\" = hello", fd, LONG_MS, &err), 0);
}

static void child_gets_no_other_descriptor_environment_or_blocked_signal(void **state)
{
    struct err err = {0};
    sigset_t set, old;
    char script[256];
    AUTO_CLOSE int leak = open("/dev/null", O_RDONLY); /* without O_CLOEXEC, on purpose */

    assert_true(leak > 2);
    assert_int_equal(setenv("HOSTCMD_SECRET", "1", 1), 0);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    assert_int_equal(sigprocmask(SIG_BLOCK, &set, &old), 0);
    assert_true(str_fmt(script, sizeof(script),
                        "test -z \"$HOSTCMD_SECRET\" || exit 1;"
                        "test ! -e /proc/$$/fd/%d || exit 2;"
                        "exec grep -q 'SigBlk:.*0000000000000000' /proc/self/status",
                        leak) >= 0);
    assert_int_equal(run_shell(script, -1, LONG_MS, &err), 0);
    assert_int_equal(sigprocmask(SIG_SETMASK, &old, NULL), 0);
}

static void extra_descriptors_land_in_their_places(void **state)
{
    const char *const argv[] = {"sh", "-c", "echo three >&3; echo four >&4", NULL};
    struct hostcmd p = {.pid = 0, .pidfd = -1};
    struct err err = {0};
    char text[16] = "";
    int one[2], two[2];

    assert_int_equal(pipe2(one, O_CLOEXEC), 0);
    assert_int_equal(pipe2(two, O_CLOEXEC), 0);
    const int fds[] = {-1, -1, 2, one[1], two[1]};
    assert_int_equal(hostcmd_start(argv, fds, 5, &p, &err), 0);
    struct pollfd pfd = {.fd = p.pidfd, .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, LONG_MS), 1);
    hostcmd_kill(&p);
    assert_int_equal(p.pid, 0);
    assert_int_equal(read(one[0], text, sizeof(text)), 6);
    assert_memory_equal(text, "three\n", 6);
    assert_int_equal(read(two[0], text, sizeof(text)), 5);
    assert_memory_equal(text, "four\n", 5);
    fd_close_many(one, 2);
    fd_close_many(two, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(success_is_zero),
        cmocka_unit_test(failure_carries_what_the_program_said_on_one_line),
        cmocka_unit_test(endless_error_output_is_cut_and_does_not_block),
        cmocka_unit_test(good_statuses_other_than_zero_are_returned),
        cmocka_unit_test(late_program_is_killed_and_reaped),
        cmocka_unit_test(death_by_signal_is_told),
        cmocka_unit_test(missing_program_is_unsupported),
        cmocka_unit_test(standard_input_is_the_given_descriptor),
        cmocka_unit_test(child_gets_no_other_descriptor_environment_or_blocked_signal),
        cmocka_unit_test(extra_descriptors_land_in_their_places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
