/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fixture.h"

#include "spec/model.h"
#include "spec/spec.h"

/* What each release of LangBot's client writes, and which rules follow from it; on the fake
 * backend. */

#define SPEC(more)                                                                                 \
    "{\"cmd\":\"echo hi\",\"workdir\":\"/workspace\",\"timeout_sec\":30,\"network\":\"off\","      \
    "\"session_id\":\"s\",\"env\":{},\"image\":\"rockchin/langbot-sandbox:latest\","               \
    "\"host_path\":null,\"host_path_mode\":\"rw\",\"mount_path\":\"/workspace\","                  \
    "\"persistent\":false,\"cpus\":1.0,\"memory_mb\":512,\"pids_limit\":128,"                      \
    "\"read_only_rootfs\":true,\"workspace_quota_mb\":0," more "}"
#define DIGESTS ",\"content_digest\":null,\"manifest_path\":null"
#define MOUNT(path, more)                                                                          \
    "\"extra_mounts\":[{\"host_path\":\"" path "\",\"mount_path\":\"/workspace/x\",\"mode\":"      \
    "\"rw\"" more "}]"
#define NO_SKILL ",\"skill_name\":null"
#define SKILLS_SPEC SPEC("\"extra_mounts\":[]" NO_SKILL)
#define ARTIFACTS_SPEC SPEC("\"extra_mounts\":[]")
#define PARTIAL_SPEC "{\"cmd\":\"echo hi\",\"session_id\":\"s\"}"
#define NO_LIST "Action box_list_skills not found"
#define KEPT                                                                                       \
    "BoxSessionConflictError: Box mounts differ from this session's immutable mount set; acquire " \
    "a Box with a distinct reuse key for different host mounts. The existing session was "         \
    "preserved."

static enum langbot_family family_of(unsigned call, bool tenant, bool scoped, const char *data)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};
    assert_int_equal(json_parse(data, strlen(data), &v, &err), 0);
    const struct langbot_request request = {call, tenant, scoped, v};
    return langbot_recognise(&request);
}

static void a_spec_tells_the_release(void **state)
{
    static const struct {
        const char *data;
        enum langbot_family family;
    } specs[] = {
        {SKILLS_SPEC, LANGBOT_SKILLS},
        {SPEC(MOUNT("/srv/a", "") NO_SKILL), LANGBOT_SKILLS},
        {ARTIFACTS_SPEC, LANGBOT_ARTIFACTS},
        {SPEC(MOUNT("/srv/a", DIGESTS)), LANGBOT_ARTIFACTS},
        {SPEC("\"extra_mounts\":[],\"yet_to_come\":1"), LANGBOT_ARTIFACTS},
        /* By hand: what is there may tell. */
        {PARTIAL_SPEC, LANGBOT_UNKNOWN},
        {"{\"session_id\":\"s\",\"skill_name\":\"x\"}", LANGBOT_SKILLS},
        {"{\"session_id\":\"s\"," MOUNT("/srv/a", "") "}", LANGBOT_UNKNOWN},
        {"{\"session_id\":\"s\"," MOUNT("/srv/a", DIGESTS) "}", LANGBOT_ARTIFACTS},
        {"{\"extra_mounts\":{}}", LANGBOT_UNKNOWN},
        {"{\"extra_mounts\":[1]}", LANGBOT_UNKNOWN},
        {"{}", LANGBOT_UNKNOWN},
    };
    for (size_t i = 0; i < ARRAY_SIZE(specs); i++)
        if (family_of(LANGBOT_SPEC, true, true, specs[i].data) != specs[i].family)
            fail_msg("%s", specs[i].data);
}

static void other_calls_may_tell_it_too(void **state)
{
    assert_int_equal(family_of(LANGBOT_SKILL, true, true, "{}"), LANGBOT_SKILLS);
    assert_int_equal(family_of(0, true, true, "{}"), LANGBOT_UNKNOWN);
    assert_int_equal(family_of(0, false, false, "{}"), LANGBOT_UNKNOWN);
    assert_int_equal(family_of(LANGBOT_STORAGE, true, true, "{}"), LANGBOT_UNKNOWN);
    /* Only data that is a spec is read as one. */
    assert_int_equal(family_of(0, false, false, SKILLS_SPEC), LANGBOT_UNKNOWN);
    assert_int_equal(family_of(0, false, false, ARTIFACTS_SPEC), LANGBOT_UNKNOWN);
    assert_int_equal(family_of(0, true, false, "{}"), LANGBOT_FIRST);
    assert_int_equal(family_of(LANGBOT_SPEC, true, false, ARTIFACTS_SPEC), LANGBOT_FIRST);
}

static void every_row_has_a_name_and_knows_sessions(void **state)
{
    for (int i = 0; i < LANGBOT_FAMILY_MAX; i++) {
        const struct langbot_release *r = &langbot_releases[i];
        assert_non_null(r->releases);
        assert_true(r->calls & LANGBOT_SPEC);
        assert_true(r->closed || r->gone == 0); /* else it would be lost without a word */
    }
}

