/* SPDX-License-Identifier: Apache-2.0 */

/* PID 1's table of execs and its reading of messages, in this process: plain directories stand in
 * for cgroups, and nothing is ever started or killed. */

#include "lib/unit.h"

#include "inside/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"

/* What PID 1 calls instead of kill(2) and getpid(2); see meson.build. */
int test_kill(pid_t pid, int signo);
pid_t test_getpid(void);

static struct {
    int calls;
    pid_t pid;
    int signo;
} killed;

int test_kill(pid_t pid, int signo)
{
    killed.calls++;
    killed.pid = pid;
    killed.signo = signo;
    return 0;
}

pid_t test_getpid(void)
{
    return 1;
}

static struct init in;
static struct child_report reports[INIT_CELLS_MAX];
static int peer = -1; /* boxd's end */
static char dir[64];

/* As its end is told to boxd. */
static uint32_t processes_left(struct cell *c)
{
    assert_true(cell_settled(&in, c));
    return c->result.end.remaining;
}

static void start(enum init_cgroup_mode mode)
{
    int pair[2];
    (void)snprintf(dir, sizeof(dir), "/tmp/box-cells-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    in = (struct init){.config = {.version = INIT_CONFIG_VERSION, .cgroup_mode = mode},
                       .conn_fd = pair[0],
                       .signal_fd = -1,
                       .cgroup_fd = -1,
                       .memcg_fd = -1,
                       .landlock_fd = -1,
                       .reports = reports};
    peer = pair[1];
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++)
        in.cells[i].cgroup_fd = in.cells[i].memcg_fd = in.cells[i].oom_fd = -1;
    if (mode != INIT_CGROUP_NONE)
        in.cgroup_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    memset(&killed, 0, sizeof(killed));
}

static void stop(void)
{
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
        int fds[] = {in.cells[i].cgroup_fd, in.cells[i].memcg_fd, in.cells[i].oom_fd};
        fd_close_many(fds, 3);
    }
    int fds[] = {in.conn_fd, in.cgroup_fd, in.memcg_fd, peer};
    fd_close_many(fds, 4);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
}

static void put(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

static void remove_file(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* The table of cells. */

static void cell_goes_round_its_states(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_NONE);
    reports[0] = (struct child_report){.stage = INSIDE_STAGE_EXEC, .error = 5};
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_ptr_equal(c, &in.cells[0]);
    assert_int_equal(cell_index(&in, c), 0);
    assert_int_equal(c->state, CELL_FREE);
    assert_int_equal(reports[0].stage + (uint32_t)reports[0].error, 0); /* of the one before */
    cell_move(c, CELL_RUNNING);
    cell_move(c, CELL_DONE);
    cell_move(c, CELL_LINGER);
    assert_int_equal(cell_acquire(&in, &c), 0); /* nothing holds it: it is free again */
    assert_ptr_equal(c, &in.cells[0]);
    assert_int_equal(c->state, CELL_FREE);
    stop();
}

static void cells_run_out_and_come_back(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_NONE);
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++) {
        assert_int_equal(cell_acquire(&in, &c), 0);
        assert_int_equal(cell_index(&in, c), i);
        cell_move(c, CELL_RUNNING);
    }
    assert_int_equal(cell_acquire(&in, &c), -EAGAIN);
    cell_move(&in.cells[40], CELL_DONE); /* not told yet: still taken */
    assert_int_equal(cell_acquire(&in, &c), -EAGAIN);
    cell_move(&in.cells[40], CELL_LINGER);
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 40);
    stop();
}

static void group_is_kept_for_the_next_exec(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_V2);
    cell_prepare(&in);
    int fd = in.cells[0].cgroup_fd;
    assert_true(fd >= 0);
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(c->cgroup_fd, fd);
    cell_move(c, CELL_RUNNING);
    cell_move(c, CELL_DONE);
    cell_move(c, CELL_LINGER);
    /* While something is left in the group, and when one cannot tell, another is used. */
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 1);
    put("s0/cgroup.events", "populated 1\nfrozen 0\n");
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 1);
    put("s0/cgroup.events", "populated 0\nfrozen 0\n");
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 0);
    assert_int_equal(c->cgroup_fd, fd);
    stop();
}

