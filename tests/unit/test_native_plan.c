/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/golden.h"
#include "lib/plan_print.h"

#include <errno.h>
#include <sys/resource.h>

#include "backend/native/plan.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "sandbox/plan/plan.h"
/* For what is private to it. */
#include "sandbox/setup/gvisor.c"
#include "spec/spec.h"

#define NAME "0123456789abcdef"

static char *const roots[] = {
    (char *)(uintptr_t) "/home",          (char *)(uintptr_t) "/srv",
    (char *)(uintptr_t) "/srv/projects",  (char *)(uintptr_t) "/etcetera",
    (char *)(uintptr_t) "/var/lib/boxes", NULL,
};

/* A host with a merged /usr, and one directory that is not. */
static const struct native_facts facts = {
    .dirs = {{"/bin", "usr/bin"},
             {"/sbin", "usr/sbin"},
             {"/lib", "usr/lib"},
             {"/lib32", ""},
             {"/lib64", "usr/lib64"}},
    .n_dirs = 5,
    .roots = roots,
};

static struct plan plan;

static struct spec *new_spec(void)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup("s");
    return s;
}

static void set(char **member, const char *text)
{
    free(*member);
    *member = xstrdup(text);
}

static void mount_host(struct spec *s, const char *host, const char *target, enum mount_mode mode)
{
    set(&s->host_path, host);
    set(&s->mount_path, target);
    set(&s->workdir, target);
    s->host_path_mode = mode;
}

static void add_extra(struct spec *s, const char *host, const char *target, enum mount_mode mode)
{
    size_t n = s->n_extra_mounts++;
    s->extra_mounts = xreallocarray(s->extra_mounts, s->n_extra_mounts, sizeof(s->extra_mounts[0]));
    s->extra_mounts[n] = (struct mount_spec){
        .host_path = xstrdup(host), .mount_path = xstrdup(target), .mode = mode};
}

/* Frees the spec. */
static int make(struct spec *s, const struct native_facts *f, struct err *err)
{
    *err = (struct err){0};
    int r = native_plan(s, f, NAME, 7, &plan, err);
    if (r == 0) {
        /* What we make is what box-priv accepts. */
        assert_int_equal(plan_check(&plan, plan_wire_size(&plan), err), 0);
        assert_string_equal(plan.name, NAME);
        assert_int_equal(plan.uid_index, 7);
    }
    assert_int_equal(r < 0, err->code != ERR_NONE);
    spec_free(s);
    return r;
}

static void compare(struct spec *s, const struct native_facts *f, const char *golden)
{
    AUTO_DONE(buf) struct buf text;
    struct err err;
    buf_init(&text, GOLDEN_MAX - 1);
    assert_int_equal(make(s, f, &err), 0);
    assert_int_equal(plan_print(&plan, &text), 0);
    golden_check(golden, buf_str(&text));
}

static void default_plan_is_the_golden_one(void **state)
{
    compare(new_spec(), &facts, "plan-default.txt");
}

static void writable_root_has_layers_and_is_the_payloads(void **state)
{
    struct spec *s = new_spec();
    s->read_only_rootfs = false;
    compare(s, &facts, "plan-writable-root.txt");
}

static void network_changes_the_flag_and_etc(void **state)
{
    struct spec *s = new_spec();
    s->network = NETWORK_ON;
    compare(s, &facts, "plan-network.txt");
}

static void host_directory_is_named_by_its_root(void **state)
{
    struct spec *s = new_spec();
    mount_host(s, "/srv/projects/one/", "/data", MOUNT_RW);
    compare(s, &facts, "plan-host-mount.txt");
}

static void further_names_are_links_at_the_end_of_the_path(void **state)
{
    static char *const aliases[] = {(char *)(uintptr_t) "python=/usr/bin/python3",
                                    (char *)(uintptr_t) "x=/opt/x", NULL};
    struct native_facts f = facts;
    f.aliases = aliases;
    compare(new_spec(), &f, "plan-aliases.txt");
    assert_non_null(strstr(plan_env[0], ":" PLAN_ALIAS_DIR));
}

