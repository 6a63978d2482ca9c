/* SPDX-License-Identifier: Apache-2.0 */

/* What PID 1 of a sandbox makes of messages, as if boxd or anybody else had written them: a row of
 * datagrams (length of two bytes each) to the code of box-init, with nothing behind it that could
 * run. Each request for a command is answered exactly once, and the strings of one that would run
 * lie where they should. */

#define child_exit fuzz_child_exit
#define clone_process fuzz_clone_process
#define mmap fuzz_mmap
#include <stddef.h>
#include <sys/types.h>
void *fuzz_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
/* NOLINTNEXTLINE(bugprone-suspicious-include): with the names above replaced. */
#include "sandbox/init/child.c"
/* NOLINTNEXTLINE(bugprone-suspicious-include) */
#include "sandbox/init/serve.c"

#include <assert.h>
#include <setjmp.h>
#include <stdlib.h>

#include "fuzz.h"

static struct init in;
static jmp_buf gone;
static struct child_report reports[INIT_EXECS_MAX];
static const struct exec_request *asked;

/* The child's scratch memory as blocks of their own size, which a sanitizer watches. */
static void *blocks[8];
static size_t n_blocks;

void *fuzz_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    (void)addr;
    (void)prot;
    (void)flags;
    (void)fd;
    (void)offset;
    assert(n_blocks < sizeof(blocks) / sizeof(blocks[0]));
    blocks[n_blocks] = calloc(1, len);
    return blocks[n_blocks] != NULL ? blocks[n_blocks++] : MAP_FAILED;
}

static void free_blocks(void)
{
    while (n_blocks > 0)
        free(blocks[--n_blocks]);
}

void fuzz_child_exit(int status)
{
    (void)status;
    longjmp(gone, 1);
}

uint64_t init_now(void)
{
    return 1;
}

unsigned cell_index(const struct init *i, const struct cell *c)
{
    return (unsigned)(c - i->cells);
}

void cell_move(struct cell *c, enum cell_state to)
{
    c->state = to;
}

int cell_acquire(struct init *i, struct cell **ret)
{
    *ret = &i->cells[0];
    return 0;
}

void cell_prepare(struct init *i)
{
    (void)i;
}

int cell_kill_tree(struct init *i, struct cell *c)
{
    (void)i;
    (void)c;
    return 0;
}

/* In place of the child: its reading of the strings, up to where it would begin to act.
 * NOLINTNEXTLINE(readability-non-const-parameter): the type is that of clone_process(). */
pid_t fuzz_clone_process(uint64_t flags, int cgroup_fd, int *ret_pidfd)
{
    (void)flags;
    (void)cgroup_fd;
    (void)ret_pidfd;
    return -EAGAIN;
}

static void read_strings(const struct exec_request *req)
{
    struct strings s = {0};
    report = &reports[0];
    *report = (struct child_report){0};
    asked = req;
    if (setjmp(gone) != 0) {
        assert(report->stage == INIT_STAGE_REQUEST && report->error != 0);
        return;
    }
    split_strings(asked, &s);
    size_t argc = 0, envc = 0;
    while (s.argv[argc] != NULL)
        argc++;
    while (s.envp[envc] != NULL)
        envc++;
    assert(argc == asked->head.argc && envc == asked->head.envc && s.cwd != NULL);
}

/* The same test that serve_exec() makes before it starts anything. */
static bool would_start(const char *data, size_t len, struct exec_request *ret)
{
    const struct init_exec *head = &ret->head;
    if (len < sizeof(*head))
        return false;
    memcpy(&ret->head, data, sizeof(*head));
    ret->memfd = -1;
    ret->strings = data + sizeof(*head);
    return head->type == INIT_MSG_EXEC && !(head->flags & INIT_EXEC_MEMFD) &&
           head->strings_len > 0 && head->strings_len <= INIT_STRINGS_MAX && head->argc > 0 &&
           head->argc <= head->strings_len && head->envc <= head->strings_len &&
           len == sizeof(*head) + head->strings_len;
}

static void one_message(int peer, const char *data, size_t len)
{
    char answer[512];
    struct exec_request req = {.memfd = -1};
    bool listened = in.hello;
    uint32_t type = 0;
    memcpy(&type, data, len < sizeof(type) ? len : sizeof(type));
    if (send(peer, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len)
        return;
    serve_message(&in);
    ssize_t n = recv(peer, answer, sizeof(answer), MSG_DONTWAIT);
    if (listened && type == INIT_MSG_EXEC && len >= sizeof(struct init_exec))
        assert(n == (ssize_t)sizeof(struct init_exited)); /* nothing can start here: refused */
    if (n > 0) {
        memcpy(&type, answer, sizeof(type));
        assert(type == INIT_MSG_HELLO || type == INIT_MSG_EXITED);
        assert(recv(peer, answer, sizeof(answer), MSG_DONTWAIT) < 0);
    }
    if (listened && would_start(data, len, &req))
        read_strings(&req);
    free_blocks();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    in = (struct init){.conn_fd = pair[1], .reports = reports};
    in.cells[0].cgroup_fd = -1;
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++)
        in.cells[i].id = UINT32_MAX;
    while (size > 2) {
        size_t len = (size_t)(data[0] | data[1] << 8);
        data += 2;
        size -= 2;
        len = len < size ? len : size;
        if (len > 0) {
            char *copy = malloc(len);
            memcpy(copy, data, len);
            one_message(pair[0], copy, len);
            free(copy);
        }
        data += len;
        size -= len;
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
    return 0;
}
