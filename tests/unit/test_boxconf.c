/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "front/langbot/tenant/boxconf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"

static char dir[4096];

static int make_dir(void **state)
{
    char temp[] = "/tmp/box-conf-XXXXXX";
    return mkdtemp(temp) == NULL || realpath(temp, dir) == NULL || chdir(dir) < 0 ? -1 : 0;
}

static int remove_dir(void **state)
{
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
    const struct box_base base = {.dir = dir};
    struct err err = {0};
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    assert_int_equal(box_paths_parse(v, &base, ret, &err), 0);
}

/* What is relative to a directory that nobody knows is not taken for one of ours. */
static void relative_paths_need_a_base(void **state)
{
    static const char *const bad[] = {"{\"host_root\":\"./data/box\"}",
                                      "{\"default_workspace\":\"here\"}",
                                      "{\"allowed_mount_roots\":[\"/tmp\",\"x\"]}"};
    static const char *const good[] = {
        "{}", "{\"host_root\":\"/tmp/box-none\",\"default_workspace\":\"d\"}"};
    const struct box_base unknown = {.why = "it is raining"};
    for (size_t i = 0; i < ARRAY_SIZE(bad) + ARRAY_SIZE(good); i++) {
        const char *text = i < ARRAY_SIZE(bad) ? bad[i] : good[i - ARRAY_SIZE(bad)];
        AUTO_DONE(box_paths) struct box_paths p = {0};
        AUTO(json) struct json *v = NULL;
        struct err err = {0};
        assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
        int r = box_paths_parse(v, &unknown, &p, &err);
        assert_int_equal(r == 0, i >= ARRAY_SIZE(bad));
        if (r == 0)
            continue;
        assert_non_null(strstr(err.msg, "it is raining. Set it to an absolute path in LangBot, or "
                                        "langbot_base_dir of boxd"));
        assert_null(p.host_root);
    }
    struct box_paths p = {0};
    struct err err = {0};
    assert_int_equal(box_paths_parse(NULL, &unknown, &p, &err), 0);
    assert_null(p.skills_root);
    box_paths_done(&p);
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
    assert_int_equal(mkdir("real", 0755), 0);
    assert_int_equal(symlink("real", "link"), 0);
    paths("{\"host_root\":\"link\",\"default_workspace\":\"new/deep\"}", &p);
    check_path(p.host_root, "real");
    check_path(p.default_workspace, "real/new/deep");
}

static void check_workspace(const struct box_paths *p, bool make, const char *wrong)
{
    struct err err = {0};
    bool got = !make;
    int r = box_paths_check_workspace(p, &got, &err);
    assert_int_equal(r < 0, wrong != NULL);
    if (wrong != NULL)
        assert_string_equal(err.msg, wrong);
    else
        assert_int_equal(got, make);
}

static void the_workspace_is_made_below_the_roots_only(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    check_workspace(&p, false, NULL); /* none is wanted */
    paths("{\"host_root\":\"made\"}", &p);
    check_workspace(&p, true, NULL);
    assert_int_equal(mkdir("made", 0755), 0);
    assert_int_equal(mkdir("made/default", 0755), 0);
    check_workspace(&p, false, NULL);
    box_paths_done(&p);
    paths("{\"default_workspace\":\"nowhere\"}", &p);
    check_workspace(&p, false,
                    "box.local.default_workspace cannot be created because no "
                    "allowed_mount_roots are configured");
    box_paths_done(&p);
    paths("{\"default_workspace\":\"made2\",\"allowed_mount_roots\":[\"made\",\"mad\"]}", &p);
    AUTO_FREE char *message =
        xasprintf("box.local.default_workspace is outside allowed_mount_roots: %s/made, %s/mad (it "
                  "is %s/made2)",
                  dir, dir, dir);
    check_workspace(&p, false, message);
}

static void a_file_is_no_workspace(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    AUTO_CLOSE int fd = open("file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    paths("{\"host_root\":\".\",\"default_workspace\":\"file\"}", &p);
    check_workspace(&p, false,
                    "box.local.default_workspace must point to a directory on the Box runtime "
                    "host");
}

static void copies_are_whole(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0}, q = {0};
    assert_int_equal(box_paths_copy(&p, &q), 0);
    assert_null(q.host_root);
    box_paths_done(&q);
    paths("{\"host_root\":\"r\",\"allowed_mount_roots\":\"a,b\"}", &p);
    assert_int_equal(box_paths_copy(&p, &q), 0);
    box_paths_done(&p);
    check_path(q.default_workspace, "r/default");
    assert_int_equal(strv_len(q.mount_roots), 2);
}

static void managed_sandboxes_need_a_workspace(void **state)
{
    AUTO_DONE(box_paths) struct box_paths p = {0};
    const char *root = NULL;
    struct err err = {0};
    assert_true(box_paths_managed_place(&p, &root, &err) < 0);
    assert_int_equal(err.code, ERR_STATE);
    assert_string_equal(err.msg, "Managed sandbox admission requires box.local.default_workspace");
    paths("{\"host_root\":\"m\",\"allowed_mount_roots\":\"other\"}", &p);
    assert_true(box_paths_managed_place(&p, &root, &err) < 0);
    assert_string_equal(err.msg,
                        "Managed sandbox workspace is outside box.local.allowed_mount_roots");
    box_paths_done(&p);
    paths("{\"host_root\":\"m\"}", &p);
    assert_int_equal(box_paths_managed_place(&p, &root, &err), 0);
    check_path(root, "m/default");
    AUTO_FREE char *tenant = box_paths_tenant_dir(&p, "ws-x");
    check_path(tenant, "m/default/tenants/ws-x");
}

static void some_directories_are_the_hosts_own(void **state)
{
    char *roots[] = {xstrdup("/c/d"), NULL};
    struct box_paths p = {.default_workspace = xstrdup("/a/b"), .host_root = xstrdup("/c")};
    const struct box_paths none = {0}, some = {.mount_roots = roots};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(box_paths_own(&p, "/a/b"), i == 0);
        assert_int_equal(box_paths_own(&p, "/a/b/tenants/x"), i == 0);
        assert_true(box_paths_own(&p, "/c/x"));
        assert_false(box_paths_own(&p, "/a/bc"));
        assert_false(box_paths_own(&p, "/a"));
        free(p.default_workspace);
        p.default_workspace = NULL;
    }
    assert_false(box_paths_own(&none, "/a/b"));
    assert_false(box_paths_allow(&none, "/a/b"));
    assert_true(box_paths_allow(&some, "/c/d/e"));
    assert_false(box_paths_allow(&some, "/c/de"));
    box_paths_done(&p);
    free(roots[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_taken_or_left),
        cmocka_unit_test(limits_that_are_wrong_change_nothing),
        cmocka_unit_test(directories_follow_the_root),
        cmocka_unit_test(relative_paths_need_a_base),
        cmocka_unit_test(links_are_resolved),
        cmocka_unit_test(the_workspace_is_made_below_the_roots_only),
        cmocka_unit_test(a_file_is_no_workspace),
        cmocka_unit_test(managed_sandboxes_need_a_workspace),
        cmocka_unit_test(copies_are_whole),
        cmocka_unit_test(some_directories_are_the_hosts_own),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
