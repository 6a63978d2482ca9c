/* SPDX-License-Identifier: Apache-2.0 */

/* The native backend by itself, with daemons that are killed in the middle of everything: managed
 * processes go on, their output has no gap, their input no half line. As root or as a user. */

#include "lib/unit.h"
#include "orphans.h"

#include "backend/backend.h"
#include "backend/native/native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "loop/loop.h"
#include "spec/spec.h"

#define DAEMON 1999999999U
#define PATIENCE_MS 30000
#define RECORD 8U /* bytes of a line of the endless process: its number and a newline */

static char state[64], tag[24];
static int owner; /* pid of the test itself */

/* What a daemon leaves for the test that killed it. */
static struct shared {
    char name[17];
    uint64_t read, released; /* of the output of process 1 */
    uint32_t turns;
} * shared;

static int setup(void **unused)
{
    char id[17];
    (void)snprintf(state, sizeof(state), "/tmp/box-native-XXXXXX");
    assert_non_null(mkdtemp(state));
    id_random(id);
    (void)snprintf(tag, sizeof(tag), "box-%.11s", id);
    memset(shared, 0, sizeof(*shared));
    return 0;
}

static int teardown(void **unused)
{
    end_children();
    return path_remove_tree_at(AT_FDCWD, state);
}

/* One daemon. */

static struct {
    struct loop *loop;
    struct backend *b;
    struct sandbox *sb;
    bool created, lost, done;
    struct err err;
} it;

/* A process and what was heard of it. */
static struct heard {
    struct proc *p;
    unsigned outputs, drained;
    bool exited;
    struct outcome outcome;
} procs[4];

static void on_gone(void *arg)
{
    fail_msg("box-priv has died");
}

static void begin(void)
{
    struct native_options o = {.program = BUILD_DIR "/box-priv",
                               .init_program = BUILD_DIR "/box-init",
                               .state_dir = state,
                               .tag = tag,
                               .uid = geteuid() == 0 ? DAEMON : geteuid(),
                               .gid = geteuid() == 0 ? DAEMON : getegid(),
                               .linger_sec = 3600,
                               .gone = on_gone};
    memset(&it, 0, sizeof(it));
    memset(procs, 0, sizeof(procs));
    assert_int_equal(loop_new(&clock_system, &it.loop, &it.err), 0);
    if (native_new(it.loop, &o, &it.b, &it.err) < 0)
        fail_msg("%s", it.err.msg);
}

static void turn(void)
{
    assert_true(loop_turn(it.loop, PATIENCE_MS) > 0);
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    void (*in_created)(void) = (void (*)(void))(uintptr_t)arg;
    it.created = true;
    it.sb = sb;
    if (err != NULL)
        it.err = *err;
    if (sb != NULL && in_created != NULL)
        in_created();
}

static void on_lost(void *arg)
{
    it.lost = true;
}

static void on_done(void *arg, const struct err *err)
{
    it.done = true;
    if (err != NULL)
        it.err = *err;
}

static struct spec *make_spec(void)
{
    struct spec *s = spec_new();
    s->session_id = xstrdup("native");
    s->memory_mb = 256;
    return s;
}

static void create(void)
{
    AUTO(spec) struct spec *s = make_spec();
    it.created = false;
    assert_int_equal(it.b->ops->create(it.b, s, on_created, on_lost, NULL, &it.err), 0);
    while (!it.created)
        turn();
    if (it.sb == NULL)
        fail_msg("%s", it.err.msg);
    (void)str_copy(shared->name, sizeof(shared->name), it.b->ops->sandbox_name(it.sb));
}

static bool adopt(const char *name, void (*in_created)(void))
{
    AUTO(spec) struct spec *s = make_spec();
    it.created = false;
    it.err = (struct err){0};
    void *arg = (void *)(uintptr_t)in_created;
    it.sb = NULL;
    if (it.b->ops->adopt(it.b, name, s, on_created, on_lost, arg, &it.err) < 0)
        return false;
    while (!it.created)
        turn();
    if (it.sb != NULL)
        assert_string_equal(it.b->ops->sandbox_name(it.sb), name);
    return it.sb != NULL;
}

