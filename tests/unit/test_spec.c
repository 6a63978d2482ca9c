/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return v;
}

/* Fails the test unless the text is a good spec. */
static struct spec *good(const char *text)
{
    AUTO(json) struct json *v = parse(text);
    struct spec *s = NULL;
    struct err err = {0};
    if (spec_parse(v, &s, &err) < 0)
        fail_msg("%s: %s", text, err.msg);
    return s;
}

/* Fails the test unless the text is refused with exactly this place and message. */
static void bad(const char *text, const char *where, const char *message)
{
    AUTO(json) struct json *v = parse(text);
    AUTO(spec) struct spec *s = NULL;
    struct report report;
    struct err err = {0};
    int r = spec_parse_report(v, &s, &report, &err);

    if (r == 0)
        fail_msg("%.200s: accepted", text);
    assert_int_equal(r, err_code_errno(ERR_INVALID));
    assert_int_equal(err.code, ERR_INVALID);
    assert_null(s);
    assert_string_equal(report.issues[0].where, where);
    assert_string_equal(err.msg, message);
}

/* The canonical form as text. */
static char *canonical(const struct spec *s)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, 32 << 20);
    jw_init(&w, &out);
    model_write_json(&spec_model, s, &w);
    assert_int_equal(jw_end(&w), 0);
    return buf_take(&out);
}

static void defaults_are_those_of_the_wire(void **state)
{
    AUTO(spec) struct spec *s = good("{\"session_id\":\"s\"}");

    assert_string_equal(s->cmd, "");
    assert_string_equal(s->workdir, "/workspace");
    assert_int_equal(s->timeout_sec, 30);
    assert_int_equal(s->network, NETWORK_OFF);
    assert_string_equal(s->session_id, "s");
    assert_int_equal(strv_len(s->env), 0);
    assert_string_equal(s->image, "rockchin/langbot-sandbox:latest");
    assert_null(s->host_path);
    assert_int_equal(s->host_path_mode, MOUNT_RW);
    assert_string_equal(s->mount_path, "/workspace");
    assert_null(s->extra_mounts);
    assert_int_equal(s->n_extra_mounts, 0);
    assert_null(s->skill_name);
    assert_false(s->persistent);
    assert_true(fabs(s->cpus - 1.0) < 1e-12);
    assert_int_equal(s->memory_mb, 512);
    assert_int_equal(s->pids_limit, 128);
    assert_true(s->read_only_rootfs);
    assert_int_equal(s->workspace_quota_mb, 0);
}

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char full[] =
    "{\"cmd\":\"echo hi\",\"workdir\":\"/w/sub\",\"timeout_sec\":7,\"network\":\"on\","
    "\"session_id\":\"s\",\"env\":{\"Z\":\"1\",\"A\":\"x=y\",\"E\":\"\"},\"image\":\"alpine\","
    "\"host_path\":\"/srv/x\",\"host_path_mode\":\"ro\",\"mount_path\":\"/w\","
    "\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"/b\",\"mode\":\"ro\","
    "\"content_digest\":null,\"manifest_path\":null},"
    "{\"host_path\":\"C:\\\\data\",\"mount_path\":\"/opt/langbot-artifacts-not\",\"mode\":\"none\","
    "\"content_digest\":\"sha256:" DIGEST "\",\"manifest_path\":\"/m\"}],"
    "\"skill_name\":\"pdf\",\"persistent\":true,\"cpus\":0.5,\"memory_mb\":64,\"pids_limit\":9,"
    "\"read_only_rootfs\":false,\"workspace_quota_mb\":3}";

static void every_field_is_read(void **state)
{
    AUTO(spec) struct spec *s = good(full);

    assert_string_equal(s->cmd, "echo hi");
    assert_string_equal(s->workdir, "/w/sub");
    assert_int_equal(s->timeout_sec, 7);
    assert_int_equal(s->network, NETWORK_ON);
    assert_int_equal(strv_len(s->env), 3);
    assert_string_equal(s->env[0], "Z=1");
    assert_string_equal(s->env[1], "A=x=y");
    assert_string_equal(s->env[2], "E=");
    assert_string_equal(s->image, "alpine");
    assert_string_equal(s->host_path, "/srv/x");
    assert_int_equal(s->host_path_mode, MOUNT_RO);
    assert_string_equal(s->mount_path, "/w");
    assert_int_equal(s->n_extra_mounts, 2);
    assert_string_equal(s->extra_mounts[0].host_path, "/a");
    assert_string_equal(s->extra_mounts[0].mount_path, "/b");
    assert_int_equal(s->extra_mounts[0].mode, MOUNT_RO);
    assert_string_equal(s->extra_mounts[1].host_path, "C:\\data");
    assert_int_equal(s->extra_mounts[1].mode, MOUNT_NONE);
    assert_null(s->extra_mounts[0].content_digest);
    assert_null(s->extra_mounts[0].manifest_path);
    assert_string_equal(s->extra_mounts[1].content_digest, "sha256:" DIGEST);
    assert_string_equal(s->extra_mounts[1].manifest_path, "/m");
    assert_string_equal(s->skill_name, "pdf");
    assert_true(s->persistent);
    assert_true(fabs(s->cpus - 0.5) < 1e-12);
    assert_int_equal(s->memory_mb, 64);
    assert_int_equal(s->pids_limit, 9);
    assert_false(s->read_only_rootfs);
    assert_int_equal(s->workspace_quota_mb, 3);
}

