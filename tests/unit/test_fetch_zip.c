/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch_fixture.h"

#include "base/alloc.h"
#include "fetch/zipdir.h"

#include <errno.h>

#define SKILL "---\nname: demo\n---\nDo it."
#define SAME "aaaaaaaaaaaaaaaaaaaa"
#define INVALID "Uploaded file must be a valid .zip archive"

static void refused(const char *sentence)
{
    zip_end();
    job_fails("install_zip", "{\"filename\":\"x.zip\"}", sentence);
    assert_int_equal(path_remove_tree_at(it.fd, "x-upload"), 0);
    assert_false(there("SKILL.md"));
    zip_start();
    zip_file("SKILL.md", SKILL, (struct zip_lie){0});
}

static void begin(void)
{
    zip_start();
    zip_file("SKILL.md", SKILL, (struct zip_lie){0});
}

static void a_good_archive_is_installed(void **state)
{
    begin();
    zip_file("bin/run", "#!/bin/sh\n", (struct zip_lie){.mode = 0100755});
    zip_file("text", SAME, (struct zip_lie){.deflate = true});
    zip_file("dir/", "", (struct zip_lie){0});
    zip_file("\x80z\x81\xff", "", (struct zip_lie){.flags = ZIPDIR_UTF8}); /* code page 437 */
    zip_end();
    job_works("preview_zip", "{\"filename\":\"x.zip\"}");
    assert_false(there("x-upload"));
    const struct json *skills =
        json_get(job_works("install_zip", "{\"filename\":\"x.zip\"}"), "skills");
    assert_int_equal(json_len(skills), 1);
    assert_string_equal(json_str(json_get(json_at(skills, 0), "name")), "demo");
    struct stat st;
    assert_int_equal(fstatat(it.fd, "x-upload/bin/run", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    assert_true(there("x-upload/dir"));
    assert_true(there("x-upload/Çzü\u00a0"));
    job_fails("install_zip", "{\"filename\":\"x.zip\"}",
              "Skill directory already exists: " CALLED "/x-upload");
}

static void paths_that_leave_are_refused(void **state)
{
    static const char *const names[] = {"/abs",  "../up", "a/../../b", "..",   ".",
                                        "C:\\x", "c:y",   "\\x",       "..\\z"};
    begin();
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char sentence[128];
        zip_file(names[i], "", (struct zip_lie){0});
        (void)snprintf(sentence, sizeof(sentence), "Archive contains an unsafe path: %s", names[i]);
        refused(sentence);
    }
    zip_add("a\0b", 3, "", 0, (struct zip_lie){0});
    refused("Archive contains an unsafe empty or NUL path");
    zip_add("", 0, "", 0, (struct zip_lie){0});
    refused("Archive contains an unsafe empty or NUL path");
    buf_done(&made.central);
}

static void every_rule_has_its_sentence(void **state)
{
    begin();
    zip_file("./SKILL.md", "", (struct zip_lie){0});
    refused("Archive contains a duplicate path: ./SKILL.md");
    zip_file("SKILL.md/x", "", (struct zip_lie){0});
    refused("Archive contains a duplicate path: SKILL.md/x");
    zip_file("l", "/etc", (struct zip_lie){.mode = 0120777});
    refused("Archive contains a symbolic link: l");
    zip_file("p", "", (struct zip_lie){.mode = 0010644});
    refused("Archive contains a non-regular entry: p");
    zip_file("d/", "x", (struct zip_lie){0});
    refused("Archive directory has unexpected content: d/");
    zip_file("f", "x", (struct zip_lie){.size = (16U << 20) + 1});
    refused("Archive entry exceeds the uncompressed size limit: f");
    zip_file("f", "x", (struct zip_lie){.size = 101});
    refused("Archive entry exceeds the compression ratio limit: f");
    zip_file("f", "", (struct zip_lie){.size = 1});
    refused("Archive entry exceeds the compression ratio limit: f");
    zip_file("f", "x", (struct zip_lie){.flags = 1});
    refused("Archive entry is encrypted: f");
    zip_file("f", "x", (struct zip_lie){.method = 12});
    refused("Archive entry uses an unsupported compression method: f");
    zip_file("f", "xx", (struct zip_lie){.size = 1, .compressed = 2});
    refused("Archive entry size changed while extracting: f");
    zip_file("f", SAME, (struct zip_lie){.deflate = true, .size = sizeof(SAME) - 2});
    refused("Archive entry size changed while extracting: f");
    zip_file("f", SAME, (struct zip_lie){.deflate = true, .size = sizeof(SAME)});
    refused("Archive entry size changed while extracting: f");
    zip_file("f", SAME, (struct zip_lie){.deflate = true, .compressed = 2});
    refused("Archive entry size changed while extracting: f");
    zip_file("f", "\x07", (struct zip_lie){.method = ZIPDIR_DEFLATED}); /* no such kind of block */
    refused(INVALID);
    static const char behind[] = "\xab\0\0zz"; /* the stream of "x", and more */
    zip_add("f", 1, behind, 5, (struct zip_lie){.method = 8, .size = 1, .crc = 0x8cdc1683});
    refused(INVALID);
    zip_file("f", "x", (struct zip_lie){.crc = 1});
    refused(INVALID);
    zip_file("f", SAME, (struct zip_lie){.deflate = true, .crc = 1});
    refused(INVALID);
    zip_file("f", "x", (struct zip_lie){.local_name = "g"});
    refused(INVALID);
    zip_file("f", "x", (struct zip_lie){.offset = 1});
    refused(INVALID);
    buf_done(&made.central);
}

static void totals_are_counted(void **state)
{
    AUTO_FREE char *data = calloc(1, 15U << 20);
    begin();
    /* Noise enough to keep the ratio, so that nothing but the sum is wrong. */
    uint64_t noise = 1;
    for (size_t i = 0; i < 450000; i++) {
        noise = noise * 6364136223846793005ULL + 1442695040888963407ULL;
        data[i] = (char)(noise >> 56);
    }
    for (char name[] = "a"; *name < 'f'; (*name)++)
        zip_add(name, 1, data, 15U << 20, (struct zip_lie){.deflate = true});
    refused("Archive exceeds the total uncompressed size limit");
    buf_done(&made.central);
}

static void too_many_entries(void **state)
{
    begin();
    for (unsigned i = 0; i < 512; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "f%u", i);
        zip_file(name, "", (struct zip_lie){0});
    }
    refused("Archive contains too many entries (maximum 512)");
    buf_done(&made.central);
}

