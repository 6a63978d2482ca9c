/* SPDX-License-Identifier: Apache-2.0 */

/* Requests with artifacts, and what comes between: another request, an end, a failure. */

#include "rpc_fixture.h"

#include <sys/stat.h>

#include "session/artifacts.h"
#include "session/events.h"
#include "session/session_internal.h"

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
/* All that a client of 0.7.13 and later writes. */
#define SPEC(mounts)                                                                               \
    "{\"session_id\":\"s\",\"cmd\":\"\",\"workdir\":\"/workspace\",\"timeout_sec\":30,"            \
    "\"network\":\"off\",\"env\":{},\"image\":\"x\",\"host_path\":null,\"host_path_mode\":\"rw\"," \
    "\"mount_path\":\"/workspace\",\"extra_mounts\":[" mounts "],\"persistent\":false,"            \
    "\"cpus\":1.0,\"memory_mb\":512,\"pids_limit\":128,\"read_only_rootfs\":true,"                 \
    "\"workspace_quota_mb\":0}"
#define MOUNT(digest)                                                                              \
    "{\"host_path\":\"/tmp\",\"mount_path\":\"/opt/langbot-artifacts/" digest                      \
    "\",\"mode\":\"ro\",\"content_digest\":\"sha256:" digest                                       \
    "\",\"manifest_path\":\"/usr/bin/env\"}"
#define CREATE "box_create_session"
#define NAME NS1 "-g1-s"

static struct {
    struct langbot_fixture x;
    struct artifacts *a;
    struct jobs *jobs;
    struct events *events; /* NULL: it hears of no end */
} it;

/* What the job does. */
static void make_tree(const char *dir)
{
    AUTO_FREE char *path = xasprintf("%s/tree", dir);
    for (char *slash = path + strlen(it.x.dir); (slash = strchr(slash + 1, '/')) != NULL;) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    assert_int_equal(mkdir(path, 0755), 0);
}

static void answer(const char *op, const char *message)
{
    pump(&it.x.f);
    assert_true(it.jobs->n_jobs > 0);
    if (str_eq(op, "make_artifacts") && message == NULL)
        make_tree(it.jobs->jobs[0].dir);
    job_answer(it.jobs, op, message);
}

static int start(bool hears)
{
    struct err err = {0};
    start_rpc(&it.x);
    it.events = hears ? events_new(it.x.f.loop, 16) : NULL;
    it.x.f.m->options.events = it.events;
    const struct artifacts_options options = {.manager = it.x.f.m, .tag = "tag"};
    if (artifacts_new(it.x.f.loop, &options, &it.a, &err) < 0)
        return -1;
    it.jobs = last_made;
    it.x.rpc->o.artifacts = it.a;
    artifacts_set_root(it.a, it.x.dir);
    answer("sweep_artifacts", "BoxError: no such directory");
    return 0;
}

static int set_up_cold(void **state)
{
    return start(false);
}

static int set_up_hearing(void **state)
{
    return start(true);
}

/* The same with a directory that was made ahead, because somebody has been there. */
static int set_up(void **state)
{
    int r = set_up_cold(state);
    ask(&it.x.a, 100, CREATE, SPEC(""), CTX("ws-9", 1));
    answer("make_artifacts", NULL);
    free(expect_ok(&it.x, &it.x.a, 100));
    ask(&it.x.a, 101, "box_delete_session", "{\"session_id\":\"s\"}", CTX("ws-9", 1));
    free(expect_ok(&it.x, &it.x.a, 101));
    answer("make_artifacts", NULL);
    return r;
}

static int tear_down(void **state)
{
    stop_rpc(&it.x);
    artifacts_free(it.a);
    events_free(it.events);
    return 0;
}

static const struct spec *spec_of_session(void)
{
    struct session *s = manager_find(it.x.f.m, NAME);
    assert_non_null(s);
    return session_spec(s);
}

static void expect_done(int seq)
{
    free(expect_ok(&it.x, &it.x.a, seq));
}

static void a_session_has_a_place_from_its_beginning(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(""), CTX1);
    expect_done(1);
    assert_true(str_starts(spec_of_session()->own.artifacts, it.x.dir));
    assert_null(spec_of_session()->own.artifact_digests);
    /* The next one is made; one that finds none makes its own. */
    assert_int_equal(it.jobs->n_jobs, 1);
    ask(&it.x.a, 2, CREATE, SPEC(""), CTX("ws-2", 1));
    pump(&it.x.f);
    assert_false(is_answered(&it.x.a, 2));
    answer("make_artifacts", NULL);
    assert_false(is_answered(&it.x.a, 2));
    answer("make_artifacts", NULL);
    expect_done(2);
}

static void without_a_place_a_session_is_made_all_the_same(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(""), CTX1);
    answer("make_artifacts", "BoxError: no");
    expect_done(1);
    answer("sweep_artifacts", "BoxError: no");
    answer("make_artifacts", "BoxError: no");
    ask(&it.x.a, 3, CREATE, SPEC(""), CTX("ws-2", 1)); /* it is not tried again for everybody */
    expect_done(3);
    assert_null(spec_of_session()->own.artifacts);
    ask(&it.x.a, 2, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    AUTO_FREE char *why = xasprintf("BoxError: Immutable artifact cache is unavailable: "
                                    "%s/.box-artifacts/tag cannot be made: no; acquire a new Box",
                                    it.x.dir);
    expect_error(&it.x, &it.x.a, 2, why);
}