static void canonical_form_is_complete_and_stable(void **state)
{
    AUTO(spec) struct spec *s = good(full);
    AUTO_FREE char *text = canonical(s);
    assert_string_equal(text, full);

    AUTO(spec) struct spec *plain = good("{\"session_id\":\"s\"}");
    AUTO_FREE char *plain_text = canonical(plain);
    assert_string_equal(
        plain_text,
        "{\"cmd\":\"\",\"workdir\":\"/workspace\",\"timeout_sec\":30,\"network\":\"off\","
        "\"session_id\":\"s\",\"env\":{},\"image\":\"rockchin/langbot-sandbox:latest\","
        "\"host_path\":null,\"host_path_mode\":\"rw\",\"mount_path\":\"/workspace\","
        "\"extra_mounts\":[],\"skill_name\":null,\"persistent\":false,\"cpus\":1.0,"
        "\"memory_mb\":512,\"pids_limit\":128,\"read_only_rootfs\":true,\"workspace_quota_mb\":0}");
}

static void strings_are_trimmed_and_numbers_coerced(void **state)
{
    AUTO(spec)
    struct spec *s = good(
        "{\"cmd\":\" ls\\n\",\"workdir\":\" /x \",\"session_id\":\"\\u3000 s \",\"image\":\" i \","
        "\"host_path\":\" \\\\\\\\srv\\\\share \",\"host_path_mode\":\"none\","
        "\"mount_path\":\"/m \",\"skill_name\":\" a \",\"timeout_sec\":\" 1_2.0 \",\"cpus\":\"2\","
        "\"memory_mb\":64.0,\"pids_limit\":true,\"persistent\":\"Yes\",\"read_only_rootfs\":0,"
        "\"unknown\":[1]}");

    assert_string_equal(s->cmd, "ls");
    assert_string_equal(s->workdir, "/x");
    assert_string_equal(s->session_id, "s");
    assert_string_equal(s->image, " i ");
    assert_string_equal(s->host_path, "\\\\srv\\share");
    assert_string_equal(s->mount_path, "/m");
    assert_string_equal(s->skill_name, "a");
    assert_int_equal(s->timeout_sec, 12);
    assert_true(fabs(s->cpus - 2.0) < 1e-12);
    assert_int_equal(s->memory_mb, 64);
    assert_int_equal(s->pids_limit, 1);
    assert_true(s->persistent);
    assert_false(s->read_only_rootfs);
}

#define ARTIFACTS "/opt/langbot-artifacts"
#define NO_ARTIFACT                                                                                \
    "Value error, Artifact paths require a read-only digest-addressed mount and manifest"
#define SEALED "\"content_digest\":\"sha256:" DIGEST "\",\"manifest_path\":\"/m\""
#define MOUNT(at, rest)                                                                            \
    "\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"" at "\"" rest "}]"

static void mounts_may_be_content_addressed(void **state)
{
    AUTO(spec)
    struct spec *s =
        good("{\"session_id\":\"s\"," MOUNT(ARTIFACTS "/" DIGEST, ",\"mode\":\"ro\"," SEALED) "}");
    AUTO(spec)
    struct spec *other = good(
        "{\"session_id\":\"s\"," MOUNT("/workspace/.skills/x", ",\"mode\":\"ro\"," SEALED) "}");
    AUTO(spec) struct spec *root = good("{\"session_id\":\"s\"," MOUNT("/", "") "}");

    assert_true(mount_content_addressed(&s->extra_mounts[0]));
    assert_false(mount_content_addressed(&other->extra_mounts[0]));
    assert_false(mount_content_addressed(&root->extra_mounts[0]));
}

