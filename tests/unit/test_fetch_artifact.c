/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch_fixture.h"

#include <errno.h>

#include "base/alloc.h"
/* The parser of manifests is private to the operations. */
#include "fetch/artifact.c"

/* The digests were computed by langbot-plugin 0.7.18 itself (build_tree_manifest). */
#define EMPTY "{\"algorithm\":\"sha256-tree-v1\",\"files\":[],\"total_bytes\":0}"
#define EMPTY_DIGEST "8e00d1a31787e59c19fc53875e374237e940789d1de2f1bee5273985a41f4e79"
#define NOTHING_SHA "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SKILL                                                                                      \
    "{\"algorithm\": \"sha256-tree-v1\", \"files\": ["                                             \
    "{\"path\": \"SKILL.md\", \"size\": 10, \"sha256\": "                                          \
    "\"8ef0b048ad51a9d2ccaf9177716d7c83159a1d8c22fd37aa2b7d03c11b21b40d\", \"executable\": "       \
    "false}, "                                                                                     \
    "{\"path\": \"a/b/\\u65e5\\u672c\", \"size\": 1000, \"sha256\": "                              \
    "\"44f8354494a5ba03ba1792a8d3e9c534c47a9181980fde7a3f44b06ef2ae7c7f\", \"executable\": "       \
    "false}, "                                                                                     \
    "{\"path\": \"scripts/run.sh\", \"size\": 19, \"sha256\": "                                    \
    "\"e23628ed42e31358d7234aac753c38be5a80846413438c57305799b91760056f\", \"executable\": "       \
    "true}, "                                                                                      \
    "{\"path\": \"scripts/\\u00e9t\\u00e9 \\\"q\\\" \\t\\u0001\\u007f.txt\", \"size\": 0, "        \
    "\"sha256\": \"" NOTHING_SHA "\", \"executable\": false}], \"total_bytes\": 1029}"
#define SKILL_DIGEST "f7799e40da46ed860470724aee6b0f69d94d8b0b35f503e00227c0e80b370583"

static void digests_are_upstreams(void **state)
{
    static const struct {
        const char *text, *digest;
    } cases[] = {{EMPTY, EMPTY_DIGEST}, {SKILL, SKILL_DIGEST}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_DONE(manifest) struct manifest m = {0};
        struct err err = {0};
        if (manifest_parse(cases[i].text, strlen(cases[i].text), &m, &err) < 0)
            fail_msg("%s", err.msg);
        assert_string_equal(m.digest, cases[i].digest);
    }
}

#define FILE_OF(path, size, sha, executable)                                                       \
    "{\"path\":" path ",\"size\":" size ",\"sha256\":" sha ",\"executable\":" executable "}"
#define LIST_OF(files, total)                                                                      \
    "{\"algorithm\":\"sha256-tree-v1\",\"files\":[" files "],\"total_bytes\":" total "}"
#define SHA "\"" NOTHING_SHA "\""
#define ONE(path) LIST_OF(FILE_OF(path, "0", SHA, "false"), "0")
#define NAME_64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

