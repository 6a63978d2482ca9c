/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"

/* What of the engine backend needs no engine: names, references, hashes, the request for a
 * container, versions. */

static struct spec *make_spec(void)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup("chat 1/ü");
    free(s->image);
    s->image = xstrdup("busybox:1");
    s->cpus = 0.5;
    s->memory_mb = 100;
    s->pids_limit = 60;
    s->read_only_rootfs = true;
    return s;
}

static bool has(const struct json *list, const char *text)
{
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eq(json_str(json_at(list, i)), text))
            return true;
    return false;
}

static struct json *make_body(const struct spec *spec, const struct engine_mounts *mounts,
                              const char *user)
{
    struct buf text;
    struct err err = {0};
    struct json *body = NULL;
    struct engine_plan plan = {.spec = spec,
                               .mounts = mounts,
                               .name = "langbot-box-x-01234567",
                               .instance = "0123456789abcdef",
                               .hash = "feedfeedfeedfeed",
                               .image = spec->image,
                               .user = user,
                               .seccomp = "{\"x\": \"y\"}",
                               .guest_program = "/opt/box/box-guest",
                               .run_dir = "/var/lib/box/engine/x",
                               .own_id = true,
                               .nproc_max = 100};
    buf_init(&text, ENGINE_CREATE_MAX);
    assert_int_equal(engine_create_body(&plan, &text, &err), 0);
    assert_int_equal(json_parse(text.data, text.len, &body, &err), 0);
    buf_done(&text);
    return body;
}

static const struct json *find(const struct json *v, const char *a, const char *b)
{
    v = json_get(v, a);
    return b != NULL ? json_get(v, b) : v;
}

static void a_container_has_every_wall(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    struct engine_mounts none = {0};
    AUTO(json) struct json *body = make_body(spec, &none, "2000000001:2000000001");
    const struct json *host = json_get(body, "HostConfig");
    assert_string_equal(json_str(json_at(json_get(host, "CapDrop"), 0)), "ALL");
    assert_string_equal(json_str(json_at(json_get(host, "SecurityOpt"), 0)), "no-new-privileges");
    assert_string_equal(json_str(json_at(json_get(host, "SecurityOpt"), 1)),
                        "seccomp={\"x\": \"y\"}");
    assert_true(json_bool(json_get(host, "ReadonlyRootfs")));
    assert_int_equal(json_type(json_get(host, "Init")), JSON_BOOL);
    assert_false(json_bool(json_get(host, "Init"))); /* box-guest is one */
    assert_true(has(json_get(host, "MaskedPaths"), "/proc/kallsyms"));
    assert_true(has(json_get(host, "MaskedPaths"), "/sys/block"));
    assert_true(has(json_get(host, "MaskedPaths"), "/sys/firmware"));
    assert_false(has(json_get(host, "MaskedPaths"), "/sys/fs/cgroup"));
    /* A list of one's own replaces Docker's. */
    assert_true(has(json_get(host, "ReadonlyPaths"), "/proc/sys"));
    assert_true(has(json_get(host, "ReadonlyPaths"), "/dev"));
    assert_true(json_bool(json_get(host, "AutoRemove")));
    assert_false(json_bool(json_get(host, "Privileged")));
    assert_int_equal(json_int(json_get(host, "Memory")), 100 << 20);
    assert_int_equal(json_int(json_get(host, "MemorySwap")), 100 << 20);
    assert_int_equal(json_int(json_get(host, "NanoCpus")), 500000000);
    assert_int_equal(json_int(json_get(host, "PidsLimit")), 60 + engine_pids_reserve(true));
    assert_string_equal(json_str(json_get(host, "NetworkMode")), "none");
    assert_string_equal(json_str(json_get(host, "IpcMode")), "private");
    assert_string_equal(json_str(find(host, "LogConfig", "Type")), "none");
    assert_string_equal(json_str(find(host, "RestartPolicy", "Name")), "no");
    assert_non_null(json_get(json_get(host, "Tmpfs"), "/tmp"));
    assert_non_null(json_get(json_get(host, "Tmpfs"), "/workspace"));
    assert_null(json_get(host, "Binds"));
    assert_null(json_get(body, "Runtime"));
    assert_string_equal(json_str(json_get(body, "User")), "2000000001:2000000001");
    assert_string_equal(json_str(json_at(find(body, "Healthcheck", "Test"), 0)), "NONE");
    assert_string_equal(json_str(json_get(body, "StopSignal")), "SIGKILL");
    assert_string_equal(json_str(json_at(json_get(body, "Entrypoint"), 0)), GUEST_PROGRAM);
}

