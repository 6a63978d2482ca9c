/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/authz.h"

#define ONE "11111111111111111111111111111111"
#define TWO "22222222222222222222222222222222"
/* sha256 of TWO */
#define TWO_DIGEST "0d6ba19b62531ccb0deb8804313eca283c69560f66f1b7b8a2c1592ae8c35c6b"

static int read_text(const char *text, struct authz **ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;
    *err = (struct err){0};
    assert_int_equal(json_parse(text, strlen(text), &v, err), 0);
    return authz_parse(v, ret, err);
}

static struct authz *good(const char *text)
{
    struct authz *a = NULL;
    struct err err;
    if (read_text(text, &a, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return a;
}

static void bad(const char *text, const char *message)
{
    AUTO(authz) struct authz *a = NULL;
    struct err err;
    assert_true(read_text(text, &a, &err) < 0);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, message);
    assert_null(strstr(err.msg, ONE));
}

static void a_token_is_found_by_itself_or_its_digest(void **state)
{
    AUTO(authz)
    struct authz *a =
        good("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\"}, {\"name\": \"b\", "
             "\"sha256\": \"" TWO_DIGEST "\"}]}");
    assert_string_equal(authz_name(authz_find(a, ONE, 32, 0)), "a");
    assert_string_equal(authz_name(authz_find(a, TWO, 32, 0)), "b");
    assert_null(authz_find(a, ONE, 31, 0));
    assert_null(authz_find(a, "", 0, 0));
    assert_null(authz_find(a, TWO_DIGEST, 64, 0)); /* the digest opens nothing */
    assert_string_equal(authz_name(NULL), "local");
}

static void a_token_ends_when_it_says(void **state)
{
    AUTO(authz)
    struct authz *a = good("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"expires\": "
                           "\"2026-01-01T00:00:00Z\"}]}");
    const uint64_t end = 1767225600ULL * NSEC_PER_SEC;
    assert_non_null(authz_find(a, ONE, 32, end - 1000));
    assert_null(authz_find(a, ONE, 32, end));
    assert_null(authz_find(a, ONE, 32, end + NSEC_PER_SEC));
}

#define ENTRY(more) "{\"name\": \"a\", \"token\": \"" ONE "\"" more "}"
#define OTHER "{\"name\": \"b\", \"token\": \"" TWO "\"}"
#define FILE_OF(entries) "{\"tokens\": [" entries "]}"

/* One that is held outlives its file, and knows whether another still says the same of it. */
static void a_scope_that_is_held_counts_while_nothing_of_it_changes(void **state)
{
    static const char *const same[] = {FILE_OF(ENTRY("")), FILE_OF(OTHER ", " ENTRY(""))};
    static const char *const others[] = {
        FILE_OF(""),
        FILE_OF(OTHER),
        FILE_OF(ENTRY(", \"tools\": [\"exec\"]")),
        FILE_OF(ENTRY(", \"max_sessions\": 3")),
        "{\"tokens\": [{\"name\": \"a\", \"token\": \"" TWO "\"}]}",
        "{\"tokens\": [{\"name\": \"c\", \"token\": \"" ONE "\"}]}"};
    struct authz *a = good(FILE_OF(ENTRY("")));
    const struct authz_scope *s = authz_hold(authz_find(a, ONE, 32, 0));
    assert_true(authz_counts(s, a, 0));
    authz_free(a);
    assert_string_equal(authz_name(s), "a");
    for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
        AUTO(authz) struct authz *now = good(same[i]);
        assert_true(authz_counts(s, now, 0));
    }
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        AUTO(authz) struct authz *now = good(others[i]);
        assert_false(authz_counts(s, now, 0));
    }
    assert_false(authz_counts(s, NULL, 0));
    assert_true(authz_counts(NULL, NULL, 0));
    authz_release(s);
}

static void a_scope_that_is_held_ends_when_it_says(void **state)
{
    AUTO(authz)
    struct authz *a = good(FILE_OF(ENTRY(", \"expires\": \"2026-01-01T00:00:00Z\"")));
    const uint64_t end = 1767225600ULL * NSEC_PER_SEC;
    const struct authz_scope *s = authz_find(a, ONE, 32, 0);
    assert_true(authz_counts(s, a, end - 1000));
    assert_false(authz_counts(s, a, end));
}

