/* SPDX-License-Identifier: Apache-2.0 */

/* One program of box-guest: its pipes or terminal, its output rings, and orders from boxd. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/guest/guest.h"

#define READS_PER_TURN 8

static bool is_proc(const struct cell *c)
{
    return (c->id & GUEST_PROC_BIT) != 0;
}

struct cell *cell_find(struct guest *g, uint32_t id)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE && g->cells[i].id == id && !g->cells[i].silent)
            return &g->cells[i];
    return NULL;
}

static void unmap(char **data, size_t size)
{
    if (*data != NULL)
        (void)munmap(*data, size);
    *data = NULL;
}

static void cell_free(struct cell *c)
{
    fd_close_many(c->out, 2);
    fd_close_many(&c->in, 1);
    buf_done(&c->input);
    unmap(&c->ring.data, GUEST_RING);
    unmap(&c->tail.data, GUEST_STDERR_KEPT);
    *c = (struct cell){.in = -1, .out = {-1, -1}};
}

/* Starting. */

static int open_pipe(int *ours, int *theirs, bool they_read)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *theirs = ends[they_read ? 0 : 1];
    *ours = ends[they_read ? 1 : 0];
    return fd_set_nonblock(*ours, true);
}

/* By the master, whatever lies at /dev/pts; gVisor can only say which one it is. */
static int open_slave(int master)
{
    int number = 0, fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    char path[32];
    if (fd >= 0)
        return fd;
    if (errno != ENOTTY || ioctl(master, TIOCGPTN, &number) < 0 ||
        str_fmt(path, sizeof(path), "/dev/pts/%d", number) < 0)
        return -errno;
    fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_tty(struct cell *c, const struct guest_start *head, struct child_stdio *io)
{
    int unlock = 0;
    c->out[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (c->out[0] < 0 || ioctl(c->out[0], TIOCSPTLCK, &unlock) < 0)
        return -errno;
    io->tty = open_slave(c->out[0]);
    if (io->tty < 0)
        return io->tty;
    c->in = fcntl(c->out[0], F_DUPFD_CLOEXEC, 3);
    c->tty = true;
    cell_resize(c, head->rows, head->cols);
    return c->in < 0 ? -errno : 0;
}

static int open_streams(struct cell *c, const struct start_request *req, struct child_stdio *io)
{
    if (req->flags & GUEST_START_TTY)
        return open_tty(c, &req->head, io);
    int r = open_pipe(&c->out[0], &io->out, false);
    if (r == 0)
        r = open_pipe(&c->out[1], &io->err, false);
    if (r == 0 && (req->flags & GUEST_START_STDIN))
        r = open_pipe(&c->in, &io->in, true);
    return r;
}

static int map(char **ret, size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    *ret = p;
    return 0;
}

static int start(struct guest *g, struct cell *c, const struct start_request *req)
{
    struct child_stdio io = {-1, -1, -1, -1};
    int r = open_streams(c, req, &io);
    if (r == 0 && is_proc(c))
        r = map(&c->ring.data, GUEST_RING);
    if (r == 0 && is_proc(c))
        r = map(&c->tail.data, GUEST_STDERR_KEPT);
    if (r == 0) {
        tend_start(c, &req->head);
        g->reports[c - g->cells] = (struct child_report){0};
        r = c->main = guest_clone();
    }
    if (r == 0 && c->main == 0)
        child_run(g, c->brand, req, &io, &g->reports[c - g->cells]);
    int theirs[4] = {io.in, io.out, io.err, io.tty};
    fd_close_many(theirs, 4);
    return r < 0 ? r : 0;
}

void cell_start(struct guest *g, uint32_t id, const struct start_request *req)
{
    struct guest_head head = {.type = GUEST_EXITED, .id = id};
    struct guest_exited refused = {.stage = GUEST_STAGE_LIMIT, .error = EAGAIN};
    unsigned i = 0;
    while (i < GUEST_CELLS_MAX && g->cells[i].state != CELL_FREE)
        i++;
    bool fits = req->strings_len > 0 && req->strings_len <= GUEST_STRINGS_MAX &&
                req->strings[req->strings_len - 1] == '\0' && req->head.argc > 0 &&
                req->head.argc <= req->strings_len && req->head.envc <= req->strings_len;
    if (!fits || i == GUEST_CELLS_MAX || cell_find(g, id) != NULL) {
        if (!fits)
            refused = (struct guest_exited){.stage = GUEST_STAGE_REQUEST, .error = EBADMSG};
        serve_send(g, &head, &refused, sizeof(refused), NULL, 0);
        return;
    }
    struct cell *c = &g->cells[i];
    /* While no command ran nobody looked: kills since then are none of this one's. */
    if (!cell_any_exec(g))
        g->ooms = tend_count_ooms();
    *c = (struct cell){.state = CELL_RUNNING,
                       .id = id,
                       .main = -1,
                       .in = -1,
                       .out = {-1, -1},
                       .credit = {GUEST_WINDOW, GUEST_WINDOW},
                       .brand = brand_new(),
                       .attached = true};
    c->alone = true;
    for (unsigned k = 0; k < GUEST_CELLS_MAX; k++)
        if (k != i && g->cells[k].state == CELL_RUNNING)
            c->alone = g->cells[k].alone = false;
    buf_init(&c->input, 2 * GUEST_WINDOW);
    int r = start(g, c, req);
    if (r < 0) {
        refused.error = -r;
        serve_send(g, &head, &refused, sizeof(refused), NULL, 0);
        cell_free(c);
    }
}

/* Orders. */

void cell_resize(struct cell *c, uint32_t rows, uint32_t cols)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    if (c->tty && c->out[0] >= 0 && rows > 0 && cols > 0)
        (void)ioctl(c->out[0], TIOCSWINSZ, &size);
}

void cell_release(struct cell *c, uint64_t upto)
{
    if (is_proc(c) && upto > c->ring.begin && upto <= c->ring.end)
        c->ring.begin = upto;
}

void cell_forget(struct cell *c)
{
    c->silent = c->forget = true;
    tend_end(c, GUEST_EXITED_KILLED);
}

void cell_attach(struct cell *c)
{
    c->attached = true;
    c->ring.sent = c->ring.begin;
    c->tail.sent = c->tail.end > GUEST_STDERR_KEPT ? c->tail.end - GUEST_STDERR_KEPT : 0;
    c->ended_told[0] = c->ended_told[1] = false;
    c->told = false;
}

bool cell_any_exec(const struct guest *g)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state == CELL_RUNNING && !is_proc(&g->cells[i]))
            return true;
    return false;
}