static void gvisor_has_room_for_its_own_tasks(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    assert_int_equal(engine_pids_max(spec, true, false), 60 + engine_pids_reserve(true));
    assert_true(engine_pids_max(spec, true, true) > 16 * (60 + engine_pids_reserve(true)));
}

static void a_container_is_told_by_its_labels(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    struct engine_mounts none = {0};
    AUTO(json) struct json *body = make_body(spec, &none, NULL);
    const struct json *labels = json_get(body, "Labels");
    assert_string_equal(json_str(json_get(labels, "langbot.box")), "true");
    assert_string_equal(json_str(json_get(labels, "langbot.session_id")), "chat 1/ü");
    assert_string_equal(json_str(json_get(labels, "langbot.box.instance_id")), "0123456789abcdef");
    assert_string_equal(json_str(json_get(labels, "langbot.box.config_hash")), "feedfeedfeedfeed");
    assert_string_equal(json_str(json_get(labels, "langbot.box.labels")), "");
    assert_null(json_get(body, "User"));
    assert_null(json_get(body, "Env"));
}

/* What is in an image's labels alone is not the session's. */
static void the_labels_of_a_session_are_told_from_its_images(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    struct engine_mounts none = {0};
    strv_add(&spec->own.labels, "chat_id=a=b");
    strv_add(&spec->own.labels, "expires_at=");
    AUTO(json) struct json *body = make_body(spec, &none, NULL);
    const struct json *labels = json_get(body, "Labels");
    assert_string_equal(json_str(json_get(labels, "chat_id")), "a=b");
    assert_string_equal(json_str(json_get(labels, "expires_at")), "");
    assert_string_equal(json_str(json_get(labels, "langbot.box.labels")), "chat_id,expires_at");
}

static void mounts_are_typed_and_private(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    struct engine_mounts mounts = {.n = 1};
    mounts.list[0] = (struct engine_mount){.source = (char *)(uintptr_t) "/srv/a:b,c",
                                           .target = (char *)(uintptr_t) "/workspace",
                                           .read_only = true};
    spec->host_path = xstrdup("/srv/a:b,c");
    spec->network = NETWORK_ON;
    AUTO(json) struct json *body = make_body(spec, &mounts, "1:1");
    const struct json *host = json_get(body, "HostConfig"), *list = json_get(host, "Mounts");
    assert_int_equal(json_len(list), 3);
    for (size_t i = 0; i < 3; i++) {
        const struct json *m = json_at(list, i);
        assert_string_equal(json_str(json_get(m, "Type")), "bind");
        assert_true(json_bool(json_get(m, "ReadOnly")));
        assert_string_equal(json_str(find(m, "BindOptions", "Propagation")), "rprivate");
        assert_int_equal(json_type(find(m, "BindOptions", "CreateMountpoint")), JSON_BOOL);
        assert_false(json_bool(find(m, "BindOptions", "CreateMountpoint")));
    }
    assert_string_equal(json_str(json_get(json_at(list, 2), "Source")), "/srv/a:b,c");
    assert_null(json_get(json_get(host, "Tmpfs"), "/workspace"));
    assert_null(json_get(host, "NetworkMode"));
}

