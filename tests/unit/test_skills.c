/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "jobs/jobs.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/job.h"
#include "fetch/launcher.h"
#include "lib/fake_clock.h"
#include "loop/loop.h"

#define CALLS_MAX 512

/* What a call was told. */
struct heard {
    int n;
    unsigned order;
    char *json, *message; /* owned */
};

/* A launcher whose jobs are children of the test: each reads its request to the end, unless told
 * not to, and says what it was told to say. */
struct play {
    struct fetch_launcher base;
    const char *say;
    size_t repeat;
    bool deaf, stuck, lingers;
    struct err refuse;
    unsigned started;
    char dir[256];
    struct fetch_start last;
    struct loop_defer defer;
    struct fetch_process process;
    fetch_started_fn *fn;
    void *arg;
};

static struct {
    char dir[64];
    struct fake_clock clock;
    struct loop *loop;
    struct jobs *skills;
    struct json *none; /* {} */
    struct heard heard[CALLS_MAX];
    unsigned order;
    struct play play;
} it;

static int start_with(struct fetch_launcher *launcher)
{
    struct err err = {0};
    (void)snprintf(it.dir, sizeof(it.dir), "/tmp/box-skills-XXXXXX");
    if (mkdtemp(it.dir) == NULL)
        return -1;
    fake_clock_init(&it.clock);
    static char *roots[2];
    roots[0] = it.dir;
    const struct jobs_options options = {
        .program = BOX_FETCH, .launcher = launcher, .roots = roots};
    if (loop_new(launcher != NULL ? &it.clock.clock : &clock_system, &it.loop, &err) < 0 ||
        jobs_new(it.loop, &options, &it.skills, &err) < 0 ||
        json_parse("{}", 2, &it.none, &err) < 0)
        return -1;
    return 0;
}

static int start_real(void **state)
{
    return start_with(NULL);
}

static int stop(void **state)
{
    jobs_free(it.skills);
    loop_free(it.loop);
    json_free(it.none);
    for (size_t i = 0; i < CALLS_MAX; i++) {
        free(it.heard[i].json);
        free(it.heard[i].message);
    }
    memset(it.heard, 0, sizeof(it.heard));
    it.order = 0;
    it.skills = NULL;
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
    struct heard *h = arg;
    assert_int_equal(h->n++, 0);
    assert_true((data == NULL) != (failure == NULL));
    h->order = ++it.order;
    h->json = data != NULL ? json_written(data) : NULL;
    h->message = failure != NULL ? xasprintf("%s: %s", failure->class, failure->text) : NULL;
}

/* At most so long that a machine with other work is not taken for a hang. */
static void wait_for(const struct heard *h)
{
    for (int i = 0; h->n == 0 && i < 3000; i++)
        assert_true(loop_turn(it.loop, 10) >= 0);
    assert_int_equal(h->n, 1);
}

static struct heard *call(unsigned n, enum skills_op op, const char *data, int zip_fd)
{
    struct err err = {0};
    AUTO(json) struct json *request = NULL;
    assert_int_equal(json_parse(data, strlen(data), &request, &err), 0);
    assert_int_equal(jobs_skill(it.skills, "ws-0123456789abcdef01234567", op, request, zip_fd,
                                on_done, &it.heard[n], &err),
                     0);
    return &it.heard[n];
}

static void says(unsigned n, enum skills_op op, const char *data, const char *message)
{
    struct heard *h = call(n, op, data, -1);
    wait_for(h);
    assert_non_null(h->message);
    assert_string_equal(h->message, message);
}

/* With box-fetch itself -------------------------------------------------------------------- */

static void calls_are_answered_in_their_order(void **state)
{
    AUTO_FREE char *root = xasprintf("%s/deep/skills///", it.dir);
    jobs_set_skills_root(it.skills, root);
    for (unsigned i = 0; i < 4; i++) {
        char data[64];
        (void)snprintf(data, sizeof(data), "{\"skill\":{\"name\":\"s%u\"}}", i);
        (void)call(i, SKILLS_CREATE, data, -1);
    }
    struct heard *list = call(4, SKILLS_LIST, "{}", -1);
    assert_int_equal(it.order, 0); /* nothing happens within a call */
    wait_for(list);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(it.heard[i].order, i + 1);
        assert_non_null(it.heard[i].json);
    }
    for (unsigned i = 0; i < 4; i++) {
        char path[256];
        (void)snprintf(path, sizeof(path), "%s/deep/skills/tenants/ws-0123456789abcdef01234567/s%u",
                       it.dir, i);
        assert_non_null(strstr(list->json, path));
        assert_int_equal(access(path, F_OK), 0);
    }
}

