/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/compat.h"
#include "inside/landlock.h"

/* What a job that was taken over would try. Each returns what the kernel said. */

static int try_read_elsewhere(void)
{
    int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? errno : 0;
}

static int try_write_elsewhere(void)
{
    int fd = open("/tmp/box-fetch-escaped", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    return fd < 0 ? errno : 0;
}

static int try_socket(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;
}

static int try_unix_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0;
}

static int try_process(void)
{
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) < 0 ? errno : 0;
}

static int try_program(void)
{
    char *const argv[] = {NULL};
    return syscall(SYS_execve, "/bin/true", argv, argv) < 0 ? errno : 0;
}

static int try_code(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
               ? errno
               : 0;
}

static int try_chmod(void)
{
    return syscall(SYS_fchmodat, AT_FDCWD, it.dir, 0700) < 0 ? errno : 0;
}

static int try_signal(void)
{
    return syscall(SYS_kill, 1, 0) < 0 ? errno : 0;
}

static int try_alarm(void)
{
    const char none[64] = "";
    return syscall(SYS_setitimer, 0, none, NULL) < 0 ? errno : 0;
}

static int try_trace(void)
{
    return syscall(SYS_ptrace, 0, 0, 0, 0) < 0 ? errno : 0;
}

/* What it needs. */

static int try_own_file(void)
{
    AUTO_CLOSE int fd = path_open_beneath(it.fd, "mine", O_WRONLY | O_CREAT, 0600);
    return fd < 0 ? -fd : fd_write_all(fd, "x", 1) < 0 ? EIO : 0;
}

static int try_rename(void)
{
    return renameat(it.fd, "a/f", it.fd, "b/f") < 0 ? errno : 0;
}

static int try_memory(void)
{
    void *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? errno : 0;
}

/* What a job that copies may do in the directory it copies from. */

static struct fetch_source source = {-1, -1};

static int try_read_source(void)
{
    AUTO_CLOSE int fd = path_open_beneath(source.dir_fd, "f", O_RDONLY, 0);
    return fd < 0 ? -fd : 0;
}

static int try_write_source(void)
{
    AUTO_CLOSE int fd = path_open_beneath(source.dir_fd, "f", O_WRONLY, 0);
    return fd < 0 ? -fd : 0;
}

static int try_make_in_source(void)
{
    return mkdirat(source.dir_fd, "new", 0755) < 0 ? errno : 0;
}

/* In a child, once it is confined: 255 when it could not be. */
static int confined(int (*attempt)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        struct err err = {0};
        if (fetch_confine(it.fd, source.dir_fd >= 0 ? &source : NULL, &err) < 0)
            _exit(255);
        _exit(attempt());
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_way_out_is_closed(void **state)
{
    static const struct {
        int (*attempt)(void);
        int error;
    } cases[] = {
        {try_socket, ENOSYS},  {try_unix_socket, ENOSYS}, {try_process, ENOSYS},
        {try_program, ENOSYS}, {try_code, EACCES},        {try_chmod, ENOSYS},
        {try_signal, ENOSYS},  {try_alarm, ENOSYS},       {try_trace, ENOSYS},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(confined(cases[i].attempt), cases[i].error);
}

static void other_files_are_out_of_reach(void **state)
{
    if (landlock_abi() == 0) {
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(confined(try_read_elsewhere), EACCES);
    assert_int_equal(confined(try_write_elsewhere), EACCES);
}

static void its_own_work_goes_on(void **state)
{
    put_text("a/f", "x");
    put_text("b/g", "x");
    assert_int_equal(confined(try_own_file), 0);
    assert_int_equal(confined(try_rename), 0);
    assert_int_equal(confined(try_memory), 0);
    assert_true(there("mine") && there("b/f") && !there("a/f"));
}

static void a_source_is_only_read(void **state)
{
    char other[] = "/tmp/box-fetch-source-XXXXXX";
    if (landlock_abi() == 0) {
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    assert_non_null(mkdtemp(other));
    int fd = open(other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int file = openat(fd, "f", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && file >= 0 && close(file) == 0);
    source = (struct fetch_source){fd, -1};
    int reads = confined(try_read_source), writes = confined(try_write_source),
        makes = confined(try_make_in_source), elsewhere = confined(try_read_elsewhere),
        works = confined(try_own_file);
    source = (struct fetch_source){-1, -1};
    (void)close(fd);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, other), 0);
    assert_int_equal(reads, 0);
    assert_int_equal(writes, EACCES);
    assert_int_equal(makes, EACCES);
    assert_int_equal(elsewhere, EACCES);
    assert_int_equal(works, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_way_out_is_closed, store_start, store_stop),
        cmocka_unit_test_setup_teardown(other_files_are_out_of_reach, store_start, store_stop),
        cmocka_unit_test_setup_teardown(a_source_is_only_read, store_start, store_stop),
        cmocka_unit_test_setup_teardown(its_own_work_goes_on, store_start, store_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
