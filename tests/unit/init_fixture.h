/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The whole of PID 1, in a child of this process that only believes to be PID 1: no namespace, no
 * cgroup, no filter to speak of. */

#include "lib/unit.h"

#include "inside/clone.h"
#include "inside/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"

#define PATIENCE_MS 20000 /* for an answer that is due at once */
#define HIGH_FD 100       /* out of the way of PID 1's own numbers */
#define UNSUITED 77       /* exit of a child that cannot get what commands need */

int box_init_main(int argc, char **argv);

/* What PID 1 calls instead of kill(2) and getpid(2); see meson.build. "Everybody" is its own
 * children here, each the leader of a session. */
int test_kill(pid_t pid, int signo);
pid_t test_getpid(void);

/* Whether a process descends from the one that believes to be PID 1. Nobody else is ever
 * signalled, whatever the code under test asks for: this may be the tester's whole machine. */
static inline bool descends_from_us(pid_t pid)
{
    for (int i = 0; i < 64 && pid > 1; i++) {
        char stat_path[32], text[512];
        unsigned parent = 0;
        (void)snprintf(stat_path, sizeof(stat_path), "/proc/%d/stat", pid);
        if (fd_read_file_at(AT_FDCWD, stat_path, text, sizeof(text)) < 0)
            return false;
        const char *at = strrchr(text, ')');
        if (at == NULL || sscanf(at, ") %*c %u", &parent) != 1)
            return false;
        if ((pid_t)parent == getpid())
            return true;
        pid = (pid_t)parent;
    }
    return false;
}

int test_kill(pid_t pid, int signo)
{
    char path[64], list[4096], *save = NULL;
    if (pid != -1)
        return descends_from_us(pid < 0 ? -pid : pid) ? kill(pid, signo) : -1;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
    if (fd_read_file_at(AT_FDCWD, path, list, sizeof(list)) < 0)
        return -1;
    for (char *child = strtok_r(list, " ", &save); child != NULL;
         child = strtok_r(NULL, " ", &save)) {
        uint64_t number = 0;
        if (str_to_u64(child, &number) < 0 || number < 2)
            continue;
        (void)kill(-(pid_t)number, signo);
        (void)kill((pid_t)number, signo);
    }
    return 0;
}

pid_t test_getpid(void)
{
    return 1;
}

static pid_t init_pid;
static bool own_namespace; /* it really is PID 1, of a pid namespace with a /proc */
static int conn = -1;      /* boxd's end */
static char dir[64];

/* A command gives up its bounding set, for which it has to hold this. An ordinary user gets it in a
 * user namespace, where that is allowed. */
static inline bool has_setpcap(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    return syscall(SYS_capget, &header, data) == 0 &&
           (data[0].effective & (1U << CAP_SETPCAP)) != 0;
}

static inline _Noreturn void become_init(const int *fds)
{
    if (!has_setpcap() && unshare(CLONE_NEWUSER) < 0)
        _exit(UNSUITED);
    for (int i = 0; i < INIT_FD_MAX - INIT_FD_CONTROL; i++)
        if (dup2(fds[i], INIT_FD_CONTROL + i) < 0)
            _exit(1);
    (void)syscall(SYS_close_range, INIT_FD_MAX, ~0U, 0U);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        _exit(1);
    (void)box_init_main(0, NULL);
    _exit(1);
}

static inline void start_with(const struct init_config *config)
{
    static const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    int pair[2], fds[INIT_FD_MAX - INIT_FD_CONTROL];
    (void)snprintf(dir, sizeof(dir), "/tmp/box-init-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int memory[2] = {fd_sealed_memfd("config", config, sizeof(*config)),
                     fd_sealed_memfd("filter", &allow, sizeof(allow))};
    for (int i = INIT_FD_CONTROL; i < INIT_FD_MAX; i++) {
        int fd = i == INIT_FD_CONTROL   ? pair[1]
                 : i == INIT_FD_CONFIG  ? memory[0]
                 : i == INIT_FD_SECCOMP ? memory[1]
                                        : null;
        fds[i - INIT_FD_CONTROL] = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
        assert_true(fds[i - INIT_FD_CONTROL] >= 0);
    }
    init_pid = own_namespace ? clone_process(CLONE_NEWPID | CLONE_NEWNS, -1, NULL) : fork();
    if (init_pid == 0 && own_namespace &&
        (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
         mount("proc", "/proc", "proc", 0, NULL) < 0))
        _exit(UNSUITED);
    if (init_pid == 0)
        become_init(fds);
    assert_true(init_pid > 0);
    fd_close_many(fds, ARRAY_SIZE(fds));
    fd_close_many(memory, 2);
    (void)close(null);
    (void)close(pair[1]);
    conn = pair[0];
}

static inline void stop(void)
{
    assert_int_equal(kill(init_pid, SIGKILL), 0);
    assert_int_equal(waitpid(init_pid, NULL, 0), init_pid);
    fd_close_many(&conn, 1);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
}

/* The next message; false at the end. */
static inline bool receive(void *m, size_t size, size_t want, int *fds, size_t *n_fds)
{
    struct pollfd p = {.fd = conn, .events = POLLIN};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    ssize_t n = fd_recv_msg(conn, m, size, fds, n_fds, 0);
    if (n <= 0)
        return false;
    assert_int_equal(n, want);
    return true;
}