static void errors_carry_the_class_that_clients_know(void **state)
{
    jobs_set_skills_root(it.skills, it.dir);
    says(0, SKILLS_GET, "{}", "KeyError: 'name'");
    says(1, SKILLS_CREATE, "{}", "BoxValidationError: 'skill'");
    says(2, SKILLS_DELETE, "{\"name\":\"x\"}", "BoxValidationError: Skill \"x\" not found");
    says(3, SKILLS_INSTALL_ZIP, "{}", "BoxValidationError: Uploaded file is empty");
}

static void an_archive_goes_to_the_job_from_its_start(void **state)
{
    jobs_set_skills_root(it.skills, it.dir);
    AUTO_CLOSE int fd = memfd_create("zip", MFD_CLOEXEC);
    static char data[300000];
    assert_int_equal(fd_write_all(fd, data, sizeof(data)), 0);
    struct heard *h = call(0, SKILLS_PREVIEW_ZIP, "{}", fd);
    wait_for(h);
    assert_string_equal(h->message,
                        "BoxValidationError: Uploaded file must be a valid .zip archive");
    assert_int_equal(ftruncate(fd, (off_t)FETCH_ZIP_MAX * 3), 0);
    h = call(1, SKILLS_PREVIEW_ZIP, "{}", fd);
    wait_for(h);
    assert_string_equal(h->message, "BoxValidationError: Uploaded archive exceeds the compressed "
                                    "size limit (20971520 bytes)");
    assert_int_equal(lseek(fd, 0, SEEK_CUR), sizeof(data)); /* the caller's place is its own */
}

static void stores_outside_the_allow_list_are_refused(void **state)
{
    AUTO_FREE char *inside = xasprintf("%s/a", it.dir);
    AUTO_FREE char *link = xasprintf("%s/link", it.dir);
    AUTO_FREE char *file = xasprintf("%s/file", it.dir);
    jobs_set_skills_root(it.skills, "/var/lib/elsewhere");
    struct heard *h = call(0, SKILLS_LIST, "{}", -1);
    wait_for(h);
    assert_non_null(strstr(h->message, "allowed_mount_roots"));
    assert_int_equal(symlink("/tmp", link), 0);
    jobs_set_skills_root(it.skills, link);
    h = call(1, SKILLS_LIST, "{}", -1);
    wait_for(h);
    assert_non_null(strstr(h->message, "has a symbolic link in its path"));
    AUTO_CLOSE int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    jobs_set_skills_root(it.skills, file);
    h = call(2, SKILLS_LIST, "{}", -1);
    wait_for(h);
    assert_non_null(strstr(h->message, "is not a directory"));
    jobs_set_skills_root(it.skills, inside);
    h = call(3, SKILLS_LIST, "{}", -1);
    wait_for(h);
    assert_string_equal(h->json, "{\"skills\":[]}");
}

static void nothing_is_asked_of_a_store_that_is_not_there(void **state)
{
    struct err err = {0};
    assert_true(jobs_skill(it.skills, NULL, SKILLS_LIST, it.none, -1, on_done, &it.heard[0], &err) <
                0);
    assert_int_equal(err.code, ERR_STATE);
    jobs_set_skills_root(it.skills, it.dir);
    assert_true(
        jobs_skill(it.skills, "../x", SKILLS_LIST, it.none, -1, on_done, &it.heard[0], &err) < 0);
    assert_int_equal(err.code, ERR_INVALID);
}

static struct heard *ensure(unsigned n, const char *path)
{
    struct err err = {0};
    assert_int_equal(hostdir_ensure(it.skills, path, on_done, &it.heard[n], &err), 0);
    wait_for(&it.heard[n]);
    return &it.heard[n];
}

static void directories_are_made_once(void **state)
{
    AUTO_FREE char *path = xasprintf("%s/x/y/default", it.dir);
    AUTO_FREE char *file = xasprintf("%s/x/file", it.dir);
    struct stat st;
    for (unsigned i = 0; i < 2; i++)
        assert_string_equal(ensure(i, path)->json, "{}");
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    AUTO_CLOSE int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_string_equal(ensure(2, file)->message,
                        "BoxValidationError: box.local.default_workspace must point to a directory "
                        "on the Box runtime host");
    assert_non_null(strstr(ensure(3, "/elsewhere")->message, "allowed_mount_roots"));
    assert_non_null(strstr(ensure(4, "relative")->message, "must be absolute"));
}