static void aliases_name_commands_of_the_image(void **state)
{
    static char *const given[] = {(char *)(uintptr_t) "a=sh", (char *)(uintptr_t) "b=/opt/b",
                                  (char *)(uintptr_t) "c=no-such-command", NULL};
    AUTO_STRV char **got = native_aliases(given);
    assert_true(str_eq(got[0], "a=/usr/bin/sh") || str_eq(got[0], "a=/bin/sh"));
    assert_string_equal(got[1], "b=/opt/b");
    assert_string_equal(got[2], "c=/usr/bin/no-such-command");
    assert_null(got[3]);
    assert_null(native_aliases(NULL));
}

static void quota_limits_the_disk_and_single_files(void **state)
{
    struct native_facts f = facts;
    struct spec *s = new_spec();
    s->workspace_quota_mb = 100;
    s->cpus = 0.25;
    s->memory_mb = 64;
    s->pids_limit = 20;
    f.require_limits = true;
    f.core_by_pipe = true;
    compare(s, &f, "plan-quota.txt");
}

static void extra_mounts_come_last(void **state)
{
    struct spec *s = new_spec();
    mount_host(s, "/home/u/work", "/workspace", MOUNT_RO);
    add_extra(s, "/srv", "/mnt/srv", MOUNT_RO);
    add_extra(s, "/home/u/left-out", "/mnt/nothing", MOUNT_NONE);
    add_extra(s, "/etcetera/x", "/workspace/x", MOUNT_RW);
    compare(s, &facts, "plan-extra-mounts.txt");
}

static bool has_target(const char *target)
{
    for (uint32_t i = 0; i < plan.n_ops; i++)
        if (str_eq(plan_str(&plan, plan.ops[i].target), target))
            return true;
    return false;
}

static const struct plan_op *op_at(const char *target)
{
    for (uint32_t i = 0; i < plan.n_ops; i++)
        if (str_eq(plan_str(&plan, plan.ops[i].target), target))
            return &plan.ops[i];
    fail_msg("nothing at %s", target);
    return NULL;
}

/* A directory of the daemon's own: read-only, found through the allow-list like any other. */
static void artifacts_have_a_place(void **state)
{
    struct err err = {0};
    AUTO(spec) struct spec *s = new_spec();
    s->own.artifacts = xstrdup("/home/u/box/.box-artifacts/t/n/tree");
    assert_int_equal(native_plan(s, &facts, NAME, 7, &plan, &err), 0);
    const struct plan_op *op = op_at(SPEC_ARTIFACTS);
    assert_int_equal(op->source_class, PLAN_SRC_ALLOWED);
    assert_true(op->flags & PLAN_OP_RDONLY);
    assert_false(op->flags & PLAN_OP_LANDLOCK_RW);
    assert_int_equal(op->mode, PLAN_BIND_PUBLIC); /* no id map of its own: that takes a process */
    set(&s->own.artifacts, "/not/allowed");
    assert_int_equal(native_plan(s, &facts, NAME, 7, &plan, &err), err_code_errno(ERR_DENIED));
}

static void mode_none_mounts_nothing(void **state)
{
    struct spec *s = new_spec();
    struct err err;
    mount_host(s, "/etc/shadow", "/data", MOUNT_NONE); /* refused in any other mode */
    set(&s->workdir, "/elsewhere");
    add_extra(s, "/root", "/mnt/x", MOUNT_NONE);
    assert_int_equal(make(s, &facts, &err), 0);
    for (uint32_t i = 0; i < plan.n_ops; i++)
        assert_int_not_equal(plan.ops[i].source_class, PLAN_SRC_ALLOWED);
    assert_false(has_target("/mnt/x"));
    assert_string_equal(plan_str(&plan, op_at("/data")->source), "workspace");
}

