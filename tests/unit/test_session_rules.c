/* SPDX-License-Identifier: Apache-2.0 */

/* What core decides about a session before and after the backend is asked: host paths, other
 * mounts, idle time, deadlines, and the hash over its making. */

#include "core_process.h"

#include <sys/stat.h>

#include "session/run.h"

static const uint64_t every_field = ~UINT64_C(0);

static void add_mount(struct spec *s, const char *host, const char *box, enum mount_mode mode)
{
    s->extra_mounts =
        xreallocarray(s->extra_mounts, s->n_extra_mounts + 1, sizeof(struct mount_spec));
    s->extra_mounts[s->n_extra_mounts++] =
        (struct mount_spec){.host_path = xstrdup(host), .mount_path = xstrdup(box), .mode = mode};
}

static int ask(struct fixture *f, struct spec *spec, unsigned flags, struct heard *h,
               struct err *err)
{
    *h = (struct heard){0};
    int r = manager_acquire(f->m, &spec, every_field, flags, on_ready, h, err);
    spec_free(spec);
    return r;
}

static void finished(void *arg, const struct run_result *result)
{
    *(int *)arg = (int)result->outcome.kind + 100;
}

static const struct run_events run_events = {.finished = finished};

static struct run *exec_in(struct session *s, const char *cmd, int *ret)
{
    struct run *run = NULL;
    struct err err = {0};
    struct run_options options = {.exec = {.cmd = cmd}};
    assert_int_equal(run_start(s, &options, &run_events, ret, &run, &err), 0);
    return run;
}

static void test_row_T05_one_session_serves_all_requests_of_its_id(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    for (int i = 0; i < 2; i++) {
        int done = 0;
        assert_int_equal(ask(&f, named_spec("req-1"), ACQUIRE_REMOUNT, &h, &err), 0);
        pump(&f);
        struct run *run = exec_in(h.session, "echo hi", &done);
        pump(&f);
        assert_int_equal(done, OUTCOME_EXITED + 100);
        run_free(run);
        give_back(&h);
    }
    assert_int_equal(fake_creations(f.backend), 1);
    fixture_stop(&f);
}