static void destroy(void)
{
    it.done = false;
    it.b->ops->destroy(it.sb, on_done, NULL);
    while (!it.done)
        turn();
}

static void sweep(void)
{
    it.done = false;
    assert_int_equal(it.b->ops->sweep(it.b, on_done, NULL, &it.err), 0);
    while (!it.done)
        turn();
    assert_int_equal(it.err.code, ERR_NONE);
}

/* The end of a daemon in good order: everything goes. */
static void finish(void)
{
    it.b->ops->free(it.b);
    loop_free(it.loop);
}

static void on_output(void *arg)
{
    ((struct heard *)arg)->outputs++;
}

static void on_drained(void *arg)
{
    ((struct heard *)arg)->drained++;
}

static void on_exited(void *arg, const struct outcome *outcome)
{
    struct heard *h = arg;
    assert_false(h->exited);
    h->exited = true;
    h->outcome = *outcome;
}

static const struct proc_events events = {
    .output = on_output, .stdin_drained = on_drained, .exited = on_exited};

static void start(struct heard *h, const char *script, uint64_t memory)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)script, NULL};
    struct proc_request req = {
        .number = (uint32_t)(h - procs) + 1, .argv = argv, .memory_bytes = memory};
    if (it.b->ops->proc_start(it.sb, &req, &events, h, &h->p, &it.err) < 0)
        fail_msg("%s", it.err.msg);
}

static int take(struct heard *h)
{
    return it.b->ops->proc_adopt(it.sb, (uint32_t)(h - procs) + 1, &events, h, &h->p, &it.err);
}

static void take_first(void)
{
    assert_int_equal(take(&procs[0]), 0);
}

static struct proc_range range(const struct heard *h)
{
    return it.b->ops->proc_range(h->p);
}

static void wait_output(struct heard *h, uint64_t end)
{
    while (range(h).end < end)
        turn();
}

static void wait_end(struct heard *h)
{
    while (!h->exited || !range(h).eof)
        turn();
}

static void expect_output(struct heard *h, const char *want)
{
    char got[256] = "";
    struct proc_range r = range(h);
    ssize_t n = it.b->ops->proc_read(h->p, r.begin, got, sizeof(got) - 1);
    assert_int_equal(n, strlen(want));
    assert_string_equal(got, want);
}

/* Runs a daemon in a process of its own until it says that it is far enough, or for ever, and kills
 * it. `ms` more pass in between. */
static void with_victim(void (*body)(void), int ms)
{
    int out[2];
    char byte;
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        begin();
        body();
        (void)fd_write_all(out[1], "x", 1);
        for (;;)
            (void)loop_turn(it.loop, -1);
    }
    (void)close(out[1]);
    assert_int_equal(read(out[0], &byte, 1), 1);
    (void)close(out[0]);
    (void)poll(NULL, 0, ms);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Runs a command to its end; what it wrote is in `out`. */
static struct run {
    char out[4096];
    size_t len;
    bool finished;
    struct outcome outcome;
} command;

static void on_exec_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    size_t room = sizeof(command.out) - 1 - command.len;
    len = len < room ? len : room;
    memcpy(command.out + command.len, data, len);
    command.len += len;
}

static void on_exec_finished(void *arg, const struct outcome *outcome)
{
    command.finished = true;
    command.outcome = *outcome;
}

static struct exec *exec_begin(const char *cmd)
{
    static const struct exec_events exec_events = {.output = on_exec_output,
                                                   .finished = on_exec_finished};
    struct exec_request req = {.cmd = cmd};
    struct exec *e = NULL;
    memset(&command, 0, sizeof(command));
    if (it.b->ops->exec(it.sb, &req, &exec_events, NULL, &e, &it.err) < 0)
        fail_msg("%s", it.err.msg);
    return e;
}

