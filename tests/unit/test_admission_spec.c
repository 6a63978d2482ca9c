/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/admission.h"
#include "spec/model.h"

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return v;
}

static const char grant_text[] =
    "{\"instance_uuid\":\"i\",\"workspace_uuid\":\" w \",\"execution_generation\":1,"
    "\"entitlement_revision\":2,\"expires_at\":\"2026-11-15T06:58:07.105178Z\","
    "\"max_sessions\":1,\"max_managed_processes\":0}";

static void grants_are_read(void **state)
{
    AUTO(json) struct json *v = parse(grant_text);
    AUTO(admission_grant) struct admission_grant *g = NULL;

    assert_int_equal(admission_grant_parse(v, &g, NULL, NULL), 0);
    assert_string_equal(g->instance_uuid, "i");
    assert_string_equal(g->workspace_uuid, "w");
    assert_int_equal(g->execution_generation, 1);
    assert_int_equal(g->entitlement_revision, 2);
    assert_int_equal(g->expires_at, 1794725887105178);
    assert_int_equal(g->max_sessions, 1);
    assert_int_equal(g->max_managed_processes, 0);
}

static void times_are_written_as_clients_read_them(void **state)
{
    AUTO(json) struct json *v = parse(grant_text);
    AUTO(admission_grant) struct admission_grant *g = NULL;
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    assert_int_equal(admission_grant_parse(v, &g, NULL, NULL), 0);
    buf_init(&out, 4096);
    jw_init(&w, &out);
    model_write_json(&admission_grant_model, g, &w);
    assert_int_equal(jw_end(&w), 0);
    assert_non_null(strstr(buf_str(&out), "\"expires_at\":\"2026-11-15T06:58:07.105178+00:00\""));
}

/* Each row replaces one member of the good grant; NULL removes it. */
static void wrong_grants_are_refused(void **state)
{
    static const struct {
        const char *member, *value, *where, *message;
    } rows[] = {
        {"instance_uuid", "\" \"", "instance_uuid", "Value error, must not be empty"},
        {"instance_uuid", NULL, "instance_uuid", "Field required"},
        {"workspace_uuid", "5", "workspace_uuid", "Input should be a valid string"},
        {"execution_generation", "true", "execution_generation", "Value error, must be an integer"},
        {"execution_generation", "\"1\"", "execution_generation",
         "Value error, must be an integer"},
        {"execution_generation", "1.0", "execution_generation", "Value error, must be an integer"},
        {"execution_generation", "0", "execution_generation",
         "Value error, must be greater than or equal to 1"},
        {"entitlement_revision", "-1", "entitlement_revision",
         "Value error, must be greater than or equal to 1"},
        {"expires_at", "\"2026-11-15T06:58:07\"", "expires_at",
         "Value error, expires_at must include a timezone"},
        {"expires_at", "\"soon\"", "expires_at", "Input should be a valid datetime or date"},
        {"expires_at", "null", "expires_at", "Input should be a valid datetime"},
        {"max_sessions", "-1", "max_sessions", "Value error, must be greater than or equal to 0"},
        {"max_managed_processes", "null", "max_managed_processes",
         "Value error, must be an integer"},
        {"plan", "\"gold\"", "plan", "Extra inputs are not permitted"},
    };
    AUTO(json) struct json *base = parse(grant_text);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_DONE(buf) struct buf text;
        struct jw w;
        buf_init(&text, 4096);
        jw_init(&w, &text);
        jw_object(&w);
        for (void *it = json_iter(base); it; it = json_iter_next(base, it)) {
            if (str_eq(json_iter_key(it), rows[i].member))
                continue;
            jw_key(&w, json_iter_key(it));
            jw_value(&w, json_iter_value(it));
        }
        if (rows[i].value) {
            AUTO(json) struct json *value = parse(rows[i].value);
            jw_key(&w, rows[i].member);
            jw_value(&w, value);
        }
        jw_object_end(&w);
        assert_int_equal(jw_end(&w), 0);

        AUTO(json) struct json *v = parse(buf_str(&text));
        AUTO(admission_grant) struct admission_grant *g = NULL;
        struct report report;
        struct err err = {0};
        assert_true(admission_grant_parse(v, &g, &report, &err) < 0);
        assert_string_equal(report.issues[0].where, rows[i].where);
        assert_string_equal(err.msg, rows[i].message);
    }
}

