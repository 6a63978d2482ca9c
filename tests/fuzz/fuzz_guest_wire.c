/* SPDX-License-Identifier: Apache-2.0 */

/* What boxd makes of the supervisor in a container, which a hostile program may have taken over: a
 * connection to a session of the engine backend, in which a command and a managed process run. The
 * first byte says how it begins: with a proper greeting (bit 0), and whether the rest are frames of
 * our making (bit 1), each a type, which of the two it is about, flags, a length of two bytes and a
 * body; or bytes as they are. Whatever comes, the user of the session hears of each end at most
 * once, and never of more output than was sent. */

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/path.h"
#include "base/str.h"
#include "fuzz.h"

#define NAME "langbot-box-fuzz-01234567"
#define NUMBER 7U
#define TURNS_MAX 100000

static struct {
    char dir[32];
    struct loop *loop;
    struct backend *backend;
    struct spec *spec;
    /* Of one input. */
    int peer;
    struct sandbox *sandbox;
    struct exec *exec;
    struct proc *proc;
    unsigned failed, lost, finished, exited;
    size_t sent, given;
    bool paused;
} t;

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    assert(t.finished == 0 && len > 0 && (stream == EXEC_STDOUT || stream == EXEC_STDERR));
    volatile char all = 0;
    for (size_t i = 0; i < len; i++)
        all = (char)(all ^ data[i]);
    t.given += len;
    assert(t.given <= t.sent);
    if (data[0] == 'p' && t.exec != NULL)
        t.backend->ops->exec_pause(t.exec, t.paused = !t.paused);
}

static void on_finished(void *arg, const struct outcome *o)
{
    t.finished++;
    assert(t.finished == 1 && o->kind < OUTCOME_KIND_MAX);
    assert(memchr(o->error, 0, sizeof(o->error)) != NULL);
}

static void on_proc_output(void *arg)
{
    static char bytes[GUEST_RING];
    if (t.proc == NULL)
        return;
    struct proc_range r = t.backend->ops->proc_range(t.proc);
    assert(r.begin <= r.end && r.end - r.begin <= GUEST_RING);
    ssize_t n = t.backend->ops->proc_read(t.proc, r.begin, bytes, sizeof(bytes));
    assert(n == (ssize_t)(r.end - r.begin));
    if (n > 0 && bytes[0] == 'r')
        t.backend->ops->proc_release(t.proc, r.end);
    assert(t.backend->ops->proc_stderr(t.proc, bytes, sizeof(bytes)) <= GUEST_STDERR_KEPT);
}

static void on_exited(void *arg, const struct outcome *o)
{
    t.exited++;
    assert(t.exited == 1 && o->kind < OUTCOME_KIND_MAX);
}

static void on_drained(void *arg)
{
}

static const struct exec_events exec_events = {on_output, on_drained, on_finished};
static const struct proc_events proc_events = {on_proc_output, on_drained, on_exited};

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    t.sandbox = sb;
    t.failed += sb == NULL;
    assert(t.failed <= 1 && (sb != NULL || err->code != ERR_NONE));
    struct err none = {0};
    /* One that the guest says it has. */
    if (sb != NULL)
        (void)t.backend->ops->proc_adopt(sb, NUMBER, &proc_events, NULL, &t.proc, &none);
}

static void on_lost(void *arg)
{
    t.lost++;
    assert(t.lost == 1);
}

static void remove_dir(void)
{
    (void)path_remove_tree_at(AT_FDCWD, t.dir);
}

static void set_up(void)
{
    static char endpoint[64];
    struct err err = {0};
    if (t.loop != NULL)
        return;
    (void)snprintf(t.dir, sizeof(t.dir), "/tmp/box-fuzz-XXXXXX");
    if (mkdtemp(t.dir) == NULL || atexit(remove_dir) != 0)
        abort();
    (void)snprintf(endpoint, sizeof(endpoint), "unix://%s/nobody", t.dir);
    struct engine_options options = {.kind = "docker",
                                     .endpoint = endpoint,
                                     .state_dir = t.dir,
                                     .guest_program = "/nowhere",
                                     .linger_sec = 1,
                                     .uid = geteuid(),
                                     .gid = getegid()};
    if (loop_new(&clock_system, &t.loop, &err) < 0 ||
        engine_new(t.loop, &options, &t.backend, &err) < 0)
        abort();
    t.spec = spec_new();
    t.spec->session_id = xstrdup("fuzz");
}

/* Until nothing more comes of it by itself. */
static void pump(void)
{
    for (int i = 0; i < TURNS_MAX; i++)
        if (loop_turn(t.loop, 0) == 0)
            return;
    abort();
}

static void say(const void *data, size_t len)
{
    const char *at = data;
    while (len > 0 && t.peer >= 0) {
        ssize_t n = send(t.peer, at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            t.sent += (size_t)n;
            at += n;
            len -= (size_t)n;
        }
        pump();
        if (n <= 0)
            return; /* nobody reads it any more */
    }
}