static void a_workspace_of_ones_own(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    assert_int_equal(engine_workspace(spec, false), ENGINE_WORKSPACE_MEMORY);
    assert_int_equal(engine_workspace_bytes(spec), 50 << 20);
    assert_int_equal(engine_workspace(spec, true), ENGINE_WORKSPACE_VOLUME);
    spec->workspace_quota_mb = 7;
    assert_int_equal(engine_workspace(spec, true), ENGINE_WORKSPACE_MEMORY);
    assert_int_equal(engine_workspace_bytes(spec), 7 << 20);
    spec->host_path = xstrdup("/srv");
    assert_int_equal(engine_workspace(spec, true), ENGINE_WORKSPACE_HOST);
    spec->host_path_mode = MOUNT_NONE;
    assert_int_equal(engine_workspace(spec, true), ENGINE_WORKSPACE_MEMORY);
}

static void names_are_made_of_ids(void **state)
{
    static const struct {
        const char *id, *name;
    } cases[] = {
        {"s1", "langbot-box-s1-01234567"},
        {"A.b_C-d", "langbot-box-a.b_c-d-01234567"},
        {"chat 1/ü", "langbot-box-chat-1-01234567"},
        {"---", "langbot-box-session-01234567"},
        {"", "langbot-box-session-01234567"},
        {"üü", "langbot-box-session-01234567"},
        {"-a//b-", "langbot-box-a-b-01234567"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "langbot-box-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-01234567"},
    };
    char name[ENGINE_NAME_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        engine_container_name(cases[i].id, "0123456789abcdef", name, sizeof(name));
        assert_string_equal(name, cases[i].name);
    }
}

/* python3 -c 'import json, hashlib; print(hashlib.sha256(json.dumps({…}, sort_keys=True)…' */
static void the_hash_is_that_of_python(void **state)
{
    AUTO(spec) struct spec *spec = make_spec();
    char hash[BACKEND_CONFIG_HASH_LEN + 1];
    backend_config_hash(spec, hash);
    assert_string_equal(hash, "84416d25de0d4533");
    spec->host_path = xstrdup("/srv/\"x\"\\\t/\xc3\xbc\xf0\x9f\x90\xb3");
    spec->host_path_mode = MOUNT_RO;
    spec->network = NETWORK_ON;
    spec->cpus = 2;
    spec->read_only_rootfs = false;
    backend_config_hash(spec, hash);
    assert_string_equal(hash, "0f9390e49cbad9ef");
}

static void only_a_reference_is_an_image(void **state)
{
    static const char digest[] =
        "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    static const char *const good[] = {
        "busybox",
        "busybox:1.36",
        "library/busybox",
        "a/b/c:x",
        "localhost/a",
        "localhost:5000/a",
        "registry.example.com/a/b:T_a.g-1",
        "registry.example.com:443/a",
        "a.b__c-d--e",
        "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "rockchin/langbot-sandbox:latest",
        "0"};
    static const char *const bad[] = {
        "",           "-x",     "--privileged", "-v/:/h",      "a;b",
        "a b",        "A",      "a/B",          "/a",          "a/",
        "a//b",       "a:b:c",  "a:",           "a:-x",        "a:.x",
        "http://a/b", "a@",     "a@sha256:",    "a@sha256:12", "a@md5:12",
        "../a",       "a/../b", "a/..",         ".a",          "_a",
        "a_",         "a.",     "a-",           "a___b",       "a._b",
        "a\nb",       "a?b",    "a#b",          "a%20",        "host:99999999/a",
        "host:/a",    "-h.x/a", "h.x-/a",       "sha256:xyz",  "a\\b",
        "\xc3\xbc"};
    struct err err = {0};
    char text[600];
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        assert_int_equal(engine_image_check(good[i], &err), 0);
        (void)snprintf(text, sizeof(text), "%s%s", good[i], digest);
        if (!str_starts(good[i], "sha256:"))
            assert_int_equal(engine_image_check(text, &err), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        if (engine_image_check(bad[i], &err) == 0)
            fail_msg("'%s' passed", bad[i]);
        assert_int_equal(err.code, ERR_INVALID);
    }
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_true(engine_image_check(text, &err) < 0);
}

