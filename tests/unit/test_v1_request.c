/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include "front/common/session.c"
#include "front/v1/exec.c"
#include "front/v1/v1.c"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"

static int parse_exec(const char *text, struct v1_exec *ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;
    *err = (struct err){0};
    assert_int_equal(json_parse(text, strlen(text), &v, err), 0);
    return v1_exec_parse(v, NULL, ret, err);
}

static void exec_has_its_defaults(void **state)
{
    struct v1_exec e;
    struct run_options o;
    struct err err;
    assert_int_equal(parse_exec("{\"argv\":[\"ls\",\"-l\"]}", &e, &err), 0);
    exec_options(&e, &o);
    assert_ptr_equal(o.exec.argv, e.argv);
    assert_int_equal(strv_len(e.argv), 2);
    assert_null(o.exec.cmd);
    assert_int_equal(strv_len(o.exec.env), 0);
    assert_null(o.exec.cwd);
    assert_int_equal(o.exec.timeout_ns, 0); /* none */
    assert_false(o.exec.with_stdin);
    assert_false(o.exec.tty);
    assert_false(o.exec.posture);
    assert_int_equal(o.exec.rows, 24);
    assert_int_equal(o.exec.cols, 80);
    assert_int_equal(o.capture, RUN_CAPTURE_DEFAULT);
    v1_exec_done(&e);
    v1_exec_done(&e); /* nothing left to free */
}

static void exec_takes_all_it_documents(void **state)
{
    struct v1_exec e;
    struct run_options o;
    struct err err;
    assert_int_equal(
        parse_exec("{\"cmd\":\"echo hi\",\"env\":{\"A\":\"1\",\"B\":\"\"},\"cwd\":\"/tmp\","
                   "\"stdin_text\":\"x\",\"timeout_sec\":1.5,\"tty\":true,\"stdin\":false,"
                   "\"rows\":1,\"cols\":4096,\"capture_bytes\":0}",
                   &e, &err),
        0);
    exec_options(&e, &o);
    assert_null(o.exec.argv);
    assert_string_equal(o.exec.cmd, "echo hi");
    assert_int_equal(strv_len(o.exec.env), 2);
    assert_string_equal(o.exec.env[0], "A=1");
    assert_string_equal(o.exec.env[1], "B=");
    assert_string_equal(o.exec.cwd, "/tmp");
    assert_string_equal(e.stdin_text, "x");
    assert_true(o.exec.with_stdin); /* there is something to read */
    assert_int_equal(o.exec.timeout_ns, 1500000000);
    assert_true(o.exec.tty);
    assert_int_equal(o.exec.rows, 1);
    assert_int_equal(o.exec.cols, 4096);
    assert_int_equal(o.capture, 0);
    v1_exec_done(&e);
}

static void exec_refuses_the_rest(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{}", "give either argv or cmd"},
        {"{\"argv\":[]}", "give either argv or cmd"},
        {"{\"cmd\":null}", "give either argv or cmd"},
        {"{\"argv\":[\"a\"],\"cmd\":\"b\"}", "give either argv or cmd"},
        {"{\"argv\":[\"\",\"b\"]}", "argv[0] must not be empty"},
        {"{\"argv\":\"ls\"}", "argv must be an array of strings"},
        {"{\"argv\":[\"a\",1]}", "argv must be an array of strings"},
        {"{\"cmd\":1}", "cmd must be a string"},
        {"{\"cmd\":\"a\",\"cwd\":\"tmp\"}", "cwd must be an absolute path inside the sandbox"},
        {"{\"cmd\":\"a\",\"cwd\":\"\"}", "cwd must be an absolute path inside the sandbox"},
        {"{\"cmd\":\"a\",\"env\":{\"A\":1}}", "env must be an object of strings"},
        {"{\"cmd\":\"a\",\"env\":[\"A=1\"]}", "env must be an object of strings"},
        {"{\"cmd\":\"a\",\"timeout_sec\":0}", "timeout_sec must be greater than 0"},
        {"{\"cmd\":\"a\",\"timeout_sec\":-1}", "timeout_sec must be greater than 0"},
        {"{\"cmd\":\"a\",\"timeout_sec\":\"1\"}", "timeout_sec must be a number"},
        {"{\"cmd\":\"a\",\"timeout_sec\":true}", "timeout_sec must be a number"},
        {"{\"cmd\":\"a\",\"tty\":1}", "tty must be true or false"},
        {"{\"cmd\":\"a\",\"stdin\":\"x\"}", "stdin must be true or false"},
        {"{\"cmd\":\"a\",\"rows\":0}", "rows must be at least 1"},
        {"{\"cmd\":\"a\",\"cols\":0}", "cols must be at least 1"},
        {"{\"cmd\":\"a\",\"rows\":1.5}", "rows must be an integer"},
        {"{\"cmd\":\"a\",\"capture_bytes\":-1}", "capture_bytes must not be negative"},
        {"{\"cmd\":\"a\",\"capture\":1}", "unknown member 'capture'"},
        {"{\"cmd\":\"a\",\"e\\nvil\":1}", "unknown member 'e?vil'"},
        {"{\"cmd\":\"a\",\"session\":{}}", "unknown member 'session'"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct v1_exec e;
        struct err err;
        int r = parse_exec(cases[i].text, &e, &err);
        if (r >= 0)
            fail_msg("%s is accepted", cases[i].text);
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.msg, cases[i].message);
        assert_null(e.argv); /* nothing to free */
        assert_null(e.cmd);
    }
}

