/* SPDX-License-Identifier: Apache-2.0 */

/* A real box-priv and boxds that are killed: what is alive stays, and the next one gets it. Needs
 * root; skips without. */

#include "lib/unit.h"
#include "orphans.h"

/* For what is private to it. */
#include "priv/client.c"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/state_dir.h"
#include "base/str.h"
#include "fuzz/plans.h"
#include "loop/loop.h"

#define DAEMON 1999999999U
#define PATIENCE_MS 30000

static char state[64], tag[24];
static uint32_t next_index;
static struct err err;

static const struct priv_client_options *options(uint64_t linger)
{
    static struct priv_client_options o;
    static char root[] = "/srv";
    static char *roots[] = {root, NULL};
    o = (struct priv_client_options){.program = BUILD_DIR "/box-priv",
                                     .init_program = BUILD_DIR "/box-init",
                                     .state_dir = state,
                                     .tag = tag,
                                     .uid = DAEMON,
                                     .gid = DAEMON,
                                     .roots = roots,
                                     .linger_sec = linger};
    return &o;
}

static int setup(void **unused)
{
    char id[17];
    (void)snprintf(state, sizeof(state), "/tmp/box-priv-XXXXXX");
    assert_non_null(mkdtemp(state));
    /* As boxd leaves it: some tests put things there before the first box-priv. */
    AUTO_CLOSE int fd = open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(state_dir_claim(fd, state, NULL), 0);
    id_random(id);
    (void)snprintf(tag, sizeof(tag), "box-%.11s", id);
    return 0;
}

static int teardown(void **unused)
{
    end_children();
    return path_remove_tree_at(AT_FDCWD, state);
}

/* One boxd. */

static struct {
    struct loop *loop;
    struct priv_client *client;
} it;

static void begin(uint64_t linger)
{
    err = (struct err){0};
    assert_int_equal(loop_new(&clock_system, &it.loop, &err), 0);
    if (priv_client_new(it.loop, options(linger), &it.client, &err) < 0)
        fail_msg("%s", err.msg);
}

static void end(bool bye)
{
    if (bye)
        priv_client_free(it.client);
    else
        priv_client_detach(it.client);
    loop_free(it.loop);
}

struct answer {
    bool there;
    struct priv_reply reply;
    int fds[4];
    size_t n_fds;
};

static void on_reply(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct answer *a = arg;
    a->there = true;
    if (reply == NULL) {
        a->reply.result = -EPIPE;
        return;
    }
    a->reply = *reply;
    a->n_fds = n_fds;
    for (size_t i = 0; i < n_fds; i++)
        a->fds[i] = TAKE_FD(fds[i]);
}

static void wait_for(struct answer *a)
{
    while (!a->there)
        assert_true(loop_turn(it.loop, PATIENCE_MS) > 0);
}

static void forget(struct answer *a)
{
    fd_close_many(a->fds, a->n_fds);
    a->n_fds = 0;
}

static uint32_t plan_flags; /* more of them */

static void ask_create(char name[17], struct answer *a)
{
    static struct plan plan;
    static char root[] = "/srv";
    id_random(name);
    plans_make(0, root, name, next_index++, &plan);
    plan.flags |= plan_flags;
    *a = (struct answer){0};
    assert_int_equal(priv_client_create(it.client, &plan, on_reply, a, &err), 0);
}

static void create(char name[17])
{
    struct answer a;
    ask_create(name, &a);
    wait_for(&a);
    if (a.reply.result < 0)
        fail_msg("%s", a.reply.err.msg);
    assert_int_equal(a.n_fds, plan_flags & PLAN_NET_ON ? 4 : 2);
    forget(&a);
}

static int adopt(const char *name, struct answer *a)
{
    *a = (struct answer){0};
    assert_int_equal(priv_client_ask_about(it.client, PRIV_ADOPT, name, on_reply, a, &err), 0);
    wait_for(a);
    return a->reply.result;
}

static int destroy(const char *name)
{
    struct answer a = {0};
    assert_int_equal(priv_client_ask_about(it.client, PRIV_DESTROY, name, on_reply, &a, &err), 0);
    wait_for(&a);
    return a.reply.result;
}