static void what_is_not_named_is_not_allowed(void **state)
{
    AUTO(authz) struct authz *a = good("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\"}]}");
    const struct authz_scope *s = authz_find(a, ONE, 32, 0);
    struct err err = {0};
    assert_true(authz_check_profile(s, "default", &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_string_equal(err.msg, "token 'a' may not use the profile 'default'");
    assert_true(authz_check_tool(s, "exec", &err) < 0);
    assert_string_equal(err.msg, "token 'a' may not use 'exec'");
    assert_int_equal(authz_check_network(s, NETWORK_OFF, &err), 0);
    assert_true(authz_check_network(s, NETWORK_ON, &err) < 0);
    assert_true(authz_check_mount(s, "/srv", MOUNT_RO, &err) < 0);
    assert_int_equal(authz_check_mount(s, "/srv", MOUNT_NONE, &err), 0);
    assert_true(authz_check_session(s, "x", &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void nobody_in_particular_may_do_everything(void **state)
{
    assert_int_equal(authz_check_profile(NULL, "x", NULL), 0);
    assert_int_equal(authz_check_tool(NULL, "x", NULL), 0);
    assert_int_equal(authz_check_network(NULL, NETWORK_ON, NULL), 0);
    assert_int_equal(authz_check_mount(NULL, "/x", MOUNT_RW, NULL), 0);
    assert_int_equal(authz_check_session(NULL, "x", NULL), 0);
}

static void lists_name_what_is_allowed(void **state)
{
    AUTO(authz)
    struct authz *a = good(
        "{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"profiles\": [\"default\", "
        "\"mine\"], \"tools\": [\"*\"], \"denied_tools\": [\"audit\"], \"networks\": [\"on\"], "
        "\"sessions\": [\"team-*\", \"shared\"], \"mounts\": [{\"path\": \"/srv/ro\"}, "
        "{\"path\": \"/srv/rw\", \"mode\": \"rw\"}]}]}");
    const struct authz_scope *s = authz_find(a, ONE, 32, 0);
    assert_int_equal(authz_check_profile(s, "mine", NULL), 0);
    assert_true(authz_check_profile(s, "min", NULL) < 0);
    assert_int_equal(authz_check_tool(s, "anything", NULL), 0);
    assert_true(authz_check_tool(s, "audit", NULL) < 0); /* deny wins */
    assert_int_equal(authz_check_network(s, NETWORK_ON, NULL), 0);
    assert_true(authz_check_network(s, NETWORK_OFF, NULL) < 0); /* the list is the list */
    assert_int_equal(authz_check_session(s, "team-", NULL), 0);
    assert_int_equal(authz_check_session(s, "team-x", NULL), 0);
    assert_int_equal(authz_check_session(s, "shared", NULL), 0);
    assert_true(authz_check_session(s, "shared2", NULL) < 0);
    assert_true(authz_check_session(s, "team", NULL) < 0);
    assert_int_equal(authz_check_mount(s, "/srv/ro", MOUNT_RO, NULL), 0);
    assert_int_equal(authz_check_mount(s, "/srv/ro/deep/er", MOUNT_RO, NULL), 0);
    assert_true(authz_check_mount(s, "/srv/ro", MOUNT_RW, NULL) < 0);
    assert_true(authz_check_mount(s, "/srv/rowboat", MOUNT_RO, NULL) < 0);
    assert_true(authz_check_mount(s, "/srv", MOUNT_RO, NULL) < 0);
    assert_int_equal(authz_check_mount(s, "/srv/rw/x", MOUNT_RW, NULL), 0);
    assert_int_equal(authz_check_mount(s, "/srv/rw", MOUNT_RO, NULL), 0);
}

static void mistakes_are_told_without_the_secret(void **state)
{
    bad("{}", "tokens: Field required");
    bad("{\"tokens\": [{\"name\": \"a\"}]}", "token 'a' must have either token or sha256");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"sha256\": \"" TWO_DIGEST "\"}]}",
        "token 'a' must have either token or sha256");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"short\"}]}",
        "token must be at least 32 printable characters without blanks");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE " x\"}]}",
        "token must be at least 32 printable characters without blanks");
    bad("{\"tokens\": [{\"name\": \"a\", \"sha256\": \"ABC\"}]}",
        "sha256 must be 64 lower-case hex digits");
    bad("{\"tokens\": [{\"name\": \"a b\", \"token\": \"" ONE "\"}]}",
        "name must be up to 64 letters, digits, '-' and '_'");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\"}, {\"name\": \"a\", \"token\": "
        "\"" TWO "\"}]}",
        "token 'a' is there twice");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\"}, {\"name\": \"b\", \"token\": "
        "\"" ONE "\"}]}",
        "tokens 'a' and 'b' are the same");
    bad("{\"tokens\": [{\"name\": \"local\", \"token\": \"" ONE "\"}]}",
        "a token cannot have the name 'local'; choose another");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"networks\": [\"lan\"]}]}",
        "token 'a': networks are 'off' and 'on'");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"hosts\": [\"localhost\"]}]}",
        "token 'a': hosts are numeric addresses with a port, such as 127.0.0.1:5432");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"hosts\": [\"127.0.0.1:1:2\"]}]}",
        "token 'a': hosts are numeric addresses with a port, such as 127.0.0.1:5432");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"profile\": [\"x\"]}]}",
        "tokens.0.profile: Extra inputs are not permitted");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"mounts\": [{\"path\": "
        "\"/srv/../etc\"}]}]}",
        "path must be absolute and without '.', '..' and double or trailing slashes");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"mounts\": [{\"path\": "
        "\"/\"}]}]}",
        "path must be absolute and without '.', '..' and double or trailing slashes");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"expires\": "
        "\"2026-01-01T00:00:00\"}]}",
        "expires must name its time zone");
}