static void frame(uint32_t type, uint32_t id, uint32_t flags, const void *body, size_t len)
{
    char whole[sizeof(struct guest_head) + UINT16_MAX];
    struct guest_head head = {.type = type, .id = id, .flags = flags, .len = (uint32_t)len};
    memcpy(whole, &head, sizeof(head));
    memcpy(whole + sizeof(head), body, len);
    say(whole, sizeof(head) + len);
}

static void join(int dir_fd)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), "/proc/self/fd/%d/" GUEST_SOCKET_NAME,
                   dir_fd);
    t.peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t.peer < 0 || connect(t.peer, (struct sockaddr *)&sun, sizeof(sun)) < 0)
        abort();
    pump();
}

static void greet(bool with_proc)
{
    struct {
        struct guest_welcome w;
        struct guest_proc p;
    } body = {{.version = GUEST_WIRE_VERSION, .pid = 1, .n_procs = with_proc, .uid = 1},
              {.number = NUMBER, .begin = 3, .end = 9}};
    frame(GUEST_WELCOME, 0, 0, &body, with_proc ? sizeof(body) : sizeof(body.w));
}

/* Every text has its end, whatever was sent. */
static void on_top(void *arg, const struct backend_process *rows, size_t n, bool more,
                   const struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (strnlen(rows[i].label, sizeof(rows[i].label)) == sizeof(rows[i].label) ||
            strnlen(rows[i].command, sizeof(rows[i].command)) == sizeof(rows[i].command))
            abort();
}

static void on_left_ended(void *arg, const struct err *err)
{
}

static void on_usage(void *arg, const struct inside_usage *usage)
{
}

static void start_programs(void)
{
    static char *const argv[] = {(char *)(uintptr_t) "x", NULL};
    static const struct exec_request req = {.argv = argv, .cwd = "/", .with_stdin = true};
    static const struct proc_request proc = {.number = NUMBER, .argv = argv, .cwd = "/"};
    const struct backend_ops *ops = t.backend->ops;
    struct err err = {0};
    if (t.sandbox == NULL)
        return;
    if (ops->exec(t.sandbox, &req, &exec_events, NULL, &t.exec, &err) == 0)
        (void)ops->exec_write(t.exec, "input", 5);
    (void)ops->top(t.sandbox, on_top, NULL, &err);
    (void)ops->end_left(t.sandbox, "x", on_left_ended, NULL, &err);
    (void)ops->usage(t.sandbox, on_usage, NULL, &err);
    if (t.proc == NULL)
        (void)ops->proc_start(t.sandbox, &proc, &proc_events, NULL, &t.proc, &err);
    if (t.proc != NULL)
        (void)ops->proc_write(t.proc, "input", 5);
}

static void speak(const uint8_t *data, size_t size, bool framed)
{
    static const uint32_t ids[] = {1, NUMBER | GUEST_PROC_BIT, 0, 2, GUEST_PROC_BIT, UINT32_MAX};
    if (!framed)
        say(data, size);
    while (framed && size >= 5) {
        size_t len = (size_t)(data[3] | data[4] << 8);
        uint32_t id = ids[data[1] % ARRAY_SIZE(ids)];
        len = len < size - 5 ? len : size - 5;
        frame(data[0], id, data[2], data + 5, len);
        data += 5 + len;
        size -= 5 + len;
    }
}

static void tear_down(struct engine *e)
{
    if (t.exec != NULL)
        t.backend->ops->exec_free(t.exec);
    if (t.proc != NULL)
        t.backend->ops->proc_free(t.proc);
    t.exec = NULL;
    t.proc = NULL;
    pump();
    (void)close(t.peer);
    while (!LIST_EMPTY(&e->sandboxes))
        engine_sandbox_free(LIST_FIRST(&e->sandboxes));
    (void)unlinkat(e->dir_fd, NAME, AT_REMOVEDIR);
    pump();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    set_up();
    if (size == 0)
        return 0;
    struct engine *e = container_of(t.backend, struct engine, base);
    t.failed = t.lost = t.finished = t.exited = 0;
    t.sent = t.given = 0;
    t.paused = false;
    t.sandbox = NULL;
    if (t.backend->ops->adopt(t.backend, NAME, t.spec, on_created, on_lost, NULL, &err) < 0)
        abort();
    pump(); /* the engine is not there, which does not matter */
    assert(!LIST_EMPTY(&e->sandboxes));
    join(LIST_FIRST(&e->sandboxes)->link.dir_fd);
    if (data[0] & 1)
        greet(data[0] & 4);
    start_programs();
    speak(data + 1, size - 1, data[0] & 2);
    tear_down(e);
    return 0;
}