static void killed_group_is_made_anew(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_V2);
    assert_int_equal(cell_acquire(&in, &c), 0);
    struct stat before, after;
    assert_int_equal(fstat(c->cgroup_fd, &before), 0);
    put("s0/cgroup.kill", "");
    assert_int_equal(cell_kill_tree(&in, c), 0);
    assert_true(c->killed);
    assert_int_equal(killed.calls, 0); /* the group's own kill, nothing else's */
    /* It cannot be removed while something is in it: a file here, a process there. */
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 1);
    remove_file("s0/cgroup.kill");
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 0);
    assert_false(c->killed);
    assert_int_equal(fstat(c->cgroup_fd, &after), 0);
    assert_true(after.st_ino != before.st_ino || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec ||
                after.st_ctim.tv_sec != before.st_ctim.tv_sec);
    stop();
}

static void without_groups_everything_is_killed(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_NONE);
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_kill_tree(&in, c), 0);
    assert_int_equal(killed.calls, 1);
    assert_int_equal(killed.pid, -1);
    assert_int_equal(killed.signo, SIGKILL);
    assert_int_equal(processes_left(c), 0);
    stop();
}

static void remaining_processes_are_counted(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_V2);
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(processes_left(c), 0); /* no such file */
    put("s0/cgroup.events", "populated 1\n");
    put("s0/cgroup.procs", "12\n13\n4194303\n");
    assert_int_equal(processes_left(c), 3);
    put("s0/cgroup.events", "populated 0\n");
    assert_int_equal(processes_left(c), 0);
    stop();
}

static void killed_tree_is_waited_for_but_not_for_ever(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_V2);
    assert_int_equal(cell_acquire(&in, &c), 0);
    put("s0/cgroup.events", "populated 1\n");
    put("s0/cgroup.procs", "12\n");
    c->settle_ns = UINT64_MAX;
    assert_false(cell_settled(&in, c));
    put("s0/cgroup.events", "populated 0\n");
    assert_true(cell_settled(&in, c));
    assert_int_equal(c->settle_ns, 0);
    assert_int_equal(c->result.end.remaining, 0);
    put("s0/cgroup.events", "populated 1\n");
    c->settle_ns = 1; /* long ago */
    assert_true(cell_settled(&in, c));
    assert_int_equal(c->result.end.remaining, 1);
    stop();
}

static void memory_kills_are_counted_since_the_start(void **state)
{
    struct cell *c = NULL;
    start(INIT_CGROUP_V2);
    cell_prepare(&in);
    put("s0/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n");
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(c->oom_seen, 2);
    assert_false(cell_oom_check(&in, c)); /* of an earlier exec */
    c->oom_checks = 2;
    assert_false(cell_oom_check(&in, c));
    assert_int_equal(c->oom_checks, 1);
    put("s0/memory.events", "oom_kill 3\n");
    assert_true(cell_oom_check(&in, c));
    assert_int_equal(c->oom_checks, 0);
    assert_false(cell_oom_check(&in, c)); /* told once */
    put("s0/memory.events", "oom_kill_disable 0\nunder_oom 0\n");
    assert_false(cell_oom_check(&in, c));
    stop();
}