static void labels_of_an_image_have_a_limit(void **state)
{
    static const char head[] = "{\"Config\": {\"Labels\": {\"a\": \"";
    static const char tail[] = "\", \"b\": \"c\"}}}";
    for (size_t len = 100; len <= 100000; len *= 1000) {
        AUTO(json) struct json *image = NULL;
        AUTO_DONE(buf) struct buf text;
        struct err err = {0};
        buf_init(&text, 200000);
        assert_int_equal(buf_puts(&text, head), 0);
        for (size_t i = 0; i < len; i++)
            assert_int_equal(buf_putc(&text, 'x'), 0);
        assert_int_equal(buf_puts(&text, tail), 0);
        assert_int_equal(json_parse(text.data, text.len, &image, &err), 0);
        int r = engine_image_labels(image, "large:1", &err);
        assert_true((r < 0) == (len > 65536));
        if (r < 0)
            assert_non_null(strstr(err.msg, "image large:1 has 100015 bytes of labels"));
    }
}

static int take_volumes(const char *volumes, char ***ret, struct err *err)
{
    AUTO(spec) struct spec *spec = make_spec();
    AUTO(json) struct json *image = NULL;
    AUTO_FREE char *text = xasprintf("{\"Config\": {\"Volumes\": %s}}", volumes);
    struct engine_mounts mounts = {.n = 1};
    mounts.list[0].target = (char *)(uintptr_t) "/mine";
    assert_int_equal(json_parse(text, strlen(text), &image, err), 0);
    return engine_image_volumes(image, spec, &mounts, ret, err);
}

static void volumes_of_an_image_are_taken_over_or_refused(void **state)
{
    static const char *const refused[] = {"/",        "/proc", "/proc/x",   "/sys",
                                          "/dev/shm", "/.box", "/.box/run", "x",
                                          "/a/../b",  "//a",   ""};
    struct err err = {0};
    AUTO_STRV char **list = NULL;
    assert_int_equal(take_volumes("null", &list, &err), 0);
    assert_null(list);
    assert_int_equal(take_volumes("{\"/a/\": {}, \"/mine\": {}, \"/tmp\": {}, \"/workspace\": {}, "
                                  "\"/devices\": {}}",
                                  &list, &err),
                     0);
    assert_int_equal(strv_len(list), 2);
    assert_string_equal(list[0], "/a");
    assert_string_equal(list[1], "/devices");
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        AUTO_FREE char *text = xasprintf("{\"%s\": {}}", refused[i]);
        char **none = NULL;
        assert_true(take_volumes(text, &none, &err) < 0);
        assert_int_equal(err.code, ERR_DENIED);
        assert_null(none);
    }
}

static void what_is_fetched_is_added_up(void **state)
{
    struct engine_pull *pull = NULL;
    char name[16];
    assert_false(engine_pull_excess(&pull, "a", ENGINE_PULL_MAX - 1));
    assert_false(engine_pull_excess(&pull, "a", ENGINE_PULL_MAX - 1)); /* the same again */
    assert_false(engine_pull_excess(&pull, "b", 1));
    assert_true(engine_pull_excess(&pull, "c", 1));
    free(pull);
    pull = NULL;
    assert_true(engine_pull_excess(&pull, "a", UINT64_MAX));
    assert_true(engine_pull_excess(&pull, "b", UINT64_MAX));
    free(pull);
    pull = NULL;
    for (unsigned i = 0; i < 127; i++) {
        (void)snprintf(name, sizeof(name), "%u", i);
        assert_false(engine_pull_excess(&pull, name, 1));
    }
    assert_true(engine_pull_excess(&pull, "more", 1));
    free(pull);
}

