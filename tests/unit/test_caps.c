/* SPDX-License-Identifier: Apache-2.0 */
#include "inside/caps.h"

#include "base/str.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct sets {
    uint64_t effective, permitted, inheritable, bounding, ambient;
};

static struct sets read_sets(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[_LINUX_CAPABILITY_U32S_3] = {0};
    struct sets s = {0};

    if (syscall(SYS_capget, &header, d) < 0)
        abort();
    s.effective = d[0].effective | (uint64_t)d[1].effective << 32;
    s.permitted = d[0].permitted | (uint64_t)d[1].permitted << 32;
    s.inheritable = d[0].inheritable | (uint64_t)d[1].inheritable << 32;
    for (unsigned i = 0; i < 64; i++) {
        if (prctl(PR_CAPBSET_READ, i, 0, 0, 0) == 1)
            s.bounding |= UINT64_C(1) << i;
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, i, 0, 0) == 1)
            s.ambient |= UINT64_C(1) << i;
    }
    return s;
}

/* Something in every set, so that there is something to drop. */
static void fill_sets(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[_LINUX_CAPABILITY_U32S_3] = {0};

    if (syscall(SYS_capget, &header, d) < 0)
        abort();
    d[0].inheritable = 1u << CAP_CHOWN;
    if (syscall(SYS_capset, &header, d) < 0 ||
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0) < 0)
        abort();
}

static int nothing_is_left(void)
{
    struct sets s;
    int bits;

    fill_sets();
    if (caps_drop_all() != 0)
        return __LINE__;
    s = read_sets();
    if (s.effective || s.permitted || s.inheritable || s.bounding || s.ambient)
        return __LINE__;
    bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    if ((bits & (SECBIT_NOROOT | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_CAP_AMBIENT_RAISE)) !=
            (SECBIT_NOROOT | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_CAP_AMBIENT_RAISE) ||
        (bits & SECURE_ALL_LOCKS) != SECURE_ALL_LOCKS || (bits & SECBIT_KEEP_CAPS))
        return __LINE__;
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : __LINE__;
}

static int twice_is_fine(void)
{
    if (caps_drop_all() != 0)
        return __LINE__;
    return caps_drop_all() == 0 && caps_keep(0) == 0 ? 0 : __LINE__;
}

static int an_exec_as_uid_0_gains_nothing(void)
{
    if (caps_drop_all() != 0)
        return __LINE__;
    execl("/bin/grep", "grep", "-q", "^CapPrm:[[:space:]]*0*$", "/proc/self/status", (char *)NULL);
    return __LINE__;
}

static int keep_keeps_the_mask_only(void)
{
    uint64_t mask = UINT64_C(1) << CAP_CHOWN | UINT64_C(1) << CAP_CHECKPOINT_RESTORE;
    struct sets before, s;

    fill_sets();
    before = read_sets();
    if (caps_keep(mask) != 0)
        return __LINE__;
    s = read_sets();
    if (s.effective != (before.effective & mask) || s.permitted != (before.permitted & mask) ||
        s.bounding != (before.bounding & mask) || s.inheritable || s.ambient)
        return __LINE__;
    /* CAP_SETPCAP is gone, so nothing more can be dropped from the bounding set. */
    return caps_keep(0) == -EPERM ? 0 : __LINE__;
}

/* As another user than 0, who keeps nothing over execve() otherwise. */
static int exec_shows(int (*keep)(uint64_t mask), const char *pattern)
{
    uint64_t mask = UINT64_C(1) << CAP_CHOWN | UINT64_C(1) << CAP_SETPCAP;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[_LINUX_CAPABILITY_U32S_3] = {0};

    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0)
        return __LINE__;
    if (setresuid(65534, 65534, 65534) < 0)
        return errno == EINVAL ? 0 : __LINE__; /* one id is mapped here: nowhere to go */
    if (syscall(SYS_capget, &header, d) < 0)
        return __LINE__;
    d[0].effective = d[0].permitted;
    d[1].effective = d[1].permitted;
    if (syscall(SYS_capset, &header, d) < 0 || keep(mask) != 0)
        return __LINE__;
    execl("/bin/grep", "grep", "-q", pattern, "/proc/self/status", (char *)NULL);
    return __LINE__;
}

static int named_exec_over_exec(void)
{
    return exec_shows(caps_keep_over_exec, "^CapEff:[[:space:]]*0*101$");
}

static int lost_at_exec(void)
{
    return exec_shows(caps_keep, "^CapEff:[[:space:]]*0*$");
}

static int locked_bits_refuse_ambient(void)
{
    if (caps_lock_securebits() != 0)
        return __LINE__;
    return caps_keep_over_exec(UINT64_C(1) << CAP_CHOWN) == -EPERM ? 0 : __LINE__;
}

/* Leaving uid 0 clears the permitted set, and with it the means to go on, unless told not to. */
static int leave_root(bool lock_first)
{
    if (lock_first && caps_lock_securebits() != 0)
        return __LINE__;
    if (setresuid(65534, 65534, 65534) < 0)
        return errno == EINVAL ? 0 : __LINE__; /* one id is mapped here: nowhere to go */
    if (lock_first)
        return caps_drop_all() == 0 && read_sets().bounding == 0 ? 0 : __LINE__;
    return caps_drop_all() == -EPERM ? 0 : __LINE__;
}

static int leaving_root_first_fails(void)
{
    return leave_root(false);
}

static int locked_bits_outlast_leaving_root(void)
{
    return leave_root(true);
}

static int without_setpcap_it_fails(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};

    if (syscall(SYS_capset, &header, none) < 0)
        return __LINE__;
    return caps_drop_all() == -EPERM ? 0 : __LINE__;
}

/* Runs the check in a child that is uid 0 with all capabilities, at least in its own namespace. */
static void in_child(int (*check)(void))
{
    int status;
    pid_t pid;

    if (geteuid() != 0) {
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : 1);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status != 0)
            print_message("skipped: no user namespaces here\n"), skip();
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int line = geteuid() != 0 && unshare(CLONE_NEWUSER) < 0 ? __LINE__ : check();
        if (line != 0)
            dprintf(STDERR_FILENO, "line %d failed\n", line);
        _exit(line != 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void drop_all_leaves_nothing(void **state)
{
    in_child(nothing_is_left);
}

static void drop_all_is_idempotent(void **state)
{
    in_child(twice_is_fine);
}

static void root_stays_without_capabilities_after_exec(void **state)
{
    in_child(an_exec_as_uid_0_gains_nothing);
}

static void keep_reduces_to_the_mask(void **state)
{
    in_child(keep_keeps_the_mask_only);
}

static void keep_survives_exec_when_asked_to(void **state)
{
    in_child(named_exec_over_exec);
    in_child(lost_at_exec);
    in_child(locked_bits_refuse_ambient);
}

static void drop_all_works_after_leaving_root(void **state)
{
    in_child(leaving_root_first_fails);
    in_child(locked_bits_outlast_leaving_root);
}

static void drop_all_fails_without_setpcap(void **state)
{
    in_child(without_setpcap_it_fails);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drop_all_leaves_nothing),
        cmocka_unit_test(drop_all_is_idempotent),
        cmocka_unit_test(root_stays_without_capabilities_after_exec),
        cmocka_unit_test(keep_reduces_to_the_mask),
        cmocka_unit_test(keep_survives_exec_when_asked_to),
        cmocka_unit_test(drop_all_works_after_leaving_root),
        cmocka_unit_test(drop_all_fails_without_setpcap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