/* Both hierarchies in one directory; files of the controller as far as they are wanted. */
static void start_hybrid(bool with_event_control)
{
    start(INIT_CGROUP_HYBRID);
    char path[96];
    (void)snprintf(path, sizeof(path), "%s/memory", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    in.memcg_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(in.memcg_fd >= 0);
    put("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    if (with_event_control)
        put("memory/cgroup.event_control", "");
}

static void first_cell_shares_the_sessions_memory_group(void **state)
{
    struct cell *c = NULL;
    start_hybrid(true);
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(c->memcg_fd, -1);
    assert_true(c->oom_fd >= 0);
    assert_int_equal(c->oom_seen, 5);
    put("memory/memory.oom_control", "oom_kill 6\n");
    assert_true(cell_oom_check(&in, c));
    stop();
}

static void group_that_cannot_be_watched_leaks_nothing(void **state)
{
    struct cell *c = NULL;
    start_hybrid(true);
    assert_int_equal(cell_acquire(&in, &c), 0);
    cell_move(c, CELL_RUNNING);
    /* The second has a group of its own, without the controller's files here. */
    assert_int_equal(cell_acquire(&in, &c), -ENOENT);
    int before = count_fds();
    for (int i = 0; i < 5; i++)
        assert_int_equal(cell_acquire(&in, &c), -ENOENT);
    assert_int_equal(count_fds(), before);
    put("memory/s1/memory.oom_control", "oom_kill 0\n");
    put("memory/s1/cgroup.event_control", "");
    assert_int_equal(cell_acquire(&in, &c), 0);
    assert_int_equal(cell_index(&in, c), 1);
    assert_true(c->memcg_fd >= 0);
    stop();

    start_hybrid(false);
    assert_int_equal(cell_acquire(&in, &c), -ENOENT);
    before = count_fds();
    assert_int_equal(cell_acquire(&in, &c), -ENOENT);
    assert_int_equal(count_fds(), before);
    stop();
}

/* Messages. */

static void send_bytes(const void *data, size_t len)
{
    assert_int_equal(fd_send_msg(peer, data, len, NULL, 0, MSG_NOSIGNAL), (ssize_t)len);
    serve_message(&in);
}

static void greet(void)
{
    struct init_hello hello = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION, .epoch = 5},
                      answer = {0};
    struct init_number end = {0};
    send_bytes(&hello, sizeof(hello));
    assert_int_equal(fd_recv_msg(peer, &answer, sizeof(answer), NULL, NULL, MSG_DONTWAIT),
                     sizeof(answer));
    assert_int_equal(answer.type, INIT_MSG_HELLO);
    assert_int_equal(answer.version, INIT_WIRE_VERSION);
    assert_int_equal(answer.epoch, 5);
    assert_int_equal(fd_recv_msg(peer, &end, sizeof(end), NULL, NULL, MSG_DONTWAIT), sizeof(end));
    assert_int_equal(end.type, INIT_MSG_PROC_END);
    assert_int_equal(in.talk, TALK_OPEN);
}

static void expect_silence(void)
{
    char byte;
    assert_int_equal(recv(peer, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(errno, EAGAIN);
}

static void expect_refusal(uint32_t id, enum inside_stage stage, int error)
{
    struct init_exited m = {0};
    assert_int_equal(fd_recv_msg(peer, &m, sizeof(m), NULL, NULL, MSG_DONTWAIT), sizeof(m));
    assert_int_equal(m.type, INIT_MSG_EXITED);
    assert_int_equal(m.id, id);
    assert_int_equal(m.end.stage, stage);
    assert_int_equal(m.end.error, error);
    expect_silence();
}

static void hello_comes_first(void **state)
{
    struct init_kill kill_it = {.type = INIT_MSG_KILL, .id = 1, .scope = INIT_KILL_TREE};
    struct init_exec exec = {.type = INIT_MSG_EXEC, .id = 1};
    start(INIT_CGROUP_NONE);
    serve_message(&in); /* nothing there */
    send_bytes(&kill_it, sizeof(kill_it));
    send_bytes(&exec, sizeof(exec));
    expect_silence();
    assert_int_equal(killed.calls, 0);
    greet();
    greet(); /* again is fine */
    stop();
}

static void wrong_hello_is_not_answered(void **state)
{
    struct init_hello m = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION + 1};
    struct {
        struct init_hello hello;
        char more;
    } __attribute__((packed)) longer = {{INIT_MSG_HELLO, INIT_WIRE_VERSION, 5}, 0};
    start(INIT_CGROUP_NONE);
    send_bytes(&m, sizeof(m));
    assert_int_equal(in.talk, TALK_NONE);
    send_bytes(&m, sizeof(m.type));
    send_bytes(&longer, sizeof(longer));
    assert_int_equal(in.talk, TALK_NONE);
    expect_silence();
    greet();
    send_bytes(&m, sizeof(m)); /* and takes a greeting back */
    assert_int_equal(in.talk, TALK_NONE);
    expect_silence();
    stop();
}

static void nonsense_is_not_listened_to_until_the_next_hello(void **state)
{
    static const uint32_t types[] = {0,
                                     INIT_MSG_STARTED,
                                     INIT_MSG_EXITED,
                                     INIT_MSG_PROC_STATE,
                                     INIT_MSG_PROC_OUTPUT,
                                     INIT_MSG_PROC_ROOM, /* too short */
                                     INIT_MSG_PROC_FORGET,
                                     INIT_MSG_PROC_FORGET + 1,
                                     UINT32_MAX};
    static char big[sizeof(struct init_exec) + INIT_INLINE_MAX + 1];
    start(INIT_CGROUP_NONE);
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        greet();
        send_bytes(&types[i], sizeof(types[i]));
        assert_int_equal(in.talk, TALK_NONE);
    }
    for (size_t len = 1; len < 4; len++) { /* not even a type */
        greet();
        send_bytes(&types[1], len);
        assert_int_equal(in.talk, TALK_NONE);
    }
    greet();
    big[0] = INIT_MSG_EXEC; /* more than any message */
    send_bytes(big, sizeof(big));
    assert_int_equal(in.talk, TALK_NONE);
    expect_silence();
    stop();
}

static void requests_of_the_wrong_length_are_nonsense(void **state)
{
    struct {
        struct init_kill kill;
        char more;
    } m = {{.type = INIT_MSG_KILL, .id = 1, .scope = INIT_KILL_TREE}, 0};
    struct init_exec exec = {.type = INIT_MSG_EXEC, .id = 7};
    start(INIT_CGROUP_NONE);
    greet();
    send_bytes(&m, sizeof(m.kill) - 1);
    assert_int_equal(in.talk, TALK_NONE);
    greet();
    send_bytes(&m, sizeof(m.kill) + 1);
    assert_int_equal(in.talk, TALK_NONE);
    greet();
    send_bytes(&exec, sizeof(exec) - 1);
    assert_int_equal(in.talk, TALK_NONE);
    expect_silence();
    assert_int_equal(killed.calls, 0);
    stop();
}

/* Sends the head with as many bytes of strings as it says, or `len` of them. */
static void send_exec(struct init_exec head, ssize_t len, const int *fds, size_t n_fds)
{
    static struct {
        struct init_exec head;
        char strings[1024];
    } m;
    m.head = head;
    size_t total = sizeof(head) + (len < 0 ? head.strings_len : (size_t)len);
    assert_true(total <= sizeof(m));
    assert_int_equal(fd_send_msg(peer, &m, total, fds, n_fds, MSG_NOSIGNAL), (ssize_t)total);
    serve_message(&in);
}

static void malformed_exec_gets_its_one_answer(void **state)
{
    static const struct init_exec good = {
        .type = INIT_MSG_EXEC, .id = 9, .argc = 1, .strings_len = 4};
    struct init_exec m;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), two[2] = {null, null};
    start(INIT_CGROUP_NONE);
    greet();
#define REFUSED(member, value, len, fds, n)                                                        \
    do {                                                                                           \
        m = good;                                                                                  \
        m.member = (value);                                                                        \
        send_exec(m, len, fds, n);                                                                 \
        expect_refusal(9, INSIDE_STAGE_REQUEST, EBADMSG);                                          \
        assert_int_equal(in.talk, TALK_OPEN);                                                      \
    } while (0)
    REFUSED(strings_len, 0, -1, NULL, 0);
    REFUSED(strings_len, 5, 4, NULL, 0); /* says more than it brings */
    REFUSED(strings_len, 3, 4, NULL, 0);
    REFUSED(strings_len, INSIDE_STRINGS_MAX + 1, 4, NULL, 0);
    REFUSED(strings_len, UINT32_MAX, 4, NULL, 0);
    REFUSED(argc, 0, -1, NULL, 0);
    REFUSED(argc, 5, -1, NULL, 0); /* more strings than bytes */
    REFUSED(argc, UINT32_MAX, -1, NULL, 0);
    REFUSED(envc, 5, -1, NULL, 0);
    REFUSED(envc, UINT32_MAX, -1, NULL, 0);
    REFUSED(flags, 0, -1, &null, 1);             /* a descriptor nobody spoke of */
    REFUSED(flags, INIT_EXEC_MEMFD, 0, NULL, 0); /* and the other way round */
    REFUSED(flags, INIT_EXEC_MEMFD, 0, two, 2);
#undef REFUSED
    int before = count_fds();
    m = good;
    send_exec(m, -1, two, 2);
    expect_refusal(9, INSIDE_STAGE_REQUEST, EBADMSG);
    assert_int_equal(count_fds(), before); /* what came along was closed */
    (void)close(null);
    stop();
}