static void old_runtimes_are_named(void **state)
{
    static const struct {
        const char *program, *version;
        bool old;
    } cases[] = {
        {"runc", "1.1.5+ds1", true},
        {"runc", "1.2.8", true},
        {"runc", "1.3.5", true},
        {"runc", "1.3.6", false},
        {"runc", "1.4.2", true},
        {"runc", "1.4.3", false},
        {"runc", "1.5.0-rc.2", true},
        {"runc", "1.5.0-rc.3", false},
        {"runc", "1.5.0", false},
        {"runc", "1.6.0", false},
        {"runc", "2.0.0", false},
        {"runc", "runc version 1.1.5", true},
        {"crun", "crun version 1.8.1", true},
        {"crun", "1.27", true},
        {"crun", "1.28", false},
        {"crun", "1.30.1", false},
        {"runc", "unknown", false},
        {"kata", "0.1.0", false},
        {"runc", "1.5.0~rc2", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if ((engine_floor_breach(cases[i].program, cases[i].version) != NULL) != cases[i].old)
            fail_msg("%s %s", cases[i].program, cases[i].version);
}

static void what_an_engine_says_about_itself(void **state)
{
    static const struct {
        const char *text;
        bool narrow, live, gvisor, no_network;
    } cases[] = {
        {"{}", false, false, false},
        {"{\"DefaultRuntime\": \"a\", \"Runtimes\": {\"a\": {\"path\": \"/usr/bin/runsc\"}}}",
         false, false, true},
        {"{\"DefaultRuntime\": \"runsc\", \"Runtimes\": {\"runsc\": {\"path\": \"/x/runc\"}}}",
         false, false, false},
        {"{\"DefaultRuntime\": \"runsc\"}", false, false, true},
        {"{\"DefaultRuntime\": \"r\", \"Runtimes\": {\"r\": {\"path\": \"runsc\", \"runtimeArgs\": "
         "[1, "
         "\"--debug\", \"--network=none\"]}}}",
         false, false, true, true},
        {"{\"DefaultRuntime\": \"r\", \"Runtimes\": {\"r\": {\"path\": \"runsc\", \"runtimeArgs\": "
         "[\"--network=host\"]}}}",
         false, false, true, false},
        {"{\"SecurityOptions\": [\"name=seccomp,profile=default\"]}", false, false},
        {"{\"SecurityOptions\": [\"name=rootless\"], \"LiveRestoreEnabled\": true}", true, true},
        {"{\"SecurityOptions\": [3, null, \"name=userns\"]}", true, false},
        {"{\"SecurityOptions\": \"name=userns\"}", false, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct engine_facts f = {0};
        struct err err = {0};
        AUTO(json) struct json *info = NULL;
        assert_int_equal(json_parse(cases[i].text, strlen(cases[i].text), &info, &err), 0);
        engine_facts_read(&f, info, NULL);
        assert_true(f.known);
        assert_int_equal(f.narrow, cases[i].narrow);
        assert_int_equal(f.live_restore, cases[i].live);
        assert_int_equal(f.gvisor, cases[i].gvisor);
        assert_int_equal(f.no_network, cases[i].no_network);
        engine_facts_read(&f, info, "/opt/runsc");
        assert_true(f.gvisor);
    }
}

static void bound_caller_gets_no_directory_of_the_host(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    static struct engine e;
    struct engine_mounts mounts;
    struct err err = {0};
    s->own.bound = true;
    s->own.uid = 4321;
    s->host_path = xstrdup("/home/u");
    s->host_path_mode = MOUNT_RO;
    assert_true(engine_mounts_collect(s, &e, &mounts, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_non_null(strstr(err.msg, "host_path /home/u cannot be mounted for uid 4321"));
    s->host_path_mode = MOUNT_NONE;
    assert_int_equal(engine_mounts_collect(s, &e, &mounts, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_container_has_every_wall),
        cmocka_unit_test(gvisor_has_room_for_its_own_tasks),
        cmocka_unit_test(a_container_is_told_by_its_labels),
        cmocka_unit_test(the_labels_of_a_session_are_told_from_its_images),
        cmocka_unit_test(mounts_are_typed_and_private),
        cmocka_unit_test(a_workspace_of_ones_own),
        cmocka_unit_test(names_are_made_of_ids),
        cmocka_unit_test(the_hash_is_that_of_python),
        cmocka_unit_test(only_a_reference_is_an_image),
        cmocka_unit_test(labels_of_an_image_have_a_limit),
        cmocka_unit_test(volumes_of_an_image_are_taken_over_or_refused),
        cmocka_unit_test(what_is_fetched_is_added_up),
        cmocka_unit_test(old_runtimes_are_named),
        cmocka_unit_test(what_an_engine_says_about_itself),
        cmocka_unit_test(bound_caller_gets_no_directory_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