static void test_row_T13_another_host_path_is_a_conflict(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct spec *a = named_spec("s"), *b = named_spec("s");
    a->host_path = xstrdup("/srv/a");
    b->host_path = xstrdup("/srv/b");
    assert_int_equal(ask(&f, a, 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    assert_int_equal(ask(&f, b, ACQUIRE_REMOUNT, &h, &err), err_code_errno(ERR_CONFLICT));
    assert_string_equal(err.msg, "Box session s already exists with host_path=/srv/a");
    fixture_stop(&f);
}

static void test_row_T14_other_limits_are_a_conflict(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    session_release(ready_session(&f, "s"));
    struct spec *b = named_spec("s");
    b->cpus = 2;
    assert_int_equal(ask(&f, b, ACQUIRE_REMOUNT, &h, &err), err_code_errno(ERR_CONFLICT));
    assert_string_equal(err.msg, "Box session s already exists with cpus=1.0");
    fixture_stop(&f);
}

/* Host paths. */

static int try_path(struct fixture *f, const char *path, bool extra, enum mount_mode mode,
                    struct err *err)
{
    struct heard h = {0};
    static int n;
    AUTO_FREE char *id = xasprintf("path-%d", n++);
    struct spec *s = named_spec(id);
    *err = (struct err){0};
    if (extra) {
        add_mount(s, path, "/mnt/x", mode);
    } else {
        s->host_path = xstrdup(path);
        s->host_path_mode = mode;
    }
    int r = ask(f, s, 0, &h, err);
    pump(f);
    if (r == 0)
        give_back(&h);
    return r;
}

static void test_row_F14_blocked_host_paths_are_refused(void **state)
{
    static const char *const bad[] = {
        "/etc",
        "/etc/",
        "/etc/passwd",
        "/proc",
        "/proc/1",
        "/sys",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
        "/root",
        "/root/.ssh",
        "/boot",
        "/run",
        "/var/run",
        "/run/user/1000",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/podman/podman.sock",
        "/run/user/1000/podman/podman.sock",
        "//etc//x",
        "/./etc",
        "/home/../etc/x",
        "/no/such/../../etc",
        "/",
        "//",
        "/.",
        "/var",
        "/var/",
        "/srv/../var",
        "/proc/self/root",
        "/nothing/here/../../..",
    };
    static const char *const good[] = {"/etcetera", "/srv/etc", "/home/user/run", "/varnish",
                                       "/devel/x",  "/tmp",     "/var/lib/x",     "C:\\etc"};
    struct fixture f;
    struct err err;
    fixture_start(&f, NULL, &(struct manager_options){.max_sessions = 1000});
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        for (int extra = 0; extra < 2; extra++) {
            char text[128];
            if (try_path(&f, bad[i], extra, MOUNT_RO, &err) != err_code_errno(ERR_DENIED))
                fail_msg("%s was not refused", bad[i]);
            (void)snprintf(text, sizeof(text), "%shost_path %s is blocked for security",
                           extra ? "extra_mounts." : "", bad[i]);
            /* As it was written; and as it resolves, where that is something else. */
            size_t n = strlen(text);
            assert_memory_equal(err.msg, text, n);
            assert_true(err.msg[n] == '\0' || strncmp(err.msg + n, " (it is /", 9) == 0);
            if (str_eq(bad[i], "/home/../etc/x"))
                assert_string_equal(err.msg + n, " (it is /etc/x)");
        }
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        for (int extra = 0; extra < 2; extra++)
            if (try_path(&f, good[i], extra, MOUNT_RW, &err) != 0)
                fail_msg("%s", err.msg);
    assert_int_equal(try_path(&f, "/etc", true, MOUNT_NONE, &err), 0); /* is not mounted */
    fixture_stop(&f);
}

static void test_row_F14_links_to_blocked_places_are_refused(void **state)
{
    static const struct {
        const char *link, *target, *ask;
        bool bad;
    } cases[] = {
        {"e", "/etc", "e", true},
        {"d", "/etc/default", "d/..", true}, /* the kernel's "..": that of the target */
        {"r", "/", "r/root/x", true},
        {"v", "/var", "v", true},
        {"t", "/tmp", "t", false},
        {"m", "/etc", "m/no/such/file", true},
        {"l", "nowhere", "l/x", false},
    };
    struct fixture f;
    struct err err;
    char dir[] = "/tmp/box-test-core-XXXXXX";
    fixture_start(&f, NULL, &(struct manager_options){.max_sessions = 1000});
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *link = xasprintf("%s/%s", dir, cases[i].link);
        AUTO_FREE char *path = xasprintf("%s/%s", dir, cases[i].ask);
        assert_int_equal(symlink(cases[i].target, link), 0);
        int r = try_path(&f, path, i % 2 == 0, MOUNT_RW, &err);
        if ((r < 0) != cases[i].bad)
            fail_msg("%s -> %s: %s", cases[i].ask, cases[i].target, err.msg);
    }
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
    fixture_stop(&f);
}

static void test_row_F15_paths_are_checked_before_the_backend_is_asked(void **state)
{
    struct fixture f;
    struct err err;
    fixture_start(&f, NULL, &proc_options);
    assert_true(try_path(&f, "/etc", false, MOUNT_RW, &err) < 0);
    assert_true(try_path(&f, "/etc", true, MOUNT_RW, &err) < 0);
    assert_int_equal(fake_creations(f.backend), 0);
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

/* Other mounts. */

static struct spec *mounted(const char *host)
{
    struct spec *s = named_spec("s");
    if (host != NULL)
        add_mount(s, host, "/mnt/x", MOUNT_RO);
    return s;
}

static void mounts_are_compared_as_a_set(void **state)
{
    static const struct {
        const char *what;
        struct {
            const char *host, *box;
            enum mount_mode mode;
        } mounts[4];
        bool same;
    } cases[] = {
        {"the same", {{"/a", "/1", MOUNT_RO}, {"/b", "/2", MOUNT_RW}}, true},
        {"other order", {{"/b", "/2", MOUNT_RW}, {"/a", "/1", MOUNT_RO}}, true},
        {"twice", {{"/b", "/2", MOUNT_RW}, {"/a", "/1", MOUNT_RO}, {"/a", "/1", MOUNT_RO}}, true},
        {"switched off",
         {{"/a", "/1", MOUNT_RO}, {"/b", "/2", MOUNT_RW}, {"/c", "/3", MOUNT_NONE}},
         true},
        {"fewer", {{"/a", "/1", MOUNT_RO}}, false},
        {"none", {{0}}, false},
        {"more", {{"/a", "/1", MOUNT_RO}, {"/b", "/2", MOUNT_RW}, {"/c", "/3", MOUNT_RW}}, false},
        {"mode", {{"/a", "/1", MOUNT_RW}, {"/b", "/2", MOUNT_RW}}, false},
        {"place", {{"/a", "/9", MOUNT_RO}, {"/b", "/2", MOUNT_RW}}, false},
        {"source", {{"/z", "/1", MOUNT_RO}, {"/b", "/2", MOUNT_RW}}, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct heard h;
        struct err err = {0};
        fixture_start(&f, NULL, &proc_options);
        struct spec *first = named_spec("s"), *then = named_spec("s");
        for (size_t k = 0; k < 2; k++)
            add_mount(first, cases[0].mounts[k].host, cases[0].mounts[k].box,
                      cases[0].mounts[k].mode);
        for (size_t k = 0; k < 4 && cases[i].mounts[k].host != NULL; k++)
            add_mount(then, cases[i].mounts[k].host, cases[i].mounts[k].box,
                      cases[i].mounts[k].mode);
        assert_int_equal(ask(&f, first, ACQUIRE_REMOUNT, &h, &err), 0);
        pump(&f);
        give_back(&h);
        assert_int_equal(ask(&f, then, ACQUIRE_REMOUNT, &h, &err), 0);
        pump(&f);
        if (fake_creations(f.backend) != (cases[i].same ? 1 : 2))
            fail_msg("%s", cases[i].what);
        give_back(&h);
        assert_int_equal(manager_count(f.m), 1);
        fixture_stop(&f);
    }
}

/* The same place of the host may have got another content. */
static void another_digest_is_another_mount(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    for (int i = 0; i < 3; i++) {
        struct spec *s = mounted("/srv/x");
        s->extra_mounts[0].content_digest = xstrdup(i == 0 ? "sha256:0" : "sha256:1");
        s->extra_mounts[0].manifest_path = xstrdup(i < 2 ? "/m" : "/n");
        assert_int_equal(ask(&f, s, ACQUIRE_REMOUNT, &h, &err), 0);
        pump(&f);
        give_back(&h);
        assert_int_equal(fake_creations(f.backend), i + 1);
    }
    fixture_stop(&f);
}

static void named_exec_mounts_are_no_reason_to_end_a_session(void **state)
{
    struct fixture f;
    struct heard a, b, c;
    struct err err = {0};
    fixture_start(&f, &(struct fake_options){.destroy_ns = SEC}, &proc_options);
    assert_int_equal(ask(&f, mounted("/srv/a"), ACQUIRE_KEEP_MOUNTS, &a, &err), 0);
    pump(&f);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_KEEP_MOUNTS, &b, &err),
                     err_code_errno(ERR_CONFLICT));
    assert_int_equal(ask(&f, mounted("/srv/a"), ACQUIRE_KEEP_MOUNTS, &b, &err), 0);
    pump(&f);
    assert_ptr_equal(a.session, b.session);
    give_back(&a);
    give_back(&b);
    /* Somebody else has it made anew: what it will be counts, not what it was. */
    assert_int_equal(ask(&f, mounted("/srv/c"), ACQUIRE_REMOUNT, &a, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/c"), ACQUIRE_KEEP_MOUNTS, &b, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/a"), ACQUIRE_KEEP_MOUNTS, &c, &err), 0);
    pass(&f, SEC);
    assert_non_null(a.session);
    assert_ptr_equal(a.session, b.session);
    assert_null(c.session);
    assert_int_equal(c.err.code, ERR_CONFLICT);
    assert_int_equal(fake_creations(f.backend), 2);
    give_back(&a);
    give_back(&b);
    fixture_stop(&f);
}