static void workdir_is_made_where_nothing_else_is(void **state)
{
    static const struct {
        const char *workdir;
        bool made;
    } cases[] = {
        {"/workspace", false},  {"/workspace/sub", false}, {"/tmp/x", false},
        {"/home/box/x", false}, {"/elsewhere", true},      {"/home/other", true},
        {"/workspaces", true},  {"/etc/x", false},         {"/", false},
        {"/a/../b", false},
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct spec *s = new_spec();
        set(&s->workdir, cases[i].workdir);
        assert_int_equal(make(s, &facts, &err), 0);
        const struct plan_op *last = &plan.ops[plan.n_ops - 1];
        bool made =
            last->kind == PLAN_OP_DIR && str_eq(plan_str(&plan, last->target), cases[i].workdir);
        if (made != cases[i].made)
            fail_msg("%s", cases[i].workdir);
        assert_true(!made || last->flags == PLAN_OP_OWNED);
    }
}

/* Refusals. */

static void expect_refusal(struct spec *s, const struct native_facts *f, enum err_code code,
                           const char *part)
{
    struct err err;
    assert_int_equal(make(s, f, &err), err_code_errno(code));
    assert_int_equal(err.code, code);
    if (strstr(err.msg, part) == NULL)
        fail_msg("'%s' is not in '%s'", part, err.msg);
}

/* Where the kernel can limit the files of a workspace, it is told how many. */
static void the_most_entries_are_for_the_workspace_alone(void **state)
{
    AUTO(spec) struct spec *s = new_spec();
    struct native_facts limited = facts;
    struct err err = {0};
    uint32_t found = 0;
    limited.workspace_entries = 100;
    mount_host(s, "/srv/projects/one", "/data", MOUNT_RW);
    add_extra(s, "/srv/projects/two", "/mnt/x", MOUNT_RW);
    assert_int_equal(native_plan(s, &limited, "0123456789abcdef", 1, &plan, &err), 0);
    for (uint32_t i = 0; i < plan.n_ops; i++) {
        bool workspace = str_eq(plan_str(&plan, plan.ops[i].target), "/data");
        assert_int_equal(plan.ops[i].entries, workspace ? 100 : 0);
        found += workspace;
    }
    assert_int_equal(found, 1);
}

static void blocked_host_paths_are_refused(void **state)
{
    static const char *const dirs[] = {"/etc",  "/proc", "/sys", "/dev",
                                       "/root", "/boot", "/run", "/var/run"};
    static char *const everything[] = {(char *)(uintptr_t) "/", NULL};
    struct native_facts wide = facts;
    char path[64], text[128];
    wide.roots = everything; /* an allow-list never opens these */
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
        for (int below = 0; below < 2; below++) {
            (void)snprintf(path, sizeof(path), "%s%s", dirs[i], below ? "/x/docker.sock" : "");
            (void)snprintf(text, sizeof(text), "host_path %s is blocked for security", path);
            for (int mode = MOUNT_RO; mode <= MOUNT_RW; mode++) {
                struct spec *s = new_spec();
                mount_host(s, path, "/workspace", (enum mount_mode)mode);
                expect_refusal(s, &wide, ERR_DENIED, text);
                s = new_spec();
                add_extra(s, path, "/mnt/x", (enum mount_mode)mode);
                expect_refusal(s, &wide, ERR_DENIED, text);
            }
        }
    }
    struct spec *s = new_spec();
    mount_host(s, "/etc/", "/workspace", MOUNT_RO); /* however it is spelled */
    expect_refusal(s, &wide, ERR_DENIED, "host_path /etc is blocked for security");
    s = new_spec();
    mount_host(s, "/var", "/workspace", MOUNT_RO); /* with what lies below it */
    expect_refusal(s, &wide, ERR_DENIED, "host_path /var is blocked for security");
}

static void names_that_only_begin_alike_are_not_blocked(void **state)
{
    static const char *const paths[] = {"/etcetera", "/etcetera/x", "/home/etc", "/srv/proc/x"};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        struct spec *s = new_spec();
        mount_host(s, paths[i], "/workspace", MOUNT_RO);
        assert_int_equal(make(s, &facts, &err), 0);
    }
}

