/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fixture.h"

#include <inttypes.h>
#include <sys/stat.h>

#include "front/langbot/tenant/readiness.h"

/* Uploads, skills, directories and admission, on the fake backend. */

#define CHUNK(key, index, amount, base64)                                                          \
    "{\"file_key\":\"" key "\",\"file_length\":3,\"chunk_base64\":\"" base64                       \
    "\",\"chunk_index\":" #index ",\"chunk_amount\":" #amount ",\"chunk_size\":16384}"

static void contains(char *owned, const char *part)
{
    AUTO_FREE char *text = owned;
    if (strstr(text, part) == NULL)
        fail_msg("%s is not in %s", part, text);
}

/* Uploads. */

static void pieces_are_checked(void **state)
{
    static const struct {
        const char *data, *message;
    } cases[] = {
        {"{}", "KeyError: 'file_key'"},
        {"{\"file_key\":\"a\"}", "KeyError: 'chunk_base64'"},
        {"{\"file_key\":\"a\",\"chunk_base64\":\"\"}", "KeyError: 'chunk_index'"},
        {CHUNK("../a", 0, 1, ""), "ValueError: Invalid file transfer key"},
        {CHUNK("a..b", 0, 1, ""), "ValueError: Invalid file transfer key"},
        {CHUNK(" a", 0, 1, ""), "ValueError: Invalid file transfer key"},
        {CHUNK(".a", 0, 1, ""), "ValueError: Invalid file transfer key"},
        {CHUNK("", 0, 1, ""), "ValueError: Invalid file transfer key"},
        {CHUNK("a", 1, 1, ""), "ValueError: Invalid file chunk position"},
        {CHUNK("a", -1, 1, ""), "ValueError: Invalid file chunk position"},
        {CHUNK("a", 0, 0, ""), "ValueError: Invalid file chunk position"},
        {CHUNK("a", false, 1, ""), "ValueError: Invalid file chunk position"},
        {CHUNK("a", 0, 1, "YQ"), "Error: Only base64 data is allowed"},
        {CHUNK("a", 0, 1, "Y=Q="), "Error: Only base64 data is allowed"},
        {CHUNK("a", 0, 1, "===="), "Error: Only base64 data is allowed"},
        {CHUNK("a", 0, 1, "YQ==YQ=="), "Error: Only base64 data is allowed"},
        {CHUNK("a", 0, 1, "YW-x"), "Error: Only base64 data is allowed"},
    };
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < (int)ARRAY_SIZE(cases); i++)
        refused(&x, i, "__file_chunk", cases[i].data, "", cases[i].message);
    assert_true(LIST_EMPTY(&x.a.conn->files));
    stop_rpc(&x);
}

static void pieces_have_a_cap(void **state)
{
    struct langbot_fixture x;
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, 65536);
    start_rpc(&x);
    /* 21848 characters are 16386 bytes, or 16384 with two signs of padding. */
    for (int padded = 1; padded >= 0; padded--) {
        buf_reset(&text);
        (void)buf_puts(&text, "{\"file_key\":\"a\",\"chunk_index\":0,\"chunk_amount\":1,"
                              "\"chunk_base64\":\"");
        for (int i = 0; i < 21848 - 4; i++)
            (void)buf_putc(&text, 'A');
        (void)buf_puts(&text, padded ? "AA==\"}" : "AAAA\"}");
        if (padded)
            done(&x, 1, "__file_chunk", buf_str(&text), "");
        else
            refused(&x, 2, "__file_chunk", buf_str(&text), "",
                    "ValueError: File transfer chunk exceeds the protocol limit");
    }
    assert_int_equal(x.a.conn->n_files, 1);
    stop_rpc(&x);
}

