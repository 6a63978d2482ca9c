/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_stage.h"

#include "command/policy_service.h"
#include "policy/authz.h"

/* A front that runs commands in a session. */
struct front {
    struct stage s;
    struct command *command;
    struct session *session;
    int started, ended;
    struct outcome outcome;
    struct err err; /* that came with the end */
};

static void on_session(void *arg, struct session *session, const struct err *err)
{
    struct front *f = arg;
    assert_null(err);
    f->session = session;
}

static void front_start(struct front *f, const char *config, int64_t quota_mb)
{
    struct spec *spec = named_spec("s");
    memset(f, 0, sizeof(*f));
    stage_start(&f->s, config);
    spec->workspace_quota_mb = quota_mb;
    spec->host_path = quota_mb > 0 ? xstrdup(f->s.dir) : NULL;
    assert_int_equal(manager_acquire(f->s.f.m, &spec, 0, 0, on_session, f, NULL), 0);
    pump(&f->s.f);
    assert_non_null(f->session);
}

static void front_stop(struct front *f)
{
    command_free(f->command);
    pump(&f->s.f);
    session_release(f->session);
    stage_stop(&f->s);
}

static void on_started(void *arg)
{
    ((struct front *)arg)->started++;
}

static void on_ended(void *arg, const struct command_result *result, const struct err *err)
{
    struct front *f = arg;
    f->ended++;
    f->err = err != NULL ? *err : (struct err){0};
    f->outcome = result != NULL ? result->outcome : (struct outcome){0};
}

static int begin(struct front *f, const char *cmd, const struct authz_scope *scope, bool cleanup)
{
    static const struct command_events events = {.started = on_started, .ended = on_ended};
    const struct command_options options = {.session = f->session,
                                            .run = {.exec = {.cmd = cmd}},
                                            .request = {.scope = scope},
                                            .via = "test",
                                            .cleanup = cleanup};
    f->started = f->ended = 0;
    command_free(TAKE_PTR(f->command));
    return command_start(&f->s.service, &options, &events, f, &f->command, &f->err);
}

/* Ten bytes and twenty. */
#define TALK "echo 123456789;err 1234567890123456789;exit 4"

static void a_command_without_a_quota_passes_at_once(void **state)
{
    struct front f;
    front_start(&f, FLAT(), 0);
    assert_int_equal(begin(&f, TALK, NULL, false), 0);
    assert_int_equal(f.started + f.ended, 0); /* everything else comes from the loop */
    expect_log(&f.s, "\"event\":\"exec_start\",\"who\":\"local\",\"via\":\"test\",\"session\":"
                     "\"s\",\"command\":\"" TALK "\"");
    pump(&f.s.f);
    assert_int_equal(f.started, 1);
    assert_int_equal(f.ended, 1);
    assert_int_equal(f.outcome.exit_code, 4);
    expect_log(&f.s, "\"event\":\"exec_end\",\"who\":\"local\",\"via\":\"test\",\"session\":"
                     "\"s\",\"outcome\":\"exited\",\"exit_code\":4,\"duration_ms\":0,"
                     "\"stdout_bytes\":10,\"stderr_bytes\":20");
    front_stop(&f);
}

static void a_full_workspace_is_found_out_before_and_after(void **state)
{
    struct front f;
    front_start(&f, FLAT(), 1);
    assert_int_equal(begin(&f, "sleep 50", NULL, false), 0);
    pump(&f.s.f);
    assert_int_equal(f.started, 1);
    assert_int_equal(f.ended, 0);
    fill(&f.s, "big", 2 << 20);
    pass(&f.s.f, 60 * NSEC_PER_MSEC);
    assert_int_equal(f.ended, 1);
    assert_int_equal(f.err.code, ERR_INVALID);
    assert_non_null(strstr(f.err.msg, "workspace quota exceeded after execution: used=2"));
    assert_null(manager_find(f.s.f.m, "s"));
    expect_log(&f.s, "\"event\":\"session_delete\"");
    /* Before: it does not start. */
    session_release(TAKE_PTR(f.session));
    struct spec *spec = named_spec("s");
    spec->workspace_quota_mb = 1;
    spec->host_path = xstrdup(f.s.dir);
    assert_int_equal(manager_acquire(f.s.f.m, &spec, 0, 0, on_session, &f, NULL), 0);
    pump(&f.s.f);
    assert_int_equal(begin(&f, "echo hi", NULL, false), 0);
    pump(&f.s.f);
    assert_int_equal(f.started, 0);
    assert_int_equal(f.ended, 1);
    assert_non_null(strstr(f.err.msg, "workspace quota exceeded before execution"));
    expect_log(&f.s, "\"event\":\"denied\"");
    /* Unless it makes room. */
    assert_int_equal(begin(&f, "sleep 50", NULL, true), 0);
    pump(&f.s.f);
    assert_int_equal(f.started, 1);
    assert_int_equal(unlinkat(f.s.dir_fd, "big", 0), 0);
    pass(&f.s.f, 60 * NSEC_PER_MSEC);
    assert_int_equal(f.ended, 1);
    assert_int_equal(f.err.code, ERR_NONE);
    front_stop(&f);
}