static void without_the_flag_mounts_do_not_matter(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    AUTO(spec) struct spec *plain = mounted(NULL);
    AUTO(spec) struct spec *other = mounted("/srv/x");
    assert_false(manager_has(f.m, plain));
    session_release(ready_session(&f, "s"));
    assert_true(manager_has(f.m, plain));
    assert_false(manager_has(f.m, other));
    assert_int_equal(ask(&f, mounted("/srv/x"), 0, &h, &err), 0);
    pump(&f);
    assert_int_equal(session_spec(h.session)->n_extra_mounts, 0);
    give_back(&h);
    assert_int_equal(fake_creations(f.backend), 1);
    fixture_stop(&f);
}

/* Somebody who runs a command as soon as the session is there. */
struct user {
    struct session *session;
    struct run *run;
    int done;
};

static void on_ready_run(void *arg, struct session *s, const struct err *err)
{
    struct user *u = arg;
    assert_null(err);
    u->session = s;
    u->run = exec_in(s, "sleep 3000", &u->done);
}

static void remounting_waits_for_those_before(void **state)
{
    struct fixture f;
    struct heard b, c, d;
    struct user a = {0};
    struct err err = {0};
    fixture_start(&f, &(struct fake_options){.create_ns = SEC, .destroy_ns = SEC}, &proc_options);
    /* All while it is still being made. */
    struct spec *spec = mounted(NULL);
    assert_int_equal(manager_acquire(f.m, &spec, 0, ACQUIRE_REMOUNT, on_ready_run, &a, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_REMOUNT, &b, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_REMOUNT, &c, &err), 0);
    assert_int_equal(ask(&f, mounted(NULL), 0, &d, &err), 0);
    pass(&f, SEC);
    assert_non_null(a.run);
    pass(&f, 2 * SEC);
    assert_int_equal(b.n + c.n + d.n, 0);
    assert_int_equal(session_state(a.session), SESSION_READY);
    pass(&f, SEC);
    assert_int_equal(a.done, OUTCOME_EXITED + 100); /* it was not torn away */
    run_free(a.run);
    session_release(a.session);
    pass(&f, SEC); /* ended */
    pass(&f, SEC); /* made anew */
    assert_non_null(b.session);
    assert_ptr_equal(b.session, c.session);
    assert_ptr_equal(b.session, d.session);
    assert_string_equal(session_spec(b.session)->extra_mounts[0].host_path, "/srv/b");
    assert_int_equal(fake_creations(f.backend), 2);
    give_back(&b);
    give_back(&c);
    give_back(&d);
    fixture_stop(&f);
}

