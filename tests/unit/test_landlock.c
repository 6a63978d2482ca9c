/* SPDX-License-Identifier: Apache-2.0 */
#include "inside/landlock.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A tree with one directory per class; the current directory of every test. */
static const char *const dirs[] = {"ro", "exec", "rw", "noexec", "hidden"};
static char base[] = "/tmp/box-test-landlock-XXXXXX";

static int write_script(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);

    return fd >= 0 && write(fd, "#!/bin/true\n", 12) == 12 && close(fd) == 0 ? 0 : -1;
}

static int make_tree(void **state)
{
    char path[64];

    if (!mkdtemp(base) || chdir(base) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
        if (mkdir(dirs[i], 0755) < 0 || str_fmt(path, sizeof(path), "%s/script", dirs[i]) < 0 ||
            write_script(path) < 0)
            return -1;
    }
    return 0;
}

static int remove_tree(void **state)
{
    char path[64];

    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
        if (str_fmt(path, sizeof(path), "%s/script", dirs[i]) < 0 || unlink(path) < 0 ||
            rmdir(dirs[i]) < 0)
            return -1;
    }
    return chdir("/") < 0 || rmdir(base) < 0 ? -1 : 0;
}

/* The classes above, and what /bin/true and /dev/null need. */
static int restrict_self(unsigned flags)
{
    int rw = open("rw", O_PATH | O_CLOEXEC);
    struct landlock_path rules[] = {
        {.path = "ro", .access = LANDLOCK_RO},
        {.path = "exec", .access = LANDLOCK_RO_EXEC},
        {.fd = rw, .access = LANDLOCK_RW},
        {.path = "noexec", .access = LANDLOCK_RW_NOEXEC},
        {.path = "/usr", .access = LANDLOCK_RO_EXEC},
        {.path = "/lib", .access = LANDLOCK_RO_EXEC, .optional = true},
        {.path = "/lib64", .access = LANDLOCK_RO_EXEC, .optional = true},
        {.path = "/bin", .access = LANDLOCK_RO_EXEC, .optional = true},
        {.path = "/nothing/there", .access = LANDLOCK_RW, .optional = true},
        {.path = "/dev/null", .access = LANDLOCK_DEV},
    };
    int fd = landlock_build(rules, ARRAY_SIZE(rules), flags);

    if (rw < 0 || fd < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return landlock_restrict(fd) < 0 || close(fd) < 0 || close(rw) < 0 ? -1 : 0;
}

/* 0 or a negative errno. */
static int try_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);

    return fd < 0 ? -errno : close(fd);
}

static int try_exec(const char *path)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execl(path, path, (char *)NULL);
        _exit(errno);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return -WEXITSTATUS(status);
}

static int classes_hold(void)
{
    if (restrict_self(LANDLOCK_SCOPED) < 0)
        return __LINE__;
    if (try_open("ro/script", O_RDONLY) != 0 || try_open("ro", O_RDONLY | O_DIRECTORY) != 0 ||
        try_open("ro/script", O_WRONLY) != -EACCES || try_open("ro/x", O_CREAT) != -EACCES ||
        try_exec("ro/script") != -EACCES)
        return __LINE__;
    if (try_exec("exec/script") != 0 || try_open("exec/script", O_WRONLY) != -EACCES)
        return __LINE__;
    if (try_open("rw/x", O_CREAT | O_RDWR) != 0 || try_exec("rw/script") != 0 ||
        rename("rw/x", "noexec/x") != 0 || truncate("noexec/x", 0) != 0 ||
        mkdir("noexec/d", 0700) != 0 || rmdir("noexec/d") != 0 || symlink("x", "rw/l") != 0 ||
        unlink("rw/l") != 0 || mkfifo("rw/f", 0600) != 0 || unlink("rw/f") != 0 ||
        unlink("noexec/x") != 0)
        return __LINE__;
    if (mknod("rw/null", S_IFCHR | 0600, 0x103) == 0)
        return __LINE__;
    if (try_open("noexec/script", O_WRONLY) != 0 || try_exec("noexec/script") != -EACCES)
        return __LINE__;
    if (try_open("hidden/script", O_RDONLY) != -EACCES || try_open("/etc/passwd", O_RDONLY) == 0 ||
        try_open("/", O_RDONLY | O_DIRECTORY) != -EACCES)
        return __LINE__;
    if (try_open("/dev/null", O_RDWR | O_TRUNC) != 0 || try_open("/dev/zero", O_RDONLY) == 0)
        return __LINE__;
    return 0;
}

static int listen_on_loopback(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;

    (void)close(fd);
    return r;
}

static int tcp_is_denied(void)
{
    if (listen_on_loopback() != 0 || restrict_self(LANDLOCK_NO_TCP) < 0)
        return __LINE__;
    return listen_on_loopback() == -EACCES ? 0 : __LINE__;
}

static int tcp_is_free(void)
{
    return restrict_self(0) == 0 && listen_on_loopback() == 0 ? 0 : __LINE__;
}

static int connect_abstract(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

    memcpy(a.sun_path + 1, name, strlen(name));
    r = connect(fd, (struct sockaddr *)&a, len) < 0 ? -errno : 0;
    (void)close(fd);
    return r;
}

/* Inside one domain processes may signal each other; the parent is outside. */
static int signals_end_at_the_domain(void)
{
    int status;
    pid_t pid;

    if (restrict_self(LANDLOCK_SCOPED) < 0)
        return __LINE__;
    if (kill(getppid(), 0) == 0 || errno != EPERM)
        return __LINE__;
    pid = fork();
    if (pid == 0)
        for (;;)
            (void)pause();
    if (pid < 0 || kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid)
        return __LINE__;
    /* Nobody listens there: the scope is checked only for a socket that exists. */
    return connect_abstract("box-test-nobody") == -ECONNREFUSED ? 0 : __LINE__;
}

static int signals_are_free(void)
{
    return restrict_self(0) == 0 && kill(getppid(), 0) == 0 ? 0 : __LINE__;
}

static void in_child(int (*check)(void), int min_abi)
{
    int status;
    pid_t pid;

    if (landlock_abi() < min_abi)
        print_message("skipped: this kernel's Landlock is too old\n"), skip();
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int line = check();
        if (line != 0)
            dprintf(STDERR_FILENO, "line %d failed\n", line);
        _exit(line != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void each_class_grants_what_it_says(void **state)
{
    in_child(classes_hold, 3);
}

static void tcp_goes_with_the_flag(void **state)
{
    in_child(tcp_is_denied, 4);
    in_child(tcp_is_free, 4);
}

static void scope_goes_with_the_flag(void **state)
{
    in_child(signals_end_at_the_domain, 6);
    in_child(signals_are_free, 6);
}

static void missing_paths_fail_unless_optional(void **state)
{
    struct landlock_path missing = {.path = "/nothing/there", .access = LANDLOCK_RO};
    struct landlock_path closed = {.fd = -1, .access = LANDLOCK_RO};

    if (landlock_abi() < 1)
        print_message("skipped: this kernel's Landlock is too old\n"), skip();
    assert_int_equal(landlock_build(&missing, 1, 0), -ENOENT);
    assert_int_equal(landlock_build(&closed, 1, 0), -EBADF);
    assert_true(landlock_restrict(-1) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_class_grants_what_it_says),
        cmocka_unit_test(tcp_goes_with_the_flag),
        cmocka_unit_test(scope_goes_with_the_flag),
        cmocka_unit_test(missing_paths_fail_unless_optional),
    };

    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
