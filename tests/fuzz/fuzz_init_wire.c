/* SPDX-License-Identifier: Apache-2.0 */

/* What PID 1 of a sandbox makes of messages, as if boxd or anybody else had written them: a row of
 * datagrams (length of two bytes each) to the code of box-init, with nothing behind it that could
 * run. Each request for a command is answered exactly once, and the strings of one that would run
 * lie where they should. Two managed processes are there: one that has written something, and one
 * that has ended. */

#include <stddef.h>
#include <sys/mman.h> /* first: it gives its own mmap another name */
#include <sys/types.h>
#define child_exit fuzz_child_exit
#define mmap fuzz_mmap
void *fuzz_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
/* With the names above replaced. */
#include "inside/child.c"
#include "inside/init/serve.c"
#include "inside/supervisor.c"

#include <assert.h>
#include <setjmp.h>
#include <stdlib.h>

#include "fuzz.h"

static struct init in;
static jmp_buf gone;
static struct child_report reports[INIT_CELLS_MAX];
static const struct init_request *asked;

/* The child's scratch memory as blocks of their own size, which a sanitizer watches. */
static void *blocks[8];
static size_t n_blocks;

void *fuzz_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
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
    longjmp(gone, 1);
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

int cell_acquire_at(struct init *i, unsigned at, struct cell **ret)
{
    assert(at >= INIT_EXECS_MAX && at < INIT_CELLS_MAX);
    *ret = &i->cells[at];
    return 0;
}

int cell_limit_memory(const struct init *i, const struct cell *c, uint64_t bytes)
{
    return bytes % 2 ? -EOPNOTSUPP : 0;
}

bool cell_empty(const struct cell *c)
{
    return false;
}

void cell_prepare(struct init *i)
{
}

int cell_kill_tree(struct init *i, struct cell *c)
{
    return 0;
}

void cells_list(struct init *i, uint32_t after, struct init_listed *ret)
{
    ret->n = after % (INSIDE_LIST_MAX + 1);
}

void cells_end_left(struct init *i, const char *label)
{
    assert(strlen(label) < INSIDE_LABEL_SIZE);
}

int cell_open_streams(const struct init *i, const struct init_exec *head, struct streams *ret)
{
    return streams_open(&(struct streams_request){.with_stdin = true}, ret);
}

pid_t cell_start(struct init *i, struct cell *c, const struct init_request *req,
                 const struct child_stdio *io)
{
    return -EAGAIN;
}

/* In place of the child: its reading of the strings, up to where it would begin to act. */
static void read_strings(const struct init_request *req)
{
    struct child_strings s = {0};
    own_report = &reports[0];
    *own_report = (struct child_report){0};
    asked = req;
    if (setjmp(gone) != 0) {
        assert(own_report->stage == INSIDE_STAGE_REQUEST && own_report->error != 0);
        return;
    }
    const struct child c = {.argc = asked->head.argc,
                            .envc = asked->head.envc,
                            .strings = asked->strings,
                            .strings_len = asked->head.strings_len,
                            .strings_fd = asked->memfd};
    split_strings(&c, &s);
    size_t argc = 0, envc = 0;
    while (s.argv[argc] != NULL)
        argc++;
    while (s.envp[envc] != NULL)
        envc++;
    assert(argc == asked->head.argc && envc == asked->head.envc && s.cwd != NULL);
}

/* The same test that serve_exec() makes before it starts anything. */
static bool would_start(const char *data, size_t len, struct init_request *ret)
{
    const struct init_exec *head = &ret->head;
    if (len < sizeof(*head))
        return false;
    memcpy(&ret->head, data, sizeof(*head));
    ret->memfd = -1;
    ret->strings = data + sizeof(*head);
    return head->type == INIT_MSG_EXEC && !(head->flags & INIT_EXEC_MEMFD) &&
           inside_start_fits(head->argc, head->envc, head->strings_len) &&
           len == sizeof(*head) + head->strings_len;
}

