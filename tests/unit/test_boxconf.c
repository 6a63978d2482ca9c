/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "core/boxconf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/alloc.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/json.h"
#include "util/path.h"
#include "util/str.h"
#include "util/strv.h"

#define PROBE ".langbot-box-volume-probe-0123456789abcdef0123456789abcdef"

static char dir[4096];

static int make_dir(void **state)
{
    char temp[] = "/tmp/box-conf-XXXXXX";
    (void)state;
    return mkdtemp(temp) == NULL || realpath(temp, dir) == NULL || chdir(dir) < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return chdir("/") < 0 ? -1 : path_remove_tree_at(AT_FDCWD, dir);
}

static int limits(const char *text, struct box_limits *ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;
    *err = (struct err){0};
    *ret = box_limits_default;
    assert_int_equal(json_parse(text, strlen(text), &v, err), 0);
    return box_limits_parse(v, ret, err);
}

static void limits_are_taken_or_left(void **state)
{
    static const char *const nothing[] = {"null", "{}", "[]", "\"\"", "0", "false"};
    struct box_limits l;
    struct err err;
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(nothing); i++) {
        assert_int_equal(limits(nothing[i], &l, &err), 0);
        assert_memory_equal(&l, &box_limits_default, sizeof(l));
    }
    assert_int_equal(
        limits("{\"max_sessions\":5000,\"max_rpc_file_bytes\":1,\"other\":true}", &l, &err), 0);
    assert_int_equal(l.max_sessions, 5000);
    assert_int_equal(l.max_rpc_file_bytes, 1);
    assert_int_equal(l.max_managed_processes, 64);
}

static void limits_that_are_wrong_change_nothing(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[1]", "box.limits must be an object"},
        {"\"x\"", "box.limits must be an object"},
        {"{\"max_sessions\":1,\"max_managed_processes\":true}",
         "box.limits.max_managed_processes must be an integer"},
        {"{\"max_sessions\":1.0}", "box.limits.max_sessions must be an integer"},
        {"{\"max_sessions\":null}", "box.limits.max_sessions must be an integer"},
        {"{\"max_sessions\":-1}", "box.limits.max_sessions must be between 0 and 5000"},
        {"{\"max_sessions\":5001}", "box.limits.max_sessions must be between 0 and 5000"},
        {"{\"max_managed_processes\":1025}",
         "box.limits.max_managed_processes must be between 0 and 1024"},
        {"{\"max_completed_processes\":10001}",
         "box.limits.max_completed_processes must be between 0 and 10000"},
        {"{\"max_admission_records\":0}",
         "box.limits.max_admission_records must be between 1 and 250000"},
        {"{\"max_rpc_file_bytes\":104857601}",
         "box.limits.max_rpc_file_bytes must be between 1 and 104857600"},
        {"{\"completed_process_retention_sec\":86401}",
         "box.limits.completed_process_retention_sec must be between 0 and 86400"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct box_limits l;
        struct err err;
        assert_true(limits(cases[i].text, &l, &err) < 0);
        assert_string_equal(err.msg, cases[i].message);
        assert_memory_equal(&l, &box_limits_default, sizeof(l));
    }
}

static void paths(const char *text, struct box_paths *ret)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    assert_int_equal(box_paths_parse(v, ret, &err), 0);
}

static void check_path(const char *got, const char *below)
{
    AUTO_FREE char *want = xasprintf("%s/%s", dir, below);
    assert_non_null(got);
    assert_string_equal(got, want);
}