static void bounds_hold_at_the_cap_and_one_past(void **state)
{
    static const struct {
        const char *member;
        uint64_t max;
    } cases[] = {{"rows", 4096},
                 {"cols", 4096},
                 {"capture_bytes", RUN_CAPTURE_MAX},
                 {"timeout_sec", 31536000}};
    char text[128];
    struct v1_exec e;
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        for (uint64_t past = 0; past < 2; past++) {
            (void)snprintf(text, sizeof(text), "{\"cmd\":\"a\",\"%s\":%llu}", cases[i].member,
                           (unsigned long long)cases[i].max + past);
            assert_int_equal(parse_exec(text, &e, &err) == 0, past == 0);
            v1_exec_done(&e);
        }
    }
}

static void timeout_is_never_rounded_away(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } cases[] = {
        {"1e-12", 1},    {"1e-9", 1}, {"0.001", 1000000}, {"31535999", 31535999 * NSEC_PER_SEC},
        {"31536000", 0}, /* as good as none */
    };
    char text[128];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct v1_exec e;
        struct run_options o;
        struct err err;
        (void)snprintf(text, sizeof(text), "{\"cmd\":\"a\",\"timeout_sec\":%s}", cases[i].text);
        assert_int_equal(parse_exec(text, &e, &err), 0);
        exec_options(&e, &o);
        assert_int_equal(o.exec.timeout_ns, cases[i].ns);
        v1_exec_done(&e);
    }
}

static void members_of_others_are_passed_over(void **state)
{
    static const char *const more[] = {"session", "ephemeral", NULL};
    static const char text[] = "{\"cmd\":\"a\",\"session\":{\"x\":1},\"ephemeral\":true}";
    AUTO(json) struct json *v = NULL;
    AUTO(json) struct json *array = NULL;
    struct v1_exec e;
    struct err err = {0};
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    assert_int_equal(v1_exec_parse(v, more, &e, &err), 0);
    v1_exec_done(&e);
    assert_int_equal(json_parse("[]", 2, &array, &err), 0);
    assert_true(v1_exec_parse(array, more, &e, &err) < 0);
    assert_string_equal(err.msg, "a JSON object is needed");
}

/* Specs. */

static int parse_spec(const char *text, bool id_required, struct spec **ret, uint64_t *given,
                      struct err *err)
{
    AUTO(json) struct json *v = NULL;
    *err = (struct err){0};
    assert_int_equal(json_parse(text, strlen(text), &v, err), 0);
    const struct front_want want = {.object = v, .id_required = id_required};
    return read_spec(&want, ret, given, err);
}

static void spec_knows_what_was_given(void **state)
{
    AUTO(spec) struct spec *s = NULL;
    uint64_t given = 0;
    struct err err;
    assert_int_equal(parse_spec("{\"session_id\":\"a\",\"cpus\":2,\"mount_path\":\"/d\"}", true, &s,
                                &given, &err),
                     0);
    assert_int_equal(given, FIELD_BIT(SPEC_SESSION_ID) | FIELD_BIT(SPEC_CPUS) |
                                FIELD_BIT(SPEC_MOUNT_PATH));
    assert_string_equal(s->session_id, "a");
    assert_string_equal(s->image, "host"); /* works everywhere */
    assert_string_equal(s->workdir, "/d");
}

