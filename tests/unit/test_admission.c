/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "front/langbot/tenant/admission.h"

#include <fcntl.h>
#include <limits.h>
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
#include "front/langbot/tenant/boxconf.h"
#include "spec/admission.h"
#include "spec/spec.h"

#define NS "ws-5ae072b797fd533f5dc5cc63"
#define NS_OTHER "ws-000000000000000000000000"
#define NOW INT64_C(1700000000000000)
#define SECOND INT64_C(1000000)

static void configure(struct admission *a, const char *text)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    admission_configure(a, v);
}

static struct admission *enforced(void)
{
    struct admission *a = admission_new(100);
    configure(a, "{\"required\":true}");
    assert_true(admission_enforced(a));
    return a;
}

/* A grant of revision 5 in generation 2, for a minute. */
static struct admission_grant a_grant(void)
{
    return (struct admission_grant){.execution_generation = 2,
                                    .entitlement_revision = 5,
                                    .expires_at = NOW + 60 * SECOND,
                                    .max_sessions = 1};
}

static void install(struct admission *a, const struct admission_grant *g, bool drops)
{
    struct err err = {0};
    bool drop = !drops;
    assert_int_equal(admission_install(a, NS, g, NOW, &drop, &err), 0);
    assert_int_equal(drop, drops);
}

static void refuse(struct admission *a, struct admission_grant g, enum err_code code,
                   const char *text)
{
    struct err err = {0};
    bool drop = false;
    assert_true(admission_install(a, NS, &g, NOW, &drop, &err) < 0);
    assert_int_equal(err.code, code);
    assert_string_equal(err.msg, text);
    assert_false(drop);
}

static int check(struct admission *a, int64_t generation, int64_t now, struct err *err)
{
    struct admission_limits limits = {0};
    *err = (struct err){0};
    return admission_check(a, NS, generation, now, &limits, err);
}