static uint64_t epoch = 1;

static inline void say_hello(void)
{
    struct init_hello hello = {
        .type = INIT_MSG_HELLO, .version = INIT_WIRE_VERSION, .epoch = epoch};
    ssize_t n = fd_send_msg(conn, &hello, sizeof(hello), NULL, 0, 0);
    assert_true(n == sizeof(hello) || n == -EPIPE); /* it may be gone already: see start_config() */
}

static inline void expect_list_end(void)
{
    struct init_number end;
    assert_true(receive(&end, sizeof(end), sizeof(end), NULL, NULL));
    assert_int_equal(end.type, INIT_MSG_PROC_END);
}

/* False, after saying so, when commands cannot be run here. */
static inline bool start_config(const struct init_config *config)
{
    struct init_hello answer = {0};
    int status = 0;
    start_with(config);
    say_hello();
    if (receive(&answer, sizeof(answer), sizeof(answer), NULL, NULL)) {
        assert_int_equal(answer.type, INIT_MSG_HELLO);
        assert_int_equal(answer.epoch, epoch);
        expect_list_end();
        return true;
    }
    assert_int_equal(waitpid(init_pid, &status, 0), init_pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), UNSUITED);
    fd_close_many(&conn, 1);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
    print_message("skipped: neither CAP_SETPCAP nor a user namespace to get it in\n");
    return false;
}

static const struct init_config plain = {.version = INIT_CONFIG_VERSION};

static inline void need(bool started)
{
    if (!started)
        skip();
}

/* One command. */
struct request {
    uint32_t id, flags;
    uint32_t type;       /* 0: an exec */
    const char *argv[4]; /* up to a NULL; with INIT_EXEC_SCRIPT the script */
    const char *env, *cwd;
    uint64_t timeout_ns, memory_bytes;
};

static inline void send_strings(const struct init_exec *head, const struct buf *strings)
{
    AUTO_DONE(buf) struct buf m;
    AUTO_CLOSE int memfd = -1;
    buf_init(&m, sizeof(*head) + INIT_INLINE_MAX);
    assert_int_equal(buf_append(&m, head, sizeof(*head)), 0);
    if (head->flags & INIT_EXEC_MEMFD) {
        memfd = fd_sealed_memfd("strings", strings->data, strings->len);
        assert_true(memfd >= 0);
    } else {
        assert_int_equal(buf_append(&m, strings->data, strings->len), 0);
    }
    assert_int_equal(fd_send_msg(conn, m.data, m.len, &memfd, memfd >= 0 ? 1 : 0, 0),
                     (ssize_t)m.len);
}

static inline void send_request(const struct request *r)
{
    AUTO_DONE(buf) struct buf s;
    struct init_exec head = {.type = r->type != 0 ? r->type : INIT_MSG_EXEC,
                             .id = r->id,
                             .flags = r->flags,
                             .envc = 2,
                             .timeout_ns = r->timeout_ns,
                             .memory_bytes = r->memory_bytes,
                             .rows = 33,
                             .cols = 99};
    const char *cwd = r->cwd != NULL ? r->cwd : "/", *env = r->env != NULL ? r->env : "A=1";
    buf_init(&s, INSIDE_STRINGS_MAX);
    for (; head.argc < 4 && r->argv[head.argc] != NULL; head.argc++)
        assert_int_equal(buf_append(&s, r->argv[head.argc], strlen(r->argv[head.argc]) + 1), 0);
    assert_int_equal(buf_append(&s, "PATH=/usr/bin:/bin", 19), 0);
    assert_int_equal(buf_append(&s, env, strlen(env) + 1), 0);
    assert_int_equal(buf_append(&s, cwd, strlen(cwd) + 1), 0);
    head.strings_len = (uint32_t)s.len;
    send_strings(&head, &s);
}

/* Its descriptors; 0 of them when it was refused. */
static inline size_t expect_started(uint32_t id, int fds[3])
{
    struct init_started m;
    size_t n = 3;
    assert_true(receive(&m, sizeof(m), sizeof(m), fds, &n));
    assert_int_equal(m.type, INIT_MSG_STARTED);
    assert_int_equal(m.id, id);
    return n;
}

static inline struct init_exited expect_exited(uint32_t id)
{
    struct init_exited m;
    assert_true(receive(&m, sizeof(m), sizeof(m), NULL, NULL));
    assert_int_equal(m.type, INIT_MSG_EXITED);
    assert_int_equal(m.id, id);
    return m;
}

/* Runs to its end; what it wrote to stdout is in `out`. */
static inline struct init_exited run(const struct request *r, char *out, size_t size)
{
    int fds[3] = {-1, -1, -1};
    send_request(r);
    assert_int_equal(expect_started(r->id, fds), 2);
    ssize_t n = fd_read_full(fds[0], out, size - 1);
    assert_true(n >= 0);
    out[n] = '\0';
    fd_close_many(fds, 3);
    return expect_exited(r->id);
}

static inline void expect_exit(const struct init_exited *m, int code)
{
    assert_int_equal(m->end.stage, INSIDE_STAGE_NONE);
    assert_int_equal(m->end.flags, 0);
    assert_true(WIFEXITED(m->end.wait_status));
    assert_int_equal(WEXITSTATUS(m->end.wait_status), code);
}