static void uploads_have_caps(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    for (int i = 0; i < 128; i++) {
        AUTO_FREE char *data = xasprintf("{\"file_key\":\"f%d\",\"chunk_base64\":\"\","
                                         "\"chunk_index\":0,\"chunk_amount\":1}",
                                         i);
        done(&x, 1000 + i, "__file_chunk", data, "");
    }
    refused(&x, 1, "__file_chunk", CHUNK("one-more", 0, 1, "YWJj"), "",
            "ValueError: Active file transfer capacity reached");
    done(&x, 2, "__file_chunk", CHUNK("f7", 0, 1, "YWJj"), ""); /* a known one goes on */
    /* The size that counts is the one of when the connection was opened. */
    done(&x, 3, "box_init", "{\"limits\":{\"max_rpc_file_bytes\":5}}", "");
    done(&x, 4, "__file_chunk", CHUNK("f7", 1, 3, "YWJj"), "");
    peer_close(&x.b);
    peer_open(&x, &x.b, 0);
    ask(&x.b, 5, "__file_chunk", CHUNK("f", 0, 2, "YWJj"), "");
    free(expect_ok(&x, &x.b, 5));
    ask(&x.b, 6, "__file_chunk", CHUNK("f", 1, 2, "YWJj"), "");
    expect_error(&x, &x.b, 6, "ValueError: File transfer exceeds the configured size limit");
    ask(&x.b, 7, "__file_chunk", CHUNK("f", 1, 2, "YWI="), "");
    free(expect_ok(&x, &x.b, 7));
    stop_rpc(&x);
}

static void an_upload_is_used_once(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    done(&x, 1, "__file_chunk", CHUNK("k.zip", 0, 2, "b2xk"), "");
    done(&x, 2, "__file_chunk", CHUNK("k.zip", 0, 2, "YWJj"), ""); /* the first begins anew */
    done(&x, 3, "__file_chunk", CHUNK("k.zip", 1, 2, "ZGU="), "");
    ask(&x.a, 4, "box_preview_skill_zip", "{\"file_key\":\"k.zip\"}", CTX1);
    pump(&x.f);
    assert_int_equal(store.op, SKILLS_PREVIEW_ZIP);
    assert_string_equal(store.zip, "abcde");
    assert_string_equal(store.workspace, NS1);
    skills_answer(&store, "{\"skills\":[{\"name\":\"d\"}]}", NULL);
    contains(expect_ok(&x, &x.a, 4), "{\"skills\":[{\"name\":\"d\"}]}");
    refused(&x, 5, "box_install_skill_zip", "{\"file_key\":\"k.zip\"}", CTX1,
            "BoxValidationError: [Errno 2] No such file or directory: 'k.zip'");
    refused(&x, 6, "box_install_skill_zip", "{}", CTX1, "BoxValidationError: 'file_key'");
    ask(&x.b, 7, "box_install_skill_zip", "{\"file_key\":\"k.zip\"}", CTX1);
    expect_error(&x, &x.b, 7, "BoxValidationError: [Errno 2] No such file or directory: 'k.zip'");
    stop_rpc(&x);
    free(store.root);
}

/* Skills. */