static void revocations_are_read_and_checked(void **state)
{
    static const struct {
        const char *revision, *message;
    } rows[] = {
        {"7", NULL},
        {"0", "Value error, entitlement_revision must be greater than or equal to 1"},
        {"false", "Value error, entitlement_revision must be an integer"},
        {"\"7\"", "Value error, entitlement_revision must be an integer"},
        {"7,\"x\":1", "Extra inputs are not permitted"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *text = xasprintf("{\"instance_uuid\":\"i\",\"workspace_uuid\":\"w\","
                                         "\"entitlement_revision\":%s}",
                                         rows[i].revision);
        AUTO(json) struct json *v = parse(text);
        AUTO(admission_revocation) struct admission_revocation *r = NULL;
        struct err err = {0};
        assert_int_equal(admission_revocation_parse(v, &r, NULL, &err) < 0,
                         rows[i].message != NULL);
        if (rows[i].message)
            assert_string_equal(err.msg, rows[i].message);
        else
            assert_int_equal(r->entitlement_revision, 7);
    }
}

static void policy_has_defaults(void **state)
{
    AUTO(json) struct json *v = parse("{}");
    const struct json *sources[] = {NULL, v};

    for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
        struct admission_policy p;
        assert_int_equal(admission_policy_parse(sources[i], &p, NULL, NULL), 0);
        assert_false(p.required);
        assert_int_equal(p.max_sessions, 1);
        assert_int_equal(p.max_managed_processes, 0);
        assert_int_equal(p.max_grant_ttl_sec, 300);
        assert_int_equal(p.max_timeout_sec, 120);
        assert_true(fabs(p.cpus - 1.0) < 1e-12);
        assert_int_equal(p.memory_mb, 512);
        assert_int_equal(p.pids_limit, 128);
        assert_true(p.read_only_rootfs);
        assert_int_equal(p.workspace_quota_mb, 0);
        assert_int_equal(p.readiness_cache_sec, 15);
    }
}

static void policy_is_checked(void **state)
{
    static const struct {
        const char *json, *message;
    } rows[] = {
        {"{\"required\":true,\"max_sessions\":0,\"cpus\":2}", NULL},
        {"{\"required\":\"maybe\"}", "Input should be a valid boolean, unable to interpret input"},
        {"{\"logical_session_id\":\"x\"}", "Input should be 'global'"},
        {"{\"required_backend\":\"docker\"}", "Input should be 'nsjail'"},
        {"{\"max_sessions\":2}", "Value error, max_sessions must be between 0 and 1"},
        {"{\"max_sessions\":-1}", "Value error, max_sessions must be between 0 and 1"},
        {"{\"max_sessions\":true}", "Value error, must be an integer"},
        {"{\"max_managed_processes\":1}", "Value error, max_managed_processes must be 0"},
        {"{\"max_grant_ttl_sec\":0}", "Value error, must be greater than 0"},
        {"{\"max_timeout_sec\":0}", "Value error, must be greater than 0"},
        {"{\"pids_limit\":0}", "Value error, must be greater than 0"},
        {"{\"cpus\":\"1\"}", "Value error, cpus must be a number"},
        {"{\"cpus\":true}", "Value error, cpus must be a number"},
        {"{\"cpus\":0}", "Value error, cpus must be greater than 0"},
        {"{\"memory_mb\":31}", "Value error, memory_mb must be at least 32"},
        {"{\"workspace_quota_mb\":-1}", "Value error, must be greater than or equal to 0"},
        {"{\"readiness_cache_sec\":-1}", "Value error, must be greater than or equal to 0"},
        {"{\"other\":1}", "Extra inputs are not permitted"},
        {"[]", "Input should be a valid dictionary or instance of SandboxAdmissionPolicy"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO(json) struct json *v = parse(rows[i].json);
        struct admission_policy p;
        struct err err = {0};
        int r = admission_policy_parse(v, &p, NULL, &err);
        assert_int_equal(r < 0, rows[i].message != NULL);
        if (rows[i].message)
            assert_string_equal(err.msg, rows[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grants_are_read),
        cmocka_unit_test(times_are_written_as_clients_read_them),
        cmocka_unit_test(wrong_grants_are_refused),
        cmocka_unit_test(revocations_are_read_and_checked),
        cmocka_unit_test(policy_has_defaults),
        cmocka_unit_test(policy_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