static void exec_without_a_free_cell_is_refused(void **state)
{
    struct init_exec m = {.type = INIT_MSG_EXEC, .id = 3, .argc = 1, .strings_len = 4};
    start(INIT_CGROUP_NONE);
    greet();
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++)
        in.cells[i].state = CELL_RUNNING;
    send_exec(m, -1, NULL, 0);
    expect_refusal(3, INSIDE_STAGE_LIMIT, EAGAIN);
    stop();
}

static void signals_reach_the_named_exec_only(void **state)
{
    struct init_kill m = {
        .type = INIT_MSG_KILL, .id = 5, .scope = INIT_KILL_MAIN, .signo = SIGTERM};
    start(INIT_CGROUP_NONE);
    greet();
    in.cells[2].state = CELL_RUNNING;
    in.cells[2].id = 5;
    in.cells[2].pid = 12345;
    in.cells[3].id = 6; /* FREE: what it was does not matter any more */
    send_bytes(&m, sizeof(m));
    assert_int_equal(killed.calls, 1);
    assert_int_equal(killed.pid, -12345); /* its group, as a terminal would */
    assert_int_equal(killed.signo, SIGTERM);
    static const int32_t bad[] = {0, -1, NSIG, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        m.signo = bad[i];
        send_bytes(&m, sizeof(m));
    }
    m = (struct init_kill){.type = INIT_MSG_KILL, .id = 6, .scope = INIT_KILL_TREE};
    send_bytes(&m, sizeof(m));
    m.id = 777;
    send_bytes(&m, sizeof(m));
    assert_int_equal(killed.calls, 1);
    m.id = 5;
    send_bytes(&m, sizeof(m));
    assert_int_equal(killed.calls, 2);
    assert_int_equal(killed.pid, -1);
    assert_int_equal(in.cells[2].result.end.flags, INSIDE_EXITED_KILLED);
    /* One that has ended is not signalled: its number may be another's by now. */
    in.cells[2].state = CELL_LINGER;
    in.cells[2].result.end.flags = 0;
    m.scope = INIT_KILL_MAIN;
    m.signo = SIGTERM;
    send_bytes(&m, sizeof(m));
    assert_int_equal(killed.calls, 2);
    m.scope = INIT_KILL_TREE; /* but what it left behind can be ended */
    send_bytes(&m, sizeof(m));
    assert_int_equal(killed.calls, 3);
    assert_int_equal(in.cells[2].result.end.flags, 0);
    assert_int_equal(in.talk, TALK_OPEN);
    stop();
}