static size_t found(const char *name, uint32_t *ret_index)
{
    const struct priv_item *items = NULL;
    size_t n = priv_client_found(it.client, &items);
    for (size_t i = 0; i < n; i++)
        if (name != NULL && strcmp(items[i].name, name) == 0)
            *ret_index = items[i].uid_index;
    return n;
}

/* A boxd that does what it is told and then sleeps; the names it made come through the pipe. */
struct victim {
    pid_t pid, priv_pid;
    char names[2][17];
};

static void victim_start(struct victim *v, uint64_t linger, uint64_t deadline_ms)
{
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    v->pid = fork();
    if (v->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        begin(linger);
        create(v->names[0]);
        create(v->names[1]);
        if (deadline_ms > 0)
            priv_client_deadline(it.client, v->names[0],
                                 clock_boot(&clock_system) + deadline_ms * NSEC_PER_MSEC);
        v->priv_pid = it.client->conn.pid;
        (void)fd_write_all(out[1], v, sizeof(*v));
        (void)pause();
        _exit(0);
    }
    next_index += 2;
    (void)close(out[1]);
    pid_t pid = v->pid;
    assert_int_equal(fd_read_full(out[0], v, sizeof(*v)), sizeof(*v));
    v->pid = pid;
    (void)close(out[0]);
}

static void victim_kill(struct victim *v)
{
    assert_int_equal(kill(v->pid, SIGKILL), 0);
    assert_int_equal(waitpid(v->pid, NULL, 0), v->pid);
}

static bool gone_within(int pidfd, int ms)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

static void expect_end_of(pid_t pid)
{
    for (int i = 0; kill(pid, 0) == 0; i++) {
        assert_true(i < PATIENCE_MS / 10);
        (void)waitpid(pid, NULL, WNOHANG); /* ours since its boxd died */
        (void)poll(NULL, 0, 10);
    }
}

static void sandboxes_outlive_a_killed_boxd(void **unused)
{
    struct victim v;
    struct answer a;
    uint32_t index = UINT32_MAX;
    victim_start(&v, 3600, 0);
    victim_kill(&v);
    begin(3600);
    assert_int_equal(it.client->conn.pid, v.priv_pid);
    assert_int_equal(found(v.names[1], &index), 2);
    assert_int_equal(adopt(v.names[1], &a), 0);
    assert_int_equal(a.n_fds, 2);
    assert_int_equal(a.reply.created.uid_index, index);
    assert_false(gone_within(a.fds[0], 0));
    /* PID 1 answers on the socket that came with it. */
    struct init_hello hello = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION};
    struct pollfd p = {.fd = a.fds[1], .events = POLLIN};
    assert_int_equal(send(a.fds[1], &hello, sizeof(hello), 0), sizeof(hello));
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    /* New ones can be made beside it, and it can be ended. */
    char name[17];
    create(name);
    assert_int_equal(destroy(v.names[1]), 0);
    assert_true(gone_within(a.fds[0], PATIENCE_MS));
    forget(&a);
    assert_int_equal(adopt(v.names[1], &a), -ENOENT);
    assert_int_equal(adopt(v.names[0], &a), 0);
    int other = TAKE_FD(a.fds[0]);
    forget(&a);
    /* And a third boxd after the second. */
    end(false);
    begin(3600);
    assert_int_equal(it.client->conn.pid, v.priv_pid);
    assert_int_equal(found(NULL, NULL), 2);
    assert_false(gone_within(other, 0));
    end(true);
    assert_true(gone_within(other, 0)); /* a goodbye waits until all is over */
    (void)close(other);
    expect_end_of(v.priv_pid);
}

static void without_lingering_everything_ends_at_once(void **unused)
{
    struct victim v;
    victim_start(&v, 0, 0);
    victim_kill(&v);
    expect_end_of(v.priv_pid);
    begin(0);
    assert_true(it.client->conn.pid != v.priv_pid);
    assert_int_equal(found(NULL, NULL), 0);
    end(true);
}

static void lingering_ends(void **unused)
{
    struct victim v;
    victim_start(&v, 1, 0);
    victim_kill(&v);
    expect_end_of(v.priv_pid);
}

