/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return v;
}

static struct process_spec *good(const char *text)
{
    AUTO(json) struct json *v = parse(text);
    struct process_spec *p = NULL;
    struct err err = {0};
    if (process_spec_parse(v, &p, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return p;
}

static void defaults_are_those_of_the_wire(void **state)
{
    AUTO(process_spec) struct process_spec *p = good("{\"command\":\" cat \",\"other\":1}");

    assert_string_equal(p->process_id, "default");
    assert_string_equal(p->command, "cat");
    assert_int_equal(strv_len(p->args), 0);
    assert_int_equal(strv_len(p->env), 0);
    assert_string_equal(p->cwd, "/workspace");
    assert_int_equal(p->memory_mb, 0);
    assert_int_equal(p->timeout_sec, 0);
}

static void canonical_form_is_complete_and_stable(void **state)
{
    static const char text[] =
        "{\"process_id\":\"\",\"command\":\"npx\",\"args\":[\"-y\",\"\",\" x \"],"
        "\"env\":{\"B\":\"2\",\"A\":\"\"},\"cwd\":\"/tmp\",\"memory_mb\":-1,\"timeout_sec\":7}";
    AUTO(process_spec) struct process_spec *p = good(text);
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, 4096);
    jw_init(&w, &out);
    model_write_json(&process_spec_model, p, &w);
    assert_int_equal(jw_end(&w), 0);
    assert_string_equal(buf_str(&out), text);
    assert_string_equal(p->args[2], " x ");
}

static void wrong_values_are_refused_in_the_words_clients_know(void **state)
{
    static const struct {
        const char *json, *where, *message;
    } rows[] = {
        {"{}", "command", "Field required"},
        {"[]", "", "Input should be a valid dictionary or instance of BoxManagedProcessSpec"},
        {"{\"command\":\" \"}", "command", "Value error, command must not be empty"},
        {"{\"command\":\"a\\u0000\"}", "command", "Value error, command must not contain NUL"},
        {"{\"command\":\"a\",\"process_id\":null}", "process_id", "Input should be a valid string"},
        {"{\"command\":\"a\",\"args\":\"x\"}", "args", "Input should be a valid list"},
        {"{\"command\":\"a\",\"args\":[\"x\",1]}", "args.1", "Input should be a valid string"},
        {"{\"command\":\"a\",\"args\":[\"x\\u0000\"]}", "args.0",
         "Value error, args must not contain NUL"},
        {"{\"command\":\"a\",\"env\":{\"A\":null}}", "env.A", "Input should be a valid string"},
        {"{\"command\":\"a\",\"env\":{\"\":\"\"}}", "env",
         "Value error, env names must not be empty"},
        {"{\"command\":\"a\",\"cwd\":\"x\"}", "cwd",
         "Value error, cwd must be an absolute path inside the sandbox"},
        {"{\"command\":\"a\",\"cwd\":\"\"}", "cwd",
         "Value error, cwd must be an absolute path inside the sandbox"},
        {"{\"command\":\"a\",\"memory_mb\":\"x\"}", "memory_mb",
         "Input should be a valid integer, unable to parse string as an integer"},
        {"{\"command\":\"a\",\"memory_mb\":1073741825}", "memory_mb",
         "Value error, memory_mb must be at most 1073741824"},
        {"{\"command\":\"a\",\"timeout_sec\":-1}", "timeout_sec",
         "Value error, timeout_sec must not be negative"},
        {"{\"command\":\"a\",\"timeout_sec\":315360001}", "timeout_sec",
         "Value error, timeout_sec must be at most 315360000"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO(json) struct json *v = parse(rows[i].json);
        AUTO(process_spec) struct process_spec *p = NULL;
        struct report report;
        struct err err = {0};
        assert_true(process_spec_parse_report(v, &p, &report, &err) < 0);
        assert_null(p);
        assert_string_equal(report.issues[0].where, rows[i].where);
        assert_string_equal(err.msg, rows[i].message);
    }
}

/* n arguments of len bytes each. */
static char *args_of(size_t n, size_t len)
{
    AUTO_FREE char *arg = xcalloc(1, len + 1);
    AUTO_DONE(buf) struct buf b;
    memset(arg, 'a', len);
    buf_init(&b, 16 << 20);
    assert_int_equal(buf_puts(&b, "{\"command\":\"x\",\"args\":["), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(buf_printf(&b, "%s\"%s\"", i ? "," : "", arg), 0);
    assert_int_equal(buf_puts(&b, "]}"), 0);
    return buf_take(&b);
}

static void many_arguments_are_refused_with_the_limit(void **state)
{
    static const struct {
        size_t n, len;
        const char *message;
    } rows[] = {
        {4096, 127, NULL},
        {4, 131071, NULL},
        {4097, 1, "Value error, args must have at most 4096 entries"},
        {1, 131072, "Value error, args entries must be at most 131071 bytes each"},
        {4096, 128, "Value error, args must be at most 524288 bytes in all"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *text = args_of(rows[i].n, rows[i].len);
        AUTO(json) struct json *v = parse(text);
        AUTO(process_spec) struct process_spec *p = NULL;
        struct err err = {0};
        assert_int_equal(process_spec_parse(v, &p, &err) < 0, rows[i].message != NULL);
        if (rows[i].message)
            assert_string_equal(err.msg, rows[i].message);
    }
}

static int validate(struct process_spec *p, struct err *err)
{
    struct report report;
    return model_check(&process_spec_model, p, &report) < 0 ? report_fail_plain(&report, err) : 0;
}

static void processes_built_in_c_obey_the_same_rules(void **state)
{
    AUTO(process_spec) struct process_spec *p = xnew(struct process_spec);
    struct err err = {0};

    model_init(&process_spec_model, p);
    assert_true(validate(p, &err) < 0);
    assert_string_equal(err.msg, "command: Field required");
    p->command = xstrdup("  ");
    assert_true(validate(p, &err) < 0);
    assert_string_equal(err.msg, "command must not be empty");
    free(p->command);
    p->command = xstrdup("cat");
    strv_add(&p->args, "-u");
    assert_int_equal(validate(p, &err), 0);
    strv_add(&p->env, "A");
    assert_true(validate(p, &err) < 0);
    assert_string_equal(err.msg, "env entries must be NAME=value");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_wire),
        cmocka_unit_test(canonical_form_is_complete_and_stable),
        cmocka_unit_test(wrong_values_are_refused_in_the_words_clients_know),
        cmocka_unit_test(many_arguments_are_refused_with_the_limit),
        cmocka_unit_test(processes_built_in_c_obey_the_same_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
