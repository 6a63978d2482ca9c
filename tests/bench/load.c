/* SPDX-License-Identifier: Apache-2.0 */

/* The load generator of `make bench`.
 *
 * Reads commands from stdin, one per line, words separated by tabs; answers each with one line:
 * "ok" and a time in nanoseconds for each measured operation, or "error" and the reason. One
 * process serves a whole run, so nothing of its own start is ever measured. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "load.h"

#define COUNT_MAX 10000
#define REPLY_MAX (1U << 20)
#define EXEC_BODY "{\"argv\":[\"/bin/echo\",\"hello\"]}"
#define EXEC_SH_BODY "{\"cmd\":\"/bin/echo hello\"}" /* what the RPC path runs */
#define EXEC_DONE "\"stdout\":\"hello\\n\""

extern char **environ;

uint64_t load_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* Starts argv with stdout in a new pipe. */
static int spawn_piped(char *const *argv, pid_t *ret_pid, int *ret_fd, struct err *err)
{
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    int error = posix_spawnp(ret_pid, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    if (error != 0) {
        (void)close(ends[0]);
        return err_sys(err, error, "start '%s'", argv[0]);
    }
    *ret_fd = ends[0];
    return 0;
}

int load_spawn(char *const *argv, struct err *err)
{
    char output[64] = "";
    AUTO_CLOSE int fd = -1;
    pid_t pid;
    int status;
    int r = spawn_piped(argv, &pid, &fd, err);
    if (r < 0)
        return r;
    ssize_t n = fd_read_full(fd, output, sizeof(output) - 1);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_sys(err, errno, "wait for '%s'", argv[0]);
    if (status != 0)
        return err_set(err, ERR_BACKEND, "'%s' ended with wait status %d", argv[0], status);
    if (n < 0 || !str_eq(output, LOAD_EXPECTED))
        return err_set(err, ERR_BACKEND, "'%s' printed '%s'", argv[0], output);
    return 0;
}

void load_note(struct job *j, uint64_t since)
{
    (void)buf_printf(&j->times, " %" PRIu64, load_now() - since);
}

int load_count(const char *word, uint64_t *ret, struct err *err)
{
    if (str_to_u64(word, ret) < 0 || *ret > COUNT_MAX)
        return err_set(err, ERR_INVALID, "'%s' is no count", word);
    return 0;
}

/* spawn COUNT ARGV... */
static int run_spawn(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = load_spawn(j->words + 1, err);
        load_note(j, start);
    }
    return r;
}

static int exec_once(int fd, const char *session, const char *body, struct buf *reply,
                     struct err *err)
{
    char target[128];
    int r = str_fmt(target, sizeof(target), "/v1/sessions/%s/exec", session);
    if (r == 0)
        r = load_http_send(fd, "POST", target, body, err);
    if (r == 0)
        r = load_http_receive(fd, reply, 200, err);
    if (r == 0 && strstr(buf_str(reply), EXEC_DONE) == NULL)
        r = err_set(err, ERR_BACKEND, "exec answered: %.300s", buf_str(reply));
    return r;
}

/* exec, exec-sh COUNT SOCKET SESSION: over one connection that stays open. */
static int run_execs(struct job *j, const char *body, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? load_connect(j->words[1], err) : r;
    r = fd < 0 ? fd
               : exec_once(fd, j->words[2], body, &j->reply, err); /* the connection is warm too */
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = exec_once(fd, j->words[2], body, &j->reply, err);
        load_note(j, start);
    }
    return r;
}

static int run_exec(struct job *j, struct err *err)
{
    return run_execs(j, EXEC_BODY, err);
}

static int run_exec_sh(struct job *j, struct err *err)
{
    return run_execs(j, EXEC_SH_BODY, err);
}

/* exec-ws COUNT SOCKET SESSION: a WebSocket for each, as the command line does. */
static int run_exec_ws(struct job *j, struct err *err)
{
    char request[256];
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    (void)str_fmt(request, sizeof(request),
                  "{\"session\":{\"session_id\":\"%s\"},\"create\":false,"
                  "\"argv\":[\"/bin/echo\",\"hello\"]}",
                  j->words[2]);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = load_ws_exec(j->words[1], request, &j->reply, err);
        load_note(j, start);
    }
    return r;
}

/* throwaway COUNT SOCKET: a session, its command and its end over one WebSocket, as `box run`. */
static int run_throwaway(struct job *j, struct err *err)
{
    static const char request[] = "{\"ephemeral\":true,\"argv\":[\"/bin/echo\",\"hello\"]}";
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = load_ws_exec(j->words[1], request, &j->reply, err);
        load_note(j, start);
    }
    return r;
}

static int send_create(int fd, const char *prefix, uint64_t i, struct err *err)
{
    char body[128];
    int r = str_fmt(body, sizeof(body), "{\"session_id\":\"%s%" PRIu64 "\"}", prefix, i);
    return r < 0 ? r : load_http_send(fd, "POST", "/v1/sessions", body, err);
}