/* With one command the whole of it ends; with several the kernel has chosen. */
void cell_on_oom(struct guest *g)
{
    struct cell *only = NULL;
    unsigned n = 0;
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        if (g->cells[i].state != CELL_RUNNING)
            continue;
        only = &g->cells[i];
        n++;
    }
    if (n == 1 && only->alone && !is_proc(only))
        tend_end(only, GUEST_EXITED_OOM);
}

/* A new boxd. Commands of the old one have nobody to answer to; what they had left in the
 * background stays, as ever. Its managed processes go on, and half a message of the old one is
 * closed before anything else follows. */
void cell_new_connection(struct guest *g)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct cell *c = &g->cells[i];
        if (c->state == CELL_FREE)
            continue;
        c->attached = false;
        if (!is_proc(c) && c->state == CELL_LINGER)
            c->silent = true;
        else if (!is_proc(c))
            cell_forget(c);
        c->forget = false; /* who asked is gone */
        if (c->part && c->in >= 0)
            (void)buf_putc(&c->input, '\n');
        c->part = false;
    }
}

/* Bytes in. */

static void flush_input(struct guest *g, struct cell *c)
{
    uint64_t done = 0;
    while (c->in >= 0 && c->input.len > 0) {
        ssize_t n = write(c->in, c->input.data, c->input.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) { /* nobody reads it any more */
            done += c->input.len;
            buf_done(&c->input);
            c->close_in = true;
            break;
        }
        done += (uint64_t)n;
        buf_consume(&c->input, (size_t)n);
    }
    if (c->close_in && c->input.len == 0)
        fd_close_many(&c->in, 1);
    if (done > 0 && !c->silent) {
        struct guest_head head = {.type = GUEST_DRAINED, .id = c->id};
        serve_send(g, &head, &done, sizeof(done), NULL, 0);
    }
}

