/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/user.h"

#define NO_NAMESPACE 3

/* In a namespace of its own where it is root; 0 when both answers are right. */
static int look_from_inside(void)
{
    char map[64];
    uid_t uid = geteuid(), outer = user_outer_id();

    (void)snprintf(map, sizeof(map), "0 %u 1", uid);
    if (unshare(CLONE_NEWUSER) < 0 || fd_write_file_at(AT_FDCWD, "/proc/self/uid_map", map) < 0)
        return NO_NAMESPACE;
    if (geteuid() != 0 || user_is_host_root())
        return 1;
    /* Only one namespace is looked through: for a test that runs in one already, its own id. */
    return user_outer_id() == uid || user_outer_id() == outer ? 0 : 2;
}

static void root_of_a_namespace_is_an_ordinary_user(void **state)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(look_from_inside());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_NAMESPACE)
        print_message("skipped: no user namespaces here\n"), skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void others_are_not_root(void **state)
{
    if (geteuid() != 0)
        assert_false(user_is_host_root());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_of_a_namespace_is_an_ordinary_user),
        cmocka_unit_test(others_are_not_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