static int send_delete(int fd, const char *prefix, uint64_t i, struct err *err)
{
    char target[128];
    int r = str_fmt(target, sizeof(target), "/v1/sessions/%s%" PRIu64, prefix, i);
    return r < 0 ? r : load_http_send(fd, "DELETE", target, NULL, err);
}

static int send_exec(int fd, const char *prefix, uint64_t i, struct err *err)
{
    char target[128];
    int r = str_fmt(target, sizeof(target), "/v1/sessions/%s%" PRIu64 "/exec", prefix, i);
    return r < 0 ? r : load_http_send(fd, "POST", target, EXEC_BODY, err);
}

static const struct phase {
    int (*send)(int fd, const char *prefix, uint64_t i, struct err *err);
    unsigned status;
} phases[] = {{send_create, 201}, {send_exec, 200}, {send_delete, 204}};

/* cycle COUNT SOCKET PREFIX: create, exec and delete, one after the other over one connection.
 * Four times each: the whole, then its three parts. */
static int run_cycle(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? load_connect(j->words[1], err) : r;
    if (fd < 0)
        return fd;
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t at[ARRAY_SIZE(phases) + 1] = {load_now()};
        for (size_t p = 0; r == 0 && p < ARRAY_SIZE(phases); p++) {
            r = phases[p].send(fd, j->words[2], i, err);
            if (r == 0)
                r = load_http_receive(fd, &j->reply, phases[p].status, err);
            at[p + 1] = load_now();
        }
        (void)buf_printf(&j->times, " %" PRIu64, at[ARRAY_SIZE(phases)] - at[0]);
        for (size_t p = 0; p < ARRAY_SIZE(phases); p++)
            (void)buf_printf(&j->times, " %" PRIu64, at[p + 1] - at[p]);
    }
    return r;
}

/* One request of a kind on every connection, then all the answers. */
static int burst_phase(const struct phase *phase, const int *fds, uint64_t count, struct job *j,
                       struct err *err)
{
    int r = 0;
    uint64_t start = load_now();
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = phase->send(fds[i], j->words[2], i, err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        r = load_http_receive(fds[i], &j->reply, phase->status, err);
        if (r < 0)
            return err_wrap(err, "session %" PRIu64 " of %" PRIu64, i + 1, count);
    }
    load_note(j, start);
    return r;
}

/* burst COUNT SOCKET PREFIX: that many sessions at once, each on a connection of its own. Three
 * times: until all are made, until each has answered a first exec, until all are gone. */
static int run_burst(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    if (r < 0)
        return r;
    AUTO_FREE int *fds = xnew_n(int, count);
    for (uint64_t i = 0; i < count; i++)
        fds[i] = r == 0 ? load_connect(j->words[1], err) : -1;
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = fds[i] < 0 ? fds[i] : 0;
    for (size_t p = 0; r == 0 && p < ARRAY_SIZE(phases); p++)
        r = burst_phase(&phases[p], fds, count, j, err);
    fd_close_many(fds, count);
    return r;
}

static const struct {
    const char *name;
    size_t words; /* at least */
    int (*run)(struct job *j, struct err *err);
} commands[] = {
    {"spawn", 2, run_spawn},
    {"exec", 3, run_exec},
    {"exec-sh", 3, run_exec_sh},
    {"exec-ws", 3, run_exec_ws},
    {"cycle", 3, run_cycle},
    {"throwaway", 2, run_throwaway},
    {"burst", 3, run_burst},
    {"rpc", 3, load_rpc},
    {"exec-rpc", 5, load_rpc_exec},
    {"relay", 5, load_relay},
    {"relay-bulk", 5, load_relay_bulk},
    {"socketpair", 2, load_socketpair},
    {"cat-bulk", 1, load_cat_bulk},
    {"engine-exec", 3, load_engine_exec},
    {"engine-create", 3, load_engine_create},
    {"session", 4, load_session},
};

static int run_line(char **words, struct job *j, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strv_len(words) > commands[i].words && str_eq(words[0], commands[i].name)) {
            j->words = words + 1;
            return commands[i].run(j, err);
        }
    return err_set(err, ERR_INVALID, "unknown command, or too few words");
}

/* A reason may quote what a program printed; the answer stays one line. */
static void say_error(struct err *err)
{
    for (char *c = err->msg; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    (void)printf("error %s\n", err->msg);
}

static void serve_line(char *line, struct job *j)
{
    struct err err = {0};
    AUTO_STRV char **words = NULL;
    char *rest = line, *word;
    while ((word = strsep(&rest, "\t")) != NULL)
        strv_add(&words, word);
    assert(words != NULL); /* an empty line has one empty word */
    buf_reset(&j->times);
    if (run_line(words, j, &err) < 0)
        say_error(&err);
    else
        (void)printf("ok%s\n", buf_str(&j->times));
    (void)fflush(stdout);
}

int main(void)
{
    char line[8192];
    struct job j = {0};
    buf_init(&j.reply, REPLY_MAX);
    buf_init(&j.times, REPLY_MAX);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        serve_line(line, &j);
    }
    buf_done(&j.reply);
    buf_done(&j.times);
    return 0;
}
