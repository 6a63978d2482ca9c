/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/guest/guest.h"
#include "inside/seccomp_install.h"

/* Namespaces that box-guest makes for programs: as somebody without privileges, whoever tests. */

#define NOBODY 65533U
#define NOT_HERE 77

/* Runs it in a child, as nobody where that id is to be had, and says which of its lines failed; 0:
 * none. */
static int in_child(int (*fn)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0)
            (void)!setresuid(NOBODY, NOBODY, NOBODY);
        child_exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? 99 : fn());
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static bool has_line(const char *path, const char *line)
{
    char text[8192];
    return fd_read_file_at(AT_FDCWD, path, text, sizeof(text)) > 0 && strstr(text, line) != NULL;
}

static int are_entered_without_capabilities(void)
{
    struct guest g = {0};
    struct stat before, after;
    char map[64];
    within_make(&g);
    if (g.within[CHILD_NS_USER] < 0)
        return NOT_HERE;
    (void)snprintf(map, sizeof(map), "%10u %10u %10u\n", geteuid(), geteuid(), 1U);
    if (stat("/proc/self/ns/user", &before) < 0 || child_enter(g.within) < 0)
        return 1;
    /* As a program would be: dumpable. */
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || stat("/proc/self/ns/user", &after) < 0)
        return 2;
    if (before.st_ino == after.st_ino || !has_line("/proc/self/uid_map", map))
        return 3;
    static const char *const none[] = {"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
                                       "CapBnd:\t0000000000000000\n",
                                       "CapAmb:\t0000000000000000\n"};
    for (size_t i = 0; i < ARRAY_SIZE(none); i++)
        if (!has_line("/proc/self/status", none[i]))
            return 4;
    return 0;
}

/* A host, or its security module, that answers one call with EPERM. */
static int refuse(long nr)
{
    const struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    return seccomp_install(filter, ARRAY_SIZE(filter));
}

static int go_without(long nr)
{
    struct guest g = {0};
    if (refuse(nr) < 0)
        return 1;
    within_make(&g);
    for (int i = 0; i < CHILD_NS_MAX; i++)
        if (g.within[i] >= 0)
            return 2;
    return child_enter(g.within) == 0 ? 0 : 3;
}

static int go_without_making(void)
{
    return go_without(SYS_unshare);
}

static int go_without_entering(void)
{
    return go_without(SYS_setns);
}

static void programs_enter_them_without_capabilities(void **state)
{
    int line = in_child(are_entered_without_capabilities);
    if (line == NOT_HERE) {
        print_message("skipped: who has no privileges can make no user namespace here\n");
        skip();
    }
    assert_int_equal(line, 0);
}

static void programs_go_without_where_none_can_be_made(void **state)
{
    assert_int_equal(in_child(go_without_making), 0);
}

static void programs_go_without_where_none_can_be_entered(void **state)
{
    assert_int_equal(in_child(go_without_entering), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_enter_them_without_capabilities),
        cmocka_unit_test(programs_go_without_where_none_can_be_made),
        cmocka_unit_test(programs_go_without_where_none_can_be_entered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
