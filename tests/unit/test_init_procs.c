/* SPDX-License-Identifier: Apache-2.0 */

/* Managed processes, as PID 1 keeps them: their output, their input, their end, and what a second
 * boxd finds of them. */

#include "init_fixture.h"

#include "inside/ring.h"

#define KILLS 100

static struct ring_reader ring;
static int in_fd = -1;

static struct init_state expect_state(uint32_t id)
{
    struct init_state m;
    int fds[2] = {-1, -1};
    size_t n = 2;
    assert_true(receive(&m, sizeof(m), sizeof(m), fds, &n));
    assert_int_equal(m.type, INIT_MSG_PROC_STATE);
    assert_int_equal(m.id, id);
    assert_true(n >= 1);
    ring_reader_done(&ring);
    assert_int_equal(ring_reader_init(&ring, fds[0], m.begin, false), 0);
    (void)close(fds[0]);
    fd_close_many(&in_fd, 1);
    in_fd = fds[1];
    return m;
}

static struct init_state launch(struct request r)
{
    r.type = INIT_MSG_PROC;
    send_request(&r);
    struct init_state m = expect_state(r.id);
    /* As if nothing had been written yet, however quick the program was. */
    ring.end = m.begin;
    ring.eof = false;
    return m;
}

static void done(void)
{
    ring_reader_done(&ring);
    fd_close_many(&in_fd, 1);
    stop();
}

static void tell_room(uint32_t id)
{
    struct init_number m = {.type = INIT_MSG_PROC_ROOM, .id = id};
    assert_int_equal(fd_send_msg(conn, &m, sizeof(m), NULL, 0, 0), sizeof(m));
}

static void stdin_op(uint32_t id, enum init_stdin_op op)
{
    struct init_stdin m = {.type = INIT_MSG_PROC_STDIN, .id = id, .op = op};
    assert_int_equal(fd_send_msg(conn, &m, sizeof(m), NULL, 0, 0), sizeof(m));
}

static void kill_proc(uint32_t id, enum init_kill_scope scope, int signo)
{
    struct init_kill m = {.type = INIT_MSG_PROC_KILL, .id = id, .scope = scope, .signo = signo};
    assert_int_equal(fd_send_msg(conn, &m, sizeof(m), NULL, 0, 0), sizeof(m));
}

static void forget(uint32_t id)
{
    struct init_number m = {.type = INIT_MSG_PROC_FORGET, .id = id};
    assert_int_equal(fd_send_msg(conn, &m, sizeof(m), NULL, 0, 0), sizeof(m));
}

/* That nothing of it runs any more. Without groups others may have ended with it. */
static void expect_gone(uint32_t id)
{
    union {
        struct init_number gone;
        struct init_exited other;
    } m = {0};
    while (m.gone.type != INIT_MSG_PROC_GONE) {
        struct pollfd p = {.fd = conn, .events = POLLIN};
        assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        assert_true(fd_recv_msg(conn, &m, sizeof(m), NULL, NULL, 0) > 0);
    }
    assert_int_equal(m.gone.id, id);
}

/* The next message, of either kind. */
union news {
    uint32_t type;
    struct init_number output;
    struct init_exited exited;
};

static union news next_news(uint32_t id)
{
    union news m;
    struct pollfd p = {.fd = conn, .events = POLLIN};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    ssize_t n = fd_recv_msg(conn, &m, sizeof(m), NULL, NULL, 0);
    if (m.type == INIT_MSG_PROC_OUTPUT) {
        assert_int_equal(n, sizeof(m.output));
        assert_int_equal(m.output.id, id);
    } else {
        assert_int_equal(m.type, INIT_MSG_PROC_EXITED);
        assert_int_equal(n, sizeof(m.exited));
        assert_int_equal(m.exited.id, id);
    }
    return m;
}

/* Reads to the end of its output and of itself; nothing is released on the way. */
static struct init_exited watch_to_the_end(uint32_t id)
{
    struct init_exited exited = {0};
    while (!ring.eof || exited.type == 0) {
        int r = ring_reader_wait(&ring);
        assert_true(r >= 0);
        if (r > 0)
            continue;
        union news m = next_news(id);
        if (m.type == INIT_MSG_PROC_EXITED)
            exited = m.exited;
    }
    return exited;
}