static void skills_are_asked_for_their_workspace(void **state)
{
    static const struct {
        const char *action, *data;
        enum skills_op op;
    } cases[] = {
        {"box_list_skills", "{}", SKILLS_LIST},
        {"box_get_skill", "{\"name\":\"a\"}", SKILLS_GET},
        {"box_create_skill", "{\"skill\":{}}", SKILLS_CREATE},
        {"box_update_skill", "{\"name\":\"a\",\"skill\":{}}", SKILLS_UPDATE},
        {"box_delete_skill", "{\"name\":\"a\"}", SKILLS_DELETE},
        {"box_scan_skill_directory", "{\"path\":\"/\"}", SKILLS_SCAN},
        {"box_list_skill_files", "{\"name\":\"a\"}", SKILLS_LIST_FILES},
        {"box_read_skill_file", "{\"name\":\"a\",\"path\":\"b\"}", SKILLS_READ_FILE},
        {"box_write_skill_file", "{\"name\":\"a\",\"path\":\"b\"}", SKILLS_WRITE_FILE},
    };
    struct jobs store = {0};
    const struct langbot_options nowhere = {.skills = &store};
    const struct langbot_options options = {.skills = &store, .base_dir = "/srv/langbot"};
    struct langbot_fixture x;
    start_with(&x, NULL, &nowhere);
    assert_null(store.root);
    stop_rpc(&x);
    start_with(&x, NULL, &options);
    assert_string_equal(store.root, "/srv/langbot/data/box/skills");
    for (int i = 0; i < (int)ARRAY_SIZE(cases); i++) {
        ask(&x.a, i, cases[i].action, cases[i].data, CTX1);
        pump(&x.f);
        assert_int_equal(store.op, cases[i].op);
        assert_int_equal(store.zip_fd, -1);
        assert_string_equal(store.workspace, NS1);
        skills_answer(&store, "{\"x\":1}", NULL);
        contains(expect_ok(&x, &x.a, i), "{\"x\":1}");
    }
    ask(&x.a, 50, "box_delete_skill", "{\"name\":\"a\"}", CTX1);
    pump(&x.f);
    skills_answer(&store, NULL, "BoxValidationError: Skill \"BoxAdmissionError:\" not found");
    expect_error(&x, &x.a, 50, "BoxValidationError: Skill \"BoxAdmissionError :\" not found");
    ask(&x.a, 51, "box_get_skill", "{}", CTX1);
    pump(&x.f);
    skills_answer(&store, NULL, "KeyError: 'name'");
    expect_error(&x, &x.a, 51, "KeyError: 'name'");
    stop_rpc(&x);
    free(store.root);
}

static void an_answer_that_is_too_large_is_an_error(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    size_t size = LANGBOT_MESSAGE_MAX;
    char *json = malloc(size + 16);
    assert_non_null(json);
    start_with(&x, NULL, &options);
    ask(&x.a, 1, "box_list_skills", "{}", CTX1);
    pump(&x.f);
    memset(json, 'x', size + 16);
    memcpy(json, "{\"t\":\"", 6);
    memcpy(json + size, "\"}", 3);
    skills_answer(&store, json, NULL);
    expect_error(&x, &x.a, 1, "ValueError: Runtime message exceeds 16777216 byte limit");
    stop_rpc(&x);
    free(store.root);
    free(json);
}

static void no_store_is_said(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    refused(&x, 1, "box_list_skills", "{}", CTX1,
            "BoxError: this boxd has no skill store: box-fetch is missing");
    stop_rpc(&x);
}

static void the_first_release_has_one_store_for_all(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store, .legacy = true};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    ask(&x.a, 1, "box_list_skills", "{}", "");
    pump(&x.f);
    assert_string_equal(store.workspace, "");
    skills_answer(&store, "{\"skills\":[]}", NULL);
    contains(expect_ok(&x, &x.a, 1), "{\"skills\":[]}");
    stop_rpc(&x);
    free(store.root);
}

/* Directories. */

/* Upstream bug 14: nothing may change before all of it is known to be good. */
static void the_workspace_is_made_before_anything_changes(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    AUTO_FREE char *data =
        xasprintf("{\"limits\":{\"max_sessions\":3},\"local\":{\"host_root\":\"%s\"}}", x.dir);
    AUTO_FREE char *where = xasprintf("%s/default", x.dir);
    ask(&x.a, 1, "box_init", data, "");
    pump(&x.f);
    assert_string_equal(store.dir, where);
    assert_int_equal(x.rpc->limits.max_sessions, 64);
    skills_answer(&store, NULL, "BoxValidationError: no entry");
    pump(&x.f);
    AUTO(json) struct json *reply = reply_to(&x.a, 1);
    const char *message = json_str(json_get(reply, "message"));
    assert_true(str_starts(message, "BoxValidationError: box.local.default_workspace "));
    assert_non_null(strstr(message, "/default cannot be created: no entry. boxd runs as user '"));
    assert_non_null(strstr(message, "install -d -o "));
    assert_int_equal(x.rpc->limits.max_sessions, 64);
    assert_null(x.rpc->paths.host_root);
    ask(&x.a, 2, "box_init", data, "");
    pump(&x.f);
    skills_answer(&store, "{}", NULL);
    contains(expect_ok(&x, &x.a, 2), "{\"initialized\":true}");
    assert_int_equal(x.rpc->limits.max_sessions, 3);
    assert_string_equal(x.rpc->paths.default_workspace, where);
    AUTO_FREE char *skills = xasprintf("%s/skills", x.dir);
    assert_string_equal(store.root, skills);
    stop_rpc(&x);
    free(store.root);
}