static void paths_outside_the_allow_list_are_refused(void **state)
{
    static const char *const paths[] = {"/homes", "/hom", "/var/lib", "/usr", "/s"};
    struct native_facts none = facts;
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        struct spec *s = new_spec();
        mount_host(s, paths[i], "/workspace", MOUNT_RO);
        expect_refusal(s, &facts, ERR_DENIED, "is outside the directories that may be mounted");
        s = new_spec();
        add_extra(s, paths[i], "/mnt/x", MOUNT_RO);
        expect_refusal(s, &facts, ERR_DENIED, "BOX_ALLOWED_MOUNT_ROOTS");
    }
    none.roots = NULL;
    struct spec *s = new_spec();
    mount_host(s, "/home/u", "/workspace", MOUNT_RO);
    expect_refusal(s, &none, ERR_DENIED, "is outside the directories that may be mounted");
}

static void unclean_host_paths_are_refused(void **state)
{
    static const char *const paths[] = {
        "/home/../etc",   "/home/u/..", "/home//u",  "//home/u",      "/home/./u",
        "/home/u/../../", "home/u",     "C:\\Users", "\\\\server\\x",
    };
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        struct spec *s = new_spec();
        mount_host(s, paths[i], "/workspace", MOUNT_RO);
        expect_refusal(s, &facts, ERR_INVALID, "must be absolute, without '.', '..' or '//'");
        s = new_spec();
        add_extra(s, paths[i], "/mnt/x", MOUNT_RO);
        expect_refusal(s, &facts, ERR_INVALID, "must be absolute");
    }
    /* At the longest that the kernel takes, and one past it. */
    char *deep = xcalloc(1, 4098);
    memset(deep, 'a', 4096);
    memcpy(deep, "/home/", 6);
    struct spec *s = new_spec();
    mount_host(s, deep, "/workspace", MOUNT_RO);
    expect_refusal(s, &facts, ERR_INVALID, "host_path is longer than 4095 bytes");
    deep[4095] = '\0';
    struct err err;
    s = new_spec();
    mount_host(s, deep, "/workspace", MOUNT_RO);
    assert_int_equal(make(s, &facts, &err), 0);
    free(deep);
}

static void reserved_targets_are_refused(void **state)
{
    static const char *const targets[] = {
        "/",      "/proc",      "/proc/self", "/sys", "/dev",   "/dev/shm",
        "/usr",   "/usr/local", "/etc",       "/bin", "/sbin",  "/lib",
        "/lib32", "/lib64",     "/libx32",    "/run", "/run/x", "/boot",
    };
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        assert_true(plan_target_reserved(targets[i]));
        struct spec *s = new_spec();
        mount_host(s, "/home/u", targets[i], MOUNT_RW);
        expect_refusal(s, &facts, ERR_DENIED, "is reserved");
        s = new_spec();
        add_extra(s, "/home/u", targets[i], MOUNT_RO);
        expect_refusal(s, &facts, ERR_DENIED, "is reserved");
        s = new_spec(); /* also for a workspace of our own */
        set(&s->mount_path, targets[i]);
        expect_refusal(s, &facts, ERR_DENIED, "is reserved");
    }
}

static void unclean_targets_are_refused(void **state)
{
    static const char *const targets[] = {"/workspace/../etc", "/workspace/", "//workspace",
                                          "/some/./place",     "workspace",   ""};
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        assert_false(plan_target_reserved(targets[i]) && targets[i][0] != '/');
        struct spec *s = new_spec();
        mount_host(s, "/home/u", targets[i], MOUNT_RW);
        expect_refusal(s, &facts, ERR_INVALID, "mount_path");
        s = new_spec();
        add_extra(s, "/home/u", targets[i], MOUNT_RO);
        expect_refusal(s, &facts, ERR_INVALID, "mount_path");
        s = new_spec();
        set(&s->mount_path, targets[i]);
        expect_refusal(s, &facts, ERR_INVALID, "mount_path");
    }
}