static void id_is_made_up_where_none_is_needed(void **state)
{
    AUTO(spec) struct spec *a = NULL;
    AUTO(spec) struct spec *b = NULL;
    uint64_t given = 0;
    struct err err;
    assert_int_equal(parse_spec("{\"image\":\"x\"}", false, &a, &given, &err), 0);
    assert_int_equal(given, FIELD_BIT(SPEC_IMAGE));
    assert_string_equal(a->image, "x");
    assert_int_equal(parse_spec("{}", false, &b, &given, &err), 0);
    assert_true(str_starts(a->session_id, "tmp-"));
    assert_true(id_valid(a->session_id));
    assert_string_not_equal(a->session_id, b->session_id);
    assert_true(parse_spec("{}", true, &b, &given, &err) < 0);
}

static void bad_specs_are_refused_in_plain_words(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"session_id\":\"a/b\"}", "an id has 1 to 64"},
        {"{\"session_id\":\" a\"}", "session_id must not"},
        {"{\"session_id\":\"\"}", "an id has 1 to 64"},
        {"{\"session_id\":1}", "session_id must be a string"},
        {"{\"session_id\":null}", "session_id"},
        {"{\"session_id\":\"a\",\"memory_mb\":31}", "memory_mb must be at least 32"},
        {"{\"session_id\":\"a\",\"memory_mb\":\"64\"}", "memory_mb must be an integer"},
        {"{\"session_id\":\"a\",\"network\":\"maybe\"}", "network"},
        {"{\"session_id\":\"a\",\"workdir\":\"x\"}", "workdir must be an absolute path"},
        {"{\"session_id\":\"a\",\"extra_mounts\":[1]}", "extra_mounts must be an array of objects"},
        {"{\"session_id\":\"a\",\"extra_mounts\":[{\"host\":\"/a\"}]}",
         "unknown member 'extra_mounts.0.host'"},
        {"{\"session_id\":\"a\",\"readonly\":true}", "unknown member 'readonly'"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(spec) struct spec *s = NULL;
        uint64_t given = 0;
        struct err err;
        if (parse_spec(cases[i].text, true, &s, &given, &err) == 0)
            fail_msg("%s is accepted", cases[i].text);
        assert_int_equal(err.code, ERR_INVALID);
        if (strstr(err.msg, cases[i].part) == NULL)
            fail_msg("'%s' is not in '%s'", cases[i].part, err.msg);
        assert_null(strstr(err.msg, "Value error"));
        assert_null(s);
    }
}

/* Answers. */

static void outcome_says_what_applies_and_null_otherwise(void **state)
{
    static const struct {
        struct outcome outcome;
        const char *json;
    } cases[] = {
        {{.kind = OUTCOME_EXITED, .exit_code = 3, .duration_ns = 2500000, .cpu_ns = 1999999},
         "{\"outcome\":\"exited\",\"exit_code\":3,\"signal\":null,\"error\":null,\"duration_ms\":2,"
         "\"cpu_ms\":1,\"max_rss_kb\":0,\"remaining\":0,\"stdout_bytes\":7,\"stderr_bytes\":8}"},
        {{.kind = OUTCOME_SIGNALED, .signo = 9, .remaining = 2, .max_rss_kb = 5},
         "{\"outcome\":\"signaled\",\"exit_code\":null,\"signal\":9,\"error\":null,\"duration_ms\":"
         "0,"
         "\"cpu_ms\":0,\"max_rss_kb\":5,\"remaining\":2,\"stdout_bytes\":7,\"stderr_bytes\":8}"},
        {{.kind = OUTCOME_TIMED_OUT, .exit_code = 1, .signo = 1},
         "{\"outcome\":\"timed_out\",\"exit_code\":null,\"signal\":null,\"error\":null,"
         "\"duration_ms\":0,\"cpu_ms\":0,\"max_rss_kb\":0,\"remaining\":0,\"stdout_bytes\":7,"
         "\"stderr_bytes\":8}"},
        {{.kind = OUTCOME_QUOTA_EXCEEDED, .exit_code = 1, .error = "no"},
         "{\"outcome\":\"quota_exceeded\",\"exit_code\":1,\"signal\":null,\"error\":\"no\","
         "\"duration_ms\":0,\"cpu_ms\":0,\"max_rss_kb\":0,\"remaining\":0,\"stdout_bytes\":7,"
         "\"stderr_bytes\":8}"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct run_result result = {.outcome = cases[i].outcome, .produced = {7, 8}};
        AUTO_DONE(buf) struct buf out;
        struct jw w;
        buf_init(&out, 4096);
        jw_init(&w, &out);
        jw_object(&w);
        v1_write_outcome(&w, &result);
        jw_object_end(&w);
        assert_int_equal(jw_end(&w), 0);
        assert_string_equal(buf_str(&out), cases[i].json);
    }
    assert_string_equal(outcome_name(OUTCOME_OOM_KILLED), "oom_killed");
    assert_string_equal(outcome_name(OUTCOME_SESSION_LOST), "session_lost");
    assert_string_equal(outcome_name(OUTCOME_KIND_MAX), "unknown");
}

static void session_is_written_as_it_was_made(void **state)
{
    struct fixture f;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    fixture_start(&f, NULL, NULL);
    struct session *s = ready_session(&f, "s");
    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, s);
    jw_object_end(&w);
    assert_int_equal(jw_end(&w), 0);
    assert_string_equal(
        buf_str(&out),
        "{\"session_id\":\"s\",\"backend_name\":\"fake\",\"state\":\"ready\","
        "\"image\":\"rockchin/langbot-sandbox:latest\",\"network\":\"off\",\"host_path\":null,"
        "\"host_path_mode\":\"rw\",\"mount_path\":\"/workspace\",\"persistent\":false,"
        "\"cpus\":1.0,\"memory_mb\":512,\"pids_limit\":128,\"read_only_rootfs\":true,"
        "\"workspace_quota_mb\":0,\"allow_hosts\":[],\"durable\":false,\"unenforced\":[],"
        "\"created_at\":\"2026-01-01T00:00:00.000000+00:00\","
        "\"last_used_at\":\"2026-01-01T00:00:00.000000+00:00\",\"execs\":0}");
    session_release(s);
    fixture_stop(&f);
}