/* Waits as boxd does: never looks twice without having been told in between. */
static void expect_output(uint32_t id, uint64_t end)
{
    while (ring.end < end) {
        int r = ring_reader_wait(&ring);
        assert_true(r >= 0);
        if (r == 0)
            assert_int_equal(next_news(id).type, INIT_MSG_PROC_OUTPUT);
    }
    assert_int_equal(ring.end, end);
}

/* Of what we saw before we were told, we may be told all the same. */
static void expect_only_output(uint32_t id, int wait_ms)
{
    struct pollfd p = {.fd = conn, .events = POLLIN};
    while (poll(&p, 1, wait_ms) > 0)
        assert_int_equal(next_news(id).type, INIT_MSG_PROC_OUTPUT);
}

static void expect_text(const char *want)
{
    char got[256] = "";
    ssize_t n = ring_read(&ring, ring.begin, got, sizeof(got) - 1);
    assert_int_equal(n, strlen(want));
    assert_string_equal(got, want);
}

static void greet_again(void)
{
    struct init_hello answer;
    epoch++;
    say_hello();
    do
        assert_true(recv(conn, &answer, sizeof(answer), 0) > 0);
    while (answer.type != INIT_MSG_HELLO || answer.epoch != epoch);
}

static void output_is_kept_by_offset(void **state)
{
    char got[64];
    need(start_config(&plain));
    struct init_state m = launch(
        (struct request){.id = 7, .argv = {"sh", "-c", "echo hello; echo oops >&2; exit 3"}});
    assert_int_equal(m.begin, 0);
    assert_int_equal(m.flags & ~INIT_STATE_EXITED, 0);
    struct init_exited e = watch_to_the_end(7);
    assert_int_equal(e.end.stage, INSIDE_STAGE_NONE);
    assert_int_equal(WEXITSTATUS(e.end.wait_status), 3);
    assert_true(e.end.duration_ns > 0);
    expect_text("hello\n");
    assert_int_equal(ring_read_err(&ring, got, sizeof(got)), 5);
    assert_memory_equal(got, "oops\n", 5);
    done();
}