static void directories_follow_the_root(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    (void)state;
    paths("{}", &p);
    assert_null(p.host_root);
    assert_null(p.default_workspace);
    assert_null(p.mount_roots);
    check_path(p.skills_root, "data/box/skills");
    box_paths_done(&p);
    paths("{\"host_root\":\"./root\",\"default_workspace\":\"\",\"skills_root\":\"\"}", &p);
    check_path(p.host_root, "root");
    check_path(p.default_workspace, "root/default");
    check_path(p.skills_root, "root/skills");
    assert_int_equal(strv_len(p.mount_roots), 1);
    check_path(p.mount_roots[0], "root");
    box_paths_done(&p);
    paths("{\"host_root\":\"root\",\"default_workspace\":\"w/../v//x/.\",\"skills_root\":\"/s\","
          "\"allowed_mount_roots\":[\"./root\",\" /tmp \",\"\"]}",
          &p);
    check_path(p.default_workspace, "root/v/x");
    assert_string_equal(p.skills_root, "/s");
    assert_int_equal(strv_len(p.mount_roots), 2);
    assert_string_equal(p.mount_roots[1], "/tmp");
    box_paths_done(&p);
    paths("{\"allowed_mount_roots\":\"a, b ,\"}", &p);
    assert_int_equal(strv_len(p.mount_roots), 2);
    check_path(p.mount_roots[1], "b");
}

static void links_are_resolved(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    (void)state;
    assert_int_equal(mkdir("real", 0755), 0);
    assert_int_equal(symlink("real", "link"), 0);
    paths("{\"host_root\":\"link\",\"default_workspace\":\"new/deep\"}", &p);
    check_path(p.host_root, "real");
    check_path(p.default_workspace, "real/new/deep");
}

static void the_workspace_is_made_below_the_roots_only(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    struct err err = {0};
    struct stat st;
    (void)state;
    assert_int_equal(box_paths_ensure_workspace(&p, &err), 0); /* none is wanted */
    paths("{\"host_root\":\"made\"}", &p);
    assert_int_equal(box_paths_ensure_workspace(&p, &err), 0);
    assert_int_equal(stat("made/default", &st), 0);
    assert_int_equal(box_paths_ensure_workspace(&p, &err), 0);
    box_paths_done(&p);
    paths("{\"default_workspace\":\"nowhere\"}", &p);
    assert_true(box_paths_ensure_workspace(&p, &err) < 0);
    assert_string_equal(err.msg, "box.local.default_workspace cannot be created because no "
                                 "allowed_mount_roots are configured");
    box_paths_done(&p);
    paths("{\"default_workspace\":\"made2\",\"allowed_mount_roots\":[\"made\",\"mad\"]}", &p);
    assert_true(box_paths_ensure_workspace(&p, &err) < 0);
    AUTO_FREE char *message = xasprintf(
        "box.local.default_workspace is outside allowed_mount_roots: %s/made, %s/mad", dir, dir);
    assert_string_equal(err.msg, message);
    assert_true(stat("made2", &st) < 0);
}