static void what_nobody_verified_is_told(void **state)
{
    struct fixture f;
    struct heard h;
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};
    struct jw w;
    fixture_start(&f, NULL, NULL);
    struct spec *spec = named_spec("s");
    spec->extra_mounts = xcalloc(3, sizeof(struct mount_spec));
    spec->n_extra_mounts = 3;
    spec->own.artifacts = xstrdup("/srv/box/tree");
    strv_add(&spec->own.artifact_digests, "sha256:1");
    for (size_t i = 0; i < 3; i++)
        spec->extra_mounts[i] =
            (struct mount_spec){.host_path = xstrdup("/srv/x"),
                                .mount_path = xasprintf("/m%zu", i),
                                .mode = i == 2 ? MOUNT_NONE : MOUNT_RO,
                                .content_digest = i > 0 ? xstrdup("sha256:0") : NULL};
    assert_int_equal(acquire_spec(&f, spec, 0, &h, &err), 0);
    pump(&f);
    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    v1_write_session(&w, h.session);
    jw_object_end(&w);
    assert_int_equal(jw_end(&w), 0);
    assert_non_null(
        strstr(buf_str(&out),
               "\"execs\":0,\"content_unverified\":[\"/m1\"],\"artifacts\":[\"sha256:1\"]}"));
    give_back(&h);
    fixture_stop(&f);
}

static void every_error_has_a_status_and_a_remedy(void **state)
{
    static const unsigned statuses[ERR_CODE_MAX] = {
        [ERR_NONE] = 500,        [ERR_INVALID] = 422,     [ERR_NOT_FOUND] = 404,
        [ERR_CONFLICT] = 409,    [ERR_STATE] = 409,       [ERR_LIMIT] = 429,
        [ERR_DENIED] = 403,      [ERR_UNSUPPORTED] = 501, [ERR_BACKEND] = 502,
        [ERR_UNAVAILABLE] = 503, [ERR_SYSTEM] = 500,
    };
    for (int code = 0; code < ERR_CODE_MAX; code++) {
        struct err err = {.code = (enum err_code)code};
        assert_int_equal(front_status(&err), statuses[code]);
        assert_true(code == ERR_NONE || front_remedy(&err) != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exec_has_its_defaults),
        cmocka_unit_test(exec_takes_all_it_documents),
        cmocka_unit_test(exec_refuses_the_rest),
        cmocka_unit_test(bounds_hold_at_the_cap_and_one_past),
        cmocka_unit_test(timeout_is_never_rounded_away),
        cmocka_unit_test(members_of_others_are_passed_over),
        cmocka_unit_test(spec_knows_what_was_given),
        cmocka_unit_test(id_is_made_up_where_none_is_needed),
        cmocka_unit_test(bad_specs_are_refused_in_plain_words),
        cmocka_unit_test(outcome_says_what_applies_and_null_otherwise),
        cmocka_unit_test(session_is_written_as_it_was_made),
        cmocka_unit_test(what_nobody_verified_is_told),
        cmocka_unit_test(every_error_has_a_status_and_a_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
