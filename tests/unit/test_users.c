/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "policy/users.h"

#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "loop/peer.h"
#include "policy/authz.h"

#define OWN 1234U

static enum users_rank rank(const char *names, const char *groups, bool known, uid_t uid)
{
    AUTO(users) struct users *u = NULL;
    struct err err = {0};
    const struct peer peer = {.known = known, .uid = uid};
    assert_int_equal(users_new(OWN, names, groups, &u, &err), 0);
    return users_rank(u, &peer);
}

static void root_and_ourselves_are_served(void **state)
{
    const struct peer nobody = {0};
    assert_int_equal(rank(NULL, NULL, true, 0), USERS_FULL);
    assert_int_equal(rank(NULL, NULL, true, OWN), USERS_FULL);
    assert_int_equal(rank(NULL, NULL, true, 4321), USERS_REFUSED);
    /* Of whom nothing is known, the number means nothing either. */
    assert_int_equal(rank("0", "0", false, 0), USERS_REFUSED);
    assert_int_equal(rank(NULL, NULL, false, OWN), USERS_REFUSED);
    assert_int_equal(users_rank(NULL, &nobody), USERS_FULL);
}

static void those_who_are_named_are_bound(void **state)
{
    const struct passwd *pw = getpwnam("daemon");
    assert_non_null(pw);
    const uid_t uid = pw->pw_uid;
    const gid_t gid = pw->pw_gid;
    AUTO_FREE char *number = xasprintf(" 77 ,%u,", gid);
    assert_int_equal(rank("4321", NULL, true, 4321), USERS_BOUND);
    assert_int_equal(rank("nobody, daemon", NULL, true, uid), USERS_BOUND);
    assert_int_equal(rank("nobody", NULL, true, uid), USERS_REFUSED);
    assert_int_equal(rank(NULL, number, true, uid), USERS_BOUND);
    assert_int_equal(rank(NULL, "daemon", true, uid), USERS_BOUND);
    assert_int_equal(rank(NULL, "daemon", true, 4321), USERS_REFUSED); /* has no entry */
    /* A number of a user is none of a group. */
    assert_int_equal(rank(NULL, "4321", true, 4321), USERS_REFUSED);
    assert_int_equal(rank("0", NULL, true, 0), USERS_FULL);
}

static void what_is_not_there_is_an_error(void **state)
{
    static const struct {
        const char *names, *groups, *said;
    } cases[] = {
        {"no-such-user", NULL, "allowed_users: there is no user 'no-such-user' on this machine"},
        {NULL, "0,no-such", "allowed_groups: there is no group 'no-such' on this machine"},
        {"4294967295", NULL, "allowed_users: '4294967295' is no id"},
        {"-1", NULL, "allowed_users: there is no user '-1' on this machine"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct users *u = NULL;
        struct err err = {0};
        assert_true(users_new(OWN, cases[i].names, cases[i].groups, &u, &err) < 0);
        assert_string_equal(err.msg, cases[i].said);
        assert_null(u);
    }
}

static void scope_of_a_user_is_everything_but_mounts_of_others(void **state)
{
    const struct authz_scope *s = authz_user(4321);
    struct err err = {0};
    uid_t uid = 0;
    assert_true(authz_is_user(s, &uid));
    assert_int_equal(uid, 4321);
    assert_false(authz_is_user(NULL, &uid));
    assert_string_equal(authz_name(s), "uid-4321");
    assert_null(authz_share(s)); /* shares are tokens' */
    assert_true(authz_counts(s, NULL, 1));
    assert_int_equal(authz_check_tool(s, "exec", &err), 0);
    assert_int_equal(authz_check_profile(s, "any", &err), 0);
    assert_int_equal(authz_check_network(s, NETWORK_ON, &err), 0);
    assert_int_equal(authz_check_session(s, "any", &err), 0);
    /* Judged by whoever mounts. */
    assert_int_equal(authz_check_mount(s, "/home/x", MOUNT_RW, &err), 0);
    assert_ptr_equal(authz_hold(s), s);
    authz_release(s);
    authz_release(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_and_ourselves_are_served),
        cmocka_unit_test(those_who_are_named_are_bound),
        cmocka_unit_test(what_is_not_there_is_an_error),
        cmocka_unit_test(scope_of_a_user_is_everything_but_mounts_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