static void a_file_is_no_workspace(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    struct err err = {0};
    AUTO_CLOSE int fd = open("file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)state;
    assert_true(fd >= 0);
    paths("{\"host_root\":\".\",\"default_workspace\":\"file\"}", &p);
    assert_true(box_paths_ensure_workspace(&p, &err) < 0);
    assert_string_equal(err.msg, "box.local.default_workspace must point to a directory on the Box "
                                 "runtime host");
    box_paths_done(&p);
    /* What cannot be made says for whom. */
    paths("{\"host_root\":\".\",\"default_workspace\":\"file/below\"}", &p);
    assert_true(box_paths_ensure_workspace(&p, &err) < 0);
    assert_non_null(strstr(err.msg, "cannot be created: Not a directory. boxd runs as user '"));
    assert_non_null(strstr(err.msg, "install -d -o "));
}

static void managed_sandboxes_need_a_workspace(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    AUTO_FREE char *tenant = NULL;
    const char *root = NULL;
    struct err err = {0};
    struct stat st;
    (void)state;
    assert_true(box_paths_managed_root(&p, &root, &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    assert_string_equal(err.msg, "Managed sandbox admission requires box.local.default_workspace");
    paths("{\"host_root\":\"m\",\"allowed_mount_roots\":\"other\"}", &p);
    assert_true(box_paths_managed_root(&p, &root, &err) < 0);
    assert_string_equal(err.msg,
                        "Managed sandbox workspace is outside box.local.allowed_mount_roots");
    box_paths_done(&p);
    paths("{\"host_root\":\"m\"}", &p);
    assert_true(box_paths_managed_root(&p, &root, &err) < 0);
    assert_string_equal(err.msg, "Managed sandbox workspace path is not a directory");
    assert_int_equal(box_paths_ensure_workspace(&p, &err), 0);
    assert_int_equal(box_paths_tenant_dir(&p, "ws-x", &tenant, &err), 0);
    check_path(tenant, "m/default/tenants/ws-x");
    assert_int_equal(stat(tenant, &st), 0);
    free(TAKE_PTR(tenant));
    /* Neither may be a link to somewhere else. */
    assert_int_equal(symlink("/tmp", "m/default/tenants/ws-y"), 0);
    assert_true(box_paths_tenant_dir(&p, "ws-y", &tenant, &err) < 0);
    assert_string_equal(err.msg, "Managed sandbox Workspace path escapes its tenant directory");
    assert_int_equal(rename("m/default/tenants", "m/default/t"), 0);
    assert_int_equal(symlink("/tmp", "m/default/tenants"), 0);
    assert_true(box_paths_tenant_dir(&p, "ws-x", &tenant, &err) < 0);
    assert_string_equal(err.msg,
                        "Managed sandbox tenant directory escapes the configured workspace");
}

static void put_probe(const char *name, size_t len)
{
    char text[2048];
    AUTO_CLOSE int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    memset(text, 'x', sizeof(text));
    assert_int_equal(fd_write_all(fd, text, len), 0);
}

static void fail_probe(const struct box_paths *p, const char *name, const char *text)
{
    char sha256[65];
    size_t size;
    struct err err = {0};
    assert_true(box_paths_probe(p, name, sha256, &size, &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    assert_string_equal(err.msg, text);
}

static void the_probe_is_read_with_care(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    struct err err = {0};
    char sha256[65];
    size_t size = 0;
    (void)state;
    paths("{\"host_root\":\"p\"}", &p);
    assert_int_equal(box_paths_ensure_workspace(&p, &err), 0);
    fail_probe(&p, "../" PROBE, "Invalid Box shared Workspace probe basename");
    fail_probe(&p, PROBE "0", "Invalid Box shared Workspace probe basename");
    fail_probe(&p, PROBE, "Box Runtime cannot read the Core shared Workspace probe");
    put_probe("p/default/" PROBE, 0);
    fail_probe(&p, PROBE, "Box shared Workspace probe has an invalid size");
    put_probe("p/default/" PROBE, 1025);
    fail_probe(&p, PROBE, "Box shared Workspace probe exceeds the size limit");
    put_probe("p/default/" PROBE, 1024);
    assert_int_equal(box_paths_probe(&p, PROBE, sha256, &size, &err), 0);
    assert_int_equal(size, 1024);
    put_probe("p/default/" PROBE, 1);
    assert_int_equal(box_paths_probe(&p, PROBE, sha256, &size, &err), 0);
    assert_string_equal(sha256, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    assert_int_equal(rename("p/default/" PROBE, "p/x"), 0);
    assert_int_equal(symlink("../x", "p/default/" PROBE), 0);
    fail_probe(&p, PROBE, "Box Runtime cannot read the Core shared Workspace probe");
    assert_int_equal(unlink("p/default/" PROBE), 0);
    assert_int_equal(mkfifo("p/default/" PROBE, 0600), 0);
    fail_probe(&p, PROBE, "Box shared Workspace probe is not a regular file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_taken_or_left),
        cmocka_unit_test(limits_that_are_wrong_change_nothing),
        cmocka_unit_test(directories_follow_the_root),
        cmocka_unit_test(links_are_resolved),
        cmocka_unit_test(the_workspace_is_made_below_the_roots_only),
        cmocka_unit_test(a_file_is_no_workspace),
        cmocka_unit_test(managed_sandboxes_need_a_workspace),
        cmocka_unit_test(the_probe_is_read_with_care),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