void cell_input(struct guest *g, struct cell *c, const char *data, size_t len, uint32_t flags)
{
    if (c->in < 0 || c->close_in) {
        struct guest_head head = {.type = GUEST_DRAINED, .id = c->id};
        uint64_t done = len;
        if (len > 0)
            serve_send(g, &head, &done, sizeof(done), NULL, 0);
        return;
    }
    if (buf_append(&c->input, data, len) < 0) {
        serve_drop(g); /* it sends more than we said we take */
        return;
    }
    if (len > 0)
        c->part = (flags & GUEST_INPUT_PART) != 0;
    c->close_in = (flags & GUEST_INPUT_CLOSE) != 0;
    flush_input(g, c);
}

void cell_on_writable(struct guest *g, struct cell *c)
{
    flush_input(g, c);
}

/* Bytes out. */

static size_t room(const struct cell *c, int stream)
{
    if (c->silent)
        return GUEST_DATA_MAX;
    if (!is_proc(c))
        return c->credit[stream] < GUEST_DATA_MAX ? (size_t)c->credit[stream] : GUEST_DATA_MAX;
    if (stream == 1)
        return GUEST_DATA_MAX; /* the oldest bytes make place */
    uint64_t free_bytes = GUEST_RING - (c->ring.end - c->ring.begin);
    return free_bytes < GUEST_DATA_MAX ? (size_t)free_bytes : GUEST_DATA_MAX;
}

bool cell_wants_output(const struct cell *c, int stream)
{
    return c->out[stream] >= 0 && room(c, stream) > 0;
}

/* Into a ring of that size at an offset. */
static void put(char *ring, size_t size, uint64_t at, const char *data, size_t len)
{
    size_t pos = (size_t)(at % size);
    size_t first = len < size - pos ? len : size - pos;
    memcpy(ring + pos, data, first);
    memcpy(ring, data + first, len - first);
}

static void take(struct guest *g, struct cell *c, int stream, const char *data, size_t len)
{
    struct guest_head head = {.type = GUEST_OUTPUT, .id = c->id, .flags = (uint32_t)stream};
    if (c->silent)
        return;
    if (!is_proc(c)) {
        c->credit[stream] -= len;
        serve_send(g, &head, data, len, NULL, 0);
    } else if (stream == 0) {
        put(c->ring.data, GUEST_RING, c->ring.end, data, len);
        c->ring.end += len;
    } else {
        put(c->tail.data, GUEST_STDERR_KEPT, c->tail.end, data, len);
        c->tail.end += len;
    }
}

void cell_on_output(struct guest *g, struct cell *c, int stream)
{
    static char chunk[GUEST_DATA_MAX];
    bool hung_up = false;
    for (int i = 0; i < READS_PER_TURN && cell_wants_output(c, stream); i++) {
        ssize_t n = read(c->out[stream], chunk, room(c, stream));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        /* A terminal says EIO when the last process has closed it; what was written in between may
         * still be there. */
        if (n < 0 && errno == EIO && !hung_up) {
            hung_up = true;
            continue;
        }
        if (n <= 0) {
            fd_close_many(&c->out[stream], 1);
            c->owed[stream] = 0;
            return;
        }
        take(g, c, stream, chunk, (size_t)n);
        c->owed[stream] -= (uint64_t)n < c->owed[stream] ? (uint64_t)n : c->owed[stream];
    }
}

/* What is in a ring from offset `from` on, as one contiguous piece. */
static size_t piece(const char *ring, size_t size, uint64_t from, uint64_t end, const char **ret)
{
    size_t pos = (size_t)(from % size);
    uint64_t n = end - from;
    n = n < size - pos ? n : size - pos;
    *ret = ring + pos;
    return n < GUEST_DATA_MAX ? (size_t)n : GUEST_DATA_MAX;
}