static void exec_run(const char *cmd)
{
    struct exec *e = exec_begin(cmd);
    while (!command.finished)
        turn();
    it.b->ops->exec_free(e);
}

/* A sleep that nobody else on this machine sleeps, and how many there are: from outside, because
 * the processes of a sandbox do not see each other. */
static const char *sleep_text(int which)
{
    static char text[64];
    (void)snprintf(text, sizeof(text), "sleep 9%d.%07d", which, owner);
    return text;
}

static unsigned count_sleeps(void)
{
    char mark[16];
    unsigned n = 0;
    DIR *dir = opendir("/proc");
    (void)snprintf(mark, sizeof(mark), ".%07d", owner);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[300], text[256];
        (void)snprintf(path, sizeof(path), "/proc/%s/cmdline", e->d_name);
        ssize_t len = e->d_name[0] > '0' && e->d_name[0] <= '9'
                          ? fd_read_file_at(AT_FDCWD, path, text, sizeof(text))
                          : -1;
        n += len > 6 && str_eq(text, "sleep") && str_ends(text + 6, mark);
    }
    (void)closedir(dir);
    return n;
}

static void turn_briefly(void)
{
    assert_true(loop_turn(it.loop, 10) >= 0);
}

/* Output without gap or repeat. */

/* The line at an offset, whoever reads it. */
static void check_records(uint64_t at, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char want[16];
        (void)snprintf(want, sizeof(want), "%07llu\n",
                       (unsigned long long)((at + i) / RECORD % 10000000));
        if (data[i] != want[(at + i) % RECORD])
            fail_msg("wrong byte at offset %llu", (unsigned long long)(at + i));
    }
}

static void read_records(struct heard *h)
{
    static char data[65536];
    struct proc_range r = range(h);
    if (shared->read < r.begin)
        fail_msg("a gap: %llu was read, and %llu is the first there is",
                 (unsigned long long)shared->read, (unsigned long long)r.begin);
    ssize_t n = it.b->ops->proc_read(h->p, shared->read, data,
                                     sizeof(data) - shared->turns++ * 977 % 60000);
    assert_true(n >= 0);
    check_records(shared->read, data, (size_t)n);
    shared->read += (uint64_t)n;
    /* Not always all of it, as a reader whose peer has not taken everything. */
    uint64_t until = shared->read - shared->turns % 100 % ((uint64_t)n + 1);
    if (until > r.begin)
        it.b->ops->proc_release(h->p, until);
    shared->released = range(h).begin;
}

static void on_records(void *arg)
{
    read_records(arg);
}

static const struct proc_events record_events = {.output = on_records, .exited = on_exited};

static void start_records(void)
{
    create();
    start(&procs[0], "exec seq -f %07.0f 0 9999999", 0);
    procs[0].p->backend = it.b;
}

static void take_records(void)
{
    assert_int_equal(
        it.b->ops->proc_adopt(it.sb, 1, &record_events, &procs[0], &procs[0].p, &it.err), 0);
    assert_true(range(&procs[0]).begin >= shared->released || shared->released == 0 ||
                range(&procs[0]).begin <= shared->read);
}

static void go_on_with_records(void)
{
    if (!adopt(shared->name, take_records))
        fail_msg("%s", it.err.msg);
    read_records(&procs[0]); /* what waited for us */
}

static void output_has_no_gap_and_no_repeat(void **unused)
{
    uint64_t before = 0;
    with_victim(start_records, 20);
    for (int i = 0; i < 12; i++) {
        with_victim(go_on_with_records, 5 + i * 13 % 40);
        assert_true(shared->read >= before);
        before = shared->read;
    }
    assert_true(shared->read > 2 * 256U << 10); /* it went round */
    begin();
    go_on_with_records();
    assert_true(shared->read > before);
    it.b->ops->proc_free(procs[0].p);
    finish();
}