static struct heard *verify(unsigned n, const char *path, const char *name)
{
    struct err err = {0};
    assert_int_equal(hostdir_verify_marker(it.skills, path, name, on_done, &it.heard[n], &err), 0);
    wait_for(&it.heard[n]);
    return &it.heard[n];
}

static void markers_are_digested(void **state)
{
    static const char name[] = ".langbot-box-volume-probe-0123456789abcdef0123456789abcdef";
    AUTO_FREE char *path = xasprintf("%s/%s", it.dir, name);
    AUTO_FREE char *missing = xasprintf("%s/missing", it.dir);
    assert_string_equal(
        verify(0, it.dir, name)->message,
        "BoxReadinessError: Box Runtime cannot read the Core shared Workspace probe");
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(fd_write_all(fd, "hello", 5), 0);
    assert_string_equal(
        verify(1, it.dir, name)->json,
        "{\"marker_name\":\".langbot-box-volume-probe-0123456789abcdef0123456789abcdef\","
        "\"sha256\":\"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\","
        "\"size\":5}");
    assert_string_equal(verify(2, it.dir, "x")->message,
                        "BoxReadinessError: Invalid Box shared Workspace probe basename");
    assert_string_equal(verify(3, missing, name)->message,
                        "BoxReadinessError: Managed sandbox workspace path is not a directory");
    assert_true(access(missing, F_OK) < 0);
}

static void directories_are_measured(void **state)
{
    static const char *const parts[] = {"a", "b", NULL};
    struct err err = {0};
    AUTO_FREE char *path = xasprintf("%s/a", it.dir);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(fd_write_all(fd, "hello", 5), 0);
    for (unsigned i = 0; i < 3; i++) {
        AUTO_FREE char *missing = xasprintf("%s/missing", it.dir);
        const char *which[] = {it.dir, missing, path};
        assert_int_equal(hostdir_measure(it.skills, which[i], parts, on_done, &it.heard[i], &err),
                         0);
        wait_for(&it.heard[i]);
    }
    assert_string_equal(it.heard[0].json, "{\"\":{\"exists\":true,\"size_bytes\":5,\"disk_bytes\":"
                                          "5,\"file_count\":1,\"error_count\":0},"
                                          "\"a\":{\"exists\":true,\"size_bytes\":5,\"disk_bytes\":"
                                          "5,\"file_count\":1,\"error_count\":0},"
                                          "\"b\":{\"exists\":false,\"size_bytes\":0,\"disk_bytes\":"
                                          "0,\"file_count\":0,\"error_count\":0}}");
    for (unsigned i = 1; i < 3; i++)
        assert_string_equal(it.heard[i].message, "BoxError: " HOSTDIR_MISSING);
}

static void who_leaves_while_a_job_runs_is_not_called(void **state)
{
    jobs_set_skills_root(it.skills, it.dir);
    for (unsigned i = 0; i < 3; i++)
        (void)call(i, SKILLS_LIST, "{}", -1);
    assert_true(loop_turn(it.loop, 0) >= 0);
    assert_true(loop_turn(it.loop, 0) >= 0);
    jobs_free(it.skills);
    it.skills = NULL;
    assert_true(loop_turn(it.loop, 0) >= 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(it.heard[i].n, 0);
}

/* With jobs that misbehave ----------------------------------------------------------------- */

static void play_handed_over(struct loop_defer *d)
{
    struct play *p = container_of(d, struct play, defer);
    p->fn(p->arg, p->refuse.code == ERR_NONE ? &p->process : NULL, &p->refuse);
    fetch_process_done(&p->process);
}

static int play_start(struct fetch_launcher *l, const struct fetch_start *s, fetch_started_fn *fn,
                      void *arg, struct err *err)
{
    struct play *p = container_of(l, struct play, base);
    int in[2], out[2];
    p->started++;
    p->last = *s;
    (void)snprintf(p->dir, sizeof(p->dir), "%s", s->dir);
    p->fn = fn;
    p->arg = arg;
    p->process = FETCH_PROCESS_NONE;
    if (p->refuse.code == ERR_NONE) {
        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
            char chunk[4096];
            (void)close(in[1]);
            (void)close(out[0]);
            while (!p->deaf && read(in[0], chunk, sizeof(chunk)) > 0)
                ;
            for (size_t i = 0; i < p->repeat; i++)
                (void)fd_write_all(out[1], p->say, strlen(p->say));
            if (p->lingers)
                (void)close(out[1]);
            while (p->stuck || p->lingers)
                (void)pause();
            _exit(0);
        }
        (void)close(in[0]);
        (void)close(out[1]);
        p->process = (struct fetch_process){pidfd_open(pid, 0), in[1], out[0]};
        (void)fd_set_nonblock(in[1], true);
        (void)fd_set_nonblock(out[0], true);
    }
    loop_defer_start(it.loop, &p->defer, play_handed_over);
    return 0;
}

