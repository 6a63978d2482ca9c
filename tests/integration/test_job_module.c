/* SPDX-License-Identifier: Apache-2.0 */

/* The skill store of somebody else: boxd is an unprivileged user, box-priv starts each job as the
 * owner of the store. The real programs, on a state directory of their own. */

#include "lib/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/native/native.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/user.h"
#include "fetch/launcher.h"
#include "jobs/jobs.h"
#include "loop/loop.h"

/* Whose store it is: an ordinary user can only have one of its own. */
#define OWNER (user_is_host_root() ? 61234U : geteuid())
#define GROUP (user_is_host_root() ? 61235U : getegid())
#define NOBODYS 1999999999U /* who boxd would be */

static const char *programs = PROGRAMS;

static struct {
    char dir[64]; /* "allowed" and "state" below it */
    char allowed[80];
    struct loop *loop;
    struct backend *backend;
    struct fetch_launcher *launcher;
    struct jobs *skills;
    char *json, *message; /* owned; of the last answer */
    bool answered;
} it;

static void on_gone(void *arg)
{
    fail_msg("box-priv has died");
}

static int set_up(void **state)
{
    static char *roots[3], state_dir[80], closed[80], program[3][4096];
    static const char *const names[] = {"box-priv", "box-init", "box-fetch"};
    struct err err = {0};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (str_fmt(program[i], sizeof(program[i]), "%s/%s", programs, names[i]) < 0)
            return -1;
    (void)snprintf(it.dir, sizeof(it.dir), "/tmp/box-job-XXXXXX");
    if (mkdtemp(it.dir) == NULL || chmod(it.dir, 0755) < 0)
        return -1;
    (void)snprintf(it.allowed, sizeof(it.allowed), "%s/allowed", it.dir);
    (void)snprintf(state_dir, sizeof(state_dir), "%s/allowed/state", it.dir);
    (void)snprintf(closed, sizeof(closed), "%s/gone", it.dir);
    roots[0] = it.allowed;
    roots[1] = closed; /* does not exist when box-priv starts */
    if (mkdir(it.allowed, 0755) < 0 || mkdir(state_dir, 0711) < 0 ||
        (user_is_host_root() && chown(state_dir, NOBODYS, NOBODYS) < 0))
        return -1;
    const struct native_options options = {.program = program[0],
                                           .init_program = program[1],
                                           .fetch_program = program[2],
                                           .state_dir = state_dir,
                                           .tag = "box-0j0b0t0e0s0",
                                           .uid = NOBODYS,
                                           .gid = NOBODYS,
                                           .roots = roots,
                                           .gone = on_gone};
    int r = loop_new(&clock_system, &it.loop, &err);
    if (r == 0)
        r = native_new(it.loop, &options, &it.backend, &err);
    if (r == 0) {
        it.launcher = native_launcher_new(it.backend);
        const struct jobs_options so = {.launcher = it.launcher};
        r = jobs_new(it.loop, &so, &it.skills, &err);
    }
    if (r < 0)
        print_error("%s\n", err.msg);
    return r;
}

static int tear_down(void **state)
{
    jobs_free(it.skills);
    fetch_launcher_free(it.launcher);
    if (it.backend != NULL)
        it.backend->ops->free(it.backend);
    loop_free(it.loop);
    free(it.json);
    free(it.message);
    return path_remove_tree_at(AT_FDCWD, it.dir);
}

static char *json_written(const struct json *v)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, 32U << 20);
    jw_init(&w, &out);
    jw_value(&w, v);
    assert_int_equal(jw_end(&w), 0);
    return buf_take(&out);
}

static void on_done(void *arg, const struct json *data, const struct job_failure *failure)
{
    it.answered = true;
    free(it.json);
    free(it.message);
    it.json = data != NULL ? json_written(data) : NULL;
    it.message = failure != NULL ? xasprintf("%s: %s", failure->class, failure->text) : NULL;
}

static void wait_for_answer(void)
{
    for (int i = 0; !it.answered && i < 3000; i++)
        assert_true(loop_turn(it.loop, 10) >= 0);
    assert_true(it.answered);
}

static void call(enum skills_op op, const char *data)
{
    struct err err = {0};
    AUTO(json) struct json *request = NULL;
    it.answered = false;
    assert_int_equal(json_parse(data, strlen(data), &request, &err), 0);
    assert_int_equal(jobs_skill(it.skills, "ws-1", op, request, -1, on_done, NULL, &err), 0);
    wait_for_answer();
}

static void use_root(const char *rel)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", it.allowed, rel);
    jobs_set_skills_root(it.skills, path);
}