static void start_and_die(void)
{
    create();
    start(&procs[0], "sleep 0.3; echo last words; echo oops >&2; exit 5", 0);
    start(&procs[1], "echo $$; exec cat", 0);
    start(&procs[2], sleep_text(2), 0);
    (void)exec_begin(sleep_text(3));
    while (count_sleeps() < 2)
        turn_briefly();
}

static void take_two(void)
{
    assert_int_equal(take(&procs[0]), 0);
    assert_int_equal(take(&procs[1]), 0);
    assert_int_equal(take(&procs[1]), -ENOENT);
    assert_int_equal(take(&procs[3]), -ENOENT);
}

static void what_happened_meanwhile_is_told(void **unused)
{
    char text[64];
    with_victim(start_and_die, 600);
    begin();
    assert_true(adopt(shared->name, take_two));
    wait_end(&procs[0]);
    assert_int_equal(procs[0].outcome.kind, OUTCOME_EXITED);
    assert_int_equal(procs[0].outcome.exit_code, 5);
    assert_true(procs[0].outcome.duration_ns > 200 * NSEC_PER_MSEC);
    expect_output(&procs[0], "last words\n");
    assert_int_equal(it.b->ops->proc_stderr(procs[0].p, text, sizeof(text)), 5);
    assert_true(procs[0].outputs > 0);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "x", 1), -EPIPE);
    /* The second goes on; the third, which nobody took, has ended, and so has the command. */
    uint64_t at = range(&procs[1]).end;
    assert_int_equal(it.b->ops->proc_write(procs[1].p, "hello\n", 6), 0);
    wait_output(&procs[1], at + 6);
    while (count_sleeps() > 0)
        turn_briefly();
    /* A number is free again once its process was freed. */
    it.b->ops->proc_free(procs[0].p);
    memset(&procs[0], 0, sizeof(procs[0]));
    start(&procs[0], "echo anew", 0);
    wait_end(&procs[0]);
    expect_output(&procs[0], "anew\n");
    it.b->ops->proc_close_stdin(procs[1].p);
    wait_end(&procs[1]);
    assert_int_equal(procs[1].outcome.exit_code, 0);
    it.b->ops->proc_free(procs[0].p);
    it.b->ops->proc_free(procs[1].p);
    destroy();
    finish();
}

/* Input without half lines. */

static void start_half_line(void)
{
    static char big[300000];
    memset(big, 'A', sizeof(big));
    create();
    start(&procs[0], "trap 'exec cat' USR1; echo ready; while :; do sleep 0.1; done", 0);
    wait_output(&procs[0], 6);
    it.b->ops->proc_release(procs[0].p, 6);
    turn_briefly(); /* PID 1 is told of a release at the end of a turn */
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "first\n", 6), 0);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, big, sizeof(big)), 0);
}

static void half_a_line_is_ended_before_the_next(void **unused)
{
    static char got[262144];
    with_victim(start_half_line, 0);
    begin();
    assert_true(adopt(shared->name, take_first));
    assert_int_equal(range(&procs[0]).begin, 6);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "next\n", 5), 0);
    it.b->ops->proc_signal(procs[0].p, SIGUSR1); /* it reads from now on */
    it.b->ops->proc_close_stdin(procs[0].p);
    wait_end(&procs[0]);
    ssize_t n = it.b->ops->proc_read(procs[0].p, 6, got, sizeof(got) - 1);
    assert_true(n > 4096);
    got[n] = '\0';
    assert_true(str_starts(got, "first\nAAAA"));
    assert_true(str_ends(got, "AA\nnext\n"));
    assert_int_equal(strspn(got + 6, "A"), n - 6 - 6);
    it.b->ops->proc_free(procs[0].p);
    finish();
}

static void start_whole_lines(void)
{
    create();
    start(&procs[0], "exec cat", 0);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "one\n", 4), 0);
    wait_output(&procs[0], 4);
    AUTO_FREE char *big = xcalloc(1, 100000);
    memset(big, 'B', 99999);
    big[99999] = '\n';
    assert_int_equal(it.b->ops->proc_write(procs[0].p, big, 100000), 0);
    wait_output(&procs[0], 100004);
}