static void nothing_is_told_without_being_asked(void **state)
{
    struct pollfd p;
    need(start_config(&plain));
    (void)launch((struct request){.id = 1, .argv = {"sh", "-c", "echo a; exec cat"}});
    while (ring_reader_look(&ring) == 0)
        (void)poll(NULL, 0, 1);
    /* An exec's answer comes after whatever could have come before. */
    char out[8];
    struct init_exited e = run(&(struct request){.id = 5, .argv = {"true"}}, out, sizeof(out));
    expect_exit(&e, 0);
    p = (struct pollfd){.fd = conn, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    /* Once, however much follows, until we wait again. */
    assert_int_equal(ring_reader_wait(&ring), 0);
    for (uint64_t end = 4; end <= 8; end += 2) {
        assert_int_equal(write(in_fd, "b\n", 2), 2);
        while (ring.end < end)
            assert_true(ring_reader_look(&ring) >= 0);
    }
    assert_int_equal(next_news(1).type, INIT_MSG_PROC_OUTPUT);
    e = run(&(struct request){.id = 6, .argv = {"true"}}, out, sizeof(out));
    expect_exit(&e, 0);
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_int_equal(ring_reader_wait(&ring), 0);
    assert_int_equal(write(in_fd, "c\n", 2), 2);
    assert_int_equal(next_news(1).type, INIT_MSG_PROC_OUTPUT);
    assert_int_equal(ring_reader_look(&ring), 1);
    assert_int_equal(ring.end, 10);
    done();
}

static void full_ring_holds_the_process_back(void **state)
{
    static char got[RING_OUT_SIZE];
    uint64_t total = 0;
    need(start_config(&plain));
    (void)launch((struct request){.id = 1, .argv = {"head", "-c", "3000000", "/dev/zero"}});
    while (ring.end < RING_OUT_SIZE)
        assert_true(ring_reader_look(&ring) >= 0);
    struct init_exited e = {0};
    tell_room(1); /* there is none */
    while (!ring.eof || ring.begin < ring.end || e.type == 0) {
        assert_true(ring_reader_look(&ring) >= 0);
        ssize_t n = ring_read(&ring, ring.begin, got, 1 + total % 50000);
        assert_true(n >= 0);
        total += (uint64_t)n;
        int held = ring_reader_release(&ring, ring.begin + (uint64_t)n);
        assert_true(held >= 0);
        if (held > 0)
            tell_room(1);
        if (n == 0 && ring_reader_wait(&ring) == 0) {
            union news m = next_news(1);
            if (m.type == INIT_MSG_PROC_EXITED)
                e = m.exited;
        }
    }
    assert_int_equal(total, 3000000);
    expect_exit(&e, 0);
    done();
}

static void stderr_never_holds_back(void **state)
{
    char got[RING_ERR_SIZE];
    need(start_config(&plain));
    (void)launch((struct request){
        .id = 1, .argv = {"sh", "-c", "head -c 1000000 /dev/zero >&2; echo end >&2; echo done"}});
    struct init_exited e = watch_to_the_end(1);
    expect_exit(&e, 0);
    expect_text("done\n");
    size_t n = 0;
    for (int i = 0; i < 1000 && (n < 4 || memcmp(got + n - 4, "end\n", 4) != 0); i++) {
        n = ring_read_err(&ring, got, sizeof(got)); /* told by nobody: it may be on its way */
        (void)poll(NULL, 0, 1);
    }
    assert_memory_equal(got + n - 4, "end\n", 4);
    done();
}

static void stdin_is_closed_when_both_ends_are(void **state)
{
    need(start_config(&plain));
    (void)launch((struct request){.id = 1, .argv = {"cat"}});
    assert_int_equal(write(in_fd, "abc", 3), 3);
    expect_output(1, 3);
    fd_close_many(&in_fd, 1); /* PID 1 has another */
    assert_int_equal(ring_reader_wait(&ring), 0);
    expect_only_output(1, 50);
    assert_int_equal(ring_reader_look(&ring), 0);
    stdin_op(1, INIT_STDIN_CLOSE);
    struct init_exited e = watch_to_the_end(1);
    expect_exit(&e, 0);
    expect_text("abc");
    done();
}

static void program_that_cannot_run_says_why(void **state)
{
    need(start_config(&plain));
    (void)launch((struct request){.id = 1, .argv = {"/nonexistent"}});
    struct init_exited e = next_news(1).exited;
    assert_int_equal(e.end.stage, INSIDE_STAGE_EXEC);
    assert_int_equal(e.end.error, ENOENT);
    /* It is known until it is forgotten. */
    struct request again = {.id = 1, .type = INIT_MSG_PROC, .argv = {"true"}};
    send_request(&again);
    e = next_news(1).exited;
    assert_int_equal(e.end.stage, INSIDE_STAGE_REQUEST);
    forget(1);
    expect_gone(1);
    forget(1); /* nor does anything of what is not known */
    expect_gone(1);
    (void)launch((struct request){.id = 1, .argv = {"true"}});
    e = next_news(1).exited;
    expect_exit(&e, 0);
    again.id = 0;
    send_request(&again);
    assert_int_equal(next_news(0).exited.end.stage, INSIDE_STAGE_REQUEST);
    done();
}

static void limit_that_cannot_be_set_is_told(void **state)
{
    need(start_config(&plain));
    struct init_state m =
        launch((struct request){.id = 1, .argv = {"true"}, .memory_bytes = 1 << 20});
    assert_int_equal(m.flags & INIT_STATE_MEMORY_OPEN, INIT_STATE_MEMORY_OPEN);
    done();
}

/* Where one of them is to be killed and others are not. */
static void start_in_namespace(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs a pid namespace\n");
        skip();
    }
    own_namespace = true;
    bool started = start_config(&plain);
    own_namespace = false;
    need(started);
}