/* clang-format off */
static const struct {
    const char *text, *why;
} bad[] = {
    {"", "is invalid JSON"},
    {"{", "is invalid JSON"},
    {"{\"algorithm\":\"sha256-tree-v1\",\"algorithm\":\"x\",\"files\":[],\"total_bytes\":0}", "is invalid JSON"},
    {"[]", "has an invalid shape"},
    {"{}", "has an invalid shape"},
    {"{\"algorithm\":\"sha256-tree-v1\",\"files\":[],\"total_bytes\":0,\"more\":0}", "has an invalid shape"},
    {"{\"algorithm\":\"sha256-tree-v2\",\"files\":[],\"total_bytes\":0}", "uses an unsupported algorithm"},
    {"{\"algorithm\":\"sha256-tree-v1\",\"files\":{},\"total_bytes\":0}", "contains too many files"},
    {LIST_OF("1", "0"), "contains an invalid file entry"},
    {LIST_OF("{\"path\":\"a\"}", "0"), "contains an invalid file entry"},
    {ONE("5"), "contains an unsafe path"},
    {ONE("\"\""), "contains an unsafe path"},
    {ONE("\"/a\""), "contains an unsafe path"},
    {ONE("\".\""), "contains an unsafe path"},
    {ONE("\"..\""), "contains an unsafe path"},
    {ONE("\"../a\""), "contains an unsafe path"},
    {ONE("\"a/../b\""), "contains an unsafe path"},
    {ONE("\"a//b\""), "contains an unsafe path"},
    {ONE("\"a/./b\""), "contains an unsafe path"},
    {ONE("\"a/\""), "contains an unsafe path"},
    {ONE("\"a\\\\b\""), "contains an unsafe path"},
    {ONE("\"a\\u0000b\""), "contains an unsafe path"},
    {ONE("\"" NAME_64 NAME_64 NAME_64 NAME_64 "\""), "contains an unsafe path"},
    {LIST_OF(FILE_OF("\"a\"", "0", SHA, "true") "," FILE_OF("\"b\"", "0", SHA, "true") "," FILE_OF("\"a\"", "0", SHA, "true"), "0"),
     "contains an unsafe path"},
    {LIST_OF(FILE_OF("\"a\"", "-1", SHA, "true"), "-1"), "contains an invalid file size"},
    {LIST_OF(FILE_OF("\"a\"", "true", SHA, "true"), "1"), "contains an invalid file size"},
    {LIST_OF(FILE_OF("\"a\"", "1.0", SHA, "true"), "1"), "contains an invalid file size"},
    {LIST_OF(FILE_OF("\"a\"", "0", "\"00\"", "true"), "0"), "contains an invalid file digest"},
    {LIST_OF(FILE_OF("\"a\"", "0", "\"E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855\"", "true"), "0"),
     "contains an invalid file digest"},
    {LIST_OF(FILE_OF("\"a\"", "0", SHA, "1"), "0"), "contains an invalid file mode"},
    {LIST_OF(FILE_OF("\"a\"", "1", SHA, "true"), "2"), "contains an invalid total size"},
    {LIST_OF(FILE_OF("\"a\"", "1", SHA, "true"), "1.0"), "contains an invalid total size"},
    {LIST_OF(FILE_OF("\"a\"", "268435457", SHA, "true"), "268435457"), "contains an invalid total size"},
    {LIST_OF(FILE_OF("\"a\"", "9223372036854775807", SHA, "true") "," FILE_OF("\"b\"", "9223372036854775807", SHA, "true") ","
             FILE_OF("\"c\"", "2", SHA, "true"), "0"), "contains an invalid total size"},
};
/* clang-format on */

static void bad_manifests_are_refused(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct manifest m = {0};
        struct err err = {0};
        char want[120];
        (void)snprintf(want, sizeof(want), "Artifact manifest %s", bad[i].why);
        if (manifest_parse(bad[i].text, strlen(bad[i].text), &m, &err) == 0)
            fail_msg("taken: %s", bad[i].text);
        assert_string_equal(err.msg, want);
    }
}

/* One entry more than there may be, and directories one deeper. */
static void manifests_have_an_end(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct manifest m = {0};
    struct err err = {0};
    buf_init(&text, MANIFEST_TEXT_MAX + 1);
    assert_int_equal(
        buf_puts(&text, "{\"algorithm\":\"sha256-tree-v1\",\"total_bytes\":0,\"files\":["), 0);
    for (unsigned i = 0; i <= MANIFEST_FILES_MAX; i++)
        assert_int_equal(
            buf_printf(&text, "%s" FILE_OF("\"f%u\"", "0", SHA, "true"), i > 0 ? "," : "", i), 0);
    assert_int_equal(buf_puts(&text, "]}"), 0);
    assert_true(manifest_parse(text.data, text.len, &m, &err) < 0);
    assert_string_equal(err.msg, "Artifact manifest contains too many files");
    buf_reset(&text);
    assert_int_equal(
        buf_puts(&text,
                 "{\"algorithm\":\"sha256-tree-v1\",\"total_bytes\":0,\"files\":[{\"path\":\""),
        0);
    for (unsigned i = 0; i < MANIFEST_DEPTH_MAX; i++)
        assert_int_equal(buf_puts(&text, "d/"), 0);
    assert_int_equal(buf_puts(&text, "f\",\"size\":0,\"sha256\":" SHA ",\"executable\":true}]}"),
                     0);
    assert_true(manifest_parse(text.data, text.len, &m, &err) < 0);
    assert_string_equal(err.msg, "Artifact manifest contains an unsafe path");
}

/* Copies ------------------------------------------------------------------------------------- */