static void remounting_does_not_overtake_an_answer_on_its_way(void **state)
{
    struct fixture f;
    struct heard a, b;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    session_release(ready_session(&f, "s"));
    assert_int_equal(ask(&f, mounted(NULL), ACQUIRE_REMOUNT, &a, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_REMOUNT, &b, &err), 0);
    pump(&f);
    assert_non_null(a.session);
    assert_non_null(b.session);
    assert_ptr_not_equal(a.session, b.session);
    assert_int_equal(session_state(a.session), SESSION_STOPPING);
    give_back(&a);
    give_back(&b);
    fixture_stop(&f);
}

static void remounting_ends_processes_of_the_old_session(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    (void)running(&f, s, "p", "cat");
    session_release(s);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_REMOUNT, &h, &err), 0);
    pump(&f);
    assert_non_null(h.session);
    assert_null(process_find(h.session, "p"));
    assert_int_equal(manager_processes_running(f.m), 0);
    give_back(&h);
    fixture_stop(&f);
}

static void remounting_what_is_refused_ends_nothing(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    assert_int_equal(ask(&f, mounted("/etc"), ACQUIRE_REMOUNT, &h, &err),
                     err_code_errno(ERR_DENIED));
    pump(&f);
    assert_ptr_equal(manager_find(f.m, "s"), s);
    session_release(s);
    session_release(ready_session(&f, "s")); /* nobody waits in front of us */
    fixture_stop(&f);
}

