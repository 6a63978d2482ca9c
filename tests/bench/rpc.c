/* SPDX-License-Identifier: Apache-2.0 */

/* LangBot's protocol, as far as something can be timed in it, and the bare things beside it. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "load.h"

#define LINE_LEN (32U * 1024)
/* Lines on their way: less than any socket or pipe on the way holds, so that nobody has to read
 * while it writes. */
#define WINDOW 2U
#define ECHO_TEXT "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{}}"

extern char **environ;

/* The next text message must be `expected`, or hold it. */
static int await_text(int fd, struct buf *b, const char *expected, size_t len, bool whole,
                      struct err *err)
{
    struct load_frame f = {0};
    int r = load_ws_receive(fd, b, &f, err);
    if (r < 0)
        return r;
    bool good =
        f.opcode == LOAD_WS_TEXT && (whole ? f.len == len && memcmp(f.data, expected, len) == 0
                                           : memmem(f.data, f.len, expected, len) != NULL);
    if (!good)
        return err_set(err, ERR_BACKEND, "boxd said: %.*s", (int)(f.len < 200 ? f.len : 200),
                       f.data);
    buf_consume(b, f.total);
    return 0;
}

static int open_rpc(const char *path, const char *instance, struct buf *scratch, struct err *err)
{
    char header[256];
    if (str_fmt(header, sizeof(header), "X-LangBot-Instance-Id: %s\r\n", instance) < 0)
        return err_set(err, ERR_INVALID, "the instance does not fit");
    return load_ws_open(path, "/rpc/ws", header, scratch, err);
}

/* rpc SOCKET INSTANCE REQUEST...: each is answered before the next is sent. */
int load_rpc(struct job *j, struct err *err)
{
    AUTO_CLOSE int fd = open_rpc(j->words[0], j->words[1], &j->reply, err);
    int r = fd < 0 ? fd : 0;
    for (char *const *request = j->words + 2; r == 0 && *request != NULL; request++) {
        uint64_t start = load_now();
        r = load_ws_send(fd, *request, strlen(*request), err);
        if (r == 0)
            r = await_text(fd, &j->reply, "\"code\":0", 8, false, err);
        load_note(j, start);
    }
    return r;
}

static int exec_once(int fd, struct job *j, uint64_t seq, struct err *err)
{
    static const char done[] = "\"stdout\":\"hello\"";
    char request[1024];
    int r =
        str_fmt(request, sizeof(request),
                "{\"seq_id\":%" PRIu64 ",\"action\":\"box_exec\",\"context\":"
                "{\"instance_uuid\":\"%s\",\"workspace_uuid\":\"%s\",\"placement_generation\":1},"
                "\"data\":{\"session_id\":\"%s\",\"cmd\":\"/bin/echo hello\"}}",
                seq, j->words[2], j->words[3], j->words[4]);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the request does not fit");
    r = load_ws_send(fd, request, strlen(request), err);
    return r < 0 ? r : await_text(fd, &j->reply, done, strlen(done), false, err);
}

/* exec-rpc COUNT SOCKET INSTANCE WORKSPACE SESSION: over one connection that stays open. */
int load_rpc_exec(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? open_rpc(j->words[1], j->words[2], &j->reply, err) : r;
    r = fd < 0 ? fd : exec_once(fd, j, 0, err); /* the connection is warm too */
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = exec_once(fd, j, i + 1, err);
        load_note(j, start);
    }
    return r;
}

/* SOCKET INSTANCE WORKSPACE TARGET, from words[1] on. */
static int open_relay(struct job *j, struct err *err)
{
    char headers[512];
    int r = str_fmt(headers, sizeof(headers),
                    "X-LangBot-Instance-Id: %s\r\nX-LangBot-Workspace-Id: %s\r\n"
                    "X-LangBot-Placement-Generation: 1\r\nSec-WebSocket-Protocol: mcp\r\n",
                    j->words[2], j->words[3]);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the headers do not fit");
    return load_ws_open(j->words[1], j->words[4], headers, &j->reply, err);
}

static int relay_once(int fd, struct job *j, struct err *err)
{
    int r = load_ws_send(fd, ECHO_TEXT, strlen(ECHO_TEXT), err);
    return r < 0 ? r : await_text(fd, &j->reply, ECHO_TEXT, strlen(ECHO_TEXT), true, err);
}

/* relay COUNT SOCKET INSTANCE WORKSPACE TARGET: a line to `cat` and back. */
int load_relay(struct job *j, struct err *err)
{
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? open_relay(j, err) : r;
    r = fd < 0 ? fd : relay_once(fd, j, err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = relay_once(fd, j, err);
        load_note(j, start);
    }
    return r;
}