static void other_targets_are_free(void **state)
{
    static const char *const targets[] = {"/workspace",  "/etcetera", "/procs",
                                          "/libs/x",     "/mnt",      "/tmp/x",
                                          "/home/box/x", "/opt/tool", "/var/data"};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        struct spec *s = new_spec();
        mount_host(s, "/home/u", targets[i], MOUNT_RW);
        assert_int_equal(make(s, &facts, &err), 0);
        assert_false(plan_target_reserved(targets[i]));
    }
}

/* Roots. */

static void longest_root_decides(void **state)
{
    static const struct {
        const char *path, *rest;
        uint16_t root;
    } cases[] = {
        {"/srv", "", 1},
        {"/srv/x/y", "x/y", 1},
        {"/srv/projects", "", 2},
        {"/srv/projects/a", "a", 2},
        {"/srv/projects2", "projects2", 1},
        {"/home/u", "u", 0},
        {"/var/lib/boxes/b", "b", 4},
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct spec *s = new_spec();
        mount_host(s, cases[i].path, "/data", i % 2 ? MOUNT_RO : MOUNT_RW);
        assert_int_equal(make(s, &facts, &err), 0);
        const struct plan_op *op = op_at("/data");
        assert_int_equal(op->kind, PLAN_OP_BIND);
        assert_int_equal(op->source_class, PLAN_SRC_ALLOWED);
        assert_int_equal(op->root, cases[i].root);
        assert_string_equal(plan_str(&plan, op->source), cases[i].rest);
        assert_int_equal(op->flags, i % 2 ? PLAN_OP_RDONLY : PLAN_OP_LANDLOCK_RW);
    }
}

/* Of a user who may only do what it could do itself box-priv is told, and where that cannot look
 * with the user's rights nothing is mounted. */
static void mounts_of_a_bound_caller_are_for_box_priv_to_judge(void **state)
{
    struct native_facts rootless = facts;
    struct err err;
    rootless.one_id = true;
    for (int i = 0; i < 4; i++) {
        bool bound = i % 2 == 1, without = i >= 2;
        struct spec *s = new_spec();
        mount_host(s, "/home/u", "/data", MOUNT_RW);
        s->own.bound = bound;
        s->own.uid = bound ? 4321 : 0;
        if (bound && without) {
            expect_refusal(s, &rootless, ERR_DENIED, "cannot be mounted for uid 4321");
            continue;
        }
        assert_int_equal(make(s, without ? &rootless : &facts, &err), 0);
        assert_int_equal((plan.flags & PLAN_AS_CALLER) != 0, bound);
        assert_int_equal(plan.as_uid, bound ? 4321 : 0);
        plan.as_uid = bound ? 0 : 4321; /* root is never bound, and who is not has no name */
        assert_true(plan_check(&plan, plan_wire_size(&plan), &err) < 0);
    }
}

static void place_of_a_caller_may_lie_in_roots_home(void **state)
{
    static const char place[] = "/root/langbot/data/box";
    static char *const with[] = {(char *)(uintptr_t)place, (char *)(uintptr_t) "/etc/x", NULL};
    static const char *const never[] = {"/root/langbot/data", "/root/langbot/data/boxes", "/root",
                                        "/etc/x/y"};
    struct native_facts home = facts;
    struct err err;
    home.roots = with;
    home.roots_are_outer = true;
    struct spec *s = new_spec();
    mount_host(s, "/root/langbot/data/box/default", "/data", MOUNT_RW);
    s->own.place = xstrdup(place);
    assert_int_equal(make(s, &home, &err), 0);
    s = new_spec();
    mount_host(s, "/root/langbot/data/box/default", "/data", MOUNT_RW); /* nobody's place */
    expect_refusal(s, &home, ERR_DENIED, "is blocked for security");
    for (size_t i = 0; i < ARRAY_SIZE(never); i++) {
        s = new_spec();
        mount_host(s, never[i], "/data", MOUNT_RW);
        s->own.place = xstrdup(i < 3 ? place : "/etc/x");
        expect_refusal(s, &home, ERR_DENIED, "is blocked for security");
    }
}