static void the_shared_workspace_is_looked_at(void **state)
{
    struct jobs store = {0};
    const struct langbot_options options = {.skills = &store};
    struct langbot_fixture x;
    start_with(&x, NULL, &options);
    refused(&x, 1, "box_verify_shared_workspace", "{\"marker_name\":\"m\"}", "",
            "BoxReadinessError: Managed sandbox admission requires box.local.default_workspace");
    AUTO_FREE char *data = xasprintf("{\"local\":{\"host_root\":\"%s\"}}", x.dir);
    assert_int_equal(mkdirat(x.dir_fd, "default", 0755), 0);
    done(&x, 2, "box_init", data, "");
    refused(&x, 3, "box_verify_shared_workspace", "{}", "", "BoxReadinessError: 'marker_name'");
    ask(&x.a, 4, "box_verify_shared_workspace", "{\"marker_name\":\"m\"}", "");
    pump(&x.f);
    skills_answer(&store, NULL,
                  "BoxReadinessError: Box shared Workspace probe is not a regular file");
    expect_error(&x, &x.a, 4,
                 "BoxReadinessError: Box shared Workspace probe is not a regular file");
    ask(&x.a, 5, "box_verify_shared_workspace", "{\"marker_name\":\"m\"}", "");
    pump(&x.f);
    skills_answer(&store, "{\"marker_name\":\"m\",\"sha256\":\"0\",\"size\":5}", NULL);
    contains(expect_ok(&x, &x.a, 5), "\"size\":5");
    stop_rpc(&x);
    free(store.root);
}

/* Admission. */

/* Enforcement, with a workspace or without one. */
static void enforce(struct langbot_fixture *x, bool ready)
{
    const char *config = "{\"admission\":{\"required\":true}}";
    AUTO_FREE char *local =
        xasprintf("{\"admission\":{\"required\":true},\"local\":{\"host_root\":\"%s\"}}", x->dir);
    (void)mkdirat(x->dir_fd, "default", 0755);
    done(x, 9000 + ready, "box_init", ready ? local : config, "");
}

static int64_t now_sec(const struct langbot_fixture *x)
{
    return (int64_t)(x->f.clock.real_ns / SEC);
}

static char *grant(const struct langbot_fixture *x, int rev, int gen, int sessions, int64_t life)
{
    return xasprintf(
        "{\"instance_uuid\":\"" INSTANCE "\",\"workspace_uuid\":\"ws-1\","
        "\"execution_generation\":%d,\"entitlement_revision\":%d,\"expires_at\":%" PRId64 ","
        "\"max_sessions\":%d,\"max_managed_processes\":0}",
        gen, rev, now_sec(x) + life, sessions);
}