/* clang-format off */
static const struct {
    const char *members; /* beside session_id */
    const char *where;
    const char *message;
} refusals[] = {
    {"\"cmd\":null", "cmd", "Input should be a valid string"},
    {"\"cmd\":[\"ls\"]", "cmd", "Input should be a valid string"},
    {"\"cmd\":\"a\\u0000b\"", "cmd", "Value error, cmd must not contain NUL"},
    {"\"workdir\":\"rel\"", "workdir", "Value error, workdir must be an absolute path inside the sandbox"},
    {"\"workdir\":\" \"", "workdir", "Value error, workdir must be an absolute path inside the sandbox"},
    {"\"workdir\":\"\"", "workdir", "Value error, workdir must be an absolute path inside the sandbox"},
    {"\"workdir\":null", "workdir", "Input should be a valid string"},
    {"\"workdir\":\"/a\\u0000\"", "workdir", "Value error, workdir must not contain NUL"},
    {"\"timeout_sec\":0", "timeout_sec", "Value error, timeout_sec must be greater than 0"},
    {"\"timeout_sec\":\"-5\"", "timeout_sec", "Value error, timeout_sec must be greater than 0"},
    {"\"timeout_sec\":1.5", "timeout_sec", "Input should be a valid integer, got a number with a fractional part"},
    {"\"timeout_sec\":null", "timeout_sec", "Input should be a valid integer"},
    {"\"timeout_sec\":\"soon\"", "timeout_sec", "Input should be a valid integer, unable to parse string as an integer"},
    {"\"timeout_sec\":\"1e3\"", "timeout_sec", "Input should be a valid integer, unable to parse string as an integer"},
    {"\"timeout_sec\":1e30", "timeout_sec", "Unable to parse input string as an integer, exceeded maximum size"},
    {"\"timeout_sec\":\"99999999999999999999\"", "timeout_sec", "Value error, timeout_sec must be at most 315360000"},
    {"\"timeout_sec\":\"-99999999999999999999\"", "timeout_sec", "Value error, timeout_sec must be greater than 0"},
    {"\"network\":\"ON\"", "network", "Input should be 'off' or 'on'"},
    {"\"network\":true", "network", "Input should be 'off' or 'on'"},
    {"\"env\":null", "env", "Input should be a valid dictionary"},
    {"\"env\":[]", "env", "Input should be a valid dictionary"},
    {"\"env\":{\"A\":\"1\",\"B\":2}", "env.B", "Input should be a valid string"},
    {"\"env\":{\"\":\"1\"}", "env", "Value error, env names must not be empty"},
    {"\"env\":{\"A=B\":\"1\"}", "env", "Value error, env names must not contain '='"},
    {"\"env\":{\"A\":\"1\\u0000\"}", "env.A", "Value error, env must not contain NUL"},
    {"\"image\":null", "image", "Input should be a valid string"},
    {"\"host_path\":\"\"", "host_path", "Value error, host_path must be an absolute host path"},
    {"\"host_path\":\"data\"", "host_path", "Value error, host_path must be an absolute host path"},
    {"\"host_path\":\"C:data\"", "host_path", "Value error, host_path must be an absolute host path"},
    {"\"host_path\":\"~/x\"", "host_path", "Value error, host_path must be an absolute host path"},
    {"\"host_path\":5", "host_path", "Input should be a valid string"},
    {"\"host_path\":\"/a\\u0000/b\"", "host_path", "Value error, host_path must not contain NUL"},
    {"\"host_path_mode\":\"readonly\"", "host_path_mode", "Input should be 'none', 'ro' or 'rw'"},
    {"\"mount_path\":\"rel\",\"workdir\":\"/x\"", "mount_path", "Value error, mount_path must be an absolute path inside the sandbox"},
    {"\"mount_path\":\"rel\"", "workdir", "Value error, workdir must be an absolute path inside the sandbox"},
    {"\"extra_mounts\":{}", "extra_mounts", "Input should be a valid list"},
    {"\"extra_mounts\":null", "extra_mounts", "Input should be a valid list"},
    {"\"extra_mounts\":[5]", "extra_mounts.0", "Input should be a valid dictionary or instance of BoxMountSpec"},
    {"\"extra_mounts\":[{\"mount_path\":\"/b\"}]", "extra_mounts.0.host_path", "Field required"},
    {"\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"/b\"},{\"host_path\":\"x\",\"mount_path\":\"/b\"}]",
     "extra_mounts.1.host_path", "Value error, host_path must be an absolute host path"},
    {"\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"b\"}]",
     "extra_mounts.0.mount_path", "Value error, mount_path must be an absolute path inside the sandbox"},
    {MOUNT("/b/", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("/b//c", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("///b", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("/b/./c", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("/b/..", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("/../b", ""), "extra_mounts.0.mount_path", "Value error, mount_path must be normalized"},
    {MOUNT("/b", ",\"content_digest\":\"md5:0\""), "extra_mounts.0.content_digest", "Value error, content_digest must use sha256:<hex>"},
    {MOUNT("/b", ",\"content_digest\":\"\""), "extra_mounts.0.content_digest", "Value error, content_digest must use sha256:<hex>"},
    {MOUNT("/b", ",\"content_digest\":\"sha256:0\""), "extra_mounts.0.content_digest", "Value error, content_digest must use sha256:<64 lowercase hex>"},
    {MOUNT("/b", ",\"content_digest\":\"sha256:" DIGEST "0\""), "extra_mounts.0.content_digest",
     "Value error, content_digest must use sha256:<64 lowercase hex>"},
    {MOUNT("/b", ",\"content_digest\":5"), "extra_mounts.0.content_digest", "Input should be a valid string"},
    {MOUNT("/b", ",\"manifest_path\":\"rel\""), "extra_mounts.0.manifest_path", "Value error, manifest_path must be an absolute host path"},
    {MOUNT(ARTIFACTS, ""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/x", ""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/" DIGEST, ""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/" DIGEST, ",\"mode\":\"ro\",\"content_digest\":\"sha256:" DIGEST "\""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/" DIGEST, ",\"mode\":\"ro\",\"manifest_path\":\"/m\""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/" DIGEST, "," SEALED ",\"mode\":\"rw\""), "extra_mounts.0", NO_ARTIFACT},
    {MOUNT(ARTIFACTS "/" DIGEST "/sub", "," SEALED ",\"mode\":\"ro\""), "extra_mounts.0", NO_ARTIFACT},
    {"\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"/b\",\"mode\":\"x\"}]", "extra_mounts.0.mode", "Input should be 'none', 'ro' or 'rw'"},
    {"\"extra_mounts\":[{\"host_path\":\"/a\\u0000\",\"mount_path\":\"/b\"}]", "extra_mounts.0.host_path", "Value error, host_path must not contain NUL"},
    {"\"skill_name\":\"a b\"", "skill_name", "Value error, skill_name can only contain up to 64 letters, numbers, hyphens and underscores"},
    {"\"skill_name\":\"../x\"", "skill_name", "Value error, skill_name can only contain up to 64 letters, numbers, hyphens and underscores"},
    {"\"persistent\":\"maybe\"", "persistent", "Input should be a valid boolean, unable to interpret input"},
    {"\"persistent\":null", "persistent", "Input should be a valid boolean"},
    {"\"cpus\":0", "cpus", "Value error, cpus must be greater than 0"},
    {"\"cpus\":-0.5", "cpus", "Value error, cpus must be greater than 0"},
    {"\"cpus\":\"many\"", "cpus", "Input should be a valid number, unable to parse string as a number"},
    {"\"cpus\":null", "cpus", "Input should be a valid number"},
    {"\"cpus\":\"inf\"", "cpus", "Input should be a finite number"},
    {"\"cpus\":\"nan\"", "cpus", "Input should be a finite number"},
    {"\"cpus\":1e300", "cpus", "Value error, cpus must be at most 8192"},
    {"\"memory_mb\":31", "memory_mb", "Value error, memory_mb must be at least 32"},
    {"\"memory_mb\":9223372036854775807", "memory_mb", "Value error, memory_mb must be at most 1073741824"},
    {"\"pids_limit\":0", "pids_limit", "Value error, pids_limit must be at least 1"},
    {"\"pids_limit\":4194305", "pids_limit", "Value error, pids_limit must be at most 4194304"},
    {"\"read_only_rootfs\":2", "read_only_rootfs", "Input should be a valid boolean, unable to interpret input"},
    {"\"workspace_quota_mb\":-1", "workspace_quota_mb", "Value error, workspace_quota_mb must be greater than or equal to 0"},
    {"\"host_path\":\"/srv\",\"workdir\":\"/other\"", "", "Value error, workdir must stay under mount_path when host_path is provided"},
    {"\"host_path\":\"/srv\",\"workdir\":\"/workspace2\"", "", "Value error, workdir must stay under mount_path when host_path is provided"},
    /* Declaration order decides, whatever order the members came in. */
    {"\"memory_mb\":3,\"cpus\":0,\"timeout_sec\":0", "timeout_sec", "Value error, timeout_sec must be greater than 0"},
    /* A rule over several fields waits until each of them is right. */
    {"\"host_path\":\"/srv\",\"workdir\":\"/other\",\"pids_limit\":0", "pids_limit", "Value error, pids_limit must be at least 1"},
};
/* clang-format on */

static void wrong_values_are_refused_in_the_words_clients_know(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(refusals); i++) {
        AUTO_FREE char *text = xasprintf("{\"session_id\":\"s\",%s}", refusals[i].members);
        bad(text, refusals[i].where, refusals[i].message);
    }
}

static void session_id_is_required(void **state)
{
    bad("{}", "session_id", "Field required");
    bad("{\"session_id\":null}", "session_id", "Input should be a valid string");
    bad("{\"session_id\":7}", "session_id", "Input should be a valid string");
    bad("{\"session_id\":\" \\t\"}", "session_id", "Value error, session_id must not be empty");
    bad("{\"session_id\":\"a\\u0000\"}", "session_id",
        "Value error, session_id must not contain NUL");
}

static void what_is_no_object_is_no_spec(void **state)
{
    static const char *const texts[] = {"[]", "null", "5", "\"x\"", "true"};
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        bad(texts[i], "", "Input should be a valid dictionary or instance of BoxSpec");
}

static void workdir_follows_the_mount_path(void **state)
{
    static const char *const texts[] = {
        "{\"session_id\":\"s\",\"mount_path\":\" /p \"}",
        "{\"session_id\":\"s\",\"mount_path\":\"/p\",\"workdir\":null}",
        "{\"session_id\":\"s\",\"mount_path\":\"/p\",\"workdir\":\"\"}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        AUTO(spec) struct spec *s = good(texts[i]);
        assert_string_equal(s->workdir, "/p");
        assert_string_equal(s->mount_path, "/p");
    }
}

static void test_row_T32_box_spec_validates_resource_limits(void **state)
{
    bad("{\"cmd\":\"echo\",\"session_id\":\"s1\",\"cpus\":0}", "cpus",
        "Value error, cpus must be greater than 0");
    bad("{\"cmd\":\"echo\",\"session_id\":\"s1\",\"memory_mb\":10}", "memory_mb",
        "Value error, memory_mb must be at least 32");
    bad("{\"cmd\":\"echo\",\"session_id\":\"s1\",\"pids_limit\":0}", "pids_limit",
        "Value error, pids_limit must be at least 1");
    bad("{\"cmd\":\"echo\",\"session_id\":\"s1\",\"workspace_quota_mb\":-1}", "workspace_quota_mb",
        "Value error, workspace_quota_mb must be greater than or equal to 0");
    AUTO(spec)
    struct spec *s = good("{\"cmd\":\"echo\",\"session_id\":\"s1\",\"cpus\":0.01,\"memory_mb\":32,"
                          "\"pids_limit\":1,\"workspace_quota_mb\":0}");
    assert_int_equal(s->memory_mb, 32);
}

static void test_row_T47_none_mode_is_valid_enum(void **state)
{
    assert_string_equal(mount_mode_names[MOUNT_NONE], "none");
    assert_string_equal(mount_mode_names[MOUNT_RO], "ro");
    assert_string_equal(mount_mode_names[MOUNT_RW], "rw");
    assert_null(mount_mode_names[MOUNT_RW + 1]);
    AUTO(spec) struct spec *s = good("{\"session_id\":\"s\",\"host_path_mode\":\"none\"}");
    assert_int_equal(s->host_path_mode, MOUNT_NONE);
}

static void test_row_T48_row_F17_none_mode_skips_workdir_check(void **state)
{
    AUTO(spec)
    struct spec *s =
        good("{\"cmd\":\"echo\",\"session_id\":\"s\",\"host_path\":\"/home/user/data\","
             "\"host_path_mode\":\"none\",\"workdir\":\"/opt/custom\"}");
    assert_string_equal(s->workdir, "/opt/custom");
    assert_int_equal(s->host_path_mode, MOUNT_NONE);
}

/* The model's part of F16: the mode survives, next to a host path, for the backends to act on. */
static void test_row_F16_none_mode_keeps_host_path_unmounted(void **state)
{
    AUTO(spec)
    struct spec *s =
        good("{\"session_id\":\"s\",\"host_path\":\"/home/user/data\",\"host_path_mode\":\"none\","
             "\"extra_mounts\":[{\"host_path\":\"/a\",\"mount_path\":\"/b\",\"mode\":\"none\"}]}");
    assert_string_equal(s->host_path, "/home/user/data");
    assert_int_equal(s->host_path_mode, MOUNT_NONE);
    assert_int_equal(s->extra_mounts[0].mode, MOUNT_NONE);
}

static void test_row_T49_rw_mode_requires_workspace_workdir(void **state)
{
    bad("{\"cmd\":\"echo\",\"session_id\":\"s\",\"host_path\":\"/home/user/data\","
        "\"host_path_mode\":\"rw\",\"workdir\":\"/opt/custom\"}",
        "", "Value error, workdir must stay under mount_path when host_path is provided");
}

static void test_row_T50_ro_mode_requires_workspace_workdir(void **state)
{
    bad("{\"cmd\":\"echo\",\"session_id\":\"s\",\"host_path\":\"/home/user/data\","
        "\"host_path_mode\":\"ro\",\"workdir\":\"/opt/custom\"}",
        "", "Value error, workdir must stay under mount_path when host_path is provided");
}

static void test_row_T51_custom_mount_path_allows_matching_workdir(void **state)
{
    AUTO(spec)
    struct spec *s =
        good("{\"cmd\":\"echo\",\"session_id\":\"s\",\"host_path\":\"/home/user/data\","
             "\"mount_path\":\"/project\",\"workdir\":\"/project/src\"}");
    assert_string_equal(s->mount_path, "/project");
    assert_string_equal(s->workdir, "/project/src");
}

static void test_row_T52_custom_mount_path_rejects_outside_workdir(void **state)
{
    bad("{\"cmd\":\"echo\",\"session_id\":\"s\",\"host_path\":\"/home/user/data\","
        "\"mount_path\":\"/project\",\"workdir\":\"/workspace\"}",
        "", "Value error, workdir must stay under mount_path when host_path is provided");
}

static void workdir_is_free_without_a_host_path(void **state)
{
    AUTO(spec) struct spec *s = good("{\"session_id\":\"s\",\"workdir\":\"/tmp\"}");
    assert_string_equal(s->workdir, "/tmp");
}

static void skill_names_are_letters_of_any_script(void **state)
{
    static const char *const right[] = {"a",
                                        "A-1_b",
                                        "\xe6\x8a\x80\xe8\x83\xbd",
                                        "\xc3\xa9t\xc3\xa9",
                                        "\xf0\x9d\x94\xb8" /* a letter beyond the first plane */,
                                        "\xc2\xbd" /* one half counts as a number */,
                                        "-",
                                        "__"};
    static const char *const wrong[] = {"",
                                        "a b",
                                        "a/b",
                                        ".",
                                        "a.b",
                                        "\xe3\x80\x82" /* full stop */,
                                        "\xf0\x9f\x98\x80" /* a face */,
                                        "\xff",
                                        "a\n"};
    char name[4 * 65 + 1] = "";

    for (size_t i = 0; i < ARRAY_SIZE(right); i++)
        if (!skill_name_valid(right[i]))
            fail_msg("refused: %s", right[i]);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        if (skill_name_valid(wrong[i]))
            fail_msg("accepted: %s", wrong[i]);
    for (size_t i = 0; i < 65; i++) {
        memcpy(name + 3 * i, "\xe6\x8a\x80", 4);
        assert_true(skill_name_valid(name) == (i < 64));
    }
}

static void blank_skill_name_is_none(void **state)
{
    AUTO(spec) struct spec *s = good("{\"session_id\":\"s\",\"skill_name\":\"  \"}");
    assert_null(s->skill_name);
}

/* {"session_id":"s",<head><n times fill><tail>} */
static char *padded(const char *head, const char *fill, size_t n, const char *tail)
{
    AUTO_DONE(buf) struct buf b;
    buf_init(&b, 64 << 20);
    assert_int_equal(buf_printf(&b, "{\"session_id\":\"s\",%s", head), 0);
    assert_int_equal(buf_reserve(&b, n * strlen(fill)), 0);
    for (size_t i = 0; i < n; i++, b.len += strlen(fill))
        memcpy(b.data + b.len, fill, strlen(fill));
    assert_int_equal(buf_printf(&b, "%s}", tail), 0);
    return buf_take(&b);
}

static void long_strings_are_refused_with_the_limit(void **state)
{
    static const struct {
        const char *head;
        size_t n;
        const char *where, *message;
    } rows[] = {
        {"\"cmd\":\"", 8 << 20, "cmd", "Value error, cmd must be at most 8388608 bytes"},
        {"\"workdir\":\"/", 4094, "workdir", "Value error, workdir must be at most 4095 bytes"},
        {"\"workdir\":\"/\",\"mount_path\":\"/", 4094, "mount_path",
         "Value error, mount_path must be at most 4095 bytes"},
        {"\"host_path_mode\":\"none\",\"host_path\":\"/", 4094, "host_path",
         "Value error, host_path must be at most 4095 bytes"},
        {"\"image\":\"", 1024, "image", "Value error, image must be at most 1024 bytes"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *fits = padded(rows[i].head, "x", rows[i].n, "\"");
        AUTO(spec) struct spec *s = good(fits);
        assert_non_null(s);
        AUTO_FREE char *text = padded(rows[i].head, "x", rows[i].n + 1, "\"");
        bad(text, rows[i].where, rows[i].message);
    }
    AUTO_FREE char *id = xcalloc(1, 600);
    (void)memset(id, 'i', 513);
    AUTO_FREE char *text = xasprintf("{\"session_id\":\"%s\"}", id);
    bad(text, "session_id", "Value error, session_id must be at most 512 bytes");
}

static char *env_of(size_t entries, size_t value_len)
{
    AUTO_DONE(buf) struct buf b;
    AUTO_FREE char *value = xcalloc(1, value_len + 1);
    memset(value, 'v', value_len);
    buf_init(&b, 64 << 20);
    assert_int_equal(buf_puts(&b, "{\"session_id\":\"s\",\"env\":{"), 0);
    for (size_t i = 0; i < entries; i++)
        assert_int_equal(buf_printf(&b, "%s\"N%06zu\":\"%s\"", i ? "," : "", i, value), 0);
    assert_int_equal(buf_puts(&b, "}}"), 0);
    return buf_take(&b);
}

static void large_environments_are_refused_with_the_limit(void **state)
{
    AUTO_FREE char *many = env_of(4097, 1);
    bad(many, "env", "Value error, env must have at most 4096 entries");
    AUTO_FREE char *ten_megabytes = env_of(100, 100000);
    bad(ten_megabytes, "env", "Value error, env must be at most 1048576 bytes in all");
    AUTO_FREE char *one = env_of(1, 131072);
    bad(one, "env.N000000", "Value error, env entries must be at most 131071 bytes each");

    AUTO_FREE char *most = env_of(4096, 240);
    AUTO(spec) struct spec *s = good(most);
    assert_int_equal(strv_len(s->env), 4096);
    /* 7 letters of name and '=' before the value: 131071 bytes in all. */
    AUTO_FREE char *longest = env_of(1, 131071 - 8);
    AUTO(spec) struct spec *t = good(longest);
    assert_int_equal(strlen(t->env[0]), 131071);
}

static void many_mounts_are_refused_with_the_limit(void **state)
{
    static const char mount[] = "{\"host_path\":\"/a\",\"mount_path\":\"/b\"},";
    AUTO_FREE char *fits =
        padded("\"extra_mounts\":[", mount, 255, "{\"host_path\":\"/a\",\"mount_path\":\"/b\"}]");
    AUTO_FREE char *over =
        padded("\"extra_mounts\":[", mount, 256, "{\"host_path\":\"/a\",\"mount_path\":\"/b\"}]");
    AUTO(spec) struct spec *s = good(fits);
    assert_int_equal(s->n_extra_mounts, 256);
    bad(over, "extra_mounts", "Value error, extra_mounts must have at most 256 entries");
}

static void reports_tell_every_issue_in_order(void **state)
{
    AUTO(json) struct json *v = parse("{\"memory_mb\":3,\"workdir\":\"rel\",\"session_id\":\"s\"}");
    AUTO(spec) struct spec *s = NULL;
    AUTO_DONE(buf) struct buf out;
    struct report report;

    buf_init(&out, 4096);
    assert_true(spec_parse_report(v, &s, &report, NULL) < 0);
    assert_int_equal(report.n_total, 2);
    assert_int_equal(report_write(&report, "BoxSpec", &out), 0);
    assert_string_equal(
        buf_str(&out),
        "2 validation errors for BoxSpec\n"
        "workdir\n"
        "  Value error, workdir must be an absolute path inside the sandbox [type=value_error]\n"
        "memory_mb\n"
        "  Value error, memory_mb must be at least 32 [type=value_error]");
}

static void reports_of_the_whole_object_name_no_place(void **state)
{
    AUTO(json)
    struct json *v = parse("{\"session_id\":\"s\",\"host_path\":\"/a\",\"workdir\":\"/b\"}");
    AUTO(spec) struct spec *s = NULL;
    AUTO_DONE(buf) struct buf out;
    struct report report;

    buf_init(&out, 4096);
    assert_true(spec_parse_report(v, &s, &report, NULL) < 0);
    assert_int_equal(report_write(&report, "BoxSpec", &out), 0);
    assert_string_equal(buf_str(&out),
                        "1 validation error for BoxSpec\n"
                        "  Value error, workdir must stay under mount_path when host_path is "
                        "provided [type=value_error]");
}

/* Clients pick the kind of an error by words anywhere in its text. */
static void reports_hold_nothing_a_peer_could_forge_with(void **state)
{
    AUTO(json)
    struct json *v =
        parse("{\"session_id\":\"s\",\"env\":{\"BoxAdmissionError: x\\n\":1,\"\\u00e9\":2},"
              "\"network\":\"BoxAdmissionError: x\"}");
    AUTO(spec) struct spec *s = NULL;
    AUTO_DONE(buf) struct buf out;
    struct report report;

    buf_init(&out, 4096);
    assert_true(spec_parse_report(v, &s, &report, NULL) < 0);
    assert_string_equal(report.issues[1].where, "env.BoxAdmissionError??x?");
    assert_string_equal(report.issues[2].where, "env.??");
    assert_int_equal(report_write(&report, "BoxSpec", &out), 0);
    assert_null(strstr(buf_str(&out), "BoxAdmissionError:"));
}

static void reports_keep_the_first_issues_only(void **state)
{
    AUTO_FREE char *text = padded("\"extra_mounts\":[", "{},", 50, "{}]");
    AUTO(json) struct json *v = parse(text);
    AUTO(spec) struct spec *s = NULL;
    struct report report;

    assert_true(spec_parse_report(v, &s, &report, NULL) < 0);
    assert_int_equal(report.n_total, 102);
    assert_int_equal(report.n, REPORT_ISSUES_MAX);
    assert_string_equal(report.issues[7].where, "extra_mounts.3.mount_path");
}

static void specs_built_in_c_obey_the_same_rules(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    assert_true(spec_validate(s, &err) < 0);
    assert_string_equal(err.msg, "session_id: Field required");
    s->session_id = xstrdup(" x ");
    assert_int_equal(spec_validate(s, &err), 0);
    assert_string_equal(s->session_id, "x");

    free(s->workdir);
    s->workdir = NULL;
    free(s->mount_path);
    s->mount_path = xstrdup("/p");
    assert_int_equal(spec_validate(s, &err), 0);
    assert_string_equal(s->workdir, "/p");

    s->cpus = (double)NAN;
    assert_true(spec_validate(s, &err) < 0);
    assert_string_equal(err.msg, "cpus: Input should be a finite number");
    s->cpus = 0;
    assert_true(spec_validate(s, &err) < 0);
    assert_string_equal(err.msg, "cpus must be greater than 0");
    s->cpus = 1;

    s->n_extra_mounts = 1;
    s->extra_mounts = xnew(struct mount_spec);
    s->extra_mounts[0] = (struct mount_spec){
        .host_path = xstrdup("rel"), .mount_path = xstrdup("/b"), .mode = MOUNT_RO};
    assert_true(spec_validate(s, &err) < 0);
    assert_string_equal(err.msg, "host_path must be an absolute host path");
}

static void environments_built_in_c_obey_the_same_rules(void **state)
{
    static const struct {
        const char *first, *second, *message;
    } rows[] = {
        {"A=1", "B=", NULL},
        {"A=1", "AB=1", NULL},
        {"A=1", "=x", "env entries must be NAME=value"},
        {"A=1", "B", "env entries must be NAME=value"},
        {"A=1", "A=2", "env names must differ"},
        {"A=\xff", "B=", "env must be valid UTF-8"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO(spec) struct spec *s = spec_new();
        struct err err = {0};
        s->session_id = xstrdup("s");
        strv_add(&s->env, rows[i].first);
        strv_add(&s->env, rows[i].second);
        assert_int_equal(spec_validate(s, &err) < 0, rows[i].message != NULL);
        if (rows[i].message)
            assert_string_equal(err.msg, rows[i].message);
    }
}

static void ids_of_fronts_obey_the_grammar(void **state)
{
    static const char *const wrong[] = {"",    ".",  "..",       "../../x", "a/b", "%2e",
                                        "a\n", "-a", "\xc3\xa9", "a b",     NULL};
    struct err err = {0};

    assert_int_equal(spec_check_id("Chat-1_a", &err), 0);
    for (size_t i = 0; wrong[i]; i++) {
        assert_true(spec_check_id(wrong[i], &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

/* Every row can be documented and bounds what it takes. */
static void check_rows(const struct model *m)
{
    assert_true(m->n_fields <= MODEL_FIELDS_MAX);
    for (size_t i = 0; i < m->n_fields; i++) {
        const struct field *f = &m->fields[i];
        assert_non_null(f->name);
        assert_non_null(f->doc);
        if (f->kind != FIELD_BOOL && f->kind != FIELD_ENUM && f->kind != FIELD_TIME)
            assert_true(f->max > 0 && f->max < INT64_MAX);
        if (f->kind == FIELD_ENV || f->kind == FIELD_STRV)
            assert_true(f->max_bytes > 0);
        if (f->valid || (f->kind == FIELD_INT && f->min > INT64_MIN) || f->kind == FIELD_REAL)
            assert_non_null(f->rule);
    }
}

static void every_row_is_complete(void **state)
{
    assert_int_equal(spec_model.n_fields, SPEC_FIELD_MAX);
    check_rows(&spec_model);
    check_rows(&mount_spec_model);
    assert_string_equal(spec_model.fields[SPEC_READ_ONLY_ROOTFS].name, "read_only_rootfs");
}

static void schema_says_what_the_table_says(void **state)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    struct err err = {0};

    buf_init(&out, 1 << 16);
    jw_init(&w, &out);
    model_write_schema(&spec_model, &w);
    assert_int_equal(jw_end(&w), 0);
    AUTO(json) struct json *schema = NULL;
    assert_int_equal(json_parse(out.data, out.len, &schema, &err), 0);

    const struct json *properties = json_get(schema, "properties");
    assert_int_equal(json_len(properties), SPEC_FIELD_MAX);
    assert_string_equal(json_str(json_at(json_get(schema, "required"), 0)), "session_id");
    assert_int_equal(json_len(json_get(schema, "required")), 1);
    assert_null(json_get(schema, "additionalProperties"));
    const struct json *memory = json_get(properties, "memory_mb");
    assert_string_equal(json_str(json_get(memory, "type")), "integer");
    assert_int_equal(json_int(json_get(memory, "minimum")), 32);
    assert_int_equal(json_int(json_get(memory, "default")), 512);
    const struct json *mode = json_get(properties, "host_path_mode");
    assert_int_equal(json_len(json_get(mode, "enum")), 3);
    assert_string_equal(json_str(json_get(mode, "default")), "rw");
    const struct json *mount = json_get(json_get(properties, "extra_mounts"), "items");
    assert_int_equal(json_len(json_get(mount, "properties")), 5);
    assert_string_equal(json_str(json_at(json_get(json_get(properties, "host_path"), "type"), 1)),
                        "null");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_wire),
        cmocka_unit_test(every_field_is_read),
        cmocka_unit_test(mounts_may_be_content_addressed),
        cmocka_unit_test(canonical_form_is_complete_and_stable),
        cmocka_unit_test(strings_are_trimmed_and_numbers_coerced),
        cmocka_unit_test(wrong_values_are_refused_in_the_words_clients_know),
        cmocka_unit_test(session_id_is_required),
        cmocka_unit_test(what_is_no_object_is_no_spec),
        cmocka_unit_test(workdir_follows_the_mount_path),
        cmocka_unit_test(test_row_T32_box_spec_validates_resource_limits),
        cmocka_unit_test(test_row_T47_none_mode_is_valid_enum),
        cmocka_unit_test(test_row_T48_row_F17_none_mode_skips_workdir_check),
        cmocka_unit_test(test_row_F16_none_mode_keeps_host_path_unmounted),
        cmocka_unit_test(test_row_T49_rw_mode_requires_workspace_workdir),
        cmocka_unit_test(test_row_T50_ro_mode_requires_workspace_workdir),
        cmocka_unit_test(test_row_T51_custom_mount_path_allows_matching_workdir),
        cmocka_unit_test(test_row_T52_custom_mount_path_rejects_outside_workdir),
        cmocka_unit_test(workdir_is_free_without_a_host_path),
        cmocka_unit_test(skill_names_are_letters_of_any_script),
        cmocka_unit_test(blank_skill_name_is_none),
        cmocka_unit_test(long_strings_are_refused_with_the_limit),
        cmocka_unit_test(large_environments_are_refused_with_the_limit),
        cmocka_unit_test(many_mounts_are_refused_with_the_limit),
        cmocka_unit_test(reports_tell_every_issue_in_order),
        cmocka_unit_test(reports_of_the_whole_object_name_no_place),
        cmocka_unit_test(reports_hold_nothing_a_peer_could_forge_with),
        cmocka_unit_test(reports_keep_the_first_issues_only),
        cmocka_unit_test(specs_built_in_c_obey_the_same_rules),
        cmocka_unit_test(environments_built_in_c_obey_the_same_rules),
        cmocka_unit_test(ids_of_fronts_obey_the_grammar),
        cmocka_unit_test(every_row_is_complete),
        cmocka_unit_test(schema_says_what_the_table_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