static void built_in_roots_are_only_an_outer_bound(void **state)
{
    struct native_facts outer = facts;
    struct err err;
    outer.roots_are_outer = true;
    for (size_t i = 0; roots[i] != NULL; i++) {
        if (str_eq(roots[i], "/srv/projects"))
            continue; /* lies below another */
        struct spec *s = new_spec();
        mount_host(s, roots[i], "/data", MOUNT_RO);
        expect_refusal(s, &outer, ERR_DENIED, "is outside the directories that may be mounted");
    }
    struct spec *s = new_spec();
    mount_host(s, "/home/u", "/data", MOUNT_RO);
    assert_int_equal(make(s, &outer, &err), 0);
    /* A root that lies below another is reached by that one. */
    s = new_spec();
    mount_host(s, "/srv/projects", "/data", MOUNT_RO);
    assert_int_equal(make(s, &outer, &err), 0);
    assert_int_equal(op_at("/data")->root, 1);
    assert_string_equal(plan_str(&plan, op_at("/data")->source), "projects");
}

static void many_mounts_fit_and_too_long_ones_do_not(void **state)
{
    char host[512], target[600];
    struct err err;
    for (int round = 0; round < 2; round++) {
        struct spec *s = new_spec();
        for (int i = 0; i < SPEC_MOUNTS_MAX; i++) {
            (void)snprintf(host, sizeof(host), "/home/%0*d", round == 0 ? 100 : 300, i);
            (void)snprintf(target, sizeof(target), "/mnt/%0*d", round == 0 ? 100 : 300, i);
            add_extra(s, host, target, MOUNT_RO);
        }
        if (round == 0)
            assert_int_equal(make(s, &facts, &err), 0);
        else
            expect_refusal(s, &facts, ERR_LIMIT, "too many mounts, or paths too long in all");
    }
    struct spec *s = new_spec(); /* more than a spec can hold, but nothing here relies on that */
    for (int i = 0; i < 400; i++) {
        (void)snprintf(target, sizeof(target), "/mnt/%d", i);
        add_extra(s, "/home/u", target, MOUNT_RO);
    }
    expect_refusal(s, &facts, ERR_LIMIT, "more than 256 mounts");
}

static void place_that_is_taken_is_refused(void **state)
{
    static const char *const text = "mount_path /data is given twice";
    struct err err;
    struct spec *s = new_spec();
    mount_host(s, "/home/u", "/data", MOUNT_RW);
    add_extra(s, "/home/v", "/data", MOUNT_RO);
    expect_refusal(s, &facts, ERR_INVALID, text);
    s = new_spec();
    add_extra(s, "/home/v", "/data", MOUNT_RO);
    add_extra(s, "/home/v", "/data", MOUNT_RO);
    expect_refusal(s, &facts, ERR_INVALID, text);
    s = new_spec();
    add_extra(s, "/home/v", "/workspace", MOUNT_RO); /* our own workspace is there */
    expect_refusal(s, &facts, ERR_INVALID, "mount_path /workspace is given twice");
    s = new_spec();
    add_extra(s, "/home/v", "/data", MOUNT_NONE);
    add_extra(s, "/home/v", "/data", MOUNT_RO);
    assert_int_equal(make(s, &facts, &err), 0);
}

static uint32_t position(const char *target)
{
    return (uint32_t)(op_at(target) - plan.ops);
}

static void mounts_go_from_the_outside_in(void **state)
{
    struct err err;
    struct spec *s = new_spec();
    add_extra(s, "/srv/c", "/data/a/b/c", MOUNT_RO);
    add_extra(s, "/srv/a", "/data/a", MOUNT_RO);
    add_extra(s, "/srv/b", "/data/a/b", MOUNT_RO);
    add_extra(s, "/srv/h", "/home/box/h", MOUNT_RO);
    assert_int_equal(make(s, &facts, &err), 0);
    assert_true(position("/data/a") < position("/data/a/b"));
    assert_true(position("/data/a/b") < position("/data/a/b/c"));
    assert_true(position("/home/box") < position("/home/box/h"));
    assert_true(position("/tmp") < position("/workspace"));
}