static void failed_making_leaves_the_next_its_own_try(void **state)
{
    struct fixture f;
    struct heard a, b;
    struct err err = {0}, fault = {.code = ERR_BACKEND, .msg = "no luck"};
    fixture_start(&f, NULL, &proc_options);
    fake_fail(f.backend, FAKE_CREATE_LATER, &fault);
    assert_int_equal(ask(&f, mounted(NULL), ACQUIRE_REMOUNT, &a, &err), 0);
    assert_int_equal(ask(&f, mounted("/srv/b"), ACQUIRE_REMOUNT, &b, &err), 0);
    pump(&f);
    assert_int_equal(a.err.code, ERR_BACKEND);
    assert_non_null(b.session);
    give_back(&b);
    fixture_stop(&f);
}

/* Idle time. */

static void test_row_I14_reaping_can_be_asked_for(void **state)
{
    struct fixture f;
    fixture_start(&f, NULL, &proc_options);
    session_release(ready_session(&f, "s"));
    f.clock.boot_ns += 60 * SEC - 1;
    manager_reap(f.m);
    assert_non_null(manager_find(f.m, "s"));
    f.clock.boot_ns += 1;
    manager_reap(f.m); /* no timer was due */
    assert_null(manager_find(f.m, "s"));
    pump(&f);
    assert_int_equal(manager_count(f.m), 0);
    fixture_stop(&f);
}

static void session_that_somebody_waits_for_is_not_idle(void **state)
{
    struct fixture f;
    struct heard h;
    fixture_start(&f, NULL, &proc_options);
    session_release(ready_session(&f, "s"));
    acquire_id(&f, "s", &h); /* its answer is on its way */
    f.clock.boot_ns += 3600 * SEC;
    manager_reap(f.m);
    pump(&f);
    give_back(&h);
    assert_non_null(manager_find(f.m, "s"));
    fixture_stop(&f);
}

static void backend_knows_when_to_end_it_without_us(void **state)
{
    struct fixture f;
    struct heard h;
    struct err err = {0};
    struct told t;
    const uint64_t full = 66 * SEC; /* a tenth more than the time to live */
    fixture_start(&f, NULL, &proc_options);
    struct session *s = ready_session(&f, "s");
    uint64_t t0 = f.clock.boot_ns;
    assert_int_equal(fake_deadline(f.backend, "fake-1"), t0 + full);
    pass(&f, 6 * SEC);
    session_exec_begins(s); /* not worth telling yet */
    assert_int_equal(fake_deadline(f.backend, "fake-1"), t0 + full);
    pass(&f, SEC);
    session_exec_ends(s);
    assert_int_equal(fake_deadline(f.backend, "fake-1"), t0 + 7 * SEC + full);
    session_exec_begins(s); /* a long one moves it along */
    for (int i = 0; i < 30; i++)
        pass(&f, 10 * SEC);
    assert_true(fake_deadline(f.backend, "fake-1") >= f.clock.boot_ns + 60 * SEC);
    session_exec_ends(s);
    (void)running(&f, s, "p", "cat");
    assert_int_equal(fake_deadline(f.backend, "fake-1"), 0);
    end_it(s, "p", &t);
    pump(&f);
    assert_int_equal(fake_deadline(f.backend, "fake-1"), f.clock.boot_ns + full);
    session_release(s);

    struct spec *kept = named_spec("kept");
    kept->persistent = true;
    assert_int_equal(ask(&f, kept, 0, &h, &err), 0);
    pump(&f);
    give_back(&h);
    assert_int_equal(fake_deadline(f.backend, "fake-2"), 0);
    fixture_stop(&f);
}