static void grants_are_for_those_who_enforce_them(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    AUTO_FREE char *g = grant(&x, 1, 1, 1, 60);
    refused(&x, 1, "box_upsert_sandbox_admission_grant", "{}", "",
            "BoxValidationError: 7 validation errors for SandboxAdmissionGrant\ninstance_uuid\n  "
            "Field required [type=missing]\nworkspace_uuid\n  Field required [type=missing]\n"
            "execution_generation\n  Field required [type=missing]\nentitlement_revision\n  Field "
            "required [type=missing]\nexpires_at\n  Field required [type=missing]\nmax_sessions\n  "
            "Field required [type=missing]\nmax_managed_processes\n  Field required "
            "[type=missing]");
    refused(&x, 2, "box_upsert_sandbox_admission_grant", g, "",
            "BoxAdmissionError: Sandbox admission enforcement is not enabled");
    refused(&x, 3, "box_revoke_sandbox_admission_grant",
            "{\"instance_uuid\":\"x\",\"workspace_uuid\":\"w\",\"entitlement_revision\":1}", "",
            "PermissionError: Sandbox admission revocation does not match the trusted instance");
    refused(&x, 4, "box_upsert_sandbox_admission_grant",
            "{\"instance_uuid\":\"x\",\"workspace_uuid\":\"w\",\"execution_generation\":1,"
            "\"entitlement_revision\":1,\"expires_at\":1,\"max_sessions\":1,"
            "\"max_managed_processes\":0}",
            "", "PermissionError: Sandbox admission grant does not match the trusted instance");
    stop_rpc(&x);
}

static void grants_come_and_go(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    done(&x, 1, "box_create_session", "{\"session_id\":\"before\"}", CTX1);
    enforce(&x, false);
    AUTO_FREE char *g = grant(&x, 5, 2, 1, 60);
    contains(ok(&x, 2, "box_upsert_sandbox_admission_grant", g, ""),
             "{\"installed\":true,\"workspace_uuid\":\"ws-1\",\"execution_generation\":2,"
             "\"entitlement_revision\":5,\"max_sessions\":1,\"max_managed_processes\":0,"
             "\"expires_at\":\"2026-");
    assert_int_equal(manager_count(x.f.m), 0); /* what was there before is gone */
    assert_int_equal(fence_current(x.rpc->fence, NS1), 2);
    refused(&x, 3, "box_status", "{}", CTX1, "PermissionError: Stale Box placement generation");
    contains(ok(&x, 4, "box_revoke_sandbox_admission_grant",
                "{\"instance_uuid\":\"" INSTANCE "\",\"workspace_uuid\":\"ws-1\","
                "\"entitlement_revision\":5}",
                ""),
             "{\"revoked\":true,\"workspace_uuid\":\"ws-1\",\"entitlement_revision\":5}");
    refused(&x, 5, "box_upsert_sandbox_admission_grant", g, "",
            "BoxAdmissionError: Sandbox admission grant revision was revoked");
    stop_rpc(&x);
}

static void sandboxes_need_readiness_first(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    enforce(&x, false);
    refused(&x, 1, "box_get_sessions", "{}", CTX("ws-1", 7),
            "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: "
            "required_backend, workspace_mount, cgroup_v2, namespace_isolation, mount_isolation, "
            "network_isolation, hard_workspace_quota, hard_skill_storage_quota, inode_quota)");
    assert_int_equal(fence_current(x.rpc->fence, NS1), 0); /* admission comes before the fence */
    refused(&x, 2, "box_health", "{}", "",
            "BoxReadinessError: managed sandbox isolation is not ready");
    contains(ok(&x, 3, "box_get_backend_info", "{}", ""),
             "{\"name\":\"fake\",\"available\":false,\"readiness\":{\"ready\":false,"
             "\"mode\":\"grant_enforced\",\"backend\":{\"name\":\"fake\",\"available\":true,"
             "\"details\":{\"available\":true,\"cgroup_v2\":false,");
    contains(ok(&x, 4, "box_status", "{}", CTX1), "\"active_sessions\":0"); /* no sandbox */
    stop_rpc(&x);
}