static void next_boxd_finds_everything(void **state)
{
    int fds[3] = {-1, -1, -1};
    char byte;
    start_in_namespace();
    (void)launch((struct request){.id = 3, .argv = {"cat"}});
    assert_int_equal(write(in_fd, "0123456789", 10), 10);
    while (ring.end < 10)
        assert_true(ring_reader_look(&ring) >= 0);
    assert_int_equal(ring_reader_release(&ring, 4), 0);
    assert_int_equal(ring_reader_wait(&ring), 0); /* what it waits for ends with it */
    stdin_op(3, INIT_STDIN_MIDLINE);
    (void)launch((struct request){.id = 4, .argv = {"sh", "-c", "echo bye; exit 9"}});
    send_request(&(struct request){.id = 1, .argv = {"sleep", "100"}});
    do { /* whatever else there is to be read comes first, or not */
        size_t n = 3;
        union news m;
        assert_true(fd_recv_msg(conn, &m, sizeof(m), fds, &n, 0) > 0);
    } while (fds[0] < 0);
    greet_again();
    /* The command has ended, and nobody speaks of it. */
    assert_int_equal(read(fds[0], &byte, 1), 0);
    fd_close_many(fds, 3);
    struct init_state m = expect_state(3);
    assert_int_equal(m.begin, 4);
    assert_int_equal(m.flags, INIT_STATE_MIDLINE);
    expect_text("456789");
    assert_int_equal(write(in_fd, "\nx\n", 3), 3);
    stdin_op(3, INIT_STDIN_WHOLE);
    m = expect_state(4);
    expect_list_end();
    if (!(m.flags & INIT_STATE_EXITED))
        m.exited = next_news(4).exited;
    assert_int_equal(WEXITSTATUS(m.exited.end.wait_status), 9);
    greet_again();
    m = expect_state(3);
    assert_int_equal(m.flags, 0);
    while (ring.end < 13)
        assert_true(ring_reader_look(&ring) >= 0);
    expect_text("456789\nx\n");
    m = expect_state(4);
    assert_int_equal(m.flags, INIT_STATE_EXITED); /* for as long as it is not forgotten */
    assert_int_equal(in_fd, -1);
    expect_text("bye\n");
    expect_list_end();
    done();
}

static void pid_1_does_not_wait_for_a_reader(void **state)
{
    need(start_config(&plain));
    (void)launch((struct request){.id = 1, .argv = {"cat"}});
    (void)launch((struct request){.id = 2, .argv = {"cat"}});
    /* Far more answers than fit, none of which is read. */
    struct init_exec bad = {.type = INIT_MSG_EXEC, .id = 9};
    for (int i = 0; i < 5000; i++)
        assert_int_equal(send(conn, &bad, sizeof(bad), 0), sizeof(bad));
    assert_int_equal(write(in_fd, "here", 4), 4); /* and it reads still */
    while (ring.end < 4)
        assert_true(ring_reader_look(&ring) >= 0);
    greet_again();
    (void)expect_state(1);
    struct init_state m = expect_state(2);
    assert_int_equal(m.flags, 0);
    expect_text("here");
    expect_list_end();
    done();
}

static void kill_of_one_spares_the_others(void **state)
{
    start_in_namespace();
    (void)launch((struct request){.id = 1, .argv = {"sh", "-c", "cat | cat"}});
    int first = in_fd;
    in_fd = -1;
    struct ring_reader first_ring = ring;
    ring.head = NULL;
    (void)launch((struct request){.id = 2, .argv = {"sh", "-c", "sleep 100 & echo; wait"}});
    expect_output(2, 1);
    kill_proc(2, INIT_KILL_TREE, 0);
    struct init_exited e = watch_to_the_end(2); /* nobody holds its pipe any more */
    assert_int_equal(e.end.flags, INSIDE_EXITED_KILLED);
    assert_true(WIFSIGNALED(e.end.wait_status));
    /* The first goes on, with all of its processes. */
    assert_int_equal(write(first, "still here", 10), 10);
    while (first_ring.end < 10)
        assert_true(ring_reader_look(&first_ring) >= 0);
    /* The end of a command spares it too. */
    char out[64];
    struct request r = {.id = 5, .argv = {"sleep", "100"}, .timeout_ns = 50000000};
    e = run(&r, out, sizeof(out));
    assert_int_equal(e.end.flags, INSIDE_EXITED_TIMEOUT);
    assert_int_equal(write(first, "!", 1), 1);
    while (first_ring.end < 11)
        assert_true(ring_reader_look(&first_ring) >= 0);
    kill_proc(1, INIT_KILL_MAIN, SIGTERM);
    e = next_news(1).exited;
    assert_int_equal(WTERMSIG(e.end.wait_status), SIGTERM);
    ring_reader_done(&first_ring);
    (void)close(first);
    done();
}

