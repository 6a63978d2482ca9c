/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inside/clone.h"
#include "inside/guest/guest.h"
#include "inside/seccomp_install.h"

/* Runs it in a child, and says which of its lines failed; 0: none. */
static int in_child(int (*fn)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        child_exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? 99 : fn());
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static bool refused(long r)
{
    return r < 0 && errno == EPERM;
}

/* As the child of box-guest does, in two steps. */
static int brand_take(uint64_t brand)
{
    const struct inside_rlimit mark = brand_mark(brand);
    const struct rlimit limit = {.rlim_cur = mark.soft, .rlim_max = mark.hard};
    return setrlimit((__rlimit_resource_t)mark.resource, &limit);
}

static int brand_keep(void)
{
    return seccomp_install(brand_filter.prog, brand_filter.n);
}

static int cannot_be_changed(void)
{
    const struct rlimit less = {1, 1};
    struct rlimit now;
    uint64_t brand = brand_new();
    if (brand_of(getpid()) != 0 || brand_take(brand) < 0 || brand_keep() < 0)
        return 1;
    if (brand_of(getpid()) != brand)
        return 2;
    if (!refused(syscall(SYS_setrlimit, RLIMIT_RSS, &less)) ||
        !refused(syscall(SYS_prlimit64, 0, RLIMIT_RSS, &less, NULL)) ||
        !refused(syscall(SYS_prlimit64, getppid(), RLIMIT_RSS, &less, NULL)))
        return 3;
    /* A number is what the kernel makes of it, and no more. */
    if (!refused(syscall(SYS_setrlimit, RLIMIT_RSS | 0x100000000UL, &less)))
        return 4;
    if (getrlimit(RLIMIT_RSS, &now) < 0 || now.rlim_max != brand)
        return 5;
    /* Others are nobody's business. */
    if (getrlimit(RLIMIT_STACK, &now) < 0 || syscall(SYS_setrlimit, RLIMIT_STACK, &now) < 0)
        return 6;
    return brand_of(getpid()) == brand ? 0 : 7;
}

static int is_inherited(void)
{
    uint64_t brand = brand_new();
    int status = 0;
    if (brand_take(brand) < 0 || brand_keep() < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)setsid();
        child_exit(brand_of(getpid()) == brand && brand_of(getppid()) == brand ? 0 : 1);
    }
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 2;
}

/* An engine may have set a limit of its own, which nobody can raise. */
static int fits_below_a_limit(void)
{
    const struct rlimit low = {1000, 1000};
    if (setrlimit(RLIMIT_RSS, &low) < 0)
        return 1;
    uint64_t brand = brand_new();
    if (brand >= low.rlim_max || brand_of(getpid()) != 0 || brand_take(brand) < 0)
        return 2;
    return brand_of(getpid()) == brand ? 0 : 3;
}

static void a_brand_is_for_good(void **state)
{
    assert_int_equal(in_child(cannot_be_changed), 0);
    assert_int_equal(in_child(is_inherited), 0);
    assert_true(brand_new() != brand_new());
    assert_int_equal(brand_of(getpid()), 0);
}

static void a_brand_fits_below_a_limit(void **state)
{
    assert_int_equal(in_child(fits_below_a_limit), 0);
}

static void this_is_linux(void **state)
{
    assert_false(guest_is_gvisor());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_brand_fits_below_a_limit),
        cmocka_unit_test(a_brand_is_for_good),
        cmocka_unit_test(this_is_linux),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