static void result_is_kept_until_somebody_listens(void **state)
{
    struct cell *c = &in.cells[0];
    struct init_exited got;
    start(INIT_CGROUP_NONE);
    c->state = CELL_DONE;
    c->result = (struct init_exited){.type = INIT_MSG_EXITED, .id = 4, .end = {.wait_status = 256}};
    serve_tell(&in, c);
    assert_int_equal(c->state, CELL_DONE);
    expect_silence();
    in.epoch = 5; /* the same boxd again */
    greet();
    assert_int_equal(c->state, CELL_LINGER);
    assert_int_equal(fd_recv_msg(peer, &got, sizeof(got), NULL, NULL, MSG_DONTWAIT), sizeof(got));
    assert_int_equal(got.id, 4);
    assert_int_equal(got.end.wait_status, 256);
    stop();
}

static void next_boxd_hears_nothing_of_the_last_ones_commands(void **state)
{
    start(INIT_CGROUP_NONE);
    in.epoch = 4;
    in.cells[0].state = CELL_DONE;
    in.cells[1].state = CELL_RUNNING;
    in.cells[2].state = CELL_LINGER;
    greet();
    expect_silence();
    assert_int_equal(in.cells[0].state, CELL_LINGER);
    assert_int_equal(killed.calls, 1); /* the one that runs */
    assert_true(in.cells[1].orphan);
    in.cells[1].state = CELL_DONE; /* it is gone */
    serve_flush(&in);
    assert_int_equal(in.cells[1].state, CELL_LINGER);
    expect_silence();
    stop();
}

static void list_waits_for_room_and_goes_on(void **state)
{
    struct init_hello hello = {.type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION, .epoch = 5};
    struct init_exited stale = {.type = INIT_MSG_EXITED};
    char got[256];
    start(INIT_CGROUP_NONE);
    /* What an earlier boxd did not read fills the socket. */
    while (fd_send_msg(in.conn_fd, &stale, sizeof(stale), NULL, 0, MSG_DONTWAIT) > 0)
        ;
    send_bytes(&hello, sizeof(hello));
    assert_int_equal(in.talk, TALK_ANSWER);
    assert_true(in.blocked);
    while (fd_recv_msg(peer, got, sizeof(got), NULL, NULL, MSG_DONTWAIT) == sizeof(stale))
        ;
    serve_flush(&in);
    assert_int_equal(in.talk, TALK_OPEN);
    assert_false(in.blocked);
    assert_int_equal(fd_recv_msg(peer, got, sizeof(got), NULL, NULL, MSG_DONTWAIT), sizeof(hello));
    assert_int_equal(fd_recv_msg(peer, got, sizeof(got), NULL, NULL, MSG_DONTWAIT),
                     sizeof(struct init_number));
    expect_silence();
    stop();
}