static void deadline_holds_while_nobody_is_there(void **unused)
{
    struct victim v;
    struct answer a;
    uint32_t index = UINT32_MAX;
    victim_start(&v, 3600, 600);
    /* Not while somebody is. */
    (void)poll(NULL, 0, 700);
    victim_kill(&v);
    for (int i = 0; i < PATIENCE_MS / 10; i++) {
        begin(3600);
        size_t n = found(v.names[1], &index);
        if (n == 1)
            break;
        end(false);
        (void)poll(NULL, 0, 10);
    }
    assert_true(index != UINT32_MAX);
    assert_int_equal(adopt(v.names[0], &a), -ENOENT);
    assert_int_equal(adopt(v.names[1], &a), 0);
    forget(&a);
    end(true);
    expect_end_of(v.priv_pid);
}

static void what_nobody_heard_of_is_there(void **unused)
{
    char name[17] = "";
    uint32_t index = UINT32_MAX;
    int out[2];
    struct answer a;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        begin(3600);
        ask_create(name, &a);
        (void)fd_write_all(out[1], name, sizeof(name));
        (void)kill(getpid(), SIGKILL);
    }
    next_index++;
    assert_int_equal(fd_read_full(out[0], name, sizeof(name)), sizeof(name));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    fd_close_many(out, 2);
    begin(3600);
    assert_int_equal(found(name, &index), 1);
    assert_int_equal(index, next_index - 1);
    assert_int_equal(destroy(name), 0);
    pid = it.client->conn.pid;
    /* With nothing left it does not wait. */
    end(false);
    expect_end_of(pid);
}

static void resolver_comes_again(void **unused)
{
    struct victim v;
    struct answer a, b;
    struct sockaddr_in sa = {0};
    socklen_t len = sizeof(sa);
    plan_flags = PLAN_NET_ON;
    victim_start(&v, 3600, 0);
    plan_flags = 0;
    victim_kill(&v);
    begin(3600);
    assert_int_equal(adopt(v.names[0], &a), 0);
    assert_int_equal(a.n_fds, 4);
    assert_int_equal(a.reply.created.network, NET_NAT);
    assert_int_equal(getsockname(a.fds[2], (struct sockaddr *)&sa, &len), 0);
    assert_int_equal(sa.sin_port, htons(53));
    /* One at a time: while somebody has it, it cannot be had again. */
    assert_int_equal(adopt(v.names[0], &b), 0);
    assert_int_equal(b.n_fds, 2);
    forget(&b);
    forget(&a);
    end(true);
    expect_end_of(v.priv_pid);
}

static void one_boxd_at_a_time(void **unused)
{
    struct loop *loop = NULL;
    struct priv_client *second = NULL;
    char name[17];
    begin(3600);
    create(name);
    assert_int_equal(loop_new(&clock_system, &loop, &err), 0);
    assert_int_equal(priv_client_new(loop, options(3600), &second, &err), -EEXIST);
    assert_int_equal(err.code, ERR_CONFLICT);
    assert_non_null(strstr(err.msg, "another boxd"));
    loop_free(loop);
    assert_int_equal(destroy(name), 0); /* the first is not disturbed */
    end(true);
}

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/" PRIV_SOCKET, state);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? fd : -1;
}