static void whole_lines_get_no_more(void **unused)
{
    with_victim(start_whole_lines, 20);
    begin();
    assert_true(adopt(shared->name, take_first));
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "two\n", 4), 0);
    wait_output(&procs[0], 100008);
    char got[16];
    assert_int_equal(it.b->ops->proc_read(procs[0].p, 100003, got, sizeof(got)), 5);
    assert_memory_equal(got, "\ntwo\n", 5);
    finish(); /* with a process that was not freed: it goes with the sandbox */
}

static void writer_is_held_back_and_goes_on(void **unused)
{
    AUTO_FREE char *big = xcalloc(1, 4U << 20);
    begin();
    create();
    start(&procs[0], "exec wc -c", 0);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, big, 4U << 20), 1);
    while (procs[0].drained == 0)
        turn();
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "x", 1), 0);
    it.b->ops->proc_close_stdin(procs[0].p);
    assert_int_equal(it.b->ops->proc_write(procs[0].p, "x", 1), -EPIPE);
    wait_end(&procs[0]);
    expect_output(&procs[0], "4194305\n");
    it.b->ops->proc_free(procs[0].p);
    finish();
}

/* Ends. */

static void process_that_cannot_run_says_why(void **unused)
{
    char *const argv[] = {(char *)(uintptr_t) "/no/such/program", NULL};
    struct proc_request req = {.number = 1, .argv = argv};
    begin();
    create();
    assert_int_equal(it.b->ops->proc_start(it.sb, &req, &events, &procs[0], &procs[0].p, &it.err),
                     0);
    struct proc *other = NULL;
    assert_true(it.b->ops->proc_start(it.sb, &req, &events, &procs[1], &other, &it.err) < 0);
    wait_end(&procs[0]);
    assert_int_equal(procs[0].outcome.exit_code, 127);
    assert_non_null(strstr(procs[0].outcome.error, "cannot execute"));
    it.b->ops->proc_free(procs[0].p);
    finish();
}

static void kill_takes_the_whole_tree(void **unused)
{
    begin();
    create();
    char script[128];
    (void)snprintf(script, sizeof(script), "setsid %s & trap '' TERM; echo up; %s", sleep_text(1),
                   "while :; do sleep 1; done");
    start(&procs[0], script, 0);
    start(&procs[1], "echo up; exec cat", 0);
    wait_output(&procs[0], 3);
    wait_output(&procs[1], 3);
    it.b->ops->proc_signal(procs[0].p, SIGTERM); /* which it does not care about */
    it.b->ops->proc_kill(procs[0].p);
    wait_end(&procs[0]); /* the end of its output: nobody holds the pipe */
    assert_int_equal(procs[0].outcome.kind, OUTCOME_SIGNALED);
    assert_int_equal(procs[0].outcome.signo, SIGKILL);
    assert_int_equal(it.b->ops->proc_write(procs[1].p, "still\n", 6), 0);
    wait_output(&procs[1], 9);
    assert_false(procs[1].exited);
    it.b->ops->proc_free(procs[0].p);
    it.b->ops->proc_free(procs[1].p); /* the running one ends */
    while (count_sleeps() > 0)
        turn_briefly();
    finish();
}

static void end_of_the_sandbox_is_told(void **unused)
{
    begin();
    create();
    start(&procs[0], "echo before; exec cat", 0);
    wait_output(&procs[0], 7);
    destroy();
    while (!procs[0].exited)
        turn();
    assert_int_equal(procs[0].outcome.kind, OUTCOME_SESSION_LOST);
    assert_true(range(&procs[0]).eof);
    expect_output(&procs[0], "before\n");
    it.b->ops->proc_signal(procs[0].p, SIGTERM);
    it.b->ops->proc_release(procs[0].p, 7);
    it.b->ops->proc_free(procs[0].p);
    finish();
}