static void make(const char *rel, uid_t uid, gid_t gid, mode_t mode)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", it.allowed, rel);
    assert_int_equal(mkdir(path, mode), 0);
    assert_int_equal(chown(path, uid, gid), 0);
}

static void belongs_to(const char *rel, uid_t uid, gid_t gid)
{
    char path[256];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", it.allowed, rel);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_uid, uid);
    assert_int_equal(st.st_gid, gid);
}

static void a_store_is_kept_by_its_owner(void **state)
{
    make("theirs", OWNER, GROUP, 0700);
    use_root("theirs/data/skills");
    call(SKILLS_CREATE, "{\"skill\":{\"name\":\"demo\"}}");
    assert_non_null(it.json);
    belongs_to("theirs/data", OWNER, GROUP);
    belongs_to("theirs/data/skills/tenants/ws-1/demo/SKILL.md", OWNER, GROUP);
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.json, "\"name\":\"demo\""));
    call(SKILLS_DELETE, "{\"name\":\"demo\"}");
    assert_string_equal(it.json, "{\"deleted\":\"demo\"}");
}

static void a_store_of_root_is_kept_without_its_powers(void **state)
{
    make("roots", 0, 0, 0755);
    use_root("roots/skills");
    call(SKILLS_CREATE, "{\"skill\":{\"name\":\"demo\"}}");
    assert_non_null(it.json);
    belongs_to("roots/skills/tenants/ws-1/demo/SKILL.md", 0, 0);
    /* Root could read this by DAC_OVERRIDE alone. */
    make("roots/skills/tenants/ws-1/demo/closed", OWNER, OWNER, 0700);
    call(SKILLS_LIST_FILES, "{\"name\":\"demo\",\"path\":\"closed\"}");
    assert_non_null(it.message);
    assert_non_null(strstr(it.message, "Permission denied"));
}

static void what_is_not_allowed_is_refused(void **state)
{
    char link[256];
    jobs_set_skills_root(it.skills, "/etc/skills");
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.message, "allowed_mount_roots"));
    (void)snprintf(link, sizeof(link), "%s/link", it.allowed);
    assert_int_equal(symlink("/etc", link), 0);
    use_root("link/skills");
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.message, "has a symbolic link in its path"));
    use_root("state/skills");
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.message, "overlaps with the state directory"));
    struct err err = {0};
    it.answered = false;
    assert_int_equal(hostdir_ensure(it.skills, it.allowed, on_done, NULL, &err), 0);
    wait_for_answer();
    assert_non_null(strstr(it.message, "overlaps with the state directory"));
    (void)snprintf(link, sizeof(link), "%s/gone/x", it.dir);
    jobs_set_skills_root(it.skills, link);
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.message, "not in the allow-list"));
    make("sandboxed", 2000000001U, 2000000001U, 0755);
    use_root("sandboxed");
    call(SKILLS_LIST, "{}");
    assert_non_null(strstr(it.message, "belongs to a sandbox"));
}

static void a_mount_inside_is_another_place(void **state)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/mounted", it.allowed);
    make("mounted", OWNER, GROUP, 0755);
    assert_int_equal(mount("none", path, "tmpfs", 0, "size=1m"), 0);
    use_root("mounted");
    call(SKILLS_LIST, "{}");
    assert_int_equal(umount(path), 0);
    assert_null(it.message); /* storage of its own, below an allowed directory */
    assert_int_equal(mount(it.dir, path, NULL, MS_BIND, NULL), 0);
    use_root("mounted/skills");
    call(SKILLS_LIST, "{}");
    assert_int_equal(umount(path), 0);
    assert_non_null(it.message);
    assert_non_null(strstr(it.message, "crosses a mount point"));
}

static void put(const char *rel, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", it.allowed, rel);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && fd_write_all(fd, text, strlen(text)) == 0);
}

/* What a job says that copies from there, by the manifest of an empty tree. */
static void copy(const char *source, const char *manifest)
{
    static const struct job_kind kind = {
        .op = "add_artifact", .error_class = "BoxError", .create = true, .seconds = 10};
    static const char data[] =
        "{\"content_digest\":"
        "\"sha256:8e00d1a31787e59c19fc53875e374237e940789d1de2f1bee5273985a41f4e79\"}";
    struct err err = {0};
    AUTO(json) struct json *request = NULL;
    char dir[256], from[256], list[256];
    (void)snprintf(dir, sizeof(dir), "%s/cache/of/one", it.allowed);
    (void)snprintf(from, sizeof(from), "%s/%s", it.allowed, source);
    (void)snprintf(list, sizeof(list), "%s/%s", it.allowed, manifest);
    assert_int_equal(json_parse(data, strlen(data), &request, &err), 0);
    it.answered = false;
    const struct job_request job = {
        .kind = &kind, .dir = dir, .data = request, .zip_fd = -1, .source = from, .manifest = list};
    assert_int_equal(jobs_submit(it.skills, &job, on_done, NULL, &err), 0);
    wait_for_answer();
}