static void what_is_no_archive(void **state)
{
    buf_reset(&it.zip);
    job_fails("preview_zip", "{}", "Uploaded file is empty");
    assert_int_equal(buf_puts(&it.zip, "PK\5\6 and so on, for a while"), 0);
    job_fails("preview_zip", "{}", INVALID);
    begin();
    zip_end();
    assert_int_equal(buf_putc(&it.zip, 'x'), 0);
    job_fails("preview_zip", "{}", INVALID);
    buf_reset(&it.zip);
    assert_int_equal(buf_reserve(&it.zip, FETCH_ZIP_MAX + 1), 0);
    memset(it.zip.data, 0, FETCH_ZIP_MAX + 1);
    it.zip.len = FETCH_ZIP_MAX + 1;
    job_fails("preview_zip", "{}",
              "Uploaded archive exceeds the compressed size limit (20971520 bytes)");
}

/* Cut and changed at every byte: refused or understood, and never more than the bytes there are. */
static void no_byte_is_read_beyond_the_end(void **state)
{
    begin();
    zip_file("f", "content", (struct zip_lie){0});
    zip_end();
    for (size_t len = 0; len <= it.zip.len; len++) {
        AUTO_FREE uint8_t *exact = xcalloc(1, len > 0 ? len : 1);
        AUTO_DONE(zipdir) struct zipdir dir = {0};
        memcpy(exact, it.zip.data, len);
        int r = zipdir_read(exact, len, 512, &dir);
        assert_int_equal(r, len == it.zip.len ? 0 : -EINVAL);
    }
    for (size_t at = 0; at < it.zip.len; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            AUTO_DONE(zipdir) struct zipdir dir = {0};
            AUTO_FREE uint8_t *exact = xcalloc(1, it.zip.len);
            memcpy(exact, it.zip.data, it.zip.len);
            exact[at] ^= (uint8_t)(1U << bit);
            if (zipdir_read(exact, it.zip.len, 512, &dir) < 0)
                continue;
            for (size_t i = 0; i < dir.n; i++)
                assert_true(dir.entries[i].end <= it.zip.len);
        }
}

static void choices_and_their_sentences(void **state)
{
    zip_start();
    zip_file("a/x/SKILL.md", SKILL, (struct zip_lie){0});
    zip_file("b/x/SKILL.md", "---\nname: two\n---\n", (struct zip_lie){0});
    zip_end();
    job_fails("install_zip", "{}",
              "Multiple skills found. Please choose one or more source_paths: a/x, b/x");
    job_fails("install_zip", "{\"source_path\":\"c\"}",
              "Invalid source_path \"c\". Available: a/x, b/x");
    job_fails("install_zip", "{\"source_paths\":[\"a/x\",\"b/x\"],\"filename\":\"x.zip\"}",
              "Duplicate target directory selected: " CALLED "/x-upload");
    job_fails("install_zip", "{\"source_subdir\":\"../x\"}",
              "source_subdir must stay within the uploaded archive");
    job_fails("install_zip", "{\"source_subdir\":\"c\"}",
              "source_subdir does not exist in the uploaded archive: c");
    job_fails("install_zip", "{\"source_path\":\"a/x\",\"target_suffix\":\"/../x\"}",
              "Invalid target directory name: skill-x-/../x");
    const struct json *done =
        job_works("install_zip", "{\"source_subdir\":\"/a\\\\\",\"target_suffix\":\"\"}");
    assert_int_equal(json_len(json_get(done, "skills")), 1);
    assert_true(there("skill-x/SKILL.md"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_good_archive_is_installed, store_start, store_stop),
        cmocka_unit_test_setup_teardown(paths_that_leave_are_refused, store_start, store_stop),
        cmocka_unit_test_setup_teardown(every_rule_has_its_sentence, store_start, store_stop),
        cmocka_unit_test_setup_teardown(totals_are_counted, store_start, store_stop),
        cmocka_unit_test_setup_teardown(too_many_entries, store_start, store_stop),
        cmocka_unit_test_setup_teardown(what_is_no_archive, store_start, store_stop),
        cmocka_unit_test_setup_teardown(no_byte_is_read_beyond_the_end, store_start, store_stop),
        cmocka_unit_test_setup_teardown(choices_and_their_sentences, store_start, store_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