static void all_can_be_ended_more_than_once(void **state)
{
    struct fixture f;
    struct heard first = {0}, second = {0};
    fixture_start(&f, NULL, &proc_options);
    session_release(ready_session(&f, "s"));
    manager_close(f.m, on_gone, &first);
    manager_close(f.m, on_gone, &second);
    pump(&f);
    assert_int_equal(first.n, 1);
    assert_int_equal(second.n, 1);
    session_release(ready_session(&f, "s")); /* and life goes on */
    f.clock.boot_ns += 60 * SEC;
    manager_reap(f.m);
    assert_null(manager_find(f.m, "s"));
    fixture_stop(&f);
}

/* Expected values are from Python: hashlib.sha256(json.dumps({...}, sort_keys=True)...)[:16]. */
static void test_row_F18_config_hash_is_pythons(void **state)
{
    struct spec *s = named_spec("s");
    char hash[BACKEND_CONFIG_HASH_LEN + 1];
    backend_config_hash(s, hash);
    assert_string_equal(hash, "fc017b6658b63aba");
    s->workspace_quota_mb = 7; /* is no part of it */
    backend_config_hash(s, hash);
    assert_string_equal(hash, "fc017b6658b63aba");
    s->network = NETWORK_ON;
    s->cpus = 0.5;
    s->read_only_rootfs = false;
    backend_config_hash(s, hash);
    assert_string_equal(hash, "96f47dccf6ebbb2a");
    spec_free(s);

    s = named_spec("s");
    s->host_path = xstrdup("/home/\xc3\xa4 \"b\"\\\t\x7f/\xf0\x9f\x98\x80\xe2\x80\xa8");
    s->host_path_mode = MOUNT_RO;
    s->image[0] = '\0';
    backend_config_hash(s, hash);
    assert_string_equal(hash, "24713e9a5e15d613");
    spec_free(s);

    s = named_spec("s");
    s->cpus = 1e-7;
    s->memory_mb = 1 << 30;
    s->pids_limit = 4194304;
    backend_config_hash(s, hash);
    assert_string_equal(hash, "0082c26283de4a50");
    spec_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T05_one_session_serves_all_requests_of_its_id),
        cmocka_unit_test(test_row_T13_another_host_path_is_a_conflict),
        cmocka_unit_test(test_row_T14_other_limits_are_a_conflict),
        cmocka_unit_test(test_row_F14_blocked_host_paths_are_refused),
        cmocka_unit_test(test_row_F14_links_to_blocked_places_are_refused),
        cmocka_unit_test(test_row_F15_paths_are_checked_before_the_backend_is_asked),
        cmocka_unit_test(mounts_are_compared_as_a_set),
        cmocka_unit_test(another_digest_is_another_mount),
        cmocka_unit_test(named_exec_mounts_are_no_reason_to_end_a_session),
        cmocka_unit_test(without_the_flag_mounts_do_not_matter),
        cmocka_unit_test(remounting_waits_for_those_before),
        cmocka_unit_test(remounting_does_not_overtake_an_answer_on_its_way),
        cmocka_unit_test(remounting_ends_processes_of_the_old_session),
        cmocka_unit_test(remounting_what_is_refused_ends_nothing),
        cmocka_unit_test(failed_making_leaves_the_next_its_own_try),
        cmocka_unit_test(test_row_I14_reaping_can_be_asked_for),
        cmocka_unit_test(session_that_somebody_waits_for_is_not_idle),
        cmocka_unit_test(backend_knows_when_to_end_it_without_us),
        cmocka_unit_test(all_can_be_ended_more_than_once),
        cmocka_unit_test(test_row_F18_config_hash_is_pythons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