static void play_free(struct fetch_launcher *l)
{
}

static int start_play(void **state)
{
    it.play = (struct play){.base = {play_start, play_free}, .repeat = 1, .say = "{\"data\":{}}"};
    int r = start_with(&it.play.base);
    if (r == 0)
        jobs_set_skills_root(it.skills, "/store");
    return r;
}

static void answers_are_not_trusted(void **state)
{
    static const struct {
        const char *say, *message, *json;
        enum skills_op op;
    } cases[] = {
        {"", "BoxValidationError: the skill store's helper died while it worked on this", NULL,
         SKILLS_SCAN},
        {"{\"data\":", "BoxValidationError: the skill store's helper died while it worked on this",
         NULL, SKILLS_SCAN},
        {"{\"data\":[]}",
         "BoxValidationError: the skill store's helper died while it worked on this", NULL,
         SKILLS_SCAN},
        {"{\"data\":{}}x", "ValueError: the skill store's helper died while it worked on this",
         NULL, SKILLS_LIST},
        {"{\"error\":\"x\",\"class\":\"BoxAdmissionError\"}", "BoxValidationError: x", NULL,
         SKILLS_SCAN},
        {"{\"error\":\"x\",\"class\":\"KeyError\"}", "BoxValidationError: x", NULL, SKILLS_SCAN},
        {"{\"error\":\"x\",\"class\":\"KeyError\"}", "KeyError: x", NULL, SKILLS_GET},
        {"{\"error\":\"x\",\"class\":null}", "ValueError: x", NULL, SKILLS_GET},
        {" {\"data\" : {\"a\" : 1 } , \"b\" : 2 } ", NULL, "{\"a\":1}", SKILLS_SCAN},
    };
    for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
        it.play.say = cases[i].say;
        struct heard *h = call(i, cases[i].op, "{}", -1);
        wait_for(h);
        if (cases[i].json != NULL)
            assert_string_equal(h->json, cases[i].json);
        else
            assert_string_equal(h->message, cases[i].message);
    }
    assert_string_equal(it.play.dir, "/store/tenants/ws-0123456789abcdef01234567");
    assert_true(it.play.last.create);
}

static void a_job_that_does_not_stop_talking_is_cut(void **state)
{
    static char megabyte[(1U << 20) + 1];
    memset(megabyte, ' ', sizeof(megabyte) - 1);
    it.play.say = megabyte;
    it.play.repeat = 1000;
    struct heard *h = call(0, SKILLS_SCAN, "{}", -1);
    wait_for(h);
    assert_string_equal(h->message, "BoxValidationError: the answer is too large");
}

static void a_job_that_does_not_listen_may_answer(void **state)
{
    AUTO_CLOSE int fd = memfd_create("zip", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 10 << 20), 0);
    it.play.deaf = true;
    struct heard *h = call(0, SKILLS_PREVIEW_ZIP, "{}", fd);
    wait_for(h);
    assert_string_equal(h->json, "{}");
}

