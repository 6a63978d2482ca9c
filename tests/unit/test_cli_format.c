/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdio.h>
#include <string.h>

/* NOLINTNEXTLINE(bugprone-suspicious-include): for what was added and not printed yet. */
#include "cli/io/format.c"

static const char session[] =
    "{\"session_id\":\"a\\u001b[31m\",\"state\":\"ready\",\"memory_mb\":64,\"cpus\":1.5,"
    "\"host_path\":null,\"persistent\":true,\"receipt\":{\"limits\":{\"pids\":{\"value\":7}}},"
    "\"processes\":[{\"process_id\":\"p\"}]}";

static int add(struct format **f, const char *text, struct err *err)
{
    AUTO(json) struct json *object = NULL;

    assert_int_equal(json_parse(session, strlen(session), &object, err), 0);
    int r = format_new(text, false, f, err);
    return r < 0 ? r : format_add(*f, object, err);
}

static void good(const char *text, const char *line)
{
    AUTO(format) struct format *f = NULL;
    struct err err = {0};

    if (add(&f, text, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    assert_string_equal(buf_str(&f->out), line);
}

static void bad(const char *text, const char *message)
{
    AUTO(format) struct format *f = NULL;
    struct err err = {0};

    assert_true(add(&f, text, &err) < 0);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, message);
}

static void members_are_found_by_any_spelling(void **state)
{
    good("{{.state}}|{{ .State }}|{{.STATE}}", "ready|ready|ready\n");
    good("{{.memory_mb}} {{.MemoryMB}} {{.Memory_Mb}}", "64 64 64\n");
    good("{{.cpus}},{{.persistent}},{{.host_path}}.", "1.5,true,.\n");
    good("{{.Status}}", "ready\n");
}

static void members_of_members_have_dots_between(void **state)
{
    good("{{.receipt.limits.pids.value}}", "7\n");
    good("{{.Processes.0.ProcessID}}", "p\n");
    good("{{json .receipt.limits}}", "{\"pids\":{\"value\":7}}\n");
    good("{{.receipt.limits.pids}}", "{\"value\":7}\n");
    good("{{json .state}} {{json .host_path}}", "\"ready\" null\n");
}

static void values_cannot_drive_a_terminal(void **state)
{
    good("{{.Name}}", "a\\x1b[31m\n");
    good("{{json .Name}}", "\"a\\u001b[31m\"\n");
}

static void json_is_the_whole_object_on_a_line(void **state)
{
    AUTO(format) struct format *f = NULL;
    struct err err = {0};

    assert_int_equal(add(&f, "json", &err), 0);
    assert_int_equal(f->out.len, strlen(session) + 1);
    assert_non_null(strstr(buf_str(&f->out), "\"receipt\":{\"limits\":{\"pids\":{\"value\":7}}}"));
    good("{{json .receipt}}x\\ty\\nz", "{\"limits\":{\"pids\":{\"value\":7}}}x\ty\nz\n");
}

static void a_table_has_titles_and_columns(void **state)
{
    AUTO(format) struct format *f = NULL;
    struct err err = {0};

    assert_int_equal(add(&f, "table {{.Status}}\\tof {{.memory_mb}} MiB", &err), 0);
    assert_int_equal(f->n_columns, 2);
    AUTO_FREE char *first = make_title(f->columns[0]);
    AUTO_FREE char *second = make_title(f->columns[1]);
    assert_string_equal(first, "STATUS");
    assert_string_equal(second, "of MEMORY MB MiB");
    assert_true(format_is_own_table("table") && format_is_own_table(NULL));
    assert_false(format_is_own_table("table {{.x}}"));
    AUTO(format) struct format *stream = NULL;
    assert_true(format_new("table {{.x}}", true, &stream, &err) < 0);
}

static void what_is_wrong_is_said(void **state)
{
    bad("{{.Foo}}", "--format: there is no '.Foo' here; there are .session_id, .state, .memory_mb, "
                    ".cpus, .host_path, .persistent, .receipt, .processes");
    bad("{{.state.x}}", "--format: there is no '.x' here");
    bad("{{.processes.1}}", "--format: there is no '.1' here");
    bad("{{range .}}",
        "--format: '{{range .}}' is not understood; {{.NAME}} and {{json .NAME}} are");
    bad("{{}}", "--format: '{{}}' is not understood; {{.NAME}} and {{json .NAME}} are");
    bad("{{.state", "--format: '{{' without '}}'");
    bad("yaml", "--format: 'yaml' is none of json, table and a template such as {{.Name}}");
    bad("{{.state}}\xff", "--format: not valid UTF-8");
}

static void templates_and_tables_have_limits(void **state)
{
    AUTO_DONE(buf) struct buf columns = BUF_INIT(4096);
    AUTO_DONE(buf) struct buf large = BUF_INIT(TEMPLATE_MAX + 64);
    AUTO(format) struct format *f = NULL;
    AUTO(format) struct format *most = NULL;
    struct err err = {0};

    (void)buf_puts(&columns, "table {{.a}}");
    for (int i = 1; i < COLUMNS_MAX; i++)
        (void)buf_puts(&columns, "\\t{{.a}}");
    assert_int_equal(format_new(buf_str(&columns), false, &most, &err), 0);
    (void)buf_puts(&columns, "\\t{{.a}}");
    assert_true(format_new(buf_str(&columns), false, &f, &err) < 0);
    assert_string_equal(err.msg, "--format: a table has at most 64 columns");
    (void)buf_puts(&large, "{{.a}}");
    while (large.len <= TEMPLATE_MAX)
        (void)buf_putc(&large, 'x');
    assert_true(format_new(buf_str(&large), false, &f, &err) < 0);
    assert_string_equal(err.msg, "--format: more than 8192 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_found_by_any_spelling),
        cmocka_unit_test(members_of_members_have_dots_between),
        cmocka_unit_test(values_cannot_drive_a_terminal),
        cmocka_unit_test(json_is_the_whole_object_on_a_line),
        cmocka_unit_test(a_table_has_titles_and_columns),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(templates_and_tables_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