/* Whoever makes a process while all are stopped for a kill makes one that begins stopped: it must
 * not stay so. */
static void a_process_that_forks_while_another_is_killed_goes_on(void **state)
{
    start_in_namespace();
    (void)launch((struct request){.id = 1, .argv = {"sh", "-c", "while :; do (:); echo; done"}});
    int first = in_fd;
    in_fd = -1;
    struct ring_reader first_ring = ring;
    ring.head = NULL;
    for (uint32_t i = 2; i < 2 + KILLS; i++) {
        (void)launch((struct request){.id = i, .argv = {"sleep", "100"}});
        kill_proc(i, INIT_KILL_TREE, 0);
        assert_int_equal(watch_to_the_end(i).end.flags, INSIDE_EXITED_KILLED);
        ring_reader_done(&ring);
        fd_close_many(&in_fd, 1);
        forget(i);
        expect_gone(i);
        /* It has made one more. */
        uint64_t until = first_ring.end + 2;
        for (int ms = 0; first_ring.end < until; ms++) {
            assert_true(ms < PATIENCE_MS);
            assert_true(ring_reader_look(&first_ring) >= 0);
            (void)poll(NULL, 0, 1);
        }
        if (ring_reader_release(&first_ring, first_ring.end) > 0)
            tell_room(1);
    }
    ring_reader_done(&first_ring);
    (void)close(first);
    done();
}

static void what_is_forgotten_ends_and_makes_room(void **state)
{
    need(start_config(&plain));
    for (uint32_t i = 1; i <= INIT_PROCS_MAX; i++)
        (void)launch((struct request){.id = i, .argv = {"cat"}});
    struct request more = {.id = 1000, .type = INIT_MSG_PROC, .argv = {"cat"}};
    send_request(&more);
    struct init_exited e = next_news(1000).exited;
    assert_int_equal(e.end.stage, INSIDE_STAGE_LIMIT);
    int last = in_fd; /* of the last one */
    in_fd = -1;
    forget(INIT_PROCS_MAX);
    /* Nobody reads its stdin any more: neither it nor PID 1. */
    struct pollfd p = {.fd = last, .events = POLLERR};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    assert_true(p.revents & POLLERR);
    (void)close(last);
    expect_gone(INIT_PROCS_MAX);
    for (int i = 0;; i++) { /* its cell is free when it was reaped */
        send_request(&more);
        int fds[2] = {-1, -1};
        size_t n = 2;
        struct init_state m;
        assert_true(fd_recv_msg(conn, &m, sizeof(m), fds, &n, 0) > 0);
        fd_close_many(fds, n);
        if (m.type == INIT_MSG_PROC_STATE)
            break;
        assert_true(i < 1000);
        (void)poll(NULL, 0, 5);
    }
    done();
}

static void end_of_the_connection_is_the_end(void **state)
{
    int status = 0;
    need(start_config(&plain));
    fd_close_many(&conn, 1);
    assert_int_equal(waitpid(init_pid, &status, 0), init_pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_kept_by_offset),
        cmocka_unit_test(nothing_is_told_without_being_asked),
        cmocka_unit_test(full_ring_holds_the_process_back),
        cmocka_unit_test(stderr_never_holds_back),
        cmocka_unit_test(stdin_is_closed_when_both_ends_are),
        cmocka_unit_test(program_that_cannot_run_says_why),
        cmocka_unit_test(limit_that_cannot_be_set_is_told),
        cmocka_unit_test(next_boxd_finds_everything),
        cmocka_unit_test(pid_1_does_not_wait_for_a_reader),
        cmocka_unit_test(kill_of_one_spares_the_others),
        cmocka_unit_test(a_process_that_forks_while_another_is_killed_goes_on),
        cmocka_unit_test(what_is_forgotten_ends_and_makes_room),
        cmocka_unit_test(end_of_the_connection_is_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