static void the_probe_leaves_nothing_behind(void **state)
{
    struct langbot_fixture x;
    struct stat st;
    start_rpc(&x);
    enforce(&x, true);
    assert_int_equal(fstatat(x.dir_fd, "default", &st, 0), 0);
    nlink_t links = st.st_nlink;
    contains(ok(&x, 1, "box_get_backend_info", "{}", ""), "\"workspace_mount\":true");
    assert_int_equal(fake_creations(x.f.backend), 1); /* it has been tried */
    assert_int_equal(manager_count(x.f.m), 0);
    assert_int_equal(fstatat(x.dir_fd, "default", &st, 0), 0);
    assert_int_equal(st.st_nlink, links);
    done(&x, 2, "box_get_backend_info", "{}", "");
    assert_int_equal(fake_creations(x.f.backend), 1); /* and counts for a while */
    pass(&x.f, 15 * SEC);
    done(&x, 3, "box_get_backend_info", "{}", "");
    assert_int_equal(fake_creations(x.f.backend), 2);
    enforce(&x, true);
    done(&x, 4, "box_get_backend_info", "{}", "");
    assert_int_equal(fake_creations(x.f.backend), 3);
    stop_rpc(&x);
}

static void a_probe_may_be_cut_short(void **state)
{
    const struct fake_options slow = {.create_ns = 1 * SEC};
    struct langbot_fixture x;
    start_with(&x, &slow, NULL);
    enforce(&x, true);
    ask(&x.a, 1, "box_exec", "{\"session_id\":\"s\",\"cmd\":\"x\"}", CTX1);
    pump(&x.f);
    peer_close(&x.a);
    pump(&x.f);
    stop_rpc(&x); /* while it is still being made */
}

static void on_report(void *arg, const struct readiness_report *report)
{
    *(struct readiness_report *)arg = *report;
}

static void declared_storage_counts_as_enforced(void **state)
{
    const struct langbot_options options = {.unsafe_storage = true, .backend_name = "nsjail"};
    struct readiness_report report = {0};
    struct langbot_fixture x;
    char failed[320];
    start_with(&x, NULL, &options);
    enforce(&x, true);
    readiness_get(x.rpc->readiness, on_report, &report);
    pump(&x.f);
    assert_true(report.unsafe_storage);
    assert_true(report.checks[READY_HARD_WORKSPACE_QUOTA]);
    assert_false(report.found[READY_HARD_WORKSPACE_QUOTA]);
    assert_true(report.checks[READY_INODE_QUOTA]);
    readiness_failed(&report, false, failed, sizeof(failed));
    assert_string_equal(failed, "cgroup_v2, namespace_isolation, mount_isolation, "
                                "network_isolation");
    stop_rpc(&x);
}

static void expired_grants_end_their_sessions(void **state)
{
    struct langbot_fixture x;
    start_rpc(&x);
    enforce(&x, false);
    AUTO_FREE char *g = grant(&x, 5, 2, 1, 60);
    done(&x, 1, "box_upsert_sandbox_admission_grant", g, "");
    struct session *s = ready_session(&x.f, NS1 "-g2-global");
    session_release(s);
    pass(&x.f, 30 * SEC);
    assert_int_equal(manager_count(x.f.m), 1);
    pass(&x.f, 31 * SEC);
    pass(&x.f, 30 * SEC);
    assert_int_equal(manager_count(x.f.m), 0);
    stop_rpc(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_checked),
        cmocka_unit_test(pieces_have_a_cap),
        cmocka_unit_test(uploads_have_caps),
        cmocka_unit_test(an_upload_is_used_once),
        cmocka_unit_test(skills_are_asked_for_their_workspace),
        cmocka_unit_test(an_answer_that_is_too_large_is_an_error),
        cmocka_unit_test(no_store_is_said),
        cmocka_unit_test(the_first_release_has_one_store_for_all),
        cmocka_unit_test(the_workspace_is_made_before_anything_changes),
        cmocka_unit_test(the_shared_workspace_is_looked_at),
        cmocka_unit_test(grants_are_for_those_who_enforce_them),
        cmocka_unit_test(grants_come_and_go),
        cmocka_unit_test(sandboxes_need_readiness_first),
        cmocka_unit_test(the_probe_leaves_nothing_behind),
        cmocka_unit_test(a_probe_may_be_cut_short),
        cmocka_unit_test(declared_storage_counts_as_enforced),
        cmocka_unit_test(expired_grants_end_their_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