/* Everything that was said; how often each of it. */
static void hear(int peer, unsigned counts[INIT_MSG_LISTED + 1])
{
    static char answer[sizeof(struct init_listed)];
    ssize_t n;
    do {
        int fds[4];
        size_t n_fds = 4;
        uint32_t type = 0;
        n = fd_recv_msg(peer, answer, sizeof(answer), fds, &n_fds, MSG_DONTWAIT);
        if (n < (ssize_t)sizeof(type))
            break;
        memcpy(&type, answer, sizeof(type));
        assert(type <= INIT_MSG_LISTED);
        assert(n_fds == 0 || (type == INIT_MSG_PROC_STATE && n_fds <= 2) ||
               (type == INIT_MSG_CONNECTED && n_fds == 1));
        counts[type]++;
        fd_close_many(fds, n_fds);
    } while (n > 0);
}

/* An input has a greeting's version as what it is off by, so that the seeds outlive the version. */
static void this_version(char *data, size_t len)
{
    struct init_hello hello;
    if (len < sizeof(hello))
        return;
    memcpy(&hello, data, sizeof(hello));
    if (hello.type == INIT_MSG_HELLO)
        hello.version += INIT_WIRE_VERSION;
    memcpy(data, &hello, sizeof(hello));
}

static void one_message(int peer, const char *data, size_t len)
{
    unsigned counts[INIT_MSG_LISTED + 1] = {0};
    struct init_request req = {.memfd = -1};
    bool listened = in.talk != TALK_NONE;
    uint32_t type = 0;
    memcpy(&type, data, len < sizeof(type) ? len : sizeof(type));
    if (send(peer, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)len)
        return;
    serve_message(&in);
    serve_flush(&in);
    hear(peer, counts);
    /* Nothing can start here: refused, once. */
    bool exec = listened && len >= sizeof(struct init_exec);
    assert(counts[INIT_MSG_EXITED] == (exec && type == INIT_MSG_EXEC));
    assert(!exec || type != INIT_MSG_PROC || counts[INIT_MSG_PROC_EXITED] >= 1);
    assert(counts[INIT_MSG_HELLO] <= 1 && counts[INIT_MSG_PROC_END] == counts[INIT_MSG_HELLO]);
    assert(counts[INIT_MSG_PROC_STATE] <= 2 && counts[INIT_MSG_PROC_OUTPUT] <= 1);
    assert(counts[INIT_MSG_PROC_GONE] <= (type == INIT_MSG_PROC_FORGET));
    assert(counts[INIT_MSG_STARTED] == 0);
    assert(counts[INIT_MSG_LISTED] ==
           (listened && type == INIT_MSG_LIST && len == sizeof(struct init_list)));
    if (listened && would_start(data, len, &req))
        read_strings(&req);
    free_blocks();
}

/* Offsets that a message of a few bytes can name. */
static void add_proc(unsigned i, uint32_t number, bool exited)
{
    struct init_proc *p = &in.procs[i];
    int out[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    *p = (struct init_proc){.number = number, .exited = exited, .in_fd = exited ? -1 : null};
    if (exited && null >= 0)
        (void)close(null);
    p->ring_fd = ring_writer_init(&p->ring);
    if (p->ring_fd < 0 || pipe2(out, O_CLOEXEC | O_NONBLOCK) < 0)
        abort();
    p->out_fd = out[0];
    p->err_fd = -1;
    if (write(out[1], "0123456789", 10) != 10 || ring_fill_out(&p->ring, p->out_fd) != 10)
        abort();
    (void)close(out[1]);
    p->result = (struct init_exited){.type = INIT_MSG_PROC_EXITED, .id = number};
    in.cells[INIT_EXECS_MAX + i].state = exited ? CELL_LINGER : CELL_DONE;
    in.procs_top = i + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    in = (struct init){.conn_fd = pair[1], .reports = reports};
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
        in.cells[i].cgroup_fd = -1;
        in.cells[i].id = UINT32_MAX;
    }
    add_proc(0, 1, false);
    add_proc(1, 2, true);
    while (size > 2) {
        size_t len = (size_t)(data[0] | data[1] << 8);
        data += 2;
        size -= 2;
        len = len < size ? len : size;
        if (len > 0) {
            char *copy = malloc(len);
            memcpy(copy, data, len);
            this_version(copy, len);
            one_message(pair[0], copy, len);
            free(copy);
        }
        data += len;
        size -= len;
    }
    for (unsigned i = 0; i < in.procs_top; i++) {
        assert(in.procs[i].number == 0 || ring_room(&in.procs[i].ring) <= RING_OUT_SIZE);
        if (in.procs[i].number != 0)
            proc_done(&in.procs[i]);
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
    return 0;
}