static void home_is_ours_unless_the_caller_has_one(void **state)
{
    static const struct {
        const char *target;
        bool ours;
    } cases[] = {{"/home/box/x", true}, {"/home/b", true}, {"/home/box", false}, {"/home", false}};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct spec *s = new_spec();
        unsigned n = 0;
        add_extra(s, "/srv/x", cases[i].target, MOUNT_RW);
        assert_int_equal(make(s, &facts, &err), 0);
        for (uint32_t k = 0; k < plan.n_ops; k++)
            n += str_eq(plan_str(&plan, plan.ops[k].source), "home");
        assert_int_equal(n, cases[i].ours);
    }
}

static void limits_follow_the_spec_at_its_bounds(void **state)
{
    struct err err;
    struct spec *s = new_spec();
    s->cpus = 0.0001;
    s->memory_mb = 32;
    s->pids_limit = 1;
    assert_int_equal(make(s, &facts, &err), 0);
    assert_int_equal(plan.cpu_quota_us, 1000); /* the least the kernel takes */
    assert_int_equal(plan.memory_bytes, 32ULL << 20);
    assert_int_equal(plan.pids, 1);
    assert_int_equal(plan.quota_bytes, 0);
    assert_int_equal(plan.root_bytes, 16ULL << 20);
    s = new_spec();
    s->cpus = SPEC_CPUS_MAX;
    s->memory_mb = SPEC_SIZE_MB_MAX;
    s->pids_limit = SPEC_PIDS_MAX;
    s->workspace_quota_mb = SPEC_SIZE_MB_MAX;
    assert_int_equal(make(s, &facts, &err), 0);
    assert_int_equal(plan.cpu_quota_us, 819200000);
    assert_int_equal(plan.memory_bytes, 1ULL << 50);
    assert_int_equal(plan.pids, SPEC_PIDS_MAX);
    assert_int_equal(plan.quota_bytes, 1ULL << 50);
    assert_int_equal(plan.quota_inodes, (1ULL << 50) / 16384);
}

/* The plan, and the container that runsc is told of. */
static void compare_gvisor(struct spec *s, bool one_id, const char *golden)
{
    struct native_facts f = facts;
    AUTO_DONE(buf) struct buf text;
    struct err err;
    f.gvisor = true;
    f.one_id = one_id;
    buf_init(&text, GOLDEN_MAX - 1);
    assert_int_equal(make(s, &f, &err), 0);
    assert_int_equal(plan_print(&plan, &text), 0);
    assert_int_equal(gvisor_config(&plan, &text), 0);
    assert_int_equal(buf_putc(&text, '\n'), 0);
    golden_check(golden, buf_str(&text));
}

static void gvisor_has_its_own_proc_and_dev(void **state)
{
    struct spec *s = new_spec();
    mount_host(s, "/srv/projects/one/", "/data", MOUNT_RW);
    add_extra(s, "/home/me/read", "/data/read", MOUNT_RO);
    compare_gvisor(s, false, "plan-gvisor.txt");
}

static void gvisor_on_a_writable_root_has_one_id(void **state)
{
    struct spec *s = new_spec();
    s->read_only_rootfs = false;
    s->network = NETWORK_ON;
    compare_gvisor(s, false, "plan-gvisor-writable-root.txt");
}

static void gvisor_without_root_has_one_id(void **state)
{
    struct native_facts f = facts;
    struct err err;
    f.gvisor = f.one_id = true;
    assert_int_equal(make(new_spec(), &f, &err), 0);
    assert_int_equal(plan.payload_uid, 0);
    assert_int_equal(plan.init_uid, 0);
    assert_false(plan.flags & PLAN_ROOT_WRITABLE);
}