static void caps_are_as_the_entry_says(void **state)
{
    AUTO(authz)
    struct authz *a = good("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE
                           "\", \"max_sessions\": 3, \"max_execs\": 0, \"max_processes\": 7, "
                           "\"max_output_mb\": 9}, {\"name\": \"b\", \"token\": \"" TWO "\"}]}");
    struct authz_caps caps = authz_caps_of(a, "a");
    assert_int_equal(caps.sessions, 3);
    assert_int_equal(caps.execs, 0);
    assert_int_equal(caps.processes, 7);
    assert_int_equal(caps.output_mb, 9);
    const struct authz_caps unsaid[] = {authz_caps_of(a, "b"), authz_caps_of(a, "c"),
                                        authz_caps_of(NULL, "a")};
    for (size_t i = 0; i < ARRAY_SIZE(unsaid); i++) {
        assert_int_equal(unsaid[i].sessions, -1);
        assert_int_equal(unsaid[i].output_mb, -1);
    }
    assert_string_equal(authz_share(authz_find(a, ONE, 32, 0)), "a");
    assert_null(authz_share(NULL));
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"max_sessions\": -2}]}",
        "max_sessions must be at least 0, or -1 for the share of tokens that name none");
    bad("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE "\", \"max_execs\": \"3\"}]}",
        "max_execs must be a whole number");
}

static void a_scope_sees_its_own_doings_and_its_sessions(void **state)
{
    AUTO(authz)
    struct authz *a =
        good("{\"tokens\": [{\"name\": \"a\", \"token\": \"" ONE
             "\", \"tools\": [\"*\"], \"sessions\": [\"a-*\"]}, {\"name\": \"b\", \"token\": \"" TWO
             "\", \"sessions\": [\"x\", \"*\"]}]}");
    const struct authz_scope *s = authz_find(a, ONE, 32, 0), *all = authz_find(a, TWO, 32, 0);
    assert_true(authz_sees(s, "a", NULL) && authz_sees(s, "b", "a-1") &&
                authz_sees(s, NULL, "a-1"));
    assert_false(authz_sees(s, "b", "b-1") || authz_sees(s, "b", NULL) || authz_sees(s, NULL, "a"));
    assert_false(authz_sees(s, NULL, NULL));
    assert_string_equal(authz_errors(s), "a");
    assert_true(authz_sees(all, NULL, NULL) && authz_sees(all, "a", "a-1"));
    assert_true(authz_sees(NULL, NULL, NULL));
    assert_null(authz_errors(all));
    assert_null(authz_errors(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_found_by_itself_or_its_digest),
        cmocka_unit_test(a_token_ends_when_it_says),
        cmocka_unit_test(a_scope_that_is_held_counts_while_nothing_of_it_changes),
        cmocka_unit_test(a_scope_that_is_held_ends_when_it_says),
        cmocka_unit_test(what_is_not_named_is_not_allowed),
        cmocka_unit_test(nobody_in_particular_may_do_everything),
        cmocka_unit_test(lists_name_what_is_allowed),
        cmocka_unit_test(mistakes_are_told_without_the_secret),
        cmocka_unit_test(caps_are_as_the_entry_says),
        cmocka_unit_test(a_scope_sees_its_own_doings_and_its_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