static void removed_calls_are_not_found(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_exec", ARTIFACTS_SPEC, CTX1);
    refused(&x, 2, "box_list_skills", "{}", CTX1, "ValueError: " NO_LIST);
    refused(&x, 3, "box_create_skill", "{\"skill\":{}}", CTX1,
            "ValueError: Action box_create_skill not found");
    free(ok(&x, 4, "box_get_storage_analysis", "{}", CTX1));
    /* Another connection may be another client: this one has a store, though none here. */
    ask(&x.b, 5, "box_list_skills", "{}", CTX1);
    expect_error(&x, &x.b, 5, "BoxError: this boxd has no skill store: box-fetch is missing");
    ask(&x.b, 6, "box_exec", SPEC("\"extra_mounts\":[],\"unknown\":1"), CTX1);
    free(expect_ok(&x, &x.b, 6)); /* what was known first counts */
    stop_rpc(&x);
}

static void unknown_fields_are_refused_since_0_7_13(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_exec", "{\"cmd\":\"x\",\"session_id\":\"s\",\"unknown\":1}", CTX1);
    done(&x, 2, "box_exec", ARTIFACTS_SPEC, CTX1);
    refused(&x, 3, "box_exec", SPEC("\"extra_mounts\":[],\"unknown\":1" NO_SKILL), CTX1,
            "BoxValidationError: 2 validation errors for BoxSpec\nunknown\n  Extra inputs are not "
            "permitted [type=extra_forbidden]\nskill_name\n  Extra inputs are not permitted "
            "[type=extra_forbidden]");
    refused(
        &x, 4, "box_create_session", "{\"session_id\":\"s\",\"cpus\":0,\"skill_name\":\"a b c!\"}",
        CTX1,
        "BoxValidationError: 2 validation errors for BoxSpec\ncpus\n  Value error, cpus must be "
        "greater than 0 [type=value_error]\nskill_name\n  Extra inputs are not permitted "
        "[type=extra_forbidden]");
    /* Of a mount they are not. */
    done(&x, 5, "box_exec",
         SPEC("\"extra_mounts\":[{\"host_path\":\"/srv/a\",\"mount_path\":\"/workspace/x\","
              "\"mode\":\"none\",\"unknown\":1" DIGESTS "}]"),
         CTX1);
    stop_rpc(&x);
}

static void mounts_are_exchanged_until_0_7_12(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_exec", SKILLS_SPEC, CTX1);
    done(&x, 2, "box_exec", SPEC(MOUNT("/srv/a", "") NO_SKILL), CTX1);
    assert_int_equal(fake_creations(x.f.backend), 2);
    done(&x, 3, "box_exec", SKILLS_SPEC, CTX1);
    assert_int_equal(fake_creations(x.f.backend), 3);
    stop_rpc(&x);
}

static void mounts_conflict_since_0_7_13(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_exec", SPEC(MOUNT("/srv/a", DIGESTS)), CTX1);
    refused(&x, 2, "box_exec", SPEC(MOUNT("/srv/b", DIGESTS)), CTX1, KEPT);
    refused(&x, 3, "box_create_session", ARTIFACTS_SPEC, CTX1, KEPT);
    done(&x, 4, "box_exec", SPEC(MOUNT("/srv/a", DIGESTS)), CTX1);
    assert_int_equal(fake_creations(x.f.backend), 1);
    stop_rpc(&x);
}

static void an_unusable_id_is_told_as_the_release_does(void **state)
{
    static const char bad[] = "{\"session_id\":\"!!!\",\"cmd\":\"x\"}";
    struct langbot_fixture x;
    start_rpc(&x);
    refused(&x, 1, "box_exec", bad, CTX1,
            "BoxValidationError: Box session_id must contain a valid character");
    refused(&x, 2, "box_exec", "{\"session_id\":\"!!!\",\"cmd\":\"x\",\"skill_name\":null}", CTX1,
            "ValueError: Box session_id must contain a valid character");
    ask(&x.b, 3, "box_exec", ARTIFACTS_SPEC, CTX1);
    free(expect_ok(&x, &x.b, 3));
    ask(&x.b, 4, "box_exec", bad, CTX1);
    expect_error(&x, &x.b, 4, "BoxValidationError: Box session_id must contain a valid character");
    stop_rpc(&x);
}

static void the_first_release_knows_fewer_calls(void **state)
{
    static const char *const later[] = {"box_get_storage_analysis", "__cancel_action",
                                        "__stream_ack", "box_upsert_sandbox_admission_grant",
                                        "box_verify_shared_workspace"};
    struct langbot_fixture x;
    start_with(&x, NULL, &(struct langbot_options){.legacy = true});
    AUTO_FREE char *session = ok(&x, 1, "box_create_session", "{\"session_id\":\"s\"}", "");
    assert_null(strstr(session, "\"status\""));
    AUTO_FREE char *status = ok(&x, 2, "box_status", "{}", "");
    assert_null(strstr(status, "\"limits\""));
    for (int i = 0; i < (int)ARRAY_SIZE(later); i++) {
        AUTO_FREE char *message = xasprintf("ValueError: Action %s not found", later[i]);
        refused(&x, 10 + i, later[i], "{}", "", message);
    }
    stop_rpc(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_tells_the_release),
        cmocka_unit_test(other_calls_may_tell_it_too),
        cmocka_unit_test(every_row_has_a_name_and_knows_sessions),
        cmocka_unit_test(removed_calls_are_not_found),
        cmocka_unit_test(unknown_fields_are_refused_since_0_7_13),
        cmocka_unit_test(mounts_are_exchanged_until_0_7_12),
        cmocka_unit_test(mounts_conflict_since_0_7_13),
        cmocka_unit_test(an_unusable_id_is_told_as_the_release_does),
        cmocka_unit_test(the_first_release_knows_fewer_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