static void memory_of_a_process_is_limited_in_its_own_group(void **state)
{
    struct cell *c = NULL;
    char text[32];
    start(INIT_CGROUP_V2);
    assert_int_equal(cell_acquire_at(&in, INIT_EXECS_MAX, &c), 0);
    assert_int_equal(cell_limit_memory(&in, c, 4096), -ENOENT); /* no controller */
    put("s64/memory.max", "");
    put("s64/memory.swap.max", "");
    assert_int_equal(cell_limit_memory(&in, c, 1 << 20), 0);
    assert_true(fd_read_file_at(c->cgroup_fd, "memory.max", text, sizeof(text)) > 0);
    assert_string_equal(text, "1048576");
    put("s64/memory.max", "");
    assert_int_equal(cell_limit_memory(&in, c, 0), 0); /* the next in the same group */
    assert_true(fd_read_file_at(c->cgroup_fd, "memory.max", text, sizeof(text)) > 0);
    assert_string_equal(text, "max");
    stop();

    start(INIT_CGROUP_NONE);
    assert_int_equal(cell_acquire_at(&in, INIT_EXECS_MAX, &c), 0);
    assert_int_equal(cell_limit_memory(&in, c, 4096), -EOPNOTSUPP);
    stop();
}

static void result_waits_for_room(void **state)
{
    struct cell *c = &in.cells[0];
    struct init_exited got;
    int sent = 0;
    start(INIT_CGROUP_NONE);
    greet();
    c->result = (struct init_exited){.type = INIT_MSG_EXITED, .id = 4};
    for (c->state = CELL_DONE; sent < 100000; sent++) {
        c->state = CELL_DONE;
        serve_tell(&in, c);
        if (c->state == CELL_DONE)
            break;
    }
    assert_int_equal(c->state, CELL_DONE); /* the peer does not read */
    assert_int_equal(in.talk, TALK_OPEN);
    assert_int_equal(fd_recv_msg(peer, &got, sizeof(got), NULL, NULL, MSG_DONTWAIT), sizeof(got));
    while (fd_recv_msg(peer, &got, sizeof(got), NULL, NULL, MSG_DONTWAIT) > 0)
        ;
    assert_true(in.blocked);
    serve_flush(&in);
    assert_int_equal(c->state, CELL_LINGER);
    stop();
}

static void peer_that_is_gone_is_not_told(void **state)
{
    struct cell *c = &in.cells[0];
    start(INIT_CGROUP_NONE);
    greet();
    (void)close(peer);
    peer = -1;
    c->state = CELL_DONE;
    serve_tell(&in, c);
    assert_int_equal(c->state, CELL_DONE);
    assert_int_equal(in.talk, TALK_NONE);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cell_goes_round_its_states),
        cmocka_unit_test(cells_run_out_and_come_back),
        cmocka_unit_test(group_is_kept_for_the_next_exec),
        cmocka_unit_test(killed_group_is_made_anew),
        cmocka_unit_test(without_groups_everything_is_killed),
        cmocka_unit_test(remaining_processes_are_counted),
        cmocka_unit_test(killed_tree_is_waited_for_but_not_for_ever),
        cmocka_unit_test(memory_kills_are_counted_since_the_start),
        cmocka_unit_test(first_cell_shares_the_sessions_memory_group),
        cmocka_unit_test(group_that_cannot_be_watched_leaks_nothing),
        cmocka_unit_test(hello_comes_first),
        cmocka_unit_test(wrong_hello_is_not_answered),
        cmocka_unit_test(nonsense_is_not_listened_to_until_the_next_hello),
        cmocka_unit_test(requests_of_the_wrong_length_are_nonsense),
        cmocka_unit_test(malformed_exec_gets_its_one_answer),
        cmocka_unit_test(exec_without_a_free_cell_is_refused),
        cmocka_unit_test(signals_reach_the_named_exec_only),
        cmocka_unit_test(result_is_kept_until_somebody_listens),
        cmocka_unit_test(next_boxd_hears_nothing_of_the_last_ones_commands),
        cmocka_unit_test(list_waits_for_room_and_goes_on),
        cmocka_unit_test(memory_of_a_process_is_limited_in_its_own_group),
        cmocka_unit_test(result_waits_for_room),
        cmocka_unit_test(peer_that_is_gone_is_not_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