static void memory_of_a_process_has_its_own_limit(void **unused)
{
    begin();
    create();
    start(&procs[1], "echo up; exec cat", 0);
    start(&procs[0], "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c", 32U << 20);
    wait_output(&procs[1], 3);
    wait_end(&procs[0]);
    if (geteuid() == 0) {
        assert_int_equal(procs[0].outcome.kind, OUTCOME_OOM_KILLED);
    } else if (procs[0].outcome.kind != OUTCOME_OOM_KILLED) {
        print_message("not enforced here, which the log says\n");
    }
    it.b->ops->proc_free(procs[0].p);
    memset(&procs[0], 0, sizeof(procs[0]));
    /* The next one in its place has what the session has; the other was not touched. */
    for (int i = 0; i < 2; i++) {
        start(&procs[0], "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c", 0);
        wait_end(&procs[0]);
        expect_output(&procs[0], "90000000\n");
        it.b->ops->proc_free(procs[0].p);
        memset(&procs[0], 0, sizeof(procs[0]));
    }
    assert_int_equal(it.b->ops->proc_write(procs[1].p, "still\n", 6), 0);
    wait_output(&procs[1], 9);
    it.b->ops->proc_free(procs[1].p);
    finish();
}

/* Sandboxes. */

static void create_two(void)
{
    char first[17];
    create();
    memcpy(first, shared->name, sizeof(first));
    create();
    memcpy(shared->name, first, sizeof(first));
}

static void what_nobody_adopts_is_swept(void **unused)
{
    char gone[17];
    with_victim(create_two, 0);
    begin();
    assert_true(adopt(shared->name, NULL));
    struct sandbox *adopted = it.sb;
    sweep();
    create(); /* beside it */
    exec_run("echo new");
    assert_string_equal(command.out, "new\n");
    destroy();
    it.sb = adopted;
    exec_run("echo old");
    assert_string_equal(command.out, "old\n");
    assert_false(it.lost);
    /* Nothing but it is left, for whoever comes next. */
    memcpy(gone, shared->name, sizeof(gone));
    it.b->ops->detach(it.b);
    loop_free(it.loop);
    begin();
    assert_false(adopt(gone, NULL));
    assert_int_equal(it.err.code, ERR_NOT_FOUND);
    assert_true(it.b->ops->adopt(it.b, "short", NULL, on_created, on_lost, NULL, &it.err) < 0);
    it.err = (struct err){0};
    sweep();
    finish();
}

static void sandbox_that_died_meanwhile_is_not_found(void **unused)
{
    with_victim(create, 0);
    begin();
    assert_true(adopt(shared->name, NULL));
    it.b->ops->set_deadline(it.sb, clock_boot(&clock_system) + 200 * NSEC_PER_MSEC);
    it.b->ops->set_deadline(it.sb, clock_boot(&clock_system) + 100 * NSEC_PER_MSEC);
    exec_run("sleep 0.3; echo a deadline is for when nobody is there");
    assert_int_equal(command.outcome.exit_code, 0);
    it.b->ops->detach(it.b);
    loop_free(it.loop);
    (void)poll(NULL, 0, 500);
    begin();
    assert_false(adopt(shared->name, NULL));
    assert_int_equal(it.err.code, ERR_NOT_FOUND);
    finish();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(output_has_no_gap_and_no_repeat),
        TEST(what_happened_meanwhile_is_told),
        TEST(half_a_line_is_ended_before_the_next),
        TEST(whole_lines_get_no_more),
        TEST(writer_is_held_back_and_goes_on),
        TEST(process_that_cannot_run_says_why),
        TEST(kill_takes_the_whole_tree),
        TEST(end_of_the_sandbox_is_told),
        TEST(memory_of_a_process_has_its_own_limit),
        TEST(what_nobody_adopts_is_swept),
        TEST(sandbox_that_died_meanwhile_is_not_found),
    };
    owner = getpid();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