static void it_is_off_until_it_is_asked_for(void **state)
{
    AUTO(admission) struct admission *a = admission_new(100);
    const struct admission_revocation r = {.entitlement_revision = 1};
    const struct admission_grant g = a_grant();
    struct err err = {0};
    bool drop;
    assert_false(admission_enforced(a));
    configure(a, "{\"required\":false}");
    configure(a, "null");
    assert_false(admission_enforced(a));
    assert_null(admission_config_error(a));
    assert_true(admission_install(a, NS, &g, NOW, &drop, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission enforcement is not enabled");
    assert_true(admission_revoke(a, NS, &r, &err) < 0);
}

static void what_is_wrong_with_it_turns_it_on(void **state)
{
    AUTO(admission) struct admission *a = admission_new(100);
    configure(a, "{\"required\":false,\"max_sessions\":2}");
    assert_true(admission_enforced(a));
    assert_string_equal(admission_config_error(a),
                        "max_sessions: max_sessions must be between 0 and 1");
    refuse(a, a_grant(), ERR_STATE,
           "Invalid sandbox admission configuration: max_sessions: max_sessions must be between 0 "
           "and 1");
    configure(a, "{\"required\":true}");
    assert_null(admission_config_error(a));
}

static void it_cannot_be_turned_off(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    configure(a, "{\"required\":false}");
    assert_true(admission_enforced(a));
    assert_string_equal(admission_config_error(a),
                        "Sandbox admission enforcement cannot be disabled without restarting the "
                        "Box Runtime");
}

static void grants_are_checked_before_they_count(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    struct admission_grant g = a_grant();
    g.expires_at = NOW;
    refuse(a, g, ERR_DENIED, "Cannot install an expired sandbox admission grant");
    g.expires_at = NOW + 300 * SECOND + 1;
    refuse(a, g, ERR_DENIED, "Sandbox admission grant lifetime exceeds the configured maximum");
    g = a_grant();
    g.max_sessions = 2;
    refuse(a, g, ERR_DENIED, "Sandbox admission grant exceeds the session cap");
    g = a_grant();
    g.max_managed_processes = 1;
    refuse(a, g, ERR_DENIED, "Sandbox admission grant exceeds the managed-process cap");
    g = a_grant();
    g.expires_at = NOW + 300 * SECOND;
    install(a, &g, true);
}

static void grants_only_move_forward(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    struct admission_grant g = a_grant();
    struct err err;
    install(a, &g, true); /* a generation never seen */
    install(a, &g, false);
    g.entitlement_revision = 4;
    refuse(a, g, ERR_DENIED, "Sandbox admission grant revision is stale");
    g = a_grant();
    g.execution_generation = 1;
    refuse(a, g, ERR_DENIED, "Sandbox admission execution generation is stale");
    g = a_grant();
    g.max_sessions = 0;
    refuse(a, g, ERR_DENIED, "Sandbox admission limits changed without a new entitlement revision");
    /* A shorter life of the same grant is taken, and the longer one stays. */
    g = a_grant();
    g.expires_at = NOW + SECOND;
    install(a, &g, false);
    assert_int_equal(check(a, 2, NOW + 30 * SECOND, &err), 0);
    g.entitlement_revision = 6; /* a new one may be shorter */
    install(a, &g, false);
    assert_true(check(a, 2, NOW + 30 * SECOND, &err) < 0);
    g.execution_generation = 3;
    install(a, &g, true);
    g.entitlement_revision = 7;
    g.max_sessions = 0;
    install(a, &g, true);
}

static void grants_are_taken_back(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    struct admission_grant g = a_grant();
    struct admission_revocation r = {.entitlement_revision = 4};
    struct err err = {0};
    install(a, &g, true);
    assert_true(admission_revoke(a, NS, &r, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission revocation is stale");
    r.entitlement_revision = 5;
    assert_int_equal(admission_revoke(a, NS, &r, &err), 0);
    assert_true(check(a, 2, NOW, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant is missing");
    refuse(a, g, ERR_DENIED, "Sandbox admission grant revision was revoked");
    g.entitlement_revision = 6;
    install(a, &g, false);
    r.entitlement_revision = 9; /* of what has not even come yet */
    assert_int_equal(admission_revoke(a, NS_OTHER, &r, &err), 0);
}

static void use_needs_a_grant_that_fits(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    struct admission_grant g = a_grant();
    struct err err;
    assert_true(check(a, 2, NOW, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_string_equal(err.msg, "Sandbox admission grant is missing");
    install(a, &g, true);
    assert_int_equal(check(a, 2, NOW, &err), 0);
    assert_true(check(a, 2, NOW + 60 * SECOND, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant has expired");
    assert_true(check(a, 3, NOW, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant belongs to another execution generation");
    configure(a, "{\"required\":true,\"max_sessions\":0}");
    assert_true(check(a, 2, NOW, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant exceeds the active runtime policy");
    g.entitlement_revision = 6;
    g.max_sessions = 0;
    install(a, &g, true);
    assert_true(check(a, 2, NOW, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant does not permit sessions");
}

static void records_have_a_cap(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    const struct admission_revocation r = {.entitlement_revision = 1};
    struct err err = {0};
    admission_set_max(a, 1);
    assert_int_equal(admission_revoke(a, NS_OTHER, &r, &err), 0);
    refuse(a, a_grant(), ERR_DENIED,
           "Sandbox admission record capacity reached; refusing an unbounded Workspace fence "
           "allocation");
}

static void note_expired(void *arg, const char *ns)
{
    int *n = arg;
    assert_string_equal(ns, NS);
    (*n)++;
}

static void expired_grants_are_told_once(void **state)
{
    AUTO(admission) struct admission *a = enforced();
    const struct admission_grant g = a_grant();
    struct err err;
    int n = 0;
    install(a, &g, true);
    admission_reap(a, NOW, note_expired, &n);
    assert_int_equal(n, 0);
    admission_reap(a, NOW + 60 * SECOND, note_expired, &n);
    admission_reap(a, NOW + 90 * SECOND, note_expired, &n);
    assert_int_equal(n, 1);
    assert_true(check(a, 2, NOW + 90 * SECOND, &err) < 0);
    assert_string_equal(err.msg, "Sandbox admission grant has expired");
}

static struct spec *a_spec(void)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup("mine");
    return s;
}

static void requests_are_rewritten(void **state)
{
    AUTO(admission) struct admission *a = admission_new(1);
    AUTO(spec) struct spec *s = a_spec();
    struct err err = {0};
    configure(a, "{\"required\":true,\"cpus\":0.5,\"memory_mb\":64,\"pids_limit\":7,"
                 "\"max_timeout_sec\":9,\"read_only_rootfs\":false,\"workspace_quota_mb\":3}");
    free(s->image);
    s->image = xstrdup("other");
    s->host_path = xstrdup("/w/x");
    assert_int_equal(admission_rewrite(a, s, "/w/x", &err), 0);
    assert_string_equal(s->session_id, "global");
    assert_string_equal(s->image, SPEC_DEFAULT_IMAGE);
    assert_string_equal(s->host_path, "/w/x");
    assert_true(s->persistent);
    assert_int_equal(s->timeout_sec, 9);
    assert_true(s->cpus == 0.5);
    assert_int_equal(s->memory_mb, 64);
    assert_int_equal(s->pids_limit, 7);
    assert_false(s->read_only_rootfs);
    assert_int_equal(s->workspace_quota_mb, 3);
    s->timeout_sec = 2; /* shorter is fine */
    assert_int_equal(admission_rewrite(a, s, "/w/x", &err), 0);
    assert_int_equal(s->timeout_sec, 2);
}

static void forbid(struct admission *a, struct spec *s, const char *text)
{
    struct err err = {0};
    assert_true(admission_rewrite(a, s, "/w/x", &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_string_equal(err.msg, text);
    spec_free(s);
}

static void requests_for_more_are_refused(void **state)
{
    static const char *const outside[] = {"/tmp", "/workspacefoo", "/workspace/../etc",
                                          "/workspace/.."};
    AUTO(admission) struct admission *a = enforced();
    struct spec *s = a_spec();
    s->network = NETWORK_ON;
    forbid(a, s, "Managed sandbox network access is disabled");
    s = a_spec();
    free(s->mount_path);
    s->mount_path = xstrdup("/project");
    forbid(a, s, "Managed sandbox mount_path is runtime-owned");
    for (size_t i = 0; i < ARRAY_SIZE(outside); i++) {
        s = a_spec();
        free(s->workdir);
        s->workdir = xstrdup(outside[i]);
        forbid(a, s, "Managed sandbox workdir must stay under /workspace");
    }
    s = a_spec();
    s->host_path = xstrdup("/w/y");
    forbid(a, s, "Managed sandbox host_path is runtime-owned");
}

/* Mounts of a trusted host. */

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ARTIFACT SPEC_ARTIFACTS "/" DIGEST

static char dir[PATH_MAX];

static int make_dir(void **state)
{
    char temp[] = "/tmp/box-adm-XXXXXX";
    if (mkdtemp(temp) == NULL || realpath(temp, dir) == NULL || chdir(dir) < 0)
        return -1;
    int fd = open("file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return fd < 0 || close(fd) < 0 || mkdir("in", 0755) < 0 || mkdir("in/tree", 0755) < 0 ||
                   mkdir("out", 0755) < 0 || symlink("../out", "in/link") < 0 ||
                   symlink("tree", "in/near") < 0 || link("file", "in/manifest") < 0
               ? -1
               : 0;
}

static int remove_dir(void **state)
{
    return chdir("/") < 0 ? -1 : path_remove_tree_at(AT_FDCWD, dir);
}

static void add_mount(struct spec *s, const char *source, const char *place, enum mount_mode mode)
{
    s->extra_mounts =
        xreallocarray(s->extra_mounts, s->n_extra_mounts + 1, sizeof(struct mount_spec));
    s->extra_mounts[s->n_extra_mounts++] = (struct mount_spec){
        .host_path = xasprintf("%s/%s", dir, source), .mount_path = xstrdup(place), .mode = mode};
}

static void seal(struct mount_spec *m, const char *digest, const char *manifest)
{
    m->content_digest = digest != NULL ? xstrdup(digest) : NULL;
    m->manifest_path = manifest != NULL ? xasprintf("%s/%s", dir, manifest) : NULL;
}

static void mounts_of_a_trusted_host_are_read_only(void **state)
{
    static const struct {
        const char *source, *place, *digest, *manifest;
        enum mount_mode mode;
        const char *text; /* NULL: fine */
    } cases[] = {
        {"in/tree", "/workspace/x", NULL, NULL, MOUNT_RO, NULL},
        {"in/near", "/workspace/x", NULL, NULL, MOUNT_RO, NULL},
        {"in/tree", ARTIFACT, "sha256:" DIGEST, "in/manifest", MOUNT_RO, NULL},
        {"in/tree", "/workspace/x", "sha256:" DIGEST, "in/manifest", MOUNT_RO, NULL},
        {"in/tree", "/workspace/x", "sha256:" DIGEST, NULL, MOUNT_RO, NULL},
        {"in/tree", "/workspace/x", NULL, NULL, MOUNT_RW,
         "Managed sandbox additional host mounts are disabled"},
        {"in/tree", "/workspace/x", NULL, NULL, MOUNT_NONE,
         "Managed sandbox additional host mounts are disabled"},
        {"in/none", "/workspace/x", NULL, NULL, MOUNT_RO,
         "Managed sandbox read-only mount source is unavailable"},
        {"in/manifest", "/workspace/x", NULL, NULL, MOUNT_RO,
         "Managed sandbox read-only mount source is unavailable"},
        {"out", "/workspace/x", NULL, NULL, MOUNT_RO,
         "Managed sandbox read-only mount source is outside allowed_mount_roots"},
        {"in/link", "/workspace/x", NULL, NULL, MOUNT_RO,
         "Managed sandbox read-only mount source is outside allowed_mount_roots"},
        {"in/tree/../../out", "/workspace/x", NULL, NULL, MOUNT_RO,
         "Managed sandbox read-only mount source is outside allowed_mount_roots"},
        {"in/tree", "/workspace/x", NULL, "in/manifest", MOUNT_RO,
         "Managed sandbox mount manifests require content_digest"},
        {"in/tree", ARTIFACT, "sha256:" DIGEST, "in/tree", MOUNT_RO,
         "Managed sandbox read-only mount manifest is unavailable"},
        {"in/tree", ARTIFACT, "sha256:" DIGEST, "file", MOUNT_RO,
         "Managed sandbox read-only mount manifest is outside allowed_mount_roots"},
        {"in/tree", "/workspace", NULL, NULL, MOUNT_RO,
         "Managed sandbox additional mount targets must stay under /workspace"},
        {"in/tree", "/mnt", NULL, NULL, MOUNT_RO,
         "Managed sandbox additional mount targets must stay under /workspace"},
    };
    AUTO_FREE char *root = xasprintf("%s/in", dir);
    char *roots[] = {root, NULL};
    const struct box_paths paths = {.mount_roots = roots};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(spec) struct spec *s = a_spec();
        struct err err = {0};
        add_mount(s, cases[i].source, cases[i].place, cases[i].mode);
        seal(&s->extra_mounts[0], cases[i].digest, cases[i].manifest);
        int r = admission_check_mounts(&paths, s, &err);
        assert_string_equal(err.msg, cases[i].text != NULL ? cases[i].text : "");
        assert_int_equal(r < 0, cases[i].text != NULL);
        if (r == 0) /* without links */
            assert_true(str_ends(s->extra_mounts[0].host_path, "/in/tree"));
    }
}

static void mounts_of_a_trusted_host_have_bounds(void **state)
{
    AUTO_FREE char *root = xasprintf("%s/in", dir);
    char *roots[] = {root, NULL};
    const struct box_paths paths = {.mount_roots = roots}, nowhere = {0};
    AUTO(spec) struct spec *s = a_spec();
    struct err err = {0};
    assert_int_equal(admission_check_mounts(&nowhere, s, &err), 0); /* none are fine */
    add_mount(s, "in/tree", "/workspace/x", MOUNT_RO);
    assert_true(admission_check_mounts(&nowhere, s, &err) < 0);
    assert_string_equal(err.msg, "Managed sandbox read-only mounts require allowed_mount_roots");
    add_mount(s, "in/tree", "/workspace/x", MOUNT_RO);
    assert_true(admission_check_mounts(&paths, s, &err) < 0);
    assert_string_equal(err.msg, "Managed sandbox additional mount targets must be unique");
    while (s->n_extra_mounts < 257)
        add_mount(s, "in/tree", "/workspace/x", MOUNT_RO);
    assert_true(admission_check_mounts(&paths, s, &err) < 0);
    assert_string_equal(err.msg, "Managed sandbox accepts at most 256 read-only mounts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_off_until_it_is_asked_for),
        cmocka_unit_test(what_is_wrong_with_it_turns_it_on),
        cmocka_unit_test(it_cannot_be_turned_off),
        cmocka_unit_test(grants_are_checked_before_they_count),
        cmocka_unit_test(grants_only_move_forward),
        cmocka_unit_test(grants_are_taken_back),
        cmocka_unit_test(use_needs_a_grant_that_fits),
        cmocka_unit_test(records_have_a_cap),
        cmocka_unit_test(expired_grants_are_told_once),
        cmocka_unit_test(requests_are_rewritten),
        cmocka_unit_test(requests_for_more_are_refused),
        cmocka_unit_test(mounts_of_a_trusted_host_are_read_only),
        cmocka_unit_test(mounts_of_a_trusted_host_have_bounds),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