static void a_workspace_that_outgrows_its_quota_is_noticed_meanwhile(void **state)
{
    struct front f;
    front_start(&f, FLAT(), 1);
    assert_int_equal(begin(&f, "sleep 100000", NULL, false), 0);
    pump(&f.s.f);
    pass(&f.s.f, 5 * NSEC_PER_SEC);
    assert_int_equal(f.ended, 0);
    fill(&f.s, "big", 2 << 20);
    for (int i = 0; i < 5; i++)
        pass(&f.s.f, NSEC_PER_SEC);
    assert_int_equal(f.ended, 1); /* it was killed */
    assert_non_null(strstr(f.err.msg, "workspace quota exceeded after execution: used=2"));
    front_stop(&f);
}

static void what_the_scope_does_not_cover_is_refused_and_recorded(void **state)
{
    static const struct {
        const char *scope, *message;
    } cases[] = {
        {"\"sessions\": [\"*\"]", "token 'ci' may not use 'exec'"},
        {"\"tools\": [\"exec\"]", "session s not found"},
        {"\"tools\": [\"exec\"], \"sessions\": [\"s\"], \"networks\": [\"on\"]",
         "token 'ci' may not use sessions with network off"},
        {"\"tools\": [\"exec\"], \"sessions\": [\"s\"]", "may not mount"},
    };
    static const char token[] = "0123456789abcdef0123456789abcdef";
    struct front f;
    front_start(&f, FLAT(), 1);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *text = xasprintf(
            "{\"tokens\": [{\"name\": \"ci\", \"token\": \"%s\", %s}]}", token, cases[i].scope);
        AUTO(json) struct json *file = parse(text);
        AUTO(authz) struct authz *authz = NULL;
        assert_int_equal(authz_parse(file, &authz, NULL), 0);
        assert_true(begin(&f, "echo hi", authz_find(authz, token, 32, 0), false) < 0);
        assert_non_null(strstr(f.err.msg, cases[i].message));
        assert_null(f.command);
    }
    assert_int_equal(error_ring_count(f.s.errors, "ci"), ARRAY_SIZE(cases));
    expect_log(&f.s, "\"event\":\"denied\",\"who\":\"ci\"");
    front_stop(&f);
}

static void one_that_is_given_up_is_recorded(void **state)
{
    struct front f;
    front_start(&f, FLAT(), 0);
    assert_int_equal(begin(&f, "sleep 50", NULL, false), 0);
    command_free(TAKE_PTR(f.command));
    expect_log(&f.s, "\"outcome\":\"given_up\"");
    front_stop(&f);
}

static void the_longest_timeout_is_that_of_the_profiles(void **state)
{
    static const char text[] =
        "{\"tokens\": [{\"name\": \"a\", \"token\": \"0123456789abcdef0123456789abcdea\", "
        "\"profiles\": [\"default\", \"offline_readonly\"]}, "
        "{\"name\": \"b\", \"token\": \"0123456789abcdef0123456789abcdeb\"}]}";
    AUTO(json) struct json *file = parse(text);
    AUTO(authz) struct authz *authz = NULL;
    AUTO(policy) struct policy *open = policy_good("{}");
    AUTO(policy)
    struct policy *chosen = policy_good("{\"box\": {\"profile\": \"offline_readonly\"}}");
    assert_int_equal(authz_parse(file, &authz, NULL), 0);
    assert_int_equal(policy_longest_sec(open, NULL), 0);
    assert_int_equal(policy_longest_sec(chosen, NULL), 60);
    const struct authz_scope *a = authz_find(authz, "0123456789abcdef0123456789abcdea", 32, 0);
    const struct authz_scope *b = authz_find(authz, "0123456789abcdef0123456789abcdeb", 32, 0);
    assert_int_equal(policy_longest_sec(open, a), 120);
    assert_int_equal(policy_longest_sec(open, b), 1); /* it may choose none at all */
}

static void commands_are_written_as_a_shell_reads_them(void **state)
{
    char *argv[] = {(char *)(uintptr_t) "printf", (char *)(uintptr_t) "a b",
                    (char *)(uintptr_t) "it's",   (char *)(uintptr_t) "",
                    (char *)(uintptr_t) "/x=1",   NULL};
    AUTO_FREE char *text = policy_command_text(argv, NULL),
                   *cmd = policy_command_text(argv, "ls | wc");
    assert_string_equal(text, "printf 'a b' 'it'\\''s' '' /x=1");
    assert_string_equal(cmd, "ls | wc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_without_a_quota_passes_at_once),
        cmocka_unit_test(a_full_workspace_is_found_out_before_and_after),
        cmocka_unit_test(a_workspace_that_outgrows_its_quota_is_noticed_meanwhile),
        cmocka_unit_test(what_the_scope_does_not_cover_is_refused_and_recorded),
        cmocka_unit_test(one_that_is_given_up_is_recorded),
        cmocka_unit_test(the_longest_timeout_is_that_of_the_profiles),
        cmocka_unit_test(commands_are_written_as_a_shell_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