static void gvisor_config_that_does_not_fit_is_an_error(void **state)
{
    struct native_facts f = facts;
    AUTO_DONE(buf) struct buf text;
    struct err err;
    f.gvisor = true;
    assert_int_equal(make(new_spec(), &f, &err), 0);
    buf_init(&text, 200);
    assert_true(gvisor_config(&plan, &text) < 0);
}

static void gvisor_gets_more_tasks_than_programs(void **state)
{
    assert_true(gvisor_host_tasks(1) > 1000);
    assert_true(gvisor_host_tasks(512) > 512 * 10);
    assert_int_equal(gvisor_host_tasks(UINT32_MAX), 4194304); /* the kernel takes no more */
}

static void name_must_fit(void **state)
{
    struct err err = {0};
    struct spec *s = new_spec();
    assert_true(native_plan(s, &facts, "0123456789abcdef0", 0, &plan, &err) < 0);
    assert_true(native_plan(s, &facts, "0123456789abcde", 0, &plan, &err) < 0);
    assert_true(native_plan(s, &facts, "0123456789abcdeF", 0, &plan, &err) < 0);
    assert_int_equal(native_plan(s, &facts, NAME, 0, &plan, &err), 0);
    spec_free(s);
}

static void facts_of_this_host_make_a_plan(void **state)
{
    struct native_facts here = {0};
    struct err err;
    native_facts_read(&here);
    assert_in_range(here.n_dirs, 1, NATIVE_HOST_DIRS_MAX);
    for (size_t i = 0; i < here.n_dirs; i++)
        assert_int_not_equal(here.dirs[i].link[0], '/');
    assert_int_equal(make(new_spec(), &here, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_plan_is_the_golden_one),
        cmocka_unit_test(artifacts_have_a_place),
        cmocka_unit_test(writable_root_has_layers_and_is_the_payloads),
        cmocka_unit_test(network_changes_the_flag_and_etc),
        cmocka_unit_test(host_directory_is_named_by_its_root),
        cmocka_unit_test(quota_limits_the_disk_and_single_files),
        cmocka_unit_test(extra_mounts_come_last),
        cmocka_unit_test(mode_none_mounts_nothing),
        cmocka_unit_test(workdir_is_made_where_nothing_else_is),
        cmocka_unit_test(the_most_entries_are_for_the_workspace_alone),
        cmocka_unit_test(blocked_host_paths_are_refused),
        cmocka_unit_test(names_that_only_begin_alike_are_not_blocked),
        cmocka_unit_test(paths_outside_the_allow_list_are_refused),
        cmocka_unit_test(unclean_host_paths_are_refused),
        cmocka_unit_test(reserved_targets_are_refused),
        cmocka_unit_test(unclean_targets_are_refused),
        cmocka_unit_test(other_targets_are_free),
        cmocka_unit_test(longest_root_decides),
        cmocka_unit_test(built_in_roots_are_only_an_outer_bound),
        cmocka_unit_test(mounts_of_a_bound_caller_are_for_box_priv_to_judge),
        cmocka_unit_test(place_of_a_caller_may_lie_in_roots_home),
        cmocka_unit_test(many_mounts_fit_and_too_long_ones_do_not),
        cmocka_unit_test(place_that_is_taken_is_refused),
        cmocka_unit_test(mounts_go_from_the_outside_in),
        cmocka_unit_test(home_is_ours_unless_the_caller_has_one),
        cmocka_unit_test(limits_follow_the_spec_at_its_bounds),
        cmocka_unit_test(gvisor_has_its_own_proc_and_dev),
        cmocka_unit_test(gvisor_on_a_writable_root_has_one_id),
        cmocka_unit_test(gvisor_without_root_has_one_id),
        cmocka_unit_test(gvisor_config_that_does_not_fit_is_an_error),
        cmocka_unit_test(gvisor_gets_more_tasks_than_programs),
        cmocka_unit_test(further_names_are_links_at_the_end_of_the_path),
        cmocka_unit_test(aliases_name_commands_of_the_image),
        cmocka_unit_test(name_must_fit),
        cmocka_unit_test(facts_of_this_host_make_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
