/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch_fixture.h"

#include "fetch/fetch_internal.h"

static void every_refusal_has_its_sentence(void **state)
{
    static const struct {
        const char *op, *data, *sentence;
    } cases[] = {
        {"get", "{}", "'name'"},
        {"create", "{}", "'skill'"},
        {"create", "{\"skill\":5}", "skill must be an object"},
        {"create", "{\"skill\":{}}", "Skill name is required"},
        {"create", "{\"skill\":{\"name\":\" \\u00a0\"}}", "Skill name is required"},
        {"create", "{\"skill\":{\"name\":\"a/b\"}}",
         "Skill name can only contain letters, numbers, hyphens and underscores"},
        {"create", "{\"skill\":{\"name\":\"__\"}}",
         "Skill name can only contain letters, numbers, hyphens and underscores"},
        {"create",
         "{\"skill\":{\"name\":"
         "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}",
         "Skill name cannot exceed 64 characters"},
        {"create", "{\"skill\":{\"name\":\"demo\"}}", "Skill with name \"demo\" already exists"},
        {"create", "{\"skill\":{\"name\":\"n\",\"package_root\":\"/etc\"}}",
         "package_root must stay within the Workspace skill root"},
        {"create", "{\"skill\":{\"name\":\"n\",\"package_root\":\"" CALLED "/no\"}}",
         "Directory does not exist: " CALLED "/no"},
        {"create", "{\"skill\":{\"name\":\"n\",\"package_root\":\"" CALLED "/bare\"}}",
         "No SKILL.md found in " CALLED "/bare"},
        {"create", "{\"skill\":{\"name\":\"taken\"}}",
         "Skill directory already exists: " CALLED "/taken"},
        {"create", "{\"skill\":{\"name\":\"n\",\"description\":\"a\\u0000\"}}",
         "embedded null byte"},
        {"update", "{\"skill\":{}}", "'name'"},
        {"update", "{\"name\":\"no\",\"skill\":{}}", "Skill \"no\" not found"},
        {"update", "{\"name\":\"demo\"}", "'skill'"},
        {"update", "{\"name\":\"demo\",\"skill\":{\"name\":\"x\"}}",
         "Renaming skills is not supported"},
        {"update", "{\"name\":\"demo\",\"skill\":{\"package_root\":\"/x\"}}",
         "Updating package_root is not supported; recreate the skill to import a different "
         "package"},
        {"delete", "{\"name\":\"no\"}", "Skill \"no\" not found"},
        {"scan", "{\"path\":\"/\"}", "scan path must stay within the Workspace skill root"},
        {"scan", "{\"path\":\"" CALLED "/no\"}", "Directory does not exist: " CALLED "/no"},
        {"scan", "{\"path\":\"" CALLED "/bare\"}",
         "No SKILL.md found in " CALLED "/bare or its subdirectories (max depth: 2)"},
        {"scan", "{\"path\":\"" CALLED "\"}",
         "Multiple skill directories found in " CALLED
         ". Please choose a more specific path: " CALLED "/demo, " CALLED "/taken"},
        {"list_files", "{\"name\":\"demo\",\"path\":\"/x\"}",
         "path must be relative to the skill package root"},
        {"list_files", "{\"name\":\"demo\",\"path\":\"a/../..\"}",
         "path must stay within the skill package root"},
        {"list_files", "{\"name\":\"demo\",\"path\":\"link\"}",
         "path must stay within the skill package root"},
        {"list_files", "{\"name\":\"demo\",\"path\":\"./no/\"}",
         "Skill directory not found: ./no/"},
        {"list_files", "{\"name\":\"demo\",\"max_entries\":\"x\"}",
         "invalid literal for int() with base 10: 'x'"},
        {"list_files", "{\"name\":\"demo\",\"max_entries\":null}",
         "int() argument must be a string, a bytes-like object or a real number"},
        {"list_files", "{\"name\":\"demo\",\"max_entries\":-1}",
         "max_entries must be a positive integer"},
        {"read_file", "{\"name\":\"demo\"}", "'path'"},
        {"read_file", "{\"name\":\"demo\",\"path\":\"no\"}", "Skill file not found: no"},
        {"read_file", "{\"name\":\"demo\",\"path\":\"bad\"}",
         "Skill file bad is not valid UTF-8 text"},
        {"read_file", "{\"name\":\"demo\",\"path\":\"link\"}",
         "path must stay within the skill package root"},
        {"write_file", "{\"name\":\"demo\",\"path\":\".\"}",
         "[Errno 21] Is a directory: '" CALLED "/demo'"},
        {"write_file", "{\"name\":\"demo\",\"path\":\"x\",\"content\":[]}",
         "content must be a string"},
        {"read_marker", "{}", "'marker_name'"},
        {"read_marker", "{\"marker_name\":\"x\"}", "Invalid Box shared Workspace probe basename"},
        {"nothing", "{}", "unknown operation"},
    };
    job_works("create", "{\"skill\":{\"name\":\"demo\",\"instructions\":\"Do it\"}}");
    put_text("bare/x", "");
    put_text("taken/SKILL.md", "---\nname: another\n---\n");
    put("demo/bad", "\xff", 1);
    assert_int_equal(symlinkat("/etc", it.fd, "demo/link"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        job_fails(cases[i].op, cases[i].data, cases[i].sentence);
}

static void files_have_a_limit(void **state)
{
    AUTO_FREE char *text = malloc(FETCH_TEXT_MAX + 64);
    AUTO_DONE(buf) struct buf data;
    assert_non_null(text);
    memset(text, 'x', FETCH_TEXT_MAX + 1);
    buf_init(&data, 4U << 20);
    job_works("create", "{\"skill\":{\"name\":\"demo\"}}");
    put("demo/big", text, FETCH_TEXT_MAX + 1);
    job_fails("read_file", "{\"name\":\"demo\",\"path\":\"big\"}",
              "Skill file big exceeds the 1048576-byte limit");
    text[FETCH_TEXT_MAX + 1] = '\0';
    assert_int_equal(
        buf_printf(&data, "{\"name\":\"demo\",\"path\":\"w\",\"content\":\"%s\"}", text), 0);
    job_fails("write_file", data.data, "Skill file w exceeds the 1048576-byte limit");
    put("other/SKILL.md", text, FETCH_TEXT_MAX + 1);
    job_fails("scan", "{\"path\":\"" CALLED "/other\"}",
              "Skill entry file SKILL.md exceeds the 1048576-byte limit");
    put("other/SKILL.md", "\xff", 1);
    job_fails("scan", "{\"path\":\"" CALLED "/other\"}",
              "Skill entry file SKILL.md is not valid UTF-8 text");
    put("other/SKILL.md", text, FETCH_TEXT_MAX);
    job_works("scan", "{\"path\":\"" CALLED "/other\"}");
}

static void a_life_from_creation_to_deletion(void **state)
{
    job_works("create", "{\"skill\":{\"name\":\"demo\",\"description\":\" d \"}}");
    job_works("write_file", "{\"name\":\"demo\",\"path\":\"a/b\",\"content\":\"\\u0000x\"}");
    const struct json *read = job_works("read_file", "{\"name\":\"demo\",\"path\":\"a//b\"}");
    assert_int_equal(json_str_len(json_get(read, "content")), 2);
    const struct json *files = job_works("list_files", "{\"name\":\"demo\"}");
    assert_int_equal(json_len(json_get(files, "entries")), 2);
    const struct json *skill = json_get(
        job_works("update", "{\"name\":\"demo\",\"skill\":{\"instructions\":\"new\"}}"), "skill");
    assert_string_equal(json_str(json_get(skill, "instructions")), "new");
    assert_string_equal(json_str(json_get(skill, "description")), "d");
    job_works("delete", "{\"name\":\"demo\"}");
    assert_false(there("demo"));
    assert_int_equal(json_len(json_get(job_works("list", "{}"), "skills")), 0);
    put_text("SKILL.md", "text");
    job_fails("delete", "{\"name\":\"store\"}",
              "Only managed skills under the Box skills root can be deleted");
}

static void what_was_left_unfinished_goes(void **state)
{
    put_text(".tmp-0123456789abcdef/new/SKILL.md", "half");
    assert_int_equal(json_len(json_get(job_works("list", "{}"), "skills")), 0);
    assert_false(there(".tmp-0123456789abcdef"));
}

static void markers_are_read_or_refused(void **state)
{
    static const char name[] = ".langbot-box-volume-probe-0123456789abcdef0123456789abcdef";
    static const char data[] =
        "{\"marker_name\":\".langbot-box-volume-probe-0123456789abcdef0123456789abcdef\"}";
    char large[1025];
    memset(large, 'x', sizeof(large));
    job_fails("read_marker", data, "Box Runtime cannot read the Core shared Workspace probe");
    put_text(name, "hello");
    assert_string_equal(json_str(json_get(job_works("read_marker", data), "content")),
                        "68656c6c6f");
    put_text(name, "");
    job_fails("read_marker", data, "Box shared Workspace probe has an invalid size");
    put(name, large, sizeof(large));
    job_fails("read_marker", data, "Box shared Workspace probe has an invalid size");
    assert_int_equal(unlinkat(it.fd, name, 0), 0);
    assert_int_equal(mkdirat(it.fd, name, 0755), 0);
    job_fails("read_marker", data, "Box shared Workspace probe is not a regular file");
    assert_int_equal(unlinkat(it.fd, name, AT_REMOVEDIR), 0);
    assert_int_equal(symlinkat("/etc/passwd", it.fd, name), 0);
    job_fails("read_marker", data, "Box Runtime cannot read the Core shared Workspace probe");
}

static void check_amount(const char *part, bool exists, int64_t bytes, int64_t files)
{
    const struct json *v = json_get(json_get(it.answer, "data"), part);
    assert_int_equal(json_bool(json_get(v, "exists")), exists);
    assert_int_equal(json_int(json_get(v, "size_bytes")), bytes);
    assert_int_equal(json_int(json_get(v, "file_count")), files);
    assert_int_equal(json_int(json_get(v, "error_count")), 0);
}

static void what_lies_there_is_measured(void **state)
{
    char deep[4096] = "";
    put_text("a", "12345");
    put_text("sub/deep/b", "123");
    put_text(".mcp/x/y", "1234567");
    put_text("outbox", "12");
    assert_int_equal(mkdirat(it.fd, "inbox", 0755), 0);
    assert_int_equal(symlinkat("/usr", it.fd, "sub/usr"), 0); /* four bytes, and not followed */
    assert_int_equal(symlinkat("sub", it.fd, "linked"), 0);   /* three */
    assert_int_equal(mkfifoat(it.fd, "sub/fifo", 0644), 0);   /* nothing, but something */
    (void)job_works("measure", "{\"parts\":[\".mcp\",\"inbox\",\"outbox\",\"none\",\"linked\"]}");
    check_amount("", true, 5 + 3 + 7 + 2 + 4 + 3, 7);
    check_amount(".mcp", true, 7, 1);
    check_amount("inbox", true, 0, 0);
    check_amount("outbox", true, 2, 1);
    check_amount("none", false, 0, 0);
    check_amount("linked", true, 3, 1);
    /* Names that are too deep for one path are an error, and no more than that. */
    AUTO_CLOSE int at = openat(it.fd, "inbox", O_PATH | O_DIRECTORY | O_CLOEXEC);
    memset(deep, 'd', 250);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(mkdirat(at, deep, 0755), 0);
        int next = openat(at, deep, O_PATH | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        (void)close(at);
        at = next;
    }
    const struct json *data = job_works("measure", "{}");
    assert_int_equal(json_int(json_get(json_get(data, ""), "error_count")), 1);
    assert_int_equal(json_int(json_get(json_get(data, ""), "file_count")), 7);
    static const char *const bad[] = {"\"..\"", "\"a/b\"", "\".\"", "\"\"", "5"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char request[64];
        (void)snprintf(request, sizeof(request), "{\"parts\":[%s]}", bad[i]);
        job_fails("measure", request, "a part is the name of something in the directory");
    }
}

static void requests_that_boxd_would_not_send(void **state)
{
    static const char *const texts[] = {"",
                                        "{}",
                                        "[]",
                                        "{\"op\":1}",
                                        "{\"op\":\"list\"}",
                                        "{\"op\":\"list\",\"root\":\"x\",\"data\":{}}",
                                        "{\"op\":\"list\",\"root\":\"/x\",\"data\":[]}"};
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        const struct fetch_input in = {.request = texts[i], .request_len = strlen(texts[i])};
        buf_reset(&it.out);
        fetch_run(it.fd, &in, &it.out);
        assert_memory_equal(it.out.data, "{\"error\":", 9);
    }
}

static void paths_are_normal_as_python_has_them(void **state)
{
    static const char *const cases[][2] = {
        {"", "."},          {".", "."},           {"a//b/../c/", "a/c"}, {"..", ".."},
        {"../..", "../.."}, {"a/../..", ".."},    {"/..", "/"},          {"//x", "//x"},
        {"///x", "/x"},     {"/a/../../b", "/b"}, {"a/.", "a"},          {"../a/..", ".."},
        {"..a/b", "..a/b"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *normal = fetch_normal(cases[i][0]);
        assert_string_equal(normal, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_refusal_has_its_sentence, store_start, store_stop),
        cmocka_unit_test_setup_teardown(files_have_a_limit, store_start, store_stop),
        cmocka_unit_test_setup_teardown(a_life_from_creation_to_deletion, store_start, store_stop),
        cmocka_unit_test_setup_teardown(what_was_left_unfinished_goes, store_start, store_stop),
        cmocka_unit_test_setup_teardown(markers_are_read_or_refused, store_start, store_stop),
        cmocka_unit_test_setup_teardown(what_lies_there_is_measured, store_start, store_stop),
        cmocka_unit_test_setup_teardown(requests_that_boxd_would_not_send, store_start, store_stop),
        cmocka_unit_test(paths_are_normal_as_python_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