static void another_version_can_only_say_goodbye(void **unused)
{
    struct victim v;
    struct priv_reply reply;
    struct priv_hello hello = {.head = {.type = PRIV_HELLO},
                               .version = PRIV_WIRE_VERSION + 1,
                               .uid = DAEMON,
                               .gid = DAEMON};
    struct priv_head head = {.type = PRIV_LIST};
    victim_start(&v, 3600, 0);
    victim_kill(&v);
    int fd = dial();
    assert_true(fd >= 0);
    assert_int_equal(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
    assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
    assert_true(reply.result < 0 && reply.result != -EBUSY);
    assert_int_equal(send(fd, &head, sizeof(head), 0), sizeof(head));
    assert_int_equal(recv(fd, &reply, sizeof(reply), 0), sizeof(reply));
    assert_true(reply.result < 0);
    head.type = PRIV_BYE;
    assert_int_equal(send(fd, &head, sizeof(head), 0), sizeof(head));
    assert_int_equal(recv(fd, &reply, sizeof(reply), 0), 0);
    (void)close(fd);
    expect_end_of(v.priv_pid);
}

static void boxd_for_another_user_begins_anew(void **unused)
{
    struct victim v;
    victim_start(&v, 3600, 0);
    victim_kill(&v);
    assert_int_equal(loop_new(&clock_system, &it.loop, &err), 0);
    struct priv_client_options o = *options(3600);
    o.uid = DAEMON - 1;
    if (priv_client_new(it.loop, &o, &it.client, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(it.client->conn.pid != v.priv_pid);
    assert_int_equal(found(NULL, NULL), 0);
    expect_end_of(v.priv_pid);
    end(true);
}

static void others_are_not_let_in(void **unused)
{
    struct victim v;
    char path[128];
    struct stat st;
    int status = 0;
    victim_start(&v, 3600, 0);
    (void)snprintf(path, sizeof(path), "%s/" PRIV_SOCKET, state);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_uid, 0);
    assert_int_equal(chmod(state, 0711), 0);
    assert_int_equal(chmod(path, 0666), 0);
    victim_kill(&v);
    pid_t pid = fork();
    if (pid == 0) {
        struct priv_reply reply;
        struct priv_head bye = {.type = PRIV_BYE};
        int fd = setresuid(DAEMON, DAEMON, DAEMON) == 0 ? dial() : -1;
        if (fd < 0)
            _exit(1);
        (void)send(fd, &bye, sizeof(bye), MSG_NOSIGNAL);
        _exit(recv(fd, &reply, sizeof(reply), 0) <= 0 ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    begin(3600);
    assert_int_equal(it.client->conn.pid, v.priv_pid);
    assert_int_equal(found(NULL, NULL), 2);
    end(true);
    expect_end_of(v.priv_pid);
}

static void socket_of_somebody_else_is_not_believed(void **unused)
{
    int ready[2];
    char byte;
    assert_int_equal(chmod(state, 0777), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/" PRIV_SOCKET, state);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (setresuid(DAEMON, DAEMON, DAEMON) == 0 &&
            bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 4) == 0)
            (void)fd_write_all(ready[1], "r", 1);
        (void)pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    fd_close_many(ready, 2);
    begin(3600);
    assert_true(it.client->conn.pid != pid);
    char name[17];
    create(name);
    end(true);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* We are the engine: who listens, and whose mount namespace counts. */
static int listen_as_engine(char path[static 96])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(path, 96, "%s/engine.sock", state);
    assert_int_equal(str_copy(address.sun_path, sizeof(address.sun_path), path), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 64), 0);
    return fd;
}

static void begin_with_engine(const char *engine, const char *root)
{
    char *roots[] = {(char *)(uintptr_t)root, NULL};
    struct priv_client_options o = *options(0);
    o.engine_socket = engine;
    o.roots = roots;
    err = (struct err){0};
    assert_int_equal(loop_new(&clock_system, &it.loop, &err), 0);
    if (priv_client_new(it.loop, &o, &it.client, &err) < 0)
        fail_msg("%s", err.msg);
}

static int bind_it(const struct priv_bind_request *b, struct answer *a)
{
    *a = (struct answer){0};
    assert_int_equal(priv_client_bind(it.client, b, on_reply, a, &err), 0);
    wait_for(a);
    return a->reply.result;
}

static void an_engine_gets_directories_under_other_ids(void **unused)
{
    static const char name[] = "0123456789abcdef";
    struct priv_bind_request b = {.name = name, .uid = 2000000017U, .path = "dir"};
    char engine[96], top[64], dir[80], place[128];
    struct answer a;
    struct stat st;
    AUTO_CLOSE int sock = listen_as_engine(engine);
    (void)snprintf(top, sizeof(top), "/var/tmp/box-bind-XXXXXX");
    assert_non_null(mkdtemp(top));
    (void)snprintf(dir, sizeof(dir), "%s/dir", top);
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(chown(dir, 4321, 4322), 0);
    (void)snprintf(place, sizeof(place), "%s/binds/in/%s/0", state, name);
    begin_with_engine(engine, top);
    if (bind_it(&b, &a) < 0)
        fail_msg("%s", a.reply.err.msg);
    assert_int_equal(a.n_fds, 1);
    assert_int_equal(fstat(a.fds[0], &st), 0);
    assert_int_equal(st.st_uid, 2000000017U);
    assert_int_equal(st.st_gid, 2000000017U);
    assert_int_equal(stat(place, &st), 0);
    assert_int_equal(st.st_uid, 2000000017U);
    forget(&a);
    priv_client_unbind(it.client, name);
    b.flags = PRIV_BIND_LOOK; /* answered after that, and without a descriptor */
    assert_int_equal(bind_it(&b, &a), 0);
    assert_int_equal(a.n_fds, 0);
    (void)snprintf(place, sizeof(place), "%s/binds", state);
    assert_int_equal(stat(place, &st), -1);
    b.flags = 0;
    assert_int_equal(bind_it(&b, &a), 0); /* nobody takes it back: it goes with box-priv */
    forget(&a);
    end(true);
    assert_int_equal(stat(place, &st), -1);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, top), 0);
}