/* relay-bulk COUNT SOCKET INSTANCE WORKSPACE TARGET: that many lines through `cat`; one time. */
int load_relay_bulk(struct job *j, struct err *err)
{
    char line[LINE_LEN];
    uint64_t count;
    int r = load_count(j->words[0], &count, err);
    AUTO_CLOSE int fd = r == 0 ? open_relay(j, err) : r;
    r = fd < 0 ? fd : 0;
    memset(line, 'x', sizeof(line));
    uint64_t start = load_now();
    for (uint64_t sent = 0, got = 0; r == 0 && got < count;) {
        if (sent < count && sent - got < WINDOW) {
            r = load_ws_send(fd, line, sizeof(line), err);
            sent++;
        } else {
            r = await_text(fd, &j->reply, line, sizeof(line), true, err);
            got++;
        }
    }
    load_note(j, start);
    return r;
}

/* Starts `cat` between two descriptors, which stay the caller's. */
#define CATS_MAX 8

static int start_cat(int in, int out, pid_t *ret, struct err *err)
{
    char name[] = "cat", *const argv[] = {name, NULL};
    posix_spawn_file_actions_t actions;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, in, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, out, 1);
    int error = posix_spawnp(ret, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error != 0 ? err_sys(err, error, "start '%s'", argv[0]) : 0;
}

static void await_end(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static int echo_bytes(int to, int from, const char *data, char *room, size_t len, struct err *err)
{
    int r = fd_write_all(to, data, len);
    ssize_t n = r < 0 ? r : fd_read_full(from, room, len);
    if (n < 0)
        return err_sys(err, (int)-n, "echo");
    if ((size_t)n != len || memcmp(data, room, len) != 0)
        return err_set(err, ERR_BACKEND, "the echo is something else");
    return 0;
}

/* From `end` through `n` of them, and back to `end`. */
static int start_cats(int end, uint64_t n, pid_t *pids, struct err *err)
{
    AUTO_CLOSE int in = fcntl(end, F_DUPFD_CLOEXEC, 3);
    int r = in < 0 ? err_sys(err, errno, "copy a descriptor") : 0;
    for (uint64_t i = 0; i < n && r == 0; i++) {
        int out[2] = {-1, end};
        if (i + 1 < n && pipe2(out, O_CLOEXEC) < 0)
            return err_sys(err, errno, "pipe");
        r = start_cat(in, out[1], &pids[i], err);
        if (i + 1 < n)
            (void)close(out[1]);
        (void)close(in);
        in = out[0];
    }
    return r;
}

/* socketpair COUNT N: the same line to a bare `cat` over a socketpair, or through N of them, and
 * back. */
int load_socketpair(struct job *j, struct err *err)
{
    char room[sizeof(ECHO_TEXT)];
    uint64_t count, n = 0;
    int ends[2];
    pid_t pids[CATS_MAX] = {0};
    int r = load_count(j->words[0], &count, err);
    if (r == 0)
        r = load_count(j->words[1], &n, err);
    if (r < 0)
        return r;
    if (n > CATS_MAX)
        return err_set(err, ERR_INVALID, "at most %d of them", CATS_MAX);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return err_sys(err, errno, "socketpair");
    r = start_cats(ends[1], n, pids, err);
    (void)close(ends[1]);
    AUTO_CLOSE int fd = ends[0];
    if (r == 0)
        r = echo_bytes(fd, fd, ECHO_TEXT, room, strlen(ECHO_TEXT), err);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t start = load_now();
        r = echo_bytes(fd, fd, ECHO_TEXT, room, strlen(ECHO_TEXT), err);
        load_note(j, start);
    }
    (void)shutdown(fd, SHUT_RDWR);
    for (uint64_t i = 0; i < n && pids[i] > 0; i++)
        await_end(pids[i]);
    return r;
}

/* cat-bulk COUNT: lines of the same size through a bare `cat` between two pipes; one time. */
int load_cat_bulk(struct job *j, struct err *err)
{
    char line[LINE_LEN], room[LINE_LEN];
    uint64_t count;
    int in[2], out[2];
    pid_t pid;
    int r = load_count(j->words[0], &count, err);
    if (r < 0)
        return r;
    if (pipe2(in, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    AUTO_CLOSE int in_read = in[0];
    AUTO_CLOSE int in_write = in[1];
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    AUTO_CLOSE int out_read = out[0];
    AUTO_CLOSE int out_write = out[1];
    r = start_cat(in_read, out_write, &pid, err);
    if (r < 0)
        return r;
    memset(line, 'x', sizeof(line));
    uint64_t start = load_now();
    for (uint64_t i = 0; r == 0 && i < count; i++)
        r = echo_bytes(in_write, out_read, line, room, sizeof(line), err);
    load_note(j, start);
    (void)close(TAKE_FD(in_write));
    await_end(pid);
    return r;
}