static void copies_belong_to_whoever_has_the_cache(void **state)
{
    static const char empty[] = "{\"algorithm\":\"sha256-tree-v1\",\"files\":[],\"total_bytes\":0}";
    make("cache", OWNER, GROUP, 0755);
    make("tree", OWNER, GROUP, 0700);
    put("tree.json", empty);
    copy("tree", "tree.json");
    assert_string_equal(it.json, "{}");
    belongs_to("cache/of/one/tree/8e00d1a31787e59c19fc53875e374237e940789d1de2f1bee5273985a41f4e79",
               OWNER, GROUP);
    copy("missing", "tree.json");
    assert_non_null(strstr(it.message, "No such file or directory"));
    copy("tree", "missing.json");
    assert_non_null(strstr(it.message, "No such file or directory"));
    put("state/secret.json", empty);
    copy("state", "tree.json");
    assert_non_null(strstr(it.message, "overlaps with the state directory"));
    copy("tree", "state/secret.json");
    assert_non_null(strstr(it.message, "overlaps with the state directory"));
}

/* box-priv opens what it may not read for whoever may. */
static void copies_are_read_with_the_rights_of_the_caches_owner(void **state)
{
    static const char one[] =
        "{\"algorithm\":\"sha256-tree-v1\",\"files\":[{\"path\":\"f\",\"size\":0,\"sha256\":"
        "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\","
        "\"executable\":false}],\"total_bytes\":0}";
    make("roots-own", 0, 0, 0700);
    put("roots-own/tree.json", one);
    copy("tree", "roots-own/tree.json");
    assert_non_null(strstr(it.message, "Permission denied"));
}

static void directories_of_others_are_made_and_checked(void **state)
{
    struct err err = {0};
    char path[256];
    make("place", OWNER, GROUP, 0755);
    (void)snprintf(path, sizeof(path), "%s/place/default", it.allowed);
    it.answered = false;
    assert_int_equal(hostdir_ensure(it.skills, path, on_done, NULL, &err), 0);
    wait_for_answer();
    assert_string_equal(it.json, "{}");
    belongs_to("place/default", OWNER, GROUP);
    it.answered = false;
    assert_int_equal(hostdir_verify_marker(it.skills, path, "x", on_done, NULL, &err), 0);
    wait_for_answer();
    assert_string_equal(it.message,
                        "BoxReadinessError: Invalid Box shared Workspace probe basename");
    (void)snprintf(path, sizeof(path), "%s/place/no", it.allowed);
    it.answered = false;
    assert_int_equal(hostdir_verify_marker(it.skills, path, "x", on_done, NULL, &err), 0);
    wait_for_answer();
    assert_string_equal(it.message,
                        "BoxReadinessError: Managed sandbox workspace path is not a directory");
}

/* Mounts stay here, and reach the namespace that box-priv makes for itself. */
static int own_namespace(void)
{
    return unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
                   mount(NULL, "/", NULL, MS_REC | MS_SHARED, NULL) < 0
               ? -errno
               : 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_is_kept_by_its_owner),
        cmocka_unit_test(directories_of_others_are_made_and_checked),
        cmocka_unit_test(copies_belong_to_whoever_has_the_cache),
        cmocka_unit_test(copies_are_read_with_the_rights_of_the_caches_owner),
        cmocka_unit_test(a_store_of_root_is_kept_without_its_powers),
        cmocka_unit_test(what_is_not_allowed_is_refused),
        cmocka_unit_test(a_mount_inside_is_another_place),
    };
    const struct CMUnitTest of_users[] = {tests[0], tests[1], tests[2]};
    (void)signal(SIGPIPE, SIG_IGN);
    if (!user_is_host_root() && argc == 3 && str_eq(argv[1], "--rootless")) {
        programs = argv[2];
        return cmocka_run_group_tests_name("rootless", of_users, set_up, tear_down);
    }
    if (!user_is_host_root()) {
        (void)fprintf(stderr, "skipped: only root can become the owner of a store\n");
        return 77;
    }
    int r = own_namespace();
    if (r < 0) {
        (void)fprintf(stderr, "skipped: no mount namespace: %s\n", err_errno_text(-r));
        return 77;
    }
    return cmocka_run_group_tests_name("root", tests, set_up, tear_down);
}
