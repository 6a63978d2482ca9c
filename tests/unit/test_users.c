/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "policy/users.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
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

static int owner_mark;

static enum authz_owner owner(void *arg, const char *session, uid_t uid)
{
    assert_ptr_equal(arg, &owner_mark);
    assert_int_equal(uid, 4321);
    if (str_eq(session, "own"))
        return AUTHZ_OWN;
    return str_eq(session, "foreign") ? AUTHZ_OTHERS : AUTHZ_NO_SESSION;
}

static void members_of_the_sockets_group_are_bound(void **state)
{
    AUTO(users) struct users *u = NULL;
    struct err err = {0};
    const struct passwd *pw = getpwnam("daemon");
    if (pw == NULL)
        fail_msg("every Debian has the user 'daemon'");
    struct peer peer = {.known = true, .uid = pw->pw_uid};
    assert_int_equal(users_new(OWN, NULL, NULL, &u, &err), 0);
    assert_int_equal(users_rank(u, &peer), USERS_REFUSED);
    gid_t gid = 1;
    assert_int_equal(users_set_group(u, "none", "daemon", &gid, &err), 0);
    assert_int_equal(gid, 0);
    assert_int_equal(users_rank(u, &peer), USERS_REFUSED);
    assert_int_equal(users_set_group(u, NULL, "no-such-group", &gid, &err), 0);
    assert_int_equal(gid, 0);
    assert_true(users_set_group(u, "no-such-group", "daemon", &gid, &err) < 0);
    assert_string_equal(err.msg, "socket_group: there is no group 'no-such-group' on this machine; "
                                 "`groupadd --system no-such-group` makes it");
    assert_int_equal(users_set_group(u, NULL, "daemon", &gid, &err), 0);
    assert_int_equal(gid, pw->pw_gid);
    assert_int_equal(users_rank(u, &peer), USERS_BOUND);
    assert_false(users_any(u)); /* the socket is for the group, not for all */
    peer.uid = 4000000000U;     /* without an entry, and so in no group */
    assert_int_equal(users_rank(u, &peer), USERS_REFUSED);
    peer.uid = 0;
    assert_int_equal(users_rank(u, &peer), USERS_FULL);
}

static bool is_users(void *arg, const char *session)
{
    assert_ptr_equal(arg, &owner_mark);
    return str_eq(session, "ci-bobs");
}

static void token_has_no_session_of_a_user(void **state)
{
    static const char text[] =
        "{\"tokens\": [{\"name\": \"ci\", \"sessions\": [\"ci-*\"], \"token\": "
        "\"0123456789012345678901234567890123\"}, {\"name\": \"all\", "
        "\"sessions\": [\"*\"], \"token\": "
        "\"9876543210987654321098765432109876\"}]}";
    const struct authz_sessions sessions = {
        .owner = owner, .is_users = is_users, .arg = &owner_mark};
    AUTO(json) struct json *object = NULL;
    AUTO(authz) struct authz *a = NULL;
    struct err err = {0};
    assert_int_equal(json_parse(text, strlen(text), &object, &err), 0);
    assert_int_equal(authz_parse(object, &a, &err), 0);
    authz_set_sessions(a, &sessions);
    const struct authz_scope *ci = authz_find(a, "0123456789012345678901234567890123", 34, 1);
    const struct authz_scope *all = authz_find(a, "9876543210987654321098765432109876", 34, 1);
    assert_int_equal(authz_check_session(ci, "ci-1", &err), 0);
    assert_int_equal(authz_check_session(ci, "ci-bobs", &err), -ENOENT);
    assert_int_equal(authz_check_session(all, "ci-bobs", &err), 0);
    assert_true(authz_sees(ci, NULL, "ci-1") && authz_sees(ci, "local", "ci-1"));
    assert_false(authz_sees(ci, NULL, "ci-bobs"));
    assert_false(authz_sees(ci, "uid-7", "ci-1")); /* from when it was that user's */
    assert_true(authz_sees(all, "uid-7", "ci-bobs"));
    assert_int_equal(authz_check_name(ci, "ci-1", &err), 0);
    assert_true(authz_check_name(ci, "ci-bobs", &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_true(authz_check_name(ci, "other", &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void scope_of_a_user_is_everything_of_its_own_sessions(void **state)
{
    const struct authz_sessions sessions = {.owner = owner, .arg = &owner_mark};
    const struct authz_scope *s = authz_user(4321, &sessions);
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
    assert_int_equal(authz_check_session(s, "own", &err), 0);
    assert_int_equal(authz_check_session(s, "free", &err), 0);
    assert_int_equal(authz_check_session(s, "foreign", &err), -ENOENT);
    assert_string_equal(err.msg, "session foreign not found");
    assert_true(authz_sees(s, NULL, "own"));
    assert_false(authz_sees(s, NULL, "foreign"));
    assert_false(authz_sees(s, NULL, "free")); /* whose it was is not known */
    assert_false(authz_sees(s, NULL, NULL));
    assert_true(authz_sees(s, "uid-4321", "foreign")); /* from when it was its own */
    assert_false(authz_sees(s, "uid-4322", "own"));    /* from when it was another's */
    assert_false(authz_sees(s, "local", "own"));
    assert_string_equal(authz_errors(s), "uid-4321");
    AUTO_FREE char *name = authz_session_name(s, "mcp-x");
    assert_string_equal(name, "mcp-x");
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
        cmocka_unit_test(members_of_the_sockets_group_are_bound),
        cmocka_unit_test(token_has_no_session_of_a_user),
        cmocka_unit_test(scope_of_a_user_is_everything_of_its_own_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