static void binds_have_bounds(void **unused)
{
    static const struct {
        struct priv_bind_request b;
        const char *message;
    } cases[] = {
        {{.name = "0123456789abcdef", .uid = 1000, .path = ""}, "user id out of bounds"},
        {{.name = "0123456789abcdef", .uid = UINT32_MAX, .path = ""}, "user id out of bounds"},
        {{.name = "0123456789abcdef", .index = PRIV_BINDS_MAX, .path = ""}, "out of bounds"},
        {{.name = "0123456789abcdef", .flags = 1U << 31, .path = ""}, "out of bounds"},
        {{.name = "0123456789abcdef", .path = "../etc"}, "not clean"},
        {{.name = "0123456789abcdef", .path = "/etc"}, "not clean"},
        {{.name = "../..", .path = ""}, "malformed"},
        {{.name = "0123456789abcdef", .root = 7, .path = ""}, "not in the allow-list"},
        {{.name = "0123456789abcdef", .path = "missing"}, "does not exist"},
    };
    char engine[96];
    struct answer a;
    AUTO_CLOSE int sock = listen_as_engine(engine);
    begin_with_engine(engine, "/srv");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_true(bind_it(&cases[i].b, &a) < 0);
        if (strstr(a.reply.err.msg, cases[i].message) == NULL)
            fail_msg("%zu: %s", i, a.reply.err.msg);
    }
    end(true);
    begin(0); /* without an engine */
    assert_true(bind_it(&(struct priv_bind_request){.name = "0123456789abcdef", .path = ""}, &a) <
                0);
    assert_int_equal(a.reply.err.code, ERR_UNSUPPORTED);
    end(true);
}

static void children_of(pid_t pid, char *ret, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    assert_true(fd_read_file_at(AT_FDCWD, path, ret, size) >= 0);
}

/* The kernel lists a child until it is reaped. */
static void a_child_that_counts_is_reaped(void **unused)
{
    char before[256] = "", now[256] = "";
    struct answer a = {0};
    begin(0);
    children_of(it.client->conn.pid, before, sizeof(before));
    assert_int_equal(priv_client_ask(it.client, PRIV_GREEDY, on_reply, &a, &err), 0);
    wait_for(&a);
    assert_int_equal(a.reply.result, 0);
    for (int i = 0; i == 0 || (i < PATIENCE_MS / 10 && !str_eq(before, now)); i++) {
        (void)poll(NULL, 0, 10);
        children_of(it.client->conn.pid, now, sizeof(now));
    }
    assert_string_equal(now, before);
    end(true);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(sandboxes_outlive_a_killed_boxd),
        TEST(without_lingering_everything_ends_at_once),
        TEST(lingering_ends),
        TEST(deadline_holds_while_nobody_is_there),
        TEST(what_nobody_heard_of_is_there),
        TEST(resolver_comes_again),
        TEST(one_boxd_at_a_time),
        TEST(another_version_can_only_say_goodbye),
        TEST(boxd_for_another_user_begins_anew),
        TEST(others_are_not_let_in),
        TEST(socket_of_somebody_else_is_not_believed),
        TEST(an_engine_gets_directories_under_other_ids),
        TEST(binds_have_bounds),
        TEST(a_child_that_counts_is_reaped),
    };
    if (geteuid() != 0) {
        (void)fprintf(stderr, "skipped: needs root\n");
        return 77;
    }
    /* Some sandboxes have a network: what that needs on a host is made in a namespace of ours. */
    if (unshare(CLONE_NEWNET) < 0)
        return 77;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
