/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "front/langbot/tenant/tenancy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/model.h"

#define NS "ws-5ae072b797fd533f5dc5cc63"
#define NS_OTHER "ws-000000000000000000000000"

static void namespaces_are_what_clients_compute(void **state)
{
    char ns[NS_SIZE], prefix[TENANT_PREFIX_SIZE];
    tenant_ns("inst-a", "ws-1", ns);
    assert_string_equal(ns, NS);
    tenant_prefix(ns, 1, prefix);
    assert_string_equal(prefix, NS "-g1-");
    tenant_prefix(ns, INT64_MAX, prefix);
    assert_string_equal(prefix, NS "-g9223372036854775807-");
    tenant_ns("inst-", "aws-1", ns); /* the separator counts */
    assert_string_not_equal(ns, NS);
}

static void names_are_cleaned(void **state)
{
    static const struct {
        const char *logical, *physical;
    } cases[] = {
        {"s", "p-s"},         {"a b/c", "p-a-b-c"},
        {"  a  ", "p-a"},     {"a -b", "p-a--b"},
        {"/a/", "p-a"},       {"--a--", "p-a"},
        {"a_.-b", "p-a_.-b"}, {"person_1:2", "p-person_1-2"},
        {"\xc3\xa9x", "p-x"}, {"a\xc3\xa9\xc3\xa9z", "p-a-z"},
        {"..", "p-.."},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *got = NULL;
        struct err err = {0};
        assert_int_equal(tenant_physical("p-", cases[i].logical, &got, &err), 0);
        assert_string_equal(got, cases[i].physical);
    }
}

static void names_of_nothing_are_refused(void **state)
{
    char *got = NULL;
    struct err err = {0};
    char text[513];
    assert_int_equal(tenant_physical("p-", "  ", &got, &err), -EINVAL);
    assert_string_equal(err.msg, "Box session_id must not be empty");
    assert_int_equal(tenant_physical("p-", " /-\xc3\xa9 ", &got, &err), -EINVAL);
    assert_string_equal(err.msg, "Box session_id must contain a valid character");
    memset(text, 'a', sizeof(text));
    text[512 - TENANT_PREFIX_SIZE] = '\0';
    assert_int_equal(tenant_physical("p-", text, &got, &err), 0);
    free(got);
    got = NULL;
    text[512 - TENANT_PREFIX_SIZE] = 'a';
    text[512 - TENANT_PREFIX_SIZE + 1] = '\0';
    assert_int_equal(tenant_physical("p-", text, &got, &err), -EINVAL);
    assert_null(got);
}

static void names_come_back_as_the_caller_knows_them(void **state)
{
    assert_string_equal(tenant_logical(NS "-g1-", NS "-g1-a"), "a");
    assert_string_equal(tenant_logical(NS "-g1-", NS "-g12-a"), NS "-g12-a");
    assert_string_equal(tenant_logical("", "a"), "a");
}

static void names_made_here_are_recognised(void **state)
{
    static const char *const others[] = {
        "a",       "ws-",       NS,
        NS "-g1",  NS "-g1-",   NS "-g-a",
        NS "-1-a", NS "0-g1-a", "ws-5AE072b797fd533f5dc5cc63-g1-a",
    };
    assert_true(tenant_name_is_physical(NS "-g1-a"));
    assert_true(tenant_name_is_physical(NS "-g12--"));
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_false(tenant_name_is_physical(others[i]));
}

static void instances_have_a_grammar(void **state)
{
    char text[130];
    memset(text, 'a', sizeof(text));
    text[128] = '\0';
    assert_true(instance_id_valid(text));
    text[128] = 'a';
    text[129] = '\0';
    assert_false(instance_id_valid(text));
    assert_true(instance_id_valid("0a._:-Z"));
    assert_false(instance_id_valid(""));
    assert_false(instance_id_valid("-a"));
    assert_false(instance_id_valid("a b"));
    assert_false(instance_id_valid("a\n"));
}

static int parse(const char *text, struct tenant_context *ret, struct report *report)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};
    *report = (struct report){0};
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    return tenant_context_parse(v, ret, report, &err);
}

static void contexts_are_read(void **state)
{
    AUTO_DONE(tenant_context) struct tenant_context c = {0};
    struct report report;
    assert_int_equal(parse("{\"instance_uuid\":\" i \",\"workspace_uuid\":\"w\"}", &c, &report), 0);
    assert_string_equal(c.instance_uuid, "i");
    assert_int_equal(c.placement_generation, 1);
    tenant_context_done(&c);
    /* A whole binding is cut down to what matters here. */
    assert_int_equal(parse("{\"instance_uuid\":\"i\",\"workspace_uuid\":\"w\","
                           "\"placement_generation\":7,\"installation_uuid\":\"x\","
                           "\"runtime_revision\":3,\"artifact_digest\":\"d\"}",
                           &c, &report),
                     0);
    assert_int_equal(c.placement_generation, 7);
}