static void send_proc(struct guest *g, struct cell *c)
{
    const char *data;
    while (serve_can_send(g) && c->ring.sent < c->ring.end) {
        struct guest_head head = {.type = GUEST_OUTPUT, .id = c->id, .flags = 0};
        struct guest_at at = {.offset = c->ring.sent};
        size_t n = piece(c->ring.data, GUEST_RING, c->ring.sent, c->ring.end, &data);
        serve_send(g, &head, &at, sizeof(at), data, n);
        c->ring.sent += n;
    }
    while (serve_can_send(g) && c->tail.sent < c->tail.end) {
        struct guest_head head = {.type = GUEST_OUTPUT, .id = c->id, .flags = 1};
        if (c->tail.end - c->tail.sent > GUEST_STDERR_KEPT)
            c->tail.sent = c->tail.end - GUEST_STDERR_KEPT;
        struct guest_at at = {.offset = c->tail.sent};
        size_t n = piece(c->tail.data, GUEST_STDERR_KEPT, c->tail.sent, c->tail.end, &data);
        serve_send(g, &head, &at, sizeof(at), data, n);
        c->tail.sent += n;
    }
}

static void send_ends(struct guest *g, struct cell *c)
{
    const bool sent[2] = {!is_proc(c) || c->ring.sent == c->ring.end,
                          !is_proc(c) || c->tail.sent == c->tail.end};
    for (int i = 0; i < 2; i++) {
        struct guest_head head = {.type = GUEST_END, .id = c->id, .flags = (uint32_t)i};
        if (c->out[i] >= 0 || c->ended_told[i] || !sent[i])
            continue;
        serve_send(g, &head, NULL, 0, NULL, 0);
        c->ended_told[i] = true;
    }
}

/* The end is told behind what was written before it, but for one that boxd waits for to end: that
 * must not depend on who reads its output. */
static bool owes(const struct cell *c, int stream)
{
    const uint32_t ended = GUEST_EXITED_KILLED | GUEST_EXITED_TIMEOUT;
    return c->owed[stream] > 0 && (room(c, stream) > 0 || (c->result.flags & ended) == 0);
}

void cell_settle(struct guest *g, struct cell *c)
{
    bool told = c->silent;
    if (g->hello && c->attached && !c->silent) {
        if (is_proc(c))
            send_proc(g, c);
        send_ends(g, c);
        if (c->exited && !c->told && !owes(c, 0) && !owes(c, 1)) {
            struct guest_head head = {.type = GUEST_EXITED, .id = c->id};
            serve_send(g, &head, &c->result, sizeof(c->result), NULL, 0);
            c->told = true;
        }
        told = c->told && c->ended_told[0] && c->ended_told[1] && !is_proc(c);
    }
    if (c->gone && c->forget) {
        struct guest_head head = {.type = GUEST_GONE, .id = c->id};
        serve_send(g, &head, NULL, 0, NULL, 0);
    }
    if (c->gone && told && (c->silent || (c->out[0] < 0 && c->out[1] < 0)))
        cell_free(c);
}

/* The kernel counts kills for the whole container. They are this one's when nothing else ran, or
 * when it failed meanwhile. */
void cell_on_result(struct guest *g, struct cell *c)
{
    for (int i = 0; i < 2; i++) { /* what it wrote before it ended comes before the news */
        int left = 0;
        cell_on_output(g, c, i);
        if (!is_proc(c) && c->out[i] >= 0 && ioctl(c->out[i], FIONREAD, &left) == 0 && left > 0)
            c->owed[i] = (uint64_t)left; /* it waits for a reader that is slow */
    }
    if (c->oom_seen && (c->failed || c->alone))
        c->result.flags |= GUEST_EXITED_OOM;
    c->exited = true;
    c->state = CELL_LINGER;
    c->close_in = true;
    buf_done(&c->input);
    fd_close_many(&c->in, 1);
}