static void put_skill(void)
{
    char body[1000];
    memset(body, 'x', sizeof(body));
    put_text("source/SKILL.md", "# Example\n");
    put_text("source/scripts/run.sh", "#!/bin/sh\necho ran\n");
    put_text("source/scripts/\u00e9t\u00e9 \"q\" \t\x01\x7f.txt", "");
    put("source/a/b/\u65e5\u672c", body, sizeof(body));
}

/* The job that adds the artifact of this digest from "source" to "cache", which is its directory.
 */
static const char *add(const char *manifest, const char *digest)
{
    char data[128];
    put_text("manifest.json", manifest);
    (void)mkdirat(it.fd, "source", 0755);
    (void)mkdirat(it.fd, "cache", 0755);
    int whole = it.fd;
    AUTO_CLOSE int cache = openat(whole, "cache", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int dir = openat(whole, "source", O_PATH | O_DIRECTORY | O_CLOEXEC);
    AUTO_CLOSE int file = openat(whole, "manifest.json", O_RDONLY | O_CLOEXEC);
    const struct fetch_source source = {dir, file};
    (void)snprintf(data, sizeof(data), "{\"content_digest\":\"sha256:%s\"}", digest);
    it.source = &source;
    it.fd = cache;
    bool done = job("add_artifact", data) != NULL;
    it.fd = whole;
    it.source = NULL;
    return done ? NULL : json_str(json_get(it.answer, "error"));
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(fstatat(it.fd, path, &st, AT_SYMLINK_NOFOLLOW), 0);
    return st.st_mode & 07777;
}

static bool cache_is_clean(void)
{
    AUTO_CLOSE int fd = openat(it.fd, "cache", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    return st.st_nlink <= 3; /* itself, its name, and the tree */
}

#define PLACE "cache/tree/" SKILL_DIGEST

static void what_is_right_is_copied(void **state)
{
    put_skill();
    put_text("source/not-listed", "x");
    assert_null(add(SKILL, SKILL_DIGEST));
    assert_int_equal(mode_of(PLACE "/SKILL.md"), 0444);
    assert_int_equal(mode_of(PLACE "/scripts/run.sh"), 0555);
    assert_int_equal(mode_of(PLACE), 0755);
    assert_true(there(PLACE "/a/b/\u65e5\u672c"));
    assert_false(there(PLACE "/not-listed"));
    assert_true(cache_is_clean());
    /* What is there is not made again, whatever has become of the source. */
    put_text("source/SKILL.md", "# Another\n");
    assert_null(add(SKILL, SKILL_DIGEST));
    /* But the manifest has to be the right one still. */
    assert_string_equal(add(EMPTY, SKILL_DIGEST),
                        "Artifact manifest does not match content_digest");
    assert_null(add(EMPTY, EMPTY_DIGEST));
    assert_true(there("cache/tree/" EMPTY_DIGEST));
}

static void refused(const char *why)
{
    const char *said = add(SKILL, SKILL_DIGEST);
    if (said == NULL)
        fail_msg("taken, instead of: %s", why);
    assert_string_equal(said, why);
    assert_false(there(PLACE));
    assert_true(cache_is_clean());
}

static void what_differs_is_refused(void **state)
{
    put_skill();
    put_text("source/SKILL.md", "# Exampl!\n"); /* as long */
    refused("Artifact source changed: SKILL.md");
    put_text("source/SKILL.md", "# Example\n\n");
    refused("Artifact source changed: SKILL.md");
    put_text("source/SKILL.md", "# Example");
    refused("Artifact source changed: SKILL.md");
    put_text("source/SKILL.md", "# Example\n");
    assert_int_equal(unlinkat(it.fd, "source/scripts/run.sh", 0), 0);
    refused("Artifact source cannot be read: scripts/run.sh: No such file or directory");
}

/* Whoever can write to the source cannot make the job read anything else. */
static void hostile_trees_are_refused(void **state)
{
    put_skill();
    put_text("outside", "# Example\n");
    assert_int_equal(unlinkat(it.fd, "source/SKILL.md", 0), 0);
    assert_int_equal(symlinkat("../outside", it.fd, "source/SKILL.md"), 0);
    refused("Artifact source cannot be read: SKILL.md: Too many levels of symbolic links");
    assert_int_equal(unlinkat(it.fd, "source/SKILL.md", 0), 0);
    assert_int_equal(mkfifoat(it.fd, "source/SKILL.md", 0644), 0);
    refused("Artifact source must be a regular file: SKILL.md");
    assert_int_equal(unlinkat(it.fd, "source/SKILL.md", 0), 0);
    assert_int_equal(mkdirat(it.fd, "source/SKILL.md", 0755), 0);
    refused("Artifact source must be a regular file: SKILL.md");
    assert_int_equal(unlinkat(it.fd, "source/SKILL.md", AT_REMOVEDIR), 0);
    put_text("source/SKILL.md", "# Example\n");
    assert_int_equal(renameat(it.fd, "source/a", it.fd, "real-a"), 0);
    assert_int_equal(symlinkat("../real-a", it.fd, "source/a"), 0);
    refused("Artifact source cannot be read: a/b/\u65e5\u672c: Too many levels of symbolic links");
}

static void manifests_are_files(void **state)
{
    const struct fetch_source nothing = {it.fd, it.fd}; /* a directory */
    it.source = &nothing;
    job_fails("add_artifact", "{\"content_digest\":\"sha256:" SKILL_DIGEST "\"}",
              "Artifact manifest is not a regular file");
    it.source = NULL;
    job_fails("add_artifact", "{\"content_digest\":\"sha256:" SKILL_DIGEST "\"}",
              "malformed request");
    it.source = &nothing;
    job_fails("add_artifact", "{\"content_digest\":\"sha256:../../../etc\"}", "malformed request");
    job_fails("add_artifact", "{}", "malformed request");
    it.source = NULL;
}

/* A job that was killed in the middle leaves what the next one takes away. */
static void a_crash_leaves_a_usable_cache(void **state)
{
    put_skill();
    put_text("cache/.tmp-0123456789abcdef/tree/SKILL.md", "half");
    assert_null(add(SKILL, SKILL_DIGEST));
    assert_true(there(PLACE "/SKILL.md"));
    assert_true(cache_is_clean());
}

static void a_session_has_so_much_and_no_more(void **state)
{
    char name[96];
    for (unsigned i = 0; i < 256; i++) {
        (void)snprintf(name, sizeof(name), "cache/tree/%064x/f", i);
        put_text(name, "");
    }
    put_skill();
    assert_string_equal(add(SKILL, SKILL_DIGEST),
                        "Immutable artifact cache limit reached; acquire a new Box");
    assert_int_equal(path_remove_tree_at(it.fd, "cache/tree"), 0);
    put_text("cache/tree/a/f", "");
    AUTO_CLOSE int fd = openat(it.fd, "cache/tree/a/f", O_WRONLY | O_CLOEXEC);
    assert_int_equal(ftruncate(fd, FETCH_ARTIFACTS_MAX - 1000), 0);
    assert_string_equal(add(SKILL, SKILL_DIGEST),
                        "Immutable artifact cache limit reached; acquire a new Box");
    assert_int_equal(ftruncate(fd, 1000), 0);
    assert_null(add(SKILL, SKILL_DIGEST));
}

static void what_nobody_refers_to_goes(void **state)
{
    (void)job_works("make_artifacts", "{}");
    assert_true(there("tree"));
    put_text("0123456789abcdef/tree/x/f", "");
    put_text("fedcba9876543210/tree/x/f", "");
    put_text("somebody-elses/f", "");
    job_fails("sweep_artifacts", "{}", "malformed request");
    (void)job_works("sweep_artifacts", "{\"keep\":[\"0123456789abcdef\"]}");
    assert_true(there("0123456789abcdef/tree/x/f"));
    assert_false(there("fedcba9876543210"));
    assert_true(there("somebody-elses/f"));
}

int main(void)
{
#define IN_A_STORE(f) cmocka_unit_test_setup_teardown(f, store_start, store_stop)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_upstreams),
        cmocka_unit_test(bad_manifests_are_refused),
        cmocka_unit_test(manifests_have_an_end),
        IN_A_STORE(what_is_right_is_copied),
        IN_A_STORE(what_differs_is_refused),
        IN_A_STORE(hostile_trees_are_refused),
        IN_A_STORE(manifests_are_files),
        IN_A_STORE(a_crash_leaves_a_usable_cache),
        IN_A_STORE(a_session_has_so_much_and_no_more),
        IN_A_STORE(what_nobody_refers_to_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