static void what_cannot_be_copied_makes_no_session(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    pump(&it.x.f);
    answer("make_artifacts", NULL);
    assert_string_equal(it.jobs->jobs[0].data, "{\"content_digest\":\"sha256:" DIGEST "\"}");
    answer("add_artifact", "BoxError: Artifact source changed: f");
    expect_error(&it.x, &it.x.a, 1,
                 "BoxError: Immutable artifact preparation failed: Artifact source changed: f");
    assert_int_equal(manager_count(it.x.f.m), 0);
    /* Its place is nobody's; that of the next one is kept. */
    assert_string_equal(it.jobs->jobs[0].op, "sweep_artifacts");
    assert_int_equal(strlen(it.jobs->jobs[0].data), strlen("{\"keep\":[\"0123456789abcdef\"]}"));
    answer("sweep_artifacts", NULL);
}

static void what_a_session_has_costs_nothing(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    answer("make_artifacts", NULL);
    answer("add_artifact", NULL);
    expect_done(1);
    assert_string_equal(spec_of_session()->own.artifact_digests[0], "sha256:" DIGEST);
    assert_int_equal(spec_of_session()->n_extra_mounts, 0);
    ask(&it.x.a, 2, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    expect_done(2);
    assert_int_equal(it.jobs->n_jobs, 0);
    ask(&it.x.a, 3, CREATE, SPEC(MOUNT(DIGEST) "," MOUNT(OTHER)), CTX1);
    pump(&it.x.f);
    assert_int_equal(it.jobs->n_jobs, 1);
    answer("add_artifact", NULL);
    expect_done(3);
    assert_int_equal(strv_len(spec_of_session()->own.artifact_digests), 2);
    assert_int_equal(fake_creations(it.x.f.backend), 2);
}

/* Two that both want to make it: what the second has copied is copied again, to where it counts. */
static void two_make_the_same_session(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    ask(&it.x.a, 2, CREATE, SPEC(MOUNT(OTHER)), CTX1);
    answer("make_artifacts", NULL); /* ahead, again */
    answer("add_artifact", NULL);
    pump(&it.x.f);
    expect_done(1);
    char first[256];
    assert_int_equal(str_copy(first, sizeof(first), spec_of_session()->own.artifacts), 0);
    answer("add_artifact", NULL);
    pump(&it.x.f);
    assert_false(is_answered(&it.x.a, 2));
    answer("sweep_artifacts", NULL);
    assert_true(str_starts(first, it.jobs->jobs[0].dir));
    answer("add_artifact", NULL);
    expect_done(2);
    assert_string_equal(spec_of_session()->own.artifacts, first);
    assert_int_equal(strv_len(spec_of_session()->own.artifact_digests), 2);
    assert_int_equal(fake_creations(it.x.f.backend), 2);
}

static void a_session_that_ends_meanwhile_is_made_again(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(""), CTX1);
    expect_done(1);
    answer("make_artifacts", NULL);
    ask(&it.x.a, 2, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    pump(&it.x.f);
    ask(&it.x.a, 3, "box_delete_session", "{\"session_id\":\"s\"}", CTX1);
    expect_done(3);
    answer("add_artifact", NULL); /* to where nobody looks any more */
    pump(&it.x.f);
    assert_false(is_answered(&it.x.a, 2));
    answer("make_artifacts", NULL);
    answer("add_artifact", NULL);
    expect_done(2);
    assert_string_equal(spec_of_session()->own.artifact_digests[0], "sha256:" DIGEST);
}

static void whoever_leaves_leaves_nothing(void **state)
{
    ask(&it.x.a, 1, CREATE, SPEC(MOUNT(DIGEST)), CTX1);
    pump(&it.x.f);
    peer_close(&it.x.a);
    answer("make_artifacts", NULL);
    answer("add_artifact", NULL);
    pump(&it.x.f);
    assert_int_equal(manager_count(it.x.f.m), 0);
    answer("sweep_artifacts", NULL);
    strv_free(it.x.a.heard);
    peer_open(&it.x, &it.x.a, 0);
}

/* Sessions without a place, as older clients have them, or of an earlier boxd. */
static void many_ends_make_one_sweep(void **state)
{
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 9; i++) {
            events_emit(it.events, &(struct event){.kind = EVENT_SESSION_DELETED, .session = "s"});
            pass(&it.x.f, NSEC_PER_SEC / 20);
            assert_int_equal(it.jobs->n_jobs, 0);
        }
        pass(&it.x.f, NSEC_PER_SEC / 10); /* half a second after the first of them, not the last */
        answer("sweep_artifacts", NULL);
        pass(&it.x.f, NSEC_PER_SEC);
        assert_int_equal(it.jobs->n_jobs, 0);
    }
}

/* A mount of the caller's that ours would lie in. */
static void a_place_that_is_covered(void **state)
{
    ask(&it.x.a, 1, CREATE,
        SPEC("{\"host_path\":\"/srv\",\"mount_path\":\"/opt\",\"mode\":\"ro\","
             "\"content_digest\":null,\"manifest_path\":null}"),
        CTX1);
    expect_done(1);
    assert_null(spec_of_session()->own.artifacts);
}

int main(void)
{
#define SCENE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        SCENE(a_session_has_a_place_from_its_beginning),
        cmocka_unit_test_setup_teardown(without_a_place_a_session_is_made_all_the_same, set_up_cold,
                                        tear_down),
        SCENE(what_cannot_be_copied_makes_no_session),
        SCENE(what_a_session_has_costs_nothing),
        SCENE(two_make_the_same_session),
        SCENE(a_session_that_ends_meanwhile_is_made_again),
        SCENE(whoever_leaves_leaves_nothing),
        cmocka_unit_test_setup_teardown(many_ends_make_one_sweep, set_up_hearing, tear_down),
        SCENE(a_place_that_is_covered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