static void contexts_that_are_wrong_say_where(void **state)
{
    static const struct {
        const char *text, *where, *what;
    } cases[] = {
        {"{\"workspace_uuid\":\"w\"}", "instance_uuid", "Field required"},
        {"{\"instance_uuid\":\" \",\"workspace_uuid\":\"w\"}", "instance_uuid",
         "must not be empty"},
        {"{\"instance_uuid\":\"i\",\"workspace_uuid\":\"w\",\"placement_generation\":0}",
         "placement_generation", "placement_generation must be greater than or equal to 1"},
        {"{\"instance_uuid\":\"i\",\"workspace_uuid\":\"w\",\"extra\":1}", "extra",
         "Extra inputs are not permitted"},
        {"{\"instance_uuid\":\"i\",\"workspace_uuid\":\"w\",\"runtime_revision\":1}",
         "runtime_revision", "Extra inputs are not permitted"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tenant_context c = {0};
        struct report report;
        assert_int_equal(parse(cases[i].text, &c, &report), -EINVAL);
        assert_string_equal(report.issues[0].where, cases[i].where);
        assert_string_equal(report.issues[0].text, cases[i].what);
        assert_null(c.instance_uuid);
    }
}

static void the_fence_only_moves_forward(void **state)
{
    AUTO(fence) struct fence *f = fence_new(10);
    struct err err = {0};
    assert_int_equal(fence_current(f, NS), 0);
    assert_int_equal(fence_pass(f, NS, 3, &err), 1);
    assert_int_equal(fence_pass(f, NS, 3, &err), 0);
    assert_int_equal(fence_pass(f, NS, 2, &err), err_code_errno(ERR_DENIED));
    assert_string_equal(err.msg, "Stale Box placement generation");
    assert_int_equal(fence_current(f, NS), 3);
    assert_int_equal(fence_pass(f, NS, 4, &err), 1);
    assert_int_equal(fence_pass(f, NS_OTHER, 1, &err), 1);
    assert_int_equal(fence_current(f, NS), 4);
}

static void what_was_found_counts_as_seen(void **state)
{
    AUTO(fence) struct fence *f = fence_new(2);
    struct err err = {0};
    fence_found(f, NS, 3);
    fence_found(f, NS, 5);
    fence_found(f, NS, 4);
    assert_int_equal(fence_current(f, NS), 5);
    assert_int_equal(fence_pass(f, NS, 4, &err), err_code_errno(ERR_DENIED));
    assert_int_equal(fence_pass(f, NS, 5, &err), 1); /* what is older is still to be ended */
    assert_int_equal(fence_pass(f, NS, 5, &err), 0);
    fence_found(f, NS, 5);
    assert_int_equal(fence_pass(f, NS, 5, &err), 0);
    fence_found(f, NS_OTHER, 7);
    assert_int_equal(fence_pass(f, NS_OTHER, 9, &err), 1);
    fence_found(f, "ws-111111111111111111111111", 1); /* there is no room, and nobody to tell */
    assert_int_equal(fence_current(f, "ws-111111111111111111111111"), 0);
    assert_int_equal(fence_current(f, NS), 5);
    assert_int_equal(fence_current(f, NS_OTHER), 9);
}

static void names_tell_whose_they_are(void **state)
{
    static const char *const not_ours[] = {"",
                                           "s",
                                           NS,
                                           NS "-g",
                                           NS "-g1",
                                           NS "-g1-",
                                           NS "-g-s",
                                           NS "-gx-s",
                                           NS "-g0-s",
                                           NS "-g99999999999999999999-s",
                                           NS "-g1234567890123456789012345-s",
                                           "ws-0-g1-s"};
    char ns[NS_SIZE];
    int64_t generation = 0;
    assert_true(tenant_of_physical(NS "-g12-a-g3-b", ns, &generation));
    assert_string_equal(ns, NS);
    assert_int_equal(generation, 12);
    assert_true(tenant_of_physical(NS "-g9223372036854775807-s", ns, &generation));
    for (size_t i = 0; i < ARRAY_SIZE(not_ours); i++)
        assert_false(tenant_of_physical(not_ours[i], ns, &generation));
}

static void the_fence_has_a_cap(void **state)
{
    AUTO(fence) struct fence *f = fence_new(1000);
    struct err err = {0};
    char ns[NS_SIZE];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(ns, sizeof(ns), "ws-%024x", i);
        assert_int_equal(fence_pass(f, ns, 1 + i, &err), 1);
    }
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(ns, sizeof(ns), "ws-%024x", i);
        assert_int_equal(fence_current(f, ns), 1 + i);
    }
    assert_int_equal(fence_pass(f, NS, 1, &err), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "Box generation fence capacity reached; refusing an unbounded "
                                 "Workspace allocation");
    assert_int_equal(fence_current(f, NS), 0);
    for (int i = 0; i < 1000; i++) { /* those that are known go on */
        (void)snprintf(ns, sizeof(ns), "ws-%024x", i);
        assert_int_equal(fence_pass(f, ns, 1 + i, &err), 0);
    }
    fence_set_max(f, 1001);
    assert_int_equal(fence_pass(f, NS, 1, &err), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(namespaces_are_what_clients_compute),
        cmocka_unit_test(names_are_cleaned),
        cmocka_unit_test(names_of_nothing_are_refused),
        cmocka_unit_test(names_come_back_as_the_caller_knows_them),
        cmocka_unit_test(names_made_here_are_recognised),
        cmocka_unit_test(instances_have_a_grammar),
        cmocka_unit_test(contexts_are_read),
        cmocka_unit_test(contexts_that_are_wrong_say_where),
        cmocka_unit_test(the_fence_only_moves_forward),
        cmocka_unit_test(what_was_found_counts_as_seen),
        cmocka_unit_test(names_tell_whose_they_are),
        cmocka_unit_test(the_fence_has_a_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