static void time_runs_out(void **state)
{
    it.play.say = "";
    it.play.deaf = it.play.stuck = true;
    struct heard *h = call(0, SKILLS_INSTALL_ZIP, "{}", -1), *next = call(1, SKILLS_LIST, "{}", -1);
    for (int i = 0; i < 10; i++)
        assert_true(loop_turn(it.loop, 0) >= 0);
    assert_int_equal(it.play.last.seconds, 120);
    fake_clock_advance(&it.clock, 121 * NSEC_PER_SEC);
    assert_true(loop_turn(it.loop, 0) >= 0);
    assert_int_equal(h->n, 0); /* its own alarm comes first */
    it.play.deaf = it.play.stuck = false;
    it.play.say = "{\"data\":{}}";
    fake_clock_advance(&it.clock, 2 * NSEC_PER_SEC);
    wait_for(h);
    assert_string_equal(h->message,
                        "BoxValidationError: no answer from the skill store within 120 seconds");
    wait_for(next); /* when the first one is dead */
    assert_string_equal(next->json, "{}");
}

static void a_job_that_lingers_does_not_hold_the_others_for_ever(void **state)
{
    it.play.lingers = true;
    struct heard *h = call(0, SKILLS_LIST, "{}", -1), *next = call(1, SKILLS_LIST, "{}", -1);
    wait_for(h);
    for (int i = 0; i < 10; i++)
        assert_true(loop_turn(it.loop, 0) >= 0);
    assert_int_equal(it.play.started, 1);
    it.play.lingers = false;
    fake_clock_advance(&it.clock, 3 * NSEC_PER_SEC);
    wait_for(next);
    assert_int_equal(it.play.started, 2);
}

static void what_the_launcher_says_is_passed_on(void **state)
{
    (void)err_set(&it.play.refuse, ERR_DENIED, "not here");
    says(0, SKILLS_LIST, "{}", "ValueError: not here");
    says(1, SKILLS_CREATE, "{}", "BoxValidationError: not here");
    assert_int_equal(it.play.started, 2);
}

static void the_queue_has_an_end(void **state)
{
    struct err err = {0};
    for (unsigned i = 0; i < SKILLS_QUEUE_MAX; i++)
        (void)call(i, SKILLS_LIST, "{}", -1);
    assert_true(
        jobs_skill(it.skills, NULL, SKILLS_LIST, it.none, -1, on_done, &it.heard[400], &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    wait_for(&it.heard[SKILLS_QUEUE_MAX - 1]);
    assert_int_equal(it.order, SKILLS_QUEUE_MAX);
    assert_int_equal(it.play.started, SKILLS_QUEUE_MAX);
}

static void a_launcher_that_answers_too_late_finds_nobody(void **state)
{
    (void)call(0, SKILLS_LIST, "{}", -1);
    while (it.play.started == 0)
        assert_true(loop_turn(it.loop, 0) >= 0);
    jobs_free(it.skills);
    it.skills = NULL;
    assert_true(loop_turn(it.loop, 0) >= 0);
    assert_int_equal(it.heard[0].n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_are_answered_in_their_order, start_real, stop),
        cmocka_unit_test_setup_teardown(errors_carry_the_class_that_clients_know, start_real, stop),
        cmocka_unit_test_setup_teardown(an_archive_goes_to_the_job_from_its_start, start_real,
                                        stop),
        cmocka_unit_test_setup_teardown(stores_outside_the_allow_list_are_refused, start_real,
                                        stop),
        cmocka_unit_test_setup_teardown(nothing_is_asked_of_a_store_that_is_not_there, start_real,
                                        stop),
        cmocka_unit_test_setup_teardown(directories_are_made_once, start_real, stop),
        cmocka_unit_test_setup_teardown(markers_are_digested, start_real, stop),
        cmocka_unit_test_setup_teardown(directories_are_measured, start_real, stop),
        cmocka_unit_test_setup_teardown(who_leaves_while_a_job_runs_is_not_called, start_real,
                                        stop),
        cmocka_unit_test_setup_teardown(answers_are_not_trusted, start_play, stop),
        cmocka_unit_test_setup_teardown(a_job_that_does_not_stop_talking_is_cut, start_play, stop),
        cmocka_unit_test_setup_teardown(a_job_that_does_not_listen_may_answer, start_play, stop),
        cmocka_unit_test_setup_teardown(time_runs_out, start_play, stop),
        cmocka_unit_test_setup_teardown(a_job_that_lingers_does_not_hold_the_others_for_ever,
                                        start_play, stop),
        cmocka_unit_test_setup_teardown(what_the_launcher_says_is_passed_on, start_play, stop),
        cmocka_unit_test_setup_teardown(the_queue_has_an_end, start_play, stop),
        cmocka_unit_test_setup_teardown(a_launcher_that_answers_too_late_finds_nobody, start_play,
                                        stop),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
